#include "headline.h"

#include <math.h>
#include <string.h>

#include "kernels/core/cores.h"

static void add_codes(char *why, size_t bytes, const ls_headline_count_of *c)
{
    static const ls_verdict_code named[] = {LS_FAIL, LS_CRASH,       LS_TIMEOUT, LS_WEAK,
                                            LS_SKIP, LS_UNSUPPORTED, LS_INFRA};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        if (c->code[named[i]] > 0) {
            ls_text_add(why, bytes, ", %d %s", c->code[named[i]], ls_verdict_name(named[i]));
        }
    }
    if (c->code[LS_WAIVED] > 0) {
        ls_text_add(why, bytes, ", %d of them waived", c->code[LS_WAIVED]);
    }
}

/* Of a part of the claim all selected cases are counted, those of MANNERS too. */
static void explain_correct(const ls_headline *h, const char *claim,
                            const ls_headline_count_of *correct,
                            const ls_headline_count_of *outside, int not_offered, char *why,
                            size_t bytes)
{
    if (h->selected < h->claim_cases) {
        ls_text_put(why, bytes, "claim %s: %d of %d cases selected", claim, h->selected,
                    h->claim_cases);
        if (h->selected > 0 && h->failed == 0) {
            ls_text_add(why, bytes, ", all passed");
        } else if (h->selected > 0) {
            ls_text_add(why, bytes, ", %d passed", h->selected - h->failed);
        }
    } else {
        ls_text_put(why, bytes, "claim %s: %d of %d cases", claim, correct->good, correct->all);
    }
    if (correct->ours > 0) { /* they say nothing about another trainer */
        ls_text_add(why, bytes, ", %d of them inside our parts", correct->ours);
    }
    add_codes(why, bytes, correct);
    if (not_offered > 0) {
        ls_text_add(why, bytes, "; %d that it has where offered are not", not_offered);
    }
    if (outside->all > 0) {
        ls_text_add(why, bytes, "; %d of %d outside it", outside->good, outside->all);
    }
}

static void explain_manners(const ls_headline_count_of *manners, bool decide, ls_headline *out)
{
    out->manners = manners->all;
    out->manners_passed = manners->good;
    out->manners_decide = decide;
    ls_text_put(out->manners_why, sizeof out->manners_why, "usage, refusals and their words");
    add_codes(out->manners_why, sizeof out->manners_why, manners);
    if (manners->good < manners->all) {
        ls_text_add(out->manners_why, sizeof out->manners_why, "; %s",
                    decide ? "they decide the exit code"
                           : "the exit code leaves them out without --gate manners");
    }
}

void ls_headline_count(ls_headline_counts *to, ls_verdict_code code, bool in_claim, bool manners,
                       bool inside)
{
    ls_headline_count_of *c = !in_claim ? &to->outside : manners ? &to->manners : &to->correct;
    c->all++;
    c->good += ls_verdict_good(code);
    c->ours += inside;
    c->code[code]++;
}

void ls_headline_cases(const ls_headline_counts *counts, const char *claim, int claim_cases,
                       bool gate_manners, ls_headline *out)
{
    const ls_headline_count_of *correct = &counts->correct, *manners = &counts->manners;
    /* a run of such cases alone is about them */
    bool decide = gate_manners || correct->all == 0;
    int wrong = correct->code[LS_FAIL] + correct->code[LS_CRASH] + correct->code[LS_TIMEOUT];
    int bad = correct->all - correct->good + (decide ? manners->all - manners->good : 0);
    int lost = correct->code[LS_INFRA] + (decide ? manners->code[LS_INFRA] : 0);
    out->selected = correct->all + manners->all;
    claim_cases -= counts->not_offered;
    out->claim_cases = claim_cases > out->selected ? claim_cases : out->selected;
    out->passed = correct->good + manners->good + counts->outside.good;
    out->failed = out->selected - correct->good - manners->good;
    bool whole = out->selected == out->claim_cases && correct->all > 0;
    out->correct = wrong > 0                                ? LS_CORRECT_NO
                   : whole && correct->good == correct->all ? LS_CORRECT_YES
                                                            : LS_CORRECT_NOT_SHOWN;
    out->status = bad > 0 && lost == bad          ? LS_ERR_INFRA
                  : bad > 0 || out->selected == 0 ? LS_ERR_CHECK
                                                  : LS_OK;
    explain_correct(out, claim, correct, &counts->outside, counts->not_offered, out->correct_why,
                    sizeof out->correct_why);
    explain_manners(manners, decide, out);
}

bool ls_headline_not_offered(const ls_run *run, int index)
{
    return run->verdict[index].code == LS_UNSUPPORTED &&
           ls_select_is_optional(&run->claim, run->cases.row[index].id);
}

bool ls_headline_in_claim(const ls_run *run, int index)
{
    return ls_select_find(&run->claim, run->cases.row[index].id) != NULL &&
           !ls_headline_not_offered(run, index);
}

static void decide_cases(const ls_run *run, ls_headline *out)
{
    ls_headline_counts counts = {0};
    for (int i = 0; i < run->cases.count; i++) {
        const ls_case *row = &run->cases.row[i];
        if (ls_headline_not_offered(run, i)) {
            counts.not_offered++;
            continue;
        }
        ls_headline_count(&counts, run->verdict[i].code, ls_headline_in_claim(run, i),
                          ls_headline_is_manners(run, row), row->kind == LS_INSIDE);
    }
    ls_headline_cases(&counts, run->claim_name, run->claim_cases, run->gate_manners, out);
    if (run->by_observe) { /* which see less than the cases' own checks */
        ls_text_add(out->correct_why, sizeof out->correct_why,
                    "; jobs judged by the rules of lockstep observe");
    }
}

bool ls_headline_is_manners(const ls_run *run, const ls_case *row)
{
    return ls_select_find(&run->manners, row->requirement) != NULL;
}

int ls_headline_exit(const ls_headline *h)
{
    bool missed = h->speed.below || h->speed.unshown;
    return h->status != LS_OK ? (int)h->status : missed ? LS_ERR_CHECK : LS_OK;
}

static const ls_tol taken_limit =
    LS_TOL(0.1, "a tenth of the cores taken by other programs moves a step's time by as much, and "
                "differences between settings are smaller than that");

/* The worst finding comes first; the others are counted here and listed in the report. */
static void decide_gpus(const ls_run *run, ls_headline *out)
{
    const ls_finding *worst = ls_findings_worst(&run->findings);
    char rest[sizeof out->machine_why], where[64], more[32] = "";
    int fails = ls_findings_fails(&run->findings);
    if (worst == NULL || worst->severity < LS_SEVERITY_WARNING) {
        return;
    }
    if (fails > 0) {
        ls_text_put(out->machine_value, sizeof out->machine_value, "not ready");
    }
    int others = fails > 0 ? fails - 1 : 0;
    if (others > 0) {
        ls_text_put(more, sizeof more, "; %d more", others);
    }
    ls_text_put(rest, sizeof rest, "%s", out->machine_why);
    ls_text_put(out->machine_why, sizeof out->machine_why, "%s%s on %s%s; %s",
                fails > 0 ? "" : "warning: ", worst->what,
                ls_findings_where(worst, where, sizeof where), more, rest);
}

static void decide_machine(const ls_run *run, ls_headline *out)
{
    ls_machine_load_times now;
    if (run->site.hosts != NULL) { /* this machine's say nothing of theirs */
        ls_text_put(out->machine_value, sizeof out->machine_value, "not shown");
        ls_text_put(out->machine_why, sizeof out->machine_why,
                    "memory and load of the nodes were not looked at");
        decide_gpus(run, out);
        return;
    }
    ls_machine_load(&now);
    double cores = run->site.cores > 0 ? run->site.cores : ls_cores_usable();
    double taken = run->load.at_ns > 0 ? ls_machine_load_taken(&run->load, &now, cores) : NAN;
    bool crowded = run->bench_run && taken > taken_limit.value * cores;
    int64_t swapped = ls_machine_swapped_pages();
    double total_gb = (double)ls_machine_memory_bytes() * 1e-9;
    double free_gb = (double)ls_machine_available_bytes() * 1e-9;
    bool swaps = run->swapped_pages >= 0 && swapped > run->swapped_pages;
    bool tight =
        free_gb < 0.05 * total_gb; /* where a kernel begins to reclaim memory aggressively */
    ls_text_put(out->machine_value, sizeof out->machine_value, "%s",
                swaps || tight || crowded ? "not ready" : "ready");
    char number[40], load[120] = "";
    if (isfinite(taken)) {
        ls_text_put(load, sizeof load, "other programs took %.2f of %s", taken,
                    ls_cores_number(cores, number, sizeof number));
    }
    bool first = crowded && !swaps && !tight; /* why it is not ready */
    ls_text_put(out->machine_why, sizeof out->machine_why, "%s%s", first ? load : "",
                first ? "; " : "");
    if (swaps) {
        ls_text_add(out->machine_why, sizeof out->machine_why,
                    "%lld pages were swapped out meanwhile",
                    (long long)(swapped - run->swapped_pages));
    } else {
        ls_text_add(out->machine_why, sizeof out->machine_why, "%.1f of %.1f GB memory free%s",
                    free_gb, total_gb, tight ? "" : ", nothing swapped out");
    }
    decide_gpus(run, out);
    if (load[0] != '\0' && !first) {
        ls_text_add(out->machine_why, sizeof out->machine_why, "; %s", load);
    }
}

void ls_headline_decide(const ls_run *run, ls_headline *out)
{
    memset(out, 0, sizeof *out);
    decide_cases(run, out);
    decide_machine(run, out);
    ls_speed_decide(run, &out->speed);
}

static cJSON *add(cJSON *to, const char *name, const char *value, const char *why)
{
    cJSON *entry = cJSON_AddObjectToObject(to, name);
    cJSON_AddStringToObject(entry, "value", value);
    cJSON_AddStringToObject(entry, "why", why);
    return entry;
}

cJSON *ls_headline_json(const ls_headline *headline)
{
    static const char *const word[] = {"yes", "no", "not shown"};
    cJSON *out = cJSON_CreateObject();
    LS_MEMORY(out != NULL);
    cJSON *correct = add(out, "correct", word[headline->correct], headline->correct_why);
    cJSON_AddNumberToObject(correct, "selected", headline->selected);
    cJSON_AddNumberToObject(correct, "claim_cases", headline->claim_cases);
    if (headline->manners > 0) {
        LS_TEXT(value, 32, "%d of %d", headline->manners_passed, headline->manners);
        cJSON *manners = add(out, "manners", value, headline->manners_why);
        cJSON_AddNumberToObject(manners, "passed", headline->manners_passed);
        cJSON_AddNumberToObject(manners, "cases", headline->manners);
        cJSON_AddBoolToObject(manners, "decide", headline->manners_decide);
    }
    add(out, "speed", headline->speed.value, headline->speed.why);
    add(out, "machine", headline->machine_value, headline->machine_why);
    return out;
}

static bool involves(const ls_run *run, int index, int job)
{
    for (int j = 0; j < run->cases.row[index].job_count; j++) {
        if (run->case_job[index][j] == job) {
            return true;
        }
    }
    return false;
}

bool ls_headline_job_checked(const ls_run *run, int job)
{
    const ls_spec *spec = &run->jobs.spec[job];
    int own = 0, evidence = 0;
    for (int c = 0; c < run->cases.count; c++) {
        const ls_case *row = &run->cases.row[c];
        bool good = ls_verdict_good(run->verdict[c].code);
        if (involves(run, c, job) && row->counts != LS_COUNTS_SPEED) {
            own++;
            if (!good) {
                return false;
            }
        }
        bool delayed = row->job[0].bucket_mb == LS_BUCKET_DELAYED;
        if (row->job[0].role == LS_ROLE_EVIDENCE && row->counts == LS_COUNTS_GRADIENTS &&
            row->job[0].level == spec->level && strcmp(row->job[0].half, spec->half) == 0 &&
            (spec->world == 1 || delayed == (spec->bucket_mb == LS_BUCKET_DELAYED))) {
            evidence++;
            if (!good) {
                return false;
            }
        }
    }
    return own > 0 && evidence > 0;
}

int ls_headline_job_gradient_check(const ls_run *run, int job)
{
    char id[96], first[96];
    ls_spec dumped = ls_matrix_first_step(&run->jobs.spec[job]);
    ls_matrix_id(&dumped, id);
    for (int c = 0; c < run->cases.count; c++) {
        const ls_case *row = &run->cases.row[c];
        if (row->counts != LS_COUNTS_TIMED) {
            continue;
        }
        ls_matrix_id(&row->job[0], first);
        if (strcmp(first, id) == 0 && ls_verdict_good(run->verdict[c].code)) {
            return 4;
        }
    }
    return 0;
}

bool ls_headline_job_audited(const ls_record *job)
{
    for (int k = 0; k < job->world; k++) {
        if (job->rank[k].audits == 0 || job->rank[k].bad_audits > 0) {
            return false;
        }
    }
    return job->world > 0;
}
