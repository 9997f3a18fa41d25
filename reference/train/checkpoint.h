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

#include "trainer.h"

#define LS_CHECKPOINT_FORMAT "lockstep-checkpoint"

/* All ranks call it: rank 0 gathers the others' running statistics first. */
ls_status ls_checkpoint_save(ls_trainer *trainer, int64_t step, const char *path);
/* --resume. Reads and checks everything, then fills parameters, masters, moments, buffers, *state,
 * *step (the last one done) and the reducer's layout. LS_ERR_USAGE, with what differs, before
 * anything has changed. Settings that may differ (learning rate, batch, ...) but do are a warning
 * each. */
ls_status ls_checkpoint_load(ls_trainer *trainer, const char *path, ls_step_state *state,
                             int64_t *step);
/* Fingerprint of the options that make the bucket layout. */
uint64_t ls_checkpoint_bucket_rule(const ls_trainer *trainer);

#endif
