#include "run.h"

#include <stdarg.h>
#include <unistd.h>

#include "kernels/core/clock.h"

double ls_progress_left_s(const ls_progress_times *t)
{
    double pace = t->before_s > 5 ? t->elapsed_s / t->before_s : 1;
    double job_s = pace * t->job_s - t->running_s;
    return (job_s > 0 ? job_s : 0) + pace * t->after_s;
}

/* Job `index` began at begun_ns. */
static int left_s(const ls_run *run, int index, int64_t begun_ns)
{
    ls_progress_times times = {0};
    for (int i = 0; i < run->jobs.count; i++) {
        bool again = i >= index && run->kept[i]; /* is read back at once */
        double s = again ? 0 : ls_matrix_estimate_at(&run->jobs.spec[i], &run->site);
        *(i < index ? &times.before_s : i == index ? &times.job_s : &times.after_s) += s;
    }
    if (run->resumed_jobs > 0) {
        times.before_s = 0; /* of an earlier run: not a measure of the pace of this one */
    }
    times.elapsed_s = ls_clock_ms_between(run->started_ns, begun_ns) * 1e-3;
    times.running_s = ls_clock_ms_between(begun_ns, ls_clock_ns()) * 1e-3;
    return (int)ls_progress_left_s(&times);
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
    if (run->untimed) {
        ls_text_put(text, sizeof text, "%s %s", run->jobs.spec[index].arch, label);
        show(text);
        return;
    }
    int left = left_s(run, index, run->job_ns);
    ls_text_put(text, sizeof text, "[%d/%d] %s %s; about %d:%02d left", index + 1, run->jobs.count,
                ls_spec_role_name(run->jobs.spec[index].role), label, left / 60, left % 60);
    show(text);
}

void ls_progress_note(const char *format, ...)
{
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
    int left = left_s(run, index + 1, ls_clock_ns());
    printf("[%2d/%d] %-14s %-36.36s %6.1f s, %d:%02d left\n", index + 1, run->jobs.count,
           ls_spec_role_name(run->jobs.spec[index].role), label, record->seconds, left / 60,
           left % 60);
    fflush(stdout);
}
