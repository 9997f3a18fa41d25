#include "optimizers.h"

#include <string.h>

#include "kernels/core/log.h"

static const struct optimizer {
    const char *name;
    int moments;
    const char *moment[2];
    double epsilon;
    const char *options;
} optimizers[LS_OPTIMIZER_KINDS] = {
#define LS_OPTIMIZER(KIND, name, rule, variants, norms, moments, moment1, moment2, epsilon, \
                     options)                                                               \
    [LS_OPTIMIZER_##KIND] = {#name, moments, {moment1, moment2}, epsilon, options},
#include "optimizers.def"
#undef LS_OPTIMIZER
};

static const struct optimizer *row_of(ls_optimizer_kind kind)
{
    LS_ASSERT(kind >= 0 && kind < LS_OPTIMIZER_KINDS);
    return &optimizers[kind];
}

const char *ls_optimizers_name(ls_optimizer_kind kind)
{
    return row_of(kind)->name;
}

ls_optimizer_kind ls_optimizers_find(const char *name)
{
    int kind = 0;
    while (kind < LS_OPTIMIZER_KINDS && strcmp(name, optimizers[kind].name) != 0) {
        kind++;
    }
    return (ls_optimizer_kind)kind;
}

int ls_optimizers_moments(ls_optimizer_kind kind, double momentum)
{
    /* as torch.optim.SGD, which makes its buffer only with momentum */
    return kind == LS_OPTIMIZER_SGD && momentum == 0.0 ? 0 : row_of(kind)->moments;
}

int ls_optimizers_moments_used(const ls_optimizer_config *config)
{
    bool none = config->momentum == 0.0 && ls_optimizers_takes(config->kind, "momentum");
    return none ? 0 : row_of(config->kind)->moments;
}

ls_optimizer_args ls_optimizers_args(const ls_optimizer_config *config,
                                     const ls_optimizer_args *args)
{
    ls_optimizer_args used = *args;
    ls_tensor_list *const list[] = {&used.grad, &used.moment1, &used.moment2};
    int moments = ls_optimizers_moments_used(config);
    for (int k = 0; k < 3; k++) {
        if (k > moments) {
            *list[k] = (ls_tensor_list){0};
            continue;
        }
        LS_ASSERT(list[k]->count == used.value.count);
        for (int i = 0; i < used.value.count; i++) {
            LS_ASSERT(list[k]->tensor[i].count == used.value.tensor[i].count);
            LS_ASSERT(k == 0 || list[k]->tensor[i].dtype == LS_F32);
        }
    }
    return used;
}

const char *ls_optimizers_moment_name(ls_optimizer_kind kind, int moment)
{
    LS_ASSERT(moment >= 0 && moment < row_of(kind)->moments);
    return row_of(kind)->moment[moment];
}

bool ls_optimizers_takes(ls_optimizer_kind kind, const char *option)
{
    size_t length = strlen(option);
    for (const char *name = row_of(kind)->options; *name != '\0'; name += strspn(name, " ")) {
        size_t bytes = strcspn(name, " ");
        if (bytes == length && strncmp(name, option, length) == 0) {
            return true;
        }
        name += bytes;
    }
    return false;
}

double ls_optimizers_epsilon(ls_optimizer_kind kind, double standard)
{
    return row_of(kind)->epsilon > 0 ? row_of(kind)->epsilon : standard;
}
