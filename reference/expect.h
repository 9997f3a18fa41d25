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
    int asked; /* tensors found so far; what the file holds beyond them is unknown */
} ls_expect;

/* LS_ERR_USAGE where the tensor is missing or has another shape or type. any_float: f32, f16 and
 * bf16 will all do. out may be NULL. */
ls_status ls_expect_tensor(ls_expect *reader, const char *name, ls_dtype dtype, bool any_float,
                           const ls_shape *shape, const ls_safetensors_entry **out);
/* LS_ERR_USAGE where an entry of the metadata is not the given text. */
ls_status ls_expect_metadata(const ls_expect *reader, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
