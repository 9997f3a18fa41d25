/* A file of JSON lines in LS_OBSERVE_DIR, written by a library that is loaded into another's
 * process: it never fails the process. Whole lines only; a process that was forked off writes
 * nothing. */
#ifndef LS_JOURNAL_H
#define LS_JOURNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What a loaded library exports; all else is hidden, so that it overrides no name of the process.
 */
#define LS_JOURNAL_EXPORT __attribute__((visibility("default")))

enum {
    LS_JOURNAL_LINE_MAX = 12 << 10, /* bytes of a line with its newline */
    LS_JOURNAL_LINES_MAX = 200000,  /* of a process; lines that must be written come after, too */
};

typedef struct ls_journal {
    pthread_mutex_t lock;
    int file;  /* valid if `pid` is this process */
    pid_t pid; /* 0: not open */
    bool quiet;
    int64_t lines, dropped;
    size_t used;
    char text[4 * LS_JOURNAL_LINE_MAX];
} ls_journal;

#define LS_JOURNAL_INIT                   \
    {                                     \
        .lock = PTHREAD_MUTEX_INITIALIZER \
    }

/* Opens LS_OBSERVE_DIR/<name>.rank<k>.jsonl, k from RANK, OMPI_COMM_WORLD_RANK or SLURM_PROCID,
 * else `rank`, and writes its start event; where another process has that file, the name has the
 * process's id, too. False without LS_OBSERVE_DIR, or, with one line on stderr, where it cannot be
 * opened. `members` are further members of the start event, "" or ",\"api\":5". */
bool ls_journal_open(ls_journal *journal, const char *name, int rank, const char *members);
bool ls_journal_is_open(const ls_journal *journal);
/* Adds a line (without its newline); after LS_JOURNAL_LINES_MAX it is dropped unless `must`. */
void ls_journal_add(ls_journal *journal, bool must, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void ls_journal_flush(ls_journal *journal);
/* One line on stderr, then nothing more is written. */
void ls_journal_end_by(ls_journal *journal, const char *why);

int64_t ls_journal_now_ns(void); /* CLOCK_MONOTONIC, as in all events */
/* Copies a foreign word as it may stand in a JSON string: other characters become '?'. */
void ls_journal_word(char *to, size_t bytes, const char *word);
/* An environment variable as a number from `least` to `most`, else the fallback. */
int64_t ls_journal_setting(const char *name, int64_t least, int64_t most, int64_t fallback);
int64_t ls_journal_stall_s(void); /* LS_OBSERVE_STALL_S */

#endif
