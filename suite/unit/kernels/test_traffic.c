/* The traffic model (kernels/traffic.c): ResNet-50's bytes per image by kind of pass against a
 * count made by hand from its list of layers, and what each way to move fewer bytes leaves out. */
#include "kernels/traffic.h"
#include "reference/model/model.h"
#include "suite/unit/run_suite.h"

enum { BATCH = 256, PADDED = 8 };

static size_t slot_bytes(void *context, const ls_plan_options *options, int channels, int height,
                         int width, bool is_input)
{
    (void)context, (void)is_input;
    return (size_t)options->batch * (size_t)channels * (size_t)height * (size_t)width * 2;
}

static bool every_product_adds(void *context, const ls_lower *lower, const ls_op *op)
{
    (void)context, (void)lower, (void)op;
    return true;
}

typedef struct model {
    ls_network *network; /* lower borrows it */
    ls_lower lower;
    ls_traffic *list;
    int count;
} model;

static model model_of(const char *arch, int size, int batch, int channels, int ways)
{
    const ls_lower_backend gpu = {slot_bytes, every_product_adds, .gates_twice = true};
    const ls_lower_backend cpu = {slot_bytes, .by_channels = true};
    const ls_lower_backend backend = ways & LS_TRAFFIC_ON_CPU ? cpu : gpu;
    const ls_plan_options options = {
        .batch = batch, .height = size, .width = size, .activation = LS_F16};
    model m = {.network = calloc(1, sizeof *m.network)};
    ck_assert_ptr_nonnull(m.network);
    ck_assert_int_eq(ls_model_build(arch, 1000, size, m.network), LS_OK);
    ck_assert_int_eq(ls_lower_create(m.network, &options, &backend, &m.lower), LS_OK);
    m.list = calloc((size_t)ls_traffic_most(&m.lower), sizeof *m.list);
    ck_assert_ptr_nonnull(m.list);
    m.count = ls_traffic_list(&m.lower, channels, ways, m.list);
    return m;
}

static void drop(model *m)
{
    free(m->list);
    ls_lower_free(&m->lower);
    ls_model_free(m->network);
    free(m->network);
}

/* Whole numbers: sums of them are exact. */
static double bytes_of(const model *m, ls_traffic_part part)
{
    double bytes = 0;
    for (int i = 0; i < m->count; i++) {
        bytes += m->list[i].part == part ? m->list[i].bytes : 0;
    }
    return bytes;
}

static double mb_per_image(const model *m, ls_traffic_part part)
{
    return bytes_of(m, part) * 1e-6 / BATCH;
}

static int passes(const model *m, ls_traffic_part part)
{
    int count = 0;
    for (int i = 0; i < m->count; i++) {
        count += m->list[i].part == part && m->list[i].bytes > 0;
    }
    return count;
}

/* Counted by hand: 11.11 M elements of convolution outputs an image (22.2 MB), 4.089 GMAC forward,
 * the joins' and the inner norms' sizes; the last digit of each figure is 0.1 MB. */
TEST(resnet50_moves_what_a_count_by_hand_gives)
{
    static const struct {
        ls_traffic_part part;
        int passes;
        double mb;
    } expected[] = {
        {LS_TRAFFIC_PRODUCT, 54, 43.9},      {LS_TRAFFIC_PRODUCT_WEIGHTS, 54, 43.9},
        {LS_TRAFFIC_PRODUCT_DATA, 53, 53.1}, /* 42 and, of 17, 11.2 onto which they add */
        {LS_TRAFFIC_STATISTICS, 53, 22.2},   {LS_TRAFFIC_APPLY, 49, 50.7},
        {LS_TRAFFIC_SUMS, 49, 50.7},         {LS_TRAFFIC_NORM_BACK, 49, 64.4},
    };
    model m = model_of("resnet50", 224, BATCH, PADDED, 0);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        double stem = 0; /* the count by hand has the stem's image in blocks of 2 x 2 */
        if (i < 2) {
            stem = (PADDED * 224 * 224 - 16 * 115 * 115) * 2e-6;
        }
        ck_assert_int_eq(passes(&m, expected[i].part), expected[i].passes);
        double mb = mb_per_image(&m, expected[i].part) - stem;
        /* half of the last digit of the count by hand, which has weights on top */
        ck_assert_double_eq_tol(mb, expected[i].mb, 0.06);
    }
    drop(&m);
}

/* Elements an image, counted by hand: outputs of the stem 0.803 M, of 32 inner convolutions 3.286,
 * of 16 third ones 5.519, of 4 shortcuts 1.505. Statistics read all of them; results are written to
 * the memory of all but the shortcuts, with the plain residuals read (5.519 - 1.505); gradients are
 * written to all. Sums read 2 x (0.803 + 3.286) without joins, and at joins x, y, two gradients
 * (one after the last block, 0.100) and the shortcuts' x, and write g. */
TEST(resnet50_on_a_cpu)
{
    static const struct {
        ls_traffic_part part;
        int passes;
        double elements_m;
    } expected[] = {
        {LS_TRAFFIC_STATISTICS, 53, 11.113},
        {LS_TRAFFIC_APPLY, 49, 9.608 + 5.519 - 1.505},
        {LS_TRAFFIC_SUMS, 49, 2 * (0.803 + 3.286) + 5 * 5.519 - 0.100 + 1.505},
        {LS_TRAFFIC_NORM_BACK, 49, 11.113},
    };
    model m = model_of("resnet50", 224, BATCH, 3, LS_TRAFFIC_ON_CPU);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        ck_assert_int_eq(passes(&m, expected[i].part), expected[i].passes);
        ck_assert_double_eq_tol(mb_per_image(&m, expected[i].part), 2 * expected[i].elements_m,
                                0.02); /* of the last digits above */
    }
    drop(&m);
}

TEST(products_count_their_padding)
{
    model plain = model_of("resnet50", 224, BATCH, 3, 0);
    model padded = model_of("resnet50", 224, BATCH, PADDED, 0);
    model blocked = model_of("resnet50", 224, BATCH, PADDED, LS_TRAFFIC_BLOCKED_STEM);
    double flops = 0;
    for (int i = 0; i < plain.count; i++) {
        flops += plain.list[i].flops;
    }
    ck_assert(flops == ls_lower_flops(&plain.lower));
    ck_assert_double_eq_tol(flops / BATCH, 24.30e9, 5e6);
    /* 2 x 49 taps x 8 channels, or 16 x 16, x 64 channels of 112 x 112 pixels */
    double outputs = 64.0 * 112 * 112 * BATCH;
    ck_assert(padded.list[1].flops == 2 * 49 * 8 * outputs);
    ck_assert(blocked.list[1].flops == 2 * 16 * 16 * outputs);
    ck_assert(padded.list[1].bytes - blocked.list[1].bytes ==
              2.0 * BATCH * (8 * 224 * 224 - 16 * 115 * 115) + 2.0 * 64 * (8 * 49 - 16 * 16));
    ck_assert(padded.list[0].bytes == BATCH * 224.0 * 224 * (12 + 16));
    drop(&plain);
    drop(&padded);
    drop(&blocked);
}

/* A stem that blocks of 2 x 2 pixels do not fit stays as it is. */
TEST(other_stems_are_not_blocked)
{
    static const struct {
        const char *arch;
        int size;
        bool blocked;
    } stems[] = {{"resnet18", 64, true}, {"resnet18", 65, false}, {"resnet20", 32, false}};
    for (size_t i = 0; i < sizeof stems / sizeof *stems; i++) {
        model a = model_of(stems[i].arch, stems[i].size, 2, PADDED, 0);
        model b = model_of(stems[i].arch, stems[i].size, 2, PADDED, LS_TRAFFIC_BLOCKED_STEM);
        ck_assert_int_eq(a.list[1].flops != b.list[1].flops, stems[i].blocked);
        drop(&a);
        drop(&b);
    }
}

/* ResNet-50 has 16 blocks: two norms inside each, three where the stage changes the size (with the
 * shortcut's), a join at its end, of which the last one has no convolution behind it. */
TEST(a_fused_part_moves_nothing)
{
    model plain = model_of("resnet50", 224, BATCH, PADDED, 0);
    model m = model_of("resnet50", 224, BATCH, PADDED, LS_TRAFFIC_FUSE_STATISTICS);
    ck_assert_int_eq(passes(&m, LS_TRAFFIC_STATISTICS), 1); /* the stem's */
    ck_assert(bytes_of(&m, LS_TRAFFIC_SUMS) == bytes_of(&plain, LS_TRAFFIC_SUMS));
    drop(&m);

    m = model_of("resnet50", 224, BATCH, PADDED, LS_TRAFFIC_FUSE_APPLY);
    ck_assert_int_eq(passes(&m, LS_TRAFFIC_APPLY), 49 - 32);
    ck_assert_int_eq(passes(&m, LS_TRAFFIC_SUMS), 49);
    drop(&m);

    m = model_of("resnet50", 224, BATCH, PADDED, LS_TRAFFIC_FUSE_INNER);
    ck_assert_int_eq(passes(&m, LS_TRAFFIC_SUMS), 49 - 32);
    double x = 0; /* what the sums read of x is read by the products now */
    for (int i = 0; i < m.count; i++) {
        const ls_traffic *part = &m.list[i];
        x += part->part == LS_TRAFFIC_SUMS && part->bytes <= 0
                 ? 2.0 * (double)m.lower.slot[m.lower.op[part->op].in].count
                 : 0;
    }
    ck_assert(bytes_of(&m, LS_TRAFFIC_PRODUCT_DATA) ==
              bytes_of(&plain, LS_TRAFFIC_PRODUCT_DATA) + x);
    drop(&m);

    m = model_of("resnet50", 224, BATCH, PADDED, LS_TRAFFIC_FUSE_JOINS);
    ck_assert_int_eq(passes(&m, LS_TRAFFIC_SUMS), 49 - 15);
    for (int i = 0; i < m.count; i++) {
        ck_assert(m.list[i].epilogue >= 0);
        ck_assert(m.list[i].bytes <= 0 || m.list[i].epilogue < m.list[i].bytes);
    }
    drop(&m);
    drop(&plain);
}

TEST_MAIN("traffic")
