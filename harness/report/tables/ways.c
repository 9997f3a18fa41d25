#include <math.h>

#include "harness/report/figures.h"
#include "kernels/core/file.h"
#include "kernels/core/text.h"
#include "table.h"

enum { ROUNDS_MAX = 16 };

static const char *label_of(ls_way way)
{
    static const char *const labels[LS_WAYS] = {
        [LS_WAY_DDP] = "DDP, Apex's rules",
        [LS_WAY_DDP_TORCH] = "DDP, torch's rules",
        [LS_WAY_ONE_PROCESS] = "one process, one device",
        [LS_WAY_REPLICAS] = "DataParallel",
        [LS_WAY_STAGES] = "two stages",
        [LS_WAY_PIPELINE] = "two stages, pipelined",
        [LS_WAY_SGD_UNFUSED] = "DDP, SGD not fused",
        [LS_WAY_ADAM] = "DDP, FusedAdam",
        [LS_WAY_ADAM_UNFUSED] = "DDP, Adam not fused",
    };
    return labels[way];
}

/* A way's timed jobs, one a round; a round that it lacks is NULL. */
typedef struct timings {
    const ls_report_job *round[ROUNDS_MAX];
    const ls_report_job *first; /* NULL: it was not timed */
    bool checked;               /* all rounds are results */
} timings;

static timings timings_of(const ls_report_run *run, ls_way way)
{
    timings t = {.checked = true};
    for (int i = 0; i < run->job_count; i++) {
        const ls_report_job *job = &run->job[i];
        int round = job->spec->repeat;
        bool timed = ls_spec_has_rate(job->spec) && job->speed.count > 0;
        if (job->spec->way == way && timed && round < ROUNDS_MAX && t.round[round] == NULL) {
            t.round[round] = job;
            t.first = t.first == NULL ? job : t.first;
            t.checked &= ls_report_job_is_result(job);
        }
    }
    return t;
}

/* Median over rounds, with its interval (stats.h); the interval of the steps where there is a
 * single round. */
static ls_stats_interval rate_of(const timings *t)
{
    double rate[ROUNDS_MAX];
    int count = 0;
    for (int r = 0; r < ROUNDS_MAX; r++) {
        if (t->round[r] != NULL) {
            rate[count++] = t->round[r]->speed.rate.value;
        }
    }
    return count > 1 ? ls_stats_median(rate, count, t->first->record->id) : t->first->speed.rate;
}

static double median_of(const timings *t, double (*value)(const ls_report_job *job))
{
    double each[ROUNDS_MAX];
    int count = 0;
    for (int r = 0; r < ROUNDS_MAX; r++) {
        if (t->round[r] != NULL) {
            each[count++] = value(t->round[r]);
        }
    }
    return ls_stats_percentile(each, count, 0.5);
}

static double step_ms(const ls_report_job *job)
{
    return job->speed.step.value;
}

static double optimizer_ms(const ls_report_job *job)
{
    return job->speed.optimizer_ms;
}

/* Median of the rounds' ratios: both jobs of a ratio ran within a minute. */
static ls_stats_interval ratio_of(const timings *a, const timings *b)
{
    double ratio[ROUNDS_MAX];
    int count = 0, last = 0;
    for (int r = 0; r < ROUNDS_MAX; r++) {
        if (a->round[r] != NULL && b->round[r] != NULL) {
            ratio[count++] = a->round[r]->speed.rate.value / b->round[r]->speed.rate.value;
            last = r;
        }
    }
    return count == 1 ? ls_report_compare_ratio(a->round[last], b->round[last])
                      : ls_stats_median(ratio, count, a->first->record->id);
}

/* "1.20 x DataParallel [1.15, 1.25]", after a comma where text is there already. */
static void compare(const ls_report_run *run, ls_way fast, ls_way slow, const char *than,
                    char *text, int bytes)
{
    const timings a = timings_of(run, fast), b = timings_of(run, slow);
    if (a.first == NULL || b.first == NULL || !a.checked || !b.checked) {
        return;
    }
    ls_stats_interval ratio = ratio_of(&a, &b);
    if (!isfinite(ratio.value)) { /* no round has both */
        return;
    }
    ls_text_add(text, bytes, "%s%.2f x %s", text[0] == '\0' ? "" : ", ", ratio.value, than);
    if (isfinite(ratio.low)) {
        ls_text_add(text, bytes, " [%.2f, %.2f]", ratio.low, ratio.high);
    }
}

static void describe(const ls_report_run *run, const ls_report_job *const *jobs, int count,
                     ls_table_head *head)
{
    char devices[240] = "", rules[80] = "", updates[160] = "";
    compare(run, LS_WAY_DDP, LS_WAY_REPLICAS, "DataParallel", devices, sizeof devices);
    compare(run, LS_WAY_DDP, LS_WAY_STAGES, "two stages", devices, sizeof devices);
    compare(run, LS_WAY_DDP, LS_WAY_PIPELINE, "two stages pipelined", devices, sizeof devices);
    compare(run, LS_WAY_DDP, LS_WAY_DDP_TORCH, "torch's rules", rules, sizeof rules);
    compare(run, LS_WAY_DDP, LS_WAY_SGD_UNFUSED, "SGD not fused", updates, sizeof updates);
    compare(run, LS_WAY_ADAM, LS_WAY_ADAM_UNFUSED, "Adam not fused", updates, sizeof updates);
    int bytes = sizeof head->title;
    if (count == 0) {
        ls_text_add(head->title, bytes, "No other ways to train were timed");
    } else if (devices[0] == '\0') {
        ls_text_add(head->title, bytes, "DDP and other ways: too few jobs passed their checks");
    } else {
        ls_text_add(head->title, bytes, "DDP is %s", devices);
        ls_text_add(head->title, bytes, rules[0] != '\0' ? "; Apex's rules are %s" : "%s", rules);
        ls_text_add(head->title, bytes, updates[0] != '\0' ? "; fused updates are %s" : "%s",
                    updates);
    }
    ls_table_add_marks(run, jobs, count, head->title);
}

static int most_rounds(const timings *all, int count)
{
    int most = 0;
    for (int i = 0; i < count; i++) {
        int rounds = 0;
        for (int r = 0; r < ROUNDS_MAX; r++) {
            rounds += all[i].round[r] != NULL;
        }
        most = rounds > most ? rounds : most;
    }
    return most;
}

ls_status ls_tables_ways_write(const ls_report_run *run)
{
    const ls_report_job *first[LS_WAYS];
    timings all[LS_WAYS];
    int count = 0;
    for (int way = 1; way < LS_WAYS; way++) {
        all[count] = timings_of(run, (ls_way)way);
        first[count] = all[count].first;
        count += first[count] != NULL;
    }
    ls_table_head head = {0};
    ls_text_put(head.caption, sizeof head.caption,
                "Images per second of the same images a step on the same cores: a process a device "
                "(DDP), one process with a replica or a stage on each device, one process with all "
                "cores; and DDP with other updates. ");
    int rounds = most_rounds(all, count);
    if (rounds > 1) {
        ls_text_add(head.caption, sizeof head.caption,
                    "Median of %d rounds, in each of which all ways ran in turn; bars span the "
                    "slowest to the fastest round; ratios are medians of the rounds' own; ",
                    rounds);
    } else {
        ls_text_add(head.caption, sizeof head.caption,
                    "Median of the steady window; bars span the 95 %% interval; ");
    }
    ls_text_add(head.caption, sizeof head.caption, "hollow: its checks did not pass.");
    describe(run, first, count, &head);
    FILE *table = ls_table_begin(
        run, "ways", &head,
        "img_s images/s, median of the rounds' (each the median of its steady window) with range "
        "low to high; ms_p50 of a step of the slowest rank; optimizer_ms of it; checked 1: all "
        "its jobs passed their checks; job is that of its first round",
        "1 place  2 way  3 level  4 world  5 threads  6 img_s  7 low  8 high  "
        "9 ms_p50  10 optimizer_ms  11 checked  12 label  13 job");
    LS_TRY_FILE(table);
    for (int i = 0; i < count; i++) {
        const ls_report_job *job = first[i];
        ls_stats_interval rate = rate_of(&all[i]);
        char id[128], label[64];
        fprintf(table, "%d\t%d\t%d\t%d\t%d\t%.6g\t%.6g\t%.6g\t%.6g\t%.6g\t%d\t\"%s\"\t\"%s\"\n", i,
                (int)job->spec->way, job->spec->level, job->spec->world,
                job->spec->world * job->spec->threads, rate.value,
                isfinite(rate.low) ? rate.low : NAN, isfinite(rate.high) ? rate.high : NAN,
                median_of(&all[i], step_ms), median_of(&all[i], optimizer_ms), all[i].checked,
                ls_table_plain(label_of(job->spec->way), label, sizeof label),
                ls_table_plain(job->record->id, id, sizeof id));
    }
    return ls_file_close(table, "ways");
}
