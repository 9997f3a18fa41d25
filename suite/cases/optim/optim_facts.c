#include "optim_facts.h"

#include <stdio.h>

#include "kernels/core/text.h"

bool ls_optim_facts_open(const ls_record *job, int64_t step, ls_dumpfile **file, int64_t *update,
                         bool *skipped, ls_verdict *out)
{
    char path[700];
    ls_text_put(path, sizeof path, "%s/dump/step%06d.rank0.safetensors", job->directory, (int)step);
    *update = 0;
    for (int64_t s = 1; s <= step; s++) {
        const ls_record_step *event = ls_record_find_step(&job->rank[0], s);
        if (event == NULL) {
            ls_verdict_fail(out, "rank 0 has no event of step %d", (int)s);
            return false;
        }
        *skipped = event->skipped;
        *update += event->skipped ? 0 : 1;
    }
    if (ls_dumpfile_open(path, file) != LS_OK) {
        ls_verdict_fail(out, "the dump of step %d is missing or broken", (int)step);
        return false;
    }
    return true;
}
