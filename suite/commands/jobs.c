/* `lockstep jobs NAME=value...`: commands and environments of a bench, to run elsewhere. */
#include "commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/job.h"
#include "bench_internal.h"

static void print_quoted(const char *word)
{
    char *quoted = ls_words_quoted(word);
    printf(" %s", quoted);
    free(quoted);
}

static bool of_protocol(const char *entry)
{
    static const char *const names[] = {"RANK=",        "WORLD_SIZE=",  "LOCAL_RANK=",
                                        "GROUP_RANK=",  "MASTER_ADDR=", "LOCAL_WORLD_SIZE=",
                                        "MASTER_PORT=", "LS_RUN_DIR=",  "OMP_NUM_THREADS="};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strncmp(entry, names[i], strlen(names[i])) == 0) {
            return true;
        }
    }
    return false;
}

static ls_status print_job(const ls_run *run, const ls_spec *spec)
{
    enum { PORT = 29500 }; /* torchrun's default MASTER_PORT */
    ls_job job;
    LS_TRY(ls_matrix_job(spec, &run->site, &job));
    printf("# %s: %s\n", job.id, job.label);
    for (int rank = 0; rank < job.world; rank++) {
        ls_words environment = ls_job_environment(&job, rank, PORT, "");
        printf("env");
        for (int i = 0; i < environment.count; i++) {
            if (of_protocol(environment.word[i])) {
                print_quoted(environment.word[i]);
            }
        }
        ls_words_free(&environment);
        for (int i = 0; i < job.command.count; i++) {
            print_quoted(job.command.word[i]);
        }
        printf("\n");
    }
    ls_job_free(&job);
    return LS_OK;
}

int ls_jobs_main(int count, char **argument)
{
    if (ls_bench_plan_helped("jobs [NAME=value...]", count, argument)) {
        return 0;
    }
    ls_bench b;
    ls_status status = ls_bench_plan_make(&b, count, argument);
    for (int i = 0; status == LS_OK && i < b.run.jobs.count; i++) {
        status = print_job(&b.run, &b.run.jobs.spec[i]);
    }
    ls_bench_plan_free(&b);
    return (int)status;
}
