/* Gradients against the FP64 oracle on the subject's own branches (numerics.md section 4), at every
 * level, bucket size, world and node count: in micro-batch form (local batch norm) and in SyncBN
 * form. */
#include "suite/cases/rows.h"

#include <string.h>

#include "harness/machine/machine.h"
#include "suite/judge/judges.h"

/* resnet20 has 1.1 MB of f32 gradients: these caps make about 50, 11 and 3 buckets of them (half
 * levels: half as many), as 1, 5 and 25 MB do with the larger networks. */
#define BUCKETS "[b0.02mb=b0.02|b0.1mb=b0.1|b0.5mb=b0.5|delay]"
#define SOME "[b0.1mb=b0.1|delay]"
#define GRID "O$1 w$2 $3 dump=1,2"
/* One variation each, at three ranks where the order of a sum shows; buckets are rebuilt after the
 * first step. */
#define VARIED "w3 $1 dump=1,2 undetermined"
/* Bucket sizes as users name them need a network of that size: resnet18 has 44.7 MB of f32
 * gradients. 2x2 pixels at its end: 32 values per channel with 8 images. */
#define LARGE "resnet18 $1 w2 $2 image=64 batch=8 dump=2"
/* Each rank its own batch. resnet20 at 16 pixels ends in planes of 4x4: local statistics need two
 * images for the 32 values per channel that rounding's bounds assume, shared ones have more. Sizes
 * far apart, so that ranks and images weigh unlike. */
#define UNEVEN "O$1 b0.1 dump=1,2 "

static const ls_row rows[] = {
    /* one rank has nothing to bucket; SyncBN does not know of buckets */
    {"gradients.o[0|1|2|3].w[1].[b0.1mb=b0.1]", "G1", ls_judge_gradients, GRID},
    {"gradients.o[0|1|2|3].w[2|3|4]." BUCKETS, "G1", ls_judge_gradients, GRID},
    {"gradients.o[0|1|2|3].w[4].n2." SOME, "G1", ls_judge_gradients, GRID " n2"},
    {"gradients.sync.o[0|1|2|3].w[2|3|4]." SOME, "G2", ls_judge_gradients, GRID " sync"},
    {"gradients.sync.o[0|1|2|3].w[4].n2." SOME, "G2", ls_judge_gradients, GRID " n2 sync"},
    {"gradients.torch.[o0=O0|o1=O1|o2=O2].w3", "G3", ls_judge_gradients, VARIED " torch"},
    {"gradients.bf16.[o1=O1|o2=O2|o3=O3].w3", "G3", ls_judge_gradients, VARIED " bf16 b0.1"},
    {"gradients.bf16.[o1=O1|o2=O2|o3=O3].w[1|2].[b0.1mb=b0.1]", "G1", ls_judge_gradients,
     "$1 w$2 bf16 $3 dump=1,2"},
    {"gradients.bf16.sync.[o1=O1|o2=O2|o3=O3].w2", "G2", ls_judge_gradients,
     "$1 w2 bf16 b0.1 dump=1,2 sync"},
    {"gradients.bf16.torch.[o1=O1|o2=O2].w3", "G3", ls_judge_gradients, VARIED " bf16 torch"},
    {"gradients.bf16.[o1=O1|o2=O2|o3=O3].w3.delay", "G3", ls_judge_gradients, VARIED " bf16 delay"},
    /* micro-steps: not the number of ranks, so that causes differ */
    {"gradients.[accumulate.o0=O0 accumulate=2|accumulate.o2=O2 accumulate=2|"
     "predivide.o2=O2 --predivide=4|reduce-f32.o2=O2 --allreduce-fp32|"
     "compress.o0=O0 --compress=fp16|nesterov.o2=O2 --nesterov].w3",
     "G3", ls_judge_gradients, VARIED " b0.1"},
    /* another scale at every step: what is unscaled by an older one is off by 2 */
    {"gradients.scales.[o1=O1|o2=O2].w3", "G3", ls_judge_gradients,
     VARIED " b0.1 scale=dynamic --init-scale=64 --growth-interval=1"},
    {"gradients.resnet18.[o0=O0|o2=O2].w2.[b1mb=b1]", "G1", ls_judge_gradients, LARGE},
    {"gradients.resnet18.[o1=O1|o2=O2].w2.[b5mb=b5]", "G1", ls_judge_gradients, LARGE},
    {"gradients.resnet18.[o2=O2|o3=O3].w2.[b25mb=b25]", "G1", ls_judge_gradients, LARGE},
    {"gradients.resnet18.[o2=O2].w2.[delay]", "G1", ls_judge_gradients, LARGE},
    /* 1x1 convolutions of 64 channels and more, whose sums several threads share */
    {"gradients.resnet18.[o2=O2].w1", "G1", ls_judge_gradients,
     "resnet18 $1 w1 image=64 batch=8 dump=1 --threads=2"},
    {"gradients.bf16.resnet18.[o1=O1|o2=O2].w1", "G1", ls_judge_gradients,
     "resnet18 $1 w1 bf16 image=64 batch=8 dump=1 --threads=2"},
    /* shared statistics where a shortcut has a norm of its own; 1 pixel at the end: 32 values per
     * channel with 2 x 16 images */
    {"gradients.sync.resnet18.o0.w2.b5mb", "G2", ls_judge_gradients,
     "resnet18 w2 b5 sync image=32 batch=16 dump=1"},
    /* another number of classes than everywhere else: odd, no multiple of a vector */
    {"gradients.classes.o[0|2].w2", "G1", ls_judge_gradients,
     "resnet8 O$1 w2 b0.1 dump=1,2 --num-classes=37"},
    {"gradients.smoothing.o[0|1|2|3].w2", "G11", ls_judge_gradients,
     "O$1 w2 b0.1 dump=1,2 --label-smoothing=0.1"},
    {"gradients.smoothing.[accumulate=accumulate=2|whole=accumulate=1 --label-smoothing=1|"
     "classes=accumulate=1 --num-classes=37].o0.w3",
     "G11", ls_judge_gradients, "O0 w3 b0.1 dump=1,2 --label-smoothing=0.3 $1"},
    /* as they are before clipping, which the step then does */
    {"gradients.clip.[norm=--clip-grad-norm=0.25|value=--clip-grad-value=0.01].o[0|1|2|3].w2",
     "Z14", ls_judge_gradients, "O$2 w2 b0.1 dump=1,2 $1"},
    {"gradients.uneven.o[0|2].w2", "G8", ls_judge_gradients, UNEVEN "w2 --batch-sizes=7,2"},
    {"gradients.uneven.o[0|2].w3", "G8", ls_judge_gradients, UNEVEN "w3 --batch-sizes=2,6,3"},
    {"gradients.uneven-sync.o[0|2].w2", "G8", ls_judge_gradients,
     UNEVEN "w2 sync --batch-sizes=1,6"},
    {"gradients.uneven-sync.o[0|2].w3", "G8", ls_judge_gradients,
     UNEVEN "w3 sync --batch-sizes=5,1,3"},
};

/* The timed shape, with a batch that takes the FP64 oracle seconds on a GPU (numerics.md section
 * 5); a CPU would take an hour. */
static const ls_row timed[] = {
    {"gradients.o[0|1|2|3].timed-shape", "G1", ls_judge_gradients,
     "resnet50 O$1 image=224 batch=8 steps=1 dump=1"},
};

/* Products that also compute what the norm behind them needs: a GPU's, or the emulation's. */
static const ls_row fused[] = {
    {"gradients.fused.o[1|2|3].w[1|2].[b0.1mb=b0.1]", "G1", ls_judge_gradients,
     GRID " undetermined --fuse"},
    {"gradients.fused.sync.o[2].w[2].[b0.1mb=b0.1]", "G2", ls_judge_gradients,
     GRID " sync undetermined --fuse"},
};

/* Products on a CPU's units for half types, also where f32 is faster, so that auto leaves them. */
#define NATIVE " --half-math=native"
static const ls_row native_bf16[] = {
    {"gradients.native.bf16.[o1=O1|o2=O2|o3=O3].w[1|2|3].[b0.1mb=b0.1]", "G1", ls_judge_gradients,
     "$1 w$2 bf16 $3 dump=1,2" NATIVE},
    {"gradients.native.bf16.sync.[o1=O1|o2=O2|o3=O3].w2", "G2", ls_judge_gradients,
     "$1 w2 bf16 b0.1 dump=1,2 sync" NATIVE},
    {"gradients.native.bf16.torch.[o1=O1|o2=O2].w3", "G3", ls_judge_gradients,
     VARIED " bf16 torch" NATIVE},
    {"gradients.native.bf16.accumulate.[o1=O1|o2=O2].w3", "G3", ls_judge_gradients,
     VARIED " bf16 b0.1 accumulate=2" NATIVE},
    {"gradients.native.bf16.uneven.o2.w2", "G8", ls_judge_gradients,
     "O2 bf16 b0.1 dump=1,2 w2 --batch-sizes=7,2" NATIVE},
    {"gradients.native.bf16.resnet18.[o1=O1|o2=O2].w2.[b5mb=b5]", "G1", ls_judge_gradients,
     LARGE " bf16" NATIVE},
};
static const ls_row native_fp16[] = {
    {"gradients.native.fp16.[o1=O1|o2=O2|o3=O3].w[1|2|3].[b0.1mb=b0.1]", "G1", ls_judge_gradients,
     "$1 w$2 $3 dump=1,2" NATIVE},
    {"gradients.native.fp16.sync.[o1=O1|o2=O2|o3=O3].w2", "G2", ls_judge_gradients,
     "$1 w2 b0.1 dump=1,2 sync" NATIVE},
    {"gradients.native.fp16.accumulate.[o1=O1|o2=O2].w3", "G3", ls_judge_gradients,
     VARIED " b0.1 accumulate=2" NATIVE},
};

void ls_gradients_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
    if (settings->bf16_units) {
        LS_ROWS(list, settings, native_bf16);
    }
    if (settings->fp16_units) {
        LS_ROWS(list, settings, native_fp16);
    }
    if (settings->device == NULL || strcmp(settings->device, "cuda") != 0) {
        return;
    }
    LS_ROWS(list, settings, fused);
    if (!ls_machine_emulated()) {
        LS_ROWS(list, settings, timed);
    }
}
