/* `lockstep report` and `lockstep diff`: what a finished run says, and what two runs say of each
 * other. */
#include "commands.h"

#include <math.h>
#include <stdlib.h>

#include "harness/report/report.h"
#include "harness/run/manifest.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "observe_parts.h"
#include "suite/run/command_line.h"

static ls_status write_report(const char *run)
{
    enum { WRITTEN = LS_MANIFEST_SUMMARY | LS_MANIFEST_REPORT };
    char plots[1024];
    LS_TRY(ls_manifest_check(run, LS_MANIFEST_VERDICTS | LS_MANIFEST_RECORDS));
    if (ls_observe_run_is_run(run)) {
        LS_TRY(ls_manifest_check(run, LS_MANIFEST_SUMMARY));
        LS_TRY(ls_observe_report_write(run));
        LS_TRY(ls_manifest_write(run, WRITTEN));
        return ls_observe_report_terminal(run, stdout);
    }
    if (!ls_path_find("plots", plots, sizeof plots)) {
        plots[0] = '\0';
    }
    LS_TRY(ls_report_tables(run));
    LS_TRY(ls_report_write(run, plots));
    LS_TRY(ls_manifest_write(run, WRITTEN));
    return ls_report_terminal(run, stdout);
}

int ls_report_main(int count, char **argument)
{
    ls_archive archive;
    LS_TRY(ls_command_parse("report DIR", NULL, 0, &count, argument));
    LS_TRY(ls_archive_open(argument[0], &archive));
    ls_status status = write_report(archive.folder);
    if (status == LS_OK && archive.scratch[0] != '\0') {
        ls_log_note("%s: what is written for an archive is printed alone; unpack it to keep pages",
                    argument[0]);
    }
    ls_archive_close(&archive);
    return (int)status;
}

int ls_report_diff_main(int count, char **argument)
{
    const char *gate = NULL;
    const ls_command_option options[] = {
        {"--gate", &gate, NULL, NULL, "fail where a job is slower by more, such as 5%"},
    };
    LS_TRY(ls_command_parse("diff A B", options, 1, &count, argument));
    double percent = NAN;
    char *end = NULL;
    if (gate != NULL) {
        percent = strtod(gate, &end);
        end += *end == '%';
        if (gate[0] < '0' || gate[0] > '9' || *end != '\0' || !(percent < 100)) {
            return ls_log_fail(LS_ERR_USAGE,
                               "--gate '%s': allowed: from 0 to less than 100, in %%, such as 5%%",
                               gate);
        }
    }
    return (int)ls_report_diff(argument[0], argument[1], percent / 100, stdout);
}
