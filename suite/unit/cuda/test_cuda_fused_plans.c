/* Plans that use fused products on the emulated cuDNN: forwards with sums, gated gradients, applied
 * norms: against the interpreter at 20 seeds, in evaluation, with a second stream, exported; and
 * what the audit says near ties of the ReLU. */
#include "reference/oracle/audit/audit.h"
#include "suite/unit/run_suite.h"
#include "cuda_plan.h"
#include "cuda_products.h"

enum { SEEDS = 20 };

static ls_kernel_subject_options fused_level(int opt_level, uint64_t seed)
{
    ls_kernel_subject_options o = cuda_level(opt_level, LS_F16);
    o.fuse = true;
    o.seed = seed;
    return o;
}

static int count_lines(const ls_kernel_subject *s, const char *what)
{
    ls_plan_info info;
    int count = 0;
    s->api->plan_info(s->plan, &info);
    for (const char *at = info.fusions; (at = strstr(at, what)) != NULL; at++) {
        count++;
    }
    return count;
}

/* Norms that the plan names as applied; its description has as many forwards that apply one. */
static int count_applied(const ls_kernel_subject *s)
{
    ls_plan_info info;
    int names = 0;
    s->api->plan_info(s->plan, &info);
    for (const char *at = info.applied; at != NULL; at = strchr(at + 1, ',')) {
        names++;
    }
    ck_assert_int_eq(names, count_lines(s, "applying forward"));
    return names;
}

/* Three blocks of one stage: two of their ends have no projection and convolutions of stride 1
 * behind them. */
static void build_stage(ls_kernel_net *n)
{
    ls_kernel_net_start(n);
    int x = ls_kernel_net_relu(n, ls_kernel_net_norm(n, ls_kernel_net_conv(n, 0, 16, 3, 1, 1)));
    x = ls_kernel_net_pool(n, x, 3, 2, 1);
    for (int i = 0; i < 3; i++) {
        x = ls_kernel_net_block(n, x, 16, 1, 0);
    }
    ls_kernel_net_finish(n, x, 10);
}

/* Networks, most of cpu_plan.h; how many of their convolutions sum for the norm behind them: all;
 * how many norms between two convolutions are gated, and applied; and of ends of blocks behind
 * which a convolution of stride 1 completes the gradient: those with one norm, and with two. */
static const struct judged {
    build *make;
    const int *size;
    int sums, gated, joined, twice;
} judged[] = {{build_basic, sizes[0], 6, 2, 0, 0},
              {build_bottleneck, sizes[1], 12, 6, 0, 2},
              {build_padded, sizes[2], 7, 3, 0, 0},
              {build_tiny, sizes[4], 11, 4, 0, 2},
              {build_stage, sizes[0], 7, 3, 2, 0}};
enum { JUDGED = sizeof judged / sizeof judged[0] };

static void judge_step(const struct judged *j, ls_kernel_subject_options o)
{
    ls_kernel_net n;
    j->make(&n);
    ls_kernel_subject s;
    cuda_make(&s, &n, j->size, o);
    ck_assert_int_eq(count_lines(&s, "forward with sums"), j->sums);
    ck_assert_int_eq(count_lines(&s, "gated backward data"), j->gated);
    ck_assert_int_eq(count_lines(&s, "joined backward data"), j->joined + j->twice);
    ck_assert_int_eq(count_lines(&s, "of two norms"), j->twice);
    ck_assert_int_eq(count_applied(&s), j->gated);
    plan_step(&s);
    judge_plan(&s, cuda_scale(&o));
    ls_kernel_subject_free(&s);
}

LOOP_TEST(gradients_at_many_seeds, (JUDGED * SEEDS))
{
    judge_step(&judged[_i % JUDGED], fused_level(1 + _i / JUDGED % 3, (uint64_t)(_i / JUDGED)));
}

/* A ReLU that decides otherwise near ties does not show. */
LOOP_TEST(ties_do_not_show, JUDGED)
{
    setenv("LS_EMULATED_CONV_WRONG", "gate:ties", 1);
    judge_step(&judged[_i], fused_level(2, 0));
    unsetenv("LS_EMULATED_CONV_WRONG");
}

/* Sums of the step before would be those of other weights, and of other gradients. */
LOOP_TEST(sums_are_of_this_step, 2)
{
    ls_kernel_net n;
    networks[_i](&n);
    ls_kernel_subject s;
    ls_kernel_subject_options o = fused_level(2, 1);
    cuda_make(&s, &n, sizes[_i], o);
    plan_step(&s);
    for (int64_t i = 0; i < (int64_t)sizes[_i][0] * 3 * sizes[_i][1] * sizes[_i][2]; i++) {
        s.input[i] = 3 - 2 * s.input[i];
    }
    plan_step(&s);
    judge_plan(&s, cuda_scale(&o));
    ls_kernel_subject_free(&s);
}

/* Plans whose branches can be forced fuse as well, and give the same bits. */
TEST(forced_branches_go_with_it)
{
    ls_kernel_net n;
    networks[0](&n);
    ls_kernel_subject own, forced;
    ls_kernel_subject_options o = fused_level(2, 2);
    setenv("LS_EMULATED_UNADDED", "all", 1);
    cuda_make(&own, &n, sizes[0], o);
    o.forced_branches = true;
    cuda_make(&forced, &n, sizes[0], o);
    unsetenv("LS_EMULATED_UNADDED");
    ck_assert_int_eq(count_lines(&forced, "forward with sums"),
                     count_lines(&own, "forward with sums"));
    plan_step(&own);
    force_like(&own, &forced, 0);
    plan_step(&forced);
    judge_plan(&forced, cuda_scale(&o));
    ls_kernel_subject_free(&own);
    ls_kernel_subject_free(&forced);
}

/* Not unasked, and not in another type; where decisions of ReLUs are given, the graph would decide
 * by itself, so only sums are fused. A norm is not applied where one of its three engines is
 * missing or wrong. */
TEST(only_where_it_is_asked_for_and_right)
{
    static const char *const wrong[] = {
        "", "", "", "", "gate:mask", "apply-forward:twice", "apply-weights:last", "none"};
    ls_kernel_net n;
    networks[1](&n);
    for (int i = 0; i < 8; i++) {
        ls_kernel_subject s;
        ls_kernel_subject_options o = cuda_level(i == 1 ? 0 : 2, i == 2 ? LS_BF16 : LS_F16);
        o.fuse = i > 0;
        o.forced_branches = i == 3;
        setenv("LS_EMULATED_CONV_WRONG", wrong[i], 1);
        cuda_make(&s, &n, sizes[1], o);
        unsetenv("LS_EMULATED_CONV_WRONG");
        ck_assert_int_eq(count_lines(&s, "forward with sums") > 0, i > 2);
        if (i < 4) {
            ck_assert_int_eq(count_lines(&s, "gated"), 0);
            ck_assert_int_eq(count_lines(&s, "joined"), 0);
        }
        ck_assert_int_eq(count_applied(&s), i == 7 ? 6 : 0);
        ls_kernel_subject_free(&s);
    }
}

static float *logits_of(const ls_kernel_subject *s, int64_t *count)
{
    *count = (int64_t)s->options.batch * s->n->network.num_classes;
    float *logits = malloc((size_t)*count * sizeof *logits);
    ck_assert_int_eq(s->api->plan_export(s->plan, s->stream, LS_EXPORT_LOGITS, 0, logits,
                                         *count * (int64_t)sizeof *logits),
                     LS_OK);
    return logits;
}

/* Evaluation stores the norms' outputs, as without fusing: the same bits, before a step has changed
 * the running statistics. A step after it is as one without. */
TEST(evaluation_applies_nothing)
{
    ls_kernel_net n;
    networks[1](&n);
    ls_kernel_subject s[2], once;
    int64_t count = 0;
    float *logits[2];
    for (int i = 0; i < 2; i++) {
        ls_kernel_subject_options o = fused_level(2, 3);
        o.fuse = i == 0;
        cuda_make(&s[i], &n, sizes[1], o);
        s[i].api->plan_evaluate(s[i].plan, true);
        ck_assert_int_eq(s[i].api->plan_forward(s[i].plan, s[i].stream, s[i].input, s[i].target),
                         LS_OK);
        logits[i] = logits_of(&s[i], &count);
        s[i].api->plan_evaluate(s[i].plan, false);
    }
    ck_assert_int_gt(count_applied(&s[0]), 0);
    ck_assert_mem_eq(logits[0], logits[1], (size_t)count * sizeof *logits[0]);
    cuda_make(&once, &n, sizes[1], fused_level(2, 3));
    plan_step(&once);
    plan_step(&s[0]);
    ck_assert(plan_same(&once, &s[0]));
    free(logits[0]);
    free(logits[1]);
    ls_kernel_subject_free(&once);
    ls_kernel_subject_free(&s[1]);
    ls_kernel_subject_free(&s[0]);
}

/* Kernels that start early wait for what a product has summed. */
LOOP_TEST(early_starts_give_the_same_bits, JUDGED)
{
    ls_kernel_net n;
    judged[_i].make(&n);
    ls_kernel_subject s[2];
    for (int i = 0; i < 2; i++) {
        setenv("LS_PDL", i == 0 ? "0" : "1", 1);
        cuda_make(&s[i], &n, judged[_i].size, fused_level(2, 5));
        plan_step(&s[i]);
        plan_step(&s[i]);
    }
    unsetenv("LS_PDL");
    ck_assert_int_eq(count_applied(&s[1]), judged[_i].gated);
    ck_assert(plan_same(&s[0], &s[1]));
    ls_kernel_subject_free(&s[1]);
    ls_kernel_subject_free(&s[0]);
}

/* The output of an applied norm and ReLU is computed when it is exported: above 0 where its bits
 * say so, 0 elsewhere, the same again after backward. */
TEST(outputs_are_exported)
{
    ls_kernel_net n;
    networks[1](&n);
    ls_kernel_subject s;
    cuda_make(&s, &n, sizes[1], fused_level(2, 7));
    ls_kernel_interpreter extents;
    ls_kernel_interpreter_make(&extents, &n, s.options.batch, s.options.height, s.options.width,
                               LS_KERNEL_ROUND_NONE);
    ck_assert_int_eq(s.api->plan_forward(s.plan, s.stream, s.input, s.target), LS_OK);
    int judged_layers = 0;
    float *first[64] = {NULL};
    for (int turn = 0; turn < 2; turn++) {
        for (int l = 0; l < n.network.layer_count; l++) {
            const ls_layer *layer = &n.network.layer[l];
            int64_t count = extents.size[l].count;
            if (layer->kind != LS_LAYER_RELU) {
                continue;
            }
            float *value = malloc((size_t)count * sizeof *value);
            uint8_t *bits = malloc((size_t)(count + 7) / 8);
            ck_assert_int_eq(s.api->plan_export(s.plan, s.stream, LS_EXPORT_ACTIVATION, l, value,
                                                count * (int64_t)sizeof *value),
                             LS_OK);
            ck_assert_int_eq(s.api->plan_export(s.plan, s.stream, LS_EXPORT_RELU_BITS,
                                                layer->branch, bits, (count + 7) / 8),
                             LS_OK);
            int64_t open = 0;
            for (int64_t i = 0; i < count; i++) {
                ck_assert_int_eq(bits[i / 8] >> i % 8 & 1, value[i] > 0);
                ck_assert(value[i] >= 0);
                open += value[i] > 0;
            }
            ck_assert(open > count / 8 && open < count);
            if (turn == 0) {
                first[layer->branch] = value;
            } else {
                ck_assert_mem_eq(value, first[layer->branch], (size_t)count * sizeof *value);
                free(value);
                free(first[layer->branch]);
            }
            free(bits);
            judged_layers++;
        }
        if (turn == 0) {
            ck_assert_int_eq(s.api->plan_backward(s.plan, s.stream, 1, NULL, NULL), LS_OK);
        }
    }
    ck_assert_int_gt(judged_layers, 2 * 6);
    ls_kernel_interpreter_free(&extents);
    ls_kernel_subject_free(&s);
}

/* ---- the audit near ties --------------------------------------------------------------------- */

enum { WIDE = 8 }; /* channels, all alike */

/* z = x * weight + bias with x = 1: 16 u from 0 it is further than f32 can lose, 4 u it is not.
 * `got`: of the gradient, 3. */
static const struct tie {
    const char *what;
    double x, weight, bias, got;
    bool right;
    int join;        /* 1: the residual is added, 2: another norm's output of it */
    double residual; /* of weight 1 and bias 0 */
} tie_rows[] = {
    {"residual opens", 1, 1, -2, 3, true, 1, 1.5},
    {"residual opens, forgotten", 1, 1, -2, 0, false, 1, 1.5},
    {"residual closes", 1, 1, 0, 3, false, 1, -1.5},
    {"residual, tie", 1, 1, 0, 0, true, 1, -1},
    {"residual, tie, open", 1, 1, 4 * 0x1p-24, 3, true, 1, -1},
    {"residual, beyond a tie", 1, 1, 32 * 0x1p-24, 0, false, 1, -1},
    {"second norm opens", 1, 1, -2, 3, true, 2, 1.5},
    {"second norm opens, forgotten", 1, 1, -2, 0, false, 2, 1.5},
    {"second norm, tie", 1, 1, 0, 3, true, 2, -1},
    {"second norm, beyond a tie", 1, 1, 64 * 0x1p-24, 0, false, 2, -1},
    {"open", 1, 1, -1 + 16 * 0x1p-24, 3, true},
    {"open, forgotten", 1, 1, -1 + 16 * 0x1p-24, 0, false},
    {"closed", 1, 1, -1 - 16 * 0x1p-24, 0, true},
    {"closed, forgotten", 1, 1, -1 - 16 * 0x1p-24, 3, false},
    {"tie above 0", 1, 1, -1 + 4 * 0x1p-24, 3, true},
    {"tie above 0, closed", 1, 1, -1 + 4 * 0x1p-24, 0, true},
    {"tie below 0", 1, 1, -1 - 4 * 0x1p-24, 0, true},
    {"tie below 0, open", 1, 1, -1 - 4 * 0x1p-24, 3, true},
    {"tie, between both", 1, 1, -1 + 4 * 0x1p-24, 1.5, false},
    {"tie, wrong", 1, 1, -1 + 4 * 0x1p-24, 3.25, false},
    {"a channel that is off", 1, 0, 0, 0, true}, /* exactly 0: no rounding opens it */
    {"a channel that is off, open", 1, 0, 0, 3, false},
    {"no number", NAN, 1, 0, 3, true},
};

static ls_audit_tensor channel_values(bench *b, double value)
{
    double list[WIDE];
    for (int c = 0; c < WIDE; c++) {
        list[c] = value;
    }
    return (ls_audit_tensor){tensor(b, LS_F32, list, WIDE), WIDE, LS_AUDIT_F32};
}

static void *halves(bench *b, double value)
{
    double list[WIDE];
    for (int c = 0; c < WIDE; c++) {
        list[c] = value;
    }
    return tensor(b, LS_F16, list, WIDE);
}

ROWS_TEST(near_ties_are_judged_either_way, tie_rows)
{
    const struct tie *row = &tie_rows[_i];
    bench b = bench_open(false, false, false);
    double one[WIDE * WIDE] = {0};
    for (int c = 0; c < WIDE; c++) {
        one[c * WIDE + c] = 1;
    }
    ls_audit_entry_fn *entry = NULL;
    ck_assert_int_eq(ls_load_symbol("oracle_cuda", LS_AUDIT_ENTRY, &entry), LS_OK);
    const ls_audit_api *judge = entry();
    ls_audit_op op = {.kind = LS_AUDIT_CONV_DATA,
                      .type = LS_AUDIT_F16,
                      .images = 1,
                      .in_channels = WIDE,
                      .plain_channels = WIDE,
                      .in_height = 1,
                      .in_width = 1,
                      .out_channels = WIDE,
                      .out_height = 1,
                      .out_width = 1,
                      .kernel = 1,
                      .stride = 1,
                      .in_block = WIDE,
                      .out_block = WIDE,
                      .w = tensor(&b, LS_F16, one, WIDE * WIDE),
                      .dy = halves(&b, 3),
                      .dx = halves(&b, row->got),
                      .normed = halves(&b, row->x),
                      .group = 1};
    op.norm[0] = (ls_audit_norm){.weight = channel_values(&b, row->weight),
                                 .bias = channel_values(&b, row->bias),
                                 .mean = channel_values(&b, 0),
                                 .inv_std = channel_values(&b, 1)};
    op.norm[1] = (ls_audit_norm){.weight = channel_values(&b, 1),
                                 .bias = channel_values(&b, 0),
                                 .mean = channel_values(&b, 0),
                                 .inv_std = channel_values(&b, 1)};
    op.residual = row->join == 0 ? NULL : halves(&b, row->residual);
    op.dual = row->join == 2;
    void *room = NULL, *verdict = NULL;
    ls_audit_verdict found;
    ck_assert_int_eq(b.api->memory_alloc(b.backend, judge->room_bytes(WIDE, 1), "room", &room),
                     LS_OK);
    ck_assert_int_eq(b.api->memory_alloc(b.backend, sizeof found, "verdict", &verdict), LS_OK);
    void *stream = b.api->stream_native(b.stream);
    ck_assert_int_eq(judge->before(stream, &op, (ls_audit_draw){1, 1}, room), LS_OK);
    ck_assert_int_eq(judge->after(stream, &op, room, verdict), LS_OK);
    ck_assert_int_eq(b.api->copy_out(b.backend, b.stream, &found, verdict, sizeof found), LS_OK);
    ck_assert_int_eq(b.api->stream_wait(b.stream), LS_OK);
    ck_assert_int_eq(found.elements, WIDE);
    ck_assert_msg(found.bad == (row->right ? 0 : WIDE), "%s: %d elements are wrong", row->what,
                  (int)found.bad);
    BENCH_FREE(&b, op.w, (void *)op.dy, op.dx, (void *)op.normed, op.norm[0].weight.data,
               op.norm[0].bias.data, op.norm[0].mean.data, op.norm[0].inv_std.data,
               op.norm[1].weight.data, op.norm[1].bias.data, op.norm[1].mean.data,
               op.norm[1].inv_std.data, (void *)op.residual, room, verdict);
    bench_close(&b);
}

int main(void)
{
    use_emulation();
    return RUN_TESTS("cuda fused plans", .timeout_s = 120);
}
