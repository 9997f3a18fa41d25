/* A failing line's repeat line, pasted into a shell, does the same case with the same verdict. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/text.h"
#include "kernels/core/json.h"
#include "kernels/core/path.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

/* The first verdict of a run. */
typedef struct seen {
    char id[LS_CASE_ID_BYTES], code[16], evidence[512], repeat[600];
} seen;

static ls_status take(void *context, const cJSON *line, int number)
{
    seen *s = context;
    if (number == 1) {
        ls_text_put(s->id, sizeof s->id, "%s", ls_json_string(line, "case", ""));
        ls_text_put(s->code, sizeof s->code, "%s", ls_json_string(line, "verdict", ""));
        ls_text_put(s->evidence, sizeof s->evidence, "%s", ls_json_string(line, "evidence", ""));
        ls_text_put(s->repeat, sizeof s->repeat, "%s", ls_json_string(line, "repeat", ""));
    }
    return LS_OK;
}

/* Runs the line in a folder where build/ is this build. Returns the exit code. */
static int paste(const char *folder, const char *line)
{
    char command[1600];
    ls_text_put(command, sizeof command, "cd '%s' && { %s\n} >>log 2>&1", folder, line);
    int status = system(command);
    return status < 0 || status % 256 != 0 ? -1 : status / 256;
}

static seen latest(const char *folder)
{
    char path[200];
    seen s;
    memset(&s, 0, sizeof s);
    ls_text_put(path, sizeof path, "%s/results/latest/verdicts.jsonl", folder);
    ck_assert_int_eq(ls_json_each_line(path, take, &s), LS_OK);
    return s;
}

/* A trainer that ends with an error is the cheapest failure there is. */
static void round_trip(const char *arguments)
{
    char folder[64], program[1024], link[200], line[400];
    fake_folder(folder, sizeof folder);
    ls_path_program(program, sizeof program);
    char *slash = strrchr(program, '/'); /* this program lies in build/unit */
    ck_assert_ptr_nonnull(slash);
    *slash = '\0';
    ls_text_put(link, sizeof link, "%s/build", folder);
    ck_assert_int_eq(symlink(program, link), 0);
    ls_text_put(line, sizeof line, "build/lockstep conform %s", arguments);
    ck_assert_int_eq(paste(folder, line), 1);
    seen first = latest(folder);
    ck_assert_str_eq(first.code, "FAIL");
    ck_assert_ptr_nonnull(strstr(first.repeat, first.id));
    ck_assert_int_eq(paste(folder, first.repeat), 1);
    seen again = latest(folder);
    ck_assert_str_eq(again.id, first.id);
    ck_assert_str_eq(again.code, first.code);
    ck_assert_str_eq(again.evidence, first.evidence);
    ck_assert_str_eq(again.repeat, first.repeat);
    ls_path_remove_tree(folder);
}

START_TEST(a_repeat_line_repeats)
{
    round_trip("--case scaler.trace.due.o2 --subject 'sh -c \"exit 1\"' --seed 11 --device cpu");
    round_trip("--case 'scaler.trace.plain.o?' --subject false --seed 12");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("repeat");
    TCase *tests = tcase_create("repeat");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, a_repeat_line_repeats);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
