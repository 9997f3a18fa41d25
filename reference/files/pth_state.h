/* What a file of torch.save means to a run: its tensors by the names of a checkpoint
 * (train/checkpoint.h), param/<name>, buffer/<name>, state/<name>/<moment>, scaler/..., and
 * metadata.
 *
 * Read are a state dict (plain, or under state_dict, model or model_state_dict), without the prefix
 * `module.` of DistributedDataParallel; under optimizer the moments, by the order of parameters, if
 * it has one group; under amp (Apex) or scaler (torch's GradScaler) the loss scale; epoch, arch,
 * best_acc1 or best_prec1. Metadata: format "pytorch", and where the file says them arch, epoch
 * (passes that are complete), best_percent, lr, momentum, weight_decay; `unused` lists what it
 * holds beyond that.
 *
 * A file that `lockstep checkpoint --to X.pth` wrote gives the very checkpoint it was made from. */
#ifndef LS_PTH_STATE_H
#define LS_PTH_STATE_H

#include "safetensors.h"

#define LS_PTH_STATE_FORMAT "pytorch"
/* The member of our own files: {"metadata": {...}, "tensors": {...}}, what torch has no place for.
 */
#define LS_PTH_STATE_OWN "lockstep"

/* A running statistic by its name; false: a parameter. */
bool ls_pth_state_is_buffer(const char *name);
/* Opens either format: a safetensors file, or one of torch.save. Errors as ls_safetensors_open and
 * ls_pth_open. */
ls_status ls_pth_state_open(const char *path, ls_safetensors **out);

#endif
