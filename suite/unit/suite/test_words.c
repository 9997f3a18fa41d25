/* A subject's words cannot forge a line: what hostile trainers write into events, logs and dumps is
 * judged, and every line that is printed or written about them is parsed. */
#include <check.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/process/proc.h"
#include "kernels/core/clock.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "suite_fake.h"
#include "suite/unit/run_suite.h"

/* As JSON writes them: lines of ours, escape sequences, markup, bidi and zero-width marks, C1
 * control characters, bytes that are not UTF-8. */
#define WORDS                                                                                \
    "x\\nok 1 - x # PASS\\nCORRECT  yes\\n1 passed, 0 failed\\r\\u001b[2J\\u001b]0;t\\u0007" \
    "|<script>alert(1)</script>`&\\u202e\\u200b\\u009b \377\300\257"
#define START                                                                              \
    "{\"event\":\"start\",\"schema\":1,\"world\":2,\"device\":\"" WORDS "\",\"options\":{" \
    "\"opt-level\":\"" WORDS "\",\"" WORDS "\":1},\"cuda_graph\":\"" WORDS                 \
    "\",\"transport\":\"" WORDS "\"}\n"

static const struct subject {
    const char *name, *script, *said; /* said: in the case's line */
    bool starts;
} subjects[] = {
    {"refuses", "cat ${0%subject.sh}events >$LS_RUN_DIR/rank$RANK.jsonl; exit 4",
     "the subject refuses x\\x0aok 1 - x # PASS\\x0aCORRECT  yes", true},
    {"fails", "printf 'x\\033[2J\\rCORRECT  yes\\033]0;t\\007\\302\\233\\n' >&2; exit 2",
     "x\\x1b[2J\\x0dCORRECT  yes\\x1b]0;t\\x07\\xc2\\x9b", false},
    {"long", "head -c 1000000 /dev/zero | tr '\\000' y >&2; exit 2", "yyyyyyyy", false},
    {"fails late",
     "head -n 1 ${0%subject.sh}events >$LS_RUN_DIR/rank$RANK.jsonl; "
     "printf 'x\\033[2J\\rCORRECT  yes\\033]0;t\\007\\302\\233\\n' >&2; exit 2",
     "x\\x1b[2J\\x0dCORRECT  yes\\x1b]0;t\\x07\\xc2\\x9b", true},
    {"long and late",
     "head -n 1 ${0%subject.sh}events >$LS_RUN_DIR/rank$RANK.jsonl; "
     "head -c 1000000 /dev/zero | tr '\\000' y >&2; exit 2",
     "yyyyyyyy", true},
    {"breaks", "printf '{\\033[2J<script>\\r\\n' >$LS_RUN_DIR/rank$RANK.jsonl", "\\x1b[2J<script>",
     true},
};

static bool is_hostile(const char *line)
{
    static const char *const parts[] = {"\xe2\x80\xae", "\xe2\x80\x8b", "\xc2\x9b", "\377", "\300"};
    static const char *const starts[] = {"ok 1", "CORRECT  yes", "1 passed"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strstr(line, parts[i]) != NULL) {
            return true;
        }
    }
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        if (strncmp(line, starts[i], strlen(starts[i])) == 0) {
            return true;
        }
    }
    for (; *line != '\0'; line++) {
        if ((unsigned char)*line < 0x20 && *line != '\t') {
            return true;
        }
    }
    return false;
}

/* No line of the file is forged, steers a terminal or is of a subject's length; outside of code no
 * markup of a subject is left. */
static void check_file(const char *path)
{
    enum { LONGEST = 20000 };
    char *text = ls_text_read(path), *rest = text, *line;
    ck_assert_msg(text != NULL, "cannot read %s", path);
    const char *ending = strrchr(path, '.');
    bool markup = strcmp(ending, ".html") == 0 || strcmp(ending, ".xml") == 0;
    bool markdown = strcmp(ending, ".md") == 0, code = false;
    while ((line = strsep(&rest, "\n")) != NULL) {
        code = code != (strncmp(line, "```", 3) == 0);
        ck_assert_msg(!is_hostile(line), "%s has the line '%s'", path, line);
        ck_assert_msg(strlen(line) < LONGEST || strcmp(ending, ".html") == 0,
                      "%s has a line of %zu bytes", path, strlen(line));
        bool plain = markup || (markdown && !code);
        ck_assert_msg(!plain || strstr(line, "<script>alert") == NULL, "%s has the line '%s'", path,
                      line);
        ck_assert_msg(!markdown || code || strstr(line, "PASS\\x0a") == NULL || line[0] != '|' ||
                          strstr(line, "\\|&lt;script") != NULL,
                      "%s has the line '%s'", path, line);
    }
    free(text);
}

/* Runs lockstep with the arguments, its output in FOLDER/output.txt; returns its exit code. */
static int run_lockstep(const char *folder, char *const *arguments)
{
    char program[1024], *argv[16] = {program};
    ls_path_program(program, sizeof program);
    ls_text_add(program, sizeof program, "%s", "/../lockstep");
    for (int i = 0; arguments[i] != NULL; i++) {
        argv[i + 1] = arguments[i];
    }
    LS_TEXT(output, 100, "%s/output.txt", folder);
    ls_proc_spec spec = {.argv = argv, .environment = environ, .log_path = output};
    ls_proc process;
    ck_assert_int_eq(ls_proc_start(&spec, &process), LS_OK);
    ck_assert(ls_proc_wait_all(&process, 1, ls_clock_after(50)));
    check_file(output);
    return process.code;
}

ROWS_TEST(no_line_is_forged, subjects)
{
    const struct subject *s = &subjects[_i];
    char folder[64];
    fake_folder(folder, sizeof folder);
    FILE *script = fake_open(folder, "subject.sh");
    fputs(s->script, script);
    fclose(script);
    FILE *events = fake_open(folder, "events");
    fputs(START "{\"event\":\"unsupported\",\"option\":\"" WORDS "\",\"why\":\"" WORDS, events);
    for (int i = 0; i < 1000000; i++) {
        fputc('y', events);
    }
    fputs("\"}\n", events);
    fclose(events);
    LS_TEXT(command, 100, "sh %s/subject.sh", folder);
    LS_TEXT(output, 100, "%s/output.txt", folder);
    LS_TEXT(run, 100, "%s/run", folder);
    char *arguments[] = {"conform", "--case", "gradients.o0.w2.b0.1mb", "--out", run, "--subject",
                         command,   NULL};
    ck_assert_int_eq(run_lockstep(folder, arguments), s->starts ? 1 : 3);
    char *said = ls_text_read(output);
    ck_assert_msg(strstr(said, s->said) != NULL, "'%s' is not in: %s", s->said, said);
    ck_assert_msg(strstr(said, "\nnot ok 1 - gradients.o0.w2.b0.1mb # ") != NULL &&
                      strstr(said, s->starts ? "\nCORRECT  no" : "\nCORRECT  not shown") != NULL,
                  "no verdict: %s", said);
    free(said);
    static const char *const written[] = {"*.md", "*.html", "*.xml", "*.json*", "tables/*.tsv"};
    glob_t files = {0};
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        LS_TEXT(pattern, 200, "%s/%s", run, written[i]);
        (void)glob(pattern, i == 0 ? 0 : GLOB_APPEND, NULL, &files);
    }
    ck_assert_int_ge((int)files.gl_pathc, 6);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        check_file(files.gl_pathv[i]);
    }
    globfree(&files);
    ls_path_remove_tree(folder);
}

/* Folders of jobs that another launcher ran. */
TEST(no_folder_forges_a_line)
{
    char folder[64];
    fake_folder(folder, sizeof folder);
    LS_TEXT(job, 150, "%s/a\nok 1 - x # PASS\nCORRECT  yes\033[2J", folder);
    ck_assert_int_eq(mkdir(job, 0755), 0);
    fake_step steps[] = {{1, 1, 1, 1, 0, 1, 1, 1, 1}};
    fake_rank(job, 0, steps, 1);
    fake_rank(job, 1, steps, 1);
    char *arguments[] = {"judge", job, NULL};
    ck_assert_int_eq(run_lockstep(folder, arguments), 1);
    ls_path_remove_tree(folder);
}

TEST_MAIN("words")
