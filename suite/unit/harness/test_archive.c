/* A run in an archive: each command that reads a run says of it what it says of the folder, names
 * the archive where it cannot, and leaves nothing behind. The run is that of one H200. */
#include "suite/unit/run_suite.h"
#include "suite/unit/suite/suite_fake.h"

/* Runs the commands in the folder, which has packed/run.tar.xz, unpacked/run.tar.xz/ with its
 * content, and tmp/ for the private folders of those that read the archive. */
static int shell(const char *commands)
{
    char program[1024], line[4000];
    ls_path_program(program, sizeof program);
    ls_text_put(line, sizeof line,
                "cd %s && PATH=%s/..:$PATH TMPDIR=$PWD/tmp && export LC_ALL=C "
                "PATH TMPDIR && { %s\n}",
                folder, program, commands);
    int status = system(line);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void open_folder(void)
{
    char recorded[1024], line[1400];
    fake_begin();
    ck_assert(ls_path_find("results/machines/h200/bench.tar.xz", recorded, sizeof recorded));
    ls_text_put(line, sizeof line,
                "mkdir -p tmp packed unpacked/run.tar.xz && cp %s packed/run.tar.xz && "
                "tar -xJf packed/run.tar.xz -C unpacked/run.tar.xz",
                recorded);
    ck_assert_int_eq(shell(line), 0);
}

/* $R is the run, or what is in it. */
static const struct {
    const char *command;
    int code;
    const char *said; /* a part of what it prints */
} readers[] = {
    {"lockstep judge $R", 1, "ok 46 - training.resnet50.o3.w1.b25mb.s1-a95d25d0 # PASS "},
    {"lockstep judge $R/jobs/resnet8.o2.w2.b0.1mb.s10-dd023ec3", 0, "3 passed, 0 failed"},
    {"lockstep diff $R $R", 0, "40 as before\n"},
    {"lockstep diff --gate 5% $R $R", 0, "gate 5 %: 0 of 4 jobs that decide exceed"},
    {"lockstep report $R", 0, "CORRECT  yes"},
    {"lockstep bench DRYRUN=1 PROFILE=smoke NGPUS=2 DEVICE=cpu BASELINE=$R | grep -c throughput", 0,
     "3\n0"},
};

ROWS_TEST(an_archive_is_read_as_its_folder, readers)
{
    char line[2000];
    ls_text_put(
        line, sizeof line,
        "R=$PWD/unpacked/run.tar.xz; %s >unpacked.said 2>/dev/null; echo $? >>unpacked.said;"
        "R=$PWD/packed/run.tar.xz; %s 2>/dev/null >said; echo $? >>said; "
        "sed 's,/packed/run,/unpacked/run,' said | diff unpacked.said - && ls -A tmp | "
        "diff /dev/null - && ! grep -q lockstep-archive said",
        readers[_i].command, readers[_i].command);
    ck_assert_int_eq(shell(line), 0);
    LS_TEXT(path, 100, "%s/said", folder);
    char *said = ls_text_read(path);
    ck_assert_msg(strstr(said, readers[_i].said) != NULL, "%s", said);
    LS_TEXT(code, 20, "\n%d\n", readers[_i].code);
    ck_assert_msg(strcmp(said + strlen(said) - strlen(code), code) == 0, "%s", said);
    free(said);
}

/* `judge` names a job in the archive by a path that it takes. */
TEST(a_repeat_line_is_of_the_archive)
{
    ck_assert_int_eq(shell("lockstep judge packed/run.tar.xz 2>/dev/null >said; $(sed -n "
                           "'s/^repeat: //p' said | head -n 1) >again; [ $? = 1 ] && "
                           "grep -q '# WEAK the job left 0 of 6 announced dumps' again"),
                     0);
}

/* The archive is damaged, or holds something else; all errors are one line. */
static const struct {
    const char *before, *command;
    int code;
    const char *error; /* with $PWD for the folder */
} wrongs[] = {
    {"truncate -s 9999 packed/run.tar.xz", "judge packed/run.tar.xz", 3,
     "cannot unpack $PWD/packed/run.tar.xz: xz: (stdin): Unexpected end of input"},
    {"truncate -s 9999 packed/run.tar.xz", "diff unpacked/run.tar.xz packed/run.tar.xz", 3,
     "cannot unpack $PWD/packed/run.tar.xz: xz: (stdin): Unexpected end of input"},
    {"truncate -s 9999 packed/run.tar.xz", "report packed/run.tar.xz", 3,
     "cannot unpack $PWD/packed/run.tar.xz: xz: (stdin): Unexpected end of input"},
    {"truncate -s 9999 packed/run.tar.xz", "bench DRYRUN=1 BASELINE=packed/run.tar.xz", 3,
     "cannot unpack $PWD/packed/run.tar.xz: xz: (stdin): Unexpected end of input"},
    {"echo x >packed/run.tar.xz", "report packed/run.tar.xz/jobs", 3,
     "cannot unpack $PWD/packed/run.tar.xz: xz: (stdin): File format not recognized"},
    {"tar -cJf packed/run.tar.xz said", "report packed/run.tar.xz", 2,
     "'$PWD/tmp/*/packed/run.tar.xz' is no run: it holds no run.json"},
    {"PATH=$(dirname $(command -v lockstep))", "report packed/run.tar.xz", 3,
     "cannot unpack $PWD/packed/run.tar.xz: tar: no such program in PATH"},
    {"TMPDIR=/none", "report packed/run.tar.xz", 3,
     "cannot make the folder /none/*: No such file or directory; TMPDIR= names another place"},
    /* asked to stop while tar runs: what has been unpacked is removed, then the signal ends it */
    {"printf '#!/bin/sh\\n: >some\\nkill -TERM $PPID\\nsleep 60\\n' >tar && chmod +x tar && "
     "PATH=$PWD:$PATH",
     "report packed/run.tar.xz", 143, "cannot unpack $PWD/packed/run.tar.xz: stopped"},
};

ROWS_TEST(errors_name_the_archive, wrongs)
{
    char line[2000], said[700] = "";
    ls_text_put(line, sizeof line,
                "echo >said; P=$PATH; { %s; } 2>/dev/null; lockstep %s 2>errors >/dev/null; C=$?; "
                "PATH=$P; ls -A tmp | diff /dev/null - >&2 && sed \"s,$PWD/tmp/[^/]*$PWD,"
                "\\$PWD/tmp/*,; s,$PWD,\\$PWD,; s,none/[^:]*,none/*,; s/^[^:]*: error: //; "
                "/^Terminated/d\" errors >error; exit $C",
                wrongs[_i].before, wrongs[_i].command);
    int code = shell(line);
    LS_TEXT(path, 100, "%s/error", folder);
    char *error = ls_text_read(path);
    ls_text_put(said, sizeof said, "%s\n", wrongs[_i].error);
    ck_assert_ptr_nonnull(error);
    ck_assert_str_eq(error, said);
    ck_assert_int_eq(code, wrongs[_i].code);
    free(error);
}

TEST_MAIN("archive", .timeout_s = 60, .before = open_folder, .after = fake_end)
