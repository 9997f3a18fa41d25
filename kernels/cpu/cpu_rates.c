#include <dnnl.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/sort.h"
#include "kernels/core/log.h"
#include "bound.h"

enum {
    REPEATS = 5,
    SIDE = 1024, /* of the matrices: 12 MB; long enough for a rate, short enough to wait for */
    COPY_BYTES = 256 << 20, /* well beyond any cache of a socket */
};

/* Every thread copies its own part, so that its pages are near the thread that uses them. */
static double copy_seconds(char *to, const char *from, int threads)
{
    int64_t start_ns = ls_clock_ns();
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int part = 0; part < threads; part++) {
        size_t first = (size_t)COPY_BYTES / (size_t)threads * (size_t)part;
        size_t last = part == threads - 1
                          ? (size_t)COPY_BYTES
                          : (size_t)COPY_BYTES / (size_t)threads * (size_t)(part + 1);
        memcpy(to + first, from + first, last - first);
    }
    return ls_clock_ms_between(start_ns, ls_clock_ns()) * 1e-3;
}

static ls_status measure_copy(int threads, double *bytes_per_s)
{
    char *from = malloc(COPY_BYTES), *to = malloc(COPY_BYTES);
    double seconds[REPEATS];
    if (from == NULL || to == NULL) {
        ls_log_error("no memory to measure copies of %d bytes", (int)COPY_BYTES);
        free(from);
        free(to);
        return LS_ERR_INFRA;
    }
    memset(from, 1, COPY_BYTES);
    (void)copy_seconds(to, from, threads); /* creates its pages */
    for (int i = 0; i < REPEATS; i++) {
        seconds[i] = copy_seconds(to, from, threads);
    }
    *bytes_per_s = 2.0 * COPY_BYTES / ls_sort_median(seconds, REPEATS);
    free(from);
    free(to);
    return LS_OK;
}

static ls_status multiply(const float *a, const float *b, float *c)
{
    dnnl_status_t status =
        dnnl_sgemm('N', 'N', SIDE, SIDE, SIDE, 1.0f, a, SIDE, b, SIDE, 0.0f, c, SIDE);
    if (status != dnnl_success) {
        return ls_log_fail(LS_ERR_INFRA, "dnnl_sgemm of %d x %d matrices: status %d", SIDE, SIDE,
                           (int)status);
    }
    return LS_OK;
}

static ls_status measure_matrix(int threads, double *flop_per_s)
{
    size_t count = (size_t)SIDE * SIDE;
    float *value = malloc(3 * count * sizeof *value);
    double seconds[REPEATS];
    LS_TRY_MEMORY(value != NULL, "three matrices of %d x %d", SIDE, SIDE);
    for (size_t i = 0; i < 3 * count;
         i++) { /* nonzero, because a processor draws less power on zeros and clocks higher */
        value[i] = (float)((i * 2654435761u >> 8) & 0xffff) * 0x1p-16f - 0.5f;
    }
    omp_set_num_threads(threads);
    ls_status status = multiply(value, value + count, value + 2 * count);
    for (int i = 0; i < REPEATS && status == LS_OK; i++) {
        int64_t start_ns = ls_clock_ns();
        status = multiply(value, value + count, value + 2 * count);
        seconds[i] = ls_clock_ms_between(start_ns, ls_clock_ns()) * 1e-3;
    }
    if (status == LS_OK) {
        *flop_per_s = 2.0 * SIDE * SIDE * SIDE / ls_sort_median(seconds, REPEATS);
    }
    free(value);
    return status;
}

ls_status ls_cpu_rates(int threads, ls_cpu_rates_measured *out)
{
    if (threads < 1) {
        return ls_log_fail(LS_ERR_USAGE, "threads %d: at least 1", threads);
    }
    ls_cpu_rates_measured measured = {0, 0};
    LS_TRY(measure_copy(threads, &measured.copy_bytes_per_s));
    LS_TRY(measure_matrix(threads, &measured.matrix_flop_per_s));
    *out = measured;
    return LS_OK;
}
