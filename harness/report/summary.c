
#include <math.h>
#include <string.h>

#include "kernels/core/text.h"
#include "figures.h"
#include "page.h"

static void summary_path(char path[PATH_MAX], const ls_report_run *run)
{
    ls_text_put(path, PATH_MAX, "%s/summary.json", run->directory);
}

static void copy_member(cJSON *to, const cJSON *from, const char *name)
{
    const cJSON *member = ls_json_get(from, name);
    if (member != NULL) {
        cJSON_AddItemToObject(to, name, cJSON_Duplicate(member, true));
    }
}

static void count_up(cJSON *counts, const char *word)
{
    cJSON *member = ls_json_get(counts, word);
    if (member == NULL) {
        cJSON_AddNumberToObject(counts, word, 1);
    } else {
        cJSON_SetNumberValue(member, member->valuedouble + 1);
    }
}

static cJSON *family_of(cJSON *families, const char *name)
{
    cJSON *family;
    ls_json_each(family, families) {
        if (strcmp(ls_json_string(family, "family", ""), name) == 0) {
            return family;
        }
    }
    family = cJSON_CreateObject();
    cJSON_AddStringToObject(family, "family", name);
    cJSON_AddNumberToObject(family, "total", 0);
    cJSON_AddObjectToObject(family, "counts");
    cJSON_AddItemToArray(families, family);
    return family;
}

cJSON *ls_report_summary_conformance(const ls_report_run *run)
{
    cJSON *conformance = cJSON_CreateObject();
    int total = 0, in_claim = 0, passed = 0;
    cJSON *counts = cJSON_CreateObject(), *families = cJSON_CreateArray();
    for (int v = 0; v < run->verdict_count; v++) {
        const ls_report_verdict *verdict = &run->verdict[v];
        const char *word = ls_verdict_name(verdict->code);
        total++;
        in_claim += verdict->in_claim;
        passed += verdict->in_claim && ls_verdict_good(verdict->code);
        count_up(counts, word);
        cJSON *family = family_of(families, verdict->family);
        count_up(family, "total");
        count_up(ls_json_get(family, "counts"), word);
    }
    cJSON_AddNumberToObject(conformance, "total", total);
    cJSON_AddNumberToObject(conformance, "in_claim", in_claim);
    cJSON_AddNumberToObject(conformance, "in_claim_passed", passed);
    cJSON_AddItemToObject(conformance, "counts", counts);
    cJSON_AddItemToObject(conformance, "families", families);
    return conformance;
}

static void add_rank_times(cJSON *row, const ls_report_job *job)
{
    cJSON *ranks = cJSON_AddArrayToObject(row, "ranks");
    for (int k = 0; k < job->record->world; k++) {
        cJSON *rank = ls_json_append_object(ranks);
        cJSON_AddNumberToObject(rank, "rank", k);
        ls_json_add_number(rank, "step_ms_p50", ls_report_speed_rank_ms(job, k, 0.50));
        ls_json_add_number(rank, "step_ms_p90", ls_report_speed_rank_ms(job, k, 0.90));
        ls_json_add_number(rank, "step_ms_p99", ls_report_speed_rank_ms(job, k, 0.99));
        ls_json_add_number(rank, "rss_bytes_max", job->record->rank[k].rss_bytes_max);
    }
}

static void add_measured(cJSON *row, const ls_report_run *run, const ls_report_job *job)
{
    static const char *const HALVES[] = {"agree", "differ", "too few steps"};
    const ls_report_speed *speed = &job->speed;
    ls_stats_add_json(row, "images_per_s", speed->rate);
    ls_json_add_number(row, "step_ms_p50", speed->step.value);
    ls_json_add_number(row, "step_ms_low", speed->step.low);
    ls_json_add_number(row, "step_ms_high", speed->step.high);
    ls_json_add_number(row, "step_ms_p90", speed->p90_ms);
    ls_json_add_number(row, "step_ms_p99", speed->p99_ms);
    cJSON_AddNumberToObject(row, "slowest_rank", speed->slowest_rank);
    ls_json_add_number(row, "rank_spread", speed->spread);
    cJSON *straggler = cJSON_AddObjectToObject(row, "straggler");
    cJSON_AddNumberToObject(straggler, "rank", speed->straggler);
    ls_json_add_number(straggler, "ratio", speed->straggler_ratio.value);
    ls_json_add_number(straggler, "low", speed->straggler_ratio.low);
    ls_json_add_number(straggler, "past", speed->straggler_past);
    cJSON_AddNumberToObject(row, "steps_measured", speed->count);
    cJSON_AddNumberToObject(row, "first_step", (double)speed->first);
    cJSON_AddNumberToObject(row, "last_step", (double)speed->last);
    cJSON_AddNumberToObject(row, "warmup_steps", speed->warmup_count);
    cJSON_AddNumberToObject(row, "skipped_steps", speed->skipped_count);
    cJSON_AddNumberToObject(row, "audited_steps", speed->audited_count);
    cJSON_AddStringToObject(row, "halves", HALVES[speed->halves]);
    cJSON_AddBoolToObject(row, "weak", ls_report_lines_weak(run, job));
    ls_json_add_number(row, "halves_ratio", speed->halves_ratio.value);
    ls_json_add_number(row, "exposed_ms", ls_report_speed_exposed_ms(run, job));
    ls_stats_interval against = ls_report_compare_exposed_ms(run, job);
    ls_stats_add_json(row, "exposed_vs_no_comm_ms", against);
    /* the names of schema 1, written until schema 3 */
    ls_stats_add_json(row, "exposed_by_twin_ms", against);
    ls_json_add_number(row, "data_ms", speed->data_ms);
    ls_json_add_number(row, "forward_ms", speed->forward_ms);
    ls_json_add_number(row, "backward_ms", speed->backward_ms);
    ls_json_add_number(row, "comm_ms", speed->comm_ms);
    ls_json_add_number(row, "optimizer_ms", speed->optimizer_ms);
    ls_stats_add_json(row, "efficiency", speed->efficiency);
    const ls_report_job *base;
    ls_stats_interval strong = ls_report_compare_strong(run, job, &base);
    ls_stats_add_json(row, "strong_efficiency", strong);
    ls_json_add_number(row, "efficiency_ceiling", ls_report_compare_ceiling(run, job));
    ls_json_add_number(row, "first_step_s", speed->first_step_s);
    ls_json_add_number(row, "reduced_bytes", job->record->rank[0].reduced_bytes);
    ls_json_add_number(row, "bus_bytes_per_s", speed->bus_bytes_per_s);
    ls_json_add_number(row, "roofline_share", speed->roofline_share);
    add_rank_times(row, job);
}

static cJSON *job_row(const ls_report_run *run, const ls_report_job *job)
{
    char state[96], reason[160], checks[64];
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "job", job->record->id);
    cJSON_AddStringToObject(row, "label", job->record->label);
    cJSON_AddStringToObject(row, "role", ls_spec_role_name(job->spec->role));
    cJSON_AddStringToObject(row, "arch", job->spec->arch);
    cJSON_AddNumberToObject(row, "image_size", job->spec->image_size);
    cJSON_AddNumberToObject(row, "batch_size", job->spec->batch_size);
    cJSON_AddStringToObject(row, "level", ls_spec_level_name(job->spec->level));
    cJSON_AddStringToObject(row, "half", job->spec->half);
    cJSON_AddStringToObject(row, "dialect", job->spec->dialect);
    cJSON_AddNumberToObject(row, "world", job->spec->world);
    cJSON_AddNumberToObject(row, "nodes", job->spec->nodes);
    cJSON_AddBoolToObject(row, "simulated", ls_spec_is_simulated(job->spec));
    ls_json_add_number(row, "bucket_mb",
                       job->spec->bucket_mb == LS_BUCKET_OWN ? NAN : job->spec->bucket_mb);
    cJSON_AddBoolToObject(row, "oversubscribed", job->record->oversubscribed);
    cJSON_AddBoolToObject(row, "half_emulated", job->record->half_emulated);
    cJSON_AddBoolToObject(row, "checked", job->record->checked);
    if (ls_report_job_no_graph(job) != NULL) {
        cJSON_AddStringToObject(row, "cuda_graph", ls_report_job_no_graph(job));
    } else if (job->record->world > 0 && job->record->rank[0].graph_reported) {
        cJSON_AddTrueToObject(row, "cuda_graph");
    }
    if (ls_report_job_gradient_checks(job, checks)[0] != '\0') {
        cJSON_AddStringToObject(row, "judged_on", checks);
    }
    cJSON_AddStringToObject(row, "state", ls_report_job_state(job, state));
    cJSON_AddStringToObject(row, "not_a_result", ls_report_job_reason(run, job, reason));
    ls_json_add_number(row, "seconds", job->record->seconds);
    if (ls_report_job_has_speed(job)) {
        add_measured(row, run, job);
    }
    return row;
}

ls_status ls_report_summary_write(const ls_report_run *run)
{
    static const char *const COPIED[] = {"title",   "label",   "version", "rated",
                                         "command", "created", "where",   "commit",
                                         "dirty",   "options", "machine"};
    cJSON *summary = cJSON_CreateObject();
    cJSON_AddNumberToObject(summary, "schema", 2);
    for (size_t i = 0; i < sizeof COPIED / sizeof *COPIED; i++) {
        copy_member(summary, run->record, COPIED[i]);
    }
    cJSON *throughput = cJSON_AddArrayToObject(summary, "throughput");
    cJSON *others = cJSON_AddArrayToObject(summary, "other_jobs");
    for (int j = 0; j < run->job_count; j++) {
        bool timed = run->job[j].spec->role == LS_ROLE_THROUGHPUT;
        cJSON_AddItemToArray(timed ? throughput : others, job_row(run, &run->job[j]));
    }
    cJSON_AddItemToObject(summary, "compare", ls_report_compare_json(run));
    cJSON_AddItemToObject(summary, "beside",
                          ls_report_compare_json(run)); /* its name in schema 1 */
    cJSON_AddItemToObject(summary, "gpus", ls_report_gpus_json(run));
    cJSON_AddItemToObject(summary, "conformance", ls_report_summary_conformance(run));
    cJSON_AddItemToObject(summary, "advice", ls_report_advice_make(run));
    char path[PATH_MAX];
    summary_path(path, run);
    return ls_json_write_and_free(path, summary);
}

ls_status ls_report_summary_add_headline(const ls_report_run *run)
{
    char path[PATH_MAX];
    cJSON *summary = NULL;
    summary_path(path, run);
    LS_TRY(ls_json_read_file(path, &summary));
    cJSON_DeleteItemFromObjectCaseSensitive(summary, "headline");
    copy_member(summary, run->record, "headline");
    cJSON_DeleteItemFromObjectCaseSensitive(summary, "findings");
    copy_member(summary, run->record, "findings");
    return ls_json_write_and_free(path, summary);
}
