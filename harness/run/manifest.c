#include "manifest.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/core/digest.h"
#include "kernels/core/file.h"
#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"

#define LIST "files.xxh64"

typedef struct ls_manifest_line {
    const char *name;
    uint64_t digest;
} line;

/* The first that matches; `*` also stands for slashes. Part 0 is not listed: no command reads it,
 * or one writes it again. */
static const struct {
    const char *glob;
    unsigned part;
} parts[] = {
    {"run.json", LS_MANIFEST_VERDICTS},
    {"verdicts.jsonl", LS_MANIFEST_VERDICTS},
    {"summary.json", LS_MANIFEST_SUMMARY},
    {"tables/*", LS_MANIFEST_REPORT},
    {"junit.xml", LS_MANIFEST_REPORT},
    {LIST, 0},
    {"report.*", 0}, /* for people, as plots and the timeline are */
    {"plots/*", 0},
    {"trace.json", 0},
    {"jobs/*/tensorboard/*", 0},
    {"jobs/*/compare.json", 0}, /* `lockstep judge` writes it */
    {"oracle/*", 0},            /* results of the oracle, kept */
    {"jobs/*/dump/*", LS_MANIFEST_DUMPS},
    {"jobs/*", LS_MANIFEST_RECORDS},
    {"*", LS_MANIFEST_REST},
};

static unsigned part_of(const char *name)
{
    size_t i = 0;
    while (!ls_text_matches(parts[i].glob, name)) {
        i++; /* the last one matches all */
    }
    return parts[i].part;
}

/* ---- one file ------------------------------------------------------------------------------- */

static ls_status digest_file(const char *path, uint64_t *digest, ls_file_source *file)
{
    enum { BLOCK = 1 << 20 };
    LS_TRY(ls_file_open(path, INT64_MAX, file));
    char *block = ls_list_make(1, BLOCK);
    ls_digest_parts sum = ls_digest_xxh64_begin(0);
    size_t used = BLOCK;
    ls_status status = LS_OK;
    while (status == LS_OK && used == BLOCK) {
        status = ls_file_fill_some(file, path, block, BLOCK, &used);
        if (status == LS_OK && used == BLOCK) {
            ls_digest_xxh64_add(&sum, block, BLOCK);
        }
    }
    *digest = ls_digest_xxh64_end(&sum, block, used);
    close(file->descriptor);
    free(block);
    return status;
}

/* False, and a sentence in `why`, for a file that is not as the line says. */
static bool is_as_listed(const char *directory, const line *l, bool may_miss, char *why,
                         size_t bytes)
{
    LS_TEXT(path, 1400, "%s/%s", directory, l->name);
    ls_file_source file;
    uint64_t digest = 0;
    if (digest_file(path, &digest, &file) != LS_OK) {
        bool gone = errno == ENOENT || errno == ENOTDIR;
        ls_text_put(why, bytes, gone ? "%s is missing" : "%s", gone ? path : file.why);
        return gone && may_miss;
    }
    if (digest != l->digest) {
        ls_text_put(why, bytes, "%s is %s", path,
                    file.bytes == 0 ? "empty" : "not as its run left it (another XXH64)");
    }
    return digest == l->digest;
}

/* Of a run without a list: a file that holds nothing, or whose last line is cut. */
static bool is_cut(const char *directory, const char *name)
{
    LS_TEXT(path, 1400, "%s/%s", directory, name);
    ls_file_source file;
    char *text = NULL;
    size_t bytes = 0;
    bool cut = true;
    if (ls_file_load(path, LS_FILE_TEXT_BYTES, &file, &text, &bytes) != LS_OK) {
        ls_log_error("%s", file.why);
    } else if (bytes == 0 || text[bytes - 1] != '\n') {
        ls_log_error("%s is %s", path, bytes == 0 ? "empty" : "cut: its last line has no end");
    } else {
        cut = false;
    }
    free(text);
    return cut;
}

/* ---- reading -------------------------------------------------------------------------------- */

/* "<16 digits>  <name>" from there; NULL where it is none, else what follows it. */
static char *read_line(char *from, line *out)
{
    char *end = strchr(from, '\n'), *digits;
    if (end == NULL || strspn(from, "0123456789abcdef") != 16 || strncmp(from + 16, "  ", 2) != 0) {
        return NULL;
    }
    *end = '\0';
    *out = (line){.name = from + 18, .digest = strtoull(from, &digits, 16)};
    return end + 1;
}

static void read_list(ls_manifest *m)
{
    LS_TEXT(path, 800, "%s/" LIST, m->directory);
    m->text = ls_text_read(path);
    int room = 0;
    char *at = m->text;
    while (at != NULL && *at != '\0') {
        m->line = ls_list_grow(m->line, m->count, &room, sizeof *m->line);
        at = read_line(at, &m->line[m->count]);
        m->count += at != NULL;
    }
    if (at == NULL || m->count == 0 || strcmp(m->line[m->count - 1].name, "run.json") != 0) {
        m->state = LS_MANIFEST_BROKEN;
        ls_text_put(m->why, sizeof m->why, "%s is %s", path,
                    m->text == NULL ? "missing" : "cut, or no list of a run's files");
    }
}

/* Where there is no list: whether there should be one. */
static void read_without(ls_manifest *m)
{
    LS_TEXT(path, 800, "%s/run.json", m->directory);
    char *text = ls_text_read(path);
    cJSON *run = text == NULL ? NULL : ls_json_parse(text, NULL);
    if (!cJSON_IsObject(run)) {
        m->state = LS_MANIFEST_BROKEN;
        ls_text_put(m->why, sizeof m->why, "%s is %s", path,
                    text == NULL      ? "not readable"
                    : text[0] == '\0' ? "empty"
                                      : "cut, or no JSON object");
    } else if (ls_json_get(run, "files") != NULL) {
        m->state = LS_MANIFEST_BROKEN;
        ls_text_put(m->why, sizeof m->why, "%s/" LIST " is missing", m->directory);
    } else {
        m->state = ls_json_get(run, "headline") != NULL ? LS_MANIFEST_OLD : LS_MANIFEST_UNFINISHED;
    }
    cJSON_Delete(run);
    free(text);
}

static bool holds(const char *directory, const char *name)
{
    LS_TEXT(path, 800, "%s/%s", directory, name);
    return access(path, F_OK) == 0;
}

bool ls_manifest_is_run(const char *directory)
{
    return holds(directory, LIST) || holds(directory, "run.json");
}

ls_status ls_manifest_read(const char *run, ls_manifest *out)
{
    *out = (ls_manifest){.state = LS_MANIFEST_WHOLE};
    ls_text_put(out->directory, sizeof out->directory, "%s", run);
    if (!ls_manifest_is_run(run)) {
        return ls_log_fail(LS_ERR_USAGE, "'%s' is no run: it holds no run.json", run);
    }
    if (holds(run, LIST)) {
        read_list(out);
    } else {
        read_without(out);
    }
    return LS_OK;
}

void ls_manifest_free(ls_manifest *manifest)
{
    free(manifest->text);
    free(manifest->line);
    *manifest = (ls_manifest){.state = LS_MANIFEST_WHOLE};
}

int ls_manifest_compare(const ls_manifest *manifest, const char *prefix, unsigned wanted,
                        int *compared, char *why, size_t bytes)
{
    int wrong = 0;
    char other[1600];
    *compared = 0;
    for (int i = 0; i < manifest->count; i++) {
        const line *l = &manifest->line[i];
        if ((part_of(l->name) & wanted) == 0 || strncmp(l->name, prefix, strlen(prefix)) != 0) {
            continue;
        }
        ++*compared;
        bool may_miss = (wanted & LS_MANIFEST_PRESENT) != 0;
        wrong += !is_as_listed(manifest->directory, l, may_miss, wrong == 0 ? why : other,
                               wrong == 0 ? bytes : sizeof other);
    }
    if (wrong > 1) {
        ls_text_add(why, bytes, " (and %d more files)", wrong - 1);
    }
    return wrong;
}

static ls_status check_old(const ls_manifest *m, unsigned wanted)
{
    static const char *const names[] = {"run.json", "verdicts.jsonl", "summary.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if ((part_of(names[i]) & wanted) != 0 && is_cut(m->directory, names[i])) {
            return LS_ERR_INFRA;
        }
    }
    ls_log_warn("%s was written by an earlier version, without " LIST
                ": whether its files are whole cannot be checked",
                m->directory);
    return LS_OK;
}

static ls_status check(const ls_manifest *m, unsigned wanted)
{
    char why[1600];
    int compared;
    switch (m->state) {
    case LS_MANIFEST_BROKEN:
        return ls_log_fail(LS_ERR_INFRA, "%s", m->why);
    case LS_MANIFEST_OLD:
        return check_old(m, wanted);
    case LS_MANIFEST_UNFINISHED:
        return (wanted & LS_MANIFEST_FINISHED) == 0
                   ? LS_OK
                   : ls_log_fail(LS_ERR_USAGE,
                                 "'%s' is not finished (its run.json has no headline): it cannot "
                                 "be compared",
                                 m->directory);
    case LS_MANIFEST_WHOLE:
        break;
    }
    return ls_manifest_compare(m, "", wanted, &compared, why, sizeof why) == 0
               ? LS_OK
               : ls_log_fail(LS_ERR_INFRA, "%s", why);
}

ls_status ls_manifest_check(const char *run, unsigned wanted)
{
    ls_manifest manifest;
    LS_TRY(ls_manifest_read(run, &manifest));
    ls_status status = check(&manifest, wanted);
    ls_manifest_free(&manifest);
    return status;
}

/* ---- writing -------------------------------------------------------------------------------- */

typedef struct writer {
    const char *run;
    unsigned parts;
    FILE *to;
} writer;

static ls_status add_line(const writer *w, const char *name)
{
    LS_TEXT(path, 1400, "%s/%s", w->run, name);
    ls_file_source file;
    uint64_t digest = 0;
    ls_status status = digest_file(path, &digest, &file);
    if (status != LS_OK) {
        return ls_log_fail(status, "%s", file.why);
    }
    fprintf(w->to, "%016" PRIx64 "  %s\n", digest, name);
    return LS_OK;
}

/* Regular files alone, in order; run.json comes last. */
static ls_status add_folder(const writer *w, const char *inside)
{
    LS_TEXT(folder, 1400, "%s/%s", w->run, inside);
    struct dirent **entry;
    int count = scandir(folder, &entry, NULL, alphasort);
    if (count < 0) { /* files that are not listed would never be missed */
        return ls_log_fail(LS_ERR_INFRA, "cannot list %s: %s", folder, strerror(errno));
    }
    ls_status status = LS_OK;
    for (int i = 0; i < count; i++) {
        const char *own = entry[i]->d_name;
        LS_TEXT(name, 700, "%s%s%s", inside, inside[0] == '\0' ? "" : "/", own);
        LS_TEXT(path, 1400, "%s/%s", w->run, name);
        struct stat about;
        bool there = own[0] != '.' && strchr(own, '\n') == NULL && lstat(path, &about) == 0;
        if (there && S_ISDIR(about.st_mode)) {
            LS_THEN(status, add_folder(w, name));
        } else if (there && S_ISREG(about.st_mode) && (part_of(name) & w->parts) != 0 &&
                   strcmp(name, "run.json") != 0) {
            LS_THEN(status, add_line(w, name));
        }
        free(entry[i]);
    }
    free(entry);
    return status;
}

/* The lines of other parts, of which run.json's is one. */
static void keep_lines(const writer *w, const ls_manifest *old)
{
    for (int i = 0; i < old->count; i++) {
        if ((part_of(old->line[i].name) & w->parts) == 0) {
            fprintf(w->to, "%016" PRIx64 "  %s\n", old->line[i].digest, old->line[i].name);
        }
    }
}

static ls_status mark_run(const char *run)
{
    cJSON *root = NULL;
    LS_TEXT(path, 800, "%s/run.json", run);
    LS_TRY(ls_json_read_file(path, &root));
    cJSON_DeleteItemFromObjectCaseSensitive(root, "files");
    cJSON_AddStringToObject(root, "files", LIST);
    return ls_json_write_and_free(path, root);
}

ls_status ls_manifest_write(const char *run, unsigned wanted)
{
    ls_manifest old = {.count = 0};
    bool all = wanted == LS_MANIFEST_ALL;
    LS_TRY(all ? mark_run(run) : ls_manifest_read(run, &old));
    char *text = NULL;
    size_t bytes = 0;
    writer w = {run, wanted, open_memstream(&text, &bytes)};
    LS_ASSERT(w.to != NULL);
    ls_status status = add_folder(&w, "");
    if (all) {
        LS_THEN(status, add_line(&w, "run.json"));
    } else {
        keep_lines(&w, &old);
    }
    LS_ASSERT(fclose(w.to) == 0);
    LS_TEXT(path, 800, "%s/" LIST, run);
    if (all || old.state == LS_MANIFEST_WHOLE) {
        LS_THEN(status, ls_file_replace(path, text, bytes));
    }
    free(text);
    ls_manifest_free(&old);
    return status;
}

void ls_manifest_remove(const char *run)
{
    LS_TEXT(path, 800, "%s/" LIST, run);
    (void)unlink(path);
}
