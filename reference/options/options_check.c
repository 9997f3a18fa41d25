/* What options may not be together, and what of them a world or a run directory does not allow. */
#include "options_table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "kernels/optimizers.h"
#include "kernels/core/log.h"
#include "reference/model/layers.h"
#include "reference/model/model.h"
#include "schedule.h"

bool ls_options_has_epochs(const ls_options *options)
{
    return strcmp(options->data, "synthetic") != 0 && strncmp(options->data, "batches:", 8) != 0;
}

/* ---- values against each other --------------------------------------------------------------- */

static ls_status refuse(const char *text)
{
    return ls_log_fail(LS_ERR_USAGE, "%s", text);
}

/* numerics.md section 7 (apex/amp/frontend.py@Properties) */
static ls_status check_precision(const ls_options *options)
{
    if (options->opt_level == LS_O1 && options->keep_batchnorm_fp32 != LS_UNSET) {
        return refuse(
            "--keep-batchnorm-fp32 with --opt-level O1: O1 keeps the model in f32 and casts "
            "at each operation; allowed with O0, O2, O3");
    }
    if (options->opt_level == LS_O1 && options->master_weights != LS_UNSET) {
        return refuse(
            "--master-weights with --opt-level O1: O1's parameters are f32 already; allowed "
            "with O0, O2, O3");
    }
    if (options->max_loss_scale > 0 && options->min_loss_scale > options->max_loss_scale) {
        return ls_log_fail(LS_ERR_USAGE, "--min-loss-scale %g is above --max-loss-scale %g",
                           (double)options->min_loss_scale, (double)options->max_loss_scale);
    }
    return LS_OK;
}

static ls_status check_training(const ls_options *options)
{
    if (options->nesterov && !ls_optimizers_takes(options->optimizer, "nesterov")) {
        char allowed[64] = "";
        for (int kind = 0; kind < LS_OPTIMIZER_KINDS; kind++) {
            if (ls_optimizers_takes(kind, "nesterov")) {
                ls_text_add(allowed, sizeof allowed, "%s%s", allowed[0] != '\0' ? " and " : "",
                            ls_optimizers_name(kind));
            }
        }
        return ls_log_fail(LS_ERR_USAGE, "--nesterov with --optimizer %s: allowed with %s",
                           ls_optimizers_name(options->optimizer), allowed);
    }
    if (options->nesterov && options->momentum <= 0) {
        return refuse("--nesterov needs --momentum above 0");
    }
    ls_schedule schedule;
    LS_TRY(ls_schedule_parse(options->schedule, &schedule));
    if (ls_options_has_epochs(options)) {
        return LS_OK;
    }
    if (options->epochs > 0) {
        return ls_log_fail(LS_ERR_USAGE,
                           "--epochs %" PRId64 " with --data %s, which has no epochs; give --steps",
                           options->epochs, options->data);
    }
    return ls_schedule_check(&schedule, 0);
}

static ls_status check_parallel(const ls_options *options)
{
    if (options->bucket_cap_mb > 0 && options->message_size > 0) {
        return refuse(
            "--bucket-cap-mb and --message-size: a bucket closes by bytes or by elements; "
            "give one");
    }
    if (options->compress && options->allreduce_fp32) {
        return refuse(
            "--compress and --allreduce-fp32 ask for opposite types of the reduction; give "
            "one");
    }
    if (options->no_reduce &&
        (options->dump_step_count > 0 || options->save[0] != '\0' || options->resume[0] != '\0')) {
        return refuse(
            "--no-reduce is for measuring only: its ranks drift apart, so there is nothing to "
            "dump, save or resume");
    }
    bool pre = options->average_given ? options->average == LS_AVERAGE_PRE
                                      : options->dialect == LS_DIALECT_TORCH;
    if (pre && options->predivide != 1.0) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "--predivide %g: with --average pre (torch's) all of the division is before the "
            "sum; allowed with --average post|none",
            options->predivide);
    }
    return LS_OK;
}

static ls_status check_running(const ls_options *options)
{
    if (options->cudnn_benchmark && options->deterministic) {
        return refuse(
            "--cudnn-benchmark with --deterministic: which engine is fastest changes from "
            "run to run; give one");
    }
    if (options->resident > 0 && strcmp(options->data, "synthetic") != 0) {
        return ls_log_fail(LS_ERR_USAGE,
                           "--resident %d with --data %s: allowed with synthetic data",
                           options->resident, options->data);
    }
    if (options->resident > 0 && (options->dump_step_count > 0 || options->aux_count > 0)) {
        return refuse(
            "--resident with --dump-steps or --aux-head: both need the batch on the host");
    }
    return LS_OK;
}

ls_status ls_options_check(const ls_options *options, bool batch_size_given)
{
    LS_TRY(ls_model_check(options->arch, options->num_classes, options->image_size));
    if (batch_size_given && options->global_batch > 0) {
        return refuse(
            "--batch-size and --global-batch: the batch is given per rank or over all ranks; "
            "give one");
    }
    LS_TRY(check_precision(options));
    LS_TRY(check_training(options));
    LS_TRY(check_running(options));
    return check_parallel(options);
}

const char *ls_options_find_unsupported(const ls_options *options, const char **why)
{
    if (options->tf32 && strcmp(options->device, "cpu") == 0) {
        *why = "a CPU has no TF32";
        return "--tf32";
    }
    if (options->cudnn_benchmark && strcmp(options->device, "cpu") == 0) {
        *why = "a CPU has one engine";
        return "--cudnn-benchmark";
    }
    if (options->resident > 0 && strcmp(options->device, "cpu") == 0) {
        *why = "a CPU's batches are where it computes";
        return "--resident";
    }
    if (options->audit && strcmp(options->device, "cpu") == 0) {
        *why = "the CPU backend does not show its operations one by one";
        return "--audit";
    }
    return NULL;
}

/* ---- values against the environment ---------------------------------------------------------- */

/* A batch norm over a single value has no variance: torch raises ValueError. */
static ls_status check_norm_values(const ls_options *options, int rank, int world)
{
    ls_network network;
    LS_TRY(ls_model_build(options->arch, options->num_classes, options->image_size, &network));
    ls_layer_extent *extent = calloc((size_t)network.layer_count, sizeof *extent);
    LS_ASSERT(extent != NULL);
    ls_layers_extents(&network, options->image_size, extent);
    int64_t images = 0; /* over which the statistics of this rank's group are taken */
    int size = options->sync_bn_group > 0 ? options->sync_bn_group : world;
    size = options->sync_bn ? size : 1;
    for (int i = 0; i < size; i++) {
        images += options->batch_size_count > 0 ? options->batch_sizes[rank / size * size + i]
                                                : options->batch_size;
    }
    const char *single = NULL;
    for (int i = 0; i < network.layer_count && single == NULL; i++) {
        int64_t values = images * extent[i].height * extent[i].width;
        single = network.layer[i].kind == LS_LAYER_BATCH_NORM && values < 2 ? network.layer[i].name
                                                                            : NULL;
    }
    ls_status status = LS_OK;
    if (single != NULL) {
        ls_log_error("--image-size %d with batch %d leaves batch norm %s one value per channel; it "
                     "needs at least two",
                     options->image_size, options->batch_size, single);
        status = LS_ERR_USAGE;
    }
    free(extent);
    ls_model_free(&network);
    return status;
}

/* Ranks and groups of ranks that options name. */
static ls_status check_ranks(const ls_options *options, int world)
{
    if (options->sync_bn_group > 0 && (!options->sync_bn || options->sync_bn_group > world ||
                                       world % options->sync_bn_group != 0)) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "--sync-bn-group %d: allowed: with --sync-bn, divisors of the world of %d "
            "ranks",
            options->sync_bn_group, world);
    }
    if (options->batch_size_count > 0 && options->batch_size_count != world) {
        return ls_log_fail(LS_ERR_USAGE, "--batch-sizes: %d numbers for a world of %d ranks",
                           options->batch_size_count, world);
    }
    for (int i = 0; i < options->aux_count; i++) {
        if (options->aux[i].rank >= world) {
            return ls_log_fail(LS_ERR_USAGE, "--aux-head %" PRId64 ":%d: allowed: ranks 0 to %d",
                               options->aux[i].step, options->aux[i].rank, world - 1);
        }
    }
    if (options->fault.step > 0 && options->fault.rank >= world) {
        return ls_log_fail(LS_ERR_USAGE, "--fault-at: rank %d, allowed: ranks 0 to %d",
                           options->fault.rank, world - 1);
    }
    return LS_OK;
}

ls_status ls_options_resolve(ls_options *options, int rank, int world, const char *run_directory)
{
    LS_ASSERT(rank >= 0 && rank < world);
    LS_TRY(check_ranks(options, world));
    if (options->example == LS_EXAMPLE_TWO_LOSSES) {
        if (options->accumulate != 1) {
            return refuse("--accumulate with --example two-losses: each of its two losses has a "
                          "batch of its own in every step");
        }
        options->accumulate = 2; /* batches a step */
    }
    ls_options resolved = *options;
    if (options->global_batch > 0) {
        int64_t parts = (int64_t)world * options->accumulate;
        if (options->global_batch % parts != 0 || options->global_batch / parts > 65536) {
            return ls_log_fail(LS_ERR_USAGE,
                               "--global-batch %" PRId64 ": allowed: multiples of %" PRId64
                               " (%d ranks x %d micro-steps), at most 65536 images each",
                               options->global_batch, parts, world, options->accumulate);
        }
        resolved.batch_size = (int)(options->global_batch / parts);
    }
    if (options->overflow_as.micro >= options->accumulate) {
        return ls_log_fail(
            LS_ERR_USAGE, "--overflow-as: micro-step %d; allowed with --accumulate %d: 0 to %d",
            options->overflow_as.micro, options->accumulate, options->accumulate - 1);
    }
    for (int i = 0; i < options->overflow_count; i++) {
        if (options->overflow[i].rank >= world) {
            return ls_log_fail(LS_ERR_USAGE, "--overflow-at %" PRId64 ":%d: allowed: ranks 0 to %d",
                               options->overflow[i].step, options->overflow[i].rank, world - 1);
        }
    }
    if (options->dump_step_count > 0 && (run_directory == NULL || run_directory[0] == '\0')) {
        return refuse("--dump-steps: there is nowhere to write; set LS_RUN_DIR to a folder");
    }
    if (options->batch_size_count > 0) {
        resolved.batch_size = options->batch_sizes[rank];
    }
    LS_TRY(check_norm_values(&resolved, rank, world));
    *options = resolved;
    return LS_OK;
}
