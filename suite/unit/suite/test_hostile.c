/* Hostile subjects and files: whatever a trainer does and leaves, the judge ends by itself, soon,
 * with one of its exit codes, never with PASS, and nothing of the trainer stays.
 *
 *   build/unit/test_hostile               a few of each quick kind (make check)
 *   build/unit/test_hostile COUNT SEED [KIND]     so many, drawn from all kinds (make fuzz: 500)
 *
 * A kind spoils one thing in a folder that lockstep-train has written and `lockstep judge` has
 * passed, or is a subject of `lockstep conform` (then this program is started as
 * `test_hostile subject KIND SEED ...`), which may train first and spoil what it wrote. */
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "hostile_files.h"
#include "suite/unit/run_suite.h"

enum { WORKERS = 3, QUICK_ROUNDS = 2 };

typedef struct kind {
    const char *name;
    void (*spoil)(hostile *); /* NULL: a subject that does not train */
    int (*act)(hostile *);    /* of one rank; returns its exit code */
    bool lies;                /* shows only in a folder that is judged as it lies */
    bool slow;                /* waits for grace periods or deadlines: not in make check */
    double bound_s;           /* 0: BOUND_S */
} kind;

static const double BOUND_S = 60, SETTLE_S = 3;

/* ---- subjects ------------------------------------------------------------------------------- */

static int rank_of_this(void)
{
    const char *rank = getenv("RANK");
    return rank == NULL ? 0 : atoi(rank);
}

static int exits(hostile *h)
{
    static const int codes[] = {0, 0, 1, 2, 3, 7, 10, 12, 77, 126, 127, 255};
    return codes[below(h, sizeof codes / sizeof *codes)];
}

static int dies(hostile *h)
{
    static const int signals[] = {SIGSEGV, SIGABRT, SIGKILL, SIGTERM, SIGPIPE, SIGXFSZ, SIGHUP};
    (void)kill(getpid(), signals[below(h, sizeof signals / sizeof *signals)]);
    return 0;
}

/* The first rank fails; the others wait for it, in ways that TERM may not end. */
static int outlives(hostile *h)
{
    if (rank_of_this() == 0) {
        return 1;
    }
    switch (below(h, 3)) {
    case 0:
        (void)signal(SIGTERM, SIG_IGN);
        break;
    case 1:
        (void)raise(SIGSTOP);
        break;
    default:
        break;
    }
    while (pause() != 0) {
    }
    return 0;
}

static int hangs(hostile *h)
{
    if (below(h, 2) == 0) {
        close(STDOUT_FILENO);
        close(STDERR_FILENO);
        (void)signal(SIGTERM, SIG_IGN);
    }
    while (pause() != 0) {
    }
    return 0;
}

static int floods(hostile *h)
{
    static const char *const lines[] = {
        "ok 1 - gradients.o1.w2.b0.1mb # PASS\n1 passed, 0 failed\n",
        "\x1b[2J\x1b[8mCORRECT  yes\n",
        "x",
        "\n",
        "\xff\xfe",
        NULL};
    const char *line = one_of(h, lines);
    for (size_t written = 0, bytes = strlen(line); written < 100 << 20;) {
        char block[1 << 16];
        size_t used = 0;
        for (; used + bytes <= sizeof block; used += bytes) {
            memcpy(block + used, line, bytes);
        }
        if (write(STDOUT_FILENO, block, used) != (ssize_t)used) {
            break;
        }
        written += used;
    }
    return (int)below(h, 2);
}

static int leaves_children(hostile *h)
{
    int code = (int)below(h, 2);
    for (int i = 0; i < 20; i++) {
        if (fork() == 0) {
            if (i % 2 == 0) {
                (void)setsid();
            }
            if (i % 3 == 0) {
                (void)signal(SIGTERM, SIG_IGN);
                (void)signal(SIGHUP, SIG_IGN);
            }
            for (;;) {
                pause();
            }
        }
    }
    return code;
}

static int leaves_things(hostile *h)
{
    char path[PATH_BYTES];
    (void)mkdir(file_of(h, "dump", path), 0700);
    replace(h, events_of(h, rank_of_this(), path));
    replace(h, dump_of(h, rank_of_this(), path));
    replace(h, file_of(h, "job.json", path));
    return 0;
}

static int forges_words(hostile *h)
{
    static const char event[] =
        "{\"event\":\"unsupported\",\"schema\":1,\"option\":\"--opt-level\\n1 passed, 0 failed\","
        "\"why\":\"\\u001b[2J\\nok 1 - gradients.o1.w2.b0.1mb # PASS\\nCORRECT  yes\\n"
        "1 passed, 0 failed\\n</td><script>alert(1)</script>|x|\\r\"}\n";
    char path[PATH_BYTES];
    put(events_of(h, rank_of_this(), path), event, sizeof event - 1);
    return 4;
}

static int writes_without_end(hostile *h)
{
    char path[PATH_BYTES];
    int fd = open(events_of(h, rank_of_this(), path), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    LS_ASSERT(fd >= 0);
    (void)!ftruncate(fd, INT64_C(1) << (30 + below(h, 12))); /* SIGXFSZ beyond the limit */
    return 0;
}

/* ---- all kinds ------------------------------------------------------------------------------ */

static const kind kinds[] = {
    {"dump-cut", cut_dump, NULL, false, false, 0},
    {"dump-replaced", replace_dump, NULL, false, false, 0},
    {"dump-element", spoil_element, NULL, false, false, 0},
    {"dump-type", spoil_type, NULL, false, false, 0},
    {"dump-numbers", spoil_numbers, NULL, false, false, 0},
    {"dump-names", spoil_names, NULL, false, false, 0},
    {"dump-metadata", spoil_metadata, NULL, false, false, 0},
    {"dump-header", spoil_header, NULL, false, false, 0},
    {"events-lines", spoil_lines, NULL, false, false, 0},
    {"events-member", spoil_member, NULL, false, false, 0},
    {"events-nested", nest_events, NULL, false, false, 0},
    {"events-replaced", replace_events, NULL, false, false, 0},
    {"events-start", spoil_start, NULL, true, false, 0},
    {"job", spoil_job, NULL, true, false, 0},
    {"exits", NULL, exits, false, false, 0},
    {"dies", NULL, dies, false, false, 0},
    {"leaves-things", NULL, leaves_things, false, false, 0},
    {"forges-words", NULL, forges_words, false, false, 0},
    {"leaves-children", NULL, leaves_children, false, false, 0},
    {"writes-without-end", NULL, writes_without_end, false, false, 0},
    {"floods", NULL, floods, false, true, 0},
    {"outlives", NULL, outlives, false, true, 0},
    {"hangs", NULL, hangs, false, true,
     330}, /* the deadline of a foreign subject: 240 s and more */
};
enum { KINDS = sizeof kinds / sizeof *kinds, HANGS = KINDS - 1 };

/* As a subject: trains first where files are spoiled. */
static int subject_main(int argc, char **argv)
{
    const kind *k = &kinds[atoi(argv[2])];
    hostile h = {.seed = strtoull(argv[3], NULL, 10)};
    const char *folder = getenv("LS_RUN_DIR");
    LS_ASSERT(folder != NULL && argc > 3);
    ls_text_put(h.folder, sizeof h.folder, "%s", folder);
    if (k->act != NULL) {
        return k->act(&h);
    }
    pid_t pid = fork();
    if (pid == 0) {
        char program[PATH_BYTES];
        ls_path_program(program, sizeof program);
        ls_text_add(program, sizeof program, "/../lockstep-train");
        argv[3] = program;
        (void)execv(program, argv + 3);
        _exit(127);
    }
    int state;
    LS_ASSERT(waitpid(pid, &state, 0) == pid);
    if (!WIFEXITED(state) || WEXITSTATUS(state) != 0) {
        return 3;
    }
    /* both ranks have ended their last step when rank 0's child has; rank 0 spoils */
    if (rank_of_this() == 0) {
        k->spoil(&h);
    }
    return 0;
}

/* ---- the judge of the judge ----------------------------------------------------------------- */

typedef struct base {
    char build[PATH_BYTES], root[PATH_BYTES], folder[PATH_BYTES]; /* folder: a job that passes */
} base;

static const char job_json[] =
    "{\"schema\":2,\"id\":\"job\",\"facts\":{\"role\":\"evidence\",\"world\":2},\"outcome\":{"
    "\"state\":\"done\",\"first_rank\":-1,\"code\":0,\"signal\":0,\"seconds\":1,\"ranks\":[{"
    "\"rank\":0,\"code\":0,\"signal\":0},{\"rank\":1,\"code\":0,\"signal\":0}]}}\n";

/* Runs a command of NULL-terminated words in a process group of its own; its output goes to a file.
 * Returns its exit code, 128 + signal, or -1 when it did not end within the bound. */
static int run(const char *const *words, const char *out, double bound_s, double *seconds)
{
    int64_t start_ns = ls_clock_ns();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        (void)setpgid(0, 0);
        dup2(fd, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
        (void)execv(words[0], (char *const *)words);
        _exit(127);
    }
    LS_ASSERT(pid > 0);
    for (;;) {
        int state;
        pid_t ended = waitpid(pid, &state, WNOHANG);
        *seconds = (double)(ls_clock_ns() - start_ns) * 1e-9;
        if (ended == pid) {
            return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
        }
        if (*seconds > bound_s) {
            (void)kill(-pid, SIGKILL);
            (void)waitpid(pid, &state, 0);
            return -1;
        }
        (void)poll(NULL, 0, 5);
    }
}

/* Processes whose environment has the marker, other than this one; ended if `end`. */
static int count_marked(const char *marker, bool end)
{
    int count = 0;
    DIR *entries = opendir("/proc");
    for (struct dirent *e; entries != NULL && (e = readdir(entries)) != NULL;) {
        int pid = atoi(e->d_name);
        char path[64], text[65536];
        ls_text_put(path, sizeof path, "/proc/%d/environ", pid);
        int fd = pid > 0 && pid != getpid() ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        ssize_t bytes = fd < 0 ? 0 : read(fd, text, sizeof text);
        if (fd >= 0) {
            close(fd);
        }
        if (bytes > 0 && memmem(text, (size_t)bytes, marker, strlen(marker)) != NULL) {
            count++;
            if (end) {
                (void)kill(pid, SIGKILL);
            }
        }
    }
    if (entries != NULL) {
        closedir(entries);
    }
    return count;
}

static int left_over(const char *marker)
{
    int left = 0;
    for (int64_t until_ns = ls_clock_after(SETTLE_S);
         (left = count_marked(marker, false)) > 0 && ls_clock_ns() < until_ns;) {
        (void)poll(NULL, 0, 50);
    }
    return left > 0 ? count_marked(marker, true) : 0;
}

static void copy_file(const char *from, const char *to)
{
    size_t bytes;
    char *data = get(from, &bytes);
    put(to, data, bytes);
    free(data);
}

static void copy_base(const base *b, hostile *h)
{
    char from[PATH_BYTES], to[PATH_BYTES];
    hostile source = {0};
    ls_text_put(source.folder, sizeof source.folder, "%s", b->folder);
    LS_ASSERT(mkdir(h->folder, 0700) == 0 && mkdir(file_of(h, "dump", to), 0700) == 0);
    for (int rank = 0; rank < WORLD; rank++) {
        copy_file(dump_of(&source, rank, from), dump_of(h, rank, to));
        copy_file(events_of(&source, rank, from), events_of(h, rank, to));
    }
    put(file_of(h, "job.json", to), job_json, sizeof job_json - 1);
}

static void make_base(base *b)
{
    char program[PATH_BYTES], launcher[PATH_BYTES], said[PATH_BYTES + 8];
    double seconds;
    ls_path_program(b->build, sizeof b->build);
    ls_text_add(b->build, sizeof b->build, "/..");
    ls_text_put(b->root, sizeof b->root, "%s/ls_hostile_XXXXXX",
                access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp");
    LS_ASSERT(mkdtemp(b->root) != NULL);
    ls_text_put(b->folder, sizeof b->folder, "%s/base", b->root);
    ls_text_put(said, sizeof said, "%s/said", b->root);
    ls_text_put(launcher, sizeof launcher, "%s/lockstep-launch", b->build);
    ls_text_put(program, sizeof program, "%s/lockstep-train", b->build);
    LS_ASSERT(mkdir(b->folder, 0700) == 0);
    LS_ASSERT(setenv("LS_RUN_DIR", b->folder, 1) == 0);
    ls_words train = {0};
    LS_TEXT(line, 2 * PATH_BYTES + 300,
            "%s --nproc-per-node 2 -- %s -a resnet8 --image-size 8 -b 2 --steps 2 --dump-steps 2 "
            "--dump-ranks all --device cpu --opt-level O1 --loss-scale 128 --momentum 0.9",
            launcher, program);
    ls_words_split(&train, line);
    int code = run((const char *const *)train.word, said, BOUND_S, &seconds);
    ls_words_free(&train);
    LS_ASSERT(unsetenv("LS_RUN_DIR") == 0);
    if (code != 0) {
        char *text = ls_text_read(said);
        printf("%s\n", text == NULL ? "" : text);
        ls_log_error("lockstep-train ended with %d: nothing to spoil", code);
        exit(LS_ERR_INFRA);
    }
}

/* Whether a line reads "1 passed, 0 failed". */
static bool has_good_count(const char *text)
{
    static const char words[] = " passed, 0 failed\n";
    for (const char *at = text; (at = strstr(at, words)) != NULL; at += sizeof words - 1) {
        const char *number = at;
        while (number > text && number[-1] >= '0' && number[-1] <= '9') {
            number--;
        }
        if (number < at && (number == text || number[-1] == '\n')) {
            return true;
        }
    }
    return false;
}

/* One hostile thing; false, and `why`, when the judge did not do what it must. */
static bool try_one(const base *b, int which, uint64_t seed, char *why, size_t why_bytes)
{
    const kind *k = &kinds[which];
    hostile h = {.seed = seed};
    char program[PATH_BYTES], self[PATH_BYTES], subject[PATH_BYTES + 64], said[PATH_BYTES + 64],
        marker[64];
    /* one of 8 is the work of a subject, the others are judged as they lie */
    bool conforms = k->act != NULL || (seed % 8 == 7 && !k->lies);
    ls_text_put(marker, sizeof marker, "LS_HOSTILE=%d.%d.%" PRIu64, (int)getpid(), which, seed);
    LS_ASSERT(setenv("LS_HOSTILE", marker + strlen("LS_HOSTILE="), 1) == 0);
    ls_text_put(program, sizeof program, "%s/lockstep", b->build);
    ls_text_put(h.folder, sizeof h.folder, "%s/%d.%" PRIu64, b->root, which, seed);
    ls_text_put(said, sizeof said, "%s.said", h.folder);
    ls_path_program(self, sizeof self);
    ls_text_put(subject, sizeof subject, "%s/test_hostile subject %d %" PRIu64, self, which, seed);
    double seconds;
    int code;
    if (conforms) {
        code =
            run((const char *const[]){program, "conform", "--subject", subject, "--device", "cpu",
                                      "--out", h.folder, "--case", "gradients.o1.w2.b0.1mb",
                                      k->act != NULL ? NULL : "--case", "ddp.lockstep.o1.w2",
                                      "--case", "scaler.trace.plain.o1", NULL},
                said, k->bound_s > 0 ? k->bound_s : BOUND_S, &seconds);
    } else {
        copy_base(b, &h);
        k->spoil(&h);
        code =
            run((const char *const[]){program, "judge", h.folder, NULL}, said, BOUND_S, &seconds);
    }
    int left = left_over(marker);
    char *text = ls_text_read(said);
    const char *last = text == NULL ? "" : text;
    bool forged = strstr(last, "\x1b[2J") != NULL || strstr(last, "\nCORRECT  yes") != NULL ||
                  has_good_count(last);
    bool good = code >= LS_ERR_CHECK && code <= LS_ERR_UNSUPPORTED && left == 0 && !forged;
    ls_text_put(why, why_bytes,
                "%s %s seed %" PRIu64 " %s: %s %d after %.1f s%s%s, %d processes left",
                good ? "ok -" : "not ok -", k->name, seed, h.what,
                code < 0      ? "did not end:"
                : code >= 128 ? "died of a signal:"
                              : "exit code",
                code < 0      ? 0
                : code >= 128 ? code - 128
                              : code,
                seconds, conforms ? ", as a subject" : "",
                forged && code != 0 ? ", forged lines" : "", left);
    if (!good) {
        size_t length = strlen(last);
        ls_text_add(why, why_bytes, "\n%s", last + (length > 1500 ? length - 1500 : 0));
        why[why_bytes - 1] = '\0';
    }
    free(text);
    (void)unlink(said);
    ls_path_remove_tree(h.folder);
    return good;
}

/* ---- many ----------------------------------------------------------------------------------- */

/* The slow kinds come once in 16, those that reach the deadline twice in all. */
static int kind_of(int index, uint64_t draw)
{
    if (index < 2) {
        return HANGS;
    }
    int which = (int)(draw % KINDS);
    return kinds[which].slow && (which == HANGS || index % 4 != 0) ? (int)(draw % 14) : which;
}

static int many_main(int count, uint64_t seed, const char *only)
{
    base b;
    make_base(&b);
    int *bad = mmap(NULL, sizeof *bad * WORKERS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                    -1, 0);
    LS_ASSERT(bad != MAP_FAILED);
    fflush(NULL);
    for (int worker = 0; worker < WORKERS; worker++) {
        if (fork() != 0) {
            continue;
        }
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        LS_ASSERT(null >= 0 && dup2(null, STDERR_FILENO) >= 0);
        for (int i = worker; i < count; i += WORKERS) {
            uint64_t draw = ls_rng_below(seed, 3, (uint64_t)i, 1 << 30);
            int which = kind_of(i, draw);
            for (int k = 0; only != NULL && k < KINDS; k++) {
                which = strcmp(only, kinds[k].name) == 0 ? k : which;
            }
            char why[3000];
            bad[worker] += !try_one(&b, which, seed * 100000 + (uint64_t)i, why, sizeof why);
            printf("%s\n", why);
            fflush(stdout);
        }
        _exit(0);
    }
    while (wait(NULL) > 0) {
    }
    int all = 0;
    for (int worker = 0; worker < WORKERS; worker++) {
        all += bad[worker];
    }
    ls_path_remove_tree(b.root);
    printf("hostile: %d of %d not as they must\n", all, count);
    return all == 0 ? 0 : LS_ERR_CHECK;
}

static base shared_base;

LOOP_TEST(judge_survives, (KINDS * QUICK_ROUNDS))
{
    char why[3000];
    if (kinds[_i % KINDS].slow) {
        return;
    }
    ck_assert_msg(try_one(&shared_base, _i % KINDS, (uint64_t)_i, why, sizeof why), "%s", why);
}

/* Nothing spoiled: the judge passes it, so each failure is of what was spoiled. */
TEST(base_passes)
{
    char program[PATH_BYTES], said[PATH_BYTES + 8];
    hostile h = {0};
    double seconds;
    ls_text_put(program, sizeof program, "%s/lockstep", shared_base.build);
    ls_text_put(said, sizeof said, "%s/said", shared_base.root);
    ls_text_put(h.folder, sizeof h.folder, "%s/whole", shared_base.root);
    copy_base(&shared_base, &h);
    ck_assert_int_eq(
        run((const char *const[]){program, "judge", h.folder, NULL}, said, BOUND_S, &seconds), 0);
}

int main(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[1], "subject") == 0) {
        return subject_main(argc, argv);
    }
    if (argc > 2) {
        return many_main(atoi(argv[1]), strtoull(argv[2], NULL, 10), argc > 3 ? argv[3] : NULL);
    }
    make_base(&shared_base);
    int code = RUN_TESTS("hostile", .timeout_s = 2 * BOUND_S);
    ls_path_remove_tree(shared_base.root);
    return code;
}
