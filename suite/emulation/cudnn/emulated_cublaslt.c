/* The part of cuBLASLt that a linear layer uses, emulated on the CPU: checks sizes of attributes,
 * shapes and alignments; its heuristics offer algorithms that must not be used before those that
 * may; each algorithm only runs for the product it was offered for. */
#include <cublasLt.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/half.h"
#include "suite/emulation/runtime/emulate.h"

enum { MAGIC = 0x746c7562, WORKSPACE_ALIGNMENT = 256 };

struct cublasLtContext {
    int magic;
};

typedef struct layout {
    cudaDataType_t type;
    int64_t rows, columns, step;
} layout;

typedef struct operation {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t transpose_a, transpose_b;
    uint32_t epilogue;
    const void *bias;
} operation;

typedef struct preference {
    uint64_t workspace, arithmetic;
    uint32_t reductions, alignment[4]; /* A, B, C, D */
} preference;

/* An algorithm; it travels in the caller's cublasLtMatmulAlgo_t. */
typedef struct algorithm {
    int32_t id, magic;
    uint64_t arithmetic, workspace, fingerprint;
    uint32_t reduction, alignment;
    bool wrong;
} algorithm;

_Static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm fits");

static algorithm algorithm_in(const cublasLtMatmulAlgo_t *from)
{
    algorithm a;
    memcpy(&a, from, sizeof a);
    return a;
}

/* ---- the library, descriptors ---------------------------------------------------------------- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    *handle = calloc(1, sizeof **handle);
    if (!*handle) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    (*handle)->magic = MAGIC;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    }
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return cublasLtGetStatusName(status);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    layout *l = calloc(1, sizeof *l);
    if (!l) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    *l = (layout){type, (int64_t)rows, (int64_t)cols, ld};
    *out = (cublasLtMatrixLayout_t)l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    free(l);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    operation *o = calloc(1, sizeof *o);
    if (!o) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    *o = (operation){.compute = compute, .scale = scale, .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    *out = (cublasLtMatmulDesc_t)o;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t o)
{
    free(o);
    return CUBLAS_STATUS_SUCCESS;
}

/* The size must be that of the attribute. */
static cublasStatus_t set(void *to, size_t size, const void *from, size_t given)
{
    if (!from || given != size) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(to, from, size);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t get(const void *from, size_t size, void *to, size_t given, size_t *wrote)
{
    if (!to || given != size) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(to, from, size);
    if (wrote) {
        *wrote = size;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t name, const void *from,
                                              size_t bytes)
{
    operation *o = (operation *)desc;
    switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&o->transpose_a, sizeof o->transpose_a, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&o->transpose_b, sizeof o->transpose_b, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&o->epilogue, sizeof o->epilogue, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&o->bias, sizeof o->bias, from, bytes);
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    preference *p = calloc(1, sizeof *p);
    if (!p) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    /* The documented defaults. */
    *p = (preference){0, UINT64_MAX, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
    *out = (cublasLtMatmulPreference_t)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void *from, size_t bytes)
{
    preference *p = (preference *)pref;
    switch (name) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&p->workspace, sizeof p->workspace, from, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&p->reductions, sizeof p->reductions, from, bytes);
    case CUBLASLT_MATMUL_PREF_IMPL_MASK:
        return set(&p->arithmetic, sizeof p->arithmetic, from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(&p->alignment[name - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                   sizeof p->alignment[0], from, bytes);
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
}

/* ---- one product ----------------------------------------------------------------------------- */

typedef struct product {
    layout a, b, d;
    operation o;
    int64_t m, n, k;
} product;

static size_t unit_of(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

static cublasStatus_t product_of(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                 cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                 cublasLtMatrixLayout_t d, product *out)
{
    if (!desc || !a || !b || !c || !d) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    product p = {.a = *(layout *)a, .b = *(layout *)b, .d = *(layout *)d, .o = *(operation *)desc};
    const layout *in_c = (layout *)c;
    bool ta = p.o.transpose_a == CUBLAS_OP_T, tb = p.o.transpose_b == CUBLAS_OP_T;
    p.m = ta ? p.a.columns : p.a.rows;
    p.k = ta ? p.a.rows : p.a.columns;
    p.n = tb ? p.b.rows : p.b.columns;
    if (p.k != (tb ? p.b.columns : p.b.rows) || p.d.rows != p.m || p.d.columns != p.n ||
        in_c->rows != p.m || in_c->columns != p.n || p.a.step < p.a.rows || p.b.step < p.b.rows ||
        p.d.step < p.d.rows) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    bool f32 = p.a.type == CUDA_R_32F;
    bool known = f32 || p.a.type == CUDA_R_16F || p.a.type == CUDA_R_16BF;
    bool sums = p.o.compute == CUBLAS_COMPUTE_32F || p.o.compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                (f32 && p.o.compute == CUBLAS_COMPUTE_32F_FAST_TF32);
    bool result = (p.d.type == p.a.type || p.d.type == CUDA_R_32F) && p.d.type == in_c->type;
    if (!known || p.a.type != p.b.type || !result || !sums || p.o.scale != CUDA_R_32F) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    bool bias = p.o.epilogue == CUBLASLT_EPILOGUE_BIAS;
    if ((!bias && p.o.epilogue != CUBLASLT_EPILOGUE_DEFAULT) || (bias && !p.o.bias) ||
        (bias && (uintptr_t)p.o.bias % unit_of(p.d.type) != 0)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *out = p;
    return CUBLAS_STATUS_SUCCESS;
}

static uint64_t fingerprint(const product *p)
{
    const int64_t part[] = {p->m,
                            p->n,
                            p->k,
                            p->a.step,
                            p->b.step,
                            p->d.step,
                            (int64_t)p->a.type,
                            (int64_t)p->d.type,
                            (int64_t)p->o.compute,
                            p->o.transpose_a,
                            p->o.transpose_b,
                            p->o.epilogue};
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++) {
        hash = (hash ^ (uint64_t)part[i]) * 1099511628211u;
    }
    return hash;
}

/* ---- heuristics ------------------------------------------------------------------------------ */

/* Checks every pointer and every step from column to column. */
static bool aligned(const product *p, const preference *f, uint32_t bytes)
{
    size_t unit = unit_of(p->a.type);
    return f->alignment[0] >= bytes && f->alignment[1] >= bytes && f->alignment[2] >= bytes &&
           f->alignment[3] >= bytes && (size_t)p->a.step * unit % bytes == 0 &&
           (size_t)p->b.step * unit % bytes == 0 &&
           (size_t)p->d.step * unit_of(p->d.type) % bytes == 0;
}

/* `forgets`: offered whatever the preference says, as by a library with a mistake. */
static const struct offered {
    algorithm a;
    bool forgets, only_f32, only_half;
} offered[] = {
    {.a = {.id = 5, .reduction = CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, .wrong = true}},
    {.a = {.id = 6, .reduction = CUBLASLT_REDUCTION_SCHEME_INPLACE, .wrong = true},
     .forgets = true},
    {.a = {.id = 7,
           .arithmetic =
               CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF,
           .wrong = true},
     .forgets = true,
     .only_f32 = true},
    {.a = {.id = 8,
           .arithmetic =
               CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA | CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_16F,
           .wrong = true},
     .forgets = true,
     .only_half = true},
    {.a = {.id = 9, .workspace = UINT64_C(1) << 40, .wrong = true}},
    {.a = {.id = 20,
           .arithmetic = CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA |
                         CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32F |
                         CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32,
           .workspace = 65536,
           .alignment = 16},
     .only_f32 = true},
    {.a = {.id = 21,
           .arithmetic =
               CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA | CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32F,
           .reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
           .workspace = 65536,
           .alignment = 16},
     .only_half = true},
    {.a = {.id = 30,
           .arithmetic =
               CUBLASLT_NUMERICAL_IMPL_FLAGS_FMA | CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32F,
           .workspace = 4096,
           .alignment = 4}},
    {.a = {.id = 31,
           .arithmetic =
               CUBLASLT_NUMERICAL_IMPL_FLAGS_FMA | CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32F,
           .workspace = 8192,
           .alignment = 2}},
};

static bool is_offered(const struct offered *o, const product *p, const preference *f)
{
    bool f32 = p->a.type == CUDA_R_32F;
    const algorithm *a = &o->a;
    if ((o->only_f32 && !f32) || (o->only_half && f32)) {
        return false;
    }
    if (f32 && p->o.compute == CUBLAS_COMPUTE_32F_PEDANTIC &&
        a->arithmetic & CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA) {
        return false;
    }
    if (p->o.compute != CUBLAS_COMPUTE_32F_FAST_TF32 &&
        a->arithmetic & CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32) {
        return false;
    }
    if (o->forgets) {
        return getenv("LS_EMULATED_FLAGS") == NULL;
    }
    bool reduction = a->reduction == CUBLASLT_REDUCTION_SCHEME_NONE || f->reductions & a->reduction;
    return reduction && (a->arithmetic & ~f->arithmetic) == 0 && a->workspace <= f->workspace &&
           (a->alignment == 0 || aligned(p, f, a->alignment));
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t pref, int requested,
                                              cublasLtMatmulHeuristicResult_t result[], int *count)
{
    product p;
    if (!handle || handle->magic != MAGIC || !pref || requested < 1) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    cublasStatus_t status = product_of(desc, a, b, c, d, &p);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    const char *pedantic = getenv("LS_EMULATED_PEDANTIC");
    if (p.o.compute == CUBLAS_COMPUTE_32F_PEDANTIC && p.o.epilogue != CUBLASLT_EPILOGUE_DEFAULT &&
        pedantic != NULL && strcmp(pedantic, "0") == 0) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *count = 0;
    memset(&result[0], 0, sizeof result[0]);
    result[(*count)++].state = CUBLAS_STATUS_NOT_SUPPORTED; /* its other fields are undefined */
    for (size_t i = 0; i < sizeof offered / sizeof offered[0] && *count < requested; i++) {
        if (!is_offered(&offered[i], &p, (preference *)pref)) {
            continue;
        }
        algorithm made = offered[i].a;
        made.magic = MAGIC;
        made.fingerprint = fingerprint(&p);
        cublasLtMatmulHeuristicResult_t *r = &result[(*count)++];
        memset(r, 0, sizeof *r);
        memcpy(&r->algo, &made, sizeof made);
        r->workspaceSize = made.workspace;
        r->state = CUBLAS_STATUS_SUCCESS;
        r->wavesCount = 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                 cublasLtMatmulAlgoCapAttributes_t name, void *to,
                                                 size_t bytes, size_t *wrote)
{
    algorithm a = algorithm_in(algo);
    if (a.magic != MAGIC || name != CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (getenv("LS_EMULATED_FLAGS") != NULL) { /* of whatever the algorithm could do */
        a.arithmetic = ~UINT64_C(0);
    }
    return get(&a.arithmetic, sizeof a.arithmetic, to, bytes, wrote);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t name,
                                                    void *to, size_t bytes, size_t *wrote)
{
    algorithm a = algorithm_in(algo);
    const uint32_t zero = 0;
    if (a.magic != MAGIC) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    switch (name) {
    case CUBLASLT_ALGO_CONFIG_ID:
        return get(&a.id, sizeof a.id, to, bytes, wrote);
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
        return get(&a.reduction, sizeof a.reduction, to, bytes, wrote);
    case CUBLASLT_ALGO_CONFIG_TILE_ID:
    case CUBLASLT_ALGO_CONFIG_STAGES_ID:
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
        return get(&zero, sizeof zero, to, bytes, wrote);
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
}

/* ---- execution ------------------------------------------------------------------------------- */

typedef struct execution {
    product p;
    algorithm algorithm;
    const void *a, *b;
    void *d, *workspace;
} execution;

static float load(cudaDataType_t type, const void *from, int64_t i, bool tf32)
{
    if (type == CUDA_R_16F) {
        return ls_half_fp16_to_f32(((const uint16_t *)from)[i]);
    }
    if (type == CUDA_R_16BF) {
        return ls_half_bf16_to_f32(((const uint16_t *)from)[i]);
    }
    uint32_t bits = ls_half_bits_of_f32(((const float *)from)[i]);
    return ls_half_f32_of_bits(tf32 ? (bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu : bits);
}

static void store(cudaDataType_t type, void *to, int64_t i, float value)
{
    if (type == CUDA_R_16F) {
        ((uint16_t *)to)[i] = ls_half_f32_to_fp16(value);
    } else if (type == CUDA_R_16BF) {
        ((uint16_t *)to)[i] = ls_half_f32_to_bf16(value);
    } else {
        ((float *)to)[i] = value;
    }
}

/* op(matrix) with rows in consecutive memory: [columns][rows]. */
static float *plain(const layout *l, bool transpose, const void *from, bool tf32)
{
    int64_t rows = transpose ? l->columns : l->rows, columns = transpose ? l->rows : l->columns;
    float *to = malloc((size_t)(rows * columns) * sizeof *to);
    if (!to) {
        emulate_abort("cuBLASLt: no memory to compute in");
    }
    for (int64_t j = 0; j < columns; j++) {
        for (int64_t i = 0; i < rows; i++) {
            int64_t at = transpose ? i * l->step + j : j * l->step + i;
            to[j * rows + i] = load(l->type, from, at, tf32);
        }
    }
    return to;
}

static bool run(void *arguments)
{
    const execution *e = arguments;
    const product *p = &e->p;
    bool tf32 = e->algorithm.arithmetic & CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32;
    float *a = plain(&p->a, p->o.transpose_a == CUBLAS_OP_T, e->a, tf32);
    float *b = plain(&p->b, p->o.transpose_b == CUBLAS_OP_T, e->b, tf32);
    float *sum = malloc((size_t)p->m * sizeof *sum);
    if (!sum) {
        emulate_abort("cuBLASLt: no memory to compute in");
    }
    for (int64_t j = 0; j < p->n; j++) {
        memset(sum, 0, (size_t)p->m * sizeof *sum);
        for (int64_t k = 0; k < p->k; k++) {
            const float *restrict column = a + k * p->m;
            float factor = b[j * p->k + k];
            for (int64_t i = 0; i < p->m; i++) {
                sum[i] += column[i] * factor;
            }
        }
        for (int64_t i = 0; i < p->m; i++) {
            float bias =
                p->o.epilogue == CUBLASLT_EPILOGUE_BIAS ? load(p->d.type, p->o.bias, i, false) : 0;
            if (p->o.epilogue == CUBLASLT_EPILOGUE_BIAS) { /* as on an H200: rounded twice */
                store(p->d.type, e->d, j * p->d.step + i, sum[i]);
                sum[i] = load(p->d.type, e->d, j * p->d.step + i, false);
            }
            float value = sum[i] + bias;
            store(p->d.type, e->d, j * p->d.step + i, e->algorithm.wrong ? 2 * value + 1 : value);
        }
    }
    if (e->algorithm.workspace > 0) {
        memset(e->workspace, 0xff, e->algorithm.workspace);
    }
    free(sum);
    free(b);
    free(a);
    return true;
}

static bool device_matrix(const layout *l, const void *memory, uint32_t alignment)
{
    size_t bytes = (size_t)((l->columns - 1) * l->step + l->rows) * unit_of(l->type);
    return memory && (uintptr_t)memory % (alignment ? alignment : unit_of(l->type)) == 0 &&
           emulate_is_device(memory, bytes);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_desc, const void *b,
                              cublasLtMatrixLayout_t b_desc, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_desc, void *d, cublasLtMatrixLayout_t d_desc,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    execution e = {.a = a, .b = b, .d = d, .workspace = workspace};
    if (!handle || handle->magic != MAGIC || !alpha || !beta || !algo || c != d ||
        *(const float *)alpha != 1 || *(const float *)beta != 0) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    cublasStatus_t status = product_of(desc, a_desc, b_desc, c_desc, d_desc, &e.p);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    e.algorithm = algorithm_in(algo);
    const algorithm *chosen = &e.algorithm;
    if (chosen->magic != MAGIC || chosen->fingerprint != fingerprint(&e.p) ||
        !device_matrix(&e.p.a, a, chosen->alignment) ||
        !device_matrix(&e.p.b, b, chosen->alignment) ||
        !device_matrix(&e.p.d, d, chosen->alignment)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (e.p.o.epilogue == CUBLASLT_EPILOGUE_BIAS &&
        !emulate_is_device(e.p.o.bias, (size_t)e.p.m * unit_of(e.p.d.type))) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (chosen->workspace > 0 &&
        (workspace_bytes < chosen->workspace || (uintptr_t)workspace % WORKSPACE_ALIGNMENT != 0 ||
         !emulate_is_device(workspace, workspace_bytes))) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return emulate_enqueue(stream, run, &e, sizeof e) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
