#include "journal.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/digest.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"

enum {
    KEPT = 1 << 16, /* indices of a pass in its event */
    CONTENTS = 64,  /* digests of samples in it */
    STRIDE = 64,    /* so many parts of the data set have one */
    LOADERS = 2,
};

/* One pass over a loader. */
typedef struct pass {
    bool open;
    int number;
    int64_t epoch, count, bad;
    int64_t first_step;
    uint64_t order; /* digest of all indices */
    int64_t modulus;
    int kept;
    int64_t *index; /* [KEPT] */
    int contents;
    int64_t content_index[CONTENTS];
    uint64_t content[CONTENTS];
    bool indexed; /* items are single images */
} pass;

struct ls_journal {
    pass pass[LOADERS];
    uint64_t buffers; /* before a validation, */
    int64_t pictures; /* and of it */
    int64_t steps;    /* whose batches were drawn */
};

static ls_status digest_all(const ls_trainer *trainer, ls_digest_set *out)
{
    ls_step_state state;
    LS_TRY(ls_device_read(&trainer->device, &state, trainer->memory.state, (int64_t)sizeof state));
    return ls_digest_compute(&trainer->memory, &state, LS_DIGEST_ALL, out);
}

/* What the run holds, by group. */
static ls_status add_state(cJSON *event, const ls_trainer *trainer)
{
    ls_digest_set digest;
    LS_TRY(digest_all(trainer, &digest));
    cJSON *list = cJSON_AddObjectToObject(event, "digest");
    for (int i = 0; i < LS_DIGEST_GROUP_GRAD; i++) {
        if (digest.given[i]) {
            ls_events_add_hex(list, ls_events_group_name((ls_digest_group)i), digest.value[i]);
        }
    }
    if (trainer->steps_per_epoch > 0) { /* other data have no epochs, and files no sums of them */
        cJSON *epoch = cJSON_AddObjectToObject(event, "epoch");
        cJSON_AddNumberToObject(epoch, "images", (double)trainer->epoch.images);
        cJSON_AddNumberToObject(epoch, "top1", (double)trainer->epoch.top1);
    }
    cJSON *best = cJSON_AddObjectToObject(event, "best");
    cJSON_AddNumberToObject(best, "step", (double)trainer->best.step);
    cJSON_AddNumberToObject(best, "images", (double)trainer->best.images);
    cJSON_AddNumberToObject(best, "top1", (double)trainer->best.top1);
    return LS_OK;
}

static void add_path(cJSON *event, const char *path)
{
    char *real = realpath(path, NULL);
    cJSON_AddStringToObject(event, "path", real != NULL ? real : path);
    free(real);
}

/* ---- passes ---------------------------------------------------------------------------------- */

static int64_t pictures_of(const ls_trainer *trainer, ls_journal_loader of)
{
    return of == LS_JOURNAL_TRAINING ? ls_loader_pictures(trainer->loader)
                                     : trainer->journal->pictures;
}

static int64_t per_step(const ls_trainer *trainer)
{
    return (int64_t)trainer->options.batch_size * trainer->options.accumulate;
}

/* Whether the pass went from the data's beginning to its last whole batch. */
static bool is_whole(const ls_trainer *trainer, ls_journal_loader of, const pass *p)
{
    int64_t whole = of == LS_JOURNAL_TRAINING ? trainer->steps_per_epoch * per_step(trainer) : 0;
    return of == LS_JOURNAL_VALIDATION || (whole > 0 && p->count >= whole);
}

static ls_status write_pass(const ls_trainer *trainer, ls_journal_loader of, pass *p)
{
    if (!p->open || p->count == 0) {
        return LS_OK;
    }
    bool trains = of == LS_JOURNAL_TRAINING, ends = pictures_of(trainer, of) > 0;
    cJSON *event = ls_events_begin("data");
    cJSON_AddNumberToObject(event, "loader", of);
    cJSON_AddNumberToObject(event, "pass", p->number);
    cJSON_AddStringToObject(event, "at", trains ? "--data" : "--val");
    cJSON_AddStringToObject(event, "sampler", ends ? "DistributedSampler" : "RankMajorSampler");
    cJSON_AddNumberToObject(event, "replicas", trainer->world.world);
    cJSON_AddNumberToObject(event, "sampler_rank", trainer->world.rank);
    cJSON_AddBoolToObject(event, "shuffle", trains && ends);
    cJSON_AddBoolToObject(event, "drop_last", trains);
    cJSON_AddNumberToObject(event, "sampler_epoch", (double)p->epoch);
    cJSON_AddNumberToObject(event, "length", (double)pictures_of(trainer, of));
    cJSON_AddNumberToObject(event, "batch", trainer->options.batch_size);
    cJSON_AddNumberToObject(event, "workers", trainer->options.workers);
    cJSON_AddNumberToObject(event, "count", (double)p->count);
    cJSON_AddNumberToObject(event, "bad", (double)p->bad);
    cJSON_AddBoolToObject(event, "whole", is_whole(trainer, of, p));
    cJSON_AddBoolToObject(event, "padded", !trainer->options.no_pad);
    cJSON_AddBoolToObject(event, "indices", p->indexed);
    cJSON_AddBoolToObject(event, "trained", trains);
    cJSON *steps = cJSON_AddArrayToObject(event, "steps");
    cJSON_AddItemToArray(steps, cJSON_CreateNumber((double)p->first_step));
    cJSON_AddItemToArray(
        steps, cJSON_CreateNumber((double)(trainer->first_step - 1 + trainer->journal->steps)));
    ls_events_add_hex(event, "order", p->order);
    cJSON_AddNumberToObject(event, "modulus", (double)p->modulus);
    cJSON *kept = cJSON_AddArrayToObject(event, "kept");
    for (int i = 0; i < p->kept && p->indexed; i++) {
        cJSON_AddItemToArray(kept, cJSON_CreateNumber((double)p->index[i]));
    }
    cJSON *content = cJSON_AddArrayToObject(event, "content");
    for (int i = 0; i < p->contents; i++) {
        cJSON *pair = cJSON_CreateArray();
        cJSON_AddItemToArray(pair, cJSON_CreateNumber((double)p->content_index[i]));
        LS_TEXT(text, 24, "%016" PRIx64, p->content[i]);
        cJSON_AddItemToArray(pair, cJSON_CreateString(text));
        cJSON_AddItemToArray(content, pair);
    }
    return ls_events_write_line(trainer->events, event);
}

static ls_status begin_pass(const ls_trainer *trainer, ls_journal_loader of, pass *p,
                            const ls_loader_batch *batch)
{
    if (p->open && (batch->epoch == p->epoch || of == LS_JOURNAL_VALIDATION)) {
        return LS_OK;
    }
    LS_TRY(write_pass(trainer, of, p));
    int64_t *index = p->index, length = pictures_of(trainer, of);
    int number = p->open ? p->number + 1 : p->number;
    *p = (pass){.open = true,
                .number = number,
                .epoch = batch->epoch,
                .first_step = trainer->first_step + trainer->journal->steps,
                .order = LS_DIGEST_START,
                .modulus = 1,
                .index = index,
                .indexed = batch->index != NULL};
    while (length / p->modulus > KEPT) {
        p->modulus *= 2;
    }
    if (p->index == NULL) {
        p->index = ls_list_make(KEPT, sizeof *p->index);
    }
    return LS_OK;
}

static void add_content(const ls_trainer *trainer, ls_journal_loader of, pass *p,
                        const ls_loader_batch *batch, int i)
{
    int64_t stride = (pictures_of(trainer, of) + STRIDE - 1) / STRIDE, index = batch->index[i];
    size_t size = (size_t)trainer->options.image_size, values = 3 * size * size;
    if (p->contents == CONTENTS || (stride > 0 && index % stride != 0)) {
        return;
    }
    const char *data = batch->bytes != NULL   ? (const char *)(batch->bytes + (size_t)i * values)
                       : batch->input != NULL ? (const char *)(batch->input + (size_t)i * values)
                                              : NULL;
    if (data != NULL) {
        size_t bytes = values * (batch->bytes != NULL ? 1 : sizeof(float));
        p->content_index[p->contents] = index;
        p->content[p->contents++] = ls_digest_xxh64(0, data, bytes);
    }
}

ls_status ls_journal_batch(const ls_trainer *trainer, ls_journal_loader of,
                           const ls_loader_batch *batch, int counted)
{
    ls_journal *journal = trainer->journal;
    if (journal == NULL) {
        return LS_OK;
    }
    pass *p = &journal->pass[of];
    LS_TRY(begin_pass(trainer, of, p, batch));
    for (int i = 0; i < counted && p->indexed; i++) {
        int64_t index = batch->index[i];
        p->order = ls_digest_update(p->order, &index, sizeof index);
        if (index % p->modulus == 0 && p->kept < KEPT) {
            p->index[p->kept++] = index;
        }
        p->bad += batch->bad != NULL && batch->bad[i];
        add_content(trainer, of, p, batch, i);
    }
    int64_t parts = per_step(trainer), before = p->count;
    p->count += counted;
    if (of == LS_JOURNAL_TRAINING && p->count / parts > before / parts) {
        journal->steps++;
    }
    return LS_OK;
}

/* ---- validations and files ------------------------------------------------------------------- */

ls_status ls_journal_validation(const ls_trainer *trainer, bool begins, int64_t step,
                                int64_t pictures)
{
    ls_journal *journal = trainer->journal;
    if (journal == NULL) {
        return LS_OK;
    }
    ls_digest_set digest;
    journal->pictures = pictures;
    LS_TRY(digest_all(trainer, &digest));
    uint64_t now = digest.value[LS_DIGEST_GROUP_BUFFER];
    if (begins) {
        journal->buffers = now;
        return LS_OK;
    }
    pass *p = &journal->pass[LS_JOURNAL_VALIDATION];
    LS_TRY(write_pass(trainer, LS_JOURNAL_VALIDATION, p));
    p->number += p->open;
    p->open = false;
    cJSON *event = ls_events_begin("validation");
    cJSON_AddNumberToObject(event, "step", (double)step);
    cJSON_AddNumberToObject(event, "length", (double)pictures);
    ls_events_add_hex(event, "buffers_before", journal->buffers);
    ls_events_add_hex(event, "buffers_after", now);
    return ls_events_write_line(trainer->events, event);
}

ls_status ls_journal_saved(const ls_trainer *trainer, int64_t step, const char *path)
{
    if (trainer->journal == NULL) {
        return LS_OK;
    }
    cJSON *event = ls_events_begin("save");
    cJSON_AddStringToObject(event, "at", "--save");
    cJSON_AddNumberToObject(event, "step", (double)step);
    add_path(event, path);
    ls_status status = add_state(event, trainer);
    if (status != LS_OK) {
        cJSON_Delete(event);
        return status;
    }
    return ls_events_write_line(trainer->events, event);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static ls_status write_resumed(const ls_trainer *trainer)
{
    cJSON *load = ls_events_begin("load"), *restore = ls_events_begin("restore");
    cJSON_AddStringToObject(load, "at", "--resume");
    cJSON_AddNumberToObject(load, "step", 0);
    add_path(load, trainer->options.resume);
    cJSON_AddStringToObject(restore, "what", "run");
    cJSON_AddStringToObject(restore, "at", "--resume");
    cJSON_AddNumberToObject(restore, "step", (double)(trainer->first_step - 1));
    ls_status status = add_state(restore, trainer);
    if (status != LS_OK) {
        cJSON_Delete(load);
        cJSON_Delete(restore);
        return status;
    }
    LS_THEN(status, ls_events_write_line(trainer->events, load));
    return status == LS_OK ? ls_events_write_line(trainer->events, restore) : status;
}

ls_status ls_journal_open(ls_trainer *trainer)
{
    const char *wanted = getenv("LS_OBSERVE_DIR");
    if (wanted == NULL || wanted[0] == '\0' || !ls_events_enabled(trainer->events)) {
        return LS_OK;
    }
    trainer->journal = ls_list_make(1, sizeof *trainer->journal);
    return trainer->options.resume[0] != '\0' ? write_resumed(trainer) : LS_OK;
}

ls_status ls_journal_close(ls_trainer *trainer)
{
    ls_status status = LS_OK;
    if (trainer->journal == NULL) {
        return LS_OK;
    }
    for (int i = 0; i < LOADERS; i++) {
        LS_THEN(status, write_pass(trainer, (ls_journal_loader)i, &trainer->journal->pass[i]));
        free(trainer->journal->pass[i].index);
    }
    free(trainer->journal);
    trainer->journal = NULL;
    return status;
}
