/* `lockstep judge DIR...`: judges jobs of a foreign launcher. Network, level and reduction rule
 * come from each job's own records. Writes only compare.json into their folders, and into that of
 * an observed job its report. */
#include "commands.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "harness/run/manifest.h"
#include "kernels/core/plain.h"
#include "kernels/core/list.h"
#include "kernels/core/path.h"
#include "kernels/core/log.h"
#include "reference/oracle/nettab.h"
#include "observe_parts.h"
#include "suite/run/command_line.h"
#include "suite/cases/subject/subject.h"
#include "suite/judge/judges.h"

static const char *option_text(const cJSON *options, const char *name, const char *fallback)
{
    const cJSON *found = ls_announced_option(options, name);
    return cJSON_IsString(found) ? found->valuestring : fallback;
}

static double option_number(const cJSON *options, const char *name, double fallback)
{
    const cJSON *found = ls_announced_option(options, name);
    return cJSON_IsNumber(found) ? found->valuedouble : fallback;
}

static void add_flag(ls_spec *spec, const cJSON *options, const char *name)
{
    if (cJSON_IsTrue(ls_announced_option(options, name))) {
        ls_text_add(spec->extra, sizeof spec->extra, " --%s", name);
    }
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
    const cJSON *options = ls_json_get(job->rank[0].start, "options");
    ls_spec spec = ls_matrix_spec(role == LS_ROLE_UNKNOWN ? LS_ROLE_EVIDENCE : role);
    ls_text_put(spec.arch, sizeof spec.arch, "%s", option_text(options, "arch", ""));
    ls_text_put(spec.half, sizeof spec.half, "%s", option_text(options, "half", "fp16"));
    ls_text_put(spec.dialect, sizeof spec.dialect, "%s", option_text(options, "dialect", "apex"));
    const char *level = option_text(options, "opt-level", "O0");
    bool known = level[0] == 'O' && level[1] >= '0' && level[1] <= '3' && level[2] == '\0';
    spec.level = known ? level[1] - '0' : 0;
    spec.world = job->world;
    spec.sync_bn = cJSON_IsTrue(ls_announced_option(options, "sync-bn"));
    spec.accumulate = ls_json_int(options, "accumulate", 1);
    read_scale(ls_announced_option(options, "loss-scale"), &job->rank[0], &spec);
    add_flag(&spec, options, "allreduce-fp32");
    add_flag(&spec, options, "nesterov");
    const char *compress = option_text(options, "compress", "none");
    if (strcmp(compress, "none") != 0) {
        ls_text_add(spec.extra, sizeof spec.extra, " --compress=%s", compress);
    }
    if (cJSON_IsFalse(ls_announced_option(options, "no-sync"))) {
        ls_text_add(spec.extra, sizeof spec.extra, " --no-sync=False");
    }
    if (cJSON_IsBool(ls_announced_option(options, "broadcast-buffers"))) {
        bool sends = cJSON_IsTrue(ls_announced_option(options, "broadcast-buffers"));
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
    int unjudged; /* without a verdict, by a reason that fails nothing */
} counts;

/* A job, and what all its cases share. */
typedef struct judged_job {
    const char *name;
    ls_record record;
    ls_spec spec;
    ls_verdict shared; /* of its ending and its records: where it is not good, of every case */
    char first[LS_CASE_ID_BYTES]; /* case that reported it; "": none did yet */
    bool repeated;                /* the command was printed */
    const ls_manifest *listed;    /* its run's, or NULL */
    const char *shown;            /* its folder, in the archive where it is in one */
} judged_job;

static void name_case(const char *family, const char *name, char id[LS_CASE_ID_BYTES])
{
    ls_text_put(id, LS_CASE_ID_BYTES, "%s.%.80s", family, name);
    ls_plain_replace(id, LS_CASE_ID_BYTES); /* the name is that of a folder */
}

static void count_verdict(const char *id, const ls_verdict *verdict, counts *c)
{
    bool good = ls_verdict_good(verdict->code);
    c->passed += good;
    c->failed += !good;
    c->infrastructure += verdict->code == LS_INFRA;
    c->unsupported += verdict->code == LS_UNSUPPORTED;
    printf("%s %d - %s # %s %s\n", good ? "ok" : "not ok", c->passed + c->failed, id,
           ls_verdict_name(verdict->code), verdict->evidence);
    if (verdict->cause[0] != '\0') {
        printf("cause:  %s\n", verdict->cause);
    }
}

static void print_unjudged(const char *family, const char *name, const char *why, counts *c)
{
    char id[LS_CASE_ID_BYTES];
    name_case(family, name, id);
    c->unjudged++;
    printf("not judged - %s # %s\n", id, why);
}

static void print_repeat(const char *directory)
{
    char text[PATH_MAX + 1200];
    ls_words words = {0, 0, NULL};
    ls_words_add(&words, "%s", directory);
    char *line = ls_command_line("judge", &words);
    ls_plain_copy(text, sizeof text, line);
    printf("repeat: %s\n", text);
    free(line);
    ls_words_free(&words);
}

static void judge_one(const char *family, ls_case_judge *judge, judged_job *job, counts *c)
{
    ls_case row = {0};
    name_case(family, job->name, row.id);
    row.job_count = 1;
    row.job[0] = job->spec;
    ls_verdict verdict = job->shared;
    if (ls_verdict_good(verdict.code)) {
        judge(&row, &job->record, &verdict);
        ls_verdict_close(&verdict);
        ls_verdict_check_lack(&job->record, 1, false, &verdict);
    } else if (job->first[0] == '\0') {
        ls_text_put(job->first, sizeof job->first, "%s", row.id);
    } else {
        ls_text_put(verdict.evidence, sizeof verdict.evidence, "as %s", job->first);
        verdict.cause[0] = '\0';
    }
    count_verdict(row.id, &verdict, c);
    if (!ls_verdict_good(verdict.code) && !job->repeated) {
        print_repeat(job->shown);
        job->repeated = true;
    }
}

/* False, and UNSUPPORTED set, for a network that the oracle does not know: that of the start event,
 * else of the dump. */
static bool is_known(const ls_spec *spec, const ls_record *job, int step, ls_verdict *out)
{
    bool named = spec->arch[0] != '\0';
    ls_dumpfile *file = named ? NULL : ls_dumps_open(job, step, 0, out);
    const char *arch = named ? spec->arch : file != NULL ? ls_dumpfile_text(file, "arch", "") : "";
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

/* One step. The reduced gradient is the mean over every rank's batch: without the other ranks'
 * dumps there is nothing to judge it against. */
static void judge_dumps(const ls_case *row, const ls_record *job, int step, ls_verdict *out)
{
    const cJSON *options = ls_json_get(job->rank[0].start, "options");
    bool all = strcmp(option_text(options, "dump-ranks", "0"), "all") == 0;
    ls_case one = *row;
    for (int k = 1; k < job->world && !all; k++) {
        char path[700];
        ls_dumps_path(job, step, k, path, sizeof path);
        if (access(path, R_OK) != 0) {
            ls_verdict_set(out, LS_UNSUPPORTED,
                           "step %d: only rank 0 dumped, and its gradient is the mean over %d "
                           "ranks' batches: run the job with --dump-ranks all",
                           step, job->world);
        }
    }
    ls_text_put(one.job[0].dump_steps, sizeof one.job[0].dump_steps, "%d", step);
    if (ls_verdict_good(out->code) && is_known(&row->job[0], job, step, out)) {
        ls_judge_gradients(&one, job, out);
    }
    if (ls_verdict_good(out->code)) {
        check_digests(&one, job, out);
    }
}

/* Every step whose dumps are all there; a dump that was announced and is missing leaves the case
 * not shown. */
static void judge_gradients(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_announced_dumps dumps = ls_announced_dumps_of(job);
    for (int i = 0; i < dumps.step_count && ls_verdict_good(out->code); i++) {
        bool missing = false;
        for (int k = 0; k < job->world; k++) {
            missing = missing || ls_announced_dump_missing(job, k, dumps.step[i]);
        }
        if (!missing) {
            judge_dumps(row, job, dumps.step[i], out);
        }
    }
    if (dumps.missing[0] != '\0') {
        ls_verdict_set(out, LS_WEAK, "the job left %d of %d announced dumps: %s is missing",
                       dumps.there, dumps.announced, dumps.missing);
    }
    if (out->code == LS_PASS) {
        ls_text_add(out->evidence, sizeof out->evidence, "; %d dumps of %d steps", dumps.there,
                    dumps.step_count);
    }
    free(dumps.step);
}

/* The case `gradients`, of a job that dumped or announced that it would. */
static void judge_dumped(judged_job *job, counts *c)
{
    const ls_record *record = &job->record;
    const cJSON *options = ls_json_get(record->rank[0].start, "options");
    const char *removed = ls_json_string(record->job, "dumps_removed", NULL);
    ls_announced_dumps dumps = ls_announced_dumps_of(record);
    LS_TEXT(dump, 800, "jobs/%s/dump/", job->name);
    char why[1600];
    int compared, changed = job->listed == NULL
                                ? 0
                                : ls_manifest_compare(job->listed, dump,
                                                      LS_MANIFEST_DUMPS | LS_MANIFEST_PRESENT,
                                                      &compared, why, sizeof why);
    if (dumps.announced > 0 && option_text(options, "example", NULL) != NULL) {
        print_unjudged("gradients", job->name,
                       "only `conform` judges dumps of --example (examples.*)", c);
    } else if (dumps.missing[0] != '\0' && removed != NULL) {
        LS_TEXT(reason, 200, "%d of %d dumps were removed: %s", dumps.announced - dumps.there,
                dumps.announced, removed);
        print_unjudged("gradients", job->name, reason, c);
    } else if (dumps.announced > 0) {
        if (changed > 0) {
            ls_verdict_set(&job->shared, LS_INFRA, "%s", why);
        }
        judge_one("gradients", judge_gradients, job, c);
    }
    free(dumps.step);
}

/* A checkpoint that was announced; where it is, no case of this command looks into it. */
static void look_for_save(judged_job *job, counts *c)
{
    char path[700], id[LS_CASE_ID_BYTES];
    if (job->record.rank[0].end_code == 0 &&
        ls_announced_save_missing(&job->record, path, sizeof path)) {
        ls_verdict verdict = {0};
        name_case("saved", job->name, id);
        ls_verdict_set(&verdict, LS_WEAK,
                       "the checkpoint that the job announced is neither at %s nor in its folder",
                       path);
        count_verdict(id, &verdict, c);
    }
}

/* A job that was observed from outside has rules of its own. */
static ls_status judge_observed(const char *directory, bool verbose, counts *c)
{
    ls_observe_headline headline;
    bool run = ls_observe_run_is_run(directory);
    LS_TRY(run ? ls_manifest_check(directory, LS_MANIFEST_ALL) : LS_OK);
    LS_TRY(run ? ls_observe_run_judge(directory, verbose, stdout, &headline)
               : ls_observe_run_print(directory, verbose, stdout, &headline));
    LS_TRY(run ? ls_manifest_write(directory, LS_MANIFEST_ALL) : LS_OK);
    c->passed += headline.passed;
    int open = headline.inside - headline.passed;
    c->failed += headline.code == LS_OK ? !headline.whole : open > 0 ? open : headline.hints;
    c->infrastructure += headline.unreadable;
    return LS_OK;
}

static ls_status print_restart(void *context, const cJSON *line, int number)
{
    const judged_job *job = context;
    int rank = ls_json_int(line, "first_rank", -1), caught = ls_json_int(line, "signal", 0);
    LS_TEXT(how, 120, "ended with exit code %d", ls_json_int(line, "code", 0));
    if (caught > 0) {
        ls_text_put(how, sizeof how, "was killed by signal %d (%s)", caught, strsignal(caught));
    }
    printf("restart %d - %s # rank %d %s after %.1f s\n", number, job->name, rank, how,
           ls_json_number(line, "seconds", 0));
    return LS_OK;
}

/* How the job's earlier starts ended, as `lockstep-launch --max-restarts` wrote it. */
static ls_status print_restarts(judged_job *job)
{
    LS_TEXT(path, PATH_MAX, "%s/restarts.jsonl", job->record.directory);
    return access(path, F_OK) == 0 ? ls_json_each_line(path, print_restart, job) : LS_OK;
}

static ls_status judge_record(judged_job *job, counts *c)
{
    ls_record *record = &job->record;
    ls_role role = ls_spec_role_of(ls_json_string(ls_record_facts(record), "role", ""));
    if (role == LS_ROLE_NO_COMM || role == LS_ROLE_CURVES || role == LS_ROLE_SDC ||
        role == LS_ROLE_REFERENCE) {
        LS_TEXT(why, 160, "role %s: %s", ls_spec_role_name(role),
                role == LS_ROLE_REFERENCE ? "it takes the branches of a timed job"
                                          : "its ranks do not train together");
        print_unjudged("training", job->name, why, c);
        return LS_OK;
    }
    job->spec = spec_of(record, role);
    LS_TRY(print_restarts(job));
    if (!ls_verdict_of_outcome(record, &job->shared)) {
        (void)ls_protocol_breaks(record, NULL, &job->shared);
    }
    ls_verdict_check_lack(record, 1, false, &job->shared);
    if (record->world > 1) {
        judge_one("ddp", ls_judge_lockstep, job, c);
    }
    judge_one("training", ls_judge_training, job, c);
    judge_one("scaler", ls_judge_scaler, job, c);
    judge_dumped(job, c);
    look_for_save(job, c);
    return LS_OK;
}

/* The list of the run whose job this folder is; false: it is none's. */
static bool find_list(const char *directory, ls_manifest *out)
{
    LS_TEXT(run, 700, "%s", directory);
    char *name = strrchr(run, '/');
    *name = '\0';
    char *jobs = strrchr(run, '/');
    if (jobs == NULL || strcmp(jobs, "/jobs") != 0) {
        return false;
    }
    *jobs = '\0';
    return ls_manifest_is_run(run) && ls_manifest_read(run, out) == LS_OK;
}

/* Whether the records are as the run left them; if not, that is the job's one verdict. */
static bool check_records(const ls_manifest *listed, const char *name, counts *c)
{
    char why[1600] = "", id[LS_CASE_ID_BYTES];
    int compared = 0, wrong = listed->state == LS_MANIFEST_BROKEN;
    LS_TEXT(prefix, 700, "jobs/%s/", name);
    if (wrong > 0) {
        ls_text_put(why, sizeof why, "%s", listed->why);
    } else if (listed->state == LS_MANIFEST_WHOLE) {
        wrong =
            ls_manifest_compare(listed, prefix, LS_MANIFEST_RECORDS, &compared, why, sizeof why);
    }
    if (wrong == 0 && compared == 0 && listed->state == LS_MANIFEST_WHOLE) {
        wrong = 1;
        ls_text_put(why, sizeof why, "its run's list of files has none of %s", prefix);
    }
    if (wrong > 0) {
        ls_verdict verdict = {0};
        name_case("files", name, id);
        ls_verdict_set(&verdict, LS_INFRA, "%s: the job is not judged", why);
        count_verdict(id, &verdict, c);
    }
    return wrong == 0;
}

static ls_status judge_job(const char *directory, const char *shown, bool verbose, counts *c)
{
    ls_manifest listed;
    judged_job job = {.name = strrchr(directory, '/') + 1, .shown = shown};
    bool in_run = find_list(directory, &listed);
    ls_status status = LS_OK;
    if (in_run && !check_records(&listed, job.name, c)) {
        goto free_list;
    }
    if (ls_observe_run_is_run(directory) || ls_observe_run_is_job(directory)) {
        status = judge_observed(directory, verbose, c);
        goto free_list;
    }
    LS_TRY_GOTO(status, ls_record_read(directory, LS_RECORD_STRICT, &job.record), free_list);
    job.listed = in_run ? &listed : NULL;
    if (job.record.world < 1 ||
        (job.record.rank[0].start == NULL && job.record.state == LS_RECORD_UNKNOWN)) {
        status = ls_log_fail(LS_ERR_USAGE, "%s: rank0.jsonl has no start event%s%s", directory,
                             job.record.broken[0] == '\0' ? "" : ": ", job.record.broken);
    } else {
        status = judge_record(&job, c);
    }
    ls_record_free(&job.record);
free_list:
    if (in_run) {
        ls_manifest_free(&listed);
    }
    return status;
}

/* Of a run, the files that are not its jobs'. */
static void check_run(const char *directory, counts *c)
{
    enum {
        READ = LS_MANIFEST_VERDICTS | LS_MANIFEST_SUMMARY | LS_MANIFEST_REPORT | LS_MANIFEST_REST
    };
    ls_manifest listed;
    ls_verdict verdict = {0};
    char why[1600], id[LS_CASE_ID_BYTES];
    int compared;
    const char *name = strrchr(directory, '/') + 1;
    if (!ls_manifest_is_run(directory) || ls_manifest_read(directory, &listed) != LS_OK) {
        return;
    }
    name_case("files", name, id);
    if (listed.state == LS_MANIFEST_BROKEN) {
        ls_verdict_set(&verdict, LS_INFRA, "%s", listed.why);
        count_verdict(id, &verdict, c);
    } else if (listed.state != LS_MANIFEST_WHOLE) {
        print_unjudged("files", name,
                       listed.state == LS_MANIFEST_OLD
                           ? "the run has no list of its files: an earlier version wrote it"
                           : "the run has no list of its files: it is not finished",
                       c);
    } else {
        if (ls_manifest_compare(&listed, "", READ, &compared, why, sizeof why) > 0) {
            ls_verdict_set(&verdict, LS_INFRA, "%s", why);
        }
        ls_verdict_pass(&verdict, compared, "%d files next to the jobs are as the run left them",
                        compared);
        count_verdict(id, &verdict, c);
    }
    ls_manifest_free(&listed);
}

/* The jobs of the command, and which is being judged. */
typedef struct judged {
    ls_words job, shown; /* their folders, to be read and as the user may give them */
    ls_archive *archive; /* [archives] one of each argument */
    int archives;
    bool verbose;
    _Atomic int at;
    atomic_bool done; /* the signal that comes next only ends the thread */
    sigset_t signals;
} judged;

static void close_archives(judged *j)
{
    while (j->archives > 0) {
        ls_archive_close(&j->archive[--j->archives]);
    }
}

static void add_job(judged *j, const char *directory)
{
    const ls_archive *in = &j->archive[j->archives - 1];
    ls_words_add(&j->job, "%s", directory);
    ls_words_add(&j->shown, "%s", ls_archive_shown(in, directory));
}

/* Adds a run's jobs; any other folder is one job. */
static void add_jobs(judged *j, const char *directory)
{
    LS_TEXT(folder, 700, "%s/jobs", directory);
    struct dirent **entry;
    bool observed = ls_observe_run_is_run(directory);
    int count = observed ? -1 : scandir(folder, &entry, NULL, alphasort);
    if (count < 0) {
        add_job(j, directory);
    }
    for (int i = 0; i < count; i++) {
        if (entry[i]->d_name[0] != '.') {
            LS_TEXT(job, 1000, "%s/%s", folder, entry[i]->d_name);
            add_job(j, job);
        }
        free(entry[i]);
    }
    if (count >= 0) {
        free(entry);
    }
}

/* Ends the program on a signal, with the line that judges the rest: the step that is being judged
 * may take minutes. */
static void *wait_for_signal(void *context)
{
    judged *j = context;
    int signal = SIGTERM;
    (void)sigwait(&j->signals, &signal);
    if (j->done) {
        return NULL;
    }
    int done = j->at;
    ls_words rest = {j->shown.count - done, 0, j->shown.word + done};
    char *line = ls_command_go_on("judge", &rest);
    printf("stopped with %d of %d jobs left; to go on: %s\n", rest.count, j->job.count, line);
    fflush(stdout);
    close_archives(j);
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
        status = judge_job(j->job.word[j->at], j->shown.word[j->at], j->verbose, c);
        fflush(stdout);
    }
    j->done = true;
    (void)pthread_kill(thread, SIGTERM);
    (void)pthread_join(thread, NULL);
    return status;
}

int ls_judge_main(int count, char **argument)
{
    bool verbose = false;
    const ls_command_option options[] = {
        {"--verbose", NULL, &verbose, NULL,
         "of an observed job also print what passed and what was not shown"}};
    LS_TRY(ls_command_parse("judge DIR...", options, 1, &count, argument));
    counts c = {.passed = 0};
    judged j = {.archive = ls_list_make((size_t)count, sizeof *j.archive), .verbose = verbose};
    ls_status status = LS_OK;
    for (int i = 0; i < count && status == LS_OK; i++) {
        char path[700];
        status = ls_archive_open(argument[i], &j.archive[i]);
        if (status == LS_OK) {
            j.archives++;
            ls_command_absolute(j.archive[i].folder, path, sizeof path);
            check_run(path, &c);
            add_jobs(&j, path);
        }
    }
    LS_THEN(status, judge_all(&j, &c));
    close_archives(&j);
    free(j.archive);
    ls_words_free(&j.job);
    ls_words_free(&j.shown);
    LS_TRY(status);
    printf("%d passed, %d failed", c.passed, c.failed);
    printf(c.unjudged > 0 ? ", %d not judged\n" : "\n", c.unjudged);
    if (c.failed == 0) {
        return c.passed > 0 ? 0 : LS_ERR_CHECK;
    }
    return c.failed == c.infrastructure ? LS_ERR_INFRA
           : c.failed == c.unsupported  ? LS_ERR_UNSUPPORTED
                                        : LS_ERR_CHECK;
}
