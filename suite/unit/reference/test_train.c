/* What the trainer decides before and after the arithmetic: its place in the job, the device,
 * digests, and when a run is over. */
#include <cjson/cJSON.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "reference/amp/amp_scale.h"
#include "reference/state/digest.h"
#include "reference/state/optim.h"
#include "reference/options/world.h"
#include "reference/train/ways/join.h"
#include "suite/unit/harness/world.h"
#include "suite/unit/caught.h"
#include "suite/unit/golden.h"
#include "suite/unit/run_suite.h"
#include "host_trainer.h"

/* ---- place in the job ------------------------------------------------------------------------ */

/* Reads "A=1 B=2", the only variables. */
static ls_status read_with(const char *setting, ls_world *out)
{
    char text[512];
    ck_assert_int_eq(clearenv(), 0);
    snprintf(text, sizeof text, "%s", setting);
    for (char *rest = text, *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        char *equals = strchr(word, '=');
        *equals = '\0';
        setenv(word, equals + 1, 1);
    }
    return ls_world_read(out);
}

/* Every field of a place, in the order of its struct, and what is said on the way. */
static void print_place(FILE *to, const char *setting)
{
    ls_world w;
    memset(&w, 0x5a, sizeof w);
    catch_lines();
    ls_status status = read_with(setting, &w);
    char *said = (char *)caught_lines(), *rest = NULL;
    if (status == LS_OK) {
        fprintf(to, "    rank %d of %d, on its node %d of %d, machine %d of %d, node %d", w.rank,
                w.world, w.local_rank, w.local_world, w.machine_rank, w.machine_world, w.node);
        fprintf(to, "%s, '%s' %d%s, '%s' in '%s', by %s", w.oversubscribe ? " oversubscribed" : "",
                w.address, w.port, w.probe ? " probed" : "", w.run_id, w.run_dir, w.launcher);
    }
    ck_assert(status == LS_OK || status == LS_ERR_USAGE);
    for (char *line = strtok_r(said, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        fprintf(to, "%s%s", status == LS_OK ? "; " : "    ", line);
    }
    fputc('\n', to);
}

/* The file has the variables of every launcher, which leave as much as possible to the defaults or
 * are at their bounds, and below them what comes of them: a further line is written there, and
 * LS_RENEW=1 adds the rest. */
TEST(places_word_for_word)
{
    static const char expected[] = "suite/unit/reference/expected/world.txt";
    char path[1024], *text = NULL, *rest = NULL, *renew = getenv("LS_RENEW");
    size_t bytes = 0;
    int places = 0;
    FILE *to = open_memstream(&text, &bytes);
    ck_assert(ls_path_find(expected, path, sizeof path));
    char *all = ls_text_read(path);
    ck_assert_ptr_nonnull(all);
    for (char *line = strtok_r(all, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        if (line[0] != ' ') {
            fprintf(to, "%s\n", line);
        }
        if (line[0] != ' ' && line[0] != '#') {
            print_place(to, line);
            places++;
        }
    }
    ck_assert_int_ge(places, 60);
    free(all);
    fclose(to);
    if (renew != NULL) {
        setenv("LS_RENEW", renew, 1);
    }
    golden_check(expected, text);
}

/* Addresses and folders that just fit, and those that do not. */
TEST(long_texts_of_a_place)
{
    static const struct {
        const char *name;
        int most;
    } rows[] = {{"MASTER_ADDR", 255}, {"LS_TOKEN", 255}, {"LS_RUN_DIR", 511}};
    for (size_t i = 0; i < 3; i++) {
        for (int more = 0; more < 2; more++) {
            char value[600] = "";
            ls_world world;
            ck_assert_int_eq(read_with("", &world), LS_OK);
            setenv("RANK", "0", 1);
            setenv("WORLD_SIZE", "2", 1);
            setenv("MASTER_ADDR", "h", 1);
            setenv("MASTER_PORT", "1", 1);
            memset(value, 'x', (size_t)(rows[i].most + more));
            setenv(rows[i].name, value, 1);
            ck_assert_int_eq(ls_world_read(&world), more == 0 ? LS_OK : LS_ERR_USAGE);
            const char *have = i == 0 ? world.address : i == 1 ? world.run_id : world.run_dir;
            ck_assert(more == 1 || strcmp(have, value) == 0);
        }
    }
}

/* ---- digests --------------------------------------------------------------------------------- */

typedef struct held {
    ls_options options;
    ls_dialect_rules rules;
    ls_precision precision;
    ls_network network;
    ls_device device;
    ls_memory memory;
} held;

static void hold(held *h, ls_opt_level level)
{
    ls_options_defaults(&h->options);
    h->options.opt_level = level;
    host_setup(&h->options, 1, &h->rules, &h->precision, &h->network, &h->device, &h->memory);
    for (int kind = 0; kind < LS_MEMORY_KINDS; kind++) {
        unsigned char *byte = h->memory.block[kind];
        for (int64_t i = 0; i < h->memory.bytes[kind]; i++) {
            byte[i] = (unsigned char)(i * 131 + kind * 17 + i / 251);
        }
    }
    *h->memory.tracked = 7;
}

static void release(held *h)
{
    ls_memory_free(&h->memory);
    ls_model_free(&h->network);
}

/* The same definition in the plainest way; the order by name is judged below (tensors_of_a_run). */
static uint64_t plain_digest(const held *h, const ls_tensor *list)
{
    uint64_t digest = LS_DIGEST_START;
    for (int k = 0; k < h->network.param_count; k++) {
        const ls_tensor *one = &list[h->memory.by_name[k]];
        if (one->data != NULL) {
            digest = ls_digest_update(digest, one->data, ls_tensor_bytes(one));
        }
    }
    return digest;
}

TEST(digests_are_fnv_in_order_of_name)
{
    for (int level = LS_O0; level <= LS_O3; level++) {
        held h = {0};
        hold(&h, (ls_opt_level)level);
        ls_step_state state = ls_amp_scale_start(h.precision.initial_scale);
        ls_digest_set set, again;
        ck_assert_int_eq(ls_digest_compute(&h.memory, &state, LS_DIGEST_ALL, &set), LS_OK);
        ck_assert_uint_eq(set.value[LS_DIGEST_GROUP_PARAM], plain_digest(&h, h.memory.param));
        ck_assert_uint_eq(set.value[LS_DIGEST_GROUP_GRAD], plain_digest(&h, h.memory.unscaled));
        ck_assert_uint_eq(set.value[LS_DIGEST_GROUP_STATE], plain_digest(&h, h.memory.moment[0]));
        ck_assert_int_eq(set.given[LS_DIGEST_GROUP_MASTER], level == LS_O2);
        if (level == LS_O2) {
            ck_assert_uint_eq(set.value[LS_DIGEST_GROUP_MASTER], plain_digest(&h, h.memory.master));
        }
        /* one bit of the last element, the counter, the scale: each seen by its own group alone */
        ls_tensor *last = &h.memory.param[h.memory.param_count - 1];
        ((unsigned char *)last->data)[ls_tensor_bytes(last) - 1] ^= 1;
        (*h.memory.tracked)++;
        state.growth_count++;
        ck_assert_int_eq(ls_digest_compute(&h.memory, &state, LS_DIGEST_ALL, &again), LS_OK);
        ck_assert_uint_ne(set.value[LS_DIGEST_GROUP_PARAM], again.value[LS_DIGEST_GROUP_PARAM]);
        ck_assert_uint_ne(set.value[LS_DIGEST_GROUP_BUFFER], again.value[LS_DIGEST_GROUP_BUFFER]);
        ck_assert_uint_ne(set.value[LS_DIGEST_GROUP_SCALER], again.value[LS_DIGEST_GROUP_SCALER]);
        ck_assert_uint_eq(set.value[LS_DIGEST_GROUP_STATE], again.value[LS_DIGEST_GROUP_STATE]);
        ck_assert_uint_eq(set.value[LS_DIGEST_GROUP_GRAD], again.value[LS_DIGEST_GROUP_GRAD]);
        release(&h);
    }
}

/* The device's memory out of the host's reach: the same digests, through copies. */
TEST(digests_do_not_need_host_memory)
{
    held h = {0};
    hold(&h, LS_O2);
    ls_step_state state = ls_amp_scale_start(h.precision.initial_scale);
    ls_digest_set near, far;
    ck_assert_int_eq(ls_digest_compute(&h.memory, &state, LS_DIGEST_ALL, &near), LS_OK);
    h.device.info.host_memory = false;
    ck_assert_int_eq(ls_digest_compute(&h.memory, &state, LS_DIGEST_ALL, &far), LS_OK);
    ck_assert_mem_eq(near.value, far.value, sizeof near.value);
    release(&h);
}

/* ---- when a run is over ---------------------------------------------------------------------- */

TEST(the_short_circuit_is_apexs)
{
    static const struct {
        ls_opt_level level;
        float scale; /* 0: the level's default */
        bool unscales;
    } rows[] = {
        {LS_O0, 0.0f, false}, {LS_O0, 128.0f, true}, {LS_O1, 0.0f, true},
        {LS_O1, 1.0f, false}, {LS_O2, 1.0f, true},   {LS_O3, 1.0f, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        held h = {0};
        ls_amp_scale amp;
        hold(&h, rows[i].level);
        h.options.loss_scale_given = rows[i].scale != 0.0f;
        h.options.loss_scale = rows[i].scale;
        ls_precision_resolve(&h.options, &h.rules, &h.precision);
        ls_amp_scale_of(&h.memory, &h.precision, &amp);
        ck_assert_msg(amp.unscales == rows[i].unscales, "row %zu", i);
        release(&h);
    }
}

TEST(a_run_ends_when_its_state_is_lost)
{
    held h = {0};
    ls_amp_scale amp;
    hold(&h, LS_O2);
    ls_amp_scale_of(&h.memory, &h.precision, &amp);
    ls_step_state good = ls_amp_scale_start(h.precision.initial_scale);
    good.overflow_streak = LS_AMP_STREAK_MAX - 1;
    ck_assert_int_eq(ls_amp_scale_judge(&amp, NULL, NULL, &good, 1), LS_OK);
    ls_step_state bad = good;
    bad.overflow_streak = LS_AMP_STREAK_MAX;
    ck_assert_int_eq(ls_amp_scale_judge(&amp, NULL, NULL, &bad, 1), LS_ERR_NON_FINITE);
    bad = good;
    bad.floor_reached = 1;
    ck_assert_int_eq(ls_amp_scale_judge(&amp, NULL, NULL, &bad, 1), LS_ERR_NON_FINITE);
    bad = good;
    bad.first_bad_state = 0;
    ck_assert_int_eq(ls_amp_scale_judge(&amp, NULL, NULL, &bad, 1), LS_ERR_NON_FINITE);
    /* a static scale never ends a run by overflows alone */
    amp.config.dynamic = false;
    bad = good;
    bad.overflow_streak = 1000;
    ck_assert_int_eq(ls_amp_scale_judge(&amp, NULL, NULL, &bad, 1), LS_OK);
    release(&h);
}

/* ---- agreement of the ranks ------------------------------------------------------------------ */

enum { AGREEING = 11 };

/* Stands for a plan: what was imported into it. */
static char imported[64];

static ls_status export_engines(ls_plan *plan, const char **text)
{
    (void)plan;
    *text = "conv1 engine 7";
    return atoi(getenv("RANK")) == 0 ? LS_OK : LS_ERR_INFRA; /* no other rank is asked */
}

static ls_status import_engines(ls_plan *plan, const char *text)
{
    (void)plan;
    snprintf(imported, sizeof imported, "%s", text);
    return atoi(getenv("RANK")) == 2 ? LS_ERR_UNSUPPORTED : LS_OK;
}

static int agreeing(int rank, int world, int port, void *context)
{
    (void)context;
    static ls_trainer t;
    ls_backend_api table = {.engines_export = export_engines, .engines_import = import_engines};
    ls_store_options where = world_store(rank, world, port, 20);
    t.world = (ls_world){.rank = rank, .world = world};
    t.device.api = &table;
    RANK_CHECK(ls_agree_on(&t, "alone", (uint64_t)rank) == LS_OK); /* no store: nothing to ask */
    RANK_CHECK(ls_agree_on_choices(&t) == LS_OK && imported[0] == '\0');
    RANK_CHECK(ls_store_open(&where, &t.store) == LS_OK);
    RANK_CHECK(ls_agree_on(&t, "equal", 7) == LS_OK);
    RANK_CHECK(ls_agree_on(&t, "digest", rank == 0 || rank == 3) == LS_ERR_USAGE);
    RANK_CHECK(ls_agree_on(&t, "last", rank == world - 1) == LS_ERR_USAGE);
    snprintf(t.device.info.libraries, sizeof t.device.info.libraries, "%s", rank == 5 ? "b" : "a");
    RANK_CHECK(ls_agree_on_libraries(&t) == LS_OK);
    RANK_CHECK(ls_agree_on_choices(&t) == (rank == 2 ? LS_ERR_UNSUPPORTED : LS_OK));
    RANK_CHECK(strcmp(imported, rank == 0 ? "" : "conv1 engine 7") == 0);
    table.engines_export = NULL; /* a backend without engines to choose */
    RANK_CHECK(ls_agree_on_choices(&t) == LS_OK);
    ls_store_close(t.store, 10);
    return 0;
}

static int occurrences(const char *text, const char *part)
{
    int count = 0;
    for (; (text = strstr(text, part)) != NULL; text += strlen(part)) {
        count++;
    }
    return count;
}

TEST(ranks_that_differ_are_named)
{
    static char said[1 << 14];
    int errors = memfd_create("errors", MFD_CLOEXEC), port = world_free_port();
    pid_t pid[AGREEING];
    ck_assert_int_ge(fcntl(errors, F_SETFL, O_APPEND), 0);
    ck_assert_int_eq(dup2(errors, STDERR_FILENO), STDERR_FILENO);
    for (int rank = 0; rank < AGREEING; rank++) {
        pid[rank] = world_fork(rank, AGREEING, port, agreeing, NULL);
    }
    int failed = 0;
    for (int rank = 0; rank < AGREEING; rank++) {
        failed += world_join(pid[rank]) != 0;
    }
    ck_assert_int_gt(pread(errors, said, sizeof said - 1, 0), 0);
    ck_assert_msg(failed == 0, "%s", said);
    /* eight are named; each rank says so */
    ck_assert_int_eq(occurrences(said, "digest on ranks 1, 2, 4, 5, 6, 7, 8, 9, ...: not the same "
                                       "as on rank 0\n"),
                     AGREEING);
    ck_assert_int_eq(occurrences(said, "last on ranks 10: not the same as on rank 0\n"), AGREEING);
    ck_assert_int_eq(occurrences(said, "ranks 5 use other libraries than rank 0 (a; )\n"), 1);
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* An engine that offers memory, refuses to, or fails. */
static struct {
    ls_status status;
    int held, plain_held, plain_calls, plain_fails_at;
} offered;

static ls_status offered_alloc(ls_comm *comm, int64_t bytes, const char *purpose, void **out)
{
    (void)comm;
    LS_TRY(offered.status);
    offered.held++;
    return host_memory_alloc(NULL, bytes, purpose, out);
}

static void offered_free(void *memory)
{
    offered.held--;
    free(memory);
}

static ls_status plain_alloc(ls_backend *backend, int64_t bytes, const char *purpose, void **out)
{
    if (++offered.plain_calls == offered.plain_fails_at) {
        return LS_ERR_INFRA;
    }
    offered.plain_held++;
    return host_memory_alloc(backend, bytes, purpose, out);
}

static void plain_free(ls_backend *backend, void *memory)
{
    offered.plain_held--;
    host_memory_free(backend, memory);
}

enum { T = 4, B = 3 };

/* What a run's tensors are made of: b is half, c is reduced in f32, d is a bias of norms. */
static const ls_dtype f32_types[T] = {LS_F32, LS_F32, LS_F32, LS_F32};
static const ls_dtype half_types[T] = {LS_F32, LS_F16, LS_F16, LS_F32};
static const ls_dtype staged_types[T] = {LS_F32, LS_F16, LS_F32, LS_F32};
static const ls_dtype wire_types[T] = {LS_BF16, LS_BF16, LS_BF16, LS_BF16};

static const struct tensors_row {
    const ls_dtype *param, *reduced;
    bool masters, sums;
    int moments;
    const char *json;
} tensors_rows[] = {
    /* elements 300, 5, 70, 64 in f32: 1216 + 64 + 320 + 256 = 1856; buffers of 3 and 200 or 400 */
    {f32_types, f32_types, true, false, 0,
     "{\"parameters\":1856,\"gradients\":1856,\"reduction_staging\":0,\"accumulators\":0,"
     "\"unscaled_gradients\":0,\"masters\":0,\"moments\":0,\"buffers\":896,\"state\":128}"},
    {f32_types, wire_types, false, true, 1,
     "{\"parameters\":1856,\"gradients\":1856,\"reduction_staging\":1024,\"accumulators\":1856,"
     "\"unscaled_gradients\":0,\"masters\":0,\"moments\":1856,\"buffers\":1664,\"state\":128}"},
    {half_types, half_types, true, false, 2,
     "{\"parameters\":1728,\"gradients\":1728,\"reduction_staging\":0,\"accumulators\":0,"
     "\"unscaled_gradients\":384,\"masters\":384,\"moments\":3712,\"buffers\":896,\"state\":128}"},
    {half_types, staged_types, false, true, 1,
     "{\"parameters\":1728,\"gradients\":1728,\"reduction_staging\":1792,\"accumulators\":1856,"
     "\"unscaled_gradients\":384,\"masters\":0,\"moments\":1856,\"buffers\":1664,\"state\":128}"},
};

/* The tensor is the next of a block. */
static void expect_next(char **next, const ls_tensor *tensor, ls_dtype dtype, int64_t count)
{
    ck_assert_ptr_eq(tensor->data, *next);
    ck_assert(tensor->dtype == dtype && tensor->count == count);
    *next += (count * (int64_t)ls_dtype_bytes(dtype) + 63) / 64 * 64;
}

ROWS_TEST(tensors_of_a_run, tensors_rows)
{
    const struct tensors_row *row = &tensors_rows[_i];
    static const int64_t count[T] = {300, 5, 70, 64};
    ls_param param[T] = {{.name = "c.weight"}, {.name = "a"}, {.name = "b"}, {.name = "c.bias"}};
    ls_buffer buffer[B] = {
        {.name = "z.mean", .role = LS_BUFFER_RUNNING_MEAN, .count = 3},
        {.name = "m.tracked", .role = LS_BUFFER_BATCHES_TRACKED, .count = 1},
        {.name = "m.var", .role = LS_BUFFER_RUNNING_VAR},
    };
    static const ls_dtype buffer_type[B] = {LS_F32, LS_F32, LS_F32};
    int64_t values = _i % 2 == 0 ? 200 : 400; /* less and more than the largest parameter has */
    buffer[2].count = values;
    for (int i = 0; i < T; i++) {
        param[i].shape = (ls_shape){1, {count[i]}};
    }
    ls_network network = {.param_count = T, .buffer_count = B, .param = param, .buffer = buffer};
    ls_backend_api api = HOST_API;
    api.memory_alloc = plain_alloc;
    api.memory_free = plain_free;
    ls_device device = host_device();
    device.api = &api;
    ls_comm_api engine = {.memory_alloc = offered_alloc, .memory_free = offered_free};
    ls_memory_options options = {.network = &network,
                                 .param_type = row->param,
                                 .grad_type = row->param,
                                 .reduced_type = row->reduced,
                                 .buffer_type = buffer_type,
                                 .masters = row->masters,
                                 .moment_count = row->moments,
                                 .sums = row->sums};
    ls_memory m;
    memset(&offered, 0, sizeof offered);
    ck_assert_int_eq(ls_memory_create(&device, &options, &m), LS_OK);
    cJSON *json = ls_memory_json(&m);
    char *text = cJSON_PrintUnformatted(json);
    ck_assert_str_eq(text, row->json);
    free(text);
    cJSON_Delete(json);
    ck_assert(m.param_count == T && m.buffer_count == B && m.moment_count == row->moments);
    ck_assert_int_eq(m.largest, _i % 2 == 0 ? 300 : 400);
    ck_assert((m.sum != NULL) == row->sums && (m.moment[0] != NULL) == (row->moments > 0) &&
              (m.moment[1] != NULL) == (row->moments > 1));
    char *next[LS_MEMORY_KINDS];
    for (int kind = 0; kind < LS_MEMORY_KINDS; kind++) {
        next[kind] = m.block[kind];
        ck_assert((m.block[kind] != NULL) == (m.bytes[kind] > 0));
    }
    for (int i = 0; i < T; i++) {
        bool half = row->param[i] != LS_F32, master = half && row->masters;
        expect_next(&next[LS_MEMORY_PARAM], &m.param[i], row->param[i], count[i]);
        expect_next(&next[LS_MEMORY_GRAD], &m.grad[i], row->param[i], count[i]);
        if (row->sums) {
            expect_next(&next[LS_MEMORY_SUM], &m.sum[i], LS_F32, count[i]);
        }
        if (half) {
            expect_next(&next[LS_MEMORY_UNSCALED], &m.unscaled[i], LS_F32, count[i]);
        } else {
            ck_assert_ptr_eq(m.unscaled[i].data, m.grad[i].data);
            ck_assert(m.unscaled[i].dtype == LS_F32 && m.unscaled[i].count == count[i]);
        }
        if (master) {
            expect_next(&next[LS_MEMORY_MASTER], &m.master[i], LS_F32, count[i]);
        }
        ck_assert_ptr_eq(m.value[i].data, master ? m.master[i].data : m.param[i].data);
        for (int k = 0; k < row->moments; k++) {
            expect_next(&next[LS_MEMORY_MOMENT], &m.moment[k][i], LS_F32, count[i]);
        }
        ck_assert_ptr_eq(m.reduced[i].data, m.grad[i].data); /* no bucket is staged yet */
    }
    expect_next(&next[LS_MEMORY_BUFFER], &m.buffer[0], LS_F32, 3);
    expect_next(&next[LS_MEMORY_BUFFER], &m.buffer[2], LS_F32, values);
    ck_assert(m.buffer[1].data == NULL && m.buffer[1].dtype == LS_I64 && m.buffer[1].count == 1);
    ck_assert_ptr_eq(m.state, m.block[LS_MEMORY_STATE]);
    ck_assert_ptr_eq(m.order, (char *)m.block[LS_MEMORY_STATE] + 64);
    static const int by_name[T] = {1, 2, 3, 0}, buffer_by_name[B] = {1, 2, 0};
    ck_assert_mem_eq(m.by_name, by_name, sizeof by_name);
    ck_assert_mem_eq(m.buffer_by_name, buffer_by_name, sizeof buffer_by_name);
    ls_memory_free(&m);
    ck_assert(offered.plain_held == 0 && m.param == NULL && m.bytes[LS_MEMORY_PARAM] == 0);
    /* the engine's memory for what is reduced; where it offers none, the backend's */
    options.engine = &engine;
    int reduced = 1 + (row->reduced == wire_types || row->reduced == staged_types);
    for (int form = 0; form < 3; form++) {
        static const ls_status statuses[] = {LS_OK, LS_ERR_UNSUPPORTED, LS_ERR_INFRA};
        offered.status = statuses[form];
        ck_assert_int_eq(ls_memory_create(&device, &options, &m), form < 2 ? LS_OK : LS_ERR_INFRA);
        ck_assert_int_eq(offered.held, form == 0 ? reduced : 0);
        if (form < 2) {
            ls_memory_free(&m);
        }
        ck_assert(offered.held == 0 && offered.plain_held == 0);
    }
    offered.status = LS_OK;
    offered.plain_calls = 0;
    ck_assert_int_eq(ls_memory_create(&device, &options, &m), LS_OK);
    ls_memory_free(&m);
    int calls = offered.plain_calls;
    for (int i = 1; i <= calls; i++) {
        offered.plain_calls = 0;
        offered.plain_fails_at = i;
        ck_assert_int_eq(ls_memory_create(&device, &options, &m), LS_ERR_INFRA);
        ck_assert(offered.held == 0 && offered.plain_held == 0);
    }
}

/* Buckets one after the other: members back to back where they need no conversion, else in the
 * staging arena, and their gradients aligned. */
TEST(places_of_buckets)
{
    static const int64_t count[T] = {300, 5, 70, 64};
    ls_param param[T] = {{.name = "c"}, {.name = "a"}, {.name = "b"}, {.name = "d"}};
    for (int i = 0; i < T; i++) {
        param[i].shape = (ls_shape){1, {count[i]}};
    }
    ls_network network = {.param_count = T, .param = param};
    ls_device device = host_device();
    ls_memory_options options = {.network = &network,
                                 .param_type = half_types,
                                 .grad_type = half_types,
                                 .reduced_type = staged_types};
    ls_memory m;
    ck_assert_int_eq(ls_memory_create(&device, &options, &m), LS_OK);
    char *grad = m.block[LS_MEMORY_GRAD], *staging = m.block[LS_MEMORY_STAGING];
    ls_memory_place_state state = {0};
    /* c (half) with d (f32) in f32: staged; a (half) alone; then the large one */
    static const int mixed[] = {2, 3}, half[] = {1}, large[] = {0};
    ls_tensor whole = ls_memory_place(&m, &state, LS_F32, mixed, 2);
    ck_assert(whole.data == staging && whole.dtype == LS_F32 && whole.count == 134);
    ck_assert(m.reduced[2].data == staging && m.reduced[2].count == 70);
    ck_assert(m.reduced[3].data == staging + 280 && m.reduced[3].dtype == LS_F32);
    ck_assert(m.grad[2].data == grad && m.grad[3].data == grad + 192);
    ck_assert(m.unscaled[3].data == m.grad[3].data && m.unscaled[2].data != m.grad[2].data);
    ck_assert(state.grad_bytes == 448 && state.staging_bytes == 576);
    whole = ls_memory_place(&m, &state, LS_F16, half, 1);
    ck_assert(whole.data == grad + 448 && whole.dtype == LS_F16 && whole.count == 5);
    ck_assert(m.reduced[1].data == grad + 448 && m.grad[1].data == grad + 448);
    ck_assert(state.grad_bytes == 512 && state.staging_bytes == 576);
    whole = ls_memory_place(&m, &state, LS_F32, large, 1);
    ck_assert(whole.data == grad + 512 && whole.count == 300 && state.grad_bytes == 1728);
    ls_memory_free(&m);
}

TEST_MAIN("train")
