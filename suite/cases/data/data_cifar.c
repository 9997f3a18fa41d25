/* CIFAR's binary files: which images a rank gets, their crops and classes, and what is refused. */
#include "data.h"

#include <stdlib.h>

#include "kernels/core/file.h"
#include "kernels/core/path.h"
#include "reference/data/transform.h"

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
        const cJSON *train = cJSON_GetObjectItemCaseSensitive(event, "train");
        const cJSON *val = cJSON_GetObjectItemCaseSensitive(event, "val");
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

static const ls_row rows[] = {
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

void ls_data_cifar_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
