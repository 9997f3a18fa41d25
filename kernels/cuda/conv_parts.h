/* One convolution pass as an operation graph of the cuDNN backend API: three tensors, the
 * convolution, its operation, and in a fused graph a second operation with tensors of its own. The
 * search for an engine is the same for all graphs. */
#ifndef LS_CUDA_CONV_PARTS_H
#define LS_CUDA_CONV_PARTS_H

#include "conv.h"

typedef enum ls_conv_pass {
    LS_CONV_FORWARD,
    LS_CONV_BACKWARD_DATA,
    LS_CONV_BACKWARD_WEIGHTS,
    LS_CONV_FORWARD_SUMS, /* forward -> GenStats: also the sums of y and of y^2, per channel */
    LS_CONV_PASSES,
    LS_CONV_PLAIN_PASSES = LS_CONV_FORWARD_SUMS,
} ls_conv_pass;

/* Everything that determines which engines exist and which are allowed. */
typedef struct ls_conv_key {
    ls_conv_pass pass;
    ls_conv_shape shape;
    ls_dtype type; /* of x, w and y; sums are f32 */
    bool onto;     /* the result is added to the old values: beta is 1 */
    bool deterministic, tf32;
    int64_t workspace_limit;
} ls_conv_key;

/* The device: that of a handle, or one described by properties (needs no GPU, and cannot execute
 * anything). */
typedef struct ls_conv_target {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties; /* NULL: use the handle's device */
} ls_conv_target;

/* Ids of the tensors in a graph and in the pointers of an execution. */
enum {
    LS_CONV_ID_X = 'x',
    LS_CONV_ID_W = 'w',
    LS_CONV_ID_Y = 'y',
    LS_CONV_ID_SUM = 's',
    LS_CONV_ID_SQUARES = 'q',
};
/* Tensors of a plain graph, and of a fused one at most. */
enum { LS_CONV_TENSORS = 3, LS_CONV_TENSORS_MOST = 5, LS_CONV_ALIGNMENT = 16 };

typedef struct ls_conv_graph {
    ls_conv_target target;
    cudnnBackendDescriptor_t tensor[LS_CONV_TENSORS_MOST], conv, operation, fused, graph;
} ls_conv_graph;

/* "forward", "backward data", "backward weights", "forward with sums" */
const char *ls_conv_graph_pass_name(ls_conv_pass pass);
/* How many tensors the graph of a pass has in memory; id (or NULL) receives their ids. */
int ls_conv_graph_ids(ls_conv_pass pass, int64_t *id);
/* LS_ERR_INFRA if cuDNN rejects one of the descriptors; nothing is left allocated then. */
ls_status ls_conv_graph_build(const ls_conv_target *target, const ls_conv_key *key,
                              ls_conv_graph *out);
void ls_conv_graph_free(ls_conv_graph *graph);

/* Destroys a descriptor; NULL is allowed. */
void ls_conv_graph_drop(cudnnBackendDescriptor_t descriptor);

/* ---- conv_engine.c: engines for a graph, their notes, and whether those are allowed ---------- */

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

/* ---- conv_plans.c: execution plans, searched once per pass, shape and type ------------------- */

/* The most plans that --cudnn-benchmark times: more than cuDNN has offered for one convolution so
 * far (9.19: 40). */
enum { LS_CONV_TIMED_MOST = 128 };

/* Whether a fused pass has given on exact data what the plain passes give (fuse.h). */
typedef enum ls_conv_admission {
    LS_CONV_NOT_TRIED,
    LS_CONV_ADMITTED,
    LS_CONV_REJECTED,
} ls_conv_admission;

typedef struct ls_conv_plan {
    ls_conv_key key;
    ls_conv_engine engine;
    int seen, timed; /* configurations examined, plans timed */
    double ms;       /* time of this plan; 0 if none was timed */
    ls_conv_graph graph;
    cudnnBackendDescriptor_t config, plan;
    ls_conv_admission admission; /* of a fused pass */
    struct ls_conv_plan *next;
} ls_conv_plan;

struct ls_conv_plans {
    ls_conv_plan *first;
    int64_t asked, searched; /* plans requested, and requests that needed a search in cuDNN */
};

/* The plan for that key: from an earlier search, or the first that passes the filters (with
 * benchmark: the fastest of them); with `engine`, the one with that engine and those knobs. It is
 * valid until the backend closes. LS_ERR_UNSUPPORTED if none is left, with the reasons for each
 * refusal, or if this device does not have the engine or a filter refuses it; `layer` names the
 * layer in that message, NULL: no message. */
ls_status ls_conv_plans_get(ls_backend *backend, const char *layer, const ls_conv_key *key,
                            const ls_conv_engine *engine, ls_conv_plan **out);

/* Packs the addresses of a pass's tensors, in the order of ls_conv_graph_ids, and of the workspace
 * for an execution. */
ls_status ls_conv_plans_pack(ls_conv_pass pass, const void *const *data, void *workspace,
                             cudnnBackendDescriptor_t *out);

#endif
