/* Kernels that only move numbers: the image, weights, and exports; all exact. */
#include "kernels/cuda/ops.h"
#include "reference/data/transform.h"
#include "suite/unit/run_suite.h"

#include "place.h"

static const ls_dtype TYPES[] = {LS_F32, LS_F16, LS_BF16};

static void check_exact(const char *what, const place *p, const double *want)
{
    double *have = place_read(p);
    for (int64_t i = 0; i < p->count; i++) {
        PLACE_CHECK(place_same(have[i], place_rounded(p->type, want[i])), "%s[%lld] is %g, not %g",
                    what, (long long)i, have[i], want[i]);
    }
    free(have);
}

/* ---- the image ------------------------------------------------------------------------------- */

static const int IMAGES[][4] = {/* N C H W */
                                {2, 3, 7, 5},
                                {1, 1, 1, 1},
                                {3, 4, 16, 17},
                                {1, 9, 3, 100}};
enum { IMAGE_COUNT = sizeof IMAGES / sizeof IMAGES[0] };

static const ls_image_format floats = {.type = LS_F32};

LOOP_TEST(image, 3)
{
    ls_dtype type = TYPES[_i];
    for (int k = 0; k < IMAGE_COUNT; k++) {
        int N = IMAGES[k][0], C = IMAGES[k][1], pixels = IMAGES[k][2] * IMAGES[k][3];
        int stored = ls_input_stored_channels(type, C);
        int64_t count = (int64_t)N * C * pixels, padded = (int64_t)N * pixels * stored;
        ck_assert_int_eq((size_t)stored * ls_dtype_bytes(type) % 16, 0);
        ck_assert_int_lt((size_t)(stored - C) * ls_dtype_bytes(type), 16);
        place from = place_make_off(LS_F32, count, 1), to = place_make(type, padded);
        double *a = place_normal(1, count, 0, 1), *want = calloc((size_t)padded, sizeof *want);
        place_fill(&from, a);
        for (int64_t i = 0; i < count; i++) {
            int64_t n = i / C / pixels, c = i / pixels % C, pixel = i % pixels;
            want[(n * pixels + pixel) * stored + c] = a[i];
        }
        ls_input_pack(place_stream, type, to.data, from.data, &floats, N, C, IMAGES[k][2],
                      IMAGES[k][3]);
        check_exact("packed", &to, want);
        free(a);
        free(want);
        place_free(&from);
        place_free(&to);
    }
}

/* Every byte in every channel becomes the host's float, rounded to the type: `==`, nothing less. */
LOOP_TEST(image_of_bytes, 3)
{
    enum { N = 2, H = 16, W = 16, PIXELS = H * W, COUNT = N * 3 * PIXELS };
    ls_dtype type = TYPES[_i];
    int stored = ls_input_stored_channels(type, 3);
    ls_image_format format = {.type = LS_U8};
    place from = place_make_off(LS_U8, COUNT, 1);
    place to = place_make(type, (int64_t)N * PIXELS * stored);
    uint8_t bytes[COUNT];
    float normalised[COUNT];
    double *want = calloc((size_t)to.count, sizeof *want);
    ls_transform_statistics(format.mean, format.deviation);
    for (int i = 0; i < COUNT; i++) { /* 77: odd, so all 256; each channel begins elsewhere */
        bytes[i] = (uint8_t)(77 * i + i / PIXELS * 19);
    }
    place_put(&from, bytes);
    ls_transform_normalise(bytes, 0, COUNT, PIXELS, normalised);
    for (int i = 0; i < COUNT; i++) {
        int n = i / 3 / PIXELS, c = i / PIXELS % 3, pixel = i % PIXELS;
        want[(n * PIXELS + pixel) * stored + c] = (double)normalised[i];
    }
    ck_assert_int_eq(ls_input_pack(place_stream, type, to.data, from.data, &format, N, 3, H, W),
                     LS_OK);
    check_exact("packed", &to, want);
    free(want);
    place_free(&from);
    place_free(&to);
}

/* ---- the stem over blocks of 2x2 pixels -------------------------------------------------------
 */

static const int STEMS[][3] = {/* N H W */ {2, 8, 6}, {1, 2, 2}, {3, 16, 34}};
enum { STEM_COUNT = sizeof STEMS / sizeof STEMS[0] };

/* Products of whole numbers: x [N][3][H][W] with w [out][3][7][7], stride 2, padding 3. */
static double stem_at(const double *x, const double *w, const int *stem, int n, int o, int oy,
                      int ox)
{
    double sum = 0;
    for (int i = 0; i < 3 * 7 * 7; i++) {
        int c = i / 49, y = 2 * oy + i / 7 % 7 - 3, xx = 2 * ox + i % 7 - 3;
        if (y >= 0 && y < stem[1] && xx >= 0 && xx < stem[2]) {
            sum += x[((n * 3 + c) * stem[1] + y) * stem[2] + xx] * w[o * 147 + i];
        }
    }
    return sum;
}

/* Packed images and packed weights, multiplied as 4x4 with stride 1 and no padding, are the stem of
 * 7x7: exactly, because all numbers are whole and small. The image's export is the image. */
LOOP_TEST(stem_over_blocks, 3)
{
    enum { OUT = 5, STORED = LS_INPUT_BLOCK_CHANNELS };
    ls_dtype type = TYPES[_i];
    for (int k = 0; k < STEM_COUNT; k++) {
        const int *stem = STEMS[k], N = stem[0], H = stem[1], W = stem[2];
        int across = ls_input_blocks(W), down = ls_input_blocks(H);
        place from = place_make(LS_F32, (int64_t)N * 3 * H * W),
              back = place_make(LS_F32, from.count);
        place image = place_make(type, (int64_t)N * down * across * STORED);
        place plain = place_make(LS_F32, OUT * 147), table;
        place packed = place_make(type, OUT * 16 * STORED);
        double *x = calloc((size_t)from.count, sizeof *x), *w = calloc(OUT * 147, sizeof *w);
        for (int64_t i = 0; i < from.count; i++) {
            x[i] = (double)ls_rng_below(1, 1, (uint64_t)i, 7) - 3;
        }
        for (int i = 0; i < OUT * 147; i++) {
            w[i] = (double)ls_rng_below(1, 2, (uint64_t)i, 7) - 3;
        }
        place_fill(&from, x);
        place_fill(&plain, w);
        ls_weight weight = {.plain = place_tensor(&plain),
                            .packed = packed.data,
                            .out = OUT,
                            .in = 3,
                            .stored_in = STORED,
                            .kernel = 7,
                            .stem_blocks = true};
        ck_assert_int_eq(ls_weight_packed_count(&weight), packed.count);
        table = place_make(LS_U8, (int64_t)sizeof weight);
        place_put(&table, &weight);
        ck_assert_int_eq(
            ls_input_pack_blocks(place_stream, type, image.data, from.data, &floats, N, H, W),
            LS_OK);
        ck_assert_int_eq(ls_weights_pack(place_stream, type, table.data, 1, packed.count), LS_OK);
        ck_assert_int_eq(ls_export_blocks(place_stream, type, image.data, back.data, N, H, W),
                         LS_OK);
        check_exact("the image", &back, x);
        double *p = place_read(&image), *q = place_read(&packed);
        for (int64_t i = 0; i < (int64_t)N * OUT * (H / 2) * (W / 2); i++) {
            int ox = (int)(i % (W / 2)), oy = (int)(i / (W / 2) % (H / 2));
            int o = (int)(i / (W / 2) / (H / 2) % OUT), n = (int)(i / (W / 2) / (H / 2) / OUT);
            double sum = 0;
            for (int t = 0; t < 16 * STORED; t++) {
                int y = oy + t / STORED / 4, xx = ox + t / STORED % 4;
                sum += p[((n * down + y) * across + xx) * STORED + t % STORED] *
                       q[o * 16 * STORED + t];
            }
            double want = stem_at(x, w, stem, n, o, oy, ox);
            PLACE_CHECK(sum == want, "output %d of %d at %d,%d is %g, not %g", o, n, oy, ox, sum,
                        want);
        }
        /* Gradients: what is packed comes back, and taps beyond 7x7 and padding are dropped. */
        for (int i = 0; i < OUT * 16 * STORED; i++) {
            int channel = i % STORED, tap = i / STORED % 16, o = i / STORED / 16;
            int ky = tap / 4 * 2 + channel / 6, kx = tap % 4 * 2 + channel / 3 % 2;
            q[i] = 0.37 * (double)(i % 101) + 1e-3;
            if (channel < 12 && ky < 7 && kx < 7) {
                w[(o * 3 + channel % 3) * 49 + ky * 7 + kx] = place_rounded(type, q[i]);
            }
        }
        place_fill(&packed, q);
        ck_assert_int_eq(ls_weights_unpack(place_stream, type, table.data, 1, packed.count), LS_OK);
        check_exact("the gradient", &plain, w);
        free(p);
        free(q);
        free(x);
        free(w);
        place_free(&from);
        place_free(&back);
        place_free(&image);
        place_free(&plain);
        place_free(&packed);
        place_free(&table);
    }
}

/* Bytes are normalised in blocks as they are outside. */
LOOP_TEST(blocks_of_bytes, 3)
{
    enum { N = 2, H = 16, W = 16, COUNT = N * 3 * H * W };
    ls_dtype type = TYPES[_i];
    ls_image_format format = {.type = LS_U8};
    place bytes = place_make_off(LS_U8, COUNT, 1), values = place_make(LS_F32, COUNT);
    place one = place_make(type, (int64_t)N * ls_input_blocks(H) * ls_input_blocks(W) *
                                     LS_INPUT_BLOCK_CHANNELS);
    place other = place_make(type, one.count);
    uint8_t list[COUNT];
    float normalised[COUNT];
    ls_transform_statistics(format.mean, format.deviation);
    for (int i = 0; i < COUNT; i++) {
        list[i] = (uint8_t)(77 * i + i / (H * W) * 19);
    }
    ls_transform_normalise(list, 0, COUNT, H * W, normalised);
    place_put(&bytes, list);
    place_put(&values, normalised);
    ck_assert_int_eq(
        ls_input_pack_blocks(place_stream, type, one.data, bytes.data, &format, N, H, W), LS_OK);
    ck_assert_int_eq(
        ls_input_pack_blocks(place_stream, type, other.data, values.data, &floats, N, H, W), LS_OK);
    double *want = place_read(&other);
    check_exact("packed", &one, want);
    free(want);
    place_free(&bytes);
    place_free(&values);
    place_free(&one);
    place_free(&other);
}

/* ---- weights --------------------------------------------------------------------------------- */

static const int WEIGHTS[][4] = {/* out, in, stored, kernel */
                                 {8, 3, 8, 7},   {5, 64, 64, 1},  {16, 130, 130, 3},
                                 {3, 10, 10, 1}, {1, 1, 1, 3},    {2, 512, 512, 3},
                                 {7, 3, 4, 3},   {10, 33, 33, 1}, {4, 16, 16, 5}};
enum { WEIGHT_COUNT = sizeof WEIGHTS / sizeof WEIGHTS[0] };

/* Packs all, and unpacks each into its own tensor, at every alignment. */
static void check_weights(ls_dtype type, ls_dtype plain, int off)
{
    ls_weight weight[WEIGHT_COUNT];
    place from[WEIGHT_COUNT], packed[WEIGHT_COUNT], table;
    double *value[WEIGHT_COUNT];
    int64_t most = 0;
    for (int k = 0; k < WEIGHT_COUNT; k++) {
        int out = WEIGHTS[k][0], in = WEIGHTS[k][1], stored = WEIGHTS[k][2], side = WEIGHTS[k][3];
        int64_t count = (int64_t)out * in * side * side, more = (int64_t)out * stored * side * side;
        from[k] = place_make_off(plain, count, off);
        packed[k] = place_make(type, more);
        value[k] = place_normal((uint64_t)k, count, 0, 1);
        place_fill(&from[k], value[k]);
        weight[k] = (ls_weight){.plain = place_tensor(&from[k]),
                                .packed = packed[k].data,
                                .out = out,
                                .in = in,
                                .stored_in = stored,
                                .kernel = side};
        most = more > most ? more : most;
    }
    table = place_make(LS_U8, (int64_t)sizeof weight);
    place_put(&table, weight);
    ck_assert_int_eq(ls_weights_pack(place_stream, type, table.data, WEIGHT_COUNT, most), LS_OK);
    for (int k = 0; k < WEIGHT_COUNT; k++) {
        int in = weight[k].in, stored = weight[k].stored_in, taps = weight[k].kernel;
        taps *= taps;
        double *want = calloc((size_t)packed[k].count, sizeof *want);
        for (int64_t i = 0; i < from[k].count; i++) {
            int64_t o = i / taps / in, c = i / taps % in, tap = i % taps;
            want[(o * taps + tap) * stored + c] = value[k][i];
        }
        check_exact("packed", &packed[k], want);
        /* to be unpacked: a gradient, with other values in the padding */
        for (int64_t i = 0; i < packed[k].count; i++) {
            int64_t c = i % stored, tap = i / stored % taps, o = i / stored / taps;
            want[i] = 0.37 * (double)(i % 101) + 1e-3;
            if (c < in) {
                value[k][(o * in + c) * taps + tap] = place_rounded(type, want[i]);
            }
        }
        place_fill(&packed[k], want);
        free(want);
    }
    ck_assert_int_eq(ls_weights_unpack(place_stream, type, table.data, WEIGHT_COUNT, most), LS_OK);
    for (int k = 0; k < WEIGHT_COUNT; k++) {
        check_exact("unpacked", &from[k], value[k]);
        free(value[k]);
        place_free(&from[k]);
        place_free(&packed[k]);
    }
    place_free(&table);
}

LOOP_TEST(weights, 3)
{
    check_weights(TYPES[_i], LS_F32, 0);
    check_weights(TYPES[_i], LS_F32, 1);
    check_weights(TYPES[_i], LS_F32, 2);
    check_weights(TYPES[_i], LS_F16, _i);
    check_weights(TYPES[_i], LS_BF16, 3);
}

/* ---- exports --------------------------------------------------------------------------------- */

LOOP_TEST(plain_export, 3)
{
    ls_dtype type = TYPES[_i];
    for (int k = 0; k < IMAGE_COUNT; k++) {
        int N = IMAGES[k][0], C = IMAGES[k][1], pixels = IMAGES[k][2] * IMAGES[k][3];
        int stored = ls_input_stored_channels(type, C);
        place from = place_make(type, (int64_t)N * pixels * stored);
        place to = place_make(LS_F32, (int64_t)N * C * pixels);
        double *a = place_normal(4, from.count, 0, 1);
        double *want = malloc((size_t)to.count * sizeof *want);
        place_fill(&from, a);
        for (int64_t i = 0; i < to.count; i++) {
            int64_t n = i / C / pixels, c = i / pixels % C, pixel = i % pixels;
            want[i] = a[(n * pixels + pixel) * stored + c];
        }
        ls_export_plain(place_stream, type, from.data, to.data, N, C, stored, IMAGES[k][2],
                        IMAGES[k][3]);
        check_exact("plain", &to, want);
        free(a);
        free(want);
        place_free(&from);
        place_free(&to);
    }
}

TEST(mask_export)
{
    for (int k = 0; k < IMAGE_COUNT; k++) {
        int N = IMAGES[k][0], C = IMAGES[k][1], pixels = IMAGES[k][2] * IMAGES[k][3];
        int64_t count = (int64_t)N * C * pixels;
        place mask = place_make(LS_I32, (count + 31) / 32);
        place bits = place_make(LS_U8, (count + 7) / 8);
        uint8_t *in = calloc(1, mask.bytes), *out = calloc(1, bits.bytes);
        uint8_t *have = malloc(mask.bytes);
        for (int64_t i = 0; i < count; i++) { /* i: NCHW */
            int64_t n = i / C / pixels, c = i / pixels % C, pixel = i % pixels;
            int64_t at = (n * pixels + pixel) * C + c;
            unsigned open = ls_rng_below(5, 1, (uint64_t)i, 2);
            in[at / 8] |= (uint8_t)(open << (at % 8)); /* words are little-endian */
            out[i / 8] |= (uint8_t)(open << (i % 8));
        }
        place_put(&mask, in);
        ls_export_mask(place_stream, mask.data, bits.data, N, C, IMAGES[k][2], IMAGES[k][3], false);
        place_get(&bits, have);
        ck_assert_int_eq(memcmp(have, out, bits.bytes), 0);
        cudaMemset(mask.data, 0xff, mask.bytes);
        ls_export_mask(place_stream, mask.data, bits.data, N, C, IMAGES[k][2], IMAGES[k][3], true);
        place_get(&mask, have);
        ck_assert_int_eq(memcmp(have, in, mask.bytes), 0);
        free(in);
        free(out);
        free(have);
        place_free(&mask);
        place_free(&bits);
    }
}

TEST(taps_export)
{
    const ls_pool_shape s = {2, 3, 7, 5, 4, 3, 3, 2, 1};
    int64_t count = 2 * 3 * 4 * 3;
    place tap = place_make(LS_U8, count), index = place_make(LS_I32, count);
    place outside = place_make(LS_I32, 1);
    uint8_t in[2 * 3 * 4 * 3], have[2 * 3 * 4 * 3];
    int32_t want[2 * 3 * 4 * 3], out[2 * 3 * 4 * 3], flag = 0;
    for (int i = 0; i < count; i++) { /* NCHW; the window's last element inside the image */
        int plane = i / 12, n = plane / 3, c = plane % 3, oh = i % 12 / 3, ow = i % 3;
        int row = oh == 3 ? 1 : 2, column = ow == 2 ? 1 : i % 2 + 1;
        in[((n * 4 + oh) * 3 + ow) * 3 + c] = (uint8_t)(row * 3 + column);
        want[i] = (oh * 2 - 1 + row) * 5 + ow * 2 - 1 + column;
    }
    place_put(&tap, in);
    place_put(&outside, &flag);
    ls_export_taps(place_stream, &s, tap.data, index.data, false, NULL);
    place_get(&index, out);
    ck_assert_int_eq(memcmp(out, want, sizeof want), 0);
    cudaMemset(tap.data, 0, tap.bytes);
    ls_export_taps(place_stream, &s, tap.data, index.data, true, outside.data);
    place_get(&tap, have);
    place_get(&outside, &flag);
    ck_assert_int_eq(memcmp(have, in, sizeof in), 0);
    ck_assert_int_eq(flag, 0);
    static const int32_t wrong[] = {-1, 35, 34, 3, 15};
    for (int k = 0; k < 5; k++) { /* of the first window, rows -1 to 1, columns -1 to 1 */
        int32_t first = want[0];
        want[0] = wrong[k];
        flag = 0;
        place_put(&index, want);
        place_put(&outside, &flag);
        ls_export_taps(place_stream, &s, tap.data, index.data, true, outside.data);
        place_get(&outside, &flag);
        ck_assert_int_eq(flag, 1);
        want[0] = first;
    }
    place_free(&tap);
    place_free(&index);
    place_free(&outside);
}

TEST_MAIN("cuda_layout", .timeout_s = 60, .before = place_set_up, .after = place_tear_down)
