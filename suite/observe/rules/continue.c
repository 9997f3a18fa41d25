/* Whether a job that goes on from a file holds what the job that wrote it held then, and takes the
 * data from where that one stopped. Both jobs are needed: ls_observe_continue. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/digest.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "suite/observe/trace/pass.h"
#include "rules.h"
#include "suite/observe/trace/trace.h"

/* What the writer held when it saved the file, and what the reader holds after it has read it. */
typedef struct hand_over {
    const cJSON *save, *restore;
    int rank;
} hand_over;

/* The last one: a file of that name may have been written before. */
static const cJSON *find_save(const ls_observe_rank *rank, int64_t number)
{
    const cJSON *save, *found = NULL;
    cJSON_ArrayForEach(save, rank->save)
    {
        found = ls_json_integer(save, "step", -1) == number ? save : found;
    }
    return found;
}

/* The step after which the file was saved, by the rank that knows its whole path; -1: by none. */
static int64_t saved_step(const ls_observe_trace *trace)
{
    const char *path = ls_json_string(cJSON_GetArrayItem(trace->rank[0].load, 0), "path", "");
    const cJSON *save;
    int64_t step = -1;
    for (int k = 0; k < trace->before->world; k++) {
        cJSON_ArrayForEach(save, trace->before->rank[k].save)
        {
            if (strcmp(ls_json_string(save, "path", ""), path) == 0) {
                step = ls_json_integer(save, "step", -1);
            }
        }
    }
    return step;
}

static const cJSON *find_restore(const ls_observe_rank *rank)
{
    const cJSON *restore;
    cJSON_ArrayForEach(restore, rank->restore)
    {
        if (strcmp(ls_json_string(restore, "what", ""), "run") == 0) {
            return restore;
        }
    }
    return NULL;
}

/* ---- state ----------------------------------------------------------------------------------- */

static const struct {
    const char *member, *words;
} parts[] = {{"param", "parameters"},
             {"master", "f32 masters"},
             {"state", "the optimizer's state"},
             {"scaler", "loss scale, its count of clean steps, or the count of steps"},
             {"buffer", "running statistics"}};

/* At another number of ranks each has one rank's buffers. */
static void compare_state(const ls_observe_trace *trace, const hand_over *h, int *compared,
                          ls_observe_finding *out)
{
    const cJSON *a = cJSON_GetObjectItemCaseSensitive(h->save, "digest");
    const cJSON *b = cJSON_GetObjectItemCaseSensitive(h->restore, "digest");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *had = ls_json_string(a, parts[i].member, "");
        const char *has = ls_json_string(b, parts[i].member, "");
        bool own = strcmp(parts[i].member, "buffer") == 0 && trace->world != trace->before->world;
        if (had[0] == '\0' || own) {
            continue;
        }
        ++*compared;
        if (strcmp(had, has) != 0) {
            ls_verdict_fail(
                &out->verdict, "rank %d goes on after step %lld with other %s than were saved",
                h->rank, (long long)ls_json_integer(h->restore, "step", 0), parts[i].words);
            ls_verdict_cause(&out->verdict, "not saved, or not restored: %s", parts[i].words);
            ls_finding_blame(out, ls_json_string(h->restore, "at", ""),
                             "save and restore them with the parameters");
            return;
        }
    }
}

static bool same(const cJSON *a, const cJSON *b, const char *part, const char *member)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(a, part);
    const cJSON *y = cJSON_GetObjectItemCaseSensitive(b, part);
    return x == NULL || y == NULL || ls_json_number(x, member, 0) == ls_json_number(y, member, 0);
}

/* Sums of an epoch that was begun, and the best score so far. */
static void compare_counts(const hand_over *h, ls_observe_finding *out)
{
    if (!same(h->save, h->restore, "epoch", "images") ||
        !same(h->save, h->restore, "epoch", "top1")) {
        ls_verdict_fail(&out->verdict,
                        "rank %d goes on with other sums of the epoch that was begun than were "
                        "saved",
                        h->rank);
        ls_verdict_cause(&out->verdict, "the sums of a begun epoch were not restored");
    }
    if (!same(h->save, h->restore, "best", "images") ||
        !same(h->save, h->restore, "best", "top1")) {
        ls_verdict_fail(&out->verdict, "rank %d goes on with another best score than was saved",
                        h->rank);
        ls_verdict_cause(&out->verdict, "the best score so far was not restored: the first "
                                        "validation counts as the best");
    }
    ls_finding_blame(out, ls_json_string(h->restore, "at", ""), "save and restore them");
}

/* ---- steps and data -------------------------------------------------------------------------- */

static void compare_steps(const ls_observe_trace *trace, const hand_over *h,
                          ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[h->rank];
    int64_t wanted = ls_json_integer(h->save, "step", -1) + 1;
    if (rank->step_count > 0 && rank->step[0].step->step != wanted) {
        ls_verdict_fail(&out->verdict, "rank %d goes on with step %lld, the file is of step %lld",
                        h->rank, (long long)rank->step[0].step->step, (long long)wanted - 1);
        ls_verdict_cause(&out->verdict, "the saved step is done again, or one is left out");
        ls_finding_blame(out, ls_json_string(h->restore, "at", ""), "go on with the step after it");
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The indices of a pass, sorted. */
static double *sorted_indices(const cJSON *data, int *count)
{
    const cJSON *kept = cJSON_GetObjectItemCaseSensitive(data, "kept"), *one;
    double *list = ls_list_make((size_t)cJSON_GetArraySize(kept) + 1, sizeof *list);
    *count = 0;
    cJSON_ArrayForEach(one, kept)
    {
        list[(*count)++] = one->valuedouble;
    }
    qsort(list, (size_t)*count, sizeof *list, by_value);
    return list;
}

static int count_common(const cJSON *a, const cJSON *b, int *all)
{
    int x_count, y_count, common = 0;
    double *x = sorted_indices(a, &x_count), *y = sorted_indices(b, &y_count);
    for (int i = 0, j = 0; i < x_count && j < y_count;) {
        common += x[i] == y[j];
        bool first = x[i] <= y[j], second = y[j] <= x[i];
        i += first;
        j += second;
    }
    *all = y_count;
    free(x);
    free(y);
    return common;
}

/* Trained passes of one epoch of the data: what was drawn before is not drawn again, but for what
 * the writer trained on after it had saved, and the few that pad the data set. */
static void compare_data(const ls_observe_trace *trace, const hand_over *h, ls_observe_finding *out)
{
    const cJSON *earlier, *later = cJSON_GetArrayItem(trace->rank[h->rank].data, 0);
    int64_t saved = ls_json_integer(h->save, "step", -1);
    cJSON_ArrayForEach(earlier, trace->before->rank[h->rank].data)
    {
        int all = 0;
        if (!ls_pass_is_trained(earlier) || !ls_pass_is_trained(later) ||
            ls_json_number(earlier, "sampler_epoch", -1) !=
                ls_json_number(later, "sampler_epoch", -2) ||
            !(ls_pass_last_step(earlier) <= (double)saved)) {
            continue;
        }
        int common = count_common(earlier, later, &all);
        if (common > trace->world && common * 2 > all) {
            ls_verdict_fail(&out->verdict,
                            "rank %d draws %d of %d samples again that were drawn in this epoch "
                            "before the file was saved",
                            h->rank, common, all);
            ls_verdict_cause(&out->verdict, "the place in the data was not restored");
            ls_finding_blame(out, ls_json_string(later, "at", ""),
                             "skip the batches of the epoch that were trained on");
        }
    }
}

/* ---- checkpoint.held ------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const ls_dumpfile_entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* FNV-1a 64 over the tensors of a group in order of name: protocol.md, `digest`. */
static bool digest_of(const ls_dumpfile *file, const char *group, uint64_t *out)
{
    size_t length = strlen(group);
    int count = 0;
    const ls_dumpfile_entry **list =
        ls_list_make((size_t)ls_dumpfile_count(file) + 1, sizeof(ls_dumpfile_entry *));
    for (int i = 0; i < ls_dumpfile_count(file); i++) {
        const ls_dumpfile_entry *entry = ls_dumpfile_at(file, i);
        if (strncmp(entry->name, group, length) == 0 && entry->name[length] == '/') {
            list[count++] = entry;
        }
    }
    qsort(list, (size_t)count, sizeof(ls_dumpfile_entry *), by_name);
    *out = LS_DIGEST_START;
    for (int i = 0; i < count; i++) {
        *out = ls_digest_update(*out, list[i]->data, (size_t)list[i]->bytes);
    }
    free(list);
    return count > 0;
}

/* Of files that were written more than once the last counts. */
static bool is_replaced(const cJSON *save)
{
    const char *path = ls_json_string(save, "path", "");
    for (const cJSON *later = save->next; later != NULL; later = later->next) {
        if (strcmp(ls_json_string(later, "path", ""), path) == 0) {
            return true;
        }
    }
    return false;
}

static void check_file(const cJSON *event, const char *verb, int *compared, ls_observe_finding *out)
{
    static const char *const groups[] = {"param", "master", "state"};
    const char *path = ls_json_string(event, "path", "");
    const cJSON *digest = cJSON_GetObjectItemCaseSensitive(event, "digest");
    const char *end = strrchr(path, '.');
    ls_dumpfile *file = NULL;
    if (end == NULL || strcmp(end, ".safetensors") != 0 || access(path, R_OK) != 0 ||
        ls_dumpfile_open(path, &file) != LS_OK) {
        return;
    }
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        const char *held = ls_json_string(digest, groups[i], "");
        uint64_t has;
        if (held[0] == '\0' || !digest_of(file, groups[i], &has)) {
            continue;
        }
        ++*compared;
        if (strtoull(held, NULL, 16) != has) {
            ls_verdict_fail(&out->verdict, "%s/ in %s is not what its writer held when it %s it",
                            groups[i], path, verb);
            ls_verdict_cause(&out->verdict,
                             "the file holds other values: rounded ones, or of another step");
        }
    }
    ls_dumpfile_close(file);
}

void ls_rules_checkpoint_held(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    const cJSON *save;
    for (int k = 0; k < trace->world && !trace->attached; k++) {
        cJSON_ArrayForEach(save, trace->rank[k].save)
        {
            if (!is_replaced(save) && k == 0) {
                check_file(save, "wrote", &compared, out);
            }
        }
    }
    if (compared == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no file of the job's that is still there");
    }
    ls_verdict_pass(&out->verdict, compared,
                    "%d groups of tensors in files are those that were held", compared);
}

void ls_rules_checkpoint_continued(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    if (trace->before == NULL || trace->attached) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no job that this one went on from is given");
        return;
    }
    int64_t number = saved_step(trace);
    for (int k = 0; k < trace->world && k < trace->before->world; k++) {
        hand_over h = {.save = find_save(&trace->before->rank[k], number),
                       .restore = find_restore(&trace->rank[k]),
                       .rank = k};
        if (h.save != NULL && h.restore != NULL) {
            compare_state(trace, &h, &compared, out);
            compare_counts(&h, out);
            compare_steps(trace, &h, out);
            compare_data(trace, &h, out);
        }
    }
    if (compared == 0) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "the events do not say what was held when the file was written and read");
    }
    ls_verdict_pass(&out->verdict, compared, "%d groups of tensors are those that were saved",
                    compared);
}
