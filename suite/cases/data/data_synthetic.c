/* Synthetic images: their classes and their channels. How they are dealt out: data_loader.c. */
#include "data.h"
#include "suite/inside/inside.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/core/text.h"
#include "reference/data/dataset.h"
#include "reference/data/make.h"
#include "reference/data/loader.h"

static const ls_tol often =
    LS_TOL(6, "standard deviations of a class's number of images: beyond it once in 10^9");

/* Images of every class, each about as often. */
static void judge_classes(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    enum { DRAWS = 200, MOST = 1000, PIXELS = 4 };
    int classes = *(const int *)row->data, *count = calloc(MOST, sizeof *count);
    float waves[2 * PIXELS], input[3 * PIXELS * PIXELS];
    double want = DRAWS, spread = sqrt(want * (1 - 1.0 / classes));
    (void)job;
    LS_MEMORY(count != NULL);
    LS_ASSERT(classes <= MOST);
    for (int64_t i = 0; i < (int64_t)DRAWS * classes; i++) {
        int64_t target = -1;
        ls_dataset_synthetic_image(7, i, classes, PIXELS, waves, input, &target);
        if (target < 0 || target >= classes) {
            ls_verdict_fail(out, "image %lld is of class %lld of %d", (long long)i,
                            (long long)target, classes);
            break;
        }
        count[target]++;
    }
    for (int c = 0; c < classes && out->code == LS_PASS; c++) {
        double off = fabs(count[c] - want) / spread;
        if (!ls_verdict_worst(out, off, &often, "deviations")) {
            ls_verdict_fail(out, "class %d of %d has %d of %d images, expected about %d", c,
                            classes, count[c], DRAWS * classes, DRAWS);
        }
    }
    free(count);
    ls_verdict_pass(out, classes, "%d classes, each %d times or about that", classes, DRAWS);
}

static const ls_tol alike =
    LS_TOL(0.15, "mean square of the correlation of two channels: with patterns of their own 0.011 "
                 "to 0.056 at seeds 0 to 9, with one for both 0.408 to 0.431");

/* A class has a pattern of its own in each channel. */
static void judge_synthetic(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    enum { DRAWN = 2000, PIXELS = LS_DATA_SIZE * LS_DATA_SIZE };
    double squares = 0;
    (void)row;
    (void)job;
    ls_loader_options options = ls_data_loader_options("synthetic");
    ls_loader *loader = NULL;
    ls_loader_batch batch;
    options.batch_size = 1;
    if (ls_loader_open(&options, &loader) != LS_OK) {
        ls_verdict_fail(out, "the loader cannot be opened");
        return;
    }
    for (int i = 0; i < DRAWN && out->code == LS_PASS; i++) {
        if (ls_loader_next(loader, &batch) != LS_OK) {
            ls_verdict_fail(out, "image %d fails", i);
            break;
        }
        const float *red = batch.input, *green = red + PIXELS;
        double a = 0, b = 0, aa = 0, bb = 0, ab = 0;
        for (int p = 0; p < PIXELS; p++) {
            a += red[p];
            b += green[p];
            aa += (double)red[p] * red[p];
            bb += (double)green[p] * green[p];
            ab += (double)red[p] * green[p];
        }
        double covariance = ab - a * b / PIXELS;
        squares += covariance * covariance / ((aa - a * a / PIXELS) * (bb - b * b / PIXELS));
    }
    ls_loader_close(loader);
    double mean = squares / DRAWN;
    if (!ls_verdict_worst(out, mean, &alike, "")) {
        ls_verdict_fail(out, "red and green of an image are alike: %.3f", mean);
    }
    ls_verdict_pass(out, DRAWN, "likeness of two channels over %d images: %.3f", (int)DRAWN, mean);
}

static const ls_row rows[] = {
    {"data.synthetic.classes.2", "I22", judge_classes, NULL, &(const int){2}},
    {"data.synthetic.classes.10", "I22", judge_classes, NULL, &(const int){10}},
    {"data.synthetic.classes.37", "I22", judge_classes, NULL, &(const int){37}},
    {"data.synthetic.classes.1000", "I22", judge_classes, NULL, &(const int){1000}},
    {"data.synthetic.channels", "I15", judge_synthetic},
};

void ls_data_synthetic_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
