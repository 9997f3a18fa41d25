/* Pictures of ten classes: shapes and textures that vary in position, size, colours, light and
 * noise. */
#ifndef LS_DRAW_H
#define LS_DRAW_H

#include <stdint.h>

enum { LS_DRAW_CLASSES = 10 };

/* "checker", "circle", ...; sorted, so that class k of the folder is class k here. */
const char *ls_draw_class_name(int kind);
/* Size of picture `index` of a class, within 1.0 and 1.6 times `size` on each side. */
void ls_draw_size(uint64_t seed, int kind, int64_t index, int size, int *width, int *height);
/* Draws rgb [height][width][3]. */
void ls_draw_picture(uint64_t seed, int kind, int64_t index, int width, int height, uint8_t *rgb);

#endif
