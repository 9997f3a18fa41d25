/* A whole training run in one safetensors file, written by rank 0:
 *
 *   param/<name>             in the model's type
 *   master/<name>            F32, where there is one
 *   state/<name>/<moment>    F32
 *   buffer/<name>            rank 0's; counters I64
 *   rank<k>/buffer/<name>    rank k's, k >= 1, where batch norm is local
 *   scaler/loss_scale        F32, of the step that follows, like
 *   scaler/growth_count      I32 and
 *   scaler/overflow_streak   I32
 *   optimizer/step_count     I64
 *   data/step                I64: the last step done; the data's position follows from it
 *   ddp/layout               I32: ls_buckets_to_vector's numbers; absent without reduction
 *   epoch/counts             I64 [world,4]: of each rank's steps since the last epoch ended:
 *                            images, top-1, top-5, bad pictures
 *   epoch/loss               F64 [world]: the sum of these images' losses. Earlier versions
 *                            wrote neither
 *
 * Metadata: format "lockstep-checkpoint", version, arch, num_classes, opt_level, half, optimizer,
 * world_size, step, schedule, seed, epoch (passes that are complete) and steps_per_epoch where the
 * data has an end, best_step, best_images, best_top1 where a validation was made, scaler
 * (dynamic|static), min_loss_scale, max_loss_scale, growth_interval, bucket_rule (digest of the
 * options that make the layout), options (JSON), options_digest, xxh64_tensors and xxh64_header
 * (safetensors.c), which are verified when the file is read; files of earlier versions have none,
 * and a warning says so.
 *
 * The same world continues bit for bit. At another world size rank 0's buffers go to all and the
 * layout is made anew. */
#ifndef LS_CHECKPOINT_H
#define LS_CHECKPOINT_H

#include "reference/train/trainer.h"
#include "reference/files/pth.h"

#define LS_CHECKPOINT_FORMAT "lockstep-checkpoint"

/* All ranks call it: rank 0 gathers the others' running statistics first. */
ls_status ls_checkpoint_save(ls_trainer *trainer, int64_t step, const char *path);
/* --resume. Reads and checks everything, then fills parameters, masters, moments, buffers, *state,
 * *step (the last one done) and the reducer's layout. LS_ERR_USAGE, with what differs, before
 * anything has changed. Settings that may differ (learning rate, batch, ...) but do are a warning
 * each. */
ls_status ls_checkpoint_load(ls_trainer *trainer, const char *path, ls_step_state *state,
                             int64_t *step);

/* Values to start from (--init): a plain file of weights with torchvision's names, or a dump or
 * checkpoint of a run; any float type. */

/* Fills the parameters, and the buffers where the file has any. A missing or misshapen tensor is
 * LS_ERR_USAGE naming it, before anything has changed; so is an unknown one of a plain file. Of a
 * dump or checkpoint masters go before the half parameters that were rounded from them, and rank 0
 * says in one line what is not used. */
ls_status ls_weights_load(ls_trainer *trainer, const char *path);

/* --resume of what a script of PyTorch or Apex saved: parameters, running statistics, moments, loss
 * scale, epoch, best score. Such a file lacks what makes a resumed run equal to an uninterrupted
 * one bit for bit (masters of half parameters, other ranks' statistics, the layout of buckets, a
 * place inside of an epoch); a line says what is missing, another what is not used. */

/* The file's format is LS_PTH_STATE_FORMAT. Checks everything, then fills parameters, masters,
 * moments, buffers, trainer->best, trainer->resumed_epochs and *state. LS_ERR_USAGE, with what
 * differs, before anything has changed. */
ls_status ls_weights_resume(ls_safetensors *file, ls_trainer *trainer, ls_step_state *state);

/* What a run keeps: --save FILE after the last step, and --save-dir DIR with two checkpoints,
 * `last.safetensors` (the newest state) and `best.safetensors` (after the validation with the
 * largest top-1). Rank 0 writes; a name stands for a whole file at any time. `best` is written
 * first and `last` is then a second name of the same file, so that `best` is never older than the
 * score in `last` says.
 *
 * With --save-dir SIGTERM and SIGUSR1 end the run, on whatever rank they arrive: all ranks stop
 * after the same step, save `last` and leave with LS_STOPPED. The signals are blocked and stay
 * pending, so a second one changes nothing. */

/* Blocks the signals in this thread and in those that it starts. Before any other thread. */
ls_status ls_save_block_signals(const ls_trainer *trainer);
/* Hours of training must not end with a file that cannot be written: LS_ERR_USAGE on all ranks if
 * rank 0 cannot create the files of --save and --save-dir. After ls_join_open. */
ls_status ls_save_check(ls_trainer *trainer);
/* --resume auto becomes the path of --save-dir's `last`, or "" where no rank has that file.
 * LS_ERR_USAGE where only some have it. After ls_save_check. */
ls_status ls_save_find(ls_trainer *trainer);

/* Whether `last` is due after that step. The best validation is saved after any. */
bool ls_save_due(const ls_trainer *trainer, int64_t step);
/* Of all ranks; without images: nothing was validated. */
void ls_save_note_score(ls_trainer *trainer, int64_t step, const ls_events_score *val);
/* Writes what is due after the step, which has ended on the device. All ranks call it. */
ls_status ls_save_step(ls_trainer *trainer, int64_t step);
/* At the end of a run without an error, after its last step, or after the one that a signal made
 * the last: then only `last` is written, and LS_STOPPED is returned. All ranks call it. */
ls_status ls_save_end(ls_trainer *trainer, int64_t step, int signal);

typedef struct ls_save_stop {
    int64_t at;  /* the run stops after this step: equal on all ranks before any has ended it */
    int signal;  /* that makes it so; 0: none, the run ends by itself */
    bool asking; /* this rank has passed its signal on */
} ls_save_stop;
/* Between two steps: whether a signal is pending, here or on another rank. A request names the
 * second step from here, which no rank has begun yet: one can only begin a step when all have
 * begun the one before the last. */
ls_status ls_save_ask(ls_trainer *trainer, int64_t done, ls_save_stop *stop);

/* Files of tensors from one format to the other, for `lockstep checkpoint FILE --to OUT`.
 *
 * OUT.safetensors holds the tensors and metadata that a run would read of FILE (files/pth.h).
 *
 * OUT.pth holds what the ImageNet scripts of Apex and PyTorch save, so that either loads it, also
 * with weights_only=True: state_dict (masters where there are masters), optimizer, epoch, arch,
 * best_acc1, best_prec1, amp (Apex's) and scaler (torch's), each where FILE has it; and of a
 * checkpoint under `lockstep` what these have no place for, so that converting it back loses no
 * bit. Plain weights become a plain state dict. `plain` leaves `lockstep` out. */

typedef enum ls_convert_kind {
    LS_CONVERT_CHECKPOINT, /* of Lockstep */
    LS_CONVERT_SCRIPT,     /* of a script of PyTorch or Apex */
    LS_CONVERT_WEIGHTS,    /* names and tensors */
    LS_CONVERT_DUMP,       /* of a step */
} ls_convert_kind;
ls_convert_kind ls_convert_kind_of(const ls_safetensors *file);

/* Writes `file`, opened from `path`, to `out`, whose name ends in .safetensors, .pth or .pt. Else,
 * and for a dump, LS_ERR_USAGE. */
ls_status ls_convert_write(const char *path, ls_safetensors *file, const char *out, bool plain);

#endif
