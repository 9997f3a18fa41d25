/* What an observed job's verdicts say of the claims any-ddp and any-amp, and verdicts.jsonl. */
#include "observe_parts.h"

#include <string.h>

#include "kernels/core/file.h"
#include "kernels/core/log.h"

bool ls_observe_gate_read(const char *text, ls_observe_gate *out)
{
    *out = (ls_observe_gate){false, false};
    for (;; text++) {
        size_t length = strcspn(text, ",");
        LS_TEXT(word, 8, "%.*s", (int)length, text);
        if (length >= sizeof word || ls_text_choice(word, "fail|all|hints") < 0) {
            return false;
        }
        out->all = out->all || strcmp(word, "all") == 0;
        out->hints = out->hints || strcmp(word, "hints") == 0;
        text += length;
        if (*text == '\0') {
            return true;
        }
    }
}

static bool is_half(const char *type)
{
    return strcmp(type, "f16") == 0 || strcmp(type, "bf16") == 0;
}

/* Autocast, a loss scale, or parameters in half. */
static bool uses_half(const ls_observe_trace *trace)
{
    if (ls_trace_is_scaled(trace) || ls_trace_is_mixed(trace)) {
        return true;
    }
    for (int k = 0; k < trace->world; k++) {
        for (int i = 0; i < trace->rank[k].tensor_count; i++) {
            if (is_half(trace->rank[k].tensor[i].type)) {
                return true;
            }
        }
    }
    return false;
}

static bool is_wrong(ls_verdict_code code)
{
    return code == LS_FAIL || code == LS_CRASH || code == LS_TIMEOUT;
}

/* Hints that some cases prove: they count where these fail, and what they suspect does not. */
static const char *const proven[] = {"optimizer.covered", "optimizer.settings", "data.held_out"};

static bool is_law_of_few(const ls_observe_finding *finding)
{
    for (size_t i = 0; i < sizeof proven / sizeof *proven; i++) {
        if (strcmp(finding->rule->id, proven[i]) == 0) {
            return true;
        }
    }
    return ls_observe_is_hint(finding);
}

static bool counts_of(const ls_observe_headline *headline, const ls_observe_finding *finding)
{
    const char *claim = finding->rule->claim;
    bool ddp = strcmp(claim, "any-ddp") == 0, amp = strcmp(claim, "any-amp") == 0;
    bool concerns = ddp ? headline->ddp : amp ? headline->amp : headline->ddp || headline->amp;
    ls_verdict_code code = finding->verdict.code;
    return is_wrong(code) ? !ls_observe_is_hint(finding)
                          : !is_law_of_few(finding) && concerns && code != LS_SKIP;
}

/* What a yes is about: of a job that none of these could judge, CORRECT is not shown. */
static const char *const core[] = {"replicas.step", "reduction.mean", "optimizer.step"};

static bool is_core(const ls_observe_headline *headline, const ls_observe_rule *rule)
{
    bool concerns = strcmp(rule->claim, "any-ddp") == 0 ? headline->ddp : true;
    for (size_t i = 0; concerns && i < sizeof core / sizeof *core; i++) {
        if (strcmp(rule->id, core[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* "WEAK scaler.skip, data.epochs" of all rules with that verdict; a few are named. */
static void add_names(const ls_observe_headline *h, const ls_observe_result *result,
                      ls_verdict_code code, char *text, size_t bytes)
{
    enum { NAMED = 6 };
    int count = 0;
    for (int i = 0; i < result->count; i++) {
        const ls_observe_finding *f = &result->finding[i];
        if (f->verdict.code != code || !counts_of(h, f)) {
            continue;
        }
        if (count < NAMED) {
            ls_text_add(text, bytes, count == 0 ? "; %s " : ", ", ls_verdict_name(code));
            ls_text_add(text, bytes, "%s", f->rule->id);
        }
        count++;
    }
    if (count > NAMED) {
        ls_text_add(text, bytes, " and %d more", count - NAMED);
    }
}

static int code_of(const ls_observe_headline *headline, ls_observe_gate gate)
{
    bool shown = headline->correct == LS_CORRECT_YES || !gate.all;
    bool open = gate.hints && headline->hints > 0;
    return headline->failed > 0       ? LS_ERR_CHECK
           : headline->unreadable > 0 ? LS_ERR_INFRA
           : shown && !open           ? LS_OK
                                      : LS_ERR_CHECK;
}

void ls_observe_verdicts_decide(const ls_observe_trace *trace, const ls_observe_result *result,
                                ls_observe_gate gate, ls_observe_headline *out)
{
    static const ls_verdict_code named[] = {LS_FAIL, LS_CRASH,       LS_TIMEOUT,
                                            LS_WEAK, LS_UNSUPPORTED, LS_INFRA};
    *out = (ls_observe_headline){.ddp = trace->world > 1, .amp = uses_half(trace)};
    for (int i = 0; i < result->count; i++) {
        const ls_observe_finding *f = &result->finding[i];
        ls_verdict_code code = f->verdict.code;
        out->hints += is_wrong(f->hint.verdict.code) || (ls_observe_is_hint(f) && is_wrong(code));
        if (counts_of(out, f)) {
            out->inside++;
            out->passed += ls_verdict_good(code);
            out->failed += is_wrong(code);
            out->unreadable += code == LS_INFRA;
        }
    }
    out->open = out->inside - out->passed - out->failed - out->unreadable;
    bool claims = out->ddp || out->amp;
    char part[200];
    out->whole = ls_observe_is_whole(trace, part, sizeof part);
    bool all = out->whole && claims && out->passed > 0 && out->passed == out->inside;
    for (int i = 0; i < result->count && claims; i++) {
        const ls_observe_finding *f = &result->finding[i];
        if (f->verdict.code == LS_SKIP && is_core(out, f->rule)) {
            ls_text_add(part, sizeof part, "; %s judged no step", f->rule->id);
            all = false;
        }
    }
    out->correct = out->failed > 0 ? LS_CORRECT_NO : all ? LS_CORRECT_YES : LS_CORRECT_NOT_SHOWN;
    if (claims) {
        ls_text_put(out->why, sizeof out->why, "%s %s%s%s: %d of %d laws",
                    out->ddp && out->amp ? "claims" : "claim", out->ddp ? "any-ddp" : "",
                    out->ddp && out->amp ? ", " : "", out->amp ? "any-amp" : "", out->passed,
                    out->inside);
    } else {
        ls_text_put(out->why, sizeof out->why,
                    "no claim concerns the job: one rank, and neither autocast nor a loss scale "
                    "nor half parameters");
    }
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        add_names(out, result, named[i], out->why, sizeof out->why);
    }
    ls_text_add(out->why, sizeof out->why, "%s", part);
    out->code = code_of(out, gate);
}

void ls_observe_verdicts_recall(const cJSON *verdicts, const cJSON *correct, ls_observe_gate gate,
                                ls_observe_headline *out)
{
    const cJSON *line;
    const char *value = ls_json_string(correct, "value", "");
    *out = (ls_observe_headline){.whole = ls_json_bool(correct, "whole", true)};
    out->correct = strcmp(value, "yes") == 0  ? LS_CORRECT_YES
                   : strcmp(value, "no") == 0 ? LS_CORRECT_NO
                                              : LS_CORRECT_NOT_SHOWN;
    ls_json_each(line, verdicts) {
        ls_verdict_code code = ls_verdict_code_in(line);
        out->hints += strcmp(ls_json_string(line, "tier", ""), "hint") == 0 && is_wrong(code);
        if (ls_json_bool(line, "in_claim", false)) {
            out->inside++;
            out->passed += ls_verdict_good(code);
            out->failed += is_wrong(code);
            out->unreadable += code == LS_INFRA;
        }
    }
    out->open = out->inside - out->passed - out->failed - out->unreadable;
    out->code = code_of(out, gate);
}

/* `hint`: that of a rule which also has proof. */
static cJSON *to_json(const ls_observe_headline *headline, const ls_observe_result *result,
                      const ls_observe_finding *finding, const ls_observe_hint *hint,
                      const char *job, ls_observe_gate gate)
{
    const char *root = hint == NULL ? ls_observe_root(result, finding) : NULL;
    const ls_observe_rule *rule = finding->rule;
    const ls_verdict *v = hint != NULL ? &hint->verdict : &finding->verdict;
    bool inside = hint == NULL && counts_of(headline, finding);
    bool guess = hint != NULL || ls_observe_is_hint(finding);
    bool decides = guess ? gate.hints && is_wrong(v->code)
                         : inside && (gate.all || is_wrong(v->code) || v->code == LS_INFRA);
    cJSON *out = cJSON_CreateObject();
    LS_MEMORY(out != NULL);
    LS_TEXT(id, 96, "observe.%s%s", rule->id, hint != NULL ? ".hint" : "");
    LS_TEXT(family, 96, "%.*s", (int)strcspn(rule->id, "."), rule->id);
    cJSON_AddNumberToObject(out, "schema", 2);
    cJSON_AddStringToObject(out, "case", id);
    cJSON_AddStringToObject(out, "family", family);
    cJSON_AddStringToObject(out, "kind", "observed");
    cJSON_AddStringToObject(out, "requirement", rule->requirement);
    cJSON_AddStringToObject(out, "claim", rule->claim);
    cJSON_AddStringToObject(out, "tier", guess ? "hint" : "law");
    cJSON_AddBoolToObject(out, "in_claim", inside || decides);
    cJSON_AddBoolToObject(out, "decides", decides);
    cJSON_AddStringToObject(out, "rule", rule->sentence);
    cJSON_AddStringToObject(out, "verdict", ls_verdict_name(v->code));
    cJSON_AddNumberToObject(out, "compared", (double)v->compared);
    cJSON_AddNumberToObject(out, "seconds", v->seconds);
    cJSON_AddItemToArray(cJSON_AddArrayToObject(out, "jobs"), cJSON_CreateString(job));
    cJSON_AddStringToObject(out, "evidence", v->evidence);
    if (v->measured) {
        ls_json_add_number(out, "value", v->value);
        ls_json_add_number(out, "limit", v->limit);
        cJSON_AddStringToObject(out, "unit", v->unit);
        cJSON_AddStringToObject(out, "limit_from", v->limit_from);
    }
    const char *const text[][2] = {{"cause", v->cause},
                                   {"where", hint != NULL ? hint->where : finding->where},
                                   {"change", hint != NULL ? hint->advice : finding->advice},
                                   {"wrong_if", guess && is_wrong(v->code) ? rule->wrong_if : ""},
                                   {"follows", root != NULL ? root : ""}};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        if (text[i][1][0] != '\0') {
            cJSON_AddStringToObject(out, text[i][0], text[i][1]);
        }
    }
    return out;
}

cJSON *ls_observe_verdicts_make(const ls_observe_headline *headline,
                                const ls_observe_result *result, const char *job,
                                ls_observe_gate gate)
{
    cJSON *list = cJSON_CreateArray();
    LS_MEMORY(list != NULL);
    for (int i = 0; i < result->count; i++) {
        cJSON_AddItemToArray(list, to_json(headline, result, &result->finding[i], NULL, job, gate));
    }
    for (int i = 0; i < result->count; i++) {
        const ls_observe_finding *f = &result->finding[i];
        if (is_wrong(f->hint.verdict.code)) {
            cJSON_AddItemToArray(list, to_json(headline, result, f, &f->hint, job, gate));
        }
    }
    return list;
}

ls_status ls_observe_verdicts_write(const char *directory, const cJSON *verdicts)
{
    LS_TEXT(path, PATH_MAX, "%s/verdicts.jsonl", directory);
    ls_file_draft draft;
    int error = ls_file_draft_open(path, &draft);
    if (error != 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot create %s: %s", path, strerror(error));
    }
    ls_status status = LS_OK;
    const cJSON *line;
    ls_json_each(line, verdicts) {
        LS_THEN(status, ls_json_append_line(draft.descriptor, path, line));
    }
    return ls_file_draft_close(&draft, status, false);
}
