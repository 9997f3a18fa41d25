/* The collectives of the Gloo engine, composed from tagged sends and receives. Large sums (and
 * products, maxima, minima) run around a ring in segments (the order of an element's additions
 * depends only on its position in the buffer); small ones are exchanged directly and added in rank
 * order. Both give the same bits on every rank. Part of gloo.cc. */
#ifndef LS_GLOO_COLLECTIVES_HH
#define LS_GLOO_COLLECTIVES_HH

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include "comm.h"
#include "gloo_mesh.hh"
#include "kernels/core/clock.h"
#include "kernels/core/plant.h"

/* ---- a communicator, and its transfers ---------------------------------------------------------
 */

namespace ls_gloo
{

/* Thrown by a wait that the caller aborted or whose peer is gone. */
struct Aborted {
};

/* One operation in progress. */
struct Job {
    ls_comm_handle *handle;
    ls_event *after;
    uint64_t tag;
    bool done;
    ls_status status;
};

} // namespace ls_gloo

struct ls_comm {
    int rank, world;
    std::string name;
    double timeout_s;
    const ls_backend_api *backend_api;
    std::shared_ptr<gloo::Context> context;
    std::unique_ptr<ls_gloo::Neighbours> neighbours; /* NULL: large sums use TCP too */
    std::thread worker;

    std::mutex lock; /* guards the members below */
    std::condition_variable to_worker, to_caller;
    std::deque<ls_gloo::Job *> queue;
    std::set<gloo::transport::UnboundBuffer *> live; /* buffers whose waits an abort must end */
    bool closing = false, aborted = false;
    std::vector<int> awaited; /* number of transfers the worker waits for, by rank */
    std::string lost;         /* message about a lost rank that the worker waits for; "": none */
    ls_status failed = LS_OK;
    uint64_t number = 0, collective = 0;

    /* The worker's own members. */
    std::unique_ptr<gloo::transport::UnboundBuffer> probe; /* for probing the state of a pair */
    char probed = 0;
    std::vector<char> scratch;
    int64_t deadline_ns = 0;
    std::string waiting_for;
};

namespace ls_gloo
{

/* Before a wait for these ranks: throws if the operation was aborted or a rank is lost, and records
 * the ranks for the callers. Returns the milliseconds left, 0 after the deadline. */
inline int64_t begin_waiting(ls_comm *comm, const std::vector<int> &awaited)
{
    std::lock_guard<std::mutex> guard(comm->lock);
    if (comm->aborted || !comm->lost.empty()) {
        throw Aborted();
    }
    comm->awaited = awaited;
    return std::max<int64_t>(0, (comm->deadline_ns - ls_clock_ns() + 999999) / 1000000);
}

inline void name_ranks(ls_comm *comm, const char *what, const std::vector<int> &count)
{
    std::string &text = comm->waiting_for;
    text = what;
    const char *separator = " ";
    for (size_t rank = 0; rank < count.size(); rank++) {
        if (count[rank] > 0) {
            text += separator + std::to_string(rank);
            separator = ", ";
        }
    }
}

/* Memory that transfers read or write; waits end at the operation's deadline or at an abort. */
class Window
{
  public:
    Window(ls_comm *comm, const void *memory, size_t bytes)
        : comm_(comm),
          buffer_(comm->context->createUnboundBuffer(const_cast<void *>(memory), bytes)),
          owed_((size_t)comm->world, 0), unsent_((size_t)comm->world, 0)
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

    /* No transfer for zero bytes; both ends know the size. */
    void send(int to, uint64_t tag, size_t offset, size_t bytes)
    {
        if (bytes > 0) {
            buffer_->send(to, tag, offset, bytes);
            unsent_[(size_t)to]++;
            sends_++;
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
    /* Waits for the oldest posted receive (transfers of a pair end in order). */
    void wait_recv()
    {
        wait_one(&gloo::transport::UnboundBuffer::waitRecv, "waiting for rank", owed_, recvs_);
    }
    void wait_send()
    {
        wait_one(&gloo::transport::UnboundBuffer::waitSend, "sending to rank", unsent_, sends_);
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
    using Wait = bool (gloo::transport::UnboundBuffer::*)(int *, std::chrono::milliseconds);
    void wait_one(Wait wait, const char *what, std::vector<int> &awaited, int &left)
    {
        int rank = -1;
        name_ranks(comm_, what, awaited);
        int64_t rest_ms = std::max<int64_t>(1, begin_waiting(comm_, awaited));
        if (!(buffer_.get()->*wait)(&rank, std::chrono::milliseconds(rest_ms))) {
            throw Aborted();
        }
        awaited[(size_t)rank]--;
        left--;
    }
    ls_comm *comm_;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
    std::vector<int> owed_, unsent_; /* outstanding transfers, by rank */
    int sends_ = 0, recvs_ = 0;
};

} // namespace ls_gloo

namespace ls_gloo
{

/* Sums up to this size are exchanged directly: W-1 concurrent messages of the whole buffer instead
 * of 2(W-1) hops. */
constexpr int64_t direct_bytes_max = 64 << 10;
/* Of ring segments of 128 KB to 2 MB, 1 MB was fastest while two ranks computed on two cores. */
constexpr int64_t segment_bytes_max = 1024 << 10;
constexpr int64_t segment_bytes_min = 32 << 10;

inline char *scratch_of(ls_comm *comm, size_t bytes)
{
    if (comm->scratch.size() < bytes) {
        comm->scratch.resize(bytes);
    }
    return comm->scratch.data();
}

inline int peer_of(const ls_comm *comm, int64_t rank)
{
    return (int)(((rank % comm->world) + comm->world) % comm->world);
}

/* ---- rings ---------------------------------------------------------------------------------- */

/* buffer[count] cut into `world` chunks of `per_chunk` segments each, as evenly as whole elements
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

/* The segment of chunk rank - step - lag that a rank handles in a turn. */
inline int64_t segment_of(const ls_comm *comm, const Cut &cut, int64_t turn, int lag)
{
    int64_t chunk = peer_of(comm, comm->rank - turn / cut.per_chunk - lag);
    return chunk * cut.per_chunk + turn % cut.per_chunk;
}

/* to = to and from by the operation's operator */
inline void combine(const ls_comm_op &op, char *to, const char *from, int64_t count)
{
    ls_gloo_reduce(LS_PLANT(redop_ignored, op.redop, LS_COMM_SUM), op.dtype, to, from, count);
}

inline void scale_sum(const ls_comm_op &op, char *data, int64_t count)
{
    if (op.factor != 0.0f && op.factor != 1.0f) {
        ls_gloo_scale(data, op.factor, count);
    }
}

/* Afterwards this rank's chunk of `data` holds the sum. At step s a rank sends chunk rank-s-1, to
 * which it has added its own values, and receives chunk rank-s-2. */
inline void ring_reduce_scatter(ls_comm *comm, const Job &job, const Cut &cut, char *data)
{
    int right = peer_of(comm, comm->rank + 1), left = peer_of(comm, comm->rank - 1);
    int64_t total = (comm->world - 1) * cut.per_chunk;
    int64_t depth = std::min<int64_t>(2, cut.per_chunk);
    size_t half = (size_t)((cut.count + cut.segments - 1) / cut.segments) * cut.element_bytes;
    char *arrived = scratch_of(comm, 2 * half);
    Window out(comm, data, (size_t)cut.count * cut.element_bytes), in(comm, arrived, 2 * half);
    auto segment_at = [&](int64_t turn, int lag) { return segment_of(comm, cut, turn, lag); };
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
            combine(job.handle->op, data + cut.offset(segment), arrived + (size_t)(turn % 2) * half,
                    cut.first(segment + 1) - cut.first(segment));
            if (turn >= total - cut.per_chunk) { /* complete, and still in the cache */
                scale_sum(job.handle->op, data + cut.offset(segment),
                          cut.first(segment + 1) - cut.first(segment));
            }
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

/* Sends every rank's chunk to all: at step s a rank sends chunk rank-s, receives chunk rank-s-1. */
inline void ring_all_gather(ls_comm *comm, const Job &job, const Cut &cut, char *data)
{
    int right = peer_of(comm, comm->rank + 1), left = peer_of(comm, comm->rank - 1);
    int64_t total = (comm->world - 1) * cut.per_chunk;
    size_t bytes = (size_t)cut.count * cut.element_bytes;
    Window out(comm, data, bytes), in(comm, data, bytes);
    auto segment_at = [&](int64_t turn, int lag) { return segment_of(comm, cut, turn, lag); };
    for (int64_t turn = 0; turn < total; turn++) {
        int64_t segment = segment_at(turn, 1);
        in.recv(left, job.tag + 1, cut.offset(segment), cut.bytes(segment));
    }
    for (int64_t turn = 0; turn < total; turn++) {
        int64_t segment = segment_at(turn, 0);
        if (turn >= cut.per_chunk && cut.bytes(segment) > 0) {
            in.wait_recv(); /* this same segment, received per_chunk iterations ago */
        }
        out.send(right, job.tag + 1, cut.offset(segment), cut.bytes(segment));
    }
    in.wait_recvs();
    out.wait_sends();
}

/* ---- the ring through shared memory ---------------------------------------------------------- */

/* The reason at a deadline. The rank waited for is in the log already; a right neighbour that never
 * entered the operation has also left data in its pipe. */
inline std::string nothing_moved(const ls_comm *comm)
{
    std::string text = "nothing moved in shared memory until the deadline";
    if (comm->neighbours->to_right.has_unread()) {
        text += "; rank " + std::to_string(peer_of(comm, comm->rank + 1)) +
                " has not taken what it was sent";
    }
    return text;
}

/* Patience for the worker's wait for the neighbour at the other end of the pipe. */
inline Patience patience_for(ls_comm *comm, const Pipe &pipe, const char *what, int rank)
{
    std::vector<int> awaited((size_t)comm->world, 0);
    awaited[(size_t)rank] = 1;
    return [comm, &pipe, what, rank, awaited] {
        name_ranks(comm, what, awaited);
        int64_t rest_ms = begin_waiting(comm, awaited);
        if (pipe.is_given_up()) {
            throw gloo::IoException("rank " + std::to_string(rank) + " has given up");
        }
        if (rest_ms == 0) {
            throw gloo::IoException(nothing_moved(comm));
        }
    };
}

/* Reduce-scatter and all-gather in one: step s of 2(W-1) sends chunk rank-s-1 to the right and
 * receives chunk rank-s-2 from the left, which is added to this rank's own in the first half and
 * replaces it in the second. Chunks and order of additions, and therefore the bits, equal those of
 * the ring over TCP. Every step is cut into pieces; a piece depends only on the same piece of the
 * step before, so a few pieces go through all steps before the next few begin, while their sums are
 * still in the cache. No rank receives a piece before it has sent its own of that turn, so one free
 * slot suffices for all to make progress. */
inline void shared_ring_all_reduce(ls_comm *comm, const Job &job, const Cut &cut, char *data)
{
    const ls_comm_op &op = job.handle->op;
    Pipe &to = comm->neighbours->to_right, &from = comm->neighbours->from_left;
    const Patience room = patience_for(comm, to, "sending to rank", peer_of(comm, comm->rank + 1));
    const Patience piece =
        patience_for(comm, from, "waiting for rank", peer_of(comm, comm->rank - 1));
    const int64_t per_piece = (int64_t)(Pipe::piece_bytes / cut.element_bytes);
    const int64_t pieces = (cut.count / comm->world + cut.per_chunk + per_piece - 1) / per_piece;
    const int64_t group = Pipe::slots / 2, steps = 2 * (comm->world - 1);
    auto first_of = [&](int64_t chunk, int64_t number) {
        int64_t whole = cut.first((chunk + 1) * cut.per_chunk);
        return std::min(whole, cut.first(chunk * cut.per_chunk) + number * per_piece);
    };
    auto turn = [&](int64_t step, int64_t number) {
        int64_t mine = peer_of(comm, comm->rank - step - 1), theirs = peer_of(comm, mine - 1);
        int64_t first = first_of(mine, number), count = first_of(mine, number + 1) - first;
        memcpy(to.begin_write(room), data + (size_t)first * cut.element_bytes,
               (size_t)count * cut.element_bytes);
        to.end_write(job.tag);
        first = first_of(theirs, number);
        count = first_of(theirs, number + 1) - first;
        char *at = data + (size_t)first * cut.element_bytes;
        const char *arrived = from.begin_read(job.tag, piece);
        if (step >= comm->world - 1) {
            memcpy(at, arrived, (size_t)count * cut.element_bytes);
        } else {
            combine(op, at, arrived, count);
            if (step == comm->world - 2) { /* complete, and still in the cache */
                scale_sum(op, at, count);
            }
        }
        from.end_read();
    };
    for (int64_t begin = 0; begin < pieces; begin += group) {
        for (int64_t step = 0; step < steps; step++) {
            for (int64_t number = begin; number < std::min(begin + group, pieces); number++) {
                turn(step, number);
            }
        }
    }
}

/* ---- the operations ------------------------------------------------------------------------- */

/* Exchanges parts between all ranks: rank r's arrives at r * bytes of `in`; the part for rank r is
 * at r * stride of `out` (stride 0: the same part for all). */
inline void exchange(ls_comm *comm, const Job &job, Window &in, Window &out, size_t bytes,
                     size_t stride)
{
    for (int step = 1; step < comm->world; step++) {
        int from = peer_of(comm, comm->rank - step);
        in.recv(from, job.tag, (size_t)from * bytes, bytes);
    }
    for (int step = 1; step < comm->world; step++) {
        int to = peer_of(comm, comm->rank + step);
        out.send(to, job.tag, (size_t)to * stride, bytes);
    }
    in.wait_recvs();
    out.wait_sends();
}

/* op.buffer = part[r] combined in rank order, `mine` for this rank; `mine` may be op.buffer. */
inline void reduce_in_rank_order(const ls_comm *comm, const ls_comm_op &op, const char *mine,
                                 char *parts, size_t bytes)
{
    int factors = LS_PLANT(product_forgets_last, comm->world,
                           comm->world - (op.redop == LS_COMM_PROD && comm->world > 2));
    memcpy(parts + (size_t)comm->rank * bytes, mine, bytes);
    for (int rank = 1; rank < factors; rank++) {
        combine(op, parts, parts + (size_t)rank * bytes, op.count);
    }
    memcpy(op.buffer, parts, bytes);
}

/* For operations that run in place in `buffer`: copies the input there. */
inline void take_input(const ls_comm_op &op, size_t bytes)
{
    if (op.input != nullptr && op.input != op.buffer) {
        memmove(op.buffer, op.input, bytes);
    }
}

/* The same for this rank's part of `buffer`, which it returns. */
inline char *take_own(const ls_comm *comm, const ls_comm_op &op, size_t bytes)
{
    char *own = (char *)op.buffer + (size_t)comm->rank * bytes;
    if (op.input != nullptr && op.input != own) {
        memmove(own, op.input, bytes);
    }
    return own;
}

/* Moves each rank's part, of which place(rank) is offset and size in `window`, to the root, or from
 * it. */
template <typename Place>
inline void move_parts(ls_comm *comm, int root, uint64_t tag, bool to_root, Window &window,
                       Place place)
{
    for (int rank = 0; rank < comm->world; rank++) {
        int peer = comm->rank == root ? rank : root;
        if (rank == root || (comm->rank != root && comm->rank != rank)) {
            continue;
        }
        std::pair<size_t, size_t> part = place(rank);
        if (to_root == (comm->rank == root)) {
            window.recv(peer, tag, part.first, part.second);
        } else {
            window.send(peer, tag, part.first, part.second);
        }
    }
    window.wait_recvs();
    window.wait_sends();
}

inline void direct_all_reduce(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    char *parts = scratch_of(comm, (size_t)comm->world * bytes);
    Window in(comm, parts, (size_t)comm->world * bytes), out(comm, op.buffer, bytes);
    exchange(comm, job, in, out, bytes, 0);
    reduce_in_rank_order(comm, op, (char *)op.buffer, parts, bytes);
    scale_sum(op, (char *)op.buffer, op.count);
}

inline void all_reduce(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    take_input(op, bytes);
    if ((int64_t)bytes <= direct_bytes_max) {
        direct_all_reduce(comm, job, bytes);
        return;
    }
    Cut cut(comm, op.count, ls_dtype_bytes(op.dtype));
    if (comm->neighbours != nullptr) {
        shared_ring_all_reduce(comm, job, cut, (char *)op.buffer);
        return;
    }
    ring_reduce_scatter(comm, job, cut, (char *)op.buffer);
    ring_all_gather(comm, job, cut, (char *)op.buffer);
}

/* Binomial tree: in round k the ranks that have the data, at most 2^k from the root, send it 2^k
 * further. */
inline void broadcast(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    int place = peer_of(comm, comm->rank - op.root); /* 0 is the root */
    if (place == 0) {
        take_input(op, bytes);
    }
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

inline void all_gather(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    char *own = take_own(comm, op, bytes);
    Window in(comm, op.buffer, (size_t)comm->world * bytes), out(comm, own, bytes);
    exchange(comm, job, in, out, bytes, 0);
}

inline void reduce_scatter(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    const char *input = (const char *)(op.input != nullptr ? op.input : op.buffer);
    size_t whole = (size_t)comm->world * bytes;
    char *parts = scratch_of(comm, whole);
    Window in(comm, parts, whole), out(comm, input, whole);
    exchange(comm, job, in, out, bytes, bytes);
    reduce_in_rank_order(comm, op, input + (size_t)comm->rank * bytes, parts, bytes);
}

inline void reduce(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    take_input(op, bytes);
    Cut cut(comm, op.count, ls_dtype_bytes(op.dtype));
    ring_reduce_scatter(comm, job, cut, (char *)op.buffer);
    Window whole(comm, op.buffer, bytes);
    auto chunk = [&](int rank) {
        size_t from = cut.offset(rank * cut.per_chunk);
        return std::make_pair(from, cut.offset((rank + 1) * cut.per_chunk) - from);
    };
    move_parts(comm, op.root, job.tag + 1, true, whole, chunk);
}

/* The root's buffer or input holds the part of every rank, the others' only their own. */
inline void gather(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    bool root = comm->rank == op.root;
    size_t parts = root ? (size_t)comm->world : 1;
    if (root) {
        take_own(comm, op, bytes);
    }
    Window window(comm, root || op.input == nullptr ? op.buffer : op.input, parts * bytes);
    move_parts(comm, op.root, job.tag, true, window,
               [&](int rank) { return std::make_pair(root ? (size_t)rank * bytes : 0, bytes); });
}

inline void scatter(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    bool root = comm->rank == op.root;
    size_t parts = root ? (size_t)comm->world : 1;
    const char *input = (const char *)(op.input != nullptr ? op.input : op.buffer);
    Window window(comm, root ? input : op.buffer, parts * bytes);
    move_parts(comm, op.root, job.tag, false, window,
               [&](int rank) { return std::make_pair(root ? (size_t)rank * bytes : 0, bytes); });
    if (root) {
        memmove(op.buffer, input + (size_t)comm->rank * bytes, bytes);
    }
}

inline void all_to_all(ls_comm *comm, const Job &job, size_t bytes)
{
    const ls_comm_op &op = job.handle->op;
    const char *input = (const char *)op.input;
    size_t whole = (size_t)comm->world * bytes, own = (size_t)comm->rank * bytes;
    Window in(comm, op.buffer, whole), out(comm, input, whole);
    exchange(comm, job, in, out, bytes, LS_PLANT(all_to_all_sends_first_part, bytes, 0));
    memcpy((char *)op.buffer + own, input + own, LS_PLANT(all_to_all_forgets_own_part, bytes, 0));
}

/* Dissemination barrier: after round k a rank knows that the 2^(k+1)-1 ranks before it have
 * entered. */
inline void barrier(ls_comm *comm, const Job &job, size_t)
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

inline void point_to_point(ls_comm *comm, const Job &job, size_t bytes)
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

inline void execute(ls_comm *comm, const Job &job)
{
    using Collective = void(ls_comm *, const Job &, size_t);
    static Collective *const run[] = {/* in the order of ls_comm_kind */
                                      all_reduce,     broadcast, all_gather, reduce_scatter,
                                      reduce,         gather,    scatter,    point_to_point,
                                      point_to_point, barrier,   all_to_all};
    const ls_comm_op &op = job.handle->op;
    size_t bytes = (size_t)op.count * ls_dtype_bytes(op.dtype);
    if (op.kind != LS_COMM_BARRIER && bytes == 0) {
        return;
    }
    if (comm->world == 1) {
        take_input(op, bytes);
        return;
    }
    run[op.kind](comm, job, bytes);
}

} // namespace ls_gloo

#endif
