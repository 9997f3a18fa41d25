/* Communicators by a name that all ranks derive alike, and the numbers of their calls. */
#include "interpose.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMMS_MAX = 512, EXPECTED_MAX = 32, FIRST_CALLS = 4, FIRST_SAMPLES = 64, NEXT_SAMPLES = 32 };

typedef struct entry {
    ls_interpose_comm comm; /* native NULL: free */
    uint64_t numbers, chain, children;
    int64_t every, chosen, until;
} entry;

static struct {
    pthread_mutex_t lock;
    entry entry[COMMS_MAX];
    struct {
        ncclComm_t *where; /* NULL: free */
        ncclComm_t parent;
        uint64_t id;
        pthread_t thread;
    } expected[EXPECTED_MAX];
    ls_journal journal;
} process_state = {.lock = PTHREAD_MUTEX_INITIALIZER, .journal = LS_JOURNAL_INIT};

ls_journal *ls_interpose_journal(void)
{
    return &process_state.journal;
}

/* splitmix64's output function. */
uint64_t ls_interpose_mix(uint64_t number)
{
    number += UINT64_C(0x9E3779B97F4A7C15);
    number = (number ^ (number >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    number = (number ^ (number >> 27)) * UINT64_C(0x94D049BB133111EB);
    return number ^ (number >> 31);
}

/* FNV-1a. */
uint64_t ls_interpose_hash(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ at[i]) * UINT64_C(1099511628211);
    }
    return hash;
}

/* With the lock held; NULL: not known. */
static entry *find(ncclComm_t native)
{
    for (int i = 0; i < COMMS_MAX && native != NULL; i++) {
        if (process_state.entry[i].comm.native == native) {
            return &process_state.entry[i];
        }
    }
    return NULL;
}

static entry *add(ls_interpose_comm comm)
{
    entry *to = find(comm.native);
    for (int i = 0; i < COMMS_MAX && to == NULL; i++) {
        to = process_state.entry[i].comm.native == NULL ? &process_state.entry[i] : NULL;
    }
    if (to != NULL) {
        *to = (entry){.comm = comm,
                      .every = ls_journal_setting("LS_OBSERVE_EVERY", 1, 1000000, 50),
                      .until = FIRST_SAMPLES};
    }
    return to;
}

bool ls_interpose_add(const ls_real *real, ncclComm_t native, uint64_t id, int rank, int world)
{
    int device = -1;
    if (native == NULL ||
        !ls_journal_open(&process_state.journal, "sums", rank, ",\"source\":\"interposer\"")) {
        return false;
    }
    if (real->has_cuda && LS_REAL(real, cudaGetDevice)(&device) != cudaSuccess) {
        device = -1;
    }
    pthread_mutex_lock(&process_state.lock);
    (void)add((ls_interpose_comm){native, id, rank, world, device});
    pthread_mutex_unlock(&process_state.lock);
    ls_journal_add(&process_state.journal, true,
                   "{\"event\":\"comm\",\"comm\":\"%016" PRIx64
                   "\",\"comm_rank\":%d,\"world\":%d,\"device\":%d}",
                   id, rank, world, device);
    ls_journal_flush(&process_state.journal);
    return true;
}

void ls_interpose_remove(ncclComm_t native)
{
    pthread_mutex_lock(&process_state.lock);
    entry *of = find(native);
    ls_interpose_comm comm = of != NULL ? of->comm : (ls_interpose_comm){NULL, 0, -1, 0, -1};
    uint64_t calls = of != NULL ? of->numbers : 0, chain = of != NULL ? of->chain : 0;
    if (of != NULL) {
        of->comm.native = NULL;
    }
    pthread_mutex_unlock(&process_state.lock);
    if (comm.native != NULL) {
        ls_journal_add(&process_state.journal, true,
                       "{\"event\":\"comm_end\",\"comm\":\"%016" PRIx64
                       "\",\"comm_rank\":%d,\"calls\":%" PRIu64 ",\"chain\":\"%016" PRIx64
                       "\",\"at_ns\":%" PRId64 "}",
                       comm.id, comm.rank, calls, chain, ls_journal_now_ns());
        ls_journal_flush(&process_state.journal);
    }
}

/* ---- children -------------------------------------------------------------------------------- */

void ls_interpose_expect(ncclComm_t parent, ncclComm_t *where, uint64_t salt)
{
    pthread_mutex_lock(&process_state.lock);
    entry *of = find(parent);
    /* all ranks of the parent split it as often, also those that get no communicator */
    uint64_t parts[3] = {of != NULL ? of->comm.id : 0, salt, of != NULL ? ++of->children : 0};
    bool named = of != NULL && of->comm.id != 0;
    for (int i = 0; i < EXPECTED_MAX && where != NULL; i++) {
        if (process_state.expected[i].where == NULL) {
            process_state.expected[i].where = where;
            process_state.expected[i].parent = parent;
            process_state.expected[i].thread = pthread_self();
            process_state.expected[i].id =
                named ? ls_interpose_hash(UINT64_C(14695981039346656037), parts, sizeof parts) : 0;
            break;
        }
    }
    pthread_mutex_unlock(&process_state.lock);
}

static void add_child(const ls_real *real, ncclComm_t native, uint64_t id)
{
    int rank = -1, world = 0;
    if (native != NULL && LS_REAL(real, ncclCommUserRank) != NULL &&
        LS_REAL(real, ncclCommCount) != NULL &&
        LS_REAL(real, ncclCommUserRank)(native, &rank) == ncclSuccess &&
        LS_REAL(real, ncclCommCount)(native, &world) == ncclSuccess) {
        (void)ls_interpose_add(real, native, id, rank, world); /* on its parent's device */
    }
}

void ls_interpose_arrived(const ls_real *real, ncclComm_t parent, bool failed)
{
    for (int i = 0; i < EXPECTED_MAX; i++) {
        pthread_mutex_lock(&process_state.lock);
        bool due =
            process_state.expected[i].where != NULL &&
            (parent != NULL ? process_state.expected[i].parent == parent
                            : pthread_equal(process_state.expected[i].thread, pthread_self()) != 0);
        ncclComm_t *where = process_state.expected[i].where;
        uint64_t id = process_state.expected[i].id;
        process_state.expected[i].where = due ? NULL : where;
        pthread_mutex_unlock(&process_state.lock);
        if (due && !failed) {
            add_child(real, *where, id);
        }
    }
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* The first calls and, on average, one of `every`; a hash decides, because a job that makes as many
 * calls in each step would else be looked at in the same ones. */
static bool choose(entry *of, uint64_t number)
{
    if (number >= FIRST_CALLS && ls_interpose_mix(number) % (uint64_t)of->every != 0) {
        return false;
    }
    if (++of->chosen >= of->until) {
        of->every *= 2;
        of->until = of->chosen + NEXT_SAMPLES;
    }
    return true;
}

bool ls_interpose_count(ncclComm_t native, ls_interpose_call *call)
{
    if (!ls_journal_is_open(&process_state.journal)) {
        return false;
    }
    pthread_mutex_lock(&process_state.lock);
    entry *of = find(native);
    if (of == NULL) {
        of = add((ls_interpose_comm){native, 0, -1, 0, -1}); /* its numbers have no meaning */
    }
    if (of != NULL) {
        int64_t parts[5] = {call->op[0] | call->op[4] << 8 | (int64_t)strlen(call->op) << 16,
                            (int64_t)call->count, (int64_t)call->type, call->redop, call->root};
        of->chain =
            ls_interpose_hash(of->chain + UINT64_C(14695981039346656037), parts, sizeof parts);
        call->comm = of->comm;
        call->number = of->numbers++;
        call->chain = of->chain;
        call->chosen = choose(of, call->number) && of->comm.id != 0;
    }
    pthread_mutex_unlock(&process_state.lock);
    return of != NULL;
}
