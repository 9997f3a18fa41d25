#include "page.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "figures.h"
#include "harness/machine/findings.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"

/* ---- readings -------------------------------------------------------------------------------- */

typedef struct readings {
    int count, room;
    ls_report_reading *list;
} readings;

static ls_status take_reading(void *context, const cJSON *line, int number)
{
    (void)number;
    readings *all = context;
    all->list = ls_list_grow(all->list, all->count, &all->room, sizeof *all->list);
    ls_report_reading *reading = &all->list[all->count++];
    reading->at_ns = ls_json_number(line, "at_ns", NAN);
    reading->gpu = ls_json_int(line, "gpu", 0);
    for (int r = 0; r < LS_NVML_READING_COUNT; r++) {
        reading->value[r] = ls_json_number(line, ls_nvml_reading_name((ls_nvml_reading)r), NAN);
    }
    return LS_OK;
}

int ls_report_gpus_readings(const ls_report_job *job, ls_report_reading **out)
{
    readings all = {0, 0, NULL};
    LS_TEXT(path, PATH_MAX, "%s/gpu.jsonl", job->record->directory);
    if (access(path, R_OK) == 0) {
        (void)ls_json_each_line(path, take_reading,
                                &all); /* readings before a damaged line are kept */
    }
    *out = all.list;
    return all.count;
}

/* ---- one entry per GPU ----------------------------------------------------------------------- */

static bool on_gpus(const ls_report_run *run)
{
    return strcmp(ls_json_string(ls_json_get(run->record, "options"), "device", "cpu"), "cuda") ==
           0;
}

/* The largest world whose ranks do not wait for each other, else the largest there is. */
static const ls_report_job *best_job(const ls_report_run *run, bool *alone)
{
    const ls_report_job *best = NULL;
    *alone = false;
    ls_report_each(job, run, LS_ROLE_COUNT) {
        bool apart = job->spec->role == LS_ROLE_NO_COMM || job->spec->world == 1;
        bool timed = apart || job->spec->role == LS_ROLE_THROUGHPUT;
        if (!timed || job->record->oversubscribed || job->spec->nodes > 1 ||
            !ls_report_job_has_speed(job)) {
            continue;
        }
        if (best == NULL || job->spec->world > best->spec->world ||
            (job->spec->world == best->spec->world && apart && !*alone)) {
            best = job;
            *alone = apart;
        }
    }
    return best;
}

static void find_device(const ls_report_run *run, ls_report_gpu *gpu)
{
    const cJSON *entry;
    ls_json_each(entry, ls_json_get(run->record, "gpus")) {
        const char *uuid = ls_json_string(entry, "uuid", "");
        if (uuid[0] != '\0' && strstr(gpu->device, uuid) != NULL) {
            gpu->gpu = ls_json_int(entry, "index", gpu->rank);
            ls_text_put(gpu->address, sizeof gpu->address, "%s",
                        ls_json_string(entry, "address", ""));
        }
    }
}

/* Of several measurements the best counts: nothing makes one larger than the device allows. */
static void find_rates(const ls_report_run *run, ls_report_gpu *gpu)
{
    const cJSON *entry;
    ls_json_each(entry, ls_json_get(run->record, "rates")) {
        const char *device = ls_json_string(entry, "device", "");
        bool same = device[0] != '\0' ? strcmp(device, gpu->device) == 0
                                      : ls_json_integer(entry, "gpu", -1) == gpu->gpu;
        if (!same) { /* CUDA's order of GPUs need not be NVML's */
            continue;
        }
        double copy = ls_json_number(entry, "copy_bytes_per_s", NAN);
        gpu->copy_bytes_per_s = fmax(gpu->copy_bytes_per_s, copy);
        gpu->copy_share =
            fmax(gpu->copy_share, copy / ls_json_number(entry, "memory_bytes_per_s", NAN));
        gpu->f16_flop_per_s =
            fmax(gpu->f16_flop_per_s, ls_json_number(entry, "f16_flop_per_s", NAN));
        gpu->tf32_flop_per_s =
            fmax(gpu->tf32_flop_per_s, ls_json_number(entry, "tf32_flop_per_s", NAN));
        gpu->f32_flop_per_s =
            fmax(gpu->f32_flop_per_s, ls_json_number(entry, "f32_flop_per_s", NAN));
    }
}

static void find_warmth(const ls_report_reading *reading, int count, ls_report_gpu *gpu)
{
    double power = 0, clock = 0;
    int powers = 0, clocks = 0;
    for (int i = 0; i < count; i++) {
        const double *value = reading[i].value;
        if (reading[i].gpu != gpu->gpu) {
            continue;
        }
        double reasons = value[LS_NVML_THROTTLE];
        bool idle = isfinite(reasons) && ((long long)reasons & LS_NVML_REASON_IDLE) != 0;
        if (isfinite(value[LS_NVML_POWER]) && !idle) {
            power += value[LS_NVML_POWER];
            powers++;
        }
        if (isfinite(value[LS_NVML_SM_MHZ]) && !idle) {
            clock += value[LS_NVML_SM_MHZ];
            clocks++;
        }
        gpu->most_c = fmax(gpu->most_c, value[LS_NVML_GPU_C]);
    }
    gpu->power_w = powers > 0 ? power / powers : NAN;
    gpu->sm_mhz = clocks > 0 ? clock / clocks : NAN;
}

static void compare(ls_report_gpu *gpu, int count)
{
    double other[LS_REPORT_GPUS_MAX];
    for (int i = 0; i < count; i++) {
        int others = 0;
        for (int k = 0; k < count; k++) {
            if (k != i && isfinite(gpu[k].images_per_s)) {
                other[others++] = gpu[k].images_per_s;
            }
        }
        gpu[i].behind = 1 - gpu[i].images_per_s / ls_stats_percentile(other, others, 0.5);
    }
}

int ls_report_gpus_list(const ls_report_run *run, ls_report_gpu gpu[LS_REPORT_GPUS_MAX],
                        bool *alone)
{
    const ls_report_job *job = on_gpus(run) ? best_job(run, alone) : NULL;
    if (job == NULL) {
        return 0;
    }
    ls_report_reading *reading;
    int readings = ls_report_gpus_readings(job, &reading), count = 0;
    for (int k = 0; k < job->record->world && count < LS_REPORT_GPUS_MAX; k++) {
        ls_report_gpu *one = &gpu[count++];
        *one = (ls_report_gpu){.rank = k,
                               .gpu = k,
                               .copy_bytes_per_s = NAN,
                               .copy_share = NAN,
                               .f16_flop_per_s = NAN,
                               .tf32_flop_per_s = NAN,
                               .f32_flop_per_s = NAN,
                               .most_c = NAN};
        ls_text_put(one->device, sizeof one->device, "%s", job->record->rank[k].device);
        one->images_per_s =
            *alone ? job->spec->batch_size * 1e3 / ls_report_speed_rank_ms(job, k, 0.50) : NAN;
        find_device(run, one);
        find_rates(run, one);
        find_warmth(reading, readings, one);
    }
    free(reading);
    compare(gpu, count);
    return count;
}

const ls_report_gpu *ls_report_gpus_worst(const ls_report_gpu *gpu, int count)
{
    const ls_report_gpu *worst = NULL;
    int figures = 0;
    for (int i = 0; i < count; i++) {
        if (isfinite(gpu[i].behind)) {
            figures++;
            worst = worst == NULL || gpu[i].behind > worst->behind ? &gpu[i] : worst;
        }
    }
    return figures >= 3 ? worst : NULL;
}

cJSON *ls_report_gpus_json(const ls_report_run *run)
{
    ls_report_gpu gpu[LS_REPORT_GPUS_MAX];
    bool alone = false;
    int count = ls_report_gpus_list(run, gpu, &alone);
    cJSON *list = cJSON_CreateArray();
    LS_MEMORY(list != NULL);
    for (int i = 0; i < count; i++) {
        cJSON *one = ls_json_append_object(list);
        cJSON_AddNumberToObject(one, "rank", gpu[i].rank);
        cJSON_AddNumberToObject(one, "gpu", gpu[i].gpu);
        cJSON_AddStringToObject(one, "device", gpu[i].device);
        cJSON_AddStringToObject(one, "address", gpu[i].address);
        ls_json_add_number(one, "images_per_s", gpu[i].images_per_s);
        ls_json_add_number(one, "behind", gpu[i].behind);
        ls_json_add_number(one, "copy_bytes_per_s", gpu[i].copy_bytes_per_s);
        ls_json_add_number(one, "copy_share", gpu[i].copy_share);
        ls_json_add_number(one, "f16_flop_per_s", gpu[i].f16_flop_per_s);
        ls_json_add_number(one, "tf32_flop_per_s", gpu[i].tf32_flop_per_s);
        ls_json_add_number(one, "f32_flop_per_s", gpu[i].f32_flop_per_s);
        ls_json_add_number(one, "power_w", gpu[i].power_w);
        ls_json_add_number(one, "sm_mhz", gpu[i].sm_mhz);
        ls_json_add_number(one, "most_c", gpu[i].most_c);
    }
    return list;
}

/* ---- in words -------------------------------------------------------------------------------- */

static void write_findings(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    const cJSON *list = ls_json_get(run->record, "findings"), *one;
    if (!cJSON_IsArray(list)) {
        return;
    }
    form->heading(to, "State of the GPUs");
    if (cJSON_GetArraySize(list) == 0) {
        form->paragraph(to,
                        "Checked before the jobs and watched while they ran: nothing was found.");
        return;
    }
    ls_page_table table;
    ls_page_table_open(&table, form, to, "severity|code|where|what|do");
    ls_json_each(one, list) {
        const char *address = ls_json_string(one, "address", "");
        int gpu = ls_json_int(one, "gpu", -1);
        ls_page_cell(&table, "%s", ls_json_string(one, "severity", ""));
        ls_page_cell(&table, "%s", ls_json_string(one, "code", ""));
        if (gpu < 0) {
            ls_page_cell(&table, "%s", address[0] != '\0' ? address : "all");
        } else {
            ls_page_cell(&table, "GPU %d %s", gpu, address);
        }
        ls_page_cell(&table, "%s", ls_json_string(one, "what", ""));
        ls_page_cell(&table, "%s", ls_json_string(one, "do", ""));
    }
    ls_page_table_close(&table);
}

/* "GPU 5, 3.8 % under its neighbours" */
static void worst_text(const ls_report_gpu *worst, char *text, size_t bytes)
{
    snprintf(text, bytes, "GPU %d%s%s%s, %.1f %% %s its neighbours", worst->gpu,
             worst->address[0] != '\0' ? " (" : "", worst->address,
             worst->address[0] != '\0' ? ")" : "", 100 * fabs(worst->behind),
             worst->behind >= 0 ? "under" : "above");
}

static void write_gpus(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    ls_report_gpu gpu[LS_REPORT_GPUS_MAX];
    bool alone = false;
    int count = ls_report_gpus_list(run, gpu, &alone);
    if (count == 0) {
        return;
    }
    form->heading(to, "GPU by GPU");
    ls_page_table table;
    ls_page_table_open(&table, form, to,
                       "GPU>|address|images/s alone>|under others>|copy GB/s>|of its memory>|"
                       "f16 TFLOP/s>|tf32 TFLOP/s>|f32 TFLOP/s>|W>|SM MHz>|highest C>");
    for (int i = 0; i < count; i++) {
        const ls_report_gpu *g = &gpu[i];
        ls_page_cell(&table, "%d", g->gpu);
        ls_page_cell(&table, "%s", g->address);
        ls_page_number(&table, g->images_per_s);
        ls_page_cell(&table, isfinite(g->behind) ? "%.1f %%" : "-", 100 * g->behind);
        ls_page_number(&table, g->copy_bytes_per_s * 1e-9);
        ls_page_cell(&table, isfinite(g->copy_share) ? "%.1f %%" : "-", 100 * g->copy_share);
        ls_page_number(&table, g->f16_flop_per_s * 1e-12);
        ls_page_number(&table, g->tf32_flop_per_s * 1e-12);
        ls_page_number(&table, g->f32_flop_per_s * 1e-12);
        ls_page_number(&table, g->power_w);
        ls_page_number(&table, g->sm_mhz);
        ls_page_number(&table, g->most_c);
    }
    ls_page_table_close(&table);
    const ls_report_gpu *worst = ls_report_gpus_worst(gpu, count);
    if (worst != NULL) {
        char line[200], words[120];
        worst_text(worst, words, sizeof words);
        snprintf(line, sizeof line, "The slowest: %s.", words);
        form->paragraph(to, line);
    }
    form->paragraph(
        to,
        alone ? "Alone: its rank in the job without reduction, whose ranks do not wait for each "
                "other. Copies, products and their shares were measured in this run, outside the "
                "jobs, on all GPUs at once; power, clock and temperature were read during that "
                "job."
              : "No job without reduction was run; ranks that wait for each other have one speed.");
}

void ls_report_gpus_write(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    write_findings(run, form, to);
    write_gpus(run, form, to);
}

void ls_report_gpus_print(const ls_report_run *run, FILE *to)
{
    ls_findings findings = {0, 0, NULL};
    ls_findings_read(ls_json_get(run->record, "findings"), &findings);
    if (findings.count > 0) {
        fputc('\n', to);
        ls_findings_print(&findings, to);
    }
    ls_findings_free(&findings);
    ls_report_gpu gpu[LS_REPORT_GPUS_MAX];
    bool alone = false;
    int count = ls_report_gpus_list(run, gpu, &alone);
    const ls_report_gpu *worst = ls_report_gpus_worst(gpu, count);
    if (worst != NULL) {
        char words[120];
        worst_text(worst, words, sizeof words);
        fprintf(to, "\nslowest GPU: %s\n", words);
    }
}
