/* Learning-rate schedules, as pure functions of the step: they tick once per iteration, skipped or
 * not.
 *
 *   --schedule [warmup:LENGTH[:START],]NAME
 *
 *   constant                   the base rate
 *   step:LENGTH:GAMMA          base * GAMMA^floor(t / LENGTH)              step:30:0.1
 *   multistep:L1,L2,...:GAMMA  base * GAMMA^(lengths that t has reached)   multistep:30,60,80:0.1
 *   cosine:LENGTH              base * (1 + cos(pi t / LENGTH)) / 2, then 0 cosine:90
 *   polynomial:LENGTH[:POWER]  base * (1 - t / LENGTH)^POWER, then 0; POWER 1 unless given
 *                                                                          polynomial:90:2
 *   imagenet                   base * 0.1^(e / 30 + (e >= 80)), e the epoch from 0, and while e < 5
 *                              * (1 + step) / (5 * steps per epoch), a warm-up of its own
 *   warmup:LENGTH[:START]      first base * (START + (1 - START) t / LENGTH), START 0.01 unless
 *                              given; then NAME with t counted from the warm-up's end
 *
 * t = step - 1. A LENGTH is a number of epochs, or of steps with an `s` after it (500s). Data
 * without an end (synthetic, batches) has no epochs, so there lengths must be in steps. Formulas:
 * torch.optim.lr_scheduler (StepLR, MultiStepLR, CosineAnnealingLR, PolynomialLR, LinearLR,
 * SequentialLR), in its closed forms and their order of operations; imagenet is
 * examples/imagenet/main_amp.py of NVIDIA/apex. */
#ifndef LS_SCHEDULE_H
#define LS_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"

typedef enum ls_schedule_kind {
    LS_SCHEDULE_CONSTANT,
    LS_SCHEDULE_STEP,
    LS_SCHEDULE_MULTISTEP,
    LS_SCHEDULE_COSINE,
    LS_SCHEDULE_POLYNOMIAL,
    LS_SCHEDULE_IMAGENET,
} ls_schedule_kind;

typedef struct ls_schedule_length {
    double count;
    bool in_steps; /* else epochs */
} ls_schedule_length;

enum { LS_SCHEDULE_LENGTHS_MAX = 16 };

typedef struct ls_schedule {
    ls_schedule_kind kind;
    bool warmup;
    ls_schedule_length warmup_length;
    double warmup_start;
    int length_count;
    ls_schedule_length length[LS_SCHEDULE_LENGTHS_MAX];
    double gamma, power;
} ls_schedule;

/* LS_ERR_USAGE with one line that shows the grammar. */
ls_status ls_schedule_parse(const char *text, ls_schedule *out);
/* LS_ERR_USAGE where the schedule counts epochs and the data has none (steps_per_epoch 0). Call
 * once, before the first step. */
ls_status ls_schedule_check(const ls_schedule *schedule, int64_t steps_per_epoch);
/* The rate of `step` (from 1, global over resumes). */
double ls_schedule_lr(const ls_schedule *schedule, double base_lr, int64_t step,
                      int64_t steps_per_epoch);
/* --lr-scaling linear: lr * images per step / 256 (batch * accumulate * world; Goyal et al. 2017),
 * else lr. */
double ls_schedule_base_lr(double lr, bool linear, int64_t images_per_step);

#endif
