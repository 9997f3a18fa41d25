#include "detect_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/file.h"

static const char *cause_word(const ls_detect_plant *plant, const ls_detect_result *result)
{
    return result->not_run                  ? "-"
           : strcmp(plant->cause, "-") == 0 ? "(not asked)"
           : result->cause_right            ? "right"
           : result->cause_given            ? "other"
                                            : "none";
}

/* What became of a fault. */
static const char *end_of(const ls_detect_result *result)
{
    return result->not_run     ? "not run"
           : result->caught    ? "caught"
           : result->elsewhere ? "MISSED*"
                               : "MISSED";
}

void ls_detect_print_result(const ls_detect_plant *plant, const ls_detect_result *result, FILE *to)
{
    fprintf(to, "%-7s %-36s %-34s %6.1f s  %s%s\n", end_of(result), plant->name,
            result->elsewhere ? result->by.case_id : plant->case_id, result->seconds,
            result->not_run ? "" : "cause ",
            result->not_run ? result->why : cause_word(plant, result));
    fflush(to);
}

static void print_count(const ls_detect_count *c, const char *what, const char *lacks, FILE *to)
{
    if (c->tried > 0) {
        fprintf(to, "%d of %d %s caught, the cause right for %d\n", c->caught, c->tried, what,
                c->causes_right);
    }
    if (c->elsewhere > 0) {
        fprintf(to, "%d %s missed by their own cases, seen by others (marked *)\n", c->elsewhere,
                what);
    }
    if (c->not_run > 0) {
        fprintf(to, "%d %s not run: they crashed, hung or were refused; nothing was shown\n",
                c->not_run, what);
    }
    if (c->left_out > 0) {
        fprintf(to, "%d %s left out: %s\n", c->left_out, what, lacks);
    }
}

void ls_detect_print_summary(const ls_detect_summary *s, FILE *to)
{
    print_count(&s->planted, "faults", "this machine cannot run their code", to);
    print_count(&s->foreign, "foreign trainers with a mistake", "no Python with PyTorch", to);
    if (s->right > 0) {
        fprintf(to, "the right foreign trainers passed %d of %d cases, %d not run\n",
                s->right - s->right_failed - s->right_not_run, s->right, s->right_not_run);
    }
    if (s->planted.tried + s->foreign.tried == 0) {
        fprintf(to, "no fault was tried: nothing was shown\n");
    }
}

static FILE *create(const char *folder, const char *name)
{
    LS_TEXT(path, 700, "%s/%s", folder, name);
    return ls_file_create(path);
}

/* A cell of a Markdown table must not contain a bar or a line break. */
static void print_cell(FILE *file, const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        fputc(*c == '|' || *c == '\n' ? '/' : *c, file);
    }
}

static ls_status write_tsv(const char *directory, const ls_detect_list *list,
                           const ls_detect_result *result)
{
    FILE *file = create(directory, "detect.tsv");
    LS_TRY_FILE(file);
    fprintf(file,
            "# Planted faults, foreign trainers with a mistake, and the case that caught each\n"
            "# fault\tcaught\tnamed case\tseen by\tverdict\tseconds\tcause right\tother "
            "cases that fail\tof\tcause\tnot run\n");
    for (int i = 0; i < list->count; i++) {
        const ls_detect_plant *plant = &list->plant[i];
        const ls_detect_result *r = &result[i];
        if (r->done) {
            bool seen = r->caught || r->elsewhere;
            fprintf(file, "%s\t%d\t%s\t%s\t%s\t%.1f\t%d\t%d\t%d\t%s\t%s\n", plant->name, r->caught,
                    plant->case_id, seen ? r->by.case_id : "-", seen ? r->by.code : "-", r->seconds,
                    r->cause_right, r->others, r->others_asked,
                    r->by.cause[0] == '\0' ? "-" : r->by.cause, r->not_run ? r->why : "-");
        }
    }
    return ls_file_close(file, "detect.tsv");
}

static ls_status write_markdown(const char *directory, const ls_detect_list *list,
                                const ls_detect_result *result, const ls_detect_summary *summary)
{
    FILE *file = create(directory, "detect.md");
    LS_TRY_FILE(file);
    fprintf(file, "# Detection\n\n");
    fprintf(file,
            "A fault is caught where the case written for it has the expected verdict and cause.\n"
            "%d clean passes over different seeds raised %d alarms.\n\n",
            summary->clean, summary->clean_failed);
    ls_detect_print_summary(summary, file);
    fputs("\n", file);
    fprintf(file, "| fault | what was done | caught by | s | cause printed | others |\n"
                  "|---|---|---|---|---|---|\n");
    for (int i = 0; i < list->count; i++) {
        const ls_detect_plant *plant = &list->plant[i];
        const ls_detect_result *r = &result[i];
        if (!r->done) {
            continue;
        }
        fprintf(file, "| %s | ", plant->name);
        print_cell(file, plant->sentence);
        bool seen = r->caught || r->elsewhere;
        fprintf(file, " | %s%s%s%s%s | %.1f | %s: ", r->caught ? "" : "**", end_of(r),
                r->caught ? "" : "** ", seen ? " by " : "", seen ? r->by.case_id : r->why,
                r->seconds, cause_word(plant, r));
        print_cell(file, r->by.cause[0] == '\0' ? "-" : r->by.cause);
        if (r->others_asked > 0) {
            fprintf(file, " | %d of %d |\n", r->others, r->others_asked);
        } else {
            fprintf(file, " | |\n");
        }
    }
    return ls_file_close(file, "detect.md");
}

ls_status ls_detect_write_tables(const char *directory, const ls_detect_list *list,
                                 const ls_detect_result *result, const ls_detect_summary *summary)
{
    LS_TRY(write_tsv(directory, list, result));
    return write_markdown(directory, list, result, summary);
}

/* ---- the fault x case matrix of a full run --------------------------------------------------- */

typedef struct columns {
    int count, capacity;
    char (*id)[LS_CASE_ID_BYTES];
    char *cell; /* [capacity] of the current row */
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
        LS_MEMORY(c->id != NULL && c->cell != NULL);
    }
    ls_text_put(c->id[c->count], sizeof c->id[c->count], "%s", id);
    c->cell[c->count] = '-';
    return c->count++;
}

/* P: passed; otherwise the first letter of the verdict: F means that the case sees the fault. */
static ls_status take_cell(void *context, const cJSON *line, int line_number)
{
    (void)line_number;
    columns *c = context;
    int column = column_of(c, ls_json_string(line, "case", ""));
    c->cell[column] = ls_verdict_name(ls_verdict_code_in(line))[0];
    return LS_OK;
}

static ls_status read_row(const char *directory, const char *name, columns *c, bool *found)
{
    LS_TEXT(path, 700, "%s/faults/%s.jsonl", directory, name);
    memset(c->cell, '-', (size_t)c->count);
    *found = access(path, R_OK) == 0;
    return *found ? ls_json_each_line(path, take_cell, c) : LS_OK;
}

ls_status ls_detect_write_matrix(const char *directory, const ls_detect_list *list)
{
    columns c = {0, 0, NULL, NULL};
    bool found;
    ls_status status = LS_OK;
    (void)column_of(&c, ""); /* allocates the cells */
    c.count = 0;
    for (int i = 0; i < list->count && status == LS_OK; i++) {
        status = read_row(directory, list->plant[i].name, &c, &found);
    }
    FILE *file = NULL;
    if (status == LS_OK) {
        file = create(directory, "matrix.tsv");
        status = file == NULL ? LS_ERR_INFRA : LS_OK;
    }
    if (file != NULL) {
        fprintf(file,
                "# Which case catches which planted fault: F fail, C crash, T timeout, W weak, "
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
        ls_status closed = ls_file_close(file, "matrix.tsv");
        status = status == LS_OK ? closed : status;
    }
    free(c.id);
    free(c.cell);
    return status;
}
