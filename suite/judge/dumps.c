#include "judges.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/core/path.h"
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

/* A dump for which this program has no memory or descriptor is not missing: it ends. */
static ls_status open_dump(const char *path, ls_dumpfile **file)
{
    errno = 0;
    ls_status status = ls_dumpfile_open(path, file);
    if (status == LS_ERR_INFRA) {
        ls_status_check_lack(path);
    }
    return status;
}

ls_dumpfile *ls_dumps_open(const ls_record *job, int64_t step, int rank, ls_verdict *out)
{
    char path[700];
    ls_dumpfile *file = NULL;
    ls_dumps_path(job, step, rank, path, sizeof path);
    if (open_dump(path, &file) != LS_OK) {
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
    if (open_dump(path, &file) != LS_OK) {
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

/* Of a batch that devices of one process share: they are dumped as micro-steps. */
static int parts_of(const cJSON *options)
{
    double batch = ls_json_number(options, "batch-size", 1);
    bool stages = cJSON_IsTrue(ls_json_get(options, "model-parallel"));
    double split = ls_json_number(options, "split-size", batch);
    return stages && split >= 1 ? (int)(batch / split)
                                : (int)ls_json_number(options, "data-parallel", 1);
}

void ls_dumps_match(const ls_spec *spec, const ls_dumpfile *file, int64_t number, int rank,
                    const ls_record *job, ls_verdict *out)
{
    const ls_record_step *step = ls_record_find_step(&job->rank[rank], number);
    const cJSON *options = ls_json_get(job->rank[rank].start, "options");
    if (step == NULL) {
        ls_verdict_fail(out, "rank=%d dumped a step that has no event", rank);
        return;
    }
    bool sgd = strcmp(ls_dumpfile_text(file, "optimizer", "sgd"), "sgd") == 0;
    const struct {
        const char *name, *absent; /* what no metadata stands for; NULL: nothing */
        double value;
    } wanted[] = {{"rank", NULL, rank},
                  {"loss_scale", "1", step->loss_scale},
                  {"loss_scale_next", NULL, step->loss_scale_next},
                  {"lr", NULL, step->lr},
                  {"momentum", sgd ? "0" : NULL, ls_json_number(options, "momentum", NAN)},
                  {"label_smoothing", "0", ls_json_number(options, "label-smoothing", NAN)},
                  {"clip_grad_norm", "0", ls_json_number(options, "clip-grad-norm", NAN)},
                  {"clip_grad_value", "0", ls_json_number(options, "clip-grad-value", NAN)},
                  {"weight_decay", "0", ls_json_number(options, "weight-decay", NAN)},
                  {"accumulate", "1", spec->accumulate * parts_of(options)}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const char *written = ls_dumpfile_text(file, wanted[i].name, NULL);
        const char *found = written != NULL ? written : wanted[i].absent;
        if (found != NULL && !isnan(wanted[i].value) &&
            (float)strtod(found, NULL) != (float)wanted[i].value) {
            ls_verdict_fail(out, "rank=%d: the dump's metadata says %s %s%s, the events %.9g", rank,
                            wanted[i].name, found, written == NULL ? " (absent)" : "",
                            wanted[i].value);
        }
    }
    if (ls_dumpfile_flag(file, "skipped", false) != step->skipped) {
        const char *skipped = ls_dumpfile_text(file, "skipped", "false (absent)");
        ls_verdict_fail(out, "rank=%d: the dump's metadata says skipped %s, the event %s", rank,
                        skipped, step->skipped ? "true" : "false");
    }
    const char *half = ls_dumpfile_text(file, "half", spec->half);
    if (strcmp(half, spec->half) != 0) {
        ls_verdict_fail(out, "rank=%d: the dump's metadata says half %s, asked was %s", rank, half,
                        spec->half);
    }
    const ls_dumpfile_entry *target = ls_dumpfile_find(file, "target");
    if (target != NULL && step->images > 0 && target->count != step->images) {
        ls_verdict_fail(out, "rank=%d: the dump has %lld targets, the event %lld images", rank,
                        (long long)target->count, (long long)step->images);
    }
    const ls_dumpfile_entry *loss = ls_dumpfile_find(file, "loss");
    float value = 0;
    if (loss == NULL || strcmp(loss->dtype, "F32") != 0 || loss->count != 1) {
        return;
    }
    memcpy(&value, loss->data, sizeof value);
    if (!isnan(step->loss) && (float)step->loss != value) {
        ls_verdict_fail(out, "rank=%d: the dump's loss is %.9g, the event's %.9g", rank,
                        (double)value, step->loss);
    }
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

int ls_dumps_same(const ls_dumpfile *from, const char *from_group, const ls_dumpfile *to,
                  const char *to_group, const char *who, const char *why, ls_verdict *out)
{
    int compared = 0;
    size_t length = strlen(from_group);
    for (int i = 0; from != NULL && to != NULL && i < ls_dumpfile_count(from); i++) {
        const ls_dumpfile_entry *entry = ls_dumpfile_at(from, i);
        if (strncmp(entry->name, from_group, length) != 0) {
            continue;
        }
        compared++;
        const char *rest = entry->name + length;
        if (!ls_dumpfile_equal(entry, ls_dumpfile_findf(to, "%s%s", to_group, rest))) {
            ls_verdict_fail(out, "%s: %s%s %s", who, to_group, rest, why);
        }
    }
    return compared;
}

bool ls_dumps_targets(const ls_record *job, int64_t step, int rank, int64_t count, int64_t *target)
{
    ls_verdict unused = {.code = LS_PASS};
    ls_dumpfile *file = ls_dumps_open(job, step, rank, &unused);
    const ls_dumpfile_entry *entry = file == NULL ? NULL : ls_dumpfile_find(file, "target");
    bool read = entry != NULL && entry->count == count && ls_dumpfile_read_i64(entry, target);
    ls_dumpfile_close(file);
    return read;
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
