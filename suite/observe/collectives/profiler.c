/* An NCCL profiler plugin: writes every collective and point-to-point call of this process to
 * LS_OBSERVE_DIR/collectives.rank<k>.jsonl (../events.md, "Collectives underneath"). NCCL loads it
 * by NCCL_PROFILER_PLUGIN and calls it from the user's threads and its own.
 *
 * By default only calls are seen (the events COLLECTIVE and P2P), at which NCCL does nothing that
 * it would not do without a plugin. LS_OBSERVE_KERNELS=1 asks for the events of kernels, too: NCCL
 * then posts work to its proxy thread for every call, adds a host function to graphs (NCCL issue
 * 1805), which costs time, and some versions crash where /dev/shm is too small for that (2326).
 * Only they show when a call ran and for how long it has been stalled.
 *
 * The calls of a recorded graph show once, when it is recorded, or at every launch: NCCL decides
 * (the same issue). Its sequence numbers do not count them either. So no number of calls is
 * compared between ranks from here; `sequence` says which calls correspond. */
#include "profiler_abi.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "journal.h"

enum { TASKS = 4096, WORD = 24 };

/* A communicator. NCCL may report kernels of it until the process ends: it is not freed. */
typedef struct context {
    uint64_t id;
    int rank;
    uint64_t calls;
} context;

/* A call whose end has not been seen yet. */
typedef struct task {
    uint64_t generation; /* 0: never used */
    bool open, enqueued, captured, p2p, stall_reported;
    context *owner;
    uint64_t number, sequence, count;
    int root, channels, kernels_started, kernels_stopped;
    char function[WORD], type[WORD], algorithm[WORD], protocol[WORD];
    int64_t at_ns, enqueued_ns, kernel_ns, kernel_end_ns; /* of the host */
    uint64_t gpu_ns, gpu_end_ns;                          /* of the device, 0: not given */
} task;

/* NCCL gives a plugin no place of its own that spans communicators, and one file holds them all. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool writer, over;
    bool kernels;
    uint64_t next; /* of tasks */
    int64_t calls, stall_ns;
    ls_journal journal;
    task task[TASKS];
} process_state = {.lock = PTHREAD_MUTEX_INITIALIZER,
                   .ended = PTHREAD_COND_INITIALIZER,
                   .journal = LS_JOURNAL_INIT};

/* ---- handles --------------------------------------------------------------------------------- */

/* A handle is a number, never a pointer, so that a stale one is recognised; NCCL 2.28 has been seen
 * to use handles after their stop (issue 1992). 1 and 2
 * are calls of the user (2: into a graph); else generation, task, and channel + 1 of a kernel. */
enum { HANDLE_CALL = 1, HANDLE_CAPTURED = 2, TASK_SHIFT = 12, GENERATION_SHIFT = 24 };
_Static_assert(sizeof(void *) == 8, "a handle holds a task and its generation");
_Static_assert(TASKS <= 1 << (GENERATION_SHIFT - TASK_SHIFT), "a handle holds the task's index");

static void *handle_of(const task *of, int channel)
{
    uintptr_t index = (uintptr_t)(of - process_state.task);
    return (void *)(of->generation << GENERATION_SHIFT | index << TASK_SHIFT |
                    (uintptr_t)(channel + 1));
}

/* The task of a handle, NULL if it is none or its place has been given to another. */
static task *task_of(const void *handle)
{
    uintptr_t number = (uintptr_t)handle;
    uintptr_t index = (number >> TASK_SHIFT) & ((1 << (GENERATION_SHIFT - TASK_SHIFT)) - 1);
    if (number >> GENERATION_SHIFT == 0 || index >= TASKS) {
        return NULL;
    }
    task *of = &process_state.task[index];
    return of->generation == number >> GENERATION_SHIFT ? of : NULL;
}

static bool is_kernel(const void *handle)
{
    return ((uintptr_t)handle & ((1 << TASK_SHIFT) - 1)) != 0;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* NCCL's word of a function or type in that of the events; a word that is not known stays. */
static const char *word_of(const char *word)
{
    static const char *const words[][2] = {{"AllReduce", "all_reduce"},
                                           {"ReduceScatter", "reduce_scatter"},
                                           {"AllGather", "all_gather"},
                                           {"Broadcast", "broadcast"},
                                           {"Reduce", "reduce"},
                                           {"Send", "send"},
                                           {"Recv", "recv"},
                                           {"AlltoAll", "all_to_all"},
                                           {"Gather", "gather"},
                                           {"Scatter", "scatter"},
                                           {"ncclInt8", "i8"},
                                           {"ncclInt32", "i32"},
                                           {"ncclUint32", "u32"},
                                           {"ncclInt64", "i64"},
                                           {"ncclUint64", "u64"},
                                           {"ncclFloat16", "f16"},
                                           {"ncclFloat32", "f32"},
                                           {"ncclFloat64", "f64"},
                                           {"ncclBfloat16", "bf16"},
                                           {"ncclFloat8e4m3", "f8e4m3"},
                                           {"ncclFloat8e5m2", "f8e5m2"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (word != NULL && strcmp(word, words[i][0]) == 0) {
            return words[i][1];
        }
    }
    return word;
}

/* Writes the call and frees its place; with the lock held. */
static void close_task(task *of)
{
    char ran[128] = "";
    if (of->kernels_stopped > 0 && of->gpu_end_ns != 0) {
        snprintf(ran, sizeof ran, ",\"gpu_ns\":[%" PRIu64 ",%" PRIu64 "]", of->gpu_ns,
                 of->gpu_end_ns);
    } else if (of->kernels_stopped > 0) {
        snprintf(ran, sizeof ran, ",\"ran_ns\":[%" PRId64 ",%" PRId64 "]", of->kernel_ns,
                 of->kernel_end_ns);
    }
    of->open = false;
    ls_journal_add(
        &process_state.journal, false,
        "{\"event\":\"%s\",\"comm\":\"%016" PRIx64 "\",\"comm_rank\":%d,"
        "\"number\":%" PRIu64 ",\"sequence\":%" PRIu64 ",\"op\":\"%s\",\"elements\":%" PRIu64
        ",\"type\":\"%s\",\"%s\":%d,\"algorithm\":\"%s\",\"protocol\":\"%s\","
        "\"channels\":%d,\"captured\":%s,\"at_ns\":%" PRId64 ",\"enqueued_ns\":%" PRId64 "%s}",
        of->p2p ? "p2p" : "collective", of->owner->id, of->owner->rank, of->number, of->sequence,
        of->function, of->count, of->type, of->p2p ? "peer" : "root", of->root, of->algorithm,
        of->protocol, of->channels, of->captured ? "true" : "false", of->at_ns, of->enqueued_ns,
        ran);
}

/* A kernel has one event for each channel of its call. */
static bool is_over(const task *of)
{
    return of->enqueued && (!process_state.kernels ||
                            (of->kernels_stopped > 0 && of->kernels_stopped >= of->channels));
}

/* A call whose kernel has started and not ended for so long waits for another rank. */
static void report_stalls(int64_t now_ns)
{
    for (int i = 0; i < TASKS; i++) {
        task *of = &process_state.task[i];
        if (of->open && !of->stall_reported && of->kernels_started > of->kernels_stopped &&
            now_ns - of->kernel_ns > process_state.stall_ns) {
            of->stall_reported = true;
            ls_journal_add(&process_state.journal, true,
                           "{\"event\":\"stall\",\"comm\":\"%016" PRIx64
                           "\",\"comm_rank\":%d,\"number\":%" PRIu64 ",\"sequence\":%" PRIu64
                           ",\"op\":\"%s\",\"elements\":%" PRIu64 ",\"running_s\":%.1f}",
                           of->owner->id, of->owner->rank, of->number, of->sequence, of->function,
                           of->count, (double)(now_ns - of->kernel_ns) * 1e-9);
        }
    }
}

/* Writes once a second what has come, so that a killed process leaves all but its last second. */
static void *write_regularly(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&process_state.lock);
    while (!process_state.over) {
        struct timespec until;
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1;
        (void)pthread_cond_timedwait(&process_state.ended, &process_state.lock, &until);
        report_stalls(ls_journal_now_ns());
        pthread_mutex_unlock(&process_state.lock);
        ls_journal_flush(&process_state.journal);
        pthread_mutex_lock(&process_state.lock);
    }
    pthread_mutex_unlock(&process_state.lock);
    return NULL;
}

/* With the lock held. The thread takes no signal of the user's. */
static void start_writer(void)
{
    sigset_t all, before;
    pthread_t thread;
    (void)sigfillset(&all);
    if (!process_state.writer && pthread_sigmask(SIG_SETMASK, &all, &before) == 0) {
        process_state.writer = pthread_create(&thread, NULL, write_regularly, NULL) == 0;
        if (process_state.writer) {
            (void)pthread_detach(thread);
        }
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
}

/* The library is linked with -z nodelete: NCCL's dlclose after the last communicator leaves it, and
 * this runs when the process exits. */
__attribute__((destructor)) static void write_end(void)
{
    if (!ls_journal_is_open(&process_state.journal)) {
        return;
    }
    pthread_mutex_lock(&process_state.lock);
    process_state.over = true;
    for (int i = 0; i < TASKS; i++) {
        if (process_state.task[i].open) {
            close_task(&process_state.task[i]);
        }
    }
    pthread_cond_signal(&process_state.ended);
    pthread_mutex_unlock(&process_state.lock);
    ls_journal_add(&process_state.journal, true,
                   "{\"event\":\"end\",\"calls\":%" PRId64 ",\"dropped\":%" PRId64
                   ",\"at_ns\":%" PRId64 "}",
                   process_state.calls, process_state.journal.dropped, ls_journal_now_ns());
    ls_journal_flush(&process_state.journal);
}

/* ---- the plugin ------------------------------------------------------------------------------ */

static int init(void **out, uint64_t id, int *mask, const char *name, int nodes, int ranks,
                int rank, int api)
{
    char members[32], word[64];
    *mask = 0;
    *out = NULL; /* NCCL does not finalize what has none */
    snprintf(members, sizeof members, ",\"api\":%d", api);
    if (!ls_journal_open(&process_state.journal, "collectives", rank, members)) {
        return 0;
    }
    context *made = calloc(1, sizeof *made);
    if (made == NULL) {
        ls_journal_end_by(&process_state.journal, "no memory");
        return 0;
    }
    *made = (context){.id = id, .rank = rank};
    ls_journal_word(word, sizeof word, name);
    pthread_mutex_lock(&process_state.lock);
    process_state.kernels = ls_journal_setting("LS_OBSERVE_KERNELS", 0, 1, 0) == 1;
    process_state.stall_ns = ls_journal_stall_s() * 1000000000;
    start_writer();
    pthread_mutex_unlock(&process_state.lock);
    ls_journal_add(&process_state.journal, true,
                   "{\"event\":\"comm\",\"comm\":\"%016" PRIx64
                   "\",\"comm_rank\":%d,\"world\":%d,\"nodes\":%d,\"name\":\"%s\"}",
                   id, rank, ranks, nodes, word);
    *mask =
        LS_PROFILER_COLLECTIVE | LS_PROFILER_P2P | (process_state.kernels ? LS_PROFILER_KERNEL : 0);
    *out = made;
    return 0;
}

/* The next place in turn, with the lock held: a call in it that has not ended is written as far as
 * it was seen. */
static task *take_task(context *owner)
{
    task *of = &process_state.task[process_state.next % TASKS];
    uint64_t generation = process_state.next / TASKS + 1;
    if (of->open) {
        close_task(of);
    }
    process_state.next++;
    process_state.calls++;
    *of = (task){.generation = generation,
                 .open = true,
                 .owner = owner,
                 .number = owner->calls++,
                 .at_ns = ls_journal_now_ns()};
    return of;
}

/* A call of the user's, of a collective or (`p2p`) to a peer. */
static void *start_call(context *owner, bool captured, const ls_profiler_collective *c, bool p2p)
{
    pthread_mutex_lock(&process_state.lock);
    task *of = take_task(owner);
    of->p2p = p2p;
    of->captured = captured;
    of->sequence = c->sequence;
    of->count = c->count;
    of->root = c->root;
    of->channels = c->channels;
    ls_journal_word(of->function, sizeof of->function, word_of(c->function));
    ls_journal_word(of->type, sizeof of->type, word_of(c->type));
    ls_journal_word(of->algorithm, sizeof of->algorithm, c->algorithm);
    ls_journal_word(of->protocol, sizeof of->protocol, c->protocol);
    void *handle = handle_of(of, -1);
    pthread_mutex_unlock(&process_state.lock);
    return handle;
}

static void *start_p2p(context *owner, bool captured, const ls_profiler_p2p *p)
{
    const ls_profiler_collective call = {.function = p->function,
                                         .count = p->count,
                                         .root = p->peer,
                                         .type = p->type,
                                         .channels = p->channels};
    return start_call(owner, captured, &call, true);
}

static void *start_kernel(const void *parent, const ls_profiler_kernel *kernel)
{
    void *handle = NULL;
    pthread_mutex_lock(&process_state.lock);
    task *of = task_of(parent);
    if (of != NULL && of->open) {
        of->kernel_ns = of->kernels_started == 0 ? ls_journal_now_ns() : of->kernel_ns;
        of->kernels_started++;
        if (kernel->gpu_ns != 0 && (of->gpu_ns == 0 || kernel->gpu_ns < of->gpu_ns)) {
            of->gpu_ns = kernel->gpu_ns;
        }
        handle = handle_of(of, kernel->channel);
    }
    pthread_mutex_unlock(&process_state.lock);
    return handle;
}

static int stop(void *handle)
{
    pthread_mutex_lock(&process_state.lock);
    task *of = task_of(handle);
    if (of != NULL && of->open) {
        if (is_kernel(handle)) {
            of->kernels_stopped++;
            of->kernel_end_ns = ls_journal_now_ns();
        } else {
            of->enqueued = true;
            of->enqueued_ns = ls_journal_now_ns();
        }
        if (is_over(of)) {
            close_task(of);
        }
    }
    pthread_mutex_unlock(&process_state.lock);
    return 0;
}

static int record(void *handle, int state, ls_profiler_state *arguments)
{
    if (state != LS_PROFILER_KERNEL_STOPPED || arguments == NULL || !is_kernel(handle)) {
        return 0;
    }
    pthread_mutex_lock(&process_state.lock);
    task *of = task_of(handle);
    if (of != NULL && of->open && arguments->gpu_ns > of->gpu_end_ns) {
        of->gpu_end_ns = arguments->gpu_ns;
    }
    pthread_mutex_unlock(&process_state.lock);
    return 0;
}

static int finalize(void *ended)
{
    const context *of = ended;
    pthread_mutex_lock(&process_state.lock);
    for (int i = 0; i < TASKS; i++) {
        if (process_state.task[i].open && process_state.task[i].owner == of) {
            close_task(&process_state.task[i]);
        }
    }
    pthread_mutex_unlock(&process_state.lock);
    ls_journal_add(&process_state.journal, true,
                   "{\"event\":\"comm_end\",\"comm\":\"%016" PRIx64
                   "\",\"comm_rank\":%d,\"calls\":%" PRIu64 "}",
                   of->id, of->rank, of->calls);
    ls_journal_flush(&process_state.journal);
    return 0;
}

/* Events that were not asked for come, too, as parents of those that were: they get no handle. */
static int start_v4(void *owner, void **handle, ls_profiler_event_v4 *event)
{
    *handle = event->type == LS_PROFILER_COLLECTIVE
                  ? start_call(owner, false, &event->of.collective, false)
              : event->type == LS_PROFILER_P2P    ? start_p2p(owner, false, &event->of.p2p)
              : event->type == LS_PROFILER_KERNEL ? start_kernel(event->parent, &event->of.kernel)
                                                  : NULL;
    return 0;
}

static void *handle_of_call(bool captured)
{
    return (void *)(uintptr_t)(captured ? HANDLE_CAPTURED : HANDLE_CALL);
}

static int start_v5(void *owner, void **handle, ls_profiler_event_v5 *event)
{
    bool captured = (uintptr_t)event->parent == HANDLE_CAPTURED;
    *handle = event->type == LS_PROFILER_COLLECTIVE
                  ? start_call(owner, captured, &event->of.collective, false)
              : event->type == LS_PROFILER_P2P    ? start_p2p(owner, captured, &event->of.p2p)
              : event->type == LS_PROFILER_KERNEL ? start_kernel(event->parent, &event->of.kernel)
              : event->type == LS_PROFILER_COLLECTIVE_CALL
                  ? handle_of_call(event->of.collective_call.captured)
              : event->type == LS_PROFILER_P2P_CALL ? handle_of_call(event->of.p2p_call.captured)
                                                    : NULL;
    return 0;
}

static int init_v4(void **out, int *mask, const char *name, uint64_t id, int nodes, int ranks,
                   int rank, ls_profiler_log *log)
{
    (void)log;
    return init(out, id, mask, name, nodes, ranks, rank, 4);
}

static int init_v5(void **out, uint64_t id, int *mask, const char *name, int nodes, int ranks,
                   int rank, ls_profiler_log *log)
{
    (void)log;
    return init(out, id, mask, name, nodes, ranks, rank, 5);
}

extern const ls_profiler_v4 ncclProfiler_v4;
extern const ls_profiler_v5 ncclProfiler_v5;
LS_JOURNAL_EXPORT const ls_profiler_v4 ncclProfiler_v4 = {"lockstep", init_v4, start_v4,
                                                          stop,       record,  finalize};
LS_JOURNAL_EXPORT const ls_profiler_v5 ncclProfiler_v5 = {"lockstep", init_v5, start_v5,
                                                          stop,       record,  finalize};
