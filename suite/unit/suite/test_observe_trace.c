/* What is read of an observed job's folder: every event and call, and what is left where a rank
 * died, a line is broken or the trainer speaks the subject protocol alone. */
#include <check.h>
#include <math.h>

#include "observe_fake.h"
#include "suite/commands/observe_parts.h"
#include "suite/observe/observe.h"
#include "suite/observe/trace/trace.h"
#include "suite/unit/run_suite.h"

static char folder[64];
static ls_observe_trace *trace; /* of what was last read, freed after the test */

static void make_folder(void)
{
    ls_text_put(folder, sizeof folder, "/tmp/lockstep-trace-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void remove_folder(void)
{
    ls_observe_free(trace);
    trace = NULL;
}

static void write_text(const char *name, const char *text)
{
    LS_TEXT(path, 200, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static void write_rank(int rank, const char *text)
{
    LS_TEXT(name, 32, "rank%d.jsonl", rank);
    write_text(name, text);
}

static void read_folder(void)
{
    ck_assert_int_eq(ls_observe_read(folder, &trace), LS_OK);
}

/* Every rule that is not SKIP is INFRA, and there is one. */
static void expect_unread(void)
{
    ls_observe_result result;
    int unread = 0;
    ls_observe_judge_all(trace, &result);
    for (int i = 0; i < result.count; i++) {
        ls_verdict_code code = result.finding[i].verdict.code;
        ck_assert(code == LS_INFRA || code == LS_SKIP);
        unread += code == LS_INFRA;
    }
    ck_assert_int_gt(unread, 0);
    ls_observe_result_free(&result);
}

static const ls_observe_rule *rule_named(const char *id)
{
    int count;
    const ls_observe_rule *rule = ls_observe_rules(&count);
    while (count-- > 0 && strcmp(rule->id, id) != 0) {
        rule++;
    }
    return rule;
}

#define START "{\"event\":\"start\",\"schema\":1,\"observed\":1,\"rank\":0,\"world\":1}\n"

static const char *const whole =
    START "{\"event\":\"model\",\"model\":0,\"kind\":\"plain\",\"name\":\"Net\",\"params\":"
          "[[\"w\",12,\"f32\",true],[\"g\",4,\"bf16\",false]],\"norm_params\":[\"g\"]}\n"
          "{\"event\":\"model\",\"model\":1,\"kind\":\"ddp\",\"name\":\"Head\",\"params\":"
          "[[\"m1.w\",3,\"f32\",true]]}\n"
          "{\"event\":\"scaler\",\"scaler\":0,\"enabled\":true}\n"
          "{\"event\":\"unheard\",\"of\":1}\n"
          "{\"event\":\"step\",\"step\":1,\"loss\":null,\"lr\":0.5,\"skipped\":true,\"calls\":["
          "{\"call\":\"forward\",\"model\":1,\"at\":\"a.py:3\",\"training\":true,"
          "\"autocast\":\"f16\"},{\"call\":\"unheard\"},"
          "{\"call\":\"backward\",\"times\":3,\"sync\":false},"
          "{\"call\":\"update\",\"scaler\":2},{\"call\":\"optimizer_step\",\"optimizer\":1}]}\n"
          "{\"event\":\"save\",\"path\":\"x.pt\"}\n{\"event\":\"save\",\"path\":\"y.pt\"}\n"
          "{\"event\":\"cost\",\"own_ms\":1}\n"
          "{\"event\":\"step\",\"step\":2}\n{\"event\":\"end\",\"steps\":2}\n";

TEST(every_event_is_read)
{
    write_rank(0, whole);
    read_folder();
    const ls_observe_rank *rank = &trace->rank[0];
    ck_assert(trace->attached);
    ck_assert_int_eq(trace->world, 1);
    ck_assert_int_eq(rank->step_count, 2);
    ck_assert_int_eq(rank->tensor_count, 3);
    ck_assert_str_eq(rank->tensor[1].name, "g");
    ck_assert(rank->tensor[1].norm && !rank->tensor[1].trainable && !rank->tensor[0].norm);
    ck_assert_str_eq(rank->tensor[1].type, "bf16");
    ck_assert_str_eq(rank->tensor[2].name, "m1.w");
    ck_assert_int_eq(rank->tensor[2].model, 1);
    ck_assert_int_eq(rank->tensor[0].elements, 12);
    ck_assert_int_eq(ls_event_count(ls_trace_events(rank, save)), 2);
    ck_assert_int_eq(ls_event_count(ls_trace_events(rank, load)), 0);
    ck_assert_ptr_nonnull(rank->cost);
    ck_assert(rank->record->ended && rank->step[0].step->skipped);
    ck_assert(ls_trace_is_scaled(trace) && ls_trace_is_mixed(trace));
    ck_assert(!ls_trace_is_ddp(trace)); /* one rank */
}

#define STEP(number, rest) \
    "{\"event\":\"step\",\"step\":" #number ",\"loss\":1,\"skipped\":false," rest "}\n"

TEST(a_step_like_another_has_its_calls)
{
    write_rank(
        0, START STEP(1, "\"calls\":[{\"call\":\"forward\",\"model\":1,\"at\":\"a.py:3\",\"left\":"
                         "64},{\"call\":\"backward\",\"times\":3}]")
               STEP(2, "\"like\":1,\"calls\":[{\"left\":128},{}]") STEP(3, "\"calls\":[]")
                   STEP(4, "\"like\":2,\"calls\":[{},{\"times\":1,\"at\":\"b.py:4\"}]")
                       STEP(5, "\"like\":3,\"calls\":[]") "{\"event\":\"end\",\"steps\":5}\n");
    read_folder();
    const ls_observe_step *step = trace->rank[0].step;
    ck_assert_int_eq(trace->rank[0].step_count, 5);
    const double left[] = {64, 128, NAN, 128};
    for (int i = 0; i < 4; i += i == 1 ? 2 : 1) {
        ck_assert_int_eq(step[i].call_count, 2);
        const ls_call *forward = &step[i].call[0], *backward = &step[i].call[1];
        ck_assert(forward->kind == LS_CALL_FORWARD && forward->model == 1);
        ck_assert_str_eq(forward->at, "a.py:3");
        ck_assert_double_eq(ls_event_number(forward->json, left, NAN), left[i]);
        ck_assert(backward->kind == LS_CALL_BACKWARD && backward->times == (i == 3 ? 1 : 3));
        ck_assert_str_eq(backward->at, i == 3 ? "b.py:4" : "");
    }
    ck_assert(step[2].call_count == 0 && step[4].call_count == 0);
}

static const char *const wrong_likes[] = {
    "\"like\":2,\"calls\":[{}]",     /* itself */
    "\"like\":3,\"calls\":[{}]",     /* one that comes later */
    "\"like\":0,\"calls\":[{}]",     /* none */
    "\"like\":\"1\",\"calls\":[{}]", /* no number */
    "\"like\":1,\"calls\":[]",       /* of fewer calls */
    "\"like\":1,\"calls\":[{},{}]",  /* of more */
};

ROWS_TEST(a_step_like_none_is_an_error, wrong_likes)
{
    LS_TEXT(text, 1000,
            START STEP(1, "\"calls\":[{\"call\":\"forward\"}]") STEP(2, "%s")
                STEP(3, "\"calls\":[{\"call\":\"forward\"}]") "{\"event\":\"end\",\"steps\":3}\n",
            wrong_likes[_i]);
    write_rank(0, text);
    ck_assert_int_eq(ls_observe_read(folder, &trace), LS_ERR_USAGE);
}

#define OF_TWO(rank) \
    "{\"event\":\"start\",\"schema\":2,\"observed\":1,\"rank\":" #rank ",\"world\":2}\n"

/* Rules go over steps, models and passes by their numbers: those of a file may be any. */
TEST(numbers_that_cannot_be_are_judged_soon)
{
    static const char *const model =
        "{\"event\":\"model\",\"model\":2147483647,\"kind\":\"ddp\",\"broadcast_buffers\":true,"
        "\"buffers\":[[\"b\",1,\"f32\"]],\"params\":[],\"bn\":2147483647,\"sync_bn\":2147483647}\n"
        "{\"event\":\"model\",\"model\":0,\"kind\":\"ddp\",\"broadcast_buffers\":true,\"world\":2,"
        "\"buffers\":[[\"b\",1,\"f32\"]],\"params\":[],\"bn\":2147483647,\"sync_bn\":2147483647}\n"
        "{\"event\":\"data\",\"loader\":0,\"batch\":2147483647,\"count\":2147483647,\"steps\":[1,"
        "9007199254740991]}\n"
        "{\"event\":\"misuse\",\"kind\":\"transform\",\"loaders\":[1e300,null]}\n";
    static const char *const calls =
        "\"calls\":[{\"call\":\"forward\",\"times\":2147483647,\"grad\":true},{\"call\":"
        "\"optimizer_step\"}],\"digest\":{\"param\":\"0123456789abcdef\"}}\n";
    LS_TEXT(first, 4000, "%s%s{\"event\":\"step\",\"step\":1,\"loss\":1,%s", OF_TWO(0), model,
            calls);
    LS_TEXT(second, 4000, "%s%s{\"event\":\"step\",\"step\":9007199254740990,\"loss\":1,%s",
            OF_TWO(1), model, calls);
    write_rank(0, first);
    write_rank(1, second);
    read_folder();
    ls_observe_result result;
    ls_observe_judge_all(trace, &result);
    ck_assert_int_gt(result.count, 0);
    ls_observe_result_free(&result);
}

TEST(calls_are_read_in_order)
{
    write_rank(0, whole);
    read_folder();
    const ls_observe_step *step = ls_trace_step(&trace->rank[0], 1);
    ck_assert_ptr_nonnull(step);
    ck_assert_int_eq(step->call_count, 5);
    ck_assert_int_eq(step->call[0].kind, LS_CALL_FORWARD);
    ck_assert_int_eq(step->call[0].model, 1);
    ck_assert_int_eq(step->call[0].optimizer, -1);
    ck_assert_str_eq(step->call[0].at, "a.py:3");
    ck_assert_int_eq(step->call[1].kind, LS_CALL_OTHER);
    ck_assert_int_eq(step->call[2].times, 3);
    ck_assert_int_eq(step->call[3].scaler, 2);
    ck_assert_int_eq(ls_trace_find(step, LS_CALL_BACKWARD, 0), 2);
    ck_assert_int_eq(ls_trace_find(step, LS_CALL_BACKWARD, 3), -1);
    ck_assert_int_eq(ls_trace_find(step, LS_CALL_MODE, 0), -1);
    ck_assert_ptr_eq(ls_trace_step(&trace->rank[0], 2), &trace->rank[0].step[1]);
    ck_assert_ptr_null(ls_trace_step(&trace->rank[0], 3));
    ck_assert_ptr_null(ls_trace_step(&trace->rank[0], 0));
    ck_assert(!step->detail && step->samples[0] == '\0');
}

/* Of three ranks one left no file and one died after its first step. */
TEST(what_dead_ranks_left_is_read)
{
    static const char *const start = "{\"event\":\"start\",\"schema\":1,\"observed\":1,\"world\":3}"
                                     "\n{\"event\":\"step\",\"step\":1}\n";
    write_rank(0, start);
    write_rank(1, start);
    read_folder();
    ls_observe_result result;
    ck_assert_int_eq(trace->world, 3);
    ck_assert_int_eq(trace->rank[1].step_count, 1);
    ck_assert_int_eq(trace->rank[2].step_count, 0);
    ck_assert(!trace->rank[2].record->has_events &&
              ls_event_count(ls_trace_events(&trace->rank[2], model)) == 0);
    ls_observe_judge_all(trace, &result);
    for (int i = 0; i < result.count; i++) {
        const ls_observe_finding *f = &result.finding[i];
        bool said = strstr(f->verdict.evidence, "rank 2 left no events") != NULL &&
                    strstr(f->verdict.evidence, "rank 1 ended without a word after step 1") != NULL;
        ck_assert_msg(f->verdict.code == LS_SKIP || said, "%s: %s", f->rule->id,
                      f->verdict.evidence);
    }
    ls_observe_result_free(&result);
}

/* Digests of 5 steps on two ranks: a letter is one digest, '0' that of no tensor, '-' none. */
static const struct {
    const char *param[2], *state[2];
    int tensors;
    ls_verdict_code code[2]; /* of replicas.step and replicas.state */
    const char *evidence[2];
} replicas[] = {
    {{"abcde", "abcde"},
     {"vwxyz", "vwxyz"},
     1,
     {LS_PASS, LS_PASS},
     {"after 5 of 5 steps, the last among them", "after 5 of 5 steps, the last among them"}},
    {{"ab--e", "ab--e"},
     {"00000", "00000"},
     1,
     {LS_PASS, LS_SKIP},
     {"after 3 of 5 steps, the last among them", "no tensor is part of the optimizer state"}},
    {{"abcd-", "abcde"},
     {"-----", "vwxyz"},
     1,
     {LS_WEAK, LS_WEAK},
     {"up to step 4: of step 5, the last one, not all", "no step has digests"}},
    {{"abcde", "abxyz"},
     {"a--de", "a--xy"},
     1,
     {LS_FAIL, LS_FAIL},
     {"after step 3 ranks 0 and 1 hold", "between steps 1 and 4 ranks 0 and 1 hold"}},
    {{"00000", "00000"}, {"abcde", "abcde"}, 0, {LS_UNSUPPORTED, LS_PASS}, {"0 tensors", "5 of 5"}},
};

static void write_replica(int rank, const char *param, const char *state, int tensors)
{
    char text[4096];
    ls_text_put(text, sizeof text,
                "{\"event\":\"start\",\"schema\":2,\"observed\":1,\"rank\":%d,\"world\":2}\n"
                "{\"event\":\"model\",\"model\":0,\"kind\":\"ddp\",\"world\":2,\"params\":[%s]}\n",
                rank, tensors > 0 ? "[\"w\",12,\"f32\",true]" : "");
    for (int step = 1; step <= 5; step++) {
        char p = param[step - 1], s = state[step - 1];
        ls_text_add(text, sizeof text, "{\"event\":\"step\",\"step\":%d,\"digest\":{\"x\":0", step);
        const char letter[] = {p, s};
        for (int d = 0; d < 2; d++) {
            if (letter[d] != '-') {
                ls_text_add(text, sizeof text, ",\"%s\":\"%016x\"", d == 0 ? "param" : "state",
                            letter[d] == '0' ? 0U : (unsigned)letter[d]);
            }
        }
        ls_text_add(text, sizeof text, "},\"calls\":[]}\n");
    }
    ls_text_add(text, sizeof text, "{\"event\":\"end\",\"steps\":5}\n");
    write_rank(rank, text);
}

ROWS_TEST(replicas_are_equal_up_to_the_last_step, replicas)
{
    static const char *const rules[] = {"replicas.step", "replicas.state"};
    for (int rank = 0; rank < 2; rank++) {
        write_replica(rank, replicas[_i].param[rank], replicas[_i].state[rank],
                      replicas[_i].tensors);
    }
    read_folder();
    for (int r = 0; r < 2; r++) {
        ls_observe_finding found = {0};
        ls_observe_judge_one(trace, rule_named(rules[r]), &found);
        ck_assert_msg(found.verdict.code == replicas[_i].code[r] &&
                          strstr(found.verdict.evidence, replicas[_i].evidence[r]) != NULL,
                      "%s: %s %s", rules[r], ls_verdict_name(found.verdict.code),
                      found.verdict.evidence);
    }
}

/* A job whose rules all pass is correct only where it ended well and was seen to its end. */
static const struct {
    const char *last; /* line of rank 1 */
    ls_record_state state;
    bool yes;
    const char *why;
} ends[] = {
    {"{\"event\":\"end\"}\n", LS_RECORD_DONE, true, ""},
    {"{\"event\":\"end\"}\n", LS_RECORD_UNKNOWN, true, ""},
    {"", LS_RECORD_DONE, true, ""}, /* left by os._exit */
    {"", LS_RECORD_UNKNOWN, false, "; rank 1 ended without a word after step 1"},
    {"{\"event\":\"end\"}\n", LS_RECORD_FAILED, false, "; the job ended with exit code 7"},
    {"{\"event\":\"end\"}\n", LS_RECORD_KILLED, false, "; the job was ended by signal 9"},
    {"{\"event\":\"end\"}\n", LS_RECORD_STOPPED, false, "; the job did not end by itself"},
    {"{\"event\":\"attach\",\"error\":\"X\",\"quiet\":true}\n{\"event\":\"end\"}\n", LS_RECORD_DONE,
     false, "; rank 1 was not seen to its end: X"},
};

ROWS_TEST(a_job_that_did_not_end_well_is_not_shown, ends)
{
    char text[400];
    for (int rank = 0; rank < 2; rank++) {
        ls_text_put(text, sizeof text,
                    "{\"event\":\"start\",\"schema\":1,\"observed\":1,\"world\":2}\n"
                    "{\"event\":\"step\",\"step\":1}\n%s",
                    rank == 0 ? "{\"event\":\"end\"}\n" : ends[_i].last);
        write_rank(rank, text);
    }
    read_folder();
    trace->record.state = ends[_i].state;
    trace->record.code = 7;
    trace->record.signal = 9;
    int count;
    ls_observe_finding passed = {.rule = ls_observe_rules(&count)};
    const ls_observe_result result = {1, &passed};
    ls_observe_headline headline;
    ls_observe_verdicts_decide(trace, &result, (ls_observe_gate){false, false}, &headline);
    ck_assert_int_eq(headline.correct, ends[_i].yes ? LS_CORRECT_YES : LS_CORRECT_NOT_SHOWN);
    ck_assert_int_eq(headline.whole, ends[_i].yes);
    ck_assert_msg(strstr(headline.why, ends[_i].why) != NULL, "%s", headline.why);
}

/* CORRECT is of laws: a hint neither fails it nor, where its rule passes, adds to it. */
LOOP_TEST(laws_decide_and_hints_do_not, 12)
{
    static const struct {
        const char *id;
        ls_verdict_code code;
        bool hint; /* the rule's other finding */
        ls_observe_gate gate;
        ls_headline_correct correct;
        int inside, hints, exit;
    } one[] = {
        {"replicas.step", LS_PASS, false, {false, false}, LS_CORRECT_YES, 2, 0, 0},
        {"replicas.step", LS_FAIL, false, {false, false}, LS_CORRECT_NO, 2, 0, 1},
        {"validation.whole", LS_FAIL, false, {false, false}, LS_CORRECT_YES, 1, 1, 0},
        {"validation.whole", LS_FAIL, false, {true, false}, LS_CORRECT_YES, 1, 1, 0},
        {"validation.whole", LS_FAIL, false, {false, true}, LS_CORRECT_YES, 1, 1, 1},
        {"validation.whole", LS_WEAK, false, {true, true}, LS_CORRECT_YES, 1, 0, 0},
        {"order.zero", LS_PASS, true, {false, false}, LS_CORRECT_YES, 2, 1, 0},
        {"order.zero", LS_PASS, true, {false, true}, LS_CORRECT_YES, 2, 1, 1},
        {"order.zero", LS_WEAK, true, {false, false}, LS_CORRECT_NOT_SHOWN, 2, 1, 0},
        /* what a yes is about was judged in some step */
        {"reduction.mean", LS_SKIP, false, {false, false}, LS_CORRECT_NOT_SHOWN, 1, 0, 0},
        {"optimizer.step", LS_SKIP, false, {true, false}, LS_CORRECT_NOT_SHOWN, 1, 0, 1},
        {"reduction.micro", LS_SKIP, false, {false, false}, LS_CORRECT_YES, 1, 0, 0},
    };
    for (int rank = 0; rank < 2; rank++) {
        write_rank(rank, "{\"event\":\"start\",\"schema\":1,\"observed\":1,\"world\":2}\n"
                         "{\"event\":\"end\"}\n");
    }
    read_folder();
    trace->record.state = LS_RECORD_DONE;
    ls_observe_finding found[2] = {{.rule = rule_named("replicas.start")},
                                   {.rule = rule_named(one[_i].id)}};
    found[1].verdict.code = one[_i].code;
    found[1].hint.verdict.code = one[_i].hint ? LS_FAIL : LS_PASS;
    const ls_observe_result result = {2, found};
    ls_observe_headline headline;
    ls_observe_verdicts_decide(trace, &result, one[_i].gate, &headline);
    ck_assert_int_eq(headline.correct, one[_i].correct);
    ck_assert_int_eq(headline.inside, one[_i].inside);
    ck_assert_int_eq(headline.hints, one[_i].hints);
    ck_assert_int_eq(headline.code, one[_i].exit == 1 ? LS_ERR_CHECK : LS_OK);
}

/* Of laws that fail, each is shown with the one that it follows from, in the end. */
TEST(what_follows_names_its_root)
{
    static const char *const id[] = {"replicas.state", "replicas.step", "optimizer.rate",
                                     "data.distinct", "order.zero"};
    static const char *const root[] = {"optimizer.rate", "optimizer.rate", NULL, NULL, NULL};
    ls_observe_finding found[5] = {{0}};
    const ls_observe_result result = {5, found};
    for (int i = 0; i < 5; i++) {
        found[i].rule = rule_named(id[i]);
        found[i].verdict.code = LS_FAIL;
    }
    for (int i = 0; i < 5; i++) {
        ck_assert_pstr_eq(ls_observe_root(&result, &found[i]), root[i]);
    }
    found[1].verdict.code = LS_PASS; /* the middle of a chain, and its end */
    ck_assert_ptr_null(ls_observe_root(&result, &found[0]));
    ck_assert_ptr_null(ls_observe_root(&result, &found[1]));
    found[1].verdict.code = LS_FAIL;
    found[2].verdict.code = LS_WEAK;
    ck_assert_pstr_eq(ls_observe_root(&result, &found[0]), "replicas.step");
}

/* The lines are the attach module's: a broken one is no fault of the job. */
LOOP_TEST(a_broken_line_is_kept_and_ends_what_needs_it, 3)
{
    static const char *const broken[] = {
        START "{\"event\":\"step\",\"step\":1}\nno json\n{\"event\":\"step\",\"step\":2}\n",
        START "{\"event\":\"step\",\"step\":1}\n{\"event\":\"step\",\"step\":5}\n",
        START "{\"event\":\"step\",\"step\":1}\n{\"event\":\"st",
    };
    write_rank(0, broken[_i]);
    read_folder();
    ck_assert(strstr(trace->record.broken, "rank0.jsonl line 3") != NULL);
    ck_assert_int_eq(trace->rank[0].step_count, 1);
    expect_unread();
}

/* A rule that needs the member is not decided; what a later step's call has is not an earlier's. */
LOOP_TEST(a_value_of_another_kind_is_named, 4)
{
    static const struct {
        const char *lines, *words;
    } wrong[] = {
        {"{\"event\":\"scaler\",\"scaler\":\"0\",\"enabled\":true}\n",
         "rank0.jsonl line 2 has \"scaler\" of scaler that is not a whole number"},
        {"{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"lr\":\"0.1\"}]}\n",
         "rank0.jsonl line 2 has \"lr\" of group that is not a number"},
        {STEP(1, "\"calls\":[{\"call\":\"forward\",\"training\":1}]"),
         "rank0.jsonl line 2 has \"training\" of forward that is not true or false"},
        {STEP(1, "\"calls\":[{\"call\":\"forward\"}]") STEP(2, "\"like\":1,\"calls\":[{\"at\":7}]"),
         "rank0.jsonl line 3 has \"at\" of any call that is not a text"},
    };
    LS_TEXT(text, 900, "%s%s{\"event\":\"end\",\"steps\":1}\n", START, wrong[_i].lines);
    write_rank(0, text);
    read_folder();
    ck_assert_str_eq(trace->record.broken, wrong[_i].words);
    expect_unread();
}

TEST(a_folder_without_events_is_a_usage_error)
{
    ck_assert_int_eq(ls_observe_read(folder, &trace), LS_ERR_USAGE);
    ck_assert_ptr_null(trace);
}

TEST(samples_are_read_and_broken_ones_are_told)
{
    const fake_job job = {FAULT_NONE, "sgd", 2, 1, 0, 0, NULL, NULL};
    ls_path_remove_tree(folder);
    fake_write(&job, folder, sizeof folder);
    write_text("samples/step000002.rank1.safetensors", "no header");
    read_folder();
    ls_observe_finding finding = {0};
    const ls_observe_step *first = ls_trace_step(&trace->rank[1], 1);
    ls_dumpfile *file = ls_trace_samples(trace, 1, first, &finding);
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(ls_dumpfile_find(file, "param/fc.weight"));
    ck_assert_int_eq(finding.verdict.code, LS_PASS);
    ls_dumpfile_close(file);
    ck_assert_ptr_null(ls_trace_samples(trace, 1, ls_trace_step(&trace->rank[1], 3), &finding));
    ck_assert_int_eq(finding.verdict.code, LS_PASS);
    ck_assert_ptr_null(ls_trace_samples(trace, 1, ls_trace_step(&trace->rank[1], 2), &finding));
    ck_assert_int_eq(finding.verdict.code, LS_INFRA);
}

/* ---- a trainer of the protocol --------------------------------------------------------------- */

static void write_dump(int step, int rank, float next)
{
    static const float param[2] = {1, -2}, grad[2] = {0.5f, 0.25f};
    const float local[2] = {rank == 0 ? 1 : 0, rank == 0 ? 0 : 0.5f}, after[2] = {next, -2.0625f};
    ls_safetensors_writer *w = NULL;
    const ls_shape shape = {1, {2}};
    LS_TEXT(path, 200, "%s/dump/step%06d.rank%d.safetensors", folder, step, rank);
    ck_assert_int_eq(ls_safetensors_create(path, &w), LS_OK);
    ls_safetensors_metadata(w, "optimizer", "sgd");
    ls_safetensors_metadata(w, "lr", "0.25");
    ls_safetensors_metadata(w, "loss_scale", "128");
    ls_safetensors_metadata(w, "optimizer_steps", "%d", step);
    ls_safetensors_add_copy(w, "param/fc.bias", LS_F32, &shape, param);
    ls_safetensors_add_copy(w, "local/fc.bias", LS_F32, &shape, local);
    ls_safetensors_add_copy(w, "grad/fc.bias", LS_F32, &shape, grad);
    ls_safetensors_add_copy(w, "next/fc.bias", LS_F32, &shape, after);
    ck_assert_int_eq(ls_safetensors_finish(w), LS_OK);
}

static ls_verdict_code code_of(const char *id)
{
    ls_observe_finding found = {0};
    ls_observe_judge_one(trace, rule_named(id), &found);
    return found.verdict.code;
}

LOOP_TEST(a_trainer_of_the_protocol_is_judged_by_its_dumps, 2)
{
    static const char *const events =
        "{\"event\":\"start\",\"schema\":1,\"world\":2,\"options\":{\"opt-level\":\"O1\"}}\n"
        "{\"event\":\"step\",\"step\":1,\"loss_scale\":128,\"lr\":0.25,\"digest\":"
        "{\"param\":\"1\",\"state\":\"2\"}}\n{\"event\":\"end\",\"code\":0}\n";
    bool wrong = _i == 1;
    LS_TEXT(dump, 100, "%s/dump", folder);
    ck_assert_int_eq(ls_path_make_folder(dump), LS_OK);
    for (int k = 0; k < 2; k++) {
        write_rank(k, events);
        write_dump(1, k, wrong ? 0.75f : 0.875f);
    }
    read_folder();
    ck_assert(!trace->attached && ls_trace_is_ddp(trace) && ls_trace_is_scaled(trace));
    ck_assert(ls_trace_is_mixed(trace));
    ck_assert_int_eq(trace->rank[1].step[0].call_count, 0);
    ck_assert(trace->rank[1].step[0].detail);
    ck_assert_int_eq(trace->rank[0].tensor_count, 1);
    ck_assert_str_eq(trace->rank[0].tensor[0].name, "fc.bias");
    ck_assert_int_eq(code_of("reduction.mean"), LS_PASS);
    ck_assert_int_eq(code_of("replicas.step"), LS_PASS);
    ck_assert_int_eq(code_of("optimizer.step"), wrong ? LS_FAIL : LS_PASS);
}

TEST(the_first_blame_stays)
{
    ls_observe_finding finding = {0};
    ls_finding_blame(&finding, "train.py:41", "do %d", 1);
    ls_finding_blame(&finding, "train.py:42", "do %d", 2);
    ck_assert_str_eq(finding.where, "train.py:41");
    ck_assert_str_eq(finding.advice, "do 1");
}

TEST_MAIN("observe_trace", .timeout_s = 60, .before = make_folder, .after = remove_folder)
