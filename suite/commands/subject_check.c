/* `lockstep subject-check -- CMD`: tries the options and files of the protocol on a trainer with
 * small jobs, and says what is missing and which cases that costs. */
#include "commands.h"

#include <ctype.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/cores.h"
#include "harness/hosts/supervise.h"
#include "kernels/core/clock.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "subject_check_internal.h"
#include "suite/run/command_line.h"
#include "suite/judge/judges.h"

enum { COLUMNS = 80, CLAIMS_MOST = 64 };

/* Cases of a claim among those that are considered. */
typedef struct claim {
    const char *name;
    ls_select_list list;
    int cases, costs;
} claim;

typedef struct checked {
    const char *seed, *claim, *device, *out;
    char subject[2048]; /* words of the command, a blank between */
    char started[3072]; /* the same with the whole path of the program */
    char folder[64];    /* of its own; "": --out */
    ls_subject_check check;
    ls_words names;
    claim *claims; /* [names.count] */
    double seconds;
} checked;

/* ---- what was asked -------------------------------------------------------------------------- */

static ls_status parse_command(checked *c, int count, char **word)
{
    for (int i = 0; i < count; i++) {
        if (word[i][0] == '\0' || strchr(word[i], ' ') != NULL) {
            return ls_log_fail(LS_ERR_USAGE,
                               "'%s': allowed: words without blanks; a script can hold others",
                               word[i]);
        }
        char path[1024];
        ls_command_absolute(word[i], path, sizeof path);
        ls_text_add(c->subject, sizeof c->subject, "%s%s", i > 0 ? " " : "", word[i]);
        /* some cases start it in another folder */
        bool program = i == 0 && strchr(word[i], '/') != NULL;
        ls_text_add(c->started, sizeof c->started, "%s%s", i > 0 ? " " : "",
                    program ? path : word[i]);
    }
    return LS_OK;
}

static ls_status parse(checked *c, int count, char **argument)
{
    memset(c, 0, sizeof *c);
    c->seed = "7";
    c->claim = "all";
    c->device = "auto";
    const ls_command_option options[] = {
        {"--claim", &c->claim, NULL, NULL, "the claim whose cases are looked at (all)"},
        {"--seed", &c->seed, NULL, NULL, "seed of every job (7)"},
        {"--device", &c->device, NULL, NULL, "cpu, cuda or auto"},
        {"--out", &c->out, NULL, NULL, "keep the jobs in that folder"},
    };
    ls_status status = ls_command_parse("subject-check -- CMD...", options,
                                        sizeof options / sizeof *options, &count, argument);
    if (status == LS_OK && count == 0) {
        return ls_log_fail(LS_ERR_USAGE, "an argument is missing; usage: lockstep subject-check "
                                         "[options] -- CMD...");
    }
    LS_THEN(status, ls_command_device(c->device));
    LS_THEN(status, parse_command(c, count, argument));
    return status;
}

static ls_status choose_cases(checked *c)
{
    ls_run *run = &c->check.run;
    ls_select_list wanted = {0};
    LS_TRY(ls_command_seed("--seed", c->seed, &run->seed));
    ls_status status = ls_select_claims(&c->names);
    LS_THEN(status, ls_select_claim(c->claim, &wanted));
    c->claims = ls_list_make((size_t)c->names.count + 1, sizeof *c->claims);
    for (int i = 0; i < c->names.count && status == LS_OK; i++) {
        c->claims[i].name = c->names.word[i];
        status = ls_select_claim(c->claims[i].name, &c->claims[i].list);
    }
    if (status == LS_OK) {
        ls_cases_all(&(ls_case_settings){.seed = run->seed}, &run->cases);
        ls_rows_keep_protocol(&run->cases);
        ls_select_matching(&run->cases, &wanted);
    }
    ls_select_free(&wanted);
    return status;
}

static ls_status prepare(checked *c)
{
    ls_run *run = &c->check.run;
    const char *device = NULL;
    int devices = 0;
    LS_TRY(ls_machine_choose_among(c->device, 1, true, &device, &devices));
    LS_TRY(ls_supervise_check_loopback());
    if (c->out != NULL) {
        ls_command_absolute(c->out, run->directory, sizeof run->directory);
        LS_TEXT(earlier, 600, "%s/jobs", run->directory);
        if (access(earlier, F_OK) == 0) { /* jobs that are done would not be run again */
            return ls_log_fail(LS_ERR_USAGE, "--out %s holds jobs already; name another folder",
                               c->out);
        }
    } else {
        ls_text_put(c->folder, sizeof c->folder, "/tmp/lockstep-subject-XXXXXX");
        if (mkdtemp(c->folder) == NULL) {
            c->folder[0] = '\0';
            return ls_log_fail(LS_ERR_INFRA, "no folder can be made in /tmp");
        }
        ls_text_put(run->directory, sizeof run->directory, "%s", c->folder);
    }
    LS_TEXT(jobs, 600, "%s/jobs", run->directory);
    LS_TRY(ls_path_make_chosen(jobs, LS_COMMAND_OUT_HINT));
    run->untimed = true;
    run->site = (ls_matrix_site){.subject = c->started,
                                 .run_directory = run->directory,
                                 .device = device,
                                 .cores = ls_cores_usable(),
                                 .devices = devices,
                                 .share_devices = true,
                                 .half_emulated = strcmp(device, "cpu") == 0};
    ls_spec plain = ls_matrix_spec(LS_ROLE_EVIDENCE);
    ls_text_put(plain.arch, sizeof plain.arch, "resnet8");
    plain.level = 0;
    plain.threads = 0;
    plain.deterministic = false;
    plain.steps = 2;
    plain.seed = run->seed;
    ls_matrix_add(&run->bench, &plain);
    ls_runner_plan(run);
    return ls_subject_tries_list(&c->check);
}

/* ---- what is printed ------------------------------------------------------------------------- */

/* Prints the text in lines of at most 80 columns, the ones after the first behind `indent`. */
static void print_wrapped(const char *first, int indent, const char *text)
{
    int at = printf("%-*s", indent, first);
    for (const char *word = text; *word != '\0';) {
        int length = (int)strcspn(word, " ");
        if (at + 1 + length > COLUMNS && at > indent) {
            printf("\n%*s", indent, "");
            at = indent;
        }
        for (; length > COLUMNS - indent; length -= COLUMNS - indent) { /* begins its line */
            printf("%.*s\n%*s", COLUMNS - indent, word, indent, "");
            word += COLUMNS - indent;
        }
        bool blank = at > indent;
        at += printf("%s%.*s", blank ? " " : "", length, word);
        word += length;
        word += strspn(word, " ");
    }
    printf("\n");
}

static bool costs(const ls_subject_check *check, int row)
{
    for (int g = 0; g < check->gap_count; g++) {
        if (check->gap[g].cost[row]) {
            return true;
        }
    }
    return false;
}

static void print_gap(const checked *c, const ls_subject_gap *gap)
{
    const ls_case_list *cases = &c->check.run.cases;
    char first[16], line[700] = "";
    const char *example = NULL;
    ls_text_put(first, sizeof first, "%6d  ", gap->count);
    print_wrapped(first, 8, gap->what);
    for (int r = 0; r < cases->count && example == NULL; r++) {
        example = gap->cost[r] ? cases->row[r].id : NULL;
    }
    for (int i = 0; i < c->names.count; i++) {
        int count = 0;
        bool looked_at = strcmp(c->claim, "all") == 0 || strcmp(c->claim, c->claims[i].name) == 0;
        for (int r = 0; r < cases->count && looked_at; r++) {
            count += gap->cost[r] && ls_select_find(&c->claims[i].list, cases->row[r].id) != NULL;
        }
        if (count > 0) {
            ls_text_add(line, sizeof line, "%s%s %d", line[0] == '\0' ? "" : ", ",
                        c->claims[i].name, count);
        }
    }
    if (example != NULL) {
        ls_text_add(line, sizeof line, "; such as %s", example);
        print_wrapped("        ", 8, line);
    }
}

/* The claim of whose cases the largest share can run, of equal ones the one with most cases. */
static const claim *best_claim(const checked *c)
{
    const claim *best = NULL;
    for (int i = 0; i < c->names.count; i++) {
        const claim *one = &c->claims[i];
        double runs = one->cases - one->costs, most = best == NULL ? 0 : best->cases - best->costs;
        if (one->cases == 0 || (strcmp(c->claim, "all") != 0 && strcmp(c->claim, one->name) != 0)) {
            continue;
        }
        double share = runs / one->cases, largest = best == NULL ? -1 : most / best->cases;
        if (share > largest || (share == largest && runs > most)) {
            best = one;
        }
    }
    return best;
}

static void count_claims(checked *c)
{
    const ls_case_list *cases = &c->check.run.cases;
    for (int r = 0; r < cases->count; r++) {
        bool lost = costs(&c->check, r);
        for (int i = 0; i < c->names.count; i++) {
            const char *id = cases->row[r].id;
            bool of = ls_select_find(&c->claims[i].list, id) != NULL &&
                      !(lost && ls_select_is_optional(&c->claims[i].list, id));
            c->claims[i].cases += of;
            c->claims[i].costs += of && lost;
        }
    }
}

static void print_claims(const checked *c)
{
    char line[1200] = "";
    for (int i = 0; i < c->names.count; i++) {
        const claim *one = &c->claims[i];
        if (one->cases > 0 && (strcmp(c->claim, "all") == 0 || strcmp(c->claim, one->name) == 0)) {
            ls_text_add(line, sizeof line, "%s%s %d of %d",
                        line[0] == '\0' ? "cases that nothing found here stops: " : ", ", one->name,
                        one->cases - one->costs, one->cases);
        }
    }
    print_wrapped("claims", 8, line);
}

static void print_next(const checked *c, const claim *best)
{
    ls_words words = {0, 0, NULL};
    ls_words_add(&words, "--claim");
    ls_words_add(&words, "%s", best->name);
    ls_words_add(&words, "--subject");
    ls_words_add(&words, "%s", c->subject);
    char *line = ls_command_line("conform", &words);
    char *subject = strstr(line, " --subject ");
    if (strlen(line) + 6 > COLUMNS && subject != NULL) {
        printf("\nnext: %.*s \\\n     %s\n", (int)(subject - line), line, subject);
    } else {
        printf("\nnext: %s\n", line);
    }
    free(line);
    ls_words_free(&words);
}

/* Of the options of jobs that are to end well. */
static int count_untried(const ls_subject_check *check, char *text, size_t bytes)
{
    int count = 0;
    text[0] = '\0';
    for (int i = 0; i < check->setting_count; i++) {
        const ls_subject_setting *one = &check->setting[i];
        if (one->state == LS_SUBJECT_UNTRIED && ls_subject_tries_could(check, i)) {
            ls_text_add(text, bytes, "%s%s%s%s", count > 0 ? ", " : "", one->name,
                        one->word[0] != '\0' ? " " : "", one->word);
            count++;
        }
    }
    return count;
}

static int count_requirements(const ls_run *run)
{
    int count = 0;
    for (int c = 0; c < run->cases.count; c++) {
        bool first = true;
        for (int b = 0; b < c && first; b++) {
            first = strcmp(run->cases.row[b].requirement, run->cases.row[c].requirement) != 0;
        }
        count += first;
    }
    return count;
}

/* Prints the cases that were tried, and of which the machine left no judgement; their number. */
static int print_unjudged(const ls_run *run)
{
    int count = 0;
    for (int c = 0; c < run->cases.count; c++) {
        if (run->judged[c] && run->verdict[c].code == LS_INFRA) {
            LS_TEXT(line, 700, "not judged: %s: %s", run->cases.row[c].id,
                    run->verdict[c].evidence);
            print_wrapped("", 8, line);
            count++;
        }
    }
    return count;
}

static int print(checked *c)
{
    const ls_subject_check *check = &c->check;
    int tried = 0, missing = 0;
    for (int i = 0; i < check->setting_count; i++) {
        tried += check->setting[i].state != LS_SUBJECT_UNTRIED;
    }
    char line[400], untried[2000];
    ls_text_put(line, sizeof line,
                "%d options and words of options, and a case of %d of %d requirements, in %d jobs "
                "and %.0f s",
                tried, check->requirements, count_requirements(&check->run), check->jobs,
                c->seconds);
    print_wrapped("tried", 8, line);
    int unjudged = print_unjudged(&check->run);
    if (count_untried(check, untried, sizeof untried) > 0) {
        print_wrapped("", 8, "not tried, as no job gives them without something that is missing:");
        print_wrapped("", 8, untried);
    }
    if (check->timeouts > 0) {
        ls_text_put(line, sizeof line, "%d jobs ended at their deadline%s", check->timeouts,
                    check->timeouts < LS_SUBJECT_TIMEOUTS_MOST ? "" : ", and no more were run");
        print_wrapped("hangs", 8, line);
    }
    if (check->gap_count > 0) {
        printf("\n cases  what is missing; the claims that need it\n");
    }
    for (int g = 0; g < check->gap_count; g++) {
        print_gap(c, &check->gap[g]);
        missing += check->gap[g].count > 0;
    }
    count_claims(c);
    printf("\n");
    print_claims(c);
    bool lacks = missing > 0 || check->timeouts > 0;
    printf("whole   %s\n", lacks ? "no" : unjudged > 0 ? "not shown" : "yes");
    print_next(c, best_claim(c));
    return lacks ? LS_ERR_CHECK : unjudged > 0 ? LS_ERR_INFRA : LS_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* ---- gaps -------------------------------------------------------------------------------------
 */

/* What a subject lacks, by the jobs that were tried, and the cases that each lack costs: those that
 * give an option that it does not take, and those of a requirement whose shortest case did not
 * pass. */

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

/* Fills check->gap, the one that costs most cases first. */
static void find_gaps(ls_subject_check *check)
{
    bool *explained = ls_list_make((size_t)check->run.cases.count + 1, sizeof *explained);
    find_settings(check);
    find_tensors(check, explained);
    find_members(check, explained);
    find_others(check, explained);
    qsort(check->gap, (size_t)check->gap_count, sizeof *check->gap, by_cost);
    free(explained);
}

static int try_all(checked *c)
{
    ls_subject_check *check = &c->check;
    LS_TRY(prepare(c));
    if (ls_proc_catch_signals() != LS_OK) {
        return LS_ERR_INFRA;
    }
    int64_t begun_ns = ls_clock_ns();
    LS_TRY(ls_subject_tries_settings(check));
    LS_TRY(ls_subject_tries_requirements(check));
    ls_progress_clear();
    c->seconds = ls_clock_ms_between(begun_ns, ls_clock_ns()) * 1e-3;
    if (check->run.unstarted[0] != '\0' || check->run.stopped) {
        return LS_ERR_INFRA;
    }
    find_gaps(check);
    return print(c);
}

static void release(checked *c)
{
    ls_subject_check *check = &c->check;
    for (int g = 0; g < check->gap_count; g++) {
        free(check->gap[g].cost);
    }
    for (int i = 0; check->job != NULL && i < check->run.jobs.count; i++) {
        free(check->job[i].setting);
    }
    for (int i = 0; i < c->names.count && c->claims != NULL; i++) {
        ls_select_free(&c->claims[i].list);
    }
    free(check->gap);
    free(check->job);
    free(check->setting);
    free(c->claims);
    ls_words_free(&c->names);
    if (c->folder[0] != '\0') {
        ls_path_remove_tree(c->folder);
    }
    ls_runner_free(&check->run);
}

int ls_subject_check_main(int count, char **argument)
{
    checked c;
    int code = (int)parse(&c, count, argument);
    if (code == LS_OK) {
        code = (int)choose_cases(&c);
    }
    if (code == LS_OK) {
        code = try_all(&c);
    }
    release(&c);
    return code;
}
