/* Invented job folders: what a judge says of a record that is wrong in one place. */
#ifndef LS_SUITE_FAKE_H
#define LS_SUITE_FAKE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "suite/run/run.h"

/* One step of one rank; digests are numbers written as 16 digits. */
typedef struct fake_step {
    int step;
    double loss, scale, next;
    int skipped;
    unsigned param, state, buffer, grad;
} fake_step;

static inline void fake_folder(char *path, size_t bytes)
{
    ls_text_put(path, bytes, "/tmp/lockstep-fake-XXXXXX");
    LS_ASSERT(mkdtemp(path) != NULL);
}

/* The folder of a test: .before = fake_begin, .after = fake_end. */
static char folder[64];

static inline void fake_begin(void)
{
    fake_folder(folder, sizeof folder);
}

static inline void fake_end(void)
{
    ls_path_remove_tree(folder);
}

static inline FILE *fake_open(const char *folder, const char *name)
{
    char path[700];
    ls_text_put(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    LS_ASSERT(file != NULL);
    return file;
}

/* Runs the line in the folder, where $B is this build, which PATH begins with. `said` gets what it
 * prints, which is in `log`; returns its exit code, or -1. */
static inline int fake_shell(const char *folder, const char *line, char **said)
{
    char build[1024], command[5000];
    ls_path_program(build, sizeof build);
    char *slash = strrchr(build, '/'); /* this program lies in build/unit */
    LS_ASSERT(slash != NULL);
    *slash = '\0';
    ls_text_put(command, sizeof command,
                "cd '%s' && export B='%s' LC_ALL=C && export PATH=\"$B:$PATH\" && { %s\n} >log "
                "2>&1 </dev/null",
                folder, build, line);
    int status = system(command);
    LS_TEXT(path, 800, "%s/log", folder);
    *said = ls_text_read(path);
    LS_ASSERT(*said != NULL);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The first of the parts, which '|' divides, that the text lacks; NULL: it has all. */
static inline const char *fake_lacks(const char *text, const char *parts)
{
    static char part[400];
    for (; *parts != '\0'; parts += *parts == '|') {
        int length = (int)strcspn(parts, "|");
        ls_text_put(part, sizeof part, "%.*s", length, parts);
        if (strstr(text, part) == NULL) {
            return part;
        }
        parts += length;
    }
    return NULL;
}

static inline void fake_rank(const char *folder, int rank, const fake_step *step, int count)
{
    char name[32];
    ls_text_put(name, sizeof name, "rank%d.jsonl", rank);
    FILE *file = fake_open(folder, name);
    fprintf(file, "{\"event\":\"start\",\"schema\":1,\"world\":2,\"options\":{}}\n");
    for (int i = 0; i < count; i++) {
        const fake_step *s = &step[i];
        fprintf(file,
                "{\"event\":\"step\",\"step\":%d,\"loss\":%g,\"loss_bits\":\"0x%08x\","
                "\"loss_scale\":%g,\"loss_scale_next\":%g,\"skipped\":%s,\"lr\":0.1,\"images\":4,"
                "\"digest\":{\"param\":\"%016x\",\"state\":\"%016x\",\"buffer\":\"%016x\","
                "\"grad\":\"%016x\"},\"ms\":{\"total\":10}}\n",
                s->step, s->loss, (unsigned)(s->loss * 1000), s->scale, s->next,
                s->skipped ? "true" : "false", s->param, s->state, s->buffer, s->grad);
    }
    fclose(file);
}

/* job.json of a world of two; codes and signals per rank. */
static inline void fake_outcome(const char *folder, const char *state, int first_rank, int code,
                                int signal, const int codes[2])
{
    FILE *file = fake_open(folder, "job.json");
    fprintf(file,
            "{\"schema\":1,\"id\":\"x\",\"facts\":{\"world\":2},\"outcome\":{\"state\":\"%s\","
            "\"first_rank\":%d,\"code\":%d,\"signal\":%d,\"seconds\":1.5,\"ranks\":["
            "{\"rank\":0,\"code\":%d,\"signal\":0},{\"rank\":1,\"code\":%d,\"signal\":%d}]}}\n",
            state, first_rank, code, signal, codes[0], codes[1], signal);
    fclose(file);
}

static inline ls_record fake_read(const char *folder)
{
    ls_record record;
    LS_ASSERT(ls_record_read(folder, LS_RECORD_STRICT, &record) == LS_OK);
    return record;
}

/* Those of all families; freed by ls_rows_free. */
static inline ls_case_list fake_cases(void)
{
    ls_case_settings settings = {.seed = 7};
    ls_case_list list = {0};
    ls_cases_all(&settings, &list);
    return list;
}

/* The row of that id, from all families. */
static inline ls_case *fake_case(ls_case_list *list, const char *id)
{
    for (int i = 0; i < list->count; i++) {
        if (strcmp(list->row[i].id, id) == 0) {
            return &list->row[i];
        }
    }
    return NULL;
}

#endif
