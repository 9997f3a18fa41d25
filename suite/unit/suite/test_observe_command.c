/* `lockstep observe` from the outside: jobs that write recorded events, what of them is passed
 * through, exit codes, files; and our own trainer as an observed job. Runs the built programs in
 * the folder above this one. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/json.h"
#include "kernels/core/path.h"
#include "kernels/core/usage.h"
#include "kernels/core/text.h"
#include "suite/observe/observe.h"
#include "suite/unit/junit_read.h"
#include "suite/unit/run_suite.h"
#include "suite/unit/caught.h"

enum { SAID_BYTES = 1 << 16, WORDS_MAX = 40 };

static char folder[] = "/tmp/ls_observe_commandXXXXXX";
static char build[1024], myself[1024];

typedef struct ended {
    int code; /* or 128 + signal */
    char out[SAID_BYTES], said[SAID_BYTES];
} ended;

/* ---- running it ------------------------------------------------------------------------------ */

static void path_of(char path[PATH_MAX], const char *name)
{
    snprintf(path, PATH_MAX, "%s/%s", folder, name);
}

static const char *read_file(const char *name)
{
    static char *text;
    char path[PATH_MAX];
    path_of(path, name);
    free(text);
    text = ls_text_read(path);
    ck_assert_msg(text != NULL, "%s cannot be read", path);
    return text;
}

static bool is_there(const char *name)
{
    char path[PATH_MAX];
    path_of(path, name);
    return access(path, F_OK) == 0;
}

/* `lockstep` with these words, in the tests' folder, its output in out.txt and said.txt; in a
 * process group of its own, which has its pid. */
static pid_t start(const char *const *word, const char *input)
{
    char path[PATH_MAX], *argv[WORDS_MAX] = {"lockstep"};
    snprintf(path, sizeof path, "%s/lockstep", build);
    for (int i = 0; word[i] != NULL; i++) {
        ck_assert_int_lt(i + 2, WORDS_MAX);
        argv[i + 1] = (char *)word[i];
    }
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(write(ends[1], input, strlen(input)), (int)strlen(input));
    close(ends[1]);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        if (chdir(folder) != 0 || setpgid(0, 0) != 0) {
            _exit(125);
        }
        dup2(ends[0], STDIN_FILENO);
        dup2(open("out.txt", O_CREAT | O_TRUNC | O_WRONLY, 0600), STDOUT_FILENO);
        dup2(open("said.txt", O_CREAT | O_TRUNC | O_WRONLY, 0600), STDERR_FILENO);
        execv(path, argv);
        _exit(125);
    }
    close(ends[0]);
    (void)setpgid(pid, pid);
    return pid;
}

static void finish(pid_t pid, ended *self)
{
    int state = 0;
    ck_assert_int_eq(waitpid(pid, &state, 0), pid);
    self->code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    snprintf(self->out, sizeof self->out, "%s", read_file("out.txt"));
    snprintf(self->said, sizeof self->said, "%s", read_file("said.txt"));
}

static ended *run(const char *const *word, const char *input)
{
    static ended self;
    finish(start(word, input), &self);
    return &self;
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define OBSERVE(...) run(WORDS("observe", __VA_ARGS__), "")

static void says(const char *text, const char *what)
{
    ck_assert_msg(strstr(text, what) != NULL, "no '%s' in:\n%s", what, text);
}

/* ---- recorded jobs --------------------------------------------------------------------------- */

/* A file of events: `world` ranks, `steps` steps; `apart`: its parameters differ from step 2 on, 2:
 * its state, too; `more`: other events. */
static void record_with(const char *name, int rank, int world, int steps, int apart,
                        const char *more)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s/rank%d.jsonl", folder, name, rank);
    FILE *to = fopen(path, "w");
    ck_assert_ptr_nonnull(to);
    fprintf(to,
            "{\"event\":\"start\",\"schema\":1,\"observed\":1,\"rank\":%d,\"world\":%d,"
            "\"local_rank\":%d,\"pid\":%d,\"python\":\"3.11\",\"torch\":\"2.6\",\"device\":\"cpu\","
            "\"backend\":\"gloo\",\"program\":[\"train.py\"],\"options\":{},\"observe\":{}}\n",
            rank, world, rank, 100 + rank);
    fprintf(to,
            "{\"event\":\"model\",\"model\":0,\"kind\":\"%s\",\"at\":\"train.py:9\","
            "\"name\":\"Net\",\"params\":[[\"w\",6,\"f32\",true]],\"buffers\":[],"
            "\"norm_params\":[],\"world\":%d,\"digest\":{\"param\":\"00000000000000aa\"},"
            "\"param_digests\":[\"00000000000000aa\"],\"buffer_digests\":[]}\n",
            world > 1 ? "ddp" : "plain", world);
    fputs(more, to);
    for (int i = 1; i <= steps; i++) {
        fprintf(
            to,
            "{\"event\":\"step\",\"step\":%d,\"loss\":%g,\"loss_scale\":1,"
            "\"loss_scale_next\":1,\"skipped\":false,\"lr\":0.1,\"images\":4,"
            "\"digest\":{\"param\":\"%016x\",\"state\":\"%016x\",\"buffer\":\"0000000000000000\"},"
            "\"ms\":{\"total\":20,\"data\":1,\"forward\":6,\"backward\":10,\"optimizer\":1},"
            "\"at_ns\":%d000000,\"detail\":false,\"calls\":[]}\n",
            i, 2.0 / i, apart > 0 && i > 1 ? 7777 : 1000 + i, apart > 1 && i > 1 ? 8888 : 2000 + i,
            20 * i);
    }
    fprintf(to,
            "{\"event\":\"cost\",\"own_ms\":2,\"run_ms\":400,\"share\":0.005,\"detail_ms\":1,"
            "\"gradient_ms\":0}\n{\"event\":\"end\",\"steps\":%d,\"why\":\"exit\"}\n",
            steps);
    ck_assert_int_eq(fclose(to), 0);
}

static void record(const char *name, int rank, int world, int steps, int apart)
{
    record_with(name, rank, world, steps, apart, "");
}

/* What two rules find that is guessed: one has hints alone, the other one proof, too. */
static const char misuses[] =
    "{\"event\":\"misuse\",\"kind\":\"transform_replaced\",\"at\":\"train.py:40\"}\n"
    "{\"event\":\"misuse\",\"kind\":\"score\",\"by\":\"val_acc\",\"mode\":\"min\",\"what\":"
    "\"EarlyStopping\",\"at\":\"train.py:41\"}\n";

/* Recordings that the jobs below copy: good, apart (ranks with other parameters), alone (one rank),
 * part (ranks 1 and 2 of four), still (no step), odd (nothing wrong, two hints), both (apart and
 * odd). */
static void make_recordings(void)
{
    static const char *const names[] = {"good", "apart", "alone", "part", "still", "odd", "both"};
    char path[PATH_MAX], self[1000];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        path_of(path, names[i]);
        ck_assert_int_eq(mkdir(path, 0700), 0);
    }
    for (int k = 0; k < 2; k++) {
        record("good", k, 2, 8, false);
        record("apart", k, 2, 8, k == 1 ? 2 : 0);
        record("part", k + 1, 4, 8, false);
        record("still", k, 2, 0, false);
        record_with("odd", k, 2, 8, false, misuses);
        record_with("both", k, 2, 8, k == 1, misuses);
    }
    record("alone", 0, 1, 8, false);
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    ck_assert_int_gt(bytes, 0);
    self[bytes] = '\0';
    snprintf(myself, sizeof myself, "%s", self);
    snprintf(build, sizeof build, "%s/..", dirname(self));
}

static void remove_recordings(void)
{
    ls_path_remove_tree(folder);
}

#define COPY(recording) "cp " recording "/* \"$LS_OBSERVE_DIR\"; "

/* ---- tests ----------------------------------------------------------------------------------- */

/* At most 80 columns but for paths, which are to be pasted. */
static void check_columns(const char *text)
{
    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1) {
        size_t columns = strcspn(line, "\n");
        ck_assert_msg(columns <= 80 || strncmp(line, "report ", 7) == 0, "%d columns: %.*s",
                      (int)columns, (int)columns, line);
        if (line[columns] == '\0') {
            break;
        }
    }
}

static int lines_of(const char *text)
{
    int lines = 0;
    for (; *text != '\0'; text++) {
        lines += *text == '\n';
    }
    return lines;
}

TEST(a_job_is_run_as_it_is_and_judged)
{
    ended *self = run(WORDS("observe", "--out", "a", "--", "sh", "-c",
                            COPY("good") "read line; echo \"got $line\"; echo heard >&2; "
                                         "mkdir \"$LS_OBSERVE_DIR/samples\""),
                      "a line\n");
    ck_assert_msg(self->code == 0, "%d: %s", self->code, self->said);
    ck_assert_str_eq(self->out, "got a line\n"); /* nothing of ours */
    ck_assert_int_eq(strncmp(self->said, "heard\n", 6), 0);
    says(self->said, "\nLockstep, observed job: sh -c ");
    says(self->said, "\n2 ranks on cpu, gloo, torch 2.6, Python 3.11\n");
    says(self->said, "\n2 of 2 ranks; 8 steps, 0 of them in detail, 0 skipped\n");
    says(self->said, " rules passed, 0 failed, ");
    ck_assert_int_le(lines_of(self->said), 26); /* with the job's line */
    ck_assert_ptr_null(strstr(self->said, "# PASS"));
    says(self->said, "\nCORRECT  not shown (claim any-ddp: ");
    says(self->said, "\nSPEED    no baseline (400 samples/s; a step takes 20.0 ms, the median of ");
    says(self->said, "\nCOST     0.5 %");
    check_columns(self->said);
    static const char *const files[] = {"run.json",    "summary.json", "report.md",
                                        "report.html", "junit.xml",    "jobs/observed/job.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        LS_TEXT(path, 64, "a/%s", files[i]);
        ck_assert_msg(is_there(path), "%s is missing", path);
    }
    ck_assert(!is_there("a/jobs/observed/samples") && !is_there("a/jobs/subject"));
    int rules;
    (void)ls_observe_rules(&rules);
    ck_assert_int_eq(lines_of(read_file("a/verdicts.jsonl")), rules);
    junit_counts counts = junit_read(read_file("a/junit.xml"));
    ck_assert_int_eq(counts.tests, rules);
    ck_assert_int_eq(counts.failures + counts.errors, 0); /* what is weak does not decide */
    says(read_file("a/junit.xml"), "name=\"CORRECT\" value=\"not shown (claim any-ddp");
    says(read_file("a/report.html"), "What could not be seen");
    says(read_file("a/report.md"), "## Rules");
    says(read_file("a/report.md"), " by Lockstep " LS_VERSION ": ");
    cJSON *summary = cJSON_Parse(read_file("a/summary.json"));
    const cJSON *seen = cJSON_GetObjectItem(summary, "observed");
    ck_assert_int_eq(ls_json_int(seen, "world", 0), 2);
    ck_assert_int_eq(ls_json_int(seen, "steps", 0), 8);
    cJSON_Delete(summary);
}

TEST(a_rule_that_fails)
{
    ended *self = OBSERVE("--out", "b", "--", "sh", "-c", COPY("apart") "exit 7");
    ck_assert_int_eq(self->code, 1);
    says(self->said, "the job ended with exit code 7");
    says(self->said, "\nnot ok 2 - observe.replicas.step # FAIL ");
    says(self->said, "\nCORRECT  no        (claim any-ddp: ");
    says(self->said, "FAIL replicas.step");
    check_columns(self->said);
    ck_assert_int_gt(junit_read(read_file("b/junit.xml")).failures, 0);
    says(read_file("b/report.md"), "not ok 2 - observe.replicas.step # FAIL");
}

#define MISUSE(kind, at) "{\"event\":\"misuse\",\"kind\":\"" kind "\",\"at\":\"" at "\"}"

/* Failures come first, then hints, the count of rules, and CORRECT, on one screen. */
TEST(one_screen_begins_with_what_is_wrong)
{
    ended *self = OBSERVE("--out", "screen", "--", "sh", "-c", COPY("both"));
    static const char *const order[] = {"\nnot ok 2 - observe.replicas.step # FAIL ",
                                        " - observe.data.once.hint # ", " passed, 1 failed, ",
                                        "\nCORRECT  no ", "\nreport "};
    const char *at = self->said;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        const char *next = strstr(at, order[i]);
        ck_assert_msg(next != NULL, "no '%s' behind the one before in:\n%s", order[i], self->said);
        at = next;
    }
    ck_assert_int_le(lines_of(self->said), 25);
    ck_assert_ptr_null(strstr(self->said, "\nnot shown "));
    check_columns(self->said);
    /* equal after step 1, different from then on: step, steps, state, loss, scale, ms */
    says(read_file("screen/tables/steps.tsv"), "1\t1\t1\t2\t1\t20\n2\t1\t4\t1\t1\t20\n");
    ck_assert(is_there("screen/plots/steps.svg") ==
              (strstr(read_file("screen/report.html"), "<svg") != NULL));
    /* one that has a line alone, and no place */
    self =
        OBSERVE("sh", "-c",
                COPY("both") "sed -i '2a " MISUSE("weights_of_classes", "train.py:4") "\\n" MISUSE(
                    "dropout_in_eval", "") "' \"$LS_OBSERVE_DIR\"/rank*.jsonl");
    says(self->said, " - observe.validation.mode # FAIL rank 0: a dropout is on while");
    self = run(WORDS("judge", "--verbose", "screen"), "");
    says(self->out, "\nok 3 - observe.replicas.state # PASS ");
    says(self->out, " - observe.reduction.left # WEAK no detailed step after the "
                    "first\nchange: look at more steps in detail: --every 10, or a longer run\n");
    says(self->out, "\nmodel Net in DistributedDataParallel, train.py:9: 6 parameters in 1 ");
}

static int count_of(const char *text, const char *what)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at++) {
        count++;
    }
    return count;
}

/* A law that fails is said while the job runs, once, and to the command of --notify. */
TEST(laws_fail_while_the_job_runs)
{
    static const char failed[] = "\na law does not hold in what the job has done up to step 8: all "
                                 "ranks hold the\n  same parameters after every step\nnot ok - "
                                 "observe.replicas.step # FAIL after step 2 ranks 0 and 1 hold "
                                 "different\n";
    ended *self = OBSERVE("--out", "live", "--stop", "--notify", "cat >> told", "--", "sh", "-c",
                          COPY("apart") "sleep 50");
    ck_assert_int_eq(self->code, 1);
    says(self->said, failed);
    says(self->said, "\nalso: replicas.state\n");
    ck_assert_ptr_null(strstr(self->said, "replicas.state # FAIL"));
    says(self->said, "\nlockstep: the job was ended, since a law failed (--stop)\n");
    says(read_file("told"), "\"case\":\"observe.replicas.step\"");
    ck_assert_int_eq(count_of(read_file("told"), "\"case\""), 1);
    ck_assert(!is_there("live/jobs/.live"));
    self = OBSERVE("--out", "live2", "--", "sh", "-c",
                   COPY("apart") "sleep 7; touch \"$LS_OBSERVE_DIR/ended\"");
    ck_assert_int_eq(self->code, 1);
    ck_assert_int_eq(count_of(self->said, "a law does not hold"), 1);
    ck_assert(is_there("live2/jobs/observed/ended"));
}

/* Nothing is said of a job that does well, or that has not stepped; it ends as it would. */
TEST(nothing_is_said_while_all_is_well)
{
    static const char *const jobs[] = {COPY("good") "sleep 5; exit 7",
                                       COPY("still") "sleep 5; exit 7"};
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        ended *self = OBSERVE("--stop", "--notify", "cat > never", "--", "sh", "-c", jobs[i]);
        ck_assert_int_eq(self->code, 7);
        ck_assert_int_eq(strncmp(self->said, "lockstep: the job ended with exit code 7", 40), 0);
        ck_assert(!is_there("never"));
    }
}

/* A hint is no failure: it decides nothing but where that is asked for. */
TEST(hints_do_not_decide)
{
    static const struct {
        const char *gate, *hints;
        int code, failures;
    } way[] = {{"fail", "on", 0, 0}, {"hints", "on", 1, 2}, {"fail", "off", 0, 0}};
    for (size_t i = 0; i < sizeof way / sizeof *way; i++) {
        LS_TEXT(out, 16, "hints%zu", i);
        ended *self = OBSERVE("--out", out, "--gate", way[i].gate, "--hints", way[i].hints, "--",
                              "sh", "-c", COPY("odd"));
        bool shown = strcmp(way[i].hints, "on") == 0;
        ck_assert_int_eq(self->code, way[i].code);
        says(self->said, "\nCORRECT  not shown (claim any-ddp: ");
        /* why it is not, where the screen has room */
        ck_assert_int_eq(strstr(self->said, " - observe.reduction.mean # WEAK") != NULL, !shown);
        ck_assert_int_le(lines_of(self->said), 25);
        ck_assert_int_eq(strstr(self->said, " - observe.data.once.hint # ") != NULL, shown);
        ck_assert_int_eq(strstr(self->said, "\nwrong if: each rank is to have data ") != NULL,
                         shown);
        ck_assert_int_eq(strstr(self->said, "; 2 hints\n") != NULL, shown);
        LS_TEXT(file, 32, "%s/junit.xml", out);
        ck_assert_int_eq(junit_read(read_file(file)).failures, way[i].failures);
        ls_text_put(file, sizeof file, "%s/report.md", out);
        ck_assert_int_eq(strstr(read_file(file), "## Hints") != NULL, shown);
        ls_text_put(file, sizeof file, "%s/run.json", out);
        says(read_file(file), "\"hints\":\t2");
        ls_text_put(file, sizeof file, "%s/verdicts.jsonl", out);
        says(read_file(file), "\"case\":\"observe.evaluation.best\",");
        says(read_file(file), "\"case\":\"observe.evaluation.best.hint\",");
        says(read_file(file), "\"tier\":\"law\"");
        says(read_file(file), "\"tier\":\"hint\"");
        ck_assert_int_eq(run(WORDS("judge", out), "")->code, way[i].code);
    }
}

TEST(the_laws_and_hints_are_printed)
{
    ended *self = OBSERVE("--rules");
    ck_assert_int_eq(self->code, 0);
    says(self->out, "replicas.state: law\n  sure: digests of all bits");
    says(self->out, "\nvalidation.whole: hint\n  wrong if: ");
    says(self->out, "\nevaluation.best: law, hint\n  sure: ");
    check_columns(self->out);
}

TEST(exit_codes)
{
    static const struct {
        const char *script;
        int code;
    } jobs[] = {
        {COPY("good") "exit 7", 7},          /* its own: no rule failed */
        {COPY("good") "kill -KILL $$", 137}, /* as a shell's */
        {COPY("still"), 0},
        {COPY("alone"), 0},
        {"true", 3}, /* nothing was judged */
        {"exit 5", 5},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        ended *self = OBSERVE("sh", "-c", jobs[i].script);
        ck_assert_msg(self->code == jobs[i].code, "%s: %d\n%s", jobs[i].script, self->code,
                      self->said);
    }
    ended *self = OBSERVE("--gate", "all", "--", "sh", "-c", COPY("good"));
    ck_assert_int_eq(self->code, 1);
    ck_assert_int_eq(OBSERVE("--", "no-such-program", "x")->code, 127);
    ck_assert_int_eq(OBSERVE("--", "good/rank0.jsonl")->code, 126);
}

TEST(what_could_not_be_seen)
{
    says(OBSERVE("sh", "-c", "exit 0")->said, "no process wrote events, so nothing was judged");
    ended *by_hand = OBSERVE("sh", "-c", "touch \"$LS_OBSERVE_DIR/by_hand\"");
    says(by_hand->said, "the job trains by hand");
    ck_assert_int_eq(by_hand->code, 0);
    by_hand = OBSERVE("--gate", "all", "--", "sh", "-c", "touch \"$LS_OBSERVE_DIR/by_hand\"");
    ck_assert_int_eq(by_hand->code, 1);
    says(OBSERVE("sh", "-c", "exit 9")->said, "the job failed before a process had wrapped a ");
    says(OBSERVE("sh", "-c", COPY("still"))->said,
         "not seen: all ranks: made no step: no optimizer was asked to step");
    says(OBSERVE("sh", "-c",
                 COPY("still") "sed -i '$i {\"event\":\"unfinished\",\"calls\":[{\"call\":"
                               "\"backward\",\"at\":\"a.py:1\"}]}' "
                               "\"$LS_OBSERVE_DIR\"/rank*.jsonl")
             ->said,
         "made no step: no optimizer of torch.optim's was asked to");
    ended *self =
        OBSERVE("sh", "-c",
                COPY("good") "head -n 2 good/rank1.jsonl >\"$LS_OBSERVE_DIR/rank1.jsonl\"; "
                             "echo '{\"event\":\"attach\",\"error\":\"no k2\","
                             "\"quiet\":true,\"at\":\"\"}' "
                             ">>\"$LS_OBSERVE_DIR/rank1.jsonl\"");
    says(self->said, "not seen: rank 1: no k2; nothing was looked at after that");
    ck_assert_ptr_null(strstr(self->said, "wrote no end event"));
    ck_assert_ptr_null(strstr(self->said, "made no step"));
    self = OBSERVE("sh", "-c", COPY("part"));
    says(self->said, "\n2 of 4 ranks; 8 steps");
    says(self->said, "not seen: ranks 0, 3: wrote no events: on another node, or ended before a");
    self = OBSERVE("sh", "-c", COPY("alone"));
    says(self->said, "\nCORRECT  not shown (no claim concerns the job: one rank, and neither");
    self = OBSERVE("sh", "-c",
                   COPY("good") "head -n 5 good/rank1.jsonl "
                                ">\"$LS_OBSERVE_DIR/rank1.jsonl\"");
    says(self->said, "\n2 of 2 ranks; 3 to 8 steps");
    says(self->said,
         "not seen: rank 1: wrote no end event: killed, or left by os._exit, after step ");
}

/* One after the other: each is judged in its own folder, and the worst decides. */
TEST(the_jobs_of_one_command)
{
    ended *self = OBSERVE("--out", "m", "sh", "-c",
                          COPY("good") "n=\"$LS_OBSERVE_LATER\"/2/jobs/observed; mkdir -p $n; "
                                       "cp apart/* $n");
    ck_assert_int_eq(self->code, 1);
    const char *second = strstr(self->said, "\nJob 2 of the command:\n");
    ck_assert_ptr_nonnull(second);
    says(self->said, "\nCORRECT  not shown ");
    says(second, ", job 2\n");
    says(second, "not ok 2 - observe.replicas.step # FAIL");
    ck_assert(is_there("m/report.html") && is_there("m/later/2/report.html"));
    ck_assert(!is_there("m/later/3"));
}

TEST(the_environment_of_the_job)
{
    const char *script = "echo \"$PYTHONPATH|$LS_OBSERVE_DIR|$LS_OBSERVE_EVERY|$LS_OBSERVE_STEPS|"
                         "$LS_OBSERVE_SAMPLES|$LS_OBSERVE_GRADIENT|$LS_OBSERVE_INJECT|$LS_RUN_DIR|"
                         "$KEPT\"";
    char line[PATH_MAX * 2], attach[PATH_MAX];
    ck_assert(ls_path_find("suite/observe/attach", attach, sizeof attach));
    char *whole = realpath(attach, NULL);
    setenv("PYTHONPATH", "/mine", 1);
    setenv("KEPT", "kept", 1);
    setenv("LS_OBSERVE_INJECT", "stale", 1);
    ended *self = OBSERVE("--out", "e", "--every=9", "--steps", "30", "--samples", "64",
                          "--no-gradient", "sh", "-c", script);
    snprintf(line, sizeof line, "%s:/mine|%s/e/jobs/observed|9|30|64|0||%s/e/jobs/subject|kept\n",
             whole, folder, folder);
    ck_assert_str_eq(self->out, line);
    unsetenv("PYTHONPATH");
    self = OBSERVE("--out", "f", "--inject", "overflow@5:1", "sh", "-c", script);
    snprintf(line, sizeof line,
             "%s|%s/f/jobs/observed|50|0|1024|1|overflow@5:1|%s/f/jobs/subject|kept\n", whole,
             folder, folder);
    ck_assert_str_eq(self->out, line);
    unsetenv("LS_OBSERVE_INJECT");
    free(whole);
}

TEST(wrong_arguments)
{
    static const struct {
        const char *word[4], *says;
    } wrong[] = {
        {{"--every", "0", "true"}, "--every '0': allowed: a whole number from 1 to "},
        {{"--samples=x", "true"}, "--samples 'x': allowed: a whole number from 1 to "},
        {{"--inject", "overflow@0:1", "true"}, "allowed: overflow@STEP:RANK"},
        {{"--inject=overflow@5", "true"}, "such as overflow@5:1"},
        {{"--gate", "some", "true"}, "--gate 'some': allowed: fail, all, hints, all,hints"},
        {{"--gate=all,", "true"}, "--gate 'all,': allowed: fail"},
        {{"--hints", "of", "true"}, "--hints 'of': allowed: on, off"},
        {{"--hints=off", "--gate=hints", "true"}, "what is left out cannot fail"},
        {{"--rules", "true"}, "--rules runs nothing, and 'true' is a command"},
        {{"--evry", "5", "true"}, "did you mean --every?"},
        {{"--keep"}, "the command of the job is missing"},
        {{"--attach-only", "true"}, "--attach-only runs nothing, and 'true' is a command"},
        {{"--out", "good", "true"}, "--out good: the folder is not empty; allowed: a new folder"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ended *self =
            OBSERVE(wrong[i].word[0], wrong[i].word[1], wrong[i].word[2], wrong[i].word[3]);
        ck_assert_msg(self->code == 2, "%s: %d\n%s", wrong[i].word[0], self->code, self->said);
        says(self->said, wrong[i].says);
    }
}

/* A job of a scheduler: the variables, and the judgement afterwards. */
TEST(attach_only)
{
    ended *self = OBSERVE("--attach-only", "--out", "g");
    ck_assert_int_eq(self->code, 0);
    LS_TEXT(line, PATH_MAX, "export LS_OBSERVE_DIR=%s/g/jobs/observed\n", folder);
    says(self->out, line);
    says(self->out, "\n# when the job has ended: ");
    says(run(WORDS("judge", "g"), "")->said, "no process wrote events");
    char command[PATH_MAX * 2];
    snprintf(command, sizeof command, "cd %s && cp apart/* g/jobs/observed", folder);
    ck_assert_int_eq(system(command), 0);
    self = run(WORDS("judge", "g"), "");
    ck_assert_int_eq(self->code, 1);
    says(self->out, "\nnot ok 2 - observe.replicas.step # FAIL ");
    ck_assert(is_there("g/report.html") && is_there("g/junit.xml"));
    self = run(WORDS("judge", "g/jobs/observed"), ""); /* without a run's folder */
    ck_assert_int_eq(self->code, 1);
    says(self->out, "\nnot ok 2 - observe.replicas.step # FAIL ");
    self = run(WORDS("report", "g"), "");
    ck_assert_int_eq(self->code, 0);
    says(self->out, "\nnot ok 2 - observe.replicas.step # FAIL ");
}

/* No rule fails in what a job that died has left: observe keeps its exit code, judge ends with 1.
 */
TEST(a_job_that_died)
{
    ended *self = OBSERVE("--out", "h", "--", "sh", "-c", COPY("good") "exit 7");
    ck_assert_int_eq(self->code, 7);
    says(self->said, "the job ended with exit code");
    self = run(WORDS("judge", "h"), "");
    ck_assert_int_eq(self->code, 1);
    says(self->out, "\nCORRECT  not shown");
    says(self->out, " passed, 1 failed\n");
    (void)OBSERVE("--out", "i", "--", "sh", "-c", COPY("good"));
    ck_assert_int_eq(run(WORDS("judge", "i"), "")->code, 0);
}

/* ---- signals --------------------------------------------------------------------------------- */

static void wait_for(const char *name)
{
    int64_t deadline_ns = ls_clock_after(30);
    while (!is_there(name) && ls_clock_ns() < deadline_ns) {
        (void)ls_clock_poll(-1, 0, ls_clock_after(5e-3));
    }
    ck_assert_msg(is_there(name), "%s does not come", name);
}

static const struct counted {
    int signal;
    const char *name;
} counted[] = {
    {SIGUSR1, "USR1"}, {SIGUSR2, "USR2"}, {SIGINT, "INT"}, {SIGHUP, "HUP"}, {SIGTERM, "TERM"}};
enum { COUNTED = sizeof counted / sizeof *counted };

/* This program as a job: a line in NAME.<signal> for each signal, NAME.ready at the start. After
 * TERM it waits for what else comes within 0.3 s, and leaves with 3. A shell's traps would take two
 * signals for one. */
static int count_signals(const char *name)
{
    sigset_t set;
    char path[PATH_MAX];
    sigemptyset(&set);
    for (int i = 0; i < COUNTED; i++) {
        sigaddset(&set, counted[i].signal);
    }
    sigprocmask(SIG_BLOCK, &set, NULL);
    snprintf(path, sizeof path, "%s.ready", name);
    fclose(fopen(path, "w"));
    for (bool ends = false;;) {
        const struct timespec limit = {ends ? 0 : 60, ends ? 300000000 : 0};
        int got = sigtimedwait(&set, NULL, &limit);
        if (got < 0) {
            return ends ? 3 : 124;
        }
        for (int i = 0; i < COUNTED; i++) {
            if (counted[i].signal == got) {
                snprintf(path, sizeof path, "%s.%s", name, counted[i].name);
                FILE *to = fopen(path, "a");
                fputs("x\n", to);
                fclose(to);
            }
        }
        ends = ends || got == SIGTERM;
    }
}

TEST(signals_are_passed_on)
{
    static ended self;
    pid_t pid = start(WORDS("observe", myself, "--count", "s"), "");
    wait_for("s.ready");
    for (int i = 0; i < COUNTED; i++) { /* TERM is the last */
        LS_TEXT(name, 16, "s.%s", counted[i].name);
        kill(pid, counted[i].signal);
        wait_for(name);
    }
    finish(pid, &self);
    ck_assert_int_eq(self.code, 3);
    for (int i = 0; i < COUNTED; i++) {
        LS_TEXT(name, 16, "s.%s", counted[i].name);
        ck_assert_msg(strcmp(read_file(name), "x\n") == 0, "%s: %s", name, read_file(name));
    }
}

TEST(a_signal_to_the_group_comes_once)
{
    static ended self;
    pid_t pid = start(WORDS("observe", myself, "--count", "t"), "");
    wait_for("t.ready");
    kill(-pid, SIGUSR1);
    wait_for("t.USR1");
    kill(-pid, SIGTERM);
    finish(pid, &self);
    ck_assert_int_eq(self.code, 3);
    ck_assert_str_eq(read_file("t.USR1"), "x\n");
    ck_assert_str_eq(read_file("t.TERM"), "x\n");
}

TEST(nothing_is_left_after_kill)
{
    pid_t pid = start(
        WORDS("observe", "--", "sh", "-c", "sleep 300 & echo $! >left.pid; : >left.ready; wait"),
        "");
    wait_for("left.ready");
    pid_t left = (pid_t)atoi(read_file("left.pid"));
    ck_assert_int_gt(left, 1);
    ck_assert_int_eq(kill(left, 0), 0);
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    int64_t deadline_ns = ls_clock_after(20);
    while (kill(left, 0) == 0 && ls_clock_ns() < deadline_ns) {
        (void)ls_clock_poll(-1, 0, ls_clock_after(10e-3));
    }
    ck_assert_int_ne(kill(left, 0), 0);
}

/* All that comes from a terminal until its last writer has ended, into said[SAID_BYTES]. */
static void read_terminal(int terminal, const char *until, char *said)
{
    size_t used = strlen(said);
    int64_t deadline_ns = ls_clock_after(30);
    while (strstr(said, until) == NULL && ls_clock_poll(terminal, POLLIN, deadline_ns) == 1) {
        ssize_t got = read(terminal, said + used, SAID_BYTES - 1 - used);
        if (got <= 0) {
            break;
        }
        used += (size_t)got;
        said[used] = '\0';
    }
    says(said, until);
}

/* The job reads from the terminal, which sends it ^C as it does without us: once. */
TEST(the_job_has_the_terminal)
{
    static char said[SAID_BYTES];
    char path[PATH_MAX];
    int terminal, state = 0;
    snprintf(path, sizeof path, "%s/lockstep", build);
    pid_t pid = forkpty(&terminal, NULL, NULL, NULL);
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        if (chdir(folder) == 0) {
            execl(path, "lockstep", "observe", "--", "sh", "-c",
                  COPY("good") "trap 'echo interrupted; n=x' INT; read line; echo \"got "
                               "<$line>\"; while [ -z \"$n\" ]; do sleep 0.1; done; "
                               "sleep 0.3; exit 4",
                  (char *)NULL);
        }
        _exit(125);
    }
    ck_assert_int_eq(write(terminal, "hello\n", 6), 6);
    read_terminal(terminal, "got <hello>", said);
    ck_assert_int_eq(write(terminal, "\003", 1), 1);
    read_terminal(terminal, "report  ", said);
    const char *first = strstr(said, "interrupted\r\n");
    ck_assert_ptr_nonnull(first);
    ck_assert_ptr_null(strstr(first + 1, "interrupted\r\n"));
    ck_assert_int_eq(waitpid(pid, &state, 0), pid);
    ck_assert(WIFEXITED(state) && WEXITSTATUS(state) == 4);
    close(terminal);
}

/* ---- our own trainer ------------------------------------------------------------------------- */

/* At --timeout the job is ended, and the cause is what it waited for; a job that only takes its
 * time has none. */
TEST(the_deadline_has_a_cause)
{
    ended *self = OBSERVE("--timeout", "1", "--", "sleep", "60");
    ck_assert_int_eq(self->code, 124);
    says(self->said, "lockstep: the job was ended after 1 s (--timeout)\n");
    self = OBSERVE("--timeout", "2", "--", "sh", "-c", "sh -c 'kill -STOP $$'; true");
    ck_assert_int_eq(self->code, 124);
    says(self->said, "lockstep: the job was ended after 2 s (--timeout): a process (pid ");
    says(self->said, ", sh) is stopped by a signal: `kill -CONT ");
    ck_assert_ptr_null(strstr(self->said, "waiting for"));
    self = OBSERVE("--timeout", "60", "--", "sh", "-c", "exit 5");
    ck_assert(self->code == 5 && strstr(self->said, "ended after") == NULL);
    ck_assert_int_eq(OBSERVE("--timeout", "-1", "--", "true")->code, 2);
}

/* The word's places in the one file of a folder, which holds zeros. */
static int count_in(const char *folder_name, const char *word)
{
    char path[PATH_MAX], data[1 << 16];
    path_of(path, folder_name);
    struct dirent **entry;
    ck_assert_int_eq(scandir(path, &entry, NULL, alphasort), 3); /* after "." and ".." */
    strcat(strcat(path, "/"), entry[2]->d_name);
    FILE *from = fopen(path, "rb");
    ck_assert_ptr_nonnull(from);
    size_t bytes = fread(data, 1, sizeof data, from);
    fclose(from);
    int found = 0;
    for (size_t i = 0; i + strlen(word) <= bytes; i++) {
        found += memcmp(data + i, word, strlen(word)) == 0;
    }
    return found;
}

/* A folder for each rank, with all its steps. */
TEST(scalars_for_tensorboard)
{
    ended *self =
        OBSERVE("--out", "board", "--tensorboard", "curves", "--", "sh", "-c", COPY("good"));
    ck_assert_int_eq(self->code, 0);
    static const char *const tags[] = {"loss_scale", "lr", "step_ms"};
    for (size_t i = 0; i < 6; i++) {
        ck_assert_int_eq(count_in(i < 3 ? "curves/rank0" : "curves/rank1", tags[i % 3]), 8);
    }
    ck_assert_int_eq(count_in("curves/rank1", "loss"), 16);
    self = OBSERVE("--tensorboard", "said.txt", "--", "true");
    ck_assert_int_eq(self->code, 3);
    says(self->said, "said.txt: Not a directory; --tensorboard names another folder\n");
    self = OBSERVE("--tensorboard", "", "--", "true");
    ck_assert_int_eq(self->code, 2);
    says(self->said, "--tensorboard '': allowed: a folder, such as runs/first\n");
    self = OBSERVE("--tensorboard", "curves", "--attach-only");
    ck_assert_int_eq(self->code, 2);
    says(self->said, "--attach-only runs nothing: --tensorboard would stay empty\n");
}

/* Judged by the rules of any trainer, without PyTorch. */
TEST(our_trainer_is_observed)
{
    char launch[PATH_MAX], train[PATH_MAX];
    snprintf(launch, sizeof launch, "%s/lockstep-launch", build);
    snprintf(train, sizeof train, "%s/lockstep-train", build);
    ended *self =
        OBSERVE("--out", "ours", "--verbose", "--", launch, "--nproc-per-node", "2", "--", train,
                "-a", "resnet8", "--image-size", "32", "-b", "4", "--steps", "3", "--opt-level",
                "O2", "--device", "cpu", "--dump-steps", "1,2", "--dump-ranks", "all");
    ck_assert_msg(self->code == 0, "%d: %s", self->code, self->said);
    says(self->said, "\n2 of 2 ranks; 3 steps, 2 of them in detail (dumps), 0 skipped\n");
    says(self->said, "observe.reduction.mean # PASS ");
    says(self->said, "(claims any-ddp, any-amp: ");
    ck_assert_ptr_null(strstr(self->said, "# FAIL"));
    ck_assert(is_there("ours/jobs/subject/dump"));
}

/* The same, of a build with planted faults where there is one (`make PLANTS=1`). */
TEST(planted_faults_are_seen)
{
    static const struct {
        const char *fault, *says;
    } planted[] = {
        {"not_averaged", "observe.reduction.mean # FAIL"},
        {"no_initial_broadcast", "observe.replicas.start # FAIL"},
    };
    char launch[PATH_MAX], train[PATH_MAX];
    snprintf(launch, sizeof launch, "%s/lockstep-launch", build);
    snprintf(train, sizeof train, "%s/planted/lockstep-train", build);
    for (size_t i = 0; i < sizeof planted / sizeof *planted && access(train, X_OK) == 0; i++) {
        setenv("LS_PLANT", planted[i].fault, 1);
        ended *self =
            OBSERVE("--verbose", "--", launch, "--nproc-per-node", "2", "--", train, "-a",
                    "resnet8", "--image-size", "32", "-b", "4", "--steps", "3", "--device", "cpu",
                    "--opt-level", "O1", "--dump-steps", "1,2", "--dump-ranks", "all");
        unsetenv("LS_PLANT");
        ck_assert_msg(self->code == 1, "%s: %d: %s", planted[i].fault, self->code, self->said);
        says(self->said, planted[i].says);
    }
}

/* ---- the wheel ------------------------------------------------------------------------------- */

/* `program` on a recorded job: all that it prints, and what the job's processes ignore. */
static void hear(const char *program, const char *job, char *text)
{
    LS_TEXT(command, 2 * PATH_MAX,
            "exec 2>&1; cd %s && rm -rf w && L='%s' && $L --version && $L observe --help && "
            "{ $L observe --out w -- sh -c 'cp %s/* \"$LS_OBSERVE_DIR\"; "
            "grep SigIgn /proc/self/status'; echo $?; $L judge w; echo $?; $L report w; $L no; }",
            folder, program, job);
    ck_assert_int_eq(shell_says(command, text, SAID_BYTES), 2); /* no such command */
}

TEST(the_wheel_is_whole_and_judges_as_the_tree)
{
    static const char *const jobs[] = {"good", "apart", "odd"};
    static char tree[SAID_BYTES], wheel[SAID_BYTES];
    char make[PATH_MAX], unpack[PATH_MAX];
    if (getenv("LS_SANDBOX") != NULL || system("python3 -c pass 2>/dev/null") != 0) {
        return; /* linked with a mutant's shared objects; or there is no pip either */
    }
    ck_assert(ls_path_find("suite/observe/wheel/make.py", make, sizeof make));
    ck_assert(ls_path_find("suite/unit/unpack_wheel.py", unpack, sizeof unpack));
    LS_TEXT(command, 3 * PATH_MAX,
            "exec 2>&1; cd %s && python3 %s %s one && python3 %s %s two && cmp one/*.whl two/*.whl "
            "&& python3 %s one/*.whl site",
            folder, make, build, make, build, unpack);
    ck_assert_msg(shell_says(command, wheel, sizeof wheel) == 0, "%s", wheel);
    LS_TEXT(whole, 1100, "%s/lockstep", build);
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        hear(whole, jobs[i], tree);
        hear("env PYTHONPATH=site python3 -m lockstep", jobs[i], wheel);
        size_t same = 0; /* bytes */
        while (tree[same] != '\0' && tree[same] == wheel[same]) {
            same++;
        }
        ck_assert_msg(tree[same] == wheel[same], "tree: %.300s\nwheel: %.300s", tree + same,
                      wheel + same);
        says(wheel, i == 1 ? "\nCORRECT  no " : "\nCORRECT  not shown ");
    }
    ck_assert_msg(shell_says(command, wheel, sizeof wheel) == 0, "%s",
                  wheel); /* nothing is added */
}

int main(int count, char **argument)
{
    if (count == 3 && strcmp(argument[1], "--count") == 0) {
        return count_signals(argument[2]);
    }
    return RUN_TESTS("observe command", .timeout_s = 60, .begin = make_recordings,
                     .end = remove_recordings);
}
