/* The subcommands of `lockstep`. Each takes the arguments after its name and returns the exit code:
 * 0 good, 1 a case did not pass, 2 usage, 3 infrastructure, 4 not supported. */
#ifndef LS_COMMANDS_H
#define LS_COMMANDS_H

#include "harness/hosts/hosts.h"
#include "harness/machine/findings.h"

int ls_bench_main(int count, char **argument);
int ls_bench_jobs_main(int count, char **argument);
int ls_conform_main(int count, char **argument);
int ls_merge_main(int count, char **argument);
int ls_judge_main(int count, char **argument);
/* Runs a training job of another framework as it is, and judges what it did; 1 where a rule failed,
 * else the job's own code. */
int ls_observe_main(int count, char **argument);
int ls_bounds_main(int count, char **argument);
/* Where the time of a step goes on a GPU, pass by pass, compared with the bytes and operations that
 * each needs; or, without the device, what the step is predicted to take there. */
int ls_layers_main(int count, char **argument);
/* What a file of tensors holds, what a run that resumes from it lacks, and the same in another
 * format. */
int ls_checkpoint_main(int count, char **argument);
/* Draws a folder of pictures; times the loader on one. */
int ls_data_main(int count, char **argument);
/* What a trainer lacks of the subject protocol, and which cases that costs: 0 nothing, 1 something,
 * 3 it does not start. */
int ls_subject_check_main(int count, char **argument);
/* A finished run: its tables, plots and pages again; two runs, compared. */
int ls_report_main(int count, char **argument);
int ls_report_diff_main(int count, char **argument);
/* Two stacks in turn: which is faster, and whether they have the same bits. 0 compared, 3 a rank or
 * block failed. */
int ls_ab_main(int count, char **argument);
int ls_versus_main(int count, char **argument);
/* Times every pair of nodes: 0 even, 1 a slow node or link, 3 a rank failed. */
int ls_pairs_main(int count, char **argument);
/* The step time that a run's phases and a link give on more GPUs; runs nothing. */
int ls_plan_main(int count, char **argument);
/* Checks the GPUs without running jobs: 0 ready, 1 not ready, 3 no GPU. */
int ls_preflight_main(int count, char **argument);
/* The same on hosts that have been probed, all at once: prints what each says, adds their findings
 * with the host in the address, and returns the highest code. <folder>/preflight has the logs. */
int ls_preflight_nodes(ls_hosts *hosts, const char *folder, bool share, ls_findings *findings);

#endif
