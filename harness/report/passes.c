/* Where the time of a step goes on one device without other ranks: run.json's "layers"
 * (suite/commands/layers_internal.h, ls_layers_record). */
#include "page.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "figures.h"
#include "kernels/core/text.h"

static double share(const cJSON *entry)
{
    return ls_json_number(entry, "floor_ms", NAN) / ls_json_number(entry, "ms", NAN);
}

static void write_share(ls_page_table *table, const cJSON *entry)
{
    ls_page_cell(table, isfinite(share(entry)) ? "%.0f %%" : "-", 100 * share(entry));
}

static void write_kinds(const cJSON *step, const ls_report_page_form *form, FILE *to)
{
    const cJSON *kind;
    double batch = ls_json_number(step, "batch_size", NAN);
    ls_page_table table;
    ls_page_table_open(&table, form, to, "kind of pass|passes>|ms>|floor ms>|reached>|MB/image>");
    cJSON_ArrayForEach(kind, cJSON_GetObjectItemCaseSensitive(step, "kinds"))
    {
        ls_page_cell(&table, "%s", ls_json_string(kind, "kind", ""));
        ls_page_cell(&table, "%d", ls_json_int(kind, "passes", 0));
        ls_page_number(&table, ls_json_number(kind, "ms", NAN));
        ls_page_number(&table, ls_json_number(kind, "floor_ms", NAN));
        write_share(&table, kind);
        ls_page_number(&table, ls_json_number(kind, "bytes", NAN) * 1e-6 / batch);
    }
    ls_page_table_close(&table);
}

static void write_longest(const cJSON *step, const ls_report_page_form *form, FILE *to)
{
    const cJSON *pass;
    ls_page_table table;
    ls_page_table_open(&table, form, to, "layer|pass|ms>|floor ms>|reached>|GB/s>|TFLOP/s>|engine");
    cJSON_ArrayForEach(pass, cJSON_GetObjectItemCaseSensitive(step, "longest"))
    {
        const char *engine = ls_json_string(pass, "engine", "");
        double ms = ls_json_number(pass, "ms", NAN), flops = ls_json_number(pass, "flops", 0);
        ls_page_cell(&table, "%s", ls_json_string(pass, "layer", ""));
        ls_page_cell(&table, "%s", ls_json_string(pass, "pass", ""));
        ls_page_number(&table, ms);
        ls_page_number(&table, ls_json_number(pass, "floor_ms", NAN));
        write_share(&table, pass);
        ls_page_number(&table, ls_json_number(pass, "bytes", NAN) / ms * 1e-6);
        ls_page_number(&table, flops > 0 ? flops / ms * 1e-9 : NAN);
        ls_page_cell(&table, "%s", engine[0] != '\0' ? engine : "own kernels");
    }
    ls_page_table_close(&table);
}

static void write_step(const cJSON *step, const ls_report_page_form *form, FILE *to)
{
    const cJSON *kind;
    char text[1024] = "", rate[32], most[32], alone[32];
    double batch = ls_json_number(step, "batch_size", NAN), floor_ms = 0;
    double update_ms = ls_json_number(step, "update_ms", 0); /* of a CPU only */
    double alone_ms = ls_json_number(step, "convolutions_ms", NAN);
    double whole_ms = ls_json_number(step, "forward_ms", NAN) +
                      ls_json_number(step, "backward_ms", NAN) + update_ms;
    cJSON_ArrayForEach(kind, cJSON_GetObjectItemCaseSensitive(step, "kinds"))
    {
        floor_ms += ls_json_number(kind, "floor_ms", NAN);
    }
    ls_text_add(
        text, sizeof text,
        "%s at %d pixels, batch %d, %s: forward and backward %s reach %s images/s; at the floor %s",
        ls_json_string(step, "arch", ""), ls_json_int(step, "image_size", 0),
        ls_json_int(step, "batch_size", 0), ls_json_string(step, "type", ""),
        update_ms > 0 ? "with the optimizer, without data and communication"
                      : "without data, optimizer and communication",
        ls_report_lines_number(batch * 1e3 / whole_ms, rate),
        ls_report_lines_number(batch * 1e3 / floor_ms, most));
    if (isfinite(alone_ms)) {
        ls_text_add(text, sizeof text, "; convolutions alone %s",
                    ls_report_lines_number(batch * 1e3 / alone_ms, alone));
    }
    ls_text_add(text, sizeof text, ".");
    form->paragraph(to, text);
    write_kinds(step, form, to);
    form->paragraph(to, "The passes with the most time to gain:");
    write_longest(step, form, to);
}

static void write_head(const cJSON *step, const ls_report_page_form *form, FILE *to)
{
    int threads = ls_json_int(step, "threads", 0);
    if (threads == 0) {
        form->heading(to, "Where a step's time goes on GPU 0 alone");
        form->paragraph(
            to, "Each pass between two events, medians, with the fastest engine of each product. "
                "Floor: the bytes of the pass at the rate of copies, or its operations at that of "
                "products, both measured on this GPU, whichever takes longer; nothing stays in a "
                "cache between passes. A pass above 100 % found its operands in a cache.");
        return;
    }
    char text[512];
    snprintf(text, sizeof text,
             "One rank alone with %d thread%s, before the jobs; medians. Floor: the bytes of the "
             "pass at the rate of copies, or its operations at that of f32 products or, where half "
             "is not emulated, of half ones, measured just before, whichever takes longer; nothing "
             "stays in a cache between passes. A pass above 100 %% found its operands in a cache.",
             threads, threads == 1 ? "" : "s");
    form->heading(to, "Where a step's time goes on this CPU");
    form->paragraph(to, text);
}

void ls_report_passes_write(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(run->record, "layers"), *step;
    bool headed = false;
    cJSON_ArrayForEach(step, list)
    {
        if (strcmp(ls_json_string(step, "when", ""), "before") != 0) {
            continue; /* measured again after the jobs */
        }
        if (!headed) {
            write_head(step, form, to);
            if (ls_json_bool(cJSON_GetObjectItemCaseSensitive(run->record, "options"), "emulated",
                             false)) {
                form->paragraph(to, "The device is emulated: its times say nothing.");
            }
            headed = true;
        }
        write_step(step, form, to);
    }
}
