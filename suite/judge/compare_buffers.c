#include <math.h>
#include <string.h>

#include "kernels/core/list.h"
#include "judges.h"

/* default of torch.nn.BatchNorm2d, which torchvision keeps */
static const double momentum = 0.1;

typedef struct buffers {
    const ls_dumpfile_entry *before, *after;
} buffers;

/* The batch norm's name: its weight's without the last component. */
static void norm_name(const ls_compare_judgement *j, int node, char *name, size_t bytes)
{
    const ls_nettab *net = &j->evidence->net;
    snprintf(name, bytes, "%s", net->param[net->node[node].weight].name);
    char *dot = strrchr(name, '.');
    if (dot != NULL) {
        *dot = '\0';
    }
}

static buffers find(const ls_compare_judgement *j, int rank, int node, const char *what)
{
    char name[64];
    norm_name(j, node, name, sizeof name);
    const ls_dumpfile *file = j->evidence->file[rank];
    return (buffers){ls_dumpfile_findf(file, "last_buffer/%s.%s", name, what),
                     ls_dumpfile_findf(file, "buffer/%s.%s", name, what)};
}

/* Whether all ranks have both groups; a rank that has a part of one must have it all. */
static bool has_all(ls_compare_judgement *j)
{
    const ls_nettab *net = &j->evidence->net;
    static const char *const what[] = {"running_mean", "running_var"};
    bool all = true;
    for (int rank = 0; rank < j->evidence->world; rank++) {
        bool after = ls_dumpfile_has(j->evidence->file[rank], "buffer/");
        bool before = ls_dumpfile_has(j->evidence->file[rank], "last_buffer/");
        all = all && before && after;
        for (int i = 0; i < net->node_count; i++) {
            for (int k = 0; k < 2 && net->node[i].kind == LS_NETTAB_NORM; k++) {
                buffers b = find(j, rank, i, what[k]);
                if ((before && !ls_dumpfile_floats(b.before, net->node[i].channels)) ||
                    (after && !ls_dumpfile_floats(b.after, net->node[i].channels))) {
                    char name[64];
                    norm_name(j, i, name, sizeof name);
                    ls_compare_checks_fail(
                        &j->checks, NULL,
                        "rank=%d %s.%s in buffer/ or last_buffer/ is missing or not of %d floats",
                        rank, name, what[k], net->node[i].channels);
                    return false;
                }
            }
        }
    }
    return all;
}

/* Sums of squares over all ranks and channels, for one kind of statistic of one batch norm. */
typedef struct sums {
    double error2, rounding2;
} sums;

/* Micro-batches that move a rank's running statistics: all, but DataParallel keeps the first
 * replica's only. */
static int counted(const ls_compare_judgement *j, int rank)
{
    return ls_dumpfile_integer(j->evidence->file[rank], "replicas", 1) > 1
               ? 1
               : j->evidence->step.accumulate;
}

/* The rank whose batches move what `rank` holds after the step. Where each micro-step is reduced,
 * rank 0's statistics (with --join those of the last rank that has a batch) go to all before the
 * next one, which alone is then of the rank's own. */
static int mover(const ls_compare_judgement *j, int rank, int micro_step)
{
    const ls_compare_facts *facts = j->facts;
    bool last = micro_step == counted(j, rank) - 1;
    int source = facts->joins ? j->evidence->world - 1 : 0;
    return facts->reduces_each && facts->sends_buffers && !last ? source : rank;
}

static void add_rank(const ls_compare_judgement *j, int node, int kind, int rank,
                     const double *before, const double *after, double unit, sums *s)
{
    const ls_oracle_step *step = &j->evidence->step;
    const ls_nettab_node *norm = &j->evidence->net.node[node];
    int channels = norm->channels, per_micro = step->world / step->stat_ranks;
    const double *batch = j->forced.stats + ls_oracle_stats_of(step, node) +
                          (int64_t)kind * ls_oracle_stats_groups(step) * channels;
    for (int c = 0; c < channels; c++) {
        double value = before[c], rounding = 0;
        for (int a = 0; a < counted(j, rank); a++) {
            int from = mover(j, rank, a), group = a * per_micro + from / step->stat_ranks;
            double count =
                (double)(ls_oracle_stats_samples(step, from) * norm->height * norm->width);
            double unbiased = kind == 1 && count > 1 ? count / (count - 1) : 1;
            value += momentum * (batch[group * channels + c] * unbiased - value);
            rounding += unit * fabs(value);
        }
        s->error2 += (after[c] - value) * (after[c] - value);
        s->rounding2 += rounding * rounding;
    }
}

static void judge_kind(ls_compare_judgement *j, int node, int kind, double *before, double *after)
{
    static const char *const what[] = {"running_mean", "running_var"};
    const ls_oracle_step *step = &j->evidence->step;
    sums s = {0, 0};
    for (int rank = 0; rank < j->evidence->world; rank++) {
        buffers b = find(j, rank, node, what[kind]);
        ls_dumpfile_read(b.before, before);
        ls_dumpfile_read(b.after, after);
        add_rank(j, node, kind, rank, before, after, ls_bits_unit(ls_dumps_type(b.after)), &s);
    }
    /* the ideal's errors are per group, and a rank has its group's */
    double ideal = momentum * sqrt(step->stat_ranks * j->cost.stats_error2[2 * node + kind]);
    /* 2: the product and the sum of the update; the result is rounded when stored */
    double floor = 2 * sqrt(s.rounding2), error = sqrt(s.error2);
    ls_compare_bound bound = j->bounds[LS_COMPARE_TENSOR];
    double limit = bound.factor * ideal + floor;
    j->verdict->buffer_ratio =
        fmax(j->verdict->buffer_ratio, fmax(error - floor, 0) / fmax(ideal, 1e-300));
    if (!(error <= limit)) {
        char name[64];
        norm_name(j, node, name, sizeof name);
        ls_compare_checks_fail(
            &j->checks, NULL,
            "%s.%s after the step is off by %.2e, limit=%.1e (%g x ideal %s, and "
            "the update's rounding)",
            name, what[kind], error, limit, bound.factor, ls_compare_judgement_type(j));
    }
}

static void judge_counter(ls_compare_judgement *j, int node)
{
    for (int rank = 0; rank < j->evidence->world; rank++) {
        buffers b = find(j, rank, node, "num_batches_tracked");
        int64_t before = 0, after = 0;
        if (b.before == NULL && b.after == NULL) {
            continue; /* files of weights omit the counters, and nothing reads them */
        }
        bool counts = b.before != NULL && b.after != NULL && b.before->count == 1 &&
                      b.after->count == 1 && ls_dumpfile_read_i64(b.before, &before) &&
                      ls_dumpfile_read_i64(b.after, &after);
        if (!counts || (uint64_t)after - (uint64_t)before != (uint64_t)counted(j, rank)) {
            char name[64];
            norm_name(j, node, name, sizeof name);
            ls_compare_checks_fail(&j->checks, NULL,
                                   "rank=%d %s.num_batches_tracked went from %lld to %lld in %d "
                                   "forward passes",
                                   rank, name, (long long)before, (long long)after,
                                   counted(j, rank));
        }
    }
}

void ls_compare_buffers_judge(ls_compare_judgement *j)
{
    const ls_nettab *net = &j->evidence->net;
    j->verdict->buffers_judged = has_all(j);
    if (!j->verdict->buffers_judged) {
        return;
    }
    int widest = 0;
    for (int i = 0; i < net->node_count; i++) {
        widest = net->node[i].channels > widest ? net->node[i].channels : widest;
    }
    double *values = ls_list_make(2 * (size_t)widest, sizeof *values);
    for (int i = 0; i < net->node_count; i++) {
        if (net->node[i].kind == LS_NETTAB_NORM) {
            judge_kind(j, i, 0, values, values + widest);
            judge_kind(j, i, 1, values, values + widest);
            judge_counter(j, i);
        }
    }
    free(values);
}
