/* What counts as a caught mistake: the expected verdict and cause, never a crash; and what a run of
 * many ends with. The same rule in C (`lockstep detect`) and in Python (make peers, the gallery).
 */
#include <sys/stat.h>

#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "suite/detect/detect_internal.h"
#include "suite/unit/run_suite.h"
#include "suite/unit/caught.h"

typedef struct row {
    const char *verdict, *cause; /* of the case; NULL: the run left none */
    int code;                    /* of the run */
    const char *expected, *pattern, *state;
    const char *evidence; /* NULL: "of the evidence" */
} row;

#define ENDED "rank=0 exit code 1 (check failed): RuntimeError"

static const row rows[] = {
    {"FAIL", "summed over ranks", 1, "FAIL", "*summed*", "ok"},
    {"FAIL", "", 1, "FAIL", "-", "ok"},
    {"FAIL", "", 1, "FAIL", "*the evidence*", "ok"}, /* no cause is printed */
    {"FAIL", "averaged twice", 1, "FAIL", "*summed*", "not ok"},
    {"FAIL", "averaged twice of the evidence", 1, "FAIL", "*summed*", "not ok"},
    {"PASS", "", 0, "FAIL", "-", "not ok"},
    {"FAIL", "", 1, "FAIL", "*summed*", "not run", ENDED}, /* an exception of Python's */
    {"FAIL", "summed over ranks", 1, "FAIL", "*summed*", "ok", ENDED},
    {"WEAK", "summed over ranks", 1, "FAIL", "*summed*", "not ok"},
    {"WEAK", "summed over ranks", 1, "WEAK", "*summed*", "ok"},
    {"CRASH", "summed over ranks", 1, "FAIL", "*summed*", "not run"},
    {"CRASH", "", 1, "FAIL", "-", "not run"},
    {"CRASH", "", 1, "CRASH", "-", "ok"},
    {"PASS", "", 0, "CRASH", "-", "not ok"},
    {"TIMEOUT", "", 1, "FAIL", "-", "not run"},
    {"UNSUPPORTED", "", 1, "FAIL", "-", "not run"},
    {"INFRA", "", 3, "FAIL", "-", "not run"},
    {"SKIP", "", 1, "FAIL", "-", "not run"},
    {"PASS", "", 3, "FAIL", "-", "not run"},
    {NULL, "", 3, "FAIL", "-", "not run"},
    {NULL, "", 139, "FAIL", "-", "not run"},
    {NULL, "", 0, "FAIL", "-", "not run"},
};
enum { ROWS = sizeof rows / sizeof *rows };

static const char *evidence_of(const row *r)
{
    return r->evidence != NULL ? r->evidence : "of the evidence";
}

static const char *state_of(const ls_detect_result *result)
{
    return result->caught ? "ok" : result->not_run ? "not run" : "not ok";
}

LOOP_TEST(a_crash_is_no_catch, ROWS)
{
    const row *r = &rows[_i];
    ls_detect_plant plant = {.case_id = "ddp.x"};
    ls_text_put(plant.expected, sizeof plant.expected, "%s", r->expected);
    ls_text_put(plant.cause, sizeof plant.cause, "%s", r->pattern);
    ls_detect_verdict verdict[] = {{.case_id = "ddp.other", .code = "FAIL", .cause = "summed"},
                                   {.case_id = "ddp.x"}};
    ls_text_put(verdict[1].evidence, sizeof verdict[1].evidence, "%s", evidence_of(r));
    ls_text_put(verdict[1].code, sizeof verdict[1].code, "%s",
                r->verdict == NULL ? "" : r->verdict);
    ls_text_put(verdict[1].cause, sizeof verdict[1].cause, "%s", r->cause);
    ls_detect_outcome outcome = {
        .count = r->verdict == NULL ? 1 : 2, .verdict = verdict, .code = r->code};
    ls_detect_result result = {0};
    ls_detect_judge(&plant, &outcome, &result);
    ck_assert_msg(strcmp(state_of(&result), r->state) == 0, "%s (%s): %s, not %s",
                  r->verdict == NULL ? "no verdict" : r->verdict, r->cause, state_of(&result),
                  r->state);
    ck_assert(result.not_run == (result.why[0] != '\0'));
}

/* Jobs of a bench have cases whose ids go on. */
TEST(a_job_of_a_bench_is_of_the_named_case)
{
    ls_detect_plant plant = {.case_id = "gradients.timed", .expected = "FAIL", .cause = "-"};
    ls_detect_verdict verdict[] = {{.case_id = "gradients.timed.a", .code = "PASS"},
                                   {.case_id = "gradients.timed.b", .code = "FAIL"},
                                   {.case_id = "gradients.timed.c", .code = "PASS"}};
    ls_detect_outcome outcome = {.count = 3, .verdict = verdict, .code = 1};
    ls_detect_result result = {0};
    ls_detect_judge(&plant, &outcome, &result);
    ck_assert_str_eq(result.by.case_id, "gradients.timed.b");
    ck_assert(result.caught);
}

TEST(what_was_not_run_decides)
{
    const struct {
        ls_detect_summary summary;
        int code;
    } runs[] = {
        {{.planted = {.tried = 3, .caught = 3}}, LS_OK},
        {{.planted = {.tried = 3, .caught = 3}, .foreign = {.left_out = 9}}, LS_OK},
        {{.planted = {.tried = 3, .caught = 2}}, LS_ERR_CHECK},
        {{.planted = {.tried = 3, .caught = 2, .elsewhere = 1}}, LS_ERR_CHECK},
        {{.planted = {.tried = 3, .caught = 2, .not_run = 1}}, LS_ERR_INFRA},
        {{.planted = {.tried = 3, .caught = 1, .not_run = 1}}, LS_ERR_CHECK},
        {{.foreign = {.tried = 1, .caught = 1}, .right = 1, .right_not_run = 1}, LS_ERR_INFRA},
        {{.foreign = {.tried = 1, .caught = 1}, .right = 1, .right_failed = 1}, LS_ERR_CHECK},
        {{.foreign = {.left_out = 9}}, LS_ERR_INFRA},
        {{.clean = 5}, LS_ERR_INFRA},
        {{.planted = {.tried = 3, .caught = 3}, .clean = 5, .clean_failed = 1}, LS_ERR_CHECK},
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        ck_assert_msg(ls_detect_code(&runs[i].summary) == runs[i].code, "run %d", (int)i);
    }
}

/* ---- make peers ------------------------------------------------------------------------------ */

static bool has_python(void)
{
    return system("python3 -c pass 2>/dev/null") == 0;
}

static void put(const char *folder, const char *name, const char *text)
{
    LS_TEXT(path, 400, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    ck_assert_int_eq(chmod(path, 0755), 0);
}

/* Runs check.sh on a script with a `lockstep` that leaves the row's verdict; its exit code. */
static int run_peers(const char *script, const char *verdict, int code, char *said, size_t bytes)
{
    char folder[] = "/tmp/lockstep-detect-XXXXXX", source[1024];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert(ls_path_find("suite/peers/check.sh", source, sizeof source));
    put(folder, "numpy.py", "");
    put(folder, "torch.py", "");
    LS_TEXT(lockstep, 1200,
            "#!/bin/sh\n"
            "while [ $# -gt 0 ]; do\n"
            "    case $1 in --out) out=$2 ;; --case) case=$2 ;; esac\n"
            "    shift\n"
            "done\n"
            "mkdir -p \"$out\"\n"
            "echo '{\"case\":\"'\"$case\"'\",\"verdict\":\"%s\",\"cause\":\"without "
            "set_epoch()\"}' >\"$out/verdicts.jsonl\"\n"
            "echo \"not ok 1 - $case # %s 0.1s\"\n"
            "exit %d\n",
            verdict, verdict, code);
    put(folder, "lockstep", lockstep);
    LS_TEXT(command, 2000, "PYTHONPATH=%s sh %s %s python3 %s 2>&1", folder, source, folder,
            script);
    int ended = shell_says(command, said, bytes);
    ls_path_remove_tree(folder);
    return ended;
}

TEST(peers_count_what_was_not_run)
{
    static const struct {
        const char *script, *verdict;
        int run_code, code;
        const char *says;
    } tries[] = {
        {"script_set_epoch_forgotten.py", "FAIL", 1, 0, "ok - "},
        {"script_set_epoch_forgotten.py", "CRASH", 1, 3, "not run - "},
        {"script_set_epoch_forgotten.py", "UNSUPPORTED", 1, 3, "not run - "},
        {"script_set_epoch_forgotten.py", "INFRA", 3, 3, "not run - "},
        {"script_set_epoch_forgotten.py", "PASS", 0, 1, "not ok - "},
        {"script_zero_grad_forgotten.py", "FAIL", 1, 1, "not ok - "}, /* of another cause */
        {"autocast_forgotten.py", "PASS", 0, 1, "not ok - "},
        {"example.py", "PASS", 0, 0, "ok - "},
        {"example.py", "CRASH", 1, 3, "not run - "},
        {"example.py", "WEAK", 1, 1, "not ok - "},
        {"no_such_script.py", "PASS", 0, 3, "0 passed"},
    };
    char said[4000];
    for (size_t i = 0; has_python() && i < sizeof tries / sizeof *tries; i++) {
        int code =
            run_peers(tries[i].script, tries[i].verdict, tries[i].run_code, said, sizeof said);
        ck_assert_msg(code == tries[i].code &&
                          strncmp(said, tries[i].says, strlen(tries[i].says)) == 0,
                      "%s %s: exit code %d, not %d: %s", tries[i].script, tries[i].verdict, code,
                      tries[i].code, said);
    }
}

/* ---- rows of mistakes ------------------------------------------------------------------------ */

/* Lists the row, whose base is "one\ntwo\none\nthree\n". */
TEST(a_row_that_does_not_fit_is_named)
{
#define ROW "[wrong]\nIt is wrong.\ncase: x.y WEAK\n"
    static const struct {
        const char *rows;
        int code;
        const char *says;
    } tries[] = {
        {ROW "-two\n+2\n", 0, "b\twrong\tx.y WEAK\t-\tIt is wrong.\n"},
        {ROW " one\n+2\n three\n@@\n-two\n", 0, "b\twrong"},
        {ROW "-one\n", 1, "b.txt:1: wrong: 'one\\n' is in b.py 2 times, not once"},
        {ROW "-four\n", 1, "'four\\n' is in b.py 0 times"},
        {ROW "-tw\n", 1, "is in b.py 0 times"},
        {ROW "+four\n", 1, "'' is in b.py 0 times, not once"},
        {ROW "-two\n-one\n@@\n-one\n-three\n", 1, "two places overlap"},
        {ROW "-two\nthree\n", 1, "not as 'three'"},
        {ROW, 1, "another row something"},
        {ROW "case: z\n-two\n", 1, "once, or a change, not 'case: z'"},
        {ROW "reason: z\n-two\n", 1, "expected one of rule, case, cause, line, source, pytorch"},
        {"[b]\nIt is right.\nrule: -\npytorch: 2.3\n-two\n", 1, "the base's row changes nothing"},
        {"[wrong]\nIt is wrong.\n-two\n", 1, "a sentence, and a rule or a case"},
        {"[wrong]\nIt is wrong.\nrule: x.y\n-two\n", 1, "has a cause and a line"},
        {ROW "-two\n\n" ROW "-three\n", 1, "b.txt:6: wrong: stands at b.txt:1, too"},
    };
    char source[1024], said[2000];
    ck_assert(ls_path_find("suite/peers/mistakes.py", source, sizeof source));
    for (size_t i = 0; has_python() && i < sizeof tries / sizeof *tries; i++) {
        char folder[] = "/tmp/lockstep-detect-XXXXXX";
        ck_assert_ptr_nonnull(mkdtemp(folder));
        put(folder, "b.py", "one\ntwo\none\nthree\n");
        put(folder, "b.txt", tries[i].rows);
        LS_TEXT(command, 2000, "cp %s %s && python3 %s/mistakes.py --list 2>&1", source, folder,
                folder);
        int code = shell_says(command, said, sizeof said);
        ls_path_remove_tree(folder);
        ck_assert_msg(code == tries[i].code && strstr(said, tries[i].says) != NULL,
                      "%s: exit code %d, not %d: %s", tries[i].rows, code, tries[i].code, said);
    }
}

TEST(both_languages_read_the_same_rows)
{
    char peers[1024], said[20000], wanted[20000] = "";
    ls_detect_list list = {0};
    ck_assert(ls_path_find("suite/peers", peers, sizeof peers));
    ck_assert_int_eq(ls_detect_read_foreign(peers, &list), LS_OK);
    ck_assert_int_gt(list.count, 50);
    for (int i = 0; i < list.count; i++) {
        const ls_detect_plant *p = &list.plant[i];
        bool fails = strcmp(p->expected, "FAIL") == 0;
        ls_text_add(wanted, sizeof wanted, "%s\t%s\t%s%s%s\t%s\t%s\n", p->base,
                    p->name + strlen("foreign."), p->case_id, fails ? "" : " ",
                    fails ? "" : p->expected, p->cause, p->sentence);
    }
    ls_detect_free(&list);
    LS_TEXT(command, 1600, "python3 %s/mistakes.py --list trainer example script/adapted", peers);
    if (has_python()) {
        ck_assert_int_eq(shell_says(command, said, sizeof said), 0);
        size_t same = 0;
        while (said[same] != '\0' && said[same] == wanted[same]) {
            same++;
        }
        ck_assert_msg(said[same] == wanted[same], "mistakes.py: %.200s\ndetect: %.200s",
                      said + same, wanted + same);
    }
}

/* ---- the gallery, and faults judged by observe's rules ----------------------------------------
 */

/* Runs a script of suite/ on a `lockstep` that is $folder/planted/lockstep, too; its exit code. */
static int run_script(const char *lockstep, const char *line, char *said, size_t bytes)
{
    char folder[] = "/tmp/lockstep-detect-XXXXXX", suite[1024];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert(ls_path_find("suite", suite, sizeof suite));
    LS_TEXT(planted, 64, "%s/planted", folder);
    ck_assert_int_eq(mkdir(planted, 0755), 0);
    put(folder, "lockstep", lockstep);
    put(planted, "lockstep", lockstep);
    put(folder, "torch.py", "__version__ = '2.15.0'\n");
    LS_TEXT(command, 2000, "export D=%s S=%s PYTHONPATH=%s && %s 2>&1", folder, suite, folder,
            line);
    int ended = shell_says(command, said, bytes);
    ls_path_remove_tree(folder);
    return ended;
}

static const struct script {
    const char *line, *verdicts; /* of each run */
    int run_code, code;
    const char *says;
} scripts[] = {
#define GALLERY(script) "python3 $S/peers/gallery/check.py $D/lockstep python3 " script
#define RULE(word) "{\"case\":\"observe.scaler.order\",\"verdict\":\"" word "\"}"
    {GALLERY("single"), RULE("PASS"), 0, 0, "ok - right single"},
    {GALLERY("single"), RULE("WEAK"), 1, 3, "not run - right single"}, /* the job's own code */
    {GALLERY("single"), RULE("FAIL"), 1, 1, "not ok - right single"},
    {GALLERY("single"), "", 3, 3, "not run - right single"},
    {GALLERY("no_such_script"), RULE("PASS"), 0, 3, "0 passed, 0 failed"},
    {GALLERY("clip_before_unscale"), RULE("PASS"), 0, 1, "not ok - wrong clip_before_unscale"},
    {GALLERY("clip_before_unscale"), RULE("WEAK"), 1, 3, "not run - wrong clip_before_unscale"},
    {GALLERY("clip_before_unscale"), RULE("UNSUPPORTED"), 0, 3,
     "not run - wrong clip_before_unscale"},
    {GALLERY("clip_before_unscale"), "", 1, 3, "not run - wrong clip_before_unscale"},
#define OBSERVED "sh $S/plants/observed.sh $D $D/out no_unscale && cat $D/out/observed.tsv"
    {OBSERVED, "{\"verdict\":\"PASS\",\"jobs\":[\"a\"]}", 0, 0,
     "no_unscale\tgradients.o2.w2.b0.1mb\tno"},
    {OBSERVED, "{\"verdict\":\"SKIP\",\"jobs\":[]}", 1, 0, "\tno\tno job"},
    {OBSERVED, "{\"verdict\":\"CRASH\",\"jobs\":[\"a\"]}", 1, 3, "0 not, 1 not run"},
    {OBSERVED, "{\"verdict\":\"SKIP\",\"jobs\":[\"a\"]}", 1, 3, "0 not, 1 not run"},
    {OBSERVED, "", 3, 3, "0 not, 1 not run"},
    {OBSERVED, "{\"verdict\":\"FAIL\",\"jobs\":[\"a\"]}", 1, 1,
     "1 seen by rules"}, /* the clean run, too */
    {"sh $S/plants/observed.sh $D $D/out no_such_fault", "", 0, 3, "0 faults"},
};

ROWS_TEST(a_script_that_crashed_was_not_run, scripts)
{
    const struct script *s = &scripts[_i];
    char said[4000];
    LS_TEXT(lockstep, 1000,
            "#!/bin/sh\n"
            "while [ $# -gt 0 ]; do\n"
            "    case $1 in --out) out=$2 ;; esac\n"
            "    shift\n"
            "done\n"
            "mkdir -p \"$out\" && echo '%s' >\"$out/verdicts.jsonl\"\n"
            "[ -s \"$out/verdicts.jsonl\" ] && grep -q . \"$out/verdicts.jsonl\" || "
            "rm \"$out/verdicts.jsonl\"\n"
            "echo 'not ok 1 - x # FAIL 0.1s reduction.mean'\n"
            "exit %d\n",
            s->verdicts, s->run_code);
    if (strncmp(s->line, "python3", 7) == 0 && !has_python()) {
        return;
    }
    int code = run_script(lockstep, s->line, said, sizeof said);
    ck_assert_msg(code == s->code && strstr(said, s->says) != NULL,
                  "%s %s: exit code %d, not %d: %s", s->line, s->verdicts, code, s->code, said);
}

/* The table of the C rule, in Python. */
LOOP_TEST(python_has_the_same_rule, ROWS)
{
    const row *r = &rows[_i];
    char folder[] = "/tmp/lockstep-detect-XXXXXX", source[1024];
    if (!has_python()) {
        return;
    }
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert(ls_path_find("suite/peers/caught.py", source, sizeof source));
    LS_TEXT(line, 400, "{\"case\":\"ddp.other\",\"verdict\":\"FAIL\",\"cause\":\"summed\"}\n");
    if (r->verdict != NULL) {
        ls_text_add(line, sizeof line,
                    "{\"case\":\"ddp.x\",\"verdict\":\"%s\",\"evidence\":\"%s\","
                    "\"cause\":\"%s\"}\n",
                    r->verdict, evidence_of(r), r->cause);
    }
    put(folder, "verdicts.jsonl", line);
    LS_TEXT(command, 1600, "python3 %s %s %d 'ddp.x %s' '%s'", source, folder, r->code, r->expected,
            r->pattern);
    FILE *from = popen(command, "r");
    char said[400] = "";
    ck_assert_ptr_nonnull(fgets(said, sizeof said, from));
    ck_assert_int_eq(pclose(from), 0);
    said[strcspn(said, "\t")] = '\0';
    ck_assert_msg(strcmp(said, r->state) == 0, "%s: %s, not %s", line, said, r->state);
    ls_path_remove_tree(folder);
}

/* It may be committed: `make lint` takes pages of 120 columns, tables excepted. */
TEST(the_page_is_as_wide_as_pages_are)
{
    char folder[] = "/tmp/ls_detect_XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ls_detect_count most = {9999, 9999, 9999, 9999, 9999, 9999};
    ls_detect_summary summary = {most, most, 9999, 9999, 9999, 999, 999, 1};
    ls_detect_list none = {0};
    ck_assert_int_eq(ls_detect_write_tables(folder, &none, NULL, &summary), LS_OK);
    LS_TEXT(path, 100, "%s/detect.md", folder);
    char *page = ls_text_read(path), *rest = page, *line;
    ck_assert_ptr_nonnull(page);
    while ((line = strsep(&rest, "\n")) != NULL) {
        ck_assert_msg(line[0] == '|' || strlen(line) <= 120, "%s", line);
    }
    free(page);
    ls_path_remove_tree(folder);
}

TEST_MAIN("detect", .timeout_s = 120)
