/* Softmax cross entropy, and the bias gradient of the inner product before it. One block per
 * sample; every sum has a fixed order. */
#include "launch.h"

#include <math.h>

#include "kernels/core/plant.h"
#include "kernels/math/smoothing.h"
#include "ops.h"
#include "packet.h"

enum { THREADS = 256 };

LS_DEVICE float larger(float a, float b)
{
    return b > a || b != b ? b : a; /* keeps a NaN */
}

/* The block's maximum and sum by halves; every thread receives them and must call this. */
LS_DEVICE float block_max(float value)
{
    LS_SHARED(float, part, THREADS);
    part[threadIdx.x] = value;
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            part[threadIdx.x] = larger(part[threadIdx.x], part[threadIdx.x + half]);
        }
    }
    __syncthreads();
    return part[0];
}

LS_DEVICE double block_sum(double value)
{
    LS_SHARED(double, part, THREADS);
    __syncthreads(); /* the sum before has been read */
    part[threadIdx.x] = value;
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            part[threadIdx.x] += part[threadIdx.x + half];
        }
    }
    __syncthreads();
    return part[0];
}

/* row: [images][2] maximum and sum of exponentials, then [images] how many classes come before the
 * target (kernels.h, top1), then [images] the mean distance of a logit from the maximum. */
template <typename T>
LS_KERNEL rows_kernel(const T *logits, const int64_t *target, int images, int classes, float *kept,
                      float *row)
{
    const T *from = logits + (int64_t)blockIdx.x * classes;
    float *to = kept + (int64_t)blockIdx.x * classes;
    float most = -INFINITY;
    for (int j = (int)threadIdx.x; j < classes; j += THREADS) {
        float value = ls_element_float(from[j]);
        to[j] = value;
        most = larger(most, value);
    }
    most = block_max(most);
    int64_t place = target[blockIdx.x];
    bool known = place >= 0 && place < classes;
    float wanted = known ? ls_element_float(from[place]) : NAN;
    double sum = 0, before = 0, distance = 0;
    for (int j = (int)threadIdx.x; j < classes; j += THREADS) {
        float value = to[j]; /* written by this thread */
        sum += (double)expf(value - most);
        before += j != place && !(value < wanted) && (value != wanted || j < place) ? 1 : 0;
        distance += (double)(value - most);
    }
    sum = block_sum(sum);
    before = block_sum(before);
    distance = block_sum(distance);
    if (threadIdx.x == 0) {
        row[2 * (int64_t)blockIdx.x] = most;
        row[2 * (int64_t)blockIdx.x + 1] = (float)sum;
        row[2 * (int64_t)images + blockIdx.x] = (float)before;
        row[3 * (int64_t)images + blockIdx.x] = (float)(distance / classes);
    }
}

/* One block. A target that is not a class gives NaN. */
LS_KERNEL mean_kernel(const float *kept, const float *row, const int64_t *target, int images,
                      int classes, ls_smoothing smoothing, ls_step_state *state)
{
    double sum = 0, first = 0, five = 0;
    for (int n = (int)threadIdx.x; n < images; n += THREADS) {
        float before = row[2 * (int64_t)images + n];
        first += before < 1 ? 1 : 0;
        five += before < 5 ? 1 : 0;
        bool known = target[n] >= 0 && target[n] < classes;
        float logit = known ? kept[(int64_t)n * classes + target[n]] : NAN;
        float log_sum = logf(row[2 * n + 1]);
        double loss = (double)(log_sum - (logit - row[2 * n]));
        double mean = (double)(log_sum - row[3 * (int64_t)images + n]);
        sum += smoothing.amount == 0 ? loss : ls_smoothing_loss(&smoothing, loss, mean);
    }
    sum = block_sum(sum);
    first = block_sum(first);
    five = block_sum(five);
    if (threadIdx.x == 0) {
        state->loss = (float)(sum / images);
        state->top1 += (uint32_t)first;
        state->top5 += (uint32_t)five;
    }
}

ls_status ls_loss_forward(cudaStream_t stream, ls_dtype type, const void *logits,
                          const int64_t *target, int images, int classes, double smoothing,
                          float *kept, float *row, ls_step_state *state)
{
    LS_BY_ELEMENT(type, T,
                  LS_LAUNCH(rows_kernel<T>, (unsigned)images, THREADS, stream, (const T *)logits,
                            target, images, classes, kept, row));
    LS_LAUNCH(mean_kernel, 1, THREADS, stream, kept, row, target, images, classes,
              ls_smoothing_of(smoothing, classes), state);
    return LS_OK;
}

template <typename T>
LS_KERNEL loss_back_kernel(const float *kept, const float *row, const int64_t *target, int images,
                           int classes, float factor, ls_smoothing smoothing,
                           const ls_step_state *state, T *gradient)
{
    float scale = state->loss_scale * factor / LS_PLANT(loss_summed, (float)images, 1.0f);
    int64_t first = (int64_t)blockIdx.x * classes;
    float most = row[2 * (int64_t)blockIdx.x], sum = row[2 * (int64_t)blockIdx.x + 1];
    int64_t wanted = target[blockIdx.x];
    for (int j = (int)threadIdx.x; j < classes; j += THREADS) {
        float p = expf(kept[first + j] - most) / sum;
        ls_element_set(&gradient[first + j],
                       (p - (j == wanted ? smoothing.target : smoothing.other)) * scale);
    }
}

ls_status ls_loss_backward(cudaStream_t stream, ls_dtype type, const float *kept, const float *row,
                           const int64_t *target, int images, int classes, double smoothing,
                           float factor, const ls_step_state *state, void *gradient)
{
    LS_BY_ELEMENT(type, T,
                  LS_LAUNCH(loss_back_kernel<T>, (unsigned)images, THREADS, stream, kept, row,
                            target, images, classes, factor, ls_smoothing_of(smoothing, classes),
                            state, (T *)gradient));
    return LS_OK;
}

/* ---- the bias of the inner product ----------------------------------------------------------- */

enum { BIAS_CLASSES = 32, BIAS_LANES = THREADS / BIAS_CLASSES };

template <typename T>
LS_KERNEL bias_kernel(const T *dy, int images, int classes, ls_tensor bias_grad)
{
    LS_SHARED(double, part, THREADS);
    int j = (int)blockIdx.x * BIAS_CLASSES + (int)threadIdx.x % BIAS_CLASSES;
    double sum = 0;
    for (int n = (int)threadIdx.x / BIAS_CLASSES; j < classes && n < images; n += BIAS_LANES) {
        sum += (double)ls_element_float(dy[(int64_t)n * classes + j]);
    }
    part[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x < BIAS_CLASSES && j < classes) {
        for (int lane = 1; lane < BIAS_LANES; lane++) {
            sum += part[lane * BIAS_CLASSES + (int)threadIdx.x];
        }
        ls_element_write(bias_grad, j, ls_element_round<T>((float)sum));
    }
}

ls_status ls_loss_bias_grad(cudaStream_t stream, ls_dtype type, const void *dy, int images,
                            int classes, const ls_tensor *bias_grad)
{
    LS_BY_ELEMENT(type, T,
                  LS_LAUNCH(bias_kernel<T>, ls_launch_blocks(classes, BIAS_CLASSES), THREADS,
                            stream, (const T *)dy, images, classes, *bias_grad));
    return LS_OK;
}
