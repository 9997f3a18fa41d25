/* The whole fault x case matrix of a full run. */
#include "detect.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/text.h"
#include "kernels/core/log.h"

typedef struct columns {
    int count, capacity;
    char (*id)[LS_CASE_ID_BYTES];
    char *cell; /* of the row that is being read: [capacity] */
} columns;

static int column_of(columns *c, const char *id)
{
    for (int i = 0; i < c->count; i++) {
        if (strcmp(c->id[i], id) == 0) {
            return i;
        }
    }
    if (c->count == c->capacity) {
        c->capacity = c->capacity == 0 ? 64 : 2 * c->capacity;
        c->id = realloc(c->id, (size_t)c->capacity * sizeof *c->id);
        c->cell = realloc(c->cell, (size_t)c->capacity);
        LS_ASSERT(c->id != NULL && c->cell != NULL);
    }
    ls_text_put(c->id[c->count], sizeof c->id[c->count], "%s", id);
    c->cell[c->count] = '-';
    return c->count++;
}

/* P passed, otherwise the verdict's first letter: F, C, T, W say that the case saw the fault. */
static ls_status take_cell(void *context, const cJSON *line, int line_number)
{
    (void)line_number;
    columns *c = context;
    int column = column_of(c, ls_json_string(line, "case", ""));
    c->cell[column] = ls_json_string(line, "verdict", "-")[0];
    return LS_OK;
}

static ls_status read_row(const char *directory, const char *name, columns *c, bool *found)
{
    char path[700];
    ls_text_put(path, sizeof path, "%s/faults/%s.jsonl", directory, name);
    memset(c->cell, '-', (size_t)c->count);
    *found = access(path, R_OK) == 0;
    return *found ? ls_json_each_line(path, take_cell, c) : LS_OK;
}

ls_status ls_detect_write_matrix(const char *directory, const ls_detect_list *list)
{
    columns c = {0, 0, NULL, NULL};
    char path[700];
    bool found;
    ls_status status = LS_OK;
    (void)column_of(&c, ""); /* so that there is room */
    c.count = 0;
    for (int i = 0; i < list->count && status == LS_OK; i++) {
        status = read_row(directory, list->plant[i].name, &c, &found);
    }
    ls_text_put(path, sizeof path, "%s/matrix.tsv", directory);
    FILE *file = status == LS_OK ? fopen(path, "w") : NULL;
    if (status == LS_OK && file == NULL) {
        ls_log_error("cannot write %s: %s", path, strerror(errno));
        status = LS_ERR_INFRA;
    }
    if (file != NULL) {
        fprintf(file, "# Which case sees which planted fault: F fail, C crash, T timeout, W weak, "
                      "P passed, - not run\n# fault");
        for (int k = 0; k < c.count; k++) {
            fprintf(file, "\t%s", c.id[k]);
        }
        fprintf(file, "\n");
        for (int i = 0; i < list->count && status == LS_OK; i++) {
            status = read_row(directory, list->plant[i].name, &c, &found);
            if (!found) {
                continue;
            }
            fprintf(file, "%s", list->plant[i].name);
            for (int k = 0; k < c.count; k++) {
                fprintf(file, "\t%c", c.cell[k]);
            }
            fprintf(file, "\n");
        }
        if (fclose(file) != 0) {
            ls_log_error("cannot write %s: %s", path, strerror(errno));
            status = LS_ERR_INFRA;
        }
    }
    free(c.id);
    free(c.cell);
    return status;
}
