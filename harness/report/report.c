#include "report.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "figures.h"
#include "kernels/core/file.h"
#include "kernels/core/text.h"
#include "page.h"
#include "tables/table.h"

enum { JOBS_MAX = 16, TEXT_BYTES = LS_REPORT_LINES_BYTES * 2 };

static void write_speed_rows(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    ls_page_table table;
    ls_page_table_open(&table, form, to,
                       "level|ranks>|nodes|bucket|images/s [95 %]>|ms p50>|ms p90>|ms p99>|"
                       "efficiency>|judged on|marks");
    ls_report_each(job, run, LS_ROLE_THROUGHPUT) {
        char text[160];
        bool timed = ls_report_job_has_speed(job);
        ls_page_cell(&table, "%s", ls_report_job_level(job, text));
        ls_page_cell(&table, "%d", job->spec->world);
        ls_page_cell(&table, "%d%s", job->spec->nodes,
                     ls_spec_is_simulated(job->spec) ? " simulated" : "");
        ls_page_cell(&table, "%s", ls_report_job_bucket(job, text));
        ls_page_cell(&table, "%s",
                     timed ? ls_report_lines_rate(job, text) : ls_report_job_state(job, text));
        ls_page_number(&table, timed ? job->speed.step.value : NAN);
        ls_page_number(&table, timed ? job->speed.p90_ms : NAN);
        ls_page_number(&table, timed ? job->speed.p99_ms : NAN);
        ls_page_number(&table, timed ? job->speed.efficiency.value : NAN);
        ls_page_cell(&table, "%s", ls_report_lines_judged(run, job, text));
        ls_page_cell(&table, "%s", ls_report_lines_marks(run, job, text));
    }
    ls_page_table_close(&table);
}

static void write_more_rows(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    ls_page_table table;
    ls_page_table_open(
        &table, form, to,
        "job|steps measured>|warm-up>|skipped>|audited>|second half / first>|slowest rank>|"
        "rank spread>|MB reduced/step>|bus GB/s>|of roofline>|first step s>|"
        "peak MB/rank>");
    ls_report_each(job, run, LS_ROLE_THROUGHPUT) {
        const ls_report_speed *speed = &job->speed;
        if (!ls_report_job_has_speed(job)) {
            continue;
        }
        ls_page_cell(&table, "%s", job->record->label);
        ls_page_cell(&table, "%d", speed->count);
        ls_page_cell(&table, "%d", speed->warmup_count);
        ls_page_cell(&table, "%d", speed->skipped_count);
        ls_page_cell(&table, "%d", speed->audited_count);
        ls_page_number(&table, speed->halves_ratio.value);
        ls_page_cell(&table, "%d", speed->slowest_rank);
        ls_page_cell(&table, "%.1f %%", 100 * speed->spread);
        ls_page_number(&table, job->record->rank[0].reduced_bytes / 1e6);
        ls_page_number(&table, speed->bus_bytes_per_s / 1e9);
        ls_page_cell(&table, isfinite(speed->roofline_share) ? "%.0f %%" : "-",
                     100 * speed->roofline_share);
        ls_page_number(&table, speed->first_step_s);
        ls_page_number(&table, ls_report_job_peak_bytes(job) / 1e6);
    }
    ls_page_table_close(&table);
}

/* Exposed communication, measured in both ways. */
static bool shows_exposed(const ls_report_job *job)
{
    return job->spec->world > 1 && ls_report_job_is_result(job);
}

static void write_exposed(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    ls_page_table table;
    ls_page_table_open(&table, form, to,
                       "job|step ms>|communication ms>|waited for ms>|against no_comm ms [95 %]>|"
                       "difference>");
    ls_report_each(job, run, LS_ROLE_THROUGHPUT) {
        if (!shows_exposed(job)) {
            continue;
        }
        char against[112] = "not run", low[32], high[32], value[32];
        ls_stats_interval no_comm = ls_report_compare_exposed_ms(run, job);
        double waited_ms = ls_report_speed_exposed_ms(run, job);
        if (isfinite(no_comm.low)) {
            snprintf(against, sizeof against, "%s [%s, %s]",
                     ls_report_lines_number(no_comm.value, value),
                     ls_report_lines_number(no_comm.low, low),
                     ls_report_lines_number(no_comm.high, high));
        } else if (isfinite(no_comm.value)) {
            snprintf(against, sizeof against, "%s [?]",
                     ls_report_lines_number(no_comm.value, value));
        }
        ls_page_cell(&table, "%s", job->record->label);
        ls_page_number(&table, job->speed.step.value);
        ls_page_number(&table, job->speed.comm_ms);
        ls_page_number(&table, waited_ms);
        ls_page_cell(&table, "%s", against);
        ls_page_number(&table, no_comm.value - waited_ms);
    }
    ls_page_table_close(&table);
    form->paragraph(
        to,
        "All on the slowest rank. Waited for: from the end of its own backward to its last "
        "reduction. Against no_comm: step time minus that of the job no_comm, the same level and "
        "world without reduction. Load or clocks that change between the two jobs are part of it. "
        "Difference: against no_comm minus waited for.");
}

static void write_memory(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    const ls_report_job *jobs[JOBS_MAX];
    int count = ls_report_job_select(run, LS_ROLE_THROUGHPUT, LS_SWEEP_LEVEL, jobs, JOBS_MAX);
    double kind[LS_REPORT_KINDS] = {[LS_REPORT_ACTIVATIONS] = NAN};
    if (count > 0) {
        ls_report_memory(&jobs[0]->record->rank[0], kind);
    }
    if (!isfinite(kind[LS_REPORT_ACTIVATIONS])) {
        return;
    }
    form->heading(to, "Memory of a rank by kind, MB");
    ls_page_table table;
    ls_page_table_open(&table, form, to,
                       "level|parameters>|masters>|moments>|gradients>|activations>|workspace>|"
                       "sum>|seen at peak>|MB per image>|largest batch>");
    for (int i = 0; i < count; i++) {
        const ls_record_rank *rank = &jobs[i]->record->rank[0];
        char level[24];
        ls_page_cell(&table, "%s", ls_report_job_level(jobs[i], level));
        double sum = ls_report_memory(rank, kind);
        for (int k = 0; k < LS_REPORT_KINDS; k++) {
            ls_page_number(&table, kind[k] / 1e6);
        }
        ls_report_batch batch = {.image_bytes = NAN, .largest = NAN};
        (void)ls_report_memory_largest_batch(run, jobs[i], &batch);
        ls_page_number(&table, sum / 1e6);
        ls_page_number(&table, rank->rss_bytes_max / 1e6);
        ls_page_number(&table, batch.image_bytes / 1e6);
        ls_page_cell(&table, isfinite(batch.largest) ? "%.0f" : "-", batch.largest);
    }
    ls_page_table_close(&table);
    form->paragraph(
        to, "Allocations of the trainer on rank 0. Seen at peak: the largest resident memory, with "
            "program, libraries and the dumps of the judged step. Workspace: packed "
            "weights, scratch, running statistics. Largest batch: images per rank that free memory "
            "divided by the ranks would hold; computed from these figures, not run.");
}

/* A heading and a list; frees the sentences. */
static void write_sentences(const ls_report_page_form *form, FILE *to, const char *heading,
                            cJSON *sentences)
{
    const cJSON *sentence;
    form->heading(to, heading);
    fputs(form->list_open, to);
    ls_json_each(sentence, sentences) {
        form->list_item(to, sentence->valuestring);
    }
    fputs(form->list_close, to);
    cJSON_Delete(sentences);
}

static void write_compared(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    cJSON *sentences = ls_report_compare_sentences(run);
    int rows = 0;
    ls_report_each(job, run, LS_ROLE_THROUGHPUT) {
        rows += shows_exposed(job);
    }
    if (rows > 0 || cJSON_GetArraySize(sentences) > 0) {
        write_sentences(form, to, "Communication, DDP, scaling", sentences);
    } else {
        cJSON_Delete(sentences);
    }
    if (rows > 0) {
        write_exposed(run, form, to);
    }
    write_memory(run, form, to);
}

static void write_speed(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    const ls_report_job *first = ls_report_job_after(run, LS_ROLE_THROUGHPUT, NULL);
    if (first == NULL) {
        form->heading(to, "Throughput");
        form->paragraph(to, "This run holds no throughput job.");
        return;
    }
    int simulated = 0;
    ls_report_each(job, run, LS_ROLE_THROUGHPUT) {
        bool more = ls_spec_is_simulated(job->spec) && job->spec->nodes > simulated;
        simulated = more ? job->spec->nodes : simulated;
    }
    char text[TEXT_BYTES] = "";
    ls_text_add(text, sizeof text, "Throughput: %s, batch %d per rank, %d x %d pixels",
                first->spec->arch, first->spec->batch_size, first->spec->image_size,
                first->spec->image_size);
    if (simulated > 0) {
        ls_text_add(text, sizeof text, " (rows of %d nodes: simulated on one machine)", simulated);
    }
    form->heading(to, text);
    form->paragraph(
        to,
        "Images per second of all ranks together: the median over the steady window of the "
        "slowest rank, with the 95 % interval of that median. A number in parentheses is no "
        "result: its job did not pass its checks. Judged on: the gradient check that the timed "
        "shape itself passed. FP32 step 1: the gradient of step 1 was compared with FP32 in one "
        "process; FP64 samples: drawn elements of a step were compared with FP64.");
    write_speed_rows(run, form, to);
    write_more_rows(run, form, to);
    write_compared(run, form, to);
}

static void write_verdict(const ls_report_verdict *verdict, const ls_report_page_form *form,
                          FILE *to)
{
    static const char *const LINES[][2] = {
        {"waiver: ", "waiver"}, {"cause:  ", "cause"}, {"repeat: ", "repeat"}};
    char line[TEXT_BYTES], text[2 * TEXT_BYTES] = "";
    ls_text_add(text, sizeof text, "%s", ls_report_lines_verdict(verdict, line));
    for (int i = 0; i < 3; i++) {
        const char *value = ls_json_string(verdict->json, LINES[i][1], "");
        if (value[0] != '\0') {
            ls_text_add(text, sizeof text, "\n%s%s", LINES[i][0], value);
        }
    }
    form->code(to, text);
}

/* Inside the claim each case with its cause and its line to repeat it. */
static int write_claimed(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    int listed = 0;
    for (int v = 0; v < run->verdict_count; v++) {
        const ls_report_verdict *verdict = &run->verdict[v];
        if (ls_report_lines_listed(verdict) && verdict->in_claim) {
            write_verdict(verdict, form, to);
            listed++;
        }
    }
    return listed;
}

/* Outside the claim a line each. */
static int write_unclaimed(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    int listed = 0;
    for (int v = 0; v < run->verdict_count; v++) {
        const ls_report_verdict *verdict = &run->verdict[v];
        char line[TEXT_BYTES];
        if (ls_report_lines_listed(verdict) && !verdict->in_claim) {
            if (listed++ == 0) {
                form->paragraph(to, "Outside the claim, which they do not decide:");
                fputs(form->list_open, to);
            }
            form->list_item(to, ls_report_lines_verdict(verdict, line));
        }
    }
    if (listed > 0) {
        fputs(form->list_close, to);
    }
    return listed;
}

static void write_failures(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    form->heading(to, "Failures");
    int listed = write_claimed(run, form, to);
    listed += write_unclaimed(run, form, to);
    char state[96], text[TEXT_BYTES];
    int unfinished = 0;
    ls_report_each(job, run, LS_ROLE_COUNT) {
        if (job->record->state != LS_RECORD_DONE) {
            if (unfinished++ == 0) {
                form->paragraph(to, "Jobs that did not end well:");
                fputs(form->list_open, to);
            }
            snprintf(text, sizeof text, "%s: %s (jobs/%s/)", job->record->label,
                     ls_report_job_state(job, state), job->record->id);
            form->list_item(to, text);
        }
    }
    if (unfinished > 0) {
        fputs(form->list_close, to);
    }
    if (listed == 0 && unfinished == 0) {
        form->paragraph(
            to, run->verdict_count > 0
                    ? "Nothing: every selected case of the claim passed and every job ended well."
                    : "No case was judged in this run.");
    }
}

static void write_figures(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    bool first = true;
    for (int i = 0; ls_tables_name(i) != NULL; i++) {
        const char *name = ls_tables_name(i);
        ls_table_head head;
        if (!ls_tables_is_drawn(run, i, &head)) {
            continue;
        }
        if (first) {
            form->heading(to, "Figures");
            first = false;
        }
        form->figure(to, run->directory, name, head.title, head.caption,
                     ls_report_plots_drawn(run, name));
    }
}

static void write_conformance(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    cJSON *conformance = ls_report_summary_conformance(run);
    const cJSON *counts = ls_json_get(conformance, "counts"), *family;
    char text[TEXT_BYTES], titles[TEXT_BYTES] = "family|cases>";
    for (int code = 0; code < LS_VERDICT_CODES; code++) {
        const char *name = ls_verdict_name((ls_verdict_code)code);
        if (ls_json_integer(counts, name, 0) > 0) {
            ls_text_add(titles, sizeof titles, "|%s>", name);
        }
    }
    int total = ls_json_int(conformance, "total", 0);
    int claimed = ls_json_int(conformance, "in_claim", 0);
    const cJSON *headline = ls_json_get(run->record, "headline");
    int all = ls_json_int(ls_json_get(headline, "correct"), "claim_cases", 0);
    form->heading(to, "Conformance by family");
    snprintf(text, sizeof text, "%d case%s: %d inside the claim", total, total == 1 ? "" : "s",
             claimed);
    if (all > claimed) {
        ls_text_add(text, sizeof text, ", which has %d", all);
    }
    ls_text_add(text, sizeof text, "; %d of them passed or were waived; %d outside, counted only.",
                ls_json_int(conformance, "in_claim_passed", 0), total - claimed);
    form->paragraph(to, text);
    if (total > 0) {
        ls_page_table table;
        ls_page_table_open(&table, form, to, titles);
        ls_json_each(family, ls_json_get(conformance, "families")) {
            ls_page_cell(&table, "%s", ls_json_string(family, "family", "?"));
            ls_page_cell(&table, "%d", ls_json_int(family, "total", 0));
            for (int i = 2; i < table.columns; i++) {
                int cases = ls_json_int(ls_json_get(family, "counts"), table.column[i].title, 0);
                ls_page_cell(&table, cases > 0 ? "%d" : "", cases);
            }
        }
        ls_page_table_close(&table);
    }
    cJSON_Delete(conformance);
}

static void append_value(char *text, const cJSON *value)
{
    if (cJSON_IsNumber(value)) {
        double number = value->valuedouble;
        bool whole = number == floor(number) && fabs(number) < 1e15; /* exact in a double */
        ls_text_add(text, TEXT_BYTES, whole ? "%.0f" : "%.4g", number);
    } else {
        ls_text_add(text, TEXT_BYTES, "%s",
                    cJSON_IsString(value)  ? value->valuestring
                    : cJSON_IsTrue(value)  ? "yes"
                    : cJSON_IsFalse(value) ? "no"
                                           : "-");
    }
}

static bool is_plain_list(const cJSON *value)
{
    bool plain = cJSON_IsArray(value);
    for (const cJSON *child = value->child; child != NULL; child = child->next) {
        plain = plain && !cJSON_IsObject(child) && !cJSON_IsArray(child);
    }
    return plain;
}

/* Leaves of an object as rows "a.b.c | value"; a list of plain values is one leaf. */
static void write_leaves(const cJSON *value, const char *name, ls_page_table *table)
{
    const cJSON *child = value->child;
    bool list = is_plain_list(value);
    char text[TEXT_BYTES] = "";
    if (!list && (cJSON_IsObject(value) || cJSON_IsArray(value))) {
        for (int index = 0; child != NULL; child = child->next, index++) {
            if (child->string != NULL) {
                snprintf(text, sizeof text, "%s%s%s", name, name[0] ? "." : "", child->string);
            } else {
                snprintf(text, sizeof text, "%s[%d]", name, index);
            }
            write_leaves(child, text, table);
        }
        return;
    }
    for (; list && child != NULL; child = child->next) {
        append_value(text, child);
        ls_text_add(text, sizeof text, "%s", child->next != NULL ? ", " : "");
    }
    if (!list) {
        append_value(text, value);
    }
    ls_page_cell(table, "%s", name);
    ls_page_cell(table, "%s", text[0] != '\0' ? text : "none");
}

static void write_object(const ls_report_run *run, const char *member, const char *heading,
                         const ls_report_page_form *form, FILE *to)
{
    const cJSON *value = ls_json_get(run->record, member);
    if (value == NULL || value->child == NULL) {
        return;
    }
    form->heading(to, heading);
    ls_page_table table;
    ls_page_table_open(&table, form, to, "member|value");
    write_leaves(value, "", &table);
    ls_page_table_close(&table);
}

static void write_installed(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    const cJSON *entry, *installed = ls_json_get(run->record, "installed");
    form->heading(to, "Installed packages");
    if (cJSON_GetArraySize(installed) == 0) {
        form->paragraph(to, "Nothing was installed for this run.");
        return;
    }
    char text[TEXT_BYTES] = "";
    ls_json_each(entry, installed) {
        ls_text_add(text, sizeof text, "%s%s", text[0] ? ", " : "",
                    cJSON_IsString(entry) ? entry->valuestring : "?");
    }
    form->paragraph(to, text);
}

static void write_files(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    static const char *const FILES[][2] = {
        {"run.json", "options, machine, libraries, commit"},
        {"verdicts.jsonl", "one line per case"},
        {"summary.json", "these figures, for programs"},
        {"junit.xml", "the cases for a CI"},
        {"trace.json", "compute and communication of every rank, for Perfetto (ui.perfetto.dev) or "
                       "chrome://tracing"},
        {"tables/", "the data of the figures"},
        {"plots/", "the figures as SVG and PNG"},
        {"jobs/", "command, environment, log and events of every job"}};
    form->heading(to, "Files");
    fputs(form->list_open, to);
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        LS_TEXT(path, PATH_MAX, "%s/%s", run->directory, FILES[i][0]);
        if (access(path, R_OK) == 0) {
            form->file(to, FILES[i][0], FILES[i][1]);
        }
    }
    fputs(form->list_close, to);
}

/* ---- where a step's time goes ---------------------------------------------------------------- */

/* On one device without other ranks: run.json's "layers" (suite/commands/layers_internal.h,
 * ls_layers_record). */

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
    ls_json_each(kind, ls_json_get(step, "kinds")) {
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
    ls_json_each(pass, ls_json_get(step, "longest")) {
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
    ls_json_each(kind, ls_json_get(step, "kinds")) {
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

static void write_layers(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    const cJSON *list = ls_json_get(run->record, "layers"), *step;
    bool headed = false;
    ls_json_each(step, list) {
        if (strcmp(ls_json_string(step, "when", ""), "before") != 0) {
            continue; /* measured again after the jobs */
        }
        if (!headed) {
            write_head(step, form, to);
            if (ls_json_bool(ls_json_get(run->record, "options"), "emulated", false)) {
                form->paragraph(to, "The device is emulated: its times say nothing.");
            }
            headed = true;
        }
        write_step(step, form, to);
    }
}

/* Real nodes, as they answered before the jobs; "disk": where those have the programs that do not
 * share the bench's. */
static void write_nodes(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    const cJSON *list = ls_json_get(ls_json_get(run->record, "options"), "nodes"), *node;
    int ranks = ls_json_int(ls_json_get(run->record, "options"), "ranks", 0);
    int count = cJSON_GetArraySize(list), k = 0;
    if (count == 0) {
        return;
    }
    ls_page_table table;
    form->heading(to, "Nodes");
    ls_page_table_open(&table, form, to, "node>|host|name|CPU|cores>|GPUs>|ranks|disk");
    ls_json_each(node, list) {
        int first = k * (ranks / count), last = first + ranks / count - 1;
        const char *programs = ls_json_string(node, "programs", NULL);
        ls_page_cell(&table, "%d", k++);
        ls_page_cell(&table, "%s", ls_json_string(node, "host", ""));
        ls_page_cell(&table, "%s", ls_json_string(node, "hostname", ""));
        ls_page_cell(&table, "%s", ls_json_string(node, "cpu", ""));
        ls_page_cell(&table, "%g", ls_json_number(node, "cores", NAN));
        ls_page_cell(&table, "%d", ls_json_int(node, "devices", 0));
        ls_page_cell(&table, first == last ? "%d" : "%d to %d", first, last);
        ls_page_cell(&table, programs == NULL ? "shared" : "its own, programs in %s", programs);
    }
    ls_page_table_close(&table);
}

/* ---- the page -------------------------------------------------------------------------------- */

static void write_origin(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    char text[TEXT_BYTES] = "";
    const char *command = ls_json_string(run->record, "command", "");
    ls_text_add(text, sizeof text, "Made %s by Lockstep %s from commit %s%s",
                ls_json_string(run->record, "created", "at an unknown time"),
                ls_json_string(run->record, "version", "of an unknown version"),
                ls_json_string(run->record, "commit", "unknown"),
                ls_json_bool(run->record, "dirty", false) ? " with local changes" : "");
    ls_text_add(text, sizeof text, command[0] != '\0' ? " by: %s" : "%s", command);
    form->paragraph(to, text);
}

static void render(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    ls_report_headline headline[LS_REPORT_LINES_HEADLINES];
    int headlines = ls_report_lines_headlines(run, headline);
    form->open(to, ls_report_lines_title(run), ls_report_lines_where(run), headline, headlines);
    write_origin(run, form, to);
    write_speed(run, form, to);
    write_nodes(run, form, to);
    write_failures(run, form, to);
    write_figures(run, form, to);
    write_conformance(run, form, to);
    write_layers(run, form, to);
    ls_report_gpus_write(run, form, to);
    write_object(run, "machine", "Machine", form, to);
    write_installed(run, form, to);
    write_files(run, form, to);
    write_sentences(form, to, "Advice", ls_report_advice_make(run));
    fputs(form->close, to);
}

/* ---- the files ------------------------------------------------------------------------------- */

ls_status ls_report_tables(const char *run_directory)
{
    ls_report_run run;
    LS_TRY(ls_report_load(run_directory, &run));
    ls_status status = LS_OK;
    LS_TRY_GOTO(status, ls_tables_write(&run), close);
    LS_TRY_GOTO(status, ls_report_summary_write(&run), close);
close:
    ls_report_load_free(&run);
    return status;
}

static ls_status write_page(const ls_report_run *run, const ls_report_page_form *form,
                            const char *name)
{
    LS_TEXT(path, PATH_MAX, "%s/%s", run->directory, name);
    FILE *page = ls_file_create(path);
    LS_TRY_FILE(page);
    render(run, form, page);
    return ls_file_close(page, path);
}

ls_status ls_report_junit(const char *run_directory)
{
    ls_report_run run;
    LS_TRY(ls_report_load(run_directory, &run));
    ls_status status = ls_junit_write(&run);
    ls_report_load_free(&run);
    return status;
}

ls_status ls_report_write(const char *run_directory, const char *plots_folder)
{
    ls_report_run run;
    LS_TRY(ls_report_load(run_directory, &run));
    ls_status status = LS_OK;
    LS_TRY_GOTO(status, ls_report_plots_draw(&run, run.directory, plots_folder, NULL), close);
    LS_TRY_GOTO(status, ls_tables_timeline_trace(&run), close);
    LS_TRY_GOTO(status, ls_junit_write(&run), close);
    LS_TRY_GOTO(status, ls_report_summary_add_headline(&run), close);
    LS_TRY_GOTO(status, write_page(&run, ls_report_markdown_form(), "report.md"), close);
    LS_TRY_GOTO(status, write_page(&run, ls_html_form(), "report.html"), close);
close:
    ls_report_load_free(&run);
    return status;
}
