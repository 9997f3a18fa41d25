#include "matrix.h"

#include <string.h>

#include "kernels/core/log.h"

/* The kernel position that connects output pixel `out` with input pixel `in`, or -1. */
static int tap_between(const ls_dnn_shape *s, int out, int in)
{
    int kh = in / s->in_width - out / s->out_width * s->stride + s->pad;
    int kw = in % s->in_width - out % s->out_width * s->stride + s->pad;
    bool inside = kh >= 0 && kh < s->kernel && kw >= 0 && kw < s->kernel;
    return inside ? kh * s->kernel + kw : -1;
}

bool ls_matrix_pays(const ls_dnn_shape *s)
{
    int in_pixels = s->in_height * s->in_width, out_pixels = s->out_height * s->out_width;
    bool dense = s->kernel == 1 && s->stride == 1 && in_pixels > 1;
    return !s->matrix && !dense && (int64_t)in_pixels * out_pixels <= LS_MATRIX_PIXELS;
}

ls_matrix_map ls_matrix_make(const ls_dnn_shape *s, int in_block, int out_block)
{
    int in_pixels = s->in_height * s->in_width, out_pixels = s->out_height * s->out_width;
    ls_matrix_map map = {.shape = *s,
                         .in_block = in_block,
                         .out_block = out_block,
                         .run = in_block % 16 == 0  ? 16
                                : in_block % 8 == 0 ? 8
                                : in_block < 8      ? in_block
                                                    : 1,
                         .rows = s->out_channels * out_pixels,
                         .columns = s->in_channels * in_pixels};
    for (int cell = 0; cell < in_pixels * out_pixels; cell++) {
        map.tap_between[cell] = (int8_t)tap_between(s, cell / in_pixels, cell % in_pixels);
    }
    return map;
}

/* Index of (channel, pixel) in one image of block `block`. */
static int64_t row_of(int channel, int pixel, int pixels, int block)
{
    return ((int64_t)(channel / block) * pixels + pixel) * block + channel % block;
}

/* Taps of some input channels of one output channel, [taps][channels]: small enough for the first
 * cache, so that cells are copied and summed in whole blocks of channels. */
enum { TAPS_MAX = 8192 };

typedef struct tap_table {
    _Alignas(64) float value[TAPS_MAX];
    int channels; /* of each tap */
} tap_table;

/* Channels of a table: whole runs. */
static int table_channels(const ls_matrix_map *map)
{
    int taps = map->shape.kernel * map->shape.kernel;
    int channels = TAPS_MAX / taps / map->run * map->run;
    LS_ASSERT(channels > 0);
    return channels < map->shape.in_channels ? channels : map->shape.in_channels;
}

static inline void add_lanes(float *restrict to, const float *restrict from, int count)
{
    for (int l = 0; l < count; l++) {
        to[l] += from[l];
    }
}

/* All cells of one output channel and the input channels of the table, row by row; add: the table
 * is summed from the cells, else the cells are written. Inlined with constants: run and block. */
static inline void visit_cells(const ls_matrix_map *map, int oc, int first, tap_table *table,
                               float *matrix, int run, int block, bool add)
{
    const ls_dnn_shape *s = &map->shape;
    int in_pixels = s->in_height * s->in_width, out_pixels = s->out_height * s->out_width;
    for (int out = 0; out < out_pixels; out++) {
        float *row = matrix + row_of(oc, out, out_pixels, map->out_block) * map->columns;
        int64_t tap[LS_MATRIX_PIXELS]; /* start in the table; negative: none */
        for (int in = 0; in < in_pixels; in++) {
            tap[in] = (int64_t)map->tap_between[out * in_pixels + in] * table->channels;
        }
        for (int c = 0; c < table->channels; c += run) {
            float *cells = row + row_of(first + c, 0, in_pixels, block);
            for (int in = 0; in < in_pixels; in++, cells += block) {
                if (tap[in] >= 0 && add) {
                    add_lanes(table->value + tap[in] + c, cells, run);
                } else if (tap[in] >= 0) {
                    memcpy(cells, table->value + tap[in] + c, (size_t)run * sizeof *cells);
                } else if (!add) {
                    memset(cells, 0, (size_t)run * sizeof *cells);
                }
            }
        }
    }
}

static void visit(const ls_matrix_map *map, int oc, int first, tap_table *table, float *matrix,
                  bool add)
{
    if (map->in_block == 8) {
        visit_cells(map, oc, first, table, matrix, 8, 8, add);
    } else if (map->in_block == 16) {
        visit_cells(map, oc, first, table, matrix, 16, 16, add);
    } else if (map->run == 16) {
        visit_cells(map, oc, first, table, matrix, 16, map->in_block, add);
    } else {
        visit_cells(map, oc, first, table, matrix, map->run, map->in_block, add);
    }
}

void ls_matrix_expand(ls_backend *backend, const ls_matrix_map *map, const float *kernel,
                      float *matrix)
{
    const ls_dnn_shape *s = &map->shape;
    int taps = s->kernel * s->kernel;
#pragma omp parallel for schedule(static) num_threads(backend->threads)
    for (int oc = 0; oc < s->out_channels; oc++) {
        tap_table table;
        for (int first = 0; first < s->in_channels; first += table.channels) {
            int most = table_channels(map), rest = s->in_channels - first;
            const float *from = kernel + ((int64_t)oc * s->in_channels + first) * taps;
            table.channels = most < rest ? most : rest;
            for (int c = 0; c < table.channels; c++) {
                for (int t = 0; t < taps; t++) {
                    table.value[(int64_t)t * table.channels + c] = from[(int64_t)c * taps + t];
                }
            }
            visit(map, oc, first, &table, matrix, false);
        }
    }
}

void ls_matrix_fold(ls_backend *backend, const ls_matrix_map *map, float *matrix, float *kernel)
{
    const ls_dnn_shape *s = &map->shape;
    int taps = s->kernel * s->kernel;
#pragma omp parallel for schedule(static) num_threads(backend->threads)
    for (int oc = 0; oc < s->out_channels; oc++) {
        tap_table table;
        for (int first = 0; first < s->in_channels; first += table.channels) {
            int most = table_channels(map), rest = s->in_channels - first;
            float *to = kernel + ((int64_t)oc * s->in_channels + first) * taps;
            table.channels = most < rest ? most : rest;
            memset(table.value, 0, (size_t)table.channels * (size_t)taps * sizeof *table.value);
            visit(map, oc, first, &table, matrix, true);
            for (int c = 0; c < table.channels; c++) {
                for (int t = 0; t < taps; t++) {
                    to[(int64_t)c * taps + t] = table.value[(int64_t)t * table.channels + c];
                }
            }
        }
    }
}
