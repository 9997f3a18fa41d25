#include "judges.h"

#include <string.h>

/* Compares the options that the start event reports with those of the command. A subject may omit
 * any. */
static void check_options(const ls_record_rank *rank, int k, const ls_spec *spec, ls_verdict *out)
{
    const cJSON *options = ls_json_get(rank->start, "options");
    const char *level = ls_json_string(options, "opt-level", "");
    LS_TEXT(asked, 8, "O%d", spec->level);
    if (spec->level >= 0 && level[0] != '\0' && strcmp(level, asked) != 0) {
        ls_verdict_fail(out, "rank=%d was asked for opt level %s and says that it ran %s", k, asked,
                        level);
    }
    const char *arch = ls_json_string(options, "arch", "");
    if (arch[0] != '\0' && strcmp(arch, spec->arch) != 0) {
        ls_verdict_fail(out, "rank=%d was asked for %s and says that it trained %s", k, spec->arch,
                        arch);
    }
}

/* The ranks of a job are given the same options; those that a subject must accept are compared, as
 * far as both ranks report them. */
static void check_alike(const ls_record *job, int k, ls_verdict *out)
{
    static const char *const names[] = {"arch",      "image-size",  "num-classes", "steps",
                                        "opt-level", "half",        "loss-scale",  "lr",
                                        "momentum",  "weight-decay"};
    const cJSON *first = ls_json_get(job->rank[0].start, "options");
    const cJSON *own = ls_json_get(job->rank[k].start, "options");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const cJSON *a = ls_json_get(first, names[i]);
        const cJSON *b = ls_json_get(own, names[i]);
        if (a != NULL && b != NULL && !cJSON_Compare(a, b, true)) {
            ls_verdict_fail(out, "rank=%d was started with another --%s than rank 0", k, names[i]);
        }
    }
}

/* A run that resumed nothing begins with step 1. */
static void check_first(const ls_record_rank *rank, int k, const ls_spec *spec, ls_verdict *out)
{
    const cJSON *options = ls_json_get(rank->start, "options");
    bool fresh = spec != NULL ? strstr(spec->extra, "--resume") == NULL
                              : cJSON_IsNull(ls_json_get(options, "resume"));
    if (fresh && rank->step_count > 0 && rank->step[0].step != 1) {
        ls_verdict_fail(out, "rank=%d resumed nothing, but its first step is %d", k,
                        (int)rank->step[0].step);
    }
}

/* Units for half types that the start event claims, where it lists the implementations of the
 * products: one of them must be for these units, by its name. */
static void check_units(const ls_record_rank *rank, int k, ls_verdict *out)
{
    static const struct {
        const char *units, *part; /* of an implementation's name */
    } known[] = {{"on AMX-FP16", "amx_fp16"},
                 {"on AMX", "amx"},
                 {"on AVX512-FP16", "core_fp16"},
                 {"on AVX512-BF16", "core_bf16"}};
    const cJSON *options = ls_json_get(rank->start, "options");
    const char *claim = ls_json_string(rank->start, "half_products", "");
    const char *plan = ls_json_string(rank->start, "fusions", "");
    bool half = strcmp(ls_json_string(options, "opt-level", "O0"), "O0") != 0;
    for (size_t i = 0; half && plan[0] != '\0' && i < sizeof known / sizeof *known; i++) {
        const char *at = strstr(claim, known[i].units);
        bool whole = at != NULL && at[strlen(known[i].units)] != '-';
        if (whole && strstr(plan, known[i].part) == NULL) {
            ls_verdict_fail(out,
                            "rank=%d says '%s', but no implementation that it lists is for these "
                            "units (...%s...)",
                            k, claim, known[i].part);
        }
    }
}

/* What a rank's events lack. Where job.json has no exit code of the rank, nothing is known of how
 * it ended: its events may have been removed or cut since, which shows nothing about the subject.
 */
static void lacks(const ls_record *job, int k, ls_verdict *out, const char *what)
{
    bool ended = job->rank[k].code >= 0;
    char line[160], words[220] = "";
    ls_record_last_line(job, k, line, (int)sizeof line);
    if (line[0] != '\0') {
        ls_text_put(words, sizeof words, "; its last words: '%s'", line);
    }
    ls_verdict_set(out, ended ? LS_FAIL : LS_WEAK, "rank=%d %s%s%s%s", k,
                   ended ? "left with code 0, but " : "", what,
                   ended ? "" : ", and no job.json says how it ended", words);
}

static void check_rank(const ls_record *job, int k, const ls_spec *spec, ls_verdict *out)
{
    const ls_record_rank *rank = &job->rank[k];
    char what[120];
    if (!rank->has_events || rank->start == NULL) {
        lacks(job, k, out, rank->has_events ? "wrote no start event" : "wrote no events");
        return;
    }
    int64_t last = rank->step_count > 0 ? rank->step[rank->step_count - 1].step : 0;
    int64_t asked = spec == NULL ? last : spec->warmup_steps + spec->steps;
    bool by_epochs = spec != NULL && strstr(spec->extra, "--epochs") != NULL;
    if (last == 0 || (last != asked && !by_epochs)) {
        ls_text_put(what, sizeof what, "its last step is %d of %d", (int)last, (int)asked);
        lacks(job, k, out, spec == NULL ? "wrote no step event" : what);
        return;
    }
    if (!rank->ended) {
        ls_text_put(what, sizeof what, "its events stop after step %d without an end event",
                    (int)last);
        lacks(job, k, out, what);
    }
    if (rank->end_code > 0) {
        ls_verdict_fail(out, "rank=%d ended with code %d, as its end event says", k,
                        rank->end_code);
    }
    check_first(rank, k, spec, out);
    check_units(rank, k, out);
    bool alone = spec != NULL && spec->wrap == LS_WRAP_EACH; /* each rank has its own options */
    int there = alone ? 1 : job->world;
    int world = ls_json_int(rank->start, "world", there);
    if (world != there) {
        ls_verdict_fail(out, "rank=%d says that it is one of %d ranks: there are %d", k, world,
                        there);
    }
    if (!alone && ls_json_int(rank->start, "rank", k) != k) {
        ls_verdict_fail(out, "rank%d.jsonl says that it is of rank %d", k,
                        ls_json_int(rank->start, "rank", k));
    }
    if (!alone) {
        check_alike(job, k, out);
    }
    if (spec != NULL && !alone) {
        check_options(rank, k, spec, out);
    }
}

bool ls_protocol_breaks(const ls_record *job, const ls_spec *spec, ls_verdict *out)
{
    for (int k = 0; k < job->world; k++) {
        check_rank(job, k, spec, out);
    }
    return !ls_verdict_good(out->code);
}
