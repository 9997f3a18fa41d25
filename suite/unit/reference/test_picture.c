/* Reading picture files: right pixels, and a named error for every file that is not whole. */
#include <stdio.h>

#include <jpeglib.h>
#include <png.h>

#include "kernels/core/digest.h"
#include "kernels/core/rng.h"
#include "reference/data/picture.h"
#include "suite/unit/run_suite.h"
#include "data_root.h"

enum { WIDTH = 53, HEIGHT = 37, WHY = 1400 };

static char PATH[128];

static void paint(uint8_t *rgb)
{
    for (int y = 0; y < HEIGHT; y++) {
        for (int x = 0; x < WIDTH; x++) {
            uint8_t *pixel = rgb + (y * WIDTH + x) * 3;
            pixel[0] = (uint8_t)(40 + 3 * x);
            pixel[1] = (uint8_t)(60 + 4 * y);
            pixel[2] = (uint8_t)(200 - x - y);
        }
    }
}

static void write_bytes(const void *bytes, size_t count)
{
    FILE *stream = fopen(PATH, "wb");
    ck_assert(stream != NULL && fwrite(bytes, 1, count, stream) == count);
    ck_assert_int_eq(fclose(stream), 0);
}

static size_t read_bytes(uint8_t *bytes, size_t most)
{
    FILE *stream = fopen(PATH, "rb");
    ck_assert(stream != NULL);
    size_t count = fread(bytes, 1, most, stream);
    fclose(stream);
    return count;
}

/* Of each test: its reader, and what was read last. */
static ls_picture *picture;
static const uint8_t *out;
static int width, height;
static char why[WHY];

/* Reads PATH; why is filled on failure. */
static ls_status decode(void)
{
    why[0] = '\0';
    return ls_picture_read(picture, PATH, &out, &width, &height, why, WHY);
}

static void open_picture(void)
{
    ck_assert_int_eq(ls_picture_create(&picture), LS_OK);
}

static void close_picture(void)
{
    ls_picture_destroy(picture);
}

TEST(round_trip)
{
    uint8_t rgb[WIDTH * HEIGHT * 3];
    paint(rgb);
    ck_assert_int_eq(ls_picture_write_jpeg(PATH, rgb, WIDTH, HEIGHT, 100), LS_OK);
    ck_assert_int_eq(decode(), LS_OK);
    ck_assert(width == WIDTH && height == HEIGHT);
    double sum = 0;
    for (int i = 0; i < WIDTH * HEIGHT * 3; i++) {
        sum += abs(out[i] - rgb[i]);
    }
    /* quality 100 quantises by 1; colour conversion rounds thrice, and halved chroma moves a ramp
     * of 4 levels a pixel by at most 2 */
    ck_assert_double_lt(sum / (WIDTH * HEIGHT * 3), 3.0);
}

static void write_png(const uint8_t *rgb, int interlace)
{
    FILE *stream = fopen(PATH, "wb");
    ck_assert(stream != NULL);
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    png_init_io(png, stream);
    png_set_IHDR(png, info, WIDTH, HEIGHT, 8, PNG_COLOR_TYPE_RGB, interlace,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_bytep rows[HEIGHT];
    for (int y = 0; y < HEIGHT; y++) {
        rows[y] = (png_bytep)(uintptr_t)(rgb + (size_t)y * WIDTH * 3);
    }
    png_set_rows(png, info, rows);
    png_write_png(png, info, PNG_TRANSFORM_IDENTITY, NULL);
    png_destroy_write_struct(&png, &info);
    ck_assert_int_eq(fclose(stream), 0);
}

/* An image of `components` samples a pixel in the library's colour space, stored in another. */
static void write_other(int components, J_COLOR_SPACE space, J_COLOR_SPACE stored)
{
    struct jpeg_compress_struct encoder;
    struct jpeg_error_mgr manager;
    unsigned char *memory = NULL;
    unsigned long bytes = 0;
    encoder.err = jpeg_std_error(&manager);
    jpeg_create_compress(&encoder);
    jpeg_mem_dest(&encoder, &memory, &bytes);
    encoder.image_width = 16;
    encoder.image_height = 16;
    encoder.input_components = components;
    encoder.in_color_space = space;
    jpeg_set_defaults(&encoder);
    jpeg_set_colorspace(&encoder, stored);
    jpeg_set_quality(&encoder, 100, TRUE);
    jpeg_start_compress(&encoder, TRUE);
    uint8_t samples[16 * 4];
    memset(samples, 77, sizeof samples);
    for (int y = 0; y < 16; y++) {
        JSAMPROW row = samples;
        jpeg_write_scanlines(&encoder, &row, 1);
    }
    jpeg_finish_compress(&encoder);
    jpeg_destroy_compress(&encoder);
    write_bytes(memory, bytes);
    free(memory);
}

/* Files that Pillow wrote (rgb16.png: by hand), and the FNV-1a digest of the bytes that its
 * convert("RGB") gives. */
static const struct golden {
    const char *name;
    uint64_t digest;
    const char *hex;
} goldens[] = {
    {"cmyk.jpg", UINT64_C(0xbb1852a976026779),
     "ffd8ffee000e41646f626500640000000000ffdb004300080606070605080707070909080a0c140d0c0b"
     "0b0c1912130f141d1a1f1e1d1a1c1c20242e2720222c231c1c2837292c30313434341f27393d38323c2e"
     "333432ffc00014080007000d044311004d11005911004b1100ffc4001f00000105010101010101000000"
     "00000000000102030405060708090a0bffc400b5100002010303020403050504040000017d0102030004"
     "1105122131410613516107227114328191a1082342b1c11552d1f02433627282090a161718191a252627"
     "28292a3435363738393a434445464748494a535455565758595a636465666768696a737475767778797a"
     "838485868788898a92939495969798999aa2a3a4a5a6a7a8a9aab2b3b4b5b6b7b8b9bac2c3c4c5c6c7c8"
     "c9cad2d3d4d5d6d7d8d9dae1e2e3e4e5e6e7e8e9eaf1f2f3f4f5f6f7f8f9faffda000e0443004d005900"
     "4b00003f001756d77c7daa4d6fa7bf956903a8bcba723102b6ec1db90589dac001df192073490e81abf8"
     "8a28b55f105d3d8e913c5e6c490481ae265650c8c382aaa77679f9be5c6d19c898f8634ed1d3ed9e2893"
     "fb5350572c2dd19beca986057820173c73bbe52188da7192b25c685e09b757b5b7fb4ea889893519d099"
     "19b0c094072230431185ea30096c66ad5ada7863c31be1b8b38f58ba97065b8d42dd24e40c6114821173"
     "938e4f3c9381873f8d34ef0b20d3745b5fb25a0767d8a598b313c966624b1e83249e001d00a863f1078a"
     "3c65a8ddff0060593de7d976f9dfbe48f6eecedfbec339dadd3d2aab683e35f10dbc1aa24d636705c209"
     "205ba9db7491b286571b1580041e8483c1c815ffd9"},
    {"grey.png", UINT64_C(0x0249de2b0f1b86e0),
     "89504e470d0a1a0a0000000d494844520000000d000000070800000000f61b98c6000000214944415478"
     "9c63641046028cf2c83c16649e3c324f1e494e1e49a53cb23ea818005d2d07495f511513000000004945"
     "4e44ae426082"},
    {"bit.png", UINT64_C(0xdd461165006df16c),
     "89504e470d0a1a0a0000000d494844520000000d000000070100000000fb0bfab70000001e4944415478"
     "9c63642d66d0fac0c4f88171fd45863801863f1a8c1b7e0000423f0743cb90682a0000000049454e44ae"
     "426082"},
    {"alpha.png", UINT64_C(0x8714dc18a9723aeb),
     "89504e470d0a1a0a0000000d494844520000000d000000070806000000d370c71a0000003c4944415478"
     "9c636430cd9a2f4c226091979797c721278f422131b169c254856604b226bc8a9199304d389d82c64477"
     "1e76a76003a87ec2633ab23000705e1e2c94c9be340000000049454e44ae426082"},
    {"greyalpha.png", UINT64_C(0x0249de2b0f1b86e0),
     "89504e470d0a1a0a0000000d494844520000000d00000007080400000079790f910000002d4944415478"
     "9c63643015c60158e4e5b18acbe39292171696c722250f2350a5e0c2e876c9238491a550d44300006ad4"
     "0ebffaad21d60000000049454e44ae426082"},
    {"rgb.png", UINT64_C(0x8714dc18a9723aeb),
     "89504e470d0a1a0a0000000d494844520000000d0000000708020000005c12504d000000314944415478"
     "9c636430cd122602b0c8cbcbe3909247a671a94351248f4d9d3c561a591d761568ee43b708b73fb01903"
     "07005f0e165ba76526250000000049454e44ae426082"},
    {"palette.png", UINT64_C(0x5b2a98a5e08aaa3b),
     "89504e470d0a1a0a0000000d494844520000000d000000070403000000215eda2900000030504c5445c1"
     "f62bb0e51a95caa99acf047eb3e86ca1d65e93c84f84b9f3285d4277ace1164bd1063b31669b20558a11"
     "467b03386df694d1a10000004349444154789c013800c7ff01fede9adeddda9504debadeefdf9d4802bb"
     "ceefcdaae6e002cedfcdaad54ec002dfeefad55ebbd004edda9e45dccee0000ba8fdc9754430248223b0"
     "6ed703b70000000049454e44ae426082"},
    {"palette2.png", UINT64_C(0x7078fc06bc9339ad),
     "89504e470d0a1a0a0000000d494844520000000d000000070203000000ae1e2f8900000009504c5445aa"
     "df3e699ed3703f74fbe37dd00000000274524e53ff00e5b7304a0000002e49444154789c012300dcff00"
     "a955028002fcff080002b0eca00002ffca00c002fc20fb0004b2a8eb000228ffc0c0ff050f5a97673ba7"
     "0000000049454e44ae426082"},
    {"grey16.png", UINT64_C(0x3e40793c8fb95f6a),
     "89504e470d0a1a0a0000000d494844520000000d000000071000000000a68b4485000000c34944415478"
     "9c05c12d2c04000006d0efcf04c10414849b608209269004134cb85d700a82092608a6209860174c3001"
     "c504c1041350104cb00b264804134c30c10414de0380095cb2954b7c549fb6f5ed519fa631f3c02e7e39"
     "c673356b410feef1a63f53cc31eac15e6ef14b259db8c173be4b57d6f38e611c82f7ead6863e3ce2a3d4"
     "6526b7e8c01a5e3908cdaaea4e57fc96a11ca00653b866812b7c866b3ded9bb467352f18c01efe38ce0b"
     "b56811de0f33992bb461194fece70e7f54d6999bfe01c99b2d9c78da703d0000000049454e44ae426082"},
    {"rgb16.png", UINT64_C(0xc933b9b72d0028e8),
     "89504e470d0a1a0a0000000d494844520000000d0000000710020000000c828c0e000002344944415478"
     "9c012902d6fd00004d35826ab7136048957dca26735ba890dd39866ebba3f04c9981ceb7035fac94e1ca"
     "1672bfa7f4dd2985d2bb07f03c98e5ce1a024fabf8e12d1562bf0bf4402875d21e06533b88e53119664e"
     "9b001f6c54a189d6327f67b49ce945927ac7affc58a58ddac30f6bb8a0edd6227ecbb400e93591dec713"
     "fc48a4f1da260e5bb804ed39216ecb17004c3481de2a125f4794f13d25725aa7035038856dba003e8b73"
     "c0a8f5519e86d3bc0864b199e6cf1b77c4acf9e22e8ad7c00cf5419dead31f0754b0fde6321a67c410f9"
     "452d7ad7230b58408dea361e6b53a0fd49317e66b30f5c449179c6226f57a48cd9005daa92dfc81470bd"
     "a5f2db2783d0b905ee3a96e3cc18004da9f6df2b1360bd09f23e2673d01c04513986e32f17644c99f642"
     "2a775fac08553d8a72bf1b68509d85d22e7b63b098e5418e76c3abf8007cc9b1fee7338fdcc511fa46a2"
     "efd8240c59b602eb371f6cc915fe4a327fdc28105d4592ef3b237058a5014e36836bb8146149967ecb27"
     "745ca991de3a876fbca4f14d9a82cfb80460ad95e2cb17009be8d11d0552aefbe4301865c20ef7432b78"
     "d52109563e8be8341c69519efb472f7c64b10d5a428f77c4206d55a28ad7338068b59dea46937bc8b0fd"
     "59a68edbc4106cb9a1eed7237fccb501ea3600bb07f03c2471ce1a024f3784e12d15624a97f44028755d"
     "aa06533b8870bd19664e9b83d02c7961ae96e33f8c74c1a9f6529f87d4bd0965b29ae7d01c78c5adfae3"
     "2f8bd8c10df6429eebd420085515da0d06c7208e510000000049454e44ae426082"},
};

static void write_golden(const struct golden *golden)
{
    static uint8_t bytes[1024];
    size_t count = strlen(golden->hex) / 2;
    for (size_t i = 0; i < count; i++) {
        unsigned value;
        ck_assert_int_eq(sscanf(golden->hex + 2 * i, "%2x", &value), 1);
        bytes[i] = (uint8_t)value;
    }
    write_bytes(bytes, count);
}

/* Every kind of file, whatever its name says: PATH ends in .jpg. */
TEST(pixels_are_those_of_pillow)
{
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++) {
        write_golden(&goldens[i]);
        ck_assert_msg(decode() == LS_OK, "%s", why);
        ck_assert(width == 13 && height == 7);
        uint64_t digest = ls_digest_update(LS_DIGEST_START, out, 13 * 7 * 3);
        ck_assert_msg(digest == goldens[i].digest, "%s", goldens[i].name);
        ck_assert(ls_picture_known(PATH));
        ck_assert_int_eq(ls_picture_check(picture, PATH, why, WHY), LS_OK);
    }
}

TEST(grey_and_ycck)
{
    write_other(1, JCS_GRAYSCALE, JCS_GRAYSCALE);
    ck_assert_int_eq(decode(), LS_OK);
    for (int i = 0; i < 16 * 16 * 3; i++) {
        ck_assert_int_eq(out[i], 77);
    }
    /* 77 of 255 stored: ink of 178 in each of four colours, so white minus 178, of 77 / 255 */
    for (int space = 0; space < 2; space++) {
        write_other(4, JCS_CMYK, space == 0 ? JCS_CMYK : JCS_YCCK);
        ck_assert_int_eq(decode(), LS_OK);
        for (int i = 0; i < 16 * 16 * 3; i++) {
            ck_assert_int_eq(out[i], 23);
        }
    }
}

/* An interlaced file has the pixels of one that is not. */
TEST(interlaced)
{
    uint8_t rgb[WIDTH * HEIGHT * 3];
    paint(rgb);
    for (int way = PNG_INTERLACE_NONE; way <= PNG_INTERLACE_ADAM7; way++) {
        write_png(rgb, way);
        ck_assert_int_eq(decode(), LS_OK);
        ck_assert(width == WIDTH && height == HEIGHT);
        ck_assert_mem_eq(out, rgb, sizeof rgb);
    }
}

/* Every shorter file is an error that names it, the one that lacks but its last byte, too. */
TEST(every_truncation)
{
    uint8_t rgb[WIDTH * HEIGHT * 3], whole[1 << 14];
    paint(rgb);
    for (int png = 0; png < 2; png++) {
        if (png) {
            write_png(rgb, PNG_INTERLACE_NONE);
        } else {
            ck_assert_int_eq(ls_picture_write_jpeg(PATH, rgb, WIDTH, HEIGHT, 90), LS_OK);
        }
        size_t bytes = read_bytes(whole, sizeof whole);
        ck_assert_uint_lt(bytes, sizeof whole);
        for (size_t cut = 0; cut < bytes; cut++) {
            write_bytes(whole, cut);
            ck_assert_msg(decode() == LS_ERR_USAGE, "%zu of %zu bytes pass as an image", cut,
                          bytes);
            ck_assert_ptr_nonnull(strstr(why, PATH));
            ck_assert_int_eq(ls_picture_check(picture, PATH, why, WHY), LS_ERR_USAGE);
            if (cut == 0) {
                ck_assert_ptr_nonnull(strstr(why, "empty"));
            } else if (cut == bytes / 2 || cut == bytes - 1) {
                ck_assert_ptr_nonnull(strstr(why, "truncated"));
            }
        }
        write_bytes(whole, bytes);
        ck_assert_int_eq(decode(), LS_OK);
        write_bytes("", 0);
        ck_assert(!ls_picture_known(PATH));
    }
    write_bytes("GIF89a, and not a JPEG at all", 29);
    ck_assert_int_eq(decode(), LS_ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(why, "not a JPEG or PNG"));
    ck_assert_int_eq(ls_picture_check(picture, PATH, why, WHY), LS_ERR_USAGE);
    ck_assert(!ls_picture_known(PATH) && !ls_picture_known("/nowhere/x.jpg"));
    ck_assert_int_eq(ls_picture_read(picture, "/nowhere/x.jpg", &out, &width, &height, why, WHY),
                     LS_ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(why, "/nowhere/x.jpg"));
}

/* A grey progressive image of side x side pixels with its last scan `times` times more. */
static void write_scans(unsigned side, int times)
{
    struct jpeg_error_mgr manager;
    struct jpeg_compress_struct encoder = {.err = jpeg_std_error(&manager)};
    unsigned char *memory = NULL, *row = calloc(side, 1);
    unsigned long bytes = 0, scan = 0;
    jpeg_create_compress(&encoder);
    jpeg_mem_dest(&encoder, &memory, &bytes);
    encoder.image_width = encoder.image_height = side;
    encoder.input_components = 1;
    encoder.in_color_space = JCS_GRAYSCALE;
    jpeg_set_defaults(&encoder);
    jpeg_simple_progression(&encoder);
    jpeg_start_compress(&encoder, TRUE);
    while (encoder.next_scanline < side) {
        jpeg_write_scanlines(&encoder, &row, 1);
    }
    jpeg_finish_compress(&encoder);
    jpeg_destroy_compress(&encoder);
    for (unsigned long i = 0; i + 1 < bytes; i++) {
        scan = memory[i] == 0xff && memory[i + 1] == 0xda ? i : scan;
    }
    FILE *stream = fopen(PATH, "wb");
    ck_assert(stream != NULL && fwrite(memory, 1, bytes - 2, stream) == bytes - 2);
    for (int i = 0; i < times; i++) {
        ck_assert_uint_eq(fwrite(memory + scan, 1, bytes - 2 - scan, stream), bytes - 2 - scan);
    }
    ck_assert(fwrite("\xff\xd9", 1, 2, stream) == 2 && fclose(stream) == 0);
    free(memory);
    free(row);
}

/* A small file may ask for much memory or time: 51 KB took 22 s before scans were counted. */
TEST(costly_files)
{
    write_scans(2048, 10);
    ck_assert_int_eq(decode(), LS_OK);
    ck_assert(width == 2048 && height == 2048);
    write_scans(2048, 400);
    ck_assert_int_eq(decode(), LS_ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(why, "more than 256 scans of 2048 x 2048 pixels"));
    write_scans(8200, 0);
    ck_assert_int_eq(decode(), LS_ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(why, "more than 2^26 pixels in several scans"));
}

/* Flipped bytes must do nothing worse than an error or other pixels. */
TEST(broken_bytes)
{
    uint8_t rgb[WIDTH * HEIGHT * 3], whole[1 << 14], broken[1 << 14];
    paint(rgb);
    int failed = 0;
    uint32_t bytes = 0;
    for (uint64_t i = 0; i < 800; i++) {
        if (i == 0) {
            ck_assert_int_eq(ls_picture_write_jpeg(PATH, rgb, WIDTH, HEIGHT, 90), LS_OK);
        } else if (i == 400) {
            ck_assert_int_gt(failed, 10);
            write_png(rgb, PNG_INTERLACE_ADAM7);
        }
        bytes = i % 400 == 0 ? (uint32_t)read_bytes(whole, sizeof whole) : bytes;
        memcpy(broken, whole, bytes);
        for (uint64_t n = 0; n < 3; n++) {
            broken[ls_rng_below(1, n, i, bytes)] = (uint8_t)ls_rng_below(2, n, i, 256);
        }
        write_bytes(broken, bytes);
        ls_status status = decode();
        ck_assert(status == LS_OK || status == LS_ERR_USAGE);
        ck_assert((status == LS_OK) == (why[0] == '\0'));
        failed += status != LS_OK;
    }
    ck_assert_int_gt(failed, 300); /* a checksum finds nearly all of a PNG file's */
}

static void make_picture_root(void)
{
    make_root();
    snprintf(PATH, sizeof PATH, "%s/image.jpg", ROOT);
}

TEST_MAIN("picture", .timeout_s = 60, .before = open_picture, .after = close_picture,
          .begin = make_picture_root, .end = remove_root)
