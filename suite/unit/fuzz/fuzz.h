/* The fuzzer's readers and what they share: random numbers, seeds, mutations, files. */
#ifndef LS_UNIT_FUZZ_H
#define LS_UNIT_FUZZ_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "harness/store/gate.h"
#include "harness/store/store_server.h"
#include "reference/data/picture.h"
#include "reference/train/trainer.h"

enum {
    INPUT_BYTES_MAX = 1 << 22,
    SEEDS_MAX = 16,
    INPUT_LIMIT_S = 10,
    PATH_BYTES = 600,
};

typedef struct bytes {
    size_t count;
    unsigned char at[INPUT_BYTES_MAX + 1]; /* a 0 behind the last */
} bytes;

typedef struct fuzz {
    char folder[64]; /* of the files that are read; removed with its contents at the end */
    const char
        *recorded; /* folder with jobs that lockstep-train wrote: jobs/<k>/rank0.jsonl, ... */
    uint64_t random;
    int seeds;
    bytes *seed; /* [SEEDS_MAX] */
    /* what one reader keeps from input to input */
    ls_store_server *server;
    unsigned char key[LS_SHA256_BYTES]; /* of the server's job */
    ls_picture *picture;
    ls_trainer *trainer;
    int job, rank; /* whose dump is mutated */
    cJSON *events; /* of an observed job, as recorded */
} fuzz;

typedef struct reader {
    const char *name;
    void (*seed)(fuzz *);
    void (*make)(fuzz *, bytes *); /* NULL: fuzz_make */
    void (*read)(fuzz *, const bytes *);
    void (*end)(fuzz *); /* NULL: nothing to free */
} reader;

/* One of each kind of file, message or command line; {NULL} ends each list. */
extern const reader fuzz_tensor_readers[];
extern const reader fuzz_pth_readers[];
extern const reader fuzz_text_readers[];
extern const reader fuzz_image_readers[];
extern const reader fuzz_wire_readers[];
extern const reader fuzz_observed_readers[];

uint64_t fuzz_draw(fuzz *f);
size_t fuzz_below(fuzz *f, size_t limit);
/* A word that readers of numbers, lists and types may not expect. */
const char *fuzz_word(fuzz *f);
/* A number likewise. */
double fuzz_number(fuzz *f);

/* Changes, inserts or removes bytes before `limit` once. */
void fuzz_mutate(fuzz *f, bytes *b, size_t limit);
/* A random seed, mutated up to six times. */
void fuzz_make(fuzz *f, bytes *b);

void fuzz_add_seed(fuzz *f, const void *data, size_t count);
void fuzz_add_seed_text(fuzz *f, const char *text);
void fuzz_add_seed_file(fuzz *f, const char *path);

/* <folder>/<name> */
const char *fuzz_path(const fuzz *f, const char *name, char path[PATH_BYTES]);
void fuzz_put_file(const fuzz *f, const char *name, const void *data, size_t count);

#endif
