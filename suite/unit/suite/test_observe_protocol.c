/* The rules that judge a trainer of the subject protocol by what its events and its command say, on
 * invented jobs of two ranks: right ones pass, and each fault is seen by its rule. */
#include <check.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "reference/files/safetensors.h"
#include "suite/observe/observe.h"
#include "suite/unit/run_suite.h"

enum { RANKS = 2 };

typedef struct job {
    char folder[64];
    const char *command;       /* words of job.json's command, quoted; NULL: no job.json */
    const char *options;       /* members of the start event's options */
    const char *events[RANKS]; /* lines between start and end */
} job;

static void write_line(const char *folder, const char *name, const char *format, ...)
{
    va_list arguments;
    LS_TEXT(path, 200, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    va_start(arguments, format);
    vfprintf(f, format, arguments);
    va_end(arguments);
    fclose(f);
}

static void write_job(job *j)
{
    strcpy(j->folder, "/tmp/lockstep-protocol-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(j->folder));
    for (int k = 0; k < RANKS; k++) {
        LS_TEXT(name, 40, "rank%d.jsonl", k);
        write_line(j->folder, name,
                   "{\"event\":\"start\",\"schema\":1,\"rank\":%d,\"world\":2,\"options\":{%s}}\n%s"
                   "{\"event\":\"end\",\"code\":0}\n",
                   k, j->options, j->events[k]);
    }
    if (j->command != NULL) {
        write_line(j->folder, "job.json",
                   "{\"schema\":2,\"command\":[%s],\"facts\":{\"world\":2},\"outcome\":{\"state\":"
                   "\"done\",\"code\":0}}",
                   j->command);
    }
}

static ls_verdict judge(const job *j, const job *before, const char *id)
{
    ls_observe_trace *trace = NULL;
    ls_observe_finding found = {0};
    int count;
    const ls_observe_rule *rule = ls_observe_rules(&count);
    ck_assert_int_eq(ls_observe_read(j->folder, &trace), LS_OK);
    if (before != NULL) {
        ck_assert(ls_observe_continue(trace, before->folder));
    }
    while (count > 0 && strcmp(rule->id, id) != 0) {
        rule++;
        count--;
    }
    ck_assert_int_gt(count, 0);
    ls_observe_judge_one(trace, rule, &found);
    ls_observe_free(trace);
    return found.verdict;
}

static void expect(job *j, const char *id, ls_verdict_code code, const char *words)
{
    write_job(j);
    ls_verdict v = judge(j, NULL, id);
    ck_assert_msg(v.code == code &&
                      (strstr(v.cause, words) != NULL || strstr(v.evidence, words) != NULL),
                  "%s: %s %s; %s", id, ls_verdict_name(v.code), v.evidence, v.cause);
    ls_path_remove_tree(j->folder);
}

/* ---- schedules ------------------------------------------------------------------------------- */

#define STEP(n, lr) \
    "{\"event\":\"step\",\"step\":" #n ",\"loss\":1,\"skipped\":false,\"lr\":" #lr "}\n"
#define MISSED(n, lr) \
    "{\"event\":\"step\",\"step\":" #n ",\"loss\":1,\"skipped\":true,\"lr\":" #lr "}\n"
#define DRAW(count)                                                                     \
    "{\"event\":\"data\",\"pass\":0,\"length\":16,\"count\":" #count ",\"whole\":true," \
    "\"trained\":true,\"modulus\":1,\"kept\":[]}\n"
#define SIXTEEN "multistep:1s,2s,3s,4s,5s,6s,7s,8s,9s,10s,11s,12s,13s,14s,15s,16s"
#define RATES(a, b, c, d) STEP(1, a) STEP(2, b) STEP(3, c) STEP(4, d)

static const struct {
    const char *schedule, *steps;
    ls_verdict_code code;
    const char *words;
} rates[] = {
    {"polynomial:4s:2", RATES(1, 0.5625, 0.25, 0.0625), LS_PASS, "polynomial:4s:2"},
    {"polynomial:4s:2", RATES(1, 0.75, 0.5, 0.25), LS_FAIL, "step 2: the rate is 0.75"},
    {"step:2s:0.5", RATES(1, 1, 0.5, 0.5), LS_PASS, ""},
    {"step:2s:0.5", RATES(1, 0.5, 0.5, 0.25), LS_FAIL, "counts steps from 1"},
    {"step:2s:0.5", RATES(1, 1, 1, 0.5), LS_FAIL, "one step too late"},
    {"multistep:1s,3s:0.5", RATES(1, 0.5, 0.5, 0.25), LS_PASS, ""},
    {"cosine:2s", RATES(1, 0.5, 0, 0), LS_PASS, ""},
    {"cosine:2s", RATES(1, 0.5, 1, 0.5), LS_FAIL, "the rate of the first step"},
    {"warmup:2s:0.5,constant", RATES(0.5, 0.75, 1, 1), LS_PASS, ""},
    {"warmup:1s:0.5,step:1s:0.5", RATES(0.5, 1, 0.5, 0.25), LS_PASS, ""},
    {"step:2:0.5", RATES(1, 1, 0.5, 0.5), LS_UNSUPPORTED, "not known"}, /* epochs without data */
    {"constant", RATES(1, 1, 1, 1), LS_PASS, "8 rates are those of constant"},
    {"cosine:4s", RATES(1, 0.85355339059327373, 0.5, 0.14644660940672627), LS_PASS, ""},
    {"cosine:2s", RATES(1, 0.5, 0.000001, 0), LS_FAIL, "rank 0, step 3: the rate is 1e-06, by the"},
    {"polynomial:2s:1", RATES(1, 0.5, 0, 0), LS_PASS, ""},
    {"polynomial:2s", RATES(1, 0.5, 0, 0.5), LS_FAIL, "rank 0, step 4: the rate is 0.5"},
    {"multistep:1s,3s:0.5", RATES(1, 0.5, 0.5, 0.5), LS_FAIL, "one step too late"},
    {"multistep:1,1.5:0.5", DRAW(8) RATES(1, 1, 0.5, 0.25), LS_PASS, ""},
    {"multistep:1,1.5:0.5", DRAW(0) RATES(1, 1, 0.5, 0.25), LS_UNSUPPORTED, "not known"},
    {"warmup:4s,constant", RATES(0.01, 0.2575, 0.505, 0.7525), LS_PASS, ""},
    {"warmup:1,constant", RATES(0.01, 0.2575, 0.505, 0.7525), LS_UNSUPPORTED, "not known"},
    {"warmup:2s:0.5", RATES(0.5, 0.75, 1, 1), LS_UNSUPPORTED, "warmup:2s:0.5"},
    {"warmup:2s:0.5,rising", RATES(0.5, 0.75, 1, 1), LS_UNSUPPORTED, "rising"},
    {"step:2s:0.5:3", RATES(1, 1, 0.5, 0.5), LS_UNSUPPORTED, "step:2s:0.5:3"},
    {"step", RATES(1, 1, 0.5, 0.5), LS_UNSUPPORTED, "step"},
    {"cosine:0s", RATES(1, 1, 1, 1), LS_UNSUPPORTED, "cosine:0s"},
    {SIXTEEN ":0.5", RATES(1, 0.5, 0.25, 0.125), LS_PASS, ""},
    {SIXTEEN ",17s:0.5", RATES(1, 0.5, 0.25, 0.125), LS_UNSUPPORTED, "17s"},
    {"step:1s:0.5", RATES(1, 0.50000006, 0.25, 0.125), LS_PASS, ""},
    {"step:1s:0.5", RATES(1, 0.5000002, 0.25, 0.125), LS_FAIL, "step 2: the rate is 0.5000002"},
    {"step:1s:0.5", RATES(1, 0.5, 0.25, null), LS_PASS, "6 rates"},
    {"step:1s:0.5", RATES(null, null, null, null), LS_UNSUPPORTED, "no step reports a rate"},
    {"step:2s:0.5", STEP(1, 1) MISSED(2, 1) STEP(3, 1) STEP(4, 0.5), LS_FAIL,
     "does not tick in skipped steps"},
};

TEST(the_rates_of_each_rank_are_compared)
{
    job j = {.options = "\"lr\":1,\"schedule\":\"step:2s:0.5\"",
             .events = {RATES(1, 1, 0.5, 0.5), RATES(1, 1, 0.5, 0.25)}};
    expect(&j, "optimizer.schedule", LS_FAIL,
           "rank 1, step 4: the rate is 0.25, by the schedule 0.5");
    j.options = "\"lr\":1,\"schedule\":\"step:2s:0.5\",\"batch-sizes\":[4,8]";
    expect(&j, "optimizer.schedule", LS_UNSUPPORTED, "not known");
    j.options = "\"lr\":1";
    expect(&j, "optimizer.schedule", LS_SKIP, "no schedule is reported");
}

ROWS_TEST(rates_are_those_of_the_schedule, rates)
{
    LS_TEXT(options, 200, "\"lr\":1,\"batch-size\":4,\"schedule\":\"%s\"", rates[_i].schedule);
    job j = {.options = options, .events = {rates[_i].steps, rates[_i].steps}};
    expect(&j, "optimizer.schedule", rates[_i].code, rates[_i].words);
}

TEST(linear_scaling_takes_all_ranks)
{
    job j = {.options = "\"lr\":1,\"batch-size\":128,\"schedule\":\"constant\",\"lr-scaling\":"
                        "\"linear\"",
             .events = {RATES(1, 1, 1, 1), RATES(1, 1, 1, 1)}};
    expect(&j, "optimizer.schedule", LS_PASS, "");
    j.events[0] = j.events[1] = RATES(0.5, 0.5, 0.5, 0.5);
    expect(&j, "optimizer.schedule", LS_FAIL, "one rank's batch");
    j.options = "\"lr\":1,\"batch-size\":64,\"accumulate\":2,\"schedule\":\"constant\","
                "\"lr-scaling\":\"linear\"";
    j.events[0] = j.events[1] = RATES(1, 1, 1, 1);
    expect(&j, "optimizer.schedule", LS_PASS, "");
}

TEST(a_trainer_that_names_no_indices_is_not_judged)
{
    job j = {.options = "", .events = {RATES(1, 1, 1, 1), RATES(1, 1, 1, 1)}};
    expect(&j, "data.disjoint", LS_UNSUPPORTED, "the trainer's own events name no indices");
}

/* ---- validations ----------------------------------------------------------------------------- */

#define EPOCH(images) \
    "{\"event\":\"epoch\",\"epoch\":1,\"step\":4,\"val\":{\"images\":" #images ",\"top1\":1}}\n"
#define MADE(before, after)                                                          \
    "{\"event\":\"validation\",\"step\":4,\"length\":5,\"buffers_before\":\"" before \
    "\",\"buffers_after\":\"" after "\"}\n"
#define BAD(good, bad)                                                       \
    MADE("a", "a")                                                           \
    "{\"event\":\"epoch\",\"epoch\":1,\"step\":4,\"val\":{\"images\":" #good \
    ",\"bad_images\":" #bad "}}\n"
#define DRAWN_OF(pass, modulus, kept)                                           \
    "{\"event\":\"data\",\"pass\":" #pass ",\"length\":5,\"modulus\":" #modulus \
    ",\"indices\":true,"                                                        \
    "\"trained\":false,\"kept\":[" kept "]}\n"
#define DRAWN(kept) DRAWN_OF(0, 1, kept)
static const struct {
    const char *events[RANKS];
    ls_verdict_code code;
    const char *words;
} validations[] = {
    {{DRAWN("0,2,4") MADE("a", "a") EPOCH(5), DRAWN("1,3") MADE("b", "b") EPOCH(5)},
     LS_PASS,
     "5 counts, parts and statistics"},
    {{DRAWN("0,2,4") MADE("a", "a") EPOCH(5), DRAWN("1,3") MADE("b", "b") EPOCH(4)},
     LS_FAIL,
     "rank 1: the validation after step 4 counts 4 pictures of 5"},
    {{BAD(3, 2), ""}, LS_PASS, "2 counts, parts and statistics"},
    {{BAD(3, 1), ""}, LS_FAIL, "a part of the data set is left out"},
    {{DRAWN("0,2,4") DRAWN_OF(1, 1, "0,2,4"), DRAWN("1,3") DRAWN_OF(1, 1, "1,2,3")},
     LS_FAIL,
     "of 5 pictures of validation 1 the ranks take 5, 1 of them again"},
    {{DRAWN("0,2,4"), DRAWN("1")}, LS_FAIL, "of 5 pictures of validation 0 the ranks take 4, 0 of"},
    {{DRAWN("0,2,4,5,-1"), DRAWN("1,3")}, LS_PASS, "1 counts"},
    {{DRAWN_OF(0, 2, "0,2"), DRAWN_OF(0, 2, "4")}, LS_PASS, "1 counts"},
    {{DRAWN_OF(0, 2, "0,2"), DRAWN_OF(0, 2, "2")},
     LS_FAIL,
     "of 3 pictures of validation 0 the ranks take 2, 1 of them again"},
    {{DRAWN_OF(0, 0, "0,2"), DRAWN_OF(0, 0, "4")}, LS_SKIP, "no validation"},
    {{DRAWN("0,2,4") MADE("a", "a") EPOCH(6), DRAWN("1,3") MADE("b", "b") EPOCH(6)},
     LS_FAIL,
     "pictures that fill up a batch"},
    {{DRAWN("0,2,4") MADE("a", "a") EPOCH(5), DRAWN("0,2") MADE("b", "b") EPOCH(5)},
     LS_FAIL,
     "of 5 pictures of validation 0 the ranks take 3, 2 of them again"},
    {{DRAWN("0,2,4") MADE("a", "c") EPOCH(5), DRAWN("1,3") MADE("b", "b") EPOCH(5)},
     LS_FAIL,
     "rank 0: the validation after step 4 changes running statistics"},
    {{EPOCH(5), EPOCH(5)}, LS_SKIP, "no validation"},
};

ROWS_TEST(validations_count_each_picture_once, validations)
{
    job j = {.options = "", .events = {validations[_i].events[0], validations[_i].events[1]}};
    expect(&j, "evaluation.counted", validations[_i].code, validations[_i].words);
}

#define BEST(step, top1)                                                               \
    "{\"event\":\"save\",\"step\":" #step ",\"path\":\"/none/" #step ".safetensors\"," \
    "\"best\":{\"step\":1,\"images\":10,\"top1\":" #top1 "}}\n"

TEST(the_best_score_does_not_fall)
{
    job j = {.options = "", .events = {BEST(1, 3) BEST(2, 3) BEST(3, 5), ""}};
    expect(&j, "evaluation.best", LS_PASS, "never falls over 3 files");
    j.events[0] = BEST(1, 3) BEST(2, 2);
    expect(&j, "evaluation.best", LS_FAIL,
           "rank 0: the file of step 2 has 0.2 for the best score, an earlier one had 0.3");
    j.events[1] = BEST(1, 3) BEST(2, 5) BEST(3, 4);
    j.events[0] = "{\"event\":\"save\",\"step\":1,\"best\":{\"images\":0,\"top1\":0}}\n";
    expect(&j, "evaluation.best", LS_FAIL,
           "rank 1: the file of step 3 has 0.4 for the best score, an earlier one had 0.5");
    j.events[1] = "";
    expect(&j, "evaluation.best", LS_SKIP, "no file is reported");
}

/* ---- a job that goes on ---------------------------------------------------------------------- */

#define HELD(state, images)                               \
    "\"digest\":{\"param\":\"1\",\"state\":\"" state      \
    "\",\"buffer\":\"3\"},\"epoch\":{\"images\":" #images \
    ",\"top1\":0},\"best\":{\"images\":0,\"top1\":0}}\n"
#define SAVED "{\"event\":\"save\",\"step\":2,\"path\":\"/none/a.safetensors\"," HELD("2", 4)
#define BEST_OF(images, top1)                                                                     \
    "\"digest\":{\"param\":\"1\",\"state\":\"2\",\"buffer\":\"3\"},\"best\":{\"images\":" #images \
    ",\"top1\":" #top1 "}}\n"
#define READ "{\"event\":\"load\",\"path\":\"/none/a.safetensors\"}\n"
#define GOES_ON(state, images) \
    READ "{\"event\":\"restore\",\"what\":\"run\",\"step\":2," HELD(state, images)
#define TRAINED(kept, from, to)                                                                \
    "{\"event\":\"data\",\"pass\":0,\"length\":12,\"modulus\":1,\"indices\":true,\"trained\":" \
    "true,"                                                                                    \
    "\"sampler_epoch\":0,\"steps\":[" #from "," #to "],\"kept\":[" kept "]}\n"
#define THREE "{\"event\":\"step\",\"step\":3,\"loss\":1}\n"
#define TWO "{\"event\":\"step\",\"step\":2,\"loss\":1}\n"

static const struct {
    const char *events;
    ls_verdict_code code;
    const char *words;
} resumed[] = {
    {GOES_ON("2", 4) THREE TRAINED("6,7,8,9", 3, 4), LS_PASS, "6 groups of tensors"},
    {GOES_ON("9", 4) THREE TRAINED("6,7,8,9", 3, 4), LS_FAIL,
     "rank 0 goes on after step 2 with other the optimizer's state than were saved"},
    {GOES_ON("2", 0) THREE TRAINED("6,7,8,9", 3, 4), LS_FAIL,
     "rank 0 goes on with other sums of the epoch that was begun"},
    {GOES_ON("2", 4) TWO TRAINED("6,7,8,9", 3, 4), LS_FAIL,
     "rank 0 goes on with step 2, the file is of step 2"},
    {GOES_ON("2", 4) "{\"event\":\"step\",\"step\":4,\"loss\":1}\n", LS_FAIL,
     "with step 4, the file is of step 2"},
    {GOES_ON("2", 4) THREE TRAINED("0,1,2,3", 3, 4), LS_FAIL,
     "rank 0 draws 4 of 4 samples again that were drawn in this epoch before the file was saved"},
    {GOES_ON("2", 4) THREE TRAINED("0,1,2,9", 3, 4), LS_FAIL, "draws 3 of 4 samples again"},
    {GOES_ON("2", 4) THREE TRAINED("0,1,2,7,8,9", 3, 4), LS_PASS, ""},
    {GOES_ON("2", 4) THREE TRAINED("3,2,9", 3, 4), LS_PASS, ""},
    {GOES_ON("2", 4) THREE "{\"event\":\"data\",\"trained\":true,\"sampler_epoch\":1,\"steps\":[3,"
                           "4],\"kept\":[0,1,2,3]}\n",
     LS_PASS, ""},
    {GOES_ON("2", 4) THREE "{\"event\":\"data\",\"trained\":false,\"sampler_epoch\":0,\"steps\":[3,"
                           "4],\"kept\":[0,1,2,3]}\n",
     LS_PASS, ""},
    {READ "{\"event\":\"restore\",\"what\":\"run\",\"step\":2," BEST_OF(1, 0), LS_FAIL,
     "rank 0 goes on with another best score"},
    {READ "{\"event\":\"restore\",\"what\":\"run\",\"step\":2," BEST_OF(0, 1), LS_FAIL,
     "rank 0 goes on with another best score"},
};

ROWS_TEST(what_was_saved_is_gone_on_with, resumed)
{
    job before = {.options = "", .events = {SAVED TRAINED("0,1,2,3", 1, 2), SAVED}};
    job j = {.options = "", .events = {resumed[_i].events, GOES_ON("2", 4) THREE}};
    write_job(&before);
    write_job(&j);
    ls_verdict v = judge(&j, &before, "checkpoint.continued");
    ck_assert_msg(v.code == resumed[_i].code && (strstr(v.cause, resumed[_i].words) != NULL ||
                                                 strstr(v.evidence, resumed[_i].words) != NULL),
                  "%s %s; %s", ls_verdict_name(v.code), v.evidence, v.cause);
    ck_assert_int_eq(judge(&j, NULL, "checkpoint.continued").code, LS_SKIP);
    ls_path_remove_tree(before.folder);
    ls_path_remove_tree(j.folder);
}

/* ---- files ----------------------------------------------------------------------------------- */

static uint64_t digest_more(uint64_t digest, const void *data, size_t bytes)
{
    for (const unsigned char *at = data; bytes > 0; bytes--) {
        digest = (digest ^ *at++) * UINT64_C(1099511628211);
    }
    return digest;
}

/* What a file holds, by what the event of its writing says of it. */
static const struct {
    const char *name;
    uint64_t param, state; /* other bits than those of the file */
    bool again;            /* the file was written before, with other values */
    int rank;              /* that reports it */
    ls_verdict_code code;
    const char *words;
} held[] = {
    {"a.safetensors", 0, 0, false, 0, LS_PASS, "2 groups of tensors in files are those"},
    {"a.safetensors", 0, 0, true, 0, LS_PASS, "2 groups of tensors in files are those"},
    {"a.safetensors", 1, 0, false, 0, LS_FAIL,
     "a.safetensors is not what its writer held when it wrote it"},
    {"a.safetensors", 0, 1, false, 0, LS_FAIL, "state/ in /tmp/lockstep-held-"},
    {"a.safetensors", 1, 0, false, 1, LS_SKIP, "no file of the job's"},
    {"a.tensors", 1, 0, false, 0, LS_SKIP, "no file of the job's"},
};

ROWS_TEST(files_hold_what_was_held, held)
{
    static const float first[2] = {1, 2}, second[2] = {3, 4}, state[2] = {5, 6};
    const ls_shape shape = {1, {2}};
    const uint64_t start = UINT64_C(14695981039346656037);
    ls_safetensors_writer *w = NULL;
    char folder[] = "/tmp/lockstep-held-XXXXXX";
    job j = {.options = "", .events = {"", ""}};
    ck_assert_ptr_nonnull(mkdtemp(folder));
    LS_TEXT(path, 200, "%s/%s", folder, held[_i].name);
    ck_assert_int_eq(ls_safetensors_create(path, &w), LS_OK);
    ls_safetensors_add_copy(w, "param/b", LS_F32, &shape, second);
    ls_safetensors_add_copy(w, "state/a", LS_F32, &shape, state);
    ls_safetensors_add_copy(w, "param/a", LS_F32, &shape, first);
    ls_safetensors_add_copy(w, "params/a", LS_F32, &shape, state);
    ck_assert_int_eq(ls_safetensors_finish(w), LS_OK);
    uint64_t param = digest_more(digest_more(start, first, sizeof first), second, sizeof second);
    LS_TEXT(events, 1000,
            "{\"event\":\"save\",\"step\":1,\"path\":\"%s\",\"digest\":{\"param\":\"%016llx\","
            "\"master\":\"9\",\"state\":\"%016llx\"}}\n",
            path, (unsigned long long)(param ^ held[_i].param),
            (unsigned long long)(digest_more(start, state, sizeof state) ^ held[_i].state));
    LS_TEXT(before, 1400,
            "{\"event\":\"save\",\"step\":1,\"path\":\"%s\",\"digest\":{\"param\":\"7\"}}\n%s",
            path, events);
    j.events[held[_i].rank] = held[_i].again ? before : events;
    expect(&j, "checkpoint.held", held[_i].code, held[_i].words);
    ls_path_remove_tree(folder);
}

/* ---- what the command asks for --------------------------------------------------------------- */

#define BUCKETS(type)                                                                           \
    "{\"event\":\"buckets\",\"iteration\":1,\"buckets\":[{\"bytes\":4,\"elements\":2,\"type\":" \
    "\"" type "\",\"names\":[\"fc.bias\"]}]}\n"

TEST(buckets_have_the_type_that_is_asked_for)
{
    job j = {.command = "\"train\",\"--compress=fp16\"",
             .options = "",
             .events = {BUCKETS("fp16"), BUCKETS("fp16")}};
    expect(&j, "reduction.asked", LS_PASS, "");
    j.events[1] = BUCKETS("fp32");
    expect(&j, "reduction.asked", LS_FAIL, "rank 1 reduces a bucket in fp32, asked is fp16");
    j.command = "\"train\",\"--comm-hook=fp16_compress\"";
    expect(&j, "reduction.asked", LS_FAIL, "rank 1 reduces a bucket in fp32, asked is fp16");
    j.command = "\"train\",\"--comm-hook=bf16_compress\"";
    expect(&j, "reduction.asked", LS_FAIL, "rank 0 reduces a bucket in fp16, asked is bf16");
    j.command = "\"train\",\"--allreduce-fp32\"";
    expect(&j, "reduction.asked", LS_FAIL, "rank 0 reduces a bucket in fp16, asked is fp32");
    j.command = "\"train\",\"--compress=none\"";
    expect(&j, "reduction.asked", LS_SKIP, "");
    j.command = NULL;
    expect(&j, "reduction.asked", LS_SKIP, "not recorded");
}

typedef struct dump {
    ls_dtype weight, norm;
    bool master;
    float copy; /* the half copy of a master of 1 + 2^-11 + 2^-13, which rounds up */
    const char *decay;
} dump;

static void write_dump(const char *folder, const dump *d)
{
    static const float master[2] = {1.0f + 0x1p-11f + 0x1p-13f, 2}, zero[2] = {0, 0};
    const uint16_t half[2] = {d->copy > 1 ? 0x3c01 : 0x3c00, 0x4000};
    const ls_shape flat = {1, {2}}, matrix = {2, {1, 2}};
    ls_safetensors_writer *w = NULL;
    LS_TEXT(path, 200, "%s/dump", folder);
    ck_assert_int_eq(ls_path_make_folder(path), LS_OK);
    ls_text_add(path, sizeof path, "/step000001.rank0.safetensors");
    ck_assert_int_eq(ls_safetensors_create(path, &w), LS_OK);
    ls_safetensors_metadata(w, "lr", "0.5");
    ls_safetensors_metadata(w, "weight_decay", "0.1");
    ls_safetensors_metadata(w, "weight_decay/bn.weight", "%s", d->decay);
    ls_safetensors_add_copy(w, "param/fc.weight", d->weight, &matrix,
                            d->weight == LS_F32 ? (const void *)master : half);
    if (d->master) {
        ls_safetensors_add_copy(w, "master/fc.weight", LS_F32, &matrix, master);
    }
    ls_safetensors_add_copy(w, "param/bn.weight", d->norm, &flat,
                            d->norm == LS_F32 ? (const void *)master : half);
    ls_safetensors_add_copy(w, "buffer/bn.running_mean", LS_F32, &flat, zero);
    ck_assert_int_eq(ls_safetensors_finish(w), LS_OK);
}

static const struct {
    dump d;
    const char *command, *rule;
    ls_verdict_code code;
    const char *words;
} levels[] = {
    {{LS_F16, LS_F32, true, 2, "0"}, "\"--opt-level=O2\"", "precision.level", LS_PASS, ""},
    {{LS_F16, LS_F32, true, 1, "0"},
     "\"--opt-level=O2\"",
     "precision.level",
     LS_FAIL,
     "rounded to"},
    {{LS_F16, LS_F32, false, 2, "0"},
     "\"--opt-level=O2\"",
     "precision.level",
     LS_FAIL,
     "no masters"},
    {{LS_F16, LS_F16, true, 2, "0"},
     "\"--opt-level=O2\"",
     "precision.level",
     LS_FAIL,
     "batch norm"},
    {{LS_F16, LS_F16, false, 2, "0"}, "\"--opt-level=O3\"", "precision.level", LS_PASS, ""},
    {{LS_F16, LS_F32, false, 2, "0"},
     "\"--opt-level=O3\"",
     "precision.level",
     LS_FAIL,
     "batch norm"},
    {{LS_F16, LS_F32, false, 2, "0"},
     "\"--opt-level=O3\",\"--keep-batchnorm-fp32\",\"True\"",
     "precision.level",
     LS_PASS,
     ""},
    {{LS_F32, LS_F32, false, 2, "0"}, "\"--opt-level=O1\"", "precision.level", LS_PASS, ""},
    {{LS_F16, LS_F32, true, 2, "0"},
     "\"--opt-level=O1\"",
     "precision.level",
     LS_FAIL,
     "another type"},
    {{LS_F32, LS_F32, false, 2, "0"}, "\"--no-bn-decay\"", "optimizer.groups", LS_PASS, ""},
    {{LS_F32, LS_F32, false, 2, "0.1"},
     "\"--no-bn-decay\"",
     "optimizer.groups",
     LS_FAIL,
     "first that"},
    {{LS_F32, LS_F32, false, 2, "0.25"},
     "\"--group=^bn:wd=0.25\",\"--group=weight:wd=0.1\"",
     "optimizer.groups",
     LS_PASS,
     ""},
    {{LS_F32, LS_F32, false, 2, "0.1"},
     "\"--group=^bn:wd=0.25\",\"--group=weight:wd=0.1\"",
     "optimizer.groups",
     LS_FAIL,
     "first that fits"},
};

ROWS_TEST(dumps_have_what_the_command_asks_for, levels)
{
    LS_TEXT(command, 200, "\"train\",%s", levels[_i].command);
    job j = {.command = command, .options = "", .events = {STEP(1, 0.5), STEP(1, 0.5)}};
    write_job(&j);
    write_dump(j.folder, &levels[_i].d);
    ls_verdict v = judge(&j, NULL, levels[_i].rule);
    ck_assert_msg(v.code == levels[_i].code && strstr(v.cause, levels[_i].words) != NULL,
                  "%d: %s %s; %s", _i, ls_verdict_name(v.code), v.evidence, v.cause);
    ls_path_remove_tree(j.folder);
}

/* ---- steps recomputed ------------------------------------------------------------------------ */

#define ONE_SKIPPED STEP(1, 0.5) MISSED(2, 0.5) STEP(3, 0.5)

/* A step of Adam of one element at rate 0.5, as the `taken`-th one, by `g`; its metadata. */
static void write_adam(const char *folder, int step, int rank, double taken, double g,
                       const char *betas, const char *steps)
{
    const ls_shape flat = {1, {1}};
    double first = 0.9 * 0.25 + 0.1 * g, second = 0.999 * 0.0625 + 0.001 * g * g;
    double moved =
        1 - 0.5 * (first / (1 - pow(0.9, taken))) / (sqrt(second / (1 - pow(0.999, taken))) + 1e-8);
    const struct {
        const char *name;
        double value;
    } tensor[] = {{"param/fc.weight", 1},
                  {"grad/fc.weight", 0.5},
                  {"next/fc.weight", moved},
                  {"state/fc.weight/exp_avg", 0.25},
                  {"state/fc.weight/exp_avg_sq", 0.0625},
                  {"next_state/fc.weight/exp_avg", first},
                  {"next_state/fc.weight/exp_avg_sq", second}};
    ls_safetensors_writer *w = NULL;
    LS_TEXT(path, 200, "%s/dump", folder);
    ck_assert_int_eq(ls_path_make_folder(path), LS_OK);
    ls_text_add(path, sizeof path, "/step%06d.rank%d.safetensors", step, rank);
    ck_assert_int_eq(ls_safetensors_create(path, &w), LS_OK);
    ls_safetensors_metadata(w, "optimizer", "adam");
    ls_safetensors_metadata(w, "lr", "0.5");
    ls_safetensors_metadata(w, "eps", "1e-8");
    ls_safetensors_metadata(w, "betas", "%s", betas);
    ls_safetensors_metadata(w, "optimizer_steps", "%s", steps);
    for (size_t i = 0; i < sizeof tensor / sizeof *tensor; i++) {
        float value = (float)tensor[i].value;
        ck_assert_int_eq(ls_safetensors_add_copy(w, tensor[i].name, LS_F32, &flat, &value), LS_OK);
    }
    ck_assert_int_eq(ls_safetensors_finish(w), LS_OK);
}

/* The dump of the last step, of which the bias correction shows which one of the optimizer it is.
 */
static const struct {
    const char *events;
    int step, rank, taken;
    double grad;
    const char *betas, *steps;
    ls_verdict_code code;
    const char *words;
} counted[] = {
    {ONE_SKIPPED, 3, 0, 2, 0.5, "0.9,0.999", "9", LS_PASS, "1 elements in 1 steps of ranks"},
    {ONE_SKIPPED, 3, 0, 3, 0.5, "0.9,0.999", "3", LS_FAIL,
     "step 3, rank 0: fc.weight element 0, 1"},
    {ONE_SKIPPED, 3, 1, 1, 0.5, "0.9,0.999", "1", LS_FAIL,
     "step 3, rank 1: fc.weight element 0, 1"},
    {STEP(1, 0.5), 1, 0, 1, 0.5, "0.9,0.999", "4", LS_PASS, "1 elements"},
    {STEP(2, 0.5) STEP(3, 0.5), 3, 0, 7, 0.5, "0.9,0.999", "7", LS_PASS, "1 elements"},
    {STEP(2, 0.5) STEP(3, 0.5), 3, 0, 2, 0.5, "0.9,0.999", "7", LS_FAIL, "by adam"},
    {STEP(1, 0.5), 1, 0, 1, 0.5, "0.8,0.999", "1", LS_FAIL, "its first moment becomes 0.275"},
    {STEP(1, 0.5), 1, 0, 1, 0.5, "0.9,0.9", "1", LS_FAIL, "its second moment becomes"},
    {STEP(1, 0.5), 1, 0, 1, -0.5, "0.9,0.999", "1", LS_FAIL, "a step up the gradient"},
};

ROWS_TEST(steps_count_what_was_taken, counted)
{
    job j = {.options = "", .events = {counted[_i].events, counted[_i].events}};
    write_job(&j);
    write_adam(j.folder, counted[_i].step, counted[_i].rank, counted[_i].taken, counted[_i].grad,
               counted[_i].betas, counted[_i].steps);
    ls_verdict v = judge(&j, NULL, "optimizer.step");
    ck_assert_msg(v.code == counted[_i].code && (strstr(v.cause, counted[_i].words) != NULL ||
                                                 strstr(v.evidence, counted[_i].words) != NULL),
                  "%d: %s %s; %s", _i, ls_verdict_name(v.code), v.evidence, v.cause);
    ls_path_remove_tree(j.folder);
}

/* ---- what ranks share ------------------------------------------------------------------------ */

/* One element of each kind in the dump of a rank; `part`: of a job with several models. */
typedef struct shared {
    const char *command, *rule;
    float param[RANKS], local[RANKS], grad[RANKS];
    int dumps; /* 1: rank 1 has joined */
    ls_verdict_code code;
    const char *words;
    const char *metadata, *part;
} shared;

static void write_shared(const char *folder, const char *part, const shared *d, const float *grad)
{
    LS_TEXT(to, 200, "%s/dump", folder);
    ck_assert_int_eq(ls_path_make_folder(to), LS_OK);
    ls_text_add(to, sizeof to, "/%s", part);
    ck_assert_int_eq(ls_path_make_folder(to), LS_OK);
    for (int k = 0; k < d->dumps; k++) {
        const double local = d->local[k];
        const ls_shape one = {1, {1}};
        ls_safetensors_writer *w = NULL;
        LS_TEXT(path, 250, "%s/step000001.rank%d.safetensors", to, k);
        ck_assert_int_eq(ls_safetensors_create(path, &w), LS_OK);
        if (d->metadata != NULL) {
            ls_safetensors_metadata(w, d->metadata, "true");
        }
        ls_safetensors_add_copy(w, "param/fc.bias", LS_F32, &one, &d->param[k]);
        ls_safetensors_add_copy(w, "last_buffer/bn.running_mean", LS_F32, &one, &d->param[k]);
        ls_safetensors_add_copy(w, "local/fc.bias", LS_F64, &one, &local);
        ls_safetensors_add_copy(w, "grad/fc.bias", LS_F32, &one, &grad[k]);
        ck_assert_int_eq(ls_safetensors_finish(w), LS_OK);
    }
}

#define NOOP "\"--comm-hook=noop\"", "reduction.asked"
#define TORCH "\"--dialect=torch\""
#define JOIN(word) "\"--join=" word "\"", "reduction.asked"
#define ASKED "types and values are shared"
#define NOT_ASKED "no type, no joining ranks and no running statistics"

static const shared shares[] = {
    {TORCH, "reduction.asked", {1, 1}, {2, 4}, {3, 3}, 2, LS_PASS, "1 " ASKED},
    {TORCH,
     "reduction.asked",
     {1, 2},
     {2, 4},
     {3, 3},
     2,
     LS_FAIL,
     "step 1: before its forward bn.running_mean differs on ranks 0 and 1"},
    {TORCH ",\"--sync-bn\"", "reduction.asked", {1, 2}, {2, 4}, {3, 3}, 2, LS_SKIP, NOT_ASKED},
    {"", "reduction.asked", {1, 2}, {2, 4}, {3, 3}, 2, LS_SKIP, NOT_ASKED},
    {NOOP, {1, 1}, {2, 4}, {2, 4 + 0x1p-20f}, 2, LS_PASS, "2 " ASKED},
    {NOOP,
     {1, 1},
     {2, 4},
     {2, 4 + 0x3p-21f},
     2,
     LS_FAIL,
     "step 1, rank 1: fc.bias element 0 is 4.00000143 and was 4 before the hook noop"},
    {NOOP, {1, 1}, {2, 4}, {2, 3}, 2, LS_FAIL, "rank 1: fc.bias element 0 is 3 and", NULL, "b"},
    {JOIN("active"), {1, 1}, {2, 0}, {2 + 0x1p-21f, 0}, 1, LS_PASS, "1 " ASKED},
    {JOIN("active"),
     {1, 1},
     {2, 0},
     {2 + 0x3p-22f, 0},
     1,
     LS_FAIL,
     "step 1: the gradient of fc.bias element 0 is 2.00000072, the sum of the ranks that have "
     "a "
     "batch over 1 is 2"},
    {JOIN("all"), {1, 1}, {2, 0}, {1, 0}, 1, LS_PASS, "1 " ASKED},
    {JOIN("all"),
     {1, 1},
     {2, 0},
     {2, 0},
     1,
     LS_FAIL,
     "is 2, the sum of the ranks that have a "
     "batch over 2 is 1"},
    {JOIN("all"), {1, 1}, {2, 2}, {1, 1}, 2, LS_SKIP, NOT_ASKED}, /* all took part */
    {"", "replicas.start", {1, 1}, {2, 4}, {3, 3}, 2, LS_PASS, "1 tensors compared on 2 ranks"},
    {"",
     "replicas.start",
     {1, 2},
     {2, 4},
     {3, 3},
     2,
     LS_FAIL,
     "before step 1 the ranks hold other values in 1 tensors: fc.bias"},
    {"", "replicas.buffers", {1, 2}, {2, 4}, {3, 3}, 2, LS_SKIP, "each rank's own"},
    {"",
     "replicas.buffers",
     {1, 2},
     {2, 4},
     {3, 3},
     2,
     LS_FAIL,
     "after step 1 ranks 0 and 1 hold different statistics of SyncBatchNorm",
     "sync_bn"},
};

ROWS_TEST(what_ranks_share_is_as_asked, shares)
{
    const shared *d = &shares[_i];
    LS_TEXT(command, 200, "\"train\"%s%s", d->command[0] != '\0' ? "," : "", d->command);
    LS_TEXT(last, 200,
            "{\"event\":\"step\",\"step\":1,\"loss\":1,\"lr\":0.5,\"joined\":%s,\"digest\":{"
            "\"buffer\":\"2\"}}\n",
            d->dumps < RANKS ? "true" : "false");
    job j = {.command = command,
             .options = "",
             .events = {"{\"event\":\"step\",\"step\":1,\"loss\":1,\"lr\":0.5,\"digest\":{"
                        "\"buffer\":\"1\"}}\n",
                        last}};
    write_job(&j);
    if (d->part != NULL) {
        write_shared(j.folder, "a", d, d->local); /* which is right */
    }
    write_shared(j.folder, d->part != NULL ? d->part : "", d, d->grad);
    ls_verdict v = judge(&j, NULL, d->rule);
    ck_assert_msg(v.code == d->code && strstr(v.evidence, d->words) != NULL, "%d: %s %s", _i,
                  ls_verdict_name(v.code), v.evidence);
    ls_path_remove_tree(j.folder);
}

/* ---- several losses
 * -------------------------------------------------------------------------- */

#define LOSSES(n, a, b, c, d, first, second)                                                       \
    "{\"event\":\"step\",\"step\":" #n ",\"loss\":1,\"loss_scale\":" #a ",\"loss_scale_next\":" #b \
    ",\"skipped\":false,\"losses\":[{\"loss\":1,\"loss_scale\":" #a ",\"loss_scale_next\":" #b     \
    "},{\"loss\":1,\"loss_scale\":" #c ",\"loss_scale_next\":" #d                                  \
    "}],\"optimizers_skipped\":[" #first "," #second "]}\n"

static const struct {
    const char *steps;
    ls_verdict_code code;
    const char *words;
} losses[] = {
    {LOSSES(1, 8, 8, 8, 8, false, false) LOSSES(2, 8, 4, 8, 16, true, false), LS_PASS, ""},
    {LOSSES(1, 8, 8, 8, 8, false, false) LOSSES(2, 8, 16, 8, 4, true, true), LS_PASS, ""},
    {LOSSES(1, 8, 8, 8, 8, false, false) LOSSES(2, 8, 4, 8, 16, true, true), LS_FAIL,
     "of its block"},
    {LOSSES(1, 8, 8, 8, 8, false, false) LOSSES(2, 8, 16, 8, 4, true, false), LS_FAIL,
     "of its block"},
    {LOSSES(1, 8, 8, 8, 8, false, false) LOSSES(2, 8, 4, 8, 16, false, false), LS_FAIL,
     "rank 0, step 2: optimizer 0 steps, and a loss of its own overflowed"},
    {LOSSES(1, 8, 8, 8, 8, false, true), LS_FAIL,
     "rank 0, step 1: optimizer 1 skips, and no loss of its own overflowed"},
    {LOSSES(1, 8, 16, 8, 8, false, false), LS_FAIL, "before growth_interval"},
    {LOSSES(1, 8, 8, 8, 8, false, false) LOSSES(2, 8, 16, 8, 8, false, false), LS_FAIL,
     "rank 0, step 2, loss 1: scale 8, then 8; expected 16"},
};

ROWS_TEST(each_loss_has_its_scale, losses)
{
    job j = {.options = "\"loss-scale\":\"dynamic\",\"growth-interval\":2,\"opt-level\":\"O2\"",
             .events = {losses[_i].steps, losses[_i].steps}};
    expect(&j, "scaler.trace", losses[_i].code, losses[_i].words);
}

/* ---- one loss
 * -------------------------------------------------------------------------------- */

#define AT(n, scale, next, skipped)                                         \
    "{\"event\":\"step\",\"step\":" #n ",\"loss\":1,\"loss_scale\":" #scale \
    ",\"loss_scale_next\":" #next ",\"skipped\":" #skipped "}\n"
#define RIGHT AT(1, 64, 64, false) AT(2, 64, 128, false) AT(3, 128, 64, true) AT(4, 64, 64, false)
#define TWO_GOOD(scale, next) AT(1, scale, scale, false) AT(2, scale, next, false)
#define UNSAID "{\"event\":\"step\",\"step\":1,\"loss_scale\":8,\"loss_scale_next\":8}\n"
#define LEAST AT(1, 8, 8, true) AT(2, 8, 8, true)

static const struct {
    const char *rule, *options, *first, *second; /* NULL: as the first rank's */
    ls_verdict_code code;
    const char *words;
} scales[] = {
    {"scaler.trace", "", RIGHT, NULL, LS_PASS, "over 4 updates, 1 overflows, 1 growths, 0 set"},
    {"scaler.trace", "", RIGHT, TWO_GOOD(64, 64), LS_FAIL,
     "rank 1, step 2: scale 64, then 64, taken; expected 128"},
    {"scaler.trace", "", LEAST, NULL, LS_FAIL, "step 1: scale 8, then 8, skipped; expected 4"},
    {"scaler.trace", ",\"min-loss-scale\":8", LEAST, NULL, LS_PASS, "2 overflows"},
    {"scaler.trace", ",\"max-loss-scale\":64", TWO_GOOD(64, 64), NULL, LS_WEAK, "stays at 64"},
    {"scaler.trace", "", TWO_GOOD(16777216, 16777216), NULL, LS_WEAK, "stays at 1.67772e+07"},
    {"scaler.trace", ",\"dialect\":\"torch\"", TWO_GOOD(16777216, 33554432), NULL, LS_PASS,
     "1 growths"},
    {"scaler.trace", ",\"growth-interval\":3", TWO_GOOD(8, 8), NULL, LS_WEAK, "over 2 updates"},
    /* a job that goes on: its first growth shows the count */
    {"scaler.trace", "", AT(5, 8, 16, false) AT(6, 16, 16, false) AT(7, 16, 32, false), NULL,
     LS_PASS, "2 growths"},
    {"scaler.trace", "", AT(5, 8, 16, false) AT(6, 16, 32, false), NULL, LS_FAIL,
     "rank 0, step 6: scale 16, then 32, taken; expected 16"},
    {"scaler.trace", "", AT(5, 8, 8, true) AT(6, 8, 8, false), NULL, LS_FAIL, "step 5"},
    {"scaler.trace", "", AT(5, 8, 32, false), NULL, LS_FAIL, "step 5"},
    {"scaler.trace", ",\"loss-scale\":\"8\"", RIGHT, NULL, LS_SKIP, "static"},
    {"scaler.trace", "", STEP(1, 1) AT(2, 8, 8, false), NULL, LS_UNSUPPORTED, "no loss scale"},
    {"scaler.trace", "", AT(1, 8, null, false), NULL, LS_UNSUPPORTED, "no loss scale"},
    {"scaler.trace", "", UNSAID, NULL, LS_UNSUPPORTED, "do not say what was skipped"},
    {"scaler.agree", "", RIGHT, NULL, LS_PASS, "4 decisions of the scaler equal on 2 ranks, 1 of"},
    {"scaler.agree", "", RIGHT, AT(1, 64, 64, false) AT(2, 32, 128, false), LS_FAIL,
     "ranks 0 and 1, step 2: scale 64 and 32, taken and taken, then 128 and 128"},
    {"scaler.agree", "", RIGHT, AT(1, 64, 64, true), LS_FAIL, "taken and skipped"},
    {"scaler.agree", "", AT(1, 64, 64, true), RIGHT, LS_FAIL, "skipped and taken"},
    {"scaler.agree", "", RIGHT, AT(1, 64, 32, false), LS_FAIL, "then 64 and 32"},
    {"scaler.agree", "", RIGHT, AT(5, 64, 64, false), LS_UNSUPPORTED, "no step of a scaler"},
    {"scaler.agree", "", TWO_GOOD(8, 16), NULL, LS_WEAK, "nothing overflowed on any of 2 ranks"},
};

ROWS_TEST(the_scale_follows_its_rule, scales)
{
    LS_TEXT(options, 200, "\"opt-level\":\"O1\"%s,\"loss-scale\":\"dynamic\",\"growth-interval\":2",
            scales[_i].options);
    const char *second = scales[_i].second;
    job j = {.options = options, .events = {scales[_i].first, second ? second : scales[_i].first}};
    expect(&j, scales[_i].rule, scales[_i].code, scales[_i].words);
}

TEST(the_command_names_the_least_scale)
{
    job j = {
        .command = "\"train\",\"--min-loss-scale=8\"", .options = "", .events = {LEAST, LEAST}};
    expect(&j, "scaler.trace", LS_PASS, "2 overflows");
}

#define LOST(skipped)                                                                             \
    "{\"event\":\"step\",\"step\":1,\"loss\":null,\"loss_bits\":\"0x7fc00000\",\"loss_scale\":8," \
    "\"loss_scale_next\":8,\"skipped\":" #skipped "}\n"

TEST(a_lost_loss_is_skipped)
{
    job j = {.options = "\"loss-scale\":\"dynamic\",\"opt-level\":\"O2\"",
             .events = {LOST(false), LOST(false)}};
    expect(&j, "scaler.skip", LS_FAIL, "misses");
    j.options = "\"loss-scale\":\"8\",\"opt-level\":\"O2\"";
    expect(&j, "scaler.skip", LS_WEAK, "");
}

#define COUNT(table) (int)(sizeof table / sizeof *table)

TEST_MAIN("observe_protocol", .timeout_s = 120)
