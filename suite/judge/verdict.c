#include "suite/suite.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/plain.h"
#include "kernels/core/text.h"

/* Formats the caller's variable arguments into an array; the words of a subject among them become
 * printable. */
#define PRINT(text, format)                               \
    do {                                                  \
        va_list arguments;                                \
        va_start(arguments, format);                      \
        vsnprintf(text, sizeof(text), format, arguments); \
        va_end(arguments);                                \
        ls_plain_replace(text, sizeof(text));             \
    } while (0)

void ls_verdict_set(ls_verdict *verdict, ls_verdict_code code, const char *format, ...)
{
    LS_ASSERT(code != LS_PASS);
    if (ls_verdict_good(verdict->code)) {
        verdict->code = code;
        PRINT(verdict->evidence, format);
    }
}

void ls_verdict_fail(ls_verdict *verdict, const char *format, ...)
{
    if (ls_verdict_good(verdict->code)) {
        verdict->code = LS_FAIL;
        PRINT(verdict->evidence, format);
    }
}

void ls_verdict_pass(ls_verdict *verdict, int64_t compared, const char *format, ...)
{
    if (verdict->code != LS_PASS) {
        return;
    }
    PRINT(verdict->evidence, format);
    if (compared <= 0) {
        LS_TEXT(evidence, sizeof verdict->evidence, "%s", verdict->evidence);
        ls_verdict_set(verdict, LS_WEAK, "nothing was compared: %s", evidence);
        return;
    }
    verdict->compared += compared;
}

void ls_verdict_close(ls_verdict *verdict)
{
    if (verdict->code == LS_PASS && verdict->compared == 0) {
        ls_verdict_set(verdict, LS_WEAK, "the judge compared nothing");
    }
}

void ls_verdict_cause(ls_verdict *verdict, const char *format, ...)
{
    PRINT(verdict->cause, format);
}

void ls_verdict_measured(ls_verdict *verdict, double value, double limit, const char *unit,
                         const char *limit_from)
{
    verdict->measured = true;
    verdict->value = value;
    verdict->limit = limit;
    ls_text_put(verdict->unit, sizeof verdict->unit, "%s", unit);
    ls_text_put(verdict->limit_from, sizeof verdict->limit_from, "%s", limit_from);
}

bool ls_verdict_worst(ls_verdict *verdict, double value, const ls_tol *limit, const char *unit)
{
    if (!verdict->measured || (!isnan(verdict->value) && !(value <= verdict->value))) {
        ls_verdict_measured(verdict, value, limit->value, unit, limit->why);
    }
    return value <= limit->value;
}

static void set_unsupported(const ls_record *record, ls_verdict *out)
{
    for (int k = 0; k < record->world; k++) {
        const cJSON *event = record->rank[k].unsupported;
        if (event != NULL) {
            ls_verdict_set(out, LS_UNSUPPORTED, "the subject refuses %s: %s",
                           ls_json_string(event, "option", "an option"),
                           ls_json_string(event, "why", "no reason given"));
            return;
        }
    }
    ls_verdict_set(out, LS_UNSUPPORTED, "the subject left with exit code 4");
}

static void set_failed(const ls_record *record, ls_verdict *out)
{
    char line[240];
    int rank = record->first_rank < 0 ? 0 : record->first_rank;
    ls_record_last_line(record, rank, line, (int)sizeof line);
    if (record->why[0] != '\0') {
        ls_text_put(line, sizeof line, "%s", record->why);
    }
    switch (record->code) {
    case LS_ERR_UNSUPPORTED:
        set_unsupported(record, out);
        return;
    case LS_ERR_INFRA:
    case 126: /* of a shell that cannot start, or not find, the command */
    case 127:
        ls_verdict_set(out, LS_INFRA, "rank=%d exit code %d: %s", rank, record->code, line);
        return;
    case LS_ERR_CHECK:
    case LS_ERR_USAGE:
    case LS_ERR_NON_FINITE:
        ls_verdict_set(out, LS_FAIL, "rank=%d exit code %d (%s): %s", rank, record->code,
                       ls_status_name((ls_status)record->code), line);
        return;
    default:
        ls_verdict_set(out, LS_CRASH, "rank=%d exit code %d: %s", rank, record->code, line);
    }
}

/* A job without reduction is never right, whatever a small check may show. */
static bool kept_gradients_local(const ls_record *record)
{
    const cJSON *start = record->world > 0 ? record->rank[0].start : NULL;
    const cJSON *options = ls_json_get(start, "options");
    return ls_json_bool(options, "no-reduce", false);
}

bool ls_verdict_of_outcome(const ls_record *record, ls_verdict *out)
{
    bool left_well = record->state == LS_RECORD_DONE || record->state == LS_RECORD_UNKNOWN;
    if (left_well && kept_gradients_local(record)) {
        ls_verdict_set(out, LS_FAIL, "the job ran with --no-reduce, which is for measuring only");
        return true;
    }
    if (left_well && record->broken[0] != '\0') {
        ls_verdict_set(out, LS_FAIL, "%s", record->broken);
        return true;
    }
    switch (record->state) {
    case LS_RECORD_DONE:
        return false;
    case LS_RECORD_UNKNOWN: /* a foreign launcher: only the events count */
        for (int k = 0; k < record->world; k++) {
            if (record->rank[k].unsupported != NULL) {
                set_unsupported(record, out);
                return true;
            }
        }
        return false;
    case LS_RECORD_FAILED:
        set_failed(record, out);
        return true;
    case LS_RECORD_KILLED:
        ls_verdict_set(out, LS_CRASH, "rank=%d signal=%d (%s)", record->first_rank, record->signal,
                       strsignal(record->signal));
        return true;
    case LS_RECORD_TIMED_OUT:
        ls_verdict_set(out, LS_TIMEOUT, "still running after %.0f s", record->seconds);
        return true;
    case LS_RECORD_STOPPED:
        ls_verdict_set(out, LS_SKIP, "the run was stopped");
        return true;
    case LS_RECORD_NOT_STARTED:
        ls_verdict_set(out, LS_INFRA, "the job could not be started%s%s",
                       record->why[0] != '\0' ? ": " : "", record->why);
        return true;
    }
    return false;
}

void ls_verdict_check_lack(const ls_record *job, int count, bool takes_disk, ls_verdict *out)
{
    static const bool blames[LS_VERDICT_CODES] = {
        [LS_WEAK] = true, [LS_FAIL] = true, [LS_CRASH] = true, [LS_TIMEOUT] = true};
    char lack[sizeof out->evidence];
    for (int j = 0; j < count && blames[out->code]; j++) {
        if (ls_record_lack(&job[j], takes_disk, lack, sizeof lack)) {
            out->code = LS_INFRA;
            ls_text_put(out->evidence, sizeof out->evidence, "%s", lack);
            ls_plain_replace(out->evidence, sizeof out->evidence);
            out->cause[0] = '\0';
        }
    }
}
