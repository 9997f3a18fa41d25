#include <math.h>
#include <stdlib.h>

#include "harness/report/figures.h"
#include "kernels/core/file.h"
#include "kernels/core/text.h"
#include "table.h"

enum { GPUS_MAX = LS_NVML_DEVICES_MAX };

typedef struct timeline {
    int count;
    ls_report_reading *list;
} timeline;

static int by_time(const void *a, const void *b)
{
    double x = ((const ls_report_reading *)a)->at_ns, y = ((const ls_report_reading *)b)->at_ns;
    return (x > y) - (x < y);
}

static timeline collect(const ls_report_run *run)
{
    timeline all = {0, NULL};
    for (int j = 0; j < run->job_count; j++) {
        ls_report_reading *own;
        int count = ls_report_gpus_readings(&run->job[j], &own);
        if (count > 0) {
            all.list = realloc(all.list, (size_t)(all.count + count) * sizeof *all.list);
            LS_MEMORY(all.list != NULL);
            for (int i = 0; i < count; i++) {
                all.list[all.count++] = own[i];
            }
        }
        free(own);
    }
    if (all.count > 0) {
        qsort(all.list, (size_t)all.count, sizeof *all.list, by_time);
    }
    return all;
}

static void write_reading(FILE *table, const ls_report_reading *reading, double start_ns)
{
    const double *value = reading->value;
    double reasons = value[LS_NVML_THROTTLE];
    fprintf(table, "%d\t%.2f\t%g\t%g\t%g\t%g\t%g\t%d\t%d\n", reading->gpu,
            (reading->at_ns - start_ns) * 1e-9, value[LS_NVML_POWER], value[LS_NVML_GPU_C],
            value[LS_NVML_MEMORY_C], value[LS_NVML_SM_MHZ], value[LS_NVML_MEMORY_MHZ],
            isfinite(reasons) && ((long long)reasons & LS_NVML_REASONS_HELD) != 0,
            isfinite(reasons) && ((long long)reasons & LS_NVML_REASON_POWER_CAP) != 0);
}

static void write_gpu(FILE *table, const timeline *all, int gpu)
{
    const double gap_ns = 5e9; /* readings are a second apart, jobs of a run a moment longer */
    double last_ns = NAN;
    for (int i = 0; i < all->count; i++) {
        if (all->list[i].gpu != gpu) {
            continue;
        }
        if (all->list[i].at_ns - last_ns > gap_ns) {
            fputc('\n', table);
        }
        last_ns = all->list[i].at_ns;
        write_reading(table, &all->list[i], all->list[0].at_ns);
    }
}

ls_status ls_tables_gpu_write(const ls_report_run *run)
{
    timeline all = collect(run);
    bool there[GPUS_MAX] = {false};
    ls_table_head head = {.title = "No GPU was watched in this run"};
    for (int i = 0; i < all.count; i++) {
        if (all.list[i].gpu >= 0 && all.list[i].gpu < GPUS_MAX) {
            there[all.list[i].gpu] = true;
        }
    }
    for (int gpu = 0; gpu < GPUS_MAX; gpu++) {
        if (there[gpu]) {
            ls_text_add(head.blocks, sizeof head.blocks, " \"GPU %d\"", gpu);
        }
    }
    if (all.count > 0) {
        snprintf(head.title, sizeof head.title,
                 "The GPUs while jobs ran: power, clock of the processors, temperature");
        snprintf(
            head.caption, sizeof head.caption,
            "Once a second. Dots on a clock: it was held down by heat or by the power supply.");
    }
    FILE *table = ls_table_begin(
        run, "gpu", &head, "s, W, degrees Celsius, MHz",
        "1 gpu  2 time_s  3 power_w  4 gpu_c  5 memory_c  6 sm_mhz  7 memory_mhz  8 held  "
        "9 power_capped");
    if (table != NULL) {
        bool first = true;
        for (int gpu = 0; gpu < GPUS_MAX; gpu++) {
            if (there[gpu]) {
                fputs(first ? "" : "\n\n", table);
                first = false;
                write_gpu(table, &all, gpu);
            }
        }
    }
    free(all.list);
    return table == NULL ? LS_ERR_INFRA : ls_file_close(table, "gpu");
}
