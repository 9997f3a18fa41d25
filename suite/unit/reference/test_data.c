/* Augmentation, synthetic images, folders and the pictures made for them. */
#include "kernels/core/digest.h"
#include "kernels/core/rng.h"
#include "reference/data/dataset.h"
#include "reference/data/picture.h"
#include "reference/data/make.h"
#include "reference/data/transform.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"
#include "data_root.h"

/* ---- crops ----------------------------------------------------------------------------------- */

/* All 3,000 draws of a script: FNV-1a of the five 32-bit numbers top, left, height, width and flip
 * of each, as torchvision 0.29 with torch 2.15 gives them (case data.crop.torch). */
TEST(crops_are_those_of_torchvision)
{
    static const int sides[][2] = {{500, 375}, {300, 700}, {640, 260},
                                   {64, 64},   {10, 1000}, {2048, 1365}};
    uint64_t digest = LS_DIGEST_START;
    for (int n = 0; n < 3000; n++) {
        ls_transform_crop crop = ls_transform_draw((uint64_t)(n % 7), n / 500, 13 * (int64_t)n,
                                                   sides[n % 6][0], sides[n % 6][1]);
        int32_t numbers[5] = {crop.top, crop.left, crop.height, crop.width, crop.flip};
        digest = ls_digest_update(digest, numbers, sizeof numbers);
    }
    ck_assert_uint_eq(digest, UINT64_C(0xb756e9447b525653));
    /* sides of which no rectangle fits within the ratios */
    ls_transform_crop high = ls_transform_draw(7, 2, 1, 10, 1000);
    ls_transform_crop wide = ls_transform_draw(7, 2, 1, 1000, 10);
    ck_assert(high.top == 493 && high.left == 0 && high.height == 13 && high.width == 10);
    ck_assert(wide.top == 0 && wide.left == 493 && wide.height == 10 && wide.width == 13);
}

/* 1,000 draws of CIFAR's crops: FNV-1a of top, left and flip of each, by the same program (case
 * data.cifar.crop). */
TEST(padded_crops_are_those_of_torchvision)
{
    uint64_t digest = LS_DIGEST_START;
    for (int n = 0; n < 1000; n++) {
        ls_transform_crop crop =
            ls_transform_draw_padded((uint64_t)(n % 7), n / 500, 13 * (int64_t)n, 32, 4);
        int32_t numbers[3] = {crop.top, crop.left, crop.flip};
        digest = ls_digest_update(digest, numbers, sizeof numbers);
    }
    ck_assert_uint_eq(digest, UINT64_C(0xae685fc21b321f3e));
}

/* Every place of a 3 x 3 picture with 2 black pixels around it. */
TEST(padded_crops_are_cut_from_their_place)
{
    enum { SIDE = 3, PAD = 2 };
    uint8_t planes[3 * SIDE * SIDE], out[3 * SIDE * SIDE + 1];
    for (int i = 0; i < 3 * SIDE * SIDE; i++) {
        planes[i] = (uint8_t)(i + 1);
    }
    for (int n = 0; n < 2 * 25; n++) {
        ls_transform_crop crop = {n / 5 % 5, n % 5, SIDE, SIDE, n >= 25};
        out[sizeof planes] = 77;
        ls_transform_apply_padded(planes, SIDE, PAD, &crop, out);
        for (int i = 0; i < 3 * SIDE * SIDE; i++) {
            int y = i / SIDE % SIDE + crop.top - PAD, x = i % SIDE;
            x = (crop.flip ? SIDE - 1 - x : x) + crop.left - PAD;
            bool inside = x >= 0 && x < SIDE && y >= 0 && y < SIDE;
            ck_assert_int_eq(out[i],
                             inside ? planes[i / (SIDE * SIDE) * SIDE * SIDE + y * SIDE + x] : 0);
        }
        ck_assert_int_eq(out[sizeof planes], 77);
    }
}

static float normalised(uint8_t byte, int channel)
{
    float out;
    ls_transform_normalise(&byte, channel, 1, 1, &out);
    return out;
}

TEST(normalisation)
{
    /* the goldens have 8 digits after the point; f32 near 2.25 has steps of 2.4e-7, three roundings
     */
    const double limit = 3 * 2.4e-7;
    ck_assert_double_eq_tol(normalised(255, 0), 2.2489083, limit);
    ck_assert_double_eq_tol(normalised(51, 1), -1.1428571, limit);
    ck_assert_double_eq_tol(normalised(0, 2), -1.8044445, limit);
}

/* Bytes of several images, from any element on: their channel goes by their place. */
TEST(channels_by_place)
{
    enum { PIXELS = 5, VALUES = 2 * 3 * PIXELS };
    uint8_t bytes[VALUES];
    float out[VALUES + 1];
    for (int i = 0; i < VALUES; i++) {
        bytes[i] = (uint8_t)(97 * i + 31);
    }
    for (int first = 0; first < VALUES; first++) {
        for (int count = 0; count <= VALUES - first; count++) {
            out[count] = -1;
            ls_transform_normalise(bytes + first, first, count, PIXELS, out);
            for (int i = 0; i < count; i++) {
                int at = first + i;
                ck_assert(out[i] == normalised(bytes[at], at / PIXELS % 3));
            }
            ck_assert(out[count] == -1);
        }
    }
}

static void apply(const uint8_t *rgb, int width, ls_transform_crop crop, int size, uint8_t *out)
{
    ls_resample_scratch scratch = {0};
    ls_transform_apply(&scratch, rgb, width, &crop, size, out);
    ls_transform_release(&scratch);
}

TEST(resampling)
{
    enum { W = 12, H = 9, S = 4 };
    uint8_t rgb[W * H * 3];
    uint8_t out[3 * W * W];
    for (int i = 0; i < W * H * 3; i++) {
        rgb[i] = (uint8_t)ls_rng_below(1, 2, (uint64_t)i, 256);
    }
    /* same size: the pixels themselves, flipped or not */
    for (int flip = 0; flip < 2; flip++) {
        ls_transform_crop crop = {.top = 3, .left = 5, .height = S, .width = S, .flip = flip != 0};
        apply(rgb, W, crop, S, out);
        for (int c = 0; c < 3; c++) {
            for (int y = 0; y < S; y++) {
                for (int x = 0; x < S; x++) {
                    int from = flip ? S - 1 - x : x;
                    ck_assert_int_eq(out[(c * S + y) * S + x],
                                     rgb[((3 + y) * W + 5 + from) * 3 + c]);
                }
            }
        }
    }
    /* a flat image stays flat at any scale, and nothing outside the crop is read */
    static const uint8_t flat[] = {200, 255, 0, 1};
    for (int k = 0; k < 4 * H * W; k++) {
        int level = flat[k / H / W], side = k / W % H + 1, size = k % W + 1;
        uint8_t framed[W * H * 3];
        memset(framed, 255 - level, sizeof framed);
        for (int y = 0; y < side; y++) {
            memset(framed + y * W * 3, level, (size_t)side * 3);
        }
        apply(framed, W, (ls_transform_crop){.height = side, .width = side}, size, out);
        for (int i = 0; i < 3 * size * size; i++) {
            ck_assert_int_eq(out[i], level);
        }
    }
}

/* FNV-1a of [3][height][width] of what Pillow 12 and 13 give: crop, then resize with BILINEAR. */
static const struct resized {
    int width, height, crop[4], to_width, to_height; /* crop: left, top, width, height */
    uint64_t digest;
} resized[] = {
    {23, 17, {2, 3, 13, 9}, 1, 1, UINT64_C(0x719c1c1b05d642d7)},
    {23, 17, {0, 0, 23, 17}, 5, 5, UINT64_C(0x684d1c1559e222b9)},
    {40, 33, {7, 5, 6, 11}, 16, 16, UINT64_C(0xf6a7d0368e7c9009)},
    {64, 48, {0, 0, 64, 48}, 64, 48, UINT64_C(0xffd44c6ba5f2c44a)},
    {300, 200, {10, 20, 250, 100}, 224, 224, UINT64_C(0x14aea40d4130f119)},
    {500, 375, {80, 17, 343, 294}, 224, 224, UINT64_C(0x63ed640cdc12a254)},
    {37, 53, {0, 0, 37, 53}, 256, 366, UINT64_C(0x12e43bd505129f88)},
    {1000, 700, {0, 0, 1000, 700}, 32, 32, UINT64_C(0x84baaf4da0fd2ba6)},
    {9, 9, {8, 8, 1, 1}, 31, 31, UINT64_C(0x3bdf0db61bbbbc2d)},
    {38, 46, {9, 6, 25, 33}, 32, 32, UINT64_C(0xdb2598e3784ac0d4)}, /* 12 */
};

/* One scratch for all; windows of a result are parts of it. */
TEST(resampling_is_that_of_pillow)
{
    ls_resample_scratch scratch = {0};
    for (size_t r = 0; r < sizeof resized / sizeof resized[0]; r++) {
        const struct resized *row = &resized[r];
        int w = row->width, h = row->height, tw = row->to_width, th = row->to_height;
        uint8_t *rgb = malloc(3 * (size_t)(w * h)), *out = malloc(3 * (size_t)(tw * th));
        uint8_t *part = malloc(3 * (size_t)(tw * th));
        ck_assert(rgb != NULL && out != NULL && part != NULL);
        for (int i = 0; i < 3 * w * h; i++) {
            int64_t c = i % 3, x = i / 3 % w, y = i / 3 / w;
            rgb[i] = (uint8_t)(x * x * 7 + y * y * 13 + x * y * (3 + c) * 5 + c * 91 +
                               (x * 31 + y * 17 + c * 7) % 23 * 11);
        }
        ls_resample_job job = {.rgb = rgb,
                               .row_pixels = w,
                               .left = row->crop[0],
                               .top = row->crop[1],
                               .width = row->crop[2],
                               .height = row->crop[3],
                               .to_width = tw,
                               .to_height = th,
                               .window_width = tw,
                               .window_height = th};
        ls_transform_resample(&scratch, &job, out);
        uint64_t digest = ls_digest_update(LS_DIGEST_START, out, 3 * (size_t)(tw * th));
        ck_assert_msg(digest == row->digest, "row %zu", r);
        job.window_left = tw / 3;
        job.window_top = th / 4;
        job.window_width = tw - tw / 3;
        job.window_height = th - th / 4 - th / 5;
        job.flip = true;
        ls_transform_resample(&scratch, &job, part);
        for (int i = 0; i < 3 * job.window_width * job.window_height; i++) {
            int x = i % job.window_width, y = i / job.window_width % job.window_height;
            int c = i / job.window_width / job.window_height;
            ck_assert_int_eq(part[i], out[(c * th + y + job.window_top) * tw + tw - 1 - x]);
        }
        free(rgb);
        free(out);
        free(part);
    }
    ls_transform_release(&scratch);
    ck_assert(scratch.rows == NULL && scratch.sides == 0);
}

/* Rows of torchvision: the size after Resize, and the corner of CenterCrop. */
TEST(centres)
{
    static const struct {
        int width, height, shorter, size;
        ls_transform_resize to;
    } rows[] = {
        {500, 375, 256, 224, {341, 256, 58, 16}}, {375, 500, 256, 224, {256, 341, 16, 58}},
        {256, 256, 256, 224, {256, 256, 16, 16}}, {1000, 3, 8, 8, {2666, 8, 1329, 0}},
        {33, 32, 37, 32, {38, 37, 3, 2}},         {40, 33, 9, 8, {10, 9, 1, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ls_transform_resize to =
            ls_transform_centre(rows[i].width, rows[i].height, rows[i].shorter, rows[i].size);
        ck_assert_msg(memcmp(&to, &rows[i].to, sizeof to) == 0, "row %zu: %dx%d at %d,%d", i,
                      to.width, to.height, to.left, to.top);
    }
}

/* ---- synthetic ------------------------------------------------------------------------------- */

/* One number of many: their sum with weights that look random, so that whatever changes more than a
 * rounding changes it. */
static int64_t weight_of(int64_t i)
{
    return i * 37 % 101 - 50;
}

/* Sums of the formula, light + strength * cos * cos + noise from the words of Philox, in FP64. */
TEST(synthetic_images)
{
    static const struct {
        uint64_t seed;
        int64_t index;
        int classes, size, target;
        double sum;
    } rows[] = {{0, 0, 10, 16, 2, 123.3636},
                {7, 123456789012, 1000, 24, 802, 285.6993},
                {3, 41, 2, 5, 1, 196.5639},
                {1, 2, 37, 1, 29, -0.8991}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        int size = rows[r].size;
        float image[3 * 24 * 24], waves[2 * 24];
        int64_t target = -1;
        double sum = 0;
        ls_dataset_synthetic_image(rows[r].seed, rows[r].index, rows[r].classes, size, waves, image,
                                   &target);
        for (int i = 0; i < 3 * size * size; i++) {
            sum += (double)image[i] * (double)weight_of(i);
        }
        ck_assert_int_eq(target, rows[r].target);
        /* f32: 4 units of 4 in each of 1728 elements, which add as a random walk does */
        ck_assert_double_eq_tol(sum, rows[r].sum, 42 * 50 * 4 * 4 * 0x1p-24);
    }
}

/* ---- folders --------------------------------------------------------------------------------- */

TEST(folder_order)
{
    char dir[128];
    snprintf(dir, sizeof dir, "%s/order", ROOT);
    /* code points: C < a10 < a2 < b < é */
    shell("mkdir -p %s/b/sub %s/a2 %s/C %s/a10", dir);
    shell("mkdir %s/\303\251 %s/.hidden && touch %s/\303\251/1.jpg %s/note.txt", dir);
    shell("cd %s && touch b/z.jpg b/sub/a.jpg b/readme.txt a2/10.JPG a2/9.jpeg", dir);
    shell("cd %s && touch a2/.x.jpg C/q.Jpeg a10/1.jpg", dir);
    ls_dataset_files folder;
    ck_assert_int_eq(ls_dataset_files_scan(dir, &folder), LS_OK);
    static const char *const name[] = {"C", "a10", "a2", "b", "\303\251"};
    static const char *const file[] = {"C/q.Jpeg", "a10/1.jpg",   "a2/10.JPG",     "a2/9.jpeg",
                                       "b/z.jpg",  "b/sub/a.jpg", "\303\251/1.jpg"};
    static const int target[] = {0, 1, 2, 2, 3, 3, 4};
    ck_assert_int_eq(folder.class_count, 5);
    ck_assert_int_eq(folder.count, 7);
    for (int i = 0; i < 5; i++) {
        ck_assert_str_eq(folder.class_name[i], name[i]);
    }
    for (int i = 0; i < 7; i++) {
        ck_assert_str_eq(folder.path[i] + strlen(dir) + 1, file[i]);
        ck_assert_int_eq(folder.target[i], target[i]);
    }
    ls_dataset_files_free(&folder);
    shell("ln -s .. %s/b/sub/up", dir); /* a link that leads back up ends in an error */
    ck_assert_int_eq(ls_dataset_files_scan(dir, &folder), LS_ERR_USAGE);
}

static uint64_t folder_digest(const char *dir)
{
    ls_dataset_files folder;
    uint64_t digest = LS_DIGEST_START;
    static char bytes[1 << 16];
    ck_assert_int_eq(ls_dataset_files_scan(dir, &folder), LS_OK);
    for (int64_t i = 0; i < folder.count; i++) {
        FILE *stream = fopen(folder.path[i], "rb");
        ck_assert_ptr_nonnull(stream);
        digest = ls_digest_update(digest, bytes, fread(bytes, 1, sizeof bytes, stream));
        fclose(stream);
    }
    ls_dataset_files_free(&folder);
    return digest;
}

TEST(made_folders)
{
    char a[128], b[128], c[128];
    snprintf(a, sizeof a, "%s/made/a/", ROOT);
    snprintf(b, sizeof b, "%s/made/b", ROOT);
    snprintf(c, sizeof c, "%s/made/c", ROOT);
    ck_assert_int_eq(ls_make_folder(a, 3, 32, 5), LS_OK);
    ck_assert_int_eq(ls_make_folder(b, 3, 32, 5), LS_OK);
    ck_assert_int_eq(ls_make_folder(c, 3, 32, 6), LS_OK);
    uint64_t digest = folder_digest(a);
    ck_assert_uint_eq(digest, folder_digest(b));
    ck_assert_uint_ne(digest, folder_digest(c));
    ls_dataset_files folder;
    ck_assert_int_eq(ls_dataset_files_scan(b, &folder), LS_OK);
    ck_assert_int_eq(folder.class_count, LS_MAKE_CLASSES);
    ck_assert_int_eq(folder.count, 3 * LS_MAKE_CLASSES);
    for (int k = 0; k < LS_MAKE_CLASSES; k++) {
        ck_assert_str_eq(folder.class_name[k], ls_make_class_name(k));
    }
    ls_dataset_files_free(&folder);
    /* equal and complete: at once, nothing written (a missing image stays missing) */
    shell("rm %s/ring/00001.jpg", b);
    ck_assert_int_eq(ls_make_folder(b, 3, 32, 5), LS_OK);
    shell("test ! -e %s/ring/00001.jpg", b);
    /* interrupted: made again */
    shell("sed -i s/complete/making/ %s/.lockstep-data", b);
    ck_assert_int_eq(ls_make_folder(b, 3, 32, 5), LS_OK);
    ck_assert_uint_eq(digest, folder_digest(b));
    /* other settings, or someone's own folder */
    ck_assert_int_eq(ls_make_folder(b, 4, 32, 5), LS_ERR_USAGE);
    ck_assert_int_eq(ls_make_folder(b, 3, 32, 6), LS_ERR_USAGE);
    ck_assert_int_eq(ls_make_folder(ROOT, 3, 32, 5), LS_ERR_USAGE);
    ck_assert_uint_eq(digest, folder_digest(b));
    ck_assert_int_eq(ls_make_folder(c, 0, 32, 6), LS_ERR_USAGE);
    ck_assert_int_eq(ls_make_folder(c, 3, 5000, 6), LS_ERR_USAGE);
}

/* ---- pictures -------------------------------------------------------------------------------- */

/* Four of each of the ten classes, of 30 pixels and more: sizes, and sums of levels, each of which
 * was within its rounding of the shape in FP64. Where libm rounds otherwise a few differ by one. */
TEST(pictures_of_every_class)
{
    static const struct {
        int width, height, sum;
    } want[4 * LS_MAKE_CLASSES] = {
        {33, 45, -61453}, {45, 43, -27361}, {32, 32, -14009}, {41, 37, 47793},   {45, 44, -5672},
        {42, 45, -37853}, {42, 43, -7651},  {36, 39, 25662},  {37, 36, -12162},  {43, 41, 9653},
        {31, 47, -39345}, {43, 43, 10886},  {35, 34, 14147},  {47, 43, 48433},   {31, 45, 18854},
        {34, 31, -37331}, {47, 36, -9656},  {39, 46, -5431},  {37, 47, 31766},   {48, 41, -74213},
        {35, 38, 20584},  {41, 40, 98856},  {32, 41, -27947}, {41, 42, -228865}, {45, 35, 10944},
        {32, 44, -3965},  {46, 34, 6884},   {48, 34, 14534},  {34, 32, -29557},  {48, 46, -49162},
        {44, 48, 29770},  {38, 42, 36059},  {32, 33, -8796},  {32, 33, 41576},   {35, 35, 25170},
        {32, 42, 54363},  {35, 43, 2052},   {39, 35, 5023},   {35, 35, 14185},   {45, 31, 64417}};
    static uint8_t rgb[80 * 80 * 3];
    for (int i = 0; i < 4 * LS_MAKE_CLASSES; i++) {
        int kind = i % LS_MAKE_CLASSES, index = i / LS_MAKE_CLASSES, width = 0, height = 0;
        int64_t sum = 0;
        ls_make_size(17, kind, index, 30, &width, &height);
        memset(rgb, 0xa5, sizeof rgb);
        ls_make_picture(17, kind, index, width, height, rgb);
        for (size_t at = 0; at < sizeof rgb; at++) {
            bool is_inside = at < 3 * (size_t)(width * height);
            sum += is_inside ? rgb[at] * weight_of((int64_t)at) : 0;
            ck_assert(is_inside || rgb[at] == 0xa5); /* nothing is written behind it */
        }
        ck_assert_msg(
            width == want[i].width && height == want[i].height && llabs(sum - want[i].sum) <= 400,
            "%s %d: %d x %d, %lld", ls_make_class_name(kind), index, width, height, (long long)sum);
    }
}

static void read_bytes(const char *path, char *bytes, size_t most, size_t *count)
{
    FILE *stream = fopen(path, "rb");
    ck_assert_msg(stream != NULL, "%s", path);
    *count = fread(bytes, 1, most, stream);
    fclose(stream);
}

/* DIR/<class>/00001.jpg and so on are the pictures, written with quality 90; the marker records the
 * settings. Bounds of the arguments, both sides. */
TEST(made_files_are_the_pictures)
{
    static uint8_t rgb[64 * 64 * 3];
    static char have[1 << 15], want[1 << 15];
    char dir[128], path[256];
    size_t have_bytes, want_bytes;
    snprintf(dir, sizeof dir, "%s/pictures", ROOT);
    ck_assert_int_eq(ls_make_folder(dir, 2, 8, 9), LS_OK);
    for (int i = 0; i < 2 * LS_MAKE_CLASSES; i++) {
        int kind = i / 2, width = 0, height = 0;
        ls_make_size(9, kind, i % 2, 8, &width, &height);
        ls_make_picture(9, kind, i % 2, width, height, rgb);
        snprintf(path, sizeof path, "%s/one.jpg", ROOT);
        ck_assert_int_eq(ls_picture_write_jpeg(path, rgb, width, height, 90), LS_OK);
        read_bytes(path, want, sizeof want, &want_bytes);
        snprintf(path, sizeof path, "%s/%s/%05d.jpg", dir, ls_make_class_name(kind), i % 2 + 1);
        read_bytes(path, have, sizeof have, &have_bytes);
        ck_assert_uint_eq(have_bytes, want_bytes);
        ck_assert_mem_eq(have, want, want_bytes);
    }
    snprintf(path, sizeof path, "%s/.lockstep-data", dir);
    read_bytes(path, have, sizeof have, &have_bytes);
    have[have_bytes] = '\0';
    ck_assert_str_eq(have, "--images 2 --size 8 --seed 9, format 1\ncomplete\n");
    static const struct {
        int images, size;
    } refused[] = {{0, 8}, {100000, 8}, {1, 7}, {1, 4097}};
    for (size_t i = 0; i < 4; i++) {
        snprintf(dir, sizeof dir, "%s/refused", ROOT);
        ck_assert_int_eq(ls_make_folder(dir, refused[i].images, refused[i].size, 9), LS_ERR_USAGE);
        ck_assert_int_ne(access(dir, F_OK), 0);
    }
    catch_lines(); /* the largest numbers are allowed: the path is what is refused */
    ck_assert_int_eq(ls_make_folder("", 99999, 4096, 9), LS_ERR_USAGE);
    ck_assert_str_eq(caught_lines(), "error: the folder's path must have 1 to 960 bytes\n");
    char end[1100]; /* 960 bytes are allowed, "/./" is the folder's name in many of them */
    int length = snprintf(end, sizeof end, "%s/long", ROOT);
    for (; length + 2 <= 960; length += 2) {
        strcpy(end + length, "/.");
    }
    end[length] = '/';
    end[length + 1] = '\0';
    end[960] = '\0';
    ck_assert_uint_eq(strlen(end), 960);
    ck_assert_int_eq(ls_make_folder(end, 1, 8, 9), LS_OK);
    strcpy(end + 960, "/");
    ck_assert_int_eq(ls_make_folder(end, 1, 8, 9), LS_ERR_USAGE);
}

static void expect(ls_sampler sampler, int64_t epoch, int length, const int64_t *want)
{
    int64_t have[64];
    have[length] = -5;
    ck_assert_int_eq(ls_dataset_length(&sampler), length);
    ls_dataset_epoch(&sampler, epoch, have);
    ck_assert_mem_eq(have, want, (size_t)length * sizeof have[0]);
    ck_assert_int_eq(have[length], -5);
}

/* indices[rank::world]: every image once, whatever the order. */
TEST(without_padding)
{
    ls_sampler s = {.count = 10, .world = 3, .no_pad = true};
    static const int64_t own[3][4] = {{0, 3, 6, 9}, {1, 4, 7}, {2, 5, 8}};
    for (s.rank = 0; s.rank < 3; s.rank++) {
        expect(s, 0, s.rank == 0 ? 4 : 3, own[s.rank]);
    }
    for (int count = 1; count <= 50; count++) {
        for (int world = 1; world <= 9; world++) {
            int seen[50] = {0}, total = 0;
            s = (ls_sampler){.count = count, .world = world, .shuffle = true, .no_pad = true};
            for (s.rank = 0; s.rank < world; s.rank++) {
                int64_t have[64], length = ls_dataset_length(&s);
                ls_dataset_epoch(&s, 3, have);
                for (int64_t i = 0; i < length; i++, total++) {
                    seen[have[i]]++;
                }
            }
            ck_assert_int_eq(total, count);
            for (int i = 0; i < count; i++) {
                ck_assert_int_eq(seen[i], 1);
            }
        }
    }
}

TEST_MAIN("data", .timeout_s = 60, .begin = make_root, .end = remove_root)
