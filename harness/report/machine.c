#include "page.h"

#include <math.h>

#include "harness/machine/findings.h"
#include "figures.h"

static void write_findings(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(run->record, "findings"), *one;
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
    cJSON_ArrayForEach(one, list)
    {
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
    int count = ls_report_gpus_list(run, gpu, LS_REPORT_GPUS_MAX, &alone);
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

void ls_report_machine_write(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    write_findings(run, form, to);
    write_gpus(run, form, to);
}

void ls_report_machine_print(const ls_report_run *run, FILE *to)
{
    ls_findings findings = {0, 0, NULL};
    ls_findings_read(cJSON_GetObjectItemCaseSensitive(run->record, "findings"), &findings);
    if (findings.count > 0) {
        fputc('\n', to);
        ls_findings_print(&findings, to);
    }
    ls_findings_free(&findings);
    ls_report_gpu gpu[LS_REPORT_GPUS_MAX];
    bool alone = false;
    int count = ls_report_gpus_list(run, gpu, LS_REPORT_GPUS_MAX, &alone);
    const ls_report_gpu *worst = ls_report_gpus_worst(gpu, count);
    if (worst != NULL) {
        char words[120];
        worst_text(worst, words, sizeof words);
        fprintf(to, "\nslowest GPU: %s\n", words);
    }
}
