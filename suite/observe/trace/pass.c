#include "pass.h"

#include <math.h>
#include <string.h>

bool ls_pass_is_trained(const ls_event *pass)
{
    return ls_event_bool(pass, trained, false);
}

bool ls_pass_is_validation(const ls_event *pass)
{
    return !ls_pass_is_trained(pass) && ls_event_number(pass, count, 0) > 0;
}

static double step_of(const ls_event *pass, int end)
{
    const ls_event *step = ls_event_at(ls_event_list(pass, steps), end);
    int64_t number;
    bool is = ls_event_is_number(step) && ls_json_whole(step->number, 0, INT64_C(1) << 53, &number);
    return is ? (double)number : NAN;
}

double ls_pass_first_step(const ls_event *pass)
{
    return step_of(pass, 0);
}

double ls_pass_last_step(const ls_event *pass)
{
    return step_of(pass, 1);
}

const ls_observe_step *ls_pass_steps(const ls_observe_rank *rank, const ls_event *pass, int *count)
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

const ls_event *ls_pass_trained(const ls_observe_rank *rank, int index)
{
    const ls_event *pass;
    ls_event_each(pass, ls_trace_events(rank, data)) {
        if (ls_pass_is_trained(pass) && index-- == 0) {
            return pass;
        }
    }
    return NULL;
}

bool ls_pass_is_over_training_data(const ls_observe_rank *rank, const ls_event *pass)
{
    const ls_event *other;
    ls_event_each(other, ls_trace_events(rank, data)) {
        if (ls_pass_is_trained(other) &&
            ls_event_number(other, length, -1) == ls_event_number(pass, length, -2)) {
            return true;
        }
    }
    return false;
}

bool ls_pass_is_divided(const ls_event *pass, int world)
{
    if (strcmp(ls_event_text(pass, sampler, ""), "DistributedSampler") == 0) {
        return world > 1 && ls_event_int(pass, replicas, 1) == world;
    }
    double count = ls_event_number(pass, count, NAN), length = ls_event_number(pass, length, NAN);
    double room = world * fmax(1, ls_event_number(pass, batch, 1)); /* last batches */
    return world > 1 && ls_event_bool(pass, whole, false) && count < length &&
           fabs(world * count - length) <= room;
}
