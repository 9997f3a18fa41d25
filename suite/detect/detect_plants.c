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

static ls_detect_plant *append(ls_detect_list *list)
{
    list->plant = ls_list_grow(list->plant, list->count, &list->capacity, sizeof *list->plant);
    ls_detect_plant *plant = &list->plant[list->count++];
    memset(plant, 0, sizeof *plant);
    return plant;
}

/* "CASE" or "CASE VERDICT": the case that must catch a fault, and as what; FAIL. */
static void take_case(ls_detect_plant *plant, const char *text)
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
    ls_detect_plant *plant = append(out);
    size_t wish = strcspn(field[0], " ");
    ls_text_put(plant->wish, sizeof plant->wish, "%.*s", (int)wish, field[0]);
    take_variables(plant, field[0] + wish);
    ls_text_put(plant->name, sizeof plant->name, "%.*s", (int)strcspn(plant->wish, "@:"), field[0]);
    take_case(plant, field[1]);
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

static ls_status read_lines(const char *path, const char *what, ls_detect_line *visit,
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
    ls_status status = read_lines(path, "the list of planted faults", read_line, out);
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

/* ---- the rows of suite/peers/BASE.txt -------------------------------------------------------- */

static const char adapted[] = "script/adapted";
static const char *const bases[] = {"trainer", "example", adapted};

/* suite/peers/mistakes.py says what a row holds, and makes its script: changes are nothing here. */
static ls_status read_mistake(char *line, const char *path, int number, ls_detect_list *out)
{
    ls_detect_plant *plant = out->count == 0 ? NULL : &out->plant[out->count - 1];
    if (line[0] == '[') {
        plant = append(out);
        plant->foreign = true;
        ls_text_put(plant->name, sizeof plant->name, "foreign.%.*s", (int)strcspn(line + 1, "]"),
                    line + 1);
        ls_text_put(plant->wish, sizeof plant->wish, "%s", plant->name);
        ls_text_put(plant->cause, sizeof plant->cause, "-");
    } else if (strchr("#-+ @", line[0]) != NULL) {
        return LS_OK;
    } else if (plant == NULL || !plant->foreign) {
        return ls_log_fail(LS_ERR_USAGE, "%s:%d: expected [NAME] before '%s'", path, number, line);
    } else if (plant->sentence[0] == '\0') {
        ls_text_put(plant->sentence, sizeof plant->sentence, "%s", line);
    } else if (strncmp(line, "case: ", 6) == 0) {
        take_case(plant, line + 6);
    } else if (strncmp(line, "cause: ", 7) == 0) {
        ls_text_put(plant->cause, sizeof plant->cause, "%s", line + 7);
    }
    return LS_OK;
}

ls_status ls_detect_read_foreign(const char *peers, ls_detect_list *out)
{
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        LS_TEXT(path, 1100, "%s/%s.txt", peers, bases[i]);
        int first = out->count;
        LS_TRY(read_lines(path, "the list of wrong trainers", read_mistake, out));
        for (int k = first; k < out->count; k++) {
            ls_detect_plant *plant = &out->plant[k];
            plant->base = bases[i];
            ls_text_put(plant->script, sizeof plant->script, "%s/mistakes.py %s %s", peers,
                        bases[i], plant->name + strlen("foreign."));
        }
    }
    return LS_OK;
}

/* ---- the right trainers ---------------------------------------------------------------------- */

void ls_detect_judge_right(const ls_detect_outcome *outcome, ls_detect_clean *clean)
{
    const ls_detect_verdict *bad = ls_detect_alarm(outcome);
    bool good = bad == NULL && outcome->count > 0 && outcome->code == 0;
    clean->cases = outcome->count;
    clean->not_run = !good && (bad == NULL || (strcmp(bad->code, ls_verdict_name(LS_FAIL)) != 0 &&
                                               strcmp(bad->code, ls_verdict_name(LS_WEAK)) != 0));
    ls_text_put(clean->where, sizeof clean->where, "%s",
                good          ? ""
                : bad == NULL ? "(no case)"
                              : bad->case_id);
    if (bad != NULL) {
        ls_text_put(clean->alarm, sizeof clean->alarm, "%s: %s", bad->code, bad->evidence);
    } else if (!good) {
        ls_text_put(clean->alarm, sizeof clean->alarm, "exit code %d after %.0f s", outcome->code,
                    outcome->seconds);
    }
}

const char *ls_detect_right_of(const ls_detect_plant *wrong)
{
    return wrong->base == adapted ? "script/adapted.py" : "pytorch_train.py";
}

void ls_detect_right_command(const ls_detect_plant *wrong, const char *python, char *text,
                             size_t bytes)
{
    int folder = (int)(strstr(wrong->script, "mistakes.py ") - wrong->script);
    ls_text_put(text, bytes, "%s %.*s%s", python, folder, wrong->script, ls_detect_right_of(wrong));
}
