/* The figure of an observed job's steps: for each rank whether it holds what the others hold, which
 * steps were skipped or looked at in detail, loss, loss scale and time; where it validated and
 * saved. tables/steps.tsv, drawn by plots/steps.gp where gnuplot is there. */
#include "observe_parts.h"

#include <limits.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "suite/observe/trace/pass.h"

extern char **environ;

enum { COLUMNS = 300, DEADLINE_S = 20 };

/* Of the steps that a column holds, the highest is shown. */
typedef enum state { UNKNOWN, EQUAL, DETAIL, SKIPPED, DIFFERENT } state;

static state state_of(const ls_observe_trace *trace, int rank, const ls_observe_step *step)
{
    const char *own = ls_trace_digest(step, LS_RECORD_PARAM);
    state found = UNKNOWN;
    for (int k = 0; k < trace->world && own != NULL; k++) {
        const ls_observe_step *other = ls_trace_step(&trace->rank[k], step->step->step);
        const char *digest =
            k == rank || other == NULL ? NULL : ls_trace_digest(other, LS_RECORD_PARAM);
        if (digest != NULL && strcmp(digest, own) != 0) {
            return DIFFERENT;
        }
        found = digest != NULL ? EQUAL : found;
    }
    return step->step->skipped ? SKIPPED : step->detail ? DETAIL : found;
}

/* A block of each rank: step, steps in it, state, loss, loss scale, longest ms. */
static void write_rank(const ls_observe_trace *trace, int rank, FILE *to)
{
    const ls_observe_rank *r = &trace->rank[rank];
    int width = (r->step_count + COLUMNS - 1) / COLUMNS;
    for (int i = 0; i < r->step_count; i += width) {
        state worst = UNKNOWN;
        double loss = NAN, scale = NAN, ms = NAN;
        int last = i + width < r->step_count ? i + width : r->step_count;
        for (int n = i; n < last; n++) {
            const ls_record_step *step = r->step[n].step;
            state one = state_of(trace, rank, &r->step[n]);
            worst = one > worst ? one : worst;
            loss = isfinite(step->loss) ? step->loss : loss;
            scale = step->loss_scale;
            ms = fmax(ms, step->total_ms);
        }
        fprintf(to, "%lld\t%d\t%d\t%g\t%g\t%g\n", (long long)r->step[i].step->step, last - i,
                (int)worst, loss, scale, ms);
    }
    fputs(r->step_count == 0 ? "NaN\tNaN\tNaN\tNaN\tNaN\tNaN\n\n\n" : "\n\n", to);
}

/* The last block: step, and 1: a validation, 2: a save, 3: a restore. */
static void write_marks(const ls_observe_rank *rank, FILE *to)
{
    const ls_event *event;
    ls_event_each(event, ls_trace_events(rank, data)) {
        if (ls_pass_is_validation(event)) {
            fprintf(to, "%g\t1\n", ls_pass_first_step(event));
        }
    }
    ls_event_each(event, ls_trace_events(rank, save)) {
        fprintf(to, "%g\t2\n", ls_event_number(event, step, NAN));
    }
    ls_event_each(event, ls_trace_events(rank, restore)) {
        fprintf(to, "%g\t3\n", ls_event_number(event, step, NAN));
    }
    fputs("NaN\tNaN\n", to);
}

static ls_status write_table(const ls_observe_trace *trace, const char *path)
{
    FILE *to = ls_file_create(path);
    LS_TRY_FILE(to);
    for (int k = 0; k < trace->world; k++) {
        write_rank(trace, k, to);
    }
    write_marks(&trace->rank[0], to);
    return ls_file_close(to, path);
}

void ls_observe_steps_draw(const ls_observe_trace *trace, const char *directory)
{
    char scripts[PATH_MAX], world[16];
    LS_TEXT(tables, PATH_MAX, "%s/tables", directory);
    LS_TEXT(plots, PATH_MAX, "%s/plots", directory);
    LS_TEXT(table, PATH_MAX, "%s/tables/steps.tsv", directory);
    LS_TEXT(output, PATH_MAX, "%s/plots/steps.svg", directory);
    LS_TEXT(log, PATH_MAX, "%s/plots/gnuplot.log", directory);
    ls_text_put(world, sizeof world, "%d", trace->world);
    (void)unlink(output);
    if (!ls_path_find("plots", scripts, sizeof scripts) || ls_path_make_folder(tables) != LS_OK ||
        ls_path_make_folder(plots) != LS_OK || write_table(trace, table) != LS_OK) {
        return; /* the report is whole without it */
    }
    char *argv[] = {"gnuplot", "-c", "steps.gp", table, output, "svg", world, NULL};
    const ls_proc_spec spec = {
        .argv = argv, .environment = environ, .log_path = log, .directory = scripts};
    ls_proc process = {0};
    if (ls_proc_start(&spec, &process) != LS_OK) {
        return;
    }
    if (ls_proc_wait_any(&process, 1, ls_clock_after(DEADLINE_S)) < 0) {
        ls_proc_end_all(&process, 1, 1);
        process.code = 1;
    }
    if (process.code != 0) {
        (void)unlink(output);
    }
}
