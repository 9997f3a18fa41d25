#include "exercise.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/digest.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"

enum { WIDTH = 32 }; /* elements at either end of a part */

struct ls_exercise_journal {
    FILE *file;
    uint64_t comm; /* of the ranks of the communicator */
    int own, world;
    int64_t number; /* of the next call */
};

ls_status ls_exercise_journal_open(const char *run_directory, int rank, const char *engine, int own,
                                   int world, const int *members, ls_exercise_journal **out)
{
    const char *wanted = getenv("LS_OBSERVE_DIR");
    *out = NULL;
    if (wanted == NULL || wanted[0] == '\0' || run_directory[0] == '\0' ||
        strcmp(engine, "nccl") == 0) { /* the observer underneath NCCL writes that file */
        return LS_OK;
    }
    ls_exercise_journal *journal = calloc(1, sizeof *journal);
    LS_MEMORY(journal != NULL);
    LS_TEXT(path, 700, "%s/sums.rank%d.jsonl", run_directory, rank);
    int descriptor = ls_file_open_to_write(path, O_TRUNC);
    journal->file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    if (journal->file == NULL) {
        free(journal);
        return ls_log_fail(LS_ERR_INFRA, "cannot write %s: %s", path, strerror(errno));
    }
    journal->own = own;
    journal->world = world;
    journal->comm = ls_digest_update(LS_DIGEST_START, members, (size_t)world * sizeof *members);
    fprintf(journal->file,
            "{\"event\":\"start\",\"schema\":1,\"rank\":%d,\"source\":\"lockstep-collectives\","
            "\"keeps_nan\":true}\n"
            "{\"event\":\"comm\",\"comm\":\"%016" PRIx64 "\",\"comm_rank\":%d,\"world\":%d}\n",
            rank, journal->comm, own, world); /* comm.h, ls_comm_redop */
    *out = journal;
    return LS_OK;
}

void ls_exercise_journal_close(ls_exercise_journal *journal)
{
    if (journal != NULL) {
        fprintf(journal->file, "{\"event\":\"end\"}\n");
        fclose(journal->file);
    }
    free(journal);
}

/* The first and the last elements, in hexadecimal digits. */
static void write_hex(FILE *file, const char *name, const void *data, int64_t count, size_t bytes)
{
    const unsigned char *from = data;
    size_t width = count < WIDTH ? (size_t)count : WIDTH, last = (size_t)count - width;
    if (data == NULL) {
        return;
    }
    fprintf(file, ",\"%s\":\"", name);
    for (int piece = 0; piece < 2; piece++) {
        const unsigned char *at = from + (piece == 0 ? 0 : last * bytes);
        for (size_t i = 0; i < width * bytes; i++) {
            fprintf(file, "%02x", at[i]);
        }
    }
    fprintf(file, "\"");
}

/* One part of a call: what one rank's result there comes from. */
static void write_part(ls_exercise_journal *journal, const ls_comm_op *what, int part,
                       const void *sent, const void *received)
{
    FILE *file = journal->file;
    bool reduces = ls_comm_kind_reduces(what->kind);
    int64_t width = what->count < WIDTH ? what->count : WIDTH;
    char type[12];
    ls_text_put(type, sizeof type, "%s", ls_dtype_name(what->dtype));
    for (char *at = type; *at != '\0'; at++) {
        *at = (char)tolower((unsigned char)*at);
    }
    fprintf(file,
            "{\"event\":\"sample\",\"comm\":\"%016" PRIx64 "\",\"comm_rank\":%d,\"number\":%lld,"
            "\"op\":\"%s\",\"elements\":%lld,\"type\":\"%s\",\"reduce\":\"%s\",\"root\":%d,"
            "\"part\":%d,\"width\":%lld,\"pieces\":[0,%lld]",
            journal->comm, journal->own, (long long)journal->number, ls_comm_kind_name(what->kind),
            (long long)what->count, type, reduces ? ls_comm_redop_name(what->redop) : "",
            what->root, part, (long long)width, (long long)(what->count - width));
    write_hex(file, "sent", sent, what->count, ls_dtype_bytes(what->dtype));
    write_hex(file, "received", received, what->count, ls_dtype_bytes(what->dtype));
    fprintf(file, "}\n");
    journal->number++;
}

static const char *part_of(const void *data, int part, const ls_comm_op *what)
{
    size_t bytes = (size_t)what->count * ls_dtype_bytes(what->dtype);
    return data == NULL ? NULL : (const char *)data + (size_t)part * bytes;
}

/* A scatter's part k is the root's, and rank k gets it; a gather's comes from rank k. */
static void write_parts(ls_exercise_journal *journal, const ls_comm_op *what)
{
    const void *input = what->input, *output = what->buffer;
    int own = journal->own, world = journal->world;
    bool root = own == what->root;
    for (int k = 0; k < world; k++) {
        switch (what->kind) {
        case LS_COMM_REDUCE_SCATTER:
            write_part(journal, what, k, part_of(input, k, what), k == own ? output : NULL);
            break;
        case LS_COMM_ALL_GATHER:
        case LS_COMM_GATHER:
            write_part(journal, what, k, k == own ? input : NULL, part_of(output, k, what));
            break;
        case LS_COMM_SCATTER:
            write_part(journal, what, k, root ? part_of(input, k, what) : NULL,
                       k == own ? output : NULL);
            break;
        default: /* all_to_all: each pair of ranks is a copy of its own */
            for (int to = 0; to < world; to++) {
                write_part(journal, what, to, k == own ? part_of(input, to, what) : NULL,
                           to == own ? part_of(output, k, what) : NULL);
            }
            break;
        }
    }
}

ls_status ls_exercise_journal_add(ls_exercise_journal *journal, const ls_comm_op *what)
{
    if (journal == NULL || what->kind == LS_COMM_BARRIER || what->kind == LS_COMM_SEND ||
        what->count == 0) {
        return LS_OK;
    }
    if (what->kind == LS_COMM_ALL_REDUCE || what->kind == LS_COMM_REDUCE ||
        what->kind == LS_COMM_BROADCAST) {
        write_part(journal, what, 0, what->input, what->buffer);
    } else {
        write_parts(journal, what);
    }
    return ferror(journal->file) != 0
               ? ls_log_fail(LS_ERR_INFRA, "the journal of collectives cannot be written")
               : LS_OK;
}
