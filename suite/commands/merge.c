/* `lockstep merge DIR...`: the shards of a conformance run as one run, with the verdict on the
 * claim. What it knows of a shard stands in run.json (selection, options) and verdicts.jsonl. */
#include "commands.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/report/report.h"
#include "harness/run/manifest.h"
#include "kernels/core/file.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "suite/run/command_line.h"
#include "suite/run/headline.h"

typedef struct shard {
    const char *given; /* its folder, as on the command line */
    cJSON *run;        /* run.json */
    int number;        /* from 1 */
} shard;

typedef struct merge {
    int count, shards; /* given; of the run */
    shard *shard;
    int cases; /* selected for all shards */
    const char **id;
    cJSON **verdict; /* [cases] its line; NULL: no shard judged it */
    int *owner;      /* [cases] the shard */
    char missing[400];
    char directory[512];
} merge;

static const cJSON *member(const shard *s, const char *object, const char *name)
{
    const cJSON *in = object == NULL ? s->run : ls_json_get(s->run, object);
    return ls_json_get(in, name);
}

static ls_status read_shard(const char *given, shard *out)
{
    LS_TEXT(path, 700, "%s/run.json", given);
    *out = (shard){.given = given};
    LS_TRY(ls_manifest_check(given, LS_MANIFEST_VERDICTS | LS_MANIFEST_RECORDS));
    LS_TRY(ls_json_read_file(path, &out->run));
    const cJSON *selection = ls_json_get(out->run, "selection");
    out->number = ls_json_int(selection, "shard", 0);
    if (out->number < 1 || out->number > ls_json_int(selection, "shards", 0) ||
        !cJSON_IsArray(member(out, "selection", "cases"))) {
        return ls_log_fail(LS_ERR_USAGE,
                           "'%s' is no shard; allowed: folders of lockstep conform --shard i/n",
                           given);
    }
    return LS_OK;
}

/* ---- whether they are parts of one run ------------------------------------------------------- */

static ls_status differ(const shard *a, const shard *b, const char *what, const cJSON *in_a,
                        const cJSON *in_b)
{
    char *one = in_a == NULL ? NULL : cJSON_PrintUnformatted(in_a);
    char *other = in_b == NULL ? NULL : cJSON_PrintUnformatted(in_b);
    ls_status status = ls_log_fail(
        LS_ERR_USAGE, "'%s' and '%s' are no shards of one run: %s: %.80s and %.80s", a->given,
        b->given, what, one == NULL ? "none" : one, other == NULL ? "none" : other);
    free(one);
    free(other);
    return status;
}

static ls_status check_equal(const shard *a, const shard *b)
{
    static const struct {
        const char *object, *name, *what;
    } equal[] = {
        {NULL, "version", "version"},
        {NULL, "commit", "commit"},
        {NULL, "dirty", "local changes"},
        {"selection", "programs", "build (digest of the programs)"},
        {"options", "claim", "claim"},
        {"options", "subject", "subject"},
        {"options", "seed", "seed"},
        {"options", "device", "device"},
        {"options", "gate", "gate"},
        {"selection", "shards", "number of shards"},
        {"selection", "claim_cases", "cases of the claim"},
        {"selection", "cases", "selected cases"},
    };
    for (size_t i = 0; i < sizeof equal / sizeof *equal; i++) {
        const cJSON *in_a = member(a, equal[i].object, equal[i].name);
        const cJSON *in_b = member(b, equal[i].object, equal[i].name);
        if ((in_a != NULL || in_b != NULL) && !cJSON_Compare(in_a, in_b, true)) {
            return differ(a, b, equal[i].what, in_a, in_b);
        }
    }
    return LS_OK;
}

static ls_status check_shards(const merge *m)
{
    for (int i = 0; i < m->count; i++) {
        LS_TRY(check_equal(&m->shard[0], &m->shard[i]));
        for (int k = 0; k < i; k++) {
            if (m->shard[k].number == m->shard[i].number) {
                return ls_log_fail(LS_ERR_USAGE, "shard %d/%d is given twice: '%s' and '%s'",
                                   m->shard[i].number, m->shards, m->shard[k].given,
                                   m->shard[i].given);
            }
        }
    }
    return LS_OK;
}

/* ---- their verdicts -------------------------------------------------------------------------- */

typedef struct place {
    merge *merge;
    int shard, next; /* the case after the one found last */
} place;

static ls_status take_verdict(void *context, const cJSON *line, int number)
{
    place *at = context;
    merge *m = at->merge;
    const char *id = ls_json_string(line, "case", ""), *given = m->shard[at->shard].given;
    int found = -1;
    for (int i = 0; i < m->cases && found < 0; i++) {
        int c = (at->next + i) % m->cases;
        found = strcmp(m->id[c], id) == 0 ? c : -1;
    }
    if (found < 0) {
        return ls_log_fail(LS_ERR_USAGE, "%s/verdicts.jsonl line %d: '%s' was not selected", given,
                           number, id);
    }
    if (ls_verdict_code_in(line) == LS_VERDICT_CODES) {
        return ls_log_fail(LS_ERR_USAGE, "%s/verdicts.jsonl line %d: '%s' is no verdict", given,
                           number, ls_json_string(line, "verdict", ""));
    }
    if (m->verdict[found] != NULL && m->owner[found] != at->shard) {
        return ls_log_fail(LS_ERR_USAGE, "case %s is in '%s' and in '%s'", id,
                           m->shard[m->owner[found]].given, given);
    }
    cJSON_Delete(m->verdict[found]); /* a stopped run's case that was judged again */
    m->verdict[found] = cJSON_Duplicate(line, true);
    LS_MEMORY(m->verdict[found] != NULL);
    m->owner[found] = at->shard;
    at->next = found + 1;
    return LS_OK;
}

static void list_missing_shards(merge *m)
{
    enum { LISTED = 16 };
    for (int s = 1, listed = 0; s <= m->shards && listed <= LISTED; s++) {
        bool given = false;
        for (int i = 0; i < m->count; i++) {
            given = given || m->shard[i].number == s;
        }
        if (!given) {
            ls_text_add(m->missing, sizeof m->missing, listed == LISTED ? ", ..." : "%s%d/%d",
                        listed == 0 ? "" : ", ", s, m->shards);
            listed++;
        }
    }
}

static bool is_outside(const merge *m, const char *id)
{
    const cJSON *outside = member(&m->shard[0], "selection", "outside"), *entry;
    ls_json_each(entry, outside) {
        if (cJSON_IsString(entry) && strcmp(entry->valuestring, id) == 0) {
            return true;
        }
    }
    return false;
}

/* A case that no shard has judged is reported as SKIP. */
static void add_missing_verdicts(merge *m)
{
    int missing = 0, first = 0;
    list_missing_shards(m);
    for (int i = m->cases - 1; i >= 0; i--) {
        if (m->verdict[i] != NULL) {
            continue;
        }
        missing++;
        first = i;
        LS_TEXT(family, LS_CASE_ID_BYTES, "%.*s", (int)strcspn(m->id[i], "."), m->id[i]);
        LS_TEXT(evidence, 500, "no shard judged it%s%s",
                m->missing[0] == '\0' ? "" : "; missing: ", m->missing);
        cJSON *line = cJSON_CreateObject();
        LS_MEMORY(line != NULL);
        cJSON_AddNumberToObject(line, "schema", 1);
        cJSON_AddStringToObject(line, "case", m->id[i]);
        cJSON_AddStringToObject(line, "family", family);
        cJSON_AddBoolToObject(line, "in_claim", !is_outside(m, m->id[i]));
        cJSON_AddStringToObject(line, "verdict", ls_verdict_name(LS_SKIP));
        cJSON_AddNumberToObject(line, "seconds", 0);
        cJSON_AddArrayToObject(line, "jobs");
        cJSON_AddStringToObject(line, "evidence", evidence);
        m->verdict[i] = line;
    }
    if (missing > 0 && m->missing[0] != '\0') {
        ls_log_warn("missing shards: %s", m->missing);
    }
    if (missing > 0) {
        ls_log_warn("%d of %d cases were judged by no shard, such as %s", missing, m->cases,
                    m->id[first]);
    }
}

static ls_status read_all(merge *m, char **given)
{
    m->shard = ls_list_make((size_t)m->count + 1, sizeof *m->shard);
    for (int i = 0; i < m->count; i++) {
        LS_TRY(read_shard(given[i], &m->shard[i]));
    }
    m->shards = ls_json_int(ls_json_get(m->shard[0].run, "selection"), "shards", 0);
    LS_TRY(check_shards(m));
    const cJSON *cases = member(&m->shard[0], "selection", "cases"), *id;
    size_t room = (size_t)cJSON_GetArraySize(cases) + 1;
    m->id = ls_list_make(room, sizeof *m->id);
    m->verdict = ls_list_make(room, sizeof(cJSON *));
    m->owner = ls_list_make(room, sizeof *m->owner);
    ls_json_each(id, cases) {
        m->id[m->cases++] = cJSON_IsString(id) ? id->valuestring : "?";
    }
    for (int i = 0; i < m->count; i++) {
        LS_TEXT(path, 700, "%s/verdicts.jsonl", m->shard[i].given);
        place at = {m, i, 0};
        if (access(path, R_OK) == 0) {
            LS_TRY(ls_json_each_line(path, take_verdict, &at));
        }
    }
    add_missing_verdicts(m);
    return LS_OK;
}

/* ---- the merged run -------------------------------------------------------------------------- */

static ls_status make_folder(merge *m, const char *out)
{
    if (out == NULL) {
        LS_TRY(ls_command_run_folder("results/runs", "merge", m->directory, sizeof m->directory));
    } else {
        ls_command_absolute(out, m->directory, sizeof m->directory);
        if (rmdir(m->directory) != 0 && errno != ENOENT) {
            return ls_log_fail(LS_ERR_USAGE, "--out %s: allowed: a new folder or an empty one",
                               out);
        }
    }
    LS_TEXT(jobs, 700, "%s/jobs", m->directory);
    return ls_path_make_chosen(jobs, LS_COMMAND_OUT_HINT);
}

static ls_status copy_files(const char *from, const char *to)
{
    struct dirent **entry;
    int count = scandir(from, &entry, NULL, alphasort);
    ls_status status = count > 0 ? ls_path_make_chosen(to, LS_COMMAND_OUT_HINT) : LS_OK;
    for (int i = 0; i < count; i++) {
        LS_TEXT(source, 1400, "%s/%s", from, entry[i]->d_name);
        LS_TEXT(target, 1400, "%s/%s", to, entry[i]->d_name);
        struct stat info;
        char *data = NULL;
        size_t bytes = 0;
        if (status == LS_OK && lstat(source, &info) == 0 && S_ISREG(info.st_mode)) {
            status = ls_file_read(source, LS_FILE_TEXT_BYTES, &data, &bytes);
            LS_THEN(status, ls_file_replace(target, data, bytes));
            free(data);
        }
        free(entry[i]);
    }
    free(count < 0 ? NULL : entry);
    return status;
}

/* Events, logs and outcomes, which the report reads; dumps stay with their shard. */
static ls_status copy_jobs(const merge *m, const char *given)
{
    LS_TEXT(folder, 700, "%s/jobs", given);
    struct dirent **entry;
    int count = scandir(folder, &entry, NULL, alphasort);
    ls_status status = LS_OK;
    for (int i = 0; i < count; i++) {
        LS_TEXT(from, 1000, "%s/%s", folder, entry[i]->d_name);
        LS_TEXT(to, 1000, "%s/jobs/%s", m->directory, entry[i]->d_name);
        if (entry[i]->d_name[0] != '.' && status == LS_OK) {
            status = copy_files(from, to);
        }
        free(entry[i]);
    }
    free(count < 0 ? NULL : entry);
    return status;
}

static ls_status write_verdicts(const merge *m)
{
    LS_TEXT(path, 700, "%s/verdicts.jsonl", m->directory);
    ls_file_draft draft;
    int error = ls_file_draft_open(path, &draft);
    if (error != 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot create %s: %s", path, strerror(error));
    }
    ls_status status = LS_OK;
    for (int i = 0; i < m->cases && status == LS_OK; i++) {
        status = ls_json_append_line(draft.descriptor, path, m->verdict[i]);
    }
    return ls_file_draft_close(&draft, status, false);
}

/* MACHINE is that of the first shard that was not ready, if any. */
static void decide_machine(const merge *m, ls_headline *out)
{
    ls_text_put(out->machine_value, sizeof out->machine_value, "ready");
    ls_text_put(out->machine_why, sizeof out->machine_why, "%d of %d shards", m->count, m->shards);
    for (int i = m->count - 1; i >= 0; i--) {
        const cJSON *machine = ls_json_get(member(&m->shard[i], NULL, "headline"), "machine");
        const char *value = ls_json_string(machine, "value", "not shown");
        if (strcmp(value, "ready") != 0) {
            ls_text_put(out->machine_value, sizeof out->machine_value, "%s", value);
            ls_text_put(out->machine_why, sizeof out->machine_why, "shard %d/%d: %s",
                        m->shard[i].number, m->shards,
                        ls_json_string(machine, "why", "it was not finished"));
        }
    }
}

static void decide(const merge *m, ls_headline *out)
{
    const cJSON *options = ls_json_get(m->shard[0].run, "options");
    const cJSON *selection = ls_json_get(m->shard[0].run, "selection");
    ls_headline_counts counts = {0};
    for (int i = 0; i < m->cases; i++) {
        const cJSON *v = m->verdict[i];
        if (ls_json_bool(v, "not_offered", false)) {
            counts.not_offered++;
            continue;
        }
        ls_headline_count(&counts, ls_verdict_code_in(v), ls_json_bool(v, "in_claim", false),
                          ls_json_bool(v, "manners", false),
                          strcmp(ls_json_string(v, "kind", ""), "inside") == 0);
    }
    memset(out, 0, sizeof *out);
    ls_headline_cases(&counts, ls_json_string(options, "claim", "?"),
                      ls_json_int(selection, "claim_cases", 0),
                      strcmp(ls_json_string(options, "gate", ""), "manners") == 0, out);
    ls_text_put(out->speed.value, sizeof out->speed.value, "no baseline");
    ls_text_put(out->speed.why, sizeof out->speed.why, "nothing was timed");
    decide_machine(m, out);
}

static void replace(cJSON *in, const char *name, cJSON *value)
{
    cJSON_DeleteItemFromObjectCaseSensitive(in, name);
    cJSON_AddItemToObject(in, name, value);
}

/* That of the first shard, with where the others ran and the GPUs' findings of all. */
static ls_status write_run(const merge *m, const char *command, const ls_headline *headline)
{
    cJSON *run = cJSON_Duplicate(m->shard[0].run, true);
    LS_MEMORY(run != NULL);
    cJSON *from = cJSON_CreateArray();
    bool alike = true;
    for (int i = 0; i < m->count; i++) {
        static const char *const names[] = {"created", "where", "command", "headline"};
        cJSON *entry = ls_json_append_object(from);
        cJSON_AddNumberToObject(entry, "shard", m->shard[i].number);
        cJSON_AddStringToObject(entry, "directory", m->shard[i].given);
        for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
            const cJSON *value = member(&m->shard[i], NULL, names[n]);
            if (value != NULL) {
                cJSON_AddItemToObject(entry, names[n], cJSON_Duplicate(value, true));
            }
        }
        alike = alike && cJSON_Compare(member(&m->shard[0], NULL, "where"),
                                       member(&m->shard[i], NULL, "where"), true);
        cJSON *findings = ls_json_get(run, "findings");
        const cJSON *more = i == 0 ? NULL : member(&m->shard[i], NULL, "findings"), *finding;
        ls_json_each(finding, more) {
            cJSON_AddItemToArray(findings, cJSON_Duplicate(finding, true));
        }
    }
    LS_TEXT(title, 200, "%s, %d of %d shards",
            ls_json_string(m->shard[0].run, "title", "Lockstep conformance"), m->count, m->shards);
    replace(run, "title", cJSON_CreateString(title));
    replace(run, "label", cJSON_CreateString("merge"));
    replace(run, "command", cJSON_CreateString(command));
    LS_TEXT(where, 300, alike ? "%s" : "%s; other shards: merged in run.json",
            ls_json_string(run, "where", "?"));
    replace(run, "where", cJSON_CreateString(where));
    replace(run, "merged", from);
    replace(run, "headline", ls_headline_json(headline));
    cJSON_DeleteItemFromObjectCaseSensitive(run, "selection");
    cJSON_DeleteItemFromObjectCaseSensitive(run, "files");
    LS_TEXT(path, 700, "%s/run.json", m->directory);
    return ls_json_write_and_free(path, run);
}

static int write_all(merge *m, const char *out, const char *command)
{
    ls_headline headline;
    decide(m, &headline);
    LS_TRY(make_folder(m, out));
    for (int i = 0; i < m->count; i++) {
        LS_TRY(copy_jobs(m, m->shard[i].given));
    }
    LS_TRY(write_verdicts(m));
    LS_TRY(write_run(m, command, &headline));
    LS_TRY(ls_report_tables(m->directory));
    LS_TRY(ls_runner_report(m->directory));
    LS_TRY(ls_manifest_write(m->directory, LS_MANIFEST_ALL));
    printf("%d passed, %d failed\n", headline.passed, headline.failed);
    return ls_headline_exit(&headline);
}

static void free_all(merge *m)
{
    for (int i = 0; i < m->cases; i++) {
        cJSON_Delete(m->verdict[i]);
    }
    for (int i = 0; i < m->count && m->shard != NULL; i++) {
        cJSON_Delete(m->shard[i].run);
    }
    free(m->shard);
    free(m->verdict);
    free(m->owner);
    free(m->id);
}

int ls_merge_main(int count, char **argument)
{
    const char *out = NULL;
    const ls_command_option options[] = {
        {"--out", &out, NULL, NULL, "the merged run's folder (results/runs/<time>-merge)"},
    };
    ls_words given = {0};
    for (int i = 0; i < count; i++) {
        ls_words_add(&given, "%s", argument[i]);
    }
    char *command = ls_command_line("merge", &given);
    int code = (int)ls_command_parse("merge DIR...", options, 1, &count, argument);
    if (code == LS_OK) {
        merge m = {.count = count};
        code = (int)read_all(&m, argument);
        if (code == LS_OK) {
            code = write_all(&m, out, command);
        }
        free_all(&m);
    }
    ls_words_free(&given);
    free(command);
    return code;
}
