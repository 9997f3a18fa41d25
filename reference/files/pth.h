/* Files of torch.save (.pt, .pth): a zip archive with a pickle, which is read as data (pickle.h),
 * and the bytes of every storage. Read whole; CRC-32 of what is used is verified. */
#ifndef LS_PTH_H
#define LS_PTH_H

#include <stdbool.h>

#include "kernels/core/status.h"
#include "kernels/core/tensor.h"
#include "pickle.h"

typedef struct ls_pth ls_pth;

/* Whether the data begins as a file of torch.save, also of versions before 1.6. */
bool ls_pth_is(const void *data, size_t bytes);
/* Takes over data[bytes], malloc'ed, also on failure. LS_ERR_USAGE, with path and reason, for what
 * is broken, not allowed, or of before PyTorch 1.6. */
ls_status ls_pth_open(const char *path, void *data, size_t bytes, ls_pth **out);
void ls_pth_close(ls_pth *pth); /* NULL is allowed */
const ls_pickle_value *ls_pth_root(const ls_pth *pth);

/* A tensor of the file, contiguous and aligned to its elements; it lives as long as the file. */
typedef struct ls_pth_tensor {
    bool usable;      /* of a type and rank that ls_tensor has; else only `type` says something */
    const char *type; /* "torch.FloatStorage" */
    ls_dtype dtype;
    ls_shape shape;
    const void *data;
} ls_pth_tensor;
/* NULL where the value is no tensor. */
const ls_pth_tensor *ls_pth_tensor_of(const ls_pickle_value *value);
/* A number, also as a tensor of one element; false where the value is neither. */
bool ls_pth_number(const ls_pickle_value *value, double *out);

/* ---- writing --------------------------------------------------------------------------------- */

/* A pickle under construction, and the tensors it names. Values are written in the order of the
 * calls: a dict is begun, then a key and its value by turns, then ended. */
typedef struct ls_pth_writer ls_pth_writer;

ls_pth_writer *ls_pth_create(void);
void ls_pth_begin_dict(ls_pth_writer *writer);
void ls_pth_begin_ordered(ls_pth_writer *writer); /* collections.OrderedDict */
void ls_pth_end_dict(ls_pth_writer *writer);
void ls_pth_begin_list(ls_pth_writer *writer);
void ls_pth_end_list(ls_pth_writer *writer);
void ls_pth_put_text(ls_pth_writer *writer, const char *text);
void ls_pth_put_integer(ls_pth_writer *writer, int64_t number);
void ls_pth_put_number(ls_pth_writer *writer, double number);
void ls_pth_put_bool(ls_pth_writer *writer, bool is);
void ls_pth_put_none(ls_pth_writer *writer);
/* Data is borrowed until finish; any type but U8 that torch has no storage for. */
void ls_pth_put_tensor(ls_pth_writer *writer, ls_dtype dtype, const ls_shape *shape,
                       const void *data);
/* Writes the file, synced, under its name when it is whole; frees the writer. */
ls_status ls_pth_finish(ls_pth_writer *writer, const char *path);

#endif
