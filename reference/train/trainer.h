/* Everything one rank of `lockstep-train` holds. ls_setup_* opens it in the order of the fields and
 * closes it in reverse; ls_step_* trains with it. */
#ifndef LS_TRAINER_H
#define LS_TRAINER_H

#include "reference/amp/amp_scale.h"
#include "reference/comm/comm.h"
#include "reference/data/loader.h"
#include "reference/ddp/ddp.h"
#include "reference/files/events.h"
#include "reference/model/model.h"
#include "reference/options/options.h"
#include "reference/options/precision.h"
#include "reference/options/schedule.h"
#include "reference/options/world.h"
#include "reference/state/device.h"
#include "reference/state/digest.h"
#include "reference/state/memory.h"
#include "reference/state/optim.h"

/* The validation with the largest share of right answers. */
typedef struct ls_trainer_best {
    int64_t step; /* it was made after this one; 0: none yet */
    int64_t images, top1;
} ls_trainer_best;

typedef struct ls_trainer {
    const char
        *model; /* names this model's dumps where an example trains several; NULL: the only */
    struct ls_trainer *further; /* the example's next model: it shares device, peers and data */
    ls_options options;
    ls_world world;
    ls_dialect_rules rules;
    ls_precision precision;
    ls_schedule schedule;
    double base_lr;

    ls_network network;
    ls_network trunk; /* what the plan computes: `network` without the auxiliary head; borrows */
    ls_device device;
    ls_events *events;
    ls_tensorboard *board; /* rank 0 */
    ls_mllog *mllog;       /* rank 0 with --mllog; else NULL */
    ls_store *store;       /* NULL in a world of one without an engine */

    const ls_comm_api *engine; /* NULL: gradients are not reduced at all (a world of one) */
    ls_comm *comm;             /* gradients, broadcasts, the gather of a checkpoint */
    ls_comm *norm_comm;        /* SyncBN; NULL without it */
    ls_norm_sync norm_sync;
    ls_event *norm_event;
    bool unrecorded; /* the engine's operations cannot be recorded into graphs */
    bool stuck;      /* the device does not leave its work: what it may touch cannot be freed */

    ls_memory memory;
    ls_amp_scale amp;
    ls_optimizer_config optimizer;
    uint8_t *group; /* [param_count] of the optimizer's groups; NULL without --group */
    ls_ddp *ddp;    /* NULL where engine is NULL */
    ls_plan *plan;
    struct ls_team *team; /* team.h; NULL: one device computes the step, with `plan` */

    ls_loader *loader;
    struct ls_evaluate *evaluate; /* evaluate.h; NULL: nothing is validated */
    struct ls_journal *journal;   /* journal.h; NULL: the job is not observed */
    void *gathered;               /* on the device: what ls_join_gather exchanges */
    int64_t gathered_bytes;       /* of it; 0: none yet */
    struct ls_uneven *uneven;     /* what ranks said last, [world]; NULL: all always have a batch */
    int64_t own_steps;            /* of this rank's data, in an epoch or the run: uneven.h */
    int64_t steps_per_epoch;      /* 0: data without an end; the longest rank's with --join */
    int64_t first_step;           /* 1, or the one after the checkpoint's */
    int64_t last_step;            /* to stop after */
    ls_events_score epoch;        /* of this rank's steps since the last epoch ended */
    ls_trainer_best best;
    int64_t resumed_epochs; /* passes that another trainer's file says are done; else 0 */
    int64_t saved_step;     /* that --save-dir's last file holds; 0: none of this run */
} ls_trainer;

#endif
