/* What happens when a rank dies: the others find out by themselves, and nothing is left behind. */
#include "../suite.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "../../harness/text.h"

static const ls_tol leave_s = LS_TOL(
    10, "issue: after kill -9 of one rank all are gone in 10 s (grace 5 s, then TERM and KILL)");

static void judge_killed(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int victim = row->job[0].kill_rank;
    if (job->state == LS_RECORD_DONE) {
        ls_verdict_set(out, LS_WEAK, "the job was over before rank %d was killed", victim);
        return;
    }
    if (job->state != LS_RECORD_KILLED || job->first_rank != victim || job->signal != SIGKILL) {
        ls_verdict_set(out, LS_FAIL,
                       "expected rank %d ended by signal 9, got rank=%d code=%d signal=%d", victim,
                       job->first_rank, job->code, job->signal);
    }
    for (int k = 0; k < job->world; k++) {
        if (k != victim && (job->rank[k].code != LS_ERR_PEER_LOST || job->rank[k].signal != 0)) {
            ls_verdict_set(out, LS_FAIL,
                           "rank=%d did not leave by itself with exit code 10: code=%d signal=%d",
                           k, job->rank[k].code, job->rank[k].signal);
        }
    }
    if (out->code == LS_PASS) {
        ls_text_put(out->evidence, sizeof out->evidence,
                    "rank %d ended by signal 9, the other %d left with exit code 10", victim,
                    job->world - 1);
    }
}

void ls_launch_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (int victim = 0; victim < 3; victim++) {
        ls_case *row = ls_rows_add(list, judge_killed, "L1", "launch.kill.rank%d", victim);
        row->job_count = 1;
        row->judges_outcome = true;
        ls_spec *spec = &row->job[0];
        *spec = ls_rows_evidence(settings, 0, 3, 1, 0.1);
        spec->dump_steps[0] = '\0';
        spec->steps = 100000; /* must not end before it is killed */
        spec->wrap = LS_WRAP_KILL;
        spec->kill_rank = victim;
        spec->kill_step = 3;
        spec->limit_s = 120 + leave_s.value; /* a Python trainer on a busy machine starts slowly */
    }
}
