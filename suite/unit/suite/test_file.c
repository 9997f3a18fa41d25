/* Whatever stands under a file's name: each reader takes regular files only, and returns at once.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "harness/run/record.h"
#include "kernels/core/file.h"
#include "kernels/core/json.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "reference/data/jpeg.h"
#include "reference/files/safetensors.h"
#include "reference/oracle/dumpfile.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

static char folder[64];
static char path[128]; /* folder/rank0.jsonl */

static void fresh_folder(void)
{
    fake_folder(folder, sizeof folder);
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

START_TEST(every_reader_takes_regular_files_only)
{
    fresh_folder();
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
    ls_jpeg *jpeg = NULL;
    char why[1400];
    ck_assert_int_eq(ls_jpeg_create(&jpeg), LS_OK);
    ck_assert_int_eq(ls_jpeg_check(jpeg, path, why, sizeof why), LS_ERR_USAGE);
    ck_assert_msg(strstr(why, kinds[_i].reason) != NULL, "%s", why);
    ls_jpeg_destroy(jpeg);
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
    ls_path_remove_tree(folder);
}
END_TEST

START_TEST(a_file_that_changes_while_it_is_read)
{
    fresh_folder();
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
    ls_path_remove_tree(folder);
}
END_TEST

/* The kernel's files have no size until they are read: read to the end, within the limit. */
START_TEST(files_without_a_size)
{
    char *text = NULL;
    size_t bytes = 0;
    ck_assert_int_eq(ls_file_read("/proc/self/maps", LS_FILE_TEXT_BYTES, &text, &bytes), LS_OK);
    ck_assert_uint_gt(bytes, 1000);
    ck_assert_uint_eq(strlen(text), bytes);
    free(text);
    ck_assert_int_eq(ls_file_read("/proc/self/maps", 999, &text, &bytes), LS_ERR_USAGE);
}
END_TEST

START_TEST(a_fifo_without_a_reader_is_not_waited_for)
{
    fresh_folder();
    make_fifo();
    ck_assert_ptr_null(ls_file_create(path));
    ls_path_remove_tree(folder);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("file");
    TCase *tests = tcase_create("file");
    tcase_add_loop_test(tests, every_reader_takes_regular_files_only, 0,
                        (int)(sizeof kinds / sizeof *kinds));
    tcase_add_test(tests, a_file_that_changes_while_it_is_read);
    tcase_add_test(tests, files_without_a_size);
    tcase_add_test(tests, a_fifo_without_a_reader_is_not_waited_for);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
