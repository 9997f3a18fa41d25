/* Test helper: a trainer's memory as options ask for it, for resnet8 at 32 pixels, in plain host
 * memory. */
#ifndef LS_UNIT_HOST_SETUP_H
#define LS_UNIT_HOST_SETUP_H

#include <check.h>

#include "reference/options/dialect.h"
#include "reference/state/memory.h"
#include "reference/model/model.h"
#include "reference/options/precision.h"
#include "host_device.h"

/* Fills all but the options. Release with ls_memory_free and ls_model_free. */
static inline void host_setup(const ls_options *options, int world, ls_dialect_rules *rules,
                              ls_precision *precision, ls_network *network, ls_device *device,
                              ls_memory *memory)
{
    enum { PARAMS_MAX = 512 };
    ls_dtype param[PARAMS_MAX], reduced[PARAMS_MAX], buffer[PARAMS_MAX];
    ls_dialect_resolve(options, world, rules);
    ls_precision_resolve(options, rules, precision);
    ck_assert_int_eq(ls_model_build("resnet8", 10, 32, network), LS_OK);
    ck_assert_int_le(network->param_count, PARAMS_MAX);
    *device = host_device();
    for (int i = 0; i < network->param_count; i++) {
        param[i] = ls_precision_param(precision, network->param[i].role);
        reduced[i] = ls_precision_reduced(precision, network->param[i].role);
    }
    for (int i = 0; i < network->buffer_count; i++) {
        buffer[i] = ls_precision_buffer(precision, network->buffer[i].role);
    }
    ls_memory_options wanted = {.network = network,
                                .param_type = param,
                                .grad_type = param,
                                .reduced_type = reduced,
                                .buffer_type = buffer,
                                .masters = precision->masters,
                                .moment_count = 1};
    ck_assert_int_eq(ls_memory_create(device, &wanted, memory), LS_OK);
}

#endif
