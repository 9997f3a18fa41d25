/* What the files of the amp library share. */
#ifndef LS_AMP_INTERNAL_H
#define LS_AMP_INTERNAL_H

#include "kernels/core/log.h"
#include "amp.h"
#include "amp_scale.h"

enum { LS_AMP_MOMENTS = 2 };

/* One parameter. */
typedef struct ls_amp_slot {
    ls_amp_param param;               /* the caller's tensors */
    ls_tensor value;                  /* the master, or the parameter */
    ls_tensor total;                  /* f32: unscaled since ls_amp_zero_grad */
    ls_tensor fresh;                  /* f32: one block's, where `total` has something already */
    ls_tensor held;                   /* in the gradient's type, scaled: delayed blocks' sum */
    ls_tensor moment[LS_AMP_MOMENTS]; /* data NULL beyond options.moment_count */
    bool ready;                       /* in the open block */
    bool has_held, has_total;
    int64_t steps;
} ls_amp_slot;

typedef struct ls_amp_group {
    ls_optimizer_config config;
    float lr;
    int count;
    ls_amp_slot *slot;
    void *block; /* backend memory of everything but parameters and their gradients */
} ls_amp_group;

typedef struct ls_amp_optimizer {
    int group_count, slot_count;
    ls_amp_group *group;
    ls_amp_slot **slot; /* of all groups, in the order they were added */
    bool in_block;
    int held_loss;    /* whose scaled gradients are held back, or -1 */
    int skipped_loss; /* whose overflow makes the next step a skip, or -1 */
} ls_amp_optimizer;

struct ls_amp {
    const ls_device *device;
    ls_amp_options options;
    ls_step_state *state; /* backend memory: one a loss, then the optimizer's */
    ls_amp_scale *scale;  /* [loss_count] */
    int optimizer_count, slot_count;
    ls_amp_optimizer *optimizer;
    int open_loss; /* of the open block, or -1 */
    bool delay;
    int64_t block_count; /* blocks that were looked at, for messages */
    /* lists of one call of the backend, [slot_count] */
    ls_amp_slot **chosen;
    ls_tensor *list[5];
};

/* LS_ERR_USAGE, naming it, when there is no such loss, optimizer, group or parameter. */
ls_status ls_amp_check_loss(const ls_amp *amp, int loss);
ls_status ls_amp_find_optimizer(const ls_amp *amp, int optimizer, ls_amp_optimizer **out);
ls_status ls_amp_find(const ls_amp *amp, int optimizer, int group, int index, ls_amp_slot **out);
/* LS_ERR_USAGE while a block is open. */
ls_status ls_amp_refuse_open(const ls_amp *amp, const char *what);
/* Passes the line to options.warn, or logs it. */
void ls_amp_warn(const ls_amp *amp, const char *format, ...) LS_PRINTF(2, 3);
bool ls_amp_has_master(const ls_amp_slot *slot);

#endif
