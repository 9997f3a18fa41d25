#include "options.h"

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/optimizers.h"
#include "kernels/core/log.h"
#include "kernels/core/usage_error.h"
#include "options_table.h"
#include "values.h"

enum { STEPS_DEFAULT = 10, EPOCHS_DEFAULT = 1 };
enum { NETWORK = 1, PRECISION, OPTIMIZER, PARALLEL, DATA, RUNNING, OTHER, GROUPS = OTHER };

/* ---- the table ------------------------------------------------------------------------------- */

static const char optimizer_words[] = /* "|sgd|adam|..." */
#define LS_OPTIMIZER(KIND, name, ...) "|" #name
#include "kernels/math/optimizers.def"
#undef LS_OPTIMIZER
    ;

#define FIELD(field_) \
    .offset = offsetof(ls_options, field_), .bytes = sizeof((ls_options *)NULL)->field_
#define ROW_INT(field, standard, low, high) \
    .kind = LS_OPTIONS_INT, FIELD(field), .least = low, .most = high
#define ROW_COUNT(field, standard, low, high) \
    .kind = LS_OPTIONS_COUNT, FIELD(field), .least = low, .most = high
#define ROW_REAL(field, standard, range) \
    .kind = LS_OPTIONS_REAL, FIELD(field), .allowed = LS_VALUES_##range
#define ROW_FLOAT(field, standard, range) \
    .kind = LS_OPTIONS_FLOAT, FIELD(field), .allowed = LS_VALUES_##range
#define ROW_FLAG(field) .kind = LS_OPTIONS_FLAG, FIELD(field)
#define ROW_TRISTATE(field) .kind = LS_OPTIONS_TRISTATE, FIELD(field)
#define ROW_OPTIONAL(field) .kind = LS_OPTIONS_OPTIONAL, FIELD(field)
#define ROW_WORD(type, field, standard, list) .kind = LS_OPTIONS_WORD, FIELD(field), .words = list
#define ROW_TEXT(field, size, standard) .kind = LS_OPTIONS_TEXT, FIELD(field)
#define ROW_CHOICE(field, size, standard, list) \
    .kind = LS_OPTIONS_CHOICE, FIELD(field), .words = list
#define ROW_OWN(function) .kind = LS_OPTIONS_OWN, .read = function

const ls_options_row ls_options_table[LS_OPTIONS_ROWS] = {
#define LS_OPTION(group_, name_, letter_, argument_, kind_, record_, help_) \
    {.group = group_,                                                       \
     .name = name_,                                                         \
     .letter = letter_,                                                     \
     .argument = argument_,                                                 \
     .help = help_,                                                         \
     ROW_##kind_},
#include "options.def"
#undef LS_OPTION
};

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
#define DEFAULT_OWN(read)
    *out = (ls_options){
#define LS_OPTION(group, name, letter, argument, kind, record, help) DEFAULT_##kind
#include "options.def"
#undef LS_OPTION
        .opt_level = LS_O1,
        .half = LS_F16,
        .loss_scale = 1.0f,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .compress_type = LS_F16,
        .average = LS_AVERAGE_POST,
        .data = "synthetic",
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

/* ---- one value ------------------------------------------------------------------------------- */

static int read_value(const ls_options_row *row, const char *text, ls_options *options)
{
    void *field = (char *)options + row->offset;
    int error = 0;
    switch (row->kind) {
    case LS_OPTIONS_INT:
        return ls_values_int(row->name, text, (int)row->least, (int)row->most, field);
    case LS_OPTIONS_COUNT:
        return ls_values_integer(row->name, text, row->least, row->most, field);
    case LS_OPTIONS_REAL:
        return ls_values_number(row->name, text, row->allowed, field);
    case LS_OPTIONS_FLOAT:
        return ls_values_float(row->name, text, row->allowed, field);
    case LS_OPTIONS_FLAG:
        *(bool *)field = true;
        return 0;
    case LS_OPTIONS_TRISTATE:
    case LS_OPTIONS_OPTIONAL:
        return ls_values_truth(row->name, text != NULL ? text : "True", field);
    case LS_OPTIONS_WORD:
        return ls_values_word(row->name, text, row->words, field);
    case LS_OPTIONS_TEXT:
        return ls_values_text(row->name, text, field, row->bytes);
    case LS_OPTIONS_CHOICE:
        error = ls_values_word(row->name, text, row->words, &(int){0});
        return error != 0 ? error : ls_values_text(row->name, text, field, row->bytes);
    case LS_OPTIONS_OWN:
        return row->read(row->name, text, options);
    }
    return EINVAL;
}

/* ---- the whole line -------------------------------------------------------------------------- */

enum {
    KEY_ROW = 0x100, /* of row 0; no character. Rows with a letter have that as their key */
    KEY_HELP = KEY_ROW + LS_OPTIONS_ROWS,
    KEY_VERSION,
    TABLE_MAX = LS_OPTIONS_ROWS + GROUPS + 3, /* rows, titles, help, version and the end */
};

typedef struct reading {
    ls_options *options;
    bool given[LS_OPTIONS_ROWS];
    const struct argp *argp;
    bool refused; /* a value was refused, and said so; else getopt did not take the option */
} reading;

static void make_argp_table(struct argp_option table[TABLE_MAX])
{
    static const char *const titles[] = {
        [NETWORK] = "Network and batch:",
        [PRECISION] = "Precision:",
        [OPTIMIZER] = "Optimizer:",
        [PARALLEL] = "Data parallel:",
        [DATA] = "Data:",
        [RUNNING] = "Running:",
        [OTHER] = "",
    };
    for (int group = 1; group <= GROUPS; group++) {
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
    *table++ = (struct argp_option){"help", KEY_HELP, NULL, 0, "print this", OTHER};
    *table++ = (struct argp_option){"version", KEY_VERSION, NULL, 0, "print the version", OTHER};
    *table = (struct argp_option){0};
}

static error_t read_option(int key, char *text, struct argp_state *state)
{
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
    for (int i = 0; i < LS_OPTIONS_ROWS; i++) {
        const ls_options_row *row = &ls_options_table[i];
        if (key == KEY_ROW + i || (row->letter != 0 && key == row->letter)) {
            error_t error = read_value(row, text, to->options);
            to->given[i] = true;
            to->refused = error != 0;
            return error;
        }
    }
    return ARGP_ERR_UNKNOWN;
}

static bool was_given(const reading *to, const char *name)
{
    int i = 0;
    while (strcmp(ls_options_table[i].name, name) != 0) {
        i++;
        LS_ASSERT(i < LS_OPTIONS_ROWS);
    }
    return to->given[i];
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

static ls_status read_line(int argc, char **argv, reading *to)
{
    struct argp_option table[TABLE_MAX];
    const struct argp argp = {
        .options = table,
        .parser = read_option,
        .doc = "Trains a ResNet data-parallel in mixed precision; one process is one rank, found "
               "in RANK, "
               "WORLD_SIZE, ... as torchrun sets them. Defaults are in brackets.",
    };
    make_argp_table(table);
    to->argp = &argp;
    char **copy = copy_arguments(argc, argv);
    char **original = calloc((size_t)argc + 1, sizeof *original); /* getopt may permute */
    LS_ASSERT(original != NULL);
    memcpy(original, copy, (size_t)argc * sizeof *original);
    /* NO_ERRS: argp's own messages take two lines and do not say what is allowed */
    error_t error =
        argp_parse(&argp, argc, copy, ARGP_NO_ERRS | ARGP_NO_HELP | ARGP_NO_EXIT, NULL, to);
    if (error != 0 && !to->refused) {
        (void)ls_usage_error_explain(table, false, argc, original);
    }
    for (int i = 0; i < argc; i++) {
        free(original[i]);
    }
    free(original);
    free(copy);
    return error == 0 ? LS_OK : LS_ERR_USAGE;
}

ls_status ls_options_parse(int argc, char **argv, ls_options *out, char *unsupported_option,
                           char *why, int text_bytes)
{
    ls_options options;
    reading to = {.options = &options};
    ls_options_defaults(&options);
    LS_TRY(read_line(argc, argv, &to));
    LS_TRY(ls_options_check(&options, was_given(&to, "batch-size")));
    if (!was_given(&to, "eps")) {
        options.epsilon = ls_optimizers_epsilon(options.optimizer, options.epsilon);
    }
    if (options.steps == 0 && options.epochs == 0) {
        bool epochs = ls_options_has_epochs(&options);
        options.steps = epochs ? 0 : STEPS_DEFAULT;
        options.epochs = epochs ? EPOCHS_DEFAULT : 0;
    }
    const char *reason = NULL;
    const char *unsupported = ls_options_find_unsupported(&options, &reason);
    if (unsupported != NULL) {
        snprintf(unsupported_option, (size_t)text_bytes, "%s", unsupported);
        snprintf(why, (size_t)text_bytes, "%s", reason);
        return ls_log_fail(LS_ERR_UNSUPPORTED, "%s is not offered: %s", unsupported, reason);
    }
    *out = options;
    return LS_OK;
}
