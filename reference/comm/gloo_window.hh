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
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <functional>
#include <new>

#include "kernels/core/clock.h"
#include "comm.h"

/* Memory shared by the ranks of one host, for large sums of the Gloo engine: each rank has a pipe
 * to its right neighbour in the ring. Data is written once and read once, where a loopback
 * connection copies it twice and runs the protocol as well. Part of gloo.cc.
 *
 * The memory has no name in any file system: a rank opens its neighbour's through /proc, and the
 * kernel frees it with the last process that has mapped it, however that process ended. A waiting
 * rank sleeps on a futex and checks ten times a second whether its peer is still alive. */

namespace ls_gloo
{

/* Called at intervals during a wait; throws if the wait is in vain. */
using Patience = std::function<void()>;

/* Pieces in order from one process to one other. Both ends agree on the next piece; its tag
 * identifies it, and a piece with another tag counts as absent. */
class Pipe
{
  public:
    /* Of 64 KB to 1 MB the fastest while two ranks computed on two cores; more slots gained
     * nothing. */
    static constexpr size_t piece_bytes = 512 << 10;
    static constexpr uint32_t slots = 4;

    ~Pipe()
    {
        if (shared_ != nullptr) {
            munmap(shared_, sizeof(Shared));
        }
        if (fd_ >= 0) {
            ::close(fd_);
        }
    }
    Pipe() = default;
    Pipe(const Pipe &) = delete;
    Pipe &operator=(const Pipe &) = delete;

    /* The writer's side. False if this machine provides no such memory. */
    bool create()
    {
        fd_ = memfd_create("ls-gloo", MFD_CLOEXEC);
        if (fd_ < 0 || posix_fallocate(fd_, 0, (off_t)sizeof(Shared)) != 0 || !map()) {
            return false;
        }
        new (shared_) Shared();
        return true;
    }
    /* For the reader: where this process exposes the memory, and its identity. */
    std::string address() const
    {
        struct stat what = {};
        char text[96];
        if (fstat(fd_, &what) != 0) {
            return "";
        }
        snprintf(text, sizeof text, "%ld %d %" PRIu64 " %" PRIu64, (long)getpid(), fd_,
                 (uint64_t)what.st_dev, (uint64_t)what.st_ino);
        return text;
    }
    /* The reader's side. False if the writer is on another host or in another container, where its
     * process id does not exist or belongs to another process. */
    bool open(const std::string &address)
    {
        long process = 0;
        int fd = 0;
        uint64_t device = 0, inode = 0;
        char path[64];
        struct stat what = {};
        if (sscanf(address.c_str(), "%ld %d %" SCNu64 " %" SCNu64, &process, &fd, &device,
                   &inode) != 4) {
            return false;
        }
        snprintf(path, sizeof path, "/proc/%ld/fd/%d", process, fd);
        fd_ = ::open(path, O_RDWR | O_CLOEXEC);
        return fd_ >= 0 && fstat(fd_, &what) == 0 && (uint64_t)what.st_dev == device &&
               (uint64_t)what.st_ino == inode && what.st_size == (off_t)sizeof(Shared) && map();
    }

    /* Waits for room; returns where to write the next piece. */
    char *begin_write(const Patience &patience)
    {
        wait(shared_->read, shared_->writer_sleeps, patience, [&](uint32_t read) {
            return shared_->written.load(std::memory_order_relaxed) - read < slots;
        });
        return shared_->piece[shared_->written.load(std::memory_order_relaxed) % slots];
    }
    void end_write(uint64_t tag)
    {
        uint32_t number = shared_->written.load(std::memory_order_relaxed);
        shared_->tag[number % slots] = tag;
        advance(shared_->written, shared_->reader_sleeps);
    }
    /* Waits for the next piece with this tag and returns it. */
    const char *begin_read(uint64_t tag, const Patience &patience)
    {
        uint32_t number = shared_->read.load(std::memory_order_relaxed);
        wait(shared_->written, shared_->reader_sleeps, patience, [&](uint32_t written) {
            return written != number && shared_->tag[number % slots] == tag;
        });
        return shared_->piece[number % slots];
    }
    void end_read()
    {
        advance(shared_->read, shared_->writer_sleeps);
    }
    /* Whether the reader has pieces left to read. */
    bool has_unread() const
    {
        return shared_->written.load() != shared_->read.load();
    }
    /* Ends the pipe: a peer waiting at the other end is released. */
    void give_up()
    {
        shared_->given_up.store(1);
        wake(shared_->written);
        wake(shared_->read);
    }
    bool is_given_up() const
    {
        return shared_->given_up.load() != 0;
    }

  private:
    using Word = std::atomic<uint32_t>;
    static_assert(Word::is_always_lock_free && sizeof(Word) == 4, "a futex is 4 bytes");
    struct Shared {
        alignas(64) Word written{0}; /* in pieces; wraps around */
        Word reader_sleeps{0};
        alignas(64) Word read{0};
        Word writer_sleeps{0};
        alignas(64) Word given_up{0};
        uint64_t tag[slots] = {};
        alignas(4096) char piece[slots][piece_bytes];
        Shared()
        {
        } /* the pieces stay unwritten */
    };
    static constexpr long look_every_ns = 100000000;

    bool map()
    {
        void *memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
        if (memory == MAP_FAILED) {
            return false;
        }
        shared_ = (Shared *)memory;
        return true;
    }
    static void wake(Word &word)
    {
        syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    }
    /* The order of these two operations and of the two in `wait` (all sequentially consistent)
     * ensures that one side sees the other, so no wake-up is lost. */
    static void advance(Word &count, Word &sleeps)
    {
        count.fetch_add(1);
        if (sleeps.exchange(0) != 0) {
            wake(count);
        }
    }
    template <typename Ready>
    void wait(Word &count, Word &sleeps, const Patience &patience, Ready ready)
    {
        const struct timespec slice = {0, look_every_ns};
        while (!ready(count.load())) {
            patience();
            sleeps.store(1);
            uint32_t seen = count.load();
            if (!ready(seen)) {
                syscall(SYS_futex, &count, FUTEX_WAIT, seen, &slice, nullptr, 0);
            }
        }
    }

    int fd_ = -1;
    Shared *shared_ = nullptr;
};

/* This rank's pipes to and from its neighbours. */
struct Neighbours {
    Pipe to_right, from_left;
};

} // namespace ls_gloo

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
