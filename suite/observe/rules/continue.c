/* Whether a job that goes on from a file holds what the job that wrote it held then, and takes the
 * data from where that one stopped. Both jobs are needed: ls_observe_continue. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/digest.h"
#include "kernels/core/list.h"
#include "kernels/core/sort.h"
#include "suite/observe/trace/pass.h"
#include "rules.h"
#include "suite/observe/trace/job.h"

/* What the writer held when it saved the file, and what the reader holds after it has read it. */
typedef struct hand_over {
    const ls_event *save, *restore;
    int rank;
} hand_over;

/* The last one: a file of that name may have been written before. */
static const ls_event *find_save(const ls_observe_rank *rank, int64_t number)
{
    const ls_event *save, *found = NULL;
    ls_event_each(save, ls_trace_events(rank, save)) {
        found = ls_event_integer(save, step, -1) == number ? save : found;
    }
    return found;
}

/* The step after which the file was saved, by the rank that knows its whole path; -1: by none. */
static int64_t saved_step(const ls_observe_trace *trace)
{
    const char *path =
        ls_event_text(ls_event_at(ls_trace_events(&trace->rank[0], load), 0), path, "");
    const ls_event *save;
    int64_t step = -1;
    for (int k = 0; k < trace->before->world; k++) {
        ls_event_each(save, ls_trace_events(&trace->before->rank[k], save)) {
            if (strcmp(ls_event_text(save, path, ""), path) == 0) {
                step = ls_event_integer(save, step, -1);
            }
        }
    }
    return step;
}

/* ---- state ----------------------------------------------------------------------------------- */

static const struct {
    ls_event_member member;
    const char *words;
} parts[] = {
    {LS_TEXT_MEMBER(param), "parameters"},
    {LS_TEXT_MEMBER(master), "f32 masters"},
    {LS_TEXT_MEMBER(state), "the optimizer's state"},
    {LS_TEXT_MEMBER(scaler), "loss scale, its count of clean steps, or the count of steps"},
    {LS_TEXT_MEMBER(buffer), "running statistics"}};

/* At another number of ranks each has one rank's buffers. */
static void compare_state(const ls_observe_trace *trace, const hand_over *h, int *compared,
                          ls_observe_finding *out)
{
    const ls_event *a = ls_event_object(h->save, digest);
    const ls_event *b = ls_event_object(h->restore, digest);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *had = ls_event_to_text(ls_event_get(a, parts[i].member), "");
        const char *has = ls_event_to_text(ls_event_get(b, parts[i].member), "");
        bool own = parts[i].member == LS_MEMBER_buffer && trace->world != trace->before->world;
        if (had[0] == '\0' || own) {
            continue;
        }
        ++*compared;
        if (strcmp(had, has) != 0) {
            ls_finding_set(out, LS_FAIL, ls_event_text(h->restore, at, ""), NULL,
                           "save and restore them with the parameters",
                           "rank %d goes on after step %lld with other %s than were saved", h->rank,
                           (long long)ls_event_integer(h->restore, step, 0), parts[i].words);
            ls_verdict_cause(&out->verdict, "not saved, or not restored: %s", parts[i].words);
            return;
        }
    }
}

static bool same(const ls_event *a, const ls_event *b, ls_event_member part, ls_event_member member)
{
    const ls_event *x = ls_event_get(a, part);
    const ls_event *y = ls_event_get(b, part);
    return x == NULL || y == NULL ||
           ls_event_to_number(ls_event_get(x, member), 0) ==
               ls_event_to_number(ls_event_get(y, member), 0);
}

/* Sums of an epoch that was begun, and the best score so far. */
static void compare_counts(const hand_over *h, ls_observe_finding *out)
{
    if (!same(h->save, h->restore, LS_MEMBER_epoch, LS_NUMBER(images)) ||
        !same(h->save, h->restore, LS_MEMBER_epoch, LS_NUMBER(top1))) {
        ls_finding_set(
            out, LS_FAIL, "", "the sums of a begun epoch were not restored", NULL,
            "rank %d goes on with other sums of the epoch that was begun than were saved", h->rank);
    }
    if (!same(h->save, h->restore, LS_MEMBER_best, LS_NUMBER(images)) ||
        !same(h->save, h->restore, LS_MEMBER_best, LS_NUMBER(top1))) {
        ls_finding_set(
            out, LS_FAIL, "",
            "the best score so far was not restored: the first validation counts as the best", NULL,
            "rank %d goes on with another best score than was saved", h->rank);
    }
    ls_finding_blame(out, ls_event_text(h->restore, at, ""), "save and restore them");
}

/* ---- steps and data -------------------------------------------------------------------------- */

static void compare_steps(const ls_observe_trace *trace, const hand_over *h,
                          ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[h->rank];
    int64_t wanted = ls_event_integer(h->save, step, -1) + 1;
    if (rank->step_count > 0 && rank->step[0].step->step != wanted) {
        ls_finding_set(out, LS_FAIL, ls_event_text(h->restore, at, ""),
                       "the saved step is done again, or one is left out",
                       "go on with the step after it",
                       "rank %d goes on with step %lld, the file is of step %lld", h->rank,
                       (long long)rank->step[0].step->step, (long long)wanted - 1);
    }
}

/* The indices of a pass, sorted. */
static double *sorted_indices(const ls_event *data, int *count)
{
    const ls_event *kept = ls_event_list(data, kept), *one;
    double *list = ls_list_make((size_t)ls_event_count(kept) + 1, sizeof *list);
    *count = 0;
    ls_event_each(one, kept) {
        list[(*count)++] = one->number;
    }
    ls_sort_doubles(list, *count);
    return list;
}

static int count_common(const ls_event *a, const ls_event *b, int *all)
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
    const ls_event *earlier, *later = ls_event_at(ls_trace_events(&trace->rank[h->rank], data), 0);
    int64_t saved = ls_event_integer(h->save, step, -1);
    ls_event_each(earlier, ls_trace_events(&trace->before->rank[h->rank], data)) {
        int all = 0;
        if (!ls_pass_is_trained(earlier) || !ls_pass_is_trained(later) ||
            ls_event_number(earlier, sampler_epoch, NAN) !=
                ls_event_number(later, sampler_epoch, NAN) ||
            !(ls_pass_last_step(earlier) <= (double)saved)) {
            continue;
        }
        int common = count_common(earlier, later, &all);
        if (common > trace->world && common * 2 > all) {
            ls_finding_set(out, LS_FAIL, ls_event_text(later, at, ""),
                           "the place in the data was not restored",
                           "skip the batches of the epoch that were trained on",
                           "rank %d draws %d of %d samples again that were drawn in this epoch "
                           "before the file was saved",
                           h->rank, common, all);
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
static bool is_replaced(const ls_event *save)
{
    const char *path = ls_event_text(save, path, "");
    for (const ls_event *later = ls_event_after(save); later != NULL;
         later = ls_event_after(later)) {
        if (strcmp(ls_event_text(later, path, ""), path) == 0) {
            return true;
        }
    }
    return false;
}

static void check_file(const ls_event *event, const char *verb, int *compared,
                       ls_observe_finding *out)
{
    static const struct {
        const char *name;
        ls_event_member member;
    } group[] = {{"param", LS_TEXT_MEMBER(param)},
                 {"master", LS_TEXT_MEMBER(master)},
                 {"state", LS_TEXT_MEMBER(state)}};
    const char *path = ls_event_text(event, path, "");
    const ls_event *digest = ls_event_object(event, digest);
    const char *end = strrchr(path, '.');
    ls_dumpfile *file = NULL;
    if (end == NULL || strcmp(end, ".safetensors") != 0 || access(path, R_OK) != 0 ||
        ls_dumpfile_open(path, &file) != LS_OK) {
        return;
    }
    for (size_t i = 0; i < sizeof group / sizeof *group; i++) {
        const char *held = ls_event_to_text(ls_event_get(digest, group[i].member), "");
        uint64_t has;
        if (held[0] == '\0' || !digest_of(file, group[i].name, &has)) {
            continue;
        }
        ++*compared;
        if (strtoull(held, NULL, 16) != has) {
            ls_finding_set(out, LS_FAIL, "",
                           "the file holds other values: rounded ones, or of another step", NULL,
                           "%s/ in %s is not what its writer held when it %s it", group[i].name,
                           path, verb);
        }
    }
    ls_dumpfile_close(file);
}

void ls_rules_checkpoint_held(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    const ls_event *save;
    for (int k = 0; k < trace->world && !trace->attached; k++) {
        ls_event_each(save, ls_trace_events(&trace->rank[k], save)) {
            if (!is_replaced(save) && k == 0) {
                check_file(save, "wrote", &compared, out);
            }
        }
    }
    ls_finding_close(out, compared, LS_SKIP, "no file of the job's that is still there",
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
                       .restore = ls_saved_restored(&trace->rank[k], "run"),
                       .rank = k};
        if (h.save != NULL && h.restore != NULL) {
            compare_state(trace, &h, &compared, out);
            compare_counts(&h, out);
            compare_steps(trace, &h, out);
            compare_data(trace, &h, out);
        }
    }
    ls_finding_close(out, compared, LS_UNSUPPORTED,
                     "the events do not say what was held when the file was written and read",
                     "%d groups of tensors are those that were saved", compared);
}
