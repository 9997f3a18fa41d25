/* What an opt level is: the type of every tensor in the dump (numerics.md section 1), and the
 * acceptance matrix, every level with every override and value (numerics.md section 7): what the
 * start event then says is in force, and that a refusal is one line, with nothing written. */
#include "suite/cases/rows.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/judge/judges.h"

/* Batch norm's tensors by torchvision's names: bn1, layer1.0.bn2, and the second of a downsample
 * pair. */
static bool is_norm(const char *name)
{
    return strstr(name, "bn") != NULL || strstr(name, "downsample.1.") != NULL;
}

/* What an override makes of the level: f32 or half. */
typedef struct types {
    char norm, param, next; /* 'f', 'h' */
} types;

/* The type a tensor of the dump must have, by level and kind of tensor. */
static ls_bits_type expected(const ls_case *row, const char *kind, const char *name)
{
    const ls_spec *spec = &row->job[0];
    bool bf16 = strcmp(spec->half, "bf16") == 0 || strstr(spec->extra, "--half=bf16") != NULL;
    ls_bits_type half = bf16 ? LS_BITS_BF16 : LS_BITS_F16;
    bool norm = is_norm(name), next = strcmp(kind, "next") == 0;
    if (strcmp(kind, "param") != 0 && !next) {
        return LS_BITS_F32; /* gradients, logits, inputs, masters */
    }
    const types *changed = row->data;
    if (changed != NULL) {
        char type = next ? changed->next : changed->param;
        return (norm && changed->norm == 'f') || type == 'f' ? LS_BITS_F32 : half;
    }
    /* `next` holds masters where there are masters */
    return spec->level == 3 || (spec->level == 2 && !norm && !next) ? half : LS_BITS_F32;
}

/* O1's last product is in half: a loss that computes in f32 may be given it as it is, or cast up.
 */
static bool may_be(const ls_case *row, const char *kind, const char *dtype)
{
    const ls_spec *spec = &row->job[0];
    bool bf16 = strcmp(spec->half, "bf16") == 0 || strstr(spec->extra, "--half=bf16") != NULL;
    return spec->level == 1 && strcmp(kind, "logits") == 0 &&
           strcmp(dtype, bf16 ? "BF16" : "F16") == 0;
}

static void judge_types(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_dumpfile *file = ls_dumps_open(job, 2, 0, out);
    if (file == NULL) {
        return;
    }
    /* the last one is there at some levels only */
    static const char *const kinds[] = {"param", "grad", "next", "logits", "input", "master"};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    int looked = 0, of_kind[KINDS] = {0};
    for (int i = 0; i < ls_dumpfile_count(file); i++) {
        const ls_dumpfile_entry *entry = ls_dumpfile_at(file, i);
        LS_TEXT(kind, 32, "%.*s", (int)strcspn(entry->name, "/"), entry->name);
        for (int k = 0; k < KINDS; k++) {
            if (strcmp(kind, kinds[k]) != 0) {
                continue;
            }
            looked++;
            of_kind[k]++;
            ls_bits_type type = expected(row, kind, entry->name);
            const char *want = type == LS_BITS_F16 ? "F16" : type == LS_BITS_BF16 ? "BF16" : "F32";
            if (strcmp(entry->dtype, want) == 0 || may_be(row, kind, entry->dtype)) {
                continue;
            }
            if (out->code == LS_PASS) {
                ls_verdict_cause(out, "%s",
                                 is_norm(entry->name) ? "batch norm is not in the level's type"
                                 : strcmp(kind, "next") == 0 && strcmp(want, "F32") == 0 &&
                                         strstr("F16 BF16", entry->dtype) != NULL
                                     ? "the step leaves half values: there are no "
                                       "masters"
                                     : "a cast is missing, or one too many");
            }
            ls_verdict_fail(out, "%s is %s, expected %s at O%d", entry->name, entry->dtype, want,
                            row->job[0].level);
        }
    }
    ls_dumpfile_close(file);
    for (int k = 0; k < KINDS - 1; k++) {
        int wanted = k < 3 ? of_kind[0] : 1; /* as many gradients and results as parameters */
        if (of_kind[k] == 0 || of_kind[k] != wanted) {
            ls_verdict_fail(out, "the dump holds %d tensors %s, expected %d", of_kind[k], kinds[k],
                            wanted);
        }
    }
    ls_verdict_pass(out, looked, "%d tensors have the level's types", looked);
}

/* Of two runs at O0 with different scales the scaler's own digest differs. */
static const ls_judge_difference all = {0, "two ways of asking for the same"},
                                 unscaled = {1u << LS_RECORD_SCALER, "two scales in f32"};

#define TYPES "resnet8 dump=1,2 "
#define EQUAL "resnet8 steps=3 scale= "

static const ls_row rows[] = {
    {"opt_levels.types.o[0|1|2|3]", "O1", judge_types, "O$1 w2 b0.1 dump=1,2"},
    {"opt_levels.types.o2.keep-bn-false", "O1", judge_types, TYPES "O2 --keep-batchnorm-fp32=False",
     &(const types){'h', 'h', 'f'}},
    {"opt_levels.types.o2.masters-false", "O1", judge_types, TYPES "O2 --master-weights=False",
     &(const types){'f', 'h', 'h'}},
    {"opt_levels.types.o3.keep-bn-true", "O1", judge_types, TYPES "O3 --keep-batchnorm-fp32=True",
     &(const types){'f', 'h', 'h'}},
    {"opt_levels.types.o3.masters-true", "O1", judge_types, TYPES "O3 --master-weights=True",
     &(const types){'h', 'h', 'f'}},
    {"opt_levels.types.o3.all", "O1", judge_types,
     TYPES "O3 --keep-batchnorm-fp32=True --master-weights=True", &(const types){'f', 'h', 'f'}},
    {"opt_levels.types.o0.all", "O1", judge_types,
     TYPES "O0 --keep-batchnorm-fp32=False --master-weights=True", &(const types){'f', 'f', 'f'}},
    {"opt_levels.types.o1.bf16", "O1", judge_types, TYPES "O1 --half=bf16",
     &(const types){'f', 'f', 'f'}},
    {"opt_levels.types.o2.bf16", "O1", judge_types, TYPES "O2 --half=bf16",
     &(const types){'f', 'h', 'f'}},
    {"opt_levels.types.o3.bf16", "O1", judge_types, TYPES "O3 --half=bf16",
     &(const types){'h', 'h', 'h'}},
    {"opt_levels.equal.o2.explicit", "O3", ls_judge_same,
     EQUAL "O2 --loss-scale=1024 | " EQUAL "O2 --master-weights=True --loss-scale=1024.0 "
           "--keep-batchnorm-fp32=True --half=fp16",
     &all},
    {"opt_levels.equal.o3.masters", "O3", ls_judge_same,
     EQUAL "O3 --loss-scale=128 --master-weights=True | " EQUAL
           "O2 --loss-scale=128 --keep-batchnorm-fp32=False",
     &all},
    {"opt_levels.equal.o2.lowered", "O3", ls_judge_same,
     EQUAL "O2 --loss-scale=128 --master-weights=False | " EQUAL
           "O3 --loss-scale=128 --keep-batchnorm-fp32=True",
     &all},
    {"opt_levels.equal.o0.dynamic", "O3", ls_judge_same,
     EQUAL "--loss-scale=dynamic | " EQUAL "--loss-scale=1", &unscaled},
    {"opt_levels.equal.o0.small", "O3", ls_judge_same,
     EQUAL "--loss-scale=0.0009765625 | " EQUAL "--loss-scale=1", &unscaled},
};

/* ---- the acceptance matrix ------------------------------------------------------------------- */

/* A refusal has code 2 and no effect to look at. */
typedef struct cell {
    const char *name, *options;
    int code;
    const char *effect; /* "name=value ..." of the start event's options; "" none */
} cell;

/* What each level is by itself. */
static const cell by_itself[4] = {
    {"default", "", 0, "opt-level=O0 loss-scale=1 keep-batchnorm-fp32=True master-weights=False"},
    {"default", "", 0, "opt-level=O1 loss-scale=dynamic init-scale=65536 growth-interval=2000"},
    {"default", "", 0,
     "opt-level=O2 loss-scale=dynamic init-scale=65536 keep-batchnorm-fp32=True "
     "master-weights=True"},
    {"default", "", 0, "opt-level=O3 loss-scale=1 keep-batchnorm-fp32=False master-weights=False"},
};

/* Tried at every level. */
static const cell every_level[] = {
    {"scale-dynamic", "--loss-scale=dynamic", 0, "loss-scale=dynamic init-scale=65536"},
    {"scale-one", "--loss-scale=1", 0, "loss-scale=1"},
    {"scale-whole", "--loss-scale=128", 0, "loss-scale=128"},
    {"scale-text-number", "--loss-scale=128.0", 0, "loss-scale=128"},
    {"scale-exponent", "--loss-scale=1e3", 0, "loss-scale=1000"},
    {"scale-below-one", "--loss-scale=0.5", 0, "loss-scale=0.5"},
    {"scale-word", "--loss-scale=abc", 2, ""},
    {"scale-word-after", "--loss-scale=128x", 2, ""},
    {"scale-capital", "--loss-scale=Dynamic", 2, ""},
    {"scale-empty", "--loss-scale=", 2, ""},
    {"scale-zero", "--loss-scale=0", 2, ""},
    {"scale-negative", "--loss-scale=-128", 2, ""},
    {"scale-inf", "--loss-scale=inf", 2, ""},
    {"scale-nan", "--loss-scale=nan", 2, ""},
    {"keep-bn-lower", "--keep-batchnorm-fp32=false", 2, ""},
    {"keep-bn-none", "--keep-batchnorm-fp32=None", 2, ""},
    {"keep-bn-number", "--keep-batchnorm-fp32=1", 2, ""},
    {"masters-lower", "--master-weights=true", 2, ""},
    {"masters-none", "--master-weights=None", 2, ""},
    {"masters-number", "--master-weights=0", 2, ""},
};

/* At one level; -1: the options name it. */
static const struct one {
    int level;
    cell cell;
} single[] = {
    {0, {"keep-bn-true", "--keep-batchnorm-fp32=True", 0, "keep-batchnorm-fp32=True"}},
    {0, {"keep-bn-false", "--keep-batchnorm-fp32=False", 0, "opt-level=O0"}},
    {0, {"masters-true", "--master-weights=True", 0, "opt-level=O0"}},
    {0, {"masters-false", "--master-weights=False", 0, "master-weights=False"}},
    {1, {"keep-bn-true", "--keep-batchnorm-fp32=True", 2, ""}},
    {1, {"keep-bn-false", "--keep-batchnorm-fp32=False", 2, ""}},
    {1, {"masters-true", "--master-weights=True", 2, ""}},
    {1, {"masters-false", "--master-weights=False", 2, ""}},
    {2, {"keep-bn-true", "--keep-batchnorm-fp32=True", 0, "keep-batchnorm-fp32=True"}},
    {2, {"keep-bn-false", "--keep-batchnorm-fp32=False", 0, "keep-batchnorm-fp32=False"}},
    {2, {"masters-true", "--master-weights=True", 0, "master-weights=True"}},
    {2, {"masters-false", "--master-weights=False", 0, "master-weights=False"}},
    {3, {"keep-bn-true", "--keep-batchnorm-fp32=True", 0, "keep-batchnorm-fp32=True"}},
    {3, {"keep-bn-false", "--keep-batchnorm-fp32=False", 0, "keep-batchnorm-fp32=False"}},
    {3, {"masters-true", "--master-weights=True", 0, "master-weights=True"}},
    {3, {"masters-false", "--master-weights=False", 0, "master-weights=False"}},
    /* the order of options does not matter, and an override leaves the others alone */
    {3,
     {"all-three", "--keep-batchnorm-fp32=True --master-weights=True --loss-scale=dynamic", 0,
      "keep-batchnorm-fp32=True master-weights=True loss-scale=dynamic"}},
    {2,
     {"keep-bn-false-alone", "--keep-batchnorm-fp32=False", 0,
      "master-weights=True loss-scale=dynamic"}},
    /* bf16: dynamic scaling only where it is asked for */
    {1, {"bf16", "--half=bf16", 0, "half=bf16 loss-scale=1"}},
    {2, {"bf16", "--half=bf16", 0, "half=bf16 loss-scale=1 master-weights=True"}},
    {3, {"bf16", "--half=bf16", 0, "half=bf16 loss-scale=1 master-weights=False"}},
    {1, {"bf16-dynamic", "--half=bf16 --loss-scale=dynamic", 0, "loss-scale=dynamic"}},
    {2, {"bf16-dynamic", "--half=bf16 --loss-scale=dynamic", 0, "loss-scale=dynamic"}},
    {2, {"half-fp8", "--half=fp8", 2, ""}},
    /* limits of the dynamic scale */
    {2, {"limit-max-at-start", "--max-loss-scale=1024", 0, "loss-scale=dynamic init-scale=1024"}},
    {2, {"limit-min-at-start", "--min-loss-scale=131072", 0, "init-scale=131072"}},
    {2, {"limit-crossed", "--min-loss-scale=1024 --max-loss-scale=512", 2, ""}},
    {2, {"limit-max-zero", "--max-loss-scale=0", 2, ""}},
    {2, {"limit-min-negative", "--min-loss-scale=-1", 2, ""}},
    {2, {"limit-max-inf", "--max-loss-scale=inf", 2, ""}},
    {2, {"limit-init-zero", "--init-scale=0", 2, ""}},
    {2, {"limit-init-word", "--init-scale=big", 2, ""}},
    {2, {"limit-interval-zero", "--growth-interval=0", 2, ""}},
    {2, {"limit-interval-broken", "--growth-interval=1.5", 2, ""}},
    {2,
     {"limit-interval", "--growth-interval=7 --init-scale=8", 0, "growth-interval=7 init-scale=8"}},
    /* other refusals of the command line */
    {-1, {"level.zero-one", "--opt-level=01", 2, ""}},
    {-1, {"level.o4", "--opt-level=O4", 2, ""}},
    {-1, {"level.lower", "--opt-level=o1", 2, ""}},
    {-1, {"level.empty", "--opt-level=", 2, ""}},
    {0, {"arch.unknown", "--arch=resnet19", 2, ""}},
    {0, {"batch.zero", "--batch-size=0", 2, ""}},
    {0, {"data.missing", "--data=/nonexistent/images", 2, ""}},
};

/* The options in force as words: True and False, numbers without needless digits. */
static void value_text(const cJSON *value, char *text, int bytes)
{
    if (cJSON_IsBool(value)) {
        ls_text_put(text, (size_t)bytes, "%s", cJSON_IsTrue(value) ? "True" : "False");
    } else if (cJSON_IsNumber(value)) {
        ls_text_put(text, (size_t)bytes, "%.9g", value->valuedouble);
    } else if (cJSON_IsString(value)) {
        char *end;
        double number = strtod(value->valuestring, &end);
        bool numeric = end != value->valuestring && *end == '\0';
        ls_text_put(text, (size_t)bytes, "%s", value->valuestring);
        if (numeric) {
            ls_text_put(text, (size_t)bytes, "%.9g", number);
        }
    } else {
        ls_text_put(text, (size_t)bytes, "nothing");
    }
}

/* An event names options with hyphens or underscores. */
static const cJSON *find_option(const cJSON *options, const char *name)
{
    LS_TEXT(other, 64, "%s", name);
    for (char *c = other; *c != '\0'; c++) {
        *c = *c == '-' ? '_' : *c;
    }
    const cJSON *found = ls_json_get(options, name);
    return found != NULL ? found : ls_json_get(options, other);
}

/* Returns how many of the options the start event reports. */
static int judge_effect(const ls_record *job, const char *effect, ls_verdict *out)
{
    char copy[200], *rest = NULL;
    int reported = 0; /* a subject may leave out what it does not offer */
    const cJSON *options = ls_json_get(job->rank[0].start, "options");
    if (options == NULL) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the start event names no options");
        return 0;
    }
    ls_text_put(copy, sizeof copy, "%s", effect);
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *equals = strchr(word, '='), seen[64];
        *equals = '\0';
        const cJSON *value = find_option(options, word);
        value_text(value, seen, (int)sizeof seen);
        reported += value != NULL;
        if (value != NULL && strcmp(seen, equals + 1) != 0) {
            ls_verdict_fail(out, "%s is %s, expected %s", word, seen, equals + 1);
        }
    }
    if (reported == 0 && effect[0] != '\0') {
        ls_verdict_set(out, LS_UNSUPPORTED, "the start event has none of: %s", effect);
    }
    return reported;
}

static void judge_cell(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const cell *tried = row->data;
    int want = tried->code;
    int code = job->state == LS_RECORD_DONE ? 0 : job->code;
    char line[240];
    int compared = 1; /* the exit code */
    ls_record_last_line(job, 0, line, (int)sizeof line);
    if (job->state == LS_RECORD_KILLED || job->state == LS_RECORD_TIMED_OUT || code != want) {
        ls_verdict_fail(out, "%s: exit code %d, expected %d: %s", tried->options, code, want, line);
        return;
    }
    if (want == 0) {
        compared += judge_effect(job, tried->effect, out);
    } else if (job->rank[0].has_events) {
        ls_verdict_fail(out, "%s was refused, but rank0.jsonl was written", tried->options);
    } else if (line[0] == '\0') {
        ls_verdict_fail(out, "%s was refused without a message", tried->options);
    }
    ls_verdict_pass(out, compared, "%s: %s", tried->options,
                    want == 0 ? "accepted, in force" : line);
}

/* A name with a dot stands for itself, another behind the level. */
static void add(const ls_case_settings *settings, ls_case_list *list, int level, const cell *tried)
{
    static const char *const levels[] = {"O0", "O1", "O2", "O3"};
    char prefix[8] = "";
    if (strchr(tried->name, '.') == NULL) {
        ls_text_put(prefix, sizeof prefix, "o%d.", level);
    }
    ls_rows_format(list, settings,
                   &(ls_row){.requirement = tried->code == 0 ? "O2" : "O4",
                             .judge = judge_cell,
                             .data = tried,
                             .judges_outcome = true},
                   "opt_levels.override.%s%s: resnet8 %s steps=1 scale= %s", prefix, tried->name,
                   level < 0 ? "no-level" : levels[level], tried->options);
}

void ls_opt_levels_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
    for (int level = 0; level < 4; level++) {
        add(settings, list, level, &by_itself[level]);
        for (size_t i = 0; i < sizeof every_level / sizeof *every_level; i++) {
            add(settings, list, level, &every_level[i]);
        }
    }
    for (size_t i = 0; i < sizeof single / sizeof *single; i++) {
        add(settings, list, single[i].level, &single[i].cell);
    }
}
