/* The parts below everything: rounding to half (every value, every tie), random numbers against
 * published answers, fingerprints, lines of JSON, memory, words, command lines, optimizers. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

#include "kernels/core/arena.h"
#include "kernels/core/digest.h"
#include "kernels/core/file.h"
#include "kernels/core/half.h"
#include "kernels/core/json.h"
#include "kernels/core/rng.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/plain.h"
#include "kernels/core/text.h"
#include "kernels/core/tensor.h"
#include "kernels/core/usage.h"
#include "kernels/optimizers.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"

/* ---- half ------------------------------------------------------------------------------------ */

typedef struct half_type {
    const char *name;
    int significand, exponent; /* bits */
    float (*widen)(uint16_t);
    uint16_t (*narrow)(float);
} half_type;

/* inline functions have no address that could be shared, so these stand in for them */
static float widen_fp16(uint16_t half)
{
    return ls_half_fp16_to_f32(half);
}
static uint16_t narrow_fp16(float value)
{
    return ls_half_f32_to_fp16(value);
}
static float widen_bf16(uint16_t half)
{
    return ls_half_bf16_to_f32(half);
}
static uint16_t narrow_bf16(float value)
{
    return ls_half_f32_to_bf16(value);
}

static const half_type types[] = {{"fp16", 10, 5, widen_fp16, narrow_fp16},
                                  {"bf16", 7, 8, widen_bf16, narrow_bf16}};

/* The value of a pattern by IEEE 754's definition, exact in double; inf where the exponent is all
 * ones. */
static double defined_value(const half_type *type, uint16_t half)
{
    int exponent = half >> type->significand & ((1 << type->exponent) - 1);
    int fraction = half & ((1 << type->significand) - 1);
    int bias = (1 << (type->exponent - 1)) - 1;
    double magnitude = exponent == 0 ? ldexp(fraction, 1 - bias - type->significand)
                                     : ldexp(fraction + (1 << type->significand),
                                             exponent - bias - type->significand);
    return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

static uint16_t infinity_of(const half_type *type)
{
    return (uint16_t)(((1 << type->exponent) - 1) << type->significand);
}

static bool widens_and_returns(const half_type *type, uint16_t half)
{
    uint16_t infinity = infinity_of(type), magnitude = half & 0x7fff;
    float value = type->widen(half);
    uint16_t back = type->narrow(value);
    if (magnitude > infinity) {
        bool quiet = (back >> (type->significand - 1) & 1) == 1;
        return isnan(value) && (back & 0x7fff) > infinity && (back & 0x8000) == (half & 0x8000) &&
               quiet;
    }
    if (magnitude == infinity) {
        return isinf(value) && (value < 0) == (half != magnitude) && back == half;
    }
    return (double)value == defined_value(type, half) && back == half;
}

/* All 65536 patterns widen to their value and narrow back to themselves; a NaN stays one, quiet. */
LOOP_TEST(every_half_widens_and_returns, 2)
{
    for (uint32_t half = 0; half < 65536; half++) {
        if (!widens_and_returns(&types[_i], (uint16_t)half)) {
            ck_abort_msg("%s %04x", types[_i].name, half);
        }
    }
}

/* The midpoint between `half` and the next value rounds to the even one, a value one f32 step off
 * it to the nearer one. */
static bool ties_to_even(const half_type *type, uint16_t half, float tie, float sign)
{
    uint16_t bit = sign < 0 ? 0x8000 : 0, next = (uint16_t)(half + 1);
    uint16_t even = (half & 1) == 0 ? half : next;
    return type->narrow(sign * tie) == (even | bit) &&
           type->narrow(sign * nextafterf(tie, 0.0f)) == (half | bit) &&
           type->narrow(sign * nextafterf(tie, INFINITY)) == (next | bit);
}

/* Between every two neighbours. The middle of the largest and what would follow it (65520 for fp16)
 * is the first that becomes inf. */
LOOP_TEST(every_tie, 2)
{
    const half_type *type = &types[_i];
    int ties = 0;
    for (uint16_t half = 0; half < infinity_of(type); half++) {
        double middle = (defined_value(type, half) + defined_value(type, (uint16_t)(half + 1))) / 2;
        float tie = (float)middle;
        ties += (double)tie == middle; /* f32 holds every middle */
        if (!ties_to_even(type, half, tie, 1.0f) || !ties_to_even(type, half, tie, -1.0f)) {
            ck_abort_msg("%s tie above %04x", type->name, half);
        }
    }
    ck_assert_int_eq(ties, infinity_of(type));
}

/* What no pattern and no tie above is. */
TEST(half_extremes)
{
    ck_assert(ls_half_f32_to_fp16(1e30f) == 0x7c00 && ls_half_f32_to_fp16(0x1p-126f) == 0);
    /* a signalling NaN with only low payload bits must not become inf */
    ck_assert((ls_half_f32_to_fp16(ls_half_f32_of_bits(0x7f800001u)) & 0x7fff) > 0x7c00);
    ck_assert((ls_half_f32_to_bf16(ls_half_f32_of_bits(0xff800001u)) & 0x7fff) > 0x7f80);
}

/* ---- random numbers -------------------------------------------------------------------------- */

/* Known answers of the Random123 library (kat_vectors, philox4x32 with 10 rounds). */
TEST(philox)
{
    static const uint32_t zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    static const uint32_t ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    static const uint32_t pi[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    ls_rng_block block = ls_rng_philox(0, 0, 0);
    ck_assert_mem_eq(block.word, zeros, sizeof zeros);
    block = ls_rng_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX);
    ck_assert_mem_eq(block.word, ones, sizeof ones);
    /* counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0, low words first */
    block = ls_rng_philox(0x299f31d0a4093822u, 0x0370734413198a2eu, 0x85a308d3243f6a88u);
    ck_assert_mem_eq(block.word, pi, sizeof pi);
}

/* What torch.randperm printed. */
TEST(permutations)
{
    static const int64_t seed0[10] = {4, 1, 7, 5, 3, 9, 0, 8, 6, 2};
    static const int64_t seed1[10] = {5, 6, 1, 2, 0, 8, 9, 3, 7, 4};
    int64_t order[1000];
    ls_rng_permutation(0, 10, order);
    ck_assert_mem_eq(order, seed0, sizeof seed0);
    ls_rng_permutation(1, 10, order);
    ck_assert_mem_eq(order, seed1, sizeof seed1);
    /* only the low 32 bits of a seed count */
    ls_rng_permutation(UINT64_C(1) << 32 | 1, 10, order);
    ck_assert_mem_eq(order, seed1, sizeof seed1);
    bool seen[1000] = {false};
    ls_rng_permutation(42, 1000, order); /* draws twice through the state */
    for (int i = 0; i < 1000; i++) {
        ck_assert(order[i] >= 0 && order[i] < 1000);
        ck_assert(!seen[order[i]]);
        seen[order[i]] = true;
    }
    ls_rng_permutation(0, 0, order);
    ls_rng_permutation(0, 1, order);
    ck_assert_int_eq(order[0], 0);
}

/* Sums over 100,000 draws; five standard errors of each estimate, of a fixed draw. */
TEST(distributions)
{
    enum { DRAWS = 100000, FACES = 7 };
    double uniform = 0, normal = 0, square = 0;
    int face[FACES] = {0}, outside = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        float u = ls_rng_uniform(1, 2, i), z = ls_rng_normal(1, 3, i);
        outside += !(u >= 0.0f && u < 1.0f && isfinite(z));
        uniform += u;
        normal += z;
        square += (double)z * z;
        face[ls_rng_below(1, 4, i, FACES)]++;
    }
    ck_assert_int_eq(outside, 0);
    ck_assert_double_le(fabs(uniform / DRAWS - 0.5), 5 * sqrt(1.0 / 12 / DRAWS));
    ck_assert_double_le(fabs(normal / DRAWS), 5 * sqrt(1.0 / DRAWS));
    ck_assert_double_le(fabs(square / DRAWS - 1), 5 * sqrt(2.0 / DRAWS));
    for (int i = 0; i < FACES; i++) {
        double want = (double)DRAWS / FACES;
        ck_assert_double_le(fabs(face[i] - want), 5 * sqrt(want * (1 - 1.0 / FACES)));
    }
    ck_assert(ls_rng_stream("a") != ls_rng_stream("b"));
    ck_assert(ls_rng_uniform(1, 2, 3) == ls_rng_uniform(1, 2, 3));
}

static void write_hex(const unsigned char digest[LS_SHA256_BYTES], char *hex)
{
    for (int i = 0; i < LS_SHA256_BYTES; i++) {
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    }
}

/* ---- fingerprints ---------------------------------------------------------------------------- */

/* FNV-1a, 64 bit, from the authors' test suite. */
TEST(digests)
{
    ck_assert(ls_digest_update(LS_DIGEST_START, "", 0) == UINT64_C(0xcbf29ce484222325));
    ck_assert(ls_digest_update(LS_DIGEST_START, "a", 1) == UINT64_C(0xaf63dc4c8601ec8c));
    ck_assert(ls_digest_update(LS_DIGEST_START, "foobar", 6) == UINT64_C(0x85944171f73967e8));
    uint64_t part = ls_digest_update(LS_DIGEST_START, "foo", 3);
    ck_assert(ls_digest_update(part, "bar", 3) == UINT64_C(0x85944171f73967e8));
}

/* Several at once, of unlike lengths, are the same as one after the other. */
TEST(digests_at_once)
{
    unsigned char bytes[4][97];
    static const size_t lengths[4] = {97, 0, 13, 64};
    const void *data[4];
    for (int i = 0; i < 4; i++) {
        for (size_t j = 0; j < sizeof bytes[i]; j++) {
            bytes[i][j] = (unsigned char)(31 * i + 7 * (int)j);
        }
        data[i] = bytes[i];
    }
    for (int count = 0; count <= LS_DIGEST_STREAMS; count++) {
        uint64_t digest[4] = {LS_DIGEST_START, 1, 2, 3};
        uint64_t want[4] = {LS_DIGEST_START, 1, 2, 3};
        for (int i = 0; i < count; i++) {
            want[i] = ls_digest_update(want[i], data[i], lengths[i]);
        }
        ls_digest_update_many(count, digest, data, lengths);
        ck_assert_mem_eq(digest, want, sizeof want);
    }
}

/* SHA-256 of FIPS 180-4's examples and around the block's length; HMAC of RFC 4231, cases 1, 2 and
 * 6 (a key longer than a block). */
TEST(sha256)
{
    static const struct {
        const char *text, *hex;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    static const struct {
        int key_byte, key_bytes;
        const char *text, *hex;
    } authenticated[] = {
        {0x0b, 20, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {0xaa, 131, "Test Using Larger Than Block-Size Key - Hash Key First",
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
    };
    unsigned char digest[LS_SHA256_BYTES], key[131];
    char hex[2 * LS_SHA256_BYTES + 1];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        for (size_t part = 0; part <= strlen(known[i].text); part++) {
            ls_sha256 hash;
            ls_sha256_start(&hash);
            ls_sha256_update(&hash, known[i].text, part);
            ls_sha256_update(&hash, known[i].text + part, strlen(known[i].text) - part);
            ls_sha256_end(&hash, digest);
            write_hex(digest, hex);
            ck_assert_str_eq(hex, known[i].hex);
        }
    }
    for (size_t i = 0; i < sizeof authenticated / sizeof *authenticated; i++) {
        memset(key, authenticated[i].key_byte, sizeof key);
        ls_sha256_hmac(key, (size_t)authenticated[i].key_bytes, authenticated[i].text,
                       strlen(authenticated[i].text), digest);
        write_hex(digest, hex);
        ck_assert_str_eq(hex, authenticated[i].hex);
    }
    ls_sha256_hmac("Jefe", 4, "what do ya want for nothing?", 28, digest);
    write_hex(digest, hex);
    ck_assert_str_eq(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(values_that_are_not_finite)
{
    float wide[3] = {3.4e38f, -1e-45f, 0};
    uint16_t half[3] = {0x7bff, 0xfbff, 1}, brain[3] = {0x7f7f, 0xff7f, 1};
    double double_wide[3] = {1e308, -1e-320, 0};
    int32_t whole[3] = {-1, INT32_MAX, 0x7f800000};
    struct {
        ls_dtype dtype;
        void *data;
    } list[] = {{LS_F32, wide}, {LS_F16, half}, {LS_BF16, brain}, {LS_F64, double_wide}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        ck_assert_int_eq(ls_dtype_non_finite(list[i].dtype, list[i].data, 3), -1);
    }
    wide[2] = -INFINITY;
    half[2] = 0xfc00;
    brain[2] = 0x7fc0;
    double_wide[2] = NAN;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        ck_assert_int_eq(ls_dtype_non_finite(list[i].dtype, list[i].data, 3), 2);
        ck_assert_int_eq(ls_dtype_non_finite(list[i].dtype, list[i].data, 2), -1);
    }
    ck_assert_int_eq(ls_dtype_non_finite(LS_I32, whole, 3), -1);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static char path[PATH_MAX];

static void write_text(const char *text)
{
    const char *base = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/test_core.XXXXXX", base != NULL ? base : "/tmp");
    int descriptor = mkstemp(path);
    ck_assert_int_ge(descriptor, 0);
    ck_assert_int_eq(write(descriptor, text, strlen(text)), (ssize_t)strlen(text));
    close(descriptor);
}

static ls_status add_up(void *context, const cJSON *value, int line_number)
{
    int *sum = context;
    *sum += line_number * ls_json_int(value, "x", 0);
    return ls_json_bool(value, "stop", false) ? LS_ERR_CHECK : LS_OK;
}

TEST(json_lines)
{
    char killed[4000];
    ls_text_put(killed, sizeof killed, "{\"x\":1}%3000s\n{\"x\":10}\n{\"x\":100", "");
    const struct {
        const char *text;
        ls_status status;
        int sum;
    } rows[] = {
        {killed, LS_OK, 21}, /* the last writer was killed */
        {"{\"x\":1}\n{\"x\":10\n{\"x\":100}\n", LS_ERR_INFRA,
         1}, /* a cut line inside is an error */
        {"{\"x\":1,\"stop\":true}\n{\"x\":10}\n", LS_ERR_CHECK, 1}, /* a visitor's status ends it */
        {"", LS_OK, 0},
    };
    char *newlines = malloc(1 << 16); /* the memory that the text will be read into */
    memset(newlines, '\n', 1 << 16);
    free(newlines);
    int sum = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++, sum = 0) {
        write_text(rows[i].text);
        ck_assert_int_eq(ls_json_each_line(path, add_up, &sum), rows[i].status);
        ck_assert_int_eq(sum, rows[i].sum);
        unlink(path);
    }
    ck_assert_int_eq(ls_json_each_line(path, add_up, &sum), LS_ERR_INFRA); /* no such file */
}

TEST(json_integers)
{
    int64_t out = 7;
    static const double none[] = {1e300,    -1e300,    INFINITY, -INFINITY, NAN, 0x1p63,
                                  0x1.8p63, -0x1.8p63, 0.5,      11,        -1};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        bool wide = fabs(none[i]) >= 0x1p63; /* no int64_t at all */
        ck_assert(!ls_json_whole(none[i], wide ? INT64_MIN : 0, wide ? INT64_MAX : 10, &out));
        ck_assert_int_eq(out, 7);
    }
    ck_assert(ls_json_whole(10, 0, 10, &out) && out == 10);
    ck_assert(ls_json_whole(-0x1p63, INT64_MIN, INT64_MAX, &out) && out == INT64_MIN);
    cJSON *root = cJSON_Parse("{\"huge\": 1e300, \"half\": 2.5, \"wide\": 2147483648,"
                              "\"least\": -2147483648, \"fits\": -2147483647, \"text\": \"1\","
                              "\"most\": 9007199254740992, \"beyond\": 9007199254740994}");
    ck_assert_int_eq(ls_json_integer(root, "most", 3), INT64_C(9007199254740992));
    ck_assert_int_eq(ls_json_integer(root, "beyond", 3), 3); /* not every number there is one */
    ck_assert_int_eq(ls_json_integer(root, "huge", 3), 3);
    ck_assert_int_eq(ls_json_integer(root, "half", 3), 3);
    ck_assert_int_eq(ls_json_integer(root, "text", 3), 3);
    ck_assert_int_eq(ls_json_integer(root, "wide", 3), INT64_C(2147483648));
    ck_assert_int_eq(ls_json_int(root, "huge", 3), 3);
    ck_assert_int_eq(ls_json_int(root, "wide", 3), 3);
    ck_assert_int_eq(ls_json_int(root, "least", 3), 3);
    ck_assert_int_eq(ls_json_int(root, "fits", 3), -2147483647);
    cJSON_Delete(root);
}

TEST(json_files)
{
    cJSON *root = cJSON_CreateObject(), *back = NULL;
    cJSON_AddStringToObject(root, "s", "v");
    ls_json_add_number(root, "n", 0.1);
    ls_json_add_number(root, "inf", INFINITY);
    write_text("old");
    ck_assert_int_eq(ls_json_write_file(path, root), LS_OK);
    char *text = ls_text_read(path);
    ck_assert_str_eq(text, "{\n\t\"s\":\t\"v\",\n\t\"n\":\t0.1,\n\t\"inf\":\tnull\n}\n");
    free(text);
    ck_assert_int_eq(ls_json_read_file(path, &back), LS_OK);
    ck_assert(ls_json_number(back, "n", 0) == 0.1);
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(back, "inf")));
    ck_assert_str_eq(ls_json_string(back, "s", "?"), "v");
    ck_assert_str_eq(ls_json_string(back, "n", "another type is absent"), "another type is absent");
    cJSON_Delete(back);
    cJSON_Delete(root);
    unlink(path);
    back = NULL;
    write_text("{\"a\":");
    ck_assert_int_eq(ls_json_read_file(path, &back), LS_ERR_INFRA);
    ck_assert_ptr_null(back);
    unlink(path);
}

TEST(json_lines_are_appended)
{
    write_text("");
    int descriptor = open(path, O_WRONLY | O_APPEND);
    cJSON *list = cJSON_CreateArray();
    char word[80] = "", whole[8000] = "";
    for (int i = 0; i < 60; i++) {
        cJSON *object = ls_json_append_object(list);
        ck_assert_ptr_eq(object, cJSON_GetArrayItem(list, i));
        word[i] = 'w';
        cJSON_AddStringToObject(object, "word", word);
        ck_assert_int_eq(ls_json_append_line(descriptor, path, object), LS_OK);
        ls_text_add(whole, sizeof whole, "{\"word\":\"%s\"}\n", word);
    }
    ck_assert_int_eq(cJSON_GetArraySize(list), 60);
    char *text = ls_text_read(path);
    ck_assert_str_eq(text, whole);
    free(text);
    close(descriptor);
    descriptor = open(path, O_RDONLY);
    catch_lines();
    ck_assert_int_eq(ls_json_append_line(descriptor, path, list), LS_ERR_INFRA);
    ck_assert_ptr_nonnull(strstr(caught_lines(), path));
    close(descriptor);
    cJSON_Delete(list);
    unlink(path);
}

/* ---- lines of the log ------------------------------------------------------------------------ */

TEST(lines_of_the_log)
{
    static const char *const ranks[][2] = {
        {NULL, ""}, {"", ""}, {"3", "[3]"}, {"1234567890", "[12345678]"}};
    char long_text[5000];
    for (int i = 0; i < 4; i++) {
        if (ranks[i][0] != NULL) {
            setenv("RANK", ranks[i][0], 1);
        }
        catch_lines();
        ls_log_note("%s %d", "x", 1);
        ls_log_warn("%s %d", "y\n", 2);
        ls_log_error("%s %d", "z", 3);
        ck_assert_int_eq(ls_log_fail(LS_ERR_CHECK, "%s %d", "u", 4), LS_ERR_CHECK);
        LS_TEXT(said, 400,
                "test_core%s: x 1\ntest_core%s: warning: y\\x0a 2\ntest_core%s: error: z 3\n"
                "test_core%s: error: u 4\n",
                ranks[i][1], ranks[i][1], ranks[i][1], ranks[i][1]);
        ck_assert_str_eq(caught_text(), said);
    }
    unsetenv("RANK");
    memset(long_text, 'x', sizeof long_text);
    long_text[sizeof long_text - 1] = '\0';
    catch_lines();
    ls_log_note("%s", long_text);
    const char *text = caught_text();
    ck_assert_uint_eq(strlen(text), 4095);
    ck_assert_str_eq(text + 4095 - 5, "x...\n");
    int kept = dup(STDERR_FILENO); /* the caller's error stays, even where stderr is closed */
    close(STDERR_FILENO);
    errno = ENOSPC;
    ls_log_note("lost");
    int found = errno;
    dup2(kept, STDERR_FILENO);
    close(kept);
    ck_assert_int_eq(found, ENOSPC);
}

/* ---- memory, types --------------------------------------------------------------------------- */

/* Foreign text becomes one line in which nothing is hidden. */
TEST(plain_text)
{
    static const struct {
        const char *text, *plain;
        size_t bytes;
    } rows[] = {
        {"", "", 1},
        {"abc", "abc", 4},
        {"a\nok 1\r\x1b[2J\x7f", "a\\x0aok 1\\x0d\\x1b[2J\\x7f", 99},
        {"\xc2\xb5s, 3 \xe2\x86\x92 4, \xf0\x9f\x98\x80",
         "\xc2\xb5s, 3 \xe2\x86\x92 4, \xf0\x9f\x98\x80", 99},
        {"\xe2\x80\xae", "\\xe2\\x80\\xae", 99},          /* right to left */
        {"\xe2\x80\xa8", "\\xe2\\x80\\xa8", 99},          /* line separator */
        {"\xef\xbb\xbf", "\\xef\\xbb\\xbf", 99},          /* byte order mark */
        {"\xc2\x9b", "\\xc2\\x9b", 99},                   /* C1: starts a sequence */
        {"\xc0\xaf", "\\xc0\\xaf", 99},                   /* '/' in a form too long */
        {"\xed\xa0\x80", "\\xed\\xa0\\x80", 99},          /* half of a surrogate pair */
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80", 99}, /* after the last character */
        {"\xff\x80", "\\xff\\x80", 99},
        {"a\xe2\x86", "a\\xe2\\x86", 99}, /* cut off */
        {"abcdefgh", "abcd...", 8},
        {"abc\xe2\x86\x92zzz", "abc...", 8},
        {"abcdefg", "abcdefg", 8},
        {"ab\ncdef", "ab...", 8},
        {"abcd", "..", 3},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[100];
        ls_plain_copy(out, rows[i].bytes, rows[i].text);
        ck_assert_str_eq(out, rows[i].plain);
        ls_text_put(out, rows[i].bytes, "%s", rows[i].text);
        ls_plain_replace(out, rows[i].bytes);
        ck_assert_uint_lt(strlen(out), rows[i].bytes);
    }
}

/* The reason as a text, as errno and as a status; nothing stays open. */
TEST(files_that_are_not_opened)
{
    write_text("12345");
    const struct {
        const char *path, *why;
        int64_t most;
        int error;
        ls_status status;
    } rows[] = {
        {"/", "/ is a folder, not a regular file", 99, EINVAL, LS_ERR_USAGE},
        {"/dev/null", "/dev/null is a device, not a regular file", 99, EINVAL, LS_ERR_USAGE},
        {"/none", "cannot open /none: No such file or directory", 99, ENOENT, LS_ERR_INFRA},
        {path, " has 5 bytes; at most 4 are read", 4, EFBIG, LS_ERR_USAGE},
        {path, "", 5, 0, LS_OK},
    };
    close(STDIN_FILENO); /* then the first file opened is number 0 */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_file_source file = {.why = ""};
        bool opens = rows[i].status == LS_OK;
        errno = 0;
        ls_status status = ls_file_open(rows[i].path, rows[i].most, &file);
        ck_assert_int_eq(status, rows[i].status);
        ck_assert(opens || errno == rows[i].error);
        ck_assert_int_eq(file.descriptor, opens ? 0 : -1);
        ck_assert_msg(strstr(file.why, rows[i].why) != NULL, "%s", file.why);
        ck_assert(!opens || (file.bytes == 5 && close(file.descriptor) == 0));
    }
    unlink(path);
}

TEST(json_strings_are_plain)
{
    char *text = malloc(1000100);
    ck_assert_ptr_nonnull(text);
    memset(text, 'y', 1000100);
    static const char head[] = "{\"a\\n\":[\"\\u001b\",\"";
    memcpy(text, head, sizeof head - 1);
    ls_text_put(text + 1000000, 100, "\"],\"b\":\"c\"}");
    cJSON *value = ls_json_parse(text, NULL);
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(value, "a\\x0a");
    ck_assert_str_eq(cJSON_GetArrayItem(list, 0)->valuestring, "\\x1b");
    ck_assert_uint_eq(strlen(cJSON_GetArrayItem(list, 1)->valuestring), LS_JSON_STRING_BYTES - 1);
    ck_assert_str_eq(ls_json_string(value, "b", ""), "c");
    cJSON_Delete(value);
    ck_assert_ptr_null(ls_json_parse("{} x", NULL));
    free(text);
}

TEST(arenas)
{
    ls_arena arena = {0};
    size_t first = ls_arena_reserve(&arena, 1);
    size_t second = ls_arena_reserve(&arena, 100);
    size_t third = ls_arena_reserve(&arena, 0);
    ck_assert_int_eq(first, 0);
    ck_assert_int_eq(second, LS_ARENA_ALIGN);
    ck_assert_int_eq(third, 3 * LS_ARENA_ALIGN);
    ck_assert_int_eq(arena.bytes, third);
    char block[4 * LS_ARENA_ALIGN];
    ck_assert_int_le(arena.bytes, sizeof block);
    arena.base = block;
    ck_assert_ptr_eq(ls_arena_at(&arena, second), block + second);
}

TEST(element_types)
{
    static const struct {
        ls_dtype dtype;
        size_t bytes;
        const char *name, *label;
    } want[] = {{LS_F32, 4, "F32", "fp32"},   {LS_F16, 2, "F16", "fp16"},
                {LS_BF16, 2, "BF16", "bf16"}, {LS_F64, 8, "F64", "fp64"},
                {LS_I64, 8, "I64", "int64"},  {LS_I32, 4, "I32", "int32"},
                {LS_U8, 1, "U8", "uint8"}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        ck_assert_int_eq(ls_dtype_bytes(want[i].dtype), want[i].bytes);
        ck_assert_str_eq(ls_dtype_name(want[i].dtype), want[i].name);
        ck_assert_str_eq(ls_dtype_label(want[i].dtype), want[i].label);
    }
    ck_assert_int_eq(ls_shape_count(&(ls_shape){0, {0}}), 1);
    ck_assert_int_eq(ls_shape_count(&(ls_shape){3, {2, 0, 5}}), 0);
    ck_assert_int_eq(ls_shape_count(&(ls_shape){4, {64, 3, 7, 7}}), 9408);
    ck_assert_int_eq(ls_tensor_bytes(&(ls_tensor){NULL, LS_BF16, 5}), 10);
}

/* ---- words, paths, command lines
 * ----------------------------------------------------------------- */

TEST(distances_and_suggestions)
{
    static const struct {
        const char *a, *b;
        int distance;
    } rows[] = {
        {"", "", 0},       {"a", "", 2},
        {"", "abc", 6},    {"abc", "abc", 0},
        {"abc", "aBc", 1}, {"abc", "axc", 2},
        {"abc", "ac", 2},  {"ac", "abc", 2},
        {"abc", "xyz", 6}, {"kitten", "sitting", 6},
        {"ab", "ba", 4},   {"A", "ab", 3},
    };
    static const char inside[] = "xabcabc";
    ck_assert_int_eq(ls_text_distance(inside + 1, "xabcabc"), 2); /* only from its start on */
    char many[101], other[101]; /* of long words the first 63 letters count */
    memset(many, 'a', 100);
    memset(other, 'b', 100);
    many[100] = other[100] = '\0';
    ck_assert_int_eq(ls_text_distance(many, other), 126);
    memcpy(other, many, 62);
    ck_assert_int_eq(ls_text_distance(many, other), 2);
    other[62] = 'a';
    ck_assert_int_eq(ls_text_distance(many, other), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ck_assert_int_eq(ls_text_distance(rows[i].a, rows[i].b), rows[i].distance);
        ck_assert_int_eq(ls_text_distance(rows[i].b, rows[i].a), rows[i].distance);
    }
    static const char *const names[] = {"steps", "step", "epochs", "--seed"};
    static const struct {
        const char *word, *text;
    } said[] = {
        {"stop", "did you mean step?"},
        {"step", "did you mean steps or step?"},
        {"--se", "did you mean --seed?"},
        {"--", "otherwise"},
        {"stepss", "did you mean steps?"},
        {"epoch", "did you mean epochs?"},
        {"e", "did you mean epochs?"},
        {"E", "otherwise"},
        {"xyzw", "otherwise"},
        {"--sexz", "did you mean --seed?"},
        {"--sxyz", "otherwise"},
        {"--xyz", "otherwise"},
        {"", "otherwise"},
        {"x", "otherwise"},
        {"st*ps", "did you mean steps?"}, /* globs that match nothing */
        {"stepz*", "did you mean steps?"},
        {"*poch", "did you mean epochs?"},
        {"ste??s", "did you mean steps?"},
        {"*xyzw*", "otherwise"},
        {"*", "did you mean steps?"},
    };
    char text[40];
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        ls_text_suggest(text, sizeof text, said[i].word, names, 4, "otherwise");
        ck_assert_msg(strcmp(text, said[i].text) == 0, "%s: %s", said[i].word, text);
    }
    ls_text_suggest(text, sizeof text, "step", names, 0, "otherwise");
    ck_assert_str_eq(text, "otherwise");
    ls_text_suggest(text, sizeof text, "step", names, 1, "otherwise");
    ck_assert_str_eq(text, "did you mean steps?");
    ck_assert_str_eq(ls_text_nearest("sta", names, 4), "step"); /* the first of equals */
    ck_assert_str_eq(ls_text_nearest("", names + 1, 1), "step");
    static const char *const five[] = {"ab", "ac", "ad", "ae", "af"};
    ls_text_suggest(text, sizeof text, "a", five, 4, "otherwise");
    ck_assert_str_eq(text, "did you mean ab, ac, ad or ae?");
    ls_text_suggest(text, sizeof text, "a", five, 5, "otherwise");
    ck_assert_str_eq(text, "otherwise");
    static const char *const nearer[] = {"abxyz", "abc", "abx", "abz"};
    ck_assert_str_eq(ls_text_nearest("abc", nearer, 4), "abc");
    ck_assert_str_eq(ls_text_nearest("aby", nearer, 4), "abc");
}

TEST(words_of_a_text)
{
    char text[6] = "";
    ls_text_put(text, sizeof text, "%d", 123456789);
    ck_assert_str_eq(text, "12345");
    ls_text_put(text, sizeof text, "ab");
    ls_text_add(text, sizeof text, "%s", "cdefg");
    ck_assert_str_eq(text, "abcde");
    ls_text_add(text, sizeof text, "h"); /* full */
    ck_assert_str_eq(text, "abcde");
    ls_text_add(text, 3, "i"); /* longer than that already */
    ck_assert_str_eq(text, "abcde");
    static const struct {
        const char *text;
        int64_t least, most;
        bool good;
    } rows[] = {
        {"5", 5, 5, true},
        {"4", 5, 9, false},
        {"10", 5, 9, false},
        {"9", 5, 9, true},
        {"", 0, 9, false},
        {"5x", 0, 9, false},
        {"-3", -3, 0, true},
        {"x", 0, 9, false},
        {"5 ", 0, 9, false},
        {"010", 0, 10, true},
        {"9223372036854775808", 0, INT64_MAX, false},
        {"9223372036854775807", 0, INT64_MAX, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t out = -77;
        ck_assert_int_eq(ls_text_integer(rows[i].text, rows[i].least, rows[i].most, &out),
                         rows[i].good);
        ck_assert_int_eq(out, rows[i].good ? strtoll(rows[i].text, NULL, 10) : -77);
    }
    ck_assert_int_eq(ls_text_choice("b", "a|b|c"), 1);
    ck_assert_int_eq(ls_text_choice("a", "a|b|c"), 0);
    ck_assert_int_eq(ls_text_choice("c", "a|b|c"), 2);
    ck_assert_int_eq(ls_text_choice("", "a|b|c"), -1);
    ck_assert_int_eq(ls_text_choice("ab", "a|abc|c"), -1);
    ck_assert_int_eq(ls_text_choice("a|b", "a|b"), -1);
    ck_assert(ls_text_matches("a*c", "abbc") && !ls_text_matches("a*c", "abb"));
    ck_assert(ls_text_matches("a\\", "a\\")); /* a backslash is one */
    catch_lines();
    ck_assert_ptr_null(ls_text_read("/nonexistent"));
    ck_assert_str_eq(caught_text(), "");
    write_text("a\nb\n");
    char *whole = ls_text_read(path);
    ck_assert_str_eq(whole, "a\nb\n");
    free(whole);
    unlink(path);
}

TEST(words_of_a_shell)
{
    static const struct {
        const char *word, *quoted;
    } rows[] = {
        {"", "''"},       {"a", "a"},
        {"a b", "'a b'"}, {"it's", "'it'\\''s'"},
        {"'", "''\\'''"}, {"-_=./,:+@%9zZ", "-_=./,:+@%9zZ"},
        {"$x", "'$x'"},   {"a;", "'a;'"},
    };
    ls_words words = {0, 0, NULL};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *quoted = ls_words_quoted(rows[i].word);
        ck_assert_str_eq(quoted, rows[i].quoted);
        free(quoted);
    }
    char *line = ls_words_line(&words);
    ck_assert_str_eq(line, "");
    free(line);
    ls_words_split(&words, "  a  b c=d ");
    ls_words_split(&words, "");
    ls_words_split(&words, "e");
    for (int i = 0; i < 40; i++) { /* the list grows */
        ck_assert_ptr_null(words.word[words.count]);
        ck_assert_int_gt(words.capacity, words.count);
        ls_words_add(&words, "%d x", i);
    }
    ck_assert_int_eq(words.count, 44);
    ck_assert_str_eq(words.word[43], "39 x");
    words.count = 5;
    line = ls_words_line(&words);
    ck_assert_str_eq(line, "a b c=d e '0 x'");
    free(line);
    words.count = 44;
    ls_words_free(&words);
    ck_assert(words.count == 0 && words.capacity == 0 && words.word == NULL);
}

static char folder[] = "/tmp/test_core.XXXXXX";

/* What the next call finds in its variables. */
static __attribute__((noinline)) void spoil_stack(void)
{
    char bytes[4 * PATH_MAX];
    memset(bytes, '/', sizeof bytes);
    __asm__ volatile("" : : "r"(bytes) : "memory");
}

/* One line that names the path as far as it is `shown`. */
static void path_refused(const char *at, const char *before, const char *shown, const char *after)
{
    catch_lines();
    ls_status status = ls_path_make_folder(at);
    LS_TEXT(line, 700, "error: %s%s%s\n", before, shown, after);
    ck_assert_str_eq(caught_lines(), line);
    ck_assert_int_eq(status, LS_ERR_INFRA);
}

static void refuses_to_start(const char *program, int code, const char *reason)
{
    char why[400];
    ck_assert_int_eq(ls_path_check_program(program, why, sizeof why), code);
    ck_assert_str_eq(why, reason);
}

TEST(folders_and_programs)
{
    char text[400], found[400];
    struct stat made;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ls_text_put(text, sizeof text, "%s/a/b//c", folder);
    mode_t mask = umask(0); /* who may write is left to it */
    ck_assert_int_eq(ls_path_make_folder(text), LS_OK);
    (void)umask(mask);
    ck_assert_int_eq(ls_path_make_folder(text), LS_OK); /* again */
    for (int up = 0; up < 3; up++) {
        ck_assert(stat(text, &made) == 0 && made.st_mode == (S_IFDIR | 0777));
        *strrchr(text, '/') = '\0';
    }
    ls_text_put(text, sizeof text, "%s/a/b/c/file", folder);
    FILE *file = fopen(text, "w");
    ck_assert_ptr_nonnull(file);
    fclose(file);
    path_refused(text, "cannot write into ", text, ": Not a directory");
    ls_text_put(found, sizeof found, "%s/below", text);
    path_refused(found, "cannot make the folder ", found, ": Not a directory");
    path_refused("/proc/none/x", "cannot make the folder ", "/proc/none",
                 ": No such file or directory");
    path_refused("", "cannot make the folder ", "", ": No such file or directory");
    char *longer = malloc(PATH_MAX + 1);
    memset(longer, 'x', PATH_MAX);
    longer[PATH_MAX] = '\0';
    LS_TEXT(shown, 101, "%s", longer);
    path_refused(longer, "path too long: ", shown, "...");
    longer[PATH_MAX - 1] = '\0'; /* whole, but the system does not take such a name */
    catch_lines();
    ck_assert_int_eq(ls_path_make_folder(longer), LS_ERR_INFRA);
    ck_assert_ptr_nonnull(strstr(caught_text(), "cannot make the folder xxx"));
    free(longer);
    /* the program's own folder, and from there upwards */
    spoil_stack();
    ls_path_program(text, sizeof text);
    ck_assert_int_eq(access(text, X_OK), 0);
    ck_assert_str_ne(text, ".");
    ck_assert(ls_path_find("test_core", found, sizeof found));
    ls_text_add(text, sizeof text, "/test_core");
    ck_assert_str_eq(found, text);
    ck_assert(ls_path_find("suite/unit/kernels/test_core.c", found, sizeof found));
    ck_assert(!ls_path_find("no such file", found, sizeof found));
    ck_assert_str_eq(found, "no such file");
    ck_assert_int_eq(chdir(folder), 0);
    errno = 0;
    ck_assert_int_eq(ls_path_make_folder("new/er"), LS_OK);
    ck_assert(access("new/er", W_OK) == 0 && rmdir("new/er") == 0);
    ck_assert(ls_path_find("suite/unit/kernels/test_core.c", found, sizeof found));
    ck_assert(ls_path_find("a/b/c/file", found, sizeof found)); /* the current folder */
    ck_assert_str_eq(found, "a/b/c/file");
    /* what can be run: by a path, or in PATH */
    ck_assert(ls_path_is_program(text) && !ls_path_is_program("a/b/c/file"));
    ck_assert(!ls_path_is_program("./a") && !ls_path_is_program(folder)); /* folders */
    ck_assert_int_eq(chmod("a/b/c/file", 0755), 0);
    ck_assert(ls_path_is_program("a/b/c/file"));
    path_refused("a/b/c/file", "cannot write into ", "a/b/c/file", ": Not a directory");
    ls_text_put(text, sizeof text, "/nonexistent:%s/a/b/c:/x", folder);
    setenv("PATH", text, 1);
    ck_assert(ls_path_is_program("file") && !ls_path_is_program("test_core"));
    ls_text_put(text, sizeof text, "/x:%s/a/b/c", folder);
    setenv("PATH", text, 1);
    ck_assert(ls_path_is_program("file"));
    setenv("PATH", "/nonexistent", 1);
    ck_assert(!ls_path_is_program("file"));
    refuses_to_start("file", LS_PATH_NOT_FOUND, "no such program in PATH");
    refuses_to_start("a/none", LS_PATH_NOT_FOUND, "no such program");
    refuses_to_start("a/b/c/file/none", LS_PATH_NOT_FOUND, "no such program");
    refuses_to_start("a/b", LS_PATH_NOT_RUNNABLE, "it is a folder");
    refuses_to_start("/dev/null", LS_PATH_NOT_RUNNABLE, "it is no regular file");
    FILE *script = fopen("a/b/c/file", "w");
    ck_assert(script != NULL && fputs("#! /no/such/python -u\nprint(1)\n", script) > 0);
    ck_assert_int_eq(fclose(script), 0);
    refuses_to_start("a/b/c/file", LS_PATH_NOT_RUNNABLE,
                     "it exists, but its interpreter /no/such/python does not");
    ck_assert_int_eq(chmod("a/b/c/file", 0644), 0);
    refuses_to_start("a/b/c/file", LS_PATH_NOT_RUNNABLE,
                     "it exists, but is not executable: Permission denied");
    setenv("PATH", "/x:a/b/c", 1);
    refuses_to_start("file", LS_PATH_NOT_RUNNABLE,
                     "a/b/c/file: it exists, but is not executable: Permission denied");
    ck_assert_int_eq(chdir("/"), 0);
    ls_path_remove_tree(folder);
    ck_assert_int_ne(access(folder, F_OK), 0);
}

/* An option with an argument, one with an optional one, a flag, an alias of the first, a letter
 * only, a heading, and two names of which one begins the other. What follows the end is none. */
static const struct argp_option table[] = {{"node-rank", 'n', "N", 0, "", 0},
                                           {"node_rank", 0, NULL, OPTION_ALIAS, NULL, 0},
                                           {"level", 'l', "X", OPTION_ARG_OPTIONAL, "", 0},
                                           {"dry", 'd', NULL, 0, "", 0},
                                           {NULL, 0, NULL, 0, "More:", 1},
                                           {"dry-run", 1000, "R", 0, "", 0},
                                           {NULL, 'q', NULL, 0, "", 0},
                                           {0},
                                           {"zebra", 'b', NULL, 0, "", 0}};
static const struct argp argp = {.options = table, .doc = ""};

TEST(command_lines_that_are_wrong)
{
    static const struct {
        const char *line, *said; /* NULL: nothing to explain */
    } rows[] = {
        {"", NULL},
        {"--node-rank 3 --dry x --level -d -n 3 -n3 -l -lx -q", NULL},
        {"--node-rank=3 --level=2 -dqn3 -qdlx", NULL},
        {"--node_rank 3", NULL},
        {"--node_rank", "--node-rank needs a value: N"},
        {"--node-rank", "--node-rank needs a value: N"},
        {"--node=3", "unknown option '--node=3'; did you mean --node-rank?"},
        {"--node-rank --dry", "--node-rank needs a value before --dry: N"},
        {"--node_rank --", "--node-rank needs a value before --: N"},
        {"--node-rank=--dry --node-rank - -n -1", NULL},
        {"-n --zzz", "--node-rank needs a value before --zzz: N"},
        {"-dn", "--node-rank needs a value: N"},
        {"-n", "--node-rank needs a value: N"},
        {"x -n", "--node-rank needs a value: N"},
        {"--level x --dry=1", "--dry takes no value: '--dry=1'"},
        {"-dx", "unknown option '-dx'; --help lists all"},
        {"--d", "unknown option '--d'; did you mean --dry or --dry-run?"},
        {"--dry-r", "unknown option '--dry-r'; did you mean --dry-run?"},
        {"--dry", NULL},
        {"--drx", "unknown option '--drx'; did you mean --dry?"},
        {"--levle=3", "unknown option '--levle=3'; did you mean --level?"},
        {"--zzz", "unknown option '--zzz'; --help lists all"},
        {"-z", "unknown option '-z'; --help lists all"},
        {"-zh", "unknown option '-zh'; --help lists all"},
        {"--zebra", "unknown option '--zebra'; --help lists all"},
        {"-b", "unknown option '-b'; --help lists all"},
        {"--nod-rank", "unknown option '--nod-rank'; did you mean --node-rank?"},
        {"- -z", "unknown option '-z'; --help lists all"},
        {"-- --zzz", NULL},
        {"--he", "unknown option '--he'; did you mean --help?"},
        {"--helpx", "unknown option '--helpx'; did you mean --help?"},
        {"--help=1", "--help takes no value: '--help=1'"},
        {"--zzz --help", "unknown option '--zzz'; --help lists all"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char words[200], *argv[16] = {"program"}, *rest = NULL;
        int argc = 1;
        ls_text_put(words, sizeof words, "%s", rows[i].line);
        for (char *w = strtok_r(words, " ", &rest); w != NULL; w = strtok_r(NULL, " ", &rest)) {
            argv[argc++] = w;
        }
        catch_lines();
        bool fits = ls_usage_check(&argp, false, argc, argv);
        LS_TEXT(want, 400, "test_core: error: %s\n", rows[i].said);
        ck_assert_str_eq(caught_text(), rows[i].said == NULL ? "" : want);
        ck_assert_int_eq(fits, rows[i].said == NULL);
    }
    /* in order: what follows the first argument is another program's */
    char *argv[] = {"program", "-d", "x", "--zzz"}, *wrong[] = {"program", "--zzz", "x"};
    ck_assert(ls_usage_check(&argp, true, 4, argv));
    ck_assert(!ls_usage_check(&argp, false, 4, argv));
    ck_assert(!ls_usage_check(&argp, true, 3, wrong));
}

TEST(optimizers_by_name)
{
    static const struct {
        const char *name, *moment[2], *takes;
        int moments, without_momentum, used_without;
        double epsilon;
    } rows[] = {
        {"sgd", {"momentum_buffer", NULL}, "momentum nesterov", 1, 0, 0, 0.5},
        {"adamw", {"exp_avg", "exp_avg_sq"}, "betas eps", 2, 2, 2, 0.5},
        {"lamb", {"exp_avg", "exp_avg_sq"}, "betas eps max-grad-norm", 2, 2, 2, 1e-6},
        {"lars", {"momentum_buffer", NULL}, "momentum nesterov trust eps", 1, 1, 0, 0.5},
    };
    static const char *const options[] = {"momentum",      "nesterov", "betas",     "eps", "trust",
                                          "max-grad-norm", "mom",      "momentum ", "",    "ep"};
    for (int kind = 0; kind < LS_OPTIMIZER_KINDS; kind++) {
        ck_assert_int_eq(ls_optimizers_find(ls_optimizers_name((ls_optimizer_kind)kind)), kind);
    }
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        ls_optimizer_kind k = ls_optimizers_find(rows[row].name);
        ck_assert_str_eq(ls_optimizers_name(k), rows[row].name);
        ck_assert_int_eq(ls_optimizers_moments(k, 0.9), rows[row].moments);
        ck_assert_int_eq(ls_optimizers_moments(k, 0), rows[row].without_momentum);
        ls_optimizer_config config = {.kind = k};
        ck_assert_int_eq(ls_optimizers_moments_used(&config), rows[row].used_without);
        config.momentum = 0.9;
        ck_assert_int_eq(ls_optimizers_moments_used(&config), rows[row].moments);
        ck_assert(ls_optimizers_epsilon(k, 0.5) == rows[row].epsilon);
        for (int m = 0; m < rows[row].moments; m++) {
            ck_assert_str_eq(ls_optimizers_moment_name(k, m), rows[row].moment[m]);
        }
        for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
            const char *at = strstr(rows[row].takes, options[i]);
            bool takes = i < 6 && at != NULL;
            ck_assert_msg(ls_optimizers_takes(k, options[i]) == takes, "%s '%s'", rows[row].name,
                          options[i]);
        }
    }
    ck_assert_int_eq(ls_optimizers_find("rmsprop"), LS_OPTIMIZER_KINDS);
}

/* xxhash's self-test (xxhsum.c): its lanes of 32, 8, 4 and 1 bytes, with and without a seed. */
TEST(checksums_of_xxhsum)
{
    static const struct {
        size_t bytes;
        uint64_t seed, digest;
    } rows[] = {
        {0, 0, UINT64_C(0xEF46DB3751D8E999)},
        {0, 2654435761, UINT64_C(0xAC75FDA2929B17EF)},
        {1, 0, UINT64_C(0xE934A84ADB052768)},
        {1, 2654435761, UINT64_C(0x5014607643A9B4C3)},
        {4, 0, UINT64_C(0x9136A0DCA57457EE)},
        {14, 0, UINT64_C(0x8282DCC4994E35C8)},
        {14, 2654435761, UINT64_C(0xC3BD6BF63DEB6DF0)},
        {222, 0, UINT64_C(0xB641AE8CB691C174)},
        {222, 2654435761, UINT64_C(0x20CB8AB7AE10C14A)},
    };
    unsigned char data[222];
    uint64_t next = 2654435761;
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (unsigned char)(next >> 56);
        next *= UINT64_C(11400714785074694797);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ck_assert_uint_eq(ls_digest_xxh64(rows[i].seed, data, rows[i].bytes), rows[i].digest);
        for (size_t part = 0; part <= rows[i].bytes; part += 32) {
            ls_digest_parts parts = ls_digest_xxh64_begin(rows[i].seed);
            ls_digest_xxh64_add(&parts, data, part);
            ls_digest_xxh64_add(&parts, data, 0);
            ck_assert_uint_eq(ls_digest_xxh64_end(&parts, data + part, rows[i].bytes - part),
                              rows[i].digest);
        }
    }
    /* 32 bytes are a lane, 31 are not */
    ck_assert_uint_ne(ls_digest_xxh64(0, data, 32), ls_digest_xxh64(0, data, 31));
}

TEST_MAIN("core")
