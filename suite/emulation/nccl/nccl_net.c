/* The ranks of a communicator share one block of memory: the members, and a ring of bytes from each
 * rank to each other. It has no name that could be left behind; it is found through the process
 * that created it, which keeps it open. A lock on a byte of its file shows that a rank lives; the
 * system drops it however the process ends. */
#include "nccl_emulated.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct net_segment {
    net_member member[NET_RANKS_MAX];
    net_channel channel[]; /* [from * world + to] */
} net_segment;

static bool lock_byte(int file, int rank, int type)
{
    struct flock lock = {.l_type = (short)type, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    return fcntl(file, F_SETLK, &lock) == 0;
}

bool net_create(char *name, size_t name_bytes)
{
    int file = memfd_create("emulated-nccl", MFD_CLOEXEC);
    return file >= 0 &&
           snprintf(name, name_bytes, "/proc/%d/fd/%d", (int)getpid(), file) < (int)name_bytes;
}

bool net_join(net *to, const char *name, int rank, int world, const net_member *me)
{
    size_t bytes = sizeof(net_segment) + (size_t)(world * world) * sizeof(net_channel);
    int file = open(name, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        return false;
    }
    void *memory = MAP_FAILED;
    if (ftruncate(file, (off_t)bytes) == 0 && lock_byte(file, rank, F_WRLCK)) {
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    if (memory == MAP_FAILED) {
        int error = errno;
        close(file);
        errno = error;
        return false;
    }
    *to = (net){.rank = rank, .world = world, .file = file, .segment = memory, .bytes = bytes};
    net_member *mine = &to->segment->member[rank];
    mine->host = me->host;
    memcpy(mine->device, me->device, sizeof mine->device);
    atomic_store(&mine->state, NET_JOINED);
    return true;
}

bool net_all_joined(net *of)
{
    for (int rank = 0; rank < of->world; rank++) {
        if (atomic_load(&of->segment->member[rank].state) == NET_ABSENT) {
            return false;
        }
    }
    return true;
}

const net_member *net_member_of(const net *of, int rank)
{
    return &of->segment->member[rank];
}

void net_set_state(net *of, net_state state)
{
    atomic_store(&of->segment->member[of->rank].state, (int)state);
}

bool net_is_lost(const net *of, int rank)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    int state = atomic_load(&of->segment->member[rank].state);
    const char *silent = getenv("LS_EMULATED_SILENT");
    if (rank == of->rank || state == NET_ABSENT || (silent != NULL && strcmp(silent, "1") == 0)) {
        return false;
    }
    return state == NET_LEFT || state == NET_ABORTED ||
           (fcntl(of->file, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK);
}

bool net_all_final(const net *of)
{
    for (int rank = 0; rank < of->world; rank++) {
        if (atomic_load(&of->segment->member[rank].state) < NET_FINAL) {
            return false;
        }
    }
    return true;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t net_send(net *of, int to, const void *data, size_t bytes)
{
    net_channel *channel = &of->segment->channel[of->rank * of->world + to];
    uint64_t written = atomic_load(&channel->written), read = atomic_load(&channel->read);
    bytes = smaller(bytes, NET_RING_BYTES - (size_t)(written - read));
    size_t at = (size_t)(written % NET_RING_BYTES), head = smaller(bytes, NET_RING_BYTES - at);
    if (bytes > 0) {
        memcpy(channel->ring + at, data, head);
        memcpy(channel->ring, (const char *)data + head, bytes - head);
        atomic_store(&channel->written, written + bytes);
    }
    return bytes;
}

size_t net_receive(net *of, int from, void *data, size_t bytes)
{
    net_channel *channel = &of->segment->channel[from * of->world + of->rank];
    uint64_t written = atomic_load(&channel->written), read = atomic_load(&channel->read);
    bytes = smaller(bytes, (size_t)(written - read));
    size_t at = (size_t)(read % NET_RING_BYTES), head = smaller(bytes, NET_RING_BYTES - at);
    if (bytes > 0) {
        memcpy(data, channel->ring + at, head);
        memcpy((char *)data + head, channel->ring, bytes - head);
        atomic_store(&channel->read, read + bytes);
    }
    return bytes;
}

void net_leave(net *of)
{
    (void)munmap(of->segment, of->bytes);
    close(of->file); /* releases the lock */
    of->segment = NULL;
}
