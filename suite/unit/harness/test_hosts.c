/* Lists of hosts: how they are parsed, and the message for a wrong one. */
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "kernels/core/cores.h"
#include "harness/hosts/hosts.h"
#include "harness/hosts/probe.h"
#include "harness/machine/machine.h"
#include "kernels/core/json.h"
#include "suite/unit/caught.h"
#include "suite/unit/harness/played_ssh.h"
#include "suite/unit/run_suite.h"

static ls_hosts hosts;

TEST(list)
{
    ck_assert_int_eq(ls_hosts_parse_list("a,user@b.example,10.0.0.1,fe80::1%eth0", &hosts), LS_OK);
    ck_assert_int_eq(hosts.count, 4);
    ck_assert_str_eq(hosts.host[1].name, "user@b.example");
    ck_assert_str_eq(hosts.host[3].name, "fe80::1%eth0");
    ck_assert_int_eq(hosts.by, LS_HOSTS_SSH);
    char text[64];
    ls_hosts_describe(&hosts, text, sizeof text);
    ck_assert_str_eq(text, "a, b.example and 2 more");
}

TEST(file)
{
    const char *text = "# two racks\n\n a slots=4   # the first\r\nb\tslots=4\n";
    ck_assert_int_eq(ls_hosts_parse_text("hosts", text, &hosts), LS_OK);
    ck_assert_int_eq(hosts.count, 2);
    ck_assert_str_eq(hosts.host[0].name, "a");
    ck_assert_str_eq(hosts.host[1].name, "b");
    ck_assert_int_eq(hosts.host[1].slots, 4);
    int ranks;
    ck_assert_int_eq(ls_hosts_ranks(&hosts, 0, &ranks), LS_OK);
    ck_assert_int_eq(ranks, 4);
    ck_assert_int_eq(ls_hosts_ranks(&hosts, 3, &ranks), LS_OK);
    ck_assert_int_eq(ranks, 3);
    ck_assert_int_eq(ls_hosts_ranks(&hosts, 5, &ranks), LS_ERR_USAGE);
    hosts.host[0].slots = 2;
    ck_assert_int_eq(ls_hosts_ranks(&hosts, 0, &ranks), LS_ERR_USAGE);
}

typedef struct mistake {
    bool is_list;
    const char *text, *said;
} mistake;

static const mistake mistakes[] = {
    {true, "a,,b", "'' is not a host name"},
    {true, "a,", "'' is not a host name"},
    {true, "-oProxyCommand=x", "'-oProxyCommand=x' is not a host name"},
    {true, "a,b;reboot", "'b;reboot' is not a host name"},
    {true, "a,b,a", "host a is listed twice"},
    {false, "a\nb slots=0\n", "hosts line 2: 'slots=0' after the host"},
    {false, "a slots=x\n", "hosts line 1: 'slots=x' after the host"},
    {false, "a slots=99999999999999999999\n", "after the host, allowed: slots=N, N from 1 to"},
    {false, "a\n\n# x\nb slot=2\n", "hosts line 4: 'slot=2' after the host"},
    {false, "a slots=2 slots=3\n", "hosts line 1: 'slots=3' after the host"},
    {false, "a$(x)\n", "hosts line 1: 'a$(x)' is not a host name"},
    {false, "# none\n", "hosts contains no host"},
    {false, "", "hosts contains no host"},
};

ROWS_TEST(wrong_ones, mistakes)
{
    const mistake *m = &mistakes[_i];
    catch_lines();
    ls_status status = m->is_list ? ls_hosts_parse_list(m->text, &hosts)
                                  : ls_hosts_parse_text("hosts", m->text, &hosts);
    const char *said = caught_text();
    ck_assert_int_eq(status, LS_ERR_USAGE);
    ck_assert_msg(strstr(said, m->said) != NULL, "'%s' is not in '%s'", m->said, said);
    ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1); /* one line */
}

TEST(too_many)
{
    char *text = calloc(LS_HOSTS_MAX + 2, 16);
    ck_assert_ptr_nonnull(text);
    for (int i = 0, used = 0; i < LS_HOSTS_MAX; i++) {
        used += sprintf(text + used, "host%d\n", i);
    }
    ck_assert_int_eq(ls_hosts_parse_text("hosts", text, &hosts), LS_OK);
    ck_assert_int_eq(hosts.count, LS_HOSTS_MAX);
    strcat(text, "more\n");
    ck_assert_int_eq(ls_hosts_parse_text("hosts", text, &hosts), LS_ERR_USAGE);
    free(text);
}

TEST(outside_slurm)
{
    unsetenv("SLURM_JOB_ID");
    ck_assert_int_eq(ls_hosts_read_slurm(&hosts), LS_ERR_USAGE);
}

/* ---- a host's order ---------------------------------------------------------------------------
 */

TEST(orders_of_a_bench)
{
    static const char form[] = "the first line of standard input is not an order: expected a JSON "
                               "object with schema 1 and environment\n";
#define BAD_NAME(name) \
    "the order on standard input: variable '" name "' is not a name with a text\n"
    static const struct {
        const char *order;
        ls_status status;
        const char *a, *cwd; /* afterwards */
        const char *said;
    } rows[] = {
        {"{\"schema\":1,\"environment\":{}}", LS_OK, "old", "/", ""},
        {"{\"schema\":1,\"directory\":\"/usr\",\"environment\":{\"A\":\"x=y\",\"_b9\":\"\"}}",
         LS_OK, "x=y", "/usr", ""},
        {"{\"schema\":2,\"environment\":{\"A\":\"x\"}}", LS_ERR_USAGE, "old", "/", form},
        {"{\"environment\":{\"A\":\"x\"}}", LS_ERR_USAGE, "old", "/", form},
        {"{\"schema\":1}", LS_ERR_USAGE, "old", "/", form},
        {"{\"schema\":1,\"environment\":[]}", LS_ERR_USAGE, "old", "/", form},
        {"{", LS_ERR_USAGE, "old", "/", form},
        {"", LS_ERR_USAGE, "old", "/", form},
        {"{\"schema\":1,\"directory\":\"/nonexistent\",\"environment\":{\"A\":\"x\"}}",
         LS_ERR_INFRA, "old", "/",
         "cannot change to /nonexistent on this machine: No such file or directory\n"},
        {"{\"schema\":1,\"environment\":{\"A\":\"x\",\"\":\"x\"}}", LS_ERR_USAGE, "old", "/",
         BAD_NAME("")},
        {"{\"schema\":1,\"environment\":{\"A\":\"x\",\"9b\":\"x\"}}", LS_ERR_USAGE, "old", "/",
         BAD_NAME("9b")},
        {"{\"schema\":1,\"environment\":{\"A\":\"x\",\"0b\":\"x\"}}", LS_ERR_USAGE, "old", "/",
         BAD_NAME("0b")},
        {"{\"schema\":1,\"environment\":{\"A\":\"x\",\"B=\":\"x\"}}", LS_ERR_USAGE, "old", "/",
         BAD_NAME("B=")},
        {"{\"schema\":1,\"environment\":{\"A\":\"x\",\"B c\":\"x\"}}", LS_ERR_USAGE, "old", "/",
         BAD_NAME("B c")},
        {"{\"schema\":1,\"environment\":{\"A\":\"x\",\"B\":1}}", LS_ERR_USAGE, "old", "/",
         BAD_NAME("B")},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        LS_TEXT(want, 300, "%s%s", rows[i].status == LS_OK ? "" : "error: ", rows[i].said);
        for (int piped = 0; piped < 2; piped++) {
            char cwd[64], rest[8];
            int ends[2];
            cJSON *apart = NULL;
            setenv("A", "old", 1);
            unsetenv("_b9");
            ck_assert_int_eq(chdir("/"), 0);
            catch_lines();
            if (piped) { /* read up to its newline; what follows is left */
                ck_assert_int_eq(pipe(ends), 0);
                ck_assert_int_ge(dprintf(ends[1], "%s\nmore", rows[i].order), 5);
                close(ends[1]);
                ck_assert_int_eq(ls_remote_session_read_order(ends[0], &apart), rows[i].status);
                ck_assert_int_eq(read(ends[0], rest, sizeof rest), 4);
                ck_assert_mem_eq(rest, "more", 4);
                close(ends[0]);
            } else {
                ck_assert_int_eq(ls_remote_session_apply(rows[i].order, &apart), rows[i].status);
            }
            ck_assert_ptr_null(apart);
            ck_assert_str_eq(caught_lines(), want);
            ck_assert_str_eq(getenv("A"), rows[i].a);
            ck_assert_int_eq(getenv("_b9") != NULL, i == 1);
            ck_assert_str_eq(getcwd(cwd, sizeof cwd), rows[i].cwd);
        }
    }
    int ends[2]; /* the bench ends in the middle */
    cJSON *apart = NULL;
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(write(ends[1], rows[0].order, 9), 9);
    close(ends[1]);
    catch_lines();
    ck_assert_int_eq(ls_remote_session_read_order(ends[0], &apart), LS_ERR_USAGE);
    ck_assert_str_eq(caught_lines(), "error: no complete order on standard input: 9 bytes without "
                                     "a newline (allowed: 60000 within 30 s)\n");
    close(ends[0]);
}

TEST(ranks_of_a_host)
{
    static const int rows[][3] = {{0, 1, 1}, {0, 7, 7}, {0, 8, 8},
                                  {0, 9, 8}, {1, 9, 1}, {16, 2, 16}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ck_assert_int_eq(ls_probe_usual_ranks(rows[i][0], rows[i][1]), rows[i][2]);
    }
}

/* Which variables go to the other machines: those that a run depends on and that are not a
 * machine's own. */
TEST(variables_of_an_order)
{
    static const char *const sent[] = {"PATH",     "LD_X",
                                       "PYTHONX",  "VIRTUAL_ENV",
                                       "CONDA_X",  "LS_X",
                                       "OMP_X",    "NCCL_X",
                                       "CUDA_X",   "CUDNNX",
                                       "TORCH_X",  "CUBLAS_X",
                                       "GLOO_X",   "DNNL_X",
                                       "ONEDNN_X", "KMP_X",
                                       "GOMP_X",   "MKL_X",
                                       "MALLOC_X", "LS_TOKENS",
                                       "LS_SSHX",  "CUDA_VISIBLE_DEVICES"};
    static const char *const own[] = {"LS_TOKEN",        "LS_RUN_DIR", "LS_NODE_ADDR", "LS_SSH",
                                      "OMP_NUM_THREADS", "HOME",       "PATHS",        "XLS_X",
                                      "VIRTUAL_ENVX",    "LD"};
    enum { SENT = sizeof sent / sizeof *sent };
    char want[1200], cwd[512], name[128 + 1];
    ck_assert_ptr_nonnull(getcwd(cwd, sizeof cwd));
    clearenv();
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        setenv(own[i], "own", 1);
    }
    for (size_t i = 0; i < SENT; i++) {
        setenv(sent[i], "x=y", 1);
    }
    memset(name, 'X', sizeof name - 1);
    memcpy(name, "LS_", 3);
    name[sizeof name - 1] = '\0';
    setenv(name, "too long", 1);
    for (int all = 0; all < 2; all++) { /* the devices of ssh's hosts are this host's */
        ls_text_put(want, sizeof want, "{\"schema\":1,\"directory\":\"%s\",\"environment\":{", cwd);
        for (int i = 0; i < SENT - !all; i++) {
            ls_text_add(want, sizeof want, "%s\"%s\":\"x=y\"", i == 0 ? "" : ",", sent[i]);
        }
        ls_text_add(want, sizeof want, "%s}}",
                    all ? ",\"LS_TOKEN\":\"t\",\"LS_RUN_DIR\":\"/r\",\"OMP_NUM_THREADS\":\"1\""
                        : "");
        cJSON *order = ls_remote_session_order(all ? "t" : NULL, all ? "/r" : NULL, all, all);
        char *text = cJSON_PrintUnformatted(order);
        ck_assert_str_eq(text, want);
        cJSON_free(text);
        cJSON_Delete(order);
    }
    name[sizeof name - 2] = '\0'; /* 127 bytes */
    setenv(name, "z", 1);
    cJSON *order = ls_remote_session_order(NULL, NULL, 0, true);
    ck_assert_str_eq(ls_json_string(ls_json_get(order, "environment"), name, ""), "z");
    cJSON_Delete(order);
}

/* The last line of the event, and the last line that is not one. */
TEST(a_report_in_a_log)
{
    static const struct {
        const char *text, *said;
        int of; /* of the report; 0: none */
    } rows[] = {
        {NULL, "", 0},
        {"", "", 0},
        {"\n\r\n", "", 0},
        {"x\r\ny y\n", "y y", 0},
        {"{\"event\":\"e\",\"of\":1}", "", 1},
        {"x\n{\"event\":\"e\",\"of\":1}\r\n{\"event\":\"e\",\"of\":2}\n", "x", 2},
        {"{\"event\":\"e\",\"of\":1}\ny\n{\"event\":\"f\",\"of\":2}\n",
         "{\"event\":\"f\",\"of\":2}", 1},
        {"{\"event\":\"e\",\"of\":1}\n{\"event\":\"e\",\"of\":2\n", "{\"event\":\"e\",\"of\":2", 1},
        {" {\"event\":\"e\",\"of\":1}\n", " {\"event\":\"e\",\"of\":1}", 0},
        {"0123456789012345678901234567890\n", "01234567890123456789012", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char said[24] = "before";
        if (rows[i].text != NULL) {
            play_file("node7", ".log", rows[i].text);
        }
        cJSON *report = ls_remote_report(played, 7, "e", said, sizeof said);
        ck_assert_int_eq(ls_json_int(report, "of", 0), rows[i].of);
        ck_assert_str_eq(said, rows[i].said);
        cJSON_Delete(report);
    }
}

/* ---- probing -------------------------------------------------------------------------------- */

#define ANSWER(name, address, cores, devices, device, ports)                    \
    "{\"event\":\"probe\",\"hostname\":\"" name "\",\"address\":\"" address     \
    "\",\"cpu\":\"cpu of " name "\",\"cores\":" #cores ",\"devices\":" #devices \
    ",\"device\":\"" device "\",\"ports\":[" ports "]}\n"
#define USUAL(name) ANSWER(name, "", 4, 0, "cpu", "20000")

/* The file that would be opened next: the same as before when none is left open. */
static int next_file(void)
{
    int file = dup(STDOUT_FILENO);
    close(file);
    return file;
}

static ls_probe found[2];
static const char *said;

/* Probes hosts whose list is given; `said` is what it logs, and nothing may be left behind. */
static ls_status probe(const char *list, int ranks)
{
    ls_probe_question question = {.folder = played, .device = "auto", .ranks = ranks};
    ck_assert_int_eq(ls_hosts_parse_list(list, &hosts), LS_OK);
    catch_lines();
    ck_assert_int_eq(ls_proc_catch_signals(), LS_OK); /* its file stays */
    int next = next_file();
    ls_status status = ls_probe_hosts(&hosts, &question, found);
    int then = next_file();
    said = caught_lines();
    ck_assert_int_eq(then, next);
    LS_TEXT(left, 200, "ls -A %s | grep -q probe", played);
    ck_assert_int_ne(system(left), 0);
    return status;
}

TEST(answers_of_hosts)
{
    play_host("a", ANSWER("A", "10.0.0.9", 7, 2, "cuda", "0,1,\"2\",65535,65536,-1,30000"), "");
    play_host("b", ANSWER("B", "", 5, 2, "cuda", ""), "");
    hosts.port_count = hosts.port_next = 5;
    ck_assert_int_eq(probe("a,b", 0), LS_OK);
    ck_assert_str_eq(said, "");
    for (int k = 0; k < 2; k++) {
        ck_assert_str_eq(found[k].hostname, k == 0 ? "A" : "B");
        ck_assert_str_eq(found[k].cpu, k == 0 ? "cpu of A" : "cpu of B");
        ck_assert_str_eq(found[k].device, "cuda");
        ck_assert(found[k].cores == (k == 0 ? 7 : 5));
        ck_assert_int_eq(found[k].devices, 2);
    }
    ck_assert_int_eq(hosts.port_next, 0);
    ck_assert_int_eq(hosts.port_count, 3); /* of the first host, those that are ports */
    ck_assert(hosts.port[0] == 1 && hosts.port[1] == 65535 && hosts.port[2] == 30000);
    char many[1000] = "{\"event\":\"probe\",\"ports\":[20000";
    for (int i = 1; i <= LS_HOSTS_PORTS_MAX; i++) {
        ls_text_add(many, sizeof many, ",%d", 20000 + i);
    }
    ls_text_add(many, sizeof many, "]}\n");
    play_host("a", many, "");
    ck_assert_int_eq(probe("a", 0), LS_OK);
    ck_assert_int_eq(hosts.port_count, LS_HOSTS_PORTS_MAX);
    ck_assert_int_eq(hosts.port[LS_HOSTS_PORTS_MAX - 1], 20063);
    ck_assert(found[0].cores == 1); /* what it does not say */
    ck_assert_int_eq(found[0].devices, 0);
    ck_assert_str_eq(found[0].hostname, "");
}

/* Where the others reach host 0, when it is reached by that name and ssh connected to that address.
 */
TEST(address_of_the_first_host)
{
    static const struct {
        const char *name, *address;
        int hosts;
        const char *master;
    } rows[] = {
        {"10.1.2.3", "10.0.0.9", 2, "10.1.2.3"},
        {"user@10.1.2.3", "10.0.0.9", 2, "10.1.2.3"},
        {"u@v@10.1.2.3", "10.0.0.9", 2, "10.1.2.3"},
        {"a..b", "10.0.0.9", 2, "10.0.0.9"}, /* resolves nowhere */
        {"user@a..b", "", 2, "a..b"},
        {"a..b", "127.0.0.1", 2, "127.0.0.1"},
        {"localhost", "10.0.0.9", 1, "localhost"},
        {"localhost", "10.0.0.9", 2, "10.0.0.9"}, /* the other's own */
        {"localhost", "127.0.0.1", 2, "localhost"},
        {"localhost", "", 2, "localhost"},
        {"localhost", "a..b", 2, "a..b"},
        {"127.255.255.254", "10.0.0.9", 2, "10.0.0.9"},
        {"126.255.255.255", "10.0.0.9", 2, "126.255.255.255"},
        {"128.0.0.0", "10.0.0.9", 2, "128.0.0.0"},
        {"localhost", "128.0.0.0", 2, "128.0.0.0"},
        {"localhost", "127.255.255.254", 2, "localhost"},
    };
    play_host("b", USUAL("B"), "");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        LS_TEXT(answer, 200,
                "{\"event\":\"probe\",\"cores\":4,\"device\":\"cpu\",\"address\":\"%s\",\"ports\":["
                "1]}\n",
                rows[i].address);
        LS_TEXT(list, 100, "%s%s", rows[i].name, rows[i].hosts == 2 ? ",b" : "");
        play_host(rows[i].name, answer, "");
        ck_assert_int_eq(probe(list, 0), LS_OK);
        ck_assert_msg(strcmp(hosts.master_address, rows[i].master) == 0, "%s, %s: %s", rows[i].name,
                      rows[i].address, hosts.master_address);
    }
}

TEST(answers_that_do_not_do)
{
    char launcher[1024];
    ls_remote_launcher(NULL, launcher, sizeof launcher);
    *strrchr(launcher, '/') = '\0';
    static const char no_program[] = "host b did not take the programs: not found\n";
    LS_TEXT(other_build, 1200, "host b has another build in %s: 12, here %s\n", launcher,
            own_build());
    LS_TEXT(no_build, 1200, "host b has another build in %s: an unknown one, here %s\n", launcher,
            own_build());
    const struct {
        const char *a, *b, *ends; /* the end of b's channel */
        int ranks;
        ls_status status;
        const char *said; /* "": nothing */
    } rows[] = {
        {USUAL("A"), USUAL("B"), "", 0, LS_OK, ""},
        {USUAL("A"), USUAL("B"), "exit 3", 0, LS_OK, ""},
        {USUAL("A"), "", "exit 255", 0, LS_ERR_INFRA, "host b cannot be reached: no output\n"},
        {USUAL("A"), "x\nrefused\n", "exit 255", 0, LS_ERR_INFRA,
         "host b cannot be reached: refused\n"},
        {USUAL("A"), "not found\n", "exit 126", 0, LS_ERR_INFRA, no_program},
        {USUAL("A"), "not found\n", "exit 127", 0, LS_ERR_INFRA, no_program},
        {USUAL("A"), "{\"build\":\"12\",\"event\":\"probe\"}\n", "", 0, LS_ERR_INFRA, other_build},
        {USUAL("A"), "{\"cores\":4,\"event\":\"probe\"}\n", "", 0, LS_ERR_INFRA, no_build},
        {USUAL("A"), "not found\n", "exit 125", 0, LS_ERR_INFRA,
         "host b cannot be reached: not found\n"},
        {USUAL("A"), "x\n", "kill -9 $$", 0, LS_ERR_INFRA, "host b cannot be reached: x\n"},
        {USUAL("A"), "lockstep-launch: error: no device\n", "exit 3", 0, LS_ERR_INFRA,
         "host b: no device\n"},
        {USUAL("A"), "lockstep-launch: error:\n", "exit 3", 0, LS_ERR_INFRA,
         "host b cannot be reached: lockstep-launch: error:\n"},
        {ANSWER("A", "", 4, 0, "cpu", ""), USUAL("B"), "", 0, LS_ERR_INFRA,
         "host a has no free port from 20000 to 31999\n"},
        {USUAL("A"), ANSWER("B", "", 4, 0, "cuda", ""), "", 0, LS_ERR_INFRA,
         "host a would run on cpu, host b on cuda (DEVICE=cpu forces the CPU)\n"},
        {USUAL("A"), ANSWER("B", "", 3, 0, "cpu", ""), "", 0, LS_ERR_USAGE,
         "host a would run 4 ranks, host b 3; set the number with NGPUS\n"},
        {USUAL("A"), ANSWER("B", "", 4, 2, "cpu", ""), "", 0, LS_ERR_USAGE,
         "host a would run 4 ranks, host b 2; set the number with NGPUS\n"},
        {USUAL("A"), ANSWER("B", "", 3, 2, "cpu", ""), "", 1, LS_OK, ""},
        {USUAL("A"), USUAL("B"), "kill $PPID; cat", 0, LS_ERR_INFRA,
         "stopped by signal 15 while the hosts were probed\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        /* the last to answer: a host that fails does not shorten its time */
        play_host("a", "", "sleep 0.03; cat \"$here/answer\"");
        play_file("answer", "", rows[i].a);
        play_host("b", rows[i].b, rows[i].ends);
        ck_assert_int_eq(probe("a,b", rows[i].ranks), rows[i].status);
        LS_TEXT(want, 1300, "%s%s", rows[i].said[0] == '\0' ? "" : "error: ", rows[i].said);
        ck_assert_str_eq(said, want);
    }
}

/* LS_SSH is the command and its first options; blanks are none. */
TEST(another_ssh)
{
    static const char *const rows[][2] = {
        {"", "-T\n"}, {"  ", "-T\n"}, {" ssh  -p 7 ", "-p\n7\n-T\n"}};
    play_host("a", USUAL("A"), "");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        setenv("LS_SSH", rows[i][0], 1);
        ck_assert_int_eq(probe("a", 0), LS_OK);
        char *words = given_to("a", ".words");
        ck_assert_int_eq(strncmp(words, rows[i][1], strlen(rows[i][1])), 0);
        free(words);
    }
}

/* The words of a host's channel; its order has no folder, and its token is the marker's content. */
TEST(the_question_to_a_host)
{
    static const char ends[] = "marker=${last#*--probe=} marker=${marker%% *}\n"
                               "stat -c %a \"$marker\" >\"$here/$host.marker\"\n"
                               "cat \"$marker\" >>\"$here/$host.marker\"\n";
    static const char with_ssh[] =
        "-T\n-o\nBatchMode=yes\n-o\nServerAliveInterval=5\n-o\nServerAliveCountMax=3\n"
        "-oConnectTimeout=10\n--\na\nexec %s --env-from-stdin --probe=%s/.probe-%s/marker "
        "--probe-device=auto --probe-ranks=3%s\n";
    static const char with_srun[] =
        "--nodes=1\n--ntasks=1\n--overlap\n--cpu-bind=none\n--unbuffered\n--nodelist=a\n"
        "%s\n--env-from-stdin\n--probe=%s/.probe-%s/marker\n--probe-device=auto\n"
        "--probe-ranks=3%s\n";
    char launcher[1024];
    LS_TEXT(search, 200, "%s:/usr/bin:/bin", played);
    clearenv();
    setenv("PATH", search, 1);
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    ls_remote_launcher(NULL, launcher, sizeof launcher);
    play_host("a", USUAL("A"), ends);
    for (int srun = 0; srun < 2; srun++) {
        hosts = (ls_hosts){.count = 1, .host = {{.name = "a"}}, .port_count = 3, .port_next = 2};
        hosts.by = srun ? LS_HOSTS_SRUN : LS_HOSTS_SSH;
        ls_probe_question question = {
            .folder = played, .device = "auto", .ranks = 3, .oversubscribe = srun};
        ck_assert_int_eq(ls_probe_hosts(&hosts, &question, found), LS_OK);
        ck_assert(hosts.port_count == 1 && hosts.port_next == 0); /* those of this answer */
        char *words = given_to("a", ".words"), *order = given_to("a", ".order");
        char name[17];
        ls_text_put(name, sizeof name, "%s", strstr(words, "/.probe-") + 8);
        ck_assert_int_eq(strspn(name, "0123456789abcdef"), 16);
        LS_TEXT(want, 3000, srun ? with_srun : with_ssh, launcher, played, name,
                srun ? "\n--probe-oversubscribed" : "");
        ck_assert_str_eq(words, want);
        cJSON *sent = cJSON_Parse(order), *environment = cJSON_GetObjectItem(sent, "environment");
        ck_assert_ptr_null(cJSON_GetObjectItem(sent, "directory"));
        ck_assert_ptr_null(cJSON_GetObjectItem(environment, "LS_RUN_DIR"));
        ck_assert_ptr_null(cJSON_GetObjectItem(environment, "OMP_NUM_THREADS"));
        ck_assert_str_eq(ls_json_string(environment, "CUDA_VISIBLE_DEVICES", "-"),
                         srun ? "-" : "1");
        const char *token = ls_json_string(environment, "LS_TOKEN", "");
        ck_assert_int_eq(strspn(token, "0123456789abcdef"), 32);
        ck_assert_int_ne(strncmp(token, name, 16), 0); /* the folder's name is seen by others */
        LS_TEXT(marker, 100, "600\n%s", token);
        if (!srun) { /* srun's last word is another */
            char *seen = given_to("a", ".marker");
            ck_assert_str_eq(seen, marker);
            free(seen);
        }
        cJSON_Delete(sent);
        free(words);
        free(order);
    }
}

/* What ls_probe_answer prints, on the host. */
static cJSON *answer_here(const char *marker, ls_status want)
{
    FILE *file = tmpfile();
    int output = dup(STDOUT_FILENO);
    fflush(stdout);
    dup2(fileno(file), STDOUT_FILENO);
    ls_status status = ls_probe_answer(marker, "cpu", 1, true);
    dup2(output, STDOUT_FILENO);
    close(output);
    ck_assert_int_eq(status, want);
    static char text[4096];
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    ck_assert_int_eq(text[0] == '\0', want != LS_OK);
    return cJSON_Parse(text);
}

/* Ports that are in use here: every other one of those that are offered, where that many files can
 * be open. */
static void hold_ports(bool held[12000])
{
    struct rlimit files;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    for (int i = 0; i < 12000 && files.rlim_cur > 6500; i += 2) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)(20000 + i))};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        held[i] = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
    }
}

TEST(the_answer_of_this_host)
{
    static bool held[12000];
    char hostname[64] = "";
    play_file("marker", "", "token");
    LS_TEXT(marker, 100, "%s/marker", played);
    static const char *const tokens[] = {"tokens", "toke", "", NULL};
    for (int i = 0; i < 5; i++) { /* another disk */
        LS_TEXT(path, 200, "%s%s", marker, i == 4 ? "s" : "");
        (void)(i == 4              ? setenv("LS_TOKEN", "token", 1)
               : tokens[i] == NULL ? unsetenv("LS_TOKEN")
                                   : setenv("LS_TOKEN", tokens[i], 1));
        cJSON *answer = answer_here(path, LS_OK);
        ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(answer, "shared")));
        cJSON_Delete(answer);
    }
    ck_assert_int_eq(gethostname(hostname, sizeof hostname - 1), 0);
    for (int i = 0; i < 2; i++) {
        unsetenv("SSH_CONNECTION");
        if (i == 1) { /* "client port server port", sshd(8) */
            setenv("SSH_CONNECTION", "10.0.0.1 1234 10.0.0.7 22", 1);
        }
        if (i == 1) {
            hold_ports(held);
        }
        int next = next_file();
        cJSON *answer = answer_here(marker, LS_OK), *machine = ls_machine_fingerprint();
        int then = next_file();
        ck_assert_int_eq(then, next); /* no file is left open */
        ls_machine_device devices[LS_MACHINE_DEVICES_MAX];
        ck_assert_str_eq(ls_json_string(answer, "event", ""), "probe");
        ck_assert_str_eq(ls_json_string(answer, "hostname", ""), hostname);
        ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(answer, "shared")));
        ck_assert_str_eq(ls_json_string(answer, "build", ""), own_build());
        ck_assert_str_eq(ls_json_string(answer, "address", "?"), i == 1 ? "10.0.0.7" : "");
        ck_assert_str_eq(ls_json_string(answer, "cpu", "?"), ls_json_string(machine, "cpu", ""));
        ck_assert_str_eq(ls_json_string(answer, "device", ""), "cpu");
        ck_assert(ls_json_number(answer, "cores", 0) == ls_cores_usable());
        ck_assert_int_eq(ls_json_int(answer, "devices", -1),
                         ls_machine_devices(ls_path_sysfs(), devices));
        const cJSON *ports = cJSON_GetObjectItem(answer, "ports"), *port;
        bool seen[12000] = {false};
        ck_assert_int_eq(cJSON_GetArraySize(ports), LS_HOSTS_PORTS_MAX);
        ls_json_each(port, ports) {
            ck_assert(port->valueint >= 20000 && port->valueint < 32000);
            ck_assert(!seen[port->valueint - 20000] && !held[port->valueint - 20000]);
            seen[port->valueint - 20000] = true;
        }
        cJSON_Delete(answer);
        cJSON_Delete(machine);
    }
}

TEST_MAIN("hosts", .before = play_begin, .after = play_end)
