/* The source of a loader's images. A dataset plans each micro-batch in order (which images it has)
 * and fills its items in any order from any thread; the contents of an item depend only on the
 * plan. */
#ifndef LS_DATASET_H
#define LS_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/core/status.h"

/* The images of a rank in an epoch: torch.utils.data.DistributedSampler, including its permutation.
 */

typedef struct ls_sampler {
    int64_t count; /* images of the data set, at least 1 */
    int rank, world;
    bool shuffle;
    bool drop_last; /* drop the remainder of a division by world instead of padding */
    bool no_pad;    /* neither: ranks have as many as there are, the first ones one more */
    uint64_t seed;  /* the epoch is added to it */
} ls_sampler;

/* Images of this rank in an epoch: ceil(count / world), floor with drop_last; with no_pad
 * ceil((count
 * - rank) / world). */
int64_t ls_dataset_length(const ls_sampler *sampler);
/* Writes this rank's images of an epoch, ls_dataset_length of them. Rank r takes positions r, r+W,
 * ... of the order, which is padded from its own start. */
void ls_dataset_epoch(const ls_sampler *sampler, int64_t epoch, int64_t *index);

/* The allocator for batches; `alloc` logs its failures. */
typedef struct ls_loader_memory {
    void *context;
    ls_status (*alloc)(void *context, int64_t bytes, void **out);
    void (*free)(void *context, void *memory);
} ls_loader_memory;

typedef struct ls_loader_options {
    const char *data; /* "synthetic", "batches:DIR", a folder of class folders of pictures, or one
                         of CIFAR's binary files */
    int rank, world;
    int batch_size, image_size, num_classes;
    /* the largest batch of all ranks: steps per epoch and synthetic images are counted by it, so
     * that all ranks have the same number of steps; less than batch_size: batch_size */
    int largest_batch;
    bool no_pad;    /* of a list of pictures: no picture comes twice, and steps are counted by the
                       rank's own batch: other ranks may have others (ls_sampler) */
    int accumulate; /* micro-batches per step; `batches:` files then hold [A,N,3,H,W] */
    uint64_t seed;
    int workers;                    /* threads that load ahead; 0: the caller loads */
    bool bytes;                     /* images of 8 bits a channel where the data has them */
    int64_t first_step;             /* 1, or the first step after a resume */
    const ls_loader_memory *memory; /* copied; NULL: malloc's */
    bool validates; /* of a folder: pictures in order, each once over all ranks, resized to `resize`
                       pixels on the shorter side and cropped at the centre (CIFAR's are taken
                       whole). A rank's last batch is filled up with black pictures of class 0; then
                       the first batch follows */
    int resize;
    bool skips_bad; /* of a folder: a picture that cannot be read is no error. In training the next
                       one of the list that can be read takes its place, in the crop that was drawn;
                       in validation a black one of class 0, which does not count */
} ls_loader_options;

enum { LS_DATASET_WHY = 1536 };

/* One item to fill: an image, or a whole micro-batch if `items` is 1. */
typedef struct ls_dataset_item {
    int64_t batch; /* micro-batch from 0: (step - 1) * accumulate + micro-batch of the step */
    int64_t epoch;
    int64_t index;   /* from plan */
    float *input;    /* [3,H,W], or [batch,3,H,W]; of a data set of bytes NULL */
    uint8_t *bytes;  /* the same before it is normalised, of a data set of bytes; else NULL */
    int64_t *target; /* one class, or [batch] */
    bool *bad;       /* one flag, false before: another picture was taken (skips_bad) */
    void *scratch;   /* this thread's, from scratch_create */
    char *why; /* [LS_DATASET_WHY]: the message of a failure, empty if it is already logged, or why
                  `bad`. The
                  loader logs it when the batch is requested, so that a batch loaded ahead but never
                  requested causes no message */
} ls_dataset_item;

typedef struct ls_dataset ls_dataset;
struct ls_dataset {
    int items;               /* per micro-batch */
    bool bytes;              /* fills `bytes` of an item */
    int64_t steps_per_epoch; /* 0: no end */
    int64_t images;          /* of a rank and an epoch; 0: no end */
    int64_t pictures;        /* of the data set; 0: no end */
    /* Writes the epoch and the index of each item; one caller at a time, batches in increasing
     * order. */
    ls_status (*plan)(ls_dataset *dataset, int64_t batch, int64_t *epoch, int64_t *index);
    ls_status (*fill)(const ls_dataset *dataset, const ls_dataset_item *item);
    ls_status (*scratch_create)(const ls_dataset *dataset, void **out); /* NULL: none needed */
    void (*scratch_destroy)(void *scratch);
    void (*destroy)(ls_dataset *dataset);
};

/* Image i of rank r in micro-batch m of step s has index ((s-1) A + m) W b + r b + i: rank-major,
 * so that the concatenated batches of W ranks equal the batch of one process with W b images, or W
 * micro-batches of b. */
ls_status ls_dataset_synthetic_open(const ls_loader_options *options, ls_dataset **out);
/* One image [3,size,size] and its class, 0 .. classes-1; waves: scratch of 2 * size floats. */
void ls_dataset_synthetic_image(uint64_t seed, int64_t index, int classes, int size, float *waves,
                                float *input, int64_t *target);

/* DIR/step%06d.rank%d.safetensors: `input` F32 [N,3,H,W] or [A,N,3,H,W], `target` I64 [N] or [A,N].
 */
ls_status ls_dataset_batches_open(const ls_loader_options *options, const char *dir,
                                  ls_dataset **out);

/* DIR/<class>/ with JPEG or PNG files: DistributedSampler's order, random resized crop, flip,
 * normalisation. */
ls_status ls_dataset_folder_open(const ls_loader_options *options, const char *dir,
                                 ls_dataset **out);

/* CIFAR-10's or CIFAR-100's binary files in DIR, images of 32 pixels: a crop of the image with 4
 * black pixels around it and a flip (He et al. 2015, section 4.2), ImageNet's statistics. Of
 * CIFAR-100 the fine classes. */
ls_status ls_dataset_cifar_open(const ls_loader_options *options, const char *dir,
                                ls_dataset **out);
/* 10 or 100 by the files' names; 0 where DIR has none of them. */
int ls_dataset_cifar_classes(const char *dir);

/* The pictures of a list in the order of a run: DistributedSampler's, or each once for validation.
 * The first member of the data sets that have one. */
typedef struct ls_dataset_listed {
    ls_dataset base; /* fill and destroy are the owner's */
    ls_sampler sampler;
    int64_t epoch;  /* of `order`; -1: none yet */
    int64_t *order; /* this rank's images of the epoch */
    int batch_size, accumulate, image_size;
    uint64_t seed;
    bool validates;
} ls_dataset_listed;

enum { LS_DATASET_BLACK = -1 }; /* an index: the picture fills a batch up */

/* Of `count` pictures from `dir`, which the message names. LS_ERR_USAGE where a rank has too few
 * for a step. */
ls_status ls_dataset_listed_open(const ls_loader_options *options, const char *dir, int64_t count,
                                 ls_dataset_listed *out);
void ls_dataset_listed_close(ls_dataset_listed *listed);

typedef enum ls_dataset_purpose { LS_DATASET_TRAINING, LS_DATASET_VALIDATION } ls_dataset_purpose;
enum { LS_DATASET_PATH = 1024 };
/* The folder of class folders for a purpose: DIR/train and DIR/val where DIR/train is a folder that
 * has folders; else DIR for training, and "" for validation, as where there is no DIR/val. Of
 * CIFAR's files DIR for both. */
void ls_dataset_part(const char *dir, ls_dataset_purpose purpose, char *out, size_t out_bytes);
/* LS_ERR_USAGE with the first class that only one of the two folders has: a --data DIR, and one of
 * class folders; or where one has CIFAR's files and the other has not. */
ls_status ls_dataset_same_classes(const char *dir, const char *validation);

/* The classes of --data DIR: its class folders, or CIFAR's. LS_ERR_USAGE, logged, as for
 * ls_dataset_files_scan. */
ls_status ls_dataset_count_classes(const char *dir, int *out);

/* The files of a folder of class folders, listed like torchvision's ImageFolder: classes in code
 * point order, files in order of name, a sub-folder's files after those of its parent. Names that
 * start with a dot are skipped. JPEG and PNG files only (picture.h). */
typedef struct ls_dataset_files {
    int class_count;
    char **class_name; /* [class_count] */
    int64_t count, capacity;
    char **path;     /* [count], with the folder */
    int32_t *target; /* [count] */
} ls_dataset_files;

/* LS_ERR_USAGE, logged, for a folder that is missing or has no class, a class without images
 * (named), and an image of another format (named). */
ls_status ls_dataset_files_scan(const char *dir, ls_dataset_files *out);
void ls_dataset_files_free(ls_dataset_files *folder);

#endif
