#include "layers_internal.h"

#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "reference/model/model.h"
#include "reference/state/device.h"

static ls_dtype type_of(const ls_layers_request *request)
{
    return strcmp(request->type, "f16") == 0    ? LS_F16
           : strcmp(request->type, "bf16") == 0 ? LS_BF16
                                                : LS_F32;
}

static ls_plan_options plan_of(const ls_layers_request *request)
{
    return (ls_plan_options){.batch = request->batch,
                             .height = request->image_size,
                             .width = request->image_size,
                             .benchmark = request->benchmark,
                             .fuse = request->fuse,
                             .activation = type_of(request)};
}

/* ---- GPU ------------------------------------------------------------------------------------- */

static ls_status measure_gpu(const ls_layers_request *request, const ls_network *network,
                             ls_layers_step *out)
{
    ls_cuda_rates_fn *rates = NULL;
    ls_cuda_bound_fn *bound = NULL;
    ls_cuda_rates_measured r;
    bool tf32 = strcmp(request->type, "tf32") == 0;
    const ls_cuda_rates_options options = {.device = request->device,
                                           .copy_bytes = (int64_t)request->copy_mb << 20,
                                           .side = request->side,
                                           .repeats = request->repeats};
    const ls_plan_options plan = plan_of(request);
    const ls_cuda_bound_options how = {
        .device = request->device, .tf32 = tf32, .repeats = request->repeats, .passes = true};
    LS_TRY(ls_load_symbol("cuda", LS_CUDA_RATES_ENTRY, &rates));
    LS_TRY(ls_load_symbol("cuda", LS_CUDA_BOUND_ENTRY, &bound));
    LS_TRY(rates(&options, &r));
    LS_TRY(bound(network, &plan, &how, &out->passes));
    ls_text_put(out->device, sizeof out->device, "%s", r.device);
    ls_text_put(out->rates, sizeof out->rates,
                "copies %.0f GB/s (%.0f %% of its memory's %.0f); products f32 %.1f, tf32 %.1f, "
                "f16 %.1f, bf16 %.1f TFLOP/s (its own: f32 %.0f, f16 %.0f)",
                r.copy_bytes_per_s * 1e-9, 100 * r.copy_bytes_per_s / r.memory_bytes_per_s,
                r.memory_bytes_per_s * 1e-9, r.f32_flop_per_s * 1e-12, r.tf32_flop_per_s * 1e-12,
                r.f16_flop_per_s * 1e-12, r.bf16_flop_per_s * 1e-12,
                r.f32_device_flop_per_s * 1e-12, r.f16_device_flop_per_s * 1e-12);
    out->floors =
        (ls_layers_rates){r.copy_bytes_per_s, plan.activation == LS_F16    ? r.f16_flop_per_s
                                              : plan.activation == LS_BF16 ? r.bf16_flop_per_s
                                              : tf32                       ? r.tf32_flop_per_s
                                                                           : r.f32_flop_per_s};
    return LS_OK;
}

/* ---- CPU ------------------------------------------------------------------------------------- */

ls_layers_rates ls_layers_cpu_floors(const ls_cpu_rates_measured *rates, ls_dtype type,
                                     bool emulated)
{
    double half = type == LS_BF16 ? rates->bf16_flop_per_s : rates->f16_flop_per_s;
    bool native = type != LS_F32 && !emulated && !isnan(half);
    return (ls_layers_rates){rates->copy_bytes_per_s, native ? half : rates->matrix_flop_per_s};
}

static ls_status describe_cpu(const ls_layers_request *request, ls_layers_step *out, int *threads,
                              bool *emulated)
{
    const ls_backend_options options = {.threads = request->threads,
                                        .local_ranks = 1,
                                        .emulate_half = request->emulated,
                                        .native_half = request->native};
    ls_device device;
    LS_TRY(ls_device_open("cpu", &options, &device));
    *threads = device.info.threads;
    *emulated = type_of(request) != LS_F32 && ls_device_emulates(&device.info, type_of(request));
    ls_text_put(out->device, sizeof out->device, "%s, %d thread%s", device.info.device, *threads,
                *threads == 1 ? "" : "s");
    if (type_of(request) != LS_F32) {
        ls_text_put(out->products, sizeof out->products, "%s",
                    ls_device_products(&device.info, type_of(request)));
    }
    ls_device_close(&device);
    return LS_OK;
}

static ls_status measure_cpu(const ls_layers_request *request, const ls_network *network,
                             ls_layers_step *out)
{
    ls_cpu_rates_fn *rates = NULL;
    ls_cpu_passes_fn *passes = NULL;
    ls_cpu_rates_measured r;
    int threads = 0;
    bool emulated = false;
    LS_TRY(describe_cpu(request, out, &threads, &emulated));
    const ls_plan_options plan = plan_of(request);
    const ls_cpu_passes_options how = {.threads = threads,
                                       .repeats = request->repeats,
                                       .emulate_half = request->emulated,
                                       .native_half = request->native,
                                       .passes = true};
    LS_TRY(ls_load_symbol("cpu", LS_CPU_RATES_ENTRY, &rates));
    LS_TRY(ls_load_symbol("cpu", LS_CPU_PASSES_ENTRY, &passes));
    LS_TRY(rates(threads, &r));
    LS_TRY(passes(network, &plan, &how, &out->passes));
    ls_text_put(out->rates, sizeof out->rates, "copies %.1f GB/s; products f32 %.1f",
                r.copy_bytes_per_s * 1e-9, r.matrix_flop_per_s * 1e-9);
    const double half[] = {r.f16_flop_per_s, r.bf16_flop_per_s};
    for (int i = 0; i < 2; i++) {
        if (!isnan(half[i])) {
            ls_text_add(out->rates, sizeof out->rates, ", %s %.1f", i == 0 ? "f16" : "bf16",
                        half[i] * 1e-9);
        }
    }
    ls_text_add(out->rates, sizeof out->rates, " GFLOP/s");
    out->floors = ls_layers_cpu_floors(&r, plan.activation, emulated);
    return LS_OK;
}

ls_status ls_layers_measure(const ls_layers_request *request, ls_layers_step *out)
{
    ls_network network;
    *out = (ls_layers_step){0};
    LS_TRY(ls_model_build(request->arch, LS_LAYERS_CLASSES, request->image_size, &network));
    ls_status status =
        request->cpu ? measure_cpu(request, &network, out) : measure_gpu(request, &network, out);
    ls_model_free(&network);
    return status;
}
