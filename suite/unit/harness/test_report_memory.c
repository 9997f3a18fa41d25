/* Memory of a job in a report: bytes by kind, the largest batch that fits, and its prediction for a
 * larger job. */
#include <check.h>
#include <math.h>

#include "harness/report/figures.h"
#include "harness/report/job.h"
#include "kernels/core/json.h"
#include "suite/unit/harness/test_report_run.h"
#include "suite/unit/run_suite.h"

/* The start event of a rank, and its memory in bytes by kind. */
static const struct {
    const char *start;
    double reduced, kind[LS_REPORT_KINDS], sum;
} memories[] = {
    {NULL, 7, {NAN, NAN, NAN, NAN, NAN, NAN}, NAN},
    {"{}", 7, {NAN, NAN, NAN, NAN, NAN, NAN}, NAN},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"param_elements\":5,\"options\":{"
     "\"optimizer\":\"sgd\",\"momentum\":0.9,\"opt-level\":\"O2\"}}",
     20,
     {20, 20, 20, 20, 100, 10},
     190},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"param_elements\":5,\"options\":{"
     "\"optimizer\":\"sgd\",\"momentum\":0,\"opt-level\":\"O1\"}}",
     10,
     {10, 0, 0, 10, 100, 10},
     130},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"param_elements\":5,\"options\":{"
     "\"optimizer\":\"adam\",\"opt-level\":\"O3\"}}",
     10,
     {10, 0, 40, 10, 100, 10},
     170},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"param_elements\":5,\"options\":{"
     "\"optimizer\":\"later\",\"opt-level\":\"O2\"}}",
     10,
     {10, 20, NAN, 10, 100, 10},
     NAN},
    {"{\"workspace_bytes\":10,\"param_elements\":5,\"options\":{\"optimizer\":\"lamb\"}}",
     10,
     {NAN, 0, 40, NAN, NAN, 10},
     NAN},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"param_elements\":5,\"options\":{"
     "\"optimizer\":\"adam\",\"opt-level\":\"O2\"},\"memory\":{\"parameters\":1,\"masters\":2,"
     "\"moments\":3,\"gradients\":4,\"reduction_staging\":10,\"accumulators\":20,"
     "\"unscaled_gradients\":30,\"buffers\":5,\"state\":6,\"other\":1000}}",
     10,
     {1, 2, 3, 64, 100, 21},
     191},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"memory\":{}}",
     10,
     {0, 0, 0, 0, 100, 10},
     110},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"memory\":7}",
     10,
     {10, NAN, NAN, 10, 100, 10},
     NAN},
};

ROWS_TEST(memory_by_kind, memories)
{
    double kind[LS_REPORT_KINDS];
    ls_record_rank rank = {.reduced_bytes = memories[_i].reduced};
    rank.start = memories[_i].start != NULL ? cJSON_Parse(memories[_i].start) : NULL;
    ck_assert((rank.start != NULL) == (memories[_i].start != NULL));
    double sum = ls_report_memory(&rank, kind);
    for (int k = 0; k < LS_REPORT_KINDS; k++) {
        ck_assert_msg(same_number(kind[k], memories[_i].kind[k]), "kind %d is %g", k, kind[k]);
    }
    ck_assert_msg(same_number(sum, memories[_i].sum), "%g", sum);
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

TEST_MAIN("report_memory", .timeout_s = 60)
