/* Host memory on 2 MiB pages if the system has them: a training step walks through hundreds of
 * megabytes, and with 4 KiB pages part of its time is spent on address translation. */
#include "backend.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/core/log.h"

/* Each block is its own mapping, with its length in the 64 bytes before it. */
enum { HEADER = 64, HUGE_PAGE = 2 << 20 };

typedef struct header {
    void *mapping;
    size_t length;
} header;

ls_status ls_memory_take(int64_t bytes, const char *purpose, void **out)
{
    size_t length = (size_t)bytes + HEADER;
    bool huge = length >= 2 * (size_t)HUGE_PAGE;
    size_t slack = huge ? HUGE_PAGE : 0;
    char *mapping = bytes < 0 ? MAP_FAILED
                              : mmap(NULL, length + slack, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) {
        return ls_log_fail(LS_ERR_INFRA, "no memory for %s: %lld bytes: %s", purpose,
                           (long long)bytes, bytes < 0 ? "negative" : strerror(errno));
    }
    char *start = mapping;
    if (huge) {
        /* The payload's pages, not the header, should start a huge page; madvise may fail, because
         * small pages work too. */
        uintptr_t aligned = ((uintptr_t)mapping + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        start = mapping + (aligned - (uintptr_t)mapping);
        (void)madvise(start, length, MADV_HUGEPAGE);
    }
    header h = {mapping, length + slack};
    memcpy(start, &h, sizeof h);
    *out = start + HEADER;
    return LS_OK;
}

void ls_memory_give(void *memory)
{
    if (memory != NULL) {
        header h;
        memcpy(&h, (char *)memory - HEADER, sizeof h);
        munmap(h.mapping, h.length);
    }
}
