/* Audited jobs (numerics.md section 5, FP64 samples), at every level and half type, alone and with
 * ranks that share statistics: every rank looks at what each step has written and finds nothing,
 * and the event names what it did not look at. */
#include "suite/cases/rows.h"

#include <string.h>

#include "kernels/core/text.h"

enum { STEPS = 2 };

/* What the audits of one rank have found. */
typedef struct findings {
    int steps;
    long long elements, bad;
    double worst;
    char where[160], unaudited[96];
} findings;

static ls_status read_event(void *context, const cJSON *event, int line)
{
    findings *to = context;
    (void)line;
    const cJSON *worst = cJSON_GetObjectItemCaseSensitive(event, "worst");
    double ratio = ls_json_number(worst, "ratio", 0);
    to->steps++;
    to->elements += (long long)ls_json_integer(event, "elements", 0);
    to->bad += (long long)ls_json_integer(event, "bad", 1);
    ls_text_put(to->unaudited, sizeof to->unaudited, "%s",
                ls_json_string(event, "unaudited", "no list"));
    if (ratio >= to->worst || to->where[0] == '\0') {
        to->worst = ratio;
        ls_text_put(to->where, sizeof to->where, "%s, %s", ls_json_string(worst, "operation", "?"),
                    ls_json_string(worst, "output", "?"));
    }
    return LS_OK;
}

static findings read_rank(const ls_record *job, int rank)
{
    findings found = {0};
    if (job->rank[rank].has_events) {
        (void)ls_record_each_event(job, rank, "audit", read_event, &found);
    }
    return found;
}

static void judge(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    findings all = {0};
    if (job->state != LS_RECORD_DONE && job->code != LS_ERR_CHECK) {
        ls_verdict_of_outcome(job, out);
        return;
    }
    for (int rank = 0; rank < job->world; rank++) {
        findings found = read_rank(job, rank);
        if (found.steps == 0 || (found.bad == 0 && found.steps != STEPS)) {
            ls_verdict_fail(out, "rank %d reports %d audited steps, not %d", rank, found.steps,
                            STEPS);
            return;
        }
        const char *unaudited = row->data != NULL ? row->data : "";
        if (strcmp(found.unaudited, unaudited) != 0) {
            ls_verdict_fail(out, "rank %d reports as not audited: '%s', expected '%s'", rank,
                            found.unaudited, unaudited);
        }
        all.elements += found.elements;
        all.bad += found.bad;
        if (found.bad > 0 || rank == 0 || found.worst > all.worst) {
            all.worst = found.worst;
            ls_text_put(all.where, sizeof all.where, "%s", found.where);
        }
    }
    ls_verdict_pass(
        out, all.elements,
        "%lld of %lld elements wrong in %d steps of %d ranks; the worst used %.2f of its "
        "bound: %s",
        all.bad, all.elements, row->job[0].steps, job->world, all.worst, all.where);
    if (all.bad > 0 || job->code != 0) {
        out->code = LS_FAIL;
    }
    if (all.bad > 0) {
        ls_verdict_cause(out, "%s is not what its operands give", all.where);
    }
}

#define JOB "resnet8 b0.1 dump-ranks=0 steps=2 "
#define AUDIT(seed) " --audit=" #seed ":1"

static const ls_row rows[] = {
    {"audit.o0", "G9", judge, JOB "O0" AUDIT(11), .inside = true, .judges_outcome = true},
    {"audit.o1", "G9", judge, JOB "O1" AUDIT(12) " --optimizer=adam", .inside = true,
     .judges_outcome = true},
    {"audit.o2", "G9", judge, JOB "O2" AUDIT(13), .inside = true, .judges_outcome = true},
    {"audit.o2.bf16", "G9", judge, JOB "O2 bf16" AUDIT(14) " --nesterov", .inside = true,
     .judges_outcome = true},
    {"audit.o3", "G9", judge, JOB "O3" AUDIT(15) " --optimizer=adamw", .inside = true,
     .judges_outcome = true},
    {"audit.smoothing.o[0|2]", "G9", judge, JOB "O$1" AUDIT(24) " --label-smoothing=0.1",
     .inside = true, .judges_outcome = true},
    {"audit.groups.[o0=O0|o2=O2 --optimizer=adam]", "G9", judge,
     JOB "$1" AUDIT(25) " --weight-decay=0.1 --no-bn-decay --group=^fc:lr-factor=0.3",
     .inside = true, .judges_outcome = true},
    {"audit.unaudited.clip.o1", "G9", judge, JOB "O1" AUDIT(26) " --clip-grad-norm=0.1", "clipping",
     .inside = true, .judges_outcome = true},
    {"audit.o2.w2", "G9", judge, JOB "O2 w2" AUDIT(16) " --predivide=2", .inside = true,
     .judges_outcome = true},
    {"audit.o1.w3.syncbn", "G9", judge, JOB "O1 w3 sync" AUDIT(17), .inside = true,
     .judges_outcome = true},
    {"audit.unaudited.[lamb|lars].o2", "G9", judge, JOB "O2" AUDIT(18) " --optimizer=$1", "update",
     .inside = true, .judges_outcome = true},
    {"audit.unaudited.parts.o0.w2", "G9", judge,
     JOB "O0 w2" AUDIT(19) " --optimizer=lamb --accumulate=2 --compress=fp16 --aux-head=1,2",
     "update, sum of micro-steps, compression, auxiliary head", .inside = true,
     .judges_outcome = true},
    /* what a hook leaves of a bucket */
    {"audit.hooks.[allreduce|sum].o[0|2].w2", "G9", judge, JOB "O$2 w2" AUDIT(29) " --comm-hook=$1",
     .inside = true, .judges_outcome = true},
    {"audit.hooks.fp16.o1.w2", "G9", judge, JOB "O1 w2" AUDIT(30) " --comm-hook=fp16_compress",
     "compression", .inside = true, .judges_outcome = true},
    {"audit.unaudited.each.o2.w2", "G9", judge,
     JOB "O2 w2" AUDIT(28) " --accumulate=3 --no-sync=False",
     "sum of micro-steps, reductions but the last", .inside = true, .judges_outcome = true},
};

/* Of a GPU, or the emulation: products that also sum for the norm behind them; the stem over blocks
 * of pixels, and batch norms of two sides in one message; images of 8 bits, which it normalises. */
static const ls_row of_devices[] = {
    {"audit.fused.o[1|2|3]", "G9", judge, JOB "O$1 undetermined" AUDIT(20) " --fuse",
     .inside = true, .judges_outcome = true},
    {"audit.fused.sync.o2.w2", "G9", judge, JOB "O2 w2 sync undetermined" AUDIT(21) " --fuse",
     .inside = true, .judges_outcome = true},
    {"audit.fused.joins.o2", "G9", judge,
     "resnet18 image=32 O2 dump-ranks=0 steps=2 undetermined" AUDIT(24) " --fuse", .inside = true,
     .judges_outcome = true},
    {"audit.stem.[o2=|sync.o2.w2=w2 sync]", "G9", judge,
     "resnet18 image=32 O2 $1 dump-ranks=0 steps=2" AUDIT(22), .inside = true,
     .judges_outcome = true},
    /* 64 channels in f32 are two blocks side by side, 256 rows of them two more below */
    {"audit.columns.o0", "G9", judge,
     "resnet8 image=32 batch=4 b0.1 O0 dump-ranks=0 steps=2" AUDIT(27), .inside = true,
     .judges_outcome = true},
    {"audit.pictures.o[0|2]", "G9", judge, JOB "O$1 data={run}/pictures shell" AUDIT(23),
     .script = "flock {run}/pictures.lock {bin}/lockstep data make {run}/pictures --images 2 "
               "--image-size 16 >/dev/null || exit 3; exec \"$0\" \"$@\"",
     .inside = true, .judges_outcome = true},
};

void ls_audit_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
    if (settings->device != NULL && strcmp(settings->device, "cuda") == 0) {
        LS_ROWS(list, settings, of_devices);
    }
}
