#include "mean.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"

/* n roundings of relative error u, exactly: n u / (1 - n u). */
static double gamma_of(double n, double u)
{
    return n * u < 1 ? n * u / (1 - n * u) : INFINITY;
}

static bool is_between_backwards(const ls_observe_step *step)
{
    int first = ls_trace_find(step, LS_CALL_BACKWARD, 0), last = first;
    for (int c = first; c >= 0; c = ls_trace_find(step, LS_CALL_BACKWARD, c + 1)) {
        last = c;
    }
    int zero = first < 0 ? -1 : ls_trace_find(step, LS_CALL_ZERO_GRAD, first);
    return zero >= 0 && zero < last;
}

ls_mean_plan ls_mean_plan_of(const ls_samples *samples, int rank)
{
    ls_mean_plan plan = {.world = samples->world, .scale = 1};
    const ls_observe_step *step = samples->step[rank];
    const ls_dumpfile *file = samples->file[rank];
    if (!samples->trace->attached) {
        /* accumulated in f32, converted and reduced once */
        const char *type = file == NULL ? "fp32" : ls_dumpfile_text(file, "reduced_type", "fp32");
        plan.backwards = file == NULL ? 1 : (int)ls_dumpfile_integer(file, "accumulate", 1);
        plan.reductions = 1;
        plan.scale = file == NULL ? 1 : ls_dumpfile_number(file, "loss_scale", 1);
        plan.sent_as = strcmp(type, "fp16") == 0   ? "f16"
                       : strcmp(type, "bf16") == 0 ? "bf16"
                                                   : NULL;
        return plan;
    }
    for (int c = ls_trace_find(step, LS_CALL_BACKWARD, 0); c >= 0;
         c = ls_trace_find(step, LS_CALL_BACKWARD, c + 1)) {
        plan.backwards += step->call[c].times;
        if (ls_event_bool(step->call[c].json, sync, true)) {
            plan.reductions += step->call[c].times;
        }
    }
    plan.zeroed = is_between_backwards(step);
    return plan;
}

bool ls_mean_plan_for(const ls_samples *samples, const char *name, ls_mean_plan *plan)
{
    plan->since = plan->zeroed;
    for (int k = 0; k < samples->world && plan->since; k++) {
        plan->since = ls_samples_find(samples->file[k], "since", name, NULL) != NULL;
    }
    return !plan->zeroed || plan->since;
}

/* Roundings on the way, of `grown`, the mean over ranks of the sums of sizes: A - 1 additions of
 * micro-steps in the gradient's type; in each reduction a conversion, 1/W, the product with it,
 * W - 1 additions and a conversion back in the type that is sent. */
static double bound_of(const ls_mean_plan *plan, ls_unit held, ls_unit sent, double grown)
{
    double reductions = plan->reductions > 0 ? plan->reductions : 1;
    double adds = plan->backwards, steps = reductions * (plan->world + 3.0);
    double a = gamma_of(adds, held.u), r = gamma_of(steps, sent.u);
    double scale = plan->scale > 0 ? plan->scale : 1;
    return grown * (a + r + a * r) + (adds * held.eta + steps * sent.eta) / scale;
}

static void sum_rank(ls_mean *mean, const ls_samples *samples, int rank, const char *group,
                     const char *name, double *grown, double *largest)
{
    const ls_values *local = &mean->local[rank];
    ls_values sizes = ls_samples_read(samples->file[rank], group, name, NULL);
    for (int64_t i = 0; i < mean->count; i++) {
        double size =
            sizes.v != NULL && sizes.count == mean->count ? sizes.v[i] : fabs(local->v[i]);
        mean->mean[i] += local->v[i] / mean->world;
        grown[i] += size / mean->world;
        largest[i] = fmax(largest[i], size);
    }
    ls_values_free(&sizes);
}

static bool read_locals(const ls_samples *samples, const char *group, const char *name,
                        ls_mean *out)
{
    for (int k = 0; k < samples->world; k++) {
        out->local[k] = ls_samples_read(samples->file[k], group, name, NULL);
        if (out->local[k].v == NULL) {
            continue;
        }
        if (out->count != 0 && out->count != out->local[k].count) {
            return false;
        }
        out->count = out->local[k].count;
    }
    return out->count > 0;
}

static bool ranks_differ(const ls_mean *mean)
{
    for (int k = 1; k < mean->world; k++) {
        bool both = mean->local[0].v != NULL && mean->local[k].v != NULL;
        if (both ? !ls_values_equal(&mean->local[0], &mean->local[k])
                 : mean->local[0].v != mean->local[k].v) {
            return true;
        }
    }
    return false;
}

bool ls_mean_make(const ls_samples *samples, const ls_mean_plan *plan, const char *name,
                  const char *type, ls_mean *out)
{
    *out = (ls_mean){.world = samples->world,
                     .local = ls_list_make((size_t)samples->world, sizeof *out->local)};
    if (!read_locals(samples, plan->since ? "since" : "local", name, out) ||
        !ls_samples_aligned(samples, name)) {
        ls_mean_free(out);
        return false;
    }
    size_t count = (size_t)out->count;
    ls_unit held = ls_samples_unit(type);
    ls_unit sent = plan->sent_as == NULL ? held : ls_samples_unit(plan->sent_as);
    double *grown = ls_list_make(count, sizeof *grown);
    double *largest = ls_list_make(count, sizeof *largest);
    out->mean = ls_list_make(count, sizeof *out->mean);
    out->bound = ls_list_make(count, sizeof *out->bound);
    out->overflow = ls_list_make(count, sizeof *out->overflow);
    for (int k = 0; k < samples->world; k++) {
        if (out->local[k].v != NULL) {
            sum_rank(out, samples, k, plan->since ? "since_abs" : "local_abs", name, grown,
                     largest);
        }
    }
    for (size_t i = 0; i < count; i++) {
        double scale = plan->scale > 0 ? plan->scale : 1;
        out->bound[i] = bound_of(plan, held, sent, grown[i]);
        /* cast before it is divided, or summed before it is divided */
        out->overflow[i] = (grown[i] * out->world + out->bound[i]) * scale >= sent.most ||
                           largest[i] * scale >= sent.most;
    }
    out->differs = ranks_differ(out);
    free(grown);
    free(largest);
    return true;
}

void ls_mean_free(ls_mean *mean)
{
    for (int k = 0; mean->local != NULL && k < mean->world; k++) {
        ls_values_free(&mean->local[k]);
    }
    free(mean->local);
    free(mean->mean);
    free(mean->bound);
    free(mean->overflow);
    memset(mean, 0, sizeof *mean);
}

int64_t ls_mean_violations(const ls_mean *mean, const ls_values *got, double factor,
                           const double *offset, int64_t *worst, double *times)
{
    int64_t wrong = 0;
    *worst = 0;
    *times = 0;
    for (int64_t i = 0; i < mean->count && i < got->count; i++) {
        double wanted = factor * mean->mean[i] + (offset == NULL ? 0 : offset[i]);
        double error = fabs(got->v[i] - wanted);
        double room = mean->bound[i] * fmax(1, fabs(factor));
        if (!isfinite(wanted) || !isfinite(got->v[i])) {
            /* an overflow stays one; one that comes up needs a sum beyond the range */
            bool lost = !isfinite(wanted) && isfinite(got->v[i]);
            bool made = isfinite(wanted) && !isfinite(got->v[i]) && !mean->overflow[i];
            error = lost || made ? INFINITY : 0;
        }
        double ratio = error == 0 ? 0 : room > 0 ? error / room : INFINITY;
        wrong += ratio > 1;
        if (ratio > *times) {
            *times = ratio;
            *worst = i;
        }
    }
    return wrong;
}
