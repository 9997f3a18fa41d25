#include "options.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/json.h"
#include "kernels/core/log.h"
#include "arguments.h"
#include "dialect.h"
#include "reference/model/layers.h"
#include "reference/model/model.h"
#include "precision.h"
#include "schedule.h"

enum { STEPS_DEFAULT = 10, EPOCHS_DEFAULT = 1 };

void ls_options_defaults(ls_options *out)
{
    *out = (ls_options){
        .arch = "resnet50",
        .batch_size = 32,
        .image_size = 224,
        .num_classes = 10,
        .opt_level = LS_O1,
        .half = LS_F16,
        .loss_scale = 1.0f,
        .overflow_as = {.value = INFINITY, .place = 'f', .micro = -1},
        .init_scale = 65536.0f,
        .growth_interval = 2000,
        .keep_batchnorm_fp32 = LS_UNSET,
        .master_weights = LS_UNSET,
        .optimizer = LS_OPTIMIZER_SGD,
        .lr = 0.1,
        .schedule = "constant",
        .momentum = 0.9,
        .weight_decay = 1e-4,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .epsilon = 1e-8,
        .max_grad_norm = 1.0,
        .trust = 0.02,
        .dialect = LS_DIALECT_APEX,
        .broadcast_buffers = LS_UNSET,
        .accumulate = 1,
        .compress_type = LS_F16,
        .average = LS_AVERAGE_POST,
        .predivide = 1.0,
        .data = "synthetic",
        .workers = 2,
        .device = "auto",
        .comm = "auto",
        .timeout_s = 300.0,
        .digest = LS_DIGEST_ALL,
        .digest_every = 1,
        .audit_every = 200,
        .print_freq = 10,
    };
}

const char *ls_options_level_name(ls_opt_level level)
{
    static const char *const names[] = {"O0", "O1", "O2", "O3"};
    LS_ASSERT(level >= LS_O0 && level <= LS_O3);
    return names[level];
}

static const char *optimizer_name(ls_optimizer_kind kind)
{
    static const char *const names[] = {
        [LS_OPTIMIZER_SGD] = "sgd",   [LS_OPTIMIZER_ADAM] = "adam", [LS_OPTIMIZER_ADAMW] = "adamw",
        [LS_OPTIMIZER_LAMB] = "lamb", [LS_OPTIMIZER_LARS] = "lars",
    };
    return names[kind];
}

/* Synthetic data and given batches have no end, and so no epochs. */
static bool has_epochs(const ls_options *options)
{
    return strcmp(options->data, "synthetic") != 0 && strncmp(options->data, "batches:", 8) != 0;
}

/* ---- values against each other --------------------------------------------------------------- */

static ls_status refuse(const char *text)
{
    ls_log_error("%s", text);
    return LS_ERR_USAGE;
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
        ls_log_error("--min-loss-scale %g is above --max-loss-scale %g",
                     (double)options->min_loss_scale, (double)options->max_loss_scale);
        return LS_ERR_USAGE;
    }
    return LS_OK;
}

static ls_status check_training(const ls_options *options)
{
    bool momentum =
        options->optimizer == LS_OPTIMIZER_SGD || options->optimizer == LS_OPTIMIZER_LARS;
    if (options->nesterov && !momentum) {
        ls_log_error("--nesterov with --optimizer %s: allowed with sgd and lars",
                     optimizer_name(options->optimizer));
        return LS_ERR_USAGE;
    }
    if (options->nesterov && options->momentum <= 0) {
        return refuse("--nesterov needs --momentum above 0");
    }
    ls_schedule schedule;
    LS_TRY(ls_schedule_parse(options->schedule, &schedule));
    if (has_epochs(options)) {
        return LS_OK;
    }
    if (options->epochs > 0) {
        ls_log_error("--epochs %" PRId64 " with --data %s, which has no epochs; give --steps",
                     options->epochs, options->data);
        return LS_ERR_USAGE;
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
        ls_log_error(
            "--predivide %g: with --average pre (torch's) all of the division is before the "
            "sum; allowed with --average post|none",
            options->predivide);
        return LS_ERR_USAGE;
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
        ls_log_error("--resident %d with --data %s: allowed with synthetic data", options->resident,
                     options->data);
        return LS_ERR_USAGE;
    }
    if (options->resident > 0 && (options->dump_step_count > 0 || options->aux_count > 0)) {
        return refuse(
            "--resident with --dump-steps or --aux-head: both need the batch on the host");
    }
    return LS_OK;
}

static ls_status check_all(const ls_options *options, const ls_arguments_given *given)
{
    LS_TRY(ls_model_check(options->arch, options->num_classes, options->image_size));
    if (given->batch_size && options->global_batch > 0) {
        return refuse(
            "--batch-size and --global-batch: the batch is given per rank or over all ranks; "
            "give one");
    }
    LS_TRY(check_precision(options));
    LS_TRY(check_training(options));
    LS_TRY(check_running(options));
    return check_parallel(options);
}

/* Understood, but not offered: the first such option, or NULL. */
static const char *find_unsupported(const ls_options *options, const char **why)
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

ls_status ls_options_parse(int argc, char **argv, ls_options *out, char *unsupported_option,
                           char *why, int text_bytes)
{
    ls_options options;
    ls_arguments_given given = {0};
    ls_options_defaults(&options);
    LS_TRY(ls_arguments_read(argc, argv, &options, &given));
    LS_TRY(check_all(&options, &given));
    if (options.optimizer == LS_OPTIMIZER_LAMB && !given.epsilon) {
        options.epsilon = 1e-6; /* apex/optimizers/fused_lamb.py */
    }
    if (options.steps == 0 && options.epochs == 0) {
        options.steps = has_epochs(&options) ? 0 : STEPS_DEFAULT;
        options.epochs = has_epochs(&options) ? EPOCHS_DEFAULT : 0;
    }
    const char *reason = NULL;
    const char *unsupported = find_unsupported(&options, &reason);
    if (unsupported != NULL) {
        snprintf(unsupported_option, (size_t)text_bytes, "%s", unsupported);
        snprintf(why, (size_t)text_bytes, "%s", reason);
        ls_log_error("%s is not offered: %s", unsupported, reason);
        return LS_ERR_UNSUPPORTED;
    }
    *out = options;
    return LS_OK;
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
        ls_log_error("--sync-bn-group %d: allowed: with --sync-bn, divisors of the world of %d "
                     "ranks",
                     options->sync_bn_group, world);
        return LS_ERR_USAGE;
    }
    if (options->batch_size_count > 0 && options->batch_size_count != world) {
        ls_log_error("--batch-sizes: %d numbers for a world of %d ranks", options->batch_size_count,
                     world);
        return LS_ERR_USAGE;
    }
    for (int i = 0; i < options->aux_count; i++) {
        if (options->aux[i].rank >= world) {
            ls_log_error("--aux-head %" PRId64 ":%d: allowed: ranks 0 to %d", options->aux[i].step,
                         options->aux[i].rank, world - 1);
            return LS_ERR_USAGE;
        }
    }
    if (options->fault.step > 0 && options->fault.rank >= world) {
        ls_log_error("--fault-at: rank %d, allowed: ranks 0 to %d", options->fault.rank, world - 1);
        return LS_ERR_USAGE;
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
            ls_log_error("--global-batch %" PRId64 ": allowed: multiples of %" PRId64
                         " (%d ranks x %d micro-steps), at most 65536 images each",
                         options->global_batch, parts, world, options->accumulate);
            return LS_ERR_USAGE;
        }
        resolved.batch_size = (int)(options->global_batch / parts);
    }
    if (options->overflow_as.micro >= options->accumulate) {
        ls_log_error("--overflow-as: micro-step %d; allowed with --accumulate %d: 0 to %d",
                     options->overflow_as.micro, options->accumulate, options->accumulate - 1);
        return LS_ERR_USAGE;
    }
    for (int i = 0; i < options->overflow_count; i++) {
        if (options->overflow[i].rank >= world) {
            ls_log_error("--overflow-at %" PRId64 ":%d: allowed: ranks 0 to %d",
                         options->overflow[i].step, options->overflow[i].rank, world - 1);
            return LS_ERR_USAGE;
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

/* ---- for records ----------------------------------------------------------------------------- */

static void add_count(cJSON *object, const char *name, int64_t value)
{
    if (value > 0) {
        cJSON_AddNumberToObject(object, name, (double)value);
    } else {
        cJSON_AddNullToObject(object, name);
    }
}

static void add_text(cJSON *object, const char *name, const char *value)
{
    if (value[0] != '\0') {
        cJSON_AddStringToObject(object, name, value);
    } else {
        cJSON_AddNullToObject(object, name);
    }
}

static void add_precision(cJSON *json, const ls_options *options, const ls_dialect_rules *rules)
{
    ls_precision precision;
    ls_precision_resolve(options, rules, &precision);
    cJSON_AddStringToObject(json, "opt-level", ls_options_level_name(options->opt_level));
    cJSON_AddStringToObject(json, "half", ls_dtype_label(options->half));
    if (precision.scaler.dynamic) {
        cJSON_AddStringToObject(json, "loss-scale", "dynamic");
    } else {
        ls_json_add_number(json, "loss-scale", (double)precision.initial_scale);
    }
    ls_json_add_number(json, "init-scale", (double)precision.initial_scale);
    cJSON_AddNumberToObject(json, "growth-interval", options->growth_interval);
    ls_json_add_number(json, "min-loss-scale", (double)precision.scaler.min_scale);
    ls_json_add_number(json, "max-loss-scale", (double)precision.scaler.max_scale); /* null: none */
    cJSON_AddBoolToObject(json, "keep-batchnorm-fp32", precision.norm == LS_F32);
    cJSON_AddBoolToObject(json, "master-weights", precision.masters);
    cJSON_AddBoolToObject(json, "tf32", options->tf32);
}

static void add_training(cJSON *json, const ls_options *options)
{
    char betas[64];
    snprintf(betas, sizeof betas, "%.17g,%.17g", options->beta1, options->beta2);
    cJSON_AddStringToObject(json, "optimizer", optimizer_name(options->optimizer));
    cJSON_AddNumberToObject(json, "lr", options->lr);
    cJSON_AddStringToObject(json, "lr-scaling", options->lr_scaling_linear ? "linear" : "none");
    cJSON_AddStringToObject(json, "schedule", options->schedule);
    cJSON_AddNumberToObject(json, "momentum", options->momentum);
    cJSON_AddNumberToObject(json, "weight-decay", options->weight_decay);
    cJSON_AddBoolToObject(json, "nesterov", options->nesterov);
    if (options->optimizer != LS_OPTIMIZER_SGD && options->optimizer != LS_OPTIMIZER_LARS) {
        cJSON_AddStringToObject(json, "betas", betas);
    }
    if (options->optimizer != LS_OPTIMIZER_SGD) {
        cJSON_AddNumberToObject(json, "eps", options->epsilon);
    }
    if (options->optimizer == LS_OPTIMIZER_LAMB) {
        cJSON_AddNumberToObject(json, "max-grad-norm", options->max_grad_norm);
    }
    if (options->optimizer == LS_OPTIMIZER_LARS) {
        cJSON_AddNumberToObject(json, "trust", options->trust);
    }
}

static void add_parallel(cJSON *json, const ls_options *options, const ls_dialect_rules *rules)
{
    const double mib = 1048576.0;
    bool bytes = rules->unit == LS_BUCKET_BYTES;
    int64_t limit = rules->limit[rules->limit_count - 1];
    cJSON_AddStringToObject(json, "dialect", ls_dialect_name(options->dialect));
    if (bytes) {
        cJSON_AddNumberToObject(json, "bucket-cap-mb",
                                options->bucket_cap_mb > 0 ? options->bucket_cap_mb
                                                           : (double)limit / mib);
    } else {
        cJSON_AddNullToObject(json, "bucket-cap-mb");
    }
    add_count(json, "message-size", bytes ? 0 : limit);
    cJSON_AddBoolToObject(json, "delay-allreduce", options->delay_allreduce);
    if (options->no_reduce) {
        cJSON_AddTrueToObject(json, "no-reduce");
    }
    cJSON_AddBoolToObject(json, "sync-bn", options->sync_bn);
    cJSON_AddNumberToObject(json, "sync-bn-group", options->sync_bn_group);
    cJSON_AddNumberToObject(json, "accumulate", options->accumulate);
    cJSON_AddStringToObject(json, "compress",
                            options->compress ? ls_dtype_label(options->compress_type) : "none");
    cJSON_AddBoolToObject(json, "find-unused", options->find_unused);
    cJSON_AddBoolToObject(json, "broadcast-buffers", rules->broadcast_buffers);
    cJSON_AddStringToObject(json, "average", ls_dialect_average_name(rules->average));
    cJSON_AddNumberToObject(json, "predivide", options->predivide);
    cJSON_AddBoolToObject(json, "allreduce-fp32", options->allreduce_fp32);
}

static void add_places(cJSON *json, const char *name, int count, const ls_overflow_at *place)
{
    cJSON *list = cJSON_AddArrayToObject(json, name);
    for (int i = 0; i < count; i++) {
        char text[48];
        const ls_overflow_at *at = &place[i];
        snprintf(text, sizeof text, at->rank >= 0 ? "%" PRId64 ":%d" : "%" PRId64, at->step,
                 at->rank);
        cJSON_AddItemToArray(list, cJSON_CreateString(text));
    }
}

static void add_running(cJSON *json, const ls_options *options)
{
    char seed[24];
    snprintf(seed, sizeof seed, "%" PRIu64, options->seed);
    cJSON_AddStringToObject(json, "data", options->data);
    cJSON_AddRawToObject(json, "seed", seed); /* a double would lose bits above 2^53 */
    cJSON_AddNumberToObject(json, "workers", options->workers);
    if (options->resident > 0) {
        cJSON_AddNumberToObject(json, "resident", options->resident);
    }
    cJSON_AddStringToObject(json, "device", options->device);
    cJSON_AddBoolToObject(json, "deterministic", options->deterministic);
    if (options->cudnn_benchmark) {
        cJSON_AddTrueToObject(json, "cudnn-benchmark");
    }
    if (options->graph != LS_GRAPH_AUTO) {
        cJSON_AddStringToObject(json, "cuda-graph", options->graph == LS_GRAPH_ON ? "on" : "off");
    }
    cJSON_AddNumberToObject(json, "threads", options->threads);
    add_text(json, "init", options->init);
    add_text(json, "save", options->save);
    add_text(json, "resume", options->resume);
    cJSON *steps = cJSON_AddArrayToObject(json, "dump-steps");
    for (int i = 0; i < options->dump_step_count; i++) {
        cJSON_AddItemToArray(steps, cJSON_CreateNumber((double)options->dump_step[i]));
    }
    if (options->example != LS_EXAMPLE_NONE) {
        static const char *const examples[] = {"none", "two-encoders", "two-losses"};
        cJSON_AddStringToObject(json, "example", examples[options->example]);
    }
    static const char *const ranks[] = {"0", "all", "branches"};
    cJSON_AddStringToObject(json, "dump-ranks", ranks[options->dump_ranks]);
    add_text(json, "force-branches", options->force_branches);
    static const char *const scopes[] = {"all", "param", "none"};
    cJSON_AddStringToObject(json, "digest", scopes[options->digest]);
    if (options->digest_every > 1) {
        cJSON_AddNumberToObject(json, "digest-every", (double)options->digest_every);
    }
    if (options->audit) {
        char text[48];
        snprintf(text, sizeof text, "%" PRIu64 ":%" PRId64, options->audit_seed,
                 options->audit_every);
        cJSON_AddStringToObject(json, "audit", text);
    }
    cJSON_AddBoolToObject(json, "trace", options->trace);
    cJSON_AddStringToObject(json, "comm", options->comm);
    cJSON_AddNumberToObject(json, "timeout", options->timeout_s);
    cJSON_AddNumberToObject(json, "print-freq", options->print_freq);
    if (options->fault.step > 0) {
        cJSON_AddNumberToObject(json, "fault-at", (double)options->fault.step);
    }
    add_places(json, "overflow-at", options->overflow_count, options->overflow);
    if (options->aux_count > 0) {
        add_places(json, "aux-head", options->aux_count, options->aux);
    }
    static const char *const places[] = {"first", "middle", "last"};
    const ls_overflow_as *as = &options->overflow_as;
    char text[128];
    snprintf(text, sizeof text, "%s@%s:%s:%d",
             isnan(as->value) ? "nan"
             : as->value < 0  ? "-inf"
                              : "inf",
             as->param,
             places[as->place == 'f'   ? 0
                    : as->place == 'm' ? 1
                                       : 2],
             as->micro);
    cJSON_AddStringToObject(json, "overflow-as", text);
}

struct cJSON *ls_options_json(const ls_options *options)
{
    cJSON *json = cJSON_CreateObject();
    LS_ASSERT(json != NULL);
    ls_dialect_rules rules;
    ls_dialect_resolve(options, 1, &rules); /* none of what is written depends on the world */
    cJSON_AddStringToObject(json, "arch", options->arch);
    cJSON_AddNumberToObject(json, "batch-size", options->batch_size);
    if (options->batch_size_count > 0) {
        cJSON_AddItemToObject(
            json, "batch-sizes",
            cJSON_CreateIntArray(options->batch_sizes, options->batch_size_count));
    }
    add_count(json, "global-batch", options->global_batch);
    cJSON_AddNumberToObject(json, "image-size", options->image_size);
    cJSON_AddNumberToObject(json, "num-classes", options->num_classes);
    add_count(json, "steps", options->steps);
    add_count(json, "epochs", options->epochs);
    add_precision(json, options, &rules);
    add_training(json, options);
    add_parallel(json, options, &rules);
    add_running(json, options);
    return json;
}
