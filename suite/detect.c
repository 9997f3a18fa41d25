/* `lockstep detect`: what this suite notices, and that it raises nothing where nothing is wrong. */
#include "detect.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../harness/machine.h"
#include "../harness/proc.h"
#include "../harness/text.h"
#include "../kernels/core/clock.h"
#include "../kernels/core/digest.h"
#include "../kernels/core/log.h"
#include "place.h"

/* issue: the short form within 45 minutes of 2 quiet cores; a fault that hangs is ended long
 * before. */
static const double budget_s = 45 * 60, named_limit_s = 300, list_limit_s = 1800;

enum { CLEAN_SHORT = 5, CLEAN_FULL = 100 };

typedef struct detect {
    const char *seed, *clean_text, *out, *cases;
    bool list, full;
    ls_select_list wanted;
    ls_detect_list plants;
    ls_detect_result *result; /* [plants.count] */
    ls_detect_summary summary;
    uint64_t first_seed;
    int clean;
    char directory[512];
    char program[1100], planted[1200], patched[1100]; /* two programs and a folder */
    bool stopped;
} detect;

/* ---- what is asked --------------------------------------------------------------------------- */

static ls_status parse(detect *d, int count, char **argument)
{
    memset(d, 0, sizeof *d);
    d->seed = "7";
    d->cases = "suite/lists/mustpass.txt";
    const ls_command_option options[] = {
        {"--fault", NULL, NULL, &d->wanted, "faults by name or glob; may be given many times"},
        {"--list", NULL, &d->list, NULL, "print the faults and their cases, run nothing"},
        {"--full", NULL, &d->full, NULL,
         "every fault against every case of the list, 100 clean passes; goes on where it stopped"},
        {"--list-file", &d->cases, NULL, NULL, "the list (suite/lists/mustpass.txt)"},
        {"--clean", &d->clean_text, NULL, NULL, "clean passes, each with a seed of its own (5)"},
        {"--seed", &d->seed, NULL, NULL, "seed of every faulty job, and of the first clean (7)"},
        {"--out", &d->out, NULL, NULL, "the run's folder; one that is there is gone on with"},
    };
    LS_TRY(
        ls_commands_parse("detect", options, sizeof options / sizeof *options, &count, argument));
    char *end;
    d->first_seed = strtoull(d->seed, &end, 10);
    d->clean = d->full ? CLEAN_FULL : CLEAN_SHORT;
    if (d->clean_text != NULL) {
        d->clean = atoi(d->clean_text);
    }
    if (count > 0 || *end != '\0' || d->clean < 0) {
        ls_log_error("usage: lockstep detect [--fault GLOB] [--clean N] [--seed N], whole numbers");
        return LS_ERR_USAGE;
    }
    return LS_OK;
}

static bool is_wanted(const detect *d, const ls_detect_plant *plant)
{
    return d->wanted.count == 0 || ls_select_find(&d->wanted, plant->name) != NULL;
}

static ls_status check_wanted(const detect *d)
{
    for (int i = 0; i < d->wanted.count; i++) {
        const char **names = calloc((size_t)d->plants.count + 1, sizeof *names);
        LS_ASSERT(names != NULL);
        bool found = false;
        for (int p = 0; p < d->plants.count; p++) {
            names[p] = d->plants.plant[p].name;
            found = found || ls_text_matches(d->wanted.line[i].glob, names[p]);
        }
        if (!found) {
            ls_log_error("no planted fault is called %s; did you mean %s?", d->wanted.line[i].glob,
                         ls_text_nearest(d->wanted.line[i].glob, names, d->plants.count));
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
    if (!ls_place_find("suite/plants.txt", path, sizeof path)) {
        ls_log_error("suite/plants.txt was not found beside the program");
        return LS_ERR_INFRA;
    }
    LS_TRY(ls_detect_read(path, &d->plants));
    ls_case_settings settings = {.seed = d->first_seed, .bench = NULL};
    ls_case_list cases = {0, 0, NULL};
    ls_rows_all(&settings, &cases);
    ls_status status = ls_detect_check(&d->plants, &cases);
    ls_rows_free(&cases);
    LS_TRY(status);
    d->result = calloc((size_t)d->plants.count + 1, sizeof *d->result);
    LS_ASSERT(d->result != NULL);
    return check_wanted(d);
}

/* ---- where it runs --------------------------------------------------------------------------- */

/* The planted build is <build>/planted, patched trees are <build>/patched/<name>. Clean passes run
 * the normal build. */
static ls_status find_programs(detect *d)
{
    char folder[1024];
    ls_place_program(folder, sizeof folder);
    size_t length = strlen(folder);
    bool planted = length > 8 && strcmp(folder + length - 8, "/planted") == 0;
    if (planted) {
        folder[length - 8] = '\0';
    }
    ls_text_put(d->program, sizeof d->program, "%s/lockstep", folder);
    ls_text_put(d->planted, sizeof d->planted, "%s/planted/lockstep", folder);
    ls_text_put(d->patched, sizeof d->patched, "%s/patched", folder);
    if (access(d->planted, X_OK) != 0) {
        ls_log_error("%s is not built: make PLANTS=1, or make detect", d->planted);
        return LS_ERR_USAGE;
    }
    if (access(d->program, X_OK) != 0) {
        ls_text_put(d->program, sizeof d->program, "%s", d->planted);
    }
    return LS_OK;
}

/* A full run belongs to a build: another start with the same programs goes on. */
static uint64_t digest_of_build(const detect *d)
{
    static const char *const file[] = {"lockstep", "lockstep-train", "lib/ls_cpu.so",
                                       "lib/ls_gloo.so"};
    uint64_t digest = LS_DIGEST_START;
    char *buffer = malloc(1 << 16);
    LS_ASSERT(buffer != NULL);
    for (size_t i = 0; i < sizeof file / sizeof *file; i++) {
        char path[1300];
        ls_text_put(path, sizeof path, "%.*s%s", (int)(strlen(d->planted) - strlen("lockstep")),
                    d->planted, file[i]);
        FILE *in = fopen(path, "rb");
        for (size_t got; in != NULL && (got = fread(buffer, 1, 1 << 16, in)) > 0;) {
            digest = ls_digest_update(digest, buffer, got);
        }
        if (in != NULL) {
            fclose(in);
        }
    }
    free(buffer);
    return digest;
}

static ls_status make_folder(detect *d)
{
    char faults[600];
    if (d->out != NULL) {
        ls_commands_absolute(d->out, d->directory, sizeof d->directory);
    } else if (d->full) {
        ls_text_put(faults, sizeof faults, "results/runs/detect-full-%08x",
                    (unsigned)digest_of_build(d));
        ls_commands_absolute(faults, d->directory, sizeof d->directory);
    } else {
        LS_TRY(ls_commands_run_folder("results/runs", "detect", d->directory, sizeof d->directory));
    }
    ls_text_put(faults, sizeof faults, "%s/faults", d->directory);
    return ls_place_make_folder(faults);
}

/* ---- what is kept of each fault -------------------------------------------------------------- */

static void result_path(const detect *d, const char *name, char *path, size_t bytes)
{
    ls_text_put(path, bytes, "%s/faults/%s.json", d->directory, name);
}

static ls_status keep_result(const detect *d, int index)
{
    const ls_detect_plant *plant = &d->plants.plant[index];
    const ls_detect_result *r = &d->result[index];
    char path[700];
    result_path(d, plant->name, path, sizeof path);
    cJSON *out = cJSON_CreateObject();
    LS_ASSERT(out != NULL);
    cJSON_AddNumberToObject(out, "schema", 1);
    cJSON_AddStringToObject(out, "fault", plant->wish);
    cJSON_AddStringToObject(out, "named", plant->case_id);
    cJSON_AddStringToObject(out, "pattern", plant->cause);
    cJSON_AddBoolToObject(out, "full", d->full);
    cJSON_AddBoolToObject(out, "caught", r->caught);
    cJSON_AddBoolToObject(out, "by_named", r->by_named);
    cJSON_AddBoolToObject(out, "cause_right", r->cause_right);
    cJSON_AddNumberToObject(out, "seconds", r->seconds);
    cJSON_AddStringToObject(out, "case", r->by.case_id);
    cJSON_AddStringToObject(out, "verdict", r->by.code);
    cJSON_AddStringToObject(out, "evidence", r->by.evidence);
    cJSON_AddStringToObject(out, "cause", r->by.cause);
    cJSON_AddNumberToObject(out, "others", r->others);
    cJSON_AddNumberToObject(out, "others_asked", r->others_asked);
    ls_status status = ls_json_write_file(path, out);
    cJSON_Delete(out);
    return status;
}

/* True when an earlier start has a result of the same question. */
static bool read_result(detect *d, int index)
{
    const ls_detect_plant *plant = &d->plants.plant[index];
    ls_detect_result *r = &d->result[index];
    char path[700];
    cJSON *in = NULL;
    result_path(d, plant->name, path, sizeof path);
    if (access(path, R_OK) != 0 || ls_json_read_file(path, &in) != LS_OK) {
        return false;
    }
    bool same = strcmp(ls_json_string(in, "fault", ""), plant->wish) == 0 &&
                strcmp(ls_json_string(in, "named", ""), plant->case_id) == 0 &&
                strcmp(ls_json_string(in, "pattern", ""), plant->cause) == 0 &&
                ls_json_bool(in, "full", false) == d->full;
    if (same) {
        *r = (ls_detect_result){.done = true,
                                .caught = ls_json_bool(in, "caught", false),
                                .by_named = ls_json_bool(in, "by_named", false),
                                .cause_right = ls_json_bool(in, "cause_right", false),
                                .seconds = ls_json_number(in, "seconds", 0),
                                .others = (int)ls_json_integer(in, "others", 0),
                                .others_asked = (int)ls_json_integer(in, "others_asked", 0)};
        ls_text_put(r->by.case_id, sizeof r->by.case_id, "%s", ls_json_string(in, "case", ""));
        ls_text_put(r->by.code, sizeof r->by.code, "%s", ls_json_string(in, "verdict", ""));
        ls_text_put(r->by.evidence, sizeof r->by.evidence, "%s",
                    ls_json_string(in, "evidence", ""));
        ls_text_put(r->by.cause, sizeof r->by.cause, "%s", ls_json_string(in, "cause", ""));
        r->cause_given = r->by.cause[0] != '\0';
    }
    cJSON_Delete(in);
    return same;
}

/* ---- one fault ------------------------------------------------------------------------------- */

static void take_catch(const ls_detect_plant *plant, const ls_detect_outcome *outcome,
                       ls_detect_result *result)
{
    const ls_detect_verdict *by = ls_detect_catch(outcome);
    if (by == NULL || result->caught) {
        return;
    }
    result->caught = true;
    result->by = *by;
    result->by_named = strcmp(by->case_id, plant->case_id) == 0;
    result->cause_given = by->cause[0] != '\0';
    result->cause_right = result->cause_given && ls_text_matches(plant->cause, by->cause);
}

/* Which cases of the list see the fault: the run's verdicts stay beside the result, for the
 * matrix. */
static void count_others(const ls_detect_plant *plant, const ls_detect_outcome *outcome,
                         ls_detect_result *result)
{
    for (int i = 0; i < outcome->count; i++) {
        ls_detect_outcome one = {.count = 1, .verdict = &outcome->verdict[i]};
        if (strcmp(outcome->verdict[i].case_id, plant->case_id) != 0) {
            result->others_asked++;
            result->others += ls_detect_catch(&one) != NULL;
        }
    }
}

static ls_status run_fault(detect *d, int index)
{
    const ls_detect_plant *plant = &d->plants.plant[index];
    ls_detect_result *r = &d->result[index];
    char program[1300], directory[600], from[700], to[700];
    ls_text_put(directory, sizeof directory, "%s/faults/%s", d->directory, plant->name);
    ls_text_put(program, sizeof program, "%s", d->planted);
    if (plant->patch) {
        ls_text_put(program, sizeof program, "%s/%s/build/planted/lockstep", d->patched,
                    plant->name);
    }
    ls_detect_child child = {.program = program,
                             .wish = plant->patch ? NULL : plant->wish,
                             .directory = directory,
                             .case_id = plant->case_id,
                             .seed = d->first_seed,
                             .limit_s = named_limit_s};
    ls_detect_outcome outcome;
    *r = (ls_detect_result){.done = false};
    LS_TRY(ls_detect_run(&child, &outcome));
    take_catch(plant, &outcome, r);
    r->seconds = outcome.seconds;
    d->stopped = outcome.stopped;
    ls_detect_outcome_free(&outcome);
    if ((!r->caught || d->full) && !d->stopped) {
        child.case_id = NULL;
        child.list = d->cases;
        child.fail_early = !d->full;
        child.limit_s = list_limit_s;
        LS_TRY(ls_detect_run(&child, &outcome));
        r->seconds += r->caught ? 0 : outcome.seconds;
        take_catch(plant, &outcome, r);
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
    if (r->caught) { /* what is missed is kept to be looked at */
        ls_place_remove(directory);
    }
    return keep_result(d, index);
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
        if (!read_result(d, i)) {
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

static ls_status keep_clean(const detect *d, uint64_t seed, const ls_detect_verdict *alarm,
                            int cases)
{
    char name[32], path[700];
    ls_text_put(name, sizeof name, "clean-%llu", (unsigned long long)seed);
    result_path(d, name, path, sizeof path);
    cJSON *out = cJSON_CreateObject();
    LS_ASSERT(out != NULL);
    cJSON_AddNumberToObject(out, "seed", (double)seed);
    cJSON_AddNumberToObject(out, "cases", cases);
    cJSON_AddStringToObject(out, "alarm", alarm == NULL ? "" : alarm->case_id);
    cJSON_AddStringToObject(out, "evidence", alarm == NULL ? "" : alarm->evidence);
    ls_status status = ls_json_write_file(path, out);
    cJSON_Delete(out);
    return status;
}

/* What an earlier start found about that seed: 1 clean, 0 alarm, -1 nothing. */
static int read_clean(const detect *d, uint64_t seed)
{
    char name[32], path[700];
    cJSON *in = NULL;
    ls_text_put(name, sizeof name, "clean-%llu", (unsigned long long)seed);
    result_path(d, name, path, sizeof path);
    if (access(path, R_OK) != 0 || ls_json_read_file(path, &in) != LS_OK) {
        return -1;
    }
    int clean = ls_json_string(in, "alarm", "?")[0] == '\0';
    cJSON_Delete(in);
    return clean;
}

/* An alarm is also a pass that did not come to its end: nothing was shown. */
static ls_status run_clean(detect *d, uint64_t seed, bool *clean)
{
    char directory[600];
    ls_text_put(directory, sizeof directory, "%s/faults/clean-%llu", d->directory,
                (unsigned long long)seed);
    ls_detect_child child = {.program = d->program,
                             .directory = directory,
                             .list = d->cases,
                             .seed = seed,
                             .limit_s = list_limit_s};
    ls_detect_outcome outcome;
    LS_TRY(ls_detect_run(&child, &outcome));
    const ls_detect_verdict *alarm = ls_detect_catch(&outcome);
    ls_detect_verdict unfinished;
    memset(&unfinished, 0, sizeof unfinished);
    if (alarm == NULL && outcome.code != 0) {
        ls_text_put(unfinished.case_id, sizeof unfinished.case_id, "(the whole pass)");
        ls_text_put(unfinished.evidence, sizeof unfinished.evidence, "exit code %d after %.0f s",
                    outcome.code, outcome.seconds);
        alarm = &unfinished;
    }
    d->stopped = outcome.stopped;
    *clean = alarm == NULL;
    ls_status status = LS_OK;
    if (!d->stopped) {
        printf("clean  seed %-6llu %d cases, %.1f s%s%s%s%s\n", (unsigned long long)seed,
               outcome.count, outcome.seconds, *clean ? "" : ": ALARM ",
               *clean ? "" : alarm->case_id, *clean ? "" : ": ", *clean ? "" : alarm->evidence);
        fflush(stdout);
        status = keep_clean(d, seed, alarm, outcome.count);
        if (*clean) {
            ls_place_remove(directory);
        }
    }
    ls_detect_outcome_free(&outcome);
    return status;
}

static ls_status run_cleans(detect *d)
{
    for (int i = 0; i < d->clean && !d->stopped; i++) {
        uint64_t seed = d->first_seed + (uint64_t)i;
        int known = read_clean(d, seed);
        bool clean = known == 1;
        if (known < 0) {
            LS_TRY(run_clean(d, seed, &clean));
        }
        d->summary.clean += !d->stopped;
        d->summary.clean_failed += !d->stopped && !clean;
    }
    return LS_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void sum_up(detect *d)
{
    ls_detect_summary *s = &d->summary;
    for (int i = 0; i < d->plants.count; i++) {
        const ls_detect_result *r = &d->result[i];
        s->faults += r->done;
        s->caught += r->done && r->caught;
        s->by_named += r->done && r->by_named;
        s->causes_right += r->done && r->cause_right;
    }
    printf("\n%d of %d faults caught, %d by the case written for it (the others marked *)\n",
           s->caught, s->faults, s->by_named);
    printf("cause right for %d of %d\n", s->causes_right, s->faults);
    printf("%d clean passes, %d alarms\n", s->clean, s->clean_failed);
    printf("%.0f s", s->seconds);
    if (!d->full && s->seconds > budget_s) {
        printf(": over the budget of %.0f s", budget_s);
    }
    printf("\ntable: %s/detect.md\n", d->directory);
    for (int i = 0; i < d->plants.count; i++) {
        if (d->result[i].done && !d->result[i].caught) {
            printf("missed: %s: %s\n", d->plants.plant[i].name, d->plants.plant[i].sentence);
        }
    }
}

static int run_all(detect *d)
{
    LS_TRY(find_programs(d));
    LS_TRY(make_folder(d));
    if (ls_proc_catch_signals() != LS_OK) {
        return LS_ERR_INFRA;
    }
    int64_t begun_ns = ls_clock_ns();
    LS_TRY(run_faults(d));
    LS_TRY(run_cleans(d));
    d->summary.seconds = ls_clock_ms_between(begun_ns, ls_clock_ns()) * 1e-3;
    sum_up(d);
    LS_TRY(ls_detect_write_tables(d->directory, &d->plants, d->result, &d->summary));
    if (d->full) {
        LS_TRY(ls_detect_write_matrix(d->directory, &d->plants));
    }
    if (d->stopped) {
        printf("stopped; to go on: lockstep detect%s --out %s\n", d->full ? " --full" : "",
               d->directory);
        return 128 + 2; /* as if SIGINT had ended us */
    }
    bool good = d->summary.caught == d->summary.faults && d->summary.clean_failed == 0;
    return good ? 0 : 1;
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
    free(d.result);
    ls_detect_free(&d.plants);
    ls_select_free(&d.wanted);
    return code;
}
