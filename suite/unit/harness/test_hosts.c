/* Lists of hosts: how they are parsed, and the message for a wrong one. */
#include <check.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/hosts/hosts.h"
#include "harness/hosts/probe.h"
#include "harness/hosts/remote.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"

START_TEST(list)
{
    ls_hosts hosts;
    ck_assert_int_eq(ls_hosts_parse_list("a,user@b.example,10.0.0.1,fe80::1%eth0", &hosts), LS_OK);
    ck_assert_int_eq(hosts.count, 4);
    ck_assert_str_eq(hosts.host[1].name, "user@b.example");
    ck_assert_str_eq(hosts.host[3].name, "fe80::1%eth0");
    ck_assert_int_eq(hosts.by, LS_HOSTS_SSH);
    char text[64];
    ls_hosts_describe(&hosts, text, sizeof text);
    ck_assert_str_eq(text, "a, user@b.example and 2 more");
}
END_TEST

START_TEST(file)
{
    ls_hosts hosts;
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
END_TEST

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

START_TEST(wrong_ones)
{
    const mistake *m = &mistakes[_i];
    ls_hosts hosts;
    catch_lines();
    ls_status status = m->is_list ? ls_hosts_parse_list(m->text, &hosts)
                                  : ls_hosts_parse_text("hosts", m->text, &hosts);
    const char *said = caught_text();
    ck_assert_int_eq(status, LS_ERR_USAGE);
    ck_assert_msg(strstr(said, m->said) != NULL, "'%s' is not in '%s'", m->said, said);
    ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1); /* one line */
}
END_TEST

START_TEST(too_many)
{
    char *text = calloc(LS_HOSTS_MAX + 2, 16);
    ck_assert_ptr_nonnull(text);
    for (int i = 0, used = 0; i < LS_HOSTS_MAX; i++) {
        used += sprintf(text + used, "host%d\n", i);
    }
    ls_hosts hosts;
    ck_assert_int_eq(ls_hosts_parse_text("hosts", text, &hosts), LS_OK);
    ck_assert_int_eq(hosts.count, LS_HOSTS_MAX);
    strcat(text, "more\n");
    ck_assert_int_eq(ls_hosts_parse_text("hosts", text, &hosts), LS_ERR_USAGE);
    free(text);
}
END_TEST

START_TEST(outside_slurm)
{
    ls_hosts hosts;
    unsetenv("SLURM_JOB_ID");
    ck_assert_int_eq(ls_hosts_read_slurm(&hosts), LS_ERR_USAGE);
}
END_TEST

/* ---- a host's order
 * ------------------------------------------------------------------------------ */

START_TEST(orders_of_a_bench)
{
    static const struct {
        const char *order;
        ls_status status;
        const char *a, *cwd; /* afterwards */
    } rows[] = {
        {"{\"schema\":1,\"environment\":{}}", LS_OK, "old", "/"},
        {"{\"schema\":1,\"directory\":\"/usr\",\"environment\":{\"A\":\"x=y\",\"_b9\":\"\"}}",
         LS_OK, "x=y", "/usr"},
        {"{\"schema\":2,\"environment\":{\"A\":\"x\"}}", LS_ERR_USAGE, "old", "/"},
        {"{\"environment\":{\"A\":\"x\"}}", LS_ERR_USAGE, "old", "/"},
        {"{\"schema\":1}", LS_ERR_USAGE, "old", "/"},
        {"{\"schema\":1,\"environment\":[]}", LS_ERR_USAGE, "old", "/"},
        {"{", LS_ERR_USAGE, "old", "/"},
        {"", LS_ERR_USAGE, "old", "/"},
        {"{\"schema\":1,\"directory\":\"/nonexistent\",\"environment\":{\"A\":\"x\"}}",
         LS_ERR_INFRA, "old", "/"},
        {"{\"schema\":1,\"environment\":{\"A\":\"x\",\"\":\"x\"}}", LS_ERR_USAGE, "old", "/"},
        {"{\"schema\":1,\"environment\":{\"A\":\"x\",\"9b\":\"x\"}}", LS_ERR_USAGE, "old", "/"},
        {"{\"schema\":1,\"environment\":{\"A\":\"x\",\"0b\":\"x\"}}", LS_ERR_USAGE, "old", "/"},
        {"{\"schema\":1,\"environment\":{\"A\":\"x\",\"B=\":\"x\"}}", LS_ERR_USAGE, "old", "/"},
        {"{\"schema\":1,\"environment\":{\"A\":\"x\",\"B\":1}}", LS_ERR_USAGE, "old", "/"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int piped = 0; piped < 2; piped++) {
            char cwd[64], rest[8];
            int ends[2];
            setenv("A", "old", 1);
            unsetenv("_b9");
            ck_assert_int_eq(chdir("/"), 0);
            if (piped) { /* read up to its newline; what follows is left */
                ck_assert_int_eq(pipe(ends), 0);
                ck_assert_int_ge(dprintf(ends[1], "%s\nmore", rows[i].order), 5);
                close(ends[1]);
                ck_assert_int_eq(ls_remote_session_read_order(ends[0]), rows[i].status);
                ck_assert_int_eq(read(ends[0], rest, sizeof rest), 4);
                ck_assert_mem_eq(rest, "more", 4);
                close(ends[0]);
            } else {
                ck_assert_int_eq(ls_remote_session_apply(rows[i].order), rows[i].status);
            }
            ck_assert_str_eq(getenv("A"), rows[i].a);
            ck_assert_int_eq(getenv("_b9") != NULL, i == 1);
            ck_assert_str_eq(getcwd(cwd, sizeof cwd), rows[i].cwd);
        }
    }
    int ends[2]; /* the bench ends in the middle */
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(write(ends[1], rows[0].order, 9), 9);
    close(ends[1]);
    ck_assert_int_eq(ls_remote_session_read_order(ends[0]), LS_ERR_USAGE);
    close(ends[0]);
}
END_TEST

START_TEST(ranks_of_a_host)
{
    static const int rows[][3] = {{0, 1, 1}, {0, 7, 7}, {0, 8, 8},
                                  {0, 9, 8}, {1, 9, 1}, {16, 2, 16}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ck_assert_int_eq(ls_probe_usual_ranks(rows[i][0], rows[i][1]), rows[i][2]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("hosts");
    TCase *tests = tcase_create("hosts");
    tcase_add_test(tests, list);
    tcase_add_test(tests, file);
    tcase_add_loop_test(tests, wrong_ones, 0, (int)(sizeof mistakes / sizeof *mistakes));
    tcase_add_test(tests, too_many);
    tcase_add_test(tests, outside_slurm);
    tcase_add_test(tests, orders_of_a_bench);
    tcase_add_test(tests, ranks_of_a_host);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
