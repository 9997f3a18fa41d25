/* A network as backends run it (kernels/lower.c, grad_layout.c): its operations, their memory, what
 * others ask about them, and refusals; that what an operation reads while it writes is not written
 * over; and the checks that plans of every backend share (plan_check.c). */
#include "kernels/lowered.h"
#include "kernels/plan_check.h"
#include "reference/model/model.h"
#include "suite/unit/caught.h"
#include "suite/unit/golden.h"
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
TEST(no_norm_writes_over_its_gradients)
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

/* ---- all of it --------------------------------------------------------------------------------
 */

static bool adds_small(void *context, const ls_lower *lower, const ls_op *op)
{
    return *(bool *)context && lower->slot[op->in].height <= 4;
}

static void name_engine(const void *context, const ls_op *op, char *line, size_t bytes)
{
    ls_text_put(line, bytes, "%s of slot %d", (const char *)context, op->in);
}

static void print_lower(FILE *to, const ls_lower *lower)
{
    char text[4096];
    int order[256];
    for (int i = 0; i < lower->slot_count; i++) {
        const ls_slot *s = &lower->slot[i];
        fprintf(to, "slot %d: layer %d %dx%dx%d %lld %zu%s\n", i, s->layer, s->channels, s->height,
                s->width, (long long)s->count, s->bytes, s->wants_gradient ? "" : " no gradient");
    }
    for (int i = 0; i < lower->op_count; i++) {
        const ls_op *op = &lower->op[i];
        ls_observed seen = ls_lower_observed(lower, ls_lower_observed_kind(op), op);
        fprintf(to, "op %d: %d layer %d in %d+%d out %d norm %d %d%s%s%s%s, dy %d %d g %d dx %d %d",
                i, (int)op->kind, op->layer, op->in, op->residual, op->out, op->norm[0],
                op->norm[1], op->relu ? " relu" : "", op->dual ? " dual" : "",
                op->store_g ? " store" : "", op->onto ? " onto" : "", op->dy[0], op->dy[1], op->g,
                op->dx, op->dx2);
        fprintf(to, ", seen %d %d %d %d %d %d %dx%d %d %dx%d %d %d %d%s%s, %g\n", (int)seen.kind,
                seen.layer, (int)seen.type, seen.images, seen.in_channels, seen.plain_channels,
                seen.in_height, seen.in_width, seen.out_channels, seen.out_height, seen.out_width,
                seen.kernel, seen.stride, seen.pad, seen.relu ? " relu" : "",
                seen.dual ? " dual" : "", ls_lower_product_flops(lower, op));
    }
    for (int i = 0; i < lower->grad_count; i++) {
        fprintf(to, "gradient %d: %zu at %zu\n", i, lower->grad[i].bytes, lower->grad[i].offset);
    }
    ls_lower_ready_order(lower->network, order);
    for (int i = 0; i < lower->network->param_count; i++) {
        fprintf(to, "%s%d", i == 0 ? "ready: " : " ", order[i]);
    }
    ls_lower_describe(lower, name_engine, "an engine", text, sizeof text);
    fprintf(to, "\n%zu bytes, %g flops\n%s", lower->gradient_bytes, ls_lower_flops(lower), text);
    ls_lower_describe(lower, name_engine, "an engine", text, 100);
    ck_assert_uint_eq(strlen(text), 99);
}

/* With a plain backend; with one that does all that is asked of backends; with branches that can be
 * forced. */
TEST(the_whole_lowering)
{
    static const struct {
        const char *arch;
        int size;
        bool adds, twice, by_channels, forced;
    } rows[] = {
        {"resnet8", 16, false, false, false, false}, {"resnet8", 16, true, false, true, true},
        {"resnet18", 33, true, true, false, false},  {"resnet18", 33, false, false, true, false},
        {"resnet18", 32, true, true, true, true},
    };
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool adds = rows[i].adds;
        const ls_lower_backend backend = {.slot_bytes = slot_bytes,
                                          .adds = i == 0 ? NULL : adds_small,
                                          .gates_twice = rows[i].twice,
                                          .by_channels = rows[i].by_channels,
                                          .context = &adds};
        ls_plan_options options = {.batch = 2,
                                   .height = rows[i].size,
                                   .width = rows[i].size + 1,
                                   .activation = i == 1 ? LS_F16 : LS_F32,
                                   .forced_branches = rows[i].forced};
        ls_network network;
        ls_lower lower;
        ck_assert_int_eq(ls_model_build(rows[i].arch, 10, rows[i].size, &network), LS_OK);
        ck_assert_int_eq(ls_lower_create(&network, &options, &backend, &lower), LS_OK);
        fprintf(to, "==== %s %d%s%s%s%s\n", rows[i].arch, rows[i].size, adds ? " adds" : "",
                rows[i].twice ? " gates twice" : "", rows[i].by_channels ? " by channels" : "",
                rows[i].forced ? " forced" : "");
        print_lower(to, &lower);
        for (int b = -1; b <= network.branch_count; b++) {
            const ls_op *op = ls_lower_op_of_branch(&lower, b);
            fprintf(to, "branch %d: op %d, relu %d, pool %d\n", b,
                    op == NULL || b < 0 ? -1 : (int)(op - lower.op),
                    b < 0 ? -1 : ls_lower_layer_of_branch(&network, b, LS_LAYER_RELU),
                    b < 0 ? -1 : ls_lower_layer_of_branch(&network, b, LS_LAYER_MAX_POOL));
        }
        ls_lower_free(&lower);
        ck_assert(lower.op == NULL && lower.op_count == 0);
        ls_model_free(&network);
    }
    fclose(to);
    golden_check("suite/unit/kernels/expected/lower.txt", golden_short(text, 1));
}

/* ---- networks that cannot be lowered ------------------------------------------------------------
 */

static ls_layer layer_of(ls_layer_kind kind, int input)
{
    return (ls_layer){.kind = kind,
                      .input = {input, -1},
                      .channels = 4,
                      .kernel = 1,
                      .stride = 1,
                      .weight = -1,
                      .bias = -1,
                      .branch = -1,
                      .name = "x"};
}

/* The input, a layer of that kind, the average over pixels, a linear layer, the loss. */
static void build_small(ls_network *network, ls_layer *layer, ls_layer_kind kind)
{
    static const ls_layer_kind rest[] = {LS_LAYER_AVG_POOL, LS_LAYER_LINEAR,
                                         LS_LAYER_CROSS_ENTROPY};
    layer[0] = layer_of(LS_LAYER_INPUT, -1);
    layer[1] = layer_of(kind, 0);
    for (int i = 0; i < 3; i++) {
        layer[2 + i] = layer_of(rest[i], 1 + i);
    }
    *network = (ls_network){.arch = "small", .layer_count = 5, .layer = layer};
}

static ls_status lower_small(const ls_network *network, int height, int width)
{
    const ls_lower_backend backend = {.slot_bytes = slot_bytes};
    ls_plan_options options = {.batch = 1, .height = height, .width = width};
    ls_lower lower;
    ls_status status = ls_lower_create(network, &options, &backend, &lower);
    if (status == LS_OK) {
        ls_lower_free(&lower);
    }
    return status;
}

TEST(windows_that_do_not_fit)
{
    static const struct {
        ls_layer_kind kind;
        int kernel, pad, height, width;
        const char *said; /* NULL: it fits */
    } rows[] = {
        {LS_LAYER_CONV, 3, 0, 3, 3, NULL},
        {LS_LAYER_CONV, 3, 0, 2, 3, "x: an image of 2 x 3 is too small for its 3 x 3 kernel"},
        {LS_LAYER_CONV, 3, 0, 3, 2, "x: an image of 3 x 2 is too small for its 3 x 3 kernel"},
        {LS_LAYER_CONV, 3, 1, 1, 1, NULL},
        {LS_LAYER_CONV, 5, 1, 2, 3, "x: an image of 2 x 3 is too small for its 5 x 5 kernel"},
        {LS_LAYER_MAX_POOL, 2, 0, 2, 2, NULL},
        {LS_LAYER_MAX_POOL, 2, 0, 1, 2, "x: no max pool of kernel 2, padding 0 on 1 x 2 pixels"},
        {LS_LAYER_MAX_POOL, 2, 0, 2, 1, "x: no max pool of kernel 2, padding 0 on 2 x 1 pixels"},
        {LS_LAYER_MAX_POOL, 2, 1, 1, 1, NULL},
        {LS_LAYER_MAX_POOL, 2, 2, 4, 4, "x: no max pool of kernel 2, padding 2 on 4 x 4 pixels"},
        {LS_LAYER_MAX_POOL, 16, 0, 16, 16, NULL},
        {LS_LAYER_MAX_POOL, 17, 0, 17, 17, "x: no max pool of kernel 17, padding 0 on 17 x 17"},
        {LS_LAYER_LINEAR, 1, 0, 1, 1, NULL},
        {LS_LAYER_LINEAR, 1, 0, 2, 1, "x: a linear layer reads [N,C,1,1], not 2 x 1 pixels"},
        {LS_LAYER_LINEAR, 1, 0, 1, 2, "x: a linear layer reads [N,C,1,1], not 1 x 2 pixels"},
        {(ls_layer_kind)99, 1, 0, 1, 1, "x has kind 99, which this backend does not know"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_network network;
        ls_layer layer[5];
        build_small(&network, layer, rows[i].kind);
        layer[1].kernel = rows[i].kernel;
        layer[1].pad = rows[i].pad;
        catch_lines();
        ls_status status = lower_small(&network, rows[i].height, rows[i].width);
        const char *said = caught_lines();
        bool known = rows[i].kind != (ls_layer_kind)99;
        ck_assert_int_eq(status, rows[i].said == NULL ? LS_OK
                                 : known              ? LS_ERR_USAGE
                                                      : LS_ERR_UNSUPPORTED);
        ck_assert_msg(strstr(said, rows[i].said == NULL ? "" : rows[i].said) != NULL, "%s", said);
    }
}

TEST(networks_that_are_not_supported)
{
    static const struct {
        int layer, input, second; /* of a layer, changed; layer -1: none */
        const char *why;          /* NULL: supported */
    } rows[] = {
        {-1, 0, 0, NULL},
        {1, -1, -1, "layer x reads layer -1, which does not come before it"},
        {1, 1, -1, "layer x reads layer 1, which does not come before it"},
        {3, 4, -1, "layer x has 0 readers; 1 or 2 are supported"},
        {3, 1, -1, "layer x has 0 readers; 1 or 2 are supported"},
        {4, 1, -1, "layer x has 0 readers; 1 or 2 are supported"},
        {2, 1, 1, NULL}, /* one reader, twice */
    };
    char why[256];
    ls_network network;
    ls_layer layer[6];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        build_small(&network, layer, LS_LAYER_CONV);
        if (rows[i].layer >= 0) {
            layer[rows[i].layer].input[0] = rows[i].input;
            layer[rows[i].layer].input[1] = rows[i].second;
        }
        ck_assert_int_eq(ls_lower_supports(&network, LS_F32, why, sizeof why), rows[i].why == NULL);
        if (rows[i].why != NULL) {
            ck_assert_str_eq(why, rows[i].why);
            ck_assert_int_eq(lower_small(&network, 1, 1), LS_ERR_UNSUPPORTED);
        }
    }
    build_small(&network, layer, LS_LAYER_ADD);
    ck_assert(!ls_lower_supports(&network, LS_F32, why, sizeof why));
    layer[1].input[1] = 0;
    ck_assert(ls_lower_supports(&network, LS_F32, why, sizeof why));
    layer[3].input[1] = 1; /* a third reader */
    layer[4].input[1] = 1;
    ck_assert(!ls_lower_supports(&network, LS_F32, why, sizeof why));
    ck_assert_str_eq(why, "layer x has 3 readers; 1 or 2 are supported");
    static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16, LS_F64, LS_I32};
    build_small(&network, layer, LS_LAYER_CONV);
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(ls_lower_supports(&network, types[i], why, sizeof why), i < 3);
    }
    ck_assert_str_eq(why, "activations are fp32, fp16 or bf16, not int32");
    for (int i = 0; i < 3; i++) {
        build_small(&network, layer, LS_LAYER_CONV);
        if (i < 2) {
            layer[i == 0 ? 0 : 4].kind = LS_LAYER_RELU;
        } else {
            network.layer_count = 1;
        }
        ck_assert(!ls_lower_supports(&network, LS_F32, why, sizeof why));
        ck_assert_str_eq(why, "a network starts with the input and ends with cross entropy");
    }
}

/* ---- what plans check ---------------------------------------------------------------------------
 */

static ls_status note_ready(void *context, int param)
{
    int *list = context; /* count, then parameters */
    list[1 + list[0]++] = param;
    return list[0] == 3 ? LS_ERR_CHECK : LS_OK;
}

TEST(gradients_are_reported_in_order)
{
    ls_network network;
    ls_plan_ready ready;
    int list[300] = {0};
    ck_assert_int_eq(ls_model_build("resnet8", 10, 16, &network), LS_OK);
    ck_assert_int_eq(ls_plan_ready_create(&network, &ready), LS_OK);
    int count = network.param_count;
    ck_assert(ready.count == count && ready.reported == 0);
    ck_assert(ready.order[0] == count - 1 && ready.order[1] == count - 2); /* bias, weight */
    ck_assert_int_eq(ready.order[count - 1], 0);
    ls_plan_ready_begin(&ready);
    ck_assert_int_eq(ls_plan_ready_report(&ready, note_ready, list), LS_OK);
    ck_assert_int_eq(list[0], 0);
    ready.done[ready.order[1]] = true; /* it waits for the first */
    ck_assert_int_eq(ls_plan_ready_report(&ready, note_ready, list), LS_OK);
    ck_assert_int_eq(list[0], 0);
    ready.done[ready.order[0]] = true;
    ck_assert_int_eq(ls_plan_ready_report(&ready, note_ready, list), LS_OK);
    ck_assert(list[0] == 2 && list[1] == ready.order[0] && list[2] == ready.order[1]);
    ready.done[ready.order[2]] = ready.done[ready.order[3]] = true;
    ck_assert_int_eq(ls_plan_ready_report(&ready, note_ready, list), LS_ERR_CHECK);
    ck_assert(list[0] == 3 && ready.reported == 3);
    ck_assert_int_eq(ls_plan_ready_report(&ready, NULL, NULL), LS_OK);
    ck_assert_int_eq(ready.reported, 4);
    memset(ready.done, true, (size_t)count);
    ck_assert_int_eq(ls_plan_ready_report(&ready, NULL, NULL), LS_OK);
    ck_assert_int_eq(ready.reported, count);
    ls_plan_ready_begin(&ready);
    ck_assert_int_eq(ready.reported, 0);
    for (int i = 0; i < count; i++) {
        ck_assert(!ready.done[i]);
    }
    ls_plan_ready_free(&ready);
    ck_assert(ready.order == NULL && ready.count == 0);
    ls_model_free(&network);
}

/* Two groups whose members alternate, and one of a single parameter in the middle. */
TEST(reports_wait_for_their_group)
{
    ls_network network;
    ls_plan_ready ready;
    ck_assert_int_eq(ls_model_build("resnet8", 10, 16, &network), LS_OK);
    ck_assert_int_eq(ls_plan_ready_create(&network, &ready), LS_OK);
    int count = network.param_count, middle = count / 2;
    int *group = calloc((size_t)count, sizeof *group);
    for (int i = 0; i < count; i++) {
        group[ready.order[i]] = i == middle ? 9 : i < middle - 1 ? 5 : 5 + i % 2;
    }
    ls_plan_ready_group(&ready, group);
    ls_plan_ready_begin(&ready);
    /* group 5 goes on to the end, so group 9's end is the first that lets anything through */
    for (int i = 0; i < count; i++) {
        int due = i < middle ? 0 : i < count - 2 ? middle + 1 : i + 1;
        ready.done[ready.order[i]] = true;
        ck_assert_int_eq(ls_plan_ready_due(&ready), due);
        ck_assert_int_eq(ls_plan_ready_report(&ready, NULL, NULL), LS_OK);
        ck_assert_int_eq(ready.reported, due);
    }
    ck_assert_int_eq(ready.reported, count);
    ls_plan_ready_group(&ready, NULL);
    ls_plan_ready_begin(&ready);
    for (int i = 0; i < count; i++) {
        ready.done[ready.order[i]] = true;
        ck_assert_int_eq(ls_plan_ready_due(&ready), i + 1);
    }
    free(group);
    ls_plan_ready_free(&ready);
    ls_model_free(&network);
}

TEST(tensors_that_are_bound)
{
    ls_network network;
    ls_plan_tensors tensors;
    ls_step_state state;
    ck_assert_int_eq(ls_model_build("resnet8", 10, 16, &network), LS_OK);
    int params = network.param_count, buffers = network.buffer_count;
    ls_tensor *list = calloc((size_t)(2 * params + buffers), sizeof *list);
    for (int i = 0; i < 2 * params + buffers; i++) {
        list[i] = (ls_tensor){.data = &list[i], .dtype = LS_F16, .count = 7};
    }
    for (int i = 0; i < params; i++) {
        list[i].count = list[params + i].count = ls_shape_count(&network.param[i].shape);
    }
    ls_plan_binding binding = {list, list + params, list + 2 * params, &state, NULL};
    ck_assert_int_eq(ls_plan_tensors_create(&network, &tensors), LS_OK);
    ck_assert_int_eq(ls_plan_tensors_bind(&network, &binding, &tensors), LS_OK);
    ck_assert_mem_eq(tensors.param, list, (size_t)params * sizeof *list);
    ck_assert_mem_eq(tensors.grad, list + params, (size_t)params * sizeof *list);
    ck_assert_mem_eq(tensors.buffer, list + 2 * params, (size_t)buffers * sizeof *list);
    ck_assert_ptr_eq(tensors.state, &state);
    for (int i = 0; i < 2 * params; i += params - 1) { /* the first, the last, ... of both */
        list[i].count++;
        ck_assert_int_eq(ls_plan_tensors_bind(&network, &binding, &tensors), LS_ERR_USAGE);
        list[i].count--;
    }
    ls_plan_tensors_free(&tensors);
    free(list);
    ls_model_free(&network);
}

TEST(exports_and_forced_branches)
{
    const ls_lower_backend backend = {.slot_bytes = slot_bytes};
    ls_network network;
    ck_assert_int_eq(ls_model_build("resnet18", 10, 33, &network), LS_OK);
    int conv = 1, pool = ls_lower_layer_of_branch(&network, 1, LS_LAYER_MAX_POOL);
    int relu = ls_lower_layer_of_branch(&network, 0, LS_LAYER_RELU);
    ck_assert(network.layer[conv].kind == LS_LAYER_CONV && pool > relu && relu > conv);
    for (int forced = 0; forced < 2; forced++) {
        ls_plan_options options = {
            .batch = 1, .height = 33, .width = 33, .forced_branches = forced == 1};
        ls_lower lower;
        ck_assert_int_eq(ls_lower_create(&network, &options, &backend, &lower), LS_OK);
        /* 64 channels of 17 x 17, then 9 x 9 pixels */
        const struct {
            ls_export what;
            int index, layer; /* layer whose slot is meant; -1: of the logits; -2: refused */
            int64_t bytes;
            ls_status refused;
        } rows[] = {
            {LS_EXPORT_LOGITS, 0, -1, 40, LS_OK},
            {LS_EXPORT_LOGITS, 0, -2, 36, LS_ERR_USAGE},
            {LS_EXPORT_ACTIVATION, conv, conv, INT64_C(4) * 64 * 17 * 17, LS_OK},
            {LS_EXPORT_ACTIVATION, 0, 0, INT64_C(4) * 3 * 33 * 33, LS_OK},
            {LS_EXPORT_ACTIVATION, conv, -2, 64 * 17 * 17, LS_ERR_USAGE},
            {LS_EXPORT_ACTIVATION, -1, -2, 4, LS_ERR_UNSUPPORTED},
            {LS_EXPORT_ACTIVATION, network.layer_count - 1, -2, 4, LS_ERR_UNSUPPORTED},
            {LS_EXPORT_ACTIVATION, network.layer_count, -2, 4, LS_ERR_UNSUPPORTED},
            {LS_EXPORT_RELU_BITS, 0, relu, 64 * 17 * 17 / 8, LS_OK},
            {LS_EXPORT_RELU_BITS, 0, -2, 64 * 17 * 17, LS_ERR_USAGE},
            {LS_EXPORT_RELU_BITS, 1, -2, 64 * 17 * 17 / 8, LS_ERR_USAGE},
            {LS_EXPORT_RELU_BITS, -5, -2, 8, LS_ERR_USAGE},
            {LS_EXPORT_POOL_INDEX, 1, pool, INT64_C(4) * 64 * 9 * 9, LS_OK},
            {LS_EXPORT_POOL_INDEX, 1, -2, 64 * 9 * 9 / 8, LS_ERR_USAGE},
            {LS_EXPORT_POOL_INDEX, 0, -2, INT64_C(4) * 64 * 9 * 9, LS_ERR_USAGE},
        };
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            int slot = -7, want = rows[i].layer == -2   ? -7
                                  : rows[i].layer == -1 ? lower.op[lower.op_count - 1].in
                                                        : lower.slot_of_layer[rows[i].layer];
            ls_status status =
                ls_plan_check_export(&lower, rows[i].what, rows[i].index, rows[i].bytes, &slot);
            ck_assert_msg(status == rows[i].refused && slot == want, "row %zu", i);
        }
        const ls_op *op = NULL;
        char host[1];
        ls_status yes = forced ? LS_OK : LS_ERR_USAGE;
        ck_assert_int_eq(ls_plan_check_force(&lower, 0, NULL, 5, &op), yes);
        ck_assert(!forced || (op->kind == LS_OP_RELU && op->layer == relu));
        ck_assert_int_eq(ls_plan_check_force(&lower, 0, host, 64 * 17 * 17 / 8, &op), yes);
        ck_assert_int_eq(ls_plan_check_force(&lower, 0, host, 64 * 17 * 17 / 8 - 1, &op),
                         LS_ERR_USAGE);
        ck_assert_int_eq(ls_plan_check_force(&lower, 1, host, 4 * 64 * 9 * 9, &op), yes);
        ck_assert(!forced || (op->kind == LS_OP_POOL && op->layer == pool));
        ck_assert_int_eq(ls_plan_check_force(&lower, 1, host, 64 * 9 * 9 / 8, &op), LS_ERR_USAGE);
        ck_assert_int_eq(ls_plan_check_force(&lower, 99, NULL, 0, &op), LS_ERR_USAGE);
        ls_lower_free(&lower);
    }
    ls_model_free(&network);
}

TEST_MAIN("lower")
