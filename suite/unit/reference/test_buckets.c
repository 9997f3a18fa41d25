/* Bucket layouts: the rows that torch 1.13's bucket assignment printed and Apex's rule
 * (apex/parallel/distributed.py), both dialects' layouts of every iteration, and their form as
 * numbers. */
#include "kernels/core/digest.h"
#include "reference/ddp/buckets.h"
#include "reference/model/model.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"

static const int64_t mib = 1 << 20;

/* "[0,2] [1]" */
static void describe(const ls_bucket_layout *layout, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int b = 0; b < layout->bucket_count; b++) {
        const ls_bucket *bucket = &layout->bucket[b];
        for (int i = 0; i < bucket->count; i++) {
            used += (size_t)snprintf(text + used, bytes - used, "%s%d",
                                     i > 0 ? "," : (b > 0 ? " [" : "["),
                                     layout->member[bucket->first + i]);
        }
        used += (size_t)snprintf(text + used, bytes - used, "]");
    }
}

#define F(elements)      \
    {                    \
        LS_F32, elements \
    }
/* apex/parallel/distributed.py: sizes {10,10,1,1}, threshold 10: arrival 0,1,2,3 gives 3 buckets,
 * 2,0,3,1 gives 2. */
TEST(apex_elements)
{
    static const ls_bucket_item item[] = {{LS_F16, 10}, F(10), {LS_F16, 1}, F(1)};
    static const ls_bucket_item same[] = {F(10), F(10), F(1), F(1)};
    static const int first[] = {0, 1, 2, 3}, second[] = {2, 0, 3, 1};
    static const int64_t limit = 10;
    ls_bucket_layout layout;
    char text[128];
    ls_buckets_assign(same, 4, first, LS_BUCKET_ELEMENTS, &limit, 1, &layout);
    describe(&layout, text, sizeof text);
    ck_assert_str_eq(text, "[0] [1] [2,3]");
    ls_buckets_free(&layout);
    ls_buckets_assign(same, 4, second, LS_BUCKET_ELEMENTS, &limit, 1, &layout);
    describe(&layout, text, sizeof text);
    ck_assert_str_eq(text, "[2,0] [3,1]");
    ls_buckets_free(&layout);
    /* the open buckets are closed half first, then float */
    static const int64_t large = 100;
    static const int float_first[] = {1, 0, 3, 2};
    ls_buckets_assign(item, 4, float_first, LS_BUCKET_ELEMENTS, &large, 1, &layout);
    describe(&layout, text, sizeof text);
    ck_assert_str_eq(text, "[0,2] [1,3]");
    ls_buckets_free(&layout);
}

typedef struct setting {
    ls_options options;
    ls_dialect_rules rules;
    ls_precision precision;
    ls_network network;
    ls_bucket_item *item;
    int *order;
} setting;

static void set_up(setting *set, const char *arch, ls_options options)
{
    set->options = options;
    ls_dialect_resolve(&options, 2, &set->rules);
    ls_precision_resolve(&options, &set->rules, &set->precision);
    ck_assert_int_eq(ls_model_build(arch, 1000, 224, &set->network), LS_OK);
    size_t count = (size_t)set->network.param_count;
    set->item = calloc(count, sizeof *set->item);
    set->order = calloc(count, sizeof *set->order);
    ls_buckets_items(&set->network, &set->precision, set->item);
    ls_model_backward_order(&set->network, set->order);
}

static void tear_down(setting *set)
{
    free(set->item);
    free(set->order);
    ls_model_free(&set->network);
}

static ls_options options_at(ls_opt_level level, ls_dialect dialect)
{
    ls_options options;
    ls_options_defaults(&options);
    options.opt_level = level;
    options.dialect = dialect;
    return options;
}

static void check_bytes(const ls_bucket_layout *layout, int count, const int64_t *bytes)
{
    ck_assert_int_eq(layout->bucket_count, count);
    for (int b = 0; b < count; b++) {
        ck_assert_int_eq(layout->bucket[b].bytes, bytes[b]);
    }
}

TEST(torch_golden_sizes)
{
    setting set;
    ls_bucket_layout layout;
    set_up(&set, "resnet18", options_at(LS_O0, LS_DIALECT_TORCH));
    ls_buckets_first(&set.rules, &set.network, set.item, &layout);
    check_bytes(&layout, 1, (int64_t[]){46758048});
    ck_assert(!layout.delayed);
    ck_assert_int_eq(layout.member[0], 61); /* backward order */
    ls_buckets_free(&layout);
    ls_buckets_rebuild(&set.rules, &set.network, set.item, set.order, &layout);
    check_bytes(&layout, 3, (int64_t[]){2052000, 28852224, 15853824});
    static const int members[] = {61, 60, 58, 59, 57, 55, 56, 54, 52, 53, 51, 49, 50, 48};
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        ck_assert_int_eq(layout.member[i], members[i]);
    }
    ck_assert_int_eq(layout.bucket[1].count, 12);
    ls_buckets_free(&layout);
    tear_down(&set);

    set_up(&set, "resnet50", options_at(LS_O0, LS_DIALECT_TORCH));
    ls_buckets_rebuild(&set.rules, &set.network, set.item, set.order, &layout);
    check_bytes(&layout, 5, (int64_t[]){8196000, 31502336, 26255360, 26550272, 9724160});
    ls_buckets_free(&layout);
    tear_down(&set);

    ls_options small = options_at(LS_O0, LS_DIALECT_TORCH);
    small.bucket_cap_mb = 1;
    set_up(&set, "resnet50", small);
    ls_buckets_rebuild(&set.rules, &set.network, set.item, set.order, &layout);
    ck_assert_int_eq(layout.bucket_count, 35);
    ck_assert_int_eq(layout.bucket[0].bytes, 8196000);
    ck_assert_int_eq(layout.bucket[34].bytes, 552192);
    ls_buckets_free(&layout);
    tear_down(&set);
}

/* Apex: iteration 1 is one reduction per type in parameter order after backward; later 10,000,000
 * elements per type. At O2 norms are f32 and the rest is half. */
TEST(apex_layouts)
{
    setting set;
    ls_bucket_layout layout;
    set_up(&set, "resnet50", options_at(LS_O2, LS_DIALECT_APEX));
    ls_buckets_first(&set.rules, &set.network, set.item, &layout);
    ck_assert(layout.delayed);
    check_bytes(&layout, 2, (int64_t[]){2 * (25557032 - 53120), 4 * 53120});
    ck_assert_int_eq(layout.bucket[0].dtype, LS_F16);
    ck_assert_int_eq(layout.member[0], 0);
    ck_assert_int_eq(layout.member[layout.bucket[1].first], 1);
    ls_buckets_free(&layout);
    ls_buckets_rebuild(&set.rules, &set.network, set.item, set.order, &layout);
    ck_assert(!layout.delayed);
    ck_assert_int_eq(layout.bucket_count,
                     4); /* 25.5 million halves: two that are full, one left; norms */
    for (int b = 0; b < 2; b++) {
        const ls_bucket *bucket = &layout.bucket[b];
        int last = layout.member[bucket->first + bucket->count - 1];
        ck_assert_int_ge(bucket->elements, 10000000);
        ck_assert_int_lt(bucket->elements - set.item[last].elements, 10000000);
    }
    ck_assert_int_eq(layout.bucket[2].dtype, LS_F16);
    ck_assert_int_eq(layout.bucket[3].dtype, LS_F32);
    ls_buckets_free(&layout);
    tear_down(&set);
}

/* A cap in MB is bytes as reduced, also in dialect apex, and has no small first bucket there. */
TEST(apex_with_a_cap)
{
    setting set;
    ls_bucket_layout layout;
    ls_options options = options_at(LS_O2, LS_DIALECT_APEX);
    options.bucket_cap_mb = 5;
    set_up(&set, "resnet18", options);
    ls_buckets_rebuild(&set.rules, &set.network, set.item, set.order, &layout);
    for (int b = 0; b + 2 < layout.bucket_count; b++) { /* the last of each type are left-overs */
        const ls_bucket *bucket = &layout.bucket[b];
        int last = layout.member[bucket->first + bucket->count - 1];
        ck_assert_int_ge(bucket->bytes, 5 * mib);
        ck_assert_int_lt(bucket->bytes - 2 * set.item[last].elements, 5 * mib);
    }
    ls_buckets_free(&layout);
    /* in f32 the same cap holds half as many elements */
    options.allreduce_fp32 = true;
    tear_down(&set);
    set_up(&set, "resnet18", options);
    ls_buckets_rebuild(&set.rules, &set.network, set.item, set.order, &layout);
    ck_assert_int_eq(layout.bucket[0].dtype, LS_F32);
    ck_assert_int_lt(layout.bucket[0].bytes - 4 * 512 * 512 * 9, 5 * mib);
    ls_buckets_free(&layout);
    tear_down(&set);
}

TEST(delayed_and_deterministic)
{
    setting set;
    ls_bucket_layout layout, again;
    ls_options options = options_at(LS_O2, LS_DIALECT_TORCH);
    options.delay_allreduce = true;
    set_up(&set, "resnet18", options);
    ck_assert(!set.rules.rebuild);
    ls_buckets_first(&set.rules, &set.network, set.item, &layout);
    ck_assert(layout.delayed);
    check_bytes(&layout, 2, (int64_t[]){2 * (11689512 - 9600), 4 * 9600});
    ls_buckets_free(&layout);
    tear_down(&set);

    options = options_at(LS_O0, LS_DIALECT_TORCH);
    options.deterministic = true;
    set_up(&set, "resnet18", options);
    ck_assert(!set.rules.rebuild);
    ls_buckets_first(&set.rules, &set.network, set.item, &layout);
    check_bytes(&layout, 3, (int64_t[]){2052000, 28852224, 15853824});
    ck_assert(!layout.delayed);
    ls_buckets_first(&set.rules, &set.network, set.item, &again);
    ck_assert(ls_buckets_digest(&layout) == ls_buckets_digest(&again));
    ls_buckets_free(&layout);
    ls_buckets_free(&again);
    tear_down(&set);
}

/* Every number of a small layout with all types, its vector and its digest; and each way in which a
 * vector may be broken, at its bounds, in one line. */
TEST(numbers_of_a_small_layout)
{
    enum { COUNT = 6 };
    static const ls_bucket_item item[COUNT] = {{LS_F16, 3}, {LS_F32, 4},  {LS_F16, 5},
                                               {LS_F32, 6}, {LS_BF16, 7}, {LS_F64, 8}};
    static const ls_bucket want[] = {{LS_F16, 0, 2, 8, 16},
                                     {LS_BF16, 2, 1, 7, 14},
                                     {LS_F32, 3, 2, 10, 40},
                                     {LS_F64, 5, 1, 8, 64}};
    static const int member[COUNT] = {0, 2, 4, 1, 3, 5}, bucket_of[COUNT] = {0, 2, 0, 2, 1, 3};
    static const int64_t offset[COUNT] = {0, 0, 3, 4, 0, 0}, none = 0;
    static const int order[COUNT] = {0, 1, 2, 3, 4, 5};
    ls_bucket_layout layout;
    ls_buckets_assign(item, COUNT, order, LS_BUCKET_BYTES, &none, 1, &layout);
    layout.delayed = true;
    for (int round = 0; round < 2; round++) { /* as assigned, and from its vector */
        ck_assert_int_eq(layout.bucket_count, 4);
        ck_assert_int_eq(layout.member_count, COUNT);
        ck_assert(layout.delayed);
        for (int b = 0; b < 4; b++) {
            const ls_bucket *have = &layout.bucket[b];
            ck_assert(have->dtype == want[b].dtype && have->first == want[b].first &&
                      have->count == want[b].count && have->elements == want[b].elements &&
                      have->bytes == want[b].bytes);
        }
        ck_assert_mem_eq(layout.member, member, sizeof member);
        ck_assert_mem_eq(layout.bucket_of, bucket_of, sizeof bucket_of);
        ck_assert_mem_eq(layout.offset, offset, sizeof offset);
        static const int32_t numbers[] = {1, 4, 2, 1, 2, 1, 0, 0, 0, 2, 4, 1, 3, 5};
        int32_t vector[14];
        ck_assert_int_eq(ls_buckets_vector_length(COUNT), 14);
        ls_buckets_to_vector(&layout, vector);
        ck_assert_mem_eq(vector, numbers, sizeof numbers);
        int32_t hashed[2 + 2 * 4 + COUNT] = {1, 4};
        for (int b = 0; b < 4; b++) {
            hashed[2 + 2 * b] = (int32_t)want[b].dtype;
            hashed[3 + 2 * b] = want[b].count;
        }
        memcpy(hashed + 10, member, sizeof member);
        ck_assert_uint_eq(ls_buckets_digest(&layout),
                          ls_digest_update(LS_DIGEST_START, hashed, sizeof hashed));
        ls_buckets_free(&layout);
        ck_assert(layout.bucket == NULL && layout.member_count == 0 && !layout.delayed);
        ck_assert_int_eq(ls_buckets_from_vector(vector, item, COUNT, "a test", &layout), LS_OK);
    }
    ls_buckets_free(&layout);
    static const struct {
        int32_t vector[14];
        const char *line;
    } broken[] = {
        {{2, 5, 1, 2, 1, 1, 1, 0, 3, 0, 2, 4, 1, 5}, "impossible number of buckets (5)"},
        {{-1, 5, 1, 2, 1, 1, 1, 0, 3, 0, 2, 4, 1, 5}, "impossible number of buckets (5)"},
        {{1, -1}, "impossible number of buckets (-1)"},
        {{1, 7}, "impossible number of buckets (7)"},
        {{0, 0}, "parameters without a bucket (6)"},
        {{0, 1, 0}, "impossible number of parameters in a bucket (0)"},
        {{0, 1, 7}, "impossible number of parameters in a bucket (7)"},
        {{0, 2, 5, 2, 0, 0, 0, 0, 0, 2, 3, 4, 5, 1}, "parameters of two types in one bucket (0)"},
        {{0, 2, 1, 2, 0, 0, 0, 0, 0, 2, 1, 4, 5, 3}, "parameters of two types in one bucket (1)"},
        {{0, 1, 1, 0, 0, 0, 0, 0, -1}, "parameter unknown or there twice (-1)"},
        {{0, 1, 1, 0, 0, 0, 0, 0, 6}, "parameter unknown or there twice (6)"},
        {{0, 2, 1, 1, 0, 0, 0, 0, 5, 5}, "parameter unknown or there twice (5)"},
        {{0, 2, 1, 6, 0, 0, 0, 0, 5, 1}, "impossible number of parameters in a bucket (6)"},
        {{0, 4, 1, 2, 1, 1, 0, 0, 3, 0, 2, 4, 1, 5}, "parameters without a bucket (1)"},
    };
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        char line[128];
        snprintf(line, sizeof line, "error: bucket layout from a test: %s\n", broken[i].line);
        catch_lines();
        ls_status status = ls_buckets_from_vector(broken[i].vector, item, COUNT, "a test", &layout);
        ck_assert_str_eq(caught_lines(), line);
        ck_assert_int_eq(status, LS_ERR_USAGE);
    }
    static const int32_t alone[] = {0, 6, 1, 1, 1, 1, 1, 1, 5, 4, 3, 2, 1, 0};
    ck_assert_int_eq(ls_buckets_from_vector(alone, item, COUNT, "a test", &layout), LS_OK);
    ck_assert(layout.bucket_count == 6 && layout.bucket[5].first == 5 && !layout.delayed);
    ls_buckets_free(&layout);
    /* a limit of one element */
    static const int64_t one = 1;
    ls_buckets_assign(item, COUNT, order, LS_BUCKET_ELEMENTS, &one, 1, &layout);
    for (int b = 0; b < COUNT; b++) {
        ck_assert(layout.bucket[b].count == 1 && layout.member[b] == b);
    }
    ls_buckets_free(&layout);
    ls_buckets_assign(item, 0, order, LS_BUCKET_ELEMENTS, &one, 1, &layout);
    ck_assert(layout.bucket_count == 0 && layout.member_count == 0);
    ls_buckets_free(&layout);
}

TEST_MAIN("buckets")
