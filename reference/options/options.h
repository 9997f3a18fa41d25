/* The command line of `lockstep-train` (protocol.md), parsed with argp: every option of the
 * subject protocol, long options also with underscores. A wrong value is one line that names the
 * option, the value and what is allowed, exit code 2, before anything is written. A new plain
 * option is a row of options.def. */
#ifndef LS_OPTIONS_H
#define LS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "kernels/core/log.h"

/* Groups of parameters with a weight decay and a learning rate of their own, as torch.optim's
 * param_groups:
 *
 *   --group PATTERN:wd=X[,lr-factor=F]      bn|bias:wd=0      ^fc\.:lr-factor=10
 *
 * PATTERN is an extended regular expression (regcomp), searched in a parameter's name and in what
 * it is: conv.weight, bn.weight, bn.bias, fc.weight, fc.bias. The first group that has a parameter
 * takes it; --no-bn-decay stands for a last one, bn|bias:wd=0. The learning rate is the schedule's
 * times F. */

enum { LS_GROUPS_MAX = 8, LS_GROUPS_TEXT = 128 };

typedef struct ls_groups_rule {
    char text[LS_GROUPS_TEXT]; /* as it was given */
    char pattern[LS_GROUPS_TEXT];
    double weight_decay; /* NAN: that of all */
    double lr_factor;
} ls_groups_rule;

typedef struct ls_groups {
    int count;
    ls_groups_rule rule[LS_GROUPS_MAX + 1]; /* --no-bn-decay's behind the others */
} ls_groups;

/* False for text that is no group. */
bool ls_groups_read(const char *text, ls_groups_rule *out);
/* Writes the group of each parameter, 0 for one that no rule takes, else the number of its rule
 * from 1 on. LS_ERR_USAGE, naming the rule, where one takes no parameter. */
ls_status ls_groups_assign(const ls_groups *groups, const ls_network *network, uint8_t *group);

typedef enum ls_opt_level { LS_O0, LS_O1, LS_O2, LS_O3 } ls_opt_level;
/* Products of half type on a CPU. */
typedef enum ls_half_math {
    LS_HALF_AUTO,     /* on the processor's units for the type where they are faster than f32 */
    LS_HALF_NATIVE,   /* on them; refused where it has none */
    LS_HALF_EMULATED, /* in f32 */
} ls_half_math;

typedef enum ls_dialect { LS_DIALECT_APEX, LS_DIALECT_TORCH } ls_dialect;
typedef enum ls_average {
    LS_AVERAGE_DIALECT = -1, /* not given */
    LS_AVERAGE_POST,
    LS_AVERAGE_PRE,
    LS_AVERAGE_NONE,
} ls_average;
/* Communication hooks by torch's names (reference/ddp/ddp.h). */
typedef enum ls_comm_hook {
    LS_COMM_HOOK_NONE, /* the dialect's reduction */
    LS_COMM_HOOK_ALLREDUCE,
    LS_COMM_HOOK_FP16_COMPRESS,
    LS_COMM_HOOK_BF16_COMPRESS,
    LS_COMM_HOOK_SUM,
    LS_COMM_HOOK_NOOP,
    LS_COMM_HOOK_KINDS,
} ls_comm_hook;
/* Ranks whose data ends before that of others (reference/train/uneven.h). */
typedef enum ls_join_mode {
    LS_JOIN_NONE,    /* they leave, and the others wait for them until the deadline */
    LS_JOIN_INITIAL, /* they reduce zeros; averages are over all ranks */
    LS_JOIN_ACTIVE,  /* the same; averages are over those that have a batch */
    LS_JOIN_THROW,   /* all ranks end with an error */
} ls_join_mode;
typedef enum ls_lr_scaling { LS_LR_SCALING_NONE, LS_LR_SCALING_LINEAR } ls_lr_scaling;
typedef enum ls_tristate { LS_UNSET = -1, LS_FALSE = 0, LS_TRUE = 1 } ls_tristate;

/* Which ranks dump. Branches: rank 0 all of it, the others what a reference needs to follow them:
 * input, target, logits, loss and branches. */
typedef enum ls_dump_scope { LS_DUMP_RANK_0, LS_DUMP_ALL_RANKS, LS_DUMP_BRANCHES } ls_dump_scope;

/* What a picture that cannot be read does. */
typedef enum ls_on_bad_image { LS_ON_BAD_IMAGE_FAIL, LS_ON_BAD_IMAGE_SKIP } ls_on_bad_image;

/* Which digests a step's event carries (digest.h). */
typedef enum ls_digest_scope { LS_DIGEST_ALL, LS_DIGEST_PARAM, LS_DIGEST_NONE } ls_digest_scope;

/* Where a rank can be made to fail. */
typedef enum ls_fault_phase {
    LS_FAULT_JOIN, /* before it meets its peers; this, the next and the last whatever the step */
    LS_FAULT_MEET, /* it has reached the store, not yet its peers */
    LS_FAULT_FORWARD,
    LS_FAULT_BACKWARD,
    LS_FAULT_REDUCTION, /* its first gradients are on their way */
    LS_FAULT_OPTIMIZER,
    LS_FAULT_DUMP,
    LS_FAULT_SAVE, /* everything for the checkpoint of that step is gathered, nothing written */
    LS_FAULT_END,  /* all steps are done, its peers may be in their last one */
} ls_fault_phase;
typedef enum ls_fault_how {
    LS_FAULT_KILL,
    LS_FAULT_STOP,
    LS_FAULT_EXIT,
    LS_FAULT_SLOW, /* by LS_FAULT_SLOW_S, in that step alone */
    LS_FAULT_CUT,  /* what its connections bring is lost from then on, without a word to a peer */
    LS_FAULT_CORRUPT, /* a bit of a parameter changes; in the phases of a step */
} ls_fault_how;
enum { LS_FAULT_SLOW_S = 2 };
typedef struct ls_fault_at {
    int64_t step; /* 0: none */
    int rank;
    ls_fault_phase phase;
    ls_fault_how how;
} ls_fault_at;

/* An example to be trained through the amp library instead (reference/examples). */
typedef enum ls_example_kind {
    LS_EXAMPLE_NONE,
    LS_EXAMPLE_TWO_ENCODERS,
    LS_EXAMPLE_TWO_LOSSES,
} ls_example_kind;

/* Whether steps are recorded and launched as graphs (step.h). */
typedef enum ls_graph_mode { LS_GRAPH_AUTO, LS_GRAPH_ON, LS_GRAPH_OFF } ls_graph_mode;

typedef struct ls_options_item {
    int64_t number;
    int rank; /* -1: every rank */
} ls_options_item;

enum { LS_OPTIONS_LIST_MAX = 64 };

typedef struct ls_options_list {
    int count;
    ls_options_item item[LS_OPTIONS_LIST_MAX];
} ls_options_list;

/* What --overflow-at puts into a gradient, and where. */
typedef struct ls_overflow_as {
    float value;    /* INFINITY, -INFINITY or NAN */
    char param[64]; /* "": the parameter whose gradient is ready first */
    char place;     /* 'f'irst, 'm'iddle or 'l'ast element */
    int micro;      /* micro-step, from 0; -1: the last */
} ls_overflow_as;

/* Plain options set the field that their row of options.def names, of the type that its kind has.
 */
typedef struct ls_options {
#define LS_OPTION(group, name, letter, argument, kind, record, differs, help) \
    LS_OPTIONS_FIELD_##kind
#define LS_OPTIONS_FIELD_INT(field, standard, least, most) int field;
#define LS_OPTIONS_FIELD_COUNT(field, standard, least, most) int64_t field;
#define LS_OPTIONS_FIELD_REAL(field, standard, allowed) double field;
#define LS_OPTIONS_FIELD_FLOAT(field, standard, allowed) float field;
#define LS_OPTIONS_FIELD_FLAG(field) bool field;
#define LS_OPTIONS_FIELD_TRISTATE(field) ls_tristate field;
#define LS_OPTIONS_FIELD_OPTIONAL(field) ls_tristate field;
#define LS_OPTIONS_FIELD_WORD(type, field, standard, words) type field;
#define LS_OPTIONS_FIELD_TEXT(field, bytes, standard) char field[bytes];
#define LS_OPTIONS_FIELD_CHOICE(field, bytes, standard, words) char field[bytes];
#define LS_OPTIONS_FIELD_LIST(field, most, form, allowed) ls_options_list field;
#define LS_OPTIONS_FIELD_OWN(read)
#include "options.def"
#undef LS_OPTION
    /* options with a grammar of their own */
    bool workers_given; /* for the ranks of a node; else for each */
    ls_opt_level opt_level;
    ls_dtype half;
    bool loss_scale_given, loss_scale_dynamic;
    float loss_scale; /* the static value */
    double beta1, beta2;
    ls_groups groups; /* with that of no_bn_decay, once options are parsed */
    uint64_t seed;
    bool audit; /* elements of what a step writes are computed once more (audit.h) */
    uint64_t audit_seed;
    int64_t audit_every; /* one step of so many, */
    int64_t audit_from;  /* counted from this one; 0: from the first, never where buckets settle */
    ls_fault_at fault;
    ls_overflow_as overflow_as;
} ls_options;

/* Parses argv, argv[0] being the program's name. argv itself is left as it is. Returns LS_ERR_USAGE
 * after one line on stderr, LS_ERR_UNSUPPORTED for something understood but not offered, for the
 * event in *unsupported and *why (constants; both may be NULL). --help and --version print and exit
 * 0 (argp). Values are checked one by one and against each other: opt level against overrides as
 * numerics.md section 7, world-independent rules only. */
ls_status ls_options_parse(int argc, char **argv, ls_options *out, const char **unsupported,
                           const char **why);
/* The number of --workers for one of so many ranks of a node. */
int ls_options_workers(const ls_options *options, int local_world);
/* The checks that need the environment: --global-batch is divided by world and accumulation into
 * batch_size, the ranks of --overflow-at exist, dumps have somewhere to go (run_directory:
 * LS_RUN_DIR, NULL where unset). */
ls_status ls_options_resolve(ls_options *options, int rank, int world, const char *run_directory);
/* Every value as without any argument, but for the two that parsing fills in (steps or epochs). */
void ls_options_defaults(ls_options *out);
/* The options as the `options` object of the start event, effective values, every field by its long
 * name. */
struct cJSON *ls_options_json(const ls_options *options);
/* Whether --data ends: synthetic data and given batches have no epochs. */
bool ls_options_has_epochs(const ls_options *options);
const char *ls_options_level_name(ls_opt_level level); /* "O2" */

/* Whether the list has that number, for that rank. */
bool ls_options_listed(const ls_options_list *list, int64_t number, int rank);
/* Images of a rank's micro-step, and of all ranks. */
int ls_options_batch(const ls_options *options, int rank);
int64_t ls_options_images(const ls_options *options, int world);

/* Returns LS_ERR_USAGE from the calling function, after that line, where something is wrong. */
#define LS_REFUSE_IF(wrong, ...)                           \
    do {                                                   \
        if (wrong) {                                       \
            return ls_log_fail(LS_ERR_USAGE, __VA_ARGS__); \
        }                                                  \
    } while (0)

/* The rows of options.def as data, for what reads and records options. */

typedef enum ls_options_kind {
    LS_OPTIONS_INT,
    LS_OPTIONS_COUNT,
    LS_OPTIONS_REAL,
    LS_OPTIONS_FLOAT,
    LS_OPTIONS_FLAG,
    LS_OPTIONS_TRISTATE,
    LS_OPTIONS_OPTIONAL,
    LS_OPTIONS_WORD,
    LS_OPTIONS_TEXT,
    LS_OPTIONS_CHOICE,
    LS_OPTIONS_LIST,
    LS_OPTIONS_OWN,
} ls_options_kind;

typedef enum ls_options_group {
    LS_OPTIONS_NETWORK = 1,
    LS_OPTIONS_PRECISION,
    LS_OPTIONS_OPTIMIZER,
    LS_OPTIONS_PARALLEL,
    LS_OPTIONS_DATA,
    LS_OPTIONS_RUNNING,
    LS_OPTIONS_GROUPS = LS_OPTIONS_RUNNING,
} ls_options_group;

typedef enum ls_options_form {
    LS_OPTIONS_PLAIN,
    LS_OPTIONS_RANKS,
    LS_OPTIONS_DIFFERENT,
} ls_options_form;

typedef enum ls_options_range { LS_OPTIONS_POSITIVE, LS_OPTIONS_NOT_NEGATIVE } ls_options_range;

/* Where its value may be another (options.def). */
typedef enum ls_options_differs {
    LS_OPTIONS_EQUAL,
    LS_OPTIONS_RESUME,
    LS_OPTIONS_RANK,
} ls_options_differs;

/* One row; what its kind does not have is 0. */
typedef struct ls_options_row {
    ls_options_group group;
    const char *name;
    char letter;
    const char *argument, *help;
    ls_options_kind kind;
    ls_options_differs differs;
    size_t offset, bytes; /* of the field in ls_options */
    int64_t least, most;
    ls_options_range allowed;
    ls_options_form form;
    const char *words; /* separated by '|'; of a list a sentence */
    int (*read)(const char *option, const char *text, ls_options *options);
} ls_options_row;

enum {
    LS_OPTIONS_ROWS = 0
#define LS_OPTION(...) +1
#include "options.def"
#undef LS_OPTION
};
extern const ls_options_row ls_options_table[LS_OPTIONS_ROWS];

/* Reads a value (NULL: none was given) into its field. EINVAL, argp's way, after one line that
 * names option, value and what is allowed. */
int ls_options_read(const ls_options_row *row, const char *text, ls_options *options);

#endif
