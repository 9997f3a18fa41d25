/* Files of torch.save (.pt, .pth): a zip archive with a pickle, which is read as data (below),
 * and the bytes of every storage. Read whole; CRC-32 of what is used is verified. */
#ifndef LS_PTH_H
#define LS_PTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "safetensors.h"

/* The pickles of state dicts, read as data: a stack of values, no import, no call. A name of a
 * class or function that is not in the list of pickle.c ends the reading with that name; what the
 * list makes of a call is one of the values below.
 *
 * Values refer to each other, also in circles. Nothing here or in a reader may follow them to an
 * unknown depth. */

typedef enum ls_pickle_kind {
    LS_PICKLE_NONE,
    LS_PICKLE_BOOL,
    LS_PICKLE_INTEGER,
    LS_PICKLE_NUMBER,
    LS_PICKLE_TEXT,
    LS_PICKLE_TUPLE,
    LS_PICKLE_LIST,
    LS_PICKLE_DICT,   /* also OrderedDict, in the order of the file */
    LS_PICKLE_OBJECT, /* of a harmless class that has no meaning here: text is its name */
    LS_PICKLE_NAME,   /* of a class or function of the list, by itself */
    LS_PICKLE_STORED, /* what a persistent id stands for: made by `persistent` */
    LS_PICKLE_TENSOR, /* made by `rebuild` */
} ls_pickle_kind;

typedef struct ls_pickle_value ls_pickle_value;
struct ls_pickle_value {
    ls_pickle_kind kind;
    int64_t integer;  /* BOOL, INTEGER; NAME: its row of the list */
    double number;    /* INTEGER, too */
    const char *text; /* TEXT, OBJECT, NAME; bytes of a TEXT may be any; a 0 behind the last */
    size_t bytes;     /* of text */
    ls_pickle_value **item; /* [count]; DICT: keys and values by turns */
    int64_t count, room;
    const void *made; /* STORED, TENSOR */
    char *own;        /* its text, where that is a copy */
};

typedef struct ls_pickle ls_pickle;

/* What torch adds: both return NULL after ls_pickle_refuse. */
typedef struct ls_pickle_hooks {
    void *context;
    const void *(*persistent)(void *context, ls_pickle *pickle, const ls_pickle_value *id);
    const void *(*rebuild)(void *context, ls_pickle *pickle, const ls_pickle_value *arguments);
} ls_pickle_hooks;

/* Reads data[bytes]. NULL: why[why_bytes] says what is wrong or not allowed. */
ls_pickle *ls_pickle_read(const void *data, size_t bytes, const ls_pickle_hooks *hooks, char *why,
                          size_t why_bytes);
void ls_pickle_close(ls_pickle *pickle); /* NULL is allowed */
const ls_pickle_value *ls_pickle_root(const ls_pickle *pickle);
/* Sets `why`, in printf style. */
void ls_pickle_refuse(ls_pickle *pickle, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The value of a key, the last of equal ones; NULL: there is none, or it is no dict. */
const ls_pickle_value *ls_pickle_get(const ls_pickle_value *dict, const char *key);
const ls_pickle_value *ls_pickle_get_integer(const ls_pickle_value *dict, int64_t key);
bool ls_pickle_is(const ls_pickle_value *value, ls_pickle_kind kind); /* NULL: false */

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
 * calls, those of a dict with their key; NULL: it has none, or the call before has written it. */
typedef struct ls_pth_writer ls_pth_writer;

ls_pth_writer *ls_pth_create(void);
void ls_pth_begin_dict(ls_pth_writer *writer, const char *key);
void ls_pth_begin_ordered(ls_pth_writer *writer, const char *key); /* collections.OrderedDict */
void ls_pth_end_dict(ls_pth_writer *writer);
void ls_pth_begin_list(ls_pth_writer *writer, const char *key);
void ls_pth_end_list(ls_pth_writer *writer);
void ls_pth_put_text(ls_pth_writer *writer, const char *key, const char *text);
void ls_pth_put_integer(ls_pth_writer *writer, const char *key, int64_t number);
void ls_pth_put_number(ls_pth_writer *writer, const char *key, double number);
void ls_pth_put_bool(ls_pth_writer *writer, const char *key, bool is);
/* Data is borrowed until finish; any type but U8 that torch has no storage for. */
void ls_pth_put_tensor(ls_pth_writer *writer, const char *key, ls_dtype dtype,
                       const ls_shape *shape, const void *data);
/* Writes the file, synced, under its name when it is whole; frees the writer. */
ls_status ls_pth_finish(ls_pth_writer *writer, const char *path);

/* ---- archives -------------------------------------------------------------------------------- */

/* Zip archives of stored (not compressed) files, as torch.save writes and reads them: zip64, sizes
 * beyond 4 GB, CRC-32. Nothing is unpacked: an entry is a place in the file's memory. */

typedef struct ls_zip_entry {
    const char *name; /* of bytes that a file name may have; ends with a 0 */
    const unsigned char *data;
    size_t bytes;
    uint32_t crc;       /* as the archive says it */
    const void *header; /* in front of it */
} ls_zip_entry;

typedef struct ls_zip {
    int count;
    ls_zip_entry *entry; /* sorted by name */
    char *names;
} ls_zip;

/* Whether the data begins as an archive does. */
bool ls_zip_is(const void *data, size_t bytes);
/* Reads the directory of data[bytes], which must stay. Every offset, size and name is checked: no
 * two entries overlap or have one name, none is compressed, encrypted, outside the file or in
 * another folder (".."). Else false, and why[why_bytes] says what is wrong. */
bool ls_zip_open(const void *data, size_t bytes, ls_zip *out, char *why, size_t why_bytes);
void ls_zip_close(ls_zip *zip);
/* NULL: absent. */
const ls_zip_entry *ls_zip_find(const ls_zip *zip, const char *name);
/* Whether the entry's data has its CRC-32. */
bool ls_zip_verify(const ls_zip_entry *entry);

/* Continues a CRC-32 (of zip and zlib); the first is 0. */
uint32_t ls_zip_crc(uint32_t crc, const void *data, size_t bytes);

/* Writing, to memory that the caller writes to a file in between. */
typedef struct ls_zip_writer {
    unsigned char *directory; /* malloc'ed */
    size_t directory_bytes;
    uint64_t at; /* where the next header begins */
    uint64_t count;
} ls_zip_writer;
enum { LS_ZIP_ALIGN = 64, LS_ZIP_HEADER_BYTES = 30 + 512 + LS_ZIP_ALIGN };
/* The header of a file of that name (at most 255 bytes), which begins at a multiple of
 * LS_ZIP_ALIGN behind it: header[LS_ZIP_HEADER_BYTES]. Returns its length; `bytes` of data follow.
 */
size_t ls_zip_begin(ls_zip_writer *writer, const char *name, uint64_t bytes, uint32_t crc,
                    unsigned char *header);
/* The directory and the end, malloc'ed; frees what the writer holds. */
unsigned char *ls_zip_finish(ls_zip_writer *writer, size_t *bytes);

/* ---- states ---------------------------------------------------------------------------------- */

/* What a file of torch.save means to a run: its tensors by the names of a checkpoint
 * (train/checkpoint.h), param/<name>, buffer/<name>, state/<name>/<moment>, scaler/..., and
 * metadata.
 *
 * Read are a state dict (plain, or under state_dict, model or model_state_dict), without the prefix
 * `module.` of DistributedDataParallel; under optimizer the moments, by the order of parameters, if
 * it has one group; under amp (Apex) or scaler (torch's GradScaler) the loss scale; epoch, arch,
 * best_acc1 or best_prec1. Metadata: format "pytorch", and where the file says them arch, epoch
 * (passes that are complete), best_percent, lr, momentum, weight_decay; `unused` lists what it
 * holds beyond that.
 *
 * A file that `lockstep checkpoint --to X.pth` wrote gives the very checkpoint it was made from. */

#define LS_PTH_STATE_FORMAT "pytorch"
/* The member of our own files: {"metadata": {...}, "tensors": {...}}, what torch has no place for.
 */
#define LS_PTH_STATE_OWN "lockstep"

/* Opens either format: a safetensors file, or one of torch.save. Errors as ls_safetensors_open and
 * ls_pth_open. */
ls_status ls_pth_state_open(const char *path, ls_safetensors **out);

#endif
