/* `make fuzz`: mutated input for every reader of what others wrote, under the sanitizers. The same
 * seed and number give the same input again, on the same recorded jobs.
 *
 *   build/fuzz/unit/fuzz SECONDS SEED RECORDED [READER]     (suite/unit/fuzz/run.sh starts it)
 *
 * Each reader runs in a child of its own. One that crashes, or takes more than 10 s for one input,
 * leaves that input in a file that is named, and the exit code is 1. */
#include "fuzz.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"

enum { SAID_MAX = 3000 }; /* bytes shown of a reader's last messages */

/* Seen by parent and child. */
typedef struct shared {
    int64_t count;
    bool whole; /* the reader came to its end: nothing called exit */
    bytes input;
} shared;

/* ---- mutation ------------------------------------------------------------------------------- */

/* xorshift64* (Vigna 2016, "An experimental exploration of Marsaglia's xorshift generators") */
uint64_t fuzz_draw(fuzz *f)
{
    f->random ^= f->random >> 12;
    f->random ^= f->random << 25;
    f->random ^= f->random >> 27;
    return f->random * UINT64_C(2685821657736338717);
}

size_t fuzz_below(fuzz *f, size_t limit)
{
    return limit == 0 ? 0 : (size_t)(fuzz_draw(f) >> 16) % limit;
}

const char *fuzz_word(fuzz *f)
{
    static const char *const words[] = {"-1",
                                        "0",
                                        "0.5",
                                        "1e300",
                                        "1e999",
                                        "-1e300",
                                        "18446744073709551615",
                                        "2000000000",
                                        "4294967296",
                                        "9223372036854775807",
                                        "-9223372036854775808",
                                        "null",
                                        "true",
                                        "\"",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "\\u0000",
                                        "\n",
                                        "#",
                                        "*",
                                        "%s%n",
                                        "\x1b[2J",
                                        "\xff\xff\xff\xff",
                                        "\x80",
                                        "F32",
                                        "BF16",
                                        "slots=",
                                        "nan",
                                        "-nan",
                                        "inf",
                                        "1e-400"};
    return words[fuzz_below(f, sizeof words / sizeof *words)];
}

double fuzz_number(fuzz *f)
{
    static const double numbers[] = {0,          1,          2,           3,      0.5,    -1,
                                     1e300,      -1e300,     1e18,        0x1p31, 0x1p32, 0x1p53,
                                     0x1p63 - 1, 2147483647, -2147483648, 65536};
    return numbers[fuzz_below(f, sizeof numbers / sizeof *numbers)];
}

static void replace(bytes *b, size_t from, size_t taken, const void *text, size_t count)
{
    if (from > b->count || taken > b->count - from || b->count - taken + count > INPUT_BYTES_MAX) {
        return;
    }
    unsigned char copy[64];
    LS_ASSERT(count <= sizeof copy);
    memcpy(copy, text, count);
    memmove(b->at + from + count, b->at + from + taken, b->count - from - taken);
    memcpy(b->at + from, copy, count);
    b->count += count - taken;
}

void fuzz_mutate(fuzz *f, bytes *b, size_t limit)
{
    size_t at = fuzz_below(f, (limit < b->count ? limit : b->count) + 1);
    size_t rest = b->count - at, some = fuzz_below(f, rest < 32 ? rest + 1 : 32);
    const char *word = fuzz_word(f);
    switch (fuzz_below(f, 10)) {
    case 0:
        b->at[at] ^= (unsigned char)(1u << fuzz_below(f, 8));
        break;
    case 1:
        b->at[at] = (unsigned char)fuzz_draw(f);
        break;
    case 2:
        replace(b, at, some, "", 0);
        break;
    case 3:
        replace(b, at, 0, b->at + at, some);
        break;
    case 4:
        replace(b, at, 0, word, strlen(word));
        break;
    case 5:
        replace(b, at, some, word, strlen(word));
        break;
    case 6:
        b->count = fuzz_below(f, 4) == 0 ? at : b->count;
        break;
    case 7: { /* a number, which may be a length, becomes another */
        size_t digit = at + strcspn((char *)b->at + at, "0123456789");
        replace(b, digit, strspn((char *)b->at + digit, "0123456789.e"), word, strlen(word));
        break;
    }
    case 8: /* longer than anybody has thought of */
        for (size_t times = fuzz_below(f, 80); times > 0; times--) {
            replace(b, at, 0, b->at + at, some);
        }
        break;
    default: /* a piece of another seed */
        replace(b, at, 0, f->seed[fuzz_below(f, (size_t)f->seeds)].at + fuzz_below(f, 64), some);
    }
    b->at[b->count] = '\0';
}

void fuzz_make(fuzz *f, bytes *b)
{
    const bytes *seed = &f->seed[fuzz_below(f, (size_t)f->seeds)];
    memcpy(b->at, seed->at, seed->count + 1);
    b->count = seed->count;
    for (size_t left = 1 + fuzz_below(f, 6); left > 0; left--) {
        fuzz_mutate(f, b, b->count);
    }
}

/* ---- files ---------------------------------------------------------------------------------- */

const char *fuzz_path(const fuzz *f, const char *name, char path[PATH_BYTES])
{
    ls_text_put(path, PATH_BYTES, "%s/%s", f->folder, name);
    return path;
}

void fuzz_put_file(const fuzz *f, const char *name, const void *data, size_t count)
{
    char path[PATH_BYTES];
    int fd = open(fuzz_path(f, name, path), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    LS_ASSERT(fd >= 0 && write(fd, data, count) == (ssize_t)count);
    close(fd);
}

void fuzz_add_seed(fuzz *f, const void *data, size_t count)
{
    LS_ASSERT(f->seeds < SEEDS_MAX && count <= INPUT_BYTES_MAX);
    bytes *seed = &f->seed[f->seeds++];
    memcpy(seed->at, data, count);
    seed->at[count] = '\0';
    seed->count = count;
}

void fuzz_add_seed_text(fuzz *f, const char *text)
{
    fuzz_add_seed(f, text, strlen(text));
}

void fuzz_add_seed_file(fuzz *f, const char *path)
{
    static unsigned char data[INPUT_BYTES_MAX];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t count = fd < 0 ? -1 : read(fd, data, sizeof data);
    if (count <= 0 || (size_t)count == sizeof data) {
        ls_log_error("%s cannot be a seed: %zd bytes", path, count);
        exit(LS_ERR_USAGE);
    }
    close(fd);
    fuzz_add_seed(f, data, (size_t)count);
}

/* ---- running -------------------------------------------------------------------------------- */

/* The child: its messages go to a file that is kept short. */
static int run_reader(const reader *r, fuzz *f, int64_t until_ns, shared *status)
{
    char said[PATH_BYTES];
    int fd =
        open(fuzz_path(f, "said", said), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    LS_ASSERT(fd >= 0 && dup2(fd, STDERR_FILENO) >= 0 && dup2(fd, STDOUT_FILENO) >= 0);
    f->seed = calloc(SEEDS_MAX, sizeof *f->seed);
    LS_ASSERT(f->seed != NULL);
    r->seed(f);
    for (; ls_clock_ns() < until_ns; status->count++) {
        if (status->count % 256 == 0) {
            (void)!ftruncate(STDERR_FILENO, 0);
        }
        (r->make != NULL ? r->make : fuzz_make)(f, &status->input);
        alarm(INPUT_LIMIT_S);
        r->read(f, &status->input);
    }
    alarm(0);
    if (r->end != NULL) {
        r->end(f);
    }
    free(f->seed);
    status->whole = true;
    return 0;
}

static bool fuzz_reader(const reader *r, const char *recorded, uint64_t seed, double seconds)
{
    fuzz f = {.recorded = recorded, .random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1};
    /* in memory where there is such a folder: inputs are written by the thousand */
    ls_text_put(f.folder, sizeof f.folder, "%s/ls_fuzz_XXXXXX",
                access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp");
    LS_ASSERT(mkdtemp(f.folder) != NULL);
    shared *status =
        mmap(NULL, sizeof *status, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    LS_ASSERT(status != MAP_FAILED);
    int state = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        exit(run_reader(r, &f, ls_clock_ns() + (int64_t)(seconds * 1e9), status));
    }
    LS_ASSERT(waitpid(pid, &state, 0) == pid);
    int64_t count = status->count;
    bool good = WIFEXITED(state) && WEXITSTATUS(state) == 0 && count > 0 && status->whole;
    if (!good) {
        fuzz_put_file(&f, "input", status->input.at, status->input.count);
    }
    munmap(status, sizeof *status);
    printf("%s - %s: %" PRId64 " inputs, seed %" PRIu64 "\n", good ? "ok" : "not ok", r->name,
           count, seed);
    if (!good) {
        char path[PATH_BYTES];
        char *said = ls_text_read(fuzz_path(&f, "said", path));
        size_t length = said == NULL ? 0 : strlen(said);
        printf("%s %d; the input is %s/input\n%s\n", WIFSIGNALED(state) ? "signal" : "exit code",
               WIFSIGNALED(state) ? WTERMSIG(state) : WEXITSTATUS(state), f.folder,
               said == NULL ? "" : said + (length > SAID_MAX ? length - SAID_MAX : 0));
        free(said);
        return false;
    }
    ls_path_remove_tree(f.folder);
    return true;
}

int main(int argc, char **argv)
{
    static const reader *const all[] = {fuzz_tensor_readers, fuzz_pth_readers,
                                        fuzz_image_readers,  fuzz_text_readers,
                                        fuzz_wire_readers,   fuzz_observed_readers};
    double seconds = argc > 1 ? atof(argv[1]) : 0;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    const reader *chosen[32];
    int count = 0, bad = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        for (const reader *r = all[i]; r->name != NULL; r++) {
            LS_ASSERT(count < (int)(sizeof chosen / sizeof *chosen));
            if (argc < 5 || strcmp(argv[4], r->name) == 0) {
                chosen[count++] = r;
            }
        }
    }
    if (!(seconds > 0) || argc < 4 || argc > 5 || count == 0) {
        ls_log_error("usage: fuzz SECONDS SEED RECORDED [READER]");
        return LS_ERR_USAGE;
    }
    for (int i = 0; i < count; i++) {
        bad += !fuzz_reader(chosen[i], argv[3], seed, seconds / count);
    }
    printf("fuzz: %d readers, %d not clean\n", count, bad);
    return bad == 0 ? 0 : LS_ERR_CHECK;
}
