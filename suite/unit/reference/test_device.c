/* A device as the trainer opens it, and tensors that go to it and come back as f32: over a device
 * that copies only when it is waited for, from memory with nothing around it. */
#include <stdatomic.h>
#include <sys/mman.h>

#include "harness/machine/machine.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "reference/train/ways/team.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"
#include "host_device.h"

/* ---- open and close -------------------------------------------------------------------------- */

TEST(a_device_is_opened_and_closed)
{
    static const char *const names[] = {"cpu", "auto"};
    static const ls_device none;
    setenv("LS_SYSFS", "/nonexistent", 1); /* no NVIDIA device on the bus */
    for (int i = 0; i < 2; i++) {
        ls_backend_options options = {.threads = 3, .local_ranks = 1};
        ls_device device = {0};
        ck_assert_int_eq(ls_device_open(names[i], &options, &device), LS_OK);
        ck_assert_str_eq(device.api->name, "cpu");
        ck_assert_int_eq(device.info.threads, 3);
        ck_assert(device.info.host_memory && device.stream != NULL && device.backend != NULL);
        ck_assert_str_eq(getenv("GOMP_SPINCOUNT"), i == 0 ? "10000" : "77");
        setenv("GOMP_SPINCOUNT", "77", 1); /* a given one stays */
        for (int again = 0; again < 2; again++) {
            ls_device_close(&device);
            ck_assert_mem_eq(&device, &none, sizeof none);
        }
    }
}

static void write_line(const char *folder, const char *name, const char *line)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "%s\n", line);
    fclose(file);
}

TEST(nvidia_controllers_on_the_bus)
{
    static const char *const rows[][2] = {
        {"0x10de", "0x030200"},                         /* 3D controller: counts */
        {"0x10de", "0x030200"}, {"0x10de", "0x030000"}, /* display controller: counts */
        {"0x10de", "0x030000"}, {"0x10de", "0x030001"},
        {"0x10de", "0x040300"}, /* its sound function: does not */
        {"0x1002", "0x030000"}, /* another maker's */
        {"0x10de", "0x030000"}, /* a hidden folder: does not */
    };
    enum { ROWS = sizeof rows / sizeof rows[0] };
    ls_machine_device found[LS_MACHINE_DEVICES_MAX];
    char long_root[5000];
    memset(long_root, 'x', sizeof long_root);
    long_root[sizeof long_root - 1] = '\0';
    ck_assert_int_eq(ls_bus_list(long_root, found, LS_MACHINE_DEVICES_MAX), 0);
    char root[] = "/tmp/ls_pciXXXXXX", folder[128];
    ck_assert_ptr_nonnull(mkdtemp(root));
    ck_assert_int_eq(ls_bus_list(root, found, LS_MACHINE_DEVICES_MAX), 0);
    for (int i = 0; i < ROWS; i++) {
        snprintf(folder, sizeof folder, "%s/bus/pci/devices/%s0000:0%d:00.0", root,
                 i == ROWS - 1 ? "." : "", i);
        ck_assert_int_eq(ls_path_make_folder(folder), LS_OK);
        write_line(folder, "vendor", rows[i][0]);
        write_line(folder, "class", rows[i][1]);
    }
    ck_assert_int_eq(ls_bus_list(root, found, LS_MACHINE_DEVICES_MAX), 5);
    ls_path_remove_tree(root);
}

/* One NVIDIA device on the bus is enough: then it is CUDA or an error. */
TEST(a_gpu_on_the_bus_is_taken)
{
    char root[] = "/tmp/test_device.XXXXXX";
    ls_backend_options options = {.threads = 1, .local_ranks = 1};
    ls_device device = {0};
    ck_assert_ptr_nonnull(mkdtemp(root));
    LS_TEXT(folder, 200, "%s/bus/pci/devices/0000:01:00.0", root);
    ck_assert_int_eq(ls_path_make_folder(folder), LS_OK);
    write_line(folder, "vendor", "0x10de");
    write_line(folder, "class", "0x030200");
    setenv("LS_SYSFS", root, 1);
    catch_lines();
    ls_status status = ls_device_open("auto", &options, &device);
    const char *said = caught_text();
    ls_path_remove_tree(root);
    ck_assert_msg(status == LS_OK ? strcmp(device.api->name, "cuda") == 0
                                  : strcasestr(said, "cuda") != NULL,
                  "%s", said);
    ls_device_close(&device);
}

/* No device on the bus, but a file that only a driver leaves: a GPU may be hidden, and the CPU is
 * not taken for it without being asked. */
static const char *const traces[][2] = {{"LS_DEVFS", "nvidia0"},
                                        {"LS_DEVFS", "nvidiactl"},
                                        {"LS_DEVFS", "dxg"},
                                        {"LS_PROCFS", "driver/nvidia"}};

ROWS_TEST(a_hidden_gpu_is_no_cpu, traces)
{
    char root[] = "/tmp/test_device.XXXXXX";
    ls_backend_options options = {.threads = 1, .local_ranks = 1};
    ls_device device = {0};
    ck_assert_ptr_nonnull(mkdtemp(root));
    setenv("LS_SYSFS", root, 1);
    setenv("LS_DEVFS", root, 1);
    setenv("LS_PROCFS", root, 1);
    ck_assert_str_eq(ls_bus_choose("auto"), "cpu");
    LS_TEXT(file, 200, "%s/%s", root, traces[_i][1]);
    ck_assert_int_eq(ls_path_make_folder(file), LS_OK);
    catch_lines();
    ls_status status = ls_device_open("auto", &options, &device);
    const char *said = caught_text();
    ck_assert_msg(strstr(said, file) != NULL && strstr(said, "--device cpu") != NULL, "%s", said);
    ck_assert_msg(status == LS_OK ? strcmp(device.api->name, "cuda") == 0 : status == LS_ERR_INFRA,
                  "%d: %s", status, said);
    ls_device_close(&device);
    const char *chosen = NULL;
    setenv("LS_LIBCUDA", "/nonexistent", 1);
    catch_lines();
    ck_assert_int_eq(ls_machine_choose("auto", 1, false, &chosen),
                     LS_ERR_INFRA); /* as bench does */
    said = caught_text();
    ck_assert_msg(strstr(said, file) != NULL && strstr(said, "DEVICE=cpu") != NULL, "%s", said);
    ck_assert_int_eq(ls_machine_choose("cpu", 1, false, &chosen), LS_OK);
    ck_assert_int_eq(ls_device_open("cpu", &options, &device), LS_OK);
    ls_device_close(&device);
    ls_path_remove_tree(root);
}

TEST(a_device_that_cannot_be_opened)
{
    ls_backend_options options = {.threads = -1, .local_ranks = 1};
    ls_device device = {.info.threads = 77};
    catch_lines();
    ls_status status = ls_device_open("cpu", &options, &device);
    ck_assert_str_eq(caught_lines(),
                     "error: --threads -1: the number of threads is 1 or more, or 0 for cores / "
                     "ranks\n");
    ck_assert_int_eq(status, LS_ERR_USAGE);
    catch_lines();
    status = ls_device_open("none", &options, &device);
    ck_assert_ptr_nonnull(strstr(caught_lines(), "none"));
    ck_assert_int_ne(status, LS_OK);
    ck_assert(device.api == NULL && device.info.threads == 77);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static struct {
    void *to;
    const void *from;
    int64_t bytes; /* 0: nothing is under way */
} pending;

static ls_status late_copy(ls_backend *backend, ls_stream *stream, void *to, const void *from,
                           int64_t bytes)
{
    (void)backend, (void)stream;
    ck_assert_int_eq(pending.bytes, 0);
    pending.to = to;
    pending.from = from;
    pending.bytes = bytes;
    return LS_OK;
}

static ls_status late_wait(ls_stream *stream)
{
    (void)stream;
    memcpy(pending.to, pending.from, (size_t)pending.bytes);
    pending.bytes = 0;
    return LS_OK;
}

static ls_status lost_copy(ls_backend *backend, ls_stream *stream, void *to, const void *from,
                           int64_t bytes)
{
    (void)backend, (void)stream, (void)to, (void)from, (void)bytes;
    return LS_ERR_DEVICE_LOST;
}

enum { PAGE = 4096, COUNT = PAGE / sizeof(float) };

LOOP_TEST(tensors_go_and_come_back, 3)
{
    static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16};
    ls_backend_api api = HOST_API;
    api.copy_in = api.copy_out = late_copy;
    api.stream_wait = late_wait;
    ls_device device = {.api = &api};
    char *pages = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(pages, MAP_FAILED);
    ck_assert_int_eq(mprotect(pages, PAGE, PROT_NONE) | mprotect(pages + 2 * PAGE, PAGE, PROT_NONE),
                     0);
    float *host = (float *)(void *)(pages + PAGE);
    char memory[PAGE + 8];
    ls_tensor tensor = {memory, types[_i], COUNT}, rounded;
    memset(memory, 0x5a, sizeof memory);
    for (int i = 0; i < COUNT; i++) {
        host[i] = (float)(i - 300) * 1.001f;
    }
    ck_assert_int_eq(ls_device_write_f32(&device, &tensor, host), LS_OK);
    ck_assert_int_eq(pending.bytes, 0);
    for (size_t k = ls_tensor_bytes(&tensor); k < sizeof memory; k++) {
        ck_assert_int_eq(memory[k], 0x5a);
    }
    uint32_t one;
    rounded = (ls_tensor){&one, types[_i], 1};
    for (int i = 0; i < COUNT; i++) {
        host_set(&rounded, 0, host[i]);
        ck_assert_float_eq(host_get(&tensor, i), host_get(&rounded, 0));
    }
    memset(host, 0, PAGE);
    ck_assert_int_eq(ls_device_read_f32(&device, &tensor, host), LS_OK);
    ck_assert_int_eq(pending.bytes, 0);
    for (int i = 0; i < COUNT; i++) {
        ck_assert_float_eq(host[i], host_get(&tensor, i));
    }
    api.copy_in = api.copy_out = lost_copy;
    ck_assert_int_eq(ls_device_write_f32(&device, &tensor, host), LS_ERR_DEVICE_LOST);
    ck_assert_int_eq(ls_device_read_f32(&device, &tensor, host), LS_ERR_DEVICE_LOST);
    munmap(pages, 3 * PAGE);
}

/* ---- lanes: all work at once, a part is waited for, and a lane that fails ends the waits for it
 * --
 */

enum { LANES = 3, PARTS = 50 };

typedef struct work {
    ls_lanes *lanes;
    atomic_int made[LANES];
    int fails; /* the lane that does; -1: none */
} work;

/* Each lane takes what the lane before has made, part by part. */
static ls_status relay(void *context, int lane)
{
    work *w = context;
    for (int part = 0; part < PARTS; part++) {
        if (lane > 0) {
            LS_TRY(ls_lanes_await(w->lanes, lane - 1, part + 1));
            if (atomic_load(&w->made[lane - 1]) < part + 1) {
                return LS_ERR_CHECK;
            }
        }
        if (lane == w->fails && part == PARTS / 2) {
            return LS_ERR_DEVICE_LOST;
        }
        atomic_fetch_add(&w->made[lane], 1);
        ls_lanes_post(w->lanes, lane);
    }
    return LS_OK;
}

static void reset(work *w, int fails)
{
    w->fails = fails;
    for (int i = 0; i < LANES; i++) {
        atomic_store(&w->made[i], 0);
    }
}

TEST(parts_in_order)
{
    work w;
    ck_assert_int_eq(ls_lanes_open(LANES, &w.lanes), LS_OK);
    for (int run = 0; run < 20; run++) {
        reset(&w, -1);
        ck_assert_int_eq(ls_lanes_run(w.lanes, relay, &w), LS_OK);
        for (int i = 0; i < LANES; i++) {
            ck_assert_int_eq(atomic_load(&w.made[i]), PARTS);
        }
    }
    ls_lanes_close(w.lanes);
}

/* Whichever lane fails: the others end, its status is the run's, and the next run is a new one. */
LOOP_TEST(a_lane_fails, LANES)
{
    work w;
    ck_assert_int_eq(ls_lanes_open(LANES, &w.lanes), LS_OK);
    reset(&w, _i);
    ck_assert_int_eq(ls_lanes_run(w.lanes, relay, &w), LS_ERR_DEVICE_LOST);
    ck_assert_int_eq(atomic_load(&w.made[_i]), PARTS / 2);
    reset(&w, -1);
    ck_assert_int_eq(ls_lanes_run(w.lanes, relay, &w), LS_OK);
    ls_lanes_close(w.lanes);
}

TEST(one_lane)
{
    work w;
    ck_assert_int_eq(ls_lanes_open(1, &w.lanes), LS_OK);
    reset(&w, 0);
    ck_assert_int_eq(ls_lanes_run(w.lanes, relay, &w), LS_ERR_DEVICE_LOST);
    ls_lanes_close(w.lanes);
    ls_lanes_close(NULL);
}

TEST_MAIN("device")
