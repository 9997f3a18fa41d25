/* What is printed while a program waits, when, and what the probes of a job's ranks find. */
#include <signal.h>
#include <sys/wait.h>

#include "harness/hosts/awaited.h"
#include "kernels/core/clock.h"
#include "kernels/core/file.h"
#include "suite/unit/caught.h"
#include "suite/unit/harness/scratch.h"
#include "suite/unit/run_suite.h"

static char text[LS_WAITING_TEXT_BYTES];

/* ---- when a line is printed ------------------------------------------------------------------ */

static double second_probe(void *context, char *to, size_t bytes)
{
    ls_text_put(to, bytes, "the second");
    return *(const double *)context;
}

static double silent_probe(void *context, char *to, size_t bytes)
{
    (void)context;
    ls_text_put(to, bytes, "nothing");
    return -1;
}

/* As if so many seconds had passed since the last look. */
static void pass(ls_waiting *waiting, double seconds)
{
    int64_t ns = (int64_t)(seconds * 1e9);
    waiting->look_ns = 0;
    waiting->since_ns -= waiting->since_ns == 0 ? 0 : ns;
    waiting->said_ns -= waiting->said_ns == 0 ? 0 : ns;
}

static void expect_look(ls_waiting *waiting, const char *line)
{
    catch_lines();
    int64_t next_ns = ls_waiting_look(waiting);
    ck_assert_str_eq(caught_lines(), line);
    ck_assert(next_ns > ls_clock_ns() && next_ns <= ls_clock_after(2));
}

TEST(lines_come_after_ten_seconds_and_each_minute)
{
    ls_waiting_probe *const probes[] = {silent_probe, second_probe, NULL};
    double since_s = 0;
    ls_waiting waiting = ls_waiting_begin(probes, &since_s, 300);
    expect_look(&waiting, "");
    pass(&waiting, 9);
    expect_look(&waiting, "");
    pass(&waiting, 1.01);
    expect_look(&waiting, "waiting for 10 s (limit 300 s): the second\n");
    expect_look(&waiting, ""); /* looked at a moment ago */
    pass(&waiting, 59);
    expect_look(&waiting, "");
    pass(&waiting, 1.01);
    expect_look(&waiting, "waiting for 70 s (limit 300 s): the second\n");
    ck_assert_str_eq(ls_waiting_cause(&waiting), "the second");
    since_s = -1; /* it goes on: the next wait begins from the start */
    pass(&waiting, 70);
    expect_look(&waiting, "");
    ck_assert_str_eq(ls_waiting_cause(&waiting), "");
    since_s = 0;
    pass(&waiting, 70);
    expect_look(&waiting, "");
    /* a probe that knows since when */
    waiting = ls_waiting_begin(probes, &since_s, 0);
    since_s = 61;
    expect_look(&waiting, "waiting for 61 s: the second\n");
}

/* ---- probes ---------------------------------------------------------------------------------- */

enum { STOPPED, JOINING, IDLE };

TEST(a_stopped_process_is_named)
{
    char wanted[100];
    ls_awaited awaited = ls_awaited_begin(NULL, NULL);
    for (int ranked = 0; ranked < 2; ranked++) {
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) { /* the stopped one is a child of it */
            (void)(ranked ? setenv("PMI_RANK", "7", 1) : unsetenv("PMI_RANK"));
            execlp("sh", "sh", "-c", "sh -c 'kill -STOP $$'; exit 0", (char *)NULL);
            _exit(9);
        }
        int64_t end_ns = ls_clock_after(20);
        while (ls_awaited_probes[STOPPED](&awaited, text, sizeof text) < 0) {
            ck_assert(ls_clock_ns() < end_ns);
        }
        ls_text_put(wanted, sizeof wanted, "%s (pid ", ranked ? "rank 7" : "a process");
        ck_assert_msg(strncmp(text, wanted, strlen(wanted)) == 0, "%s", text);
        ck_assert_ptr_nonnull(strstr(text, ", sh) is stopped by a signal: `kill -CONT "));
        pid_t stopped = atoi(strchr(text, ' ') + 1 + (ranked ? 7 : 13));
        ck_assert_msg(stopped > 1 && stopped != child && kill(stopped, SIGCONT) == 0, "%s", text);
        ck_assert_int_eq(waitpid(child, NULL, 0), child);
        ck_assert(ls_awaited_probes[STOPPED](&awaited, text, sizeof text) < 0);
    }
}

TEST(a_rank_that_joins_says_whom_it_misses)
{
    static const struct {
        const char *line, *says; /* NULL: nothing is found */
    } rows[] = {
        {"0 3 nosuch.invalid 1\n", "1 of 3 ranks wait in init_process_group; not there: rank 1, 2; "
                                   "nosuch.invalid (MASTER_ADDR) does not resolve: "},
        {"1 2 127.0.0.1 1\n", "1 of 2 ranks wait in init_process_group; not there: rank 0; nothing "
                              "listens at 127.0.0.1:1 (MASTER_ADDR, MASTER_PORT) here"},
        {"1 2 - -\n", "1 of 2 ranks wait in init_process_group; not there: rank 0"},
        {"1 2\n", NULL},
        {"", NULL},
    };
    ls_awaited awaited = ls_awaited_begin(scratch, NULL);
    LS_TEXT(name, 40, "joining.%d", (int)getpid());
    ck_assert(ls_awaited_probes[JOINING](&awaited, text, sizeof text) < 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_text(name, rows[i].line);
        double since_s = ls_awaited_probes[JOINING](&awaited, text, sizeof text);
        ck_assert_msg((since_s >= 0) == (rows[i].says != NULL), "row %zu", i);
        ck_assert_msg(since_s < 0 || strncmp(text, rows[i].says, strlen(rows[i].says)) == 0, "%s",
                      text);
    }
    write_text(name, "");
    write_text("joining.999999999", "0 2 - -\n"); /* of a process that is no more */
    ck_assert(ls_awaited_probes[JOINING](&awaited, text, sizeof text) < 0);
}

TEST(files_that_do_not_change)
{
    ls_awaited awaited = ls_awaited_begin(scratch, NULL);
    awaited.seen_ns -= INT64_C(70000000000);
    /* a job that writes no events is never idle */
    ck_assert(ls_awaited_probes[IDLE](&awaited, text, sizeof text) < 0);
    write_text("rank1.jsonl",
               "{\"event\":\"start\",\"schema\":1}\n{\"event\":\"step\",\"step\":5}\n");
    for (int change = 0; change < 3; change++) {
        ck_assert(ls_awaited_probes[IDLE](&awaited, text, sizeof text) < 0);
        awaited.seen_ns -= INT64_C(59000000000);
        ck_assert(ls_awaited_probes[IDLE](&awaited, text, sizeof text) < 0);
        awaited.seen_ns -= INT64_C(2000000000);
        double since_s = ls_awaited_probes[IDLE](&awaited, text, sizeof text);
        ck_assert(since_s >= 61 && since_s < 100);
        ck_assert_msg(strstr(text, "no step for 61 s: rank 1 after 'step 5'") == text, "%s", text);
        /* calls of an open step count, whose file keeps its size */
        write_text("open.rank1", change == 0 ? "         6\n0001 " : "         6\n0002 ");
        write_text("other.rank1", change == 0 ? "a" : "bb");
        if (change == 1) {
            break;
        }
    }
    ck_assert(ls_awaited_probes[IDLE](&awaited, text, sizeof text) < 0);
}

TEST_MAIN("waiting", .timeout_s = 60, .before = open_scratch, .after = close_scratch)
