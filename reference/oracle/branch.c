#include "branch.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"

void ls_branch_allocate(const ls_nettab *net, int64_t samples, ls_branch_set *out)
{
    size_t count = (size_t)net->branch_count;
    *out = (ls_branch_set){.count = net->branch_count,
                           .open = calloc(count, sizeof *out->open),
                           .index = calloc(count, sizeof *out->index),
                           .elements = calloc(count, sizeof *out->elements)};
    LS_MEMORY(out->open != NULL && out->index != NULL && out->elements != NULL);
    for (int b = 0; b < net->branch_count; b++) {
        const ls_nettab_node *node = &net->node[net->branch_node[b]];
        out->elements[b] = samples * node->height * node->width * node->channels;
        if (node->kind == LS_NETTAB_POOL) {
            out->index[b] = malloc((size_t)out->elements[b] * sizeof **out->index);
        } else {
            out->open[b] = malloc((size_t)out->elements[b]);
        }
        LS_MEMORY(out->index[b] != NULL || out->open[b] != NULL);
    }
}

void ls_branch_free(ls_branch_set *set)
{
    for (int b = 0; b < set->count; b++) {
        free(set->open[b]);
        free(set->index[b]);
    }
    free(set->open);
    free(set->index);
    free(set->elements);
    memset(set, 0, sizeof *set);
}

/* Converts one rank's micro-step of one branch from NCHW in the file to row, column, channel. */
static void copy_micro(const ls_nettab_node *node, const unsigned char *from, int batch,
                       uint8_t *open, int32_t *index)
{
    int64_t plane = (int64_t)node->height * node->width;
    int64_t channels = node->channels;
    for (int64_t n = 0; n < batch; n++) {
        for (int64_t c = 0; c < channels; c++) {
            for (int64_t p = 0; p < plane; p++) {
                int64_t file_index = (n * channels + c) * plane + p;
                int64_t own_index = (n * plane + p) * channels + c;
                if (open != NULL) {
                    open[own_index] = from[file_index / 8] >> (file_index % 8) & 1;
                } else {
                    memcpy(&index[own_index], from + file_index * 4, 4);
                }
            }
        }
    }
}

static ls_status read_branch(const ls_nettab *net, int branch, const ls_dumpfile *file,
                             const ls_shards *shards, int rank, ls_branch_set *set)
{
    const ls_nettab_node *node = &net->node[net->branch_node[branch]];
    bool pool = node->kind == LS_NETTAB_POOL;
    int64_t per_sample = (int64_t)node->channels * node->height * node->width;
    int64_t per_micro = shards->batch[rank] * per_sample;
    int64_t stored = pool ? per_micro : (per_micro + 7) / 8;
    const char *dtype = pool ? "I32" : "U8";
    const ls_dumpfile_entry *entry = ls_dumpfile_findf(file, "branch/%03d", branch);
    if (entry == NULL) {
        return ls_log_fail(LS_ERR_USAGE, "%s: branch/%03d (%s) is missing", ls_dumpfile_path(file),
                           branch, node->name);
    }
    if (strcmp(entry->dtype, dtype) != 0 || entry->count != stored * shards->accumulate) {
        return ls_log_fail(
            LS_ERR_USAGE, "%s: branch/%03d (%s) is %s with %lld elements; %s with %lld is wanted",
            ls_dumpfile_path(file), branch, node->name, entry->dtype, (long long)entry->count,
            dtype, (long long)(stored * shards->accumulate));
    }
    for (int a = 0; a < shards->accumulate; a++) {
        int64_t to = ls_shards_first(shards, a * shards->world + rank) * per_sample;
        copy_micro(node, entry->data + (pool ? 4 : 1) * stored * a, shards->batch[rank],
                   pool ? NULL : set->open[branch] + to, pool ? set->index[branch] + to : NULL);
    }
    return LS_OK;
}

ls_status ls_branch_read(const ls_nettab *net, const ls_shards *shards, ls_dumpfile *const *file,
                         ls_branch_set *out)
{
    ls_branch_set set;
    ls_branch_allocate(net, ls_shards_samples(shards), &set);
    ls_status status = LS_OK;
    for (int rank = 0; rank < shards->world && status == LS_OK; rank++) {
        for (int b = 0; b < net->branch_count && status == LS_OK; b++) {
            status = read_branch(net, b, file[rank], shards, rank, &set);
        }
    }
    if (status != LS_OK) {
        ls_branch_free(&set);
        return status;
    }
    *out = set;
    return LS_OK;
}
