/* Event lines: members, spelling of bits and digests, one line each; nothing without a directory; a
 * full disk is not silent. Training curves: records, checksums and values, read by a reader of the
 * test's own. */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>

#include "kernels/core/usage.h"
#include "reference/ddp/buckets.h"
#include "reference/files/events.h"
#include "reference/model/model.h"
#include "suite/unit/golden.h"
#include "suite/unit/harness/scratch.h"
#include "suite/unit/run_suite.h"

static const char *path_of(const char *name)
{
    static char path[PATH_MAX + 256];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
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
    ck_assert_int_eq(ls_events_open(scratch, rank, append, &events), LS_OK);
    ck_assert(ls_events_enabled(events));
    return events;
}

/* The file's lines; `pid` stands where this process's number does, `version` where the program's,
 * `{}` for the options, whose text is test_options.c's. */
static void copy_text(FILE *to, const char *name)
{
    lines kept = read_lines(name);
    for (int i = 0; i < kept.count; i++) {
        cJSON *json = kept.line[i], *pid = cJSON_GetObjectItem(json, "pid");
        if (pid != NULL) {
            ck_assert_int_eq(pid->valueint, getpid());
            ck_assert_str_eq(ls_json_string(json, "version", ""), LS_VERSION);
            cJSON_ReplaceItemInObject(json, "pid", cJSON_CreateString("pid"));
            cJSON_ReplaceItemInObject(json, "version", cJSON_CreateString("version"));
            cJSON_ReplaceItemInObject(json, "options", cJSON_CreateObject());
        }
        char *printed = cJSON_PrintUnformatted(json);
        fprintf(to, "%s\n", printed);
        free(printed);
    }
    free_lines(&kept);
}

/* Every member of a start, with all that may be left out and without. */
static void write_starts(FILE *to)
{
    ls_options options;
    ls_options_defaults(&options);
    ls_backend_info info = {.device = "d",
                            .libraries = "l",
                            .threads = 3,
                            .host_memory = true,
                            .half_units = "bf16 on X",
                            .f16_products = "fp16 emulated: why",
                            .bf16_products = "bf16 on X"};
    cJSON *memory = cJSON_Parse("{\"params\":12}");
    ls_events_start full = {.rank = 1,
                            .world = 6,
                            .local_rank = 2,
                            .local_world = 3,
                            .node = 4,
                            .backend = "cuda",
                            .info = &info,
                            .engine = "nccl",
                            .engine_text = "t",
                            .transport = "u",
                            .options = &options,
                            .first_step = 5,
                            .param_elements = 7,
                            .network_digest = 1,
                            .fusions = "f",
                            .tells_graph = true,
                            .activation_bytes = 9,
                            .workspace_bytes = 10,
                            .memory = memory};
    ls_events_start bare = {.world = 1, .local_world = 1, .options = &options, .first_step = 1};
    ls_events *events = open_events(1, false);
    clearenv();
    setenv("NCCL_ALGO", "Ring=1", 1);
    setenv("XNCCL_NOT", "1", 1);
    setenv("NCCLX", "1", 1);
    ck_assert_int_eq(ls_events_write_start(events, &full), LS_OK);
    full.engine = "gloo";
    full.no_graph = "why";
    ck_assert_int_eq(ls_events_write_start(events, &full), LS_OK);
    ck_assert_int_eq(ls_events_write_start(events, &bare), LS_OK);
    ls_events_close(events);
    cJSON_Delete(memory);
    copy_text(to, "rank1.jsonl");
}

/* Every member of the other events. */
static void write_events(FILE *to)
{
    static const ls_events_loss losses[] = {{0.5f, 4, 8}, {INFINITY, 2, 1}};
    static const bool skipped[] = {true, false};
    ls_events_step step = {.step = 3,
                           .loss = -2,
                           .loss_scale = 4,
                           .loss_scale_next = 8,
                           .audited = true,
                           .lr = 0.5f,
                           .images = 6,
                           .at_ns = 11,
                           .loss_count = 2,
                           .optimizer_count = 2,
                           .losses = losses,
                           .optimizer_skipped = skipped};
    for (int i = 0; i < LS_DIGEST_GROUPS; i++) {
        step.digest.given[i] = true;
    }
    step.digest.value[LS_DIGEST_GROUP_PARAM] = 0xa0;
    step.digest.value[LS_DIGEST_GROUP_MASTER] = 0xa1;
    step.digest.value[LS_DIGEST_GROUP_STATE] = 0xa2;
    step.digest.value[LS_DIGEST_GROUP_SCALER] = 0xa3;
    step.digest.value[LS_DIGEST_GROUP_BUFFER] = 0xa4;
    step.digest.value[LS_DIGEST_GROUP_GRAD] = 0xa5;
    for (int i = 0; i < LS_EVENTS_MS_COUNT; i++) {
        step.ms_given[i] = true;
        step.ms[i] = i + 0.5;
    }
    ls_events_audit audit = {.step = 4,
                             .outputs = 5,
                             .elements = 6,
                             .bad = 7,
                             .unaudited = "update",
                             .operation = "conv1",
                             .output = "output",
                             .index = 8,
                             .ratio = 0.25,
                             .got = NAN,
                             .wanted = 1.5,
                             .limit = INFINITY,
                             .has_batch = true,
                             .batch = 0xbc,
                             .ms = 2.5,
                             .usual_ms = 0};
    static const ls_events_span spans[] = {{"forward", false, 1, 2}, {"bucket 0", true, 3, 4}};
    int member[] = {2, 0, 1};
    ls_bucket bucket[] = {{.dtype = LS_F16, .first = 0, .count = 2, .elements = 30, .bytes = 60},
                          {.dtype = LS_F32, .first = 2, .count = 1, .elements = 8, .bytes = 32}};
    ls_param param[3] = {{.name = "a"}, {.name = "b"}, {.name = "c"}};
    ls_network network = {.param_count = 3, .param = param};
    ls_bucket_layout layout = {.bucket_count = 2, .bucket = bucket, .member = member};
    ls_events *events = open_events(2, false);
    ck_assert_int_eq(ls_events_write_step(events, &step), LS_OK);
    step = (ls_events_step){.step = 4, .skipped = true, .loss = NAN, .lr = 0.1f};
    step.digest.given[LS_DIGEST_GROUP_SCALER] = step.ms_given[LS_EVENTS_MS_COMM] = true;
    ck_assert_int_eq(ls_events_write_step(events, &step), LS_OK);
    ck_assert_int_eq(ls_events_write_audit(events, &audit), LS_OK);
    audit.has_batch = false;
    ck_assert_int_eq(ls_events_write_audit(events, &audit), LS_OK);
    ck_assert_int_eq(ls_events_write_trace(events, 9, spans, 2), LS_OK);
    ck_assert_int_eq(ls_events_write_buckets(events, 10, &layout, &network), LS_OK);
    ck_assert_int_eq(ls_events_write_graph(events, 12, "why"), LS_OK);
    ck_assert_int_eq(ls_events_write_unsupported(events, "--x", "no"), LS_OK);
    ck_assert_int_eq(ls_events_write_end(events, 13, LS_ERR_NON_FINITE, 14), LS_OK);
    ls_events_close(events);
    copy_text(to, "rank2.jsonl");
    /* every event, nowhere */
    ck_assert_int_eq(ls_events_open("", 0, false, &events), LS_OK);
    ck_assert_int_eq(ls_events_write_audit(events, &audit), LS_OK);
    ck_assert_int_eq(ls_events_write_trace(events, 9, spans, 2), LS_OK);
    ck_assert_int_eq(ls_events_write_buckets(events, 10, &layout, &network), LS_OK);
    ck_assert_int_eq(ls_events_write_graph(events, 12, "why"), LS_OK);
    ck_assert_int_eq(ls_events_write_unsupported(events, "--x", "no"), LS_OK);
    ls_events_close(events);
}

/* An epoch's event: parts that are not there are left out, and counts of bad pictures that are 0.
 */
static void write_epochs(FILE *to)
{
    ls_events_score train = {.images = 8, .top1 = 3, .top5 = 7, .bad = 2, .loss = 12};
    ls_events_score val = {.images = 5, .top1 = 1, .top5 = 4, .loss = 1.25};
    ls_events_score own = {.images = 3, .top1 = 0, .top5 = 2, .bad = 1, .loss = NAN};
    ls_events_step step = {
        .step = 9, .images = 4, .bad_images = 2, .norm_given = true, .grad_norm = 0.5f};
    ls_events *events = open_events(3, false);
    ck_assert_int_eq(ls_events_write_epoch(events, 1, 6, &train, &val, &own, 0.5), LS_OK);
    ck_assert_int_eq(ls_events_write_epoch(events, 2, 12, &train, NULL, NULL, 0.5), LS_OK);
    ck_assert_int_eq(ls_events_write_epoch(events, 0, 0, NULL, &val, &val, 2), LS_OK);
    ck_assert_int_eq(ls_events_write_step(events, &step), LS_OK);
    step = (ls_events_step){.step = 10, .norm_given = true, .grad_norm = NAN};
    ck_assert_int_eq(ls_events_write_step(events, &step), LS_OK);
    ls_events_close(events);
    copy_text(to, "rank3.jsonl");
    ck_assert_int_eq(ls_events_open("", 0, false, &events), LS_OK);
    ck_assert_int_eq(ls_events_write_epoch(events, 1, 6, &train, &val, &own, 0.5), LS_OK);
    ls_events_close(events);
}

/* The environment is cleared for the starts. */
TEST(events_word_for_word)
{
    char *text = NULL, *renew = getenv("LS_RENEW");
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    write_events(to);
    write_epochs(to);
    write_starts(to);
    fclose(to);
    if (renew != NULL) {
        setenv("LS_RENEW", renew, 1);
    }
    golden_check("suite/unit/reference/expected/events.jsonl", text);
}

/* A folder whose file's path fills a path exactly, and one byte more. */
TEST(long_folders)
{
    static char path[PATH_MAX + 16];
    ls_events *events = NULL;
    int most = PATH_MAX - 1 - (int)strlen("/rank0.jsonl");
    for (int more = 0; more < 2; more++) {
        memset(path, '/', sizeof path);
        memcpy(path, scratch, strlen(scratch));
        path[most + more] = '\0';
        ck_assert_int_eq(ls_events_open(path, 0, false, &events), more == 0 ? LS_OK : LS_ERR_USAGE);
        if (more == 0) {
            ls_events_close(events);
        }
    }
}

TEST(begun_anew_or_appended)
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

/* What a process that was killed had begun to write. */
TEST(an_unfinished_line_is_cut)
{
    static const char *const begun[] = {"{\"event\":\"end\",\"step\":7}\n{\"event\":", "{\"ev", ""};
    LS_TEXT(path, PATH_MAX, "%s/rank0.jsonl", scratch);
    for (int i = 0; i < 3; i++) {
        FILE *file = fopen(path, "w");
        fputs(begun[i], file);
        fclose(file);
        ls_events *events = open_events(0, true);
        ck_assert_int_eq(ls_events_write_end(events, 9, LS_OK, 0), LS_OK);
        ls_events_close(events);
        lines kept = read_lines("rank0.jsonl");
        ck_assert_int_eq(kept.count, i == 0 ? 2 : 1);
        ck_assert_int_eq(ls_json_integer(kept.line[0], "step", -1), i == 0 ? 7 : 9);
        free_lines(&kept);
    }
}

TEST(without_a_directory)
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
    ck_assert_int_eq(ls_events_open("/nonexistent/run", 0, false, &events), LS_ERR_INFRA);
}

/* One level; a second is a mistyped path, and nothing of it is made. */
TEST(absent_folder_is_made)
{
    ls_events *events = NULL;
    char run[PATH_MAX], below[PATH_MAX + 8];
    ls_text_put(run, sizeof run, "%s/run", scratch);
    ls_text_put(below, sizeof below, "%s/below", run);
    ck_assert_int_eq(ls_events_open(below, 0, false, &events), LS_ERR_INFRA);
    ck_assert_int_ne(access(run, F_OK), 0);
    ck_assert_int_eq(ls_events_open(run, 3, false, &events), LS_OK);
    ls_events_close(events);
    ck_assert_int_eq(access(path_of("run/rank3.jsonl"), F_OK), 0);
    ls_path_remove_tree(run);
}

TEST(full_disk)
{
    ls_events_step step = {.step = 1};
    ck_assert_int_eq(symlink("/dev/full", path_of("rank0.jsonl")), 0);
    ls_events *events = open_events(0, false);
    ck_assert_int_eq(ls_events_write_step(events, &step), LS_ERR_INFRA);
    ls_events_close(events);
}

/* ---- training curves ------------------------------------------------------------------------- */

/* CRC-32C of RFC 3720, B.4: 32 zeros, 32 ones, 0..31; and of "123456789". */
TEST(checksums)
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
    DIR *entries = opendir(scratch);
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

/* The records of the folder's curves, `want` of them, each with its checksums. */
static void read_records(unsigned char raw[1024], const unsigned char **record, size_t *length,
                         int want)
{
    size_t bytes = read_curves(raw, 1024), at = 0;
    int count = 0;
    while (at < bytes) {
        size_t size = (size_t)little(raw + at, 8);
        ck_assert(at + 16 + size <= bytes && count < want);
        ck_assert(little(raw + at + 8, 4) ==
                  ls_tensorboard_mask(ls_tensorboard_crc32c(raw + at, 8)));
        record[count] = raw + at + 12;
        length[count] = size;
        ck_assert(little(record[count] + size, 4) ==
                  ls_tensorboard_mask(ls_tensorboard_crc32c(record[count], size)));
        at += 16 + size;
        count++;
    }
    ck_assert_int_eq(count, want);
}

/* Points of two records, some of them left out; a step of two bytes; the version in front. */
TEST(curves)
{
    static const ls_tensorboard_scalar points[2][5] = {
        {{"loss", 1.5f}, {"lr", 0.1f}, {NULL, 3}, {"images_per_s", 123.25f}, {"loss_scale", 65536}},
        {{NULL, 1}, {"Loss/val", 0.125f}, {"Top1/train", 81.5f}, {"grad_norm", 7.75f}, {NULL, 0}}};
    static const char *const heads[] = {"\x10\xac\x02\x2a", "\x10\x07\x2a"}; /* 300, 7 */
    ls_tensorboard *board;
    ck_assert_int_eq(ls_tensorboard_open(scratch, &board), LS_OK);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(ls_tensorboard_write(board, i == 0 ? 300 : 7, points[i], 5), LS_OK);
        ck_assert_int_eq(ls_tensorboard_write(NULL, 1, points[i], 5), LS_OK);
    }
    ls_tensorboard_close(board);
    ls_tensorboard_close(NULL);
    unsigned char raw[1024];
    const unsigned char *record[3] = {NULL};
    size_t length[3] = {0};
    read_records(raw, record, length, 3);
    /* field 1, double: the time; field 2, varint: the step; then the version or the summary */
    const unsigned char *at = record[0] + 9;
    expect(&at,
           "\x10\x00\x1a\x0d"
           "brain.Event:2",
           17);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(record[i][0], 0x09);
    }
    for (int i = 0; i < 2; i++) {
        at = record[i + 1] + 9;
        expect(&at, heads[i], strlen(heads[i]));
        ck_assert_int_eq(at[0], record[i + 1] + length[i + 1] - at - 1);
        at++;
        for (int k = 0; k < 5; k++) {
            if (points[i][k].tag != NULL) {
                expect_scalar(&at, points[i][k].tag, points[i][k].value);
            }
        }
        ck_assert_ptr_eq(at, record[i + 1] + length[i + 1]);
    }
}

TEST(curves_nowhere)
{
    ls_tensorboard *board = NULL;
    ck_assert_int_eq(ls_tensorboard_open("/dev/null/folder", &board), LS_ERR_INFRA);
    ck_assert_ptr_null(board);
}

TEST_MAIN("events", .before = open_scratch, .after = close_scratch)
