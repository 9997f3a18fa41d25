/* Ranks that a fork server starts: their parent, arguments, environment, log and end. The server is
 * Python, as those of trainers are. */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "harness/process/fork_server.h"
#include "kernels/core/clock.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "suite/unit/run_suite.h"

static char folder[] = "/tmp/lockstep-fork-XXXXXX";
static char command[1400];

/* loads a file of its own once, then prints its process and arguments; waits if one is "wait" */
static const char trainer[] = "import os, signal, sys\n"
                              "sys.path.insert(0, sys.argv[1])\n"
                              "loaded = os.getpid()\n"
                              "import fork_server\n"
                              "fork_server.serve(lambda: None)\n"
                              "print(os.getppid(), os.getpgid(0) == os.getpid(),\n"
                              "      loaded != os.getpid(), sys.argv[2:], os.environ.get('A'),\n"
                              "      os.environ.get('LS_FORK_SERVER'), sys.stdin.read() == '')\n"
                              "sys.stdout.flush()\n"
                              "if 'wait' in sys.argv:\n"
                              "    signal.pause()\n"
                              "os._exit(7)\n";

static bool python_is_here(void)
{
    return system("python3 -c pass 2>/dev/null") == 0;
}

static void setup(void)
{
    char peers[1024];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert(ls_path_find("suite/peers", peers, sizeof peers));
    LS_TEXT(path, 200, "%s/trainer.py", folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(trainer, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    ls_text_put(command, sizeof command, "python3 %s %s", path, peers);
}

static void teardown(void)
{
    ls_path_remove_tree(folder);
}

static void read_log(const char *path, char text[400])
{
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    text[fread(text, 1, 399, file)] = '\0';
    fclose(file);
}

typedef struct asked {
    ls_words words;
    char log[200];
    ls_proc_spec spec;
} asked;

static char *const surroundings[] = {"A=b=c", "PATH=/usr/local/bin:/usr/bin:/bin", NULL};

static void ask(asked *a, const char *options)
{
    *a = (asked){.words = {0, 0, NULL}};
    LS_TEXT(all, 1600, "%s %s", command, options);
    ls_words_split(&a->words, all);
    ls_text_put(a->log, sizeof a->log, "%s/%s.log", folder, options);
    a->spec =
        (ls_proc_spec){.argv = a->words.word, .environment = surroundings, .log_path = a->log};
}

TEST(a_rank_is_a_child_of_this_program)
{
    if (!python_is_here()) {
        return;
    }
    ls_fork_server server;
    ls_proc_orphans orphans;
    ls_proc rank;
    asked a;
    char text[400];
    ck_assert_int_eq(ls_fork_server_open(command, &server), LS_OK);
    ls_proc_orphans_begin(&orphans);
    for (int round = 0; round < 2; round++) {
        ask(&a, round == 0 ? "first" : "second");
        ck_assert(ls_fork_server_start(&server, &a.spec, &rank));
        ck_assert_int_eq(ls_proc_wait_any(&rank, 1, ls_clock_after(60)), 0);
        ck_assert_int_eq(rank.code, 7);
        read_log(a.log, text);
        LS_TEXT(want, 200, "%d True True ['%s'] b=c None True\n", (int)getpid(),
                round == 0 ? "first" : "second");
        ck_assert_str_eq(text, want);
        ls_words_free(&a.words);
    }
    ck_assert_int_eq(ls_proc_orphans_end(&orphans), 0);
    ls_fork_server_close(&server);
}

TEST(a_rank_is_killed_by_its_pid)
{
    if (!python_is_here()) {
        return;
    }
    ls_fork_server server;
    ls_proc_orphans orphans;
    ls_proc rank;
    asked a;
    ck_assert_int_eq(ls_fork_server_open(command, &server), LS_OK);
    ls_proc_orphans_begin(&orphans);
    ask(&a, "wait");
    ck_assert(ls_fork_server_start(&server, &a.spec, &rank));
    ck_assert_int_eq(kill(rank.pid, SIGKILL), 0);
    ck_assert_int_eq(ls_proc_wait_any(&rank, 1, ls_clock_after(60)), 0);
    ck_assert_int_eq(rank.signal, SIGKILL);
    ls_words_free(&a.words);
    ck_assert_int_eq(ls_proc_orphans_end(&orphans), 0);
    ls_fork_server_close(&server);
}

/* What it cannot start is left to exec, and a server that has ended is closed. */
TEST(another_command_is_not_its)
{
    if (!python_is_here()) {
        return;
    }
    ls_fork_server server;
    ls_proc rank;
    asked a;
    char *const other[] = {"sh", "-c", "exit 0", NULL};
    ck_assert_int_eq(ls_fork_server_open(command, &server), LS_OK);
    ask(&a, "first");
    ls_proc_spec spec = a.spec;
    spec.argv = other;
    ck_assert(!ls_fork_server_start(&server, &spec, &rank));
    spec = a.spec;
    spec.directory = "/";
    ck_assert(!ls_fork_server_start(&server, &spec, &rank));
    ck_assert(!ls_fork_server_start(NULL, &a.spec, &rank));
    ck_assert_int_eq(kill(server.process.pid, SIGKILL), 0);
    ck_assert(!ls_fork_server_start(&server, &a.spec, &rank));
    ck_assert_int_lt(server.socket, 0);
    ls_words_free(&a.words);
    ls_fork_server_close(&server);
}

TEST_MAIN("fork_server", .timeout_s = 200, .begin = setup, .end = teardown)
