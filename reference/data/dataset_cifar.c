/* The binary files of CIFAR-10 and CIFAR-100 (https://www.cs.toronto.edu/~kriz/cifar.html): records
 * of one class byte (CIFAR-100: coarse, then fine) and 1,024 red, green and blue bytes, by rows. */
#include "dataset.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"
#include "transform.h"

enum { SIDE = 32, PIXELS = SIDE * SIDE, PAD = 4, FILES_MAX = 5 };

typedef struct format {
    int classes, labels; /* label bytes of a record; the last is the class */
    const char *train[FILES_MAX + 1], *test[2];
} format;

static const format formats[] = {
    {10,
     1,
     {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
      "data_batch_5.bin"},
     {"test_batch.bin"}},
    {100, 2, {"train.bin"}, {"test.bin"}},
};

typedef struct cifar_file {
    char path[LS_DATASET_PATH];
    int descriptor;
    int64_t images;
} cifar_file;

typedef struct cifar_set {
    ls_dataset_listed listed;
    const format *format;
    int file_count;
    cifar_file file[FILES_MAX];
    int64_t count;
    uint8_t *target; /* [count] */
} cifar_set;

static int64_t record_bytes(const format *f)
{
    return f->labels + 3 * PIXELS;
}

/* ---- the files ------------------------------------------------------------------------------- */

static bool has_file(const char *dir, const char *name)
{
    struct stat found;
    LS_TEXT(path, LS_DATASET_PATH, "%s/%s", dir, name);
    return stat(path, &found) == 0 && S_ISREG(found.st_mode);
}

static const format *find_format(const char *dir)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (has_file(dir, formats[i].train[0]) || has_file(dir, formats[i].test[0])) {
            return &formats[i];
        }
    }
    return NULL;
}

int ls_dataset_cifar_classes(const char *dir)
{
    const format *f = find_format(dir);
    return f != NULL ? f->classes : 0;
}

static ls_status open_file(cifar_set *set, const char *dir, const char *name)
{
    cifar_file *file = &set->file[set->file_count];
    ls_file_source source;
    ls_text_put(file->path, sizeof file->path, "%s/%s", dir, name);
    if (ls_file_open(file->path, INT64_MAX, &source) != LS_OK) {
        return ls_log_fail(LS_ERR_USAGE, "%s", source.why);
    }
    file->descriptor = source.descriptor;
    set->file_count++;
    int64_t bytes = record_bytes(set->format);
    if (source.bytes == 0 || source.bytes % bytes != 0) {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s has %lld bytes, CIFAR-%d's files have a multiple of %lld: it is cut "
                           "or of another kind",
                           file->path, (long long)source.bytes, set->format->classes,
                           (long long)bytes);
    }
    file->images = source.bytes / bytes;
    set->count += file->images;
    return LS_OK;
}

/* Whole or not at all: a file that has become shorter is an error. */
static bool read_at(const cifar_file *file, int64_t at, void *out, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t got =
            pread(file->descriptor, (char *)out + done, bytes - done, (off_t)(at + (int64_t)done));
        if (got == 0 || (got < 0 && errno != EINTR)) {
            return false;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return true;
}

/* The class of every image: one that does not exist shows a file of another kind. */
static ls_status read_classes(cifar_set *set)
{
    int64_t next = 0, bytes = record_bytes(set->format);
    int byte = LS_PLANT(cifar_coarse_classes, set->format->labels - 1, 0);
    set->target = malloc((size_t)set->count);
    LS_MEMORY(set->target != NULL);
    for (int f = 0; f < set->file_count; f++) {
        const cifar_file *file = &set->file[f];
        for (int64_t i = 0; i < file->images; i++, next++) {
            if (!read_at(file, i * bytes + byte, &set->target[next], 1)) {
                return ls_log_fail(LS_ERR_USAGE, "cannot read image %lld of %s", (long long)i,
                                   file->path);
            }
            if (set->target[next] >= set->format->classes) {
                return ls_log_fail(LS_ERR_USAGE,
                                   "%s: image %lld is of class %d; allowed: 0 to %d of CIFAR-%d",
                                   file->path, (long long)i, set->target[next],
                                   set->format->classes - 1, set->format->classes);
            }
        }
    }
    return LS_OK;
}

static ls_status read_image(const cifar_set *set, int64_t index, uint8_t *rgb, char *why)
{
    const cifar_file *file = set->file;
    int64_t at = index, bytes = record_bytes(set->format);
    for (; at >= file->images; file++) {
        at -= file->images;
    }
    if (!read_at(file, at * bytes + set->format->labels, rgb, 3 * PIXELS)) {
        snprintf(why, LS_DATASET_WHY, "cannot read image %lld of %s: the file has become shorter",
                 (long long)at, file->path);
        return LS_ERR_USAGE;
    }
    return LS_OK;
}

/* ---- filling --------------------------------------------------------------------------------- */

static ls_status fill(const ls_dataset *dataset, const ls_dataset_item *item)
{
    const cifar_set *set = (const cifar_set *)dataset;
    const ls_dataset_listed *listed = &set->listed;
    uint8_t image[3 * PIXELS], cropped[3 * PIXELS];
    uint8_t *bytes = listed->base.bytes ? item->bytes : cropped;
    if (item->index == LS_DATASET_BLACK) {
        memset(bytes, 0, sizeof cropped);
        *item->target = 0;
    } else {
        LS_TRY(read_image(set, item->index, listed->validates ? bytes : image, item->why));
        *item->target = set->target[item->index];
        if (!listed->validates) {
            ls_transform_crop crop =
                ls_transform_draw_padded(listed->seed, item->epoch, item->index, SIDE, PAD);
            ls_transform_apply_padded(image, SIDE, PAD, &crop, bytes);
        }
    }
    if (!listed->base.bytes) {
        ls_transform_normalise(bytes, 0, 3 * PIXELS, PIXELS, item->input);
    }
    return LS_OK;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void destroy(ls_dataset *dataset)
{
    cifar_set *set = (cifar_set *)dataset;
    for (int i = 0; i < set->file_count; i++) {
        close(set->file[i].descriptor);
    }
    ls_dataset_listed_close(&set->listed);
    free(set->target);
    free(set);
}

static ls_status check(const format *f, const ls_loader_options *options, const char *dir)
{
    if (f->classes != options->num_classes) {
        return ls_log_fail(LS_ERR_USAGE, "%s is CIFAR-%d, but --num-classes is %d", dir, f->classes,
                           options->num_classes);
    }
    if (options->image_size != SIDE) {
        return ls_log_fail(LS_ERR_USAGE, "%s has images of %d pixels, but --image-size is %d", dir,
                           SIDE, options->image_size);
    }
    return LS_OK;
}

ls_status ls_dataset_cifar_open(const ls_loader_options *options, const char *dir, ls_dataset **out)
{
    const format *f = find_format(dir);
    LS_ASSERT(f != NULL);
    LS_TRY(check(f, options, dir));
    cifar_set *set = calloc(1, sizeof *set);
    LS_MEMORY(set != NULL);
    set->format = f;
    bool tests = LS_PLANT(cifar_validates_on_training, options->validates, false);
    const char *const *name = tests ? f->test : f->train;
    ls_status status = LS_OK;
    for (; status == LS_OK && *name != NULL; name++) {
        status = open_file(set, dir, *name);
    }
    LS_THEN(status, read_classes(set));
    LS_THEN(status, ls_dataset_listed_open(options, dir, set->count, &set->listed));
    set->listed.base.bytes = options->bytes;
    set->listed.base.fill = fill;
    set->listed.base.destroy = destroy;
    if (status != LS_OK) {
        destroy(&set->listed.base);
        return status;
    }
    *out = &set->listed.base;
    return LS_OK;
}
