/* What was seen of an observed job, for summary.json and the report. */
#include "observe_parts.h"

#include <string.h>
#include <unistd.h>

#include "harness/report/stats.h"
#include "kernels/core/list.h"

static const ls_observe_rank *first_with_events(const ls_observe_trace *trace)
{
    for (int k = 0; k < trace->world; k++) {
        if (trace->rank[k].record->start != NULL) {
            return &trace->rank[k];
        }
    }
    return NULL;
}

/* ---- the job --------------------------------------------------------------------------------- */

static void add_value(cJSON *to, const char *name, const ls_event *value)
{
    if (ls_event_is_text(value)) {
        cJSON_AddStringToObject(to, name, value->text);
    } else if (ls_event_is_number(value)) {
        cJSON_AddNumberToObject(to, name, value->number);
    } else if (ls_event_is(value, LS_TYPE_TRUE) || ls_event_is(value, LS_TYPE_FALSE)) {
        cJSON_AddBoolToObject(to, name, ls_event_to_bool(value, false));
    }
}

static void add_members(cJSON *to, const ls_event *from, const ls_event_member *member, int count)
{
    for (int i = 0; i < count; i++) {
        const ls_event *value = ls_event_get(from, member[i]);
        if (value != NULL) {
            add_value(to, ls_event_key(value), value);
        }
    }
}

/* The words of start's program as one line. */
static void add_program(cJSON *to, const ls_event *start)
{
    const ls_event *program = ls_event_member(start, program), *word;
    char text[600];
    ls_text_put(text, sizeof text, "%s", ls_event_to_text(program, ""));
    ls_event_each(word, program) {
        ls_text_add(text, sizeof text, "%s%s", text[0] == '\0' ? "" : " ",
                    ls_event_to_text(word, "?"));
    }
    cJSON_AddStringToObject(to, "program", text);
}

/* Of a model's parameters; those of a dump are all of model 0. */
static void add_size(cJSON *to, const ls_observe_rank *rank, int model)
{
    double elements = 0;
    int tensors = 0;
    for (int i = 0; i < rank->tensor_count; i++) {
        if (rank->tensor[i].model == model) {
            elements += (double)rank->tensor[i].elements;
            tensors++;
        }
    }
    cJSON_AddNumberToObject(to, "tensors", tensors);
    cJSON_AddNumberToObject(to, "elements", elements);
}

static void add_models(cJSON *to, const ls_observe_rank *rank)
{
    static const ls_event_member names[] = {
        LS_MEMBER_name,    LS_MEMBER_kind,     LS_MEMBER_at,           LS_MEMBER_bn,
        LS_MEMBER_sync_bn, LS_MEMBER_compiled, LS_MEMBER_static_graph, LS_MEMBER_parts};
    cJSON *models = cJSON_AddArrayToObject(to, "models");
    const ls_event *model;
    ls_event_each(model, ls_trace_events(rank, model)) {
        cJSON *out = ls_json_append_object(models);
        add_members(out, model, names, sizeof names / sizeof *names);
        add_size(out, rank, ls_event_int(model, model, 0));
    }
    if (cJSON_GetArraySize(models) == 0 && rank->tensor_count > 0) { /* of a dump */
        cJSON *out = ls_json_append_object(models);
        const cJSON *options = ls_json_get(rank->record->start, "options");
        cJSON_AddStringToObject(out, "name", ls_json_string(options, "arch", "model"));
        add_size(out, rank, 0);
    }
}

static void add_optimizers(cJSON *to, const ls_observe_rank *rank)
{
    static const ls_event_member names[] = {LS_MEMBER_class, LS_MEMBER_rule, LS_MEMBER_at};
    static const ls_event_member settings[] = {LS_MEMBER_enabled, LS_MEMBER_init_scale,
                                               LS_MEMBER_growth_interval, LS_MEMBER_at};
    cJSON *optimizers = cJSON_AddArrayToObject(to, "optimizers");
    cJSON *scalers = cJSON_AddArrayToObject(to, "scalers");
    const ls_event *event;
    ls_event_each(event, ls_trace_events(rank, optimizer)) {
        cJSON *out = ls_json_append_object(optimizers);
        add_members(out, event, names, sizeof names / sizeof *names);
        cJSON_AddNumberToObject(out, "groups", ls_event_count(ls_event_list(event, groups)));
    }
    ls_event_each(event, ls_trace_events(rank, scaler)) {
        add_members(ls_json_append_object(scalers), event, settings,
                    sizeof settings / sizeof *settings);
    }
}

static void add_steps(cJSON *to, const ls_observe_trace *trace)
{
    int least = -1, most = 0, detailed = 0, skipped = 0;
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        int with_samples = 0, not_taken = 0;
        ls_trace_each_step(step, rank) {
            with_samples += step->detail;
            not_taken += step->step->skipped;
        }
        if (rank->record->has_events) {
            least = least < 0 || rank->step_count < least ? rank->step_count : least;
        }
        most = rank->step_count > most ? rank->step_count : most;
        detailed = with_samples > detailed ? with_samples : detailed;
        skipped = not_taken > skipped ? not_taken : skipped;
    }
    cJSON_AddNumberToObject(to, "steps", most);
    cJSON_AddNumberToObject(to, "steps_least", least < 0 ? 0 : least);
    cJSON_AddNumberToObject(to, "detailed_steps", detailed);
    cJSON_AddNumberToObject(to, "skipped_steps", skipped);
    int unused = ls_observe_unused(trace);
    if (unused > 0) {
        cJSON_AddNumberToObject(to, "unused_passes", unused);
    }
}

/* ---- what could not be seen ------------------------------------------------------------------ */

/* Sentences, each with the ranks that it is true of. */
typedef struct unseen {
    int count, capacity;
    struct unseen_line {
        char text[520];
        char ranks[120];
        int rank_count;
    } * line;
} unseen;

static void add_unseen(unseen *list, int rank, const char *text)
{
    int i = 0;
    while (i < list->count && strcmp(list->line[i].text, text) != 0) {
        i++;
    }
    if (i == list->count) {
        list->line = ls_list_grow(list->line, list->count, &list->capacity, sizeof *list->line);
        list->line[list->count++] = (struct unseen_line){.rank_count = 0};
        ls_text_put(list->line[i].text, sizeof list->line[i].text, "%s", text);
    }
    struct unseen_line *line = &list->line[i];
    if (line->rank_count < 8) {
        ls_text_add(line->ranks, sizeof line->ranks, "%s%d", line->rank_count == 0 ? "" : ", ",
                    rank);
    } else if (line->rank_count == 8) {
        ls_text_add(line->ranks, sizeof line->ranks, ", ...");
    }
    line->rank_count++;
}

/* Backward passes of a rank that made no step. */
static bool ran_backward(const ls_observe_rank *rank)
{
    const ls_event *tail, *call;
    ls_event_each(tail, ls_trace_events(rank, unfinished)) {
        ls_event_each(call, ls_event_list(tail, calls)) {
            if (strcmp(ls_event_text(call, call, ""), "backward") == 0) {
                return true;
            }
        }
    }
    return false;
}

static void list_unseen(const ls_observe_trace *trace, unseen *list)
{
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        const ls_event *event;
        bool quiet = false; /* it knows of nothing that came later */
        if (!rank->record->has_events) {
            add_unseen(list, k,
                       "wrote no events: on another node, or ended before a model was wrapped");
            continue;
        }
        ls_event_each(event, ls_trace_events(rank, attach)) {
            const char *at = ls_event_text(event, at, "");
            quiet = quiet || ls_event_bool(event, quiet, false);
            LS_TEXT(text, 520, "%s%s%s%s", ls_event_text(event, error, "an error"),
                    at[0] == '\0' ? "" : ", at ", at,
                    ls_event_bool(event, quiet, false) ? "; nothing was looked at after that" : "");
            add_unseen(list, k, text);
        }
        if (!rank->record->ended && trace->attached && !quiet) {
            LS_TEXT(text, 120, "wrote no end event: killed, or left by os._exit, after step %lld",
                    rank->step_count == 0 ? 0LL
                                          : (long long)rank->step[rank->step_count - 1].step->step);
            add_unseen(list, k, text);
        }
        LS_TEXT(later, PATH_MAX, "%s/later.rank%d", trace->record.directory, k);
        if (access(later, F_OK) == 0) {
            add_unseen(list, k,
                       "another process trained, too, at the same time, or as the tenth job of the "
                       "command: put lockstep observe before that one");
        }
        if (rank->step_count == 0 && !quiet) {
            add_unseen(list, k,
                       ran_backward(rank)
                           ? "made no step: no optimizer of torch.optim's was asked to step, and "
                             "backward passes ran: one of another kind is not seen"
                           : "made no step: no optimizer was asked to step");
        }
    }
}

static void add_what_was_unseen(cJSON *to, const ls_observe_trace *trace)
{
    unseen list = {0};
    cJSON *sentences = cJSON_AddArrayToObject(to, "unseen");
    list_unseen(trace, &list);
    for (int i = 0; i < list.count; i++) {
        const struct unseen_line *line = &list.line[i];
        bool all = line->rank_count == trace->world && trace->world > 1;
        LS_TEXT(text, 700, "%s %s: %s",
                all                     ? "all"
                : line->rank_count == 1 ? "rank"
                                        : "ranks",
                all ? "ranks" : line->ranks, line->text);
        cJSON_AddItemToArray(sentences, cJSON_CreateString(text));
    }
    if (trace->record.broken[0] != '\0') {
        LS_TEXT(text, 700, "%s: what follows was not read", trace->record.broken);
        cJSON_AddItemToArray(sentences, cJSON_CreateString(text));
    }
    free(list.line);
}

/* ---- cost and speed -------------------------------------------------------------------------- */

/* Of the rank on which observing took the largest share. */
static void add_cost(cJSON *to, const ls_observe_trace *trace)
{
    static const ls_event_member names[] = {LS_MEMBER_own_ms, LS_MEMBER_run_ms, LS_MEMBER_share,
                                            LS_MEMBER_detail_ms, LS_MEMBER_gradient_ms};
    int dearest = -1;
    double most = -1;
    for (int k = 0; k < trace->world; k++) {
        double share = ls_event_number(trace->rank[k].cost, share, -1);
        if (share > most) {
            most = share;
            dearest = k;
        }
    }
    if (dearest < 0) {
        return;
    }
    cJSON *cost = cJSON_AddObjectToObject(to, "cost");
    cJSON_AddNumberToObject(cost, "rank", dearest);
    add_members(cost, trace->rank[dearest].cost, names, sizeof names / sizeof *names);
}

enum {
    FIRST = 3, /* the first steps allocate, choose algorithms and run the model again in FP64 */
    PARTS = 4
};

/* Of a rank's steady steps: the third and later ones that were not looked at in detail. Shares are
 * parts of the steps' own time, without the attach module's. */
typedef struct pace {
    int steps;
    double images_per_s, step_ms_p50, step_ms_p90;
    double share[PARTS]; /* waiting for data, forward, backward, optimizer */
    double work_ms;      /* median of its own work: backward holds the wait for others */
} pace;

static double known(double value)
{
    return value > 0 ? value : 0;
}

static pace pace_of(const ls_observe_trace *trace, const ls_observe_rank *rank)
{
    pace p = {0};
    double *total = ls_list_make((size_t)rank->step_count + 1, sizeof *total);
    double *work = ls_list_make((size_t)rank->step_count + 1, sizeof *work);
    double images = 0, sum = 0;
    ls_trace_each_step(one, rank) {
        const ls_record_step *s = one->step;
        const double part[PARTS] = {known(s->data_ms), known(s->forward_ms), known(s->backward_ms),
                                    known(s->optimizer_ms)};
        if (s->step < FIRST || one->detail || !(s->total_ms > 0)) {
            continue;
        }
        /* a trainer of the protocol leaves the time of its own events out */
        double instrument = trace->attached ? known(s->instrument_ms) : 0;
        total[p.steps] = s->total_ms > instrument ? s->total_ms - instrument : s->total_ms;
        work[p.steps] = part[0] + part[1] + part[3];
        sum += total[p.steps++];
        images += (double)s->images;
        for (int i = 0; i < PARTS; i++) {
            p.share[i] += part[i];
        }
    }
    for (int i = 0; i < PARTS; i++) {
        p.share[i] /= sum;
    }
    p.images_per_s = images / sum * 1000;
    p.step_ms_p50 = ls_stats_percentile(total, p.steps, 0.5);
    p.step_ms_p90 = ls_stats_percentile(total, p.steps, 0.9);
    p.work_ms = ls_stats_percentile(work, p.steps, 0.5);
    free(total);
    free(work);
    return p;
}

/* Absent where no step can be timed. Ranks step together: the one with the longest median step says
 * how long a step is. */
static void add_speed(cJSON *to, const ls_observe_trace *trace)
{
    double *work = ls_list_make((size_t)trace->world + 1, sizeof *work), rate = 0;
    double slowest_ms = -1;
    int ranks = 0, slowest = -1, least = 0;
    pace longest = {0};
    for (int k = 0; k < trace->world; k++) {
        pace p = pace_of(trace, &trace->rank[k]);
        if (p.steps == 0) {
            continue;
        }
        longest = p.step_ms_p50 > longest.step_ms_p50 ? p : longest;
        if (p.work_ms > slowest_ms) {
            slowest = k;
            slowest_ms = p.work_ms;
        }
        least = ranks == 0 || p.steps < least ? p.steps : least;
        rate += p.images_per_s;
        work[ranks++] = p.work_ms;
    }
    if (ranks > 0) {
        const struct {
            const char *name;
            double value;
        } members[] = {{"samples_per_s", rate},
                       {"step_ms_p50", longest.step_ms_p50},
                       {"step_ms_p90", longest.step_ms_p90},
                       {"data_share", longest.share[0]},
                       {"forward_share", longest.share[1]},
                       {"backward_share", longest.share[2]},
                       {"optimizer_share", longest.share[3]},
                       {"slowest_own_ms", slowest_ms},
                       {"median_own_ms", ls_stats_percentile(work, ranks, 0.5)}};
        cJSON *out = cJSON_AddObjectToObject(to, "speed");
        cJSON_AddNumberToObject(out, "ranks", ranks);
        cJSON_AddNumberToObject(out, "steps_measured", least);
        cJSON_AddNumberToObject(out, "slowest_rank", slowest);
        for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
            ls_json_add_number(out, members[i].name, members[i].value);
        }
    }
    free(work);
}

cJSON *ls_observe_summary_make(const ls_observe_trace *trace)
{
    static const ls_event_member names[] = {LS_MEMBER_device, LS_MEMBER_backend, LS_MEMBER_engine,
                                            LS_MEMBER_python, LS_MEMBER_torch};
    cJSON *out = cJSON_CreateObject();
    LS_MEMORY(out != NULL);
    const ls_observe_rank *rank = first_with_events(trace);
    int with_events = 0;
    for (int k = 0; k < trace->world; k++) {
        with_events += trace->rank[k].record->has_events;
    }
    cJSON_AddBoolToObject(out, "attached", trace->attached);
    cJSON_AddNumberToObject(out, "world", trace->world);
    cJSON_AddNumberToObject(out, "ranks_with_events", with_events);
    if (rank != NULL) {
        const ls_event *observe = ls_event_object(rank->start, observe), *value;
        add_members(out, rank->start, names, sizeof names / sizeof *names);
        add_program(out, rank->start);
        if (observe != NULL) {
            cJSON *to = cJSON_AddObjectToObject(out, "observe");
            ls_event_each(value, observe) {
                add_value(to, ls_event_key(value), value);
            }
        }
        add_models(out, rank);
        add_optimizers(out, rank);
    }
    add_steps(out, trace);
    add_what_was_unseen(out, trace);
    add_cost(out, trace);
    add_speed(out, trace);
    return out;
}
