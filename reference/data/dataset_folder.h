/* A folder of JPEG files. */
#ifndef LS_DATASET_FOLDER_H
#define LS_DATASET_FOLDER_H

#include "dataset.h"

/* DIR/<class>/ with JPEG files: DistributedSampler's order, random resized crop, flip,
 * normalisation. */
ls_status ls_dataset_folder_open(const ls_loader_options *options, const char *dir,
                                 ls_dataset **out);

#endif
