/* SyncBN over groups and uneven shards. A row computes in FP64, from what the ranks dumped, what
 * the first batch norm (bn1, behind conv1, whose input is the batch itself) must have made of it:
 * mean and unbiased variance over all samples of the group, moved by a tenth. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/judge/compare.h"
#include "suite/judge/dumps.h"
#include "suite/judge/judges.h"
#include "syncbn.h"

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

static const float *floats_of(const ls_safetensors *file, const char *name, int64_t *count,
                              ls_verdict *out)
{
    const ls_safetensors_entry *entry = ls_safetensors_find(file, name);
    if (entry == NULL || entry->dtype != LS_F32) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the dump has no %s in F32", name);
        return NULL;
    }
    *count = entry->bytes / 4;
    return entry->data;
}

/* Sums of one rank's batch, around zero. */
static bool sums_of(const ls_record *job, int step, int rank, sums *to, ls_verdict *out)
{
    static const double zero[PLANES] = {0};
    ls_safetensors *file = ls_dumps_tensors(job, step, rank, out);
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
    ls_safetensors_close(file);
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
    ls_safetensors *file = ls_dumps_tensors(job, step, rank, out);
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
    ls_safetensors_close(file);
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
        ls_safetensors *file = ls_dumps_tensors(job, step, rank, &unused);
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
        if (file != NULL) {
            ls_safetensors_close(file);
        }
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

void ls_syncbn_check(const ls_record *job, int step, int size, const float *before_mean,
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

/* Ranks that share statistics; 1: they are local. */
static int group_of(const ls_case *row)
{
    return *(const int *)row->data;
}

static void judge_statistics(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_syncbn_check(job, 1, group_of(row), NULL, NULL, out);
}

/* ---- replicas and groups --------------------------------------------------------------------- */

/* Parameters equal everywhere; running statistics equal within a group and, to show that there are
 * groups, different between them. */
static void judge_groups(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int size = group_of(row), compared = 0, differ = 0;
    for (int rank = 0; rank < job->world; rank++) {
        const ls_record_rank *first = &job->rank[0], *lead = &job->rank[rank / size * size];
        const ls_record_rank *mine = &job->rank[rank];
        for (int i = 0; i < mine->step_count && i < first->step_count; i++, compared++) {
            const char *param = mine->step[i].digest[LS_RECORD_PARAM];
            const char *buffer = mine->step[i].digest[LS_RECORD_BUFFER];
            if (param[0] == '\0' || strcmp(param, first->step[i].digest[LS_RECORD_PARAM]) != 0) {
                ls_verdict_fail(out, "rank=%d step %d: other parameters than rank 0", rank,
                                (int)mine->step[i].step);
            }
            if (strcmp(buffer, lead->step[i].digest[LS_RECORD_BUFFER]) != 0) {
                ls_verdict_fail(
                    out, "rank=%d step %d: other running statistics than rank %d of its group",
                    rank, (int)mine->step[i].step, rank / size * size);
            }
            differ += strcmp(buffer, first->step[i].digest[LS_RECORD_BUFFER]) != 0;
        }
    }
    if (compared == 0) {
        ls_verdict_fail(out, "no step to compare");
    }
    if (size < job->world && differ == 0) {
        ls_verdict_fail(out, "all groups of %d ranks have the same statistics", size);
    }
    ls_verdict_pass(out, "%d steps: parameters alike, statistics alike in groups of %d", compared,
                    size);
}

/* Two jobs, the same bits. */
static void judge_equal(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int compared = 0;
    for (int rank = 0; rank < job[0].world; rank++) {
        for (int i = 0; i < job[0].rank[rank].step_count; i++) {
            const ls_record_step *a = &job[0].rank[rank].step[i];
            const ls_record_step *b = ls_record_find_step(&job[1].rank[rank], a->step);
            for (int d = 0; d < LS_RECORD_DIGESTS; d++) {
                if ((a->digest_mask & 1u << d) != 0 &&
                    (b == NULL || strcmp(a->digest[d], b->digest[d]) != 0)) {
                    ls_verdict_fail(out, "rank=%d step %d: other %s: %s", rank, (int)a->step,
                                    ls_record_digest_name((ls_record_digest)d),
                                    (const char *)row->data);
                }
                compared++;
            }
        }
    }
    if (compared == 0) {
        ls_verdict_fail(out, "no step to compare");
    }
    ls_verdict_pass(out, "equal to the last bit: %s", (const char *)row->data);
}

/* Gradients against the oracle with statistics over groups. */
static void judge_gradients(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    char path[RANKS_MAX][700], cache[700];
    const char *file[RANKS_MAX];
    ls_compare_verdict seen;
    ls_text_put(cache, sizeof cache, "%s/../../oracle", job->directory);
    for (int rank = 0; rank < job->world; rank++) {
        ls_dumps_path(job, 1, rank, path[rank], sizeof path[rank]);
        file[rank] = path[rank];
    }
    ls_compare_facts facts = {.arch = row->job[0].arch,
                              .sync_bn = true,
                              .sync_bn_group = group_of(row),
                              .dialect_torch = strcmp(row->job[0].dialect, "torch") == 0};
    if (ls_compare_step(&facts, job->world, file, NULL, &seen) != LS_OK) {
        ls_verdict_fail(out, "the dumps of step 1 cannot be judged");
        return;
    }
    ls_verdict_measured(out, seen.error, seen.limit, "of the gradient's norm", "numerics 4");
    ls_verdict_set(out,
                   seen.code == LS_COMPARE_PASS   ? LS_PASS
                   : seen.code == LS_COMPARE_WEAK ? LS_WEAK
                                                  : LS_FAIL,
                   "%s", seen.evidence);
    ls_verdict_cause(out, "%s", seen.cause);
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct shape {
    const char *id, *options;
    int world, group;
} shapes[] = {
    {"even.w2", "--sync-bn", 2, 2},
    {"even.w3", "--sync-bn", 3, 3},
    {"group2.w4", "--sync-bn --sync-bn-group=2", 4, 2},
    {"group3.w6", "--sync-bn --sync-bn-group=3", 6, 3},
    {"group1.w2", "--sync-bn --sync-bn-group=1", 2, 1},
    {"uneven.w2", "--sync-bn --batch-sizes=5,2", 2, 2},
    {"uneven.w3", "--sync-bn --batch-sizes=1,4,2", 3, 3},
    {"one-image.w3", "--sync-bn --batch-sizes=1,1,1", 3, 3},
    {"uneven-groups.w4", "--sync-bn --sync-bn-group=2 --batch-sizes=3,1,2,6", 4, 2},
    {"local-uneven.w2", "--batch-sizes=5,2", 2, 1},
};

#define JOB "resnet8 O0 b0.05 dump=1 "

/* What each shape is judged for. Dialect torch sends rank 0's statistics to all ranks. */
static const struct {
    const char *text, *requirement;
    ls_case_judge *judge;
} questions[] = {
    {"syncbn.statistics.%s.apex: " JOB "w%d %s", "B2", judge_statistics},
    {"syncbn.statistics.%s.torch: " JOB "torch w%d %s", "B2", judge_statistics},
    {"syncbn.groups.%s: " JOB "w%d %s", "B3", judge_groups},
    {"syncbn.gradients.%s: " JOB "w%d %s", "B4", judge_gradients},
};

static const ls_row equal[] = {
    {"syncbn.equal.world1", "B5", judge_equal, JOB "| " JOB "--sync-bn",
     "SyncBN alone and plain batch norm"},
    {"syncbn.equal.group1", "B5", judge_equal, JOB "w2 | " JOB "w2 --sync-bn --sync-bn-group=1",
     "groups of one rank and plain batch norm"},
    {"syncbn.equal.whole", "B5", judge_equal,
     JOB "w3 --sync-bn | " JOB "w3 --sync-bn --sync-bn-group=3", "one group of all and no groups"},
    {"syncbn.equal.same-batch", "B5", judge_equal, JOB "w2 | " JOB "w2 --batch-sizes=4,4",
     "batches of 4 given once and per rank"},
};

void ls_syncbn_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, equal);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        for (size_t q = 0; q < sizeof questions / sizeof *questions; q++) {
            const ls_row row = {.requirement = questions[q].requirement,
                                .judge = questions[q].judge,
                                .data = &s->group};
            ls_rows_format(list, settings, &row, questions[q].text, s->id, s->world, s->options);
        }
    }
}
