/* Several devices of one process that compute a step together, as people do before they start a
 * process for each: replicas of the network (--data-parallel, torch.nn.DataParallel) or two stages
 * of it (--model-parallel, PyTorch's tutorial). The batch's parts are the micro-steps of the step.
 *
 * Replicas. The trainer's device is the first one and owns parameters, optimizer and running
 * statistics. In every step each device copies both from it, takes its part of the batch, and runs
 * forward and backward; the first device then adds the others' gradients to its own. Running
 * statistics of the other replicas are dropped.
 * Stages. Each device has the layers before or behind the cut; what crosses is copied by the device
 * that reads it. A part is forwarded by the second stage while the first forwards the next part;
 * backward takes the parts in the opposite order, also at once. The trainer's device steps the
 * parameters of both with the cores of both.
 *
 * A device that fails ends the step with its status; nothing of that step is applied. */
#ifndef LS_TEAM_H
#define LS_TEAM_H

#include "reference/train/trainer.h"
#include "kernels/core/status.h"

typedef struct ls_team ls_team;

/* Of options: 1 without a team. */
int ls_team_devices(const ls_options *options);
/* Whether the trainer's device, which is open, offers a team: it computes on host memory and takes
 * stages. */
bool ls_team_offered(const ls_device *device);
/* Plans and memory of all devices; sets trainer->plan and trainer->team. */
ls_status ls_team_create(ls_trainer *trainer, const ls_plan_options *options);
/* With trainer->plan. NULL is allowed. */
void ls_team_free(ls_team *team);
/* Binds the plans to the trainer's memory, which has moved. */
ls_status ls_team_bind(ls_team *team);
/* The parameters have changed: those of stages are packed again, by their devices; replicas take
 * them in the next forward. */
ls_status ls_team_params_changed(ls_team *team);
/* batch: all parts; loss[parts] is set. */
ls_status ls_team_forward(ls_team *team, const ls_loader_batch *batch, float *loss);

/* A part's gradient of a parameter has been computed; calls do not overlap. */
typedef ls_status ls_team_computed(void *context, int part, int param);

/* Of the mean of the parts' losses. At return the gradients are in memory->sum where the trainer
 * has sums, else in memory->grad. `computed` is called for stages only. */
ls_status ls_team_backward(ls_team *team, ls_team_computed *computed, void *context);
/* As plan_export of one part. */
ls_status ls_team_export(ls_team *team, int part, ls_export what, int index, void *host,
                         int64_t bytes);
/* Adds the memory of all plans but trainer->plan. */
void ls_team_add_info(const ls_team *team, ls_plan_info *info);

/* Threads that compute for several devices of one process, a lane for each. Lane 0 is the thread
 * that opened them. */

typedef struct ls_lanes ls_lanes;
typedef ls_status ls_lane_work(void *context, int lane);

/* LS_ERR_INFRA if a thread cannot be made. */
ls_status ls_lanes_open(int count, ls_lanes **out);
/* Not while a run is under way. NULL is allowed. */
void ls_lanes_close(ls_lanes *lanes);
/* Calls work(context, lane) in every lane at once and returns when all calls have: with LS_OK, or
 * with the status of the lane that failed first. A lane that fails ends the waits for it. */
ls_status ls_lanes_run(ls_lanes *lanes, ls_lane_work *work, void *context);

/* Within a run: this lane has finished one more part of its work; */
void ls_lanes_post(ls_lanes *lanes, int lane);
/* waits until another lane has finished so many parts in this run; the status of a lane that has
 * failed instead. */
ls_status ls_lanes_await(ls_lanes *lanes, int lane, int parts);

#endif
