/* Replicas in lockstep, and what must not depend on how gradients are grouped (numerics.md section
 * 3). */
#include "suite/cases/rows.h"

#include "suite/judge/judges.h"

#define LEVELS "o[0|1|2|3]"

static const ls_judge_difference
    buckets = {0, "two ranks, one addition per element, whatever the buckets"},
    plain = {0, "a world of one and no DDP at all"}, twice = {0, "the same command, run twice"},
    nodes = {0, "one node and two simulated ones"},
    scale = {1u << LS_RECORD_SCALER, "static scale 1024 and scale 1 in f32"},
    sum = {1u << LS_RECORD_GRAD | 1u << LS_RECORD_STATE,
           "the mean, and the sum at a rate that makes up"},
    timed = {0, "a world of one with DDP and without"};

static const ls_row rows[] = {
    {"ddp.lockstep[|.sync=sync]." LEVELS ".w[2|3|4]", "D1", ls_judge_lockstep,
     "O$2 w$3 b0.1 $1 dump=1,2"},
    /* ranks that wait for each other for ever: the trainer's own deadline ends that soon */
    {"ddp.deadline.w2", "D1", ls_judge_lockstep, "O2 w2 b0.1 dump=1,2 --timeout=15"},
    /* a race may show once in fifty steps: it gets two hundred */
    {"ddp.long.o[0|2].w2", "D1", ls_judge_lockstep, "resnet8 O$1 w2 b0.05 steps=200"},
    {"ddp.buckets.w2.[b0.02mb=b0.02|b0.5mb=b0.5|delay]." LEVELS, "D2", ls_judge_same,
     "O$2 w2 b0.1 steps=4 | O$2 w2 $1 steps=4", &buckets},
    /* --comm=self: buckets and reduction are in use */
    {"ddp.world1." LEVELS, "D3", ls_judge_same,
     "O$1 b0.1 steps=4 --comm=self | O$1 b0.1 steps=4 alone", &plain},
    {"ddp.twice.w3." LEVELS, "D4", ls_judge_same,
     "O$1 w3 b0.1 steps=4 | O$1 w3 b0.1 steps=4 repeat=1", &twice},
    {"ddp.nodes.w2." LEVELS, "D5", ls_judge_same, "O$1 w2 b0.1 steps=4 | O$1 w2 n2 b0.1 steps=4",
     &nodes},
    {"ddp.scale.w2.o0", "D6", ls_judge_same,
     "O0 w2 b0.1 steps=4 scale=1 | O0 w2 b0.1 steps=4 scale=1024", &scale},
    /* Without the average the gradient is the sum, of two ranks twice the mean: half the rate takes
     * the same steps, bit for bit. Divided by 4 before the sum and by nothing after it, it is half
     * the mean. */
    {"average.none.[apex=|torch].o0.w2", "D9", ls_judge_same,
     "O0 w2 b0.1 steps=4 lr=0.0625 $1 --weight-decay=0 | "
     "O0 w2 b0.1 steps=4 lr=0.03125 $1 --weight-decay=0 --average=none",
     &sum},
    {"average.none.predivide.[apex=|torch].o0.w2", "D9", ls_judge_same,
     "O0 w2 b0.1 steps=4 lr=0.0625 $1 --weight-decay=0 | "
     "O0 w2 b0.1 steps=4 lr=0.125 $1 --weight-decay=0 --average=none --predivide=4",
     &sum},
};

/* On a CPU's units for bf16. */
static const ls_row native[] = {
    {"ddp.twice.native.bf16.w3.[o1=O1|o2=O2|o3=O3]", "D4", ls_judge_same,
     "$1 bf16 w3 b0.1 steps=4 --half-math=native | "
     "$1 bf16 w3 b0.1 steps=4 repeat=1 --half-math=native",
     &twice},
};

/* The bench's jobs of several ranks. */
static void add_timed(const ls_case_settings *settings, ls_case_list *list)
{
    const ls_matrix *bench = settings->bench;
    for (int i = 0; bench != NULL && i < bench->count; i++) {
        char id[64];
        ls_timed_id(&bench->spec[i], id);
        if (bench->spec[i].role == LS_ROLE_THROUGHPUT && bench->spec[i].world > 1) {
            ls_rows_specs(list, settings,
                          &(ls_row){.requirement = "D1", .judge = ls_judge_lockstep},
                          &bench->spec[i], 1, "ddp.timed.%s", id);
        }
    }
}

/* The job that measures the cost of DDP in a world of one must compute what no DDP computes. */
static void add_timed_world1(const ls_case_settings *settings, ls_case_list *list)
{
    const ls_matrix *bench = settings->bench;
    for (int i = 0; bench != NULL && i < bench->count; i++) {
        for (int j = 0; j < bench->count && bench->spec[i].role == LS_ROLE_DDP_WORLD1; j++) {
            const ls_spec *own = &bench->spec[i], *without = &bench->spec[j];
            if (without->role == LS_ROLE_THROUGHPUT && without->world == 1 &&
                without->level == own->level && without->bucket_mb == own->bucket_mb) {
                /* a device's engines need not repeat: the same two with engines that do */
                const ls_spec timed_ones[] = {*without, *own},
                              repeated[] = {ls_matrix_deterministic(without, 4),
                                            ls_matrix_deterministic(own, 4), *without, *own};
                const ls_spec *jobs = own->engines ? repeated : timed_ones;
                ls_rows_specs(
                    list, settings,
                    &(ls_row){.requirement = "D3", .judge = ls_judge_same, .data = &timed}, jobs,
                    own->engines ? 4 : 2, "ddp.timed.world1.o%d", own->level);
            }
        }
    }
}

void ls_ddp_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
    if (settings->bf16_units) {
        LS_ROWS(list, settings, native);
    }
    add_timed(settings, list);
    add_timed_world1(settings, list);
}
