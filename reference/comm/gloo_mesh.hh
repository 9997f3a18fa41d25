/* Gloo on connections whose ends have proved that they belong to the job (harness/store/mesh.h).
 * Gloo's own pairs accept the first process that connects, trust what it sends and wait five times
 * as long as they were told; here they start on sockets that are connected. Part of gloo.cc. */
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
#include <vector>

#include <gloo/context.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>

namespace ls_gloo
{

namespace tcp = gloo::transport::tcp;

/* A pair on a connected socket, which it owns once it is made. To be made on the device's thread:
 * the base class listens for a peer, and only that thread could accept one before this listener is
 * closed. */
class ConnectedPair : public tcp::Pair
{
  public:
    ConnectedPair(tcp::Context *context, tcp::Device *device, int rank,
                  std::chrono::milliseconds timeout, int fd)
        : tcp::Pair(context, device, rank, timeout)
    {
        std::lock_guard<std::mutex> guard(m_);
        device_->unregisterDescriptor(fd_, this);
        ::close(fd_);
        fd_ = fd;
        handleConnected();
    }
};

/* Runs a task on the thread of a device's event loop and waits for its end. */
class OnDevice : private tcp::Handler
{
  public:
    static void run(tcp::Device &device, const std::function<void()> &task)
    {
        OnDevice handler(task);
        std::future<void> done = handler.done_.get_future();
        device.registerDescriptor(handler.fd_, EPOLLIN, &handler);
        done.wait();
        device.unregisterDescriptor(handler.fd_, &handler); /* waits until the loop has left it */
        done.get();
    }

  private:
    explicit OnDevice(const std::function<void()> &task)
        : task_(task), fd_(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK))
    {
        if (fd_ < 0) {
            throw std::system_error(errno, std::generic_category(), "eventfd");
        }
    }
    ~OnDevice() override
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

/* The pairs of one communicator. */
class Transport : public tcp::Context
{
  public:
    /* Takes fd[size], -1 at `rank`. */
    Transport(const std::shared_ptr<tcp::Device> &device, int rank, int size, std::vector<int> fd)
        : tcp::Context(device, rank, size), fd_(std::move(fd))
    {
    }
    ~Transport() override
    {
        for (int fd : fd_) {
            if (fd >= 0) {
                ::close(fd);
            }
        }
    }
    void connect()
    {
        OnDevice::run(*device_, [this] {
            for (int other = 0; other < size; other++) {
                if (other != rank) {
                    createPair(other);
                }
            }
        });
    }
    std::unique_ptr<gloo::transport::Pair> &createPair(int other) override
    {
        auto &pair = pairs_[(size_t)other];
        pair.reset(new ConnectedPair(this, device_.get(), other, getTimeout(), fd_[(size_t)other]));
        fd_[(size_t)other] = -1;
        return pair;
    }

  private:
    std::vector<int> fd_;
};

/* What Gloo's rendezvous makes of a store, made of a transport whose pairs are connected. */
class Context : public gloo::Context
{
  public:
    Context(const std::shared_ptr<tcp::Device> &device, const std::shared_ptr<Transport> &transport)
        : gloo::Context(transport->rank, transport->size)
    {
        device_ = device;
        transportContext_ = transport;
        setTimeout(transport->getTimeout());
    }
};

} // namespace ls_gloo

#endif
