#include "job.h"
#include "kernels/core/list.h"

#include <math.h>
#include <string.h>

static double *room_for(int count)
{
    return ls_list_make((size_t)count + 1, sizeof(double));
}

/* Ranks that do not reduce do not wait for each other: when the first has ended, its cores help the
 * others, whose steps from then on say nothing about a world of this size. Infinite where ranks
 * keep step. */
static double crowd_ends_ns(const ls_report_job *job)
{
    double first_ns = INFINITY;
    for (int k = 0; k < job->record->world && job->spec->role == LS_ROLE_NO_COMM; k++) {
        const ls_record_rank *rank = &job->record->rank[k];
        if (rank->step_count > 0) {
            first_ns = fmin(first_ns, rank->step[rank->step_count - 1].at_ns);
        }
    }
    return first_ns;
}

/* A step that was skipped did no optimizer work, a warm-up step still pays for plans and caches,
 * and an audited one took the time of the audit, too. */
static bool is_measured(const ls_report_job *job, const ls_record_rank *rank, int index)
{
    const ls_record_step *step = &rank->step[index];
    return index >= job->spec->warmup_steps && !step->skipped && !step->audited &&
           step->total_ms > 0 && !(step->at_ns > job->crowd_ends_ns);
}

static double window_mean_ms(const ls_report_job *job, const ls_record_rank *rank)
{
    double sum = 0;
    int count = 0;
    for (int i = 0; i < rank->step_count; i++) {
        sum += is_measured(job, rank, i) ? rank->step[i].total_ms : 0;
        count += is_measured(job, rank, i);
    }
    return count > 0 ? sum / count : 0;
}

static int slowest_rank(const ls_report_job *job)
{
    int slowest = 0;
    for (int k = 1; k < job->record->world; k++) {
        if (window_mean_ms(job, &job->record->rank[k]) >
            window_mean_ms(job, &job->record->rank[slowest])) {
            slowest = k;
        }
    }
    return slowest;
}

/* Images of all ranks in one step; a rank whose event does not say has its full batch. */
static double images_of(const ls_report_job *job, int index)
{
    double images = 0;
    for (int k = 0; k < job->record->world; k++) {
        const ls_record_rank *rank = &job->record->rank[k];
        bool said = index < rank->step_count && rank->step[index].images > 0;
        images += said ? rank->step[index].images : job->spec->batch_size;
    }
    return images;
}

static void take_window(ls_report_job *job)
{
    ls_report_speed *speed = &job->speed;
    const ls_record_rank *rank = &job->record->rank[speed->slowest_rank];
    speed->step_ms = room_for(rank->step_count);
    speed->images_per_s = room_for(rank->step_count);
    for (int i = 0; i < rank->step_count; i++) {
        speed->warmup_count += i < job->spec->warmup_steps;
        speed->skipped_count += i >= job->spec->warmup_steps && rank->step[i].skipped;
        speed->audited_count += i >= job->spec->warmup_steps && rank->step[i].audited;
        if (!is_measured(job, rank, i)) {
            continue;
        }
        speed->first = speed->count == 0 ? rank->step[i].step : speed->first;
        speed->last = rank->step[i].step;
        speed->step_ms[speed->count] = rank->step[i].total_ms;
        speed->images_per_s[speed->count++] = images_of(job, i) / rank->step[i].total_ms * 1e3;
    }
    speed->rate = ls_stats_median(speed->images_per_s, speed->count, job->record->id);
    speed->step = ls_stats_median(speed->step_ms, speed->count, job->record->id);
    speed->p90_ms = ls_stats_percentile(speed->step_ms, speed->count, 0.90);
    speed->p99_ms = ls_stats_percentile(speed->step_ms, speed->count, 0.99);
    speed->halves = ls_stats_compare_halves(speed->step_ms, speed->count, job->record->id,
                                            &speed->halves_ratio);
}

/* Percentile of a time over a rank's measured steps. `offset` is the member's place in a step. */
static double percentile(const ls_report_job *job, int k, size_t offset, double fraction)
{
    const ls_record_rank *rank = &job->record->rank[k];
    double *ms = room_for(rank->step_count);
    int count = 0;
    for (int i = 0; i < rank->step_count; i++) {
        double value = *(const double *)((const char *)&rank->step[i] + offset);
        if (is_measured(job, rank, i) && isfinite(value)) {
            ms[count++] = value;
        }
    }
    double value = ls_stats_percentile(ms, count, fraction);
    free(ms);
    return value;
}

double ls_report_speed_rank_ms(const ls_report_job *job, int rank, double fraction)
{
    return percentile(job, rank, offsetof(ls_record_step, total_ms), fraction);
}

static double spread_of(const ls_report_job *job)
{
    double least = INFINITY, greatest = 0;
    for (int k = 0; k < job->record->world; k++) {
        double p50_ms = ls_report_speed_rank_ms(job, k, 0.50);
        least = fmin(least, p50_ms);
        greatest = fmax(greatest, p50_ms);
    }
    return (greatest - least) / least;
}

/* A rank's own time of a step: ranks wait for the last one, and so have equal totals. */
static double own_ms(const ls_report_job *job, int rank, int index)
{
    const ls_record_rank *of = &job->record->rank[rank];
    if (index >= of->step_count || !is_measured(job, of, index)) {
        return NAN;
    }
    return of->step[index].total_ms - of->step[index].exposed_ms;
}

/* Adds a step of every rank, over the median of all (of two the faster), to over[world][steps];
 * whether each rank has such a time. */
static bool add_over_others(const ls_report_job *job, int index, int steps, int count, double *over)
{
    int world = job->record->world;
    double *own = room_for(world);
    bool whole = true;
    for (int k = 0; k < world; k++) {
        own[k] = own_ms(job, k, index);
        whole = whole && own[k] > 0;
    }
    double others = ls_stats_percentile(own, world, world == 2 ? 0 : 0.5);
    for (int k = 0; k < world && whole; k++) {
        over[(size_t)k * (size_t)steps + (size_t)count] = own[k] / others;
    }
    free(own);
    return whole;
}

static void find_straggler(ls_report_job *job)
{
    ls_report_speed *speed = &job->speed;
    int world = job->record->world, steps = job->record->rank[0].step_count, count = 0;
    double *all = room_for(world * steps);
    for (int i = 0; i < steps && world > 1; i++) {
        count += add_over_others(job, i, steps, count, all);
    }
    for (int k = 0; k < world && count > 0; k++) {
        const double *over = all + (size_t)k * (size_t)steps;
        ls_stats_interval ratio = ls_stats_median(over, count, job->record->id);
        if (!(ratio.value <= speed->straggler_ratio.value)) {
            speed->straggler = k;
            speed->straggler_ratio = ratio;
            speed->straggler_past = ls_stats_percentile(over + count / 2, count - count / 2, 0.5) /
                                    ls_stats_percentile(over, count / 2, 0.5);
        }
    }
    free(all);
}

static double phase_ms(const ls_report_job *job, size_t offset)
{
    return percentile(job, job->speed.slowest_rank, offset, 0.50);
}

static void take_phases(ls_report_job *job)
{
    ls_report_speed *speed = &job->speed;
    speed->data_ms = phase_ms(job, offsetof(ls_record_step, data_ms));
    speed->forward_ms = phase_ms(job, offsetof(ls_record_step, forward_ms));
    speed->backward_ms = phase_ms(job, offsetof(ls_record_step, backward_ms));
    speed->comm_ms = phase_ms(job, offsetof(ls_record_step, comm_ms));
    speed->exposed_ms = phase_ms(job, offsetof(ls_record_step, exposed_ms));
    speed->optimizer_ms = phase_ms(job, offsetof(ls_record_step, optimizer_ms));
    double bytes = job->record->rank[0].reduced_bytes, world = job->spec->world;
    if (bytes > 0 && world > 1 && speed->comm_ms > 0) {
        speed->bus_bytes_per_s = bytes * 2 * (world - 1) / world / (speed->comm_ms * 1e-3);
    }
}

int ls_report_speed_threads(const ls_report_run *run, const ls_report_job *job)
{
    int cores = (int)ceil(ls_json_number(ls_json_get(run->record, "machine"), "cores", 0));
    int each = job->record->world > 0 ? job->record->rank[0].threads : 0,
        all = each * job->spec->world;
    return cores > 0 && all > cores ? cores : all;
}

/* run.json may hold "roofline": [{"arch","image_size","batch_size","level","threads",
 * "type","images_per_s"}]: the rate of the arithmetic alone in this run; an absent level fits all.
 * With "threads" it is of all that the world's ranks have together, and in the type that the
 * products have (f32, also where half is emulated), else of one rank. Of several
 * measurements the best counts: other load makes it smaller, nothing makes it larger. */
static double roofline_of(const ls_report_run *run, const ls_report_job *job)
{
    double best = NAN;
    const char *level = ls_spec_level_name(job->spec->level);
    bool bf16 = job->spec->level > 0 && strcmp(job->spec->half, "bf16") == 0;
    const char *type = bf16 && !job->record->half_emulated ? "bf16" : "f32";
    const cJSON *entry;
    ls_json_each(entry, ls_json_get(run->record, "roofline")) {
        bool fits = strcmp(ls_json_string(entry, "arch", ""), job->spec->arch) == 0 &&
                    ls_json_integer(entry, "image_size", 0) == job->spec->image_size &&
                    ls_json_integer(entry, "batch_size", 0) == job->spec->batch_size &&
                    strcmp(ls_json_string(entry, "level", level), level) == 0;
        int threads = ls_json_int(entry, "threads", 0);
        fits = fits && (threads == 0 || strcmp(ls_json_string(entry, "type", "f32"), type) == 0);
        if (fits && (threads == 0 || threads == ls_report_speed_threads(run, job))) {
            double rate = ls_json_number(entry, "images_per_s", NAN);
            best = fmax(best, threads == 0 ? job->spec->world * rate : rate);
        }
    }
    return best;
}

const ls_report_job *ls_report_speed_base(const ls_report_run *run, const ls_report_job *job)
{
    const ls_report_job *base = NULL;
    ls_report_each(other, run, job->spec->role) {
        bool same = other->spec->world == 1 && ls_report_job_alike(other, job, LS_ALIKE_BATCH) &&
                    ls_report_job_has_speed(other);
        if (same && other->spec->bucket_mb == job->spec->bucket_mb) {
            return other;
        }
        base = same && base == NULL ? other : base;
    }
    return base; /* with one rank the bucket size matters least */
}

static ls_stats_interval efficiency_of(const ls_report_job *job, const ls_report_job *base)
{
    ls_stats_interval ratio = {1, 1, 1}; /* the base against itself, exactly */
    if (job != base) {
        ratio = ls_stats_ratio(job->speed.images_per_s, job->speed.count, base->speed.images_per_s,
                               base->speed.count, job->record->id);
    }
    return ls_stats_divided(ratio, job->spec->world);
}

/* Rank 0 writes the dumps for the judge while the others wait for it: that time is not the
 * trainer's. */
static double first_step_s(const ls_report_job *job)
{
    double last_ns = NAN, instrument_ms = 0;
    for (int k = 0; k < job->record->world; k++) {
        const ls_record_rank *rank = &job->record->rank[k];
        if (rank->step_count == 0 || rank->step[0].audited || isnan(rank->step[0].at_ns)) {
            return NAN;
        }
        last_ns = fmax(last_ns, rank->step[0].at_ns);
        instrument_ms = fmax(instrument_ms, rank->step[0].instrument_ms);
    }
    return (last_ns - job->record->started_ns) * 1e-9 - instrument_ms * 1e-3;
}

void ls_report_speed_compute(ls_report_run *run)
{
    for (int j = 0; j < run->job_count; j++) {
        ls_report_job *job = &run->job[j];
        ls_report_speed *speed = &job->speed;
        speed->bus_bytes_per_s = speed->roofline_share = speed->first_step_s = NAN;
        speed->efficiency = speed->straggler_ratio = (ls_stats_interval){NAN, NAN, NAN};
        speed->straggler_past = NAN;
        if (job->record->state != LS_RECORD_DONE || job->record->world == 0) {
            continue;
        }
        speed->first_step_s = first_step_s(job);
        job->crowd_ends_ns = crowd_ends_ns(job);
        speed->slowest_rank = slowest_rank(job);
        take_window(job);
        speed->spread = spread_of(job);
        find_straggler(job);
        take_phases(job);
    }
    for (int j = 0; j < run->job_count; j++) {
        ls_report_job *job = &run->job[j];
        const ls_report_job *base = ls_report_speed_base(run, job);
        if (!ls_report_job_has_speed(job)) {
            continue;
        }
        if (base != NULL) {
            job->speed.efficiency = efficiency_of(job, base);
        }
        double share = job->speed.rate.value / roofline_of(run, job);
        /* Above 1 the bound was measured under other load: it says nothing about the job. */
        job->speed.roofline_share = share <= 1 ? share : NAN;
    }
}

void ls_report_speed_free(ls_report_speed *speed)
{
    free(speed->step_ms);
    free(speed->images_per_s);
}

double ls_report_speed_exposed_ms(const ls_report_run *run, const ls_report_job *job)
{
    if (isfinite(job->speed.exposed_ms) && job->speed.count > 0) {
        return job->speed.exposed_ms;
    }
    ls_report_each(other, run, LS_ROLE_PHASES) {
        if (ls_report_job_alike(other, job, LS_ALIKE_ALL) && ls_report_job_has_speed(other)) {
            return other->speed.exposed_ms;
        }
    }
    return NAN;
}
