/* `lockstep` of the Python package: the commands that judge PyTorch jobs and read their runs. */
#include "kernels/core/usage.h"
#include "suite/commands/commands.h"
#include "suite/run/command_line.h"

static const ls_command_row command[] = {
    {"observe", ls_observe_main, "-- CMD ARG...: run a PyTorch job as it is, and judge what it did",
     false},
    {"judge", ls_judge_main, "DIR...: judge jobs that another launcher ran", false},
    {"report", ls_report_main, "DIR: write the tables, plots and pages of a run again", false},
    {"diff", ls_report_diff_main,
     "A B: compare two runs, case by case and job by job; --gate 5% fails where B is slower",
     false},
};

static int run_program(int argc, char **argv)
{
    return ls_command_run(command, sizeof command / sizeof *command,
                          "This is the package for PyTorch jobs. The other commands (bench, "
                          "conform, ...) are in a build of Lockstep's sources.",
                          argc, argv);
}

int main(int argc, char **argv)
{
    ls_program_main(run_program, argc, argv);
}
