#include "events.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/core/file.h"
#include "kernels/core/list.h"
#include "kernels/core/path.h"

enum { RECORD_BYTES_MAX = 512, HEAD_BYTES = 12, TAIL_BYTES = 4 };

struct ls_tensorboard {
    int descriptor;
    char path[PATH_MAX];
};

uint32_t ls_tensorboard_crc32c(const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes; i++) { /* records of a hundred bytes: no table needed */
        crc ^= byte[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ ((crc & 1u) != 0 ? 0x82f63b78u : 0u);
        }
    }
    return ~crc;
}

uint32_t ls_tensorboard_mask(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* ---- protobuf wire format -------------------------------------------------------------------- */

typedef struct message {
    unsigned char byte[RECORD_BYTES_MAX];
    size_t count;
} message;

enum { WIRE_VARINT = 0, WIRE_64BIT = 1, WIRE_BYTES = 2, WIRE_32BIT = 5 };

static void put_bytes(message *to, const void *data, size_t bytes)
{
    LS_ASSERT(to->count + bytes <= sizeof to->byte);
    memcpy(to->byte + to->count, data, bytes);
    to->count += bytes;
}

static void put_fixed(message *to, uint64_t value, int bytes)
{
    unsigned char little[8];
    for (int i = 0; i < bytes; i++) {
        little[i] = (unsigned char)(value >> (8 * i));
    }
    put_bytes(to, little, (size_t)bytes);
}

static void put_varint(message *to, uint64_t value)
{
    do {
        unsigned char low = (unsigned char)(value & 0x7fu);
        value >>= 7;
        low = value != 0 ? (unsigned char)(low | 0x80u) : low;
        put_bytes(to, &low, 1);
    } while (value != 0);
}

static void put_key(message *to, unsigned field, unsigned wire)
{
    put_varint(to, field << 3 | wire);
}

static void put_text(message *to, unsigned field, const void *data, size_t bytes)
{
    put_key(to, field, WIRE_BYTES);
    put_varint(to, bytes);
    put_bytes(to, data, bytes);
}

/* tensorflow.Event: 1 wall_time (double), 2 step (int64), 3 file_version (string), 5 summary. */
static void begin_event(message *event, int64_t step)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double wall_s = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    uint64_t bits;
    memcpy(&bits, &wall_s, sizeof bits);
    event->count = 0;
    put_key(event, 1, WIRE_64BIT);
    put_fixed(event, bits, 8);
    put_key(event, 2, WIRE_VARINT);
    put_varint(event, (uint64_t)step);
}

/* tensorflow.Summary: 1 repeated Value {1 tag (string), 2 simple_value (float)}. */
static void put_scalar(message *summary, const char *tag, float value)
{
    message entry = {.count = 0};
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_text(&entry, 1, tag, strlen(tag));
    put_key(&entry, 2, WIRE_32BIT);
    put_fixed(&entry, bits, 4);
    put_text(summary, 1, entry.byte, entry.count);
}

/* ---- records --------------------------------------------------------------------------------- */

static ls_status write_record(ls_tensorboard *board, const message *event)
{
    message record = {.count = 0};
    put_fixed(&record, event->count, 8);
    put_fixed(&record, ls_tensorboard_mask(ls_tensorboard_crc32c(record.byte, 8)), 4);
    put_bytes(&record, event->byte, event->count);
    put_fixed(&record, ls_tensorboard_mask(ls_tensorboard_crc32c(event->byte, event->count)), 4);
    return ls_file_write(board->descriptor, board->path, record.byte, record.count);
}

static ls_status open_file(const char *directory, ls_tensorboard *board)
{
    char host[64] = "host";
    gethostname(host, sizeof host - 1);
    LS_TRY(ls_path_make_last(directory));
    int length = snprintf(board->path, sizeof board->path, "%s/events.out.tfevents.%010lld.%s.%d",
                          directory, (long long)time(NULL), host, (int)getpid());
    if (length >= (int)sizeof board->path) {
        return ls_log_fail(LS_ERR_USAGE, "path too long: %.100s...", directory);
    }
    board->descriptor = ls_file_open_to_write(board->path, O_TRUNC);
    if (board->descriptor < 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot create %s: %s", board->path, strerror(errno));
    }
    return LS_OK;
}

ls_status ls_tensorboard_open(const char *directory, ls_tensorboard **out)
{
    static const char version[] = "brain.Event:2";
    ls_tensorboard *board = ls_list_make(1, sizeof *board);
    board->descriptor = -1;
    message event;
    begin_event(&event, 0);
    put_text(&event, 3, version, strlen(version));
    ls_status status = open_file(directory, board);
    LS_THEN(status, write_record(board, &event));
    if (status != LS_OK) {
        ls_tensorboard_close(board);
        return status;
    }
    *out = board;
    return LS_OK;
}

void ls_tensorboard_close(ls_tensorboard *board)
{
    if (board == NULL) {
        return;
    }
    if (board->descriptor >= 0) {
        close(board->descriptor);
    }
    free(board);
}

ls_status ls_tensorboard_write(ls_tensorboard *board, int64_t step,
                               const ls_tensorboard_scalar *scalar, int count)
{
    message event, summary = {.count = 0};
    if (board == NULL) {
        return LS_OK;
    }
    for (int i = 0; i < count; i++) {
        if (scalar[i].tag != NULL) {
            put_scalar(&summary, scalar[i].tag, scalar[i].value);
        }
    }
    begin_event(&event, step);
    put_text(&event, 5, summary.byte, summary.count);
    LS_ASSERT(event.count + HEAD_BYTES + TAIL_BYTES <= RECORD_BYTES_MAX);
    return write_record(board, &event);
}
