#include "step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "reference/train/audit/audit.h"
#include "reference/train/ways/join.h"

/* The layout of buckets is final, and a step has run with it, in which engines make what they need.
 */
enum { WARM_STEPS = LS_DIALECT_REBUILD_AFTER + 1 };

struct ls_graph_set {
    ls_trainer *trainer;
    char why[80]; /* no more steps are recorded; "": they are */
    int count;
    ls_graph *graph[]; /* [count], NULL until recorded */
};

/* On whichever rank and in whichever step: all decide alike. */
static bool planted(void)
{
#ifdef LS_PLANTS
    const char *name = getenv("LS_PLANT");
    return name != NULL && name[0] != '\0';
#else
    return false;
#endif
}

/* Engines that work on the host cannot be recorded; `self` has nothing to do. */
static bool engine_is_recorded(const ls_comm_api *engine)
{
    return engine == NULL || engine->begin_after != NULL || strcmp(engine->name, "self") == 0;
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
        {options->example != LS_EXAMPLE_NONE, "--example"},
        {options->accumulate > 1, "--accumulate"},
        {options->join != LS_JOIN_NONE, "--join"},
        {options->aux_head.count > 0, "--aux-head"},
        {options->find_unused, "--find-unused"},
        {!engine_is_recorded(trainer->engine), "the engine of reductions works on the host"},
        {trainer->unrecorded, "the engine's operations cannot be recorded"},
        {options->trace, "--trace"},
        {options->overflow_at.count > 0, "--overflow-at"},
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
    LS_REFUSE_IF(trainer->options.graph == LS_GRAPH_ON && why != NULL,
                 "--cuda-graph on: a step cannot be recorded: %s", why);
    return LS_OK;
}

ls_status ls_graph_open(ls_trainer *trainer, ls_graph_set **out)
{
    *out = NULL;
    if (ls_graph_refused(trainer) != NULL) {
        return LS_OK;
    }
    int count = ls_feed_slots(trainer);
    ls_graph_set *set = ls_list_make(1, sizeof *set + (size_t)count * sizeof set->graph[0]);
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
    if (set == NULL || set->why[0] != '\0' || step < set->trainer->first_step + WARM_STEPS) {
        return false;
    }
    const ls_options *options = &set->trainer->options;
    /* what an audit enqueues lies between the operations */
    return !ls_audit_due(options, step) && !ls_options_listed(&options->dump_steps, step, -1);
}

/* The recording is ended whatever happens in it: a stream left open would fail everything after. */
static ls_status record(ls_graph_set *set, int slot, ls_status (*enqueue)(void *context),
                        void *context)
{
    const ls_device *device = &set->trainer->device;
    ls_graph *graph = NULL;
    LS_TRY(device->api->graph_begin(device->stream));
    ls_status status = enqueue(context);
    ls_status ended = device->api->graph_end(device->stream, &graph);
    if (status == LS_OK && ended == LS_OK) {
        set->graph[slot] = graph;
        return LS_OK;
    }
    if (graph != NULL) {
        device->api->graph_destroy(graph);
    }
    return status != LS_OK ? status : ended;
}

/* After a recording that has failed: LS_OK where the step can be enqueued as others are. None of it
 * has been executed; what engines had recorded went with the graph. But an engine whose own call
 * has failed takes no further ones, and a lost device or peer stays lost. */
static ls_status take_back(const ls_trainer *trainer, ls_status failure)
{
    ls_comm *comms[] = {trainer->comm, trainer->norm_comm};
    if (failure == LS_ERR_DEVICE_LOST || failure == LS_ERR_PEER_LOST) {
        return failure;
    }
    if (trainer->ddp != NULL) {
        LS_TRY(ls_ddp_abandon(trainer->ddp));
    }
    for (size_t i = 0; i < sizeof comms / sizeof comms[0]; i++) {
        LS_TRY(comms[i] != NULL ? trainer->engine->poll(comms[i]) : LS_OK);
    }
    return LS_OK;
}

/* Records on all ranks or on none. LS_OK with set->why where that went wrong and the run goes on.
 */
static ls_status record_everywhere(ls_graph_set *set, int64_t step, int slot,
                                   ls_status (*enqueue)(void *context), void *context)
{
    ls_trainer *trainer = set->trainer;
    char key[48];
    int failed_rank = -1;
    bool must = trainer->options.graph == LS_GRAPH_ON;
    ls_status status = record(set, slot, enqueue, context);
    ls_status usable = status == LS_OK ? LS_OK : take_back(trainer, status);
    if (usable != LS_OK) {
        ls_log_error("step %lld could not be recorded as a graph; --cuda-graph off does without",
                     (long long)step);
        return usable;
    }
    snprintf(key, sizeof key, "graph/%d", slot);
    LS_TRY(ls_join_all(trainer, key, status == LS_OK, true, &failed_rank));
    if (failed_rank < 0) {
        return LS_OK;
    }
    snprintf(set->why, sizeof set->why, "step %lld could not be recorded on rank %d",
             (long long)step, failed_rank);
    if (must) {
        ls_log_error("--cuda-graph on: %s", set->why);
        return status != LS_OK ? status : LS_ERR_INFRA;
    }
    if (failed_rank == trainer->world.rank) {
        ls_log_warn("%s: all ranks go on without graphs", set->why);
    }
    return LS_OK;
}

ls_status ls_graph_step(ls_graph_set *set, int64_t step, int slot,
                        ls_status (*enqueue)(void *context), void *context, const char **why)
{
    const ls_device *device = &set->trainer->device;
    LS_ASSERT(slot >= 0 && slot < set->count);
    *why = NULL;
    if (set->graph[slot] == NULL) {
        LS_TRY(record_everywhere(set, step, slot, enqueue, context));
        if (set->why[0] != '\0') {
            *why = set->why;
            return LS_OK;
        }
    }
    ls_plan *plan = set->trainer->plan;
    LS_TRY(device->api->batch_wait(plan, device->stream, slot));
    LS_TRY(device->api->graph_launch(set->graph[slot], device->stream));
    return device->api->batch_release(plan, device->stream, slot);
}
