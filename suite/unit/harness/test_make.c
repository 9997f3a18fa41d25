/* Values that make is given are text: for every documented variable and for those of the build, no
 * part of a value is run, and the value arrives unchanged or is refused by name. And what make says
 * of a machine's Gloo. The real Makefile, variables.sh and tables run in a tree whose programs only
 * record their arguments. */
#include <sys/stat.h>

#include "harness/process/proc.h"
#include "kernels/core/clock.h"
#include "suite/unit/harness/scratch.h"
#include "suite/unit/run_suite.h"

/* Each would make a file `y` where it is run. */
static const char *const hostile[] = {
    "x;touch y",   "x`touch y`",   "x$(touch y)",    "x$(shell touch y)", "x${shell touch y}",
    "x$(file >y)", "x';touch y;'", "x\";touch y;\"", "x\ntouch y",        "x\\\n\ttouch y\n",
    "x|touch y",   "x>y",          "x#$$(touch y)",  "/a folder/x y",
};
static const char together[] =
    "x y;touch y`touch y`$(touch y)$(shell touch y)${shell touch y}$(file >y)'"
    "touch y;\"touch y;\"|touch y>y\ntouch y\n$$(touch y)";
enum { HOSTILE = sizeof hostile / sizeof *hostile };

static const char table[] = "suite/make/variables.def";
static char source[1024]; /* the project's own tree; make runs in the fresh folder */

static void put(const char *name, const char *text, mode_t mode)
{
    LS_TEXT(path, 1200, "%s/%s", scratch, name);
    write_text(name, text);
    ck_assert_int_eq(chmod(path, mode), 0);
}

static char *read_from(const char *folder, const char *name)
{
    LS_TEXT(path, 1200, "%s/%s", folder, name);
    char *text = ls_text_read(path);
    ck_assert_msg(text != NULL, "cannot read %s", path);
    return text;
}

static void copy(const char *name, const char *more)
{
    char *text = read_from(source, name), *whole = NULL;
    ck_assert_int_ge(asprintf(&whole, "%s%s", text, more), 0);
    put(name, whole, 0644);
    free(whole);
    free(text);
}

static void set_up(void)
{
    open_scratch();
    ck_assert(ls_path_find("Makefile", source, sizeof source));
    *strrchr(source, '/') = '\0';
    copy("Makefile", "\nbuild = @:\n"); /* nothing is built */
    copy("harness/variables.sh", "");
    static const char *const stubs[] = {"build/lockstep",        "build/fuzz/unit/fuzz",
                                        "harness/setup.sh",      "suite/make/gpu_check.sh",
                                        "suite/peers/check.sh",  "suite/plants/build.sh",
                                        "suite/unit/run.sh",     "suite/unit/sanitize.sh",
                                        "suite/mutate/build.sh", "suite/unit/fuzz/run.sh"};
    for (size_t i = 0; i < sizeof stubs / sizeof *stubs; i++) {
        put(stubs[i], "#!/bin/sh\nfor word; do printf '<%s>' \"$word\"; done >>arguments\n", 0755);
    }
    put("harness/find_cuda.sh", "", 0644);
    put("suite/emulation/emulation.mk", "", 0644);
    put("bin/gcc", "#!/bin/sh\n", 0755);
    put("bin/g++", "#!/bin/sh\n", 0755);
    copy(table, "");
}

typedef enum route { COMMAND_LINE, ENVIRONMENT, STRONG_ENVIRONMENT /* make -e */ } route;

/* Runs `make TARGET`, given NAME=value that way. Returns the exit code. */
static int make(const char *target, const char *given, route by)
{
    LS_TEXT(path, 1400, "PATH=%s/bin:%s", scratch, getenv("PATH"));
    LS_TEXT(log, 200, "%s/output", scratch);
    LS_TEXT(arguments, 200, "%s/arguments", scratch);
    (void)unlink(log);
    (void)unlink(arguments);
    char *argv[] = {"make", (char *)target, NULL, NULL};
    argv[2] = by == COMMAND_LINE ? (char *)given : by == STRONG_ENVIRONMENT ? "-e" : NULL;
    char *environment[] = {path, "LC_ALL=C", by == COMMAND_LINE ? NULL : (char *)given, NULL};
    ls_proc_spec spec = {
        .argv = argv, .environment = environment, .log_path = log, .directory = scratch};
    ls_proc process;
    ck_assert_int_eq(ls_proc_start(&spec, &process), LS_OK);
    ck_assert(ls_proc_wait_all(&process, 1, ls_clock_after(30)));
    return process.code;
}

/* make's end, and what its programs were given. */
static void check_arguments(const char *target, const char *given, route by, int code,
                            const char *wanted)
{
    int ended = make(target, given, by);
    char *said = read_from(scratch, "output");
    ck_assert_msg(ended == code, "make %s %s: %s", target, given, said);
    free(said);
    char *got = read_from(scratch, "arguments");
    ck_assert_str_eq(got, wanted);
    free(got);
}

/* Fails unless the value arrived as one argument, or make ended with 2 and named the variable. */
static void check(const char *target, const char *name, const char *value, route by)
{
    LS_TEXT(given, 400, "%s=%s", name, value);
    LS_TEXT(arrived, 400, "<%s>", value);
    LS_TEXT(arrived_as_pair, 400, "<%s>", given);
    int code = make(target, given, by);
    LS_TEXT(ran, 200, "%s/y", scratch);
    char *said = read_from(scratch, "output");
    ck_assert_msg(access(ran, F_OK) != 0, "make %s '%s' ran a part of it: %s", target, given, said);
    if (code == 0) {
        char *got = read_from(scratch, "arguments");
        ck_assert_msg(strstr(got, arrived) != NULL || strstr(got, arrived_as_pair) != NULL,
                      "make %s '%s' passed %s", target, given, got);
        free(got);
    } else {
        LS_TEXT(named, 80, "error: %s=", name);
        ck_assert_msg(code == 2 && strstr(said, named) != NULL && strstr(said, "allowed: ") != NULL,
                      "make %s '%s' ended with %d: %s", target, given, code, said);
    }
    free(said);
}

static const char *const targets[] = {"bench", "check",     "conform", "detect", "compare",
                                      "fuzz",  "gpu-check", "merge",   "mutate", "peers"};

ROWS_TEST(values_are_text, targets)
{
    const char *target = targets[_i];
    char *rows = read_from(source, table), *rest = NULL;
    int count = 0;
    for (char *row = strtok_r(rows, "\n", &rest); row != NULL; row = strtok_r(NULL, "\n", &rest)) {
        char name[40], of[100] = "";
        if (sscanf(row, "LS_VARIABLE(%39[A-Z_], \"%97[^\"]", name, of) != 2) {
            continue;
        }
        LS_TEXT(all, 100, " %s ", of);
        LS_TEXT(one, 40, " %s ", target);
        if (strstr(all, one) == NULL) {
            continue;
        }
        count++;
        check(target, name, together, COMMAND_LINE);
        check(target, name, together, ENVIRONMENT);
        check(target, name, together, STRONG_ENVIRONMENT);
        bool any_text = strcmp(target, "conform") == 0 && strstr(row, "\".+\"") != NULL;
        for (int i = any_text ? 0 : 3; i < (any_text ? HOSTILE : 4); i++) {
            check(target, name, hostile[i], COMMAND_LINE);
        }
    }
    ck_assert_int_gt(count, 0);
    free(rows);
}

/* These become part of commands; a value that a shell would interpret is refused. */
TEST(values_of_the_build)
{
    static const char *const names[] = {"BUILD",    "PREFIX",    "DESTDIR",  "DEPS",     "V",
                                        "PLANTS",   "CUDA_ARCH", "OPTIMISE", "SANITIZE", "CFLAGS",
                                        "CXXFLAGS", "CPPFLAGS",  "LDFLAGS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        check("help", names[i], together, COMMAND_LINE);
        check("help", names[i], together, ENVIRONMENT);
        check("help", names[i], together, STRONG_ENVIRONMENT);
        for (int k = 0; k < 13; k++) {
            check("help", names[i], hostile[k], COMMAND_LINE);
        }
    }
    check("help", "CC", together, COMMAND_LINE);
    check("help", "EXTRA", together, COMMAND_LINE);
    check("help", "BUILD", "/a folder/x", COMMAND_LINE);
}

/* What the command line is used for stays possible. */
TEST(plain_values)
{
    static const char *const given[] = {"BUILD=build/x-1.0", "CFLAGS=-O3 -DX=1,2 -Wl,-rpath=/a:/b",
                                        "CUDA_ARCH=80 90", "OPTIMISE=-O1 -g", "CC=ccache gcc"};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        ck_assert_int_eq(make("help", given[i], COMMAND_LINE), 0);
    }
    static const char *const conform[][2] = {
        {"SUBJECT=python3 'my trainer.py' --x=$HOME",
         "<conform><><conform><--subject><python3 'my trainer.py' --x=$HOME>"},
        {"SEED=3",
         "<conform><><conform><--seed><3><--gate><manners>"}, /* our trainer's manners, too */
        {"GATE=none", "<conform><><conform><--gate><none>"},
    };
    for (size_t i = 0; i < sizeof conform / sizeof *conform; i++) {
        check_arguments("conform", conform[i][0], COMMAND_LINE, 0, conform[i][1]);
    }
    check_arguments("bench", "NGPUS=2", ENVIRONMENT, 0, "<bench><><bench><NGPUS=2>");
}

/* Targets that run programs install what these need first, unless INSTALL=no forbids it. */
TEST(jobs_set_up_first)
{
    static const char *const purposes[][2] = {
        {"bench", "<bench><no>"},    {"check", "<check><no>"},     {"conform", "<conform><no>"},
        {"detect", "<conform><no>"}, {"compare", "<conform><no>"}, {"peers", "<conform><no>"},
        {"mutate", "<check><no>"},   {"fuzz", "<fuzz><no>"},
    };
    for (size_t i = 0; i < sizeof purposes / sizeof *purposes; i++) {
        int code = make(purposes[i][0], "INSTALL=no", COMMAND_LINE);
        char *said = read_from(scratch, "output");
        ck_assert_msg(code == 0, "make %s: %s", purposes[i][0], said);
        free(said);
        char *got = read_from(scratch, "arguments");
        ck_assert_msg(strncmp(got, purposes[i][1], strlen(purposes[i][1])) == 0, "make %s: %s",
                      purposes[i][0], got);
        free(got);
    }
}

/* The name of a fault is checked before a build with planted faults is made. */
TEST(a_fault_is_checked_before_it_is_built)
{
    put("suite/plants/x.patch", "", 0644);
    check_arguments("detect", "FAULT=x", COMMAND_LINE, 0,
                    "<conform><><detect><--list><--fault><x><build><suite/plants/x.patch>"
                    "<detect><--fault><x>");
    put("build/lockstep", "#!/bin/sh\nexit 2\n", 0755);
    check_arguments("detect", "FAULT=x", COMMAND_LINE, 2, "<conform><>");
}

/* Programs that are built outside the tree find its files. */
TEST(a_build_elsewhere_links_the_tree)
{
    LS_TEXT(given, 100, "BUILD=%s-elsewhere", scratch);
    LS_TEXT(claims, 100, "%s-elsewhere/suite", scratch);
    put("suite/claims/x.txt", "", 0644);
    ck_assert_int_eq(make(claims, given, COMMAND_LINE), 0);
    LS_TEXT(file, 200, "%s/claims/x.txt", claims);
    ck_assert_int_eq(access(file, R_OK), 0);
    ls_path_remove_tree(given + strlen("BUILD="));
    ck_assert_int_eq(make("build/suite", "BUILD=build", COMMAND_LINE), 2);
}

/* A Gloo that gloo_mesh.hh does not know leaves that engine out; make goes on and says so. */
TEST(other_gloo)
{
    static const struct {
        const char *compiler, *body, *said;
    } cases[] = {
        {"bin/g++", "exit 0", "gloo engine:    yes\n"},
        {"bin/g++", "case $* in *-fsyntax-only*gloo_mesh.hh) exit 1 ;; esac",
         "gloo engine:    no: this libgloo is not one of those that reference/comm/gloo_mesh.hh "
         "names\n"},
        {"bin/gcc", "exit 1", "gloo engine:    no: Gloo's headers not found (libgloo-dev)\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        LS_TEXT(script, 200, "#!/bin/sh\n%s\n", cases[i].body);
        put(cases[i].compiler, script, 0755);
        ck_assert_int_eq(make("found", "--old-file=programs", COMMAND_LINE), 0);
        char *said = read_from(scratch, "output");
        ck_assert_msg(strstr(said, cases[i].said) != NULL, "%s: %s", cases[i].body, said);
        free(said);
    }
}

TEST_MAIN("make", .timeout_s = 60, .before = set_up, .after = close_scratch)
