#include "values.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"

static int refuse(const char *option, const char *text, const char *allowed)
{
    ls_log_error("--%s '%s': allowed: %s", option, text, allowed);
    return EINVAL;
}

int ls_values_integer(const char *option, const char *text, int64_t least, int64_t most,
                      int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < least || value > most) {
        char allowed[96];
        snprintf(allowed, sizeof allowed, "a whole number from %" PRId64 " to %" PRId64, least,
                 most);
        return refuse(option, text, allowed);
    }
    *out = value;
    return 0;
}

int ls_values_int(const char *option, const char *text, int least, int most, int *out)
{
    int64_t value;
    int error = ls_values_integer(option, text, least, most, &value);
    if (error == 0) {
        *out = (int)value;
    }
    return error;
}

int ls_values_number(const char *option, const char *text, ls_values_range allowed, double *out)
{
    static const char *const says[] = {
        [LS_VALUES_POSITIVE] = "a positive finite number",
        [LS_VALUES_NOT_NEGATIVE] = "0 or a positive finite number",
        [LS_VALUES_BELOW_ONE] = "a number from 0 to below 1",
    };
    char *end;
    double value = strtod(text, &end);
    /* a value that f32 cannot hold is not finite where it is used */
    bool good = end != text && *end == '\0' && isfinite((float)value) && value >= 0 &&
                (allowed != LS_VALUES_POSITIVE || (float)value > 0) &&
                (allowed != LS_VALUES_BELOW_ONE || value < 1);
    if (!good) {
        return refuse(option, text, says[allowed]);
    }
    *out = value;
    return 0;
}

int ls_values_float(const char *option, const char *text, ls_values_range allowed, float *out)
{
    double value;
    int error = ls_values_number(option, text, allowed, &value);
    if (error == 0) {
        *out = (float)value;
    }
    return error;
}

int ls_values_word(const char *option, const char *text, const char *names, int *index)
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
    return refuse(option, text, names);
}

int ls_values_truth(const char *option, const char *text, ls_tristate *out)
{
    int index;
    int error = ls_values_word(option, text, "True|False", &index);
    if (error == 0) {
        *out = index == 0 ? LS_TRUE : LS_FALSE;
    }
    return error;
}

int ls_values_text(const char *option, const char *text, char *out, size_t bytes)
{
    if (text[0] == '\0' || strlen(text) >= bytes) {
        char allowed[64];
        snprintf(allowed, sizeof allowed, "1 to %zu bytes", bytes - 1);
        return refuse(option, text, allowed);
    }
    memcpy(out, text, strlen(text) + 1);
    return 0;
}

int ls_values_level(const char *option, const char *text, ls_options *options)
{
    int level;
    if ((text[0] == '0' || text[0] == 'o') && text[1] >= '0' && text[1] <= '3' && text[2] == '\0') {
        ls_log_error("--%s '%s': allowed: O0|O1|O2|O3, with the capital letter O: O%c", option,
                     text, text[1]);
        return EINVAL;
    }
    int error = ls_values_word(option, text, "O0|O1|O2|O3", &level);
    if (error == 0) {
        options->opt_level = (ls_opt_level)level;
    }
    return error;
}

int ls_values_half(const char *option, const char *text, ls_options *options)
{
    int index = 0;
    int error = ls_values_word(option, text, "fp16|bf16", &index);
    options->half = index == 0 ? LS_F16 : LS_BF16;
    return error;
}

int ls_values_compress(const char *option, const char *text, ls_options *options)
{
    int index = 0;
    int error = ls_values_word(option, text, "none|fp16|bf16", &index);
    options->compress = index > 0;
    options->compress_type = index == 2 ? LS_BF16 : LS_F16;
    return error;
}

int ls_values_average(const char *option, const char *text, ls_options *options)
{
    int index = 0;
    int error = ls_values_word(option, text, "post|pre|none", &index);
    options->average_given = true;
    options->average = (ls_average)index;
    return error;
}

int ls_values_data(const char *option, const char *text, ls_options *options)
{
    if (strcmp(text, "batches:") == 0) {
        return refuse(option, text, "synthetic, batches:DIR, or a folder");
    }
    return ls_values_text(option, text, options->data, sizeof options->data);
}

int ls_values_loss_scale(const char *option, const char *text, ls_options *options)
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

int ls_values_betas(const char *option, const char *text, ls_options *options)
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

int ls_values_dump_steps(const char *option, const char *text, ls_options *options)
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
            return refuse(option, text, "up to 64 different steps from 1 on, such as 1,2,5");
        }
        options->dump_step[options->dump_step_count++] = step;
    } while (*rest++ == ',');
    return 0;
}

/* STEP[:RANK],... */
static int read_places(const char *option, const char *text, int *count, ls_overflow_at *place)
{
    const char *rest = text;
    *count = 0;
    do {
        int64_t step, rank = -1;
        bool good = *count < LS_OPTIONS_LIST_MAX && next_number(&rest, 1, &step);
        if (good && *rest == ':') {
            rest++;
            good = next_number(&rest, 0, &rank) && rank < 1000000;
        }
        if (!good || (*rest != ',' && *rest != '\0')) {
            return refuse(
                option, text,
                "up to 64 of STEP or STEP:RANK, steps from 1 and ranks from 0 on, such as "
                "3,7:1");
        }
        place[(*count)++] = (ls_overflow_at){step, (int)rank};
    } while (*rest++ == ',');
    return 0;
}

int ls_values_overflow_at(const char *option, const char *text, ls_options *options)
{
    return read_places(option, text, &options->overflow_count, options->overflow);
}

int ls_values_aux_head(const char *option, const char *text, ls_options *options)
{
    return read_places(option, text, &options->aux_count, options->aux);
}

int ls_values_audit(const char *option, const char *text, ls_options *options)
{
    const char *rest = text;
    int64_t seed = 0;
    if (!next_number(&rest, 0, &seed) ||
        (*rest == ':' && (++rest, !next_number(&rest, 1, &options->audit_every))) ||
        *rest != '\0') {
        return refuse(option, text, "SEED or SEED:EVERY, such as 1 or 1:200");
    }
    options->audit = true;
    options->audit_seed = (uint64_t)seed;
    return 0;
}

int ls_values_batch_sizes(const char *option, const char *text, ls_options *options)
{
    const char *rest = text;
    options->batch_size_count = 0;
    do {
        int64_t images = 0;
        if (options->batch_size_count == LS_OPTIONS_LIST_MAX || !next_number(&rest, 1, &images) ||
            images > 65536 || (*rest != ',' && *rest != '\0')) {
            return refuse(option, text, "one number from 1 to 65536 for each rank, such as 4,2,1");
        }
        options->batch_sizes[options->batch_size_count++] = (int)images;
    } while (*rest++ == ',');
    return 0;
}

static bool word_of(const char *word, const char *const *names, int count, int *index)
{
    for (*index = 0; *index < count; (*index)++) {
        if (strcmp(word, names[*index]) == 0) {
            return true;
        }
    }
    return false;
}

int ls_values_fault_at(const char *option, const char *text, ls_options *options)
{
    static const char *const phases[] = {"join",      "forward", "backward", "reduction",
                                         "optimizer", "dump",    "save"};
    static const char *const ways[] = {"kill", "stop", "exit"};
    long long step;
    char phase[16], how[8], end;
    int rank, phase_index, how_index;
    if (sscanf(text, "%lld:%d:%15[a-z]:%7[a-z]%c", &step, &rank, phase, how, &end) != 4 ||
        step < 1 || rank < 0 ||
        !word_of(phase, phases, sizeof phases / sizeof *phases, &phase_index) ||
        !word_of(how, ways, sizeof ways / sizeof *ways, &how_index)) {
        return refuse(option, text,
                      "STEP:RANK:PHASE:HOW, phases join, forward, backward, reduction, optimizer, "
                      "dump, save, ways kill, stop, exit");
    }
    options->fault =
        (ls_fault_at){step, rank, (ls_fault_phase)phase_index, (ls_fault_how)how_index};
    return 0;
}

/* One of the words that `text` starts with, followed by its end or one of `ends`. */
static int leading_word(const char **text, const char *const *words, int count, const char *ends)
{
    for (int i = 0; i < count; i++) {
        size_t length = strlen(words[i]);
        char next = strncmp(*text, words[i], length) == 0 ? (*text)[length] : 'x';
        if (next == '\0' || strchr(ends, next) != NULL) {
            *text += length;
            return i;
        }
    }
    return -1;
}

int ls_values_overflow_as(const char *option, const char *text, ls_options *options)
{
    static const char *const values[] = {"inf", "-inf", "nan"};
    static const char *const places[] = {"first", "middle", "last"};
    static const float number[] = {INFINITY, -INFINITY, NAN};
    static const char allowed[] = "inf, -inf or nan, then @PARAMETER, :first, :middle or :last, "
                                  ":MICRO-STEP, such as nan@fc.bias:last";
    const char *rest = text;
    ls_overflow_as as = {.place = 'f', .micro = -1};
    int value = leading_word(&rest, values, 3, "@");
    if (value < 0) {
        return refuse(option, text, allowed);
    }
    as.value = number[value];
    if (*rest == '@') {
        size_t length = strcspn(++rest, ":");
        if (length == 0 || length >= sizeof as.param) {
            return refuse(option, text, allowed);
        }
        memcpy(as.param, rest, length);
        rest += length;
    }
    if (*rest == ':') {
        rest++;
        int place = leading_word(&rest, places, 3, ":");
        if (place < 0) {
            return refuse(option, text, allowed);
        }
        as.place = places[place][0];
    }
    int64_t micro = -1;
    if (*rest == ':') {
        rest++;
        if (!next_number(&rest, 0, &micro) || micro > INT_MAX) {
            return refuse(option, text, allowed);
        }
    }
    as.micro = (int)micro;
    if (*rest != '\0') {
        return refuse(option, text, allowed);
    }
    options->overflow_as = as;
    return 0;
}

int ls_values_seed(const char *option, const char *text, ls_options *options)
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
