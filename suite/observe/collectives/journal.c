#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int64_t ls_journal_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void ls_journal_word(char *to, size_t bytes, const char *word)
{
    size_t i = 0;
    for (; word != NULL && word[i] != '\0' && i + 1 < bytes; i++) {
        unsigned char c = (unsigned char)word[i];
        to[i] = c < 0x20 || c >= 0x7f || c == '"' || c == '\\' ? '?' : (char)c;
    }
    to[i] = '\0';
}

int64_t ls_journal_setting(const char *name, int64_t least, int64_t most, int64_t fallback)
{
    const char *text = getenv(name);
    char *end = NULL;
    if (text == NULL || text[0] == '\0') {
        return fallback;
    }
    errno = 0;
    long long value = strtoll(text, &end, 10);
    return errno == 0 && *end == '\0' && value >= least && value <= most ? value : fallback;
}

int64_t ls_journal_stall_s(void)
{
    return ls_journal_setting("LS_OBSERVE_STALL_S", 1, 86400, 10);
}

/* Whether this is the process that opened it. */
static bool is_ours(const ls_journal *journal)
{
    return journal->pid != 0 && journal->pid == getpid() && !journal->quiet;
}

bool ls_journal_is_open(const ls_journal *journal)
{
    return is_ours(journal);
}

static void report_and_stop(ls_journal *journal, const char *why, const char *what)
{
    if (!journal->quiet) {
        journal->quiet = true;
        fprintf(stderr, "lockstep observe: collectives are no longer seen: %s%s%s\n", why,
                what[0] != '\0' ? ": " : "", what);
    }
}

void ls_journal_end_by(ls_journal *journal, const char *why)
{
    pthread_mutex_lock(&journal->lock);
    report_and_stop(journal, why, "");
    pthread_mutex_unlock(&journal->lock);
}

/* Called with the lock held. */
static void write_out(ls_journal *journal)
{
    size_t done = 0;
    while (done < journal->used && is_ours(journal)) {
        ssize_t count = write(journal->file, journal->text + done, journal->used - done);
        if (count > 0) {
            done += (size_t)count;
        } else if (errno != EINTR) {
            report_and_stop(journal, "their file cannot be written", strerror(errno));
        }
    }
    journal->used = 0;
}

static void add(ls_journal *journal, bool must, const char *format, va_list list)
{
    if (!is_ours(journal)) {
        return;
    }
    if (journal->lines >= LS_JOURNAL_LINES_MAX && !must) {
        journal->dropped++;
        return;
    }
    if (journal->used + LS_JOURNAL_LINE_MAX > sizeof journal->text) {
        write_out(journal);
    }
    int length = vsnprintf(journal->text + journal->used, LS_JOURNAL_LINE_MAX - 1, format, list);
    if (length < 0 || length >= LS_JOURNAL_LINE_MAX - 1) {
        journal->dropped++;
        return;
    }
    journal->used += (size_t)length;
    journal->text[journal->used++] = '\n';
    journal->lines++;
}

void ls_journal_add(ls_journal *journal, bool must, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    pthread_mutex_lock(&journal->lock);
    add(journal, must, format, list);
    pthread_mutex_unlock(&journal->lock);
    va_end(list);
}

void ls_journal_flush(ls_journal *journal)
{
    if (!is_ours(journal)) { /* first: a forked child's lock may be held for ever */
        return;
    }
    pthread_mutex_lock(&journal->lock);
    write_out(journal);
    pthread_mutex_unlock(&journal->lock);
}

/* ---- opening --------------------------------------------------------------------------------- */

static int job_rank(int fallback)
{
    static const char *const names[] = {
#define LAUNCHER(name, rank, ...) rank,
#include "harness/hosts/launchers.def"
#undef LAUNCHER
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int64_t rank = ls_journal_setting(names[i], 0, INT_MAX, -1);
        if (rank >= 0) {
            return (int)rank;
        }
    }
    return fallback;
}

/* A new file; one that is there belongs to another process, which is never overwritten. */
static int create(const char *folder, const char *name, int rank)
{
    char path[PATH_MAX];
    int file = -1;
    for (int with_pid = 0; with_pid <= 1 && file < 0; with_pid++) {
        int length = with_pid
                         ? snprintf(path, sizeof path, "%s/%s.rank%d.%d.jsonl", folder, name, rank,
                                    (int)getpid())
                         : snprintf(path, sizeof path, "%s/%s.rank%d.jsonl", folder, name, rank);
        if (length < 0 || length >= (int)sizeof path) {
            errno = ENAMETOOLONG;
            return -1;
        }
        file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (file < 0 && errno != EEXIST) {
            return -1;
        }
    }
    return file;
}

/* The kernel's id of this boot: processes with the same one share CLOCK_MONOTONIC. "": not known.
 */
static void read_boot(char *to, size_t bytes)
{
    char text[40] = "";
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t count = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) {
        close(file);
    }
    text[count > 0 ? count : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    ls_journal_word(to, bytes, text);
}

/* Called with the lock held. */
static void start(ls_journal *journal, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    add(journal, true, format, list);
    va_end(list);
    write_out(journal);
}

bool ls_journal_open(ls_journal *journal, const char *name, int rank, const char *members)
{
    const char *folder = getenv("LS_OBSERVE_DIR");
    if (folder == NULL || folder[0] == '\0' || journal->quiet ||
        (journal->pid != 0 && journal->pid != getpid())) { /* a forked child's lock may be held */
        return false;
    }
    pthread_mutex_lock(&journal->lock);
    if (journal->pid == 0) {
        char boot[40];
        int of_job = job_rank(rank), file = create(folder, name, of_job);
        if (file < 0) {
            report_and_stop(journal, folder, strerror(errno));
        } else {
            journal->file = file;
            journal->pid = getpid();
            read_boot(boot, sizeof boot);
            start(journal,
                  "{\"event\":\"start\",\"schema\":1,\"rank\":%d,\"pid\":%d,\"boot\":\"%s\","
                  "\"stall_s\":%d%s}",
                  of_job, (int)getpid(), boot, (int)ls_journal_stall_s(), members);
        }
    }
    bool ours = is_ours(journal);
    pthread_mutex_unlock(&journal->lock);
    return ours;
}
