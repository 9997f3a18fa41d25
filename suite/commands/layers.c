#include "commands.h"

#include <stdlib.h>
#include <string.h>

#include "harness/machine/machine.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "reference/state/device.h"
#include "suite/run/command_line.h"
#include "layers_internal.h"

enum { LONGEST = 20 };

typedef struct layers {
    ls_layers_request request;
    ls_layers_step step;
    double unit; /* of operations per second in what is printed: T or G */
    char prefix;
    int digits; /* of images per second, behind the point */
} layers;

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
                ls_layers_floor_ms(pass, &l->step.floors), pass->bytes * 1e-6, pass->flops * 1e-9,
                pass->bytes / pass->ms * 1e-6, ls_layers_pass_name(pass), pass->name);
    }
    return ls_file_close(table, l->request.out);
}

static void print_sums(const layers *l)
{
    ls_layers_sum sums[LS_LAYERS_KINDS], all = {0};
    double batch = l->request.batch;
    ls_layers_sums(&l->step.passes, &l->step.floors, sums);
    printf("%-18s %4s %9s %9s %7s %9s %8s\n", "", "pass", "ms", "floor ms", "share", "MB/image",
           "GB/s");
    for (int k = 0; k < LS_LAYERS_KINDS; k++) {
        const ls_layers_sum *sum = &sums[k];
        if (sum->passes == 0) {
            continue;
        }
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
    ls_layers_sort(&l->step.passes, &l->step.floors);
    int shown =
        l->request.all || l->step.passes.pass_count < LONGEST ? l->step.passes.pass_count : LONGEST;
    printf("\nmost time to gain first\n%8s %9s %8s %8s %8s  %-16s %s\n", "ms", "floor ms", "MB",
           "GB/s", l->prefix == 'T' ? "TFLOP/s" : "GFLOP/s", "pass", "layer");
    for (int i = 0; i < shown; i++) {
        const ls_pass *pass = &l->step.passes.pass[i];
        printf("%8.4f %9.4f %8.1f %8.0f %8.1f  %-16s %s\n", pass->ms,
               ls_layers_floor_ms(pass, &l->step.floors), pass->bytes * 1e-6,
               pass->bytes / pass->ms * 1e-6, pass->flops / pass->ms * 1e3 / l->unit,
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
    l.unit = l.request.cpu ? 1e9 : 1e12;
    l.prefix = l.request.cpu ? 'G' : 'T';
    l.digits = l.request.cpu ? 1 : 0;
    LS_TRY(ls_layers_measure(&l.request, &l.step));
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
