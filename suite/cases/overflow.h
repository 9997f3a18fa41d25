/* Overflows by data, for subjects that know no --overflow-at: a network that is certain of class 0,
 * and batches that are right about it except on the chosen ranks and steps. There every logit's
 * gradient is (p-y)*S/N = S/N, beyond fp16's 65504 for S/N of 65536 and more; everywhere else it is
 * zero. */
#ifndef LS_OVERFLOW_H
#define LS_OVERFLOW_H

#include "suite/suite.h"

enum { LS_OVERFLOW_BATCH = 4, LS_OVERFLOW_IMAGE = 16, LS_OVERFLOW_SCALE = 1 << 19 };

/* True for jobs that read what ls_overflow_prepare writes. */
bool ls_overflow_wants(const ls_spec *spec);
typedef enum ls_overflow_kind {
    LS_OVERFLOW_OPTION,  /* no batches: --overflow-at */
    LS_OVERFLOW_TARGETS, /* every target of the chosen batches is wrong */
    LS_OVERFLOW_NAN,     /* one pixel of the chosen batches is NaN */
    LS_OVERFLOW_SUM,  /* black images, and one target of the chosen batches is wrong: only the last
                         bias has a gradient, S/N for class 0 */
    LS_OVERFLOW_SAME, /* nothing overflows: any classes, and every micro-step of a step has the same
                         images, so that the mean of their gradients is each one of them */
    LS_OVERFLOW_NEARLY, /* nothing overflows: a network that is nearly certain, and right; static
                           scale 2^20 */
    LS_OVERFLOW_EXACT, /* nothing overflows: batch norms that give constants, so that every logit is
                          a sum of 64 exact numbers, one of them large */
    LS_OVERFLOW_MOVED, /* nothing overflows: the weights come with running statistics, no two alike
                        */
} ls_overflow_kind;

/* The job of wrong targets: resnet8, starting at S = 2^19 (S/N = 2^17; 2^16 after one overflow).
 * `script` is what a trace is judged by: "STEP:RANK,...". */
void ls_overflow_spec(ls_spec *spec, const char *script);
/* The same of any kind; spec->world and spec->accumulate are set already. `script` says which
 * batches are odd: "STEP:RANK,...". */
void ls_overflow_spec_of(ls_spec *spec, ls_overflow_kind kind, const char *script,
                         double init_scale);
/* "at@STEP:RANK,..." (targets), "nan@...", "sum@...", "same", "nearly", "exact", "moved": the same
 * in the words of a case's table, without a scale. False for another kind. */
bool ls_overflow_read(const char *text, ls_spec *spec);
/* {run}/overflow/init.safetensors and the batches of every step and rank of a job that wants them.
 */
ls_case_prepare ls_overflow_prepare;

#endif
