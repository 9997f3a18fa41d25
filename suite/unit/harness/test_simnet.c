/* Simulated nodes with a network of their own: the commands that make it, and, where this machine
 * lets us, that the nodes reach each other and nothing else, and that nothing is left behind. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "harness/hosts/simnet.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"

static const ls_link usual = {0, 0, true}; /* of the rate and delay that simnet.h names */

#define NODE(k, address)                                                                      \
    "ip netns add ls-12-" k "\n"                                                              \
    "ip -n ls-12-" k " link add eth0 type veth peer name port" k " netns ls-12-hub\n"         \
    "ip -n ls-12-hub link set port" k " master br0 up\n"                                      \
    "ip -n ls-12-" k " addr add " address "/24 dev eth0\n"                                    \
    "ip -n ls-12-" k " link set lo up\n"                                                      \
    "ip -n ls-12-" k " link set eth0 up\n"                                                    \
    "if tc -n ls-12-" k " qdisc add dev eth0 root netem rate 10gbit delay 50us limit 10000 "  \
    "2>/dev/null\n"                                                                           \
    "then echo netem\n"                                                                       \
    "else tc -n ls-12-" k " qdisc add dev eth0 root tbf rate 10gbit burst 2mb latency 10ms; " \
    "echo tbf; fi\n"

TEST(script)
{
    ls_simnet net = {.nodes = 2, .owner = 12};
    char *text = ls_simnet_script(&net);
    ck_assert_str_eq(text, "ip netns add ls-12-hub\n"
                           "ip -n ls-12-hub link add br0 type bridge\n"
                           "ip -n ls-12-hub link set br0 up\n" NODE("0", "10.213.0.1")
                               NODE("1", "10.213.0.2"));
    free(text);
}

TEST(script_of_another_link)
{
    static const struct {
        const char *text, *netem, *tbf;
    } rows[] = {
        {"1Gbit,1ms", "netem rate 1gbit delay 1000us", "tbf rate 1gbit burst 0.2mb"},
        {"100Mbit,50us", "netem rate 0.1gbit delay 50us", "tbf rate 0.1gbit burst 0.125mb"},
        {"2.5Gbit,0ms", "netem rate 2.5gbit delay 0us", "tbf rate 2.5gbit burst 0.5mb"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_simnet net = {.nodes = 2, .owner = 12};
        ck_assert(ls_simnet_link(rows[i].text, &net.link) && net.link.in_bits);
        char *text = ls_simnet_script(&net);
        ck_assert_msg(strstr(text, rows[i].netem) && strstr(text, rows[i].tbf), "%s", text);
        free(text);
    }
    static const char *const none[] = {
        "1Gbit",      "0Gbit,1ms", "1Gbit,-1ms",  "1Gbit,1s",    "Gbit,1ms",
        "1Gbit,1ms,", "1Tbit,1ms", "nanGbit,1ms", "1Gbit,infms", ""};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        ls_link link;
        ck_assert_msg(!ls_simnet_link(none[i], &link), "%s", none[i]);
    }
}

static bool exists(int owner, const char *which)
{
    char path[64];
    snprintf(path, sizeof path, "/run/netns/ls-%d-%s", owner, which);
    return access(path, F_OK) == 0;
}

TEST(not_root)
{
    ls_simnet net;
    bool was_root = geteuid() == 0;
    if (was_root) {
        ck_assert_int_eq(seteuid(65534), 0);
    }
    ck_assert_int_eq(ls_simnet_open(2, &usual, &net), LS_ERR_INFRA);
    if (was_root) { /* what looks for leaks at exit needs to be it */
        ck_assert_int_eq(seteuid(0), 0);
    }
}

/* 0 when a child inside the node's namespace reached that address within a second. */
static int reach(const char *node, const char *address, int port)
{
    pid_t pid = fork();
    if (pid == 0) {
        char path[64];
        snprintf(path, sizeof path, "/run/netns/%s", node);
        int space = open(path, O_RDONLY | O_CLOEXEC);
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        inet_pton(AF_INET, address, &at.sin_addr);
        if (space < 0 || setns(space, CLONE_NEWNET) != 0) {
            _exit(3);
        }
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), error = 0;
        socklen_t bytes = sizeof error;
        if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0 && errno != EINPROGRESS) {
            _exit(1);
        }
        struct pollfd polled = {.fd = fd, .events = POLLOUT};
        bool done = poll(&polled, 1, 1000) == 1 &&
                    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 && error == 0;
        _exit(done ? 0 : 1);
    }
    int state;
    ck_assert_int_eq(waitpid(pid, &state, 0), pid);
    return WEXITSTATUS(state);
}

/* A listener inside the namespace of that node, or here for NULL. */
static int listen_in(const char *node, int *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t bytes = sizeof at;
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (node != NULL) {
        char path[64];
        snprintf(path, sizeof path, "/run/netns/%s", node);
        int space = open(path, O_RDONLY | O_CLOEXEC);
        ck_assert_int_eq(setns(space, CLONE_NEWNET), 0);
        close(space);
    }
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    *port = ntohs(at.sin_port);
    ck_assert_int_eq(setns(home, CLONE_NEWNET), 0);
    close(home);
    return fd;
}

TEST(nodes_reach_each_other)
{
    ls_simnet net = {.nodes = 0};
    int owner = (int)getpid();
    ls_status status = ls_simnet_open(2, &usual, &net);
    if (status != LS_OK) { /* not allowed here: said in a line, and nothing is left */
        ck_assert_int_eq(status, LS_ERR_INFRA);
        ck_assert(!exists(owner, "hub") && !exists(owner, "0"));
        return;
    }
    char first[32], second[32], address[32];
    ls_simnet_name(&net, 0, first, sizeof first);
    ls_simnet_name(&net, 1, second, sizeof second);
    ls_simnet_address(1, address, sizeof address);
    ck_assert(exists(owner, "hub") && exists(owner, "0") && exists(owner, "1"));
    int port, here_port;
    int fd = listen_in(second, &port), here = listen_in(NULL, &here_port);
    ck_assert_int_eq(reach(first, address, port), 0);
    ck_assert_int_eq(reach(first, "127.0.0.1", here_port), 1); /* not this machine's loopback */
    close(fd);
    close(here);
    /* an owner that died without a word: the next one cleans up */
    pid_t dead = fork();
    if (dead == 0) {
        ls_simnet other;
        _exit(ls_simnet_open(1, &usual, &other) == LS_OK ? 0 : 1);
    }
    int state;
    ck_assert_int_eq(waitpid(dead, &state, 0), dead);
    ck_assert_int_eq(WEXITSTATUS(state), 0);
    ck_assert(exists(dead, "hub") && exists(dead, "0"));
    ls_simnet_clean(0);
    ck_assert(!exists(dead, "hub") && !exists(dead, "0"));
    ck_assert(exists(owner, "0"));
    ls_simnet_close(&net);
    ck_assert(!exists(owner, "hub") && !exists(owner, "0") && !exists(owner, "1"));
}

/* ---- with played programs, in a /run/netns that only this test sees ------------------------- */

/* ip keeps what it is asked for; a namespace is a file. */
static const char played_ip[] = "#!/bin/sh\n"
                                "here=${0%/*}\n"
                                "echo \"$*\" >>\"$here/asked\"\n"
                                "case $* in\n"
                                "*'link add eth0'*) problem=broken ;;\n"
                                "'netns del'*) problem=stuck ;;\n"
                                "esac\n"
                                "if [ -n \"$problem\" ] && [ -e \"$here/$problem\" ]; then\n"
                                "    echo first; echo \"ip: $problem\" >&2; exit 1\n"
                                "fi\n"
                                "case $* in\n"
                                "'netns add'*) touch \"/run/netns/$3\" ;;\n"
                                "'netns del'*) rm \"/run/netns/$3\" ;;\n"
                                "esac\n";
static const char played_tc[] = "#!/bin/sh\n"
                                "case $* in *netem*) [ ! -e \"${0%/*}/no_netem\" ] ;; esac\n";

static char folder[64];

static void put(const char *name, const char *text)
{
    LS_TEXT(path, 200, "%s%s%s", name[0] == '/' ? "" : folder, name[0] == '/' ? "" : "/", name);
    FILE *file = fopen(path, "we");
    ck_assert_msg(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0, "%s", path);
    ck_assert_int_eq(chmod(path, 0755), 0);
}

/* What ip was asked for since the last time, sorted; the caller frees it. */
static char *asked(void)
{
    LS_TEXT(sort, 300, "cd %s && touch asked && LC_ALL=C sort asked >sorted && rm asked", folder);
    LS_TEXT(path, 200, "%s/sorted", folder);
    ck_assert_int_eq(system(sort), 0);
    char *text = ls_text_read(path);
    ck_assert_ptr_nonnull(text);
    return text;
}

static void check_asked(const char *want)
{
    char *text = asked();
    ck_assert_str_eq(text, want);
    free(text);
}

static bool play_programs(void)
{
    snprintf(folder, sizeof folder, "/tmp/ls_simnet_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    put("ip", played_ip);
    put("tc", played_tc);
    put("nsenter", "#!/bin/sh\n");
    LS_TEXT(path, 200, "%s:/usr/sbin:/usr/bin:/sbin:/bin", folder);
    setenv("PATH", path, 1);
    (void)mkdir("/run/netns", 0755);
    return geteuid() == 0 && unshare(CLONE_NEWNS) == 0 &&
           mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", "/run/netns", "tmpfs", 0, NULL) == 0;
}

static void leave(int owner, const char *rest)
{
    LS_TEXT(path, 100, "/run/netns/ls-%d%s", owner, rest);
    put(path, "");
}

TEST(with_played_programs)
{
    ls_simnet net = {.nodes = 7, .owner = 7};
    pid_t dead = fork();
    if (dead == 0) {
        _exit(0);
    }
    ck_assert_int_eq(waitpid(dead, NULL, 0), dead);
    if (!play_programs()) { /* not allowed here */
        ls_path_remove_tree(folder);
        return;
    }
    /* those whose process has ended go, and nothing else */
    static const char *const others[] = {"-0x", "-hubs", "", "-x", "-hub-1"};
    for (int i = 0; i < 5; i++) {
        leave(dead, others[i]);
    }
    leave(dead, "-0");
    leave(dead, "-63");
    leave(dead, "-hub");
    leave((int)getpid(), "-0");
    leave(0, "-0");
    put("/run/netns/other", "");
    ls_simnet_clean(0);
    LS_TEXT(want, 1000, "netns del ls-%d-0\nnetns del ls-%d-63\nnetns del ls-%d-hub\n", dead, dead,
            dead);
    check_asked(want);
    ck_assert(exists((int)getpid(), "0") && exists(dead, "0x") && exists(dead, "hub-1"));
    ck_assert_int_eq(unlink("/run/netns/other"), 0);
    /* those of processes that have ended go before */
    leave(dead, "-1");
    LS_TEXT(own, 100, "/run/netns/ls-%d-0", getpid());
    ck_assert_int_eq(unlink(own), 0);
    ck_assert_int_eq(ls_simnet_open(1, &usual, &net), LS_OK);
    ck_assert(net.nodes == 1 && net.owner == (int)getpid());
    ck_assert_str_eq(net.text, "10 Gbit/s, 50 us each way");
    int o = net.owner;
    ls_text_put(want, sizeof want,
                "-n ls-%d-0 addr add 10.213.0.1/24 dev eth0\n"
                "-n ls-%d-0 link add eth0 type veth peer name port0 netns ls-%d-hub\n"
                "-n ls-%d-0 link set eth0 up\n-n ls-%d-0 link set lo up\n"
                "-n ls-%d-hub link add br0 type bridge\n-n ls-%d-hub link set br0 up\n"
                "-n ls-%d-hub link set port0 master br0 up\n"
                "netns add ls-%d-0\nnetns add ls-%d-hub\nnetns del ls-%d-1\n",
                o, o, o, o, o, o, o, o, o, o, dead);
    check_asked(want);
    ck_assert(exists(o, "0") && exists(o, "hub") && !exists(dead, "1"));
    /* closed: only its own go, and once */
    leave(getppid(), "-0");
    ls_simnet_close(&net);
    ck_assert(net.nodes == 0 && net.owner == 0 && net.text[0] == '\0');
    LS_TEXT(removed, 100, "netns del ls-%d-0\nnetns del ls-%d-hub\n", o, o);
    check_asked(removed);
    ls_simnet_close(&net);
    check_asked("");
    ck_assert(exists(getppid(), "0"));
    /* a kernel without netem */
    put("no_netem", "");
    ck_assert_int_eq(ls_simnet_open(1, &usual, &net), LS_OK);
    ck_assert_str_eq(net.text, "10 Gbit/s, no delay: no netem in this kernel");
    ls_simnet_close(&net);
    /* what fails: the last line that was said, and nothing is left */
    put("broken", "");
    catch_lines();
    ck_assert_int_eq(ls_simnet_open(2, &usual, &net), LS_ERR_INFRA);
    ck_assert_str_eq(caught_lines(),
                     "error: SIM_NET=1: cannot make the nodes' network: ip: broken\n");
    ck_assert(!exists(o, "0") && !exists(o, "hub"));
    catch_lines();
    ck_assert_int_eq(ls_simnet_open(64, &usual, &net), LS_ERR_INFRA); /* as many as there may be */
    (void)caught_text();
    catch_lines();
    ck_assert_int_eq(ls_simnet_open(65, &usual, &net), LS_ERR_USAGE);
    ck_assert_str_eq(caught_lines(), "error: SIM_NET=1 with 65 nodes, allowed: 64\n");
    put("stuck", "");
    leave(dead, "-0");
    catch_lines();
    ls_simnet_clean(0);
    LS_TEXT(warning, 200, "warning: cannot remove the network namespace ls-%d-0: ip: stuck\n",
            dead);
    ck_assert_str_eq(caught_lines(), warning);
    ls_path_remove_tree(folder);
}

TEST(what_is_missing_is_named)
{
    ls_simnet net;
    setenv("PATH", "/nonexistent", 1);
    catch_lines();
    ck_assert_int_eq(ls_simnet_open(2, &usual, &net), LS_ERR_INFRA);
    ck_assert_str_eq(caught_lines(),
                     geteuid() == 0
                         ? "error: SIM_NET=1 needs the programs ip, tc (iproute2) and nsenter "
                           "(util-linux)\n"
                         : "error: SIM_NET=1 makes network namespaces and needs root (SIM_NODES "
                           "alone does not)\n");
    ck_assert(!exists((int)getpid(), "hub"));
}

TEST_MAIN("simnet", .timeout_s = 40)
