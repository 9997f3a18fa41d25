/* `lockstep`: what must hold, and whether it does. Each subcommand is a phase list of its own file.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/process/guard.h"
#include "harness/report/report.h"
#include "harness/run/archive.h"
#include "harness/run/manifest.h"
#include "kernels/core/file.h"
#include "kernels/core/usage.h"
#include "kernels/core/text.h"
#include "kernels/core/log.h"
#include "reference/explain/explain.h"
#include "reference/options/options.h"
#include "suite/commands/commands.h"
#include "suite/commands/observe_parts.h"
#include "suite/detect/detect_internal.h"
#include "suite/mutate/mutate_parts.h"
#include "suite/run/command_line.h"
#include "kernels/core/path.h"
#include "kernels/core/list.h"

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

static int report_main(int count, char **argument)
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

static void print_explain_help(void)
{
    puts("Usage: lockstep explain [--world N] [OPTION...]");
    ls_usage_text(stdout, 0,
                  "Describes a training run without running it: the type of every kind of tensor, "
                  "the loss scale, how gradients are reduced, every bucket (members, bytes, "
                  "order), bytes on the wire, memory of one rank, all parameters, and on a CPU "
                  "what computes each product.");
    putchar('\n');
    ls_usage_entry(stdout, "  --world N", "ranks (1)");
    ls_usage_entry(stdout, "  OPTION",
                   "of the run, as `lockstep-train --help` lists them, such as --opt-level=O2 "
                   "-a resnet18 --bucket-cap-mb=25 --optimizer=lamb --accumulate=2");
}

static int explain_main(int count, char **argument)
{
    enum { WORLD_MOST = 1 << 20 };
    int world = 1, kept = 1;
    char **flags = ls_list_make((size_t)count + 2, sizeof *flags);
    flags[0] = "lockstep explain";
    for (int i = 0; i < count; i++) {
        const char *value = NULL;
        if (strncmp(argument[i], "--world=", 8) == 0) {
            value = argument[i] + 8;
        } else if (strcmp(argument[i], "--world") == 0) {
            value = i + 1 < count ? argument[++i] : "";
        } else if (strcmp(argument[i], "--help") == 0 || strcmp(argument[i], "-h") == 0) {
            print_explain_help();
            free(flags);
            return 0;
        } else {
            flags[kept++] = argument[i];
            continue;
        }
        int64_t number;
        if (ls_command_whole("--world", value, 1, WORLD_MOST, &number) != LS_OK) {
            free(flags);
            return LS_ERR_USAGE;
        }
        world = (int)number;
    }
    ls_options options;
    ls_status status = ls_options_parse(kept, flags, &options, NULL, NULL);
    LS_THEN(status, ls_explain_print(&options, world, stdout));
    LS_THEN(status, ls_explain_print_products(&options, world, stdout));
    free(flags);
    return (int)status;
}

static int diff_main(int count, char **argument)
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

static const struct command {
    const char *name;
    int (*main)(int count, char **argument);
    const char *text;
    bool starts_jobs;
} command[] = {
    {"bench", ls_bench_main, "the main job: train a matrix of jobs, judge them, report", true},
    {"conform", ls_conform_main, "run conformance cases", true},
    {"merge", ls_merge_main, "DIR...: the shards of a conformance run as one run"},
    {"detect", ls_detect_main,
     "check that planted faults are caught and that clean runs raise no alarm", true},
    {"mutate", ls_mutate_main,
     "measure the share of single changes of the code that the tests catch", true},
    {"judge", ls_judge_main, "DIR...: judge jobs that another launcher ran"},
    {"observe", ls_observe_main,
     "-- CMD ARG...: run a PyTorch job as it is, and judge what it did"},
    {"subject-check", ls_subject_check_main,
     "-- CMD: say what another trainer lacks of the protocol, and the cases that costs", true},
    {"jobs", ls_bench_jobs_main,
     "print the commands and environments of a bench, to run elsewhere"},
    {"report", report_main, "DIR: write the tables, plots and pages of a run again"},
    {"explain", explain_main, "describe a training run without running it: types, buckets, memory"},
    {"checkpoint", ls_checkpoint_main,
     "FILE: say what it holds and lacks for a resume; --to OUT.pth|OUT.safetensors converts it"},
    {"data", ls_data_main,
     "make DIR: draw a folder of images to train on; time DIR: the loader's images/s"},
    {"diff", diff_main,
     "A B: compare two runs, case by case and job by job; --gate 5% fails where B is slower"},
    {"bounds", ls_bounds_main, "measure e/r of correct steps and planted faults over fresh seeds",
     true},
    {"preflight", ls_preflight_main, "check the GPUs before anything runs on them"},
    {"layers", ls_layers_main, "show where a step's time goes on a GPU, pass by pass"},
    {"versus", ls_versus_main, "compare the speed with PyTorch on this machine", true},
};

enum { COMMANDS = sizeof command / sizeof *command };

static void print_help(void)
{
    puts("Usage: lockstep COMMAND ...\n");
    ls_usage_text(stdout, 0,
                  "Is data-parallel mixed-precision training on this machine correct, and how "
                  "fast?");
    putchar('\n');
    for (int i = 0; i < COMMANDS; i++) {
        LS_TEXT(name, 64, "  %s", command[i].name);
        ls_usage_entry(stdout, name, command[i].text);
    }
    putchar('\n');
    ls_usage_text(stdout, 0, "`lockstep COMMAND --help` lists the options of a command.");
    ls_usage_text(stdout, 0,
                  "Exit codes: 0 good, 1 CORRECT is not yes or SPEED is below the baseline, 2 "
                  "usage, 3 infrastructure, 4 not supported.");
}

static int run_program(int argc, char **argv)
{
    ls_file_survive_limit();
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        print_help();
        return argc < 2 ? LS_ERR_USAGE : 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("lockstep %s\n", LS_VERSION);
        return 0;
    }
    const char *names[COMMANDS];
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(command[i].name, argv[1]) == 0) {
            if (command[i].starts_jobs && ls_guard_begin() != LS_OK) {
                return LS_ERR_INFRA;
            }
            return command[i].main(argc - 2, argv + 2);
        }
        names[i] = command[i].name;
    }
    char hint[120];
    ls_text_suggest(hint, sizeof hint, argv[1], names, COMMANDS, "`lockstep --help` lists all");
    return ls_log_fail(LS_ERR_USAGE, "unknown command '%s'; %s", argv[1], hint);
}

int main(int argc, char **argv)
{
    ls_program_main(run_program, argc, argv);
}
