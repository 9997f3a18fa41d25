/* Lines that a run prints, pasted into a shell: a failing line's repeat line does the same case
 * with the same verdict, and a stopped run's line goes on with it. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/process/proc.h"
#include "kernels/core/clock.h"
#include "kernels/core/text.h"
#include "kernels/core/json.h"
#include "kernels/core/path.h"
#include "suite/unit/junit_read.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

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
static int paste(const char *folder, const char *line)
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

static seen latest(const char *folder)
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
    char folder[64], line[1600];
    fake_folder(folder, sizeof folder);
    link_build(folder);
    FILE *trainer = fake_open(folder, "fails.sh");
    fprintf(trainer,
            "echo '{\"event\":\"start\",\"schema\":1}' >$LS_RUN_DIR/rank$RANK.jsonl; exit 1");
    fclose(trainer);
    ls_text_put(
        line, sizeof line,
        "B=$(readlink build) T=$(cd $B && while [ ! -d suite/claims ]; do cd ..; done; pwd); %s",
        place->set_up);
    ck_assert_int_eq(paste(folder, line), 0);
    ls_text_put(line, sizeof line, "%s conform %s", place->command, arguments);
    ck_assert_int_eq(paste(folder, line), 1);
    seen first = latest(folder);
    ck_assert_str_eq(first.code, "FAIL");
    ck_assert_ptr_nonnull(strstr(first.repeat, first.id));
    ck_assert_msg(strstr(first.repeat, place->named) != NULL, "%s", first.repeat);
    ck_assert_int_eq(paste(folder, first.repeat), 1);
    seen again = latest(folder);
    ck_assert_str_eq(again.id, first.id);
    ck_assert_str_eq(again.code, first.code);
    ck_assert_str_eq(again.evidence, first.evidence);
    ck_assert_str_eq(again.repeat, first.repeat);
    ls_path_remove_tree(folder);
}

ROWS_TEST(a_repeat_line_repeats, places)
{
    round_trip(&places[_i],
               "--case scaler.trace.due.o2 --subject 'sh fails.sh' --seed 11 --device cpu");
    round_trip(&places[_i], "--case 'scaler.trace.plain.o?' --subject 'sh  ./fails.sh' --seed 12");
}

/* Installed where the user may not write, the cache of the oracle's steps is in the run's folder,
 * without a word. Root writes everywhere: a file is in the way. */
TEST(an_installation_is_not_written)
{
    char folder[64];
    fake_folder(folder, sizeof folder);
    link_build(folder);
    ck_assert_int_eq(paste(folder,
                           "B=$(readlink build) T=$(cd $B && while [ ! -d suite/claims ]; do cd "
                           "..; done; pwd); rm build; mkdir bin; cp \"$B/lockstep\" bin; "
                           "ln -s \"$T/suite\" \"$T/plots\" . && ln -s \"$B/lib\" "
                           "\"$B/lockstep-train\" bin && "
                           ">bin/oracle"),
                     0);
    ck_assert_int_eq(
        paste(folder,
              "bin/lockstep conform --case gradients.o0.w2.b0.1mb --device cpu >>said 2>&1"),
        0);
    ck_assert_int_eq(
        paste(folder, "! grep -e error -e warning said && ls results/latest/oracle | grep ."), 0);
    ls_path_remove_tree(folder);
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
    "here=$PWD; cd ../before && find . -type f ! -path '*.s43-*/dump/*' >../files && "
    "while read -r file; do [ -e \"$here/$file\" ] || exit 1; done <../files && "
    "find . -name rank0.jsonl -exec grep -q '\"event\":\"end\"' {} ';' -printf '%h\\n' | "
    "while read -r job; do [ -e \"$job/job.json\" ] && "
    "! grep -q '\"state\":[[:space:]]*\"done\"' \"$job/job.json\" || echo \"$job\"; "
    "done >../done && "
    "[ -s ../done ] && while read -r job; do "
    "diff -rx compare.json -x job.json -x dump \"$job\" \"$here/$job\" || exit 1; done <../done";

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
    char folder[64], path[200];
    fake_folder(folder, sizeof folder);
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
    ls_path_remove_tree(folder);
}

TEST_MAIN("repeat", .timeout_s = 60)
