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

/* Its pictures: ten classes of shapes and textures that vary in position, size, colours, light and
 * noise. */
/* "checker", "circle", ...; sorted, so that class k of the folder is class k here. */
const char *ls_make_class_name(int kind);
/* Size of picture `index` of a class, within 1.0 and 1.6 times `size` on each side. */
void ls_make_size(uint64_t seed, int kind, int64_t index, int size, int *width, int *height);
/* Draws rgb [height][width][3]. */
void ls_make_picture(uint64_t seed, int kind, int64_t index, int width, int height, uint8_t *rgb);

#endif
