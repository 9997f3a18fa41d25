/* What a subject dumps: that it is all there, and that it is what the events speak of. */
#include "subject.h"

#include <math.h>
#include <string.h>

#include "kernels/core/path.h"
#include "kernels/core/digest.h"
#include "kernels/core/list.h"
#include "reference/files/safetensors.h"
#include "reference/oracle/nettab.h"
#include "suite/judge/judges.h"

enum { CLASSES = 10 };

/* ---- completeness ---------------------------------------------------------------------------- */

static void check_tensor(const ls_dumpfile *file, int rank, const char *name, int64_t count,
                         ls_verdict *out)
{
    const ls_dumpfile_entry *entry = ls_dumpfile_find(file, name);
    bool classes = strcmp(name, "target") == 0; /* all others are numbers of the training */
    if (classes ? entry == NULL || entry->count != count || strcmp(entry->dtype, "I64") != 0
                : !ls_dumpfile_floats(entry, count)) {
        ls_verdict_fail(out, "rank=%d: the dump's %s %s: expected %lld %s", rank, name,
                        entry == NULL ? "is missing" : "has another size or type", (long long)count,
                        classes ? "I64" : "floats");
    }
}

static void check_params(const ls_dumpfile *file, int rank, const ls_nettab *net, ls_verdict *out)
{
    static const char *const kinds[] = {"param", "grad", "next"};
    static const char *const buffers[] = {"running_mean", "running_var"};
    for (int i = 0; i < net->param_count; i++) {
        const ls_nettab_param *p = &net->param[i];
        char name[160];
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            ls_text_put(name, sizeof name, "%s/%s", kinds[k], p->name);
            check_tensor(file, rank, name, p->count, out);
        }
        const char *dot = strrchr(p->name, '.');
        bool norm = net->node[p->node].kind == LS_NETTAB_NORM && strcmp(dot, ".bias") == 0;
        for (int b = 0; b < 2 && norm; b++) {
            ls_text_put(name, sizeof name, "buffer/%.*s.%s", (int)(dot - p->name), p->name,
                        buffers[b]);
            check_tensor(file, rank, name, p->count, out);
        }
    }
}

/* By the format: sizes, offsets and alignment, which the reader of the judges takes as they come.
 */
static void check_format(const ls_record *job, int step, int rank, ls_verdict *out)
{
    char path[700];
    ls_safetensors *file = NULL;
    ls_dumps_path(job, step, rank, path, sizeof path);
    if (ls_safetensors_open(path, &file) != LS_OK) {
        ls_verdict_fail(out, "rank=%d: the dump of step %d is no whole safetensors file", rank,
                        step);
    }
    ls_safetensors_close(file);
}

/* Names that no network of this kind has point at a subject that renames. */
static void check_strangers(const ls_dumpfile *file, int rank, const ls_nettab *net,
                            ls_verdict *out)
{
    for (int i = 0; i < ls_dumpfile_count(file); i++) {
        const char *name = ls_dumpfile_at(file, i)->name;
        if (!ls_compare_checks_belongs(net, name)) {
            ls_verdict_fail(out, "rank=%d: %.80s is no tensor of %s", rank, name, net->arch);
        }
    }
}

/* How many ranks dump. */
static int dumping(const ls_case *row, const ls_record *job)
{
    const ls_subject_dumped *dumped = row->data;
    return dumped != NULL && dumped->ranks > 0 ? dumped->ranks : job->world;
}

static void check_files(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    LS_TEXT(path, 700, "%s/dump", job->directory);
    DIR *folder = ls_path_open_folder(path);
    for (const char *e; (e = ls_path_next(&folder)) != NULL;) {
        int step = 0, rank = -1, end = 0;
        bool named = sscanf(e, "step%6d.rank%d.safetensors%n", &step, &rank, &end) == 2 &&
                     e[end] == '\0' && end > 0;
        bool wanted = named && step == atoi(row->job[0].dump_steps) && rank < dumping(row, job);
        if (e[0] != '.' && !wanted) {
            ls_verdict_fail(out, "dump/%s was not asked for", e);
        }
    }
}

static void check_metadata(const ls_case *row, const ls_dumpfile *file, int rank,
                           const ls_record *job, ls_verdict *out)
{
    LS_TEXT(level, 8, "O%d", row->job[0].level);
    LS_TEXT(world, 16, "%d", job->world);
    const struct {
        const char *name, *value;
    } wanted[] = {{"step", row->job[0].dump_steps}, {"opt_level", level}, {"world_size", world}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const char *found = ls_dumpfile_text(file, wanted[i].name, "(nothing)");
        if (strcmp(found, wanted[i].value) != 0) {
            ls_verdict_fail(out, "rank=%d: the dump's metadata says %s %s, expected %s", rank,
                            wanted[i].name, found, wanted[i].value);
        }
    }
}

static void check_skipped(const ls_case *row, const ls_record *job, int rank, ls_verdict *out)
{
    const ls_subject_dumped *dumped = row->data;
    const ls_record_step *step =
        ls_record_find_step(&job->rank[rank], atoi(row->job[0].dump_steps));
    if (dumped != NULL && dumped->skipped && step != NULL && !step->skipped) {
        ls_verdict_set(out, LS_WEAK, "rank=%d: the step was not skipped", rank);
    }
}

void ls_subject_dump(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_spec *spec = &row->job[0];
    ls_nettab *net = ls_list_make(1, sizeof *net);
    LS_ASSERT(ls_nettab_build(spec->arch, CLASSES, spec->image_size, spec->image_size, net) ==
              LS_OK);
    for (int k = 0; k < dumping(row, job); k++) {
        ls_dumpfile *file = ls_dumps_open(job, atoi(spec->dump_steps), k, out);
        if (file == NULL) {
            continue;
        }
        int64_t images = spec->batch_size, pixels = (int64_t)spec->image_size * spec->image_size;
        check_format(job, atoi(spec->dump_steps), k, out);
        check_tensor(file, k, "input", images * 3 * pixels, out);
        check_tensor(file, k, "target", images, out);
        check_tensor(file, k, "logits", images * CLASSES, out);
        check_tensor(file, k, "loss", 1, out);
        check_params(file, k, net, out);
        check_strangers(file, k, net, out);
        check_metadata(row, file, k, job, out);
        ls_dumps_match(spec, file, atoi(spec->dump_steps), k, job, out);
        check_skipped(row, job, k, out);
        ls_dumpfile_close(file);
    }
    check_files(row, job, out);
    ls_verdict_pass(out, (int64_t)dumping(row, job) * net->param_count,
                    "%d ranks dumped step %s: all of %d parameters' tensors", dumping(row, job),
                    spec->dump_steps, net->param_count);
    free(net);
}

/* ---- digests --------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const ls_dumpfile_entry *const *)a)->name,
                  (*(const ls_dumpfile_entry *const *)b)->name);
}

/* FNV-1a 64 of all tensors whose name begins so, in order of name; how many there are. `with`:
 * only those that have a tensor of that kind, too, or NULL. */
static int digest_of(const ls_dumpfile *file, const char *prefix, const char *with, char text[20])
{
    const ls_dumpfile_entry **entry =
        ls_list_make((size_t)ls_dumpfile_count(file) + 1, sizeof *entry);
    int count = 0;
    for (int i = 0; i < ls_dumpfile_count(file); i++) {
        const ls_dumpfile_entry *one = ls_dumpfile_at(file, i);
        if (strncmp(one->name, prefix, strlen(prefix)) == 0 &&
            (with == NULL ||
             ls_dumpfile_findf(file, "%s/%s", with, one->name + strlen(prefix)) != NULL)) {
            entry[count++] = one;
        }
    }
    qsort(entry, (size_t)count, sizeof *entry, by_name);
    uint64_t digest = LS_DIGEST_START;
    for (int i = 0; i < count; i++) {
        digest = ls_digest_update(digest, entry[i]->data, (size_t)entry[i]->bytes);
    }
    free(entry);
    ls_text_put(text, 20, "%016llx", (unsigned long long)digest);
    return count;
}

void ls_subject_digest(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_spec *spec = &row->job[0];
    const struct {
        const char *prefix, *with;
        ls_record_digest digest;
    } wanted[] = {{"next/", NULL, LS_RECORD_PARAM},
                  {"next/", "master", LS_RECORD_MASTER},
                  {"buffer/", NULL, LS_RECORD_BUFFER},
                  {"next_state/", NULL, LS_RECORD_STATE},
                  {"grad/", NULL, LS_RECORD_GRAD}};
    int compared = 0, step = atoi(spec->dump_steps);
    for (int k = 0; k < job->world; k++) {
        const ls_record_step *seen = ls_record_find_step(&job->rank[k], step);
        ls_dumpfile *file = ls_dumps_open(job, step, k, out);
        if (seen == NULL) {
            ls_verdict_fail(out, "rank=%d has no event of step %d", k, step);
        }
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted && file != NULL && seen != NULL;
             i++) {
            char text[20];
            if (i == 0 && (spec->level == 2 || ls_dumpfile_has(file, "master/"))) {
                continue; /* next/ holds the masters there, and f32 parameters that have none */
            }
            if ((seen->digest_mask & 1u << wanted[i].digest) == 0 ||
                digest_of(file, wanted[i].prefix, wanted[i].with, text) == 0) {
                continue;
            }
            compared++;
            if (strcmp(text, seen->digest[wanted[i].digest]) != 0) {
                ls_verdict_fail(out,
                                "rank=%d step %d: digest %s is %s, that of the dump's %s is %s", k,
                                step, ls_record_digest_name(wanted[i].digest),
                                seen->digest[wanted[i].digest], wanted[i].prefix, text);
            }
        }
        ls_dumpfile_close(file);
    }
    if (compared == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "no digests of what was dumped");
    }
    ls_verdict_pass(out, compared, "%d digests are those of the tensors dumped", compared);
}

/* ---- options that are about tensors ---------------------------------------------------------- */

void ls_subject_still(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int compared = 0;
    for (int k = 0; k < job->world; k++) {
        for (int i = 1; i < job->rank[k].step_count; i++) {
            const ls_record_step *now = &job->rank[k].step[i], *before = now - 1;
            if ((now->digest_mask & before->digest_mask & 1u << LS_RECORD_PARAM) == 0) {
                continue;
            }
            compared++;
            if (strcmp(now->digest[LS_RECORD_PARAM], before->digest[LS_RECORD_PARAM]) != 0) {
                ls_verdict_fail(out, "rank=%d step %d: parameters changed at a learning rate of 0",
                                k, (int)now->step);
            }
        }
    }
    if (compared == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "no digests of parameters");
    }
    ls_verdict_pass(out, compared, "%d steps at --lr=0 changed nothing", compared);
}

void ls_subject_batches(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    static const char *const names[] = {"input", "target"};
    const char *folder = row->job[0].data + strlen("batches:{run}");
    int compared = 0;
    for (int k = 0; k < job->world; k++) {
        for (int step = 1; step <= row->job[0].steps; step++) {
            LS_TEXT(name, 700, "../..%s/step%06d.rank%d.safetensors", folder, step, k);
            ls_dumpfile *given = ls_dumps_open_file(job, name, LS_INFRA, out);
            ls_dumpfile *file = ls_dumps_open(job, step, k, out);
            for (int i = 0; i < 2 && file != NULL && given != NULL; i++) {
                compared++;
                if (!ls_dumpfile_equal(ls_dumpfile_find(file, names[i]),
                                       ls_dumpfile_find(given, names[i]))) {
                    ls_verdict_fail(out, "rank=%d step %d: %s is not what was given", k, step,
                                    names[i]);
                }
            }
            ls_dumpfile_close(file);
            ls_dumpfile_close(given);
        }
    }
    ls_verdict_pass(out, compared, "%d given tensors were trained on, bit for bit", compared);
}

void ls_subject_init(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    ls_dumpfile *given = ls_dumps_open_file(job, "../../overflow/init.safetensors", LS_INFRA, out);
    if (given == NULL) {
        return;
    }
    for (int k = 0; k < job->world; k++) {
        ls_dumpfile *file = ls_dumps_open(job, 1, k, out);
        LS_TEXT(who, 32, "rank=%d", k);
        (void)ls_dumps_same(given, "", file, "param/", who, "is not what --init gave", out);
        ls_dumpfile_close(file);
    }
    ls_verdict_pass(out, (int64_t)ls_dumpfile_count(given) * job->world,
                    "%d given parameters were there at step 1, bit for bit",
                    ls_dumpfile_count(given));
    ls_dumpfile_close(given);
}
