#define _GNU_SOURCE
#include "json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "log.h"
#include "plain.h"

static void make_plain(char **text)
{
    char plain[LS_JSON_STRING_BYTES];
    if (*text == NULL) {
        return;
    }
    ls_plain_copy(plain, sizeof plain, *text);
    if (strcmp(plain, *text) != 0) {
        cJSON_free(*text);
        *text = strdup(plain);
        LS_MEMORY(*text != NULL);
    }
}

/* The parser bounds the depth (CJSON_NESTING_LIMIT). */
static void make_all_plain(cJSON *value)
{
    for (; value != NULL; value = value->next) {
        make_plain(&value->string);
        make_plain(&value->valuestring);
        make_all_plain(value->child);
    }
}

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    LS_MEMORY(memory != NULL);
    return memory;
}

void ls_json_need_memory(void)
{
    cJSON_Hooks hooks = {.malloc_fn = allocate, .free_fn = free};
    cJSON_InitHooks(&hooks);
}

cJSON *ls_json_parse(const char *text, const char **end)
{
    cJSON *value = cJSON_ParseWithOpts(text, end, true);
    make_all_plain(value);
    return value;
}

ls_status ls_json_read_file(const char *path, cJSON **root)
{
    char *text = NULL;
    size_t bytes = 0;
    LS_TRY(ls_file_read(path, LS_FILE_TEXT_BYTES, &text, &bytes));
    const char *end = text;
    cJSON *value = ls_json_parse(text, &end);
    if (value == NULL) {
        ls_log_error("%s is not JSON: byte %ld: '%.20s'", path, (long)(end - text), end);
        free(text);
        return LS_ERR_INFRA;
    }
    free(text);
    *root = value;
    return LS_OK;
}

ls_status ls_json_write_file(const char *path, const cJSON *root)
{
    char *text = cJSON_Print(root);
    LS_MEMORY(text != NULL);
    size_t length = strlen(text);
    text[length] = '\n'; /* in place of the 0 */
    ls_status status = ls_file_replace(path, text, length + 1);
    cJSON_free(text);
    return status;
}

ls_status ls_json_write_and_free(const char *path, cJSON *root)
{
    ls_status status = ls_json_write_file(path, root);
    cJSON_Delete(root);
    return status;
}

ls_status ls_json_append_line(int descriptor, const char *path, const cJSON *line)
{
    char *text = cJSON_PrintUnformatted(line);
    LS_MEMORY(text != NULL);
    size_t length = strlen(text);
    char *whole = realloc(text, length + 2);
    if (whole == NULL) {
        ls_log_error("cannot allocate %zu bytes for a line of %s", length + 2, path);
        cJSON_free(text);
        return LS_ERR_INFRA;
    }
    whole[length] = '\n';
    ls_status status = ls_file_write(descriptor, path, whole, length + 1);
    free(whole);
    return status;
}

/* The next whole line; *line is NULL where there is none. */
static ls_status next_line(ls_lines *lines, char **line)
{
    size_t bytes;
    bool whole = true;
    ls_status status = ls_lines_next(lines, line, &bytes, &whole);
    if (status != LS_OK) {
        return ls_log_fail(status, "%s", lines->file.why);
    }
    *line = whole ? *line : NULL;
    return LS_OK;
}

static ls_status visit_line(const char *path, const char *line, int number, ls_json_visit *visit,
                            void *context)
{
    cJSON *value = ls_json_parse(line, NULL);
    if (value == NULL) {
        return ls_log_fail(LS_ERR_INFRA, "%s:%d is not JSON: '%.60s'", path, number, line);
    }
    ls_status status = visit(context, value, number);
    cJSON_Delete(value);
    return status;
}

ls_status ls_json_each_line(const char *path, ls_json_visit *visit, void *context)
{
    ls_lines lines;
    ls_status status = ls_lines_open(path, LS_LINES_LINE_BYTES, &lines);
    if (status != LS_OK) {
        return ls_log_fail(status, "%s", lines.file.why);
    }
    char *line = NULL;
    status = next_line(&lines, &line);
    for (int number = 1; status == LS_OK && line != NULL; number++) {
        status = visit_line(path, line, number, visit, context);
        LS_THEN(status, next_line(&lines, &line));
    }
    ls_lines_close(&lines);
    return status;
}

double ls_json_number(const cJSON *object, const char *name, double fallback)
{
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(member) ? member->valuedouble : fallback;
}

bool ls_json_whole(double number, int64_t least, int64_t most, int64_t *out)
{
    if (!(number >= -0x1p63 && number < 0x1p63) || number != floor(number) ||
        (int64_t)number < least || (int64_t)number > most) {
        return false;
    }
    *out = (int64_t)number;
    return true;
}

static int64_t bounded(const cJSON *object, const char *name, int64_t most, int64_t fallback)
{
    int64_t value = fallback;
    (void)ls_json_whole(ls_json_number(object, name, NAN), -most, most, &value);
    return value;
}

int64_t ls_json_integer(const cJSON *object, const char *name, int64_t fallback)
{
    return bounded(object, name, INT64_C(1) << 53, fallback);
}

int ls_json_int(const cJSON *object, const char *name, int fallback)
{
    return (int)bounded(object, name, INT_MAX, fallback);
}

bool ls_json_bool(const cJSON *object, const char *name, bool fallback)
{
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsBool(member) ? cJSON_IsTrue(member) != 0 : fallback;
}

const char *ls_json_string(const cJSON *object, const char *name, const char *fallback)
{
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsString(member) ? member->valuestring : fallback;
}

cJSON *ls_json_append_object(cJSON *array)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddItemToArray(array, object);
    return object;
}

void ls_json_add_number(cJSON *object, const char *name, double value)
{
    if (isfinite(value)) {
        cJSON_AddNumberToObject(object, name, value);
    } else {
        cJSON_AddNullToObject(object, name);
    }
}
