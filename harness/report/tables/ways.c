#include <math.h>

#include "harness/report/figures.h"
#include "harness/report/job.h"
#include "kernels/core/file.h"
#include "kernels/core/text.h"
#include "table.h"

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

static const ls_report_job *job_of(const ls_report_run *run, ls_way way)
{
    const ls_report_job *found = NULL;
    for (int i = 0; i < run->job_count; i++) {
        const ls_report_job *job = &run->job[i];
        bool timed = ls_spec_has_rate(job->spec) && job->speed.count > 0;
        found = found == NULL && job->spec->way == way && way != LS_WAY_NONE && timed ? job : found;
    }
    return found;
}

/* "1.20 x DataParallel [1.15, 1.25]", after a comma where text is there already. */
static void compare(const ls_report_run *run, ls_way fast, ls_way slow, const char *than,
                    char *text, int bytes)
{
    const ls_report_job *a = job_of(run, fast), *b = job_of(run, slow);
    if (a == NULL || b == NULL || !ls_report_job_is_result(a) || !ls_report_job_is_result(b)) {
        return;
    }
    ls_stats_interval ratio = ls_report_compare_ratio(a, b);
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

ls_status ls_tables_ways_write(const ls_report_run *run)
{
    const ls_report_job *jobs[LS_WAYS];
    int count = 0;
    for (int way = 1; way < LS_WAYS; way++) {
        jobs[count] = job_of(run, (ls_way)way);
        count += jobs[count] != NULL;
    }
    ls_table_head head = {0};
    ls_text_put(
        head.caption, sizeof head.caption,
        "Images per second of the same images a step on the same cores: a process a device "
        "(DDP), one process with a replica or a stage on each device, one process with all "
        "cores; and DDP with other updates. Median of the steady window; bars span the 95 %% "
        "interval; hollow: its checks did not pass.");
    describe(run, jobs, count, &head);
    FILE *table =
        ls_table_begin(run, "ways", &head,
                       "img_s images/s, median of the steady window with 95 % interval low "
                       "to high; ms_p50 of a step of the slowest rank; optimizer_ms of it; "
                       "checked 1: the job passed its checks",
                       "1 place  2 way  3 level  4 world  5 threads  6 img_s  7 low  8 high  "
                       "9 ms_p50  10 optimizer_ms  11 checked  12 label  13 job");
    LS_TRY_FILE(table);
    for (int i = 0; i < count; i++) {
        const ls_report_job *job = jobs[i];
        const ls_report_speed *speed = &job->speed;
        char id[128], label[64];
        fprintf(table, "%d\t%d\t%d\t%d\t%d\t%.6g\t%.6g\t%.6g\t%.6g\t%.6g\t%d\t\"%s\"\t\"%s\"\n", i,
                (int)job->spec->way, job->spec->level, job->spec->world,
                job->spec->world * job->spec->threads, speed->rate.value,
                isfinite(speed->rate.low) ? speed->rate.low : NAN,
                isfinite(speed->rate.high) ? speed->rate.high : NAN, speed->step.value,
                speed->optimizer_ms, job->record->checked,
                ls_table_plain(label_of(job->spec->way), label, sizeof label),
                ls_table_plain(job->record->id, id, sizeof id));
    }
    return ls_file_close(table, "ways");
}
