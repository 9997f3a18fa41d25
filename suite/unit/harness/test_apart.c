/* Nodes that do not share the bench's disk: files over a stream of lines, and jobs on hosts that a
 * script plays here, with folders of their own and the marker of the bench's disk out of sight. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "harness/hosts/apart.h"
#include "harness/hosts/probe.h"
#include "harness/hosts/remote.h"
#include "harness/run/job.h"
#include "kernels/core/clock.h"
#include "kernels/core/file.h"
#include "suite/unit/caught.h"
#include "suite/unit/harness/scratch.h"
#include "suite/unit/run_suite.h"

/* ---- the stream ------------------------------------------------------------------------------ */

static ls_carry_out sender(int to)
{
    ls_carry_out out = {.to = to, .limit_s = 5};
    ls_text_put(out.root, sizeof out.root, "%s/from", scratch);
    return out;
}

static ls_carry_in receiver(void)
{
    LS_TEXT(root, 300, "%s/to", scratch);
    return ls_carry_in_begin(root, -1);
}

/* The stream so far, in pieces of `step` bytes. */
static void take_all(int from, ls_carry_in *in, size_t step)
{
    char data[4096];
    ssize_t got;
    while (ls_clock_poll(from, POLLIN, ls_clock_after(0.05)) == 1 &&
           (got = read(from, data, step)) > 0) {
        ls_carry_take(in, data, (size_t)got);
    }
}

static void assert_same(const char *name)
{
    char *text[2];
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        LS_TEXT(path, 400, "%s/%s/%s", scratch, i == 0 ? "from" : "to", name);
        ck_assert_int_eq(ls_file_read(path, 1 << 20, &text[i], &bytes[i]), LS_OK);
    }
    ck_assert_uint_eq(bytes[0], bytes[1]);
    ck_assert_mem_eq(text[0], text[1], bytes[0]);
    free(text[0]);
    free(text[1]);
}

/* Files of every kind arrive whole, whatever pieces the stream comes in; what was sent once is not
 * sent again, of a log that grew only its new bytes are. */
TEST(files_over_a_stream)
{
    static const size_t steps[] = {1, 7, 4096};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        int ends[2];
        ck_assert_int_eq(pipe(ends), 0);
        write_text("from/a b/table.tsv", "{\"carry\":\"end\"}\n1\t2\n");
        write_text("from/rank0.jsonl", "{}\n");
        write_text("from/empty", "");
        LS_TEXT(link, 300, "%s/from/rank1.jsonl", scratch);
        (void)unlink(link);
        ck_assert_int_eq(symlink("rank0.jsonl", link), 0);
        ls_carry_out out = sender(ends[1]);
        ls_carry_in in = receiver();
        ck_assert_int_eq(ls_carry_send(&out, "", false), LS_OK);
        ck_assert_int_eq(out.pieces, 4);
        write_text("from/rank0.jsonl", "{}\n{\"step\":1}\n");
        write_text("from/a b/table.tsv", "shorter");
        int64_t before = out.bytes;
        ck_assert_int_eq(ls_carry_send(&out, "", false), LS_OK);
        ck_assert_int_eq(out.bytes - before, 11 + 7);
        ck_assert_int_eq(ls_carry_send(&out, "", false), LS_OK);
        ck_assert_int_eq(ls_carry_send(&out, "absent", false), LS_OK);
        ck_assert_int_eq(out.pieces, 6);
        ck_assert_int_eq(ls_carry_send_end(&out), LS_OK);
        take_all(ends[0], &in, steps[i]);
        ls_carry_in_close(&in);
        ck_assert_msg(in.ended && in.why[0] == '\0', "%s", in.why);
        assert_same("a b/table.tsv");
        assert_same("rank0.jsonl");
        assert_same("rank1.jsonl");
        assert_same("empty");
        LS_TEXT(to, 300, "%s/to", scratch);
        ls_path_remove_tree(to);
        ls_carry_out_free(&out);
        close(ends[0]);
        close(ends[1]);
    }
}

/* A file that is being written is sent when it has been left alone; a log is sent as it grows. */
TEST(files_that_are_being_written)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    write_text("from/dump", "half");
    write_text("from/rank0.log", "line\n");
    ls_carry_out out = sender(ends[1]);
    ck_assert_int_eq(ls_carry_send(&out, "", true), LS_OK);
    ck_assert_int_eq(out.bytes, 5);
    LS_TEXT(path, 300, "%s/from/dump", scratch);
    const struct timespec then[2] = {{1000, 0}, {1000, 0}};
    ck_assert_int_eq(utimensat(AT_FDCWD, path, then, 0), 0);
    ck_assert_int_eq(ls_carry_send(&out, "", true), LS_OK);
    ck_assert_int_eq(out.bytes, 9);
    ls_carry_out_free(&out);
    close(ends[0]);
    close(ends[1]);
}

/* Each is kept as the reason; the lines between go on. */
TEST(streams_that_do_not_do)
{
    static const struct {
        const char *stream, *why;
    } rows[] = {
        {"{\"carry\":\"file\",\"name\":\"../x\",\"at\":0,\"bytes\":1}\nx",
         "../x: not a name below"},
        {"{\"carry\":\"file\",\"name\":\"/x\",\"at\":0,\"bytes\":1}\nx", "/x: not a name below"},
        {"{\"carry\":\"file\",\"name\":\"a/../../x\",\"at\":0,\"bytes\":1}\nx", "a/../../x: not"},
        {"{\"carry\":\"file\",\"name\":\"a/..\",\"at\":0,\"bytes\":0}\n", "a/..: not"},
        {"{\"carry\":\"file\",\"name\":\"\",\"at\":0,\"bytes\":0}\n", ": not a name"},
        {"{\"carry\":\"link\",\"name\":\"l\",\"to\":\"/etc\"}\n", "l: a link to a place"},
        {"{\"carry\":\"link\",\"name\":\"l\",\"to\":\"../..\"}\n", "l: a link to a place"},
        {"{\"carry\":\"file\",\"name\":\"f\",\"at\":0,\"bytes\":1}\nx"
         "{\"carry\":\"file\",\"name\":\"f/g\",\"at\":0,\"bytes\":1}\nx",
         "f/g: Not a directory"},
        {"{\"carry\":\"end\",\"pieces\":1,\"bytes\":5}\n", "1 pieces of 5 bytes were sent, 0 of 0"},
        {"{\"carry\":\"file\",\"name\":\"f\",\"at\":0,\"bytes\":9}\nx", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_carry_in in = receiver();
        ls_carry_take(&in, rows[i].stream, strlen(rows[i].stream));
        ls_carry_take(&in, "said\n", 5);
        bool missing = in.missing > 0;
        ls_carry_in_close(&in);
        ck_assert_msg(strstr(in.why, rows[i].why) != NULL, "'%s' is not in '%s'", rows[i].why,
                      in.why);
        ck_assert_int_eq(missing, rows[i].why[0] == '\0');
        ck_assert_int_eq(in.ended, strstr(rows[i].stream, "end") != NULL);
        LS_TEXT(to, 300, "%s/to", scratch);
        ls_path_remove_tree(to);
    }
}

/* Without room: the rest of the stream is taken, the reason is kept. */
TEST(a_full_disk)
{
    struct rlimit limit = {4, RLIM_INFINITY};
    ls_file_survive_limit();
    ls_carry_in in = receiver();
    static const char stream[] =
        "{\"carry\":\"file\",\"name\":\"f\",\"at\":0,\"bytes\":9}\n123456789"
        "{\"carry\":\"end\",\"pieces\":1,\"bytes\":9}\n";
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ls_carry_take(&in, stream, strlen(stream));
    limit.rlim_cur = RLIM_INFINITY;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ls_carry_in_close(&in);
    ck_assert(in.ended);
    ck_assert_str_eq(in.why, "a file of the run: File too large");
}

/* Nobody takes the files: an end within the limit. */
TEST(the_other_side_stands_still)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    FILE *big = create("from/big");
    for (int i = 0; i < 100000; i++) {
        ck_assert_int_ge(fputs("123456789\n", big), 0);
    }
    ck_assert_int_eq(fclose(big), 0);
    ls_carry_out out = sender(ends[1]);
    out.limit_s = 0.3;
    catch_lines();
    int64_t began_ns = ls_clock_ns();
    ck_assert_int_eq(ls_carry_send(&out, "", false), LS_ERR_INFRA);
    ck_assert_double_lt(ls_clock_ms_between(began_ns, ls_clock_ns()), 5e3);
    ck_assert_str_eq(caught_lines(), "error: cannot send files: the other side takes none\n");
    ls_carry_out_free(&out);
    close(ends[0]);
    close(ends[1]);
}

/* ---- texts ----------------------------------------------------------------------------------- */

TEST(folders_in_a_command)
{
    static const char *const rows[][2] = {
        {"/run/1/data", "/node/r/data"},
        {"--data=/run/1", "--data=/node/r"},
        {"batches:/run/1/dump", "batches:/node/r/dump"},
        {"/x/run/1/data", "/x/run/1/data"},
        {"/run/12", "/run/12"},
        {"IFS=; run='/run/1'; bin='/b'; \"$run\"/x", "IFS=; run='/node/r'; bin='/p'; \"$run\"/x"},
        {"/b/lockstep-train", "/p/lockstep-train"},
        {"/bin/sh", "/bin/sh"},
        {"", ""},
    };
    ls_apart apart = {.is = true, .run = "/run/1", .program = "/b", .root = "/node/r", .own = "/p"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *mapped = ls_apart_map(&apart, rows[i][0], apart.root);
        ck_assert_str_eq(mapped, rows[i][1]);
        free(mapped);
    }
    char *words[] = {"--data=/run/1/d", "cat /run/1/d", NULL};
    ls_apart_map_words(&apart, words);
    ck_assert_str_eq(words[0], "--data=./d"); /* the same on all nodes */
    ck_assert_str_eq(words[1], "cat /node/r/d");
    free(words[0]);
    free(words[1]);
}

/* ---- programs -------------------------------------------------------------------------------- */

/* The command of a node, with `tarball` as its input; returns its exit code, and what it says. */
static int unpack(const char *digest, bool bring, const char *tarball, char *said)
{
    ls_words words = ls_apart_unpack_words(digest);
    ls_words_add(&words, bring ? "unpack" : "");
    char *line = ls_words_line(&words);
    LS_TEXT(command, 4096, "%s <%s 2>&1", line, tarball);
    FILE *from = popen(command, "re");
    ck_assert_ptr_nonnull(from);
    said[fread(said, 1, 1023, from)] = '\0';
    int status = pclose(from);
    free(line);
    ls_words_free(&words);
    return WEXITSTATUS(status);
}

TEST(programs_are_unpacked_once)
{
    char said[1024];
    LS_TEXT(folder, 300, "%s/unpacked", scratch);
    LS_TEXT(tarball, 300, "%s/t.tar.gz", scratch);
    LS_TEXT(make, 1000, "cd %s && chmod +x n/libexec/lockstep-launch && tar -czf t.tar.gz n",
            scratch);
    setenv("LS_NODE_DIR", folder, 1);
    write_text("n/README.md", "");
    write_text("n/libexec/lockstep-launch", "#!/bin/sh\n");
    write_text("n/libexec/lib/ls_cpu.so", "x");
    ck_assert_int_eq(system(make), 0);
    LS_TEXT(carried, 600, "{\"event\":\"carried\",\"programs\":\"%s/12\"}\n", folder);
    ck_assert_int_eq(unpack("12", false, tarball, said), LS_APART_LACKS);
    ck_assert_str_eq(said, "");
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(unpack("12", true, tarball, said), 0);
        ck_assert_str_eq(said, carried);
    }
    ck_assert_int_eq(unpack("12", false, "/dev/null", said), 0);
    ck_assert_str_eq(said, carried);
    free(read_text("unpacked/12/lib/ls_cpu.so"));
    /* a broken tarball: one line, and nothing is left */
    ck_assert_int_eq(unpack("13", true, "/dev/null", said), 3);
    ck_assert_msg(strchr(said, '\n') == said + strlen(said) - 1, "%s", said);
    LS_TEXT(left, 1000, "[ \"$(ls %s)\" = 12 ]", folder);
    ck_assert_int_eq(system(left), 0);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* The hosts near and near2 share the disk. far* have a folder of their own and do not see the
 * marker; cut's connection ends in its job. */
static const char played_ssh[] =
    "#!/bin/sh\n"
    "while [ \"$1\" != -- ]; do shift; done\n"
    "here=${0%/*}\n"
    "export SSH_CONNECTION='10.0.0.9 1 127.0.0.1 22' LS_NODE_ADDR=127.0.0.1 HOME=/nonexistent\n"
    "case $2 in far*|cut) d=$(echo \"$3\" | sed 's/--probe=/--probe=\\/blind/') ;; *) d=$3 ;; "
    "esac\n"
    "case $2$3 in cut*nproc*) sh -c \"$d\" & sleep 1; kill $!; exit 255 ;; esac\n"
    "exec sh -c \"$d\"\n";

static void set_up(void)
{
    char launcher[1024], digest[LS_APART_DIGEST_BYTES];
    open_scratch();
    write_text("ssh", played_ssh);
    LS_TEXT(ssh, 300, "%s/ssh", scratch);
    ck_assert_int_eq(chmod(ssh, 0755), 0);
    setenv("LS_SSH", ssh, 1);
    LS_TEXT(cache, 300, "%s/cache", scratch);
    setenv("LS_NODE_DIR", cache, 1);
    /* the programs are there: a launcher that finds itself in this folder */
    ls_remote_launcher(NULL, launcher, sizeof launcher);
    *strrchr(launcher, '/') = '\0';
    ck_assert_int_eq(ls_apart_digest(launcher, digest), LS_OK);
    LS_TEXT(make, 4096,
            "d=%s/%s; mkdir -p $d && cp %s/lockstep-launch $d/ && for f in lockstep lockstep-train "
            "lockstep-collectives lib; do ln -s %s/$f $d/$f; done",
            cache, digest, launcher, launcher);
    ck_assert_int_eq(system(make), 0);
}

static ls_outcome run(const char *list, const char *script, ls_job *job)
{
    static ls_hosts hosts;
    ls_probe found[4];
    LS_TEXT(results, 300, "%s/run", scratch);
    ls_probe_question question = {.folder = results, .device = "cpu", .ranks = 1};
    ck_assert_int_eq(ls_hosts_parse_list(list, &hosts), LS_OK);
    ck_assert_int_eq(ls_probe_hosts(&hosts, &question, found), LS_OK);
    for (int k = 0; k < hosts.count; k++) {
        bool apart = strncmp(hosts.host[k].name, "near", 4) != 0;
        ck_assert_int_eq(hosts.host[k].programs[0] != '\0', apart);
    }
    static char run_directory[300];
    ls_text_put(run_directory, sizeof run_directory, "%s", results);
    *job = (ls_job){.id = "test",
                    .world = 2,
                    .hosts = &hosts,
                    .host_count = 2,
                    .limit_s = 30,
                    .grace_s = 0.5,
                    .run_directory = run_directory};
    LS_TEXT(input, 400, "--input=%s/inputs/deep", results);
    ls_text_put(job->directory, sizeof job->directory, "%s/jobs/test", results);
    ls_words_add(&job->command, "sh");
    ls_words_add(&job->command, "-c");
    ls_words_add(&job->command, "%s", script);
    ls_words_add(&job->command, "sh");
    ls_words_add(&job->command, "%s", input);
    ls_outcome outcome;
    bool resumed;
    ck_assert_int_eq(ls_job_run(job, NULL, NULL, &outcome, &resumed), LS_OK);
    ls_job_free(job);
    return outcome;
}

static void assert_nothing_left(void)
{
    LS_TEXT(left, 1000, "[ ! -d %s/cache/runs ] || [ -z \"$(ls %s/cache/runs)\" ]", scratch,
            scratch);
    for (int i = 0; i < 100 && system(left) != 0; i++) {
        (void)ls_clock_poll(-1, 0, ls_clock_after(0.1));
    }
    ck_assert_int_eq(system(left), 0);
}

/* Input files reach the nodes, what ranks write comes back under the same names, options are the
 * same texts on all nodes, nothing stays there. */
TEST(a_job_on_disks_of_their_own)
{
    static const char *const lists[] = {"far,far2", "near,far", "far,near"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        ls_job job;
        write_text("run/inputs/deep/file", "brought");
        write_text("run/other", "not named");
        ls_outcome outcome =
            run(lists[i],
                "echo $1; cd \"$LS_RUN_DIR\" && cat ../../inputs/deep/file && mkdir -p dump && "
                "head -c 3000000 /dev/zero >dump/$RANK && ln -s dump/$RANK link$RANK && "
                "echo '{}' >>rank$RANK.jsonl; echo new >../../engines$RANK.txt",
                &job);
        ck_assert_msg(outcome.state == LS_OUTCOME_DONE, "%s: %s", lists[i], outcome.why);
        ls_outcome_free(&outcome);
        for (int rank = 0; rank < 2; rank++) {
            struct stat status;
            LS_TEXT(log, 100, "run/jobs/test/rank%d.log", rank);
            LS_TEXT(link, 400, "%s/run/jobs/test/link%d", scratch, rank);
            LS_TEXT(engines, 100, "run/engines%d.txt", rank);
            char *text = read_text(log), *more = read_text(engines);
            ck_assert_str_eq(text, "--input=./inputs/deep\nbrought");
            ck_assert_str_eq(more, "new\n");
            ck_assert_int_eq(stat(link, &status), 0);
            ck_assert_int_eq(status.st_size, 3000000);
            free(text);
            free(more);
        }
        assert_nothing_left();
        LS_TEXT(folder, 300, "%s/run", scratch);
        ls_path_remove_tree(folder);
    }
}

/* While the job runs its logs are here. */
TEST(logs_come_while_it_runs)
{
    ls_job job;
    write_text("run/inputs/deep/file", "");
    /* by a pattern: the path itself would be the node's own */
    LS_TEXT(script, 1000,
            "echo first; i=0; while ! ls %s/r*/jobs/test/rank$RANK.log | grep -q .; do "
            "i=$((i+1)); [ $i -lt 200 ] || exit 1; sleep 0.1; done",
            scratch);
    ls_outcome outcome = run("far,far2", script, &job);
    ck_assert_int_eq(outcome.state, LS_OUTCOME_DONE);
    ls_outcome_free(&outcome);
}

/* A connection that ends, a node whose files do not come whole: the host is named and nothing
 * passes. */
TEST(hosts_that_are_lost)
{
    ls_job job;
    write_text("run/inputs/deep/file", "");
    catch_lines();
    ls_outcome outcome = run("far,cut", "sleep 5", &job);
    ck_assert_int_eq(outcome.state, LS_OUTCOME_FAILED);
    ck_assert_int_eq(outcome.code, LS_ERR_INFRA);
    ck_assert_msg(strstr(outcome.why, "host cut ended without a report") != NULL, "%s",
                  outcome.why);
    ls_outcome_free(&outcome);
    assert_nothing_left();
    /* a name that the bench does not take */
    outcome = run("far,far2", "[ $RANK = 0 ] || ln -s /etc \"$LS_RUN_DIR\"/link", &job);
    ck_assert_int_eq(outcome.state, LS_OUTCOME_NOT_STARTED);
    ck_assert_msg(strstr(outcome.why,
                         "host far2: not all of its files came: jobs/test/link: a link "
                         "to a place that is not carried") != NULL,
                  "%s", outcome.why);
    ls_outcome_free(&outcome);
    assert_nothing_left();
}

/* Each node looks at its own devices, of which these have none; the highest code counts. */
TEST(preflight_of_nodes)
{
    char launcher[1024], said[2048];
    LS_TEXT(nowhere, 300, "%s/nowhere", scratch);
    setenv("LS_SYSFS", nowhere, 1);
    setenv("LS_LIBCUDA", nowhere, 1);
    ls_remote_launcher(NULL, launcher, sizeof launcher);
    *strrchr(launcher, '/') = '\0';
    LS_TEXT(command, 2000, "%s/lockstep preflight --nodes near,far --out %s/run 2>&1", launcher,
            scratch);
    FILE *from = popen(command, "re");
    ck_assert_ptr_nonnull(from);
    said[fread(said, 1, sizeof said - 1, from)] = '\0';
    ck_assert_int_eq(WEXITSTATUS(pclose(from)), LS_ERR_INFRA);
    const char *near = strstr(said, "node near\n  lockstep[0]: ");
    const char *far = strstr(said, "node far\n  lockstep[1]: ");
    ck_assert_ptr_nonnull(strstr(said, "error: no NVIDIA device"));
    ck_assert_msg(near != NULL && far > near, "%s", said);
    assert_nothing_left();
}

TEST_MAIN("apart", .timeout_s = 120, .before = set_up, .after = close_scratch)
