/* What a trainer reports about a run as a whole, compared with its steps: where it starts, when a
 * layout of buckets takes effect, how it ends; and the lines that it prints meanwhile. */
#include "subject.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    LS_MEMORY(net != NULL);
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
    ls_verdict_pass(out, reported, "%d members of starts, layouts and ends are what the steps say",
                    reported);
}

/* ---- printed lines --------------------------------------------------------------------------- */

static const ls_tol fourth_place =
    LS_TOL(0.6e-4, "a loss printed with four decimals is off by half of the last, and its binary "
                   "form by less than a tenth of that");
static const ls_tol six_digits =
    LS_TOL(1e-5, "numbers printed with %g have six digits: half of the sixth is 5e-6 at most");
static const ls_tol printed_rate = LS_TOL(0.06, "img/s: printed with one digit behind the point");
static const ls_tol second = LS_TOL(0.51, "s: the time left is rounded to whole seconds");
static const ls_tol printed_ends =
    LS_TOL(1e-4, "of images/s: ends are reported in nanoseconds, of which a double of 15 digits "
                 "keeps 1e-5 of a step of a millisecond");

/* All ranks' images of the steps after `last` up to `step`. */
static double images_of(const ls_record *job, int last, int step)
{
    double images = 0;
    for (int k = 0; k < job->world; k++) {
        for (int s = last + 1; s <= step; s++) {
            const ls_record_step *theirs = ls_record_find_step(&job->rank[k], s);
            images += theirs == NULL ? NAN : (double)theirs->images;
        }
    }
    return images;
}

/* "  1:02 left", at the pace since the line before, rounded to a second; none behind the last. A
 * foreign subject need not say it. */
static void check_left(const char *line, int step, int steps, double each_s, bool said,
                       ls_verdict *out)
{
    const char *left = strstr(line, "img/s");
    int part[3] = {0}, used = 0, parts = 0;
    left = left != NULL ? left + strlen("img/s") : "";
    double got = 0, want = each_s * (steps - step);
    do {
        left += parts > 0;
        if (sscanf(left, "%d%n", &part[parts], &used) != 1) {
            break;
        }
        left += used;
        got = 60 * got + part[parts++];
    } while (parts < 3 && *left == ':');
    if (parts == 0 && *left == '\0' && !said) {
        return;
    }
    bool well = parts == 0 ? *left == '\0' : parts > 1 && strcmp(left, " left") == 0;
    if (!well || !(fabs(got - want) <= second.value + printed_ends.value * want)) {
        ls_verdict_fail(out, "step %d: %.1f s are left, expected %.1f: %.160s", step, got, want,
                        line);
    }
}

/* One line about `step`; the one before was about `last`, 0: none. */
static void check_line(const ls_case *row, const ls_record *job, const char *line, int last,
                       int step, ls_verdict *out)
{
    const ls_spec *spec = &row->job[0];
    const ls_subject_lines *printed = row->data;
    const ls_record_step *seen = ls_record_find_step(&job->rank[0], step);
    const ls_record_step *before = ls_record_find_step(&job->rank[0], last);
    int number = 0, of = 0, used = 0;
    double loss, lr, scale, rate = NAN;
    bool skipped = strstr(line, "(skipped)") != NULL;
    bool read = sscanf(line, "step %9d/%9d loss %lf lr %lf scale %lf%n", &number, &of, &loss, &lr,
                       &scale, &used) == 5;
    read = read && sscanf(line + used, skipped ? " (skipped) %lf img/s" : " %lf img/s", &rate) == 1;
    if (!read || seen == NULL || number != step || of != spec->steps) {
        ls_verdict_fail(out, "expected the line of step %d/%d: %.160s", step, spec->steps, line);
        return;
    }
    if (!(fabs(loss - seen->loss) <= fourth_place.value) ||
        !(fabs(lr - seen->lr) <= six_digits.value * lr) ||
        !(fabs(lr - spec->lr) <= six_digits.value * lr) ||
        !(fabs(scale - seen->loss_scale_next) <= six_digits.value * scale) ||
        skipped != seen->skipped) {
        ls_verdict_fail(out, "step %d: its event says loss %.4f, lr %g, scale %g, %s: %.160s", step,
                        seen->loss, seen->lr, seen->loss_scale_next,
                        seen->skipped ? "skipped" : "taken", line);
    }
    double seconds = before != NULL ? (seen->at_ns - before->at_ns) * 1e-9 : NAN;
    double images = images_of(job, last, step), want = images / seconds;
    if (last > 0) {
        check_left(line, step, spec->steps, seconds / (step - last), printed->left, out);
    }
    if (last > 0 && !(fabs(rate - want) <= printed_rate.value + printed_ends.value * want)) {
        ls_verdict_fail(out,
                        "step %d prints %.1f images/s; %.0f of all ranks came in %.3f ms: %.1f",
                        step, rate, images, seconds * 1e3, want);
    }
}

/* The first step has a line, and every step that --print-freq divides, and the last. */
static int next_printed(int last, int every, int steps)
{
    int next = last == 0 ? 1 : (last / every + 1) * every;
    return next < steps ? next : steps;
}

void ls_subject_printed(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const int every = ((const ls_subject_lines *)row->data)->every, steps = row->job[0].steps;
    char path[700];
    int last = 0, lines = 0;
    for (int k = 0; k < job->world; k++) {
        ls_text_put(path, sizeof path, "%s/rank%d.log", job->directory, k);
        char *text = ls_text_read(path), *rest = NULL;
        char *line = text != NULL ? strtok_r(text, "\n", &rest) : NULL;
        for (; line != NULL; line = strtok_r(NULL, "\n", &rest)) {
            if (strncmp(line, "step ", 5) != 0) {
                continue;
            }
            if (k > 0 || last == steps) {
                ls_verdict_fail(out, "rank=%d prints a line too many: %.160s", k, line);
                break;
            }
            int step = next_printed(last, every, steps);
            check_line(row, job, line, last, step, out);
            last = step;
            lines++;
        }
        free(text);
    }
    if (last < steps) {
        ls_verdict_fail(out, "%d lines, the last of step %d: expected one of step %d", lines, last,
                        next_printed(last, every, steps));
    }
    ls_verdict_pass(out, lines,
                    "%d lines of rank 0 print what its events report, other ranks print none",
                    lines);
}
