/* Running statistics of batch norm, over two steps and as --init gives them. */
#include "suite/cases/rows.h"

#include <string.h>

#include "kernels/core/json.h"
#include "suite/judge/judges.h"

enum { STEPS = 2 };

/* Whether rank 0's statistics go to all ranks before a forward: as asked for, unless the subject
 * says that it sends them, as DistributedDataParallel does by default. */
static bool sends(const ls_spec *spec, const ls_record *job)
{
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(job->rank[0].start, "options");
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

static const ls_row rows[] = {
    /* O3 stores them in half: other families judge them */
    {"statistics[|.sync=sync].o[0|1|2].w2", "B1", judge_running, "O$2 w2 b0.1 $1 dump=1,2"},
    {"statistics.torch.o[0|1].w2", "B6", judge_running, "O$1 w2 b0.1 torch dump=1,2"},
    {"statistics.given.[apex=|torch].o0.w2", "B7", judge_given,
     "O0 w2 $1 steps=1 dump=1 batches=moved@"},
};

void ls_statistics_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
