/* Test helper: a rank with an engine under test, and one operation on data whose sums are exact. */
#ifndef LS_UNIT_COMM_PEER_H
#define LS_UNIT_COMM_PEER_H

#include <string.h>

#include "reference/comm/exercise.h"
#include "suite/unit/harness/world.h"

#if defined(__SANITIZE_THREAD__)
/* Gloo guards the end of a buffer with the reference count of a std::shared_ptr (its
 * common/memory.h). The library is not instrumented, so the sanitizer does not see that. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:gloo::transport::tcp::UnboundBuffer";
}
#endif

typedef struct peer {
    int rank, world;
    const ls_comm_api *api;
    ls_comm *comm;
    ls_store *store;
} peer;

/* Gloo twice: large sums through memory that the ranks share, and over TCP. */
static const char *const engines[] = {"gloo", "gloo over TCP"};
enum { ENGINES = sizeof engines / sizeof *engines };

static inline void open_comm(peer *self, const char *name, bool one_host, double timeout_s,
                             ls_comm **out)
{
    ls_comm_options options = {.rank = self->rank,
                               .world = self->world,
                               .store = self->store,
                               .name = name,
                               .timeout_s = timeout_s,
                               .one_host = one_host};
    RANK_CHECK(self->api->open(&options, out) == LS_OK);
}

static inline peer open_peer(const char *engine, int rank, int world, int port, double timeout_s)
{
    peer self = {.rank = rank, .world = world};
    ls_store_options where = world_store(rank, world, port, timeout_s);
    RANK_CHECK(ls_store_open(&where, &self.store) == LS_OK);
    bool self_engine = strcmp(engine, "self") == 0, one_host = strcmp(engine, "gloo") == 0;
    RANK_CHECK(ls_comm_load(self_engine ? "self" : "gloo", &self.api) == LS_OK);
    open_comm(&self, "test", one_host, timeout_s, &self.comm);
    if (world > 1) {
        RANK_CHECK(strcmp(self.api->transport(self.comm), one_host ? "shared memory" : "TCP") == 0);
    }
    return self;
}

/* 0, the exit code of a rank that is done. */
static inline int close_peer(peer *self)
{
    self->api->close(self->comm);
    ls_store_close(self->store, 5.0);
    return 0;
}

/* ---- exact data ----------------------------------------------------------------------------- */

/* Every other operation in place, where it can be; all buffers `skew` elements off 64 bytes. */
static inline void one_reduction(const peer *self, ls_comm_kind kind, ls_comm_redop redop,
                                 ls_dtype dtype, int64_t count, int skew, int root)
{
    const ls_exercise_peer who = {.rank = self->rank,
                                  .members = ls_pattern_all(self->world),
                                  .api = self->api,
                                  .comm = self->comm};
    const ls_exercise what = {.kind = kind,
                              .redop = redop,
                              .dtype = dtype,
                              .count = count,
                              .root = root,
                              .in_place = skew == 0 && ls_exercise_can_be_in_place(kind),
                              .offset = skew,
                              .iterations = 1};
    ls_exercise_result result;
    RANK_CHECK(ls_exercise_run(&who, &what, &result) == LS_OK);
    RANK_CHECK(result.wrong == 0 && result.guards == 0);
}

/* Sums, where something is reduced. */
static inline void one_operation(const peer *self, ls_comm_kind kind, ls_dtype dtype, int64_t count,
                                 int skew, int root)
{
    one_reduction(self, kind, LS_COMM_SUM, dtype, count, skew, root);
}

#endif
