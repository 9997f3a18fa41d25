/* What an opt level is: the type of every tensor in the dump (numerics.md section 1), and which
 * overrides are accepted (numerics.md section 7). */
#include "suite/cases/rows.h"

#include <stdio.h>
#include <string.h>

#include "kernels/core/text.h"
#include "reference/files/safetensors.h"
#include "opt_levels.h"

/* Batch norm's tensors by torchvision's names: bn1, layer1.0.bn2, and the second of a downsample
 * pair. */
static bool is_norm(const char *name)
{
    return strstr(name, "bn") != NULL || strstr(name, "downsample.1.") != NULL;
}

/* What an override makes of the level. */
static const struct {
    const char *name, *options;
    int level;
    char norm, param, next; /* f32: 'f', half: 'h' */
} changed[] = {
    {"o2.keep-bn-false", "--keep-batchnorm-fp32=False", 2, 'h', 'h', 'f'},
    {"o2.masters-false", "--master-weights=False", 2, 'f', 'h', 'h'},
    {"o3.keep-bn-true", "--keep-batchnorm-fp32=True", 3, 'f', 'h', 'h'},
    {"o3.masters-true", "--master-weights=True", 3, 'h', 'h', 'f'},
    {"o3.all", "--keep-batchnorm-fp32=True --master-weights=True", 3, 'f', 'h', 'f'},
    {"o0.all", "--keep-batchnorm-fp32=False --master-weights=True", 0, 'f', 'f', 'f'},
    {"o1.bf16", "--half=bf16", 1, 'f', 'f', 'f'},
    {"o2.bf16", "--half=bf16", 2, 'f', 'h', 'f'},
    {"o3.bf16", "--half=bf16", 3, 'h', 'h', 'h'},
};

enum { CHANGED = sizeof changed / sizeof *changed };

/* The type a tensor of the dump must have, by level and kind of tensor. */
static ls_dtype expected(const ls_case *row, const char *kind, const char *name)
{
    const ls_spec *spec = &row->job[0];
    bool bf16 = strcmp(spec->half, "bf16") == 0 || strstr(spec->extra, "--half=bf16") != NULL;
    ls_dtype half = bf16 ? LS_BF16 : LS_F16;
    bool norm = is_norm(name), next = strcmp(kind, "next") == 0;
    if (strcmp(kind, "param") != 0 && !next) {
        return LS_F32; /* gradients, logits, inputs, masters */
    }
    if (row->number[0] > 0) {
        char norm_type = changed[row->number[0] - 1].norm;
        char type = next ? changed[row->number[0] - 1].next : changed[row->number[0] - 1].param;
        return (norm && norm_type == 'f') || type == 'f' ? LS_F32 : half;
    }
    /* `next` holds masters where there are masters */
    return spec->level == 3 || (spec->level == 2 && !norm && !next) ? half : LS_F32;
}

static void judge_types(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    char path[700];
    ls_text_put(path, sizeof path, "%s/dump/step000002.rank0.safetensors", job->directory);
    ls_safetensors *file;
    if (ls_safetensors_open(path, &file) != LS_OK) {
        ls_verdict_fail(out, "the dump of step 2 is missing or broken");
        return;
    }
    int looked = 0;
    for (int i = 0; i < ls_safetensors_count(file); i++) {
        const ls_safetensors_entry *entry = ls_safetensors_at(file, i);
        static const char *const kinds[] = {"param", "grad", "next", "master", "logits", "input"};
        char kind[32];
        ls_text_put(kind, sizeof kind, "%.*s", (int)strcspn(entry->name, "/"), entry->name);
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            if (strcmp(kind, kinds[k]) != 0) {
                continue;
            }
            looked++;
            ls_dtype want = expected(row, kind, entry->name);
            if (entry->dtype != want && out->code == LS_PASS) {
                ls_verdict_cause(out, "%s",
                                 is_norm(entry->name) ? "batch norm is not in the level's type"
                                 : strcmp(kind, "next") == 0
                                     ? "the step leaves half values: there are no "
                                       "masters"
                                     : "a cast is missing, or one too many");
            }
            if (entry->dtype != want) {
                ls_verdict_fail(out, "%s is %s, expected %s at O%d", entry->name,
                                ls_dtype_name(entry->dtype), ls_dtype_name(want),
                                row->job[0].level);
            }
        }
    }
    ls_safetensors_close(file);
    if (looked == 0) {
        ls_verdict_fail(out, "the dump holds no tensor that was asked for");
    }
    ls_verdict_pass(out, "%d tensors have the level's types", looked);
}

/* Two ways of saying the same: the same bits after every step. */
static const struct {
    const char *name;
    int level[2];
    const char *options[2];
    bool scaler; /* its digest too */
} equal[] = {
    {"o2.explicit",
     {2, 2},
     {"--loss-scale=1024",
      "--master-weights=True --loss-scale=1024.0 --keep-batchnorm-fp32=True --half=fp16"},
     true},
    {"o3.masters",
     {3, 2},
     {"--loss-scale=128 --master-weights=True", "--loss-scale=128 --keep-batchnorm-fp32=False"},
     true},
    {"o2.lowered",
     {2, 3},
     {"--loss-scale=128 --master-weights=False", "--loss-scale=128 --keep-batchnorm-fp32=True"},
     true},
    {"o0.dynamic", {0, 0}, {"--loss-scale=dynamic", "--loss-scale=1"}, false},
    {"o0.small", {0, 0}, {"--loss-scale=0.0009765625", "--loss-scale=1"}, false},
};

static void judge_equal(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int compared = 0;
    for (int64_t step = 1; step <= row->job[0].steps; step++) {
        const ls_record_step *one = ls_record_find_step(&job[0].rank[0], step);
        const ls_record_step *other = ls_record_find_step(&job[1].rank[0], step);
        if (one == NULL || other == NULL) {
            ls_verdict_fail(out, "step %d has no event", (int)step);
            return;
        }
        for (int d = 0; d < LS_RECORD_DIGESTS; d++) {
            bool both = (one->digest_mask & other->digest_mask & 1u << d) != 0;
            if (!both || (d == LS_RECORD_SCALER && !equal[row->number[0]].scaler)) {
                continue;
            }
            compared++;
            if (strcmp(one->digest[d], other->digest[d]) != 0) {
                ls_verdict_fail(out, "step %d: %s differs (%s, %s)", (int)step,
                                ls_record_digest_name((ls_record_digest)d), one->digest[d],
                                other->digest[d]);
            }
        }
    }
    if (compared == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "no step has digests");
    }
    ls_verdict_pass(out, "%d digests are equal", compared);
}

void ls_opt_levels_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (int level = 0; level < 4; level++) {
        ls_case *row = ls_rows_add(list, judge_types, "O1", "opt_levels.types.o%d", level);
        row->job_count = 1;
        row->job[0] = ls_rows_evidence(settings, level, 2, 1, 0.1);
    }
    for (int i = 0; i < CHANGED; i++) {
        ls_case *row = ls_rows_add(list, judge_types, "O1", "opt_levels.types.%s", changed[i].name);
        row->job_count = 1;
        row->number[0] = i + 1;
        ls_spec *spec = &row->job[0];
        *spec = ls_rows_evidence(settings, changed[i].level, 1, 1, LS_BUCKET_OWN);
        ls_text_put(spec->arch, sizeof spec->arch, "resnet8");
        ls_text_put(spec->extra, sizeof spec->extra, "%s", changed[i].options);
    }
    for (size_t i = 0; i < sizeof equal / sizeof *equal; i++) {
        ls_case *row = ls_rows_add(list, judge_equal, "O3", "opt_levels.equal.%s", equal[i].name);
        row->job_count = 2;
        row->number[0] = (int)i;
        for (int j = 0; j < 2; j++) {
            ls_spec *spec = &row->job[j];
            *spec = ls_rows_evidence(settings, equal[i].level[j], 1, 1, LS_BUCKET_OWN);
            ls_text_put(spec->arch, sizeof spec->arch, "resnet8");
            spec->dump_steps[0] = spec->loss_scale[0] = '\0';
            spec->steps = 3;
            spec->threads = 1;
            spec->deterministic = true;
            ls_text_put(spec->extra, sizeof spec->extra, "%s", equal[i].options[j]);
        }
    }
    ls_opt_levels_matrix_cases(settings, list);
}
