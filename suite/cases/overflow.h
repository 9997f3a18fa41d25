/* Overflows by data, for subjects that know no --overflow-at: any network and one pixel that is
 * NaN, or a network that is certain of class 0, and batches that are right about it except on the
 * chosen ranks and steps. There every logit's gradient is (p-y)*S/N = S/N, beyond fp16's 65504 for
 * S/N of 65536 and more; everywhere else it is zero. */
#ifndef LS_OVERFLOW_H
#define LS_OVERFLOW_H

#include "suite/suite.h"

/* The scale at which wrong targets overflow: S/N = 2^17; 2^16 after one overflow. */
enum { LS_OVERFLOW_SCALE = 1 << 19 };

/* True for jobs that read what ls_overflow_prepare writes. */
bool ls_overflow_wants(const ls_spec *spec);
/* Makes a job one of these, in the words of a case's table: resnet8, its batches, and its weights
 * but for "same". The spec has its world and accumulation already. False for another kind.
 *
 *   at@STEP:RANK,...   every target of these batches is wrong
 *   nan@STEP:RANK,...  one pixel of these batches is NaN
 *   spoilt@STEP:RANK,...
 *                      the same with any classes and weights by the seed: gradients are not zero,
 *                      at any scale; with accumulation a pixel of the first micro-step
 *   sum@STEP:RANK,...  black images, and one target of these batches is wrong: only the last bias
 *                      has a gradient, S/N for class 0
 * Nothing overflows in
 *   same     any classes, weights by the seed, and every micro-step of a step has the same images,
 *            so that the mean of their gradients is each one of them
 *   nearly   a network that is nearly certain, and right; for a static scale of 2^20
 *   exact    batch norms that give constants, so that every logit is a sum of 64 exact numbers, one
 *            of them large
 *   moved    the weights come with running statistics, no two alike */
bool ls_overflow_read(const char *text, ls_spec *spec);
/* {run}/overflow/init.safetensors and the batches of every step and rank of a job that wants them.
 */
ls_case_prepare ls_overflow_prepare;

#endif
