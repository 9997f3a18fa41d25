/* Who has other bits: invented records, and a real job in which one rank is given another learning
 * rate in the place of a broken device. */
#include "harness/run/job.h"
#include "kernels/core/text.h"
#include "suite/run/run.h"
#include "kernels/core/path.h"
#include "suite/judge/judges.h"
#include "suite/unit/run_suite.h"

enum { STEPS = 10, RANKS = 8 };

/* Bits of a rank: those of everybody, another number from step `odd` on, or with `run` not 0 a
 * number that is the run's own. */
static ls_record invent(int ranks, const int *odd, int run)
{
    ls_record record;
    memset(&record, 0, sizeof record);
    record.world = ranks;
    record.state = LS_RECORD_DONE;
    record.rank = calloc((size_t)ranks, sizeof *record.rank);
    for (int k = 0; k < ranks; k++) {
        ls_record_rank *rank = &record.rank[k];
        char device[64];
        rank->step_count = STEPS;
        rank->step = calloc(STEPS, sizeof *rank->step);
        rank->start = cJSON_CreateObject();
        ls_text_put(device, sizeof device, "NVIDIA H200 (GPU-%d)", k);
        cJSON_AddStringToObject(rank->start, "device", device);
        for (int i = 0; i < STEPS; i++) {
            ls_record_step *step = &rank->step[i];
            bool other = odd != NULL && odd[k] != 0 && i + 1 >= odd[k];
            step->step = i + 1;
            step->digest_mask = 1u << LS_RECORD_PARAM;
            ls_text_put(step->loss_bits, sizeof step->loss_bits, "0x%08x", i);
            ls_text_put(step->digest[LS_RECORD_PARAM], sizeof step->digest[0], "%016x",
                        1000 * run + 10 * i + (other ? 1 + k : 0));
        }
    }
    return record;
}

static void release(ls_record *record)
{
    for (int k = 0; k < record->world; k++) {
        free(record->rank[k].step);
        cJSON_Delete(record->rank[k].start);
    }
    free(record->rank);
}

static const struct {
    int ranks, odd[RANKS], odd_again[RANKS], second_run;
    int short_rank; /* a rank's number plus 1 that has a step less, in the second run */
    int others;     /* ranks at the end of another model */
    ls_sdc_result result;
    const char *text;
} TABLE[] = {
    {8, {0}, {0}, .text = "8 ranks, 10 steps, twice: all losses and parameters equal"},
    {1, {0}, {0}, .text = "1 ranks, 10 steps, twice: all losses and parameters equal"},
    {.ranks = 8,
     .odd = {[7] = 1},
     .others = 1,
     .text = "7 ranks, 10 steps, twice: all losses and parameters equal (1 of another model left "
             "out)"},
    {8,
     {0, 0, 4},
     {0, 0, 6},
     .result = LS_SDC_ODD,
     .text = "rank 2 (NVIDIA H200 (GPU-2)) has other bits than 7 others from step 4 on, and in the "
             "second run from step 6 on"},
    {8,
     {0, 0, 4},
     {0},
     .result = LS_SDC_ODD,
     .text = "rank 2 (NVIDIA H200 (GPU-2)) has other bits than 7 others from step 4 on, not in the "
             "second run"},
    {8,
     {0},
     {0, 9},
     .result = LS_SDC_ODD,
     .text = "rank 1 (NVIDIA H200 (GPU-1)) has other bits than 7 others in the second run from "
             "step 9 on"},
    {3,
     {10},
     {1},
     .result = LS_SDC_ODD,
     .text =
         "rank 0 (NVIDIA H200 (GPU-0)) has other bits than 2 others from step 10 on, and in the "
         "second run from step 1 on"},
    {5,
     {0, 2},
     {0, 0, 0, 3},
     .result = LS_SDC_ODD,
     .text = "rank 1 (NVIDIA H200 (GPU-1)) has other bits than 4 others from step 2 on, not in the "
             "second run; rank 3 (NVIDIA H200 (GPU-3)) has other bits than 3 others in the second "
             "run from step 3 on"},
    {8,
     {0},
     {0},
     1,
     .result = LS_SDC_UNREPEATED,
     .text = "8 of 8 ranks agree and have other bits when run again"},
    {4,
     {0},
     {0, 0, 1, 1},
     .result = LS_SDC_UNREPEATED,
     .text = "4 of 4 ranks agree and have other bits when run again"},
    {2,
     {0, 3},
     {0, 3},
     .result = LS_SDC_UNDECIDED,
     .text = "at most 1 of 2 ranks have the same bits"},
    {2,
     {0, 3},
     {0, 0},
     .result = LS_SDC_UNDECIDED,
     .text = "at most 1 of 2 ranks have the same bits; rank 1 (NVIDIA H200 (GPU-1)) does not have "
             "its own again"},
    {4,
     {0, 0, 3, 3},
     {0, 0, 3, 3},
     .result = LS_SDC_UNDECIDED,
     .text = "at most 2 of 4 ranks have the same bits"},
    {1,
     {0},
     {2},
     .result = LS_SDC_UNREPEATED,
     .text = "1 of 1 ranks agree and have other bits when run again"},
    {3,
     {0},
     {0},
     .short_rank = 1,
     .result = LS_SDC_WITHOUT,
     .text = "loss_bits or digests of parameters are missing"},
};

static void set_device(ls_record *record, int rank, const char *device)
{
    cJSON_ReplaceItemInObject(record->rank[rank].start, "device", cJSON_CreateString(device));
}

ROWS_TEST(the_odd_one_is_named, TABLE)
{
    ls_record first = invent(TABLE[_i].ranks, TABLE[_i].odd, 0);
    ls_record again = invent(TABLE[_i].ranks, TABLE[_i].odd_again, TABLE[_i].second_run);
    ls_sdc sdc;
    char text[512];
    for (int k = TABLE[_i].ranks - TABLE[_i].others; k < TABLE[_i].ranks; k++) {
        set_device(&first, k, "NVIDIA H20 (x)");
    }
    if (TABLE[_i].short_rank > 0) {
        again.rank[TABLE[_i].short_rank - 1].step_count--;
    }
    ls_sdc_compare(&first, &again, &sdc);
    ls_sdc_text(&sdc, text, sizeof text);
    ck_assert_msg(sdc.result == TABLE[_i].result, "%d: %s", (int)sdc.result, text);
    ck_assert_str_eq(text, TABLE[_i].text);
    release(&first);
    release(&again);
}

TEST(what_cannot_be_compared_is_told)
{
    ls_record first = invent(3, NULL, 0), again = invent(3, NULL, 0);
    ls_sdc sdc;
    first.rank[1].step[3].digest_mask = 0;
    ls_sdc_compare(&first, &again, &sdc);
    ck_assert_int_eq(sdc.result, LS_SDC_WITHOUT);
    first.rank[1].step[3].digest_mask = again.rank[0].step[0].digest_mask;
    again.rank[2].step[9].loss_bits[0] = '\0';
    ls_sdc_compare(&first, &again, &sdc);
    ck_assert_int_eq(sdc.result, LS_SDC_WITHOUT);
    ls_sdc_compare(&first, NULL, &sdc);
    ck_assert(sdc.result == LS_SDC_EQUAL && sdc.rank[2].repeats);
    for (int k = 0; k < 3; k++) { /* a step less on all: other numbers of steps are other bits */
        again.rank[k].step_count--;
    }
    ls_sdc_compare(&first, &again, &sdc);
    ck_assert(sdc.result == LS_SDC_UNREPEATED && sdc.rank[1].odd_again_at == STEPS);
    again.world = 2;
    ls_sdc_compare(&first, &again, &sdc);
    ck_assert_int_eq(sdc.result, LS_SDC_WITHOUT);
    again.world = 3;
    set_device(&first, 2, "NVIDIA A100 (x)");
    strcpy(first.rank[2].step[5].loss_bits, "0x1");
    ls_sdc_compare(&first, NULL, &sdc);
    ck_assert_int_eq(sdc.result, LS_SDC_EQUAL); /* another model may have other bits */
    ck_assert_int_eq(sdc.compared, 2);
    set_device(&first, 2, "NVIDIA H200"); /* the same model, without its number */
    ls_sdc_compare(&first, NULL, &sdc);
    ck_assert(sdc.result == LS_SDC_ODD && sdc.rank[2].odd_at == 6 && sdc.compared == 3);
    release(&first);
    release(&again);
}

static void run_job(const ls_spec *spec, const ls_matrix_site *site, ls_record *record)
{
    ls_job job;
    ls_outcome outcome;
    bool resumed = false;
    memset(&outcome, 0, sizeof outcome);
    ck_assert_int_eq(ls_matrix_job(spec, site, &job), LS_OK);
    free(job.command.word[3]); /* sh -c script TRAINER: the one in the folder above */
    char folder[1024], *trainer = NULL;
    ls_path_program(folder, sizeof folder);
    ck_assert(asprintf(&trainer, "%s/../lockstep-train", folder) > 0);
    job.command.word[3] = trainer;
    ck_assert_int_eq(ls_job_run(&job, NULL, NULL, &outcome, &resumed), LS_OK);
    ck_assert_int_eq(outcome.state, LS_OUTCOME_DONE);
    ck_assert_int_eq(ls_record_read(job.directory, LS_RECORD_STRICT, record), LS_OK);
    ls_outcome_free(&outcome);
    ls_job_free(&job);
}

TEST(a_fault_on_one_rank_of_a_real_job_is_found)
{
    char scratch[] = "/tmp/test_sdc.XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(scratch));
    const ls_matrix_site site = {.run_directory = scratch, .device = "cpu", .cores = 2};
    ls_spec spec = ls_matrix_sdc("resnet8", 16, 4, 3);
    ls_record first, again;
    ls_sdc sdc;
    spec.steps = 3;
    spec.threads = 1;
    ls_text_put(spec.each, sizeof spec.each, "--lr=0.01|--lr=0.01|--lr=0.0100001");
    run_job(&spec, &site, &first);
    spec.repeat = 1;
    run_job(&spec, &site, &again);
    ls_sdc_compare(&first, &again, &sdc);
    ck_assert_int_eq(sdc.result, LS_SDC_ODD);
    ck_assert_int_eq(sdc.rank[2].odd_at, 1);
    ck_assert_int_eq(sdc.rank[2].odd_again_at, 1);
    ck_assert(sdc.rank[2].repeats); /* this fault is a steady one */
    ck_assert_int_eq(sdc.rank[0].odd_at + sdc.rank[1].odd_at, 0);
    ls_record_free(&first);
    ls_record_free(&again);
    ls_path_remove_tree(scratch);
}

TEST(the_odd_gpu_becomes_a_finding)
{
    static const int odd[RANKS] = {0, 0, 0, 5};
    ls_run run;
    int case_job[1][LS_CASE_JOBS_MAX] = {{0, 1, 0, 0}};
    ls_record record[2] = {invent(RANKS, odd, 0), invent(RANKS, odd, 0)};
    ls_case row = {.id = "sdc.timed.w8", .counts = LS_COUNTS_BITS, .job_count = 2};
    memset(&run, 0, sizeof run);
    run.site.devices = RANKS;
    run.cases = (ls_case_list){1, 1, &row};
    run.case_job = case_job;
    run.record = record;
    run.gpus = cJSON_Parse("[{\"index\":6,\"uuid\":\"GPU-3\",\"address\":\"0000:5e:00.0\"}]");
    ls_gpus_compare_bits(&run);
    ck_assert_int_eq(run.findings.count, 1);
    ck_assert_int_eq(run.findings.list[0].code, LS_FINDING_SILENT_CORRUPTION);
    ck_assert_int_eq(run.findings.list[0].gpu, 6);
    ck_assert_str_eq(run.findings.list[0].address, "0000:5e:00.0");
    ck_assert_ptr_nonnull(strstr(run.findings.list[0].what, "from step 5 on, both times"));
    ls_findings_free(&run.findings);
    cJSON_Delete(run.gpus);
    release(&record[0]);
    release(&record[1]);
}

TEST_MAIN("sdc", .timeout_s = 60)
