/* The CUDA backend's table without plans and kernels: device, memory, streams, events, graphs, the
 * wait hook, and the NUMA node, on the emulated runtime. */
#include <limits.h>
#include <sched.h>
#include <sys/stat.h>

#include "kernels/cuda/backend.h"
#include "suite/emulation/runtime/emulate.h"
#include "kernels/core/path.h"
#include "suite/unit/run_suite.h"

static const ls_backend_api *api;
static ls_backend *backend;
static ls_stream *stream;

const ls_backend_api *ls_backend_entry(void); /* of the library that this program is linked to */

static void set_up(void)
{
    ls_backend_options options = {.local_ranks = 1};
    api = ls_backend_entry();
    ck_assert_int_eq(api->open(&options, &backend), LS_OK);
    ck_assert_int_eq(api->stream_create(backend, &stream), LS_OK);
}

static void tear_down(void)
{
    api->stream_destroy(stream);
    api->close(backend);
}

TEST(devices_are_told_apart)
{
    ls_backend *other = NULL;
    ls_backend_info info;
    setenv("LS_EMULATED_DEVICES", "2", 1);
    ls_backend_options options = {.device_index = 1, .local_ranks = 2};
    ck_assert_int_eq(api->open(&options, &other), LS_OK);
    api->describe(other, &info);
    ck_assert_ptr_nonnull(strstr(info.device, "01)"));
    ck_assert_ptr_nonnull(strstr(info.libraries, "libls_emulated.so"));
    ck_assert(!info.host_memory && !info.f16_emulated && !info.bf16_emulated);
    api->close(other);
    options.device_index = 2;
    ck_assert_int_eq(api->open(&options, &other), LS_ERR_INFRA);
    options.oversubscribe = true; /* 2 modulo 2 */
    ck_assert_int_eq(api->open(&options, &other), LS_OK);
    api->describe(other, &info);
    ck_assert_ptr_nonnull(strstr(info.device, "00)"));
    api->close(other);
    unsetenv("LS_EMULATED_DEVICES");
}

TEST(memory_is_zeroed_and_aligned)
{
    unsigned char host[1000];
    void *memory = NULL;
    ck_assert_int_eq(api->memory_alloc(backend, sizeof host, "a test", &memory), LS_OK);
    ck_assert_uint_eq((uintptr_t)memory % 256, 0);
    memset(host, 1, sizeof host);
    ck_assert_int_eq(api->copy_out(backend, stream, host, memory, sizeof host), LS_OK);
    ck_assert_int_eq(api->stream_wait(stream), LS_OK);
    for (size_t i = 0; i < sizeof host; i++) {
        ck_assert_uint_eq(host[i], 0);
    }
    api->memory_free(backend, memory);
    ck_assert_int_eq(api->memory_alloc(backend, INT64_C(1) << 50, "too much", &memory),
                     LS_ERR_INFRA);
    ck_assert_int_eq(cudaGetLastError(),
                     cudaSuccess); /* reported once, not again by the next call */
    ck_assert_int_eq(api->memory_alloc(backend, -1, "a mistake", &memory), LS_ERR_INFRA);
}

TEST(graphs_through_the_table)
{
    ls_graph *graph = NULL;
    void *memory = NULL, *pinned = NULL;
    ck_assert_int_eq(api->memory_alloc(backend, 64, "a test", &memory), LS_OK);
    ck_assert_int_eq(api->host_alloc(backend, 64, "a test", &pinned), LS_OK);
    ck_assert_int_eq(api->graph_begin(stream), LS_OK);
    ck_assert_int_eq(api->copy_in(backend, stream, memory, pinned, 64), LS_OK);
    ck_assert_int_eq(api->graph_end(stream, &graph), LS_OK);
    for (int round = 1; round < 3; round++) {
        char host[64];
        memset(pinned, round, 64);
        ck_assert_int_eq(api->graph_launch(graph, stream), LS_OK);
        ck_assert_int_eq(api->copy_out(backend, stream, host, memory, 64), LS_OK);
        ck_assert_int_eq(api->stream_wait(stream), LS_OK);
        ck_assert_int_eq(host[63], round);
    }
    api->graph_destroy(graph);
    /* a recording that waits is refused at its end, and the stream works again */
    ck_assert_int_eq(api->graph_begin(stream), LS_OK);
    ck_assert_int_ne(api->stream_wait(stream), LS_OK);
    ck_assert_int_ne(api->graph_end(stream, &graph), LS_OK);
    (void)cudaGetLastError();
    ck_assert_int_eq(api->copy_in(backend, stream, memory, pinned, 64), LS_OK);
    ck_assert_int_eq(api->stream_wait(stream), LS_OK);
    api->host_free(backend, pinned);
    api->memory_free(backend, memory);
}

TEST(events_have_times_and_order)
{
    ls_event *from = NULL, *to = NULL;
    ls_stream *other = NULL;
    double ms = -1;
    ck_assert_int_eq(api->stream_create(backend, &other), LS_OK);
    ck_assert_int_eq(api->event_create(backend, &from), LS_OK);
    ck_assert_int_eq(api->event_create(backend, &to), LS_OK);
    ck_assert_int_eq(api->event_record(from, stream), LS_OK);
    ck_assert_int_eq(api->stream_after(other, from), LS_OK);
    ck_assert_int_eq(api->event_record(to, other), LS_OK);
    ck_assert_int_eq(api->event_wait(to), LS_OK);
    ck_assert_int_eq(api->event_ms(from, to, &ms), LS_OK);
    ck_assert_double_ge(ms, 0);
    ck_assert_ptr_eq(api->stream_native(stream), stream->native);
    ck_assert_ptr_eq(api->event_native(to), to->native);
    api->event_destroy(from);
    api->event_destroy(to);
    api->stream_destroy(other);
}

/* ---- the watched wait ------------------------------------------------------------------------ */

/* Work that ends after a number of calls of the hook. */
typedef struct patience {
    int looks, wanted;
    ls_status status; /* the hook's answer after that */
} patience;

static bool until_looked(void *arguments)
{
    patience *p;
    memcpy(&p, arguments, sizeof p);
    return p->looks >= p->wanted && p->status == LS_OK;
}

static ls_status look(void *context, double waited_s)
{
    patience *p = context;
    ck_assert_double_ge(waited_s, 0);
    p->looks++;
    return p->looks >= p->wanted ? p->status : LS_OK;
}

TEST(waits_are_watched)
{
    patience patient = {.wanted = 3, .status = LS_OK}, *p = &patient;
    ls_event *event = NULL;
    ck_assert_int_eq(api->event_create(backend, &event), LS_OK);
    api->set_wait_hook(backend, look, p);
    ck_assert_int_eq(emulate_enqueue(stream->native, until_looked, &p, sizeof p), cudaSuccess);
    ck_assert_int_eq(api->event_record(event, stream), LS_OK);
    ck_assert_int_eq(api->event_wait(event), LS_OK);
    ck_assert_int_eq(p->looks, 3);
    /* a device that never finishes, and a hook that gives up */
    *p = (patience){.wanted = 2, .status = LS_ERR_PEER_LOST};
    ck_assert_int_eq(emulate_enqueue(stream->native, until_looked, &p, sizeof p), cudaSuccess);
    ck_assert_int_eq(api->stream_wait(stream), LS_ERR_PEER_LOST);
    ck_assert_int_eq(p->looks, 2);
    p->status = LS_OK;
    api->set_wait_hook(backend, NULL, NULL);
    ck_assert_int_eq(api->stream_wait(stream), LS_OK);
    api->event_destroy(event);
}

/* ---- the NUMA node --------------------------------------------------------------------------- */

static char root[] = "/tmp/ls_cuda_numa_XXXXXX";

static void write_line(const char *path, const char *line)
{
    char full[PATH_MAX];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        (void)mkdir(full, 0777);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "%s\n", line);
    fclose(file);
}

TEST(bound_to_the_node)
{
    char text[64], line[32];
    cpu_set_t before, after;
    ck_assert_int_eq(sched_getaffinity(0, sizeof before, &before), 0);
    int core = 0;
    while (!CPU_ISSET((size_t)core, &before)) {
        core++;
    }
    ck_assert_ptr_nonnull(mkdtemp(root));
    setenv("LS_SYSFS", root, 1);
    ls_numa_bind("0000:1A:00.0", text, sizeof text);
    ck_assert_str_eq(text, "NUMA node unknown");
    write_line("bus/pci/devices/0000:1a:00.0/numa_node", "-1"); /* a machine with one node */
    ls_numa_bind("0000:1A:00.0", text, sizeof text);
    ck_assert_str_eq(text, "NUMA node unknown");
    write_line("bus/pci/devices/0000:1a:00.0/numa_node", "1");
    ls_numa_bind("0000:1A:00.0", text, sizeof text);
    ck_assert_str_eq(text, "NUMA node 1, cores unknown");
    write_line("devices/system/node/node1/cpulist", "1020-1022");
    ls_numa_bind("0000:1A:00.0", text, sizeof text);
    ck_assert_str_eq(text, "not on NUMA node 1: none of its cores is allowed");
    ck_assert_int_eq(sched_getaffinity(0, sizeof after, &after), 0);
    ck_assert(CPU_EQUAL(&before, &after));
    snprintf(line, sizeof line, "%d,1020-1022", core);
    write_line("devices/system/node/node1/cpulist", line);
    ls_numa_bind("0000:1A:00.0", text, sizeof text);
    ck_assert_str_eq(text, "NUMA node 1, 1 cores");
    ck_assert_int_eq(sched_getaffinity(0, sizeof after, &after), 0);
    ck_assert(CPU_COUNT(&after) == 1 && CPU_ISSET((size_t)core, &after));
    unsetenv("LS_SYSFS");
    ls_path_remove_tree(root);
}

TEST(errors_after_which_the_device_is_lost)
{
    ck_assert_int_eq(ls_cuda_check(cudaSuccess, "a", "b", 1), LS_OK);
    ck_assert_int_eq(ls_cuda_check(cudaErrorInvalidValue, "a", "b", 1), LS_ERR_INFRA);
    ck_assert_int_eq(ls_cuda_check(cudaErrorIllegalAddress, "a", "b", 1), LS_ERR_DEVICE_LOST);
    ck_assert_int_eq(ls_cuda_check(cudaErrorECCUncorrectable, "a", "b", 1), LS_ERR_DEVICE_LOST);
    ck_assert_int_eq(ls_cuda_check(cudaErrorMpsClientTerminated, "a", "b", 1), LS_ERR_DEVICE_LOST);
    ck_assert_int_eq(ls_cuda_check(cudaErrorDevicesUnavailable, "a", "b", 1), LS_ERR_INFRA);
    ck_assert(!ls_cuda_is_lost());
    ck_assert_int_eq(ls_cuda_check_dnn(CUDNN_STATUS_SUCCESS, "a", "b", 1), LS_OK);
    ck_assert_int_eq(ls_cuda_check_dnn(CUDNN_STATUS_BAD_PARAM, "a", "b", 1), LS_ERR_INFRA);
    ck_assert_int_eq(ls_cuda_check_blas(CUBLAS_STATUS_INVALID_VALUE, "a", "b", 1), LS_ERR_INFRA);
}

TEST_MAIN("cuda_backend", .before = set_up, .after = tear_down)
