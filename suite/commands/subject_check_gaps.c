/* What a subject lacks, by the jobs that were tried, and the cases that each lack costs: those that
 * give an option that it does not take, and those of a requirement whose shortest case did not
 * pass. */
#include "subject_check_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/list.h"
#include "suite/judge/judges.h"

static ls_subject_gap *add_gap(ls_subject_check *check, const char *what)
{
    for (int i = 0; i < check->gap_count; i++) {
        if (strcmp(check->gap[i].what, what) == 0) {
            return &check->gap[i];
        }
    }
    check->gap =
        ls_list_grow(check->gap, check->gap_count, &check->gap_capacity, sizeof *check->gap);
    ls_subject_gap *gap = &check->gap[check->gap_count++];
    memset(gap, 0, sizeof *gap);
    ls_text_put(gap->what, sizeof gap->what, "%s", what);
    gap->cost = ls_list_make((size_t)check->run.cases.count + 1, sizeof *gap->cost);
    return gap;
}

static void add_cost(ls_subject_gap *gap, int row)
{
    gap->count += !gap->cost[row];
    gap->cost[row] = true;
}

/* ---- options --------------------------------------------------------------------------------- */

static bool is_alike(const ls_subject_setting *a, const ls_subject_setting *b)
{
    return strcmp(a->name, b->name) == 0 && a->state == b->state && strcmp(a->why, b->why) == 0;
}

/* "--average post|none refused: WHY"; without words where none of several is taken. */
static void describe_setting(const ls_subject_check *check, const ls_subject_setting *of,
                             char *what, size_t bytes)
{
    static const char *const verb[] = {"", "", "refused", "not followed", "fails"};
    int count = 0;
    bool all = true;
    char words[200] = "";
    for (int i = 0; i < check->setting_count; i++) {
        const ls_subject_setting *one = &check->setting[i];
        if (strcmp(one->name, of->name) == 0) {
            count++;
            all = all && is_alike(one, of);
            if (is_alike(one, of) && one->word[0] != '\0') {
                ls_text_add(words, sizeof words, "%s%s", words[0] == '\0' ? "" : "|", one->word);
            }
        }
    }
    bool values = (!all || count == 1 || strcmp(of->name, "--opt-level") == 0) && words[0] != '\0';
    ls_text_put(what, bytes, "%s%s%s %s: %s", of->name, values ? " " : "", values ? words : "",
                verb[of->state], of->why);
}

static bool gives(const ls_subject_check *check, int row, int setting)
{
    const ls_case *one = &check->run.cases.row[row];
    for (int j = 0; j < one->job_count && !one->judges_outcome; j++) {
        const struct ls_subject_job *job = &check->job[check->run.case_job[row][j]];
        for (int i = 0; i < job->count; i++) {
            if (job->setting[i] == setting) {
                return true;
            }
        }
    }
    return false;
}

static void find_settings(ls_subject_check *check)
{
    for (int i = 0; i < check->setting_count; i++) {
        if (!ls_subject_tries_bad(&check->setting[i])) {
            continue;
        }
        char what[400];
        describe_setting(check, &check->setting[i], what, sizeof what);
        for (int c = 0; c < check->run.cases.count; c++) {
            if (gives(check, c, i)) {
                add_cost(add_gap(check, what), c);
            }
        }
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

/* A member of step events, and a word of verdicts on cases that need it. */
static const struct member {
    const char *name, *word;
} members[] = {
    {"loss", "loss"},           {"loss_bits", "loss_bits"},
    {"loss_scale", "scale"},    {"loss_scale_next", "scale"},
    {"skipped", "skipped"},     {"lr", "rate"},
    {"images", "images"},       {"ms.total", "time"},
    {"digest.param", "digest"}, {"digest.grad", "digest"},
    {"digest.state", "digest"}, {"digest.buffer", "digest"},
};
enum { MEMBERS = sizeof members / sizeof *members };

/* Bit i: the step has members[i]. */
static unsigned members_of(const ls_record_step *s)
{
    const bool given[MEMBERS] = {!isnan(s->loss) || s->loss_lost,
                                 s->loss_bits[0] != '\0',
                                 !isnan(s->loss_scale),
                                 !isnan(s->loss_scale_next),
                                 s->skip_given,
                                 !isnan(s->lr),
                                 s->images > 0,
                                 !isnan(s->total_ms),
                                 (s->digest_mask >> LS_RECORD_PARAM & 1u) != 0,
                                 (s->digest_mask >> LS_RECORD_GRAD & 1u) != 0,
                                 (s->digest_mask >> LS_RECORD_STATE & 1u) != 0,
                                 (s->digest_mask >> LS_RECORD_BUFFER & 1u) != 0};
    unsigned all = 0;
    for (int m = 0; m < MEMBERS; m++) {
        all |= given[m] ? 1u << m : 0;
    }
    return all;
}

/* What a dump has, from the second step on, and that nothing can be judged without. */
static const char *const tensors[] = {"input", "target",  "logits", "loss",   "param/",
                                      "grad/", "buffer/", "next/",  "state/", "branch/"};
enum { TENSORS = sizeof tensors / sizeof *tensors };

/* Whether the case was judged and did not pass, which is not the machine's doing. */
static bool failed(const ls_run *run, int row)
{
    ls_verdict_code code = run->verdict[row].code;
    return run->judged[row] && !ls_verdict_good(code) && code != LS_INFRA;
}

static void cost_requirement(ls_subject_check *check, ls_subject_gap *gap, int of)
{
    const ls_case_list *cases = &check->run.cases;
    for (int c = 0; c < cases->count; c++) {
        if (strcmp(cases->row[c].requirement, cases->row[of].requirement) == 0 &&
            !ls_subject_tries_costs(check, c)) {
            add_cost(gap, c);
        }
    }
}

/* The members that no step event of a job that ended well has. */
static unsigned missing_members(const ls_run *run)
{
    unsigned found = 0;
    int steps = 0;
    for (int i = 0; i < run->jobs.count; i++) {
        bool whole = run->done[i] && run->record[i].state == LS_RECORD_DONE;
        for (int k = 0; whole && k < run->record[i].world; k++) {
            const ls_record_rank *rank = &run->record[i].rank[k];
            for (int s = 0; s < rank->step_count; s++, steps++) {
                found |= members_of(&rank->step[s]);
            }
        }
    }
    return steps > 0 ? ~found : 0;
}

/* What is missing and has the same word is one gap: the cases that need one of them need all. */
static void find_members(ls_subject_check *check, bool *explained)
{
    const ls_run *run = &check->run;
    unsigned missing = missing_members(run);
    for (int m = 0; m < MEMBERS; m++) {
        LS_TEXT(what, 300, "step events have no ");
        int count = 0;
        for (int n = m; n < MEMBERS; n++) {
            if ((missing >> n & 1u) != 0 && strcmp(members[n].word, members[m].word) == 0) {
                ls_text_add(what, sizeof what, "%s%s", count++ > 0 ? ", " : "", members[n].name);
                missing &= ~(1u << n);
            }
        }
        ls_subject_gap *gap = count > 0 ? add_gap(check, what) : NULL;
        for (int c = 0; c < run->cases.count && gap != NULL; c++) {
            if (failed(run, c) && strstr(run->verdict[c].evidence, members[m].word) != NULL) {
                cost_requirement(check, gap, c);
                explained[c] = true;
            }
        }
    }
}

/* The groups that the dump of a second step lacks; bit i: tensors[i]. -1: there is no dump. */
static int missing_tensors(const ls_record *job)
{
    char path[700];
    int missing = 0;
    ls_dumpfile *file = NULL;
    ls_dumps_path(job, 2, 0, path, sizeof path);
    if (access(path, R_OK) != 0 || ls_dumpfile_open(path, &file) != LS_OK) {
        return -1;
    }
    bool moments = ls_dumpfile_number(file, "momentum", 0) > 0;
    for (int t = 0; t < TENSORS; t++) {
        bool group = strchr(tensors[t], '/') != NULL;
        bool found =
            group ? ls_dumpfile_has(file, tensors[t]) : ls_dumpfile_find(file, tensors[t]) != NULL;
        bool needed = moments || strcmp(tensors[t], "state/") != 0;
        missing |= found || !needed ? 0 : 1 << t;
    }
    ls_dumpfile_close(file);
    return missing;
}

static void cost_dumps(ls_subject_check *check, const char *what, bool *explained)
{
    const ls_run *run = &check->run;
    ls_subject_gap *gap = add_gap(check, what);
    for (int c = 0; c < run->cases.count; c++) {
        for (int j = 0; j < run->cases.row[c].job_count; j++) {
            if (run->cases.row[c].job[j].dump_steps[0] != '\0' &&
                !ls_subject_tries_costs(check, c)) {
                add_cost(gap, c);
                explained[c] = true;
            }
        }
    }
}

/* Dumps are judged whole: every case with dumped steps needs every group. */
static void find_tensors(ls_subject_check *check, bool *explained)
{
    const ls_run *run = &check->run;
    int missing = 0, dumps = 0, none = 0;
    for (int i = 0; i < run->jobs.count; i++) {
        const ls_spec *spec = &run->jobs.spec[i];
        const ls_record *record = &run->record[i];
        if (!run->done[i] || record->state != LS_RECORD_DONE || spec->world < 1 ||
            spec->wrap != LS_WRAP_NONE || strstr(spec->extra, "--example") != NULL ||
            !(strcmp(spec->dump_steps, "2") == 0 || strncmp(spec->dump_steps, "1,2", 3) == 0)) {
            continue;
        }
        int lacks = missing_tensors(record);
        none += lacks < 0;
        dumps += lacks >= 0;
        missing |= lacks > 0 ? lacks : 0;
    }
    if (dumps == 0 && none > 0) {
        cost_dumps(check, "no dump/step<k>.rank<r>.safetensors is written", explained);
    }
    for (int t = 0; t < TENSORS; t++) {
        if (missing >> t & 1) {
            LS_TEXT(what, 200, "dumps have no %s%s", tensors[t],
                    strchr(tensors[t], '/') != NULL ? "<name>" : "");
            cost_dumps(check, what, explained);
        }
    }
}

/* ---- cases that did not pass, for another reason --------------------------------------------- */

/* Evidence without the rank and step that it begins with. */
static const char *reason(const char *evidence)
{
    const char *at = evidence;
    for (;;) {
        size_t word = strncmp(at, "rank=", 5) == 0 ? strcspn(at, " ")
                      : strncmp(at, "step ", 5) == 0 && isdigit((unsigned char)at[5])
                          ? 5 + strcspn(at + 5, " ")
                          : 0;
        if (word == 0 || at[word] == '\0') {
            return at;
        }
        at += word + strspn(at + word, " ");
    }
}

static void find_others(ls_subject_check *check, const bool *explained)
{
    const ls_run *run = &check->run;
    for (int c = 0; c < run->cases.count; c++) {
        if (!failed(run, c) || explained[c] || ls_subject_tries_costs(check, c)) {
            continue;
        }
        LS_TEXT(what, 400, "%s %s: %.200s", run->cases.row[c].id,
                ls_verdict_name(run->verdict[c].code), reason(run->verdict[c].evidence));
        cost_requirement(check, add_gap(check, what), c);
    }
}

static int by_cost(const void *a, const void *b)
{
    const ls_subject_gap *x = a, *y = b;
    return x->count != y->count ? y->count - x->count : strcmp(x->what, y->what);
}

void ls_subject_gaps_find(ls_subject_check *check)
{
    bool *explained = ls_list_make((size_t)check->run.cases.count + 1, sizeof *explained);
    find_settings(check);
    find_tensors(check, explained);
    find_members(check, explained);
    find_others(check, explained);
    qsort(check->gap, (size_t)check->gap_count, sizeof *check->gap, by_cost);
    free(explained);
}
