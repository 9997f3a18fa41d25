#include "commands.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/cuda/bound.h"
#include "reference/model/model.h"
#include "suite/run/command_line.h"
#include "layers_parts.h"

enum { LONGEST = 20 };

typedef struct layers {
    ls_layers_request request;
    ls_cuda_rates_measured rates;
    ls_cuda_bound_measured bound;
    ls_layers_rates floors; /* of products of this type */
} layers;

static ls_status parse(ls_layers_request *l, int count, char **argument)
{
    const char *image_size = "224", *batch = "256", *device = NULL, *repeats = NULL,
               *copy_mb = NULL, *side = NULL;
    *l = (ls_layers_request){.arch = "resnet50", .type = "f16"};
    const ls_command_option options[] = {
        {"--arch", &l->arch, NULL, NULL, "network (resnet50)"},
        {"--image-size", &image_size, NULL, NULL, "pixels (224)"},
        {"--batch", &batch, NULL, NULL, "images (256)"},
        {"--type", &l->type, NULL, NULL, "type of the activations: f16, bf16, f32 or tf32 (f16)"},
        {"--device-index", &device, NULL, NULL, "CUDA's index of the GPU (0)"},
        {"--repeats", &repeats, NULL, NULL,
         "timed repetitions, 1 to 64, of which the median counts (10)"},
        {"--copy-mb", &copy_mb, NULL, NULL, "size of the copies for the rate (2048)"},
        {"--side", &side, NULL, NULL, "side of the square matrices for the rate (8192)"},
        {"--out", &l->out, NULL, NULL, "file to write the table of all passes to"},
        {"--cudnn-benchmark", NULL, &l->benchmark, NULL, "time the engines and take the fastest"},
        {"--predict", &l->predict, NULL, NULL,
         "predict the step on this device (H200, H100, A100) instead of measuring it"},
        {"--fuse", NULL, &l->fuse, NULL,
         "f16: convolutions also compute the statistics of the norm behind them, as in training"},
        {"--all", NULL, &l->all, NULL,
         "print every pass, not only those with the most time to gain"},
    };
    LS_TRY(ls_command_parse("layers", options, sizeof options / sizeof *options, &count, argument));
    LS_TRY(ls_command_no_operands("layers", count, argument, "use --arch NETWORK"));
    bool measures = device || repeats || copy_mb || side || l->benchmark || l->fuse || l->all;
    if (l->predict != NULL && measures) {
        return ls_log_fail(LS_ERR_USAGE,
                           "--predict measures nothing: not with --device-index, --repeats, "
                           "--copy-mb, --side, --cudnn-benchmark, --fuse or --all");
    }
    const struct {
        const char *name, *text;
        int least, most;
        int *value;
    } numbers[] = {{"--image-size", image_size, 1, 4096, &l->image_size},
                   {"--batch", batch, 1, 65536, &l->batch},
                   {"--device-index", device ? device : "0", 0, 1023, &l->device},
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
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(l->type, types[i]) == 0) {
            return LS_OK;
        }
    }
    return ls_log_fail(LS_ERR_USAGE, "--type '%s': allowed: f16, bf16, f32, tf32", l->type);
}

static ls_status measure(layers *l)
{
    ls_cuda_rates_fn *rates = NULL;
    ls_cuda_bound_fn *bound = NULL;
    ls_network network;
    bool tf32 = strcmp(l->request.type, "tf32") == 0, f16 = strcmp(l->request.type, "f16") == 0;
    bool bf16 = strcmp(l->request.type, "bf16") == 0;
    const ls_cuda_rates_options options = {.device = l->request.device,
                                           .copy_bytes = (int64_t)l->request.copy_mb << 20,
                                           .side = l->request.side,
                                           .repeats = l->request.repeats};
    const ls_plan_options plan = {.batch = l->request.batch,
                                  .height = l->request.image_size,
                                  .width = l->request.image_size,
                                  .benchmark = l->request.benchmark,
                                  .fuse = l->request.fuse,
                                  .activation = f16    ? LS_F16
                                                : bf16 ? LS_BF16
                                                       : LS_F32};
    const ls_cuda_bound_options how = {
        .device = l->request.device, .tf32 = tf32, .repeats = l->request.repeats, .passes = true};
    LS_TRY(ls_model_build(l->request.arch, LS_LAYERS_CLASSES, l->request.image_size, &network));
    ls_status status = LS_OK;
    LS_TRY_GOTO(status, ls_load_symbol("cuda", LS_CUDA_RATES_ENTRY, &rates), free_network);
    LS_TRY_GOTO(status, ls_load_symbol("cuda", LS_CUDA_BOUND_ENTRY, &bound), free_network);
    LS_TRY_GOTO(status, rates(&options, &l->rates), free_network);
    LS_TRY_GOTO(status, bound(&network, &plan, &how, &l->bound), free_network);
    l->floors.copy_bytes_per_s = l->rates.copy_bytes_per_s;
    l->floors.flop_per_s = f16    ? l->rates.f16_flop_per_s
                           : bf16 ? l->rates.bf16_flop_per_s
                           : tf32 ? l->rates.tf32_flop_per_s
                                  : l->rates.f32_flop_per_s;
free_network:
    ls_model_free(&network);
    return status;
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
            "operations at %.1f TFLOP/s\n"
            "# columns: 1 order  2 ms  3 floor_ms  4 mb  5 gflop  6 gb_per_s  7 pass  8 layer\n",
            l->request.arch, l->request.image_size, l->request.batch, l->request.type,
            l->rates.device, l->rates.copy_bytes_per_s * 1e-9, l->floors.flop_per_s * 1e-12);
    for (int i = 0; i < l->bound.pass_count; i++) {
        const ls_cuda_pass *pass = &l->bound.pass[i];
        fprintf(table, "%d\t%.5f\t%.5f\t%.4f\t%.4f\t%.1f\t\"%s\"\t\"%s\"\n", i, pass->ms,
                ls_layers_floor_ms(pass, &l->floors), pass->bytes * 1e-6, pass->flops * 1e-9,
                pass->bytes / pass->ms * 1e-6, ls_layers_pass_name(pass), pass->name);
    }
    return ls_file_close(table, l->request.out);
}

static void print_sums(const layers *l)
{
    ls_layers_sum sums[LS_LAYERS_KINDS], all = {0};
    double batch = l->request.batch;
    ls_layers_sums(&l->bound, &l->floors, sums);
    printf("%-18s %4s %9s %9s %7s %9s %8s\n", "", "pass", "ms", "floor ms", "share", "MB/image",
           "GB/s");
    for (int k = 0; k < LS_LAYERS_KINDS; k++) {
        const ls_layers_sum *sum = &sums[k];
        printf("%-18s %4d %9.3f %9.3f %6.0f%% %9.1f %8.0f\n", ls_layers_kind_name(k), sum->passes,
               sum->ms, sum->floor_ms, 100 * sum->floor_ms / sum->ms, sum->bytes * 1e-6 / batch,
               sum->bytes / sum->ms * 1e-6);
        all.passes += sum->passes;
        all.ms += sum->ms;
        all.floor_ms += sum->floor_ms;
        all.bytes += sum->bytes;
    }
    printf("%-18s %4d %9.3f %9.3f %6.0f%% %9.1f\n", "sum", all.passes, all.ms, all.floor_ms,
           100 * all.floor_ms / all.ms, all.bytes * 1e-6 / batch);
    double whole = l->bound.forward_ms + l->bound.backward_ms;
    printf("forward %.3f ms, backward %.3f ms: %.0f images/s without optimizer and data; floor "
           "%.0f; convolutions alone %.3f ms: %.0f\n",
           l->bound.forward_ms, l->bound.backward_ms, batch * 1e3 / whole,
           batch * 1e3 / all.floor_ms, l->bound.convolutions_ms,
           batch * 1e3 / l->bound.convolutions_ms);
}

static void print_passes(layers *l)
{
    ls_layers_sort(&l->bound, &l->floors);
    int shown = l->request.all || l->bound.pass_count < LONGEST ? l->bound.pass_count : LONGEST;
    printf("\nmost time to gain first\n%8s %9s %8s %8s %8s  %-16s %s\n", "ms", "floor ms", "MB",
           "GB/s", "TFLOP/s", "pass", "layer");
    for (int i = 0; i < shown; i++) {
        const ls_cuda_pass *pass = &l->bound.pass[i];
        printf("%8.4f %9.4f %8.1f %8.0f %8.1f  %-16s %s\n", pass->ms,
               ls_layers_floor_ms(pass, &l->floors), pass->bytes * 1e-6,
               pass->bytes / pass->ms * 1e-6, pass->flops / pass->ms * 1e-9,
               ls_layers_pass_name(pass), pass->name);
    }
}

int ls_layers_main(int count, char **argument)
{
    layers l = {0};
    LS_TRY(parse(&l.request, count, argument));
    if (l.request.predict != NULL) {
        return (int)ls_layers_predict(&l.request);
    }
    LS_TRY(measure(&l));
    const ls_cuda_rates_measured *r = &l.rates;
    printf("%s, %d pixels, batch %d, %s on %s\n", l.request.arch, l.request.image_size,
           l.request.batch, l.request.type, r->device);
    printf("copies %.0f GB/s (%.0f %% of its memory's %.0f); products f32 %.1f, tf32 %.1f, f16 "
           "%.1f, bf16 %.1f TFLOP/s (its own: f32 %.0f, f16 %.0f)\n\n",
           r->copy_bytes_per_s * 1e-9, 100 * r->copy_bytes_per_s / r->memory_bytes_per_s,
           r->memory_bytes_per_s * 1e-9, r->f32_flop_per_s * 1e-12, r->tf32_flop_per_s * 1e-12,
           r->f16_flop_per_s * 1e-12, r->bf16_flop_per_s * 1e-12, r->f32_device_flop_per_s * 1e-12,
           r->f16_device_flop_per_s * 1e-12);
    ls_status status = write_table(&l);
    print_sums(&l);
    print_passes(&l);
    printf("\nengines\n%s\n", l.bound.engines);
    free(l.bound.pass);
    free(l.bound.engines);
    return (int)status;
}
