#include "report.h"

#include <limits.h>

#include "kernels/core/file.h"
#include "kernels/core/text.h"
#include "page.h"
#include "files.h"
#include "job.h"
#include "tables/table.h"

ls_status ls_report_tables(const char *run_directory)
{
    ls_report_run run;
    LS_TRY(ls_report_load(run_directory, &run));
    ls_status status = LS_OK;
    LS_TRY_GOTO(status, ls_tables_write(&run), close);
    LS_TRY_GOTO(status, ls_report_summary_write(&run), close);
close:
    ls_report_load_free(&run);
    return status;
}

static ls_status write_page(const ls_report_run *run, const ls_report_page_form *form,
                            const char *name)
{
    LS_TEXT(path, PATH_MAX, "%s/%s", run->directory, name);
    FILE *page = ls_file_create(path);
    LS_TRY_FILE(page);
    ls_report_render(run, form, page);
    return ls_file_close(page, path);
}

ls_status ls_report_junit(const char *run_directory)
{
    ls_report_run run;
    LS_TRY(ls_report_load(run_directory, &run));
    ls_status status = ls_junit_write(&run);
    ls_report_load_free(&run);
    return status;
}

ls_status ls_report_write(const char *run_directory, const char *plots_folder)
{
    ls_report_run run;
    LS_TRY(ls_report_load(run_directory, &run));
    ls_status status = LS_OK;
    LS_TRY_GOTO(status, ls_report_plots_draw(&run, plots_folder), close);
    LS_TRY_GOTO(status, ls_trace_write(&run), close);
    LS_TRY_GOTO(status, ls_junit_write(&run), close);
    LS_TRY_GOTO(status, ls_report_summary_add_headline(&run), close);
    LS_TRY_GOTO(status, write_page(&run, ls_report_markdown_form(), "report.md"), close);
    LS_TRY_GOTO(status, write_page(&run, ls_html_form(), "report.html"), close);
close:
    ls_report_load_free(&run);
    return status;
}
