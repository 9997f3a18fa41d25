#include "pass.h"

#include <math.h>

bool ls_pass_is_trained(const cJSON *pass)
{
    return ls_json_bool(pass, "trained", false);
}

bool ls_pass_is_validation(const cJSON *pass)
{
    return !ls_pass_is_trained(pass) && ls_json_number(pass, "count", 0) > 0;
}

static double step_of(const cJSON *pass, int end)
{
    const cJSON *step = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(pass, "steps"), end);
    return cJSON_IsNumber(step) ? step->valuedouble : NAN;
}

double ls_pass_first_step(const cJSON *pass)
{
    return step_of(pass, 0);
}

double ls_pass_last_step(const cJSON *pass)
{
    return step_of(pass, 1);
}

const cJSON *ls_pass_trained(const ls_observe_rank *rank, int index)
{
    const cJSON *pass;
    cJSON_ArrayForEach(pass, rank->data)
    {
        if (ls_pass_is_trained(pass) && index-- == 0) {
            return pass;
        }
    }
    return NULL;
}

bool ls_pass_is_over_training_data(const ls_observe_rank *rank, const cJSON *pass)
{
    const cJSON *other;
    cJSON_ArrayForEach(other, rank->data)
    {
        if (ls_pass_is_trained(other) &&
            ls_json_number(other, "length", -1) == ls_json_number(pass, "length", -2)) {
            return true;
        }
    }
    return false;
}
