#include "figures.h"

#include <math.h>
#include <string.h>

#include "page.h"
#include "kernels/core/text.h"

enum { SENTENCE_BYTES = 1024, JOBS_MAX = 256 };

static const ls_stats_interval unknown = {NAN, NAN, NAN};

/* ---- two jobs -------------------------------------------------------------------------------- */

ls_stats_interval ls_report_compare_ratio(const ls_report_job *a, const ls_report_job *b)
{
    return ls_stats_ratio(a->speed.images_per_s, a->speed.count, b->speed.images_per_s,
                          b->speed.count, a->record->id);
}

const ls_report_job *ls_report_compare_fastest(const ls_report_job *const *jobs, int count,
                                               bool half_only)
{
    const ls_report_job *fastest = NULL;
    for (int i = 0; i < count; i++) {
        bool fits = ls_report_job_is_result(jobs[i]) && (!half_only || jobs[i]->spec->level > 0);
        if (fits && (fastest == NULL || jobs[i]->speed.rate.value > fastest->speed.rate.value)) {
            fastest = jobs[i];
        }
    }
    return fastest;
}

/* The interval covers the steps of one run of each job, and starting the same job again moves its
 * median too: by 0.2 % over five runs of a tuned 8-GPU job (MLPerf v4.0, ResNet on H200), by more
 * on a machine that is shared. Below this no difference between settings is named. */
static const double DIFFERENCE_MIN = 0.01;

bool ls_report_compare_is_resolved(ls_stats_interval ratio)
{
    return (ratio.low > 1 || ratio.high < 1) && fabs(ratio.value - 1) > DIFFERENCE_MIN;
}

int ls_report_compare_best_buckets(const ls_report_run *run, const ls_report_job **jobs, int room,
                                   const ls_report_job **fastest)
{
    const ls_report_job *all[JOBS_MAX];
    int count = ls_report_job_select(run, LS_ROLE_THROUGHPUT, LS_SWEEP_BUCKET, all, JOBS_MAX);
    int best = 0;
    *fastest = ls_report_compare_fastest(all, count, false);
    for (int i = 0; i < count && best < room; i++) {
        if (*fastest != NULL && ls_report_job_is_result(all[i]) &&
            (all[i] == *fastest ||
             !ls_report_compare_is_resolved(ls_report_compare_ratio(*fastest, all[i])))) {
            jobs[best++] = all[i];
        }
    }
    return best;
}

const ls_report_job *ls_report_compare_largest(const ls_report_job *const *jobs, int count)
{
    const ls_report_job *largest = NULL;
    for (int i = 0; i < count; i++) {
        bool fits = ls_report_job_is_result(jobs[i]) && isfinite(jobs[i]->speed.efficiency.value) &&
                    jobs[i]->spec->nodes == 1 && jobs[i]->spec->world > 1;
        if (fits && (largest == NULL || jobs[i]->spec->world > largest->spec->world)) {
            largest = jobs[i];
        }
    }
    return largest;
}

void ls_report_compare_note_threads(const ls_report_run *run, const ls_report_job *job, char *text,
                                    size_t bytes)
{
    const ls_report_job *base = ls_report_speed_base(run, job);
    int alone = base != NULL ? base->record->rank[0].threads : 0,
        each = job->record->rank[0].threads;
    if (alone > each && each > 0) {
        ls_text_add(
            text, bytes,
            " One rank alone computed with %d threads, each of %d with %d: the same cores, so "
            "the ideal line is out of reach.",
            alone, job->spec->world, each);
    }
}

/* ---- exposed communication ------------------------------------------------------------------- */

static const ls_report_job *no_comm_of(const ls_report_run *run, const ls_report_job *job)
{
    ls_report_each(no_comm, run, LS_ROLE_NO_COMM) {
        if (ls_report_job_alike(no_comm, job, LS_ALIKE_WORLD | LS_ALIKE_BATCH) &&
            ls_report_job_has_speed(no_comm)) {
            return no_comm;
        }
    }
    return NULL;
}

ls_stats_interval ls_report_compare_exposed_ms(const ls_report_run *run, const ls_report_job *job)
{
    const ls_report_job *no_comm = no_comm_of(run, job);
    if (no_comm == NULL || !ls_report_job_has_speed(job)) {
        return unknown;
    }
    ls_stats_interval ratio = ls_stats_ratio(no_comm->speed.step_ms, no_comm->speed.count,
                                             job->speed.step_ms, job->speed.count, job->record->id);
    double step_ms = job->speed.step.value;
    return (ls_stats_interval){step_ms * (1 - ratio.value), step_ms * (1 - ratio.high),
                               step_ms * (1 - ratio.low)};
}

/* ---- a world of one, and strong scaling ------------------------------------------------------ */

ls_stats_interval ls_report_compare_strong(const ls_report_run *run, const ls_report_job *job,
                                           const ls_report_job **base)
{
    *base = NULL;
    ls_report_each(other, run, LS_ROLE_STRONG_SCALING) {
        if (other->spec->world == 1 && ls_report_job_alike(other, job, 0) &&
            other->spec->batch_size == job->spec->world * job->spec->batch_size &&
            ls_report_job_is_result(other) && ls_report_job_is_result(job)) {
            *base = other;
        }
    }
    if (*base == NULL) {
        return unknown;
    }
    return ls_stats_divided(ls_report_compare_ratio(job, *base), job->spec->world);
}

/* The job of that role and the row that differs from it in what the role is for; NULL without both.
 */
static void find_pair(const ls_report_run *run, ls_role role, const ls_report_job **base,
                      const ls_report_job **row)
{
    *base = *row = NULL;
    ls_report_each(own, run, role) {
        ls_report_each(other, run, LS_ROLE_THROUGHPUT) {
            if (ls_report_job_alike(own, other, LS_ALIKE_ALL) && ls_report_job_is_result(own) &&
                ls_report_job_is_result(other)) {
                *base = own;
                *row = other;
            }
        }
    }
}

ls_stats_interval ls_report_compare_ddp(const ls_report_run *run, const ls_report_job **with,
                                        const ls_report_job **without)
{
    find_pair(run, LS_ROLE_DDP_WORLD1, with, without);
    return *with == NULL ? unknown : ls_report_compare_ratio(*with, *without);
}

ls_stats_interval ls_report_compare_fused(const ls_report_run *run, const ls_report_job **with,
                                          const ls_report_job **without)
{
    find_pair(run, LS_ROLE_UNFUSED, without, with);
    return *with == NULL ? unknown : ls_report_compare_ratio(*with, *without);
}

bool ls_report_compare_loader(const ls_report_run *run, ls_report_loader *out)
{
    const double waits = 0.02; /* of a step: below, the loader keeps up */
    memset(out, 0, sizeof *out);
    find_pair(run, LS_ROLE_LOADER, &out->reading, &out->resident);
    if (out->reading == NULL) {
        return false;
    }
    const cJSON *start = out->reading->record->rank[0].start;
    out->ratio = ls_report_compare_ratio(out->reading, out->resident);
    out->workers = ls_json_int(ls_json_get(start, "options"), "workers", 0);
    double data_ms = out->reading->speed.data_ms;
    out->waited = isfinite(data_ms) ? data_ms / out->reading->speed.step.value : 0;
    out->workers_needed =
        out->waited > waits ? (int)ceil(out->workers / out->ratio.value) : out->workers;
    return true;
}

double ls_report_compare_ceiling(const ls_report_run *run, const ls_report_job *job)
{
    int each = job->record->world > 0 ? job->record->rank[0].threads : 0;
    return each == 0 ? 1 : (double)ls_report_speed_threads(run, job) / (each * job->spec->world);
}

/* ---- in words -------------------------------------------------------------------------------- */

static void add_sentence(cJSON *list, const char *sentence)
{
    cJSON_AddItemToArray(list, cJSON_CreateString(sentence));
}

static const ls_report_job *middle_of(const ls_report_run *run)
{
    const ls_report_job *middle = NULL;
    ls_report_each(job, run, LS_ROLE_THROUGHPUT) {
        if (job->spec->nodes == 1 && ls_report_job_is_result(job) && no_comm_of(run, job) != NULL &&
            (middle == NULL || job->spec->world > middle->spec->world ||
             (job->spec->world == middle->spec->world &&
              (job->spec->sweep & LS_SWEEP_WORLD) != 0))) {
            middle = job;
        }
    }
    return middle;
}

/* Interprets the two figures together: waiting as measured within the job, and the difference to
 * the job without reduction. */
static void explain_exposed(const ls_report_job *job, double waited_ms, ls_stats_interval against,
                            char *text)
{
    char number[32];
    if (!isfinite(against.low)) {
        ls_text_add(text, SENTENCE_BYTES, " (too few steps to be sure).");
    } else if (against.high < 0) {
        ls_text_add(text, SENTENCE_BYTES,
                    ", which reductions cannot cause: other load changed between the two jobs; "
                    "measure them again.");
    } else if (against.low <= 0) {
        ls_text_add(text, SENTENCE_BYTES,
                    ": the noise between the two jobs is larger than what communication costs.");
    } else if (against.low <= waited_ms && waited_ms <= against.high) {
        ls_text_add(text, SENTENCE_BYTES, ": the two agree.");
    } else if (against.value > waited_ms) {
        ls_text_add(text, SENTENCE_BYTES,
                    ": %s ms more than the wait, the cost of reductions during backward "
                    "(cores, memory, ranks in lockstep).",
                    ls_report_lines_number(against.value - waited_ms, number));
    } else {
        ls_text_add(text, SENTENCE_BYTES,
                    ": %s ms less than the wait, as when waiting ranks leave their cores to "
                    "others%s.",
                    ls_report_lines_number(waited_ms - against.value, number),
                    job->record->oversubscribed ? " (here they share them)" : "");
    }
}

static void add_exposed(const ls_report_run *run, cJSON *list)
{
    const ls_report_job *job = middle_of(run);
    if (job == NULL) {
        return;
    }
    double waited_ms = ls_report_speed_exposed_ms(run, job), step_ms = job->speed.step.value;
    ls_stats_interval against = ls_report_compare_exposed_ms(run, job);
    bool longer = against.value < 0;
    char text[SENTENCE_BYTES] = "", a[32], b[32], c[32];
    ls_text_add(text, sizeof text,
                "Exposed communication (%s): a step takes %s ms, of which %s ms are spent "
                "waiting for reductions; without reduction a step of the same world is %s ms %s",
                job->record->label, ls_report_lines_number(step_ms, a),
                ls_report_lines_number(waited_ms, b),
                ls_report_lines_number(fabs(against.value), c), longer ? "longer" : "shorter");
    if (isfinite(against.low)) {
        ls_text_add(text, sizeof text, " [%s, %s]",
                    ls_report_lines_number(longer ? -against.high : against.low, a),
                    ls_report_lines_number(longer ? -against.low : against.high, b));
    }
    explain_exposed(job, waited_ms, against, text);
    add_sentence(list, text);
}

static void append_interval(char *text, ls_stats_interval value)
{
    if (isfinite(value.low)) {
        ls_text_add(text, SENTENCE_BYTES, " [%.2f, %.2f]", value.low, value.high);
    }
}

static void add_ddp(const ls_report_run *run, cJSON *list)
{
    const ls_report_job *with, *without;
    ls_stats_interval ratio = ls_report_compare_ddp(run, &with, &without);
    char text[SENTENCE_BYTES] = "", level[24], difference[128];
    if (with == NULL) {
        return;
    }
    ls_stats_sentence(ratio, difference, sizeof difference);
    ls_text_add(text, sizeof text, "DDP on one rank (%s): %.3f x the speed without it",
                ls_report_job_level(with, level), ratio.value);
    append_interval(text, ratio);
    if (ratio.low > 1) {
        ls_text_add(text, sizeof text,
                    ", which DDP cannot cause: other load changed between the two jobs; measure "
                    "them again.");
    } else {
        ls_text_add(text, sizeof text, ", %s.", difference);
    }
    add_sentence(list, text);
}

static void add_loader(const ls_report_run *run, cJSON *list)
{
    ls_report_loader loader;
    if (!ls_report_compare_loader(run, &loader)) {
        return;
    }
    char text[SENTENCE_BYTES] = "", difference[128];
    const char *plural = loader.workers == 1 ? "" : "s";
    ls_stats_sentence(loader.ratio, difference, sizeof difference);
    ls_text_add(
        text, sizeof text,
        "Images from files (%s), compared with rows whose batches stay on the GPU: %s; a step "
        "waits %.0f %% of its time for %d worker%s per rank",
        loader.resident->record->label, difference, 100 * loader.waited, loader.workers, plural);
    if (loader.workers_needed > loader.workers) {
        ls_text_add(text, sizeof text, ", and about %d would keep up", loader.workers_needed);
    }
    ls_text_add(text, sizeof text, ".");
    add_sentence(list, text);
}

static void add_fused(const ls_report_run *run, cJSON *list)
{
    const ls_report_job *with, *without;
    ls_stats_interval ratio = ls_report_compare_fused(run, &with, &without);
    char text[SENTENCE_BYTES] = "", difference[128];
    if (with == NULL) {
        return;
    }
    ls_stats_sentence(ratio, difference, sizeof difference);
    ls_text_add(text, sizeof text, "Fused products (%s), compared with the same job without: %s.",
                with->record->label, difference);
    add_sentence(list, text);
}

static void add_scaling(const ls_report_run *run, cJSON *list)
{
    const ls_report_job *jobs[JOBS_MAX], *base = NULL;
    int count = ls_report_job_select(run, LS_ROLE_THROUGHPUT, LS_SWEEP_WORLD, jobs, JOBS_MAX);
    const ls_report_job *job = ls_report_compare_largest(jobs, count);
    if (job == NULL) {
        return;
    }
    char text[SENTENCE_BYTES] = "", level[24];
    ls_stats_interval strong = ls_report_compare_strong(run, job, &base);
    ls_text_add(text, sizeof text, "Scaling to %d ranks (%s): weak %.2f", job->spec->world,
                ls_report_job_level(job, level), job->speed.efficiency.value);
    append_interval(text, job->speed.efficiency);
    ls_text_add(text, sizeof text, " with %d images per rank", job->spec->batch_size);
    if (base != NULL) {
        ls_text_add(text, sizeof text, ", strong %.2f", strong.value);
        append_interval(text, strong);
        ls_text_add(text, sizeof text, " with %d images in all", base->spec->batch_size);
    }
    double ceiling = ls_report_compare_ceiling(run, job);
    if (ceiling < 1) {
        int cores = ls_report_speed_threads(run, job);
        ls_text_add(
            text, sizeof text, "; %d ranks of %d thread%s share %d core%s, which limits it to %.2f",
            job->spec->world, job->record->rank[0].threads,
            job->record->rank[0].threads == 1 ? "" : "s", cores, cores == 1 ? "" : "s", ceiling);
    }
    ls_text_add(text, sizeof text, ".");
    add_sentence(list, text);
}

/* The best rates measured before and after the jobs, with the largest number of threads. */
static void best_rates(const ls_report_run *run, int *threads, double *copy, double *matrix)
{
    const cJSON *entry;
    *threads = 0;
    *copy = *matrix = NAN;
    ls_json_each(entry, ls_json_get(run->record, "rates")) {
        int own = ls_json_int(entry, "threads", 0);
        if (own > *threads) {
            *threads = own;
            *copy = *matrix = NAN;
        }
        if (own == *threads) {
            *copy = fmax(*copy, ls_json_number(entry, "copy_bytes_per_s", NAN));
            *matrix = fmax(*matrix, ls_json_number(entry, "matrix_flop_per_s", NAN));
        }
    }
}

/* Greatest over least of the convolutions' rates before and after the jobs, with equal threads. */
static double roofline_spread(const ls_report_run *run)
{
    const cJSON *list = ls_json_get(run->record, "roofline"), *a, *b;
    double spread = 1;
    ls_json_each(a, list) {
        ls_json_each(b, list) {
            bool alike = ls_json_integer(a, "threads", 0) == ls_json_integer(b, "threads", 0) &&
                         strcmp(ls_json_string(a, "type", ""), ls_json_string(b, "type", "")) == 0;
            if (alike) {
                spread = fmax(spread, ls_json_number(a, "images_per_s", NAN) /
                                          ls_json_number(b, "images_per_s", NAN));
            }
        }
    }
    return spread;
}

/* Up to this spread the machine counts as unchanged: a share of a bound is no more precise. */
static const double SPREAD_MAX = 1.1;

static void add_roofline(const ls_report_run *run, cJSON *list)
{
    int threads;
    double copy, matrix, spread = roofline_spread(run);
    char text[SENTENCE_BYTES] = "", a[32], b[32];
    best_rates(run, &threads, &copy, &matrix);
    if (threads == 0) {
        return;
    }
    ls_text_add(text, sizeof text,
                "Roofline, measured in this run with %d thread%s: copies %s GB/s (read and "
                "written), f32 products %s GFLOP/s",
                threads, threads == 1 ? "" : "s", ls_report_lines_number(copy * 1e-9, a),
                ls_report_lines_number(matrix * 1e-9, b));
    if (spread > SPREAD_MAX) {
        ls_text_add(text, sizeof text,
                    "; the rates of the convolutions alone before and after the jobs differ by "
                    "%.2f x: other programs ran, and shares of the roofline are rough",
                    spread);
    }
    ls_text_add(text, sizeof text, ".");
    add_sentence(list, text);
}

static void add_batch(const ls_report_run *run, cJSON *list)
{
    const ls_report_job *jobs[JOBS_MAX], *larger = NULL;
    int count = ls_report_job_select(run, LS_ROLE_THROUGHPUT, LS_SWEEP_LEVEL, jobs, JOBS_MAX),
        said = 0;
    char text[SENTENCE_BYTES] = "", level[24];
    ls_report_batch batch = {0};
    for (int i = 0; i < count; i++) {
        if (ls_report_memory_largest_batch(run, jobs[i], &batch)) {
            ls_text_add(text, sizeof text, "%s%s %.0f",
                        said++ > 0 ? ", " : "Largest batch per rank, computed, not run: ",
                        ls_report_job_level(jobs[i], level), batch.largest);
        }
    }
    if (said == 0) {
        return;
    }
    ls_text_add(text, sizeof text,
                " (%.1f GB of free memory for each of %d ranks, less the part that does not grow "
                "with the batch)",
                batch.room_bytes * 1e-9, jobs[0]->spec->world);
    double predicted, seen;
    if (ls_report_memory_check(run, &larger, &predicted, &seen)) {
        ls_text_add(text, sizeof text,
                    "; for %d images the same arithmetic predicts a peak of %.0f MB, and a run "
                    "had %.0f MB",
                    larger->spec->batch_size, predicted * 1e-6, seen * 1e-6);
    }
    ls_text_add(text, sizeof text, ".");
    add_sentence(list, text);
}

static void add_first_step(const ls_report_run *run, cJSON *list)
{
    double least = INFINITY, greatest = 0;
    const ls_report_job *slowest = NULL, *quickest = NULL;
    ls_report_each(job, run, LS_ROLE_THROUGHPUT) {
        double first_s = job->speed.first_step_s;
        if (first_s > 0 && first_s < least) {
            least = first_s;
            quickest = job;
        }
        if (first_s > greatest) {
            greatest = first_s;
            slowest = job;
        }
    }
    if (slowest == NULL) {
        return;
    }
    LS_TEXT(text, SENTENCE_BYTES,
            "Time to the end of the first step: %.2f s (%s) to %.2f s (%s), without the dumps for "
            "the judge in that step.",
            least, quickest->record->label, greatest, slowest->record->label);
    add_sentence(list, text);
}

typedef struct audits {
    int steps, jobs;
    double seconds, share; /* more than as many other steps took; of the time of all jobs */
} audits;

static audits sum_audits(const ls_report_run *run)
{
    audits sum = {0};
    double all_s = 0;
    ls_report_each(job, run, LS_ROLE_COUNT) {
        double longest_ms = 0;
        for (int k = 0; k < job->record->world && job->speed.audited_count > 0; k++) {
            const ls_record_rank *rank = &job->record->rank[k];
            double ms = -job->speed.audited_count * ls_report_speed_rank_ms(job, k, 0.50);
            for (int i = 0; i < rank->step_count; i++) {
                ms += rank->step[i].audited ? rank->step[i].total_ms : 0;
            }
            longest_ms = fmax(longest_ms, ms);
        }
        sum.steps += job->speed.audited_count;
        sum.jobs += job->speed.audited_count > 0;
        sum.seconds += longest_ms * 1e-3;
        all_s += isfinite(job->record->seconds) ? job->record->seconds : 0;
    }
    sum.share = sum.seconds / all_s;
    return sum;
}

static void add_audits(const ls_report_run *run, cJSON *list)
{
    audits sum = sum_audits(run);
    if (sum.steps > 0) {
        LS_TEXT(text, SENTENCE_BYTES,
                "Audited: %d steps of %d jobs, which are in no figure; they took %.1f s more than "
                "others, %.1f %% of the jobs' time.",
                sum.steps, sum.jobs, sum.seconds, 100 * sum.share);
        add_sentence(list, text);
    }
}

/* Pictures that a loader could not read (--on-bad-image skip), in one job. */
typedef struct bad_pictures {
    int64_t images, bad; /* of training, over all ranks */
    int64_t validation;  /* of all validations */
} bad_pictures;

static bad_pictures bad_pictures_of(const ls_record *job)
{
    bad_pictures sum = {0};
    for (int k = 0; k < job->world; k++) {
        for (int i = 0; i < job->rank[k].step_count; i++) {
            sum.images += job->rank[k].step[i].images;
            sum.bad += job->rank[k].step[i].bad_images;
        }
    }
    const cJSON *epochs = job->world > 0 ? job->rank[0].epochs : NULL, *epoch;
    ls_json_each(epoch, epochs) {
        sum.validation += ls_json_integer(ls_json_get(epoch, "val"), "bad_images", 0);
    }
    return sum;
}

/* Of the job that had most of them, and how many others had some. */
static void add_bad_pictures(const ls_report_run *run, cJSON *list)
{
    bad_pictures most = {0};
    const ls_record *worst = NULL;
    int jobs = 0;
    for (int j = 0; j < run->job_count; j++) {
        bad_pictures one = bad_pictures_of(run->job[j].record);
        jobs += one.bad + one.validation > 0;
        if (one.bad + one.validation > most.bad + most.validation) {
            most = one;
            worst = run->job[j].record;
        }
    }
    if (worst == NULL) {
        return;
    }
    LS_TEXT(text, SENTENCE_BYTES,
            "Bad pictures: of %lld images that job %s trained on, %lld could not be read and "
            "others took their places",
            (long long)most.images, worst->id, (long long)most.bad);
    if (most.validation > 0) {
        ls_text_add(text, sizeof text, "; %lld did not count in validation",
                    (long long)most.validation);
    }
    if (jobs > 1) {
        ls_text_add(text, sizeof text, " (the most of %d jobs that had some)", jobs);
    }
    ls_text_add(text, sizeof text, ".");
    add_sentence(list, text);
}

cJSON *ls_report_compare_sentences(const ls_report_run *run)
{
    cJSON *list = cJSON_CreateArray();
    add_exposed(run, list);
    add_ddp(run, list);
    add_loader(run, list);
    add_fused(run, list);
    add_scaling(run, list);
    add_roofline(run, list);
    add_batch(run, list);
    add_first_step(run, list);
    add_audits(run, list);
    add_bad_pictures(run, list);
    return list;
}

/* ---- for programs ---------------------------------------------------------------------------- */

cJSON *ls_report_compare_json(const ls_report_run *run)
{
    const ls_report_job *with, *without, *jobs[JOBS_MAX];
    cJSON *out = cJSON_CreateObject();
    ls_stats_interval ddp = ls_report_compare_ddp(run, &with, &without);
    if (with != NULL) {
        ls_stats_add_json(out, "ddp_of_one_ratio", ddp);
    }
    audits sum = sum_audits(run);
    if (sum.steps > 0) {
        ls_json_add_number(out, "audit_share", sum.share);
    }
    ls_report_loader loader;
    if (ls_report_compare_loader(run, &loader)) {
        cJSON *entry = cJSON_AddObjectToObject(out, "loader");
        ls_stats_add_json(entry, "ratio", loader.ratio);
        ls_json_add_number(entry, "waited_share", loader.waited);
        cJSON_AddNumberToObject(entry, "workers", loader.workers);
        cJSON_AddNumberToObject(entry, "workers_needed", loader.workers_needed);
    }
    ls_stats_interval fused = ls_report_compare_fused(run, &with, &without);
    if (with != NULL) {
        ls_stats_add_json(out, "fused_ratio", fused);
    }
    static const char *const COPIED[] = {"roofline", "rates", "layers"};
    for (size_t i = 0; i < sizeof COPIED / sizeof *COPIED; i++) {
        const cJSON *list = ls_json_get(run->record, COPIED[i]);
        if (list != NULL) {
            cJSON_AddItemToObject(out, COPIED[i], cJSON_Duplicate(list, true));
        }
    }
    cJSON *batches = cJSON_AddArrayToObject(out, "largest_batch");
    int count = ls_report_job_select(run, LS_ROLE_THROUGHPUT, LS_SWEEP_LEVEL, jobs, JOBS_MAX);
    for (int i = 0; i < count; i++) {
        ls_report_batch batch;
        if (ls_report_memory_largest_batch(run, jobs[i], &batch)) {
            cJSON *entry = ls_json_append_object(batches);
            cJSON_AddStringToObject(entry, "level", ls_spec_level_name(jobs[i]->spec->level));
            cJSON_AddNumberToObject(entry, "world", jobs[i]->spec->world);
            cJSON_AddNumberToObject(entry, "images_per_rank", batch.largest);
            cJSON_AddNumberToObject(entry, "fixed_bytes", batch.fixed_bytes);
            cJSON_AddNumberToObject(entry, "image_bytes", batch.image_bytes);
            cJSON_AddNumberToObject(entry, "room_bytes", batch.room_bytes);
            cJSON_AddStringToObject(entry, "how", "computed");
        }
    }
    return out;
}
