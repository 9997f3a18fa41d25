#include "oracle_step.h"

ls_shards ls_oracle_shards(const ls_oracle_step *step)
{
    return (ls_shards){step->world, step->accumulate, step->batch};
}

int64_t ls_oracle_stats_samples(const ls_oracle_step *step, int rank)
{
    ls_shards shards = ls_oracle_shards(step);
    return ls_shards_batches(&shards, rank / step->stat_ranks * step->stat_ranks, step->stat_ranks);
}

int ls_oracle_stats_groups(const ls_oracle_step *step)
{
    return step->accumulate * (step->world / step->stat_ranks);
}

int64_t ls_oracle_stats_of(const ls_oracle_step *step, int node)
{
    int64_t channels = 0;
    for (int i = 0; i < node; i++) {
        channels += step->net->node[i].kind == LS_NETTAB_NORM ? step->net->node[i].channels : 0;
    }
    return 2 * ls_oracle_stats_groups(step) * channels;
}

int64_t ls_oracle_stats_count(const ls_oracle_step *step)
{
    return ls_oracle_stats_of(step, step->net->node_count);
}
