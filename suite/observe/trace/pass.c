#include "pass.h"

#include <math.h>
#include <string.h>

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
    int64_t number;
    bool is =
        cJSON_IsNumber(step) && ls_json_whole(step->valuedouble, 0, INT64_C(1) << 53, &number);
    return is ? (double)number : NAN;
}

double ls_pass_first_step(const cJSON *pass)
{
    return step_of(pass, 0);
}

double ls_pass_last_step(const cJSON *pass)
{
    return step_of(pass, 1);
}

const ls_observe_step *ls_pass_steps(const ls_observe_rank *rank, const cJSON *pass, int *count)
{
    double base = rank->step_count > 0 ? (double)rank->step[0].step->step : 0;
    double first = ls_pass_first_step(pass), last = ls_pass_last_step(pass);
    *count = 0;
    if (isnan(first) || isnan(last)) {
        return NULL;
    }
    first = fmax(first, base);
    last = fmin(last, base + rank->step_count - 1);
    *count = first <= last ? (int)(last - first) + 1 : 0;
    return *count > 0 ? &rank->step[(int)(first - base)] : NULL;
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

bool ls_pass_is_divided(const cJSON *pass, int world)
{
    if (strcmp(ls_json_string(pass, "sampler", ""), "DistributedSampler") == 0) {
        return world > 1 && ls_json_int(pass, "replicas", 1) == world;
    }
    double count = ls_json_number(pass, "count", NAN), length = ls_json_number(pass, "length", NAN);
    double room = world * fmax(1, ls_json_number(pass, "batch", 1)); /* last batches */
    return world > 1 && ls_json_bool(pass, "whole", false) && count < length &&
           fabs(world * count - length) <= room;
}
