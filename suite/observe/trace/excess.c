#include "excess.h"

#include <math.h>
#include <string.h>

#include "kernels/core/list.h"
#include "samples.h"

static const ls_tol same_mean =
    LS_TOL(1e-2, "the ranks' gradients are averaged in f32, f16 or bf16 (2^-9 a value): a gradient "
                 "of the step before that is left in is of the size of the gradient itself");

/* What a step's own backward calls (group "local"), or those since the last zero_grad ("since"),
 * gave for a parameter: the mean over the ranks under
 * DistributedDataParallel, else the rank's own; false where a rank has no samples of it. */
static bool expected_of(const ls_observe_trace *trace, const ls_samples *samples, int rank,
                        const char *group, const char *name, int64_t count, double *mean)
{
    bool ddp = ls_trace_is_ddp(trace), known = true;
    for (int k = 0; k < trace->world && known; k++) {
        if (!ddp && k != rank) {
            continue;
        }
        ls_values local = ls_samples_read(samples->file[k], group, name, NULL);
        known = local.v != NULL && local.count == count;
        for (int64_t i = 0; known && i < count; i++) {
            mean[i] += local.v[i] / (ddp ? trace->world : 1);
        }
        ls_values_free(&local);
    }
    return known;
}

/* The multiple of `mean` that fits best: unscaling and clipping multiply by one number. */
static double fit(const ls_values *got, const double *mean)
{
    double product = 0, square = 0;
    for (int64_t i = 0; i < got->count; i++) {
        product += got->v[i] * mean[i];
        square += mean[i] * mean[i];
    }
    return square > 0 ? product / square : 1;
}

/* The distance of a parameter's gradient from what the step's own backward calls gave, relative to
 * that; NaN: not known. Of those since the last zero_grad: the gradient that the optimizer used,
 * from a multiple of theirs. */
static double excess_of(const ls_observe_trace *trace, const ls_samples *samples, int rank,
                        const char *group, const char *name)
{
    bool since = strcmp(group, "since") == 0;
    ls_values got = ls_samples_read(samples->file[rank], since ? "used" : "reduced", name, NULL);
    double error = 0, norm = 0;
    if (got.v != NULL && got.count > 0) {
        double *mean = ls_list_make((size_t)got.count, sizeof *mean);
        bool known = expected_of(trace, samples, rank, group, name, got.count, mean);
        double factor = known && since ? fit(&got, mean) : 1;
        for (int64_t i = 0; known && i < got.count; i++) {
            double wanted = factor * mean[i];
            error += (got.v[i] - wanted) * (got.v[i] - wanted);
            norm += wanted * wanted;
        }
        free(mean);
        /* An infinity that no backward of the step gave was left. */
        error = known && isfinite(norm) && !isfinite(error) ? INFINITY : error;
    }
    ls_values_free(&got);
    return norm > 0 && isfinite(norm) && !isnan(error) ? sqrt(error / norm) : NAN;
}

int ls_excess_in(const ls_observe_trace *trace, int rank, int64_t number, const char *group)
{
    ls_observe_finding none = {0};
    ls_samples samples;
    int more = -1;
    ls_samples_open(trace, number, &samples, &none);
    for (int t = 0; samples.count == trace->world && t < trace->rank[rank].tensor_count; t++) {
        double excess = excess_of(trace, &samples, rank, group, trace->rank[rank].tensor[t].name);
        if (!isnan(excess)) {
            more = excess > same_mean.value ? 1 : more < 0 ? 0 : more;
        }
    }
    ls_samples_close(&samples);
    return more;
}

bool ls_excess_is_made_by_hand(const ls_observe_trace *trace, int rank)
{
    bool reduces = trace->world > 1 && !ls_trace_is_ddp(trace);
    for (int64_t n = 0; !reduces && (n = ls_samples_next(trace, n)) != 0;) {
        if (ls_excess_in(trace, rank, n, "since") == 1) {
            return true;
        }
    }
    return false;
}
