/* Buffers from ncclMemAlloc, registered with the communicator so that reductions run without NCCL's
 * own copy (its user guide, "User buffer registration"). Registered and other buffers must not be
 * mixed in one operation: a registration is kept only if all ranks succeeded. */
#include "nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"

/* Returns NULL once registered, else the reason. */
static const char *register_memory(ls_comm *comm, void *memory, int64_t bytes)
{
    ls_nccl_registration *entry = calloc(1, sizeof *entry);
    if (entry == NULL) {
        return "no memory on the host";
    }
    ncclResult_t result = ncclCommRegister(comm->native, memory, (size_t)bytes, &entry->handle);
    if (result != ncclSuccess ||
        entry->handle == NULL) { /* registration is switched off: success without a handle */
        free(entry);
        return result != ncclSuccess ? ncclGetErrorString(result) : "NCCL skipped it";
    }
    entry->memory = memory;
    entry->next = comm->registered;
    comm->registered = entry;
    return NULL;
}

static void deregister_newest(ls_comm *comm)
{
    ls_nccl_registration *entry = comm->registered;
    comm->registered = entry->next;
    (void)ls_nccl_check(comm, ncclCommDeregister(comm->native, entry->handle),
                        "ncclCommDeregister");
    free(entry);
}

void ls_nccl_memory_deregister(ls_comm *comm)
{
    while (comm->registered != NULL) {
        deregister_newest(comm);
    }
}

/* Exchanges all ranks' answers: *refused is the first rank that refused, with its reason in `why`,
 * or -1. */
static ls_status agree(ls_comm *comm, const char *mine, int *refused, char *why, size_t why_bytes)
{
    char key[96];
    int number = comm->allocations++;
    *refused = -1;
    if (comm->world == 1) {
        *refused = mine[0] != '\0' ? 0 : -1;
        snprintf(why, why_bytes, "%s", mine);
        return LS_OK;
    }
    snprintf(key, sizeof key, "nccl/%s/memory/%d/%d", comm->name, number, comm->rank);
    LS_TRY(ls_store_set(comm->store, key, mine, strlen(mine)));
    for (int rank = 0; rank < comm->world && *refused < 0; rank++) {
        void *value = NULL;
        size_t bytes = 0;
        snprintf(key, sizeof key, "nccl/%s/memory/%d/%d", comm->name, number, rank);
        LS_TRY(ls_store_get(comm->store, key, comm->timeout_s, &value, &bytes));
        if (bytes > 0) {
            *refused = rank;
            snprintf(why, why_bytes, "%s", (const char *)value);
        }
        free(value);
    }
    return LS_OK;
}

/* cudaMemset does not block the host, and our streams do not wait for the default one, so the host
 * waits until the memory is zero. */
static cudaError_t clear(void *memory, int64_t bytes)
{
    cudaError_t error = cudaMemsetAsync(memory, 0, (size_t)bytes, NULL);
    return error != cudaSuccess ? error : cudaStreamSynchronize(NULL);
}

ls_status ls_nccl_memory_alloc(ls_comm *comm, int64_t bytes, const char *purpose, void **out)
{
    void *memory = NULL;
    char why[160] = "";
    int refused = -1;
    const char *mine = "";
    LS_TRY(ls_nccl_poll(comm));
    ncclResult_t result = ncclMemAlloc(&memory, (size_t)bytes);
    if (result != ncclSuccess) {
        mine = ncclGetErrorString(result);
        memory = NULL;
        (void)cudaGetLastError(); /* reported here, so it must not surface at the next launch */
    }
    cudaError_t zeroed = memory == NULL ? cudaSuccess : clear(memory, bytes);
    if (zeroed != cudaSuccess) {
        (void)ncclMemFree(memory);
        return ls_nccl_check_cuda(zeroed, "clear fresh memory");
    }
    if (memory != NULL) {
        const char *refusal = register_memory(comm, memory, bytes);
        mine = refusal != NULL ? refusal : "";
    }
    bool registered = mine[0] == '\0';
    ls_status status = agree(comm, mine, &refused, why, sizeof why);
    if (refused >= 0 && comm->rank == refused) {
        ls_log_note("nccl '%s': %lld bytes of %s are not registered: %s", comm->name,
                    (long long)bytes, purpose, why);
    }
    if (registered && (refused >= 0 || status != LS_OK)) {
        deregister_newest(comm);
    }
    if (status != LS_OK) {
        ls_nccl_memory_free(memory);
        return status;
    }
    if (memory == NULL) {
        return LS_ERR_UNSUPPORTED;
    }
    *out = memory;
    return LS_OK;
}

void ls_nccl_memory_free(void *memory)
{
    if (memory != NULL) {
        ncclResult_t result = ncclMemFree(memory);
        if (result != ncclSuccess) {
            ls_log_warn("nccl: ncclMemFree: %s", ncclGetErrorString(result));
        }
    }
}
