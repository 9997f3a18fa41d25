/* The CPU backend around its plans: threads, its description, memory, copies, streams and events,
 * and the lower bound that its convolutions set. */
#include <sched.h>
#include <sys/wait.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "kernels/passes.h"
#include "reference/model/model.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"
#include "cpu_plan.h"

static const ls_backend_api *api;

static ls_backend *opened(int threads, int local_ranks)
{
    ls_backend_options options = {.threads = threads, .local_ranks = local_ranks};
    ls_backend *backend = NULL;
    ck_assert_int_eq(ls_load_backend("cpu", &api), LS_OK);
    ck_assert_int_eq(api->open(&options, &backend), LS_OK);
    ck_assert_ptr_nonnull(backend);
    return backend;
}

/* ---- threads and text --------------------------------------------------------------------------
 */

TEST(threads_are_shared_out)
{
    cpu_set_t set, one;
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    int cores = CPU_COUNT(&set), first = 0;
    const int rows[][3] = {{3, 1, 3},
                           {1, 0, 1},
                           {5, 64, 5},
                           {0, 1, cores},
                           {0, 0, cores},
                           {0, cores, 1},
                           {0, 2, cores / 2 > 0 ? cores / 2 : 1},
                           {0, 2 * cores, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ls_backend_info info;
        ls_backend *backend = opened(rows[i][0], rows[i][1]);
        api->describe(backend, &info);
        ck_assert_msg(info.threads == rows[i][2], "%d threads, %d ranks: %d", rows[i][0],
                      rows[i][1], info.threads);
        api->close(backend);
    }
    for (first = 0; !CPU_ISSET(first, &set); first++) {
    }
    CPU_ZERO(&one); /* those that the process may use */
    CPU_SET(first, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    ls_backend_info info;
    ls_backend *backend = opened(0, 1);
    api->describe(backend, &info);
    ck_assert_int_eq(info.threads, 1);
    api->close(backend);
    api->close(NULL);
}

TEST(described_in_full)
{
    char line[256], model[64] = "unknown processor";
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL &&
           sscanf(line, "model name : %63[^\n]", model) != 1) {
    }
    if (file != NULL) {
        fclose(file);
    }
    ls_backend_info info;
    memset(&info, 0x5a, sizeof info);
    ls_backend *backend = opened(2, 1);
    api->describe(backend, &info);
    ck_assert_str_eq(api->name, "cpu");
    ck_assert_int_eq(api->abi, LS_BACKEND_ABI);
    LS_TEXT(start, 100, "%s, ", model);
    ck_assert_msg(strncmp(info.device, start, strlen(start)) == 0, "%s: not %s", info.device,
                  start);
    ck_assert_str_ne(info.device + strlen(start), "");
    ck_assert_ptr_nonnull(strstr(info.libraries, "oneDNN "));
    ck_assert_ptr_nonnull(strstr(info.libraries, "; OpenMP 20"));
    ck_assert(info.host_memory);
    api->close(backend);
}

/* The layout of activations: one of two words, or what the units want. */
LOOP_TEST(layouts_are_chosen, 3)
{
    static const struct {
        const char *word;
        int status;
    } words[] = {{"blocked", LS_OK}, {"channels_last", LS_OK}, {"nhwc", LS_ERR_USAGE}};
    ls_backend_options how = {.threads = 1, .local_ranks = 1};
    ls_backend *backend = NULL;
    setenv("LS_CPU_LAYOUT", words[_i].word, 1);
    ck_assert_int_eq(ls_load_backend("cpu", &api), LS_OK);
    ck_assert_int_eq(api->open(&how, &backend), words[_i].status);
    if (words[_i].status == LS_OK) {
        api->close(backend);
    }
}

/* Whether the kernel lists one of the two flags of the processor. */
static bool processor_has(const char *flag, const char *other)
{
    char line[8192];
    bool found = false;
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        found = found || (strncmp(line, "flags", 5) == 0 &&
                          (strstr(line, flag) != NULL || strstr(line, other) != NULL));
    }
    if (file != NULL) {
        fclose(file);
    }
    return found;
}

/* Units in use by name; without the processor's the reason is the processor, else it is the library
 * or the variable that hides them, or the caller. */
TEST(products_of_half_types_are_explained)
{
    static const struct {
        const char *flag, *other, *label, *neither;
    } types[] = {
        {" amx_bf16", " avx512_bf16", "bf16", "this CPU has neither AMX nor AVX512-BF16"},
        {" amx_fp16", " avx512_fp16", "fp16", "this CPU has neither AMX-FP16 nor AVX512-FP16"}};
    const char *limits[] = {NULL, "AVX2"};
    for (int i = 0; i < 4; i++) {
        const int type = i % 2;
        const char *limit = limits[i / 2];
        bool has = processor_has(types[type].flag, types[type].other);
        pid_t child = fork(); /* oneDNN reads the variable once */
        if (child == 0) {
            if (limit != NULL) {
                setenv("ONEDNN_MAX_CPU_ISA", limit, 1);
            }
            ls_backend_options how = {.threads = 1, .local_ranks = 1};
            ls_backend *backend = NULL;
            ls_backend_info info;
            LS_ASSERT(ls_load_backend("cpu", &api) == LS_OK);
            LS_ASSERT(api->open(&how, &backend) == LS_OK);
            api->describe(backend, &info);
            const char *text = type == 0 ? info.bf16_products : info.f16_products;
            bool emulated = type == 0 ? info.bf16_emulated : info.f16_emulated;
            LS_TEXT(native, 40, "%s on A", types[type].label);
            LS_TEXT(not_native, 40, "%s emulated: ", types[type].label);
            const char *begin = emulated ? not_native : native;
            bool right = strncmp(text, begin, strlen(begin)) == 0 &&
                         (strstr(text, types[type].neither) != NULL) == !has && (has || emulated) &&
                         (limit == NULL || emulated);
            bool slow = strstr(text, " emulated: f32 is faster than this CPU's A") != NULL;
            how.native_half = true;
            LS_ASSERT(api->open(&how, &backend) == LS_OK);
            api->describe(backend, &info);
            emulated = emulated && !slow; /* the units that f32 was preferred to */
            right = right && emulated == (type == 0 ? info.bf16_emulated : info.f16_emulated) &&
                    (strncmp(text, native, strlen(native)) == 0) == !emulated;
            how.emulate_half = true;
            LS_ASSERT(api->open(&how, &backend) == LS_OK);
            api->describe(backend, &info);
            LS_TEXT(asked, 40, "%s emulated, as asked", types[type].label);
            right = right && strcmp(type == 0 ? info.bf16_products : info.f16_products, asked) == 0;
            if (!right) {
                fprintf(stderr, "%s\n", text);
            }
            _exit(right ? 0 : 1);
        }
        int code = 0;
        ck_assert_int_eq(waitpid(child, &code, 0), child);
        ck_assert_int_eq(code, 0);
    }
}

/* ---- memory ------------------------------------------------------------------------------------
 */

static long pages_mapped(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert(file != NULL && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    return pages;
}

static bool is_all(const char *block, char value, int64_t bytes)
{
    return bytes == 0 || (block[0] == value && memcmp(block, block + 1, (size_t)bytes - 1) == 0);
}

/* Aligned, zeroed, its own, on whole huge pages where it has them, and all given back. */
TEST(blocks_of_memory)
{
    enum { HUGE = 2 << 20, COUNT = 9 };
    static const int64_t sizes[COUNT] = {
        0, 1, 64, 4096, 100000, 2 * HUGE - 65, 2 * HUGE - 64, 2 * HUGE, 5 * HUGE + 1};
    ls_backend *backend = opened(1, 1);
    char *block[COUNT];
    long before = pages_mapped();
    before = pages_mapped(); /* the first took the file's buffer */
    for (int i = 0; i < COUNT; i++) {
        void *memory = NULL;
        ck_assert_int_eq(api->memory_alloc(backend, sizes[i], "a test", &memory), LS_OK);
        block[i] = memory;
        ck_assert_uint_eq((uintptr_t)memory % 64, 0);
        if (sizes[i] >= 2 * HUGE - 64) {
            ck_assert_uint_eq(((uintptr_t)memory - 64) % HUGE, 0);
        }
        ck_assert(is_all(block[i], 0, sizes[i]));
        memset(memory, i + 1, (size_t)sizes[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        ck_assert(is_all(block[i], (char)(i + 1), sizes[i]));
    }
    for (int i = 0; i < COUNT; i++) {
        api->memory_free(backend, block[i]);
    }
    api->memory_free(backend, NULL);
    ck_assert_int_eq(pages_mapped(), before);
    api->close(backend);
}

TEST(memory_that_cannot_be_had)
{
    static const struct {
        int64_t bytes;
        const char *said;
    } rows[] = {
        {-1, "error: no memory for a tensor: -1 bytes: negative\n"},
        {INT64_C(1) << 60,
         "error: no memory for a tensor: 1152921504606846976 bytes: Cannot allocate memory\n"},
    };
    ls_backend *backend = opened(1, 1);
    for (int i = 0; i < 2; i++) {
        void *memory = NULL;
        catch_lines();
        ls_status status = api->memory_alloc(backend, rows[i].bytes, "a tensor", &memory);
        ck_assert_str_eq(caught_lines(), rows[i].said);
        ck_assert_int_eq(status, LS_ERR_INFRA);
        ck_assert_ptr_null(memory);
    }
    api->close(backend);
}

TEST(copies_are_done_at_once)
{
    ls_backend *backend = opened(1, 1);
    ls_stream *stream = NULL;
    ls_event *event = NULL;
    char from[9] = "abcdefgh", to[9] = "12345678";
    ck_assert_int_eq(api->stream_create(backend, &stream), LS_OK);
    ck_assert_int_eq(api->event_create(backend, &event), LS_OK);
    ck_assert(stream != NULL && event != NULL);
    ck_assert_int_eq(api->copy_in(backend, stream, to, from, 3), LS_OK);
    ck_assert_str_eq(to, "abc45678");
    ck_assert_int_eq(api->copy_out(backend, stream, to + 4, from + 4, 2), LS_OK);
    ck_assert_str_eq(to, "abc4ef78");
    ck_assert_int_eq(api->event_record(event, stream), LS_OK);
    ck_assert_int_eq(api->stream_after(stream, event), LS_OK);
    ck_assert_int_eq(api->event_wait(event), LS_OK);
    ck_assert_int_eq(api->stream_wait(stream), LS_OK);
    api->event_destroy(event);
    api->stream_destroy(stream);
    api->close(backend);
}

/* ---- the convolutions alone --------------------------------------------------------------------
 */

TEST(a_bound_is_the_median_of_its_repeats)
{
    enum { REPEATS = 5 };
    void *symbol = NULL;
    ls_cpu_bound_fn *bound;
    ls_kernel_net n;
    build_tiny(&n);
    ck_assert_int_eq(ls_load_symbol("cpu", LS_CPU_BOUND_ENTRY, &symbol), LS_OK);
    memcpy(&bound, &symbol, sizeof bound);
    ls_norm_sync sync = {.group_size = 2}; /* nothing of it is called */
    ls_plan_options options = {
        .batch = 4, .height = 16, .width = 16, .activation = LS_F32, .norm_sync = &sync};
    double ms = -1;
    int64_t begin_ns = ls_clock_ns();
    ck_assert_int_eq(bound(&n.network, &options, 1, REPEATS, &ms), LS_OK);
    double whole_ms = (double)(ls_clock_ns() - begin_ns) * 1e-6;
    /* three of the five took at least that long, as did the one that is not counted */
    ck_assert_msg(ms > 0 && (REPEATS + 1) / 2 * ms <= whole_ms, "%g of %g ms", ms, whole_ms);
    ms = -1;
    catch_lines();
    ls_status status = bound(&n.network, &options, 1, 0, &ms);
    ck_assert_str_eq(caught_lines(), "error: repeats 0: at least 1\n");
    ck_assert_int_eq(status, LS_ERR_USAGE);
    catch_lines();
    status = bound(&n.network, &options, -1, 1, &ms);
    ck_assert_ptr_nonnull(strstr(caught_lines(), "--threads -1"));
    ck_assert_int_eq(status, LS_ERR_USAGE);
    /* in a half type where the processor multiplies it, else in f32 */
    const ls_dtype halves[] = {LS_F16, LS_BF16};
    for (int i = 0; i < 2; i++) {
        double half_ms = -1;
        options.activation = halves[i];
        ck_assert_int_eq(bound(&n.network, &options, 1, 1, &half_ms), LS_OK);
        ck_assert(half_ms > 0);
    }
    options.activation = LS_F32;
    options.height = options.width = 0;
    catch_lines();
    status = bound(&n.network, &options, 1, 1, &ms);
    ck_assert_str_ne(caught_lines(), "");
    ck_assert_int_ne(status, LS_OK);
    ck_assert(ms < 0);
    ls_cpu_rates_fn *rates;
    ck_assert_int_eq(ls_load_symbol("cpu", LS_CPU_RATES_ENTRY, &symbol), LS_OK);
    memcpy(&rates, &symbol, sizeof rates);
    ls_cpu_rates_measured measured = {-1, -1};
    catch_lines();
    status = rates(0, &measured);
    ck_assert_str_eq(caught_lines(), "error: threads 0: at least 1\n");
    ck_assert_int_eq(status, LS_ERR_USAGE);
    ck_assert(measured.copy_bytes_per_s < 0 && measured.matrix_flop_per_s < 0);
}

/* Each pass of a step once, with its bytes, and the times that belong together. */
TEST(every_pass_of_a_step)
{
    static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16};
    void *symbol;
    ls_cpu_passes_fn *passes;
    ls_network network;
    ck_assert_int_eq(ls_load_symbol("cpu", LS_CPU_PASSES_ENTRY, &symbol), LS_OK);
    memcpy(&passes, &symbol, sizeof passes);
    ck_assert_int_eq(ls_model_build("resnet18", 10, 32, &network), LS_OK);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        const ls_plan_options plan = {
            .batch = 2, .height = 32, .width = 32, .activation = types[t]};
        ls_cpu_passes_options how = {
            .threads = 1, .repeats = 3, .emulate_half = true, .passes = true};
        ls_step_passes m;
        ck_assert_int_eq(passes(&network, &plan, &how, &m), LS_OK);
        double bytes_per = types[t] == LS_F32 ? 4 : 2, flops = 0, image = 0, update[3] = {0};
        int of_kind[4] = {0}, norms = 0, updates = 0;
        int64_t params = 0;
        for (int p = 0; p < network.param_count; p++) {
            params += ls_shape_count(&network.param[p].shape);
        }
        for (int i = 0; i < m.pass_count; i++) {
            const ls_pass *pass = &m.pass[i];
            ck_assert_msg(pass->ms > 0 && pass->bytes > 0, "%s: %g ms, %g bytes", pass->name,
                          pass->ms, pass->bytes);
            ck_assert((pass->flops > 0) == pass->product);
            ck_assert_int_eq(pass->engine[0] != '\0', pass->product);
            ck_assert_int_eq(!pass->product || strstr(pass->engine, " in f32") == NULL,
                             !pass->product || types[t] == LS_F32);
            of_kind[pass->kind]++;
            norms += pass->norm;
            flops += pass->flops;
            image += strcmp(pass->name, "image") == 0 ? pass->bytes : 0;
            if (pass->kind == LS_PASS_UPDATE) {
                ck_assert_int_lt(updates, 3);
                update[updates++] = pass->bytes;
            }
        }
        /* 20 convolutions and the linear layer, 17 norms, a pool, an average, a loss, an image; in
         * backward also the pool's sum of two gradients and the bias */
        ck_assert_int_eq(of_kind[LS_PASS_FORWARD], 21 + 17 + 4);
        ck_assert_int_eq(of_kind[LS_PASS_BACKWARD], 21 + 17 + 3 + 2);
        ck_assert_int_eq(of_kind[LS_PASS_DATA], 20);
        ck_assert_int_eq(norms, 2 * 17);
        /* 2 per multiply-add of 2 images; the stem, 7 x 7 on 16 x 16 pixels, has no data pass */
        double stem = 64.0 * 3 * 49 * 16 * 16;
        ck_assert(flops == 2 * 2 * (3 * (double)ls_model_macs(&network, 32) - stem));
        ck_assert(image == 2 * 3 * 32 * 32 * (4 + bytes_per));
        double halves = (double)params - 9600; /* norms' parameters are f32 */
        ck_assert(update[0] == 4 * 9600 + bytes_per * halves + 4 * (double)params);
        ck_assert(update[1] == 20 * (double)params + (bytes_per < 4 ? 2 * halves : 0));
        ck_assert_int_eq(isnan(m.convolutions_ms), types[t] != LS_F32);
        ck_assert(m.forward_ms > 0 && m.backward_ms > 0 && m.update_ms > 0);
        ck_assert_ptr_nonnull(strstr(m.engines, "layer4.1.conv2: "));
        free(m.pass);
        free(m.engines);
        how.passes = false;
        ck_assert_int_eq(passes(&network, &plan, &how, &m), LS_OK);
        ck_assert_int_eq(m.pass_count, 0);
        free(m.pass);
        free(m.engines);
        how.repeats = 65;
        catch_lines();
        ck_assert_int_eq(passes(&network, &plan, &how, &m), LS_ERR_USAGE);
        ck_assert_str_eq(caught_lines(), "error: repeats 65: 1 to 64\n");
    }
    ls_model_free(&network);
}

TEST_MAIN("cpu backend", .timeout_s = 60)
