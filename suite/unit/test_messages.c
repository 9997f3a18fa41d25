/* What the programs say of bad input: one line that names the value, where it stands and what is
 * allowed, and an exit code, before anything is run or written. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "kernels/core/path.h"
#include "kernels/core/status.h"
#include "kernels/core/text.h"
#include "suite_fake.h"

/* The command runs in a folder that holds the file `file` and the empty folder `dir`. */
static const struct wrong {
    const char *command;
    int code;
    const char *message; /* the whole line after "PROGRAM: error: " */
} wrongs[] = {
#define TRAIN "lockstep-train -a resnet8 --image-size 16 -b 4 --steps 1 --device cpu "
    {TRAIN "--save dir", LS_ERR_USAGE, "--save dir: it is a folder"},
    {TRAIN "--save dir/", LS_ERR_USAGE, "--save dir/: it is a folder"},
    {TRAIN "--save /dev/null", LS_ERR_USAGE, "--save /dev/null: it is not a regular file"},
    {TRAIN "--save none/x", LS_ERR_USAGE,
     "--save none/x: cannot write it: No such file or directory"},
    {TRAIN "--save file/x", LS_ERR_USAGE, "--save file/x: cannot write it: Not a directory"},
    {TRAIN "--resume dir", LS_ERR_USAGE,
     "dir is not a whole safetensors file: it is not a regular file"},
    {TRAIN "--init dir", LS_ERR_USAGE,
     "dir is not a whole safetensors file: it is not a regular file"},
    {TRAIN "--init file", LS_ERR_USAGE, "file is not a whole safetensors file: it has 2 bytes"},
    {TRAIN "--data file", LS_ERR_USAGE, "cannot read the folder file: Not a directory"},
    {TRAIN "--data batches:file", LS_ERR_USAGE, "--data batches:file: not a folder"},
    {"LS_RUN_DIR=file " TRAIN, LS_ERR_INFRA, "cannot create file/rank0.jsonl: Not a directory"},
    {"lockstep conform --case gradients.o0.w2.b0.1mb --out file", LS_ERR_INFRA,
     "cannot make the folder $PWD/file/jobs: Not a directory"},
    {"lockstep bounds --out file", LS_ERR_INFRA, "cannot write into $PWD/file: Not a directory"},
    {"lockstep-launch --log-dir file -- true", LS_ERR_INFRA,
     "cannot write into file: Not a directory"},
};

START_TEST(bad_input_is_one_line)
{
    const struct wrong *w = &wrongs[_i];
    char folder[64], program[1024], command[2400], path[128], wanted[600] = "";
    fake_folder(folder, sizeof folder);
    FILE *file = fake_open(folder, "file");
    fprintf(file, "x\n");
    fclose(file);
    ls_text_put(path, sizeof path, "%s/dir", folder);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    ls_path_program(program, sizeof program);
    ls_text_put(command, sizeof command,
                "cd %s && PATH=%s/..:$PATH && export LC_ALL=C && %s >output 2>messages </dev/null",
                folder, program, w->command);
    int status = system(command);
    ls_text_put(path, sizeof path, "%s/messages", folder);
    char *said = ls_text_read(path);
    ck_assert_ptr_nonnull(said);
    const char *message = strstr(said, ": error: ");
    const char *here = strstr(w->message, "$PWD");
    ls_text_put(wanted, sizeof wanted, ": error: %.*s%s%s\n",
                here == NULL ? (int)strlen(w->message) : (int)(here - w->message), w->message,
                here == NULL ? "" : folder, here == NULL ? "" : here + 4);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == w->code, "%s: status %x: %s",
                  w->command, (unsigned)status, said);
    ck_assert_msg(message != NULL && strcmp(message, wanted) == 0, "%s says '%s', expected '%s'",
                  w->command, said, wanted);
    ck_assert_msg(strchr(said, '\n') == said + strlen(said) - 1, "%s: more than a line: %s",
                  w->command, said);
    free(said);
    ls_path_remove_tree(folder);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("messages");
    TCase *tests = tcase_create("messages");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, bad_input_is_one_line, 0, (int)(sizeof wrongs / sizeof *wrongs));
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures;
}
