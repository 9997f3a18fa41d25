/* GPUs through a played NVML: what it says becomes facts, findings, verdicts and exit codes. */
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>

#if defined(__has_include)
#if __has_include(<nvml.h>)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic" /* enumerators wider than int */
#include <nvml.h>
#pragma GCC diagnostic pop
#define HAVE_HEADER
#endif
#endif

#include "harness/machine/machine.h"
#include "harness/machine/nvml.h"
#include "kernels/core/path.h"
#include "harness/machine/findings.h"
#include "kernels/core/text.h"
#include "suite/run/headline.h"
#include "suite/run/run.h"
#include "suite/unit/caught.h"
#include "suite/unit/golden.h"
#include "suite/unit/harness/scratch.h"
#include "suite/unit/run_suite.h"

/* ---- our declarations against the library's header, where there is one ----------------------- */

#ifdef HAVE_HEADER
#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
#define SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #theirs)
#define PLACE(ours, a, theirs, b) _Static_assert(offsetof(ours, a) == offsetof(theirs, b), #theirs)
SAME(LS_NVML_NOT_SUPPORTED, NVML_ERROR_NOT_SUPPORTED);
SAME(LS_NVML_NO_PERMISSION, NVML_ERROR_NO_PERMISSION);
SAME(LS_NVML_INSUFFICIENT_SIZE, NVML_ERROR_INSUFFICIENT_SIZE);
SAME(LS_NVML_TIMEOUT, NVML_ERROR_TIMEOUT);
SAME(LS_NVML_GPU_IS_LOST, NVML_ERROR_GPU_IS_LOST);
SAME(LS_NVML_CLOCK_SM, NVML_CLOCK_SM);
SAME(LS_NVML_CLOCK_MEMORY, NVML_CLOCK_MEM);
SAME(LS_NVML_TEMPERATURE_GPU, NVML_TEMPERATURE_GPU);
SAME(LS_NVML_ERROR_CORRECTED, NVML_MEMORY_ERROR_TYPE_CORRECTED);
SAME(LS_NVML_ERROR_UNCORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED);
SAME(LS_NVML_ECC_VOLATILE, NVML_VOLATILE_ECC);
SAME(LS_NVML_ECC_AGGREGATE, NVML_AGGREGATE_ECC);
SAME(LS_NVML_RETIRED_SINGLE_BIT, NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS);
SAME(LS_NVML_RETIRED_DOUBLE_BIT, NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR);
SAME(LS_NVML_COMPUTE_PROHIBITED, NVML_COMPUTEMODE_PROHIBITED);
SAME(LS_NVML_COMPUTE_EXCLUSIVE, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS);
SAME(LS_NVML_P2P_READ, NVML_P2P_CAPS_INDEX_READ);
SAME(LS_NVML_P2P_OK, NVML_P2P_STATUS_OK);
SAME(LS_NVML_LINKS_MAX, NVML_NVLINK_MAX_LINKS);
SAME(LS_NVML_LINK_REPLAY, NVML_NVLINK_ERROR_DL_REPLAY);
SAME(LS_NVML_LINK_RECOVERY, NVML_NVLINK_ERROR_DL_RECOVERY);
SAME(LS_NVML_LINK_CRC_FLIT, NVML_NVLINK_ERROR_DL_CRC_FLIT);
SAME(LS_NVML_LINK_CRC_DATA, NVML_NVLINK_ERROR_DL_CRC_DATA);
SAME(LS_NVML_FIELD_MEMORY_TEMPERATURE, NVML_FI_DEV_MEMORY_TEMP);
SAME(LS_NVML_FIELD_LINK_RECEIVE_ERRORS, NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS);
SAME(LS_NVML_FIELD_LINK_RECOVERY_EVENTS, NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS);
SAME(LS_NVML_EVENT_XID, nvmlEventTypeXidCriticalError);
SAME(LS_NVML_REASON_IDLE, nvmlClocksEventReasonGpuIdle);
SAME(LS_NVML_REASON_SETTING, nvmlClocksEventReasonApplicationsClocksSetting);
SAME(LS_NVML_REASON_POWER_CAP, nvmlClocksEventReasonSwPowerCap);
SAME(LS_NVML_REASON_HW_SLOWDOWN, nvmlClocksThrottleReasonHwSlowdown);
SAME(LS_NVML_REASON_SYNC_BOOST, nvmlClocksEventReasonSyncBoost);
SAME(LS_NVML_REASON_SW_THERMAL, nvmlClocksEventReasonSwThermalSlowdown);
SAME(LS_NVML_REASON_HW_THERMAL, nvmlClocksThrottleReasonHwThermalSlowdown);
SAME(LS_NVML_REASON_POWER_BRAKE, nvmlClocksThrottleReasonHwPowerBrakeSlowdown);
SAME(LS_NVML_REASON_DISPLAY, nvmlClocksEventReasonDisplayClockSetting);
SIZE(ls_nvml_return, nvmlReturn_t);
SIZE(ls_nvml_handle, nvmlDevice_t);
SIZE(ls_nvml_event_set, nvmlEventSet_t);
SIZE(ls_nvml_pci, nvmlPciInfo_t);
PLACE(ls_nvml_pci, address, nvmlPciInfo_t, busId);
SIZE(ls_nvml_process, nvmlProcessInfo_t);
PLACE(ls_nvml_process, memory_bytes, nvmlProcessInfo_t, usedGpuMemory);
SIZE(ls_nvml_memory, nvmlMemory_t);
PLACE(ls_nvml_memory, used, nvmlMemory_t, used);
SIZE(ls_nvml_field, nvmlFieldValue_t);
PLACE(ls_nvml_field, scope, nvmlFieldValue_t, scopeId);
PLACE(ls_nvml_field, type, nvmlFieldValue_t, valueType);
PLACE(ls_nvml_field, status, nvmlFieldValue_t, nvmlReturn);
PLACE(ls_nvml_field, value, nvmlFieldValue_t, value);
SIZE(ls_nvml_event, nvmlEventData_t);
PLACE(ls_nvml_event, type, nvmlEventData_t, eventType);
PLACE(ls_nvml_event, data, nvmlEventData_t, eventData);
/* Each symbol is one that the header declares under this very name. */
#define LS_CAN_CALL(member, symbol, arguments) \
    _Static_assert(sizeof(&symbol) == sizeof(((ls_nvml_entries *)0)->member), #symbol);
LS_NVML_ENTRIES(LS_CAN_CALL)
#endif

/* ---- a machine ------------------------------------------------------------------------------- */

static void write_as(const char *name, const char *mode, const char *format, ...)
{
    LS_TEXT(path, 300, "%s/%s", scratch, name);
    FILE *file = fopen(path, mode);
    ck_assert_ptr_nonnull(file);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fclose(file);
}

static void add_to_bus(const char *address)
{
    static const char *const files[][2] = {
        {"vendor", "0x10de\n"}, {"class", "0x030200\n"}, {"device", "0x2335\n"}};
    for (int i = 0; i < 3; i++) {
        LS_TEXT(path, 300, "sys/bus/pci/devices/%s/%s", address, files[i][0]);
        write_text(path, files[i][1]);
    }
}

/* The folder of this program holds the played libraries. */
static void library(const char *name, char *path, size_t bytes)
{
    char folder[1024];
    ls_path_program(folder, sizeof folder);
    ls_text_put(path, bytes, "%s/%s", folder, name);
}

static void set_up(void)
{
    char path[1200];
    open_scratch();
    ls_text_put(path, sizeof path, "%s/fake.txt", scratch);
    setenv("LS_FAKE_NVML", path, 1);
    library("libfake_nvml.so", path, sizeof path);
    setenv("LS_NVML", path, 1);
    setenv("LS_LIBCUDA", path, 1);
    ls_text_put(path, sizeof path, "%s/sys", scratch);
    setenv("LS_SYSFS", path, 1);
    ls_text_put(path, sizeof path, "%s/lib", scratch);
    setenv("LS_LIB_DIR", path, 1);
    write_text("lib/ls_cuda.so", "stands for a backend\n");
    ls_text_put(path, sizeof path, "%s/kmsg", scratch);
    setenv("LS_KMSG", path, 1);
    write_text("kmsg", "6,1,1,-;NVRM: Xid (PCI:0000:18:00): 31, of an hour ago\n");
    write_as("fake.txt", "w",
             "driver 575.57.08\ncuda 12090\n"
             "gpu 0 address 0000:17:00.0\ngpu 1 address 0000:18:00.0\n"
             "gpu 2 address 0000:5e:00.0\n");
    add_to_bus("0000:17:00.0");
    add_to_bus("0000:18:00.0");
    add_to_bus("0000:5e:00.0");
}

static ls_nvml *nvml;
static ls_nvml_device device[LS_NVML_DEVICES_MAX];
static double reading[LS_NVML_READING_COUNT];
static char why[200];

static void open_nvml(void)
{
    ck_assert_int_eq(ls_nvml_open(&nvml, why, sizeof why), LS_OK);
    ck_assert_int_eq(ls_nvml_devices(nvml, device), 3);
}

static ls_findings look(bool oversubscribe)
{
    ls_findings findings = {0, 0, NULL};
    const ls_preflight_question question = {.sysfs = ls_path_sysfs(),
                                            .oversubscribe = oversubscribe};
    ls_preflight_look(&question, &findings, NULL);
    return findings;
}

static const ls_finding *find(const ls_findings *findings, const char *word, int gpu)
{
    for (int i = 0; i < findings->count; i++) {
        const ls_finding *f = &findings->list[i];
        if (strcmp(ls_findings_word(f->code), word) == 0 && f->gpu == gpu) {
            return f;
        }
    }
    return NULL;
}

/* ---- preflight ------------------------------------------------------------------------------- */

TEST(a_driver_without_a_version)
{
    write_as("fake.txt", "w", "cuda 13010\ngpu 0 address 0000:17:00.0\n");
    ls_findings findings = look(false);
    const ls_finding *driver = find(&findings, "DRIVER", -1);
    ck_assert_ptr_nonnull(driver);
    ck_assert_str_eq(driver->what, "driver unknown, which supports CUDA 13.1");
    int absent = 0;
    for (int i = 0; i < findings.count; i++) {
        const ls_finding *f = &findings.list[i];
        if (strcmp(ls_findings_word(f->code), "GPU_COUNT") == 0) {
            absent++;
            ck_assert_ptr_nonnull(strstr(f->what, ": 1 of 3 GPUs on the bus are usable, "));
        }
    }
    ck_assert_int_eq(absent, 2);
    ls_findings_free(&findings);
}

/* What is found on the healthy machine with these lines added, as a whole; at 5 % of memory and at
 * each other limit, both sides. */
static const char *const machines[] = {
    "",
    "gpu 1 pcie_width 17",
    "gpu 0 used 7.5e9",
    "gpu 0 used 7.6e9",
    "gpu 0 processes 1\ngpu 0 used 7.6e9",
    "gpu 0 processes 3",
    "gpu 0 processes 99\ngpu 0 mig 1",
    "gpu 1 remap_pending 1\ngpu 2 remap_failed 1\ngpu 0 rows 2",
    "gpu 1 pages_pending 1",
    "gpu 2 ever 4",
    "gpu 2 links_up 17",
    "gpu 1 reasons 64",
    "gpu 1 reasons 3",
    "gpu 1 reasons 4",
    "gpu 1 reasons 5",
    "gpu 1 reasons 16",
    "gpu 1 reasons 68",
    "gpu 1 reasons 66",
    "gpu 1 power_limit 701",
    "gpu 1 power_limit 699",
    "gpu 1 compute_mode 3",
    "gpu 1 compute_mode 2",
    "gpu 0 links_up 0\ngpu 1 links_up 0\ngpu 2 links_up 0",
    "gpu 0 links_up 0\ngpu 1 links 0\ngpu 2 links 0",
    "gpu 0 links_up 0\ngpu 1 links_up 0\ngpu 2 links_up 0\ngpu 2 links 0",
    "gpu 0 links_up 1\ngpu 1 links_up 2\ngpu 2 links_up 0",
    "gpu 1 ecc 0\ngpu 2 ecc_next 0",
    "gpu 1 ecc 0\ngpu 1 ecc_next 0",
    "gpu 1 ecc -1\ngpu 1 ecc_next -1",
    "gpu 2 uncorrected 3\ngpu 2 ever 3",
    "gpu 2 uncorrected 3\ngpu 2 ever 5\ngpu 1 corrected 1",
    "gpu 1 pages_single 1",
    "gpu 1 pages_single 2\ngpu 1 pages_double 3",
    "gpu 0 name NVIDIA_H100",
    "gpu 2 name NVIDIA_H100\ngpu 2 lost 1",
    "gpu 0 lost 1\ngpu 1 ecc 0\ngpu 1 persistence 0\ngpu 1 pcie_width 8\npeers 0",
    "peers 0",
    "cuda 13020",
};

/* In their order; `whole`: then as they are printed. */
static void print_findings(FILE *to, const ls_findings *findings, bool whole)
{
    char where[64];
    for (int i = 0; i < findings->count; i++) {
        const ls_finding *f = &findings->list[i];
        ck_assert_uint_gt(strlen(ls_findings_advice(f->code)), 10);
        fprintf(to, "%s %s, %s %s: %s\n", ls_findings_severity(f->severity),
                ls_findings_word(f->code), ls_findings_where(f, where, sizeof where), f->uuid,
                f->what);
    }
    if (whole) {
        const ls_finding *worst = ls_findings_worst(findings);
        fprintf(to, "worst: %s; %d fail\n", worst != NULL ? worst->what : "none",
                ls_findings_fails(findings));
        ls_findings_print(findings, to);
    }
}

TEST(all_of_it_word_for_word)
{
    char *text = NULL, *healthy = NULL, path[300];
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    golden_variants variants = {0};
    ls_text_put(path, sizeof path, "%s/fake.txt", scratch);
    healthy = ls_text_read(path);
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        for (int shared = 0; shared < 2; shared++) {
            ls_findings findings = {0, 0, NULL};
            cJSON *gpus = cJSON_CreateArray();
            const ls_preflight_question question = {.sysfs = ls_path_sysfs(),
                                                    .oversubscribe = shared != 0};
            write_as("fake.txt", "w", "%s%s\n", healthy, machines[i]);
            ls_preflight_look(&question, &findings, gpus);
            if (shared == 0 || strstr(machines[i], "compute_mode") != NULL) {
                LS_TEXT(title, 300, "%s%s", machines[i], shared ? " (ranks share GPUs)" : "");
                char *one = NULL;
                FILE *stream = open_memstream(&one, &bytes);
                bool whole = i == 0 || strstr(machines[i], "lost") != NULL;
                print_findings(stream, &findings, whole);
                if (whole) {
                    cJSON *array = ls_findings_json(&findings);
                    golden_json(stream, "recorded", array);
                    golden_json(stream, "gpus", gpus);
                    cJSON_Delete(array);
                }
                fclose(stream);
                golden_variant(to, &variants, title, one);
            }
            cJSON_Delete(gpus);
            ls_findings_free(&findings);
        }
    }
    ls_findings none = {0, 0, NULL};
    fprintf(to, "==== nothing\n");
    print_findings(to, &none, true);
    fclose(to);
    free(healthy);
    golden_variants_free(&variants);
    golden_check("suite/unit/harness/expected/preflight.txt", golden_short(text, 1));
}

TEST(an_old_library_leaves_facts_unknown)
{
    char path[1200];
    library("libfake_nvml_old.so", path, sizeof path);
    setenv("LS_NVML", path, 1);
    write_as("fake.txt", "a", "gpu 1 pcie_width 8\ngpu 1 remap_failed 1\ngpu 1 reasons 64\n");
    ls_findings findings = look(false);
    const ls_finding *partial = find(&findings, "NVML_PARTIAL", -1);
    ck_assert_ptr_nonnull(partial);
    ck_assert_ptr_nonnull(strstr(partial->what, "nvmlDeviceGetRemappedRows"));
    ck_assert_ptr_null(find(&findings, "ROW_REMAP_FAILED", 1)); /* unknown is not zero, nor bad */
    ck_assert_ptr_nonnull(find(&findings, "PCIE_WIDTH", 1));
    ck_assert_ptr_nonnull(find(&findings, "THROTTLED_IDLE", 1)); /* by the older name */
    ls_findings_free(&findings);
    open_nvml();
    ls_nvml_read_facts(nvml, &device[1]);
    ck_assert(isnan(device[1].fact[LS_NVML_ROWS_FAILED]));
    ck_assert(isnan(device[1].fact[LS_NVML_PROCESSES]));
    ck_assert(ls_nvml_sample(nvml, &device[1], reading, why, sizeof why));
    ck_assert(isnan(reading[LS_NVML_MEMORY_C]) && isnan(reading[LS_NVML_ROWS]));
    ck_assert_double_eq(reading[LS_NVML_POWER], 75);
    ck_assert(!ls_nvml_events_begin(nvml, device, 3));
    ls_nvml_close(nvml);
}

/* A field's value comes in one of seven types; of an eighth nothing is known. */
LOOP_TEST(fields_are_read_in_any_type, 8)
{
    write_as("fake.txt", "a", "gpu 1 field_type %d\ngpu 1 memory_c 41\ngpu 1 link_fields 3\n", _i);
    open_nvml();
    ck_assert(ls_nvml_sample(nvml, &device[1], reading, why, sizeof why));
    if (_i < 7) {
        ck_assert_double_eq(reading[LS_NVML_MEMORY_C], 41);
        ck_assert_double_eq(reading[LS_NVML_LINK_CRC], 18 * 3 + 1); /* of 18 links */
        ck_assert_double_eq(reading[LS_NVML_LINK_RECOVERIES], 18);
    } else {
        ck_assert(isnan(reading[LS_NVML_MEMORY_C]) && isnan(reading[LS_NVML_LINK_CRC]));
    }
    ck_assert(isnan(reading[LS_NVML_LINK_REPLAYS]));
    device[1].fact[LS_NVML_LINKS] = 0;
    ck_assert(ls_nvml_sample(nvml, &device[1], reading, why, sizeof why));
    ck_assert(isnan(reading[LS_NVML_LINK_CRC]) && isnan(reading[LS_NVML_LINK_RECOVERIES]));
    ls_nvml_close(nvml);
}

TEST(a_gpu_lost_at_the_start_is_listed_with_the_reason)
{
    write_as("fake.txt", "a", "gpu 1 pci_lost 1\n");
    open_nvml();
    ck_assert_ptr_null(device[1].handle);
    ck_assert(!ls_nvml_sample(nvml, &device[1], reading, why, sizeof why));
    ck_assert_str_eq(why, "GPU is lost");
    ck_assert(isnan(reading[LS_NVML_POWER]));
    ck_assert(ls_nvml_sample(nvml, &device[2], reading, why, sizeof why));
    cJSON *lost = ls_nvml_device_json(&device[1]), *other = ls_nvml_device_json(&device[2]);
    ck_assert_str_eq(ls_json_string(lost, "failure", ""), "GPU is lost");
    ck_assert_ptr_null(cJSON_GetObjectItem(other, "failure"));
    cJSON_Delete(lost);
    cJSON_Delete(other);
    ls_nvml_close(nvml);
}

TEST(reasons_have_words)
{
    static const struct {
        double reasons;
        const char *words;
    } rows[] = {{NAN, "unknown"},
                {0, "none"},
                {LS_NVML_REASON_IDLE, "none"},
                {LS_NVML_REASON_POWER_CAP, "power cap"},
                {LS_NVML_REASON_IDLE | LS_NVML_REASON_SETTING | LS_NVML_REASON_DISPLAY,
                 "clocks set by a user, display clocks"},
                {LS_NVML_REASON_HW_SLOWDOWN | LS_NVML_REASON_SYNC_BOOST |
                     LS_NVML_REASON_SW_THERMAL | LS_NVML_REASON_HW_THERMAL |
                     LS_NVML_REASON_POWER_BRAKE,
                 "hardware slowdown, sync boost, software thermal slowdown, hardware thermal "
                 "slowdown, power brake"}};
    char text[200];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ck_assert_str_eq(ls_nvml_reasons_text(rows[i].reasons, text, sizeof text), rows[i].words);
    }
}

TEST(no_library_is_a_finding)
{
    setenv("LS_NVML", "/nowhere/libnvidia-ml.so.1", 1);
    ls_findings findings = look(false);
    const ls_finding *missing = find(&findings, "NVML_MISSING", -1);
    ck_assert_ptr_nonnull(missing);
    ck_assert_ptr_nonnull(strstr(missing->what, "/nowhere/libnvidia-ml.so.1"));
    ck_assert_ptr_null(ls_watch_gpu_open(&findings));
    ls_findings_free(&findings);
}

/* What CUDA's driver answers. */
static const struct {
    const char *library, *lines; /* NULL: the played one */
    int version, count;
    const char *failure;
} DRIVERS[] = {
    {NULL, "", 12090, 3, ""},
    {NULL, "hidden 1\ncuda 13020", 13020, 2, ""},
    {NULL, "hidden 3", 12090, 0, ""},
    {NULL, "cuinit 802", 0, 0, "cuInit: error 802, system not yet initialized"},
    {NULL, "cuinit 999", 0, 0, "cuInit: error 999, "},
    {"/nonexistent/libcuda.so", "", 0, 0, "/nonexistent/libcuda.so: cannot open shared object"},
    {"libm.so.6", "", 0, 0, "/"},
};

ROWS_TEST(the_driver_is_asked, DRIVERS)
{
    ls_driver *driver = malloc(sizeof *driver);
    ck_assert_ptr_nonnull(driver);
    memset(driver, '?', sizeof *driver);
    write_as("fake.txt", "a", "%s\n", DRIVERS[_i].lines);
    if (DRIVERS[_i].library != NULL) {
        setenv("LS_LIBCUDA", DRIVERS[_i].library, 1);
    }
    ls_machine_driver(driver);
    ck_assert_int_eq(driver->version, DRIVERS[_i].version);
    ck_assert_int_eq(driver->count, DRIVERS[_i].count);
    ck_assert_msg(DRIVERS[_i].failure[0] == '\0' ? driver->failure[0] == '\0'
                                                 : strncmp(driver->failure, DRIVERS[_i].failure,
                                                           strlen(DRIVERS[_i].failure)) == 0,
                  "%s", driver->failure);
    static const char *const addresses[] = {"0000:17:00.0", "0000:18:00.0", "0000:5e:00.0", ""};
    for (int i = 0; i < 4; i++) {
        ck_assert_str_eq(driver->address[i], i < driver->count ? addresses[i] : "");
    }
    free(driver);
}

/* ---- which device ---------------------------------------------------------------------------- */

TEST(usable_is_what_library_and_driver_answer)
{
    const char *device = "";
    int usable = -1;
    ck_assert_int_eq(ls_machine_choose_among("auto", 3, false, &device, &usable), LS_OK);
    ck_assert_str_eq(device, "cuda");
    ck_assert_int_eq(usable, 3);
    ck_assert_int_eq(ls_machine_choose_among("auto", 4, false, &device, &usable), LS_ERR_INFRA);
    ck_assert_int_eq(ls_machine_choose_among("auto", 4, true, &device, &usable), LS_OK);
    ck_assert_int_eq(usable, 3);
    ck_assert_int_eq(ls_machine_choose_among("cpu", 3, false, &device, &usable), LS_OK);
    ck_assert_str_eq(device, "cpu");
    write_as("fake.txt", "a", "gpu 1 lost 1\n");
    ck_assert_int_eq(ls_machine_choose_among("cuda", 3, false, &device, &usable), LS_ERR_INFRA);
    ck_assert_int_eq(ls_machine_choose_among("cuda", 2, false, &device, &usable), LS_OK);
    ck_assert_int_eq(usable, 2);
    write_as("fake.txt", "a", "hidden 1\n");
    ck_assert_int_eq(ls_machine_choose_among("cuda", 2, false, &device, &usable), LS_ERR_INFRA);
    ck_assert_int_eq(ls_machine_choose_among("cuda", 1, false, &device, &usable), LS_OK);
    write_as("fake.txt", "a", "cuinit 802\n");
    ck_assert_int_eq(ls_machine_choose_among("cuda", 1, true, &device, &usable), LS_ERR_INFRA);
}

TEST(without_a_bus_the_driver_is_asked)
{
    const char *device = "";
    int usable = -1;
    char path[300];
    ls_text_put(path, sizeof path, "%s/sys", scratch);
    ls_path_remove_tree(path);
    ck_assert_int_eq(ls_machine_choose_among("auto", 3, false, &device, &usable), LS_OK);
    ck_assert_str_eq(device, "cuda");
    ck_assert_int_eq(usable, 3);
    ck_assert_int_eq(ls_machine_choose_among("cuda", 4, false, &device, &usable), LS_ERR_INFRA);
    write_as("fake.txt", "a", "hidden 3\n");
    ck_assert_int_eq(ls_machine_choose_among("auto", 1, false, &device, &usable), LS_OK);
    ck_assert_str_eq(device, "cpu");
    ck_assert_int_eq(ls_machine_choose_among("cuda", 1, false, &device, &usable), LS_ERR_INFRA);
}

static const struct {
    const char *lines, *ranks, *first, *second;
} REFUSED[] = {
    {"gpu 1 lost 1", "3",
     "0000:18:00.0 (NVIDIA 0x2335) cannot be used: the driver does not list it; NVML: GPU is lost",
     "3 NVIDIA devices, 2 usable, for 3 ranks"},
    {"hidden 1", "3", "0000:5e:00.0 (NVIDIA 0x2335) cannot be used: CUDA does not list it",
     "2 usable"},
    {"cuinit 802", "1",
     "0000:17:00.0 (NVIDIA 0x2335) cannot be used: cuInit: error 802, system not yet initialized",
     "0 usable"},
    {"init 18", "1", "0000:17:00.0 (NVIDIA 0x2335) cannot be used: no driver", "0 usable"},
};

/* What the program says, and "code=" with its exit code. */
static void run_program(const char *arguments, char *all, size_t bytes)
{
    char command[2600], folder[1024];
    ls_path_program(folder, sizeof folder);
    ls_text_put(command, sizeof command, "%s/../lockstep %s 2>&1; echo code=$?", folder, arguments);
    ck_assert_int_eq(shell_says(command, all, bytes), 0);
}

TEST(preflight_alone_has_an_exit_code)
{
    char all[8192];
    run_program("preflight", all, sizeof all);
    ck_assert_msg(strstr(all, "MACHINE  ready (3 of 3 GPUs looked at)\ncode=0") != NULL, "%s", all);
    write_as("fake.txt", "a", "gpu 1 pcie_width 8\n");
    run_program("preflight", all, sizeof all);
    ck_assert_msg(strstr(all, "PCIE_WIDTH: GPU 1 (0000:18:00.0): PCIe x8 instead of x16") != NULL,
                  "%s", all);
    ck_assert_msg(strstr(all, "MACHINE  not ready (3 of 3 GPUs looked at)\ncode=1") != NULL, "%s",
                  all);
    write_as("fake.txt", "w", "driver 575.57.08\ncuda 12090\ngpu 0 address 0000:17:00.0\n");
    run_program("preflight", all, sizeof all); /* two that nothing could look at */
    ck_assert_msg(strstr(all, "MACHINE  not shown (1 of 3 GPUs looked at)\ncode=3") != NULL, "%s",
                  all);
}

/* A line per missing device, and exit code 3. */
ROWS_TEST(the_bench_names_what_is_missing, REFUSED)
{
    char arguments[64], all[8192];
    write_as("fake.txt", "a", "%s\n", REFUSED[_i].lines);
    ls_text_put(arguments, sizeof arguments, "bench NGPUS=%s DRYRUN=1", REFUSED[_i].ranks);
    run_program(arguments, all, sizeof all);
    ck_assert_msg(strstr(all, REFUSED[_i].first) != NULL, "%s", all);
    ck_assert_msg(strstr(all, REFUSED[_i].second) != NULL, "%s", all);
    ck_assert_msg(strstr(all, "code=3") != NULL, "%s", all);
}

/* ---- watch ----------------------------------------------------------------------------------- */

/* The lines and findings of a job of five readings, the second at its start and the last at the end
 * of the watch; each limit from both sides; the readings themselves of the last two. */
static const char *const watched[] = {
    "",
    "gpu 1 replays 4\ngpu 1 replays 6 3\ngpu 1 replays 9 5",
    "gpu 1 replays 4\ngpu 1 replays 3 4",
    "gpu 1 replays -1\ngpu 1 replays 3 3",
    "gpu 1 replays 2\ngpu 1 replays -1 3\ngpu 1 replays 3 6",
    "gpu 0 link_errors 2 3\ngpu 2 corrected 1 3\ngpu 2 uncorrected 3 4\ngpu 1 rows 5 4",
    "gpu 0 reasons 0 4",
    "gpu 0 reasons 0 5",
    "gpu 0 reasons 0\ngpu 0 pcie_gen 4 6",
    "gpu 0 reasons 0\ngpu 0 pcie_gen 5 6",
    "gpu 0 reasons 0\ngpu 0 pcie_gen -1",
    "gpu 0 reasons 68 3\ngpu 0 reasons 32 5\ngpu 0 pcie_gen 5\ngpu 0 reasons 1 6",
    "gpu 0 reasons -1\ngpu 0 pcie_gen 5",
    "gpu 0 pcie_width 4 3\ngpu 0 pcie_width 8 5",
    "gpu 0 pcie_width 8",
    "gpu 0 pcie_width -1 3",
    "gpu 0 xid 79 3\ngpu 2 xid 31 4",
    "gpu 0 pci_lost 1\ngpu 2 replays 5 3\ngpu 1 xid 79 3",
    "gpu 0 lost 1 4\ngpu 1 power 600.25 3\ngpu 1 temperature 71 4\ngpu 2 memory_c -1",
};

TEST(a_watched_job_word_for_word)
{
    char *text = NULL, path[300], usual[400] = "";
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    ls_text_put(path, sizeof path, "%s/fake.txt", scratch);
    char *healthy = ls_text_read(path);
    ls_text_put(path, sizeof path, "%s/gpu.jsonl", scratch);
    close(STDIN_FILENO); /* so that it is the file's descriptor, or the library's */
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++) {
        ls_findings findings = {0, 0, NULL};
        write_as("fake.txt", "w", "%s%s\n", healthy, watched[i]);
        ls_watch_gpu *watch = ls_watch_gpu_open(&findings);
        ck_assert_int_eq(ls_watch_gpu_job(watch, scratch), LS_OK);
        for (int tick = 0; tick < 3; tick++) {
            ls_watch_gpu_tick(watch);
        }
        ck_assert_int_eq(ls_watch_gpu_job(watch, NULL), LS_OK);
        ls_watch_gpu_close(watch); /* a reading without a line */
        fprintf(to, "==== %s\n", watched[i]);
        char *lines = ls_text_read(path), *rest = NULL;
        double at_ns = 0;
        int count = 0;
        for (char *line = strtok_r(lines, "\n", &rest); line != NULL;
             line = strtok_r(NULL, "\n", &rest), count++) {
            cJSON *now = ls_json_parse(line, NULL);
            ck_assert(ls_json_number(now, "at_ns", 0) > at_ns);
            at_ns = ls_json_number(now, "at_ns", 0);
            cJSON_DeleteItemFromObject(now, "at_ns");
            char *words = cJSON_PrintUnformatted(now), *readings = strchr(words, ',');
            if (usual[0] == '\0') {
                ls_text_put(usual, sizeof usual, "%s", readings);
                fprintf(to, "each line that is not here: {\"gpu\":...%s\n", usual);
            }
            if (strcmp(usual, readings) != 0 && i + 2 >= sizeof watched / sizeof *watched) {
                fprintf(to, "%d: %s\n", count, words);
            }
            cJSON_free(words);
            cJSON_Delete(now);
        }
        fprintf(to, "%d lines\n", count);
        free(lines);
        print_findings(to, &findings, i == 0);
        ls_findings_free(&findings);
    }
    ck_assert_int_eq(fcntl(STDIN_FILENO, F_GETFD), -1);
    fclose(to);
    free(healthy);
    golden_check("suite/unit/harness/expected/watch_gpu.txt", golden_short(text, 1));
}

TEST(a_job_whose_readings_cannot_be_written)
{
    char folder[300], path[300];
    ls_findings findings = {0, 0, NULL};
    ls_watch_gpu *watch = ls_watch_gpu_open(&findings);
    ls_text_put(folder, sizeof folder, "%s/absent", scratch);
    catch_lines();
    ck_assert_int_eq(ls_watch_gpu_job(watch, folder), LS_ERR_INFRA);
    LS_TEXT(said, 500, "error: cannot write %s/gpu.jsonl: No such file or directory\n", folder);
    ck_assert_str_eq(caught_lines(), said);
    ls_watch_gpu_tick(watch);
    ls_text_put(path, sizeof path, "%s/gpu.jsonl", scratch);
    ck_assert_int_eq(ls_watch_gpu_job(watch, scratch), LS_OK); /* the next job's can be */
    ls_watch_gpu_close(watch);
    char *text = ls_text_read(path);
    int lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++) {
        lines++;
    }
    ck_assert_int_eq(lines, 2 * 3); /* at the job's start and at the end of the watch */
    free(text);
    ls_watch_gpu_tick(NULL);
    ck_assert_int_eq(ls_watch_gpu_job(NULL, scratch), LS_OK);
    ls_watch_gpu_close(NULL);
}

/* Several lines of the log at once, some of other devices or cut off. */
TEST(each_xid_of_the_kernel_log_is_found)
{
    char path[1200];
    ls_findings findings = {0, 0, NULL};
    library("libfake_nvml_old.so", path, sizeof path);
    setenv("LS_NVML", path, 1);
    ls_watch_gpu *watch = ls_watch_gpu_open(&findings);
    write_as("kmsg", "a",
             "NVRM: Xid (PCI:0000:5e:00): 79, pid=7\nNVRM: Xid (PCI:0000:99:00): 13, x\n"
             "NVRM: Xid (PCI:nothing\nNVRM: Xid (PCI:0000:17:00): 48, x\n"
             "NVRM: Xid (PCI:0001:18:00): 63, x\n");
    ls_watch_gpu_tick(watch);
    ls_watch_gpu_tick(watch);
    ck_assert_int_eq(findings.count, 2);
    ck_assert_str_eq(find(&findings, "XID", 2)->what, "Xid-79 while jobs ran");
    ck_assert_str_eq(find(&findings, "XID", 0)->what, "Xid-48 while jobs ran");
    ls_watch_gpu_close(watch);
    ls_findings_free(&findings);
    setenv("LS_KMSG", "/nonexistent/kmsg", 1);
    watch = ls_watch_gpu_open(&findings);
    ls_watch_gpu_close(watch);
    ck_assert_int_eq(findings.count, 0);
}

/* ---- verdict --------------------------------------------------------------------------------- */

TEST(a_finding_that_fails_makes_the_machine_not_ready)
{
    ls_run run;
    memset(&run, 0, sizeof run);
    run.swapped_pages = -1;
    ls_headline headline;
    ls_findings_add(&run.findings, LS_FINDING_DRIVER, -1, NULL, NULL, "driver 575");
    ls_findings_add(&run.findings, LS_FINDING_ECC_OFF, 1, "u", "0000:18:00.0", "ECC is off");
    ls_headline_decide(&run, &headline);
    ck_assert_str_eq(headline.machine_value, "ready");
    ck_assert_ptr_nonnull(strstr(headline.machine_why, "warning: ECC is off on GPU 1"));
    ls_findings_add(&run.findings, LS_FINDING_PCIE_WIDTH, 2, "u", "0000:5e:00.0",
                    "PCIe x8 instead of x16");
    ls_findings_add(&run.findings, LS_FINDING_XID, 0, "u", "0000:17:00.0", "Xid-79");
    ls_headline_decide(&run, &headline);
    ck_assert_str_eq(headline.machine_value, "not ready");
    ck_assert_msg(strncmp(headline.machine_why,
                          "PCIe x8 instead of x16 on GPU 2 (0000:5e:00.0); 1 more", 54) == 0,
                  "%s", headline.machine_why);
    ls_findings_free(&run.findings);
}

TEST(findings_survive_their_record)
{
    ls_findings findings = {0, 0, NULL}, read = {0, 0, NULL};
    ls_findings_add(&findings, LS_FINDING_DRIVER, -1, NULL, NULL, "driver 575");
    ls_findings_add(&findings, LS_FINDING_COUNTER_ROSE, 2, "u", "0000:5e:00.0",
                    "replays rose by 1");
    ls_findings_add(&findings, LS_FINDING_COUNTER_ROSE, 2, "u", "0000:5e:00.0",
                    "replays rose by 4");
    ls_findings_add(&findings, LS_FINDING_COUNTER_ROSE, 2, "u", "0000:5e:00.0", "errors rose by 9");
    ck_assert_int_eq(findings.count, 3); /* the same counter says its newest sum */
    cJSON *array = ls_findings_json(&findings);
    ck_assert_str_eq(ls_json_string(cJSON_GetArrayItem(array, 0), "severity", ""), "fail");
    ck_assert_str_eq(ls_json_string(cJSON_GetArrayItem(array, 0), "what", ""), "replays rose by 4");
    ls_findings_read(array, &read);
    ck_assert_int_eq(read.count, 3);
    ck_assert_int_eq(ls_findings_fails(&read), 2);
    ck_assert_str_eq(ls_findings_worst(&read)->uuid, "u");
    cJSON_Delete(array);
    ls_findings_free(&findings);
    ls_findings_free(&read);
}

TEST_MAIN("nvml", .timeout_s = 40, .before = set_up, .after = close_scratch)
