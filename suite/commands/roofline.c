#include "bench_internal.h"
#include "layers_internal.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/cores.h"
#include "harness/report/stats.h"
#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "reference/model/model.h"
#include "reference/state/device.h"

/* Medians of repeats that take a few hundred ms each. */
enum { REPEATS = 5 };

typedef struct engine {
    ls_cpu_bound_fn *convolutions_ms;
    ls_cpu_rates_fn *rates;
    ls_cpu_passes_fn *passes;
} engine;

static ls_status load(engine *out)
{
    void *convolutions = NULL, *rates = NULL, *passes = NULL;
    LS_TRY(ls_load_symbol("cpu", LS_CPU_BOUND_ENTRY, &convolutions));
    LS_TRY(ls_load_symbol("cpu", LS_CPU_RATES_ENTRY, &rates));
    memcpy(&out->convolutions_ms, &convolutions, sizeof out->convolutions_ms);
    LS_TRY(ls_load_symbol("cpu", LS_CPU_PASSES_ENTRY, &passes));
    memcpy(&out->rates, &rates, sizeof out->rates);
    memcpy(&out->passes, &passes, sizeof out->passes);
    return LS_OK;
}

static ls_status measure_convolutions(const engine *engine, const ls_matrix_bench *bench,
                                      const ls_network *network, int threads, ls_dtype type,
                                      const char *when, cJSON *roofline)
{
    const ls_plan_options plan = {.batch = bench->batch_size,
                                  .height = bench->image_size,
                                  .width = bench->image_size,
                                  .activation = type};
    double ms = 0;
    LS_TRY(engine->convolutions_ms(network, &plan, threads, REPEATS, &ms));
    cJSON *entry = ls_json_append_object(roofline);
    cJSON_AddStringToObject(entry, "when", when);
    cJSON_AddStringToObject(entry, "arch", bench->arch);
    cJSON_AddNumberToObject(entry, "image_size", bench->image_size);
    cJSON_AddNumberToObject(entry, "batch_size", bench->batch_size);
    cJSON_AddNumberToObject(entry, "threads", threads);
    if (type != LS_F32) {
        cJSON_AddStringToObject(entry, "type", ls_dtype_label(type));
    }
    ls_json_add_number(entry, "images_per_s", bench->batch_size * 1e3 / ms);
    return LS_OK;
}

static ls_status measure_threads(const engine *engine, const ls_matrix_bench *bench,
                                 const ls_network *network, int threads, const char *when,
                                 const ls_roofline_lists *to, ls_cpu_rates_measured *out)
{
    ls_cpu_rates_measured measured;
    LS_TRY(measure_convolutions(engine, bench, network, threads, LS_F32, when, to->roofline));
    if (strcmp(bench->half, "bf16") == 0 && ls_device_cpu_has(LS_BF16, false)) {
        LS_TRY(measure_convolutions(engine, bench, network, threads, LS_BF16, when, to->roofline));
    }
    LS_TRY(engine->rates(threads, &measured));
    cJSON *entry = cJSON_CreateObject();
    cJSON_AddStringToObject(entry, "when", when);
    cJSON_AddNumberToObject(entry, "threads", threads);
    ls_json_add_number(entry, "copy_bytes_per_s", measured.copy_bytes_per_s);
    ls_json_add_number(entry, "matrix_flop_per_s", measured.matrix_flop_per_s);
    cJSON_AddItemToArray(to->rates, entry);
    *out = measured;
    return LS_OK;
}

/* A step of one rank alone, pass by pass. */
static ls_status measure_passes(const engine *engine, const ls_matrix_bench *bench,
                                const ls_network *network, int threads, ls_dtype type,
                                const ls_cpu_rates_measured *rates, cJSON *layers)
{
    const ls_plan_options plan = {.batch = bench->batch_size,
                                  .height = bench->image_size,
                                  .width = bench->image_size,
                                  .activation = type};
    const ls_cpu_passes_options options = {.threads = threads, .repeats = REPEATS, .passes = true};
    bool emulated = type == LS_BF16 && !ls_device_cpu_has(LS_BF16, false);
    const ls_layers_rates floors = ls_layers_cpu_floors(rates, type, emulated);
    ls_step_passes step;
    LS_TRY(engine->passes(network, &plan, &options, &step));
    cJSON *row = ls_json_append_object(layers);
    cJSON_AddStringToObject(row, "when", "before");
    cJSON_AddNumberToObject(row, "threads", threads);
    cJSON_AddStringToObject(row, "type", type == LS_F32 ? "f32" : type == LS_BF16 ? "bf16" : "f16");
    cJSON_AddStringToObject(row, "arch", bench->arch);
    cJSON_AddNumberToObject(row, "image_size", bench->image_size);
    cJSON_AddNumberToObject(row, "batch_size", bench->batch_size);
    ls_layers_record(&step, &floors, row);
    free(step.pass);
    free(step.engines);
    return LS_OK;
}

static ls_status measure_rank(const engine *engine, const ls_matrix_bench *bench,
                              const ls_network *network, int threads,
                              const ls_cpu_rates_measured *rates, cJSON *layers)
{
    bool half = false;
    for (int i = 0; i < bench->level_count; i++) {
        half = half || bench->level[i] > 0;
    }
    LS_TRY(measure_passes(engine, bench, network, threads, LS_F32, rates, layers));
    return !half
               ? LS_OK
               : measure_passes(engine, bench, network, threads,
                                strcmp(bench->half, "bf16") == 0 ? LS_BF16 : LS_F16, rates, layers);
}

ls_status ls_roofline_measure(const ls_matrix_bench *bench, const char *when,
                              const ls_roofline_lists *to)
{
    engine engine;
    ls_network network;
    LS_TRY(load(&engine));
    LS_TRY(ls_model_build(bench->arch, bench->num_classes, bench->image_size, &network));
    int each = ls_cores_share(bench->cores, bench->ranks), before = 0;
    int most = (int)ceil(bench->cores);
    ls_status status = LS_OK;
    for (int world = 1; world < 2 * bench->ranks && status == LS_OK; world *= 2) {
        int ranks = world < bench->ranks ? world : bench->ranks;
        int threads = ranks * each < most ? ranks * each : most;
        if (threads > before) {
            ls_cpu_rates_measured rates;
            status = measure_threads(&engine, bench, &network, threads, when, to, &rates);
            if (status == LS_OK && before == 0 && strcmp(when, "before") == 0) {
                status = measure_rank(&engine, bench, &network, threads, &rates, to->layers);
            }
            before = threads;
        }
    }
    ls_model_free(&network);
    return status;
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

enum { COPY_BYTES_LOG2 = 31, SIDE = 8192 };

typedef struct question {
    const ls_matrix_bench *bench;
    int gpu;
    bool emulated;
} question;

/* ---- in the child ---------------------------------------------------------------------------- */

static ls_status add_rates(const question *q, cJSON *answer, ls_cuda_rates_measured *found)
{
    ls_cuda_rates_fn *rates = NULL;
    ls_cuda_rates_measured measured;
    const ls_cuda_rates_options options = {
        .device = q->gpu,
        .copy_bytes = q->emulated ? 1 << 16 : (int64_t)1 << COPY_BYTES_LOG2,
        .side = q->emulated ? 16 : SIDE,
        .repeats = REPEATS};
    LS_TRY(ls_load_symbol("cuda", LS_CUDA_RATES_ENTRY, &rates));
    LS_TRY(rates(&options, &measured));
    *found = measured;
    cJSON *out = cJSON_AddObjectToObject(answer, "rates");
    cJSON_AddNumberToObject(out, "gpu", q->gpu);
    cJSON_AddStringToObject(out, "device", measured.device);
    cJSON_AddStringToObject(out, "address", measured.address);
    ls_json_add_number(out, "copy_bytes_per_s", measured.copy_bytes_per_s);
    ls_json_add_number(out, "memory_bytes_per_s", measured.memory_bytes_per_s);
    ls_json_add_number(out, "f32_flop_per_s", measured.f32_flop_per_s);
    ls_json_add_number(out, "tf32_flop_per_s", measured.tf32_flop_per_s);
    ls_json_add_number(out, "f16_flop_per_s", measured.f16_flop_per_s);
    ls_json_add_number(out, "bf16_flop_per_s", measured.bf16_flop_per_s);
    ls_json_add_number(out, "f32_device_flop_per_s", measured.f32_device_flop_per_s);
    ls_json_add_number(out, "f16_device_flop_per_s", measured.f16_device_flop_per_s);
    return LS_OK;
}

/* A step of GPU 0 pass by pass; the others would say the same. */
static void add_passes(const question *q, const ls_cuda_rates_measured *rates, bool half,
                       ls_step_passes *step, cJSON *answer)
{
    const ls_layers_rates floors = {rates->copy_bytes_per_s,
                                    half ? rates->f16_flop_per_s : rates->f32_flop_per_s};
    cJSON *list = ls_json_get(answer, "layers");
    if (list == NULL) {
        list = cJSON_AddArrayToObject(answer, "layers");
    }
    cJSON *row = ls_json_append_object(list);
    cJSON_AddNumberToObject(row, "gpu", q->gpu);
    cJSON_AddStringToObject(row, "type", half ? "f16" : "f32");
    cJSON_AddStringToObject(row, "arch", q->bench->arch);
    cJSON_AddNumberToObject(row, "image_size", q->bench->image_size);
    cJSON_AddNumberToObject(row, "batch_size", q->bench->batch_size);
    ls_layers_record(step, &floors, row);
}

/* One row per requested level: the products of O0 are f32, of the others half. */
static ls_status add_bounds(const question *q, const ls_cuda_rates_measured *rates, cJSON *answer)
{
    const ls_matrix_bench *bench = q->bench;
    ls_cuda_bound_fn *bound = NULL;
    ls_network network;
    double ms[2] = {NAN, NAN}; /* f32, half */
    cJSON *list = cJSON_AddArrayToObject(answer, "roofline");
    LS_TRY(ls_load_symbol("cuda", LS_CUDA_BOUND_ENTRY, &bound));
    LS_TRY(ls_model_build(bench->arch, bench->num_classes, bench->image_size, &network));
    ls_status status = LS_OK;
    for (int i = 0; i < bench->level_count && status == LS_OK; i++) {
        int half = bench->level[i] > 0;
        if (isnan(ms[half])) {
            /* with timed engines, as the timed jobs */
            const ls_plan_options plan = {.batch = bench->batch_size,
                                          .height = bench->image_size,
                                          .width = bench->image_size,
                                          .benchmark = true,
                                          .activation = half ? LS_F16 : LS_F32};
            const ls_cuda_bound_options options = {
                .device = q->gpu, .repeats = REPEATS, .passes = q->gpu == 0};
            ls_step_passes measured;
            status = bound(&network, &plan, &options, &measured);
            if (status != LS_OK) {
                break;
            }
            ms[half] = measured.convolutions_ms;
            if (q->gpu == 0) {
                add_passes(q, rates, half, &measured, answer);
            }
            free(measured.pass);
            free(measured.engines);
        }
        char level[8] = {'O', (char)('0' + bench->level[i]), '\0'};
        cJSON *row = ls_json_append_object(list);
        cJSON_AddStringToObject(row, "arch", bench->arch);
        cJSON_AddNumberToObject(row, "image_size", bench->image_size);
        cJSON_AddNumberToObject(row, "batch_size", bench->batch_size);
        cJSON_AddStringToObject(row, "level", level);
        cJSON_AddNumberToObject(row, "gpu", q->gpu);
        ls_json_add_number(row, "images_per_s", bench->batch_size * 1e3 / ms[half]);
    }
    ls_model_free(&network);
    return status;
}

static ls_status in_child(void *context, FILE *to)
{
    const question *q = context;
    cJSON *answer = cJSON_CreateObject();
    LS_MEMORY(answer != NULL);
    ls_cuda_rates_measured measured;
    LS_TRY(add_rates(q, answer, &measured));
    if (add_bounds(q, &measured, answer) != LS_OK) { /* the rates are valid without them */
        ls_log_warn("GPU %d: its convolutions alone were not measured", q->gpu);
    }
    char *text = cJSON_PrintUnformatted(answer);
    LS_MEMORY(text != NULL);
    ls_status status = fputs(text, to) < 0 ? LS_ERR_INFRA : LS_OK;
    cJSON_free(text);
    cJSON_Delete(answer);
    return status;
}

/* ---- in the parent --------------------------------------------------------------------------- */

static void take_list(cJSON *answer, const char *name, const char *when, cJSON *to)
{
    cJSON *list = ls_json_get(answer, name), *row;
    while ((row = cJSON_DetachItemFromArray(list, 0)) != NULL) {
        cJSON_AddStringToObject(row, "when", when);
        cJSON_AddItemToArray(to, row);
    }
}

static void take(cJSON *answer, const char *when, const ls_roofline_lists *to)
{
    take_list(answer, "roofline", when, to->roofline);
    take_list(answer, "layers", when, to->layers);
    cJSON *row = cJSON_DetachItemFromObjectCaseSensitive(answer, "rates");
    if (row != NULL) {
        cJSON_AddStringToObject(row, "when", when);
        cJSON_AddItemToArray(to->rates, row);
    }
}

void ls_roofline_gpu_measure(const ls_matrix_bench *bench, const char *when, int gpus,
                             bool emulated, const ls_roofline_lists *to, ls_findings *findings)
{
    question q[LS_MACHINE_DEVICES_MAX];
    ls_proc_isolated aside[LS_MACHINE_DEVICES_MAX];
    int started = 0;
    for (int gpu = 0; gpu < gpus && gpu < LS_MACHINE_DEVICES_MAX; gpu++) {
        q[gpu] = (question){.bench = bench, .gpu = gpu, .emulated = emulated};
        if (ls_proc_isolated_start(in_child, &q[gpu], &aside[gpu]) != LS_OK) {
            break;
        }
        started++;
    }
    int64_t deadline_ns = ls_clock_ns() + (int64_t)LS_ROOFLINE_LIMIT_S * 1000000000;
    cJSON *fresh = cJSON_CreateArray();
    LS_MEMORY(fresh != NULL);
    for (int gpu = 0; gpu < started; gpu++) {
        char why[160] = "";
        char *text = ls_proc_isolated_answer(&aside[gpu], deadline_ns, why, sizeof why);
        cJSON *answer = text == NULL ? NULL : cJSON_Parse(text);
        free(text);
        if (answer == NULL) {
            ls_log_warn("GPU %d: its best rates were not measured: %s", gpu, why);
            continue;
        }
        cJSON_AddItemToArray(fresh, cJSON_Duplicate(ls_json_get(answer, "rates"), true));
        take(answer, when, to);
        cJSON_Delete(answer);
    }
    if (!emulated) {
        ls_roofline_gpu_compare(fresh, findings);
    }
    cJSON_Delete(fresh);
}

/* ---- findings -------------------------------------------------------------------------------- */

static const ls_tol least_share =
    LS_TOL(0.75, "H200, H100 and A100 reach 0.83 to 0.93 of memory clock times bus width in long "
                 "copies; vendors' own tests ask for three quarters of their own figure");
static const ls_tol least_of_others =
    LS_TOL(0.95, "copies of GPUs of one kind agree within a per cent, products within what their "
                 "power limits make of the same silicon, some 3 per cent");

/* The median of that member over all entries but one; NaN with fewer than two others. */
static double others(const cJSON *rates, const cJSON *own, const char *name)
{
    double value[LS_MACHINE_DEVICES_MAX];
    int count = 0;
    const cJSON *entry;
    ls_json_each(entry, rates) {
        double one = ls_json_number(entry, name, NAN);
        if (entry != own && isfinite(one) && count < LS_MACHINE_DEVICES_MAX) {
            value[count++] = one;
        }
    }
    return count >= 2 ? ls_stats_percentile(value, count, 0.5) : NAN;
}

void ls_roofline_gpu_compare(const cJSON *rates, ls_findings *findings)
{
    const cJSON *entry;
    ls_json_each(entry, rates) {
        int gpu = ls_json_int(entry, "gpu", 0);
        const char *device = ls_json_string(entry, "device", "");
        const char *address = ls_json_string(entry, "address", "");
        double copy = ls_json_number(entry, "copy_bytes_per_s", NAN);
        double memory = ls_json_number(entry, "memory_bytes_per_s", NAN);
        double neighbours = others(rates, entry, "copy_bytes_per_s");
        if (copy < least_share.value * memory) {
            ls_findings_add(findings, LS_FINDING_SLOW_COPY, gpu, device, address,
                            "copies of %.0f GB/s are %.0f %% of its memory's %.0f, limit %.0f %%",
                            copy * 1e-9, 100 * copy / memory, memory * 1e-9,
                            100 * least_share.value);
        } else if (copy < least_of_others.value * neighbours) {
            ls_findings_add(findings, LS_FINDING_SLOW_COPY, gpu, device, address,
                            "copies of %.0f GB/s, its neighbours do %.0f, limit %.0f %% of that",
                            copy * 1e-9, neighbours * 1e-9, 100 * least_of_others.value);
        }
        double matrix = ls_json_number(entry, "f16_flop_per_s", NAN);
        neighbours = others(rates, entry, "f16_flop_per_s");
        if (matrix < least_of_others.value * neighbours) {
            ls_findings_add(
                findings, LS_FINDING_SLOW_MATRIX, gpu, device, address,
                "f16 products of %.0f TFLOP/s, its neighbours do %.0f, limit %.0f %% of "
                "that",
                matrix * 1e-12, neighbours * 1e-12, 100 * least_of_others.value);
        }
    }
}
