#include "collectives_read.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"

/* One file while it is read. */
typedef struct reader {
    ls_collectives *to;
    int job, api; /* api: of NCCL's profiler; 0: the interposer's file */
} reader;

static uint64_t hex_of(const cJSON *event, const char *name)
{
    return strtoull(ls_json_string(event, name, "0"), NULL, 16);
}

/* Index of the communicator of an event; op "": as the interposer numbers its calls. */
static int comm_of(const reader *r, const cJSON *event, const char *op)
{
    uint64_t id = hex_of(event, "comm");
    ls_collectives *to = r->to;
    for (int i = 0; i < to->comm_count; i++) {
        if (to->comm[i].id == id && strcmp(to->comm[i].op, op) == 0) {
            return i;
        }
    }
    to->comm = ls_list_grow(to->comm, to->comm_count, &to->comm_capacity, sizeof *to->comm);
    ls_collectives_comm *made = &to->comm[to->comm_count];
    *made = (ls_collectives_comm){.id = id, .reference = -1, .ended = {.job = -1}};
    ls_text_put(made->op, sizeof made->op, "%s", op);
    return to->comm_count++;
}

static ls_collectives_call call_of(const reader *r, const cJSON *event)
{
    ls_collectives_call call = {.elements = ls_json_integer(event, "elements", -1),
                                .number = ls_json_integer(event, "number", -1),
                                .root = ls_json_int(event, "root", -1),
                                .chain = hex_of(event, "chain"),
                                .rank = ls_json_int(event, "comm_rank", -1),
                                .job = r->job};
    ls_text_put(call.op, sizeof call.op, "%s", ls_json_string(event, "op", "?"));
    ls_text_put(call.type, sizeof call.type, "%s", ls_json_string(event, "type", "?"));
    ls_text_put(call.reduce, sizeof call.reduce, "%s", ls_json_string(event, "reduce", ""));
    return call;
}

/* ---- order ----------------------------------------------------------------------------------- */

static bool same_call(const ls_collectives_call *a, const ls_collectives_call *b)
{
    return strcmp(a->op, b->op) == 0 && strcmp(a->type, b->type) == 0 &&
           strcmp(a->reduce, b->reduce) == 0 && a->elements == b->elements && a->root == b->root;
}

static void differ(ls_collectives *to, int comm, const ls_collectives_call *a,
                   const ls_collectives_call *b)
{
    if (!to->mismatch.found || to->mismatch.at_end || a->number < to->mismatch.first.number) {
        to->mismatch =
            (ls_collectives_mismatch){.found = true, .comm = comm, .first = *a, .second = *b};
    }
}

/* Where kernels are seen, a call's line comes when it has run, and calls of several streams run in
 * another order than they were made in. */
static void keep(ls_collectives_comm *comm, const ls_collectives_call *call)
{
    enum { AHEAD_MOST = 4096 };
    if (call->number < 0 || call->number >= comm->count + AHEAD_MOST) {
        return;
    }
    while (comm->count <= call->number) {
        comm->call = ls_list_grow(comm->call, comm->count, &comm->capacity, sizeof *comm->call);
        comm->call[comm->count++] = (ls_collectives_call){.rank = -1};
    }
    comm->call[call->number] = *call;
}

/* The first rank's calls are kept, every other rank's are compared with them. */
static void compare_call(ls_collectives *to, int index, const ls_collectives_call *call)
{
    ls_collectives_comm *comm = &to->comm[index];
    if (comm->reference < 0) {
        comm->reference = call->rank;
    }
    if (comm->reference == call->rank) {
        keep(comm, call);
    } else if (call->number >= 0 && call->number < comm->count &&
               comm->call[call->number].rank >= 0) {
        const ls_collectives_call *kept = &comm->call[call->number];
        to->compared++;
        if (!same_call(kept, call) || kept->chain != call->chain) {
            differ(to, index, kept, call);
        }
    }
}

/* NCCL numbers the calls of each function. Those of a graph it does not count, and version 4 of the
 * profiler does not say which they are. */
static void compare_profiled(const reader *r, const cJSON *event)
{
    ls_collectives_call call = call_of(r, event);
    if (r->api >= 5 && !ls_json_bool(event, "captured", false)) {
        call.number = ls_json_integer(event, "sequence", -1);
        compare_call(r->to, comm_of(r, event, call.op), &call);
    }
}

/* A rank that has destroyed a communicator made all its calls. */
static void compare_end(const reader *r, int index, const cJSON *event)
{
    ls_collectives_comm *comm = &r->to->comm[index];
    ls_collectives_call call = call_of(r, event);
    call.elements = ls_json_integer(event, "calls", -1);
    if (comm->ended.job < 0) {
        comm->ended = call;
    } else if ((comm->ended.elements != call.elements || comm->ended.chain != call.chain) &&
               !r->to->mismatch.found) {
        r->to->mismatch = (ls_collectives_mismatch){
            .found = true, .at_end = true, .comm = index, .first = comm->ended, .second = call};
    }
}

/* ---- samples --------------------------------------------------------------------------------- */

/* The bytes of hex digits; NULL where there are none or they are wrong. */
static unsigned char *bytes_of(const cJSON *event, const char *name, int64_t *count)
{
    const char *text = ls_json_string(event, name, NULL);
    size_t length = text != NULL ? strlen(text) : 0;
    if (length == 0 || length % 2 != 0 || strspn(text, "0123456789abcdef") != length ||
        (*count >= 0 && *count != (int64_t)length / 2)) {
        return NULL;
    }
    unsigned char *bytes = ls_list_make(length / 2, 1);
    for (size_t i = 0; i < length / 2; i++) {
        char digits[3] = {text[2 * i], text[2 * i + 1], '\0'};
        bytes[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
    *count = (int64_t)length / 2;
    return bytes;
}

enum { WIDTH_MAX = 4096 };

static void add_sample(const reader *r, int comm, const cJSON *event)
{
    ls_collectives *to = r->to;
    const cJSON *pieces = cJSON_GetObjectItemCaseSensitive(event, "pieces"), *piece;
    ls_collectives_sample sample = {.call = call_of(r, event),
                                    .comm = comm,
                                    .part = ls_json_int(event, "part", 0),
                                    .width = ls_json_int(event, "width", 0),
                                    .bytes = -1};
    cJSON_ArrayForEach(piece, pieces)
    {
        int64_t at = -1;
        if (sample.pieces == LS_COLLECTIVES_PIECES || !cJSON_IsNumber(piece) ||
            !ls_json_whole(piece->valuedouble, 0, INT64_C(1) << 53, &at)) {
            return;
        }
        sample.piece[sample.pieces++] = at;
    }
    if (sample.width < 1 || sample.width > WIDTH_MAX || sample.pieces < 1) {
        return;
    }
    sample.sent = bytes_of(event, "sent", &sample.bytes);
    sample.received = bytes_of(event, "received", &sample.bytes);
    to->sample =
        ls_list_grow(to->sample, to->sample_count, &to->sample_capacity, sizeof *to->sample);
    to->sample[to->sample_count++] = sample;
}

static int by_place(const void *a, const void *b)
{
    const ls_collectives_sample *x = a, *y = b;
    if (x->comm != y->comm) {
        return x->comm < y->comm ? -1 : 1;
    }
    if (x->call.number != y->call.number) {
        return x->call.number < y->call.number ? -1 : 1;
    }
    return (x->call.rank > y->call.rank) - (x->call.rank < y->call.rank);
}

/* ---- files ----------------------------------------------------------------------------------- */

static ls_status read_event(void *context, const cJSON *event, int line)
{
    reader *r = context;
    const char *word = ls_json_string(event, "event", "");
    (void)line;
    if (strcmp(word, "start") == 0) {
        r->job = ls_json_int(event, "rank", -1);
        r->api = ls_json_int(event, "api", 0);
    } else if (strcmp(word, "end") == 0) {
        r->to->captured += ls_json_integer(event, "captured", 0);
    } else if (strcmp(word, "call") == 0) {
        ls_collectives_call call = call_of(r, event);
        r->to->calls++;
        compare_call(r->to, comm_of(r, event, ""), &call);
    } else if (strcmp(word, "collective") == 0) {
        r->to->calls++;
        compare_profiled(r, event);
    } else if (r->api == 0 && strcmp(word, "comm") == 0) {
        int index = comm_of(r, event, "");
        r->to->comm[index].world = ls_json_int(event, "world", 0);
    } else if (r->api == 0 && strcmp(word, "comm_end") == 0) {
        compare_end(r, comm_of(r, event, ""), event);
    } else if (strcmp(word, "sample") == 0) {
        add_sample(r, comm_of(r, event, ""), event);
    }
    return LS_OK;
}

static void read_file(const char *directory, const char *name, ls_collectives *to)
{
    reader r = {.to = to, .job = -1};
    LS_TEXT(path, PATH_MAX, "%s/%s", directory, name);
    to->files++;
    if (ls_json_each_line(path, read_event, &r) != LS_OK && to->broken[0] == '\0') {
        ls_text_put(to->broken, sizeof to->broken, "%s cannot be read to its end", name);
    }
}

static int is_one(const struct dirent *entry)
{
    return ls_text_matches("sums.rank*.jsonl", entry->d_name) ||
           ls_text_matches("collectives.rank*.jsonl", entry->d_name);
}

void ls_collectives_read(const char *directory, ls_collectives *out)
{
    struct dirent **entry = NULL;
    *out = (ls_collectives){0};
    int count = scandir(directory, &entry, is_one, alphasort);
    for (int i = 0; i < count; i++) {
        read_file(directory, entry[i]->d_name, out);
        free(entry[i]);
    }
    free(entry);
    if (out->sample_count > 0) {
        qsort(out->sample, (size_t)out->sample_count, sizeof *out->sample, by_place);
    }
}

void ls_collectives_free(ls_collectives *collectives)
{
    for (int i = 0; i < collectives->comm_count; i++) {
        free(collectives->comm[i].call);
    }
    for (int i = 0; i < collectives->sample_count; i++) {
        free(collectives->sample[i].sent);
        free(collectives->sample[i].received);
    }
    free(collectives->comm);
    free(collectives->sample);
    memset(collectives, 0, sizeof *collectives);
}
