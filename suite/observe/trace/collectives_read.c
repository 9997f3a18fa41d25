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
#include "suite/observe/collectives/journal.h"
#include "event.h"

/* One file while it is read. */
typedef struct reader {
    ls_collectives *to;
    int job, api; /* api: of NCCL's profiler; 0: the interposer's file */
    int process;  /* index */
    int64_t lines;
    ls_event_file file;
    ls_event_store *store;
} reader;

static uint64_t hex_of(const ls_event *event, ls_event_member name)
{
    return strtoull(ls_event_to_text(ls_event_get(event, name), "0"), NULL, 16);
}

/* Index of the communicator of an event; op "": as the interposer numbers its calls. */
static int comm_of(const reader *r, const ls_event *event, const char *op)
{
    uint64_t id = hex_of(event, LS_TEXT_MEMBER(comm));
    ls_collectives *to = r->to;
    for (int i = 0; i < to->comm_count; i++) {
        if (to->comm[i].id == id && strcmp(to->comm[i].op, op) == 0) {
            return i;
        }
    }
    to->comm = ls_list_grow(to->comm, to->comm_count, &to->comm_capacity, sizeof *to->comm);
    ls_collectives_comm *made = &to->comm[to->comm_count];
    *made = (ls_collectives_comm){.id = id, .ended = {.job = -1}};
    ls_text_put(made->op, sizeof made->op, "%s", op);
    return to->comm_count++;
}

static ls_collectives_call call_of(const reader *r, const ls_event *event)
{
    ls_collectives_call call = {.elements = ls_event_integer(event, elements, -1),
                                .number = ls_event_integer(event, number, -1),
                                .root = ls_event_int(event, root, -1),
                                .chain = hex_of(event, LS_TEXT_MEMBER(chain)),
                                .rank = ls_event_int(event, comm_rank, -1),
                                .job = r->job};
    ls_text_put(call.op, sizeof call.op, "%s", ls_event_text(event, op, "?"));
    ls_text_put(call.type, sizeof call.type, "%s", ls_event_text(event, type, "?"));
    ls_text_put(call.reduce, sizeof call.reduce, "%s", ls_event_text(event, reduce, ""));
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

enum { AHEAD_MOST = 4096 };

/* Where kernels are seen, a call's line comes when it has run, and calls of several streams run in
 * another order than they were made in. */
static void keep(ls_collectives_comm *comm, const ls_collectives_call *call)
{
    if (call->number < 0 || call->number >= comm->count + AHEAD_MOST) {
        return;
    }
    while (comm->count <= call->number) {
        comm->call = ls_list_grow(comm->call, comm->count, &comm->capacity, sizeof *comm->call);
        comm->call[comm->count++] = (ls_collectives_call){.rank = -1};
    }
    comm->call[call->number] = *call;
}

/* Each call is kept as its first rank made it, every other rank's is compared with that. */
static void compare_call(ls_collectives *to, int index, const ls_collectives_call *call)
{
    ls_collectives_comm *comm = &to->comm[index];
    bool has = call->number >= 0 && call->number < comm->count;
    const ls_collectives_call *kept = has ? &comm->call[call->number] : NULL;
    if (kept == NULL || kept->rank < 0 || kept->rank == call->rank) {
        keep(comm, call);
    } else {
        to->compared++;
        if (!same_call(kept, call) || kept->chain != call->chain) {
            differ(to, index, kept, call);
        }
    }
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* The rank of a communicator that an event is of, known from there on. */
static ls_collectives_member *member_of(const reader *r, int comm, const ls_event *event)
{
    ls_collectives_comm *of = &r->to->comm[comm];
    int rank = ls_event_int(event, comm_rank, -1);
    for (int i = 0; i < of->member_count; i++) {
        if (of->member[i].rank == rank && of->member[i].process == r->process) {
            return &of->member[i];
        }
    }
    of->member =
        ls_list_grow(of->member, of->member_count, &of->member_capacity, sizeof *of->member);
    of->member[of->member_count] = (ls_collectives_member){.rank = rank, .process = r->process};
    return &of->member[of->member_count++];
}

static void enter(ls_collectives_member *member, int64_t number, int64_t at_ns)
{
    if (number < 0 || number >= member->count + AHEAD_MOST) {
        return;
    }
    while (member->count <= number) {
        member->entered_ns = ls_list_grow(member->entered_ns, member->count, &member->capacity,
                                          sizeof *member->entered_ns);
        member->entered_ns[member->count++] = 0;
    }
    member->entered_ns[number] = at_ns;
    member->calls = number + 1 > member->calls ? number + 1 : member->calls;
}

static void add_entry(const reader *r, int comm, const ls_event *event, int64_t number)
{
    bool captured = ls_event_bool(event, captured, false);
    enter(member_of(r, comm, event), number, captured ? 0 : ls_event_integer(event, at_ns, 0));
}

static void close_member(const reader *r, int comm, const ls_event *event)
{
    ls_collectives_member *member = member_of(r, comm, event);
    member->closed = true;
    member->closed_ns = ls_event_integer(event, at_ns, 0);
    member->calls = ls_event_integer(event, calls, member->calls);
}

/* Of a kernel that NCCL's profiler saw running for long. */
static void add_running(const reader *r, const ls_event *event)
{
    ls_collectives_call call = call_of(r, event);
    call.number = ls_event_integer(event, sequence, -1);
    int comm = comm_of(r, event, call.op);
    ls_collectives_member *member = member_of(r, comm, event);
    enter(member, call.number, 0);
    member->running = call;
    member->running_s = ls_event_number(event, running_s, 0);
}

/* Its line comes when the kernel has ended, and then has that time; or when the process ends. */
static void end_running(ls_collectives_member *member, int64_t number, const ls_event *event)
{
    if (member->running.number == number &&
        (ls_event_has(event, gpu_ns) || ls_event_has(event, ran_ns))) {
        member->running_s = 0;
    }
}

static void add_process(reader *r, const ls_event *event)
{
    ls_collectives *to = r->to;
    to->process =
        ls_list_grow(to->process, to->process_count, &to->process_capacity, sizeof *to->process);
    ls_collectives_process *made = &to->process[to->process_count];
    *made = (ls_collectives_process){.job = ls_event_int(event, rank, -1),
                                     .stall_s = ls_event_number(event, stall_s, 10)};
    ls_text_put(made->boot, sizeof made->boot, "%s", ls_event_text(event, boot, ""));
    r->job = made->job;
    to->keeps_nan = to->keeps_nan || ls_event_bool(event, keeps_nan, false);
    r->api = ls_event_int(event, api, 0);
    r->process = to->process_count++;
}

static void end_process(const reader *r, const ls_event *event)
{
    r->to->captured += ls_event_integer(event, captured, 0);
    if (r->process >= 0) {
        r->to->process[r->process].ended = true;
        r->to->process[r->process].ended_ns = ls_event_integer(event, at_ns, 0);
    }
}

/* ---- order of NCCL's calls ------------------------------------------------------------------- */

/* NCCL numbers the calls of each function. Those of a graph it does not count, and version 4 of the
 * profiler does not say which they are. */
static void compare_profiled(const reader *r, const ls_event *event)
{
    ls_collectives_call call = call_of(r, event);
    if (r->api >= 5 && !ls_event_bool(event, captured, false)) {
        call.number = ls_event_integer(event, sequence, -1);
        int comm = comm_of(r, event, call.op);
        compare_call(r->to, comm, &call);
        add_entry(r, comm, event, call.number);
        end_running(member_of(r, comm, event), call.number, event);
    }
}

/* A rank that has destroyed a communicator made all its calls. */
static void compare_end(const reader *r, int index, const ls_event *event)
{
    ls_collectives_comm *comm = &r->to->comm[index];
    ls_collectives_call call = call_of(r, event);
    call.elements = ls_event_integer(event, calls, -1);
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
static unsigned char *bytes_of(const ls_event *event, ls_event_member name, int64_t *count)
{
    const char *text = ls_event_to_text(ls_event_get(event, name), NULL);
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

static void add_sample(const reader *r, int comm, const ls_event *event)
{
    ls_collectives *to = r->to;
    const ls_event *pieces = ls_event_list(event, pieces), *piece;
    ls_collectives_sample sample = {.call = call_of(r, event),
                                    .comm = comm,
                                    .part = ls_event_int(event, part, 0),
                                    .width = ls_event_int(event, width, 0),
                                    .bytes = -1};
    ls_event_each(piece, pieces) {
        int64_t at = -1;
        if (sample.pieces == LS_COLLECTIVES_PIECES || !ls_event_is_number(piece) ||
            !ls_json_whole(piece->number, 0, INT64_C(1) << 53, &at)) {
            return;
        }
        sample.piece[sample.pieces++] = at;
    }
    if (sample.width < 1 || sample.width > WIDTH_MAX || sample.pieces < 1) {
        return;
    }
    sample.sent = bytes_of(event, LS_TEXT_MEMBER(sent), &sample.bytes);
    sample.received = bytes_of(event, LS_TEXT_MEMBER(received), &sample.bytes);
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

static void add_event(reader *r, const char *word, const ls_event *event)
{
    if (strcmp(word, "start") == 0) {
        add_process(r, event);
    } else if (r->process < 0) {
        return; /* of no process */
    } else if (strcmp(word, "end") == 0) {
        end_process(r, event);
    } else if (strcmp(word, "call") == 0) {
        ls_collectives_call call = call_of(r, event);
        int comm = comm_of(r, event, "");
        compare_call(r->to, comm, &call);
        add_entry(r, comm, event, call.number);
    } else if (strcmp(word, "stall") == 0) {
        add_running(r, event);
    } else if (strcmp(word, "collective") == 0) {
        compare_profiled(r, event);
    } else if (strcmp(word, "comm") == 0) {
        int index = comm_of(r, event, r->api == 0 ? "" : "*");
        r->to->comm[index].world = ls_event_int(event, world, 0);
        (void)member_of(r, index, event);
    } else if (r->api == 0 && strcmp(word, "comm_end") == 0) {
        int index = comm_of(r, event, "");
        compare_end(r, index, event);
        close_member(r, index, event);
    } else if (strcmp(word, "sample") == 0) {
        add_sample(r, comm_of(r, event, ""), event);
    }
}

static ls_status read_event(void *context, const cJSON *value, int line)
{
    reader *r = context;
    const char *word = ls_json_string(value, "event", "");
    ls_event_shape shape = ls_event_shape_of(r->file, word);
    (void)line;
    r->lines++;
    if (shape != LS_EVENT_none) {
        add_event(r, word, ls_event_read_once(r->store, shape, value));
    }
    return LS_OK;
}

static void read_file(const char *directory, const char *name, ls_collectives *to)
{
    reader r = {.to = to,
                .job = -1,
                .process = -1,
                .file = name[0] == 's' ? LS_EVENT_FILE_SUMS : LS_EVENT_FILE_NCCL,
                .store = ls_event_store_make()};
    LS_TEXT(path, PATH_MAX, "%s/%s", directory, name);
    to->files++;
    if (ls_json_each_line(path, read_event, &r) != LS_OK && to->broken[0] == '\0') {
        ls_text_put(to->broken, sizeof to->broken, "%s cannot be read to its end", name);
    }
    if (ls_event_wrong(r.store)[0] != '\0' && to->broken[0] == '\0') {
        ls_text_put(to->broken, sizeof to->broken, "%s %s", name, ls_event_wrong(r.store));
    }
    ls_event_store_free(r.store);
    if (r.process >= 0) {
        to->process[r.process].cut = r.lines >= LS_JOURNAL_LINES_MAX;
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
        for (int k = 0; k < collectives->comm[i].member_count; k++) {
            free(collectives->comm[i].member[k].entered_ns);
        }
        free(collectives->comm[i].member);
        free(collectives->comm[i].call);
    }
    for (int i = 0; i < collectives->sample_count; i++) {
        free(collectives->sample[i].sent);
        free(collectives->sample[i].received);
    }
    free(collectives->comm);
    free(collectives->process);
    free(collectives->sample);
    memset(collectives, 0, sizeof *collectives);
}
