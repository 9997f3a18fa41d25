/* The acceptance matrix: every opt level with every override and value (numerics.md section 7),
 * what the start event then says is in force, and that a refusal is one line, with nothing written.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "kernels/core/json.h"
#include "suite/cases/rows.h"

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
    char other[64];
    ls_text_put(other, sizeof other, "%s", name);
    for (char *c = other; *c != '\0'; c++) {
        *c = *c == '-' ? '_' : *c;
    }
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(options, name);
    return found != NULL ? found : cJSON_GetObjectItemCaseSensitive(options, other);
}

static void judge_effect(const ls_record *job, const char *effect, ls_verdict *out)
{
    char copy[200], *rest = NULL;
    int reported = 0; /* a subject may leave out what it does not offer */
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(job->rank[0].start, "options");
    if (options == NULL) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the start event names no options");
        return;
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
}

static void judge_cell(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const cell *tried = row->data;
    int want = tried->code;
    int code = job->state == LS_RECORD_DONE ? 0 : job->code;
    char line[240];
    ls_record_last_line(job, 0, line, (int)sizeof line);
    if (job->state == LS_RECORD_KILLED || job->state == LS_RECORD_TIMED_OUT || code != want) {
        ls_verdict_fail(out, "%s: exit code %d, expected %d: %s", tried->options, code, want, line);
        return;
    }
    if (want == 0) {
        judge_effect(job, tried->effect, out);
    } else if (job->rank[0].has_events) {
        ls_verdict_fail(out, "%s was refused, but rank0.jsonl was written", tried->options);
    } else if (line[0] == '\0') {
        ls_verdict_fail(out, "%s was refused without a message", tried->options);
    }
    ls_verdict_pass(out, "%s: %s", tried->options, want == 0 ? "accepted, in force" : line);
}

/* A name with a dot stands for itself, another behind the level. */
static void add(const ls_case_settings *settings, ls_case_list *list, int level, const cell *tried)
{
    static const char *const levels[] = {"O0", "O1", "O2", "O3"};
    char prefix[8] = "";
    if (strchr(tried->name, '.') == NULL) {
        ls_text_put(prefix, sizeof prefix, "o%d.", level);
    }
    ls_rows_format(
        list, settings,
        &(ls_row){.requirement = "O2", .judge = judge_cell, .data = tried, .judges_outcome = true},
        "opt_levels.override.%s%s: resnet8 %s steps=1 scale= %s", prefix, tried->name,
        level < 0 ? "no-level" : levels[level], tried->options);
}

void ls_opt_levels_matrix_cases(const ls_case_settings *settings, ls_case_list *list)
{
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
