/* An invented run for test_report.c: eight ranks, every sweep, a crash, a failure, a waiver, a job
 * that was cut short, hostile text. Everything is a function of the table of jobs, so expected
 * values can be computed. */
#ifndef LS_TEST_REPORT_FAKE_H
#define LS_TEST_REPORT_FAKE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/json.h"
#include "kernels/core/rng.h"
#include "suite/unit/harness/scratch.h"

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
        "\"activation_bytes\":64000000,\"workspace_bytes\":9000000,\"options\":{\"opt-level\":"
        "\"%s\","
        "\"optimizer\":\"sgd\",\"momentum\":0.9}}\n",
        job->world, job->world == 1 ? 2 : 1, job->level);
    fprintf(file, "{\"event\":\"buckets\",\"step\":1,\"buckets\":[{\"bytes\":26214400,\"names\":["
                  "\"fc.bias\"]},"
                  "{\"bytes\":18485760,\"names\":[\"conv1.weight\"]}]}\n");
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
            "{\"schema\":1,\"reference\":\"oracle\",\"step\":1,\"level\":\"%s\",\"whole\":{\"e\":%"
            "g,\"r\":%g,"
            "\"limit\":%g},\"tensors\":[",
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
        ",\"command\":[\"build/"
        "lockstep-train\",\"-a\",\"resnet18\"],\"environment\":{},\"facts\":{\"role\":\"%s\","
        "\"arch\":\"resnet18\",\"image_size\":64,\"batch_size\":8,\"level\":\"%s\",\"half\":\"%s\","
        "\"world\":%d,"
        "\"nodes\":%d,\"simulated\":%s,\"bucket_mb\":%g,\"dialect\":\"apex\",\"sync_bn\":false,"
        "\"threads\":1,"
        "\"warmup_steps\":%d,\"steps\":%d,\"oversubscribed\":%s,\"half_emulated\":true,\"checked\":"
        "%s,"
        "\"rung\":1,\"sweep\":[%s]},\"outcome\":{\"state\":\"%s\",\"first_rank\":%d,\"code\":%d,"
        "\"signal\":%d,\"seconds\":%g,\"ranks\":[",
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
                "\"requirement\":\"R%d\","
                "\"in_claim\":true,\"verdict\":\"PASS\",\"seconds\":0.%02d,\"jobs\":[\"e.o2\"],"
                "\"evidence\":\"ok\"}\n",
                FAMILIES[i % 6], i, FAMILIES[i % 6], i, i);
    }
    fprintf(file,
            "{\"schema\":1,\"case\":\"gradients.o3.w4.b1mb\",\"family\":\"gradients\",\"kind\":"
            "\"protocol\","
            "\"requirement\":\"R12\",\"in_claim\":true,\"verdict\":\"FAIL\",\"seconds\":0.41,"
            "\"jobs\":[\"e.o3\",\"o3.w8\"],"
            "\"evidence\":\"rank=2 "
            "layer1.0.conv2.weight\",\"value\":0.031,\"limit\":0.006,\"unit\":\"of the norm\","
            "\"limit_from\":\"4 x ideal fp16\",\"cause\":\"every gradient is 2.000 x the expected "
            "one (residual "
            "4e-7): summed over ranks, not averaged\",\"repeat\":\"build/lockstep conform --case "
            "gradients.o3.w4.b1mb --seed 7 --device cpu    # 3f2a91c\"}\n"
            "{\"schema\":1,\"case\":\"ddp.o1.w8.b1mb\",\"family\":\"ddp\",\"in_claim\":true,"
            "\"verdict\":\"CRASH\","
            "\"seconds\":7.2,\"jobs\":[\"o1.b1\"],\"evidence\":\"rank 3 was ended by signal "
            "9\",\"repeat\":"
            "\"build/lockstep conform --case ddp.o1.w8.b1mb --seed 7 --device cpu    # 3f2a91c\"}\n"
            "{\"schema\":1,\"case\":\"schedule.warmup\",\"family\":\"schedule\",\"in_claim\":true,"
            "\"verdict\":\"WAIVED\","
            "\"seconds\":0.1,\"evidence\":\"lr 0.0333 instead of 0.0332\",\"waiver\":\"one step "
            "late by design until "
            "the schedule is agreed\"}\n"
            "{\"schema\":1,\"case\":\"syncbn.group\",\"family\":\"syncbn\",\"in_claim\":false,"
            "\"verdict\":"
            "\"UNSUPPORTED\",\"seconds\":0.05,\"evidence\":\"--sync-bn-group\"}\n"
            "{\"schema\":1,\"case\":\"launch.usage\",\"family\":\"launch\",\"in_claim\":true,"
            "\"manners\":true,\"verdict\":\"FAIL\",\"seconds\":0.05,\"evidence\":\"exit code "
            "0\"}\n"
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
            "{\"schema\":1,\"title\":\"Lockstep bench quick: "
            "resnet18\",\"label\":\"quick\",\"command\":"
            "\"make bench NGPUS=8\",\"created\":\"2026-01-02T03:04:05Z\",\"where\":\"CPU: 8 ranks "
            "on 2 cores, no GPU "
            "was "
            "tested\",\"options\":{\"NGPUS\":8,\"device\":\"cpu\"},\"machine\":{\"cores\":2,"
            "\"cpu\":\"Invented "
            "9000\",\"memory_bytes\":"
            "25000000000,\"libraries\":[{\"name\":\"libdnnl\",\"version\":\"2.6.3\",\"path\":\"/"
            "usr/lib/libdnnl.so.2\"}],"
            "\"environment\":{\"OMP_NUM_THREADS\":\"1\"}},\"version\":\"0.1.9\",\"commit\":"
            "\"3f2a91c\",\"dirty\":true,"
            "\"installed\":"
            "[\"libdnnl-dev\",\"gnuplot-nox\"],\"roofline\":[{\"arch\":\"resnet18\",\"image_size\":"
            "64,\"batch_size\":8,"
            "\"images_per_s\":90}],\"headline\":{\"correct\":{\"value\":\"no\",\"why\":\"claim "
            "ddp-o2: 49 of 52 cases; 1 "
            "outside the claim unsupported\"},\"manners\":{\"value\":\"0 of "
            "1\",\"why\":\"1 FAIL\",\"decide\":false},\"speed\":{\"value\":\"no "
            "baseline\",\"why\":\"oversubscribed: nothing is "
            "gated\"},\"machine\":{\"value\":\"ready\",\"why\":\"2 cores, no NVIDIA device on the "
            "bus\"}}}\n");
    fclose(file);
    for (int j = 0; j < JOB_COUNT; j++) {
        write_job(run, &JOBS[j]);
    }
    LS_TEXT(cut, 400, "%s/%s/jobs/o2.cut", scratch, run); /* a job that the run never finished */
    LS_ASSERT(ls_path_make_folder(cut) == LS_OK);
    write_verdicts(run);
}

#endif
