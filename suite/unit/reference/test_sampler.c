/* DistributedSampler's order: torch's goldens, and that the ranks' shares are together the data
 * set. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "reference/data/dataset.h"
#include "suite/unit/run_suite.h"

static void expect(ls_sampler sampler, int64_t epoch, int length, const int64_t *want)
{
    int64_t have[64];
    have[length] = -5;
    ck_assert_int_eq(ls_sampler_length(&sampler), length);
    ck_assert_int_eq(ls_sampler_epoch(&sampler, epoch, have), LS_OK);
    ck_assert_mem_eq(have, want, (size_t)length * sizeof have[0]);
    ck_assert_int_eq(have[length], -5);
}

/* indices[rank::world]: every image once, whatever the order. */
TEST(without_padding)
{
    ls_sampler s = {.count = 10, .world = 3, .no_pad = true};
    static const int64_t own[3][4] = {{0, 3, 6, 9}, {1, 4, 7}, {2, 5, 8}};
    for (s.rank = 0; s.rank < 3; s.rank++) {
        expect(s, 0, s.rank == 0 ? 4 : 3, own[s.rank]);
    }
    for (int count = 1; count <= 50; count++) {
        for (int world = 1; world <= 9; world++) {
            int seen[50] = {0}, total = 0;
            s = (ls_sampler){.count = count, .world = world, .shuffle = true, .no_pad = true};
            for (s.rank = 0; s.rank < world; s.rank++) {
                int64_t have[64], length = ls_sampler_length(&s);
                ck_assert_int_eq(ls_sampler_epoch(&s, 3, have), LS_OK);
                for (int64_t i = 0; i < length; i++, total++) {
                    seen[have[i]]++;
                }
            }
            ck_assert_int_eq(total, count);
            for (int i = 0; i < count; i++) {
                ck_assert_int_eq(seen[i], 1);
            }
        }
    }
}

TEST(goldens)
{
    ls_sampler s = {.count = 10, .world = 3};
    static const int64_t padded[3][4] = {{0, 3, 6, 9}, {1, 4, 7, 0}, {2, 5, 8, 1}};
    for (s.rank = 0; s.rank < 3; s.rank++) {
        s.drop_last = false;
        expect(s, 0, 4, padded[s.rank]);
        s.drop_last = true;
        int64_t cut[3] = {s.rank, s.rank + 3, s.rank + 6};
        expect(s, 0, 3, cut);
    }
    s = (ls_sampler){.count = 3, .world = 8};
    for (s.rank = 0; s.rank < 8; s.rank++) {
        int64_t one = s.rank % 3;
        s.drop_last = false;
        expect(s, 0, 1, &one);
        s.drop_last = true;
        ck_assert_int_eq(ls_sampler_length(&s), 0);
    }
    static const int64_t shuffled[2][2][5] = {{{4, 7, 3, 0, 6}, {1, 5, 9, 8, 2}},
                                              {{5, 1, 0, 9, 7}, {6, 2, 8, 3, 4}}};
    for (int epoch = 0; epoch < 2; epoch++) {
        for (int rank = 0; rank < 2; rank++) {
            s = (ls_sampler){.count = 10, .world = 2, .rank = rank, .shuffle = true};
            expect(s, epoch, 5, shuffled[epoch][rank]);
            s.seed = 1; /* the epoch is added to the seed */
            if (epoch > 0) {
                expect(s, 0, 5, shuffled[epoch][rank]);
            }
        }
    }
}

/* How often each image occurs over all ranks: once or twice by the padding, or at most once. */
TEST(union_and_multiplicity)
{
    for (int count = 1; count <= 50; count++) {
        for (int world = 1; world <= 9; world++) {
            for (int form = 0; form < 4; form++) {
                int seen[50] = {0};
                ls_sampler s = {.count = count,
                                .world = world,
                                .shuffle = form % 2 != 0,
                                .drop_last = form >= 2,
                                .seed = 3};
                int64_t length = ls_sampler_length(&s), total = length * world;
                ck_assert_int_eq(length, s.drop_last ? count / world : (count + world - 1) / world);
                for (s.rank = 0; s.rank < world; s.rank++) {
                    int64_t index[50];
                    ck_assert_int_eq(ls_sampler_epoch(&s, 7, index), LS_OK);
                    for (int64_t i = 0; i < length; i++) {
                        ck_assert(index[i] >= 0 && index[i] < count);
                        seen[index[i]]++;
                    }
                }
                for (int i = 0; i < count; i++) { /* spread as evenly as it can be */
                    ck_assert(seen[i] == total / count || seen[i] == total / count + 1);
                }
            }
        }
    }
}

TEST(epochs_differ)
{
    ls_sampler s = {.count = 50, .world = 1, .shuffle = true, .seed = 9};
    int64_t first[50], second[50], again[50];
    ck_assert_int_eq(ls_sampler_epoch(&s, 4, first), LS_OK);
    ck_assert_int_eq(ls_sampler_epoch(&s, 5, second), LS_OK);
    ck_assert_int_eq(ls_sampler_epoch(&s, 4, again), LS_OK);
    ck_assert_mem_eq(first, again, sizeof first);
    ck_assert_mem_ne(first, second, sizeof first);
}

TEST_MAIN("sampler")
