/* The time of a step from the times of its parts and of the reductions of its buckets. A message
 * costs its latency and its bytes; rings and trees have as many messages in a row as in NCCL's own
 * tuning (nccl/src/graph/tuning.cc). */
#include "plan_internal.h"

#include <math.h>

#include "kernels/core/list.h"

const char *ls_plan_model_way_name(ls_plan_way way)
{
    static const char *const name[LS_PLAN_WAYS] = {"ring", "tree", "hierarchical"};
    return name[way];
}

/* An all-reduce over n ends of one link: 2 (n - 1) messages in a row, each of 1/n of the bytes. */
static double ring_s(const ls_plan_link *link, double n, double bytes)
{
    return 2 * (n - 1) * (link->message_s + bytes / n / link->bytes_per_s);
}

/* Up and down; the bytes flow through all levels at once. */
static double tree_s(const ls_plan_link *link, double n, double bytes)
{
    return n > 1 ? 2 * (ceil(log2(n)) * link->message_s + bytes / link->bytes_per_s) : 0;
}

double ls_plan_model_reduce_ms(const ls_plan_cluster *cluster, ls_plan_way way, int gpus,
                               double bytes)
{
    const ls_plan_link *inside = &cluster->inside, *between = &cluster->between;
    double g = fmin(gpus, cluster->gpus_per_node), nodes = ceil(gpus / g);
    ls_plan_link slowest = {INFINITY, 0};
    slowest.bytes_per_s =
        fmin(g > 1 ? inside->bytes_per_s : INFINITY, nodes > 1 ? between->bytes_per_s : INFINITY);
    if (way == LS_PLAN_HIERARCHICAL) {
        return 1e3 * (ring_s(inside, g, bytes) +
                      fmin(ring_s(between, nodes, bytes), tree_s(between, nodes, bytes)));
    }
    if (way == LS_PLAN_TREE) { /* of nodes, each of which is a chain */
        return 1e3 * (tree_s(&slowest, gpus, bytes) + 2 * (g - 1) * inside->message_s +
                      2 * ceil(log2(nodes)) * between->message_s);
    }
    double hops = 2 * (nodes - 1); /* from node to node */
    return 1e3 * (ring_s(&slowest, gpus, bytes) + hops * between->message_s +
                  (2 * (gpus - 1.0) - hops) * inside->message_s);
}

double ls_plan_model_alone_ms(const ls_plan_parts *parts)
{
    return parts->data_ms + parts->forward_ms + parts->backward_ms + parts->optimizer_ms +
           parts->rest_ms;
}

/* The queue of buckets while backward runs, from event to event. */
typedef struct queue {
    double now_ms, work_ms; /* work_ms: what backward has done of its own */
    double end_ms;          /* of the reduction that runs; INFINITY: none does */
    int full, begun;        /* buckets */
} queue;

/* The share of backward's cores that the reduction takes; at most what leaves it a tenth. */
static double taken_share(const ls_plan_parts *parts, const ls_plan_bucket *bucket)
{
    return fmin(0.9, bucket->bytes * parts->core_ms_per_byte / bucket->reduce_ms);
}

/* To the next bucket that is full, the end of backward or that of the reduction, which comes first.
 */
static void advance(const ls_plan_parts *parts, const ls_plan_bucket *bucket, int count, queue *q)
{
    double rate = isfinite(q->end_ms) ? 1 - taken_share(parts, &bucket[q->begun - 1]) : 1;
    double lead_ms = (1 - parts->overlapped) * parts->backward_ms;
    double next_ms = parts->backward_ms;
    if (q->full < count) {
        next_ms = lead_ms + bucket[q->full].ready * (parts->backward_ms - lead_ms);
    }
    bool computes = q->full < count || q->work_ms < parts->backward_ms;
    double at_ms = q->now_ms + fmax(0, next_ms - q->work_ms) / rate;
    if (computes && at_ms <= q->end_ms) {
        q->now_ms = at_ms;
        q->work_ms = fmax(q->work_ms, next_ms);
        q->full += q->full < count;
    } else {
        q->work_ms = fmin(parts->backward_ms, q->work_ms + (q->end_ms - q->now_ms) * rate);
        q->now_ms = q->end_ms;
        q->end_ms = INFINITY;
    }
}

ls_plan_step ls_plan_model_step(const ls_plan_parts *parts, const ls_plan_bucket *bucket, int count)
{
    queue q = {.end_ms = INFINITY};
    double backward_ms = parts->backward_ms > 0 ? NAN : 0;
    while (q.full < count || q.work_ms < parts->backward_ms || q.begun < q.full ||
           isfinite(q.end_ms)) {
        if (isinf(q.end_ms) && q.begun < q.full) {
            q.end_ms = q.now_ms + bucket[q.begun++].reduce_ms;
        }
        advance(parts, bucket, count, &q);
        if (isnan(backward_ms) && q.work_ms >= parts->backward_ms) {
            backward_ms = q.now_ms;
        }
    }
    double others_ms =
        ls_plan_model_alone_ms(parts) - parts->backward_ms + (count > 0 ? parts->waited_ms : 0);
    return (ls_plan_step){others_ms + q.now_ms, backward_ms, q.now_ms - backward_ms};
}

/* ---- the cost of a message and of a byte ----------------------------------------------------- */

typedef struct sums {
    double mm, mb, bb, m, b; /* of messages and bytes, each divided by its measured time */
} sums;

bool ls_plan_model_fit(const ls_plan_time *time, int count, int world, ls_plan_fit *out)
{
    sums s = {0};
    double *error = ls_list_make((size_t)count + 1, sizeof *error);
    for (int i = 0; i < count; i++) {
        double m = time[i].messages / time[i].ms, b = time[i].bytes / time[i].ms;
        s.mm += m * m, s.mb += m * b, s.bb += b * b, s.m += m, s.b += b;
    }
    double both = s.mm * s.bb - s.mb * s.mb; /* 0: all of one size */
    bool found = count > 1 && both > 1e-9 * s.mm * s.bb;
    double message_ms = found ? (s.m * s.bb - s.b * s.mb) / both : 0;
    message_ms = fmax(0, message_ms);
    double byte_ms = found ? (s.b - message_ms * s.mb) / s.bb : 0;
    if (byte_ms <= 0) { /* times of messages alone */
        found = false;
    }
    for (int i = 0; i < count && found; i++) {
        error[i] = fabs((message_ms * time[i].messages + byte_ms * time[i].bytes) / time[i].ms - 1);
    }
    if (found) {
        double hops = 2 * (world - 1.0);
        *out = (ls_plan_fit){.link = {1e3 * hops / world / byte_ms, 1e-3 * message_ms / hops},
                             .count = count,
                             .error = ls_stats_percentile(error, count, 0.5)};
    }
    free(error);
    return found;
}
