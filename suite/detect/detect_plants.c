#include "detect_internal.h"

#include <string.h>
#include <unistd.h>

#include "kernels/core/list.h"
#include "kernels/core/log.h"

enum { FIELDS = 5 };

static char *trimmed(char *text)
{
    text += strspn(text, " \t");
    for (char *end = text + strlen(text); end > text && strchr(" \t\r", end[-1]) != NULL;) {
        *--end = '\0';
    }
    return text;
}

/* Splits at '|'; the last field may contain more of them. Returns the number of fields. */
static int split(char *line, char *field[FIELDS])
{
    int count = 0;
    for (char *at = line; at != NULL && count < FIELDS; count++) {
        char *bar = count < FIELDS - 1 ? strchr(at, '|') : NULL;
        if (bar != NULL) {
            *bar = '\0';
        }
        field[count] = trimmed(at);
        at = bar == NULL ? NULL : bar + 1;
    }
    return count;
}

ls_detect_plant *ls_detect_append(ls_detect_list *list)
{
    list->plant = ls_list_grow(list->plant, list->count, &list->capacity, sizeof *list->plant);
    ls_detect_plant *plant = &list->plant[list->count++];
    memset(plant, 0, sizeof *plant);
    return plant;
}

void ls_detect_take_case(ls_detect_plant *plant, const char *text)
{
    const char *word = text + strcspn(text, " ");
    ls_text_put(plant->case_id, sizeof plant->case_id, "%.*s", (int)(word - text), text);
    ls_text_put(plant->expected, sizeof plant->expected, "%s",
                *word == '\0' ? ls_verdict_name(LS_FAIL) : word + 1);
}

/* Words behind the name: those that start with LS_ are variables of the environment, the others of
 * a bench. */
static void take_variables(ls_detect_plant *plant, const char *text)
{
    for (const char *at = text + strspn(text, " "); *at != '\0'; at += strspn(at, " ")) {
        bool own = strncmp(at, "LS_", 3) == 0;
        char *to = own ? plant->environment : plant->bench;
        int length = (int)strcspn(at, " ");
        ls_text_add(to, own ? sizeof plant->environment : sizeof plant->bench, "%s%.*s",
                    to[0] == '\0' ? "" : " ", length, at);
        at += length;
    }
}

static ls_status read_line(char *line, const char *path, int number, ls_detect_list *out)
{
    char *field[FIELDS], file[1200];
    if (*trimmed(line) == '\0' || *trimmed(line) == '#') {
        return LS_OK;
    }
    if (split(line, field) != FIELDS || field[0][0] == '\0' || field[4][0] == '\0') {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s:%d: expected name | case | requirement | cause | sentence", path,
                           number);
    }
    ls_detect_plant *plant = ls_detect_append(out);
    size_t wish = strcspn(field[0], " ");
    ls_text_put(plant->wish, sizeof plant->wish, "%.*s", (int)wish, field[0]);
    take_variables(plant, field[0] + wish);
    ls_text_put(plant->name, sizeof plant->name, "%.*s", (int)strcspn(plant->wish, "@:"), field[0]);
    ls_detect_take_case(plant, field[1]);
    ls_text_put(plant->requirement, sizeof plant->requirement, "%s", field[2]);
    ls_text_put(plant->cause, sizeof plant->cause, "%s", field[3]);
    ls_text_put(plant->sentence, sizeof plant->sentence, "%s", field[4]);
    ls_text_put(file, sizeof file, "%.*s/%s.patch", (int)strlen(path) - 4, path, plant->name);
    plant->patch = access(file, R_OK) == 0;
    plant->device = strncmp(plant->name, "cuda_", 5) == 0;
    plant->avx512 = strncmp(plant->name, "avx512_", 7) == 0;
    plant->native = strncmp(plant->name, "native_", 7) == 0;
    return LS_OK;
}

ls_status ls_detect_read_lines(const char *path, const char *what, ls_detect_line *visit,
                               ls_detect_list *out)
{
    char *text = ls_text_read(path);
    if (text == NULL) {
        return ls_log_fail(LS_ERR_USAGE, "%s %s cannot be read", what, path);
    }
    ls_status status = LS_OK;
    int number = 1;
    for (char *line = text, *next; line != NULL && status == LS_OK; line = next, number++) {
        next = strchr(line, '\n');
        if (next != NULL) {
            *next++ = '\0';
        }
        status = visit(line, path, number, out);
    }
    free(text);
    return status;
}

ls_status ls_detect_read(const char *path, ls_detect_list *out)
{
    memset(out, 0, sizeof *out);
    ls_status status = ls_detect_read_lines(path, "the list of planted faults", read_line, out);
    if (status != LS_OK) {
        ls_detect_free(out);
    }
    return status;
}

void ls_detect_free(ls_detect_list *list)
{
    free(list->plant);
    memset(list, 0, sizeof *list);
}

static const ls_case *find_case(const ls_case_list *cases, const char *id)
{
    for (int c = 0; c < cases->count; c++) {
        if (strcmp(cases->row[c].id, id) == 0) {
            return &cases->row[c];
        }
    }
    return NULL;
}

ls_status ls_detect_check(const ls_detect_list *list, const ls_case_list *cases)
{
    ls_status status = LS_OK;
    for (int i = 0; i < list->count; i++) {
        const ls_detect_plant *plant = &list->plant[i];
        const ls_case *row = find_case(cases, plant->case_id);
        if (plant->bench[0] != '\0') { /* its case is made for the jobs of that bench */
            row = NULL;
        } else if (row == NULL) {
            status = ls_log_fail(LS_ERR_CHECK, "planted fault %s: case %s does not exist",
                                 plant->name, plant->case_id);
        } else if (!plant->foreign && strcmp(row->requirement, plant->requirement) != 0) {
            status =
                ls_log_fail(LS_ERR_CHECK, "planted fault %s: case %s shows requirement %s, not %s",
                            plant->name, plant->case_id, row->requirement, plant->requirement);
        }
        if (ls_verdict_code_of(plant->expected) == LS_VERDICT_CODES) {
            status = ls_log_fail(LS_ERR_CHECK, "planted fault %s: '%s' is no verdict", plant->name,
                                 plant->expected);
        }
        for (int other = 0; other < i; other++) {
            if (strcmp(list->plant[other].name, plant->name) == 0) {
                status =
                    ls_log_fail(LS_ERR_CHECK, "two planted faults have the name %s", plant->name);
            }
        }
    }
    return status;
}
