/* Training that starts from a file of another run, a dump or a checkpoint, whatever types it holds;
 * and training that learns. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suite/judge/judges.h"

typedef struct source {
    const char *file; /* that job 1 starts from, in job 0's folder */
    bool reported;    /* rank 0 says what it does not use */
} source;

/* A tensor of the file, or what stands in for it; NULL: neither is there. */
static const ls_dumpfile_entry *first_of(const ls_dumpfile *file, const char *kind,
                                         const char *second, const char *name)
{
    const ls_dumpfile_entry *entry = ls_dumpfile_findf(file, "%s/%s", kind, name);
    return entry != NULL ? entry : ls_dumpfile_findf(file, "%s/%s", second, name);
}

static void compare(const ls_dumpfile_entry *want, const ls_dumpfile_entry *got, int rank,
                    const char *name, ls_verdict *out)
{
    bool same = got != NULL && got->count == want->count;
    double *a = ls_dumps_values(want), *b = same ? ls_dumps_values(got) : NULL;
    bool half = same && strcmp(got->dtype, "F32") != 0 && strcmp(got->dtype, "I64") != 0;
    for (int64_t i = 0; same && i < want->count; i++) {
        same = (half ? ls_bits_round(ls_dumps_type(got), a[i]) : a[i]) == b[i];
    }
    if (!same) {
        ls_verdict_fail(out, "rank=%d: %s at step 1 is not %s of --init", rank, name, want->name);
    }
    free(a);
    free(b);
}

/* What rank `rank` has before its first step. Adds the parameters that were compared; returns how
 * many running statistics were: a dump need not hold those from before its step. */
static int compare_rank(const ls_dumpfile *given, const ls_record *job, int rank, int *params,
                        ls_verdict *out)
{
    ls_dumpfile *file = ls_dumps_open(job, 1, rank, out);
    int statistics = 0, at = 0;
    const char *name;
    while (file != NULL && (name = ls_dumps_next_param(given, &at)) != NULL) {
        compare(first_of(given, "master", "param", name), ls_dumpfile_findf(file, "param/%s", name),
                rank, name, out);
        ++*params;
    }
    for (int i = 0; file != NULL && i < ls_dumpfile_count(given); i++) {
        name = ls_dumpfile_at(given, i)->name;
        const ls_dumpfile_entry *got = ls_dumpfile_findf(file, "last_%s", name);
        if (strncmp(name, "buffer/", 7) == 0 && got != NULL) {
            compare(first_of(given, "last_buffer", "buffer", name + 7), got, rank, name, out);
            statistics++;
        }
    }
    ls_dumpfile_close(file);
    return statistics;
}

static void judge_start(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const source *from = row->data;
    int statistics = 0, params = 0;
    ls_dumpfile *given = ls_dumps_open_file(&job[0], from->file, LS_FAIL, out);
    if (given != NULL && !ls_dumpfile_has(given, "param/")) {
        ls_verdict_fail(out, "%s holds no parameters", from->file);
    }
    for (int rank = 0; given != NULL && rank < job[1].world; rank++) {
        statistics += compare_rank(given, &job[1], rank, &params, out);
    }
    ls_dumpfile_close(given);
    if (from->reported && statistics == 0) {
        ls_verdict_fail(out, "no running statistics could be compared");
    }
    if (from->reported && !ls_endings_says(&job[1], 0, "not used: ")) {
        ls_verdict_fail(out, "rank 0 does not say what it does not use of the file");
    }
    ls_verdict_pass(out, params + statistics,
                    "parameters and %d running statistics of %d ranks start as %s holds them",
                    statistics, job[1].world, from->file);
}

static void judge_resumed(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    if (!ls_endings_says(&job[1], 0, "--init") || !ls_endings_says(&job[1], 0, "is not used")) {
        ls_verdict_fail(out, "rank 0 does not say that --resume leaves --init unused");
    }
    ls_verdict_pass(out, 1, "rank 0 says that --init is not used");
}

/* ---- training works at all: the loss comes down on data that can be learnt --------------------
 */

enum { STEPS = 60, WINDOW = 10 };

static const ls_tol falls_to = LS_TOL(
    0.8, "synthetic images are separable by class: a fresh network is at ln 10 = 2.30 and must "
         "leave it by a fifth in 60 steps; one that does not learn stays within noise of it");

/* Mean over ranks and over WINDOW steps that end at `last`; adds how many losses it is of. */
static double mean_loss(const ls_record *job, int64_t last, int *losses)
{
    double sum = 0;
    int count = 0;
    for (int k = 0; k < job->world; k++) {
        for (int64_t step = last - WINDOW + 1; step <= last; step++) {
            const ls_record_step *seen = ls_record_find_step(&job->rank[k], step);
            if (seen != NULL) {
                sum += seen->loss;
                count++;
            }
        }
    }
    *losses += count;
    return count == 0 ? NAN : sum / count;
}

static void judge_falls(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int losses = 0;
    double first = mean_loss(job, WINDOW, &losses), last = mean_loss(job, STEPS, &losses);
    ls_verdict_measured(out, last / first, falls_to.value, "of the first", falls_to.why);
    if (!(last <= falls_to.value * first)) {
        ls_verdict_fail(out, "mean loss %.4f of the first %d steps became %.4f", first, WINDOW,
                        last);
    }
    ls_verdict_pass(out, losses, "mean loss of %d steps fell from %.3f to %.3f", WINDOW, first,
                    last);
}

#define FIRST "resnet8 w2 b0.05 steps=2 "
#define SECOND " | resnet8 w2 b0.05 steps=1 dump=1 "
#define DUMP(from, to) \
    FIRST "dump=2 " from SECOND to " --init={job:0}/dump/step000002.rank0.safetensors"
#define CHECKPOINT(from, to)                                     \
    FIRST from " --save={self}/checkpoint.safetensors" SECOND to \
               " --init={job:0}/checkpoint.safetensors"

/* The same file as torch.save would write it. */
#define TORCH(from, to)                                                \
    FIRST from " shell --save={self}/checkpoint.safetensors" SECOND to \
               " --init={job:0}/checkpoint.pth"
#define TO_TORCH                                                             \
    "\"$0\" \"$@\" || exit $?; [ $RANK != 0 ] || {bin}/lockstep checkpoint " \
    "{self}/checkpoint.safetensors --to {self}/checkpoint.pth || exit 9; exit 0"

static const source dump = {"dump/step000002.rank0.safetensors", false},
                    checkpoint = {"checkpoint.safetensors", true};

static const ls_row rows[] = {
    {"training.falls.o[0|1|2|3].w2", "T1", judge_falls, "resnet8 O$1 w2 batch=16 steps=60"},
    {"init.dump.o0-to-o0.w2", "Q34", judge_start, DUMP("O0", "O0"), &dump},
    {"init.dump.o2-to-o2.w2", "Q34", judge_start, DUMP("O2", "O2"), &dump},
    {"init.dump.bf16-to-bf16.w2", "Q34", judge_start, DUMP("O2 bf16", "O2 bf16"), &dump},
    {"init.dump.o2-to-o0.w2", "Q34", judge_start, DUMP("O2", "O0"), &dump},
    {"init.dump.bf16-to-o0.w2", "Q34", judge_start, DUMP("O2 bf16", "O0"), &dump},
    {"init.checkpoint.o0-to-o2.w2", "E4", judge_start, CHECKPOINT("O0", "O2"), &checkpoint,
     .inside = true},
    {"init.checkpoint.o2-to-o2.w2", "E4", judge_start, CHECKPOINT("O2", "O2"), &checkpoint,
     .inside = true},
    {"init.checkpoint.o2-to-o0.w2", "E4", judge_start, CHECKPOINT("O2", "O0"), &checkpoint,
     .inside = true},
    {"init.pth.o0-to-o2.w2", "E4", judge_start, TORCH("O0", "O2"), &checkpoint, .inside = true,
     .script = TO_TORCH},
    {"init.pth.o2-to-o0.w2", "E4", judge_start, TORCH("O2", "O0"), &checkpoint, .inside = true,
     .script = TO_TORCH},
    {"init.resumed.w2", "E4", judge_resumed,
     FIRST "O0 --save={self}/checkpoint.safetensors | resnet8 w2 b0.05 steps=3 O0 "
           "--init={job:0}/checkpoint.safetensors --resume={job:0}/checkpoint.safetensors",
     .inside = true},
};

void ls_init_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
