/* cuDNN engines for one convolution pass: listing them, reading the notes on their arithmetic, and
 * deciding whether the arithmetic is allowed here. */
#ifndef LS_CUDA_CONV_ENGINE_H
#define LS_CUDA_CONV_ENGINE_H

#include "conv_graph.h"

enum { LS_CONV_KNOBS = CUDNN_KNOB_TYPE_COUNTS, LS_CONV_TAG_BYTES = 1024 };

typedef struct ls_conv_knob {
    cudnnBackendKnobType_t type;
    int64_t value;
} ls_conv_knob;

/* An engine with the values of its knobs: enough for another process to build the same one. */
typedef struct ls_conv_engine {
    int64_t id; /* index among all engines for the graph */
    int knob_count;
    ls_conv_knob knob[LS_CONV_KNOBS];
    uint32_t notes; /* bit n: numerical note n of cuDNN; bit 31: a note unknown to this program */
    uint32_t behaviours;     /* the same for behaviour notes */
    int64_t workspace_bytes; /* known once there is a plan */
} ls_conv_engine;

enum { LS_CONV_NOTE_UNKNOWN = 31 };

/* Why an engine is refused; the first reason that applies is reported. */
typedef enum ls_conv_refusal {
    LS_CONV_TAKEN,
    LS_CONV_REDUCED_SUM,      /* sums in a type narrower than f32 */
    LS_CONV_DOWN_CONVERTED,   /* converts operands to a narrower type */
    LS_CONV_TRANSFORMED,      /* Winograd, FFT: rounds differently from a sum of products */
    LS_CONV_NONDETERMINISTIC, /* with `deterministic` */
    LS_CONV_TF32,             /* tensor cores with f32 operands, without `tf32` */
    LS_CONV_REORDERED,        /* needs weights or bias in an order of its own */
    LS_CONV_UNKNOWN,          /* has a note unknown to this program */
    LS_CONV_WORKSPACE,        /* over the limit */
    LS_CONV_UNBUILT,          /* cuDNN could not build a plan from it */
    LS_CONV_REFUSALS,
} ls_conv_refusal;

const char *ls_conv_engine_refusal_name(ls_conv_refusal refusal);

/* The configurations of one mode of the heuristics, best first, at most `most`; the caller drops
 * them. A mode that does not support the graph yields none. */
ls_status ls_conv_engine_list(const ls_conv_graph *graph, cudnnBackendHeurMode_t mode, int most,
                              cudnnBackendDescriptor_t *config, int *count);
ls_status ls_conv_engine_read(cudnnBackendDescriptor_t config, ls_conv_engine *out);
/* Judges by the notes alone. */
ls_conv_refusal ls_conv_engine_judge(const ls_conv_engine *engine, const ls_conv_key *key);
bool ls_conv_engine_same(const ls_conv_engine *a, const ls_conv_engine *b); /* id and knobs */
/* The configuration of an engine given by id and knobs; not CUDNN_STATUS_SUCCESS if this cuDNN or
 * this device does not have it. */
cudnnStatus_t ls_conv_engine_config(const ls_conv_graph *graph, const ls_conv_engine *engine,
                                    cudnnBackendDescriptor_t *out);
/* The execution plan of a configuration and its workspace. */
cudnnStatus_t ls_conv_engine_plan(const ls_conv_target *target, cudnnBackendDescriptor_t config,
                                  cudnnBackendDescriptor_t *out, int64_t *workspace_bytes);

/* "eng37_k2=5_k27=1", the format of cuDNN's own frontend; and its parser. */
void ls_conv_engine_tag(const ls_conv_engine *engine, char *text, size_t bytes);
bool ls_conv_engine_parse(const char *text, ls_conv_engine *out);
/* The tag with workspace and notes: "eng37_k2=5 8 MB [tensor core, graph]" */
void ls_conv_engine_describe(const ls_conv_engine *engine, char *text, size_t bytes);

#endif
