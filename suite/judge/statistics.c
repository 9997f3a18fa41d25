#include "judges.h"

#include <math.h>
#include <string.h>

enum { SIZE = 16, PLANES = 16, RANKS_MAX = 8 };

/* ---- bn1's statistics in FP64 ---------------------------------------------------------------- */

typedef struct sums {
    double count, sum[PLANES], square[PLANES];
} sums;

/* conv1 is 3x3 with padding 1 and stride 1; image [3][SIZE][SIZE], weight [PLANES][3][3][3]. */
static void add_image(const float *image, const float *weight, const double *centre, sums *to)
{
    for (int p = 0; p < PLANES; p++) {
        for (int y = 0; y < SIZE; y++) {
            for (int x = 0; x < SIZE; x++) {
                double value = -centre[p];
                for (int k = 0; k < 27; k++) {
                    int c = k / 9, v = y + k / 3 % 3 - 1, u = x + k % 3 - 1;
                    if (v >= 0 && v < SIZE && u >= 0 && u < SIZE) {
                        value +=
                            (double)weight[p * 27 + k] * (double)image[(c * SIZE + v) * SIZE + u];
                    }
                }
                to->sum[p] += value;
                to->square[p] += value * value;
            }
        }
    }
    to->count += SIZE * SIZE;
}

static const float *floats_of(const ls_dumpfile *file, const char *name, int64_t *count,
                              ls_verdict *out)
{
    const ls_dumpfile_entry *entry = ls_dumpfile_find(file, name);
    const float *data = ls_dumps_data(entry, "F32");
    if (data == NULL) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the dump has no %s in F32", name);
    } else {
        *count = entry->count;
    }
    return data;
}

/* Sums of one rank's batch, around zero. */
static bool sums_of(const ls_record *job, int step, int rank, sums *to, ls_verdict *out)
{
    static const double zero[PLANES] = {0};
    ls_dumpfile *file = ls_dumps_open(job, step, rank, out);
    int64_t input_count = 0, weight_count = 0;
    if (file == NULL) {
        return false;
    }
    const float *input = floats_of(file, "input", &input_count, out);
    const float *weight = floats_of(file, "param/conv1.weight", &weight_count, out);
    bool good = input != NULL && weight != NULL && weight_count == PLANES * 27;
    memset(to, 0, sizeof *to);
    for (int64_t i = 0; good && i < input_count / (3 * SIZE * SIZE); i++) {
        add_image(input + i * 3 * SIZE * SIZE, weight, zero, to);
    }
    ls_dumpfile_close(file);
    return good;
}

static const ls_tol statistics_tol = LS_TOL(
    2e-5, "f32 conv of 27 products (27 * 6e-8), f32 mean and deviations of a few hundred "
          "values and their sum over ranks, relative to what they moved by; wrong groups or counts "
          "are off by 1e-4 and more");

/* buffer/bn1.* of a rank against its group's sums. */
static double compare_buffers(const ls_record *job, int step, int rank, const sums *group,
                              const float *before_mean, const float *before_var, ls_verdict *out)
{
    ls_dumpfile *file = ls_dumps_open(job, step, rank, out);
    int64_t count = 0;
    double worst = 0;
    if (file == NULL) {
        return 0;
    }
    const float *mean = floats_of(file, "buffer/bn1.running_mean", &count, out);
    const float *var = floats_of(file, "buffer/bn1.running_var", &count, out);
    for (int p = 0; mean != NULL && var != NULL && p < PLANES; p++) {
        double mu = group->sum[p] / group->count;
        double m2 = group->square[p] - group->sum[p] * mu;
        double old_mean = before_mean == NULL ? 0 : (double)before_mean[p];
        double old_var = before_var == NULL ? 1 : (double)before_var[p];
        double want_mean = 0.9 * old_mean + 0.1 * mu;
        double want_var = 0.9 * old_var + 0.1 * m2 / (group->count - 1);
        double variance = m2 / group->count;
        /* the running variance is near 1: storing it costs two f32 roundings there */
        double var_off = fmax(0, fabs((double)var[p] - want_var) - 0x1p-23);
        double off = fmax(fabs((double)mean[p] - want_mean) / (0.1 * sqrt(variance)),
                          var_off / (0.1 * variance));
        worst = fmax(worst, off);
        if (!(off <= statistics_tol.value)) {
            ls_verdict_fail(out,
                            "rank=%d bn1 channel %d: running mean %.7f and variance %.7f, expected "
                            "%.7f and %.7f over %.0f values",
                            rank, p, (double)mean[p], (double)var[p], want_mean, want_var,
                            group->count);
        }
    }
    ls_dumpfile_close(file);
    return worst;
}

/* Whether every rank's running means moved by a tenth towards `mean`, [world][PLANES]. */
static bool moved_to(const ls_record *job, int step, const float *before_mean,
                     double (*mean)[PLANES], const sums *own)
{
    bool fits = true;
    for (int rank = 0; rank < job->world && fits; rank++) {
        ls_verdict unused = {.code = LS_PASS};
        int64_t count = 0;
        ls_dumpfile *file = ls_dumps_open(job, step, rank, &unused);
        const float *held =
            file == NULL ? NULL : floats_of(file, "buffer/bn1.running_mean", &count, &unused);
        fits = held != NULL && count == PLANES;
        for (int p = 0; p < PLANES && fits; p++) {
            const sums *s = &own[rank];
            double mu = s->sum[p] / s->count, variance = s->square[p] / s->count - mu * mu;
            double old = before_mean == NULL ? 0 : (double)before_mean[p];
            fits = fabs((double)held[p] - (0.9 * old + 0.1 * mean[rank][p])) <=
                   statistics_tol.value * 0.1 * sqrt(variance);
        }
        ls_dumpfile_close(file);
    }
    return fits;
}

/* Means of other ranks than the group's, and of its ranks with other weights. */
static void explain(const ls_record *job, int step, int size, const float *before_mean,
                    const sums *own, ls_verdict *out)
{
    double alike[RANKS_MAX][PLANES] = {{0}}, alone[RANKS_MAX][PLANES];
    bool uneven = false; /* else the ranks' mean is the right one */
    for (int rank = 0; rank < job->world; rank++) {
        uneven = uneven || own[rank].count != own[rank / size * size].count;
        for (int p = 0; p < PLANES; p++) {
            alone[rank][p] = own[rank].sum[p] / own[rank].count;
            for (int i = rank / size * size; i < (rank / size + 1) * size; i++) {
                alike[rank][p] += own[i].sum[p] / own[i].count / size;
            }
        }
    }
    if (size > 1 && moved_to(job, step, before_mean, alone, own)) {
        ls_verdict_cause(out, "running means are each rank's own: SyncBN was not in use");
    } else if (uneven && moved_to(job, step, before_mean, alike, own)) {
        ls_verdict_cause(out, "running means weight each rank alike, however many images it has");
    }
}

void ls_judge_statistics(const ls_record *job, int step, int size, const float *before_mean,
                         const float *before_var, ls_verdict *out)
{
    sums own[RANKS_MAX];
    double worst = 0;
    LS_ASSERT(job->world <= RANKS_MAX);
    for (int rank = 0; rank < job->world; rank++) {
        if (!sums_of(job, step, rank, &own[rank], out)) {
            return;
        }
    }
    for (int rank = 0; rank < job->world; rank++) {
        sums group = {0};
        for (int i = rank / size * size; i < (rank / size + 1) * size; i++) {
            group.count += own[i].count;
            for (int p = 0; p < PLANES; p++) {
                group.sum[p] += own[i].sum[p];
                group.square[p] += own[i].square[p];
            }
        }
        worst = fmax(worst, compare_buffers(job, step, rank, &group, before_mean, before_var, out));
    }
    ls_verdict_measured(out, worst, statistics_tol.value, "of the deviation", statistics_tol.why);
    if (out->code == LS_FAIL) {
        explain(job, step, size, before_mean, own, out);
    }
    ls_verdict_pass(out, "bn1 of %d ranks over groups of %d: worst %.1e of the deviation",
                    job->world, size, worst);
}
