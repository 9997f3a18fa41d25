/* The safetensors format: 8 bytes little-endian header length, a JSON header {name: {dtype, shape,
 * data_offsets}, "__metadata__": {string: string}}, then the data. PyTorch reads it; names are
 * torchvision's. A written file appears under its name when it is complete. */
#ifndef LS_SAFETENSORS_H
#define LS_SAFETENSORS_H

#include <stdbool.h>

#include "kernels/core/status.h"
#include "kernels/core/tensor.h"

typedef struct ls_safetensors_writer ls_safetensors_writer;
struct cJSON;

/* Whether finish could create the file: 0, or the errno. */
int ls_safetensors_try_create(const char *path);
/* Tensors are added in order; data is borrowed until finish. Names are unique. */
ls_status ls_safetensors_create(const char *path, ls_safetensors_writer **out);
void ls_safetensors_metadata(ls_safetensors_writer *writer, const char *name, const char *format,
                             ...) __attribute__((format(printf, 3, 4)));
void ls_safetensors_add(ls_safetensors_writer *writer, const char *name, ls_dtype dtype,
                        const ls_shape *shape, const void *host_data);
/* The same, but copies the data now (for staging memory that is reused). */
ls_status ls_safetensors_add_copy(ls_safetensors_writer *writer, const char *name, ls_dtype dtype,
                                  const ls_shape *shape, const void *host_data);
/* For checkpoints. finish then syncs the file before it gets its name, so that the path names a
 * complete file even after a power failure (a dump of hundreds of MB need not wait for the disk),
 * and adds digests of the header and of every tensor to the metadata, which open verifies. */
void ls_safetensors_lasting(ls_safetensors_writer *writer);
/* Writes the file, frees the writer (also on failure). A full disk is LS_ERR_INFRA. */
ls_status ls_safetensors_finish(ls_safetensors_writer *writer);
void ls_safetensors_discard(ls_safetensors_writer *writer);

typedef struct ls_safetensors ls_safetensors; /* a file in memory */

typedef struct ls_safetensors_entry {
    const char *name;
    ls_dtype dtype;
    ls_shape shape;
    const void *data; /* in the file's memory; aligned to the element size */
    int64_t bytes;
    bool seen; /* requested by the run, or marked */
} ls_safetensors_entry;

/* Checks everything (lengths, offsets, overlaps, types, and digests where it has them) before use;
 * a broken file is LS_ERR_USAGE with path and reason. */
ls_status ls_safetensors_open(const char *path, ls_safetensors **out);
void ls_safetensors_close(ls_safetensors *file);
/* The same of tensors that another format held: takes over metadata (an object of strings), entry
 * [count] (malloc'ed) and `owner`, which holds the names and data, also on failure. LS_ERR_USAGE
 * where two have one name. */
ls_status ls_safetensors_adopt(const char *path, struct cJSON *metadata,
                               ls_safetensors_entry *entry, int count, void *owner,
                               void (*close_owner)(void *owner), ls_safetensors **out);
/* Whether the file's digests were verified; it may have none. Of another format: true. */
bool ls_safetensors_has_digests(const ls_safetensors *file);
int ls_safetensors_count(const ls_safetensors *file);
const char *ls_safetensors_path(const ls_safetensors *file);
const ls_safetensors_entry *ls_safetensors_at(const ls_safetensors *file, int index);
/* NULL when absent. */
const ls_safetensors_entry *ls_safetensors_find(const ls_safetensors *file, const char *name);
const char *ls_safetensors_metadata_of(const ls_safetensors *file, const char *name,
                                       const char *fallback);

/* The index-th entry of the metadata that is text; false: there are not so many. */
bool ls_safetensors_metadata_at(const ls_safetensors *file, int index, const char **name,
                                const char **text);

/* The number that a tensor of one element is, of F32, F64, I32 or I64; else false. */
bool ls_safetensors_scalar(ls_dtype dtype, const ls_shape *shape, const void *data, double *out);
bool ls_safetensors_same_shape(const ls_shape *a, const ls_shape *b);
/* "[64,3,7,7]" */
void ls_safetensors_shape_text(const ls_shape *shape, char *text, size_t bytes);

/* What a run requires of a file: it requests every tensor by name, and a mismatch is logged in one
 * line with the file, the tensor, the actual and the required property. */

/* LS_ERR_USAGE if the tensor is missing or has another shape or type. any_float: accepts f32, f16
 * and bf16. out may be NULL. The tensor is seen then. */
ls_status ls_safetensors_require(ls_safetensors *file, const char *name, ls_dtype dtype,
                                 bool any_float, const ls_shape *shape,
                                 const ls_safetensors_entry **out);
void ls_safetensors_see(ls_safetensors *file, const ls_safetensors_entry *entry);
/* LS_ERR_USAGE if an element is inf or NaN: no run goes on from there. */
ls_status ls_safetensors_require_finite(const ls_safetensors *file,
                                        const ls_safetensors_entry *entry);
/* LS_ERR_USAGE if the metadata's entry differs from the given text. */
ls_status ls_safetensors_require_metadata(const ls_safetensors *file, const char *name,
                                          const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Warns, in one line, that damage to the file would not be noticed, where it has no digests. */
void ls_safetensors_warn_unverified(const ls_safetensors *file);
/* The tensors not seen, counted by the part of their names before the first slash: "state 41,
 * scaler 3, rank<k> 36"; "" if there are none. */
void ls_safetensors_unused(const ls_safetensors *file, char *text, size_t bytes);

#endif
