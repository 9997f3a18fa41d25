/* Simulated nodes with a network of their own: the commands that make it, and, where this machine
 * lets us, that the nodes reach each other and nothing else, and that nothing is left behind. */
#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/hosts/simnet.h"
#include "suite/unit/run_suite.h"

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

START_TEST(script)
{
    ls_simnet net = {.nodes = 2, .owner = 12};
    char *text = ls_simnet_script(&net);
    ck_assert_str_eq(text, "ip netns add ls-12-hub\n"
                           "ip -n ls-12-hub link add br0 type bridge\n"
                           "ip -n ls-12-hub link set br0 up\n" NODE("0", "10.213.0.1")
                               NODE("1", "10.213.0.2"));
    free(text);
}
END_TEST

static bool exists(int owner, const char *which)
{
    char path[64];
    snprintf(path, sizeof path, "/run/netns/ls-%d-%s", owner, which);
    return access(path, F_OK) == 0;
}

START_TEST(not_root)
{
    ls_simnet net;
    bool was_root = geteuid() == 0;
    if (was_root) {
        ck_assert_int_eq(seteuid(65534), 0);
    }
    ck_assert_int_eq(ls_simnet_open(2, &net), LS_ERR_INFRA);
    if (was_root) { /* what looks for leaks at exit needs to be it */
        ck_assert_int_eq(seteuid(0), 0);
    }
}
END_TEST

START_TEST(no_programs)
{
    ls_simnet net;
    setenv("PATH", "/nonexistent", 1);
    ck_assert_int_eq(ls_simnet_open(2, &net), LS_ERR_INFRA);
    ck_assert(!exists((int)getpid(), "hub"));
}
END_TEST

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

START_TEST(nodes_reach_each_other)
{
    ls_simnet net = {.nodes = 0};
    int owner = (int)getpid();
    ls_status status = ls_simnet_open(2, &net);
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
        _exit(ls_simnet_open(1, &other) == LS_OK ? 0 : 1);
    }
    int state;
    ck_assert_int_eq(waitpid(dead, &state, 0), dead);
    ck_assert_int_eq(WEXITSTATUS(state), 0);
    ck_assert(exists(dead, "hub") && exists(dead, "0"));
    ls_simnet_clean();
    ck_assert(!exists(dead, "hub") && !exists(dead, "0"));
    ck_assert(exists(owner, "0"));
    ls_simnet_close(&net);
    ck_assert(!exists(owner, "hub") && !exists(owner, "0") && !exists(owner, "1"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("simnet");
    TCase *tests = tcase_create("simnet");
    tcase_set_timeout(tests, 40);
    tcase_add_test(tests, script);
    tcase_add_test(tests, not_root);
    tcase_add_test(tests, no_programs);
    tcase_add_test(tests, nodes_reach_each_other);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
