/* `lockstep bench NAME=value...`: the main job. */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/hosts/supervise.h"
#include "reference/data/make.h"
#include "bench_internal.h"

static ls_status make_data(const ls_bench *b)
{
    const char *data = b->drawn;
    if (data[0] == '\0') {
        return LS_OK;
    }
    char folder[1024];
    if (strncmp(data, "{run}", 5) == 0) {
        ls_text_put(folder, sizeof folder, "%s%s", b->run.directory, data + 5);
    } else {
        ls_text_put(folder, sizeof folder, "%s", data);
    }
    int images = atoi(strrchr(folder, '-') + 1);
    return ls_make_folder(folder, images / LS_MAKE_CLASSES, b->matrix.image_size, 1);
}

/* What an interrupted run measured before its first job stays; it went with the jobs of that time.
 */
static ls_status take_over_measured(ls_bench *b)
{
    b->run.measured = cJSON_CreateObject();
    LS_MEMORY(b->run.measured != NULL);
    LS_TEXT(path, 700, "%s/run.json", b->run.directory);
    cJSON *before = NULL;
    if (access(path, R_OK) == 0) {
        LS_TRY(ls_json_read_file(path, &before));
    }
    const char *rated = ls_bench_plan_rated(b);
    if (rated != NULL) {
        cJSON_AddStringToObject(b->run.measured, "rated", rated);
    }
    static const char *const names[] = {"roofline", "rates", "layers"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        cJSON *list = cJSON_DetachItemFromObjectCaseSensitive(before, names[i]);
        cJSON_AddItemToObject(b->run.measured, names[i],
                              cJSON_IsArray(list) ? list : cJSON_CreateArray());
    }
    cJSON_Delete(before);
    return LS_OK;
}

static ls_status measure(ls_bench *b, const char *when)
{
    if (b->nodes.hosts.count > 0) {
        return LS_OK; /* other machines are not measured from here */
    }
    ls_progress_note("measuring what the machine does at best");
    const ls_roofline_lists lists = {ls_json_get(b->run.measured, "roofline"),
                                     ls_json_get(b->run.measured, "rates"),
                                     ls_json_get(b->run.measured, "layers")};
    if (strcmp(b->run.site.device, "cuda") == 0) {
        int gpus = b->run.site.devices;
        ls_roofline_gpu_measure(&b->matrix, when,
                                gpus == 0                ? 1
                                : gpus < b->matrix.ranks ? gpus
                                                         : b->matrix.ranks,
                                ls_machine_emulated(), &lists, &b->run.findings);
        ls_progress_clear();
        return LS_OK;
    }
    ls_status status = ls_roofline_measure(&b->matrix, when, &lists);
    ls_progress_clear();
    return status;
}

int ls_bench_main(int count, char **argument)
{
    if (ls_bench_plan_helped("bench [NAME=value...] [--budget TIME] [--dry-run]", count,
                             argument)) {
        return 0;
    }
    ls_bench b;
    ls_status status = ls_bench_plan_make(&b, count, argument);
    if (status == LS_OK && b.run.site.start_s == 0) {
        status = ls_start_measure(&b.run.site);
    }
    LS_THEN(status, ls_runner_look_back(&b.run));
    if (status != LS_OK) {
        ls_bench_plan_free(&b);
        return (int)status;
    }
    ls_runner_print_plan(&b.run, stdout);
    if (b.dry_run) {
        ls_bench_plan_free(&b);
        return 0;
    }
    printf("\n");
    fflush(stdout);
    if (b.nodes.hosts.count == 0) {
        status = ls_supervise_check_loopback();
    }
    LS_THEN(status, ls_proc_catch_signals());
    LS_THEN(status, ls_bench_nodes_connect(&b.nodes, &b.given, &b.run));
    int code = (int)status;
    if (code == LS_OK) {
        if (b.nodes.hosts.count == 0) {
            ls_gpus_begin(&b.run, b.matrix.ranks);
        } else if (b.matrix.device) { /* those of other machines are looked at there */
            (void)ls_preflight_nodes(&b.nodes.hosts, b.run.directory,
                                     ls_variables_integer(&b.given, "OVERSUBSCRIBE", 0) != 0,
                                     &b.run.findings);
        }
        bool ran = take_over_measured(&b) == LS_OK && measure(&b, "before") == LS_OK &&
                   ls_runner_open(&b.run) == LS_OK && make_data(&b) == LS_OK &&
                   ls_runner_run(&b.run) == LS_OK &&
                   (b.run.stopped || measure(&b, "after") == LS_OK);
        code = ran ? ls_runner_finish(&b.run) : LS_ERR_INFRA;
    }
    ls_bench_plan_free(&b);
    return code;
}

/* ---- `lockstep jobs NAME=value...`: commands and environments of a bench, to run elsewhere --- */

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

int ls_bench_jobs_main(int count, char **argument)
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
