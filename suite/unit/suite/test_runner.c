/* The runner with an invented trainer: equal jobs run once, a crash is one case's and the matrix
 * goes on, an interrupted run is picked up. */
#include <signal.h>

#include "suite/cases/rows.h"
#include "suite/run/headline.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"
#include "harness/process/proc.h"
#include "kernels/core/clock.h"
#include "kernels/core/json.h"
#include "suite/unit/junit_read.h"

/* Counts its starts in a file next to the run, writes one step per rank; with --seed=2 rank 1 kills
 * itself, with --seed=3 it refuses. */
static const char script[] =
    "echo started >> \"$LS_RUN_DIR/../../../starts\"\n"
    "out=\"$LS_RUN_DIR/rank$RANK.jsonl\"\n"
    "echo '{\"event\":\"start\",\"schema\":1,\"options\":{}}' > \"$out\"\n"
    "case \"$*\" in\n"
    "*--seed=2\\ *|*--seed=2) [ \"$RANK\" = 1 ] && kill -9 $$ || exit 10 ;;\n"
    "*--seed=3*) echo '{\"event\":\"unsupported\",\"option\":\"--x\",\"why\":\"no\"}' >> \"$out\"\n"
    "  exit 4 ;;\n"
    "esac\n"
    "echo '{\"event\":\"step\",\"step\":1,\"loss\":1,\"digest\":{\"param\":\"0000000000000001\"}}'"
    " >> \"$out\"\n"
    "echo '{\"event\":\"end\",\"code\":0}' >> \"$out\"\n";

/* Of each test. */
static char subject[200];
static ls_run run;

static void drop_run(void)
{
    ls_runner_free(&run);
    fake_end();
}

/* Opens the run, and runs it. */
static void run_all(void)
{
    ck_assert_int_eq(ls_runner_open(&run), LS_OK);
    ck_assert_int_eq(ls_runner_run(&run), LS_OK);
}

static void judge_step(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    if (job[0].rank[1].step_count != 1) {
        ls_verdict_fail(out, "%d steps", job[0].rank[1].step_count);
    }
    ls_verdict_pass(out, job[0].rank[1].step_count, "one step");
}

static void add_case(const char *id, int seed, int second_seed)
{
    const ls_case_settings settings = {.seed = (uint64_t)seed};
    ls_case *row = ls_rows_format(
        &run.cases, &settings, &(ls_row){.requirement = "G1", .judge = judge_step},
        "%s: w2 steps=1 limit=20%s", id, second_seed > 0 ? " | w2 steps=1 limit=20" : "");
    row->job[1].seed = (uint64_t)second_seed;
}

static void prepare_empty(const char *trainer)
{
    memset(&run, 0, sizeof run);
    FILE *file = fake_open(folder, "trainer.sh");
    fputs(trainer, file);
    fclose(file);
    ls_text_put(subject, sizeof subject, "sh %s/trainer.sh", folder);
    ls_text_put(run.directory, sizeof run.directory, "%s/run", folder);
    run.site = (ls_matrix_site){
        .subject = subject, .run_directory = run.directory, .device = "cpu", .cores = 2};
    ls_text_put(run.claim_name, sizeof run.claim_name, "all");
    ls_select_add(&run.claim, "*", "");
}

static void prepare(void)
{
    prepare_empty(script);
    add_case("a.first", 1, 0);
    add_case("b.crash", 2, 0);
    add_case("c.both", 1, 4);
    add_case("d.refused", 3, 0);
    ls_runner_plan(&run);
}

static int starts(void)
{
    char path[200];
    ls_text_put(path, sizeof path, "%s/starts", folder);
    char *text = ls_text_read(path);
    int count = 0;
    for (char *c = text; c != NULL && *c != '\0'; c++) {
        count += *c == '\n';
    }
    free(text);
    return count;
}

TEST(jobs_run_once_and_a_crash_stops_nothing)
{
    prepare();
    ck_assert_int_eq(run.jobs.count, 4);
    run_all();
    ck_assert_int_eq(run.verdict[0].code, LS_PASS);
    ck_assert_int_eq(run.verdict[1].code, LS_CRASH);
    ck_assert_ptr_nonnull(strstr(run.verdict[1].evidence, "rank=1 signal=9"));
    ck_assert_int_eq(run.verdict[2].code, LS_PASS);
    ck_assert_int_eq(run.verdict[3].code, LS_UNSUPPORTED);
    ck_assert_int_eq(starts(), 4 * 2);
    char repeat[600];
    ls_verdicts_repeat(&run, 1, repeat, sizeof repeat);
    ck_assert_ptr_nonnull(strstr(repeat, "conform --case b.crash --seed 0 --device cpu"));
}

TEST(an_interrupted_run_does_only_the_rest)
{
    prepare();
    run_all();
    ls_runner_free(&run);
    prepare();
    ck_assert_int_eq(ls_runner_look_back(&run), LS_OK);
    /* the plan lists the remaining jobs */
    char *plan = NULL;
    size_t bytes;
    FILE *to = open_memstream(&plan, &bytes);
    ck_assert_ptr_nonnull(to);
    ls_runner_print_plan(&run, to);
    fclose(to);
    ck_assert_ptr_nonnull(strstr(plan, "\n4 cases, 2 of 4 jobs left (2 are done), about "));
    ck_assert_ptr_null(strstr(plan, "\n  1 "));
    ck_assert_ptr_nonnull(strstr(plan, "\n  2 "));
    ck_assert_ptr_null(strstr(plan, "\n  3 "));
    ck_assert_ptr_nonnull(strstr(plan, "\n  4 "));
    free(plan);
    ck_assert_int_eq(ls_runner_open(&run), LS_OK);
    ck_assert(run.judged[0] && !run.judged[1] && run.judged[2]);
    ck_assert_int_eq(ls_runner_run(&run), LS_OK);
    /* the two jobs that did not end well are tried again, nothing else */
    ck_assert_int_eq(starts(), 4 * 2 + 2 * 2);
    ck_assert_int_eq(run.verdict[0].code, LS_PASS);
    ck_assert_int_eq(run.verdict[1].code, LS_CRASH);
}

/* Changes what verdicts.jsonl says of the first case. */
static void rewrite(const char *from, const char *to)
{
    LS_TEXT(path, 200, "%s/run/verdicts.jsonl", folder);
    char *text = ls_text_read(path), *at = text == NULL ? NULL : strstr(text, from);
    ck_assert_ptr_nonnull(at);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    fclose(file);
    free(text);
}

LOOP_TEST(a_pass_without_a_count_is_not_taken_over, 3)
{
    static const char *const counts[] = {"", "\"compared\":0,", "\"compared\":2,"};
    prepare_empty(script);
    add_case("a.first", 1, 0);
    ls_runner_plan(&run);
    run_all();
    ck_assert_int_eq(run.verdict[0].compared, 1);
    ls_runner_free(&run);
    rewrite("\"compared\":1,", counts[_i]);
    prepare_empty(script);
    add_case("a.first", 1, 0);
    ls_runner_plan(&run);
    ck_assert_int_eq(ls_runner_open(&run), LS_OK);
    ck_assert_int_eq(run.judged[0], _i == 2);
    ck_assert_int_eq(ls_runner_run(&run), LS_OK);
    ck_assert_int_eq(run.verdict[0].code, LS_PASS);
    ck_assert_int_eq(run.verdict[0].compared, _i == 2 ? 2 : 1);
    /* its job too has run again: the dumps may be gone */
    ck_assert_int_eq(starts(), _i == 2 ? 2 : 4);
}

static void judge_nothing(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    (void)job;
    (void)out;
}

TEST(a_judge_that_does_nothing_is_weak)
{
    prepare_empty(script);
    add_case("a.nothing", 1, 0);
    run.cases.row[0].judge = judge_nothing;
    ls_runner_plan(&run);
    run_all();
    ck_assert_int_eq(run.verdict[0].code, LS_WEAK);
    ck_assert_str_eq(run.verdict[0].evidence, "the judge compared nothing");
}

TEST(fail_early_leaves_the_rest_unjudged)
{
    prepare();
    run.fail_early = true;
    run_all();
    ck_assert_int_eq(run.verdict[1].code, LS_CRASH);
    ck_assert_int_eq(run.verdict[2].code, LS_SKIP);
    ck_assert_int_eq(run.verdict[3].code, LS_SKIP);
    ck_assert_int_eq(starts(), 2 * 2);
}

TEST(a_waiver_turns_a_failure_with_its_reason)
{
    prepare();
    ls_select_add(&run.waivers, "b.*", "known fault of the invented trainer");
    run_all();
    ck_assert_int_eq(run.verdict[0].code, LS_PASS);
    ck_assert_int_eq(run.verdict[1].code, LS_WAIVED);
    ck_assert_int_eq(run.verdict[3].code, LS_UNSUPPORTED);
}

/* The first job takes longer than all may: what it shows is kept, the rest is not run. */
TEST(no_job_begins_when_the_budget_is_used_up)
{
    ls_headline headline;
    prepare();
    run.budget_s = 0.25;
    run.site.start_s = 0.01;
    LS_TEXT(slow, 200, "sed -i 's/^echo started/sleep 0.3; &/' %s/trainer.sh", folder);
    ck_assert_int_eq(system(slow), 0);
    run.claim_cases = run.cases.count;
    run_all();
    ck_assert_int_eq(run.cases.count, 1);
    ck_assert_int_eq(run.verdict[0].code, LS_PASS);
    ck_assert_int_eq(starts(), 2);
    ls_headline_decide(&run, &headline);
    ck_assert_int_eq(headline.correct, LS_CORRECT_NOT_SHOWN);
    ck_assert_int_eq(ls_headline_exit(&headline), 0);
}

/* A trainer that takes a second to start makes the plan longer. */
TEST(the_start_of_a_subject_is_measured)
{
    prepare();
    LS_TEXT(slow, 200, "sed -i 's/^echo started.*/sleep 1/' %s/trainer.sh", folder);
    ck_assert_int_eq(system(slow), 0);
    ck_assert_int_eq(ls_start_measure(&run.site), LS_OK);
    ck_assert_double_ge(run.site.start_s, 1);
    ck_assert_double_lt(run.site.start_s, 10);
    ck_assert_double_gt(ls_matrix_estimate_at(&run.jobs.spec[0], &run.site), run.site.start_s);
    ls_spec crowded = run.jobs.spec[0];
    crowded.world = 8; /* on two cores, one after the other */
    ck_assert_double_gt(ls_matrix_estimate_at(&crowded, &run.site), 4 * run.site.start_s);
    /* another start of the run takes it over */
    ck_assert_int_eq(ls_runner_open(&run), LS_OK);
    double start_s = run.site.start_s;
    run.site.start_s = 0;
    ck_assert_int_eq(ls_start_measure(&run.site), LS_OK);
    ck_assert(run.site.start_s == start_s);
}

/* Refuses some options, some values, and a value at one level. */
static const char refusing[] =
    "echo started >> \"$LS_RUN_DIR/../../../starts\"\n"
    "refuse() { echo '{\"event\":\"unsupported\",\"schema\":1,\"option\":\"'$1'\",\"why\":\"no\"}'"
    " > \"$LS_RUN_DIR/rank$RANK.jsonl\"; exit 4; }\n"
    "case \"$*\" in *--sync-bn*) refuse --sync_bn ;; *=lamb*) refuse --optimizer=lamb ;;\n"
    "*resnet32*) refuse --arch ;; *=O3*=dynamic*) refuse --loss-scale ;;\n"
    "*=torch*) refuse --none ;; *) refuse --dialect ;; esac\n";

static const struct asked {
    const char *job;
    int starts; /* ranks that this job starts, after those before it */
} asked[] = {
    {"w2 sync", 2},
    {"w2 sync O2", 0},
    {"w3 sync torch", 0},
    {"w2 --optimizer=lamb", 2},
    {"w2 --optimizer=lamb --nesterov", 0},
    {"w2 --optimizer=adam", 2}, /* another value; the dialect is refused */
    {"w2 --optimizer=adam --nesterov", 0},
    {"w2 --optimizer=adam torch", 2},
    {"resnet32 w2 torch", 2},
    {"resnet32 w2 torch O2", 0},
    {"resnet8 w2 torch", 2},
    {"w2 torch O3 scale=dynamic", 2},
    {"w2 torch O3 scale=dynamic --nesterov", 0},
    {"w2 torch O2 scale=dynamic", 2}, /* the same value at another level */
    {"w2 torch O2 scale=dynamic --nesterov", 2},
};

TEST(a_refused_option_is_asked_once)
{
    enum { JOBS = sizeof asked / sizeof *asked };
    int expected = 0;
    prepare_empty(refusing);
    const ls_case_settings settings = {.seed = 0};
    ls_row row = {.requirement = "G1", .judge = judge_step};
    for (int i = 0; i < JOBS; i++) {
        ls_rows_format(&run.cases, &settings, &row, "a.%d: %s limit=20", i, asked[i].job);
        expected += asked[i].starts;
    }
    row.judges_outcome = true; /* a case about how its job ends asks again */
    ls_rows_format(&run.cases, &settings, &row, "a.end: w2 sync repeat=9 limit=20");
    ls_runner_plan(&run);
    run_all();
    for (int i = 0; i <= JOBS; i++) {
        ck_assert_int_eq(run.verdict[i].code, LS_UNSUPPORTED);
    }
    ck_assert_int_eq(starts(), expected + 2);
    ck_assert_str_eq(run.verdict[0].evidence, "the subject refuses --sync_bn: no");
    LS_TEXT(first, 200, "the subject refuses --sync_bn: no (job %s)", run.jobs.id[0]);
    ck_assert_str_eq(run.verdict[2].evidence, first);
}

/* Jobs so far took twice their estimate. */
TEST(time_left_falls_while_a_job_runs)
{
    ls_progress_times times = {.before_s = 10, .job_s = 10, .after_s = 20, .elapsed_s = 20};
    double left_s[] = {60, 55, 40, 40};
    double running_s[] = {0, 5, 20, 30};
    for (int i = 0; i < 4; i++) {
        times.running_s = running_s[i];
        ck_assert(ls_progress_left_s(&times) == left_s[i]);
    }
    times = (ls_progress_times){.job_s = 10, .after_s = 20, .elapsed_s = 3};
    ck_assert(ls_progress_left_s(&times) == 30); /* no job has ended, so the pace is unknown */
}

/* Lines that a run prints, pasted into a shell: a failing line's repeat line does the same case
 * with the same verdict, and a stopped run's line goes on with it. */

/* The first verdict of a run. */
typedef struct seen {
    char id[LS_CASE_ID_BYTES], code[16], evidence[512], repeat[600];
} seen;

static ls_status take(void *context, const cJSON *line, int number)
{
    seen *s = context;
    if (number == 1) {
        ls_text_put(s->id, sizeof s->id, "%s", ls_json_string(line, "case", ""));
        ls_text_put(s->code, sizeof s->code, "%s", ls_json_string(line, "verdict", ""));
        ls_text_put(s->evidence, sizeof s->evidence, "%s", ls_json_string(line, "evidence", ""));
        ls_text_put(s->repeat, sizeof s->repeat, "%s", ls_json_string(line, "repeat", ""));
    }
    return LS_OK;
}

/* Runs the line in that folder. Returns the exit code. */
static int paste(const char *line)
{
    char command[1600];
    ls_text_put(command, sizeof command, "cd '%s' && { %s\n} >>log 2>&1", folder, line);
    int status = system(command);
    return status < 0 || status % 256 != 0 ? -1 : status / 256;
}

/* Where the program lies, as a script that puts it there ($B: this build) and how it is started. */
static const struct place {
    const char *set_up, *command, *named;
} places[] = {
    {":", "build/lockstep", "lockstep conform"},
    {"rm build; mkdir -p build && cp \"$B/lockstep\" build && ln -s \"$T/suite\" .",
     "build/lockstep", "build/lockstep conform"},
    /* make install, then moved below a name with a blank */
    {"rm build; mkdir -p 'my tools/bin' 'my tools/lib/lockstep' && cd 'my tools' && "
     "cp \"$B/lockstep\" lib/lockstep && ln -s \"$T/suite\" lib/lockstep && "
     "ln -s ../lib/lockstep/lockstep bin",
     "'my tools/bin/lockstep'", "'my tools/lib/lockstep/lockstep' conform"},
    /* make dist */
    {"rm build; mkdir -p x/libexec && cp \"$B/lockstep\" x/libexec && ln -s \"$T/suite\" "
     "x/libexec && ln -s libexec/lockstep x/lockstep",
     "x/lockstep", "x/lockstep conform"},
};

static seen latest(void)
{
    char path[200];
    seen s;
    memset(&s, 0, sizeof s);
    ls_text_put(path, sizeof path, "%s/results/latest/verdicts.jsonl", folder);
    ck_assert_int_eq(ls_json_each_line(path, take, &s), LS_OK);
    return s;
}

/* <folder>/build is this build. */
static void link_build(const char *folder)
{
    char program[1024], link[200];
    ls_path_program(program, sizeof program);
    char *slash = strrchr(program, '/'); /* this program lies in build/unit */
    ck_assert_ptr_nonnull(slash);
    *slash = '\0';
    ls_text_put(link, sizeof link, "%s/build", folder);
    ck_assert_int_eq(symlink(program, link), 0);
}

/* A trainer that ends with an error is the cheapest failure there is. */
static void round_trip(const struct place *place, const char *arguments)
{
    char line[1600];
    link_build(folder);
    FILE *trainer = fake_open(folder, "fails.sh");
    fprintf(trainer,
            "echo '{\"event\":\"start\",\"schema\":1}' >$LS_RUN_DIR/rank$RANK.jsonl; exit 1");
    fclose(trainer);
    ls_text_put(
        line, sizeof line,
        "B=$(readlink build) T=$(cd $B && while [ ! -d suite/claims ]; do cd ..; done; pwd); %s",
        place->set_up);
    ck_assert_int_eq(paste(line), 0);
    ls_text_put(line, sizeof line, "%s conform %s", place->command, arguments);
    ck_assert_int_eq(paste(line), 1);
    seen first = latest();
    ck_assert_str_eq(first.code, "FAIL");
    ck_assert_ptr_nonnull(strstr(first.repeat, first.id));
    ck_assert_msg(strstr(first.repeat, place->named) != NULL, "%s", first.repeat);
    ck_assert_int_eq(paste(first.repeat), 1);
    seen again = latest();
    ck_assert_str_eq(again.id, first.id);
    ck_assert_str_eq(again.code, first.code);
    ck_assert_str_eq(again.evidence, first.evidence);
    ck_assert_str_eq(again.repeat, first.repeat);
}

LOOP_TEST(a_repeat_line_repeats, 2 * sizeof places / sizeof *places)
{
    round_trip(&places[_i / 2],
               _i % 2 == 0
                   ? "--case scaler.trace.due.o2 --subject 'sh fails.sh' --seed 11 --device cpu"
                   : "--case 'scaler.trace.plain.o?' --subject 'sh  ./fails.sh' --seed 12");
}

/* Installed where the user may not write, the cache of the oracle's steps is in the run's folder,
 * without a word. Root writes everywhere: a file is in the way. */
TEST(an_installation_is_not_written)
{
    link_build(folder);
    ck_assert_int_eq(paste("B=$(readlink build) T=$(cd $B && while [ ! -d suite/claims ]; do cd "
                           "..; done; pwd); rm build; mkdir bin; cp \"$B/lockstep\" bin; ln -s "
                           "\"$T/suite\" \"$T/plots\" . && ln -s \"$B/lib\" \"$B/lockstep-train\" "
                           "bin && >bin/oracle"),
                     0);
    ck_assert_int_eq(
        paste("bin/lockstep conform --case gradients.o0.w2.b0.1mb --device cpu >>said 2>&1"), 0);
    ck_assert_int_eq(paste("! grep -e error -e warning said && ls results/latest/oracle | grep ."),
                     0);
}

/* ---- stopped runs ---------------------------------------------------------------------------- */

/* Commands in a folder of this name, from which a shell makes other words unless it is quoted, with
 * what is there when one job is done, its case judged, and another job is running. */
#define AWKWARD "it's $HOME * \"x\""
#define TWO "--case gradients.o0.w2.b0.1mb --case scaler.trace.plain.o2 --device cpu "
#define SMALL "ARCH=resnet8 BATCH=1 STEPS=40 OPT_LEVELS=O0 BUCKETS_MB=25 NGPUS=1 DATA=synthetic "

#define TRAIN(job, arch)                                                                      \
    "LS_RUN_DIR=\"$PWD/jobs/" job "\" build/lockstep-train -a " arch " --image-size 64 -b 8 " \
    "--steps 1 --dump-steps 1 --opt-level O0 --device cpu >log 2>&1"
#define PACK " && XZ_OPT=-0 tar -cJf run.tar.xz jobs"

static const struct stopped {
    const char *command, *ready;
    int signal;
    const char *before, *after; /* commands that end with 0; NULL: none */
} stopped[] = {
    {"build/lockstep conform --out run " TWO "--subject 'sh train.sh'", "[ -e waits ]", SIGTERM,
     NULL, NULL},
    {"build/lockstep conform --out='r $PWD' " TWO "--subject='sh train.sh'", "[ -e waits ]", SIGINT,
     NULL, NULL},
    {"build/lockstep conform " TWO "--subject 'sh train.sh'", "[ -e waits ]", SIGHUP, NULL, NULL},
    {"build/lockstep bench PROFILE=smoke " SMALL "OUT='a $PWD b' DEVICE=cpu LABEL=x",
     "ls a*b/*/jobs/*.s43-*/rank0.jsonl 2>/dev/null >&2", SIGTERM, NULL, NULL},
    {"build/lockstep judge .", "grep -q gradients.a log", SIGTERM,
     "mkdir -p jobs/a jobs/b && " TRAIN("a", "resnet8") " && " TRAIN("b", "resnet18"),
     "[ $(grep -c gradients.a log) = 1 ] && grep -q 'ok.*gradients.b' log"},
    {"env TMPDIR=\"$PWD\" build/lockstep judge run.tar.xz", "grep -q gradients.a log", SIGTERM,
     "mkdir -p jobs/a jobs/b && " TRAIN("a", "resnet8") " && " TRAIN("b", "resnet20") PACK,
     "[ $(grep -c gradients.a log) = 1 ] && grep -q 'ok.*gradients.b' log && "
     "! ls -d lockstep-archive-*"},
};

/* Waits in the jobs of scaler.trace.plain.o2 until there is a file `on`. */
static const char waiting_trainer[] =
    "case $* in *--opt-level=O2*) >waits; until [ -e on ]; do sleep 0.05; done ;; esac\n"
    "exec build/lockstep-train \"$@\"\n";

/* Copies all to ../before; afterwards compares what was there with what is there now: no file is
 * gone, and the files of finished jobs are as they were. The signal may come between the last event
 * of a job and its outcome: then it is run again. Judging adds facts to a job.json and removes the
 * dumps of a timed job. */
static const char copy[] = "cp -a . ../before";
static const char compare[] =
    "here=$PWD; cd ../before && find . -type f ! -path '*.s43-*/dump/*' >../files && while read -r "
    "file; do [ -e \"$here/$file\" ] || exit 1; done <../files && find . -name rank0.jsonl -exec "
    "grep -q '\"event\":\"end\"' {} ';' -printf '%h\\n' | while read -r job; do [ -e "
    "\"$job/job.json\" ] && ! grep -q '\"state\":[[:space:]]*\"done\"' \"$job/job.json\" || echo "
    "\"$job\"; done >../done && [ -s ../done ] && while read -r job; do diff -rx compare.json -x "
    "job.json -x dump \"$job\" \"$here/$job\" || exit 1; done <../done";

/* Runs the line with sh. Returns its exit code. */
static int shell(const char *line)
{
    int status = system(line);
    return status < 0 || status % 256 != 0 ? -1 : status / 256;
}

/* Starts the command here, stops it when it is ready, and returns its exit code. */
static int stop(const struct stopped *s)
{
    char line[600], *argv[] = {"sh", "-c", line, NULL};
    ls_text_put(line, sizeof line, "exec %s", s->command);
    ls_proc_spec spec = {.argv = argv, .environment = environ, .log_path = "log"};
    ls_proc run;
    ck_assert_int_eq(ls_proc_start(&spec, &run), LS_OK);
    while (shell(s->ready) != 0) {
        ck_assert_int_eq(ls_proc_wait_any(&run, 1, ls_clock_after(0.02)), -1);
    }
    ck_assert_int_eq(kill(run.pid, s->signal), 0);
    ck_assert(ls_proc_wait_all(&run, 1, ls_clock_after(20)));
    return run.code;
}

ROWS_TEST(a_stopped_run_goes_on, stopped)
{
    const struct stopped *s = &stopped[_i];
    char path[200];
    ls_text_put(path, sizeof path, "%s/" AWKWARD, folder);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    link_build(path);
    ck_assert_int_eq(chdir(path), 0);
    FILE *file = fake_open(path, "train.sh");
    fputs(waiting_trainer, file);
    fclose(file);
    ck_assert(s->before == NULL || shell(s->before) == 0);
    ck_assert_int_eq(stop(s), 128 + s->signal);
    char *log = ls_text_read("log");
    ck_assert_ptr_nonnull(log);
    char *line = strstr(log, "; to go on: ");
    ck_assert_msg(line != NULL, "%s", log);
    line += strlen("; to go on: ");
    line[strcspn(line, "\n")] = '\0';
    /* a CI gets what was judged until then */
    ck_assert_int_eq(shell("find . -name junit.xml -exec cp {} ../junit.xml ';'"), 0);
    char *junit = ls_text_read("../junit.xml");
    ck_assert((junit == NULL) == (strstr(s->command, " judge ") != NULL));
    junit_counts counts = junit == NULL ? (junit_counts){.errors = 1} : junit_read(junit);
    ck_assert_int_eq(counts.failures, 0);
    ck_assert_int_gt(counts.errors, 0);
    ck_assert(counts.errors < counts.tests || strstr(s->command, "conform") == NULL);
    free(junit);
    ck_assert_int_eq(shell(copy), 0);
    if (strstr(s->command, "--out") != NULL) { /* the same once more */
        LS_TEXT(again, 600, "%s >>log 2>&1", s->command);
        ck_assert_int_eq(shell(again), LS_ERR_USAGE);
    }
    fclose(fake_open(path, "on"));
    char *paste[] = {"sh", "-c", line, NULL};
    ls_proc_spec spec = {
        .argv = paste, .environment = environ, .log_path = "log", .directory = "/"};
    ls_proc run;
    ck_assert_int_eq(ls_proc_start(&spec, &run), LS_OK);
    ck_assert(ls_proc_wait_all(&run, 1, ls_clock_after(50)));
    ck_assert_msg(run.code == 0, "code %d: %s", run.code, line);
    ck_assert(s->after == NULL || shell(s->after) == 0);
    ck_assert_msg(shell(compare) == 0, "a finished job was run again: %s", line);
    free(log);
    ck_assert_int_eq(chdir("/"), 0);
}

TEST_MAIN("runner", .timeout_s = 60, .before = fake_begin, .after = drop_run)
