#include "commands.h"

#include <stdlib.h>
#include <string.h>

#include "harness/machine/machine.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "reference/state/device.h"
#include "suite/run/command_line.h"
#include "layers_internal.h"
#include "kernels/core/text.h"
#include "reference/model/model.h"

enum { LONGEST = 20 };

typedef struct layers {
    ls_layers_request request;
    ls_layers_step step;
    double unit; /* of operations per second in what is printed: T or G */
    char prefix;
    int digits; /* of images per second, behind the point */
} layers;

/* ---- sums and records -------------------------------------------------------------------------
 */

enum { RECORDED = 12 }; /* of the passes with the most time to gain */

static const char *kind_name(ls_layers_kind kind)
{
    static const char *const name[LS_LAYERS_KINDS] = {
        [LS_LAYERS_FORWARD] = "products: forward",     [LS_LAYERS_WEIGHTS] = "products: weights",
        [LS_LAYERS_INPUTS] = "products: inputs",       [LS_LAYERS_NORM_FORWARD] = "norms: forward",
        [LS_LAYERS_NORM_BACKWARD] = "norms: backward", [LS_LAYERS_OTHER] = "pools, loss, ...",
        [LS_LAYERS_UPDATE] = "optimizer, weights",
    };
    return name[kind];
}

/* "forward", "backward data", ... */
static const char *pass_name(const ls_pass *pass)
{
    return pass->kind == LS_PASS_FORWARD  ? "forward"
           : pass->kind == LS_PASS_UPDATE ? "update"
           : pass->kind == LS_PASS_DATA   ? "backward data"
           : pass->product                ? "backward weights"
                                          : "backward";
}

static ls_layers_kind kind_of(const ls_pass *pass)
{
    if (pass->product) {
        return pass->kind == LS_PASS_FORWARD    ? LS_LAYERS_FORWARD
               : pass->kind == LS_PASS_BACKWARD ? LS_LAYERS_WEIGHTS
                                                : LS_LAYERS_INPUTS;
    }
    return pass->kind == LS_PASS_UPDATE    ? LS_LAYERS_UPDATE
           : !pass->norm                   ? LS_LAYERS_OTHER
           : pass->kind == LS_PASS_FORWARD ? LS_LAYERS_NORM_FORWARD
                                           : LS_LAYERS_NORM_BACKWARD;
}

static double floor_ms_of(const ls_pass *pass, const ls_layers_rates *rates)
{
    double memory_s = pass->bytes / rates->copy_bytes_per_s;
    double product_s = pass->flops > 0 ? pass->flops / rates->flop_per_s : 0;
    return isnan(memory_s) || isnan(product_s) ? NAN : 1e3 * fmax(memory_s, product_s);
}

/* The lower bound of a pass: its bytes at the rate of copies, its operations at that of products,
 * whichever takes longer. */
static void sum_up(const ls_step_passes *step, const ls_layers_rates *rates,
                   ls_layers_sum sums[LS_LAYERS_KINDS])
{
    for (int k = 0; k < LS_LAYERS_KINDS; k++) {
        sums[k] = (ls_layers_sum){0};
    }
    for (int i = 0; i < step->pass_count; i++) {
        ls_layers_sum *sum = &sums[kind_of(&step->pass[i])];
        sum->passes++;
        sum->ms += step->pass[i].ms;
        sum->floor_ms += floor_ms_of(&step->pass[i], rates);
        sum->bytes += step->pass[i].bytes;
    }
}

static int by_gap(const void *a, const void *b, void *rates)
{
    const ls_pass *x = a, *y = b;
    double gap_x = x->ms - floor_ms_of(x, rates), gap_y = y->ms - floor_ms_of(y, rates);
    return (gap_y > gap_x) - (gap_y < gap_x);
}

/* Sorts the passes by ms minus floor, the largest first. */
static void sort_passes(ls_step_passes *step, const ls_layers_rates *rates)
{
    ls_layers_rates copy = *rates;
    qsort_r(step->pass, (size_t)step->pass_count, sizeof *step->pass, by_gap, &copy);
}

void ls_layers_record(ls_step_passes *step, const ls_layers_rates *rates, cJSON *to)
{
    ls_layers_sum sums[LS_LAYERS_KINDS];
    sum_up(step, rates, sums);
    sort_passes(step, rates);
    ls_json_add_number(to, "forward_ms", step->forward_ms);
    ls_json_add_number(to, "backward_ms", step->backward_ms);
    ls_json_add_number(to, "convolutions_ms", step->convolutions_ms);
    if (step->update_ms > 0) {
        ls_json_add_number(to, "update_ms", step->update_ms);
    }
    cJSON *kinds = cJSON_AddArrayToObject(to, "kinds");
    for (int k = 0; k < LS_LAYERS_KINDS; k++) {
        if (k == LS_LAYERS_UPDATE && sums[k].passes == 0) {
            continue;
        }
        cJSON *one = ls_json_append_object(kinds);
        cJSON_AddStringToObject(one, "kind", kind_name(k));
        cJSON_AddNumberToObject(one, "passes", sums[k].passes);
        ls_json_add_number(one, "ms", sums[k].ms);
        ls_json_add_number(one, "floor_ms", sums[k].floor_ms);
        ls_json_add_number(one, "bytes", sums[k].bytes);
    }
    cJSON *longest = cJSON_AddArrayToObject(to, "longest");
    for (int i = 0; i < step->pass_count && i < RECORDED; i++) {
        const ls_pass *pass = &step->pass[i];
        cJSON *one = ls_json_append_object(longest);
        cJSON_AddStringToObject(one, "pass", pass_name(pass));
        cJSON_AddStringToObject(one, "layer", pass->name);
        cJSON_AddStringToObject(one, "engine", pass->engine);
        ls_json_add_number(one, "ms", pass->ms);
        ls_json_add_number(one, "floor_ms", floor_ms_of(pass, rates));
        ls_json_add_number(one, "bytes", pass->bytes);
        ls_json_add_number(one, "flops", pass->flops);
    }
}

/* ---- measuring --------------------------------------------------------------------------------
 */

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

/* Measures rates and step on the requested device. LS_ERR_INFRA without the device, or the
 * backend's status. The caller frees out->passes.pass and .engines. */
static ls_status measure(const ls_layers_request *request, ls_layers_step *out)
{
    ls_network network;
    *out = (ls_layers_step){0};
    LS_TRY(ls_model_build(request->arch, LS_LAYERS_CLASSES, request->image_size, &network));
    ls_status status =
        request->cpu ? measure_cpu(request, &network, out) : measure_gpu(request, &network, out);
    ls_model_free(&network);
    return status;
}

/* ---- the command ------------------------------------------------------------------------------
 */

static ls_status choose_device(ls_layers_request *l, const char *device)
{
    if (strcmp(device, "auto") != 0 && strcmp(device, "cpu") != 0 && strcmp(device, "cuda") != 0) {
        return ls_log_fail(LS_ERR_USAGE, "--device '%s': allowed: auto, cpu, cuda", device);
    }
    bool given = strcmp(device, "auto") != 0 || l->predict != NULL;
    l->cpu = strcmp(given ? device : ls_bus_choose(device), "cpu") == 0;
    if (l->cpu && l->predict != NULL) {
        return ls_log_fail(LS_ERR_USAGE, "--predict is of a GPU: not with --device cpu");
    }
    return LS_OK;
}

static ls_status parse(ls_layers_request *l, int count, char **argument)
{
    const char *image_size = "224", *batch = NULL, *index = NULL, *repeats = NULL, *copy_mb = NULL,
               *side = NULL, *device = "auto", *threads = NULL, *half_math = NULL;
    *l = (ls_layers_request){.arch = "resnet50"};
    const ls_command_option options[] = {
        {"--arch", &l->arch, NULL, NULL, "network (resnet50)"},
        {"--image-size", &image_size, NULL, NULL, "pixels (224)"},
        {"--batch", &batch, NULL, NULL, "images (256; on a CPU 16)"},
        {"--type", &l->type, NULL, NULL,
         "type of the activations: f16, bf16, f32 or, on a GPU, tf32 (f16; on a CPU f32)"},
        {"--device", &device, NULL, NULL, "cpu, cuda, or auto: a GPU if there is one (auto)"},
        {"--device-index", &index, NULL, NULL, "CUDA's index of the GPU (0)"},
        {"--threads", &threads, NULL, NULL, "threads on a CPU (its cores)"},
        {"--half-math", &half_math, NULL, NULL,
         "CPU, half types: auto, native: on its units, or emulated: in f32 (auto)"},
        {"--repeats", &repeats, NULL, NULL,
         "timed repetitions, 1 to 64, of which the median counts (10)"},
        {"--copy-mb", &copy_mb, NULL, NULL, "GPU: size of the copies for the rate (2048)"},
        {"--side", &side, NULL, NULL, "GPU: side of the square matrices for the rate (8192)"},
        {"--out", &l->out, NULL, NULL, "file to write the table of all passes to"},
        {"--cudnn-benchmark", NULL, &l->benchmark, NULL,
         "GPU: time the engines and take the fastest"},
        {"--predict", &l->predict, NULL, NULL,
         "predict the step on this device (H200, H100, A100) instead of measuring it"},
        {"--fuse", NULL, &l->fuse, NULL,
         "f16: convolutions with parts of the norms around them, as in training"},
        {"--all", NULL, &l->all, NULL,
         "print every pass, not only those with the most time to gain"},
    };
    LS_TRY(ls_command_parse("layers", options, sizeof options / sizeof *options, &count, argument));
    LS_TRY(ls_command_no_operands("layers", count, argument, "use --arch NETWORK"));
    bool for_gpu = index || copy_mb || side || l->benchmark || l->fuse;
    bool for_cpu = threads || half_math;
    if (l->predict != NULL && (for_gpu || for_cpu || repeats || l->all)) {
        return ls_log_fail(
            LS_ERR_USAGE, "--predict measures nothing: not with --device-index, --threads, "
                          "--half-math, --repeats, --copy-mb, --side, --cudnn-benchmark, --fuse or "
                          "--all");
    }
    LS_TRY(choose_device(l, device));
    if (l->cpu ? for_gpu : for_cpu) {
        return ls_log_fail(LS_ERR_USAGE, "not on a %s: %s", l->cpu ? "CPU" : "GPU",
                           l->cpu ? "--device-index, --copy-mb, --side, --cudnn-benchmark, --fuse"
                                  : "--threads, --half-math");
    }
    l->emulated = half_math != NULL && strcmp(half_math, "emulated") == 0;
    l->native = half_math != NULL && strcmp(half_math, "native") == 0;
    if (half_math != NULL && !l->emulated && !l->native && strcmp(half_math, "auto") != 0) {
        return ls_log_fail(LS_ERR_USAGE, "--half-math '%s': allowed: auto, native, emulated",
                           half_math);
    }
    l->type = l->type != NULL ? l->type : l->cpu ? "f32" : "f16";
    const struct {
        const char *name, *text;
        int least, most;
        int *value;
    } numbers[] = {{"--image-size", image_size, 1, 4096, &l->image_size},
                   {"--batch",
                    batch    ? batch
                    : l->cpu ? "16"
                             : "256",
                    1, 65536, &l->batch},
                   {"--device-index", index ? index : "0", 0, 1023, &l->device},
                   {"--threads", threads ? threads : "0", threads != NULL, 4096, &l->threads},
                   {"--repeats", repeats ? repeats : "10", 1, 64, &l->repeats},
                   {"--copy-mb", copy_mb ? copy_mb : "2048", 1, 1 << 20, &l->copy_mb},
                   {"--side", side ? side : "8192", 1, 65536, &l->side}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int64_t value;
        LS_TRY(ls_command_whole(numbers[i].name, numbers[i].text, numbers[i].least, numbers[i].most,
                                &value));
        *numbers[i].value = (int)value;
    }
    static const char *const types[] = {"f16", "bf16", "f32", "tf32"};
    size_t allowed = sizeof types / sizeof *types - l->cpu; /* the last one is a GPU's */
    for (size_t i = 0; i < allowed; i++) {
        if (strcmp(l->type, types[i]) == 0) {
            return LS_OK;
        }
    }
    return ls_log_fail(LS_ERR_USAGE, "--type '%s': allowed: f16, bf16, f32%s", l->type,
                       l->cpu ? "" : ", tf32");
}

static ls_status write_table(const layers *l)
{
    if (l->request.out == NULL) {
        return LS_OK;
    }
    FILE *table = ls_file_create(l->request.out);
    LS_TRY_FILE(table);
    fprintf(table,
            "# title: %s, %d pixels, batch %d, %s: every pass on %s\n"
            "# units: ms, MB, 10^9 operations, GB/s; floor: the larger of bytes at %.0f GB/s and "
            "operations at %.1f %cFLOP/s\n"
            "# columns: 1 order  2 ms  3 floor_ms  4 mb  5 gflop  6 gb_per_s  7 pass  8 layer\n",
            l->request.arch, l->request.image_size, l->request.batch, l->request.type,
            l->step.device, l->step.floors.copy_bytes_per_s * 1e-9,
            l->step.floors.flop_per_s / l->unit, l->prefix);
    for (int i = 0; i < l->step.passes.pass_count; i++) {
        const ls_pass *pass = &l->step.passes.pass[i];
        fprintf(table, "%d\t%.5f\t%.5f\t%.4f\t%.4f\t%.1f\t\"%s\"\t\"%s\"\n", i, pass->ms,
                floor_ms_of(pass, &l->step.floors), pass->bytes * 1e-6, pass->flops * 1e-9,
                pass->bytes / pass->ms * 1e-6, pass_name(pass), pass->name);
    }
    return ls_file_close(table, l->request.out);
}

static void print_sums(const layers *l)
{
    ls_layers_sum sums[LS_LAYERS_KINDS], all = {0};
    double batch = l->request.batch;
    sum_up(&l->step.passes, &l->step.floors, sums);
    printf("%-18s %4s %9s %9s %7s %9s %8s\n", "", "pass", "ms", "floor ms", "share", "MB/image",
           "GB/s");
    for (int k = 0; k < LS_LAYERS_KINDS; k++) {
        const ls_layers_sum *sum = &sums[k];
        if (sum->passes == 0) {
            continue;
        }
        printf("%-18s %4d %9.3f %9.3f %6.0f%% %9.1f %8.0f\n", kind_name(k), sum->passes, sum->ms,
               sum->floor_ms, 100 * sum->floor_ms / sum->ms, sum->bytes * 1e-6 / batch,
               sum->bytes / sum->ms * 1e-6);
        all.passes += sum->passes;
        all.ms += sum->ms;
        all.floor_ms += sum->floor_ms;
        all.bytes += sum->bytes;
    }
    printf("%-18s %4d %9.3f %9.3f %6.0f%% %9.1f\n", "sum", all.passes, all.ms, all.floor_ms,
           100 * all.floor_ms / all.ms, all.bytes * 1e-6 / batch);
    const ls_step_passes *step = &l->step.passes;
    double whole = step->forward_ms + step->backward_ms + step->update_ms;
    printf("forward %.3f ms, backward %.3f ms", step->forward_ms, step->backward_ms);
    if (step->update_ms > 0) {
        printf(", optimizer and weights %.3f ms", step->update_ms);
    }
    printf(": %.*f images/s without %sdata; floor %.*f", l->digits, batch * 1e3 / whole,
           step->update_ms > 0 ? "" : "optimizer and ", l->digits, batch * 1e3 / all.floor_ms);
    if (isfinite(step->convolutions_ms)) {
        printf("; convolutions alone %.3f ms: %.*f", step->convolutions_ms, l->digits,
               batch * 1e3 / step->convolutions_ms);
    }
    printf("\n");
}

static void print_passes(layers *l)
{
    sort_passes(&l->step.passes, &l->step.floors);
    int shown =
        l->request.all || l->step.passes.pass_count < LONGEST ? l->step.passes.pass_count : LONGEST;
    printf("\nmost time to gain first\n%8s %9s %8s %8s %8s  %-16s %s\n", "ms", "floor ms", "MB",
           "GB/s", l->prefix == 'T' ? "TFLOP/s" : "GFLOP/s", "pass", "layer");
    for (int i = 0; i < shown; i++) {
        const ls_pass *pass = &l->step.passes.pass[i];
        printf("%8.4f %9.4f %8.1f %8.0f %8.1f  %-16s %s\n", pass->ms,
               floor_ms_of(pass, &l->step.floors), pass->bytes * 1e-6,
               pass->bytes / pass->ms * 1e-6, pass->flops / pass->ms * 1e3 / l->unit,
               pass_name(pass), pass->name);
    }
}

int ls_layers_main(int count, char **argument)
{
    layers l = {0};
    LS_TRY(parse(&l.request, count, argument));
    if (l.request.predict != NULL) {
        return (int)ls_layers_predict(&l.request);
    }
    l.unit = l.request.cpu ? 1e9 : 1e12;
    l.prefix = l.request.cpu ? 'G' : 'T';
    l.digits = l.request.cpu ? 1 : 0;
    LS_TRY(measure(&l.request, &l.step));
    printf("%s, %d pixels, batch %d, %s on %s\n%s\n", l.request.arch, l.request.image_size,
           l.request.batch, l.request.type, l.step.device, l.step.rates);
    if (l.step.products[0] != '\0') {
        printf("%s\n", l.step.products);
    }
    printf("\n");
    ls_status status = write_table(&l);
    print_sums(&l);
    print_passes(&l);
    printf("\nengines\n%s\n", l.step.passes.engines);
    free(l.step.passes.pass);
    free(l.step.passes.engines);
    return (int)status;
}
