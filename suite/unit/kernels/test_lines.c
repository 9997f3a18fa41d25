/* Reading a file line by line: lines of every length, a last one without its newline, files that
 * are refused. */
#include <sys/stat.h>

#include "kernels/core/file.h"
#include "kernels/core/list.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "suite/unit/run_suite.h"

static char folder[64], path[80];

static void set_up(void)
{
    ls_text_put(folder, sizeof folder, "/tmp/lockstep-lines-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ls_text_put(path, sizeof path, "%s/file", folder);
}

static void tear_down(void)
{
    ls_path_remove_tree(folder);
}

static void write_bytes(const void *data, size_t bytes)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

static void expect(ls_lines *lines, const void *text, size_t length, bool is_whole)
{
    char *line = NULL;
    size_t bytes = 0;
    bool whole = !is_whole;
    ck_assert_int_eq(ls_lines_next(lines, &line, &bytes, &whole), LS_OK);
    ck_assert_ptr_nonnull(line);
    ck_assert_uint_eq(bytes, length);
    ck_assert_int_eq(whole, is_whole);
    ck_assert(memcmp(line, text, length) == 0 && line[length] == '\0');
}

static void expect_end(ls_lines *lines)
{
    char *line = folder;
    size_t bytes;
    bool whole;
    for (int i = 0; i < 2; i++) { /* it stays the end */
        ck_assert_int_eq(ls_lines_next(lines, &line, &bytes, &whole), LS_OK);
        ck_assert_ptr_null(line);
    }
    ls_lines_close(lines);
}

TEST(short_files)
{
    ls_lines lines;
    write_bytes("", 0);
    ck_assert_int_eq(ls_lines_open(path, 10, &lines), LS_OK);
    expect_end(&lines);
    write_bytes("\n\na\0b\n\nlast", 11);
    ck_assert_int_eq(ls_lines_open(path, 10, &lines), LS_OK);
    expect(&lines, "", 0, true);
    expect(&lines, "", 0, true);
    expect(&lines, "a\0b", 3, true);
    expect(&lines, "", 0, true);
    expect(&lines, "last", 4, false);
    expect_end(&lines);
}

TEST(a_file_that_is_being_written)
{
    ls_lines lines;
    char *line = NULL;
    write_bytes("one\ntw", 6);
    ck_assert_int_eq(ls_lines_open(path, 10, &lines), LS_OK);
    ck_assert_int_eq(ls_lines_next_whole(&lines, &line), LS_OK);
    ck_assert_str_eq(line, "one");
    for (int again = 0; again < 2; again++) {
        ck_assert_int_eq(ls_lines_next_whole(&lines, &line), LS_OK);
        ck_assert_ptr_null(line);
    }
    write_bytes("one\ntwo\nt", 9);
    ck_assert_int_eq(ls_lines_next_whole(&lines, &line), LS_OK);
    ck_assert_str_eq(line, "two");
    ck_assert_int_eq(ls_lines_next_whole(&lines, &line), LS_OK);
    ck_assert_ptr_null(line);
    ls_lines_close(&lines);
}

/* Lengths around those of the memory that lines are read into. */
TEST(lines_of_all_lengths)
{
    enum { MOST = 1 << 19 };
    static const int lengths[] = {0,     1,     65534, 65535, 65536, 65537, 0,      3,      131071,
                                  30000, 30000, 30000, 5,     1,     2,     262144, 262145, 1,
                                  0,     65535, MOST,  7,     0,     65536, 100000, MOST,   9};
    enum { COUNT = sizeof lengths / sizeof *lengths };
    char *all = ls_list_make(COUNT, MOST + 1), *line = ls_list_make(1, MOST + 1);
    size_t at = 0;
    for (int i = 0; i < COUNT; i++) {
        memset(all + at, 'a' + i, (size_t)lengths[i]);
        at += (size_t)lengths[i];
        all[at++] = '\n';
    }
    for (int whole = 0; whole < 2; whole++) {
        write_bytes(all, at - (whole == 0 ? 1 : 0));
        ls_lines lines;
        ck_assert_int_eq(ls_lines_open(path, MOST, &lines), LS_OK);
        for (int i = 0; i < COUNT; i++) {
            memset(line, 'a' + i, (size_t)lengths[i]);
            expect(&lines, line, (size_t)lengths[i], whole == 1 || i < COUNT - 1);
        }
        expect_end(&lines);
    }
    free(all);
    free(line);
}

TEST(a_line_that_is_too_long_is_told)
{
    char *text = ls_list_make(1, 1 << 18), *line;
    size_t bytes;
    bool whole;
    memset(text, 'x', 1 << 18);
    memcpy(text, "one\n", 4);
    for (int over = 0; over < 2; over++) {
        size_t longest = 100000;
        memset(text + 4, 'x', longest + 2);
        text[4 + longest + (size_t)over] = '\n';
        write_bytes(text, 1 << 18);
        ls_lines lines;
        ck_assert_int_eq(ls_lines_open(path, longest, &lines), LS_OK);
        expect(&lines, "one", 3, true);
        if (over == 0) {
            expect(&lines, text + 4, longest, true);
        }
        ck_assert_int_eq(ls_lines_next(&lines, &line, &bytes, &whole), LS_ERR_USAGE);
        LS_TEXT(why, 200, "%s has a line of more than 100000 bytes", path);
        ck_assert_str_eq(lines.file.why, why);
        ls_lines_close(&lines);
    }
    free(text);
}

TEST(what_is_no_file_is_refused)
{
    ls_lines lines;
    ck_assert_int_eq(ls_lines_open(path, 10, &lines), LS_ERR_INFRA);
    ck_assert_ptr_nonnull(strstr(lines.file.why, "cannot open"));
    ls_lines_close(&lines);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(ls_lines_open(path, 10, &lines), LS_ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(lines.file.why, "is a FIFO, not a regular file"));
    ls_lines_close(&lines);
}

TEST_MAIN("lines", .timeout_s = 60, .before = set_up, .after = tear_down)
