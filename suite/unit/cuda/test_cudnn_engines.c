/* Which engines the real cuDNN gives the networks, asked without a GPU: cuDNN takes a description
 * of a device instead of one, and makes plans for it that only cannot be executed.
 *
 *   test_cudnn_engines                                     the test
 *   test_cudnn_engines DEVICE ARCH BATCH SIZE TYPE [deterministic] [tf32]
 *                      what would be taken: H200 resnet50 256 224 fp16 */
#include "suite/unit/run_suite.h"
#include "cudnn_described.h"

typedef struct asked {
    const device *device;
    const char *arch;
    int batch, size;
    ls_dtype type;
    bool deterministic, tf32;
} asked;

typedef void visit_conv(ls_backend *backend, const char *name, const ls_conv_shape *shape,
                        ls_dtype type, ls_conv *conv);

/* `every`: including those whose plans were found for another layer. */
static ls_status each_conv(ls_backend *backend, const lowered *l, const asked *q, bool every,
                           visit_conv *visit)
{
    for (int i = 0; i < l->lower.op_count; i++) {
        ls_conv_shape shape;
        bool image = false;
        const char *name = conv_at(l, i, &shape, &image);
        if (!name) {
            continue;
        }
        ls_conv *conv = NULL;
        int64_t before = backend->plans ? backend->plans->searched : 0;
        LS_TRY(ls_conv_create(backend, name, &shape, q->type,
                              image ? LS_CONV_DX_NONE : LS_CONV_DX_WRITTEN, &conv));
        bool fresh = backend->plans->searched > before;
        if (fresh || every) {
            visit(backend, name, &shape, q->type, conv);
        }
        ls_conv_destroy(conv);
    }
    return LS_OK;
}

/* Finds plans for all convolutions of a network, as a backend of that device would. */
static ls_status ask(const asked *q, bool every, visit_conv *visit)
{
    lowered l;
    ls_backend backend = {
        .deterministic = q->deterministic, .tf32 = q->tf32, .workspace_limit = INT64_C(1) << 30};
    LS_TRY(describe_device(q->device, &backend.described));
    LS_TRY(lower_network(q->arch, q->batch, q->size, q->type, &l));
    ls_status status = each_conv(&backend, &l, q, every, visit);
    ls_conv_plans_destroy(backend.plans);
    lowered_free(&l);
    ls_conv_graph_drop(backend.described);
    return status;
}

/* ---- the test: an engine for every pass, in f16 also one that sums, and the same by its name --
 */

/* Shapes with an engine that also sums the result. */
static int summed;

/* Nothing can be executed here. */
static ls_status admit_all(ls_backend *backend, const char *layer, const ls_conv_plan *plain,
                           ls_conv_plan *fused)
{
    (void)backend;
    (void)layer;
    ck_assert_int_eq(plain->key.pass, LS_CONV_FORWARD);
    ck_assert_int_eq(fused->key.pass, LS_CONV_FORWARD_SUMS);
    fused->admission = LS_CONV_ADMITTED;
    return LS_OK;
}

static void engine_and_again(ls_backend *backend, const char *name, const ls_conv_shape *shape,
                             ls_dtype type, ls_conv *conv)
{
    char choice[4096], again[4096];
    if (type == LS_F16) { /* the stem's engines with sums cannot be built without a driver */
        ck_assert_int_eq(ls_conv_fuse(conv, LS_CONV_FORWARD_SUMS, admit_all), LS_OK);
        summed += ls_conv_fuses(conv, LS_CONV_FORWARD_SUMS);
    }
    ls_conv_choice(conv, choice, sizeof choice);
    int64_t bytes = ls_conv_workspace_bytes(conv);
    ck_assert_int_le(bytes, backend->workspace_limit);
    /* another rank: without the plans found so far, so that the text has to suffice */
    ls_backend other = *backend;
    ls_conv *follower = NULL;
    ls_conv_dx dx = strstr(choice, " - ") == NULL ? LS_CONV_DX_WRITTEN : LS_CONV_DX_NONE;
    ck_assert_int_eq(ls_conv_create(&other, name, shape, type, dx, &follower), LS_OK);
    ck_assert_msg(dx == LS_CONV_DX_NONE || ls_conv_adds(backend, shape, type),
                  "%s: no engine adds its gradient to another", name);
    if (type == LS_F16) {
        ck_assert_int_eq(ls_conv_fuse(follower, LS_CONV_FORWARD_SUMS, admit_all), LS_OK);
    }
    other.plans = NULL;
    ck_assert_int_eq(ls_conv_choose(follower, choice), LS_OK);
    ls_conv_choice(follower, again, sizeof again);
    ck_assert_str_eq(again, choice);
    ck_assert_int_eq(ls_conv_workspace_bytes(follower), bytes);
    ls_conv_destroy(follower);
    ls_conv_plans_destroy(other.plans);
}

static const struct row {
    int device;
    const char *arch;
    int batch, size;
    ls_dtype type;
    bool deterministic, tf32;
    /* By 9.19, which has none for a B200 and, for the stem, only over blocks (an even size). */
    int summed;
} rows[] = {
    {1, "resnet50", 256, 224, LS_F16, true, false, 23},
    {1, "resnet50", 256, 224, LS_F32, true, false, 0},
    {1, "resnet50", 64, 224, LS_F32, true, true, 0},
    {1, "resnet50", 64, 224, LS_BF16, true, false, 0},
    {1, "resnet50", 256, 224, LS_F16, false, false, 23},
    {1, "resnet20", 16, 32, LS_F16, true, false, 6},
    {1, "resnet20", 16, 32, LS_F32, true, false, 0},
    {1, "resnet18", 8, 64, LS_F32, false, false, 0},
    {0, "resnet50", 64, 224, LS_F16, true, false, 23},
    {2, "resnet50", 64, 224, LS_F16, true, false, 0},
};

ROWS_TEST(every_pass_has_an_engine, rows)
{
    const struct row *r = &rows[_i];
    const asked q = {&devices[r->device], r->arch, r->batch, r->size, r->type,
                     r->deterministic,    r->tf32};
    summed = 0;
    ck_assert_int_eq(ask(&q, false, engine_and_again), LS_OK);
    ck_assert(cudnnGetVersion() / 100 != 919 || summed == r->summed);
}

/* ---- the table ------------------------------------------------------------------------------- */

static void print_conv(ls_backend *backend, const char *name, const ls_conv_shape *shape,
                       ls_dtype type, ls_conv *conv)
{
    (void)backend;
    (void)shape;
    (void)type;
    char text[2048];
    ls_conv_describe(conv, text, sizeof text);
    printf("%s: %s\n", name, text);
}

static int print_table(int count, char **word)
{
    asked q = {.device = find_device(word[0]),
               .arch = word[1],
               .batch = atoi(word[2]),
               .size = atoi(word[3])};
    bool known = false;
    for (ls_dtype type = LS_F32; type <= LS_BF16; type++) {
        if (strcmp(ls_dtype_label(type), word[4]) == 0) {
            q.type = type;
            known = true;
        }
    }
    for (int i = 5; i < count; i++) {
        q.deterministic = q.deterministic || strcmp(word[i], "deterministic") == 0;
        q.tf32 = q.tf32 || strcmp(word[i], "tf32") == 0;
    }
    if (!known || !q.device) {
        fprintf(stderr, "types: fp32 fp16 bf16\n");
        return LS_ERR_USAGE;
    }
    return (int)ask(&q, true, print_conv);
}

/* the libraries are large: loaded once */
int main(int count, char **word)
{
    if (count > 5) {
        return print_table(count - 1, word + 1);
    }
    cudnnBackendDescriptor_t device = NULL;
    if (cudnnGetVersion() / 100 != 919 && describe_device(&devices[0], &device) != LS_OK) {
        printf("not run: cuDNN %zu wants devices described otherwise than 9.19\n",
               cudnnGetVersion());
        return 0;
    }
    ls_conv_graph_drop(device);
    setenv("CK_FORK", "no", 1);
    return RUN_TESTS("cudnn engines", .timeout_s = 120);
}
