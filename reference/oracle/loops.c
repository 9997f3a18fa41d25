#include "loops.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/log.h"

/* ---- convolution ----------------------------------------------------------------------------- */

/* Sums over taps and channels for four pixels and sixteen channels at a time. One thread sums each
 * output element in a fixed order without fused multiply-add, so the bits are the same on every
 * machine. */

/* The compiler makes one version per vector width and picks at start; none may fuse multiply and
 * add (-std=c11 keeps it from doing so), so all versions give the same bits. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define WIDEST
#endif

enum { LANES = LS_PLANES_LANES, PIXELS = 4, ROWS = 8 };

/* LANES channels of one pixel. */
typedef double lanes __attribute__((vector_size(LANES * sizeof(double)), aligned(8), may_alias));

/* One tap of a tile: the start of each pixel's channels, and the weights [channels][LANES]. */
typedef struct tap {
    const double *pixel[PIXELS];
    const double *weight;
} tap;

WIDEST static void sum_tile(int taps, const tap *list, int channels, double *out)
{
    lanes sum0 = {0}, sum1 = {0}, sum2 = {0}, sum3 = {0};
    for (int t = 0; t < taps; t++) {
        const tap *one = &list[t];
        const lanes *weight = (const lanes *)one->weight;
        for (int i = 0; i < channels; i++) {
            sum0 += one->pixel[0][i] * weight[i];
            sum1 += one->pixel[1][i] * weight[i];
            sum2 += one->pixel[2][i] * weight[i];
            sum3 += one->pixel[3][i] * weight[i];
        }
    }
    lanes *to = (lanes *)out;
    to[0] = sum0;
    to[1] = sum1;
    to[2] = sum2;
    to[3] = sum3;
}

/* out[ROWS][LANES] = sum over pixels of row[p][0..ROWS) x column[p][0..LANES). */
WIDEST static void sum_outer(int64_t pixels, const double *const *row, int64_t row_offset,
                             const double *const *column, int64_t column_offset, double *out)
{
    lanes sum[ROWS] = {{0}};
    for (int64_t p = 0; p < pixels; p++) {
        const double *x = row[p] + row_offset;
        lanes y = *(const lanes *)(column[p] + column_offset);
        for (int r = 0; r < ROWS; r++) {
            sum[r] += x[r] * y;
        }
    }
    memcpy(out, sum, sizeof sum);
}

static double *zeros(size_t count)
{
    double *memory = aligned_alloc(64, (count * sizeof(double) + 63) / 64 * 64);
    LS_MEMORY(memory != NULL);
    return memset(memory, 0, count * sizeof(double));
}

/* Weights as [block of LANES results][tap][summed channel][LANES]: forward sums over input
 * channels, the input's gradient over output channels. */
static void pack_weights(const double *weight, int out_channels, int in_channels, int taps,
                         bool forward, double *packed)
{
    int results = forward ? out_channels : in_channels;
    int summed = forward ? in_channels : out_channels;
    int blocks = ls_planes_round_up(results, LANES) / LANES;
#pragma omp parallel for if ((int64_t)taps * results * summed > 1 << 15)
    for (int block = 0; block < blocks; block++) {
        for (int t = 0; t < taps; t++) {
            for (int s = 0; s < summed; s++) {
                double *to = packed + (((int64_t)block * taps + t) * summed + s) * LANES;
                for (int l = 0; l < LANES && block * LANES + l < results; l++) {
                    int64_t result = block * LANES + l;
                    int64_t o = forward ? result : s, i = forward ? s : result;
                    to[l] = weight[(o * in_channels + i) * taps + t];
                }
            }
        }
    }
}

/* The input row (or column) that output `position` reads at kernel offset `k`; -1 in the padding.
 */
static int source_of(int position, int k, ls_loops_shape shape, int size)
{
    int source = position * shape.stride + k - shape.pad;
    return source >= 0 && source < size ? source : -1;
}

/* The output row (or column) that reads input `position` at kernel offset `k`; -1 where none does.
 */
static int reader_of(int position, int k, ls_loops_shape shape, int size)
{
    int scaled = position + shape.pad - k;
    return scaled >= 0 && scaled % shape.stride == 0 && scaled / shape.stride < size
               ? scaled / shape.stride
               : -1;
}

typedef struct walk {
    ls_loops_shape shape;
    bool forward;
    const ls_planes *from;
    ls_planes *to;
    const double *packed; /* weights */
    const double *zeros;  /* [from->pitch] */
} walk;

/* Lists the taps of the four pixels p .. p+3 of `to`; taps that all four lack are omitted. */
static int list_taps(const walk *w, const int64_t *order, int64_t p, int64_t pixels, tap *list,
                     int *tap_index)
{
    int count = 0, kernel = w->shape.kernel;
    for (int t = 0; t < kernel * kernel; t++) {
        bool any = false;
        for (int q = 0; q < PIXELS; q++) {
            list[count].pixel[q] = w->zeros;
            if (p + q >= pixels) {
                continue;
            }
            int64_t pixel = order[p + q];
            int x = (int)(pixel % w->to->width);
            int y = (int)(pixel / w->to->width % w->to->height);
            int64_t n = pixel / w->to->width / w->to->height;
            int row, column;
            if (w->forward) {
                row = source_of(y, t / kernel, w->shape, w->from->height);
                column = source_of(x, t % kernel, w->shape, w->from->width);
            } else {
                row = reader_of(y, t / kernel, w->shape, w->from->height);
                column = reader_of(x, t % kernel, w->shape, w->from->width);
            }
            if (row >= 0 && column >= 0) {
                int64_t source = (n * w->from->height + row) * w->from->width + column;
                list[count].pixel[q] = w->from->value + source * w->from->pitch;
                any = true;
            }
        }
        if (any) {
            tap_index[count++] = t;
        }
    }
    return count;
}

static void walk_tile(const walk *w, const int64_t *order, int64_t p, int64_t pixels)
{
    enum { TAPS_MAX = 49 };
    tap list[TAPS_MAX + 1];
    int tap_index[TAPS_MAX];
    double sums[PIXELS * LANES] __attribute__((aligned(64)));
    int taps = w->shape.kernel * w->shape.kernel;
    LS_ASSERT(taps <= TAPS_MAX);
    int count = list_taps(w, order, p, pixels, list, tap_index);
    for (int block = 0; block < w->to->pitch / LANES; block++) {
        for (int t = 0; t < count; t++) {
            list[t].weight =
                w->packed + ((int64_t)block * taps + tap_index[t]) * w->from->channels * LANES;
        }
        sum_tile(count, list, w->from->channels, sums);
        for (int q = 0; q < PIXELS && p + q < pixels; q++) {
            memcpy(w->to->value + order[p + q] * w->to->pitch + block * LANES, sums + q * LANES,
                   LANES * sizeof(double));
        }
    }
}

/* Orders pixels by phase of the stride, so that consecutive ones have the same taps. */
static void order_pixels(const ls_planes *planes, int phases, int64_t *order)
{
    int64_t count = 0;
    for (int phase = 0; phase < phases * phases; phase++) {
        for (int64_t n = 0; n < planes->samples; n++) {
            for (int64_t y = phase / phases; y < planes->height; y += phases) {
                for (int64_t x = phase % phases; x < planes->width; x += phases) {
                    order[count++] = (n * planes->height + y) * planes->width + x;
                }
            }
        }
    }
}

static ls_status walk_all(walk *w, const double *weight)
{
    int taps = w->shape.kernel * w->shape.kernel;
    int64_t pixels = ls_planes_pixels(w->to);
    int in_channels = w->forward ? w->from->channels : w->to->channels;
    int out_channels = w->forward ? w->to->channels : w->from->channels;
    int64_t *order = malloc((size_t)pixels * sizeof *order);
    LS_MEMORY(order != NULL);
    double *packed = zeros((size_t)taps * (size_t)w->to->pitch * (size_t)w->from->channels);
    double *nothing = zeros((size_t)w->from->pitch);
    pack_weights(weight, out_channels, in_channels, taps, w->forward, packed);
    order_pixels(w->to, w->forward ? 1 : w->shape.stride, order);
    w->packed = packed;
    w->zeros = nothing;
#pragma omp parallel for schedule(dynamic, 4)
    for (int64_t p = 0; p < pixels; p += PIXELS) {
        walk_tile(w, order, p, pixels);
    }
    free(packed);
    free(nothing);
    free(order);
    return LS_OK;
}

static ls_status products_forward(ls_loops_shape shape, const ls_planes *in, const double *weight,
                                  ls_planes *out)
{
    walk w = {.shape = shape, .forward = true, .from = in, .to = out};
    return walk_all(&w, weight);
}

static ls_status products_input_grad(ls_loops_shape shape, const ls_planes *out_grad,
                                     const double *weight, ls_planes *in_grad)
{
    walk w = {.shape = shape, .forward = false, .from = out_grad, .to = in_grad};
    return walk_all(&w, weight);
}

/* Lists the pixel pairs of one tap: input and output gradient, where the tap is inside the image.
 */
static int64_t list_pairs(ls_loops_shape shape, int t, const ls_planes *in,
                          const ls_planes *out_grad, int from, int samples, const double **row,
                          const double **column)
{
    int64_t pairs = 0;
    for (int64_t n = from; n < from + samples; n++) {
        for (int y = 0; y < out_grad->height; y++) {
            int in_y = source_of(y, t / shape.kernel, shape, in->height);
            for (int x = 0; x < out_grad->width && in_y >= 0; x++) {
                int in_x = source_of(x, t % shape.kernel, shape, in->width);
                if (in_x >= 0) {
                    row[pairs] =
                        in->value + ((n * in->height + in_y) * in->width + in_x) * in->pitch;
                    column[pairs++] =
                        out_grad->value +
                        ((n * out_grad->height + y) * out_grad->width + x) * out_grad->pitch;
                }
            }
        }
    }
    return pairs;
}

/* The pairs of every tap and chunk: those of tap t and chunk c are row and column[start ..
 * start+count). */
typedef struct pairs {
    const double **row, **column;
    int64_t *start, *count; /* [taps][chunks] */
} pairs;

static void free_pairs(pairs *list)
{
    free(list->row);
    free(list->column);
    free(list->start);
    free(list->count);
}

static void list_all_pairs(ls_loops_shape shape, const ls_planes *in, const ls_planes *out_grad,
                           const ls_shards *shards, pairs *list)
{
    int64_t taps = shape.kernel * shape.kernel, chunks = ls_shards_chunks(shards);
    int64_t pixels = (int64_t)out_grad->height * out_grad->width;
    size_t most = (size_t)(taps * in->samples * pixels);
    *list = (pairs){malloc(most * sizeof *list->row), malloc(most * sizeof *list->column),
                    malloc((size_t)(taps * chunks) * sizeof *list->start),
                    malloc((size_t)(taps * chunks) * sizeof *list->count)};
    LS_MEMORY(list->row != NULL && list->column != NULL && list->start != NULL &&
              list->count != NULL);
#pragma omp parallel for if (most > 1 << 14)
    for (int64_t i = 0; i < taps * chunks; i++) {
        int chunk = (int)(i % chunks);
        int64_t first = ls_shards_first(shards, chunk);
        int64_t start = (i / chunks * in->samples + first) * pixels;
        list->start[i] = start;
        list->count[i] = list_pairs(shape, (int)(i / chunks), in, out_grad, (int)first,
                                    (int)ls_shards_count(shards, chunk, 1), list->row + start,
                                    list->column + start);
    }
}

static ls_status products_weight_grad(ls_loops_shape shape, const ls_planes *in,
                                      const ls_planes *out_grad, const ls_shards *shards,
                                      double *weight_grad)
{
    LS_ASSERT(in->samples == ls_shards_samples(shards));
    int64_t taps = shape.kernel * shape.kernel, chunks = ls_shards_chunks(shards);
    int64_t row_blocks = ls_planes_round_up(in->channels, ROWS) / ROWS;
    int64_t column_blocks = out_grad->pitch / LANES;
    int64_t weights = taps * in->channels * out_grad->channels;
    pairs list;
    list_all_pairs(shape, in, out_grad, shards, &list);
#pragma omp parallel for schedule(dynamic)
    for (int64_t task = 0; task < taps * chunks * row_blocks * column_blocks; task++) {
        double sums[ROWS * LANES] __attribute__((aligned(64)));
        int64_t which = task / (row_blocks * column_blocks), t = which / chunks;
        int64_t i0 = task / column_blocks % row_blocks * ROWS, o0 = task % column_blocks * LANES;
        double *to = weight_grad + which % chunks * weights;
        sum_outer(list.count[which], list.row + list.start[which], i0,
                  list.column + list.start[which], o0, sums);
        for (int64_t r = 0; r < ROWS && i0 + r < in->channels; r++) {
            for (int64_t l = 0; l < LANES && o0 + l < out_grad->channels; l++) {
                to[((o0 + l) * in->channels + i0 + r) * taps + t] = sums[r * LANES + l];
            }
        }
    }
    free_pairs(&list);
    return LS_OK;
}

/* ---- the choice of loops --------------------------------------------------------------------- */

/* The most multiply-adds for the CPU: about 10 s at 2 * 10^9 a second. Below that, devices are left
 * to the jobs that train on them. */
static const double worth_a_device = 2e10;

static bool cpu_ready(char *why, int why_bytes)
{
    snprintf(why, (size_t)why_bytes, "the CPU");
    return true;
}

const ls_loops *ls_loops_cpu(void)
{
    static const ls_loops cpu = {
        .abi = LS_LOOPS_ABI,
        .name = "cpu",
        .ready = cpu_ready,
        .products_forward = products_forward,
        .products_input_grad = products_input_grad,
        .products_weight_grad = products_weight_grad,
        .norm_forward = ls_norm_forward,
        .norm_backward = ls_norm_backward,
    };
    return &cpu;
}

/* From LS_LIB_DIR, or lib/ next to the program (for tests: next to its folder). It stays loaded,
 * because a device's context is created once. */
static void *open_library(void)
{
    const char *folder = getenv("LS_LIB_DIR");
    char program[PATH_MAX / 2] = "", path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    program[strrchr(program, '/') != NULL ? strrchr(program, '/') - program : 0] = '\0';
    static const char *const way[] = {"/lib", "/../lib"};
    void *library = NULL;
    for (int i = 0; i < 2 && library == NULL; i++) {
        snprintf(path, sizeof path, "%s%s/ls_oracle_cuda.so", folder != NULL ? folder : program,
                 folder != NULL ? "" : way[i]);
        library = access(path, F_OK) == 0 ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    }
    return library;
}

/* NULL with the reason in why. */
static const ls_loops *load_device(char *why, int why_bytes)
{
    ls_loops_entry_fn *entry = NULL;
    void *library = open_library();
    void *symbol = library != NULL ? dlsym(library, LS_LOOPS_ENTRY) : NULL;
    if (symbol == NULL) {
        const char *reason = dlerror();
        snprintf(why, (size_t)why_bytes, "%s",
                 reason != NULL ? reason : "ls_oracle_cuda.so is not built");
        return NULL;
    }
    memcpy(&entry, &symbol, sizeof symbol); /* ISO C has no cast from void * to a function */
    const ls_loops *loops = entry();
    if (loops->abi != LS_LOOPS_ABI) {
        snprintf(why, (size_t)why_bytes, "ls_oracle_cuda.so was built for another version");
        return NULL;
    }
    return loops->ready(why, why_bytes) ? loops : NULL;
}

ls_status ls_loops_choose(double multiply_adds, const ls_loops **out)
{
    const char *asked = getenv("LS_ORACLE");
    char why[256] = "";
    bool device = asked != NULL && strcmp(asked, "cuda") == 0;
    if (asked != NULL && !device && strcmp(asked, "cpu") != 0 && asked[0] != '\0') {
        return ls_log_fail(LS_ERR_USAGE, "LS_ORACLE=%s: where the judge runs; allowed: cpu, cuda",
                           asked);
    }
    bool free_choice = asked == NULL || asked[0] == '\0';
    const ls_loops *loops = NULL;
    if (device || (free_choice && multiply_adds > worth_a_device)) {
        loops = load_device(why, (int)sizeof why);
    }
    if (device && loops == NULL) {
        return ls_log_fail(LS_ERR_INFRA, "LS_ORACLE=cuda: %s", why);
    }
    *out = loops != NULL ? loops : ls_loops_cpu();
    return LS_OK;
}
