/* A safetensors file being checked against what a run needs: every tensor is asked for once by
 * name, and what is wrong with it is said in one line with the file, the tensor, what it has and
 * what is needed. */
#ifndef LS_STRICT_READER_H
#define LS_STRICT_READER_H

#include <stdbool.h>

#include "safetensors.h"

typedef struct ls_strict_reader {
    const char *path;
    ls_safetensors *file;
    bool *seen; /* by index in the file: was asked for */
} ls_strict_reader;

/* As ls_safetensors_open. */
ls_status ls_strict_reader_open(const char *path, ls_strict_reader *out);
void ls_strict_reader_close(ls_strict_reader *reader);

/* LS_ERR_USAGE where the tensor is missing or has another shape or type. any_float: f32, f16 and
 * bf16 will all do. out may be NULL. */
ls_status ls_strict_reader_tensor(ls_strict_reader *reader, const char *name, ls_dtype dtype,
                                  bool any_float, const ls_shape *shape,
                                  const ls_safetensors_entry **out);
/* LS_ERR_USAGE where an entry of the metadata is not the given text. */
ls_status ls_strict_reader_metadata(const ls_strict_reader *reader, const char *name,
                                    const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The tensors that have not been asked for, counted by what stands before the first slash of their
 * names: "state 41, scaler 3, rank<k> 36"; "" when there are none. */
void ls_strict_reader_unused(const ls_strict_reader *reader, char *text, size_t bytes);
/* Whether a tensor of the file has been asked for: what has not is unknown to the run. */
bool ls_strict_reader_has_seen(const ls_strict_reader *reader, const ls_safetensors_entry *entry);

#endif
