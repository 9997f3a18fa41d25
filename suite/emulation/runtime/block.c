/* Kernels: blocks run one after another, the threads of a block as fibers, both in an order that
 * can be changed, because results must not depend on it. A thread that never waits runs to its end
 * on the previous thread's fiber, so that kernels without barriers cost one call per thread; a
 * thread that waits keeps its fiber and the next thread gets another. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulate.h"
#include "fiber.h"
#include "stream.h"

enum { WARP = 32, MOST_THREADS = 1024, SHARED_BYTES = 48 << 10, MOST_ARRAYS = 32, GUARD = 64 };
enum { MOST_KERNELS = 256 };
enum { RUNS, WAITS_BLOCK, WAITS_WARP, WAITS_LAUNCH };
static const char *const wait_name[] = {"runs", "__syncthreads", "a warp's operation",
                                        "ls_launch_wait"};
static const char *const kind_name[] = {"__shfl_down_sync", "__shfl_xor_sync", "__shfl_sync",
                                        "__ballot_sync", "__syncwarp"};

typedef struct array {
    const void *key;
    unsigned char *data;
    size_t bytes;
} array;

/* How often each kernel was launched, in the order of their first launch. */
static struct launches {
    pthread_mutex_t lock;
    struct {
        char name[64]; /* a library with the kernel's own name may be closed */
        int64_t count;
    } kernel[MOST_KERNELS];
    int kernels;
} launches = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* One machine: kernels run one at a time, under `lock`. */
static struct machine {
    pthread_mutex_t lock;
    emulate_kernel *kernel;
    unsigned count; /* threads of a block */
    emulate_thread thread[MOST_THREADS];
    unsigned next, exited, arrived; /* next: the first that has not started */
    unsigned waited;                /* for the kernel before */
    unsigned ready[MOST_THREADS], ready_first, ready_count;
    fiber *scheduler, *worker[MOST_THREADS], *idle[MOST_THREADS];
    int worker_count, idle_count;
    bool backward, shuffled;
    uint64_t random;               /* shuffled: the state of the draws, over all kernels */
    unsigned begins[MOST_THREADS]; /* the order in which threads begin */
    unsigned char shared[SHARED_BYTES + 2 * GUARD * MOST_ARRAYS];
    size_t shared_used, shared_bytes;
    array array[MOST_ARRAYS];
    int array_count;
} machine = {.lock = PTHREAD_MUTEX_INITIALIZER};

emulate_kernel *emulate_running(void)
{
    return machine.kernel;
}

void emulate_abort(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const emulate_kernel *k = machine.kernel;
    if (k != NULL && k->now != NULL) {
        fprintf(stderr, "emulation: kernel %s, block (%u,%u,%u), thread (%u,%u,%u): %s\n", k->name,
                k->block_index.x, k->block_index.y, k->block_index.z, k->now->index.x,
                k->now->index.y, k->now->index.z, text);
    } else if (k != NULL) {
        fprintf(stderr, "emulation: kernel %s, block (%u,%u,%u): %s\n", k->name, k->block_index.x,
                k->block_index.y, k->block_index.z, text);
    } else {
        fprintf(stderr, "emulation: %s\n", text);
    }
    abort();
}

/* ---- order ----------------------------------------------------------------------------------- */

/* A whole number below `limit` (SplitMix64). */
static uint64_t draw(uint64_t limit)
{
    uint64_t z = machine.random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % limit;
}

static void read_order(void)
{
    static uint64_t seed; /* of the draws so far */
    const char *order = getenv("LS_EMULATED_ORDER");
    machine.backward = order != NULL && strcmp(order, "backward") == 0;
    machine.shuffled = order != NULL && order[0] >= '0' && order[0] <= '9';
    if (machine.shuffled && strtoull(order, NULL, 10) + 1 != seed) {
        seed = strtoull(order, NULL, 10) + 1;
        machine.random = seed;
    }
}

/* The numbers below `count` in the order asked for. */
static void fill_order(unsigned *number, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        number[i] = machine.backward ? count - 1 - i : i;
    }
    for (unsigned i = count; machine.shuffled && i > 1; i--) {
        unsigned k = (unsigned)draw(i), other = number[k];
        number[k] = number[i - 1];
        number[i - 1] = other;
    }
}

/* ---- shared memory --------------------------------------------------------------------------- */

void *emulate_shared(const void *key, size_t bytes, size_t alignment)
{
    for (int i = 0; i < machine.array_count; i++) {
        if (machine.array[i].key == key) {
            return machine.array[i].data;
        }
    }
    machine.shared_bytes += bytes;
    if (machine.array_count == MOST_ARRAYS || machine.shared_bytes > SHARED_BYTES) {
        emulate_abort("more than %d shared arrays or %d bytes of them", MOST_ARRAYS, SHARED_BYTES);
    }
    uintptr_t start = (uintptr_t)machine.shared + machine.shared_used + GUARD / 2;
    start = (start + alignment - 1) / alignment * alignment;
    unsigned char *data = (unsigned char *)start;
    machine.shared_used = (size_t)(data - machine.shared) + bytes + GUARD / 2;
    machine.array[machine.array_count++] = (array){key, data, bytes};
    return data;
}

static void check_shared(void)
{
    for (int i = 0; i < machine.array_count; i++) {
        const array *a = &machine.array[i];
        for (int g = 1; g <= GUARD / 4; g++) {
            if (a->data[-g] != 0xff || a->data[a->bytes + (size_t)g - 1] != 0xff) {
                emulate_abort("wrote outside a shared array of %zu bytes", a->bytes);
            }
        }
    }
    memset(machine.shared, 0xff, machine.shared_used + GUARD);
    machine.array_count = 0;
    machine.shared_used = machine.shared_bytes = 0;
}

/* ---- rendezvous ------------------------------------------------------------------------------ */

static void make_ready(emulate_thread *thread)
{
    thread->waits = RUNS;
    machine.ready[(machine.ready_first + machine.ready_count++) % MOST_THREADS] = thread->flat;
}

static void pause_here(void)
{
    emulate_thread *me = machine.kernel->now;
    fiber_switch(me->fiber, machine.scheduler);
}

void emulate_sync_threads(void)
{
    emulate_thread *me = machine.kernel->now;
    if (machine.exited > 0) {
        emulate_abort("__syncthreads after %u of %u threads have returned", machine.exited,
                      machine.count);
    }
    if (++machine.arrived < machine.count) {
        me->waits = WAITS_BLOCK;
        pause_here();
        return;
    }
    machine.arrived = 0;
    for (unsigned i = 0; i < machine.count; i++) {
        if (machine.thread[i].waits == WAITS_BLOCK) {
            make_ready(&machine.thread[i]);
        }
    }
}

/* All threads of a block wait before the first goes on, so that the memory of the device is taken
 * away once a block. */
void emulate_launch_wait(void)
{
    emulate_thread *me = machine.kernel->now;
    if (!machine.kernel->early || me->waited) {
        return;
    }
    me->waited = true;
    if (++machine.waited < machine.count) {
        me->waits = WAITS_LAUNCH;
        pause_here();
        return;
    }
    emulate_memory_permit();
    for (unsigned i = 0; i < machine.count; i++) {
        if (machine.thread[i].waits == WAITS_LAUNCH) {
            make_ready(&machine.thread[i]);
        }
    }
}

void emulate_launch_next(void)
{
    if (machine.kernel->early && !machine.kernel->now->waited) {
        emulate_abort("ls_launch_next before ls_launch_wait in a kernel that starts early");
    }
}

static unsigned source_lane(const emulate_thread *thread)
{
    unsigned lane = thread->lane, width = (unsigned)thread->width, first = lane / width * width;
    unsigned operand = (unsigned)thread->operand, from;
    switch (thread->kind) {
    case EMULATE_DOWN:
        from = lane + operand;
        return from < first + width ? from : lane;
    case EMULATE_XOR:
        from = lane ^ operand;
        return from < first + width ? from : lane;
    default:
        return first + operand % width;
    }
}

static void resolve(emulate_thread *warp, const emulate_thread *me)
{
    unsigned ballot = 0;
    for (unsigned lane = 0; lane < WARP; lane++) {
        if ((me->mask >> lane & 1) != 0 && warp[lane].bits != 0) {
            ballot |= 1u << lane;
        }
    }
    for (unsigned lane = 0; lane < WARP; lane++) {
        if ((me->mask >> lane & 1) == 0) {
            continue;
        }
        if (me->kind == EMULATE_BALLOT) {
            warp[lane].result = ballot;
        } else if (me->kind != EMULATE_SYNC_WARP) {
            unsigned from = source_lane(&warp[lane]);
            if ((me->mask >> from & 1) == 0) {
                emulate_abort("%s reads lane %u, which is not in mask %08x", kind_name[me->kind],
                              from, me->mask);
            }
            warp[lane].result = warp[from].bits;
        }
    }
}

uint64_t emulate_warp(int kind, unsigned mask, uint64_t bits, int operand, int width)
{
    emulate_thread *me = machine.kernel->now;
    emulate_thread *warp = me - me->lane;
    if ((mask >> me->lane & 1) == 0) {
        emulate_abort("%s: lane %u is not in its own mask %08x", kind_name[kind], me->lane, mask);
    }
    me->kind = kind;
    me->mask = mask;
    me->bits = bits;
    me->operand = operand;
    me->width = width;
    me->waits = WAITS_WARP;
    bool complete = true;
    for (unsigned lane = 0; lane < WARP; lane++) {
        if ((mask >> lane & 1) == 0) {
            continue;
        }
        const emulate_thread *other = &warp[lane];
        if (me->flat - me->lane + lane >= machine.count || other->exited) {
            emulate_abort("%s: lane %u of mask %08x %s", kind_name[kind], lane, mask,
                          other->exited ? "has returned" : "does not exist");
        }
        if (other->waits == WAITS_WARP && (other->kind != kind || other->mask != mask)) {
            emulate_abort("%s with mask %08x meets lane %u in %s with mask %08x", kind_name[kind],
                          mask, lane, kind_name[other->kind], other->mask);
        }
        complete = complete && other->waits == WAITS_WARP;
    }
    if (!complete) {
        pause_here();
        return me->result;
    }
    resolve(warp, me);
    for (unsigned lane = 0; lane < WARP; lane++) {
        if ((mask >> lane & 1) != 0 && &warp[lane] != me) {
            make_ready(&warp[lane]);
        }
    }
    me->waits = RUNS;
    return me->result;
}

/* ---- threads --------------------------------------------------------------------------------- */

static void worker(void *argument)
{
    fiber *me = machine.worker[(intptr_t)argument];
    for (;;) {
        while (machine.next < machine.count) {
            emulate_thread *thread = &machine.thread[machine.begins[machine.next++]];
            thread->fiber = me;
            machine.kernel->now = thread;
            machine.kernel->run(machine.kernel->arguments);
            if (machine.kernel->early && !machine.kernel->now->waited) {
                emulate_abort("returns without ls_launch_wait from a kernel that starts early");
            }
            machine.kernel->now->exited = true;
            machine.exited++;
            if (machine.arrived > 0) {
                emulate_abort("returns while %u threads wait in __syncthreads", machine.arrived);
            }
            if (machine.ready_count > 0) {
                break; /* prefer waiting threads: fewer fibers, or draw again */
            }
        }
        machine.idle[machine.idle_count++] = me;
        fiber_switch(me, machine.scheduler);
    }
}

static fiber *free_worker(void)
{
    if (machine.idle_count == 0) {
        int index = machine.worker_count++;
        machine.worker[index] = fiber_create(worker, (void *)(intptr_t)index);
        return machine.worker[index];
    }
    return machine.idle[--machine.idle_count];
}

static void stuck(void)
{
    for (unsigned i = 0; i < machine.count; i++) {
        emulate_thread *thread = &machine.thread[i];
        if (!thread->exited) {
            machine.kernel->now = thread;
            emulate_abort("deadlock: waits in %s, with %u of %u threads returned and %u in "
                          "__syncthreads",
                          thread->waits == WAITS_WARP ? kind_name[thread->kind]
                                                      : wait_name[thread->waits],
                          machine.exited, machine.count, machine.arrived);
        }
    }
}

/* Shuffled: any thread that may go on is the next. */
static void take_ready(void)
{
    if (machine.shuffled) {
        unsigned *first = &machine.ready[machine.ready_first],
                 *other =
                     &machine
                          .ready[(machine.ready_first + draw(machine.ready_count)) % MOST_THREADS],
                 flat = *other;
        *other = *first;
        *first = flat;
    }
}

static void run_block(void)
{
    const dim3 size = machine.kernel->block;
    for (unsigned i = 0; i < machine.count; i++) {
        machine.thread[i] = (emulate_thread){
            .index = {i % size.x, i / size.x % size.y, i / size.x / size.y},
            .flat = i,
            .warp = i / WARP,
            .lane = i % WARP,
        };
    }
    machine.next = machine.exited = machine.arrived = machine.waited = 0;
    machine.ready_first = machine.ready_count = 0;
    fill_order(machine.begins, machine.count);
    if (machine.kernel->early) {
        emulate_memory_forbid("touches memory of the device before ls_launch_wait in a kernel that "
                              "starts early");
    }
    while (machine.exited < machine.count) {
        bool begins = machine.next < machine.count;
        if (machine.ready_count > 0 && !(machine.shuffled && begins && draw(2) == 0)) {
            take_ready();
            emulate_thread *thread = &machine.thread[machine.ready[machine.ready_first]];
            machine.ready_first = (machine.ready_first + 1) % MOST_THREADS;
            machine.ready_count--;
            machine.kernel->now = thread;
            fiber_switch(machine.scheduler, thread->fiber);
        } else if (begins) {
            fiber_switch(machine.scheduler, free_worker());
        } else {
            stuck();
        }
    }
    machine.kernel->now = NULL;
    check_shared();
}

/* ---- launches -------------------------------------------------------------------------------- */

typedef struct launch {
    emulate_kernel kernel;
    _Alignas(16) unsigned char arguments[];
} launch;

static bool run_kernel(void *memory)
{
    launch *one = memory;
    pthread_mutex_lock(&machine.lock);
    emulate_kernel kernel = one->kernel;
    kernel.arguments = one->arguments;
    read_order();
    machine.kernel = &kernel;
    machine.count = kernel.block.x * kernel.block.y * kernel.block.z;
    if (machine.scheduler == NULL) {
        machine.scheduler = fiber_of_caller();
        machine.shared_used = sizeof machine.shared - GUARD;
        check_shared();
    }
    uint64_t blocks = (uint64_t)kernel.grid.x * kernel.grid.y * kernel.grid.z;
    unsigned *order = malloc(blocks * sizeof *order);
    if (order == NULL || blocks > UINT32_MAX) {
        emulate_abort("no memory for the order of %llu blocks", (unsigned long long)blocks);
    }
    fill_order(order, (unsigned)blocks);
    for (uint64_t b = 0; b < blocks; b++) {
        uint64_t at = order[b];
        kernel.block_index.x = (unsigned)(at % kernel.grid.x);
        kernel.block_index.y = (unsigned)(at / kernel.grid.x % kernel.grid.y);
        kernel.block_index.z = (unsigned)(at / kernel.grid.x / kernel.grid.y);
        run_block();
    }
    free(order);
    machine.kernel = NULL;
    pthread_mutex_unlock(&machine.lock);
    return true;
}

int64_t emulate_launches(const char *name)
{
    int64_t count = 0;
    pthread_mutex_lock(&launches.lock);
    for (int i = 0; i < launches.kernels; i++) {
        bool asked = name == NULL || strcmp(launches.kernel[i].name, name) == 0;
        count += asked ? launches.kernel[i].count : 0;
    }
    pthread_mutex_unlock(&launches.lock);
    return count;
}

static void count_launch(const char *name)
{
    int i = 0;
    pthread_mutex_lock(&launches.lock);
    while (i < launches.kernels && strcmp(launches.kernel[i].name, name) != 0) {
        i++;
    }
    if (i == MOST_KERNELS || strlen(name) >= sizeof launches.kernel[i].name) {
        emulate_abort("kernel %s: a long name, or more than %d kernels", name, MOST_KERNELS);
    }
    if (i == launches.kernels) {
        strcpy(launches.kernel[launches.kernels++].name, name);
    }
    launches.kernel[i].count++;
    pthread_mutex_unlock(&launches.lock);
}

cudaError_t emulate_launch(const char *name, bool early, dim3 grid, dim3 block, cudaStream_t stream,
                           void (*run)(const void *arguments), const void *arguments, size_t bytes)
{
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (threads == 0 || threads > MOST_THREADS || block.z > 64 || grid.x == 0 || grid.y == 0 ||
        grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
        return emulate_error(cudaErrorInvalidConfiguration);
    }
    count_launch(name);
    launch *one = malloc(sizeof *one + bytes);
    if (one == NULL) {
        return emulate_error(cudaErrorMemoryAllocation);
    }
    one->kernel =
        (emulate_kernel){.name = name, .grid = grid, .block = block, .run = run, .early = early};
    memcpy(one->arguments, arguments, bytes);
    cudaError_t error =
        emulate_enqueue_kernel(stream, name, early, run_kernel, one, sizeof *one + bytes);
    free(one);
    return error;
}
