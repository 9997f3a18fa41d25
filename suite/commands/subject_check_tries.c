/* What a subject makes of each option that cases give, and of the shortest case of each
 * requirement. */
#include "subject_check_internal.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/plain.h"

/* Seconds of a case's jobs on 2 cores by the model: longer ones are no quick try. */
static const double short_s = 6;
enum { PRECISIONS = 3 };
static const char *const precision[PRECISIONS] = {"--opt-level", "--half", "--loss-scale"};

bool ls_subject_tries_bad(const ls_subject_setting *setting)
{
    return setting->state > LS_SUBJECT_TAKEN;
}

/* ---- settings -------------------------------------------------------------------------------- */

/* What is left of a value: the word that it begins with, "" for a number, "FILE" for a path. */
static void word_of(const char *value, char *word, size_t bytes)
{
    if (value[0] == '/') {
        ls_text_put(word, bytes, "FILE");
    } else if (isalpha((unsigned char)value[0])) {
        ls_text_put(word, bytes, "%.*s", (int)strcspn(value, ":,@/*"), value);
    } else {
        word[0] = '\0';
    }
}

static int find_setting(ls_subject_check *check, const char *name, const char *word)
{
    for (int i = 0; i < check->setting_count; i++) {
        if (strcmp(check->setting[i].name, name) == 0 &&
            strcmp(check->setting[i].word, word) == 0) {
            return i;
        }
    }
    check->setting = ls_list_grow(check->setting, check->setting_count, &check->setting_capacity,
                                  sizeof *check->setting);
    ls_subject_setting *new = &check->setting[check->setting_count];
    memset(new, 0, sizeof *new);
    ls_text_put(new->name, sizeof new->name, "%s", name);
    ls_text_put(new->word, sizeof new->word, "%s", word);
    return check->setting_count++;
}

/* The options of a job's command, without the subject's own words: matrix.c begins with -a. */
static int first_option(const ls_job *job)
{
    int first = 0;
    for (int i = 0; i < job->command.count; i++) {
        first = strcmp(job->command.word[i], "-a") == 0 ? i : first;
    }
    return first;
}

static int precision_of(const char *name)
{
    for (int k = 0; k < PRECISIONS; k++) {
        if (ls_refusals_names(name, precision[k])) {
            return k;
        }
    }
    return -1;
}

/* Whether a later word gives the same option: the last one counts. */
static bool is_given_again(const ls_job *job, int index, const char *name)
{
    for (int i = index + 1; i < job->command.count; i++) {
        if (job->command.word[i][0] == '-' && ls_refusals_names(job->command.word[i], name)) {
            return true;
        }
    }
    return false;
}

typedef struct option {
    char name[48], word[64]; /* word: what is left of the value */
    const char *value;       /* "" of a flag */
    int precision;           /* index of `precision`, or -1 */
} option;

/* The next option of the command. *at starts with first_option. */
static bool next_option(const ls_job *job, int *at, option *out)
{
    while (*at < job->command.count) {
        int index = (*at)++;
        const char *word = job->command.word[index], *next = job->command.word[index + 1];
        if (word[0] != '-') {
            continue;
        }
        ls_text_put(out->name, sizeof out->name, "%.*s", (int)strcspn(word, "="), word);
        const char *equals = strchr(word, '=');
        bool apart = equals == NULL && next != NULL && next[0] != '-';
        if (!is_given_again(job, index, out->name)) {
            out->value = equals != NULL ? equals + 1 : apart ? next : "";
            out->precision = precision_of(out->name);
            word_of(out->value, out->word, sizeof out->word);
            return true;
        }
    }
    return false;
}

static void add_setting(ls_subject_check *check, struct ls_subject_job *job, int *capacity,
                        const char *name, const char *word)
{
    int setting = find_setting(check, name, word);
    for (int i = 0; i < job->count; i++) {
        if (job->setting[i] == setting) {
            return;
        }
    }
    job->setting = ls_list_grow(job->setting, job->count, capacity, sizeof *job->setting);
    job->setting[job->count++] = setting;
}

ls_status ls_subject_tries_list(ls_subject_check *check)
{
    const ls_run *run = &check->run;
    check->job = ls_list_make((size_t)run->jobs.count + 1, sizeof *check->job);
    for (int i = 0; i < run->jobs.count; i++) {
        ls_job job;
        option given;
        int capacity = 0;
        char word[64] = "", of[PRECISIONS][64] = {"", "", ""};
        LS_TRY(ls_matrix_job(&run->jobs.spec[i], &run->site, &job));
        for (int at = first_option(&job); next_option(&job, &at, &given);) {
            if (given.precision < 0) {
                add_setting(check, &check->job[i], &capacity, given.name, given.word);
            } else {
                ls_text_put(of[given.precision], sizeof of[0], "%s",
                            given.word[0] == '\0' ? "static" : given.word);
            }
        }
        for (int k = 0; k < PRECISIONS; k++) {
            ls_text_add(word, sizeof word, "%s%s", word[0] != '\0' && of[k][0] ? " " : "", of[k]);
        }
        if (word[0] != '\0') {
            add_setting(check, &check->job[i], &capacity, precision[0], word);
        }
        ls_job_free(&job);
    }
    return LS_OK;
}

/* ---- what a job shows ------------------------------------------------------------------------ */

static void set_state(ls_subject_setting *setting, ls_subject_state state, const char *why)
{
    if (setting->state <= LS_SUBJECT_TAKEN) {
        setting->state = state;
        ls_text_put(setting->why, sizeof setting->why, "%s", why);
    }
}

static bool is_of(const ls_subject_setting *setting, const char *option)
{
    const char *name = precision_of(option) >= 0                   ? precision[0]
                       : ls_refusals_names("--arch", option)       ? "-a"
                       : ls_refusals_names("--batch-size", option) ? "-b"
                                                                   : option;
    return ls_refusals_names(setting->name, name);
}

/* Of the settings of a job: how many were not tried; `last` is one of them. */
static int untried(const ls_subject_check *check, int job, int *last)
{
    int count = 0;
    for (int i = 0; i < check->job[job].count; i++) {
        if (check->setting[check->job[job].setting[i]].state == LS_SUBJECT_UNTRIED) {
            *last = check->job[job].setting[i];
            count++;
        }
    }
    return count;
}

/* False: the subject names no option of the command. */
static bool learn_refusal(ls_subject_check *check, int index)
{
    const ls_record *record = &check->run.record[index];
    const cJSON *event = NULL;
    for (int k = 0; k < record->world && event == NULL; k++) {
        event = record->rank[k].unsupported;
    }
    const char *option = ls_json_string(event, "option", "");
    bool named = false;
    for (int i = 0; i < check->job[index].count; i++) {
        ls_subject_setting *setting = &check->setting[check->job[index].setting[i]];
        if (option[0] != '\0' && is_of(setting, option)) {
            set_state(setting, LS_SUBJECT_REFUSED,
                      ls_json_string(event, "why", "no reason is given"));
            named = true;
        }
    }
    return named;
}

/* Whether the start event says another value; what it does not say, or says as a list, is not
 * compared. */
static bool differs(const cJSON *said, const char *value)
{
    char *end = NULL;
    double number = strtod(value, &end);
    bool is_number = value[0] != '\0' && *end == '\0';
    if (cJSON_IsBool(said)) {
        bool asked = value[0] == '\0' || strcmp(value, "True") == 0;
        return (value[0] == '\0' || strcmp(value, "True") == 0 || strcmp(value, "False") == 0) &&
               cJSON_IsTrue(said) != asked;
    }
    if (cJSON_IsNumber(said)) {
        return is_number && (float)said->valuedouble != (float)number;
    }
    if (cJSON_IsString(said) && is_number) {
        return (float)strtod(said->valuestring, NULL) != (float)number;
    }
    if (!cJSON_IsString(said) || !isalpha((unsigned char)value[0]) || strcmp(value, "auto") == 0) {
        return false;
    }
    /* one of them may say more, as a default that the other leaves out */
    size_t a = strlen(said->valuestring), b = strlen(value);
    return strncmp(said->valuestring, value, a < b ? a : b) != 0;
}

/* new[setting_count]: this job is the first that gives it. */
static void compare_said(ls_subject_check *check, const cJSON *options, const bool *new,
                         const option *given)
{
    const char *key = strcmp(given->name, "-a") == 0   ? "arch"
                      : strcmp(given->name, "-b") == 0 ? "batch-size"
                                                       : given->name + 2;
    const cJSON *said = ls_json_get(options, key);
    if (!differs(said, given->value)) {
        return;
    }
    char *text = cJSON_PrintUnformatted(said);
    LS_TEXT(why, 240, "asked for %.80s, the start event says %.80s",
            given->value[0] == '\0' ? "it" : given->value, text);
    cJSON_free(text);
    for (int i = 0; i < check->setting_count; i++) {
        ls_subject_setting *setting = &check->setting[i];
        if (new[i] && is_of(setting, given->name) &&
            (strcmp(setting->word, given->word) == 0 || given->precision >= 0)) {
            set_state(setting, LS_SUBJECT_IGNORED, why);
        }
    }
}

static ls_status learn_taken(ls_subject_check *check, int index)
{
    const ls_spec *spec = &check->run.jobs.spec[index];
    const ls_record *record = &check->run.record[index];
    bool *new = ls_list_make((size_t)check->setting_count, sizeof *new);
    for (int i = 0; i < check->job[index].count; i++) {
        int k = check->job[index].setting[i];
        new[k] = check->setting[k].state == LS_SUBJECT_UNTRIED;
        check->setting[k].state = new[k] ? LS_SUBJECT_TAKEN : check->setting[k].state;
    }
    ls_status status = LS_OK;
    if (record->world > 0 && spec->wrap == LS_WRAP_NONE) {
        ls_job job;
        option given;
        const cJSON *options = ls_json_get(record->rank[0].start, "options");
        status = ls_matrix_job(spec, &check->run.site, &job);
        for (int at = status == LS_OK ? first_option(&job) : 0;
             status == LS_OK && next_option(&job, &at, &given);) {
            compare_said(check, options, new, &given);
        }
        if (status == LS_OK) {
            ls_job_free(&job);
        }
    }
    free(new);
    return status;
}

static bool goes_on(const ls_subject_check *check)
{
    return !check->run.stopped && check->run.unstarted[0] == '\0' &&
           check->timeouts < LS_SUBJECT_TIMEOUTS_MOST;
}

/* word NULL: any. */
static bool is_untried(const ls_subject_check *check, int job, const char *name, const char *word,
                       int *setting)
{
    for (int i = 0; i < check->job[job].count; i++) {
        *setting = check->job[job].setting[i];
        const ls_subject_setting *one = &check->setting[*setting];
        if (one->state == LS_SUBJECT_UNTRIED && strcmp(one->name, name) == 0 &&
            (word == NULL || strcmp(one->word, word) == 0)) {
            return true;
        }
    }
    return false;
}

static ls_status run_apart(ls_subject_check *check, int setting, const char *options)
{
    ls_run *run = &check->run;
    ls_spec spec = run->bench.spec[0];
    ls_text_put(spec.extra, sizeof spec.extra, "%s", options);
    ls_job job;
    LS_TRY(ls_matrix_job(&spec, &run->site, &job));
    ls_outcome outcome = {0};
    bool resumed;
    ls_status status = ls_job_run(&job, NULL, NULL, &outcome, &resumed);
    run->stopped = run->stopped || outcome.state == LS_OUTCOME_STOPPED;
    ls_outcome_free(&outcome);
    ls_record record = {0};
    if (status == LS_OK && !run->stopped) {
        status = ls_record_read(job.directory, LS_RECORD_STRICT, &record);
    }
    if (status == LS_OK && !run->stopped) {
        check->jobs++;
        check->timeouts += record.state == LS_RECORD_TIMED_OUT;
        ls_verdict seen = {.code = LS_PASS};
        char why[240];
        bool bad = ls_verdict_of_outcome(&record, &seen);
        ls_plain_copy(why, sizeof why, seen.evidence);
        set_state(&check->setting[setting],
                  !bad                                ? LS_SUBJECT_TAKEN
                  : record.code == LS_ERR_UNSUPPORTED ? LS_SUBJECT_REFUSED
                                                      : LS_SUBJECT_FAILS,
                  bad ? why : "");
        ls_record_free(&record);
    }
    ls_job_free(&job);
    return status;
}

/* Of a job that failed without naming an option: the plainest job, with one of its options that
 * were not tried. Level, half type and loss scale go together. */
static ls_status try_apart(ls_subject_check *check, int index)
{
    ls_job job;
    option given;
    int setting;
    char together[200] = "";
    LS_TRY(ls_matrix_job(&check->run.jobs.spec[index], &check->run.site, &job));
    ls_status status = LS_OK;
    for (int at = first_option(&job); status == LS_OK && next_option(&job, &at, &given);) {
        const char *between = given.value[0] == '\0' ? "" : given.name[1] == '-' ? "=" : " ";
        LS_TEXT(word, 400, "%s%s%s", given.name, between, given.value);
        if (given.precision >= 0) {
            ls_text_add(together, sizeof together, " %s", word);
        } else if (goes_on(check) && is_untried(check, index, given.name, given.word, &setting)) {
            status = run_apart(check, setting, word);
        }
    }
    ls_job_free(&job);
    if (status == LS_OK && together[0] != '\0' && !check->run.stopped &&
        is_untried(check, index, precision[0], NULL, &setting)) {
        status = run_apart(check, setting, together);
    }
    return status;
}

/* A job that ended badly, or refused what it does not name. */
static ls_status learn_failure(ls_subject_check *check, int index)
{
    const ls_record *record = &check->run.record[index];
    int last = 0, count = untried(check, index, &last);
    if (count > 1 && record->state != LS_RECORD_TIMED_OUT) {
        return try_apart(check, index);
    }
    if (count == 1) {
        ls_verdict seen = {.code = LS_PASS};
        char why[240];
        (void)ls_verdict_of_outcome(record, &seen);
        ls_plain_copy(why, sizeof why, seen.evidence);
        set_state(&check->setting[last],
                  record->code == LS_ERR_UNSUPPORTED ? LS_SUBJECT_REFUSED : LS_SUBJECT_FAILS, why);
    }
    return LS_OK;
}

/* Runs a job, unless it was run, and takes note of what it shows. */
static ls_status try_job(ls_subject_check *check, int index, bool ends_well)
{
    ls_run *run = &check->run;
    if (run->done[index] || run->stopped) {
        return LS_OK;
    }
    LS_TRY(ls_start_check(run, &run->record[index], ls_runner_run_job(run, index)));
    if (run->unstarted[0] != '\0' || run->stopped || !run->done[index]) {
        return LS_OK;
    }
    const ls_record *record = &run->record[index];
    check->jobs++;
    check->timeouts += record->state == LS_RECORD_TIMED_OUT;
    if (record->state == LS_RECORD_DONE && record->broken[0] == '\0') {
        return learn_taken(check, index);
    }
    if (record->code == LS_ERR_UNSUPPORTED && learn_refusal(check, index)) {
        return LS_OK;
    }
    return ends_well ? learn_failure(check, index) : LS_OK;
}

/* ---- which jobs ------------------------------------------------------------------------------ */

static bool has_bad(const ls_subject_check *check, int job)
{
    for (int i = 0; i < check->job[job].count; i++) {
        if (ls_subject_tries_bad(&check->setting[check->job[job].setting[i]])) {
            return true;
        }
    }
    return false;
}

/* Whether the row's jobs are to end well, and start the subject as it is: what fails is then for an
 * option's sake. */
static bool is_plain(const ls_case *row, int j)
{
    ls_wrap wrap = row->job[j].wrap;
    return !row->judges_outcome && (wrap == LS_WRAP_NONE || wrap == LS_WRAP_ALONE);
}

bool ls_subject_tries_could(const ls_subject_check *check, int setting)
{
    for (int c = 0; c < check->run.cases.count; c++) {
        const ls_case *row = &check->run.cases.row[c];
        for (int j = 0; j < row->job_count; j++) {
            const struct ls_subject_job *job = &check->job[check->run.case_job[c][j]];
            for (int i = 0; i < job->count && is_plain(row, j); i++) {
                if (job->setting[i] == setting) {
                    return true;
                }
            }
        }
    }
    return false;
}

bool ls_subject_tries_costs(const ls_subject_check *check, int row)
{
    const ls_case *one = &check->run.cases.row[row];
    for (int j = 0; j < one->job_count && !one->judges_outcome; j++) {
        if (has_bad(check, check->run.case_job[row][j])) {
            return true;
        }
    }
    return false;
}

/* The first of the row's jobs that has to be run before job j: those that read others' files. */
static int first_needed(const ls_case *row, int j)
{
    return strstr(row->job[j].extra, "{job:") != NULL || strstr(row->job[j].data, "{job:") != NULL
               ? 0
               : j;
}

/* Settings that running job j of a row would try; 0 where it cannot or need not be run. */
static int gains(const ls_subject_check *check, int row, int j)
{
    const ls_case *c = &check->run.cases.row[row];
    int last, most = 0;
    for (int k = first_needed(c, j); k <= j; k++) {
        if (!is_plain(c, k)) {
            return 0;
        }
        int job = check->run.case_job[row][k];
        int count = untried(check, job, &last);
        if (has_bad(check, job) || (k == j && check->run.done[job])) {
            return 0;
        }
        most = count > most ? count : most;
    }
    return most;
}

static ls_status try_row(ls_subject_check *check, int row, int last_job)
{
    const ls_case *c = &check->run.cases.row[row];
    ls_status status = LS_OK;
    for (int k = first_needed(c, last_job); k <= last_job && status == LS_OK; k++) {
        status = try_job(check, check->run.case_job[row][k], !c->judges_outcome);
    }
    return status;
}

/* The row and job with the fewest settings to try, of those the shortest; false: none is left. */
static bool next_job(const ls_subject_check *check, int *row, int *job)
{
    double least = INFINITY;
    for (int c = 0; c < check->run.cases.count; c++) {
        const ls_case *one = &check->run.cases.row[c];
        for (int j = 0; j < one->job_count; j++) {
            int count = gains(check, c, j);
            double cost = 1e6 * count + ls_matrix_estimate_s(&one->job[j], check->run.site.cores);
            if (count > 0 && cost < least) {
                least = cost;
                *row = c;
                *job = j;
            }
        }
    }
    return least < INFINITY;
}

ls_status ls_subject_tries_settings(ls_subject_check *check)
{
    int row, job;
    ls_spec *plain = &check->run.bench.spec[0];
    LS_TRY(try_job(check, ls_matrix_add(&check->run.jobs, plain), true));
    while (goes_on(check) && next_job(check, &row, &job)) {
        LS_TRY(try_row(check, row, job));
    }
    return LS_OK;
}

static double estimate(const ls_case *row, double cores)
{
    double seconds = 0;
    for (int j = 0; j < row->job_count; j++) {
        seconds += ls_matrix_estimate_s(&row->job[j], cores);
    }
    return seconds;
}

/* The shortest case of the requirement of `row` that is neither judged nor costs anything that is
 * missing; -1: none is short. */
static int shortest(const ls_subject_check *check, int row)
{
    const ls_run *run = &check->run;
    double least = short_s;
    int found = -1;
    for (int c = 0; c < run->cases.count; c++) {
        const ls_case *one = &run->cases.row[c];
        double seconds = estimate(one, run->site.cores);
        if (strcmp(one->requirement, run->cases.row[row].requirement) == 0 && !run->judged[c] &&
            one->job_count > 0 && seconds < least && !ls_subject_tries_costs(check, c)) {
            least = seconds;
            found = c;
        }
    }
    return found;
}

static ls_status judge_case(ls_subject_check *check, int row)
{
    ls_run *run = &check->run;
    bool done = true;
    for (int j = 0; j < run->cases.row[row].job_count; j++) {
        LS_TRY(try_job(check, run->case_job[row][j], !run->cases.row[row].judges_outcome));
        done = done && run->done[run->case_job[row][j]];
    }
    if (done && goes_on(check)) {
        ls_progress_note("judging %s", run->cases.row[row].id);
        ls_runner_judge(run, row);
    }
    return LS_OK;
}

ls_status ls_subject_tries_requirements(ls_subject_check *check)
{
    const ls_run *run = &check->run;
    for (int c = 0; c < run->cases.count; c++) {
        bool first = true;
        for (int b = 0; b < c && first; b++) {
            first = strcmp(run->cases.row[b].requirement, run->cases.row[c].requirement) != 0;
        }
        /* a refusal on the way leaves another case to try */
        bool judged = !first;
        for (int row; !judged && goes_on(check) && (row = shortest(check, c)) >= 0;) {
            LS_TRY(judge_case(check, row));
            judged = run->judged[row] && !ls_subject_tries_costs(check, row);
            check->requirements += judged;
            if (!run->judged[row]) {
                break;
            }
        }
    }
    return LS_OK;
}
