/* Gloo on connections whose ends have proved that they belong to the job (harness/store/mesh.h).
 * Gloo's own pairs accept the first process that connects, trust what it sends and wait five times
 * as long as they were told; here they start on sockets that are connected. Part of gloo.cc.
 *
 * Compiled with -fno-access-control: Gloo's context and pair have no public function for this, and
 * what is private differs between versions. Known are those of September 2020 (Ubuntu 22.04), May
 * 2022 (Debian 12), May 2023 (Ubuntu 24.04), December 2023 (Debian 13) and September 2025. */
#ifndef LS_GLOO_MESH_HH
#define LS_GLOO_MESH_HH

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <gloo/context.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#if __has_include(<gloo/transport/tcp/listener.h>)
#include <gloo/transport/tcp/listener.h>
#include <gloo/transport/tcp/socket.h>
#endif

namespace ls_gloo
{

namespace tcp = gloo::transport::tcp;

/* The sockets of one communicator, one per rank, until pairs own them; -1: none. */
struct Sockets {
    std::vector<int> fd;
    explicit Sockets(int world) : fd((size_t)world, -1)
    {
    }
    ~Sockets()
    {
        for (int one : fd) {
            if (one >= 0) {
                ::close(one);
            }
        }
    }
    Sockets(const Sockets &) = delete;
    Sockets &operator=(const Sockets &) = delete;
};

#if __has_include(<gloo/transport/tcp/listener.h>)
/* Since 2023, a device listens for all of its pairs, from its construction on: it stops here,
 * before a pair could wait for a peer. */
inline void stop_listening(tcp::Device &device)
{
    tcp::Listener &listener = *device.listener_;
    device.unregisterDescriptor(listener.listener_->fd(), &listener); /* waits for its handler */
    listener.listener_.reset();
}

class ConnectedPair : public tcp::Pair
{
  public:
    ConnectedPair(tcp::Context *context, tcp::Device *device, int rank, int &fd)
        : tcp::Pair(context, device, rank, context->getTimeout())
    {
        connectCallback(std::make_shared<tcp::Socket>(std::exchange(fd, -1)), tcp::Error::kSuccess);
    }
};

inline void on_thread_of(tcp::Device &, const std::function<void()> &task)
{
    task(); /* any thread will do */
}
#else
/* Until 2022 each pair listens for its peer, and the device's thread accepts the first one. */
inline void stop_listening(tcp::Device &)
{
}

inline void unregister(void (tcp::Device::*function)(int), tcp::Device &device, int fd,
                       tcp::Handler *) /* 2020 */
{
    (device.*function)(fd);
}
inline void unregister(void (tcp::Device::*function)(int, tcp::Handler *), tcp::Device &device,
                       int fd, tcp::Handler *handler) /* 2022 */
{
    (device.*function)(fd, handler);
}

/* To be made on the device's thread: no other could accept a peer before this listener is closed.
 */
class ConnectedPair : public tcp::Pair
{
  public:
    ConnectedPair(tcp::Context *context, tcp::Device *device, int rank, int &fd)
        : tcp::Pair(context, device, rank, context->getTimeout())
    {
        std::lock_guard<std::mutex> guard(m_);
        unregister(&tcp::Device::unregisterDescriptor, *device_, fd_, this);
        ::close(fd_);
        fd_ = std::exchange(fd, -1);
        handleConnected();
    }
};

class OnThread : private tcp::Handler
{
  public:
    static void run(tcp::Device &device, const std::function<void()> &task)
    {
        OnThread handler(task);
        std::future<void> done = handler.done_.get_future();
        device.registerDescriptor(handler.fd_, EPOLLIN, &handler);
        done.wait();
        /* waits until the loop has left it */
        unregister(&tcp::Device::unregisterDescriptor, device, handler.fd_, &handler);
        done.get();
    }

  private:
    explicit OnThread(const std::function<void()> &task)
        : task_(task), fd_(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK))
    {
        if (fd_ < 0) {
            throw std::system_error(errno, std::generic_category(), "eventfd");
        }
    }
    ~OnThread() override
    {
        ::close(fd_);
    }
    void handleEvents(int) override
    {
        uint64_t count;
        if (read(fd_, &count, sizeof count) != sizeof count) {
            return; /* it has run */
        }
        try {
            task_();
            done_.set_value();
        } catch (...) {
            done_.set_exception(std::current_exception());
        }
    }
    const std::function<void()> &task_;
    std::promise<void> done_;
    int fd_;
};

/* Runs a task on the thread of a device's event loop and waits for its end. */
inline void on_thread_of(tcp::Device &device, const std::function<void()> &task)
{
    OnThread::run(device, task);
}
#endif

inline std::shared_ptr<tcp::Device> open_device(const char *address)
{
    auto device = std::static_pointer_cast<tcp::Device>(
        tcp::CreateDevice(gloo::transport::tcp::attr(address)));
    stop_listening(*device);
    return device;
}

/* What Gloo's rendezvous makes of a store, made of connected sockets, which its pairs take. */
inline std::shared_ptr<gloo::Context> connected(const std::shared_ptr<tcp::Device> &device,
                                                int rank, Sockets &sockets,
                                                std::chrono::milliseconds timeout)
{
    int world = (int)sockets.fd.size();
    auto transport = std::make_shared<tcp::Context>(device, rank, world);
    transport->setTimeout(timeout);
    on_thread_of(*device, [&] {
        for (int other = 0; other < world; other++) {
            if (other != rank) {
                transport->pairs_[(size_t)other].reset(new ConnectedPair(
                    transport.get(), device.get(), other, sockets.fd[(size_t)other]));
            }
        }
    });
    auto context = std::make_shared<gloo::Context>(rank, world);
    context->device_ = device;
    context->transportContext_ = transport;
    context->setTimeout(timeout);
    return context;
}

/* ---- shared memory ------------------------------------------------------------------------------
 */

/* Memory shared by the ranks of one host, for large sums of the Gloo engine: each rank has a pipe
 * to its right neighbour in the ring. Data is written once and read once, where a loopback
 * connection copies it twice and runs the protocol as well. Part of gloo.cc.
 *
 * The memory has no name in any file system: a rank opens its neighbour's through /proc, and the
 * kernel frees it with the last process that has mapped it, however that process ended. A waiting
 * rank sleeps on a futex and checks ten times a second whether its peer is still alive. */

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

#endif
