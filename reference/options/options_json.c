/* The options as the start event, checkpoints and the agreement between ranks hold them: effective
 * values, in the order of options.def. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "kernels/optimizers.h"
#include "kernels/core/json.h"
#include "kernels/core/text.h"
#include "precision.h"

/* What the options resolve to. */
typedef struct effective {
    const ls_options *options; /* with the values in effect where others decide them */
    ls_dialect_rules rules;
    ls_precision precision;
} effective;

typedef void record_fn(cJSON *json, const ls_options_row *row, const effective *e);

/* ---- by kind --------------------------------------------------------------------------------- */

static void add_count(cJSON *json, const char *name, int64_t value)
{
    if (value > 0) {
        cJSON_AddNumberToObject(json, name, (double)value);
    } else {
        cJSON_AddNullToObject(json, name);
    }
}

static void add_text(cJSON *json, const char *name, const char *value)
{
    if (value[0] != '\0') {
        cJSON_AddStringToObject(json, name, value);
    } else {
        cJSON_AddNullToObject(json, name);
    }
}

static void add_word(cJSON *json, const char *name, const char *words, int index)
{
    for (; index > 0; index--) {
        words = strchr(words, '|') + 1;
    }
    LS_TEXT(word, 32, "%.*s", (int)strcspn(words, "|"), words);
    cJSON_AddStringToObject(json, name, word);
}

static void add_tristate(cJSON *json, const char *name, ls_tristate value)
{
    if (value == LS_UNSET) {
        cJSON_AddNullToObject(json, name);
    } else {
        cJSON_AddBoolToObject(json, name, value == LS_TRUE);
    }
}

/* Strings where items may have a rank, else numbers. */
static void add_list(cJSON *json, const ls_options_row *row, const ls_options_list *list)
{
    cJSON *to = cJSON_AddArrayToObject(json, row->name);
    for (int i = 0; i < list->count; i++) {
        const ls_options_item *at = &list->item[i];
        LS_TEXT(text, 48, at->rank >= 0 ? "%" PRId64 ":%d" : "%" PRId64, at->number, at->rank);
        cJSON_AddItemToArray(to, row->form == LS_OPTIONS_RANKS
                                     ? cJSON_CreateString(text)
                                     : cJSON_CreateNumber((double)at->number));
    }
}

static void as_is(cJSON *json, const ls_options_row *row, const effective *e)
{
    const void *field = (const char *)e->options + row->offset;
    switch (row->kind) {
    case LS_OPTIONS_INT:
        cJSON_AddNumberToObject(json, row->name, *(const int *)field);
        break;
    case LS_OPTIONS_COUNT:
        add_count(json, row->name, *(const int64_t *)field);
        break;
    case LS_OPTIONS_REAL:
        cJSON_AddNumberToObject(json, row->name, *(const double *)field);
        break;
    case LS_OPTIONS_FLOAT:
        ls_json_add_number(json, row->name, (double)*(const float *)field);
        break;
    case LS_OPTIONS_FLAG:
        cJSON_AddBoolToObject(json, row->name, *(const bool *)field);
        break;
    case LS_OPTIONS_TRISTATE:
    case LS_OPTIONS_OPTIONAL:
        add_tristate(json, row->name, *(const ls_tristate *)field);
        break;
    case LS_OPTIONS_WORD:
        add_word(json, row->name, row->words, *(const int *)field);
        break;
    case LS_OPTIONS_TEXT:
    case LS_OPTIONS_CHOICE:
        add_text(json, row->name, field);
        break;
    case LS_OPTIONS_LIST:
        add_list(json, row, field);
        break;
    case LS_OPTIONS_OWN:
        LS_ASSERT(false);
    }
}

static void if_changed(cJSON *json, const ls_options_row *row, const effective *e)
{
    ls_options standard;
    ls_options_defaults(&standard);
    const void *value = (const char *)e->options + row->offset;
    const ls_options_list *list = value;
    if (row->kind == LS_OPTIONS_LIST
            ? list->count > 0
            : memcmp(value, (const char *)&standard + row->offset, row->bytes) != 0) {
        as_is(json, row, e);
    }
}

/* A constant that the optimizer does not have is left out. */
static void if_taken(cJSON *json, const ls_options_row *row, const effective *e)
{
    if (ls_optimizers_takes(e->options->optimizer, row->name)) {
        as_is(json, row, e);
    }
}

/* ---- precision ------------------------------------------------------------------------------- */

static void add_level(cJSON *json, const ls_options_row *row, const effective *e)
{
    cJSON_AddStringToObject(json, row->name, ls_options_level_name(e->options->opt_level));
}

static void add_half(cJSON *json, const ls_options_row *row, const effective *e)
{
    cJSON_AddStringToObject(json, row->name, ls_dtype_label(e->options->half));
}

static void add_loss_scale(cJSON *json, const ls_options_row *row, const effective *e)
{
    if (e->precision.scaler.dynamic) {
        cJSON_AddStringToObject(json, row->name, "dynamic");
    } else {
        ls_json_add_number(json, row->name, (double)e->precision.initial_scale);
    }
}

static void add_betas(cJSON *json, const ls_options_row *row, const effective *e)
{
    LS_TEXT(betas, 64, "%.17g,%.17g", e->options->beta1, e->options->beta2);
    if (ls_optimizers_takes(e->options->optimizer, row->name)) {
        cJSON_AddStringToObject(json, row->name, betas);
    }
}

/* ---- data parallel --------------------------------------------------------------------------- */

static void add_groups(cJSON *json, const ls_options_row *row, const effective *e)
{
    int given = e->options->groups.count - (e->options->no_bn_decay ? 1 : 0);
    cJSON *list = given > 0 ? cJSON_AddArrayToObject(json, row->name) : NULL;
    for (int i = 0; i < given; i++) {
        cJSON_AddItemToArray(list, cJSON_CreateString(e->options->groups.rule[i].text));
    }
}

static void add_bucket_cap(cJSON *json, const ls_options_row *row, const effective *e)
{
    const double mib = 1048576.0;
    double limit = (double)e->rules.limit[e->rules.limit_count - 1];
    if (e->rules.unit == LS_BUCKET_BYTES) {
        double given = e->options->bucket_cap_mb;
        cJSON_AddNumberToObject(json, row->name, given > 0 ? given : limit / mib);
    } else {
        cJSON_AddNullToObject(json, row->name);
    }
}

/* ---- data and running ------------------------------------------------------------------------ */

/* Raw: a double would lose bits above 2^53. */
static void add_seed(cJSON *json, const ls_options_row *row, const effective *e)
{
    LS_TEXT(seed, 24, "%" PRIu64, e->options->seed);
    cJSON_AddRawToObject(json, row->name, seed);
}

static void add_audit(cJSON *json, const ls_options_row *row, const effective *e)
{
    LS_TEXT(text, 80, "%" PRIu64 ":%" PRId64, e->options->audit_seed, e->options->audit_every);
    if (e->options->audit_from > 0) {
        ls_text_add(text, sizeof text, ":%" PRId64, e->options->audit_from);
    }
    if (e->options->audit) {
        cJSON_AddStringToObject(json, row->name, text);
    }
}

static void add_fault(cJSON *json, const ls_options_row *row, const effective *e)
{
    if (e->options->fault.step > 0) {
        cJSON_AddNumberToObject(json, row->name, (double)e->options->fault.step);
    }
}

static void add_overflow_as(cJSON *json, const ls_options_row *row, const effective *e)
{
    const ls_overflow_as *as = &e->options->overflow_as;
    const char *value = isnan(as->value) ? "nan" : as->value < 0 ? "-inf" : "inf";
    const char *place = as->place == 'f' ? "first" : as->place == 'm' ? "middle" : "last";
    LS_TEXT(text, 128, "%s@%s:%s:%d", value, as->param, place, as->micro);
    cJSON_AddStringToObject(json, row->name, text);
}

/* ---- all ------------------------------------------------------------------------------------- */

static ls_tristate truth(bool value)
{
    return value ? LS_TRUE : LS_FALSE;
}

/* The recorded values do not depend on the world. */
static effective resolve(const ls_options *given, ls_options *options)
{
    effective e = {.options = options};
    ls_dialect_resolve(given, 1, &e.rules);
    ls_precision_resolve(given, &e.rules, &e.precision);
    *options = *given;
    if (options->data_parallel > 1 || options->model_parallel) { /* its parts: options.c */
        options->batch_size *= options->accumulate;
        options->accumulate = 1;
    }
    options->init_scale = e.precision.initial_scale;
    options->min_loss_scale = e.precision.scaler.min_scale;
    options->max_loss_scale = e.precision.scaler.max_scale;
    options->keep_batchnorm_fp32 = truth(e.precision.norm == LS_F32);
    options->master_weights = truth(e.precision.masters);
    options->broadcast_buffers = truth(e.rules.broadcast_buffers);
    options->average = e.rules.average;
    options->compress = e.precision.compress;
    options->message_size =
        e.rules.unit == LS_BUCKET_ELEMENTS ? e.rules.limit[e.rules.limit_count - 1] : 0;
    return e;
}

struct cJSON *ls_options_json(const ls_options *options)
{
    static record_fn *const record[LS_OPTIONS_ROWS] = {
#define LS_OPTION(group, name, letter, argument, kind, record, differs, help) record,
#include "options.def"
#undef LS_OPTION
    };
    cJSON *json = cJSON_CreateObject();
    LS_MEMORY(json != NULL);
    ls_options resolved;
    effective e = resolve(options, &resolved);
    for (int i = 0; i < LS_OPTIONS_ROWS; i++) {
        record[i](json, &ls_options_table[i], &e);
    }
    return json;
}
