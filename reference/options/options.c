#include "options.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/optimizers.h"
#include "kernels/core/list.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"
#include "kernels/core/usage.h"
#include "world.h"
#include "reference/model/model.h"
#include "schedule.h"

enum { STEPS_DEFAULT = 10, EPOCHS_DEFAULT = 1 };

void ls_options_defaults(ls_options *out)
{
#define DEFAULT_INT(field, standard, least, most) .field = standard,
#define DEFAULT_COUNT(field, standard, least, most) .field = standard,
#define DEFAULT_REAL(field, standard, allowed) .field = standard,
#define DEFAULT_FLOAT(field, standard, allowed) .field = standard,
#define DEFAULT_FLAG(field) .field = false,
#define DEFAULT_TRISTATE(field) .field = LS_UNSET,
#define DEFAULT_OPTIONAL(field) .field = LS_UNSET,
#define DEFAULT_WORD(type, field, standard, words) .field = standard,
#define DEFAULT_TEXT(field, bytes, standard) .field = standard,
#define DEFAULT_CHOICE(field, bytes, standard, words) .field = standard,
#define DEFAULT_LIST(field, most, form, allowed)
#define DEFAULT_OWN(read)
    *out = (ls_options){
#define LS_OPTION(group, name, letter, argument, kind, record, differs, help) DEFAULT_##kind
#include "options.def"
#undef LS_OPTION
        .opt_level = LS_O1,
        .half = LS_F16,
        .loss_scale = 1.0f,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .audit_every = 200,
        .overflow_as = {.value = INFINITY, .place = 'f', .micro = -1},
    };
}

const char *ls_options_level_name(ls_opt_level level)
{
    static const char *const names[] = {"O0", "O1", "O2", "O3"};
    LS_ASSERT(level >= LS_O0 && level <= LS_O3);
    return names[level];
}

/* ---- the whole line -------------------------------------------------------------------------- */

enum {
    KEY_ROW = 0x100, /* of row 0; no character. Rows with a letter have that as their key */
    TABLE_MAX = LS_OPTIONS_ROWS + LS_OPTIONS_GROUPS + 1, /* rows, titles and the end */
};

typedef struct reading {
    ls_options *options;
    bool given[LS_OPTIONS_ROWS];
} reading;

static void make_argp_table(struct argp_option table[TABLE_MAX])
{
    static const char *const titles[] = {
        [LS_OPTIONS_NETWORK] = "Network and batch:",
        [LS_OPTIONS_PRECISION] = "Precision:",
        [LS_OPTIONS_OPTIMIZER] = "Optimizer:",
        [LS_OPTIONS_PARALLEL] = "Data parallel:",
        [LS_OPTIONS_DATA] = "Data:",
        [LS_OPTIONS_RUNNING] = "Running:",
    };
    for (int group = 1; group <= LS_OPTIONS_GROUPS; group++) {
        *table++ = (struct argp_option){.doc = titles[group], .group = group};
    }
    for (int i = 0; i < LS_OPTIONS_ROWS; i++) {
        const ls_options_row *row = &ls_options_table[i];
        *table++ = (struct argp_option){
            .name = row->name,
            .key = row->letter != 0 ? row->letter : KEY_ROW + i,
            .arg = row->argument,
            .flags = row->kind == LS_OPTIONS_OPTIONAL ? OPTION_ARG_OPTIONAL : 0,
            .doc = row->help,
            .group = row->group,
        };
    }
    *table = (struct argp_option){0};
}

static int row_of(const char *name)
{
    int i = 0;
    while (strcmp(ls_options_table[i].name, name) != 0) {
        i++;
        LS_ASSERT(i < LS_OPTIONS_ROWS);
    }
    return i;
}

/* An argument that is no option: the data's folder, as the ImageNet scripts take it. */
static error_t read_folder(reading *to, const char *text)
{
    int data = row_of("data");
    if (to->given[data]) {
        ls_log_error("unexpected argument '%s': the data is %s already; --help lists the options",
                     text, to->options->data);
        return EINVAL;
    }
    to->given[data] = true;
    return ls_options_read(&ls_options_table[data], text, to->options);
}

static error_t read_option(int key, char *text, struct argp_state *state)
{
    reading *to = state->input;
    if (key == ARGP_KEY_ARG) {
        return read_folder(to, text);
    }
    for (int i = 0; i < LS_OPTIONS_ROWS; i++) {
        const ls_options_row *row = &ls_options_table[i];
        if (key == KEY_ROW + i || (row->letter != 0 && key == row->letter)) {
            to->given[i] = true;
            return ls_options_read(row, text, to->options);
        }
    }
    return ARGP_ERR_UNKNOWN;
}

static bool was_given(const reading *to, const char *name)
{
    return to->given[row_of(name)];
}

/* Names that the ImageNet scripts of Apex and PyTorch have, or that are unique there. */
static const char *const aliases[][2] = {
    {"b", "batch-size"}, {"learning-rate", "lr"}, {"wd", "weight-decay"}};

/* `argument`, "--wd=1e-4" say, by its name here; malloc'ed. */
static char *by_own_name(const char *argument)
{
    size_t length = strcspn(argument + 2, "=");
    char *own = NULL;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases && own == NULL; i++) {
        if (strlen(aliases[i][0]) == length && memcmp(argument + 2, aliases[i][0], length) == 0) {
            LS_MEMORY(asprintf(&own, "--%s%s", aliases[i][1], argument + 2 + length) > 0);
        }
    }
    own = own != NULL ? own : strdup(argument);
    LS_MEMORY(own != NULL);
    return own;
}

/* A copy of argv in which the names of long options have '-' where they had '_', and aliases their
 * names. */
static char **copy_arguments(int argc, char **argv)
{
    char **copy = calloc((size_t)argc + 1, sizeof *copy);
    LS_MEMORY(copy != NULL);
    bool names = true;
    for (int i = 0; i < argc; i++) {
        copy[i] = strdup(argv[i]);
        LS_MEMORY(copy[i] != NULL);
        names = names && strcmp(argv[i], "--") != 0;
        if (i == 0 || !names || strncmp(copy[i], "--", 2) != 0) {
            continue;
        }
        for (char *c = copy[i]; *c != '\0' && *c != '='; c++) {
            *c = *c == '_' ? '-' : *c;
        }
        char *own = by_own_name(copy[i]);
        free(copy[i]);
        copy[i] = own;
    }
    return copy;
}

static ls_status read_line(int argc, char **argv, reading *to)
{
    struct argp_option table[TABLE_MAX];
    const struct argp argp = {
        .options = table,
        .parser = read_option,
        .doc =
            "Trains a ResNet data-parallel in mixed precision. Each process is one rank and reads "
            "RANK, WORLD_SIZE, ... from its environment, as under torchrun. DIR is --data's. "
            "Defaults are in brackets.",
        .args_doc = "[DIR]",
    };
    make_argp_table(table);
    char **copy = copy_arguments(argc, argv), **left = ls_list_make((size_t)argc + 1, sizeof *left);
    memcpy(left, copy, (size_t)argc * sizeof *left); /* getopt may permute them */
    /* NO_ERRS: argp's own messages take two lines and do not name the allowed values */
    bool fits =
        ls_usage_check(&argp, false, argc, copy) &&
        argp_parse(&argp, argc, left, ARGP_NO_ERRS | ARGP_NO_HELP | ARGP_NO_EXIT, NULL, to) == 0;
    for (int i = 0; i < argc; i++) {
        free(copy[i]);
    }
    free(left);
    free(copy);
    return fits ? LS_OK : LS_ERR_USAGE;
}

/* ---- values against each other --------------------------------------------------------------- */

bool ls_options_has_epochs(const ls_options *options)
{
    return strcmp(options->data, "synthetic") != 0 && strncmp(options->data, "batches:", 8) != 0;
}

/* What does not go with an option. */
typedef struct conflict {
    bool given;
    const char *name, *why; /* why NULL: one of them is enough */
} conflict;

static ls_status refuse_first(const char *option, const conflict *row, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        LS_REFUSE_IF(row[i].given, "%s with %s: %s", option, row[i].name,
                     row[i].why != NULL ? row[i].why : "allowed: one of them");
    }
    return LS_OK;
}
#define REFUSE_FIRST(option, rows) refuse_first(option, rows, sizeof rows / sizeof *rows)

/* numerics.md section 7 (apex/amp/frontend.py@Properties) */
static ls_status check_precision(const ls_options *options)
{
    LS_REFUSE_IF(options->opt_level == LS_O1 && options->keep_batchnorm_fp32 != LS_UNSET,
                 "--keep-batchnorm-fp32 with --opt-level O1: O1 keeps the model in f32 and casts "
                 "at each operation; allowed with O0, O2, O3");
    LS_REFUSE_IF(options->opt_level == LS_O1 && options->master_weights != LS_UNSET,
                 "--master-weights with --opt-level O1: O1's parameters are f32 already; allowed "
                 "with O0, O2, O3");
    LS_REFUSE_IF(options->max_loss_scale > 0 && options->min_loss_scale > options->max_loss_scale,
                 "--min-loss-scale %g is above --max-loss-scale %g",
                 (double)options->min_loss_scale, (double)options->max_loss_scale);
    return LS_OK;
}

static ls_status check_smoothing(const ls_options *options)
{
    LS_REFUSE_IF(options->label_smoothing > 1, "--label-smoothing %g: allowed: 0 to 1",
                 options->label_smoothing);
    LS_REFUSE_IF(options->label_smoothing > 0 &&
                     (options->example != LS_EXAMPLE_NONE || options->aux_head.count > 0),
                 "--label-smoothing with %s: its loss is not smoothed",
                 options->aux_head.count > 0 ? "--aux-head" : "--example");
    return LS_OK;
}

static ls_status check_clipping(const ls_options *options)
{
    bool clips = options->clip_grad_norm > 0 || options->clip_grad_value > 0;
    LS_REFUSE_IF(options->clip_grad_norm > 0 && options->clip_grad_value > 0,
                 "--clip-grad-norm and --clip-grad-value: gradients are clipped by their "
                 "norm or by value; give one");
    LS_REFUSE_IF(clips && options->optimizer == LS_OPTIMIZER_LAMB,
                 "--clip-grad-%s with --optimizer lamb, which clips by --max-grad-norm",
                 options->clip_grad_norm > 0 ? "norm" : "value");
    LS_REFUSE_IF((clips || options->grad_norm) && options->example != LS_EXAMPLE_NONE,
                 "--clip-grad-norm, --clip-grad-value and --grad-norm with "
                 "--example: its gradients are not clipped");
    LS_REFUSE_IF(options->larc_clip && options->optimizer != LS_OPTIMIZER_LARS,
                 "--larc-clip with --optimizer %s: allowed with lars",
                 ls_optimizers_name(options->optimizer));
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
    LS_REFUSE_IF(options->nesterov && options->momentum <= 0,
                 "--nesterov needs --momentum above 0");
    LS_TRY(check_smoothing(options));
    LS_TRY(check_clipping(options));
    LS_REFUSE_IF((options->groups.count > 0 || options->no_bn_decay) &&
                     options->example != LS_EXAMPLE_NONE,
                 "--group and --no-bn-decay with --example: its parameter groups are its own");
    ls_schedule schedule;
    LS_TRY(ls_schedule_parse(options->schedule, &schedule));
    if (ls_options_has_epochs(options)) {
        return LS_OK;
    }
    LS_REFUSE_IF(options->epochs > 0,
                 "--epochs %" PRId64 " with --data %s, which has no epochs; give --steps",
                 options->epochs, options->data);
    return ls_schedule_check(&schedule, 0);
}

static ls_status check_no_sync(const ls_options *options)
{
    if (options->no_sync == LS_UNSET) {
        return LS_OK;
    }
    LS_REFUSE_IF(options->accumulate == 1,
                 "--no-sync without --accumulate: a step has one backward, which is "
                 "reduced; allowed with --accumulate 2 and more");
    LS_REFUSE_IF(options->no_reduce,
                 "--no-sync with --no-reduce, which reduces in no micro-step; give one");
    LS_REFUSE_IF(options->no_sync == LS_FALSE && options->average == LS_AVERAGE_NONE,
                 "--no-sync False with --average none: each micro-step would sum the "
                 "sums of those before once more; allowed with --average post|pre");
    return LS_OK;
}

/* A hook takes over type, division and sum of a bucket. */
static ls_status check_hook(const ls_options *options)
{
    static const char *const names[LS_COMM_HOOK_KINDS] = {
        "", "allreduce", "fp16_compress", "bf16_compress", "sum", "noop"};
    ls_comm_hook hook = options->comm_hook;
    bool compresses = hook == LS_COMM_HOOK_FP16_COMPRESS || hook == LS_COMM_HOOK_BF16_COMPRESS;
    bool half = options->opt_level >= LS_O2, noop = hook == LS_COMM_HOOK_NOOP;
    ls_dtype type = hook == LS_COMM_HOOK_FP16_COMPRESS ? LS_F16 : LS_BF16;
    const conflict others[] = {
        {options->compress != LS_F32, "--compress", "a hook decides about the type by itself"},
        {options->average != LS_AVERAGE_DIALECT, "--average", "a hook divides by itself, or not"},
        {options->predivide != 1.0, "--predivide", "a hook divides by itself, or not"},
        {options->no_reduce, "--no-reduce", "without a reduction there are no buckets for it"},
        {(compresses || noop) && options->allreduce_fp32, "--allreduce-fp32",
         noop ? "nothing is reduced" : "it asks for the opposite type"},
        {(hook == LS_COMM_HOOK_SUM || noop) && options->no_sync == LS_FALSE, "--no-sync False",
         noop ? "nothing is reduced"
              : "each micro-step would sum the sums of those before once more"},
        {noop && options->audit, "--audit", "nothing is reduced"},
        {noop && (options->save[0] != '\0' || options->save_dir[0] != '\0'),
         options->save[0] != '\0' ? "--save" : "--save-dir", "its ranks drift apart"},
        {noop && options->resume[0] != '\0', "--resume", "its ranks drift apart"},
        {compresses && half && options->half != type, "half gradients of another type",
         "O2 and O3 reduce theirs in their own; allowed at O0 and O1, or with --half of that type"},
    };
    LS_TEXT(option, 40, "--comm-hook %s", names[hook]);
    return hook != LS_COMM_HOOK_NONE ? REFUSE_FIRST(option, others) : LS_OK;
}

static ls_status check_uneven(const ls_options *options)
{
    static const char *const modes[] = {"", "initial", "active", "throw"};
    bool ends = ls_options_has_epochs(options), active = options->join == LS_JOIN_ACTIVE;
    bool mirrors = active || options->join == LS_JOIN_INITIAL;
    const conflict others[] = {
        {options->sync_bn && mirrors, "--sync-bn",
         "its statistics need every rank in every forward; allowed with --join throw"},
        {options->no_reduce, "--no-reduce", "nothing is reduced"},
        {options->comm_hook == LS_COMM_HOOK_NOOP, "--comm-hook noop", "nothing is reduced"},
        {active && options->comm_hook != LS_COMM_HOOK_NONE, "--comm-hook",
         "a hook divides by all ranks, or not; allowed with --join initial"},
        {active && options->average == LS_AVERAGE_NONE, "--average none", "nothing is divided"},
        {options->join == LS_JOIN_INITIAL && options->no_sync == LS_FALSE, "--no-sync False",
         "the zeros of a rank without a batch would shrink the average so far in each micro-step; "
         "allowed with --join active"},
        {options->audit, "--audit", "a rank without a batch has nothing to audit"},
    };
    LS_REFUSE_IF(options->no_pad && !ends, "--no-pad with --data %s, which has no end",
                 options->data);
    LS_REFUSE_IF(options->rank_steps.count > 0 && ends,
                 "--steps-of-rank with --data %s, which ends by itself; give --no-pad",
                 options->data);
    LS_TEXT(option, 24, "--join %s", modes[options->join]);
    return options->join != LS_JOIN_NONE ? REFUSE_FIRST(option, others) : LS_OK;
}

static ls_status check_parallel(const ls_options *options)
{
    LS_TRY(check_no_sync(options));
    LS_TRY(check_hook(options));
    LS_TRY(check_uneven(options));
    LS_REFUSE_IF(options->bucket_cap_mb > 0 && options->message_size > 0,
                 "--bucket-cap-mb and --message-size: a bucket closes by bytes or by elements; "
                 "give one");
    LS_REFUSE_IF(options->compress != LS_F32 && options->allreduce_fp32,
                 "--compress and --allreduce-fp32 ask for opposite types of the reduction; give "
                 "one");
    LS_REFUSE_IF(options->no_reduce && (options->dump_steps.count > 0 || options->save[0] != '\0' ||
                                        options->save_dir[0] != '\0' || options->resume[0] != '\0'),
                 "--no-reduce is for measuring only: its ranks drift apart, so there is nothing to "
                 "dump, save or resume");
    bool pre = options->average != LS_AVERAGE_DIALECT ? options->average == LS_AVERAGE_PRE
                                                      : options->dialect == LS_DIALECT_TORCH;
    LS_REFUSE_IF(pre && options->predivide != 1.0,
                 "--predivide %g: with --average pre (torch's) all of the division is before the "
                 "sum; allowed with --average post|none",
                 options->predivide);
    return LS_OK;
}

/* Several devices of one process (train/team.h). */
static ls_status check_team(const ls_options *options)
{
    const char *name = options->model_parallel      ? "--model-parallel"
                       : options->data_parallel > 1 ? "--data-parallel"
                                                    : NULL;
    const conflict others[] = {
        {options->accumulate > 1, "--accumulate"},
        {options->batch_sizes.count > 0, "--batch-sizes"},
        {options->example != LS_EXAMPLE_NONE, "--example"},
        {options->aux_head.count > 0, "--aux-head"},
        {options->sync_bn, "--sync-bn"},
        {options->no_reduce, "--no-reduce"},
        {options->join != LS_JOIN_NONE, "--join"},
        {options->find_unused, "--find-unused"},
        {options->audit, "--audit"},
        {options->resident > 0, "--resident"},
        {options->force_branches[0] != '\0', "--force-branches"},
        {options->graph == LS_GRAPH_ON, "--cuda-graph on"},
        {strcmp(options->comm, "auto") != 0, "--comm"},
        {options->model_parallel && options->data_parallel > 1, "--data-parallel"},
        {options->model_parallel && (options->evaluate || options->val[0] != '\0'),
         "--evaluate and --val"},
    };
    LS_REFUSE_IF(options->split_size > 0 && !options->model_parallel,
                 "--split-size %d without --model-parallel: there are no stages",
                 options->split_size);
    return name != NULL ? REFUSE_FIRST(name, others) : LS_OK;
}

static ls_status check_start(const ls_options *options)
{
    bool two = strcmp(options->comm, "auto") != 0 && strcmp(options->dist_backend, "auto") != 0;
    LS_REFUSE_IF(two && strcmp(options->comm, options->dist_backend) != 0,
                 "--comm %s with --dist-backend %s: allowed: one of them", options->comm,
                 options->dist_backend);
    return ls_dist_url_parse(options->dist_url, NULL);
}

static ls_status check_saving(const ls_options *options)
{
    const char *name = options->save_every > 0         ? "--save-every"
                       : options->save_every_steps > 0 ? "--save-every-steps"
                                                       : NULL;
    LS_REFUSE_IF(name != NULL && options->save_dir[0] == '\0',
                 "%s without --save-dir: nothing is saved", name);
    LS_REFUSE_IF(strcmp(options->resume, "auto") == 0 && options->save_dir[0] == '\0',
                 "--resume auto without --save-dir: there is no DIR/last.safetensors to find");
    LS_REFUSE_IF(options->save_every > 0 && !ls_options_has_epochs(options),
                 "--save-every %" PRId64
                 " with --data %s, which has no epochs; give --save-every-steps",
                 options->save_every, options->data);
    LS_REFUSE_IF(options->evaluate && (options->save[0] != '\0' || options->save_dir[0] != '\0' ||
                                       options->dump_steps.count > 0),
                 "--evaluate trains nothing: --save, --save-dir and --dump-steps have "
                 "nothing to write");
    return LS_OK;
}

static ls_status check_running(const ls_options *options)
{
    LS_REFUSE_IF(options->cudnn_benchmark && options->deterministic,
                 "--cudnn-benchmark with --deterministic: which engine is fastest changes from "
                 "run to run; give one");
    LS_REFUSE_IF(
        options->fuse && options->deterministic,
        "--fuse with --deterministic: sums in a fused product are in an order of the engine's; "
        "give one");
    LS_REFUSE_IF(options->fuse && (options->opt_level == 0 || options->half == LS_BF16),
                 "--fuse with --opt-level O0 or --half bf16: cuDNN fuses products in fp16");
    LS_REFUSE_IF(options->resident > 0 && strcmp(options->data, "synthetic") != 0,
                 "--resident %d with --data %s: allowed with synthetic data", options->resident,
                 options->data);
    LS_REFUSE_IF(options->val_resize > 0 && options->val_resize < options->image_size,
                 "--val-resize %d is below --image-size %d, which is cropped from it",
                 options->val_resize, options->image_size);
    LS_REFUSE_IF(options->example != LS_EXAMPLE_NONE &&
                     (options->val[0] != '\0' || options->evaluate),
                 "--val and --evaluate with --example: its models are not "
                 "validated");
    LS_REFUSE_IF(options->resident > 0 &&
                     (options->dump_steps.count > 0 || options->aux_head.count > 0),
                 "--resident with --dump-steps or --aux-head: both need the batch on the host");
    return LS_OK;
}

static ls_status check_all(const ls_options *options, bool batch_size_given)
{
    LS_REFUSE_IF(strcmp(options->data, "batches:") == 0,
                 "--data '%s': allowed: synthetic, batches:DIR, or a folder", options->data);
    LS_TRY(ls_model_check(options->arch, options->num_classes, options->image_size));
    LS_REFUSE_IF(batch_size_given && options->global_batch > 0,
                 "--batch-size and --global-batch: the batch is given per rank or over all ranks; "
                 "give one");
    LS_TRY(check_precision(options));
    LS_TRY(check_training(options));
    LS_TRY(check_running(options));
    LS_TRY(check_saving(options));
    LS_TRY(check_team(options));
    LS_TRY(check_start(options));
    return check_parallel(options);
}

/* Understood, but not offered: the first such option, or NULL. */
static const char *find_unsupported(const ls_options *options, const char **why)
{
    const conflict gpu[] = {
        {options->tf32, "--tf32", "a CPU has no TF32"},
        {options->fuse, "--fuse", "a CPU's products are not cuDNN's"},
        {options->resident > 0, "--resident", "a CPU's batches are where it computes"},
    };
    for (size_t i = 0; strcmp(options->device, "cpu") == 0 && i < sizeof gpu / sizeof *gpu; i++) {
        if (gpu[i].given) {
            *why = gpu[i].why;
            return gpu[i].name;
        }
    }
    bool half = options->opt_level == LS_O2 || options->opt_level == LS_O3;
    if (options->data_parallel > 1 && half) {
        *why = "Apex's amp takes no model in DataParallel; torch's autocast does (O1)";
        return "--data-parallel";
    }
    bool fused_only = options->optimizer != LS_OPTIMIZER_SGD &&
                      options->optimizer != LS_OPTIMIZER_ADAM &&
                      options->optimizer != LS_OPTIMIZER_ADAMW;
    if (options->unfused && (fused_only || options->opt_level == LS_O3)) {
        *why = fused_only ? "sgd, adam and adamw have an update by single operations"
                          : "O3 has no f32 values to update";
        return "--unfused";
    }
    return NULL;
}

ls_status ls_options_parse(int argc, char **argv, ls_options *out, const char **unsupported,
                           const char **why)
{
    ls_options options;
    reading to = {.options = &options};
    ls_options_defaults(&options);
    LS_TRY(read_line(argc, argv, &to));
    LS_TRY(check_all(&options, was_given(&to, "batch-size")));
    if (!was_given(&to, "eps")) {
        options.epsilon = ls_optimizers_epsilon(options.optimizer, options.epsilon);
    }
    if (options.no_bn_decay) {
        LS_ASSERT(ls_groups_read("bn|bias:wd=0", &options.groups.rule[options.groups.count++]));
    }
    if (options.steps == 0 && options.epochs == 0) {
        bool epochs = ls_options_has_epochs(&options);
        options.steps = epochs ? 0 : STEPS_DEFAULT;
        for (int i = 0; i < options.rank_steps.count; i++) {
            int64_t own = options.rank_steps.item[i].number;
            options.steps = i == 0 || own > options.steps ? own : options.steps;
        }
        options.epochs = epochs ? EPOCHS_DEFAULT : 0;
    }
    options.workers_given = was_given(&to, "workers");
    const char *reason = NULL, *name = find_unsupported(&options, &reason);
    if (name != NULL) {
        if (unsupported != NULL) {
            *unsupported = name;
            *why = reason;
        }
        return ls_log_fail(LS_ERR_UNSUPPORTED, "%s is not offered: %s", name, reason);
    }
    *out = options;
    return LS_OK;
}

int ls_options_workers(const ls_options *options, int local_world)
{
    int ranks = options->workers_given ? LS_PLANT(workers_per_rank, local_world, 1) : 1;
    return (options->workers + ranks - 1) / ranks;
}

/* ---- values against the environment ---------------------------------------------------------- */

/* A batch norm over a single value has no variance: torch raises ValueError. */
static ls_status check_norm_values(const ls_options *options, int rank, int world)
{
    ls_network network;
    LS_TRY(ls_model_build(options->arch, options->num_classes, options->image_size, &network));
    ls_layer_extent *extent = calloc((size_t)network.layer_count, sizeof *extent);
    LS_MEMORY(extent != NULL);
    ls_model_extents(&network, options->image_size, extent);
    int64_t images = 0; /* over which the statistics of this rank's group are taken */
    int size = options->sync_bn_group > 0 ? options->sync_bn_group : world;
    size = options->sync_bn ? size : 1;
    for (int i = 0; i < size; i++) {
        images += ls_options_batch(options, rank / size * size + i);
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

static ls_status check_places(const char *name, const ls_options_list *list, int world)
{
    for (int i = 0; i < list->count; i++) {
        const ls_options_item *at = &list->item[i];
        LS_REFUSE_IF(at->rank >= world, "--%s %" PRId64 ":%d: allowed: ranks 0 to %d", name,
                     at->number, at->rank, world - 1);
    }
    return LS_OK;
}

/* Ranks and groups of ranks that options name. */
static ls_status check_ranks(const ls_options *options, int world)
{
    LS_REFUSE_IF(options->sync_bn_group > 0 &&
                     (!options->sync_bn || options->sync_bn_group > world ||
                      world % options->sync_bn_group != 0),
                 "--sync-bn-group %d: allowed: with --sync-bn, divisors of the world of %d "
                 "ranks",
                 options->sync_bn_group, world);
    LS_REFUSE_IF(options->batch_sizes.count > 0 && options->batch_sizes.count != world,
                 "--batch-sizes: %d numbers for a world of %d ranks", options->batch_sizes.count,
                 world);
    LS_REFUSE_IF(options->rank_steps.count > 0 && options->rank_steps.count != world,
                 "--steps-of-rank: %d numbers for a world of %d ranks", options->rank_steps.count,
                 world);
    LS_TRY(check_places("aux-head", &options->aux_head, world));
    LS_REFUSE_IF(options->fault.step > 0 && options->fault.rank >= world,
                 "--fault-at: rank %d, allowed: ranks 0 to %d", options->fault.rank, world - 1);
    return LS_OK;
}

/* The parts of a batch are the micro-steps of its step: --batch-size is the process's, as in
 * torch's scripts. */
static ls_status split_batch(ls_options *options, int world)
{
    bool stages = options->model_parallel;
    int parts = options->data_parallel, batch = options->batch_size;
    if (!stages && parts == 1) {
        return LS_OK;
    }
    const char *name = stages ? "--model-parallel" : "--data-parallel";
    LS_REFUSE_IF(world > 1, "%s in a world of %d: allowed: one process", name, world);
    if (stages) {
        parts = options->split_size > 0 ? batch / options->split_size : 1;
        LS_REFUSE_IF(options->split_size > 0 && (parts == 0 || batch % options->split_size != 0),
                     "--split-size %d: allowed: divisors of --batch-size %d", options->split_size,
                     batch);
    } else if (batch % parts != 0) {
        return ls_log_fail(LS_ERR_USAGE,
                           "--data-parallel %d: --batch-size %d: allowed: multiples of %d", parts,
                           batch, parts);
    }
    options->batch_size = batch / parts;
    options->accumulate = parts;
    return LS_OK;
}

ls_status ls_options_resolve(ls_options *options, int rank, int world, const char *run_directory)
{
    LS_ASSERT(rank >= 0 && rank < world);
    LS_TRY(check_ranks(options, world));
    if (options->example == LS_EXAMPLE_TWO_LOSSES) {
        LS_REFUSE_IF(options->accumulate != 1,
                     "--accumulate with --example two-losses: each of its two losses has a "
                     "batch of its own in every step");
        options->accumulate = 2; /* batches a step */
    }
    ls_options resolved = *options;
    if (options->global_batch > 0) {
        int64_t parts = (int64_t)world * options->accumulate;
        LS_REFUSE_IF(options->global_batch % parts != 0 || options->global_batch / parts > 65536,
                     "--global-batch %" PRId64 ": allowed: multiples of %" PRId64
                     " (%d ranks x %d micro-steps), at most 65536 images each",
                     options->global_batch, parts, world, options->accumulate);
        resolved.batch_size = (int)(options->global_batch / parts);
    }
    LS_REFUSE_IF(options->overflow_as.micro >= options->accumulate,
                 "--overflow-as: micro-step %d; allowed with --accumulate %d: 0 to %d",
                 options->overflow_as.micro, options->accumulate, options->accumulate - 1);
    LS_TRY(check_places("overflow-at", &options->overflow_at, world));
    LS_REFUSE_IF(options->dump_steps.count > 0 &&
                     (run_directory == NULL || run_directory[0] == '\0'),
                 "--dump-steps: there is nowhere to write; set LS_RUN_DIR to a folder");
    resolved.batch_size = ls_options_batch(&resolved, rank);
    LS_TRY(split_batch(&resolved, world));
    LS_TRY(check_norm_values(&resolved, rank, world));
    *options = resolved;
    return LS_OK;
}
