/* What a trainer reports about a run as a whole, compared with its steps: where it starts, when a
 * layout of buckets takes effect, how it ends; and the lines that it prints meanwhile. */
#include "subject.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "kernels/core/json.h"
#include "reference/oracle/nettab.h"

enum { CLASSES = 10 };

/* ---- start, layouts, end --------------------------------------------------------------------- */

typedef struct whole {
    int rank, reported, skipped;
    const ls_record_rank *seen;
    ls_verdict *out;
} whole;

/* A reported member must be that number. */
static void must_be(whole *w, const cJSON *event, const char *name, double want)
{
    double value = ls_json_number(event, name, NAN);
    w->reported += !isnan(value);
    if (!isnan(value) && value != want) {
        ls_verdict_fail(w->out, "rank=%d: the %s event says %s %.9g, expected %.9g", w->rank,
                        ls_json_string(event, "event", "?"), name, value, want);
    }
}

/* The first layout is there before the first step of this run, a later one from the step on that
 * follows the events before it: a step is reported one late. */
static ls_status visit_layout(void *opaque, const cJSON *event, int line)
{
    whole *w = opaque;
    (void)line;
    if (w->seen->step_count > 0) {
        int64_t first = w->seen->step[0].step, at = ls_json_integer(event, "iteration", -1);
        bool is_first = w->reported == 0;
        w->reported++;
        if (at != first + (is_first ? 0 : 1)) {
            ls_verdict_fail(w->out, "rank=%d: layout %d takes effect in step %d, expected %d",
                            w->rank, w->reported, (int)at, (int)first + (is_first ? 0 : 1));
        }
    }
    return LS_OK;
}

static ls_status visit_end(void *opaque, const cJSON *event, int line)
{
    whole *w = opaque;
    int skipped = 0;
    (void)line;
    if (w->seen->step_count == 0) {
        return LS_OK;
    }
    for (int i = 0; i < w->seen->step_count; i++) {
        skipped += w->seen->step[i].skipped;
    }
    must_be(w, event, "step", (double)w->seen->step[w->seen->step_count - 1].step);
    must_be(w, event, "skipped", skipped);
    w->skipped = skipped;
    must_be(w, event, "code", 0);
    return LS_OK;
}

static double elements_of(const ls_spec *spec)
{
    ls_nettab *net = malloc(sizeof *net);
    double sum = 0;
    LS_ASSERT(net != NULL);
    LS_ASSERT(ls_nettab_build(spec->arch, CLASSES, spec->image_size, spec->image_size, net) ==
              LS_OK);
    for (int i = 0; i < net->param_count; i++) {
        sum += (double)net->param[i].count;
    }
    free(net);
    return sum;
}

void ls_subject_whole(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_record *last = &job[row->job_count - 1];
    const ls_spec *spec = &row->job[row->job_count - 1];
    int reported = 0;
    for (int k = 0; k < last->world; k++) {
        const cJSON *start = last->rank[k].start;
        whole w = {.rank = k, .seen = &last->rank[k], .out = out}, layouts = w;
        must_be(&w, start, "world", last->world);
        must_be(&w, start, "param_elements", elements_of(spec));
        if (w.seen->step_count > 0) {
            must_be(&w, start, "first_step", (double)w.seen->step[0].step);
        }
        if (ls_record_each_event(last, k, "end", visit_end, &w) != LS_OK ||
            ls_record_each_event(last, k, "buckets", visit_layout, &layouts) != LS_OK) {
            ls_verdict_fail(out, "rank=%d: its events cannot be read", k);
        }
        reported += w.reported + layouts.reported;
        if (row->data != NULL && w.skipped < *(const int *)row->data) {
            ls_verdict_set(out, LS_WEAK, "rank=%d: no step was skipped", k);
        }
        const char *engine = ls_json_string(start, "engine", "");
        const char *transport = ls_json_string(start, "transport", "");
        const char *forbidden = getenv("LS_SHM");
        bool shared = forbidden == NULL || strcmp(forbidden, "0") != 0;
        if (strcmp(engine, "gloo") == 0 && last->world > 1 && shared &&
            strcmp(transport, "shared memory") != 0) {
            ls_verdict_fail(out, "rank=%d: ranks of one machine say transport '%s'", k, transport);
        }
    }
    if (reported == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED,
                       "starts and ends report nothing that steps report, too");
    }
    ls_verdict_pass(out, "%d members of starts, layouts and ends are what the steps say", reported);
}

/* ---- printed lines --------------------------------------------------------------------------- */

static const ls_tol fourth_place =
    LS_TOL(0.6e-4, "a loss printed with four decimals is off by half of the last, and its binary "
                   "form by less than a tenth of that");
static const ls_tol six_digits =
    LS_TOL(1e-5, "numbers printed with %g have six digits: half of the sixth is 5e-6 at most");
static const ls_tol printed_rate = LS_TOL(
    2e-3, "images/s have one decimal and are 100 and more, ends are reported in nanoseconds, of "
          "which a double of 15 digits keeps 1e-6 of a step");

static void check_line(const ls_record *job, const char *line, int *compared, ls_verdict *out)
{
    int step, last;
    double loss, lr, scale, rate, images = 0;
    if (sscanf(line, "step %d/%d loss %lf lr %lf scale %lf", &step, &last, &loss, &lr, &scale) !=
        5) {
        return;
    }
    const char *behind = strstr(line, "scale ");
    const ls_record_step *seen = ls_record_find_step(&job->rank[0], step);
    bool skipped = strstr(line, "(skipped)") != NULL;
    rate = strtod(skipped ? strstr(behind, ")") + 1 : strchr(behind + 6, ' '), NULL);
    if (seen == NULL || last != job->rank[0].step[job->rank[0].step_count - 1].step) {
        ls_verdict_fail(out, "a line is of step %d of %d, of which there is none", step, last);
        return;
    }
    for (int k = 0; k < job->world; k++) {
        const ls_record_step *theirs = ls_record_find_step(&job->rank[k], step);
        images += theirs == NULL ? NAN : (double)theirs->images;
    }
    (*compared)++;
    if (fabs(loss - seen->loss) > fourth_place.value ||
        fabs(lr - seen->lr) > six_digits.value * seen->lr ||
        fabs(scale - seen->loss_scale_next) > six_digits.value * scale ||
        skipped != seen->skipped) {
        ls_verdict_fail(out, "step %d prints loss %g, lr %g, scale %g; its event says %g, %g, %g",
                        step, loss, lr, scale, seen->loss, seen->lr, seen->loss_scale_next);
    }
    const ls_record_step *before = ls_record_find_step(&job->rank[0], step - 1);
    double seconds = before != NULL ? (seen->at_ns - before->at_ns) * 1e-9 : NAN;
    double want = images / seconds;
    if (!isnan(want) && !(fabs(rate - want) <= printed_rate.value * want)) {
        ls_verdict_fail(out,
                        "step %d prints %.1f images/s; %.0f of all ranks came in %.3f ms: %.1f",
                        step, rate, images, seconds * 1e3, want);
    }
}

void ls_subject_printed(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    char path[700], *rest = NULL;
    int compared = 0;
    (void)row;
    ls_text_put(path, sizeof path, "%s/rank0.log", job->directory);
    char *text = ls_text_read(path);
    char *line = text == NULL ? NULL : strtok_r(text, "\n", &rest);
    for (; line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        check_line(job, line, &compared, out);
    }
    free(text);
    if (compared != job->rank[0].step_count) {
        ls_verdict_fail(out, "%d lines of %d steps", compared, job->rank[0].step_count);
    }
    ls_verdict_pass(out, "%d lines print loss, rate, scale and images/s of their events", compared);
}
