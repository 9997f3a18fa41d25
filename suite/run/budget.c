#include "run.h"

#include <math.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/list.h"

ls_status ls_budget_read(const char *path, ls_budget *sum)
{
    static const char mark[] = "# budget:";
    char *text = ls_text_read(path);
    const char *line = text == NULL ? NULL : strstr(text, mark);
    ls_status status = LS_OK;
    if (line != NULL) {
        double seconds = 0;
        int jobs = 0, found = sscanf(line + strlen(mark), " %lf s, %d jobs", &seconds, &jobs);
        if (found < 1 || !(seconds > 0) || jobs < 0) {
            status = ls_log_fail(LS_ERR_USAGE,
                                 "%s: a budget is a line such as '# budget: 90 s, 25 jobs'", path);
        } else {
            sum->seconds += seconds;
            sum->jobs += jobs;
        }
    }
    free(text);
    return status;
}

/* ---- a time that is asked for ---------------------------------------------------------------- */

ls_status ls_budget_parse(const char *name, const char *text, double *seconds)
{
    static const char units[] = "smh";
    static const double unit_s[] = {1, 60, 3600};
    char *end;
    double value = text[0] >= '0' && text[0] <= '9' ? strtod(text, &end) : 0;
    const char *unit = value > 0 && *end != '\0' ? strchr(units, *end) : units;
    if (!(value > 0) || !(value < 1e6) || unit == NULL || (*end != '\0' && end[1] != '\0')) {
        return ls_log_fail(LS_ERR_USAGE, "%s '%s': allowed: a time such as 90s, 10m or 1h", name,
                           text);
    }
    *seconds = value * unit_s[unit - units];
    return LS_OK;
}

double ls_budget_judging_s(const ls_case *row)
{
    /* means of a whole run of lockstep-train on 2 cores */
    return row->job_count == 0 ? 0.01 : row->counts == LS_COUNTS_GRADIENTS ? 0.2 : 0.02;
}

typedef struct choice {
    ls_matrix jobs; /* of all cases, and of the bench */
    int (*job)[LS_CASE_JOBS_MAX];
    double *cost_s;           /* [jobs.count] of a job that no chosen case has yet */
    const char **requirement; /* [requirements] */
    int *of, *cases;          /* a case's requirement; of a requirement, the cases chosen */
    int *sweeps;              /* by case: of the bench's rows, how many plots one is part of */
    int requirements;
    bool *outside, *taken; /* by case */
    double left_s;
} choice;

static double cost_of(const choice *c, const ls_case *row, int index)
{
    double seconds = ls_budget_judging_s(row);
    for (int j = 0; j < row->job_count; j++) {
        seconds += c->cost_s[c->job[index][j]];
    }
    return seconds;
}

/* The next case; -1: none fits. */
static int next_case(const choice *c, const ls_case_list *cases)
{
    int best = -1;
    double best_s = 0;
    for (int i = 0; i < cases->count; i++) {
        double s = cost_of(c, &cases->row[i], i);
        if (c->taken[i] || s > c->left_s) {
            continue;
        }
        int order = best < 0 ? -1 : c->outside[i] - c->outside[best];
        order = order != 0 ? order : c->cases[c->of[i]] - c->cases[c->of[best]];
        order = order != 0 ? order : c->sweeps[best] - c->sweeps[i];
        if (order < 0 || (order == 0 && s < best_s)) {
            best = i;
            best_s = s;
        }
    }
    return best;
}

static void take_case(choice *c, const ls_case_list *cases, int index)
{
    c->left_s -= cost_of(c, &cases->row[index], index);
    c->taken[index] = true;
    c->cases[c->of[index]]++;
    for (int j = 0; j < cases->row[index].job_count; j++) {
        c->cost_s[c->job[index][j]] = 0;
    }
}

static void begin_choice(choice *c, const ls_run *run)
{
    const double report_s = 1, bench_s = 5; /* writing it; a bench also measures the machine */
    const ls_case_list *cases = &run->cases;
    size_t count = (size_t)cases->count + 1;
    *c = (choice){.job = ls_list_make(count, sizeof *c->job),
                  .requirement = ls_list_make(count, sizeof *c->requirement),
                  .of = ls_list_make(count, sizeof *c->of),
                  .cases = ls_list_make(count, sizeof *c->cases),
                  .sweeps = ls_list_make(count, sizeof *c->sweeps),
                  .outside = ls_list_make(count, sizeof *c->outside),
                  .taken = ls_list_make(count, sizeof *c->taken),
                  .left_s = run->budget_s - (run->bench_run ? bench_s : report_s)};
    for (int i = 0; i < cases->count; i++) {
        const ls_case *row = &cases->row[i];
        for (int j = 0; j < row->job_count; j++) {
            c->job[i][j] = ls_matrix_add(&c->jobs, &row->job[j]);
            int sweeps = __builtin_popcount(row->job[j].sweep);
            c->sweeps[i] = sweeps > c->sweeps[i] ? sweeps : c->sweeps[i];
        }
        while (c->of[i] < c->requirements &&
               strcmp(c->requirement[c->of[i]], row->requirement) != 0) {
            c->of[i]++;
        }
        c->requirements += c->of[i] == c->requirements;
        c->requirement[c->of[i]] = row->requirement;
        c->outside[i] = ls_select_find(&run->claim, row->id) == NULL;
    }
    for (int i = 0; i < run->bench.count; i++) {
        (void)ls_matrix_add(&c->jobs, &run->bench.spec[i]);
    }
    c->cost_s = ls_list_make((size_t)c->jobs.count + 1, sizeof *c->cost_s);
    for (int i = 0; i < c->jobs.count; i++) {
        c->cost_s[i] = ls_matrix_estimate_at(&c->jobs.spec[i], &run->site);
    }
}

/* Jobs of the bench that no case reads are baselines of its rows. */
static void choose_bench(choice *c, ls_matrix *bench)
{
    ls_matrix kept = {0};
    for (int i = 0; i < bench->count; i++) {
        double *cost_s = &c->cost_s[ls_matrix_add(&c->jobs, &bench->spec[i])];
        bool baseline = bench->spec[i].role != LS_ROLE_THROUGHPUT;
        if (*cost_s == 0 || (baseline && *cost_s <= c->left_s)) {
            c->left_s -= *cost_s;
            *cost_s = 0;
            ls_matrix_add(&kept, &bench->spec[i]);
        }
    }
    ls_matrix_free(bench);
    *bench = kept;
}

/* Says what is left out, and notes it for run.json. */
static void report_choice(const choice *c, const ls_run *run, int chosen, int jobs,
                          const char *mark)
{
    cJSON *note = cJSON_AddObjectToObject(run->options, "budget");
    cJSON_AddNumberToObject(note, "seconds", run->budget_s);
    cJSON_AddNumberToObject(note, "cases", chosen);
    cJSON_AddNumberToObject(note, "left_out", run->cases.count - chosen);
    cJSON *list = cJSON_AddArrayToObject(note, "requirements_left_out");
    enum { NAMED = 8 };
    char names[NAMED * 10] = "";
    int bare = 0;
    for (int i = 0; i < c->requirements; i++) {
        if (c->cases[i] == 0) {
            cJSON_AddItemToArray(list, cJSON_CreateString(c->requirement[i]));
            if (bare++ < NAMED) {
                ls_text_add(names, sizeof names, " %s", c->requirement[i]);
            }
        }
    }
    printf("%sbudget of %.0f s: %d of %d cases fit, most telling first (%d are left out", mark,
           run->budget_s, chosen, run->cases.count, run->cases.count - chosen);
    if (jobs > 0) {
        printf(", and %d of %d jobs of the matrix", jobs - run->bench.count, jobs);
    }
    if (bare == 0) {
        printf("); each of %d requirements has a case\n", c->requirements);
    } else {
        printf("); %d of %d requirements have no case:%s%s\n", bare, c->requirements, names,
               bare > NAMED ? " ..." : "");
    }
}

void ls_budget_choose(ls_run *run, const char *mark)
{
    choice c;
    begin_choice(&c, run);
    int jobs = run->bench.count, kept = 0;
    ls_case *row = ls_list_make((size_t)run->cases.count + 1, sizeof *row);
    for (int i = next_case(&c, &run->cases); i >= 0; i = next_case(&c, &run->cases)) {
        take_case(&c, &run->cases, i);
        row[kept++] = run->cases.row[i];
    }
    choose_bench(&c, &run->bench);
    report_choice(&c, run, kept, jobs, mark);
    free(run->cases.row);
    run->cases.row = row;
    run->cases.capacity = run->cases.count + 1;
    run->cases.count = kept;
    ls_matrix_free(&c.jobs);
    free(c.job);
    free(c.cost_s);
    free(c.requirement);
    free(c.of);
    free(c.cases);
    free(c.sweeps);
    free(c.outside);
    free(c.taken);
}

bool ls_budget_allows(const ls_run *run, int job)
{
    double elapsed_s = ls_clock_ms_between(run->started_ns, ls_clock_ns()) * 1e-3, estimate_s = 0;
    for (int i = 0; i < job; i++) {
        if (run->done[i] && !run->kept[i]) {
            estimate_s += ls_matrix_estimate_at(&run->jobs.spec[i], &run->site);
        }
    }
    double pace = estimate_s > 5 && elapsed_s > estimate_s ? elapsed_s / estimate_s : 1;
    double job_s = pace * ls_matrix_estimate_at(&run->jobs.spec[job], &run->site);
    return run->budget_s <= 0 || elapsed_s + job_s <= run->budget_s;
}

void ls_budget_cut(ls_run *run)
{
    int kept = 0, all = run->cases.count;
    for (int c = 0; c < all; c++) {
        if (run->judged[c]) {
            run->cases.row[kept] = run->cases.row[c];
            run->verdict[kept] = run->verdict[c];
            memcpy(run->case_job[kept], run->case_job[c], sizeof *run->case_job);
            run->judged[kept++] = true;
        }
    }
    run->cases.count = kept;
    printf("the budget of %.0f s is used up: %d of %d cases were not run\n", run->budget_s,
           all - kept, all);
}

/* Index of the longest job that is not yet listed; -1: none. */
static int longest(const ls_run *run, const bool *named)
{
    int best = -1;
    for (int i = 0; i < run->jobs.count; i++) {
        if (!named[i] && run->record[i].rank != NULL &&
            (best < 0 || run->record[i].seconds > run->record[best].seconds)) {
            best = i;
        }
    }
    return best;
}

void ls_budget_report(const ls_budget *budget, const ls_run *run, double seconds, FILE *to)
{
    enum { NAMED = 3 };
    if (budget->jobs > 0 && run->jobs.count > budget->jobs) {
        fprintf(to, "over budget: %d jobs, %d are allowed\n", run->jobs.count, budget->jobs);
    }
    if (!(budget->seconds > 0) || seconds <= budget->seconds) {
        return;
    }
    fprintf(to, "over budget: %.0f s, %.0f s are allowed on 2 idle cores; longest:", seconds,
            budget->seconds);
    bool *named = ls_list_make((size_t)run->jobs.count + 1, sizeof *named);
    for (int k = 0; k < NAMED; k++) {
        int i = longest(run, named);
        if (i >= 0) {
            char id[96];
            ls_matrix_id(&run->jobs.spec[i], id);
            fprintf(to, "%s %s %.1f s", k == 0 ? "" : ",", id, run->record[i].seconds);
            named[i] = true;
        }
    }
    fprintf(to, "\n");
    free(named);
}
