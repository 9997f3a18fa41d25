/* Memory for the gradients of activations: each is a stretch of one block, and stretches are reused
 * once their last reader has run. */
#ifndef LS_GRAD_LAYOUT_H
#define LS_GRAD_LAYOUT_H

#include "lowered.h"

/* Walks the backward pass of `lower`; fills the backward members of its operations, lower->grad and
 * lower->gradient_bytes. LS_ERR_INFRA without memory. */
ls_status ls_grad_layout_choose(ls_lower *lower, const ls_lower_backend *backend);

#endif
