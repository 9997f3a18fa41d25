/* Checkpoints: a written one is read back bit for bit, and a file that does not fit changes
 * nothing. */
#include <dirent.h>
#include <inttypes.h>

#include "reference/train/checkpoint/checkpoint.h"
#include "reference/train/ways/join.h"
#include "reference/files/safetensors.h"
#include "suite/unit/caught.h"
#include "suite/unit/golden.h"
#include "suite/unit/harness/scratch.h"
#include "suite/unit/run_suite.h"
#include "host_trainer.h"

static const char *path_of(const char *name)
{
    static char path[400];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    return path;
}

static void make_finite(const ls_tensor *tensor)
{
    for (int64_t i = 0; tensor->data != NULL && i < tensor->count; i++) {
        if (!isfinite(host_get(tensor, i))) {
            host_set(tensor, i, 0.5f);
        }
    }
}

/* Any bits will do, in the running statistics also such as are no number. */
static void fill(ls_trainer *t, unsigned seed)
{
    static const ls_memory_kind kinds[] = {LS_MEMORY_PARAM, LS_MEMORY_MASTER, LS_MEMORY_MOMENT,
                                           LS_MEMORY_BUFFER};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        unsigned char *byte = t->memory.block[kinds[k]];
        for (int64_t i = 0; i < t->memory.bytes[kinds[k]]; i++) {
            seed = seed * 1664525u + 1013904223u;
            byte[i] = (unsigned char)(seed >> 24);
        }
    }
    for (int p = 0; p < t->memory.param_count; p++) {
        make_finite(&t->memory.param[p]);
        if (t->memory.master != NULL) {
            make_finite(&t->memory.master[p]);
        }
        for (int m = 0; m < t->memory.moment_count; m++) {
            make_finite(&t->memory.moment[m][p]);
        }
    }
    *t->memory.tracked = 41;
    ls_step_state state = ls_amp_scale_start(t->precision.initial_scale);
    state.loss_scale = t->precision.scaler.dynamic ? 512.0f : state.loss_scale;
    state.growth_count = 17;
    state.overflow_streak = 2;
    state.step_count = 39;
    ck_assert_int_eq(ls_amp_scale_write(&t->amp, &state), LS_OK);
}

static ls_digest_set digests(const ls_trainer *t)
{
    ls_digest_set set;
    ck_assert_int_eq(ls_digest_compute(&t->memory, t->memory.state, LS_DIGEST_ALL, &set), LS_OK);
    return set;
}

static ls_options options_of(ls_opt_level level)
{
    ls_options options;
    ls_options_defaults(&options);
    snprintf(options.arch, sizeof options.arch, "resnet8");
    options.opt_level = level;
    options.bucket_cap_mb = 0.05;
    return options;
}

static size_t read_file(const char *path, char **out)
{
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    size_t bytes = (size_t)ftell(file);
    rewind(file);
    *out = malloc(bytes);
    ck_assert_ptr_nonnull(*out);
    ck_assert_uint_eq(fread(*out, 1, bytes, file), bytes);
    fclose(file);
    return bytes;
}

/* ---- all of it comes back ---------------------------------------------------------------------
 */

static const ls_memory *hidden;

static bool is_of_device(const void *at)
{
    for (int k = 0; k < LS_MEMORY_KINDS; k++) {
        const char *block = hidden->block[k], *byte = at;
        if (block != NULL && byte >= block && byte < block + hidden->bytes[k]) {
            return true;
        }
    }
    return false;
}

/* What lies on the device is inverted, where only its copies can see it. */
static ls_status inverting_copy(ls_backend *backend, ls_stream *stream, void *to, const void *from,
                                int64_t bytes)
{
    (void)backend, (void)stream;
    bool inverts = is_of_device(to) || is_of_device(from);
    for (int64_t i = 0; i < bytes; i++) {
        ((char *)to)[i] = (char)(((const char *)from)[i] ^ (inverts ? 0x5a : 0));
    }
    return LS_OK;
}

static void invert(const ls_memory *memory)
{
    for (int k = 0; k < LS_MEMORY_KINDS; k++) {
        for (int64_t i = 0; i < memory->bytes[k]; i++) {
            ((char *)memory->block[k])[i] ^= 0x5a;
        }
    }
}

/* At every level; also of a device whose memory the host cannot read, by the same file. */
LOOP_TEST(everything_comes_back, 8)
{
    const bool hides = _i >= 4;
    ls_backend_api api = HOST_API;
    api.copy_in = api.copy_out = inverting_copy;
    ls_options options = options_of((ls_opt_level)(_i % 4));
    ls_trainer from, to;
    ls_step_state state;
    int64_t step = 0;
    bool changed;
    host_trainer_open(&from, &options);
    host_trainer_open(&to, &options);
    fill(&from, 1);
    fill(&to, 2);
    *to.memory.tracked = 7;
    /* a settled layout of its own */
    ck_assert_int_eq(ls_ddp_begin(from.ddp, NULL), LS_OK);
    for (int p = from.memory.param_count - 1; p >= 0; p--) {
        ck_assert_int_eq(ls_ddp_ready(from.ddp, p), LS_OK);
    }
    ck_assert_int_eq(ls_ddp_finish(from.ddp), LS_OK);
    ck_assert_int_eq(ls_ddp_rebuild(from.ddp, &changed), LS_OK);
    ck_assert_uint_ne(ls_buckets_digest(ls_ddp_layout(from.ddp)),
                      ls_buckets_digest(ls_ddp_layout(to.ddp)));
    ls_digest_set before = digests(&from);
    ck_assert_int_eq(ls_checkpoint_save(&from, 40, path_of("whole")), LS_OK);
    if (hides) {
        char *file[2];
        from.device.api = to.device.api = &api;
        from.device.info.host_memory = to.device.info.host_memory = false;
        hidden = &from.memory;
        invert(hidden);
        ck_assert_int_eq(ls_checkpoint_save(&from, 40, path_of("device")), LS_OK);
        size_t bytes = read_file(path_of("whole"), &file[0]);
        ck_assert_uint_eq(read_file(path_of("device"), &file[1]), bytes);
        ck_assert_mem_eq(file[0], file[1], bytes);
        free(file[0]);
        free(file[1]);
        hidden = &to.memory;
        invert(hidden);
    }
    ck_assert_int_eq(ls_checkpoint_load(&to, path_of(hides ? "device" : "whole"), &state, &step),
                     LS_OK);
    if (hides) {
        invert(hidden);
        to.device.api = &HOST_API;
    }
    ck_assert_int_eq(ls_amp_scale_write(&to.amp, &state), LS_OK);
    ck_assert(step == 40 && *to.memory.tracked == 41);
    ck_assert(state.step_count == 39 && state.growth_count == 17);
    ck_assert_float_eq(state.loss_scale, from.precision.scaler.dynamic ? 512.0f : 1.0f);
    ck_assert_float_eq(state.inv_loss_scale, 1.0f / state.loss_scale);
    ck_assert_uint_eq(ls_buckets_digest(ls_ddp_layout(from.ddp)),
                      ls_buckets_digest(ls_ddp_layout(to.ddp)));
    ck_assert(ls_ddp_settled(to.ddp));
    ls_digest_set after = digests(&to);
    for (int i = 0; i < LS_DIGEST_GROUPS; i++) {
        ck_assert(i == LS_DIGEST_GROUP_GRAD || before.value[i] == after.value[i]);
    }
    if (hides) { /* also there a parameter that is not finite is seen */
        hidden = &from.memory;
        invert(hidden);
        host_set(&from.memory.param[0], 0, NAN);
        invert(hidden);
        catch_lines();
        ls_status status = ls_checkpoint_save(&from, 40, path_of("device"));
        LS_TEXT(said, 300, "error: %s: not saved: param/conv1.weight is not finite at element 0\n",
                path_of("device"));
        ck_assert_str_eq(caught_lines(), said);
        ck_assert_int_eq(status, LS_ERR_NON_FINITE);
        from.device.api = &HOST_API;
    }
    host_trainer_close(&from);
    host_trainer_close(&to);
}

static int blocks; /* of the device, that are not given back */

static ls_status counted_alloc(ls_backend *backend, int64_t bytes, const char *purpose, void **out)
{
    blocks++;
    return host_memory_alloc(backend, bytes, purpose, out);
}

static void counted_free(ls_backend *backend, void *memory)
{
    blocks--;
    host_memory_free(backend, memory);
}

/* A second rank, whose statistics are `other_rank`; what it sends is gathered. */
static const char *other_rank;
static int gathered;

static ls_status pair_begin(ls_comm *comm, const ls_comm_op *op, ls_event *after,
                            ls_comm_handle *handle)
{
    (void)comm, (void)after;
    ck_assert_int_eq(op->kind, LS_COMM_GATHER);
    ck_assert(op->root == 0 && op->dtype == LS_U8);
    gathered++;
    if (op->buffer != NULL) {
        memcpy(op->buffer, op->input, (size_t)op->count);
        memcpy((char *)op->buffer + op->count, other_rank, (size_t)op->count);
    }
    *handle = (ls_comm_handle){.op = *op};
    return LS_OK;
}

static ls_status pair_wait(ls_comm *comm, ls_comm_handle *handle, ls_stream *stream)
{
    (void)comm, (void)handle, (void)stream;
    return LS_OK;
}

/* Metadata and tensors of a file, in their order; or only how many there are. */
static void list_file(FILE *to, const char *path, const ls_options *options, bool whole)
{
    static const char *const keys[] = {"format",          "version",        "arch",
                                       "num_classes",     "opt_level",      "half",
                                       "optimizer",       "world_size",     "step",
                                       "scaler",          "min_loss_scale", "max_loss_scale",
                                       "growth_interval", "settled",        "bucket_rule"};
    ls_safetensors *file;
    ck_assert_int_eq(ls_safetensors_open(path, &file), LS_OK);
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        fprintf(to, "%s=%s\n", keys[k], ls_safetensors_metadata_of(file, keys[k], "-"));
    }
    cJSON *json = ls_options_json(options);
    char *text = cJSON_PrintUnformatted(json);
    LS_TEXT(digest, 24, "%016" PRIx64, ls_digest_update(LS_DIGEST_START, text, strlen(text)));
    ck_assert_str_eq(ls_safetensors_metadata_of(file, "options", ""), text);
    ck_assert_str_eq(ls_safetensors_metadata_of(file, "options_digest", ""), digest);
    cJSON_Delete(json);
    free(text);
    fprintf(to, "%d tensors\n", ls_safetensors_count(file));
    for (int i = 0; whole && i < ls_safetensors_count(file); i++) {
        const ls_safetensors_entry *entry = ls_safetensors_at(file, i);
        fprintf(to, "%s %s", entry->name, ls_dtype_label(entry->dtype));
        for (int d = 0; d < entry->shape.rank; d++) {
            fprintf(to, " %lld", (long long)entry->shape.dim[d]);
        }
        fprintf(to, "\n");
    }
    ls_safetensors_close(file);
}

/* Each of two ranks continues with its own running statistics, another world with rank 0's, and
 * synchronized ones are in the file once. */
TEST(statistics_of_every_rank)
{
    char *text = NULL, *block[2];
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    ls_comm_api pair = *ls_comm_load_self();
    pair.begin = pair_begin;
    pair.wait = pair_wait;
    ls_options options = options_of(LS_O2);
    ls_trainer t, reader;
    host_trainer_open(&t, &options);
    int64_t bytes = t.memory.bytes[LS_MEMORY_BUFFER];
    const char *const own = t.memory.block[LS_MEMORY_BUFFER];
    for (int k = 0; k < 2; k++) {
        fill(&t, 7 - (unsigned)k);
        block[k] = malloc((size_t)bytes);
        memcpy(block[k], own, (size_t)bytes);
    }
    other_rank = block[0];
    ls_backend_api api = HOST_API;
    api.memory_alloc = counted_alloc;
    api.memory_free = counted_free;
    t.device.api = &api;
    t.options.gpu = 1;
    for (int k = 0; k < 4; k++) { /* own statistics; synchronized; by groups; alone */
        t.engine = &pair;
        t.world.world = k == 3 ? 1 : 2;
        t.norm_comm = k == 0 || k == 3 ? NULL : t.comm;
        t.options.sync_bn_group = k == 2 ? 2 : 0;
        gathered = 0;
        ck_assert_int_eq(ls_checkpoint_save(&t, 40, path_of("pair")), LS_OK);
        ck_assert_int_eq(gathered, k % 2 == 0);
        ck_assert_int_eq(blocks, 0);
        fprintf(to, "==== %d\n", k);
        list_file(to, path_of("pair"), &t.options, k == 0);
        for (int world = 1; world <= 3; world++) {
            for (int rank = 0; rank < world; rank++) {
                ls_step_state state;
                int64_t step;
                host_trainer_open(&reader, &options);
                reader.world.world = world;
                reader.world.rank = rank;
                reader.options.momentum = k == 0 ? 0.75 : options.momentum;
                reader.options.print_freq = 17; /* may differ */
                reader.options.gpu = 3;
                catch_lines();
                ls_status status = ls_checkpoint_load(&reader, path_of("pair"), &state, &step);
                char *said = (char *)caught_text(), *at;
                while ((at = strstr(said, scratch)) != NULL) { /* its own name each time */
                    memmove(at, at + strlen(scratch), strlen(at + strlen(scratch)) + 1);
                }
                fprintf(to, "by rank %d of %d: %s\n", rank, world, said);
                ck_assert_int_eq(status, LS_OK);
                const char *expected = k % 2 == 0 && world == 2 && rank == 1 ? block[0] : block[1];
                ck_assert_mem_eq(reader.memory.block[LS_MEMORY_BUFFER], expected, (size_t)bytes);
                reader.world.world = 1;
                host_trainer_close(&reader);
            }
        }
    }
    t.world.rank = 1; /* it gives its own and writes nothing */
    t.world.world = 2;
    t.norm_comm = NULL;
    ck_assert_int_eq(unlink(path_of("pair")), 0);
    ck_assert_int_eq(ls_checkpoint_save(&t, 40, path_of("pair")), LS_OK);
    ck_assert(gathered == 1 && blocks == 0);
    ck_assert_int_ne(access(path_of("pair"), F_OK), 0);
    for (int dialect = LS_DIALECT_APEX; dialect <= LS_DIALECT_TORCH; dialect++) {
        options.dialect = (ls_dialect)dialect; /* what two runs' layouts are compared by */
        ls_dialect_resolve(&options, 2, &t.rules);
        fprintf(to, "rule %d, of %d limits: %016" PRIx64 "\n", dialect, t.rules.limit_count,
                ls_agree_bucket_rule(&t));
    }
    t.engine = ls_comm_load_self();
    t.device.api = &HOST_API;
    host_trainer_close(&t);
    free(block[0]);
    free(block[1]);
    fclose(to);
    golden_check("suite/unit/reference/expected/checkpoint.txt", golden_short(text, 1));
}

/* ---- files that do not fit --------------------------------------------------------------------
 */

/* Loading must fail as a usage error and leave every tensor as it was; `said`: how the line begins,
 * with @ for the folder. */
static void expect_refusal(const ls_options *options, const char *path, const char *said)
{
    ls_trainer t;
    ls_step_state state = {.step_count = -5};
    int64_t step = -5;
    host_trainer_open(&t, options);
    fill(&t, 3);
    ls_digest_set before = digests(&t);
    catch_lines();
    ls_status status = ls_checkpoint_load(&t, path, &state, &step);
    const char *at = strchr(said, '@');
    LS_TEXT(line, 400, "error: %.*s%s/%s", (int)(at - said), said, scratch, at + 1);
    const char *found = caught_lines();
    ck_assert_msg(strncmp(found, line, strlen(line)) == 0, "%s: not %s", found, line);
    ck_assert_int_eq(status, LS_ERR_USAGE);
    ls_digest_set after = digests(&t);
    ck_assert_mem_eq(before.value, after.value, sizeof before.value);
    ck_assert_int_eq(step, -5);
    ck_assert_int_eq(state.step_count, -5);
    host_trainer_close(&t);
}

TEST(a_file_of_another_run_is_refused)
{
    ls_options options = options_of(LS_O2);
    ls_trainer from;
    host_trainer_open(&from, &options);
    fill(&from, 1);
    ck_assert_int_eq(ls_checkpoint_save(&from, 40, path_of("whole")), LS_OK);
    host_trainer_close(&from);
    for (int k = 0; k < 8; k++) {
        static const char *const said[] = {
            "@whole: opt_level is 'O2' there and 'O1' here\n",
            "@whole: half is 'fp16' there and 'bf16' here\n",
            "@whole: num_classes is '10' there and '11' here\n",
            "@whole: arch is 'resnet8' there and 'resnet20' here\n",
            "@whole: state/conv1.weight/momentum_buffer has no place in this run\n",
            "@whole: scaler is 'dynamic' there and 'static' here\n",
            "@whole: param/bn1.weight has type F32, this run needs F16\n",
            "@whole: optimizer is 'sgd' there and 'adam' here\n",
        };
        ls_options other = options_of(k == 0 ? LS_O1 : LS_O2);
        other.half = k == 1 ? LS_BF16 : other.half;
        other.num_classes += k == 2;
        snprintf(other.arch, sizeof other.arch, k == 3 ? "resnet20" : "resnet8");
        other.momentum = k == 4 ? 0.0 : other.momentum; /* then moments have no place */
        other.loss_scale_given = k == 5;
        other.loss_scale = k == 5 ? 128.0f : other.loss_scale;
        other.keep_batchnorm_fp32 = k == 6 ? LS_FALSE : other.keep_batchnorm_fp32;
        other.optimizer = k == 7 ? LS_OPTIMIZER_ADAM : other.optimizer;
        expect_refusal(&other, path_of("whole"), said[k]);
    }
    expect_refusal(&options, path_of("absent"), "cannot open @absent: No such file or directory\n");
    ls_safetensors_writer *writer;
    ck_assert_int_eq(ls_safetensors_create(path_of("weights"), &writer), LS_OK);
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
    expect_refusal(&options, path_of("weights"),
                   "--resume @weights: its format is '', not "
                   "lockstep-checkpoint; --init starts from a dump or plain weights\n");
}

/* A step that no run reaches: the next one could not be counted. */
TEST(a_step_out_of_range_is_refused)
{
    static const int64_t steps[] = {INT64_MAX, (INT64_C(1) << 50) + 1, -1};
    ls_options options = options_of(LS_O2);
    ls_trainer from;
    host_trainer_open(&from, &options);
    fill(&from, 1);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        ck_assert_int_eq(ls_checkpoint_save(&from, steps[i], path_of("far")), LS_OK);
        LS_TEXT(said, 200,
                "@far: loss scale 512, growth count 17, step %lld: not a state of a run\n",
                (long long)steps[i]);
        expect_refusal(&options, path_of("far"), said);
    }
    for (int i = 0; i < 4; i++) {
        static const float scales[] = {0.0f, -1.0f, INFINITY, 512.0f};
        LS_TEXT(said, 200, "@far: loss scale %g, growth count %d, step 40: not a state of a run\n",
                (double)scales[i], i == 3 ? -1 : 0);
        from.memory.state->loss_scale = scales[i];
        from.memory.state->growth_count = i == 3 ? -1 : 0;
        ck_assert_int_eq(ls_checkpoint_save(&from, 40, path_of("far")), LS_OK);
        expect_refusal(&options, path_of("far"), said);
    }
    from.memory.state->growth_count = 0; /* the first and the last that are one */
    for (int i = 0; i < 2; i++) {
        int64_t step = -5, most = i * (INT64_C(1) << 50);
        ls_step_state state;
        ck_assert_int_eq(ls_checkpoint_save(&from, most, path_of("far")), LS_OK);
        ck_assert_int_eq(ls_checkpoint_load(&from, path_of("far"), &state, &step), LS_OK);
        ck_assert_int_eq(step, most);
    }
    host_trainer_close(&from);
}

static void write_file(const char *path, const char *data, size_t bytes)
{
    ck_assert_int_eq(ls_file_replace(path, data, bytes), LS_OK);
}

/* Takes the digests out of the file, which would find every change first. */
static void remove_digests(char *data, size_t bytes)
{
    for (char *at; (at = memmem(data, bytes, "xxh64", 5)) != NULL;) {
        memcpy(at, "none0", 5);
    }
}

TEST(a_broken_file_is_refused)
{
    ls_options options = options_of(LS_O2);
    ls_trainer from;
    host_trainer_open(&from, &options);
    fill(&from, 1);
    ck_assert_int_eq(ls_checkpoint_save(&from, 40, path_of("whole")), LS_OK);
    host_trainer_close(&from);
    char *data;
    size_t bytes = read_file(path_of("whole"), &data);
    static const size_t cuts[] = {0, 1, 7, 8, 9, 1000};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        write_file(path_of("cut"), data, cuts[i]);
        LS_TEXT(said, 100, "@cut is not a whole safetensors file: it has %zu bytes\n", cuts[i]);
        if (cuts[i] >= 8) {
            ls_text_put(said, sizeof said, "@cut is not a whole safetensors file: a header of ");
        }
        expect_refusal(&options, path_of("cut"), said);
    }
    write_file(path_of("cut"), data, bytes - 1);
    LS_TEXT(cut, 200, "@cut is not a whole safetensors file: tensor 'param/fc.bias' ends at byte ");
    expect_refusal(&options, path_of("cut"), cut);
    remove_digests(data, bytes);
    char *version = memmem(data, bytes, "\"version\":\"1\"", 13);
    ck_assert_ptr_nonnull(version);
    version[11] = '2';
    write_file(path_of("later"), data, bytes);
    version[11] = '1';
    expect_refusal(&options, path_of("later"), "@later: version is '2' there and '1' here\n");
    static const char *const names[] = {"param/fc.bias", "master/conv1.weight",
                                        "buffer/bn1.running_var", "scaler/growth_count",
                                        "ddp/layout"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *at = memmem(data, bytes, names[i], strlen(names[i]));
        ck_assert_ptr_nonnull(at);
        char kept = at[1];
        at[1] = '~';
        write_file(path_of("renamed"), data, bytes);
        LS_TEXT(said, 200, "@renamed: %s%s\n", i == 4 ? "d~p/layout" : names[i],
                i == 4 ? " has no place in this run" : " is missing");
        expect_refusal(&options, path_of("renamed"), said);
        at[1] = kept;
    }
    free(data);
}

static int files_with(const char *word)
{
    int count = 0;
    DIR *entries = opendir(scratch);
    ck_assert_ptr_nonnull(entries);
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        count += strstr(entry->d_name, word) != NULL;
    }
    closedir(entries);
    return count;
}

/* By --resume with and without digests, and by --init where it takes the tensor; nor is such a
 * state saved. Running statistics come back as they were. */
TEST(what_is_not_finite_is_refused)
{
    static const float values[] = {NAN, INFINITY, -INFINITY};
    ls_options options = options_of(LS_O2);
    ls_trainer t;
    host_trainer_open(&t, &options);
    fill(&t, 1);
    ls_step_state state;
    int64_t step;
    ls_tensor *const tensors[] = {&t.memory.param[3], &t.memory.master[3], &t.memory.moment[0][5]};
    for (size_t i = 0; i < 3; i++) {
        float good = 1.9375f, kept = host_get(tensors[i], 2);
        host_set(tensors[i], 2, good);
        ck_assert_int_eq(ls_checkpoint_save(&t, 40, path_of("whole")), LS_OK);
        host_set(tensors[i], 2, values[i]);
        unlink(path_of("spoilt"));
        ck_assert_int_eq(ls_checkpoint_save(&t, 40, path_of("spoilt")), LS_ERR_NON_FINITE);
        ck_assert_int_eq(files_with("spoilt"), 0); /* nor a draft of it */
        char *data;
        size_t bytes = read_file(path_of("whole"), &data);
        ls_safetensors *file;
        ck_assert_int_eq(ls_safetensors_open(path_of("whole"), &file), LS_OK);
        LS_TEXT(name, 160, "%s%s%s",
                i == 0   ? "param/"
                : i == 1 ? "master/"
                         : "state/",
                t.network.param[i == 2 ? 5 : 3].name, i == 2 ? "/momentum_buffer" : "");
        const ls_safetensors_entry *entry = ls_safetensors_find(file, name);
        ck_assert_ptr_nonnull(entry);
        const ls_safetensors_entry *first = ls_safetensors_at(file, 0);
        ptrdiff_t before = (const char *)entry->data - (const char *)first->data;
        int64_t of_data = 0;
        for (int k = 0; k < ls_safetensors_count(file); k++) {
            of_data += ls_safetensors_at(file, k)->bytes;
        }
        ls_tensor in_file = {.data = data + bytes - of_data + before,
                             .dtype = entry->dtype,
                             .count = ls_shape_count(&entry->shape)};
        ck_assert_float_eq(host_get(&in_file, 2), good);
        host_set(&in_file, 2, values[i]);
        write_file(path_of("spoilt"), data, bytes);
        LS_TEXT(damaged, 250,
                "@spoilt is not a whole safetensors file: tensor '%s' is damaged: its XXH64 is ",
                name);
        expect_refusal(&options, path_of("spoilt"), damaged);
        remove_digests(data, bytes);
        write_file(path_of("spoilt"), data, bytes);
        LS_TEXT(found, 250, "@spoilt: %s is not finite at element 2\n", name);
        expect_refusal(&options, path_of("spoilt"), found);
        if (i == 1) { /* the master goes before the parameter; the moment is not taken */
            ck_assert_int_eq(ls_weights_load(&t, path_of("spoilt")), LS_ERR_USAGE);
        }
        ls_safetensors_close(file);
        free(data);
        host_set(tensors[i], 2, kept);
    }
    for (int b = 0; b < t.memory.buffer_count; b++) {
        make_finite(&t.memory.buffer[b]);
    }
    for (int k = 0; k < 3; k++) { /* one line for all of them, and none where there are none */
        host_set(&t.memory.buffer[1], 3, k == 1 ? INFINITY : 1);
        host_set(&t.memory.buffer[0], 0, k == 2 ? NAN : 1);
        host_set(&t.memory.buffer[0], 2, k == 2 ? NAN : 1);
        host_set(&t.memory.buffer[4], 2, k == 0 ? 1 : NAN);
        LS_TEXT(said, 300,
                "warning: %s: buffer/bn1.running_%s is not finite at element %d: evaluation gives "
                "NaN\n",
                path_of("whole"), k == 1 ? "var" : "mean", k == 1 ? 3 : 0);
        catch_lines();
        ls_status status = ls_checkpoint_save(&t, 40, path_of("whole"));
        ck_assert_str_eq(caught_lines(), k == 0 ? "" : said);
        ck_assert_int_eq(status, LS_OK);
    }
    host_set(&t.memory.buffer[0], 0, 0);
    ck_assert_int_eq(ls_checkpoint_load(&t, path_of("whole"), &state, &step), LS_OK);
    ck_assert(isnan(host_get(&t.memory.buffer[0], 0)));
    host_trainer_close(&t);
}

/* A file of weights under torchvision's names; `without` and `with` make it wrong. */
static void write_weights(const ls_trainer *t, ls_dtype type, const char *without, const char *with)
{
    ls_safetensors_writer *writer;
    ck_assert_int_eq(ls_safetensors_create(path_of("weights"), &writer), LS_OK);
    char *bits = calloc((size_t)t->memory.largest, 4);
    ck_assert_ptr_nonnull(bits);
    for (int p = 0; p < t->network.param_count; p++) {
        const ls_param *param = &t->network.param[p];
        ls_tensor host = {.data = bits, .dtype = type, .count = ls_shape_count(&param->shape)};
        for (int64_t i = 0; i < host.count; i++) {
            host_set(&host, i, (float)((i + p) % 64 - 32) / 16.0f);
        }
        if (strcmp(param->name, without) != 0) {
            ck_assert_int_eq(
                ls_safetensors_add_copy(writer, param->name, type, &param->shape, bits), LS_OK);
        }
    }
    if (with[0] != '\0') {
        ls_shape shape = {.rank = 1, .dim = {1}};
        ck_assert_int_eq(ls_safetensors_add_copy(writer, with, type, &shape, bits), LS_OK);
    }
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
    free(bits);
}

TEST(weights_are_read_strictly)
{
    static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16};
    ls_options options = options_of(LS_O2);
    ls_trainer t;
    host_trainer_open(&t, &options);
    for (int k = 0; k < 3; k++) {
        fill(&t, 5);
        write_weights(&t, types[k], "", "");
        ck_assert_int_eq(ls_weights_load(&t, path_of("weights")), LS_OK);
        for (int p = 0; p < t.network.param_count; p++) {
            for (int64_t i = 0; i < t.memory.param[p].count; i++) {
                ck_assert_float_eq(host_get(&t.memory.param[p], i),
                                   (float)((i + p) % 64 - 32) / 16.0f);
            }
        }
    }
    static const char *const wrong[][2] = {
        {"fc.bias", ""},          /* missing */
        {"", "fc.scale"},         /* unknown */
        {"fc.bias", "fc.bias"},   /* another shape: 1 instead of 10 */
        {"", "bn1.running_mean"}, /* some buffers, not all; and misshapen */
    };
    for (int k = 0; k < 4; k++) {
        fill(&t, 6);
        ls_digest_set before = digests(&t);
        write_weights(&t, LS_F32, wrong[k][0], wrong[k][1]);
        ck_assert_int_eq(ls_weights_load(&t, path_of("weights")), LS_ERR_USAGE);
        ls_digest_set after = digests(&t);
        ck_assert_mem_eq(before.value, after.value, sizeof before.value);
    }
    host_trainer_close(&t);
}

TEST_MAIN("checkpoint", .begin = open_scratch, .end = close_scratch)
