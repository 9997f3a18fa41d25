/* Maximum, minimum and product in all_reduce, reduce_scatter and reduce: one job per world and
 * engine; a row judges one operation and operator in it, over all types. Factors of a product are
 * such that none can be missing or taken twice unseen (reference/comm/pattern.h). */
#include "collectives.h"

#include <inttypes.h>
#include <string.h>

#define COUNTS_TEXT "0,1,3,W-1,W+1,1023,33001"
enum { COMBINATIONS = 7 * 2 * 2 /* counts, places and offsets */ };

#define EXACT                                                      \
    "--ops=all_reduce,reduce_scatter,reduce --redop=max,min,prod " \
    "--dtypes=fp32,fp16,bf16,int64,uint8 --offsets=1 --counts=" COUNTS_TEXT
#define ROUGH                                                                   \
    "--data=rough --ops=all_reduce,reduce_scatter,reduce --redop=max,min,prod " \
    "--dtypes=fp32,fp16,bf16 --counts=1023,33001"

static const char exact_script[] = LS_COLLECTIVES_RUN EXACT;
static const char tcp_script[] =
    "export LS_SHM=0; " LS_COLLECTIVES_RUN "--ops=all_reduce --redop=max,min,prod "
    "--dtypes=fp32,fp16,bf16,int64,uint8 --counts=33001,800003";
static const char self_script[] = LS_COLLECTIVES_RUN "--comm=self " EXACT;
static const char alone_script[] = LS_COLLECTIVES_RUN "--comm=$E " EXACT;
static const char rough_script[] = LS_COLLECTIVES_RUN ROUGH;

/* What a row judges. */
struct trial {
    const char *op, *redop;
    int combinations; /* per type and rank */
};

static void judge_exact(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct trial *trial = row->data;
    int64_t results = 0;
    if (ls_collectives_ended_otherwise(row, job, out)) {
        return;
    }
    for (int rank = 0; rank < job->world; rank++) {
        for (int t = 0; t < LS_COLLECTIVES_TYPES; t++) {
            const ls_collectives_type *type = &ls_collectives_types[t];
            cJSON *events =
                ls_collectives_events_of(job, rank, trial->op, trial->redop, type->name);
            int count = cJSON_GetArraySize(events);
            if (count != trial->combinations) {
                ls_verdict_fail(out, "rank=%d tried %d combinations of %s, expected %d", rank,
                                count, type->name, trial->combinations);
            }
            ls_collectives_combination c = {.op = trial->op,
                                            .redop = trial->redop,
                                            .type = type,
                                            .rank = rank,
                                            .world = job->world};
            ls_collectives_check_events(events, c, rank, &results, out);
            cJSON_Delete(events);
        }
    }
    if (results == 0) {
        ls_verdict_set(out, LS_WEAK, "no element was checked");
    }
    ls_verdict_pass(out, results, "%" PRId64 " elements of %d types and %d ranks exact", results,
                    LS_COLLECTIVES_TYPES, job->world);
}

/* Rough data: a product rounds once per multiplication, in an order of the ranks; a NaN among the
 * values makes maximum and minimum NaN, which the program counts (`telling`); with NCCL it may be
 * lost (comm.h). An all_reduce has the same bits on every rank. */
static void judge_rough(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    static const char *const ops[] = {"all_reduce", "reduce_scatter", "reduce"};
    const struct trial *trial = row->data;
    int64_t checked = 0, telling = 0;
    if (ls_collectives_ended_otherwise(row, job, out)) {
        return;
    }
    for (int k = 0; k < 3 * LS_COLLECTIVES_HALF_TYPES; k++) {
        const char *op = ops[k / LS_COLLECTIVES_HALF_TYPES];
        const char *type = ls_collectives_types[k % LS_COLLECTIVES_HALF_TYPES].name;
        cJSON *first = ls_collectives_events_of(job, 0, op, trial->redop, type);
        for (int rank = 0; rank < job->world; rank++) {
            cJSON *events = ls_collectives_events_of(job, rank, op, trial->redop, type);
            int index = 0;
            const cJSON *event;
            if (cJSON_GetArraySize(events) != trial->combinations) {
                ls_verdict_fail(out, "rank=%d tried %d combinations of %s, %s, expected %d", rank,
                                cJSON_GetArraySize(events), op, type, trial->combinations);
            }
            cJSON_ArrayForEach(event, events)
            {
                char place[128];
                const cJSON *other = cJSON_GetArrayItem(first, index++);
                ls_collectives_check_counts(rank, event, out);
                checked += ls_json_integer(event, "checked", 0);
                telling += ls_json_integer(event, "telling", 0);
                if (k < LS_COLLECTIVES_HALF_TYPES &&
                    strcmp(ls_json_string(event, "digest", ""),
                           ls_json_string(other, "digest", "?")) != 0) {
                    ls_verdict_fail(out, "rank=%d %s: other bits than rank 0", rank,
                                    ls_collectives_place(event, place, sizeof place));
                }
            }
            cJSON_Delete(events);
        }
        cJSON_Delete(first);
    }
    bool product = strcmp(trial->redop, "prod") == 0;
    if (checked == 0 || (telling == 0 && (!product || job->world > 2))) {
        ls_verdict_set(out, LS_WEAK, "no element %s",
                       product ? "would differ if rounded once at the end" : "had a NaN");
    }
    ls_verdict_pass(out, checked, "%" PRId64 " elements, of which %" PRId64 " %s", checked, telling,
                    product ? "would differ if rounded once at the end" : "had a NaN");
}

/* ---- the table ------------------------------------------------------------------------------- */

#define OUTCOME .inside = true, .judges_outcome = true
#define ADD(number, function, lines, what, ...)                                                \
    ls_rows_format(                                                                            \
        list, settings,                                                                        \
        &(const ls_row){                                                                       \
            .requirement = number, .judge = function, .data = what, .script = lines, OUTCOME}, \
        "collectives." __VA_ARGS__)

void ls_collectives_redop_cases(const ls_case_settings *settings, ls_case_list *list)
{
    static const struct trial trials[] = {
        {"all_reduce", "max", COMBINATIONS},     {"all_reduce", "min", COMBINATIONS},
        {"all_reduce", "prod", COMBINATIONS},    {"reduce_scatter", "max", COMBINATIONS},
        {"reduce_scatter", "min", COMBINATIONS}, {"reduce_scatter", "prod", COMBINATIONS},
        {"reduce", "max", COMBINATIONS},         {"reduce", "min", COMBINATIONS},
        {"reduce", "prod", COMBINATIONS},
    };
    static const char *const ids[] = {"all-reduce", "reduce-scatter", "reduce"};
    /* rough: counts and places; large: the same */
    static const struct trial of_all[] = {
        {"", "max", 2 * 2}, {"", "min", 2 * 2}, {"", "prod", 2 * 2}};
    static const struct trial large[] = {
        {"all_reduce", "max", 2 * 2}, {"all_reduce", "min", 2 * 2}, {"all_reduce", "prod", 2 * 2}};
    static const int worlds[] = {2, 3, 5};
    for (int k = 0; k < 9; k++) {
        const struct trial *trial = &trials[k];
        const char *id = ids[k / 3];
        for (int w = 0; w < 3; w++) {
            ADD("X8", judge_exact, exact_script, trial, "%s.%s.w%d: " LS_COLLECTIVES_JOB "w%d", id,
                trial->redop, worlds[w], worlds[w]);
        }
        ADD("X8", judge_exact, self_script, trial, "%s.%s.self: " LS_COLLECTIVES_JOB "w1", id,
            trial->redop);
        ADD("X8", judge_exact, alone_script, trial, "%s.%s.alone: " LS_COLLECTIVES_JOB "w1", id,
            trial->redop);
    }
    for (int k = 0; k < 3; k++) {
        for (int world = 2; world <= 3; world++) {
            ADD("X8", judge_rough, rough_script, &of_all[k],
                "rough.%s.w%d: " LS_COLLECTIVES_JOB "w%d", of_all[k].redop, world, world);
        }
        ADD("X8", judge_exact, tcp_script, &large[k], "large.tcp.%s.w3: " LS_COLLECTIVES_JOB "w3",
            large[k].redop);
    }
}
