/* The rules of checkpoints, and of jobs that go on from one, on invented jobs. */
#include "observe_calls.h"
#include "suite/unit/run_suite.h"

/* ---- checkpoints ----------------------------------------------------------------------------- */

#define MODEL "\"model\":[\"fc.weight\"]"
#define SAVE "{\"event\":\"save\",\"at\":\"train.py:50\",\"step\":3,"

#define WRONG "\"wrong\":[\"fc.weight\",\"fc.bias\",\"head.weight\"]"

static const struct {
    const char *event, *id;
    ls_verdict_code code;
    const char *words;
} files[] = {
    {SAVE "\"path\":\"\",\"what\":{" MODEL ",\"optimizer\":[\"o\"],\"scaler\":[\"s\"]}}",
     "checkpoint.resume", LS_PASS, "2 files"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL ",\"optimizer\":[\"o\"],\"scaler\":[\"s\"]}}",
     "checkpoint.content", LS_PASS, "2 files hold the model's values"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL ",\"optimizer\":[\"o\"]}}", "checkpoint.resume", LS_FAIL,
     "scaler.state_dict() is not saved"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "}}", "checkpoint.resume", LS_SKIP, "weights alone"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"wrong\":[\"fc.weight\",\"fc.bias\","
          "\"head.weight\"]}",
     "checkpoint.content", LS_PASS, "2 hold other weights"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"wrong\":[\"fc.bias\"]}", "checkpoint.content",
     LS_FAIL, "different steps"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"params_missing\":[\"head.weight\"]}",
     "checkpoint.content", LS_PASS, "2 files"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL ",\"optimizer\":[\"o\"]},\"params_missing\":["
          "\"head.weight\"]}",
     "checkpoint.content", LS_FAIL, "only a part of the model"},
    {SAVE "\"path\":\"last.pt\",\"what\":{" MODEL "}}", "checkpoint.content", LS_FAIL,
     "2 ranks write the file last.pt"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"params\":0}", "checkpoint.content", LS_UNSUPPORTED,
     "no model that was alive"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"made\":3}", "checkpoint.content", LS_PASS, ""},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"made\":0}", "checkpoint.content", LS_PASS, ""},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"made\":2,\"made_at\":\"train.py:41\"}",
     "checkpoint.content", CALLS_HINT,
     "does not copy: weights that were to be kept are trained on | "
     "train.py:41"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL ",\"optimizer\":[\"o\"],\"scaler\":[\"s\"]},\"stale\":["
          "\"optimizer\"]}",
     "checkpoint.content", LS_FAIL, "optimizer.state_dict() was called before the loop"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"stale\":[\"schedule\"]}", "checkpoint.content",
     LS_FAIL, "its numbers stay"},
    /* the best weights with the optimizer of their step */
    {SAVE "\"path\":\"\",\"what\":{" MODEL
          ",\"optimizer\":[\"o\"]},\"stale\":[\"optimizer\"]," WRONG "}",
     "checkpoint.content", LS_PASS, "2 hold other weights"},
    /* an average with the optimizer of now */
    {SAVE "\"path\":\"\",\"what\":{" MODEL ",\"optimizer\":[\"o\"]},\"fresh\":[\"optimizer\"],"
          "\"digests\":[[0,\"bb\"]]," WRONG "}",
     "checkpoint.content", LS_PASS, "2 hold other weights"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL ",\"epoch\":[\"epoch\"]}}", "checkpoint.resume", LS_SKIP,
     "weights alone"}, /* its optimizer keeps nothing */
    {"{\"event\":\"cost\"}", "checkpoint.content", LS_SKIP, "no torch.save"},
    {"{\"event\":\"cost\"}", "checkpoint.resume", LS_SKIP, "nothing was saved"},
};

ROWS_TEST(files_are_judged, files)
{
    calls_expect_of_event(files[_i].event, "F S B K P Z", files[_i].id, files[_i].code,
                          files[_i].words);
}

/* One rank writes a file, and another one reads it. */
TEST(files_are_read_when_they_are_written)
{
    static const struct {
        const char *load; /* members */
        ls_verdict_code code;
    } one[] = {
        {"\"step\":3,\"shared\":4,\"begun_ns\":60", LS_PASS}, /* a barrier lies between */
        {"\"step\":3,\"shared\":3,\"begun_ns\":60", LS_FAIL},
        {"\"step\":3,\"shared\":3,\"begun_ns\":40", LS_PASS}, /* an older file, and meant */
        {"\"step\":3,\"shared\":3,\"begun_ns\":40,\"failed\":true", LS_FAIL},
        {"\"step\":4,\"shared\":3,\"begun_ns\":60", LS_PASS}, /* a step lies between */
    };
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        calls_job job;
        calls_open(&job, 2);
        calls_repeat(&job, 3, "F S B K P Z");
        calls_event(&job, 0,
                    SAVE "\"path\":\"a\",\"shared\":3,\"begun_ns\":50,\"what\":{" MODEL "}}");
        LS_TEXT(load, 300,
                "{\"event\":\"load\",\"at\":\"train.py:60\",\"path\":\"a\",\"what\":{},%s}",
                one[i].load);
        calls_event(&job, 1, load);
        calls_end(&job, "checkpoint.content", one[i].code,
                  one[i].code == LS_FAIL ? "no barrier between" : "");
    }
}

/* Files of a checkpoint in parts: the scaler lies in one of its own. */
TEST(a_checkpoint_in_parts_passes)
{
    calls_job job;
    calls_open(&job, 2);
    calls_step(&job, "F S B K P Z");
    calls_event(&job, 0, SAVE "\"path\":\"a\",\"what\":{" MODEL ",\"optimizer\":[\"o\"]}}");
    calls_event(&job, 0, SAVE "\"path\":\"b\",\"what\":{\"scaler\":[\"s\"]}}");
    calls_judge_clean(&job);
    calls_expect(&job, "checkpoint.resume", LS_PASS, "1 files");
    calls_close(&job);
}

/* Nothing was loaded, and what the job saves lacks the scaler: the first is the worse. */
TEST(what_a_job_lost_comes_first)
{
    calls_job job;
    calls_open(&job, 2);
    calls_event(&job, -1,
                "{\"event\":\"restore\",\"what\":\"model\",\"which\":0,\"missing\":3,"
                "\"unexpected\":3,\"params\":3,\"taken\":0,\"own\":0,\"renamed\":3,"
                "\"at\":\"train.py:9\",\"step\":0}");
    calls_repeat(&job, 1, "F S B K P Z");
    calls_event(&job, -1,
                "{\"event\":\"save\",\"step\":1,\"path\":\"a.pt\",\"what\":{"
                "\"optimizer\":[\"o\"]}}");
    calls_end(&job, "checkpoint.resume", LS_FAIL, "nothing is loaded | train.py:9");
}

TEST(resumed_jobs_are_judged)
{
    static const char load[] =
        "{\"event\":\"load\",\"at\":\"train.py:9\",\"path\":\"last.pt\",\"step\":0,\"what\":{" MODEL
        ",\"optimizer\":[\"o\"],\"scaler\":[\"s\"],\"epoch\":[\"epoch\"]}}";
    static const char restore[] = "{\"event\":\"restore\",\"what\":\"optimizer\",\"step\":0}";
    calls_drawing d = {calls_distributed, "", 40, 20, 0, 2, 3};
    for (int with = 0; with < 3; with++) {
        calls_job job;
        calls_open(&job, 2);
        calls_event(&job, -1, load);
        calls_event(&job, -1, with > 0 ? restore : "{\"event\":\"other\"}");
        if (with > 1) {
            calls_event(&job, -1, "{\"event\":\"restore\",\"what\":\"scaler\",\"step\":0}");
        }
        calls_repeat(&job, 3, "F S B K P Z");
        calls_write_pass(&job, -1, &d);
        calls_judge(&job);
        static const char *const words[] = {"nothing was saved", "load_state_dict is not called",
                                            "restored what"};
        static const ls_verdict_code code[] = {LS_SKIP, LS_FAIL, LS_PASS};
        calls_expect(&job, "checkpoint.resume", code[with], words[with]);
        calls_close(&job);
    }
}

/* Files of two steps with one and the same copy of weights. */
TEST(a_copy_that_is_saved_again_is_caught)
{
    static const char save[] =
        "{\"event\":\"save\",\"at\":\"train.py:50\",\"step\":%d,\"path\":\"last.%d\",\"what\":"
        "{" MODEL
        ",\"optimizer\":[\"o\"],\"scaler\":[\"s\"]},\"fresh\":[%s],\"digests\":[[0,\"%s\"]]," WRONG
        "}";
    static const struct {
        const char *fresh, *one, *two;
        ls_verdict_code code;
        const char *words;
    } pair[] = {
        {"\"optimizer\"", "aa", "aa", LS_FAIL, "weights that the job had at step 1"},
        {"\"optimizer\"", "aa", "bb", LS_PASS, "hold other weights"},
        {"", "aa", "aa", LS_PASS, "hold other weights"}, /* the best ones, twice */
    };
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) {
        calls_job job;
        calls_open(&job, 2);
        LS_TEXT(one, 500, save, 1, 1, pair[i].fresh, pair[i].one);
        LS_TEXT(two, 500, save, 2, 2, pair[i].fresh, pair[i].two);
        calls_step(&job, "F S B K P Z");
        calls_event(&job, 0, one);
        calls_step(&job, "F S B K P Z");
        calls_event(&job, 0, two);
        calls_end(&job, "checkpoint.content", pair[i].code, pair[i].words);
    }
}

/* Weights that are those of the start, after steps: FAIL with an optimizer of now, else weak. */
TEST(a_copy_of_the_start_is_seen)
{
    for (int with = 0; with < 2; with++) {
        calls_job job;
        calls_open_with(&job, 2, "\"digest\":{\"param\":\"aa\"},");
        calls_event(&job, 0,
                    with != 0 ? SAVE "\"path\":\"\",\"what\":{" MODEL "},\"fresh\":["
                                     "\"optimizer\"],\"digests\":[[0,\"aa\"]]," WRONG "}"
                              : SAVE "\"path\":\"\",\"what\":{" MODEL "},\"digests\":[[0,"
                                     "\"aa\"]]," WRONG "}");
        calls_repeat(&job, 3, "F{\"autocast\":null} b O Z");
        calls_end(&job, "checkpoint.content", with != 0 ? LS_FAIL : LS_WEAK,
                  with != 0 ? "made once" : "never updated");
    }
}

#define MOMENTUM(state)                                                                            \
    "{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"torch.optim.sgd.SGD\",\"rule\":\"sgd\"," \
    "\"at\":\"train.py:7\",\"state\":" state                                                       \
    ",\"groups\":[{\"params\":[\"fc.weight\",\"fc.bias\","                                         \
    "\"head.weight\"],\"lr\":0.1,\"momentum\":0.9}]}"
#define LOAD(parts) \
    "{\"event\":\"load\",\"at\":\"train.py:9\",\"path\":\"last.pt\",\"step\":0," parts "}"
#define WHOLE                                                                                      \
    "\"what\":{\"model\":[\"m\"],\"optimizer\":[\"o\"],\"schedule\":[\"s\"],\"epoch\":[\"epoch\"]" \
    "},"                                                                                           \
    "\"numbers\":{\"epoch\":2},\"schedules\":[2],\"entries\":[3]"
#define OTHER "{\"event\":\"other\"}"
#define RESTORE(members) "{\"event\":\"restore\",\"at\":\"train.py:10\",\"step\":0," members "}"
#define OF_OPTIMIZER RESTORE("\"what\":\"optimizer\",\"entries\":3")
#define OF_MODEL RESTORE("\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":3")
#define OF_SCHEDULE RESTORE("\"what\":\"schedule\"")
#define NEXT "F{\"autocast\":null} b O Z L{\"epoch\":3}"
#define ANEW "F{\"autocast\":null} b O Z L{\"epoch\":1}"

/* Events before the first step, a step, the sampler's epoch in the first pass. */
static const struct {
    const char *event[4], *step;
    int epoch;
    ls_verdict_code code;
    const char *words;
} resumed[] = {
    {{LOAD(WHOLE), OF_MODEL, OF_OPTIMIZER, MOMENTUM("3")}, NEXT, 2, LS_PASS, "restored"},
    {{LOAD(WHOLE), OF_MODEL, OF_OPTIMIZER, MOMENTUM("3")},
     NEXT,
     0,
     CALLS_HINT,
     "set_epoch is not called with the epoch that the job goes on with"},
    /* weights of another job, which begins anew */
    {{LOAD(WHOLE), OF_MODEL, OTHER, MOMENTUM("0")}, ANEW, 0, LS_SKIP, ""},
    {{LOAD(WHOLE), OF_MODEL, OF_SCHEDULE, MOMENTUM("0")},
     NEXT,
     2,
     CALLS_HINT,
     "optimizer.load_state_dict is not called | train.py:9"},
    {{LOAD(WHOLE), OF_MODEL, OTHER, MOMENTUM("0")},
     NEXT,
     2,
     CALLS_HINT,
     "goes on with the file's epoch"},
    /* by an optimizer of another kind than the file's, on purpose; of the same kind */
    {{LOAD(WHOLE ",\"settings\":[[\"betas\"]]"), OF_MODEL, OTHER, MOMENTUM("0")},
     NEXT,
     2,
     LS_WEAK,
     "holds one of another kind"},
    {{LOAD(WHOLE ",\"settings\":[[\"momentum\"]]"), OF_MODEL, OTHER, MOMENTUM("0")},
     NEXT,
     2,
     CALLS_HINT,
     "goes on with the file's epoch"},
    /* weights of a training job to begin another one */
    {{LOAD(WHOLE), OF_MODEL, OTHER, MOMENTUM("0")}, ANEW, 0, LS_SKIP, "nothing was saved"},
    /* restored by other means: it has state */
    {{LOAD(WHOLE), OF_MODEL, OF_SCHEDULE, MOMENTUM("3")}, NEXT, 2, LS_SKIP, "nothing was saved"},
    {{LOAD(WHOLE), OF_MODEL, OF_OPTIMIZER, MOMENTUM("0")},
     NEXT,
     2,
     LS_FAIL,
     "is not the one whose state was loaded: it was built afterwards | train.py:7"},
    /* a package moves the state of a new optimizer, and another job begins with the weights */
    {{LOAD(WHOLE), OF_MODEL, RESTORE("\"what\":\"optimizer\",\"entries\":0"), MOMENTUM("0")},
     ANEW,
     0,
     LS_SKIP,
     "nothing was saved"},
    {{LOAD("\"what\":{\"model\":[\"m\"],\"epoch\":[\"epoch\"]},\"numbers\":{\"epoch\":2}"),
      OF_MODEL, OTHER, MOMENTUM("0")},
     NEXT,
     2,
     CALLS_HINT,
     "has no optimizer.state_dict()"},
    {{LOAD(WHOLE), OF_MODEL, OF_OPTIMIZER, MOMENTUM("3")},
     ANEW,
     2,
     CALLS_HINT,
     "schedule's load_state_dict is not called: the rate begins anew | train.py:9"},
    {{LOAD(WHOLE), OF_SCHEDULE, OF_OPTIMIZER, MOMENTUM("3")},
     ANEW,
     2,
     CALLS_HINT,
     "loaded: it was built afterwards | train.py:27"},
    /* stepped up to where it was; as a new one would begin in another job */
    {{LOAD(WHOLE), OF_MODEL, OF_OPTIMIZER, MOMENTUM("3")},
     "L{\"epoch\":1} L{\"epoch\":2} F{\"autocast\":null} b O Z L{\"epoch\":3}",
     2,
     LS_PASS,
     ""},
    {{LOAD(WHOLE), OF_OPTIMIZER, RESTORE("\"what\":\"model\",\"like\":0"), MOMENTUM("3")},
     NEXT,
     2,
     CALLS_HINT,
     "not the one that was loaded"},
    {{LOAD(WHOLE), OF_OPTIMIZER, RESTORE("\"what\":\"model\""), MOMENTUM("3")},
     NEXT,
     2,
     LS_PASS,
     ""},
    {{RESTORE("\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":0,\"missing\":3,"
              "\"unexpected\":3"),
      OTHER, OTHER, OTHER},
     ANEW,
     0,
     LS_FAIL,
     "strict=False"},
    {{RESTORE("\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":1,\"missing\":2,"
              "\"unexpected\":2,\"renamed\":2"),
      OTHER, OTHER, OTHER},
     ANEW,
     0,
     LS_FAIL,
     "another prefix"},
    /* a new head; a part of another model's file */
    {{RESTORE("\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":2,\"missing\":1,"
              "\"unexpected\":1"),
      OTHER, OTHER, OTHER},
     ANEW,
     0,
     LS_SKIP,
     ""},
    {{LOAD(WHOLE), RESTORE("\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":3,\"own\":3"),
      OTHER, OTHER},
     ANEW,
     0,
     CALLS_HINT,
     "no name of the file fits"},
    {{LOAD(WHOLE), RESTORE("\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":3,\"own\":1"),
      OTHER, OTHER},
     ANEW,
     0,
     LS_SKIP,
     ""},
};

ROWS_TEST(jobs_that_go_on_are_judged, resumed)
{
    calls_job job;
    LS_TEXT(epoch, 40, "\"sampler_epoch\":%d,", resumed[_i].epoch);
    calls_drawing d = {calls_distributed, epoch, 40, 20, 0, 2, 3};
    calls_open_with(&job, 2, "");
    for (int e = 0; e < 4; e++) {
        calls_event(&job, -1, resumed[_i].event[e]);
    }
    calls_repeat(&job, 1, resumed[_i].step);
    calls_write_pass(&job, -1, &d);
    calls_end(&job, "checkpoint.resume", resumed[_i].code, resumed[_i].words);
}

/* Weights alone, and a count of steps that goes on from the file's, or anew. */
LOOP_TEST(a_count_of_steps_that_goes_on, 8)
{
    static const struct {
        const char *name;
        int file, next;
        ls_verdict_code code;
    } one[] = {
        {"iter_num", 40, 44, CALLS_HINT},      {"global_step", 40, 44, CALLS_HINT},
        {"iter_num", 40, 4, LS_PASS},          {"iter_num", 40, 40, LS_PASS},
        {"config.max_iters", 40, 44, LS_PASS}, {"best_step", 40, 44, LS_PASS},
        {"warmup_steps", 40, 44, LS_PASS},     {"size", 40, 44, LS_PASS},
    };
    calls_job job;
    calls_open_with(&job, 1, "");
    LS_TEXT(load, 400,
            LOAD("\"what\":{\"model\":[\"m\"],\"optimizer\":[\"o\"]},\"entries\":[3],\"numbers\":{"
                 "\"%s\":%d}"),
            one[_i].name, one[_i].file);
    LS_TEXT(save, 400,
            "{\"event\":\"save\",\"at\":\"train.py:50\",\"path\":\"next.pt\",\"step\":4,\"what\":{"
            "\"model\":[\"m\"],\"optimizer\":[\"o\"]},\"numbers\":{\"%s\":%d}}",
            one[_i].name, one[_i].next);
    calls_event(&job, -1, load);
    calls_event(&job, -1, OF_MODEL);
    calls_event(&job, -1, MOMENTUM("0"));
    calls_repeat(&job, 4, "F{\"autocast\":null} b O Z");
    calls_event(&job, -1, save);
    calls_end(&job, "checkpoint.resume", one[_i].code,
              one[_i].code == CALLS_HINT ? "goes on with the file's count of steps" : "");
}

/* A job that takes up an optimizer, or the file that it writes itself, and counts from 1 again. */
TEST(an_epoch_that_is_not_taken_up_is_caught)
{
    static const struct {
        const char *restore, *path;
        int next; /* of the first file */
        ls_verdict_code code;
    } one[] = {
        {OF_OPTIMIZER, "other.pt", 1, CALLS_HINT}, {OF_MODEL, "last.pt", 1, CALLS_HINT},
        {OF_MODEL, "other.pt", 1, LS_PASS},        {OF_OPTIMIZER, "other.pt", 3, LS_PASS},
        {OF_OPTIMIZER, "other.pt", 2, LS_PASS}, /* the epoch that ended, and that which begins */
    };
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        calls_job job;
        calls_drawing d = {
            "RandomSampler", "\"sampler_epoch\":null,\"steps\":[1,1],", 40, 20, 0, 1, 3};
        calls_open_with(&job, 1, "");
        calls_event(&job, -1, LOAD(WHOLE));
        calls_event(&job, -1, one[i].restore);
        calls_event(&job, -1, MOMENTUM("3"));
        calls_repeat(&job, 1, "F{\"autocast\":null} b O Z");
        calls_write_pass(&job, -1, &d);
        LS_TEXT(save, 300,
                "{\"event\":\"save\",\"step\":1,\"path\":\"%s\",\"what\":{\"optimizer\":[\"o\"]},"
                "\"numbers\":{\"best_epoch\":0,\"epoch\":%d}}",
                one[i].path, one[i].next);
        calls_event(&job, -1, save);
        calls_end(&job, "checkpoint.resume", one[i].code,
                  one[i].code == CALLS_HINT ? "not taken up" : "");
    }
}

/* A job without a sampler: what it writes says which epoch it is in. */
TEST(the_epoch_of_a_file_goes_on)
{
    for (int epoch = 1; epoch <= 3; epoch += 2) {
        calls_job job;
        calls_drawing d = {
            "RandomSampler", "\"sampler_epoch\":null,\"steps\":[1,1],", 40, 20, 0, 1, 3};
        calls_open_with(&job, 1, "");
        calls_event(&job, -1, LOAD(WHOLE));
        calls_event(&job, -1, OF_MODEL);
        calls_event(&job, -1, MOMENTUM("0"));
        calls_repeat(&job, 1, "F{\"autocast\":null} b O Z");
        calls_write_pass(&job, -1, &d);
        LS_TEXT(save, 300,
                "{\"event\":\"save\",\"step\":1,\"path\":\"a\",\"what\":{\"optimizer\":[\"o\"]},"
                "\"numbers\":{\"epoch\":%d}}",
                epoch);
        calls_event(&job, -1, save);
        calls_end(&job, "checkpoint.resume", epoch == 3 ? CALLS_HINT : LS_PASS, "");
    }
}

TEST(files_without_moments_are_weak)
{
    static const char save[] =
        SAVE "\"path\":\"best.pt\",\"what\":{" MODEL ",\"epoch\":[\"epoch\"]}}";
    for (int other = 0; other < 2; other++) {
        calls_job job;
        calls_open_with(&job, 2, "");
        calls_event(&job, -1, MOMENTUM("0"));
        calls_event(&job, 0, save);
        if (other != 0) { /* and files to go on from */
            calls_event(&job, 0, SAVE "\"path\":\"last.pt\",\"what\":{\"optimizer\":[\"o\"]}}");
        }
        calls_repeat(&job, 3, "F{\"autocast\":null} b O Z");
        calls_judge(&job);
        calls_expect(&job, "checkpoint.resume", other != 0 ? LS_PASS : LS_WEAK,
                     other != 0 ? "" : "optimizer.state_dict() is not saved");
        calls_expect(&job, "checkpoint.resume", other != 0 ? LS_PASS : LS_WEAK,
                     other != 0 ? "" : "train.py:50");
        calls_close(&job);
    }
}

/* A scaler whose state was loaded, and another one that scales. */
TEST(a_scaler_that_was_loaded_is_the_one_in_use)
{
    for (int which = 0; which < 2; which++) {
        calls_job job;
        calls_open(&job, 2);
        LS_TEXT(event, 200,
                "{\"event\":\"restore\",\"what\":\"scaler\",\"which\":%d,\"step\":0,"
                "\"at\":\"train.py:11\"}",
                which);
        calls_event(&job, -1, event);
        calls_repeat(&job, 2, "F S B K P Z");
        calls_end(&job, "checkpoint.resume", which == 0 ? LS_SKIP : LS_FAIL,
                  which == 0 ? "" : "built anew");
    }
}

/* Weights that were to be kept, and were trained on; those of the same step may have been changed
 * in place, averaged over the ranks, say. */
static const struct {
    const char *made;
    ls_verdict_code code;
    const char *words;
} own_weights[] = {
    {"", CALLS_HINT, "come back to are trained on | train.py:70"},
    {"\"made\":1,", CALLS_HINT, "come back to are trained on | train.py:70"},
    {"\"made\":2,", LS_SKIP, "nothing was saved or resumed"},
};

ROWS_TEST(a_model_given_its_own_weights_is_caught, own_weights)
{
    calls_job job;
    calls_open(&job, 2);
    calls_repeat(&job, 2, "F S B K P Z");
    LS_TEXT(event, 300,
            "{\"event\":\"restore\",\"what\":\"model\",\"which\":0,\"step\":2,\"params\":3,"
            "\"taken\":3,\"own\":3,%s\"at\":\"train.py:70\"}",
            own_weights[_i].made);
    calls_event(&job, -1, event);
    calls_end(&job, "checkpoint.resume", own_weights[_i].code, own_weights[_i].words);
}

TEST_MAIN("observe_checkpoints", .timeout_s = 120)
