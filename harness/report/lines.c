#include "page.h"

#include <math.h>
#include <string.h>

#include "kernels/core/text.h"

int ls_report_lines_headlines(const ls_report_run *run,
                              ls_report_headline out[LS_REPORT_LINES_HEADLINES])
{
    static const char *const NAMES[][2] = {
        {"CORRECT", "correct"}, {"MANNERS", "manners"}, {"SPEED", "speed"}, {"MACHINE", "machine"}};
    const cJSON *headline = ls_json_get(run->record, "headline");
    /* such a run may have CORRECT alone */
    bool observed = headline != NULL && cJSON_HasObjectItem(run->record, "observed");
    int count = 0;
    for (int i = 0; i < LS_REPORT_LINES_HEADLINES; i++) {
        const cJSON *entry = ls_json_get(headline, NAMES[i][1]);
        if (entry == NULL && (observed || strcmp(NAMES[i][1], "manners") == 0)) {
            continue;
        }
        out[count++] = (ls_report_headline){
            .name = NAMES[i][0],
            .value = ls_json_string(entry, "value", "not shown"),
            .why = ls_json_string(entry, "why", entry == NULL ? "the run was not judged" : "")};
    }
    return count;
}

void ls_report_lines_print(FILE *to, const char *text, int indent)
{
    enum { COLUMNS = 80 };
    int column = 0, blanks = 0;
    while (*text != '\0') {
        for (blanks = 0; *text == ' ' || *text == '\n'; text++) {
            blanks++;
        }
        int word = (int)strcspn(text, " \n");
        if (word > 0 && column > indent && column + blanks + word > COLUMNS) {
            fputc('\n', to);
            blanks = indent;
            column = 0;
        }
        fprintf(to, "%*s%.*s", word > 0 ? blanks : 0, "", word, text);
        column += blanks + word;
        text += word;
    }
    fputc('\n', to);
}

const char *ls_report_lines_title(const ls_report_run *run)
{
    return ls_json_string(run->record, "title", "Lockstep report");
}

const char *ls_report_lines_where(const ls_report_run *run)
{
    return ls_json_string(run->record, "where", "where it ran is not recorded");
}

const char *ls_report_lines_number(double value, char text[32])
{
    if (!isfinite(value)) {
        return strcpy(text, "-");
    }
    if (value == 0) {
        return strcpy(text, "0");
    }
    double size = fabs(value);
    int decimals = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3;
    if (size < 1e-2) { /* three decimals would leave one digit or none */
        snprintf(text, 32, "%.3g", value);
    } else {
        snprintf(text, 32, "%.*f", decimals, value);
    }
    return text;
}

const char *ls_report_lines_rate(const ls_report_job *job, char text[64])
{
    char value[32], low[32], high[32];
    if (!ls_report_job_has_speed(job)) {
        return strcpy(text, "-");
    }
    const ls_stats_interval *rate = &job->speed.rate;
    ls_report_lines_number(rate->value, value);
    if (!ls_report_job_is_result(job)) {
        snprintf(text, 64, "(%s)", value);
    } else if (isfinite(rate->low)) {
        snprintf(text, 64, "%.12s [%.12s, %.12s]", value, ls_report_lines_number(rate->low, low),
                 ls_report_lines_number(rate->high, high));
    } else {
        snprintf(text, 64, "%s [?]", value);
    }
    return text;
}

const char *ls_report_lines_judged(const ls_report_run *run, const ls_report_job *job,
                                   char text[160])
{
    if (!ls_report_job_is_result(job)) {
        return ls_report_job_reason(run, job, text);
    }
    char checks[64];
    return strcpy(text, ls_report_job_gradient_checks(job, checks)[0] != '\0' ? checks : "checked");
}

bool ls_report_lines_weak(const ls_report_run *run, const ls_report_job *job)
{
    for (int v = 0; v < run->verdict_count; v++) {
        const ls_report_verdict *verdict = &run->verdict[v];
        if (verdict->code == LS_WEAK && strcmp(verdict->family, "performance") == 0 &&
            ls_report_job_in_verdict(job, verdict)) {
            return true;
        }
    }
    bool round = job->record->spec.way != LS_WAY_NONE; /* too short; rounds are compared */
    return !round && ls_report_job_has_speed(job) && job->speed.halves == LS_STATS_HALVES_DIFFER;
}

const char *ls_report_lines_marks(const ls_report_run *run, const ls_report_job *job,
                                  char text[160])
{
    text[0] = '\0';
    if (job->record->oversubscribed) {
        ls_text_add(text, 160, "oversubscribed");
    }
    if (job->record->half_emulated) {
        ls_text_add(text, 160, "%shalf emulated", text[0] ? ", " : "");
    }
    if (ls_report_job_no_graph(job) != NULL) {
        ls_text_add(text, 160, "%sno graph: %s", text[0] ? ", " : "", ls_report_job_no_graph(job));
    }
    if (ls_report_lines_weak(run, job)) {
        ls_text_add(text, 160, "%sweak: halves differ by %.0f %%", text[0] ? ", " : "",
                    100 * fabs(job->speed.halves_ratio.value - 1));
    }
    /* NVIDIA's resiliency extension names a rank at 0.75 of the others' speed. Of ranks that share
     * a core or device, the scheduler says who is late. */
    if (job->speed.straggler_ratio.low > 1 / 0.75 && !job->record->oversubscribed) {
        ls_text_add(text, 160, "%srank %d is slow: %.2f times the others", text[0] ? ", " : "",
                    job->speed.straggler, job->speed.straggler_ratio.value);
        if (job->speed.straggler_past > 1 / 0.75) {
            ls_text_add(text, 160, ", %.2f times its first half", job->speed.straggler_past);
        }
    }
    if (ls_report_job_has_speed(job) && job->speed.halves == LS_STATS_HALVES_UNKNOWN) {
        ls_text_add(text, 160, "%sonly %d steps", text[0] ? ", " : "", job->speed.count);
    }
    return text;
}

bool ls_report_lines_listed(const ls_report_verdict *verdict)
{
    bool counted_only = verdict->code == LS_SKIP || verdict->code == LS_UNSUPPORTED;
    return verdict->code != LS_PASS && (verdict->in_claim || !counted_only);
}

const char *ls_report_lines_evidence(const ls_report_verdict *verdict,
                                     char text[LS_REPORT_LINES_BYTES * 2])
{
    enum { BYTES = LS_REPORT_LINES_BYTES * 2 };
    char value[32], limit[32];
    const cJSON *json = verdict->json;
    const char *unit = ls_json_string(json, "unit", "");
    double number = ls_json_number(json, "value", NAN);
    text[0] = '\0';
    ls_text_add(text, BYTES, "%s", ls_verdict_name(verdict->code));
    double seconds = ls_json_number(json, "seconds", NAN);
    if (isfinite(seconds)) {
        ls_text_add(text, BYTES, " %.2fs", seconds);
    }
    ls_text_add(text, BYTES, " %s", ls_json_string(json, "evidence", ""));
    int64_t compared = ls_json_integer(json, "compared", 0);
    if (compared > 0) {
        ls_text_add(text, BYTES, "  compared=%lld", (long long)compared);
    }
    if (isfinite(number)) {
        ls_text_add(text, BYTES, "  value=%s limit=%s%s%s", ls_report_lines_number(number, value),
                    ls_report_lines_number(ls_json_number(json, "limit", NAN), limit),
                    unit[0] ? " " : "", unit);
        const char *from = ls_json_string(json, "limit_from", "");
        ls_text_add(text, BYTES, from[0] ? " (%s)" : "%s", from);
    }
    if (!verdict->in_claim) {
        ls_text_add(text, BYTES, "  [outside the claim]");
    }
    return text;
}

const char *ls_report_lines_verdict(const ls_report_verdict *verdict,
                                    char text[LS_REPORT_LINES_BYTES * 2])
{
    char evidence[LS_REPORT_LINES_BYTES * 2];
    ls_text_put(text, LS_REPORT_LINES_BYTES * 2, "%s - %s # %s",
                verdict->code == LS_WAIVED ? "ok" : "not ok", verdict->id,
                ls_report_lines_evidence(verdict, evidence));
    return text;
}
