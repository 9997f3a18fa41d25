/* What is printed and written about a detection run. */
#include "detect.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/text.h"
#include "kernels/core/log.h"

static const char *cause_word(const ls_detect_plant *plant, const ls_detect_result *result)
{
    if (!result->caught) {
        return "-";
    }
    if (result->cause_right) {
        return "right";
    }
    return !result->cause_given ? "none" : strcmp(plant->cause, "-") == 0 ? "(not asked)" : "other";
}

void ls_detect_print_result(const ls_detect_plant *plant, const ls_detect_result *result, FILE *to)
{
    fprintf(to, "%-6s %-36s %-34s %6.1f s  cause %s\n",
            result->refused    ? "none"
            : !result->caught  ? "MISSED"
            : result->by_named ? "caught"
                               : "caught*",
            plant->name, result->caught ? result->by.case_id : plant->case_id, result->seconds,
            cause_word(plant, result));
    fflush(to);
}

void ls_detect_print_foreign(const ls_detect_summary *summary, FILE *to)
{
    const ls_detect_summary *s = summary;
    if (s->foreign_not_run > 0) {
        fprintf(to, "%d foreign trainers were not run: no Python with PyTorch\n",
                s->foreign_not_run);
    }
    if (s->foreign > 0) {
        fprintf(
            to,
            "%d of %d foreign trainers with a mistake caught, the printed cause right for %d; the "
            "right one passed %d of their %d cases\n",
            s->foreign_caught, s->foreign, s->foreign_causes_right, s->right - s->right_failed,
            s->right);
    }
    if (s->foreign_refused > 0) {
        fprintf(to, "%d foreign trainers were not judged: this PyTorch lacks what they need\n",
                s->foreign_refused);
    }
}

static FILE *open_table(const char *directory, const char *name)
{
    char path[700];
    ls_text_put(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        ls_log_error("cannot write %s: %s", path, strerror(errno));
    }
    return file;
}

static ls_status close_table(FILE *file, const char *name)
{
    bool bad = ferror(file) != 0;
    bad = fclose(file) != 0 || bad;
    if (bad) {
        ls_log_error("cannot write %s: %s", name, strerror(errno));
        return LS_ERR_INFRA;
    }
    return LS_OK;
}

/* A cell of a Markdown table must not hold a bar or break the line. */
static void print_cell(FILE *file, const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        fputc(*c == '|' || *c == '\n' ? '/' : *c, file);
    }
}

static ls_status write_tsv(const char *directory, const ls_detect_list *list,
                           const ls_detect_result *result)
{
    FILE *file = open_table(directory, "detect.tsv");
    if (file == NULL) {
        return LS_ERR_INFRA;
    }
    fprintf(file,
            "# Planted faults, foreign trainers with a mistake, and the case that caught each\n"
            "# fault\tcaught\tnamed case\tcaught by\tverdict\tseconds\tcause right\tother "
            "cases that saw it\tof\tcause\n");
    for (int i = 0; i < list->count; i++) {
        const ls_detect_plant *plant = &list->plant[i];
        const ls_detect_result *r = &result[i];
        if (r->done) {
            fprintf(file, "%s\t%d\t%s\t%s\t%s\t%.1f\t%d\t%d\t%d\t%s\n", plant->name, r->caught,
                    plant->case_id, r->caught ? r->by.case_id : "-", r->caught ? r->by.code : "-",
                    r->seconds, r->cause_right, r->others, r->others_asked,
                    r->by.cause[0] == '\0' ? "-" : r->by.cause);
        }
    }
    return close_table(file, "detect.tsv");
}

static ls_status write_markdown(const char *directory, const ls_detect_list *list,
                                const ls_detect_result *result, const ls_detect_summary *summary)
{
    FILE *file = open_table(directory, "detect.md");
    if (file == NULL) {
        return LS_ERR_INFRA;
    }
    fprintf(file, "# Detection\n\n");
    fprintf(file,
            "%d of %d planted faults caught, %d by the case written for it; the printed cause was "
            "right for %d. %d clean passes over different seeds raised %d alarms.\n\n",
            summary->caught, summary->faults, summary->by_named, summary->causes_right,
            summary->clean, summary->clean_failed);
    ls_detect_print_foreign(summary, file);
    fputs(summary->foreign + summary->foreign_not_run > 0 ? "\n" : "", file);
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
        fprintf(file, " | %s%s%s%s | %.1f | %s: ", r->caught ? "`" : "",
                r->caught    ? r->by.case_id
                : r->refused ? "not judged"
                             : "**missed**",
                r->caught ? "`" : "", r->caught && !r->by_named ? " (not the one named)" : "",
                r->seconds, cause_word(plant, r));
        print_cell(file, r->by.cause[0] == '\0' ? "-" : r->by.cause);
        if (r->others_asked > 0) {
            fprintf(file, " | %d of %d |\n", r->others, r->others_asked);
        } else {
            fprintf(file, " | |\n");
        }
    }
    return close_table(file, "detect.md");
}

ls_status ls_detect_write_tables(const char *directory, const ls_detect_list *list,
                                 const ls_detect_result *result, const ls_detect_summary *summary)
{
    LS_TRY(write_tsv(directory, list, result));
    return write_markdown(directory, list, result, summary);
}
