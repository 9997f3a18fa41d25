#include "job.h"

#include <math.h>
#include <string.h>

#include "kernels/core/text.h"

const ls_report_job *ls_report_job_after(const ls_report_run *run, ls_role role,
                                         const ls_report_job *job)
{
    for (int j = job == NULL ? 0 : (int)(job - run->job) + 1; j < run->job_count; j++) {
        if (role == LS_ROLE_COUNT || run->job[j].spec->role == role) {
            return &run->job[j];
        }
    }
    return NULL;
}

int ls_report_job_select(const ls_report_run *run, ls_role role, unsigned sweep,
                         const ls_report_job **jobs, int room)
{
    int count = 0;
    ls_report_each(job, run, role) {
        bool swept = sweep == 0 || (job->spec->sweep & sweep) != 0;
        if (count < room && swept && ls_report_job_has_speed(job)) {
            jobs[count++] = job;
        }
    }
    return count;
}

const char *ls_report_job_ranks(const ls_report_job *job)
{
    return job->spec->world == 1 ? "rank" : "ranks";
}

const char *ls_report_job_level(const ls_report_job *job, char text[24])
{
    int level = job->spec->level;
    bool plain = strcmp(job->spec->half, "fp16") == 0 || level == 0;
    ls_text_put(text, 24, "%s%s%s", level >= 0 ? ls_spec_level_name(level) : "?", plain ? "" : " ",
                plain ? "" : job->spec->half);
    return text;
}

const char *ls_report_job_bucket(const ls_report_job *job, char text[24])
{
    double bucket_mb = job->spec->bucket_mb;
    if (bucket_mb == LS_BUCKET_OWN) {
        return strcpy(text, "-");
    }
    if (bucket_mb == LS_BUCKET_DELAYED) {
        return strcpy(text, "delayed");
    }
    ls_text_put(text, 24, "%g MB", bucket_mb);
    return text;
}

static const char *state_word(ls_record_state state)
{
    switch (state) {
    case LS_RECORD_DONE:
        return "done";
    case LS_RECORD_FAILED:
        return ls_verdict_name(LS_FAIL);
    case LS_RECORD_KILLED:
        return ls_verdict_name(LS_CRASH);
    case LS_RECORD_TIMED_OUT:
        return ls_verdict_name(LS_TIMEOUT);
    case LS_RECORD_STOPPED:
        return "stopped before its end";
    case LS_RECORD_NOT_STARTED:
        return "INFRA: not started";
    case LS_RECORD_UNKNOWN:
        break;
    }
    return "not finished: no job.json";
}

const char *ls_report_job_state(const ls_report_job *job, char text[96])
{
    const ls_record *record = job->record;
    const char *word = state_word(record->state);
    bool blamed = record->first_rank >= 0 &&
                  (record->state == LS_RECORD_FAILED || record->state == LS_RECORD_KILLED);
    if (!blamed) {
        ls_text_put(text, 96, "%s", word);
    } else if (record->signal != 0) {
        ls_text_put(text, 96, "%s rank %d, signal %d", word, record->first_rank, record->signal);
    } else {
        ls_text_put(text, 96, "%s rank %d, exit code %d (%s)", word, record->first_rank,
                    record->code, ls_status_name((ls_status)record->code));
    }
    return text;
}

const char *ls_report_job_no_graph(const ls_report_job *job)
{
    /* what one rank does all do */
    const ls_record *record = job->record;
    bool reported = record->world > 0 && record->rank[0].no_graph[0] != '\0';
    return reported ? record->rank[0].no_graph : NULL;
}

const char *ls_report_job_gradient_checks(const ls_report_job *job, char text[64])
{
    static const char *const CHECKS[] = {"", "FP64 oracle", "FP64 oracle on the GPU",
                                         "FP64 samples", "FP32 step 1"};
    const ls_record *record = job->record;
    bool known = record->gradient_check > 0 &&
                 record->gradient_check < (int)(sizeof CHECKS / sizeof *CHECKS);
    bool both = record->audited && known;
    ls_text_put(text, 64, "%s%s%s", record->audited ? CHECKS[3] : "", both ? ", " : "",
                known ? CHECKS[record->gradient_check] : "");
    return text;
}

double ls_report_job_peak_bytes(const ls_report_job *job)
{
    double peak = NAN;
    for (int k = 0; k < job->record->world; k++) {
        peak = fmax(peak, job->record->rank[k].rss_bytes_max);
    }
    return peak;
}

bool ls_report_job_alike(const ls_report_job *a, const ls_report_job *b, unsigned further)
{
    const ls_spec *x = a->spec, *y = b->spec;
    return strcmp(x->arch, y->arch) == 0 && x->level == y->level && strcmp(x->half, y->half) == 0 &&
           x->image_size == y->image_size &&
           ((further & LS_ALIKE_WORLD) == 0 || x->world == y->world) &&
           ((further & LS_ALIKE_NODES) == 0 || x->nodes == y->nodes) &&
           ((further & LS_ALIKE_BATCH) == 0 || x->batch_size == y->batch_size) &&
           ((further & LS_ALIKE_BUCKET) == 0 || x->bucket_mb == y->bucket_mb);
}

bool ls_report_job_has_speed(const ls_report_job *job)
{
    return job->record->state == LS_RECORD_DONE && job->speed.count > 0;
}

bool ls_report_job_is_result(const ls_report_job *job)
{
    return ls_report_job_has_speed(job) && job->record->checked && isfinite(job->speed.rate.value);
}

bool ls_report_job_in_verdict(const ls_report_job *job, const ls_report_verdict *verdict)
{
    const cJSON *entry;
    ls_json_each(entry, ls_json_get(verdict->json, "jobs")) {
        if (cJSON_IsString(entry) && strcmp(entry->valuestring, job->record->id) == 0) {
            return true;
        }
    }
    return false;
}

const char *ls_report_job_reason(const ls_report_run *run, const ls_report_job *job, char text[160])
{
    char state[96];
    text[0] = '\0';
    if (ls_report_job_is_result(job)) {
        return text;
    }
    if (job->record->state != LS_RECORD_DONE) {
        ls_text_put(text, 160, "%s", ls_report_job_state(job, state));
        return text;
    }
    if (!ls_report_job_has_speed(job)) {
        return strcpy(text, "no step after the warm-up has a time");
    }
    for (int v = 0; v < run->verdict_count; v++) {
        const ls_report_verdict *verdict = &run->verdict[v];
        if (verdict->code != LS_PASS && ls_report_job_in_verdict(job, verdict)) {
            ls_text_put(text, 160, "%s %s", ls_verdict_name(verdict->code), verdict->id);
            return text;
        }
    }
    return strcpy(text, job->record->judged ? "its checks did not pass" : "not checked");
}
