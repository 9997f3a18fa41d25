/* The NCCL profiler plugin, called as NCCL calls it: from several threads, with kernels that end
 * after their call; and the rules on what it and the interposer write. */
#include <check.h>
#include <dlfcn.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/core/json.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "suite/observe/collectives/journal.h"
#include "suite/observe/collectives/profiler_abi.h"
#include "suite/observe/rules/rules.h"
#include "suite/unit/run_suite.h"

static char folder[PATH_MAX];

static void set_up(void)
{
    ls_text_put(folder, sizeof folder, "/tmp/ls_observe_nccl_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    setenv("LS_OBSERVE_DIR", folder, 1);
    unsetenv("LS_OBSERVE_KERNELS");
}

static void tear_down(void)
{
    ls_path_remove_tree(folder);
}

static const void *plugin(const char *symbol)
{
    char program[PATH_MAX], path[PATH_MAX + 40];
    ls_path_program(program, sizeof program);
    ls_text_put(path, sizeof path, "%s/../lib/ls_nccl_profiler.so", program);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(library != NULL, "%s", dlerror());
    return dlsym(library, symbol);
}

/* ---- NCCL, as far as a plugin sees it ----------------------------------------------------------
 */

typedef struct nccl {
    const ls_profiler_v5 *v5;
    void *context;
    uint64_t id;
    int rank, calls, mask;
    bool kernels;
    size_t odd; /* the call whose count is one more */
} nccl;

static void open_comm(nccl *self)
{
    self->v5 = plugin("ncclProfiler_v5");
    ck_assert_int_eq(
        self->v5->init(&self->context, self->id, &self->mask, "a \"name\"", 1, 2, self->rank, NULL),
        0);
}

static void *start(const nccl *self, ls_profiler_event_v5 event)
{
    void *handle = &handle; /* what it was before is no handle */
    ck_assert_int_eq(self->v5->start(self->context, &handle, &event), 0);
    return handle;
}

/* One all_reduce with two channels of its kernel; captured: into a graph, which NCCL does not count
 * (nothing of its sequence moves). */
static void call_once(const nccl *self, size_t i, uint64_t sequence, bool captured)
{
    ls_profiler_event_v5 call = {.type = LS_PROFILER_COLLECTIVE_CALL},
                         task = {.type = LS_PROFILER_COLLECTIVE}, kernel, group = {.type = 1 << 8};
    ck_assert_ptr_null(start(self, group));
    call.of.collective_call.captured = captured;
    task.parent = start(self, call);
    task.of.collective.sequence = sequence;
    task.of.collective.function = "AllReduce";
    task.of.collective.type = "ncclFloat32";
    task.of.collective.count = 1000 + i + (i == self->odd);
    task.of.collective.root = 0;
    task.of.collective.channels = 2;
    task.of.collective.algorithm = "RING";
    task.of.collective.protocol = "LL128";
    void *handle = start(self, task), *of_kernel[2] = {NULL, NULL};
    ck_assert_int_eq(self->v5->stop(handle), 0);
    ck_assert_int_eq(self->v5->stop(task.parent), 0);
    for (int channel = 0; channel < 2 && self->kernels; channel++) {
        kernel = (ls_profiler_event_v5){.type = LS_PROFILER_KERNEL, .parent = handle};
        kernel.of.kernel = (ls_profiler_kernel){(uint8_t)channel, 5000 + (uint64_t)channel};
        of_kernel[channel] = start(self, kernel);
        ck_assert_ptr_nonnull(of_kernel[channel]);
    }
    for (int channel = 0; channel < 2 && self->kernels; channel++) {
        ls_profiler_state end = {.gpu_ns = 6000 + (uint64_t)channel};
        self->v5->record(of_kernel[channel], LS_PROFILER_KERNEL_STOPPED, &end);
        self->v5->stop(of_kernel[channel]);
    }
    /* late and wrong ones are ignored */
    self->v5->stop(handle);
    self->v5->stop(of_kernel[0]);
    self->v5->record(handle, 3, NULL);
    self->v5->stop((void *)(uintptr_t)0x7fffdeadbeef);
}

static void *call_many(void *memory)
{
    nccl *self = memory;
    for (int i = 0; i < self->calls; i++) {
        call_once(self, (size_t)i, (uint64_t)i, false);
    }
    return NULL;
}

/* Runs it as a process of its own, which exits as a trainer does. */
static void as_process(void (*body)(int), int rank)
{
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        LS_TEXT(text, 16, "%d", rank);
        setenv("RANK", text, 1);
        body(rank);
        exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

typedef struct counts {
    int calls, ran, p2p, stalls, ends;
    int64_t total;
} counts;

static ls_status count_event(void *context, const cJSON *event, int line)
{
    counts *to = context;
    const char *word = ls_json_string(event, "event", "");
    const cJSON *gpu = cJSON_GetObjectItemCaseSensitive(event, "gpu_ns");
    (void)line;
    to->calls += strcmp(word, "collective") == 0;
    to->p2p += strcmp(word, "p2p") == 0;
    to->stalls += strcmp(word, "stall") == 0;
    to->ran += gpu != NULL && cJSON_GetArrayItem(gpu, 0)->valuedouble == 5000 &&
               cJSON_GetArrayItem(gpu, 1)->valuedouble == 6001;
    if (strcmp(word, "end") == 0) {
        to->ends++;
        to->total = ls_json_integer(event, "calls", -1);
    }
    return LS_OK;
}

static counts count_lines(int rank)
{
    counts found = {0};
    LS_TEXT(path, PATH_MAX + 40, "%s/collectives.rank%d.jsonl", folder, rank);
    ck_assert_int_eq(ls_json_each_line(path, count_event, &found), LS_OK);
    return found;
}

/* ---- the plugin --------------------------------------------------------------------------------
 */

/* Together fewer than the plugin has places for; then more, one after the other. */
enum { THREADS = 4, CALLS = 1000, MANY = 5000 };

static void call_from_threads(int rank)
{
    pthread_t thread[THREADS];
    nccl comm[THREADS];
    for (int i = 0; i < THREADS; i++) {
        comm[i] = (nccl){.id = UINT64_C(0xabc0) + (uint64_t)i,
                         .rank = rank,
                         .calls = CALLS,
                         .kernels = true,
                         .odd = SIZE_MAX};
        open_comm(&comm[i]);
        ck_assert_int_eq(comm[i].mask,
                         LS_PROFILER_COLLECTIVE | LS_PROFILER_P2P | LS_PROFILER_KERNEL);
        ck_assert_int_eq(pthread_create(&thread[i], NULL, call_many, &comm[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        ck_assert_int_eq(comm[i].v5->finalize(comm[i].context), 0);
    }
}

/* A communicator in which this process is rank 0. */
static void call_as_first(int rank)
{
    nccl comm = {.id = 9, .calls = 1, .odd = SIZE_MAX};
    LS_TEXT(text, 16, "%d", rank);
    unsetenv("RANK");
    setenv(rank == 5 ? "PMI_RANK" : "OMPI_COMM_WORLD_RANK", text, 1);
    open_comm(&comm);
    (void)call_many(&comm);
    ck_assert_int_eq(comm.v5->finalize(comm.context), 0);
}

TEST(the_rank_is_that_of_the_launcher)
{
    for (int rank = 5; rank < 7; rank++) {
        as_process(call_as_first, rank);
        ck_assert_int_eq(count_lines(rank).total, 1);
    }
}

TEST(threads_share_a_file_of_whole_lines)
{
    setenv("LS_OBSERVE_KERNELS", "1", 1);
    as_process(call_from_threads, 3);
    counts found = count_lines(3);
    ck_assert_int_eq(found.calls, THREADS * CALLS);
    ck_assert_int_eq(found.ran, THREADS * CALLS);
    ck_assert_int_eq(found.total, THREADS * CALLS);
    ck_assert_int_eq(found.ends, 1);
}

static void use_version_4(int rank)
{
    const ls_profiler_v4 *v4 = plugin("ncclProfiler_v4");
    void *context = NULL, *handle = NULL;
    int mask = -1;
    ls_profiler_event_v4 event = {.type = LS_PROFILER_P2P, .rank = rank};
    ck_assert_int_eq(v4->init(&context, &mask, NULL, 7, 1, 2, rank, NULL), 0);
    ck_assert_int_eq(mask, LS_PROFILER_COLLECTIVE | LS_PROFILER_P2P);
    event.of.p2p.function = "Send";
    event.of.p2p.type = "ncclBfloat16";
    event.of.p2p.count = 12;
    ck_assert_int_eq(v4->start(context, &handle, &event), 0);
    ck_assert_int_eq(v4->stop(handle), 0);
    event.type = LS_PROFILER_GROUP;
    ck_assert_int_eq(v4->start(context, &handle, &event), 0);
    ck_assert_ptr_null(handle);
    ck_assert_int_eq(v4->finalize(context), 0);
}

static void call_one_after_the_other(int rank)
{
    nccl comm = {.id = 5, .rank = rank, .calls = MANY, .kernels = true, .odd = SIZE_MAX};
    open_comm(&comm);
    call_many(&comm);
}

TEST(places_are_used_again)
{
    setenv("LS_OBSERVE_KERNELS", "1", 1);
    as_process(call_one_after_the_other, 0);
    ck_assert_int_eq(count_lines(0).ran, MANY);
}

TEST(version_4_is_spoken_too)
{
    as_process(use_version_4, 0);
    counts found = count_lines(0);
    ck_assert_int_eq(found.p2p, 1);
    ck_assert_int_eq(found.calls, 0);
}

static void be_refused(int rank)
{
    nccl comm = {.id = 1, .rank = rank};
    open_comm(&comm);
    ck_assert_int_eq(comm.mask, 0);
    ck_assert_ptr_null(comm.context);
    ck_assert_int_eq(freopen("/dev/null", "w", stderr) == NULL, 0);
    open_comm(&comm);
    ck_assert_int_eq(comm.mask, 0);
}

TEST(without_a_folder_it_asks_for_nothing)
{
    unsetenv("LS_OBSERVE_DIR");
    as_process(be_refused, 0);
    setenv("LS_OBSERVE_DIR", "/nonexistent", 1);
    as_process(be_refused, 0);
}

/* Starts a kernel that does not end, until the file says so. */
static void stall(int rank)
{
    nccl comm = {.id = 1, .rank = rank, .odd = SIZE_MAX};
    ls_profiler_event_v5 task = {.type = LS_PROFILER_COLLECTIVE},
                         kernel = {.type = LS_PROFILER_KERNEL};
    open_comm(&comm);
    task.of.collective.function = "AllReduce";
    task.of.collective.channels = 1;
    kernel.parent = start(&comm, task);
    ck_assert_int_eq(comm.v5->stop(kernel.parent), 0);
    ck_assert_ptr_nonnull(start(&comm, kernel));
    for (int i = 0; i < 100 && count_lines(rank).stalls == 0; i++) {
        (void)poll(NULL, 0, 100);
    }
    _exit(0); /* as one that is killed */
}

TEST(a_stall_is_in_the_file_while_it_lasts)
{
    setenv("LS_OBSERVE_KERNELS", "1", 1);
    setenv("LS_OBSERVE_STALL_S", "1", 1);
    as_process(stall, 0);
    ck_assert_int_eq(count_lines(0).stalls, 1);
    ck_assert_int_eq(count_lines(0).ends, 0);
}

/* ---- the rules ---------------------------------------------------------------------------------
 */

static ls_observe_finding judge(ls_observe_judge *rule, ls_observe_trace trace)
{
    ls_observe_finding finding = {0};
    ls_text_put(trace.record.directory, sizeof trace.record.directory, "%s", folder);
    rule(&trace, &finding);
    return finding;
}

static void expect_of(ls_observe_finding finding, ls_verdict_code code, const char *text)
{
    LS_TEXT(all, 1800, "%s | %s", finding.verdict.evidence, finding.verdict.cause);
    ck_assert_msg(finding.verdict.code == code && strstr(all, text) != NULL, "%d: %s",
                  (int)finding.verdict.code, all);
}

static void expect(ls_observe_judge *rule, ls_verdict_code code, const char *text)
{
    expect_of(judge(rule, (ls_observe_trace){.world = 2}), code, text);
}

static void call_in_order(int rank)
{
    nccl comm = {.id = 9, .rank = rank, .calls = 10, .odd = SIZE_MAX};
    open_comm(&comm);
    call_many(&comm);
    for (int i = 0; i <= 2 * rank; i++) { /* a graph's: NCCL shows them on some ranks only */
        call_once(&comm, (size_t)i, 10, true);
    }
    call_once(&comm, 10, 10, false);
}

static void call_another_size(int rank)
{
    nccl comm = {.id = 9, .rank = rank, .calls = 10, .odd = rank == 1 ? 6 : SIZE_MAX};
    open_comm(&comm);
    call_many(&comm);
}

TEST(calls_that_nccl_saw_are_compared)
{
    as_process(call_in_order, 0);
    as_process(call_in_order, 1);
    expect(ls_rules_collectives_order, LS_PASS, "11 calls were the same");
    expect(ls_rules_collectives_sum, LS_WEAK, "no sampled call");
    tear_down();
    set_up();
    as_process(call_another_size, 0);
    as_process(call_another_size, 1);
    expect(ls_rules_collectives_order, LS_FAIL,
           "call 7 of a communicator is all_reduce of 1006 f32 with root 0 on rank 0, all_reduce "
           "of 1007 f32 with root 0 on rank 1");
}

/* A rank's file: its start with these members, a communicator, then these lines. */
static void write_rank(const char *name, int rank, const char *members, int world,
                       const char *lines)
{
    LS_TEXT(path, PATH_MAX + 40, "%s/%s.rank%d.jsonl", folder, name, rank);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file,
            "{\"event\":\"start\",\"schema\":1,\"rank\":%d%s}\n"
            "{\"event\":\"comm\",\"comm\":\"0a\",\"comm_rank\":%d,\"world\":%d}\n%s",
            rank, members, rank, world, lines);
    fclose(file);
}

static void write_sums(int rank, const char *lines)
{
    write_rank("sums", rank, "", 2, lines);
}

#define MADE(rank, number, op, elements, chain)                                       \
    "{\"event\":\"call\",\"comm\":\"0a\",\"comm_rank\":" #rank ",\"number\":" #number \
    ",\"op\":\"" op "\",\"elements\":" #elements                                      \
    ",\"type\":\"f32\",\"reduce\":\"sum\",\"root\":-1,"                               \
    "\"chain\":\"" chain "\"}\n"
#define ENDED(rank, calls, chain)                                                       \
    "{\"event\":\"comm_end\",\"comm\":\"0a\",\"comm_rank\":" #rank ",\"calls\":" #calls \
    ",\"chain\":\"" chain "\"}\n"

LOOP_TEST(another_order_is_caught, 6)
{
    static const struct {
        const char *second;
        ls_verdict_code code;
        const char *text;
    } ways[] = {
        {MADE(1, 0, "all_reduce", 5, "1") MADE(1, 1, "all_reduce", 7, "2") ENDED(1, 2, "2"),
         LS_PASS, "2 calls were the same"},
        {MADE(1, 0, "all_reduce", 7, "3") MADE(1, 1, "all_reduce", 5, "4") ENDED(1, 2, "4"),
         LS_FAIL,
         "call 1 of a communicator is all_reduce sum of 5 f32 on rank 0, all_reduce sum "
         "of 7 f32 on rank 1"},
        {MADE(1, 0, "all_reduce", 5, "1") MADE(1, 1, "reduce_scatter", 7, "9"), LS_FAIL,
         "call 2 of a communicator is all_reduce"},
        {MADE(1, 0, "all_reduce", 5, "1"), LS_PASS, "1 calls were"}, /* it was killed there */
        {MADE(1, 0, "all_reduce", 5, "1") ENDED(1, 1, "1"), LS_FAIL,
         "rank 0 made 2 collective calls on a communicator of 2 ranks, rank 1 1"},
        {"", LS_WEAK, "no two ranks' calls"},
    };
    write_sums(0,
               MADE(0, 0, "all_reduce", 5, "1") MADE(0, 1, "all_reduce", 7, "2") ENDED(0, 2, "2"));
    write_sums(1, ways[_i].second);
    expect(ls_rules_collectives_order, ways[_i].code, ways[_i].text);
}

#define SAMPLE(rank, op, elements, type, reduce, data)                                        \
    "{\"event\":\"sample\",\"comm\":\"0a\",\"comm_rank\":" #rank ",\"number\":0,\"op\":\"" op \
    "\",\"elements\":" #elements ",\"type\":\"" type "\",\"reduce\":\"" reduce                \
    "\",\"root\":0,\"part\":0,\"width\":" #elements ",\"pieces\":[0]" data "}\n"
#define BOTH(sent, received) ",\"sent\":\"" sent "\",\"received\":\"" received "\""

#define PAIR(type, reduce, one, other, got)                            \
    {                                                                  \
        SAMPLE(0, "all_reduce", 1, type, reduce, BOTH(one, got)),      \
            SAMPLE(1, "all_reduce", 1, type, reduce, BOTH(other, got)) \
    }

/* f16: 3c00 is 1, 3c01 the next value, 4000 2, 4200 3, 3e00 1.5, 7bff 65504, 7c00 infinite; bytes
 * come lowest first. */
LOOP_TEST(elements_are_judged, 36)
{
    static const struct {
        const char *line[2];
        ls_verdict_code code;
        const char *text;
    } ways[] = {
        {{SAMPLE(0, "all_reduce", 1, "f16", "sum", BOTH("003c", "0042")),
          SAMPLE(1, "all_reduce", 1, "f16", "sum", BOTH("0040", "0042"))},
         LS_PASS,
         "2 elements of 1 sampled calls"},
        {{SAMPLE(0, "all_reduce", 1, "f16", "sum", BOTH("003c", "0042")),
          SAMPLE(1, "all_reduce", 1, "f16", "sum", BOTH("0040", "0242"))},
         LS_FAIL,
         "element 0 on rank 1 is 3.00390625, what its ranks sent gives 3 (limit 0.0015)"},
        {{SAMPLE(0, "all_reduce", 1, "f16", "avg", BOTH("003c", "003e")),
          SAMPLE(1, "all_reduce", 1, "f16", "avg", BOTH("0040", "003e"))},
         LS_PASS,
         "2 elements"},
        {{SAMPLE(0, "all_reduce", 1, "f16", "avg", BOTH("003c", "0042")),
          SAMPLE(1, "all_reduce", 1, "f16", "avg", BOTH("0040", "003e"))},
         LS_FAIL,
         "element 0 on rank 0 is 3, what its ranks sent gives 1.5"},
        {{SAMPLE(0, "all_reduce", 1, "f16", "max", BOTH("003c", "003c")),
          SAMPLE(1, "all_reduce", 1, "f16", "max", BOTH("0040", "0040"))},
         LS_FAIL,
         "rank 0 is 1, what its ranks sent gives 2"},
        {{SAMPLE(0, "all_reduce", 1, "f16", "sum", BOTH("ff7b", "007c")),
          SAMPLE(1, "all_reduce", 1, "f16", "sum", BOTH("ff7b", "007c"))},
         LS_WEAK,
         "2 elements are beyond the type's range"},
        {{SAMPLE(0, "all_reduce", 1, "f16", "sum", BOTH("007c", "007c")),
          SAMPLE(1, "all_reduce", 1, "f16", "sum", BOTH("003c", "003c"))},
         LS_FAIL,
         "element 0 on rank 1 is 1"},
        {{SAMPLE(0, "all_reduce", 1, "f16", "created", BOTH("003c", "003c")),
          SAMPLE(1, "all_reduce", 1, "f16", "created", BOTH("003c", "003c"))},
         LS_UNSUPPORTED,
         "not judged: created of f16"},
        {{SAMPLE(0, "all_reduce", 1, "i8", "sum", BOTH("7f", "fe")),
          SAMPLE(1, "all_reduce", 1, "i8", "sum", BOTH("7f", "fe"))},
         LS_PASS,
         "2 elements"},
        {{SAMPLE(0, "all_reduce", 1, "i32", "min", BOTH("ffffffff", "ffffffff")),
          SAMPLE(1, "all_reduce", 1, "i32", "min", BOTH("01000000", "01000000"))},
         LS_FAIL,
         "element 0 on rank 1 is 1, what its ranks sent gives -1"},
        {{SAMPLE(0, "broadcast", 2, "u8", "", BOTH("0102", "0102")),
          SAMPLE(1, "broadcast", 2, "u8", "", ",\"received\":\"0103\"")},
         LS_FAIL,
         "element 1 on rank 1 is not the one that rank 0 sent"},
        {{SAMPLE(0, "broadcast", 2, "u8", "", ",\"received\":\"0103\""),
          SAMPLE(1, "broadcast", 2, "u8", "", BOTH("0102", "0102"))},
         LS_FAIL,
         "element 1 on rank 0 is not the one that rank 1 sent"},
        {{SAMPLE(0, "broadcast", 2, "u8", "", ",\"received\":\"0102\""),
          SAMPLE(1, "broadcast", 2, "u8", "", ",\"received\":\"0103\"")},
         LS_WEAK,
         "no sampled call is whole: 1 lack a rank"}, /* what was sent is not known */
        {{SAMPLE(0, "reduce_scatter", 1, "f16", "sum", BOTH("003c", "0042")),
          SAMPLE(1, "reduce_scatter", 1, "f16", "sum", ",\"sent\":\"0040\"")},
         LS_PASS,
         "1 elements of 1"},
        {{SAMPLE(0, "all_reduce", 1, "f16", "sum", BOTH("003c", "003c")), ""},
         LS_WEAK,
         "1 lack a rank"},
        {{SAMPLE(0, "all_reduce", 1, "f16", "sum", BOTH("003c", "0042")),
          SAMPLE(1, "all_reduce", 2, "f16", "sum", BOTH("00400040", "00420042"))},
         LS_WEAK,
         "no sampled call is whole"},
        {{SAMPLE(0, "all_reduce", 2, "f16", "sum", BOTH("003c", "0042")),
          SAMPLE(1, "all_reduce", 2, "f16", "sum", BOTH("003c", "0042"))},
         LS_WEAK,
         "1 lack a rank"}, /* fewer bytes than elements */
        /* at the limit and beyond: of f16 77ff is half the largest, 0800 twice the least normal */
        {PAIR("f32", "sum", "0000803f", "00000040", "00004040"), LS_PASS,
         "2 elements of 1 sampled calls"},
        {PAIR("f32", "sum", "0000803f", "00000040", "01004040"), LS_FAIL,
         "element 0 on rank 0 is 3.00000024, what its ranks sent gives 3 (limit 1.8e-07)"},
        {PAIR("f64", "sum", "000000000000f03f", "0000000000000040", "0000000000000840"), LS_PASS,
         "2 elements"},
        {PAIR("f64", "sum", "000000000000f03f", "0000000000000040", "0100000000000840"), LS_FAIL,
         "gives 3 (limit 3.3e-16)"},
        {PAIR("bf16", "sum", "803f", "0040", "4040"), LS_PASS, "2 elements"},
        {PAIR("bf16", "sum", "803f", "0040", "4140"), LS_FAIL, "gives 3 (limit 0.012)"},
        {PAIR("f16", "prod", "0040", "0042", "0046"), LS_PASS, "2 elements"},
        {PAIR("f16", "prod", "0040", "0042", "0146"), LS_FAIL, "gives 6 (limit 0.0029)"},
        {PAIR("f16", "prod", "ff77", "003c", "ff77"), LS_PASS, "2 elements"},
        {PAIR("f16", "prod", "0078", "003c", "0078"), LS_WEAK, "2 elements are beyond"},
        {PAIR("f16", "prod", "0108", "003c", "0108"), LS_PASS, "2 elements"},
        {PAIR("f16", "prod", "0008", "003c", "0008"), LS_WEAK, "2 elements are beyond"},
        {PAIR("f16", "prod", "007e", "003c", "007e"), LS_WEAK, "2 elements are beyond"},
        {PAIR("f16", "sum", "0000", "0000", "0000"), LS_PASS, "2 elements"},
        {PAIR("f16", "sum", "0000", "0000", "0100"), LS_FAIL, "gives 0 (limit 0)"},
        {PAIR("i8", "prod", "7f", "7f", "01"), LS_PASS, "2 elements"},
        {PAIR("i8", "max", "ff", "01", "01"), LS_PASS, "2 elements"},
        {PAIR("u8", "max", "ff", "01", "ff"), LS_PASS, "2 elements"},
        {PAIR("u8", "sum", "ff", "02", "02"), LS_FAIL,
         "element 0 on rank 0 is 2, what its ranks sent gives 1"},
    };
    ck_assert_int_eq(sizeof ways / sizeof *ways, 36);
    write_sums(0, ways[_i].line[0]);
    write_sums(1, ways[_i].line[1]);
    expect(ls_rules_collectives_sum, ways[_i].code, ways[_i].text);
}

/* ---- a call that a rank never entered ---------------------------------------------------------
 */

/* A rank's file with a boot, a bound of 2 s and a communicator of three, then these lines. */
static void write_timed(const char *name, int rank, const char *boot, const char *lines)
{
    LS_TEXT(members, 80, ",\"boot\":\"%s\",\"stall_s\":2%s", boot,
            strcmp(name, "sums") == 0 ? "" : ",\"api\":5");
    write_rank(name, rank, members, 3, lines);
}

#define UNTIMED(rank, number, more)                                                   \
    "{\"event\":\"call\",\"comm\":\"0a\",\"comm_rank\":" #rank ",\"number\":" #number \
    ",\"op\":\"all_reduce\",\"elements\":7,\"type\":\"f32\",\"reduce\":\"sum\","      \
    "\"root\":-1" more "}\n"
#define ENTER(rank, number, at_s) UNTIMED(rank, number, ",\"at_ns\":" #at_s "000000000")
#define CLOSE(rank, calls, at_s)                                                        \
    "{\"event\":\"comm_end\",\"comm\":\"0a\",\"comm_rank\":" #rank ",\"calls\":" #calls \
    ",\"at_ns\":" #at_s "000000000}\n"
#define END(at_s) "{\"event\":\"end\",\"at_ns\":" #at_s "000000000}\n"

static void expect_stall(ls_record_state state, const char *outcome, ls_verdict_code code,
                         const char *text)
{
    ls_observe_trace trace = {.world = 3, .record = {.state = state}};
    trace.record.job = cJSON_CreateObject();
    cJSON_AddItemToObject(trace.record.job, "outcome", cJSON_Parse(outcome));
    expect_of(judge(ls_rules_collectives_stall, trace), code, text);
    cJSON_Delete(trace.record.job);
}

#define ENDED_AT(at_s) "{\"ended_ns\":" #at_s "000000000,\"boot\":\"b\",\"asked\":0}"
#define ASKED_AT(at_s) "{\"ended_ns\":" #at_s "000000000,\"boot\":\"b\",\"asked\":2}"
#define NEVER "rank 1 never entered call 2 of a communicator of 3 ranks, all_reduce sum of 7 f32, "

LOOP_TEST(a_call_that_is_left_out_is_named, 15)
{
    static const struct {
        const char *line[3]; /* NULL: as the others */
        ls_record_state state;
        const char *outcome;
        ls_verdict_code code;
        const char *text;
    } ways[] = {
        /* killed while the others wait: long, not long enough, by hand, on another clock */
        {{NULL, ENTER(1, 0, 1)},
         LS_RECORD_FAILED,
         ENDED_AT(9),
         LS_FAIL,
         NEVER "which ranks 0, 2 did; the wait lasted 7.0 s | rank 1 took a branch without"},
        {{NULL, ENTER(1, 0, 1)},
         LS_RECORD_FAILED,
         ENDED_AT(3),
         LS_PASS,
         "all ranks entered 1 calls"},
        {{NULL, ENTER(1, 0, 1)}, LS_RECORD_FAILED, ASKED_AT(9), LS_WEAK, "then somebody stopped"},
        {{NULL, ENTER(1, 0, 1)},
         LS_RECORD_FAILED,
         "{\"ended_ns\":9000000000,\"boot\":\"c\",\"asked\":0}",
         LS_PASS,
         "entered 1 calls"},
        /* a timeout that aborts the communicator; the killed one may have been busy */
        {{ENTER(0, 0, 1) ENTER(0, 1, 2) CLOSE(0, 2, 6) END(6), ENTER(1, 0, 1)},
         LS_RECORD_UNKNOWN,
         "{}",
         LS_FAIL,
         "the wait lasted 4.0 s"},
        /* it ended by itself, and the others do not wait long: in a job that fails, that ends
         * well, of which nothing is known, that somebody interrupts, that was started again */
        {{NULL, ENTER(1, 0, 1) END(2)},
         LS_RECORD_FAILED,
         ENDED_AT(3),
         LS_FAIL,
         "the wait lasted 1.0 s | rank 1 had ended or left the communicator by then"},
        {{ENTER(0, 0, 1) ENTER(0, 1, 2) END(3), ENTER(1, 0, 1) END(2),
          ENTER(2, 0, 1) ENTER(2, 1, 2) END(3)},
         LS_RECORD_DONE,
         ENDED_AT(3),
         LS_FAIL,
         NEVER},
        {{NULL, ENTER(1, 0, 1) END(2)}, LS_RECORD_UNKNOWN, "{}", LS_WEAK, "is not known"},
        {{NULL, ENTER(1, 0, 1) END(2)}, LS_RECORD_FAILED, ASKED_AT(3), LS_PASS, "entered 1 calls"},
        {{NULL, ENTER(1, 0, 1) END(2)}, LS_RECORD_DONE, ENDED_AT(3), LS_PASS, "entered 1 calls"},
        /* only one rank makes it */
        {{NULL, ENTER(1, 0, 1), ENTER(2, 0, 1)},
         LS_RECORD_KILLED,
         ENDED_AT(9),
         LS_FAIL,
         "ranks 1, 2 never entered call 2"},
        /* of a graph's calls and of those without a time nothing is known but that they came */
        {{ENTER(0, 0, 1) UNTIMED(0, 1, ",\"captured\":true,\"at_ns\":2000000000"), ENTER(1, 0, 1),
          ENTER(2, 0, 1) UNTIMED(2, 1, ",\"captured\":true,\"at_ns\":2000000000")},
         LS_RECORD_FAILED,
         ENDED_AT(9),
         LS_PASS,
         "all ranks entered 1 calls"},
        {{ENTER(0, 0, 1) UNTIMED(0, 1, ""), ENTER(1, 0, 1), ENTER(2, 0, 1) UNTIMED(2, 1, "")},
         LS_RECORD_FAILED,
         ENDED_AT(9),
         LS_PASS,
         "all ranks entered 1 calls"},
        /* none of it: a rank that makes no call; one of another machine; a slow one */
        {{NULL, ""}, LS_RECORD_FAILED, ENDED_AT(9), LS_FAIL, "rank 1 never entered call 1 of"},
        {{NULL, ENTER(1, 0, 1) ENTER(1, 1, 60)},
         LS_RECORD_DONE,
         ENDED_AT(61),
         LS_PASS,
         "all ranks entered 2 calls; the longest wait was 58 s, for rank 1 in call 2"},
    };
    static const char *const usual[] = {ENTER(0, 0, 1) ENTER(0, 1, 2), "",
                                        ENTER(2, 0, 1) ENTER(2, 1, 2)};
    ck_assert_int_eq(sizeof ways / sizeof *ways, 15);
    for (int rank = 0; rank < 3; rank++) {
        const char *line = ways[_i].line[rank];
        write_timed("sums", rank, "b", line != NULL ? line : usual[rank]);
    }
    expect_stall(ways[_i].state, ways[_i].outcome, ways[_i].code, ways[_i].text);
}

TEST(other_machines_and_cut_files_are_left_out)
{
    write_timed("sums", 0, "b", ENTER(0, 0, 1) ENTER(0, 1, 2));
    write_timed("sums", 1, "other", ENTER(1, 0, 900));
    expect_stall(LS_RECORD_FAILED, ENDED_AT(9), LS_WEAK, "no call of two ranks of one machine");
    write_timed("sums", 1, "", ENTER(1, 0, 1)); /* of which machine is not known */
    expect_stall(LS_RECORD_FAILED, ENDED_AT(9), LS_WEAK, "no call of two ranks of one machine");
    write_timed("sums", 1, "b", ENTER(1, 0, 1));
    expect_stall(LS_RECORD_FAILED, ENDED_AT(9), LS_FAIL, "rank 1 never entered call 2");
    LS_TEXT(path, PATH_MAX + 40, "%s/sums.rank1.jsonl", folder);
    FILE *file = fopen(path, "a");
    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < LS_JOURNAL_LINES_MAX; i++) {
        fputs("{}\n", file);
    }
    fclose(file);
    expect_stall(LS_RECORD_FAILED, ENDED_AT(9), LS_WEAK, "no call of two ranks of one machine");
}

/* Each call of rank 1 comes 300 ms after the others', of one a second; or each rank is late in
 * turn. */
TEST(a_slow_rank_is_a_figure)
{
    enum { MANY_CALLS = 60 };
    for (int turns = 0; turns <= 1; turns++) {
        for (int rank = 0; rank < 3; rank++) {
            char lines[MANY_CALLS * 200] = "";
            for (int n = 0; n < MANY_CALLS; n++) {
                int late = turns ? n % 3 : 1;
                ls_text_add(
                    lines, sizeof lines,
                    "{\"event\":\"call\",\"comm\":\"0a\",\"comm_rank\":%d,\"number\":%d,"
                    "\"op\":\"all_reduce\",\"elements\":7,\"type\":\"f32\",\"at_ns\":%lld}\n",
                    rank, n, 1000000000LL * (n + 1) + (rank == late ? 300000000 : rank));
            }
            write_timed("sums", rank, "b", lines);
        }
        expect_stall(LS_RECORD_DONE, ENDED_AT(90), LS_PASS,
                     turns ? "(all_reduce of 7 f32)"
                           : "the others wait for rank 1: 30 % of the time, and it is the last one "
                             "in 100 % of the calls");
    }
    ls_observe_finding finding = judge(ls_rules_collectives_stall, (ls_observe_trace){.world = 3});
    ck_assert_ptr_null(strstr(finding.verdict.evidence, "wait for rank"));
    ck_assert_str_eq(finding.advice, "");
}

#define RUNNING(rank, sequence)                                                   \
    "{\"event\":\"stall\",\"comm\":\"0a\",\"comm_rank\":" #rank ",\"number\":40," \
    "\"sequence\":" #sequence ",\"op\":\"all_reduce\",\"elements\":7,\"running_s\":2.5}\n"
#define RAN(rank, sequence, more)                                                                  \
    "{\"event\":\"collective\",\"comm\":\"0a\",\"comm_rank\":" #rank ",\"number\":40,"             \
    "\"sequence\":" #sequence ",\"op\":\"all_reduce\",\"elements\":7,\"type\":\"f32\",\"root\":0," \
    "\"captured\":false,\"at_ns\":1000000000" more "}\n"

TEST(a_kernel_that_nccl_saw_waiting_is_named)
{
    write_timed("collectives", 0, "b", RUNNING(0, 0));
    write_timed("collectives", 1, "b", "");
    write_timed("collectives", 2, "b", RUNNING(2, 0));
    expect_stall(LS_RECORD_KILLED, "{}", LS_FAIL, "rank 1 never entered call 1 of all_reduce of a");
    write_timed("collectives", 0, "b", RAN(0, 0, ",\"ran_ns\":[1,2]") RUNNING(0, 1));
    write_timed("collectives", 2, "b", RAN(2, 0, ",\"ran_ns\":[1,2]") RUNNING(2, 1));
    write_timed("collectives", 1, "b", RAN(1, 0, ",\"ran_ns\":[1,2]"));
    expect_stall(LS_RECORD_KILLED, "{}", LS_FAIL,
                 "rank 1 never entered call 2 of all_reduce of a communicator of 3 ranks, "
                 "all_reduce of 7 elements, which ranks 0, 2 did; the wait lasted 2.5 s");
    /* what was written when the process ended had not run; what ran is no stall any more */
    write_timed("collectives", 0, "b", RAN(0, 0, "") RUNNING(0, 1) RAN(0, 1, "") END(9));
    expect_stall(LS_RECORD_KILLED, "{}", LS_FAIL, "rank 1 never entered call 2 of all_reduce");
    write_timed("collectives", 0, "b", RUNNING(0, 1) RAN(0, 1, ",\"gpu_ns\":[1,2]"));
    write_timed("collectives", 2, "b", RUNNING(2, 1) RAN(2, 1, ",\"gpu_ns\":[1,2]"));
    expect_stall(LS_RECORD_KILLED, "{}", LS_WEAK, "profiler reported no stall");
    for (int rank = 0; rank < 3; rank++) {
        write_timed("collectives", rank, "b",
                    rank == 0   ? RUNNING(0, 0) RAN(0, 0, ",\"ran_ns\":[1,2]")
                    : rank == 1 ? RAN(1, 0, ",\"ran_ns\":[1,2]")
                                : RAN(2, 0, ",\"ran_ns\":[1,2]"));
    }
    expect_stall(LS_RECORD_DONE, ENDED_AT(9), LS_WEAK, "profiler reported no stall");
    expect(ls_rules_collectives_order, LS_PASS, "2 calls were the same");
}

/* ---- NCCL's table ------------------------------------------------------------------------------
 */

/* Offsets and sizes as compilers for 64 bits lay out NCCL 2.28.9's profiler_v4.h and profiler_v5.h,
 * which were compared member by member. */
#define AT(version, member, offset)                                            \
    _Static_assert(offsetof(ls_profiler_event_v##version, member) == (offset), \
                   "NCCL has " #member " elsewhere")
#define AT_BOTH(member, offset) \
    AT(4, member, offset);      \
    AT(5, member, offset)
AT_BOTH(parent, 8);
AT_BOTH(rank, 16);
AT_BOTH(of.collective.sequence, 24);
AT_BOTH(of.collective.function, 32);
AT_BOTH(of.collective.send, 40);
AT_BOTH(of.collective.receive, 48);
AT_BOTH(of.collective.count, 56);
AT_BOTH(of.collective.root, 64);
AT_BOTH(of.collective.type, 72);
AT_BOTH(of.collective.channels, 80);
AT_BOTH(of.collective.warps, 81);
AT_BOTH(of.collective.algorithm, 88);
AT_BOTH(of.collective.protocol, 96);
AT_BOTH(of.p2p.function, 24);
AT_BOTH(of.p2p.buffer, 32);
AT_BOTH(of.p2p.type, 40);
AT_BOTH(of.p2p.count, 48);
AT_BOTH(of.p2p.peer, 56);
AT_BOTH(of.p2p.channels, 60);
AT_BOTH(of.kernel.channel, 24);
AT_BOTH(of.kernel.gpu_ns, 32);
AT(5, of.collective_call.count, 32);
AT(5, of.collective_call.captured, 64);
AT(5, of.p2p_call.captured, 56);
_Static_assert(sizeof(ls_profiler_event_v4) == 104, "as ncclProfilerEventDescr_v4_t");
_Static_assert(sizeof(ls_profiler_event_v5) == 112, "as ncclProfilerEventDescr_v5_t");
_Static_assert(sizeof(ls_profiler_v4) == 48 && sizeof(ls_profiler_v5) == 48,
               "as ncclProfiler_v*_t");
_Static_assert(sizeof(ls_profiler_state) == 8, "as ncclProfilerEventStateArgs_v*_t");

TEST(a_broken_file_is_no_pass)
{
    expect(ls_rules_collectives_sum, LS_SKIP, "NCCL was not looked at");
    expect(ls_rules_collectives_stall, LS_SKIP, "NCCL was not looked at");
    write_sums(0, "not a line\n");
    expect(ls_rules_collectives_sum, LS_INFRA, "sums.rank0.jsonl cannot be read to its end");
    expect(ls_rules_collectives_order, LS_INFRA, "sums.rank0.jsonl cannot be read to its end");
    expect(ls_rules_collectives_stall, LS_INFRA, "sums.rank0.jsonl cannot be read to its end");
}

TEST_MAIN("observe_nccl", .timeout_s = 60, .before = set_up, .after = tear_down)
