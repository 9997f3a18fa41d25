#include "compare_judgement.h"

#include <math.h>
#include <stdio.h>

#include "kernels/core/json.h"

void ls_compare_verdict_conclude(ls_compare_judgement *j)
{
    ls_compare_verdict *v = j->verdict;
    v->failures = j->checks.count;
    v->reduce_ratio = j->checks.reduce_ratio;
    if (j->checks.count > 0) {
        v->code = LS_COMPARE_FAIL;
        snprintf(v->tensor, sizeof v->tensor, "%s", j->checks.tensor);
        if (j->checks.count > 1) {
            snprintf(v->evidence, sizeof v->evidence, "%.280s; %d more", j->checks.line,
                     j->checks.count - 1);
        } else {
            snprintf(v->evidence, sizeof v->evidence, "%.319s", j->checks.line);
        }
    } else if (j->weak[0] != '\0') {
        v->code = LS_COMPARE_WEAK;
        snprintf(v->evidence, sizeof v->evidence, "%s", j->weak);
    } else {
        v->code = LS_COMPARE_PASS;
        snprintf(
            v->evidence, sizeof v->evidence,
            "%swhole gradient rel=%.1e limit=%.1e (%s ideal %s); tensors at most %.1f x, blocks "
            "%.1f x ideal; %lld of %lld branches turned, all near-ties%s%s%s",
            v->coarse ? "coarse: " : "", v->error, v->limit, j->level == 0 ? "32 x" : "2 x",
            ls_compare_judgement_type(j),
            fmax(v->ratio[LS_COMPARE_TENSOR], v->ratio[LS_COMPARE_SMALL]),
            fmax(v->ratio[LS_COMPARE_BLOCK], v->ratio[LS_COMPARE_EDGE]), (long long)v->turned,
            (long long)v->forced, v->reduce_judged ? "; reduction right" : "",
            v->next_judged ? "; step right" : "", v->buffers_judged ? "; statistics right" : "");
    }
}

static void add_tensors(const ls_compare_judgement *j, cJSON *list)
{
    for (int64_t i = 0; i < j->spans.count && !j->verdict->coarse; i++) {
        if (j->spans.kind[i] != LS_COMPARE_SPANS_TENSOR) {
            continue;
        }
        const ls_nettab_param *param = &j->evidence->net.param[j->spans.param[i]];
        cJSON *tensor = cJSON_CreateObject();
        cJSON_AddStringToObject(tensor, "name", param->name);
        cJSON_AddNumberToObject(tensor, "elements", (double)param->count);
        ls_json_add_number(tensor, "e", j->spans.error[i]);
        ls_json_add_number(tensor, "r", j->spans.ideal[i]);
        ls_json_add_number(tensor, "limit",
                           j->bounds[ls_compare_judgement_part(j, i)].factor * j->spans.ideal[i]);
        cJSON_AddItemToArray(list, tensor);
    }
}

ls_status ls_compare_verdict_write(const ls_compare_judgement *j, const char *path)
{
    static const char *const codes[] = {"PASS", "WEAK", "FAIL"};
    const ls_compare_verdict *v = j->verdict;
    char level[4] = {'O', (char)('0' + j->level), '\0'};
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "schema", 1);
    cJSON_AddStringToObject(root, "reference",
                            v->coarse ? "FP64 oracle on its own branches (coarse)"
                                      : "FP64 oracle on the subject's branches");
    cJSON_AddNumberToObject(root, "step", ls_dumpfile_number(j->evidence->file[0], "step", 0));
    cJSON_AddStringToObject(root, "level", level);
    cJSON_AddStringToObject(root, "half", ls_compare_judgement_type(j));
    cJSON *whole = cJSON_AddObjectToObject(root, "whole");
    ls_json_add_number(whole, "e", v->error);
    ls_json_add_number(whole, "r", v->ideal);
    ls_json_add_number(whole, "limit", v->limit);
    add_tensors(j, cJSON_AddArrayToObject(root, "tensors"));
    cJSON *ratios = cJSON_AddObjectToObject(root, "ratios"); /* largest e/r of each kind */
    static const char *const parts[] = {"whole", "tensor", "small", "block", "edge"};
    cJSON *prices = cJSON_AddObjectToObject(root, "prices"); /* largest error of the ideal */
    for (int p = 0; p < LS_COMPARE_PARTS; p++) {
        ls_json_add_number(ratios, parts[p], v->ratio[p]);
        ls_json_add_number(prices, parts[p], v->ideal_error[p]);
    }
    ls_json_add_number(ratios, "logits", v->logits_ratio);
    ls_json_add_number(ratios, "reduce", v->reduce_ratio);
    ls_json_add_number(ratios, "next", v->next_ratio);
    ls_json_add_number(ratios, "buffer", v->buffer_ratio);
    ls_json_add_number(root, "tie_ratio", v->tie_ratio);
    cJSON_AddNumberToObject(root, "branches", (double)v->forced);
    cJSON_AddNumberToObject(root, "branches_turned", (double)v->turned);
    cJSON_AddBoolToObject(root, "reduce_judged", v->reduce_judged);
    cJSON_AddBoolToObject(root, "next_judged", v->next_judged);
    cJSON_AddBoolToObject(root, "buffers_judged", v->buffers_judged);
    cJSON_AddStringToObject(root, "verdict", codes[v->code]);
    cJSON_AddStringToObject(root, "evidence", v->evidence);
    cJSON_AddStringToObject(root, "cause", v->cause);
    ls_status status = ls_json_write_file(path, root);
    cJSON_Delete(root);
    return status;
}