/* SyncBN over groups and uneven shards. A row computes in FP64, from what the ranks dumped, what
 * the first batch norm (bn1, behind conv1, whose input is the batch itself) must have made of it:
 * mean and unbiased variance over all samples of the group, moved by a tenth. */
#include "suite/cases/rows.h"

#include <string.h>

#include "kernels/core/json.h"
#include "suite/judge/judges.h"

/* Ranks that share statistics; 1: they are local. */
static int group_of(const ls_case *row)
{
    return *(const int *)row->data;
}

static void judge_statistics(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_judge_statistics_facts facts = {.step = 1, .size = group_of(row)};
    ls_judge_running running[LS_JUDGE_RUNNING_RANKS];
    ls_judge_statistics_start(running);
    int compared = ls_judge_statistics(job, &facts, running, out);
    ls_verdict_pass(out, compared, "bn1 of %d ranks over groups of %d: worst %.1e of the deviation",
                    job->world, facts.size, out->value);
}

/* ---- replicas and groups --------------------------------------------------------------------- */

/* Parameters equal everywhere; running statistics equal within a group and, to show that there are
 * groups, different between them. */
static void judge_groups(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int size = group_of(row), compared = 0, differ = 0;
    for (int rank = 0; rank < job->world; rank++) {
        const ls_record_rank *first = &job->rank[0], *lead = &job->rank[rank / size * size];
        const ls_record_rank *mine = &job->rank[rank];
        for (int i = 0; i < mine->step_count && i < first->step_count; i++, compared++) {
            const char *param = mine->step[i].digest[LS_RECORD_PARAM];
            const char *buffer = mine->step[i].digest[LS_RECORD_BUFFER];
            if (param[0] == '\0' || strcmp(param, first->step[i].digest[LS_RECORD_PARAM]) != 0) {
                ls_verdict_fail(out, "rank=%d step %d: other parameters than rank 0", rank,
                                (int)mine->step[i].step);
            }
            if (buffer[0] == '\0') {
                ls_verdict_set(out, LS_UNSUPPORTED, "rank=%d step %d: no digest of statistics",
                               rank, (int)mine->step[i].step);
            }
            if (strcmp(buffer, lead->step[i].digest[LS_RECORD_BUFFER]) != 0) {
                ls_verdict_fail(
                    out, "rank=%d step %d: other running statistics than rank %d of its group",
                    rank, (int)mine->step[i].step, rank / size * size);
            }
            differ += strcmp(buffer, first->step[i].digest[LS_RECORD_BUFFER]) != 0;
        }
    }
    if (compared == 0) {
        ls_verdict_fail(out, "no step to compare");
    }
    if (size < job->world && differ == 0) {
        ls_verdict_fail(out, "all groups of %d ranks have the same statistics", size);
    }
    ls_verdict_pass(out, compared, "%d steps: parameters alike, statistics alike in groups of %d",
                    compared, size);
}

/* ---- running statistics of batch norm, over two steps and as --init gives them ------------- */

enum { STEPS = 2 };

/* Whether rank 0's statistics go to all ranks before a forward: as asked for, unless the subject
 * says that it sends them, as DistributedDataParallel does by default. */
static bool sends(const ls_spec *spec, const ls_record *job)
{
    const cJSON *options = ls_json_get(job->rank[0].start, "options");
    return strcmp(spec->dialect, "torch") == 0 || ls_json_bool(options, "broadcast-buffers", false);
}

static void judge_running(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_spec *spec = &row->job[0];
    ls_judge_running running[LS_JUDGE_RUNNING_RANKS];
    int compared = 0;
    ls_judge_statistics_start(running);
    for (int step = 1; step <= STEPS; step++) {
        ls_judge_statistics_facts facts = {.step = step,
                                           .size = spec->sync_bn ? job->world : 1,
                                           .half = spec->level > 0,
                                           .from_rank_0 = sends(spec, job)};
        compared += ls_judge_statistics(job, &facts, running, out);
    }
    ls_verdict_pass(
        out, compared,
        "bn1's running mean and variance of %d ranks over %d steps, off by %.1e at most",
        job->world, STEPS, out->value);
}

/* ---- given ones ------------------------------------------------------------------------------ */

/* last_buffer/ of step 1, every rank's, are the statistics of the file. */
static void judge_given(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int compared = 0, seen_before = 0;
    ls_dumpfile *given = ls_dumps_open_file(job, "../../overflow/moved.safetensors", LS_INFRA, out);
    if (given == NULL) {
        return;
    }
    for (int k = 0; k < job->world; k++) {
        ls_dumpfile *file = ls_dumps_open(job, 1, k, out);
        for (int i = 0; i < ls_dumpfile_count(given) && file != NULL; i++) {
            const ls_dumpfile_entry *entry = ls_dumpfile_at(given, i);
            if (strstr(entry->name, ".running_") == NULL) {
                continue;
            }
            const ls_dumpfile_entry *seen = ls_dumpfile_findf(file, "last_buffer/%s", entry->name);
            seen_before += seen != NULL;
            compared++;
            if (seen != NULL && !ls_dumpfile_equal(seen, entry)) {
                ls_verdict_fail(out, "rank=%d: %s before step 1 is not what --init gave", k,
                                entry->name);
            }
        }
        ls_dumpfile_close(file);
    }
    ls_dumpfile_close(given);
    if (seen_before < compared || compared == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the dumps lack running statistics before the step");
    }
    ls_verdict_pass(out, compared, "%d running statistics of %d ranks are those of the file",
                    compared, job->world);
}

static const ls_row running[] = {
    /* O3 stores them in half: other families judge them */
    {"statistics[|.sync=sync].o[0|1|2].w2", "B1", judge_running, "O$2 w2 b0.1 $1 dump=1,2"},
    {"statistics.torch.o[0|1].w2", "B6", judge_running, "O$1 w2 b0.1 torch dump=1,2"},
    {"statistics.given.[apex=|torch].o0.w2", "B7", judge_given,
     "O0 w2 $1 steps=1 dump=1 batches=moved@"},
};

/* ---- the table ------------------------------------------------------------------------------- */

static const struct shape {
    const char *id, *options;
    int world, group;
} shapes[] = {
    {"even.w2", "--sync-bn", 2, 2},
    {"even.w3", "--sync-bn", 3, 3},
    {"group2.w4", "--sync-bn --sync-bn-group=2", 4, 2},
    {"group3.w6", "--sync-bn --sync-bn-group=3", 6, 3},
    {"group1.w2", "--sync-bn --sync-bn-group=1", 2, 1},
    {"uneven.w2", "--sync-bn --batch-sizes=5,2", 2, 2},
    {"uneven.w3", "--sync-bn --batch-sizes=1,4,2", 3, 3},
    {"one-image.w3", "--sync-bn --batch-sizes=1,1,1", 3, 3},
    {"uneven-groups.w4", "--sync-bn --sync-bn-group=2 --batch-sizes=3,1,2,6", 4, 2},
    {"local-uneven.w2", "--batch-sizes=5,2", 2, 1},
};

#define JOB "resnet8 O0 b0.05 dump=1 "

/* What each shape is judged for. Dialect torch sends rank 0's statistics to all ranks. */
static const struct {
    const char *text, *requirement;
    ls_case_judge *judge;
} questions[] = {
    {"syncbn.statistics.%s.apex: " JOB "w%d %s", "B2", judge_statistics},
    {"syncbn.statistics.%s.torch: " JOB "torch w%d %s", "B2", judge_statistics},
    {"syncbn.groups.%s: " JOB "w%d %s", "B3", judge_groups},
    {"syncbn.gradients.%s: " JOB "w%d %s", "B4", ls_judge_gradients},
};

static const ls_row equal[] = {
    {"syncbn.equal.world1", "B5", ls_judge_same, JOB "| " JOB "--sync-bn",
     LS_JUDGE_SAME("SyncBN alone and plain batch norm")},
    {"syncbn.equal.group1", "B5", ls_judge_same, JOB "w2 | " JOB "w2 --sync-bn --sync-bn-group=1",
     LS_JUDGE_SAME("groups of one rank and plain batch norm")},
    {"syncbn.equal.whole", "B5", ls_judge_same,
     JOB "w3 --sync-bn | " JOB "w3 --sync-bn --sync-bn-group=3",
     LS_JUDGE_SAME("one group of all and no groups")},
    {"syncbn.equal.same-batch", "B5", ls_judge_same, JOB "w2 | " JOB "w2 --batch-sizes=4,4",
     LS_JUDGE_SAME("batches of 4 given once and per rank")},
};

void ls_syncbn_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, running);
    LS_ROWS(list, settings, equal);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        for (size_t q = 0; q < sizeof questions / sizeof *questions; q++) {
            const ls_row row = {.requirement = questions[q].requirement,
                                .judge = questions[q].judge,
                                .data = &s->group};
            ls_rows_format(list, settings, &row, questions[q].text, s->id, s->world, s->options);
        }
    }
}
