/* `lockstep observe -- CMD ARG...`: runs a training job as it is, and judges what it did. */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "harness/hosts/awaited.h"
#include "harness/process/proc.h"
#include "harness/run/manifest.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/usage.h"
#include "observe_parts.h"
#include "reference/options/options.h"
#include "suite/run/command_line.h"

enum { TIMED_OUT = 124 /* as timeout(1) */ };

typedef struct observe {
    const char *out, *gate, *hints, *inject, *notify, *tensorboard;
    int64_t every, steps, samples, timeout_s;
    bool no_gradient, keep, attach_only, collectives, verbose, rules, stop;
    ls_words given; /* all arguments */
    char **command; /* the job's, NULL at the end; NULL with attach_only */
    char directory[512], attach[PATH_MAX];
    char profiler[PATH_MAX], interposer[PATH_MAX]; /* of NCCL's collectives; "": not loaded */
    ls_words setting;                              /* NAME=value of the job's environment */
} observe;

/* ---- the command line ------------------------------------------------------------------------ */

static ls_status check_inject(const char *text)
{
    long long step = 0;
    int rank = 0, end = 0;
    if (text == NULL || (sscanf(text, "overflow@%9lld:%9d%n", &step, &rank, &end) == 2 &&
                         text[end] == '\0' && step >= 1 && rank >= 0)) {
        return LS_OK;
    }
    return ls_log_fail(LS_ERR_USAGE,
                       "--inject '%s': allowed: overflow@STEP:RANK, a step from 1 and a rank from "
                       "0, such as overflow@5:1",
                       text);
}

static ls_status parse(observe *o, int *count, char **argument)
{
    const char *every = "50", *steps = "0", *samples = "1024", *timeout = "0";
    enum { SAMPLES_MOST = 1 << 24 };
    ls_observe_gate gate;
    o->gate = "fail";
    o->hints = "on";
    const ls_command_option options[] = {
        {"--every", &every, NULL, NULL,
         "detail at steps 1, 2, 3 and one of each X, more rarely in a long run (50)"},
        {"--steps", &steps, NULL, NULL, "leave the job alone after so many steps; 0: never (0)"},
        {"--samples", &samples, NULL, NULL, "elements that are looked at of each tensor (1024)"},
        {"--inject", &o->inject, NULL, NULL,
         "overflow@STEP:RANK makes one gradient infinite there, to see what follows"},
        {"--no-gradient", NULL, &o->no_gradient, NULL,
         "do not run the module of step 2 again in FP64"},
        {"--collectives", NULL, &o->collectives, NULL,
         "time NCCL's kernels, too; its calls and sums are looked at where a GPU is"},
        {"--keep", NULL, &o->keep, NULL, "keep the samples also where nothing was found"},
        {"--out", &o->out, NULL, NULL, "the run's folder (results/runs/<time>-observe)"},
        {"--gate", &o->gate, NULL, NULL,
         "exit code 1: fail: where a law failed; all: also where one could not be shown; hints: "
         "also where there is a hint; all,hints: both (fail)"},
        {"--hints", &o->hints, NULL, NULL,
         "on; off: leave out hints, which are guessed and do not decide CORRECT (on)"},
        {"--verbose", NULL, &o->verbose, NULL, "also print what passed and what was not shown"},
        {"--rules", NULL, &o->rules, NULL,
         "run nothing: print the laws and hints, why each is sure or what would make it wrong"},
        {"--stop", NULL, &o->stop, NULL,
         "end the job (TERM, 5 s, KILL), with exit code 1, when a law fails while it runs"},
        {"--notify", &o->notify, NULL, NULL,
         "a shell command for each law that fails while the job runs: its verdict, as JSON, is on "
         "standard input"},
        {"--tensorboard", &o->tensorboard, NULL, NULL,
         "a folder for TensorBoard: loss, loss scale, rate and time of each step, by rank"},
        {"--timeout", &timeout, NULL, NULL,
         "end the job after so many seconds, and say what it waited for; 0: never (0)"},
        {"--attach-only", NULL, &o->attach_only, NULL,
         "run nothing: print the variables of a job that a scheduler starts"},
    };
    LS_TRY(ls_command_parse("observe -- CMD ARG...", options, sizeof options / sizeof *options,
                            count, argument));
    LS_TRY(ls_command_whole("--every", every, 1, INT32_MAX, &o->every));
    LS_TRY(ls_command_whole("--steps", steps, 0, INT32_MAX, &o->steps));
    LS_TRY(ls_command_whole("--samples", samples, 1, SAMPLES_MOST, &o->samples));
    LS_TRY(ls_command_whole("--timeout", timeout, 0, INT32_MAX, &o->timeout_s));
    LS_TRY(check_inject(o->inject));
    if (!ls_observe_gate_read(o->gate, &gate)) {
        return ls_log_fail(LS_ERR_USAGE, "--gate '%s': allowed: fail, all, hints, all,hints",
                           o->gate);
    }
    if (ls_text_choice(o->hints, "on|off") < 0) {
        return ls_log_fail(LS_ERR_USAGE, "--hints '%s': allowed: on, off", o->hints);
    }
    if (gate.hints && strcmp(o->hints, "off") == 0) {
        return ls_log_fail(LS_ERR_USAGE, "--hints off and --gate %s: what is left out cannot fail",
                           o->gate);
    }
    bool runs = !o->attach_only && !o->rules;
    if (!runs && *count > 0) {
        return ls_log_fail(LS_ERR_USAGE, "--%s runs nothing, and '%s' is a command: leave one out",
                           o->rules ? "rules" : "attach-only", argument[0]);
    }
    if (o->tensorboard != NULL && o->tensorboard[0] == '\0') {
        return ls_log_fail(LS_ERR_USAGE, "--tensorboard '': allowed: a folder, such as runs/first");
    }
    if (!runs && o->tensorboard != NULL) {
        return ls_log_fail(LS_ERR_USAGE, "--%s runs nothing: --tensorboard would stay empty",
                           o->rules ? "rules" : "attach-only");
    }
    if (runs && *count == 0) {
        return ls_log_fail(LS_ERR_USAGE, "the command of the job is missing; usage: lockstep "
                                         "observe [options] -- CMD ARG..., such as lockstep "
                                         "observe -- torchrun --nproc-per-node 4 train.py");
    }
    return LS_OK;
}

/* ---- the folder ------------------------------------------------------------------------------ */

static int count_entries(const char *path)
{
    int entries = 0;
    DIR *folder = ls_path_open_folder(path);
    while (ls_path_next(&folder) != NULL) {
        entries++;
    }
    return entries < 2 ? 0 : entries - 2;
}

static ls_status make_folder(observe *o)
{
    if (o->out != NULL) {
        ls_command_absolute(o->out, o->directory, sizeof o->directory);
        if (strlen(o->directory) > 350) {
            return ls_log_fail(LS_ERR_USAGE, "--out: a path of at most 350 bytes is allowed: %s",
                               o->directory);
        }
        if (count_entries(o->directory) > 0) {
            return ls_log_fail(LS_ERR_USAGE,
                               "--out %s: the folder is not empty; allowed: a new folder or an "
                               "empty one",
                               o->out);
        }
    } else {
        LS_TRY(ls_command_run_folder("results/runs", "observe", o->directory, sizeof o->directory));
    }
    for (int i = 0; i < 2; i++) {
        LS_TEXT(path, 700, "%s/jobs/%s", o->directory, ls_observe_run_jobs[i]);
        LS_TRY(ls_path_make_chosen(path, LS_COMMAND_OUT_HINT));
    }
    return LS_OK;
}

/* "Lockstep, observed job: torchrun --nproc-per-node 4 train.py ..." */
static void make_title(const observe *o, char *text, size_t bytes)
{
    enum { SHOWN = 100 };
    ls_text_put(text, bytes, "Lockstep, observed job");
    for (int i = 0; !o->attach_only && o->command[i] != NULL; i++) {
        const char *slash = strrchr(o->command[i], '/');
        bool shortened = slash != NULL && (i == 0 || o->command[i][0] == '/');
        const char *word = shortened ? slash + 1 : o->command[i];
        if (i > 0 && strlen(text) + strlen(word) > SHOWN) {
            ls_text_add(text, bytes, " ...");
            return;
        }
        ls_text_add(text, bytes, "%s%s", i == 0 ? ": " : " ", word);
    }
}

/* `number`: of the command's jobs. */
static ls_status write_run(const observe *o, const char *directory, int number)
{
    cJSON *run = cJSON_CreateObject();
    LS_MEMORY(run != NULL);
    char *line = ls_command_line("observe", &o->given), created[32];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    char title[160];
    make_title(o, title, sizeof title);
    if (number > 1) {
        ls_text_add(title, sizeof title, ", job %d", number);
    }
    cJSON_AddNumberToObject(run, "schema", 1);
    cJSON_AddStringToObject(run, "title", title);
    cJSON_AddStringToObject(run, "label", "observe");
    cJSON_AddStringToObject(run, "command", line);
    cJSON_AddStringToObject(run, "created", created);
    cJSON_AddStringToObject(run, "version", LS_VERSION);
    cJSON *options = cJSON_AddObjectToObject(run, "observed");
    cJSON_AddNumberToObject(options, "every", (double)o->every);
    cJSON_AddNumberToObject(options, "steps", (double)o->steps);
    cJSON_AddNumberToObject(options, "samples", (double)o->samples);
    cJSON_AddStringToObject(options, "inject", o->inject == NULL ? "" : o->inject);
    cJSON_AddBoolToObject(options, "gradient", !o->no_gradient);
    cJSON_AddStringToObject(options, "gate", o->gate);
    cJSON_AddStringToObject(options, "hints", o->hints);
    free(line);
    LS_TEXT(path, 700, "%s/run.json", directory);
    return ls_json_write_and_free(path, run);
}

/* ---- the environment ------------------------------------------------------------------------- */

/* The libraries that NCCL and the dynamic linker load into the job, where they were built. */
static void find_observers(observe *o)
{
    ls_machine_device device[1];
    char program[1024], file[700];
    const char *given = getenv("LS_LIB_DIR");
    bool gpus = ls_bus_list(ls_path_sysfs(), device, 1) > 0 || ls_bus_doubt(file, sizeof file);
    ls_path_program(program, sizeof program);
    LS_TEXT(folder, 1100, "%s/lib", program);
    if (given != NULL && given[0] != '\0') {
        ls_command_absolute(given, folder, sizeof folder);
    }
    ls_text_put(o->profiler, sizeof o->profiler, "%s/ls_nccl_profiler.so", folder);
    ls_text_put(o->interposer, sizeof o->interposer, "%s/ls_nccl_interpose.so", folder);
    if (!(gpus || o->collectives) || access(o->profiler, R_OK) != 0) {
        o->profiler[0] = '\0';
    }
    if (!(gpus || o->collectives) || access(o->interposer, R_OK) != 0) {
        o->interposer[0] = '\0';
    }
    if (o->collectives) {
        ls_words_add(&o->setting, "LS_OBSERVE_KERNELS=1");
    }
}

static ls_status make_settings(observe *o)
{
    if (!ls_path_find("suite/observe/attach", o->attach, sizeof o->attach)) {
        return ls_log_fail(LS_ERR_INFRA,
                           "the folder suite/observe/attach was not found next to the program");
    }
    char *whole = realpath(o->attach, NULL); /* the job may change its folder */
    if (whole != NULL) {
        ls_text_put(o->attach, sizeof o->attach, "%s", whole);
        free(whole);
    }
    ls_words *set = &o->setting;
    char folder[700];
    ls_path_program(folder, sizeof folder);
    ls_words_add(set, "LS_OBSERVE_BYTECODE=%s/bytecode", folder);
    ls_words_add(set, "LS_OBSERVE_DIR=%s/jobs/observed", o->directory);
    ls_words_add(set, "LS_OBSERVE_EVERY=%lld", (long long)o->every);
    ls_words_add(set, "LS_OBSERVE_STEPS=%lld", (long long)o->steps);
    ls_words_add(set, "LS_OBSERVE_SAMPLES=%lld", (long long)o->samples);
    ls_words_add(set, "LS_OBSERVE_GRADIENT=%d", !o->no_gradient);
    if (o->inject != NULL) {
        ls_words_add(set, "LS_OBSERVE_INJECT=%s", o->inject);
    }
    if (!o->attach_only) {
        ls_words_add(set, "LS_OBSERVE_LATER=%s/" LS_OBSERVE_LATER, o->directory);
    }
    ls_words_add(set, "LS_RUN_DIR=%s/jobs/subject", o->directory);
    find_observers(o);
    return LS_OK;
}

/* A list of paths with ours in front. */
static void add_in_front(ls_words *words, const char *name, const char *path)
{
    const char *before = getenv(name);
    bool given = before != NULL && before[0] != '\0';
    ls_words_add(words, "%s=%s%s%s", name, path, given ? ":" : "", given ? before : "");
}

static bool is_ours(const observe *o, const char *entry)
{
    return strncmp(entry, "LS_OBSERVE_", 11) == 0 || strncmp(entry, "LS_RUN_DIR=", 11) == 0 ||
           strncmp(entry, "PYTHONPATH=", 11) == 0 ||
           (o->interposer[0] != '\0' && strncmp(entry, "LD_PRELOAD=", 11) == 0);
}

/* This environment, with the settings in place of what it says of them. */
static ls_words make_environment(const observe *o)
{
    ls_words words = {0, 0, NULL};
    for (char **entry = environ; *entry != NULL; entry++) {
        if (!is_ours(o, *entry)) {
            ls_words_add(&words, "%s", *entry);
        }
    }
    for (int i = 0; i < o->setting.count; i++) {
        ls_words_add(&words, "%s", o->setting.word[i]);
    }
    add_in_front(&words, "PYTHONPATH", o->attach);
    if (o->interposer[0] != '\0') {
        add_in_front(&words, "LD_PRELOAD", o->interposer);
    }
    if (o->profiler[0] != '\0' && getenv("NCCL_PROFILER_PLUGIN") == NULL) {
        ls_words_add(&words, "NCCL_PROFILER_PLUGIN=%s", o->profiler);
    }
    return words;
}

/* `behind`: whether what the variable has already goes on behind it. */
static void print_export(const char *name, const char *value, bool behind)
{
    char *quoted = ls_words_quoted(value);
    printf(behind ? "export %s=%s${%s:+:$%s}\n" : "export %s=%s\n", name, quoted, name, name);
    free(quoted);
}

/* For `eval "$(lockstep observe --attach-only)"`. */
static void print_settings(const observe *o)
{
    for (int i = 0; i < o->setting.count; i++) {
        LS_TEXT(name, 40, "%.*s", (int)strcspn(o->setting.word[i], "="), o->setting.word[i]);
        print_export(name, o->setting.word[i] + strlen(name) + 1, false);
    }
    print_export("PYTHONPATH", o->attach, true);
    if (o->interposer[0] != '\0') {
        print_export("LD_PRELOAD", o->interposer, true);
    }
    if (o->profiler[0] != '\0' && getenv("NCCL_PROFILER_PLUGIN") == NULL) {
        print_export("NCCL_PROFILER_PLUGIN", o->profiler, false);
    }
    ls_words directory = {0, 0, NULL};
    ls_words_add(&directory, "%s", o->directory);
    char *line = ls_command_line("judge", &directory);
    printf("# when the job has ended: %s\n", line);
    free(line);
    ls_words_free(&directory);
}

/* ---- the job --------------------------------------------------------------------------------- */

/* Code 0: it can be started. Nothing is made for a command that cannot. */
static int find_command(const char *program)
{
    char why[PATH_MAX];
    int code = ls_path_check_program(program, why, sizeof why);
    if (code != 0) {
        ls_log_error("cannot run '%s': %s", program, why);
    }
    return code;
}

/* Samples are large, and say nothing more where no rule failed. Empty folders go. */
static void clean_up(const char *directory, bool keep, const ls_observe_headline *headline)
{
    LS_TEXT(path, 700, "%s/jobs/observed/samples", directory);
    if (!keep && headline->failed + headline->hints + headline->unreadable == 0) {
        ls_path_remove_tree(path);
    }
    for (int i = 0; i < 2; i++) {
        ls_text_put(path, sizeof path, "%s/jobs/%s", directory, ls_observe_run_jobs[i]);
        (void)rmdir(path);
    }
}

/* How it ended, where not well. A job whose DataLoader found no memory may say only that it died.
 */
static void note_end(const observe *o, const ls_proc *job, const ls_waiting *waiting, bool late)
{
    char shared[200];
    const char *cause = waiting->cause;
    if (waiting->stopped) {
        ls_log_note("the job was ended, since a law failed (--stop)");
    } else if (late) {
        ls_log_note("the job was ended after %lld s (--timeout)%s%s", (long long)o->timeout_s,
                    cause[0] != '\0' ? ": " : "", cause);
    } else if (job->signal != 0) {
        ls_log_note("the job was killed by signal %d (%s)", job->signal, strsignal(job->signal));
    } else if (job->code != 0) {
        ls_log_note("the job ended with exit code %d", job->code);
    }
    if (!late && !waiting->stopped && job->code != 0 &&
        ls_awaited_shared_memory(shared, sizeof shared)) {
        ls_log_note("%s", shared);
    }
}

static ls_status judge(const observe *o, const char *directory, const ls_proc *job,
                       ls_observe_headline *headline)
{
    for (int i = 0; i < 2; i++) {
        LS_TEXT(path, 700, "%s/jobs/%s", directory, ls_observe_run_jobs[i]);
        if (i == 0 || count_entries(path) > 0) {
            LS_TRY(ls_observe_run_record(path, o->command[0], job));
        }
    }
    ls_status status = ls_observe_run_judge(directory, o->verbose, stderr, headline);
    clean_up(directory, o->keep, headline);
    return status;
}

/* The command's second job and those behind it: each has its own folder, as the first has. */
static ls_status judge_later(const observe *o, const ls_proc *job, int *code)
{
    ls_status status = LS_OK;
    for (int n = 2; n <= LS_OBSERVE_JOBS && status == LS_OK; n++) {
        LS_TEXT(directory, 600, "%s/" LS_OBSERVE_LATER "/%d", o->directory, n);
        LS_TEXT(observed, 640, "%s/jobs/observed", directory);
        if (!ls_observe_run_is_job(observed)) {
            break;
        }
        ls_observe_headline headline = {.unreadable = 1};
        fprintf(stderr, "\nJob %d of the command:\n", n);
        status = write_run(o, directory, n);
        LS_THEN(status, judge(o, directory, job, &headline));
        *code = *code == 0 ? headline.code : *code;
    }
    return status;
}

static int finish(const observe *o, const ls_proc *job, const ls_waiting *waiting, bool late)
{
    ls_observe_headline headline = {.unreadable = 1}; /* until it is judged */
    note_end(o, job, waiting, late);
    ls_status status = judge(o, o->directory, job, &headline);
    LS_THEN(status, judge_later(o, job, &headline.code));
    LS_THEN(status, ls_manifest_write(o->directory, LS_MANIFEST_ALL));
    int code = waiting->stopped ? LS_ERR_CHECK : late ? TIMED_OUT : job->code;
    if (status != LS_OK) {
        return code != 0 ? code : status == LS_ERR_USAGE ? LS_ERR_INFRA : (int)status;
    }
    return headline.code == LS_ERR_CHECK || code == 0 ? headline.code : code;
}

static int run(observe *o)
{
    ls_proc job;
    int code = find_command(o->command[0]);
    if (code != 0) {
        return code;
    }
    if (ls_guard_begin(true) != LS_OK) {
        return LS_ERR_INFRA;
    }
    ls_observe_board *board = NULL;
    if (o->tensorboard != NULL) {
        LS_TRY(ls_observe_board_begin(o->tensorboard, &board));
    }
    ls_status made = make_folder(o);
    LS_THEN(made, make_settings(o));
    LS_THEN(made, write_run(o, o->directory, 1));
    if (made != LS_OK) {
        (void)ls_observe_board_end(board);
        return (int)made;
    }
    ls_observe_board_watch(board, o->directory);
    ls_runner_link_latest(o->directory);
    ls_words environment = make_environment(o);
    LS_TEXT(observed, 700, "%s/jobs/observed", o->directory);
    LS_TEXT(subject, 700, "%s/jobs/subject", o->directory);
    ls_awaited awaited = ls_awaited_begin(observed, subject);
    awaited.describe = ls_observe_run_describe;
    ls_waiting waiting = ls_waiting_begin(ls_awaited_probes, &awaited, (double)o->timeout_s);
    ls_observe_live live = ls_observe_live_begin(o->directory, o->stop, o->notify);
    waiting.watch = ls_observe_live_watch;
    waiting.unwatch = ls_observe_live_end;
    waiting.watched = &live;
    live.board = board;
    bool late = false;
    ls_status status = ls_waiting_run(o->command, environment.word, &waiting, &job, &late);
    ls_words_free(&environment);
    bool whole = ls_observe_board_end(board);
    if (status != LS_OK) {
        return status == LS_ERR_USAGE ? LS_PATH_NOT_RUNNABLE : (int)status;
    }
    int ended = finish(o, &job, &waiting, late);
    return ended == 0 && !whole ? LS_ERR_INFRA : ended;
}

int ls_observe_main(int count, char **argument)
{
    observe o = {.out = NULL};
    for (int i = 0; i < count; i++) { /* parsing moves them */
        ls_words_add(&o.given, "%s", argument[i]);
    }
    int code = (int)parse(&o, &count, argument);
    if (code == LS_OK && o.rules) {
        ls_observe_report_rules(stdout);
    } else if (code == LS_OK && o.attach_only) {
        code = (int)make_folder(&o);
        LS_THEN(code, (int)make_settings(&o));
        LS_THEN(code, (int)write_run(&o, o.directory, 1));
        if (code == LS_OK) {
            print_settings(&o);
        }
    } else if (code == LS_OK) {
        ls_words command = {0, 0, NULL};
        for (int i = 0; i < count; i++) {
            ls_words_add(&command, "%s", argument[i]);
        }
        o.command = command.word;
        code = run(&o);
        ls_words_free(&command);
    }
    ls_words_free(&o.given);
    ls_words_free(&o.setting);
    return code;
}
