/* Judging bn1's running statistics: two ranks share them, rank 1 has twice rank 0's images. What a
 * wrong rule leaves is caught with its cause, and so is a value that is not a number. */
#include <check.h>
#include <math.h>

#include "kernels/core/path.h"
#include "reference/files/safetensors.h"
#include "suite/judge/judges.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

enum { RANKS = 2, PLANE = 256, IMAGES = 2, CHANNELS = LS_JUDGE_RUNNING_CHANNELS, TAPS = 27 };

static const struct dumped {
    double momentum;    /* share of the new values */
    double mean, var;   /* added to what the rule gives */
    bool biased, alike; /* n instead of n - 1; each rank's mean with the same weight */
    int alone;          /* on each rank's own samples */
    int64_t batches;
    const char *evidence, *cause; /* NULL: it is right */
} dumps[] = {
    {.momentum = 0.1, .batches = 1},
    {.momentum = 0.1, .batches = 1, .mean = (double)NAN, .evidence = "channel 0"},
    {.momentum = 0.1, .batches = 1, .var = (double)NAN, .evidence = "channel 0"},
    {.momentum = 0.1, .batches = 1, .var = (double)INFINITY, .evidence = "channel 0"},
    {.momentum = 0.1, .batches = 1, .mean = 1e-4, .evidence = "channel 0"},
    {.momentum = 0.1, .batches = 2, .evidence = "num_batches_tracked is 2"},
    {.momentum = 0.9, .batches = 1, .evidence = "channel 0", .cause = "0.9 of the new"},
    {.momentum = 1, .batches = 1, .evidence = "channel 0", .cause = "simply the last batch's"},
    {.momentum = 0, .batches = 0, .evidence = "channel 0", .cause = "they did not move"},
    {.momentum = 0.1, .batches = 1, .biased = true, .evidence = "channel 0", .cause = "biased"},
    {.momentum = 0.1, .batches = 1, .alone = 1, .evidence = "channel 0", .cause = "rank's own"},
    {.momentum = 0.1, .batches = 1, .alike = true, .evidence = "channel 0", .cause = "alike"},
};

/* bn1's input is the first plane of each image: conv1 has one tap. */
static float pixel(int rank, int image, int at)
{
    return (float)sin(1 + at * 0.7 + image * 2 + rank) + (float)rank;
}

static void moments(const struct dumped *d, int rank, double *mean, double *var)
{
    double sum[RANKS] = {0}, square[RANKS] = {0}, count[RANKS] = {0};
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < (r + 1) * PLANE; i++) {
            double value = (double)pixel(r, i / PLANE, i % PLANE);
            sum[r] += value;
            square[r] += value * value;
        }
        count[r] = (r + 1) * PLANE;
    }
    double n = d->alone ? count[rank] : count[0] + count[1];
    *mean = (d->alone ? sum[rank] : sum[0] + sum[1]) / n;
    *var = (d->alone ? square[rank] : square[0] + square[1]) / n - *mean * *mean;
    *var *= d->biased ? 1 : n / (n - 1);
    *mean = d->alike ? (sum[0] / count[0] + sum[1] / count[1]) / 2 : *mean;
}

static void write_dump(const char *folder, int rank, const struct dumped *d)
{
    static float input[IMAGES][3][PLANE], weight[CHANNELS][TAPS];
    float mean[CHANNELS], var[CHANNELS];
    double new_mean, new_var;
    ls_safetensors_writer *writer;
    LS_TEXT(path, 700, "%s/dump/step000001.rank%d.safetensors", folder, rank);
    for (int i = 0; i < IMAGES * PLANE; i++) {
        input[i / PLANE][0][i % PLANE] = pixel(rank, i / PLANE, i % PLANE);
    }
    moments(d, rank, &new_mean, &new_var);
    for (int p = 0; p < CHANNELS; p++) {
        weight[p][TAPS / 3 / 2] = 1; /* the middle of the first plane */
        mean[p] = (float)(d->momentum * new_mean + (p == 0 ? d->mean : 0));
        var[p] = (float)(1 - d->momentum + d->momentum * new_var + (p == 0 ? d->var : 0));
    }
    const ls_shape images = {4, {rank + 1, 3, 16, 16}}, kernel = {4, {CHANNELS, 3, 3, 3}};
    const ls_shape channels = {1, {CHANNELS}}, scalar = {0};
    ck_assert_int_eq(ls_safetensors_create(path, &writer), LS_OK);
    ls_safetensors_add(writer, "input", LS_F32, &images, input);
    ls_safetensors_add(writer, "param/conv1.weight", LS_F32, &kernel, weight);
    ls_safetensors_add(writer, "buffer/bn1.running_mean", LS_F32, &channels, mean);
    ls_safetensors_add(writer, "buffer/bn1.running_var", LS_F32, &channels, var);
    ls_safetensors_add(writer, "buffer/bn1.num_batches_tracked", LS_I64, &scalar, &d->batches);
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
}

ROWS_TEST(wrong_statistics_are_caught, dumps)
{
    const struct dumped *d = &dumps[_i];
    const ls_judge_statistics_facts facts = {.step = 1, .size = RANKS};
    ls_judge_running running[LS_JUDGE_RUNNING_RANKS];
    ls_record job = {.world = RANKS};
    ls_verdict out = {.code = LS_PASS};
    fake_folder(job.directory, sizeof job.directory);
    LS_TEXT(folder, 700, "%s/dump", job.directory);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    for (int rank = 0; rank < RANKS; rank++) {
        write_dump(job.directory, rank, d);
    }
    ls_judge_statistics_start(running);
    int compared = ls_judge_statistics(&job, &facts, running, &out);
    ck_assert(d->evidence != NULL || compared == 2 * LS_JUDGE_RUNNING_CHANNELS * RANKS);
    ck_assert_msg((out.code == LS_PASS) == (d->evidence == NULL), "%s", out.evidence);
    ck_assert_msg(d->evidence == NULL || strstr(out.evidence, d->evidence) != NULL, "%s",
                  out.evidence);
    ck_assert_msg(d->cause == NULL ? out.cause[0] == '\0' : strstr(out.cause, d->cause) != NULL,
                  "%s", out.cause);
    ls_path_remove_tree(job.directory);
}

TEST_MAIN("statistics")
