/* A machine: what other programs take of it, from two readings, and what describes it. */
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#include "harness/machine/machine.h"
#include "kernels/core/clock.h"
#include "kernels/core/cores.h"
#include "suite/unit/harness/scratch.h"
#include "suite/unit/run_suite.h"

TEST(what_others_take_is_held_against_our_cores_only)
{
    static const struct {
        double others_s, seconds;
        int processors, cores;
        double taken;
    } rows[] = {
        {0, 10, 2, 2, 0},   /* an idle machine */
        {10, 10, 2, 2, 1},  /* one of two */
        {5, 10, 2, 2, 0.5}, /* half of one */
        {3, 2, 2, 2, 1.5},  /* in 2 s */
        {0.25, 0.5, 2, 2, 0.5}, {4, 10, 1, 1, 0.4},
        {40, 10, 2, 2, 2},   /* never more than there are */
        {40, 10, 8, 2, 0},   /* four busy of six that we may not use */
        {70, 10, 8, 2, 1},   /* seven busy: one of ours */
        {-0.1, 10, 2, 2, 0}, /* ticks are rounded */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_machine_load_times from = {
            .others_s = 5, .processors = rows[i].processors, .at_ns = 1000000000};
        ls_machine_load_times to = from;
        to.others_s += rows[i].others_s;
        to.at_ns += (int64_t)(rows[i].seconds * 1e9);
        /* 1e-12: a few roundings of numbers up to 75 */
        ck_assert_double_eq_tol(ls_machine_load_taken(&from, &to, rows[i].cores), rows[i].taken,
                                1e-12);
        ck_assert(
            isnan(ls_machine_load_taken(&from, &from, rows[i].cores))); /* no time has passed */
        to.processors = 0;
        ck_assert(isnan(ls_machine_load_taken(&from, &to, rows[i].cores)));
        to.processors = rows[i].processors;
        to.others_s = NAN;
        ck_assert(isnan(ls_machine_load_taken(&from, &to, rows[i].cores)));
    }
}

/* 0.3 s of our own work: on an idle machine others took nothing; on a busy one no more than the
 * processors gave in addition to ours. */
TEST(our_own_work_is_not_others)
{
    ls_machine_load_times from, to;
    ls_machine_load(&from);
    volatile double sum = 0;
    while (ls_clock_ns() - from.at_ns < 300000000) {
        sum += 1;
    }
    ls_machine_load(&to);
    ck_assert_int_ge(to.processors, 1);
    double seconds = (double)(to.at_ns - from.at_ns) * 1e-9;
    double all_s = to.processors * seconds;
    /* 0.05: ticks are hundredths of a second on each processor, read a moment apart */
    ck_assert_double_le(to.others_s - from.others_s, all_s + 0.05);
    ck_assert_double_ge(to.others_s - from.others_s, -0.05);
}

/* Processor seconds of all since boot, without those spent waiting: proc_stat(5). */
static double busy_s(int *processors)
{
    FILE *file = fopen("/proc/stat", "r");
    char line[512];
    double user, nice, system, idle, wait, irq, softirq, steal, sum = 0;
    ck_assert_ptr_nonnull(file);
    *processors = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "cpu  %lf %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &system, &idle,
                   &wait, &irq, &softirq, &steal) == 8 &&
            line[3] == ' ') {
            sum = (user + nice + system + irq + softirq + steal) / (double)sysconf(_SC_CLK_TCK);
        }
        *processors += strncmp(line, "cpu", 3) == 0 && line[3] != ' ';
    }
    fclose(file);
    return sum;
}

/* User and system time, of a child too. */
static double used_s(int who)
{
    struct rusage use;
    ck_assert_int_eq(getrusage(who, &use), 0);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           1e-6 * (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

static void work(int who)
{
    double until_s = used_s(who) + 0.08;
    while (used_s(who) < until_s) {
    }
}

TEST(others_are_all_but_this_process_and_its_children)
{
    ls_machine_load_times load;
    int processors = 0;
    pid_t child = fork();
    if (child == 0) {
        work(RUSAGE_SELF);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    work(RUSAGE_SELF);
    double own_s = used_s(RUSAGE_SELF) + used_s(RUSAGE_CHILDREN), least_s = busy_s(&processors);
    ls_machine_load(&load);
    double most_s = busy_s(&processors);
    /* 1e-6: roundings of numbers up to 1e9 */
    ck_assert_double_ge(load.others_s + 1e-6,
                        least_s - used_s(RUSAGE_SELF) - used_s(RUSAGE_CHILDREN));
    ck_assert_double_le(load.others_s - 1e-6, most_s - own_s); /* as above */
    ck_assert_int_eq(load.processors, processors);
}

/* The number after NAME in a file of /proc, read on its own. */
static long long number_in(const char *path, const char *name)
{
    char line[256];
    long long value = -1;
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    while (value < 0 && fgets(line, sizeof line, file) != NULL) {
        size_t length = strlen(name);
        if (strncmp(line, name, length) == 0) {
            value = atoll(line + length);
        }
    }
    fclose(file);
    return value;
}

TEST(memory_is_what_the_kernel_says)
{
    int64_t total = ls_machine_memory_bytes(), free_bytes = ls_machine_available_bytes();
    ck_assert_int_eq(total, number_in("/proc/meminfo", "MemTotal:") * 1024);
    ck_assert_int_eq(free_bytes % 1024, 0);
    ck_assert(free_bytes > 1 << 20 && free_bytes <= total);
    long long before = number_in("/proc/vmstat", "pswpout ");
    int64_t swapped = ls_machine_swapped_pages();
    ck_assert(swapped >= before && swapped <= number_in("/proc/vmstat", "pswpout "));
}

static void write_word(const char *address, const char *name, const char *word)
{
    LS_TEXT(path, 300, "bus/pci/devices/%s/%s", address, name);
    LS_TEXT(text, 100, "%s\r\nmore\n", word);
    write_text(path, text);
}

static void write_device(const char *address, const char *vendor, const char *class)
{
    write_word(address, "vendor", vendor);
    write_word(address, "class", class);
    write_word(address, "device", "0x2335");
}

/* Not those of the machine: a container or taskset may leave few of them. */
TEST(cores_are_those_that_may_be_used)
{
    cpu_set_t all, one;
    char text[64];
    setenv("LS_PROCFS", "/nonexistent", 1); /* no quota */
    ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
    ck_assert(ls_cores_usable() == CPU_COUNT(&all));
    int core = 0;
    while (!CPU_ISSET(core, &all)) {
        core++;
    }
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    ls_cores cores = ls_cores_read();
    ck_assert(cores.usable == 1 && cores.mask == 1 && cores.machine >= CPU_COUNT(&all));
    ls_cores_text(&cores, text, sizeof text);
    ck_assert_msg((strstr(text, "(affinity mask)") != NULL) == (cores.machine > 1), "%s", text);
}

/* A container is often bound by a quota of its cgroup: the least of it and those above it, of
 * either version of the hierarchy. */
static const struct {
    const char *cgroup;     /* /proc/self/cgroup */
    const char *file[3][2]; /* below /sys/fs/cgroup */
    double quota;
} quotas[] = {
    {"0::/a/b\n", {{"a/b/cpu.max", "50000 100000\n"}}, 0.5},
    {"0::/a/b\n", {{"a/b/cpu.max", "max 100000\n"}}, INFINITY},
    {"0::/a/b\n", {{"a/cpu.max", "150000 100000\n"}}, 1.5}, /* of one above it */
    {"0::/a/b\n", {{"a/cpu.max", "20000 100000\n"}, {"a/b/cpu.max", "90000 100000\n"}}, 0.2},
    {"0::/\n", {{"cpu.max", "100000 100000\n"}}, 1},        /* a container's own root */
    {"0::/host/path\n", {{"cpu.max", "30000 10000\n"}}, 3}, /* its path on the host */
    {"4:memory:/m\n3:cpu,cpuacct:/c\n0::/\n",
     {{"cpu,cpuacct/c/cpu.cfs_quota_us", "25000\n"},
      {"cpu,cpuacct/c/cpu.cfs_period_us", "50000\n"}},
     0.5},
    {"1:cpu:/c\n", {{"cpu/c/cpu.cfs_quota_us", "-1\n"}}, INFINITY},
    {"1:cpu:/c\n",
     {{"cpu/cpu.cfs_quota_us", "200000\n"}, {"cpu/cpu.cfs_period_us", "100000\n"}},
     2},
    {"1:cpuset:/c\n", {{"cpuset/c/cpu.cfs_quota_us", "1000\n"}}, INFINITY},
    {"0::/u\n", {{"unified/u/cpu.max", "70000 100000\n"}}, 0.7},
    {"broken", {{"cpu.max", "1000 100000\n"}}, INFINITY},
    {"0::/a\n", {{"a/cpu.max", "\n"}}, INFINITY},
    {"0::/a\n", {{"a/cpu.max", "0 0\n"}}, INFINITY},
};

ROWS_TEST(a_quota_is_the_number_of_cores, quotas)
{
    setenv("LS_SYSFS", scratch, 1);
    setenv("LS_PROCFS", scratch, 1);
    write_text("self/cgroup", quotas[_i].cgroup);
    for (int i = 0; i < 3 && quotas[_i].file[i][0] != NULL; i++) {
        LS_TEXT(name, 100, "fs/cgroup/%s", quotas[_i].file[i][0]);
        write_text(name, quotas[_i].file[i][1]);
    }
    ls_cores cores = ls_cores_read();
    /* a quotient such as 20000 / 100000 is rounded once, as the literal is */
    ck_assert_msg(cores.quota == quotas[_i].quota, "%g", cores.quota);
    ck_assert(cores.usable == fmin(cores.mask, cores.quota));
    cJSON *print = ls_machine_fingerprint();
    ck_assert(ls_json_number(print, "cores", 0) == cores.usable);
    ck_assert_int_eq(cJSON_IsNull(cJSON_GetObjectItem(print, "cpu_quota")),
                     isinf(cores.quota) != 0);
    cJSON_Delete(print);
}

TEST(cores_in_words)
{
    static const struct {
        ls_cores cores;
        const char *text;
        int share; /* of two */
    } rows[] = {
        {{2, 2, INFINITY, 2}, "2 cores", 1},
        {{1, 1, INFINITY, 1}, "1 core", 1},
        {{2, 1, INFINITY, 1}, "1 of 2 cores (affinity mask)", 1},
        {{2, 2, 0.5, 0.5}, "0.5 of 2 cores (CPU quota)", 1},
        {{64, 8, 3.5, 3.5}, "3.5 of 64 cores (CPU quota, affinity mask of 8)", 1},
        {{64, 8, 16, 8}, "8 of 64 cores (affinity mask)", 4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[64];
        ck_assert_str_eq(ls_cores_text(&rows[i].cores, text, sizeof text), rows[i].text);
        ck_assert_int_eq(ls_cores_share(rows[i].cores.usable, 2), rows[i].share);
    }
}

TEST(the_fingerprint_of_a_machine)
{
    setenv("LS_SYSFS", scratch, 1);
    setenv("LS_LIB_DIR", scratch, 1);
    setenv("LS_NVML", "/nonexistent", 1);
    write_device("0000:18:00.0", "0x10de", "0x030200");
    write_device("0000:17:00.0", "0x10de", "0x030000");
    write_device("0000:01:00.0", "0x8086", "0x030000"); /* another vendor */
    write_device("0000:02:00.0", "0x10de", "0x010802"); /* no display */
    static const char *const names[] = {"NCCL_A",   "CUDA_B", "CUDNN_C",
                                        "CUBLAS_D", "OMP_E",  "LS_SHM_F"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        setenv(names[i], i == 1 ? "" : "x=y", 1);
    }
    setenv("SOME_SECRET", "x", 1);
    setenv("LS_PROCFS", scratch, 1);
    write_text("driver/nvidia/version",
               "NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.57.08  Tue Jul 8 2025\n");
    cJSON *print = ls_machine_fingerprint();
    const cJSON *found = cJSON_GetObjectItem(print, "environment"), *entry;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ck_assert_str_eq(ls_json_string(found, names[i], "?"), i == 1 ? "" : "x=y");
    }
    ls_json_each(entry, found) {
        ck_assert_str_ne(entry->string, "SOME_SECRET");
    }
    const cJSON *gpus = cJSON_GetObjectItem(print, "gpus");
    ck_assert_int_eq(cJSON_GetArraySize(gpus), 2);
    for (int i = 0; i < 2; i++) {
        const cJSON *gpu = cJSON_GetArrayItem(gpus, i);
        ck_assert_str_eq(ls_json_string(gpu, "address", ""),
                         i == 0 ? "0000:17:00.0" : "0000:18:00.0");
        ck_assert_str_eq(ls_json_string(gpu, "model", ""), "0x2335");
        ck_assert(!ls_json_bool(gpu, "usable", true)); /* no ls_cuda.so */
    }
    struct utsname name;
    ck_assert_int_eq(uname(&name), 0);
    LS_TEXT(kernel, 300, "%s %s %s", name.sysname, name.release, name.machine);
    ck_assert_str_eq(ls_json_string(print, "kernel", ""), kernel);
    cpu_set_t set;
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    ck_assert_int_eq(ls_json_int(print, "cores_in_mask", 0), CPU_COUNT(&set));
    ck_assert_str_eq(ls_json_string(print, "driver", ""), "575.57.08");
    ck_assert_int_eq(ls_json_integer(print, "memory_bytes", 0), ls_machine_memory_bytes());
    int64_t left = ls_json_integer(print, "memory_available_bytes", 0);
    ck_assert(left > 1 << 20 && left <= ls_machine_memory_bytes());
    ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(print, "load")), 3);
    const char *cpu = ls_json_string(print, "cpu", "");
    ck_assert(cpu[0] != '\0' && cpu[0] != ' ' && strchr(cpu, '\n') == NULL);
    char *text = ls_text_read("/proc/cpuinfo");
    const char *model = strstr(text, "model name"); /* not on each kind of processor */
    model = model == NULL ? "?: unknown\n" : strchr(model, ':');
    LS_TEXT(line, 300, " %s\n", cpu);
    ck_assert_int_eq(strncmp(strchr(model, ':') + 1, line, strlen(line)), 0);
    free(text);
    char governor[64] = "";
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "r");
    bool known = file != NULL && fscanf(file, "%63s", governor) == 1;
    ck_assert_str_eq(ls_json_string(print, "governor", ""), known ? governor : "");
    ck_assert_int_eq(cJSON_HasObjectItem(print, "governor"), known);
    cJSON_Delete(print);
    ls_machine_device all[LS_MACHINE_DEVICES_MAX];
    ck_assert_int_eq(ls_machine_devices(scratch, all), 2);
    ck_assert_ptr_nonnull(strstr(all[0].failure, "ls_cuda.so not built"));
    ck_assert_int_eq(ls_machine_devices("/nonexistent", all), 0);
    if (file != NULL) {
        fclose(file);
    }
}

/* Where other processes of a test have git's variables set they would name another folder. */
static void git(const char *arguments)
{
    LS_TEXT(
        command, 400,
        "GIT_CONFIG_GLOBAL=/dev/null git -C %s -c user.name=n -c user.email=e %s >/dev/null 2>&1",
        scratch, arguments);
    ck_assert_int_eq(system(command), 0);
}

TEST(the_commit_of_a_folder)
{
    char commit[20] = "?";
    bool dirty = true;
    setenv("GIT_CEILING_DIRECTORIES", "/tmp", 1);
    ls_machine_commit(scratch, commit, sizeof commit, &dirty);
    ck_assert_str_eq(commit, "");
    ck_assert(!dirty);
    if (system("git --version >/dev/null 2>&1") == 0) {
        write_word("x", "f", "x");
        git("init");
        git("add .");
        git("commit -m x");
        dirty = true;
        ls_machine_commit(scratch, commit, sizeof commit, &dirty);
        ck_assert_uint_eq(strlen(commit), 12);
        ck_assert_uint_eq(strspn(commit, "0123456789abcdef"), 12);
        ck_assert(!dirty);
        write_word("x", "untracked", "x");
        ls_machine_commit(scratch, commit, sizeof commit, &dirty);
        ck_assert(!dirty);
        write_word("x", "f", "another");
        char cut[6];
        ls_machine_commit(scratch, cut, sizeof cut, &dirty);
        ck_assert(dirty && strlen(cut) == 5 && strncmp(cut, commit, 5) == 0);
    }
    write_text("commit.txt", "0123456789ab\n"); /* of a packed tree, wherever it lies */
    ls_machine_commit(scratch, commit, sizeof commit, &dirty);
    ck_assert_str_eq(commit, "0123456789ab");
    ck_assert(!dirty);
    write_text("commit.txt", "0123456789ab dirty\n");
    ls_machine_commit(scratch, commit, sizeof commit, &dirty);
    ck_assert_str_eq(commit, "0123456789ab");
    ck_assert(dirty);
}

TEST_MAIN("load", .before = open_scratch, .after = close_scratch)
