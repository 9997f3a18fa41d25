#include "report.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/core/cores.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "harness/run/manifest.h"
#include "page.h"

/* The summary is written before the run ends, and older ones lack what the jobs loaded. */
static void take_machine(cJSON *run, cJSON *summary)
{
    cJSON *machine = cJSON_DetachItemFromObjectCaseSensitive(run, "machine");
    if (machine != NULL) {
        cJSON_DeleteItemFromObjectCaseSensitive(summary, "machine");
        cJSON_AddItemToObject(summary, "machine", machine);
    }
}

static bool is_folder(const char *where)
{
    struct stat info;
    return stat(where, &info) == 0 && S_ISDIR(info.st_mode);
}

ls_status ls_report_diff_check(const char *where)
{
    enum { READ = LS_MANIFEST_VERDICTS | LS_MANIFEST_SUMMARY };
    return is_folder(where) ? ls_manifest_check(where, READ | LS_MANIFEST_FINISHED) : LS_OK;
}

ls_status ls_report_diff_read(const char *where, cJSON **summary)
{
    struct stat info;
    bool folder = is_folder(where);
    LS_TEXT(path, PATH_MAX, folder ? "%s/summary.json" : "%s", where);
    if (stat(path, &info) != 0) {
        return ls_log_fail(LS_ERR_USAGE,
                           "'%s' is neither a run's folder with a summary.json nor such a file",
                           where);
    }
    LS_TRY(ls_json_read_file(path, summary));
    LS_TEXT(run_path, PATH_MAX, "%s/run.json", where);
    cJSON *run = NULL;
    if (folder && stat(run_path, &info) == 0 && ls_json_read_file(run_path, &run) == LS_OK) {
        take_machine(run, *summary);
    }
    cJSON_Delete(run);
    return LS_OK;
}

bool ls_report_diff_same_job(const cJSON *x, const cJSON *y)
{
    static const char *const TEXTS[] = {"arch", "level", "half", "dialect"};
    static const char *const NUMBERS[] = {"image_size", "batch_size", "world", "nodes",
                                          "bucket_mb"};
    bool same = true;
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
        same =
            same && strcmp(ls_json_string(x, TEXTS[i], ""), ls_json_string(y, TEXTS[i], "")) == 0;
    }
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++) {
        same = same && ls_json_number(x, NUMBERS[i], -1) == ls_json_number(y, NUMBERS[i], -1);
    }
    return same;
}

bool ls_report_diff_decides(const cJSON *row)
{
    return ls_json_string(row, "not_a_result", "?")[0] == '\0' &&
           !ls_json_bool(row, "oversubscribed", false) && !ls_json_bool(row, "weak", false) &&
           ls_json_number(row, "images_per_s", 0) > 0;
}

/* ---- machines -------------------------------------------------------------------------------- */

/* How a fact's value becomes text. */
typedef enum shape {
    TEXT,
    CORES,
    BYTES,    /* in GB, whole ones: kernels differ in what they keep for themselves */
    COUNT,    /* of a list */
    MODEL,    /* of a device: without its UUID */
    VERSIONS, /* without paths */
    NODES,    /* of each its CPU and cores */
    SETTINGS, /* variables and their values */
} shape;

/* What two runs must say for the fact to count. */
typedef enum need {
    ALWAYS, /* unknown in either is a difference */
    EITHER, /* unknown in both is none */
    BOTH,   /* unknown in one says nothing: a job of one rank loads no engine */
} need;

static const struct fact {
    const char *name, *path; /* members of run.json and summary.json, separated by blanks */
    shape shape;
    need need;
    bool decides; /* else a remark */
} facts[] = {
    {"", "machine cores", CORES, ALWAYS, true},
    {"CPU ", "machine cpu", TEXT, ALWAYS, true},
    {"device ", "options device", TEXT, ALWAYS, true},
    {"device ", "machine loaded device", MODEL, EITHER, true},
    {"GPUs: ", "machine gpus", COUNT, EITHER, true},
    {"driver ", "machine driver", TEXT, EITHER, true},
    {"nodes: ", "options nodes", NODES, EITHER, true},
    {"libraries: ", "machine loaded libraries", VERSIONS, EITHER, true},
    {"engine: ", "machine loaded engine_text", VERSIONS, BOTH, true},
    {"transport ", "machine loaded transport", TEXT, BOTH, false},
    {"kernel ", "machine kernel", TEXT, EITHER, false},
    {"governor ", "machine governor", TEXT, EITHER, false},
    {"memory ", "machine memory_bytes", BYTES, EITHER, false},
    {"variables: ", "machine environment", SETTINGS, EITHER, false},
};

enum { VALUE_BYTES = 400 };

static const cJSON *find(const cJSON *run, const char *path)
{
    char name[32];
    while (run != NULL && *path != '\0') {
        size_t length = strcspn(path, " ");
        ls_text_put(name, sizeof name, "%.*s", (int)length, path);
        run = ls_json_get(run, name);
        path += length + strspn(path + length, " ");
    }
    return run;
}

/* "oneDNN 2.6.3 (/lib/libdnnl.so.2); OpenMP 201511" without what is in parentheses, and "Gloo
 * 0.5.0, TCP, /lib/libgloo.so.0" without the path. */
static void versions(const char *text, char *out)
{
    char *to = out;
    for (const char *at = text; *at != '\0' && to < out + VALUE_BYTES - 1;) {
        size_t skip = strncmp(at, " (/", 3) == 0   ? strcspn(at, ")") + 1
                      : strncmp(at, ", /", 3) == 0 ? 2 + strcspn(at + 2, ",;")
                                                   : 0;
        if (skip > strlen(at)) {
            break;
        }
        at += skip;
        if (skip == 0) {
            *to++ = *at++;
        }
    }
    *to = '\0';
}

static void describe_list(const cJSON *list, shape shape, char *out)
{
    const cJSON *one;
    char number[40];
    ls_json_each(one, list) {
        const char *comma = out[0] == '\0' ? "" : ", ";
        if (shape == NODES) {
            ls_text_add(out, VALUE_BYTES, "%s%s with %s", comma, ls_json_string(one, "cpu", "?"),
                        ls_cores_number(ls_json_number(one, "cores", NAN), number, sizeof number));
        } else if (cJSON_IsString(one)) {
            ls_text_add(out, VALUE_BYTES, "%s%s=%s", comma, one->string, one->valuestring);
        }
    }
}

/* "": unknown. */
static void describe(const cJSON *value, shape shape, char *out)
{
    const char *text = cJSON_IsString(value) ? value->valuestring : "";
    out[0] = '\0';
    if (shape == CORES && cJSON_IsNumber(value)) {
        ls_cores_number(value->valuedouble, out, VALUE_BYTES);
    } else if (shape == BYTES && cJSON_IsNumber(value)) {
        ls_text_put(out, VALUE_BYTES, "%.0f GB", value->valuedouble * 1e-9);
    } else if (shape == COUNT && cJSON_IsArray(value)) {
        ls_text_put(out, VALUE_BYTES, "%d", cJSON_GetArraySize(value));
    } else if (shape == MODEL) {
        const char *uuid = strstr(text, " (GPU-");
        ls_text_put(out, VALUE_BYTES, "%.*s",
                    (int)(uuid == NULL ? strlen(text) : (size_t)(uuid - text)), text);
    } else if (shape == VERSIONS) {
        versions(text, out);
    } else if (shape == NODES || shape == SETTINGS) {
        describe_list(value, shape, out);
    } else if (shape == TEXT) {
        ls_text_put(out, VALUE_BYTES, "%s", text);
    }
}

ls_comparable ls_report_diff_comparable(const cJSON *before, const cJSON *after)
{
    ls_comparable out = {.same = true};
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        const struct fact *f = &facts[i];
        char then[VALUE_BYTES], now[VALUE_BYTES];
        describe(find(before, f->path), f->shape, then);
        describe(find(after, f->path), f->shape, now);
        bool known = then[0] != '\0' && now[0] != '\0', none = then[0] == '\0' && now[0] == '\0';
        bool same = known ? strcmp(then, now) == 0 : f->need == BOTH || (none && f->need == EITHER);
        if (same) {
            continue;
        }
        out.same = out.same && !f->decides;
        char *text = f->decides ? out.decides : out.remarks;
        ls_text_add(text, sizeof out.decides, "%s%s%.120s against %.120s",
                    text[0] == '\0' ? "" : "; ", f->name, now[0] == '\0' ? "unknown" : now,
                    then[0] == '\0' ? "unknown" : then);
    }
    return out;
}

/* ---- speed ----------------------------------------------------------------------------------- */

/* The rows of a comparison: in both runs, those that decide a gate, and exceed it. */
typedef struct paired {
    int rows, deciding, exceeding;
} paired;

static ls_stats_interval rate_of(const cJSON *row)
{
    bool result = ls_json_string(row, "not_a_result", "?")[0] == '\0';
    return result ? ls_stats_read_json(row, "images_per_s") : (ls_stats_interval){NAN, NAN, NAN};
}

static bool either(const cJSON *x, const cJSON *y, const char *name)
{
    return ls_json_bool(x, name, false) || ls_json_bool(y, name, false);
}

static void print_pair(const cJSON *x, const cJSON *y, bool comparable, double gate, paired *count,
                       FILE *to)
{
    char sentence[128];
    ls_stats_interval before = rate_of(x), after = rate_of(y);
    fprintf(to, "%.78s\n    ", ls_json_string(y, "label", "?"));
    if (isnan(before.value) || isnan(after.value)) {
        const cJSON *row = isnan(before.value) ? x : y;
        fprintf(to, "no result in %s: %s\n", isnan(before.value) ? "A" : "B",
                ls_json_string(row, "not_a_result", "its summary does not say"));
        return;
    }
    if (!comparable) {
        fprintf(to, "%.4g -> %.4g images/s, not comparable\n", before.value, after.value);
        return;
    }
    bool crowded = either(x, y, "oversubscribed"), weak = either(x, y, "weak");
    ls_stats_interval ratio = ls_stats_ratio_of(after, before);
    bool decides = ls_report_diff_decides(x) && ls_report_diff_decides(y) && isfinite(ratio.high);
    bool exceeds = decides && ratio.high < 1 - gate; /* false without a gate */
    count->deciding += decides;
    count->exceeding += exceeds;
    ls_stats_sentence(ratio, sentence, sizeof sentence);
    fprintf(to, "%.4g -> %.4g images/s, %s%s%s\n", before.value, after.value, sentence,
            crowded && weak ? " (oversubscribed, weak)"
            : crowded       ? " (oversubscribed)"
            : weak          ? " (weak)"
                            : "",
            exceeds ? ": exceeds the gate" : "");
}

static const cJSON *pair_of(const cJSON *summary, const cJSON *row)
{
    const cJSON *other;
    ls_json_each(other, ls_json_get(summary, "throughput")) {
        if (ls_report_diff_same_job(other, row)) {
            return other;
        }
    }
    return NULL;
}

static void print_lone(const cJSON *summary, const cJSON *other, const char *name, FILE *to)
{
    const cJSON *row;
    ls_json_each(row, ls_json_get(summary, "throughput")) {
        if (pair_of(other, row) == NULL) {
            fprintf(to, "%.60s\n    only in %s\n", ls_json_string(row, "label", "?"), name);
        }
    }
}

static void print_machines(const ls_comparable *machines, FILE *to)
{
    if (!machines->same) {
        fprintf(to, "speeds are not comparable, B against A: %s\n", machines->decides);
    }
    if (machines->remarks[0] != '\0') {
        fprintf(to, "also differ, B against A: %s\n", machines->remarks);
    }
}

static ls_status compare_speed(const cJSON *before, const cJSON *after, double gate, paired *count,
                               FILE *to)
{
    const cJSON *row;
    ls_comparable machines = ls_report_diff_comparable(before, after);
    ls_json_each(row, ls_json_get(after, "throughput")) {
        const cJSON *pair = pair_of(before, row);
        if (pair != NULL) {
            if (count->rows++ == 0) {
                print_machines(&machines, to);
            }
            print_pair(pair, row, machines.same, gate, count, to);
        }
    }
    print_lone(before, after, "A", to);
    print_lone(after, before, "B", to);
    if (isnan(gate) || count->rows == 0) {
        return LS_OK;
    }
    fprintf(to, "gate %.4g %%: %d of %d jobs that decide exceed%s it; %d decide nothing\n",
            100 * gate, count->exceeding, count->deciding, count->exceeding == 1 ? "s" : "",
            count->rows - count->deciding);
    return count->exceeding > 0 || count->deciding == 0 ? LS_ERR_CHECK : LS_OK;
}

/* ---- cases ----------------------------------------------------------------------------------- */

typedef enum state { PASSED, FAILED, UNJUDGED } state;

static state state_of(const ls_report_verdict *verdict)
{
    ls_verdict_code code = verdict->code;
    return ls_verdict_good(code)                                       ? PASSED
           : code == LS_FAIL || code == LS_CRASH || code == LS_TIMEOUT ? FAILED
                                                                       : UNJUDGED;
}

static const ls_report_verdict *verdict_of(const ls_report_run *run, const char *id)
{
    for (int v = 0; v < run->verdict_count; v++) {
        if (strcmp(run->verdict[v].id, id) == 0) {
            return &run->verdict[v];
        }
    }
    return NULL;
}

typedef enum change { FAILING, NOT_JUDGED, PASSING, MISSING, ADDED, SAME, CHANGES } change;

static const char *const change_name[CHANGES] = {
    "newly failing", "newly not judged", "newly passing", "missing in B", "new in B", "as before"};

/* Of a case with these verdicts; NULL: the run has none. */
static change change_of(const ls_report_verdict *before, const ls_report_verdict *after)
{
    static const change now[] = {[PASSED] = PASSING, [FAILED] = FAILING, [UNJUDGED] = NOT_JUDGED};
    if (after == NULL) {
        return MISSING;
    }
    if (before == NULL) {
        return state_of(after) == FAILED ? FAILING : ADDED;
    }
    return state_of(before) == state_of(after) ? SAME : now[state_of(after)];
}

static void print_change(const ls_report_verdict *before, const ls_report_verdict *after,
                         change what, FILE *to)
{
    char line[2 * LS_REPORT_LINES_BYTES];
    const ls_report_verdict *last = after != NULL ? after : before;
    fprintf(to, "%s: %s, %s -> %s%s\n", change_name[what], last->id,
            before == NULL ? "none" : ls_verdict_name(before->code),
            after == NULL ? "none" : ls_verdict_name(after->code),
            last->decides                                ? ""
            : !last->in_claim                            ? " [outside the claim]"
            : ls_json_bool(last->json, "manners", false) ? " [manners]"
                                                         : "");
    if (after != NULL && what != PASSING) {
        fprintf(to, "    %s\n", ls_report_lines_evidence(after, line));
    }
}

/* Returns the number of cases that both runs have; *failing: of those that decide, how many B fails
 * or does not have. */
static int compare_cases(const ls_report_run *before, const ls_report_run *after, int *failing,
                         FILE *to)
{
    int count[CHANGES] = {0};
    for (int v = 0; v < after->verdict_count + before->verdict_count; v++) {
        bool second = v >= after->verdict_count; /* those of A that B lacks come last */
        const char *id =
            second ? before->verdict[v - after->verdict_count].id : after->verdict[v].id;
        const ls_report_verdict *x = verdict_of(before, id), *y = verdict_of(after, id);
        change what = change_of(x, y);
        if (second && what != MISSING) {
            continue;
        }
        count[what]++;
        *failing += (what == FAILING && y->decides) || (what == MISSING && x->decides);
        if (what < ADDED) {
            print_change(x, y, what, to);
        }
    }
    fprintf(to, "cases: ");
    for (int c = 0; c < CHANGES; c++) {
        fprintf(to, "%d %s%s", count[c], change_name[c], c + 1 < CHANGES ? ", " : "\n");
    }
    return after->verdict_count - count[ADDED];
}

/* The runs in folders or summaries `a` and `b`, which were given by these names. */
static ls_status compare_runs(const char *a, const char *b, const char *const given[2], double gate,
                              FILE *to)
{
    cJSON *before = NULL, *after = NULL;
    ls_report_run first = {0}, second = {0};
    paired speed = {0};
    int failing = 0, common = 0;
    ls_status status = LS_OK;
    LS_TRY_GOTO(status, ls_report_diff_check(a), done);
    LS_TRY_GOTO(status, ls_report_diff_check(b), done);
    LS_TRY_GOTO(status, ls_report_diff_read(a, &before), done);
    LS_TRY_GOTO(status, ls_report_diff_read(b, &after), done);
    LS_TRY_GOTO(status, ls_report_load_verdicts(a, &first), done);
    LS_TRY_GOTO(status, ls_report_load_verdicts(b, &second), done);
    fprintf(to, "A: %s\n   %s, %s\nB: %s\n   %s, %s\n", given[0],
            ls_json_string(before, "where", "?"), ls_json_string(before, "commit", "?"), given[1],
            ls_json_string(after, "where", "?"), ls_json_string(after, "commit", "?"));
    if (is_folder(a) && is_folder(b)) {
        common = compare_cases(&first, &second, &failing, to);
    } else {
        fprintf(to, "cases: not compared, %s is not a run's folder\n", is_folder(a) ? "B" : "A");
    }
    status = compare_speed(before, after, gate, &speed, to);
    if (speed.rows == 0 && (common == 0 || !isnan(gate))) {
        ls_log_error("%s and %s have no throughput job%s in common", given[0], given[1],
                     isnan(gate) ? " and no case" : "");
        status = LS_ERR_USAGE;
    } else if (failing > 0) {
        status = LS_ERR_CHECK;
    }
done:
    cJSON_Delete(before);
    cJSON_Delete(after);
    ls_report_load_free(&first);
    ls_report_load_free(&second);
    return status;
}

ls_status ls_report_diff(const char *a, const char *b, double gate, FILE *to)
{
    ls_archive first, second;
    LS_TRY(ls_archive_open(a, &first));
    ls_status status = ls_archive_open(b, &second);
    if (status == LS_OK) {
        status = compare_runs(first.folder, second.folder, (const char *[]){a, b}, gate, to);
        ls_archive_close(&second);
    }
    ls_archive_close(&first);
    return status;
}
