/* Memory that the ranks of one host share, for the large sums of the Gloo engine: every rank has a
 * pipe to its right neighbour of the ring. What goes through it is written once and read once,
 * where a loopback connection copies it twice and runs the protocol besides. Part of gloo.cc.
 *
 * The memory has no name in any file system: a rank opens its neighbour's by way of /proc, and it
 * is gone with the last process that has mapped it, however that one ended. Who waits sleeps on a
 * futex and looks, ten times a second, whether there is still something to wait for. */
#ifndef LS_GLOO_SHARED_HH
#define LS_GLOO_SHARED_HH

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
#include <string>

namespace ls_gloo
{

/* Called by whoever waits, now and then; throws where waiting is in vain. */
using Patience = std::function<void()>;

/* Pieces in order from one process to one other. Both ends agree on what the next piece is; its tag
 * says so, and a piece with another tag counts as not there. */
class Pipe
{
  public:
    /* Of 64 KB to 1 MB the fastest beside two computing ranks on two cores; more slots gained
     * nothing.
     */
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

    /* The writer's side. False where this machine has no such memory to give. */
    bool create()
    {
        fd_ = memfd_create("ls-gloo", MFD_CLOEXEC);
        if (fd_ < 0 || posix_fallocate(fd_, 0, (off_t)sizeof(Shared)) != 0 || !map()) {
            return false;
        }
        new (shared_) Shared();
        return true;
    }
    /* What the reader has to know: where this process shows the memory, and which it is. */
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
    /* The reader's side. False where the writer lives on another host or in another container:
     * then its process is not there, or is another one. */
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

    /* Where the next piece goes, once there is room. */
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
    /* The next piece, once it is there and is the one that is meant. */
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
    /* Whether the reader has yet to take something. */
    bool has_unread() const
    {
        return shared_->written.load() != shared_->read.load();
    }
    /* Nothing more will come through, or be taken: whoever waits at the other end shall know. */
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
        alignas(64) Word written{0}; /* pieces; wraps around */
        Word reader_sleeps{0};
        alignas(64) Word read{0};
        Word writer_sleeps{0};
        alignas(64) Word given_up{0};
        uint64_t tag[slots] = {};
        alignas(4096) char piece[slots][piece_bytes];
        Shared()
        {
        } /* the pieces stay untouched */
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
    /* The order of these two and of the two in `wait` (all sequentially consistent) makes sure that
     * one side sees the other: no wake-up is lost. */
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

/* This rank's two pipes. */
struct Neighbours {
    Pipe to_right, from_left;
};

} // namespace ls_gloo

#endif
