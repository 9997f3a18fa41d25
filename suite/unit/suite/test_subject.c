/* Subjects that break the protocol, one way each: what the runner says of them. Shell scripts of a
 * few lines stand for trainers. */
#include <errno.h>
#include <signal.h>

#include "suite/cases/rows.h"
#include "suite/run/headline.h"
#include "suite/judge/judges.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

/* $here: the test's folder; $out: this rank's events. The functions write what a good subject
 * writes. */
static const char prelude[] =
    "here=\"${0%/*}\"\n"
    "out=\"$LS_RUN_DIR/rank$RANK.jsonl\"\n"
    "start() { echo '{\"event\":\"start\",\"schema\":1,\"world\":2,\"options\":"
    "{\"opt-level\":\"O0\"}}' > \"$out\"; }\n"
    "step() { echo '{\"event\":\"step\",\"step\":'$1',\"loss\":1,\"loss_scale\":1,"
    "\"loss_scale_next\":1,\"skipped\":false,\"digest\":{\"param\":\"000000000000000'$1'\"}}'"
    " >> \"$out\"; }\n"
    "finish() { echo '{\"event\":\"end\",\"code\":0}' >> \"$out\"; }\n"
    "line() { echo \"$1\" >> \"$out\"; }\n";

static const struct fault {
    const char *script;
    ls_verdict_code code;
    const char *evidence; /* part of it */
} fault[] = {
    {"start; step 1; step 2; finish", LS_PASS, ""},
    {"start; line 'epoch 1: loss 2.3'; step 1; step 2; finish", LS_FAIL,
     "rank0.jsonl line 2 is no JSON: 'epoch 1: loss 2.3'"},
    {"start; step 1; line '{\"event\":\"step\",\"step\":2,\"lo'; finish", LS_FAIL,
     "rank0.jsonl line 3 is no JSON: '{\"event\":\"step\",\"step\":2,\"lo'"},
    {"start; step 1; printf '{\"event\":\"step\",\"st' >> \"$out\"", LS_FAIL,
     "line 3 ends in the middle: '{\"event\":\"step\",\"st'"},
    {"start; line '{\"event\":\"step\",\"step\":1,\"loss\":NaN}'; step 2; finish", LS_FAIL,
     "write null): '{\"event\":\"step\",\"step\":1,\"loss\":NaN}'"},
    {"start; line '{\"event\":\"step\",\"step\":\"1\"}'; step 2; finish", LS_FAIL,
     "line 2 has \"step\" that is not a whole number"},
    {"start; line '{\"event\":\"step\",\"step\":1,\"images\":9e19}'; step 2; finish", LS_FAIL,
     "line 2 has \"images\" that is not a whole number"},
    {"start; line '{\"event\":\"step\",\"step\":1,\"skipped\":0}'; step 2; finish", LS_FAIL,
     "line 2 has \"skipped\" that is not true or false"},
    {"start; line '[1, 2]'; step 1; step 2; finish", LS_FAIL, "is no object with an \"event\""},
    {"start; line \"$(printf 'a\\033[31mb')\"; finish", LS_FAIL, "'a\\x1b[31mb'"},
    {"start; printf '{}\\0\\n' >> \"$out\"; finish", LS_FAIL, "holds a zero byte"},
    {"start; step 2; step 1; finish", LS_FAIL, "line 3 is step 1 after step 2"},
    {"start; step 1; step 1; step 2; finish", LS_FAIL, "line 3 is step 1 after step 1"},
    {"start; step 1; step 3; finish", LS_FAIL, "line 3 is step 3 after step 1"},
    {"step 1; line '{\"event\":\"start\",\"schema\":1}'; step 2; finish", LS_FAIL,
     "is the first event and has no \"schema\" from 1 to 2"},
    {"line '{\"event\":\"step\",\"schema\":1,\"step\":1}'; finish", LS_FAIL,
     "comes before the start event"},
    {"line '{\"event\":\"start\",\"schema\":9}'; finish", LS_FAIL, "has no \"schema\" from 1 to 2"},
    {"start; step 1; finish; step 2", LS_FAIL, "line 4 comes after the end event"},
    {"start; step 1; step 2", LS_FAIL,
     "left with code 0, but its events stop after step 2 without an end"},
    {"start; finish; echo I am done", LS_FAIL, "its last step is 0 of 2; its last words: 'I am"},
    {"start; step 1; finish", LS_FAIL, "its last step is 1 of 2"},
    {"start; step 1; step 2; step 3; finish", LS_FAIL, "its last step is 3 of 2"},
    {"echo hello", LS_FAIL,
     "rank=0 left with code 0, but wrote no events; its last words: 'hello'"},
    {"[ $RANK = 1 ] && exit 0; start; step 1; step 2; finish", LS_FAIL, "rank=1 left with code 0"},
    {"start; sed -i s/O0/O1/ \"$out\"; step 1; step 2; finish", LS_FAIL,
     "was asked for opt level O0 and says that it ran O1"},
    {"start; sed -i 's/world\":2/world\":1/' \"$out\"; step 1; step 2; finish", LS_FAIL,
     "says that it is one of 1 ranks: there are 2"},
    {"start; step 1; kill -SEGV $$", LS_CRASH, "signal=11"},
    {"start; step 1; echo Traceback; exit 7", LS_CRASH, "exit code 7: Traceback"},
    {"start; step 1; exit 12", LS_FAIL, "exit code 12"},
    {"exit 4", LS_UNSUPPORTED, "exit code 4"},
    {"yes 'far too much' | head -c 20000000; start; step 1; step 2; finish", LS_PASS, ""},
};
enum { FAULTS = sizeof fault / sizeof *fault };

static void judge_steps(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    if (job->rank[1].step_count != 2) {
        ls_verdict_fail(out, "%d steps", job->rank[1].step_count);
    }
    ls_verdict_pass(out, job->rank[1].step_count, "two steps");
}

typedef struct trial { /* a run of one case, or more, of two ranks and two steps */
    char folder[64], subject[200];
    ls_run run;
    ls_headline headline;
} trial;

static void add(trial *t, ls_case_judge *judge, const char *jobs)
{
    LS_TEXT(text, 200, "subject.fake%d: %s w2 limit=20", t->run.cases.count, jobs);
    ls_rows_format(&t->run.cases, &(ls_case_settings){.seed = 0},
                   &(ls_row){.requirement = "Q1", .judge = judge}, "%s", text);
}

static void begin(trial *t, const char *body, ls_case_judge *judge)
{
    memset(t, 0, sizeof *t);
    fake_folder(t->folder, sizeof t->folder);
    FILE *file = fake_open(t->folder, "trainer.sh");
    fprintf(file, "%s%s\n", prelude, body);
    fclose(file);
    ls_text_put(t->subject, sizeof t->subject, "sh %s/trainer.sh", t->folder);
    ls_text_put(t->run.directory, sizeof t->run.directory, "%s/run", t->folder);
    t->run.site = (ls_matrix_site){
        .subject = t->subject, .run_directory = t->run.directory, .device = "cpu", .cores = 2};
    ls_text_put(t->run.claim_name, sizeof t->run.claim_name, "all");
    ls_select_add(&t->run.claim, "*", "");
    add(t, judge, "resnet20");
}

static void go(trial *t)
{
    ls_runner_plan(&t->run);
    ck_assert_int_eq(ls_runner_open(&t->run), LS_OK);
    ck_assert_int_eq(ls_runner_run(&t->run), LS_OK);
    ls_headline_decide(&t->run, &t->headline);
}

static void end(trial *t)
{
    ls_runner_free(&t->run);
    ls_path_remove_tree(t->folder);
}

static void expect(const ls_verdict *seen, ls_verdict_code code, const char *evidence,
                   const char *what)
{
    ck_assert_msg(seen->code == code && strstr(seen->evidence, evidence) != NULL, "'%s': %s %s",
                  what, ls_verdict_name(seen->code), seen->evidence);
}

LOOP_TEST(one_fault_each_is_named, FAULTS)
{
    trial t;
    begin(&t, fault[_i].script, judge_steps);
    go(&t);
    expect(&t.run.verdict[0], fault[_i].code, fault[_i].evidence, fault[_i].script);
    ck_assert_int_eq(t.headline.correct == LS_CORRECT_YES, fault[_i].code == LS_PASS);
    end(&t);
}

static pid_t read_pid(const char *folder, const char *name)
{
    char path[200];
    ls_text_put(path, sizeof path, "%s/%s", folder, name);
    char *text = ls_text_read(path);
    ck_assert_ptr_nonnull(text);
    pid_t pid = (pid_t)atoi(text);
    free(text);
    ck_assert_int_gt(pid, 1);
    return pid;
}

TEST(a_hanging_subject_times_out_and_leaves_nothing)
{
    trial t;
    /* a child in the group, one in a session of its own, and that one's child in a third */
    begin(&t,
          "export here; start; step 1\n"
          "sleep 300 & echo $! > $here/child.$RANK\n"
          "setsid sh -c 'echo $$ > $here/orphan.$RANK; setsid sleep 300 & echo $! > "
          "$here/far.$RANK; sleep 300' &\n"
          "sleep 300",
          judge_steps);
    t.run.cases.row[0].job[0].limit_s = 1.5;
    go(&t);
    expect(&t.run.verdict[0], LS_TIMEOUT, "still running after", "sleep");
    ck_assert_int_eq(t.headline.correct, LS_CORRECT_NO);
    ck_assert_double_lt(t.run.record[0].seconds, 1.5 + 5 + 2);
    for (int i = 0; i < 6; i++) {
        static const char *const names[] = {"child.0",  "child.1", "orphan.0",
                                            "orphan.1", "far.0",   "far.1"};
        pid_t pid = read_pid(t.folder, names[i]);
        ck_assert_msg(kill(pid, 0) != 0 && errno == ESRCH, "%s (%d) is still there", names[i],
                      (int)pid);
    }
    end(&t);
}

TEST(dumps_that_cannot_be_read_fail)
{
    static const char *const body[] = {
        "start; step 1; step 2; finish", /* none at all */
        "start; step 1; step 2; mkdir -p \"$LS_RUN_DIR/dump\"; printf 'xx' > "
        "\"$LS_RUN_DIR/dump/step000002.rank$RANK.safetensors\"; finish",
        "start; step 1; step 2; mkdir -p \"$LS_RUN_DIR/dump\"; printf "
        "'\\002\\000\\000\\000\\000\\000\\000\\000{}' > "
        "\"$LS_RUN_DIR/dump/step000002.rank$RANK.safetensors\"; finish",
    };
    for (size_t i = 0; i < sizeof body / sizeof *body; i++) {
        trial t;
        begin(&t, body[i], ls_judge_gradients);
        ls_text_put(t.run.cases.row[0].job[0].dump_steps, 64, "2");
        go(&t);
        expect(&t.run.verdict[0], LS_FAIL, i == 0 ? "wrote no dump" : "step 2", body[i]);
        end(&t);
    }
}

/* Runs a good subject that knows resnet8 only, for cases of it and of others. */
TEST(a_subject_that_supports_three_cases_is_not_correct)
{
    trial t;
    begin(&t,
          "case \"$*\" in *resnet8\\ *) ;; *) echo '{\"event\":\"unsupported\",\"schema\":1,"
          "\"option\":\"--arch\",\"why\":\"resnet8 only\"}' > \"$out\"; exit 4 ;; esac\n"
          "start; step 1; step 2; finish",
          judge_steps);
    for (int i = 1; i < 6; i++) {
        LS_TEXT(jobs, 40, "%s repeat=%d", i < 4 ? "resnet8" : "resnet20", i);
        add(&t, judge_steps, jobs);
    }
    go(&t);
    int passed = 0, unsupported = 0;
    for (int c = 0; c < t.run.cases.count; c++) {
        passed += t.run.verdict[c].code == LS_PASS;
        unsupported += t.run.verdict[c].code == LS_UNSUPPORTED;
    }
    ck_assert_int_eq(passed, 3);
    ck_assert_int_eq(unsupported, 3);
    ck_assert_int_eq(t.headline.correct, LS_CORRECT_NOT_SHOWN);
    end(&t);
}

/* Two jobs of two ranks and the question whether it starts at all; `asked`: how often it ran. */
static const struct start {
    const char *script;
    ls_verdict_code code;
    const char *evidence;
    int asked;
} starts[] = {
    {"echo 'No module named trainer'; exit 1", LS_INFRA,
     "does not start: exit code 1 before its first event: No module named trainer; log: ", 3},
    {"echo 'no such file'; exit 2", LS_INFRA, "does not start: exit code 2", 3},
    {"nonexistent-python trainer.py", LS_INFRA, "does not start: exit code 127", 3},
    {"exec \"$LS_RUN_DIR\"", LS_INFRA, "does not start: exit code 126", 3},
    /* it does start, and not with these options */
    {"case \"$*\" in *resnet20*) exit 1 ;; esac; start; step 1; finish", LS_FAIL, "exit code 1", 5},
    {"start; exit 1", LS_FAIL, "exit code 1", 4},
    {"exit 4", LS_UNSUPPORTED, "exit code 4", 4},
};

ROWS_TEST(whether_it_starts_is_asked_once, starts)
{
    const struct start *s = &starts[_i];
    trial t;
    LS_TEXT(body, 600, "echo x >> $here/asked; %s", s->script);
    begin(&t, body, judge_steps);
    add(&t, judge_steps, "resnet20 repeat=1");
    go(&t);
    for (int c = 0; c < t.run.cases.count; c++) {
        expect(&t.run.verdict[c], s->code, s->evidence, s->script);
    }
    ck_assert_int_eq(t.headline.status == LS_ERR_INFRA, s->code == LS_INFRA);
    LS_TEXT(path, 200, "%s/asked", t.folder);
    char *asked = ls_text_read(path);
    ck_assert_int_eq(strlen(asked), 2 * (size_t)s->asked);
    free(asked);
    end(&t);
}

/* Our trainer at O0, with its record and dumps rewritten to say O2. */
TEST(o2_computed_in_fp32_is_not_correct)
{
    trial t;
    char program[1024];
    ls_path_program(program, sizeof program);
    LS_TEXT(body, 3000,
            "%s/../lockstep-train $(echo \"$*\" | sed s/opt-level=O2/opt-level=O0/) || exit\n"
            "export LC_ALL=C\n"
            "sed -i 's/\"opt-level\":\"O0\"/\"opt-level\":\"O2\"/' \"$out\"\n"
            "sed -i 's/\"opt_level\":\"O0\"/\"opt_level\":\"O2\"/' "
            "\"$LS_RUN_DIR/dump/step000002.rank$RANK.safetensors\"",
            program);
    begin(&t, body, ls_judge_gradients);
    ls_case_settings settings = {.seed = 7, .bench = NULL};
    t.run.cases.row[0].job[0] = ls_rows_spec(&settings, "O2 b0.1 dump=1,2");
    go(&t);
    ck_assert_msg(t.run.verdict[0].code == LS_WEAK || t.run.verdict[0].code == LS_FAIL, "%s %s",
                  ls_verdict_name(t.run.verdict[0].code), t.run.verdict[0].evidence);
    ck_assert_int_ne(t.headline.correct, LS_CORRECT_YES);
    end(&t);
}

/* Four steps of two ranks with one wrong member; %d is the step. */
static const struct lie {
    const char *id, *options, *step;
    ls_verdict_code code;
} lie[] = {
    {"subject.rate.o0.w2", "{}", "\"lr\":0.05,\"images\":4", LS_PASS},
    {"subject.rate.o0.w2", "{}", "\"lr\":0.0500000007450580597,\"images\":4", LS_PASS},
    {"subject.rate.o0.w2", "{}", "\"lr\":0.1,\"images\":4", LS_FAIL},
    {"subject.rate.o0.w2", "{}", "\"lr\":0.05,\"images\":8", LS_FAIL},
    {"subject.rate.o0.w2", "{}", "\"images\":4", LS_UNSUPPORTED},
    {"subject.options.o0.w2", "{\"lr\":0.05,\"arch\":\"resnet8\"}", "\"images\":4", LS_PASS},
    {"subject.options.o0.w2", "{\"lr\":0.1}", "\"images\":4", LS_FAIL},
    {"subject.options.o0.w2", "{\"batch-size\":8}", "\"images\":4", LS_FAIL},
    {"subject.options.o0.w2", "{\"opt-level\":\"O1\"}", "\"images\":4", LS_FAIL},
    {"subject.options.o0.w2", "{\"weight-decay\":0}", "\"images\":4", LS_FAIL},
    {"subject.options.o0.w2", "{}", "\"images\":4", LS_UNSUPPORTED},
    {"subject.loss.o0.w2", "{}", "\"loss\":2.5,\"loss_bits\":\"0x40200000\"", LS_FAIL}, /* equal */
    {"subject.loss.o0.w2", "{}", "\"loss\":2.5,\"loss_bits\":\"0x40200001\"", LS_FAIL},
    {"subject.loss.o0.w2", "{}", "\"loss\":2.5,\"loss_bits\":\"2.5\"", LS_FAIL},
    {"subject.loss.o0.w2", "{}", "\"loss\":2.5", LS_UNSUPPORTED},
    {"subject.events.o0.w2", "{}", "\"images\":4", LS_PASS},
    {"subject.moves.o2.w2", "{}", "\"digest\":{\"param\":\"%d\"}", LS_PASS},
    {"subject.moves.o2.w2", "{}", "\"digest\":{\"param\":\"1\"}", LS_FAIL},
    {"subject.moves.o2.w2", "{}", "\"digest\":{\"grad\":\"1\"}", LS_UNSUPPORTED},
    {"subject.form.lr-zero", "{}", "\"digest\":{\"param\":\"%d\"}", LS_FAIL},
    {"subject.form.lr-zero", "{}", "\"digest\":{\"param\":\"1\"}", LS_PASS},
};

ROWS_TEST(events_that_say_something_else_fail, lie)
{
    ls_case_list list = fake_cases();
    const ls_case *row = fake_case(&list, lie[_i].id);
    ck_assert_ptr_nonnull(row);
    for (int k = 0; k < 2; k++) {
        FILE *file = fake_open(folder, k == 0 ? "rank0.jsonl" : "rank1.jsonl");
        fprintf(file, "{\"event\":\"start\",\"schema\":1,\"rank\":%d,\"options\":%s}\n", k,
                lie[_i].options);
        for (int step = 1; step <= 4; step++) {
            char members[200];
            ls_text_put(members, sizeof members, lie[_i].step, step);
            fprintf(file, "{\"event\":\"step\",\"step\":%d,%s}\n", step, members);
        }
        fclose(file);
    }
    ls_record record = fake_read(folder);
    ck_assert_str_eq(record.broken, "");
    ls_verdict verdict;
    memset(&verdict, 0, sizeof verdict);
    row->judge(row, &record, &verdict);
    expect(&verdict, lie[_i].code, "", lie[_i].id);
    ls_record_free(&record);
    ls_rows_free(&list);
}

/* What the page shows is what runs. */
TEST(the_page_shows_the_example)
{
    char path[1024];
    ck_assert(ls_path_find("suite/peers/README.md", path, sizeof path));
    char *page = ls_text_read(path);
    ck_assert(ls_path_find("suite/peers/example.py", path, sizeof path));
    char *example = ls_text_read(path);
    ck_assert(page != NULL && example != NULL && strlen(example) > 500);
    ck_assert_ptr_nonnull(strstr(page, example));
    free(page);
    free(example);
}

/* Our trainer, and a script that then edits what it wrote. `events SED` edits this rank's events,
 * `dumps STEP SED` its dumps of that step, '*': of each; the data stay where they are, so that
 * names and types change to others of the same length. */
static ls_verdict judge_edited(const char *id, const char *script)
{
    trial t;
    char program[1024];
    ls_path_program(program, sizeof program);
    LS_TEXT(body, 4000,
            "%s/../lockstep-train \"$@\"; code=$?\nexport LC_ALL=C\n"
            "events() { sed -i \"$1\" \"$out\"; }\n"
            "dumps() { sed -i \"$2\" \"$LS_RUN_DIR\"/dump/step00000$1.rank$RANK.safetensors; "
            "}\n%s\nexit $code",
            program, script);
    begin(&t, body, judge_steps);
    ls_case_list list = fake_cases();
    ck_assert_ptr_nonnull(fake_case(&list, id));
    t.run.cases.row[0] = *fake_case(&list, id);
    go(&t);
    ls_verdict verdict = t.run.verdict[0];
    ls_rows_free(&list);
    end(&t);
    return verdict;
}

/* Without `hidden`'s metadata. */
static ls_verdict judge_without(const char *id, const char *const *hidden, int count)
{
    char script[2000] = ":";
    for (int i = 0; i < count; i++) {
        ls_text_add(script, sizeof script, "; dumps '*' 's/\"%s\":/\"X%s\":/'", hidden[i],
                    hidden[i] + 1);
    }
    return judge_edited(id, script);
}

/* A dump may leave out what has its default, as the page says, and what the page does not name. */
TEST(a_dump_may_leave_out_what_the_page_says)
{
    static const char *const hidden[] = {"loss_scale", "skipped",         "optimizer",
                                         "accumulate", "loss_scale_next", "half"};
    static const char *const said[] = {"`loss_scale` (1)", "`skipped` (false)", "`optimizer` (sgd)",
                                       "`accumulate` (1)"};
    enum { HIDDEN = sizeof hidden / sizeof *hidden, SAID = sizeof said / sizeof *said };
    char path[1024];
    ck_assert(ls_path_find("suite/peers/README.md", path, sizeof path));
    char *page = ls_text_read(path);
    ck_assert_ptr_nonnull(page);
    for (int i = 0; i < SAID; i++) {
        ck_assert_msg(strstr(page, said[i]) != NULL, "%s", said[i]);
    }
    free(page);
    static const char *const judged[] = {"subject.dump.o0.w2", "gradients.o0.w2.b0.1mb"};
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++) {
        ls_verdict verdict = judge_without(judged[i], hidden, HIDDEN);
        expect(&verdict, LS_PASS, "", judged[i]);
    }
}

/* What a dump leaves out has a value, which must be that of its step. */
TEST(metadata_that_is_missing_where_it_matters_fails)
{
    static const struct {
        const char *id, *hidden, *evidence;
    } gap[] = {
        {"subject.dump.skipped", "skipped", "skipped false (absent), the event true"},
        {"subject.dump.skipped", "loss_scale", "loss_scale 1 (absent), the events 524288"},
        {"subject.dump.o0.w2", "momentum", "momentum 0 (absent), the events 0.9"},
        {"subject.dump.o0.w2", "weight_decay", "weight_decay 0 (absent), the events 0.0001"},
        {"subject.dump.o0.w2", "world_size", "world_size (nothing), expected 2"},
    };
    for (size_t i = 0; i < sizeof gap / sizeof *gap; i++) {
        ls_verdict verdict = judge_without(gap[i].id, &gap[i].hidden, 1);
        expect(&verdict, LS_FAIL, gap[i].evidence, gap[i].hidden);
    }
}

/* A judge demands what it says that it has judged: each of these left a part out, and passed. */
static const struct omission {
    const char *id, *script;
    ls_verdict_code code;
    const char *evidence;
} omission[] = {
    {"gradients.o0.w2.b0.1mb", "dumps 2 's#next/fc.bias#next/fc.bixs#'", LS_FAIL, "next/fc.bi"},
    {"gradients.o0.w2.b0.1mb", "[ $RANK = 0 ] || dumps 2 's#next_state/fc.b#nexx_state/fc.b#'",
     LS_FAIL, "rank=1 next_state/fc.bias/momentum_buffer differs"},
    {"optim.sgd.plain.o0", "dumps '*' 's#next/fc.bias#nexx/fc.bias#'", LS_FAIL, "next/fc.bias is"},
    {"optim.sgd.drift.o0", "dumps '*' 's#next/fc.bias#nexx/fc.bias#'", LS_UNSUPPORTED, "lacks"},
    {"masters.copy.o2", "dumps 3 's#param/fc.bias#parax/fc.bias#'", LS_FAIL, "param is missing"},
    {"masters.carry.o2", "dumps 3 's#master/fc.bias#mastex/fc.bias#'", LS_FAIL,
     "master is missing"},
    {"masters.unrounded.o2", "dumps 2 's#next/fc.bias#nexx/fc.bias#'", LS_FAIL, "next/fc.bias"},
    {"masters.gradient.o2", "dumps 2 's#grad/fc.bias#grax/fc.bias#'", LS_FAIL, "grad/fc.bias"},
    {"masters.small.o2", "dumps 1 's#grad/fc.bias#grax/fc.bias#'", LS_FAIL, "fc.bias: gradient"},
    {"masters.small.lost.o3", "dumps 1 's#grad/#grax/#g'", LS_FAIL, "gradient or a value"},
    {"opt_levels.types.o2", "dumps 2 's#next/#nexx/#g'", LS_FAIL, "0 tensors next"},
    {"gradients.followed.o2.w2",
     "case \"$*\" in *force*) ;; *) dumps 1 's#grad/fc.bias#grax/fc.bias#' ;; esac", LS_FAIL,
     "gradients of"},
    {"subject.dump.o0.w2", "dumps 2 's#\"target\":{\"dtype\":\"I#\"target\":{\"dtype\":\"F#'",
     LS_FAIL, "target has another size or type"},
    {"subject.dump.o0.w2", "dumps 2 's#next_state/fc.bias#next_state/fc.bixs#'", LS_FAIL,
     "is no tensor of"},
    {"ddp.lockstep.o2.w2", "[ $RANK = 0 ] || events 's/\"master\":\"[^\"]*\",//'", LS_FAIL,
     "reports other digests"},
    {"checkpoint.resume.o2.w2",
     "case \"$*\" in *resume*) events 's/\"master\":\"[^\"]*\",//' ;; esac", LS_FAIL,
     "reports other digests"},
    {"unused.alike.nobody.apex", "events 's/\"digest\":{/\"digesx\":{/'", LS_UNSUPPORTED,
     "no digests"},
    {"syncbn.groups.even.w2", "events 's/\"buffer\":\"[^\"]*\"/\"x\":\"\"/'", LS_UNSUPPORTED,
     "no digest of statistics"},
    {"scaler.skip.plain.o2", "events '/\"step\":2,/s/\"param\":/\"parax\":/'", LS_UNSUPPORTED,
     "no digest of the parameters"},
    {"scaler.static.o2", "events '/\"event\":\"step\"/d'", LS_FAIL, "0 step events"},
    /* says that it does what it does not */
    {"examples.two-losses.overflow.loss0.o1.w2",
     "events '1s/\"options\":{/\"options\":{\"scalers\":1,/'", LS_FAIL,
     "step 3: loss 1 has scale 2048, then 2048; expected 2048, 1024"},
    {"statistics.o0.w2", "events '1s/\"broadcast-buffers\":false/\"broadcast-buffers\":true/'",
     LS_FAIL, "bn1 channel"},
};

ROWS_TEST(what_is_left_out_does_not_pass, omission)
{
    const struct omission *o = &omission[_i];
    ls_verdict verdict = judge_edited(o->id, o->script);
    LS_TEXT(what, 400, "%s, %s", o->id, o->script);
    expect(&verdict, o->code, o->evidence, what);
}

/* The program itself: no case is no success. */
TEST(zero_cases_are_exit_code_1)
{
    char *log;
    static const char *const arguments[] = {"--case launch.kill.rank1 --shard 2/2",
                                            "--list-file none.txt"};
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++) {
        LS_TEXT(line, 300,
                "echo '# nothing' >none.txt; lockstep conform --device cpu --out run%zu %s", i,
                arguments[i]);
        ck_assert_int_eq(fake_shell(folder, line, &log), 1);
        free(log);
    }
}

/* A good trainer that takes an option that it does not know: CORRECT says nothing of it, and the
 * exit code only where it is asked for. */
TEST(bad_manners_are_not_wrong_training)
{
    static const struct {
        const char *arguments;
        int code;
        const char *manners;
    } run[] = {
        {"--case subject.usage.unknown --case subject.form.quiet", 0, "0 of 1"},
        {"--case subject.usage.unknown --case subject.form.quiet --gate manners", 1, "0 of 1"},
        {"--case subject.usage.unknown --case subject.form.quiet --gate none", 0, "0 of 1"},
        {"--case subject.usage.unknown", 1, "0 of 1"},
        {"--case subject.usage.lr-word", 0, "1 of 1"},
        {"--case subject.form.quiet --gate manners", 0, ""},
    };
    char *log;
    FILE *file = fake_open(folder, "trainer.sh");
    fprintf(file, "for a; do shift; [ \"$a\" = --no-such-option=1 ] || set -- \"$@\" \"$a\"; "
                  "done\nexec $B/lockstep-train \"$@\"\n");
    fclose(file);
    LS_TEXT(path, 100, "%s/run/summary.json", folder);
    for (size_t i = 0; i < sizeof run / sizeof *run; i++) {
        LS_TEXT(line, 400,
                "lockstep conform --device cpu --claim torch-ddp-fp32 --subject \"sh "
                "$PWD/trainer.sh\" --out run %s",
                run[i].arguments);
        ck_assert_msg(fake_shell(folder, line, &log) == run[i].code, "'%s': %s", run[i].arguments,
                      log);
        free(log);
        cJSON *summary = NULL;
        ck_assert_int_eq(ls_json_read_file(path, &summary), LS_OK);
        const cJSON *headline = cJSON_GetObjectItem(summary, "headline");
        ck_assert_str_eq(ls_json_string(cJSON_GetObjectItem(headline, "manners"), "value", ""),
                         run[i].manners);
        ck_assert_str_eq(ls_json_string(cJSON_GetObjectItem(headline, "correct"), "value", ""),
                         "not shown");
        cJSON_Delete(summary);
    }
}

/* `lockstep subject-check` on lockstep-train, which lacks nothing, and on scripts in front of it
 * that take one thing away. */

/* $B is this build, $out the rank's events. `before` is run in front of the trainer, `after` once
 * it has ended. */
static const struct lack {
    const char *claim, *before, *after;
    int code;
    const char *says; /* parts of the output */
} lacks[] = {
    {"torch-ddp-bf16", ":", ":", 0, "whole   yes|\nnext: | --claim torch-ddp-bf16"},
    {"torch-ddp-bf16",
     "for w; do case $w in --half=bf16) echo '{\"event\":\"unsupported\",\"schema\":1,\"option\":"
     "\"--half\",\"why\":\"not here\"}' >$out; exit 4;; esac; done",
     ":", 1, "--opt-level O1 bf16 static refused: not here|whole   no|such as gradients.bf16"},
    /* what an option parser of another trainer does with an option that it does not know */
    {"torch-ddp-bf16",
     "for w; do case $w in --bucket-cap-mb=*) echo \"unrecognized: $w\"; exit 2;; esac; done", ":",
     1, "--bucket-cap-mb fails: rank=0 exit code 2|unrecognized:|whole   no"},
    /* the option is taken and another value is used */
    {"torch-ddp-bf16", "set -- \"$@\" --num-classes=12", ":", 1,
     "--num-classes not followed: asked for 10, the start event says 12|whole   no"},
    {"torch-ddp-bf16", ":", "rm -rf $LS_RUN_DIR/dump", 1,
     "no dump/step<k>.rank<r>.safetensors is written|such as gradients.bf16.|whole   no"},
    {"torch-ddp-fp32", ":", "sed -i 's/,\"digest\":{[^}]*}//' $out", 1,
     "step events have no digest.param, digest.grad,|such as |whole   no"},
    /* the machine's doing: neither the subject's lack nor a yes */
    {"torch-ddp-bf16", "[ \"$WORLD_SIZE\" != 3 ] || exit 3", ":", 3,
     "not judged: gradients.bf16.|exit code 3|whole   not shown"},
    {"torch-ddp-fp32", "exit 2", ":", 3, "the subject does not start"},
};
enum { LACKS = sizeof lacks / sizeof *lacks };

static void fits(const char *log)
{
    for (const char *line = log; *line != '\0'; line += strcspn(line, "\n") + 1) {
        bool own = strncmp(line, "next", 4) != 0 && strncmp(line, "     --subject", 14) != 0;
        ck_assert_msg(!own || strcspn(line, "\n") <= 80, "'%.200s'", line);
        if (line[strcspn(line, "\n")] == '\0') {
            break;
        }
    }
}

LOOP_TEST(a_lack_is_named_with_what_it_costs, LACKS)
{
    const struct lack *l = &lacks[_i];
    char line[600], *log = NULL;
    FILE *script = fake_open(folder, "trainer.sh");
    fprintf(script,
            "out=\"$LS_RUN_DIR/rank${RANK:-0}.jsonl\"\n%s\n\"$B/lockstep-train\" \"$@\"\ncode=$?\n"
            "%s\nexit $code\n",
            l->before, l->after);
    fclose(script);
    ls_text_put(line, sizeof line,
                "\"$B/lockstep\" subject-check --claim %s --device cpu -- sh %s/trainer.sh",
                l->claim, folder);
    int code = fake_shell(folder, line, &log);
    ck_assert_msg(code == l->code, "code %d: %s", code, log);
    const char *missing = fake_lacks(log, l->says);
    ck_assert_msg(missing == NULL, "'%s' is not in: %s", missing, log);
    if (code <= 1) {
        fits(log);
    }
    free(log);
}

TEST(usage_errors_and_missing_programs_differ)
{
    static const struct {
        const char *arguments, *says;
        int code;
    } bad[] = {{"", "an argument is missing", 2},
               {"--claim ddp-fp32 --", "an argument is missing", 2},
               {"--claim none -- sh", "unknown claim 'none'", 2},
               {"-- sh -c 'exit 0'", "words without blanks", 2},
               {"--claim torch-ddp-bf16 --device cpu --out . -- sh", "holds jobs already", 2},
               {"--claim torch-ddp-bf16 -- /nonexistent/trainer", "cannot run", 3}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char folder[64], line[300], *log = NULL;
        fake_folder(folder, sizeof folder);
        ls_text_put(line, sizeof line, "mkdir jobs; \"$B/lockstep\" subject-check %s",
                    bad[i].arguments);
        int code = fake_shell(folder, line, &log);
        ck_assert_msg(code == bad[i].code, "%s: code %d: %s", bad[i].arguments, code, log);
        ck_assert_msg(strstr(log, bad[i].says) != NULL, "%s: %s", bad[i].arguments, log);
        free(log);
        ls_path_remove_tree(folder);
    }
}

TEST_MAIN("subject", .timeout_s = 280, .before = fake_begin, .after = fake_end)
