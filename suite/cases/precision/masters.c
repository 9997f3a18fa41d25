/* Master weights from a job's dumps, to the last bit: what they start as, what the half copies are,
 * that they keep what half would lose, who has none, and that a checkpoint holds them. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "reference/oracle/bits.h"
#include "reference/oracle/dumpfile.h"
#include "suite/cases/judges.h"
#include "masters_dump.h"
#include "suite/cases/optim/optim_facts.h"

enum { STEPS = 4, SMALL_STEPS = 8 };

static const ls_tol rounded_share = LS_TOL(
    0.02, "share of moved masters that are half values: 13 (bf16: 16) further bits are all zero "
          "once in 2^13; rounded masters have 1");
static const ls_tol small_share = LS_TOL(
    0.05, "share of elements whose update is below half a unit of the half type and not zero: "
          "the learning rate is chosen so that it is most of them");

static const struct variant {
    const char *name, *half, *extra;
    int level;
} variants[] = {{"o2", "fp16", "", 2},
                {"bf16.o2", "bf16", "", 2},
                {"all.o2", "fp16", "--keep-batchnorm-fp32=False", 2},
                {"on.o3", "fp16", "--master-weights=True", 3}};

/* ---- what masters are ------------------------------------------------------------------------ */

/* Step 1: one for every half parameter, f32, its value exactly; none for others. */
static void judge_start(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    ls_dumpfile *file;
    int64_t compared = 0;
    if (!ls_masters_dump_open_step(job, 1, &file, out)) {
        return;
    }
    int at = 0, masters = 0, halves = 0;
    const char *unmastered = NULL;
    for (const char *name; (name = ls_masters_dump_next_name(file, &at)) != NULL;) {
        const ls_dumpfile_entry *held = ls_dumpfile_findf(file, "param/%s", name);
        const ls_dumpfile_entry *master = ls_dumpfile_findf(file, "master/%s", name);
        bool half = ls_masters_dump_type(held) != LS_BITS_F32;
        halves += half;
        masters += master != NULL;
        const ls_dumpfile_entry *next = ls_dumpfile_findf(file, "next/%s", name);
        unmastered =
            half && next != NULL && ls_masters_dump_type(next) != LS_BITS_F32 ? name : unmastered;
        if (master != NULL && (!half || ls_masters_dump_type(master) != LS_BITS_F32)) {
            ls_verdict_fail(out, "%s is %s and has a master in %s", name, held->dtype,
                            master->dtype);
        } else if (master != NULL) {
            ls_masters_dump_compare(master, held, ls_masters_dump_as_it_is, "master", &compared,
                                    out);
        }
    }
    if (unmastered != NULL) {
        ls_verdict_fail(out, "%s is half and what is stepped is, too: it has no master",
                        unmastered);
    } else if (masters > 0 && masters < halves) {
        ls_verdict_fail(out, "%d of %d half parameters have a master", masters, halves);
    }
    ls_dumpfile_close(file);
    ls_masters_dump_conclude(compared, "every half parameter starts with a master of its own value",
                             out);
}

/* Between consecutive steps: the parameter is the rounded value, the master the value itself. */
static void judge_between(const ls_record *job, const char *kind,
                          ls_masters_dump_conversion *convert, int64_t *compared, ls_verdict *out)
{
    for (int step = 1; step < STEPS && out->code == LS_PASS; step++) {
        ls_dumpfile *file, *later;
        if (!ls_masters_dump_open_step(job, step, &file, out)) {
            return;
        }
        if (!ls_masters_dump_open_step(job, step + 1, &later, out)) {
            ls_dumpfile_close(file);
            return;
        }
        int at = 0;
        for (const char *name; (name = ls_masters_dump_next_name(file, &at)) != NULL;) {
            const ls_dumpfile_entry *have = ls_dumpfile_findf(later, "%s/%s", kind, name);
            if (have != NULL) {
                ls_masters_dump_compare(have, ls_dumpfile_findf(file, "next/%s", name), convert,
                                        kind, compared, out);
            }
        }
        ls_dumpfile_close(file);
        ls_dumpfile_close(later);
    }
}

static void judge_copy(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int64_t compared = 0;
    judge_between(job, "param", ls_bits_round, &compared, out);
    ls_masters_dump_conclude(
        compared, "the model's parameters are the values after the step before, rounded once", out);
}

static void judge_carry(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int64_t compared = 0;
    judge_between(job, "master", ls_masters_dump_as_it_is, &compared, out);
    ls_masters_dump_conclude(compared,
                             "a step starts from the masters that the one before has left", out);
}

/* Masters that have moved are no half values. */
static void judge_unrounded(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    ls_dumpfile *file;
    if (!ls_masters_dump_open_step(job, 2, &file, out)) {
        return;
    }
    int64_t moved = 0, rounded = 0;
    int at = 0;
    for (const char *name; (name = ls_masters_dump_next_name(file, &at)) != NULL;) {
        const ls_dumpfile_entry *held = ls_dumpfile_findf(file, "param/%s", name);
        const ls_dumpfile_entry *master = ls_dumpfile_findf(file, "master/%s", name);
        const ls_dumpfile_entry *next = ls_dumpfile_findf(file, "next/%s", name);
        if (master == NULL || next == NULL || next->count != master->count) {
            continue;
        }
        double *a = ls_masters_dump_values(master), *b = ls_masters_dump_values(next);
        for (int64_t i = 0; i < next->count; i++) {
            moved += a[i] != b[i];
            rounded += a[i] != b[i] && ls_bits_round(ls_masters_dump_type(held), b[i]) == b[i];
        }
        free(a);
        free(b);
    }
    ls_dumpfile_close(file);
    double share = moved > 0 ? (double)rounded / (double)moved : 0;
    ls_verdict_measured(out, share, rounded_share.value, "of moved masters", rounded_share.why);
    if (!(share <= rounded_share.value)) {
        ls_verdict_fail(out, "%lld of %lld masters are half values after the step",
                        (long long)rounded, (long long)moved);
        ls_verdict_cause(out, "masters are rounded to half");
    }
    ls_masters_dump_conclude(moved, "masters keep the bits that half has not", out);
}

/* Gradients of half parameters: f32(half) / S with S a power of two, so that times S each is a half
 * value, and small ones still have their bits. */
static void judge_gradient(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_dumpfile *file;
    if (!ls_masters_dump_open_step(job, 2, &file, out)) {
        return;
    }
    double scale = atof(row->job[0].loss_scale);
    int64_t compared = 0, fine = 0;
    int at = 0;
    for (const char *name; (name = ls_masters_dump_next_name(file, &at)) != NULL;) {
        const ls_dumpfile_entry *held = ls_dumpfile_findf(file, "param/%s", name);
        const ls_dumpfile_entry *grad = ls_dumpfile_findf(file, "grad/%s", name);
        if (grad == NULL || ls_masters_dump_type(held) == LS_BITS_F32) {
            continue;
        }
        double *g = ls_masters_dump_values(grad);
        for (int64_t i = 0; i < grad->count; i++) {
            double scaled = g[i] * scale;
            if (ls_bits_round(ls_masters_dump_type(held), scaled) != scaled) {
                ls_verdict_fail(
                    out,
                    "%s element %lld: %.9g times the loss scale %g is no %s: it was not "
                    "reduced in half and unscaled once, in f32",
                    name, (long long)i, g[i], scale, held->dtype);
                break;
            }
            fine += ls_bits_round(ls_masters_dump_type(held), g[i]) != g[i];
        }
        compared += grad->count;
        free(g);
    }
    ls_dumpfile_close(file);
    /* bf16 has f32's range: nothing is lost in it by a power of two */
    if (out->code == LS_PASS && fine == 0 && strcmp(row->job[0].half, "fp16") == 0) {
        ls_verdict_fail(out, "every unscaled gradient is an fp16 value: subnormals are lost");
        ls_verdict_cause(out, "gradients are unscaled in half");
    }
    ls_masters_dump_conclude(compared, "gradients are half values over the loss scale, exactly",
                             out);
}

/* The file holds f32 masters, those of the last step, and the parameters rounded from them. */
static void judge_checkpoint(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    ls_dumpfile *file, *saved;
    if (!ls_masters_dump_open_step(job, STEPS, &file, out)) {
        return;
    }
    if (!ls_masters_dump_open_file(job, "checkpoint.safetensors", &saved, out)) {
        ls_dumpfile_close(file);
        return;
    }
    int64_t compared = 0;
    int at = 0;
    for (const char *name; (name = ls_masters_dump_next_name(file, &at)) != NULL;) {
        const ls_dumpfile_entry *next = ls_dumpfile_findf(file, "next/%s", name);
        if (ls_dumpfile_findf(file, "master/%s", name) != NULL) {
            ls_masters_dump_compare(ls_dumpfile_findf(saved, "master/%s", name), next,
                                    ls_masters_dump_as_it_is, "saved master", &compared, out);
        }
        ls_masters_dump_compare(ls_dumpfile_findf(saved, "param/%s", name), next, ls_bits_round,
                                "saved parameter", &compared, out);
    }
    ls_dumpfile_close(file);
    ls_dumpfile_close(saved);
    ls_masters_dump_conclude(
        compared, "the checkpoint holds the masters themselves and their half copies", out);
}

/* job: 0 the variant, 1 the same at O0. Half weights are f32's rounded, and so are their masters.
 */
static void judge_from_init(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    ls_dumpfile *file, *single;
    if (!ls_masters_dump_open_step(&job[0], 1, &file, out)) {
        return;
    }
    if (!ls_masters_dump_open_step(&job[1], 1, &single, out)) {
        ls_dumpfile_close(file);
        return;
    }
    int64_t compared = 0;
    int at = 0;
    for (const char *name; (name = ls_masters_dump_next_name(file, &at)) != NULL;) {
        ls_masters_dump_compare(ls_dumpfile_findf(file, "param/%s", name),
                                ls_dumpfile_findf(single, "param/%s", name), ls_bits_round,
                                "first parameter", &compared, out);
    }
    ls_dumpfile_close(file);
    ls_dumpfile_close(single);
    ls_masters_dump_conclude(compared, "first parameters are O0's, rounded to nearest even", out);
}

/* No master anywhere, and the step's result is what the model holds. */
static void judge_none(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    ls_dumpfile *file;
    if (!ls_masters_dump_open_step(job, 2, &file, out)) {
        return;
    }
    int64_t compared = 0;
    int at = 0;
    for (const char *name; (name = ls_masters_dump_next_name(file, &at)) != NULL;) {
        const ls_dumpfile_entry *held = ls_dumpfile_findf(file, "param/%s", name);
        const ls_dumpfile_entry *next = ls_dumpfile_findf(file, "next/%s", name);
        if (ls_dumpfile_findf(file, "master/%s", name) != NULL) {
            ls_verdict_fail(out, "%s has a master", name);
        } else if (next == NULL || strcmp(held->dtype, next->dtype) != 0) {
            ls_verdict_fail(out, "%s is %s and steps in %s", name, held->dtype,
                            next == NULL ? "nothing" : next->dtype);
        }
    }
    ls_dumpfile_close(file);
    if (out->code == LS_PASS) {
        judge_between(job, "param", ls_masters_dump_as_it_is, &compared, out);
    }
    ls_masters_dump_conclude(compared, "no masters; the value stepped is the one the model holds",
                             out);
}

/* job: 0 O3 with masters, 1 O2 with half batch norm: the same run. */
static void judge_same(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int compared = 0;
    for (int k = 0; k < job[0].world && k < job[1].world; k++) {
        for (int64_t step = 1; step <= STEPS; step++) {
            const ls_record_step *a = ls_record_find_step(&job[0].rank[k], step);
            const ls_record_step *b = ls_record_find_step(&job[1].rank[k], step);
            for (int d = 0; a != NULL && b != NULL && d < LS_RECORD_DIGESTS; d++) {
                bool both = (a->digest_mask & b->digest_mask & 1u << d) != 0;
                compared += both;
                if (both && strcmp(a->digest[d], b->digest[d]) != 0) {
                    ls_verdict_fail(out, "rank=%d step %d: %s is %s at O3, %s at O2", k, (int)step,
                                    ls_record_digest_name((ls_record_digest)d), a->digest[d],
                                    b->digest[d]);
                }
            }
        }
    }
    ls_masters_dump_conclude(
        compared, "digests of O3 with masters and O2 with half batch norm are equal", out);
}

static void judge_replicas(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_ddp_judge_lockstep(row, job, out);
    const ls_record_step *last = ls_record_find_step(&job->rank[0], STEPS);
    if (last == NULL || (last->digest_mask & 1u << LS_RECORD_MASTER) == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "no digest of masters");
    }
}

/* ---- updates below half a unit --------------------------------------------------------------- */

/* Half the distance from |value| to the next smaller value of the type: less than that moves
 * nothing.
 */
static double half_gap(ls_bits_type type, double value)
{
    double size = fabs(value), unit = ls_bits_unit(type), tiny = ls_bits_tiny(type);
    int exponent;
    if (size == 0) {
        return tiny / 2;
    }
    frexp(size, &exponent);                   /* size = [1/2, 1) * 2^exponent */
    double below = ldexp(unit, exponent - 1); /* half the gap inside the binade */
    below = size == ldexp(0.5, exponent) ? below / 2 : below;
    return fmax(below, tiny / 2);
}

typedef struct small {
    int64_t elements, small, kept, moved; /* small: updates below half a gap and not zero */
} small;

/* What happens to small updates of one tensor over the run: with a master each of them counts, and
 * their sum moves the copy; without one they are lost. */
static void follow_small(const ls_dumpfile *first, const ls_dumpfile *last, const char *name,
                         double lr, small *s, ls_verdict *out)
{
    const ls_dumpfile_entry *held = ls_dumpfile_findf(first, "param/%s", name);
    const ls_dumpfile_entry *grad = ls_dumpfile_findf(first, "grad/%s", name);
    const ls_dumpfile_entry *next = ls_dumpfile_findf(first, "next/%s", name);
    const ls_dumpfile_entry *end = ls_dumpfile_findf(last, "param/%s", name);
    const ls_dumpfile_entry *master = ls_dumpfile_findf(first, "master/%s", name);
    if (grad == NULL || next == NULL || end == NULL || ls_masters_dump_type(held) == LS_BITS_F32) {
        return;
    }
    double *p = ls_masters_dump_values(held), *g = ls_masters_dump_values(grad),
           *n = ls_masters_dump_values(next), *e = ls_masters_dump_values(end);
    for (int64_t i = 0; i < held->count; i++) {
        double update = lr * g[i];
        s->elements++;
        /* 1 % off the edge: f32's product and sum err by far less */
        if (update == 0 || !(fabs(update) < 0.99 * half_gap(ls_masters_dump_type(held), p[i]))) {
            continue;
        }
        s->small++;
        /* an f32 master keeps what is above half of its own unit */
        bool keeps = master != NULL && fabs(update) > fabs(p[i]) * 0x1p-23;
        s->kept += n[i] != p[i];
        s->moved += e[i] != p[i];
        if (keeps && n[i] == p[i]) {
            ls_verdict_fail(out, "%s element %lld: an update of %.3g on %.9g is lost", name,
                            (long long)i, update, p[i]);
        } else if (master == NULL && n[i] != p[i]) {
            ls_verdict_fail(
                out, "%s element %lld: an update of %.3g moved %.9g, half a unit is %.3g", name,
                (long long)i, update, p[i], half_gap(ls_masters_dump_type(held), p[i]));
        }
    }
    free(p);
    free(g);
    free(n);
    free(e);
}

static void judge_small(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_dumpfile *first, *last;
    if (!ls_masters_dump_open_step(job, 1, &first, out)) {
        return;
    }
    if (!ls_masters_dump_open_step(job, SMALL_STEPS, &last, out)) {
        ls_dumpfile_close(first);
        return;
    }
    small s = {0};
    int at = 0;
    for (const char *name; (name = ls_masters_dump_next_name(first, &at)) != NULL;) {
        follow_small(first, last, name, row->job[0].lr, &s, out);
    }
    ls_dumpfile_close(first);
    ls_dumpfile_close(last);
    bool masters = row->number[0] != 0;
    if ((double)s.small < small_share.value * (double)s.elements) {
        ls_verdict_set(out, LS_WEAK, "only %lld of %lld updates are small", (long long)s.small,
                       (long long)s.elements);
    }
    if (masters && s.moved == 0) {
        ls_verdict_fail(out,
                        "%lld small updates were kept, and after %d steps none has moved "
                        "its copy",
                        (long long)s.kept, SMALL_STEPS - 1);
    }
    ls_verdict_pass(
        out,
        "%lld of %lld updates are below half a unit: %lld changed the value at once, %lld "
        "copies had moved %d steps later",
        (long long)s.small, (long long)s.elements, (long long)s.kept, (long long)s.moved,
        SMALL_STEPS - 1);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static ls_spec job_of(const ls_case_settings *settings, int level, const char *half,
                      const char *extra)
{
    ls_spec spec = ls_rows_evidence(settings, level, 2, 1, 0.05);
    ls_text_put(spec.arch, sizeof spec.arch, "resnet8");
    ls_text_put(spec.half, sizeof spec.half, "%s", half);
    ls_text_put(spec.extra, sizeof spec.extra, "%s", extra);
    ls_text_put(spec.dump_steps, sizeof spec.dump_steps, "1,2,3,4");
    spec.dump_all = false;
    spec.steps = STEPS;
    return spec;
}

static void add_variants(const ls_case_settings *settings, ls_case_list *list)
{
    static const struct {
        const char *name, *requirement;
        ls_case_judge *judge;
    } rows[] = {
        {"start", "M1", judge_start},         {"copy", "M2", judge_copy},
        {"carry", "M3", judge_carry},         {"unrounded", "M3", judge_unrounded},
        {"gradient", "M4", judge_gradient},   {"checkpoint", "M5", judge_checkpoint},
        {"from-init", "M1", judge_from_init}, {"replicas", "M6", judge_replicas},
    };
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            ls_case *row = ls_rows_add(list, rows[r].judge, rows[r].requirement, "masters.%s.%s",
                                       rows[r].name, variants[v].name);
            row->job_count = 1;
            row->job[0] = job_of(settings, variants[v].level, variants[v].half, variants[v].extra);
            if (rows[r].judge == judge_checkpoint) {
                ls_text_add(row->job[0].extra, sizeof row->job[0].extra,
                            " --save={self}/checkpoint.safetensors");
            } else if (rows[r].judge == judge_from_init) {
                row->job_count = 2;
                row->job[1] = job_of(settings, 0, "fp16", "");
            }
        }
    }
}

/* The same of the job of optim.adam.*.o2: moments beside the masters, and a skipped step. */
static void add_adam(const ls_case_settings *settings, ls_case_list *list)
{
    static const struct {
        const char *name, *requirement;
        ls_case_judge *judge;
    } rows[] = {{"start", "M1", judge_start},
                {"copy", "M2", judge_copy},
                {"carry", "M3", judge_carry},
                {"unrounded", "M3", judge_unrounded},
                {"replicas", "M6", judge_replicas}};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        ls_case *row = ls_rows_add(list, rows[r].judge, rows[r].requirement, "masters.%s.adam.o2",
                                   rows[r].name);
        row->job_count = 1;
        row->job[0] = ls_optim_adam_job(settings, 2);
    }
}

static void add_none(const ls_case_settings *settings, ls_case_list *list)
{
    static const struct {
        const char *name, *extra;
        int level;
    } rows[] = {{"none.o0", "", 0},
                {"none.o1", "", 1},
                {"none.o3", "", 3},
                {"none.off.o2", "--master-weights=False", 2},
                {"none.asked.o0", "--master-weights=True", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_case *row = ls_rows_add(list, judge_none, "M7", "masters.%s", rows[i].name);
        row->job_count = 1;
        row->job[0] = job_of(settings, rows[i].level, "fp16", rows[i].extra);
    }
}

static void add_small(const ls_case_settings *settings, ls_case_list *list)
{
    static const struct {
        const char *name, *half, *extra;
        int level, masters;
    } rows[] = {{"small.o2", "fp16", "", 2, 1},
                {"small.bf16.o2", "bf16", "", 2, 1},
                {"small.on.o3", "fp16", "--master-weights=True", 3, 1},
                {"small.lost.o3", "fp16", "", 3, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char extra[128];
        ls_text_put(extra, sizeof extra, "--momentum=0 --weight-decay=0 %s", rows[i].extra);
        ls_case *row = ls_rows_add(list, judge_small, "M8", "masters.%s", rows[i].name);
        row->job_count = 1;
        row->number[0] = rows[i].masters;
        row->job[0] = job_of(settings, rows[i].level, rows[i].half, extra);
        row->job[0].lr = 1e-3;
        row->job[0].steps = SMALL_STEPS;
        ls_text_put(row->job[0].dump_steps, sizeof row->job[0].dump_steps, "1,%d", SMALL_STEPS);
    }
}

void ls_masters_cases(const ls_case_settings *settings, ls_case_list *list)
{
    add_variants(settings, list);
    add_adam(settings, list);
    add_none(settings, list);
    add_small(settings, list);
    ls_case *row = ls_rows_add(list, judge_same, "M6", "masters.same.o3");
    row->job_count = 2;
    row->job[0] = job_of(settings, 3, "fp16", "--master-weights=True");
    row->job[1] = job_of(settings, 2, "fp16", "--keep-batchnorm-fp32=False");
}
