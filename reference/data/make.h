/* Data for a run on a machine without data sets: drawn shapes and textures as JPEG files, decoded
 * like any others. */
#ifndef LS_MAKE_H
#define LS_MAKE_H

#include <stdint.h>

#include "kernels/core/status.h"

enum { LS_MAKE_CLASSES = 10 };

/* Writes DIR/<class>/<00001...>.jpg, ten classes of `images_per_class` images of about 1.3 times
 * image_size on each side, a pure function of the arguments. Parents are created. A complete folder
 * with the same arguments is left as it is; a folder with other arguments, or with files from
 * elsewhere, is LS_ERR_USAGE and stays untouched. */
ls_status ls_make_folder(const char *dir, int images_per_class, int image_size, uint64_t seed);

#endif
