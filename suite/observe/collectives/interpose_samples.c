/* Elements of a sampled call before and after it, copied on its own stream into pinned memory, and
 * written once an event says that they are there. Nothing here waits for the device.
 *
 * Which elements: up to 256 of a part, all of a small one, else 8 pieces of 32: the first, the last
 * and 6 drawn by the call's number between them. All ranks know them without a word. Of an
 * all_gather and a reduce_scatter, whose buffers have a part for each rank, one part is looked at,
 * drawn as well: `part`.
 *
 * The order on the stream is send copies, collective, receive copies. A group launches its
 * collectives when it ends, a non-blocking communicator when it has made progress; until then
 * nothing may follow on the stream, so the receive copies wait for that (WAITING, DEFERRED). What a
 * call enqueues after them, as PyTorch does its event, covers them too. */
#include "interpose.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEVICES_MAX = 16,
    SLOTS = 32, /* of a device: as many samples may be on their way */
    ELEMENTS = 256,
    PIECES = 8,
    WIDTH = ELEMENTS / PIECES,
    ELEMENT_BYTES_MAX = 8,
    SIDE_BYTES = ELEMENTS * ELEMENT_BYTES_MAX,
};

enum { FREE, TAKEN, WAITING, DEFERRED, RUNNING, HARVESTED };

struct ls_interpose_slot {
    _Atomic int state; /* the one who changes it from FREE, WAITING, DEFERRED or RUNNING owns it */
    _Atomic uintptr_t waits_for; /* WAITING: the thread; DEFERRED: the communicator */
    _Atomic uint64_t deferred;   /* how many were before it */
    ls_interpose_call call;
    cudaEvent_t event;
    unsigned char *sent, *received;
    bool sends, receives;
    int pieces, width, part;
    uint64_t piece[PIECES]; /* positions in the part */
};

static struct {
    pthread_mutex_t lock; /* of what ls_interpose_prepare makes */
    bool registered;
    struct {
        _Atomic bool made;
        ls_interpose_slot slot[SLOTS];
    } device[DEVICES_MAX];
    _Atomic int underway;      /* slots that are not free */
    _Atomic uint64_t deferred; /* slots that have been, up to now */
    _Atomic int64_t sampled, captured, busy, failed;
    const ls_real *real; /* for the end of the process */
} process_state = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const struct {
    const char *name;
    int bytes;
} types[] = {[ncclInt8] = {"i8", 1},       [ncclUint8] = {"u8", 1},    [ncclInt32] = {"i32", 4},
             [ncclUint32] = {"u32", 4},    [ncclInt64] = {"i64", 8},   [ncclUint64] = {"u64", 8},
             [ncclFloat16] = {"f16", 2},   [ncclFloat32] = {"f32", 4}, [ncclFloat64] = {"f64", 8},
             [ncclBfloat16] = {"bf16", 2}, [10] = {"f8e4m3", 1},       [11] = {"f8e5m2", 1}};

static bool is_type(ncclDataType_t type)
{
    return (int)type >= 0 && (size_t)type < sizeof types / sizeof *types;
}

const char *ls_interpose_type_name(ncclDataType_t type)
{
    return is_type(type) ? types[type].name : "?";
}

const char *ls_interpose_redop_name(int redop)
{
    static const char *const names[] = {"sum", "prod", "max", "min", "avg"};
    if (redop < 0) {
        return "";
    }
    return redop < (int)(sizeof names / sizeof *names) ? names[redop] : "created";
}

/* ---- CUDA ------------------------------------------------------------------------------------ */

/* What CUDA forbids while any stream of the process is captured in global mode (queries of events,
 * allocations) ends that capture, unless the calling thread is in relaxed mode. An error of ours
 * must not be found by the user's next cudaGetLastError. */
static cudaError_t relaxed(const ls_real *real, enum cudaStreamCaptureMode *mode)
{
    return LS_REAL(real, cudaThreadExchangeStreamCaptureMode)(mode);
}

static cudaError_t checked(const ls_real *real, cudaError_t error)
{
    if (error != cudaSuccess) {
        (void)LS_REAL(real, cudaGetLastError)();
    }
    return error;
}

bool ls_interpose_is_capturing(const ls_real *real, cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    /* an error, too: of the legacy stream it says that another stream is captured */
    return !real->has_cuda ||
           checked(real, LS_REAL(real, cudaStreamIsCapturing)(stream, &status)) != cudaSuccess ||
           status != cudaStreamCaptureStatusNone;
}

/* At exit: only what has been copied is written. Registered after CUDA has been used, so that it
 * runs before CUDA's own end. */
static void write_end(void)
{
    ls_journal *journal = ls_interpose_journal();
    if (!ls_journal_is_open(journal)) {
        return;
    }
    ls_interpose_harvest(process_state.real);
    ls_journal_add(journal, true,
                   "{\"event\":\"end\",\"sampled\":%" PRId64 ",\"captured\":%" PRId64
                   ",\"busy\":%" PRId64 ",\"failed\":%" PRId64 ",\"unfinished\":%d,"
                   "\"dropped\":%" PRId64 ",\"at_ns\":%" PRId64 "}",
                   atomic_load(&process_state.sampled), atomic_load(&process_state.captured),
                   atomic_load(&process_state.busy), atomic_load(&process_state.failed),
                   atomic_load(&process_state.underway), journal->dropped, ls_journal_now_ns());
    ls_journal_flush(journal);
}

/* With the lock held. */
static bool make_slots(const ls_real *real, ls_interpose_slot *slots)
{
    void *memory = NULL;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)relaxed(real, &mode);
    bool made = checked(real, LS_REAL(real, cudaHostAlloc)(&memory, (size_t)SLOTS * 2 * SIDE_BYTES,
                                                           cudaHostAllocPortable)) == cudaSuccess;
    for (int i = 0; i < SLOTS && made; i++) {
        slots[i].sent = (unsigned char *)memory + (size_t)i * 2 * SIDE_BYTES;
        slots[i].received = slots[i].sent + SIDE_BYTES;
        made = checked(real, LS_REAL(real, cudaEventCreateWithFlags)(
                                 &slots[i].event, cudaEventDisableTiming)) == cudaSuccess;
    }
    (void)relaxed(real, &mode);
    return made;
}

void ls_interpose_prepare(const ls_real *real)
{
    int device = -1;
    if (!real->has_cuda || checked(real, LS_REAL(real, cudaGetDevice)(&device)) != cudaSuccess ||
        device < 0 || device >= DEVICES_MAX) {
        return;
    }
    pthread_mutex_lock(&process_state.lock);
    process_state.real = real;
    if (!process_state.registered) {
        process_state.registered = atexit(write_end) == 0;
    }
    if (!atomic_load(&process_state.device[device].made)) {
        atomic_store(&process_state.device[device].made,
                     make_slots(real, process_state.device[device].slot));
    }
    pthread_mutex_unlock(&process_state.lock);
}

/* Makes that device the current one; returns the one that was, -1 on an error. */
static int switch_device(const ls_real *real, int device)
{
    int before = -1;
    if (checked(real, LS_REAL(real, cudaGetDevice)(&before)) != cudaSuccess ||
        (before != device && checked(real, LS_REAL(real, cudaSetDevice)(device)) != cudaSuccess)) {
        return -1;
    }
    return before;
}

static void switch_back(const ls_real *real, int before, int device)
{
    if (before != device) {
        (void)checked(real, LS_REAL(real, cudaSetDevice)(before));
    }
}

/* ---- slots ----------------------------------------------------------------------------------- */

typedef void visit(const ls_real *real, ls_interpose_slot *slot, ncclResult_t result);

/* Calls it for each slot in that state that waits for `key` and was not deferred after `until`; the
 * state becomes `next` first. */
static void each_slot(const ls_real *real, int state, int next, uintptr_t key, uint64_t until,
                      visit *call, ncclResult_t result)
{
    for (int d = 0; d < DEVICES_MAX && atomic_load(&process_state.underway) > 0; d++) {
        for (int i = 0; i < SLOTS && atomic_load(&process_state.device[d].made); i++) {
            ls_interpose_slot *slot = &process_state.device[d].slot[i];
            int expected = state;
            if (atomic_load(&slot->state) == state && atomic_load(&slot->waits_for) == key &&
                atomic_load(&slot->deferred) <= until &&
                atomic_compare_exchange_strong(&slot->state, &expected, next)) {
                call(real, slot, result);
            }
        }
    }
}

static void set_waiting(ls_interpose_slot *slot, int state, uintptr_t key)
{
    atomic_store(&slot->waits_for, key);
    atomic_store(&slot->state, state);
}

static void release(ls_interpose_slot *slot)
{
    atomic_store(&slot->state, FREE);
    atomic_fetch_sub(&process_state.underway, 1);
}

static void fail(ls_interpose_slot *slot)
{
    atomic_fetch_add(&process_state.failed, 1);
    release(slot);
}

static ls_interpose_slot *take(int device)
{
    if (device < 0 || device >= DEVICES_MAX || !atomic_load(&process_state.device[device].made)) {
        return NULL;
    }
    for (int i = 0; i < SLOTS; i++) {
        ls_interpose_slot *slot = &process_state.device[device].slot[i];
        int expected = FREE;
        if (atomic_compare_exchange_strong(&slot->state, &expected, TAKEN)) {
            atomic_fetch_add(&process_state.underway, 1);
            return slot;
        }
    }
    return NULL;
}

/* ---- which elements -------------------------------------------------------------------------- */

static void draw_pieces(ls_interpose_slot *slot)
{
    uint64_t count = slot->call.count, seed = ls_interpose_mix(slot->call.number);
    slot->pieces = count <= ELEMENTS ? 1 : PIECES;
    slot->width = count <= ELEMENTS ? (int)count : WIDTH;
    for (int i = 0; i < slot->pieces; i++) {
        uint64_t stratum = count / PIECES; /* WIDTH at least, if there are several */
        seed = ls_interpose_mix(seed);
        slot->piece[i] = i == 0            ? 0
                         : i == PIECES - 1 ? count - WIDTH
                                           : (uint64_t)i * stratum + seed % (stratum - WIDTH + 1);
    }
}

/* What this rank sends and receives of the part. */
static void draw_sides(ls_interpose_slot *slot)
{
    const ls_interpose_call *c = &slot->call;
    bool gathers = strcmp(c->op, "all_gather") == 0;
    bool scatters = strcmp(c->op, "reduce_scatter") == 0;
    bool root = c->comm.rank == c->root;
    slot->part = 0;
    if (gathers || scatters) {
        slot->part = (int)(ls_interpose_mix(~c->number) % (uint64_t)c->comm.world);
    }
    slot->sends = gathers ? c->comm.rank == slot->part : strcmp(c->op, "broadcast") != 0 || root;
    slot->receives = scatters ? c->comm.rank == slot->part : strcmp(c->op, "reduce") != 0 || root;
}

static const char *part_of(const ls_interpose_slot *slot, const void *buffer, const char *op)
{
    uint64_t first = strcmp(slot->call.op, op) == 0 ? (uint64_t)slot->part * slot->call.count : 0;
    return (const char *)buffer + first * (uint64_t)types[slot->call.type].bytes;
}

/* One copy a piece. */
static cudaError_t copy(const ls_real *real, const ls_interpose_slot *slot, unsigned char *to,
                        const char *from)
{
    size_t element = (size_t)types[slot->call.type].bytes, bytes = (size_t)slot->width * element;
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < slot->pieces && error == cudaSuccess; i++) {
        error =
            LS_REAL(real, cudaMemcpyAsync)(to + (size_t)i * bytes, from + slot->piece[i] * element,
                                           bytes, cudaMemcpyDefault, slot->call.stream);
    }
    return checked(real, error);
}

/* ---- a call ---------------------------------------------------------------------------------- */

ls_interpose_slot *ls_interpose_before(const ls_real *real, const ls_interpose_call *call)
{
    if (!call->chosen || !is_type(call->type)) {
        return NULL;
    }
    if (ls_interpose_is_capturing(real, call->stream)) {
        atomic_fetch_add(&process_state.captured, 1);
        return NULL;
    }
    if (LS_REAL(real, cudaPeekAtLastError)() != cudaSuccess) {
        return NULL; /* the user's error stays the user's */
    }
    ls_interpose_harvest(real);
    ls_interpose_slot *slot = take(call->comm.device);
    if (slot == NULL) {
        atomic_fetch_add(&process_state.busy, 1);
        return NULL;
    }
    slot->call = *call;
    atomic_store(&slot->deferred, 0);
    draw_pieces(slot);
    draw_sides(slot);
    int device = call->comm.device, before = switch_device(real, device);
    bool copied = before >= 0 && (!slot->sends ||
                                  copy(real, slot, slot->sent,
                                       part_of(slot, call->send, "reduce_scatter")) == cudaSuccess);
    if (before >= 0) {
        switch_back(real, before, device);
    }
    if (!copied) {
        fail(slot);
        return NULL;
    }
    return slot;
}

/* After the collective on its stream; the slot is ours. */
static void receive(const ls_real *real, ls_interpose_slot *slot)
{
    int device = slot->call.comm.device, before = -1;
    bool copied =
        !ls_interpose_is_capturing(real, slot->call.stream) &&
        (before = switch_device(real, device)) >= 0 &&
        (!slot->receives || copy(real, slot, slot->received,
                                 part_of(slot, slot->call.receive, "all_gather")) == cudaSuccess) &&
        checked(real, LS_REAL(real, cudaEventRecord)(slot->event, slot->call.stream)) ==
            cudaSuccess;
    if (before >= 0) {
        switch_back(real, before, device);
    }
    if (copied) {
        set_waiting(slot, RUNNING, 0);
    } else {
        fail(slot);
    }
}

/* A call, or the group that held it, has returned. */
static void returned(const ls_real *real, ls_interpose_slot *slot, ncclResult_t result)
{
    if (result == ncclSuccess) {
        receive(real, slot);
    } else if (result == ncclInProgress) {
        atomic_store(&slot->deferred, atomic_fetch_add(&process_state.deferred, 1) + 1);
        set_waiting(slot, DEFERRED, (uintptr_t)slot->call.comm.native);
    } else {
        fail(slot);
    }
}

void ls_interpose_after(const ls_real *real, ls_interpose_slot *slot, ncclResult_t result,
                        bool in_group)
{
    if (slot != NULL && in_group && (result == ncclSuccess || result == ncclInProgress)) {
        set_waiting(slot, WAITING, (uintptr_t)pthread_self());
    } else if (slot != NULL) {
        returned(real, slot, result);
    }
}

void ls_interpose_group_over(const ls_real *real, ncclResult_t result)
{
    each_slot(real, WAITING, TAKEN, (uintptr_t)pthread_self(), UINT64_MAX, returned, result);
}

uint64_t ls_interpose_deferred(void)
{
    return atomic_load(&process_state.deferred);
}

void ls_interpose_progressed(const ls_real *real, ncclComm_t native, uint64_t until)
{
    each_slot(real, DEFERRED, TAKEN, (uintptr_t)native, until, returned, ncclSuccess);
}

void ls_interpose_drop(ncclComm_t native)
{
    each_slot(NULL, DEFERRED, TAKEN, (uintptr_t)native, UINT64_MAX, returned, ncclInvalidUsage);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void put_hex(char *text, size_t bytes, const char *name, bool given,
                    const ls_interpose_slot *slot, const unsigned char *data)
{
    static const char digits[] = "0123456789abcdef";
    size_t count =
        (size_t)slot->pieces * (size_t)slot->width * (size_t)types[slot->call.type].bytes;
    text[0] = '\0';
    if (!given) {
        return;
    }
    int used = snprintf(text, bytes, ",\"%s\":\"", name);
    for (size_t i = 0; i < count && (size_t)used + 4 < bytes; i++) {
        text[used++] = digits[data[i] >> 4];
        text[used++] = digits[data[i] & 15];
    }
    text[used++] = '"';
    text[used] = '\0';
}

static void write_sample(const ls_interpose_slot *slot)
{
    const ls_interpose_call *c = &slot->call;
    char sent[2 * SIDE_BYTES + 32], received[2 * SIDE_BYTES + 32], pieces[PIECES * 24] = "";
    for (int i = 0, used = 0; i < slot->pieces; i++) {
        used += snprintf(pieces + used, sizeof pieces - (size_t)used, "%s%" PRIu64,
                         i > 0 ? "," : "", slot->piece[i]);
    }
    put_hex(sent, sizeof sent, "sent", slot->sends, slot, slot->sent);
    put_hex(received, sizeof received, "received", slot->receives, slot, slot->received);
    ls_journal_add(ls_interpose_journal(), true,
                   "{\"event\":\"sample\",\"comm\":\"%016" PRIx64
                   "\",\"comm_rank\":%d,\"number\":%" PRIu64 ",\"op\":\"%s\",\"elements\":%" PRIu64
                   ",\"type\":\"%s\",\"reduce\":\"%s\",\"root\":%d,\"part\":%d,\"width\":%d,"
                   "\"pieces\":[%s]%s%s}",
                   c->comm.id, c->comm.rank, c->number, c->op, c->count,
                   ls_interpose_type_name(c->type), ls_interpose_redop_name(c->redop), c->root,
                   slot->part, slot->width, pieces, sent, received);
    ls_journal_flush(ls_interpose_journal());
    atomic_fetch_add(&process_state.sampled, 1);
}

static void harvest(const ls_real *real, ls_interpose_slot *slot, ncclResult_t unused)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)unused;
    (void)relaxed(real, &mode);
    cudaError_t answer = checked(real, LS_REAL(real, cudaEventQuery)(slot->event));
    (void)relaxed(real, &mode);
    if (answer == cudaErrorNotReady) {
        set_waiting(slot, RUNNING, 0);
    } else if (answer != cudaSuccess) {
        fail(slot);
    } else {
        write_sample(slot);
        release(slot);
    }
}

void ls_interpose_harvest(const ls_real *real)
{
    if (real->has_cuda) {
        each_slot(real, RUNNING, HARVESTED, 0, UINT64_MAX, harvest, ncclSuccess);
    }
}
