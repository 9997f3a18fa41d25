/* Steps of plans on the CUDA backend with an emulated device: batches in slots, graphs, statistics
 * that ranks share, tensors that move, repeats, engines as text. */
#include <dlfcn.h>
#include <pthread.h>

#include "kernels/core/rng.h"
#include "suite/unit/run_suite.h"
#include "cuda_plan.h"

/* ---- batches in places ----------------------------------------------------------------------- */

static void other_batch(ls_kernel_subject *s, uint64_t seed)
{
    const ls_kernel_subject_options *o = &s->options;
    for (int64_t i = 0; i < (int64_t)o->batch * 3 * o->height * o->width; i++) {
        s->input[i] = ls_rng_normal(seed, 1, (uint64_t)i);
    }
    for (int i = 0; i < o->batch; i++) {
        s->target[i] = ls_rng_below(seed, 2, (uint64_t)i, (uint32_t)s->n->network.num_classes);
    }
}

static void load(ls_kernel_subject *s, int place, uint64_t seed)
{
    other_batch(s, seed);
    ck_assert_int_eq(s->api->batch_load(s->plan, place, s->input, s->target), LS_OK);
    ck_assert_int_eq(s->api->batch_loaded(s->plan, place), LS_OK);
    other_batch(s, seed + 100); /* the host's arrays may be reused */
}

static void step_loaded(ls_kernel_subject *s, int place)
{
    ck_assert_int_eq(s->api->plan_forward_loaded(s->plan, s->stream, place), LS_OK);
    ck_assert_int_eq(s->api->plan_backward(s->plan, s->stream, 1, NULL, NULL), LS_OK);
}

static void wait(ls_kernel_subject *s)
{
    ck_assert_int_eq(s->api->stream_wait(s->stream), LS_OK);
}

/* The step of one batch, through plan_forward. */
static void expect_batch(ls_kernel_subject *expected, uint64_t seed)
{
    other_batch(expected, seed);
    plan_step(expected);
}

static void two_subjects(ls_kernel_net *n, ls_kernel_subject *s, ls_kernel_subject *expected)
{
    build_basic(n);
    ls_kernel_subject_options o = cuda_level(2, LS_F16);
    cuda_make(s, n, sizes[0], o);
    cuda_make(expected, n, sizes[0], o);
    ck_assert_int_eq(s->api->plan_params_changed(s->plan, s->stream), LS_OK);
}

/* Late work exposes a missing wait. */
static void work_runs_late(int late)
{
    setenv("LS_EMULATED_LATE", late ? "1" : "0", 1);
}

/* It ends as the other subject does after one step on the batch of that number. */
static void expect_result(ls_kernel_subject *s, ls_kernel_subject *expected, uint64_t number)
{
    wait(s);
    expect_batch(expected, number);
    ck_assert(plan_same(s, expected));
}

static void expect_step(ls_kernel_subject *s, int place, ls_kernel_subject *expected,
                        uint64_t number)
{
    step_loaded(s, place);
    expect_result(s, expected, number);
}

LOOP_TEST(places_hold_batches, 2)
{
    work_runs_late(_i);
    ls_kernel_net n;
    ls_kernel_subject s, expected;
    two_subjects(&n, &s, &expected);
    load(&s, 0, 11);
    load(&s, 1, 12);
    step_loaded(&s, 1);
    load(&s, 1, 13); /* the step may still be running */
    expect_result(&s, &expected, 12);
    expect_step(&s, 0, &expected, 11);
    expect_step(&s, 1, &expected, 13);
    ls_kernel_subject_free(&s);
    ls_kernel_subject_free(&expected);
}

TEST(places_are_counted)
{
    ls_kernel_net n;
    ls_kernel_subject s, expected;
    const ls_image_format format = {.type = LS_F32};
    two_subjects(&n, &s, &expected);
    ck_assert_int_eq(s.api->batch_load(s.plan, 2, s.input, s.target), LS_ERR_USAGE);
    ck_assert_int_eq(s.api->plan_forward_loaded(s.plan, s.stream, -1), LS_ERR_USAGE);
    ck_assert_int_eq(s.api->batch_slots(s.plan, 0, &format), LS_ERR_USAGE);
    ck_assert_int_eq(s.api->batch_slots(s.plan, 3, &format), LS_OK);
    load(&s, 2, 14);
    expect_step(&s, 2, &expected, 14);
    s.target[1] = 7;
    ck_assert_int_eq(s.api->batch_load(s.plan, 0, s.input, s.target), LS_ERR_USAGE);
    plan_refuses_targets(&s);
    ls_kernel_subject_free(&s);
    ls_kernel_subject_free(&expected);
}

/* Slots for bytes: the device makes the host's floats of them. A change of the format makes new
 * slots, also of the same number. */
LOOP_TEST(places_hold_bytes, 2)
{
    work_runs_late(_i);
    ls_kernel_net n;
    ls_kernel_subject s, expected;
    ls_image_format format = {LS_U8, {0.5f, 0.25f, 0.125f}, {0.3f, 0.7f, 0.9f}};
    const ls_image_format floats = {.type = LS_F32};
    two_subjects(&n, &s, &expected);
    int pixels = s.options.height * s.options.width, count = s.options.batch * 3 * pixels;
    uint8_t *bytes = malloc((size_t)count);
    for (int round = 0; round < 2; round++) {
        format.mean[1] -= (float)round / 8;
        ck_assert_int_eq(s.api->batch_slots(s.plan, 2, &format), LS_OK);
        for (int i = 0; i < count; i++) {
            int c = i / pixels % 3;
            bytes[i] = (uint8_t)ls_rng_below(9, (uint64_t)round, (uint64_t)i, 256);
            expected.input[i] = ((float)bytes[i] / 255.0f - format.mean[c]) / format.deviation[c];
        }
        memcpy(s.target, expected.target, sizeof s.target);
        ck_assert_int_eq(s.api->batch_load(s.plan, 1, bytes, s.target), LS_OK);
        ck_assert_int_eq(s.api->batch_loaded(s.plan, 1), LS_OK);
        step_loaded(&s, 1);
        wait(&s);
        plan_step(&expected);
        ck_assert(plan_same(&s, &expected));
    }
    ck_assert_int_eq(s.api->plan_forward(s.plan, s.stream, s.input, s.target), LS_ERR_USAGE);
    ck_assert_int_eq(s.api->batch_slots(s.plan, 2, &floats), LS_OK);
    load(&s, 0, 15);
    expect_step(&s, 0, &expected, 15);
    free(bytes);
    ls_kernel_subject_free(&s);
    ls_kernel_subject_free(&expected);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static ls_graph *record_step(ls_kernel_subject *s, int place)
{
    ls_graph *graph = NULL;
    ck_assert_int_eq(s->api->graph_begin(s->stream), LS_OK);
    ck_assert_int_eq(s->api->plan_params_changed(s->plan, s->stream), LS_OK);
    step_loaded(s, place);
    ck_assert_int_eq(s->api->graph_end(s->stream, &graph), LS_OK);
    return graph;
}

/* One graph for each slot; every launch uses the batch loaded last. */
LOOP_TEST(graphs_repeat_steps, 2)
{
    work_runs_late(_i);
    ls_kernel_net n;
    ls_kernel_subject s, expected;
    two_subjects(&n, &s, &expected);
    ls_graph *graph[2] = {record_step(&s, 0), record_step(&s, 1)};
    load(&s, 0, 20);
    load(&s, 1, 21);
    for (int step = 0; step < 5; step++) {
        ck_assert_int_eq(s.api->batch_wait(s.plan, s.stream, step % 2), LS_OK);
        ck_assert_int_eq(s.api->graph_launch(graph[step % 2], s.stream), LS_OK);
        ck_assert_int_eq(s.api->batch_release(s.plan, s.stream, step % 2), LS_OK);
        load(&s, step % 2,
             (uint64_t)(22 + step)); /* while the previous step may still read its slot */
        wait(&s);
        expect_batch(&expected, (uint64_t)(20 + step));
        ck_assert_msg(plan_same(&s, &expected), "step %d", step);
    }
    s.api->graph_destroy(graph[0]);
    s.api->graph_destroy(graph[1]);
    ls_kernel_subject_free(&s);
    ls_kernel_subject_free(&expected);
}

/* ---- tensors that move ----------------------------------------------------------------------- */

/* Moves a tensor to an address `shift` bytes after an aligned one, as in a bucket, and poisons the
 * old memory. */
static void move_tensor(ls_kernel_subject *s, ls_tensor *tensor, size_t shift)
{
    int64_t bytes = (int64_t)ls_tensor_bytes(tensor);
    void *host = malloc((size_t)bytes), *moved = NULL;
    ck_assert_ptr_nonnull(host);
    ck_assert_int_eq(s->api->copy_out(s->backend, s->stream, host, tensor->data, bytes), LS_OK);
    wait(s);
    ck_assert_int_eq(s->api->memory_alloc(s->backend, bytes + (int64_t)shift, "moved", &moved),
                     LS_OK);
    ck_assert_int_eq(s->api->copy_in(s->backend, s->stream, (char *)moved + shift, host, bytes),
                     LS_OK);
    wait(s);
    memset(host, 0x7f, (size_t)bytes);
    ck_assert_int_eq(s->api->copy_in(s->backend, s->stream, tensor->data, host, bytes), LS_OK);
    wait(s);
    s->api->memory_free(s->backend, tensor->data);
    tensor->data = (char *)moved + shift;
    free(host);
}

typedef enum moving { BY_ELEMENT, BY_LINE } moving;

static size_t shift_of(const ls_tensor *tensor, moving how)
{
    return how == BY_ELEMENT ? ls_dtype_bytes(tensor->dtype) : 64;
}

static void move_all(ls_kernel_subject *s, moving how)
{
    for (int p = 0; p < s->n->network.param_count; p++) {
        move_tensor(s, &s->param[p], shift_of(&s->param[p], how));
        move_tensor(s, &s->grad[p], shift_of(&s->grad[p], how));
    }
    ls_plan_binding binding = {s->param, s->grad, s->buffer, s->state, NULL};
    ck_assert_int_eq(s->api->plan_bind(s->plan, &binding), LS_OK);
}

static void free_moved(ls_kernel_subject *s, moving how)
{
    for (int p = 0; p < s->n->network.param_count; p++) {
        s->param[p].data = (char *)s->param[p].data - shift_of(&s->param[p], how);
        s->grad[p].data = (char *)s->grad[p].data - shift_of(&s->grad[p], how);
    }
    ls_kernel_subject_free(s);
}

/* Levels O0 to O3; 1x1 kernels are used in place as long as they are aligned. */
LOOP_TEST(tensors_may_move, 8)
{
    moving how = _i < 4 ? BY_ELEMENT : BY_LINE;
    ls_kernel_net n;
    build_bottleneck(&n);
    ls_kernel_subject_options o = cuda_level(_i % 4, LS_BF16);
    ls_kernel_subject still, moved;
    cuda_make(&still, &n, sizes[1], o);
    cuda_make(&moved, &n, sizes[1], o);
    plan_step(&still);
    move_all(&moved, how);
    plan_step(&moved);
    ck_assert(plan_same(&still, &moved));
    ls_kernel_subject_free(&still);
    free_moved(&moved, how);
}

/* ---- repeats --------------------------------------------------------------------------------- */

/* The bits do not depend on the order of blocks, and a second step overwrites, never adds. */
LOOP_TEST(repeats_bitwise, 2 * (sizeof networks / sizeof *networks))
{
    ls_kernel_net n;
    networks[_i / 2](&n);
    ls_kernel_subject_options o = cuda_level(_i % 2 == 0 ? 0 : 2, LS_F16);
    ls_kernel_subject a, b;
    cuda_make(&a, &n, sizes[_i / 2], o);
    cuda_make(&b, &n, sizes[_i / 2], o);
    plan_step(&a);
    setenv("LS_EMULATED_ORDER", "backward", 1);
    plan_step(&b);
    ck_assert(plan_same(&a, &b));
    plan_step(&b);
    ck_assert(plan_same(&a, &b));
    ls_kernel_subject_free(&a);
    ls_kernel_subject_free(&b);
}

TEST(ready_failure_ends_backward)
{
    ls_kernel_net n;
    build_basic(&n);
    ls_kernel_subject s;
    cuda_make(&s, &n, sizes[0], cuda_level(0, LS_F16));
    plan_ends_where_refused(&s);
    wait(&s);
    ls_kernel_subject_free(&s);
}

/* ---- gradients of a group ----------------------------------------------------------------------
 */

enum { GROUPS = 3 };

static int64_t launches(const char *kernel)
{
    static int64_t (*count)(const char *name);
    if (count == NULL) {
        void *runtime = dlopen("libls_emulated.so", RTLD_NOW | RTLD_NOLOAD); /* the backend's */
        ck_assert_msg(runtime != NULL, "%s", dlerror());
        void *found = dlsym(runtime, "emulate_launches");
        ck_assert_ptr_nonnull(found);
        memcpy(&count, &found, sizeof count);
    }
    return count(kernel);
}

/* What a reduction of each gradient that begins with its report would read. */
typedef struct reading {
    ls_kernel_subject *s;
    const int *group;
    uint8_t *host[LS_KERNEL_NET_PARAMS];
    int order[LS_KERNEL_NET_PARAMS], count;
    int64_t launched[GROUPS]; /* kernels before the last report of a group */
} reading;

static ls_status read_ready(void *context, int param)
{
    reading *r = context;
    const ls_tensor *grad = &r->s->grad[param];
    r->order[r->count++] = param;
    if (r->group != NULL) {
        r->launched[r->group[param]] = launches(NULL);
    }
    return r->s->api->copy_out(r->s->backend, r->s->stream, r->host[param], grad->data,
                               (int64_t)ls_tensor_bytes(grad));
}

/* A step whose gradients are read as they are reported. Returns the launches of conversions. */
static int64_t step_reading(ls_kernel_subject *s, reading *r, const int *group)
{
    *r = (reading){.s = s, .group = group};
    for (int p = 0; p < s->n->network.param_count; p++) {
        r->host[p] = calloc(1, ls_tensor_bytes(&s->grad[p]) + 1);
    }
    ls_plan_binding binding = {s->param, s->grad, s->buffer, s->state, group};
    ck_assert_int_eq(s->api->plan_bind(s->plan, &binding), LS_OK);
    ck_assert_int_eq(s->api->plan_params_changed(s->plan, s->stream), LS_OK);
    int64_t before = launches("unpack_kernel");
    ck_assert_int_eq(s->api->plan_forward(s->plan, s->stream, s->input, s->target), LS_OK);
    ck_assert_int_eq(s->api->plan_backward(s->plan, s->stream, 1, read_ready, r), LS_OK);
    wait(s);
    return launches("unpack_kernel") - before;
}

/* Weights whose gradient has another order or, at O1, another type than products write. */
static int converted(const ls_kernel_net *n, int opt_level, int param)
{
    const ls_param *p = &n->param[param];
    bool product = p->role == LS_PARAM_CONV_WEIGHT || p->role == LS_PARAM_LINEAR_WEIGHT;
    return product && (opt_level == 1 || (p->shape.rank == 4 && p->shape.dim[3] > 1));
}

/* At every level the gradients of a group are converted by one launch, in front of the report of
 * the first of them; order and bits are those of gradients that are converted one by one. Groups
 * that are complete do not wait for backward's end. */
LOOP_TEST(a_group_is_converted_at_once, 6)
{
    ls_kernel_net n;
    build_bottleneck(&n);
    ls_kernel_subject s;
    work_runs_late(_i % 2);
    cuda_make(&s, &n, sizes[1], cuda_level(_i / 2, LS_F16));
    reading one, all;
    int count = n.network.param_count, group[LS_KERNEL_NET_PARAMS];
    int64_t single = step_reading(&s, &one, NULL);
    ck_assert_int_eq(one.count, count);
    int conversions = 0, groups = 0, last = -1;
    for (int i = 0; i < count; i++) {
        int param = one.order[i], is_converted = converted(&n, _i / 2, param);
        group[param] = i * GROUPS / count;
        conversions += is_converted;
        groups += is_converted && group[param] != last;
        last = is_converted ? group[param] : last;
    }
    int64_t grouped = step_reading(&s, &all, group);
    ck_assert_int_eq(single, conversions);
    ck_assert_int_eq(grouped, groups);
    ck_assert_int_lt(groups, conversions);
    ck_assert_int_eq(all.count, count);
    ck_assert_mem_eq(all.order, one.order, (size_t)count * sizeof one.order[0]);
    ck_assert_int_lt(all.launched[0], all.launched[1]);
    ck_assert_int_lt(all.launched[1], all.launched[2]);
    for (int p = 0; p < count; p++) {
        ck_assert_mem_eq(all.host[p], one.host[p], ls_tensor_bytes(&s.grad[p]));
        free(one.host[p]);
        free(all.host[p]);
    }
    ls_kernel_subject_free(&s);
}

/* ---- engines as text ------------------------------------------------------------------------- */

TEST(choices_are_taken_over)
{
    ls_kernel_net n;
    ls_kernel_subject a, b;
    two_subjects(&n, &a, &b);
    const char *text = NULL;
    ck_assert_int_eq(a.api->engines_export(a.plan, &text), LS_OK);
    int lines = 0, convolutions = 0;
    for (const char *at = text; *at != '\0'; at++) {
        lines += *at == '\n';
    }
    for (int i = 0; i < n.network.layer_count; i++) {
        convolutions += n.layer[i].kind == LS_LAYER_CONV;
    }
    ck_assert_int_eq(lines, convolutions);
    ck_assert_int_eq(b.api->engines_import(b.plan, text), LS_OK);
    plan_step(&a);
    plan_step(&b);
    ck_assert(plan_same(&a, &b));
    char longer[1 << 15];
    snprintf(longer, sizeof longer, "%sconv9: more\n", text);
    ck_assert_int_eq(b.api->engines_import(b.plan, longer), LS_ERR_USAGE);
    ck_assert_int_eq(b.api->engines_import(b.plan, "conv9: nonsense\n"), LS_ERR_USAGE);
    ck_assert_int_eq(b.api->engines_import(b.plan, ""), LS_ERR_USAGE);
    ls_kernel_subject_free(&a);
    ls_kernel_subject_free(&b);
}

/* ---- SyncBN: two ranks, each a plan with its part of the batch, on threads of their own ------ */

enum { RANKS = 2, MESSAGE_MAX = 1024 };

typedef struct meeting {
    pthread_barrier_t barrier;
    float mine[RANKS][MESSAGE_MAX];
    int gathers[RANKS];
    int64_t floats[RANKS];
} meeting;

typedef struct member {
    meeting *place;
    int rank;
    float factor; /* its part of the mean over all samples */
    ls_kernel_subject s;
} member;

static ls_status gather(void *context, ls_stream *stream, const float *mine, float *all,
                        int64_t count)
{
    member *m = context;
    size_t bytes = (size_t)count * sizeof(float);
    LS_ASSERT(count <= MESSAGE_MAX);
    LS_TRY(m->s.api->copy_out(m->s.backend, stream, m->place->mine[m->rank], mine, (int64_t)bytes));
    LS_TRY(m->s.api->stream_wait(stream));
    pthread_barrier_wait(&m->place->barrier);
    for (int r = 0; r < RANKS; r++) {
        LS_TRY(m->s.api->copy_in(m->s.backend, stream, all + r * count, m->place->mine[r],
                                 (int64_t)bytes));
    }
    LS_TRY(m->s.api->stream_wait(stream));
    m->place->gathers[m->rank]++;
    m->place->floats[m->rank] += count;
    pthread_barrier_wait(&m->place->barrier);
    return LS_OK;
}

static ls_status step_part(member *m)
{
    LS_TRY(ls_kernel_subject_forward(&m->s));
    LS_TRY(m->s.api->plan_backward(m->s.plan, m->s.stream, m->factor, NULL, NULL));
    return m->s.api->stream_wait(m->s.stream);
}

static void *run_member(void *context)
{
    member *m = context;
    return step_part(m) == LS_OK ? NULL : m;
}

static void build_shared(ls_kernel_net *n)
{
    ls_kernel_net_start(n);
    int x = ls_kernel_net_relu(n, ls_kernel_net_norm(n, ls_kernel_net_conv(n, 0, 16, 3, 1, 1)));
    x = ls_kernel_net_block(n, x, 32, 2, 0);
    ls_kernel_net_finish(n, x, 5);
}

static void run_members(member *m)
{
    pthread_t thread[RANKS];
    for (int r = 0; r < RANKS; r++) {
        ck_assert_int_eq(pthread_create(&thread[r], NULL, run_member, &m[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) {
        void *failed;
        pthread_join(thread[r], &failed);
        ck_assert_ptr_null(failed);
    }
}

static double *read_sum(const member *m, int p)
{
    double *sum = ls_kernel_subject_read(&m[0].s, &m[0].s.grad[p]);
    double *second = ls_kernel_subject_read(&m[1].s, &m[1].s.grad[p]);
    ck_assert(sum != NULL && second != NULL);
    for (int64_t i = 0; i < m[0].s.grad[p].count; i++) {
        sum[i] += second[i];
    }
    free(second);
    return sum;
}

/* Parts of 3 and 3, and of 2 and 4 images, against one plan with all 6. */
LOOP_TEST(sync_norm_is_one_batch, 2)
{
    int part[RANKS] = {_i == 0 ? 3 : 2, _i == 0 ? 3 : 4};
    ls_kernel_net n;
    build_shared(&n);
    ls_kernel_subject whole;
    ls_kernel_subject_options o = cuda_level(0, LS_F16);
    plan_make(&whole, &n, 6, 9, 9, o);
    plan_step(&whole);
    static meeting place;
    memset(&place, 0, sizeof place); /* the test runs more than once in one process */
    pthread_barrier_init(&place.barrier, NULL, RANKS);
    member m[RANKS];
    ls_norm_sync sync[RANKS];
    for (int r = 0, first = 0; r < RANKS; first += part[r], r++) {
        m[r] = (member){.place = &place, .rank = r, .factor = (float)part[r] / 6};
        sync[r] = (ls_norm_sync){RANKS, &m[r], gather};
        o.norm_sync = &sync[r];
        plan_make(&m[r].s, &n, part[r], 9, 9, o);
        memcpy(m[r].s.input, whole.input + first * 243, (size_t)part[r] * 243 * sizeof(float));
        memcpy(m[r].s.target, whole.target + first, (size_t)part[r] * sizeof(int64_t));
    }
    run_members(m);
    /* four norms, two of them with one message of both sides; forward and backward */
    int64_t floats = 0;
    for (int i = 0; i < n.network.layer_count; i++) {
        floats += n.layer[i].kind == LS_LAYER_BATCH_NORM ? 2 * (3 * n.layer[i].channels + 1) : 0;
    }
    for (int r = 0; r < RANKS; r++) {
        ck_assert_int_eq(place.gathers[r], 6);
        ck_assert_int_eq(place.floats[r], floats);
    }
    for (int b = 0; b < n.network.buffer_count; b++) {
        if (n.buffer[b].role == LS_BUFFER_BATCHES_TRACKED) {
            continue;
        }
        ck_assert(plan_same_tensor(&m[0].s, &m[0].s.buffer[b], &m[1].s, &m[1].s.buffer[b]));
        double *one = ls_kernel_subject_read(&m[0].s, &m[0].s.buffer[b]);
        double *all = ls_kernel_subject_read(&whole, &whole.buffer[b]);
        for (int64_t i = 0; i < whole.buffer[b].count; i++) {
            ck_assert(fabs(one[i] - all[i]) <= 160 * F32_UNIT * (fabs(all[i]) + 1));
        }
        free(one);
        free(all);
    }
    double difference = 0, size = 0;
    for (int p = 0; p < n.network.param_count; p++) {
        double *sum = read_sum(m, p), *all = ls_kernel_subject_read(&whole, &whole.grad[p]);
        distance d = between(sum, all, whole.grad[p].count);
        difference += d.difference * d.difference;
        size += d.size * d.size;
        free(sum);
        free(all);
    }
    /* both are f32 through eight layers with their own order of sums; local statistics give 0.1 and
     * more */
    ck_assert_msg(sqrt(difference / size) <= 160 * F32_UNIT, "%g", sqrt(difference / size));
    for (int r = 0; r < RANKS; r++) {
        ls_kernel_subject_free(&m[r].s);
    }
    ls_kernel_subject_free(&whole);
    pthread_barrier_destroy(&place.barrier);
}

TEST_MAIN("cuda steps", .timeout_s = 120, .begin = use_emulation)
