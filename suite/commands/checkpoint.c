/* `lockstep checkpoint FILE [--to OUT]`. */
#include "commands.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/json.h"
#include "kernels/core/log.h"
#include "reference/train/checkpoint/checkpoint.h"
#include "suite/run/command_line.h"

static const char *metadata(const ls_safetensors *file, const char *name)
{
    return ls_safetensors_metadata_of(file, name, "");
}

static int64_t whole(const ls_safetensors *file, const char *name)
{
    int64_t number = -1;
    return ls_text_integer(metadata(file, name), 0, INT64_MAX, &number) ? number : -1;
}

static double scalar(const ls_safetensors *file, const char *name)
{
    const ls_safetensors_entry *entry = ls_safetensors_find(file, name);
    if (entry == NULL || entry->bytes != (int64_t)ls_dtype_bytes(entry->dtype)) {
        return NAN;
    }
    return entry->dtype == LS_F32   ? (double)*(const float *)entry->data
           : entry->dtype == LS_I32 ? (double)*(const int32_t *)entry->data
           : entry->dtype == LS_I64 ? (double)*(const int64_t *)entry->data
                                    : NAN;
}

/* ---- what it holds --------------------------------------------------------------------------- */

static void print_kind(const char *path, const ls_safetensors *file)
{
    static const char *const kinds[] = {
        [LS_CONVERT_CHECKPOINT] = "a checkpoint of lockstep-train",
        [LS_CONVERT_SCRIPT] = "saved by a script of PyTorch or Apex",
        [LS_CONVERT_WEIGHTS] = "plain weights",
        [LS_CONVERT_DUMP] = "a dump of a step",
    };
    printf("%s: %s", path, kinds[ls_convert_kind_of(file)]);
    printf(", %s\n", ls_safetensors_has_digests(file) ? "its checksums verified" : "no checksums");
}

static void print_member(const ls_safetensors *file, const char *title, const char *name)
{
    if (metadata(file, name)[0] != '\0') {
        printf("  %-12s %s\n", title, metadata(file, name));
    }
}

static void print_progress(const ls_safetensors *file)
{
    int64_t step = whole(file, "step"), epoch = whole(file, "epoch");
    int64_t length = whole(file, "steps_per_epoch"), images = whole(file, "best_images");
    if (step >= 0) {
        printf("  %-12s %lld", "step", (long long)step);
        if (length > 0) {
            printf(": %lld epochs and %lld of %lld steps", (long long)(step / length),
                   (long long)(step % length), (long long)length);
        }
        printf("\n");
    } else if (epoch >= 0) {
        printf("  %-12s %lld done\n", "epochs", (long long)epoch);
    }
    if (images > 0) {
        printf("  %-12s top-1 %.2f %% of %lld pictures after step %lld\n", "best",
               100.0 * (double)whole(file, "best_top1") / (double)images, (long long)images,
               (long long)whole(file, "best_step"));
    } else if (metadata(file, "best_percent")[0] != '\0') {
        printf("  %-12s top-1 %.2f %%\n", "best", strtod(metadata(file, "best_percent"), NULL));
    }
    double scale = scalar(file, "scaler/loss_scale");
    if (!isnan(scale)) {
        printf("  %-12s %g, %g steps without overflow", "loss scale", scale,
               scalar(file, "scaler/growth_count"));
        printf("%s%s\n", metadata(file, "scaler")[0] != '\0' ? ", " : "", metadata(file, "scaler"));
    }
}

/* "param" of "param/fc.bias", "weights" of a name without a kind. */
static void kind_of(const char *name, char kind[32])
{
    int rank = 0, used = 0;
    const char *slash = strchr(name, '/');
    if (sscanf(name, "rank%d/%n", &rank, &used) == 1 && used > 0) {
        ls_text_put(kind, 32, "rank<k>");
    } else if (slash == NULL) {
        ls_text_put(kind, 32, "weights");
    } else {
        ls_text_put(kind, 32, "%.*s", (int)(slash - name), name);
    }
}

static void print_tensors(const ls_safetensors *file)
{
    char kind[32], other[32];
    printf("  %-12s %7s %13s  %s\n", "tensors", "number", "elements", "types");
    for (int i = 0; i < ls_safetensors_count(file); i++) {
        int number = 0, before = 0;
        int64_t elements = 0;
        char types[64] = "";
        kind_of(ls_safetensors_at(file, i)->name, kind);
        for (int k = 0; k < ls_safetensors_count(file); k++) {
            const ls_safetensors_entry *entry = ls_safetensors_at(file, k);
            kind_of(entry->name, other);
            if (strcmp(kind, other) == 0) {
                const char *type = ls_dtype_name(entry->dtype);
                before += k < i;
                number++;
                elements += ls_shape_count(&entry->shape);
                if (strstr(types, type) == NULL) {
                    ls_text_add(types, sizeof types, "%s%s", types[0] != '\0' ? " " : "", type);
                }
            }
        }
        if (before == 0) {
            printf("    %-10s %7d %13lld  %s\n", kind, number, (long long)elements, types);
        }
    }
}

/* ---- what it lacks --------------------------------------------------------------------------- */

static bool has(const ls_safetensors *file, const char *prefix)
{
    for (int i = 0; i < ls_safetensors_count(file); i++) {
        if (strncmp(ls_safetensors_at(file, i)->name, prefix, strlen(prefix)) == 0) {
            return true;
        }
    }
    return false;
}

/* How many parameters the file has, and how many of them have a tensor of that kind. */
static int count_covered(const ls_safetensors *file, const char *kind, int *parameters)
{
    int covered = 0;
    *parameters = 0;
    for (int i = 0; i < ls_safetensors_count(file); i++) {
        const char *name = ls_safetensors_at(file, i)->name;
        if (strncmp(name, "param/", 6) == 0) {
            LS_TEXT(wanted, 300, "%s%s", kind, name + 6);
            ++*parameters;
            covered += has(file, wanted);
        }
    }
    return covered;
}

static int lacks(bool lacking, const char *what, const char *cost)
{
    if (lacking) {
        printf("    %-24s %s\n", what, cost);
    }
    return lacking;
}

static int print_lacking(const ls_safetensors *file)
{
    bool ours = ls_convert_kind_of(file) == LS_CONVERT_CHECKPOINT;
    bool ranks = whole(file, "world_size") > 1;
    cJSON *options = ls_json_parse(metadata(file, "options"), NULL);
    bool plain = strcmp(metadata(file, "optimizer"), "sgd") == 0 &&
                 ls_json_number(options, "momentum", 1) == 0;
    cJSON_Delete(options);
    int missing = 0, parameters, moments = count_covered(file, "state/", &parameters);
    LS_TEXT(which, 60, "moments of %d of %d", parameters - moments, parameters);
    missing +=
        lacks(!plain && (moments < parameters || parameters == 0), moments > 0 ? which : "moments",
              "the optimizer starts anew: momentum 0.9 has its size again after some 20 steps");
    missing += lacks(!ours && !has(file, "master/"), "masters",
                     "from O2 on they are made of the parameters: exact where these are f32");
    missing += lacks(!has(file, "scaler/"), "loss scale",
                     "a dynamic one starts at --init-scale: up to some 16 skipped steps");
    missing += lacks(whole(file, "step") < 0 && whole(file, "epoch") < 0, "epoch",
                     "schedule and data start at step 1");
    missing += lacks(whole(file, "step") < 0, "place in an epoch",
                     "an epoch that was begun is begun anew");
    missing += lacks(!has(file, "epoch/"), "sums of the epoch",
                     "its event and printed line are of the steps since the resume");
    missing += lacks(!ours || (ranks && !has(file, "ddp/")), "layout of buckets",
                     "with three ranks or more sums are added in another order at first");
    missing += lacks(!ours, "other ranks' statistics",
                     "all ranks go on with one running mean and variance");
    return missing;
}

static void print_resume(const ls_safetensors *file)
{
    ls_convert_kind kind = ls_convert_kind_of(file);
    if (kind == LS_CONVERT_WEIGHTS || kind == LS_CONVERT_DUMP) {
        printf("  --init starts from it; --resume needs a checkpoint\n");
        return;
    }
    printf("  it lacks for a resume that is equal bit for bit:\n");
    if (print_lacking(file) == 0) {
        printf("    nothing, with the same options and %s rank%s\n", metadata(file, "world_size"),
               whole(file, "world_size") == 1 ? "" : "s");
    }
    if (metadata(file, "unused")[0] != '\0') {
        printf("  not used: %s\n", metadata(file, "unused"));
    }
}

static int64_t count_elements(const ls_safetensors *file)
{
    int64_t count = 0;
    for (int i = 0; i < ls_safetensors_count(file); i++) {
        count += ls_shape_count(&ls_safetensors_at(file, i)->shape);
    }
    return count;
}

int ls_checkpoint_main(int count, char **argument)
{
    const char *to = NULL;
    bool plain = false;
    const ls_command_option options[] = {
        {"--to", &to, NULL, NULL, "write it to OUT.pth (torch.save) or OUT.safetensors"},
        {"--plain", NULL, &plain, NULL, "--to OUT.pth: only what PyTorch's scripts read"},
    };
    ls_safetensors *file = NULL;
    LS_TRY(ls_command_parse("checkpoint FILE", options, 2, &count, argument));
    LS_TRY(ls_pth_state_open(argument[0], &file));
    ls_status status = LS_OK;
    if (count_elements(file) == 0) {
        status = ls_log_fail(LS_ERR_USAGE, "%s: it holds no element of a tensor", argument[0]);
    } else if (plain && to == NULL) {
        status = ls_log_fail(LS_ERR_USAGE, "--plain without --to: nothing is written");
    } else if (to != NULL) {
        status = ls_convert_write(argument[0], file, to, plain);
    } else {
        print_kind(argument[0], file);
        print_member(file, "arch", "arch");
        print_member(file, "opt level", "opt_level");
        print_member(file, "half", "half");
        print_member(file, "optimizer", "optimizer");
        print_member(file, "schedule", "schedule");
        print_member(file, "ranks", "world_size");
        print_progress(file);
        print_tensors(file);
        print_resume(file);
    }
    ls_safetensors_close(file);
    return (int)status;
}
