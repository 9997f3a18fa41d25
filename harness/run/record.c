#include "record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/log.h"
#include "record_lines.h"
#include "kernels/core/text.h"

static const char *const digest_name[LS_RECORD_DIGESTS] = {"param",  "master", "state",
                                                           "scaler", "buffer", "grad"};

const char *ls_record_digest_name(ls_record_digest which)
{
    return digest_name[which];
}

static ls_record_state state_of(const char *text)
{
    static const struct {
        const char *start; /* of the word in job.json */
        ls_record_state state;
    } known[] = {{"done", LS_RECORD_DONE},       {"failed", LS_RECORD_FAILED},
                 {"killed", LS_RECORD_KILLED},   {"timed", LS_RECORD_TIMED_OUT},
                 {"stopped", LS_RECORD_STOPPED}, {"not", LS_RECORD_NOT_STARTED}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strncmp(text, known[i].start, strlen(known[i].start)) == 0) {
            return known[i].state;
        }
    }
    return LS_RECORD_UNKNOWN;
}

static double number_or_nan(const cJSON *object, const char *name)
{
    return ls_json_number(object, name, NAN);
}

static void read_step(ls_record_step *out, const cJSON *event)
{
    memset(out, 0, sizeof *out);
    out->step = ls_json_integer(event, "step", 0);
    out->loss = number_or_nan(event, "loss");
    out->loss_scale = number_or_nan(event, "loss_scale");
    out->loss_scale_next = number_or_nan(event, "loss_scale_next");
    out->lr = number_or_nan(event, "lr");
    out->skipped = ls_json_bool(event, "skipped", false);
    out->images = ls_json_integer(event, "images", 0);
    ls_text_put(out->loss_bits, sizeof out->loss_bits, "%s",
                ls_json_string(event, "loss_bits", ""));
    out->total_ms = number_or_nan(cJSON_GetObjectItemCaseSensitive(event, "ms"), "total");
    const cJSON *digest = cJSON_GetObjectItemCaseSensitive(event, "digest");
    for (int i = 0; i < LS_RECORD_DIGESTS; i++) {
        const char *text = ls_json_string(digest, digest_name[i], NULL);
        if (text != NULL) {
            ls_text_put(out->digest[i], sizeof out->digest[i], "%s", text);
            out->digest_mask |= 1u << i;
        }
    }
}

static void keep(cJSON **slot, const cJSON *event)
{
    cJSON_Delete(*slot);
    *slot = cJSON_Duplicate(event, true);
    LS_ASSERT(*slot != NULL);
}

static void visit_event(void *context, const cJSON *value)
{
    ls_record_rank *rank = context;
    const char *event = ls_json_string(value, "event", "");
    if (strcmp(event, "start") == 0) {
        keep(&rank->start, value);
    } else if (strcmp(event, "buckets") == 0) {
        keep(&rank->buckets, value);
    } else if (strcmp(event, "unsupported") == 0) {
        keep(&rank->unsupported, value);
    } else if (strcmp(event, "end") == 0) {
        rank->ended = true;
        rank->end_code = (int)ls_json_integer(value, "code", -1);
    } else if (strcmp(event, "step") == 0) {
        if ((rank->step_count & (rank->step_count - 1)) == 0) { /* grow at powers of two */
            size_t capacity = rank->step_count == 0 ? 1 : 2 * (size_t)rank->step_count;
            rank->step = realloc(rank->step, capacity * sizeof *rank->step);
            LS_ASSERT(rank->step != NULL);
        }
        read_step(&rank->step[rank->step_count++], value);
    }
}

static int count_event_files(const char *directory)
{
    int world = 0;
    char path[700];
    do {
        ls_text_put(path, sizeof path, "%s/rank%d.jsonl", directory, world);
    } while (access(path, R_OK) == 0 && ++world < 65536);
    return world;
}

static void read_outcome(ls_record *record)
{
    const cJSON *outcome = cJSON_GetObjectItemCaseSensitive(record->job, "outcome");
    record->state = state_of(ls_json_string(outcome, "state", ""));
    record->first_rank = (int)ls_json_integer(outcome, "first_rank", -1);
    record->code = (int)ls_json_integer(outcome, "code", 0);
    record->signal = (int)ls_json_integer(outcome, "signal", 0);
    record->seconds = ls_json_number(outcome, "seconds", 0);
    ls_text_put(record->why, sizeof record->why, "%s", ls_json_string(outcome, "why", ""));
    const cJSON *entry;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(outcome, "ranks"))
    {
        int64_t rank = ls_json_integer(entry, "rank", -1);
        if (rank >= 0 && rank < record->world) {
            record->rank[rank].code = (int)ls_json_integer(entry, "code", -1);
            record->rank[rank].signal = (int)ls_json_integer(entry, "signal", 0);
        }
    }
}

ls_status ls_record_read(const char *directory, ls_record *out)
{
    ls_record record;
    memset(&record, 0, sizeof record);
    ls_text_put(record.directory, sizeof record.directory, "%s", directory);
    record.first_rank = -1;
    char path[700];
    ls_text_put(path, sizeof path, "%s/job.json", directory);
    if (access(path, R_OK) == 0) {
        LS_TRY(ls_json_read_file(path, &record.job));
    }
    int files = count_event_files(directory);
    record.world = (int)ls_json_integer(ls_record_facts(&record), "world", files);
    if (record.job == NULL && files == 0) {
        ls_log_error("%s is no job's folder: neither job.json nor rank0.jsonl", directory);
        return LS_ERR_USAGE;
    }
    record.rank = calloc((size_t)(record.world > 0 ? record.world : 1), sizeof *record.rank);
    LS_ASSERT(record.rank != NULL);
    ls_status status = LS_OK;
    for (int k = 0; k < record.world; k++) {
        record.rank[k].code = record.rank[k].end_code = -1;
        ls_text_put(path, sizeof path, "%s/rank%d.jsonl", directory, k);
        if (access(path, R_OK) != 0) {
            continue;
        }
        record.rank[k].has_events = true;
        char broken[sizeof record.broken];
        LS_TRY_GOTO(status,
                    ls_record_lines_read(path, visit_event, &record.rank[k], broken, sizeof broken),
                    free_record);
        if (record.broken[0] == '\0') {
            ls_text_put(record.broken, sizeof record.broken, "%s", broken);
        }
    }
    if (record.job != NULL) {
        read_outcome(&record);
    }
    *out = record;
    return LS_OK;
free_record:
    ls_record_free(&record);
    return status;
}

void ls_record_free(ls_record *record)
{
    for (int k = 0; record->rank != NULL && k < record->world; k++) {
        cJSON_Delete(record->rank[k].start);
        cJSON_Delete(record->rank[k].buckets);
        cJSON_Delete(record->rank[k].unsupported);
        free(record->rank[k].step);
    }
    free(record->rank);
    cJSON_Delete(record->job);
    memset(record, 0, sizeof *record);
}

const cJSON *ls_record_facts(const ls_record *record)
{
    return cJSON_GetObjectItemCaseSensitive(record->job, "facts");
}

const ls_record_step *ls_record_find_step(const ls_record_rank *rank, int64_t step)
{
    for (int i = rank->step_count - 1; i >= 0; i--) {
        if (rank->step[i].step == step) {
            return &rank->step[i];
        }
    }
    return NULL;
}

/* The last bytes of a file as text; "" when there are none. */
static void read_tail(const char *path, char *text, size_t bytes)
{
    text[0] = '\0';
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return;
    }
    long room = (long)bytes - 1;
    if (fseek(file, 0, SEEK_END) == 0) {
        long size = ftell(file);
        (void)fseek(file, size > room ? size - room : 0, SEEK_SET);
        text[fread(text, 1, (size_t)room, file)] = '\0';
    }
    fclose(file);
}

void ls_record_last_line(const ls_record *record, int rank, char *text, int bytes)
{
    char path[700], tail[4096]; /* a log may be as long as the disk is */
    ls_text_put(path, sizeof path, "%s/rank%d.log", record->directory, rank);
    read_tail(path, tail, sizeof tail);
    char *end = tail + strlen(tail);
    while (end > tail && (end[-1] == '\n' || end[-1] == ' ')) {
        *--end = '\0';
    }
    char *line = strrchr(tail, '\n');
    ls_text_put(text, (size_t)bytes, "%s", line == NULL ? tail : line + 1);
}
