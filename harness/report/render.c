#include "page.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "advice.h"
#include "compare.h"
#include "memory.h"
#include "files.h"
#include "speed.h"
#include "tables/tables.h"
#include "kernels/core/text.h"

enum { COLUMNS_MAX = 16, TEXT_BYTES = LS_REPORT_LINES_BYTES * 2 };

static const ls_report_job *first_timed(const ls_report_run *run)
{
    for (int j = 0; j < run->job_count; j++) {
        if (run->job[j].spec->role == LS_ROLE_THROUGHPUT) {
            return &run->job[j];
        }
    }
    return NULL;
}

static void write_speed_rows(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    static const ls_report_column COLUMNS[] = {
        {"level", false},          {"ranks", true},      {"nodes", false}, {"bucket", false},
        {"images/s [95 %]", true}, {"ms p50", true},     {"ms p90", true}, {"ms p99", true},
        {"efficiency", true},      {"judged on", false}, {"marks", false}};
    enum { COUNT = sizeof COLUMNS / sizeof *COLUMNS };
    form->table_open(to, COLUMNS, COUNT);
    for (int j = 0; j < run->job_count; j++) {
        const ls_report_job *job = &run->job[j];
        if (job->spec->role != LS_ROLE_THROUGHPUT) {
            continue;
        }
        char level[24], ranks[16], nodes[32], bucket[24], rate[96], p50[32] = "-", p99[32] = "-";
        char p90[32] = "-", efficiency[32] = "-", judged[160], marks[160];
        snprintf(ranks, sizeof ranks, "%d", job->spec->world);
        ls_report_job_state(job, rate);
        if (ls_report_job_has_speed(job)) {
            ls_report_lines_rate(job, rate);
            ls_report_lines_number(job->speed.step.value, p50);
            ls_report_lines_number(job->speed.p99_ms, p99);
            ls_report_lines_number(job->speed.p90_ms, p90);
            ls_report_lines_number(job->speed.efficiency.value, efficiency);
        }
        const char *cells[COUNT] = {ls_report_job_level(job, level),
                                    ranks,
                                    ls_report_lines_nodes(job, nodes),
                                    ls_report_job_bucket(job, bucket),
                                    rate,
                                    p50,
                                    p90,
                                    p99,
                                    efficiency,
                                    ls_report_lines_judged(run, job, judged),
                                    ls_report_lines_marks(run, job, marks)};
        form->table_row(to, COLUMNS, cells, COUNT);
    }
    fputs(form->table_close, to);
}

static void write_more_rows(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    static const ls_report_column COLUMNS[] = {
        {"job", false},        {"steps measured", true},      {"warm-up", true},
        {"skipped", true},     {"second half / first", true}, {"slowest rank", true},
        {"rank spread", true}, {"MB reduced/step", true},     {"bus GB/s", true},
        {"of roofline", true}, {"first step s", true},        {"peak MB/rank", true}};
    enum { COUNT = sizeof COLUMNS / sizeof *COLUMNS };
    form->table_open(to, COLUMNS, COUNT);
    for (int j = 0; j < run->job_count; j++) {
        const ls_report_job *job = &run->job[j];
        const ls_report_speed *speed = &job->speed;
        if (job->spec->role != LS_ROLE_THROUGHPUT || !ls_report_job_has_speed(job)) {
            continue;
        }
        char steps[16], warmup[16], skipped[16], halves[32], slowest[16], spread[32], reduced[32],
            bus[32];
        char roofline[32] = "-", peak[32], first[32];
        snprintf(steps, sizeof steps, "%d", speed->count);
        snprintf(warmup, sizeof warmup, "%d", speed->warmup_count);
        snprintf(skipped, sizeof skipped, "%d", speed->skipped_count);
        snprintf(slowest, sizeof slowest, "%d", speed->slowest_rank);
        snprintf(spread, sizeof spread, "%.1f %%", 100 * speed->spread);
        if (isfinite(speed->roofline_share)) {
            snprintf(roofline, sizeof roofline, "%.0f %%", 100 * speed->roofline_share);
        }
        const char *cells[COUNT] = {
            job->record->label,
            steps,
            warmup,
            skipped,
            ls_report_lines_number(speed->halves_ratio.value, halves),
            slowest,
            spread,
            ls_report_lines_number(job->record->rank[0].reduced_bytes / 1e6, reduced),
            ls_report_lines_number(speed->bus_bytes_per_s / 1e9, bus),
            roofline,
            ls_report_lines_number(speed->first_step_s, first),
            ls_report_lines_number(ls_report_job_peak_bytes(job) / 1e6, peak)};
        form->table_row(to, COLUMNS, cells, COUNT);
    }
    fputs(form->table_close, to);
}

/* Exposed communication, measured in both ways. */
static void write_exposed(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    static const ls_report_column COLUMNS[] = {{"job", false},
                                               {"step ms", true},
                                               {"communication ms", true},
                                               {"waited for ms", true},
                                               {"against no_comm ms [95 %]", true},
                                               {"difference", true}};
    enum { COUNT = sizeof COLUMNS / sizeof *COLUMNS };
    form->table_open(to, COLUMNS, COUNT);
    for (int j = 0; j < run->job_count; j++) {
        const ls_report_job *job = &run->job[j];
        if (job->spec->role != LS_ROLE_THROUGHPUT || job->spec->world < 2 ||
            !ls_report_job_is_result(job)) {
            continue;
        }
        char step[32], comm[32], waited[32], against[112] = "not run", difference[32], low[32],
                                             high[32], value[32];
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
        const char *cells[COUNT] = {job->record->label,
                                    ls_report_lines_number(job->speed.step.value, step),
                                    ls_report_lines_number(job->speed.comm_ms, comm),
                                    ls_report_lines_number(waited_ms, waited),
                                    against,
                                    ls_report_lines_number(no_comm.value - waited_ms, difference)};
        form->table_row(to, COLUMNS, cells, COUNT);
    }
    fputs(form->table_close, to);
}

static void write_memory(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    static const ls_report_column COLUMNS[] = {
        {"level", false},       {"parameters", true},   {"masters", true},      {"moments", true},
        {"gradients", true},    {"activations", true},  {"workspace", true},    {"sum", true},
        {"seen at peak", true}, {"MB per image", true}, {"largest batch", true}};
    enum { COUNT = sizeof COLUMNS / sizeof *COLUMNS };
    const ls_report_job *jobs[COLUMNS_MAX];
    int count = ls_report_job_select(run, LS_ROLE_THROUGHPUT, LS_SWEEP_LEVEL, jobs, COLUMNS_MAX);
    double kind[LS_REPORT_KINDS];
    if (count == 0) {
        return;
    }
    ls_report_memory(&jobs[0]->record->rank[0], kind);
    if (!isfinite(kind[LS_REPORT_ACTIVATIONS])) {
        return;
    }
    form->heading(to, "Memory of a rank by kind, MB");
    form->table_open(to, COLUMNS, COUNT);
    for (int i = 0; i < count; i++) {
        const ls_record_rank *rank = &jobs[i]->record->rank[0];
        char level[24], text[COUNT][32];
        const char *cells[COUNT] = {ls_report_job_level(jobs[i], level)};
        double sum = ls_report_memory(rank, kind);
        for (int k = 0; k < LS_REPORT_KINDS; k++) {
            cells[1 + k] = ls_report_lines_number(kind[k] / 1e6, text[1 + k]);
        }
        ls_report_batch batch = {.image_bytes = NAN, .largest = NAN};
        (void)ls_report_memory_largest_batch(run, jobs[i], &batch);
        cells[7] = ls_report_lines_number(sum / 1e6, text[7]);
        cells[8] = ls_report_lines_number(rank->rss_bytes_max / 1e6, text[8]);
        cells[9] = ls_report_lines_number(batch.image_bytes / 1e6, text[9]);
        snprintf(text[10], sizeof text[10], isfinite(batch.largest) ? "%.0f" : "-", batch.largest);
        cells[10] = text[10];
        form->table_row(to, COLUMNS, cells, COUNT);
    }
    fputs(form->table_close, to);
    form->paragraph(
        to, "Allocations of the trainer on rank 0. Seen at peak: the largest resident memory, with "
            "program, libraries and the dumps of the judged step. Workspace: packed "
            "weights, scratch, running statistics. Largest batch: images per rank that free memory "
            "divided by the ranks would hold; computed from these figures, not run.");
}

static void write_compared(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    cJSON *sentences = ls_report_compare_sentences(run);
    const cJSON *sentence;
    form->heading(to, "Communication, DDP, scaling");
    fputs(form->list_open, to);
    cJSON_ArrayForEach(sentence, sentences)
    {
        form->list_item(to, sentence->valuestring);
    }
    fputs(form->list_close, to);
    cJSON_Delete(sentences);
    write_exposed(run, form, to);
    form->paragraph(
        to,
        "Waited for: from the end of a rank's own backward to its last reduction. Against no_comm: "
        "step time minus that of the job no_comm, the same level and world without reduction. Load "
        "or clocks that change between the two jobs are part of it. Difference: against no_comm "
        "minus waited for.");
    write_memory(run, form, to);
}

static void write_speed(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    const ls_report_job *first = first_timed(run);
    if (first == NULL) {
        form->heading(to, "Throughput");
        form->paragraph(to, "This run holds no throughput job.");
        return;
    }
    int simulated = 0;
    for (int j = 0; j < run->job_count; j++) {
        simulated = run->job[j].spec->role == LS_ROLE_THROUGHPUT &&
                            ls_spec_is_simulated(run->job[j].spec) &&
                            run->job[j].spec->nodes > simulated
                        ? run->job[j].spec->nodes
                        : simulated;
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
    for (int j = 0; j < run->job_count; j++) {
        if (run->job[j].record->state != LS_RECORD_DONE) {
            if (unfinished++ == 0) {
                form->paragraph(to, "Jobs that did not end well:");
                fputs(form->list_open, to);
            }
            snprintf(text, sizeof text, "%s: %s (jobs/%s/)", run->job[j].record->label,
                     ls_report_job_state(&run->job[j], state), run->job[j].record->id);
            form->list_item(to, text);
        }
    }
    if (unfinished > 0) {
        fputs(form->list_close, to);
    }
    if (listed == 0 && unfinished == 0) {
        form->paragraph(
            to, run->verdict_count > 0
                    ? "Nothing: every case inside the claim passed and every job ended well."
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
    const cJSON *counts = cJSON_GetObjectItemCaseSensitive(conformance, "counts"), *family;
    ls_report_column columns[COLUMNS_MAX] = {{"family", false}, {"cases", true}};
    int count = 2;
    for (int code = 0; code < LS_VERDICT_CODES; code++) {
        const char *name = ls_verdict_name((ls_verdict_code)code);
        if (ls_json_integer(counts, name, 0) > 0) {
            columns[count++] = (ls_report_column){name, true};
        }
    }
    char text[TEXT_BYTES];
    int total = (int)ls_json_integer(conformance, "total", 0);
    form->heading(to, "Conformance by family");
    snprintf(text, sizeof text,
             "%d cases: %d inside the claim, of which %d passed or were waived; %d outside, "
             "counted only.",
             total, (int)ls_json_integer(conformance, "in_claim", 0),
             (int)ls_json_integer(conformance, "in_claim_passed", 0),
             total - (int)ls_json_integer(conformance, "in_claim", 0));
    form->paragraph(to, text);
    if (total > 0) {
        form->table_open(to, columns, count);
        cJSON_ArrayForEach(family, cJSON_GetObjectItemCaseSensitive(conformance, "families"))
        {
            char cell[COLUMNS_MAX][32];
            const char *cells[COLUMNS_MAX] = {ls_json_string(family, "family", "?"), cell[1]};
            snprintf(cell[1], sizeof cell[1], "%d", (int)ls_json_integer(family, "total", 0));
            for (int i = 2; i < count; i++) {
                int cases = (int)ls_json_integer(cJSON_GetObjectItemCaseSensitive(family, "counts"),
                                                 columns[i].title, 0);
                snprintf(cell[i], sizeof cell[i], cases > 0 ? "%d" : "", cases);
                cells[i] = cell[i];
            }
            form->table_row(to, columns, cells, count);
        }
        fputs(form->table_close, to);
    }
    cJSON_Delete(conformance);
}

static void append_number(char *text, double value)
{
    bool whole = value == floor(value) && fabs(value) < 1e15; /* exact in a double */
    ls_text_add(text, TEXT_BYTES, whole ? "%.0f" : "%.4g", value);
}

/* Leaves of an object as rows "a.b.c | value". */
static void write_leaves(const cJSON *value, const char *name, const ls_report_page_form *form,
                         const ls_report_column *columns, FILE *to)
{
    if (cJSON_IsObject(value) ||
        (cJSON_IsArray(value) && (cJSON_IsObject(value->child) || cJSON_IsArray(value->child)))) {
        const cJSON *child;
        int index = 0;
        cJSON_ArrayForEach(child, value)
        {
            char path[160];
            if (child->string != NULL) {
                snprintf(path, sizeof path, "%s%s%s", name, name[0] ? "." : "", child->string);
            } else {
                snprintf(path, sizeof path, "%s[%d]", name, index);
            }
            index++;
            write_leaves(child, path, form, columns, to);
        }
        return;
    }
    char text[TEXT_BYTES] = "";
    if (cJSON_IsArray(value)) {
        const cJSON *child;
        cJSON_ArrayForEach(child, value)
        {
            const char *joint = text[0] != '\0' ? ", " : "";
            if (cJSON_IsNumber(child)) {
                ls_text_add(text, sizeof text, "%s", joint);
                append_number(text, child->valuedouble);
            } else {
                ls_text_add(text, sizeof text, "%s%s", joint,
                            cJSON_IsString(child) ? child->valuestring : "?");
            }
        }
    } else if (cJSON_IsString(value)) {
        snprintf(text, sizeof text, "%s", value->valuestring);
    } else if (cJSON_IsNumber(value)) {
        append_number(text, value->valuedouble);
    } else {
        snprintf(text, sizeof text, "%s",
                 cJSON_IsTrue(value)    ? "yes"
                 : cJSON_IsFalse(value) ? "no"
                                        : "-");
    }
    const char *cells[] = {name, text[0] != '\0' ? text : "none"};
    form->table_row(to, columns, cells, 2);
}

static void write_object(const ls_report_run *run, const char *member, const char *heading,
                         const ls_report_page_form *form, FILE *to)
{
    static const ls_report_column COLUMNS[] = {{"member", false}, {"value", false}};
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(run->record, member);
    if (value == NULL || value->child == NULL) {
        return;
    }
    form->heading(to, heading);
    form->table_open(to, COLUMNS, 2);
    write_leaves(value, "", form, COLUMNS, to);
    fputs(form->table_close, to);
}

static void write_installed(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    const cJSON *entry, *installed = cJSON_GetObjectItemCaseSensitive(run->record, "installed");
    form->heading(to, "Installed packages");
    if (cJSON_GetArraySize(installed) == 0) {
        form->paragraph(to, "Nothing was installed for this run.");
        return;
    }
    char text[TEXT_BYTES] = "";
    cJSON_ArrayForEach(entry, installed)
    {
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
        char path[PATH_MAX];
        ls_text_put(path, sizeof path, "%s/%s", run->directory, FILES[i][0]);
        if (access(path, R_OK) == 0) {
            form->file(to, FILES[i][0], FILES[i][1]);
        }
    }
    fputs(form->list_close, to);
}

static void write_advice(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    cJSON *advice = ls_report_advice_make(run);
    const cJSON *sentence;
    form->heading(to, "Advice");
    fputs(form->list_open, to);
    cJSON_ArrayForEach(sentence, advice)
    {
        form->list_item(to, sentence->valuestring);
    }
    fputs(form->list_close, to);
    cJSON_Delete(advice);
}

static void write_origin(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    char text[TEXT_BYTES] = "";
    const char *command = ls_json_string(run->record, "command", "");
    ls_text_add(text, sizeof text, "Made %s from commit %s%s",
                ls_json_string(run->record, "created", "at an unknown time"),
                ls_json_string(run->record, "commit", "unknown"),
                ls_json_bool(run->record, "dirty", false) ? " with local changes" : "");
    ls_text_add(text, sizeof text, command[0] != '\0' ? " by: %s" : "%s", command);
    form->paragraph(to, text);
}

void ls_report_render(const ls_report_run *run, const ls_report_page_form *form, FILE *to)
{
    ls_report_headline headline[LS_REPORT_LINES_HEADLINES];
    ls_report_lines_headlines(run, headline);
    form->open(to, ls_report_lines_title(run), ls_report_lines_where(run), headline);
    write_origin(run, form, to);
    write_speed(run, form, to);
    write_failures(run, form, to);
    write_figures(run, form, to);
    write_conformance(run, form, to);
    ls_report_machine_write(run, form, to);
    write_object(run, "machine", "Machine", form, to);
    write_installed(run, form, to);
    write_files(run, form, to);
    write_advice(run, form, to);
    fputs(form->close, to);
}
