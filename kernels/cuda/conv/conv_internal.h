/* One convolution pass as an operation graph of the cuDNN backend API: three tensors, the
 * convolution, its operation, and in a fused graph further operations with tensors of their own.
 * The search for an engine is the same for all graphs. */
#ifndef LS_CUDA_CONV_INTERNAL_H
#define LS_CUDA_CONV_INTERNAL_H

#include "conv.h"

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
    /* of LS_CONV_DATA_GATED, where 'x' is the gradient before the ReLU, inside the graph */
    LS_CONV_ID_GATED = 'g',
    LS_CONV_ID_NORMED = 'n',
    LS_CONV_ID_MEAN = 'm',
    LS_CONV_ID_INV_STD = 'i',
    LS_CONV_ID_SCALE = 'c',
    LS_CONV_ID_BIAS = 'b',
    /* of LS_CONV_DATA_JOINED and LS_CONV_DATA_JOINED_TWICE, which have those of LS_CONV_DATA_GATED,
     * too */
    LS_CONV_ID_OTHER = 'o',
    LS_CONV_ID_RESIDUAL = 'N', /* or the second norm's input */
    LS_CONV_ID_SECOND_MEAN = 'M',
    LS_CONV_ID_SECOND_INV_STD = 'I',
    LS_CONV_ID_SECOND_SCALE = 'S',
    LS_CONV_ID_SECOND_BIAS = 'T',
    LS_CONV_ID_SECOND_LISTS = '5', /* the first of LS_CONV_GATE_LISTS */
    LS_CONV_ID_SUMMED = 'd',       /* inside the graph: the first of two */
    /* of the passes that apply a norm, where 'x' is inside the graph, with scale and bias */
    LS_CONV_ID_RAW = 'r',
    LS_CONV_ID_LISTS = '0',  /* the first of LS_CONV_GATE_LISTS */
    LS_CONV_ID_WITHIN = 'A', /* the first of those inside the graph */
};

/* How large a tensor in memory is, and of what type. */
typedef enum ls_conv_extent {
    LS_CONV_AS_X, /* of the key's type */
    LS_CONV_AS_W,
    LS_CONV_AS_Y,
    LS_CONV_HALF_PER_INPUT, /* of the key's type, a value per channel of x */
    LS_CONV_PER_OUTPUT,     /* f32, a value per channel of y */
    LS_CONV_PER_INPUT,      /* the same of x */
} ls_conv_extent;

enum {
    LS_CONV_TENSORS_MOST = 24, /* of a graph, in memory */
    LS_CONV_PARTS_MOST = 64,   /* descriptors of a graph */
    LS_CONV_OPERATIONS_MOST = 14,
    LS_CONV_ALIGNMENT = 16,
};

/* A pass: the plain one whose work it does (itself, if it is plain), and its tensors in memory in
 * the order in which executions get their addresses. */
typedef struct ls_conv_kind {
    const char *name;  /* "forward with sums" */
    const char *label; /* of its word in a choice of engines, "sums="; NULL: plain */
    ls_conv_pass plain;
    int count;
    struct {
        int64_t id;
        ls_conv_extent extent;
    } tensor[LS_CONV_TENSORS_MOST];
} ls_conv_kind;

const ls_conv_kind *ls_conv_graph_kind(ls_conv_pass pass);
/* Elements of a tensor of that extent, and its type. */
int64_t ls_conv_graph_count(const ls_conv_shape *shape, ls_conv_extent extent);
ls_dtype ls_conv_graph_type(const ls_conv_key *key, ls_conv_extent extent);
/* The addresses of LS_CONV_DATA_GATED: data[LS_CONV_TENSORS_MOST]. */
void ls_conv_graph_gate(const ls_conv_shape *shape, void *g, const void *w, const void *dy,
                        const ls_conv_gate *gate, const void **data);

/* The addresses of LS_CONV_DATA_JOINED, or of LS_CONV_DATA_JOINED_TWICE. */
void ls_conv_graph_join(const ls_conv_shape *shape, void *g, const void *w, const void *dy,
                        const ls_conv_join *join, const void **data);

typedef struct ls_conv_graph {
    ls_conv_target target;
    cudnnBackendDescriptor_t part[LS_CONV_PARTS_MOST];     /* in the order of their creation */
    cudnnBackendDescriptor_t tensor[LS_CONV_TENSORS_MOST]; /* among them; as in ls_conv_kind */
    cudnnBackendDescriptor_t operation[LS_CONV_OPERATIONS_MOST]; /* among them */
    cudnnBackendDescriptor_t graph;
    int parts, operations;
} ls_conv_graph;

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
    LS_CONV_UNBUILT,          /* cuDNN could not build a plan from it, or not execute it */
    LS_CONV_ADDS_WRONG,       /* of a gradient that is added: not rounded once (conv_trial.h) */
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

/* Bytes that serve both. */
int64_t ls_conv_plans_workspace(const ls_conv_plan *a, const ls_conv_plan *b);

/* Packs the addresses of a pass's tensors, in the order of ls_conv_kind, and of the workspace for
 * an execution. */
ls_status ls_conv_plans_pack(ls_conv_pass pass, const void *const *data, void *workspace,
                             cudnnBackendDescriptor_t *out);

#endif
