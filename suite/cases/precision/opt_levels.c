/* What an opt level is: the type of every tensor in the dump (numerics.md section 1), and which
 * overrides are accepted (numerics.md section 7). */
#include "suite/cases/rows.h"

#include <stdio.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/judge/dumps.h"
#include "suite/judge/judges.h"

/* Batch norm's tensors by torchvision's names: bn1, layer1.0.bn2, and the second of a downsample
 * pair. */
static bool is_norm(const char *name)
{
    return strstr(name, "bn") != NULL || strstr(name, "downsample.1.") != NULL;
}

/* What an override makes of the level: f32 or half. */
typedef struct types {
    char norm, param, next; /* 'f', 'h' */
} types;

static const char *type_name(ls_bits_type type)
{
    return type == LS_BITS_F16 ? "F16" : type == LS_BITS_BF16 ? "BF16" : "F32";
}

/* The type a tensor of the dump must have, by level and kind of tensor. */
static ls_bits_type expected(const ls_case *row, const char *kind, const char *name)
{
    const ls_spec *spec = &row->job[0];
    bool bf16 = strcmp(spec->half, "bf16") == 0 || strstr(spec->extra, "--half=bf16") != NULL;
    ls_bits_type half = bf16 ? LS_BITS_BF16 : LS_BITS_F16;
    bool norm = is_norm(name), next = strcmp(kind, "next") == 0;
    if (strcmp(kind, "param") != 0 && !next) {
        return LS_BITS_F32; /* gradients, logits, inputs, masters */
    }
    const types *changed = row->data;
    if (changed != NULL) {
        char type = next ? changed->next : changed->param;
        return (norm && changed->norm == 'f') || type == 'f' ? LS_BITS_F32 : half;
    }
    /* `next` holds masters where there are masters */
    return spec->level == 3 || (spec->level == 2 && !norm && !next) ? half : LS_BITS_F32;
}

static void judge_types(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_dumpfile *file = ls_dumps_open(job, 2, 0, out);
    if (file == NULL) {
        return;
    }
    int looked = 0;
    for (int i = 0; i < ls_dumpfile_count(file); i++) {
        const ls_dumpfile_entry *entry = ls_dumpfile_at(file, i);
        static const char *const kinds[] = {"param", "grad", "next", "master", "logits", "input"};
        char kind[32];
        ls_text_put(kind, sizeof kind, "%.*s", (int)strcspn(entry->name, "/"), entry->name);
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            if (strcmp(kind, kinds[k]) != 0) {
                continue;
            }
            looked++;
            const char *want = type_name(expected(row, kind, entry->name));
            if (strcmp(entry->dtype, want) == 0) {
                continue;
            }
            if (out->code == LS_PASS) {
                ls_verdict_cause(out, "%s",
                                 is_norm(entry->name) ? "batch norm is not in the level's type"
                                 : strcmp(kind, "next") == 0
                                     ? "the step leaves half values: there are no "
                                       "masters"
                                     : "a cast is missing, or one too many");
            }
            ls_verdict_fail(out, "%s is %s, expected %s at O%d", entry->name, entry->dtype, want,
                            row->job[0].level);
        }
    }
    ls_dumpfile_close(file);
    if (looked == 0) {
        ls_verdict_fail(out, "the dump holds no tensor that was asked for");
    }
    ls_verdict_pass(out, "%d tensors have the level's types", looked);
}

/* Two ways of asking for the same: the same bits after every step. */
static void judge_equal(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const unsigned *mask = row->data;
    int compared = ls_judge_runs(&job[0], &job[1], 0, *mask, out);
    ls_verdict_pass(out, "%d digests are equal", compared);
}

/* Of two runs at O0 with different scales the scaler's own digest differs. */
static const unsigned all = LS_JUDGE_EVERYTHING,
                      unscaled = LS_JUDGE_EVERYTHING & ~(1u << LS_RECORD_SCALER);

#define TYPES "resnet8 dump=1,2 "
#define EQUAL "resnet8 steps=3 scale= "

static const ls_row rows[] = {
    {"opt_levels.types.o[0|1|2|3]", "O1", judge_types, "O$1 w2 b0.1 dump=1,2"},
    {"opt_levels.types.o2.keep-bn-false", "O1", judge_types, TYPES "O2 --keep-batchnorm-fp32=False",
     &(const types){'h', 'h', 'f'}},
    {"opt_levels.types.o2.masters-false", "O1", judge_types, TYPES "O2 --master-weights=False",
     &(const types){'f', 'h', 'h'}},
    {"opt_levels.types.o3.keep-bn-true", "O1", judge_types, TYPES "O3 --keep-batchnorm-fp32=True",
     &(const types){'f', 'h', 'h'}},
    {"opt_levels.types.o3.masters-true", "O1", judge_types, TYPES "O3 --master-weights=True",
     &(const types){'h', 'h', 'f'}},
    {"opt_levels.types.o3.all", "O1", judge_types,
     TYPES "O3 --keep-batchnorm-fp32=True --master-weights=True", &(const types){'f', 'h', 'f'}},
    {"opt_levels.types.o0.all", "O1", judge_types,
     TYPES "O0 --keep-batchnorm-fp32=False --master-weights=True", &(const types){'f', 'f', 'f'}},
    {"opt_levels.types.o1.bf16", "O1", judge_types, TYPES "O1 --half=bf16",
     &(const types){'f', 'f', 'f'}},
    {"opt_levels.types.o2.bf16", "O1", judge_types, TYPES "O2 --half=bf16",
     &(const types){'f', 'h', 'f'}},
    {"opt_levels.types.o3.bf16", "O1", judge_types, TYPES "O3 --half=bf16",
     &(const types){'h', 'h', 'h'}},
    {"opt_levels.equal.o2.explicit", "O3", judge_equal,
     EQUAL "O2 --loss-scale=1024 | " EQUAL "O2 --master-weights=True --loss-scale=1024.0 "
           "--keep-batchnorm-fp32=True --half=fp16",
     &all},
    {"opt_levels.equal.o3.masters", "O3", judge_equal,
     EQUAL "O3 --loss-scale=128 --master-weights=True | " EQUAL
           "O2 --loss-scale=128 --keep-batchnorm-fp32=False",
     &all},
    {"opt_levels.equal.o2.lowered", "O3", judge_equal,
     EQUAL "O2 --loss-scale=128 --master-weights=False | " EQUAL
           "O3 --loss-scale=128 --keep-batchnorm-fp32=True",
     &all},
    {"opt_levels.equal.o0.dynamic", "O3", judge_equal,
     EQUAL "--loss-scale=dynamic | " EQUAL "--loss-scale=1", &unscaled},
    {"opt_levels.equal.o0.small", "O3", judge_equal,
     EQUAL "--loss-scale=0.0009765625 | " EQUAL "--loss-scale=1", &unscaled},
};

void ls_opt_levels_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
