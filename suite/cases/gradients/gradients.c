/* Gradients against the FP64 oracle on the subject's own branches (numerics.md section 4), at every
 * level, bucket size, world and node count: in micro-batch form (local batch norm) and in SyncBN
 * form. */
#include "suite/cases/rows.h"

#include <string.h>

#include "harness/machine/machine.h"
#include "kernels/core/text.h"
#include "suite/judge/judges.h"

/* resnet20 has 1.1 MB of f32 gradients: these caps make about 50, 11 and 3 buckets of them (half
 * levels: half as many), as 1, 5 and 25 MB do with the larger networks. */
static const double cap_mb[] = {0.02, 0.1, 0.5, LS_BUCKET_DELAYED};
enum { CAPS = sizeof cap_mb / sizeof *cap_mb };

static void add_grid(const ls_case_settings *settings, ls_case_list *list, bool sync_bn)
{
    const char *form = sync_bn ? ".sync" : "";
    const char *requirement = sync_bn ? "G2" : "G1";
    for (int level = 0; level < 4; level++) {
        for (int world = sync_bn ? 2 : 1; world <= 4; world++) {
            for (int b = 0; b < CAPS; b++) {
                if ((world == 1 && b != 1) || (sync_bn && b != 1 && b != 3)) {
                    continue; /* nothing to bucket; SyncBN does not know of buckets */
                }
                char bucket[24];
                ls_rows_bucket_id(cap_mb[b], bucket);
                ls_case *row = ls_rows_add(list, ls_judge_gradients, requirement,
                                           "gradients%s.o%d.w%d%s", form, level, world, bucket);
                row->job_count = 1;
                row->job[0] = ls_rows_evidence(settings, level, world, 1, cap_mb[b]);
                row->job[0].sync_bn = sync_bn;
            }
        }
        for (int b = 1; b < CAPS; b += 2) { /* one size, and delayed */
            char bucket[24];
            ls_rows_bucket_id(cap_mb[b], bucket);
            ls_case *row = ls_rows_add(list, ls_judge_gradients, requirement,
                                       "gradients%s.o%d.w4.n2%s", form, level, bucket);
            row->job_count = 1;
            row->job[0] = ls_rows_evidence(settings, level, 4, 2, cap_mb[b]);
            row->job[0].sync_bn = sync_bn;
        }
    }
}

/* One variation each, at three ranks where the order of a sum shows. */
static const struct variant {
    const char *name, *dialect, *half, *extra;
    int level, accumulate;
} variant[] = {
    {"torch.o0", "torch", "fp16", "", 0, 1},
    {"torch.o1", "torch", "fp16", "", 1, 1},
    {"torch.o2", "torch", "fp16", "", 2, 1},
    {"bf16.o1", "apex", "bf16", "", 1, 1},
    {"bf16.o2", "apex", "bf16", "", 2, 1},
    {"bf16.o3", "apex", "bf16", "", 3, 1},
    {"accumulate.o0", "apex", "fp16", "", 0, 2}, /* not the number of ranks: causes differ */
    {"accumulate.o2", "apex", "fp16", "", 2, 2},
    {"predivide.o2", "apex", "fp16", "--predivide=4", 2, 1},
    {"reduce-f32.o2", "apex", "fp16", "--allreduce-fp32", 2, 1},
    {"compress.o0", "apex", "fp16", "--compress=fp16", 0, 1},
    {"nesterov.o2", "apex", "fp16", "--nesterov", 2, 1},
    /* another scale at every step: what is unscaled by an older one is off by 2 */
    {"scales.o1", "apex", "fp16", "--init-scale=64 --growth-interval=1", 1, 1},
    {"scales.o2", "apex", "fp16", "--init-scale=64 --growth-interval=1", 2, 1},
};

static void add_variants(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof variant / sizeof *variant; i++) {
        const struct variant *v = &variant[i];
        ls_case *row = ls_rows_add(list, ls_judge_gradients, "G3", "gradients.%s.w3", v->name);
        row->job_count = 1;
        ls_spec *spec = &row->job[0];
        *spec = ls_rows_evidence(settings, v->level, 3, 1,
                                 strcmp(v->dialect, "torch") == 0 ? LS_BUCKET_OWN : 0.1);
        ls_text_put(spec->dialect, sizeof spec->dialect, "%s", v->dialect);
        ls_text_put(spec->half, sizeof spec->half, "%s", v->half);
        ls_text_put(spec->extra, sizeof spec->extra, "%s", v->extra);
        spec->accumulate = v->accumulate;
        if (strstr(v->extra, "--init-scale") != NULL) {
            ls_text_put(spec->loss_scale, sizeof spec->loss_scale, "dynamic");
        }
        spec->deterministic = false; /* so that buckets are rebuilt after the first step */
    }
}

/* Bucket sizes as users name them need a network of that size: resnet18 has 44.7 MB of f32
 * gradients. */
static const struct large {
    int level;
    double bucket_mb;
} large[] = {{0, 1}, {1, 5}, {2, 1}, {2, 5}, {2, 25}, {2, LS_BUCKET_DELAYED}, {3, 25}};

static void add_large(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        char bucket[24];
        ls_rows_bucket_id(large[i].bucket_mb, bucket);
        ls_case *row = ls_rows_add(list, ls_judge_gradients, "G1", "gradients.resnet18.o%d.w2%s",
                                   large[i].level, bucket);
        row->job_count = 1;
        ls_spec *spec = &row->job[0];
        *spec = ls_rows_evidence(settings, large[i].level, 2, 1, large[i].bucket_mb);
        ls_text_put(spec->arch, sizeof spec->arch, "resnet18");
        spec->image_size = 64; /* 2x2 pixels at the end: 32 values per channel with 8 images */
        spec->batch_size = 8;
        ls_text_put(spec->dump_steps, sizeof spec->dump_steps, "2");
    }
}

/* Another number of classes than everywhere else: odd, no multiple of a vector. */
static void add_classes(const ls_case_settings *settings, ls_case_list *list)
{
    for (int level = 0; level <= 2; level += 2) {
        ls_case *row =
            ls_rows_add(list, ls_judge_gradients, "G1", "gradients.classes.o%d.w2", level);
        row->job_count = 1;
        row->job[0] = ls_rows_evidence(settings, level, 2, 1, 0.1);
        ls_text_put(row->job[0].arch, sizeof row->job[0].arch, "resnet8");
        ls_text_put(row->job[0].extra, sizeof row->job[0].extra, "--num-classes=37");
    }
}

/* The shape that is timed, with a batch that FP64 takes seconds for on a GPU (rung 2 of numerics.md
 * section 5); a CPU would take an hour. */
static void add_timed_shape(const ls_case_settings *settings, ls_case_list *list)
{
    bool gpu = settings->device != NULL && strcmp(settings->device, "cuda") == 0;
    for (int level = 0; level < 4 && gpu && !ls_machine_emulated(); level++) {
        ls_case *row =
            ls_rows_add(list, ls_judge_gradients, "G1", "gradients.o%d.timed-shape", level);
        row->job_count = 1;
        ls_spec *spec = &row->job[0];
        *spec = ls_rows_evidence(settings, level, 1, 1, LS_BUCKET_OWN);
        ls_text_put(spec->arch, sizeof spec->arch, "resnet50");
        spec->image_size = 224;
        spec->batch_size = 8;
        spec->steps = 1;
        ls_text_put(spec->dump_steps, sizeof spec->dump_steps, "1");
    }
}

/* Shared statistics where a shortcut has a norm of its own. */
static void add_projected(const ls_case_settings *settings, ls_case_list *list)
{
    ls_case *row =
        ls_rows_add(list, ls_judge_gradients, "G2", "gradients.sync.resnet18.o0.w2.b5mb");
    row->job_count = 1;
    ls_spec *spec = &row->job[0];
    *spec = ls_rows_evidence(settings, 0, 2, 1, 5);
    ls_text_put(spec->arch, sizeof spec->arch, "resnet18");
    spec->sync_bn = true;
    spec->image_size = 32; /* 1 pixel at the end: 32 values per channel with 2 x 16 images */
    spec->batch_size = 16;
    ls_text_put(spec->dump_steps, sizeof spec->dump_steps, "1");
}

/* Each rank its own batch. resnet20 at 16 pixels ends in planes of 4x4: local statistics need two
 * images for the 32 values per channel that rounding's bounds assume, shared ones have more. Sizes
 * far apart, so that ranks and images weigh unlike. */
static const struct uneven {
    const char *batches;
    int world;
    bool sync_bn;
} uneven[] = {{"7,2", 2, false}, {"2,6,3", 3, false}, {"1,6", 2, true}, {"5,1,3", 3, true}};

static void add_uneven(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof uneven / sizeof *uneven; i++) {
        const struct uneven *u = &uneven[i];
        for (int level = 0; level <= 2; level += 2) {
            ls_case *row = ls_rows_add(list, ls_judge_gradients, "G8", "gradients.%s.o%d.w%d",
                                       u->sync_bn ? "uneven-sync" : "uneven", level, u->world);
            row->job_count = 1;
            row->job[0] = ls_rows_evidence(settings, level, u->world, 1, 0.1);
            row->job[0].sync_bn = u->sync_bn;
            ls_text_put(row->job[0].extra, sizeof row->job[0].extra, "--batch-sizes=%s",
                        u->batches);
        }
    }
}

void ls_gradients_cases(const ls_case_settings *settings, ls_case_list *list)
{
    add_grid(settings, list, false);
    add_grid(settings, list, true);
    add_variants(settings, list);
    add_large(settings, list);
    add_classes(settings, list);
    add_timed_shape(settings, list);
    add_projected(settings, list);
    add_uneven(settings, list);
}
