/* A safetensors file being checked against what a run needs: every tensor is asked for once by
 * name, and what is wrong with it is said in one line with the file, the tensor, what it has and
 * what is needed. */
#ifndef LS_EXPECT_H
#define LS_EXPECT_H

#include <stdbool.h>

#include "safetensors.h"

typedef struct ls_expect {
    const char *path;
    ls_safetensors *file;
    bool *seen; /* by index in the file: was asked for */
} ls_expect;

/* As ls_safetensors_open. */
ls_status ls_expect_open(const char *path, ls_expect *out);
void ls_expect_close(ls_expect *reader);

/* LS_ERR_USAGE where the tensor is missing or has another shape or type. any_float: f32, f16 and
 * bf16 will all do. out may be NULL. */
ls_status ls_expect_tensor(ls_expect *reader, const char *name, ls_dtype dtype, bool any_float,
                           const ls_shape *shape, const ls_safetensors_entry **out);
/* LS_ERR_USAGE where an entry of the metadata is not the given text. */
ls_status ls_expect_metadata(const ls_expect *reader, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Whether a tensor of the file has been asked for: what has not is unknown to the run. */
bool ls_expect_has_seen(const ls_expect *reader, const ls_safetensors_entry *entry);

#endif
