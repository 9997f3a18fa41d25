#include "dumps.h"

#include "kernels/core/text.h"

void ls_dumps_path(const ls_record *job, int64_t step, int rank, char *path, size_t bytes)
{
    ls_text_put(path, bytes, "%s/dump/step%06lld.rank%d.safetensors", job->directory,
                (long long)step, rank);
}

ls_safetensors *ls_dumps_open(const ls_record *job, int64_t step, int rank, ls_verdict *out)
{
    char path[700];
    ls_safetensors *file = NULL;
    ls_dumps_path(job, step, rank, path, sizeof path);
    if (ls_safetensors_open(path, &file) != LS_OK) {
        ls_verdict_fail(out, "rank=%d: the dump of step %lld is missing or broken", rank,
                        (long long)step);
        return NULL;
    }
    return file;
}
