/* Master weights from a job's dumps, to the last bit: what they start as, what the half copies are,
 * that they keep what half would lose, who has none, and that a checkpoint holds them. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/judge/judges.h"

enum { STEPS = 4, SMALL_STEPS = 8 };

static const ls_tol rounded_share = LS_TOL(
    0.02, "share of moved masters that are half values: 13 (bf16: 16) further bits are all zero "
          "once in 2^13; rounded masters have 1");
static const ls_tol small_share = LS_TOL(
    0.05, "share of elements whose update is below half a unit of the half type and not zero: "
          "the learning rate is chosen so that it is most of them");

/* ---- dumps, element by element, to the last bit ---------------------------------------------- */

/* The parameters of a dump, one after another; another file of the job may lie next to it. */
typedef struct look {
    ls_dumpfile *file, *other;
    int at;
    const char *name;
    const ls_dumpfile_entry *held, *master, *next, *grad; /* NULL: absent */
} look;

static look look_at(ls_dumpfile *file)
{
    return (look){.file = file};
}

/* At no parameter unless both could be opened. */
static look look_at_both(ls_dumpfile *file, ls_dumpfile *other)
{
    if (file != NULL && other != NULL) {
        return (look){.file = file, .other = other};
    }
    ls_dumpfile_close(file);
    ls_dumpfile_close(other);
    return (look){.file = NULL};
}

/* Goes to the next parameter; closes the files behind the last one. */
static bool next_param(look *l)
{
    l->name = l->file != NULL ? ls_dumps_next_param(l->file, &l->at) : NULL;
    if (l->name == NULL) {
        ls_dumpfile_close(l->file);
        ls_dumpfile_close(l->other);
        return false;
    }
    l->held = ls_dumpfile_findf(l->file, "param/%s", l->name);
    l->master = ls_dumpfile_findf(l->file, "master/%s", l->name);
    l->next = ls_dumpfile_findf(l->file, "next/%s", l->name);
    l->grad = ls_dumpfile_findf(l->file, "grad/%s", l->name);
    return true;
}

typedef double conversion(ls_bits_type type, double value);

static double as_it_is(ls_bits_type type, double value)
{
    (void)type;
    return value;
}

/* The half value next to `value`, towards zero, or itself. */
static bool is_cut(ls_bits_type type, double have, double value)
{
    int lowest = type == LS_BITS_F16 ? -14 : -126, digits = type == LS_BITS_F16 ? 10 : 7;
    int exponent = have == 0 ? lowest : ilogb(have);
    double unit = ldexp(1, (exponent > lowest ? exponent : lowest) - digits);
    return fabs(have) <= fabs(value) && fabs(value) - fabs(have) < unit;
}

/* Says what every element is, where it is one thing. */
static void explain(ls_bits_type type, const double *have, const double *from, int64_t count,
                    ls_verdict *out)
{
    bool cut = type != LS_BITS_F32, half[2] = {!cut, !cut};
    for (int64_t i = 0; i < count; i++) {
        cut = cut && is_cut(type, have[i], from[i]);
        half[0] = half[0] && have[i] == ls_bits_round(LS_BITS_F16, from[i]);
        half[1] = half[1] && have[i] == ls_bits_round(LS_BITS_BF16, from[i]);
    }
    if (cut) {
        ls_verdict_cause(out, "values are cut, not rounded to nearest");
    } else if (half[0] || half[1]) {
        ls_verdict_cause(out, "f32 values are rounded to half: they come from the half weights");
    }
}

/* Whether every element of `have` is `convert`(that of `from`); counts what was compared. */
static void compare(const ls_dumpfile_entry *have, const ls_dumpfile_entry *from,
                    conversion *convert, const char *what, int64_t *compared, ls_verdict *out)
{
    if (have == NULL || from == NULL || have->count != from->count) {
        ls_verdict_fail(out, "%s is missing or misshapen", what);
        return;
    }
    double *a = ls_dumps_values(have), *b = ls_dumps_values(from);
    ls_bits_type type = ls_dumps_type(have);
    for (int64_t i = 0; i < have->count; i++) {
        double want = convert(type, b[i]);
        if (a[i] != want || signbit(a[i]) != signbit(want)) {
            ls_verdict_fail(out, "%s element %lld: %s is %.9g, %s of %.9g is %.9g",
                            strchr(have->name, '/') + 1, (long long)i, what, a[i], have->dtype,
                            b[i], want);
            explain(type, a, b, have->count, out);
            break;
        }
    }
    *compared += have->count;
    free(a);
    free(b);
}

/* Nothing compared is UNSUPPORTED; else the number and `text` are the evidence. */
static void conclude(int64_t compared, const char *text, ls_verdict *out)
{
    if (compared == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the dump holds nothing that could be compared");
    }
    ls_verdict_pass(out, compared, "%lld elements: %s", (long long)compared, text);
}

/* ---- what masters are ------------------------------------------------------------------------ */

/* Step 1: one for every half parameter, f32, its value exactly; none for others. */
static void judge_start(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int64_t compared = 0;
    int masters = 0, halves = 0;
    char unmastered[64] = "";
    (void)row;
    for (look l = look_at(ls_dumps_open(job, 1, 0, out)); next_param(&l);) {
        bool half = ls_dumps_type(l.held) != LS_BITS_F32;
        halves += half;
        masters += l.master != NULL;
        if (half && l.next != NULL && ls_dumps_type(l.next) != LS_BITS_F32) {
            ls_text_put(unmastered, sizeof unmastered, "%s", l.name);
        }
        if (l.master != NULL && (!half || ls_dumps_type(l.master) != LS_BITS_F32)) {
            ls_verdict_fail(out, "%s is %s and has a master in %s", l.name, l.held->dtype,
                            l.master->dtype);
        } else if (l.master != NULL) {
            compare(l.master, l.held, as_it_is, "master", &compared, out);
        }
    }
    if (unmastered[0] != '\0') {
        ls_verdict_fail(out, "%s is half and what is stepped is, too: it has no master",
                        unmastered);
    } else if (masters > 0 && masters < halves) {
        ls_verdict_fail(out, "%d of %d half parameters have a master", masters, halves);
    }
    conclude(compared, "every half parameter starts with a master of its own value", out);
}

/* Between consecutive steps: the parameter is the rounded value, the master the value itself. */
static void judge_between(const ls_record *job, const char *kind, conversion *convert,
                          int64_t *compared, ls_verdict *out)
{
    for (int step = 1; step < STEPS && out->code == LS_PASS; step++) {
        look l =
            look_at_both(ls_dumps_open(job, step, 0, out), ls_dumps_open(job, step + 1, 0, out));
        while (next_param(&l)) {
            const ls_dumpfile_entry *have = ls_dumpfile_findf(l.other, "%s/%s", kind, l.name);
            if (have != NULL || l.master != NULL || strcmp(kind, "param") == 0) {
                compare(have, l.next, convert, kind, compared, out);
            }
        }
    }
}

static void judge_copy(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int64_t compared = 0;
    judge_between(job, "param", ls_bits_round, &compared, out);
    conclude(compared, "the model's parameters are the values after the step before, rounded once",
             out);
}

static void judge_carry(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int64_t compared = 0;
    judge_between(job, "master", as_it_is, &compared, out);
    conclude(compared, "a step starts from the masters that the one before has left", out);
}

/* Masters that have moved are no half values. */
static void judge_unrounded(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int64_t moved = 0, rounded = 0;
    (void)row;
    for (look l = look_at(ls_dumps_open(job, 2, 0, out)); next_param(&l);) {
        if (l.master == NULL) {
            continue;
        }
        if (!ls_dumpfile_floats(l.next, l.master->count)) {
            ls_verdict_fail(out, "next/%s is missing or misshapen", l.name);
            continue;
        }
        double *a = ls_dumps_values(l.master), *b = ls_dumps_values(l.next);
        for (int64_t i = 0; i < l.next->count; i++) {
            moved += a[i] != b[i];
            rounded += a[i] != b[i] && ls_bits_round(ls_dumps_type(l.held), b[i]) == b[i];
        }
        free(a);
        free(b);
    }
    double share = moved > 0 ? (double)rounded / (double)moved : 0;
    if (!ls_verdict_worst(out, share, &rounded_share, "of moved masters")) {
        ls_verdict_fail(out, "%lld of %lld masters are half values after the step",
                        (long long)rounded, (long long)moved);
        ls_verdict_cause(out, "masters are rounded to half");
    }
    conclude(moved, "masters keep the bits that half has not", out);
}

/* Gradients of half parameters: f32(half) / S with S a power of two, so that times S each is a half
 * value, and small ones still have their bits. */
static void judge_gradient(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    double scale = atof(row->job[0].loss_scale);
    int64_t compared = 0, fine = 0;
    for (look l = look_at(ls_dumps_open(job, 2, 0, out)); next_param(&l);) {
        ls_bits_type held = ls_dumps_type(l.held);
        if (held == LS_BITS_F32) {
            continue;
        }
        if (!ls_dumpfile_floats(l.grad, l.held->count)) {
            ls_verdict_fail(out, "grad/%s is missing or misshapen", l.name);
            continue;
        }
        double *g = ls_dumps_values(l.grad);
        for (int64_t i = 0; i < l.grad->count; i++) {
            if (ls_bits_round(held, g[i] * scale) != g[i] * scale) {
                ls_verdict_fail(
                    out,
                    "%s element %lld: %.9g times the loss scale %g is no %s: it was not "
                    "reduced in half and unscaled once, in f32",
                    l.name, (long long)i, g[i], scale, l.held->dtype);
                break;
            }
            fine += ls_bits_round(held, g[i]) != g[i];
        }
        compared += l.grad->count;
        free(g);
    }
    /* bf16 has f32's range: nothing is lost in it by a power of two */
    if (out->code == LS_PASS && compared > 0 && fine == 0 &&
        strcmp(row->job[0].half, "fp16") == 0) {
        ls_verdict_fail(out, "every unscaled gradient is an fp16 value: subnormals are lost");
        ls_verdict_cause(out, "gradients are unscaled in half");
    }
    conclude(compared, "gradients are half values over the loss scale, exactly", out);
}

/* The file holds f32 masters, those of the last step, and the parameters rounded from them. */
static void judge_checkpoint(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int64_t compared = 0;
    (void)row;
    look l = look_at_both(ls_dumps_open(job, STEPS, 0, out),
                          ls_dumps_open_file(job, "checkpoint.safetensors", LS_FAIL, out));
    while (next_param(&l)) {
        if (l.master != NULL) {
            compare(ls_dumpfile_findf(l.other, "master/%s", l.name), l.next, as_it_is,
                    "saved master", &compared, out);
        }
        compare(ls_dumpfile_findf(l.other, "param/%s", l.name), l.next, ls_bits_round,
                "saved parameter", &compared, out);
    }
    conclude(compared, "the checkpoint holds the masters themselves and their half copies", out);
}

/* job: 0 the variant, 1 the same at O0. Half weights are f32's rounded, and so are their masters.
 */
static void judge_from_init(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int64_t compared = 0;
    (void)row;
    look l = look_at_both(ls_dumps_open(&job[0], 1, 0, out), ls_dumps_open(&job[1], 1, 0, out));
    while (next_param(&l)) {
        compare(l.held, ls_dumpfile_findf(l.other, "param/%s", l.name), ls_bits_round,
                "first parameter", &compared, out);
    }
    conclude(compared, "first parameters are O0's, rounded to nearest even", out);
}

/* No master anywhere, and the step's result is what the model holds. */
static void judge_none(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int64_t compared = 0;
    (void)row;
    for (look l = look_at(ls_dumps_open(job, 2, 0, out)); next_param(&l);) {
        if (l.master != NULL) {
            ls_verdict_fail(out, "%s has a master", l.name);
        } else if (l.next == NULL || strcmp(l.held->dtype, l.next->dtype) != 0) {
            ls_verdict_fail(out, "%s is %s and steps in %s", l.name, l.held->dtype,
                            l.next == NULL ? "nothing" : l.next->dtype);
        }
    }
    if (out->code == LS_PASS) {
        judge_between(job, "param", as_it_is, &compared, out);
    }
    conclude(compared, "no masters; the value stepped is the one the model holds", out);
}

static void judge_replicas(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_judge_lockstep(row, job, out);
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
static void follow_small(const look *l, double lr, small *s, ls_verdict *out)
{
    const ls_dumpfile_entry *end = ls_dumpfile_findf(l->other, "param/%s", l->name);
    ls_bits_type type = ls_dumps_type(l->held);
    if (type == LS_BITS_F32) {
        return;
    }
    int64_t count = l->held->count;
    if (!ls_dumpfile_floats(l->grad, count) || !ls_dumpfile_floats(l->next, count) ||
        !ls_dumpfile_floats(end, count)) {
        ls_verdict_fail(out, "%s: gradient or a value after a step is missing or misshapen",
                        l->name);
        return;
    }
    double *p = ls_dumps_values(l->held), *g = ls_dumps_values(l->grad),
           *n = ls_dumps_values(l->next), *e = ls_dumps_values(end);
    for (int64_t i = 0; i < l->held->count; i++) {
        double update = lr * g[i];
        s->elements++;
        /* 1 % off the edge: f32's product and sum err by far less */
        if (update == 0 || !(fabs(update) < 0.99 * half_gap(type, p[i]))) {
            continue;
        }
        s->small++;
        /* an f32 master keeps what is above half of its own unit */
        bool keeps = l->master != NULL && fabs(update) > fabs(p[i]) * 0x1p-23;
        s->kept += n[i] != p[i];
        s->moved += e[i] != p[i];
        if (keeps && n[i] == p[i]) {
            ls_verdict_fail(out, "%s element %lld: an update of %.3g on %.9g is lost", l->name,
                            (long long)i, update, p[i]);
        } else if (l->master == NULL && n[i] != p[i]) {
            ls_verdict_fail(out,
                            "%s element %lld: an update of %.3g moved %.9g, half a unit is %.3g",
                            l->name, (long long)i, update, p[i], half_gap(type, p[i]));
        }
    }
    free(p);
    free(g);
    free(n);
    free(e);
}

static void judge_small(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    small s = {0};
    look l = look_at_both(ls_dumps_open(job, 1, 0, out), ls_dumps_open(job, SMALL_STEPS, 0, out));
    while (next_param(&l)) {
        follow_small(&l, row->job[0].lr, &s, out);
    }
    bool masters = *(const bool *)row->data;
    if (s.small == 0 || (double)s.small < small_share.value * (double)s.elements) {
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
        out, s.small,
        "%lld of %lld updates are below half a unit: %lld changed the value at once, %lld "
        "copies had moved %d steps later",
        (long long)s.small, (long long)s.elements, (long long)s.kept, (long long)s.moved,
        SMALL_STEPS - 1);
}

/* ---- rows ------------------------------------------------------------------------------------ */

#define SMALL "resnet8 w2 b0.05 dump-ranks=0 "
#define MASTERS SMALL "steps=4 dump=1,2,3,4 "
/* What has masters. */
#define VARIANTS                                                    \
    "[o2=O2|bf16.o2=O2 bf16|all.o2=O2 --keep-batchnorm-fp32=False|" \
    "on.o3=O3 --master-weights=True]"
/* Updates below half a unit. */
#define LITTLE SMALL "steps=8 dump=1,8 lr=0.001 --momentum=0 --weight-decay=0 "

#define ADAM                                                                         \
    "resnet8 O2 w3 b0.05 steps=6 dump=1,2,3,4,5 dump-ranks=0 scale=dynamic lr=0.01 " \
    "--optimizer=adam --weight-decay=0 --init-scale=1024 --overflow-at=3:1"

static const ls_row rows[] = {
    {"masters.start." VARIANTS, "M1", judge_start, MASTERS "$1"},
    {"masters.copy." VARIANTS, "M2", judge_copy, MASTERS "$1"},
    {"masters.carry." VARIANTS, "M3", judge_carry, MASTERS "$1"},
    {"masters.unrounded." VARIANTS, "M3", judge_unrounded, MASTERS "$1"},
    {"masters.gradient." VARIANTS, "M4", judge_gradient, MASTERS "$1"},
    {"masters.checkpoint." VARIANTS, "M5", judge_checkpoint,
     MASTERS "$1 --save={self}/checkpoint.safetensors"},
    {"masters.from-init." VARIANTS, "M1", judge_from_init, MASTERS "$1 | " MASTERS},
    {"masters.replicas." VARIANTS, "M6", judge_replicas, MASTERS "$1"},
    {"masters.none.[o0=O0|o1=O1|o3=O3|off.o2=O2 --master-weights=False|"
     "asked.o0=O0 --master-weights=True]",
     "M7", judge_none, MASTERS "$1"},
    {"masters.small.[o2=O2|bf16.o2=O2 bf16|on.o3=O3 --master-weights=True]", "M8", judge_small,
     LITTLE "$1", &(const bool){true}},
    {"masters.small.lost.o3", "M8", judge_small, LITTLE "O3", &(const bool){false}},
    {"masters.same.o3", "M6", ls_judge_same,
     MASTERS "O3 --master-weights=True | " MASTERS "O2 --keep-batchnorm-fp32=False",
     LS_JUDGE_SAME("O3 with masters and O2 with half batch norm")},
    /* optim.adam.*'s job: moments next to the masters, and a skipped step */
    {"masters.start.adam.o2", "M1", judge_start, ADAM},
    {"masters.copy.adam.o2", "M2", judge_copy, ADAM},
    {"masters.carry.adam.o2", "M3", judge_carry, ADAM},
    {"masters.unrounded.adam.o2", "M3", judge_unrounded, ADAM},
    {"masters.replicas.adam.o2", "M6", judge_replicas, ADAM},
};

void ls_masters_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
