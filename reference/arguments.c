#include "arguments.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels/core/log.h"

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
    KEY_DIALECT,
    KEY_BUCKET_CAP,
    KEY_MESSAGE_SIZE,
    KEY_DELAY_ALLREDUCE,
    KEY_SYNC_BN,
    KEY_SYNC_BN_GROUP,
    KEY_ACCUMULATE,
    KEY_COMPRESS,
    KEY_FIND_UNUSED,
    KEY_BROADCAST_BUFFERS,
    KEY_AVERAGE,
    KEY_PREDIVIDE,
    KEY_ALLREDUCE_FP32,
    KEY_DATA,
    KEY_SEED,
    KEY_WORKERS,
    KEY_DEVICE,
    KEY_DETERMINISTIC,
    KEY_THREADS,
    KEY_INIT,
    KEY_SAVE,
    KEY_RESUME,
    KEY_DUMP_STEPS,
    KEY_DUMP_RANKS,
    KEY_OVERFLOW_AT,
    KEY_COMM,
    KEY_TIMEOUT,
    KEY_DIGEST,
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
    OPTION(3, "optimizer", KEY_OPTIMIZER, "NAME", "sgd (adam adamw lamb lars: refused) [sgd]"),
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
    OPTION(3, "eps", KEY_EPS, "X", "of the Adam family [1e-8]"),
    TITLE(4, "Data parallel:"),
    OPTION(4, "dialect", KEY_DIALECT, "apex|torch", "whose rules, set together [apex]"),
    OPTION(4, "bucket-cap-mb", KEY_BUCKET_CAP, "X", "MiB that close a bucket [torch 25]"),
    OPTION(4, "message-size", KEY_MESSAGE_SIZE, "N", "elements that do [apex 10000000]"),
    OPTION(4, "delay-allreduce", KEY_DELAY_ALLREDUCE, NULL,
           "one reduction per type after backward; bucket sizes then play no part"),
    OPTION(4, "sync-bn", KEY_SYNC_BN, NULL, "batch statistics over all ranks"),
    OPTION(4, "sync-bn-group", KEY_SYNC_BN_GROUP, "N", "only 0, all ranks, is offered [0]"),
    OPTION(4, "accumulate", KEY_ACCUMULATE, "N", "micro-steps per step [1]"),
    OPTION(4, "compress", KEY_COMPRESS, "TYPE", "reduce f32 gradients as fp16 or bf16 [none]"),
    OPTION(4, "find-unused", KEY_FIND_UNUSED, NULL, "refused: these networks use every parameter"),
    {"broadcast-buffers", KEY_BROADCAST_BUFFERS, "True|False", OPTION_ARG_OPTIONAL,
     "rank 0's running statistics for all [torch True, apex False]", 4},
    OPTION(4, "average", KEY_AVERAGE, "WHEN", "post, pre or none [apex post, torch pre]"),
    OPTION(4, "predivide", KEY_PREDIVIDE, "F", "divide by F before the sum, the rest after [1]"),
    OPTION(4, "allreduce-fp32", KEY_ALLREDUCE_FP32, NULL, "reduce half gradients in f32"),
    TITLE(5, "Data:"),
    OPTION(5, "data", KEY_DATA, "WHAT",
           "synthetic, batches:DIR, or a folder with a folder of JPEGs per class [synthetic]"),
    OPTION(5, "seed", KEY_SEED, "N", "[0]"),
    OPTION(5, "workers", KEY_WORKERS, "N", "threads that load ahead [2]"),
    TITLE(6, "Running:"),
    OPTION(6, "device", KEY_DEVICE, "cpu|cuda|auto", "[auto]"),
    OPTION(6, "deterministic", KEY_DETERMINISTIC, NULL, "the same bits every time"),
    OPTION(6, "threads", KEY_THREADS, "N", "CPU threads of a rank [cores / ranks here]"),
    OPTION(6, "init", KEY_INIT, "FILE", "start from these parameters (safetensors)"),
    OPTION(6, "save", KEY_SAVE, "FILE", "write a checkpoint at the end"),
    OPTION(6, "resume", KEY_RESUME, "FILE", "go on from a checkpoint"),
    OPTION(6, "dump-steps", KEY_DUMP_STEPS, "1,2,5", "write these steps' tensors to LS_RUN_DIR"),
    OPTION(6, "dump-ranks", KEY_DUMP_RANKS, "0|all", "by rank 0 or by all [0]"),
    OPTION(6, "overflow-at", KEY_OVERFLOW_AT, "STEP[:RANK],...",
           "make a gradient infinite there, before the reduction"),
    OPTION(6, "comm", KEY_COMM, "ENGINE", "auto, self or gloo [auto: none in a world of one]"),
    OPTION(6, "timeout", KEY_TIMEOUT, "S", "seconds until a silent peer counts as lost [300]"),
    OPTION(6, "digest", KEY_DIGEST, "all|param|none", "what is hashed after a step [all]"),
    OPTION(6, "trace", KEY_TRACE, NULL, "events of what each step was busy with"),
    OPTION(6, "print-freq", KEY_PRINT_FREQ, "N", "steps between two printed lines; 0: none [10]"),
    TITLE(7, ""),
    OPTION(7, "help", KEY_HELP, NULL, "print this"),
    OPTION(7, "version", KEY_VERSION, NULL, "print the version"),
    {0},
};

typedef struct reading {
    ls_options *options;
    ls_arguments_given *given;
    const struct argp *argp;
} reading;

/* ---- one value
 * ----------------------------------------------------------------------------------- */

static const char *name_of(int key)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].key == key && table[i].name != NULL) {
            return table[i].name;
        }
    }
    return "?";
}

static error_t refuse(int key, const char *text, const char *allowed)
{
    ls_log_error("--%s '%s': allowed: %s", name_of(key), text, allowed);
    return EINVAL;
}

static error_t read_integer(int key, const char *text, int64_t least, int64_t most, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < least || value > most) {
        char allowed[96];
        snprintf(allowed, sizeof allowed, "a whole number from %" PRId64 " to %" PRId64, least,
                 most);
        return refuse(key, text, allowed);
    }
    *out = value;
    return 0;
}

static error_t read_int(int key, const char *text, int least, int most, int *out)
{
    int64_t value;
    error_t error = read_integer(key, text, least, most, &value);
    if (error == 0) {
        *out = (int)value;
    }
    return error;
}

typedef enum range { POSITIVE, NOT_NEGATIVE, BELOW_ONE } range;

static error_t read_number(int key, const char *text, range allowed, double *out)
{
    static const char *const says[] = {
        [POSITIVE] = "a positive finite number",
        [NOT_NEGATIVE] = "0 or a positive finite number",
        [BELOW_ONE] = "a number from 0 to below 1",
    };
    char *end;
    double value = strtod(text, &end);
    /* a value that f32 cannot hold is not finite where it is used */
    bool good = end != text && *end == '\0' && isfinite((float)value) && value >= 0 &&
                (allowed != POSITIVE || (float)value > 0) && (allowed != BELOW_ONE || value < 1);
    if (!good) {
        return refuse(key, text, says[allowed]);
    }
    *out = value;
    return 0;
}

static error_t read_float(int key, const char *text, range allowed, float *out)
{
    double value;
    error_t error = read_number(key, text, allowed, &value);
    if (error == 0) {
        *out = (float)value;
    }
    return error;
}

/* `names` are the allowed words, separated by '|'; *index is the place of the one that was given.
 */
static error_t read_word(int key, const char *text, const char *names, int *index)
{
    size_t length = strlen(text);
    int place = 0;
    for (const char *name = names; name != NULL; place++) {
        const char *bar = strchr(name, '|');
        size_t bytes = bar != NULL ? (size_t)(bar - name) : strlen(name);
        if (bytes == length && strncmp(name, text, bytes) == 0) {
            *index = place;
            return 0;
        }
        name = bar != NULL ? bar + 1 : NULL;
    }
    return refuse(key, text, names);
}

static error_t read_truth(int key, const char *text, ls_tristate *out)
{
    int index;
    error_t error = read_word(key, text, "True|False", &index);
    if (error == 0) {
        *out = index == 0 ? LS_TRUE : LS_FALSE;
    }
    return error;
}

static error_t read_text(int key, const char *text, char *out, size_t bytes)
{
    if (text[0] == '\0' || strlen(text) >= bytes) {
        char allowed[64];
        snprintf(allowed, sizeof allowed, "1 to %zu bytes", bytes - 1);
        return refuse(key, text, allowed);
    }
    memcpy(out, text, strlen(text) + 1);
    return 0;
}

static error_t read_level(const char *text, ls_options *options)
{
    int level;
    if ((text[0] == '0' || text[0] == 'o') && text[1] >= '0' && text[1] <= '3' && text[2] == '\0') {
        ls_log_error("--opt-level '%s': allowed: O0|O1|O2|O3, with the capital letter O: O%c", text,
                     text[1]);
        return EINVAL;
    }
    error_t error = read_word(KEY_OPT_LEVEL, text, "O0|O1|O2|O3", &level);
    if (error == 0) {
        options->opt_level = (ls_opt_level)level;
    }
    return error;
}

static error_t read_loss_scale(const char *text, ls_options *options)
{
    char *end;
    float value = strtof(text, &end);
    options->loss_scale_given = true;
    options->loss_scale_dynamic = strcmp(text, "dynamic") == 0;
    if (options->loss_scale_dynamic) {
        return 0;
    }
    /* the gradients are multiplied by f32(1/S), which must be finite too */
    if (end == text || *end != '\0' || !(value > 0) || !isfinite(value) ||
        !isfinite(1.0f / value)) {
        return refuse(KEY_LOSS_SCALE, text, "dynamic, or a positive finite number");
    }
    options->loss_scale = value;
    return 0;
}

static error_t read_betas(const char *text, ls_options *options)
{
    char *end;
    double first = strtod(text, &end), second = -1;
    bool good = end != text && *end == ',';
    if (good) {
        const char *rest = end + 1;
        second = strtod(rest, &end);
        good = end != rest && *end == '\0';
    }
    if (!good || !(first >= 0 && first < 1 && second >= 0 && second < 1)) {
        return refuse(KEY_BETAS, text, "two numbers from 0 to below 1, such as 0.9,0.999");
    }
    options->beta1 = first;
    options->beta2 = second;
    return 0;
}

/* A number from `least` on at *text; moves *text behind it. */
static bool next_number(const char **text, int64_t least, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(*text, &end, 10);
    if (end == *text || errno != 0 || value < least) {
        return false;
    }
    *text = end;
    *out = value;
    return true;
}

static error_t read_dump_steps(const char *text, ls_options *options)
{
    const char *rest = text;
    options->dump_step_count = 0;
    do {
        int64_t step;
        bool good = options->dump_step_count < LS_OPTIONS_LIST_MAX &&
                    next_number(&rest, 1, &step) && (*rest == ',' || *rest == '\0');
        for (int i = 0; good && i < options->dump_step_count; i++) {
            good = options->dump_step[i] != step;
        }
        if (!good) {
            return refuse(KEY_DUMP_STEPS, text,
                          "up to 64 different steps from 1 on, such as 1,2,5");
        }
        options->dump_step[options->dump_step_count++] = step;
    } while (*rest++ == ',');
    return 0;
}

static error_t read_overflow_at(const char *text, ls_options *options)
{
    const char *rest = text;
    options->overflow_count = 0;
    do {
        int64_t step, rank = -1;
        bool good = options->overflow_count < LS_OPTIONS_LIST_MAX && next_number(&rest, 1, &step);
        if (good && *rest == ':') {
            rest++;
            good = next_number(&rest, 0, &rank) && rank < 1000000;
        }
        if (!good || (*rest != ',' && *rest != '\0')) {
            return refuse(
                KEY_OVERFLOW_AT, text,
                "up to 64 of STEP or STEP:RANK, steps from 1 and ranks from 0 on, such as "
                "3,7:1");
        }
        options->overflow[options->overflow_count++] = (ls_overflow_at){step, (int)rank};
    } while (*rest++ == ',');
    return 0;
}

/* ---- one option, by subject
 * ---------------------------------------------------------------------- */

static error_t read_network(int key, const char *text, reading *to)
{
    ls_options *options = to->options;
    switch (key) {
    case KEY_ARCH:
        return read_text(key, text, options->arch, sizeof options->arch);
    case KEY_BATCH_SIZE:
        to->given->batch_size = true;
        return read_int(key, text, 1, 65536, &options->batch_size);
    case KEY_GLOBAL_BATCH:
        return read_integer(key, text, 1, INT64_C(1) << 40, &options->global_batch);
    case KEY_IMAGE_SIZE:
        return read_int(key, text, 1, 65536, &options->image_size);
    case KEY_NUM_CLASSES:
        return read_int(key, text, 2, 1000000, &options->num_classes);
    case KEY_STEPS:
        return read_integer(key, text, 1, INT64_C(1) << 50, &options->steps);
    case KEY_EPOCHS:
        return read_integer(key, text, 1, 1000000, &options->epochs);
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
        return read_level(text, options);
    case KEY_HALF:
        error = read_word(key, text, "fp16|bf16", &index);
        options->half = index == 0 ? LS_F16 : LS_BF16;
        return error;
    case KEY_LOSS_SCALE:
        return read_loss_scale(text, options);
    case KEY_INIT_SCALE:
        return read_float(key, text, POSITIVE, &options->init_scale);
    case KEY_GROWTH_INTERVAL:
        return read_int(key, text, 1, 1000000000, &options->growth_interval);
    case KEY_MIN_LOSS_SCALE:
        return read_float(key, text, NOT_NEGATIVE, &options->min_loss_scale);
    case KEY_MAX_LOSS_SCALE:
        return read_float(key, text, POSITIVE, &options->max_loss_scale);
    case KEY_KEEP_BATCHNORM:
        return read_truth(key, text, &options->keep_batchnorm_fp32);
    case KEY_MASTER_WEIGHTS:
        return read_truth(key, text, &options->master_weights);
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
        error = read_word(key, text, "sgd|adam|adamw|lamb|lars", &index);
        options->optimizer = (ls_optimizer_kind)index;
        return error;
    case KEY_LR:
        return read_number(key, text, NOT_NEGATIVE, &options->lr);
    case KEY_LR_SCALING:
        error = read_word(key, text, "none|linear", &index);
        options->lr_scaling_linear = index == 1;
        return error;
    case KEY_SCHEDULE:
        return read_text(key, text, options->schedule, sizeof options->schedule);
    case KEY_MOMENTUM:
        return read_number(key, text, NOT_NEGATIVE, &options->momentum);
    case KEY_WEIGHT_DECAY:
        return read_number(key, text, NOT_NEGATIVE, &options->weight_decay);
    case KEY_NESTEROV:
        options->nesterov = true;
        return 0;
    case KEY_BETAS:
        return read_betas(text, options);
    case KEY_EPS:
        return read_number(key, text, POSITIVE, &options->epsilon);
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
        error = read_word(key, text, "apex|torch", &index);
        options->dialect = (ls_dialect)index;
        return error;
    case KEY_BUCKET_CAP:
        return read_number(key, text, POSITIVE, &options->bucket_cap_mb);
    case KEY_MESSAGE_SIZE:
        return read_integer(key, text, 1, INT64_C(1) << 50, &options->message_size);
    case KEY_DELAY_ALLREDUCE:
        options->delay_allreduce = true;
        return 0;
    case KEY_SYNC_BN:
        options->sync_bn = true;
        return 0;
    case KEY_SYNC_BN_GROUP:
        return read_int(key, text, 0, 1000000, &options->sync_bn_group);
    case KEY_ACCUMULATE:
        return read_int(key, text, 1, 65536, &options->accumulate);
    case KEY_COMPRESS:
        error = read_word(key, text, "none|fp16|bf16", &index);
        options->compress = index > 0;
        options->compress_type = index == 2 ? LS_BF16 : LS_F16;
        return error;
    case KEY_FIND_UNUSED:
        options->find_unused = true;
        return 0;
    case KEY_BROADCAST_BUFFERS:
        return read_truth(key, text != NULL ? text : "True", &options->broadcast_buffers);
    case KEY_AVERAGE:
        error = read_word(key, text, "post|pre|none", &index);
        options->average_given = true;
        options->average = (ls_average)index;
        return error;
    case KEY_PREDIVIDE:
        return read_number(key, text, POSITIVE, &options->predivide);
    case KEY_ALLREDUCE_FP32:
        options->allreduce_fp32 = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t read_seed(int key, const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0) {
        return refuse(key, text, "a whole number from 0 to 2^64 - 1");
    }
    *out = value;
    return 0;
}

static error_t read_running(int key, const char *text, reading *to)
{
    ls_options *options = to->options;
    int index = 0;
    error_t error = 0;
    switch (key) {
    case KEY_DATA:
        if (strcmp(text, "batches:") == 0) {
            return refuse(key, text, "synthetic, batches:DIR, or a folder");
        }
        return read_text(key, text, options->data, sizeof options->data);
    case KEY_SEED:
        return read_seed(key, text, &options->seed);
    case KEY_WORKERS:
        return read_int(key, text, 0, 256, &options->workers);
    case KEY_DEVICE:
        error = read_word(key, text, "cpu|cuda|auto", &index);
        return error != 0 ? error : read_text(key, text, options->device, sizeof options->device);
    case KEY_DETERMINISTIC:
        options->deterministic = true;
        return 0;
    case KEY_THREADS:
        return read_int(key, text, 0, 4096, &options->threads);
    case KEY_INIT:
        return read_text(key, text, options->init, sizeof options->init);
    case KEY_SAVE:
        return read_text(key, text, options->save, sizeof options->save);
    case KEY_RESUME:
        return read_text(key, text, options->resume, sizeof options->resume);
    case KEY_DUMP_STEPS:
        return read_dump_steps(text, options);
    case KEY_DUMP_RANKS:
        error = read_word(key, text, "0|all", &index);
        options->dump_all_ranks = index == 1;
        return error;
    case KEY_OVERFLOW_AT:
        return read_overflow_at(text, options);
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
        error = read_word(key, text, "auto|self|gloo|nccl", &index);
        return error != 0 ? error : read_text(key, text, options->comm, sizeof options->comm);
    case KEY_TIMEOUT:
        return read_number(key, text, POSITIVE, &options->timeout_s);
    case KEY_DIGEST:
        error = read_word(key, text, "all|param|none", &index);
        options->digest = error == 0 ? (ls_digest_scope)index : options->digest;
        return error;
    case KEY_TRACE:
        options->trace = true;
        return 0;
    case KEY_PRINT_FREQ:
        return read_int(key, text, 0, 1000000, &options->print_freq);
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
        return EINVAL;
    default:
        break;
    }
    for (size_t i = 0; i < sizeof by_subject / sizeof by_subject[0]; i++) {
        error_t error = by_subject[i](key, text, to);
        if (error != ARGP_ERR_UNKNOWN) {
            return error;
        }
    }
    return ARGP_ERR_UNKNOWN;
}

/* ---- the whole line
 * ------------------------------------------------------------------------------ */

/* Levenshtein's distance, for a hint; names are short. */
static int distance(const char *a, const char *b)
{
    enum { LENGTH_MAX = 40 };
    int row[LENGTH_MAX + 1];
    int width = (int)strlen(b);
    if (width > LENGTH_MAX) {
        return LENGTH_MAX;
    }
    for (int j = 0; j <= width; j++) {
        row[j] = j;
    }
    for (int i = 1; a[i - 1] != '\0'; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= width; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            best = row[j] + 1 < best ? row[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[width];
}

/* Says what is wrong with the option that getopt would not take: `argument` as it was typed. */
static void explain_refusal(const char *argument)
{
    char name[64];
    const char *start = argument + (strncmp(argument, "--", 2) == 0 ? 2 : 0);
    const char *equals = strchr(start, '=');
    int length = equals != NULL ? (int)(equals - start) : (int)strlen(start);
    snprintf(name, sizeof name, "%.*s", length, start);
    const struct argp_option *nearest = NULL;
    int best = 4; /* further away is another word */
    for (const struct argp_option *row = table; row->name != NULL || row->doc != NULL; row++) {
        if (row->name == NULL) {
            continue;
        }
        int away = distance(name, row->name);
        if (away == 0 || (argument[1] == row->key && argument[2] == '\0')) {
            ls_log_error("--%s: %s", row->name,
                         row->arg != NULL ? "it needs a value" : "it takes no value");
            return;
        }
        if (away < best) {
            best = away;
            nearest = row;
        }
    }
    if (nearest != NULL) {
        ls_log_error("unknown option '%s'; the nearest is --%s", argument, nearest->name);
    } else {
        ls_log_error("unknown or ambiguous option '%s'; --help lists all", argument);
    }
}

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
    reading to = {options, given, &argp};
    char **copy = copy_arguments(argc, argv);
    char **original = calloc((size_t)argc + 1, sizeof *original); /* argp permutes */
    LS_ASSERT(original != NULL);
    memcpy(original, copy, (size_t)argc * sizeof *original);
    int end = argc;
    /* NO_ERRS: argp's own messages take two lines and do not say what is allowed */
    error_t error =
        argp_parse(&argp, argc, copy, ARGP_NO_ERRS | ARGP_NO_HELP | ARGP_NO_EXIT, &end, &to);
    if (error == ARGP_ERR_UNKNOWN) {
        explain_refusal(copy[end > 1 ? end - 1 : 1]);
    }
    for (int i = 0; i < argc; i++) {
        free(original[i]);
    }
    free(original);
    free(copy);
    return error == 0 ? LS_OK : LS_ERR_USAGE;
}
