/* Inner product through cuBLASLt. Its matrices are column-major, ours row-major, so each is passed
 * as its transpose: x[batch][in] is a matrix of `in` rows and `batch` columns, and so on. A result
 * with `out` rows has the bias along them, as the epilogue requires.
 *
 * The epilogue serves f32 only. With a half result it rounded twice on an H200 (cuBLASLt 13.1,
 * algorithm 66: the product to f16, then the sum of that and the bias), which the audit of a step
 * found; so for half types the product is left in f32, and a kernel adds the bias and rounds. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "kernels/cuda/conv/conv.h"
#include "ops.h"

enum { FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS, PASSES };
enum { MOST_ALGORITHMS = 16, POINTER_ALIGNMENT = 16, SUMS_ALIGNMENT = 256 };

static const char *const pass_names[PASSES] = {"forward", "backward data", "backward weights"};

/* result[m][n] = op(a) op(b), column-major. */
typedef struct product {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, result;
    cublasLtMatmulAlgo_t algorithm;
    cublasComputeType_t compute;
    int64_t workspace_bytes;
} product;

struct ls_linear {
    ls_backend *backend;
    char name[64];
    int batch, in, out;
    ls_dtype type;
    product pass[PASSES];
};

/* ---- requests -------------------------------------------------------------------------------- */

static cudaDataType_t data_type(ls_dtype type)
{
    LS_ASSERT(type == LS_F32 || type == LS_F16 || type == LS_BF16);
    return type == LS_F32 ? CUDA_R_32F : type == LS_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

/* A matrix of rows x columns as stored, and whether the product transposes it. */
typedef struct operand {
    int rows, columns;
    bool transposed;
} operand;

typedef struct asked {
    operand a, b, result;
    ls_dtype type; /* of the result */
    bool bias;
} asked;

static asked ask(const ls_linear *l, int pass)
{
    switch (pass) {
    case FORWARD: /* y^T[out][batch] = w[out][in] x^T[in][batch] */
        return (asked){{l->in, l->out, true},
                       {l->in, l->batch, false},
                       {l->out, l->batch, false},
                       LS_F32,
                       l->type == LS_F32};
    case BACKWARD_DATA: /* dx^T[in][batch] = w^T[in][out] dy^T[out][batch] */
        return (asked){{l->in, l->out, false},
                       {l->out, l->batch, false},
                       {l->in, l->batch, false},
                       l->type,
                       false};
    default: /* dw^T[in][out] = x^T[in][batch] dy[batch][out] */
        return (asked){{l->in, l->batch, false},
                       {l->out, l->batch, true},
                       {l->in, l->out, false},
                       l->type,
                       false};
    }
}

static ls_status layout_make(ls_dtype type, const operand *o, cublasLtMatrixLayout_t *out)
{
    LS_CUBLAS(cublasLtMatrixLayoutCreate(out, data_type(type), (uint64_t)o->rows,
                                         (uint64_t)o->columns, o->rows));
    return LS_OK;
}

static ls_status operation_make(const asked *q, cublasComputeType_t compute,
                                cublasLtMatmulDesc_t *out)
{
    cublasOperation_t a = q->a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = q->b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    LS_CUBLAS(cublasLtMatmulDescCreate(out, compute, CUDA_R_32F));
    LS_CUBLAS(cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a));
    LS_CUBLAS(cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b));
    if (q->bias) {
        /* The heuristics derive the pointer's alignment from its value; each execution passes the
         * real pointer. */
        cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        const void *bias = (const void *)(uintptr_t)POINTER_ALIGNMENT;
        LS_CUBLAS(cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                                 sizeof epilogue));
        LS_CUBLAS(cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                 sizeof bias));
    }
    return LS_OK;
}

/* The largest power of two, up to a pointer's, that divides both the address and the step from
 * column to column. */
static uint32_t alignment_of(ls_dtype type, const operand *o)
{
    uint32_t step = (uint32_t)o->rows * (uint32_t)ls_dtype_bytes(type);
    uint32_t alignment = POINTER_ALIGNMENT;
    while (step % alignment != 0) {
        alignment /= 2;
    }
    return alignment;
}

/* Forbidden kinds of arithmetic; kinds not named here are allowed. */
static uint64_t forbidden_arithmetic(ls_dtype type, bool tf32)
{
    uint64_t f = CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_16F |
                 CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_8F_E4M3 |
                 CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_8F_E5M2;
    if (type != LS_F16) {
        f |= CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16F;
    }
    if (type != LS_BF16) {
        f |= CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF; /* also set for f32 emulated by three bf16 */
    }
    if (type == LS_F32 && !tf32) {
        f |= CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32 | CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA;
    }
    return f;
}

static const uint32_t allowed_reductions =
    CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

static ls_status preference_fill(const ls_linear *l, const asked *q,
                                 cublasLtMatmulPreference_t preference)
{
    uint64_t workspace = (uint64_t)l->backend->workspace_limit;
    uint64_t arithmetic = ~forbidden_arithmetic(l->type, l->backend->tf32);
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        uint32_t value;
    } small[] = {
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, allowed_reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(l->type, &q->a)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(l->type, &q->b)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(q->type, &q->result)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(q->type, &q->result)},
    };
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
        LS_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, small[i].name, &small[i].value,
                                                       sizeof small[i].value));
    }
    LS_CUBLAS(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
    LS_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_IMPL_MASK,
                                                   &arithmetic, sizeof arithmetic));
    return LS_OK;
}

/* ---- choice of an algorithm ------------------------------------------------------------------ */

/* What cuBLASLt has offered for a product. */
typedef struct offers {
    int count;
    bool taken, has_spare;
    cublasLtMatmulHeuristicResult_t spare; /* the first that only its flags exclude */
} offers;

/* Checks the result against the request, because nothing else would detect a wrong kind of sum.
 * `by_flags`: it is refused for its capability flags alone. */
static ls_status may_be_taken(const ls_linear *l, const cublasLtMatmulHeuristicResult_t *r,
                              bool *taken, bool *by_flags)
{
    uint64_t arithmetic = 0;
    uint32_t reduction = 0;
    size_t wrote = 0;
    *taken = *by_flags = false;
    if (r->state != CUBLAS_STATUS_SUCCESS ||
        r->workspaceSize > (size_t)l->backend->workspace_limit) {
        return LS_OK;
    }
    LS_CUBLAS(cublasLtMatmulAlgoCapGetAttribute(&r->algo, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS,
                                                &arithmetic, sizeof arithmetic, &wrote));
    LS_CUBLAS(cublasLtMatmulAlgoConfigGetAttribute(&r->algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                   &reduction, sizeof reduction, &wrote));
    bool flags = (arithmetic & forbidden_arithmetic(l->type, l->backend->tf32)) == 0;
    bool sums = (reduction & ~allowed_reductions) == 0;
    *taken = flags && sums;
    *by_flags = !flags && sums;
    return LS_OK;
}

static void take(const cublasLtMatmulHeuristicResult_t *r, product *p)
{
    p->algorithm = r->algo;
    p->workspace_bytes = (int64_t)r->workspaceSize;
}

static ls_status take_first(const ls_linear *l, cublasLtMatmulPreference_t preference, product *p,
                            offers *o)
{
    cublasLtMatmulHeuristicResult_t result[MOST_ALGORITHMS];
    int count = 0;
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(l->backend->blas, p->operation, p->a, p->b, p->result,
                                       p->result, preference, MOST_ALGORITHMS, result, &count);
    /* documented for unsupported and for wrong requests; after pedantic comes another attempt */
    bool another =
        status == CUBLAS_STATUS_INVALID_VALUE && p->compute == CUBLAS_COMPUTE_32F_PEDANTIC;
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || another) {
        return LS_OK;
    }
    LS_CUBLAS(status);
    o->count += count;
    for (int i = 0; i < count && !o->taken; i++) {
        bool by_flags = false;
        LS_TRY(may_be_taken(l, &result[i], &o->taken, &by_flags));
        if (o->taken) {
            take(&result[i], p);
        } else if (by_flags && !o->has_spare) {
            o->spare = result[i];
            o->has_spare = true;
        }
    }
    return LS_OK;
}

static ls_status try_compute(const ls_linear *l, const asked *q, cublasComputeType_t compute,
                             product *p, offers *o)
{
    cublasLtMatmulPreference_t preference = NULL;
    if (p->operation) {
        cublasLtMatmulDescDestroy(p->operation);
        p->operation = NULL;
    }
    p->compute = compute;
    LS_TRY(operation_make(q, compute, &p->operation));
    LS_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    ls_status status = preference_fill(l, q, preference);
    LS_THEN(status, take_first(l, preference, p, o));
    cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

static ls_status product_make(ls_linear *l, int pass)
{
    product *p = &l->pass[pass];
    asked q = ask(l, pass);
    offers o = {0};
    LS_TRY(layout_make(l->type, &q.a, &p->a));
    LS_TRY(layout_make(l->type, &q.b, &p->b));
    LS_TRY(layout_make(q.type, &q.result, &p->result));
    if (l->type == LS_F32 && l->backend->tf32) {
        LS_TRY(try_compute(l, &q, CUBLAS_COMPUTE_32F_FAST_TF32, p, &o));
    } else if (l->type == LS_F32) {
        /* Pedantic: f32 in every phase, whatever the environment allows for emulation. */
        LS_TRY(try_compute(l, &q, CUBLAS_COMPUTE_32F_PEDANTIC, p, &o));
    }
    if (!o.taken) {
        LS_TRY(try_compute(l, &q, CUBLAS_COMPUTE_32F, p, &o));
    }
    /* The mask was requested, so flags that exclude every algorithm list what it could do, not what
     * it does. In f32 one of these things is TF32, which may not be taken by mistake. */
    if (!o.taken && o.has_spare && l->type != LS_F32) {
        ls_log_warn("%s: the flags of all %d algorithms that cuBLASLt offers for its %s name "
                    "arithmetic that was excluded; the first one is taken",
                    l->name, o.count, pass_names[pass]);
        take(&o.spare, p);
        o.taken = true;
    }
    if (!o.taken) {
        return ls_log_fail(
            LS_ERR_UNSUPPORTED,
            "%s: cuBLASLt has no algorithm that may be used for its %s (%s, %d x %d to "
            "%d): %d offered within %.1f MB of workspace, none with f32 sums and unchanged "
            "operands",
            l->name, pass_names[pass], ls_dtype_label(l->type), l->batch, l->in, l->out, o.count,
            (double)l->backend->workspace_limit / (1 << 20));
    }
    return LS_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

ls_status ls_linear_create(ls_backend *backend, const char *name, int batch, int in, int out,
                           ls_dtype type, ls_linear **result)
{
    ls_linear *l = calloc(1, sizeof *l);
    LS_TRY_MEMORY(l != NULL, "layer %s", name);
    *l = (ls_linear){.backend = backend, .batch = batch, .in = in, .out = out, .type = type};
    snprintf(l->name, sizeof l->name, "%s", name);
    for (int pass = 0; pass < PASSES; pass++) {
        ls_status status = product_make(l, pass);
        if (status != LS_OK) {
            ls_linear_destroy(l);
            return status;
        }
    }
    *result = l;
    return LS_OK;
}

void ls_linear_destroy(ls_linear *l)
{
    if (!l) {
        return;
    }
    for (int pass = 0; pass < PASSES; pass++) {
        product *p = &l->pass[pass];
        cublasLtMatrixLayout_t layout[] = {p->a, p->b, p->result};
        for (int i = 0; i < 3; i++) {
            if (layout[i]) {
                cublasLtMatrixLayoutDestroy(layout[i]);
            }
        }
        if (p->operation) {
            cublasLtMatmulDescDestroy(p->operation);
        }
    }
    free(l);
}

/* Of forward's result in f32, before the bias is added; 0: the product adds it. */
static int64_t sums_bytes(const ls_linear *l)
{
    int64_t bytes = (int64_t)l->batch * l->out * (int64_t)sizeof(float);
    return l->type == LS_F32 ? 0 : (bytes + SUMS_ALIGNMENT - 1) / SUMS_ALIGNMENT * SUMS_ALIGNMENT;
}

int64_t ls_linear_workspace_bytes(const ls_linear *l)
{
    int64_t most = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        most = l->pass[pass].workspace_bytes > most ? l->pass[pass].workspace_bytes : most;
    }
    return sums_bytes(l) + most;
}

/* ---- work ------------------------------------------------------------------------------------ */

static ls_status multiply(ls_linear *l, int pass, ls_stream *stream, const void *a, const void *b,
                          void *result, void *workspace)
{
    product *p = &l->pass[pass];
    float one = 1, zero = 0; /* host values, read during the call */
    LS_CUBLAS(cublasLtMatmul(l->backend->blas, p->operation, &one, a, p->a, b, p->b, &zero, result,
                             p->result, result, p->result, &p->algorithm, workspace,
                             (size_t)p->workspace_bytes, stream->native));
    return LS_OK;
}

ls_status ls_linear_forward(ls_linear *l, ls_stream *stream, const void *x, const void *w,
                            const void *bias, void *y, void *workspace)
{
    if (l->type != LS_F32) {
        float *sums = workspace;
        LS_TRY(multiply(l, FORWARD, stream, w, x, sums, (char *)workspace + sums_bytes(l)));
        return ls_simple_bias(stream->native, l->type, sums, bias, y, l->batch, l->out);
    }
    LS_CUBLAS(cublasLtMatmulDescSetAttribute(
        l->pass[FORWARD].operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    return multiply(l, FORWARD, stream, w, x, y, workspace);
}

ls_status ls_linear_backward_data(ls_linear *l, ls_stream *stream, void *dx, const void *w,
                                  const void *dy, void *workspace)
{
    return multiply(l, BACKWARD_DATA, stream, w, dy, dx, workspace);
}

ls_status ls_linear_backward_weights(ls_linear *l, ls_stream *stream, void *dw, const void *x,
                                     const void *dy, void *workspace)
{
    return multiply(l, BACKWARD_WEIGHTS, stream, x, dy, dw, workspace);
}

/* ---- text ------------------------------------------------------------------------------------ */

static uint32_t config_of(const product *p, cublasLtMatmulAlgoConfigAttributes_t name)
{
    uint32_t value = 0;
    size_t wrote = 0;
    cublasLtMatmulAlgoConfigGetAttribute(&p->algorithm, name, &value, sizeof value, &wrote);
    return value;
}

void ls_linear_describe(const ls_linear *l, char *text, size_t bytes)
{
    text[0] = '\0';
    for (int pass = 0; pass < PASSES; pass++) {
        const product *p = &l->pass[pass];
        uint64_t arithmetic = 0;
        size_t got = 0;
        cublasLtMatmulAlgoCapGetAttribute(&p->algorithm, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS,
                                          &arithmetic, sizeof arithmetic, &got);
        ls_text_add(text, bytes,
                    "%s%s algorithm %" PRIu32 " tile %" PRIu32 " stages %" PRIu32 " split %" PRIu32
                    " reduction %" PRIu32 " %.1f MB [%s, %s]",
                    pass == 0 ? "" : "; ", pass_names[pass], config_of(p, CUBLASLT_ALGO_CONFIG_ID),
                    config_of(p, CUBLASLT_ALGO_CONFIG_TILE_ID),
                    config_of(p, CUBLASLT_ALGO_CONFIG_STAGES_ID),
                    config_of(p, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
                    config_of(p, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
                    (double)p->workspace_bytes / (1 << 20),
                    p->compute == CUBLAS_COMPUTE_32F_PEDANTIC    ? "pedantic f32"
                    : p->compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? "tf32"
                                                                 : "f32 sums",
                    arithmetic & CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK ? "tensor core"
                                                                              : "fma");
    }
}
