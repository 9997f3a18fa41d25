/* A folder of class folders, read like torchvision's ImageFolder: classes in code point order,
 * files in order of name, a sub-folder's files after those of its parent. Names that start with a
 * dot are skipped. JPEG files only. */
#ifndef LS_FOLDER_H
#define LS_FOLDER_H

#include <stdint.h>

#include "kernels/core/status.h"

typedef struct ls_folder {
    int class_count;
    char **class_name; /* [class_count] */
    int64_t count, capacity;
    char **path;     /* [count], with the folder */
    int32_t *target; /* [count] */
} ls_folder;

/* LS_ERR_USAGE, logged, for a folder that is missing or has no class, a class without images
 * (named), and an image of another format (named). */
ls_status ls_folder_scan(const char *dir, ls_folder *out);
void ls_folder_free(ls_folder *folder);

#endif
