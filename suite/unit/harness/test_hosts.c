/* Lists of hosts: how they are parsed, and the message for a wrong one. */
#include <check.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/hosts/hosts.h"
#include "suite/unit/run_suite.h"

/* Redirects the log to a file; said_end returns its text. */
static int said_begin(void)
{
    FILE *file = tmpfile();
    ck_assert_ptr_nonnull(file);
    int old = dup(STDERR_FILENO);
    ck_assert_int_ge(dup2(fileno(file), STDERR_FILENO), 0);
    fclose(file);
    return old;
}

static void said_end(int old, char *text, size_t bytes)
{
    lseek(STDERR_FILENO, 0, SEEK_SET);
    ssize_t got = read(STDERR_FILENO, text, bytes - 1);
    text[got > 0 ? got : 0] = '\0';
    dup2(old, STDERR_FILENO);
    close(old);
}

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
    char said[1024];
    int old = said_begin();
    ls_status status = m->is_list ? ls_hosts_parse_list(m->text, &hosts)
                                  : ls_hosts_parse_text("hosts", m->text, &hosts);
    said_end(old, said, sizeof said);
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

int main(void)
{
    Suite *suite = suite_create("hosts");
    TCase *tests = tcase_create("hosts");
    tcase_add_test(tests, list);
    tcase_add_test(tests, file);
    tcase_add_loop_test(tests, wrong_ones, 0, (int)(sizeof mistakes / sizeof *mistakes));
    tcase_add_test(tests, too_many);
    tcase_add_test(tests, outside_slurm);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
