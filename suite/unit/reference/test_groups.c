/* Groups of parameters: what a text stands for, and which parameters a pattern takes. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/model/model.h"
#include "reference/options/options.h"
#include "suite/unit/run_suite.h"

TEST(texts)
{
    static const struct {
        const char *text, *pattern; /* NULL: refused */
        double weight_decay, lr_factor;
    } rows[] = {
        {"bn|bias:wd=0", "bn|bias", 0, 1},
        {"fc:lr-factor=0.5", "fc", NAN, 0.5},
        {"a:b:wd=1e-4,lr-factor=10", "a:b", 1e-4, 10},
        {"a:lr-factor=0,wd=2", "a", 2, 0},
        {"a", NULL, 0, 0},
        {":wd=0", NULL, 0, 0},
        {"a:", NULL, 0, 0},
        {"a:wd", NULL, 0, 0},
        {"a:wd=", NULL, 0, 0},
        {"a:wd=-1", NULL, 0, 0},
        {"a:wd=nan", NULL, 0, 0},
        {"a:wd=inf", NULL, 0, 0},
        {"a:wd=0,", NULL, 0, 0},
        {"a:wd=0,wd=0", NULL, 0, 0},
        {"a:wd=0x", NULL, 0, 0},
        {"a:lr=1", NULL, 0, 0},
        {"(:wd=0", NULL, 0, 0},
        {"a[:wd=0", NULL, 0, 0},
        {"", NULL, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ls_groups_rule rule = {.text = "as before"};
        bool taken = ls_groups_read(rows[i].text, &rule);
        ck_assert_msg(taken == (rows[i].pattern != NULL), "%s", rows[i].text);
        if (!taken) {
            ck_assert_str_eq(rule.text, "as before");
            continue;
        }
        ck_assert_str_eq(rule.text, rows[i].text);
        ck_assert_str_eq(rule.pattern, rows[i].pattern);
        ck_assert(isnan(rows[i].weight_decay) ? isnan(rule.weight_decay)
                                              : rule.weight_decay == rows[i].weight_decay);
        ck_assert(rule.lr_factor == rows[i].lr_factor);
    }
    char longest[LS_GROUPS_TEXT + 1];
    memset(longest, 'a', sizeof longest);
    memcpy(longest + LS_GROUPS_TEXT - 6, ":wd=0", 6);
    ls_groups_rule rule;
    ck_assert(ls_groups_read(longest, &rule));
    memset(longest, 'a', sizeof longest);
    memcpy(longest + LS_GROUPS_TEXT - 5, ":wd=0", 6);
    ck_assert(!ls_groups_read(longest, &rule));
}

static ls_groups groups_of(const char *first, const char *second)
{
    ls_groups groups = {.count = second != NULL ? 2 : 1};
    ck_assert(ls_groups_read(first, &groups.rule[0]));
    ck_assert(second == NULL || ls_groups_read(second, &groups.rule[1]));
    return groups;
}

TEST(members)
{
    ls_network network;
    ck_assert_int_eq(ls_model_build("resnet18", 10, 32, &network), LS_OK);
    uint8_t *group = malloc((size_t)network.param_count);
    ls_groups groups = groups_of("^fc:lr-factor=2", "bn|bias:wd=0");
    ck_assert_int_eq(ls_groups_assign(&groups, &network, group), LS_OK);
    int of[3] = {0};
    for (int i = 0; i < network.param_count; i++) {
        const ls_param *param = &network.param[i];
        bool norm = param->role == LS_PARAM_NORM_WEIGHT || param->role == LS_PARAM_NORM_BIAS;
        ck_assert_int_eq(group[i], strncmp(param->name, "fc.", 3) == 0 ? 1 : norm ? 2 : 0);
        of[group[i]]++;
    }
    /* 20 convolutions, 20 batch norms, 3 of them named downsample.1, and the classifier */
    ck_assert_int_eq(of[0], 20);
    ck_assert_int_eq(of[1], 2);
    ck_assert_int_eq(of[2], 40);
    groups = groups_of("^conv.weight$:wd=1", "layer1:wd=2");
    ck_assert_int_eq(ls_groups_assign(&groups, &network, group), LS_OK);
    memset(of, 0, sizeof of);
    for (int i = 0; i < network.param_count; i++) {
        of[group[i]]++;
    }
    ck_assert_int_eq(of[1], 20); /* by their kind */
    ck_assert_int_eq(of[2], 8);  /* the batch norms of layer1: its convolutions were taken before */
    groups = groups_of("layer5:wd=0", NULL);
    ck_assert_int_eq(ls_groups_assign(&groups, &network, group), LS_ERR_USAGE);
    groups = groups_of("fc:wd=0", "^fc.bias:wd=1");
    ck_assert_int_eq(ls_groups_assign(&groups, &network, group), LS_ERR_USAGE);
    free(group);
    ls_model_free(&network);
}

TEST_MAIN("groups")
