/* What `lockstep plan` takes from a run: the medians of a job's phases, when its buckets became
 * full, how long their reductions took. */
#include "plan_internal.h"

#include <math.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "reference/model/model.h"
#include "suite/suite.h"

enum { ALIKE = LS_ALIKE_WORLD | LS_ALIKE_NODES | LS_ALIKE_BATCH };

/* ---- the job --------------------------------------------------------------------------------- */

/* Whose events say the job's phases: its own, or those of its phases job. NULL: none. */
static const ls_report_job *find_timed(const ls_report_run *run, const ls_report_job *of)
{
    if (isfinite(of->speed.backward_ms)) {
        return of;
    }
    ls_report_each(job, run, LS_ROLE_PHASES) {
        if (ls_report_job_alike(job, of, ALIKE) && isfinite(job->speed.backward_ms)) {
            return job;
        }
    }
    return NULL;
}

/* With the most ranks, of these with buckets of torch's size. */
static ls_status choose_job(ls_plan_run *run, const char *name)
{
    int best = -1;
    char known[400] = "";
    ls_report_each(job, &run->report, LS_ROLE_THROUGHPUT) {
        int rank = 2 * job->spec->world + (job->spec->bucket_mb == 25);
        if (!ls_report_job_has_speed(job) || find_timed(&run->report, job) == NULL) {
            continue;
        }
        ls_text_add(known, sizeof known, "%s%s", known[0] == '\0' ? "" : ", ", job->record->id);
        if ((name == NULL || ls_text_matches(name, job->record->id)) && rank > best) {
            run->job = job;
            best = rank;
        }
    }
    if (known[0] == '\0') {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s has no timed job whose events, or whose phases job's, have times of "
                           "forward and backward: `lockstep bench` makes them",
                           run->report.directory);
    }
    return run->job != NULL ? LS_OK
                            : ls_log_fail(LS_ERR_USAGE, "--job '%s': allowed: %s", name, known);
}

/* ---- the network and its buckets ------------------------------------------------------------- */

static void options_of(const ls_spec *spec, double bucket_mb, ls_options *out)
{
    ls_options_defaults(out);
    out->opt_level = spec->level > 0 ? (ls_opt_level)spec->level : LS_O0;
    out->half = strcmp(spec->half, "bf16") == 0 ? LS_BF16 : LS_F16;
    out->dialect = strcmp(spec->dialect, "torch") == 0 ? LS_DIALECT_TORCH : LS_DIALECT_APEX;
    out->bucket_cap_mb = fmax(0, bucket_mb); /* 0: the dialect's own */
    out->delay_allreduce = bucket_mb == LS_BUCKET_DELAYED;
}

void ls_plan_run_layout(const ls_plan_run *run, double bucket_mb, ls_bucket_layout *out)
{
    ls_options options;
    ls_dialect_rules rules;
    options_of(run->job->spec, isnan(bucket_mb) ? run->job->spec->bucket_mb : bucket_mb, &options);
    ls_dialect_resolve(&options, 2, &rules);
    if (rules.delay) {
        ls_buckets_first(&rules, &run->network, run->item, out);
    } else {
        ls_buckets_rebuild(&rules, &run->network, run->item, run->order, out);
    }
}

/* Whether the job's ranks had the buckets that follow from its options. */
static ls_status check_layout(const ls_plan_run *run)
{
    const ls_record_rank *rank = &run->job->record->rank[0];
    const cJSON *bucket, *list = ls_json_get(rank->buckets, "buckets");
    int same = 0, index = 0, count = cJSON_GetArraySize(list);
    ls_bucket_layout layout;
    ls_plan_run_layout(run, NAN, &layout);
    ls_json_each(bucket, list) {
        same += index < layout.bucket_count &&
                ls_json_number(bucket, "bytes", 0) == (double)layout.bucket[index].bytes;
        index++;
    }
    bool good = rank->buckets == NULL || (same == count && count == layout.bucket_count);
    ls_buckets_free(&layout);
    return good ? LS_OK
                : ls_log_fail(LS_ERR_UNSUPPORTED,
                              "%s: %d of its %d buckets are those of its network, level, dialect "
                              "and bucket size; a plan needs all",
                              run->job->record->id, same, count);
}

/* Multiply-adds of the gradients of a layer's weight and input, for one image. */
static double backward_cost(const ls_network *network, const ls_layer_extent *extent, int layer)
{
    const ls_layer *l = &network->layer[layer];
    if (l->weight < 0 || network->param[l->weight].role == LS_PARAM_NORM_WEIGHT) {
        return 0;
    }
    double outputs = (double)extent[layer].height * extent[layer].width;
    return (layer > 1 ? 2 : 1) * outputs * /* the image has no gradient */
           (double)ls_shape_count(&network->param[l->weight].shape);
}

/* ready[param]: the share of backward's products that are done when the gradient is there. */
static void share_products(ls_plan_run *run)
{
    const ls_network *network = &run->network;
    ls_layer_extent *extent = ls_list_make((size_t)network->layer_count, sizeof *extent);
    ls_model_extents(network, run->job->spec->image_size, extent);
    double all = 0, done = 0;
    for (int i = 0; i < network->layer_count; i++) {
        all += backward_cost(network, extent, i);
    }
    for (int i = network->layer_count - 1; i >= 0; i--) {
        const ls_layer *layer = &network->layer[i];
        done += backward_cost(network, extent, i);
        for (int k = 0; k < 2; k++) {
            int param = k == 0 ? layer->weight : layer->bias;
            if (param >= 0) {
                run->ready[param] = done / all;
            }
        }
    }
    free(extent);
}

int ls_plan_run_buckets(const ls_plan_run *run, const ls_bucket_layout *layout,
                        ls_plan_bucket *bucket)
{
    for (int b = 0; b < layout->bucket_count; b++) {
        const ls_bucket *from = &layout->bucket[b];
        bucket[b] = (ls_plan_bucket){.bytes = (double)from->bytes, .ready = layout->delayed};
        for (int k = 0; k < from->count; k++) {
            bucket[b].ready = fmax(bucket[b].ready, run->ready[layout->member[from->first + k]]);
        }
    }
    return layout->bucket_count;
}

/* ---- when buckets were full ------------------------------------------------------------------ */

static const ls_tol waited_share =
    LS_TOL(0.01, "of backward: an engine takes the next bucket within some 10 us of the last one's "
                 "end, or of a share of time on busy cores");

/* Of a job's traced steps; buckets that may have waited for the one before do not count. */
typedef struct shares {
    int buckets;
    double *sum, *count; /* [buckets] */
} shares;

static ls_status take_trace(void *context, const cJSON *event, int line)
{
    (void)line;
    shares *s = context;
    const cJSON *span;
    double from_ns = 0, backward_ns = 0, end_ns = -INFINITY;
    int bucket = 0;
    enum { PHASES = 3 }; /* forward, backward, optimizer; they come first */
    const cJSON *spans = ls_json_get(event, "spans");
    if (cJSON_GetArraySize(spans) != PHASES + s->buckets) { /* iteration 1 has other buckets */
        return LS_OK;
    }
    ls_json_each(span, spans) {
        double begun_ns = ls_json_number(span, "from_ns", 0),
               to_ns = ls_json_number(span, "to_ns", 0);
        if (strcmp(ls_json_string(span, "name", ""), "backward") == 0) {
            from_ns = begun_ns;
            backward_ns = to_ns - from_ns;
        } else if (strcmp(ls_json_string(span, "lane", ""), "communication") == 0 &&
                   bucket < s->buckets) {
            bool counts = backward_ns > 0 && begun_ns - end_ns > waited_share.value * backward_ns;
            s->sum[bucket] += counts ? fmin(1, fmax(0, (begun_ns - from_ns) / backward_ns)) : 0;
            s->count[bucket] += counts;
            end_ns = to_ns;
            bucket++;
        }
    }
    return LS_OK;
}

/* Moves the shares by products to those of the trace, on a straight line between two buckets. */
static void follow(ls_plan_run *run, const ls_plan_bucket *bucket, const shares *s)
{
    double from = 0, from_share = 0;
    double *moved = ls_list_make((size_t)run->network.param_count, sizeof *moved);
    for (int b = 0; b <= s->buckets; b++) {
        bool end = b == s->buckets;
        double to = end ? 1 : bucket[b].ready;
        if ((!end && s->count[b] == 0) || to <= from) {
            continue;
        }
        double to_share = end ? 1 : fmax(from_share, s->sum[b] / s->count[b]);
        for (int p = 0; p < run->network.param_count; p++) {
            double part = (run->ready[p] - from) / (to - from);
            moved[p] =
                part > 0 && part <= 1 ? from_share + part * (to_share - from_share) : moved[p];
        }
        run->anchors += !end;
        from = to;
        from_share = to_share;
    }
    memcpy(run->ready, moved, (size_t)run->network.param_count * sizeof *moved);
    free(moved);
}

static ls_status find_ready(ls_plan_run *run)
{
    ls_status status = LS_OK;
    share_products(run);
    ls_report_each(job, &run->report, LS_ROLE_PHASES) {
        if (run->anchors > 0 || job->spec->bucket_mb == LS_BUCKET_DELAYED ||
            !ls_report_job_alike(job, run->job, ALIKE)) {
            continue;
        }
        ls_bucket_layout layout;
        ls_plan_run_layout(run, job->spec->bucket_mb, &layout);
        size_t count = (size_t)layout.bucket_count;
        ls_plan_bucket *bucket = ls_list_make(count, sizeof *bucket);
        double *sums = ls_list_make(2 * count, sizeof *sums);
        shares s = {ls_plan_run_buckets(run, &layout, bucket), sums, sums + count};
        for (int k = 0; k < job->record->world && status == LS_OK; k++) {
            status = ls_record_each_event(job->record, k, "trace", take_trace, &s);
        }
        follow(run, bucket, &s);
        free(bucket);
        free(sums);
        ls_buckets_free(&layout);
    }
    return status;
}

/* ---- the parts of a step --------------------------------------------------------------------- */

static double or_zero(double ms)
{
    return isfinite(ms) ? ms : 0;
}

/* What backward without reductions says about the time that reductions take from it. */
static void compare_alone(ls_plan_run *run, const ls_report_speed *speed)
{
    double bytes = run->job->record->rank[0].reduced_bytes;
    double hidden = fmax(0, 1 - or_zero(speed->exposed_ms) / speed->comm_ms);
    ls_report_each(alone, &run->report, LS_ROLE_NO_COMM) {
        double lost_ms = speed->backward_ms - alone->speed.backward_ms;
        if (run->has_alone || !isfinite(lost_ms) || !(hidden * bytes > 0) ||
            !ls_report_job_alike(alone, run->job, LS_ALIKE_WORLD | LS_ALIKE_BATCH)) {
            continue;
        }
        lost_ms = fmax(0, fmin(lost_ms, hidden * speed->comm_ms));
        run->has_alone = true;
        run->parts.core_ms_per_byte = lost_ms / (hidden * bytes);
        run->parts.backward_ms -= lost_ms;
    }
}

/* What the slowest rank waits in a step after its backward, beyond the rank that waits least: that
 * one came last, and its wait is the reductions' alone. */
static double waited_ms(const ls_report_job *job)
{
    const ls_record *record = job->record;
    const ls_record_rank *slowest = &record->rank[job->speed.slowest_rank];
    double *ms = ls_list_make((size_t)slowest->step_count + 1, sizeof *ms);
    int count = 0;
    for (int i = 0; i < slowest->step_count; i++) {
        const ls_record_step *step = &slowest->step[i];
        double least_ms = step->exposed_ms;
        for (int k = 0; k < record->world; k++) {
            const ls_record_step *other = ls_record_find_step(&record->rank[k], step->step);
            least_ms = fmin(least_ms, other != NULL ? other->exposed_ms : NAN);
        }
        if (step->step >= job->speed.first && !step->skipped && !step->audited) {
            ms[count++] = or_zero(step->exposed_ms - least_ms);
        }
    }
    double median_ms = ls_stats_percentile(ms, count, 0.5);
    free(ms);
    return or_zero(median_ms);
}

static void find_parts(ls_plan_run *run)
{
    const ls_report_job *from = find_timed(&run->report, run->job);
    const ls_report_speed *speed = &from->speed;
    double scale = run->job->speed.step.value / speed->step.value; /* traced steps take longer */
    double exposed_ms = or_zero(speed->exposed_ms);
    ls_plan_parts *p = &run->parts;
    *p = (ls_plan_parts){.data_ms = or_zero(speed->data_ms),
                         .forward_ms = speed->forward_ms,
                         .backward_ms = speed->backward_ms,
                         .optimizer_ms = or_zero(speed->optimizer_ms),
                         .overlapped = 1.0 / fmax(1, run->job->spec->accumulate)};
    p->rest_ms = fmax(0, speed->step.value - ls_plan_model_alone_ms(p) - exposed_ms);
    compare_alone(run, speed);
    run->exposed_ms = scale * exposed_ms;
    p->waited_ms = scale * waited_ms(from);
    p->data_ms *= scale;
    p->forward_ms *= scale;
    p->backward_ms *= scale;
    p->optimizer_ms *= scale;
    p->rest_ms *= scale;
}

/* ---- the link -------------------------------------------------------------------------------- */

typedef struct times {
    ls_plan_time *time;
    int count, capacity, world;
} times;

static void add_time(times *all, double messages, double bytes, double ms)
{
    if (messages > 0 && bytes > 0 && ms > 0) {
        all->time = ls_list_grow(all->time, all->count, &all->capacity, sizeof *all->time);
        all->time[all->count++] = (ls_plan_time){messages, bytes, ms};
    }
}

/* All timed jobs of the same ranks, whose buckets have other sizes: a step's reductions together.
 */
static void fit_own(ls_plan_run *run)
{
    times all = {.world = run->job->record->world};
    ls_report_each(job, &run->report, LS_ROLE_THROUGHPUT) {
        const ls_record_rank *rank = &job->record->rank[0];
        if (all.world > 1 && job->speed.count > 0 &&
            ls_report_job_alike(job, run->job, LS_ALIKE_WORLD | LS_ALIKE_NODES)) {
            add_time(&all, cJSON_GetArraySize(ls_json_get(rank->buckets, "buckets")),
                     rank->reduced_bytes, job->speed.comm_ms);
        }
    }
    (void)ls_plan_model_fit(all.time, all.count, all.world, &run->fit);
    free(all.time);
}

static ls_status take_collective(void *context, const cJSON *event, int line)
{
    (void)line;
    enum { LEAST_BYTES = 128 << 10 }; /* smaller ones are no rings (gloo_collectives.hh) */
    times *all = context;
    double bytes = ls_json_number(event, "bytes", 0);
    if (strcmp(ls_json_string(event, "event", ""), "start") == 0) {
        all->world = ls_json_int(event, "world", 0);
    }
    if (strcmp(ls_json_string(event, "op", ""), "all_reduce") == 0 && bytes >= LEAST_BYTES) {
        add_time(all, 1, bytes, 1e-3 * ls_json_number(event, "us", NAN));
    }
    return LS_OK;
}

ls_status ls_plan_run_read_link(const char *directory, ls_plan_fit *out)
{
    times all = {0};
    LS_TEXT(path, PATH_MAX, "%s/rank0.jsonl", directory);
    ls_status status = ls_json_each_line(path, take_collective, &all);
    if (status == LS_OK && !ls_plan_model_fit(all.time, all.count, all.world, out)) {
        status = ls_log_fail(LS_ERR_USAGE,
                             "%s: %d times of all_reduce among %d ranks; needed: two sizes from "
                             "128 KB on (lockstep-collectives --ops all_reduce --counts "
                             "65536,1048576,8388608)",
                             path, all.count, all.world);
    }
    free(all.time);
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static ls_status read_job(ls_plan_run *run)
{
    const ls_spec *spec = run->job->spec;
    ls_options options;
    ls_precision precision;
    ls_dialect_rules rules;
    LS_TRY(ls_model_build(spec->arch, spec->num_classes, spec->image_size, &run->network));
    size_t params = (size_t)run->network.param_count;
    run->item = ls_list_make(params, sizeof *run->item);
    run->order = ls_list_make(params, sizeof *run->order);
    run->ready = ls_list_make(params, sizeof *run->ready);
    options_of(spec, spec->bucket_mb, &options);
    ls_dialect_resolve(&options, 2, &rules);
    ls_precision_resolve(&options, &rules, &precision);
    ls_buckets_items(&run->network, &precision, run->item);
    ls_model_backward_order(&run->network, run->order);
    LS_TRY(check_layout(run));
    LS_TRY(find_ready(run));
    find_parts(run);
    fit_own(run);
    const cJSON *start = run->job->record->rank[0].start;
    run->gloo = strcmp(ls_json_string(start, "engine", ""), "gloo") == 0;
    return LS_OK;
}

ls_status ls_plan_run_read(const char *directory, const char *name, ls_plan_run *out)
{
    ls_plan_run run = {0};
    LS_TRY(ls_report_load(directory, &run.report));
    ls_status status = choose_job(&run, name);
    LS_THEN(status, read_job(&run));
    if (status == LS_OK) {
        *out = run;
    } else {
        ls_plan_run_free(&run);
    }
    return status;
}

void ls_plan_run_free(ls_plan_run *run)
{
    ls_model_free(&run->network);
    free(run->item);
    free(run->order);
    free(run->ready);
    ls_report_load_free(&run->report);
}
