/* Groups of parameters with a weight decay and a learning rate of their own, as torch.optim's
 * param_groups:
 *
 *   --group PATTERN:wd=X[,lr-factor=F]      bn|bias:wd=0      ^fc\.:lr-factor=10
 *
 * PATTERN is an extended regular expression (regcomp), searched in a parameter's name and in what
 * it is: conv.weight, bn.weight, bn.bias, fc.weight, fc.bias. The first group that has a parameter
 * takes it; --no-bn-decay stands for a last one, bn|bias:wd=0. The learning rate is the schedule's
 * times F. */
#ifndef LS_GROUPS_H
#define LS_GROUPS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

enum { LS_GROUPS_MAX = 8, LS_GROUPS_TEXT = 128 };

typedef struct ls_groups_rule {
    char text[LS_GROUPS_TEXT]; /* as it was given */
    char pattern[LS_GROUPS_TEXT];
    double weight_decay; /* NAN: that of all */
    double lr_factor;
} ls_groups_rule;

typedef struct ls_groups {
    int count;
    ls_groups_rule rule[LS_GROUPS_MAX + 1]; /* --no-bn-decay's behind the others */
} ls_groups;

/* False for text that is no group. */
bool ls_groups_read(const char *text, ls_groups_rule *out);
/* Writes the group of each parameter, 0 for one that no rule takes, else the number of its rule
 * from 1 on. LS_ERR_USAGE, naming the rule, where one takes no parameter. */
ls_status ls_groups_assign(const ls_groups *groups, const ls_network *network, uint8_t *group);

#endif
