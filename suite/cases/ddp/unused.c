/* Unused parameters: an auxiliary head (trainer's --aux-head) that only some ranks use in a step.
 * Its gradient of each rank is computed here from the logits and targets that the rank dumped.
 * Uneven batches: what becomes of ranks that have no batch left. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "kernels/core/status.h"
#include "suite/judge/judges.h"

enum { CLASSES = 10, BATCH = 4, WIDTH = CLASSES * CLASSES + CLASSES, STEPS = 3 };

/* ---- the head's gradient --------------------------------------------------------------------- */

static const void *data_of(const ls_dumpfile *file, const char *name, const char *type,
                           int64_t count)
{
    const ls_dumpfile_entry *entry = ls_dumpfile_find(file, name);
    return entry != NULL && entry->count == count ? ls_dumps_data(entry, type) : NULL;
}

/* Of the mean cross entropy of W x + b over the dumped logits x: [weight][bias]. */
static bool head_gradient(const ls_dumpfile *file, int images, double *out)
{
    const float *x = data_of(file, "logits", "F32", images * CLASSES);
    const int64_t *target = data_of(file, "target", "I64", images);
    const float *weight = data_of(file, "param/aux.fc.weight", "F32", CLASSES * CLASSES);
    const float *bias = data_of(file, "param/aux.fc.bias", "F32", CLASSES);
    memset(out, 0, WIDTH * sizeof *out);
    if (x == NULL || target == NULL || weight == NULL || bias == NULL) {
        return false;
    }
    for (int n = 0; n < images; n++, x += CLASSES) {
        double y[CLASSES], sum = 0;
        for (int c = 0; c < CLASSES; c++) {
            y[c] = (double)bias[c];
            for (int k = 0; k < CLASSES; k++) {
                y[c] += (double)weight[c * CLASSES + k] * (double)x[k];
            }
            sum += exp(y[c]);
        }
        for (int c = 0; c < CLASSES; c++) {
            double g = (exp(y[c]) / sum - (c == target[n])) / images;
            for (int k = 0; k < CLASSES; k++) {
                out[c * CLASSES + k] += g * (double)x[k];
            }
            out[CLASSES * CLASSES + c] += g;
        }
    }
    return true;
}

static const ls_tol rounding =
    LS_TOL(1e-6, "f32 roundings of a gradient near 0.1: once where it is made, once per addition "
                 "over 3 ranks, once by the average, and of 1/3 itself");

static const ls_tol compressed =
    LS_TOL(1e-3, "four roundings to fp16 of values below 1, 2^-12 each: where it is made, twice in "
                 "the sum of 3 ranks and by the average");

/* Which ranks use the head in each step, a bit each, and how exact its gradient is. */
struct usage {
    unsigned used[STEPS];
    const ls_tol *limit;
    double least; /* what is missing or of another step is off by about the gradient's own size */
};

static double compare_gradients(const ls_record *job, int step, const double *want,
                                const ls_tol *limit, ls_verdict *out)
{
    double worst = 0;
    for (int rank = 0; rank < job->world; rank++) {
        ls_dumpfile *file = ls_dumps_open(job, step, rank, out);
        if (file == NULL) {
            return 0;
        }
        const float *weight = data_of(file, "grad/aux.fc.weight", "F32", CLASSES * CLASSES);
        const float *bias = data_of(file, "grad/aux.fc.bias", "F32", CLASSES);
        for (int i = 0; i < WIDTH; i++) {
            const float *from = i < CLASSES * CLASSES ? weight : bias;
            double have = from == NULL
                              ? NAN
                              : (double)from[i < CLASSES * CLASSES ? i : i - CLASSES * CLASSES];
            double off = fabs(have - want[i]);
            worst = fmax(worst, off);
            if (!(off <= limit->value)) {
                ls_verdict_fail(
                    out, "step %d rank=%d aux.fc element %d has gradient %.8f, expected %.8f", step,
                    rank, i, have, want[i]);
            }
        }
        ls_dumpfile_close(file);
    }
    return worst;
}

/* The average over all ranks, with zeros of those that did not use it. */
static void judge_average(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct usage *u = row->data;
    const ls_tol *limit = u->limit;
    int images = BATCH * row->job[0].accumulate;
    double worst = 0, largest = 0;
    for (int step = 1; step <= STEPS; step++) {
        double want[WIDTH] = {0}, own[WIDTH];
        for (int rank = 0; rank < job->world; rank++) {
            ls_dumpfile *file = ls_dumps_open(job, step, rank, out);
            bool used = (u->used[step - 1] >> rank & 1) != 0;
            if (file == NULL || !head_gradient(file, images, own)) {
                ls_verdict_fail(out, "rank=%d step %d: no logits, targets or head", rank, step);
                ls_dumpfile_close(file);
                return;
            }
            bool local = ls_dumpfile_find(file, "local/aux.fc.weight") != NULL;
            if (local != used) {
                ls_verdict_fail(out, "rank=%d step %d: the head is %sused", rank, step,
                                local ? "" : "not ");
            }
            for (int i = 0; used && i < WIDTH; i++) {
                want[i] += own[i] / job->world;
                largest = fmax(largest, fabs(want[i]));
            }
            ls_dumpfile_close(file);
        }
        worst = fmax(worst, compare_gradients(job, step, want, limit, out));
    }
    ls_verdict_measured(out, worst, limit->value, "", limit->why);
    if (largest < u->least * limit->value) {
        ls_verdict_set(out, LS_WEAK, "the head's gradients are at most %.1e", largest);
    }
    ls_verdict_pass(out, (int64_t)STEPS * job->world * WIDTH,
                    "aux.fc averaged over %d ranks with zeros where unused: worst %.1e of %.1e",
                    job->world, worst, largest);
}

/* The trunk's gradients do not know of the head: the job without it has the same. */
static void judge_trunk(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int compared = 0;
    (void)row;
    for (int rank = 0; rank < job[0].world; rank++) {
        ls_dumpfile *with = ls_dumps_open(&job[0], 1, rank, out);
        ls_dumpfile *without = ls_dumps_open(&job[1], 1, rank, out);
        LS_TEXT(who, 32, "rank=%d", rank);
        compared +=
            ls_dumps_same(without, "local/", with, "local/", who, "changes with the head", out);
        ls_dumpfile_close(with);
        ls_dumpfile_close(without);
    }
    if (compared == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "no local gradients in the dumps");
    }
    ls_verdict_pass(out, compared, "%d local gradients are the same bits", compared);
}

/* Every rank's parameters alike at every step. */
static void judge_alike(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const unsigned needed = 1u << LS_RECORD_PARAM | 1u << LS_RECORD_STATE;
    (void)row;
    for (int rank = 0; rank < job->world; rank++) {
        for (int i = 0; i < STEPS; i++) {
            const ls_record_step *a = ls_record_find_step(&job->rank[0], i + 1);
            const ls_record_step *b = ls_record_find_step(&job->rank[rank], i + 1);
            if (a != NULL && b != NULL && (a->digest_mask & b->digest_mask & needed) != needed) {
                ls_verdict_set(out, LS_UNSUPPORTED,
                               "rank=%d step %d: no digests of parameters and momentum", rank,
                               i + 1);
            }
            if (a == NULL || b == NULL ||
                strcmp(a->digest[LS_RECORD_PARAM], b->digest[LS_RECORD_PARAM]) != 0 ||
                strcmp(a->digest[LS_RECORD_STATE], b->digest[LS_RECORD_STATE]) != 0) {
                ls_verdict_fail(out, "rank=%d step %d: other parameters or momentum", rank, i + 1);
            }
        }
    }
    ls_verdict_pass(out, (int64_t)job->world * STEPS, "%d ranks alike over %d steps", job->world,
                    STEPS);
}

/* ---- without --find-unused ------------------------------------------------------------------- */

struct refusal {
    int at;       /* the last step whose event may be there */
    unsigned two; /* ranks that must leave with 2 and name the parameter; the others with 2 or 10 */
};

static void judge_refusal(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct refusal *r = row->data;
    if (job->state != LS_RECORD_FAILED) {
        ls_verdict_fail(out, "the run did not fail although parameters were unused");
        return;
    }
    for (int rank = 0; rank < job->world; rank++) {
        int code = job->rank[rank].code;
        bool must = (r->two >> rank & 1) != 0;
        if (must ? code != LS_ERR_USAGE : code != LS_ERR_USAGE && code != LS_ERR_PEER_LOST) {
            ls_verdict_fail(out, "rank=%d left with code %d, expected %s", rank, code,
                            must ? "2" : "2 or 10");
        }
        if (must && !ls_endings_says(job, rank, "aux.fc.")) {
            ls_verdict_fail(out, "rank=%d does not name the parameter", rank);
        }
        int last = job->rank[rank].step_count;
        if (last != r->at) {
            ls_verdict_fail(out, "rank=%d ended after step %d, expected after %d", rank, last,
                            r->at);
        }
    }
    ls_verdict_pass(out, job->world, "refused after step %d with aux.fc named, no rank hangs",
                    r->at);
}

/* ---- no batch left --------------------------------------------------------------------------- */

/* Rank 1's third batch is missing: it says so and leaves with 2, the others find out. */
#define TAKE_AWAY                                                                            \
    "D={self}/make; mkdir -p $D {self}/batches; "                                            \
    "LS_RUN_DIR=$D \"$0\" \"$@\" --dump-steps=1,2,3 --dump-ranks=all >/dev/null || exit 9; " \
    "for s in 1 2 3; do F=step00000$s.rank$RANK.safetensors; "                               \
    "[ $RANK$s = 13 ] || cp $D/dump/$F {self}/batches/; done; "                              \
    "exec \"$0\" \"$@\" --data=batches:{self}/batches"

static void judge_no_batch(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    if (job->state != LS_RECORD_FAILED || job->rank[1].code != LS_ERR_USAGE ||
        !ls_endings_says(job, 1, "step000003.rank1")) {
        ls_verdict_fail(out, "rank=1 left with code %d, expected 2 and the missing file",
                        job->rank[1].code);
    }
    for (int rank = 0; rank < job->world; rank++) {
        if (rank != 1 && job->rank[rank].code != LS_ERR_PEER_LOST) {
            ls_verdict_fail(out, "rank=%d left with code %d, expected 10", rank,
                            job->rank[rank].code);
        }
        if (job->rank[rank].step_count != 2) {
            ls_verdict_fail(out, "rank=%d did %d steps, expected 2", rank,
                            job->rank[rank].step_count);
        }
    }
    ls_verdict_pass(out, job->world,
                    "the rank without a batch says which and leaves with 2, the others with 10");
}

/* ---- the table ------------------------------------------------------------------------------- */

#define JOB "resnet8 O0 w3 b0.05 steps=3 "
#define DUMPED JOB "dump=1,2,3 --find-unused --aux-head="
#define DIALECT "[apex=|torch]"
#define USED(...)                      \
    &(const struct usage)              \
    {                                  \
        {__VA_ARGS__}, &rounding, 1000 \
    }

static const ls_row rows[] = {
    {"unused.average.one-rank." DIALECT, "U1", judge_average, DUMPED "1:1,2:1,3:1 $1",
     USED(2, 2, 2)},
    {"unused.average.rank0." DIALECT, "U1", judge_average, DUMPED "1:0,2:0,3:0 $1", USED(1, 1, 1)},
    {"unused.average.changing." DIALECT, "U1", judge_average, DUMPED "1:0,2:1,2:2,3 $1",
     USED(1, 6, 7)},
    {"unused.average.nobody." DIALECT, "U1", judge_average, DUMPED "1,3:2 $1", USED(7, 0, 4)},
    {"unused.average.everybody." DIALECT, "U1", judge_average, DUMPED "1,2,3 $1", USED(7, 7, 7)},
    /* the reducer's own copy, apart from the gradient, must not keep an earlier step's values */
    {"unused.average.changing.compress." DIALECT, "U4", judge_average,
     JOB "dump=1,2,3 $1 --find-unused --compress=fp16 --aux-head=1:0,2:1,2:2,3",
     &(const struct usage){{1, 6, 7}, &compressed, 20}},
    /* two micro-steps: the head's loss is a mean over both, too */
    {"unused.average.everybody.accumulated", "U5", judge_average, DUMPED "1,2,3 accumulate=2",
     USED(7, 7, 7)},
    /* each micro-step reduced: a rank that does not use the head goes on with the others' average
     */
    {"unused.average.changing.each." DIALECT, "U5", judge_average,
     DUMPED "1:0,2:1,2:2,3 $1 accumulate=3 --no-sync=False", USED(1, 6, 7)},
    {"unused.alike.[one-rank=1:1,2:1,3:1|rank0=1:0,2:0,3:0|changing=1:0,2:1,2:2,3|nobody=1,3:2|"
     "everybody=1,2,3]." DIALECT,
     "U1", judge_alike, DUMPED "$1 $2"},
    {"unused.trunk." DIALECT, "U1", judge_trunk, DUMPED "1:1,2:1,3:1 $1 | " JOB "dump=1,2,3 $1"},
    {"unused.refused.apex.some", "U2", judge_refusal, JOB "--timeout=20 --aux-head=1,2:1",
     &(const struct refusal){1, 5}, .judges_outcome = true},
    {"unused.refused.apex.nobody", "U2", judge_refusal, JOB "--timeout=20 --aux-head=1",
     &(const struct refusal){1, 7}, .judges_outcome = true},
    /* reported at the next forward */
    {"unused.refused.torch.nobody", "U2", judge_refusal, JOB "torch --timeout=20 --aux-head=1",
     &(const struct refusal){2, 7}, .judges_outcome = true},
    {"unused.no-batch-left", "U3", judge_no_batch, JOB "shell", .script = TAKE_AWAY,
     .judges_outcome = true},
};

void ls_unused_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
