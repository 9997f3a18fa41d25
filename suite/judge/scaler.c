#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "judges.h"

double ls_judge_scaler_tick(ls_judge_scaler_machine *m, bool overflow)
{
    if (overflow) {
        m->scale = m->scale / 2 > m->lowest ? m->scale / 2 : m->lowest;
        m->clean = 0;
    } else if (++m->clean >= m->interval) {
        m->scale = m->scale * 2 < m->highest ? m->scale * 2 : m->highest;
        m->clean = 0;
    }
    return m->scale;
}

/* The machine as the rank's own start event describes it, with Apex's defaults for what it omits.
 * It starts with the scale that was asked for; a resumed one with that of its first step. */
static ls_judge_scaler_machine machine_of(const ls_record_rank *rank, bool dynamic,
                                          const char *asked)
{
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(rank->start, "options");
    bool torch = strcmp(ls_json_string(options, "dialect", "apex"), "torch") == 0;
    ls_judge_scaler_machine m = {rank->step[0].loss_scale,
                                 ls_json_number(options, "min-loss-scale", 0), 0, 0,
                                 ls_json_int(options, "growth-interval", 2000)};
    m.highest = ls_json_number(options, "max-loss-scale", 0);
    if (m.highest <= 0) {
        m.highest = torch ? INFINITY : 16777216; /* 2^24: Apex's default max_loss_scale */
    }
    if (rank->step[0].step == 1) {
        double first = ls_json_number(options, "init-scale", m.scale);
        m.scale = dynamic ? fmin(fmax(first, m.lowest), m.highest) : m.scale;
        m.scale = dynamic || asked[0] == '\0' ? m.scale : strtod(asked, NULL);
    }
    return m;
}

/* The first step whose scale does not follow from the skipped steps; NULL if all do. */
static const ls_record_step *first_wrong(const ls_record_rank *rank, ls_judge_scaler_machine m,
                                         bool dynamic, double *expected, double *expected_next)
{
    for (int i = 0; i < rank->step_count; i++) {
        const ls_record_step *seen = &rank->step[i];
        double scale = *expected = m.scale;
        *expected_next = dynamic ? ls_judge_scaler_tick(&m, seen->skipped) : scale;
        if (seen->loss_scale != scale || seen->loss_scale_next != *expected_next ||
            (seen->skipped && !dynamic)) {
            return seen;
        }
    }
    return NULL;
}

/* A resumed run starts with a count of clean steps that its record does not contain: any count is
 * accepted. Those that do not reach the interval within the record are all like 0. */
static const ls_record_step *follows(const ls_record_rank *rank, bool dynamic, const char *asked,
                                     double *expected, double *expected_next)
{
    ls_judge_scaler_machine m = machine_of(rank, dynamic, asked);
    const ls_record_step *wrong = first_wrong(rank, m, dynamic, expected, expected_next);
    bool resumed = rank->step[0].step > 1;
    int least = m.interval - rank->step_count > 1 ? m.interval - rank->step_count : 1;
    for (m.clean = least; resumed && wrong != NULL && m.clean < m.interval; m.clean++) {
        if (first_wrong(rank, m, dynamic, &(double){0}, &(double){0}) == NULL) {
            return NULL;
        }
    }
    return wrong;
}

/* Whether a step's event lacks what the rule is about. */
static const char *lacks(const ls_record_rank *rank, bool dynamic)
{
    for (int i = 0; i < rank->step_count; i++) {
        const ls_record_step *seen = &rank->step[i];
        if (isnan(seen->loss_scale) || isnan(seen->loss_scale_next)) {
            return "the events have no loss scale";
        }
        if (dynamic && !seen->skip_given) {
            return "the events do not say whether a step was skipped";
        }
    }
    return NULL;
}

/* Overflows may occur at any step; given the skipped steps, the scales must follow. */
void ls_judge_scaler(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const char *asked = row->job[0].loss_scale;
    bool dynamic = strcmp(asked, "dynamic") == 0;
    int skipped = 0, moved = 0, followed = 0;
    for (int k = 0; k < job->world; k++) {
        const ls_record_rank *rank = &job->rank[k];
        if (rank->step_count == 0) {
            ls_verdict_fail(out, "rank=%d has no steps", k);
            return;
        }
        const char *lacking = lacks(rank, dynamic);
        if (lacking != NULL) {
            ls_verdict_set(out, LS_UNSUPPORTED, "rank=%d: %s", k, lacking);
            continue;
        }
        double scale = 0, next = 0;
        const ls_record_step *wrong = follows(rank, dynamic, asked, &scale, &next);
        if (wrong != NULL) {
            ls_verdict_fail(out, "rank=%d step %d: scale %g, then %g, %s; expected %g, then %g", k,
                            (int)wrong->step, wrong->loss_scale, wrong->loss_scale_next,
                            wrong->skipped ? "skipped" : "taken", scale, next);
        }
        followed += rank->step_count;
        for (int i = 0; i < rank->step_count; i++) {
            skipped += rank->step[i].skipped;
            moved += rank->step[i].loss_scale_next != rank->step[i].loss_scale;
        }
    }
    ls_judge_training_steps(job, out);
    ls_judge_training_taken(job, out);
    if (dynamic && moved == 0 && !ls_spec_is_timed(&row->job[0])) {
        ls_verdict_set(out, LS_WEAK,
                       "the scale stays at %g: nothing shows how it grows or backs off",
                       job->rank[0].step[0].loss_scale);
    }
    int ranks = job->world > 0 ? job->world : 1;
    ls_verdict_pass(out, followed, "scale follows its rule, %d skipped steps, %d changes",
                    skipped / ranks, moved / ranks);
}
