/* One folder of a job, read strictly (for judging) and leniently (for reporting). */
#include "suite/suite.h"
#include "suite/unit/harness/scratch.h"
#include "suite/unit/run_suite.h"

static void write_events(const char *text)
{
    write_text("rank0.jsonl", text);
}

static ls_record read_as(ls_record_mode mode)
{
    ls_record record;
    ck_assert_int_eq(ls_record_read(scratch, mode, &record), LS_OK);
    return record;
}

#define START \
    "{\"event\":\"start\",\"schema\":1,\"options\":{\"opt-level\":\"O2\"},\"threads\":3}\n"
#define STEP(number) "{\"event\":\"step\",\"step\":" #number ",\"loss\":1,\"ms\":{\"total\":5}}\n"

static const struct {
    const char *events;
    int strict, lenient; /* steps that are read */
    bool broken;         /* also where it is read leniently */
} endings[] = {
    {START STEP(1) "{\"event\":\"st", 1, 1, false},  /* a cut last line */
    {START STEP(1) STEP(3) STEP(4), 1, 3, false},    /* a gap */
    {START STEP(1) "epoch 1\n" STEP(2), 1, 1, true}, /* no JSON */
};

ROWS_TEST(what_ends_a_reading, endings)
{
    write_events(endings[_i].events);
    ls_record strict = read_as(LS_RECORD_STRICT), lenient = read_as(LS_RECORD_LENIENT);
    ck_assert_int_eq(strict.rank[0].step_count, endings[_i].strict);
    ck_assert_int_ne(strict.broken[0], '\0');
    ck_assert_int_eq(lenient.rank[0].step_count, endings[_i].lenient);
    ck_assert_int_eq(lenient.broken[0] != '\0', endings[_i].broken);
    ls_record_free(&strict);
    ls_record_free(&lenient);
}

/* Its first start's steps 1 to 3, its end included, then a later start from step 3 on. */
#define AGAIN(restart, first) \
    "{\"event\":\"start\",\"schema\":1,\"restart\":" #restart ",\"first_step\":" #first "}\n"
#define EPOCH(step) "{\"event\":\"epoch\",\"step\":" #step "}\n"

static const struct {
    const char *events;
    int steps, epochs;
    bool broken;
} restarts[] = {
    {START STEP(1) STEP(2) EPOCH(2) STEP(3) EPOCH(3) "{\"event\":\"end\",\"code\":10}\n" AGAIN(1, 3)
         STEP(3) EPOCH(3) STEP(4),
     4, 2, false},
    {START STEP(1) AGAIN(1, 1) STEP(1) AGAIN(2, 2) STEP(2), 2, 0, false},
    {START AGAIN(1, 1) STEP(1), 1, 0, false},
    {START STEP(1) AGAIN(1, 3) STEP(3), 1, 0, true},
    {START STEP(1) AGAIN(0, 2) STEP(2), 1, 0, true},
};

ROWS_TEST(steps_of_a_restart_replace_those_before, restarts)
{
    write_events(restarts[_i].events);
    ls_record record = read_as(LS_RECORD_STRICT);
    ck_assert_msg((record.broken[0] != '\0') == restarts[_i].broken, "%s", record.broken);
    ck_assert_int_eq(record.rank[0].step_count, restarts[_i].steps);
    ck_assert_int_eq(cJSON_GetArraySize(record.rank[0].epochs), restarts[_i].epochs);
    ck_assert(!record.rank[0].ended);
    for (int i = 0; i < record.rank[0].step_count; i++) {
        ck_assert_int_eq(record.rank[0].step[i].step, i + 1);
    }
    ls_record_free(&record);
}

TEST(without_any_file_only_lenient_reading_has_a_record)
{
    ls_record record;
    ck_assert_int_eq(ls_record_read(scratch, LS_RECORD_STRICT, &record), LS_ERR_USAGE);
    record = read_as(LS_RECORD_LENIENT);
    ck_assert_int_eq(record.state, LS_RECORD_UNKNOWN);
    ck_assert_int_eq(record.spec.role, LS_ROLE_UNKNOWN);
    ck_assert_int_eq(record.world, 0);
    ls_record_free(&record);
}

/* The number of ranks decides how many files are read. */
TEST(a_world_that_is_none_is_refused)
{
    static const char *const worlds[] = {"2e9", "1e300", "-1", "1.5", "1025", "\"2\"", "null"};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        write_events(START STEP(1));
        FILE *file = create("job.json");
        fprintf(file,
                "{\"facts\":{\"world\":%s,\"batch_size\":2e9,\"image_size\":1e300,\"steps\":-1},"
                "\"outcome\":{\"first_rank\":1e300,\"code\":-1e300}}",
                worlds[i]);
        fclose(file);
        ls_record record;
        ck_assert_int_eq(ls_record_read(scratch, LS_RECORD_STRICT, &record), LS_ERR_USAGE);
        record = read_as(LS_RECORD_LENIENT);
        ck_assert_int_eq(record.world, 0);
        ck_assert_int_eq(record.spec.world, 0);
        ck_assert_int_eq(record.spec.batch_size, 0);
        ck_assert_int_eq(record.spec.image_size, 0);
        ck_assert_int_eq(record.spec.steps, 0);
        ck_assert_int_eq(record.first_rank, -1);
        ls_record_free(&record);
    }
}

TEST(events_are_summed_up_by_rank)
{
    write_events(
        START "{\"event\":\"buckets\",\"buckets\":[{\"bytes\":100},{\"bytes\":20}]}\n" STEP(
            1) "{\"event\":\"graph\",\"step\":1,\"cuda_graph\":\"no room\"}\n"
               "{\"event\":\"audit\",\"elements\":8,\"bad\":0}\n"
               "{\"event\":\"audit\",\"elements\":8,\"bad\":1}\n"
               "{\"event\":\"audit\",\"elements\":0,\"bad\":0}\n"
               "{\"event\":\"audit\",\"elements\":8,\"bad\":0,\"unaudited\":\"update\"}\n");
    ls_record record = read_as(LS_RECORD_STRICT);
    const ls_record_rank *rank = &record.rank[0];
    ck_assert_str_eq(record.broken, "");
    ck_assert_str_eq(rank->level, "O2");
    ck_assert_int_eq(rank->threads, 3);
    ck_assert_str_eq(rank->no_graph, "no room");
    ck_assert(rank->reduced_bytes == 120);
    ck_assert_int_eq(rank->audits, 4);
    ck_assert_int_eq(rank->bad_audits, 3);
    ck_assert(rank->step[0].total_ms == 5);
    ck_assert(isnan(rank->step[0].lr));
    ls_record_free(&record);
}

static ls_status count_event(void *context, const cJSON *event, int line)
{
    (void)line;
    *(int *)context += ls_json_int(event, "step", 0);
    return LS_OK;
}

/* Its time is in the step of the other ranks, too, which wait for it. */
TEST(a_step_that_one_rank_audits_is_audited_on_all)
{
    write_events(START STEP(1) STEP(2));
    write_text("rank1.jsonl", START STEP(1) "{\"event\":\"step\",\"step\":2,\"audited\":true}\n");
    ls_record record = read_as(LS_RECORD_STRICT);
    ck_assert_str_eq(record.broken, "");
    ck_assert_int_eq(record.world, 2);
    for (int rank = 0; rank < 2; rank++) {
        ck_assert(!record.rank[rank].step[0].audited);
        ck_assert(record.rank[rank].step[1].audited);
    }
    ls_record_free(&record);
}

TEST(events_of_one_name_are_visited)
{
    int sum = 0;
    write_events(START STEP(1) STEP(2) "{\"event\":\"trace\",\"step\":40}\n");
    ls_record record = read_as(LS_RECORD_STRICT);
    ck_assert_int_eq(ls_record_each_event(&record, 0, "step", count_event, &sum), LS_OK);
    ck_assert_int_eq(sum, 3);
    ls_record_free(&record);
}

/* ---- every member -----------------------------------------------------------------------------
 */

#define FULL_STEP                                                                                 \
    "{\"event\":\"step\",\"step\":1,\"loss\":1.5,\"loss_bits\":\"0x3fc00000\",\"loss_scale\":64," \
    "\"loss_scale_next\":32,\"lr\":0.25,\"skipped\":true,\"audited\":true,\"images\":7,"          \
    "\"at_ns\":99,\"ms\":{\"total\":1,\"data\":2,\"forward\":3,\"backward\":4,\"comm\":5,"        \
    "\"comm_exposed\":6,\"optimizer\":7,\"instrument\":8},\"digest\":{\"param\":\"a\","           \
    "\"master\":\"b\",\"state\":\"c\",\"scaler\":\"d\",\"buffer\":\"e\",\"grad\":\"f\"}}\n"

TEST(every_member_of_a_step)
{
    write_events("{\"event\":\"start\",\"schema\":1}\n" FULL_STEP
                 "{\"event\":\"step\",\"step\":2,\"digest\":{\"grad\":\"9\"}}\n");
    ls_record record = read_as(LS_RECORD_STRICT);
    ck_assert_int_eq(record.rank[0].step_count, 2);
    const ls_record_step *s = &record.rank[0].step[0];
    ck_assert(s->step == 1 && s->loss == 1.5 && s->loss_scale == 64 && s->loss_scale_next == 32);
    ck_assert(s->lr == 0.25 && s->skipped && s->skip_given && s->audited && s->images == 7);
    ck_assert(s->at_ns == 99 && s->total_ms == 1 && s->data_ms == 2 && s->forward_ms == 3);
    ck_assert(s->backward_ms == 4 && s->comm_ms == 5 && s->exposed_ms == 6);
    ck_assert(s->optimizer_ms == 7 && s->instrument_ms == 8);
    ck_assert_str_eq(s->loss_bits, "0x3fc00000");
    ck_assert(!s->loss_lost);
    ck_assert_uint_eq(s->digest_mask, 63);
    static const char *const names[] = {"param", "master", "state", "scaler", "buffer", "grad"};
    for (int i = 0; i < LS_RECORD_DIGESTS; i++) {
        ck_assert(s->digest[i][0] == 'a' + i && s->digest[i][1] == '\0');
        ck_assert_str_eq(ls_record_digest_name((ls_record_digest)i), names[i]);
    }
    s++; /* nothing given */
    ck_assert(s->step == 2 && isnan(s->loss) && isnan(s->loss_scale) && isnan(s->loss_scale_next));
    ck_assert(isnan(s->lr) && !s->skipped && !s->skip_given && !s->audited && s->images == 0);
    ck_assert(isnan(s->at_ns) && isnan(s->total_ms) && isnan(s->data_ms) && isnan(s->forward_ms));
    ck_assert(isnan(s->backward_ms) && isnan(s->comm_ms) && isnan(s->exposed_ms));
    ck_assert(isnan(s->optimizer_ms) && isnan(s->instrument_ms));
    ck_assert_str_eq(s->loss_bits, "");
    ck_assert(!s->loss_lost);
    ck_assert_uint_eq(s->digest_mask, 1u << LS_RECORD_GRAD);
    ck_assert_ptr_eq(ls_record_find_step(&record.rank[0], 1), &record.rank[0].step[0]);
    ck_assert_ptr_eq(ls_record_find_step(&record.rank[0], 2), s);
    ck_assert_ptr_null(ls_record_find_step(&record.rank[0], 3));
    ls_record_free(&record);
}

TEST(losses_that_are_lost)
{
    static const struct {
        const char *members;
        bool lost;
    } rows[] = {
        {"\"loss\":1", false},
        {"\"loss\":null", true},
        {"\"loss\":1e999", true},
        {"\"loss\":-1e999", true},
        {"\"loss\":1,\"loss_bits\":\"0x7f800000\"", true},
        {"\"loss\":1,\"loss_bits\":\"ffc00001\"", true},
        {"\"loss\":1,\"loss_bits\":\"0x7f7fffff\"", false},
        {"\"loss\":1,\"loss_bits\":\"0xff000000\"", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        LS_TEXT(text, 300, START "{\"event\":\"step\",\"step\":1,%s}\n", rows[i].members);
        write_events(text);
        ls_record record = read_as(LS_RECORD_STRICT);
        ck_assert_str_eq(record.broken, "");
        ck_assert_msg(record.rank[0].step[0].loss_lost == rows[i].lost, "%s", rows[i].members);
        ls_record_free(&record);
    }
}

TEST(every_member_of_a_rank)
{
    write_events("{\"event\":\"start\",\"schema\":1,\"threads\":3,\"device\":\"a GPU\","
                 "\"cuda_graph\":true,\"options\":{\"opt-level\":\"O3\"}}\n"
                 "{\"event\":\"buckets\",\"buckets\":[{\"bytes\":1}]}\n"
                 "{\"event\":\"buckets\",\"buckets\":[{\"bytes\":100},{\"bytes\":20},{}]}\n"
                 "{\"event\":\"audit\",\"elements\":1,\"bad\":0}\n"
                 "{\"event\":\"end\",\"code\":7}\n");
    write_text(
        "rank1.jsonl",
        "{\"event\":\"unsupported\",\"schema\":1,\"option\":\"--x\"}\n{\"event\":\"end\"}\n");
    write_text("rank2.jsonl", START STEP(5) STEP(6) STEP(7) STEP(8) STEP(9));
    ls_record record = read_as(LS_RECORD_STRICT);
    const ls_record_rank *r = &record.rank[0];
    ck_assert_str_eq(record.broken, "");
    ck_assert_int_eq(record.world, 3);
    ck_assert(r->has_events && r->start != NULL && r->buckets != NULL && r->unsupported == NULL);
    ck_assert(r->threads == 3 && r->graph_reported && r->reduced_bytes == 120);
    ck_assert(r->audits == 1 && r->bad_audits == 0 && r->step_count == 0);
    ck_assert(r->ended && r->end_code == 7 && r->code == -1 && r->signal == 0);
    ck_assert(isnan(r->rss_bytes_max));
    ck_assert_str_eq(r->device, "a GPU");
    ck_assert_str_eq(r->level, "O3");
    ck_assert_str_eq(r->no_graph, "");
    r++;
    ck_assert(r->has_events && r->start == NULL && r->buckets == NULL && r->unsupported != NULL);
    ck_assert_str_eq(ls_json_string(r->unsupported, "option", ""), "--x");
    ck_assert(r->threads == 0 && !r->graph_reported && isnan(r->reduced_bytes));
    ck_assert(r->audits == 0 && r->bad_audits == 0 && r->ended && r->end_code == -1);
    r++; /* a run that was resumed begins with a later step */
    ck_assert(!r->ended && !r->graph_reported && r->step_count == 5);
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(r->step[i].step, 5 + i);
    }
    ls_record_free(&record);
    ck_assert(record.world == 0 && record.rank == NULL);
}

TEST(every_member_of_a_job)
{
    write_events(START);
    write_text(
        "job.json",
        "{\"label\":\"O2, 3 ranks\",\"facts\":{\"world\":3,\"role\":\"sdc\",\"level\":\"O1\","
        "\"oversubscribed\":true,\"half_emulated\":true,\"checked\":true,\"rung\":2,"
        "\"audited\":true},\"outcome\":{\"state\":\"killed\",\"first_rank\":2,\"code\":137,"
        "\"signal\":9,\"seconds\":1.5,\"started_ns\":12,\"why\":\"host x: y\",\"ranks\":["
        "{\"rank\":0,\"code\":10,\"signal\":1,\"rss_bytes_max\":123},{\"rank\":2,"
        "\"code\":137,\"signal\":9},{\"rank\":3,\"code\":1},{\"rank\":-1,\"code\":1}]}}");
    ls_record record = read_as(LS_RECORD_STRICT);
    ck_assert_str_eq(record.directory, scratch);
    ck_assert_str_eq(record.id, strrchr(scratch, '/') + 1);
    ck_assert_str_eq(record.label, "O2, 3 ranks");
    ck_assert_str_eq(record.why, "host x: y");
    ck_assert(record.world == 3 && record.spec.world == 3 && record.spec.role == LS_ROLE_SDC);
    ck_assert(record.oversubscribed && record.half_emulated && record.judged && record.checked);
    ck_assert(record.gradient_check == 2 && record.audited && record.first_rank == 2);
    ck_assert(record.code == 137 && record.signal == 9 && record.seconds == 1.5);
    ck_assert(record.started_ns == 12 && record.job != NULL && ls_record_facts(&record) != NULL);
    static const struct {
        bool events;
        int code, signal;
        double rss;
    } ranks[] = {{true, 10, 1, 123}, {false, -1, 0, NAN}, {false, 137, 9, NAN}};
    for (int k = 0; k < 3; k++) {
        const ls_record_rank *r = &record.rank[k];
        ck_assert(r->has_events == ranks[k].events && r->code == ranks[k].code);
        ck_assert(r->signal == ranks[k].signal && r->end_code == -1);
        ck_assert(r->rss_bytes_max == ranks[k].rss || (isnan(r->rss_bytes_max) && k > 0));
    }
    ls_record_free(&record);
    /* half of O0 emulates nothing; absent facts */
    write_text("job.json",
               "{\"facts\":{\"level\":\"O0\",\"half_emulated\":true,\"checked\":false}}");
    record = read_as(LS_RECORD_STRICT);
    ck_assert(!record.half_emulated && record.judged && !record.checked && !record.oversubscribed);
    ck_assert(record.world == 1 && record.gradient_check == 0 && !record.audited);
    ck_assert(record.first_rank == -1 && record.code == 0 && record.signal == 0);
    ck_assert(isnan(record.seconds) && isnan(record.started_ns) && record.rank[0].code == -1);
    ck_assert_str_eq(record.label, record.id);
    ck_assert_str_eq(record.why, "");
    ls_record_free(&record);
    write_text("job.json", "{\"facts\":{\"world\":0}}");
    record = read_as(LS_RECORD_STRICT);
    ck_assert(record.world == 0 && !record.judged);
    ls_record_free(&record);
    write_text("job.json", "[]");
    ck_assert_int_eq(ls_record_read(scratch, LS_RECORD_STRICT, &record), LS_ERR_USAGE);
    record = read_as(LS_RECORD_LENIENT);
    ck_assert_int_eq(record.world, 1);
    ls_record_free(&record);
    write_text("job.json", "{");
    ck_assert_int_eq(ls_record_read(scratch, LS_RECORD_STRICT, &record), LS_ERR_INFRA);
}

TEST(states_of_an_outcome)
{
    static const struct {
        const char *text;
        ls_record_state state;
    } rows[] = {{"done", LS_RECORD_DONE},
                {"failed", LS_RECORD_FAILED},
                {"killed", LS_RECORD_KILLED},
                {"timed out", LS_RECORD_TIMED_OUT},
                {"time limit", LS_RECORD_TIMED_OUT},
                {"stopped", LS_RECORD_STOPPED},
                {"not started", LS_RECORD_NOT_STARTED},
                {"", LS_RECORD_UNKNOWN},
                {"another", LS_RECORD_UNKNOWN}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_events(START);
        LS_TEXT(text, 200, "{\"facts\":{\"world\":1},\"outcome\":{\"state\":\"%s\"}}",
                rows[i].text);
        write_text("job.json", text);
        ls_record record = read_as(LS_RECORD_STRICT);
        ck_assert_msg(record.state == rows[i].state, "'%s' is read as %d", rows[i].text,
                      record.state);
        ls_record_free(&record);
    }
}

/* ---- lines that break the protocol --------------------------------------------------------------
 */

#define LONG "123456789 123456789 123456789 123456789 123456789 "

static const struct {
    const char *events, *broken; /* broken: without the file's name; NULL: none */
} breaches[] = {
    {START STEP(1), NULL},
    {START STEP(1) "{\"event\":\"end\"}\n", NULL},
    {START "{\"event\":\"another\",\"step\":\"x\",\"loss\":true}\n", NULL},
    {"", NULL},
    {"\n", "line 1 is no JSON: ''"},
    {"{}\n", "line 1 is no object with an \"event\": '{}'"},
    {"[]\n", "line 1 is no object with an \"event\": '[]'"},
    {START "x\n", "line 2 is no JSON: 'x'"},
    {START "{\"loss\":NaN}\n",
     "line 2 is no JSON (NaN and Infinity are none: write null): '{\"loss\":NaN}'"},
    {START "{\"loss\":-Infinity}\n",
     "line 2 is no JSON (NaN and Infinity are none: write null): '{\"loss\":-Infinity}'"},
    {START "{\"event\":\"step\"", "line 2 ends in the middle: '{\"event\":\"step\"'"},
    {START LONG LONG "x\n", "line 2 is no JSON: '" LONG LONG "x'"},
    {START LONG LONG "xyzabc\n", "line 2 is no JSON: '" LONG LONG "...'"},
    {START "{\"event\":\"end\"}\n{\"event\":\"x\"}\n",
     "line 3 comes after the end event: '{\"event\":\"x\"}'"},
    {"{\"event\":\"start\"}\n",
     "line 1 is the first event and has no \"schema\" from 1 to 2: '{\"event\":\"start\"}'"},
    {"{\"event\":\"start\",\"schema\":3}\n",
     "line 1 is the first event and has no \"schema\" from 1 to 2: "
     "'{\"event\":\"start\",\"schema\":3}'"},
    {"{\"event\":\"step\",\"schema\":1}\n",
     "line 1 comes before the start event: '{\"event\":\"step\",\"schema\":1}'"},
    {START "{\"event\":\"start\",\"schema\":1}\n",
     "line 2 is a second start event: '{\"event\":\"start\",\"schema\":1}'"},
    {START STEP(0), "line 2 is step 0 after step 0: '{\"event\":\"step\",\"step\":0,\"loss\":1,"
                    "\"ms\":{\"total\":5}}'"},
    {START STEP(7) STEP(7), "line 3 is step 7 after step 7: '{\"event\":\"step\",\"step\":7,"
                            "\"loss\":1,\"ms\":{\"total\":5}}'"},
    {START STEP(2) STEP(1), "line 3 is step 1 after step 2: '{\"event\":\"step\",\"step\":1,"
                            "\"loss\":1,\"ms\":{\"total\":5}}'"},
    {START "{\"event\":\"unsupported\"}\n",
     "line 2 has \"option\" that is not a string: '{\"event\":\"unsupported\"}'"},
    {"{\"event\":\"start\",\"schema\":1,\"options\":[]}\n",
     "line 1 has \"options\" that is not an object: '{\"event\":\"start\",\"schema\":1,"
     "\"options\":[]}'"},
};

ROWS_TEST(every_breach_is_named, breaches)
{
    write_events(breaches[_i].events);
    ls_record record = read_as(LS_RECORD_STRICT);
    LS_TEXT(want, 400, "rank0.jsonl %s", breaches[_i].broken == NULL ? "" : breaches[_i].broken);
    ck_assert_str_eq(record.broken, breaches[_i].broken == NULL ? "" : want);
    ls_record_free(&record);
}

/* Of each member one value of its type and one of another. */
TEST(every_member_has_its_type)
{
    static const struct {
        const char *name, *good, *bad, *type;
    } rows[] = {
        {"step", "1", "\"1\"", "a whole number"},
        {"step", "9007199254740992", "1.5", "a whole number"},
        {"step", "1", "-1", "a whole number"},
        {"step", "1", "9007199254740994", "a whole number"},
        {"step", "1", "null", "a whole number"},
        {"loss", "null", "\"x\"", "a number"},
        {"loss", "2.5", "true", "a number"},
        {"loss_bits", "\"x\"", "1", "a string"},
        {"loss_scale", "1", "\"x\"", "a number"},
        {"loss_scale_next", "null", "[]", "a number"},
        {"skipped", "false", "0", "true or false"},
        {"audited", "true", "\"true\"", "true or false"},
        {"lr", "0", "{}", "a number"},
        {"images", "0", "0.5", "a whole number"},
        {"digest", "{}", "\"x\"", "an object"},
        {"ms", "{}", "1", "an object"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool step = strcmp(rows[i].name, "step") == 0;
        for (int bad = 0; bad < 2; bad++) {
            LS_TEXT(line, 200, "{\"event\":\"step\",%s\"%s\":%s}", step ? "" : "\"step\":1,",
                    rows[i].name, bad ? rows[i].bad : rows[i].good);
            LS_TEXT(text, 400, START "%s\n", line);
            LS_TEXT(want, 400, "rank0.jsonl line 2 has \"%s\" that is not %s: '%s'", rows[i].name,
                    rows[i].type, line);
            write_events(text);
            ls_record record = read_as(LS_RECORD_STRICT);
            ck_assert_str_eq(record.broken, bad ? want : "");
            ck_assert_int_eq(record.rank[0].step_count, !bad);
            ls_record_free(&record);
        }
    }
}

TEST(a_zero_byte_in_a_line)
{
    FILE *file = create("rank0.jsonl");
    fwrite(START "{}\0x\n", 1, sizeof START - 1 + 5, file);
    fclose(file);
    write_text("rank1.jsonl", "y\n");
    for (int mode = LS_RECORD_STRICT; mode <= LS_RECORD_LENIENT; mode++) {
        ls_record record = read_as((ls_record_mode)mode); /* the first breach of the first rank */
        ck_assert_str_eq(record.broken, "rank0.jsonl line 2 holds a zero byte: '{}'");
        ls_record_free(&record);
    }
}

TEST(the_last_lines_of_a_log)
{
    static const struct {
        const char *log;
        int count, bytes;
        const char *lines;
    } rows[] = {
        {"", 1, 50, ""},
        {"\n \n", 1, 50, ""},
        {"a", 1, 50, "a"},
        {"a\nb\n", 1, 50, "b"},
        {"a\nb\n\n  \n", 1, 50, "b"},
        {"a\nb\nc", 2, 50, "b\nc"},
        {"a\nb\nc", 3, 50, "a\nb\nc"},
        {"a\nb\nc", 9, 50, "a\nb\nc"},
        {"a\n\nc", 2, 50, "\nc"},
        {"a\nbcdef\n", 1, 4, "bcd"},
    };
    ls_record record = {.world = 1};
    ls_text_put(record.directory, sizeof record.directory, "%s", scratch);
    char text[50] = "?";
    ls_record_last_line(&record, 3, text, sizeof text); /* no such log */
    ck_assert_str_eq(text, "");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_text("rank3.log", rows[i].log);
        ls_record_last_lines(&record, 3, rows[i].count, text, (size_t)rows[i].bytes);
        ck_assert_str_eq(text, rows[i].lines);
        if (rows[i].count == 1) {
            ls_record_last_line(&record, 3, text, rows[i].bytes);
            ck_assert_str_eq(text, rows[i].lines);
        }
    }
    /* of a long log the last 8191 bytes are read */
    FILE *file = create("rank3.log");
    for (int i = 0; i < 8192; i++) {
        fputc(i == 0 ? '1' : i == 1 ? '2' : 'x', file);
    }
    fclose(file);
    char all[9000];
    ls_record_last_lines(&record, 3, 1, all, sizeof all);
    ck_assert_uint_eq(strlen(all), 8191);
    ck_assert(all[0] == '2' && all[8190] == 'x');
}

TEST_MAIN("record", .before = open_scratch, .after = close_scratch)
