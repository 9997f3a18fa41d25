/* JSON through cJSON: whole files, lines of .jsonl files, and required members. */
#ifndef LS_CORE_JSON_H
#define LS_CORE_JSON_H

#include <stdio.h>
#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* From now on cJSON ends this program, as LS_MEMORY does, where it finds no memory: else members
 * are missing from what it writes, and what it reads is no JSON. For the programs' mains. */
void ls_json_need_memory(void);
/* Parses one value; NULL when it is none, *end (unless NULL) where reading ended. Its strings and
 * names are printable then (ls_plain_copy) and at most LS_JSON_STRING_BYTES long: they are foreign
 * words. The files, events and messages that the harness and the suite read are parsed here. */
enum { LS_JSON_STRING_BYTES = 1 << 14 };
cJSON *ls_json_parse(const char *text, const char **end);
/* Reads and parses one file; the caller frees *root with cJSON_Delete. Logs file and position. */
ls_status ls_json_read_file(const char *path, cJSON **root);
/* Writes the value to a temporary file next to `path` and renames it: readers see the old file or
 * the new one, never a part. Indented. */
ls_status ls_json_write_file(const char *path, const cJSON *root);
/* The same; frees the value in any case. */
ls_status ls_json_write_and_free(const char *path, cJSON *root);
/* Appends the value as one line with one write(2) to a descriptor. `path` is for the message. */
ls_status ls_json_append_line(int descriptor, const char *path, const cJSON *line);

/* Calls visit(context, value, line_number) for each whole line of a .jsonl file; a last line
 * without its newline (its writer was killed) is ignored. A line that is not JSON is an error
 * naming it. */
typedef ls_status ls_json_visit(void *context, const cJSON *value, int line_number);
ls_status ls_json_each_line(const char *path, ls_json_visit *visit, void *context);

/* Whether the number is a whole one from `least` to `most`; *out is written only then. All numbers
 * of files and messages become integers here: the conversion of 1e300 or NaN is undefined. */
bool ls_json_whole(double number, int64_t least, int64_t most, int64_t *out);

/* The member of exactly this name; NULL where the object is none or lacks it. */
static inline cJSON *ls_json_get(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* The elements of an array, or the members of an object; of NULL none. */
#define ls_json_each(entry, list) cJSON_ArrayForEach((entry), (list))

/* Members with a fallback for a missing one; a member of another type counts as missing, as does a
 * number that is not whole or does not fit. ls_json_integer takes up to 2^53 in size, the range
 * that a JSON number holds exactly. */
double ls_json_number(const cJSON *object, const char *name, double fallback);
int64_t ls_json_integer(const cJSON *object, const char *name, int64_t fallback);
int ls_json_int(const cJSON *object, const char *name, int fallback);
bool ls_json_bool(const cJSON *object, const char *name, bool fallback);
const char *ls_json_string(const cJSON *object, const char *name, const char *fallback);

/* Appends an empty object to an array and returns it. */
cJSON *ls_json_append_object(cJSON *array);
/* Adds a number, or null when it is inf or NaN (JSON has neither). */
void ls_json_add_number(cJSON *object, const char *name, double value);

#ifdef __cplusplus
}
#endif
#endif
