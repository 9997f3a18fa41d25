/* How a job's end becomes a verdict, and verdicts become the headline. */
#include "reference/files/safetensors.h"
#include "suite/cases/rows.h"
#include "suite/judge/judges.h"
#include "suite/run/headline.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

static ls_verdict of_ending(const char *state, int first_rank, int code, int signal,
                            const char *log)
{
    const int codes[2] = {10, code};
    fake_outcome(folder, state, first_rank, code, signal, codes);
    FILE *file = fake_open(folder, "rank1.log");
    fprintf(file, "first line\n%s\n\n", log);
    fclose(file);
    file = fake_open(folder, "rank1.jsonl");
    fprintf(file, "{\"event\":\"start\",\"schema\":1}\n{\"event\":\"unsupported\",\"option\":"
                  "\"--sync-bn\",\"why\":\"not built\"}\n");
    if (strcmp(state, "done") != 0) {
        fprintf(file, "{\"event\":\"step\",\"st"); /* cut off: no wonder when it ended badly */
    }
    fclose(file);
    ls_record record = fake_read(folder);
    ls_verdict verdict;
    memset(&verdict, 0, sizeof verdict);
    bool decided = ls_verdict_of_outcome(&record, &verdict);
    ck_assert_int_eq(decided, verdict.code != LS_PASS);
    ls_record_free(&record);
    return verdict;
}

static const struct {
    const char *state;
    int first_rank, code, signal;
    const char *log;
    ls_verdict_code verdict;
    const char *evidence;
} endings[] = {
    {"done", -1, 0, 0, "", LS_PASS, ""},
    {"killed", 1, 137, 9, "", LS_CRASH, "rank=1 signal=9 (Killed)"},
    {"failed", 1, 4, 0, "", LS_UNSUPPORTED, "the subject refuses --sync-bn: not built"},
    {"failed", 1, 3, 0, "disk is full", LS_INFRA, "rank=1 exit code 3: disk is full"},
    {"failed", 1, 126, 0, "", LS_INFRA, "rank=1 exit code 126: first line"},
    {"failed", 1, 127, 0, "", LS_INFRA, "rank=1 exit code 127: first line"},
    {"failed", 1, 1, 0, "", LS_FAIL, "rank=1 exit code 1 (check failed): first line"},
    {"failed", 1, 2, 0, "", LS_FAIL, "rank=1 exit code 2 (usage): first line"},
    {"failed", 1, 12, 0, "", LS_FAIL, "rank=1 exit code 12 (non-finite state): first line"},
    {"failed", 1, 10, 0, "", LS_CRASH, "rank=1 exit code 10: first line"},
    {"failed", 1, 77, 0, "", LS_CRASH, "rank=1 exit code 77: first line"},
    {"failed", -1, 77, 0, "", LS_CRASH, "rank=0 exit code 77: "},
    {"timed out", -1, 0, 0, "", LS_TIMEOUT, "still running after 2 s"},
    {"stopped", -1, 0, 0, "", LS_SKIP, "the run was stopped"},
    {"not started", -1, 0, 0, "", LS_INFRA, "the job could not be started"},
};

ROWS_TEST(every_ending_has_its_code, endings)
{
    ls_verdict v = of_ending(endings[_i].state, endings[_i].first_rank, endings[_i].code,
                             endings[_i].signal, endings[_i].log);
    ck_assert_int_eq(v.code, endings[_i].verdict);
    ck_assert_str_eq(v.evidence, endings[_i].evidence);
}

/* What two ranks' records break of the protocol, given what was asked; "": nothing. */
#define WORDS(options) "\"world\":2,\"options\":{" options "}"
#define UNITS(level, claim, list)        \
    WORDS("\"opt-level\":\"" level "\"") \
    ",\"half_products\":\"" claim "\",\"fusions\":\"" list "\""
#define UNITLESS(claim, part)                                                                   \
    "rank=0 says '" claim "', but no implementation that it lists is for these units (..." part \
    "...)"
static const struct broken {
    const char *zero, *one; /* start of each rank; NULL: none */
    const char *evidence;   /* "": nothing is broken */
    int level, wrap, warmup_steps;
    const char *extra; /* of the spec; by default O1 */
    bool unasked;      /* no spec */
    int first, last;   /* steps; by default 1 and 2 */
    const char *end;   /* the end event; "": none */
} broken[] = {
    {WORDS(""), WORDS(""), ""},
    {WORDS("\"opt-level\":\"O1\""), WORDS("\"arch\":\"resnet8\""), ""},
    {WORDS("\"opt-level\":\"O2\""), WORDS("\"opt-level\":\"O2\""),
     "rank=0 was asked for opt level O1 and says that it ran O2"},
    {WORDS("\"opt-level\":\"O2\""), WORDS("\"opt-level\":\"O2\""), "", .level = -1},
    {WORDS("\"opt-level\":\"O2\""), WORDS("\"opt-level\":\"O2\""), "", .unasked = true},
    {WORDS(""), WORDS("\"arch\":\"resnet20\""),
     "rank=1 was asked for resnet8 and says that it trained resnet20"},
    {WORDS("\"lr\":0.1"), WORDS("\"lr\":0.2"), "rank=1 was started with another --lr than rank 0"},
    {"\"world\":2,\"rank\":1", "\"world\":2,\"rank\":1", "rank0.jsonl says that it is of rank 1"},
    {WORDS(""), "\"world\":1", "rank=1 says that it is one of 1 ranks: there are 2"},
    /* each rank has a job and options of its own */
    {"\"world\":1,\"rank\":0,\"options\":{\"lr\":0.1,\"arch\":\"resnet20\"}",
     "\"world\":1,\"rank\":0,\"options\":{\"lr\":0.2,\"opt-level\":\"O3\"}", "",
     .wrap = LS_WRAP_EACH},
    {WORDS(""), WORDS(""), "rank=0 says that it is one of 2 ranks: there are 1",
     .wrap = LS_WRAP_EACH},
    {WORDS(""), WORDS(""), "rank=0 resumed nothing, but its first step is 2", .first = 2},
    {WORDS(""), WORDS(""), "", .extra = "--resume x", .first = 2},
    {WORDS(""), WORDS(""), "", .unasked = true, .first = 2},
    {WORDS("\"resume\":null"), WORDS("\"resume\":null"),
     "rank=0 resumed nothing, but its first step is 2", .unasked = true, .first = 2},
    {WORDS(""), WORDS(""), "rank=0 left with code 0, but its last step is 3 of 2", .last = 3},
    {WORDS(""), WORDS(""), "", .warmup_steps = 1, .last = 3},
    {WORDS(""), WORDS(""), "", .extra = "--epochs=1", .last = 3},
    {WORDS(""), WORDS(""),
     "rank=0 left with code 0, but its events stop after step 2 without an end event", .end = ""},
    {WORDS(""), WORDS(""), "rank=0 ended with code 3, as its end event says",
     .end = "{\"event\":\"end\",\"code\":3}\n"},
    {NULL, WORDS(""), "rank=0 left with code 0, but wrote no start event"},
    {WORDS(""), WORDS(""), "rank=0 left with code 0, but its last step is 0 of 2", .first = 4},
    {WORDS(""), WORDS(""), "rank=0 left with code 0, but wrote no step event", .unasked = true,
     .first = 4},
    /* half types on units that the plan of products is not for */
    {UNITS("O1", "fp16 on AMX-FP16", "conv1: x_core_amx, fc: y"), WORDS(""),
     UNITLESS("fp16 on AMX-FP16", "amx_fp16")},
    {UNITS("O1", "bf16 on AMX", "conv1: x_core"), WORDS(""), UNITLESS("bf16 on AMX", "amx")},
    {UNITS("O1", "fp16 on AVX512-FP16", "conv1: x_core"), WORDS(""),
     UNITLESS("fp16 on AVX512-FP16", "core_fp16")},
    {UNITS("O1", "bf16 on AVX512-BF16", "conv1: x_core_fp16"), WORDS(""),
     UNITLESS("bf16 on AVX512-BF16", "core_bf16")},
    {UNITS("O1", "fp16 on AMX-FP16", "conv1: x_amx_fp16"), WORDS(""), ""},
    {UNITS("O1", "bf16 on AMX", "conv1: x_amx"), WORDS(""), ""},
    {UNITS("O1", "fp16 on AMX-FP16", ""), WORDS(""), ""},
    {UNITS("O0", "fp16 on AMX-FP16", "conv1: x"), WORDS(""), "", .level = -1},
};

ROWS_TEST(records_keep_the_protocol, broken)
{
    const struct broken *row = &broken[_i];
    for (int k = 0; k < 2; k++) {
        LS_TEXT(name, 32, "rank%d.jsonl", k);
        FILE *file = fake_open(folder, name);
        const char *start = k == 0 ? row->zero : row->one;
        if (start != NULL) {
            fprintf(file, "{\"event\":\"start\",\"schema\":1,%s}\n", start);
        }
        int last = row->last > 0 ? row->last : 2;
        for (int i = row->first > 0 ? row->first : 1; i <= last; i++) {
            fprintf(file, "{\"event\":\"step\",\"step\":%d}\n", i);
        }
        fputs(row->end == NULL ? "{\"event\":\"end\",\"code\":0}\n" : row->end, file);
        fclose(file);
    }
    fake_outcome(folder, "done", -1, 0, 0, (const int[]){0, 0});
    ls_record record = fake_read(folder);
    ls_spec spec = {.level = row->level == 0 ? 1 : row->level,
                    .wrap = row->wrap,
                    .steps = 2,
                    .warmup_steps = row->warmup_steps};
    ls_text_put(spec.extra, sizeof spec.extra, "%s", row->extra == NULL ? "" : row->extra);
    ls_text_put(spec.arch, sizeof spec.arch, "resnet8");
    ls_verdict v = {0};
    bool breaks = ls_protocol_breaks(&record, row->unasked ? NULL : &spec, &v);
    bool broke = row->evidence[0] != '\0';
    ck_assert_msg(v.code == (broke ? LS_FAIL : LS_PASS) && breaks == broke &&
                      strcmp(v.evidence, row->evidence) == 0,
                  "row %d: %s", _i, v.evidence);
    ls_record_free(&record);
}

TEST(an_update_is_a_step_that_was_taken)
{
    const fake_step step[] = {{.step = 1}, {.step = 2, .skipped = 1}, {.step = 3}};
    fake_rank(folder, 0, step, 3);
    fake_rank(folder, 1, step, 3);
    fake_outcome(folder, "done", -1, 0, 0, (const int[]){0, 0});
    ls_record record = fake_read(folder);
    static const struct {
        int64_t update;
        bool skipped;
        const char *evidence;
    } row[] = {{1, false, "rank=0: the dump of step 1 is missing or broken"},
               {1, true, "the dump of step 2 is missing"},
               {2, false, "the dump of step 3 is missing"},
               {2, false, "rank 0 has no event of step 4"}};
    for (int i = 0; i < 4; i++) {
        ls_verdict v = {0};
        int64_t update;
        bool skipped;
        ck_assert_ptr_null(ls_dumps_open_update(&record, i + 1, &update, &skipped, &v));
        ck_assert_int_eq(update, row[i].update);
        ck_assert_int_eq(skipped, row[i].skipped);
        ck_assert_msg(v.code == LS_FAIL && strstr(v.evidence, row[i].evidence) != NULL, "%s",
                      v.evidence);
    }
    ls_record_free(&record);
}

/* Dumps of two steps: the second begins with what the first ended with. */
static const struct followed {
    const char *next, *param; /* tensors' names in the first and in the second step */
    ls_dtype held;            /* in the second; the first ends with f32 */
    float value;              /* the first ends with 1 */
    const char *evidence;     /* "": nothing is wrong, or it cannot be compared */
} followed[] = {
    {"next/w", "param/w", LS_F32, 1, ""},
    {"next/w", "param/w", LS_F32, 2, "step 2 begins with another w than step 1 ended with"},
    {"next/u", "param/w", LS_F32, 2, ""},
    {"next/w", "param/u", LS_F32, 2, ""},
    {"next/w", "param/w", LS_I32, 2, ""},
};

ROWS_TEST(steps_follow_each_other, followed)
{
    const struct followed *row = &followed[_i];
    const ls_shape shape = {1, {1}};
    const float one = 1;
    ls_record job = {.world = 1};
    ls_text_put(job.directory, sizeof job.directory, "%s", folder);
    ls_verdict alone = {0}, v = {0};
    LS_TEXT(dumps, 100, "%s/dump", folder);
    ck_assert_int_eq(mkdir(dumps, 0777), 0);
    for (int step = 1; step <= 2; step++) {
        char path[700];
        ls_safetensors_writer *writer;
        ls_dumps_path(&job, step, 0, path, sizeof path);
        ck_assert_int_eq(ls_safetensors_create(path, &writer), LS_OK);
        ls_safetensors_metadata(writer, "step", "%d", step);
        ls_safetensors_add(writer, step == 1 ? row->next : row->param,
                           step == 1 ? LS_F32 : row->held, &shape, step == 1 ? &one : &row->value);
        if (step == 2) {
            ls_safetensors_add(writer, "next/w", LS_F32, &shape, &one);
        }
        ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
    }
    ls_judge_gradients_follow(&job, 1, &alone); /* of the step before there is no dump */
    ls_judge_gradients_follow(&job, 2, &v);
    ck_assert_int_eq(alone.code, LS_PASS);
    ck_assert_msg(v.code == (row->evidence[0] == '\0' ? LS_PASS : LS_FAIL) &&
                      strstr(v.evidence, row->evidence) != NULL,
                  "row %d: %s", _i, v.evidence);
}

/* A job of three ranks, whose last one's data had ended; `left` is rank 1's dump of step 1. */
static ls_verdict judge_dumps(const char *steps, const char *left)
{
    char folder[64];
    fake_folder(folder, sizeof folder);
    ls_record_step step = {.step = 1}, joined = {.step = 1, .joined = true};
    ls_record_rank rank[] = {{.step_count = 1, .step = &step},
                             {.step_count = 1, .step = &step},
                             {.step_count = 1, .step = &joined}};
    ls_record job = {.world = 3, .rank = rank};
    ls_text_put(job.directory, sizeof job.directory, "%s", folder);
    LS_TEXT(dumps, 100, "%s/dump", folder);
    ck_assert_int_eq(mkdir(dumps, 0777), 0);
    for (int k = 0; k < 2 && left != NULL; k++) {
        LS_TEXT(name, 64, "dump/step000001.rank%d.safetensors", k);
        FILE *file = fake_open(folder, name);
        fprintf(file, "%c%c%c%c%c%c%c%c%s", k == 1 && left[0] == '\0' ? 9 : 2, 0, 0, 0, 0, 0, 0, 0,
                k == 0 ? "{}" : left);
        fclose(file);
    }
    ls_case row = {.job_count = 1};
    ls_text_put(row.job[0].dump_steps, sizeof row.job[0].dump_steps, "%s", steps);
    ls_verdict v = {0};
    ls_judge_gradients(&row, &job, &v);
    ls_path_remove_tree(folder);
    return v;
}

TEST(gradients_need_their_dumps)
{
    static const struct {
        const char *steps, *left;
        ls_verdict_code code;
        const char *evidence;
    } row[] = {
        {"", NULL, LS_WEAK, "no step was dumped"},
        {"1", NULL, LS_FAIL, "rank=0 wrote no dump/step000001.rank0.safetensors"},
        {"1", "{}", LS_FAIL, "step 1: its dumps are whole files, but do not fit each other"},
        {"1", "", LS_FAIL,
         "rank=1 step 1: dump/step000001.rank1.safetensors is not a whole safetensors file: "},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ls_verdict v = judge_dumps(row[i].steps, row[i].left);
        ck_assert_msg(v.code == row[i].code &&
                          strncmp(v.evidence, row[i].evidence, strlen(row[i].evidence)) == 0,
                      "row %d: %d %s", (int)i, (int)v.code, v.evidence);
    }
}

/* What judges read of a dump: groups that must be alike, targets, names. */
TEST(dumps_are_read)
{
    const float one[] = {1, 2}, other[] = {1, 3};
    const int64_t target[] = {7, 9};
    const ls_shape shape = {1, {2}};
    ls_record job = {.world = 1};
    ls_dumpfile *file[2];
    ls_text_put(job.directory, sizeof job.directory, "%s", folder);
    LS_TEXT(dumps, 100, "%s/dump", folder);
    ck_assert_int_eq(mkdir(dumps, 0777), 0);
    ls_verdict v = {0}, missing = {0};
    for (int step = 1; step <= 2; step++) {
        char path[700];
        ls_safetensors_writer *writer;
        ls_dumps_path(&job, step, 0, path, sizeof path);
        ck_assert_int_eq(ls_safetensors_create(path, &writer), LS_OK);
        ls_safetensors_add(writer, step == 1 ? "next/v" : "param/v", LS_F32, &shape, one);
        ls_safetensors_add(writer, step == 1 ? "next/w" : "param/w", LS_F32, &shape,
                           step == 1 ? one : other);
        ls_safetensors_add(writer, "buffer/b", LS_F32, &shape, one);
        ls_safetensors_add(writer, "target", step == 1 ? LS_I64 : LS_F32, &shape,
                           step == 1 ? (const void *)target : one);
        ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
        file[step - 1] = ls_dumps_open(&job, step, 0, &v);
    }
    ck_assert_int_eq(
        ls_dumps_same(file[0], "buffer/", file[1], "buffer/", "step 2", "is another", &v), 1);
    ck_assert_int_eq(ls_dumps_same(NULL, "buffer/", file[1], "buffer/", "", "", &v), 0);
    ck_assert_int_eq(ls_dumps_same(file[0], "buffer/", NULL, "buffer/", "", "", &v), 0);
    ck_assert_int_eq(v.code, LS_PASS);
    ck_assert_int_eq(ls_dumps_same(file[0], "next/", file[1], "param/", "step 2", "is another", &v),
                     2);
    ck_assert_int_eq(v.code, LS_FAIL);
    ck_assert_str_eq(v.evidence, "step 2: param/w is another");
    int at = 0;
    ck_assert_str_eq(ls_dumps_next_param(file[1], &at), "v");
    ck_assert_str_eq(ls_dumps_next_param(file[1], &at), "w");
    ck_assert_ptr_null(ls_dumps_next_param(file[1], &at));
    int64_t read[2] = {0};
    ck_assert(ls_dumps_targets(&job, 1, 0, 2, read) && read[0] == 7 && read[1] == 9);
    ck_assert(!ls_dumps_targets(&job, 1, 0, 3, read) && !ls_dumps_targets(&job, 2, 0, 2, read) &&
              !ls_dumps_targets(&job, 3, 0, 2, read));
    ck_assert_ptr_null(ls_dumps_open_file(&job, "x.safetensors", LS_WEAK, &missing));
    ck_assert_int_eq(missing.code, LS_WEAK);
    ck_assert_str_eq(missing.evidence, "x.safetensors is missing or broken");
    ls_dumpfile_close(file[0]);
    ls_dumpfile_close(file[1]);
}

/* What a job would leave, by its events or else by its command, and has left. */
static const struct announced {
    const char *options, *command;
    int announced, there;
    const char *steps, *missing, *save; /* "": there is none */
    const char *left;                   /* files */
} announced[] = {
    {"", "\"trainer\"", 0, 0, "", "", "", ""},
    {"", "\"trainer\",\"--dump-steps\",\"3,1\",\"--dump-ranks=all\",\"--save=x.pth\"", 4, 0, "1 3 ",
     "dump/step000003.rank0.safetensors", "x.pth", ""},
    {"", "\"trainer\",\"--dump-steps=3,9\",\"--save-dir\",\"/nowhere\",\"4\"", 1, 0, "3 ",
     "dump/step000003.rank0.safetensors", "/nowhere/last.safetensors", ""},
    {"\"dump_steps\":[3,2],\"dump-ranks\":\"all\"", "\"trainer\",\"--dump-steps=1,3\"", 4, 0,
     "2 3 ", "dump/step000003.rank0.safetensors", "", ""},
    {"\"dump-steps\":2,\"dump-ranks\":0,\"save\":\"\"", "\"trainer\",\"--save=x.pth\"", 1, 0, "2 ",
     "dump/step000002.rank0.safetensors", "", ""},
    {"\"dump-steps\":\"0,1\"", "\"trainer\"", 0, 0, "", "", "", ""},
    /* what is there: of any rank and step, and no other file */
    {"\"dump-steps\":\"1,2\",\"dump-ranks\":\"all\"", "", 5, 3, "1 2 7 ",
     "dump/step000002.rank0.safetensors", "",
     "dump/step000007.rank1.safetensors dump/step000001.rank0.safetensors "
     "dump/step000001.rank1.safetensors"},
    {"", "", 0, 0, "", "", "",
     "dump/step000001.rank0.safetensors.part dump/step000001.rank0.pth dump/x"},
    /* the job's folder may have been moved */
    {"\"save\":\"/nowhere/x.pth\"", "", 0, 0, "", "", "", "x.pth"},
    {"\"save\":\"a/x.pth\"", "", 0, 0, "", "", "", "a/x.pth"},
    {"\"save\":\"a/x.pth\"", "", 0, 0, "", "", "a/x.pth", "x.pth"},
    {"\"save\":\"/tmp\"", "", 0, 0, "", "", "", ""},
};

ROWS_TEST(what_is_announced_may_be_missing, announced)
{
    const struct announced *row = &announced[_i];
    char path[700], steps[64] = "";
    for (int k = 0; k < 2; k++) {
        LS_TEXT(name, 32, "rank%d.jsonl", k);
        FILE *file = fake_open(folder, name);
        fprintf(file, "{\"event\":\"start\",\"schema\":1,\"options\":{%s}}\n", row->options);
        for (int i = 1; i <= 3; i++) {
            fprintf(file, "{\"event\":\"step\",\"step\":%d}\n", i);
        }
        fclose(file);
    }
    FILE *file = fake_open(folder, "job.json");
    fprintf(file,
            "{\"schema\":1,\"facts\":{\"world\":2},\"command\":[%s],\"outcome\":{\"state\":"
            "\"done\",\"ranks\":[{\"rank\":0,\"code\":0},{\"rank\":1,\"code\":0}]}}\n",
            row->command);
    fclose(file);
    static const char *const folders[] = {"dump", "a"};
    for (int i = 0; i < 2; i++) {
        LS_TEXT(inside, 100, "%s/%s", folder, folders[i]);
        ck_assert_int_eq(mkdir(inside, 0777), 0);
    }
    LS_TEXT(left, 200, "%s", row->left);
    for (char *name = strtok(left, " "); name != NULL; name = strtok(NULL, " ")) {
        fclose(fake_open(folder, name));
    }
    ls_record record = fake_read(folder);
    ls_announced_dumps dumps = ls_announced_dumps_of(&record);
    ck_assert_int_eq(dumps.announced, row->announced);
    ck_assert_int_eq(dumps.there, row->there);
    for (int i = 0; i < dumps.step_count; i++) {
        ls_text_add(steps, sizeof steps, "%d ", dumps.step[i]);
    }
    ck_assert_str_eq(steps, row->steps);
    ck_assert_str_eq(dumps.missing, row->missing);
    bool missing = ls_announced_save_missing(&record, path, sizeof path);
    ck_assert_msg(missing == (row->save[0] != '\0') && (!missing || strcmp(path, row->save) == 0),
                  "row %d: %s", _i, path);
    free(dumps.step);
    ls_record_free(&record);
}

TEST(the_first_bad_finding_stays)
{
    ls_verdict v;
    memset(&v, 0, sizeof v);
    ls_verdict_fail(&v, "%s", "first");
    ls_verdict_fail(&v, "other");
    ls_verdict_set(&v, LS_WEAK, "second");
    ls_verdict_pass(&v, 4, "all good");
    ck_assert_int_eq(v.code, LS_FAIL);
    ck_assert_str_eq(v.evidence, "first");
}

TEST(what_the_machine_lacks_is_not_blamed_on_the_subject)
{
    const ls_record job[] = {{.state = LS_RECORD_DONE},
                             {.state = LS_RECORD_NOT_STARTED, .why = "no\tmemory"}};
    static const ls_verdict_code codes[] = {LS_FAIL,   LS_CRASH, LS_TIMEOUT,     LS_WEAK,
                                            LS_WAIVED, LS_SKIP,  LS_UNSUPPORTED, LS_PASS};
    for (int i = 0; i < 16; i++) {
        ls_verdict v = {.code = codes[i / 2], .evidence = "what was seen", .cause = "why"};
        bool lacks = i % 2 == 1 && i / 2 < 4;
        ls_verdict_check_lack(job, 1 + i % 2, false, &v);
        ck_assert_int_eq(v.code, lacks ? LS_INFRA : codes[i / 2]);
        ck_assert_str_eq(v.evidence,
                         lacks ? "the job could not be started: no\\x09memory" : "what was seen");
        ck_assert_str_eq(v.cause, lacks ? "" : "why");
    }
}

TEST(the_worst_value_is_shown)
{
    static const ls_tol limit = LS_TOL(2, "any number does here");
    static const struct {
        double value, shown;
        bool within;
    } row[] = {{1, 1, true},
               {0.5, 1, true},
               {2, 2, true},
               {3, 3, false},
               {(double)NAN, (double)NAN, false},
               {4, (double)NAN, false}};
    ls_verdict v = {0};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ck_assert_int_eq(ls_verdict_worst(&v, row[i].value, &limit, "x"), row[i].within);
        ck_assert(v.measured && v.limit == 2 && strcmp(v.unit, "x") == 0);
        ck_assert(v.value == row[i].shown || (isnan(v.value) && isnan(row[i].shown)));
    }
    ck_assert_str_eq(v.limit_from, limit.why);
}

TEST(a_pass_carries_what_it_compared)
{
    ls_verdict out = {0};
    ls_verdict_pass(&out, 3, "3 steps");
    ls_verdict_pass(&out, 4, "4 digests");
    ls_verdict_close(&out);
    ck_assert_int_eq(out.code, LS_PASS);
    ck_assert_int_eq(out.compared, 7);
    ck_assert_str_eq(out.evidence, "4 digests");
    ls_verdict_pass(&out, 0, "%d tensors", 0); /* a part of it */
    ck_assert_int_eq(out.code, LS_WEAK);
    ck_assert_str_eq(out.evidence, "nothing was compared: 0 tensors");
}

TEST(a_judge_that_concludes_nothing_is_weak)
{
    ls_verdict out = {0};
    ls_verdict_close(&out);
    ck_assert_int_eq(out.code, LS_WEAK);
    ck_assert_str_eq(out.evidence, "the judge compared nothing");
    out = (ls_verdict){.code = LS_SKIP};
    ls_verdict_close(&out);
    ck_assert_int_eq(out.code, LS_SKIP);
}

LOOP_TEST(a_line_that_passes_over_nothing_has_not_passed, 6)
{
    static const struct {
        const char *line;
        ls_verdict_code code;
    } lines[] = {{"{\"verdict\":\"PASS\",\"compared\":1}", LS_PASS},
                 {"{\"verdict\":\"PASS\"}", LS_PASS}, /* of an older version */
                 {"{\"verdict\":\"PASS\",\"compared\":0}", LS_WEAK},
                 {"{\"verdict\":\"PASS\",\"compared\":\"many\"}", LS_WEAK},
                 {"{\"verdict\":\"FAIL\",\"compared\":0}", LS_FAIL},
                 {"{\"verdict\":\"GOOD\"}", LS_VERDICT_CODES}};
    cJSON *json = ls_json_parse(lines[_i].line, NULL);
    ck_assert_int_eq(ls_verdict_code_in(json), lines[_i].code);
    cJSON_Delete(json);
}

TEST(gradients_that_stayed_local_are_never_right)
{
    ls_record_rank rank;
    memset(&rank, 0, sizeof rank);
    rank.start = cJSON_Parse("{\"options\":{\"no-reduce\":true}}");
    ls_record record;
    memset(&record, 0, sizeof record);
    record.state = LS_RECORD_DONE;
    record.world = 1;
    record.rank = &rank;
    ls_verdict v;
    memset(&v, 0, sizeof v);
    ck_assert(ls_verdict_of_outcome(&record, &v));
    ck_assert_int_eq(v.code, LS_FAIL);
    ck_assert_ptr_nonnull(strstr(v.evidence, "--no-reduce"));
    static const struct {
        ls_record_state state;
        ls_verdict_code code;
    } others[] = {{LS_RECORD_UNKNOWN, LS_FAIL},
                  {LS_RECORD_TIMED_OUT, LS_TIMEOUT}, /* how it ended comes first */
                  {LS_RECORD_STOPPED, LS_SKIP},
                  {LS_RECORD_NOT_STARTED, LS_INFRA}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        memset(&v, 0, sizeof v);
        record.state = others[i].state;
        ck_assert(ls_verdict_of_outcome(&record, &v));
        ck_assert_int_eq(v.code, others[i].code);
    }
    cJSON_Delete(rank.start);
}

/* Verdicts are written as letters: a pass, waived, and what is bad. */
static ls_verdict_code code_of(char letter)
{
    static const struct {
        char letter;
        ls_verdict_code code;
    } codes[] = {{'p', LS_PASS},  {'v', LS_WAIVED},      {'F', LS_FAIL},
                 {'C', LS_CRASH}, {'T', LS_TIMEOUT},     {'W', LS_WEAK},
                 {'S', LS_SKIP},  {'U', LS_UNSUPPORTED}, {'I', LS_INFRA}};
    size_t i = 0;
    while (codes[i].letter != letter) {
        i++;
        ck_assert_uint_lt(i, sizeof codes / sizeof *codes);
    }
    return codes[i].code;
}

/* A run of cases of `correct` and of `manners`, in a claim of `all` cases, and of one outside the
 * claim that fails: counted, no more. */
static ls_headline headline_of(const char *correct, const char *manners, int all, bool gate)
{
    const ls_case_settings settings = {.seed = 0};
    ls_verdict verdict[8] = {0};
    ls_run run = {.claim_name = "x", .claim_cases = all, .gate_manners = gate, .verdict = verdict};
    ls_select_add(&run.claim, "in.*", "");
    ls_select_add(&run.manners, "Q7", "");
    int corrects = (int)strlen(correct), count = corrects + (int)strlen(manners);
    for (int i = 0; i < count; i++) {
        const ls_row row = {.requirement = i < corrects ? "G1" : "Q7"};
        ls_rows_format(&run.cases, &settings, &row, "in.case%d: w1", i);
        verdict[i].code = code_of(i < corrects ? correct[i] : manners[i - corrects]);
    }
    ls_rows_format(&run.cases, &settings, &(ls_row){.requirement = "G1"}, "out.case: w1");
    verdict[count].code = LS_FAIL;
    ls_headline headline;
    ls_headline_decide(&run, &headline);
    ls_rows_free(&run.cases);
    ls_select_free(&run.claim);
    ls_select_free(&run.manners);
    return headline;
}

/* Cases of manners have a line of their own, which decides the exit code where the gate asks for
 * it, and of a run that has no others. */
static const struct {
    const char *correct, *manners;
    int all;
    bool gate;
    ls_headline_correct value;
    int exit;
    const char *why, *manners_why;
} manners[] = {
    {"p", "pp", 3, false, LS_CORRECT_YES, 0, "claim x: 1 of 1 cases",
     "usage, refusals and their words"},
    {"p", "pF", 3, false, LS_CORRECT_YES, 0, "claim x: 1 of 1 cases",
     "usage, refusals and their words, 1 FAIL; the exit code leaves them out "
     "without --gate manners"},
    {"p", "pF", 3, true, LS_CORRECT_YES, LS_ERR_CHECK, "claim x: 1 of 1 cases",
     "usage, refusals and their words, 1 FAIL; they decide the exit code"},
    {"F", "pp", 3, false, LS_CORRECT_NO, LS_ERR_CHECK, "claim x: 0 of 1 cases, 1 FAIL",
     "usage, refusals and their words"},
    {"p", "pI", 3, true, LS_CORRECT_YES, LS_ERR_INFRA, "claim x: 1 of 1 cases",
     "usage, refusals and their words, 1 INFRA; they decide the exit code"},
    {"pp", "pF", 76, false, LS_CORRECT_NOT_SHOWN, 0, "claim x: 4 of 76 cases selected, 3 passed",
     "usage, refusals and their words, 1 FAIL; the exit code leaves them out "
     "without --gate manners"},
    {"", "pp", 76, false, LS_CORRECT_NOT_SHOWN, 0, "claim x: 2 of 76 cases selected, all passed",
     "usage, refusals and their words"},
    {"", "pF", 76, false, LS_CORRECT_NOT_SHOWN, LS_ERR_CHECK,
     "claim x: 2 of 76 cases selected, 1 passed",
     "usage, refusals and their words, 1 FAIL; they decide the exit code"},
};

ROWS_TEST(manners_are_not_correctness, manners)
{
    ls_headline h =
        headline_of(manners[_i].correct, manners[_i].manners, manners[_i].all, manners[_i].gate);
    ck_assert_int_eq(h.correct, manners[_i].value);
    ck_assert_int_eq(ls_headline_exit(&h), manners[_i].exit);
    LS_TEXT(why, 300, "%s%s", manners[_i].why, "; 0 of 1 outside it");
    ck_assert_str_eq(h.correct_why, why);
    ck_assert_str_eq(h.manners_why, manners[_i].manners_why);
    cJSON *json = ls_headline_json(&h);
    ck_assert_str_eq(ls_json_string(cJSON_GetObjectItem(json, "manners"), "value", ""),
                     strcmp(manners[_i].manners, "pp") == 0 ? "2 of 2" : "1 of 2");
    cJSON_Delete(json);
}

TEST(correct_needs_every_case_of_the_claim)
{
    ls_headline h = headline_of("pvp", "", 3, false);
    ck_assert_int_eq(h.correct, LS_CORRECT_YES);
    ck_assert_int_eq(h.passed, 3);
    ck_assert_int_eq(h.failed, 0);
    ck_assert_ptr_nonnull(
        strstr(h.correct_why, "3 of 3 cases, 1 of them waived; 0 of 1 outside it"));
    static const char *const wrong[] = {"pFW", "pCW", "pTW"}, *const open[] = {"pW", "pS", "pU",
                                                                               "pI"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        h = headline_of(wrong[i], "", 3, false);
        ck_assert_int_eq(h.correct, LS_CORRECT_NO);
        ck_assert_int_eq(h.failed, 2);
    }
    for (size_t i = 0; i < sizeof open / sizeof *open; i++) {
        h = headline_of(open[i], "", 2, false);
        ck_assert_int_eq(h.correct, LS_CORRECT_NOT_SHOWN);
        ck_assert_int_eq(ls_headline_exit(&h), open[i][1] == 'I' ? LS_ERR_INFRA : LS_ERR_CHECK);
    }
}

/* A part of the claim that passed ends with 0 and shows nothing of the claim. */
static const struct {
    const char *codes;
    int exit;
    ls_headline_correct correct;
    const char *why;
} part[] = {
    {"p", 0, LS_CORRECT_NOT_SHOWN, "claim x: 1 of 76 cases selected, all passed; "},
    {"pv", 0, LS_CORRECT_NOT_SHOWN,
     "claim x: 2 of 76 cases selected, all passed, 1 of them waived; "},
    {"pW", LS_ERR_CHECK, LS_CORRECT_NOT_SHOWN,
     "claim x: 2 of 76 cases selected, 1 passed, 1 WEAK; "},
    {"ppF", LS_ERR_CHECK, LS_CORRECT_NO, "claim x: 3 of 76 cases selected, 2 passed, 1 FAIL; "},
    {"pI", LS_ERR_INFRA, LS_CORRECT_NOT_SHOWN,
     "claim x: 2 of 76 cases selected, 1 passed, 1 INFRA; "},
    {"", LS_ERR_CHECK, LS_CORRECT_NOT_SHOWN, "claim x: 0 of 76 cases selected; "},
};

ROWS_TEST(a_part_of_the_claim_is_no_yes, part)
{
    ls_headline h = headline_of(part[_i].codes, "", 76, false);
    ck_assert_int_eq(h.correct, part[_i].correct);
    ck_assert_msg(strncmp(h.correct_why, part[_i].why, strlen(part[_i].why)) == 0, "%s",
                  h.correct_why);
    ck_assert_int_eq(ls_headline_exit(&h), part[_i].exit);
}

/* A case that the claim has where it is offered, and that the trainer does not offer, is not of the
 * claim; one that fails is. */
TEST(what_is_not_offered_is_not_of_the_claim)
{
    static const struct {
        ls_verdict_code optional;
        ls_headline_correct correct;
        const char *why;
    } run_of[] = {
        {LS_UNSUPPORTED, LS_CORRECT_YES,
         "claim x: 1 of 1 cases; 1 that it has where offered are not"},
        {LS_PASS, LS_CORRECT_YES, "claim x: 2 of 2 cases"},
        {LS_FAIL, LS_CORRECT_NO, "claim x: 1 of 2 cases, 1 FAIL"},
        {LS_WEAK, LS_CORRECT_NOT_SHOWN, "claim x: 1 of 2 cases, 1 WEAK"},
    };
    for (size_t i = 0; i < sizeof run_of / sizeof *run_of; i++) {
        const ls_case_settings settings = {.seed = 0};
        ls_verdict verdict[2] = {{.code = LS_PASS}, {.code = run_of[i].optional}};
        ls_run run;
        memset(&run, 0, sizeof run);
        ls_rows_format(&run.cases, &settings, &(ls_row){.requirement = "G1"}, "in.always: w1");
        ls_rows_format(&run.cases, &settings, &(ls_row){.requirement = "G1"}, "in.clip: w1");
        run.verdict = verdict;
        run.claim_cases = 2;
        ls_text_put(run.claim_name, sizeof run.claim_name, "x");
        ls_select_add(&run.claim, "in.always", "");
        ls_select_add(&run.claim, "in.clip", "where offered");
        ls_headline h;
        ls_headline_decide(&run, &h);
        ck_assert_int_eq(h.correct, run_of[i].correct);
        ck_assert_str_eq(h.correct_why, run_of[i].why);
        ck_assert_int_eq(ls_headline_in_claim(&run, 1), run_of[i].optional != LS_UNSUPPORTED);
        ls_rows_free(&run.cases);
        ls_select_free(&run.claim);
    }
}

TEST(no_case_shows_nothing)
{
    ls_headline h = headline_of("", "", 0, false);
    ck_assert_int_ne(h.correct, LS_CORRECT_YES);
    ck_assert_int_eq(h.passed, 0);
}

TEST_MAIN("verdict", .before = fake_begin, .after = fake_end)
