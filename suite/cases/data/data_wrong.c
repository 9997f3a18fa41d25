/* Samplers with the mistakes that people make: what they would give, to find a cause. */
#include "data.h"

#include <stdlib.h>

#include "kernels/core/log.h"

enum {
    SAME_EVERYWHERE,
    EPOCH_FORGOTTEN,
    SEED_PER_RANK,
    NOT_SHUFFLED,
    LAST_REPEATED,
    NEIGHBOURS,
    BLOCKS,
};

const char *ls_data_wrong_text(int mistake)
{
    static const char *const text[LS_DATA_WRONG] = {
        "every rank draws rank 0's images",
        "every epoch has the order of the first: set_epoch() was not called",
        "every rank shuffles by a seed of its own, so shards overlap",
        "the images are not shuffled",
        "the tail is filled up with the last image, not with the first ones",
        "ranks take neighbouring places, one apart, so shards overlap",
        "ranks take blocks, not every world-th image"};
    return text[mistake];
}

int64_t ls_data_wrong_order(int mistake, int64_t count, int rank, int world, bool shuffle,
                            uint64_t seed, int64_t epoch, int64_t **out)
{
    if (mistake == SAME_EVERYWHERE) {
        return ls_data_order(count, 0, world, shuffle, false, seed, epoch, out);
    }
    if (mistake == EPOCH_FORGOTTEN) {
        return ls_data_order(count, rank, world, shuffle, false, seed, 0, out);
    }
    if (mistake == SEED_PER_RANK) {
        return ls_data_order(count, rank, world, shuffle, false, seed + (uint64_t)rank, epoch, out);
    }
    if (mistake == NOT_SHUFFLED) {
        return ls_data_order(count, rank, world, false, false, seed, epoch, out);
    }
    int64_t *list = NULL, *mine;
    (void)ls_data_order(count, 0, 1, shuffle, false, seed, epoch, &list);
    int64_t length = (count + world - 1) / world;
    mine = calloc((size_t)length + 1, sizeof *mine);
    LS_ASSERT(mine != NULL);
    for (int64_t i = 0; i < length; i++) {
        int64_t at = mistake == NEIGHBOURS ? rank + i
                     : mistake == BLOCKS   ? rank * length + i
                                           : rank + i * world;
        mine[i] = list[at < count ? at : mistake == LAST_REPEATED ? count - 1 : at % count];
    }
    free(list);
    *out = mine;
    return length;
}
