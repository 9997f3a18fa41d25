/* Replicas in lockstep, and what must not depend on how gradients are grouped (numerics.md section
 * 3). */
#include "suite/cases/rows.h"

#include <stdio.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/judge/diagnose_digests.h"
#include "suite/cases/judges.h"
#include "suite/cases/timed/timed.h"

/* Compares the digests of one step; returns how many were compared. */
static int compare_step(const ls_record_step *a, const ls_record_step *b, unsigned mask,
                        const char *who, ls_verdict *out)
{
    int compared = 0;
    for (int d = 0; d < LS_RECORD_DIGESTS; d++) {
        if ((mask & a->digest_mask & b->digest_mask & 1u << d) == 0) {
            continue;
        }
        compared++;
        if (strcmp(a->digest[d], b->digest[d]) != 0) {
            ls_verdict_fail(out, "%s step %d: %s is %s, expected %s", who, (int)a->step,
                            ls_record_digest_name((ls_record_digest)d), b->digest[d], a->digest[d]);
        }
    }
    return compared;
}

enum {
    REPLICA = 1u << LS_RECORD_PARAM | 1u << LS_RECORD_MASTER | 1u << LS_RECORD_STATE |
              1u << LS_RECORD_SCALER | 1u << LS_RECORD_GRAD,
    EVERYTHING = REPLICA | 1u << LS_RECORD_BUFFER,
};

/* Every rank's digests equal rank 0's at every step; running statistics too where they are shared.
 */
void ls_ddp_judge_lockstep(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    unsigned mask = row->job[0].sync_bn ? EVERYTHING : REPLICA;
    int steps = job->rank[0].step_count, compared = 0;
    for (int k = 0; k < job->world; k++) {
        if (job->rank[k].step_count != steps) {
            ls_verdict_fail(out, "rank=%d took %d steps, rank 0 took %d", k,
                            job->rank[k].step_count, steps);
            continue;
        }
        char who[32];
        ls_text_put(who, sizeof who, "rank=%d", k);
        for (int i = 0; i < steps && k > 0; i++) {
            compared += compare_step(&job->rank[0].step[i], &job->rank[k].step[i], mask, who, out);
        }
        for (int i = 0; i < steps; i++) {
            if (job->rank[k].step[i].loss_scale != job->rank[0].step[i].loss_scale ||
                job->rank[k].step[i].skipped != job->rank[0].step[i].skipped) {
                ls_verdict_fail(out, "rank=%d step %d: loss scale or skip differs from rank 0", k,
                                (int)job->rank[k].step[i].step);
            }
        }
    }
    if (compared == 0) {
        ls_verdict_set(out, steps == 0 ? LS_FAIL : LS_UNSUPPORTED, "no digests in %d steps", steps);
    }
    ls_verdict_pass(out, "%d digests of %d ranks equal over %d steps", compared, job->world, steps);
    for (int k = 1; k < job->world && out->code == LS_FAIL && out->cause[0] == '\0'; k++) {
        ls_diagnose_replicas(&job->rank[0], &job->rank[k], out->cause, (int)sizeof out->cause);
    }
}

/* Two runs whose every step must be equal to the last bit, rank by rank. */
static void judge_same(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    unsigned mask = EVERYTHING & ~(unsigned)row->number[0];
    int compared = 0, steps = job[0].rank[0].step_count;
    int ranks = job[0].world < job[1].world ? job[0].world : job[1].world;
    for (int k = 0; k < ranks; k++) {
        char who[32];
        ls_text_put(who, sizeof who, "rank=%d", k);
        if (job[1].rank[k].step_count != job[0].rank[k].step_count) {
            ls_verdict_fail(out, "rank=%d took %d steps in one run, %d in the other", k,
                            job[0].rank[k].step_count, job[1].rank[k].step_count);
            continue;
        }
        for (int i = 0; i < job[0].rank[k].step_count; i++) {
            const ls_record_step *a = &job[0].rank[k].step[i], *b = &job[1].rank[k].step[i];
            compared += compare_step(a, b, mask, who, out);
            if (strcmp(a->loss_bits, b->loss_bits) != 0) {
                ls_verdict_fail(out, "rank=%d step %d: loss %s, expected %s", k, (int)a->step,
                                b->loss_bits, a->loss_bits);
            }
        }
    }
    if (compared == 0) {
        ls_verdict_set(out, steps == 0 ? LS_FAIL : LS_UNSUPPORTED, "no digests to compare");
    }
    ls_verdict_pass(out, "%d digests of %d steps equal to the last bit: %s", compared, steps,
                    row->text);
}

static ls_spec bit_spec(const ls_case_settings *settings, int level, int world, double bucket_mb)
{
    ls_spec spec = ls_rows_evidence(settings, level, world, 1, bucket_mb);
    spec.steps = 4;
    spec.dump_steps[0] = '\0';
    return spec;
}

static ls_case *add_pair(ls_case_list *list, const char *id, int level, const char *requirement,
                         const ls_spec *a, const ls_spec *b, const char *text)
{
    ls_case *row = ls_rows_add(list, judge_same, requirement, "ddp.%s.o%d", id, level);
    row->job_count = 2;
    row->job[0] = *a;
    row->job[1] = *b;
    ls_text_put(row->text, sizeof row->text, "%s", text);
    return row;
}

static void add_bitwise(const ls_case_settings *settings, ls_case_list *list, int level)
{
    ls_spec base = bit_spec(settings, level, 2, 0.1);
    static const struct {
        const char *id;
        double bucket_mb;
    } other[] = {{"buckets.w2.b0.02mb", 0.02},
                 {"buckets.w2.b0.5mb", 0.5},
                 {"buckets.w2.delay", LS_BUCKET_DELAYED}};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        ls_spec spec = bit_spec(settings, level, 2, other[i].bucket_mb);
        add_pair(list, other[i].id, level, "D2", &base, &spec,
                 "two ranks, one addition per element, whatever the buckets");
    }
    ls_spec one = bit_spec(settings, level, 1, 0.1), alone = one;
    ls_text_put(one.extra, sizeof one.extra, "--comm=self"); /* buckets and reduction in use */
    alone.wrap = LS_WRAP_ALONE;
    add_pair(list, "world1", level, "D3", &one, &alone, "a world of one and no DDP at all");
    ls_spec three = bit_spec(settings, level, 3, 0.1), again = three;
    three.deterministic = again.deterministic = true;
    again.repeat = 1;
    add_pair(list, "twice.w3", level, "D4", &three, &again, "the same command, run twice");
    ls_spec nodes = bit_spec(settings, level, 2, 0.1);
    nodes.nodes = 2;
    add_pair(list, "nodes.w2", level, "D5", &base, &nodes, "one node and two simulated ones");
}

static void add_power_of_two(const ls_case_settings *settings, ls_case_list *list)
{
    ls_spec one = bit_spec(settings, 0, 2, 0.1), scaled = one;
    ls_text_put(one.loss_scale, sizeof one.loss_scale, "1");
    ls_text_put(scaled.loss_scale, sizeof scaled.loss_scale, "1024");
    ls_case *row =
        add_pair(list, "scale.w2", 0, "D6", &one, &scaled, "static scale 1024 and scale 1 in f32");
    row->number[0] = 1 << LS_RECORD_SCALER; /* the scale itself differs, of course */
}

/* Without the average the gradient is the sum, of two ranks twice the mean: half the rate takes the
 * same steps, bit for bit. Divided by 4 before the sum and by nothing after it, it is half the
 * mean. */
static void add_unaveraged(const ls_case_settings *settings, ls_case_list *list)
{
    static const struct {
        const char *id, *dialect, *options;
        double lr;
    } rows[] = {{"apex", "apex", "", 0.03125},
                {"torch", "torch", "", 0.03125},
                {"predivide.apex", "apex", " --predivide=4", 0.125},
                {"predivide.torch", "torch", " --predivide=4", 0.125}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_case *row = ls_rows_add(list, judge_same, "D9", "average.none.%s.o0.w2", rows[i].id);
        row->job_count = 2;
        row->job[0] = row->job[1] = bit_spec(settings, 0, 2, 0.1);
        for (int j = 0; j < 2; j++) {
            ls_spec *spec = &row->job[j];
            ls_text_put(spec->dialect, sizeof spec->dialect, "%s", rows[i].dialect);
            ls_text_put(spec->extra, sizeof spec->extra, "--weight-decay=0%s%s",
                        j == 1 ? " --average=none" : "", j == 1 ? rows[i].options : "");
            spec->lr = j == 1 ? rows[i].lr : 0.0625;
        }
        row->number[0] = 1 << LS_RECORD_GRAD | 1 << LS_RECORD_STATE;
        ls_text_put(row->text, sizeof row->text, "the mean, and the sum at a rate that makes up");
    }
}

static void add_lockstep(const ls_case_settings *settings, ls_case_list *list)
{
    for (int level = 0; level < 4; level++) {
        for (int world = 2; world <= 4; world++) {
            for (int sync = 0; sync < 2; sync++) {
                ls_case *row =
                    ls_rows_add(list, ls_ddp_judge_lockstep, "D1", "ddp.lockstep%s.o%d.w%d",
                                sync ? ".sync" : "", level, world);
                row->job_count = 1;
                row->job[0] = ls_rows_evidence(settings, level, world, 1, 0.1);
                row->job[0].sync_bn = sync != 0;
            }
        }
    }
    /* ranks that wait for each other for ever: the trainer's own deadline ends that soon */
    ls_case *waits = ls_rows_add(list, ls_ddp_judge_lockstep, "D1", "ddp.deadline.w2");
    waits->job_count = 1;
    waits->job[0] = ls_rows_evidence(settings, 2, 2, 1, 0.1);
    ls_text_put(waits->job[0].extra, sizeof waits->job[0].extra, "--timeout=15");
    /* a race may show once in fifty steps: it gets two hundred */
    for (int level = 0; level < 3; level += 2) {
        ls_case *row = ls_rows_add(list, ls_ddp_judge_lockstep, "D1", "ddp.long.o%d.w2", level);
        row->job_count = 1;
        ls_spec *spec = &row->job[0];
        *spec = ls_rows_evidence(settings, level, 2, 1, 0.05);
        ls_text_put(spec->arch, sizeof spec->arch, "resnet8");
        spec->dump_steps[0] = '\0';
        spec->steps = 200;
    }
    if (settings->bench == NULL) {
        return;
    }
    for (int i = 0; i < settings->bench->count; i++) {
        const ls_spec *spec = &settings->bench->spec[i];
        char id[64];
        ls_timed_id(spec, id);
        if (spec->role != LS_ROLE_THROUGHPUT || spec->world < 2) {
            continue;
        }
        ls_case *row = ls_rows_add(list, ls_ddp_judge_lockstep, "D1", "ddp.timed.%s", id);
        row->job_count = 1;
        row->job[0] = *spec;
    }
}

/* The job that says what DDP costs in a world of one must compute what no DDP computes. */
static void add_timed_self(const ls_case_settings *settings, ls_case_list *list)
{
    const ls_matrix *bench = settings->bench;
    for (int i = 0; bench != NULL && i < bench->count; i++) {
        for (int j = 0; j < bench->count && bench->spec[i].role == LS_ROLE_DDP_WORLD1; j++) {
            const ls_spec *own = &bench->spec[i], *plain = &bench->spec[j];
            if (plain->role != LS_ROLE_THROUGHPUT || plain->world != 1 ||
                plain->level != own->level || plain->bucket_mb != own->bucket_mb) {
                continue;
            }
            ls_case *row = ls_rows_add(list, judge_same, "D3", "ddp.timed.world1.o%d", own->level);
            row->job_count = 2;
            row->job[0] = *plain;
            row->job[1] = *own;
            ls_text_put(row->text, sizeof row->text, "a world of one with DDP and without");
        }
    }
}

void ls_ddp_cases(const ls_case_settings *settings, ls_case_list *list)
{
    add_lockstep(settings, list);
    add_timed_self(settings, list);
    for (int level = 0; level < 4; level++) {
        add_bitwise(settings, list, level);
    }
    add_power_of_two(settings, list);
    add_unaveraged(settings, list);
}
