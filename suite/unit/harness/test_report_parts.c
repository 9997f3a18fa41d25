/* Parts of a report whose every output is looked at: figures drawn by a played gnuplot, the trace,
 * what each form of page makes of each character. */
#include <check.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness/report/figures.h"
#include "harness/report/files.h"
#include "harness/report/job.h"
#include "harness/report/page.h"
#include "harness/report/report.h"
#include "harness/report/tables/table.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "suite/unit/golden.h"
#include "suite/unit/run_suite.h"

static char scratch[200];

static void open_scratch(void)
{
    ls_text_put(scratch, sizeof scratch, "/tmp/ls_report_parts_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(scratch));
}

static void close_scratch(void)
{
    ls_path_remove_tree(scratch);
}

static void write_text(const char *name, const char *text)
{
    LS_TEXT(path, 400, "%s/%s", scratch, name);
    *strrchr(path, '/') = '\0';
    ck_assert_int_eq(ls_path_make_folder(path), LS_OK);
    ls_text_put(path, sizeof path, "%s/%s", scratch, name);
    FILE *file = fopen(path, "w");
    ck_assert(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static bool is_there(const char *name)
{
    LS_TEXT(path, 400, "%s/%s", scratch, name);
    return access(path, F_OK) == 0;
}

static char *read_text(const char *name)
{
    LS_TEXT(path, 400, "%s/%s", scratch, name);
    char *text = ls_text_read(path);
    ck_assert_msg(text != NULL, "no %s", path);
    return text;
}

/* ---- figures --------------------------------------------------------------------------------- */

#define X35 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
#define X36 X35 "x"
#define X72 X36 X36

/* A title and where it is to be broken: at most 72 columns, in the second half after punctuation or
 * before a parenthesis, else at the last space. */
static const struct {
    const char *title, *drawn;
} titles[20] = {
    {X72, X72},
    {X35 " " X36, X35 " " X36},
    {X72 " y", X72 "\ny"},
    {X72 "x y z", X72 "x y z"},
    {X35 ", yy " X35 "xxxx", X35 ", yy\n" X35 "xxxx"},
    {X36 ": yy " X35, X36 ":\nyy " X35},
    {"xx yy; " X36 "y " X35, "xx yy; " X36 "y\n" X35},
    {X36 " y (z) w; v " X36, X36 " y (z) w;\nv " X36},
    {X36 "x (y z) w v " X36, X36 "x\n(y z) w v " X36},
    {X35 " y " X36 " z " X35 " w " X36, X35 " y\n" X36 " z\n" X35 " w\n" X36},
    {X72 " " X35 " " X36, X72 "\n" X35 " " X36},
    {X72 " " X35 " " X36 "x", X72 "\n" X35 "\n" X36 "x"},
    {X36 ",  " X72 "y", X36 ",\n " X72 "y"},
    {X36 "; y " X35, X36 ";\ny " X35},
    {X36 ", y; " X35, X36 ", y;\n" X35},
    {"x " X72, "x\n" X72},
    {"x " X72 "x", "x\n" X72 "x"},
    {"short", "short"},
    {X35 ". y " X36, X35 ". y\n" X36},
    {X36 X36 "(", X36 X36 "("},
};

/* Draws nothing: says how it was called. Slowly: no more than two are to run at a time. */
static const char gnuplot[] = "#!/bin/sh\n"
                              "here=$(dirname \"$0\")\n"
                              "touch \"$here/busy.$$\"\n"
                              "set -- \"$@\" \"$(ls \"$here\" | grep -c busy)\"\n"
                              "sleep 0.02\n"
                              "[ \"$8\" -le 2 ] || echo \"$8 at a time\" >\"$here/crowded\"\n"
                              "rm \"$here/busy.$$\"\n"
                              "printf '%s|' \"$1\" \"$2\" \"${3##*/}\" \"${4##*/}\" \"$5\" \"$6\" "
                              "\"$7\" \"${PWD##*/}\" >\"$4\"\n"
                              "echo \"said $2\"\n"
                              "! grep -q fails \"$2\"\n";

static void write_table(const char *name, const char *title, const char *blocks, int rows)
{
    char text[2000] = "";
    LS_TEXT(path, 100, "tables/%s.tsv", name);
    ls_text_add(text, sizeof text, "# title: %s\n# caption: c\n", title);
    if (blocks[0] != '\0') {
        ls_text_add(text, sizeof text, "# blocks: %s\n", blocks);
    }
    for (int i = 0; i < rows; i++) {
        ls_text_add(text, sizeof text, "%d\t1\n", i);
    }
    write_text(path, text);
}

/* A run of tables alone, with a script for each, drawn by the played gnuplot. */
static ls_report_run play_figures(int first)
{
    static char old[4096];
    ls_report_run run = {0};
    ls_text_put(run.directory, sizeof run.directory, "%s", scratch);
    for (int i = 0; ls_tables_name(i) != NULL; i++) {
        LS_TEXT(script, 100, "scripts/%s.gp", ls_tables_name(i));
        write_table(ls_tables_name(i), titles[first + i].title, i == 4 ? "\"A\" \"B\"" : "", 2);
        write_text(script, "plot\n");
    }
    write_text("bin/gnuplot", gnuplot);
    LS_TEXT(program, 400, "%s/bin/gnuplot", scratch);
    ck_assert_int_eq(chmod(program, 0755), 0);
    ls_text_put(old, sizeof old, "%s/bin:%s", scratch, getenv("PATH"));
    setenv("PATH", old, 1);
    return run;
}

static void draw(const ls_report_run *run)
{
    LS_TEXT(scripts, 400, "%s/scripts", scratch);
    ck_assert_int_eq(ls_report_plots_draw(run, scripts), LS_OK);
}

START_TEST(each_table_is_drawn_twice)
{
    static const char *const formats[] = {"svg", "png"};
    ls_report_run run = play_figures(10 * _i);
    write_text("plots/gnuplot.log", "of an earlier report\n");
    draw(&run);
    for (int i = 0; ls_tables_name(i) != NULL; i++) {
        const char *name = ls_tables_name(i);
        ck_assert(ls_report_plots_drawn(&run, name));
        for (int f = 0; f < 2; f++) {
            LS_TEXT(path, 100, "plots/%s.%s", name, formats[f]);
            LS_TEXT(wanted, 1000, "-c|%s.gp|%s.tsv|%s.%s|%s|%s|%s|scripts|", name, name, name,
                    formats[f], formats[f], titles[10 * _i + i].drawn,
                    i == 4 ? "\"A\" \"B\"" : "\"\"");
            char *called = read_text(path);
            ck_assert_str_eq(called, wanted);
            free(called);
        }
    }
    ck_assert(!is_there("bin/crowded"));
    ck_assert(!is_there("plots/gnuplot.log")); /* nothing failed */
}
END_TEST

/* Asked to stop, it leaves neither a figure that is half drawn nor a process. */
START_TEST(a_signal_ends_the_drawing)
{
    ls_report_run run = play_figures(0);
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    ck_assert_int_eq(sigprocmask(SIG_BLOCK, &stop, NULL), 0);
    write_text("bin/gnuplot", "#!/bin/sh\necho half >\"$4\"\nsleep 30\n");
    raise(SIGTERM);
    time_t from = time(NULL);
    draw(&run);
    ck_assert_int_lt((int)(time(NULL) - from), 20);
    ck_assert_int_eq((int)waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    for (int i = 0; ls_tables_name(i) != NULL; i++) {
        ck_assert(!ls_report_plots_drawn(&run, ls_tables_name(i)));
    }
}
END_TEST

START_TEST(what_cannot_be_drawn_is_left_out)
{
    static const char *const old[] = {"scaling", "memory", "gpu", "timeline"};
    ls_report_run run = play_figures(0);
    write_table("scaling", "of one point", "", 1);
    write_table("throughput_by_level", "of one point", "", 1);
    write_table("memory", "of none", "", 0);
    LS_TEXT(script, 400, "%s/scripts/gpu.gp", scratch);
    ck_assert_int_eq(unlink(script), 0);
    write_text("scripts/timeline.gp", "fails\n");
    for (size_t i = 0; i < sizeof old / sizeof *old; i++) {
        for (int f = 0; f < 2; f++) {
            LS_TEXT(path, 100, "plots/%s.%s", old[i], f == 0 ? "svg" : "png");
            write_text(path, "of an earlier report\n");
        }
    }
    draw(&run);
    for (int i = 0; ls_tables_name(i) != NULL; i++) {
        const char *name = ls_tables_name(i);
        bool drawn = true;
        for (size_t o = 0; o < sizeof old / sizeof *old; o++) {
            drawn = drawn && strcmp(old[o], name) != 0;
        }
        LS_TEXT(png, 100, "plots/%s.png", name);
        ck_assert_msg(ls_report_plots_drawn(&run, name) == drawn, "%s", name);
        ck_assert_msg(is_there(png) == drawn, "%s", png);
    }
    char *log = read_text("plots/gnuplot.log");
    ck_assert_ptr_nonnull(strstr(log, "said timeline.gp\n"));
    free(log);
    /* a sweep of one point, all others without any */
    for (int i = 0; ls_tables_name(i) != NULL; i++) {
        bool sweep = i == 1 || i == 2;
        write_table(ls_tables_name(i), "t", "", sweep ? 1 : 0);
    }
    draw(&run);
    for (int i = 0; ls_tables_name(i) != NULL; i++) {
        ck_assert_msg(!ls_report_plots_drawn(&run, ls_tables_name(i)), "%s", ls_tables_name(i));
    }
}
END_TEST

/* ---- two runs -------------------------------------------------------------------------------- */

#define ROW                                                                          \
    "\"arch\":\"resnet18\",\"level\":\"O2\",\"half\":\"fp16\",\"dialect\":\"apex\"," \
    "\"image_size\":64,\"batch_size\":8,\"world\":2,\"nodes\":1,\"bucket_mb\":25"
#define RATE "\"not_a_result\":\"\",\"images_per_s\":100"

/* A row of a summary, ROW with these members instead; whether it is the same job as ROW with
 * RATE, and whether its speed decides. */
static const struct {
    const char *members;
    bool same, decides;
} rows[] = {
    {RATE, true, true},
    {"\"arch\":\"resnet34\"," RATE, false, true},
    {"\"level\":\"O1\"," RATE, false, true},
    {"\"half\":\"bf16\"," RATE, false, true},
    {"\"dialect\":\"torch\"," RATE, false, true},
    {"\"image_size\":65," RATE, false, true},
    {"\"batch_size\":9," RATE, false, true},
    {"\"world\":3," RATE, false, true},
    {"\"nodes\":2," RATE, false, true},
    {"\"bucket_mb\":24," RATE, false, true},
    {"\"bucket_mb\":null," RATE, false, true},
    {"\"label\":\"x\"," RATE, true, true},
    {"\"oversubscribed\":true," RATE, true, false},
    {"\"weak\":true," RATE, true, false},
    {"\"not_a_result\":\"\",\"images_per_s\":0", true, false},
    {"\"not_a_result\":\"\",\"images_per_s\":0.5", true, true},
    {"\"not_a_result\":\"\"", true, false},
    {"\"not_a_result\":\"WEAK\",\"images_per_s\":1", true, false},
    {"\"images_per_s\":1", true, false},
};

/* The first of two equal members counts. */
static cJSON *read_row(const char *members)
{
    LS_TEXT(text, 800, "{%s," ROW "}", members);
    cJSON *row = cJSON_Parse(text);
    ck_assert_ptr_nonnull(row);
    return row;
}

START_TEST(rows_of_the_same_job)
{
    cJSON *usual = read_row(RATE), *row = read_row(rows[_i].members);
    ck_assert_msg(ls_report_diff_same_job(usual, row) == rows[_i].same &&
                      ls_report_diff_same_job(row, usual) == rows[_i].same,
                  "%s", rows[_i].members);
    ck_assert_msg(ls_report_diff_decides(row) == rows[_i].decides, "%s", rows[_i].members);
    cJSON_Delete(usual);
    cJSON_Delete(row);
}
END_TEST

/* Speeds of A and B with intervals, of jobs that decide or not, of one that either lacks, cases of
 * every change. */
static void write_pair(void)
{
    static const char *const speeds[][3] = {
        {"\"world\":1", "100,\"images_per_s_low\":100,\"images_per_s_high\":100",
         "50,\"images_per_s_low\":50,\"images_per_s_high\":50"},
        {"\"world\":2", "100,\"images_per_s_low\":99,\"images_per_s_high\":101",
         "49,\"images_per_s_low\":48,\"images_per_s_high\":49.5"},
        {"\"world\":3,\"weak\":true", "100,\"images_per_s_low\":99,\"images_per_s_high\":101",
         "40,\"images_per_s_low\":39,\"images_per_s_high\":41"},
        {"\"world\":4,\"oversubscribed\":true",
         "100,\"images_per_s_low\":99,"
         "\"images_per_s_high\":101",
         "99.5,\"images_per_s_low\":98,\"images_per_s_high\":101"},
        {"\"world\":5,\"weak\":true,\"oversubscribed\":true", "10", "11"},
        {"\"world\":6", "10", "9"},
        {"\"world\":7", "10,\"not_a_result\":\"FAIL x\"", "9"},
        {"\"world\":8", "10", "9,\"not_a_result\":\"not checked\""},
        {"\"world\":9", "10", ""},
        {"\"world\":10", "", "10"},
    };
    static const char *const words[] = {"PASS", "FAIL", "CRASH", "TIMEOUT", "WEAK", "WAIVED", ""};
    char cases[8000];
    for (int run = 0; run < 2; run++) {
        char summary[6000] = "{\"where\":\"here\",\"commit\":\"abc\",\"throughput\":[";
        int count = 0;
        for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++) {
            if (speeds[i][1 + run][0] != '\0') {
                ls_text_add(summary, sizeof summary,
                            "%s{%s,\"label\":\"job %zu of run %d\",\"images_per_s\":%s,"
                            "\"not_a_result\":\"\"," ROW "}",
                            count++ > 0 ? "," : "", speeds[i][0], i, run, speeds[i][1 + run]);
            }
        }
        ls_text_add(summary, sizeof summary, "]}\n");
        cases[0] = '\0';
        for (int i = 0; i < 7 * 7; i++) {
            const char *word = words[run == 0 ? i / 7 : i % 7];
            const char *place = i % 3 == 0   ? "\"in_claim\":true"
                                : i % 3 == 1 ? "\"in_claim\":false"
                                             : "\"in_claim\":true,\"manners\":true";
            if (word[0] != '\0') {
                ls_text_add(cases, sizeof cases,
                            "{\"case\":\"c%d\",%s,\"verdict\":\"%s\",\"evidence\":\"e%d\"}\n", i,
                            place, word, i);
            }
        }
        write_text(run == 0 ? "a/summary.json" : "b/summary.json", summary);
        write_text(run == 0 ? "a/verdicts.jsonl" : "b/verdicts.jsonl", cases);
        write_text(run == 0 ? "a/run.json" : "b/run.json",
                   "{\"headline\":{\"manners\":{\"decide\":false}}}\n");
    }
}

START_TEST(differences_word_for_word)
{
    static const double gates[] = {NAN, 0.5, 0.499, 0.6};
    char *text = NULL, here[PATH_MAX];
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    write_pair();
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    ck_assert_int_eq(chdir(scratch), 0); /* paths are a part of the text */
    for (int i = 0; i < 4; i++) {
        fprintf(to, "==== gate %g\n", gates[i]);
        int status = (int)ls_report_diff("a", i == 3 ? "b/summary.json" : "b", gates[i], to);
        fprintf(to, "status %d\n", status);
    }
    /* nothing in common, cases alone, speed alone */
    write_text("c/summary.json", "{\"throughput\":[]}\n");
    write_text("c/verdicts.jsonl", "{\"case\":\"c1\",\"verdict\":\"PASS\"}\n");
    write_text("d/summary.json", "{}\n");
    static const struct {
        const char *a, *b;
        double gate;
    } odd[] = {{"c", "c", NAN}, {"c", "c", 0.5}, {"c", "d", NAN}, {"d", "c", NAN}, {"d", "d", 0.5},
               {"a", "c", NAN}, {"c", "a", NAN}, {"a", "x", NAN}, {"x", "a", NAN}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        fprintf(to, "==== %s %s, gate %g\n", odd[i].a, odd[i].b, odd[i].gate);
        int status = (int)ls_report_diff(odd[i].a, odd[i].b, odd[i].gate, to);
        fprintf(to, "status %d\n", status);
    }
    ck_assert_int_eq(chdir(here), 0);
    fclose(to);
    golden_check("suite/unit/harness/expected/diff.txt", text);
}
END_TEST

/* A job of ranks with so many steps, the loss of step i on rank k being i + 100 k. */
static ls_report_job job_of(int world, const int *steps)
{
    ls_report_job job = {.record = calloc(1, sizeof(ls_record))};
    job.record->world = world;
    job.record->rank = calloc((size_t)world + 1, sizeof *job.record->rank);
    for (int k = 0; k <= world; k++) { /* nothing may read what lies behind the last */
        int count = k < world ? steps[k] : 1;
        job.record->rank[k].step_count = count;
        job.record->rank[k].step = calloc((size_t)count + 1, sizeof(ls_record_step));
        for (int i = 0; i <= count; i++) {
            job.record->rank[k].step[i].loss = k < world && i < count ? i + 100 * k : 1e9;
        }
    }
    job.spec = &job.record->spec;
    return job;
}

static void drop_job(ls_report_job *job)
{
    for (int k = 0; k <= job->record->world; k++) {
        free(job->record->rank[k].step);
    }
    free(job->record->rank);
    free(job->record);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static const struct {
    const char *text, *title, *caption, *blocks;
    int rows;
} heads[] = {
    {"", "", "", "", 0},
    {"1\n2", "", "", "", 2},
    {"# units: u\n\n1\n\n\n2\n", "", "", "", 2},
    {"# title: t: u\n# caption:c\n# blocks:  \"A\" \"B\"\n# other\n1\n#2\n3\n", "t: u", "c",
     " \"A\" \"B\"", 2},
    {"# title: t\n# title: u\n#title: v\n # title: w\n", "u", "", "", 1},
};

START_TEST(heads_are_read_back)
{
    ls_table_head head;
    write_text("tables/t.tsv", heads[_i].text);
    ck_assert_int_eq(ls_table_read_head(scratch, "t", &head), LS_OK);
    ck_assert_str_eq(head.title, heads[_i].title);
    ck_assert_str_eq(head.caption, heads[_i].caption);
    ck_assert_str_eq(head.blocks, heads[_i].blocks);
    ck_assert_int_eq(head.rows, heads[_i].rows);
}
END_TEST

START_TEST(labels_are_plain)
{
    char text[16];
    ck_assert_str_eq(ls_table_plain("a\"\\`\x1f\x7f ~b", text, sizeof text), "a      ~b");
    ck_assert_str_eq(ls_table_plain("abcdef", text, 4), "abc");
    ck_assert_str_eq(ls_table_plain("abc", text, 4), "abc");
    ck_assert_str_eq(ls_table_plain("", text, 1), "");
    ck_assert_str_eq(ls_table_plain("\xc3\xa4", text, sizeof text), "\xc3\xa4");
}
END_TEST

#define WHOLE(e) "{\"whole\":{\"e\":" e ",\"limit\":2},\"tensors\":["
#define TENSOR(name, e) "{\"name\":\"" name "\",\"elements\":9,\"e\":" e ",\"r\":0.5,\"limit\":4}"

/* Judged gradients of jobs at these levels, the table's title, and the tensors of its first rows.
 */
static const struct {
    const char *levels, *gradients[3], *title, *rows;
} judged[] = {
    {"", {NULL}, "Gradient error: no gradient was judged", ""},
    {"2", {NULL}, "Gradient error: no gradient was judged", ""},
    {"2",
     {WHOLE("1") TENSOR("a", "1") "," TENSOR("b", "1.5") "]}"},
     "Gradients of 1 job are inside its limits; closest: O2, the whole gradient, at 0.50 of it",
     "1\t1\t0.5\t4\t9\t2\t\"a\"\n2\t1.5\t0.5\t4\t9\t2\t\"b\"\n\n\n"},
    {"2",
     {WHOLE("1") TENSOR("a", "1") "," TENSOR("b\\\"", "4") "]}"},
     "Gradients of 1 job are inside its limits; closest: O2, b , at 1.00 of it",
     NULL},
    {"2",
     {WHOLE("1") TENSOR("a", "6") "," TENSOR("b", "5") "]}"},
     "O2: a is 1.5 x its limit",
     NULL},
    {"2",
     {WHOLE("1") TENSOR("a", "null") "," TENSOR("b", "9") "]}"},
     "O2: a is inf x its limit",
     NULL},
    {"11",
     {WHOLE("1") TENSOR("a", "1") "]}", WHOLE("1") TENSOR("b", "3") "]}"},
     "Gradients of 2 jobs are inside their limits; closest: O1, b, at 0.75 of it",
     "1\t3\t0.5\t4\t9\t1\t\"b\"\n\n\n"},
    {"11",
     {WHOLE("1") TENSOR("a", "3") "]}", WHOLE("1") TENSOR("b", "3") "]}"},
     "Gradients of 2 jobs are inside their limits; closest: O1, a, at 0.75 of it",
     "1\t3\t0.5\t4\t9\t1\t\"a\"\n\n\n"},
    {"012",
     {WHOLE("1") TENSOR("a", "2.5") "]}", NULL, WHOLE("1.5") TENSOR("c", "1") "]}"},
     "Gradients of 2 jobs are inside their limits; closest: O2, the whole gradient, at 0.75 of it",
     "1\t2.5\t0.5\t4\t9\t0\t\"a\"\n\n\n1\t1\t0.5\t4\t9\t2\t\"c\"\n\n\n"},
};

START_TEST(gradients_closest_to_their_limits)
{
    static const int steps[] = {0};
    ls_report_job job[3];
    ls_report_run run = {.job_count = (int)strlen(judged[_i].levels), .job = job};
    ls_text_put(run.directory, sizeof run.directory, "%s", scratch);
    write_text("tables/t.tsv", "");
    for (int j = 0; j < run.job_count; j++) {
        job[j] = job_of(1, steps);
        job[j].record->spec.level = judged[_i].levels[j] - '0';
        ls_text_put(job[j].record->spec.half, sizeof job[j].record->spec.half, "fp16");
        if (judged[_i].gradients[j] != NULL) {
            job[j].gradients = cJSON_Parse(judged[_i].gradients[j]);
            ck_assert_ptr_nonnull(job[j].gradients);
        }
    }
    ls_table_head head;
    ck_assert_int_eq(ls_tables_parts_write_gradients(&run), LS_OK);
    ck_assert_int_eq(ls_table_read_head(scratch, "gradient_error", &head), LS_OK);
    ck_assert_str_eq(head.title, judged[_i].title);
    char *table = read_text("tables/gradient_error.tsv");
    for (char *line = table; judged[_i].rows != NULL; line = strchr(line, '\n') + 1) {
        if (line[0] != '#') {
            ck_assert_str_eq(line, judged[_i].rows);
            break;
        }
    }
    free(table);
    for (int j = 0; j < run.job_count; j++) {
        cJSON_Delete(job[j].gradients);
        drop_job(&job[j]);
    }
}
END_TEST

/* ---- the trace ------------------------------------------------------------------------------- */

/* Of three jobs, the last of which is not traced; step 4 was audited; a rank that left
 * nothing. */
static void write_traced(void)
{
    static const char *const jobs[] = {"a", "b", "c"};
    char text[4000];
    write_text("run.json", "{}\n");
    for (int j = 0; j < 3; j++) {
        LS_TEXT(path, 100, "jobs/%s/job.json", jobs[j]);
        ls_text_put(text, sizeof text,
                    "{\"label\":\"job %s\",\"facts\":{\"role\":\"%s\",\"arch\":\"resnet8\","
                    "\"level\":\"O2\",\"half\":\"fp16\",\"world\":%d,\"nodes\":1,\"bucket_mb\":25},"
                    "\"outcome\":{\"state\":\"done\",\"ranks\":[]}}\n",
                    jobs[j], j < 2 ? "phases" : "evidence", j == 0 ? 3 : 2);
        write_text(path, text);
        for (int rank = 0; rank < 2; rank++) {
            ls_text_put(path, sizeof path, "jobs/%s/rank%d.jsonl", jobs[j], rank);
            ls_text_put(text, sizeof text, "{\"event\":\"start\"}\n");
            for (int step = 3; step < 6; step++) {
                int from = 5000000 * j + 100000 * rank + 1000000 * step;
                ls_text_add(text, sizeof text,
                            "{\"event\":\"step\",\"step\":%d,\"ms\":{\"total\":1}%s}\n"
                            "{\"event\":\"trace\",\"step\":%d,\"spans\":["
                            "{\"name\":\"backward\",\"lane\":\"compute\",\"from_ns\":%d,"
                            "\"to_ns\":%d},{\"name\":\"forward\",\"lane\":\"compute\","
                            "\"from_ns\":%d,\"to_ns\":%d},{\"name\":\"bucket \\\"0\\\"\","
                            "\"lane\":\"communication\",\"from_ns\":%d,\"to_ns\":%d}]}\n",
                            step, rank == 1 && step == 4 ? ",\"audited\":true" : "", step,
                            from + 300000, from + 700500, from, from + 300000, from + 500000,
                            from + 900000 + 100000 * j);
            }
            write_text(path, text);
        }
    }
}

START_TEST(the_trace_word_for_word)
{
    write_traced();
    ck_assert_int_eq(ls_report_tables(scratch), LS_OK);
    ck_assert_int_eq(ls_report_write(scratch, "/nowhere"), LS_OK);
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    cJSON *trace = NULL;
    LS_TEXT(path, 400, "%s/trace.json", scratch);
    ck_assert_int_eq(ls_json_read_file(path, &trace), LS_OK);
    golden_json(to, "trace", trace);
    cJSON_Delete(trace);
    char *table = read_text("tables/timeline.tsv");
    fputs(table, to);
    free(table);
    fclose(to);
    golden_check("suite/unit/harness/expected/trace.txt", text);
}
END_TEST

/* ---- pages ----------------------------------------------------------------------------------- */

#define BAD "\xef\xbf\xbd" /* U+FFFD, for a byte that is not UTF-8 or not allowed in XML */

static const struct {
    const char *text, *html;
} escapes[] = {
    {"a<b>&\"'\n\t~", "a&lt;b&gt;&amp;&quot;&#39;\n\t~"},
    {"\x01\x08\x0b\x1f \x7f|", BAD BAD BAD BAD " " BAD "|"},
    {"\xc2\x80 \xdf\xbf", "\xc2\x80 \xdf\xbf"},
    {"\x80 \xbf", BAD " " BAD},
    {"\xc0\x80 \xc1\xbf", BAD BAD " " BAD BAD},
    {"\xe0\xa0\x80 \xef\xbf\xbd", "\xe0\xa0\x80 \xef\xbf\xbd"},
    {"\xe0\x9f\xbf", BAD BAD BAD}, /* too long */
    {"\xe1\x80\x80", "\xe1\x80\x80"},
    {"\xec\xbf\xbf", "\xec\xbf\xbf"},
    {"\xed\x9f\xbf", "\xed\x9f\xbf"},
    {"\xed\xa0\x80", BAD BAD BAD}, /* a surrogate */
    {"\xee\x80\x80", "\xee\x80\x80"},
    {"\xef\xbf\xbe", BAD BAD BAD}, /* U+FFFE */
    {"\xef\xbf\xbf", BAD BAD BAD},
    {"\xef\xbe\xbe \xee\xbf\xbf", "\xef\xbe\xbe \xee\xbf\xbf"},
    {"\xf0\x90\x80\x80 \xf3\xbf\xbf\xbf", "\xf0\x90\x80\x80 \xf3\xbf\xbf\xbf"},
    {"\xf0\x8f\xbf\xbf", BAD BAD BAD BAD}, /* too long */
    {"\xf1\x80\x80\x80", "\xf1\x80\x80\x80"},
    {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
    {"\xf4\x90\x80\x80", BAD BAD BAD BAD}, /* beyond U+10FFFF */
    {"\xf5\x80\x80\x80 \xff", BAD BAD BAD BAD " " BAD},
    {"\xc3", BAD}, /* cut short */
    {"\xe2\x82", BAD BAD},
    {"\xe2\x82"
     "a",
     BAD BAD "a"},
    {"\xf0\x90\x80", BAD BAD BAD},
    {"\xc3\xc3\xa4\xe2\x82\xac!", BAD "\xc3\xa4\xe2\x82\xac!"},
};

START_TEST(html_holds_no_markup_and_no_broken_character)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    ls_html_escape(to, escapes[_i].text);
    fclose(to);
    ck_assert_str_eq(text, escapes[_i].html);
    free(text);
}
END_TEST

/* Every element of both forms, with text that would be markup. */
START_TEST(elements_of_pages_word_for_word)
{
    static const char evil[] = "a\\`*_|[]#<b>&\"c' \x01\x1f\x7f~";
    static const ls_report_headline headlines[][4] = {{{"CORRECT", "yes", ""},
                                                       {"MANNERS", "3 of 3", "why `not`\n"},
                                                       {"SPEED", "within", "a<b"},
                                                       {"MACHINE", "ready", ""}},
                                                      {{"CORRECT", "no", "x"},
                                                       {"MANNERS", "2 of 3", ""},
                                                       {"SPEED", "below", "x"},
                                                       {"MACHINE", "not ready", "x"}},
                                                      {{"CORRECT", "not shown", "x"},
                                                       {"MANNERS", "0 of 1", "x"},
                                                       {"SPEED", "no baseline of any kind", "x"},
                                                       {"MACHINE", "123456789", "x"}}};
    static const char *const codes[] = {"plain <b>\nline", "a ` b `` c", "```", "a ```` b `````c"};
    const ls_report_page_form *forms[] = {ls_report_markdown_form(), ls_html_form()};
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    write_text("plots/drawn.svg", "<?xml version=\"1.0\"?>\n<!DOCTYPE svg>\n<svg width=\"10\" "
                                  "height=\"5\" viewBox=\"0 0 10 5\"><g id=\"a\"/></svg>\n");
    for (int f = 0; f < 2; f++) {
        const ls_report_page_form *form = forms[f];
        for (int h = 0; h < 3; h++) {
            char *opened = NULL;
            FILE *page = open_memstream(&opened, &bytes);
            form->open(page, evil, "where <it> ran", headlines[h], 4 - (h == 2));
            fclose(page);
            char *style = strstr(opened, "<style>"), *end = strstr(opened, "</style>");
            fprintf(to, "%.*s%s\n", style != NULL ? (int)(style - opened) : 0, opened,
                    style != NULL ? end : opened);
            free(opened);
        }
        form->heading(to, evil);
        form->paragraph(to, evil);
        fputs(form->list_open, to);
        form->list_item(to, evil);
        form->file(to, "a/b.json", evil);
        fputs(form->list_close, to);
        for (int c = 0; c < 4; c++) {
            form->code(to, codes[c]);
        }
        for (int drawn = 0; drawn < 2; drawn++) {
            form->figure(to, scratch, "drawn", evil, "caption <c>", drawn != 0);
        }
        form->figure(to, scratch, "missing", "t", "c", true);
        ls_page_table table;
        ls_page_table_open(&table, form, to, "text|number>|wide");
        for (int row = 0; row < 2; row++) {
            ls_page_cell(&table, "%s %d", evil, row);
            ls_page_number(&table, row == 0 ? 1234.5 : NAN);
            ls_page_cell(&table, "%s",
                         row == 0 ? ""
                                  : "0123456789012345678901234567890123456789 "
                                    "0123456789012345678901234567890123456789");
        }
        ls_page_table_close(&table);
        fputs(form->close, to);
    }
    fclose(to);
    golden_check("suite/unit/harness/expected/pages.txt", text);
}
END_TEST

/* ---- runs without jobs ----------------------------------------------------------------------- */

#define CASE(name, claimed, verdict, rest)                                                    \
    "{\"case\":\"" name "\",\"family\":\"f\",\"in_claim\":" claimed ",\"verdict\":\"" verdict \
    "\"" rest "}\n"

/* run.json and verdicts.jsonl. */
static const struct {
    const char *record, *verdicts;
} odd_runs[] = {
    {"{}", ""},
    {"{\"title\":\"" X72 " " X36
     "\",\"command\":\"make\",\"created\":\"now\",\"commit\":\"abc\",\"dirty\":true,"
     "\"machine\":{},\"installed\":[],\"findings\":[]}",
     CASE("p", "true", "PASS", "")},
    {"{\"where\":\"w\",\"dirty\":false,\"installed\":[\"a\",7,\"b\"],\"machine\":{\"cores\":2,"
     "\"on\":true,"
     "\"off\":false,\"none\":null,\"text\":\"\",\"share\":0.25,\"large\":25000000000,\"list\":[1,"
     "\"x\",{\"y\":[2,"
     "{\"z\":3}]},[]],\"empty\":{},\"deep\":{\"a\":{\"b\":\"c\"},\"d\":[true]}},\"headline\":{"
     "\"correct\":{\"value\":"
     "\"yes\"},\"speed\":{\"why\":\"w\"},\"machine\":{\"value\":\"ready\",\"why\":\"\"}}}",
     CASE("u", "true", "UNSUPPORTED", ",\"seconds\":0.126") CASE("s", "true", "SKIP", "")
         CASE("uo", "false", "UNSUPPORTED", "") CASE("so", "false", "SKIP", "")
             CASE("po", "false", "PASS", "")},
    {"{\"headline\":{\"manners\":{\"value\":\"0 of "
     "1\",\"why\":\"x\",\"decide\":true}},\"findings\":["
     "{\"code\":\"XID\",\"severity\":\"fail\",\"gpu\":2,\"address\":\"0000:30:00.0\",\"what\":"
     "\"w\",\"do\":\"d\"},"
     "{\"code\":\"GPU_COUNT\",\"severity\":\"fail\",\"address\":\"0000:40:00.0\",\"what\":\"w\"},"
     "{\"code\":\"P2P_OFF\",\"severity\":\"warning\",\"what\":\"w\",\"do\":\"d\"},"
     "{\"code\":\"DRIVER\",\"severity\":\"info\",\"gpu\":0},{\"code\":\"LATER\",\"gpu\":1}]}",
     CASE("m", "true", "FAIL", ",\"manners\":true,\"evidence\":\"e\",\"value\":3,\"limit\":2")
         CASE("v", "true", "FAIL",
              ",\"evidence\":\"e\",\"value\":0,\"limit\":0,\"unit\":\"ulp\",\"limit_from\":\"a "
              "rule\",\"cause\":\"c\","
              "\"repeat\":\"r\",\"waiver\":\"\"")
             CASE("w", "true", "WAIVED", ",\"waiver\":\"until then\",\"evidence\":\"e\"")
                 CASE("i1", "true", "INFRA", ",\"evidence\":\"no device\"")
                     CASE("i2", "true", "INFRA", ",\"evidence\":\"no device\"")
                         CASE("i3", "true", "INFRA", ",\"evidence\":\"no device\"")
                             CASE("i4", "true", "INFRA", ",\"evidence\":\"another\"")
                                 CASE("f1", "true", "FAIL", ",\"evidence\":\"another\"")
                                     CASE("f2", "true", "FAIL", ",\"evidence\":\"another\"")
                                         CASE("x", "true", "LATER", "")},
    {"{}", CASE("a", "false", "FAIL", "") CASE("b", "false", "CRASH", "")
               CASE("c", "false", "TIMEOUT", "") CASE("d", "false", "WEAK", ",\"value\":1e-9")
                   CASE("e", "false", "INFRA", "") CASE("f", "false", "FAIL", "")
                       CASE("g", "false", "WAIVED", ",\"waiver\":\"x\"")},
    /* 80 columns and 81, words that are longer, blanks */
    {"{\"title\":\"" X36 "xxxx " X36 "yyy\",\"where\":\"" X36 "xxxx " X36 "yyyy\",\"headline\":{"
     "\"correct\":{\"value\":\"yes\",\"why\":\"" X36 "xx " X36 "\"},\"speed\":{\"value\":\"yes\","
     "\"why\":\"" X72 X36 " y " X72
     "  y\"},\"machine\":{\"value\":\"ready\",\"why\":\"a  b\\nc " X36 "x " X36 " d \"}}}",
     CASE("c", "true", "FAIL",
          ",\"evidence\":\"" X36 " " X36 "\",\"cause\":\"" X36 "  " X35 " z\",\"repeat\":\"" X72
          " y " X36 "\"")},
};

/* In the order of a report; the names of their folders would have it the other way round. */
static const char *const ordered[] = {
    "\"role\":\"throughput\",\"arch\":\"resnet18\",\"level\":\"O0\",\"half\":\"fp16\",\"world\":1,"
    "\"nodes\":1,\"bucket_mb\":25",
    "\"role\":\"throughput\",\"arch\":\"resnet18\",\"level\":\"O1\",\"half\":\"fp16\",\"world\":8,"
    "\"nodes\":2,\"bucket_mb\":25",
    "\"role\":\"throughput\",\"arch\":\"resnet18\",\"level\":\"O1\",\"half\":\"bf16\",\"world\":1,"
    "\"nodes\":2,\"bucket_mb\":25",
    "\"role\":\"throughput\",\"arch\":\"resnet18\",\"level\":\"O1\",\"half\":\"bf16\",\"world\":2,"
    "\"nodes\":1,\"bucket_mb\":25",
    "\"role\":\"throughput\",\"arch\":\"resnet18\",\"level\":\"O1\",\"half\":\"bf16\",\"world\":2,"
    "\"nodes\":2,\"bucket_mb\":-1",
    "\"role\":\"throughput\",\"arch\":\"resnet18\",\"level\":\"O1\",\"half\":\"bf16\",\"world\":2,"
    "\"nodes\":2,\"bucket_mb\":1",
    "\"role\":\"throughput\",\"arch\":\"resnet18\",\"level\":\"O1\",\"half\":\"bf16\",\"world\":2,"
    "\"nodes\":2,\"bucket_mb\":25",
    "\"role\":\"throughput\",\"arch\":\"resnet18\",\"level\":\"O1\",\"half\":\"bf16\",\"world\":2,"
    "\"nodes\":2,\"bucket_mb\":0",
    "\"role\":\"throughput\",\"arch\":\"resnet50\",\"level\":\"O0\",\"half\":\"fp16\",\"world\":1",
    "\"role\":\"phases\",\"arch\":\"resnet18\",\"level\":\"O0\"",
    "\"role\":\"evidence\",\"arch\":\"resnet18\",\"level\":\"O0\"",
    "\"role\":\"reference\",\"arch\":\"resnet18\",\"level\":\"O0\"",
    "\"role\":\"no_comm\",\"arch\":\"resnet18\",\"level\":\"O0\"",
    "\"role\":\"ddp_world1\",\"arch\":\"resnet18\",\"level\":\"O1\"",
    "\"role\":\"no_comm\",\"arch\":\"resnet18\",\"level\":\"O2\"",
};

START_TEST(jobs_have_an_order)
{
    enum { COUNT = sizeof ordered / sizeof *ordered };
    ls_report_run run;
    char text[600];
    write_text("run.json", "{}\n");
    for (int i = 0; i <= COUNT; i++) { /* the last twice */
        int of = i < COUNT ? i : COUNT - 1;
        LS_TEXT(path, 100, "jobs/%c%s/job.json", 'z' - of, i < COUNT ? "" : "a");
        ls_text_put(
            text, sizeof text,
            "{\"label\":\"%d\",\"facts\":{%s},\"outcome\":{\"state\":\"done\",\"ranks\":[]}}\n", i,
            ordered[of]);
        write_text(path, text);
    }
    write_text("jobs/.hidden/job.json", "{}\n");
    ck_assert_int_eq(ls_report_load(scratch, &run), LS_OK);
    ck_assert_int_eq(run.job_count, COUNT + 1);
    for (int i = 0; i <= COUNT; i++) {
        ck_assert_int_eq(atoi(run.job[i].record->label), i);
    }
    ls_report_load_free(&run);
}
END_TEST

/* One row that has all marks, then each alone; its events; without steps after the warm-up. */
static const struct {
    const char *facts, *start;
    int steps;
    double second_half;
} marked[] = {
    {"\"nodes\":2,\"simulated\":true,\"oversubscribed\":true,\"half_emulated\":true,\"checked\":"
     "false",
     ",\"cuda_graph\":\"off\"", 20, 1.2},
    {"\"nodes\":2,\"simulated\":true,\"checked\":true", "", 20, 1},
    {"\"nodes\":2,\"simulated\":false,\"checked\":true", "", 20, 1},
    {"\"oversubscribed\":true,\"checked\":true", "", 20, 1},
    {"\"half_emulated\":true,\"checked\":true", "", 20, 1},
    {"\"checked\":true", ",\"cuda_graph\":\"off\"", 20, 1},
    {"\"checked\":true", ",\"cuda_graph\":true", 20, 1.2},
    {"\"checked\":false", "", 20, 1},
    {"\"checked\":true", "", 7, 1},
    {"\"checked\":true", "", 3, 1},
    {"\"checked\":true", "", 2, 1},
};

START_TEST(marks_of_a_row_word_for_word)
{
    char *text = NULL, events[6000], job[600];
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    write_text("run.json", "{\"machine\":{\"cores\":1}}\n");
    for (size_t i = 0; i < sizeof marked / sizeof *marked; i++) {
        ls_text_put(
            job, sizeof job,
            "{\"label\":\"row\",\"facts\":{%s,\"role\":\"throughput\",\"arch\":\"resnet8\","
            "\"image_size\":32,\"batch_size\":4,\"level\":\"O1\",\"half\":\"fp16\",\"world\":2,"
            "\"bucket_mb\":25,\"warmup_steps\":2,\"sweep\":[\"level\"]},\"outcome\":{"
            "\"state\":\"done\",\"seconds\":2,\"ranks\":[{\"rank\":0,\"rss_bytes_max\":5e6}]}}\n",
            marked[i].facts);
        write_text("jobs/j/job.json", job);
        for (int rank = 0; rank < 2; rank++) {
            LS_TEXT(path, 100, "jobs/j/rank%d.jsonl", rank);
            ls_text_put(events, sizeof events, "{\"event\":\"start\",\"threads\":1%s}\n",
                        marked[i].start);
            for (int step = 1; step <= marked[i].steps; step++) {
                ls_text_add(events, sizeof events,
                            "{\"event\":\"step\",\"step\":%d,\"loss\":1,\"images\":4,\"ms\":{"
                            "\"total\":%g,\"comm\":3,\"comm_exposed\":%d}}\n",
                            step, (10 + rank + step % 3) * (step > 11 ? marked[i].second_half : 1),
                            1 + rank);
            }
            write_text(path, events);
        }
        char *report = golden_report(scratch);
        char *html = strstr(report, "==== report.html"), *speed = strstr(report, "## Throughput");
        fprintf(to, "######## %s%s\n%.*s%.*s", marked[i].facts, marked[i].start,
                (int)(strstr(report, "==== report.md") - report), report,
                (int)(i == 0 ? html - speed : strstr(speed, "## Failures") - speed), speed);
        free(report);
    }
    fclose(to);
    golden_check("suite/unit/harness/expected/marks.txt", text);
}
END_TEST

START_TEST(runs_without_jobs_word_for_word)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    for (size_t i = 0; i < sizeof odd_runs / sizeof *odd_runs; i++) {
        write_text("run.json", odd_runs[i].record);
        write_text("verdicts.jsonl", odd_runs[i].verdicts);
        char *report = golden_report(scratch);
        char *html = strstr(report, "==== report.html"), *junit = strstr(report, "==== junit.xml");
        char *tables = strstr(report, "==== throughput_by_level.tsv");
        char *summary = strstr(report, "\nsummary/");
        fprintf(to, "######## %zu\n%.*s%.*s%s", i, (int)(html - report), report,
                (int)(i == 0 ? strlen(junit) : (size_t)(tables - junit)), junit,
                i == 0 ? "" : summary + 1);
        free(report);
    }
    fclose(to);
    golden_check("suite/unit/harness/expected/odd_runs.txt", text);
}
END_TEST

/* ---- figures of one job ---------------------------------------------------------------------- */

/* The start event of a rank, and its memory in bytes by kind. */
static const struct {
    const char *start;
    double reduced, kind[LS_REPORT_KINDS], sum;
} memories[] = {
    {NULL, 7, {NAN, NAN, NAN, NAN, NAN, NAN}, NAN},
    {"{}", 7, {NAN, NAN, NAN, NAN, NAN, NAN}, NAN},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"param_elements\":5,\"options\":{"
     "\"optimizer\":\"sgd\",\"momentum\":0.9,\"opt-level\":\"O2\"}}",
     20,
     {20, 20, 20, 20, 100, 10},
     190},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"param_elements\":5,\"options\":{"
     "\"optimizer\":\"sgd\",\"momentum\":0,\"opt-level\":\"O1\"}}",
     10,
     {10, 0, 0, 10, 100, 10},
     130},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"param_elements\":5,\"options\":{"
     "\"optimizer\":\"adam\",\"opt-level\":\"O3\"}}",
     10,
     {10, 0, 40, 10, 100, 10},
     170},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"param_elements\":5,\"options\":{"
     "\"optimizer\":\"later\",\"opt-level\":\"O2\"}}",
     10,
     {10, 20, NAN, 10, 100, 10},
     NAN},
    {"{\"workspace_bytes\":10,\"param_elements\":5,\"options\":{\"optimizer\":\"lamb\"}}",
     10,
     {NAN, 0, 40, NAN, NAN, 10},
     NAN},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"param_elements\":5,\"options\":{"
     "\"optimizer\":\"adam\",\"opt-level\":\"O2\"},\"memory\":{\"parameters\":1,\"masters\":2,"
     "\"moments\":3,\"gradients\":4,\"reduction_staging\":10,\"accumulators\":20,"
     "\"unscaled_gradients\":30,\"buffers\":5,\"state\":6,\"other\":1000}}",
     10,
     {1, 2, 3, 64, 100, 21},
     191},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"memory\":{}}",
     10,
     {0, 0, 0, 0, 100, 10},
     110},
    {"{\"activation_bytes\":100,\"workspace_bytes\":10,\"memory\":7}",
     10,
     {10, NAN, NAN, 10, 100, 10},
     NAN},
};

static bool same_number(double a, double b)
{
    return (isnan(a) && isnan(b)) || a == b;
}

START_TEST(memory_by_kind)
{
    double kind[LS_REPORT_KINDS];
    ls_record_rank rank = {.reduced_bytes = memories[_i].reduced};
    rank.start = memories[_i].start != NULL ? cJSON_Parse(memories[_i].start) : NULL;
    ck_assert((rank.start != NULL) == (memories[_i].start != NULL));
    double sum = ls_report_memory(&rank, kind);
    for (int k = 0; k < LS_REPORT_KINDS; k++) {
        ck_assert_msg(same_number(kind[k], memories[_i].kind[k]), "kind %d is %g", k, kind[k]);
    }
    ck_assert_msg(same_number(sum, memories[_i].sum), "%g", sum);
    cJSON_Delete(rank.start);
}
END_TEST

static const struct {
    int world, steps[3], fewest;
    double end, third; /* where the loss ended; that of the third step */
} curves[] = {
    {0, {0}, 0, NAN, NAN},         {1, {0}, 0, NAN, NAN},       {1, {1}, 1, 0, NAN},
    {1, {4}, 4, 1.5, 2},           {1, {5}, 5, 2, 2},           {1, {6}, 6, 3, 2},
    {1, {59}, 59, 56, 2},          {1, {60}, 60, 56.5, 2},      {2, {9, 7}, 7, 54, 52},
    {3, {2, 9, 9}, 2, 100.5, NAN}, {3, {9, 9, 8}, 8, 105, 102},
};

START_TEST(losses_at_the_end)
{
    ls_report_job job = job_of(curves[_i].world, curves[_i].steps);
    ck_assert_int_eq(ls_report_loss_steps(&job), curves[_i].fewest);
    ck_assert_msg(same_number(ls_report_loss_end(&job), curves[_i].end), "%g",
                  ls_report_loss_end(&job));
    ck_assert_msg(same_number(ls_report_loss_at(&job, 2), curves[_i].third), "%g",
                  ls_report_loss_at(&job, 2));
    drop_job(&job);
}
END_TEST

START_TEST(losses_are_not_below_zero)
{
    const double value[] = {0.1, 0.2, 0.9}, high[] = {5, 5.5, 6};
    ls_stats_interval low = ls_report_loss_predict(value, 3),
                      usual = ls_report_loss_predict(high, 3);
    ck_assert(low.low == 0 && low.high > 1);
    ck_assert(usual.low > 0 && usual.low < 5);
    ck_assert(isnan(ls_report_loss_predict(value, 2).low));
    static const int last[][2] = {{0, 0},  {1, 1},  {5, 5},  {6, 5},
                                  {50, 5}, {59, 5}, {60, 6}, {99, 9}};
    for (size_t i = 0; i < sizeof last / sizeof *last; i++) {
        ck_assert_int_eq(ls_report_loss_last(last[i][0]), last[i][1]);
    }
}
END_TEST

/* A job of one rank with 8 images of 2 x 2 pixels: 100 bytes of memory besides 80 of activations,
 * which it exceeded by 20. */
static ls_report_job sized_job(ls_role role)
{
    static const int steps[] = {0};
    ls_report_job job = job_of(1, steps);
    job.record->spec = (ls_spec){
        .role = role, .world = 1, .batch_size = 8, .image_size = 2, .arch = "a", .half = "h"};
    job.record->rank[0].start = cJSON_Parse(
        "{\"activation_bytes\":80,\"workspace_bytes\":60,\"memory\":{\"parameters\":40}}");
    job.record->rank[0].rss_bytes_max = 200;
    return job;
}

static void drop_sized(ls_report_job *job)
{
    cJSON_Delete(job->record->rank[0].start);
    drop_job(job);
}

/* Each image takes 80 / 8 bytes and three times its 3 * 2 * 2 * 4; 120 bytes are fixed. */
START_TEST(the_largest_batch_at_its_limits)
{
    static const struct {
        ls_role plain;
        double free_bytes, rss, largest; /* NAN: none is known */
        int world, batch;
    } rows[] = {
        {LS_ROLE_DDP_WORLD1, 120 + 154, 200, 1, 1, 8},
        {LS_ROLE_NO_COMM, 120 + 154 - 1, 200, NAN, 1, 8},
        {LS_ROLE_DDP_WORLD1, 120 + 2 * 154 - 1, 200, 1, 1, 8},
        {LS_ROLE_NO_COMM, 120 + 2 * 154, 200, 2, 1, 8},
        {LS_ROLE_NO_COMM, 3 * (120 + 2 * 154), 200, 2, 3, 8},
        {LS_ROLE_NO_COMM, 140 + 7 * 154, 220, 7, 1, 8},
        {LS_ROLE_NO_COMM, 101 + 7 * 154, 181, 7, 1, 8},
        {LS_ROLE_NO_COMM, 9999, 180, NAN, 1, 8}, /* no more than it reports: not seen */
        {LS_ROLE_EVIDENCE, 9999, 200, NAN, 1, 8},
        {LS_ROLE_NO_COMM, NAN, 200, NAN, 1, 8},
        {LS_ROLE_NO_COMM, 9999, 200, NAN, 1, 0},
        {LS_ROLE_NO_COMM, 120 + 224, 200, 1, 1, 1}, /* 80 / 1 and 144 */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_report_job job[] = {sized_job(LS_ROLE_THROUGHPUT), sized_job(rows[i].plain)};
        ls_report_run run = {.job_count = 2, .job = job, .record = cJSON_CreateObject()};
        ls_json_add_number(cJSON_AddObjectToObject(run.record, "machine"), "memory_available_bytes",
                           rows[i].free_bytes);
        job[0].record->spec.world = rows[i].world;
        job[0].record->spec.batch_size = rows[i].batch;
        job[1].record->rank[0].rss_bytes_max = rows[i].rss;
        ls_report_batch batch = {.largest = NAN};
        bool known = ls_report_memory_largest_batch(&run, &job[0], &batch);
        ck_assert_msg(known == isfinite(rows[i].largest), "row %zu", i);
        if (known) {
            ck_assert_msg(batch.largest == rows[i].largest, "row %zu: %g", i, batch.largest);
            ck_assert(batch.job == &job[0]);
            ck_assert(batch.fixed_bytes == rows[i].rss - 80);
            ck_assert(batch.image_bytes == 80.0 / rows[i].batch + 144);
            ck_assert(batch.room_bytes == rows[i].free_bytes / rows[i].world);
        }
        cJSON_Delete(run.record);
        drop_sized(&job[0]);
        drop_sized(&job[1]);
    }
}
END_TEST

START_TEST(a_larger_batch_is_predicted_from_an_equal_job)
{
    enum { AS_IT_IS, SWAPPED, WORLD, ARCH, ROLE, NO_PEAK, ALL };
    for (int change = 0; change < ALL; change++) {
        ls_report_job job[] = {sized_job(LS_ROLE_DDP_WORLD1), sized_job(LS_ROLE_STRONG_SCALING)};
        ls_report_run run = {.job_count = 2, .job = job};
        ls_report_job *small = &job[change == SWAPPED], *big = &job[change != SWAPPED];
        small->record->spec.role = LS_ROLE_DDP_WORLD1;
        big->record->spec.role = change == ROLE ? LS_ROLE_THROUGHPUT : LS_ROLE_STRONG_SCALING;
        big->record->spec.batch_size = 16;
        big->record->spec.world = change == WORLD ? 2 : 1;
        big->record->spec.arch[0] = change == ARCH ? 'b' : 'a';
        big->record->rank[0].rss_bytes_max = change == NO_PEAK ? NAN : 3000;
        const ls_report_job *larger = NULL;
        double predicted = NAN, seen = NAN;
        bool known = ls_report_memory_check(&run, &larger, &predicted, &seen);
        ck_assert_msg(known == (change <= SWAPPED), "%d", change);
        ck_assert(!known || (larger == big && predicted == 120 + 16 * 154 && seen == 3000));
        drop_sized(&job[0]);
        drop_sized(&job[1]);
    }
}
END_TEST

/* Whether a ratio is called a difference: its interval leaves out 1 and it is 1 % or more. */
static const struct {
    ls_stats_interval ratio;
    bool resolved;
} ratios[] = {
    {{1.02, 1.001, 1.04}, true},  {{1.02, 1, 1.04}, false},      {{0.98, 0.96, 0.999}, true},
    {{0.98, 0.96, 1}, false},     {{1.009, 1.001, 1.02}, false}, {{0.991, 0.98, 0.999}, false},
    {{1.011, 1.001, 1.02}, true}, {{0.989, 0.98, 0.999}, true},  {{1.5, NAN, NAN}, false},
    {{1.5, 0.9, 2}, false},       {{2, 1.5, 2.5}, true},         {{0.1, 0.05, 0.2}, true},
};

START_TEST(differences_that_are_named)
{
    ck_assert(ls_report_compare_is_resolved(ratios[_i].ratio) == ratios[_i].resolved);
}
END_TEST

/* Runs of 20 steps, of which the last two count: the levels, and where each ends. */
static const struct {
    const char *levels; /* a digit each */
    double end[12];
    const char *text; /* NULL: no band */
} bands[] = {
    {"00", {1, 1}, NULL},
    {"001", {1, 1, 1}, NULL},
    {"000", {1, 1, 1}, "No other level is compared with the band of 3 O0 runs [1.000, 1.000]"},
    {"0001", {1, 1, 1, 1}, "O1 (1.000) stays inside the band of 3 O0 runs [1.000, 1.000]"},
    {"1000", {1.25, 1, 1, 1}, "O1 (1.250) ends outside the band of 3 O0 runs [1.000, 1.000]"},
    {"00012",
     {1, 1, 1, 1, 1},
     "O1 (1.000) and O2 (1.000) stay inside the band of 3 O0 runs "
     "[1.000, 1.000]"},
    {"000123",
     {1, 1, 1, 0.75, 2, 3},
     "O1 (0.750), O2 (2.000) and O3 (3.000) end outside the band of "
     "3 O0 runs [1.000, 1.000]"},
    {"0100230",
     {1, 1, 1, 1, 0.5, 0.625, 1},
     "O2 (0.500) and O3 (0.625) end outside, O1 (1.000) stays inside the band of 4 O0 runs [1.000, "
     "1.000]"},
    {"000111122223",
     {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2}, /* one more than there is room for */
     "O1 (1.000), O1 (1.000), O1 (1.000), O1 (1.000), O2 (1.000), O2 (1.000), O2 (1.000) and O2 "
     "(1.000) stay inside the band of 3 O0 runs [1.000, 1.000]"},
};

static ls_report_job curves_job(const char *levels, const double *end)
{
    static const int steps[12] = {20, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20};
    int world = (int)strlen(levels);
    ls_report_job job = job_of(world, steps);
    job.record->state = LS_RECORD_DONE;
    job.record->spec.role = LS_ROLE_CURVES;
    for (int k = 0; k < world; k++) {
        ls_record_rank *rank = &job.record->rank[k];
        ls_text_put(rank->level, sizeof rank->level, "O%c", levels[k]);
        rank->step[17].loss = 77; /* before the end */
        rank->step[18].loss = end[k] - 0.25;
        rank->step[19].loss = end[k] + 0.25;
    }
    return job;
}

START_TEST(bands_in_words)
{
    char text[320];
    ls_report_band band;
    ls_report_job job = curves_job(bands[_i].levels, bands[_i].end);
    ls_report_run run = {.job_count = 1, .job = &job};
    bool found = ls_report_loss_read_band(&run, &band);
    ck_assert(found == (bands[_i].text != NULL));
    if (found) {
        ck_assert_str_eq(ls_report_loss_sentence(&band, text), bands[_i].text);
        ck_assert(band.job == &job && band.steps == 20 && band.last == 2);
        for (int i = 0, k = 0; i < band.level_count; i++, k++) {
            k += (int)strspn(bands[_i].levels + k, "0");
            ck_assert_int_eq(band.rank[i], k);
            ck_assert_str_eq(band.level[i], job.record->rank[k].level);
            ck_assert(band.level_end[i] == bands[_i].end[k]);
            ck_assert(band.inside[i] == (bands[_i].end[k] == 1));
        }
    }
    drop_job(&job);
}
END_TEST

START_TEST(curves_that_are_no_band)
{
    enum { STATE, ROLE, EMPTY, SHORT, NO_STEPS, FEW_STEPS, ALL };
    static const double ends[] = {1, 1, 1, 1};
    for (int change = 0; change < ALL; change++) {
        ls_report_band band = {.steps = -1};
        ls_report_job job = curves_job("0001", ends);
        ls_report_run run = {.job_count = 1, .job = &job};
        job.record->state = change == STATE ? LS_RECORD_KILLED : LS_RECORD_DONE;
        job.record->spec.role = change == ROLE ? LS_ROLE_REFERENCE : LS_ROLE_CURVES;
        job.record->world = change == EMPTY ? 0 : 4;
        job.record->rank[2].step_count = change == SHORT ? 19 : 20;
        for (int k = 0; k < 4 && change >= NO_STEPS; k++) {
            job.record->rank[k].step_count = change == NO_STEPS ? 0 : 9;
        }
        ck_assert_msg(ls_report_loss_read_band(&run, &band) == (change == FEW_STEPS), "%d", change);
        if (change == FEW_STEPS) {
            ck_assert(band.last == 1 && band.end.value == 8 + 100 * 1.0);
        } else {
            ck_assert_int_eq(band.steps, -1); /* nothing is written */
        }
        job.record->world = 4;
        drop_job(&job);
    }
    ls_report_run none = {0};
    ls_report_band band;
    ck_assert(!ls_report_loss_read_band(&none, &band));
}
END_TEST

/* How a job ended, in words; code 12: a state that is not finite. */
static const struct {
    ls_record_state state;
    int rank, code, signal;
    const char *text;
} endings[] = {
    {LS_RECORD_DONE, 1, 2, 3, "done"},
    {LS_RECORD_FAILED, 2, 12, 0, "FAIL rank 2, exit code 12 (non-finite state)"},
    {LS_RECORD_FAILED, 0, 2, 0, "FAIL rank 0, exit code 2 (usage)"},
    {LS_RECORD_FAILED, -1, 2, 0, "FAIL"},
    {LS_RECORD_KILLED, 0, 137, 9, "CRASH rank 0, signal 9"},
    {LS_RECORD_KILLED, -1, 137, 9, "CRASH"},
    {LS_RECORD_TIMED_OUT, 1, 2, 3, "TIMEOUT"},
};

START_TEST(endings_in_words)
{
    char text[96];
    ls_report_job job = job_of(0, NULL);
    job.record->state = endings[_i].state;
    job.record->first_rank = endings[_i].rank;
    job.record->code = endings[_i].code;
    job.record->signal = endings[_i].signal;
    ck_assert_str_eq(ls_report_job_state(&job, text), endings[_i].text);
    drop_job(&job);
}
END_TEST

static const struct {
    int check;
    bool audited;
    const char *text;
} checks[] = {
    {0, false, ""},
    {1, false, "FP64 oracle"},
    {2, false, "FP64 oracle on the GPU"},
    {3, false, "FP64 samples"},
    {4, false, "FP32 step 1"},
    {5, false, ""},
    {-1, false, ""},
    {0, true, "FP64 samples"},
    {4, true, "FP64 samples, FP32 step 1"},
    {5, true, "FP64 samples"},
    {1, true, "FP64 samples, FP64 oracle"},
};

START_TEST(gradient_checks_in_words)
{
    char text[64];
    ls_report_job job = job_of(0, NULL);
    job.record->gradient_check = checks[_i].check;
    job.record->audited = checks[_i].audited;
    ck_assert_str_eq(ls_report_job_gradient_checks(&job, text), checks[_i].text);
    drop_job(&job);
}
END_TEST

/* Why a figure is no result: of a job that ended so, with so many measured steps. */
static const struct {
    ls_record_state state;
    int count;
    bool checked, judged;
    double rate;
    const char *text;
} reasons[] = {
    {LS_RECORD_DONE, 1, true, true, 5, ""},
    {LS_RECORD_DONE, 1, true, true, NAN, "WEAK mine"},
    {LS_RECORD_DONE, 1, false, true, 5, "WEAK mine"},
    {LS_RECORD_DONE, 0, true, true, 5, "no step after the warm-up has a time"},
    {LS_RECORD_KILLED, 1, true, true, 5, "CRASH"},
};

START_TEST(reasons_in_words)
{
    char text[160];
    ls_report_job job = job_of(0, NULL);
    job.record->state = reasons[_i].state;
    job.record->first_rank = -1;
    job.record->checked = reasons[_i].checked;
    job.record->judged = reasons[_i].judged;
    job.speed.count = reasons[_i].count;
    job.speed.rate.value = reasons[_i].rate;
    ls_text_put(job.record->id, sizeof job.record->id, "j");
    ls_report_verdict verdict[] = {
        {.code = LS_PASS, .id = "good", .json = cJSON_Parse("{\"jobs\":[\"j\"]}")},
        {.code = LS_FAIL, .id = "other", .json = cJSON_Parse("{\"jobs\":[\"i\",7]}")},
        {.code = LS_WEAK, .id = "mine", .json = cJSON_Parse("{\"jobs\":[\"i\",\"j\"]}")},
        {.code = LS_FAIL, .id = "later", .json = cJSON_Parse("{\"jobs\":[\"j\"]}")}};
    ls_report_run run = {.verdict_count = 4, .verdict = verdict};
    ck_assert_str_eq(ls_report_job_reason(&run, &job, text), reasons[_i].text);
    run.verdict_count = 2;
    if (strcmp(reasons[_i].text, "WEAK mine") == 0) {
        ck_assert_str_eq(ls_report_job_reason(&run, &job, text), "its checks did not pass");
        job.record->judged = false;
        ck_assert_str_eq(ls_report_job_reason(&run, &job, text), "not checked");
    }
    for (int v = 0; v < 4; v++) {
        cJSON_Delete(verdict[v].json);
    }
    drop_job(&job);
}
END_TEST

static const struct {
    double value;
    const char *text;
} numbers[] = {
    {NAN, "-"},
    {INFINITY, "-"},
    {0, "0"},
    {1000, "1000"},
    {999.96, "1000.0"},
    {1000.5, "1000"},
    {99.96, "99.96"},
    {100, "100.0"},
    {10, "10.00"},
    {9.99, "9.990"},
    {1, "1.000"},
    {0.01, "0.010"},
    {0.00999, "0.00999"},
    {1e-9, "1e-09"},
    {-0.5, "-0.500"},
    {-123.45, "-123.5"},
    {-0.001234, "-0.00123"},
    {1e7, "10000000"},
};

START_TEST(numbers_have_four_digits)
{
    char text[32];
    ck_assert_str_eq(ls_report_lines_number(numbers[_i].value, text), numbers[_i].text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("report_parts");
    TCase *tests = tcase_create("report_parts");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, open_scratch, close_scratch);
    tcase_add_loop_test(tests, each_table_is_drawn_twice, 0, 2);
    tcase_add_test(tests, a_signal_ends_the_drawing);
    tcase_add_test(tests, what_cannot_be_drawn_is_left_out);
    tcase_add_loop_test(tests, rows_of_the_same_job, 0, sizeof rows / sizeof *rows);
    tcase_add_test(tests, differences_word_for_word);
    tcase_add_loop_test(tests, heads_are_read_back, 0, sizeof heads / sizeof *heads);
    tcase_add_test(tests, labels_are_plain);
    tcase_add_loop_test(tests, gradients_closest_to_their_limits, 0,
                        sizeof judged / sizeof *judged);
    tcase_add_test(tests, the_trace_word_for_word);
    tcase_add_loop_test(tests, html_holds_no_markup_and_no_broken_character, 0,
                        sizeof escapes / sizeof *escapes);
    tcase_add_test(tests, elements_of_pages_word_for_word);
    tcase_add_test(tests, jobs_have_an_order);
    tcase_add_test(tests, marks_of_a_row_word_for_word);
    tcase_add_test(tests, runs_without_jobs_word_for_word);
    tcase_add_loop_test(tests, memory_by_kind, 0, sizeof memories / sizeof *memories);
    tcase_add_loop_test(tests, losses_at_the_end, 0, sizeof curves / sizeof *curves);
    tcase_add_test(tests, the_largest_batch_at_its_limits);
    tcase_add_test(tests, a_larger_batch_is_predicted_from_an_equal_job);
    tcase_add_loop_test(tests, differences_that_are_named, 0, sizeof ratios / sizeof *ratios);
    tcase_add_loop_test(tests, bands_in_words, 0, sizeof bands / sizeof *bands);
    tcase_add_test(tests, curves_that_are_no_band);
    tcase_add_test(tests, losses_are_not_below_zero);
    tcase_add_loop_test(tests, endings_in_words, 0, sizeof endings / sizeof *endings);
    tcase_add_loop_test(tests, gradient_checks_in_words, 0, sizeof checks / sizeof *checks);
    tcase_add_loop_test(tests, reasons_in_words, 0, sizeof reasons / sizeof *reasons);
    tcase_add_loop_test(tests, numbers_have_four_digits, 0, sizeof numbers / sizeof *numbers);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
