/* Zip archives of stored (not compressed) files, as torch.save writes and reads them: zip64, sizes
 * beyond 4 GB, CRC-32. Nothing is unpacked: an entry is a place in the file's memory. */
#ifndef LS_ZIP_H
#define LS_ZIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/core/status.h"

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

#endif
