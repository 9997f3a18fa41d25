/* What an opt level is: the type of every tensor in the dump (numerics.md section 1), and which
 * overrides are accepted (facts/apex.md 1.2). */
#include "../suite.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../../harness/text.h"
#include "../../reference/safetensors.h"

/* Batch norm's tensors by torchvision's names: bn1, layer1.0.bn2, and the second of a downsample
 * pair. */
static bool is_norm(const char *name)
{
    return strstr(name, "bn") != NULL || strstr(name, "downsample.1.") != NULL;
}

static ls_dtype half_type(const ls_spec *spec)
{
    return strcmp(spec->half, "bf16") == 0 ? LS_BF16 : LS_F16;
}

/* The type a tensor of the dump must have, by level and kind of tensor. */
static ls_dtype expected(const ls_spec *spec, const char *kind, const char *name)
{
    if (strcmp(kind, "grad") == 0 || strcmp(kind, "logits") == 0 || strcmp(kind, "input") == 0 ||
        strcmp(kind, "master") == 0) {
        return LS_F32;
    }
    bool half = spec->level == 3 || (spec->level == 2 && !is_norm(name));
    if (strcmp(kind, "next") == 0 && spec->level == 2) {
        half = false; /* masters */
    }
    return half ? half_type(spec) : LS_F32;
}

static void judge_types(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    char path[700];
    ls_text_put(path, sizeof path, "%s/dump/step000002.rank0.safetensors", job->directory);
    ls_safetensors *file;
    if (ls_safetensors_open(path, &file) != LS_OK) {
        ls_verdict_set(out, LS_FAIL, "the dump of step 2 is missing or broken");
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
            ls_dtype want = expected(&row->job[0], kind, entry->name);
            if (entry->dtype != want) {
                ls_verdict_set(out, LS_FAIL, "%s is %s, expected %s at O%d", entry->name,
                               ls_dtype_name(entry->dtype), ls_dtype_name(want), row->job[0].level);
            }
        }
    }
    ls_safetensors_close(file);
    if (looked == 0) {
        ls_verdict_set(out, LS_FAIL, "the dump holds no tensor that was asked for");
    }
    if (out->code == LS_PASS) {
        ls_text_put(out->evidence, sizeof out->evidence, "%d tensors have the level's types",
                    looked);
    }
}

/* Accepted (0) or refused as a usage error (2), with nothing written. */
static const struct override {
    const char *name;
    int level; /* -1: the options name it */
    const char *options;
    int code;
} override[] = {
    {"o1.keep-bn-true", 1, "--keep-batchnorm-fp32=True", 2},
    {"o1.keep-bn-false", 1, "--keep-batchnorm-fp32=False", 2},
    {"o1.masters-true", 1, "--master-weights=True", 2},
    {"o1.masters-false", 1, "--master-weights=False", 2},
    {"o0.keep-bn-true", 0, "--keep-batchnorm-fp32=True", 0},
    {"o0.masters-true", 0, "--master-weights=True", 0},
    {"o2.keep-bn-false", 2, "--keep-batchnorm-fp32=False", 0},
    {"o2.masters-false", 2, "--master-weights=False", 0},
    {"o3.keep-bn-true", 3, "--keep-batchnorm-fp32=True", 0},
    {"o3.masters-true", 3, "--master-weights=True", 0},
    {"o2.keep-bn-lower", 2, "--keep-batchnorm-fp32=false", 2},
    {"o2.keep-bn-none", 2, "--keep-batchnorm-fp32=None", 2},
    {"o0.scale-dynamic", 0, "--loss-scale=dynamic", 0},
    {"o2.scale-text-number", 2, "--loss-scale=128.0", 0},
    {"o2.scale-word", 2, "--loss-scale=abc", 2},
    {"o2.scale-zero", 2, "--loss-scale=0", 2},
    {"o2.scale-negative", 2, "--loss-scale=-128", 2},
    {"o2.scale-inf", 2, "--loss-scale=inf", 2},
    {"level.zero-one", -1, "--opt-level=01", 2},
    {"level.o4", -1, "--opt-level=O4", 2},
    {"arch.unknown", 0, "--arch=resnet19", 2},
    {"batch.zero", 0, "--batch-size=0", 2},
    {"data.missing", 0, "--data=/nonexistent/images", 2},
};

static void judge_override(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int want = override[row->number[0]].code;
    int code = job->state == LS_RECORD_DONE ? 0 : job->code;
    char line[240];
    ls_record_last_line(job, 0, line, (int)sizeof line);
    if (job->state == LS_RECORD_KILLED || job->state == LS_RECORD_TIMED_OUT || code != want) {
        ls_verdict_set(out, LS_FAIL, "%s at O%d: exit code %d, expected %d: %s", row->text,
                       row->job[0].level, code, want, line);
        return;
    }
    if (want != 0 && job->rank[0].has_events) {
        ls_verdict_set(out, LS_FAIL, "%s was refused, but rank0.jsonl was written", row->text);
    }
    if (want != 0 && line[0] == '\0') {
        ls_verdict_set(out, LS_FAIL, "%s was refused without a message", row->text);
    }
    if (out->code == LS_PASS) {
        ls_text_put(out->evidence, sizeof out->evidence, "%s: %s", row->text,
                    want == 0 ? "accepted" : line);
    }
}

void ls_opt_levels_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (int level = 0; level < 4; level++) {
        ls_case *row = ls_rows_add(list, judge_types, "O1", "opt_levels.types.o%d", level);
        row->job_count = 1;
        row->job[0] = ls_rows_evidence(settings, level, 2, 1, 0.1);
    }
    for (size_t i = 0; i < sizeof override / sizeof *override; i++) {
        ls_case *row =
            ls_rows_add(list, judge_override, "O2", "opt_levels.override.%s", override[i].name);
        row->job_count = 1;
        row->judges_outcome = true;
        row->number[0] = (int)i;
        ls_text_put(row->text, sizeof row->text, "%s", override[i].options);
        ls_spec *spec = &row->job[0];
        *spec = ls_rows_evidence(settings, override[i].level, 1, 1, LS_BUCKET_OWN);
        ls_text_put(spec->arch, sizeof spec->arch, "resnet8");
        spec->dump_steps[0] = spec->loss_scale[0] = '\0';
        spec->steps = 1;
        ls_text_put(spec->extra, sizeof spec->extra, "%s", override[i].options);
    }
}
