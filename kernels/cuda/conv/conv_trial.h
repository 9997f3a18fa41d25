/* What the trials of fused passes share (fuse.h): memory, a stream, executions of plans, and the
 * comparison of results in f16. */
#ifndef LS_CUDA_CONV_TRIAL_H
#define LS_CUDA_CONV_TRIAL_H

#include "conv_internal.h"

enum { LS_CONV_TRIAL_ARRAYS = 24 };

typedef struct ls_conv_trial {
    ls_backend *backend;
    ls_stream stream;
    void *array[LS_CONV_TRIAL_ARRAYS]; /* device memory */
    int arrays;
    void *workspace; /* NULL where none is needed */
    unsigned *first; /* device: a row that differs, or how many elements do */
} ls_conv_trial;

/* What is wrong with a channel. */
typedef struct ls_conv_trial_finding {
    const char *what; /* NULL: nothing */
    int64_t channel;
    double got, wanted, limit;
} ls_conv_trial_finding;

/* To be closed after an error, too. */
ls_status ls_conv_trial_open(ls_backend *backend, int64_t workspace_bytes, ls_conv_trial *out);
void ls_conv_trial_close(ls_conv_trial *trial);
/* Device memory, zeroed, until the trial is closed; *out is a pointer to any type. */
ls_status ls_conv_trial_take(ls_conv_trial *trial, int64_t bytes, void *out);
/* Enqueues the pass on the trial's stream, behind what is there, and waits for it. *executed:
 * cuDNN's answer; an error is the device's. */
ls_status ls_conv_trial_run(ls_conv_trial *trial, ls_conv_pass pass, cudnnBackendDescriptor_t plan,
                            void *workspace, const void *const *data, cudnnStatus_t *executed);
/* The same with the trial's workspace; a plan that cannot be executed is an error. */
ls_status ls_conv_trial_execute(ls_conv_trial *trial, const ls_conv_plan *plan,
                                const void *const *data);
/* Copies to the host, behind what the stream has. */
ls_status ls_conv_trial_bring(ls_conv_trial *trial, void *host, const void *from, int64_t bytes);
/* The first value of `got` that `wanted` has otherwise, if any; `what` names it. NaN differs from
 * everything. */
ls_status ls_conv_trial_compare(ls_conv_trial *trial, const char *what, const uint16_t *got,
                                const uint16_t *wanted, int64_t rows, int channels,
                                ls_conv_trial_finding *found);
/* Integers for a gradient of the input, dy of -LS_CONV_TRIAL_DY to that: the most of w, so that the
 * gradient has a deviation of about 2048. */
enum { LS_CONV_TRIAL_DY = 8 };
int ls_conv_trial_weight(const ls_conv_shape *shape);
/* Sets the plan's admission; a warning names layer, engine, channel, value and bound where it is
 * rejected. */
void ls_conv_trial_settle(const char *layer, const ls_conv_trial_finding *found,
                          ls_conv_plan *fused);

/* Whether an engine adds a gradient to another as it must: product and old value are added in f32
 * and the sum is rounded once (LS_CONV_DX_ADDED). cuDNN has no note for engines that round the
 * product to the half type first. In 9.19 engine 63 with its knob 25 at 1 gave sums that were up to
 * 3.9 ulp off at the first convolution of ResNet-50's layer4 with 256 images on an H200. So
 * engines are tried before they are considered.
 *
 * The operands are integers: dy of -8 to 8, w so that a product's deviation is about 2048, old
 * values of a size that the type holds exactly. Products and sums are exact in f32 (at most 2^24),
 * whatever the order, but mostly not in the half type: a sum that is rounded once has one right
 * value, and one that is rounded twice often has another. */

typedef struct ls_conv_onto ls_conv_onto;

/* Whether engines of that key are to be tried: in a half type, on a device that can execute. */
bool ls_conv_onto_judges(const ls_backend *backend, const ls_conv_key *key);
/* Takes device memory: two arrays like x, and w and dy. `key` must outlive it. */
ls_status ls_conv_onto_open(ls_backend *backend, const ls_conv_key *key, ls_conv_onto **out);
/* *executed: cuDNN's answer. *right: the elements looked at are right; they are the same for every
 * engine of a key. An error is the device's. */
ls_status ls_conv_onto_try(ls_conv_onto *onto, cudnnBackendDescriptor_t plan,
                           int64_t workspace_bytes, cudnnStatus_t *executed, bool *right);
void ls_conv_onto_close(ls_conv_onto *onto); /* NULL is allowed */

#endif
