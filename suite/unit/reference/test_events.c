/* Event lines: members, spelling of bits and digests, one line each; nothing without a directory; a
 * full disk is not silent. Training curves: records, checksums and values, read by a reader of the
 * test's own. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/json.h"
#include "reference/ddp/buckets.h"
#include "reference/files/events.h"
#include "reference/model/model.h"
#include "reference/files/tensorboard.h"
#include "suite/unit/run_suite.h"

static char folder[PATH_MAX - 64];

static void make_folder(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/test_events.XXXXXX", base != NULL ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void remove_folder(void)
{
    DIR *entries = opendir(folder);
    for (struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
        unlinkat(dirfd(entries), entry->d_name, 0);
    }
    closedir(entries);
    ck_assert_int_eq(rmdir(folder), 0);
}

static const char *path_of(const char *name)
{
    static char path[PATH_MAX + 256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

enum { LINES_MAX = 16 };
typedef struct lines {
    cJSON *line[LINES_MAX];
    int count;
} lines;

static ls_status keep_line(void *context, const cJSON *value, int line_number)
{
    lines *kept = context;
    ck_assert_int_eq(line_number, kept->count + 1);
    ck_assert_int_lt(kept->count, LINES_MAX);
    kept->line[kept->count++] = cJSON_Duplicate(value, true);
    return LS_OK;
}

static lines read_lines(const char *name)
{
    lines kept = {.count = 0};
    ck_assert_int_eq(ls_json_each_line(path_of(name), keep_line, &kept), LS_OK);
    return kept;
}

static void free_lines(lines *kept)
{
    for (int i = 0; i < kept->count; i++) {
        cJSON_Delete(kept->line[i]);
    }
}

static ls_events *open_events(int rank, bool append)
{
    ls_events *events = NULL;
    ck_assert_int_eq(ls_events_open(folder, rank, append, &events), LS_OK);
    ck_assert(ls_events_enabled(events));
    return events;
}

START_TEST(start)
{
    ls_options options;
    ls_options_defaults(&options);
    ls_backend_info info = {.device = "a \"device\"", .libraries = "x 1.0", .threads = 2};
    ls_events *events = open_events(3, false);
    ls_events_start given = {.rank = 3,
                             .world = 4,
                             .local_rank = 1,
                             .local_world = 2,
                             .node = 1,
                             .backend = "cpu",
                             .info = &info,
                             .engine = "gloo",
                             .options = &options,
                             .first_step = 1,
                             .param_elements = 11689512,
                             .network_digest = 0xabc};
    ck_assert_int_eq(ls_events_write_start(events, &given), LS_OK);
    ls_events_close(events);
    lines kept = read_lines("rank3.jsonl");
    ck_assert_int_eq(kept.count, 1);
    const cJSON *line = kept.line[0];
    ck_assert_str_eq(ls_json_string(line, "event", ""), "start");
    ck_assert_int_eq(ls_json_integer(line, "schema", 0), 1);
    ck_assert_int_eq(ls_json_integer(line, "rank", -1), 3);
    ck_assert_int_eq(ls_json_integer(line, "world", -1), 4);
    ck_assert_str_eq(ls_json_string(line, "device", ""), "a \"device\"");
    ck_assert_str_eq(ls_json_string(line, "network_digest", ""), "0000000000000abc");
    const cJSON *effective = cJSON_GetObjectItem(line, "options");
    ck_assert_str_eq(ls_json_string(effective, "opt-level", ""), "O1");
    ck_assert_int_eq(ls_json_integer(effective, "message-size", 0), 10000000);
    free_lines(&kept);
}
END_TEST

START_TEST(steps)
{
    ls_events *events = open_events(0, false);
    ls_events_step step = {.step = 7,
                           .loss = 1.1f,
                           .loss_scale = 65536,
                           .loss_scale_next = 32768,
                           .skipped = true,
                           .lr = 0.1f,
                           .images = 32};
    step.digest.given[LS_DIGEST_GROUP_PARAM] = step.digest.given[LS_DIGEST_GROUP_GRAD] = true;
    step.digest.value[LS_DIGEST_GROUP_PARAM] = 0xfedcba9876543210u;
    step.digest.value[LS_DIGEST_GROUP_GRAD] = 1;
    step.ms_given[LS_EVENTS_MS_TOTAL] = true;
    step.ms[LS_EVENTS_MS_TOTAL] = 12.5;
    ck_assert_int_eq(ls_events_write_step(events, &step), LS_OK);
    step = (ls_events_step){.step = 8, .loss = NAN, .loss_scale = 1, .loss_scale_next = 1};
    ck_assert_int_eq(ls_events_write_step(events, &step), LS_OK);
    ck_assert_int_eq(ls_events_write_unsupported(events, "--tf32", "a CPU has no TF32"), LS_OK);
    ck_assert_int_eq(ls_events_write_end(events, 8, LS_ERR_NON_FINITE, 1), LS_OK);
    ls_events_close(events);
    lines kept = read_lines("rank0.jsonl");
    ck_assert_int_eq(kept.count, 4);
    const cJSON *line = kept.line[0], *digest = cJSON_GetObjectItem(line, "digest");
    ck_assert_str_eq(ls_json_string(line, "event", ""), "step");
    ck_assert_int_eq(ls_json_integer(line, "step", 0), 7);
    ck_assert_str_eq(ls_json_string(line, "loss_bits", ""), "0x3f8ccccd");
    ck_assert((float)ls_json_number(line, "loss", 0) == 1.1f);
    ck_assert((float)ls_json_number(line, "lr", 0) == 0.1f);
    ck_assert(ls_json_number(line, "loss_scale", 0) == 65536);
    ck_assert(ls_json_number(line, "loss_scale_next", 0) == 32768);
    ck_assert(ls_json_bool(line, "skipped", false));
    ck_assert_str_eq(ls_json_string(digest, "param", ""), "fedcba9876543210");
    ck_assert_str_eq(ls_json_string(digest, "grad", ""), "0000000000000001");
    ck_assert_ptr_null(cJSON_GetObjectItem(digest, "master"));
    const cJSON *ms = cJSON_GetObjectItem(line, "ms");
    ck_assert(ls_json_number(ms, "total", 0) == 12.5);
    ck_assert_ptr_null(cJSON_GetObjectItem(ms, "forward"));
    line = kept.line[1];
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(line, "loss")));
    ck_assert_str_eq(ls_json_string(line, "loss_bits", ""), "0x7fc00000");
    ck_assert_ptr_null(cJSON_GetObjectItem(line, "digest"));
    ck_assert_ptr_null(cJSON_GetObjectItem(line, "ms"));
    ck_assert_str_eq(ls_json_string(kept.line[2], "option", ""), "--tf32");
    ck_assert_int_eq(ls_json_integer(kept.line[3], "code", 0), 12);
    ck_assert_int_eq(ls_json_integer(kept.line[3], "step", 0), 8);
    free_lines(&kept);
}
END_TEST

START_TEST(buckets_and_trace)
{
    ls_network network;
    ls_bucket_layout layout;
    ls_bucket_item item[64];
    static const int64_t limit = 0;
    ck_assert_int_eq(ls_model_build("resnet8", 10, 16, &network), LS_OK);
    for (int p = 0; p < network.param_count; p++) {
        item[p] = (ls_bucket_item){LS_F16, ls_shape_count(&network.param[p].shape), false};
    }
    ck_assert_int_eq(
        ls_buckets_assign(item, network.param_count, NULL, LS_BUCKET_BYTES, &limit, 1, &layout),
        LS_OK);
    ls_events_span spans[] = {{"forward", false, 1000000000001, 1000000000002},
                              {"bucket 0", true, 5, 6}};
    ls_events *events = open_events(0, false);
    ck_assert_int_eq(ls_events_write_buckets(events, 2, &layout, &network), LS_OK);
    ck_assert_int_eq(ls_events_write_trace(events, 3, spans, 2), LS_OK);
    ls_events_close(events);
    lines kept = read_lines("rank0.jsonl");
    const cJSON *first = cJSON_GetArrayItem(cJSON_GetObjectItem(kept.line[0], "buckets"), 0);
    ck_assert_int_eq(ls_json_integer(kept.line[0], "iteration", 0), 2);
    ck_assert_int_eq(ls_json_integer(first, "bytes", 0), layout.bucket[0].bytes);
    const cJSON *names = cJSON_GetObjectItem(first, "names");
    ck_assert_int_eq(cJSON_GetArraySize(names), network.param_count);
    ck_assert_str_eq(cJSON_GetArrayItem(names, 0)->valuestring, "conv1.weight");
    const cJSON *list = cJSON_GetObjectItem(kept.line[1], "spans");
    ck_assert_str_eq(ls_json_string(cJSON_GetArrayItem(list, 0), "lane", ""), "compute");
    ck_assert(ls_json_integer(cJSON_GetArrayItem(list, 0), "to_ns", 0) == 1000000000002);
    ck_assert_str_eq(ls_json_string(cJSON_GetArrayItem(list, 1), "lane", ""), "communication");
    free_lines(&kept);
    ls_buckets_free(&layout);
    ls_model_free(&network);
}
END_TEST

START_TEST(begun_anew_or_appended)
{
    for (int run = 0; run < 3; run++) {
        ls_events *events = open_events(0, run == 2);
        ck_assert_int_eq(ls_events_write_end(events, run, LS_OK, 0), LS_OK);
        ls_events_close(events);
    }
    lines kept = read_lines("rank0.jsonl");
    ck_assert_int_eq(kept.count, 2);
    ck_assert_int_eq(ls_json_integer(kept.line[0], "step", -1), 1);
    ck_assert_int_eq(ls_json_integer(kept.line[1], "step", -1), 2);
    free_lines(&kept);
}
END_TEST

START_TEST(without_a_directory)
{
    static const char *const none[] = {NULL, ""};
    for (int i = 0; i < 2; i++) {
        ls_events *events = NULL;
        ls_events_step step = {.step = 1};
        ck_assert_int_eq(ls_events_open(none[i], 0, false, &events), LS_OK);
        ck_assert(!ls_events_enabled(events));
        ck_assert_int_eq(ls_events_write_step(events, &step), LS_OK);
        ck_assert_int_eq(ls_events_write_end(events, 1, LS_OK, 0), LS_OK);
        ls_events_close(events);
    }
    ls_events_close(NULL);
    ls_events *events = NULL;
    ck_assert_int_eq(ls_events_open("/nonexistent", 0, false, &events), LS_ERR_INFRA);
}
END_TEST

START_TEST(full_disk)
{
    ls_events_step step = {.step = 1};
    ck_assert_int_eq(symlink("/dev/full", path_of("rank0.jsonl")), 0);
    ls_events *events = open_events(0, false);
    ck_assert_int_eq(ls_events_write_step(events, &step), LS_ERR_INFRA);
    ls_events_close(events);
}
END_TEST

/* ---- training curves ------------------------------------------------------------------------- */

/* CRC-32C of RFC 3720, B.4: 32 zeros, 32 ones, 0..31; and of "123456789". */
START_TEST(checksums)
{
    unsigned char bytes[32] = {0};
    ck_assert(ls_tensorboard_crc32c(bytes, 32) == 0x8a9136aau);
    memset(bytes, 0xff, 32);
    ck_assert(ls_tensorboard_crc32c(bytes, 32) == 0x62a8ab43u);
    for (int i = 0; i < 32; i++) {
        bytes[i] = (unsigned char)i;
    }
    ck_assert(ls_tensorboard_crc32c(bytes, 32) == 0x46dd794eu);
    ck_assert(ls_tensorboard_crc32c("123456789", 9) == 0xe3069283u);
    ck_assert(ls_tensorboard_mask(0) == 0xa282ead8u);
    ck_assert(ls_tensorboard_mask(0x00008000u) == 0xa282ead9u);
}
END_TEST

static uint64_t little(const unsigned char *from, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) {
        value = value << 8 | from[i];
    }
    return value;
}

static size_t read_curves(unsigned char *to, size_t room)
{
    DIR *entries = opendir(folder);
    size_t bytes = 0;
    for (struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0) {
            FILE *stream = fopen(path_of(entry->d_name), "rb");
            bytes = fread(to, 1, room, stream);
            fclose(stream);
        }
    }
    closedir(entries);
    return bytes;
}

/* Expects the bytes at *at and steps over them. */
static void expect(const unsigned char **at, const void *want, size_t bytes)
{
    ck_assert_mem_eq(*at, want, bytes);
    *at += bytes;
}

static void expect_scalar(const unsigned char **at, const char *tag, float value)
{
    unsigned char head[] = {0x0a, (unsigned char)(2 + strlen(tag) + 5), 0x0a,
                            (unsigned char)strlen(tag)};
    expect(at, head, sizeof head);
    expect(at, tag, strlen(tag));
    expect(at, "\x15", 1);
    expect(at, &value, sizeof value);
}

START_TEST(curves)
{
    ls_tensorboard *board;
    ls_tensorboard_scalars scalars = {1.5f, 0.1f, 65536.0f, 123.25f};
    ck_assert_int_eq(ls_tensorboard_open(folder, &board), LS_OK);
    ck_assert_int_eq(ls_tensorboard_write(board, 300, &scalars), LS_OK);
    ck_assert_int_eq(ls_tensorboard_write(NULL, 1, &scalars), LS_OK);
    ls_tensorboard_close(board);
    ls_tensorboard_close(NULL);
    unsigned char raw[1024];
    size_t bytes = read_curves(raw, sizeof raw);
    const unsigned char *record[2] = {NULL, NULL};
    size_t at = 0, length = 0;
    int count = 0;
    while (at < bytes) {
        length = (size_t)little(raw + at, 8);
        ck_assert(at + 16 + length <= bytes && count < 2);
        ck_assert(little(raw + at + 8, 4) ==
                  ls_tensorboard_mask(ls_tensorboard_crc32c(raw + at, 8)));
        record[count] = raw + at + 12;
        ck_assert(little(record[count] + length, 4) ==
                  ls_tensorboard_mask(ls_tensorboard_crc32c(record[count], length)));
        at += 16 + length;
        count++;
    }
    ck_assert_int_eq(count, 2);
    /* field 1, double: the time; field 2, varint: the step; then the version or the summary */
    const unsigned char *next = record[0] + 9;
    ck_assert_int_eq(record[0][0], 0x09);
    expect(&next,
           "\x10\x00\x1a\x0d"
           "brain.Event:2",
           17);
    next = record[1] + 9;
    expect(&next, "\x10\xac\x02\x2a", 4); /* 300 = 0b10_0101100 */
    const unsigned char *summary = next + 1;
    ck_assert_int_eq(next[0], record[1] + length - summary);
    expect_scalar(&summary, "loss", scalars.loss);
    expect_scalar(&summary, "lr", scalars.lr);
    expect_scalar(&summary, "loss_scale", scalars.loss_scale);
    expect_scalar(&summary, "images_per_s", scalars.images_per_s);
    ck_assert_ptr_eq(summary, record[1] + length);
}
END_TEST

START_TEST(curves_nowhere)
{
    ls_tensorboard *board = NULL;
    ck_assert_int_eq(ls_tensorboard_open("/dev/null/folder", &board), LS_ERR_INFRA);
    ck_assert_ptr_null(board);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("events");
    TCase *tests = tcase_create("events");
    tcase_add_checked_fixture(tests, make_folder, remove_folder);
    tcase_add_test(tests, start);
    tcase_add_test(tests, steps);
    tcase_add_test(tests, buckets_and_trace);
    tcase_add_test(tests, begun_anew_or_appended);
    tcase_add_test(tests, without_a_directory);
    tcase_add_test(tests, full_disk);
    tcase_add_test(tests, checksums);
    tcase_add_test(tests, curves);
    tcase_add_test(tests, curves_nowhere);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
