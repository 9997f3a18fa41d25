/* The data family's own: the order that torch's DistributedSampler gives, folders, a loader. */
#ifndef LS_DATA_H
#define LS_DATA_H

#include "reference/data/loader.h"
#include "suite/cases/rows.h"

/* This rank's images of an epoch, malloc'ed; returns how many. */
int64_t ls_data_order(int64_t count, int rank, int world, bool shuffle, bool drop_last,
                      uint64_t seed, int64_t epoch, int64_t **out);

/* A new folder in /tmp for one row, whose judge removes it. False, with the verdict set to INFRA,
 * where there is none. */
bool ls_data_folder_make(char root[64], ls_verdict *out);

/* One rank that reads batches of two images of LS_DATA_SIZE pixels and LS_MAKE_CLASSES classes,
 * without threads, from `data`, which must outlive them. */
enum { LS_DATA_SIZE = 8 };
ls_loader_options ls_data_loader_options(const char *data);

#endif
