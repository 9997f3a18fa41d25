/* Device memory: one range of addresses with an unreachable page after every allocation, so that an
 * overrun faults at once. Fresh memory holds NaN bytes. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "emulate.h"

enum { PAGE = 4096, ALIGNMENT = 256 };
static const size_t RANGE = (size_t)64 << 30; /* addresses; memory is used when touched */

typedef struct block {
    struct block *next;
    char *start;
    size_t bytes;
    char *mapping;
    size_t length;
} block;

static struct {
    pthread_mutex_t lock;
    char *range;
    size_t used;
    block *device, *pinned;
    int open;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool guarded(void)
{
    const char *set = getenv("LS_EMULATED_GUARD");
    return set != NULL && strcmp(set, "1") == 0;
}

static void protect_all(int protection)
{
    for (const block *b = all.device; b != NULL; b = b->next) {
        mprotect(b->mapping, b->length, protection);
    }
}

void emulate_memory_open(void)
{
    pthread_mutex_lock(&all.lock);
    if (all.open++ == 0 && guarded()) {
        protect_all(PROT_READ | PROT_WRITE);
    }
    pthread_mutex_unlock(&all.lock);
}

void emulate_memory_close(void)
{
    pthread_mutex_lock(&all.lock);
    if (--all.open == 0 && guarded()) {
        protect_all(PROT_NONE);
    }
    pthread_mutex_unlock(&all.lock);
}

static struct {
    const char *text;
    struct sigaction before;
} forbidden;

static void forbidden_access(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    uintptr_t at = (uintptr_t)info->si_addr, range = (uintptr_t)all.range;
    if (at >= range && at < range + RANGE) {
        emulate_abort("%s", forbidden.text);
    }
    sigaction(SIGSEGV, &forbidden.before, NULL); /* happens again on return */
}

void emulate_memory_forbid(const char *text)
{
    struct sigaction action = {.sa_sigaction = forbidden_access, .sa_flags = SA_SIGINFO};
    pthread_mutex_lock(&all.lock);
    forbidden.text = text;
    sigaction(SIGSEGV, &action, &forbidden.before);
    protect_all(PROT_NONE);
    pthread_mutex_unlock(&all.lock);
}

void emulate_memory_permit(void)
{
    pthread_mutex_lock(&all.lock);
    protect_all(PROT_READ | PROT_WRITE);
    sigaction(SIGSEGV, &forbidden.before, NULL);
    pthread_mutex_unlock(&all.lock);
}

static bool inside(const block *list, const void *memory, size_t bytes)
{
    pthread_mutex_lock(&all.lock);
    bool found = false;
    for (const block *b = list; b != NULL && !found; b = b->next) {
        uintptr_t at = (uintptr_t)memory, start = (uintptr_t)b->start;
        found = at >= start && at - start <= b->bytes && bytes <= b->bytes - (at - start);
    }
    pthread_mutex_unlock(&all.lock);
    return found;
}

bool emulate_is_device(const void *memory, size_t bytes)
{
    return inside(all.device, memory, bytes);
}

bool emulate_is_pinned(const void *memory, size_t bytes)
{
    return inside(all.pinned, memory, bytes);
}

static cudaError_t take(block **list, void **out, size_t bytes)
{
    size_t length = (bytes + PAGE - 1) / PAGE * PAGE;
    block *one = calloc(1, sizeof *one);
    pthread_mutex_lock(&all.lock);
    if (all.range == NULL) {
        all.range =
            mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (one == NULL || all.range == MAP_FAILED || length + PAGE > RANGE - all.used) {
        all.range = all.range == MAP_FAILED ? NULL : all.range;
        pthread_mutex_unlock(&all.lock);
        free(one);
        return emulate_error(cudaErrorMemoryAllocation);
    }
    one->mapping = all.range + all.used;
    one->length = length;
    one->bytes = bytes;
    one->start = one->mapping + length - (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    all.used += length + PAGE;
    mprotect(one->mapping, length, PROT_READ | PROT_WRITE);
    memset(one->mapping, 0xff, length);
    one->next = *list;
    *list = one;
    if (list == &all.device && guarded() && all.open == 0) {
        mprotect(one->mapping, length, PROT_NONE);
    }
    pthread_mutex_unlock(&all.lock);
    *out = one->start;
    return cudaSuccess;
}

static cudaError_t give(block **list, void *memory)
{
    if (memory == NULL) {
        return cudaSuccess;
    }
    emulate_progress(); /* freeing waits for the device */
    pthread_mutex_lock(&all.lock);
    for (block **at = list; *at != NULL; at = &(*at)->next) {
        block *one = *at;
        if (one->start == memory) {
            *at = one->next;
            /* addresses are not reused: an access through an old pointer faults */
            madvise(one->mapping, one->length, MADV_DONTNEED);
            mprotect(one->mapping, one->length, PROT_NONE);
            free(one);
            pthread_mutex_unlock(&all.lock);
            return cudaSuccess;
        }
    }
    pthread_mutex_unlock(&all.lock);
    return emulate_error(cudaErrorInvalidValue);
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    cudaError_t error = emulate_not_capturing();
    if (error != cudaSuccess || bytes == 0) {
        *out = error == cudaSuccess ? NULL : *out;
        return error;
    }
    return take(&all.device, out, bytes);
}

cudaError_t cudaFree(void *memory)
{
    cudaError_t error = emulate_not_capturing();
    return error != cudaSuccess ? error : give(&all.device, memory);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    (void)flags;
    cudaError_t error = emulate_not_capturing();
    return error != cudaSuccess ? error : take(&all.pinned, out, bytes);
}

cudaError_t cudaFreeHost(void *memory)
{
    cudaError_t error = emulate_not_capturing();
    return error != cudaSuccess ? error : give(&all.pinned, memory);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *memory)
{
    memset(out, 0, sizeof *out);
    if (emulate_is_device(memory, 1)) {
        out->type = cudaMemoryTypeDevice;
        out->devicePointer = (void *)(uintptr_t)memory;
    } else if (emulate_is_pinned(memory, 1)) {
        out->type = cudaMemoryTypeHost;
        out->devicePointer = out->hostPointer = (void *)(uintptr_t)memory;
    } else {
        out->type = cudaMemoryTypeUnregistered;
    }
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *total = RANGE;
    *free_bytes = RANGE - all.used;
    return cudaSuccess;
}

/* ---- copies ---------------------------------------------------------------------------------- */

typedef struct copy {
    void *to;
    const void *from;
    size_t bytes;
    int value; /* if `from` is NULL: this byte */
    bool inlined;
    unsigned char data[];
} copy;

static bool run_copy(void *memory)
{
    copy *one = memory;
    if (one->inlined) {
        memcpy(one->to, one->data, one->bytes);
    } else if (one->from == NULL) {
        memset(one->to, one->value, one->bytes);
    } else {
        memmove(one->to, one->from, one->bytes);
    }
    return true;
}

static bool host_side(const void *memory, size_t bytes)
{
    uintptr_t at = (uintptr_t)memory, range = (uintptr_t)all.range;
    return memory != NULL && (emulate_is_pinned(memory, bytes) || all.range == NULL || at < range ||
                              at >= range + RANGE);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    bool to_device = emulate_is_device(to, bytes), from_device = emulate_is_device(from, bytes);
    bool right = (kind == cudaMemcpyHostToDevice && to_device && host_side(from, bytes)) ||
                 (kind == cudaMemcpyDeviceToHost && from_device && host_side(to, bytes)) ||
                 (kind == cudaMemcpyDeviceToDevice && from_device && to_device) ||
                 (kind == cudaMemcpyHostToHost && host_side(from, bytes) && host_side(to, bytes)) ||
                 (kind == cudaMemcpyDefault && (to_device || host_side(to, bytes)) &&
                  (from_device || host_side(from, bytes)));
    if (bytes == 0) {
        return cudaSuccess;
    }
    if (!right) {
        return emulate_error(cudaErrorInvalidValue);
    }
    bool pageable_from = !from_device && !emulate_is_pinned(from, bytes);
    bool pageable_to = !to_device && !emulate_is_pinned(to, bytes);
    enum cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(stream, &capturing);
    if (error == cudaSuccess && capturing != cudaStreamCaptureStatusNone &&
        (pageable_from || pageable_to)) {
        emulate_abort("a graph copies pageable memory of the host, whose bytes may have changed at "
                      "its launches");
    }
    copy *one = malloc(sizeof *one + (pageable_from ? bytes : 0));
    *one = (copy){.to = to, .from = from, .bytes = bytes, .inlined = pageable_from};
    if (pageable_from) {
        memcpy(one->data, from, bytes);
    }
    error = emulate_enqueue(stream, run_copy, one, sizeof *one + (pageable_from ? bytes : 0));
    free(one);
    if (error == cudaSuccess && pageable_to) {
        return cudaStreamSynchronize(stream);
    }
    return error;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, NULL);
    return error != cudaSuccess ? error : cudaStreamSynchronize(NULL);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    if (bytes == 0) {
        return cudaSuccess;
    }
    if (!emulate_is_device(to, bytes)) {
        return emulate_error(cudaErrorInvalidValue);
    }
    copy one = {.to = to, .bytes = bytes, .value = value};
    return emulate_enqueue(stream, run_copy, &one, sizeof one);
}

/* The host does not wait for it if the memory is the device's (CUDA runtime, "API synchronization
 * behavior"). */
cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    return cudaMemsetAsync(to, value, bytes, NULL);
}
