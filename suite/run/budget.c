#include "run.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "kernels/core/log.h"
#include "kernels/core/list.h"

ls_status ls_budget_read(const char *path, ls_budget *sum)
{
    static const char mark[] = "# budget:";
    char *text = ls_text_read(path);
    const char *line = text == NULL ? NULL : strstr(text, mark);
    ls_status status = LS_OK;
    if (line != NULL) {
        double seconds = 0;
        int jobs = 0, found = sscanf(line + strlen(mark), " %lf s, %d jobs", &seconds, &jobs);
        if (found < 1 || !(seconds > 0) || jobs < 0) {
            status = ls_log_fail(LS_ERR_USAGE,
                                 "%s: a budget is a line such as '# budget: 90 s, 25 jobs'", path);
        } else {
            sum->seconds += seconds;
            sum->jobs += jobs;
        }
    }
    free(text);
    return status;
}

ls_budget ls_budget_whole(void)
{
    return (ls_budget){20 * 60, 0}; /* 20 minutes on 2 cores */
}

/* Index of the longest job that is not yet listed; -1: none. */
static int longest(const ls_run *run, const bool *named)
{
    int best = -1;
    for (int i = 0; i < run->jobs.count; i++) {
        if (!named[i] && run->record[i].rank != NULL &&
            (best < 0 || run->record[i].seconds > run->record[best].seconds)) {
            best = i;
        }
    }
    return best;
}

void ls_budget_report(const ls_budget *budget, const ls_run *run, double seconds, FILE *to)
{
    enum { NAMED = 3 };
    if (budget->jobs > 0 && run->jobs.count > budget->jobs) {
        fprintf(to, "over budget: %d jobs, %d are allowed\n", run->jobs.count, budget->jobs);
    }
    if (!(budget->seconds > 0) || seconds <= budget->seconds) {
        return;
    }
    fprintf(to, "over budget: %.0f s, %.0f s are allowed on 2 idle cores; longest:", seconds,
            budget->seconds);
    bool *named = ls_list_make((size_t)run->jobs.count + 1, sizeof *named);
    for (int k = 0; k < NAMED; k++) {
        int i = longest(run, named);
        if (i >= 0) {
            char id[96];
            ls_matrix_id(&run->jobs.spec[i], id);
            fprintf(to, "%s %s %.1f s", k == 0 ? "" : ",", id, run->record[i].seconds);
            named[i] = true;
        }
    }
    fprintf(to, "\n");
    free(named);
}
