#include "exercise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/digest.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"

enum { GUARD = 64, POISON = 0xa5, ALIGN = 64 };

/* A buffer with guard bytes on both sides. */
typedef struct area {
    char *block, *data; /* on the host */
    char *device;       /* address of the block for the engine; equal to `block` in host memory */
    size_t bytes, whole;
} area;

typedef struct exercise {
    const ls_exercise_peer *peer;
    const ls_exercise *what;
    size_t element_bytes;
    area area[2];         /* in place: the first only */
    char *input, *buffer; /* of the operation; input is NULL if it has none on this rank */
    int64_t inputs;       /* elements of input */
    int64_t outputs;      /* elements of buffer that must hold a result on this rank */
    bool separate;        /* input has an area of its own */
    char *sent;           /* a copy of the input, for the journal; NULL without one */
} exercise;

/* What an operation takes and gives: a part for each rank, at the root only; never in place. */
static const struct shape {
    bool many_in, many_out, root_gives, root_gets, apart;
} shapes[LS_COMM_ALL_TO_ALL + 1] = {
    [LS_COMM_BROADCAST] = {.root_gives = true},
    [LS_COMM_ALL_GATHER] = {.many_out = true},
    [LS_COMM_REDUCE_SCATTER] = {.many_in = true},
    [LS_COMM_REDUCE] = {.root_gets = true},
    [LS_COMM_GATHER] = {.many_out = true, .root_gets = true},
    [LS_COMM_SCATTER] = {.many_in = true, .root_gives = true},
    [LS_COMM_SEND] = {.apart = true},
    [LS_COMM_RECV] = {.apart = true},
    [LS_COMM_BARRIER] = {.apart = true},
    [LS_COMM_ALL_TO_ALL] = {.many_in = true, .many_out = true, .apart = true},
};

bool ls_exercise_can_be_in_place(ls_comm_kind kind)
{
    return !shapes[kind].apart;
}

/* ---- buffers --------------------------------------------------------------------------------- */

static ls_status area_create(const exercise *e, int64_t elements, area *out)
{
    size_t bytes = (size_t)elements * e->element_bytes;
    size_t front = GUARD + (size_t)e->what->offset * e->element_bytes;
    size_t whole = (front + bytes + GUARD + ALIGN - 1) / ALIGN * ALIGN;
    char *block = aligned_alloc(ALIGN, whole);
    LS_TRY_MEMORY(block != NULL, "%zu bytes for %s", whole, ls_comm_kind_name(e->what->kind));
    memset(block, POISON, whole);
    void *device = block;
    if (e->peer->backend_api != NULL) {
        ls_status status = e->peer->backend_api->memory_alloc(e->peer->backend, (int64_t)whole,
                                                              "exercise", &device);
        if (status != LS_OK) {
            free(block);
            return status;
        }
    }
    *out = (area){block, block + front, device, bytes, whole};
    return LS_OK;
}

/* failed: the device may wait for a lost peer, and freeing would wait too; the process is about to
 * end. */
static void area_free(const exercise *e, area *a, bool failed)
{
    if (a->device != NULL && a->device != a->block && !failed) {
        e->peer->backend_api->memory_free(e->peer->backend, a->device);
    }
    free(a->block);
}

/* The address that the engine uses for a place in one of the areas. */
static char *there(const exercise *e, char *here)
{
    for (int i = 0; i < 2; i++) {
        const area *a = &e->area[i];
        if (a->block != NULL && here >= a->block && here < a->block + a->whole) {
            return a->device + (here - a->block);
        }
    }
    return here;
}

static ls_status copy_areas(const exercise *e, bool out)
{
    const ls_exercise_peer *peer = e->peer;
    for (int i = 0; peer->backend_api != NULL && i < 2; i++) {
        const area *a = &e->area[i];
        int64_t bytes = (int64_t)a->whole;
        if (a->block != NULL && out) {
            LS_TRY(peer->backend_api->copy_out(peer->backend, peer->stream, a->block, a->device,
                                               bytes));
        } else if (a->block != NULL) {
            LS_TRY(peer->backend_api->copy_in(peer->backend, peer->stream, a->device, a->block,
                                              bytes));
        }
    }
    return peer->backend_api == NULL ? LS_OK : peer->backend_api->stream_wait(peer->stream);
}

static int64_t count_changed(const char *from, size_t bytes)
{
    int64_t changed = 0;
    for (size_t i = 0; i < bytes; i++) {
        changed += (unsigned char)from[i] != POISON;
    }
    return changed;
}

static ls_status create(exercise *e)
{
    const ls_exercise *what = e->what;
    int world = e->peer->members.count, rank = e->peer->rank;
    bool root = rank == what->root;
    const struct shape shape = shapes[what->kind];
    int64_t given = shape.many_in ? world * what->count : what->count;
    int64_t got = shape.many_out ? world * what->count : what->count;
    e->element_bytes = ls_dtype_bytes(what->dtype);
    e->inputs = shape.root_gives && !root ? 0 : given;
    e->outputs = shape.root_gets && !root ? 0 : got;
    e->separate = !what->in_place;
    size_t part = (size_t)rank * (size_t)what->count * e->element_bytes;
    LS_TRY(area_create(e, given > got && what->in_place ? given : got, &e->area[0]));
    e->buffer = e->input = e->area[0].data;
    if (e->separate) {
        LS_TRY(area_create(e, given, &e->area[1]));
        e->input = e->area[1].data;
    } else if (shape.many_out) {
        e->input += part;
    } else if (shape.many_in) {
        e->buffer += part;
    }
    return LS_OK;
}

static ls_pattern_kind data_of(const ls_exercise *what)
{
    bool factors = what->redop == LS_COMM_PROD && what->data == LS_PATTERN_EXACT;
    return factors ? LS_PATTERN_FACTORS : what->data;
}

static ls_status refill(exercise *e)
{
    for (int i = 0; i < 2; i++) {
        if (e->area[i].block != NULL) {
            memset(e->area[i].data, POISON, e->area[i].bytes);
        }
    }
    ls_pattern_fill(data_of(e->what), e->what->dtype, e->peer->members.rank[e->peer->rank], 0,
                    e->inputs, e->input);
    return copy_areas(e, false);
}

/* ---- the operation --------------------------------------------------------------------------- */

/* With `stream` NULL, waits for the result. */
static ls_status pass_on(const exercise *e, ls_stream *stream)
{
    const ls_exercise_peer *peer = e->peer;
    int world = peer->members.count;
    int right = (peer->rank + 1) % world, left = (peer->rank + world - 1) % world;
    ls_comm_op send = {.kind = LS_COMM_SEND,
                       .buffer = there(e, e->input),
                       .count = e->what->count,
                       .dtype = e->what->dtype,
                       .root = right,
                       .label = "to the right"};
    ls_comm_op recv = send;
    recv.kind = LS_COMM_RECV;
    recv.buffer = there(e, e->buffer);
    recv.root = left;
    recv.label = "from the left";
    if (peer->rank == 0) {
        LS_TRY(ls_comm_run(peer->api, peer->comm, &send, stream));
        return ls_comm_run(peer->api, peer->comm, &recv, stream);
    }
    LS_TRY(ls_comm_run(peer->api, peer->comm, &recv, stream));
    return ls_comm_run(peer->api, peer->comm, &send, stream);
}

static ls_status run_once(const exercise *e, ls_stream *stream)
{
    const ls_exercise *what = e->what;
    if (what->kind == LS_COMM_SEND) {
        return pass_on(e, stream);
    }
    ls_comm_op op = {.kind = what->kind,
                     .buffer = there(e, e->buffer),
                     .input = there(e, e->input),
                     .count = what->count,
                     .dtype = what->dtype,
                     .root = what->root,
                     .redop = what->redop,
                     .label = "exercise"};
    return ls_comm_run(e->peer->api, e->peer->comm, &op, stream);
}

/* ---- what came out --------------------------------------------------------------------------- */

/* Elements `first` and on of what the members' inputs give. */
static int64_t count_wrong_reduced(const exercise *e, int64_t first, int64_t count,
                                   int64_t *telling)
{
    const ls_exercise *what = e->what;
    bool nan_lost = strcmp(e->peer->api->name, "nccl") == 0; /* comm.h, ls_comm_redop */
    return ls_pattern_count_wrong_results(data_of(what), what->dtype, what->redop,
                                          &e->peer->members, nan_lost, first, count, e->buffer,
                                          telling);
}

/* Part `part` of the result against elements `first` and on of a member's input. */
static int64_t count_wrong_part(const exercise *e, int64_t part, int member, int64_t first)
{
    const ls_exercise *what = e->what;
    size_t offset = (size_t)(part * what->count) * e->element_bytes;
    return ls_pattern_count_wrong(data_of(what), what->dtype, e->peer->members.rank[member], first,
                                  what->count, e->buffer + offset);
}

static int64_t count_wrong_results(const exercise *e, int64_t *telling)
{
    const ls_exercise *what = e->what;
    int rank = e->peer->rank, world = e->peer->members.count;
    int64_t wrong = 0, mine = rank * what->count;
    switch (what->kind) {
    case LS_COMM_ALL_REDUCE:
    case LS_COMM_REDUCE:
        return count_wrong_reduced(e, 0, e->outputs, telling);
    case LS_COMM_REDUCE_SCATTER:
        return count_wrong_reduced(e, mine, what->count, telling);
    case LS_COMM_BROADCAST:
        return count_wrong_part(e, 0, what->root, 0);
    case LS_COMM_SCATTER:
        return count_wrong_part(e, 0, what->root, mine);
    case LS_COMM_SEND:
    case LS_COMM_RECV:
        return count_wrong_part(e, 0, (rank + world - 1) % world, 0);
    case LS_COMM_ALL_GATHER:
    case LS_COMM_GATHER:
    case LS_COMM_ALL_TO_ALL:
        for (int from = 0; from < world && e->outputs > 0; from++) {
            wrong += count_wrong_part(e, from, from, what->kind == LS_COMM_ALL_TO_ALL ? mine : 0);
        }
        return wrong;
    case LS_COMM_BARRIER:
        return 0;
    }
    return 0;
}

static void check(const exercise *e, ls_exercise_result *out)
{
    const ls_exercise *what = e->what;
    out->checked += e->outputs;
    out->wrong += count_wrong_results(e, &out->telling);
    if (e->separate) {
        out->wrong +=
            ls_pattern_count_wrong(data_of(what), what->dtype, e->peer->members.rank[e->peer->rank],
                                   0, e->inputs, e->input);
    }
    for (int i = 0; i < 2; i++) {
        if (e->area[i].block != NULL) {
            out->guards += count_changed(e->area[i].data - GUARD, GUARD);
            out->guards += count_changed(e->area[i].data + e->area[i].bytes, GUARD);
        }
    }
    if (what->kind == LS_COMM_GATHER && e->outputs == 0 && e->separate) {
        out->guards += count_changed(e->buffer, e->area[0].bytes);
    }
    out->digest =
        ls_digest_update(LS_DIGEST_START, e->buffer, (size_t)e->outputs * e->element_bytes);
}

static void rate(const exercise *e, ls_exercise_result *out)
{
    ls_comm_kind kind = e->what->kind;
    double world = e->peer->members.count;
    bool parts = shapes[kind].many_in || shapes[kind].many_out;
    double bytes = (double)e->what->count * (double)e->element_bytes * (parts ? world : 1);
    double factor = parts ? (world - 1) / world : 1;
    factor = kind == LS_COMM_ALL_REDUCE ? 2 * (world - 1) / world : factor;
    bool sent = world > 1 && bytes > 0 && out->us > 0;
    out->bytes = bytes;
    out->algbw_gb_s = sent ? bytes / out->us * 1e-3 : NAN;
    out->busbw_gb_s = out->algbw_gb_s * factor;
}

static ls_status start_together(const ls_exercise_peer *peer)
{
    const ls_comm_op barrier = {.kind = LS_COMM_BARRIER, .label = "start together"};
    return ls_comm_run(peer->api, peer->comm, &barrier, NULL);
}

/* Enqueues many operations back to back on the device; the buffers' contents do not matter. */
static ls_status time_on_device(const exercise *e, int64_t *spent_ns)
{
    const ls_exercise_peer *peer = e->peer;
    LS_TRY(start_together(peer));
    int64_t begin_ns = ls_clock_ns();
    for (int i = 0; i < e->what->iterations; i++) {
        LS_TRY(run_once(e, peer->stream));
    }
    LS_TRY(peer->backend_api->stream_wait(peer->stream));
    *spent_ns = ls_clock_ns() - begin_ns;
    return LS_OK;
}

/* In place the result replaces it. */
static ls_status keep_input(exercise *e)
{
    size_t bytes = (size_t)e->inputs * e->element_bytes;
    if (e->peer->journal == NULL || bytes == 0) {
        return LS_OK;
    }
    e->sent = e->sent != NULL ? e->sent : malloc(bytes);
    LS_TRY_MEMORY(e->sent != NULL, "%zu bytes for the journal", bytes);
    memcpy(e->sent, e->input, bytes);
    return LS_OK;
}

static ls_status judge_one(exercise *e, ls_exercise_result *result, int64_t *spent_ns)
{
    LS_TRY(refill(e));
    if (e->what->iterations > 1) { /* a timed run: all ranks start together */
        LS_TRY(start_together(e->peer));
    }
    LS_TRY(keep_input(e));
    int64_t begin_ns = ls_clock_ns();
    LS_TRY(run_once(e, NULL));
    *spent_ns += ls_clock_ns() - begin_ns;
    LS_TRY(copy_areas(e, true));
    const ls_comm_op seen = {.kind = e->what->kind,
                             .buffer = e->outputs > 0 ? e->buffer : NULL,
                             .input = e->inputs > 0 ? e->sent : NULL,
                             .count = e->what->count,
                             .dtype = e->what->dtype,
                             .root = e->what->root,
                             .redop = e->what->redop};
    LS_TRY(ls_exercise_journal_add(e->peer->journal, &seen));
    check(e, result);
    return LS_OK;
}

ls_status ls_exercise_run(const ls_exercise_peer *peer, const ls_exercise *what,
                          ls_exercise_result *out)
{
    exercise e = {.peer = peer, .what = what};
    ls_exercise_result result = {0};
    int64_t spent_ns = 0;
    int judged = peer->backend_api == NULL ? what->iterations : 1;
    ls_status status = create(&e);
    for (int i = 0; status == LS_OK && i < judged; i++) {
        status = judge_one(&e, &result, &spent_ns);
    }
    if (status == LS_OK && judged < what->iterations) {
        status = time_on_device(&e, &spent_ns);
    }
    if (status == LS_OK) {
        result.us = ls_clock_ms_between(0, spent_ns) * 1e3 / what->iterations;
        rate(&e, &result);
        *out = result;
    }
    free(e.sent);
    area_free(&e, &e.area[0], status != LS_OK);
    area_free(&e, &e.area[1], status != LS_OK);
    return status;
}

int ls_exercise_rounds(int world)
{
    return world + world % 2 - 1;
}

/* In the first pass, where seats are ranks. */
static int partner_of_seat(int world, int round, int seat)
{
    int rounds = ls_exercise_rounds(world), other = 0;
    if (seat == rounds) { /* it stands still: it meets who would meet itself */
        while (2 * other % rounds != round) {
            other++;
        }
        return other;
    }
    other = (round - seat + rounds) % rounds;
    return other == seat ? rounds : other;
}

int ls_exercise_partner(int world, int pass, int round, int rank)
{
    int *seat = ls_list_make((size_t)world, sizeof *seat), mine = 0; /* rank of each */
    uint64_t digest = LS_DIGEST_START;
    for (int k = 0; k < world; k++) {
        seat[k] = k;
    }
    for (int k = world - 1; k > 0 && pass > 0; k--) { /* Fisher and Yates */
        const int drawn[] = {pass, k};
        digest = ls_digest_update(digest, drawn, sizeof drawn);
        int with = (int)(digest % (uint64_t)(k + 1)), moved = seat[k];
        seat[k] = seat[with];
        seat[with] = moved;
    }
    while (seat[mine] != rank) {
        mine++;
    }
    int other = partner_of_seat(world, round, mine);
    other = other < world ? seat[other] : -1;
    free(seat);
    return other;
}
