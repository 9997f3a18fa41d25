/* A report made from an invented run: what the tables hold, what the pages say, what they must
 * never say. `test_report DIR` writes that run and its report into DIR and leaves them to be looked
 * at. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/report/report.h"
#include "harness/report/tables/table.h"
#include "harness/run/record.h"
#include "kernels/core/json.h"
#include "kernels/core/path.h"
#include "kernels/core/rng.h"
#include "suite/unit/golden.h"
#include "suite/unit/harness/scratch.h"
#include "suite/unit/junit_read.h"
#include "suite/unit/run_suite.h"

/* ---- the run: eight ranks, every sweep, a crash, a failure, a waiver, a job that was cut short,
 * hostile text. Everything is a function of the table of jobs, so expected values can be computed.
 */

static const char HOSTILE[] = "<script>alert('1')</script>&\"|`x` \x1b[31m";

typedef struct fake_job {
    const char *id, *label, *role, *level, *half, *sweep; /* sweep: JSON members */
    int world, nodes, steps;
    double bucket_mb;
    double step_ms;    /* median */
    int overflow_step; /* 0: none */
    int seed;
    bool checked;
    const char *state; /* "done", "killed" */
    bool compared;
} fake_job;

static const fake_job JOBS[] = {
    {"o0.w8", "O0, 8 ranks, 25 MB", "throughput", "O0", "fp16", "\"level\"", 8, 1, 40, 25, 410, 0,
     1, true, "done", false},
    {"o1.w8", "O1, 8 ranks, 25 MB", "throughput", "O1", "fp16", "\"level\"", 8, 1, 40, 25, 760, 2,
     2, true, "done", false},
    {"o2.w8", "O2, 8 ranks, 25 MB", "throughput", "O2", "fp16",
     "\"level\",\"bucket\",\"world\",\"nodes\"", 8, 1, 40, 25, 640, 2, 3, true, "done", false},
    {"o3.w8", "O3, 8 ranks, 25 MB", "throughput", "O3", "fp16", "\"level\"", 8, 1, 40, 25, 600, 0,
     4, false, "done", false},
    {"o2bf.w8", "O2 bf16, 8 ranks, 25 MB", "throughput", "O2", "bf16", "\"level\"", 8, 1, 40, 25,
     590, 0, 5, true, "done", false},
    {"o2.b1", "O2, 8 ranks, 1 MB", "throughput", "O2", "fp16", "\"bucket\"", 8, 1, 40, 1, 720, 2, 6,
     true, "done", false},
    {"o2.b5", "O2, 8 ranks, 5 MB", "throughput", "O2", "fp16", "\"bucket\"", 8, 1, 40, 5, 643, 2, 7,
     true, "done", false},
    {"o2.b0", "O2, 8 ranks, delayed", "throughput", "O2", "fp16", "\"bucket\"", 8, 1, 40, 0, 690, 2,
     8, true, "done", false},
    {"o2.w1", "O2, 1 rank, 25 MB", "throughput", "O2", "fp16", "\"world\"", 1, 1, 40, 25, 118, 2, 9,
     true, "done", false},
    {"o2.w2", "O2, 2 ranks, 25 MB", "throughput", "O2", "fp16", "\"world\"", 2, 1, 40, 25, 190, 2,
     10, true, "done", false},
    {"o2.w4", "O2, 4 ranks, 25 MB", "throughput", "O2", "fp16", "\"world\"", 4, 1, 40, 25, 330, 2,
     11, true, "done", false},
    {"o2.w8.n2", "O2, 8 ranks, 2 nodes, 25 MB", "throughput", "O2", "fp16", "\"nodes\"", 8, 2, 40,
     25, 668, 2, 12, true, "done", false},
    {"o1.b1", "O1, 8 ranks, 1 MB", "throughput", "O1", "fp16", "\"bucket\"", 8, 1, 9, 1, 800, 0, 13,
     true, "killed", false},
    {"o0.again1", "O0 again, seed 2", "reference", "O0", "fp16", "", 8, 1, 40, 25, 415, 0, 14, true,
     "done", false},
    {"o0.again2", "O0 again, seed 3", "reference", "O0", "fp16", "", 8, 1, 40, 25, 408, 0, 15, true,
     "done", false},
    {"o0.phases", "O0, 8 ranks, phases", "phases", "O0", "fp16", "", 8, 1, 6, 25, 415, 0, 16, true,
     "done", false},
    {"o2.phases", "O2, 8 ranks, phases", "phases", "O2", "fp16", "", 8, 1, 6, 25, 650, 0, 17, true,
     "done", false},
    {"e.o0", "O0 evidence", "evidence", "O0", "fp16", "", 4, 1, 3, 1, 60, 0, 18, true, "done",
     true},
    {"e.o1", "O1 evidence", "evidence", "O1", "fp16", "", 4, 1, 3, 1, 80, 0, 19, true, "done",
     true},
    {"e.o2", HOSTILE, "evidence", "O2", "fp16", "", 4, 1, 3, 1, 70, 0, 20, true, "done", true},
    {"e.o3", "O3 evidence", "evidence", "O3", "fp16", "", 4, 1, 3, 1, 70, 0, 21, false, "done",
     true},
};
enum { JOB_COUNT = sizeof JOBS / sizeof *JOBS };

static double noise(const fake_job *job, int rank, int step)
{
    return ls_rng_normal((uint64_t)job->seed, (uint64_t)rank, (uint64_t)step);
}

static void write_spans(FILE *file, const fake_job *job, int rank, int step)
{
    double start = 1e9 + step * job->step_ms * 1e6 + 2e6 * noise(job, rank, 1000 + step);
    double ms = 1e6, forward = 0.30 * job->step_ms * ms, backward = 0.52 * job->step_ms * ms;
    fprintf(file,
            "{\"event\":\"trace\",\"step\":%d,\"spans\":["
            "{\"name\":\"forward\",\"lane\":\"compute\",\"from_ns\":%.0f,\"to_ns\":%.0f},"
            "{\"name\":\"backward\",\"lane\":\"compute\",\"from_ns\":%.0f,\"to_ns\":%.0f}",
            step, start, start + forward, start + forward, start + forward + backward);
    double at = start + forward + 0.2 * backward;
    for (int b = 0; b < 4; b++) {
        double took = (0.07 + 0.02 * b) * job->step_ms * ms;
        fprintf(
            file,
            ",{\"name\":\"bucket %d\",\"lane\":\"communication\",\"from_ns\":%.0f,\"to_ns\":%.0f}",
            b, at, at + took);
        at += took + 0.06 * job->step_ms * ms;
    }
    double end = fmax(at, start + forward + backward);
    fprintf(file,
            ",{\"name\":\"optimizer\",\"lane\":\"compute\",\"from_ns\":%.0f,\"to_ns\":%.0f}]}\n",
            end, end + 0.04 * job->step_ms * ms);
}

static void write_step(FILE *file, const fake_job *job, int rank, int step, double *scale)
{
    bool dynamic =
        strcmp(job->level, "O1") == 0 || (strcmp(job->level, "O2") == 0 && job->half[0] == 'f');
    bool skipped = dynamic && job->overflow_step > 0 && (step <= job->overflow_step || step == 23);
    double next = skipped ? *scale / 2 : *scale;
    double total = job->step_ms * (step <= 4 ? 1.6 : 1 + 0.03 * noise(job, 0, step)) *
                   (1 + 0.001 * noise(job, rank, step));
    double loss = 0.45 + 1.85 * exp(-step / 14.0) + 0.04 * noise(job, rank, 500 + step);
    fprintf(
        file,
        "{\"event\":\"step\",\"step\":%d,\"loss\":%.6g,\"loss_scale\":%g,\"loss_scale_next\":%g,"
        "\"skipped\":%s,\"lr\":0.1,\"images\":8,\"ms\":{\"total\":%.4f",
        step, loss, dynamic ? *scale : 1, dynamic ? next : 1, skipped ? "true" : "false", total);
    if (strcmp(job->role, "phases") == 0) {
        fprintf(
            file,
            ",\"data\":%.3f,\"forward\":%.3f,\"backward\":%.3f,\"comm\":%.3f,\"comm_exposed\":%.3f,"
            "\"optimizer\":%.3f",
            0.02 * total, 0.30 * total, 0.52 * total, 0.40 * total, 0.09 * total, 0.04 * total);
    } else if (strstr(job->sweep, "bucket") != NULL) {
        double exposed = job->bucket_mb == 0 ? 0.21 : job->bucket_mb == 1 ? 0.13 : 0.08;
        fprintf(file, ",\"comm\":%.3f,\"comm_exposed\":%.3f", 0.40 * total, exposed * total);
    }
    fprintf(file, "}}\n");
    *scale = next;
}

static void write_rank(const char *run, const fake_job *job, int rank)
{
    LS_TEXT(name, 100, "%s/jobs/%s/rank%d.jsonl", run, job->id, rank);
    FILE *file = create(name);
    double scale = 65536;
    fprintf(
        file,
        "{\"event\":\"start\",\"schema\":1,\"world\":%d,\"threads\":%d,\"param_elements\":11175050,"
        "\"half_products\":\"fp16 emulated: this CPU has neither AMX-FP16 nor AVX512-FP16\","
        "\"activation_bytes\":64000000,\"workspace_bytes\":9000000,"
        "\"options\":{\"opt-level\":\"%s\",\"optimizer\":\"sgd\",\"momentum\":0.9}}\n",
        job->world, job->world == 1 ? 2 : 1, job->level);
    fprintf(file, "{\"event\":\"buckets\",\"step\":1,\"buckets\":[{\"bytes\":26214400,"
                  "\"names\":[\"fc.bias\"]},{\"bytes\":18485760,\"names\":[\"conv1.weight\"]}]}\n");
    for (int step = 1; step <= job->steps; step++) {
        write_step(file, job, rank, step, &scale);
        if (strcmp(job->role, "phases") == 0 && step >= 3 && step <= 5) {
            write_spans(file, job, rank, step);
        }
    }
    if (strcmp(job->state, "done") == 0) {
        fprintf(file, "{\"event\":\"end\"}\n");
    } else {
        fprintf(file, "{\"event\":\"step\",\"step\":10,\"lo"); /* its writer was killed here */
    }
    fclose(file);
}

static void write_compare(const char *run, const fake_job *job)
{
    static const char *const LAYERS[] = {"fc.bias",
                                         "fc.weight",
                                         "layer3.2.conv2.weight",
                                         "layer3.2.bn2.weight",
                                         "layer3.1.conv1.weight",
                                         "layer3.0.downsample.0.weight",
                                         "layer2.2.conv2.weight",
                                         "layer2.0.bn1.bias",
                                         "layer1.1.conv1.weight",
                                         "layer1.0.conv2.weight",
                                         "bn1.weight",
                                         "conv1.weight"};
    double r = job->level[1] == '0'   ? 2e-7
               : job->level[1] == '1' ? 9e-4
               : job->level[1] == '2' ? 1.5e-3
                                      : 3e-3;
    double factor = job->level[1] == '0' ? 32 : 4;
    LS_TEXT(name, 100, "%s/jobs/%s/compare.json", run, job->id);
    FILE *file = create(name);
    fprintf(file,
            "{\"schema\":1,\"reference\":\"oracle\",\"step\":1,\"level\":\"%s\","
            "\"whole\":{\"e\":%g,\"r\":%g,\"limit\":%g},\"tensors\":[",
            job->level, r, r, factor * r / 2);
    for (int i = 0; i < 12; i++) {
        double own = r * exp(0.4 * noise(job, 0, i)), e = own * (1 + 0.3 * fabs(noise(job, 1, i)));
        if (job->level[1] == '3' && i == 9) {
            e = 5.2 * factor * own; /* the planted failure */
        }
        fprintf(file, "%s{\"name\":\"%s\",\"elements\":%d,\"e\":%g,\"r\":%g,\"limit\":%g}",
                i > 0 ? "," : "", LAYERS[i], 64 << i, e, own, factor * own);
    }
    fprintf(file, "]}\n");
    fclose(file);
}

static void write_member(FILE *file, const char *name, const char *text)
{
    cJSON *value = cJSON_CreateString(text);
    char *printed = cJSON_PrintUnformatted(value);
    fprintf(file, "\"%s\":%s", name, printed);
    cJSON_free(printed);
    cJSON_Delete(value);
}

static void write_job(const char *run, const fake_job *job)
{
    bool killed = strcmp(job->state, "done") != 0;
    LS_TEXT(name, 100, "%s/jobs/%s/job.json", run, job->id);
    FILE *file = create(name);
    fprintf(file, "{\"schema\":1,\"id\":\"%s\",", job->id);
    write_member(file, "label", job->label);
    fprintf(
        file,
        ",\"command\":[\"build/lockstep-train\",\"-a\",\"resnet18\"],\"environment\":{},"
        "\"facts\":{\"role\":\"%s\",\"arch\":\"resnet18\",\"image_size\":64,\"batch_size\":8,"
        "\"level\":\"%s\",\"half\":\"%s\",\"world\":%d,\"nodes\":%d,\"simulated\":%s,"
        "\"bucket_mb\":%g,\"dialect\":\"apex\",\"sync_bn\":false,\"threads\":1,\"warmup_steps\":%d,"
        "\"steps\":%d,\"oversubscribed\":%s,\"half_emulated\":true,\"checked\":%s,\"rung\":1,"
        "\"sweep\":[%s]},\"outcome\":{\"state\":\"%s\",\"first_rank\":%d,\"code\":%d,\"signal\":%d,"
        "\"seconds\":%g,\"ranks\":[",
        job->role, job->level, job->half, job->world, job->nodes, job->nodes > 1 ? "true" : "false",
        job->bucket_mb, strcmp(job->role, "evidence") == 0 ? 0 : 4, job->steps,
        job->world > 2 ? "true" : "false", job->checked ? "true" : "false", job->sweep, job->state,
        killed ? 3 : -1, killed ? 137 : 0, killed ? 9 : 0, job->steps * job->step_ms * 1e-3);
    for (int k = 0; k < job->world; k++) {
        fprintf(file,
                "%s{\"rank\":%d,\"code\":%d,\"signal\":%d,\"user_s\":3,\"system_s\":0.4,\"rss_"
                "bytes_max\":%g}",
                k > 0 ? "," : "", k, killed ? (k == 3 ? 137 : 10) : 0, killed && k == 3 ? 9 : 0,
                (job->level[1] == '0'   ? 380e6
                 : job->level[1] == '1' ? 345e6
                                        : 290e6) +
                    1e6 * k);
    }
    fprintf(file, "]}}\n");
    fclose(file);
    for (int k = 0; k < job->world; k++) {
        write_rank(run, job, k);
    }
    if (job->compared) {
        write_compare(run, job);
    }
}

static void write_verdicts(const char *run)
{
    static const char *const FAMILIES[] = {"gradients",  "ddp",      "scaler",
                                           "opt_levels", "schedule", "launch"};
    LS_TEXT(name, 100, "%s/verdicts.jsonl", run);
    FILE *file = create(name);
    for (int i = 0; i < 48; i++) {
        fprintf(file,
                "{\"schema\":1,\"case\":\"%s.case%d\",\"family\":\"%s\",\"kind\":\"protocol\","
                "\"requirement\":\"R%d\",\"in_claim\":true,\"verdict\":\"PASS\",\"seconds\":0.%02d,"
                "\"jobs\":[\"e.o2\"],\"evidence\":\"ok\"}\n",
                FAMILIES[i % 6], i, FAMILIES[i % 6], i, i);
    }
    fprintf(file,
            "{\"schema\":1,\"case\":\"gradients.o3.w4.b1mb\",\"family\":\"gradients\","
            "\"kind\":\"protocol\",\"requirement\":\"R12\",\"in_claim\":true,\"verdict\":\"FAIL\","
            "\"seconds\":0.41,\"jobs\":[\"e.o3\",\"o3.w8\"],\"evidence\":\"rank=2 "
            "layer1.0.conv2.weight\",\"value\":0.031,\"limit\":0.006,\"unit\":\"of the norm\","
            "\"limit_from\":\"4 x ideal fp16\",\"cause\":\"every gradient is 2.000 x the expected "
            "one (residual 4e-7): summed over ranks, not averaged\",\"repeat\":\"build/lockstep "
            "conform --case gradients.o3.w4.b1mb --seed 7 --device cpu    # 3f2a91c\"}\n"
            "{\"schema\":1,\"case\":\"ddp.o1.w8.b1mb\",\"family\":\"ddp\",\"in_claim\":true,"
            "\"verdict\":\"CRASH\",\"seconds\":7.2,\"jobs\":[\"o1.b1\"],\"evidence\":\"rank 3 was "
            "ended by signal 9\",\"repeat\":\"build/lockstep conform --case ddp.o1.w8.b1mb --seed "
            "7 --device cpu    # 3f2a91c\"}\n"
            "{\"schema\":1,\"case\":\"schedule.warmup\",\"family\":\"schedule\",\"in_claim\":true,"
            "\"verdict\":\"WAIVED\",\"seconds\":0.1,\"evidence\":\"lr 0.0333 instead of 0.0332\","
            "\"waiver\":\"one step late by design until the schedule is agreed\"}\n"
            "{\"schema\":1,\"case\":\"syncbn.group\",\"family\":\"syncbn\",\"in_claim\":false,"
            "\"verdict\":\"UNSUPPORTED\",\"seconds\":0.05,\"evidence\":\"--sync-bn-group\"}\n"
            "{\"schema\":1,\"case\":\"launch.usage\",\"family\":\"launch\",\"in_claim\":true,"
            "\"manners\":true,\"verdict\":\"FAIL\",\"seconds\":0.05,\"evidence\":\"exit code 0\"}\n"
            "{\"schema\":1,");
    write_member(file, "case", HOSTILE);
    fprintf(file, ",\"family\":\"launch\",\"in_claim\":true,\"verdict\":\"FAIL\",\"seconds\":0.1,");
    write_member(file, "evidence", HOSTILE);
    fprintf(file, "}\n");
    fclose(file);
}

/* Into this folder of the scratch one. */
static void write_run(const char *run)
{
    LS_TEXT(name, 100, "%s/run.json", run);
    FILE *file = create(name);
    fprintf(file,
            "{\"schema\":1,\"title\":\"Lockstep bench quick: resnet18\",\"label\":\"quick\","
            "\"command\":\"make bench NGPUS=8\",\"created\":\"2026-01-02T03:04:05Z\","
            "\"where\":\"CPU: 8 ranks on 2 cores, no GPU was tested\",\"options\":{\"NGPUS\":8,"
            "\"device\":\"cpu\"},\"machine\":{\"cores\":2,\"cpu\":\"Invented 9000\","
            "\"memory_bytes\":25000000000,\"libraries\":[{\"name\":\"libdnnl\","
            "\"version\":\"2.6.3\",\"path\":\"/usr/lib/libdnnl.so.2\"}],"
            "\"environment\":{\"OMP_NUM_THREADS\":\"1\"}},\"version\":\"0.1.9\","
            "\"commit\":\"3f2a91c\",\"dirty\":true,\"installed\":[\"libdnnl-dev\",\"gnuplot-nox\"],"
            "\"roofline\":[{\"arch\":\"resnet18\",\"image_size\":64,\"batch_size\":8,"
            "\"images_per_s\":90}],\"headline\":{\"correct\":{\"value\":\"no\",\"why\":\"claim "
            "ddp-o2: 49 of 52 cases; 1 outside the claim unsupported\"},\"manners\":{\"value\":\"0 "
            "of 1\",\"why\":\"1 FAIL\",\"decide\":false},\"speed\":{\"value\":\"no baseline\","
            "\"why\":\"oversubscribed: nothing is gated\"},\"machine\":{\"value\":\"ready\","
            "\"why\":\"2 cores, no NVIDIA device on the bus\"}}}\n");
    fclose(file);
    for (int j = 0; j < JOB_COUNT; j++) {
        write_job(run, &JOBS[j]);
    }
    LS_TEXT(cut, 400, "%s/%s/jobs/o2.cut", scratch, run); /* a job that the run never finished */
    LS_ASSERT(ls_path_make_folder(cut) == LS_OK);
    write_verdicts(run);
}

/* ---- its report ------------------------------------------------------------------------------ */

static void open_run(void)
{
    open_scratch();
    write_run(".");
}

static cJSON *read_summary(const char *run)
{
    cJSON *summary = NULL;
    LS_TEXT(path, 400, "%s/%s/summary.json", scratch, run);
    ck_assert_int_eq(ls_json_read_file(path, &summary), LS_OK);
    return summary;
}

/* Field `field` (from 0) of data row `row` of a table, as a number. */
static double cell(const char *name, int row, int field)
{
    char line[4096];
    LS_TEXT(path, 400, "%s/tables/%s.tsv", scratch, name);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    double value = NAN;
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] == '#' || line[0] == '\n' || row-- > 0) {
            continue;
        }
        char *rest = NULL, *part = strtok_r(line, "\t", &rest);
        for (int i = 0; i < field; i++) {
            part = strtok_r(NULL, "\t", &rest);
        }
        value = strtod(part, NULL);
        break;
    }
    fclose(file);
    return value;
}

static const cJSON *summary_row(const cJSON *summary, const char *job)
{
    const cJSON *row;
    ls_json_each(row, ls_json_get(summary, "throughput")) {
        if (strcmp(ls_json_string(row, "job", ""), job) == 0) {
            return row;
        }
    }
    return NULL;
}

TEST(tables_hold_what_was_run)
{
    ls_table_head head;
    ck_assert_int_eq(ls_report_tables(scratch), LS_OK);
    /* O0, O1, O2, O2 bf16, O3: 8 ranks x 8 images / 0.41 s; 2 % covers the median of 36 steps
     * with 1.2 % noise */
    ck_assert_double_eq_tol(cell("throughput_by_level", 0, 6), 64 / 0.410, 0.02 * 156);
    ck_assert_double_eq_tol(cell("throughput_by_level", 1, 6), 64 / 0.760, 0.02 * 84);
    ck_assert_double_eq(cell("throughput_by_level", 4, 15), 0); /* O3 is not checked */
    ck_assert_int_eq(ls_table_read_head(scratch, "throughput_by_level", &head), LS_OK);
    ck_assert_int_eq(head.rows, 5);
    ck_assert_int_eq(ls_table_read_head(scratch, "throughput_by_bucket", &head), LS_OK);
    ck_assert_int_eq(head.rows, 4); /* the killed one has no row: it is not 0 images/s */
    ck_assert_int_eq(ls_table_read_head(scratch, "gradient_error", &head), LS_OK);
    ck_assert_int_eq(head.rows, 48);
    ck_assert_int_eq(ls_table_read_head(scratch, "timeline", &head), LS_OK);
    ck_assert_int_eq(head.rows, 8 * 7);
    ck_assert_double_eq(cell("loss_scale", 0, 1), 65536);
    ck_assert_double_eq(cell("loss_scale", 2, 1), 16384);
    /* 2 %: noise of a step, as above */
    ck_assert_double_eq_tol(cell("step_phases", 1, 3), 0.52 * 650, 0.02 * 338);
    ck_assert_double_eq(cell("memory", 0, 2), 387);
}

TEST(all_of_it_word_for_word)
{
    golden_check("suite/unit/harness/expected/report.txt",
                 golden_short(golden_report(scratch, false), 2));
}

TEST(summary_is_for_programs)
{
    ck_assert_int_eq(ls_report_tables(scratch), LS_OK);
    cJSON *summary = read_summary(".");
    ck_assert_ptr_null(cJSON_GetObjectItem(summary, "headline")); /* the pages' */
    const cJSON *row = summary_row(summary, "o2.w8");
    ck_assert_int_eq(ls_json_int(row, "steps_measured", 0), 40 - 4 - 1);
    ck_assert_double_eq(ls_json_number(row, "reduced_bytes", 0), 26214400 + 18485760);
    /* 44.7 MB, 8 ranks, 0.40 of 640 ms: 44.7e6 * 2 * 7/8 / 0.256 s */
    ck_assert_double_eq_tol(ls_json_number(row, "bus_bytes_per_s", 0), 44700160 * 1.75 / 0.256,
                            0.02 * 305e6);
    ck_assert_double_eq_tol(ls_json_number(row, "efficiency", 0), 118.0 / 640, 0.02 * 0.18);
    /* 2 % of the ratio, as the rates above */
    ck_assert_double_eq_tol(ls_json_number(row, "roofline_share", 0), 100 / (8 * 90.0),
                            0.02 * 0.14);
    cJSON_Delete(summary);
}

static int occurrences(const char *text, const char *part)
{
    int count = 0;
    for (; (text = strstr(text, part)) != NULL; text += strlen(part)) {
        count++;
    }
    return count;
}

TEST(pages_escape_and_open_with_the_verdicts)
{
    ck_assert_int_eq(ls_report_tables(scratch), LS_OK);
    ck_assert_int_eq(ls_report_write(scratch, "plots"), LS_OK);
    char *html = read_text("report.html");
    ck_assert(strstr(html, "<script") == NULL);
    ck_assert_int_eq(occurrences(html, " id='gp"), 0); /* ids of several figures do not clash */
    ck_assert(strstr(html, "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;&quot;") != NULL);
    ck_assert(strchr(html, '\x1b') == NULL);
    ck_assert(strstr(html, " src=") == NULL && strstr(html, "<link") == NULL &&
              strstr(html, "@import") == NULL);
    ck_assert(strstr(html, "@page{size:A4") != NULL && strstr(html, "@media print") != NULL);
    char *trace = read_text("trace.json");
    cJSON *root = cJSON_Parse(trace);
    const cJSON *events = cJSON_GetObjectItem(root, "traceEvents");
    /* 2 jobs, 8 ranks: 3 names and 3 steps of 7 spans each */
    ck_assert_int_eq(cJSON_GetArraySize(events), 2 * 8 * (3 + 3 * 7));
    cJSON_Delete(root);
    free(html);
    free(trace);
}

/* Every verdict inside and outside the claim, on two cases of one job, and SPEED's rows. */
TEST(junit_is_what_a_ci_counts)
{
    LS_TEXT(folder, 400, "%s/junit", scratch);
    write_text("junit/jobs/e/job.json",
               "{\"facts\":{\"role\":\"evidence\",\"world\":2},\"outcome\":{\"state\":\"done\","
               "\"seconds\":3.25,\"ranks\":[]}}\n");
    write_text(
        "junit/run.json",
        "{\"speed\":[{\"label\":\"O2, 2 ranks\",\"value\":\"below\",\"why\":\"slower by 9 %\"},"
        "{\"label\":\"O1, 2 ranks\",\"value\":\"within\",\"why\":\"\"},"
        "{\"label\":\"O0, 2 ranks\",\"value\":\"no baseline\",\"why\":\"x\"}]}\n");
    FILE *file = create("junit/verdicts.jsonl");
    for (int c = 0; c < LS_VERDICT_CODES; c++) {
        for (int claimed = 0; claimed < 2; claimed++) {
            fprintf(file,
                    "{\"case\":\"f%d.%s\",\"family\":\"f%d\",\"in_claim\":%s,\"verdict\":\"%s\","
                    "\"seconds\":0.5,\"jobs\":[\"e\"],\"evidence\":\"e%d\"}\n",
                    claimed, ls_verdict_name(c), claimed, claimed ? "true" : "false",
                    ls_verdict_name(c), c);
        }
    }
    fclose(file);
    ck_assert_int_eq(ls_report_junit(folder), LS_OK);
    char *junit = read_text("junit/junit.xml");
    junit_counts counts = junit_read(junit);
    ck_assert_int_eq(counts.tests, 2 * LS_VERDICT_CODES + 3);
    ck_assert_int_eq(counts.failures, 4 + 1); /* WEAK FAIL CRASH UNSUPPORTED, and a row below */
    ck_assert_int_eq(counts.errors, 3);       /* SKIP TIMEOUT INFRA */
    /* WAIVED, all but PASS outside the claim, a row that was compared with nothing */
    ck_assert_int_eq(counts.skipped, 1 + LS_VERDICT_CODES - 1 + 1);
    /* the job once */
    ck_assert_double_eq_tol(counts.seconds, 0.5 * 2 * LS_VERDICT_CODES + 3.25, 1e-3);
    ck_assert_ptr_nonnull(strstr(junit, "name=\"f0.PASS\" time=\"3.750\""));
    ck_assert_ptr_nonnull(strstr(junit, "name=\"f1.PASS\" time=\"0.500\""));
    ck_assert_ptr_nonnull(strstr(junit, "<error type=\"INFRA\" message=\"e8\""));
    ck_assert_ptr_nonnull(strstr(junit, "<failure type=\"SPEED\" message=\"slower by 9 %\""));
    ck_assert_int_eq(occurrences(junit, "not ok"), 0);
    free(junit);
}

TEST(terminal_is_80_columns)
{
    char *text = NULL, *rest = NULL;
    size_t bytes = 0;
    ck_assert_int_eq(ls_report_tables(scratch), LS_OK);
    FILE *to = open_memstream(&text, &bytes);
    ck_assert_int_eq(ls_report_terminal(scratch, to), LS_OK);
    fclose(to);
    ck_assert(strchr(text, '\x1b') == NULL);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        bool pasted = strncmp(line, "repeat:", 7) == 0; /* stays on one line, whatever its length */
        ck_assert_msg(pasted || strlen(line) <= 80, "%zu columns: %s", strlen(line), line);
    }
    free(text);
}

TEST(without_gnuplot_the_report_goes_without_pictures)
{
    char *old = strdup(getenv("PATH"));
    setenv("PATH", scratch, 1);
    ck_assert_int_eq(ls_report_tables(scratch), LS_OK);
    ls_status status = ls_report_write(scratch, "plots");
    setenv("PATH", old, 1);
    free(old);
    ck_assert_int_eq(status, LS_OK);
    char *html = read_text("report.html");
    ck_assert(strstr(html, "<svg") == NULL);
    ck_assert(strstr(html, "<figcaption>") != NULL);
    LS_TEXT(path, 400, "%s/plots/scaling.svg", scratch);
    ck_assert(access(path, F_OK) != 0);
    free(html);
}

/* What it is without jobs: odd_runs.txt. */
TEST(a_folder_without_a_run_is_refused)
{
    LS_TEXT(folder, 400, "%s/empty", scratch);
    ck_assert_int_eq(ls_path_make_folder(folder), LS_OK);
    ck_assert_int_eq(ls_report_tables(folder), LS_ERR_USAGE);
}

/* Marks steps 5 and 30 of every rank as audited; all their times become `factor` of what they were.
 */
static void audit_rank(const char *name, double factor)
{
    char *text = read_text(name), *rest = NULL;
    FILE *file = create(name);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        cJSON *event = cJSON_Parse(line), *entry, *ms = cJSON_GetObjectItem(event, "ms");
        int step = ls_json_int(event, "step", 0);
        bool audited = step == 5 || step == 30;
        if (audited && ms != NULL) {
            cJSON_AddTrueToObject(event, "audited");
        }
        cJSON *spans = cJSON_GetObjectItem(event, "spans");
        for (entry = audited && ms != NULL ? ms->child : NULL; entry != NULL; entry = entry->next) {
            cJSON_SetNumberValue(entry, entry->valuedouble * factor);
        }
        for (entry = audited && spans != NULL ? spans->child : NULL; entry != NULL;
             entry = entry->next) {
            cJSON_SetNumberValue(cJSON_GetObjectItem(entry, "to_ns"), 1e9 * factor);
        }
        char *changed = event == NULL ? NULL : cJSON_PrintUnformatted(event);
        fprintf(file, "%s\n", changed == NULL ? line : changed);
        cJSON_free(changed);
        cJSON_Delete(event);
    }
    fclose(file);
    free(text);
}

static void audit_run(const char *run, double factor)
{
    write_run(run);
    for (int j = 0; j < JOB_COUNT; j++) {
        for (int k = 0; k < JOBS[j].world; k++) {
            LS_TEXT(name, 100, "%s/jobs/%s/rank%d.jsonl", run, JOBS[j].id, k);
            audit_rank(name, factor);
        }
    }
    LS_TEXT(folder, 400, "%s/%s", scratch, run);
    ck_assert_int_eq(ls_report_tables(folder), LS_OK);
    ck_assert_int_eq(ls_report_write(folder, "/nowhere"), LS_OK);
}

static void check_equal(const char *other, const char *name)
{
    LS_TEXT(a, 100, "usual/%s", name);
    LS_TEXT(b, 100, "%s/%s", other, name);
    char *one = read_text(a), *two = read_text(b);
    ck_assert_msg(strcmp(one, two) == 0, "%s differs", name);
    free(one);
    free(two);
}

/* summary.json as text, but for the audits' share of the jobs' time, which goes to *share. */
static char *summary_without_share(const char *run, double *share)
{
    cJSON *summary = read_summary(run);
    cJSON *compare = cJSON_GetObjectItem(summary, "compare");
    *share = ls_json_number(compare, "audit_share", NAN);
    cJSON_DeleteItemFromObject(compare, "audit_share");
    cJSON_DeleteItemFromObject(cJSON_GetObjectItem(summary, "beside"), "audit_share");
    char *text = cJSON_Print(summary);
    cJSON_Delete(summary);
    return text;
}

/* Whatever time it took: every table, summary.json and trace.json are the same. */
TEST(no_figure_contains_an_audited_step)
{
    static const double factors[] = {50, 0.02};
    audit_run("usual", 1);
    for (int i = 0; i < 2; i++) {
        LS_TEXT(other, 16, "f%d", i);
        audit_run(other, factors[i]);
        double share, longer;
        char *one = summary_without_share("usual", &share);
        char *two = summary_without_share(other, &longer);
        ck_assert_str_eq(one, two);
        ck_assert(factors[i] > 1 ? longer > share + 1 : longer < share);
        cJSON_free(one);
        cJSON_free(two);
        check_equal(other, "trace.json");
        for (int t = 0; ls_tables_name(t) != NULL; t++) {
            LS_TEXT(name, 80, "tables/%s.tsv", ls_tables_name(t));
            check_equal(other, name);
        }
    }
    cJSON *summary = read_summary("usual");
    const cJSON *row = summary_row(summary, "o2.w8");
    ck_assert_int_eq(ls_json_int(row, "steps_measured", 0), 40 - 4 - 1 - 2);
    ck_assert_int_eq(ls_json_int(row, "audited_steps", 0), 2);
    cJSON_Delete(summary);
}

typedef enum place { OUTSIDE, CLAIM, MANNERS } place; /* of a case; MANNERS do not decide here */

/* A run with one case and two rows: 100 images/s times `speed`, +-1 %, one with more ranks than
 * cores. */
static void write_small(const char *name, const char *verdict, place where, double speed)
{
    LS_TEXT(summary, 40, "%s/summary.json", name);
    LS_TEXT(verdicts, 40, "%s/verdicts.jsonl", name);
    LS_TEXT(headline, 40, "%s/run.json", name);
    FILE *file = create(summary);
    fprintf(file, "{\"machine\":{\"cpu\":\"C\",\"cores\":2},\"options\":{\"device\":\"cpu\"},"
                  "\"throughput\":[");
    for (int row = 0; row < 2; row++) {
        fprintf(file,
                "%s{\"label\":\"r%d\",\"world\":%d,\"images_per_s\":%g,\"images_per_s_low\":%g,"
                "\"images_per_s_high\":%g,\"not_a_result\":\"\",\"oversubscribed\":%s}",
                row == 0 ? "" : ",", row, row, 100 * speed, 99 * speed, 101 * speed,
                row == 0 ? "false" : "true");
    }
    fprintf(file, "]}\n");
    fclose(file);
    write_text(headline, "{\"headline\":{\"manners\":{\"decide\":false}}}\n");
    file = create(verdicts);
    fprintf(file, "{\"case\":\"always\",\"in_claim\":true,\"verdict\":\"PASS\"}\n");
    if (verdict[0] != '\0') {
        fprintf(file, "{\"case\":\"case\",\"in_claim\":%s,\"manners\":%s,\"verdict\":\"%s\"}\n",
                where == OUTSIDE ? "false" : "true", where == MANNERS ? "true" : "false", verdict);
    }
    fclose(file);
}

static const struct change {
    const char *before, *after; /* the case's verdicts, "": none */
    place where;
    double speed, gate; /* of B, A's being 1 */
    ls_status status;
    const char *said;
} changes[] = {
    {"PASS", "PASS", CLAIM, 1, NAN, LS_OK, "0 missing in B, 0 new in B, 2 as before"},
    {"PASS", "FAIL", CLAIM, 1, NAN, LS_ERR_CHECK, "newly failing: case, PASS -> FAIL\n"},
    {"WEAK", "CRASH", CLAIM, 1, NAN, LS_ERR_CHECK, "cases: 1 newly failing, "},
    {"SKIP", "TIMEOUT", CLAIM, 1, NAN, LS_ERR_CHECK, "newly failing: case, SKIP -> TIMEOUT"},
    {"", "FAIL", CLAIM, 1, NAN, LS_ERR_CHECK, "newly failing: case, none -> FAIL"},
    {"PASS", "FAIL", OUTSIDE, 1, NAN, LS_OK, "case, PASS -> FAIL [outside the claim]"},
    {"PASS", "FAIL", MANNERS, 1, NAN, LS_OK, "case, PASS -> FAIL [manners]"},
    {"FAIL", "TIMEOUT", CLAIM, 1, NAN, LS_OK, "cases: 0 newly failing, 0 newly not judged, "},
    {"FAIL", "PASS", CLAIM, 1, NAN, LS_OK, "newly passing: case, FAIL -> PASS"},
    {"PASS", "INFRA", CLAIM, 1, NAN, LS_OK, "newly not judged: case, PASS -> INFRA"},
    {"PASS", "WAIVED", CLAIM, 1, NAN, LS_OK, ", 2 as before"},
    {"PASS", "", CLAIM, 1, NAN, LS_ERR_CHECK, "missing in B: case, PASS -> none"},
    {"WEAK", "", CLAIM, 1, 0.05, LS_ERR_CHECK, "missing in B: case, WEAK -> none"},
    {"PASS", "", OUTSIDE, 1, NAN, LS_OK, "missing in B: case, PASS -> none [outside"},
    {"PASS", "", MANNERS, 1, NAN, LS_OK, "missing in B: case, PASS -> none [manners]"},
    {"", "PASS", CLAIM, 1, NAN, LS_OK, " 1 new in B, 1 as before"},
    {"PASS", "PASS", CLAIM, 0.5, NAN, LS_OK, "slower by 50.0 %"},
    {"PASS", "PASS", CLAIM, 1, 0.05, LS_OK,
     "gate 5 %: 0 of 1 jobs that decide exceed it; 1 decide"},
    {"PASS", "PASS", CLAIM, 0.9, 0.05, LS_ERR_CHECK, "[8.7, 11.3]: exceeds the gate"},
    {"PASS", "PASS", CLAIM, 0.9, 0.05, LS_ERR_CHECK,
     "gate 5 %: 1 of 1 jobs that decide exceeds it"},
    {"PASS", "PASS", CLAIM, 0.94, 0.05, LS_OK,
     "slower by 6.0 %"}, /* or noise: its interval reaches 4.7 */
    {"PASS", "PASS", CLAIM, 0.9, 0.2, LS_OK, "gate 20 %: 0 of 1"},
    {"PASS", "FAIL", CLAIM, 1.5, 0.05, LS_ERR_CHECK, "faster by 50.0 %"},
};

ROWS_TEST(diff_ends_with_what_got_worse, changes)
{
    const struct change *c = &changes[_i];
    char *text = NULL;
    size_t bytes = 0;
    write_small("a", c->before, c->where, 1);
    write_small("b", c->after, c->where, c->speed);
    LS_TEXT(a, 400, "%s/a", scratch);
    LS_TEXT(b, 400, "%s/b", scratch);
    FILE *to = open_memstream(&text, &bytes);
    ls_status status = ls_report_diff(a, b, c->gate, to);
    fclose(to);
    ck_assert_msg(strstr(text, c->said) != NULL, "%s", text);
    ck_assert_msg(status == c->status, "%d: %s", status, text);
    free(text);
}

/* figures are drawn by child processes, on a machine that others share */
int main(int argc, char **argv)
{
    if (argc == 2) {
        ls_text_put(scratch, sizeof scratch, "%s", argv[1]);
        write_run(".");
        ls_status status = ls_report_tables(scratch);
        status = status == LS_OK ? ls_report_write(scratch, "plots") : status;
        return status == LS_OK ? (int)ls_report_terminal(scratch, stdout) : (int)status;
    }
    return RUN_TESTS("report", .timeout_s = 60, .before = open_run, .after = close_scratch);
}
