/* Figures of a report, drawn by a played gnuplot: how it is called, what it cannot draw, a signal;
 * the trace of a run and the table of its timeline. */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "harness/report/page.h"
#include "harness/report/job.h"
#include "harness/report/report.h"
#include "harness/report/tables/table.h"
#include "kernels/core/json.h"
#include "kernels/core/text.h"
#include "suite/unit/golden.h"
#include "suite/unit/harness/test_report_run.h"
#include "suite/unit/run_suite.h"

static bool is_there(const char *name)
{
    LS_TEXT(path, 400, "%s/%s", scratch, name);
    return access(path, F_OK) == 0;
}

/* A title and where it is to be broken: at most 72 columns, in the second half after punctuation or
 * before a parenthesis, else at the last space. */
static const struct {
    const char *title, *drawn;
} titles[21] = {
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
    {"two words", "two words"},
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
    ck_assert_int_eq(ls_report_plots_draw(run, run->directory, scripts, NULL), LS_OK);
}

LOOP_TEST(each_table_is_drawn_twice, 2)
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

/* Asked to stop, it leaves neither a figure that is half drawn nor a process. */
TEST(a_signal_ends_the_drawing)
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

TEST(what_cannot_be_drawn_is_left_out)
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
            ls_text_add(text, sizeof text,
                        "{\"event\":\"step\",\"step\":1,\"ms\":{\"total\":1},\"audited\":true}\n");
            if (j == 1 && rank == 1) { /* spans of no step, and one of no name and lane */
                ls_text_add(text, sizeof text,
                            "{\"event\":\"trace\",\"spans\":[{\"name\":\"of no step\",\"lane\":"
                            "\"compute\",\"from_ns\":9000000,\"to_ns\":9100000},"
                            "{\"from_ns\":9100000,\"to_ns\":9100000}]}\n");
            }
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

TEST(the_trace_word_for_word)
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

TEST_MAIN("report_plots", .timeout_s = 60, .before = open_scratch, .after = close_scratch)
