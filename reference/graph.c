#include "graph.h"

#include <stdlib.h>
#include <string.h>

#include "../kernels/core/log.h"
#include "../kernels/core/plant.h"
#include "audit.h"
#include "feed.h"

enum { WARM_STEPS = 2 };

struct ls_graph_set {
    const ls_trainer *trainer;
    int count;
    ls_graph *graph[]; /* [count], NULL until recorded */
};

static bool planted(void)
{
#ifdef LS_PLANTS
    return ls_plant_active != 0;
#else
    return false;
#endif
}

/* Engines that work on the host cannot be recorded; `self` has nothing to do. */
static bool engine_is_recorded(const ls_comm_api *engine)
{
    return engine == NULL || engine->follow != NULL || strcmp(engine->name, "self") == 0;
}

const char *ls_graph_refused(const ls_trainer *trainer)
{
    const ls_options *options = &trainer->options;
    const struct {
        bool refused;
        const char *why;
    } rows[] = {
        {options->graph == LS_GRAPH_OFF, "--cuda-graph off"},
        {trainer->device.api->graph_begin == NULL, "the device has no graphs"},
        {options->accumulate > 1, "--accumulate"},
        {options->aux_count > 0, "--aux-head"},
        {options->find_unused, "--find-unused"},
        {!engine_is_recorded(trainer->engine), "the engine of reductions works on the host"},
        {options->trace, "--trace"},
        {options->overflow_count > 0, "--overflow-at"},
        {options->fault.step > 0, "--fault-at"},
        {planted(), "a planted fault"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].refused) {
            return rows[i].why;
        }
    }
    return NULL;
}

ls_status ls_graph_check(const ls_trainer *trainer)
{
    const char *why = ls_graph_refused(trainer);
    if (trainer->options.graph == LS_GRAPH_ON && why != NULL) {
        ls_log_error("--cuda-graph on: a step cannot be recorded: %s", why);
        return LS_ERR_USAGE;
    }
    return LS_OK;
}

ls_status ls_graph_open(const ls_trainer *trainer, ls_graph_set **out)
{
    *out = NULL;
    if (ls_graph_refused(trainer) != NULL) {
        return LS_OK;
    }
    int count = ls_feed_places(trainer);
    ls_graph_set *set = calloc(1, sizeof *set + (size_t)count * sizeof set->graph[0]);
    if (set == NULL) {
        ls_log_error("cannot allocate a step's graphs");
        return LS_ERR_INFRA;
    }
    set->trainer = trainer;
    set->count = count;
    *out = set;
    return LS_OK;
}

void ls_graph_close(ls_graph_set *set)
{
    for (int i = 0; set != NULL && i < set->count; i++) {
        if (set->graph[i] != NULL) {
            set->trainer->device.api->graph_destroy(set->graph[i]);
        }
    }
    free(set);
}

bool ls_graph_takes(const ls_graph_set *set, int64_t step)
{
    if (set == NULL || step < set->trainer->first_step + WARM_STEPS) {
        return false;
    }
    const ls_options *options = &set->trainer->options;
    if (ls_audit_due(options, step)) { /* what it enqueues lies between the operations */
        return false;
    }
    for (int i = 0; i < options->dump_step_count; i++) {
        if (options->dump_step[i] == step) {
            return false;
        }
    }
    return true;
}

/* The recording is ended whatever happens in it: a stream left open would fail everything after. */
static ls_status record(ls_graph_set *set, int place, ls_status (*enqueue)(void *context),
                        void *context)
{
    const ls_device *device = &set->trainer->device;
    ls_graph *graph = NULL;
    LS_TRY(device->api->graph_begin(device->stream));
    ls_status status = enqueue(context);
    ls_status ended = device->api->graph_end(device->stream, &graph);
    if (status != LS_OK || ended != LS_OK) {
        if (graph != NULL) {
            device->api->graph_destroy(graph);
        }
        ls_log_error("a step could not be recorded as a graph; --cuda-graph off does without");
        return status != LS_OK ? status : ended;
    }
    set->graph[place] = graph;
    return LS_OK;
}

ls_status ls_graph_step(ls_graph_set *set, int place, ls_status (*enqueue)(void *context),
                        void *context)
{
    const ls_device *device = &set->trainer->device;
    LS_ASSERT(place >= 0 && place < set->count);
    if (set->graph[place] == NULL) {
        LS_TRY(record(set, place, enqueue, context));
    }
    ls_plan *plan = set->trainer->plan;
    LS_TRY(device->api->plan_take(plan, device->stream, place));
    LS_TRY(device->api->graph_launch(set->graph[place], device->stream));
    return device->api->plan_give(plan, device->stream, place);
}
