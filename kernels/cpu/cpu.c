/* The CPU backend's table. Work executes at once: streams and events hold nothing, and waits return
 * immediately. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/cores.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "kernels/entries.h"
#include "kernels/lowered.h"
#include "backend.h"
#include "dnn.h"
#include "loops.h"
#include "plan_parts.h"
#include "multi/multi_variant.h"

/* ---- the device ------------------------------------------------------------------------------ */

static int threads_for(const ls_backend_options *options)
{
    if (options->threads > 0) {
        return options->threads;
    }
    return ls_cores_share(ls_cores_usable(), options->local_ranks);
}

static void choose_loops(ls_backend *backend)
{
    backend->isa = LS_ISA_PLAIN;
    backend->loops = &ls_loops_plain;
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    int block = ls_dnn_block(); /* both must use one layout: the narrower vector code decides */
    if (avx512 && block >= 16) {
        backend->isa = LS_ISA_AVX512;
        backend->loops = &ls_loops_avx512;
    } else if (avx2 && block >= 8) {
        backend->isa = LS_ISA_AVX2;
        backend->loops = &ls_loops_avx2;
    }
#endif
}

/* Whether a processor's units for a half type are worth using: VDPBF16PS multiplies twice as many
 * values per instruction as an f32 FMA, but some processors issue it at a quarter of the FMA's rate
 * (Golden Cove and its successors, where AMX is meant for such products). The result of bf16_rate:
 * instructions per second of one core relative to FMAs of f32, each from registers; measured in
 * 0.1 ms. Only on a processor with AVX512-BF16. */
#if defined(__x86_64__)
enum { ROUNDS = 16, LOOPS = 400 };

/* 14 independent sums of zeros, beyond the latency of either instruction. */
#define LS_FOURTEEN(i)                                                                           \
    i "%%zmm0\n" i "%%zmm1\n" i "%%zmm2\n" i "%%zmm3\n" i "%%zmm4\n" i "%%zmm5\n" i "%%zmm6\n" i \
      "%%zmm7\n" i "%%zmm8\n" i "%%zmm9\n" i "%%zmm10\n" i "%%zmm11\n" i "%%zmm12\n" i "%%zmm13\n"
#define LS_TIMED(function, instruction)                                                         \
    __attribute__((target("avx512f,avx512bf16"))) static int64_t function(void)                 \
    {                                                                                           \
        int64_t begin_ns = ls_clock_ns();                                                       \
        int loops = LOOPS;                                                                      \
        __asm__ volatile(                                                                       \
            "vzeroall\n1:\n" LS_FOURTEEN(instruction " %%zmm14, %%zmm15, ") "decl %0\njnz 1b\n" \
            : "+r"(loops)                                                                       \
            :                                                                                   \
            : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",     \
              "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                    \
        return ls_clock_ns() - begin_ns;                                                        \
    }
LS_TIMED(fma_ns, "vfmadd231ps")
LS_TIMED(bf16_ns, "vdpbf16ps")

/* The shortest of several rounds in turn: whatever else the core does makes one longer. */
static double bf16_rate(void)
{
    int64_t fma = INT64_MAX, bf16 = INT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t ns = fma_ns();
        fma = ns < fma ? ns : fma;
        ns = bf16_ns();
        bf16 = ns < bf16 ? ns : bf16;
    }
    return (double)fma / (double)bf16;
}
#else
static double bf16_rate(void)
{
    return 0;
}
#endif

/* oneDNN's code for AVX512-FP16 is not faster than f32. */
static bool half_pays(ls_dtype type)
{
    const char *units = ls_dnn_half_units(type);
    if (units == NULL || strcmp(units, "AVX512-FP16") == 0) {
        return false; /* oneDNN widens fp16 there and multiplies in f32 */
    }
    /* Processors have rates of 1, 1/2 or 1/4. At 1/2 products take as long as in f32, and operands
     * are not converted; the limit lies between, so that noise does not decide. */
    return strcmp(units, "AVX512-BF16") != 0 || bf16_rate() > 0.37;
}

static bool uses_units(const ls_backend_options *options, ls_dtype type)
{
    return !options->emulate_half && ls_dnn_half_units(type) != NULL &&
           (options->native_half || half_pays(type));
}

static const char *units_in_use(const ls_backend *backend, ls_dtype type)
{
    if (!ls_backend_is_native(backend, type)) {
        return NULL;
    }
    const char *units = ls_dnn_units_in(backend->dnn, type, ls_backend_is_last(backend, type));
    return units != NULL ? units : "units that oneDNN does not name";
}

/* The value of a variable that has one of two words; "" where it is not set. */
static ls_status read_word(const char *name, const char *first, const char *second,
                           const char **out)
{
    const char *value = getenv(name);
    *out = value == NULL ? "" : value;
    return value == NULL || strcmp(value, first) == 0 || strcmp(value, second) == 0
               ? LS_OK
               : ls_log_fail(LS_ERR_USAGE, "%s=%s: it is %s or %s", name, value, first, second);
}

/* The layout of activations: where products run on units for their type, the one that these want;
 * LS_CPU_LAYOUT=blocked or channels_last decides for all types. LS_CPU_WEIGHTS=direct or unfolded:
 * the way of gradients (conv.h) where there are two. */
static ls_status choose_layouts(ls_backend *backend)
{
    const char *forced = "";
    LS_TRY(read_word("LS_CPU_LAYOUT", "blocked", "channels_last", &forced));
    LS_TRY(read_word("LS_CPU_WEIGHTS", "direct", "unfolded", &backend->weights_way));
    bool last = strcmp(forced, "channels_last") == 0, unforced = forced[0] == '\0';
    backend->last_f32 = backend->last_f16 = backend->last_bf16 = last;
    if (unforced && backend->native_f16) {
        LS_TRY(ls_dnn_wants_channels_last(backend->dnn, LS_F16, &backend->last_f16));
    }
    if (unforced && backend->native_bf16) {
        LS_TRY(ls_dnn_wants_channels_last(backend->dnn, LS_BF16, &backend->last_bf16));
    }
    backend->units_f16 = units_in_use(backend, LS_F16);
    backend->units_bf16 = units_in_use(backend, LS_BF16);
    return LS_OK;
}

static ls_status cpu_open(const ls_backend_options *options, ls_backend **out)
{
    if (options->threads < 0) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "--threads %d: the number of threads is 1 or more, or 0 for cores / ranks",
            options->threads);
    }
    ls_backend *backend = calloc(1, sizeof *backend);
    LS_TRY_MEMORY(backend != NULL, "the CPU backend");
    backend->threads = threads_for(options);
    choose_loops(backend);
    backend->multi = ls_multi_choose(backend->isa);
    omp_set_num_threads(backend->threads);
    backend->emulate_half = options->emulate_half;
    backend->native_f16 = uses_units(options, LS_F16);
    backend->native_bf16 = uses_units(options, LS_BF16);
    ls_status status = LS_OK;
    LS_TRY_GOTO(status, ls_dnn_open(&backend->dnn), free_backend);
    LS_TRY_GOTO(status, choose_layouts(backend), close_dnn);
    *out = backend;
    return LS_OK;
close_dnn:
    ls_dnn_close(backend->dnn);
free_backend:
    free(backend);
    return status;
}

static void cpu_close(ls_backend *backend)
{
    if (backend != NULL) {
        ls_dnn_close(backend->dnn);
        free(backend->spare);
        free(backend);
    }
}

/* "AMD EPYC 9654" from /proc/cpuinfo, or "unknown processor". */
static void processor_name(char *name, size_t bytes)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(name, bytes, "unknown processor");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && value != NULL && value[1] != '\0') {
            value[strcspn(value, "\n")] = '\0';
            snprintf(name, bytes, "%s", value + 2);
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

static void cpu_describe(ls_backend *backend, ls_backend_info *out)
{
    char name[64], dnn[256];
    *out = (ls_backend_info){.threads = backend->threads,
                             .host_memory = true,
                             .f16_emulated = !backend->native_f16,
                             .bf16_emulated = !backend->native_bf16};
    const ls_dtype halves[] = {LS_BF16, LS_F16};
    for (int i = 0; i < 2; i++) {
        const char *units = halves[i] == LS_F16 ? backend->units_f16 : backend->units_bf16;
        if (units != NULL) {
            ls_text_add(out->half_units, sizeof out->half_units, "%s%s on %s",
                        out->half_units[0] != '\0' ? ", " : "", ls_dtype_label(halves[i]), units);
        }
    }
    ls_dnn_half_products(LS_F16, backend->emulate_half, backend->units_f16, out->f16_products,
                         sizeof out->f16_products);
    ls_dnn_half_products(LS_BF16, backend->emulate_half, backend->units_bf16, out->bf16_products,
                         sizeof out->bf16_products);
    processor_name(name, sizeof name);
    ls_dnn_describe(dnn, sizeof dnn);
    snprintf(out->device, sizeof out->device, "%s, %s", name, backend->loops->name);
    snprintf(out->libraries, sizeof out->libraries, "%s; OpenMP %d", dnn, _OPENMP);
}

static bool cpu_supports(ls_backend *backend, const ls_network *network,
                         const ls_plan_options *options, char *why, int why_bytes)
{
    (void)backend;
    return ls_lower_supports(network, options->activation, why, (size_t)why_bytes);
}

/* ---- memory, streams, events ----------------------------------------------------------------- */

static ls_status cpu_memory_alloc(ls_backend *backend, int64_t bytes, const char *purpose,
                                  void **out)
{
    (void)backend;
    return ls_memory_take(bytes, purpose, out);
}

static void cpu_memory_free(ls_backend *backend, void *memory)
{
    (void)backend;
    ls_memory_give(memory);
}

static ls_status cpu_copy(ls_backend *backend, ls_stream *stream, void *to, const void *from,
                          int64_t bytes)
{
    (void)backend;
    (void)stream;
    memcpy(to, from, (size_t)bytes);
    return LS_OK;
}

static ls_status cpu_stream_create(ls_backend *backend, ls_stream **out)
{
    ls_stream *stream = calloc(1, sizeof *stream);
    LS_TRY_MEMORY(stream != NULL, "a stream");
    stream->backend = backend;
    *out = stream;
    return LS_OK;
}

static void cpu_stream_destroy(ls_stream *stream)
{
    free(stream);
}

static ls_status cpu_stream_wait(ls_stream *stream)
{
    (void)stream;
    return LS_OK;
}

static ls_status cpu_event_create(ls_backend *backend, ls_event **out)
{
    ls_event *event = calloc(1, sizeof *event);
    LS_TRY_MEMORY(event != NULL, "an event");
    event->backend = backend;
    *out = event;
    return LS_OK;
}

static void cpu_event_destroy(ls_event *event)
{
    free(event);
}

static ls_status cpu_event_record(ls_event *event, ls_stream *stream)
{
    (void)event;
    (void)stream;
    return LS_OK;
}

static ls_status cpu_event_wait(ls_event *event)
{
    (void)event;
    return LS_OK;
}

static ls_status cpu_stream_after(ls_stream *stream, ls_event *event)
{
    (void)stream;
    (void)event;
    return LS_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

static const ls_backend_api table = {
    .abi = LS_BACKEND_ABI,
    .engines_export = ls_work_export_choices,
    .engines_import = ls_work_import_choices,
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .supports = cpu_supports,
    .memory_alloc = cpu_memory_alloc,
    .memory_free = cpu_memory_free,
    .copy_in = cpu_copy,
    .copy_out = cpu_copy,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_stream_destroy,
    .stream_wait = cpu_stream_wait,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .stream_after = cpu_stream_after,
    .plan_edges = ls_plan_edges,
    LS_ENTRIES,
};

const ls_backend_api *ls_backend_entry(void)
{
    return &table;
}
