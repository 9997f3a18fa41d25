/* `lockstep subject-check -- CMD`: tries the options and files of the protocol on a trainer with
 * small jobs, and says what is missing and which cases that costs. */
#include "commands.h"

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
    ls_subject_gaps_find(check);
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
