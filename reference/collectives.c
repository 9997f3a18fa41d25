/* lockstep-collectives: one rank of a job that checks every collective of an engine on data whose
 * result is known (comm/exercise.h), in the manner of nccl-tests. It is started like the trainer.
 * Writes LS_RUN_DIR/rank<k>.jsonl: `start`; per combination `collective`; `barrier`, with clocks
 * that all ranks of a machine share; `absent`; `end`. Exit code 1 if an element was wrong. */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/digest.h"
#include "kernels/core/file.h"
#include "kernels/core/json.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "kernels/core/usage_error.h"
#include "reference/comm/exercise.h"
#include "reference/state/device.h"
#include "reference/options/world.h"

/* ---- command line ---------------------------------------------------------------------------- */

enum {
    KINDS = 8,
    DTYPES = 7,
    COUNTS = 32,
};

typedef struct arguments {
    int kind_count, dtype_count, count_count;
    ls_comm_kind kind[KINDS];
    ls_dtype dtype[DTYPES];
    const char *counts; /* parsed once the world is known */
    int64_t count[COUNTS];
    ls_pattern_kind data;
    bool in_place[2]; /* out of place, in place */
    int offset_max, iterations, barriers, absent;
    bool headline;
    double timeout_s;
    const char *comm, *device;
} arguments;

static const ls_comm_kind kinds[KINDS] = {
    LS_COMM_ALL_REDUCE, LS_COMM_REDUCE_SCATTER, LS_COMM_ALL_GATHER, LS_COMM_BROADCAST,
    LS_COMM_REDUCE,     LS_COMM_GATHER,         LS_COMM_SCATTER,    LS_COMM_SEND,
};
static const ls_dtype dtypes[DTYPES] = {LS_F32, LS_F16, LS_BF16, LS_I64, LS_U8, LS_F64, LS_I32};

enum option_key {
    OPTION_OPS = 256,
    OPTION_DTYPES,
    OPTION_COUNTS,
    OPTION_IN_PLACE,
    OPTION_OFFSETS,
    OPTION_DATA,
    OPTION_ITERATIONS,
    OPTION_BARRIERS,
    OPTION_ABSENT,
    OPTION_COMM,
    OPTION_DEVICE,
    OPTION_HEADLINE,
    OPTION_TIMEOUT,
};

static const struct argp_option options[] = {
    {"ops", OPTION_OPS, "LIST", 0, "all_reduce,reduce_scatter,... [all]", 0},
    {"dtypes", OPTION_DTYPES, "LIST", 0, "fp32,fp16,bf16,int64,uint8,... [fp32]", 0},
    {"counts", OPTION_COUNTS, "LIST", 0,
     "Elements per rank; W-1 and W+1 stand for the world's size [1024]", 0},
    {"in-place", OPTION_IN_PLACE, "no|yes|both", 0, "Input and result in one buffer [both]", 0},
    {"offsets", OPTION_OFFSETS, "N", 0, "Buffers 0 .. N elements off a 64-byte boundary [0]", 0},
    {"data", OPTION_DATA, "exact|rough", 0,
     "Integers whose sums are exact, or values that round at every addition [exact]", 0},
    {"iters", OPTION_ITERATIONS, "N", 0, "Iterations of each combination [1]", 0},
    {"barriers", OPTION_BARRIERS, "N", 0, "Also N barriers, to each of which another rank is late",
     0},
    {"absent", OPTION_ABSENT, "RANK", 0,
     "Also each operation without this rank: the others must fail at --timeout", 0},
    {"headline", OPTION_HEADLINE, NULL, 0,
     "Also, last, 51.2 MB of fp16 all-reduced in place, the gradients of a ResNet-50", 0},
    {"device", OPTION_DEVICE, "auto|cpu|cuda", 0,
     "Whose memory [auto: cuda where the PCI bus shows "
     "an NVIDIA device]",
     0},
    {"comm", OPTION_COMM, "self|gloo|nccl", 0, "Engine [gloo, on cuda nccl; alone: self]", 0},
    {"timeout", OPTION_TIMEOUT, "S", 0, "Deadline of every operation [60]", 0},
    {0},
};

static int number_of(struct argp_state *state, const char *name, const char *text, int most)
{
    int64_t value = 0;
    if (!ls_text_integer(text, 0, most, &value)) {
        argp_failure(state, LS_ERR_USAGE, 0, "error: %s '%s': allowed: 0 to %d", name, text, most);
    }
    return (int)value;
}

static bool in_list(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0')) {
            return true;
        }
    }
    return false;
}

static int commas(const char *list)
{
    int count = 0;
    for (; *list != '\0'; list++) {
        count += *list == ',';
    }
    return count;
}

static void read_ops(struct argp_state *state, const char *list, arguments *given)
{
    given->kind_count = 0;
    for (size_t i = 0; i < KINDS; i++) {
        if (strcmp(list, "all") == 0 || in_list(list, ls_comm_kind_name(kinds[i]))) {
            given->kind[given->kind_count++] = kinds[i];
        }
    }
    if (strcmp(list, "none") != 0 && strcmp(list, "all") != 0 &&
        given->kind_count != commas(list) + 1) {
        argp_failure(state, LS_ERR_USAGE, 0,
                     "error: --ops '%s': allowed: all, none, or some of all_reduce, "
                     "reduce_scatter, all_gather, broadcast, reduce, gather, scatter, send",
                     list);
    }
}

static void read_dtypes(struct argp_state *state, const char *list, arguments *given)
{
    given->dtype_count = 0;
    for (size_t i = 0; i < DTYPES; i++) {
        if (in_list(list, ls_dtype_label(dtypes[i]))) {
            given->dtype[given->dtype_count++] = dtypes[i];
        }
    }
    if (given->dtype_count != commas(list) + 1) {
        argp_failure(
            state, LS_ERR_USAGE, 0,
            "error: --dtypes '%s': allowed: some of fp32, fp16, bf16, fp64, int64, int32, uint8",
            list);
    }
}

/* choices: "exact|rough" */
static void read_choice(struct argp_state *state, const char *name, const char *text,
                        const char *choices)
{
    if (ls_text_choice(text, choices) < 0) {
        argp_failure(state, LS_ERR_USAGE, 0, "error: %s '%s': allowed: %s", name, text, choices);
    }
}

static error_t parse_one(int key, char *text, struct argp_state *state)
{
    enum { TIMEOUT_MOST_S = 1000000 };
    arguments *given = state->input;
    char *end;
    switch (key) {
    case OPTION_OPS:
        read_ops(state, text, given);
        return 0;
    case OPTION_DTYPES:
        read_dtypes(state, text, given);
        return 0;
    case OPTION_COUNTS:
        given->counts = text;
        return 0;
    case OPTION_IN_PLACE:
        read_choice(state, "--in-place", text, "no|yes|both");
        given->in_place[0] = strcmp(text, "yes") != 0;
        given->in_place[1] = strcmp(text, "no") != 0;
        return 0;
    case OPTION_OFFSETS:
        given->offset_max = number_of(state, "--offsets", text, 16);
        return 0;
    case OPTION_DATA:
        read_choice(state, "--data", text, "exact|rough");
        given->data = strcmp(text, "rough") == 0 ? LS_PATTERN_ROUGH : LS_PATTERN_EXACT;
        return 0;
    case OPTION_ITERATIONS:
        given->iterations = number_of(state, "--iters", text, 1000000);
        return 0;
    case OPTION_BARRIERS:
        given->barriers = number_of(state, "--barriers", text, 1000000);
        return 0;
    case OPTION_ABSENT:
        given->absent = number_of(state, "--absent", text, LS_PATTERN_WORLD_MAX - 1);
        return 0;
    case OPTION_COMM:
        read_choice(state, "--comm", text, "self|gloo|nccl");
        given->comm = text;
        return 0;
    case OPTION_DEVICE:
        read_choice(state, "--device", text, "auto|cpu|cuda");
        given->device = text;
        return 0;
    case OPTION_HEADLINE:
        given->headline = true;
        return 0;
    case OPTION_TIMEOUT:
        given->timeout_s = strtod(text, &end);
        if (*end != '\0' || !(given->timeout_s > 0 && given->timeout_s <= TIMEOUT_MOST_S)) {
            argp_failure(state, LS_ERR_USAGE, 0,
                         "error: --timeout '%s': allowed: above 0, at most %d s", text,
                         TIMEOUT_MOST_S);
        }
        return 0;
    case ARGP_KEY_ARG:
        argp_failure(state, LS_ERR_USAGE, 0, "error: unexpected argument '%s'", text);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Parses `counts` into count[]. LS_ERR_USAGE, logged. */
static ls_status read_counts(arguments *given, int world)
{
    const char *at = given->counts;
    for (given->count_count = 0; given->count_count < COUNTS; at++) {
        char *end = NULL;
        errno = 0;
        long long value = 0;
        if (strncmp(at, "W-1", 3) == 0 || strncmp(at, "W+1", 3) == 0) {
            value = at[1] == '-' ? world - 1 : world + 1;
            end = (char *)at + 3;
        } else {
            value = strtoll(at, &end, 10);
        }
        if (errno != 0 || end == at || (*end != ',' && *end != '\0') || value < 0 ||
            value > INT64_C(1) << 40) {
            break;
        }
        given->count[given->count_count++] = value;
        at = end;
        if (*at == '\0') {
            return LS_OK;
        }
    }
    return ls_log_fail(
        LS_ERR_USAGE, "--counts '%s': allowed: at most %d whole numbers, W-1 or W+1, comma between",
        given->counts, COUNTS);
}

/* Fills in defaults and the given options; ends the program with LS_ERR_USAGE if one is wrong. */
static ls_status read_arguments(int argc, char **argv, arguments *out)
{
    const struct argp parser = {
        .options = options,
        .parser = parse_one,
        .doc = "Tries the collectives of an engine on data whose results are known; one process is "
               "one rank, found in RANK, WORLD_SIZE, ... as torchrun sets them.",
    };
    *out = (arguments){.kind_count = KINDS,
                       .dtype_count = 1,
                       .dtype = {LS_F32},
                       .counts = "1024",
                       .in_place = {true, true},
                       .iterations = 1,
                       .absent = -1,
                       .timeout_s = 60};
    memcpy(out->kind, kinds, sizeof kinds);
    if (ls_usage_error_explain(options, false, argc, argv)) { /* argp's own take two lines */
        return LS_ERR_USAGE;
    }
    argp_err_exit_status = LS_ERR_USAGE;
    return argp_parse(&parser, argc, argv, 0, NULL, out) == 0 ? LS_OK : LS_ERR_INFRA;
}

typedef struct program {
    arguments given;
    ls_world world;
    ls_store *store;
    ls_device device; /* memory of the buffers, unless it is the host's */
    ls_exercise_peer peer;
    int events; /* file descriptor, -1: none */
    char events_path[600];
    int64_t wrong, guards, combinations;
} program;

/* ---- events ---------------------------------------------------------------------------------- */

static ls_status write_event(program *p, cJSON *event)
{
    ls_status status = LS_OK;
    if (p->events >= 0) {
        status = ls_json_append_line(p->events, p->events_path, event);
    }
    cJSON_Delete(event);
    return status;
}

static cJSON *event_named(const char *name)
{
    cJSON *event = cJSON_CreateObject();
    LS_ASSERT(event != NULL);
    cJSON_AddStringToObject(event, "event", name);
    return event;
}

static ls_status open_events(program *p)
{
    char engine[256] = "";
    p->events = -1;
    if (p->world.run_dir[0] == '\0') {
        return LS_OK;
    }
    snprintf(p->events_path, sizeof p->events_path, "%s/rank%d.jsonl", p->world.run_dir,
             p->world.rank);
    p->events = ls_file_open_to_write(p->events_path, O_TRUNC | O_APPEND);
    if (p->events < 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot write %s: %s", p->events_path, strerror(errno));
    }
    cJSON *event = event_named("start");
    p->peer.api->describe(engine, (int)sizeof engine);
    cJSON_AddNumberToObject(event, "schema", 1);
    cJSON_AddStringToObject(event, "program", "lockstep-collectives");
    cJSON_AddNumberToObject(event, "rank", p->world.rank);
    cJSON_AddNumberToObject(event, "world", p->world.world);
    cJSON_AddStringToObject(event, "engine", p->peer.api->name);
    cJSON_AddStringToObject(event, "engine_text", engine);
    const char *transport =
        p->peer.api->transport != NULL ? p->peer.api->transport(p->peer.comm) : NULL;
    if (transport != NULL) {
        cJSON_AddStringToObject(event, "transport", transport);
    }
    cJSON_AddStringToObject(event, "device",
                            p->device.api != NULL ? p->device.info.device : "host memory");
    return write_event(p, event);
}

/* Bytes as nccl-tests counts them: the larger of input and result. */
static double size_of(const program *p, const ls_exercise *what)
{
    bool parts = what->kind == LS_COMM_ALL_GATHER || what->kind == LS_COMM_REDUCE_SCATTER ||
                 what->kind == LS_COMM_GATHER || what->kind == LS_COMM_SCATTER;
    return (double)what->count * (double)ls_dtype_bytes(what->dtype) * (parts ? p->world.world : 1);
}

static ls_status write_collective(program *p, const ls_exercise *what,
                                  const ls_exercise_result *result)
{
    cJSON *event = event_named("collective");
    LS_TEXT(digest, 24, "%016llx", (unsigned long long)result->digest);
    cJSON_AddStringToObject(event, "op", ls_comm_kind_name(what->kind));
    cJSON_AddStringToObject(event, "dtype", ls_dtype_label(what->dtype));
    cJSON_AddStringToObject(event, "data", what->data == LS_PATTERN_ROUGH ? "rough" : "exact");
    cJSON_AddNumberToObject(event, "count", (double)what->count);
    cJSON_AddNumberToObject(event, "bytes", size_of(p, what));
    cJSON_AddNumberToObject(event, "root", what->root);
    cJSON_AddBoolToObject(event, "in_place", what->in_place);
    cJSON_AddNumberToObject(event, "offset", what->offset);
    cJSON_AddNumberToObject(event, "iterations", what->iterations);
    cJSON_AddNumberToObject(event, "checked", (double)result->checked);
    cJSON_AddNumberToObject(event, "wrong", (double)result->wrong);
    cJSON_AddNumberToObject(event, "telling", (double)result->telling);
    cJSON_AddNumberToObject(event, "guards", (double)result->guards);
    cJSON_AddStringToObject(event, "digest", digest);
    cJSON_AddNumberToObject(event, "us", result->us);
    cJSON_AddNumberToObject(event, "algbw_gb_s", result->algbw_gb_s);
    cJSON_AddNumberToObject(event, "busbw_gb_s", result->busbw_gb_s);
    return write_event(p, event);
}

/* ---- combinations ---------------------------------------------------------------------------- */

static ls_status try_one(program *p, const ls_exercise *what)
{
    ls_exercise_result result;
    LS_TRY(ls_exercise_run(&p->peer, what, &result));
    p->wrong += result.wrong;
    p->guards += result.guards;
    p->combinations++;
    if (result.wrong + result.guards > 0) {
        ls_log_error("%s of %lld %s%s, offset %d: %lld of %lld elements wrong, %lld bytes next to "
                     "them changed",
                     ls_comm_kind_name(what->kind), (long long)what->count,
                     ls_dtype_label(what->dtype), what->in_place ? ", in place" : "", what->offset,
                     (long long)result.wrong, (long long)result.checked, (long long)result.guards);
    }
    if (p->events < 0 && p->world.rank == 0) {
        printf("%14s %12.0f %10lld %5s %4d %5s %10.1f %8.3f %8.3f %6lld\n",
               ls_comm_kind_name(what->kind), size_of(p, what), (long long)what->count,
               ls_dtype_label(what->dtype), what->root, what->in_place ? "in" : "out", result.us,
               result.algbw_gb_s, result.busbw_gb_s, (long long)result.wrong);
        fflush(stdout);
    }
    return write_collective(p, what, &result);
}

static ls_status try_type(program *p, ls_comm_kind kind, ls_dtype dtype)
{
    const arguments *given = &p->given;
    for (int c = 0; c < given->count_count; c++) {
        for (int place = 0; place < 2; place++) {
            if (!given->in_place[place] || (place == 1 && !ls_exercise_can_be_in_place(kind))) {
                continue;
            }
            for (int offset = 0; offset <= given->offset_max; offset++) {
                ls_exercise what = {.kind = kind,
                                    .dtype = dtype,
                                    .data = given->data,
                                    .count = given->count[c],
                                    .root = c % p->world.world,
                                    .in_place = place == 1,
                                    .offset = offset,
                                    .iterations = given->iterations};
                LS_TRY(try_one(p, &what));
            }
        }
    }
    return LS_OK;
}

static ls_status try_all(program *p)
{
    if (p->events < 0 && p->world.rank == 0) {
        printf("# %s, %d ranks%s%s\n", p->peer.api->name, p->world.world,
               p->device.api != NULL ? " on " : "",
               p->device.api != NULL ? p->device.info.device : "");
        printf("#           op    size (B)      count  type root place         us    algbw    busbw"
               "  wrong   (GB/s = 10^9)\n");
    }
    for (int k = 0; k < p->given.kind_count; k++) {
        for (int t = 0; t < p->given.dtype_count; t++) {
            if (!ls_pattern_has(p->given.data, p->given.dtype[t]) ||
                (p->given.kind[k] == LS_COMM_SEND && p->world.world == 1)) {
                continue;
            }
            LS_TRY(try_type(p, p->given.kind[k], p->given.dtype[t]));
        }
    }
    return LS_OK;
}

static ls_status try_headline(program *p)
{
    ls_exercise what = {.kind = LS_COMM_ALL_REDUCE,
                        .dtype = LS_F16,
                        .data = LS_PATTERN_EXACT,
                        .count = 25600000, /* 51.2 MB */
                        .in_place = true,
                        .iterations = p->given.iterations};
    return p->given.headline ? try_one(p, &what) : LS_OK;
}

/* Milliseconds of work that only this rank does. */
static uint64_t dawdle(void)
{
    static const char page[4096];
    uint64_t digest = LS_DIGEST_START;
    for (int i = 0; i < 512; i++) {
        digest = ls_digest_update(digest, page, sizeof page);
    }
    return digest;
}

static ls_status try_barriers(program *p)
{
    ls_comm_op barrier = {.kind = LS_COMM_BARRIER, .label = "all here"};
    for (int i = 0; i < p->given.barriers; i++) {
        cJSON *event = event_named("barrier");
        bool late = i % p->world.world == p->world.rank;
        cJSON_AddNumberToObject(event, "late", late && dawdle() != 0);
        int64_t begin_ns = ls_clock_ns();
        ls_status status = ls_comm_run(p->peer.api, p->peer.comm, &barrier, NULL);
        if (status != LS_OK) {
            cJSON_Delete(event);
            return status;
        }
        cJSON_AddNumberToObject(event, "begin_ns", (double)begin_ns);
        cJSON_AddNumberToObject(event, "end_ns", (double)ls_clock_ns());
        LS_TRY(write_event(p, event));
    }
    return LS_OK;
}

static ls_status open_comm(const program *p, const char *name, double timeout_s, ls_comm **out)
{
    ls_comm_options where = {.rank = p->world.rank,
                             .world = p->world.world,
                             .store = p->store,
                             .name = name,
                             .timeout_s = timeout_s,
                             .one_host = p->world.local_world == p->world.world,
                             .backend_api = p->device.api,
                             .backend = p->device.backend,
                             .open_s = timeout_s + 30, /* a GPU's engine takes longer to open */
                             .oversubscribe = p->world.oversubscribe};
    return p->peer.api->open(&where, out);
}

/* Zeroed memory that the engine can access. */
static ls_status take_memory(const program *p, size_t floats, float **out)
{
    void *memory = NULL;
    if (p->device.api != NULL) {
        LS_TRY(p->device.api->memory_alloc(p->device.backend, (int64_t)(floats * sizeof **out),
                                           "exercise", &memory));
    } else {
        memory = calloc(floats, sizeof **out);
        LS_ASSERT(memory != NULL);
    }
    *out = memory;
    return LS_OK;
}

static void give_memory(const program *p, float *memory)
{
    if (p->device.api != NULL) {
        p->device.api->memory_free(p->device.backend, memory);
    } else {
        free(memory);
    }
}

/* Runs one operation without rank `absent`, on its own communicator. */
static ls_status try_without(program *p, ls_comm_kind kind)
{
    enum { COUNT = 1 << 16 };
    float *memory = NULL;
    int absent = p->given.absent, rank = p->world.rank;
    bool to_absent = kind == LS_COMM_RECV || kind == LS_COMM_SEND || kind == LS_COMM_BROADCAST ||
                     kind == LS_COMM_SCATTER;
    LS_TEXT(name, 64, "without/%s", ls_comm_kind_name(kind));
    ls_comm *comm = NULL;
    LS_TRY(open_comm(p, name, p->given.timeout_s, &comm));
    LS_TRY(take_memory(p, (size_t)p->world.world * COUNT * 2, &memory));
    ls_comm_op op = {.kind = kind,
                     .buffer = memory,
                     .input = memory + (size_t)p->world.world * COUNT,
                     .count = COUNT,
                     .dtype = LS_F32,
                     .root = to_absent ? absent : (absent + 1) % p->world.world,
                     .label = "absent rank"};
    int64_t begin_ns = ls_clock_ns();
    ls_status seen = rank == absent ? LS_OK : ls_comm_run(p->peer.api, comm, &op, NULL);
    cJSON *event = event_named("absent");
    cJSON_AddStringToObject(event, "op", ls_comm_kind_name(kind));
    cJSON_AddBoolToObject(event, "here", rank != absent);
    cJSON_AddNumberToObject(event, "root", op.root);
    cJSON_AddNumberToObject(event, "status", seen);
    cJSON_AddNumberToObject(event, "seconds", ls_clock_ms_between(begin_ns, ls_clock_ns()) * 1e-3);
    ls_status status = write_event(p, event);
    if (status == LS_OK) { /* no rank closes before the last has seen the failure */
        status = ls_store_barrier(p->store, name, 10 * p->given.timeout_s + 10);
    }
    p->peer.api->abort(comm);
    p->peer.api->close(comm);
    give_memory(p, memory);
    return status;
}

static ls_status try_absent(program *p)
{
    static const ls_comm_kind each[] = {
        LS_COMM_ALL_REDUCE, LS_COMM_REDUCE_SCATTER, LS_COMM_ALL_GATHER, LS_COMM_BROADCAST,
        LS_COMM_REDUCE,     LS_COMM_GATHER,         LS_COMM_SCATTER,    LS_COMM_SEND,
        LS_COMM_RECV,       LS_COMM_BARRIER};
    if (p->given.absent < 0) {
        return LS_OK;
    }
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        LS_TRY(try_without(p, each[i]));
    }
    return LS_OK;
}

/* ---- start and end --------------------------------------------------------------------------- */

static ls_status on_wait(void *context, double waited_s)
{
    program *p = context;
    (void)waited_s; /* every operation has a deadline of its own */
    return p->peer.comm != NULL ? p->peer.api->poll(p->peer.comm) : LS_OK;
}

static ls_status open_device(program *p)
{
    const char *root = getenv("LS_SYSFS"), *device = p->given.device;
    if (device == NULL || strcmp(device, "auto") == 0) {
        device = ls_device_count_nvidia(root == NULL ? "/sys" : root) > 0 ? "cuda" : "cpu";
    }
    if (strcmp(device, "cpu") == 0) { /* host memory needs no backend */
        return LS_OK;
    }
    ls_backend_options options = {.device_index = p->world.machine_rank,
                                  .local_ranks = p->world.machine_world,
                                  .local_rank = p->world.machine_rank,
                                  .oversubscribe = p->world.oversubscribe};
    LS_TRY(ls_device_open(device, &options, &p->device));
    if (p->device.api->set_wait_hook != NULL) {
        p->device.api->set_wait_hook(p->device.backend, on_wait, p);
    }
    p->peer.backend_api = p->device.api;
    p->peer.backend = p->device.backend;
    p->peer.stream = p->device.stream;
    return LS_OK;
}

static ls_status check_engine(const program *p, const char *engine)
{
    bool device = p->device.api != NULL;
    if ((strcmp(engine, "gloo") == 0 && device) || (strcmp(engine, "nccl") == 0 && !device)) {
        return ls_log_fail(LS_ERR_USAGE, "--comm %s works in %s memory: not with --device %s",
                           engine, device ? "host" : "GPU", device ? "cuda" : "cpu");
    }
    return LS_OK;
}

static ls_status join(program *p)
{
    bool alone = p->world.world == 1;
    if (p->given.absent >= 0 && (alone || p->given.absent >= p->world.world)) {
        return ls_log_fail(LS_ERR_USAGE,
                           "--absent %d: allowed: a rank of this world, which has %d%s",
                           p->given.absent, p->world.world, alone ? "; at least 2 are needed" : "");
    }
    LS_TRY(open_device(p));
    const char *among = p->device.api != NULL ? "nccl" : "gloo";
    const char *engine = p->given.comm != NULL ? p->given.comm : alone ? "self" : among;
    LS_TRY(check_engine(p, engine));
    if (p->world.world > LS_PATTERN_WORLD_MAX) {
        return ls_log_fail(LS_ERR_USAGE, "%d ranks: sums are exact for up to %d", p->world.world,
                           LS_PATTERN_WORLD_MAX);
    }
    LS_TRY(ls_comm_load(engine, &p->peer.api));
    if (!alone) {
        ls_store_options where = {.rank = p->world.rank,
                                  .world = p->world.world,
                                  .address = p->world.address,
                                  .port = p->world.port,
                                  .probe = p->world.probe,
                                  .run_id = p->world.run_id,
                                  .timeout_s = 60};
        LS_TRY(ls_store_open(&where, &p->store));
    }
    p->peer.rank = p->world.rank;
    p->peer.world = p->world.world;
    LS_TRY(open_comm(p, "collectives", alone ? 60 : p->given.timeout_s + 30, &p->peer.comm));
    return open_events(p);
}

static ls_status run(program *p)
{
    LS_TRY(try_all(p));
    LS_TRY(try_headline(p));
    LS_TRY(try_barriers(p));
    LS_TRY(try_absent(p));
    cJSON *event = event_named("end");
    cJSON_AddNumberToObject(event, "combinations", (double)p->combinations);
    cJSON_AddNumberToObject(event, "wrong", (double)p->wrong);
    LS_TRY(write_event(p, event));
    if (p->store != NULL) {
        LS_TRY(ls_store_barrier(p->store, "end", 60));
    }
    return p->wrong + p->guards > 0 ? LS_ERR_CHECK : LS_OK;
}

int main(int argc, char **argv)
{
    program p = {.events = -1};
    ls_file_survive_limit();
    LS_TRY(read_arguments(argc, argv, &p.given));
    ls_status status = ls_world_read(&p.world);
    LS_THEN(status, read_counts(&p.given, p.world.world));
    LS_THEN(status, join(&p));
    LS_THEN(status, run(&p));
    if (p.device.api != NULL && p.device.api->set_wait_hook != NULL) {
        p.device.api->set_wait_hook(p.device.backend, NULL, NULL);
    }
    if (p.peer.comm != NULL) {
        p.peer.api->close(p.peer.comm);
    }
    /* If the device may wait for a lost peer, it is not closed: freeing its memory, which its
     * libraries' exit handlers do too, could wait for ever. */
    bool stuck = p.device.api != NULL && status != LS_OK && status != LS_ERR_CHECK;
    if (!stuck) {
        ls_device_close(&p.device);
    }
    if (p.store != NULL) {
        ls_store_close(p.store, 1.0);
    }
    if (p.events >= 0) {
        close(p.events);
    }
    if (stuck) {
        fflush(NULL);
        _exit((int)status);
    }
    return (int)status;
}
