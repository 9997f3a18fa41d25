#include "speed.h"

#include <math.h>
#include <stdlib.h>

#include "harness/report/stats.h"
#include "kernels/core/list.h"

enum {
    FIRST = 3 /* the first steps allocate, choose algorithms and run the model again in FP64 */
};

static bool is_steady(const ls_observe_step *step)
{
    double total = step->step->total_ms;
    return step->step->step >= FIRST && !step->detail && total > 0;
}

/* Time of a step without the attach module's; a trainer of the protocol leaves its own out. */
static double own_ms(const ls_observe_trace *trace, const ls_record_step *step)
{
    double instrument = trace->attached && step->instrument_ms > 0 ? step->instrument_ms : 0;
    return step->total_ms > instrument ? step->total_ms - instrument : step->total_ms;
}

static double known(double value)
{
    return value > 0 ? value : 0;
}

/* Adds up the steady steps of a rank; *work: the median of its own work in ms. */
static void sum_rank(const ls_observe_trace *trace, const ls_observe_rank *rank,
                     ls_observe_speed_rank *out, double *work)
{
    double *total = ls_list_make((size_t)rank->step_count + 1, sizeof *total);
    double *own = ls_list_make((size_t)rank->step_count + 1, sizeof *own);
    double images = 0, sum = 0, data = 0, forward = 0, backward = 0, optimizer = 0;
    for (int i = 0; i < rank->step_count; i++) {
        const ls_record_step *step = rank->step[i].step;
        if (!is_steady(&rank->step[i])) {
            continue;
        }
        total[out->steps] = own_ms(trace, step);
        own[out->steps] =
            known(step->data_ms) + known(step->forward_ms) + known(step->optimizer_ms);
        sum += total[out->steps++];
        images += (double)step->images;
        data += known(step->data_ms);
        forward += known(step->forward_ms);
        backward += known(step->backward_ms);
        optimizer += known(step->optimizer_ms);
    }
    out->images_per_s = sum > 0 ? images / sum * 1000 : NAN;
    out->step_ms_p50 = ls_stats_percentile(total, out->steps, 0.5);
    out->step_ms_p90 = ls_stats_percentile(total, out->steps, 0.9);
    out->data = sum > 0 ? data / sum : NAN;
    out->forward = sum > 0 ? forward / sum : NAN;
    out->backward = sum > 0 ? backward / sum : NAN;
    out->optimizer = sum > 0 ? optimizer / sum : NAN;
    *work = ls_stats_percentile(own, out->steps, 0.5);
    free(total);
    free(own);
}

/* Ranks step together: the one with the longest median step says how long a step is. */
static void take_steps(ls_observe_speed *s, const ls_observe_speed_rank *rank)
{
    if (isnan(s->step_ms_p50) || rank->step_ms_p50 > s->step_ms_p50) {
        s->step_ms_p50 = rank->step_ms_p50;
        s->step_ms_p90 = rank->step_ms_p90;
        s->data = rank->data;
        s->forward = rank->forward;
        s->backward = rank->backward;
        s->optimizer = rank->optimizer;
    }
    s->steps = s->ranks == 0 || rank->steps < s->steps ? rank->steps : s->steps;
    s->images_per_s = (s->ranks == 0 ? 0 : s->images_per_s) + rank->images_per_s;
    s->ranks++;
}

void ls_observe_speed_read(const ls_observe_trace *trace, ls_observe_speed *out)
{
    *out = (ls_observe_speed){.images_per_s = NAN,
                              .step_ms_p50 = NAN,
                              .step_ms_p90 = NAN,
                              .data = NAN,
                              .forward = NAN,
                              .backward = NAN,
                              .optimizer = NAN,
                              .instrument = NAN,
                              .slowest = -1,
                              .slowest_ms = NAN,
                              .other_ms = NAN,
                              .rank_count = trace->world};
    out->rank = ls_list_make((size_t)trace->world, sizeof *out->rank);
    double *work = ls_list_make((size_t)trace->world, sizeof *work);
    int works = 0;
    for (int k = 0; k < trace->world; k++) {
        double own;
        sum_rank(trace, &trace->rank[k], &out->rank[k], &own);
        double share = ls_event_number(trace->rank[k].cost, share, NAN);
        out->instrument = fmax(out->instrument, share); /* fmax leaves NaN out */
        if (out->rank[k].steps == 0) {
            continue;
        }
        take_steps(out, &out->rank[k]);
        if (isnan(out->slowest_ms) || own > out->slowest_ms) {
            out->slowest = k;
            out->slowest_ms = own;
        }
        work[works++] = own;
    }
    out->other_ms = ls_stats_percentile(work, works, 0.5);
    free(work);
}

void ls_observe_speed_free(ls_observe_speed *speed)
{
    free(speed->rank);
    *speed = (ls_observe_speed){0};
}

void ls_observe_speed_print(const ls_observe_speed *s, FILE *out)
{
    if (s->ranks == 0) {
        fprintf(out, "speed: no steady steps (the third and later ones that were not looked at in "
                     "detail)\n");
        return;
    }
    fprintf(out, "speed: %.1f images/s on %d ranks over %d steady steps", s->images_per_s, s->ranks,
            s->steps);
    for (int k = 0; k < s->rank_count && s->rank_count <= 8; k++) {
        fprintf(out, "%s%.1f%s", k == 0 ? " (" : " + ", s->rank[k].images_per_s,
                k == s->rank_count - 1 ? ")" : "");
    }
    fprintf(out, "\n  step %.2f ms, 90 %% within %.2f ms", s->step_ms_p50, s->step_ms_p90);
    fprintf(out, "; data wait %.0f %%, forward %.0f %%, backward %.0f %%, optimizer %.0f %%\n",
            100 * s->data, 100 * s->forward, 100 * s->backward, 100 * s->optimizer);
    if (s->ranks > 1) {
        fprintf(out, "  slowest rank %d: %.2f ms of its own work a step, the median rank %.2f ms\n",
                s->slowest, s->slowest_ms, s->other_ms);
    }
    if (!isnan(s->instrument)) {
        fprintf(out, "  observing took %.1f %% of the job\n", 100 * s->instrument);
    }
}
