#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"

/* ---- one value: each function reads `text`, the value of --`option`, into its last argument -- */

static int refuse(const char *option, const char *text, const char *allowed)
{
    ls_log_error("--%s '%s': allowed: %s", option, text, allowed);
    return EINVAL;
}

static int read_integer(const char *option, const char *text, int64_t least, int64_t most,
                        int64_t *out)
{
    LS_TEXT(allowed, 96, "a whole number from %" PRId64 " to %" PRId64, least, most);
    return ls_text_integer(text, least, most, out) ? 0 : refuse(option, text, allowed);
}

static int read_number(const char *option, const char *text, ls_options_range allowed, double *out)
{
    static const char *const says[] = {
        [LS_OPTIONS_POSITIVE] = "a positive finite number",
        [LS_OPTIONS_NOT_NEGATIVE] = "0 or a positive finite number",
    };
    char *end;
    double value = strtod(text, &end);
    /* a value that f32 cannot hold is not finite where it is used */
    bool good = end != text && *end == '\0' && isfinite((float)value) && value >= 0 &&
                (allowed != LS_OPTIONS_POSITIVE || (float)value > 0);
    if (!good) {
        return refuse(option, text, says[allowed]);
    }
    *out = value;
    return 0;
}

static int read_word(const char *option, const char *text, const char *words, int *index)
{
    int found = ls_text_choice(text, words);
    if (found < 0) {
        return refuse(option, text, words);
    }
    *index = found;
    return 0;
}

static int read_text(const char *option, const char *text, char *out, size_t bytes)
{
    if (text[0] == '\0' || strlen(text) >= bytes) {
        LS_TEXT(allowed, 64, "1 to %zu bytes", bytes - 1);
        return refuse(option, text, allowed);
    }
    memcpy(out, text, strlen(text) + 1);
    return 0;
}

static int read_level(const char *option, const char *text, ls_options *options)
{
    int level;
    if ((text[0] == '0' || text[0] == 'o') && text[1] >= '0' && text[1] <= '3' && text[2] == '\0') {
        ls_log_error("--%s '%s': allowed: O0|O1|O2|O3, with the capital letter O: O%c", option,
                     text, text[1]);
        return EINVAL;
    }
    int error = read_word(option, text, "O0|O1|O2|O3", &level);
    if (error == 0) {
        options->opt_level = (ls_opt_level)level;
    }
    return error;
}

static int read_half(const char *option, const char *text, ls_options *options)
{
    int index = 0;
    int error = read_word(option, text, "fp16|bf16", &index);
    options->half = index == 0 ? LS_F16 : LS_BF16;
    return error;
}

static int read_loss_scale(const char *option, const char *text, ls_options *options)
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
        return refuse(option, text, "dynamic, or a positive finite number");
    }
    options->loss_scale = value;
    return 0;
}

static int read_betas(const char *option, const char *text, ls_options *options)
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
        return refuse(option, text, "two numbers from 0 to below 1, such as 0.9,0.999");
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

bool ls_options_listed(const ls_options_list *list, int64_t number, int rank)
{
    for (int i = 0; i < list->count; i++) {
        const ls_options_item *at = &list->item[i];
        if (at->number == number && (at->rank < 0 || at->rank == rank)) {
            return true;
        }
    }
    return false;
}

int ls_options_batch(const ls_options *options, int rank)
{
    return options->batch_sizes.count > 0 ? (int)options->batch_sizes.item[rank].number
                                          : options->batch_size;
}

int64_t ls_options_images(const ls_options *options, int world)
{
    int64_t images = 0;
    for (int i = 0; i < options->batch_sizes.count; i++) {
        images += options->batch_sizes.item[i].number;
    }
    return images > 0 ? images : (int64_t)options->batch_size * world;
}

static int read_list(const ls_options_row *row, const char *text, ls_options_list *list)
{
    const char *rest = text;
    list->count = 0;
    do {
        ls_options_item item = {.rank = -1};
        int64_t rank = -1;
        bool good = list->count < LS_OPTIONS_LIST_MAX && next_number(&rest, 1, &item.number);
        if (good && row->form == LS_OPTIONS_RANKS && *rest == ':') {
            rest++;
            good = next_number(&rest, 0, &rank) && rank < 1000000;
        }
        item.rank = (int)rank;
        if (!good || item.number > row->most || (*rest != ',' && *rest != '\0') ||
            (row->form == LS_OPTIONS_DIFFERENT && ls_options_listed(list, item.number, -1))) {
            return refuse(row->name, text, row->words);
        }
        list->item[list->count++] = item;
    } while (*rest++ == ',');
    return 0;
}

static int read_group(const char *option, const char *text, ls_options *options)
{
    if (options->groups.count == LS_GROUPS_MAX ||
        !ls_groups_read(text, &options->groups.rule[options->groups.count])) {
        return refuse(
            option, text,
            "up to 8 of PATTERN:wd=X, PATTERN:lr-factor=F or both with a comma, PATTERN an "
            "extended regular expression, X and F from 0 on, such as bn|bias:wd=0");
    }
    options->groups.count++;
    return 0;
}

static int read_audit(const char *option, const char *text, ls_options *options)
{
    const char *rest = text;
    int64_t seed = 0;
    if (!next_number(&rest, 0, &seed) ||
        (*rest == ':' && (++rest, !next_number(&rest, 1, &options->audit_every))) ||
        (*rest == ':' && (++rest, !next_number(&rest, 1, &options->audit_from))) || *rest != '\0') {
        return refuse(option, text, "SEED, SEED:EVERY or SEED:EVERY:FROM, such as 1 or 1:200");
    }
    options->audit = true;
    options->audit_seed = (uint64_t)seed;
    return 0;
}

static int read_fault_at(const char *option, const char *text, ls_options *options)
{
    long long step;
    char phase[16], how[8], end;
    int rank, phase_index = -1, how_index = -1;
    if (sscanf(text, "%lld:%d:%15[a-z]:%7[a-z]%c", &step, &rank, phase, how, &end) == 4) {
        phase_index =
            ls_text_choice(phase, "join|meet|forward|backward|reduction|optimizer|dump|save|end");
        how_index = ls_text_choice(how, "kill|stop|exit|slow|cut|corrupt");
    }
    bool in_step = phase_index >= LS_FAULT_FORWARD && phase_index < LS_FAULT_END;
    if (phase_index < 0 || how_index < 0 || step < 1 || rank < 0 ||
        (how_index == LS_FAULT_CORRUPT && !in_step)) {
        return refuse(option, text,
                      "STEP:RANK:PHASE:HOW, phases join, meet, forward, backward, reduction, "
                      "optimizer, dump, save, end, ways kill, stop, exit, slow, cut and, from "
                      "forward to save, corrupt");
    }
    options->fault =
        (ls_fault_at){step, rank, (ls_fault_phase)phase_index, (ls_fault_how)how_index};
    return 0;
}

/* Copies what stands before one of `ends` or the end of the text, and moves *text there. */
static bool take(const char **text, const char *ends, char *out, size_t bytes)
{
    size_t length = strcspn(*text, ends);
    if (length == 0 || length >= bytes) {
        return false;
    }
    memcpy(out, *text, length);
    out[length] = '\0';
    *text += length;
    return true;
}

static int read_overflow_as(const char *option, const char *text, ls_options *options)
{
    static const float values[] = {INFINITY, -INFINITY, NAN};
    ls_overflow_as as = {.place = 'f', .micro = -1};
    const char *rest = text;
    char word[8];
    int64_t micro = -1;
    int value = take(&rest, "@", word, sizeof word) ? ls_text_choice(word, "inf|-inf|nan") : -1;
    bool good = value >= 0;
    if (good && *rest == '@') {
        rest++;
        good = take(&rest, ":", as.param, sizeof as.param);
    }
    if (good && *rest == ':') {
        rest++;
        int place =
            take(&rest, ":", word, sizeof word) ? ls_text_choice(word, "first|middle|last") : -1;
        good = place >= 0;
        as.place = good ? word[0] : 'f';
    }
    if (good && *rest == ':') {
        rest++;
        good = next_number(&rest, 0, &micro) && micro <= INT_MAX;
    }
    if (!good || *rest != '\0') {
        return refuse(option, text,
                      "inf, -inf or nan, then @PARAMETER, :first, :middle or :last, "
                      ":MICRO-STEP, such as nan@fc.bias:last");
    }
    as.value = values[value];
    as.micro = (int)micro;
    options->overflow_as = as;
    return 0;
}

static int read_seed(const char *option, const char *text, ls_options *options)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0) {
        return refuse(option, text, "a whole number from 0 to 2^64 - 1");
    }
    options->seed = value;
    return 0;
}

int ls_options_read(const ls_options_row *row, const char *text, ls_options *options)
{
    void *field = (char *)options + row->offset;
    int64_t whole = 0;
    double real = 0;
    int error = 0, index = 0;
    switch (row->kind) {
    case LS_OPTIONS_INT:
        error = read_integer(row->name, text, row->least, row->most, &whole);
        *(int *)field = (int)whole;
        return error;
    case LS_OPTIONS_COUNT:
        return read_integer(row->name, text, row->least, row->most, field);
    case LS_OPTIONS_REAL:
        return read_number(row->name, text, row->allowed, field);
    case LS_OPTIONS_FLOAT:
        error = read_number(row->name, text, row->allowed, &real);
        *(float *)field = (float)real;
        return error;
    case LS_OPTIONS_FLAG:
        *(bool *)field = true;
        return 0;
    case LS_OPTIONS_TRISTATE:
    case LS_OPTIONS_OPTIONAL:
        error = read_word(row->name, text != NULL ? text : "True", "True|False", &index);
        *(ls_tristate *)field = index == 0 ? LS_TRUE : LS_FALSE;
        return error;
    case LS_OPTIONS_WORD:
        return read_word(row->name, text, row->words, field);
    case LS_OPTIONS_TEXT:
        return read_text(row->name, text, field, row->bytes);
    case LS_OPTIONS_CHOICE:
        error = read_word(row->name, text, row->words, &index);
        return error != 0 ? error : read_text(row->name, text, field, row->bytes);
    case LS_OPTIONS_LIST:
        return read_list(row, text, field);
    case LS_OPTIONS_OWN:
        return row->read(row->name, text, options);
    }
    return EINVAL;
}

/* ---- the table ------------------------------------------------------------------------------- */

static const char optimizer_words[] = /* "|sgd|adam|..." */
#define LS_OPTIMIZER(KIND, name, ...) "|" #name
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
    ;
static const char optimizer_help[] = "update rule:"
#define LS_OPTIMIZER(KIND, name, ...) " " #name
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
                                     " [sgd]";

#define FIELD(field_) \
    .offset = offsetof(ls_options, field_), .bytes = sizeof((ls_options *)NULL)->field_
#define ROW_INT(field, standard, low, high) \
    .kind = LS_OPTIONS_INT, FIELD(field), .least = low, .most = high
#define ROW_COUNT(field, standard, low, high) \
    .kind = LS_OPTIONS_COUNT, FIELD(field), .least = low, .most = high
#define ROW_REAL(field, standard, range) \
    .kind = LS_OPTIONS_REAL, FIELD(field), .allowed = LS_OPTIONS_##range
#define ROW_FLOAT(field, standard, range) \
    .kind = LS_OPTIONS_FLOAT, FIELD(field), .allowed = LS_OPTIONS_##range
#define ROW_FLAG(field) .kind = LS_OPTIONS_FLAG, FIELD(field)
#define ROW_TRISTATE(field) .kind = LS_OPTIONS_TRISTATE, FIELD(field)
#define ROW_OPTIONAL(field) .kind = LS_OPTIONS_OPTIONAL, FIELD(field)
#define ROW_WORD(type, field, standard, list) .kind = LS_OPTIONS_WORD, FIELD(field), .words = list
#define ROW_TEXT(field, size, standard) .kind = LS_OPTIONS_TEXT, FIELD(field)
#define ROW_CHOICE(field, size, standard, list) \
    .kind = LS_OPTIONS_CHOICE, FIELD(field), .words = list
#define ROW_LIST(field, highest, form_, sentence)                                       \
    .kind = LS_OPTIONS_LIST, FIELD(field), .most = highest, .form = LS_OPTIONS_##form_, \
    .words = sentence
#define ROW_OWN(function) .kind = LS_OPTIONS_OWN, .read = function

const ls_options_row ls_options_table[LS_OPTIONS_ROWS] = {
#define LS_OPTION(group_, name_, letter_, argument_, kind_, record_, differs_, help_) \
    {.group = LS_OPTIONS_##group_,                                                    \
     .name = name_,                                                                   \
     .letter = letter_,                                                               \
     .differs = LS_OPTIONS_##differs_,                                                \
     .argument = argument_,                                                           \
     .help = help_,                                                                   \
     ROW_##kind_},
#include "options.def"
#undef LS_OPTION
};
