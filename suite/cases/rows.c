#include "rows.h"

#include <ctype.h>
#include <stdarg.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/log.h"

struct ls_case_memory {
    struct ls_case_memory *next;
    max_align_t data[];
};

void *ls_rows_memory(ls_case_list *list, size_t bytes)
{
    struct ls_case_memory *memory = ls_list_make(1, sizeof *memory + bytes);
    memory->next = list->memory;
    list->memory = memory;
    return memory->data;
}

void ls_rows_free(ls_case_list *list)
{
    while (list->memory != NULL) {
        struct ls_case_memory *next = list->memory->next;
        free(list->memory);
        list->memory = next;
    }
    free(list->row);
    memset(list, 0, sizeof *list);
}

void ls_rows_keep_protocol(ls_case_list *list)
{
    int kept = 0;
    for (int i = 0; i < list->count; i++) {
        if (list->row[i].kind == LS_PROTOCOL) {
            list->row[kept++] = list->row[i];
        }
    }
    list->count = kept;
}

static ls_case *new_row(ls_case_list *list)
{
    list->row = ls_list_grow(list->row, list->count, &list->capacity, sizeof *list->row);
    ls_case *row = &list->row[list->count++];
    memset(row, 0, sizeof *row);
    return row;
}

/* ---- rows of tables -------------------------------------------------------------------------- */

/* {job:0} to {job:ID}, with the id of the row's job 0, which is complete by then. */
static void name_jobs(const ls_case *row, char *text, size_t bytes)
{
    for (char *at = text; (at = strstr(at, "{job:")) != NULL; at += 5) {
        if (isdigit((unsigned char)at[5]) && at[6] == '}') {
            char id[96], rest[sizeof row->job[0].extra];
            int index = at[5] - '0';
            LS_ASSERT(index < row->job_count);
            ls_matrix_id(&row->job[index], id);
            ls_text_put(rest, sizeof rest, "%s", at + 6);
            ls_text_put(at + 5, bytes - (size_t)(at + 5 - text), "%s%s", id, rest);
        }
    }
}

static void read_jobs(const ls_case_settings *settings, const char *text, const char *script,
                      ls_case *row)
{
    while (text != NULL) {
        const char *end = strstr(text, " | ");
        LS_ASSERT(row->job_count < LS_CASE_JOBS_MAX);
        LS_TEXT(one, 1024, "%.*s", end == NULL ? (int)strlen(text) : (int)(end - text), text);
        ls_spec *spec = &row->job[row->job_count];
        *spec = ls_rows_spec(settings, one);
        spec->script = spec->wrap == LS_WRAP_SHELL ? script : NULL;
        LS_ASSERT(spec->wrap != LS_WRAP_SHELL || script != NULL);
        name_jobs(row, spec->extra, sizeof spec->extra);
        row->job_count++;
        if (row->prepare == NULL && ls_overflow_wants(spec)) {
            row->prepare = ls_overflow_prepare;
        }
        text = end == NULL ? NULL : end + 3;
    }
}

static ls_case *add(ls_case_list *list, const ls_case_settings *settings, const ls_row *from,
                    const char *id, const char *jobs)
{
    ls_case *row = new_row(list);
    LS_ASSERT(strlen(id) < sizeof row->id);
    ls_text_put(row->id, sizeof row->id, "%s", id);
    ls_text_put(row->requirement, sizeof row->requirement, "%s", from->requirement);
    ls_text_put(row->device, sizeof row->device, "%s",
                settings->device == NULL ? "cpu" : settings->device);
    row->kind = jobs == NULL || from->inside ? LS_INSIDE : LS_PROTOCOL;
    row->judge = from->judge;
    row->prepare = from->prepare;
    row->counts = from->counts;
    row->data = from->data;
    row->judges_outcome = from->judges_outcome;
    row->judges_refusal = from->judges_refusal;
    row->takes_disk = from->takes_disk;
    read_jobs(settings, jobs, from->script, row);
    return row;
}

ls_case *ls_rows_format(ls_case_list *list, const ls_case_settings *settings, const ls_row *row,
                        const char *format, ...)
{
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    LS_ASSERT(length < (int)sizeof text);
    char *jobs = strstr(text, ": ");
    if (jobs != NULL) {
        *jobs = '\0';
        jobs += 2;
    }
    return add(list, settings, row, text, jobs);
}

void ls_rows_each(ls_case_list *list, const ls_case_settings *settings, const ls_row *row,
                  const char *format, const void *table, size_t count, size_t bytes)
{
    for (size_t i = 0; i < count; i++) {
        ls_row with = *row;
        with.data = (const char *)table + i * bytes;
        ls_rows_format(list, settings, &with, format, *(const char *const *)with.data);
    }
}

ls_case *ls_rows_specs(ls_case_list *list, const ls_case_settings *settings, const ls_row *row,
                       const ls_spec *jobs, int count, const char *id_format, ...)
{
    char id[LS_CASE_ID_BYTES];
    va_list arguments;
    va_start(arguments, id_format);
    vsnprintf(id, sizeof id, id_format, arguments);
    va_end(arguments);
    ls_case *added = add(list, settings, row, id, NULL);
    LS_ASSERT(count <= LS_CASE_JOBS_MAX);
    added->kind = row->inside ? LS_INSIDE : LS_PROTOCOL;
    added->job_count = count;
    memcpy(added->job, jobs, (size_t)count * sizeof *jobs);
    return added;
}

enum { CHOICES_MAX = 4 };

typedef struct choices {
    const ls_case_settings *settings;
    ls_case_list *list;
    const ls_row *row;
    int count;
    char id[LS_CASE_ID_BYTES], chosen[CHOICES_MAX][256];
} choices;

/* The row's jobs with what was chosen for $1, $2, ... */
static void add_chosen(const choices *c)
{
    char jobs[1024];
    size_t used = 0;
    for (const char *at = c->row->jobs; at != NULL && *at != '\0';) {
        LS_ASSERT(used + 1 < sizeof jobs);
        if (at[0] == '$' && at[1] >= '1' && at[1] <= '0' + c->count) {
            ls_text_put(jobs + used, sizeof jobs - used, "%s", c->chosen[at[1] - '1']);
            used += strlen(jobs + used);
            at += 2;
        } else {
            jobs[used++] = *at++;
        }
    }
    jobs[used] = '\0';
    add(c->list, c->settings, c->row, c->id, c->row->jobs == NULL ? NULL : jobs);
}

/* Goes on with `rest` of the row's id, whose front is in c->id. */
static void choose(choices *c, const char *rest)
{
    size_t used = strlen(c->id), plain = strcspn(rest, "[");
    ls_text_add(c->id, sizeof c->id, "%.*s", (int)plain, rest);
    if (rest[plain] == '\0') {
        add_chosen(c);
        c->id[used] = '\0';
        return;
    }
    size_t front = strlen(c->id);
    const char *one = rest + plain + 1;
    LS_ASSERT(c->count < CHOICES_MAX && strchr(one, ']') != NULL);
    c->count++;
    for (bool last = false; !last;) {
        size_t length = strcspn(one, "|]"), name = strcspn(one, "=");
        const char *value = name < length ? one + name + 1 : one;
        last = one[length] == ']';
        ls_text_put(c->chosen[c->count - 1], sizeof c->chosen[0], "%.*s",
                    (int)(one + length - value), value);
        ls_text_add(c->id, sizeof c->id, "%.*s", (int)(name < length ? name : length), one);
        choose(c, strchr(one, ']') + 1);
        c->id[front] = '\0';
        one += length + 1;
    }
    c->count--;
    c->id[used] = '\0';
}

void ls_rows_table(ls_case_list *list, const ls_case_settings *settings, const ls_row *rows,
                   size_t count)
{
    for (size_t i = 0; i < count; i++) {
        choices c = {.settings = settings, .list = list, .row = &rows[i]};
        choose(&c, rows[i].id);
    }
}

/* ---- text to a job --------------------------------------------------------------------------- */

typedef enum kind { INTEGER, NUMBER, TEXT } kind;

#define TEXT_AT(member) TEXT, offsetof(ls_spec, member), sizeof((ls_spec *)0)->member

/* NAME=VALUE */
static const struct {
    const char *name;
    kind kind;
    size_t at, bytes; /* of the member; bytes: of a text */
} fields[] = {
    {"image", INTEGER, offsetof(ls_spec, image_size), 0},
    {"batch", INTEGER, offsetof(ls_spec, batch_size), 0},
    {"accumulate", INTEGER, offsetof(ls_spec, accumulate), 0},
    {"warmup", INTEGER, offsetof(ls_spec, warmup_steps), 0},
    {"steps", INTEGER, offsetof(ls_spec, steps), 0},
    {"threads", INTEGER, offsetof(ls_spec, threads), 0},
    {"repeat", INTEGER, offsetof(ls_spec, repeat), 0},
    {"lr", NUMBER, offsetof(ls_spec, lr), 0},
    {"limit", NUMBER, offsetof(ls_spec, limit_s), 0},
    {"grace", NUMBER, offsetof(ls_spec, grace_s), 0},
    {"scale", TEXT_AT(loss_scale)},
    {"dump", TEXT_AT(dump_steps)},
    {"data", TEXT_AT(data)},
};

static bool read_integer(const char *text, int *out)
{
    char *end;
    long value = strtol(text, &end, 10);
    *out = (int)value;
    return end != text && *end == '\0';
}

static bool read_number(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0';
}

static bool read_field(const char *word, ls_spec *spec)
{
    size_t length = strcspn(word, "=");
    const char *value = word + length + 1;
    for (size_t i = 0; i < sizeof fields / sizeof *fields && word[length] == '='; i++) {
        if (strlen(fields[i].name) != length || strncmp(fields[i].name, word, length) != 0) {
            continue;
        }
        char *member = (char *)spec + fields[i].at;
        if (fields[i].kind == INTEGER) {
            return read_integer(value, (int *)(void *)member);
        }
        if (fields[i].kind == NUMBER) {
            return read_number(value, (double *)(void *)member);
        }
        ls_text_put(member, fields[i].bytes, "%s", value);
        return strlen(value) < fields[i].bytes;
    }
    return false;
}

/* Words without a value, and those that are a letter and a number. */
static bool read_word(const char *word, ls_spec *spec)
{
    if (strncmp(word, "resnet", 6) == 0 || strcmp(word, "collectives") == 0) {
        ls_text_put(spec->arch, sizeof spec->arch, "%s", word);
    } else if (word[0] == 'O' && word[1] >= '0' && word[1] <= '3' && word[2] == '\0') {
        spec->level = word[1] - '0';
    } else if (strcmp(word, "no-level") == 0) {
        spec->level = -1;
    } else if (word[0] == 'w' && isdigit((unsigned char)word[1])) {
        return read_integer(word + 1, &spec->world);
    } else if (word[0] == 'n' && isdigit((unsigned char)word[1])) {
        return read_integer(word + 1, &spec->nodes);
    } else if (word[0] == 'b' && isdigit((unsigned char)word[1])) {
        return read_number(word + 1, &spec->bucket_mb);
    } else if (strcmp(word, "delay") == 0) {
        spec->bucket_mb = LS_BUCKET_DELAYED;
    } else if (strcmp(word, "bf16") == 0) {
        ls_text_put(spec->half, sizeof spec->half, "bf16");
    } else if (strcmp(word, "torch") == 0) {
        ls_text_put(spec->dialect, sizeof spec->dialect, "torch");
    } else if (strcmp(word, "sync") == 0) {
        spec->sync_bn = true;
    } else if (strcmp(word, "undetermined") == 0) {
        spec->deterministic = false;
    } else if (strcmp(word, "dump-ranks=0") == 0) {
        spec->dump_all = false;
    } else if (strcmp(word, "next-seed") == 0) {
        spec->seed++;
    } else if (strcmp(word, "alone") == 0) {
        spec->wrap = LS_WRAP_ALONE;
    } else if (strcmp(word, "shell") == 0) {
        spec->wrap = LS_WRAP_SHELL;
    } else if (strncmp(word, "kill=", 5) == 0) {
        spec->wrap = LS_WRAP_KILL;
        return sscanf(word, "kill=%d:%d", &spec->kill_rank, &spec->kill_step) == 2;
    } else {
        return read_field(word, spec);
    }
    return true;
}

const char *ls_rows_read_spec(const ls_case_settings *settings, const char *text, ls_spec *spec)
{
    char copy[1024], options[sizeof spec->extra] = "", *rest = NULL;
    const char *batches = NULL;
    bool scaled = false;
    ls_text_put(copy, sizeof copy, "%s", text);
    LS_ASSERT(strlen(text) < sizeof copy);
    *spec = ls_matrix_spec(LS_ROLE_EVIDENCE);
    spec->seed = settings->seed;
    spec->steps = 2;
    spec->dump_all = true;
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        scaled = scaled || strncmp(word, "scale=", 6) == 0;
        if (strncmp(word, "--", 2) == 0) {
            ls_text_add(options, sizeof options, "%s%s", options[0] == '\0' ? "" : " ", word);
        } else if (strncmp(word, "batches=", 8) == 0) {
            batches = word + 8;
        } else if (!read_word(word, spec)) {
            return text + (word - copy);
        }
    }
    if (!scaled && spec->level > 0) {
        ls_text_put(spec->loss_scale, sizeof spec->loss_scale, "128");
    }
    if (batches != NULL && !ls_overflow_read(batches, spec)) {
        return batches - copy + text;
    }
    ls_text_add(spec->extra, sizeof spec->extra, "%s%s",
                spec->extra[0] == '\0' || options[0] == '\0' ? "" : " ", options);
    LS_ASSERT(strlen(spec->extra) + 1 < sizeof spec->extra);
    return NULL;
}

ls_spec ls_rows_spec(const ls_case_settings *settings, const char *text)
{
    ls_spec spec;
    const char *wrong = ls_rows_read_spec(settings, text, &spec);
    if (wrong != NULL) {
        ls_log_error("the job '%s' of a case's table: there is no word '%.*s' (suite/cases/rows.h)",
                     text, (int)strcspn(wrong, " "), wrong);
        abort();
    }
    return spec;
}
