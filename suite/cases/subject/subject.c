/* The subject protocol itself (design.md section 4), for any trainer: what its events say, that
 * they say what was asked, and that options do what they are called. What a record must be to be
 * read at all is suite/judge/protocol.c's business. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/text.h"
#include "suite/cases/overflow.h"
#include "subject.h"

enum { STEPS = 4, WORLD = 2, BATCH = 4, CLASSES = 10, IMAGE = 16 };

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
        int told = (int)ls_json_integer(rank->start, "rank", k);
        if (told != k) {
            ls_verdict_fail(out, "rank%d.jsonl says that it is rank %d's", k, told);
        }
        if (rank->step_count != STEPS || rank->step[0].step != 1) {
            ls_verdict_fail(out, "rank=%d has %d step events from step %d, expected %d from 1", k,
                            rank->step_count, rank->step_count > 0 ? (int)rank->step[0].step : 0,
                            (int)STEPS);
        }
    }
    ls_verdict_pass(out, "start, steps 1 to %d and end on each of %d ranks", (int)STEPS,
                    job->world);
}

/* One option of the start event; false when it is not told. */
static bool option_is(const cJSON *options, const char *name, double number, const char *text,
                      ls_verdict *out)
{
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(options, name);
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
    char level[8];
    ls_text_put(level, sizeof level, "O%d", spec->level);
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
    int told = 0;
    for (int k = 0; k < job->world; k++) {
        const cJSON *options = cJSON_GetObjectItemCaseSensitive(job->rank[k].start, "options");
        for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
            told += option_is(options, asked[i].name, asked[i].number, asked[i].text, out);
        }
    }
    int most = job->world * (int)(sizeof asked / sizeof *asked);
    if (told == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the start events tell no options");
    }
    ls_verdict_pass(out, "%d of %d options told, all as asked", told, most);
}

/* Every rate told is the world's size times the one asked for. */
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
                         "the rate is multiplied by the number of ranks, which nobody asked for");
    }
}

static void judge_rate(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_spec *spec = &row->job[0];
    int told = 0;
    for (int k = 0; k < job->world; k++) {
        for (int i = 0; i < job->rank[k].step_count; i++) {
            const ls_record_step *seen = &job->rank[k].step[i];
            told += !isnan(seen->lr);
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
    if (out->code == LS_FAIL && told > 0) {
        explain_rate(spec->lr, job, out);
    }
    if (told == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the step events tell no lr");
    }
    ls_verdict_pass(out, "lr %g and %d images a step, as given", spec->lr,
                    spec->batch_size * spec->accumulate);
}

/* loss_bits is the f32 number that loss says, and no loss is its neighbour's: ranks see different
 * images. */
static void judge_loss(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int equal = 0, compared = 0;
    for (int k = 0; k < job->world; k++) {
        for (int i = 0; i < job->rank[k].step_count; i++) {
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
            compared += k > 0;
            equal += k > 0 && first != NULL && strcmp(first->loss_bits, seen->loss_bits) == 0;
        }
    }
    if (out->code == LS_PASS && compared > 0 && equal == compared) {
        ls_verdict_fail(
            out, "all ranks have the same loss at every step: they train on the same images");
        ls_verdict_cause(out, "every rank draws the same images");
    }
    ls_verdict_pass(out, "loss is the number of loss_bits; %d of %d differ between ranks",
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
    ls_verdict_pass(out, "%d steps taken changed the parameters", moved);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static const struct refusal {
    const char *name, *option;
} refusal[] = {
    {"steps-word", "--steps=many"},
    {"steps-zero", "--steps=0"},
    {"batch-word", "--batch-size=four"},
    {"batch-negative", "--batch-size=-4"},
    {"lr-word", "--lr=fast"},
    {"seed-word", "--seed=x"},
    {"half-fp8", "--half=fp8"},
    {"device-tpu", "--device=tpu"},
    {"image-zero", "--image-size=0"},
    {"dump-word", "--dump-steps=first"},
    {"init-missing", "--init=/nonexistent/weights.safetensors"},
    {"batches-missing", "--data=batches:/nonexistent/batches"},
};

static void judge_refusal(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int code = job->state == LS_RECORD_DONE ? 0 : job->code;
    char line[200];
    ls_record_last_line(job, 0, line, (int)sizeof line);
    if (job->state == LS_RECORD_KILLED || job->state == LS_RECORD_TIMED_OUT ||
        code != LS_ERR_USAGE) {
        ls_verdict_fail(out, "%s: exit code %d, expected 2: %s", row->text, code, line);
    } else if (job->rank[0].step_count > 0) {
        ls_verdict_fail(out, "%s was refused after a step had been done", row->text);
    } else if (line[0] == '\0') {
        ls_verdict_fail(out, "%s was refused without a word", row->text);
    } else {
        ls_verdict_pass(out, "%s: %s", row->text, line);
    }
}

/* An option that nobody has: 2 (what is that?) or 4 with an event (not offered), never accepted. */
static void judge_unknown(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int code = job->state == LS_RECORD_DONE ? 0 : job->code;
    if (code != LS_ERR_USAGE && code != LS_ERR_UNSUPPORTED) {
        ls_verdict_fail(out, "%s: exit code %d, expected 2 or 4", row->text, code);
    } else if (code == LS_ERR_UNSUPPORTED && job->rank[0].unsupported == NULL) {
        ls_verdict_fail(out, "%s: exit code 4 without an \"unsupported\" event", row->text);
    } else {
        ls_verdict_pass(out, "%s: exit code %d", row->text, code);
    }
}

/* ---- pairs of runs --------------------------------------------------------------------------- */

/* Steps of both runs, loss and parameters, equal to the last bit (number[0]) or not. */
static void judge_pair(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    bool equal_wanted = row->number[0] != 0;
    int compared = 0, equal = 0;
    for (int k = 0; k < job[0].world && k < job[1].world; k++) {
        for (int i = 0; i < job[1].rank[k].step_count; i++) {
            const ls_record_step *b = &job[1].rank[k].step[i];
            const ls_record_step *a = ls_record_find_step(&job[0].rank[k], b->step);
            if (a == NULL || a->loss_bits[0] == '\0') {
                continue;
            }
            bool both = (a->digest_mask & b->digest_mask & 1u << LS_RECORD_PARAM) != 0;
            bool same =
                strcmp(a->loss_bits, b->loss_bits) == 0 &&
                (!both || strcmp(a->digest[LS_RECORD_PARAM], b->digest[LS_RECORD_PARAM]) == 0);
            compared++;
            equal += same;
            if (!same && equal_wanted) {
                ls_verdict_fail(out, "rank=%d step %d: loss %s and %s, or the parameters: %s", k,
                                (int)b->step, a->loss_bits, b->loss_bits, row->text);
            }
        }
    }
    if (compared == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "no loss_bits to compare");
    } else if (!equal_wanted && equal > 0) {
        ls_verdict_fail(out, "%d of %d steps have equal losses: %s", equal, compared, row->text);
    }
    ls_verdict_pass(out, "%d steps %s: %s", compared, equal_wanted ? "equal" : "differ", row->text);
}

/* ---- single ones ----------------------------------------------------------------------------- */

static void judge_quiet(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    char path[700];
    ls_text_put(path, sizeof path, "%s/dump", job->directory);
    if (access(path, F_OK) == 0 && rmdir(path) != 0) {
        ls_verdict_fail(out, "without --dump-steps something was written into dump/");
    } else {
        ls_verdict_pass(out, "no dump was asked for, none was written");
    }
}

static void judge_default_level(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(job->rank[0].start, "options");
    if (!option_is(options, "opt-level", 0, "O1", out)) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the start event does not tell the opt level");
    }
    (void)option_is(options, "half", 0, "fp16", out);
    ls_verdict_pass(out, "O1 and fp16 where nothing is said");
}

/* ---- rows ------------------------------------------------------------------------------------ */

static ls_spec base_spec(const ls_case_settings *settings, int level, int world)
{
    ls_spec spec = ls_rows_evidence(settings, level, world, 1, LS_BUCKET_OWN);
    ls_text_put(spec.dump_steps, sizeof spec.dump_steps, "2");
    ls_text_put(spec.arch, sizeof spec.arch, "resnet8");
    spec.image_size = IMAGE;
    spec.batch_size = BATCH;
    spec.steps = STEPS;
    return spec;
}

static ls_case *add_one(ls_case_list *list, ls_case_judge *judge, const char *requirement,
                        const char *id, const ls_spec *spec)
{
    ls_case *row = ls_rows_add(list, judge, requirement, "subject.%s", id);
    row->job_count = 1;
    row->job[0] = *spec;
    return row;
}

static void add_levels(const ls_case_settings *settings, ls_case_list *list)
{
    static const struct {
        const char *name, *requirement;
        ls_case_judge *judge;
    } about[] = {{"events", "Q1", judge_events},     {"options", "Q2", judge_options},
                 {"rate", "Q3", judge_rate},         {"loss", "Q4", judge_loss},
                 {"moves", "Q17", judge_moves},      {"dump", "Q5", ls_subject_dump},
                 {"digest", "Q6", ls_subject_digest}};
    for (int level = 0; level < 4; level++) {
        ls_spec spec = base_spec(settings, level, WORLD);
        for (size_t i = 0; i < sizeof about / sizeof *about; i++) {
            char id[48];
            ls_text_put(id, sizeof id, "%s.o%d.w%d", about[i].name, level, (int)WORLD);
            (void)add_one(list, about[i].judge, about[i].requirement, id, &spec);
        }
    }
}

/* Parts of a step's time lie within it: what is summed up over steps outgrows them. */
static void judge_times(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    static const char *const parts[] = {"data", "forward",   "backward",
                                        "comm", "optimizer", "comm_exposed"};
    int compared = 0;
    (void)row;
    for (int rank = 0; rank < job->world; rank++) {
        char path[700];
        ls_text_put(path, sizeof path, "%s/rank%d.jsonl", job->directory, rank);
        char *text = ls_text_read(path), *rest = NULL;
        char *line = text != NULL ? strtok_r(text, "\n", &rest) : NULL;
        for (; line != NULL; line = strtok_r(NULL, "\n", &rest)) {
            cJSON *event = cJSON_Parse(line);
            const cJSON *ms = cJSON_GetObjectItemCaseSensitive(event, "ms");
            const cJSON *total = cJSON_GetObjectItemCaseSensitive(ms, "total");
            const cJSON *step = cJSON_GetObjectItemCaseSensitive(event, "step");
            double after_each_other = 0;
            for (size_t i = 0; cJSON_IsNumber(total) && i < sizeof parts / sizeof *parts; i++) {
                const cJSON *part = cJSON_GetObjectItemCaseSensitive(ms, parts[i]);
                compared += cJSON_IsNumber(part);
                /* reductions, and loading for a device, run beside the others */
                bool aside = strcmp(parts[i], "comm") == 0 || strcmp(parts[i], "data") == 0;
                after_each_other += cJSON_IsNumber(part) && !aside ? part->valuedouble : 0;
                if (cJSON_IsNumber(part) &&
                    !(part->valuedouble >= 0 && part->valuedouble <= total->valuedouble)) {
                    ls_verdict_fail(out, "rank=%d step %d: %s took %.3f ms of %.3f", rank,
                                    cJSON_IsNumber(step) ? step->valueint : -1, parts[i],
                                    part->valuedouble, total->valuedouble);
                }
            }
            if (cJSON_IsNumber(total) &&
                after_each_other > total->valuedouble * (1 + f32_option.value)) {
                ls_verdict_fail(
                    out, "rank=%d step %d: parts that follow each other took %.3f ms of %.3f", rank,
                    cJSON_IsNumber(step) ? step->valueint : -1, after_each_other,
                    total->valuedouble);
            }
            cJSON_Delete(event);
        }
        free(text);
    }
    if (compared == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "no parts of a step's time");
    }
    ls_verdict_pass(out, "%d times lie within their steps", compared);
}

/* The second step overflows on rank 1, and is skipped. */
static ls_spec skipping_spec(const ls_case_settings *settings)
{
    ls_spec spec = base_spec(settings, 2, WORLD);
    ls_overflow_spec(&spec, "2:1");
    ls_text_put(spec.loss_scale, sizeof spec.loss_scale, "dynamic");
    return spec;
}

static void add_times(const ls_case_settings *settings, ls_case_list *list)
{
    ls_spec spec = base_spec(settings, 0, WORLD);
    spec.dump_steps[0] = '\0';
    spec.steps = 60; /* a sum over steps passes one step's total long before */
    (void)add_one(list, judge_times, "Q18", "times", &spec);
    spec.steps = STEPS;
    (void)add_one(list, ls_subject_curves, "Q20", "curves", &spec);
    ls_spec uneven = spec, moving = skipping_spec(settings);
    moving.dump_steps[0] = '\0';
    ls_text_put(uneven.extra, sizeof uneven.extra,
                "--batch-sizes=3,5 --schedule=warmup:4s,constant");
    (void)add_one(list, ls_subject_curves, "Q20", "curves.uneven", &uneven);
    ls_text_put(moving.extra + strlen(moving.extra), sizeof moving.extra - strlen(moving.extra),
                " --schedule=warmup:4s,constant");
    (void)add_one(list, ls_subject_curves, "Q20", "curves.skipped", &moving);
    ls_text_put(spec.dump_steps, sizeof spec.dump_steps, "1,2,3,4");
    (void)add_one(list, ls_subject_instrument, "Q19", "instrument", &spec);
}

/* Of two moments a digest may forget one and nothing else shows it. */
static void add_moments(const ls_case_settings *settings, ls_case_list *list)
{
    ls_spec spec = base_spec(settings, 0, WORLD);
    char id[48];
    ls_text_put(spec.extra, sizeof spec.extra, "--optimizer=adam");
    ls_text_put(id, sizeof id, "digest.adam.o0.w%d", (int)WORLD);
    (void)add_one(list, ls_subject_digest, "Q6", id, &spec);
}

static void add_refusals(const ls_case_settings *settings, ls_case_list *list)
{
    ls_spec spec = base_spec(settings, 0, 1);
    spec.dump_steps[0] = '\0';
    for (size_t i = 0; i <= sizeof refusal / sizeof *refusal; i++) {
        bool unknown = i == sizeof refusal / sizeof *refusal;
        const char *option = unknown ? "--no-such-option=1" : refusal[i].option;
        char id[48];
        ls_text_put(id, sizeof id, "usage.%s", unknown ? "unknown" : refusal[i].name);
        ls_text_put(spec.extra, sizeof spec.extra, "%s", option);
        ls_case *row = add_one(list, unknown ? judge_unknown : judge_refusal, unknown ? "Q8" : "Q7",
                               id, &spec);
        row->judges_outcome = true;
        row->judges_refusal = unknown;
        ls_text_put(row->text, sizeof row->text, "%s", option);
    }
}

static void add_pair(ls_case_list *list, const char *requirement, const char *id, const ls_spec *a,
                     const ls_spec *b, bool equal, const char *text)
{
    ls_case *row = add_one(list, judge_pair, requirement, id, a);
    row->job_count = 2;
    row->job[1] = *b;
    row->number[0] = equal;
    ls_text_put(row->text, sizeof row->text, "%s", text);
}

static void add_forms(const ls_case_settings *settings, ls_case_list *list)
{
    ls_spec one = base_spec(settings, 0, 1), other = one;
    one.dump_steps[0] = other.dump_steps[0] = '\0';
    other.wrap = LS_WRAP_ALONE;
    add_pair(list, "Q10", "form.alone", &one, &other, true,
             "with torchrun's variables and with none of them");
    other = one;
    ls_text_put(other.extra, sizeof other.extra,
                "--weight_decay=1e-4 --batch_size=%d --loss_scale=1", (int)BATCH);
    add_pair(list, "Q9", "form.underscores", &one, &other, true, "long options with underscores");
    other = one;
    other.seed = settings->seed + 1;
    add_pair(list, "Q11", "form.seed", &one, &other, false, "another seed");
    other = one;
    other.steps = STEPS / 2;
    add_pair(list, "Q12", "form.steps", &one, &other, true,
             "--steps says where to stop, nothing else");
    ls_spec zero = one;
    ls_text_put(zero.extra, sizeof zero.extra, "--lr=0");
    (void)add_one(list, ls_subject_still, "Q3", "form.lr-zero", &zero);
    (void)add_one(list, judge_quiet, "Q15", "form.quiet", &one);
    ls_spec plain = one;
    plain.level = -1;
    (void)add_one(list, judge_default_level, "Q16", "form.default-level", &plain);
    ls_spec given = base_spec(settings, 0, WORLD);
    ls_overflow_spec(&given, "2:1");
    ls_text_put(given.extra, sizeof given.extra, "--init={run}/overflow/init.safetensors");
    ls_text_put(given.dump_steps, sizeof given.dump_steps, "1,2");
    given.steps = 2;
    (void)add_one(list, ls_subject_batches, "Q13", "form.batches", &given);
    (void)add_one(list, ls_subject_init, "Q14", "form.init", &given);
}

/* What is told of a run as a whole, and what a dump says of a step that was skipped. */
static void add_told(const ls_case_settings *settings, ls_case_list *list)
{
    ls_spec spec = skipping_spec(settings), saved, resumed;
    add_one(list, ls_subject_dump, "Q5", "dump.skipped", &spec)->number[1] = 1;
    spec.dump_steps[0] = '\0';
    add_one(list, ls_subject_whole, "Q21", "whole.skipped", &spec)->number[0] = 1;
    spec = base_spec(settings, 2, WORLD);
    ls_text_put(spec.half, sizeof spec.half, "bf16");
    (void)add_one(list, ls_subject_dump, "Q5", "dump.bf16", &spec);
    spec = base_spec(settings, 0, WORLD);
    spec.dump_all = false;
    ls_text_put(spec.extra, sizeof spec.extra, "--dump-ranks=0");
    add_one(list, ls_subject_dump, "Q5", "dump.rank0", &spec)->number[0] = 1;
    spec = base_spec(settings, 0, WORLD);
    spec.dump_steps[0] = '\0';
    saved = resumed = spec;
    saved.steps = STEPS / 2;
    char id[96];
    ls_text_put(saved.extra, sizeof saved.extra, "--save={self}/checkpoint.safetensors");
    ls_matrix_id(&saved, id);
    ls_text_put(resumed.extra, sizeof resumed.extra, "--resume={job:%s}/checkpoint.safetensors",
                id);
    ls_case *row = add_one(list, ls_subject_whole, "Q21", "whole.resumed", &saved);
    row->job_count = 2;
    row->job[1] = resumed;
    ls_text_put(spec.extra, sizeof spec.extra, "--print-freq=1 --batch-sizes=3,5");
    row = add_one(list, ls_subject_printed, "Q22", "printed", &spec);
    row->kind = LS_INSIDE; /* the lines are our trainer's own */
}

void ls_subject_cases(const ls_case_settings *settings, ls_case_list *list)
{
    add_told(settings, list);
    add_levels(settings, list);
    add_moments(settings, list);
    add_times(settings, list);
    add_refusals(settings, list);
    add_forms(settings, list);
}
