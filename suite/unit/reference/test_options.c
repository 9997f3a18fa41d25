/* The command line: accepted options (defaults, spellings), refusals, each of which is one line
 * that names the option (numerics.md section 7), options that are valid but not offered; and the
 * types and scales that follow from the options (numerics.md section 1). */
#include <cjson/cJSON.h>
#include <fcntl.h>

#include "reference/explain/explain.h"
#include "reference/options/options.h"
#include "reference/options/precision.h"
#include "suite/unit/caught.h"
#include "suite/unit/golden.h"
#include "suite/unit/run_suite.h"
#include "reference/model/model.h"

enum { ARGUMENTS_MAX = 48, TEXT_BYTES = 4096 };

typedef struct outcome {
    ls_status status;
    ls_options options;
    const char *option, *why; /* where not offered */
    char said[TEXT_BYTES];    /* on stderr */
    int lines;
} outcome;

/* Parses `line`, words separated by single spaces, with stderr caught in a file. */
static outcome parse(const char *line)
{
    outcome found = {.status = LS_OK};
    char words[1024];
    char *argument[ARGUMENTS_MAX + 1] = {"lockstep-train"};
    int count = 1;
    snprintf(words, sizeof words, "%s", line);
    for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " ")) {
        ck_assert_int_lt(count, ARGUMENTS_MAX);
        argument[count++] = word;
    }
    catch_lines();
    found.status = ls_options_parse(count, argument, &found.options, &found.option, &found.why);
    snprintf(found.said, sizeof found.said, "%s", caught_text());
    for (const char *c = found.said; *c != '\0'; c++) {
        found.lines += *c == '\n';
    }
    return found;
}

/* What is in no record; the rest of a value with its underscores is in the command lines below. */
TEST(spellings)
{
    const ls_options as = parse("--overflow-as nan@fc.bias:last:0 --accumulate 2").options;
    ck_assert(isnan(as.overflow_as.value) && as.overflow_as.place == 'l');
    ck_assert(strcmp(as.overflow_as.param, "fc.bias") == 0 && as.overflow_as.micro == 0);
    const ls_options o = parse("--loss_scale 128.0 --keep_batchnorm_fp32 False --opt_level=O2 "
                               "--seed 18446744073709551615")
                             .options;
    ck_assert(o.loss_scale_given && !o.loss_scale_dynamic && o.loss_scale == 128.0f);
    ck_assert(o.keep_batchnorm_fp32 == LS_FALSE && o.seed == UINT64_MAX);
    ck_assert(parse("--loss-scale dynamic").options.loss_scale_dynamic);
}

TEST(understood_but_not_offered)
{
    outcome found = parse("--tf32 --device cpu");
    ck_assert(found.status == LS_ERR_UNSUPPORTED && found.lines == 1);
    ck_assert_str_eq(found.option, "--tf32");
    ck_assert_int_gt((int)strlen(found.why), 0);
}

/* A wrong value in another option is a usage error first. */
TEST(usage_before_unsupported)
{
    ck_assert_int_eq(parse("--tf32 --device cpu -b 0").status, LS_ERR_USAGE);
    ck_assert_int_eq(parse("--optimizer sgd --tf32 --device cuda").status, LS_OK);
}

TEST(every_optimizer_is_offered)
{
#define LS_OPTIMIZER(KIND, name, ...) #name,
    static const char *const names[] = {
#include "kernels/optimizers.def"
    };
#undef LS_OPTIMIZER
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char line[96];
        snprintf(line, sizeof line, "--optimizer %s --betas 0.8,0.95", names[i]);
        ls_options options = parse(line).options;
        ck_assert_int_eq(parse(line).status, LS_OK);
        ck_assert_int_eq(options.optimizer, (ls_optimizer_kind)i);
        ck_assert(options.beta1 == 0.8 && options.beta2 == 0.95);
        /* Apex's FusedLAMB has 1e-6 */
        ck_assert(options.epsilon == (options.optimizer == LS_OPTIMIZER_LAMB ? 1e-6 : 1e-8));
    }
    ck_assert(parse("--optimizer rmsprop").status == LS_ERR_USAGE);
    ck_assert(parse("--eps 1e-5 --optimizer lamb").options.epsilon == 1e-5);
    ck_assert(parse("--nesterov --optimizer lars").status == LS_OK);
}

/* The whole record of no arguments; of others the command lines below have what differs. */
TEST(whole_record)
{
    static const char want[] =
        "{\"arch\":\"resnet50\",\"batch-size\":32,\"global-batch\":null,\"image-size\":224,"
        "\"num-classes\":10,\"steps\":10,\"epochs\":null,\"opt-level\":\"O1\",\"half\":\"fp16\","
        "\"loss-scale\":\"dynamic\",\"init-scale\":65536,\"growth-interval\":2000,"
        "\"min-loss-scale\":0,\"max-loss-scale\":16777216,\"keep-batchnorm-fp32\":true,"
        "\"master-weights\":false,\"tf32\":false,\"optimizer\":\"sgd\",\"lr\":0.1,"
        "\"lr-scaling\":\"none\",\"schedule\":\"constant\",\"momentum\":0.9,"
        "\"weight-decay\":0.0001,\"nesterov\":false,\"dialect\":\"apex\",\"bucket-cap-mb\":null,"
        "\"message-size\":10000000,\"delay-allreduce\":false,\"sync-bn\":false,\"sync-bn-group\":0,"
        "\"accumulate\":1,\"compress\":\"none\",\"find-unused\":false,\"broadcast-buffers\":false,"
        "\"average\":\"post\",\"predivide\":1,\"allreduce-fp32\":false,\"data\":\"synthetic\","
        "\"seed\":0,\"workers\":2,\"device\":\"auto\",\"deterministic\":false,\"threads\":0,"
        "\"init\":null,\"save\":null,\"resume\":null,\"dump-steps\":[],\"dump-ranks\":\"0\","
        "\"force-branches\":null,\"digest\":\"all\",\"trace\":false,\"comm\":\"auto\","
        "\"timeout\":300,\"print-freq\":10,\"overflow-at\":[],\"overflow-as\":\"inf@:first:-1\"}";
    outcome found = parse("");
    ck_assert_int_eq(found.status, LS_OK);
    cJSON *json = ls_options_json(&found.options);
    char *text = cJSON_PrintUnformatted(json);
    ck_assert_str_eq(text, want);
    cJSON_free(text);
    cJSON_Delete(json);
}

/* ---- what the options mean for types (numerics.md section 1) --------------------------------- */

typedef struct meaning {
    const char *line;
    ls_dtype product, norm, activation;
    bool product_master, norm_master;
    ls_dtype product_reduced, norm_reduced;
    bool dynamic;
    float scale;
} meaning;

static const meaning meanings[] = {
    {"--opt-level O0", LS_F32, LS_F32, LS_F32, false, false, LS_F32, LS_F32, false, 1},
    {"--opt-level O1", LS_F32, LS_F32, LS_F16, false, false, LS_F32, LS_F32, true, 65536},
    {"--opt-level O2", LS_F16, LS_F32, LS_F16, true, false, LS_F16, LS_F32, true, 65536},
    {"--opt-level O3", LS_F16, LS_F16, LS_F16, false, false, LS_F16, LS_F16, false, 1},
    {"--opt-level O1 --half bf16", LS_F32, LS_F32, LS_BF16, false, false, LS_F32, LS_F32, false, 1},
    {"--opt-level O2 --half bf16 --loss-scale dynamic", LS_BF16, LS_F32, LS_BF16, true, false,
     LS_BF16, LS_F32, true, 65536},
    {"--opt-level O2 --keep-batchnorm-fp32 False", LS_F16, LS_F16, LS_F16, true, true, LS_F16,
     LS_F16, true, 65536},
    {"--opt-level O2 --master-weights False", LS_F16, LS_F32, LS_F16, false, false, LS_F16, LS_F32,
     true, 65536},
    {"--opt-level O3 --keep-batchnorm-fp32 True --master-weights True --loss-scale 128", LS_F16,
     LS_F32, LS_F16, true, false, LS_F16, LS_F32, false, 128},
    {"--opt-level O0 --keep-batchnorm-fp32 False --master-weights True", LS_F32, LS_F32, LS_F32,
     false, false, LS_F32, LS_F32, false, 1},
    {"--opt-level O2 --allreduce-fp32 --max-loss-scale 1024", LS_F16, LS_F32, LS_F16, true, false,
     LS_F32, LS_F32, true, 1024},
    {"--opt-level O1 --compress bf16 --min-loss-scale 1e6", LS_F32, LS_F32, LS_F16, false, false,
     LS_BF16, LS_BF16, true, 1e6f},
};

ROWS_TEST(types_and_scale, meanings)
{
    const meaning *want = &meanings[_i];
    outcome found = parse(want->line);
    ck_assert_int_eq(found.status, LS_OK);
    ls_dialect_rules rules;
    ls_precision precision;
    ls_dialect_resolve(&found.options, 2, &rules);
    ls_precision_resolve(&found.options, &rules, &precision);
    static const ls_param_role products[] = {LS_PARAM_CONV_WEIGHT, LS_PARAM_LINEAR_WEIGHT,
                                             LS_PARAM_LINEAR_BIAS};
    static const ls_param_role norms[] = {LS_PARAM_NORM_WEIGHT, LS_PARAM_NORM_BIAS};
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(ls_precision_param(&precision, products[i]), want->product);
        ck_assert_int_eq(ls_precision_grad(&precision, products[i]), want->product);
        ck_assert_int_eq(ls_precision_reduced(&precision, products[i]), want->product_reduced);
        ck_assert_int_eq(ls_precision_has_master(&precision, products[i]), want->product_master);
    }
    for (size_t i = 0; i < 2; i++) {
        ck_assert_int_eq(ls_precision_param(&precision, norms[i]), want->norm);
        ck_assert_int_eq(ls_precision_reduced(&precision, norms[i]), want->norm_reduced);
        ck_assert_int_eq(ls_precision_has_master(&precision, norms[i]), want->norm_master);
    }
    ck_assert_int_eq(ls_precision_buffer(&precision, LS_BUFFER_RUNNING_VAR), want->norm);
    ck_assert_int_eq(ls_precision_buffer(&precision, LS_BUFFER_BATCHES_TRACKED), LS_I64);
    ck_assert_int_eq(precision.activation, want->activation);
    ck_assert_int_eq(precision.scaler.dynamic, want->dynamic);
    ck_assert(precision.initial_scale == want->scale);
}

/* ---- dialects -------------------------------------------------------------------------------- */

/* All rules that a command line resolves to in a world of four: dialect, average, factors before
 * and after the sum, limits of buckets, what closes the first ones, the switches that are on, and
 * the largest scale. */
static const struct {
    const char *line, *rules;
} ruled[] = {
    {"", "apex post 1 0.25 elements 10000000, delayed, rebuild, unused at the end, 16777216"},
    {"--dialect torch",
     "torch pre 0.25 1 bytes 1048576 26214400, per type, rebuild, start buffers, "
     "broadcast buffers, unused at the next forward, inf"},
    {"--dialect torch --bucket-cap-mb 0.5 --broadcast-buffers=False --average post --predivide 8",
     "torch post 0.125 2 bytes 524288 524288, per type, rebuild, start buffers, unused at the next "
     "forward, inf"},
    {"--dialect torch --message-size 1 --find-unused",
     "torch pre 0.25 1 elements 1, final, start buffers, broadcast buffers, unused at the next "
     "forward, inf"},
    {"--message-size 1 --average none --predivide 8 --delay-allreduce",
     "apex none 0.125 1 elements 1, final, delay, unused at the end, 16777216"},
    {"--bucket-cap-mb 1e-9 --deterministic --average pre --broadcast-buffers=True",
     "apex pre 0.25 1 bytes 1, final, broadcast buffers, unused at the end, 16777216"},
};

static void print_rules(const ls_dialect_rules *r, char *text, size_t bytes)
{
    static const char *const first[] = {[LS_FIRST_DELAYED] = "delayed",
                                        [LS_FIRST_PER_TYPE] = "per type",
                                        [LS_FIRST_FINAL] = "final"};
    ls_text_put(text, bytes, "%s %s %.9g %.9g %s", ls_dialect_name(r->dialect),
                ls_dialect_average_name(r->average), r->pre_factor, r->post_factor,
                r->unit == LS_BUCKET_BYTES ? "bytes" : "elements");
    for (int i = 0; i < r->limit_count; i++) {
        ls_text_add(text, bytes, " %lld", (long long)r->limit[i]);
    }
    ls_text_add(text, bytes, ", %s%s%s%s%s, unused at the %s, %.9g", first[r->first],
                r->delay ? ", delay" : "", r->rebuild ? ", rebuild" : "",
                r->start_buffers ? ", start buffers" : "",
                r->broadcast_buffers ? ", broadcast buffers" : "",
                r->unused == LS_UNUSED_END_OF_BACKWARD ? "end" : "next forward", r->max_scale);
}

ROWS_TEST(every_rule_of_a_dialect, ruled)
{
    char text[300];
    outcome found = parse(ruled[_i].line);
    ck_assert_int_eq(found.status, LS_OK);
    ls_dialect_rules have;
    ls_precision precision;
    memset(&have, 0x5a, sizeof have);
    ls_dialect_resolve(&found.options, 4, &have);
    print_rules(&have, text, sizeof text);
    ck_assert_str_eq(text, ruled[_i].rules);
    ls_precision_resolve(&found.options, &have, &precision);
    ck_assert(precision.scaler.max_scale == (float)have.max_scale);
}

TEST(every_setting_of_the_scaler)
{
    outcome found = parse("--init-scale 512 --growth-interval 7 --max-loss-scale 1 "
                          "--min-loss-scale 0.25");
    ck_assert_int_eq(found.status, LS_OK);
    ls_dialect_rules rules;
    ls_precision precision;
    ls_dialect_resolve(&found.options, 2, &rules);
    ls_precision_resolve(&found.options, &rules, &precision);
    const ls_scaler_config *scaler = &precision.scaler;
    ck_assert(scaler->dynamic && scaler->growth_factor == 2 && scaler->backoff_factor == 0.5f &&
              scaler->growth_interval == 7 && scaler->min_scale == 0.25f &&
              scaler->max_scale == 1 && precision.initial_scale == 1);
}

/* ---- explain --------------------------------------------------------------------------------- */

static const char *const explained[] = {
    "",
    "-a resnet18 --opt-level O2",
    "-a resnet152 --opt-level O3 --dialect torch --half bf16",
    "-a resnet20 --image-size 32 --delay-allreduce --accumulate 4",
    "-a resnet110 --image-size 32 --deterministic --bucket-cap-mb 0.1 --min-loss-scale 1",
    "--opt-level O2 --allreduce-fp32 --average none --predivide 3",
};

/* Nothing is wider than a terminal, and each parameter is named in the buckets and in the table. */
ROWS_TEST(explanations, explained)
{
    outcome found = parse(explained[_i]);
    ck_assert_int_eq(found.status, LS_OK);
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    ck_assert_int_eq(ls_explain_print(&found.options, 3, stream), LS_OK);
    fclose(stream);
    int fc_bias = 0;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        ck_assert_msg(strlen(line) <= 80, "%zu columns: %s", strlen(line), line);
        fc_bias += strstr(line, "fc.bias") != NULL;
    }
    ls_dialect_rules rules;
    ls_dialect_resolve(&found.options, 3, &rules);
    ck_assert_int_eq(fc_bias, rules.rebuild ? 3 : 2);
    free(text);
}

static const struct {
    int world;
    const char *options;
} explained_whole[] = {
    {1, "-a resnet8 --image-size 32"},
    {3, "-a resnet8 --image-size 32 --num-classes 100 -b 7 --opt-level O0 --nesterov "
        "--delay-allreduce"},
    {2, "-a resnet8 --image-size 32 --opt-level O2 --half bf16 --dialect torch --optimizer adam "
        "--accumulate 2"},
    {2, "-a resnet8 --image-size 33 --opt-level O2 --half fp16 --allreduce-fp32 --optimizer lamb "
        "--bucket-cap-mb 0.1 --min-loss-scale 1 --lr-scaling linear"},
    {5, "-a resnet8 --image-size 32 --opt-level O3 --optimizer lars --average none --predivide 3 "
        "--compress fp16 --momentum 0 --schedule step:500s:0.1"},
    {4, "-a resnet18 --image-size 64 --opt-level O1 --optimizer adamw --dialect torch "
        "--broadcast-buffers=False --bucket-cap-mb 4 --loss-scale 128"},
    {2, "-a resnet8 --image-size 32 --opt-level O0 --compress bf16 --message-size 20000 "
        "--broadcast-buffers=True --deterministic"},
    {8, "-a resnet8 --image-size 32 --opt-level O2 --keep-batchnorm-fp32 False --master-weights "
        "False --init-scale 1024 --growth-interval 10 --max-loss-scale 4096 --momentum 0.5"},
    /* sums that end in 500 bytes: one more rounds up */
    {2, "-a resnet8 --image-size 32 --num-classes 19 --opt-level O0 --accumulate 2 -b 4096"},
    {2, "-a resnet8 --image-size 32 --num-classes 186"},
    {2, "-a resnet8 --image-size 32 --num-classes 11 --opt-level O2"},
    {2, "-a resnet8 --image-size 32 --num-classes 194 --opt-level O0 --compress fp16"},
};

TEST(explanations_word_for_word)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    golden_variants explanations = {0};
    for (size_t i = 0; i < sizeof explained_whole / sizeof *explained_whole; i++) {
        outcome found = parse(explained_whole[i].options);
        ck_assert_msg(found.status == LS_OK, "%s: %s", explained_whole[i].options, found.said);
        LS_TEXT(title, 300, "%d %s", explained_whole[i].world, explained_whole[i].options);
        char *one = NULL;
        FILE *stream = open_memstream(&one, &bytes);
        ck_assert_int_eq(ls_explain_print(&found.options, explained_whole[i].world, stream), LS_OK);
        fclose(stream);
        golden_variant(to, &explanations, title, one);
    }
    fclose(to);
    golden_variants_free(&explanations);
    golden_check("suite/unit/reference/expected/explain.txt", golden_short(text, 1));
}

/* The fields that are not what they are without any argument. */
static void print_changes(FILE *to, const ls_options *options)
{
    ls_options usual = parse("").options;
    cJSON *was = ls_options_json(&usual), *now = ls_options_json(options);
    const cJSON *field;
    cJSON_ArrayForEach(field, now)
    {
        const cJSON *old = cJSON_GetObjectItemCaseSensitive(was, field->string);
        if (old == NULL || !cJSON_Compare(old, field, true)) {
            char *text = cJSON_PrintUnformatted(field);
            fprintf(to, " %s=%s", field->string, text);
            cJSON_free(text);
        }
    }
    const ls_fault_at *fault = &options->fault;
    if (fault->step != 0) {
        fprintf(to, " of %d:%d:%d:%d", (int)fault->step, fault->rank, (int)fault->phase,
                (int)fault->how);
    }
    fputc('\n', to);
    cJSON_Delete(was);
    cJSON_Delete(now);
}

/* Puts '*' for the line's last word in quotes: lines that are refused alike have one answer. */
static void unquote_value(char *answer, const char *line)
{
    const char *space = strrchr(line, ' ');
    LS_TEXT(value, 1100, "'%s'", space == NULL ? line : space + 1);
    for (char *at = answer; (at = strstr(at, value)) != NULL; at += 3) {
        const char *end = at + strlen(value) - 1;
        at[1] = '*';
        memmove(at + 2, end, strlen(end) + 1);
    }
}

/* What comes of a command line; to be freed. */
static char *parsed_answer(const char *line, ls_status *status)
{
    outcome found = parse(line);
    char *answer = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&answer, &bytes);
    *status = found.status;
    if (found.status == LS_OK) {
        ck_assert_str_eq(found.said, "");
        print_changes(to, &found.options);
    } else {
        ck_assert_int_eq(found.lines, 1);
        fprintf(to, "%s", strstr(found.said, ": ") + 1);
    }
    fclose(to);
    if (found.status != LS_OK) {
        unquote_value(answer, line);
    }
    return answer;
}

/* The answer below the last of the lines that have it. */
static void print_answer(FILE *to, char **answer, char *next)
{
    if (*answer != NULL && (next == NULL || strcmp(*answer, next) != 0)) {
        fprintf(to, "   %s", *answer);
    }
    free(*answer);
    *answer = next;
}

/* With the options that the environment decides: of `rank` of `world`, with a folder or without. */
static void print_resolved(FILE *to, int rank, int world, const char *folder, const char *line)
{
    ls_options options = parse(line).options;
    catch_lines();
    ls_status status = ls_options_resolve(&options, rank, world,
                                          folder[0] == '-'   ? NULL
                                          : folder[0] == '"' ? ""
                                                             : folder);
    const char *said = caught_lines();
    fprintf(to, "%d rank %d of %d %s: %s\n   ", status, rank, world, folder, line);
    fprintf(to, "%s%s", status == LS_OK ? "" : " ", said);
    if (status == LS_OK) {
        print_changes(to, &options);
    }
}

/* The file has the command lines, each after a status, and below them what comes of them: a further
 * one is written there, and LS_RENEW=1 adds the rest. */
TEST(command_lines_word_for_word)
{
    static const char expected[] = "suite/unit/reference/expected/options.txt";
    char path[1024], *text = NULL, *rest = NULL, *answer = NULL;
    size_t bytes = 0;
    int rank, world, lines = 0;
    FILE *to = open_memstream(&text, &bytes);
    ck_assert(ls_path_find(expected, path, sizeof path));
    char *all = ls_text_read(path);
    ck_assert_ptr_nonnull(all);
    for (char *line = strtok_r(all, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        char folder[20];
        if (line[0] == '=') {
            print_answer(to, &answer, NULL);
            fprintf(to, "%s\n", line);
        } else if (sscanf(line, "%*d rank %d of %d %19[^:]:", &rank, &world, folder) == 3) {
            print_answer(to, &answer, NULL);
            print_resolved(to, rank, world, folder, strstr(line, ": ") + 2);
        } else if (line[0] != ' ') {
            ls_status status;
            print_answer(to, &answer, parsed_answer(line + 2, &status));
            fprintf(to, "%d %s\n", status, line + 2);
            lines++;
        }
    }
    print_answer(to, &answer, NULL);
    ck_assert_int_ge(lines, 200);
    free(all);
    fclose(to);
    golden_check(expected, text);
}

/* What is in no record: the fields that options of their own grammar set. */
TEST(defaults_of_every_grammar)
{
    ls_options o = {.seed = 7, .audit = true};
    ls_options_defaults(&o);
    ck_assert(o.batch_sizes.count == 0 && o.batch_sizes.item[0].number == 0 && o.steps == 0 &&
              o.epochs == 0);
    ck_assert(o.opt_level == LS_O1 && o.half == LS_F16);
    ck_assert(!o.loss_scale_given && !o.loss_scale_dynamic && o.loss_scale == 1);
    ck_assert(o.beta1 == 0.9 && o.beta2 == 0.999 && o.epsilon == 1e-8);
    ck_assert_str_eq(o.data, "synthetic");
    ck_assert(o.seed == 0 && o.dump_steps.count == 0 && o.overflow_at.count == 0 &&
              o.aux_head.count == 0);
    ck_assert(!o.audit && o.audit_seed == 0 && o.audit_every == 200 && o.audit_from == 0);
    ck_assert(o.fault.step == 0 && o.fault.rank == 0 && o.resident == 0 && o.engines[0] == '\0');
    ck_assert(o.overflow_as.value == INFINITY && o.overflow_as.param[0] == '\0');
    ck_assert(o.overflow_as.place == 'f' && o.overflow_as.micro == -1);
    ck_assert(!o.no_reduce && !o.cudnn_benchmark && !o.fuse && o.example == LS_EXAMPLE_NONE);
}

/* Groups of parameters: what a text stands for, and which parameters a pattern takes. */

TEST(texts)
{
    static const struct {
        const char *text, *pattern; /* NULL: refused */
        double weight_decay, lr_factor;
    } rows[] = {
        {"bn|bias:wd=0", "bn|bias", 0, 1},
        {"fc:lr-factor=0.5", "fc", NAN, 0.5},
        {"a:b:wd=1e-4,lr-factor=10", "a:b", 1e-4, 10},
        {"a:lr-factor=0,wd=2", "a", 2, 0},
        {"a", NULL, 0, 0},
        {":wd=0", NULL, 0, 0},
        {"a:", NULL, 0, 0},
        {"a:wd", NULL, 0, 0},
        {"a:wd=", NULL, 0, 0},
        {"a:wd=-1", NULL, 0, 0},
        {"a:wd=nan", NULL, 0, 0},
        {"a:wd=inf", NULL, 0, 0},
        {"a:wd=0,", NULL, 0, 0},
        {"a:wd=0,wd=0", NULL, 0, 0},
        {"a:wd=0x", NULL, 0, 0},
        {"a:lr=1", NULL, 0, 0},
        {"(:wd=0", NULL, 0, 0},
        {"a[:wd=0", NULL, 0, 0},
        {"", NULL, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ls_groups_rule rule = {.text = "as before"};
        bool taken = ls_groups_read(rows[i].text, &rule);
        ck_assert_msg(taken == (rows[i].pattern != NULL), "%s", rows[i].text);
        if (!taken) {
            ck_assert_str_eq(rule.text, "as before");
            continue;
        }
        ck_assert_str_eq(rule.text, rows[i].text);
        ck_assert_str_eq(rule.pattern, rows[i].pattern);
        ck_assert(isnan(rows[i].weight_decay) ? isnan(rule.weight_decay)
                                              : rule.weight_decay == rows[i].weight_decay);
        ck_assert(rule.lr_factor == rows[i].lr_factor);
    }
    char longest[LS_GROUPS_TEXT + 1];
    memset(longest, 'a', sizeof longest);
    memcpy(longest + LS_GROUPS_TEXT - 6, ":wd=0", 6);
    ls_groups_rule rule;
    ck_assert(ls_groups_read(longest, &rule));
    memset(longest, 'a', sizeof longest);
    memcpy(longest + LS_GROUPS_TEXT - 5, ":wd=0", 6);
    ck_assert(!ls_groups_read(longest, &rule));
}

static ls_groups groups_of(const char *first, const char *second)
{
    ls_groups groups = {.count = second != NULL ? 2 : 1};
    ck_assert(ls_groups_read(first, &groups.rule[0]));
    ck_assert(second == NULL || ls_groups_read(second, &groups.rule[1]));
    return groups;
}

TEST(members)
{
    ls_network network;
    ck_assert_int_eq(ls_model_build("resnet18", 10, 32, &network), LS_OK);
    uint8_t *group = malloc((size_t)network.param_count);
    ls_groups groups = groups_of("^fc:lr-factor=2", "bn|bias:wd=0");
    ck_assert_int_eq(ls_groups_assign(&groups, &network, group), LS_OK);
    int of[3] = {0};
    for (int i = 0; i < network.param_count; i++) {
        const ls_param *param = &network.param[i];
        bool norm = param->role == LS_PARAM_NORM_WEIGHT || param->role == LS_PARAM_NORM_BIAS;
        ck_assert_int_eq(group[i], strncmp(param->name, "fc.", 3) == 0 ? 1 : norm ? 2 : 0);
        of[group[i]]++;
    }
    /* 20 convolutions, 20 batch norms, 3 of them named downsample.1, and the classifier */
    ck_assert_int_eq(of[0], 20);
    ck_assert_int_eq(of[1], 2);
    ck_assert_int_eq(of[2], 40);
    groups = groups_of("^conv.weight$:wd=1", "layer1:wd=2");
    ck_assert_int_eq(ls_groups_assign(&groups, &network, group), LS_OK);
    memset(of, 0, sizeof of);
    for (int i = 0; i < network.param_count; i++) {
        of[group[i]]++;
    }
    ck_assert_int_eq(of[1], 20); /* by their kind */
    ck_assert_int_eq(of[2], 8);  /* the batch norms of layer1: its convolutions were taken before */
    groups = groups_of("layer5:wd=0", NULL);
    ck_assert_int_eq(ls_groups_assign(&groups, &network, group), LS_ERR_USAGE);
    groups = groups_of("fc:wd=0", "^fc.bias:wd=1");
    ck_assert_int_eq(ls_groups_assign(&groups, &network, group), LS_ERR_USAGE);
    free(group);
    ls_model_free(&network);
}

TEST_MAIN("options")
