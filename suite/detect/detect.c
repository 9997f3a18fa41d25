#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/path.h"
#include "harness/hosts/supervise.h"
#include "kernels/core/clock.h"
#include "kernels/core/digest.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/list.h"
#include "detect_internal.h"
#include "suite/run/run.h"
#include "reference/state/device.h"
#include "suite/run/command_line.h"

/* The short form is to take at most 45 minutes of 2 idle cores; a fault that hangs is ended long
 * before. foreign_limit_s: every rank of each job imports a framework, on a machine that others may
 * use. matrix_limit_s is for the other cases of a fault that its own case has caught: a fault
 * that hangs every job would take the deadline of each, and cases not reached in time count as not
 * run. */
static const double budget_s = 45 * 60, named_limit_s = 300, bench_limit_s = 900,
                    foreign_limit_s = 900, list_limit_s = 1800, matrix_limit_s = 240;

enum { CLEAN_SHORT = 5, CLEAN_FULL = 100, CLEAN_MOST = 100000 };

typedef struct detect {
    const char *seed, *clean_text, *out, *cases, *asked;
    bool list, full;
    ls_words given; /* the arguments */
    ls_select_list wanted;
    ls_detect_list plants;
    ls_detect_result *result; /* [plants.count] */
    ls_detect_summary summary;
    uint64_t first_seed;
    int clean;
    char directory[512];
    char program[1100];                /* the normal one */
    char planted[1100], patched[1100]; /* folders: the planted build, the patched trees */
    char python[400];                  /* interpreter of the foreign trainers; "": none */
    bool stopped;
} detect;

/* ---- arguments ------------------------------------------------------------------------------- */

static ls_status parse(detect *d, int count, char **argument)
{
    memset(d, 0, sizeof *d);
    for (int i = 0; i < count; i++) { /* parsing moves them */
        ls_words_add(&d->given, "%s", argument[i]);
    }
    d->seed = "7";
    d->cases = "suite/lists/mustpass.txt";
    const ls_command_option options[] = {
        {"--fault", NULL, NULL, &d->wanted, "faults by name or glob; may be repeated"},
        {"--list", NULL, &d->list, NULL, "print the faults and their cases without running them"},
        {"--full", NULL, &d->full, NULL,
         "every fault against every case of the list, 100 clean passes; resumes where it stopped"},
        {"--list-file", &d->cases, NULL, NULL, "the list (suite/lists/mustpass.txt)"},
        {"--clean", &d->clean_text, NULL, NULL, "clean passes, each with its own seed (5)"},
        {"--seed", &d->seed, NULL, NULL, "seed of every faulty job, and of the first clean (7)"},
        {"--python", &d->asked, NULL, NULL, "interpreter with PyTorch for the foreign trainers"},
        {"--out", &d->out, NULL, NULL, "the run's folder; an existing folder is resumed"},
    };
    LS_TRY(ls_command_parse("detect", options, sizeof options / sizeof *options, &count, argument));
    int64_t clean = d->full ? CLEAN_FULL : CLEAN_SHORT;
    LS_TRY(ls_command_no_operands("detect", count, argument, "use --fault NAME"));
    LS_TRY(ls_command_seed("--seed", d->seed, &d->first_seed));
    if (d->clean_text != NULL) {
        LS_TRY(ls_command_whole("--clean", d->clean_text, 0, CLEAN_MOST, &clean));
    }
    d->clean = (int)clean;
    char path[1100];
    if (access(d->cases, R_OK) != 0 && !ls_path_find(d->cases, path, sizeof path)) {
        return ls_log_fail(LS_ERR_USAGE, "--list-file %s cannot be read", d->cases);
    }
    return LS_OK;
}

/* A bench takes a minute: in a full run, or by name. */
static bool is_wanted(const detect *d, const ls_detect_plant *plant)
{
    return d->wanted.count == 0 ? d->full || plant->bench[0] == '\0'
                                : ls_select_find(&d->wanted, plant->name) != NULL;
}

static ls_status check_wanted(const detect *d)
{
    for (int i = 0; i < d->wanted.count; i++) {
        const char **names = ls_list_make((size_t)d->plants.count + 1, sizeof *names);
        bool found = false;
        for (int p = 0; p < d->plants.count; p++) {
            names[p] = d->plants.plant[p].name;
            found = found || ls_text_matches(d->wanted.line[i].glob, names[p]);
        }
        if (!found) {
            char hint[160];
            ls_text_suggest(hint, sizeof hint, d->wanted.line[i].glob, names, d->plants.count,
                            "lockstep detect --list prints all");
            ls_log_error("no planted fault matches '%s'; %s", d->wanted.line[i].glob, hint);
        }
        free(names);
        if (!found) {
            return LS_ERR_USAGE;
        }
    }
    return LS_OK;
}

static ls_status read_plants(detect *d)
{
    char path[1100];
    if (!ls_path_find("suite/plants.txt", path, sizeof path)) {
        return ls_log_fail(LS_ERR_INFRA, "suite/plants.txt was not found next to the program");
    }
    LS_TRY(ls_detect_read(path, &d->plants));
    if (!ls_path_find("suite/peers", path, sizeof path)) {
        return ls_log_fail(LS_ERR_INFRA, "suite/peers was not found next to the program");
    }
    LS_TRY(ls_detect_read_foreign(path, &d->plants));
    /* the cases of a device include those of a CPU, whose faults are planted in the same file */
    ls_case_settings settings = {
        .seed = d->first_seed, .device = "cuda", .bf16_units = true, .fp16_units = true};
    ls_case_list cases = {0, 0, NULL};
    ls_cases_all(&settings, &cases);
    ls_status status = ls_detect_check(&d->plants, &cases);
    ls_rows_free(&cases);
    LS_TRY(status);
    d->result = ls_list_make((size_t)d->plants.count + 1, sizeof *d->result);
    return check_wanted(d);
}

/* ---- programs -------------------------------------------------------------------------------- */

/* The planted build is <build>/planted, patched trees are <build>/patched/<name>. Clean passes run
 * the normal build. */
static ls_status find_programs(detect *d)
{
    char folder[1024];
    ls_path_program(folder, sizeof folder);
    size_t length = strlen(folder);
    bool planted = length > 8 && strcmp(folder + length - 8, "/planted") == 0;
    if (planted) {
        folder[length - 8] = '\0';
    }
    ls_text_put(d->program, sizeof d->program, "%s/lockstep", folder);
    ls_text_put(d->planted, sizeof d->planted, "%s/planted", folder);
    ls_text_put(d->patched, sizeof d->patched, "%s/patched", folder);
    LS_TEXT(program, 1200, "%s/lockstep", d->planted);
    bool needed = false; /* wrong trainers and clean passes run the normal build */
    for (int i = 0; i < d->plants.count; i++) {
        needed = needed || (!d->plants.plant[i].foreign && is_wanted(d, &d->plants.plant[i]));
    }
    if (needed && access(program, X_OK) != 0) {
        return ls_log_fail(LS_ERR_USAGE, "%s is not built: make PLANTS=1, or make detect", program);
    }
    if (access(d->program, X_OK) != 0) {
        ls_text_put(d->program, sizeof d->program, "%s", program);
    }
    return LS_OK;
}

/* A full run belongs to a build: another start with the same programs resumes it. */
static uint64_t digest_of_build(const detect *d)
{
    static const char *const file[] = {"lockstep", "lockstep-train", "lib/ls_cpu.so",
                                       "lib/ls_gloo.so"};
    uint64_t digest = LS_DIGEST_START;
    for (size_t i = 0; i < sizeof file / sizeof *file; i++) {
        LS_TEXT(path, 1300, "%s/%s", d->planted, file[i]);
        ls_file_source in;
        char *data = NULL;
        size_t bytes = 0;
        if (ls_file_load(path, LS_FILE_TEXT_BYTES, &in, &data, &bytes) == LS_OK) {
            digest = ls_digest_update(digest, data, bytes);
        }
        free(data);
    }
    return digest;
}

static ls_status make_folder(detect *d)
{
    char faults[600];
    if (d->out != NULL) {
        ls_command_absolute(d->out, d->directory, sizeof d->directory);
    } else if (d->full) {
        ls_text_put(faults, sizeof faults, "results/runs/detect-full-%08x",
                    (unsigned)digest_of_build(d));
        ls_command_absolute(faults, d->directory, sizeof d->directory);
    } else {
        LS_TRY(ls_command_run_folder("results/runs", "detect", d->directory, sizeof d->directory));
    }
    ls_text_put(faults, sizeof faults, "%s/faults", d->directory);
    return ls_path_make_chosen(faults, LS_COMMAND_OUT_HINT);
}

/* ---- one fault ------------------------------------------------------------------------------- */

/* Counts the other cases of the list that fail. The run's verdicts are kept for the matrix. */
static void count_others(const ls_detect_plant *plant, const ls_detect_outcome *outcome,
                         ls_detect_result *result)
{
    for (int i = 0; i < outcome->count; i++) {
        const ls_detect_verdict *v = &outcome->verdict[i];
        if (strcmp(v->case_id, plant->case_id) != 0) {
            bool fails = strcmp(v->code, ls_verdict_name(LS_FAIL)) == 0;
            result->others_asked++;
            result->others += fails;
            if (fails && !result->caught && !result->elsewhere) {
                result->elsewhere = true;
                result->by = *v;
            }
        }
    }
}

/* The build that holds the fault: a file in it. */
static void path_in_build(const detect *d, const ls_detect_plant *plant, const char *name,
                          char *path, size_t bytes)
{
    if (plant->patch) {
        ls_text_put(path, bytes, "%s/%s/build/planted/%s", d->patched, plant->name, name);
    } else {
        ls_text_put(path, bytes, "%s/%s", d->planted, name);
    }
}

/* Why the fault cannot be reached here; NULL: it can. */
static const char *why_not_judged(const detect *d, const ls_detect_plant *plant)
{
    char library[1300];
    path_in_build(d, plant, "emulated/lib/ls_cuda.so", library, sizeof library);
    bool avx512 = false;
#if defined(__x86_64__)
    avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return plant->device && access(library, R_OK) != 0 ? "the emulation of CUDA is not built"
           : plant->avx512 && !avx512                  ? "this CPU has no AVX-512"
           : plant->native && !ls_device_cpu_has(LS_BF16, true)
               ? "this CPU's units do not multiply bf16"
               : NULL;
}

static ls_status run_fault(detect *d, int index)
{
    const ls_detect_plant *plant = &d->plants.plant[index];
    ls_detect_result *r = &d->result[index];
    char program[1300], engines[1300], directory[600], from[700], to[700];
    path_in_build(d, plant, "emulated/lib", engines, sizeof engines);
    ls_text_put(directory, sizeof directory, "%s/faults/%s", d->directory, plant->name);
    path_in_build(d, plant, "lockstep", program, sizeof program);
    bool foreign = plant->foreign; /* in the normal build, against its own case alone */
    ls_detect_child child = {.program = foreign ? d->program : program,
                             .wish = plant->patch || foreign ? NULL : plant->wish,
                             .directory = directory,
                             .subject = foreign ? plant->subject : NULL,
                             .bench = plant->bench[0] != '\0' ? plant->bench : NULL,
                             .case_id = plant->case_id,
                             .environment = plant->environment,
                             .engines = plant->device ? engines : NULL,
                             .seed = d->first_seed,
                             .limit_s = foreign                   ? foreign_limit_s
                                        : plant->bench[0] != '\0' ? bench_limit_s
                                                                  : named_limit_s};
    ls_detect_outcome outcome;
    const ls_detect_result before = *r;
    *r = (ls_detect_result){.others = before.others, .others_asked = before.others_asked};
    LS_TRY(ls_detect_run(&child, &outcome));
    ls_detect_judge(plant, &outcome, r);
    r->seconds = outcome.seconds;
    d->stopped = outcome.stopped;
    ls_detect_outcome_free(&outcome);
    bool others = !foreign && (d->full ? !before.stale : !r->caught && !r->not_run);
    if (others && !d->stopped && child.bench == NULL) {
        r->others = r->others_asked = 0;
        child.case_id = NULL;
        child.list = d->cases;
        child.fail_early = !d->full;
        child.limit_s = r->caught ? matrix_limit_s : list_limit_s;
        LS_TRY(ls_detect_run(&child, &outcome));
        r->seconds += r->caught ? 0 : outcome.seconds;
        count_others(plant, &outcome, r);
        d->stopped = outcome.stopped;
        ls_detect_outcome_free(&outcome);
        ls_text_put(from, sizeof from, "%s/verdicts.jsonl", directory);
        ls_text_put(to, sizeof to, "%s.jsonl", directory);
        (void)rename(from, to);
    }
    if (d->stopped) {
        return LS_OK;
    }
    r->done = true;
    if (r->caught) { /* the jobs of a missed fault are kept for inspection */
        ls_path_remove_tree(directory);
    }
    return ls_detect_keep(d->directory, d->full, plant, r);
}

/* Finds the interpreter and sets the command of each foreign trainer. */
static ls_status prepare_foreign(detect *d)
{
    bool any = false;
    for (int i = 0; i < d->plants.count; i++) {
        any = any || (d->plants.plant[i].foreign && is_wanted(d, &d->plants.plant[i]));
    }
    char why[600];
    bool found =
        any && ls_start_find_python(d->asked, d->python, sizeof d->python, why, sizeof why);
    if (any && !found && d->asked != NULL) {
        return ls_log_fail(LS_ERR_USAGE, "--python '%s': %s", d->asked, why);
    }
    for (int i = 0; i < d->plants.count && found; i++) {
        ls_detect_plant *plant = &d->plants.plant[i];
        if (plant->foreign) {
            ls_text_put(plant->subject, sizeof plant->subject, "%s %s", d->python, plant->script);
        }
    }
    return LS_OK;
}

/* Each patched tree must have been built. */
static ls_status check_patched(const detect *d)
{
    for (int i = 0; i < d->plants.count; i++) {
        const ls_detect_plant *plant = &d->plants.plant[i];
        char program[1300];
        path_in_build(d, plant, "lockstep", program, sizeof program);
        if (plant->patch && is_wanted(d, plant) && access(program, X_OK) != 0) {
            return ls_log_fail(LS_ERR_USAGE,
                               "%s of the planted fault %s is not built: run make detect", program,
                               plant->name);
        }
    }
    return LS_OK;
}

static ls_status run_faults(detect *d)
{
    int number = 0, wanted = 0;
    for (int i = 0; i < d->plants.count; i++) {
        wanted += is_wanted(d, &d->plants.plant[i]);
    }
    for (int i = 0; i < d->plants.count && !d->stopped; i++) {
        if (!is_wanted(d, &d->plants.plant[i])) {
            continue;
        }
        number++;
        bool foreign = d->plants.plant[i].foreign;
        if (foreign && d->python[0] == '\0') {
            d->summary.foreign.left_out++;
        } else if (why_not_judged(d, &d->plants.plant[i]) != NULL) {
            d->summary.planted.left_out++;
            printf("[%3d/%d] %s is not judged: %s\n", number, wanted, d->plants.plant[i].name,
                   why_not_judged(d, &d->plants.plant[i]));
        } else if (!ls_detect_kept(d->directory, d->full, &d->plants.plant[i], &d->result[i])) {
            LS_TRY(run_fault(d, i));
        }
        if (d->result[i].done) {
            printf("[%3d/%d] ", number, wanted);
            ls_detect_print_result(&d->plants.plant[i], &d->result[i], stdout);
        }
    }
    return LS_OK;
}

/* ---- clean passes ---------------------------------------------------------------------------- */

/* A pass that did not finish is an alarm too, because it has shown nothing. */
static void judge_clean(const ls_detect_outcome *outcome, ls_detect_clean *clean)
{
    const ls_detect_verdict *alarm = ls_detect_alarm(outcome);
    clean->cases = outcome->count;
    if (alarm != NULL) {
        ls_text_put(clean->where, sizeof clean->where, "%s", alarm->case_id);
        ls_text_put(clean->alarm, sizeof clean->alarm, "%s", alarm->evidence);
    } else if (outcome->code != 0) {
        ls_text_put(clean->where, sizeof clean->where, "(the whole pass)");
        ls_text_put(clean->alarm, sizeof clean->alarm, "exit code %d after %.0f s", outcome->code,
                    outcome->seconds);
    }
}

/* Runs the right subject, unless an earlier start did, and keeps the result if no signal stopped
 * the run; *seconds: how long it took, 0 for an earlier start. */
static ls_status run_right(detect *d, ls_detect_child *child, ls_detect_clean *clean,
                           double *seconds)
{
    LS_TEXT(directory, 700, "%s/faults/%s", d->directory, clean->name);
    *seconds = 0;
    if (ls_detect_kept_clean(d->directory, clean)) {
        return LS_OK;
    }
    *clean = (ls_detect_clean){.name = clean->name, .subject = clean->subject};
    ls_detect_outcome outcome;
    child->program = d->program;
    child->directory = directory;
    LS_TRY(ls_detect_run(child, &outcome));
    (child->subject == NULL ? judge_clean : ls_detect_judge_right)(&outcome, clean);
    d->stopped = outcome.stopped;
    *seconds = outcome.seconds;
    ls_detect_outcome_free(&outcome);
    if (!d->stopped && clean->where[0] == '\0') {
        ls_path_remove_tree(directory);
    }
    return d->stopped ? LS_OK : ls_detect_keep_clean(d->directory, clean);
}

static ls_status run_cleans(detect *d)
{
    for (int i = 0; i < d->clean && !d->stopped; i++) {
        double seconds;
        ls_detect_child child = {
            .list = d->cases, .seed = d->first_seed + (uint64_t)i, .limit_s = list_limit_s};
        LS_TEXT(name, 32, "clean-%llu", (unsigned long long)child.seed);
        ls_detect_clean clean = {.name = name, .subject = ""};
        LS_TRY(run_right(d, &child, &clean, &seconds));
        bool good = clean.where[0] == '\0';
        if (seconds > 0 && !d->stopped) {
            printf("clean  seed %-6llu %d cases, %.1f s%s%s%s%s\n", (unsigned long long)child.seed,
                   clean.cases, seconds, good ? "" : ": ALARM ", clean.where, good ? "" : ": ",
                   clean.alarm);
            fflush(stdout);
        }
        d->summary.clean += !d->stopped;
        d->summary.clean_failed += !d->stopped && !good;
    }
    return LS_OK;
}

/* ---- the right foreign trainers -------------------------------------------------------------- */

static ls_status run_right_of(detect *d, const ls_detect_plant *wrong)
{
    const char *right = ls_detect_right_of(wrong);
    double seconds;
    char subject[1600];
    ls_detect_right_command(wrong, d->python, subject, sizeof subject);
    LS_TEXT(name, 128, "clean-%s-%s", right[0] == 's' ? "script" : "foreign", wrong->case_id);
    ls_detect_child child = {.subject = subject,
                             .case_id = wrong->case_id,
                             .seed = d->first_seed,
                             .limit_s = foreign_limit_s};
    ls_detect_clean clean = {.name = name, .subject = subject};
    LS_TRY(run_right(d, &child, &clean, &seconds));
    if (d->stopped) {
        return LS_OK;
    }
    bool good = clean.where[0] == '\0';
    printf("clean  %-17s %-34s %s%s\n", right, wrong->case_id,
           clean.not_run ? "not run: "
           : good        ? "pass"
                         : "ALARM: ",
           clean.alarm);
    fflush(stdout);
    d->summary.right++;
    d->summary.right_failed += !good && !clean.not_run;
    d->summary.right_not_run += clean.not_run;
    return LS_OK;
}

/* Runs the trainers that the wrong ones were made from, once against each of their cases. */
static ls_status run_rights(detect *d)
{
    for (int i = 0; i < d->plants.count && d->python[0] != '\0' && !d->stopped; i++) {
        const ls_detect_plant *plant = &d->plants.plant[i];
        bool again = false;
        for (int k = 0; k < i && plant->foreign; k++) {
            const ls_detect_plant *other = &d->plants.plant[k];
            again = again || (other->foreign && is_wanted(d, other) &&
                              strcmp(other->case_id, plant->case_id) == 0 &&
                              strcmp(ls_detect_right_of(other), ls_detect_right_of(plant)) == 0);
        }
        if (plant->foreign && !again && is_wanted(d, plant)) {
            LS_TRY(run_right_of(d, plant));
        }
    }
    return LS_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void count(detect *d)
{
    for (int i = 0; i < d->plants.count; i++) {
        const ls_detect_result *r = &d->result[i];
        ls_detect_count *of =
            d->plants.plant[i].foreign ? &d->summary.foreign : &d->summary.planted;
        if (r->done) {
            of->tried++;
            of->caught += r->caught;
            of->elsewhere += r->elsewhere;
            of->causes_right += r->caught && r->cause_right;
            of->not_run += r->not_run;
        }
    }
}

static void print_missed(const detect *d)
{
    for (int i = 0; i < d->plants.count; i++) {
        const ls_detect_result *r = &d->result[i];
        const ls_detect_plant *plant = &d->plants.plant[i];
        if (r->done && r->not_run) {
            printf("not run: %s: %s\n", plant->name, r->why);
        } else if (r->done && !r->caught) {
            printf("missed: %s: %s; expected %s of %s, cause %s; found %s %s, cause %s\n",
                   plant->name, plant->sentence, plant->expected, plant->case_id, plant->cause,
                   r->by.code, r->by.case_id, r->by.cause[0] == '\0' ? "none" : r->by.cause);
        }
    }
}

static void sum_up(detect *d)
{
    const ls_detect_summary *s = &d->summary;
    printf("\n");
    ls_detect_print_summary(s, stdout);
    printf("%d clean passes, %d alarms\n", s->clean, s->clean_failed);
    printf("%.0f s", s->seconds);
    if (!d->full && s->seconds > budget_s) {
        printf(": over the budget of %.0f s", budget_s);
    }
    printf("\ntable: %s/detect.md\n", d->directory);
    print_missed(d);
}

static int run_all(detect *d)
{
    LS_TRY(find_programs(d));
    LS_TRY(check_patched(d));
    LS_TRY(prepare_foreign(d));
    LS_TRY(ls_supervise_check_loopback());
    LS_TRY(make_folder(d));
    if (ls_proc_catch_signals() != LS_OK) {
        return LS_ERR_INFRA;
    }
    int64_t begun_ns = ls_clock_ns();
    LS_TRY(run_faults(d));
    LS_TRY(run_rights(d));
    LS_TRY(run_cleans(d));
    d->summary.seconds = ls_clock_ms_between(begun_ns, ls_clock_ns()) * 1e-3;
    count(d);
    sum_up(d);
    LS_TRY(ls_detect_write_tables(d->directory, &d->plants, d->result, &d->summary));
    if (d->full) {
        LS_TRY(ls_detect_write_matrix(d->directory, &d->plants));
    }
    if (d->stopped) {
        if (d->out == NULL) {
            ls_words_add(&d->given, "--out=%s", d->directory);
        }
        char *line = ls_command_go_on("detect", &d->given);
        printf("stopped; to go on: %s\n", line);
        free(line);
        return ls_proc_stopped_code();
    }
    return ls_detect_code(&d->summary);
}

static void print_list(const detect *d)
{
    for (int i = 0; i < d->plants.count; i++) {
        const ls_detect_plant *plant = &d->plants.plant[i];
        if (is_wanted(d, plant)) {
            printf("%-28s %-36s %s\n", plant->name, plant->case_id, plant->sentence);
        }
    }
}

int ls_detect_main(int count, char **argument)
{
    detect d;
    int code = (int)parse(&d, count, argument);
    if (code == LS_OK) {
        code = (int)read_plants(&d);
    }
    if (code == LS_OK && d.list) {
        print_list(&d);
    } else if (code == LS_OK) {
        code = run_all(&d);
    }
    ls_words_free(&d.given);
    free(d.result);
    ls_detect_free(&d.plants);
    ls_select_free(&d.wanted);
    return code;
}
