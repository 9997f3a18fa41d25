/* Checks a safetensors file against the requirements of a run: the run requests every tensor once
 * by name, and a mismatch is logged in one line with the file, the tensor, the actual and the
 * required property. */
#ifndef LS_STRICT_READER_H
#define LS_STRICT_READER_H

#include <stdbool.h>

#include "safetensors.h"

typedef struct ls_strict_reader {
    const char *path;
    ls_safetensors *file;
    bool *seen; /* by index in the file: requested */
} ls_strict_reader;

/* As ls_pth_state_open: a safetensors file, or one of torch.save. */
ls_status ls_strict_reader_open(const char *path, ls_strict_reader *out);
void ls_strict_reader_close(ls_strict_reader *reader);

/* LS_ERR_USAGE if the tensor is missing or has another shape or type. any_float: accepts f32, f16
 * and bf16. out may be NULL. */
ls_status ls_strict_reader_tensor(ls_strict_reader *reader, const char *name, ls_dtype dtype,
                                  bool any_float, const ls_shape *shape,
                                  const ls_safetensors_entry **out);
/* LS_ERR_USAGE if an element is inf or NaN: no run goes on from there. */
ls_status ls_strict_reader_finite(const ls_strict_reader *reader,
                                  const ls_safetensors_entry *entry);
/* LS_ERR_USAGE if the metadata's entry differs from the given text. */
ls_status ls_strict_reader_metadata(const ls_strict_reader *reader, const char *name,
                                    const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Warns, in one line, that damage to the file would not be noticed, where it has no digests. */
void ls_strict_reader_warn_unverified(const ls_strict_reader *reader);
/* The tensors not requested, counted by the part of their names before the first slash: "state 41,
 * scaler 3, rank<k> 36"; "" if there are none. */
void ls_strict_reader_unused(const ls_strict_reader *reader, char *text, size_t bytes);
/* Whether a tensor of the file was requested; the others are unknown to the run. */
bool ls_strict_reader_has_seen(const ls_strict_reader *reader, const ls_safetensors_entry *entry);

#endif
