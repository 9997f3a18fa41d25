#include "judges.h"

#include <string.h>
#include <unistd.h>

#include "kernels/core/list.h"

/* The value of "--name V" or "--name=V" in the further options; NULL without it. */
static const char *option(const ls_spec *spec, const char *name)
{
    const char *at = strstr(spec->extra, name);
    return at == NULL ? NULL : at + strlen(name);
}

void ls_judge_gradients_facts(const ls_spec *spec, ls_compare_facts *facts)
{
    memset(facts, 0, sizeof *facts);
    facts->arch = spec->arch[0] == '\0' ? NULL : spec->arch; /* else the dump's */
    facts->half = spec->half;
    const char *group = option(spec, "--sync-bn-group=");
    facts->sync_bn = spec->sync_bn || option(spec, "--sync-bn") != NULL;
    facts->sync_bn_group = group != NULL ? atoi(group) : 0;
    facts->dialect_torch = strcmp(spec->dialect, "torch") == 0;
    const char *predivide = option(spec, "--predivide="), *half = option(spec, "--compress=");
    half = half != NULL ? half : option(spec, "--comm-hook=");
    facts->predivide = predivide != NULL ? atof(predivide) : 0;
    facts->reduce = option(spec, "--allreduce-fp32") != NULL        ? "fp32"
                    : half != NULL && strncmp(half, "fp16", 4) == 0 ? "fp16"
                    : half != NULL && strncmp(half, "bf16", 4) == 0 ? "bf16"
                                                                    : NULL;
    facts->divisor = option(spec, "--join=initial") != NULL ? spec->world : 0;
    facts->reduces_each = option(spec, "--no-sync=False") != NULL;
    const char *buffers = option(spec, "--broadcast-buffers=");
    facts->sends_buffers =
        buffers != NULL ? strncmp(buffers, "True", 4) == 0 : facts->dialect_torch;
    facts->joins = option(spec, "--join=") != NULL;
    facts->nesterov = option(spec, "--nesterov") != NULL;
    facts->fused = spec->fuse || option(spec, "--fuse") != NULL;
}

/* Whether the rank's data had ended before that step (--join): then it has no gradient and writes
 * no dump. */
static bool has_joined(const ls_record *job, int rank, int step)
{
    const ls_record_step *event = ls_record_find_step(&job->rank[rank], step);
    return event != NULL && event->joined;
}

/* The ranks that had a batch: rank[returned], of job->world. */
static int list_active(const ls_record *job, int step, int *rank)
{
    int count = 0;
    for (int k = 0; k < job->world; k++) {
        if (!has_joined(job, k, step)) {
            rank[count++] = k;
        }
    }
    return count;
}

static ls_status compare_step(ls_compare_facts *facts, const ls_record *job, int step,
                              ls_compare_verdict *out)
{
    char **path = ls_list_make((size_t)job->world, sizeof *path);
    int *rank = ls_list_make((size_t)job->world, sizeof *rank);
    int count = list_active(job, step, rank);
    for (int k = 0; k < count; k++) {
        path[k] = ls_list_make(1, 700);
        ls_dumps_path(job, step, rank[k], path[k], 700);
    }
    facts->world = job->world;
    facts->rank = rank;
    LS_TEXT(json, 700, "%s/compare.json", job->directory);
    ls_status status = count == 0
                           ? LS_ERR_USAGE
                           : ls_compare_step(facts, count, (const char *const *)path, json, out);
    for (int k = 0; k < count; k++) {
        free(path[k]);
    }
    free(path);
    free(rank);
    facts->rank = NULL;
    return status;
}

/* False, and FAIL set, if a rank that had a batch wrote no dump of that step. */
static bool dumped(const ls_record *job, int step, ls_verdict *out)
{
    for (int k = 0; k < job->world; k++) {
        char path[700];
        ls_dumps_path(job, step, k, path, sizeof path);
        if (access(path, R_OK) != 0 && !has_joined(job, k, step)) {
            ls_verdict_fail(out, "rank=%d wrote no dump/step%06d.rank%d.safetensors", k, step, k);
            return false;
        }
    }
    return true;
}

/* Names the dump that is no whole file; the reader of a comparison only logs it. */
static void explain_unread(const ls_record *job, int step, ls_status status, ls_verdict *out)
{
    char path[700], why[LS_DUMPFILE_WHY] = "";
    ls_verdict_code code = status == LS_ERR_USAGE ? LS_FAIL : LS_INFRA;
    for (int k = 0; k < job->world; k++) {
        ls_dumpfile *file = NULL;
        ls_dumps_path(job, step, k, path, sizeof path);
        if (!has_joined(job, k, step) && ls_dumpfile_try(path, why, &file) != LS_OK) {
            const char *name = strstr(why, "dump/step");
            ls_verdict_set(out, code, "rank=%d step %d: %s", k, step, name != NULL ? name : why);
        }
        ls_dumpfile_close(file);
    }
    ls_verdict_set(out, code, "step %d: its dumps are whole files, but do not fit each other",
                   step);
}

static void judge_step(const ls_case *row, const ls_record *job, int step, ls_verdict *out)
{
    if (!dumped(job, step, out)) {
        return;
    }
    ls_compare_facts facts;
    char cache[700];
    ls_judge_gradients_facts(&row->job[0], &facts);
    facts.cache = ls_dumps_cache(job, cache, sizeof cache);
    facts.step = step;
    ls_compare_verdict verdict = {0};
    ls_status status = compare_step(&facts, job, step, &verdict);
    if (status != LS_OK) {
        explain_unread(job, step, status, out);
        return;
    }
    int level = row->job[0].level;
    if (!out->measured || verdict.error > out->value) {
        LS_TEXT(from, 120, "%g x what %s costs at best, on the subject's branches",
                ls_compare_bounds_of(level)[LS_COMPARE_WHOLE].factor,
                level == 0 ? "f32 storage" : "the level");
        ls_verdict_measured(out, verdict.error, verdict.limit, "relative", from);
    }
    if (out->code == LS_PASS) { /* a later step's mistakes may follow from this one's */
        ls_verdict_cause(out, "%s", verdict.cause);
    }
    if (verdict.code == LS_COMPARE_WEAK && out->code == LS_PASS && out->cause[0] == '\0' &&
        strstr(verdict.evidence, "half was not in use") != NULL) {
        ls_verdict_cause(out, "products or activations stay f32: the level is claimed, not used");
    }
    if (verdict.code != LS_COMPARE_PASS) {
        ls_verdict_set(out, verdict.code == LS_COMPARE_WEAK ? LS_WEAK : LS_FAIL, "step %d: %s",
                       step, verdict.evidence);
    } else
        ls_verdict_pass(out, verdict.elements, "%s", verdict.evidence);
}

void ls_judge_gradients_follow(const ls_record *job, int64_t step, ls_verdict *out)
{
    char path[700];
    ls_dumps_path(job, step - 1, 0, path, sizeof path);
    if (access(path, R_OK) != 0) {
        return;
    }
    ls_dumpfile *former = ls_dumps_open(job, step - 1, 0, out);
    ls_dumpfile *file = former == NULL ? NULL : ls_dumps_open(job, step, 0, out);
    int at = 0;
    for (const char *name; file != NULL && (name = ls_dumps_next_param(file, &at)) != NULL;) {
        const ls_dumpfile_entry *before = ls_compare_optim_before(file, name);
        const ls_dumpfile_entry *next = ls_dumpfile_findf(former, "next/%s", name);
        bool comparable = next != NULL && before != NULL && strcmp(next->dtype, before->dtype) == 0;
        if (comparable && !ls_dumpfile_equal(next, before)) {
            ls_verdict_fail(out, "step %d begins with another %s than step %d ended with",
                            (int)step, name, (int)step - 1);
        }
    }
    ls_dumpfile_close(former);
    ls_dumpfile_close(file);
}

void ls_judge_gradients(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    LS_TEXT(steps, sizeof row->job[0].dump_steps, "%s", row->job[0].dump_steps);
    char *rest = NULL;
    if (steps[0] == '\0') {
        ls_verdict_set(out, LS_WEAK, "no step was dumped");
    }
    for (char *word = strtok_r(steps, ",", &rest); word != NULL;
         word = strtok_r(NULL, ",", &rest)) {
        judge_step(row, job, atoi(word), out);
        if (ls_verdict_good(out->code) && !has_joined(job, 0, atoi(word))) {
            ls_judge_gradients_follow(job, atoi(word), out);
        }
        for (int k = 0; k < job->world && ls_verdict_good(out->code); k++) {
            if (has_joined(job, k, atoi(word))) {
                continue;
            }
            ls_dumpfile *file = ls_dumps_open(job, atoi(word), k, out);
            if (file != NULL) {
                ls_dumps_match(&row->job[0], file, atoi(word), k, job, out);
            }
            ls_dumpfile_close(file);
        }
    }
}
