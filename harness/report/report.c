#include "report.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "html.h"
#include "junit.h"
#include "render.h"
#include "load.h"
#include "markdown.h"
#include "plots.h"
#include "summary.h"
#include "tables/tables.h"
#include "trace.h"

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
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", run->directory, name);
    LS_ASSERT(length < (int)sizeof path);
    FILE *page = fopen(path, "w");
    if (page == NULL) {
        ls_log_error("cannot create %s: %s", path, strerror(errno));
        return LS_ERR_INFRA;
    }
    ls_status status = ls_report_render(run, form, page);
    bool failed = ferror(page) != 0;
    if ((fclose(page) != 0 || failed) && status == LS_OK) {
        ls_log_error("cannot write %s: %s", path, strerror(errno));
        status = LS_ERR_INFRA;
    }
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
