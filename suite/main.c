/* `lockstep`: what must hold, and whether it does. Each subcommand is a phase list of its own file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/usage.h"
#include "reference/explain/explain.h"
#include "reference/options/options.h"
#include "suite/commands/commands.h"
#include "suite/detect/detect_internal.h"
#include "suite/mutate/mutate_parts.h"
#include "suite/run/command_line.h"
#include "kernels/core/list.h"

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

static const ls_command_row command[] = {
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
    {"report", ls_report_main, "DIR: write the tables, plots and pages of a run again"},
    {"explain", explain_main, "describe a training run without running it: types, buckets, memory"},
    {"checkpoint", ls_checkpoint_main,
     "FILE: say what it holds and lacks for a resume; --to OUT.pth|OUT.safetensors converts it"},
    {"data", ls_data_main,
     "make DIR: draw a folder of images to train on; time DIR: the loader's images/s"},
    {"diff", ls_report_diff_main,
     "A B: compare two runs, case by case and job by job; --gate 5% fails where B is slower"},
    {"bounds", ls_bounds_main, "measure e/r of correct steps and planted faults over fresh seeds",
     true},
    {"plan", ls_plan_main,
     "DIR: predict step time, exposed communication and scaling on more GPUs from a run"},
    {"pairs", ls_pairs_main, "time every pair of nodes, and name the slow node or link", true},
    {"preflight", ls_preflight_main, "check the GPUs before anything runs on them"},
    {"layers", ls_layers_main, "show where a step's time goes on a GPU, pass by pass"},
    {"ab", ls_ab_main, "compare two stacks, in turn: speed, and bits", true},
    {"versus", ls_versus_main, "compare the speed with PyTorch on this machine", true},
};

static int run_program(int argc, char **argv)
{
    return ls_command_run(command, sizeof command / sizeof *command, "", argc, argv);
}

int main(int argc, char **argv)
{
    ls_program_main(run_program, argc, argv);
}
