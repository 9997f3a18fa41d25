/* Whatever stands under a file's name: each reader takes regular files only, and returns at once.
 * And writing: a path has its old content or the new one, and nothing is left next to it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "harness/run/record.h"
#include "kernels/core/file.h"
#include "kernels/core/json.h"
#include "reference/data/picture.h"
#include "reference/files/safetensors.h"
#include "reference/oracle/dumpfile.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

static char path[128]; /* folder/rank0.jsonl */

static void fresh_folder(void)
{
    fake_begin();
    ls_text_put(path, sizeof path, "%s/rank0.jsonl", folder);
}

static void make_fifo(void)
{
    ck_assert_int_eq(mkfifo(path, 0666), 0);
}

static void make_link_to_fifo(void)
{
    LS_TEXT(fifo, 160, "%s.fifo", path);
    ck_assert_int_eq(mkfifo(fifo, 0666), 0);
    ck_assert_int_eq(symlink(fifo, path), 0);
}

static void make_socket(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ls_text_put(address.sun_path, sizeof address.sun_path, "%s", path);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    close(listener);
}

static void make_folder(void)
{
    ck_assert_int_eq(mkdir(path, 0777), 0);
}

static void make_link_to_device(void)
{
    ck_assert_int_eq(symlink("/dev/zero", path), 0);
}

/* A hole of 1 TiB: no disk, but no memory holds it. */
static void make_endless(void)
{
    int descriptor = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    ck_assert_int_eq(ftruncate(descriptor, INT64_C(1) << 40), 0);
    close(descriptor);
}

static const struct {
    void (*make)(void);
    const char *reason;
} kinds[] = {
    {make_fifo, "is a FIFO, not a regular file"},
    {make_link_to_fifo, "is a FIFO, not a regular file"},
    {make_socket, "is a socket, not a regular file"},
    {make_folder, "is a folder, not a regular file"},
    {make_link_to_device, "is a device, not a regular file"},
    {make_endless, "has 1099511627776 bytes; at most"},
};

ROWS_TEST(every_reader_takes_regular_files_only, kinds)
{
    kinds[_i].make();
    ls_file_source file;
    ck_assert_int_eq(ls_file_open(path, ls_file_most(), &file), LS_ERR_USAGE);
    ck_assert_msg(strstr(file.why, kinds[_i].reason) != NULL, "%s", file.why);
    ck_assert_int_eq(file.descriptor, -1);
    cJSON *json = NULL;
    ck_assert_int_eq(ls_json_read_file(path, &json), LS_ERR_USAGE);
    ck_assert_ptr_null(ls_text_read(path));
    ls_safetensors *tensors = NULL;
    ck_assert_int_eq(ls_safetensors_open(path, &tensors), LS_ERR_USAGE);
    ls_dumpfile *dump = NULL;
    ck_assert_int_eq(ls_dumpfile_open(path, &dump), LS_ERR_USAGE);
    ls_picture *picture = NULL;
    char why[1400];
    ck_assert_int_eq(ls_picture_create(&picture), LS_OK);
    ck_assert_int_eq(ls_picture_check(picture, path, why, sizeof why), LS_ERR_USAGE);
    ck_assert_msg(strstr(why, kinds[_i].reason) != NULL, "%s", why);
    ls_picture_destroy(picture);
    ls_record record;
    ck_assert_int_eq(ls_record_read(folder, LS_RECORD_STRICT, &record), LS_OK);
    ck_assert_msg(strstr(record.broken, kinds[_i].reason) != NULL, "%s", record.broken);
    ls_record_free(&record);
    LS_TEXT(log, 160, "%s/rank0.log", folder);
    ck_assert_int_eq(rename(path, log), 0);
    char line[64] = "?";
    ls_text_put(record.directory, sizeof record.directory, "%s", folder);
    ls_record_last_line(&record, 0, line, sizeof line);
    ck_assert_str_eq(line, "");
}

TEST(a_file_that_changes_while_it_is_read)
{
    fclose(fake_open(folder, "rank0.jsonl"));
    ck_assert_int_eq(truncate(path, 100), 0);
    ls_file_source file;
    char data[100];
    ck_assert_int_eq(ls_file_open(path, 100, &file), LS_OK);
    ck_assert_int_eq(file.bytes, 100);
    ck_assert_int_eq(truncate(path, 60), 0);
    ck_assert_int_eq(ls_file_fill(&file, path, data, 50), LS_OK);
    ck_assert_int_eq(ls_file_fill(&file, path, data, 50), LS_ERR_INFRA);
    ck_assert_msg(strstr(file.why, "became shorter while it was read") != NULL, "%s", file.why);
    close(file.descriptor);
    ck_assert_int_eq(ls_file_open(path, 59, &file), LS_ERR_USAGE);
    ck_assert_int_eq(errno, EFBIG);
}

/* The kernel's files have no size until they are read: read to the end, within the limit. */
TEST(files_without_a_size)
{
    char *text = NULL;
    size_t bytes = 0;
    ck_assert_int_eq(ls_file_read("/proc/self/maps", LS_FILE_TEXT_BYTES, &text, &bytes), LS_OK);
    ck_assert_uint_gt(bytes, 1000);
    ck_assert_uint_eq(strlen(text), bytes);
    free(text);
    ck_assert_int_eq(ls_file_read("/proc/self/maps", 999, &text, &bytes), LS_ERR_USAGE);
}

TEST(a_fifo_without_a_reader_is_not_waited_for)
{
    make_fifo();
    ck_assert_ptr_null(ls_file_create(path));
}

/* ---- writing ------------------------------------------------------------------------------------
 */

static void put(const char *name, const char *text)
{
    FILE *file = fake_open(folder, name);
    fputs(text, file);
    fclose(file);
}

/* The names in the folder, sorted, a blank after each. */
static const char *names(char *text, size_t bytes)
{
    struct dirent **list;
    int count = scandir(folder, &list, NULL, alphasort);
    text[0] = '\0';
    for (int i = 0; i < count; i++) {
        if (strcmp(list[i]->d_name, ".") != 0 && strcmp(list[i]->d_name, "..") != 0) {
            ls_text_add(text, bytes, "%s ", list[i]->d_name);
        }
        free(list[i]);
    }
    free(list);
    return text;
}

static void check_content(const char *want)
{
    char *text = ls_text_read(path);
    ck_assert_pstr_eq(text, want);
    free(text);
}

TEST(a_file_is_replaced_as_a_whole)
{
    char text[300];
    for (int i = 0; i < 4; i++) { /* new, then over the old one; each also where power may fail */
        LS_TEXT(content, 20, "content %d", i);
        ls_file_draft draft;
        ck_assert_int_eq(ls_file_draft_open(path, &draft), 0);
        ck_assert_int_eq(write(draft.descriptor, content, strlen(content)), strlen(content));
        if (i == 1) { /* the kernel drops the exit codes of children */
            (void)signal(SIGCHLD, SIG_IGN);
        }
        ck_assert_int_eq(ls_file_draft_close(&draft, LS_OK, i % 2 == 1), LS_OK);
        (void)signal(SIGCHLD, SIG_DFL);
        check_content(content);
        ck_assert_str_eq(names(text, sizeof text), "rank0.jsonl ");
        ck_assert_int_eq(fcntl(draft.descriptor, F_GETFD), -1); /* closed */
    }
    ls_file_draft draft;
    ck_assert_int_eq(ls_file_draft_open(path, &draft), 0);
    ck_assert_int_eq(ls_file_draft_close(&draft, LS_ERR_CHECK, false), LS_ERR_CHECK);
    check_content("content 3");
    ck_assert_int_eq(fcntl(draft.descriptor, F_GETFD), -1);
    /* where a file without a name cannot be made */
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(ls_file_draft_open(path, &draft), 0);
        close(draft.descriptor);
        draft.descriptor = open(draft.temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        draft.named = true;
        ck_assert_int_eq(write(draft.descriptor, "named", 5), 5);
        ls_status status = i == 0 ? LS_ERR_CHECK : LS_OK;
        ck_assert_int_eq(ls_file_draft_close(&draft, status, false), status);
        check_content(i == 0 ? "content 3" : "named");
        ck_assert_str_eq(names(text, sizeof text), "rank0.jsonl ");
    }
    ck_assert_int_eq(ls_file_replace(path, "abc", 2), LS_OK);
    check_content("ab");
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(ls_file_replace("rank0.jsonl", "here", 4), LS_OK); /* without a folder */
    check_content("here");
    ck_assert_int_eq(chdir("/"), 0);
    LS_TEXT(missing, 160, "%s/missing/x", folder);
    ck_assert_int_eq(ls_file_draft_open(missing, &draft), ENOENT);
    ck_assert_int_eq(ls_file_replace(missing, "x", 1), LS_ERR_INFRA);
    ck_assert_int_eq(unlink(path), 0);
    make_folder(); /* stands there; also where the exit code of the child is dropped */
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(ls_file_draft_open(path, &draft), 0);
        (void)signal(SIGCHLD, i < 2 ? SIG_IGN : SIG_DFL);
        ck_assert_int_eq(ls_file_draft_close(&draft, LS_OK, i % 2 == 1), LS_ERR_INFRA);
        ck_assert_str_eq(names(text, sizeof text), "rank0.jsonl ");
    }
}

TEST(a_second_name_is_given_at_once)
{
    char text[300];
    LS_TEXT(second, 160, "%s/second", folder);
    LS_TEXT(missing, 160, "%s/missing/x", folder);
    ck_assert_int_eq(ls_file_replace(path, "first", 5), LS_OK);
    for (int i = 0; i < 3; i++) { /* new; where both are one file; in place of another */
        if (i == 2) {
            ck_assert_int_eq(ls_file_replace(path, "later", 5), LS_OK);
        }
        ck_assert_int_eq(ls_file_second_name(path, second), 0);
        ck_assert_str_eq(names(text, sizeof text), "rank0.jsonl second ");
        char *got = ls_text_read(second);
        ck_assert_pstr_eq(got, i < 2 ? "first" : "later");
        free(got);
    }
    ck_assert_int_eq(ls_file_replace(path, "own", 3), LS_OK); /* the second name keeps its file */
    char *kept = ls_text_read(second);
    ck_assert_pstr_eq(kept, "later");
    free(kept);
    ck_assert_int_eq(ls_file_second_name(missing, second), ENOENT);
    ck_assert_int_eq(ls_file_second_name(path, missing), ENOENT);
    ck_assert_int_ne(ls_file_second_name(path, "/proc/x"), 0); /* another file system */
    ck_assert_str_eq(names(text, sizeof text), "rank0.jsonl second ");
}

/* What a killed writer has left goes when the path is written next; what others are called, and
 * what a running writer holds, stays. */
TEST(drafts_of_killed_writers_go)
{
    static const char *const others[] = {"rank0.jsonl.tmp",   "rank0.jsonl.tmp1a",
                                         "rank0.jsonl.tmq1",  "rank1.jsonl.tmp1",
                                         "rank0.jsonl.tmp 1", "rank0.jsonl"};
    char text[600], before[600];
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        put(others[i], "x");
    }
    put("rank0.jsonl.tmp77", "held");
    LS_TEXT(held, 160, "%s/rank0.jsonl.tmp77", folder);
    int lock = open(held, O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(flock(lock, LOCK_EX), 0);
    names(before, sizeof before);
    put("rank0.jsonl.tmp1", "x");
    put("rank0.jsonl.tmp4194304", "x");
    ck_assert_int_eq(ls_file_replace(path, "new", 3), LS_OK);
    ck_assert_str_eq(names(text, sizeof text), before);
    check_content("new");
    int first = dup(lock), second = dup(lock); /* no descriptor is left open */
    ck_assert(first == lock + 1 && second == lock + 2);
    close(first);
    close(second);
    close(lock);
    ck_assert_int_eq(ls_file_replace(path, "new", 3), LS_OK);
    ck_assert_ptr_null(strstr(names(text, sizeof text), "tmp77"));
}

TEST(names_that_are_too_long)
{
    ls_file_draft draft;
    LS_TEXT(ending, 24, ".tmp%d", (int)getpid());
    size_t fits = NAME_MAX - strlen(ending);
    for (size_t length = fits; length <= fits + 1; length++) {
        char name[400];
        memset(name, 'x', sizeof name);
        name[length] = '\0';
        LS_TEXT(whole, 500, "%s/%s", folder, name);
        int error = ls_file_draft_open(whole, &draft);
        ck_assert_int_eq(error, length == fits ? 0 : ENAMETOOLONG);
        if (error == 0) {
            ck_assert_int_eq(ls_file_draft_close(&draft, LS_ERR_CHECK, false), LS_ERR_CHECK);
        }
    }
    char deep[PATH_MAX + 8] = "";
    while (strlen(deep) + strlen(ending) + 2 < PATH_MAX) {
        strcat(deep, "/x");
    }
    ck_assert_int_eq(ls_file_draft_open(deep, &draft), ENOENT); /* it fits */
    strcat(deep, "/x");
    ck_assert_int_eq(ls_file_draft_open(deep, &draft), ENAMETOOLONG);
}

TEST(what_cannot_be_written_is_an_error)
{
    ck_assert_int_eq(ls_file_write(-1, "x", "abc", 3), LS_ERR_INFRA);
    ck_assert_int_eq(ls_file_write(-1, "x", "abc", 0), LS_OK);
    int ends[2];
    char text[8];
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(ls_file_write(ends[1], "x", "abcdef", 6), LS_OK);
    ck_assert_int_eq(read(ends[0], text, sizeof text), 6);
    ck_assert_mem_eq(text, "abcdef", 6);
    close(ends[0]);
    close(ends[1]);
    FILE *full = ls_file_create("/dev/full");
    ck_assert_ptr_nonnull(full);
    fputs("x", full);
    ck_assert_int_eq(ls_file_close(full, "/dev/full"), LS_ERR_INFRA);
    full = ls_file_create("/dev/full");
    fputs("x", full);
    ck_assert_int_eq(fflush(full), EOF); /* an error of earlier, although closing succeeds */
    ck_assert_int_eq(ls_file_close(full, "/dev/full"), LS_ERR_INFRA);
    FILE *file = ls_file_create(path);
    fputs("abc", file);
    ck_assert_int_eq(ls_file_close(file, path), LS_OK);
    check_content("abc");
    ck_assert_ptr_null(ls_file_create("/nonexistent/x"));
    for (int i = 0; i < 2; i++) {
        int flags = i == 0 ? O_APPEND : O_TRUNC;
        int descriptor = ls_file_open_to_write(path, flags);
        ck_assert_int_eq(fcntl(descriptor, F_GETFL) & (O_NONBLOCK | O_APPEND | O_ACCMODE),
                         O_WRONLY | (i == 0 ? O_APPEND : 0));
        ck_assert_int_eq(fcntl(descriptor, F_GETFD), FD_CLOEXEC);
        ck_assert_int_eq(write(descriptor, "d", 1), 1);
        close(descriptor);
        check_content(i == 0 ? "abcd" : "d");
    }
    ls_file_survive_limit();
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = 2;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(ls_file_replace(path, "abc", 3), LS_ERR_INFRA);
    limit.rlim_cur = limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    check_content("d");
}

TEST(limits_of_reading)
{
    char *text = NULL;
    size_t bytes = 77;
    ls_file_source file;
    ck_assert_int_eq(ls_file_most(), (int64_t)sysconf(_SC_PHYS_PAGES) / 2 * sysconf(_SC_PAGESIZE));
    put("rank0.jsonl", "");
    ck_assert_int_eq(ls_file_load(path, 0, &file, &text, &bytes), LS_OK);
    ck_assert(bytes == 0 && text[0] == '\0' && file.bytes == 0);
    free(text);
    put("rank0.jsonl", "abc");
    ck_assert_int_eq(ls_file_load(path, 3, &file, &text, &bytes), LS_OK);
    ck_assert(bytes == 3 && strcmp(text, "abc") == 0 && file.bytes == 3);
    ck_assert_int_eq(fcntl(file.descriptor, F_GETFD), -1); /* closed */
    free(text);
    text = NULL;
    ck_assert_int_eq(ls_file_load(path, 2, &file, &text, &bytes), LS_ERR_USAGE);
    ck_assert_int_eq(errno, EFBIG);
    LS_TEXT(why, 300, "%s has 3 bytes; at most 2 are read", path);
    ck_assert_str_eq(file.why, why);
    ck_assert(text == NULL && file.descriptor == -1);
    ck_assert_int_eq(ls_file_open(path, 3, &file), LS_OK);
    char data[4] = "";
    ck_assert_int_eq(fcntl(file.descriptor, F_GETFD), FD_CLOEXEC);
    ck_assert_int_eq(ls_file_fill(&file, path, data, 0), LS_OK);
    ck_assert_int_eq(ls_file_fill(&file, path, data, 3), LS_OK);
    ck_assert_str_eq(data, "abc");
    ck_assert_int_eq(ls_file_fill(&file, path, data, 1), LS_ERR_INFRA);
    ck_assert_int_eq(errno, EIO);
    close(file.descriptor);
    ck_assert_int_eq(ls_file_fill(&file, path, data, 1), LS_ERR_INFRA);
    ck_assert_ptr_nonnull(strstr(file.why, "cannot read "));
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(ls_file_read(path, 3, &text, &bytes), LS_ERR_INFRA);
    ck_assert_int_eq(ls_file_open(path, 3, &file), LS_ERR_INFRA);
    ck_assert_int_eq(errno, ENOENT);
}

TEST_MAIN("file", .before = fresh_folder, .after = fake_end)
