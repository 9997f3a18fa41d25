#include "lack.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/cores.h"
#include "kernels/core/plain.h"
#include "kernels/core/text.h"

/* How programs and systems say what they lack: strerror's texts (glibc), Python's and PyTorch's
 * exceptions, libgomp's, the dynamic linker's, our own. */
static const struct word {
    const char *text, *lack;
    bool disk;
} words[] = {
    {"no memory", "memory", false},
    {"annot allocate memory", "memory", false}, /* ENOMEM; the dynamic linker's begins with a c */
    {"an't allocate memory", "memory", false},  /* PyTorch's allocator */
    {"bad_alloc", "memory", false},
    {"MemoryError", "memory", false},
    {"out of memory", "memory", false},
    {"Out of memory", "memory", false},
    {"out_of_memory", "memory", false},
    {"failed to map segment", "memory", false}, /* the dynamic linker's */
    {"insufficient shared memory", "shared memory", false},
    {"an't start new thread", "threads", false},
    {"Thread creation failed", "threads", false},
    {"Resource temporarily unavailable", "threads or processes", false}, /* EAGAIN of fork, clone */
    {"Too many open files", "descriptors", false},
    {"short of descriptors", "descriptors", false},
    {"No space left on device", "disk", true},
    {"Disk quota exceeded", "disk", true},
    {"File too large", "disk", true},
    {"Read-only file system", "disk", true},
};

static const struct word *word_in(const char *line, bool takes_disk)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strstr(line, words[i].text) != NULL && !(takes_disk && words[i].disk)) {
            return &words[i];
        }
    }
    return NULL;
}

/* The first line at the end of a rank's log that says what it lacked. */
static bool says(const ls_record *job, int rank, bool takes_disk, char *text, size_t bytes)
{
    enum { LINES = 60 };
    char tail[8192], *rest = NULL;
    ls_record_last_lines(job, rank, LINES, tail, sizeof tail);
    for (char *line = strtok_r(tail, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        const struct word *found = word_in(line, takes_disk);
        if (found != NULL) {
            ls_text_put(text, bytes, "rank=%d lacked %s: %.240s", rank, found->lack, line);
            ls_plain_replace(text, bytes);
            return true;
        }
    }
    return false;
}

static bool left_badly(const ls_record_rank *rank)
{
    return rank->signal != 0 || rank->code > 0 || (rank->code < 0 && rank->end_code > 0);
}

/* By its exit code alone. */
static bool is_infrastructure(const ls_record_rank *rank)
{
    int code = rank->code < 0 ? rank->end_code : rank->code;
    bool agrees = !rank->ended || rank->end_code < 0 || rank->end_code == code;
    return rank->signal == 0 && agrees && (code == LS_ERR_INFRA || code == 126 || code == 127);
}

bool ls_lack_find(const ls_record *job, bool takes_disk, char *text, size_t bytes)
{
    char line[240];
    if (job->state == LS_RECORD_NOT_STARTED) {
        ls_text_put(text, bytes, "the job could not be started%s%s",
                    job->why[0] != '\0' ? ": " : "", job->why);
        return true;
    }
    for (int k = 0; k < job->world; k++) {
        if (left_badly(&job->rank[k]) && says(job, k, takes_disk, text, bytes)) {
            return true;
        }
    }
    for (int k = 0; k < job->world; k++) {
        const ls_record_rank *rank = &job->rank[k];
        if (job->memory_kills > 0 && (rank->signal == SIGKILL || rank->code == 128 + SIGKILL)) {
            ls_text_put(text, bytes,
                        "rank=%d signal=9 while the kernel killed %ld process%s for lack of memory",
                        k, job->memory_kills, job->memory_kills == 1 ? "" : "es");
            return true;
        }
        if (!takes_disk && is_infrastructure(rank)) {
            ls_record_last_line(job, k, line, (int)sizeof line);
            ls_text_put(text, bytes, "rank=%d exit code %d: %s", k,
                        rank->code < 0 ? rank->end_code : rank->code, line);
            return true;
        }
    }
    return false;
}

/* "oom_kill 3" of memory.events (v2) and memory.oom_control (v1). */
static void add_kills(const char *folder, bool second, void *context)
{
    LS_TEXT(path, 1200, "%s/%s", folder, second ? "memory.events" : "memory.oom_control");
    char *text = ls_text_read(path), *found = text == NULL ? NULL : strstr(text, "oom_kill ");
    *(long *)context += found == NULL ? 0 : atol(found + sizeof "oom_kill");
    free(text);
}

long ls_lack_kills(void)
{
    long kills = 0;
    ls_cores_each_cgroup("memory", add_kills, &kills);
    return kills;
}
