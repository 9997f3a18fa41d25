/* Training that starts from the parameters in another run's dump, whatever type it holds them in.
 */
#include "suite/cases/rows.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "reference/oracle/dumpfile.h"
#include "suite/judge/dumps.h"

enum { DUMPED = 2 };

static const struct start {
    const char *id, *from_half, *half;
    int from, level;
} starts[] = {{"o0-to-o0", "fp16", "fp16", 0, 0},
              {"o2-to-o2", "fp16", "fp16", 2, 2},
              {"bf16-to-bf16", "bf16", "bf16", 2, 2},
              {"o2-to-o0", "fp16", "fp16", 2, 0},
              {"bf16-to-o0", "bf16", "fp16", 2, 0}};

/* Parameters of rank `rank` at step 1 of the second job against those of the dump: halves and f32
 * that came from them are the same numbers. */
static int compare_rank(const ls_dumpfile *given, const ls_record *job, int rank, ls_verdict *out)
{
    char path[700];
    ls_dumpfile *file;
    int compared = 0;
    ls_dumps_path(job, 1, rank, path, sizeof path);
    if (ls_dumpfile_open(path, &file) != LS_OK) {
        ls_verdict_fail(out, "rank=%d: the dump of step 1 is missing or broken", rank);
        return 0;
    }
    for (int i = 0; i < ls_dumpfile_count(given); i++) {
        const ls_dumpfile_entry *want = ls_dumpfile_at(given, i);
        if (strncmp(want->name, "param/", 6) != 0) {
            continue;
        }
        const ls_dumpfile_entry *got = ls_dumpfile_find(file, want->name);
        double *a = malloc((size_t)want->count * sizeof *a);
        double *b = malloc((size_t)want->count * sizeof *b);
        LS_ASSERT(a != NULL && b != NULL);
        ls_dumpfile_read(want, a);
        bool fits = got != NULL && got->count == want->count;
        if (fits) {
            ls_dumpfile_read(got, b);
        }
        if (!fits || memcmp(a, b, (size_t)want->count * sizeof *a) != 0) {
            ls_verdict_fail(out, "rank=%d: %s at step 1 is not what --init gave", rank, want->name);
        }
        free(a);
        free(b);
        compared++;
    }
    ls_dumpfile_close(file);
    return compared;
}

static void judge_start(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    char path[700];
    ls_dumpfile *given;
    int compared = 0;
    (void)row;
    ls_dumps_path(&job[0], DUMPED, 0, path, sizeof path);
    if (ls_dumpfile_open(path, &given) != LS_OK) {
        ls_verdict_fail(out, "the first job's dump is missing or broken");
        return;
    }
    for (int rank = 0; rank < job[1].world; rank++) {
        compared += compare_rank(given, &job[1], rank, out);
    }
    ls_dumpfile_close(given);
    ls_verdict_pass(out, "%d parameters of %d ranks start as the dump holds them", compared,
                    job[1].world);
}

void ls_init_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        const struct start *s = &starts[i];
        char id[96];
        ls_case *row = ls_rows_add(list, judge_start, "Q34", "init.dump.%s.w2", s->id);
        row->job_count = 2;
        for (int j = 0; j < 2; j++) {
            ls_spec *spec = &row->job[j];
            *spec = ls_rows_evidence(settings, j == 0 ? s->from : s->level, 2, 1, 0.05);
            ls_text_put(spec->arch, sizeof spec->arch, "resnet8");
            ls_text_put(spec->half, sizeof spec->half, "%s", j == 0 ? s->from_half : s->half);
            ls_text_put(spec->dump_steps, sizeof spec->dump_steps, "%d", j == 0 ? DUMPED : 1);
            spec->steps = j == 0 ? DUMPED : 1;
        }
        ls_matrix_id(&row->job[0], id);
        ls_text_put(row->job[1].extra, sizeof row->job[1].extra,
                    "--init={job:%s}/dump/step000002.rank0.safetensors", id);
    }
}
