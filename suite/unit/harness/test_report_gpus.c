/* A report of GPUs, from an invented run on four of which one is slow: its table, its figure, its
 * lines, and what SPEED says. `test_report_gpus DIR` leaves that run in DIR to be looked at. */
#include <limits.h>
#include <sys/stat.h>

#include "harness/report/figures.h"
#include "harness/report/page.h"
#include "suite/run/headline.h"
#include "suite/run/run.h"
#include "suite/unit/golden.h"
#include "suite/unit/harness/test_report_run.h"
#include "suite/unit/run_suite.h"

enum { GPUS = 4, STEPS = 30, SLOW = 2 };

/* Step times of a GPU alone: SLOW is 3.8 % behind, as the one machine of 39. */
static double step_ms(int gpu, int step)
{
    double ms = 50 * (1 + 0.0005 * ((step * 7 + gpu * 3) % 5 - 2));
    return gpu == SLOW ? ms / (1 - 0.038) : ms;
}

static void write_rank(const char *job, const char *role, int rank)
{
    char name[100];
    bool waits = strcmp(role, "throughput") == 0;
    ls_text_put(name, sizeof name, "jobs/%s/rank%d.jsonl", job, rank);
    FILE *file = create(name);
    fprintf(file,
            "{\"schema\":1,\"event\":\"start\",\"device\":\"NVIDIA H200 (GPU-%d)\","
            "\"cuda_graph\":true,\"activation_bytes\":2e10,\"workspace_bytes\":1e9,"
            "\"memory\":{\"parameters\":5e7},\"options\":{\"opt-level\":\"O2\"}}\n",
            rank);
    for (int step = 1; step <= STEPS; step++) {
        if (step == 3 && waits) {
            fprintf(file, "{\"event\":\"graph\",\"step\":3,\"cuda_graph\":\"no room\"}\n");
        }
        fprintf(file,
                "{\"event\":\"step\",\"step\":%d,\"loss\":2,\"loss_scale\":1024,\"skipped\":false,"
                "\"images\":256,\"at_ns\":%.0f,\"ms\":{\"total\":%.5f}}\n",
                step, 1e9 + 1e6 * 52 * step, step_ms(waits ? SLOW : rank, step));
    }
    fprintf(file, "{\"event\":\"end\"}\n");
    fclose(file);
}

static void write_job(const char *id, const char *role, bool oversubscribed)
{
    char name[100];
    ls_text_put(name, sizeof name, "jobs/%s/job.json", id);
    FILE *file = create(name);
    fprintf(file,
            "{\"schema\":1,\"id\":\"%s\",\"label\":\"O2, 4 ranks\",\"facts\":{\"role\":\"%s\","
            "\"arch\":\"resnet50\",\"image_size\":224,\"batch_size\":256,\"level\":\"O2\","
            "\"half\":\"fp16\",\"world\":%d,\"nodes\":1,\"bucket_mb\":25,\"warmup_steps\":2,"
            "\"checked\":true,\"oversubscribed\":%s,\"sweep\":[\"level\"]},"
            "\"outcome\":{\"state\":\"done\",\"first_rank\":-1,\"code\":0,\"signal\":0,"
            "\"seconds\":20,\"ranks\":[{\"rank\":0,\"rss_bytes_max\":3e9}]}}",
            id, role, GPUS, oversubscribed ? "true" : "false");
    fclose(file);
    ls_text_put(name, sizeof name, "jobs/%s/gpu.jsonl", id);
    file = create(name);
    double start_ns = strcmp(role, "twin") == 0 ? 30e9 : 1e9;
    for (int second = 0; second < 20; second++) {
        for (int gpu = 0; gpu < GPUS; gpu++) {
            bool held = gpu == SLOW && second > 9;
            fprintf(file,
                    "{\"at_ns\":%.0f,\"gpu\":%d,\"power_w\":%d,\"gpu_c\":%d,\"sm_mhz\":%d,"
                    "\"throttle_reasons\":%d}\n",
                    start_ns + second * 1e9, gpu, 600 + gpu, 40 + second + 4 * (gpu == SLOW),
                    held ? 1500 : 1980, held ? LS_NVML_REASON_HW_THERMAL : 0);
        }
    }
    fclose(file);
    for (int rank = 0; rank < GPUS; rank++) {
        write_rank(id, role, rank);
    }
}

static void write_run(bool oversubscribed)
{
    FILE *file = create("run.json");
    fprintf(file,
            "{\"schema\":1,\"title\":\"Lockstep bench\",\"where\":\"CUDA: 4 ranks\",\"options\":{"
            "\"device\":\"cuda\"},\"machine\":{\"cores\":16},\"gpus\":[");
    for (int gpu = 0; gpu < GPUS; gpu++) {
        fprintf(file, "%s{\"index\":%d,\"uuid\":\"GPU-%d\",\"address\":\"0000:%x0:00.0\"}",
                gpu == 0 ? "" : ",", gpu, gpu, gpu + 1);
    }
    fprintf(file, "],\"rates\":[");
    for (int gpu = 0; gpu < GPUS; gpu++) {
        fprintf(file,
                "%s{\"when\":\"before\",\"gpu\":%d,\"copy_bytes_per_s\":4.3e12,"
                "\"memory_bytes_per_s\":4.8e12,\"f16_flop_per_s\":7.5e14,"
                "\"tf32_flop_per_s\":4e14,\"f32_flop_per_s\":5e13}",
                gpu == 0 ? "" : ",", gpu);
    }
    /* one measured after the jobs is not shown */
    fprintf(file,
            "],\"layers\":[{\"when\":\"before\",\"gpu\":0,\"type\":\"f16\",\"arch\":\"resnet50\","
            "\"image_size\":224,\"batch_size\":256,\"forward_ms\":12,\"backward_ms\":24,"
            "\"convolutions_ms\":20,\"kinds\":[{\"kind\":\"products: forward\",\"passes\":54,"
            "\"ms\":7,\"floor_ms\":3.5,\"bytes\":11.3e9},{\"kind\":\"norms: forward\","
            "\"passes\":49,\"ms\":5,\"floor_ms\":4.5,\"bytes\":18.7e9}],\"longest\":[{"
            "\"pass\":\"forward\",\"layer\":\"conv1\",\"engine\":\"eng37_k2=5\",\"ms\":0.7,"
            "\"floor_ms\":0.2,\"bytes\":6.2e8,\"flops\":1.6e11},{\"pass\":\"backward\","
            "\"layer\":\"bn1 + relu\",\"engine\":\"\",\"ms\":0.5,\"floor_ms\":null,"
            "\"bytes\":1.6e9,\"flops\":0}]},{\"when\":\"after\",\"type\":\"f32\"}");
    fprintf(file,
            "],\"findings\":[{\"code\":\"PCIE_WIDTH\",\"severity\":\"fail\",\"gpu\":2,\"uuid\":"
            "\"GPU-2\",\"address\":\"0000:30:00.0\",\"what\":\"PCIe x8 instead of x16\",\"do\":"
            "\"reseat\"}],\"headline\":{\"correct\":{\"value\":\"yes\",\"why\":\"\"}}}");
    fclose(file);
    write_job("o2.w4", "throughput", oversubscribed);
    write_job("o2.w4.twin", "twin", oversubscribed);
}

TEST(the_slow_one_is_named)
{
    write_run(false);
    ls_report_run run;
    ls_report_gpu gpu[LS_REPORT_GPUS_MAX];
    bool alone = false;
    ck_assert_int_eq(ls_report_load(scratch, &run), LS_OK);
    ck_assert_int_eq(ls_report_gpus_list(&run, gpu, &alone), GPUS);
    ck_assert(alone);
    const ls_report_gpu *worst = ls_report_gpus_worst(gpu, GPUS);
    ck_assert_ptr_nonnull(worst);
    ck_assert_int_eq(worst->gpu, SLOW);
    ck_assert_str_eq(worst->address, "0000:30:00.0");
    /* 0.001: the invented times repeat within that */
    ck_assert_double_eq_tol(worst->behind, 0.038, 0.001);
    ck_assert_double_eq_tol(worst->images_per_s, 256 / 0.05 * 0.962, 0.001 * 5000);
    ck_assert_double_eq(worst->copy_share, 4.3 / 4.8);
    ck_assert_double_eq(worst->most_c, 63);
    ck_assert_double_eq(worst->sm_mhz, (1980 + 1500) / 2.0);
    ck_assert_ptr_null(ls_report_gpus_worst(gpu, 2)); /* two do not say which is odd */
    ls_report_load_free(&run);
}

/* Indices that are not the ranks', two measurements of one device and one of an unnamed one, idle
 * and missing readings, a gap between readings, a damaged line. */
static void write_odd_gpus(void)
{
    write_run(false);
    FILE *file = create("run.json");
    fprintf(file, "{\"options\":{\"device\":\"cuda\"},\"machine\":{\"cores\":16},"
                  "\"gpus\":[{\"index\":3,\"uuid\":\"GPU-0\",\"address\":\"0000:10:00.0\"},"
                  "{\"index\":7,\"uuid\":\"\",\"address\":\"0000:77:00.0\"},{\"uuid\":\"GPU-2\"}],"
                  "\"rates\":[{\"gpu\":3,\"copy_bytes_per_s\":4e12,\"memory_bytes_per_s\":4.8e12,"
                  "\"f16_flop_per_s\":7e14,\"tf32_flop_per_s\":4e14,\"f32_flop_per_s\":5e13},"
                  "{\"gpu\":3,\"copy_bytes_per_s\":3e12,\"memory_bytes_per_s\":4e12,"
                  "\"f16_flop_per_s\":8e14,\"tf32_flop_per_s\":3e14,\"f32_flop_per_s\":6e13},"
                  "{\"device\":\"NVIDIA H200 (GPU-1)\",\"gpu\":3,\"copy_bytes_per_s\":1e12},"
                  "{\"device\":\"NVIDIA H200\",\"gpu\":2,\"f16_flop_per_s\":9e14},"
                  "{\"f16_flop_per_s\":9.5e14}]}\n");
    fclose(file);
    file = create("jobs/o2.w4.twin/gpu.jsonl");
    for (int i = 0; i < 12; i++) {
        fprintf(file, "{\"at_ns\":%.0f,\"gpu\":%d", 30e9 + 1e9 * (i + 4 * (i > 8) + (i > 9)),
                i % 3 == 2 ? 2 : 3);
        if (i % 4 != 1) {
            fprintf(file, ",\"power_w\":%d,\"sm_mhz\":%d", 500 + 10 * i, 1900 - i);
        }
        if (i % 5 != 1) {
            fprintf(file, ",\"gpu_c\":%d,\"throttle_reasons\":%d", 60 - 3 * (i - 5) * (i - 5),
                    1 << i % 4);
        }
        fprintf(file, "}\n");
    }
    fprintf(file, "{\"gpu\":99,\"at_ns\":\n{\"gpu\":3,\"at_ns\":9e9,\"power_w\":1}\n");
    fclose(file);
}

/* One GPU a line. */
static void print_gpus(FILE *to, const char *what, const ls_report_run *run)
{
    ls_report_gpu gpu[LS_REPORT_GPUS_MAX];
    bool alone = true;
    int count = ls_report_gpus_list(run, gpu, &alone);
    const ls_report_gpu *worst = ls_report_gpus_worst(gpu, count);
    fprintf(to, "==== %s: %d%s, worst %d\n", what, count, count > 0 && alone ? " alone" : "",
            worst == NULL ? -1 : worst->rank);
    for (int i = 0; i < count; i++) {
        const ls_report_gpu *g = &gpu[i];
        fprintf(to, "%d %d %s %s: %.5g behind %.4g, %g %.3g, %g %g %g, %.5g W %.6g MHz %g C\n",
                g->rank, g->gpu, g->device, g->address, g->images_per_s, g->behind,
                g->copy_bytes_per_s, g->copy_share, g->f16_flop_per_s, g->tf32_flop_per_s,
                g->f32_flop_per_s, g->power_w, g->sm_mhz, g->most_c);
    }
}

TEST(odd_gpus_word_for_word)
{
    enum { AS_IT_IS, JUDGED, CROWDED, NODES, NO_SPEED, LARGER, SMALLER, ONE, BOTH, CPU, ALL };
    static const char *const changes[] = {
        "as it is",   "evidence",        "oversubscribed",    "two nodes",   "no speed",
        "larger job", "smaller no_comm", "throughput of one", "two no_comm", "on the CPU"};
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    write_odd_gpus();
    for (int change = 0; change < ALL; change++) {
        ls_report_run run;
        ck_assert_int_eq(ls_report_load(scratch, &run), LS_OK);
        ls_report_job *timed = NULL, *apart = NULL;
        for (int j = 0; j < run.job_count; j++) {
            bool plain = run.job[j].spec->role == LS_ROLE_THROUGHPUT;
            *(plain ? &timed : &apart) = &run.job[j];
        }
        ls_record *no_comm = apart->record;
        no_comm->spec.role = change == JUDGED ? LS_ROLE_EVIDENCE : no_comm->spec.role;
        no_comm->spec.nodes = change == NODES ? 2 : 1;
        no_comm->spec.world = change == SMALLER ? 3 : no_comm->spec.world;
        no_comm->oversubscribed = change == CROWDED;
        apart->speed.count *= change != NO_SPEED;
        timed->record->spec.world = change == LARGER ? 5 : change == ONE ? 1 : GPUS;
        timed->record->spec.role = change == BOTH ? LS_ROLE_NO_COMM : LS_ROLE_THROUGHPUT;
        no_comm->spec.world = change == ONE ? 1 : no_comm->spec.world;
        if (change == CPU) {
            cJSON_DeleteItemFromObject(run.record, "options");
        }
        print_gpus(to, changes[change], &run);
        ls_report_load_free(&run);
    }
    ck_assert_int_eq(ls_report_tables(scratch), LS_OK);
    LS_TEXT(path, 300, "%s/tables/gpu.tsv", scratch);
    char *table = ls_text_read(path);
    fputs(table, to);
    free(table);
    fclose(to);
    golden_check("suite/unit/harness/expected/odd_gpus.txt", golden_sections(text, 1));
}

static const struct {
    double behind[5];
    int count, worst; /* -1: none */
} neighbours[] = {
    {{0}, 0, -1},
    {{0.1, 0.2}, 2, -1},
    {{0.1, 0.2, NAN, NAN}, 4, -1},
    {{0.1, 0.2, 0.15}, 3, 1},
    {{0.2, 0.2, 0.1}, 3, 0}, /* of equals the first */
    {{NAN, -0.3, -0.1, -0.2}, 4, 2},
    {{0.1, 0, 0, 0, 0.3}, 5, 4},
};

ROWS_TEST(the_worst_is_the_one_farthest_behind, neighbours)
{
    ls_report_gpu gpu[5];
    for (int i = 0; i < 5; i++) {
        gpu[i].behind = neighbours[_i].behind[i];
    }
    const ls_report_gpu *worst = ls_report_gpus_worst(gpu, neighbours[_i].count);
    ck_assert_int_eq(worst == NULL ? -1 : (int)(worst - gpu), neighbours[_i].worst);
}

TEST(speed_is_held_against_the_neighbours)
{
    ls_run run;
    ls_speed_verdict speed;
    memset(&run, 0, sizeof run);
    memset(&speed, 0, sizeof speed);
    run.bench_run = true;
    run.measured = cJSON_CreateObject();
    ls_text_put(run.directory, sizeof run.directory, "%s", scratch);
    write_run(false);
    ck_assert_int_eq(ls_report_tables(scratch), LS_OK);
    ls_speed_decide(&run, &speed);
    ck_assert_str_eq(speed.value, "below");
    ck_assert_msg(strncmp(speed.why, "worst: GPU 2, 3.8 % under its neighbours", 40) == 0, "%s",
                  speed.why);
    ck_assert(!speed.below); /* this gate was not requested */
    write_run(true);         /* shared GPUs claim nothing */
    ck_assert_int_eq(ls_report_tables(scratch), LS_OK);
    memset(&speed, 0, sizeof speed);
    ls_speed_decide(&run, &speed);
    ck_assert_str_eq(speed.value, "no baseline");
    cJSON_Delete(run.measured);
}

TEST(all_of_it_word_for_word)
{
    write_run(false);
    golden_check("suite/unit/harness/expected/report_gpus.txt", golden_report(scratch, true));
}

/* A job whose steps could not be recorded says so in its row, whatever its start event had said. */
TEST(steps_without_a_graph_are_marked)
{
    char marks[160];
    write_run(false);
    ls_report_run run;
    ck_assert_int_eq(ls_report_load(scratch, &run), LS_OK);
    for (int i = 0; i < run.job_count; i++) {
        bool without = run.job[i].spec->role == LS_ROLE_THROUGHPUT;
        ls_report_lines_marks(&run, &run.job[i], marks);
        ck_assert_msg((strstr(marks, "no graph: no room") != NULL) == without, "%s: %s",
                      run.job[i].record->id, marks);
    }
    ls_report_load_free(&run);
    ck_assert_int_eq(ls_report_tables(scratch), LS_OK);
    char path[300];
    ls_text_put(path, sizeof path, "%s/summary.json", scratch);
    cJSON *summary = NULL;
    ck_assert_int_eq(ls_json_read_file(path, &summary), LS_OK);
    const cJSON *timed = cJSON_GetArrayItem(cJSON_GetObjectItem(summary, "throughput"), 0);
    const cJSON *other = cJSON_GetArrayItem(cJSON_GetObjectItem(summary, "other_jobs"), 0);
    ck_assert_str_eq(ls_json_string(timed, "cuda_graph", ""), "no room");
    ck_assert(ls_json_bool(other, "cuda_graph", false));
    cJSON_Delete(summary);
}

TEST_MAIN("report_gpus", .before = open_scratch, .after = close_scratch)
