/* The subject protocol itself (protocol.md), for any trainer: what its events say, that
 * they say what was asked, and that options do what they are called. What a record must be to be
 * read at all is suite/judge/protocol.c's business. */

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "subject.h"

enum { STEPS = 4, CLASSES = 10 };

static const ls_tol f32_option =
    LS_TOL(0x1p-23, "a number from the command line may be kept in f32: half a unit of 2^-23");

static bool same_number(double a, double b)
{
    return fabs(a - b) <= f32_option.value * fabs(b);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void judge_events(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    for (int k = 0; k < job->world; k++) {
        const ls_record_rank *rank = &job->rank[k];
        int reported = ls_json_int(rank->start, "rank", k);
        if (reported != k) {
            ls_verdict_fail(out, "rank%d.jsonl says that it is rank %d's", k, reported);
        }
        if (rank->step_count != STEPS || rank->step[0].step != 1) {
            ls_verdict_fail(out, "rank=%d has %d step events from step %d, expected %d from 1", k,
                            rank->step_count, rank->step_count > 0 ? (int)rank->step[0].step : 0,
                            (int)STEPS);
        }
    }
    ls_verdict_pass(out, (int64_t)STEPS * job->world,
                    "start, steps 1 to %d and end on each of %d ranks", (int)STEPS, job->world);
}

/* One option of the start event; false when it is absent. */
static bool option_is(const cJSON *options, const char *name, double number, const char *text,
                      ls_verdict *out)
{
    const cJSON *found = ls_json_get(options, name);
    if (found == NULL || cJSON_IsNull(found)) {
        return false;
    }
    bool equal = cJSON_IsString(found)   ? text != NULL && strcmp(found->valuestring, text) == 0
                 : cJSON_IsNumber(found) ? text == NULL && same_number(found->valuedouble, number)
                                         : false;
    char wanted[64];
    if (text != NULL) {
        ls_text_put(wanted, sizeof wanted, "%s", text);
    } else {
        ls_text_put(wanted, sizeof wanted, "%.9g", number);
    }
    if (!equal) {
        char *shown = cJSON_PrintUnformatted(found);
        ls_verdict_fail(out, "the start event's options say \"%s\": %.60s, asked was %s", name,
                        shown, wanted);
        cJSON_free(shown);
    }
    return true;
}

static void judge_options(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_spec *spec = &row->job[0];
    LS_TEXT(level, 8, "O%d", spec->level);
    const struct {
        const char *name;
        double number;
        const char *text;
    } asked[] = {{"arch", 0, spec->arch},
                 {"batch-size", spec->batch_size, NULL},
                 {"image-size", spec->image_size, NULL},
                 {"num-classes", CLASSES, NULL},
                 {"steps", STEPS, NULL},
                 {"opt-level", 0, level},
                 {"half", 0, "fp16"},
                 {"lr", spec->lr, NULL},
                 {"momentum", 0.9, NULL}, /* not given: the protocol's defaults */
                 {"weight-decay", 1e-4, NULL},
                 {"data", 0, spec->data},
                 {"seed", (double)spec->seed, NULL}};
    int reported = 0;
    for (int k = 0; k < job->world; k++) {
        const cJSON *options = ls_json_get(job->rank[k].start, "options");
        for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
            reported += option_is(options, asked[i].name, asked[i].number, asked[i].text, out);
        }
    }
    int most = job->world * (int)(sizeof asked / sizeof *asked);
    if (reported == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the start events have no options");
    }
    ls_verdict_pass(out, reported, "%d of %d options reported, all as asked", reported, most);
}

/* Every reported rate is the world's size times the one asked for. */
static void explain_rate(double asked, const ls_record *job, ls_verdict *out)
{
    bool fits = job->world > 1;
    for (int k = 0; k < job->world && fits; k++) {
        for (int i = 0; i < job->rank[k].step_count && fits; i++) {
            fits = same_number(job->rank[k].step[i].lr, asked * job->world);
        }
    }
    if (fits) {
        ls_verdict_cause(out,
                         "the rate is multiplied by the number of ranks, without --lr-scaling");
    }
}

static void judge_rate(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_spec *spec = &row->job[0];
    int reported = 0;
    for (int k = 0; k < job->world; k++) {
        for (int i = 0; i < job->rank[k].step_count; i++) {
            const ls_record_step *seen = &job->rank[k].step[i];
            reported += !isnan(seen->lr);
            if (!isnan(seen->lr) && !same_number(seen->lr, spec->lr)) {
                ls_verdict_fail(out, "rank=%d step %d: lr %.9g, expected %.9g as given", k,
                                (int)seen->step, seen->lr, spec->lr);
            }
            if (seen->images != spec->batch_size * spec->accumulate) {
                ls_verdict_set(out, seen->images == 0 ? LS_UNSUPPORTED : LS_FAIL,
                               "rank=%d step %d: %d images, expected this rank's %d", k,
                               (int)seen->step, (int)seen->images,
                               spec->batch_size * spec->accumulate);
            }
        }
    }
    if (out->code == LS_FAIL && reported > 0) {
        explain_rate(spec->lr, job, out);
    }
    if (reported == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the step events have no lr");
    }
    ls_verdict_pass(out, reported, "lr %g and %d images a step, as given", spec->lr,
                    spec->batch_size * spec->accumulate);
}

/* loss_bits is the f32 number that loss says, and no loss is its neighbour's: ranks see different
 * images. */
static void judge_loss(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int equal = 0, compared = 0, losses = 0;
    for (int k = 0; k < job->world; k++) {
        for (int i = 0; i < job->rank[k].step_count; i++, losses++) {
            const ls_record_step *seen = &job->rank[k].step[i];
            char *end;
            unsigned long bits = strtoul(seen->loss_bits, &end, 16);
            float value;
            uint32_t word = (uint32_t)bits;
            memcpy(&value, &word, sizeof value);
            if (seen->loss_bits[0] == '\0') {
                ls_verdict_set(out, LS_UNSUPPORTED, "rank=%d step %d: no loss_bits", k,
                               (int)seen->step);
            } else if (*end != '\0' || strlen(seen->loss_bits) != 10 ||
                       (isfinite(value) && !((float)seen->loss == value))) {
                ls_verdict_fail(out, "rank=%d step %d: loss %.9g, loss_bits %s is %.9g", k,
                                (int)seen->step, seen->loss, seen->loss_bits, (double)value);
            }
            const ls_record_step *first = ls_record_find_step(&job->rank[0], seen->step);
            bool both = k > 0 && first != NULL && isfinite(value);
            compared += both;
            equal += both && strcmp(first->loss_bits, seen->loss_bits) == 0;
        }
    }
    if (out->code == LS_PASS && compared > 0 && equal == compared) {
        ls_verdict_fail(
            out, "all ranks have the same loss at every step: they train on the same images");
        ls_verdict_cause(out, "every rank draws the same images");
    }
    ls_verdict_pass(out, losses, "loss is the number of loss_bits; %d of %d differ between ranks",
                    compared - equal, compared);
}

/* A step that was taken has changed the parameters: one that is stepped over changes nothing, and a
 * trainer that steps something else trains nothing. */
static void judge_moves(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int moved = 0;
    for (int k = 0; k < job->world; k++) {
        for (int i = 1; i < job->rank[k].step_count; i++) {
            const ls_record_step *now = &job->rank[k].step[i], *before = now - 1;
            if ((now->digest_mask & before->digest_mask & 1u << LS_RECORD_PARAM) == 0 ||
                now->skipped) {
                continue;
            }
            moved++;
            if (strcmp(now->digest[LS_RECORD_PARAM], before->digest[LS_RECORD_PARAM]) == 0) {
                ls_verdict_fail(out, "rank=%d step %d was taken, but no parameter changed", k,
                                (int)now->step);
            }
        }
    }
    if (moved == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "no digests of parameters in two steps in a row");
    }
    ls_verdict_pass(out, moved, "%d steps taken changed the parameters", moved);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void judge_refusal(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int code = job->state == LS_RECORD_DONE ? 0 : job->code;
    char line[200];
    ls_record_last_line(job, 0, line, (int)sizeof line);
    if (job->state == LS_RECORD_KILLED || job->state == LS_RECORD_TIMED_OUT ||
        code != LS_ERR_USAGE) {
        ls_verdict_fail(out, "%s: exit code %d, expected 2: %s", row->job[0].extra, code, line);
    } else if (job->rank[0].step_count > 0) {
        ls_verdict_fail(out, "%s was refused after a step had been done", row->job[0].extra);
    } else if (line[0] == '\0') {
        ls_verdict_fail(out, "%s was refused without a word", row->job[0].extra);
    } else {
        ls_verdict_pass(out, 1, "%s: %s", row->job[0].extra, line);
    }
}

/* An option that does not exist: 2 (unknown) or 4 with an event (not offered), never accepted. */
static void judge_unknown(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int code = job->state == LS_RECORD_DONE ? 0 : job->code;
    if (code != LS_ERR_USAGE && code != LS_ERR_UNSUPPORTED) {
        ls_verdict_fail(out, "%s: exit code %d, expected 2 or 4", row->job[0].extra, code);
    } else if (code == LS_ERR_UNSUPPORTED && job->rank[0].unsupported == NULL) {
        ls_verdict_fail(out, "%s: exit code 4 without an \"unsupported\" event", row->job[0].extra);
    } else {
        ls_verdict_pass(out, 1, "%s: exit code %d", row->job[0].extra, code);
    }
}

/* ---- pairs of runs --------------------------------------------------------------------------- */

/* Whether steps of both runs are equal, loss and parameters, to the last bit. */
typedef struct pair {
    bool equal;
    const char *text;
} pair;

static void judge_pair(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const pair *want = row->data;
    int steps = 0, compared = 0, equal = 0;
    for (int k = 0; k < job[0].world && k < job[1].world; k++) {
        for (int i = 0; i < job[1].rank[k].step_count; i++) {
            const ls_record_step *b = &job[1].rank[k].step[i];
            const ls_record_step *a = ls_record_find_step(&job[0].rank[k], b->step);
            steps++;
            if (a == NULL) {
                ls_verdict_fail(out, "rank=%d: only one run has a step %d", k, (int)b->step);
            }
            if (a == NULL || a->loss_bits[0] == '\0') {
                continue;
            }
            bool both = (a->digest_mask & b->digest_mask & 1u << LS_RECORD_PARAM) != 0;
            bool same =
                strcmp(a->loss_bits, b->loss_bits) == 0 &&
                (!both || strcmp(a->digest[LS_RECORD_PARAM], b->digest[LS_RECORD_PARAM]) == 0);
            compared++;
            equal += same;
            if (!same && want->equal) {
                ls_verdict_fail(out, "rank=%d step %d: loss %s and %s, or the parameters: %s", k,
                                (int)b->step, a->loss_bits, b->loss_bits, want->text);
            }
        }
    }
    if (compared == 0 || compared < steps) {
        ls_verdict_set(out, LS_UNSUPPORTED, "%d of %d steps have loss_bits to compare", compared,
                       steps);
    } else if (!want->equal && equal > 0) {
        ls_verdict_fail(out, "%d of %d steps have equal losses: %s", equal, compared, want->text);
    }
    ls_verdict_pass(out, compared, "%d steps %s: %s", compared, want->equal ? "equal" : "differ",
                    want->text);
}

/* ---- single ones ----------------------------------------------------------------------------- */

static void judge_quiet(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    LS_TEXT(path, 700, "%s/dump", job->directory);
    if (access(path, F_OK) == 0 && rmdir(path) != 0) {
        ls_verdict_fail(out, "without --dump-steps something was written into dump/");
    } else {
        ls_verdict_pass(out, 1, "no dump was asked for, none was written");
    }
}

static void judge_default_level(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    const cJSON *options = ls_json_get(job->rank[0].start, "options");
    if (!option_is(options, "opt-level", 0, "O1", out)) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the start event does not report the opt level");
    }
    bool half = option_is(options, "half", 0, "fp16", out);
    ls_verdict_pass(out, 1 + half, "O1 and fp16 where nothing is said");
}

/* Parts of a step's time lie within it: a sum over several steps outgrows them. */
static void judge_times(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    enum { PARTS = 6 };
    static const char *const name[PARTS] = {"data",    "comm",     "comm_exposed",
                                            "forward", "backward", "optimizer"};
    const int aside = 2; /* loading for a device, and reductions, overlap the other parts */
    int compared = 0;
    (void)row;
    for (int rank = 0; rank < job->world; rank++) {
        for (int s = 0; s < job->rank[rank].step_count; s++) {
            const ls_record_step *step = &job->rank[rank].step[s];
            const double part[PARTS] = {step->data_ms,    step->comm_ms,     step->exposed_ms,
                                        step->forward_ms, step->backward_ms, step->optimizer_ms};
            double total = step->total_ms, after_each_other = 0;
            for (int i = 0; i < PARTS && !isnan(total); i++) {
                compared += !isnan(part[i]);
                after_each_other += i >= aside && !isnan(part[i]) ? part[i] : 0;
                if (part[i] < 0 || part[i] > total) {
                    ls_verdict_fail(out, "rank=%d step %d: %s took %.3f ms of %.3f", rank,
                                    (int)step->step, name[i], part[i], total);
                }
            }
            if (after_each_other > total * (1 + f32_option.value)) {
                ls_verdict_fail(
                    out, "rank=%d step %d: parts that follow each other took %.3f ms of %.3f", rank,
                    (int)step->step, after_each_other, total);
            }
        }
    }
    if (compared == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "no parts of a step's time");
    }
    ls_verdict_pass(out, compared, "%d times lie within their steps", compared);
}

/* ---- rows ------------------------------------------------------------------------------------ */

#define ONE "resnet8 steps=4 "
#define TWO "resnet8 w2 steps=4 "
#define LEVEL "resnet8 O$1 w2 steps=4 dump=2"
/* The second step overflows on rank 1, and is skipped. */
#define SKIPPING "resnet8 O2 w2 steps=4 scale=dynamic batches=at@2:1 --init-scale=524288 "

static const ls_row rows[] = {
    {"subject.events.o[0|1|2|3].w2", "Q1", judge_events, LEVEL},
    {"subject.options.o[0|1|2|3].w2", "Q2", judge_options, LEVEL},
    {"subject.rate.o[0|1|2|3].w2", "Q3", judge_rate, LEVEL},
    {"subject.loss.o[0|1|2|3].w2", "Q4", judge_loss, LEVEL},
    {"subject.moves.o[0|1|2|3].w2", "Q17", judge_moves, LEVEL},
    {"subject.dump.o[0|1|2|3].w2", "Q5", ls_subject_dump, LEVEL},
    {"subject.digest.o[0|1|2|3].w2", "Q6", ls_subject_digest, LEVEL},
    /* of two moments a digest may forget one and nothing else shows it */
    {"subject.digest.adam.o0.w2", "Q6", ls_subject_digest, TWO "dump=2 --optimizer=adam"},
    {"subject.dump.bf16", "Q5", ls_subject_dump, TWO "O2 bf16 dump=2"},
    {"subject.dump.skipped", "Q5", ls_subject_dump, SKIPPING "dump=2",
     &(const ls_subject_dumped){.skipped = true}},
    {"subject.dump.rank0", "Q5", ls_subject_dump, TWO "dump=2 dump-ranks=0 --dump-ranks=0",
     &(const ls_subject_dumped){.ranks = 1}},
    {"subject.whole.skipped", "Q21", ls_subject_whole, SKIPPING, &(const int){1}},
    {"subject.whole.rebuilt.[apex=|torch]", "D12", ls_subject_whole, TWO "b0.05 undetermined $1"},
    {"subject.whole.resumed", "Q21", ls_subject_whole,
     "resnet8 w2 steps=2 --save={self}/checkpoint.safetensors | " TWO
     "--resume={job:0}/checkpoint.safetensors"},
    /* the lines are our trainer's own */
    {"subject.printed", "Q22", ls_subject_printed, TWO "--print-freq=1 --batch-sizes=3,5",
     &(const ls_subject_lines){1, false}, .inside = true},
    /* a sum over steps passes one step's total long before the sixtieth */
    {"subject.times", "Q18", judge_times, "resnet8 w2 steps=60"},
    {"subject.instrument", "Q19", ls_subject_instrument, TWO "dump=1,2,3,4"},
    {"subject.curves", "Q20", ls_subject_curves, TWO},
    {"subject.curves.uneven", "Q20", ls_subject_curves,
     TWO "--batch-sizes=3,5 --schedule=warmup:4s,constant"},
    {"subject.curves.skipped", "Q20", ls_subject_curves, SKIPPING "--schedule=warmup:4s,constant"},
    {"subject.usage.[steps-word=--steps=many|steps-zero=--steps=0|batch-word=--batch-size=four|"
     "batch-negative=--batch-size=-4|lr-word=--lr=fast|seed-word=--seed=x|half-fp8=--half=fp8|"
     "device-tpu=--device=tpu|image-zero=--image-size=0|dump-word=--dump-steps=first|"
     "init-missing=--init=/nonexistent/weights.safetensors|"
     "batches-missing=--data=batches:/nonexistent/batches]",
     "Q7", judge_refusal, ONE "$1", .judges_outcome = true},
    {"subject.usage.unknown", "Q8", judge_unknown, ONE "--no-such-option=1", .judges_outcome = true,
     .judges_refusal = true},
    {"subject.form.alone", "Q10", judge_pair, ONE "| " ONE "alone",
     &(const pair){true, "with torchrun's variables and with none of them"}},
    {"subject.form.underscores", "Q9", judge_pair,
     ONE "| " ONE "--weight_decay=1e-4 --batch_size=4 --loss_scale=1",
     &(const pair){true, "long options with underscores"}},
    {"subject.form.seed", "Q11", judge_pair, ONE "| " ONE "next-seed",
     &(const pair){false, "another seed"}},
    {"subject.form.steps", "Q12", judge_pair, ONE "| resnet8 steps=2",
     &(const pair){true, "--steps says where to stop, nothing else"}},
    {"subject.form.lr-zero", "Q3", ls_subject_still, ONE "--lr=0"},
    {"subject.form.quiet", "Q15", judge_quiet, ONE},
    {"subject.form.default-level", "Q16", judge_default_level, ONE "no-level"},
    {"subject.form.batches", "Q13", ls_subject_batches, "w2 steps=2 dump=1,2 batches=at@2:1"},
    {"subject.form.init", "Q14", ls_subject_init, "w2 steps=2 dump=1,2 batches=at@2:1"},
};

void ls_subject_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
