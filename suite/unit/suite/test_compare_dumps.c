/* Dumps that leave something out, or hold what they should not: what the comparison makes of them.
 */
#include <cjson/cJSON.h>

#include "compare_subject.h"

/* A change of a dump's header; the data stay. */
typedef struct edit {
    enum { NOTHING, DROP, DROP_BELOW, COPY, SET, BYTES } what;
    const char *name;   /* of an entry; of DROP_BELOW, what entries' names begin with */
    const char *member; /* of SET; of COPY, the copy's name; of BYTES, the entry to count from */
    const char *json;   /* NULL: without the member */
    int from, to;       /* BYTES: of the entry, counted from the first byte of `member` */
} edit;

#define MET "__metadata__"
#define META(name, value)               \
    {                                   \
        SET, MET, name, "\"" value "\"" \
    }

static void apply(cJSON *header, const edit *e)
{
    cJSON *entry = cJSON_GetObjectItem(header, e->name);
    ck_assert(entry != NULL || e->what == NOTHING || e->what == DROP_BELOW);
    if (e->what == DROP) {
        cJSON_DeleteItemFromObjectCaseSensitive(header, e->name);
    } else if (e->what == COPY) {
        cJSON_AddItemToObject(header, e->member, cJSON_Duplicate(entry, true));
    } else if (e->what == SET && e->member == NULL) {
        cJSON_ReplaceItemInObject(header, e->name, cJSON_Parse(e->json));
    } else if (e->what == SET) {
        cJSON_DeleteItemFromObject(entry, e->member);
        if (e->json != NULL) {
            cJSON_AddItemToObject(entry, e->member, cJSON_Parse(e->json));
        }
    } else if (e->what == BYTES) {
        const cJSON *other = cJSON_GetObjectItem(header, e->member);
        double first =
            cJSON_GetArrayItem(cJSON_GetObjectItem(other, "data_offsets"), 0)->valuedouble;
        const double ends[] = {first + e->from, first + e->to};
        cJSON_ReplaceItemInObject(entry, "data_offsets", cJSON_CreateDoubleArray(ends, 2));
    }
    for (cJSON *item = header->child, *next; item != NULL && e->what == DROP_BELOW; item = next) {
        next = item->next;
        if (strncmp(item->string, e->name, strlen(e->name)) == 0) {
            cJSON_Delete(cJSON_DetachItemViaPointer(header, item));
        }
    }
}

static void rewrite(const char *path, const edit *edits, int count)
{
    static char data[4 << 20];
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    size_t bytes = fread(data, 1, sizeof data, file);
    fclose(file);
    uint64_t length;
    memcpy(&length, data, 8);
    cJSON *header = cJSON_ParseWithLength(data + 8, length);
    ck_assert(bytes < sizeof data && header != NULL);
    for (int i = 0; i < count; i++) {
        apply(header, &edits[i]);
    }
    char *text = cJSON_PrintUnformatted(header), pad[8] = "       ";
    uint64_t padded = (strlen(text) + 7) / 8 * 8;
    file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    fwrite(&padded, 1, 8, file);
    fwrite(text, 1, strlen(text), file);
    fwrite(pad, 1, padded - strlen(text), file);
    fwrite(data + 8 + length, 1, bytes - 8 - length, file);
    ck_assert_int_eq(fclose(file), 0);
    cJSON_free(text);
    cJSON_Delete(header);
}

#define FAILS(rank, planted, evidence, ...)                            \
    {                                                                  \
        {__VA_ARGS__}, rank, planted, LS_OK, LS_COMPARE_FAIL, evidence \
    }
#define WEAK(evidence, ...)                                            \
    {                                                                  \
        {__VA_ARGS__}, 0, WRONG_STEP, LS_OK, LS_COMPARE_WEAK, evidence \
    }
#define PASSES(evidence, ...)                                     \
    {                                                             \
        {__VA_ARGS__}, 0, CLEAN, LS_OK, LS_COMPARE_PASS, evidence \
    }
#define UNREAD(rank, planted, ...)                        \
    {                                                     \
        {__VA_ARGS__}, rank, planted, LS_ERR_USAGE, 0, "" \
    }

static const struct edited {
    edit edit[3];
    int rank;
    plant planted;
    ls_status status;
    ls_compare_code code;
    const char *evidence;
    bool any_step; /* the comparison is not told that it is step 1 */
} edited[] = {
    /* what is not judged does not pass, whatever it hides */
    FAILS(0, WRONG_STEP, "rank=0: next/zzz is no tensor of resnet8; 2 more",
          {COPY, "next/fc.bias", "next/zzz"}),
    FAILS(0, CLEAN, "rank=0: next/zzz is no tensor of resnet8; 1 more",
          {COPY, "next/fc.bias", "next/zzz"}),
    FAILS(0, CLEAN, "rank=0: next/zzz is no tensor of resnet8; 2 more",
          {COPY, "next/fc.bias", "next/zzz"}, {COPY, "param/fc.bias", "param/zzz"},
          {COPY, "grad/fc.bias", "grad/zzz"}),
    FAILS(1, CLEAN, "rank=1: next/zzz is no tensor of resnet8", {COPY, "next/fc.bias", "next/zzz"}),
    FAILS(
        0, WRONG_STEP,
        "rank=1 layer1.0.conv1.weight: parameters after the step differ from rank 0's bits; 1 more",
        {DROP, "next/layer1.0.conv1.weight"}),
    FAILS(1, CLEAN,
          "rank=1 layer1.0.conv1.weight: parameters after the step differ from rank 0's bits",
          {DROP, "next/layer1.0.conv1.weight"}),
    FAILS(0, WRONG_STEP, "rank=1 conv1.weight: parameters after the step differ from rank 0's bits",
          {DROP_BELOW, "next/"}),
    FAILS(0, WRONG_STEP,
          "rank=1 fc.bias: parameters after the step differ from rank 0's bits; 2 more",
          {SET, "next/fc.bias", "dtype", "\"U8\""}, {SET, "next/fc.bias", "shape", "[40]"}),
    FAILS(0, CLEAN, "rank=1 fc.bias: parameters after the step differ from rank 0's bits; 1 more",
          {SET, "next/fc.bias", "dtype", "\"I32\""}),
    FAILS(0, WRONG_STEP,
          "conv1.weight: momentum_buffer in state/ or next_state/ is missing or not as many "
          "floats; 21 more",
          {COPY, "grad/fc.bias", "state/fc.bias/momentum_buffer"}),
    WEAK("the optimizer's step was not judged: the metadata have no rate, or no optimizer or "
         "counts that are known",
         {SET, MET, "lr"}),
    WEAK("the optimizer's step was not judged: the metadata have no rate, or no optimizer or "
         "counts that are known",
         META("optimizer", "lion")),
    WEAK("the optimizer's step was not judged: the metadata have no rate, or no optimizer or "
         "counts that are known",
         META("optimizer", "adam"), META("betas", "0.9")),
    /* and there is no state/ */
    {{META("step", "2")},
     0,
     WRONG_STEP,
     LS_OK,
     LS_COMPARE_WEAK,
     "the optimizer's step was not judged: the moments before it (state/) are missing",
     .any_step = true},
    FAILS(0, CLEAN,
          "conv1.weight element 0: next/ is 0.12674956, SGD gives nan from 0.128612921, nan x "
          "limit (f32 arithmetic); 22 more",
          META("lr", "0.05 or so")),
    /* then every value that follows is NaN, and NaN must not be what nothing is compared with */
    FAILS(0, WRONG_STEP,
          "conv1.weight element 0: next/ is 0.12674956, SGD gives nan from 0.128612921, nan x "
          "limit (f32 arithmetic); 22 more",
          META("lr", "nan")),
    FAILS(1, CLEAN, "rank=1 next_state/fc.bias/momentum_buffer differs from rank 0's bits",
          {COPY, "grad/fc.bias", "next_state/fc.bias/momentum_buffer"}),
    FAILS(1, CLEAN, "rank=1 local/fc.bias is missing or not of 10 floats", {DROP, "local/fc.bias"}),
    FAILS(1, CLEAN,
          "rank=1 bn1.running_var in buffer/ or last_buffer/ is missing or not of 16 floats",
          {DROP, "buffer/bn1.running_var"}),
    FAILS(0, CLEAN, "rank=0: buffer/bn9.running_var is no tensor of resnet8",
          {COPY, "buffer/bn1.running_var", "buffer/bn9.running_var"}),
    FAILS(0, CLEAN, "rank=0 bn1.num_batches_tracked went from 0 to 0 in 1 forward passes",
          {DROP, "buffer/bn1.num_batches_tracked"}),
    FAILS(1, CLEAN, "rank=1: branch/007 is no tensor of resnet8",
          {COPY, "branch/000", "branch/007"}),
    /* what cannot be read is no dump */
    UNREAD(1, TURNED_BRANCH, {DROP, "branch/000"}),
    UNREAD(0, CLEAN, {SET, "input", "dtype", "\"U8\""},
           {BYTES, "input", "input", .to = BATCH * 3 * SIZE * SIZE}),
    UNREAD(1, CLEAN, {BYTES, "target", "input", .to = BATCH * 8}), /* pixels */
    UNREAD(0, CLEAN, {SET, "grad/fc.bias", "shape", "[0.5]"}),
    /* the product does not fit, and is multiplied by 0 */
    UNREAD(0, CLEAN, {SET, "grad/fc.bias", "shape", "[0,1e18,1e18,1e300]"}),
    UNREAD(0, CLEAN, {SET, "grad/fc.bias", "data_offsets", "[1e300,1e300]"}),
    UNREAD(0, CLEAN, {BYTES, "grad/fc.bias", "grad/fc.bias", NULL, -1, CLASSES * 4 - 1}),
    UNREAD(0, CLEAN, {COPY, "grad/fc.bias", "next/fc.bias"}),
    UNREAD(0, CLEAN, {SET, MET, "lr", "0.05"}),
    UNREAD(0, CLEAN, {SET, MET, NULL, "[1]"}),
    UNREAD(1, CLEAN, META("world_size", "1e300")),
    UNREAD(0, CLEAN, META("sync_bn", "true"), META("sync_bn_group", "4294967297")),
    UNREAD(1, CLEAN, META("half", "fp8")),
    UNREAD(0, CLEAN, META("skipped", "maybe")),
    UNREAD(0, CLEAN, META("momentum", "nan")),
    UNREAD(0, CLEAN, META("arch", "resnet20")),
    /* what the step is judged as */
    UNREAD(0, CLEAN, META("opt_level", "P0")),
    UNREAD(0, CLEAN, META("opt_level", "O4")),
    UNREAD(0, CLEAN, META("opt_level", "O00")),
    UNREAD(0, CLEAN, {SET, MET, "opt_level"}),
    PASSES("reduction 0.2 of its limit", META("half", "bf16")),
    PASSES("reduction 0.2 of its limit", META("reduced_type", "fp32")),
    PASSES("reduction 3.05e-05 of its limit", META("reduced_type", "fp16")),
    PASSES("reduction 3.79e-06 of its limit", META("reduced_type", "bf16")),
    UNREAD(0, CLEAN, META("reduced_type", "fp64")),
    FAILS(0, CLEAN, "rank=0 fc.bias rel=5.0e-01 limit=9.1e-07 (32 x ideal fp32); 46 more",
          META("average", "none")),
    PASSES("reduction 0.143 of its limit", META("average", "pre")),
    PASSES("reduction 0.2 of its limit", META("average", "post")),
    UNREAD(0, CLEAN, META("average", "late")),
    PASSES("reduction 0.143 of its limit", META("dialect", "torch")),
    UNREAD(0, CLEAN, META("dialect", "horovod")),
    PASSES("reduction 0.143 of its limit", META("predivide", "2")),
    UNREAD(0, CLEAN, META("predivide", "0")),
    UNREAD(0, CLEAN, META("loss_scale", "0")),
    UNREAD(0, CLEAN, META("loss_scale", "nan")),
    FAILS(0, CLEAN,
          "rank=0 loss 5.11711597 is not the cross entropy 5.00259333 of its logits, limit=1.2e-05 "
          "(f32 arithmetic); 25 more",
          META("label_smoothing", "0.5")),
    FAILS(0, CLEAN,
          "rank=0 loss 5.11711597 is not the cross entropy 4.88807047 of its logits, limit=1.9e-05 "
          "(f32 arithmetic); 25 more",
          META("label_smoothing", "1")),
    UNREAD(0, CLEAN, META("label_smoothing", "1.1")),
    UNREAD(0, CLEAN, META("label_smoothing", "-0.1")),
    FAILS(0, CLEAN,
          "rank=0 relu (branch/000) micro-step 0 sample 0 channel 2 at (0,12): branch turned, "
          "x64=-0.0299 limit=2.9e-06 (64 x RMS rounding of the layer); 2241 more",
          META("sync_bn", "true")),
    PASSES("reduction 0.2 of its limit", META("accumulate", "1")),
    UNREAD(0, CLEAN, META("accumulate", "2")),
    UNREAD(0, CLEAN, META("step", "2")), /* given as step 1 */
    UNREAD(0, CLEAN, META("optimizer_steps", "x")),
    WEAK("the optimizer's step was not judged: the metadata have no rate, or no optimizer or "
         "counts that are known",
         META("optimizer_steps", "-1")),
    FAILS(0, CLEAN,
          "conv1.weight element 0: next/ is 0.12674956, SGD gives 0.125072525 from 0.128612921, "
          "9.87e+04 x limit (f32 arithmetic); 22 more",
          META("nesterov", "true")),
    FAILS(0, CLEAN,
          "conv1.weight element 0: next/ is 0.12674956, SGD gives 0.126107133 from 0.128612921, "
          "3.99e+04 x limit (f32 arithmetic); 22 more",
          META("weight_decay", "0.1")),
    FAILS(0, CLEAN,
          "conv1.weight element 0: next/ is 0.12674956, SGD gives 0.128609483 from 0.128612921, "
          "1.18e+05 x limit (f32 arithmetic); 22 more",
          META("clip_grad_norm", "0.01")),
    FAILS(0, CLEAN,
          "conv1.weight element 0: next/ is 0.12674956, SGD gives 0.128562278 from 0.128612921, "
          "1.18e+05 x limit (f32 arithmetic); 22 more",
          META("clip_grad_value", "0.001")),
    FAILS(0, CLEAN,
          "fc.bias element 0: next/ is -0.61745441, SGD gives -0.599029098 from -0.635879755, "
          "2.18e+05 x limit (f32 arithmetic)",
          META("lr/fc.bias", "0.1")),
    FAILS(0, CLEAN,
          "fc.weight element 0: next/ is 0.177002907, SGD gives 0.176232315 from 0.154273927, "
          "2.65e+04 x limit (f32 arithmetic)",
          META("weight_decay/fc.weight", "0.1")),
};

ROWS_TEST(edited_dumps, edited)
{
    const struct edited *row = &edited[_i];
    subject *s = make_subject("O0");
    const char *path[WORLD];
    plant_gradient(s, row->planted);
    write_dumps(s, row->planted, true, path);
    rewrite(path[row->rank], row->edit, 3);
    ls_compare_facts facts = {.arch = "resnet8", .cache = cache, .step = !row->any_step};
    ls_compare_verdict v = compare(path, &facts, row->status);
    char said[400] = "";
    if (row->status == LS_OK) {
        ls_text_put(said, sizeof said, "%s", v.evidence);
    }
    if (v.code == LS_COMPARE_PASS && row->status == LS_OK) { /* what was reduced in which type */
        ls_text_put(said, sizeof said, "reduction %.3g of its limit", v.reduce_ratio);
    }
    ck_assert_int_eq(v.code, row->code);
    ck_assert_str_eq(said, row->evidence);
    free_subject(s);
}

/* Batch norms that a dump says were applied in fp16 widen the ideal, so they must be possible, and
 * asked for. */
#define INNER "layer1.0.bn1,layer2.0.bn1"
static const struct applied_row {
    edit edit;
    const char *level, *half;
    bool fused;
    ls_status status;
} applied_rows[] = {
    {META("applied", INNER), "O2", "fp16", true, LS_OK},
    {META("applied", INNER), "O2", "fp16", false, LS_ERR_USAGE},
    {META("applied", INNER), "O2", "bf16", true, LS_ERR_USAGE},
    {META("applied", INNER), "O0", "fp16", true, LS_ERR_USAGE},
    {META("applied", "layer1.0.bn1,layer1.0.bn1"), "O2", "fp16", true, LS_ERR_USAGE},
    {META("applied", "layer1.0.bn2"), "O2", "fp16", true, LS_ERR_USAGE}, /* at a join */
    {META("applied", "layer1.0.bn"), "O2", "fp16", true, LS_ERR_USAGE},
    {META("applied", "layer1.0.bn1,"), "O2", "fp16", true, LS_ERR_USAGE},
};

ROWS_TEST(applied_norms_must_be_possible_and_asked_for, applied_rows)
{
    const struct applied_row *row = &applied_rows[_i];
    subject *s = make_subject(row->level);
    const char *path[WORLD];
    write_dumps(s, CLEAN, true, path);
    rewrite(path[0], &row->edit, 1);
    rewrite(path[1], &row->edit, 1);
    ls_compare_facts facts = {
        .arch = "resnet8", .half = row->half, .fused = row->fused, .cache = cache};
    double with = compare(path, &facts, row->status).ideal;
    if (row->status == LS_OK) { /* the ideal rounds more, unless a rank does not say so */
        write_dumps(s, CLEAN, true, path);
        double without = compare(path, &facts, LS_OK).ideal;
        ck_assert_double_ne(with, without);
        rewrite(path[1], &row->edit, 1);
        ck_assert_double_eq(compare(path, &facts, LS_OK).ideal, without);
    }
    free_subject(s);
}

TEST(unusable_dumps_are_errors)
{
    subject *s = make_subject("O0");
    const char *path[WORLD];
    write_dumps(s, CLEAN, true, path);
    ls_compare_facts facts = {.arch = "resnet8", .cache = cache}, other = {.arch = "resnet20"};
    ls_compare_verdict v;
    ck_assert_int_eq(ls_compare_step(&facts, 1, path, NULL, &v), LS_ERR_USAGE);
    compare(path, &other, LS_ERR_USAGE);
    ck_assert_int_eq(truncate(path[1], 100000), 0);
    compare(path, &facts, LS_ERR_USAGE);
    free_subject(s);
}

/* Whose batches move running statistics, where a step has two micro-steps. */
static const struct mover {
    ls_compare_facts facts;
    int replicas;     /* of DataParallel, that share a batch */
    int stat_ranks;   /* 2: SyncBN */
    int by[WORLD][2]; /* [rank][micro-step] the rank whose batch counts; -1: none does */
    int other;        /* a wrong one for rank 0's first micro-step */
} movers[] = {
    {{0}, 1, 1, {{0, 0}, {1, 1}}, 1},
    {{0}, 2, 1, {{0, -1}, {1, -1}}, 1},
    {{.reduces_each = true}, 1, 1, {{0, 0}, {1, 1}}, 1},
    {{.sends_buffers = true}, 1, 1, {{0, 0}, {1, 1}}, 1},
    {{.joins = true}, 1, 1, {{0, 0}, {1, 1}}, 1},
    {{.reduces_each = true, .sends_buffers = true}, 1, 1, {{0, 0}, {0, 1}}, 1},
    {{.reduces_each = true, .sends_buffers = true, .joins = true}, 1, 1, {{1, 0}, {1, 1}}, 0},
    {{0}, 1, 2, {{0, 0}, {1, 1}}, -1},
};

/* Random statistics of two micro-steps, [micro-step][rank], alike on ranks that share them. */
static double batch_statistic(int node, int kind, int stat_ranks, int micro, int rank, int channel)
{
    uint64_t group = (uint64_t)(micro * WORLD + (stat_ranks == 2 ? 0 : rank));
    double normal = ls_rng_normal(5, (uint64_t)(2 * node + kind), group * 64 + (uint64_t)channel);
    return kind == 0 ? normal : 1 + fabs(normal);
}

static void add_moved(const ls_nettab *net, const struct mover *row, int rank, int first,
                      ls_safetensors_writer *writer)
{
    for (int i = 0; i < net->node_count; i++) {
        const ls_nettab_node *node = &net->node[i];
        if (node->kind != LS_NETTAB_NORM) {
            continue;
        }
        const char *weight = net->param[node->weight].name;
        int length = (int)(strrchr(weight, '.') - weight);
        LS_TEXT(norm, 64, "%.*s", length, weight);
        double old[2][64], new[2][64], count = BATCH * node->height * node->width;
        for (int k = 0; k < 2 * node->channels; k++) {
            int kind = k / node->channels, c = k % node->channels;
            double value = old[kind][c] = kind;
            for (int a = 0; a < 2 && row->by[rank][a] >= 0; a++) {
                int by = a == 0 && first >= 0 ? first : row->by[rank][a];
                double unbiased =
                    kind == 1 ? count * row->stat_ranks / (count * row->stat_ranks - 1) : 1;
                value = 0.9 * value +
                        0.1 * unbiased * batch_statistic(i, kind, row->stat_ranks, a, by, c);
            }
            new[kind][c] = value;
        }
        ls_shape shape = {.rank = 1, .dim = {node->channels}};
        add_one(writer, "last_buffer", norm, "running_mean", &shape, old[0]);
        add_one(writer, "last_buffer", norm, "running_var", &shape, old[1]);
        add_one(writer, "buffer", norm, "running_mean", &shape, new[0]);
        add_one(writer, "buffer", norm, "running_var", &shape, new[1]);
    }
}

/* The failures of dumps whose rank 0 moved first by the batch of rank `first`, if that is not -1.
 */
static ls_compare_checks judge_moved(const ls_nettab *net, const struct mover *row, int first)
{
    int batch[WORLD] = {BATCH, BATCH};
    char path[] = "/tmp/ls_compare_XXXXXX";
    ls_dumpfile *file[WORLD];
    close(mkstemp(path));
    for (int rank = 0; rank < WORLD; rank++) {
        ls_safetensors_writer *writer;
        ck_assert_int_eq(ls_safetensors_create(path, &writer), LS_OK);
        ls_safetensors_metadata(writer, "replicas", "%d", row->replicas);
        add_moved(net, row, rank, rank == 0 ? first : -1, writer);
        ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
        ck_assert_int_eq(ls_dumpfile_open(path, &file[rank]), LS_OK);
    }
    unlink(path);
    ls_evidence e = {.world = WORLD, .file = file, .net = *net};
    e.step = (ls_oracle_step){.net = &e.net,
                              .world = WORLD,
                              .accumulate = 2,
                              .batch = batch,
                              .stat_ranks = row->stat_ranks};
    int64_t count = ls_oracle_stats_count(&e.step);
    double *stats = calloc((size_t)count, sizeof *stats);
    double exact[2 * LS_NETTAB_NODES_MAX] = {0};
    for (int i = 0; i < net->node_count; i++) {
        int channels = net->node[i].channels, groups = ls_oracle_stats_groups(&e.step);
        for (int k = 0; net->node[i].kind == LS_NETTAB_NORM && k < 2 * groups * channels; k++) {
            int group = k / channels % groups, of = groups / 2; /* in a micro-step */
            stats[ls_oracle_stats_of(&e.step, i) + k] = batch_statistic(
                i, k / channels / groups, row->stat_ranks, group / of, group % of, k % channels);
        }
    }
    ls_compare_verdict verdict = {0};
    ls_compare_judgement j = {.facts = &row->facts,
                              .evidence = &e,
                              .bounds = ls_compare_bounds_of(0),
                              .verdict = &verdict};
    j.forced.stats = stats;
    j.cost.stats_error2 = exact;
    ls_compare_buffers_judge(&j);
    ck_assert(verdict.buffers_judged);
    free(stats);
    ls_dumpfile_close(file[0]);
    ls_dumpfile_close(file[1]);
    return j.checks;
}

ROWS_TEST(statistics_move_by_the_right_batches, movers)
{
    static ls_nettab net;
    ck_assert_int_eq(ls_nettab_build("resnet8", CLASSES, SIZE, SIZE, &net), LS_OK);
    ls_compare_checks right = judge_moved(&net, &movers[_i], -1);
    ck_assert_msg(right.count == 0, "row %d: %s", _i, right.line);
    ck_assert(movers[_i].other < 0 || judge_moved(&net, &movers[_i], movers[_i].other).count > 0);
}

TEST_MAIN("compare_dumps", .timeout_s = 60, .begin = run_levels, .end = free_levels)
