/* The reducer: where gradients lie, in which order buckets begin, and the arithmetic around the
 * sum. The engine is a stand-in for W ranks that all hold the same gradients: its sum is W times
 * the buffer, rounded once. */
#include "reference/ddp/ddp.h"
#include "suite/unit/run_suite.h"
#include "host_trainer.h"

enum { BEGUN_MAX = 256 };

/* The stand-in. */
struct ls_comm {
    int world;
    int begun_count;
    char begun[BEGUN_MAX][24];
    int64_t counts[BEGUN_MAX];
    ls_dtype dtype;
    bool scripted; /* two ranks: the other one's elements are all `other` */
    float other;
};

static ls_status fake_begin(ls_comm *comm, const ls_comm_op *op, ls_event *after,
                            ls_comm_handle *handle)
{
    *handle = (ls_comm_handle){.op = *op, .begun_ns = 1, .started_ns = 1, .finished_ns = 3};
    if (op->kind == LS_COMM_BROADCAST) {
        return LS_OK;
    }
    ck_assert_ptr_nonnull(after);
    ck_assert_int_lt(comm->begun_count, BEGUN_MAX);
    snprintf(comm->begun[comm->begun_count], sizeof comm->begun[0], "%s", op->label);
    comm->counts[comm->begun_count++] = op->count;
    comm->dtype = op->dtype;
    ls_tensor whole = {.data = op->buffer, .dtype = op->dtype, .count = op->count};
    for (int64_t i = 0; comm->scripted && i < whole.count; i++) {
        host_set(&whole, i, host_get(&whole, i) + comm->other);
    }
    return comm->scripted ? LS_OK : host_scale(NULL, NULL, whole, (float)comm->world);
}

static ls_status fake_wait(ls_comm *comm, ls_comm_handle *handle, ls_stream *stream)
{
    (void)comm, (void)handle, (void)stream;
    return LS_OK;
}

static const ls_comm_api FAKE = {
    .abi = LS_COMM_ABI, .name = "fake", .begin = fake_begin, .wait = fake_wait};

/* One run: options, network, memory, reducer. */
typedef struct run {
    ls_options options;
    ls_dialect_rules rules;
    ls_precision precision;
    ls_network network;
    ls_device device;
    ls_memory memory;
    ls_comm comm;
    ls_ddp *ddp;
} run;

static void run_open(run *r, int world)
{
    host_setup(&r->options, world, &r->rules, &r->precision, &r->network, &r->device, &r->memory);
    r->comm = (ls_comm){.world = world};
    ls_ddp_options ddp = {.rules = &r->rules,
                          .precision = &r->precision,
                          .memory = &r->memory,
                          .engine = &FAKE,
                          .comm = &r->comm,
                          .world = world,
                          .find_unused = r->options.find_unused};
    ck_assert_int_eq(ls_ddp_create(&ddp, &r->ddp), LS_OK);
    const ls_ddp_hook *hook = ls_ddp_builtin_hook(r->options.comm_hook);
    ck_assert_int_eq(hook != NULL ? ls_ddp_register_hook(r->ddp, hook) : LS_OK, LS_OK);
}

static void run_close(run *r)
{
    ls_ddp_free(r->ddp);
    ls_memory_free(&r->memory);
    ls_model_free(&r->network);
}

static run run_of(ls_opt_level level, ls_dialect dialect)
{
    run r = {0};
    ls_options_defaults(&r.options);
    r.options.opt_level = level;
    r.options.dialect = dialect;
    return r;
}

/* A value per parameter and element that every type holds exactly. */
static float value_of(int param, int64_t i)
{
    return (float)((param * 7 + i) % 31 - 15) / 8.0f;
}

static void fill(run *r, int param)
{
    const ls_tensor *grad = &r->memory.grad[param];
    for (int64_t i = 0; i < grad->count; i++) {
        host_set(grad, i, value_of(param, i));
    }
    ck_assert_int_eq(ls_ddp_stage(r->ddp, param, grad), LS_OK);
}

/* One backward in the given order (NULL: last parameter first). */
static void backward(run *r, const int *order)
{
    r->comm.begun_count = 0;
    ck_assert_int_eq(ls_ddp_begin(r->ddp, NULL), LS_OK);
    for (int k = 0; k < r->memory.param_count; k++) {
        int param = order == NULL ? r->memory.param_count - 1 - k : order[k];
        fill(r, param);
        ck_assert_int_eq(ls_ddp_ready(r->ddp, param), LS_OK);
    }
    ck_assert_int_eq(ls_ddp_finish(r->ddp), LS_OK);
}

static void check_gradients(const run *r, float factor)
{
    for (int p = 0; p < r->memory.param_count; p++) {
        for (int64_t i = 0; i < r->memory.grad[p].count; i++) {
            ck_assert_float_eq(host_get(&r->memory.grad[p], i), value_of(p, i) * factor);
        }
    }
}

static bool inside(const run *r, ls_memory_kind kind, const ls_tensor *tensor)
{
    const char *block = r->memory.block[kind], *data = tensor->data;
    return data >= block && data + ls_tensor_bytes(tensor) <= block + r->memory.bytes[kind];
}

/* Members lie back to back in the bucket's type; gradients are inside their arena and do not
 * overlap. */
static void check_places(const run *r)
{
    const ls_bucket_layout *layout = ls_ddp_layout(r->ddp);
    int seen = 0;
    for (int b = 0; b < layout->bucket_count; b++) {
        const ls_bucket *bucket = &layout->bucket[b];
        const char *next = r->memory.reduced[layout->member[bucket->first]].data;
        for (int k = 0; k < bucket->count; k++, seen++) {
            int p = layout->member[bucket->first + k];
            const ls_tensor *reduced = &r->memory.reduced[p];
            ck_assert_int_eq(reduced->dtype, bucket->dtype);
            ck_assert_ptr_eq(reduced->data, next);
            next += ls_tensor_bytes(reduced);
            ck_assert(inside(r, LS_MEMORY_GRAD, &r->memory.grad[p]));
            ck_assert(reduced->data == r->memory.grad[p].data ||
                      inside(r, LS_MEMORY_STAGING, reduced));
            ck_assert_uint_eq(
                (uintptr_t)r->memory.grad[p].data % ls_dtype_bytes(r->memory.grad[p].dtype), 0);
        }
    }
    ck_assert_int_eq(seen, r->memory.param_count);
    for (int a = 0; a < r->memory.param_count; a++) {
        for (int b = 0; b < a; b++) {
            const ls_tensor *x = &r->memory.grad[a], *y = &r->memory.grad[b];
            ck_assert((char *)x->data + ls_tensor_bytes(x) <= (char *)y->data ||
                      (char *)y->data + ls_tensor_bytes(y) <= (char *)x->data);
        }
        if (r->memory.grad[a].dtype == LS_F32) {
            ck_assert_ptr_eq(r->memory.unscaled[a].data, r->memory.grad[a].data);
        }
    }
}

TEST(places_of_every_level_and_layout)
{
    for (int level = LS_O0; level <= LS_O3; level++) {
        for (int way = 0; way < 3; way++) {
            for (int dialect = LS_DIALECT_APEX; dialect <= LS_DIALECT_TORCH; dialect++) {
                run r = run_of((ls_opt_level)level, (ls_dialect)dialect);
                r.options.allreduce_fp32 = way == 1;
                r.options.compress = way == 2 ? LS_F16 : LS_F32;
                r.options.bucket_cap_mb = 0.05;
                run_open(&r, 2);
                check_places(&r);
                backward(&r, NULL);
                bool changed = false;
                ck_assert_int_eq(ls_ddp_rebuild(r.ddp, &changed), LS_OK);
                ck_assert(changed);
                ck_assert_int_gt(ls_ddp_layout(r.ddp)->bucket_count, 2);
                check_places(&r);
                backward(&r, NULL);
                check_gradients(&r, 1.0f);
                ck_assert_int_eq(ls_ddp_rebuild(r.ddp, &changed), LS_OK);
                ck_assert(!changed);
                run_close(&r);
            }
        }
    }
}

TEST(buckets_begin_in_order_and_not_early)
{
    run r = run_of(LS_O0, LS_DIALECT_TORCH);
    r.options.bucket_cap_mb = 0.05;
    run_open(&r, 2);
    backward(&r, NULL);
    bool changed;
    ck_assert_int_eq(ls_ddp_rebuild(r.ddp, &changed), LS_OK);
    const ls_bucket_layout *layout = ls_ddp_layout(r.ddp);
    r.comm.begun_count = 0;
    ck_assert_int_eq(ls_ddp_begin(r.ddp, NULL), LS_OK);
    /* the opposite order: nothing may begin before the very last parameter has made bucket 0 full
     */
    for (int b = layout->bucket_count - 1; b >= 0; b--) {
        for (int k = 0; k < layout->bucket[b].count; k++) {
            ck_assert_int_eq(r.comm.begun_count, 0);
            int param = layout->member[layout->bucket[b].first + k];
            fill(&r, param);
            ck_assert_int_eq(ls_ddp_ready(r.ddp, param), LS_OK);
        }
    }
    ck_assert_int_eq(r.comm.begun_count, layout->bucket_count);
    ck_assert_int_eq(ls_ddp_finish(r.ddp), LS_OK);
    for (int b = 0; b < layout->bucket_count; b++) {
        char label[24];
        snprintf(label, sizeof label, "bucket %d", b);
        ck_assert_str_eq(r.comm.begun[b], label);
        ck_assert_int_eq(r.comm.counts[b], layout->bucket[b].elements);
    }
    /* in their own order each begins with its last member, while backward goes on */
    r.comm.begun_count = 0;
    ck_assert_int_eq(ls_ddp_begin(r.ddp, NULL), LS_OK);
    for (int b = 0; b < layout->bucket_count; b++) {
        for (int k = 0; k < layout->bucket[b].count; k++) {
            ck_assert_int_eq(r.comm.begun_count, b);
            int param = layout->member[layout->bucket[b].first + k];
            fill(&r, param);
            ck_assert_int_eq(ls_ddp_ready(r.ddp, param), LS_OK);
        }
    }
    ck_assert_int_eq(r.comm.begun_count, layout->bucket_count);
    ck_assert_int_eq(ls_ddp_finish(r.ddp), LS_OK);
    check_gradients(&r, 1.0f);
    run_close(&r);
}

TEST(delayed_begins_nothing_before_the_end)
{
    run r = run_of(LS_O2, LS_DIALECT_APEX);
    r.options.delay_allreduce = true;
    run_open(&r, 4);
    ck_assert_int_eq(ls_ddp_begin(r.ddp, NULL), LS_OK);
    for (int p = r.memory.param_count - 1; p >= 0; p--) {
        fill(&r, p);
        ck_assert_int_eq(ls_ddp_ready(r.ddp, p), LS_OK);
        ck_assert_int_eq(r.comm.begun_count, 0);
    }
    ck_assert_int_eq(ls_ddp_finish(r.ddp), LS_OK);
    ck_assert_int_eq(r.comm.begun_count, 2); /* one per type: half, and f32 of batch norm */
    check_gradients(&r, 1.0f);
    run_close(&r);
}

/* What comes out of 4 equal gradients, each exact in the type it is held in. */
TEST(averages)
{
    static const struct {
        ls_average average;
        double predivide;
        float factor;
    } rows[] = {
        {LS_AVERAGE_POST, 1.0, 1.0f}, {LS_AVERAGE_PRE, 1.0, 1.0f},  {LS_AVERAGE_NONE, 1.0, 4.0f},
        {LS_AVERAGE_POST, 2.0, 1.0f}, {LS_AVERAGE_NONE, 2.0, 2.0f},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        run r = run_of(LS_O0, LS_DIALECT_APEX);
        r.options.average = rows[i].average;
        r.options.predivide = rows[i].predivide;
        run_open(&r, 4);
        backward(&r, NULL);
        check_gradients(&r, rows[i].factor);
        run_close(&r);
    }
}

static float reduce_one(run *r, int param, float value)
{
    ck_assert_int_eq(ls_ddp_begin(r->ddp, NULL), LS_OK);
    for (int p = r->memory.param_count - 1; p >= 0; p--) {
        fill(r, p);
        if (p == param) {
            host_set(&r->memory.grad[p], 0, value);
            ck_assert_int_eq(ls_ddp_stage(r->ddp, p, &r->memory.grad[p]), LS_OK);
        }
        ck_assert_int_eq(ls_ddp_ready(r->ddp, p), LS_OK);
    }
    ck_assert_int_eq(ls_ddp_finish(r->ddp), LS_OK);
    return host_get(&r->memory.grad[param], 0);
}

/* Parameter 0 is a convolution's weight: half at O2. 40000 + 40000 is past fp16. */
TEST(the_type_of_the_sum_decides_about_overflow)
{
    run r = run_of(LS_O2, LS_DIALECT_APEX);
    run_open(&r, 2);
    ck_assert(isinf(reduce_one(&r, 0, 40000.0f)));
    run_close(&r);

    r = run_of(LS_O2, LS_DIALECT_APEX);
    r.options.predivide = 2.0;
    run_open(&r, 2);
    ck_assert_float_eq(reduce_one(&r, 0, 40000.0f), 40000.0f);
    /* and the smallest subnormal is lost by dividing first: 2^-25 ties to even */
    ck_assert_float_eq(reduce_one(&r, 0, 0x1p-24f), 0.0f);
    run_close(&r);

    r = run_of(LS_O2, LS_DIALECT_APEX);
    r.options.allreduce_fp32 = true;
    run_open(&r, 2);
    ck_assert_float_eq(reduce_one(&r, 0, 40000.0f), 40000.0f);
    ck_assert_int_eq(r.comm.dtype, LS_F32);
    ck_assert_int_eq(r.memory.grad[0].dtype, LS_F16);
    run_close(&r);

    /* fp16_compress_hook: cast first, then divide: 98256 is inf although its half would fit */
    r = run_of(LS_O0, LS_DIALECT_TORCH);
    r.options.compress = LS_F16;
    run_open(&r, 2);
    ck_assert(isinf(reduce_one(&r, 0, 98256.0f)));
    ck_assert_float_eq(reduce_one(&r, 0, 60000.0f), 60000.0f);
    ck_assert_int_eq(r.comm.dtype, LS_F16);
    ck_assert_int_eq(r.memory.grad[0].dtype, LS_F32);
    run_close(&r);
}

/* The examples of torch's hooks: 2 ranks with the same gradient. */
TEST(builtin_hooks_divide_by_themselves)
{
    static const struct {
        ls_comm_hook hook;
        float factor, taken, lost; /* a value that it reduces, and one that becomes infinite */
        int begun;                 /* sums of one step; -1: any */
    } rows[] = {
        {LS_COMM_HOOK_ALLREDUCE, 1.0f, 3.0e38f, 0, -1},
        {LS_COMM_HOOK_FP16_COMPRESS, 1.0f, 60000.0f, 98256.0f, -1},
        {LS_COMM_HOOK_BF16_COMPRESS, 1.0f, 98304.0f, 0, -1},
        {LS_COMM_HOOK_SUM, 2.0f, 1.0e38f, 3.0e38f, -1},
        {LS_COMM_HOOK_NOOP, 1.0f, 3.0e38f, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int dialect = LS_DIALECT_APEX; dialect <= LS_DIALECT_TORCH; dialect++) {
            run r = run_of(LS_O0, (ls_dialect)dialect);
            r.options.comm_hook = rows[i].hook;
            run_open(&r, 2);
            backward(&r, NULL);
            check_gradients(&r, rows[i].factor);
            ck_assert(rows[i].begun < 0 ? r.comm.begun_count > 0 : r.comm.begun_count == 0);
            ck_assert_float_eq(reduce_one(&r, 0, rows[i].taken), rows[i].taken * rows[i].factor);
            ck_assert(rows[i].lost <= 0 || isinf(reduce_one(&r, 0, rows[i].lost)));
            bool changed = false;
            ck_assert_int_eq(ls_ddp_rebuild(r.ddp, &changed), LS_OK);
            run_close(&r);
        }
    }
}

/* A hook of one's own, which notes the buckets that it gets. */
struct seen {
    const run *run;
    int begun, ended, members;
    bool last;
};

static ls_status note_begin(void *context, const ls_ddp_bucket *bucket)
{
    struct seen *seen = context;
    const ls_bucket_layout *layout = ls_ddp_layout(seen->run->ddp);
    ck_assert_int_eq(bucket->index, seen->begun++);
    ck_assert_int_eq(bucket->world, 4);
    ck_assert(bucket->is_last == (bucket->index == layout->bucket_count - 1));
    ck_assert_int_eq(bucket->buffer.count, layout->bucket[bucket->index].elements);
    const char *next = bucket->buffer.data;
    for (int k = 0; k < bucket->member_count; k++, seen->members++) {
        const ls_tensor *part = &bucket->gradient[bucket->member[k]];
        ck_assert_ptr_eq(part->data, next);
        ck_assert_float_eq(host_get(part, 0), value_of(bucket->member[k], 0));
        next += ls_tensor_bytes(part);
    }
    ck_assert_ptr_eq(next, (char *)bucket->buffer.data + ls_tensor_bytes(&bucket->buffer));
    ck_assert_int_eq(ls_ddp_hook_scale(bucket, 0.5f), LS_OK);
    return ls_ddp_hook_sum(bucket, 2.0f);
}

static ls_status note_end(void *context, const ls_ddp_bucket *bucket)
{
    struct seen *seen = context;
    ck_assert_int_eq(bucket->index, seen->ended++);
    seen->last = bucket->is_last;
    return ls_ddp_hook_scale(bucket, 0.25f);
}

TEST(a_registered_hook_gets_every_bucket)
{
    run r = run_of(LS_O2, LS_DIALECT_TORCH);
    r.options.bucket_cap_mb = 0.05;
    run_open(&r, 4);
    struct seen seen = {.run = &r};
    const ls_ddp_hook hook = {"noted", &seen, note_begin, note_end};
    ck_assert_int_eq(ls_ddp_register_hook(r.ddp, &hook), LS_OK);
    ck_assert_int_eq(ls_ddp_register_hook(r.ddp, &hook), LS_ERR_USAGE);
    for (int step = 0; step < 2; step++) {
        bool changed = false;
        seen.begun = seen.ended = seen.members = 0;
        backward(&r, NULL);
        check_gradients(&r, 1.0f); /* 0.5 * 4 * 2 * 0.25 */
        ck_assert_int_eq(seen.begun, ls_ddp_layout(r.ddp)->bucket_count);
        ck_assert_int_eq(seen.ended, seen.begun);
        ck_assert_int_eq(seen.members, r.memory.param_count);
        ck_assert(seen.last);
        ck_assert_int_eq(ls_ddp_rebuild(r.ddp, &changed), LS_OK);
    }
    run_close(&r);

    r = run_of(LS_O0, LS_DIALECT_TORCH);
    run_open(&r, 4);
    backward(&r, NULL);
    ck_assert_int_eq(ls_ddp_register_hook(r.ddp, &hook), LS_ERR_USAGE); /* too late */
    run_close(&r);
}

/* torch's example of uneven inputs: a gradient of 1 on rank 0 for 2 steps, of 2 on rank 1 for 3;
 * the average is over the initial world, or over the ranks that have a batch. */
TEST(uneven_inputs_are_averaged_by_either_divisor)
{
    static const struct {
        bool by_active;
        float want[3];
    } rows[] = {{false, {1.5f, 1.5f, 1.0f}}, {true, {1.5f, 1.5f, 2.0f}}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int dialect = LS_DIALECT_APEX; dialect <= LS_DIALECT_TORCH; dialect++) {
            for (int rank = 0; rank < 2; rank++) {
                run r = run_of(LS_O0, (ls_dialect)dialect);
                run_open(&r, 2);
                r.comm.scripted = true;
                for (int step = 0; step < 3; step++) {
                    int active = step < 2 ? 2 : 1;
                    /* the other rank's share, as it sends it */
                    float other = rank == 1 ? (step < 2 ? 1.0f : 0.0f) : 2.0f;
                    ls_dialect_average(&r.options, rows[i].by_active ? active : 2, &r.rules);
                    r.comm.other = other * (float)r.rules.pre_factor;
                    ck_assert_int_eq(ls_ddp_begin(r.ddp, NULL), LS_OK);
                    if (rank == 0 && step == 2) {
                        ck_assert_int_eq(ls_ddp_mirror(r.ddp), LS_OK);
                    }
                    for (int p = r.memory.param_count - 1; (rank == 1 || step < 2) && p >= 0; p--) {
                        for (int64_t k = 0; k < r.memory.grad[p].count; k++) {
                            host_set(&r.memory.grad[p], k, rank == 0 ? 1.0f : 2.0f);
                        }
                        ck_assert_int_eq(ls_ddp_stage(r.ddp, p, &r.memory.grad[p]), LS_OK);
                        ck_assert_int_eq(ls_ddp_ready(r.ddp, p), LS_OK);
                    }
                    ck_assert_int_eq(ls_ddp_finish(r.ddp), LS_OK);
                    for (int p = 0; p < r.memory.param_count; p++) {
                        int64_t last = r.memory.grad[p].count - 1;
                        ck_assert_float_eq(host_get(&r.memory.grad[p], 0), rows[i].want[step]);
                        ck_assert_float_eq(host_get(&r.memory.grad[p], last), rows[i].want[step]);
                    }
                }
                run_close(&r);
            }
        }
    }
}

TEST(a_layout_is_adopted_or_refused_whole)
{
    run a = run_of(LS_O2, LS_DIALECT_APEX), b = run_of(LS_O2, LS_DIALECT_APEX);
    bool changed;
    a.options.bucket_cap_mb = b.options.bucket_cap_mb = 0.02;
    run_open(&a, 2);
    run_open(&b, 2);
    backward(&a, NULL);
    ck_assert_int_eq(ls_ddp_rebuild(a.ddp, &changed), LS_OK);
    static int32_t vector[2048];
    ck_assert_int_le(ls_buckets_vector_length(a.memory.param_count), 2048);
    ls_buckets_to_vector(ls_ddp_layout(a.ddp), vector);
    uint64_t before = ls_buckets_digest(ls_ddp_layout(b.ddp));
    vector[2] += 1;
    ck_assert_int_eq(ls_ddp_adopt(b.ddp, vector, true, "a broken file"), LS_ERR_USAGE);
    ck_assert_uint_eq(ls_buckets_digest(ls_ddp_layout(b.ddp)), before);
    vector[2] -= 1;
    ck_assert_int_eq(ls_ddp_adopt(b.ddp, vector, true, "a file"), LS_OK);
    ck_assert_uint_eq(ls_buckets_digest(ls_ddp_layout(b.ddp)),
                      ls_buckets_digest(ls_ddp_layout(a.ddp)));
    check_places(&b);
    ck_assert(ls_ddp_settled(b.ddp));
    backward(&b, NULL);
    check_gradients(&b, 1.0f);
    run_close(&a);
    run_close(&b);
}

TEST(an_unused_parameter_is_an_error)
{
    for (int dialect = LS_DIALECT_APEX; dialect <= LS_DIALECT_TORCH; dialect++) {
        run r = run_of(LS_O0, (ls_dialect)dialect);
        run_open(&r, 2);
        ck_assert_int_eq(ls_ddp_begin(r.ddp, NULL), LS_OK);
        for (int p = r.memory.param_count - 1; p > 0; p--) {
            fill(&r, p);
            ck_assert_int_eq(ls_ddp_ready(r.ddp, p), LS_OK);
        }
        bool apex = dialect == LS_DIALECT_APEX;
        ck_assert_int_eq(ls_ddp_finish(r.ddp), apex ? LS_ERR_USAGE : LS_OK);
        if (!apex) {
            ck_assert_int_eq(ls_ddp_begin(r.ddp, NULL), LS_ERR_USAGE);
        }
        run_close(&r);
    }
}

/* --find-unused: the first, the last, the largest or another one takes part with zeros, whatever
 * lay there. */
TEST(an_unused_parameter_may_be_allowed)
{
    run r = run_of(LS_O2, LS_DIALECT_TORCH);
    r.options.find_unused = true;
    run_open(&r, 2);
    int last = r.memory.param_count - 1, largest = 0;
    for (int p = 0; p <= last; p++) {
        largest = r.memory.grad[p].count > r.memory.grad[largest].count ? p : largest;
    }
    ck_assert_uint_gt(ls_tensor_bytes(&r.memory.reduced[largest]), 2 * 4096); /* pieces */
    const int unused[] = {3, 0, last, largest};
    for (int k = 0; k < 4; k++) {
        ck_assert_int_eq(ls_ddp_begin(r.ddp, NULL), LS_OK);
        for (int p = last; p >= 0; p--) {
            fill(&r, p);
            if (p != unused[k]) {
                ck_assert_int_eq(ls_ddp_ready(r.ddp, p), LS_OK);
            }
        }
        ck_assert_int_eq(ls_ddp_finish(r.ddp), LS_OK);
        for (int p = 0; p <= last; p++) {
            for (int64_t i = 0; i < r.memory.grad[p].count; i++) {
                ck_assert_float_eq(host_get(&r.memory.grad[p], i),
                                   p == unused[k] ? 0.0f : value_of(p, i));
            }
        }
    }
    run_close(&r);
}

TEST_MAIN("ddp", .timeout_s = 60)
