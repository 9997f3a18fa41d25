#include "record.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "harness/hosts/hosts.h"
#include "kernels/core/cores.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/plain.h"
#include "kernels/core/text.h"
#include "kernels/core/list.h"
#include "kernels/core/path.h"

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
                 {"killed", LS_RECORD_KILLED},   {"time", LS_RECORD_TIMED_OUT},
                 {"stopped", LS_RECORD_STOPPED}, {"not", LS_RECORD_NOT_STARTED}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strncmp(text, known[i].start, strlen(known[i].start)) == 0) {
            return known[i].state;
        }
    }
    return LS_RECORD_UNKNOWN;
}

static double number_of(const cJSON *object, const char *name)
{
    return ls_json_number(object, name, NAN);
}

/* "loss" is null or too large for a number, or its bits are those of an infinity or a NaN. */
static bool is_lost(const ls_record_step *step, const cJSON *event)
{
    const unsigned long exponent = 0x7f800000;
    return cJSON_IsNull(ls_json_get(event, "loss")) || isinf(step->loss) ||
           (strtoul(step->loss_bits, NULL, 16) & exponent) == exponent;
}

static void read_step(ls_record_step *out, const cJSON *event, int count)
{
    const cJSON *ms = ls_json_get(event, "ms");
    *out = (ls_record_step){
        .step = ls_json_integer(event, "step", count),
        .loss = number_of(event, "loss"),
        .loss_scale = number_of(event, "loss_scale"),
        .loss_scale_next = number_of(event, "loss_scale_next"),
        .lr = number_of(event, "lr"),
        .skipped = ls_json_bool(event, "skipped", false),
        .audited = ls_json_bool(event, "audited", false),
        .joined = ls_json_bool(event, "joined", false),
        .active = ls_json_int(event, "active", 0),
        .top1 = ls_json_integer(event, "top1", -1),
        .top5 = ls_json_integer(event, "top5", -1),
        .images = ls_json_int(event, "images", 0),
        .bad_images = ls_json_integer(event, "bad_images", 0),
        .grad_norm = number_of(event, "grad_norm"),
        .norm_given = cJSON_HasObjectItem(event, "grad_norm"),
        .at_ns = number_of(event, "at_ns"),
        .total_ms = number_of(ms, "total"),
        .data_ms = number_of(ms, "data"),
        .forward_ms = number_of(ms, "forward"),
        .backward_ms = number_of(ms, "backward"),
        .comm_ms = number_of(ms, "comm"),
        .exposed_ms = number_of(ms, "comm_exposed"),
        .optimizer_ms = number_of(ms, "optimizer"),
        .instrument_ms = number_of(ms, "instrument"),
    };
    ls_text_put(out->loss_bits, sizeof out->loss_bits, "%s",
                ls_json_string(event, "loss_bits", ""));
    out->loss_lost = is_lost(out, event);
    out->skip_given = cJSON_HasObjectItem(event, "skipped");
    const cJSON *digest = ls_json_get(event, "digest");
    for (int i = 0; i < LS_RECORD_DIGESTS; i++) {
        const char *text = ls_json_string(digest, digest_name[i], NULL);
        if (text != NULL) {
            ls_text_put(out->digest[i], sizeof out->digest[i], "%s", text);
            out->digest_mask |= 1u << i;
        }
    }
}

static void copy_text(const cJSON *object, const char *name, char *out, size_t bytes)
{
    ls_plain_copy(out, bytes, ls_json_string(object, name, ""));
}

static void keep(cJSON **slot, const cJSON *event)
{
    cJSON_Delete(*slot);
    *slot = cJSON_Duplicate(event, true);
    LS_MEMORY(*slot != NULL);
}

/* true, or why steps are not launched as graphs; no member on a device without graphs. */
static void read_graph(ls_record_rank *rank, const cJSON *event)
{
    copy_text(event, "cuda_graph", rank->no_graph, sizeof rank->no_graph);
    rank->graph_reported = cJSON_HasObjectItem(event, "cuda_graph");
}

/* A rank that was started again: from its first step on the later start's events stand. */
static void drop_repeated(ls_record_rank *rank, int64_t first)
{
    while (rank->step_count > 0 && rank->step[rank->step_count - 1].step >= first) {
        rank->step_count--;
    }
    for (int i = cJSON_GetArraySize(rank->epochs) - 1; i >= 0; i--) {
        const cJSON *epoch = cJSON_GetArrayItem(rank->epochs, i);
        if (ls_json_integer(epoch, "step", 0) >= first) {
            cJSON_DeleteItemFromArray(rank->epochs, i);
        }
    }
    rank->ended = false;
    rank->end_code = -1;
}

static void read_start(ls_record_rank *rank, const cJSON *event)
{
    if (rank->start != NULL) {
        drop_repeated(rank, ls_json_integer(event, "first_step", 1));
    }
    keep(&rank->start, event);
    rank->threads = ls_json_int(event, "threads", 0);
    copy_text(event, "device", rank->device, sizeof rank->device);
    copy_text(ls_json_get(event, "options"), "opt-level", rank->level, sizeof rank->level);
    read_graph(rank, event);
}

/* How often a step reduces every bucket: with --no-sync False in each micro-step. */
static double reductions_of(const ls_record_rank *rank)
{
    const cJSON *options = ls_json_get(rank->start, "options");
    bool each = cJSON_IsFalse(ls_json_get(options, "no-sync"));
    return each ? ls_json_number(options, "accumulate", 1) : 1;
}

static void read_buckets(ls_record_rank *rank, const cJSON *event)
{
    keep(&rank->buckets, event);
    rank->reduced_bytes = 0;
    const cJSON *bucket;
    ls_json_each(bucket, ls_json_get(event, "buckets")) {
        rank->reduced_bytes += reductions_of(rank) * ls_json_number(bucket, "bytes", 0);
    }
}

static void add_step(ls_record_rank *rank, const cJSON *event)
{
    if ((rank->step_count & (rank->step_count - 1)) == 0) { /* grow at powers of two */
        size_t capacity = rank->step_count == 0 ? 1 : 2 * (size_t)rank->step_count;
        rank->step = realloc(rank->step, capacity * sizeof *rank->step);
        LS_MEMORY(rank->step != NULL);
    }
    ls_record_step *step = &rank->step[rank->step_count++];
    read_step(step, event, rank->step_count);
}

static void read_event(ls_record_rank *rank, const cJSON *value)
{
    const char *event = ls_json_string(value, "event", "");
    if (strcmp(event, "start") == 0) {
        read_start(rank, value);
    } else if (strcmp(event, "buckets") == 0) {
        read_buckets(rank, value);
    } else if (strcmp(event, "graph") == 0) {
        read_graph(rank, value);
    } else if (strcmp(event, "epoch") == 0) {
        rank->epochs = rank->epochs != NULL ? rank->epochs : cJSON_CreateArray();
        cJSON_AddItemToArray(rank->epochs, cJSON_Duplicate(value, true));
    } else if (strcmp(event, "unsupported") == 0) {
        keep(&rank->unsupported, value);
    } else if (strcmp(event, "audit") == 0) {
        bool clean = ls_json_integer(value, "bad", -1) == 0 &&
                     ls_json_integer(value, "elements", 0) > 0 &&
                     ls_json_string(value, "unaudited", "")[0] == '\0';
        rank->audits++;
        rank->bad_audits += !clean;
    } else if (strcmp(event, "end") == 0) {
        rank->ended = true;
        rank->end_code = ls_json_int(value, "code", -1);
    } else if (strcmp(event, "step") == 0) {
        add_step(rank, value);
    }
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Strict reading checks events against the subject protocol (suite/protocol.md): whole JSON
 * objects, the start first, steps counted one by one, every member of its type. A breach is
 * described with its line; it is a finding about the subject, not an error here. Lenient reading
 * takes every JSON object, and leaves out a last line without its newline: the rank may have been
 * killed while it wrote. */

/* How much of a line is shown. */
enum { SHOWN = 100 };

typedef enum kind { WHOLE_NUMBER, NUMBER, TEXT, TRUTH, OBJECT } kind;

static const struct member {
    const char *event, *name;
    kind kind;
    bool needed;
} members[] = {
    {"start", "options", OBJECT, false},   {"step", "step", WHOLE_NUMBER, true},
    {"step", "loss", NUMBER, false},       {"step", "loss_bits", TEXT, false},
    {"step", "loss_scale", NUMBER, false}, {"step", "loss_scale_next", NUMBER, false},
    {"step", "skipped", TRUTH, false},     {"step", "audited", TRUTH, false},
    {"step", "lr", NUMBER, false},         {"step", "images", WHOLE_NUMBER, false},
    {"step", "digest", OBJECT, false},     {"step", "ms", OBJECT, false},
    {"step", "top1", WHOLE_NUMBER, false}, {"step", "top5", WHOLE_NUMBER, false},
    {"step", "joined", TRUTH, false},      {"step", "active", WHOLE_NUMBER, false},
    {"step", "grad_norm", NUMBER, false},  {"epoch", "step", WHOLE_NUMBER, true},
    {"epoch", "train", OBJECT, false},     {"epoch", "val", OBJECT, false},
    {"unsupported", "option", TEXT, true},
};

typedef struct reader {
    bool strict;
    int rank;
    ls_record_visit *visit; /* or NULL */
    void *context;
    ls_status status; /* of visit */
    bool started, ended;
    int64_t step; /* the last one; 0: none yet */
    char why[160];
} reader;

static bool of_kind(const cJSON *value, kind wanted)
{
    switch (wanted) {
    case WHOLE_NUMBER:
        return cJSON_IsNumber(value) &&
               ls_json_whole(value->valuedouble, 0, INT64_C(1) << 53, &(int64_t){0});
    case NUMBER: /* null: infinite or not a number */
        return cJSON_IsNumber(value) || cJSON_IsNull(value);
    case TEXT:
        return cJSON_IsString(value);
    case TRUTH:
        return cJSON_IsBool(value);
    case OBJECT:
        return cJSON_IsObject(value);
    }
    return false;
}

static bool members_fit(reader *r, const cJSON *value, const char *event)
{
    static const char *const word[] = {"a whole number", "a number", "a string", "true or false",
                                       "an object"};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const struct member *m = &members[i];
        if (strcmp(m->event, event) != 0) {
            continue;
        }
        const cJSON *found = ls_json_get(value, m->name);
        if (found == NULL ? m->needed : !of_kind(found, m->kind)) {
            ls_text_put(r->why, sizeof r->why, "has \"%s\" that is not %s", m->name, word[m->kind]);
            return false;
        }
    }
    return true;
}

/* False, and `why` filled, when this event may not stand here. */
static bool fits(reader *r, const cJSON *value)
{
    const char *event = ls_json_string(value, "event", NULL);
    int schema = ls_json_int(value, "schema", 0);
    int64_t first = ls_json_integer(value, "first_step", 1);
    if (event == NULL) {
        ls_text_put(r->why, sizeof r->why, "is no object with an \"event\"");
    } else if (r->started && strcmp(event, "start") == 0 && ls_json_int(value, "restart", 0) > 0 &&
               first >= 1 && first <= r->step + 1) {
        r->ended = false;
        r->step = first - 1;
        return true;
    } else if (r->ended) {
        ls_text_put(r->why, sizeof r->why, "comes after the end event");
    } else if (!r->started && (schema < 1 || schema > LS_RECORD_SCHEMA)) {
        ls_text_put(r->why, sizeof r->why, "is the first event and has no \"schema\" from 1 to %d",
                    LS_RECORD_SCHEMA);
    } else if (!r->started && strcmp(event, "start") != 0 && strcmp(event, "unsupported") != 0) {
        ls_text_put(r->why, sizeof r->why, "comes before the start event");
    } else if (r->started && strcmp(event, "start") == 0) {
        ls_text_put(r->why, sizeof r->why, "is a second start event");
    } else if (members_fit(r, value, event)) {
        bool step = strcmp(event, "step") == 0;
        int64_t number = ls_json_integer(value, "step", 0);
        if (step && (number < 1 || (r->step > 0 && number != r->step + 1))) {
            ls_text_put(r->why, sizeof r->why, "is step %lld after step %lld", (long long)number,
                        (long long)r->step);
            return false;
        }
        r->step = step ? number : r->step;
        r->started = true;
        r->ended = strcmp(event, "end") == 0;
        return true;
    }
    return false;
}

/* "rank0.jsonl line 3 WHY: 'LINE'". */
static void describe(const char *path, int number, const char *why, const char *line, char *broken,
                     size_t broken_bytes)
{
    const char *slash = strrchr(path, '/');
    char shown[SHOWN + 4];
    ls_plain_copy(shown, sizeof shown, line);
    ls_text_put(broken, broken_bytes, "%s line %d %s: '%s'", slash == NULL ? path : slash + 1,
                number, why, shown);
}

static const char *why_no_json(const char *line)
{
    bool bare = strstr(line, "NaN") != NULL || strstr(line, "Infinity") != NULL;
    return bare ? "is no JSON (NaN and Infinity are none: write null)" : "is no JSON";
}

/* Reads one line without its newline into the rank; false when reading ends here. */
static bool read_line(reader *r, char *line, const char *path, int number, ls_record_rank *rank,
                      char *broken, size_t broken_bytes)
{
    cJSON *value = ls_json_parse(line, NULL);
    if (value == NULL) {
        describe(path, number, why_no_json(line), line, broken, broken_bytes);
        return false;
    }
    bool good = !r->strict || fits(r, value);
    if (good) {
        read_event(rank, value);
        r->status = r->visit != NULL ? r->visit(r->context, r->rank, value, number) : LS_OK;
    } else {
        describe(path, number, r->why, line, broken, broken_bytes);
    }
    cJSON_Delete(value);
    return good;
}

/* `broken` gets the first line that may not stand there ("rank0.jsonl line 3 is no JSON: '{"event":
 * "st'"), else "". LS_ERR_INFRA when the file cannot be read. */
static ls_status read_lines(const char *path, reader r, ls_record_rank *rank, char *broken,
                            size_t broken_bytes)
{
    broken[0] = '\0';
    ls_lines lines;
    ls_status status = ls_lines_open(path, LS_LINES_LINE_BYTES, &lines);
    char *line = NULL;
    size_t bytes = 0;
    bool whole = true;
    LS_THEN(status, ls_lines_next(&lines, &line, &bytes, &whole));
    for (int number = 1; status == LS_OK && line != NULL; number++) {
        if (!whole && !r.strict) {
            break;
        }
        if (!whole) {
            describe(path, number, "ends in the middle", line, broken, broken_bytes);
        } else if (strlen(line) != bytes) {
            describe(path, number, "holds a zero byte", line, broken, broken_bytes);
        } else {
            (void)read_line(&r, line, path, number, rank, broken, broken_bytes);
        }
        if (broken[0] != '\0' || r.status != LS_OK) {
            break;
        }
        status = ls_lines_next(&lines, &line, &bytes, &whole);
    }
    ls_lines_close(&lines);
    if (r.status != LS_OK) {
        return r.status;
    }
    if (status == LS_ERR_USAGE) { /* a trainer left a FIFO or an endless line in its folder */
        const char *why = lines.file.why, *slash = strrchr(path, '/'); /* it begins with the path */
        ls_text_put(broken, broken_bytes, "%s", why + (slash == NULL ? 0 : slash + 1 - path));
        return LS_OK;
    }
    return status == LS_OK ? LS_OK : ls_log_fail(status, "%s", lines.file.why);
}

/* ---- a job's folder -------------------------------------------------------------------------- */

static const char *events_path(const ls_record *record, int rank, char path[PATH_MAX])
{
    ls_text_put(path, PATH_MAX, "%s/rank%d.jsonl", record->directory, rank);
    return path;
}

/* The ranks of which there are files of events, up to the highest: one in between may be missing.
 */
static int count_event_files(const ls_record *record)
{
    int world = 0;
    DIR *entries = opendir(record->directory);
    for (const char *e; (e = ls_path_next(&entries)) != NULL;) {
        int rank, end = 0;
        if (sscanf(e, "rank%9d.jsonl%n", &rank, &end) == 1 && end > 0 && e[end] == '\0' &&
            rank >= world && rank < LS_HOSTS_RANKS_MAX) {
            world = rank + 1;
        }
    }
    return world;
}

static ls_status read_job(ls_record *record, ls_record_mode mode)
{
    const char *slash = strrchr(record->directory, '/');
    ls_plain_copy(record->id, sizeof record->id, slash == NULL ? record->directory : slash + 1);
    LS_TEXT(path, PATH_MAX, "%s/job.json", record->directory);
    ls_status status = access(path, R_OK) == 0 ? ls_json_read_file(path, &record->job) : LS_OK;
    if (status == LS_OK && record->job != NULL && !cJSON_IsObject(record->job)) {
        status = ls_log_fail(LS_ERR_USAGE, "%s is no JSON object", path);
    }
    if (status != LS_OK && mode == LS_RECORD_STRICT) {
        cJSON_Delete(record->job);
        return status;
    }
    ls_plain_copy(record->label, sizeof record->label,
                  ls_json_string(record->job, "label", record->id));
    return LS_OK;
}

static void read_facts(ls_record *record)
{
    const cJSON *facts = ls_record_facts(record);
    ls_spec_read(facts, &record->spec);
    record->oversubscribed = ls_json_bool(facts, "oversubscribed", false);
    record->half_emulated = ls_json_bool(facts, "half_emulated", false);
    record->judged = cJSON_IsBool(ls_json_get(facts, "checked"));
    record->checked = ls_json_bool(facts, "checked", false);
    record->gradient_check = ls_json_int(facts, "rung", 0);
    record->audited = ls_json_bool(facts, "audited", false);
}

static void read_outcome(ls_record *record)
{
    const cJSON *outcome = ls_json_get(record->job, "outcome"), *entry;
    record->state = state_of(ls_json_string(outcome, "state", ""));
    record->first_rank = ls_json_int(outcome, "first_rank", -1);
    record->code = ls_json_int(outcome, "code", 0);
    record->signal = ls_json_int(outcome, "signal", 0);
    record->memory_kills = ls_json_int(outcome, "memory_kills", 0);
    record->seconds = number_of(outcome, "seconds");
    record->started_ns = number_of(outcome, "started_ns");
    ls_text_put(record->why, sizeof record->why, "%s", ls_json_string(outcome, "why", ""));
    ls_json_each(entry, ls_json_get(outcome, "ranks")) {
        int64_t rank = ls_json_integer(entry, "rank", -1);
        if (rank >= 0 && rank < record->world) {
            record->rank[rank].code = ls_json_int(entry, "code", -1);
            record->rank[rank].signal = ls_json_int(entry, "signal", 0);
            record->rank[rank].rss_bytes_max = number_of(entry, "rss_bytes_max");
        }
    }
}

static void clear_rank(ls_record_rank *rank)
{
    rank->code = rank->end_code = -1;
    rank->reduced_bytes = rank->rss_bytes_max = NAN;
}

static ls_status read_events(ls_record *record, reader r)
{
    char path[PATH_MAX], broken[sizeof record->broken];
    for (int k = 0; k < record->world; k++) {
        ls_record_rank *rank = &record->rank[k];
        clear_rank(rank);
        rank->has_events = access(events_path(record, k, path), R_OK) == 0;
        if (!rank->has_events) {
            continue;
        }
        r.rank = k;
        ls_status status = read_lines(path, r, rank, broken, sizeof broken);
        if (status != LS_OK && r.strict) {
            return status;
        }
        if (record->broken[0] == '\0') {
            ls_text_put(record->broken, sizeof record->broken, "%s", broken);
        }
    }
    return LS_OK;
}

/* Without job.json the ranks themselves say how many they are: the files of some may be missing. */
static void add_announced(ls_record *record)
{
    int announced = record->world;
    for (int k = 0; k < record->world && record->job == NULL; k++) {
        int own = ls_json_int(record->rank[k].start, "world", 0);
        announced = own > announced && own <= LS_HOSTS_RANKS_MAX ? own : announced;
    }
    if (announced > record->world) {
        record->rank = realloc(record->rank, ((size_t)announced + 1) * sizeof *record->rank);
        LS_ASSERT(record->rank != NULL);
        for (; record->world < announced; record->world++) {
            memset(&record->rank[record->world], 0, sizeof *record->rank);
            clear_rank(&record->rank[record->world]);
        }
    }
}

/* Ranks wait for each other: the time of an audit on one of them is in that step of all. */
static void share_audited(ls_record *record)
{
    bool any = true;
    for (int i = 0; any; i++) {
        bool audited = any = false;
        for (int k = 0; k < record->world; k++) {
            any = any || i < record->rank[k].step_count;
            audited =
                audited || (i < record->rank[k].step_count && record->rank[k].step[i].audited);
        }
        for (int k = 0; k < record->world && audited; k++) {
            if (i < record->rank[k].step_count) {
                record->rank[k].step[i].audited = true;
            }
        }
    }
}

/* As job.json says, or as many as there are files of events. */
static ls_status read_world(ls_record *record, int files, ls_record_mode mode)
{
    const cJSON *world = ls_json_get(ls_record_facts(record), "world");
    int64_t ranks = files;
    if (world != NULL && !(cJSON_IsNumber(world) &&
                           ls_json_whole(world->valuedouble, 0, LS_HOSTS_RANKS_MAX, &ranks))) {
        LS_TEXT(why, 80, "\"world\" is not a whole number from 0 to %d", LS_HOSTS_RANKS_MAX);
        if (mode == LS_RECORD_STRICT) {
            cJSON_Delete(record->job);
            return ls_log_fail(LS_ERR_USAGE, "%s/job.json: %s", record->directory, why);
        }
        ls_log_warn("%s/job.json: %s; its events are not read", record->directory, why);
        ranks = 0;
    }
    record->world = (int)ranks;
    return LS_OK;
}

/* A run of its own knows; what the launcher expected counts for one that does not say. */
static void find_half(ls_record *record)
{
    for (int k = 0; k < record->world; k++) {
        if (record->rank[k].start != NULL) {
            record->half_emulated =
                ls_json_bool(record->rank[k].start, "half_emulated", record->half_emulated);
            ls_text_put(record->half_products, sizeof record->half_products, "%s",
                        ls_json_string(record->rank[k].start, "half_products", ""));
            break;
        }
    }
    record->half_emulated = record->half_emulated && record->spec.level != 0;
}

ls_status ls_record_read(const char *directory, ls_record_mode mode, ls_record *out)
{
    return ls_record_read_with(directory, mode, NULL, NULL, out);
}

ls_status ls_record_read_with(const char *directory, ls_record_mode mode, ls_record_visit *visit,
                              void *context, ls_record *out)
{
    ls_record record = {0};
    ls_text_put(record.directory, sizeof record.directory, "%s", directory);
    LS_TRY(read_job(&record, mode));
    read_facts(&record);
    int files = count_event_files(&record);
    if (record.job == NULL && files == 0 && mode == LS_RECORD_STRICT) {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s is no job's folder: neither job.json nor a rank's rank<k>.jsonl",
                           directory);
    }
    LS_TRY(read_world(&record, files, mode));
    record.rank = ls_list_make((size_t)record.world + 1, sizeof *record.rank);
    reader r = {.strict = mode == LS_RECORD_STRICT, .visit = visit, .context = context};
    ls_status status = LS_OK;
    LS_TRY_GOTO(status, read_events(&record, r), free_record);
    add_announced(&record);
    share_audited(&record);
    find_half(&record);
    read_outcome(&record);
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
        cJSON_Delete(record->rank[k].epochs);
        free(record->rank[k].step);
    }
    free(record->rank);
    cJSON_Delete(record->job);
    memset(record, 0, sizeof *record);
}

const cJSON *ls_record_facts(const ls_record *record)
{
    return ls_json_get(record->job, "facts");
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

typedef struct selection {
    const char *event;
    ls_json_visit *visit;
    void *context;
} selection;

static ls_status visit_selected(void *context, const cJSON *value, int line)
{
    const selection *s = context;
    bool wanted = strcmp(ls_json_string(value, "event", ""), s->event) == 0;
    return wanted ? s->visit(s->context, value, line) : LS_OK;
}

ls_status ls_record_each_event(const ls_record *record, int rank, const char *event,
                               ls_json_visit *visit, void *context)
{
    char path[PATH_MAX];
    selection s = {event, visit, context};
    return ls_json_each_line(events_path(record, rank, path), visit_selected, &s);
}

/* The last bytes of a file as text; "" when there are none. */
static void read_tail(const char *path, char *text, size_t bytes)
{
    text[0] = '\0';
    ls_file_source file;
    if (ls_file_open(path, INT64_MAX, &file) != LS_OK) {
        return;
    }
    int64_t room = (int64_t)bytes - 1, from = file.bytes > room ? file.bytes - room : 0;
    ssize_t got = pread(file.descriptor, text, (size_t)room, from);
    text[got > 0 ? got : 0] = '\0';
    close(file.descriptor);
}

void ls_record_last_lines(const ls_record *record, int rank, int count, char *text, size_t bytes)
{
    char path[PATH_MAX], tail[8192]; /* a log may be as long as the disk is */
    ls_text_put(path, sizeof path, "%s/rank%d.log", record->directory, rank);
    read_tail(path, tail, sizeof tail);
    char *end = tail + strlen(tail);
    while (end > tail && (end[-1] == '\n' || end[-1] == ' ')) {
        *--end = '\0';
    }
    const char *from = end;
    for (int lines = 0; from > tail; from--) {
        lines += from[-1] == '\n';
        if (lines == count) {
            break;
        }
    }
    ls_text_put(text, bytes, "%s", from);
}

void ls_record_last_line(const ls_record *record, int rank, char *text, int bytes)
{
    ls_record_last_lines(record, rank, 1, text, (size_t)bytes);
}

/* ---- what the machine lacked ----------------------------------------------------------------- */

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

bool ls_record_lack(const ls_record *job, bool takes_disk, char *text, size_t bytes)
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
                        rank->code < 0 ? rank->end_code : rank->code,
                        line[0] == '\0' ? job->why : line);
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

long ls_record_kills(void)
{
    long kills = 0;
    ls_cores_each_cgroup("memory", add_kills, &kills);
    return kills;
}
