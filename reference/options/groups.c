#include "options.h"

#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/plant.h"
#include "kernels/core/text.h"

static bool read_number(const char **text, double *out)
{
    char *end;
    double value = strtod(*text, &end);
    if (end == *text || !(value >= 0 && value <= 1e30)) {
        return false;
    }
    *text = end;
    *out = value;
    return true;
}

/* "wd=0,lr-factor=10": each at most once. */
static bool read_settings(const char *text, ls_groups_rule *out)
{
    bool decay = false, rate = false;
    do {
        if (!decay && strncmp(text, "wd=", 3) == 0) {
            decay = true;
            text += 3;
            if (!read_number(&text, &out->weight_decay)) {
                return false;
            }
        } else if (!rate && strncmp(text, "lr-factor=", 10) == 0) {
            rate = true;
            text += 10;
            if (!read_number(&text, &out->lr_factor)) {
                return false;
            }
        } else {
            return false;
        }
    } while (*text++ == ',');
    return text[-1] == '\0';
}

bool ls_groups_read(const char *text, ls_groups_rule *out)
{
    ls_groups_rule rule = {.weight_decay = NAN, .lr_factor = 1};
    const char *colon = strrchr(text, ':');
    regex_t compiled;
    if (colon == NULL || colon == text || strlen(text) >= sizeof rule.text ||
        !read_settings(colon + 1, &rule)) {
        return false;
    }
    ls_text_put(rule.text, sizeof rule.text, "%s", text);
    ls_text_put(rule.pattern, sizeof rule.pattern, "%.*s", (int)(colon - text), text);
    if (regcomp(&compiled, rule.pattern, REG_EXTENDED | REG_NOSUB) != 0) {
        return false;
    }
    regfree(&compiled);
    *out = rule;
    return true;
}

static const char *role_of(const ls_param *param)
{
    static const char *const role[] = {
        [LS_PARAM_CONV_WEIGHT] = "conv.weight", [LS_PARAM_NORM_WEIGHT] = "bn.weight",
        [LS_PARAM_NORM_BIAS] = "bn.bias",       [LS_PARAM_LINEAR_WEIGHT] = "fc.weight",
        [LS_PARAM_LINEAR_BIAS] = "fc.bias",
    };
    return LS_PLANT(groups_by_name_only, role[param->role], "");
}

/* Takes the parameters that no rule before has taken. */
static ls_status assign(const ls_groups_rule *rule, int number, const ls_network *network,
                        uint8_t *group)
{
    regex_t compiled;
    int taken = 0, found = 0;
    LS_ASSERT(regcomp(&compiled, rule->pattern, REG_EXTENDED | REG_NOSUB) == 0);
    for (int i = 0; i < network->param_count; i++) {
        const ls_param *param = &network->param[i];
        bool fits = regexec(&compiled, param->name, 0, NULL, 0) == 0 ||
                    regexec(&compiled, role_of(param), 0, NULL, 0) == 0;
        found += fits;
        if (fits && (group[i] == 0 || LS_PLANT(last_group_wins, false, true))) {
            group[i] = (uint8_t)number;
            taken++;
        }
    }
    regfree(&compiled);
    LS_REFUSE_IF(taken == 0,
                 found > 0 ? "--group %s: groups before it take all of its parameters"
                           : "--group %s: %s has no such parameter; there are names as "
                             "%s, and conv.weight, bn.weight, bn.bias, fc.weight, fc.bias",
                 rule->text, network->arch, network->param[0].name);
    return LS_OK;
}

ls_status ls_groups_assign(const ls_groups *groups, const ls_network *network, uint8_t *group)
{
    memset(group, 0, (size_t)network->param_count);
    for (int g = 0; g < groups->count; g++) {
        LS_TRY(assign(&groups->rule[g], g + 1, network, group));
    }
    return LS_OK;
}
