#include "job.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "kernels/core/list.h"

static const char *path_in(char path[PATH_MAX], const char *folder, const char *name)
{
    ls_text_put(path, PATH_MAX, "%s/%s", folder, name);
    return path;
}

static void read_job(const char *jobs_folder, const char *id, ls_report_job *job)
{
    char folder[PATH_MAX], path[PATH_MAX];
    ls_record *record = ls_list_make(1, sizeof *record);
    (void)ls_record_read(path_in(folder, jobs_folder, id), LS_RECORD_LENIENT, record);
    if (record->broken[0] != '\0') {
        ls_log_error("%s: %s", folder, record->broken);
    }
    *job = (ls_report_job){.record = record, .spec = &record->spec};
    if (access(path_in(path, folder, "compare.json"), R_OK) == 0) {
        (void)ls_json_read_file(path, &job->gradients);
    }
}

/* Rows of the matrix first, then the jobs that judge them, then their baselines. */
static int role_order(ls_role role)
{
    static const ls_role FIRST[] = {LS_ROLE_THROUGHPUT, LS_ROLE_PHASES, LS_ROLE_EVIDENCE,
                                    LS_ROLE_REFERENCE};
    int order = 0;
    while (order < (int)(sizeof FIRST / sizeof *FIRST) && FIRST[order] != role) {
        order++;
    }
    return order;
}

/* A delayed reduction is that of the largest bucket. */
static double bucket_order(const ls_spec *spec)
{
    return spec->bucket_mb == LS_BUCKET_DELAYED ? INFINITY : spec->bucket_mb;
}

static int order_jobs(const void *a, const void *b)
{
    const ls_report_job *one = a, *other = b;
    const ls_spec *x = one->spec, *y = other->spec;
    double bucket_x = bucket_order(x), bucket_y = bucket_order(y);
    int order[] = {role_order(x->role) - role_order(y->role),
                   strcmp(x->arch, y->arch),
                   x->level - y->level,
                   -strcmp(x->half, y->half),
                   x->world - y->world,
                   x->nodes - y->nodes,
                   (bucket_x > bucket_y) - (bucket_x < bucket_y),
                   strcmp(one->record->id, other->record->id)};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        if (order[i] != 0) {
            return order[i];
        }
    }
    return 0;
}

static ls_status read_jobs(ls_report_run *run)
{
    char folder[PATH_MAX];
    DIR *list = ls_path_open_folder(path_in(folder, run->directory, "jobs"));
    if (list == NULL) {
        if (errno == ENOENT) {
            return LS_OK; /* nothing was run yet: the report says so */
        }
        return ls_log_fail(LS_ERR_INFRA, "cannot list %s: %s", folder, strerror(errno));
    }
    for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
        if (entry->d_name[0] == '.') {
            continue;
        }
        ls_report_job *larger = realloc(run->job, (size_t)(run->job_count + 1) * sizeof *larger);
        LS_MEMORY(larger != NULL);
        run->job = larger;
        read_job(folder, entry->d_name, &run->job[run->job_count++]);
    }
    closedir(list);
    if (run->job_count > 0) {
        qsort(run->job, (size_t)run->job_count, sizeof *run->job, order_jobs);
    }
    return LS_OK;
}

static bool manners_decide(const ls_report_run *run)
{
    return ls_json_bool(ls_json_get(ls_json_get(run->record, "headline"), "manners"), "decide",
                        true);
}

static ls_status take_verdict(void *context, const cJSON *line, int number)
{
    (void)number;
    ls_report_run *run = context;
    run->verdict = realloc(run->verdict, (size_t)(run->verdict_count + 1) * sizeof *run->verdict);
    cJSON *json = cJSON_Duplicate(line, true);
    LS_MEMORY(run->verdict != NULL && json != NULL);
    run->verdict[run->verdict_count++] = (ls_report_verdict){
        .code = ls_verdict_code_in(json),
        .in_claim = ls_json_bool(json, "in_claim", false),
        .decides = ls_json_bool(json, "in_claim", false) && ls_json_bool(json, "decides", true) &&
                   (manners_decide(run) || !ls_json_bool(json, "manners", false)),
        .id = ls_json_string(json, "case", "?"),
        .family = ls_json_string(json, "family", "?"),
        .json = json,
    };
    return LS_OK;
}

ls_status ls_report_load_verdicts(const char *directory, ls_report_run *run)
{
    char path[PATH_MAX];
    if (access(path_in(path, directory, "run.json"), R_OK) == 0) {
        LS_TRY(ls_json_read_file(path, &run->record));
    }
    bool there = access(path_in(path, directory, "verdicts.jsonl"), R_OK) == 0;
    return there ? ls_json_each_line(path, take_verdict, run) : LS_OK;
}

ls_status ls_report_load(const char *directory, ls_report_run *out)
{
    ls_report_run run = {0};
    if (realpath(directory, run.directory) == NULL) {
        return ls_log_fail(LS_ERR_USAGE, "no run directory '%s': %s", directory, strerror(errno));
    }
    char path[PATH_MAX];
    if (access(path_in(path, run.directory, "run.json"), R_OK) != 0) {
        return ls_log_fail(LS_ERR_USAGE, "'%s' is no run: it holds no run.json", directory);
    }
    ls_status status = LS_OK;
    LS_TRY_GOTO(status, ls_report_load_verdicts(run.directory, &run), free_run);
    LS_TRY_GOTO(status, read_jobs(&run), free_run);
    ls_report_speed_compute(&run);
    *out = run;
    return LS_OK;
free_run:
    ls_report_load_free(&run);
    return status;
}

void ls_report_load_free(ls_report_run *run)
{
    for (int j = 0; j < run->job_count; j++) {
        ls_report_job *job = &run->job[j];
        ls_record_free(job->record);
        free(job->record);
        cJSON_Delete(job->gradients);
        ls_report_speed_free(&job->speed);
    }
    free(run->job);
    cJSON_Delete(run->record);
    for (int v = 0; v < run->verdict_count; v++) {
        cJSON_Delete(run->verdict[v].json);
    }
    free(run->verdict);
    memset(run, 0, sizeof *run);
}
