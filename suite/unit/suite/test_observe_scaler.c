/* The rules of scalers on invented jobs: torch's documented uses pass, each user's mistake of its
 * notes on mixed precision is caught with its cause. */
#include "observe_calls.h"
#include "suite/unit/run_suite.h"

static const char *const families[] = {"scaler.", "order.", "precision.", "mode."};

static void expect_clean(calls_job *job)
{
    calls_judge(job);
    calls_expect_clean(job, families, (int)(sizeof families / sizeof *families));
}

static void repeat(calls_job *job, int times, const char *calls)
{
    for (int i = 0; i < times; i++) {
        calls_step(job, calls);
    }
}

/* ---- right jobs ------------------------------------------------------------------------------ */

TEST(an_overflow_and_a_growth_pass)
{
    calls_job job;
    calls_open(&job, 2);
    calls_step(&job, "F S B K P Z");
    calls_step(&job, "F S B k P Z");
    repeat(&job, 4, "F S B U N K P Z");
    expect_clean(&job);
    calls_expect(&job, "scaler.trace", LS_PASS, "6 updates, 1 overflows, 1 growths");
    calls_expect(&job, "scaler.skip", LS_PASS, "5 steps taken and 1 skipped");
    calls_expect(&job, "scaler.agree", LS_PASS, "1 of them skips");
    calls_expect(&job, "scaler.once", LS_PASS, "6 scaler steps");
    calls_expect(&job, "scaler.order", LS_PASS, "22 calls");
    calls_expect(&job, "scaler.losses", LS_PASS, "6 scaled backward calls");
    calls_expect(&job, "order.clip", LS_PASS, "4 calls");
    calls_close(&job);
}

/* Each row: what a step of a right trainer calls, or two steps. */
static const char *const right[][2] = {
    {"Z F S B K P", "Z F S B k P"},
    {"F S B U N K P L Z", NULL},     /* schedule and zero_grad at the end */
    {"F S B F S B U N K P Z", NULL}, /* accumulation */
    {"F{\"sync\":false} S B{\"sync\":false} F S B K P Z", NULL}, /* within no_sync */
    {"F S B{\"scaled\":null} K P Z", NULL},                      /* scaled and then divided */
    {"F S B S B U K P Z", NULL},                                 /* two losses, one scaler */
    {"F S S B K P Z", NULL},                   /* a penalty through autograd.grad */
    {"F S B U N O P Z", NULL},                 /* steps by hand where the norm is finite */
    {"F S B N{\"limit\":1024.0} K P Z", NULL}, /* a limit times the scale */
    {"F S B N{\"limit\":null} K P Z", NULL},   /* measures the norm */
    {"Z F S B U Z F S B U K P", NULL},         /* a bad batch is thrown away */
    {"F S B U K{\"optimizer\":1} K P Z Z{\"optimizer\":1}", NULL},
    {"F{\"left\":0} S B K P", NULL}, /* gradients set to None by hand */
    /* a batch is thrown away that did not overflow, or whose loss is infinite by itself */
    {"Z F S B Z{\"discards\":1,\"finite\":true} F S B K P", NULL},
    {"Z F S B Z{\"discards\":1,\"finite\":false} F S B K P", NULL}, /* of another network's loss */
    {"Z F S B{\"loss\":null} Z{\"discards\":1,\"finite\":false} F S B K P", NULL},
};

ROWS_TEST(documented_uses_pass, right)
{
    calls_job job;
    calls_open(&job, 2);
    for (int i = 0; i < 3; i++) {
        calls_step(&job, right[_i][0]);
        if (right[_i][1] != NULL) {
            calls_step(&job, right[_i][1]);
        }
    }
    expect_clean(&job);
    calls_close(&job);
}

static const char second[] =
    "{\"event\":\"optimizer\",\"optimizer\":1,\"class\":\"torch.optim.adam.Adam\","
    "\"rule\":\"adam\",\"at\":\"train.py:9\",\"groups\":[{\"params\":[\"m1.fc.weight\"]}]}";

/* Discriminator and generator are two steps of the record, with one update for both. */
TEST(two_networks_pass)
{
    calls_job job;
    calls_open(&job, 2);
    calls_event(&job, -1, second);
    for (int i = 0; i < 4; i++) {
        calls_step(&job, "Z F S B U N K");
        calls_step(&job, "Z{\"optimizer\":1} F{\"model\":1} S B U{\"optimizer\":1} "
                         "K{\"optimizer\":1} P");
    }
    for (int i = 0; i < 4; i++) { /* and with an update for each */
        calls_step(&job, "Z F S B K P");
        calls_step(&job, "F{\"model\":1} Z{\"optimizer\":1} S B K{\"optimizer\":1} P");
        calls_step(&job, "Z F S B U N K P");
    }
    expect_clean(&job);
    calls_close(&job);
}

/* unscale_ of one optimizer between the backward calls of two losses is right. */
TEST(interleaved_optimizers_pass)
{
    calls_job job;
    calls_open(&job, 2);
    calls_event(&job, -1, second);
    repeat(&job, 4,
           "Z Z{\"optimizer\":1} F S B U F{\"model\":1} S B U{\"optimizer\":1} N K "
           "K{\"optimizer\":1} P");
    expect_clean(&job);
    calls_close(&job);
}

TEST(two_scalers_pass)
{
    calls_job job;
    calls_open(&job, 2);
    calls_event(&job, -1, second);
    calls_event(&job, -1,
                "{\"event\":\"scaler\",\"scaler\":1,\"enabled\":true,\"init_scale\":64,"
                "\"growth_factor\":2,\"backoff_factor\":0.5,\"growth_interval\":2000}");
    for (int i = 0; i < 4; i++) {
        calls_step(&job, "Z F S B K P");
        calls_step(&job, "Z{\"optimizer\":1} F{\"model\":1} S{\"scaler\":1} B{\"scaled\":1} "
                         "U{\"scaler\":1,\"optimizer\":1} N K{\"scaler\":1,\"optimizer\":1} "
                         "p");
    }
    expect_clean(&job);
    calls_close(&job);
}

/* The count and the scale of a job that goes on are its file's; so are other settings. */
TEST(a_resumed_scaler_passes)
{
    calls_job job;
    calls_open(&job, 2);
    calls_event(&job, -1, "{\"event\":\"restore\",\"what\":\"scaler\",\"which\":0,\"step\":0}");
    calls_step(&job, "F S B K P{\"scale\":64,\"next\":64,\"growth\":8} Z");
    calls_step(&job, "F S B K P{\"scale\":64,\"next\":256,\"growth\":0} Z");
    calls_step(&job, "F S B k P{\"scale\":256,\"next\":64,\"growth\":0} Z");
    calls_step(&job, "F S B k P{\"scale\":64,\"next\":16,\"growth\":0} Z");
    expect_clean(&job);
    calls_expect(&job, "scaler.trace", LS_PASS, "2 overflows, 1 growths");
    calls_close(&job);
}

/* A script that looks at the norm itself asks for no step after an overflow. */
TEST(skips_by_hand_are_seen)
{
    calls_job job;
    calls_open(&job, 2);
    calls_step(&job, "F S B U N O P Z F S B U{\"found_inf\":true} N P{\"next\":512,\"growth\":0} Z "
                     "F S B U N O P{\"scale\":512,\"next\":512,\"growth\":1} Z");
    expect_clean(&job);
    calls_expect(&job, "scaler.trace", LS_PASS, "1 overflows");
    calls_expect(&job, "scaler.skip", LS_PASS, "2 steps taken and 1 skipped");
    calls_expect(&job, "scaler.agree", LS_PASS, "1 of them skips");
    calls_close(&job);
}

TEST(a_set_scale_passes)
{
    calls_job job;
    calls_open(&job, 2);
    repeat(&job, 2, "F S B K P Z");
    calls_step(&job, "F S B K P{\"next\":32,\"growth\":2,\"forced\":true} Z");
    calls_step(&job, "F S B K P{\"scale\":32,\"next\":64,\"growth\":0} Z");
    expect_clean(&job);
    calls_expect(&job, "scaler.trace", LS_PASS, "1 set by the script");
    calls_expect(&job, "scaler.trace", LS_PASS, "sets the scale itself");
    calls_close(&job);
}

/* ---- nothing to see -------------------------------------------------------------------------- */

TEST(calm_jobs_are_weak)
{
    calls_job job;
    calls_open(&job, 2);
    repeat(&job, 2, "F S B K P Z");
    expect_clean(&job);
    calls_expect(&job, "scaler.trace", LS_WEAK, "--inject overflow@5:1");
    calls_expect(&job, "scaler.skip", LS_WEAK, "nothing overflowed");
    calls_expect(&job, "scaler.agree", LS_WEAK, "nothing overflowed");
    calls_close(&job);
}

TEST(jobs_without_scaler_are_skipped)
{
    static const char *const id[] = {"scaler.trace", "scaler.skip",  "scaler.agree",
                                     "scaler.once",  "scaler.order", "scaler.losses"};
    calls_job job;
    calls_open(&job, 2);
    repeat(&job, 3, "F{\"autocast\":null,\"type\":\"f32\"} b O Z");
    expect_clean(&job);
    for (size_t i = 0; i < sizeof id / sizeof *id; i++) {
        calls_expect(&job, id[i], LS_SKIP, "no enabled GradScaler");
    }
    calls_close(&job);
}

TEST(one_rank_has_none_to_agree_with)
{
    calls_job job;
    calls_open(&job, 1);
    repeat(&job, 3, "F S B k P Z");
    expect_clean(&job);
    calls_expect(&job, "scaler.agree", LS_SKIP, "one rank");
    calls_expect(&job, "scaler.trace", LS_PASS, "3 overflows");
    calls_close(&job);
}

/* ---- mistakes -------------------------------------------------------------------------------- */

/* Steps of a wrong trainer, the rule that catches it, words of the finding. */
static const struct {
    const char *first, *then, *id, *words;
} wrong[] = {
    {"F S B K P Z", "F S B k P{\"next\":1024} Z", "scaler.trace", "not lowered"},
    {"F S B K P Z", "F S B k P{\"next\":2048} Z", "scaler.trace", "grows although"},
    {"F S B K P Z", "F S B k P{\"next\":256} Z", "scaler.trace", "another factor than backoff"},
    {"F S B K P Z", "F S B K P{\"next\":512} Z", "scaler.trace", "lowered although"},
    {"F S B K P{\"next\":2048} Z", NULL, "scaler.trace", "before growth_interval"},
    {"F S B K P Z", "F S B K P{\"next\":1024,\"growth\":3} Z", "scaler.trace", "does not grow"},
    {"F S B K P Z", "F S B K P{\"next\":4096} Z", "scaler.trace", "another factor than growth"},
    {"F S B K P Z", "F S B k{\"stepped\":true} P Z", "scaler.skip", "stepped although"},
    {"F S B K P Z", "F S B K{\"stepped\":false} P Z", "scaler.skip", "no gradient is infinite"},
    {"F S B K P Z", "F S B U{\"found_inf\":true} O P{\"next\":512,\"growth\":0} Z", "scaler.skip",
     "scaler.step(optimizer) in place"},
    {"F S B U F S B U K P Z", NULL, "scaler.once", "unscale_ after every micro-step"},
    {"F S B U U K P Z", NULL, "scaler.once", "twice for one optimizer"},
    {"F S B U P K Z", NULL, "scaler.once", "update() between unscale_ and scaler.step"},
    {"F S B O Z", NULL, "scaler.once", "no unscale_ before it"},
    {"F S B U F S B K P Z", NULL, "scaler.order", "before the last backward"},
    {"F S B P{\"forced\":true} F S B K P Z", NULL, "scaler.order", "inside the accumulation"},
    {"F S B K Z", NULL, "scaler.order", "update() is missing"},
    {"F S B K P Z", "F S B K K P Z", "scaler.order", "a second time"},
    {"F S B K P Z", "F b K P Z", "scaler.losses", "never multiplied"},
    {"F S B K P Z", "F b K P Z", "scaler.losses", "train.py:21"}, /* the backward */
    {"F S B K P Z", "F S B F b K P Z", "scaler.losses", "for one of several losses"},
    {"F S B O Z", NULL, "scaler.losses", "optimizer.step() in place of"},
    {"F S b{\"dropped\":true} K P Z", NULL, "scaler.losses",
     "is not what goes backward | train.py:21"},
    {"F S b{\"at\":\"train.py:29\"} F b K P Z", NULL, "scaler.losses", "train.py:21"},
    {"F S S{\"again\":true} B K P Z", NULL, "scaler.losses", "scaled twice"},
    {"F S B Z{\"discards\":1,\"finite\":false} F S B Z{\"discards\":1,\"finite\":false} F S B K P "
     "Z",
     NULL, "scaler.losses", "skips steps that overflow by itself"},
    {"F S B P K Z", NULL, "scaler.order", "scaler.update() before scaler.step | train.py:25"},
};

ROWS_TEST(mistakes_are_caught, wrong)
{
    calls_job job;
    calls_open(&job, 2);
    repeat(&job, 2, wrong[_i].first);
    if (wrong[_i].then != NULL) {
        calls_step(&job, wrong[_i].then);
    }
    calls_judge(&job);
    calls_expect(&job, wrong[_i].id, LS_FAIL, wrong[_i].words);
    calls_expect(&job, wrong[_i].id, LS_FAIL, "train.py:2");
    calls_close(&job);
}

/* A limit that stays while the scale changes is not times it; one that follows it is; while the
 * scale stays, both are possible. f16 without a scale may be enough for an optimizer. */
static const struct {
    const char *first, *then, *id;
    ls_verdict_code code;
    const char *words;
} guessed[] = {
    {"F S B N K P Z", NULL, "scaler.order", CALLS_HINT,
     "clipping without scaler.unscale_(optimizer) before it | train.py:2"},
    {"F S B N K P Z", "F S B N k P Z", "scaler.order", CALLS_HINT, "clipping without"},
    {"F S B N k P Z", "F S B N K P Z", "scaler.order", LS_FAIL, "clipping without"},
    {"F S B N{\"limit\":512} k P Z", "F S B N{\"limit\":128} K P Z", "scaler.order", LS_PASS, ""},
    {"F S B K P Z", "F b O Z", "scaler.losses", CALLS_HINT, "f16 forwards"},
    {"F S B k P Z", NULL, "scaler.skip", LS_WEAK, "nothing shows that one is ever taken"},
};

ROWS_TEST(what_may_be_meant_is_a_hint, guessed)
{
    calls_job job;
    calls_open(&job, 2);
    repeat(&job, 2, guessed[_i].first);
    if (guessed[_i].then != NULL) {
        calls_step(&job, guessed[_i].then);
    }
    calls_end(&job, guessed[_i].id, guessed[_i].code, guessed[_i].words);
}

/* Two optimizers fed by one backward, the scale updated between their steps. */
TEST(an_update_between_steps_is_caught)
{
    calls_job job;
    calls_open(&job, 2);
    calls_event(&job, -1, second);
    repeat(&job, 3, "Z Z{\"optimizer\":1} F S B K P K{\"optimizer\":1} P");
    calls_judge(&job);
    calls_expect(&job, "scaler.order", LS_FAIL, "between the steps of two optimizers");
    calls_expect(&job, "scaler.order", LS_FAIL, "train.py:25"); /* the update */
    calls_close(&job);
}

/* The end of a job whose last steps are all left out: no step closes it. Right where nothing
 * overflows, and where the script lowers the scale itself. */
TEST(overflows_until_the_end_are_caught)
{
    for (int kind = 0; kind < 3; kind++) {
        calls_job job;
        calls_open(&job, 2);
        repeat(&job, 3, "Z F S B K P");
        LS_TEXT(
            tail, 600,
            "{\"event\":\"unfinished\",\"calls\":[{\"call\":\"backward\",\"loss\":1,\"scaled\":0},"
            "{\"call\":\"zero_grad\",\"at\":\"train.py:19\",\"discards\":1,\"finite\":%s},"
            "{\"call\":\"backward\",\"loss\":1,\"scaled\":0},"
            "{\"call\":\"zero_grad\",\"at\":\"train.py:19\",\"discards\":1,\"finite\":%s},"
            "{\"call\":\"%s\",\"scaler\":0},{\"call\":\"backward\",\"loss\":1,\"scaled\":0}]}",
            kind == 1 ? "true" : "false", kind == 1 ? "true" : "false",
            kind == 2 ? "update" : "scale");
        calls_event(&job, -1, tail);
        calls_judge(&job);
        calls_expect(&job, "scaler.losses", kind != 0 ? LS_PASS : LS_FAIL,
                     kind != 0 ? "" : "train.py:24"); /* the step that others take */
        calls_close(&job);
    }
}

static const char built_again[] =
    "{\"event\":\"scaler\",\"scaler\":1,\"enabled\":true,\"init_scale\":64,\"growth_factor\":2,"
    "\"backoff_factor\":0.5,\"growth_interval\":2000,\"at\":\"%s\"}";

/* A scaler for each epoch; right where its state goes on, where both are in use, and where it is
 * one of another phase. */
TEST(a_scaler_that_is_built_anew_is_caught)
{
    static const char second_step[] = "Z F S{\"scaler\":1} B{\"scaled\":1} K{\"scaler\":1} p";
    for (int kind = 0; kind < 4; kind++) {
        calls_job job;
        calls_open(&job, 2);
        LS_TEXT(event, 300, built_again, kind == 3 ? "train.py:60" : "train.py:6");
        calls_event(&job, -1, event);
        if (kind == 1) {
            calls_event(&job, -1,
                        "{\"event\":\"restore\",\"what\":\"scaler\",\"which\":1,\"step\":2}");
        }
        repeat(&job, 2, "Z F S B K P");
        repeat(&job, 2, second_step);
        if (kind == 2) {
            repeat(&job, 2, "Z F S B K P");
        }
        calls_judge(&job);
        const ls_observe_finding *f = calls_find(&job, "scaler.trace");
        ck_assert_msg((f->hint.verdict.code == LS_FAIL) == (kind == 0), "%d: %s", kind,
                      f->hint.verdict.evidence);
        if (kind == 0) {
            calls_expect(&job, "scaler.trace", CALLS_HINT, "inside the loop");
            calls_expect(&job, "scaler.trace", CALLS_HINT, "train.py:6");
        }
        calls_close(&job);
    }
}

/* unscale_ of one optimizer, and the other one's gradients are clipped. */
TEST(clipping_of_another_optimizer_is_caught)
{
    for (int right = 0; right < 2; right++) {
        calls_job job;
        calls_open(&job, 2);
        calls_event(&job, -1, second);
        repeat(&job, 3,
               right != 0 ? "Z Z{\"optimizer\":1} F S B U N{\"optimizer\":0} K K{\"optimizer\":1} P"
                          : "Z Z{\"optimizer\":1} F S B U{\"optimizer\":1} N{\"optimizer\":0} K "
                            "K{\"optimizer\":1} P");
        calls_end(&job, "scaler.order", right != 0 ? LS_PASS : CALLS_HINT,
                  right != 0 ? "" : "clipping without scaler.unscale_");
    }
}

/* The scaler of the one network's loss steps the other one's optimizer. */
TEST(exchanged_scalers_are_caught)
{
    calls_job job;
    calls_open(&job, 2);
    calls_event(&job, -1, second);
    LS_TEXT(event, 300, built_again, "train.py:61");
    calls_event(&job, -1, event);
    repeat(&job, 3, "Z F S B K{\"scaler\":1} p");
    calls_end(&job, "scaler.losses", LS_FAIL, "exchanged");
}

/* One step says enough where there is one optimizer, and nothing of the first half of a pair. */
TEST(a_first_step_without_update_is_caught)
{
    calls_job job;
    for (int two = 0; two < 2; two++) {
        calls_open(&job, 2);
        calls_step(&job, two ? "F S B K K{\"optimizer\":1} Z" : "F S B K Z");
        calls_end(&job, "scaler.order", two ? LS_PASS : LS_FAIL, two ? "" : "is missing");
    }
}

TEST(a_changed_parameter_is_caught)
{
    calls_job job;
    calls_open(&job, 2);
    repeat(&job, 2, "F S B K P Z");
    calls_step_of(&job, -1, "\"digest\":{\"param\":\"77\",\"state\":\"2\",\"buffer\":\"3\"},",
                  "F S B k P Z");
    calls_end(&job, "scaler.skip", LS_FAIL, "step 3 was skipped, but parameters changed");
}

/* What ranks send each other after the step moves the parameters of one that skipped, too; a sum of
 * fewer elements (of a loss) does not. */
TEST(parameters_that_ranks_send_may_change)
{
    calls_job job;
    for (int all = 0; all < 2; all++) {
        calls_open(&job, 2);
        repeat(&job, 2, "F S B K P Z");
        calls_step_of(
            &job, -1,
            "\"digest\":{\"param\":\"77\",\"state\":\"0000000000000002\",\"buffer\":\"3\"},",
            all ? "F S B k P A{\"elements\":10} A Z" : "F S B k P A{\"elements\":9} A Z");
        calls_end(&job, "scaler.skip", all ? LS_PASS : LS_FAIL, all ? "" : "parameters changed");
    }
}

/* An average of weights may change in skipped steps, and so may a model that is loaded. */
TEST(models_that_are_not_trained_may_change)
{
    calls_job job;
    calls_open(&job, 2);
    calls_event(&job, -1,
                "{\"event\":\"model\",\"model\":1,\"kind\":\"plain\",\"params\":[],\"world\":2}");
    calls_step(&job, "F S B K P Z");
    calls_step_of(&job, -1, "\"digest\":{\"param\":\"77\",\"buffer\":\"3\"},", "F S B k P Z");
    expect_clean(&job);
    calls_close(&job);
    calls_open(&job, 2);
    calls_event(&job, -1, "{\"event\":\"restore\",\"what\":\"model\",\"which\":0,\"step\":1}");
    calls_step(&job, "F S B K P Z");
    calls_step_of(&job, -1, "\"digest\":{\"param\":\"77\",\"buffer\":\"3\"},", "F S B k P Z");
    expect_clean(&job);
    calls_close(&job);
}

static const struct {
    const char *zero, *one, *words;
} uneven[] = {
    {"F S B k P Z", "F S B K P Z", "gradients of its own"},
    {"F S B U K P Z", "F S B U{\"found_inf\":true} K P Z", "gradients of its own"},
    {"F S B K P Z", "F S B K P{\"next\":512} Z", "depending on a value of the rank's own"},
    {"F S B K P Z", "F S B P K Z", "other calls of the scaler"},
};

ROWS_TEST(ranks_that_decide_for_themselves_are_caught, uneven)
{
    calls_job job;
    calls_open(&job, 2);
    calls_step(&job, "F S B K P Z");
    calls_step_of(&job, 0, "", uneven[_i].zero);
    calls_step_of(&job, 1, "", uneven[_i].one);
    calls_judge(&job);
    calls_expect(&job, "scaler.agree", LS_FAIL, uneven[_i].words);
    calls_expect(&job, "scaler.agree", LS_FAIL, "ranks 0 and 1, step 2");
    calls_close(&job);
}

TEST(a_scaler_that_one_rank_loaded_is_caught)
{
    calls_job job;
    calls_open(&job, 2);
    calls_event(&job, 0,
                "{\"event\":\"restore\",\"what\":\"scaler\",\"which\":0,\"step\":0,"
                "\"at\":\"train.py:10\"}");
    calls_step_of(&job, 0, "", "F S B K P{\"scale\":64,\"next\":64} Z");
    calls_step_of(&job, 1, "", "F S B K P Z");
    calls_judge(&job);
    calls_expect(&job, "scaler.agree", LS_FAIL, "loaded on rank 0 only");
    calls_expect(&job, "scaler.agree", LS_FAIL, "train.py:10");
    calls_close(&job);
}

/* ---- trainers of the protocol ---------------------------------------------------------------- */

static void write_protocol(char *folder, const char *(*line)(int step))
{
    strcpy(folder, "/tmp/lockstep-calls-XXXXXX");
    LS_ASSERT(mkdtemp(folder) != NULL);
    for (int k = 0; k < 2; k++) {
        LS_TEXT(path, 200, "%s/rank%d.jsonl", folder, k);
        FILE *f = fopen(path, "w");
        LS_ASSERT(f != NULL);
        fprintf(f,
                "{\"event\":\"start\",\"schema\":1,\"rank\":%d,\"world\":2,\"options\":{"
                "\"loss-scale\":\"dynamic\",\"growth-interval\":2,\"opt-level\":\"O1\"}}\n",
                k);
        for (int i = 1; i <= 4; i++) {
            fprintf(f, "{\"event\":\"step\",\"step\":%d,\"loss\":1,%s}\n", i, line(i));
        }
        fprintf(f, "{\"event\":\"end\",\"steps\":4}\n");
        fclose(f);
    }
}

static const char *right_scale(int step)
{
    static const char *const lines[] = {
        "\"loss_scale\":64,\"loss_scale_next\":64,\"skipped\":false",
        "\"loss_scale\":64,\"loss_scale_next\":128,\"skipped\":false",
        "\"loss_scale\":128,\"loss_scale_next\":64,\"skipped\":true",
        "\"loss_scale\":64,\"loss_scale_next\":64,\"skipped\":false"};
    return lines[step - 1];
}

static const char *late_scale(int step)
{
    return step == 2 ? "\"loss_scale\":64,\"loss_scale_next\":64,\"skipped\":false"
                     : right_scale(step);
}

TEST(trainers_of_the_protocol_are_judged)
{
    calls_job job = {0};
    for (int late = 0; late < 2; late++) {
        write_protocol(job.folder, late == 0 ? right_scale : late_scale);
        ck_assert_int_eq(ls_observe_read(job.folder, &job.trace), LS_OK);
        ls_observe_judge_all(job.trace, &job.result);
        calls_expect(&job, "scaler.trace", late == 0 ? LS_PASS : LS_FAIL,
                     late == 0 ? "1 overflows, 1 growths" : "step 2: scale 64, then 64");
        calls_expect(&job, "scaler.agree", LS_PASS, "1 of them skips");
        calls_expect(&job, "scaler.once", LS_UNSUPPORTED, "no calls");
        calls_close(&job);
    }
}

/* Gradients that the script reduces itself, without a wrapper. */
static void open_by_hand(calls_job *job)
{
    calls_open_with(job, 2, "\"kind\":\"plain\",");
    calls_event(job, -1,
                "{\"event\":\"scaler\",\"scaler\":0,\"enabled\":true,\"init_scale\":1024,"
                "\"growth_factor\":2,\"backoff_factor\":0.5,\"growth_interval\":3,"
                "\"at\":\"train.py:6\"}");
    calls_event(job, -1,
                "{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"torch.optim.sgd.SGD\","
                "\"rule\":\"sgd\",\"at\":\"train.py:7\",\"groups\":[{\"params\":[\"fc.weight\","
                "\"fc.bias\",\"head.weight\"],\"lr\":0.1}]}");
}

TEST(unscaling_before_a_reduction_by_hand_is_caught)
{
    static const char early[] = "F S B U A{\"elements\":14} K P Z";
    calls_job job;
    open_by_hand(&job);
    calls_step(&job, early);
    calls_step_of(&job, 0, "", early);
    calls_step_of(&job, 1, "", "F S B U{\"found_inf\":true} A{\"elements\":14} k P Z");
    calls_end(&job, "scaler.agree", LS_FAIL, "before the script reduces them");
    open_by_hand(&job);
    calls_step(&job, early);
    calls_step(&job, "F S B U{\"found_inf\":true} A{\"elements\":14} k P Z");
    calls_end(&job, "scaler.agree", LS_WEAK, "unscaled before");
}

TEST(unscaling_after_a_reduction_by_hand_passes)
{
    calls_job job;
    open_by_hand(&job);
    calls_step(&job, "F S B A{\"elements\":14} U K P Z");
    calls_step(&job, "F S B A{\"elements\":14} U{\"found_inf\":true} k P Z");
    calls_end(&job, "scaler.agree", LS_PASS, "1 of them skips");
}

TEST_MAIN("observe_scaler", .timeout_s = 120)
