/* Training curves for TensorBoard: <directory>/events.out.tfevents.<seconds>.<host>.<pid>, written
 * by rank 0. A TFRecord file: each record is {u64 length, u32 masked crc32c of the length, data,
 * u32 masked crc32c of the data}, little-endian, mask(c) = rotate_right(c, 15) + 0xa282ead8; the
 * data is a tensorflow.Event in protobuf wire format. */
#ifndef LS_TENSORBOARD_H
#define LS_TENSORBOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/core/status.h"

typedef struct ls_tensorboard ls_tensorboard;

/* Makes the directory where it is missing and writes the version record. */
ls_status ls_tensorboard_open(const char *directory, ls_tensorboard **out);
void ls_tensorboard_close(ls_tensorboard *board); /* NULL is allowed */

typedef struct ls_tensorboard_scalars {
    float loss, lr, loss_scale;
    float images_per_s, grad_norm; /* NaN: left out */
    bool no_loss;                  /* this rank had no batch */
} ls_tensorboard_scalars;
/* One event with four or five scalars, one write. NULL board: does nothing. A full disk is
 * LS_ERR_INFRA. */
ls_status ls_tensorboard_write(ls_tensorboard *board, int64_t step,
                               const ls_tensorboard_scalars *scalars);

/* One event with those of the scalars Loss/train, Loss/val, Top1/train and Top1/val that are not
 * NaN; top-1 in percent. */
typedef struct ls_tensorboard_epoch {
    float train_loss, val_loss, train_top1, val_top1;
} ls_tensorboard_epoch;
ls_status ls_tensorboard_write_epoch(ls_tensorboard *board, int64_t epoch,
                                     const ls_tensorboard_epoch *scalars);

/* CRC-32C (Castagnoli, reflected 0x82f63b78) and its mask, for readers. */
uint32_t ls_tensorboard_crc32c(const void *data, size_t bytes);
uint32_t ls_tensorboard_mask(uint32_t crc);

#endif
