/* Validation: every picture counts once, whatever the number of ranks and the size of batches, and
 * an evaluation of the saved weights says the same. */
#include "suite/cases/rows.h"

#include <math.h>
#include <string.h>

#include "kernels/core/json.h"
#include "suite/judge/judges.h"

/* Ten classes of 4 pictures for training, and of 7 for validation: no multiple of 2, 3 or 4 ranks
 * and batches of 4. */
enum { TRAINED = 40, VALIDATED = 70 };
#define TREE                                                                                    \
    "D={self}/data; mkdir -p $D; {bin}/lockstep data make $D/train --images 4 --image-size 16 " \
    ">/dev/null && {bin}/lockstep data make $D/val --images 7 --image-size 16 --seed 5 "        \
    ">/dev/null || exit 3; exec \"$0\" \"$@\""

typedef struct score {
    bool given;
    int64_t images, top1, top5;
    double loss;
} score;

static score read_score(const cJSON *event, const char *name)
{
    const cJSON *from = ls_json_get(event, name);
    return (score){.given = from != NULL,
                   .images = ls_json_integer(from, "images", -1),
                   .top1 = ls_json_integer(from, "top1", -1),
                   .top5 = ls_json_integer(from, "top5", -1),
                   .loss = ls_json_number(from, "loss", NAN)};
}

static bool is_possible(const score *s)
{
    return s->images > 0 && s->top1 >= 0 && s->top1 <= s->top5 && s->top5 <= s->images &&
           s->loss >= 0;
}

static bool same(const score *a, const score *b)
{
    return a->given == b->given && a->images == b->images && a->top1 == b->top1 &&
           a->top5 == b->top5 && (a->loss == b->loss || !a->given);
}

static const ls_tol rounding =
    LS_TOL(1e-12, "a mean of at most 70 losses in double, summed in another order");

/* The ranks' own parts of one validation, against what all of them report. */
static void judge_parts(const ls_record *job, int index, const score *all, ls_verdict *out)
{
    score sum = {0};
    for (int k = 0; k < job->world; k++) {
        score own = read_score(cJSON_GetArrayItem(job->rank[k].epochs, index), "val_own");
        int64_t share = (VALIDATED - k + job->world - 1) / job->world;
        if (own.images != share) {
            ls_verdict_fail(out, "rank=%d validates %lld pictures, expected %lld of %d", k,
                            (long long)own.images, (long long)share, (int)VALIDATED);
        }
        sum.images += own.images;
        sum.top1 += own.top1;
        sum.top5 += own.top5;
        sum.loss += own.loss * (double)own.images;
    }
    if (all->images != VALIDATED) {
        ls_verdict_fail(out, "%lld pictures are validated, the folder has %d",
                        (long long)all->images, (int)VALIDATED);
    }
    if (sum.top1 != all->top1 || sum.top5 != all->top5 ||
        !(fabs(sum.loss / VALIDATED - all->loss) <= rounding.value * (1 + all->loss))) {
        ls_verdict_fail(out, "the ranks' parts are not what is reported for all of them");
    }
}

static const ls_tol steps_loss =
    LS_TOL(1e-6, "f32 losses of steps, each with 6e-8 of its value, in a mean of at most 80");

/* What the steps from `first` on report, against the training's part of an epoch's event. */
static void judge_trained(const ls_record *job, int64_t first, int64_t last, const score *all,
                          ls_verdict *out)
{
    score sum = {0};
    for (int k = 0; k < job->world; k++) {
        for (int i = 0; i < job->rank[k].step_count; i++) {
            const ls_record_step *step = &job->rank[k].step[i];
            if (step->step >= first && step->step <= last) {
                sum.images += step->images;
                sum.top1 += step->top1;
                sum.top5 += step->top5;
                sum.loss += step->loss * (double)step->images;
            }
        }
    }
    sum.loss /= (double)sum.images;
    if (sum.images != all->images || sum.top1 != all->top1 || sum.top5 != all->top5 ||
        !(fabs(sum.loss - all->loss) <= steps_loss.value * (1 + all->loss))) {
        ls_verdict_fail(out,
                        "steps %lld to %lld have %lld pictures, top-1 %lld, loss %.6f; the epoch's "
                        "event says %lld, %lld, %.6f",
                        (long long)first, (long long)last, (long long)sum.images,
                        (long long)sum.top1, sum.loss, (long long)all->images, (long long)all->top1,
                        all->loss);
    }
}

/* Two epochs of 40 pictures and half of a third; validated after the second and at the end. */
static void judge_sums(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int64_t epoch = TRAINED / (4 * job->world), steps = row->job[0].steps, first = 1;
    int events = cJSON_GetArraySize(job->rank[0].epochs);
    if (job->rank[0].epochs == NULL) {
        ls_verdict_set(out, LS_UNSUPPORTED, "rank=0 wrote no epoch event");
        return;
    }
    int64_t ends[] = {epoch, 2 * epoch, steps};
    if (events != 3) {
        ls_verdict_fail(out, "%d epoch events, expected 3", events);
    }
    for (int i = 0; i < events && out->code == LS_PASS; i++) {
        const cJSON *event = cJSON_GetArrayItem(job->rank[0].epochs, i);
        score train = read_score(event, "train"), val = read_score(event, "val");
        if (ls_json_integer(event, "step", -1) != ends[i] ||
            ls_json_integer(event, "epoch", -1) != ends[i] / epoch) {
            ls_verdict_fail(out, "epoch event %d is of step %lld, expected %lld", i + 1,
                            (long long)ls_json_integer(event, "step", -1), (long long)ends[i]);
        }
        for (int k = 1; k < job->world; k++) {
            const cJSON *other = cJSON_GetArrayItem(job->rank[k].epochs, i);
            score theirs[2] = {read_score(other, "train"), read_score(other, "val")};
            if (!same(&train, &theirs[0]) || !same(&val, &theirs[1])) {
                ls_verdict_fail(out, "rank=%d reports other sums than rank=0", k);
            }
        }
        if (!train.given || !is_possible(&train) || val.given != (i > 0) ||
            (val.given && !is_possible(&val))) {
            ls_verdict_fail(out, "epoch event %d has no possible counts", i + 1);
        } else if (val.given) {
            judge_parts(job, i, &val, out);
        }
        judge_trained(job, first, ends[i], &train, out);
        first = ends[i] + 1;
    }
    ls_verdict_pass(out, events * job->world, "each of %d pictures counts once over %d ranks",
                    (int)VALIDATED, job->world);
}

static const ls_tol weights =
    LS_TOL(1e-5, "f32 forwards of other batches: f32 units of a loss of about 2");

/* job 0 trains on W ranks, validates and saves; job 1 evaluates what was saved, on one rank and in
 * other batches. All ranks have rank 0's running statistics where they validate. */
static void judge_again(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int events = cJSON_GetArraySize(job[0].rank[0].epochs);
    for (int i = 0; i < 2; i++) {
        if (job[i].state != LS_RECORD_DONE) {
            char line[300];
            ls_record_last_line(&job[i], 0, line, (int)sizeof line);
            ls_verdict_fail(out, "job %d ended with code %d: %s", i, job[i].code, line);
            return;
        }
    }
    if (events == 0 || cJSON_GetArraySize(job[1].rank[0].epochs) != 1) {
        ls_verdict_set(out, LS_UNSUPPORTED, "rank=0 wrote no epoch event");
        return;
    }
    score first = read_score(cJSON_GetArrayItem(job[0].rank[0].epochs, events - 1), "val");
    score again = read_score(cJSON_GetArrayItem(job[1].rank[0].epochs, 0), "val");
    double off = fabs(again.loss - first.loss);
    ls_verdict_measured(out, off, weights.value, "", weights.why);
    if (!is_possible(&first) || first.images != again.images || first.top1 != again.top1 ||
        first.top5 != again.top5 || !(off <= weights.value)) {
        ls_verdict_fail(out,
                        "%d ranks: %lld pictures, top-1 %lld, top-5 %lld, loss %.6f; the saved "
                        "weights on one: %lld, %lld, %lld, %.6f",
                        job[0].world, (long long)first.images, (long long)first.top1,
                        (long long)first.top5, first.loss, (long long)again.images,
                        (long long)again.top1, (long long)again.top5, again.loss);
    }
    if (job[1].rank[0].step_count > 0) {
        ls_verdict_fail(out, "--evaluate took %d steps", job[1].rank[0].step_count);
    }
    ls_verdict_pass(out, 4, "the saved weights give the same counts; the loss is %.1e away", off);
}

static const ls_tol line = LS_TOL(1e-12, "the same logits, means of 70 losses in double");

/* Jobs 1 to 3 evaluate what job 0 saved, with labels smoothed by 0, 1/4 and 1: the loss is linear
 * in that, and that of even labels is at least log C. */
static void judge_smoothed(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    score got[3];
    for (int i = 0; i < 3; i++) {
        const cJSON *events = job[i + 1].rank[0].epochs;
        got[i] = read_score(cJSON_GetArrayItem(events, 0), "val");
        if (cJSON_GetArraySize(events) != 1 || !is_possible(&got[i])) {
            ls_verdict_fail(out, "job %d wrote no validation", i + 1);
            return;
        }
    }
    (void)row;
    double want = 0.75 * got[0].loss + 0.25 * got[2].loss, off = fabs(got[1].loss - want);
    ls_verdict_measured(out, off, line.value, "", line.why);
    if (!(off <= line.value * (1 + want)) || !(got[2].loss >= log(10.0) - line.value) ||
        got[0].loss == got[2].loss) {
        ls_verdict_fail(out,
                        "the loss is %.9f, smoothed by 0.25 %.9f and by 1 %.9f: not smoothed as it "
                        "is trained",
                        got[0].loss, got[1].loss, got[2].loss);
    }
    if (got[0].top1 != got[2].top1 || got[0].top5 != got[2].top5) {
        ls_verdict_fail(out, "smoothing changes top-1 or top-5");
    }
    ls_verdict_pass(out, 3, "the loss is %.4f, of even labels %.4f, between them on a line",
                    got[0].loss, got[2].loss);
}

/* How a script reports what it validated, where it reports more than it has: one of these. */
static void explain_counts(const ls_record *job, int64_t images, ls_verdict *out)
{
    int64_t share = (VALIDATED + job->world - 1) / job->world;
    if (images == share * job->world) {
        ls_verdict_cause(out,
                         "pictures that fill up the last round are counted again: a sampler pads "
                         "the validation set to a multiple of %d ranks",
                         job->world);
    } else if (images == share || images == share - 1) {
        ls_verdict_cause(out, "a rank reports its own part: the counts are not summed over ranks");
    } else if (images == (int64_t)job->world * VALIDATED) {
        ls_verdict_cause(out, "every rank validates all pictures, and the sum counts each %d times",
                         job->world);
    }
}

/* After every epoch of a script: each picture counts once, and all ranks report the same. Loss and
 * top-1 are what its training left, which other cases judge. */
static void judge_counts(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int validations = 0;
    (void)row;
    for (int i = 0; i < cJSON_GetArraySize(job->rank[0].epochs); i++) {
        score first = read_score(cJSON_GetArrayItem(job->rank[0].epochs, i), "val");
        validations += first.given;
        for (int k = 0; k < job->world && first.given; k++) {
            score val = read_score(cJSON_GetArrayItem(job->rank[k].epochs, i), "val");
            if (val.images != VALIDATED) {
                ls_verdict_fail(out, "rank=%d: %lld pictures are validated, the folder has %d", k,
                                (long long)val.images, (int)VALIDATED);
            } else if (val.top1 != first.top1 || val.loss != first.loss) {
                ls_verdict_fail(out, "rank=%d reports top-1 %lld and loss %.6f, rank=0 %lld, %.6f",
                                k, (long long)val.top1, val.loss, (long long)first.top1,
                                first.loss);
            } else if (val.top1 < 0 || val.top1 > val.images || !(val.loss >= 0)) {
                ls_verdict_fail(out, "rank=%d: top-1 %lld and loss %.6f of %lld pictures", k,
                                (long long)val.top1, val.loss, (long long)val.images);
            }
        }
        if (out->code == LS_FAIL && out->cause[0] == '\0') {
            explain_counts(job, first.images, out);
        }
    }
    if (validations == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "rank=0 reports no validation in an epoch event");
    }
    ls_verdict_pass(out, (int64_t)validations * job->world,
                    "each of %d pictures counts once over %d ranks, %d times", (int)VALIDATED,
                    job->world, validations);
}

/* Gradients of the epoch behind a validation: what it leaves must not change the training. */
static void judge_after(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_judge_gradients(row, job, out);
    if (out->code != LS_FAIL) {
        return;
    }
    ls_judge_running held, before;
    ls_dumpfile *last = ls_dumps_open(job, 4, 0, out), *first = ls_dumps_open(job, 3, 0, out);
    bool read = last != NULL && first != NULL && ls_judge_statistics_read(last, &held) &&
                ls_judge_statistics_read(first, &before);
    if (read && memcmp(&held, &before, sizeof held) == 0) {
        out->cause[0] = '\0';
        ls_verdict_cause(out, "running statistics did not move: the model is still in evaluation "
                              "mode after the validation");
    }
    ls_dumpfile_close(last);
    ls_dumpfile_close(first);
}

/* 14 pictures a rank are 3 steps of 4. */
#define SCRIPT                                                        \
    "w3 b0.1 torch image=16 steps=4 dump=3,4 data={self}/data shell " \
    "--val={self}/data/val"

#define EVALUATE                                                        \
    " | resnet8 O0 image=16 steps=1 --val={job:0}/data/val --evaluate " \
    "--init={job:0}/last.safetensors --label-smoothing="

static const ls_row rows[] = {
    {"validation.sums.o[0|1|2|3].w1", "V1", judge_sums,
     "resnet8 O$1 image=16 steps=25 data={self}/data shell --val={self}/data/val "
     "--eval-every=2 --workers=1",
     .script = TREE},
    {"validation.sums.o[0|2].w2", "V1", judge_sums,
     "resnet8 O$1 w2 b0.05 image=16 steps=12 data={self}/data shell --val={self}/data/val "
     "--eval-every=2 --workers=0",
     .script = TREE},
    {"validation.sums.o[0|1].w3", "V1", judge_sums,
     "resnet8 O$1 w3 b0.05 image=16 steps=7 data={self}/data shell --val={self}/data/val "
     "--eval-every=2 --workers=2",
     .script = TREE},
    {"validation.again.torch.w[2|3]", "V2", judge_again,
     "resnet8 O0 w$1 b0.05 torch image=16 steps=4 data={self}/data shell "
     "--val={self}/data/val --save={self}/last.safetensors | resnet8 O0 image=16 batch=9 steps=1 "
     "--val={job:0}/data/val "
     "--evaluate --init={job:0}/last.safetensors",
     .script = TREE, .judges_outcome = true},
    {"validation.again.sync.w2", "V2", judge_again,
     "resnet8 O0 w2 b0.05 sync image=16 steps=4 data={self}/data shell "
     "--val={self}/data/val --save={self}/last.safetensors | resnet8 O0 image=16 batch=9 steps=1 "
     "--val={job:0}/data/val "
     "--evaluate --init={job:0}/last.safetensors",
     .script = TREE, .judges_outcome = true},
    {"validation.counts.o[0|1].w3", "V1", judge_counts, "O$1 " SCRIPT, .script = TREE},
    {"validation.after.o[0|1].w3", "V3", judge_after, "O$1 " SCRIPT, .script = TREE},
    {"validation.smoothing.w2", "G11", judge_smoothed,
     "resnet8 O0 w2 b0.05 torch image=16 steps=4 data={self}/data shell --label-smoothing=0.2 "
     "--save={self}/last.safetensors" EVALUATE "0" EVALUATE "0.25" EVALUATE "1",
     .script = TREE, .judges_outcome = true},
};

void ls_validation_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
