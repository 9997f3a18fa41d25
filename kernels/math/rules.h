/* The rules of all optimizers, for loops that know the kind when they are compiled: with a constant
 * `kind` each function below is the rule's own. */
#ifndef LS_MATH_RULES_H
#define LS_MATH_RULES_H

#include "adam.h"
#include "lamb.h"
#include "lars.h"
#include "rule.h"
#include "sgd.h"

/* The rule of one step; the optimizer's own member. */
typedef union ls_rules {
#define LS_OPTIMIZER(KIND, name, rule, ...) ls_##rule##_rule name;
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
} ls_rules;

/* Norms that an optimizer needs before its step: of the value and the gradient, or of the value and
 * the update, after one of all gradients. */
typedef enum ls_norms { LS_NORMS_NONE, LS_NORMS_GRAD, LS_NORMS_UPDATE } ls_norms;

LS_RULE_FN ls_norms ls_rules_norms(ls_optimizer_kind kind)
{
    switch (kind) {
#define LS_OPTIMIZER(KIND, name, rule, variants, norms, ...) \
    case LS_OPTIMIZER_##KIND:                                \
        return LS_NORMS_##norms;
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
    default:
        return LS_NORMS_NONE;
    }
}

/* Moments that it reads, where its momentum is not 0. */
LS_RULE_FN int ls_rules_moments(ls_optimizer_kind kind)
{
    switch (kind) {
#define LS_OPTIMIZER(KIND, name, rule, variants, norms, moments, ...) \
    case LS_OPTIMIZER_##KIND:                                         \
        return moments;
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
    default:
        return 0;
    }
}

/* The constants of a group, and its rate in *lr. */
LS_HALF_FN ls_optimizer_config ls_rules_of_group(const ls_optimizer_config *config, int group,
                                                 float *lr)
{
    ls_optimizer_config own = *config;
    if (config->group_count > 0) {
        double factor = LS_PLANT(group_rate_ignored, config->group[group].lr_factor, 1.0);
        own.weight_decay = config->group[LS_PLANT(group_decay_ignored, group, 0)].weight_decay;
        *lr = factor == 1.0 ? *lr : (float)((double)*lr * factor);
    }
    return own;
}

/* `step`: from 1. */
LS_HALF_FN void ls_rules_prepare(ls_rules *out, const ls_optimizer_config *config, float lr,
                                 int64_t step, double grad_squares)
{
    switch (config->kind) {
#define LS_OPTIMIZER(KIND, name, rule, ...)                              \
    case LS_OPTIMIZER_##KIND:                                            \
        out->name = ls_##rule##_prepare(config, lr, step, grad_squares); \
        break;
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
    default:
        break;
    }
}

/* squares: of the gradient or of the update (ls_norms). */
LS_HALF_FN ls_rule_tensor ls_rules_tensor(const ls_optimizer_config *config, float lr,
                                          double value_squares, double squares)
{
    ls_rule_tensor none = {false, 0};
    switch (config->kind) {
#define LS_RULES_TENSOR_NONE(rule)
#define LS_RULES_TENSOR_GRAD(rule) return ls_##rule##_tensor(config, lr, value_squares, squares);
#define LS_RULES_TENSOR_UPDATE(rule) LS_RULES_TENSOR_GRAD(rule)
#define LS_OPTIMIZER(KIND, name, rule, variants, norms, ...) \
    case LS_OPTIMIZER_##KIND:                                \
        LS_RULES_TENSOR_##norms(rule) break;
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
    default:
        break;
    }
    return none;
}

LS_RULE_FN float ls_rules_step(ls_optimizer_kind kind, const ls_rules *rules,
                               const ls_rule_tensor *tensor, float p, float g, float *m, float *v)
{
    switch (kind) {
#define LS_OPTIMIZER(KIND, name, rule, ...) \
    case LS_OPTIMIZER_##KIND:               \
        return ls_##rule##_step(&rules->name, tensor, p, g, m, v);
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
    default:
        return p;
    }
}

/* With LS_NORMS_UPDATE: moves the moments, returns the update. */
LS_RULE_FN float ls_rules_update(ls_optimizer_kind kind, const ls_rules *rules, float p, float g,
                                 float *m, float *v)
{
    switch (kind) {
#define LS_RULES_UPDATE_NONE(name, rule)
#define LS_RULES_UPDATE_GRAD(name, rule)
#define LS_RULES_UPDATE_UPDATE(name, rule) return ls_##rule##_update(&rules->name, p, g, m, v);
#define LS_OPTIMIZER(KIND, name, rule, variants, norms, ...) \
    case LS_OPTIMIZER_##KIND:                                \
        LS_RULES_UPDATE_##norms(name, rule) break;
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
    default:
        break;
    }
    return 0;
}

/* Flags as a constant that loops can be compiled for. */
LS_RULE_FN void ls_rules_set_flags(ls_optimizer_kind kind, ls_rules *rules, uint32_t flags)
{
    switch (kind) {
#define LS_OPTIMIZER(KIND, name, ...) \
    case LS_OPTIMIZER_##KIND:         \
        rules->name.flags = flags;    \
        break;
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
    default:
        break;
    }
}

#endif
