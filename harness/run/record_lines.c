#include "record_lines.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"

/* How much of a line is shown. */
enum { SHOWN = 100 };

typedef enum kind { WHOLE_NUMBER, NUMBER, TEXT, TRUTH, OBJECT } kind;

static const struct member {
    const char *event, *name;
    kind kind;
    bool needed;
} members[] = {
    {"start", "options", OBJECT, false},     {"step", "step", WHOLE_NUMBER, true},
    {"step", "loss", NUMBER, false},         {"step", "loss_bits", TEXT, false},
    {"step", "loss_scale", NUMBER, false},   {"step", "loss_scale_next", NUMBER, false},
    {"step", "skipped", TRUTH, false},       {"step", "lr", NUMBER, false},
    {"step", "images", WHOLE_NUMBER, false}, {"step", "digest", OBJECT, false},
    {"step", "ms", OBJECT, false},           {"unsupported", "option", TEXT, true},
};

typedef struct reader {
    bool strict;
    bool started, ended;
    int64_t step; /* the last one; 0: none yet */
    char why[160];
} reader;

static bool of_kind(const cJSON *value, kind wanted)
{
    switch (wanted) {
    case WHOLE_NUMBER:
        return cJSON_IsNumber(value) && value->valuedouble == (double)(int64_t)value->valuedouble;
    case NUMBER: /* null: infinite or not a number */
        return cJSON_IsNumber(value) || cJSON_IsNull(value);
    case TEXT:
        return cJSON_IsString(value);
    case TRUTH:
        return cJSON_IsBool(value);
    case OBJECT:
        return cJSON_IsObject(value);
    }
    return false;
}

static bool members_fit(reader *r, const cJSON *value, const char *event)
{
    static const char *const word[] = {"a whole number", "a number", "a string", "true or false",
                                       "an object"};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const struct member *m = &members[i];
        if (strcmp(m->event, event) != 0) {
            continue;
        }
        const cJSON *found = cJSON_GetObjectItemCaseSensitive(value, m->name);
        if (found == NULL ? m->needed : !of_kind(found, m->kind)) {
            ls_text_put(r->why, sizeof r->why, "has \"%s\" that is not %s", m->name, word[m->kind]);
            return false;
        }
    }
    return true;
}

/* False, and `why` filled, when this event may not stand here. */
static bool fits(reader *r, const cJSON *value)
{
    const char *event = ls_json_string(value, "event", NULL);
    if (event == NULL) {
        ls_text_put(r->why, sizeof r->why, "is no object with an \"event\"");
    } else if (r->ended) {
        ls_text_put(r->why, sizeof r->why, "comes after the end event");
    } else if (!r->started && ls_json_integer(value, "schema", 0) != 1) {
        ls_text_put(r->why, sizeof r->why, "is the first event and has no \"schema\": 1");
    } else if (!r->started && strcmp(event, "start") != 0 && strcmp(event, "unsupported") != 0) {
        ls_text_put(r->why, sizeof r->why, "comes before the start event");
    } else if (r->started && strcmp(event, "start") == 0) {
        ls_text_put(r->why, sizeof r->why, "is a second start event");
    } else if (members_fit(r, value, event)) {
        bool step = strcmp(event, "step") == 0;
        int64_t number = ls_json_integer(value, "step", 0);
        if (step && (number < 1 || (r->step > 0 && number != r->step + 1))) {
            ls_text_put(r->why, sizeof r->why, "is step %lld after step %lld", (long long)number,
                        (long long)r->step);
            return false;
        }
        r->step = step ? number : r->step;
        r->started = true;
        r->ended = strcmp(event, "end") == 0;
        return true;
    }
    return false;
}

/* "rank0.jsonl line 3 WHY: 'LINE'", what cannot be printed as dots. */
static void describe(const char *path, int number, const char *why, const char *line, char *broken,
                     size_t broken_bytes)
{
    const char *slash = strrchr(path, '/');
    char shown[SHOWN + 4];
    ls_text_put(shown, sizeof shown, "%.*s%s", (int)SHOWN, line, strlen(line) > SHOWN ? "..." : "");
    for (char *c = shown; *c != '\0'; c++) {
        *c = *c < ' ' || *c > '~' ? '.' : *c;
    }
    ls_text_put(broken, broken_bytes, "%s line %d %s: '%s'", slash == NULL ? path : slash + 1,
                number, why, shown);
}

static const char *why_no_json(const char *line)
{
    bool bare = strstr(line, "NaN") != NULL || strstr(line, "Infinity") != NULL;
    return bare ? "is no JSON (NaN and Infinity are none: write null)" : "is no JSON";
}

/* One line without its newline; false when reading ends here. */
static bool take(reader *r, char *line, const char *path, int number, ls_record_lines_visit *visit,
                 void *context, char *broken, size_t broken_bytes)
{
    cJSON *value = cJSON_ParseWithOpts(line, NULL, true);
    if (value == NULL) {
        describe(path, number, why_no_json(line), line, broken, broken_bytes);
        return false;
    }
    bool good = !r->strict || fits(r, value);
    if (good) {
        visit(context, value);
    } else {
        describe(path, number, r->why, line, broken, broken_bytes);
    }
    cJSON_Delete(value);
    return good;
}

ls_status ls_record_lines_read(const char *path, bool strict, ls_record_lines_visit *visit,
                               void *context, char *broken, size_t broken_bytes)
{
    broken[0] = '\0';
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        ls_log_error("cannot open %s: %s", path, strerror(errno));
        return LS_ERR_INFRA;
    }
    const char *unreadable = ls_file_unreadable(file);
    if (unreadable != NULL) {
        char why[64];
        ls_text_put(why, sizeof why, "is in %s", unreadable);
        describe(path, 1, why, "", broken, broken_bytes);
        fclose(file);
        return LS_OK;
    }
    reader r = {.strict = strict};
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    for (int number = 1; broken[0] == '\0' && (length = getline(&line, &room, file)) > 0;
         number++) {
        if (line[length - 1] != '\n' && !strict) {
            break;
        }
        if (line[length - 1] != '\n') {
            describe(path, number, "ends in the middle", line, broken, broken_bytes);
        } else if (strlen(line) != (size_t)length) {
            describe(path, number, "holds a zero byte", line, broken, broken_bytes);
        } else {
            line[length - 1] = '\0';
            (void)take(&r, line, path, number, visit, context, broken, broken_bytes);
        }
    }
    bool failed = ferror(file) != 0;
    if (failed) {
        ls_log_error("cannot read %s: %s", path, strerror(errno));
    }
    free(line);
    fclose(file);
    return failed ? LS_ERR_INFRA : LS_OK;
}
