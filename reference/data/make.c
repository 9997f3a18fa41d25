#include "make.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/rng.h"
#include "kernels/core/text.h"
#include "picture.h"

/* ---- pictures -------------------------------------------------------------------------------- */

/* The random properties of a picture. Lengths are in halves of the shorter side; the origin is the
 * centre of the shape. */
typedef struct look {
    double x, y, cosine, sine; /* position and rotation */
    double radius;             /* of a shape */
    double period, phase;      /* of a texture */
    float back[3], front[3];   /* colours, 0 to 255 */
    float light_x, light_y;    /* gradient of the light over the picture */
    float noise;               /* amplitude in levels */
    uint32_t key;              /* of the noise */
} look;

static float unit(uint64_t seed, uint64_t stream, uint64_t draw)
{
    return ls_rng_uniform(seed, stream, draw);
}

/* Each picture has its own random stream. */
static uint64_t picture_stream(int kind, int64_t index)
{
    return ls_rng_stream("picture") + (uint64_t)index * LS_MAKE_CLASSES + (uint64_t)kind;
}

/* Two colours that differ by at least 90 levels in one channel; either may be the lighter. */
static void choose_colours(uint64_t seed, uint64_t stream, look *look)
{
    for (int c = 0; c < 3; c++) {
        look->back[c] = 30.0f + 195.0f * unit(seed, stream, 20 + (uint64_t)c);
        look->front[c] = 30.0f + 195.0f * unit(seed, stream, 30 + (uint64_t)c);
    }
    int strong = (int)ls_rng_below(seed, stream, 40, 3);
    float distance = 90.0f + 60.0f * unit(seed, stream, 41);
    float back = look->back[strong];
    look->front[strong] = back < 128.0f ? back + distance : back - distance;
}

static look choose_look(uint64_t seed, int kind, int64_t index)
{
    uint64_t stream = picture_stream(kind, index);
    const double pi = 3.14159265358979323846;
    look look = {0};
    look.x = 0.5 * (double)(unit(seed, stream, 1) - 0.5f);
    look.y = 0.5 * (double)(unit(seed, stream, 2) - 0.5f);
    double turn = (double)(unit(seed, stream, 3) - 0.5f) * pi / 7.0; /* at most 13 degrees */
    look.cosine = cos(turn);
    look.sine = sin(turn);
    look.radius = 0.45 + 0.3 * (double)unit(seed, stream, 4);
    look.period = 0.3 + 0.25 * (double)unit(seed, stream, 5);
    look.phase = (double)unit(seed, stream, 6);
    look.light_x = 0.4f * (unit(seed, stream, 7) - 0.5f);
    look.light_y = 0.4f * (unit(seed, stream, 8) - 0.5f);
    look.noise = 6.0f + 18.0f * unit(seed, stream, 9);
    look.key = ls_rng_philox(seed, stream, 10).word[0];
    choose_colours(seed, stream, &look);
    return look;
}

/* ---- the ten classes: how far inside the drawn part a point is (negative: outside) ----------- */

/* Stripes of equal width along t. */
static double wave(double t)
{
    return 0.25 - fabs(t - floor(t) - 0.5);
}

static double inside_checker(const look *look, double x, double y)
{
    double a = wave(x / (2 * look->period) + look->phase), b = wave(y / (2 * look->period));
    double nearest = fabs(a) < fabs(b) ? fabs(a) : fabs(b);
    return ((a > 0) == (b > 0) ? nearest : -nearest) * 2 * look->period;
}

static double inside_circle(const look *look, double x, double y)
{
    return look->radius - sqrt(x * x + y * y);
}

static double inside_cross(const look *look, double x, double y)
{
    double a = fabs(x), b = fabs(y), arm = 0.3 * look->radius;
    double tall = fmin(arm - a, look->radius - b), wide = fmin(look->radius - a, arm - b);
    return fmax(tall, wide);
}

static double inside_diagonal(const look *look, double x, double y)
{
    return wave((x + y) * 0.7071067811865476 / look->period + look->phase) * look->period;
}

static double inside_dots(const look *look, double x, double y)
{
    double u = x / look->period + look->phase, v = y / look->period;
    u -= floor(u) + 0.5;
    v -= floor(v) + 0.5;
    return (0.27 - sqrt(u * u + v * v)) * look->period;
}

static double inside_horizontal(const look *look, double x, double y)
{
    (void)x;
    return wave(y / look->period + look->phase) * look->period;
}

static double inside_ring(const look *look, double x, double y)
{
    return 0.16 * look->radius - fabs(sqrt(x * x + y * y) - 0.8 * look->radius);
}

static double inside_square(const look *look, double x, double y)
{
    return 0.85 * look->radius - fmax(fabs(x), fabs(y));
}

static double inside_triangle(const look *look, double x, double y)
{
    /* the largest of the three distances to the sides of an upright equilateral triangle */
    double side = 0.8660254037844386 * fabs(x) - 0.5 * y;
    return 0.55 * look->radius - fmax(side, y);
}

static double inside_vertical(const look *look, double x, double y)
{
    (void)y;
    return wave(x / look->period + look->phase) * look->period;
}

typedef double inside_fn(const look *look, double x, double y);

static const struct {
    const char *name;
    inside_fn *inside;
} CLASSES[LS_MAKE_CLASSES] = {
    {"checker", inside_checker},   {"circle", inside_circle}, {"cross", inside_cross},
    {"diagonal", inside_diagonal}, {"dots", inside_dots},     {"horizontal", inside_horizontal},
    {"ring", inside_ring},         {"square", inside_square}, {"triangle", inside_triangle},
    {"vertical", inside_vertical},
};

const char *ls_make_class_name(int kind)
{
    return CLASSES[kind].name;
}

void ls_make_size(uint64_t seed, int kind, int64_t index, int size, int *width, int *height)
{
    uint64_t stream = picture_stream(kind, index);
    *width = (int)((float)size * (1.0f + 0.6f * unit(seed, stream, 50))) + 1;
    *height = (int)((float)size * (1.0f + 0.6f * unit(seed, stream, 51))) + 1;
}

static uint32_t mix(uint32_t value)
{
    value ^= value >> 16;
    value *= 0x7feb352du; /* Wellons' "lowbias32" */
    value ^= value >> 15;
    value *= 0x846ca68bu;
    return value ^ (value >> 16);
}

void ls_make_picture(uint64_t seed, int kind, int64_t index, int width, int height, uint8_t *rgb)
{
    look look = choose_look(seed, kind, index);
    double half = 0.5 * (width < height ? width : height);
    for (int row = 0; row < height; row++) {
        for (int column = 0; column < width; column++) {
            double u = (column + 0.5 - 0.5 * width) / half - look.x;
            double v = (row + 0.5 - 0.5 * height) / half - look.y;
            double x = look.cosine * u + look.sine * v, y = look.cosine * v - look.sine * u;
            /* an edge is one pixel wide */
            double cover = CLASSES[kind].inside(&look, x, y) * half + 0.5;
            float share = cover < 0 ? 0.0f : cover > 1 ? 1.0f : (float)cover;
            float light = 1.0f + look.light_x * (float)u + look.light_y * (float)v;
            int64_t pixel = (int64_t)row * width + column;
            uint32_t word = mix((uint32_t)pixel ^ look.key);
            for (int c = 0; c < 3; c++) {
                float noise = ((float)((word >> (10 * c)) & 1023u) - 511.5f) * (1.0f / 512.0f);
                float level = look.back[c] + share * (look.front[c] - look.back[c]);
                level = level * light + noise * look.noise;
                level = level < 0.0f ? 0.0f : level > 255.0f ? 255.0f : level;
                rgb[3 * pixel + c] = (uint8_t)(level + 0.5f);
            }
        }
    }
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* The marker is first written with `making` and at the end with `complete`, so that an interrupted
 * folder is recognised as ours and made again. */
#define MARKER ".lockstep-data"
enum { QUALITY = 90, PATH_BYTES = 1024, MARKER_BYTES = 256 };

static ls_status is_empty(const char *dir, bool *out)
{
    DIR *stream = opendir(dir);
    if (stream == NULL) {
        return ls_log_fail(LS_ERR_USAGE, "cannot read the folder %s: %s", dir, strerror(errno));
    }
    *out = true;
    for (struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            *out = false;
        }
    }
    closedir(stream);
    return LS_OK;
}

static ls_status write_marker(const char *dir, const char *text)
{
    LS_TEXT(path, PATH_BYTES + 32, "%s/" MARKER, dir);
    return ls_file_replace(path, text, strlen(text));
}

/* Reads the marker; "" if there is none. */
static void read_marker(const char *dir, char text[MARKER_BYTES])
{
    LS_TEXT(path, PATH_BYTES + 32, "%s/" MARKER, dir);
    char *marker = ls_text_read(path);
    ls_text_put(text, MARKER_BYTES, "%s", marker == NULL ? "" : marker);
    free(marker);
}

/* Examines an existing folder. *done: complete with these arguments. */
static ls_status look_at(const char *dir, const char *making, const char *complete, bool *done)
{
    char marker[MARKER_BYTES];
    bool empty = false;
    LS_TRY(is_empty(dir, &empty));
    read_marker(dir, marker);
    *done = strcmp(marker, complete) == 0;
    if (empty || *done || strcmp(marker, making) == 0) {
        return LS_OK;
    }
    if (marker[0] == '\0') {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s is not empty and was not made by this command; name another folder",
                           dir);
    }
    char *line = strchr(marker, '\n');
    if (line != NULL) {
        *line = '\0';
    }
    return ls_log_fail(LS_ERR_USAGE,
                       "%s was made with other settings (%s); name another folder or remove it",
                       dir, marker);
}

static ls_status make_image(const char *dir, int kind, int64_t index, int size, uint64_t seed,
                            uint8_t *rgb)
{
    int width, height;
    ls_make_size(seed, kind, index, size, &width, &height);
    ls_make_picture(seed, kind, index, width, height, rgb);
    LS_TEXT(path, PATH_BYTES + 64, "%s/%s/%05lld.jpg", dir, ls_make_class_name(kind),
            (long long)index + 1);
    return ls_picture_write_jpeg(path, rgb, width, height, QUALITY);
}

static ls_status make_images(const char *dir, int images_per_class, int size, uint64_t seed)
{
    size_t side = (size_t)size * 2; /* more than the largest picture */
    uint8_t *rgb = malloc(side * side * 3);
    LS_TRY_MEMORY(rgb != NULL, "a picture of %zu pixels", side * side);
    ls_status status = LS_OK;
    for (int kind = 0; kind < LS_MAKE_CLASSES && status == LS_OK; kind++) {
        LS_TEXT(path, PATH_BYTES + 64, "%s/%s", dir, ls_make_class_name(kind));
        status = ls_path_make_folder(path);
        for (int index = 0; index < images_per_class && status == LS_OK; index++) {
            status = make_image(dir, kind, index, size, seed, rgb);
        }
    }
    free(rgb);
    return status;
}

ls_status ls_make_folder(const char *dir, int images_per_class, int image_size, uint64_t seed)
{
    if (images_per_class < 1 || images_per_class > 99999) {
        return ls_log_fail(LS_ERR_USAGE, "--images %d: 1 to 99999 images per class",
                           images_per_class);
    }
    if (image_size < 8 || image_size > 4096) {
        return ls_log_fail(LS_ERR_USAGE, "--size %d: 8 to 4096 pixels", image_size);
    }
    static const char format[] = "--images %d --size %d --seed %llu, format 1\n%s\n";
    unsigned long long number = seed;
    LS_TEXT(making, MARKER_BYTES, format, images_per_class, image_size, number, "making");
    LS_TEXT(complete, MARKER_BYTES, format, images_per_class, image_size, number, "complete");
    bool done;
    if (dir[0] == '\0' || strlen(dir) + 64 > PATH_BYTES) {
        return ls_log_fail(LS_ERR_USAGE, "the folder's path must have 1 to %d bytes",
                           PATH_BYTES - 64);
    }
    LS_TRY(ls_path_make_folder(dir));
    LS_TRY(look_at(dir, making, complete, &done));
    if (done) {
        return LS_OK;
    }
    LS_TRY(write_marker(dir, making));
    LS_TRY(make_images(dir, images_per_class, image_size, seed));
    return write_marker(dir, complete);
}
