/* What people use before DistributedDataParallel, in one process: replicas made anew in every step
 * (torch.nn.DataParallel) and stages on two devices; and updates that are not fused. Gradients
 * against the oracle, whose micro-batches are the parts; bits against runs on one device. */
#include "suite/cases/rows.h"

#include "suite/judge/judges.h"

static const ls_judge_difference values = {1u << LS_RECORD_BUFFER | 1u << LS_RECORD_SCALER,
                                           "losses, gradients, parameters and moments"},
                                 all = {0, "losses and all digests"};

/* Devices are shares of a CPU's cores, also in a run on a GPU. */
#define ON "--device=cpu "
#define ONE ON "resnet8 steps=3 threads=1 "
#define TWO ON "resnet8 steps=3 threads=2 "
#define UPDATE ON "resnet8 w2 b0.02 steps=4 $1 $2"
#define SKIP ON "resnet8 O2 w2 steps=4 scale=dynamic --overflow-at=2:1"
#define SHARED ON "resnet18 O0 image=64 batch=8 steps=3 threads=2"
#define SAVED ON "resnet8 O0 batch=8 threads=2 $1 "

static const ls_row rows[] = {
    {"baselines.replicas.[o0=O0|o1=O1|bf16=O1 bf16].n2", "W1", ls_judge_gradients,
     ON "$1 batch=8 dump=1,2 --data-parallel=2"},
    {"baselines.replicas.o0.n3", "W1", ls_judge_gradients,
     ON "batch=12 dump=1,3 steps=3 "
        "--data-parallel=3"},
    {"baselines.stages.[o0=O0|o1=O1|o2=O2|o3=O3|bf16=O2 bf16]", "W2", ls_judge_gradients,
     ON "$1 batch=8 dump=1,2 --model-parallel"},
    {"baselines.stages.split.[o0=O0|o2=O2]", "W2", ls_judge_gradients,
     ON "$1 batch=12 dump=1,3 steps=3 --model-parallel --split-size=4"},
    {"baselines.stages.resnet18", "W2", ls_judge_gradients,
     ON "resnet18 O0 image=64 batch=8 dump=2 --model-parallel --split-size=4"},
    {"baselines.exact.replicas.o[0|1]", "W3", ls_judge_same,
     ONE "O$1 accumulate=2 | " TWO "O$1 batch=8 --data-parallel=2", &values},
    {"baselines.exact.stages.o[0|1|2|3]", "W3", ls_judge_same,
     ONE "O$1 batch=8 | " TWO "O$1 batch=8 --model-parallel", &all},
    {"baselines.exact.split.o[0|2]", "W3", ls_judge_same,
     ONE "O$1 accumulate=2 | " TWO "O$1 batch=8 --model-parallel --split-size=4", &all},
    /* a dynamic scale that falls: the overflow is in the last part */
    {"baselines.overflow.[replicas=--data-parallel=2|stages=--model-parallel --split-size=4]", "W4",
     ls_judge_same,
     ONE "O1 scale=dynamic accumulate=2 --overflow-at=2 | " TWO
         "O1 scale=dynamic batch=8 --overflow-at=2 $1",
     &values},
    {"baselines.resume.[replicas=--data-parallel=2|stages=--model-parallel --split-size=4]", "W4",
     ls_judge_resume,
     SAVED "steps=4 | " SAVED "steps=2 --save={self}/checkpoint.safetensors | " SAVED
           "steps=4 --resume={job:1}/checkpoint.safetensors"},
    {"baselines.unfused.[sgd=--optimizer=sgd|plain=--momentum=0|nesterov=--nesterov|"
     "adam=--optimizer=adam lr=0.001|adamw=--optimizer=adamw lr=0.001|"
     "groups=--optimizer=adam --group=bn:wd=0,lr-factor=0.5].[o0=O0|o2=O2]",
     "Z18", ls_judge_same, UPDATE " | " UPDATE " --unfused", &all},
    {"baselines.unfused.skip.o2", "Z18", ls_judge_same, SKIP " | " SKIP " --unfused", &all},
    /* tensors that threads share */
    {"baselines.unfused.threads.o0", "Z18", ls_judge_same, SHARED " | " SHARED " --unfused", &all},
};

void ls_baselines_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
