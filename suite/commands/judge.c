/* `lockstep judge DIR...`: judges jobs of a foreign launcher. Network, level and reduction rule
 * come from each job's own records. Writes only compare.json into their folders, and into that of
 * an observed job its report. */
#include "commands.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/plain.h"
#include "kernels/core/list.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "kernels/core/log.h"
#include "reference/oracle/nettab.h"
#include "observe_parts.h"
#include "suite/run/command_line.h"
#include "suite/cases/subject/subject.h"
#include "suite/judge/judges.h"

/* The effective options of the start event, by long name in either spelling. */
static const cJSON *option(const cJSON *options, const char *name)
{
    LS_TEXT(other, 64, "%s", name);
    for (char *c = other; *c != '\0'; c++) {
        *c = *c == '-' ? '_' : *c;
    }
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(options, name);
    return found != NULL ? found : cJSON_GetObjectItemCaseSensitive(options, other);
}

static const char *option_text(const cJSON *options, const char *name, const char *fallback)
{
    const cJSON *found = option(options, name);
    return cJSON_IsString(found) ? found->valuestring : fallback;
}

static double option_number(const cJSON *options, const char *name, double fallback)
{
    const cJSON *found = option(options, name);
    return cJSON_IsNumber(found) ? found->valuedouble : fallback;
}

static void add_flag(ls_spec *spec, const cJSON *options, const char *name)
{
    if (cJSON_IsTrue(option(options, name))) {
        ls_text_add(spec->extra, sizeof spec->extra, " --%s", name);
    }
}

/* A dump of one rank. */
static bool read_name(const char *name, int *step, int *rank)
{
    int end = 0;
    return sscanf(name, "step%9d.rank%9d.safetensors%n", step, rank, &end) == 2 && end > 0 &&
           name[end] == '\0';
}

static int in_order(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* The steps that any rank has dumped, in order; the caller frees them. */
static int *list_dumps(const char *directory, int *count)
{
    LS_TEXT(folder, 700, "%s/dump", directory);
    int *steps = NULL, room = 0, all = 0;
    DIR *entries = ls_path_open_folder(folder);
    for (struct dirent *e; entries != NULL && (e = readdir(entries)) != NULL;) {
        int step, rank;
        if (read_name(e->d_name, &step, &rank)) {
            steps = ls_list_grow(steps, all, &room, sizeof *steps);
            steps[all++] = step;
        }
    }
    if (entries != NULL) {
        closedir(entries);
    }
    *count = 0;
    if (steps != NULL) {
        qsort(steps, (size_t)all, sizeof *steps, in_order);
    }
    for (int i = 0; i < all; i++) {
        if (*count == 0 || steps[*count - 1] != steps[i]) {
            steps[(*count)++] = steps[i];
        }
    }
    return steps;
}

/* "dynamic" or a number; a run that does not say has a static scale if that is always 1. */
static void read_scale(const cJSON *option, const ls_record_rank *rank, ls_spec *spec)
{
    bool moves = false;
    for (int i = 0; i < rank->step_count; i++) {
        moves = moves || rank->step[i].skipped || rank->step[i].loss_scale > 1 ||
                rank->step[i].loss_scale < 1;
    }
    const char *text = cJSON_IsString(option) ? option->valuestring : moves ? "dynamic" : "";
    ls_text_put(spec->loss_scale, sizeof spec->loss_scale, "%s", text);
    if (cJSON_IsNumber(option)) {
        ls_text_put(spec->loss_scale, sizeof spec->loss_scale, "%.9g", option->valuedouble);
    }
}

static ls_spec spec_of(const ls_record *job, ls_role role)
{
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(job->rank[0].start, "options");
    ls_spec spec = ls_matrix_spec(role == LS_ROLE_UNKNOWN ? LS_ROLE_EVIDENCE : role);
    ls_text_put(spec.arch, sizeof spec.arch, "%s", option_text(options, "arch", ""));
    ls_text_put(spec.half, sizeof spec.half, "%s", option_text(options, "half", "fp16"));
    ls_text_put(spec.dialect, sizeof spec.dialect, "%s", option_text(options, "dialect", "apex"));
    const char *level = option_text(options, "opt-level", "O0");
    bool known = level[0] == 'O' && level[1] >= '0' && level[1] <= '3' && level[2] == '\0';
    spec.level = known ? level[1] - '0' : 0;
    spec.world = job->world;
    spec.sync_bn = cJSON_IsTrue(option(options, "sync-bn"));
    spec.accumulate = ls_json_int(options, "accumulate", 1);
    read_scale(option(options, "loss-scale"), &job->rank[0], &spec);
    add_flag(&spec, options, "allreduce-fp32");
    add_flag(&spec, options, "nesterov");
    const char *compress = option_text(options, "compress", "none");
    if (strcmp(compress, "none") != 0) {
        ls_text_add(spec.extra, sizeof spec.extra, " --compress=%s", compress);
    }
    if (cJSON_IsFalse(option(options, "no-sync"))) {
        ls_text_add(spec.extra, sizeof spec.extra, " --no-sync=False");
    }
    if (cJSON_IsBool(option(options, "broadcast-buffers"))) {
        bool sends = cJSON_IsTrue(option(options, "broadcast-buffers"));
        ls_text_add(spec.extra, sizeof spec.extra, " --broadcast-buffers=%s",
                    sends ? "True" : "False");
    }
    const char *join = option_text(options, "join", "none");
    if (strcmp(join, "none") != 0) {
        ls_text_add(spec.extra, sizeof spec.extra, " --join=%s", join);
    }
    double predivide = option_number(options, "predivide", 1);
    if (predivide != 1) {
        ls_text_add(spec.extra, sizeof spec.extra, " --predivide=%g", predivide);
    }
    return spec;
}

typedef struct counts {
    int passed, failed, infrastructure, unsupported;
} counts;

static void judge_one(const char *family, ls_case_judge *judge, const char *name,
                      const ls_spec *spec, const ls_record *job, counts *c)
{
    ls_case row = {0};
    ls_text_put(row.id, sizeof row.id, "%s.%.80s", family, name);
    ls_plain_replace(row.id, sizeof row.id); /* the name is that of a folder */
    row.job_count = 1;
    row.job[0] = *spec;
    ls_verdict verdict = {0};
    if (!ls_verdict_of_outcome(job, &verdict) && !ls_protocol_breaks(job, NULL, &verdict)) {
        judge(&row, job, &verdict);
    }
    ls_verdict_close(&verdict);
    ls_verdict_check_lack(job, 1, false, &verdict);
    bool good = ls_verdict_good(verdict.code);
    c->passed += good;
    c->failed += !good;
    c->infrastructure += verdict.code == LS_INFRA;
    c->unsupported += verdict.code == LS_UNSUPPORTED;
    printf("%s %d - %s # %s %s\n", good ? "ok" : "not ok", c->passed + c->failed, row.id,
           ls_verdict_name(verdict.code), verdict.evidence);
    if (verdict.cause[0] != '\0') {
        printf("cause:  %s\n", verdict.cause);
    }
    if (!good) {
        char text[PATH_MAX + 1200];
        ls_words words = {0, 0, NULL};
        ls_words_add(&words, "%s", job->directory);
        char *line = ls_command_line("judge", &words);
        ls_plain_copy(text, sizeof text, line);
        printf("repeat: %s\n", text);
        free(line);
        ls_words_free(&words);
    }
}

/* False, and UNSUPPORTED set, for a network that the oracle does not know: that of the start event,
 * else of the dump. */
static bool is_known(const ls_spec *spec, const ls_record *job, int step, ls_verdict *out)
{
    ls_dumpfile *file = ls_dumps_open(job, step, 0, out);
    const char *arch = spec->arch[0] != '\0' ? spec->arch
                       : file != NULL        ? ls_dumpfile_text(file, "arch", "")
                                             : "";
    bool known = ls_nettab_knows(arch);
    if (!known && arch[0] == '\0') {
        ls_verdict_set(out, LS_UNSUPPORTED,
                       "neither the start event's options nor the dump name the network (arch)");
    } else if (!known) {
        ls_verdict_set(out, LS_UNSUPPORTED,
                       "the oracle does not know the network '%s', only " LS_NETTAB_NAMES, arch);
    }
    ls_dumpfile_close(file);
    return known;
}

/* The digests of the step's events are those of its dumps, where there are any. */
static void check_digests(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_verdict seen = {.code = LS_PASS};
    ls_subject_digest(row, job, &seen);
    if (seen.code == LS_FAIL) {
        ls_verdict_fail(out, "%s", seen.evidence);
    }
}

/* Every dumped step. The reduced gradient is the mean over every rank's batch: without the other
 * ranks' dumps there is nothing to judge it against. The judge reports a rank whose dump is
 * missing. */
static void judge_gradients(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(job->rank[0].start, "options");
    bool all = strcmp(option_text(options, "dump-ranks", "0"), "all") == 0;
    int count;
    int *steps = list_dumps(job->directory, &count);
    ls_case one = *row;
    for (int i = 0; i < count && ls_verdict_good(out->code); i++) {
        for (int k = 1; k < job->world && !all; k++) {
            LS_TEXT(path, 700, "%s/dump/step%06d.rank%d.safetensors", job->directory, steps[i], k);
            if (access(path, R_OK) != 0) {
                ls_verdict_set(
                    out, LS_UNSUPPORTED,
                    "step %d: only rank 0 dumped, and its gradient is the mean over %d ranks' "
                    "batches: run the job with --dump-ranks all",
                    steps[i], job->world);
            }
        }
        ls_text_put(one.job[0].dump_steps, sizeof one.job[0].dump_steps, "%d", steps[i]);
        if (ls_verdict_good(out->code) && is_known(&row->job[0], job, steps[i], out)) {
            ls_judge_gradients(&one, job, out);
            check_digests(&one, job, out);
        }
    }
    free(steps);
}

/* A job that was observed from outside has rules of its own. */
static ls_status judge_observed(const char *directory, counts *c)
{
    ls_observe_headline headline;
    LS_TRY(ls_observe_run_is_run(directory) ? ls_observe_run_judge(directory, stdout, &headline)
                                            : ls_observe_run_print(directory, stdout, &headline));
    c->passed += headline.passed;
    c->failed += headline.code == LS_OK ? !headline.whole : headline.inside - headline.passed;
    c->infrastructure += headline.unreadable;
    return LS_OK;
}

static ls_status judge_job(const char *directory, counts *c)
{
    if (ls_observe_run_is_run(directory) || ls_observe_run_is_job(directory)) {
        return judge_observed(directory, c);
    }
    ls_record job;
    LS_TRY(ls_record_read(directory, LS_RECORD_STRICT, &job));
    if (job.world < 1 || (job.rank[0].start == NULL && job.state == LS_RECORD_UNKNOWN)) {
        ls_log_error("%s: rank0.jsonl has no start event%s%s", directory,
                     job.broken[0] == '\0' ? "" : ": ", job.broken);
        ls_record_free(&job);
        return LS_ERR_USAGE;
    }
    ls_role role = ls_spec_role_of(ls_json_string(ls_record_facts(&job), "role", ""));
    if (role == LS_ROLE_NO_COMM || role == LS_ROLE_CURVES || role == LS_ROLE_SDC ||
        role == LS_ROLE_REFERENCE) {
        ls_record_free(&job); /* its ranks do not train together, or take a timed job's branches */
        return LS_OK;
    }
    ls_spec spec = spec_of(&job, role);
    const char *slash = strrchr(directory, '/');
    const char *name = slash == NULL ? directory : slash + 1;
    if (job.world > 1) {
        judge_one("ddp", ls_judge_lockstep, name, &spec, &job, c);
    }
    judge_one("training", ls_judge_training, name, &spec, &job, c);
    judge_one("scaler", ls_judge_scaler, name, &spec, &job, c);
    int dumps;
    free(list_dumps(job.directory, &dumps));
    if (dumps > 0) {
        judge_one("gradients", judge_gradients, name, &spec, &job, c);
    }
    ls_record_free(&job);
    return LS_OK;
}

/* Adds a run's jobs; any other folder is one job. */
static void add_jobs(const char *directory, ls_words *jobs)
{
    LS_TEXT(folder, 700, "%s/jobs", directory);
    struct dirent **entry;
    bool observed = ls_observe_run_is_run(directory);
    int count = observed ? -1 : scandir(folder, &entry, NULL, alphasort);
    if (count < 0) {
        ls_words_add(jobs, "%s", directory);
    }
    for (int i = 0; i < count; i++) {
        if (entry[i]->d_name[0] != '.') {
            ls_words_add(jobs, "%s/%s", folder, entry[i]->d_name);
        }
        free(entry[i]);
    }
    if (count >= 0) {
        free(entry);
    }
}

/* The jobs of the command, and which is being judged. */
typedef struct judged {
    ls_words job;
    _Atomic int at;
    atomic_bool done; /* the signal that comes next only ends the thread */
    sigset_t signals;
} judged;

/* Ends the program on a signal, with the line that judges the rest: the step that is being judged
 * may take minutes. */
static void *wait_for_signal(void *context)
{
    const judged *j = context;
    int signal = SIGTERM;
    (void)sigwait(&j->signals, &signal);
    if (j->done) {
        return NULL;
    }
    int done = j->at;
    ls_words rest = {j->job.count - done, 0, j->job.word + done};
    char *line = ls_command_go_on("judge", &rest);
    printf("stopped with %d of %d jobs left; to go on: %s\n", rest.count, j->job.count, line);
    fflush(stdout);
    _exit(128 + signal);
}

static ls_status judge_all(judged *j, counts *c)
{
    pthread_t thread;
    sigemptyset(&j->signals);
    sigaddset(&j->signals, SIGINT);
    sigaddset(&j->signals, SIGTERM);
    sigaddset(&j->signals, SIGHUP);
    /* in all threads that are made from now on; one that is ignored does not arrive */
    (void)pthread_sigmask(SIG_BLOCK, &j->signals, NULL);
    int error = pthread_create(&thread, NULL, wait_for_signal, j);
    if (error != 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot start a thread: %s", strerror(error));
    }
    ls_status status = LS_OK;
    for (; j->at < j->job.count && status == LS_OK; j->at++) {
        status = judge_job(j->job.word[j->at], c);
        fflush(stdout);
    }
    j->done = true;
    (void)pthread_kill(thread, SIGTERM);
    (void)pthread_join(thread, NULL);
    return status;
}

int ls_judge_main(int count, char **argument)
{
    LS_TRY(ls_command_parse("judge DIR...", NULL, 0, &count, argument));
    counts c = {0, 0, 0, 0};
    judged j = {.at = 0};
    for (int i = 0; i < count; i++) {
        char path[600];
        ls_command_absolute(argument[i], path, sizeof path);
        add_jobs(path, &j.job);
    }
    ls_status status = judge_all(&j, &c);
    ls_words_free(&j.job);
    LS_TRY(status);
    printf("%d passed, %d failed\n", c.passed, c.failed);
    if (c.failed == 0) {
        return c.passed > 0 ? 0 : LS_ERR_CHECK;
    }
    return c.failed == c.infrastructure ? LS_ERR_INFRA
           : c.failed == c.unsupported  ? LS_ERR_UNSUPPORTED
                                        : LS_ERR_CHECK;
}
