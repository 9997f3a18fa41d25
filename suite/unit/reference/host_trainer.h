/* Test helper: as much of a trainer as a checkpoint sees, in plain host memory; a world of one with
 * the engine `self`. */
#ifndef LS_UNIT_HOST_TRAINER_H
#define LS_UNIT_HOST_TRAINER_H

#include <check.h>

#include "kernels/optimizers.h"
#include "reference/comm/comm.h"
#include "reference/train/trainer.h"
#include "host_device.h"
#include "reference/state/memory.h"
#include "reference/model/model.h"
#include "reference/options/precision.h"

static inline void host_trainer_open(ls_trainer *t, const ls_options *options)
{
    enum { PARAMS_MAX = 512 };
    static ls_dtype param[PARAMS_MAX], buffer[PARAMS_MAX];
    *t = (ls_trainer){.options = *options, .world = {.world = 1, .local_world = 1}};
    ls_dialect_resolve(options, 1, &t->rules);
    ls_precision_resolve(options, &t->rules, &t->precision);
    LS_ASSERT(ls_model_build(options->arch, options->num_classes, 32, &t->network) == LS_OK);
    t->device = host_device();
    t->engine = ls_comm_load_self();
    for (int i = 0; i < t->network.param_count; i++) {
        param[i] = ls_precision_param(&t->precision, t->network.param[i].role);
    }
    for (int i = 0; i < t->network.buffer_count; i++) {
        buffer[i] = ls_precision_buffer(&t->precision, t->network.buffer[i].role);
    }
    ls_memory_options memory = {.network = &t->network,
                                .param_type = param,
                                .grad_type = param,
                                .reduced_type = param,
                                .buffer_type = buffer,
                                .masters = t->precision.masters,
                                .moment_count =
                                    ls_optimizers_moments(options->optimizer, options->momentum)};
    LS_ASSERT(ls_memory_create(&t->device, &memory, &t->memory) == LS_OK);
    ls_amp_scale_of(&t->memory, &t->precision, &t->amp);
    ls_comm_options comm = {.world = 1, .name = "gradients", .timeout_s = 1.0};
    LS_ASSERT(t->engine->open(&comm, &t->comm) == LS_OK);
    ls_ddp_options ddp = {.rules = &t->rules,
                          .precision = &t->precision,
                          .memory = &t->memory,
                          .engine = t->engine,
                          .comm = t->comm};
    LS_ASSERT(ls_ddp_create(&ddp, &t->ddp) == LS_OK);
}

static inline void host_trainer_close(ls_trainer *t)
{
    ls_ddp_free(t->ddp);
    t->engine->close(t->comm);
    ls_memory_free(&t->memory);
    ls_model_free(&t->network);
}

/* Test helper: a trainer's memory as options ask for it, for resnet8 at 32 pixels, in plain host
 * memory. */

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
