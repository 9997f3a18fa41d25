#include "job.h"

#include <math.h>
#include <string.h>

#include "kernels/core/text.h"
#include <strings.h>

enum { SHOWN = 3 };

void ls_job_add_name(ls_job_names *names, const char *name)
{
    if (names->count < SHOWN) {
        ls_text_add(names->text, sizeof names->text, "%s%.70s", names->count > 0 ? ", " : "", name);
    }
    names->count++;
}

const char *ls_job_names_text(ls_job_names *names)
{
    if (names->count > SHOWN && strstr(names->text, " more") == NULL) {
        ls_text_add(names->text, sizeof names->text, " and %d more", names->count - SHOWN);
    }
    return names->text;
}

const ls_event *ls_job_numbered(const ls_event *list, ls_event_member member, int number)
{
    const ls_event *entry, *found = NULL;
    ls_event_each(entry, list) {
        if (ls_event_to_int(ls_event_get(entry, member), 0) == number) {
            found = entry;
        }
    }
    return found;
}

const ls_event *ls_job_model(const ls_observe_rank *rank, int model)
{
    return ls_job_numbered(ls_trace_events(rank, model), LS_INTEGER(model), model);
}

const ls_event *ls_job_optimizer(const ls_observe_rank *rank, int optimizer)
{
    return ls_job_numbered(ls_trace_events(rank, optimizer), LS_INTEGER(optimizer), optimizer);
}

/* A framework's own file, which builds loaders and samplers anew, says nothing of the script. */
static bool is_of_script(const char *place, const char *loop)
{
    return place[0] != '\0' && (place[0] != '/' || loop[0] == '/');
}

const char *ls_job_data_place_of(const ls_event *data, ls_event_member member)
{
    const char *loop = ls_event_text(data, at, ""),
               *place = ls_event_to_text(ls_event_get(data, member), "");
    const char *built = ls_event_text(data, built, "");
    if (is_of_script(place, loop)) {
        return place;
    }
    return is_of_script(built, loop) ? built : loop;
}

int ls_job_models(const ls_observe_rank *rank)
{
    enum { MOST = 4096 }; /* higher numbers are no model's */
    int count = 0;
    const ls_event *model;
    ls_event_each(model, ls_trace_events(rank, model)) {
        int index = ls_event_int(model, model, 0);
        count = index >= count && index < MOST ? index + 1 : count;
    }
    return count;
}

int ls_job_count_of(const ls_event *event, ls_event_member member)
{
    int count = ls_event_to_int(ls_event_get(event, member), 0);
    return count >= 0 && count <= 1 << 24 ? count : 0;
}

bool ls_job_model_is_ddp(const ls_event *model)
{
    return strcmp(ls_event_text(model, kind, ""), "ddp") == 0;
}

/* The first text of a member, in a list of any rank, that contains one of the words; a model in
 * DistributedDataParallel is whole on each rank, whatever its name. */
static const char *find_word(const ls_observe_trace *trace, bool models, const char *const *word,
                             int words)
{
    for (int k = 0; k < trace->world; k++) {
        const ls_event *entry;
        const ls_event *list = models ? ls_trace_events(&trace->rank[k], model)
                                      : ls_trace_events(&trace->rank[k], optimizer);
        ls_event_each(entry, list) {
            const char *class =
                models ? ls_event_text(entry, name, "") : ls_event_text(entry, class, "");
            bool whole = models && ls_job_model_is_ddp(entry);
            for (int w = 0; w < words && !whole; w++) {
                if (strstr(class, word[w]) != NULL) {
                    return class;
                }
            }
        }
    }
    return NULL;
}

bool ls_job_has_no_tensors(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world; k++) {
        if (trace->rank[k].tensor_count > 0) {
            return false;
        }
    }
    if (trace->attached) {
        ls_verdict_set(
            &out->verdict, LS_UNSUPPORTED,
            "no parameter is known: the %d models have 0 tensors that a rank holds whole",
            trace->world > 0 ? ls_job_models(&trace->rank[0]) : 0);
    }
    return trace->attached;
}

const char *ls_job_sharded(const ls_observe_trace *trace)
{
    static const char *const word[] = {"FSDP", "FullySharded", "DeepSpeed", "Pipeline"};
    return find_word(trace, true, word, (int)(sizeof word / sizeof *word));
}

const char *ls_job_sharded_optimizer(const ls_observe_trace *trace)
{
    static const char *const word[] = {"ZeroRedundancy", "DeepSpeed", "Distributed",
                                       "fairscale.optim.oss"};
    return find_word(trace, false, word, (int)(sizeof word / sizeof *word));
}

const char *ls_job_averages_later(const ls_observe_trace *trace)
{
    static const char *const word[] = {"LocalSGD", "localSGD", "ModelAverag"};
    const char *asked = ls_job_asked_value(trace, "comm-hook", 0);
    if (asked != NULL && strcmp(asked, "noop") == 0) {
        return "--comm-hook noop";
    }
    for (int k = 0; k < trace->world; k++) {
        const ls_event *hook;
        ls_event_each(hook, ls_trace_events(&trace->rank[k], hook)) {
            const char *name = ls_event_text(hook, name, "");
            if (strstr(name, "localSGD") != NULL) {
                return name;
            }
        }
    }
    return find_word(trace, false, word, (int)(sizeof word / sizeof *word));
}

bool ls_job_is_left_alone(const ls_observe_trace *trace)
{
    const ls_event *start = trace->rank[0].start;
    const ls_event *observe = ls_event_object(start, observe);
    int steps = ls_event_int(observe, steps, 0);
    return steps > 0 && trace->rank[0].step_count >= steps;
}

bool ls_job_ended_well(const ls_observe_trace *trace)
{
    ls_record_state state = trace->record.state;
    for (int k = 0; k < trace->world; k++) {
        const ls_record_rank *rank = trace->rank[k].record;
        if (!rank->ended || rank->code > 0 || rank->signal > 0) {
            return false;
        }
    }
    return state == LS_RECORD_DONE || state == LS_RECORD_UNKNOWN || state == LS_RECORD_STOPPED;
}

bool ls_job_was_stopped(const ls_observe_trace *trace)
{
    const cJSON *outcome = cJSON_GetObjectItemCaseSensitive(trace->record.job, "outcome");
    return ls_json_int(outcome, "asked", 0) != 0;
}

bool ls_job_calls_collectives(const ls_observe_trace *trace)
{
    for (int k = 0; k < trace->world; k++) {
        ls_trace_each_step(step, &trace->rank[k]) {
            if (ls_trace_find(step, LS_CALL_COLLECTIVE, 0) >= 0) {
                return true;
            }
        }
    }
    return false;
}

bool ls_job_reduces_itself(const ls_observe_trace *trace)
{
    return trace->world > 1 && !ls_trace_is_ddp(trace) && ls_job_calls_collectives(trace);
}

const ls_observe_tensor *ls_job_tensor(const ls_observe_rank *rank, const char *name)
{
    for (int i = 0; i < rank->tensor_count; i++) {
        if (strcmp(rank->tensor[i].name, name) == 0) {
            return &rank->tensor[i];
        }
    }
    return NULL;
}

/* The group of an optimizer that a later event of it gives the name; -1: none. */
static int group_held(const ls_observe_rank *rank, int optimizer, const char *name,
                      const ls_event **found)
{
    const ls_event *event, *entry;
    ls_event_each(event, ls_trace_events(rank, held)) {
        int group = 0;
        ls_event_each(entry, ls_event_list(event, groups)) {
            if (ls_event_int(event, optimizer, -1) == optimizer &&
                ls_event_holds(ls_event_list(entry, params), name)) {
                *found = entry;
                return group;
            }
            group++;
        }
    }
    return -1;
}

const ls_event *ls_job_group(const ls_observe_rank *rank, const char *name, int after,
                             int *optimizer, int *group)
{
    const ls_event *event, *entry, *held = NULL;
    ls_event_each(event, ls_trace_events(rank, optimizer)) {
        *optimizer = ls_event_int(event, optimizer, 0);
        *group = 0;
        if (*optimizer <= after) {
            continue;
        }
        ls_event_each(entry, ls_event_list(event, groups)) {
            if (ls_event_holds(ls_event_list(entry, params), name) ||
                ls_event_holds(ls_event_list(entry, shards), name)) {
                return entry;
            }
            ++*group;
        }
        *group = group_held(rank, *optimizer, name, &held);
        if (*group >= 0) {
            entry = ls_event_at(ls_event_list(event, groups), *group);
            return entry != NULL ? entry : held; /* of a group that was added: the names alone */
        }
    }
    return NULL;
}

bool ls_job_is_trained(const ls_observe_rank *rank, int model, bool trainable)
{
    int optimizer, group;
    for (int i = 0; i < rank->tensor_count; i++) {
        const ls_observe_tensor *tensor = &rank->tensor[i];
        if (tensor->model == model && (tensor->trainable || !trainable) &&
            ls_job_group(rank, tensor->name, -1, &optimizer, &group) != NULL) {
            return true;
        }
    }
    return false;
}

int ls_job_steps_of(const ls_observe_step *step, int optimizer, const ls_call **call)
{
    int count = 0;
    ls_trace_each_kind(one, step, LS_CALL_OPTIMIZER_STEP) {
        if (optimizer < 0 || one->optimizer == optimizer) {
            count += one->times;
            *call = one;
        }
    }
    return count;
}

static double first_rate(const ls_observe_rank *rank)
{
    const ls_event *groups = ls_event_list(ls_job_optimizer(rank, 0), groups);
    return ls_event_number(ls_event_at(groups, 0), lr, NAN);
}

/* Before its first step. */
static bool restores_optimizer(const ls_observe_rank *rank)
{
    const ls_event *restore;
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        if (strcmp(ls_event_text(restore, what, ""), "optimizer") == 0 &&
            ls_saved_step(restore) == 0) {
            return true;
        }
    }
    return false;
}

bool ls_job_built_with_rates(const ls_observe_trace *trace, int a, int b)
{
    double x = first_rate(&trace->rank[a]), y = first_rate(&trace->rank[b]);
    return !isnan(x) && !isnan(y) && x != y && !restores_optimizer(&trace->rank[a]) &&
           !restores_optimizer(&trace->rank[b]) && trace->rank[a].step_count > 0 &&
           ls_trace_find(&trace->rank[a].step[0], LS_CALL_SCHEDULE, 0) < 0;
}

/* Whether both write weights of a model, and no file in common. */
static bool save_apart(const ls_observe_rank *a, const ls_observe_rank *b)
{
    const ls_event *one, *other;
    int mine = 0, its = 0;
    ls_event_each(one, ls_trace_events(a, save)) {
        its = 0;
        mine += ls_event_int(one, params, 0) > 0;
        ls_event_each(other, ls_trace_events(b, save)) {
            its += ls_event_int(other, params, 0) > 0;
            if (strcmp(ls_event_text(one, path, ""), ls_event_text(other, path, "")) == 0) {
                return false;
            }
        }
    }
    return mine > 0 && its > 0;
}

/* Whether a collective comes between a training forward, or a backward, and an optimizer's step, in
 * steps after that one. */
static bool shares_steps(const ls_observe_rank *rank, int64_t after)
{
    ls_trace_each_step(step, rank) {
        if (step->step->step <= after) {
            continue;
        }
        bool begun = false, shared = false;
        ls_trace_each_call(call, step) {
            begun = begun || call->kind == LS_CALL_BACKWARD ||
                    (call->kind == LS_CALL_FORWARD && ls_event_bool(call->json, training, false));
            shared = shared || (begun && call->kind == LS_CALL_COLLECTIVE);
            if (shared && call->kind == LS_CALL_OPTIMIZER_STEP) {
                return true;
            }
        }
    }
    return false;
}

/* Whether their models begin with other values, or have other parameters. */
static bool start_apart(const ls_observe_rank *a, const ls_observe_rank *b)
{
    const ls_event *one = ls_event_list(ls_job_model(a, 0), param_digests), *x;
    const ls_event *other = ls_event_list(ls_job_model(b, 0), param_digests), *y;
    int count = ls_event_count(one);
    for (int i = 0; i < count && count == ls_event_count(other); i++) {
        x = ls_event_at(one, i), y = ls_event_at(other, i);
        if (ls_event_is_text(x) && ls_event_is_text(y) && strcmp(x->text, y->text) != 0) {
            return true;
        }
    }
    return count > 0 && ls_event_count(other) > 0 && count != ls_event_count(other);
}

/* Of a parameter's elements, 1; of all parameters', 2; of other numbers, 0. */
static int weights_in(const ls_observe_rank *rank, const ls_call *call)
{
    int64_t elements = ls_event_integer(call->json, elements, 0), all = 0;
    int found = 0;
    for (int i = 0; i < rank->tensor_count; i++) {
        all += rank->tensor[i].elements;
        found = elements == rank->tensor[i].elements ? 1 : found;
    }
    return elements == all ? 2 : found;
}

/* Whether the script adds up all parameters behind a step: averages, of which none is a member. */
static bool averages(const ls_observe_rank *rank)
{
    ls_trace_each_step(step, rank) {
        int sums = 0;
        ls_trace_each_kind(call, step, LS_CALL_COLLECTIVE) {
            bool sum = ls_event_text(call->json, reduce, "")[0] != '\0';
            int weights = sum ? weights_in(rank, call) : 0;
            sums += weights == 2 ? rank->tensor_count : weights * call->times;
        }
        if (sums > 0 && sums >= rank->tensor_count) {
            return true;
        }
    }
    return false;
}

static const ls_tol metrics = LS_TOL(8, "numbers: sums and counts of a validation are fewer, what "
                                        "members predict for its samples is more");

/* More numbers than a script's metrics have, and not the parameters: what members predict, which
 * may be as many as one parameter has. */
static bool are_results(const ls_observe_rank *rank, const ls_observe_step *step)
{
    int results = 0, weights = 0;
    ls_trace_each_kind(call, step, LS_CALL_COLLECTIVE) {
        int of = weights_in(rank, call);
        results += of < 2 && (double)ls_event_integer(call->json, elements, 0) > metrics.value;
        weights += of * call->times;
    }
    return results > 0 && weights <= 1;
}

/* In a step after that one, or behind the last. */
static bool shares_results(const ls_observe_rank *rank, int64_t after)
{
    ls_trace_each_step(step, rank) {
        if (step->step->step > after && are_results(rank, step)) {
            return true;
        }
    }
    return rank->open != NULL && are_results(rank, rank->open);
}

/* The last step with a training forward of a model in DistributedDataParallel; 0: none. */
static int64_t last_wrapped(const ls_observe_rank *rank)
{
    int64_t last = 0;
    ls_trace_each_step(step, rank) {
        ls_trace_each_kind(call, step, LS_CALL_FORWARD) {
            const ls_event *model = call->model < 0 ? NULL : ls_job_model(rank, call->model);
            bool wrapped = model != NULL && ls_job_model_is_ddp(model);
            last = wrapped && ls_event_bool(call->json, training, false) ? step->step->step : last;
        }
    }
    return last;
}

bool ls_job_goes_on_unwrapped(const ls_observe_trace *trace)
{
    int64_t last = last_wrapped(&trace->rank[0]);
    ls_trace_each_step(step, &trace->rank[0]) {
        ls_trace_each_kind(call, step, LS_CALL_FORWARD) {
            const ls_event *model =
                call->model < 0 ? NULL : ls_job_model(&trace->rank[0], call->model);
            if (last > 0 && step->step->step > last && model != NULL &&
                ls_event_bool(call->json, training, false)) {
                return true;
            }
        }
    }
    return false;
}

/* Whether all that the rank trains on behind that step is undivided, and some is. */
static bool reads_whole(const ls_observe_rank *rank, int64_t after)
{
    const ls_event *data;
    bool some = after == 0;
    ls_event_each(data, ls_trace_events(rank, data)) {
        if (after == 0 || ls_event_number_at(ls_event_list(data, steps), 0) > (double)after) {
            if (ls_event_int(data, replicas, 1) != 1) {
                return false;
            }
            some = some || ls_event_bool(data, trained, false);
        }
    }
    return some;
}

/* From the start, or behind steps of a model in DistributedDataParallel, without which each rank
 * goes on. */
static bool trains_members(const ls_observe_trace *trace)
{
    int64_t first = last_wrapped(&trace->rank[0]);
    bool apart = trace->attached && trace->world > 1 && (first > 0 || !ls_trace_is_ddp(trace));
    for (int k = 0; k < trace->world && apart; k++) {
        const ls_observe_rank *own = &trace->rank[k], *other = &trace->rank[k > 0 ? k - 1 : 0];
        apart =
            reads_whole(own, first) && !shares_steps(own, first) && !averages(own) &&
            last_wrapped(own) == first &&
            (k == 0 ||
             (first == 0 && (ls_job_built_with_rates(trace, k - 1, k) || save_apart(other, own))) ||
             ((first > 0 || start_apart(other, own)) && shares_results(other, first) &&
              shares_results(own, first)));
    }
    return apart;
}

/* Steps before the first forward of a model in DistributedDataParallel; without any, all steps of
 * other models so far; -1: there is no forward. */
static int steps_alone(const ls_observe_rank *rank, bool *wrapped)
{
    bool plain = false;
    ls_trace_each_step(step, rank) {
        ls_trace_each_kind(call, step, LS_CALL_FORWARD) {
            const ls_event *model = call->model < 0 ? NULL : ls_job_model(rank, call->model);
            if (model != NULL && ls_job_model_is_ddp(model)) {
                *wrapped = true;
                return (int)(step - rank->step);
            }
            plain = plain || model != NULL;
        }
    }
    return plain ? rank->step_count : -1;
}

const char *ls_job_apart(const ls_observe_trace *trace)
{
    if (trains_members(trace)) {
        return "each rank trains a model of its own, by a rate, into a file or from a start of its "
               "own: an ensemble, or a search";
    }
    for (int k = 1; k < trace->world && trace->attached; k++) {
        bool wrapped = false;
        int mine = steps_alone(&trace->rank[k], &wrapped);
        int first = steps_alone(&trace->rank[0], &wrapped);
        if (wrapped && mine >= 0 && first >= 0 && mine != first) {
            return "a rank trained alone before all ranks did: steps of one number are not the "
                   "same step";
        }
    }
    return NULL;
}

int ls_job_compare_samples(const ls_samples *samples, const char *group, ls_job_names *names)
{
    size_t prefix = strlen(group);
    int first = 0, compared = 0;
    while (first < samples->world && samples->file[first] == NULL) {
        first++;
    }
    for (int i = 0; first < samples->world && i < ls_dumpfile_count(samples->file[first]); i++) {
        const ls_dumpfile_entry *entry = ls_dumpfile_at(samples->file[first], i);
        if (strncmp(entry->name, group, prefix) != 0 || entry->name[prefix] != '/') {
            continue;
        }
        bool differs = false;
        for (int k = first + 1; k < samples->world; k++) {
            const ls_dumpfile_entry *other =
                samples->file[k] == NULL ? NULL : ls_dumpfile_find(samples->file[k], entry->name);
            compared += other != NULL;
            differs = differs || (other != NULL && !ls_dumpfile_equal(entry, other));
        }
        if (differs) {
            ls_job_add_name(names, entry->name + prefix + 1);
        }
    }
    return compared;
}

const ls_event *ls_job_seed_like(const ls_observe_trace *trace, int rank, const ls_event *mine)
{
    const ls_event *one;
    int before = 0;
    ls_event_each(one, ls_trace_events(&trace->rank[0], seed)) {
        before += one < mine && ls_event_same(one, mine, at);
    }
    ls_event_each(one, ls_trace_events(&trace->rank[rank], seed)) {
        if (ls_event_same(one, mine, at) && before-- == 0) {
            return one;
        }
    }
    return NULL;
}

bool ls_job_asked_known(const ls_observe_trace *trace)
{
    return !trace->attached && cJSON_GetArraySize(trace->command) > 0;
}

/* The option's own text: "--no_sync=False" is "--no-sync=False". */
static bool is_option(const char *word, const char *name, const char **value)
{
    size_t length = strlen(name);
    if (strncmp(word, "--", 2) != 0) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        char c = word[2 + i] == '_' ? '-' : word[2 + i];
        if (c != name[i]) {
            return false;
        }
    }
    *value = word[2 + length] == '=' ? word + 3 + length : "";
    return word[2 + length] == '=' || word[2 + length] == '\0';
}

const char *ls_job_asked_value(const ls_observe_trace *trace, const char *name, int number)
{
    const cJSON *word;
    const char *value;
    if (trace->attached) {
        return NULL;
    }
    cJSON_ArrayForEach(word, trace->command)
    {
        if (!cJSON_IsString(word) || !is_option(word->valuestring, name, &value) || number-- > 0) {
            continue;
        }
        bool apart =
            value[0] == '\0' && cJSON_IsString(word->next) && word->next->valuestring[0] != '-';
        return apart ? word->next->valuestring : value;
    }
    return NULL;
}

bool ls_job_asked_flag(const ls_observe_trace *trace, const char *name, bool fallback)
{
    const char *value = ls_job_asked_value(trace, name, 0);
    return value == NULL ? fallback : strcasecmp(value, "false") != 0;
}
