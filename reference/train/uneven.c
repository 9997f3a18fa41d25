#include "uneven.h"

#include <inttypes.h>
#include <stdlib.h>

#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "reference/train/ways/join.h"

/* What a rank tells the others before a step; of all ranks, [world]. */
typedef struct ls_uneven {
    int32_t has_batch, images;
    int64_t own;     /* steps that it has had batches for, before this one */
    int64_t tracked; /* batches that its running statistics have seen */
} message;

/* ---- numbers of steps ------------------------------------------------------------------------ */

/* Of a rank, in an epoch or with --steps-of-rank in the run; 0: without an end. */
static int64_t steps_of(const ls_trainer *trainer, int rank)
{
    const ls_options *options = &trainer->options;
    int64_t pictures = ls_loader_pictures(trainer->loader), world = trainer->world.world;
    if (options->rank_steps.count > 0) {
        return options->rank_steps.item[rank].number;
    }
    if (!options->no_pad) {
        return ls_loader_steps_per_epoch(trainer->loader);
    }
    int64_t images = (pictures - rank + world - 1) / world;
    return images / ((int64_t)ls_options_batch(options, rank) * options->accumulate);
}

static void find_range(const ls_trainer *trainer, int64_t *least, int64_t *most)
{
    *least = *most = steps_of(trainer, 0);
    for (int rank = 1; rank < trainer->world.world; rank++) {
        int64_t steps = steps_of(trainer, rank);
        *least = steps < *least ? steps : *least;
        *most = steps > *most ? steps : *most;
    }
}

static const char *unit_of(const ls_trainer *trainer)
{
    return trainer->options.rank_steps.count > 0 ? "in the run" : "an epoch";
}

ls_status ls_uneven_plan(ls_trainer *trainer, int64_t *most)
{
    bool joins = trainer->options.join != LS_JOIN_NONE;
    int64_t least, largest, own = steps_of(trainer, trainer->world.rank);
    find_range(trainer, &least, &largest);
    int64_t counted = joins ? largest : own;
    bool listed = trainer->options.rank_steps.count > 0;
    trainer->own_steps = own;
    trainer->steps_per_epoch = listed ? 0 : counted;
    *most = listed ? counted : 0;
    if (least != largest && !joins && trainer->world.rank == 0) {
        ls_log_warn(
            "ranks have batches for %" PRId64 " to %" PRId64
            " steps %s: without --join those that go on wait for the others until --timeout",
            least, largest, unit_of(trainer));
    }
    return LS_OK;
}

int64_t ls_uneven_own(const ls_trainer *trainer, int64_t step)
{
    int64_t own = trainer->own_steps, epoch = trainer->steps_per_epoch;
    if (trainer->options.rank_steps.count > 0) {
        return step < own ? step : own;
    }
    if (epoch == 0) {
        return step;
    }
    int64_t rest = step % epoch;
    return step / epoch * own + (rest < own ? rest : own);
}

void ls_uneven_explain(const ls_trainer *trainer)
{
    int64_t least, most;
    if (trainer->options.join != LS_JOIN_NONE || trainer->loader == NULL) {
        return;
    }
    find_range(trainer, &least, &most);
    if (least != most) {
        ls_log_error("this rank has batches for %" PRId64 " steps %s, the others for %" PRId64
                     " to %" PRId64 ": a rank whose data has ended takes part in no reduction; "
                     "--join initial or active lets the others finish",
                     trainer->own_steps, unit_of(trainer), least, most);
    }
}

/* ---- before a step --------------------------------------------------------------------------- */

ls_status ls_uneven_open(ls_trainer *trainer)
{
    if (trainer->options.join != LS_JOIN_NONE && trainer->engine != NULL) {
        trainer->uneven = ls_list_make((size_t)trainer->world.world, sizeof *trainer->uneven);
    }
    return LS_OK;
}

void ls_uneven_close(ls_trainer *trainer)
{
    free(trainer->uneven);
    trainer->uneven = NULL;
}

static ls_status gather(ls_trainer *trainer, const message *own, const char *label)
{
    return ls_join_gather(trainer, label, own, (int64_t)sizeof *own, trainer->uneven);
}

/* Some ranks have a batch and others have not. */
static ls_status refuse(const ls_trainer *trainer, int64_t step, const ls_uneven_round *round)
{
    int ended = 0;
    while (trainer->uneven[ended].has_batch != 0) {
        ended++;
    }
    if (round->joined) {
        return ls_log_fail(LS_ERR_UNEVEN,
                           "--join throw: the data of this rank has ended before step %" PRId64
                           ", and %d of %d ranks go on",
                           step, round->active, trainer->world.world);
    }
    return ls_log_fail(LS_ERR_UNEVEN,
                       "--join throw: rank %d has no batch for step %" PRId64
                       ": its data has ended after %" PRId64 " steps, and this rank's has not",
                       ended, step, trainer->uneven[ended].own);
}

ls_status ls_uneven_agree(ls_trainer *trainer, int64_t step, ls_uneven_round *out)
{
    const ls_options *options = &trainer->options;
    int world = trainer->world.world, rank = trainer->world.rank;
    *out = (ls_uneven_round){.active = world};
    if (trainer->uneven == NULL) {
        return LS_OK;
    }
    int64_t before = ls_uneven_own(trainer, step - 1);
    bool has_batch = ls_uneven_own(trainer, step) > before;
    message own = {.has_batch = has_batch,
                   .images = has_batch ? options->batch_size * options->accumulate : 0,
                   .own = before,
                   .tracked = *trainer->memory.tracked};
    LS_TRY(gather(trainer, &own, "ranks that have a batch"));
    *out = (ls_uneven_round){.joined = !has_batch};
    for (int k = 0; k < world; k++) {
        const message *said = &trainer->uneven[k];
        out->active += said->has_batch != 0;
        out->images += said->images;
        out->source = said->has_batch != 0 ? k : out->source;
    }
    LS_ASSERT(out->active > 0);
    if (options->join == LS_JOIN_THROW && out->active < world) {
        return refuse(trainer, step, out);
    }
    bool by_active = LS_PLANT(join_divisors_exchanged, options->join == LS_JOIN_ACTIVE,
                              options->join != LS_JOIN_ACTIVE);
    ls_dialect_average(options, by_active ? out->active : world, &trainer->rules);
    out->source = LS_PLANT(join_buffers_of_rank_0, out->source, 0);
    if (trainer->rules.broadcast_buffers && step > 1 && rank != out->source) {
        *trainer->memory.tracked = trainer->uneven[out->source].tracked;
    }
    return LS_OK;
}

/* ---- at the end ------------------------------------------------------------------------------ */

ls_status ls_uneven_end(ls_trainer *trainer, int64_t step)
{
    int64_t epoch = trainer->steps_per_epoch, least, most;
    int source = 0;
    if (trainer->uneven == NULL) {
        return LS_OK;
    }
    find_range(trainer, &least, &most);
    if (trainer->options.rank_steps.count > 0 ? step != most : epoch == 0 || step % epoch != 0) {
        return LS_OK; /* a run that --steps ends here goes on from a checkpoint as if it had not */
    }
    message own = {.own = ls_uneven_own(trainer, step), .tracked = *trainer->memory.tracked};
    LS_TRY(gather(trainer, &own, "the rank that had batches longest"));
    for (int k = 1; k < trainer->world.world; k++) {
        source = trainer->uneven[k].own >= trainer->uneven[source].own ? k : source;
    }
    source = LS_PLANT(join_ends_with_rank_0, source, 0);
    LS_TRY(ls_memory_broadcast(&trainer->memory, trainer->engine, trainer->comm, LS_MEMORY_PARAM,
                               source));
    LS_TRY(ls_memory_broadcast(&trainer->memory, trainer->engine, trainer->comm, LS_MEMORY_BUFFER,
                               source));
    *trainer->memory.tracked = trainer->uneven[source].tracked;
    return trainer->device.api->plan_params_changed(trainer->plan, trainer->device.stream);
}

ls_status ls_uneven_gather_tracked(ls_trainer *trainer)
{
    const message own = {.tracked = *trainer->memory.tracked};
    return trainer->uneven == NULL ? LS_OK : gather(trainer, &own, "batches that ranks have seen");
}

int64_t ls_uneven_tracked(const ls_trainer *trainer, int rank)
{
    return LS_PLANT(join_saves_one_count, trainer->uneven != NULL, false)
               ? trainer->uneven[rank].tracked
               : *trainer->memory.tracked;
}
