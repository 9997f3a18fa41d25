/* safetensors files: written files are read back, by us and by a reader that knows only the format;
 * a broken file of any kind is refused before any of it is used; a full disk leaves no file behind.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "kernels/core/file.h"
#include "kernels/core/rng.h"
#include "reference/files/safetensors.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"

static char folder[PATH_MAX - 64];

static void make_folder(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/test_safetensors.XXXXXX", base != NULL ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static bool proc_hidden;

static void remove_folder(void)
{
    if (proc_hidden) { /* the leak sanitizer reads it at the end */
        ck_assert_int_eq(umount("/proc"), 0);
    }
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/file", folder);
    unlink(path);
    ck_assert_msg(rmdir(folder) == 0, "%s: %s (something was left behind)", folder,
                  strerror(errno));
}

static const char *file_path(void)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/file", folder);
    return path;
}

TEST(there_and_back)
{
    static const uint8_t bytes[3] = {1, 2, 255};
    static const int64_t classes[2] = {-7, INT64_MAX};
    static const float weights[6] = {1.5f, -0.0f, 3e38f, 1e-45f, 5, 6};
    static const uint16_t halves[1] = {0x3c00};
    uint8_t copied[2] = {9, 8};
    ls_safetensors_writer *writer;
    ck_assert_int_eq(ls_safetensors_create(file_path(), &writer), LS_OK);
    ls_safetensors_metadata(writer, "step", "%d", 1);
    ls_safetensors_metadata(writer, "step", "%d", 7); /* the last one counts */
    ls_safetensors_metadata(writer, "text", "a \"quote\"\n");
    ls_safetensors_add(writer, "branch/000", LS_U8, &(ls_shape){1, {3}}, bytes);
    ls_safetensors_add(writer, "target", LS_I64, &(ls_shape){1, {2}}, classes);
    ls_safetensors_add(writer, "param/w", LS_F32, &(ls_shape){2, {2, 3}}, weights);
    ls_safetensors_add(writer, "param/h", LS_F16, &(ls_shape){0, {0}}, halves);
    ls_safetensors_add(writer, "empty", LS_F32, &(ls_shape){2, {0, 4}}, weights);
    ck_assert_int_eq(ls_safetensors_add_copy(writer, "copied", LS_U8, &(ls_shape){1, {2}}, copied),
                     LS_OK);
    copied[0] = 0;
    ck_assert_int_ne(access(file_path(), F_OK), 0);
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);

    ls_safetensors *file;
    ck_assert_int_eq(ls_safetensors_open(file_path(), &file), LS_OK);
    ck_assert_int_eq(ls_safetensors_count(file), 6);
    ck_assert_str_eq(ls_safetensors_metadata_of(file, "step", "?"), "7");
    ck_assert_str_eq(ls_safetensors_metadata_of(file, "text", "?"), "a \"quote\"\n");
    ck_assert_str_eq(ls_safetensors_metadata_of(file, "absent", "?"), "?");
    const ls_safetensors_entry *entry = ls_safetensors_find(file, "param/w");
    ck_assert_ptr_nonnull(entry);
    ck_assert(entry->dtype == LS_F32 && entry->shape.rank == 2 && entry->shape.dim[1] == 3);
    ck_assert_mem_eq(entry->data, weights, sizeof weights);
    ck_assert_mem_eq(ls_safetensors_find(file, "target")->data, classes, sizeof classes);
    ck_assert_mem_eq(ls_safetensors_find(file, "branch/000")->data, bytes, sizeof bytes);
    ck_assert_mem_eq(ls_safetensors_find(file, "param/h")->data, halves, sizeof halves);
    ck_assert_int_eq(ls_safetensors_find(file, "param/h")->shape.rank, 0);
    ck_assert_int_eq(ls_safetensors_find(file, "empty")->bytes, 0);
    ck_assert_int_eq(*(const uint8_t *)ls_safetensors_find(file, "copied")->data, 9);
    ck_assert_ptr_null(ls_safetensors_find(file, "param"));
    for (int i = 0; i < ls_safetensors_count(file); i++) {
        entry = ls_safetensors_at(file, i);
        ck_assert(((uintptr_t)entry->data & (ls_dtype_bytes(entry->dtype) - 1)) == 0);
    }
    ls_safetensors_close(file);
}

/* Format, read by hand: u64 length, header of that length that begins with '{', data without gaps
 * to the end. */
TEST(bytes_as_the_format_says)
{
    static const float value[2] = {1, 2};
    ls_safetensors_writer *writer;
    ck_assert_int_eq(ls_safetensors_create(file_path(), &writer), LS_OK);
    ls_safetensors_add(writer, "a", LS_F32, &(ls_shape){1, {2}}, value);
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
    unsigned char raw[256];
    FILE *stream = fopen(file_path(), "rb");
    size_t bytes = fread(raw, 1, sizeof raw, stream);
    fclose(stream);
    ck_assert(raw[1] == 0 && raw[2] == 0 && raw[7] == 0);
    size_t length = raw[0];
    ck_assert_int_eq(length % 8, 0);
    ck_assert_int_eq(bytes, 8 + length + sizeof value);
    static const char header[] =
        "{\"__metadata__\":{},\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    ck_assert_mem_eq(raw + 8, header, sizeof header - 1);
    for (size_t i = 8 + sizeof header - 1; i < 8 + length; i++) {
        ck_assert_int_eq(raw[i], ' ');
    }
    ck_assert_mem_eq(raw + 8 + length, value, sizeof value);
}

/* Writes a file with this header (padded to 8) and `data_bytes` zeros. */
static void write_raw(const char *header, size_t data_bytes)
{
    unsigned char prefix[8] = {0};
    size_t length = (strlen(header) + 7) / 8 * 8;
    prefix[0] = (unsigned char)length;
    prefix[1] = (unsigned char)(length >> 8);
    FILE *stream = fopen(file_path(), "wb");
    ck_assert_ptr_nonnull(stream);
    fwrite(prefix, 1, 8, stream);
    fprintf(stream, "%-*s", (int)length, header);
    for (size_t i = 0; i < data_bytes; i++) {
        fputc(0, stream);
    }
    fclose(stream);
}

#define ONE(dtype, shape, offsets) \
    "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TWO(first, second)                                            \
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" first \
    "},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" second "}}"

typedef struct broken_file {
    const char *why, *header;
    size_t data_bytes;
} broken_file;

static const broken_file broken[] = {
    {"cut data", ONE("F32", "[2]", "[0,8]"), 7},
    {"bytes after the last tensor", ONE("F32", "[2]", "[0,8]"), 9},
    {"unknown type", ONE("F8", "[8]", "[0,8]"), 8},
    {"bytes do not fit the shape", ONE("F32", "[3]", "[0,8]"), 8},
    {"negative dimension", ONE("F32", "[-2]", "[0,8]"), 8},
    {"fraction in the shape", ONE("F32", "[1.5]", "[0,6]"), 6},
    {"product of dimensions overflows", ONE("F32", "[4294967296,4294967296]", "[0,8]"), 8},
    {"product of dimensions overflows to the right bytes",
     ONE("F32", "[4611686018427387904,4]", "[0,0]"), 0},
    {"six dimensions", ONE("F32", "[1,1,1,1,1,2]", "[0,8]"), 8},
    {"shape is no list", ONE("F32", "2", "[0,8]"), 8},
    {"end before begin", ONE("F32", "[2]", "[8,0]"), 8},
    {"one offset", ONE("F32", "[2]", "[8]"), 8},
    {"negative offset", ONE("F32", "[2]", "[-8,0]"), 8},
    {"offset far outside", ONE("F32", "[2]", "[9007199254740000,9007199254740008]"), 8},
    {"gap before the first", ONE("F32", "[2]", "[8,16]"), 16},
    {"no type", "{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8},
    {"entry is no object", "{\"a\":3}", 0},
    {"overlap", TWO("[0,8]", "[4,12]"), 12},
    {"the same place twice", TWO("[0,8]", "[0,8]"), 8},
    {"gap between", TWO("[0,8]", "[12,20]"), 20},
    {"not JSON", "{\"a\":", 0},
    {"a list", "[]", 0},
    {"empty header", "", 0},
    {"not aligned",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}",
     6},
    {"a name twice",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
     3},
};

ROWS_TEST(broken_files, broken)
{
    ls_safetensors *file = NULL;
    write_raw(broken[_i].header, broken[_i].data_bytes);
    ck_assert_msg(ls_safetensors_open(file_path(), &file) == LS_ERR_USAGE, "%s", broken[_i].why);
    ck_assert_ptr_null(file);
}

/* The maker of broken files makes good ones, too; tensors may stand in any order. */
TEST(whole_files)
{
    static const broken_file whole[] = {{"one", ONE("F32", "[2]", "[0,8]"), 8},
                                        {"two", TWO("[8,16]", "[0,8]"), 16},
                                        {"none", "{}", 0}};
    for (size_t i = 0; i < 3; i++) {
        ls_safetensors *file;
        write_raw(whole[i].header, whole[i].data_bytes);
        ck_assert_msg(ls_safetensors_open(file_path(), &file) == LS_OK, "%s", whole[i].why);
        ls_safetensors_close(file);
    }
}

/* A valid file cut at every length is refused at every length. */
TEST(cut_anywhere)
{
    write_raw(TWO("[0,8]", "[8,16]"), 16);
    struct stat about;
    ck_assert_int_eq(stat(file_path(), &about), 0);
    catch_lines(); /* more than a hundred refusals */
    off_t accepted = -1;
    for (off_t length = about.st_size - 1; length >= 0; length--) {
        ls_safetensors *file = NULL;
        ck_assert_int_eq(truncate(file_path(), length), 0);
        if (ls_safetensors_open(file_path(), &file) != LS_ERR_USAGE) {
            accepted = length;
        }
    }
    caught_text();
    ck_assert_int_eq(accepted, -1);
}

TEST(huge_header)
{
    FILE *stream = fopen(file_path(), "wb");
    static const unsigned char lengths[] = {0xff, 0xff, 0xff, 0xff, 0xff,
                                            0xff, 0xff, 0xff, '{',  '}'};
    fwrite(lengths, 1, sizeof lengths, stream);
    fclose(stream);
    ls_safetensors *file = NULL;
    ck_assert_int_eq(ls_safetensors_open(file_path(), &file), LS_ERR_USAGE);
    ck_assert_int_eq(ls_safetensors_open("/nonexistent/file", &file), LS_ERR_USAGE);
    ck_assert_int_eq(ls_safetensors_open(folder, &file), LS_ERR_USAGE);
}

/* Without /proc a nameless file cannot get a name, as on a file system that has none: the writer
 * falls back to a temporary name. False where this process may not hide it. */
static bool hide_proc(void)
{
    proc_hidden = unshare(CLONE_NEWNS) == 0 &&
                  mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                  mount("none", "/proc", "tmpfs", 0, NULL) == 0;
    return proc_hidden;
}

enum { ELEMENTS = 1 << 18 };
static float value[ELEMENTS];

static ls_status save(float fill)
{
    for (int i = 0; i < ELEMENTS; i++) {
        value[i] = fill;
    }
    ls_safetensors_writer *writer;
    LS_TRY(ls_safetensors_create(file_path(), &writer));
    ls_safetensors_lasting(writer);
    ls_safetensors_add(writer, "w", LS_F32, &(ls_shape){1, {ELEMENTS}}, value);
    return ls_safetensors_finish(writer);
}

static float saved(void)
{
    ls_safetensors *file;
    ck_assert_int_eq(ls_safetensors_open(file_path(), &file), LS_OK);
    const float *data = ls_safetensors_find(file, "w")->data;
    int others = 0;
    float first = data[0];
    for (int i = 0; i < ELEMENTS; i++) {
        others += data[i] != first;
    }
    ck_assert_int_eq(others, 0);
    ls_safetensors_close(file);
    return first;
}

static int count_files(void)
{
    int count = 0;
    DIR *entries = opendir(folder);
    ck_assert_ptr_nonnull(entries);
    for (struct dirent *e; (e = readdir(entries)) != NULL;) {
        count += e->d_name[0] != '.';
    }
    closedir(entries);
    return count;
}

/* A file of a size that the process may not write fails as on a full disk, and the old one stays.
 */
LOOP_TEST(full_disk, 2)
{
    ls_safetensors_writer *writer;
    if (_i == 1 && !hide_proc()) {
        return;
    }
    ck_assert_int_eq(save(1), LS_OK);
    ls_file_survive_limit();
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){100000, 100000}), 0);
    ck_assert_int_eq(save(2), LS_ERR_INFRA);
    ck_assert(saved() == 1);
    ck_assert_int_eq(count_files(), 1);
    ck_assert_int_eq(ls_safetensors_create("/nonexistent/file", &writer), LS_OK);
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_ERR_INFRA);
}

/* One saves, again and again, until it is killed after the first save and a random time of up to a
 * few saves. What it leaves is a whole file and nothing but that. A temporary name (_i == 1) may
 * stay until the next save. */
LOOP_TEST(killed_while_saving, 2)
{
    const int kills = _i == 1 ? 20 : 100;
    if (_i == 1 && !hide_proc()) {
        return;
    }
    int left = 0;
    struct timespec begin, end;
    ck_assert_int_eq(save(0), LS_OK);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    ck_assert_int_eq(save(0), LS_OK);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double save_ns =
        (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
    for (int kill_number = 1; kill_number <= kills; kill_number++) {
        int ready[2];
        ck_assert_int_eq(pipe(ready), 0);
        pid_t saver = fork();
        if (saver == 0) {
            for (ls_status status = LS_OK; status == LS_OK;) {
                status = save((float)kill_number);
                (void)!write(ready[1], "", 1);
            }
            _exit(1);
        }
        close(ready[1]);
        char byte;
        ck_assert_int_eq(read(ready[0], &byte, 1), 1);
        struct pollfd none = {.fd = -1};
        long wait_ns = (long)(2 * save_ns * ls_rng_uniform(7, 0, (uint64_t)kill_number));
        (void)ppoll(&none, 1, &(struct timespec){wait_ns / 1000000000, wait_ns % 1000000000}, NULL);
        ck_assert_int_eq(kill(saver, SIGKILL), 0);
        ck_assert_int_eq(waitpid(saver, NULL, 0), saver);
        while (read(ready[0], &byte, 1) > 0) { /* to the end, also of the child that renames */
        }
        close(ready[0]);
        ck_assert(saved() == (float)kill_number);
        left += count_files() - 1;
    }
    ck_assert_int_le(left, _i == 1 ? kills : 0);
    ck_assert_int_eq(save(0), LS_OK);
    ck_assert_int_eq(count_files(), 1);
}

/* A folder whose files cannot be linked, which shows only at the end: nothing is lost. */
TEST(what_cannot_be_linked_is_copied)
{
    ls_file_draft draft;
    char text[8] = "";
    ck_assert_int_eq(ls_file_draft_open(file_path(), &draft), 0);
    ck_assert_int_eq(ls_file_write(draft.descriptor, file_path(), "draft", 5), LS_OK);
    if (hide_proc()) {
        ck_assert_int_eq(ls_file_draft_close(&draft, LS_OK, true), LS_OK);
        ls_file_source file;
        ck_assert_int_eq(ls_file_open(file_path(), 5, &file), LS_OK);
        ck_assert_int_eq(ls_file_fill(&file, file_path(), text, 5), LS_OK);
        close(file.descriptor);
        ck_assert_str_eq(text, "draft");
        ck_assert_int_eq(count_files(), 1);
    }
}

/* Where SIGCHLD is ignored a child leaves no exit status. */
TEST(saved_without_exit_statuses)
{
    (void)signal(SIGCHLD, SIG_IGN);
    ck_assert_int_eq(save(1), LS_OK);
    ck_assert_int_eq(save(2), LS_OK);
    ck_assert(saved() == 2);
    ck_assert_int_eq(count_files(), 1);
}

/* A running writer's temporary file is not another's to remove. */
TEST(a_running_writer_keeps_its_file)
{
    char temporary[PATH_MAX + 32];
    snprintf(temporary, sizeof temporary, "%s.tmp1", file_path());
    int other = open(temporary, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    ck_assert_int_eq(flock(other, LOCK_EX), 0);
    ck_assert_int_eq(save(1), LS_OK);
    ck_assert_int_eq(access(temporary, F_OK), 0);
    close(other);
    ck_assert_int_eq(save(2), LS_OK);
    ck_assert_int_ne(access(temporary, F_OK), 0);
}

/* Opens what `raw` holds now; the refusal after "FILE is not a whole safetensors file: ", or "". */
static const char *refusal_of(const char *raw, size_t bytes)
{
    FILE *stream = fopen(file_path(), "wb");
    ck_assert(stream != NULL && fwrite(raw, 1, bytes, stream) == bytes && fclose(stream) == 0);
    ls_safetensors *file;
    catch_lines();
    ls_status status = ls_safetensors_open(file_path(), &file);
    const char *said = caught_lines();
    char line[PATH_MAX + 100];
    if (status == LS_OK) {
        ls_safetensors_close(file);
        ck_assert_str_eq(said, "");
        return said;
    }
    int length =
        snprintf(line, sizeof line, "error: %s is not a whole safetensors file: ", file_path());
    ck_assert_int_eq(status, LS_ERR_USAGE);
    ck_assert_msg(strncmp(said, line, (size_t)length) == 0, "%s", said);
    return said + length;
}

static void replace_digits(char *raw, size_t bytes, const char *old, const char *now)
{
    char *at = memmem(raw, bytes, old, 16);
    ck_assert_msg(at != NULL, "no %s", old);
    memcpy(at, now, 16);
}

/* A refusal names the digest that was found and the one in the file: with the found ones in their
 * places the changed file is whole again. */
TEST(damage_is_named)
{
    static const float weights[6] = {1.5f, -0.0f, 3e38f, 1e-45f, 5, 6};
    static char raw[4096];
    char found[17] = "", was[17] = "", header_was[17] = "", header_found[17] = "", end = 0;
    ls_safetensors_writer *writer;
    ck_assert_int_eq(ls_safetensors_create(file_path(), &writer), LS_OK);
    ls_safetensors_lasting(writer); /* with digests */
    ls_safetensors_metadata(writer, "format", "x");
    ls_safetensors_add(writer, "first", LS_F32, &(ls_shape){1, {2}}, weights);
    ls_safetensors_add(writer, "last", LS_F32, &(ls_shape){2, {2, 3}}, weights);
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
    FILE *stream = fopen(file_path(), "rb");
    size_t bytes = fread(raw, 1, sizeof raw, stream);
    fclose(stream);
    ck_assert_str_eq(refusal_of(raw, bytes), "");
    raw[bytes - 1] ^= 1;
    const char *said = refusal_of(raw, bytes);
    ck_assert_msg(sscanf(said,
                         "tensor 'last' is damaged: its XXH64 is %16[0-9a-f], it was %16[0-9a-f]%c",
                         found, was, &end) == 3 &&
                      end == '\n',
                  "%s", said);
    replace_digits(raw, bytes, was, found);
    said = refusal_of(raw, bytes);
    ck_assert_msg(sscanf(said,
                         "its header is damaged, or was written anew with an old xxh64_header "
                         "(%16[0-9a-f]; it is %16[0-9a-f]%c",
                         header_was, header_found, &end) == 3 &&
                      end == ')',
                  "%s", said);
    replace_digits(raw, bytes, header_was, header_found);
    ck_assert_str_eq(refusal_of(raw, bytes), "");
    memcpy(memmem(raw, bytes, "xxh64_header", 12), "xxh64_absent", 12);
    ck_assert_str_eq(refusal_of(raw, bytes), "its header is damaged, or was written anew with an "
                                             "old xxh64_header (missing; it is )\n");
}

/* Each bit of the length, of the header with its digests and padding, and of the data. */
TEST(every_flipped_bit_is_refused)
{
    static const float weights[6] = {1.5f, -0.0f, 3e38f, 1e-45f, 5, 6};
    static const uint16_t halves[3] = {0x3c00, 0, 1};
    ls_safetensors_writer *writer;
    ck_assert_int_eq(ls_safetensors_create(file_path(), &writer), LS_OK);
    ls_safetensors_lasting(writer);
    ls_safetensors_metadata(writer, "format", "x\"y\\z");
    ls_safetensors_add(writer, "h", LS_F16, &(ls_shape){1, {3}}, halves);
    ls_safetensors_add(writer, "w", LS_F32, &(ls_shape){2, {2, 3}}, weights);
    ls_safetensors_add(writer, "none", LS_F32, &(ls_shape){1, {0}}, weights);
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
    ls_safetensors *file;
    ck_assert_int_eq(ls_safetensors_open(file_path(), &file), LS_OK);
    ck_assert(ls_safetensors_has_digests(file));
    ls_safetensors_close(file);
    static unsigned char raw[4096];
    FILE *stream = fopen(file_path(), "r+b");
    size_t bytes = fread(raw, 1, sizeof raw, stream);
    ck_assert_uint_lt(bytes, sizeof raw);
    catch_lines(); /* some 4,000 messages */
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        int byte = raw[bit / 8] ^ 1 << bit % 8;
        ck_assert_int_eq(fseek(stream, (long)(bit / 8), SEEK_SET), 0);
        ck_assert(fputc(byte, stream) == byte && fflush(stream) == 0);
        ck_assert_msg(ls_safetensors_open(file_path(), &file) == LS_ERR_USAGE, "bit %zu", bit);
        ck_assert_int_eq(fseek(stream, (long)(bit / 8), SEEK_SET), 0);
        ck_assert(fputc(raw[bit / 8], stream) == raw[bit / 8] && fflush(stream) == 0);
    }
    caught_text();
    fclose(stream);
    ck_assert_int_eq(ls_safetensors_open(file_path(), &file), LS_OK);
    ls_safetensors_close(file);
}

TEST(discard_leaves_nothing)
{
    static const float value[1] = {1};
    ls_safetensors_writer *writer;
    ck_assert_int_eq(ls_safetensors_create(file_path(), &writer), LS_OK);
    ls_safetensors_add(writer, "a", LS_F32, &(ls_shape){1, {1}}, value);
    ls_safetensors_discard(writer);
    ls_safetensors_discard(NULL);
    ck_assert_int_ne(access(file_path(), F_OK), 0);
}

/* ---- what a run asks of a file --------------------------------------------------------------- */

/* A file of tensors of every type and of names in groups, without digests. */
static void write_asked(bool lasting)
{
    static const uint16_t half[2] = {0x3c00, 0x7c00}; /* fp16: 1 and inf */
    static const uint16_t lost[1] = {0x7f80};         /* bf16: inf */
    static const float bad[3] = {1, 2, NAN};
    static const uint8_t byte[1] = {1};
    static const struct {
        const char *name;
        ls_dtype dtype;
        ls_shape shape;
        const void *data;
    } tensors[] = {
        {"rank0/a", LS_U8, {1, {1}}, byte},  {"state/x", LS_F32, {1, {3}}, bad},
        {"rank12/b", LS_U8, {1, {1}}, byte}, {"state/y", LS_F16, {2, {1, 2}}, half},
        {"rank3x", LS_U8, {1, {1}}, byte},   {"rank/c", LS_U8, {1, {1}}, byte},
        {"plain", LS_BF16, {1, {1}}, lost},  {"state/z", LS_F32, {1, {2}}, bad},
    };
    ls_safetensors_writer *writer;
    ck_assert_int_eq(ls_safetensors_create(file_path(), &writer), LS_OK);
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        ls_safetensors_add(writer, tensors[i].name, tensors[i].dtype, &tensors[i].shape,
                           tensors[i].data);
    }
    ls_safetensors_metadata(writer, "arch", "resnet8");
    if (lasting) {
        ls_safetensors_lasting(writer);
    }
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
}

/* The call's status, and its line with the path before it. */
#define ASKED(call, status_, line)                                               \
    do {                                                                         \
        char want_[PATH_MAX + 256] = "";                                         \
        if ((line)[0] != '\0') {                                                 \
            snprintf(want_, sizeof want_, "error: %s: %s\n", file_path(), line); \
        }                                                                        \
        catch_lines();                                                           \
        ls_status asked_ = (call);                                               \
        ck_assert_str_eq(caught_lines(), want_);                                 \
        ck_assert_int_eq(asked_, status_);                                       \
    } while (0)

TEST(what_a_run_asks)
{
    ls_safetensors *file;
    const ls_safetensors_entry *entry = NULL;
    char text[256];
    write_asked(false);
    ck_assert_int_eq(ls_safetensors_open(file_path(), &file), LS_OK);
    ls_safetensors_unused(file, text, sizeof text);
    ck_assert_str_eq(text, "state 3, plain 1, rank<k> 2, rank3x 1, rank 1");
    static const struct {
        const char *name;
        ls_dtype dtype;
        bool any;
        ls_shape shape;
        const char *line, *unused;
    } rows[] = {
        {"state", LS_F32, false, {1, {3}}, "state is missing", ""},
        {"state/x", LS_F32, false, {1, {2}}, "state/x has shape [3], this run needs [2]", ""},
        {"state/y", LS_F16, true, {2, {2, 1}}, "state/y has shape [1,2], this run needs [2,1]", ""},
        {"state/y", LS_F16, true, {1, {1}}, "state/y has shape [1,2], this run needs [1]", ""},
        {"state/y", LS_F32, false, {2, {1, 2}}, "state/y has type F16, this run needs F32", ""},
        {"rank0/a",
         LS_F32,
         true,
         {1, {1}},
         "rank0/a has type U8, this run needs F32, F16 or BF16",
         ""},
        {"state/y", LS_F32, true, {2, {1, 2}}, "", "state 2, plain 1, rank<k> 2, rank3x 1, rank 1"},
        {"plain", LS_F32, true, {1, {1}}, "", "state 2, rank<k> 2, rank3x 1, rank 1"},
        {"state/x", LS_F32, true, {1, {3}}, "", "state 1, rank<k> 2, rank3x 1, rank 1"},
        {"rank0/a", LS_U8, false, {1, {1}}, "", "state 1, rank<k> 1, rank3x 1, rank 1"},
        {"state/z", LS_F32, false, {1, {2}}, "", "rank<k> 1, rank3x 1, rank 1"},
        {"rank12/b", LS_U8, false, {1, {1}}, "", "rank3x 1, rank 1"},
        {"rank3x", LS_U8, false, {1, {1}}, "", "rank 1"},
        {"rank/c", LS_U8, false, {1, {1}}, "", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const ls_safetensors_entry *there = ls_safetensors_find(file, rows[i].name);
        bool good = rows[i].line[0] == '\0';
        entry = NULL;
        ck_assert(there == NULL || !there->seen);
        ASKED(ls_safetensors_require(file, rows[i].name, rows[i].dtype, rows[i].any, &rows[i].shape,
                                     &entry),
              good ? LS_OK : LS_ERR_USAGE, rows[i].line);
        ck_assert_ptr_eq(entry, good ? there : NULL);
        ck_assert(there == NULL || there->seen == good);
        if (good) {
            ls_safetensors_unused(file, text, sizeof text);
            ck_assert_str_eq(text, rows[i].unused);
        }
    }
    ck_assert_int_eq(
        ls_safetensors_require(file, "plain", LS_BF16, false, &(ls_shape){1, {1}}, NULL), LS_OK);
    ASKED(ls_safetensors_require_finite(file, ls_safetensors_find(file, "state/x")), LS_ERR_USAGE,
          "state/x is not finite at element 2");
    ASKED(ls_safetensors_require_finite(file, ls_safetensors_find(file, "state/y")), LS_ERR_USAGE,
          "state/y is not finite at element 1");
    ASKED(ls_safetensors_require_finite(file, ls_safetensors_find(file, "plain")), LS_ERR_USAGE,
          "plain is not finite at element 0");
    ASKED(ls_safetensors_require_finite(file, ls_safetensors_find(file, "state/z")), LS_OK, "");
    ASKED(ls_safetensors_require_metadata(file, "arch", "resnet%d", 8), LS_OK, "");
    ASKED(ls_safetensors_require_metadata(file, "arch", "resnet%d", 18), LS_ERR_USAGE,
          "arch is 'resnet8' there and 'resnet18' here");
    ASKED(ls_safetensors_require_metadata(file, "world", "2"), LS_ERR_USAGE,
          "world is '' there and '2' here");
    ls_safetensors_close(file);
    for (int lasting = 0; lasting < 2; lasting++) {
        char want[PATH_MAX + 256] = "";
        write_asked(lasting != 0);
        ck_assert_int_eq(ls_safetensors_open(file_path(), &file), LS_OK);
        ck_assert_int_eq(ls_safetensors_has_digests(file), lasting);
        if (lasting == 0) {
            snprintf(want, sizeof want,
                     "warning: %s: it has no digests (an older version saved it): damage would go "
                     "unnoticed\n",
                     file_path());
        }
        catch_lines();
        ls_safetensors_warn_unverified(file);
        ck_assert_str_eq(caught_lines(), want);
        ls_safetensors_close(file);
    }
}

/* two hundred killed processes */
TEST_MAIN("safetensors", .timeout_s = 60, .before = make_folder, .after = remove_folder)
