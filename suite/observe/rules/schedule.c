/* Whether the rate of each step is the one that the schedule gives which the job says it follows:
 * closed forms of torch.optim.lr_scheduler, ticking once per step, skipped or not. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suite/observe/trace/pass.h"
#include "rules.h"

static const ls_tol same =
    LS_TOL(0x1p-22, "the rate is rounded to f32 once, after a formula in FP64 whose order of "
                    "operations may differ");

enum { LENGTHS = 16 };

/* [warmup:LENGTH[:START],]NAME[:...] as protocol.md has it; lengths in steps. */
typedef struct schedule {
    const char *name;
    double warmup, start; /* 0: none */
    int count;
    double length[LENGTHS], last; /* last: gamma or power */
} schedule;

/* "30" epochs or "500s" steps. */
static bool read_length(const char **at, double per_epoch, double *out)
{
    char *end;
    double value = strtod(*at, &end);
    if (end == *at) {
        return false;
    }
    bool steps = *end == 's';
    *out = steps ? value : value * per_epoch;
    *at = end + steps;
    return *out > 0;
}

static bool read_number(const char **at, double *out)
{
    char *end;
    if (**at != ':') {
        return false;
    }
    *out = strtod(*at + 1, &end);
    bool good = end != *at + 1;
    *at = end;
    return good;
}

static bool skip_word(const char **at, const char *word)
{
    size_t length = strlen(word);
    bool is = strncmp(*at, word, length) == 0;
    *at += is ? length : 0;
    return is;
}

/* False for another text, or where it counts epochs whose length is not known (NaN). */
static bool read_schedule(const char *text, double per_epoch, schedule *s)
{
    static const char *const names[] = {"constant", "multistep", "step", "cosine", "polynomial"};
    const char *at = text;
    *s = (schedule){.start = 0.01, .last = 1};
    if (skip_word(&at, "warmup:")) {
        if (!read_length(&at, per_epoch, &s->warmup)) {
            return false;
        }
        (void)read_number(&at, &s->start);
        if (!skip_word(&at, ",")) {
            return false;
        }
    }
    for (size_t i = 0; i < sizeof names / sizeof *names && s->name == NULL; i++) {
        s->name = skip_word(&at, names[i]) ? names[i] : NULL;
    }
    if (s->name == NULL || strcmp(s->name, "constant") == 0) {
        return s->name != NULL;
    }
    if (!skip_word(&at, ":")) {
        return false;
    }
    do {
        if (s->count == LENGTHS || !read_length(&at, per_epoch, &s->length[s->count++])) {
            return false;
        }
    } while (skip_word(&at, ","));
    (void)read_number(&at, &s->last);
    return *at == '\0';
}

static double rate_of(const schedule *s, double base, int64_t step)
{
    double t = (double)(step - 1);
    if (s->warmup > 0 && t < s->warmup) {
        return base * (s->start + (1 - s->start) * t / s->warmup);
    }
    t -= s->warmup;
    double length = s->count > 0 ? s->length[0] : 0;
    if (strcmp(s->name, "step") == 0) {
        return base * pow(s->last, floor(t / length));
    }
    if (strcmp(s->name, "multistep") == 0) {
        int reached = 0;
        while (reached < s->count && t >= s->length[reached]) {
            reached++;
        }
        return base * pow(s->last, reached);
    }
    if (strcmp(s->name, "cosine") == 0) {
        return t >= length ? 0 : base * (1 + cos(M_PI * t / length)) / 2;
    }
    if (strcmp(s->name, "polynomial") == 0) {
        return t >= length ? 0 : base * pow(1 - t / length, s->last);
    }
    return base;
}

/* Of the data that was trained on, from a pass that went through all of it; NaN: not known. */
static double steps_per_epoch(const ls_observe_rank *rank, const cJSON *options)
{
    const ls_event *data;
    double images =
        ls_json_number(options, "batch-size", NAN) * ls_json_number(options, "accumulate", 1);
    ls_event_each(data, ls_trace_events(rank, data)) {
        if (ls_pass_is_trained(data) && ls_event_bool(data, whole, false) &&
            ls_event_number(data, length, 0) > 0) {
            return ls_event_number(data, count, NAN) / images;
        }
    }
    return NAN;
}

/* A known way to be wrong that gives the rate of this step, or "". */
static const char *explain(const schedule *s, double base, int world, const ls_observe_step *step,
                           int skipped)
{
    double got = step->step->lr;
    int64_t n = step->step->step;
    const struct {
        double rate;
        const char *cause;
    } ways[] = {
        {rate_of(s, base, n + 1), "the schedule counts steps from 1, not from 0"},
        {skipped > 0 ? rate_of(s, base, n - skipped) : NAN,
         "the schedule does not tick in skipped steps"},
        {n > 1 ? rate_of(s, base, n - 1) : NAN, "the schedule ticks one step too late"},
        {rate_of(s, base / world, n), "linear scaling takes one rank's batch, not all ranks'"},
        {rate_of(s, base, 1), "the rate of the first step"},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (fabs(ways[i].rate - got) <= same.value * fabs(got)) {
            return ways[i].cause;
        }
    }
    return "";
}

static void judge_rank(const ls_observe_trace *trace, int rank, const schedule *s, double base,
                       int *compared, ls_observe_finding *out)
{
    int skipped = 0;
    ls_trace_each_step(step, &trace->rank[rank]) {
        double wanted = rate_of(s, base, step->step->step), got = step->step->lr;
        if (isnan(got)) {
            continue;
        }
        ++*compared;
        if (!(fabs(got - wanted) <= same.value * fmax(fabs(wanted), base * 0x1p-10))) {
            ls_finding_set(out, LS_FAIL, "--schedule",
                           explain(s, base, trace->world, step, skipped),
                           "check the schedule's formula and its count of steps",
                           "rank %d, step %lld: the rate is %.9g, by the schedule %.9g", rank,
                           (long long)step->step->step, got, wanted);
            return;
        }
        skipped += step->step->skipped;
    }
}

void ls_rules_optimizer_schedule(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_observe_rank *first = trace->world > 0 ? &trace->rank[0] : NULL;
    const cJSON *options =
        first == NULL ? NULL : cJSON_GetObjectItemCaseSensitive(first->record->start, "options");
    const char *text = ls_json_string(options, "schedule", "");
    schedule s;
    int compared = 0;
    if (trace->attached || text[0] == '\0') {
        ls_verdict_set(&out->verdict, LS_SKIP, "%s",
                       trace->attached ? "optimizer.rate compares the schedule's own values"
                                       : "no schedule is reported");
        return;
    }
    bool even = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(options, "batch-sizes")) == 0;
    if (!even || !read_schedule(text, steps_per_epoch(first, options), &s)) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "schedule %s: its formula, or the number of steps of an epoch, is not known",
                       text);
        return;
    }
    /* Linear scaling: per 256 images of a step of all ranks. */
    double base = ls_json_number(options, "lr", NAN);
    if (strcmp(ls_json_string(options, "lr-scaling", "none"), "linear") == 0) {
        base *= ls_json_number(options, "batch-size", NAN) *
                ls_json_number(options, "accumulate", 1) * trace->world / 256;
    }
    for (int k = 0; k < trace->world; k++) {
        judge_rank(trace, k, &s, base, &compared, out);
    }
    ls_finding_close(out, compared, LS_UNSUPPORTED, "no step reports a rate",
                     "%d rates are those of %s", compared, text);
}
