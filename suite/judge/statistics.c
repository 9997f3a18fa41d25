#include "judges.h"

#include <math.h>
#include <string.h>

enum {
    SIZE = 16,
    PLANE = SIZE * SIZE,
    CHANNELS = LS_JUDGE_RUNNING_CHANNELS,
    TAPS = 27,
    RANKS_MAX = LS_JUDGE_RUNNING_RANKS
};

static const ls_tol exact = LS_TOL(
    2e-5, "f32 conv of 27 products (27 * 6e-8), f32 mean and deviations of a few hundred "
          "values and their sum over ranks, relative to what they moved by; wrong groups or counts "
          "are off by 1e-4 and more");
static const ls_tol half = LS_TOL(
    5e-4, "each stored value is off by at most 2^-11 of itself: the recomputation rounds alike, "
          "but for ties that f32 sums decide otherwise");

/* ---- samples --------------------------------------------------------------------------------- */

/* Of the output of conv1, by channel. */
typedef struct sums {
    double count, sum[CHANNELS], square[CHANNELS];
} sums;

static float rounded(float value)
{
    return (float)ls_bits_round(LS_BITS_F16, (double)value);
}

/* conv1 is 3x3 with padding 1 and stride 1; image [3][SIZE][SIZE], weight [CHANNELS][3][3][3]. */
static void add_image(const float *image, const float *weight, bool in_half, sums *to)
{
    for (int p = 0; p < CHANNELS; p++) {
        for (int i = 0; i < PLANE; i++) {
            double value = 0;
            for (int k = 0; k < TAPS; k++) {
                int c = k / 9, v = i / SIZE + k / 3 % 3 - 1, u = i % SIZE + k % 3 - 1;
                if (v >= 0 && v < SIZE && u >= 0 && u < SIZE) {
                    value +=
                        (double)weight[p * TAPS + k] * (double)image[(c * SIZE + v) * SIZE + u];
                }
            }
            value = in_half ? (double)rounded((float)value) : value;
            to->sum[p] += value;
            to->square[p] += value * value;
        }
    }
    to->count += PLANE;
}

static double mean_of(const sums *s, int p)
{
    return s->sum[p] / s->count;
}

static double variance_of(const sums *s, int p)
{
    return s->square[p] / s->count - mean_of(s, p) * mean_of(s, p);
}

/* Adds ranks from..from+size-1; `alike`: each rank with the same weight, however many images. */
static sums of_ranks(const sums *own, int from, int size, bool alike)
{
    sums all = {0};
    for (int i = from; i < from + size; i++) {
        all.count += own[i].count;
    }
    for (int i = from; i < from + size; i++) {
        double weight = alike ? all.count / size / own[i].count : 1;
        for (int p = 0; p < CHANNELS; p++) {
            all.sum[p] += weight * own[i].sum[p];
            all.square[p] += weight * own[i].square[p];
        }
    }
    return all;
}

/* ---- dumps ----------------------------------------------------------------------------------- */

void ls_judge_statistics_start(ls_judge_running running[RANKS_MAX])
{
    memset(running, 0, RANKS_MAX * sizeof *running);
    for (int i = 0; i < RANKS_MAX * CHANNELS; i++) {
        running[i / CHANNELS].var[i % CHANNELS] = 1;
    }
}

bool ls_judge_statistics_read(const ls_dumpfile *file, ls_judge_running *to)
{
    const ls_dumpfile_entry *mean = ls_dumpfile_find(file, "buffer/bn1.running_mean");
    const ls_dumpfile_entry *var = ls_dumpfile_find(file, "buffer/bn1.running_var");
    if (ls_dumps_data(mean, "F32") == NULL || ls_dumps_data(var, "F32") == NULL ||
        mean->count != CHANNELS || var->count != CHANNELS) {
        return false;
    }
    ls_dumpfile_read(mean, to->mean);
    ls_dumpfile_read(var, to->var);
    return true;
}

static bool read_rank(const ls_dumpfile *file, bool in_half, sums *own, ls_judge_running *held,
                      int64_t *batches)
{
    const ls_dumpfile_entry *input = ls_dumpfile_find(file, "input");
    const ls_dumpfile_entry *kernel = ls_dumpfile_find(file, "param/conv1.weight");
    const ls_dumpfile_entry *counter = ls_dumpfile_find(file, "buffer/bn1.num_batches_tracked");
    const float *images = ls_dumps_data(input, "F32");
    float weight[CHANNELS * TAPS], image[3 * PLANE];
    if (images == NULL || input->count % (3 * PLANE) != 0 || kernel == NULL ||
        kernel->count != CHANNELS * TAPS || counter == NULL || counter->count != 1 ||
        !ls_dumpfile_read_i64(counter, batches) || !ls_judge_statistics_read(file, held)) {
        return false;
    }
    ls_dumpfile_read_f32(kernel, weight);
    for (int i = 0; in_half && i < CHANNELS * TAPS; i++) {
        weight[i] = rounded(weight[i]);
    }
    memset(own, 0, sizeof *own);
    for (const float *at = images; at < images + input->count; at += 3 * PLANE) {
        for (int i = 0; i < 3 * PLANE; i++) {
            image[i] = in_half ? rounded(at[i]) : at[i];
        }
        add_image(image, weight, in_half, own);
    }
    return true;
}

/* ---- rules ----------------------------------------------------------------------------------- */

/* How running values can come about, rightly (the first) and wrongly. */
static const struct recipe {
    double momentum; /* share of the new moments */
    int times;
    bool biased, spread;
    const char *mistake;
} recipes[] = {
    {0.1, 1, false, false, NULL}, /* torch.nn.BatchNorm2d */
    {0.1, 1, true, false, "the variance is the biased one: n instead of n - 1"},
    {0.9, 1, false, false, "old and new have changed places: 0.9 of the new moments"},
    {0.1, 2, false, false, "they moved twice"},
    {0.1, 0, false, false, "they did not move"},
    {1, 1, false, false, "they are simply the last batch's"},
    {0.1, 1, false, true, "the deviation was kept instead of the variance"},
};

static ls_judge_running follow(const struct recipe *r, const sums *of, ls_judge_running running)
{
    for (int i = 0; i < r->times * CHANNELS; i++) {
        int p = i % CHANNELS;
        double var = variance_of(of, p) * (r->biased ? 1 : of->count / (of->count - 1));
        var = r->spread ? sqrt(var) : var;
        running.mean[p] += r->momentum * (mean_of(of, p) - running.mean[p]);
        running.var[p] += r->momentum * (var - running.var[p]);
    }
    return running;
}

/* NaN if one of them is: fmax would drop it. */
static double larger(double a, double b)
{
    return a > b || isnan(a) ? a : b;
}

/* How far a channel's mean and variance are from those wanted, relative to what a batch moves them
 * by. */
static double mean_off(const ls_judge_running *held, const ls_judge_running *want, const sums *of,
                       double momentum, int p)
{
    return fabs(held->mean[p] - want->mean[p]) / (momentum * sqrt(variance_of(of, p)));
}

static double var_off(const ls_judge_running *held, const ls_judge_running *want, const sums *of,
                      double momentum, int p)
{
    /* the running variance is near 1: storing it costs two f32 roundings there */
    double off = fabs(held->var[p] - want->var[p]) - 0x1p-23;
    return off / (momentum * variance_of(of, p));
}

static double misfit(const struct recipe *r, const sums *of, const ls_judge_running *before,
                     bool means_only, const ls_judge_running *held)
{
    ls_judge_running want = follow(r, of, *before);
    double worst = 0;
    for (int p = 0; p < CHANNELS; p++) {
        worst = larger(worst, mean_off(held, &want, of, r->momentum, p));
        worst = means_only ? worst : larger(worst, var_off(held, &want, of, r->momentum, p));
    }
    return worst;
}

/* ---- judging --------------------------------------------------------------------------------- */

typedef struct statistics {
    const ls_judge_statistics_facts *facts;
    const ls_tol *limit;
    int world;
    sums own[RANKS_MAX];
    ls_judge_running held[RANKS_MAX], before[RANKS_MAX];
    int64_t batches[RANKS_MAX]; /* num_batches_tracked */
} statistics;

/* The first wrong rule that gives what the rank holds: on its group's samples, or the right rule
 * on other samples or from other statistics. */
static void explain(const statistics *s, int rank, ls_verdict *out)
{
    int size = s->facts->size, from = rank / size * size;
    const ls_judge_running *mine = &s->before[rank];
    const ls_judge_running *before = s->facts->from_rank_0 ? &s->before[0] : mine;
    const sums group = of_ranks(s->own, from, size, false);
    const sums alike = of_ranks(s->own, from, size, true),
               all = of_ranks(s->own, 0, s->world, false);
    const struct {
        const sums *of;
        const ls_judge_running *before;
        bool means_only;
        const char *mistake;
    } others[] = {
        {&s->own[rank], before, false, "they are each rank's own: SyncBN was not in use"},
        {&alike, before, true, "they weight each rank alike, however many images it has"},
        {&all, before, false, "they come from the samples of all ranks"},
        {&group, mine, false,
         "the rank went on with its own: rank 0's running statistics were not sent"},
    };
    const ls_judge_running *held = &s->held[rank];
    for (size_t i = 1; i < sizeof recipes / sizeof *recipes; i++) {
        double worst = misfit(&recipes[i], &group, before, false, held);
        if (worst <= s->limit->value) {
            ls_verdict_cause(out, "running statistics: %s (residual %.0e)", recipes[i].mistake,
                             worst);
            return;
        }
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        double worst =
            misfit(&recipes[0], others[i].of, others[i].before, others[i].means_only, held);
        if (worst <= s->limit->value) {
            ls_verdict_cause(out, "running statistics: %s (residual %.0e)", others[i].mistake,
                             worst);
            return;
        }
    }
}

static void judge_rank(const statistics *s, int rank, ls_verdict *out)
{
    int size = s->facts->size;
    const sums group = of_ranks(s->own, rank / size * size, size, false);
    const ls_judge_running *held = &s->held[rank];
    ls_judge_running want =
        follow(&recipes[0], &group, s->before[s->facts->from_rank_0 ? 0 : rank]);
    for (int p = 0; p < CHANNELS; p++) {
        double off = larger(mean_off(held, &want, &group, recipes[0].momentum, p),
                            var_off(held, &want, &group, recipes[0].momentum, p));
        if (!out->measured || !(off <= out->value)) {
            ls_verdict_measured(out, off, s->limit->value, "of the deviation", s->limit->why);
        }
        if (!(off <= s->limit->value)) {
            ls_verdict_fail(out,
                            "rank=%d step %d bn1 channel %d: running mean %.7f and variance %.7f, "
                            "expected %.7f and %.7f over %.0f values",
                            rank, s->facts->step, p, held->mean[p], held->var[p], want.mean[p],
                            want.var[p], group.count);
        }
    }
    if (out->code == LS_FAIL) { /* it passed up to this rank */
        explain(s, rank, out);
    }
}

int ls_judge_statistics(const ls_record *job, const ls_judge_statistics_facts *facts,
                        ls_judge_running running[RANKS_MAX], ls_verdict *out)
{
    statistics s = {.facts = facts, .limit = facts->half ? &half : &exact, .world = job->world};
    LS_ASSERT(job->world <= RANKS_MAX && job->world % facts->size == 0);
    for (int rank = 0; rank < job->world; rank++) {
        ls_dumpfile *file = ls_dumps_open(job, facts->step, rank, out);
        s.before[rank] = running[rank];
        if (file == NULL) {
            return 0;
        }
        if (!read_rank(file, facts->half, &s.own[rank], &s.held[rank], &s.batches[rank])) {
            ls_verdict_fail(out, "rank=%d step %d: the dump lacks input, conv1 or bn1's buffers",
                            rank, facts->step);
        }
        ls_dumpfile_close(file);
    }
    int compared = 0;
    for (int rank = 0; rank < job->world && out->code == LS_PASS; rank++) {
        judge_rank(&s, rank, out);
        if (s.batches[rank] != facts->step) {
            ls_verdict_fail(out, "rank=%d step %d: bn1.num_batches_tracked is %lld", rank,
                            facts->step, (long long)s.batches[rank]);
        }
        running[rank] = s.held[rank];
        compared += 2 * CHANNELS;
    }
    return compared;
}
