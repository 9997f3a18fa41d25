/* The CPU engine: Gloo's TCP transport under our contract. One worker thread per communicator
 * executes the operations in the order of their `begin`; it sleeps while it waits.
 *
 * Gloo gives contexts, rendezvous and tagged sends and receives; the collectives are composed here
 * from those, because Gloo's own cannot be aborted from another thread, do not name the rank they
 * wait for, and take 2(W-1) hops for the few kilobytes of a SyncBN reduction. Large sums run around
 * a ring in segments (each element's order of addition depends on its place in the buffer and on
 * nothing else); small ones are exchanged directly and added in rank order. Both leave the same
 * bits on every rank.
 *
 * The tag of a transfer holds kind, size and number of its operation: ranks that disagree wait for
 * each other until the deadline instead of receiving the wrong thing. */
#include "gloo_sum.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gloo/common/error.h>
#include <gloo/config.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include "../../kernels/core/clock.h"
#include "../../kernels/core/digest.h"
#include "../../kernels/core/log.h"
#include "comm.h"

namespace
{

/* Up to here a sum is exchanged directly: W-1 messages of the whole at once instead of 2(W-1) hops.
 */
constexpr int64_t direct_bytes_max = 16 << 10;
/* Ring segments: two in flight stay in the second-level cache while one of them is being added. */
constexpr int64_t segment_bytes_max = 512 << 10;
constexpr int64_t segment_bytes_min = 32 << 10;

struct StoreFailure {
    ls_status status; /* already logged by the store */
};
struct Aborted {
};

/* Gloo writes to sockets without MSG_NOSIGNAL, so a dead peer would end this process by SIGPIPE. The signal goes to the
 * thread that wrote: while it is blocked there, the write fails with EPIPE, which Gloo turns into its exception. The
 * process's own handling is left alone. Threads that are created meanwhile inherit the block. */
class PipeSignalBlocked
{
  public:
    PipeSignalBlocked()
    {
        sigemptyset(&pipe_);
        sigaddset(&pipe_, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
    }
    ~PipeSignalBlocked()
    {
        const struct timespec now = {0, 0};
        if (!sigismember(&before_, SIGPIPE)) { /* one that has come is ours: take it */
            while (sigtimedwait(&pipe_, nullptr, &now) < 0 && errno == EINTR) {
            }
        }
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    PipeSignalBlocked(const PipeSignalBlocked &) = delete;
    PipeSignalBlocked &operator=(const PipeSignalBlocked &) = delete;

  private:
    sigset_t pipe_, before_;
};

/* Gloo's rendezvous through ours; keys are prefixed by the communicator's name. */
class Rendezvous : public gloo::rendezvous::Store
{
  public:
    Rendezvous(ls_store *store, const char *name, double timeout_s)
        : store_(store), prefix_(std::string("gloo/") + name + "/"),
          deadline_ns_(ls_clock_ns() + (int64_t)(timeout_s * 1e9))
    {
    }
    void set(const std::string &key, const std::vector<char> &data) override
    {
        check(ls_store_set(store_, (prefix_ + key).c_str(), data.data(), data.size()));
    }
    std::vector<char> get(const std::string &key) override
    {
        void *value = nullptr;
        size_t bytes = 0;
        check(ls_store_get(store_, (prefix_ + key).c_str(), rest_s(), &value, &bytes));
        std::vector<char> data((char *)value, (char *)value + bytes);
        free(value);
        return data;
    }
    void wait(const std::vector<std::string> &keys) override
    {
        for (const std::string &key : keys) {
            std::string whole = prefix_ + key;
            const char *one = whole.c_str();
            check(ls_store_wait(store_, &one, 1, rest_s()));
        }
    }
    void wait(const std::vector<std::string> &keys, const std::chrono::milliseconds &) override
    {
        wait(keys); /* one deadline for the whole rendezvous, not one per step of it */
    }

  private:
    static void check(ls_status status)
    {
        if (status != LS_OK) {
            throw StoreFailure{status};
        }
    }
    double rest_s() const
    {
        return std::max(0.0, (double)(deadline_ns_ - ls_clock_ns()) * 1e-9);
    }
    ls_store *store_;
    std::string prefix_;
    int64_t deadline_ns_;
};

struct Job {
    ls_comm_handle *handle;
    ls_event *after;
    uint64_t tag;
    bool done;
    ls_status status;
};

} // namespace

/* ---- one communicator
 * -------------------------------------------------------------------------------- */

struct ls_comm {
    int rank, world;
    std::string name;
    double timeout_s;
    const ls_backend_api *backend_api;
    std::shared_ptr<gloo::rendezvous::Context> context;
    std::thread worker;

    std::mutex lock; /* guards what follows */
    std::condition_variable to_worker, to_caller;
    std::deque<Job *> queue;
    std::set<gloo::transport::UnboundBuffer *> live; /* what an abort has to wake */
    bool closing = false, aborted = false;
    ls_status failed = LS_OK;
    uint64_t number = 0, collective = 0;

    /* the worker's own */
    std::vector<char> scratch;
    int64_t deadline_ns = 0;
    std::string waiting_for;
};

namespace
{

/* Memory that transfers go to or come from; waits end at the operation's deadline or at an abort.
 */
class Window
{
  public:
    Window(ls_comm *comm, const void *memory, size_t bytes)
        : comm_(comm),
          buffer_(comm->context->createUnboundBuffer(const_cast<void *>(memory), bytes)),
          owed_((size_t)comm->world, 0)
    {
        std::lock_guard<std::mutex> guard(comm->lock);
        comm->live.insert(buffer_.get());
    }
    ~Window()
    {
        std::lock_guard<std::mutex> guard(comm_->lock);
        comm_->live.erase(buffer_.get());
    }
    Window(const Window &) = delete;
    Window &operator=(const Window &) = delete;

    /* Nothing is transferred for zero bytes; both ends know the size. */
    void send(int to, uint64_t tag, size_t offset, size_t bytes)
    {
        if (bytes > 0) {
            buffer_->send(to, tag, offset, bytes);
            sends_++;
            to_ = to;
        }
    }
    void recv(int from, uint64_t tag, size_t offset, size_t bytes)
    {
        if (bytes > 0) {
            buffer_->recv(from, tag, offset, bytes);
            owed_[(size_t)from]++;
            recvs_++;
        }
    }
    /* The oldest of those that were posted (transfers of one pair end in their order). */
    void wait_recv()
    {
        int from = -1;
        name_owing();
        if (!buffer_->waitRecv(&from, rest())) {
            throw Aborted();
        }
        owed_[(size_t)from]--;
        recvs_--;
    }
    void wait_send()
    {
        comm_->waiting_for = "sending to rank " + std::to_string(to_);
        if (!buffer_->waitSend(nullptr, rest())) {
            throw Aborted();
        }
        sends_--;
    }
    void wait_recvs()
    {
        while (recvs_ > 0) {
            wait_recv();
        }
    }
    void wait_sends(int left = 0)
    {
        while (sends_ > left) {
            wait_send();
        }
    }

  private:
    std::chrono::milliseconds rest() const
    {
        {
            std::lock_guard<std::mutex> guard(comm_->lock);
            if (comm_->aborted) {
                throw Aborted();
            }
        }
        int64_t rest_ms = (comm_->deadline_ns - ls_clock_ns() + 999999) / 1000000;
        return std::chrono::milliseconds(std::max<int64_t>(1, rest_ms));
    }
    void name_owing()
    {
        std::string &text = comm_->waiting_for;
        text = "waiting for rank";
        const char *separator = " ";
        for (size_t rank = 0; rank < owed_.size(); rank++) {
            if (owed_[rank] > 0) {
                text += separator + std::to_string(rank);
                separator = ", ";
            }
        }
    }
    ls_comm *comm_;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
    std::vector<int> owed_;
    int sends_ = 0, recvs_ = 0, to_ = -1;
};

char *scratch_of(ls_comm *comm, size_t bytes)
{
    if (comm->scratch.size() < bytes) {
        comm->scratch.resize(bytes);
    }
    return comm->scratch.data();
}

int peer_of(const ls_comm *comm, int64_t rank)
{
    return (int)(((rank % comm->world) + comm->world) % comm->world);
}

/* ---- rings
 * ------------------------------------------------------------------------------------------- */

/* buffer[count] cut into `world` chunks of `per_chunk` segments each, as even as whole elements
 * allow. */
struct Cut {
    int64_t count, segments, per_chunk;
    size_t element_bytes;
    Cut(const ls_comm *comm, int64_t count_, size_t element_bytes_)
        : count(count_), element_bytes(element_bytes_)
    {
        int64_t chunk_bytes = count * (int64_t)element_bytes / comm->world;
        int64_t fewest = (chunk_bytes + segment_bytes_max - 1) / segment_bytes_max;
        per_chunk = std::max<int64_t>(fewest, chunk_bytes >= 2 * segment_bytes_min ? 2 : 1);
        segments = comm->world * per_chunk;
    }
    int64_t first(int64_t segment) const /* an element */
    {
        return count / segments * segment + std::min(segment, count % segments);
    }
    size_t offset(int64_t segment) const
    {
        return (size_t)first(segment) * element_bytes;
    }
    size_t bytes(int64_t segment) const
    {
        return offset(segment + 1) - offset(segment);
    }
};

/* Afterwards this rank's chunk of `data` holds the sum. At step s a rank sends chunk rank-s-1, to
 * which it has added its own, and receives chunk rank-s-2. */
void ring_reduce_scatter(ls_comm *comm, const Job &job, const Cut &cut, char *data)
{
    int right = peer_of(comm, comm->rank + 1), left = peer_of(comm, comm->rank - 1);
    int64_t total = (comm->world - 1) * cut.per_chunk;
    int64_t depth = std::min<int64_t>(2, cut.per_chunk);
    size_t half = (size_t)((cut.count + cut.segments - 1) / cut.segments) * cut.element_bytes;
    char *arrived = scratch_of(comm, 2 * half);
    Window out(comm, data, (size_t)cut.count * cut.element_bytes), in(comm, arrived, 2 * half);
    auto segment_at = [&](int64_t turn, int lag) {
        int64_t chunk = peer_of(comm, comm->rank - turn / cut.per_chunk - lag);
        return chunk * cut.per_chunk + turn % cut.per_chunk;
    };
    auto post_recv = [&](int64_t turn) {
        in.recv(left, job.tag, (size_t)(turn % 2) * half, cut.bytes(segment_at(turn, 2)));
    };
    auto post_send = [&](int64_t turn) {
        int64_t segment = segment_at(turn, 1);
        out.send(right, job.tag, cut.offset(segment), cut.bytes(segment));
    };
    for (int64_t turn = 0; turn < std::min<int64_t>(2, total); turn++) {
        post_recv(turn);
    }
    for (int64_t turn = 0; turn < std::min(depth, total); turn++) {
        post_send(turn);
    }
    for (int64_t turn = 0; turn < total; turn++) {
        int64_t segment = segment_at(turn, 2);
        if (cut.bytes(segment) > 0) {
            in.wait_recv();
            ls_gloo_add(job.handle->op.dtype, data + cut.offset(segment),
                        arrived + (size_t)(turn % 2) * half,
                        cut.first(segment + 1) - cut.first(segment));
        }
        if (turn + 2 < total) {
            post_recv(turn + 2);
        }
        if (turn + depth < total) {
            post_send(turn + depth);
        }
        out.wait_sends((int)depth);
    }
    out.wait_sends();
}

/* Every rank's chunk to everybody: at step s a rank sends chunk rank-s and receives chunk rank-s-1.
 */
void ring_all_gather(ls_comm *comm, const Job &job, const Cut &cut, char *data)
{
    int right = peer_of(comm, comm->rank + 1), left = peer_of(comm, comm->rank - 1);
    int64_t total = (comm->world - 1) * cut.per_chunk;
    size_t bytes = (size_t)cut.count * cut.element_bytes;
    Window out(comm, data, bytes), in(comm, data, bytes);
    auto segment_at = [&](int64_t turn, int lag) {
        int64_t chunk = peer_of(comm, comm->rank - turn / cut.per_chunk - lag);
        return chunk * cut.per_chunk + turn % cut.per_chunk;
    };
    for (int64_t turn = 0; turn < total; turn++) {
        int64_t segment = segment_at(turn, 1);
        in.recv(left, job.tag + 1, cut.offset(segment), cut.bytes(segment));
    }
    for (int64_t turn = 0; turn < total; turn++) {
        int64_t segment = segment_at(turn, 0);
        if (turn >= cut.per_chunk && cut.bytes(segment) > 0) {
            in.wait_recv(); /* this very segment, received per_chunk turns ago */
        }
        out.send(right, job.tag + 1, cut.offset(segment), cut.bytes(segment));
    }
    in.wait_recvs();
    out.wait_sends();
}

/* ---- the operations
 * ----------------------------------------------------------------------------------- */

/* sum over ranks, in rank order, of part[r] (this rank's own: `mine`); into `result`, which may be
 * `mine`. */
void sum_in_rank_order(const ls_comm *comm, ls_dtype dtype, char *result, const char *mine,
                       char *parts, size_t bytes, int64_t count)
{
    memcpy(parts + (size_t)comm->rank * bytes, mine, bytes);
    for (int rank = 1; rank < comm->world; rank++) {
        ls_gloo_add(dtype, parts, parts + (size_t)rank * bytes, count);
    }
    memcpy(result, parts, bytes);
}

void direct_all_reduce(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    char *parts = scratch_of(comm, (size_t)comm->world * bytes);
    Window in(comm, parts, (size_t)comm->world * bytes), out(comm, op.buffer, bytes);
    for (int step = 1; step < comm->world; step++) {
        int from = peer_of(comm, comm->rank - step);
        in.recv(from, job.tag, (size_t)from * bytes, bytes);
    }
    for (int step = 1; step < comm->world; step++) {
        out.send(peer_of(comm, comm->rank + step), job.tag, 0, bytes);
    }
    in.wait_recvs();
    out.wait_sends();
    sum_in_rank_order(comm, op.dtype, (char *)op.buffer, (char *)op.buffer, parts, bytes, op.count);
}

void all_reduce(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    if ((int64_t)bytes <= direct_bytes_max) {
        direct_all_reduce(comm, job, bytes);
        return;
    }
    Cut cut(comm, op.count, ls_dtype_bytes(op.dtype));
    ring_reduce_scatter(comm, job, cut, (char *)op.buffer);
    ring_all_gather(comm, job, cut, (char *)op.buffer);
}

/* Binomial tree: in round k the ranks that have it, at most 2^k from the root, send it 2^k further.
 */
void broadcast(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    int place = peer_of(comm, comm->rank - op.root); /* 0 is the root */
    Window whole(comm, op.buffer, bytes);
    for (int step = 1; step < comm->world; step *= 2) {
        if (place < step && place + step < comm->world) {
            whole.send(peer_of(comm, comm->rank + step), job.tag, 0, bytes);
        } else if (place >= step && place < 2 * step) {
            whole.recv(peer_of(comm, comm->rank - step), job.tag, 0, bytes);
            whole.wait_recv();
        }
    }
    whole.wait_sends();
}

void all_gather(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    char *own = (char *)op.buffer + (size_t)comm->rank * bytes;
    if (op.input != nullptr && op.input != own) {
        memmove(own, op.input, bytes);
    }
    Window in(comm, op.buffer, (size_t)comm->world * bytes), out(comm, own, bytes);
    for (int step = 1; step < comm->world; step++) {
        int from = peer_of(comm, comm->rank - step);
        in.recv(from, job.tag, (size_t)from * bytes, bytes);
    }
    for (int step = 1; step < comm->world; step++) {
        out.send(peer_of(comm, comm->rank + step), job.tag, 0, bytes);
    }
    in.wait_recvs();
    out.wait_sends();
}

void reduce_scatter(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    const char *input = (const char *)(op.input != nullptr ? op.input : op.buffer);
    size_t whole = (size_t)comm->world * bytes;
    char *parts = scratch_of(comm, whole);
    Window in(comm, parts, whole), out(comm, input, whole);
    for (int step = 1; step < comm->world; step++) {
        int from = peer_of(comm, comm->rank - step);
        in.recv(from, job.tag, (size_t)from * bytes, bytes);
    }
    for (int step = 1; step < comm->world; step++) {
        int to = peer_of(comm, comm->rank + step);
        out.send(to, job.tag, (size_t)to * bytes, bytes);
    }
    in.wait_recvs();
    out.wait_sends();
    sum_in_rank_order(comm, op.dtype, (char *)op.buffer, input + (size_t)comm->rank * bytes, parts,
                      bytes, op.count);
}

void reduce(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    Cut cut(comm, op.count, ls_dtype_bytes(op.dtype));
    ring_reduce_scatter(comm, job, cut, (char *)op.buffer);
    Window whole(comm, op.buffer, bytes);
    auto chunk = [&](int rank) { return cut.offset(rank * cut.per_chunk); };
    if (comm->rank != op.root) {
        whole.send(op.root, job.tag + 1, chunk(comm->rank),
                   chunk(comm->rank + 1) - chunk(comm->rank));
        whole.wait_sends();
        return;
    }
    for (int rank = 0; rank < comm->world; rank++) {
        if (rank != op.root) {
            whole.recv(rank, job.tag + 1, chunk(rank), chunk(rank + 1) - chunk(rank));
        }
    }
    whole.wait_recvs();
}

void gather(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    if (comm->rank != op.root) {
        Window out(comm, op.input != nullptr ? op.input : op.buffer, bytes);
        out.send(op.root, job.tag, 0, bytes);
        out.wait_sends();
        return;
    }
    char *own = (char *)op.buffer + (size_t)comm->rank * bytes;
    if (op.input != nullptr && op.input != own) {
        memmove(own, op.input, bytes);
    }
    Window in(comm, op.buffer, (size_t)comm->world * bytes);
    for (int rank = 0; rank < comm->world; rank++) {
        if (rank != op.root) {
            in.recv(rank, job.tag, (size_t)rank * bytes, bytes);
        }
    }
    in.wait_recvs();
}

void scatter(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    if (comm->rank != op.root) {
        Window in(comm, op.buffer, bytes);
        in.recv(op.root, job.tag, 0, bytes);
        in.wait_recvs();
        return;
    }
    const char *input = (const char *)(op.input != nullptr ? op.input : op.buffer);
    Window out(comm, input, (size_t)comm->world * bytes);
    for (int rank = 0; rank < comm->world; rank++) {
        if (rank != op.root) {
            out.send(rank, job.tag, (size_t)rank * bytes, bytes);
        }
    }
    out.wait_sends();
    memmove(op.buffer, input + (size_t)comm->rank * bytes, bytes);
}

/* Dissemination: after round k a rank knows of the 2^(k+1)-1 ranks before it that they have come.
 */
void barrier(ls_comm *comm, const Job &job)
{
    char token[2] = {1, 0};
    uint64_t tag = job.tag;
    for (int step = 1; step < comm->world; step *= 2, tag++) {
        Window out(comm, token, 1), in(comm, token + 1, 1);
        in.recv(peer_of(comm, comm->rank - step), tag, 0, 1);
        out.send(peer_of(comm, comm->rank + step), tag, 0, 1);
        in.wait_recvs();
        out.wait_sends();
    }
}

void point_to_point(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    Window whole(comm, op.buffer, bytes);
    if (op.kind == LS_COMM_SEND) {
        whole.send(op.root, job.tag, 0, bytes);
        whole.wait_sends();
    } else {
        whole.recv(op.root, job.tag, 0, bytes);
        whole.wait_recvs();
    }
}

void alone(const ls_comm_op &op, size_t bytes)
{
    if (op.input != nullptr && op.input != op.buffer) {
        memmove(op.buffer, op.input, bytes);
    }
}

void execute(ls_comm *comm, const Job &job)
{
    const ls_comm_op &op = job.handle->op;
    size_t bytes = (size_t)op.count * ls_dtype_bytes(op.dtype);
    if (op.kind == LS_COMM_BARRIER) {
        barrier(comm, job);
        return;
    }
    if (bytes == 0) {
        return;
    }
    if (comm->world == 1) {
        alone(op, bytes);
        return;
    }
    switch (op.kind) {
    case LS_COMM_ALL_REDUCE:
        return all_reduce(comm, job, bytes);
    case LS_COMM_BROADCAST:
        return broadcast(comm, job, bytes);
    case LS_COMM_ALL_GATHER:
        return all_gather(comm, job, bytes);
    case LS_COMM_REDUCE_SCATTER:
        return reduce_scatter(comm, job, bytes);
    case LS_COMM_REDUCE:
        return reduce(comm, job, bytes);
    case LS_COMM_GATHER:
        return gather(comm, job, bytes);
    case LS_COMM_SCATTER:
        return scatter(comm, job, bytes);
    case LS_COMM_SEND:
    case LS_COMM_RECV:
        return point_to_point(comm, job, bytes);
    case LS_COMM_BARRIER:
        return;
    }
}

/* ---- the worker
 * --------------------------------------------------------------------------------------- */

void log_failure(const ls_comm *comm, const Job &job, const char *text)
{
    const ls_comm_handle *handle = job.handle;
    const ls_comm_op &op = handle->op;
    ls_log_error("gloo '%s': %s, operation %" PRIu64 " '%s' of %" PRId64
                 " bytes, failed after %.3g s, %s: %s",
                 comm->name.c_str(), ls_comm_kind_name(op.kind), handle->number,
                 op.label != nullptr ? op.label : "", op.count * (int64_t)ls_dtype_bytes(op.dtype),
                 ls_clock_ms_between(handle->started_ns, ls_clock_ns()) * 1e-3,
                 comm->waiting_for.c_str(), text);
}

ls_status run_job(ls_comm *comm, Job *job)
{
    ls_comm_handle *handle = job->handle;
    if (job->after != nullptr && comm->backend_api != nullptr) {
        LS_TRY(comm->backend_api->event_wait(job->after));
    }
    handle->started_ns = ls_clock_ns();
    comm->deadline_ns = handle->started_ns + (int64_t)(comm->timeout_s * 1e9);
    comm->waiting_for = "starting";
    ls_status status = LS_OK;
    try {
        execute(comm, *job);
    } catch (const Aborted &) {
        status = LS_ERR_PEER_LOST; /* our own caller asked for it: nothing to log */
    } catch (const gloo::Exception &error) {
        log_failure(comm, *job, error.what());
        status = LS_ERR_PEER_LOST;
    } catch (const std::exception &error) {
        log_failure(comm, *job, error.what());
        status = LS_ERR_INFRA;
    }
    if (status != LS_OK && comm->context != nullptr) {
        try { /* the others shall not have to wait for their own deadlines */
            comm->context->closeConnections();
        } catch (const std::exception &error) {
            ls_log_warn("gloo '%s': closing its connections: %s", comm->name.c_str(), error.what());
        }
    }
    handle->finished_ns = ls_clock_ns();
    return status;
}

void work(ls_comm *comm)
{
    pthread_setname_np(pthread_self(), "ls-gloo"); /* SIGPIPE is blocked here: inherited from open */
    std::unique_lock<std::mutex> guard(comm->lock);
    for (;;) {
        comm->to_worker.wait(guard, [&] { return comm->closing || !comm->queue.empty(); });
        if (comm->queue.empty()) {
            return;
        }
        Job *job = comm->queue.front();
        comm->queue.pop_front();
        ls_status status = comm->failed;
        if (status == LS_OK && comm->aborted) {
            status = LS_ERR_PEER_LOST;
        }
        if (status == LS_OK) {
            guard.unlock();
            status = run_job(comm, job);
            guard.lock();
        }
        comm->failed = status;
        job->status = status;
        job->done = true;
        comm->to_caller.notify_all();
    }
}

/* ---- the contract
 * -------------------------------------------------------------------------------------- */

void describe(char *text, int bytes)
{
    Dl_info where = {};
    dladdr((void *)&gloo::transport::tcp::CreateDevice, &where);
    snprintf(text, (size_t)bytes, "Gloo %d.%d.%d, TCP, %s", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR,
             GLOO_VERSION_PATCH, where.dli_fname != nullptr ? where.dli_fname : "?");
}

void connect(ls_comm *comm, const ls_comm_options *options)
{
    char address[128];
    if (options->address != nullptr) {
        snprintf(address, sizeof address, "%s", options->address);
    } else {
        ls_store_local_address(options->store, address, sizeof address);
    }
    gloo::transport::tcp::attr attributes(address);
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    comm->context = std::make_shared<gloo::rendezvous::Context>(comm->rank, comm->world);
    comm->context->setTimeout(std::chrono::milliseconds((int64_t)(comm->timeout_s * 1e3)));
    Rendezvous store(options->store, options->name, options->timeout_s);
    comm->context->connectFullMesh(store, device);
}

ls_status open(const ls_comm_options *options, ls_comm **out)
{
    std::unique_ptr<ls_comm> comm(new (std::nothrow) ls_comm());
    if (comm == nullptr) {
        ls_log_error("gloo '%s': no memory", options->name);
        return LS_ERR_INFRA;
    }
    LS_ASSERT(options->world == 1 || options->store != NULL);
    PipeSignalBlocked here_and_in_new_threads;
    try {
        comm->rank = options->rank;
        comm->world = options->world;
        comm->name = options->name;
        comm->timeout_s = options->timeout_s;
        comm->backend_api = options->backend_api;
        if (options->world > 1) {
            connect(comm.get(), options);
        }
        comm->worker = std::thread(work, comm.get());
    } catch (const StoreFailure &failure) {
        ls_log_error("gloo '%s': rank %d of %d did not find its peers", options->name,
                     options->rank, options->world);
        return failure.status;
    } catch (const gloo::Exception &error) {
        ls_log_error("gloo '%s': rank %d of %d cannot connect to its peers (own address %s): %s",
                     options->name, options->rank, options->world,
                     options->address != nullptr ? options->address : "of the route to rank 0",
                     error.what());
        return LS_ERR_RENDEZVOUS;
    } catch (const std::exception &error) {
        ls_log_error("gloo '%s': rank %d of %d cannot open (own address %s): %s", options->name,
                     options->rank, options->world,
                     options->address != nullptr ? options->address : "of the route to rank 0",
                     error.what());
        return LS_ERR_INFRA;
    }
    *out = comm.release();
    return LS_OK;
}

/* Kind, size, type and root, so that only like operations meet; the lowest 8 bits count transfers
 * within one. */
uint64_t tag_of(const ls_comm_op *op, uint64_t collective)
{
    int64_t what[4] = {op->kind, op->count, op->dtype, op->root};
    if (op->kind == LS_COMM_SEND || op->kind == LS_COMM_RECV) {
        what[0] = LS_COMM_SEND; /* both ends alike; they match in the order of the pair */
        what[3] = 0;
        collective = 0;
    }
    uint64_t digest = ls_digest_update(LS_DIGEST_START, what, sizeof what);
    return (digest & UINT64_C(0xffffff)) << 40 | (collective & UINT64_C(0xffffffff)) << 8;
}

ls_status begin(ls_comm *comm, const ls_comm_op *op, ls_event *after, ls_comm_handle *handle)
{
    LS_ASSERT(op->count >= 0 && op->root >= 0 && op->root < comm->world);
    Job *job = new (std::nothrow) Job();
    if (job == nullptr) {
        ls_log_error("gloo '%s': no memory", comm->name.c_str());
        return LS_ERR_INFRA;
    }
    std::lock_guard<std::mutex> guard(comm->lock);
    if (comm->failed != LS_OK || comm->aborted) {
        delete job;
        return comm->failed != LS_OK ? comm->failed : LS_ERR_PEER_LOST;
    }
    bool pair_only = op->kind == LS_COMM_SEND || op->kind == LS_COMM_RECV;
    *handle = ls_comm_handle{*op, comm->number++, ls_clock_ns(), 0, 0, job};
    *job = Job{handle, after, tag_of(op, pair_only ? 0 : comm->collective++), false, LS_OK};
    comm->queue.push_back(job);
    comm->to_worker.notify_one();
    return LS_OK;
}

ls_status wait(ls_comm *comm, ls_comm_handle *handle, ls_stream *)
{
    Job *job = (Job *)handle->engine;
    LS_ASSERT(job != NULL);
    std::unique_lock<std::mutex> guard(comm->lock);
    /* every transfer of the worker has a deadline, so this ends */
    comm->to_caller.wait(guard, [&] { return job->done; });
    ls_status status = job->status;
    handle->engine = nullptr;
    delete job;
    return status;
}

ls_status poll(ls_comm *comm)
{
    std::lock_guard<std::mutex> guard(comm->lock);
    return comm->failed != LS_OK || !comm->aborted ? comm->failed : LS_ERR_PEER_LOST;
}

void abort_all(ls_comm *comm)
{
    std::lock_guard<std::mutex> guard(comm->lock);
    comm->aborted = true;
    for (gloo::transport::UnboundBuffer *buffer : comm->live) {
        buffer->abortWaitRecv();
        buffer->abortWaitSend();
    }
}

void close(ls_comm *comm)
{
    if (comm == nullptr) {
        return;
    }
    {
        std::lock_guard<std::mutex> guard(comm->lock);
        comm->closing = true;
        comm->to_worker.notify_one();
    }
    comm->worker.join();
    PipeSignalBlocked here;
    try {
        if (comm->context != nullptr) {
            comm->context->closeConnections();
        }
        delete comm;
    } catch (const std::exception &error) {
        ls_log_warn("gloo: closing: %s", error.what());
    }
}

const ls_comm_api table = {LS_COMM_ABI, "gloo", describe,  open, begin,
                           wait,        poll,   abort_all, close};

} // namespace

extern "C" const ls_comm_api *ls_comm_entry(void)
{
    return &table;
}
