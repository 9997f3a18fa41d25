#include "progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../harness/text.h"
#include "../kernels/core/clock.h"

/* Time left: what is estimated for the jobs that remain, scaled by how the estimate did so far. */
static double left_s(const ls_run *run, int index)
{
    double before_s = 0, after_s = 0;
    for (int i = 0; i < run->jobs.count; i++) {
        double s = ls_matrix_estimate_s(&run->jobs.spec[i], run->site.cores);
        *(i < index ? &before_s : &after_s) += s;
    }
    double elapsed_s = ls_clock_ms_between(run->started_ns, ls_clock_ns()) * 1e-3;
    double scale = before_s > 5 && run->resumed_jobs == 0 ? elapsed_s / before_s : 1;
    double left = (before_s + after_s) * scale - elapsed_s;
    return left > 0 ? left : 0;
}

void ls_progress_clear(void)
{
    if (isatty(STDOUT_FILENO)) {
        printf("\r\033[K");
        fflush(stdout);
    }
}

static void show(const char *text)
{
    if (isatty(STDOUT_FILENO)) {
        printf("\r\033[K%.79s", text);
        fflush(stdout);
    }
}

void ls_progress_job(const ls_run *run, int index)
{
    char label[64], text[160];
    ls_matrix_label(&run->jobs.spec[index], label);
    int left = (int)left_s(run, index);
    ls_text_put(text, sizeof text, "[%d/%d] %s %s; about %d:%02d left", index + 1, run->jobs.count,
                ls_matrix_role_name(run->jobs.spec[index].role), label, left / 60, left % 60);
    show(text);
}

void ls_progress_note(const ls_run *run, const char *format, ...)
{
    (void)run;
    char text[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    show(text);
}

void ls_progress_done(const ls_run *run, int index)
{
    if (isatty(STDOUT_FILENO)) {
        return;
    }
    const ls_record *record = &run->record[index];
    char label[64];
    ls_matrix_label(&run->jobs.spec[index], label);
    int left = (int)left_s(run, index + 1);
    printf("[%2d/%d] %-10s %-36.36s %6.1f s, %d:%02d left\n", index + 1, run->jobs.count,
           ls_matrix_role_name(run->jobs.spec[index].role), label, record->seconds, left / 60,
           left % 60);
    fflush(stdout);
}
