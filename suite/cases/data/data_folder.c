/* A folder of images: which files are found, in which order, and what becomes of their pixels. */
#include "data.h"
#include "suite/inside/inside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/file.h"
#include "kernels/core/path.h"
#include "reference/data/picture.h"
#include "reference/data/make.h"
#include "reference/data/transform.h"

enum { PER_CLASS = 3, IMAGES = LS_MAKE_CLASSES * PER_CLASS, LARGE = 8 };

/* A grey image at root/name; folders on the way are made. */
static bool put_image(const char *root, const char *name)
{
    static uint8_t const grey[3 * 16 * 16] = {0};
    LS_TEXT(path, 256, "%s/%s", root, name);
    LS_TEXT(folder, 256, "%s", path);
    *strrchr(folder, '/') = '\0';
    return ls_path_make_folder(folder) == LS_OK &&
           ls_picture_write_jpeg(path, grey, 16, 16, 90) == LS_OK;
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
    const struct scan *s = row->data;
    char root[64];
    ls_dataset_files folder = {0};
    if (!ls_data_folder_make(root, out)) {
        return;
    }
    for (int i = 0; i < 8 && s->file[i] != NULL; i++) {
        if (!put_image(root, s->file[i])) {
            ls_verdict_set(out, LS_INFRA, "cannot write %s", s->file[i]);
        }
    }
    if (out->code == LS_PASS && ls_dataset_files_scan(root, &folder) != LS_OK) {
        ls_verdict_fail(out, "the folder is refused");
    }
    int wanted = 0;
    for (; out->code == LS_PASS && wanted < 8 && s->want[wanted] != NULL; wanted++) {
        const char *path = wanted < folder.count ? folder.path[wanted] + strlen(root) + 1 : "none";
        if (strcmp(path, s->want[wanted]) != 0 || folder.target[wanted] != s->target[wanted]) {
            ls_verdict_fail(out, "image %d is %s, expected %s of class %d", wanted, path,
                            s->want[wanted], s->target[wanted]);
        }
    }
    if (out->code == LS_PASS && folder.count != wanted) {
        ls_verdict_fail(out, "%d images, expected %d", (int)folder.count, wanted);
    }
    ls_verdict_pass(out, wanted, "%d images in the expected order", wanted);
    ls_dataset_files_free(&folder);
    ls_path_remove_tree(root);
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

/* 8 x 8 pixels of the same red, green and blue in a palette, and of inks, which Pillow turns into
 * 190, 110, 49; both written by Pillow 13. */
static const char palette[] =
    "\x89\x50\x4e\x47\x0d\x0a\x1a\x0a\x00\x00\x00\x0d\x49\x48\x44\x52\x00\x00\x00\x08"
    "\x00\x00\x00\x08\x01\x03\x00\x00\x00\xfe\xc1\x2c\xc8\x00\x00\x00\x03\x50\x4c\x54"
    "\x45\xc8\x6e\x1e\x39\xb7\x81\x68\x00\x00\x00\x0b\x49\x44\x41\x54\x78\x9c\x63\x60"
    "\x40\x05\x00\x00\x10\x00\x01\x39\xbd\x8f\x65\x00\x00\x00\x00\x49\x45\x4e\x44\xae"
    "\x42\x60\x82";

static const char inks[] =
    "\xff\xd8\xff\xee\x00\x0e\x41\x64\x6f\x62\x65\x00\x64\x00\x00\x00\x00\x00\xff\xdb"
    "\x00\x43\x00\x08\x06\x06\x07\x06\x05\x08\x07\x07\x07\x09\x09\x08\x0a\x0c\x14\x0d"
    "\x0c\x0b\x0b\x0c\x19\x12\x13\x0f\x14\x1d\x1a\x1f\x1e\x1d\x1a\x1c\x1c\x20\x24\x2e"
    "\x27\x20\x22\x2c\x23\x1c\x1c\x28\x37\x29\x2c\x30\x31\x34\x34\x34\x1f\x27\x39\x3d"
    "\x38\x32\x3c\x2e\x33\x34\x32\xff\xc0\x00\x14\x08\x00\x08\x00\x08\x04\x43\x11\x00"
    "\x4d\x11\x00\x59\x11\x00\x4b\x11\x00\xff\xc4\x00\x1f\x00\x00\x01\x05\x01\x01\x01"
    "\x01\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09"
    "\x0a\x0b\xff\xc4\x00\xb5\x10\x00\x02\x01\x03\x03\x02\x04\x03\x05\x05\x04\x04\x00"
    "\x00\x01\x7d\x01\x02\x03\x00\x04\x11\x05\x12\x21\x31\x41\x06\x13\x51\x61\x07\x22"
    "\x71\x14\x32\x81\x91\xa1\x08\x23\x42\xb1\xc1\x15\x52\xd1\xf0\x24\x33\x62\x72\x82"
    "\x09\x0a\x16\x17\x18\x19\x1a\x25\x26\x27\x28\x29\x2a\x34\x35\x36\x37\x38\x39\x3a"
    "\x43\x44\x45\x46\x47\x48\x49\x4a\x53\x54\x55\x56\x57\x58\x59\x5a\x63\x64\x65\x66"
    "\x67\x68\x69\x6a\x73\x74\x75\x76\x77\x78\x79\x7a\x83\x84\x85\x86\x87\x88\x89\x8a"
    "\x92\x93\x94\x95\x96\x97\x98\x99\x9a\xa2\xa3\xa4\xa5\xa6\xa7\xa8\xa9\xaa\xb2\xb3"
    "\xb4\xb5\xb6\xb7\xb8\xb9\xba\xc2\xc3\xc4\xc5\xc6\xc7\xc8\xc9\xca\xd2\xd3\xd4\xd5"
    "\xd6\xd7\xd8\xd9\xda\xe1\xe2\xe3\xe4\xe5\xe6\xe7\xe8\xe9\xea\xf1\xf2\xf3\xf4\xf5"
    "\xf6\xf7\xf8\xf9\xfa\xff\xda\x00\x0e\x04\x43\x00\x4d\x00\x59\x00\x4b\x00\x00\x3f"
    "\x00\xf5\x7a\x65\x79\xb5\x7b\x0d\x7f\xff\xd9";

static const ls_tol shade =
    LS_TOL(3, "of 255: Y, Cb and Cr in 8 bits, their means quantised by a quarter of a level, and "
              "back are within 2; the channels are 80 apart");

struct picture {
    const char *file;
    size_t bytes;
    double want[3];
};

/* Through the whole loader: what the network gets is the file's colour, normalised, everywhere. */
static void judge_colours(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    static const double mean[3] = {0.485, 0.456, 0.406}, deviation[3] = {0.229, 0.224, 0.225};
    const struct picture *p = row->data;
    const double *want = p->want;
    (void)job;
    char root[64], folder[80], path[96];
    ls_loader *loader = NULL;
    ls_loader_batch batch;
    if (!ls_data_folder_make(root, out)) {
        return;
    }
    ls_text_put(folder, sizeof folder, "%s/a", root);
    ls_text_put(path, sizeof path, "%s/1.jpg", folder);
    bool written =
        ls_path_make_folder(folder) == LS_OK && ls_file_replace(path, p->file, p->bytes) == LS_OK;
    ls_loader_options options = ls_data_loader_options(root);
    options.batch_size = options.num_classes = 1;
    if (!written) {
        ls_verdict_set(out, LS_INFRA, "cannot write %s", path);
    } else if (ls_loader_open(&options, &loader) != LS_OK ||
               ls_loader_next(loader, &batch) != LS_OK) {
        ls_verdict_fail(out, "a picture of Pillow's is refused");
    }
    for (int i = 0; i < 3 * LS_DATA_SIZE * LS_DATA_SIZE && out->code == LS_PASS; i++) {
        int c = i / (LS_DATA_SIZE * LS_DATA_SIZE);
        double got = ((double)batch.input[i] * deviation[c] + mean[c]) * 255;
        if (!ls_verdict_worst(out, fabs(got - want[c]), &shade, "of 255")) {
            ls_verdict_fail(out, "channel %d has %.1f of 255, expected %.0f", c, got, want[c]);
        }
    }
    ls_verdict_pass(out, 3 * LS_DATA_SIZE * LS_DATA_SIZE,
                    "red, green and blue of a foreign picture within %.1f of 255", out->value);
    ls_loader_close(loader);
    ls_path_remove_tree(root);
}

/* ---- whole pictures -------------------------------------------------------------------------- */

/* Images have the bits that the pixels of the whole file give, also where the file is eight times
 * as wide as what the network gets: a decoder could give a half or an eighth of it sooner. */
static void judge_whole(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    char root[64], tree[96], why[1600];
    ls_dataset_files folder = {0};
    ls_loader *loader = NULL;
    ls_picture *picture = NULL;
    ls_resample_scratch scratch = {0};
    int64_t *order = NULL;
    (void)row;
    (void)job;
    if (!ls_data_folder_make(root, out)) {
        return;
    }
    ls_text_put(tree, sizeof tree, "%s/tree", root);
    ls_loader_options options = ls_data_loader_options(tree);
    options.batch_size = 1;
    if (ls_make_folder(tree, PER_CLASS, LARGE * LS_DATA_SIZE, 1) != LS_OK ||
        ls_picture_create(&picture) != LS_OK) {
        ls_verdict_set(out, LS_INFRA, "cannot write %s", tree);
    } else if (ls_dataset_files_scan(tree, &folder) != LS_OK ||
               ls_loader_open(&options, &loader) != LS_OK) {
        ls_verdict_fail(out, "the loader cannot be opened");
    }
    (void)ls_data_order(IMAGES, 0, 1, true, false, options.seed, 0, &order);
    for (int i = 0; i < IMAGES && out->code == LS_PASS; i++) {
        uint8_t bytes[3 * LS_DATA_SIZE * LS_DATA_SIZE];
        float want[3 * LS_DATA_SIZE * LS_DATA_SIZE];
        ls_loader_batch batch;
        int width, height;
        const uint8_t *rgb;
        const char *path = folder.path[order[i]];
        if (ls_picture_read(picture, path, &rgb, &width, &height, why, sizeof why) != LS_OK) {
            ls_verdict_fail(out, "%s", why);
            break;
        }
        LS_ASSERT(width >= LARGE * LS_DATA_SIZE && height >= LARGE * LS_DATA_SIZE);
        ls_transform_crop crop = ls_transform_draw(options.seed, 0, order[i], width, height);
        if (ls_loader_next(loader, &batch) != LS_OK) {
            ls_verdict_fail(out, "image %d fails", i);
            break;
        }
        ls_transform_apply(&scratch, rgb, width, &crop, LS_DATA_SIZE, bytes);
        ls_transform_normalise(bytes, 0, (int64_t)sizeof bytes,
                               (int64_t)LS_DATA_SIZE * LS_DATA_SIZE, want);
        if (memcmp(batch.input, want, sizeof want) != 0) {
            ls_verdict_fail(out,
                            "image %d, %d x %d pixels, a crop of %d x %d: not what its pixels give",
                            i, width, height, crop.width, crop.height);
        }
    }
    ls_verdict_pass(out, IMAGES, "%d images have the bits of whole ones", (int)IMAGES);
    ls_loader_close(loader);
    ls_picture_destroy(picture);
    ls_transform_release(&scratch);
    ls_dataset_files_free(&folder);
    free(order);
    ls_path_remove_tree(root);
}

static const ls_row rows[] = {
    {"data.colours", "I12", judge_colours, NULL,
     &(const struct picture){orange, sizeof orange - 1, {200, 110, 30}}},
    {"data.grey", "I12", judge_colours, NULL,
     &(const struct picture){grey, sizeof grey - 1, {77, 77, 77}}},
    {"data.png", "I12", judge_colours, NULL,
     &(const struct picture){palette, sizeof palette - 1, {200, 110, 30}}},
    {"data.cmyk", "I12", judge_colours, NULL,
     &(const struct picture){inks, sizeof inks - 1, {190, 110, 49}}},
    {"data.resample.unreduced", "I13", judge_whole},
};

/* CIFAR's binary files: which images a rank gets, their crops and classes, and what is refused. */

enum { SIDE = 32, PIXELS = SIDE * SIDE, IMAGE = 3 * PIXELS, PAD = 4 };

/* ---- what the loader gives ------------------------------------------------------------------- */

struct kind {
    int classes, labels, files;
    const char *train, *test; /* train: of file %d */
};

static const struct kind kinds[] = {{10, 1, 5, "data_batch_%d.bin", "test_batch.bin"},
                                    {100, 2, 1, "train.bin", "test.bin"}};

enum { PER_FILE = 7, TESTED = 11 };

/* Byte `at` of image n of a part: unlike its neighbours in every direction. */
static uint8_t pixel(bool test, int n, int at)
{
    return (uint8_t)(n * 37 + at * 7 + at / SIDE * 3 + (test ? 101 : 0));
}

static int class_of(const struct kind *k, bool test, int n)
{
    return (n * 13 + (test ? 5 : 1)) % k->classes;
}

/* A file of images `first` to first + count - 1; a coarse class is not the fine one. */
static bool write_file(const struct kind *k, const char *path, bool test, int first, int count)
{
    size_t record = (size_t)k->labels + IMAGE;
    uint8_t *bytes = calloc((size_t)count, record);
    LS_MEMORY(bytes != NULL);
    for (int i = 0; i < count; i++) {
        uint8_t *to = bytes + (size_t)i * record;
        int fine = class_of(k, test, first + i);
        to[0] = (uint8_t)((fine + 1) % 20);
        to[k->labels - 1] = (uint8_t)fine;
        for (int at = 0; at < IMAGE; at++) {
            to[k->labels + at] = pixel(test, first + i, at);
        }
    }
    bool good = ls_file_replace(path, bytes, record * (size_t)count) == LS_OK;
    free(bytes);
    return good;
}

static bool write_files(const struct kind *k, const char *root)
{
    char name[32], path[128];
    bool good = true;
    for (int f = 0; f < k->files && good; f++) {
        ls_text_put(name, sizeof name, k->train, f + 1);
        ls_text_put(path, sizeof path, "%s/%s", root, name);
        good = write_file(k, path, false, f * PER_FILE, PER_FILE);
    }
    ls_text_put(path, sizeof path, "%s/%s", root, k->test);
    return good && write_file(k, path, true, 0, TESTED);
}

/* Value `at` of image n as the network gets it; in training from its crop. */
static float expected(bool test, int n, int at, const ls_transform_crop *crop)
{
    static const float mean[3] = {0.485f, 0.456f, 0.406f}, deviation[3] = {0.229f, 0.224f, 0.225f};
    int channel = at / PIXELS, y = at % PIXELS / SIDE, x = at % SIDE;
    if (crop != NULL) {
        x = (crop->flip ? SIDE - 1 - x : x) + crop->left - PAD;
        y += crop->top - PAD;
    }
    bool inside = x >= 0 && x < SIDE && y >= 0 && y < SIDE;
    float byte = inside ? (float)pixel(test, n, (channel * SIDE + y) * SIDE + x) : 0.0f;
    return (byte / 255.0f - mean[channel]) / deviation[channel];
}

/* The loader's next batch against images order[from], ... */
/* Returns how many values were compared. */
static int64_t check_batch(ls_loader *loader, const struct kind *k, bool test, const int64_t *order,
                           int from, int images, const ls_loader_options *o, ls_verdict *out)
{
    ls_loader_batch batch;
    if (ls_loader_next(loader, &batch) != LS_OK) {
        ls_verdict_fail(out, "the loader fails");
        return 0;
    }
    for (int i = 0; i < images && out->code == LS_PASS; i++) {
        int n = (int)order[from + i];
        ls_transform_crop crop = ls_transform_draw_padded(o->seed, batch.epoch, n, SIDE, PAD);
        if (batch.target[i] != class_of(k, test, n)) {
            ls_verdict_fail(out, "image %d is of class %lld, expected %d", n,
                            (long long)batch.target[i], class_of(k, test, n));
        }
        for (int at = 0; at < IMAGE && out->code == LS_PASS; at++) {
            float want = expected(test, n, at, test ? NULL : &crop);
            float have = batch.input[(size_t)i * IMAGE + (size_t)at];
            if (have != want) {
                ls_verdict_fail(out, "image %d, value %d is %.9g, expected %.9g", n, at,
                                (double)have, (double)want);
            }
        }
    }
    return (int64_t)images * IMAGE;
}

static void judge_files(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct kind *k = row->data;
    char root[64];
    ls_loader *loader = NULL;
    (void)job;
    if (!ls_data_folder_make(root, out)) {
        return;
    }
    ls_loader_options options = ls_data_loader_options(root);
    options.world = 2;
    options.rank = 1;
    options.image_size = SIDE;
    options.num_classes = k->classes;
    int count = k->files * PER_FILE, share = (count + 1) / 2;
    int64_t compared = 0;
    if (!write_files(k, root)) {
        ls_verdict_set(out, LS_INFRA, "cannot write CIFAR's files to %s", root);
    } else if (ls_loader_open(&options, &loader) != LS_OK) {
        ls_verdict_fail(out, "CIFAR-%d's files are refused", k->classes);
    } else if (ls_loader_images(loader) != share ||
               ls_loader_steps_per_epoch(loader) != share / options.batch_size) {
        ls_verdict_fail(out, "a rank has %lld images, expected %d",
                        (long long)ls_loader_images(loader), share);
    }
    for (int epoch = 0; epoch < 2; epoch++) {
        int64_t *order = NULL;
        (void)ls_data_order(count, 1, 2, true, false, options.seed, epoch, &order);
        for (int b = 0; b < share / options.batch_size && out->code == LS_PASS; b++) {
            compared += check_batch(loader, k, false, order, b * options.batch_size,
                                    options.batch_size, &options, out);
        }
        free(order);
    }
    ls_loader_close(loader);
    loader = NULL;
    options.validates = true;
    if (out->code == LS_PASS && ls_loader_open(&options, &loader) != LS_OK) {
        ls_verdict_fail(out, "the test file is refused");
    }
    int64_t tested[TESTED / 2 + 1];
    for (int i = 0; i < TESTED / 2; i++) {
        tested[i] = 1 + 2 * i;
    }
    if (out->code == LS_PASS && ls_loader_images(loader) != TESTED / 2) {
        ls_verdict_fail(out, "rank 1 of 2 validates %lld images, expected %d",
                        (long long)ls_loader_images(loader), TESTED / 2);
    }
    for (int at = 0; at < TESTED / 2 && out->code == LS_PASS; at += options.batch_size) {
        int images = TESTED / 2 - at < options.batch_size ? TESTED / 2 - at : options.batch_size;
        compared += check_batch(loader, k, true, tested, at, images, &options, out);
    }
    ls_verdict_pass(out, compared,
                    "two epochs of %d images on rank 1 of 2, and %d of the test file", count,
                    TESTED / 2);
    ls_loader_close(loader);
    ls_path_remove_tree(root);
}

/* ---- a training ------------------------------------------------------------------------------ */

/* Black images of class 0: 8 in each file to train, 7 to test. */
#define ZEROS(bytes) "head -c " #bytes " /dev/zero > "
#define TEN                                                      \
    "D={self}/data; mkdir -p $D; for I in 1 2 3 4 5; do " ZEROS( \
        24584) "$D/data_batch_$I.bin; done; " ZEROS(21511) "$D/test_batch.bin; "
#define HUNDRED \
    "D={self}/data; mkdir -p $D; " ZEROS(24592) "$D/train.bin; " ZEROS(21518) "$D/test.bin; "
#define GO "exec \"$0\" \"$@\""

/* Two epochs are trained and validated, each image of either part once. */
static void judge_epochs(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const int *images = row->data; /* of an epoch; of the test file */
    const cJSON *events = job->rank[0].epochs;
    if (cJSON_GetArraySize(events) != 2) {
        ls_verdict_fail(out, "%d epoch events, expected 2", cJSON_GetArraySize(events));
    }
    for (int i = 0; i < cJSON_GetArraySize(events); i++) {
        const cJSON *event = cJSON_GetArrayItem(events, i);
        const cJSON *train = ls_json_get(event, "train");
        const cJSON *val = ls_json_get(event, "val");
        if (ls_json_integer(train, "images", -1) != images[0] ||
            ls_json_integer(val, "images", -1) != images[1]) {
            ls_verdict_fail(out,
                            "epoch %d: %lld images are trained and %lld validated, expected "
                            "%d and %d",
                            i + 1, (long long)ls_json_integer(train, "images", -1),
                            (long long)ls_json_integer(val, "images", -1), images[0], images[1]);
        }
    }
    ls_verdict_pass(out, 2 * cJSON_GetArraySize(events), "%d images an epoch, %d validated",
                    images[0], images[1]);
}

/* ---- what is refused ------------------------------------------------------------------------- */

#define REFUSED(id, script, option, named)                                                   \
    {                                                                                        \
        "data.cifar.refuse." id, "I24", ls_endings_row,                                      \
            "resnet8 O0 image=32 steps=1 data={self}/data shell " option, LS_REFUSAL(named), \
            script, .judges_outcome = true                                                   \
    }

static const ls_row cifar[] = {
    {"data.cifar.files.10", "I23", judge_files, NULL, &kinds[0]},
    {"data.cifar.files.100", "I23", judge_files, NULL, &kinds[1]},
    {"data.cifar.epochs.10.w2", "I23", judge_epochs,
     "resnet8 O0 w2 b0.05 image=32 steps=10 data={self}/data shell --val={self}/data --workers=1",
     (const int[]){40, 7}, TEN GO},
    {"data.cifar.epochs.100", "I23", judge_epochs,
     "resnet8 O2 image=32 steps=4 data={self}/data shell --val={self}/data --num-classes=100",
     (const int[]){8, 7}, HUNDRED GO},
    REFUSED("cut", TEN "truncate -s -1 $D/data_batch_3.bin; " GO, "",
            "data_batch_3.bin has 24583 bytes"),
    REFUSED("empty", TEN ": > $D/data_batch_5.bin; " GO, "", "data_batch_5.bin has 0 bytes"),
    REFUSED("missing", TEN "rm $D/data_batch_2.bin; " GO, "", "data_batch_2.bin"),
    REFUSED("class",
            TEN "printf '\\012' | dd of=$D/data_batch_4.bin bs=1 seek=3073 conv=notrunc "
                "2>/dev/null; " GO,
            "", "image 1 is of class 10"),
    REFUSED("classes", TEN GO, "--num-classes=11", "--num-classes is 11"),
    REFUSED("size", TEN GO, "--image-size=16", "--image-size is 16"),
    REFUSED("few", TEN GO, "--batch-size=41", "40 images"),
    REFUSED("other-val", TEN "mkdir -p $D/val/a; " GO, "--val={self}/data/val", "not CIFAR's"),
    REFUSED("no-test", TEN "rm $D/test_batch.bin; " GO, "--val={self}/data", "test_batch.bin"),
};

void ls_data_folder_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
    LS_ROWS_EACH(list, settings, &((ls_row){.requirement = "I3", .judge = judge_scan}),
                 "data.scan.%s", scans);
    LS_ROWS(list, settings, cifar);
}
