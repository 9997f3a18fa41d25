/* A job in words: how it ended, which gradient checks it has, why a figure is no result; numbers.
 */
#include "harness/report/page.h"
#include "test_report_run.h"
#include "suite/unit/run_suite.h"
#include "harness/report/figures.h"
#include "kernels/core/json.h"

/* How a job ended, in words; code 12: a state that is not finite. */
static const struct {
    ls_record_state state;
    int rank, code, signal;
    const char *text;
} endings[] = {
    {LS_RECORD_DONE, 1, 2, 3, "done"},
    {LS_RECORD_FAILED, 2, 12, 0, "FAIL rank 2, exit code 12 (non-finite state)"},
    {LS_RECORD_FAILED, 0, 2, 0, "FAIL rank 0, exit code 2 (usage)"},
    {LS_RECORD_FAILED, -1, 2, 0, "FAIL"},
    {LS_RECORD_KILLED, 0, 137, 9, "CRASH rank 0, signal 9"},
    {LS_RECORD_KILLED, -1, 137, 9, "CRASH"},
    {LS_RECORD_TIMED_OUT, 1, 2, 3, "TIMEOUT"},
    {LS_RECORD_STOPPED, -1, 0, 0, "stopped before its end"},
    {LS_RECORD_NOT_STARTED, -1, 0, 0, "INFRA: not started"},
    {LS_RECORD_UNKNOWN, -1, 0, 0, "not finished: no job.json"},
};

ROWS_TEST(endings_in_words, endings)
{
    char text[96];
    ls_report_job job = job_of(0, NULL);
    job.record->state = endings[_i].state;
    job.record->first_rank = endings[_i].rank;
    job.record->code = endings[_i].code;
    job.record->signal = endings[_i].signal;
    ck_assert_str_eq(ls_report_job_state(&job, text), endings[_i].text);
    drop_job(&job);
}

static const struct {
    int check;
    bool audited;
    const char *text;
} checks[] = {
    {0, false, ""},
    {1, false, "FP64 oracle"},
    {2, false, "FP64 oracle on the GPU"},
    {3, false, "FP64 samples"},
    {4, false, "FP32 step 1"},
    {5, false, ""},
    {-1, false, ""},
    {0, true, "FP64 samples"},
    {4, true, "FP64 samples, FP32 step 1"},
    {5, true, "FP64 samples"},
    {1, true, "FP64 samples, FP64 oracle"},
};

ROWS_TEST(gradient_checks_in_words, checks)
{
    char text[64];
    ls_report_job job = job_of(0, NULL);
    job.record->gradient_check = checks[_i].check;
    job.record->audited = checks[_i].audited;
    ck_assert_str_eq(ls_report_job_gradient_checks(&job, text), checks[_i].text);
    drop_job(&job);
}

/* Why a figure is no result: of a job that ended so, with so many measured steps. */
static const struct {
    ls_record_state state;
    int count;
    bool checked, judged;
    double rate;
    const char *text;
} reasons[] = {
    {LS_RECORD_DONE, 1, true, true, 5, ""},
    {LS_RECORD_DONE, 1, true, true, NAN, "WEAK mine"},
    {LS_RECORD_DONE, 1, false, true, 5, "WEAK mine"},
    {LS_RECORD_DONE, 0, true, true, 5, "no step after the warm-up has a time"},
    {LS_RECORD_KILLED, 1, true, true, 5, "CRASH"},
};

ROWS_TEST(reasons_in_words, reasons)
{
    char text[160];
    ls_report_job job = job_of(0, NULL);
    job.record->state = reasons[_i].state;
    job.record->first_rank = -1;
    job.record->checked = reasons[_i].checked;
    job.record->judged = reasons[_i].judged;
    job.speed.count = reasons[_i].count;
    job.speed.rate.value = reasons[_i].rate;
    ls_text_put(job.record->id, sizeof job.record->id, "j");
    ls_report_verdict verdict[] = {
        {.code = LS_PASS, .id = "good", .json = cJSON_Parse("{\"jobs\":[\"j\"]}")},
        {.code = LS_FAIL, .id = "other", .json = cJSON_Parse("{\"jobs\":[\"i\",7]}")},
        {.code = LS_WEAK, .id = "mine", .json = cJSON_Parse("{\"jobs\":[\"i\",\"j\"]}")},
        {.code = LS_FAIL, .id = "later", .json = cJSON_Parse("{\"jobs\":[\"j\"]}")}};
    ls_report_run run = {.verdict_count = 4, .verdict = verdict};
    ck_assert_str_eq(ls_report_job_reason(&run, &job, text), reasons[_i].text);
    run.verdict_count = 2;
    if (strcmp(reasons[_i].text, "WEAK mine") == 0) {
        ck_assert_str_eq(ls_report_job_reason(&run, &job, text), "its checks did not pass");
        job.record->judged = false;
        ck_assert_str_eq(ls_report_job_reason(&run, &job, text), "not checked");
    }
    for (int v = 0; v < 4; v++) {
        cJSON_Delete(verdict[v].json);
    }
    drop_job(&job);
}

static const struct {
    double value;
    const char *text;
} numbers[] = {
    {NAN, "-"},
    {INFINITY, "-"},
    {0, "0"},
    {1000, "1000"},
    {999.96, "1000.0"},
    {1000.5, "1000"},
    {99.96, "99.96"},
    {100, "100.0"},
    {10, "10.00"},
    {9.99, "9.990"},
    {1, "1.000"},
    {0.01, "0.010"},
    {0.00999, "0.00999"},
    {1e-9, "1e-09"},
    {-0.5, "-0.500"},
    {-123.45, "-123.5"},
    {-0.001234, "-0.00123"},
    {1e7, "10000000"},
};

ROWS_TEST(numbers_have_four_digits, numbers)
{
    char text[32];
    ck_assert_str_eq(ls_report_lines_number(numbers[_i].value, text), numbers[_i].text);
}

/* Losses in a report: where a job ends, the interval predicted for another, and the band of O0 runs
 * with the levels compared with it. */

static const struct {
    int world, steps[3], fewest;
    double end, third; /* where the loss ended; that of the third step */
} curves[] = {
    {0, {0}, 0, NAN, NAN},         {1, {0}, 0, NAN, NAN},       {1, {1}, 1, 0, NAN},
    {1, {4}, 4, 1.5, 2},           {1, {5}, 5, 2, 2},           {1, {6}, 6, 3, 2},
    {1, {59}, 59, 56, 2},          {1, {60}, 60, 56.5, 2},      {2, {9, 7}, 7, 54, 52},
    {3, {2, 9, 9}, 2, 100.5, NAN}, {3, {9, 9, 8}, 8, 105, 102},
};

ROWS_TEST(losses_at_the_end, curves)
{
    ls_report_job job = job_of(curves[_i].world, curves[_i].steps);
    ck_assert_int_eq(ls_report_loss_steps(&job), curves[_i].fewest);
    ck_assert_msg(same_number(ls_report_loss_end(&job), curves[_i].end), "%g",
                  ls_report_loss_end(&job));
    ck_assert_msg(same_number(ls_report_loss_at(&job, 2), curves[_i].third), "%g",
                  ls_report_loss_at(&job, 2));
    drop_job(&job);
}

TEST(losses_are_not_below_zero)
{
    const double value[] = {0.1, 0.2, 0.9}, high[] = {5, 5.5, 6};
    ls_stats_interval low = ls_report_loss_predict(value, 3),
                      usual = ls_report_loss_predict(high, 3);
    ck_assert(low.low == 0 && low.high > 1);
    ck_assert(usual.low > 0 && usual.low < 5);
    ck_assert(isnan(ls_report_loss_predict(value, 2).low));
    static const int last[][2] = {{0, 0},  {1, 1},  {5, 5},  {6, 5},
                                  {50, 5}, {59, 5}, {60, 6}, {99, 9}};
    for (size_t i = 0; i < sizeof last / sizeof *last; i++) {
        ck_assert_int_eq(ls_report_loss_last(last[i][0]), last[i][1]);
    }
}

/* Runs of 20 steps, of which the last two count: the levels, and where each ends. */
static const struct {
    const char *levels; /* a digit each */
    double end[12];
    const char *text; /* NULL: no band */
} bands[] = {
    {"00", {1, 1}, NULL},
    {"001", {1, 1, 1}, NULL},
    {"000", {1, 1, 1}, "No other level is compared with the band of 3 O0 runs [1.000, 1.000]"},
    {"0001", {1, 1, 1, 1}, "O1 (1.000) stays inside the band of 3 O0 runs [1.000, 1.000]"},
    {"1000", {1.25, 1, 1, 1}, "O1 (1.250) ends outside the band of 3 O0 runs [1.000, 1.000]"},
    {"00012",
     {1, 1, 1, 1, 1},
     "O1 (1.000) and O2 (1.000) stay inside the band of 3 O0 runs [1.000, 1.000]"},
    {"000123",
     {1, 1, 1, 0.75, 2, 3},
     "O1 (0.750), O2 (2.000) and O3 (3.000) end outside the band of 3 O0 runs [1.000, 1.000]"},
    {"0100230",
     {1, 1, 1, 1, 0.5, 0.625, 1},
     "O2 (0.500) and O3 (0.625) end outside, O1 (1.000) stays inside the band of 4 O0 runs [1.000, "
     "1.000]"},
    {"000111122223",
     {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2}, /* one more than there is room for */
     "O1 (1.000), O1 (1.000), O1 (1.000), O1 (1.000), O2 (1.000), O2 (1.000), O2 (1.000) and O2 "
     "(1.000) stay inside the band of 3 O0 runs [1.000, 1.000]"},
};

static ls_report_job curves_job(const char *levels, const double *end)
{
    static const int steps[12] = {20, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20};
    int world = (int)strlen(levels);
    ls_report_job job = job_of(world, steps);
    job.record->state = LS_RECORD_DONE;
    job.record->spec.role = LS_ROLE_CURVES;
    for (int k = 0; k < world; k++) {
        ls_record_rank *rank = &job.record->rank[k];
        ls_text_put(rank->level, sizeof rank->level, "O%c", levels[k]);
        rank->step[17].loss = 77; /* before the end */
        rank->step[18].loss = end[k] - 0.25;
        rank->step[19].loss = end[k] + 0.25;
    }
    return job;
}

ROWS_TEST(bands_in_words, bands)
{
    char text[320];
    ls_report_band band;
    ls_report_job job = curves_job(bands[_i].levels, bands[_i].end);
    ls_report_run run = {.job_count = 1, .job = &job};
    bool found = ls_report_loss_read_band(&run, &band);
    ck_assert(found == (bands[_i].text != NULL));
    if (found) {
        ck_assert_str_eq(ls_report_loss_sentence(&band, text), bands[_i].text);
        ck_assert(band.job == &job && band.steps == 20 && band.last == 2);
        for (int i = 0, k = 0; i < band.level_count; i++, k++) {
            k += (int)strspn(bands[_i].levels + k, "0");
            ck_assert_int_eq(band.rank[i], k);
            ck_assert_str_eq(band.level[i], job.record->rank[k].level);
            ck_assert(band.level_end[i] == bands[_i].end[k]);
            ck_assert(band.inside[i] == (bands[_i].end[k] == 1));
        }
    }
    drop_job(&job);
}

TEST(curves_that_are_no_band)
{
    enum { STATE, ROLE, EMPTY, SHORT, NO_STEPS, FEW_STEPS, ALL };
    static const double ends[] = {1, 1, 1, 1};
    for (int change = 0; change < ALL; change++) {
        ls_report_band band = {.steps = -1};
        ls_report_job job = curves_job("0001", ends);
        ls_report_run run = {.job_count = 1, .job = &job};
        job.record->state = change == STATE ? LS_RECORD_KILLED : LS_RECORD_DONE;
        job.record->spec.role = change == ROLE ? LS_ROLE_REFERENCE : LS_ROLE_CURVES;
        job.record->world = change == EMPTY ? 0 : 4;
        job.record->rank[2].step_count = change == SHORT ? 19 : 20;
        for (int k = 0; k < 4 && change >= NO_STEPS; k++) {
            job.record->rank[k].step_count = change == NO_STEPS ? 0 : 9;
        }
        ck_assert_msg(ls_report_loss_read_band(&run, &band) == (change == FEW_STEPS), "%d", change);
        if (change == FEW_STEPS) {
            ck_assert(band.last == 1 && band.end.value == 8 + 100 * 1.0);
        } else {
            ck_assert_int_eq(band.steps, -1); /* nothing is written */
        }
        job.record->world = 4;
        drop_job(&job);
    }
    ls_report_run none = {0};
    ls_report_band band;
    ck_assert(!ls_report_loss_read_band(&none, &band));
}

/* Memory of a job in a report: bytes by kind, the largest batch that fits, and its prediction for a
 * larger job. */

/* The start event of a rank, and its memory in bytes by kind. */
static const struct {
    const char *start;
    double reduced;
    const char *kinds; /* and their sum */
} memories[] = {
    {NULL, 7, "nan nan nan nan nan nan = nan"},
    {"{}", 7, "nan nan nan nan nan nan = nan"},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"param_elements\":5,\"options\":{"
     "\"optimizer\":\"sgd\",\"momentum\":0.9,\"opt-level\":\"O2\"}}",
     20, "20 20 20 20 100 10 = 190"},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"param_elements\":5,\"options\":{"
     "\"optimizer\":\"sgd\",\"momentum\":0,\"opt-level\":\"O1\"}}",
     10, "10 0 0 10 100 10 = 130"},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"param_elements\":5,\"options\":{"
     "\"optimizer\":\"adam\",\"opt-level\":\"O3\"}}",
     10, "10 0 40 10 100 10 = 170"},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"param_elements\":5,\"options\":{"
     "\"optimizer\":\"later\",\"opt-level\":\"O2\"}}",
     10, "10 20 nan 10 100 10 = nan"},
    {"{\"workspace_bytes\":10,\"param_elements\":5,\"options\":{\"optimizer\":\"lamb\"}}", 10,
     "nan 0 40 nan nan 10 = nan"},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"param_elements\":5,\"options\":{"
     "\"optimizer\":\"adam\",\"opt-level\":\"O2\"},\"memory\":{\"parameters\":1,\"masters\":2,"
     "\"moments\":3,\"gradients\":4,\"reduction_staging\":10,\"accumulators\":20,"
     "\"unscaled_gradients\":30,\"buffers\":5,\"state\":6,\"other\":1000}}",
     10, "1 2 3 64 100 21 = 191"},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"memory\":{}}", 10, "0 0 0 0 100 10 = 110"},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"memory\":7}", 10,
     "10 nan nan 10 100 10 = nan"},
};

ROWS_TEST(memory_by_kind, memories)
{
    char text[200] = "";
    double kind[LS_REPORT_KINDS + 1];
    ls_record_rank rank = {.reduced_bytes = memories[_i].reduced};
    rank.start = memories[_i].start != NULL ? cJSON_Parse(memories[_i].start) : NULL;
    ck_assert((rank.start != NULL) == (memories[_i].start != NULL));
    kind[LS_REPORT_KINDS] = ls_report_memory(&rank, kind);
    for (int k = 0; k <= LS_REPORT_KINDS; k++) {
        ls_text_add(text, sizeof text, "%s%g",
                    k == 0                ? ""
                    : k < LS_REPORT_KINDS ? " "
                                          : " = ",
                    isnan(kind[k]) ? (double)NAN : kind[k]);
    }
    ck_assert_str_eq(text, memories[_i].kinds);
    cJSON_Delete(rank.start);
}

/* A job of one rank with 8 images of 2 x 2 pixels: 100 bytes of memory besides 80 of activations,
 * which it exceeded by 20. */
static ls_report_job sized_job(ls_role role)
{
    static const int steps[] = {0};
    ls_report_job job = job_of(1, steps);
    job.record->spec = (ls_spec){
        .role = role, .world = 1, .batch_size = 8, .image_size = 2, .arch = "a", .half = "h"};
    job.record->rank[0].start = cJSON_Parse(
        "{\"activation_bytes\":80,\"workspace_bytes\":60,\"memory\":{\"parameters\":40}}");
    job.record->rank[0].rss_bytes_max = 200;
    return job;
}

static void drop_sized(ls_report_job *job)
{
    cJSON_Delete(job->record->rank[0].start);
    drop_job(job);
}

/* Each image takes 80 / 8 bytes and three times its 3 * 2 * 2 * 4; 120 bytes are fixed. */
TEST(the_largest_batch_at_its_limits)
{
    static const struct {
        ls_role plain;
        double free_bytes, rss, largest; /* NAN: none is known */
        int world, batch;
    } rows[] = {
        {LS_ROLE_DDP_WORLD1, 120 + 154, 200, 1, 1, 8},
        {LS_ROLE_NO_COMM, 120 + 154 - 1, 200, NAN, 1, 8},
        {LS_ROLE_DDP_WORLD1, 120 + 2 * 154 - 1, 200, 1, 1, 8},
        {LS_ROLE_NO_COMM, 120 + 2 * 154, 200, 2, 1, 8},
        {LS_ROLE_NO_COMM, 3 * (120 + 2 * 154), 200, 2, 3, 8},
        {LS_ROLE_NO_COMM, 140 + 7 * 154, 220, 7, 1, 8},
        {LS_ROLE_NO_COMM, 101 + 7 * 154, 181, 7, 1, 8},
        {LS_ROLE_NO_COMM, 9999, 180, NAN, 1, 8}, /* no more than it reports: not seen */
        {LS_ROLE_EVIDENCE, 9999, 200, NAN, 1, 8},
        {LS_ROLE_NO_COMM, NAN, 200, NAN, 1, 8},
        {LS_ROLE_NO_COMM, 9999, 200, NAN, 1, 0},
        {LS_ROLE_NO_COMM, 120 + 224, 200, 1, 1, 1}, /* 80 / 1 and 144 */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_report_job job[] = {sized_job(LS_ROLE_THROUGHPUT), sized_job(rows[i].plain)};
        ls_report_run run = {.job_count = 2, .job = job, .record = cJSON_CreateObject()};
        ls_json_add_number(cJSON_AddObjectToObject(run.record, "machine"), "memory_available_bytes",
                           rows[i].free_bytes);
        job[0].record->spec.world = rows[i].world;
        job[0].record->spec.batch_size = rows[i].batch;
        job[1].record->rank[0].rss_bytes_max = rows[i].rss;
        ls_report_batch batch = {.largest = NAN};
        bool known = ls_report_memory_largest_batch(&run, &job[0], &batch);
        ck_assert_msg(known == isfinite(rows[i].largest), "row %zu", i);
        if (known) {
            ck_assert_msg(batch.largest == rows[i].largest, "row %zu: %g", i, batch.largest);
            ck_assert(batch.job == &job[0]);
            ck_assert(batch.fixed_bytes == rows[i].rss - 80);
            ck_assert(batch.image_bytes == 80.0 / rows[i].batch + 144);
            ck_assert(batch.room_bytes == rows[i].free_bytes / rows[i].world);
        }
        cJSON_Delete(run.record);
        drop_sized(&job[0]);
        drop_sized(&job[1]);
    }
}

TEST(a_larger_batch_is_predicted_from_an_equal_job)
{
    enum { AS_IT_IS, SWAPPED, WORLD, ARCH, ROLE, NO_PEAK, ALL };
    for (int change = 0; change < ALL; change++) {
        ls_report_job job[] = {sized_job(LS_ROLE_DDP_WORLD1), sized_job(LS_ROLE_STRONG_SCALING)};
        ls_report_run run = {.job_count = 2, .job = job};
        ls_report_job *small = &job[change == SWAPPED], *big = &job[change != SWAPPED];
        small->record->spec.role = LS_ROLE_DDP_WORLD1;
        big->record->spec.role = change == ROLE ? LS_ROLE_THROUGHPUT : LS_ROLE_STRONG_SCALING;
        big->record->spec.batch_size = 16;
        big->record->spec.world = change == WORLD ? 2 : 1;
        big->record->spec.arch[0] = change == ARCH ? 'b' : 'a';
        big->record->rank[0].rss_bytes_max = change == NO_PEAK ? NAN : 3000;
        const ls_report_job *larger = NULL;
        double predicted = NAN, seen = NAN;
        bool known = ls_report_memory_check(&run, &larger, &predicted, &seen);
        ck_assert_msg(known == (change <= SWAPPED), "%d", change);
        ck_assert(!known || (larger == big && predicted == 120 + 16 * 154 && seen == 3000));
        drop_sized(&job[0]);
        drop_sized(&job[1]);
    }
}

/* ---- a rank that is slow --------------------------------------------------------------------- */

/* Of ranks that keep step: the others wait for the slow one, from `since` on. */
static const struct {
    int world, rank, since;
    double before, slow, past;
    const char *says;
} slow_ranks[] = {
    {4, 2, 0, 1, 1.5, 1, "rank 2 is slow: 1.50 times the others"},
    {2, 1, 0, 1, 2, 1, "rank 1 is slow: 2.00 times the others"},
    {4, 0, 0, 1, 1.2, 1, ""},
    {3, 1, 6, 1.5, 3, 2, "rank 1 is slow: 2.25 times the others, 2.00 times its first half"},
    {4, 2, 10, 1, 3, 1, ""}, /* too late for a median */
    {1, 0, 0, 1, 3, NAN, ""},
};

ROWS_TEST(a_slow_rank_is_named, slow_ranks)
{
    enum { STEPS = 12 };
    const int steps[] = {STEPS, STEPS, STEPS, STEPS};
    char text[160];
    ls_report_job job = job_of(slow_ranks[_i].world, steps);
    job.record->state = LS_RECORD_DONE;
    for (int i = 0; i < job.record->world * STEPS; i++) {
        int rank = i / STEPS, step = i % STEPS;
        ls_record_step *at = &job.record->rank[rank].step[step];
        double slowest = step >= slow_ranks[_i].since ? slow_ranks[_i].slow : slow_ranks[_i].before;
        double own = 100 * (rank == slow_ranks[_i].rank ? slowest : 1);
        *at = (ls_record_step){.step = step + 1, .total_ms = 100 * slowest + 5};
        at->exposed_ms = at->total_ms - own;
    }
    ls_report_run run = {.job_count = 1, .job = &job};
    ls_report_speed_compute(&run);
    const char *marks = strstr(ls_report_lines_marks(&run, &job, text), "rank ");
    const char *end = marks == NULL ? NULL : strstr(marks, ", only");
    ck_assert_msg(marks == NULL ? slow_ranks[_i].says[0] == '\0'
                                : strncmp(marks, slow_ranks[_i].says,
                                          end == NULL ? 160 : (size_t)(end - marks)) == 0,
                  "%s", text);
    ck_assert(same_number(round(100 * job.speed.straggler_past) / 100, slow_ranks[_i].past));
    ls_report_speed_free(&job.speed);
    drop_job(&job);
}

TEST_MAIN("report_job", .timeout_s = 60)
