#include "arguments.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/usage_error.h"
#include "kernels/core/log.h"
#include "values.h"

enum {
    KEY_ARCH = 'a',
    KEY_BATCH_SIZE = 'b',
    KEY_FIRST_LONG = 0x100, /* no character: options without a short name */
    KEY_GLOBAL_BATCH,
    KEY_IMAGE_SIZE,
    KEY_NUM_CLASSES,
    KEY_STEPS,
    KEY_EPOCHS,
    KEY_OPT_LEVEL,
    KEY_HALF,
    KEY_LOSS_SCALE,
    KEY_INIT_SCALE,
    KEY_GROWTH_INTERVAL,
    KEY_MIN_LOSS_SCALE,
    KEY_MAX_LOSS_SCALE,
    KEY_KEEP_BATCHNORM,
    KEY_MASTER_WEIGHTS,
    KEY_TF32,
    KEY_OPTIMIZER,
    KEY_LR,
    KEY_LR_SCALING,
    KEY_SCHEDULE,
    KEY_MOMENTUM,
    KEY_WEIGHT_DECAY,
    KEY_NESTEROV,
    KEY_BETAS,
    KEY_EPS,
    KEY_MAX_GRAD_NORM,
    KEY_TRUST,
    KEY_DIALECT,
    KEY_BUCKET_CAP,
    KEY_MESSAGE_SIZE,
    KEY_DELAY_ALLREDUCE,
    KEY_SYNC_BN,
    KEY_SYNC_BN_GROUP,
    KEY_BATCH_SIZES,
    KEY_ACCUMULATE,
    KEY_COMPRESS,
    KEY_FIND_UNUSED,
    KEY_BROADCAST_BUFFERS,
    KEY_AVERAGE,
    KEY_PREDIVIDE,
    KEY_ALLREDUCE_FP32,
    KEY_NO_REDUCE,
    KEY_DATA,
    KEY_SEED,
    KEY_WORKERS,
    KEY_DEVICE,
    KEY_DETERMINISTIC,
    KEY_CUDNN_BENCHMARK,
    KEY_CUDA_GRAPH,
    KEY_RESIDENT,
    KEY_THREADS,
    KEY_EXAMPLE,
    KEY_INIT,
    KEY_SAVE,
    KEY_RESUME,
    KEY_DUMP_STEPS,
    KEY_DUMP_RANKS,
    KEY_FORCE_BRANCHES,
    KEY_OVERFLOW_AS,
    KEY_OVERFLOW_AT,
    KEY_FAULT_AT,
    KEY_AUX_HEAD,
    KEY_COMM,
    KEY_TIMEOUT,
    KEY_DIGEST,
    KEY_DIGEST_EVERY,
    KEY_AUDIT,
    KEY_TRACE,
    KEY_PRINT_FREQ,
    KEY_HELP,
    KEY_VERSION,
};

#define TITLE(group, text)            \
    {                                 \
        NULL, 0, NULL, 0, text, group \
    }
#define OPTION(group, name, key, value, text) \
    {                                         \
        name, key, value, 0, text, group      \
    }

static const struct argp_option table[] = {
    TITLE(1, "Network and batch:"),
    OPTION(1, "arch", KEY_ARCH, "NAME", "resnet8 20 32 44 56 110, 18 34 50 101 152 [resnet50]"),
    OPTION(1, "batch-size", KEY_BATCH_SIZE, "N", "images per rank and micro-step [32]"),
    OPTION(1, "global-batch", KEY_GLOBAL_BATCH, "N", "images per step over all ranks, instead"),
    OPTION(1, "image-size", KEY_IMAGE_SIZE, "N", "height and width [224]"),
    OPTION(1, "num-classes", KEY_NUM_CLASSES, "N", "[10]"),
    OPTION(1, "steps", KEY_STEPS, "N", "the step to stop after, also when resumed [10]"),
    OPTION(1, "epochs", KEY_EPOCHS, "N", "or passes over a folder of images [1]"),
    TITLE(2, "Precision:"),
    OPTION(2, "opt-level", KEY_OPT_LEVEL, "O0..O3", "f32, mixed, half with masters, half [O1]"),
    OPTION(2, "half", KEY_HALF, "fp16|bf16", "the 16-bit type [fp16]"),
    OPTION(2, "loss-scale", KEY_LOSS_SCALE, "dynamic|X",
           "[dynamic at O1 and O2 with fp16, else 1]"),
    OPTION(2, "init-scale", KEY_INIT_SCALE, "X", "where a dynamic scale starts [65536]"),
    OPTION(2, "growth-interval", KEY_GROWTH_INTERVAL, "N", "clean steps until it doubles [2000]"),
    OPTION(2, "min-loss-scale", KEY_MIN_LOSS_SCALE, "X",
           "its floor [none; below 2^-24 the run ends]"),
    OPTION(2, "max-loss-scale", KEY_MAX_LOSS_SCALE, "X", "its ceiling [apex 2^24, torch none]"),
    OPTION(2, "keep-batchnorm-fp32", KEY_KEEP_BATCHNORM, "True|False",
           "not at O1 [O2 True, O3 False]"),
    OPTION(2, "master-weights", KEY_MASTER_WEIGHTS, "True|False", "not at O1 [O2 True, O3 False]"),
    OPTION(2, "tf32", KEY_TF32, NULL, "allow TF32 products where f32 is asked for (GPU)"),
    TITLE(3, "Optimizer:"),
    OPTION(3, "optimizer", KEY_OPTIMIZER, "NAME", "sgd, adam, adamw, lamb or lars [sgd]"),
    OPTION(3, "lr", KEY_LR, "X", "learning rate, used as given [0.1]"),
    OPTION(3, "lr-scaling", KEY_LR_SCALING, "none|linear",
           "linear: lr * images per step / 256 [none]"),
    OPTION(
        3, "schedule", KEY_SCHEDULE, "NAME",
        "constant, step:30:0.1, multistep:30,60,80:0.1, cosine:90 or imagenet, after an optional "
        "warmup:5, and with lengths in epochs, or in steps as 500s [constant]"),
    OPTION(3, "momentum", KEY_MOMENTUM, "X", "[0.9]"),
    OPTION(3, "weight-decay", KEY_WEIGHT_DECAY, "X", "[1e-4]"),
    OPTION(3, "nesterov", KEY_NESTEROV, NULL, ""),
    OPTION(3, "betas", KEY_BETAS, "A,B", "of the Adam family [0.9,0.999]"),
    OPTION(3, "eps", KEY_EPS, "X", "of the Adam family and of lars [1e-8, lamb 1e-6]"),
    OPTION(3, "max-grad-norm", KEY_MAX_GRAD_NORM, "X",
           "lamb: the norm all gradients are clipped to, 0: none [1]"),
    OPTION(3, "trust", KEY_TRUST, "X", "lars: coefficient of the layers' rates [0.02]"),
    TITLE(4, "Data parallel:"),
    OPTION(4, "dialect", KEY_DIALECT, "apex|torch", "whose rules, set together [apex]"),
    OPTION(4, "bucket-cap-mb", KEY_BUCKET_CAP, "X", "MiB that close a bucket [torch 25]"),
    OPTION(4, "message-size", KEY_MESSAGE_SIZE, "N", "elements that do [apex 10000000]"),
    OPTION(4, "delay-allreduce", KEY_DELAY_ALLREDUCE, NULL,
           "one reduction per type after backward; bucket sizes then play no part"),
    OPTION(4, "sync-bn", KEY_SYNC_BN, NULL, "batch statistics over all ranks"),
    OPTION(4, "batch-sizes", KEY_BATCH_SIZES, "N,N,...",
           "each rank's own batch, instead of --batch-size"),
    OPTION(4, "sync-bn-group", KEY_SYNC_BN_GROUP, "N",
           "of N ranks that follow each other; 0: of all [0]"),
    OPTION(4, "accumulate", KEY_ACCUMULATE, "N", "micro-steps per step [1]"),
    OPTION(4, "compress", KEY_COMPRESS, "TYPE", "reduce f32 gradients as fp16 or bf16 [none]"),
    OPTION(4, "find-unused", KEY_FIND_UNUSED, NULL,
           "a parameter that a step does not use counts as zero"),
    {"broadcast-buffers", KEY_BROADCAST_BUFFERS, "True|False", OPTION_ARG_OPTIONAL,
     "rank 0's running statistics for all [torch True, apex False]", 4},
    OPTION(4, "average", KEY_AVERAGE, "WHEN", "post, pre or none [apex post, torch pre]"),
    OPTION(4, "predivide", KEY_PREDIVIDE, "F", "divide by F before the sum, the rest after [1]"),
    OPTION(4, "allreduce-fp32", KEY_ALLREDUCE_FP32, NULL, "reduce half gradients in f32"),
    OPTION(4, "no-reduce", KEY_NO_REDUCE, NULL,
           "for measuring only: gradients stay local, ranks drift apart, nothing is judged"),
    TITLE(5, "Data:"),
    OPTION(5, "data", KEY_DATA, "WHAT",
           "synthetic, batches:DIR, or a folder with a folder of JPEGs per class [synthetic]"),
    OPTION(5, "seed", KEY_SEED, "N", "[0]"),
    OPTION(5, "workers", KEY_WORKERS, "N", "threads that load ahead [2]"),
    OPTION(5, "resident", KEY_RESIDENT, "K",
           "K synthetic batches stay on the device and take turns (GPU)"),
    TITLE(6, "Running:"),
    OPTION(6, "device", KEY_DEVICE, "cpu|cuda|auto", "[auto]"),
    OPTION(6, "deterministic", KEY_DETERMINISTIC, NULL, "the same bits every time"),
    OPTION(6, "cudnn-benchmark", KEY_CUDNN_BENCHMARK, NULL,
           "time the engines of products and take the fastest, rank 0's choice (GPU)"),
    OPTION(6, "cuda-graph", KEY_CUDA_GRAPH, "auto|on|off",
           "launch steps as one recorded graph; auto: where nothing forbids it and it can be "
           "recorded; on: that or nothing [auto]"),
    OPTION(6, "threads", KEY_THREADS, "N", "CPU threads of a rank [cores / ranks here]"),
    OPTION(6, "example", KEY_EXAMPLE, "NAME",
           "train an example of the amp library: two-encoders, two-losses [none]"),
    OPTION(6, "init", KEY_INIT, "FILE", "start from these parameters (safetensors, or a dump)"),
    OPTION(6, "save", KEY_SAVE, "FILE", "write a checkpoint at the end"),
    OPTION(6, "resume", KEY_RESUME, "FILE", "go on from a checkpoint"),
    OPTION(6, "dump-steps", KEY_DUMP_STEPS, "1,2,5", "write these steps' tensors to LS_RUN_DIR"),
    OPTION(6, "dump-ranks", KEY_DUMP_RANKS, "0|all|branches",
           "by rank 0, by all, or of the others only what decides branches [0]"),
    OPTION(6, "force-branches", KEY_FORCE_BRANCHES, "DIR",
           "step 1 takes the ReLU and max-pool decisions of these dumps, rank by micro-step"),
    OPTION(6, "overflow-as", KEY_OVERFLOW_AS, "VALUE[@PARAM[:PLACE[:MICRO]]]",
           "inf, -inf or nan; which gradient; first, middle or last; micro-step [inf]"),
    OPTION(6, "overflow-at", KEY_OVERFLOW_AT, "STEP[:RANK],...",
           "make a gradient infinite there, before the reduction"),
    OPTION(6, "aux-head", KEY_AUX_HEAD, "STEP[:RANK],...",
           "a second classifier, used in these steps and on these ranks only"),
    OPTION(6, "fault-at", KEY_FAULT_AT, "STEP:RANK:PHASE:HOW",
           "kill or stop a rank there, or let it leave, to see what the others do"),
    OPTION(6, "comm", KEY_COMM, "ENGINE",
           "auto, self, gloo or nccl [auto: none in a world of one]"),
    OPTION(6, "timeout", KEY_TIMEOUT, "S", "seconds until a silent peer counts as lost [300]"),
    OPTION(6, "digest", KEY_DIGEST, "all|param|none", "what is hashed after a step [all]"),
    OPTION(6, "digest-every", KEY_DIGEST_EVERY, "K",
           "after each K-th step and the last only: the device stops for it [1]"),
    OPTION(6, "audit", KEY_AUDIT, "SEED[:EVERY]",
           "at one step of EVERY, 1,000 elements of all that it writes are computed in FP64 (GPU) "
           "[none; EVERY 200]"),
    OPTION(6, "trace", KEY_TRACE, NULL, "events of what each step was busy with"),
    OPTION(6, "print-freq", KEY_PRINT_FREQ, "N", "steps between two printed lines; 0: none [10]"),
    TITLE(7, ""),
    OPTION(7, "help", KEY_HELP, NULL, "print this"),
    OPTION(7, "version", KEY_VERSION, NULL, "print the version"),
    {0},
};

typedef struct reading {
    const char *name; /* of the option that is read */
    ls_options *options;
    ls_arguments_given *given;
    const struct argp *argp;
    bool refused; /* a value was refused, and said so; else getopt did not take the option */
} reading;

static const char *name_of(int key)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].key == key && table[i].name != NULL) {
            return table[i].name;
        }
    }
    return "?";
}

/* ---- one option, by subject ------------------------------------------------------------------ */

static error_t read_network(int key, const char *text, reading *to)
{
    ls_options *options = to->options;
    switch (key) {
    case KEY_ARCH:
        return ls_values_text(to->name, text, options->arch, sizeof options->arch);
    case KEY_BATCH_SIZE:
        to->given->batch_size = true;
        return ls_values_int(to->name, text, 1, 65536, &options->batch_size);
    case KEY_GLOBAL_BATCH:
        return ls_values_integer(to->name, text, 1, INT64_C(1) << 40, &options->global_batch);
    case KEY_IMAGE_SIZE:
        return ls_values_int(to->name, text, 1, 65536, &options->image_size);
    case KEY_NUM_CLASSES:
        return ls_values_int(to->name, text, 2, 1000000, &options->num_classes);
    case KEY_STEPS:
        return ls_values_integer(to->name, text, 1, INT64_C(1) << 50, &options->steps);
    case KEY_EPOCHS:
        return ls_values_integer(to->name, text, 1, 1000000, &options->epochs);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t read_precision(int key, const char *text, reading *to)
{
    ls_options *options = to->options;
    int index = 0;
    error_t error = 0;
    switch (key) {
    case KEY_OPT_LEVEL:
        return ls_values_level(to->name, text, options);
    case KEY_HALF:
        error = ls_values_word(to->name, text, "fp16|bf16", &index);
        options->half = index == 0 ? LS_F16 : LS_BF16;
        return error;
    case KEY_LOSS_SCALE:
        return ls_values_loss_scale(to->name, text, options);
    case KEY_INIT_SCALE:
        return ls_values_float(to->name, text, LS_VALUES_POSITIVE, &options->init_scale);
    case KEY_GROWTH_INTERVAL:
        return ls_values_int(to->name, text, 1, 1000000000, &options->growth_interval);
    case KEY_MIN_LOSS_SCALE:
        return ls_values_float(to->name, text, LS_VALUES_NOT_NEGATIVE, &options->min_loss_scale);
    case KEY_MAX_LOSS_SCALE:
        return ls_values_float(to->name, text, LS_VALUES_POSITIVE, &options->max_loss_scale);
    case KEY_KEEP_BATCHNORM:
        return ls_values_truth(to->name, text, &options->keep_batchnorm_fp32);
    case KEY_MASTER_WEIGHTS:
        return ls_values_truth(to->name, text, &options->master_weights);
    case KEY_TF32:
        options->tf32 = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t read_optimizer(int key, const char *text, reading *to)
{
    ls_options *options = to->options;
    int index = 0;
    error_t error = 0;
    switch (key) {
    case KEY_OPTIMIZER:
        error = ls_values_word(to->name, text, "sgd|adam|adamw|lamb|lars", &index);
        options->optimizer = (ls_optimizer_kind)index;
        return error;
    case KEY_LR:
        return ls_values_number(to->name, text, LS_VALUES_NOT_NEGATIVE, &options->lr);
    case KEY_LR_SCALING:
        error = ls_values_word(to->name, text, "none|linear", &index);
        options->lr_scaling_linear = index == 1;
        return error;
    case KEY_SCHEDULE:
        return ls_values_text(to->name, text, options->schedule, sizeof options->schedule);
    case KEY_MOMENTUM:
        return ls_values_number(to->name, text, LS_VALUES_NOT_NEGATIVE, &options->momentum);
    case KEY_WEIGHT_DECAY:
        return ls_values_number(to->name, text, LS_VALUES_NOT_NEGATIVE, &options->weight_decay);
    case KEY_NESTEROV:
        options->nesterov = true;
        return 0;
    case KEY_BETAS:
        return ls_values_betas(to->name, text, options);
    case KEY_EPS:
        to->given->epsilon = true;
        return ls_values_number(to->name, text, LS_VALUES_POSITIVE, &options->epsilon);
    case KEY_MAX_GRAD_NORM:
        return ls_values_number(to->name, text, LS_VALUES_NOT_NEGATIVE, &options->max_grad_norm);
    case KEY_TRUST:
        return ls_values_number(to->name, text, LS_VALUES_POSITIVE, &options->trust);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t read_parallel(int key, const char *text, reading *to)
{
    ls_options *options = to->options;
    int index = 0;
    error_t error = 0;
    switch (key) {
    case KEY_DIALECT:
        error = ls_values_word(to->name, text, "apex|torch", &index);
        options->dialect = (ls_dialect)index;
        return error;
    case KEY_BUCKET_CAP:
        return ls_values_number(to->name, text, LS_VALUES_POSITIVE, &options->bucket_cap_mb);
    case KEY_MESSAGE_SIZE:
        return ls_values_integer(to->name, text, 1, INT64_C(1) << 50, &options->message_size);
    case KEY_DELAY_ALLREDUCE:
        options->delay_allreduce = true;
        return 0;
    case KEY_SYNC_BN:
        options->sync_bn = true;
        return 0;
    case KEY_BATCH_SIZES:
        return ls_values_batch_sizes(to->name, text, options);
    case KEY_SYNC_BN_GROUP:
        return ls_values_int(to->name, text, 0, 1000000, &options->sync_bn_group);
    case KEY_ACCUMULATE:
        return ls_values_int(to->name, text, 1, 65536, &options->accumulate);
    case KEY_COMPRESS:
        error = ls_values_word(to->name, text, "none|fp16|bf16", &index);
        options->compress = index > 0;
        options->compress_type = index == 2 ? LS_BF16 : LS_F16;
        return error;
    case KEY_FIND_UNUSED:
        options->find_unused = true;
        return 0;
    case KEY_BROADCAST_BUFFERS:
        return ls_values_truth(to->name, text != NULL ? text : "True", &options->broadcast_buffers);
    case KEY_AVERAGE:
        error = ls_values_word(to->name, text, "post|pre|none", &index);
        options->average_given = true;
        options->average = (ls_average)index;
        return error;
    case KEY_PREDIVIDE:
        return ls_values_number(to->name, text, LS_VALUES_POSITIVE, &options->predivide);
    case KEY_ALLREDUCE_FP32:
        options->allreduce_fp32 = true;
        return 0;
    case KEY_NO_REDUCE:
        options->no_reduce = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t read_running(int key, const char *text, reading *to)
{
    ls_options *options = to->options;
    int index = 0;
    error_t error = 0;
    switch (key) {
    case KEY_DATA:
        if (strcmp(text, "batches:") == 0) {
            ls_log_error("--data '%s': allowed: synthetic, batches:DIR, or a folder", text);
            return EINVAL;
        }
        return ls_values_text(to->name, text, options->data, sizeof options->data);
    case KEY_SEED:
        return ls_values_seed(to->name, text, &options->seed);
    case KEY_WORKERS:
        return ls_values_int(to->name, text, 0, 256, &options->workers);
    case KEY_DEVICE:
        error = ls_values_word(to->name, text, "cpu|cuda|auto", &index);
        return error != 0 ? error
                          : ls_values_text(to->name, text, options->device, sizeof options->device);
    case KEY_DETERMINISTIC:
        options->deterministic = true;
        return 0;
    case KEY_CUDNN_BENCHMARK:
        options->cudnn_benchmark = true;
        return 0;
    case KEY_CUDA_GRAPH:
        error = ls_values_word(to->name, text, "auto|on|off", &index);
        options->graph = error == 0 ? (ls_graph_mode)index : options->graph;
        return error;
    case KEY_RESIDENT:
        return ls_values_int(to->name, text, 1, 64, &options->resident);
    case KEY_THREADS:
        return ls_values_int(to->name, text, 0, 4096, &options->threads);
    case KEY_EXAMPLE:
        error = ls_values_word(to->name, text, "none|two-encoders|two-losses", &index);
        options->example = error == 0 ? (ls_example_kind)index : options->example;
        return error;
    case KEY_INIT:
        return ls_values_text(to->name, text, options->init, sizeof options->init);
    case KEY_SAVE:
        return ls_values_text(to->name, text, options->save, sizeof options->save);
    case KEY_RESUME:
        return ls_values_text(to->name, text, options->resume, sizeof options->resume);
    case KEY_DUMP_STEPS:
        return ls_values_dump_steps(to->name, text, options);
    case KEY_DUMP_RANKS:
        error = ls_values_word(to->name, text, "0|all|branches", &index);
        options->dump_ranks = error == 0 ? (ls_dump_scope)index : options->dump_ranks;
        return error;
    case KEY_FORCE_BRANCHES:
        return ls_values_text(to->name, text, options->force_branches,
                              sizeof options->force_branches);
    case KEY_AUX_HEAD:
        return ls_values_aux_head(to->name, text, options);
    case KEY_FAULT_AT:
        return ls_values_fault_at(to->name, text, options);
    case KEY_OVERFLOW_AT:
        return ls_values_overflow_at(to->name, text, options);
    case KEY_OVERFLOW_AS:
        return ls_values_overflow_as(to->name, text, &options->overflow_as);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t read_record(int key, const char *text, reading *to)
{
    ls_options *options = to->options;
    int index;
    error_t error;
    switch (key) {
    case KEY_COMM:
        error = ls_values_word(to->name, text, "auto|self|gloo|nccl", &index);
        return error != 0 ? error
                          : ls_values_text(to->name, text, options->comm, sizeof options->comm);
    case KEY_TIMEOUT:
        return ls_values_number(to->name, text, LS_VALUES_POSITIVE, &options->timeout_s);
    case KEY_DIGEST:
        error = ls_values_word(to->name, text, "all|param|none", &index);
        options->digest = error == 0 ? (ls_digest_scope)index : options->digest;
        return error;
    case KEY_DIGEST_EVERY:
        return ls_values_integer(to->name, text, 1, INT64_C(1) << 50, &options->digest_every);
    case KEY_AUDIT:
        return ls_values_audit(to->name, text, options);
    case KEY_TRACE:
        options->trace = true;
        return 0;
    case KEY_PRINT_FREQ:
        return ls_values_int(to->name, text, 0, 1000000, &options->print_freq);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t read_option(int key, char *text, struct argp_state *state)
{
    static error_t (*const by_subject[])(int, const char *, reading *) = {
        read_network, read_precision, read_optimizer, read_parallel, read_running, read_record,
    };
    reading *to = state->input;
    switch (key) {
    case KEY_HELP:
        argp_help(to->argp, stdout, ARGP_HELP_SHORT_USAGE | ARGP_HELP_LONG | ARGP_HELP_DOC,
                  state->name);
        exit(0);
    case KEY_VERSION:
        printf("%s (Lockstep) %s\n", state->name, LS_VERSION);
        exit(0);
    case ARGP_KEY_ARG:
        ls_log_error("argument '%s': every argument is an option (--help lists them)", text);
        to->refused = true;
        return EINVAL;
    default:
        break;
    }
    to->name = name_of(key);
    for (size_t i = 0; i < sizeof by_subject / sizeof by_subject[0]; i++) {
        error_t error = by_subject[i](key, text, to);
        if (error != ARGP_ERR_UNKNOWN) {
            to->refused = error != 0;
            return error;
        }
    }
    return ARGP_ERR_UNKNOWN;
}

/* ---- the whole line -------------------------------------------------------------------------- */

/* A copy of argv in which the names of long options have '-' where they had '_'. */
static char **copy_arguments(int argc, char **argv)
{
    char **copy = calloc((size_t)argc + 1, sizeof *copy);
    LS_ASSERT(copy != NULL);
    bool names = true;
    for (int i = 0; i < argc; i++) {
        copy[i] = strdup(argv[i]);
        LS_ASSERT(copy[i] != NULL);
        names = names && strcmp(argv[i], "--") != 0;
        if (i == 0 || !names || strncmp(copy[i], "--", 2) != 0) {
            continue;
        }
        for (char *c = copy[i]; *c != '\0' && *c != '='; c++) {
            *c = *c == '_' ? '-' : *c;
        }
    }
    return copy;
}

ls_status ls_arguments_read(int argc, char **argv, ls_options *options, ls_arguments_given *given)
{
    static const struct argp argp = {
        .options = table,
        .parser = read_option,
        .doc = "Trains a ResNet data-parallel in mixed precision; one process is one rank, found "
               "in RANK, "
               "WORLD_SIZE, ... as torchrun sets them. Defaults are in brackets.",
    };
    reading to = {NULL, options, given, &argp, false};
    char **copy = copy_arguments(argc, argv);
    char **original = calloc((size_t)argc + 1, sizeof *original); /* getopt may permute */
    LS_ASSERT(original != NULL);
    memcpy(original, copy, (size_t)argc * sizeof *original);
    /* NO_ERRS: argp's own messages take two lines and do not say what is allowed */
    error_t error =
        argp_parse(&argp, argc, copy, ARGP_NO_ERRS | ARGP_NO_HELP | ARGP_NO_EXIT, NULL, &to);
    if (error != 0 && !to.refused) {
        (void)ls_usage_error_explain(table, false, argc, original);
    }
    for (int i = 0; i < argc; i++) {
        free(original[i]);
    }
    free(original);
    free(copy);
    return error == 0 ? LS_OK : LS_ERR_USAGE;
}
