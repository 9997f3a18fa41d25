#include "figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stats.h"
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
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(run->record, "options");
    return strcmp(ls_json_string(options, "device", "cpu"), "cuda") == 0;
}

/* The largest world whose ranks do not wait for each other, else the largest there is. */
static const ls_report_job *best_job(const ls_report_run *run, bool *alone)
{
    const ls_report_job *best = NULL;
    *alone = false;
    for (int j = 0; j < run->job_count; j++) {
        const ls_report_job *job = &run->job[j];
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
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(run->record, "gpus"))
    {
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
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(run->record, "rates"))
    {
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

int ls_report_gpus_list(const ls_report_run *run, ls_report_gpu *gpu, int most, bool *alone)
{
    const ls_report_job *job = on_gpus(run) ? best_job(run, alone) : NULL;
    if (job == NULL) {
        return 0;
    }
    ls_report_reading *reading;
    int readings = ls_report_gpus_readings(job, &reading), count = 0;
    most = most < LS_REPORT_GPUS_MAX ? most : LS_REPORT_GPUS_MAX;
    for (int k = 0; k < job->record->world && count < most; k++) {
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
    int count = ls_report_gpus_list(run, gpu, LS_REPORT_GPUS_MAX, &alone);
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
