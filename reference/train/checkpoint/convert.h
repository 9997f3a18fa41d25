/* Files of tensors from one format to the other, for `lockstep checkpoint FILE --to OUT`.
 *
 * OUT.safetensors holds the tensors and metadata that a run would read of FILE (pth_state.h).
 *
 * OUT.pth holds what the ImageNet scripts of Apex and PyTorch save, so that either loads it, also
 * with weights_only=True: state_dict (masters where there are masters), optimizer, epoch, arch,
 * best_acc1, best_prec1, amp (Apex's) and scaler (torch's), each where FILE has it; and of a
 * checkpoint under `lockstep` what these have no place for, so that converting it back loses no
 * bit. Plain weights become a plain state dict. `plain` leaves `lockstep` out. */
#ifndef LS_CONVERT_H
#define LS_CONVERT_H

#include "reference/files/safetensors.h"

typedef enum ls_convert_kind {
    LS_CONVERT_CHECKPOINT, /* of Lockstep */
    LS_CONVERT_SCRIPT,     /* of a script of PyTorch or Apex */
    LS_CONVERT_WEIGHTS,    /* names and tensors */
    LS_CONVERT_DUMP,       /* of a step */
} ls_convert_kind;
ls_convert_kind ls_convert_kind_of(const ls_safetensors *file);

/* Writes `file`, opened from `path`, to `out`, whose name ends in .safetensors, .pth or .pt. Else,
 * and for a dump, LS_ERR_USAGE. */
ls_status ls_convert_write(const char *path, const ls_safetensors *file, const char *out,
                           bool plain);

#endif
