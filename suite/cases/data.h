/* The data family's own: the order that torch's DistributedSampler gives, and its further files. */
#ifndef LS_DATA_H
#define LS_DATA_H

#include "../suite.h"

/* This rank's images of an epoch, malloc'ed; returns how many. */
int64_t ls_data_order(int64_t count, int rank, int world, bool shuffle, bool drop_last,
                      uint64_t seed, int64_t epoch, int64_t **out);

/* The same as a sampler with mistake 0 .. LS_DATA_WRONG-1 gives it, without drop_last, and what the
 * mistake is. */
enum { LS_DATA_WRONG = 7 };
int64_t ls_data_wrong_order(int mistake, int64_t count, int rank, int world, bool shuffle,
                            uint64_t seed, int64_t epoch, int64_t **out);
const char *ls_data_wrong_text(int mistake);

/* suite/cases/data_folder.c: folders of images, batches, synthetic images. */
void ls_data_folder_cases(const ls_case_settings *settings, ls_case_list *list);
/* suite/cases/data_transform.c: crop, flip, normalisation. */
void ls_data_transform_cases(const ls_case_settings *settings, ls_case_list *list);

#endif
