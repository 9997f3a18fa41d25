/* Running statistics of batch norm: recomputed for the first one, whose input (a 3x3 convolution of
 * the images) can be had from the dump alone. All batch norms are one piece of code. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "kernels/core/half.h"
#include "kernels/core/list.h"
#include "suite/judge/judges.h"
#include "suite/cases/overflow.h"

enum { CHANNELS = 16, IMAGE = 16, BATCH = 4, PLANE = IMAGE * IMAGE, STEPS = 2, RANKS_MAX = 4 };

static const ls_tol exact = LS_TOL(
    1e-5, "f32 sums of 27 products and of 1024 values, in units of mean and deviation: a few "
          "hundred units of 2^-24 at worst; the n/(n-1) of the variance is 1e-3");
static const ls_tol half = LS_TOL(
    5e-4, "each stored value is off by at most 2^-11 of itself: the recomputation rounds alike, "
          "but for ties that f32 sums decide otherwise; momentum is 0.1");

typedef struct moments {
    double mean[CHANNELS], variance[CHANNELS];
    int64_t count; /* values per channel */
} moments;

static float rounded(float value, bool to_half)
{
    return to_half ? ls_half_fp16_to_f32(ls_half_f32_to_fp16(value)) : value;
}

/* out[PLANE] = 3x3 convolution, stride 1, padding 1, of image[3,IMAGE,IMAGE]. */
static void convolve(const float *image, const float *weight, bool to_half, double *out)
{
    for (int y = 0; y < IMAGE; y++) {
        for (int x = 0; x < IMAGE; x++) {
            double sum = 0;
            for (int tap = 0; tap < 27; tap++) {
                int c = tap / 9, v = y + tap / 3 % 3 - 1, u = x + tap % 3 - 1;
                if (v >= 0 && v < IMAGE && u >= 0 && u < IMAGE) {
                    sum += (double)rounded(image[c * PLANE + v * IMAGE + u], to_half) *
                           (double)weight[tap];
                }
            }
            out[y * IMAGE + x] = to_half ? (double)rounded((float)sum, true) : sum;
        }
    }
}

static void weight_of(const float *kernel, int channel, bool to_half, float *weight)
{
    for (int tap = 0; tap < 27; tap++) {
        weight[tap] = rounded(kernel[channel * 27 + tap], to_half);
    }
}

/* Moments of the convolution's output over the images of `files` ranks. */
static void take_moments(const float *const *input, int files, const float *kernel, bool to_half,
                         moments *out)
{
    double *plane = ls_list_make(1, sizeof *plane * PLANE * BATCH * (size_t)files);
    out->count = (int64_t)PLANE * BATCH * files;
    for (int c = 0; c < CHANNELS; c++) {
        float weight[27];
        weight_of(kernel, c, to_half, weight);
        double sum = 0, squares = 0;
        for (int n = 0; n < BATCH * files; n++) {
            const float *images = input[n / BATCH];
            convolve(images + (n % BATCH) * 3 * PLANE, weight, to_half, plane + n * PLANE);
        }
        for (int64_t i = 0; i < out->count; i++) {
            sum += plane[i];
        }
        out->mean[c] = sum / (double)out->count;
        for (int64_t i = 0; i < out->count; i++) {
            squares += (plane[i] - out->mean[c]) * (plane[i] - out->mean[c]);
        }
        out->variance[c] = squares / (double)out->count;
    }
    free(plane);
}

typedef struct dumps {
    ls_dumpfile *file[RANKS_MAX];
    int count;
} dumps;

static void close_dumps(dumps *d)
{
    for (int k = 0; k < d->count; k++) {
        ls_dumpfile_close(d->file[k]);
    }
    d->count = 0;
}

static bool open_dumps(const ls_record *job, int step, dumps *d, ls_verdict *out)
{
    d->count = 0;
    for (int k = 0; k < job->world && k < RANKS_MAX; k++) {
        d->file[k] = ls_dumps_open(job, step, k, out);
        if (d->file[k] == NULL) {
            close_dumps(d);
            return false;
        }
        d->count++;
    }
    return true;
}

static const float *floats(const ls_dumpfile *file, const char *name, int64_t count)
{
    const ls_dumpfile_entry *entry = ls_dumpfile_find(file, name);
    return entry != NULL && entry->count == count ? ls_dumps_data(entry, "F32") : NULL;
}

/* ---- the cause ------------------------------------------------------------------------------- */

/* How running values can come about, rightly and wrongly. */
static const struct recipe {
    const char *mistake;
    double momentum; /* share of the new moments */
    bool biased, others, spread;
    int times;
} recipes[] = {
    {"the variance is the biased one: n instead of n - 1", 0.1, true, false, false, 1},
    {"old and new have changed places: 0.9 of the new moments", 0.9, false, false, false, 1},
    {"they moved twice", 0.1, false, false, false, 2},
    {"they did not move", 0.1, false, false, false, 0},
    {"they are simply the last batch's", 1, false, false, false, 1},
    {"the deviation was kept instead of the variance", 0.1, false, false, true, 1},
    {"they come from other ranks' samples: each rank alone under SyncBN, or all without it", 0.1,
     false, true, false, 1},
};

/* Running values as a recipe makes them; mean[], var[]: the ones before. */
static void cook(const struct recipe *r, const moments *m, double *mean, double *var)
{
    for (int time = 0; time < r->times; time++) {
        for (int c = 0; c < CHANNELS; c++) {
            double n = (double)m->count, share = r->momentum;
            double new_var = r->biased ? m->variance[c] : m->variance[c] * n / (n - 1);
            new_var = r->spread ? sqrt(new_var) : new_var;
            mean[c] = (1 - share) * mean[c] + share * m->mean[c];
            var[c] = (1 - share) * var[c] + share * new_var;
        }
    }
}

/* How far the values seen are from what a recipe makes of those before, relative. */
static double misfit(const struct recipe *r, const moments *own, const moments *of,
                     const double *mean_before, const double *var_before, const float *mean,
                     const float *var)
{
    double want_mean[CHANNELS], want_var[CHANNELS], worst = 0;
    memcpy(want_mean, mean_before, sizeof want_mean);
    memcpy(want_var, var_before, sizeof want_var);
    cook(r, of, want_mean, want_var);
    for (int c = 0; c < CHANNELS; c++) {
        double scale = fabs(want_mean[c]) + sqrt(own->variance[c]);
        worst = fmax(worst, fabs((double)mean[c] - want_mean[c]) / scale);
        worst = fmax(worst, fabs((double)var[c] - want_var[c]) / want_var[c]);
    }
    return worst;
}

static void explain(const moments *own, const moments *other, const double *mean_before,
                    const double *var_before, const float *mean, const float *var, double limit,
                    ls_verdict *out)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes && out->cause[0] == '\0'; i++) {
        double worst = misfit(&recipes[i], own, recipes[i].others ? other : own, mean_before,
                              var_before, mean, var);
        if (worst <= limit) {
            ls_verdict_cause(out, "running statistics: %s (residual %.0e)", recipes[i].mistake,
                             worst);
        }
    }
}

/* The rank's own values before the step went on, not rank 0's. */
static void explain_unsent(const moments *own, const double *mean_before, const double *var_before,
                           const float *mean, const float *var, double limit, ls_verdict *out)
{
    static const struct recipe right = {"", 0.1, false, false, false, 1};
    if (out->cause[0] == '\0' &&
        misfit(&right, own, own, mean_before, var_before, mean, var) <= limit) {
        ls_verdict_cause(
            out, "the rank went on with its own: rank 0's running statistics were not sent");
    }
}

/* One rank after one step; mean[] and var[] hold the running values before it, and after it on
 * return; kept_mean[] and kept_var[]: the rank's own before it, where rank 0's were to come. */
static void judge_rank(const ls_case *row, const dumps *d, int rank, int step, double *mean,
                       double *var, const double *kept_mean, const double *kept_var,
                       ls_verdict *out)
{
    const ls_spec *spec = &row->job[0];
    bool to_half = spec->level > 0;
    const float *all[RANKS_MAX], *input[RANKS_MAX];
    int files = spec->sync_bn ? d->count : 1;
    for (int k = 0; k < d->count; k++) {
        all[k] = floats(d->file[k], "input", BATCH * 3 * PLANE);
    }
    for (int k = 0; k < files; k++) {
        input[k] = all[spec->sync_bn ? k : rank];
    }
    const ls_dumpfile *mine = d->file[rank];
    const ls_dumpfile_entry *held = ls_dumpfile_find(mine, "param/conv1.weight");
    float kernel[CHANNELS * 27];
    const float *new_mean = floats(mine, "buffer/bn1.running_mean", CHANNELS);
    const float *new_var = floats(mine, "buffer/bn1.running_var", CHANNELS);
    if (held == NULL || held->count != CHANNELS * 27 || new_mean == NULL || new_var == NULL ||
        input[0] == NULL) {
        ls_verdict_fail(out, "rank=%d step %d: the dump lacks input, conv1 or bn1's buffers", rank,
                        step);
        return;
    }
    ls_dumpfile_read_f32(held, kernel);
    moments m;
    take_moments(input, files, kernel, to_half, &m);
    const ls_tol *limit = to_half ? &half : &exact;
    double mean_before[CHANNELS], var_before[CHANNELS];
    memcpy(mean_before, mean, sizeof mean_before);
    memcpy(var_before, var, sizeof var_before);
    bool was_good = out->code == LS_PASS;
    for (int c = 0; c < CHANNELS; c++) {
        double unbiased = m.variance[c] * (double)m.count / (double)(m.count - 1);
        double want_mean = 0.9 * mean[c] + 0.1 * m.mean[c]; /* torch.nn.BatchNorm2d: momentum 0.1 */
        double want_var = 0.9 * var[c] + 0.1 * unbiased;
        double deviation = sqrt(m.variance[c]);
        double off_mean = fabs((double)new_mean[c] - want_mean) / (fabs(want_mean) + deviation);
        double off_var = fabs((double)new_var[c] - want_var) / want_var;
        double worst = off_mean > off_var ? off_mean : off_var;
        if (!out->measured || worst > out->value) {
            ls_verdict_measured(out, worst, limit->value, "relative", limit->why);
        }
        if (!(worst <= limit->value)) {
            ls_verdict_fail(
                out, "rank=%d step %d bn1 channel %d: running mean %g var %g, expected %g and %g",
                rank, step, c, (double)new_mean[c], (double)new_var[c], want_mean, want_var);
        }
        mean[c] = (double)new_mean[c];
        var[c] = (double)new_var[c];
    }
    if (was_good && out->code == LS_FAIL) {
        moments other;
        take_moments(spec->sync_bn ? &all[rank] : all, spec->sync_bn ? 1 : d->count, kernel,
                     to_half, &other);
        explain(&m, &other, mean_before, var_before, new_mean, new_var, limit->value, out);
        explain_unsent(&m, kept_mean, kept_var, new_mean, new_var, limit->value, out);
    }
}

static void judge_counter(const dumps *d, int rank, int step, ls_verdict *out)
{
    const ls_dumpfile_entry *counter =
        ls_dumpfile_find(d->file[rank], "buffer/bn1.num_batches_tracked");
    int64_t count = -1;
    if (counter == NULL || counter->count != 1 || !ls_dumpfile_read_i64(counter, &count) ||
        count != step) {
        ls_verdict_fail(out, "rank=%d step %d: bn1.num_batches_tracked is not %d", rank, step,
                        step);
    }
}

static void judge_running(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    bool from_rank_0 = strcmp(row->job[0].dialect, "torch") == 0;
    double mean[RANKS_MAX][CHANNELS], var[RANKS_MAX][CHANNELS];
    for (int i = 0; i < RANKS_MAX * CHANNELS; i++) {
        mean[i / CHANNELS][i % CHANNELS] = 0;
        var[i / CHANNELS][i % CHANNELS] = 1;
    }
    for (int step = 1; step <= STEPS; step++) {
        dumps d;
        if (!open_dumps(job, step, &d, out)) {
            return;
        }
        double kept_mean[RANKS_MAX][CHANNELS], kept_var[RANKS_MAX][CHANNELS];
        memcpy(kept_mean, mean, sizeof kept_mean);
        memcpy(kept_var, var, sizeof kept_var);
        for (int k = 1; k < d.count && from_rank_0; k++) {
            memcpy(mean[k], mean[0], sizeof mean[k]); /* rank 0's came before the forward */
            memcpy(var[k], var[0], sizeof var[k]);
        }
        for (int k = 0; k < d.count; k++) {
            judge_rank(row, &d, k, step, mean[k], var[k], kept_mean[k], kept_var[k], out);
            judge_counter(&d, k, step, out);
        }
        close_dumps(&d);
    }
    ls_verdict_pass(
        out, "bn1's running mean and variance of %d ranks over %d steps, off by %.1e at most",
        job->world, STEPS, out->value);
}

/* ---- given ones ------------------------------------------------------------------------------ */

/* last_buffer/ of step 1, every rank's, are the statistics of the file. */
static void judge_given(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int compared = 0, seen_before = 0;
    ls_dumpfile *given = ls_dumps_open_file(job, "../../overflow/moved.safetensors", LS_INFRA, out);
    if (given == NULL) {
        return;
    }
    for (int k = 0; k < job->world; k++) {
        ls_dumpfile *file = ls_dumps_open(job, 1, k, out);
        for (int i = 0; i < ls_dumpfile_count(given) && file != NULL; i++) {
            const ls_dumpfile_entry *entry = ls_dumpfile_at(given, i);
            if (strstr(entry->name, ".running_") == NULL) {
                continue;
            }
            const ls_dumpfile_entry *seen = ls_dumpfile_findf(file, "last_buffer/%s", entry->name);
            seen_before += seen != NULL;
            compared++;
            if (seen != NULL && !ls_dumps_equal(seen, entry)) {
                ls_verdict_fail(out, "rank=%d: %s before step 1 is not what --init gave", k,
                                entry->name);
            }
        }
        ls_dumpfile_close(file);
    }
    ls_dumpfile_close(given);
    if (seen_before < compared || compared == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the dumps lack running statistics before the step");
    }
    ls_verdict_pass(out, "%d running statistics of %d ranks are those of the file", compared,
                    job->world);
}

static const ls_row rows[] = {
    /* O3 stores them in half: other families judge them */
    {"statistics[|.sync=sync].o[0|1|2].w2", "B1", judge_running, "O$2 w2 b0.1 $1 dump=1,2"},
    {"statistics.torch.o[0|1].w2", "B6", judge_running, "O$1 w2 b0.1 torch dump=1,2"},
    {"statistics.given.[apex=|torch].o0.w2", "B7", judge_given,
     "O0 w2 $1 steps=1 dump=1 batches=moved@"},
};

void ls_statistics_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
