/* Optimizers: runs that end or are refused, and the memory that moments take. */
#include <string.h>

#include "suite/cases/rows.h"

enum { BAD_STEP = 2 };

/* ---- a static scale and a gradient that is inf ----------------------------------------------- */

/* Exit code 12 on every rank, behind the step that spoilt a value, with the tensor's name. */
static void judge_spoilt(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    char line[240];
    ls_record_last_line(job, 0, line, (int)sizeof line);
    if (job->state == LS_RECORD_KILLED || job->state == LS_RECORD_TIMED_OUT || job->code != 12) {
        ls_verdict_fail(
            out,
            "an infinite gradient at step %d under a static scale: exit code %d, expected "
            "12: %s",
            BAD_STEP, job->state == LS_RECORD_DONE ? 0 : job->code, line);
        return;
    }
    for (int k = 0; k < job->world; k++) {
        const ls_record_step *after = ls_record_find_step(&job->rank[k], BAD_STEP + 1);
        if (after != NULL) {
            ls_verdict_fail(out, "rank=%d went on to step %d", k, BAD_STEP + 1);
        }
    }
    if (strstr(line, "weight") == NULL && strstr(line, "bias") == NULL) {
        ls_verdict_fail(out, "the last line names no tensor: %s", line);
    }
    ls_verdict_pass(out, job->world, "%s", line);
}

/* ---- memory ---------------------------------------------------------------------------------- */

enum { RESNET8_ELEMENTS = 75290 }; /* parameters of the 6n+2 network with n = 1, 10 classes */

/* Moments are f32, so many per parameter, padded to 64 bytes a tensor at most. */
static void judge_memory(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int wanted = *(const int *)row->data;
    const cJSON *start = job->rank[0].start;
    const cJSON *memory = start == NULL ? NULL : cJSON_GetObjectItemCaseSensitive(start, "memory");
    double moments = ls_json_number(memory, "moments", -1);
    double least = 4.0 * RESNET8_ELEMENTS * wanted;
    double most = least + 64.0 * wanted * 128; /* more tensors than a resnet8 has */
    if (memory == NULL || moments < 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the start event has no memory of moments");
    } else if (!(moments >= least && moments <= most)) {
        ls_verdict_fail(out, "moments take %.0f bytes, expected %d x 4 x %d", moments, wanted,
                        RESNET8_ELEMENTS);
    } else {
        ls_verdict_pass(out, 1, "moments take %.0f bytes: %d per parameter", moments, wanted);
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

#define ONE "resnet8 O0 steps=1 "
#define SAVED ONE "--optimizer=adam --save={self}/checkpoint.safetensors | resnet8 O0 steps=2 "
#define RESUME " --resume={job:0}/checkpoint.safetensors"

/* One line that names the option, and no step. */
#define UNSTEPPED(option) LS_ENDING({LS_ERR_USAGE}, 1, option, .unstepped = true)
#define REFUSED(id, job, option)                                                                   \
    {                                                                                              \
        "optim.refused." id, "Z12", ls_endings_row, job, UNSTEPPED(option), .judges_outcome = true \
    }

static const ls_row rows[] = {
    {"optim.[adam|lamb].spoilt.o0", "Z11", judge_spoilt,
     "resnet8 O0 w2 b0.05 lr=0.01 steps=4 --optimizer=$1 --overflow-at=2:1",
     .judges_outcome = true},
    {"optim.[adamw|lars].spoilt.o2", "Z11", judge_spoilt,
     "resnet8 O2 w2 b0.05 lr=0.01 steps=4 --optimizer=$1 --overflow-at=2:1",
     .judges_outcome = true},
    REFUSED("name", ONE "--optimizer=rmsprop", "--optimizer"),
    REFUSED("[betas-one=0.9,1|betas-negative=-0.1,0.9|betas-single=0.9]",
            ONE "--optimizer=adam --betas=$1", "--betas"),
    REFUSED("eps-zero", ONE "--optimizer=adam --eps=0", "--eps"),
    REFUSED("trust-zero", ONE "--optimizer=lars --trust=0", "--trust"),
    REFUSED("norm-negative", ONE "--optimizer=lamb --max-grad-norm=-1", "--max-grad-norm"),
    REFUSED("decay-negative", ONE "--weight-decay=-0.1", "--weight-decay"),
    REFUSED("momentum-negative", ONE "--momentum=-0.1", "--momentum"),
    REFUSED("lr-nan", ONE "--lr=nan", "--lr"),
    REFUSED("[nesterov-adam=--optimizer=adam|nesterov-no-momentum=--momentum=0]",
            ONE "$1 --nesterov", "--nesterov"),
    /* a checkpoint's moments are another optimizer's */
    {"optim.refused.resume-[sgd|lamb]", "F5", ls_endings_row, SAVED "--optimizer=$1" RESUME,
     UNSTEPPED("optimizer"), .judges_outcome = true},
    {"optim.memory.sgd-plain", "Z13", judge_memory, "resnet8 O2 steps=1 --momentum=0",
     &(const int){0}},
    {"optim.memory.[sgd=--momentum=0.9|lars=--optimizer=lars]", "Z13", judge_memory,
     "resnet8 O2 steps=1 $1", &(const int){1}},
    {"optim.memory.[adam|lamb]", "Z13", judge_memory, "resnet8 O2 steps=1 --optimizer=$1",
     &(const int){2}},
};

void ls_optim_ends_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
