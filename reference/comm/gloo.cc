/* The CPU engine: Gloo's TCP transport behind the contract of comm.h, plus shared memory for large
 * sums of ranks on one host (gloo_mesh.hh). One worker thread per communicator executes the
 * operations in order of `begin`; it sleeps while it waits.
 *
 * Gloo provides contexts and tagged sends and receives on connections opened by the store's mesh
 * (gloo_mesh.hh). The collectives are composed
 * here from those, because Gloo's own cannot be aborted from another thread, do not name the rank
 * they wait for, and take 2(W-1) hops for the few kilobytes of a SyncBN reduction
 * (gloo_collectives.hh).
 *
 * The tag of a transfer holds kind, size, operator and number of its operation: ranks that disagree
 * wait for each other until the deadline instead of receiving the wrong data. */
#include "gloo_collectives.hh"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <new>

#include <gloo/common/error.h>
#include <gloo/config.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/pair.h>

#include "harness/store/mesh.h"
#include "kernels/core/digest.h"
#include "kernels/core/log.h"

using ls_gloo::Aborted;
using ls_gloo::Job;

namespace
{

constexpr std::chrono::milliseconds look_every(500); /* interval of checks for lost ranks */

struct StoreFailure {
    ls_status status; /* already logged by the store */
};

void need(ls_status status)
{
    if (status != LS_OK) {
        throw StoreFailure{status};
    }
}

/* Gloo writes to sockets without MSG_NOSIGNAL, so a dead peer would end this process by SIGPIPE.
 * The signal is sent to the thread that wrote: while it is blocked there, the write fails with
 * EPIPE, which Gloo turns into an exception. The process's signal handlers stay as they are.
 * Threads created meanwhile inherit the block. */
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
        if (!sigismember(&before_,
                         SIGPIPE)) { /* a pending one was raised by our write: consume it */
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

/* ---- the worker ----------------------------------------------------------------------------- */

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
        ls_gloo::execute(comm, *job);
    } catch (const Aborted &) { /* our own caller aborted it: nothing to log */
        status = LS_ERR_PEER_LOST;
        std::unique_lock<std::mutex> guard(comm->lock);
        std::string lost = comm->lost;
        guard.unlock();
        if (!lost.empty()) {
            log_failure(comm, *job, lost.c_str());
        }
    } catch (const gloo::Exception &error) {
        log_failure(comm, *job, error.what());
        status = LS_ERR_PEER_LOST;
    } catch (const std::exception &error) {
        log_failure(comm, *job, error.what());
        status = LS_ERR_INFRA;
    }
    if (status != LS_OK && comm->context != nullptr) {
        try { /* the others must not have to wait for their own deadlines */
            comm->context->closeConnections();
        } catch (const std::exception &error) {
            ls_log_warn("gloo '%s': closing its connections: %s", comm->name.c_str(), error.what());
        }
        if (comm->neighbours != nullptr) {
            comm->neighbours->to_right.give_up();
            comm->neighbours->from_left.give_up();
        }
    }
    handle->finished_ns = ls_clock_ns();
    return status;
}

void work(ls_comm *comm)
{
    pthread_setname_np(pthread_self(),
                       "ls-gloo"); /* SIGPIPE is blocked here: inherited from open */
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

/* ---- the contract --------------------------------------------------------------------------- */

void describe(char *text, int bytes)
{
    Dl_info where = {};
    dladdr((void *)&gloo::transport::tcp::CreateDevice, &where);
    snprintf(text, (size_t)bytes, "Gloo %d.%d.%d, TCP, %s", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR,
             GLOO_VERSION_PATCH, where.dli_fname != nullptr ? where.dli_fname : "?");
}

/* Until the deadline, which is one for all that `open` waits for. */
double rest_s(const ls_comm *comm)
{
    return std::max(0.0, (double)(comm->deadline_ns - ls_clock_ns()) * 1e-9);
}

std::string key_of(const ls_comm *comm, const char *what, int rank)
{
    return "gloo/" + comm->name + "/" + what + "/" + std::to_string(rank);
}

void publish(const ls_comm *comm, const ls_comm_options *options, const char *what,
             const std::string &value)
{
    need(ls_store_set(options->store, key_of(comm, what, comm->rank).c_str(), value.data(),
                      value.size()));
}

std::string published(const ls_comm *comm, const ls_comm_options *options, const char *what,
                      int rank)
{
    void *value = nullptr;
    size_t bytes = 0;
    need(ls_store_get(options->store, key_of(comm, what, rank).c_str(), rest_s(comm), &value,
                      &bytes));
    std::string text((const char *)value, bytes);
    free(value);
    return text;
}

/* Whether this rank may send large sums through shared memory. */
ls_status may_share(const ls_comm_options *options, bool *out)
{
    const char *text = getenv("LS_SHM");
    if (text != nullptr && strcmp(text, "0") != 0 && strcmp(text, "1") != 0) {
        return ls_log_fail(LS_ERR_USAGE, "LS_SHM=%s: allowed are 0 and 1", text);
    }
    *out = options->one_host && options->world > 1 && (text == nullptr || text[0] == '1');
    return LS_OK;
}

/* Opens this rank's pipes; NULL if shared memory is switched off or does not work. */
std::unique_ptr<ls_gloo::Neighbours> meet_neighbours(const ls_comm *comm,
                                                     const ls_comm_options *options, bool shares)
{
    std::unique_ptr<ls_gloo::Neighbours> both(new ls_gloo::Neighbours());
    bool mine = shares && both->to_right.create();
    publish(comm, options, "memory", mine ? both->to_right.address() : "");
    std::string left =
        published(comm, options, "memory", (comm->rank + comm->world - 1) % comm->world);
    if (!mine || !both->from_left.open(left)) {
        both.reset();
    }
    return both;
}

/* Waits until all ranks are connected: if a rank leaves while another is still shaking hands,
 * Gloo's thread throws there and ends the process. Each rank also publishes whether it can use
 * shared memory, which is used by all ranks or by none. */
void wait_for_all(ls_comm *comm, const ls_comm_options *options)
{
    std::vector<std::string> name;
    std::vector<const char *> key;
    for (int rank = 0; rank < comm->world; rank++) {
        name.push_back(key_of(comm, "connected", rank));
    }
    for (const std::string &one : name) {
        key.push_back(one.c_str());
    }
    publish(comm, options, "connected", comm->neighbours != nullptr ? "memory" : "");
    need(ls_store_wait(options->store, key.data(), comm->world, rest_s(comm)));
    for (int rank = 0; rank < comm->world && comm->neighbours != nullptr; rank++) {
        if (published(comm, options, "connected", rank) != "memory") {
            comm->neighbours.reset();
        }
    }
}

void connect(ls_comm *comm, const ls_comm_options *options, bool shares)
{
    char address[128];
    if (options->address != nullptr) {
        snprintf(address, sizeof address, "%s", options->address);
    } else {
        ls_store_local_address(options->store, address, sizeof address);
    }
    auto device = ls_gloo::open_device(address);
    const gloo::transport::tcp::attr &own = device->attr_;
    ls_gloo::Sockets sockets(comm->world);
    need(ls_mesh_connect(options->store, ("gloo/" + comm->name).c_str(), comm->rank, comm->world,
                         (const struct sockaddr *)&own.ai_addr, (socklen_t)own.ai_addrlen,
                         comm->deadline_ns, sockets.fd.data()));
    comm->context = ls_gloo::connected(device, comm->rank, sockets,
                                       std::chrono::milliseconds((int64_t)(comm->timeout_s * 1e3)));
    comm->probe = comm->context->createUnboundBuffer(&comm->probed, sizeof comm->probed);
    comm->neighbours = meet_neighbours(comm, options, shares);
    wait_for_all(comm, options);
}

ls_status open(const ls_comm_options *options, ls_comm **out)
{
    std::unique_ptr<ls_comm> comm(new (std::nothrow) ls_comm());
    LS_MEMORY(comm != nullptr);
    LS_ASSERT(options->world == 1 || options->store != NULL);
    bool shares = false;
    LS_TRY(may_share(options, &shares));
    PipeSignalBlocked here_and_in_new_threads;
    try {
        comm->rank = options->rank;
        comm->world = options->world;
        comm->name = options->name;
        comm->timeout_s = options->timeout_s;
        comm->deadline_ns = ls_clock_after(options->timeout_s);
        comm->backend_api = options->backend_api;
        if (options->world > 1) {
            connect(comm.get(), options, shares);
        }
        comm->worker = std::thread(work, comm.get());
    } catch (const StoreFailure &failure) {
        ls_log_error("gloo '%s': rank %d of %d did not find its peers", options->name,
                     options->rank, options->world);
        return failure.status;
    } catch (const std::exception &error) {
        bool of_gloo = dynamic_cast<const gloo::Exception *>(&error) != nullptr;
        return ls_log_fail(of_gloo ? LS_ERR_RENDEZVOUS : LS_ERR_INFRA,
                           "gloo '%s': rank %d of %d cannot %s (own address %s): %s", options->name,
                           options->rank, options->world, of_gloo ? "connect to its peers" : "open",
                           options->address != nullptr ? options->address
                                                       : "of the route to rank 0",
                           error.what());
    }
    *out = comm.release();
    return LS_OK;
}

/* Kind, size, type, root and operator, so that only matching operations meet; the lowest 8 bits
 * count the transfers of one operation. */
uint64_t tag_of(const ls_comm_op *op, uint64_t collective)
{
    int64_t what[5] = {op->kind, op->count, op->dtype, op->root, op->redop};
    if (op->kind == LS_COMM_SEND || op->kind == LS_COMM_RECV) {
        what[0] = LS_COMM_SEND; /* same on both ends; they match in order per pair of ranks */
        what[3] = 0;
        collective = 0;
    }
    uint64_t digest = ls_digest_update(LS_DIGEST_START, what, sizeof what);
    return (digest & UINT64_C(0xffffff)) << 40 | (collective & UINT64_C(0xffffffff)) << 8;
}

ls_status begin(ls_comm *comm, const ls_comm_op *op, ls_event *after, ls_comm_handle *handle)
{
    LS_ASSERT(op->count >= 0 && op->root >= 0 && op->root < comm->world);
    LS_TRY(ls_comm_check(op, comm->world));
    Job *job = new (std::nothrow) Job();
    LS_MEMORY(job != nullptr);
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

/* Call with the lock held. */
void end_waits(ls_comm *comm)
{
    for (gloo::transport::UnboundBuffer *buffer : comm->live) {
        buffer->abortWaitRecv();
        buffer->abortWaitSend();
    }
}

/* Gloo reports a closed connection to transfers that have not begun, but not to one that is half
 * written or half read (its Pair::signalException), which would wait until its deadline. So a
 * caller that waits for the worker probes the connections in use with a receive that never matches.
 * Call with the lock held. */
void look_for_lost(ls_comm *comm)
{
    constexpr uint64_t never_sent =
        0xff; /* tags of operations are multiples of 256 apart from this */
    for (size_t rank = 0; rank < comm->awaited.size() && comm->lost.empty(); rank++) {
        if (comm->awaited[rank] == 0 || (int)rank == comm->rank) {
            continue;
        }
        try {
            auto &pair = comm->context->getPair((int)rank);
            pair->recv(comm->probe.get(), never_sent, 0, sizeof comm->probed);
        } catch (const std::exception &error) {
            comm->lost = error.what();
        }
    }
    if (!comm->lost.empty()) {
        end_waits(comm);
    }
}

ls_status wait(ls_comm *comm, ls_comm_handle *handle, ls_stream *)
{
    Job *job = (Job *)handle->engine;
    LS_ASSERT(job != NULL);
    std::unique_lock<std::mutex> guard(comm->lock);
    /* ends, because every transfer of the worker has a deadline */
    while (!comm->to_caller.wait_for(guard, look_every, [&] { return job->done; })) {
        if (comm->failed == LS_OK && comm->context != nullptr) {
            look_for_lost(comm);
        }
    }
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
    end_waits(comm);
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

const char *transport(const ls_comm *comm)
{
    return comm->world == 1 ? nullptr : comm->neighbours != nullptr ? "shared memory" : "TCP";
}

bool scales(ls_dtype dtype)
{
    return dtype == LS_F32; /* for 16-bit types the backend's vector code is faster */
}

const ls_comm_api table = {LS_COMM_ABI, "gloo", describe,  open,    begin,   wait,    scales, poll,
                           abort_all,   close,  transport, nullptr, nullptr, nullptr, nullptr};

} // namespace

extern "C" const ls_comm_api *ls_comm_entry(void)
{
    return &table;
}
