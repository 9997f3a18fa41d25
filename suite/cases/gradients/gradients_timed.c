/* The first step's gradient of the timed jobs against FP32, one process, micro-batch form, same
 * backend (numerics.md section 5, FP32 step 1), and against the same job with other buckets. At
 * half levels, and on a device, the reference takes the job's own branches. */

#include <math.h>
#include <string.h>

#include "timed_parts.h"

/* The reference has the rank's threads, batch and kernels, so every micro-batch's forward is equal
 * bit by bit and no branch turns: what is left is the order of sums over ranks. */
static const ls_tol exact =
    LS_TOL(2e-5, "the same f32 kernels on the same micro-batches: only the order of sums over "
                 "ranks is left; the "
                 "limit is the one that a whole O0 step has against FP64 on forced branches");

/* What fp16 costs at best in any of O1, O2 and O3, as the oracle measured it (`prices` of
 * compare.json): whole, tensors of 64 elements and more, smaller ones, blocks, edges. Holds for as
 * many pixels and values per channel or more: roundings are many independent errors, and their
 * share falls as more are summed (resnet18 at 64 pixels: 3.1e-3 with 8 images, 2.5e-3 with 16). */
static const struct price {
    const char *arch;
    int image_size, batch_size;
    double part[LS_COMPARE_PARTS];
} price[] = {
    /* the largest of three seeds on these shapes, first step of a fresh network, rounded up */
    {"resnet18", 64, 8, {3.6e-3, 6.7e-3, 5.1e-4, 1.5e-2, 9.8e-3}},
    {"resnet18", 64, 4, {6.0e-3, 8.6e-3, 7.5e-4, 2.7e-2, 1.4e-2}}, /* parts of a pipeline */
    {"resnet34", 64, 8, {8.4e-3, 1.8e-2, 1.1e-3, 4.4e-2, 2.3e-2}},
    {"resnet50", 64, 8, {8.0e-2, 1.7e-1, 8.4e-3, 3.0e-1, 2.5e-1}},
    {"resnet20", 16, 4, {2.0e-3, 6.2e-3, 5.4e-3, 9.2e-3, 5.6e-3}},
};

static const struct price *find_price(const ls_spec *spec)
{
    for (size_t i = 0; i < sizeof price / sizeof *price; i++) {
        int batch = spec->batch_size / (spec->parts > 0 ? spec->parts : 1);
        int64_t values = (int64_t)batch * spec->image_size * spec->image_size;
        if (strcmp(price[i].arch, spec->arch) == 0 && spec->image_size >= price[i].image_size &&
            values >= (int64_t)price[i].batch_size * price[i].image_size * price[i].image_size) {
            return &price[i];
        }
    }
    return NULL;
}

/* bf16 rounds 2^3 times coarser than fp16, and so many times higher is the price: the errors are
 * linear in the roundings, because the branches are those of the job. */
static int coarser_bits(const ls_spec *spec)
{
    return strcmp(spec->half, "bf16") == 0 ? 3 : 0;
}

/* The bound of numerics.md section 4 with that price. The oracle's ideal of one rank lacks the
 * reduction: W-1 additions, each rounding a partial sum of k gradients of random sign, sqrt(k/W) of
 * the whole, evenly within half a unit: u * sqrt((W-1)/6) together, in quadrature. */
static double half_limit(const ls_spec *spec, const struct price *found, ls_compare_part part)
{
    double unit = spec->level >= 2 ? ldexp(1, coarser_bits(spec) - 11) : 0x1p-24;
    double reduction = unit * sqrt((spec->world - 1) / 6.0);
    double cost = ldexp(found->part[part], coarser_bits(spec));
    return ls_compare_bounds_of(spec->level)[part].factor *
           sqrt(cost * cost + reduction * reduction);
}

/* f32 rounds by so many bits finer than fp16: its price is so much lower. */
enum { FINER_BITS = 13 };

/* The engines of a followed O0 job are not its reference's, so both err, each in its own way, as
 * O0 may. Where no price is known the limit shows that a job is right, and not that it is wrong. */
static double single_limit(const struct price *found, ls_compare_part part)
{
    double price = found == NULL ? 0 : ldexp(found->part[part], -FINER_BITS);
    return fmax(exact.value, ls_compare_bounds_of(0)[part].factor * price);
}

static double limit_of(const ls_spec *spec, const struct price *found, ls_compare_part part)
{
    return !spec->followed    ? exact.value
           : spec->level == 0 ? single_limit(found, part)
                              : half_limit(spec, found, part);
}

/* A factor that explains the difference: summed instead of averaged, not reduced, ... */
static void name_factor(const ls_timed_part *p, int world, ls_verdict *out)
{
    /* 0.3: a tensor that is another's by three tenths is no multiple of it; 0.2: what a factor must
     * be off 1 to be an explanation */
    if (!(p->residual < 0.3) || fabs(p->factor - 1) < 0.2) {
        return;
    }
    /* 0.05: the names stand a factor of two and more apart, the rounding of halves is below 0.01 */
    const char *meaning = fabs(p->factor / world - 1) < 0.05   ? ": summed over ranks, not averaged"
                          : fabs(p->factor * world - 1) < 0.05 ? ": averaged twice, or not summed"
                          : fabs(p->factor) < 0.05             ? ": it is zero"
                                                               : "";
    ls_verdict_cause(out, "%s is %.4g x the expected one (residual %.1e)%s", p->tensor, p->factor,
                     p->residual, meaning);
}

static void describe(const ls_timed_part *p, ls_compare_part part, char *text, size_t bytes)
{
    if (part == LS_COMPARE_BLOCK || part == LS_COMPARE_EDGE) {
        ls_text_put(text, bytes, "%s elements %lld..%lld", p->tensor, (long long)p->from,
                    (long long)(p->from + p->count - 1));
    } else {
        ls_text_put(text, bytes, "%s", p->tensor);
    }
}

/* Every kind against its limit; the first that fails is reported, the whole before its parts.
 * `over`: what is said of one that fails. */
static void judge_parts(const ls_case *row, const ls_timed_parts *parts,
                        const double limit[LS_COMPARE_PARTS], ls_verdict_code over, ls_verdict *out)
{
    const ls_spec *spec = &row->job[0];
    for (int part = 0; part < LS_COMPARE_PARTS; part++) {
        const ls_timed_part *worst = &parts->worst[part];
        if (worst->error <= limit[part]) {
            continue;
        }
        char where[120];
        describe(worst, (ls_compare_part)part, where, sizeof where);
        if (out->code == LS_PASS) {
            name_factor(worst, spec->world, out);
        }
        ls_verdict_set(
            out, over, "rank=0 step 1: %s rel=%.2g limit=%.2g%s", where, worst->error, limit[part],
            over == LS_WEAK ? "; no price of f32 is known for this network and shape" : "");
    }
    ls_verdict_pass(out, parts->elements,
                    "step 1 against FP32 in one process%s: rel=%.2g limit=%.2g; tensors at most "
                    "%.2g of %.2g, blocks %.2g of %.2g",
                    spec->followed ? ", on its branches" : "", parts->worst[LS_COMPARE_WHOLE].error,
                    limit[LS_COMPARE_WHOLE], parts->worst[LS_COMPARE_TENSOR].error,
                    limit[LS_COMPARE_TENSOR], parts->worst[LS_COMPARE_BLOCK].error,
                    limit[LS_COMPARE_BLOCK]);
}

static void explain_limit(const ls_spec *spec, char *text, size_t bytes)
{
    double factor = ls_compare_bounds_of(spec->level)[LS_COMPARE_WHOLE].factor;
    if (!spec->followed) {
        ls_text_put(text, bytes, "%s", exact.why);
    } else if (spec->level == 0) {
        ls_text_put(text, bytes,
                    "what a whole O0 step has against FP64 on forced branches, or %g x what f32 "
                    "costs this network at best, 2^-%d of what the oracle measured for fp16",
                    factor, FINER_BITS);
    } else {
        ls_text_put(text, bytes,
                    "%g x what fp16 costs this network at best, as the oracle measured it on small "
                    "batches",
                    factor);
    }
}

static void judge_reference(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_spec *spec = &row->job[0];
    ls_timed_parts parts;
    char text[160];
    const ls_timed_steps *steps = row->data;
    if (steps->leader > 0 &&
        !ls_timed_parts_same_forward(&job[0], &job[steps->leader], text, sizeof text)) {
        ls_verdict_set(out, LS_WEAK,
                       "%s: step 1 is not that of the job which the reference followed", text);
        return;
    }
    if (!ls_timed_parts_measure(&job[0], &job[1], steps->first_step, steps->count, &parts, out)) {
        return;
    }
    if (!parts.finite) {
        ls_verdict_set(out, LS_WEAK, "the first step overflowed: its gradient says nothing");
        return;
    }
    const struct price *found = spec->followed ? find_price(spec) : NULL;
    if (spec->level > 0 && found == NULL) {
        ls_verdict_set(out, LS_WEAK, "rel=%.2g; no price of %s is known for this network and shape",
                       parts.worst[LS_COMPARE_WHOLE].error, spec->half);
        return;
    }
    double limit[LS_COMPARE_PARTS];
    for (int part = 0; part < LS_COMPARE_PARTS; part++) {
        limit[part] = limit_of(spec, found, (ls_compare_part)part);
    }
    char from[240];
    explain_limit(spec, from, sizeof from);
    ls_verdict_measured(out, parts.worst[LS_COMPARE_WHOLE].error, limit[LS_COMPARE_WHOLE],
                        "relative", from);
    judge_parts(row, &parts, limit, spec->followed && found == NULL ? LS_WEAK : LS_FAIL, out);
}

/* Whether the job's engines give the same bits every time. */
static bool repeats(const ls_record *job)
{
    const cJSON *start = job->rank[0].start;
    const cJSON *options = ls_json_get(start, "options");
    return ls_json_bool(start, "host_memory", true) ||
           ls_json_bool(options, "deterministic", false);
}

/* The rank whose loss of step 1 differs, or -1. */
static int find_other_loss(const ls_record *job)
{
    for (int k = 0; k < job[0].world; k++) {
        const ls_record_step *a = ls_record_find_step(&job[0].rank[k], 1);
        const ls_record_step *b = ls_record_find_step(&job[1].rank[k], 1);
        if (a == NULL || b == NULL || strcmp(a->loss_bits, b->loss_bits) != 0) {
            return k;
        }
    }
    return -1;
}

/* Where engines do not repeat: how much of the difference between the averages the local gradients
 * account for, of the average. Rank 0's may be apart by what G4 allows a whole gradient; those of
 * the others, from the same engines on the same branches, are taken to be apart twice as much at
 * most, and by what f32 sums in another order cost at least: rank 0's may be equal by chance.
 * False with a verdict where that is the end of it. */
static bool measure_share(const ls_case *row, const ls_record *job, const ls_timed_local *local,
                          double *share, ls_verdict *out)
{
    const ls_spec *spec = &row->job[0];
    const struct price *found = find_price(spec);
    double apart = local->distance / local->size;
    char text[160];
    if (!ls_timed_parts_same_forward(&job[0], &job[1], text, sizeof text)) {
        ls_verdict_set(out, LS_WEAK,
                       "%s: step 1 differs before the reduction, by engines that do not repeat "
                       "(--deterministic)",
                       text);
        return false;
    }
    if (spec->level > 0 && found == NULL) {
        ls_verdict_set(out, LS_WEAK,
                       "local gradients rel=%.2g apart, by engines that do not repeat; no price of "
                       "%s is known for this network and shape",
                       apart, spec->half);
        return false;
    }
    double limit = limit_of(spec, found, LS_COMPARE_WHOLE);
    if (!(apart <= limit)) {
        ls_verdict_fail(out, "rank=0: local gradients of step 1 rel=%.2g apart, limit=%.2g", apart,
                        limit);
        return false;
    }
    *share = fmax(2 * local->distance / local->mean_size, single_limit(found, LS_COMPARE_WHOLE));
    return true;
}

/* Before the reduction both jobs have the same bits, or engines that need not give them: then
 * *share of the average. False with a verdict otherwise. */
static bool judge_local(const ls_case *row, const ls_record *job, double *share, ls_verdict *out)
{
    ls_timed_local local;
    int rank = find_other_loss(job);
    if (!ls_timed_parts_local(&job[0], &job[1], &local, out)) {
        return false;
    }
    *share = 0;
    if (local.tensor[0] == '\0' && rank < 0) {
        return true;
    }
    if (!repeats(&job[0]) || !repeats(&job[1])) {
        return measure_share(row, job, &local, share, out);
    }
    ls_verdict_fail(out,
                    "rank=%d: %s%s of step 1 differs between two jobs that differ in buckets only",
                    rank < 0 ? 0 : rank, rank < 0 ? "the local gradient of " : "the loss",
                    rank < 0 ? local.tensor : "");
    return false;
}

/* Same level, ranks and batches, other buckets or nodes: the local gradients are equal where
 * engines repeat, only the order of the additions differs. u: unit of the type reduced; W-1
 * additions, each off by at most u of its partial sum, in either job; partial sums are at most
 * sqrt(W) times the mean of W parts of random sign. */
static void judge_order(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_timed_parts parts;
    double share = 0;
    if (!ls_timed_parts_measure(&job[0], &job[1], 1, 1, &parts, out)) {
        return;
    }
    if (!parts.finite) {
        ls_verdict_set(out, LS_WEAK, "the first step overflowed: its gradient says nothing");
        return;
    }
    if (!judge_local(row, job, &share, out)) {
        return;
    }
    double unit = row->job[0].level < 2 ? ldexp(1, -24) : ldexp(1, coarser_bits(&row->job[0]) - 11);
    int world = job[0].world;
    double limit = 2 * (world - 1) * unit * sqrt(world) + share;
    double error = parts.worst[LS_COMPARE_WHOLE].error;
    ls_verdict_measured(out, error, limit, "relative",
                        share == 0 ? "order of W-1 rounded additions in both jobs"
                                   : "order of W-1 rounded additions in both jobs, and twice what "
                                     "rank 0's local gradients are apart, by engines that do not "
                                     "repeat");
    if (!(error <= limit)) {
        ls_verdict_fail(out, "whole gradient of step 1 rel=%.2g limit=%.2g", error, limit);
    } else {
        ls_verdict_pass(out, parts.elements,
                        "%s local gradients, other buckets: rel=%.2g limit=%.2g",
                        share == 0 ? "same" : "nearly the same", error, limit);
    }
}

static void add_reference(const ls_case_settings *settings, ls_case_list *list, const ls_spec *spec,
                          const char *id)
{
    ls_timed_steps *steps = ls_rows_memory(list, sizeof *steps);
    ls_spec jobs[4] = {ls_matrix_first_step(spec)};
    int count = 2;
    *steps = (ls_timed_steps){settings->bench, 1, 1, 0};
    if (spec->followed) {
        const ls_spec *leader = ls_timed_leader(settings->bench, spec);
        jobs[2] = ls_matrix_first_step(leader);
        ls_timed_followed(&jobs[2], &jobs[1]);
        if (leader != spec) {
            steps->leader = count++;
        }
    } else {
        ls_timed_reference(spec, &jobs[1], steps);
    }
    if (spec->resident > 0) {
        jobs[count++] = *spec; /* its figures count only where its first step is right */
    }
    const ls_row row = {.requirement = "G4",
                        .judge = judge_reference,
                        .prepare = ls_timed_prepare,
                        .counts = LS_COUNTS_TIMED,
                        .data = steps};
    ls_rows_specs(list, settings, &row, jobs, count, "gradients.timed.%s", id);
}

/* The first job before `spec` that differs in buckets or nodes only. */
static const ls_spec *find_other(const ls_matrix *bench, const ls_spec *spec)
{
    for (const ls_spec *other = bench->spec; other < spec && spec->world > 1; other++) {
        if (other->role == LS_ROLE_THROUGHPUT && other->level == spec->level &&
            other->world == spec->world) {
            return other;
        }
    }
    return NULL;
}

static void add_timed(const ls_case_settings *settings, ls_case_list *list)
{
    for (int i = 0; settings->bench != NULL && i < settings->bench->count; i++) {
        const ls_spec *spec = &settings->bench->spec[i];
        bool way = spec->role == LS_ROLE_WAY && spec->dump_steps[0] != '\0';
        if (spec->role != LS_ROLE_THROUGHPUT && !way) {
            continue;
        }
        char id[64];
        ls_timed_id(spec, id);
        add_reference(settings, list, spec, id);
        bool row = spec->role == LS_ROLE_THROUGHPUT;
        const ls_spec *other = row ? find_other(settings->bench, spec) : NULL;
        if (other != NULL) {
            const ls_spec jobs[] = {ls_matrix_first_step(spec), ls_matrix_first_step(other), *spec};
            ls_rows_specs(list, settings, &(ls_row){.requirement = "G5", .judge = judge_order},
                          jobs, spec->resident > 0 ? 3 : 2, "gradients.order.%s", id);
        }
    }
}

/* The same judge on small jobs, where the oracle can say whether it is right: the reference has the
 * job's ranks and reads its dump as data. */
static void add_followed(const ls_case_settings *settings, ls_case_list *list)
{
    static const ls_timed_steps first = {NULL, 1, 1, 0};
    static const char *const jobs[] = {"O1 w2 b0.1 dump=1", "O2 w2 b0.1 dump=1",
                                       "O3 w2 b0.1 dump=1"};
    for (int i = 0; i < 3; i++) {
        ls_spec job[2] = {ls_rows_spec(settings, jobs[i])};
        char id[96];
        job[0].followed = true;
        ls_timed_followed(&job[0], &job[1]);
        ls_matrix_id(&job[0], id);
        job[1].world = 2;
        job[1].accumulate = 1;
        ls_text_put(job[1].data, sizeof job[1].data, "batches:{job:%s}/dump", id);
        ls_rows_specs(list, settings,
                      &(ls_row){.requirement = "G4", .judge = judge_reference, .data = &first}, job,
                      2, "gradients.followed.o%d.w2", job[0].level);
    }
}

void ls_gradients_timed_cases(const ls_case_settings *settings, ls_case_list *list)
{
    add_timed(settings, list);
    add_followed(settings, list);
}
