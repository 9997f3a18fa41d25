#include "pth.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/list.h"

/* APPNOTE 6.3: signatures and fixed parts */
enum {
    LOCAL = 0x04034b50,
    CENTRAL = 0x02014b50,
    END = 0x06054b50,
    END64 = 0x06064b50,
    LOCATOR64 = 0x07064b50,
    LOCAL_BYTES = 30,
    CENTRAL_BYTES = 46,
    END_BYTES = 22,
    END64_BYTES = 56,
    LOCATOR64_BYTES = 20,
    COMMENT_MAX = 65535,
    EXTRA_ZIP64 = 1,
    EXTRA_PADDING = 0x4246, /* "FB", as torch pads */
    ENCRYPTED = 1,
};

static uint64_t get(const unsigned char *from, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) {
        value = value << 8 | from[i];
    }
    return value;
}

static unsigned char *put(unsigned char *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        to[i] = (unsigned char)(value >> (8 * i));
    }
    return to + bytes;
}

/* ---- CRC-32 ---------------------------------------------------------------------------------- */

static uint32_t crc_of_byte(uint32_t byte)
{
    for (int k = 0; k < 8; k++) {
        byte = byte & 1 ? UINT32_C(0xedb88320) ^ byte >> 1 : byte >> 1;
    }
    return byte;
}

/* Eight bytes a turn: table[k] is of a byte that k zeros follow. */
uint32_t ls_zip_crc(uint32_t crc, const void *data, size_t bytes)
{
    uint32_t table[8][256];
    const unsigned char *at = data;
    for (uint32_t i = 0; i < 256; i++) {
        table[0][i] = crc_of_byte(i);
    }
    for (int k = 1; k < 8; k++) {
        for (int i = 0; i < 256; i++) {
            table[k][i] = table[0][table[k - 1][i] & 255] ^ table[k - 1][i] >> 8;
        }
    }
    crc = ~crc;
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint32_t low = crc ^ (uint32_t)get(at, 4);
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^
              table[4][low >> 24] ^ table[3][at[4]] ^ table[2][at[5]] ^ table[1][at[6]] ^
              table[0][at[7]];
    }
    for (; bytes > 0; at++, bytes--) {
        crc = table[0][(crc ^ *at) & 255] ^ crc >> 8;
    }
    return ~crc;
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct archive {
    const unsigned char *data;
    size_t bytes;
    uint64_t directory, directory_bytes, count;
    char *why;
    size_t why_bytes;
} archive;

static bool refuse(const archive *from, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static bool refuse(const archive *from, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(from->why, from->why_bytes, format, arguments);
    va_end(arguments);
    return false;
}

bool ls_zip_is(const void *data, size_t bytes)
{
    return bytes >= 4 && get(data, 4) == LOCAL;
}

/* The zip64 record, where the end has a locator in front of it. */
static bool read_end64(archive *from, size_t end)
{
    if (end < LOCATOR64_BYTES || get(from->data + end - LOCATOR64_BYTES, 4) != LOCATOR64) {
        return true;
    }
    const unsigned char *locator = from->data + end - LOCATOR64_BYTES;
    uint64_t at = get(locator + 8, 8);
    if (end < LOCATOR64_BYTES + END64_BYTES || at > end - LOCATOR64_BYTES - END64_BYTES ||
        get(from->data + at, 4) != END64) {
        return refuse(from, "its zip64 end is not where the locator says");
    }
    const unsigned char *record = from->data + at;
    from->count = get(record + 32, 8);
    from->directory_bytes = get(record + 40, 8);
    from->directory = get(record + 48, 8);
    return true;
}

static bool find_end(archive *from, size_t *end)
{
    size_t most = from->bytes < END_BYTES + COMMENT_MAX ? from->bytes : END_BYTES + COMMENT_MAX;
    for (size_t back = END_BYTES; back <= most; back++) {
        const unsigned char *at = from->data + from->bytes - back;
        if (get(at, 4) == END && get(at + 20, 2) == back - END_BYTES) {
            *end = from->bytes - back;
            from->count = get(at + 10, 2);
            from->directory_bytes = get(at + 12, 4);
            from->directory = get(at + 16, 4);
            if (get(at + 4, 2) != get(at + 6, 2)) {
                return refuse(from, "it is in several parts");
            }
            return read_end64(from, *end);
        }
    }
    return refuse(from, "it has no end of a directory: it is cut");
}

/* Sizes and offset that do not fit 32 bits stand in an extra field, in this order. */
static bool read_zip64(const unsigned char *extra, size_t extra_bytes, uint64_t *value[3])
{
    for (size_t at = 0; at + 4 <= extra_bytes;) {
        size_t length = get(extra + at + 2, 2), used = 0;
        if (length > extra_bytes - at - 4) {
            return false;
        }
        for (int i = 0; get(extra + at, 2) == EXTRA_ZIP64 && i < 3; i++) {
            if (*value[i] == UINT32_MAX && used + 8 <= length) {
                *value[i] = get(extra + at + 4 + used, 8);
                used += 8;
            }
        }
        at += 4 + length;
    }
    return true;
}

static bool is_safe_name(const char *name, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        bool part = i == 0 || name[i - 1] == '/';
        if ((unsigned char)name[i] < ' ' || name[i] == '\\' || (part && name[i] == '/') ||
            (part && bytes - i >= 2 && name[i] == '.' && name[i + 1] == '.' &&
             (bytes - i == 2 || name[i + 2] == '/'))) {
            return false;
        }
    }
    return bytes > 0;
}

/* The entry at `at` of the directory, its name copied to `name`. *next: behind it. */
static bool read_entry(const archive *from, uint64_t at, char *name, ls_zip_entry *out,
                       uint64_t *next)
{
    uint64_t left = from->directory + from->directory_bytes - at;
    const unsigned char *entry = from->data + at;
    if (left < CENTRAL_BYTES || get(entry, 4) != CENTRAL) {
        return refuse(from, "its directory ends before its last file");
    }
    size_t name_bytes = get(entry + 28, 2), extra_bytes = get(entry + 30, 2);
    uint64_t length = CENTRAL_BYTES + name_bytes + extra_bytes + get(entry + 32, 2);
    uint64_t stored = get(entry + 20, 4), bytes = get(entry + 24, 4), header = get(entry + 42, 4);
    uint64_t *large[] = {&bytes, &stored, &header};
    if (length > left || !read_zip64(entry + CENTRAL_BYTES + name_bytes, extra_bytes, large)) {
        return refuse(from, "its directory ends before its last file");
    }
    memcpy(name, entry + CENTRAL_BYTES, name_bytes);
    name[name_bytes] = '\0';
    if (!is_safe_name(name, name_bytes)) {
        return refuse(from, "it has a file of the name '%.100s'", name);
    }
    if ((get(entry + 8, 2) & ENCRYPTED) != 0 || get(entry + 10, 2) != 0 || stored != bytes) {
        return refuse(from, "%.100s is compressed or encrypted; torch.save stores", name);
    }
    if (header > from->directory || from->directory - header < LOCAL_BYTES ||
        get(from->data + header, 4) != LOCAL) {
        return refuse(from, "%.100s is not where the directory says", name);
    }
    const unsigned char *local = from->data + header;
    uint64_t room = from->directory - header - LOCAL_BYTES;
    uint64_t skipped = get(local + 26, 2) + get(local + 28, 2);
    if (get(local + 26, 2) != name_bytes || skipped > room || bytes > room - skipped ||
        memcmp(local + LOCAL_BYTES, name, name_bytes) != 0) {
        return refuse(from, "%.100s is not where the directory says, or longer than the file",
                      name);
    }
    *out = (ls_zip_entry){name, local + LOCAL_BYTES + skipped, bytes, (uint32_t)get(entry + 16, 4),
                          local};
    *next = at + length;
    return true;
}

static int by_name(const void *left, const void *right)
{
    return strcmp(((const ls_zip_entry *)left)->name, ((const ls_zip_entry *)right)->name);
}

static int by_place(const void *left, const void *right)
{
    const ls_zip_entry *a = left, *b = right;
    return (a->header > b->header) - (a->header < b->header);
}

static bool check_apart(const archive *from, const ls_zip *zip)
{
    size_t count = (size_t)zip->count;
    qsort(zip->entry, count, sizeof *zip->entry, by_place);
    for (size_t i = 1; i < count; i++) {
        const ls_zip_entry *before = &zip->entry[i - 1];
        if ((const void *)(before->data + before->bytes) > zip->entry[i].header) {
            return refuse(from, "%.100s and %.100s overlap", before->name, zip->entry[i].name);
        }
    }
    qsort(zip->entry, count, sizeof *zip->entry, by_name);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(zip->entry[i - 1].name, zip->entry[i].name) == 0) {
            return refuse(from, "two files are named %.100s", zip->entry[i].name);
        }
    }
    return true;
}

bool ls_zip_open(const void *data, size_t bytes, ls_zip *out, char *why, size_t why_bytes)
{
    archive from = {.data = data, .bytes = bytes, .why = why, .why_bytes = why_bytes};
    size_t end = 0;
    if (!find_end(&from, &end)) {
        return false;
    }
    if (from.directory > end || from.directory_bytes > end - from.directory ||
        from.count > from.directory_bytes / CENTRAL_BYTES || from.count > INT32_MAX) {
        return refuse(&from, "its directory of %llu files is not in front of its end",
                      (unsigned long long)from.count);
    }
    ls_zip zip = {.entry = ls_list_make(from.count + 1, sizeof *zip.entry),
                  .names = ls_list_make(from.directory_bytes + from.count + 1, 1)};
    uint64_t at = from.directory;
    char *name = zip.names;
    bool good = true;
    for (uint64_t i = 0; good && i < from.count; i++) {
        good = read_entry(&from, at, name, &zip.entry[zip.count], &at);
        name += good ? strlen(name) + 1 : 0;
        zip.count += good;
    }
    if (!good || !check_apart(&from, &zip)) {
        ls_zip_close(&zip);
        return false;
    }
    *out = zip;
    return true;
}

void ls_zip_close(ls_zip *zip)
{
    free(zip->entry);
    free(zip->names);
    *zip = (ls_zip){0};
}

const ls_zip_entry *ls_zip_find(const ls_zip *zip, const char *name)
{
    ls_zip_entry wanted = {.name = name};
    return zip->count == 0
               ? NULL
               : bsearch(&wanted, zip->entry, (size_t)zip->count, sizeof *zip->entry, by_name);
}

bool ls_zip_verify(const ls_zip_entry *entry)
{
    return ls_zip_crc(0, entry->data, entry->bytes) == entry->crc;
}

/* ---- writing --------------------------------------------------------------------------------- */

static unsigned char *put_zip64(unsigned char *to, uint64_t bytes)
{
    to = put(put(to, EXTRA_ZIP64, 2), 16, 2);
    return put(put(to, bytes, 8), bytes, 8);
}

/* What a local header and an entry of the directory have in common: version to `extra`. */
static unsigned char *put_common(unsigned char *to, uint32_t crc, uint64_t bytes, size_t name_bytes,
                                 size_t extra_bytes)
{
    bool large = bytes >= UINT32_MAX;
    uint64_t small = large ? UINT32_MAX : bytes;
    to = put(put(put(to, large ? 45 : 20, 2), 0, 2), 0, 2); /* version, flags, stored */
    to = put(put(to, 0, 2), 0x21, 2);                       /* 1980-01-01 */
    to = put(put(put(to, crc, 4), small, 4), small, 4);
    return put(put(to, name_bytes, 2), extra_bytes, 2);
}

size_t ls_zip_begin(ls_zip_writer *writer, const char *name, uint64_t bytes, uint32_t crc,
                    unsigned char *header)
{
    size_t name_bytes = strlen(name), large = bytes >= UINT32_MAX ? 20 : 0;
    LS_ASSERT(name_bytes <= 255);
    size_t fixed = LOCAL_BYTES + name_bytes + large + 4;
    size_t padding = (LS_ZIP_ALIGN - (writer->at + fixed) % LS_ZIP_ALIGN) % LS_ZIP_ALIGN;
    unsigned char *to =
        put_common(put(header, LOCAL, 4), crc, bytes, name_bytes, large + 4 + padding);
    memcpy(to, name, name_bytes);
    to += name_bytes;
    to = large > 0 ? put_zip64(to, bytes) : to;
    to = put(put(to, EXTRA_PADDING, 2), padding, 2);
    memset(to, 'Z', padding);

    size_t room = CENTRAL_BYTES + name_bytes + 28;
    writer->directory = realloc(writer->directory, writer->directory_bytes + room);
    LS_MEMORY(writer->directory != NULL);
    unsigned char *start = writer->directory + writer->directory_bytes;
    bool far = writer->at >= UINT32_MAX;
    size_t extra = (large > 0 || far ? 4 : 0) + (large > 0 ? 16 : 0) + (far ? 8 : 0);
    to = put_common(put(put(start, CENTRAL, 4), 45, 2), crc, bytes, name_bytes, extra);
    to = put(put(put(to, 0, 2), 0, 2), 0, 2); /* comment, disk, attributes */
    to = put(put(to, 0, 4), far ? UINT32_MAX : writer->at, 4);
    memcpy(to, name, name_bytes);
    to += name_bytes;
    if (extra > 0) {
        to = put(put(to, EXTRA_ZIP64, 2), extra - 4, 2);
        to = large > 0 ? put(put(to, bytes, 8), bytes, 8) : to;
        to = far ? put(to, writer->at, 8) : to;
    }
    writer->directory_bytes += (size_t)(to - start);
    writer->at += fixed + padding + bytes;
    writer->count++;
    return fixed + padding;
}

unsigned char *ls_zip_finish(ls_zip_writer *writer, size_t *bytes)
{
    size_t most = writer->directory_bytes + END64_BYTES + LOCATOR64_BYTES + END_BYTES;
    unsigned char *tail = realloc(writer->directory, most), *to;
    LS_MEMORY(tail != NULL);
    uint64_t end = writer->at + writer->directory_bytes;
    to = tail + writer->directory_bytes;
    to = put(put(put(put(to, END64, 4), END64_BYTES - 12, 8), 45, 2), 45, 2);
    to = put(put(put(to, 0, 8), writer->count, 8), writer->count, 8); /* both disk numbers */
    to = put(put(to, writer->directory_bytes, 8), writer->at, 8);
    to = put(put(put(put(to, LOCATOR64, 4), 0, 4), end, 8), 1, 4);
    bool many = writer->count >= UINT16_MAX, far = end >= UINT32_MAX;
    uint64_t count = many ? UINT16_MAX : writer->count;
    to = put(put(put(put(put(to, END, 4), 0, 2), 0, 2), count, 2), count, 2);
    to = put(put(to, far ? UINT32_MAX : writer->directory_bytes, 4), far ? UINT32_MAX : writer->at,
             4);
    to = put(to, 0, 2);
    *bytes = (size_t)(to - tail);
    *writer = (ls_zip_writer){0};
    return tail;
}
