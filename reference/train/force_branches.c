#include "force_branches.h"

#include <limits.h>
#include <stdio.h>

#include "kernels/core/log.h"
#include "reference/files/safetensors.h"

/* Every branch as in the dump; dump NULL: decided by the values again. */
static ls_status force(const ls_trainer *trainer, const ls_safetensors *dump, const char *path)
{
    for (int k = 0; k < trainer->network.branch_count; k++) {
        ls_safetensors_entry none = {0};
        const ls_safetensors_entry *entry = &none;
        char name[32];
        snprintf(name, sizeof name, "branch/%03d", k);
        if (dump != NULL && (entry = ls_safetensors_find(dump, name)) == NULL) {
            return ls_log_fail(LS_ERR_USAGE, "--force-branches: %s has no %s", path, name);
        }
        LS_TRY(trainer->device.api->plan_force(trainer->plan, trainer->device.stream, k,
                                               entry->data, entry->bytes));
    }
    return LS_OK;
}

ls_status ls_force_branches_micro_step(const ls_trainer *trainer, int64_t step, int micro_step)
{
    const ls_options *options = &trainer->options;
    if (options->force_branches[0] == '\0' || step > 2) {
        return LS_OK;
    }
    if (step == 2) {
        return micro_step == 0 ? force(trainer, NULL, NULL) : LS_OK;
    }
    char path[PATH_MAX];
    int length =
        snprintf(path, sizeof path, "%s/step%06d.rank%d.safetensors", options->force_branches, 1,
                 trainer->world.rank * options->accumulate + micro_step);
    LS_ASSERT(length < (int)sizeof path);
    ls_safetensors *dump = NULL;
    LS_TRY(ls_safetensors_open(path, &dump));
    ls_status status = force(trainer, dump, path);
    ls_safetensors_close(dump);
    return status;
}
