/* The memory of activations' gradients (kernels/grad_layout.c): what an operation reads while it
 * writes is not written over. */
#include <check.h>
#include <stdlib.h>

#include "kernels/lowered.h"
#include "reference/model/model.h"
#include "suite/unit/run_suite.h"

static size_t slot_bytes(void *context, const ls_plan_options *options, int channels, int height,
                         int width, bool is_input)
{
    (void)context;
    (void)is_input;
    return (size_t)options->batch * (size_t)channels * (size_t)height * (size_t)width * 4;
}

static bool overlap(const ls_lower *lower, int a, int b)
{
    const ls_grad_buffer *x = &lower->grad[a], *y = &lower->grad[b];
    return x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes;
}

/* A norm that runs by channels: its dx, and dy of channels that it has not reached. */
START_TEST(no_norm_writes_over_its_gradients)
{
    const ls_lower_backend backend = {.slot_bytes = slot_bytes, .by_channels = true};
    int joins = 0;
    for (int size = 32; size < 66; size++) {
        ls_plan_options options = {.batch = 8, .height = size, .width = size};
        ls_network network;
        ls_lower lower;
        ck_assert_int_eq(ls_model_build("resnet18", 10, size, &network), LS_OK);
        ck_assert_int_eq(ls_lower_create(&network, &options, &backend, &lower), LS_OK);
        for (int i = 0; i < lower.op_count; i++) {
            const ls_op *op = &lower.op[i];
            for (int k = 0; k < 2; k++) {
                int dx = k == 0 ? op->dx : op->dx2, dy = op->dy[1];
                if (op->kind != LS_OP_NORM || dy == LS_NO_BUFFER || dx == LS_NO_BUFFER) {
                    continue;
                }
                joins++;
                for (int j = 0; j < 2; j++) {
                    ck_assert_msg(dx == op->dy[j] || !overlap(&lower, dx, op->dy[j]),
                                  "%d pixels: the norm of %s writes over its own gradient", size,
                                  network.layer[op->norm[0]].name);
                }
            }
        }
        ls_lower_free(&lower);
        ls_model_free(&network);
    }
    ck_assert_int_gt(joins, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("lower");
    TCase *tests = tcase_create("all");
    tcase_add_test(tests, no_norm_writes_over_its_gradients);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
