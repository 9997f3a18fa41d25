#include "figures.h"

#include <math.h>
#include <string.h>

#include "kernels/core/text.h"

enum { JOBS_MAX = 128, SENTENCE_BYTES = 1024 };

/* Nodes "pay" when each keeps at least four fifths of its throughput alone: below that, one in five
 * machines does nothing but wait. */
static const double NODES_PAY_MIN = 0.8;

static void add_sentence(cJSON *advice, const char *sentence)
{
    cJSON_AddItemToArray(advice, cJSON_CreateString(sentence));
}

static int select_shown(const ls_report_run *run, unsigned sweep, const ls_report_job **jobs)
{
    int count = ls_report_job_select(run, LS_ROLE_THROUGHPUT, sweep, jobs, JOBS_MAX), kept = 0;
    for (int i = 0; i < count; i++) {
        if (ls_report_job_is_result(jobs[i])) {
            jobs[kept++] = jobs[i];
        }
    }
    return kept;
}

static void append_ratio(char *text, const ls_report_job *over, const ls_report_job *under)
{
    char a[24], b[24], difference[128];
    ls_stats_interval ratio = ls_report_compare_ratio(over, under);
    ls_report_job_level(over, a);
    ls_report_job_level(under, b);
    if (!isfinite(ratio.low)) {
        ls_text_add(text, SENTENCE_BYTES, "%s measured %.2f x %s over too few steps to be sure", a,
                    ratio.value, b);
    } else if (ls_report_compare_is_resolved(ratio)) {
        ls_text_add(text, SENTENCE_BYTES, "%s is %.2f x %s [%.2f, %.2f]", a, ratio.value, b,
                    ratio.low, ratio.high);
    } else {
        ls_stats_sentence(ratio, difference, sizeof difference);
        ls_text_add(text, SENTENCE_BYTES, "%s and %s cannot be distinguished (%s)", a, b,
                    difference);
    }
}

static void advise_levels(const ls_report_run *run, cJSON *advice)
{
    const ls_report_job *jobs[JOBS_MAX], *fastest = NULL;
    int count = select_shown(run, LS_SWEEP_LEVEL, jobs);
    bool emulated = false;
    const char *products = "";
    for (int i = 0; i < count; i++) {
        emulated = emulated || jobs[i]->record->half_emulated;
        products = jobs[i]->spec->level > 0 ? jobs[i]->record->half_products : products;
        if (fastest == NULL || jobs[i]->speed.rate.value > fastest->speed.rate.value) {
            fastest = jobs[i];
        }
    }
    if (count < 2) {
        add_sentence(
            advice,
            "Opt levels: fewer than two levels have a figure that passed its checks, so none is "
            "advised.");
        return;
    }
    char text[SENTENCE_BYTES] = "";
    for (int i = 0, said = 0; i < count; i++) {
        if (jobs[i] != fastest) {
            ls_text_add(text, sizeof text, "%s", said++ > 0 ? ", " : "Opt levels: ");
            append_ratio(text, fastest, jobs[i]);
        }
    }
    ls_text_add(
        text, sizeof text, "%s",
        emulated ? ". Half is emulated here (16-bit storage, f32 arithmetic), so this order says "
                   "nothing about a machine with half-precision units."
                 : ".");
    if (products[0] != '\0') {
        ls_text_add(text, sizeof text, " Products: %s.", products);
    }
    add_sentence(advice, text);
}

/* A step of one rank alone by kind of work, from run.json's "layers". */
enum { PRODUCTS, PASSES, UPDATE, WORK };

typedef struct alone {
    const char *type;
    double ms[WORK], whole_ms;
} alone;

static bool read_alone(const ls_report_run *run, bool half, alone *out)
{
    const cJSON *step, *kind;
    ls_json_each(step, ls_json_get(run->record, "layers")) {
        const char *type = ls_json_string(step, "type", "");
        if (strcmp(ls_json_string(step, "when", ""), "before") != 0 ||
            (strcmp(type, "f32") != 0) != half) {
            continue;
        }
        *out = (alone){.type = type};
        ls_json_each(kind, ls_json_get(step, "kinds")) {
            const char *name = ls_json_string(kind, "kind", "");
            double ms = ls_json_number(kind, "ms", NAN);
            out->ms[strncmp(name, "products", 8) == 0    ? PRODUCTS
                    : strncmp(name, "optimizer", 9) == 0 ? UPDATE
                                                         : PASSES] += ms;
            out->whole_ms += ms;
        }
        return isfinite(out->whole_ms) && out->whole_ms > 0;
    }
    return false;
}

static void append_alone(char *text, const alone *one)
{
    ls_text_add(text, SENTENCE_BYTES, "%.1f ms in %s (products %.1f, memory passes %.1f",
                one->whole_ms, one->type, one->ms[PRODUCTS], one->ms[PASSES]);
    if (one->ms[UPDATE] > 0) {
        ls_text_add(text, SENTENCE_BYTES, ", optimizer and weights %.1f", one->ms[UPDATE]);
    }
    ls_text_add(text, SENTENCE_BYTES, ")");
}

/* Bytes that a step of each level reduces: of the jobs of the largest world. */
static void append_wire(const ls_report_run *run, char *text)
{
    const ls_report_job *jobs[JOBS_MAX];
    int count = select_shown(run, LS_SWEEP_LEVEL, jobs);
    char level[24];
    int said = 0;
    for (int i = 0; i < count; i++) {
        double mb = jobs[i]->record->rank[0].reduced_bytes * 1e-6;
        if (jobs[i]->spec->world > 1 && isfinite(mb) && mb > 0) {
            ls_report_job_level(jobs[i], level);
            ls_text_add(text, SENTENCE_BYTES, "%s%.1f MB at %s",
                        said++ > 0 ? ", " : " A step reduces ", mb, level);
        }
    }
    ls_text_add(text, SENTENCE_BYTES, "%s", said > 0 ? "." : "");
}

/* Why a level pays or does not: where the time of a step alone differs, and what it reduces. */
static void advise_phases(const ls_report_run *run, cJSON *advice)
{
    static const char *const work[WORK] = {"products", "memory passes", "optimizer and weights"};
    alone f32, half;
    if (!read_alone(run, false, &f32) || !read_alone(run, true, &half)) {
        return;
    }
    char text[SENTENCE_BYTES] = "Why: a step alone takes ";
    append_alone(text, &f32);
    ls_text_add(text, sizeof text, " and ");
    append_alone(text, &half);
    int most = PRODUCTS;
    for (int k = 0; k < WORK; k++) {
        if (fabs(half.ms[k] - f32.ms[k]) > fabs(half.ms[most] - f32.ms[most])) {
            most = k;
        }
    }
    double difference = half.ms[most] - f32.ms[most];
    ls_text_add(text, sizeof text, ": %s %s most in %s, %.1f ms.", half.type,
                difference < 0 ? "saves" : "costs", work[most], fabs(difference));
    append_wire(run, text);
    add_sentence(advice, text);
}

static void advise_loss(const ls_report_run *run, cJSON *advice)
{
    ls_report_band band;
    if (ls_report_loss_read_band(run, &band)) {
        char text[SENTENCE_BYTES] = "", sentence[320];
        ls_text_add(text, sizeof text,
                    "Loss: after %d steps of %s %s, where another O0 run would end 95 %% of the "
                    "time.",
                    band.steps, band.job->spec->arch, ls_report_loss_sentence(&band, sentence));
        add_sentence(advice, text);
        return;
    }
    const ls_report_job *jobs[JOBS_MAX];
    int count = ls_report_job_select(run, LS_ROLE_THROUGHPUT, LS_SWEEP_LEVEL, jobs, JOBS_MAX);
    double low, high;
    int repeats = ls_report_loss_range(run, &low, &high);
    char text[SENTENCE_BYTES] = "", level[24];
    int said = 0;
    for (int i = 0; i < count && repeats > 0; i++) {
        if (jobs[i]->spec->level == 0) {
            continue;
        }
        double loss = ls_report_loss_end(jobs[i]);
        ls_report_job_level(jobs[i], level);
        ls_text_add(text, sizeof text, "%s", said++ > 0 ? ", " : "Loss at the end: ");
        if (repeats == 1) {
            ls_text_add(text, sizeof text, "%s %.3f (%+.1f %% of O0)", level, loss,
                        100 * (loss / low - 1));
        } else {
            ls_text_add(text, sizeof text, "%s %.3f is %s", level, loss,
                        loss >= low && loss <= high ? "inside"
                        : loss < low                ? "below"
                                                    : "above");
        }
    }
    if (said == 0) {
        return;
    }
    if (repeats == 1) {
        ls_text_add(
            text, sizeof text,
            "; there is one O0 run (%.3f) and so no band: whether a level trains as well is not "
            "shown by this run.",
            low);
    } else {
        ls_text_add(
            text, sizeof text,
            " the band of %d O0 runs [%.3f, %.3f] (another O0 run would fall inside it %.0f %% of "
            "the time).",
            repeats, low, high, 100.0 * (repeats - 1) / (repeats + 1));
    }
    add_sentence(advice, text);
}

static void advise_buckets(const ls_report_run *run, cJSON *advice)
{
    const ls_report_job *jobs[JOBS_MAX], *best[JOBS_MAX], *fastest = NULL;
    int count = select_shown(run, LS_SWEEP_BUCKET, jobs);
    int best_count = ls_report_compare_best_buckets(run, best, JOBS_MAX, &fastest);
    if (count < 2) {
        return;
    }
    char text[SENTENCE_BYTES] = "Buckets: ", size[24], difference[128];
    for (int i = 0; i < best_count; i++) {
        ls_text_add(text, sizeof text, "%s%s",
                    i == 0                ? ""
                    : i == best_count - 1 ? " and "
                                          : ", ",
                    ls_report_job_bucket(best[i], size));
    }
    ls_text_add(text, sizeof text, "%s",
                best_count > 1 ? " cannot be distinguished" : " is the fastest");
    for (int i = 0; i < count; i++) {
        bool among = false;
        for (int b = 0; b < best_count; b++) {
            among = among || best[b] == jobs[i];
        }
        if (!among) {
            ls_stats_sentence(ls_report_compare_ratio(jobs[i], fastest), difference,
                              sizeof difference);
            ls_text_add(text, sizeof text, "; %s is %s", ls_report_job_bucket(jobs[i], size),
                        difference);
        }
    }
    ls_text_add(text, sizeof text, ".");
    add_sentence(advice, text);
}

static void advise_ranks(const ls_report_run *run, cJSON *advice)
{
    const ls_report_job *jobs[JOBS_MAX];
    const ls_report_job *job =
        ls_report_compare_largest(jobs, select_shown(run, LS_SWEEP_WORLD, jobs));
    if (job == NULL) {
        return;
    }
    const ls_stats_interval *efficiency = &job->speed.efficiency;
    char text[SENTENCE_BYTES] = "", level[24];
    ls_text_add(text, sizeof text,
                "Ranks: %d ranks do %.2f x the work of one at %s, efficiency %.2f",
                job->spec->world, efficiency->value * job->spec->world,
                ls_report_job_level(job, level), efficiency->value);
    if (isfinite(efficiency->low)) {
        ls_text_add(text, sizeof text, " [%.2f, %.2f]", efficiency->low, efficiency->high);
    }
    ls_text_add(text, sizeof text, ".");
    if (efficiency->low > 1) {
        ls_text_add(
            text, sizeof text,
            " More than ideal is no gain: the run of one rank was disturbed or ran under other "
            "conditions; measure it again.");
    }
    ls_report_compare_note_threads(run, job, text, sizeof text);
    add_sentence(advice, text);
}

static void advise_nodes(const ls_report_run *run, cJSON *advice)
{
    const ls_report_job *jobs[JOBS_MAX];
    int count = select_shown(run, LS_SWEEP_NODES | LS_SWEEP_WORLD, jobs);
    for (int i = 0; i < count; i++) {
        for (int b = 0; b < count && jobs[i]->spec->nodes > 1; b++) {
            const ls_report_job *base = jobs[b], *job = jobs[i];
            bool same = base->spec->nodes == 1 && ls_report_job_alike(base, job, LS_ALIKE_BATCH);
            char text[SENTENCE_BYTES] = "", difference[128];
            ls_stats_interval ratio = ls_report_compare_ratio(job, base);
            if (same && base->spec->world == job->spec->world) {
                ls_stats_sentence(ratio, difference, sizeof difference);
                ls_text_add(text, sizeof text,
                            "Nodes: %d ranks split over %d%s nodes instead of one: %s.",
                            job->spec->world, job->spec->nodes,
                            ls_spec_is_simulated(job->spec) ? " simulated" : "", difference);
                add_sentence(advice, text);
            } else if (same && !ls_spec_is_simulated(job->spec) &&
                       base->spec->world * job->spec->nodes == job->spec->world) {
                double share = ratio.value / job->spec->nodes;
                ls_text_add(text, sizeof text,
                            "Nodes: %d%s nodes %s (%.2f of %d times one node; they pay from %.1f).",
                            job->spec->nodes, ls_spec_is_simulated(job->spec) ? " simulated" : "",
                            share >= NODES_PAY_MIN ? "pay" : "do not pay", share, job->spec->nodes,
                            NODES_PAY_MIN);
                add_sentence(advice, text);
            }
        }
    }
}

/* What limits how far the sentences above carry. */
static void advise_noise(const ls_report_run *run, cJSON *advice)
{
    int oversubscribed = 0, hidden = 0, measured = 0;
    char text[SENTENCE_BYTES] = "", reason[160];
    ls_report_each(job, run, LS_ROLE_THROUGHPUT) {
        measured++;
        oversubscribed += job->record->oversubscribed;
        hidden += ls_report_job_reason(run, job, reason)[0] != '\0';
        if (ls_report_job_has_speed(job) && job->speed.halves == LS_STATS_HALVES_DIFFER) {
            snprintf(text, sizeof text,
                     "Drift: the second half of %s took %.2f x the step time of the first, so its "
                     "row is "
                     "weak; measure it again on a quieter machine.",
                     job->record->label, job->speed.halves_ratio.value);
            add_sentence(advice, text);
        }
    }
    if (hidden > 0) {
        snprintf(text, sizeof text,
                 "%d of %d throughput %s no figure to rely on (in parentheses, or without a "
                 "number).",
                 hidden, measured, measured == 1 ? "job has" : "jobs have");
        add_sentence(advice, text);
    }
    if (oversubscribed > 0) {
        snprintf(text, sizeof text,
                 "%d of %d throughput jobs ran more ranks than there are devices or cores for: "
                 "they prove "
                 "behaviour, not speed, and no gate looks at them.",
                 oversubscribed, measured);
        add_sentence(advice, text);
    }
    if (measured > 0) {
        add_sentence(
            advice,
            "Intervals hold for the steps of one run of each job; another run may move further, so "
            "repeat the run before acting on a few per cent (lockstep diff A B).");
    }
}

cJSON *ls_report_advice_make(const ls_report_run *run)
{
    cJSON *advice = cJSON_CreateArray();
    advise_levels(run, advice);
    advise_phases(run, advice);
    advise_loss(run, advice);
    advise_buckets(run, advice);
    advise_ranks(run, advice);
    advise_nodes(run, advice);
    advise_noise(run, advice);
    return advice;
}
