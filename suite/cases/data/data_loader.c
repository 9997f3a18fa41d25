/* What the loader gives, one way and another: with threads and without, from the start and from a
 * later step, as one rank and as several, of one seed or epoch and of the next. */
#include "data.h"
#include "suite/inside/inside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/digest.h"
#include "reference/data/make.h"
#include "kernels/core/path.h"

enum { PER_CLASS = 3, IMAGES = LS_MAKE_CLASSES * PER_CLASS };

typedef struct seen {
    int64_t target;
    uint64_t image; /* digest of its floats */
} seen;

/* The images of `batches` micro-batches, one after the other; LS_OK or what the loader said. */
static ls_status look(const ls_loader_options *options, int batches, seen *out)
{
    ls_loader *loader;
    LS_TRY(ls_loader_open(options, &loader));
    ls_status status = LS_OK;
    size_t floats = (size_t)3 * (size_t)options->image_size * (size_t)options->image_size;
    for (int b = 0; b < batches && status == LS_OK; b++) {
        ls_loader_batch batch;
        status = ls_loader_next(loader, &batch);
        for (int i = 0; status == LS_OK && i < batch.images; i++) {
            *out++ = (seen){batch.target[i],
                            ls_digest_update(LS_DIGEST_START, batch.input + (size_t)i * floats,
                                             floats * sizeof(float))};
        }
    }
    ls_loader_close(loader);
    return status;
}

/* Rows that compare what two ways of loading give; each fills a and b and returns how many. */
typedef int pairing(ls_loader_options options, seen *a, seen *b);
enum { SEEN_MAX = 256 };

static int workers_pair(ls_loader_options options, seen *a, seen *b)
{
    ls_status status = look(&options, 40, a);
    options.workers = 5;
    return status == LS_OK && look(&options, 40, b) == LS_OK ? 80 : -1;
}

static int again_pair(ls_loader_options options, seen *a, seen *b)
{
    return look(&options, 40, a) == LS_OK && look(&options, 40, b) == LS_OK ? 80 : -1;
}

/* From step `first` on, and in a run that took the steps before it: `batches` micro-batches in all.
 */
static int resumed(ls_loader_options options, int first, int batches, seen *a, seen *b)
{
    seen whole[SEEN_MAX];
    int before = (first - 1) * options.accumulate, left = batches - before;
    ls_status status = look(&options, batches, whole);
    memcpy(a, whole + 2 * before, (size_t)(2 * left) * sizeof *a);
    options.first_step = first;
    return status == LS_OK && look(&options, left, b) == LS_OK ? 2 * left : -1;
}

/* In the middle of the second epoch of 15 steps. */
static int resume_pair(ls_loader_options options, seen *a, seen *b)
{
    return resumed(options, 20, 40, a, b);
}

/* In the second epoch of 5 steps of three micro-batches. */
static int resume_micro_pair(ls_loader_options options, seen *a, seen *b)
{
    options.accumulate = 3;
    return resumed(options, 7, 30, a, b);
}

/* Micro-batches of one step, or as many steps. */
static int accumulate_pair(ls_loader_options options, seen *a, seen *b)
{
    ls_status status = look(&options, 12, a);
    options.accumulate = 3;
    return status == LS_OK && look(&options, 12, b) == LS_OK ? 24 : -1;
}

/* A batch of 4, or two of 2. */
static int batch_pair(ls_loader_options options, seen *a, seen *b)
{
    ls_status status = look(&options, 14, a);
    options.batch_size = 4;
    return status == LS_OK && look(&options, 7, b) == LS_OK ? 28 : -1;
}

/* The first epoch of three ranks, and the same images of a world of one: what an image becomes
 * depends on it and the epoch, not on who reads it. */
static int shards_pair(ls_loader_options options, seen *a, seen *b)
{
    seen whole[SEEN_MAX];
    int count = 0;
    options.batch_size = 1;
    ls_status status = look(&options, IMAGES, whole);
    for (options.rank = 0, options.world = 3; options.rank < 3 && status == LS_OK; options.rank++) {
        seen mine[IMAGES];
        status = look(&options, IMAGES / 3, mine);
        for (int i = 0; i < IMAGES / 3; i++) {
            a[count] = whole[options.rank + 3 * i];
            b[count++] = mine[i];
        }
    }
    return status == LS_OK ? count : -1;
}

/* The next epoch must not cut the same crops: a and b must differ. */
static int epochs_pair(ls_loader_options options, seen *a, seen *b)
{
    seen whole[SEEN_MAX];
    options.batch_size = 1;
    ls_status status = look(&options, 2 * IMAGES, whole);
    int64_t *order[2] = {NULL, NULL};
    for (int epoch = 0; epoch < 2; epoch++) {
        (void)ls_data_order(IMAGES, 0, 1, true, false, options.seed, epoch, &order[epoch]);
    }
    for (int i = 0; i < IMAGES; i++) { /* by image */
        a[order[0][i]] = whole[i];
        b[order[1][i]] = whole[IMAGES + i];
    }
    free(order[0]);
    free(order[1]);
    return status == LS_OK ? IMAGES : -1;
}

/* Seeds must matter: a and b must differ. */
static int seeds_pair(ls_loader_options options, seen *a, seen *b)
{
    ls_status status = look(&options, 15, a);
    options.seed++;
    return status == LS_OK && look(&options, 15, b) == LS_OK ? 30 : -1;
}

/* Synthetic: two ranks' batches side by side are one batch of the world of one. */
static int synthetic_shards_pair(ls_loader_options options, seen *a, seen *b)
{
    options.batch_size = 4;
    ls_status status = look(&options, 6, a);
    options.batch_size = 2;
    options.world = 2;
    for (options.rank = 0; options.rank < 2 && status == LS_OK; options.rank++) {
        seen mine[12];
        status = look(&options, 6, mine);
        for (int step = 0; step < 6; step++) {
            memcpy(b + step * 4 + options.rank * 2, mine + step * 2, 2 * sizeof *b);
        }
    }
    return status == LS_OK ? 24 : -1;
}

/* Synthetic: ranks with batches of 4 and 2. For each image of rank 1, b, the same one of rank 0's,
 * a, or another where rank 0 has none like it: a and b must differ. */
static int synthetic_uneven_pair(ls_loader_options options, seen *a, seen *b)
{
    seen first[24];
    options.world = 2;
    options.batch_size = options.largest_batch = 4;
    ls_status status = look(&options, 6, first);
    options.batch_size = 2;
    options.rank = 1;
    if (status != LS_OK || look(&options, 6, b) != LS_OK) {
        return -1;
    }
    for (int i = 0; i < 12; i++) {
        a[i] = first[0];
        for (int k = 0; k < 24; k++) {
            a[i] = first[k].image == b[i].image ? first[k] : a[i];
        }
    }
    return 12;
}

/* Two epochs of 30 images in steps of 8: as two micro-batches of 4, or in one. The 6 images that
 * fill no step are left out either way. */
static int tail_pair(ls_loader_options options, seen *a, seen *b)
{
    options.batch_size = 8;
    ls_status status = look(&options, 7, a);
    options.batch_size = 4;
    options.accumulate = 2;
    return status == LS_OK && look(&options, 14, b) == LS_OK ? 56 : -1;
}

/* A resumed run without threads, and with them. */
static int resume_workers_pair(ls_loader_options options, seen *a, seen *b)
{
    options.first_step = 20;
    ls_status status = look(&options, 21, a);
    options.workers = 4;
    return status == LS_OK && look(&options, 21, b) == LS_OK ? 42 : -1;
}

/* Synthetic: 240 images, each next to the one that comes 120 later; none comes again. */
static int fresh_pair(ls_loader_options options, seen *a, seen *b)
{
    seen whole[SEEN_MAX];
    options.batch_size = 1;
    ls_status status = look(&options, 240, whole);
    for (int i = 0; i < 120; i++) {
        a[i] = whole[120 + i];
        b[i] = whole[0];
        for (int k = 0; k < 120 + i; k++) {
            b[i] = whole[k].image == a[i].image ? whole[k] : b[i];
        }
    }
    return status == LS_OK ? 120 : -1;
}

static const struct pair {
    const char *id, *requirement;
    pairing *fill;
    bool synthetic, differ;
} pairs[] = {
    {"folder.workers", "I7", workers_pair, false, false},
    {"folder.again", "I7", again_pair, false, false},
    {"folder.resume", "I8", resume_pair, false, false},
    {"folder.accumulate", "I4", accumulate_pair, false, false},
    {"folder.batch", "I4", batch_pair, false, false},
    {"folder.shards", "I4", shards_pair, false, false},
    {"folder.epochs", "I6", epochs_pair, false, true},
    {"folder.seeds", "I6", seeds_pair, false, true},
    {"synthetic.workers", "I7", workers_pair, true, false},
    {"synthetic.resume", "I8", resume_pair, true, false},
    {"synthetic.accumulate", "I4", accumulate_pair, true, false},
    {"synthetic.shards", "I4", synthetic_shards_pair, true, false},
    {"synthetic.seeds", "I6", seeds_pair, true, true},
    {"synthetic.uneven", "I11", synthetic_uneven_pair, true, true},
    {"folder.tail", "I5", tail_pair, false, false},
    {"folder.resume.accumulate", "I8", resume_micro_pair, false, false},
    {"folder.resume.workers", "I8", resume_workers_pair, false, false},
    {"synthetic.resume.accumulate", "I8", resume_micro_pair, true, false},
    {"synthetic.resume.workers", "I8", resume_workers_pair, true, false},
    {"synthetic.fresh", "I11", fresh_pair, true, true},
};

static void judge_pair(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const struct pair *p = row->data;
    char root[64], tree[96];
    static const ls_tol repeated = {0.1, "of 30 crops at 8 pixels one or two may come twice"};
    seen a[SEEN_MAX], b[SEEN_MAX];
    if (!ls_data_folder_make(root, out)) {
        return;
    }
    ls_text_put(tree, sizeof tree, "%s/tree", root);
    if (!p->synthetic && ls_make_folder(tree, PER_CLASS, LS_DATA_SIZE, 1) != LS_OK) {
        ls_verdict_set(out, LS_INFRA, "cannot write %s", tree);
    }
    int count = out->code == LS_PASS
                    ? p->fill(ls_data_loader_options(p->synthetic ? "synthetic" : tree), a, b)
                    : 0;
    int equal = 0;
    for (int i = 0; i < count; i++) {
        bool same = a[i].image == b[i].image && a[i].target == b[i].target;
        equal += same;
        if (!same && !p->differ) {
            ls_verdict_fail(out, "sample %d of %d: class %lld and %lld, other bits", i, count,
                            (long long)a[i].target, (long long)b[i].target);
        }
    }
    if (p->differ && equal > repeated.value * count) {
        ls_verdict_fail(out, "%d of %d samples are the same again", equal, count);
    }
    if (count < 0) {
        ls_verdict_fail(out, "the loader failed");
    }
    ls_verdict_pass(out, count, "%d of %d samples have the same bits", equal, count);
    ls_path_remove_tree(root);
}

/* ---- synthetic images: their classes and their channels ---------------------------------------
 */

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

void ls_data_loader_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const ls_row row = {
            .requirement = pairs[i].requirement, .judge = judge_pair, .data = &pairs[i]};
        ls_rows_format(list, settings, &row, "data.%s", pairs[i].id);
    }
    LS_ROWS(list, settings, rows);
}
