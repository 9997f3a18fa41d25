#include "bounds_rows.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/log.h"

const char *ls_bounds_kind_name(int kind)
{
    static const char *const name[LS_BOUNDS_KINDS] = {
        "whole", "tensor", "small", "block", "edge", "logits", "tie", "reduce", "next", "buffer"};
    return name[kind];
}

static void add(ls_bounds_rows *rows, const ls_bounds_row *row)
{
    rows->row = ls_list_grow(rows->row, rows->count, &rows->capacity, sizeof *rows->row);
    rows->row[rows->count++] = *row;
}

static bool parse(const char *line, ls_bounds_row *row)
{
    int used = 0;
    unsigned long long seed = 0;
    memset(row, 0, sizeof *row);
    if (sscanf(line, "%31s %31s %d %llu %7s %lg %lg%n", row->setting, row->plant, &row->level,
               &seed, row->verdict, &row->error, &row->ideal, &used) != 7) {
        return false;
    }
    row->seed = seed;
    for (int k = 0; k < LS_BOUNDS_KINDS; k++) {
        char *end = NULL;
        row->value[k] = strtod(line + used, &end);
        if (end == line + used) {
            return false;
        }
        used = (int)(end - line);
    }
    return true;
}

ls_status ls_bounds_rows_read(const char *path, ls_bounds_rows *out)
{
    memset(out, 0, sizeof *out);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return LS_OK; /* a first run */
    }
    char line[1024];
    ls_status status = LS_OK;
    for (int number = 1; status == LS_OK && fgets(line, sizeof line, file) != NULL; number++) {
        ls_bounds_row row;
        if (line[0] == '#') {
            continue;
        }
        if (!parse(line, &row)) {
            ls_log_error("%s:%d is not a row of steps.tsv", path, number);
            status = LS_ERR_USAGE;
        } else {
            add(out, &row);
        }
    }
    fclose(file);
    if (status != LS_OK) {
        ls_bounds_rows_free(out);
    }
    return status;
}

ls_status ls_bounds_rows_append(const char *path, const ls_bounds_row *row)
{
    FILE *file = fopen(path, "a");
    if (file == NULL) {
        ls_log_error("cannot write %s: %s", path, strerror(errno));
        return LS_ERR_INFRA;
    }
    if (fseek(file, 0, SEEK_END) == 0 && ftell(file) == 0) {
        fprintf(file, "# title: every step that was judged\n"
                      "# caption: e/r of each kind (largest of the step); tie in RMS roundings; "
                      "reduce and next in units of their limits\n"
                      "# units: relative\n"
                      "# columns: setting plant level seed verdict e r");
        for (int k = 0; k < LS_BOUNDS_KINDS; k++) {
            fprintf(file, " %s", ls_bounds_kind_name(k));
        }
        fprintf(file, "\n");
    }
    fprintf(file, "%s %s %d %llu %s %.3e %.3e", row->setting, row->plant, row->level,
            (unsigned long long)row->seed, row->verdict, row->error, row->ideal);
    for (int k = 0; k < LS_BOUNDS_KINDS; k++) {
        fprintf(file, " %.4g", row->value[k]);
    }
    fprintf(file, "\n");
    if (fclose(file) != 0) {
        ls_log_error("cannot write %s: %s", path, strerror(errno));
        return LS_ERR_INFRA;
    }
    return LS_OK;
}

void ls_bounds_rows_free(ls_bounds_rows *rows)
{
    free(rows->row);
    memset(rows, 0, sizeof *rows);
}
