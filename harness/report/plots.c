#include "page.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "kernels/core/list.h"
#include "harness/process/proc.h"
#include "tables/table.h"

extern char **environ;

enum {
    FIGURES_MAX = 32,
    TITLE_COLUMNS = 72, /* fits above a figure 760 points wide at the size of its title */
    DEADLINE_S = 60,    /* of all figures together; one takes a tenth of a second */
};

typedef struct figure {
    const char *name, *format;
    char output[PATH_MAX];
} figure;

/* Breaks a title that is longer than the figure is wide: in its second half after a sign of
 * punctuation or before a parenthesis where there is one, else at the last space that fits. */
static void wrap(char *title)
{
    char *line = title;
    while (strlen(line) > TITLE_COLUMNS) {
        char *last = NULL, *best = NULL;
        for (char *at = line + 1; at <= line + TITLE_COLUMNS; at++) {
            if (*at == ' ') {
                last = at;
                bool good = strchr(":;,", at[-1]) != NULL || at[1] == '(';
                best = good && at > line + TITLE_COLUMNS / 2 ? at : best;
            }
        }
        if (last == NULL) {
            return;
        }
        line = best != NULL ? best : last;
        *line++ = '\n';
    }
}

static ls_status start_figure(const char *script_folder, const char *run_directory,
                              const figure *one, const char *log_path, ls_proc *process)
{
    ls_table_head head;
    LS_TRY(ls_table_read_head(run_directory, one->name, &head));
    LS_TEXT(script, 128, "%s.gp", one->name);
    LS_TEXT(table, PATH_MAX, "%s/tables/%s.tsv", run_directory, one->name);
    wrap(head.title);
    char *argv[] = {"gnuplot",
                    "-c",
                    script,
                    table,
                    (char *)one->output,
                    (char *)one->format,
                    head.title,
                    head.blocks[0] != '\0' ? head.blocks : "\"\"",
                    NULL};
    ls_proc_spec spec = {
        .argv = argv, .environment = environ, .log_path = log_path, .directory = script_folder};
    return ls_proc_start(&spec, process);
}

/* One figure at a time per core would be enough; two at once keep a small machine free for others.
 */
static bool draw_all(const char *script_folder, const char *run_directory, figure *figures,
                     int count, const char *log_path)
{
    enum { AT_ONCE = 2 };
    ls_proc running[AT_ONCE] = {0};
    int drawing[AT_ONCE], next = 0, slots = 0;
    int64_t deadline_ns = ls_clock_ns() + (int64_t)DEADLINE_S * 1000000000;
    bool late = false, all = true;
    while (!late && (next < count || slots > 0)) {
        int slot = slots;
        if (next < count && slots < AT_ONCE) {
            memset(&running[slot], 0, sizeof running[slot]);
            drawing[slot] = next;
            if (start_figure(script_folder, run_directory, &figures[next++], log_path,
                             &running[slot]) == LS_OK) {
                slots++;
            }
            continue;
        }
        slot = ls_proc_wait_any(running, slots, deadline_ns);
        if (slot < 0) {
            late = true;
            break;
        }
        if (running[slot].code != 0) {
            ls_log_warn("gnuplot could not draw %s (exit code %d, see %s); the report omits it",
                        figures[drawing[slot]].output, running[slot].code, log_path);
            unlink(figures[drawing[slot]].output);
            all = false;
        }
        slots--;
        running[slot] = running[slots];
        drawing[slot] = drawing[slots];
    }
    if (late) {
        ls_log_warn("the figures were not drawn within %d s; the report omits some", DEADLINE_S);
        ls_proc_end_all(running, slots, 1);
        for (int i = 0; i < slots; i++) {
            unlink(figures[drawing[i]].output);
        }
    }
    return all && !late;
}

/* Adds the table's figures in both formats; none where its script is missing or `wanted` is false.
 */
static int list_table(const char *directory, const char *script_folder, const char *name,
                      bool wanted, figure *figures)
{
    static const char *const FORMATS[] = {"svg", "png"};
    char script[PATH_MAX];
    int length = snprintf(script, sizeof script, "%s/%s.gp", script_folder, name);
    bool there = wanted && length < (int)sizeof script && access(script, R_OK) == 0;
    int count = 0;
    for (int f = 0; f < 2; f++) {
        figure *one = &figures[count];
        one->name = name;
        one->format = FORMATS[f];
        length = snprintf(one->output, sizeof one->output, "%s/plots/%s.%s", directory, name,
                          FORMATS[f]);
        LS_ASSERT(length < (int)sizeof one->output);
        unlink(one->output); /* a figure of an earlier report must not appear in this one */
        count += there;
    }
    return count;
}

ls_status ls_report_plots_draw(const ls_report_run *run, const char *directory,
                               const char *plots_folder, const char *only)
{
    char folder[PATH_MAX], log_path[PATH_MAX], script_folder[PATH_MAX];
    ls_text_put(folder, sizeof folder, "%s/plots", directory);
    LS_TRY(ls_path_make_folder(folder));
    if (realpath(plots_folder, script_folder) == NULL) {
        ls_log_warn("no plot scripts in '%s': %s; the report has no figures", plots_folder,
                    strerror(errno));
        return LS_OK;
    }
    figure *figures = ls_list_make(FIGURES_MAX + 1, sizeof *figures);
    int count = only != NULL ? list_table(directory, script_folder, only, true, figures) : 0;
    for (int i = 0; only == NULL && ls_tables_name(i) != NULL; i++) {
        ls_table_head head;
        LS_ASSERT(count + 2 <= FIGURES_MAX);
        count += list_table(directory, script_folder, ls_tables_name(i),
                            ls_tables_is_drawn(run, i, &head), &figures[count]);
    }
    if (ls_path_is_program("gnuplot")) {
        ls_text_put(log_path, sizeof log_path, "%s/plots/gnuplot.log", directory);
        unlink(log_path);
        if (draw_all(script_folder, directory, figures, count, log_path)) {
            unlink(log_path); /* it holds remarks on unknown values only */
        }
    } else {
        ls_log_note("no gnuplot in PATH: the report has no figures; its tables are in %s/tables",
                    directory);
    }
    free(figures);
    return LS_OK;
}

bool ls_report_plots_drawn(const ls_report_run *run, const char *name)
{
    LS_TEXT(path, PATH_MAX, "%s/plots/%s.svg", run->directory, name);
    return access(path, R_OK) == 0;
}
