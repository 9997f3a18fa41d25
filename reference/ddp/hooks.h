/* The communication hooks of --comm-hook, by torch's names (ddp.h, ls_ddp_hook). What type a hook
 * gets its buckets in is precision.h's matter: f32 gradients are cast when they are staged. */
#ifndef LS_HOOKS_H
#define LS_HOOKS_H

#include "ddp.h"

/* NULL for LS_COMM_HOOK_NONE: the reducer's own rules. */
const ls_ddp_hook *ls_hooks_builtin(ls_comm_hook hook);

#endif
