/* What a job that still runs is told: of an invented job, after each of its steps. */
#ifndef LS_OBSERVE_PREFIXES_H
#define LS_OBSERVE_PREFIXES_H

#include <check.h>
#include <string.h>

#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "suite/observe/observe.h"

/* A law that fails after any of the steps fails at the end, too: `result`. */
static inline void prefixes_check(const char *folder, const ls_observe_result *result)
{
    int64_t step = 0;
    for (int64_t most = 2; /* live, the first is 3 */
         most <= 40; most++) {
        ls_observe_trace *trace = NULL;
        ls_observe_result now;
        LS_TEXT(cut, 200, "%s/cut", folder);
        ck_assert_int_eq(ls_observe_cut(folder, cut, most, &step), LS_OK);
        if (step < most) {
            ls_path_remove_tree(cut);
            return;
        }
        ck_assert_int_eq(ls_observe_read(cut, &trace), LS_OK);
        ls_observe_judge_live(trace, &now);
        for (int i = 0; i < now.count; i++) {
            const ls_observe_finding *f = &now.finding[i];
            const ls_observe_finding *end = result->finding;
            while (end->rule != f->rule) {
                end++;
            }
            bool joins = strstr(end->verdict.evidence, "as with join()") != NULL; /* said live */
            ck_assert_msg(f->verdict.code != LS_FAIL || end->verdict.code == LS_FAIL || joins,
                          "%s fails after step %lld: %s (%s), and is %s at the end: %s",
                          f->rule->id, (long long)step, f->verdict.evidence, f->verdict.cause,
                          ls_verdict_name(end->verdict.code), end->verdict.evidence);
        }
        ls_observe_result_free(&now);
        ls_observe_free(trace);
        ls_path_remove_tree(cut);
    }
}

#endif
