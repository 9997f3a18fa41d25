#include "page.h"

#include <stdarg.h>
#include <string.h>

#include "kernels/core/text.h"

void ls_page_table_open(ls_page_table *table, const ls_report_page_form *form, FILE *to,
                        const char *titles)
{
    *table = (ls_page_table){.form = form, .to = to};
    ls_text_put(table->titles, sizeof table->titles, "%s", titles);
    char *rest = NULL;
    for (char *title = strtok_r(table->titles, "|", &rest); title != NULL;
         title = strtok_r(NULL, "|", &rest)) {
        char *last = title + strlen(title) - 1;
        LS_ASSERT(table->columns < LS_PAGE_COLUMNS_MAX);
        table->column[table->columns++] = (ls_report_column){title, *last == '>'};
        *last = *last == '>' ? '\0' : *last;
    }
    form->table_open(to, table->column, table->columns);
}

void ls_page_cell(ls_page_table *table, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(table->cell[table->cells++], sizeof *table->cell, format, arguments);
    va_end(arguments);
    if (table->cells == table->columns) {
        const char *cells[LS_PAGE_COLUMNS_MAX];
        for (int i = 0; i < table->columns; i++) {
            cells[i] = table->cell[i];
        }
        table->form->table_row(table->to, table->column, cells, table->columns);
        table->cells = 0;
    }
}

void ls_page_number(ls_page_table *table, double value)
{
    char text[32];
    ls_page_cell(table, "%s", ls_report_lines_number(value, text));
}

void ls_page_table_close(ls_page_table *table)
{
    LS_ASSERT(table->cells == 0);
    fputs(table->form->table_close, table->to);
}
