/* The report on a terminal: at most 80 columns. */
#include <math.h>
#include <string.h>

#include "report.h"
#include "figures.h"
#include "page.h"
#include "kernels/core/text.h"

static void print_opening(const ls_report_run *run, FILE *to)
{
    ls_report_headline headline[LS_REPORT_LINES_HEADLINES];
    int headlines = ls_report_lines_headlines(run, headline);
    ls_report_lines_print(to, ls_report_lines_title(run), 2);
    ls_report_lines_print(to, ls_report_lines_where(run), 2);
    for (int i = 0; i < headlines; i++) {
        LS_TEXT(line, LS_REPORT_LINES_BYTES, "%-8s %-9s%s%s%s", headline[i].name, headline[i].value,
                headline[i].why[0] ? " (" : "", headline[i].why, headline[i].why[0] ? ")" : "");
        ls_report_lines_print(to, line, 9);
    }
}

static void print_job(const ls_report_run *run, const ls_report_job *job, FILE *to)
{
    char level[24], bucket[24], nodes[16], rate[64], p50[32] = "-", p99[32] = "-",
                                                     exposed[32] = "-";
    char efficiency[32] = "-", reason[160], state[96], marks[8] = "";
    snprintf(nodes, sizeof nodes, "%d%s", job->spec->nodes,
             ls_spec_is_simulated(job->spec) ? "s" : "");
    snprintf(marks, sizeof marks, "%s%s%s%s", job->record->oversubscribed ? "o" : "",
             job->record->half_emulated ? "e" : "", ls_report_job_no_graph(job) != NULL ? "g" : "",
             ls_report_lines_weak(run, job) ? "w" : "");
    fprintf(to, "%-8.8s %5d %5s %7s ", ls_report_job_level(job, level), job->spec->world, nodes,
            ls_report_job_bucket(job, bucket));
    if (!ls_report_job_has_speed(job)) {
        fprintf(to, "%.51s\n",
                job->record->state == LS_RECORD_DONE ? ls_report_job_reason(run, job, reason)
                                                     : ls_report_job_state(job, state));
        return;
    }
    ls_report_lines_number(job->speed.step.value, p50);
    ls_report_lines_number(job->speed.p99_ms, p99);
    ls_report_lines_number(ls_report_speed_exposed_ms(run, job), exposed);
    if (isfinite(job->speed.efficiency.value)) {
        snprintf(efficiency, sizeof efficiency, "%.2f", job->speed.efficiency.value);
    }
    fprintf(to, "%-20s %6s %6s %6s %5s%s%s\n", ls_report_lines_rate(job, rate), p50, p99, exposed,
            efficiency, marks[0] ? " " : "", marks);
    if (!ls_report_job_is_result(job)) {
        LS_TEXT(line, LS_REPORT_LINES_BYTES, "    no result: %s",
                ls_report_job_reason(run, job, reason));
        ls_report_lines_print(to, line, 6);
    }
}

static void print_jobs(const ls_report_run *run, FILE *to)
{
    int printed = 0, oversubscribed = 0, emulated = 0, simulated = 0, weak = 0, hidden = 0;
    const char *no_graph = NULL, *products = "";
    ls_report_each(job, run, LS_ROLE_THROUGHPUT) {
        if (printed++ == 0) {
            fprintf(to, "\n%s, batch %d per rank, %d x %d pixels\n", job->spec->arch,
                    job->spec->batch_size, job->spec->image_size, job->spec->image_size);
            fprintf(to, "%-8s %5s %5s %7s %-20s %6s %6s %6s %5s\n", "level", "ranks", "nodes",
                    "bucket", "images/s [95 %]", "ms p50", "p99", "expos.", "effic");
        }
        print_job(run, job, to);
        oversubscribed += job->record->oversubscribed;
        emulated += job->record->half_emulated;
        products = job->record->half_emulated ? job->record->half_products : products;
        simulated += ls_spec_is_simulated(job->spec);
        no_graph = no_graph != NULL ? no_graph : ls_report_job_no_graph(job);
        weak += ls_report_lines_weak(run, job);
        hidden += ls_report_job_has_speed(job) && !ls_report_job_is_result(job);
    }
    if (printed > 0) {
        fprintf(to, "ms: of the slowest rank; expos.: its wait for reductions\n"
                    "effic: images/s over ranks x one rank's\n");
    }
    if (simulated > 0) {
        fprintf(to, "s: nodes are simulated on this machine\n");
    }
    if (oversubscribed > 0) {
        fprintf(to, "o: more ranks than devices or cores: behaviour is shown, not speed\n");
    }
    if (emulated > 0) {
        fprintf(to,
                "e: half is emulated (16-bit storage, f32 arithmetic): no speed of half units\n");
        if (products[0] != '\0') {
            fprintf(to, "   %s\n", products);
        }
    }
    if (no_graph != NULL) {
        fprintf(to, "g: steps were not launched as one graph each (%s)\n", no_graph);
    }
    if (weak > 0) {
        fprintf(to, "w: the two halves of the window differ, the row is weak\n");
    }
    if (hidden > 0) {
        fprintf(to, "(...): its checks did not pass, the number is no result\n");
    }
}

static void print_compared(const ls_report_run *run, FILE *to)
{
    cJSON *sentences = ls_report_compare_sentences(run);
    const cJSON *sentence;
    fprintf(to, "%s", cJSON_GetArraySize(sentences) > 0 ? "\n" : "");
    ls_json_each(sentence, sentences) {
        ls_report_lines_print(to, sentence->valuestring, 2);
    }
    cJSON_Delete(sentences);
}

static void print_indented(FILE *to, const char *name, const char *text)
{
    if (text[0] != '\0') {
        LS_TEXT(line, LS_REPORT_LINES_BYTES * 2, "%-8s%s", name, text);
        ls_report_lines_print(to, line, 8);
    }
}

/* Nothing was run for either: one cause for all. */
static bool says_the_same(const ls_report_verdict *a, const ls_report_verdict *b)
{
    return a->code == LS_INFRA && b->code == LS_INFRA &&
           strcmp(ls_json_string(a->json, "evidence", ""),
                  ls_json_string(b->json, "evidence", "")) == 0;
}

/* Inside the claim every case is listed; outside it they are counted, the pages name them. */
static void print_verdicts(const ls_report_run *run, FILE *to)
{
    const ls_report_verdict *last = NULL;
    static const ls_verdict_code COUNTED[] = {LS_FAIL, LS_CRASH, LS_TIMEOUT, LS_WEAK, LS_INFRA};
    int listed = 0, printed = 0, same = 0, outside[LS_VERDICT_CODES + 1] = {0};
    for (int v = 0; v < run->verdict_count; v++) {
        const ls_report_verdict *verdict = &run->verdict[v];
        char line[LS_REPORT_LINES_BYTES * 2];
        if (!ls_report_lines_listed(verdict)) {
            continue;
        }
        if (!verdict->in_claim) {
            outside[verdict->code]++;
            continue;
        }
        if (listed > 0 && says_the_same(verdict, last)) {
            same++;
            continue;
        }
        last = verdict;
        fprintf(to, "%s", listed++ == 0 ? "\n" : "");
        ls_report_lines_print(to, ls_report_lines_verdict(verdict, line), 2);
        print_indented(to, "waiver:", ls_json_string(verdict->json, "waiver", ""));
        print_indented(to, "cause:", ls_json_string(verdict->json, "cause", ""));
        const char *repeat =
            ls_json_string(verdict->json, "repeat", ""); /* to be pasted: one line */
        fprintf(to, repeat[0] != '\0' ? "repeat: %s\n" : "%s", repeat);
    }
    if (same > 0) {
        fprintf(to, "%d more with the evidence of the case before them; the report lists them\n",
                same);
    }
    for (size_t i = 0; i < sizeof COUNTED / sizeof *COUNTED; i++) {
        if (outside[COUNTED[i]] > 0) {
            fprintf(to, "%s%d %s",
                    printed++ == 0 ? "outside the claim, listed in the report: " : ", ",
                    outside[COUNTED[i]], ls_verdict_name(COUNTED[i]));
        }
    }
    fprintf(to, "%s", printed > 0 ? "\n" : "");
}

ls_status ls_report_terminal(const char *run_directory, FILE *to)
{
    ls_report_run run;
    LS_TRY(ls_report_load(run_directory, &run));
    print_opening(&run, to);
    print_jobs(&run, to);
    print_compared(&run, to);
    print_verdicts(&run, to);
    ls_report_gpus_print(&run, to);
    fflush(to);
    ls_report_load_free(&run);
    return LS_OK;
}
