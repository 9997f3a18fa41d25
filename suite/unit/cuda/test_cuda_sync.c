/* The collectives of a step of ResNet-50 whose ranks share the statistics of batch norms, on the
 * CUDA backend with an emulated device. The step is recorded, not executed. */
#include "reference/model/model.h"
#include "suite/unit/run_suite.h"
#include "use_emulation.h"

#include <check.h>
#include <string.h>

#include "kernels/entries.h"
#include "kernels/kernels.h"

enum { RANKS = 2, SIZE = 32, CLASSES = 10 };

typedef struct bound {
    const ls_backend_api *api;
    ls_backend *backend;
    ls_stream *stream;
    ls_network network;
    ls_plan *plan;
    void *memory; /* of all tensors */
    ls_tensor *param, *grad, *buffer;
} bound;

typedef struct counter {
    int gathers;
    int64_t floats;
} counter;

static ls_status count_gather(void *context, ls_stream *stream, const float *mine, float *all,
                              int64_t count)
{
    counter *c = context;
    (void)stream;
    ck_assert(mine != NULL && all != NULL && mine != all);
    c->gathers++;
    c->floats += count;
    return LS_OK;
}

/* A tensor of f32 at `*used` bytes of the memory, if there is memory. */
static ls_tensor tensor_at(const bound *b, int64_t *used, int64_t count)
{
    ls_tensor t = {.data = b->memory != NULL ? (char *)b->memory + *used : NULL,
                   .count = count,
                   .dtype = LS_F32};
    *used += (count * 4 + 255) / 256 * 256;
    return t;
}

static int64_t place_tensors(bound *b)
{
    int64_t used = 0;
    for (int p = 0; p < b->network.param_count; p++) {
        b->param[p] = tensor_at(b, &used, ls_shape_count(&b->network.param[p].shape));
        b->grad[p] = tensor_at(b, &used, ls_shape_count(&b->network.param[p].shape));
    }
    for (int i = 0; i < b->network.buffer_count; i++) {
        b->buffer[i] = tensor_at(b, &used, b->network.buffer[i].count);
    }
    return used;
}

static void make(bound *b, const char *arch, const ls_norm_sync *sync)
{
    *b = (bound){0};
    ls_backend_options options = {.deterministic = true, .local_ranks = 1};
    ls_plan_options plan = {
        .batch = 2, .height = SIZE, .width = SIZE, .activation = LS_F16, .norm_sync = sync};
    void *state = NULL;
    ck_assert_int_eq(ls_model_build(arch, CLASSES, SIZE, &b->network), LS_OK);
    ck_assert_int_eq(ls_load_backend("cuda", &b->api), LS_OK);
    ck_assert_int_eq(b->api->open(&options, &b->backend), LS_OK);
    ck_assert_int_eq(b->api->stream_create(b->backend, &b->stream), LS_OK);
    ck_assert_int_eq(b->api->plan_create(b->backend, &b->network, &plan, &b->plan), LS_OK);
    b->param = calloc((size_t)b->network.param_count, sizeof *b->param);
    b->grad = calloc((size_t)b->network.param_count, sizeof *b->grad);
    b->buffer = calloc((size_t)b->network.buffer_count, sizeof *b->buffer);
    int64_t bytes = place_tensors(b) + 256;
    ck_assert_int_eq(b->api->memory_alloc(b->backend, bytes, "tensors", &b->memory), LS_OK);
    state = (char *)b->memory + place_tensors(b);
    ls_plan_binding binding = {b->param, b->grad, b->buffer, state};
    ck_assert_int_le((int)sizeof(ls_step_state), 256);
    ck_assert_int_eq(b->api->plan_bind(b->plan, &binding), LS_OK);
}

static void drop(bound *b)
{
    b->api->plan_destroy(b->plan);
    b->api->memory_free(b->backend, b->memory);
    b->api->stream_destroy(b->stream);
    b->api->close(b->backend);
    ls_model_free(&b->network);
    free(b->param);
    free(b->grad);
    free(b->buffer);
}

static void record_step(const bound *b)
{
    ls_graph *graph = NULL;
    ck_assert_int_eq(b->api->graph_begin(b->stream), LS_OK);
    ck_assert_int_eq(b->api->plan_params_changed(b->plan, b->stream), LS_OK);
    ck_assert_int_eq(b->api->plan_forward_loaded(b->plan, b->stream, 0), LS_OK);
    ck_assert_int_eq(b->api->plan_backward(b->plan, b->stream, 1, NULL, NULL), LS_OK);
    ck_assert_int_eq(b->api->graph_end(b->stream, &graph), LS_OK);
    b->api->graph_destroy(graph);
}

/* 53 norms, of which four pairs end a block with a projection: each pair sends one message forward
 * and one backward, of both sides. */
TEST(both_sides_in_one_message)
{
    counter c = {0};
    ls_norm_sync sync = {RANKS, &c, count_gather};
    bound b;
    int norms = 0;
    int64_t floats = 0;
    make(&b, "resnet50", &sync);
    for (int i = 0; i < b.network.layer_count; i++) {
        if (b.network.layer[i].kind == LS_LAYER_BATCH_NORM) {
            norms++;
            floats += 3 * ls_shape_count(&b.network.param[b.network.layer[i].weight].shape) + 1;
        }
    }
    record_step(&b);
    ck_assert_int_eq(norms, 53);
    ck_assert_int_eq(c.gathers, 2 * (53 - 4));
    ck_assert_int_eq(c.floats, 2 * floats);
    drop(&b);
}

int main(void)
{
    use_emulation();
    return RUN_TESTS("cuda_sync", .timeout_s = 60);
}
