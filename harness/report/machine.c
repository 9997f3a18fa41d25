#include "page.h"

#include <math.h>
#include <string.h>

#include "harness/machine/findings.h"
#include "gpus.h"

static void write_findings(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    static const ls_report_column COLUMNS[] = {
        {"severity", false}, {"code", false}, {"where", false}, {"what", false}, {"do", false}};
    enum { COUNT = sizeof COLUMNS / sizeof *COLUMNS };
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
    form->table_open(to, COLUMNS, COUNT);
    cJSON_ArrayForEach(one, list)
    {
        char where[64];
        const char *address = ls_json_string(one, "address", "");
        int gpu = (int)ls_json_integer(one, "gpu", -1);
        if (gpu < 0) {
            snprintf(where, sizeof where, "%s", address[0] != '\0' ? address : "all");
        } else {
            snprintf(where, sizeof where, "GPU %d %s", gpu, address);
        }
        const char *cells[COUNT] = {ls_json_string(one, "severity", ""),
                                    ls_json_string(one, "code", ""), where,
                                    ls_json_string(one, "what", ""), ls_json_string(one, "do", "")};
        form->table_row(to, COLUMNS, cells, COUNT);
    }
    fputs(form->table_close, to);
}

static const char *percent(double share, char *text, size_t bytes)
{
    snprintf(text, bytes, isfinite(share) ? "%.1f %%" : "-", 100 * share);
    return text;
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
    static const ls_report_column COLUMNS[] = {{"GPU", true},
                                               {"address", false},
                                               {"images/s alone", true},
                                               {"under others", true},
                                               {"copy GB/s", true},
                                               {"of its memory", true},
                                               {"f16 TFLOP/s", true},
                                               {"tf32 TFLOP/s", true},
                                               {"f32 TFLOP/s", true},
                                               {"W", true},
                                               {"SM MHz", true},
                                               {"highest C", true}};
    enum { COUNT = sizeof COLUMNS / sizeof *COLUMNS };
    ls_report_gpu gpu[LS_REPORT_GPUS_MAX];
    bool alone = false;
    int count = ls_report_gpus_list(run, gpu, LS_REPORT_GPUS_MAX, &alone);
    if (count == 0) {
        return;
    }
    form->heading(to, "GPU by GPU");
    form->table_open(to, COLUMNS, COUNT);
    for (int i = 0; i < count; i++) {
        const ls_report_gpu *g = &gpu[i];
        char text[COUNT][32];
        snprintf(text[0], sizeof text[0], "%d", g->gpu);
        const char *cells[COUNT] = {text[0],
                                    g->address,
                                    ls_report_lines_number(g->images_per_s, text[2]),
                                    percent(g->behind, text[3], sizeof text[3]),
                                    ls_report_lines_number(g->copy_bytes_per_s * 1e-9, text[4]),
                                    percent(g->copy_share, text[5], sizeof text[5]),
                                    ls_report_lines_number(g->f16_flop_per_s * 1e-12, text[6]),
                                    ls_report_lines_number(g->tf32_flop_per_s * 1e-12, text[7]),
                                    ls_report_lines_number(g->f32_flop_per_s * 1e-12, text[8]),
                                    ls_report_lines_number(g->power_w, text[9]),
                                    ls_report_lines_number(g->sm_mhz, text[10]),
                                    ls_report_lines_number(g->most_c, text[11])};
        form->table_row(to, COLUMNS, cells, COUNT);
    }
    fputs(form->table_close, to);
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
