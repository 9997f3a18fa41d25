#include "judges.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "kernels/core/list.h"

static bool makes_folder(const char *path)
{
    (void)mkdir(path, 0777);
    LS_TEXT(inside, 800, "%s/.", path);
    return access(inside, W_OK | X_OK) == 0;
}

const char *ls_dumps_cache(const ls_record *job, char *cache, size_t bytes)
{
    LS_TEXT(run, 800, "%s/../../run.json", job->directory);
    ls_path_program(cache, bytes);
    ls_text_add(cache, bytes, "/oracle");
    if (makes_folder(cache)) {
        return cache;
    }
    ls_text_put(cache, bytes, "%s/../../oracle", job->directory);
    return access(run, F_OK) == 0 && makes_folder(cache) ? cache : NULL;
}

void ls_dumps_path(const ls_record *job, int64_t step, int rank, char *path, size_t bytes)
{
    ls_text_put(path, bytes, "%s/dump/step%06lld.rank%d.safetensors", job->directory,
                (long long)step, rank);
}

ls_dumpfile *ls_dumps_open(const ls_record *job, int64_t step, int rank, ls_verdict *out)
{
    char path[700];
    ls_dumpfile *file = NULL;
    ls_dumps_path(job, step, rank, path, sizeof path);
    if (ls_dumpfile_open(path, &file) != LS_OK) {
        ls_verdict_fail(out, "rank=%d: the dump of step %lld is missing or broken", rank,
                        (long long)step);
        return NULL;
    }
    return file;
}

ls_dumpfile *ls_dumps_open_file(const ls_record *job, const char *name, ls_verdict_code missing,
                                ls_verdict *out)
{
    ls_dumpfile *file = NULL;
    LS_TEXT(path, 900, "%s/%s", job->directory, name);
    if (ls_dumpfile_open(path, &file) != LS_OK) {
        ls_verdict_set(out, missing, "%s is missing or broken", name);
        return NULL;
    }
    return file;
}

ls_dumpfile *ls_dumps_open_update(const ls_record *job, int64_t step, int64_t *update,
                                  bool *skipped, ls_verdict *out)
{
    *update = 0;
    for (int64_t s = 1; s <= step; s++) {
        const ls_record_step *event = ls_record_find_step(&job->rank[0], s);
        if (event == NULL) {
            ls_verdict_fail(out, "rank 0 has no event of step %d", (int)s);
            return NULL;
        }
        *skipped = event->skipped;
        *update += event->skipped ? 0 : 1;
    }
    return ls_dumps_open(job, step, 0, out);
}

ls_bits_type ls_dumps_type(const ls_dumpfile_entry *entry)
{
    return strcmp(entry->dtype, "F16") == 0    ? LS_BITS_F16
           : strcmp(entry->dtype, "BF16") == 0 ? LS_BITS_BF16
                                               : LS_BITS_F32;
}

const void *ls_dumps_data(const ls_dumpfile_entry *entry, const char *type)
{
    return entry != NULL && strcmp(entry->dtype, type) == 0 ? entry->data : NULL;
}

double *ls_dumps_values(const ls_dumpfile_entry *entry)
{
    double *value = ls_list_make(1, (size_t)entry->count * sizeof *value + 1);
    ls_dumpfile_read(entry, value);
    return value;
}

const char *ls_dumps_next_param(const ls_dumpfile *file, int *at)
{
    while (*at < ls_dumpfile_count(file)) {
        const ls_dumpfile_entry *entry = ls_dumpfile_at(file, (*at)++);
        if (strncmp(entry->name, "param/", 6) == 0) {
            return entry->name + 6;
        }
    }
    return NULL;
}
