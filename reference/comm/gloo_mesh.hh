/* Gloo on connections whose ends have proved that they belong to the job (harness/store/mesh.h).
 * Gloo's own pairs accept the first process that connects, trust what it sends and wait five times
 * as long as they were told; here they start on sockets that are connected. Part of gloo.cc.
 *
 * Compiled with -fno-access-control: Gloo's context and pair have no public function for this, and
 * what is private differs between versions. Known are those of September 2020 (Ubuntu 22.04), May
 * 2022 (Debian 12), May 2023 (Ubuntu 24.04), December 2023 (Debian 13) and September 2025. */
#ifndef LS_GLOO_MESH_HH
#define LS_GLOO_MESH_HH

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
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

} // namespace ls_gloo

#endif
