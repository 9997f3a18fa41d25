/* The comparison on dumps that this test writes: steps of a subject whose rounding noise is not the
 * ideal's must pass at every level, and each planted error must fail, with its cause where one is
 * promised. */
#include <cjson/cJSON.h>

#include "compare_subject.h"
#include "suite/judge/judges.h"

static ls_compare_verdict judge(const char *level, plant planted, bool branches)
{
    subject *s = make_subject(level);
    const char *path[WORLD];
    plant_gradient(s, planted);
    write_dumps(s, planted, branches, path);
    ls_compare_facts facts = {.arch = "resnet8", .cache = cache};
    ls_compare_verdict verdict = compare(path, &facts, LS_OK);
    free_subject(s);
    return verdict;
}

/* What is measured of these four subjects; no change of the code that should keep them may move it.
 */
static const char *const measured[4][2] = {
    {"whole gradient rel=3.9e-08 limit=3.5e-06 (32 x ideal fp32); tensors at most 1.2 x, blocks "
     "0.8 x ideal; 0 of 147456 branches turned, all near-ties; reduction right; step right; "
     "statistics right",
     "0.354 1.09e-07, 0.848 2.22e-07, 1.23 1.99e-07, 0.647 4.05e-07, 0.839 2.44e-07, ties 0, "
     "logits 2.54, reduced 0.2, next 0.497, buffers 0"},
    {"whole gradient rel=8.9e-04 limit=1.8e-03 (2 x ideal fp16); tensors at most 1.7 x, blocks 1.5 "
     "x ideal; 23 of 147456 branches turned, all near-ties; step right; statistics right",
     "1.02 0.000876, 1.24 0.00171, 1.68 0.00189, 1.47 0.00284, 1.36 0.00177, ties 1.52, logits "
     "0.942, reduced 0, next 0.495, buffers 1.05"},
    {"whole gradient rel=8.1e-04 limit=1.6e-03 (2 x ideal fp16); tensors at most 1.2 x, blocks 1.5 "
     "x ideal; 21 of 147456 branches turned, all near-ties; step right; statistics right",
     "1.01 0.000802, 1.24 0.00155, 1.12 0.00166, 1.53 0.00244, 1.5 0.00158, ties 1.26, logits "
     "0.932, reduced 0, next 0.493, buffers 1.07"},
    {"whole gradient rel=8.2e-04 limit=1.6e-03 (2 x ideal fp16); tensors at most 1.9 x, blocks 1.6 "
     "x ideal; 23 of 147456 branches turned, all near-ties; step right; statistics right",
     "1.01 0.000806, 1.12 0.00157, 1.89 0.00101, 1.41 0.00258, 1.59 0.00143, ties 1, logits 0.925, "
     "reduced 0, next 0.995, buffers 1.11"},
};

LOOP_TEST(clean_subjects_pass, 4)
{
    ls_compare_verdict v = judge(levels[_i], CLEAN, true);
    char numbers[200] = "";
    for (int p = 0; p < LS_COMPARE_PARTS; p++) {
        ls_text_add(numbers, sizeof numbers, "%.3g %.3g, ", v.ratio[p], v.ideal_error[p]);
    }
    ls_text_add(numbers, sizeof numbers,
                "ties %.3g, logits %.3g, reduced %.3g, next %.3g, buffers %.3g", v.tie_ratio,
                v.logits_ratio, v.reduce_ratio, v.next_ratio, v.buffer_ratio);
    ck_assert_int_eq(v.code, LS_COMPARE_PASS);
    ck_assert_str_eq(v.evidence, measured[_i][0]);
    ck_assert_str_eq(numbers, measured[_i][1]);
    ck_assert_int_eq(v.elements, 2 * made[_i]->net.elements); /* gradient and step */
}

typedef struct plant_row {
    plant planted;
    const char *tensor, *evidence, *cause; /* "" where none is promised */
    const char *end[2];                    /* of the evidence at O0 and at O2; NULL: not judged */
} plant_row;

#define WHOLE                                                                                 \
    {                                                                                         \
        "limit=9.1e-07 (32 x ideal fp32); 46 more", "limit=3.1e-03 (8 x ideal fp16); 23 more" \
    }
#define MOVED(o0, o2, more)                                                           \
    {                                                                                 \
        "limit=" o0 " (32 x ideal fp32, and the update's rounding); " more " more",   \
            "limit=" o2 " (4 x ideal fp16, and the update's rounding); " more " more" \
    }
static const plant_row plants[] = {
    {DOUBLED, "fc.bias", "rank=0 fc.bias rel=1.0e+00", "every gradient is 2.000 x the expected one",
     WHOLE},
    {ZERO_BLOCK,
     "layer2.0.conv2.weight",
     "elements 640..703 rel=1.0e+00",
     "weight[640..703] alone is zero",
     {"limit=5.5e-06 (32 x ideal fp32); 2 more", "limit=1.0e-02 (8 x ideal fp16); 1 more"}},
    {RANK_MISSING, "fc.bias", "rank=0 fc.bias rel=2.9e-01", "1.000 x rank 0's", WHOLE},
    {TURNED_BRANCH,
     "",
     "rank=1 layer1.0.relu2 (branch/002) micro-step 0 sample 0 channel 0 at (8,8): "
     "branch turned, x64=0.857",
     "",
     {"limit=6.1e-06 (64 x RMS rounding of the layer); 139 more",
      "limit=1.2e-02 (16 x RMS rounding of the layer); 92 more"}},
    {EDGE_NOT_REDUCED,
     "layer3.0.conv1.weight",
     "elements 18424..18431",
     "1.000 x rank 1's",
     {"limit=6.6e-06 (32 x ideal fp32); 2 more", "limit=1.2e-02 (8 x ideal fp16); 1 more"}},
    {ONE_RANK_DIFFERS,
     "layer1.0.bn1.bias",
     "rank=1",
     "ranks apply different gradients",
     {"reduced gradients differ from rank 0's bits",
      "reduced gradients differ from rank 0's bits"}},
    {WRONG_STEP,
     "layer1.0.conv1.weight",
     "next/ is -0.011",
     "",
     {"2.16e+03 x limit (f32 arithmetic)", "2.21e+03 x limit (f32 arithmetic)"}},
    {WRONG_LOSS,
     "",
     "is not the cross entropy",
     "",
     {"limit=5.3e-06 (f32 arithmetic); 1 more", "limit=5.3e-06 (f32 arithmetic); 1 more"}},
    {WRONG_LOGITS,
     "",
     "logits rel=5.4e-03",
     "",
     {"limit=1.1e-06 (32 x ideal fp32)", "limit=9.6e-04 (4 x ideal fp16)"}},
    {ELEMENT_OFF,
     "layer2.0.conv2.weight",
     "element 77: reduced to",
     "",
     {"limit=5.4e-09 (one rounding per addition)", NULL}},
    {SKIPPED_BUT_MOVED,
     "conv1.weight",
     "a skipped step changed its value",
     "",
     {"to 0.12674956; 22 more", "to 0.126777008; 22 more"}},
    {MOMENTUM_OFF, "", "bn1.running_mean after the step is off by", "",
     MOVED("2.4e-08", "3.0e-05", "13")},
    {BIASED_VARIANCE, "", "bn1.running_var after the step is off by 1.04e-03", "",
     MOVED("2.5e-06", "1.3e-04", "6")},
    {OTHER_STATISTICS, "", "bn1.running_mean after the step is off by 3.30e-02", "",
     MOVED("2.4e-08", "3.0e-05", "13")},
    {COUNTER_OFF,
     "",
     "num_batches_tracked went from 7 to 7 in 1 forward",
     "",
     {"passes; 13 more", "passes; 13 more"}},
    {UNSCALED_TWICE, "fc.bias", "rank=0 fc.bias rel=9.9e-01", "unscaled twice", WHOLE},
};

LOOP_TEST(plants_are_caught, 2 * sizeof plants / sizeof *plants)
{
    const plant_row *row = &plants[_i / 2];
    const char *level = _i % 2 == 0 ? "O0" : "O2", *end = row->end[_i % 2];
    if (end == NULL) {
        return; /* half has no local/ here */
    }
    ls_compare_verdict v = judge(level, row->planted, true);
    ck_assert_msg(v.code == LS_COMPARE_FAIL, "%s: %s", level, v.evidence);
    ck_assert_msg(strstr(v.evidence, row->evidence) != NULL, "%s: %s", level, v.evidence);
    ck_assert_str_eq(v.evidence + strlen(v.evidence) - strlen(end), end);
    ck_assert_msg(strstr(v.cause, row->cause) != NULL, "%s: '%s' (%s)", level, v.cause, v.evidence);
    ck_assert_str_eq(v.tensor, row->tensor);
}

TEST(weak_evidence_is_not_a_pass)
{
    ls_compare_verdict v = judge("O2", EXACT, true);
    ck_assert_msg(v.code == LS_COMPARE_WEAK, "%s", v.evidence);
    ck_assert_ptr_nonnull(strstr(v.evidence, "half was not in use"));
    ck_assert_ptr_nonnull(strstr(v.evidence, " of 23 tensors"));
    v = judge("O2", SKIPPED, true);
    ck_assert_msg(v.code == LS_COMPARE_WEAK, "%s", v.evidence);
    ck_assert_ptr_nonnull(strstr(v.evidence, "no step taken"));
    ck_assert(v.next_judged && v.elements == made[2]->net.elements); /* none of them moved */
    v = judge("O2", SKIPPED_FINITE, true);
    ck_assert_msg(v.code == LS_COMPARE_WEAK, "%s", v.evidence);
    ck_assert_ptr_nonnull(strstr(v.evidence, "no step taken, though the gradient is finite"));
}

/* Without records the whole gradient only, on FP64's own branches; a doubled one is still seen. */
LOOP_TEST(coarse_without_records, 4)
{
    static const char *const right[] = {
        "rel=3.9e-08 limit=5.6e-07 (2 x the largest of 8 ideal fp32 runs); reduction right; step "
        "right",
        "rel=2.1e-02 limit=7.5e-02 (2 x the largest of 8 ideal fp16 runs); step right",
        "rel=3.2e-02 limit=8.9e-02 (2 x the largest of 8 ideal fp16 runs); step right",
        "rel=3.9e-02 limit=8.4e-02 (2 x the largest of 8 ideal fp16 runs); step right"};
    static const char *const doubled[] = {
        "limit=5.6e-07 (coarse: 2 x the largest of 8 ideal fp32 runs); 23 more",
        "limit=7.5e-02 (coarse: 2 x the largest of 8 ideal fp16 runs)",
        "limit=8.9e-02 (coarse: 2 x the largest of 8 ideal fp16 runs)",
        "limit=8.4e-02 (coarse: 2 x the largest of 8 ideal fp16 runs)"};
    LS_TEXT(text, 320, "coarse: whole gradient %s", right[_i]);
    ls_compare_verdict v = judge(levels[_i], CLEAN, false);
    ck_assert(v.coarse && v.code == LS_COMPARE_PASS && v.elements == 2 * made[_i]->net.elements);
    ck_assert_str_eq(v.evidence, text);
    v = judge(levels[_i], DOUBLED, false);
    ck_assert_int_eq(v.code, LS_COMPARE_FAIL);
    ls_text_put(text, sizeof text, "whole gradient rel=1.0e+00 %s", doubled[_i]);
    ck_assert_str_eq(v.evidence, text);
    ck_assert_ptr_nonnull(strstr(v.cause, "summed over ranks, not averaged"));
}

/* What a job's command says that its dumps do not. */
static const struct facts_row {
    const char *extra, *dialect;
    ls_compare_facts facts;
} facts_rows[] = {
    {"", "apex", {0}},
    {"", "torch", {.dialect_torch = true, .sends_buffers = true}},
    {"--broadcast-buffers=False", "torch", {.dialect_torch = true}},
    {"--broadcast-buffers=True", "apex", {.sends_buffers = true}},
    {"--predivide=2.5", "apex", {.predivide = 2.5}},
    {"--allreduce-fp32", "apex", {.reduce = "fp32"}},
    {"--compress=fp16", "apex", {.reduce = "fp16"}},
    {"--comm-hook=bf16_compress", "apex", {.reduce = "bf16"}},
    {"--comm-hook=powersgd", "apex", {0}},
    {"--join=initial", "apex", {.joins = true, .divisor = 3}},
    {"--join=actual", "apex", {.joins = true}},
    {"--no-sync=False", "apex", {.reduces_each = true}},
    {"--nesterov", "apex", {.nesterov = true}},
    {"--fuse", "apex", {.fused = true}},
};

ROWS_TEST(options_become_facts, facts_rows)
{
    const struct facts_row *row = &facts_rows[_i];
    for (int more = 0; more < 2; more++) {
        ls_spec spec = {.world = 3, .half = "bf16", .sync_bn = more == 1, .fuse = more == 1};
        snprintf(spec.extra, sizeof spec.extra, "%s", row->extra);
        snprintf(spec.dialect, sizeof spec.dialect, "%s", row->dialect);
        snprintf(spec.arch, sizeof spec.arch, "%s", more == 1 ? "resnet20" : "");
        ls_compare_facts got, want = row->facts;
        want.half = spec.half;
        want.sync_bn = more == 1;
        want.fused = want.fused || more == 1;
        want.arch = more == 1 ? spec.arch : NULL;
        ls_judge_gradients_facts(&spec, &got);
        ck_assert((got.reduce == NULL) == (want.reduce == NULL) &&
                  (want.reduce == NULL || strcmp(got.reduce, want.reduce) == 0));
        got.reduce = want.reduce;
        ck_assert_mem_eq(&got, &want, sizeof got);
    }
}

/* What the report and `lockstep bounds` read. */
LOOP_TEST(the_record_holds_the_verdict, 2)
{
    bool half = _i == 1;
    subject *s = make_subject(half ? "O2" : "O0");
    const char *path[WORLD];
    write_dumps(s, CLEAN, true, path);
    char json[96];
    snprintf(json, sizeof json, "%s/compare.json", s->folder);
    ls_compare_facts facts = {.arch = "resnet8", .cache = cache};
    ls_compare_verdict v;
    ck_assert_int_eq(ls_compare_step(&facts, WORLD, path, json, &v), LS_OK);
    char *text = ls_text_read(json);
    cJSON *root = cJSON_Parse(text);
    const struct {
        const char *group, *name;
        double value;
    } numbers[] = {{NULL, "schema", 1},
                   {NULL, "step", 1},
                   {"whole", "e", v.error},
                   {"whole", "r", v.ideal},
                   {"whole", "limit", v.limit},
                   {"ratios", "whole", v.ratio[LS_COMPARE_WHOLE]},
                   {"ratios", "tensor", v.ratio[LS_COMPARE_TENSOR]},
                   {"ratios", "small", v.ratio[LS_COMPARE_SMALL]},
                   {"ratios", "block", v.ratio[LS_COMPARE_BLOCK]},
                   {"ratios", "edge", v.ratio[LS_COMPARE_EDGE]},
                   {"ratios", "logits", v.logits_ratio},
                   {"ratios", "reduce", v.reduce_ratio},
                   {"ratios", "next", v.next_ratio},
                   {"ratios", "buffer", v.buffer_ratio},
                   {"prices", "whole", v.ideal_error[LS_COMPARE_WHOLE]},
                   {"prices", "edge", v.ideal_error[LS_COMPARE_EDGE]},
                   {NULL, "tie_ratio", v.tie_ratio},
                   {NULL, "branches", (double)v.forced},
                   {NULL, "branches_turned", (double)v.turned}};
    static const ls_tol printed = LS_TOL(1e-9, "relative: ten digits are printed");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const cJSON *in =
            numbers[i].group == NULL ? root : cJSON_GetObjectItem(root, numbers[i].group);
        const cJSON *found = cJSON_GetObjectItem(in, numbers[i].name);
        ck_assert_msg(cJSON_IsNumber(found) && fabs(found->valuedouble - numbers[i].value) <=
                                                   printed.value * numbers[i].value,
                      "%s %s", numbers[i].group, numbers[i].name);
    }
    const char *const words[][2] = {{"reference", "FP64 oracle on the subject's branches"},
                                    {"level", half ? "O2" : "O0"},
                                    {"half", half ? "fp16" : "fp32"},
                                    {"verdict", "PASS"},
                                    {"cause", ""}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const cJSON *found = cJSON_GetObjectItem(root, words[i][0]);
        ck_assert(cJSON_IsString(found));
        ck_assert_str_eq(found->valuestring, words[i][1]);
    }
    ck_assert_str_eq(cJSON_GetObjectItem(root, "evidence")->valuestring, v.evidence);
    ck_assert(cJSON_IsBool(cJSON_GetObjectItem(root, "reduce_judged")) &&
              cJSON_IsTrue(cJSON_GetObjectItem(root, "reduce_judged")) != half &&
              cJSON_IsTrue(cJSON_GetObjectItem(root, "next_judged")) &&
              cJSON_IsTrue(cJSON_GetObjectItem(root, "buffers_judged")));
    const cJSON *tensors = cJSON_GetObjectItem(root, "tensors"), *tensor = tensors->child;
    ck_assert_int_eq(cJSON_GetArraySize(tensors), s->net.param_count);
    ck_assert_str_eq(cJSON_GetObjectItem(tensor, "name")->valuestring, "fc.bias");
    ck_assert_double_eq(cJSON_GetObjectItem(tensor, "elements")->valuedouble, 10);
    cJSON_ArrayForEach(tensor, tensors)
    {
        double r = cJSON_GetObjectItem(tensor, "r")->valuedouble;
        bool small = cJSON_GetObjectItem(tensor, "elements")->valuedouble < 64;
        double factor = !half ? 32 : small ? 8 : 4;
        ck_assert_double_gt(r, 0);
        ck_assert_double_lt(cJSON_GetObjectItem(tensor, "e")->valuedouble, factor * r);
        /* printed with 10 digits */
        ck_assert_double_eq_tol(cJSON_GetObjectItem(tensor, "limit")->valuedouble, factor * r,
                                1e-9 * factor * r);
    }
    ck_assert_double_eq(v.limit, (half ? 2 : 32) * v.ideal);
    cJSON_Delete(root);
    free(text);
    free_subject(s);
}

/* The same verdict from kept results, and a damaged one is computed again. */
TEST(results_are_kept)
{
    subject *s = make_subject("O2");
    char own[96], line[400];
    snprintf(own, sizeof own, "%s/cache", s->folder);
    const char *path[WORLD];
    write_dumps(s, CLEAN, true, path);
    ls_compare_facts facts = {.arch = "resnet8", .cache = own};
    ls_compare_verdict v[3];
    for (int i = 0; i < 3; i++) {
        memset(&v[i], 0, sizeof v[i]);
        ck_assert_int_eq(ls_compare_step(&facts, WORLD, path, NULL, &v[i]), LS_OK);
        ck_assert_str_eq(v[i].evidence, v[0].evidence);
        snprintf(line, sizeof line,
                 "test $(ls %s | wc -l) = 2 && for f in %s/*; do printf X | dd of=$f bs=1 seek=999 "
                 "conv=notrunc status=none; done",
                 own, own);
        ck_assert(i != 1 || system(line) == 0);
    }
    snprintf(line, sizeof line, "rm -r %s", own);
    ck_assert_int_eq(system(line), 0);
    free_subject(s);
}

/* The factors of numerics.md section 4: an error of 0.97 of each passes, one of 1.03 fails. Each
 * element from `from` on is off by as much, which moves the part named more than others. */
static const struct bound_row {
    const char *level, *tensor; /* NULL: all */
    int from, count;            /* 0: to its end */
    ls_compare_part part;
    double factor;
} bound_rows[] = {
    {"O2", NULL, 0, 0, LS_COMPARE_WHOLE, 2},
    {"O2", "layer3.0.bn1.weight", 0, 0, LS_COMPARE_TENSOR, 4},
    {"O2", "layer1.0.bn1.bias", 0, 0, LS_COMPARE_SMALL, 8},
    {"O2", "layer3.0.conv2.weight", 640, 64, LS_COMPARE_BLOCK, 8},
    {"O2", "layer3.0.conv2.weight", 0, 8, LS_COMPARE_EDGE, 8},
    {"O0", "layer1.0.bn1.bias", 0, 0, LS_COMPARE_SMALL, 32},
    {"O0", "layer3.0.conv2.weight", 640, 64, LS_COMPARE_BLOCK, 32},
    {"O0", "layer3.0.conv2.weight", 0, 8, LS_COMPARE_EDGE, 32},
};

/* Judges the level's gradient with its own rounding times that, or that added. */
static ls_compare_verdict judge_moved(const struct bound_row *row, double by)
{
    subject *s = make_subject(row->level);
    const ls_nettab_param *param = row->tensor == NULL ? NULL : param_named(s, row->tensor);
    int64_t from = param == NULL ? 0 : param->offset + row->from;
    int64_t count = param == NULL ? s->net.elements : row->count > 0 ? row->count : param->count;
    for (int64_t i = from; i < from + count; i++) {
        double exact = ((double)s->local[0][i] + (double)s->local[1][i]) / 2;
        double rounding = (double)s->grad[i] - exact;
        s->grad[i] = (float)(exact + (param == NULL ? by * rounding : by));
    }
    const char *path[WORLD];
    s->has_local = false;
    write_dumps(s, CLEAN, true, path);
    ls_compare_facts facts = {.arch = "resnet8", .cache = cache};
    ls_compare_verdict v = compare(path, &facts, LS_OK);
    free_subject(s);
    return v;
}

ROWS_TEST(bounds_are_where_they_are_said_to_be, bound_rows)
{
    const struct bound_row *row = &bound_rows[_i];
    double by = 1e-4;
    for (int i = 0; i < 8; i++) { /* the ratio is nearly in proportion */
        by *= row->factor * 0.97 / judge_moved(row, by).ratio[row->part];
    }
    ls_compare_verdict below = judge_moved(row, by), above = judge_moved(row, by * 1.03 / 0.97);
    ck_assert_msg(below.code == LS_COMPARE_PASS, "row %d: %s", _i, below.evidence);
    ck_assert_msg(above.code == LS_COMPARE_FAIL && strstr(above.evidence, "limit=") != NULL,
                  "row %d: %s", _i, above.evidence);
}

TEST_MAIN("compare", .timeout_s = 60, .begin = run_levels, .end = free_levels)
