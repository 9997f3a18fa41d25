#include "mutate_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "harness/process/proc.h"
#include "kernels/core/clock.h"
#include "kernels/core/digest.h"
#include "kernels/core/file.h"
#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/rng.h"
#include "suite/run/command_line.h"

extern char **environ;

/* Of unit programs, and of cases outside the must-pass list, so many seconds are run at most, the
 * shortest first: a line of which hundreds of tests are made costs no more than that, and the score
 * is at least the one printed. As mapped, which is slower than they run here. */
enum { MOST_S = 90 };

/* What became of a mutant. The first two are no mutants: another line is drawn for them. */
typedef enum outcome {
    NOT_BUILT,  /* it does not compile or link */
    SAME_CODE,  /* the compiler makes the same code of it */
    EQUIVALENT, /* listed in suite/mutate/equivalent.txt, with the reason */
    UNIT,       /* caught by a unit test program */
    CHECK,      /* by a case of the must-pass list */
    CONFORM,    /* by another case */
    SURVIVED,
    UNREACHED, /* no test executes the line: it survives */
    NOT_RUN,   /* a test of it could not be run: it counts as not caught, and the run says so */
    OUTCOMES,
} outcome;

static const char *const outcome_name[OUTCOMES] = {"not built", "same code",   "equivalent",
                                                   "unit",      "check",       "conform",
                                                   "survived",  "not reached", "not run"};

typedef struct source {
    char *text;
    ls_mutant_list mutants;
    uint64_t code; /* digest of the object's code without a mutant; 0: not taken yet */
} source;

/* A line that can be changed, and the mutants on it. */
typedef struct place {
    int source, first, count;
} place;

typedef struct result {
    outcome outcome;
    int source, line;
    char kind[16], before[160], after[160], by[128], reason[200];
    double seconds;
} result;

typedef struct mutate {
    const char *wanted_text, *seed_text, *only, *shard, *out;
    ls_words given; /* the arguments */
    char tree[512], directory[512], self[600];
    char tests[64]; /* the state of the tests: with another one survivors are tried again */
    int wanted, share, shares;
    uint64_t seed;
    ls_reach reach;
    source *source; /* [reach.sources] */
    int places, place_capacity;
    place *place;
    char *equivalent; /* text of suite/mutate/equivalent.txt */
    int results, result_capacity;
    result *result;
    int no_mutants; /* lines drawn that gave none: not built, or the same code */
    int kept;       /* mutants.jsonl */
    bool stopped;
} mutate;

/* ---- running --------------------------------------------------------------------------------- */

/* Runs a program with its output in <directory>/log. Its exit code; -1 when it had not ended in
 * time, -2 when a signal stopped this run. */
static int run(mutate *m, char *const *argv, const char *folder, double limit_s)
{
    LS_TEXT(log, 700, "%s/log", m->directory);
    (void)unlink(log);
    ls_proc_spec spec = {
        .argv = argv, .environment = environ, .log_path = log, .directory = folder};
    ls_proc process = {0};
    if (ls_proc_start(&spec, &process) != LS_OK) {
        return 127;
    }
    int ended = ls_proc_wait_any(&process, 1, ls_clock_after(limit_s));
    if (ended < 0) {
        ls_proc_end_all(&process, 1, 5);
        m->stopped = m->stopped || ended == -2;
        return ended;
    }
    return process.code;
}

static bool make(mutate *m, const char *target)
{
    LS_TEXT(script, 700, "%s/make.sh", m->self);
    char *argv[] = {"sh", script, (char *)(uintptr_t)m->tree, (char *)(uintptr_t)target, NULL};
    return run(m, argv, NULL, 600) == 0;
}

/* Runs a program of the tree where a mutant can harm only the tree. Its exit code, or -1 or -2. */
static int run_guarded(mutate *m, char *const *program, double limit_s)
{
    LS_TEXT(sandbox, 700, "%s/sandbox.sh", m->self);
    char *argv[24] = {"sh", sandbox, m->tree};
    for (int i = 0; program[i] != NULL && i < 20; i++) {
        argv[3 + i] = program[i];
    }
    return run(m, argv, NULL, limit_s);
}

/* Whether a program could not be run at all, which shows nothing of a mutant: no name spaces (125),
 * no such program (126, 127), or no process could be started. */
static bool was_not_run(int code)
{
    return code >= 125 && code <= 127;
}

/* Whether a program fails, twice: what fails now and then, as on a busy machine, does not count. */
static bool fails(mutate *m, char *const *program, double limit_s, result *r)
{
    int code = run_guarded(m, program, limit_s);
    if (code > 0 && !m->stopped && !was_not_run(code)) {
        code = run_guarded(m, program, limit_s);
    }
    r->outcome = was_not_run(code) ? NOT_RUN : r->outcome;
    return code != 0 && !m->stopped && !was_not_run(code);
}

/* ---- one mutant ------------------------------------------------------------------------------ */

static void object_of(const mutate *m, int at, char *path, size_t bytes)
{
    ls_text_put(path, bytes, "build/obj/%s.o", m->reach.source[at].path);
}

/* The digest of an object without what only a debugger reads; 0 when it cannot be built. */
static uint64_t digest_of_object(mutate *m, int at)
{
    char object[300];
    object_of(m, at, object, sizeof object);
    if (!make(m, object)) {
        return 0;
    }
    LS_TEXT(stripped, 700, "%s/stripped.o", m->directory);
    char *argv[] = {"strip", "-g", "-o", stripped, object, NULL};
    ls_file_source in;
    char *data = NULL;
    size_t bytes = 0;
    if (run(m, argv, m->tree, 60) != 0 ||
        ls_file_load(stripped, LS_FILE_TEXT_BYTES, &in, &data, &bytes) != LS_OK) {
        return 0;
    }
    uint64_t digest = ls_digest_update(LS_DIGEST_START, data, bytes);
    free(data);
    return digest;
}

/* Leaves a file alone that holds the text: make would build what depends on it again. */
static ls_status write_source(const mutate *m, int at, const char *text)
{
    LS_TEXT(path, 700, "%s/%s", m->tree, m->reach.source[at].path);
    char *now = ls_text_read(path);
    bool same = now != NULL && strcmp(now, text) == 0;
    free(now);
    return same ? LS_OK : ls_file_replace(path, text, strlen(text));
}

/* Whether a unit program may see a change of the line. A process that is killed, or ends by _exit,
 * counts no lines: of a line that no test is known to execute, every program that executes its file
 * is tried. */
static bool may_see(const mutate *m, int test, int at, int line, bool known)
{
    const struct ls_reach_source *source = &m->reach.source[at];
    bool sees = ls_reach_reaches(&m->reach, test, at, line);
    for (int i = 1; !known && !sees && i <= source->lines; i++) {
        sees = ls_reach_reaches(&m->reach, test, at, i);
    }
    return sees;
}

/* The unit program that fails, in r->by; none: false. */
static bool caught_by_unit(mutate *m, int at, bool known, result *r)
{
    bool built = false;
    double seconds = 0;
    for (int i = 0; i < m->reach.tests && !m->stopped && seconds < MOST_S; i++) {
        const ls_reach_test *test = &m->reach.test[i];
        if (strncmp(test->name, "unit/", 5) != 0 || !may_see(m, i, at, r->line, known)) {
            continue;
        }
        seconds += test->seconds;
        LS_TEXT(program, 200, "build/%s", test->name);
        if ((!built && !make(m, "programs")) || !make(m, program)) {
            r->outcome = NOT_BUILT;
            return true;
        }
        built = true;
        char *argv[] = {program, NULL};
        if (fails(m, argv, 20 + 4 * test->seconds, r)) {
            r->outcome = UNIT;
            ls_text_put(r->by, sizeof r->by, "%s", test->name + 5);
            return true;
        }
    }
    return false;
}

static ls_status take_first_bad(void *context, const cJSON *line, int line_number)
{
    (void)line_number;
    result *r = context;
    ls_verdict_code code = ls_verdict_code_in(line);
    if (r->by[0] == '\0' && code != LS_PASS && code != LS_SKIP) {
        ls_text_put(r->by, sizeof r->by, "%s", ls_json_string(line, "case", "?"));
    }
    return LS_OK;
}

/* Writes the cases of a set that reach the line; their number, and the time they took. */
static int list_cases(mutate *m, int at, const result *r, const char *set, const char *path,
                      double *seconds)
{
    FILE *to = ls_file_create(path);
    int count = 0;
    for (int i = 0; i < m->reach.tests && to != NULL && *seconds < MOST_S; i++) {
        const ls_reach_test *test = &m->reach.test[i];
        if (strncmp(test->name, set, strlen(set)) != 0 ||
            !ls_reach_reaches(&m->reach, i, at, r->line)) {
            continue;
        }
        count++;
        *seconds += test->seconds;
        LS_TEXT(cases, 700, "%s/reach/%s.cases", m->tree, test->name);
        char *text = access(cases, R_OK) == 0 ? ls_text_read(cases) : NULL;
        if (text != NULL) { /* a kind of cases */
            fputs(text, to);
        } else {
            fprintf(to, "%s\n", test->name + strlen(set));
        }
        free(text);
    }
    return to == NULL || ls_file_close(to, path) != LS_OK ? 0 : count;
}

/* Runs the listed cases up to the first that fails: that one in r->by. */
static bool fail_cases(mutate *m, const char *list, double limit_s, result *r)
{
    LS_TEXT(out, 700, "%s/mutant.run", m->tree);
    LS_TEXT(verdicts, 800, "%s/verdicts.jsonl", out);
    char *argv[] = {"build/lockstep", "conform",
                    "--device=cpu",   "--gate=manners",
                    "--list-file",    (char *)(uintptr_t)list,
                    "--out",          out,
                    "--fail-early",   NULL};
    ls_path_remove_tree(out);
    int code = run_guarded(m, argv, limit_s);
    r->by[0] = '\0';
    if (access(verdicts, R_OK) == 0) {
        (void)ls_json_each_line(verdicts, take_first_bad, r);
    }
    if (r->by[0] == '\0') {
        ls_text_put(r->by, sizeof r->by, "conform: exit code %d", code);
    }
    ls_path_remove_tree(out);
    r->outcome = was_not_run(code) ? NOT_RUN : r->outcome;
    return code != 0 && !m->stopped && !was_not_run(code);
}

static bool caught_by_case(mutate *m, int at, const char *set, outcome as, result *r)
{
    LS_TEXT(list, 700, "%s/mutant.cases", m->tree);
    double seconds = 0;
    if (list_cases(m, at, r, set, list, &seconds) == 0 || !make(m, "programs")) {
        return false;
    }
    bool caught = false;
    if (fail_cases(m, list, 60 + 3 * seconds, r)) {
        LS_TEXT(line, 200, "%s\n", r->by);
        bool one = strchr(r->by, ' ') == NULL; /* a case, not the exit code of them all */
        caught = (!one || ls_file_replace(list, line, strlen(line)) == LS_OK) &&
                 fail_cases(m, list, 60 + 3 * seconds, r);
    }
    if (caught) {
        r->outcome = as;
    } else {
        r->by[0] = '\0';
    }
    return caught;
}

/* Line `number` of a text without the blanks around it. */
static void line_of(const char *text, int number, char *line, size_t bytes)
{
    for (int i = 1; i < number; i++) {
        text = strchr(text, '\n') + 1;
    }
    text += strspn(text, " \t");
    ls_text_put(line, bytes, "%.*s", (int)strcspn(text, "\n"), text);
}

/* The reason in suite/mutate/equivalent.txt: "PATH | the line | BEFORE | AFTER | reason". */
static bool is_listed(const mutate *m, result *r)
{
    char line[400];
    line_of(m->source[r->source].text, r->line, line, sizeof line);
    LS_TEXT(key, 900, "%s | %s | %s | %s | ", m->reach.source[r->source].path, line, r->before,
            r->after);
    const char *found = m->equivalent == NULL ? NULL : strstr(m->equivalent, key);
    if (found == NULL || (found > m->equivalent && found[-1] != '\n')) {
        return false;
    }
    found += strlen(key);
    ls_text_put(r->reason, sizeof r->reason, "%.*s", (int)strcspn(found, "\n"), found);
    r->outcome = EQUIVALENT;
    return true;
}

static bool is_reached(const mutate *m, int at, int line)
{
    for (int i = 0; i < m->reach.tests; i++) {
        if (ls_reach_reaches(&m->reach, i, at, line)) {
            return true;
        }
    }
    return false;
}

static ls_status judge(mutate *m, int at, const ls_mutant *mutant, result *r)
{
    source *s = &m->source[at];
    if (s->code == 0 && (s->code = digest_of_object(m, at)) == 0) {
        return m->stopped ? LS_OK
                          : ls_log_fail(LS_ERR_INFRA,
                                        "%s is not built without a mutant either: see %s/log",
                                        m->reach.source[at].path, m->directory);
    }
    char *text = ls_mutants_apply(s->text, mutant);
    ls_status status = write_source(m, at, text);
    free(text);
    LS_TRY(status);
    uint64_t code = digest_of_object(m, at);
    if (code == 0 || code == s->code) {
        r->outcome = code == 0 ? NOT_BUILT : SAME_CODE;
    } else {
        bool known = is_reached(m, at, r->line);
        r->outcome = known ? SURVIVED : UNREACHED;
        (void)(caught_by_unit(m, at, known, r) || caught_by_case(m, at, "check/", CHECK, r) ||
               caught_by_case(m, at, "conform/", CONFORM, r));
    }
    return write_source(m, at, s->text);
}

/* ---- results --------------------------------------------------------------------------------- */

static ls_status keep(const mutate *m, int draw, const result *r)
{
    cJSON *line = cJSON_CreateObject();
    LS_MEMORY(line != NULL);
    cJSON_AddNumberToObject(line, "draw", draw);
    cJSON_AddStringToObject(line, "outcome", outcome_name[r->outcome]);
    cJSON_AddStringToObject(line, "file", m->reach.source[r->source].path);
    cJSON_AddNumberToObject(line, "line", r->line);
    cJSON_AddStringToObject(line, "kind", r->kind);
    cJSON_AddStringToObject(line, "before", r->before);
    cJSON_AddStringToObject(line, "after", r->after);
    cJSON_AddStringToObject(line, "by", r->by);
    cJSON_AddStringToObject(line, "tests", m->tests);
    cJSON_AddNumberToObject(line, "seconds", r->seconds);
    LS_TEXT(path, 700, "%s/mutants.jsonl", m->directory);
    ls_status status = ls_json_append_line(m->kept, path, line);
    cJSON_Delete(line);
    return status;
}

typedef struct kept_line {
    const mutate *of;
    int draw;
    result *into;
    bool found;
} kept_line;

static ls_status take_kept(void *context, const cJSON *line, int line_number)
{
    (void)line_number;
    kept_line *k = context;
    const result *r = k->into;
    if (ls_json_int(line, "draw", -1) == k->draw && ls_json_int(line, "line", 0) == r->line &&
        strcmp(ls_json_string(line, "file", ""), k->of->reach.source[r->source].path) == 0 &&
        strcmp(ls_json_string(line, "before", ""), r->before) == 0 &&
        strcmp(ls_json_string(line, "after", ""), r->after) == 0) {
        for (int o = 0; o < OUTCOMES; o++) {
            if (strcmp(ls_json_string(line, "outcome", ""), outcome_name[o]) == 0) {
                k->into->outcome = (outcome)o;
                k->found =
                    o < SURVIVED ||
                    (o != NOT_RUN && strcmp(ls_json_string(line, "tests", ""), k->of->tests) == 0);
            }
        }
        ls_text_put(k->into->by, sizeof k->into->by, "%s", ls_json_string(line, "by", ""));
        k->into->seconds = ls_json_number(line, "seconds", 0);
    }
    return LS_OK;
}

static bool is_kept(const mutate *m, int draw, result *r)
{
    LS_TEXT(path, 700, "%s/mutants.jsonl", m->directory);
    kept_line k = {.of = m, .draw = draw, .into = r};
    return access(path, R_OK) == 0 && ls_json_each_line(path, take_kept, &k) == LS_OK && k.found;
}

/* A row of the table: the mutants of a folder, or all. */
static void write_row(const mutate *m, const char *folder, FILE *to)
{
    int of[OUTCOMES] = {0};
    for (int i = 0; i < m->results; i++) {
        const char *path = m->reach.source[m->result[i].source].path;
        size_t length = strlen(folder);
        if (length == 0 || (strncmp(path, folder, length) == 0 && path[length] == '/' &&
                            strchr(path + length + 1, '/') == NULL)) {
            of[m->result[i].outcome]++;
        }
    }
    int caught = of[UNIT] + of[CHECK] + of[CONFORM];
    int counted = caught + of[SURVIVED] + of[UNREACHED] + of[NOT_RUN];
    int by_check = of[UNIT] + of[CHECK];
    if (counted + of[EQUIVALENT] > 0) {
        fprintf(to, "| %s | %d | %d | %d | %d | %d | %d | %d | %.0f %% | %.0f %% |\n",
                folder[0] == '\0' ? "all" : folder, counted, of[EQUIVALENT], of[UNIT], of[CHECK],
                of[CONFORM], of[SURVIVED], of[UNREACHED],
                counted == 0 ? 0.0 : 100.0 * by_check / counted,
                counted == 0 ? 0.0 : 100.0 * caught / counted);
    }
}

static ls_status write_tables(const mutate *m)
{
    LS_TEXT(path, 700, "%s/mutants.md", m->directory);
    FILE *to = ls_file_create(path);
    LS_TRY_FILE(to);
    fprintf(to,
            "# Mutants\n\nSingle changes of the code, drawn with seed %llu, each against the "
            "tests that execute its line. `make check` runs the unit programs and the must-pass "
            "list, `make conform` all cases.\n\n"
            "| folder | mutants | equivalent | by unit programs | by the must-pass list | by other "
            "cases | survived | not reached | score of check | score |\n"
            "|---|---|---|---|---|---|---|---|---|---|\n",
            (unsigned long long)m->seed);
    for (int i = 0; i < m->reach.sources; i++) {
        const char *path = m->reach.source[i].path;
        size_t bytes = (size_t)(strrchr(path, '/') + 1 - path);
        bool written = false; /* a folder's own files stand around those of its folders */
        for (int k = 0; k < i && !written; k++) {
            const char *other = m->reach.source[k].path;
            written = strncmp(other, path, bytes) == 0 && strchr(other + bytes, '/') == NULL;
        }
        if (!written) {
            LS_TEXT(folder, 128, "%.*s", (int)bytes - 1, path);
            write_row(m, folder, to);
        }
    }
    write_row(m, "", to);
    fprintf(to, "\nNot caught:\n\n");
    for (int i = 0; i < m->results; i++) {
        const result *r = &m->result[i];
        if (r->outcome == SURVIVED || r->outcome == UNREACHED) {
            fprintf(to, "* `%s:%d` %s: `%s` becomes `%s`%s\n", m->reach.source[r->source].path,
                    r->line, r->kind, r->before, r->after,
                    r->outcome == UNREACHED ? " (no test executes the line)" : "");
        }
    }
    fprintf(to, "\nEquivalent:\n\n");
    for (int i = 0; i < m->results; i++) {
        const result *r = &m->result[i];
        if (r->outcome == EQUIVALENT) {
            fprintf(to, "* `%s:%d` `%s` becomes `%s`: %s\n", m->reach.source[r->source].path,
                    r->line, r->before, r->after, r->reason);
        }
    }
    LS_TRY(ls_file_close(to, path));
    ls_text_put(path, sizeof path, "%s/mutants.tsv", m->directory);
    to = ls_file_create(path);
    LS_TRY_FILE(to);
    fprintf(to, "file\tline\tkind\tbefore\tafter\toutcome\tby\tseconds\n");
    for (int i = 0; i < m->results; i++) {
        const result *r = &m->result[i];
        fprintf(to, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%.1f\n", m->reach.source[r->source].path, r->line,
                r->kind, r->before, r->after, outcome_name[r->outcome], r->by, r->seconds);
    }
    return ls_file_close(to, path);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static ls_status parse(mutate *m, int count, char **argument)
{
    memset(m, 0, sizeof *m);
    for (int i = 0; i < count; i++) { /* parsing moves them */
        ls_words_add(&m->given, "%s", argument[i]);
    }
    m->wanted_text = "100";
    m->seed_text = "1";
    m->only = "*";
    const ls_command_option options[] = {
        {"--n", &m->wanted_text, NULL, NULL, "mutants to try (100)"},
        {"--seed", &m->seed_text, NULL, NULL, "seed of the draw (1)"},
        {"--file", &m->only, NULL, NULL, "only in files that match this pattern (*)"},
        {"--shard", &m->shard, NULL, NULL, "i/n: the i-th of n shares, from 1"},
        {"--out", &m->out, NULL, NULL, "the run's folder; an existing folder is resumed"},
    };
    int64_t wanted;
    LS_TRY(ls_command_parse("mutate", options, sizeof options / sizeof *options, &count, argument));
    LS_TRY(ls_command_no_operands("mutate", count, argument, ""));
    LS_TRY(ls_command_whole("--n", m->wanted_text, 1, 100000, &wanted));
    LS_TRY(ls_command_seed("--seed", m->seed_text, &m->seed));
    LS_TRY(ls_command_shard("--shard", m->shard, &m->share, &m->shares));
    m->wanted = (int)wanted / m->shares;
    return LS_OK;
}

static ls_status read_stamp(const mutate *m, const char *of, char *stamp, size_t bytes)
{
    LS_TEXT(path, 700, "%s/%s.stamp", m->tree, of);
    char *text = ls_text_read(path);
    if (text == NULL) {
        return ls_log_fail(LS_ERR_USAGE, "%s is missing: run make mutate", path);
    }
    ls_text_put(stamp, bytes, "%.*s", (int)strcspn(text, "\n"), text);
    free(text);
    return LS_OK;
}

/* Until the program ends: two runs would change each other's sources. */
static ls_status lock_tree(mutate *m)
{
    LS_TEXT(path, 700, "%s/lock", m->tree);
    int lock = ls_file_open_to_write(path, 0);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) != 0) {
        return ls_log_fail(LS_ERR_INFRA, "%s: %s: another run changes these sources?", path,
                           strerror(errno));
    }
    return LS_OK;
}

/* A run belongs to one state of the product's sources: another start with it resumes. */
static ls_status make_folder(mutate *m)
{
    char folder[600], stamp[64] = "";
    ls_path_program(folder, sizeof folder);
    ls_text_put(m->tree, sizeof m->tree, "%s/mutate", folder);
    LS_TRY(lock_tree(m));
    LS_TRY(read_stamp(m, "product", stamp, sizeof stamp));
    LS_TRY(read_stamp(m, "tests", m->tests, sizeof m->tests));
    if (!ls_path_find("suite/mutate", m->self, sizeof m->self)) {
        return ls_log_fail(LS_ERR_USAGE, "suite/mutate is missing: run make mutate at the top");
    }
    if (m->out != NULL) {
        ls_command_absolute(m->out, m->directory, sizeof m->directory);
    } else {
        ls_text_put(folder, sizeof folder, "results/runs/mutate-%s-%llu", stamp,
                    (unsigned long long)m->seed);
        ls_command_absolute(folder, m->directory, sizeof m->directory);
    }
    return ls_path_make_chosen(m->directory, LS_COMMAND_OUT_HINT);
}

static int lines_of(const char *text)
{
    int lines = 1;
    for (; *text != '\0'; text++) {
        lines += *text == '\n';
    }
    return lines;
}

static void add_places(mutate *m, int at)
{
    const ls_mutant_list *list = &m->source[at].mutants;
    for (int i = 0; i < list->count;) {
        int first = i;
        while (i < list->count && list->mutant[i].line == list->mutant[first].line) {
            i++;
        }
        m->place = ls_list_grow(m->place, m->places, &m->place_capacity, sizeof *m->place);
        m->place[m->places++] = (place){.source = at, .first = first, .count = i - first};
    }
}

static ls_status refuse_file(const mutate *m)
{
    const char **names = ls_list_make((size_t)m->reach.sources + 1, sizeof *names);
    char hint[200];
    for (int i = 0; i < m->reach.sources; i++) {
        names[i] = m->reach.source[i].path;
    }
    ls_text_suggest(hint, sizeof hint, m->only, names, m->reach.sources,
                    "build/mutate/sources lists all");
    free(names);
    return ls_log_fail(LS_ERR_USAGE, "--file '%s' matches no line that can be changed; %s", m->only,
                       hint);
}

/* The sources, their mutants, and the tests that reach each line. */
static ls_status read_sources(mutate *m)
{
    LS_TEXT(path, 700, "%s/sources", m->tree);
    char *names = NULL, *rest = NULL;
    size_t bytes;
    LS_TRY(ls_file_read(path, LS_FILE_TEXT_BYTES, &names, &bytes));
    int capacity = 0;
    for (char *name = strtok_r(names, "\n", &rest); name != NULL;
         name = strtok_r(NULL, "\n", &rest)) {
        m->source = ls_list_grow(m->source, m->reach.sources, &capacity, sizeof *m->source);
        source *s = &m->source[m->reach.sources];
        memset(s, 0, sizeof *s);
        /* from the sources themselves: a start that was killed may have left a mutant in the tree
         */
        if ((s->text = ls_text_read(name)) == NULL) {
            free(names);
            return ls_log_fail(LS_ERR_USAGE, "%s cannot be read: run make mutate at the top", name);
        }
        ls_mutants_of(s->text, &s->mutants);
        ls_reach_add_source(&m->reach, name, lines_of(s->text));
        LS_TRY(write_source(m, m->reach.sources - 1, s->text));
        if (ls_text_matches(m->only, name)) {
            add_places(m, m->reach.sources - 1);
        }
    }
    free(names);
    LS_TEXT(reach, 700, "%s/reach", m->tree);
    LS_TRY(ls_reach_read(reach, &m->reach));
    ls_text_put(path, sizeof path, "%s/equivalent.txt", m->self);
    m->equivalent = ls_text_read(path);
    return m->places > 0 ? LS_OK : refuse_file(m);
}

static void print(const mutate *m, const result *r, int number)
{
    printf("[%3d/%d] %-11s %s:%d %s: %s -> %s%s%s (%.0f s)\n", number, m->wanted,
           outcome_name[r->outcome], m->reach.source[r->source].path, r->line, r->kind, r->before,
           r->after, r->by[0] == '\0' ? "" : ", by ", r->by, r->seconds);
    fflush(stdout);
}

/* Draws lines without repetition, and on each line one of its mutants. */
static ls_status try_mutants(mutate *m)
{
    int64_t *order = ls_list_make((size_t)m->places, sizeof *order);
    ls_status status = LS_OK;
    int tried = 0;
    ls_rng_permutation(m->seed, m->places, order);
    for (int draw = m->share;
         draw < m->places && tried < m->wanted && status == LS_OK && !m->stopped;
         draw += m->shares) {
        const place *at = &m->place[order[draw]];
        const source *s = &m->source[at->source];
        const ls_mutant *mutant =
            &s->mutants.mutant[at->first + (int)ls_rng_below(m->seed, ls_rng_stream("mutant"),
                                                             (uint64_t)draw, (uint32_t)at->count)];
        result r = {.source = at->source, .line = mutant->line};
        ls_text_put(r.kind, sizeof r.kind, "%s", mutant->kind);
        ls_mutants_show(s->text, mutant, r.before, r.after, sizeof r.before);
        if (!is_listed(m, &r) && !is_kept(m, draw, &r)) {
            int64_t begun_ns = ls_clock_ns();
            status = judge(m, at->source, mutant, &r);
            r.seconds = ls_clock_ms_between(begun_ns, ls_clock_ns()) * 1e-3;
            if (m->stopped || status != LS_OK) {
                break;
            }
            LS_THEN(status, keep(m, draw, &r));
        }
        m->no_mutants += r.outcome == NOT_BUILT || r.outcome == SAME_CODE;
        if (r.outcome != NOT_BUILT && r.outcome != SAME_CODE) {
            m->result = ls_list_grow(m->result, m->results, &m->result_capacity, sizeof *m->result);
            m->result[m->results++] = r;
            tried += r.outcome != EQUIVALENT;
            print(m, &r, tried);
        }
    }
    free(order);
    return status;
}

static ls_status run_all(mutate *m)
{
    LS_TRY(make_folder(m));
    LS_TRY(read_sources(m));
    LS_TRY(ls_proc_catch_signals());
    LS_TEXT(path, 700, "%s/mutants.jsonl", m->directory);
    m->kept = ls_file_open_to_write(path, O_APPEND);
    if (m->kept < 0) {
        return ls_log_fail(LS_ERR_INFRA, "%s: %s", path, strerror(errno));
    }
    ls_status status = try_mutants(m);
    close(m->kept);
    LS_THEN(status, write_tables(m));
    int of[OUTCOMES] = {0};
    for (int i = 0; i < m->results; i++) {
        of[m->result[i].outcome]++;
    }
    int caught = of[UNIT] + of[CHECK] + of[CONFORM], counted = m->results - of[EQUIVALENT];
    printf(
        "\n%d of %d mutants caught: %d by make check, %d more by make conform; %d survived, "
        "%d on lines that no test executes; %d equivalent; %d not run; %d changes not built or of "
        "the same code, not counted\n%d tests mapped\ntable: %s/mutants.md\n",
        caught, counted, of[UNIT] + of[CHECK], of[CONFORM], of[SURVIVED], of[UNREACHED],
        of[EQUIVALENT], of[NOT_RUN], m->no_mutants, m->reach.tests, m->directory);
    if (status == LS_OK && !m->stopped &&
        (counted == 0 || of[NOT_RUN] > 0 || m->reach.tests == 0)) {
        status = ls_log_fail(LS_ERR_INFRA, "%s: no score",
                             counted == 0          ? "no mutant was tried"
                             : m->reach.tests == 0 ? "no test is mapped"
                                                   : "tests of some mutants could not be run");
    }
    if (m->stopped) {
        if (m->out == NULL) {
            ls_words_add(&m->given, "--out=%s", m->directory);
        }
        char *line = ls_command_go_on("mutate", &m->given);
        printf("stopped; to go on: %s\n", line);
        free(line);
    }
    return status;
}

int ls_mutate_main(int count, char **argument)
{
    mutate m;
    int code = (int)parse(&m, count, argument);
    if (code == LS_OK) {
        code = (int)run_all(&m);
    }
    for (int i = 0; i < m.reach.sources; i++) {
        free(m.source[i].text);
        free(m.source[i].mutants.mutant);
    }
    free(m.source);
    free(m.place);
    free(m.result);
    free(m.equivalent);
    ls_words_free(&m.given);
    ls_reach_free(&m.reach);
    return code == LS_OK && m.stopped ? ls_proc_stopped_code() : code;
}
