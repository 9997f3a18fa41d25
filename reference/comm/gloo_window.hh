/* One communicator of the Gloo engine, and memory windows for its transfers. Part of gloo.cc. */
#ifndef LS_GLOO_WINDOW_HH
#define LS_GLOO_WINDOW_HH

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include "kernels/core/clock.h"
#include "comm.h"
#include "gloo_shared.hh"

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

#endif
