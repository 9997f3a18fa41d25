/* Audited jobs (numerics.md section 5, FP64 samples): every rank looks at what steps have written
 * and finds nothing. Small ones are at every level and half type, alone and with ranks that share
 * statistics, and the event names what it did not look at; timed ones look at the steps of their
 * steady window that the run's seed and the job draw, and have read images that are their own. */
#include "suite/cases/rows.h"

#include <math.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "reference/train/audit/audit.h"

enum { STEPS_MAX = 8, DIGEST_BYTES = 20 };

typedef struct audited_step {
    int64_t step, elements, bad;
    double ratio;
    char where[128], unaudited[96], batch[DIGEST_BYTES];
} audited_step;

/* Of one rank; `count` may be more than are kept. */
typedef struct audits {
    int count;
    audited_step step[STEPS_MAX];
} audits;

static const ls_tol bound = LS_TOL(
    1, "numerics 5.3: half an ulp of the stored type and what f32 costs, for each element alone");

static ls_status read_event(void *context, const cJSON *event, int line)
{
    audits *all = context;
    const cJSON *worst = ls_json_get(event, "worst");
    (void)line;
    audited_step *one = &all->step[all->count < STEPS_MAX ? all->count : STEPS_MAX - 1];
    all->count++;
    *one = (audited_step){.step = ls_json_integer(event, "step", 0),
                          .elements = ls_json_integer(event, "elements", 0),
                          .bad = ls_json_integer(event, "bad", 1),
                          .ratio = ls_json_number(worst, "ratio", INFINITY)};
    ls_text_put(one->where, sizeof one->where, "%s, %s", ls_json_string(worst, "operation", "?"),
                ls_json_string(worst, "output", "?"));
    ls_text_put(one->unaudited, sizeof one->unaudited, "%s",
                ls_json_string(event, "unaudited", "no list"));
    ls_text_put(one->batch, sizeof one->batch, "%s", ls_json_string(event, "batch", ""));
    return LS_OK;
}

static audits read_rank(const ls_record *job, int rank)
{
    audits found = {0};
    if (job->rank[rank].has_events) {
        (void)ls_record_each_event(job, rank, "audit", read_event, &found);
    }
    return found;
}

/* The steps that the job must have audited. Returns how many; step[STEPS_MAX]. */
static int drawn_steps(const ls_spec *spec, int64_t *step)
{
    ls_matrix_audit audit = ls_matrix_audit_of(spec);
    ls_options options = {.audit = true,
                          .audit_seed = audit.seed,
                          .audit_every = audit.every,
                          .audit_from = audit.from};
    int count = 0;
    for (int64_t i = 1; i <= spec->warmup_steps + spec->steps && count < STEPS_MAX; i++) {
        if (ls_audit_due(&options, i)) {
            step[count++] = i;
        }
    }
    return count;
}

/* Elements that are wrong, whatever else there is to say. */
static void judge_elements(const audits *all, int rank, ls_verdict *out)
{
    for (int i = 0; i < all->count && i < STEPS_MAX; i++) {
        const audited_step *one = &all->step[i];
        if (one->bad != 0 && out->code == LS_PASS) {
            ls_verdict_fail(out,
                            "rank=%d step %lld: %lld of %lld elements are wrong, one %.3g x its "
                            "bound: %s",
                            rank, (long long)one->step, (long long)one->bad,
                            (long long)one->elements, one->ratio, one->where);
            ls_verdict_cause(out, "%s is not what its operands give", one->where);
        }
    }
}

/* WEAK where a step that was drawn was not audited, or not all of it. */
static void judge_steps(const audits *all, int rank, const int64_t *step, int count,
                        ls_verdict *out)
{
    if (all->count != count) {
        ls_verdict_set(out, LS_WEAK, "rank=%d audited %d steps, not %d", rank, all->count, count);
        return;
    }
    for (int i = 0; i < count; i++) {
        const audited_step *one = &all->step[i];
        if (one->step != step[i]) {
            ls_verdict_set(out, LS_WEAK, "rank=%d audited step %lld, drawn was %lld", rank,
                           (long long)one->step, (long long)step[i]);
        } else if (one->elements <= 0 || one->unaudited[0] != '\0') {
            ls_verdict_set(out, LS_WEAK, "rank=%d step %lld: not audited: %s", rank,
                           (long long)one->step,
                           one->elements <= 0 ? "any element" : one->unaudited);
        }
    }
}

/* What the loader draws for the rank in that step, when it is asked again. Batches that stay on the
 * device are the first ones, in turn. */
static ls_status draw(const ls_spec *spec, const char *run, int rank, int64_t step,
                      char digest[DIGEST_BYTES])
{
    ls_loader *loader = NULL;
    ls_loader_batch batch;
    int64_t drawn = spec->resident > 0 ? (step - 1) % spec->resident + 1 : step;
    LS_TRY(ls_timed_loader(spec, run, rank, drawn, &loader));
    ls_status status = ls_loader_next(loader, &batch);
    if (status == LS_OK) {
        ls_text_put(digest, DIGEST_BYTES, "%016llx",
                    (unsigned long long)ls_loader_digest(0, &batch, spec->image_size));
    }
    ls_loader_close(loader);
    return status;
}

static void judge_batch(const ls_spec *spec, const char *run, const audits *all, int rank, int i,
                        ls_verdict *out)
{
    const audited_step *mine = &all[rank].step[i];
    char drawn[DIGEST_BYTES];
    if (mine->batch[0] == '\0') {
        ls_verdict_set(out, LS_WEAK, "rank=%d step %lld: no digest of its images", rank,
                       (long long)mine->step);
        return;
    }
    for (int other = 0; other < rank; other++) {
        if (strcmp(all[other].step[i].batch, mine->batch) == 0) {
            ls_verdict_fail(out, "step %lld: ranks %d and %d have the same images",
                            (long long)mine->step, other, rank);
            ls_verdict_cause(out, "every rank reads rank %d's images", other);
            return;
        }
    }
    if (draw(spec, run, rank, mine->step, drawn) != LS_OK) {
        ls_verdict_set(out, LS_INFRA, "rank=%d step %lld: its images cannot be drawn again", rank,
                       (long long)mine->step);
    } else if (strcmp(drawn, mine->batch) != 0) {
        ls_verdict_fail(out, "rank=%d step %lld: its images and classes are not those of that step",
                        rank, (long long)mine->step);
        ls_verdict_cause(out, "batches of another step or rank, or images that were changed");
    }
}

static void judge_job(const ls_spec *spec, const ls_record *job, const audits *all, ls_verdict *out)
{
    int64_t step[STEPS_MAX], elements = 0;
    int count = drawn_steps(spec, step);
    const audited_step *worst = &all[0].step[0];
    LS_TEXT(run, sizeof job->directory, "%s", job->directory);
    char *end = strstr(run, "/jobs/");
    for (char *next = end; next != NULL; next = strstr(next + 1, "/jobs/")) {
        end = next;
    }
    if (end != NULL) {
        *end = '\0';
    }
    for (int rank = 0; rank < job->world; rank++) {
        judge_steps(&all[rank], rank, step, count, out);
        for (int i = 0; i < count && out->code == LS_PASS; i++) {
            const audited_step *one = &all[rank].step[i];
            judge_batch(spec, run, all, rank, i, out);
            elements += one->elements;
            worst = one->ratio > worst->ratio ? one : worst;
        }
    }
    ls_verdict_measured(out, worst->ratio, bound.value, "of its bound", bound.why);
    ls_verdict_pass(out, elements,
                    "%lld elements of %d drawn steps on %d ranks; the worst used %.2f of its "
                    "bound: %s; every rank has its own images",
                    (long long)elements, count, job->world, worst->ratio, worst->where);
}

/* Whether the job's end decides: one whose audit has found something leaves with 1. */
static bool ended_otherwise(const ls_record *job, ls_verdict *out)
{
    return job->state != LS_RECORD_DONE && job->code != LS_ERR_CHECK &&
           (ls_verdict_of_outcome(job, out), true);
}

/* Of every rank; the caller frees it. */
static audits *read_job(const ls_record *job)
{
    audits *all = ls_list_make((size_t)job->world + 1, sizeof *all);
    for (int rank = 0; rank < job->world; rank++) {
        all[rank] = read_rank(job, rank);
    }
    return all;
}

static void judge(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    if (ended_otherwise(job, out)) {
        return;
    }
    audits *all = read_job(job);
    for (int rank = 0; rank < job->world; rank++) {
        judge_elements(&all[rank], rank, out);
    }
    if (out->code == LS_PASS && job->state != LS_RECORD_DONE) {
        ls_verdict_of_outcome(job, out);
    } else if (out->code == LS_PASS) {
        judge_job(&row->job[0], job, all, out);
    }
    free(all);
}

/* ---- small jobs ------------------------------------------------------------------------------ */

static void judge_small(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const char *unaudited = row->data != NULL ? row->data : "";
    int64_t elements = 0, bad = 0;
    if (ended_otherwise(job, out)) {
        return;
    }
    audits *all = read_job(job);
    const audited_step *worst = &all[0].step[0];
    for (int rank = 0; rank < job->world; rank++) {
        int64_t before = bad;
        for (int i = 0; i < all[rank].count && i < STEPS_MAX; i++) {
            const audited_step *one = &all[rank].step[i];
            elements += one->elements;
            bad += one->bad;
            bool worse = one->bad > 0 && worst->bad == 0;
            worst = worse || one->ratio > worst->ratio ? one : worst;
            if (strcmp(one->unaudited, unaudited) != 0) {
                ls_verdict_fail(out, "rank %d reports as not audited: '%s', expected '%s'", rank,
                                one->unaudited, unaudited);
            }
        }
        int steps = all[rank].count;
        if (steps == 0 || (bad == before && steps != row->job[0].steps)) {
            ls_verdict_fail(out, "rank %d reports %d audited steps, not %d", rank, steps,
                            row->job[0].steps);
        }
    }
    ls_verdict_pass(out, elements,
                    "%lld of %lld elements wrong in %d steps of %d ranks; the worst used %.2f of "
                    "its bound: %s",
                    (long long)bad, (long long)elements, row->job[0].steps, job->world,
                    worst->ratio, worst->where);
    if (bad > 0 || job->code != 0) {
        out->code = LS_FAIL;
    }
    if (bad > 0) {
        ls_verdict_cause(out, "%s is not what its operands give", worst->where);
    }
    free(all);
}

#define JOB "resnet8 b0.1 dump-ranks=0 steps=2 "
#define AUDIT(seed) " --audit=" #seed ":1"

static const ls_row small[] = {
    {"audit.o0", "G9", judge_small, JOB "O0" AUDIT(11), .inside = true, .judges_outcome = true},
    {"audit.o1", "G9", judge_small, JOB "O1" AUDIT(12) " --optimizer=adam", .inside = true,
     .judges_outcome = true},
    {"audit.o2", "G9", judge_small, JOB "O2" AUDIT(13), .inside = true, .judges_outcome = true},
    {"audit.o2.bf16", "G9", judge_small, JOB "O2 bf16" AUDIT(14) " --nesterov", .inside = true,
     .judges_outcome = true},
    {"audit.o3", "G9", judge_small, JOB "O3" AUDIT(15) " --optimizer=adamw", .inside = true,
     .judges_outcome = true},
    {"audit.smoothing.o[0|2]", "G9", judge_small, JOB "O$1" AUDIT(24) " --label-smoothing=0.1",
     .inside = true, .judges_outcome = true},
    {"audit.groups.[o0=O0|o2=O2 --optimizer=adam]", "G9", judge_small,
     JOB "$1" AUDIT(25) " --weight-decay=0.1 --no-bn-decay --group=^fc:lr-factor=0.3",
     .inside = true, .judges_outcome = true},
    {"audit.unaudited.clip.o1", "G9", judge_small, JOB "O1" AUDIT(26) " --clip-grad-norm=0.1",
     "clipping", .inside = true, .judges_outcome = true},
    {"audit.o2.w2", "G9", judge_small, JOB "O2 w2" AUDIT(16) " --predivide=2", .inside = true,
     .judges_outcome = true},
    {"audit.o1.w3.syncbn", "G9", judge_small, JOB "O1 w3 sync" AUDIT(17), .inside = true,
     .judges_outcome = true},
    {"audit.unaudited.[lamb|lars].o2", "G9", judge_small, JOB "O2" AUDIT(18) " --optimizer=$1",
     "update", .inside = true, .judges_outcome = true},
    {"audit.unaudited.parts.o0.w2", "G9", judge_small,
     JOB "O0 w2" AUDIT(19) " --optimizer=lamb --accumulate=2 --compress=fp16 --aux-head=1,2",
     "update, sum of micro-steps, compression, auxiliary head", .inside = true,
     .judges_outcome = true},
    /* what a hook leaves of a bucket */
    {"audit.hooks.[allreduce|sum].o[0|2].w2", "G9", judge_small,
     JOB "O$2 w2" AUDIT(29) " --comm-hook=$1", .inside = true, .judges_outcome = true},
    {"audit.hooks.fp16.o1.w2", "G9", judge_small,
     JOB "O1 w2" AUDIT(30) " --comm-hook=fp16_compress", "compression", .inside = true,
     .judges_outcome = true},
    {"audit.unaudited.each.o2.w2", "G9", judge_small,
     JOB "O2 w2" AUDIT(28) " --accumulate=3 --no-sync=False",
     "sum of micro-steps, reductions but the last", .inside = true, .judges_outcome = true},
};

/* Of a GPU, or the emulation: products that also sum for the norm behind them; the stem over blocks
 * of pixels, and batch norms of two sides in one message; images of 8 bits, which it normalises. */
static const ls_row of_devices[] = {
    {"audit.fused.o[1|2|3]", "G9", judge_small, JOB "O$1 undetermined" AUDIT(20) " --fuse",
     .inside = true, .judges_outcome = true},
    {"audit.fused.sync.o2.w2", "G9", judge_small, JOB "O2 w2 sync undetermined" AUDIT(21) " --fuse",
     .inside = true, .judges_outcome = true},
    {"audit.fused.joins.o2", "G9", judge_small,
     "resnet18 image=32 O2 dump-ranks=0 steps=2 undetermined" AUDIT(24) " --fuse", .inside = true,
     .judges_outcome = true},
    {"audit.stem.[o2=|sync.o2.w2=w2 sync]", "G9", judge_small,
     "resnet18 image=32 O2 $1 dump-ranks=0 steps=2" AUDIT(22), .inside = true,
     .judges_outcome = true},
    /* 64 channels in f32 are two blocks side by side, 256 rows of them two more below */
    {"audit.columns.o0", "G9", judge_small,
     "resnet8 image=32 batch=4 b0.1 O0 dump-ranks=0 steps=2" AUDIT(27), .inside = true,
     .judges_outcome = true},
    {"audit.pictures.o[0|2]", "G9", judge_small, JOB "O$1 data={run}/pictures shell" AUDIT(23),
     .script = "flock {run}/pictures.lock {bin}/lockstep data make {run}/pictures --images 2 "
               "--image-size 16 >/dev/null || exit 3; exec \"$0\" \"$@\"",
     .inside = true, .judges_outcome = true},
};

void ls_audited_cases(const ls_case_settings *settings, ls_case_list *list)
{
    static const ls_row row = {.requirement = "G10", .judge = judge, .judges_outcome = true};
    for (int i = 0; settings->bench != NULL && i < settings->bench->count; i++) {
        const ls_spec *spec = &settings->bench->spec[i];
        if (ls_spec_is_timed(spec) && !ls_spec_is_team(spec)) {
            char id[64];
            ls_timed_id(spec, id);
            ls_rows_specs(list, settings, &row, spec, 1, "audit.timed.%s", id);
        }
    }
    LS_ROWS(list, settings, small);
    if (settings->device != NULL && strcmp(settings->device, "cuda") == 0) {
        LS_ROWS(list, settings, of_devices);
    }
}
