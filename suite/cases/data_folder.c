/* What a folder of images, a folder of batches and synthetic data give a rank; and what is refused,
 * by name. */
#include "data.h"
#include "endings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../../harness/path.h"
#include "../../harness/text.h"
#include "../../kernels/core/digest.h"
#include "../../reference/data/dataset.h"
#include "../../reference/data/draw.h"
#include "../../reference/data/folder.h"
#include "../../reference/data/jpeg.h"
#include "../../reference/data/loader.h"
#include "../../reference/data/make.h"
#include "../../reference/data/transform.h"
#include "../place.h"

enum { SIZE = 8, CLASSES = 10, PER_CLASS = 3, IMAGES = CLASSES * PER_CLASS };

/* ---- a folder for one row -------------------------------------------------------------------- */

static bool make_root(char root[64], ls_verdict *out)
{
    ls_text_put(root, 64, "/tmp/lockstep-data-XXXXXX");
    if (mkdtemp(root) == NULL) {
        ls_verdict_set(out, LS_INFRA, "cannot make a folder in /tmp");
        return false;
    }
    return true;
}

/* A grey image at root/name; folders on the way are made. */
static bool put_image(const char *root, const char *name)
{
    static uint8_t const grey[3 * 16 * 16] = {0};
    char path[256], folder[256];
    ls_text_put(path, sizeof path, "%s/%s", root, name);
    ls_text_put(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    return ls_path_make_folder(folder) == LS_OK && ls_jpeg_write(path, grey, 16, 16, 90) == LS_OK;
}

/* ---- scanning -------------------------------------------------------------------------------- */

static const struct scan {
    const char *id;
    const char *file[8]; /* made in this order */
    const char *want[8]; /* found in this order */
    int target[8];
} scans[] = {
    {"classes",
     {"b/1.jpg", "a2/1.jpg", "C/1.jpg", "a10/1.jpg", "\xc3\xa4/1.jpg", "_/1.jpg"},
     {"C/1.jpg", "_/1.jpg", "a10/1.jpg", "a2/1.jpg", "b/1.jpg", "\xc3\xa4/1.jpg"},
     {0, 1, 2, 3, 4, 5}}, /* by code point: capitals, underscore, small letters, umlaut */
    {"files",
     {"a/9.jpg", "a/10.jpg", "a/B.jpg", "b/0.jpg"},
     {"a/10.jpg", "a/9.jpg", "a/B.jpg", "b/0.jpg"},
     {0, 0, 0, 1}},
    {"extensions",
     {"a/1.jpg", "a/2.JPG", "a/3.jpeg", "a/4.JpEg", "a/5.txt", "a/6", "a/jpg"},
     {"a/1.jpg", "a/2.JPG", "a/3.jpeg", "a/4.JpEg"},
     {0, 0, 0, 0}},
    {"hidden", {"a/1.jpg", "a/.2.jpg", ".git/3.jpg", "b/1.jpg"}, {"a/1.jpg", "b/1.jpg"}, {0, 1}},
    {"nested",
     {"a/z.jpg", "a/m/1.jpg", "a/b/2.jpg", "b/1.jpg"},
     {"a/z.jpg", "a/b/2.jpg", "a/m/1.jpg", "b/1.jpg"},
     {0, 0, 0, 1}},
    {"files-beside-classes", {"a/1.jpg", "x.jpg", "b/1.jpg"}, {"a/1.jpg", "b/1.jpg"}, {0, 1}},
};

static void judge_scan(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const struct scan *s = &scans[row->number[0]];
    char root[64];
    ls_folder folder = {0};
    if (!make_root(root, out)) {
        return;
    }
    for (int i = 0; i < 8 && s->file[i] != NULL; i++) {
        if (!put_image(root, s->file[i])) {
            ls_verdict_set(out, LS_INFRA, "cannot write %s", s->file[i]);
        }
    }
    if (out->code == LS_PASS && ls_folder_scan(root, &folder) != LS_OK) {
        ls_verdict_set(out, LS_FAIL, "the folder is refused");
    }
    int wanted = 0;
    for (; out->code == LS_PASS && wanted < 8 && s->want[wanted] != NULL; wanted++) {
        const char *path = wanted < folder.count ? folder.path[wanted] + strlen(root) + 1 : "none";
        if (strcmp(path, s->want[wanted]) != 0 || folder.target[wanted] != s->target[wanted]) {
            ls_verdict_set(out, LS_FAIL, "image %d is %s, expected %s of class %d", wanted, path,
                           s->want[wanted], s->target[wanted]);
        }
    }
    if (out->code == LS_PASS && folder.count != wanted) {
        ls_verdict_set(out, LS_FAIL, "%d images, expected %d", (int)folder.count, wanted);
    }
    if (out->code == LS_PASS) {
        ls_text_put(out->evidence, sizeof out->evidence, "%d images in the expected order", wanted);
    }
    ls_folder_free(&folder);
    ls_place_remove(root);
}

/* ---- the loader over a tree ------------------------------------------------------------------ */

typedef struct seen {
    int64_t target;
    uint64_t image; /* digest of its floats */
} seen;

static ls_loader_options options_of(const char *data)
{
    return (ls_loader_options){.data = data,
                               .world = 1,
                               .batch_size = 2,
                               .image_size = SIZE,
                               .num_classes = CLASSES,
                               .accumulate = 1,
                               .seed = 5,
                               .first_step = 1};
}

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

/* From step 20 on, which lies in the middle of the second epoch of 15 steps. */
static int resume_pair(ls_loader_options options, seen *a, seen *b)
{
    seen whole[SEEN_MAX];
    ls_status status = look(&options, 40, whole);
    memcpy(a, whole + 2 * 19, 2 * 21 * sizeof *a);
    options.first_step = 20;
    return status == LS_OK && look(&options, 21, b) == LS_OK ? 42 : -1;
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

/* 50 ranks or epochs must not repeat the crop: here a and b must differ. */
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

/* From step 6 on, in the second epoch of 5 steps of three micro-batches. */
static int resume_micro_pair(ls_loader_options options, seen *a, seen *b)
{
    seen whole[SEEN_MAX];
    options.accumulate = 3;
    ls_status status = look(&options, 30, whole);
    memcpy(a, whole + 2 * 3 * 6, 2 * 12 * sizeof *a);
    options.first_step = 7;
    return status == LS_OK && look(&options, 12, b) == LS_OK ? 24 : -1;
}

/* The same with threads, and without. */
static int resume_workers_pair(ls_loader_options options, seen *a, seen *b)
{
    options.first_step = 20;
    ls_status status = look(&options, 21, a);
    options.workers = 4;
    return status == LS_OK && look(&options, 21, b) == LS_OK ? 42 : -1;
}

/* Synthetic: 240 images, each beside one that comes 120 later; none comes again. */
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
    const struct pair *p = &pairs[row->number[0]];
    char root[64], tree[96];
    static const ls_tol repeated = {0.1, "of 30 crops at 8 pixels one or two may come twice"};
    seen a[SEEN_MAX], b[SEEN_MAX];
    if (!make_root(root, out)) {
        return;
    }
    ls_text_put(tree, sizeof tree, "%s/tree", root);
    if (!p->synthetic && ls_make_folder(tree, PER_CLASS, SIZE, 1) != LS_OK) {
        ls_verdict_set(out, LS_INFRA, "cannot write %s", tree);
    }
    int count =
        out->code == LS_PASS ? p->fill(options_of(p->synthetic ? "synthetic" : tree), a, b) : 0;
    int equal = 0;
    for (int i = 0; i < count; i++) {
        bool same = a[i].image == b[i].image && a[i].target == b[i].target;
        equal += same;
        if (!same && !p->differ) {
            ls_verdict_set(out, LS_FAIL, "sample %d of %d: class %lld and %lld, other bits", i,
                           count, (long long)a[i].target, (long long)b[i].target);
        }
    }
    if (p->differ && equal > repeated.value * count) {
        ls_verdict_set(out, LS_FAIL, "%d of %d samples are the same again", equal, count);
    }
    if (count < 0) {
        ls_verdict_set(out, LS_FAIL, "the loader failed");
    }
    if (out->code == LS_PASS) {
        ls_text_put(out->evidence, sizeof out->evidence, "%d of %d samples have the same bits",
                    equal, count);
    }
    ls_place_remove(root);
}

/* ---- colours --------------------------------------------------------------------------------- */

/* 8 x 8 pixels of red 200, green 110, blue 30, as Pillow 9.4 writes them. Our own writer could swap
 * what our reader swaps. */
static const char orange[] =
    "\xff\xd8\xff\xe0\x00\x10\x4a\x46\x49\x46\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
    "\xff\xdb\x00\x43\x00\x02\x01\x01\x01\x01\x01\x02\x01\x01\x01\x02\x02\x02\x02\x02"
    "\x04\x03\x02\x02\x02\x02\x05\x04\x04\x03\x04\x06\x05\x06\x06\x06\x05\x06\x06\x06"
    "\x07\x09\x08\x06\x07\x09\x07\x06\x06\x08\x0b\x08\x09\x0a\x0a\x0a\x0a\x0a\x06\x08"
    "\x0b\x0c\x0b\x0a\x0c\x09\x0a\x0a\x0a\xff\xdb\x00\x43\x01\x02\x02\x02\x02\x02\x02"
    "\x05\x03\x03\x05\x0a\x07\x06\x07\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a"
    "\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a"
    "\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\x0a\xff\xc0"
    "\x00\x11\x08\x00\x08\x00\x08\x03\x01\x11\x00\x02\x11\x01\x03\x11\x01\xff\xc4\x00"
    "\x14\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff"
    "\xc4\x00\x14\x10\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    "\x00\xff\xc4\x00\x14\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    "\x00\x00\x08\xff\xc4\x00\x14\x11\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    "\x00\x00\x00\x00\x00\xff\xda\x00\x0c\x03\x01\x00\x02\x11\x03\x11\x00\x3f\x00\x04"
    "\x66\x83\xff\xd9";

/* 8 x 8 pixels of grey 77, one component, by the same program. */
static const char grey[] =
    "\xff\xd8\xff\xe0\x00\x10\x4a\x46\x49\x46\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
    "\xff\xdb\x00\x43\x00\x08\x06\x06\x07\x06\x05\x08\x07\x07\x07\x09\x09\x08\x0a\x0c"
    "\x14\x0d\x0c\x0b\x0b\x0c\x19\x12\x13\x0f\x14\x1d\x1a\x1f\x1e\x1d\x1a\x1c\x1c\x20"
    "\x24\x2e\x27\x20\x22\x2c\x23\x1c\x1c\x28\x37\x29\x2c\x30\x31\x34\x34\x34\x1f\x27"
    "\x39\x3d\x38\x32\x3c\x2e\x33\x34\x32\xff\xc0\x00\x0b\x08\x00\x08\x00\x08\x01\x01"
    "\x11\x00\xff\xc4\x00\x14\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    "\x00\x00\x00\x06\xff\xc4\x00\x14\x10\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    "\x00\x00\x00\x00\x00\x00\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00\x18\xff\xd9";

static const ls_tol often =
    LS_TOL(6, "standard deviations of a class's number of images: beyond it once in 10^9");

/* Images of every class, each about as often. */
static void judge_classes(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    enum { DRAWS = 200, MOST = 1000, PIXELS = 4 };
    int classes = row->number[0], *count = calloc(MOST, sizeof *count);
    float waves[2 * PIXELS], input[3 * PIXELS * PIXELS];
    double want = DRAWS, spread = sqrt(want * (1 - 1.0 / classes));
    (void)job;
    LS_ASSERT(count != NULL && classes <= MOST);
    for (int64_t i = 0; i < (int64_t)DRAWS * classes; i++) {
        int64_t target = -1;
        ls_dataset_synthetic_image(7, i, classes, PIXELS, waves, input, &target);
        if (target < 0 || target >= classes) {
            ls_verdict_set(out, LS_FAIL, "image %lld is of class %lld of %d", (long long)i,
                           (long long)target, classes);
            break;
        }
        count[target]++;
    }
    for (int c = 0; c < classes && out->code == LS_PASS; c++) {
        double off = fabs(count[c] - want) / spread;
        if (!out->measured || off > out->value) {
            ls_verdict_measured(out, off, often.value, "deviations", often.why);
        }
        if (off > often.value) {
            ls_verdict_set(out, LS_FAIL, "class %d of %d has %d of %d images, expected about %d", c,
                           classes, count[c], DRAWS * classes, DRAWS);
        }
    }
    free(count);
    if (out->code == LS_PASS) {
        ls_text_put(out->evidence, sizeof out->evidence, "%d classes, each %d times or about that",
                    classes, DRAWS);
    }
}

static const ls_tol shade =
    LS_TOL(3, "of 255: Y, Cb and Cr in 8 bits, their means quantised by a quarter of a level, and "
              "back are within 2; the channels are 80 apart");

/* Through the whole loader: what the network gets is the file's colour, normalised, everywhere. */
static void judge_colours(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    static const struct {
        const char *file;
        size_t bytes;
        double want[3];
    } pictures[] = {{orange, sizeof orange - 1, {200, 110, 30}},
                    {grey, sizeof grey - 1, {77, 77, 77}}};
    static const double mean[3] = {0.485, 0.456, 0.406}, deviation[3] = {0.229, 0.224, 0.225};
    const char *picture = pictures[row->number[0]].file;
    const double *want = pictures[row->number[0]].want;
    size_t bytes = pictures[row->number[0]].bytes;
    (void)job;
    char root[64], folder[80], path[96];
    ls_loader *loader = NULL;
    ls_loader_batch batch;
    if (!make_root(root, out)) {
        return;
    }
    ls_text_put(folder, sizeof folder, "%s/a", root);
    ls_text_put(path, sizeof path, "%s/1.jpg", folder);
    FILE *file = ls_path_make_folder(folder) == LS_OK ? fopen(path, "wb") : NULL;
    bool written = file != NULL && fwrite(picture, 1, bytes, file) == bytes;
    written = file != NULL && fclose(file) == 0 && written;
    ls_loader_options options = options_of(root);
    options.batch_size = options.num_classes = 1;
    if (!written) {
        ls_verdict_set(out, LS_INFRA, "cannot write %s", path);
    } else if (ls_loader_open(&options, &loader) != LS_OK ||
               ls_loader_next(loader, &batch) != LS_OK) {
        ls_verdict_set(out, LS_FAIL, "a picture of Pillow's is refused");
    }
    double worst = 0;
    for (int i = 0; i < 3 * SIZE * SIZE && out->code == LS_PASS; i++) {
        int c = i / (SIZE * SIZE);
        double got = ((double)batch.input[i] * deviation[c] + mean[c]) * 255;
        worst = fmax(worst, fabs(got - want[c]));
        if (!(fabs(got - want[c]) <= shade.value)) {
            ls_verdict_set(out, LS_FAIL, "channel %d has %.1f of 255, expected %.0f", c, got,
                           want[c]);
        }
    }
    ls_verdict_measured(out, worst, shade.value, "of 255", shade.why);
    if (out->code == LS_PASS) {
        ls_text_put(out->evidence, sizeof out->evidence,
                    "red, green and blue of a foreign picture within %.1f of 255", worst);
    }
    ls_loader_close(loader);
    ls_place_remove(root);
}

/* ---- decoding at a reduced size ---------------------------------------------------------------
 */

/* The pictures are less than twice as wide and high as what the network gets, so that a half of
 * them would hold less than that: they are decoded whole, and give the bits that their pixels give.
 */
static void judge_whole(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    char root[64], tree[96], why[1600];
    ls_folder folder = {0};
    ls_loader *loader = NULL;
    ls_jpeg *jpeg = NULL;
    ls_transform_scratch scratch = {0};
    int64_t *order = NULL;
    (void)row;
    (void)job;
    if (!make_root(root, out)) {
        return;
    }
    ls_text_put(tree, sizeof tree, "%s/tree", root);
    ls_loader_options options = options_of(tree);
    options.batch_size = 1;
    if (ls_make_folder(tree, PER_CLASS, SIZE, 1) != LS_OK || ls_jpeg_create(&jpeg) != LS_OK) {
        ls_verdict_set(out, LS_INFRA, "cannot write %s", tree);
    } else if (ls_folder_scan(tree, &folder) != LS_OK ||
               ls_loader_open(&options, &loader) != LS_OK) {
        ls_verdict_set(out, LS_FAIL, "the loader cannot be opened");
    }
    (void)ls_data_order(IMAGES, 0, 1, true, false, options.seed, 0, &order);
    for (int i = 0; i < IMAGES && out->code == LS_PASS; i++) {
        float want[3 * SIZE * SIZE];
        ls_loader_batch batch;
        int width, height;
        const uint8_t *rgb;
        const char *path = folder.path[order[i]];
        if (ls_jpeg_open(jpeg, path, &width, &height, why, sizeof why) != LS_OK ||
            ls_jpeg_decode(jpeg, 1, &rgb, &width, &height, why, sizeof why) != LS_OK) {
            ls_verdict_set(out, LS_FAIL, "%s", why);
            break;
        }
        LS_ASSERT(width < 2 * SIZE && height < 2 * SIZE);
        ls_transform_crop crop = ls_transform_draw(options.seed, 0, order[i], width, height);
        if (ls_loader_next(loader, &batch) != LS_OK ||
            ls_transform_apply(&scratch, rgb, width, height, width, height, &crop, SIZE, want) !=
                LS_OK) {
            ls_verdict_set(out, LS_FAIL, "image %d fails", i);
        } else if (memcmp(batch.input, want, sizeof want) != 0) {
            ls_verdict_set(out, LS_FAIL,
                           "image %d, %d x %d pixels, a crop of %d x %d: not what its pixels give",
                           i, width, height, crop.width, crop.height);
        }
    }
    if (out->code == LS_PASS) {
        ls_text_put(out->evidence, sizeof out->evidence, "%d images have the bits of whole ones",
                    (int)IMAGES);
    }
    ls_loader_close(loader);
    ls_jpeg_destroy(jpeg);
    ls_transform_release(&scratch);
    ls_folder_free(&folder);
    free(order);
    ls_place_remove(root);
}

/* ---- refused --------------------------------------------------------------------------------- */

#define TREE                                                                                      \
    "D={self}/data; {bin}/lockstep data make $D --images 2 --image-size 8 >/dev/null || exit 3; " \
    "rm $D/.lockstep-data; "
#define GO "; exec \"$0\" \"$@\""

static const struct refusal {
    const char *id, *script, *data, *named; /* named: in the last line of the log */
} refusals[] = {
    {"cut", TREE "truncate -s 300 $D/circle/00002.jpg" GO, "{self}/data", "circle/00002.jpg"},
    {"cut-tail", TREE "truncate -s -60 $D/circle/00002.jpg" GO, "{self}/data", "circle/00002.jpg"},
    {"empty-file", TREE ": > $D/ring/00001.jpg" GO, "{self}/data", "ring/00001.jpg"},
    {"no-jpeg", TREE "echo hello > $D/ring/00002.jpg" GO, "{self}/data", "ring/00002.jpg"},
    {"png", TREE "cp $D/ring/00001.jpg $D/ring/x.png" GO, "{self}/data", "ring/x.png"},
    {"empty-class", TREE "rm $D/ring/*" GO, "{self}/data", "ring"},
    {"too-many-classes", TREE "cp -r $D/ring $D/another" GO, "{self}/data", "11"},
    {"too-few-classes", TREE "rm -r $D/ring" GO, "{self}/data", "9"},
    {"too-few-images", TREE "for c in $D/*; do rm $c/00002.jpg; done" GO, "{self}/data",
     "10 images"},
    {"no-classes", "mkdir -p {self}/data" GO, "{self}/data", "no class"},
    {"a-file", "echo > {self}/data" GO, "{self}/data", "data"},
    {"batches.none", "mkdir -p {self}/data" GO, "batches:{self}/data", "rank0"},
    {"batches.missing", "true" GO, "batches:{self}/nowhere", "nowhere"},
};

static void judge_refusal(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct refusal *r = &refusals[row->number[0]];
    char line[400], path[700];
    struct stat status;
    ls_record_last_line(job, 0, line, (int)sizeof line);
    int code = job->state == LS_RECORD_DONE ? 0 : job->code;
    if (job->state != LS_RECORD_FAILED || code != LS_ERR_USAGE) {
        ls_verdict_set(out, LS_FAIL, "exit code %d, expected 2: %s", code, line);
    }
    if (strstr(line, r->named) == NULL) {
        ls_verdict_set(out, LS_FAIL, "the message does not name '%s': %s", r->named, line);
    }
    ls_text_put(path, sizeof path, "%s/dump", job->directory);
    if (job->rank[0].has_events || stat(path, &status) == 0) {
        ls_verdict_set(out, LS_FAIL, "something was written before the data were looked at");
    }
    if (out->code == LS_PASS) {
        ls_text_put(out->evidence, sizeof out->evidence, "refused: %s", line);
    }
}

static void add_refusals(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        ls_case *row = ls_rows_add(list, judge_refusal, "I3", "data.refuse.%s", refusals[i].id);
        row->job_count = 1;
        row->judges_outcome = true;
        row->number[0] = (int)i;
        ls_spec *spec = &row->job[0];
        *spec = ls_rows_evidence(settings, 0, 1, 1, LS_BUCKET_OWN);
        ls_text_put(spec->arch, sizeof spec->arch, "resnet8");
        spec->batch_size = 16;
        spec->steps = 1;
        ls_text_put(spec->dump_steps, sizeof spec->dump_steps, "1");
        ls_text_put(spec->data, sizeof spec->data, "%s", refusals[i].data);
        spec->wrap = LS_WRAP_SHELL;
        spec->script = refusals[i].script;
    }
}

/* Every file is broken, in a way that only decoding it shows: the one that is named is the first of
 * the batch, whoever decodes it. */
static void judge_first(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    enum { EACH = 2 };
    char name[64];
    int64_t *order = NULL;
    (void)ls_data_order(EACH * CLASSES, 0, 1, true, false, row->job[0].seed, 0, &order);
    ls_text_put(name, sizeof name, "%s/%05d.jpg", ls_draw_class_name((int)(order[0] / EACH)),
                (int)(order[0] % EACH) + 1);
    free(order);
    ls_ending want = {{LS_ERR_USAGE}, 1, name, false, NULL};
    ls_endings_judge(&want, job, out);
    if (job->rank[0].step_count > 0) {
        ls_verdict_set(out, LS_FAIL, "a step was taken on it");
    }
}

static void add_first(const ls_case_settings *settings, ls_case_list *list)
{
    for (int workers = 0; workers <= 3; workers += 3) {
        ls_case *row =
            ls_rows_add(list, judge_first, "I16", "data.refuse.first.workers%d", workers);
        row->job_count = 1;
        row->judges_outcome = true;
        row->job[0] = ls_endings_job(
            settings, 1, TREE "for F in $D/*/*.jpg; do printf 'hello\\377\\331' > $F; done" GO, "");
        row->job[0].batch_size = 16;
        ls_text_put(row->job[0].extra, sizeof row->job[0].extra, "--workers=%d", workers);
        ls_text_put(row->job[0].data, sizeof row->job[0].data, "{self}/data");
    }
}

/* ---- batches that are wrong inside ----------------------------------------------------------- */

/* One file of the given header (filled up to 256 bytes), 4 black images and 4 targets, of which the
 * last is given as eight bytes. */
#define BATCHES(input, type, target, last)                                                       \
    "D={self}/data; mkdir -p $D; for S in 1 2; do { printf '\\000\\001\\000\\000\\000\\000\\000" \
    "\\000'; printf '%-256s' '{\"input\":{\"dtype\":\"F32\",\"shape\":" input                    \
    ",\"data_offsets\":[0,12288]},\"" target "\":{\"dtype\":\"" type "\",\"shape\":[4],"         \
    "\"data_offsets\":[12288,12320]}}'; head -c 12312 /dev/zero; printf '" last                  \
    "'; } > $D/step00000$S.rank0.safetensors; done" GO
#define IMAGES_4 "[4,3,16,16]"
#define CLASS(digit) "\\00" digit "\\000\\000\\000\\000\\000\\000\\000"

static const struct inside {
    const char *id, *script;
    int code;
    const char *says;
} insides[] = {
    {"last-class", BATCHES(IMAGES_4, "I64", "target", "\\011\\000\\000\\000\\000\\000\\000\\000"),
     0, NULL},
    {"class-10", BATCHES(IMAGES_4, "I64", "target", "\\012\\000\\000\\000\\000\\000\\000\\000"), 2,
     "target 10"},
    {"class-negative",
     BATCHES(IMAGES_4, "I64", "target", "\\377\\377\\377\\377\\377\\377\\377\\377"), 2,
     "target -1"},
    {"shape", BATCHES("[4,3,8,32]", "I64", "target", CLASS("1")), 2, "[4,3,8,32]"},
    {"type", BATCHES(IMAGES_4, "F64", "target", CLASS("0")), 2, "target"},
    {"name", BATCHES(IMAGES_4, "I64", "targets", CLASS("1")), 2, "target"},
};

static void judge_inside(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct inside *one = &insides[row->number[0]];
    ls_ending want = {{one->code}, one->says != NULL, one->says, false, NULL};
    ls_endings_judge(&want, job, out);
    if (job->rank[0].step_count > (one->code == 0 ? 2 : 0)) {
        ls_verdict_set(out, LS_FAIL, "a step was taken on it");
    }
}

static void add_insides(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof insides / sizeof *insides; i++) {
        ls_case *row = ls_rows_add(list, judge_inside, "I14", "data.batches.%s", insides[i].id);
        row->job_count = 1;
        row->judges_outcome = true;
        row->number[0] = (int)i;
        row->job[0] = ls_endings_job(settings, 1, insides[i].script, "");
        row->job[0].image_size = 16;
        row->job[0].batch_size = 4;
        ls_text_put(row->job[0].data, sizeof row->job[0].data, "batches:{self}/data");
    }
}

/* ---- synthetic images ------------------------------------------------------------------------ */

static const ls_tol alike =
    LS_TOL(0.15, "mean square of the correlation of two channels: with patterns of their own 0.011 "
                 "to 0.056 at seeds 0 to 9, with one for both 0.408 to 0.431");

/* A class has a pattern of its own in each channel. */
static void judge_synthetic(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    enum { DRAWN = 2000, PIXELS = SIZE * SIZE };
    double squares = 0;
    (void)row;
    (void)job;
    ls_loader_options options = options_of("synthetic");
    ls_loader *loader = NULL;
    ls_loader_batch batch;
    options.batch_size = 1;
    if (ls_loader_open(&options, &loader) != LS_OK) {
        ls_verdict_set(out, LS_FAIL, "the loader cannot be opened");
        return;
    }
    for (int i = 0; i < DRAWN && out->code == LS_PASS; i++) {
        if (ls_loader_next(loader, &batch) != LS_OK) {
            ls_verdict_set(out, LS_FAIL, "image %d fails", i);
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
    ls_verdict_measured(out, mean, alike.value, "", alike.why);
    if (mean > alike.value) {
        ls_verdict_set(out, LS_FAIL, "red and green of an image are alike: %.3f", mean);
    }
    if (out->code == LS_PASS) {
        ls_text_put(out->evidence, sizeof out->evidence,
                    "likeness of two channels over %d images: %.3f", (int)DRAWN, mean);
    }
}

void ls_data_folder_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof scans / sizeof *scans; i++) {
        ls_case *row = ls_rows_add(list, judge_scan, "I3", "data.scan.%s", scans[i].id);
        row->kind = LS_INSIDE;
        row->number[0] = (int)i;
    }
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        ls_case *row = ls_rows_add(list, judge_pair, pairs[i].requirement, "data.%s", pairs[i].id);
        row->kind = LS_INSIDE;
        row->number[0] = (int)i;
    }
    for (int one = 0; one < 2; one++) {
        ls_case *row =
            ls_rows_add(list, judge_colours, "I12", one == 0 ? "data.colours" : "data.grey");
        row->kind = LS_INSIDE;
        row->number[0] = one;
    }
    static const int classes[] = {2, 10, 37, 1000};
    for (int i = 0; i < 4; i++) {
        ls_case *row =
            ls_rows_add(list, judge_classes, "I22", "data.synthetic.classes.%d", classes[i]);
        row->kind = LS_INSIDE;
        row->number[0] = classes[i];
    }
    ls_rows_add(list, judge_whole, "I13", "data.resample.unreduced")->kind = LS_INSIDE;
    add_refusals(settings, list);
    add_first(settings, list);
    add_insides(settings, list);
    ls_rows_add(list, judge_synthetic, "I15", "data.synthetic.channels")->kind = LS_INSIDE;
}
