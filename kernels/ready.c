#include "ready.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "lower.h"

ls_status ls_ready_create(const ls_network *network, ls_ready *out)
{
    size_t count = (size_t)network->param_count;
    ls_ready ready = {.count = network->param_count,
                      .order = calloc(count + 1, sizeof *ready.order),
                      .done = calloc(count + 1, sizeof *ready.done)};
    if (ready.order == NULL || ready.done == NULL) {
        ls_log_error("no memory for a plan of %zu parameters", count);
        ls_ready_free(&ready);
        return LS_ERR_INFRA;
    }
    ls_lower_ready_order(network, ready.order);
    *out = ready;
    return LS_OK;
}

void ls_ready_free(ls_ready *ready)
{
    free(ready->order);
    free(ready->done);
    *ready = (ls_ready){0};
}

void ls_ready_begin(ls_ready *ready)
{
    memset(ready->done, 0, (size_t)ready->count * sizeof *ready->done);
    ready->reported = 0;
}

ls_status ls_ready_report(ls_ready *ready, ls_grad_ready *report, void *context)
{
    while (ready->reported < ready->count) {
        int param = ready->order[ready->reported];
        if (!ready->done[param]) {
            break;
        }
        ready->reported++;
        if (report != NULL) {
            LS_TRY(report(context, param));
        }
    }
    return LS_OK;
}
