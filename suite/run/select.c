#include "select.h"

#include <string.h>

#include "kernels/core/file.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"

/* ---- shares ---------------------------------------------------------------------------------- */

enum { CORES = 2 };

static const double judging_s = 0.2; /* of a case, without its jobs */

typedef struct need {
    char id[96]; /* of a job */
    int row;     /* of a case that needs it */
    const ls_spec *spec;
} need;

/* Cases connected by common jobs. */
typedef struct group {
    int first; /* row */
    double seconds;
    int share;
} group;

static int by_id(const void *left, const void *right)
{
    const need *a = left, *b = right;
    int order = strcmp(a->id, b->id);
    return order != 0 ? order : (a->row > b->row) - (a->row < b->row);
}

static int by_seconds(const void *left, const void *right)
{
    const group *a = left, *b = right;
    int order = (a->seconds < b->seconds) - (a->seconds > b->seconds);
    return order != 0 ? order : (a->first > b->first) - (a->first < b->first);
}

static need *list_needs(const ls_case_list *cases, int *count)
{
    need *list = ls_list_make((size_t)cases->count * LS_CASE_JOBS_MAX + 1, sizeof *list);
    *count = 0;
    for (int c = 0; c < cases->count; c++) {
        for (int j = 0; j < cases->row[c].job_count; j++) {
            need *n = &list[(*count)++];
            ls_matrix_id(&cases->row[c].job[j], n->id);
            n->row = c;
            n->spec = &cases->row[c].job[j];
        }
    }
    qsort(list, (size_t)*count, sizeof *list, by_id);
    return list;
}

static int root_of(int *parent, int row)
{
    while (parent[row] != row) {
        parent[row] = parent[parent[row]];
        row = parent[row];
    }
    return row;
}

/* parent[row] leads to the lowest row of its group. */
static void join(const need *list, int count, int *parent)
{
    for (int i = 1; i < count; i++) {
        if (strcmp(list[i].id, list[i - 1].id) == 0) {
            int a = root_of(parent, list[i - 1].row), b = root_of(parent, list[i].row);
            parent[a > b ? a : b] = a > b ? b : a;
        }
    }
}

/* The cost of each group, group[root].seconds. */
static void weigh(const ls_case_list *cases, const need *list, int count, int *parent,
                  group *groups)
{
    for (int c = 0; c < cases->count; c++) {
        groups[c].first = c;
        groups[root_of(parent, c)].seconds += judging_s;
    }
    for (int i = 0; i < count; i++) {
        if (i == 0 || strcmp(list[i].id, list[i - 1].id) != 0) {
            groups[root_of(parent, list[i].row)].seconds +=
                ls_matrix_estimate_s(list[i].spec, CORES);
        }
    }
}

/* Assigns the heaviest group first, each to the lightest share: share_of[first row]. */
static void deal(group *groups, int count, int shares, int *share_of)
{
    double *filled = ls_list_make((size_t)shares, sizeof *filled);
    qsort(groups, (size_t)count, sizeof *groups, by_seconds);
    for (int g = 0; g < count && groups[g].seconds > 0; g++) {
        int least = 0;
        for (int s = 1; s < shares; s++) {
            least = filled[s] < filled[least] ? s : least;
        }
        filled[least] += groups[g].seconds;
        share_of[groups[g].first] = least;
    }
    free(filled);
}

void ls_select_share(ls_case_list *cases, int share, int shares)
{
    if (shares <= 1) {
        return;
    }
    int count, kept = 0;
    need *list = list_needs(cases, &count);
    size_t rows = (size_t)cases->count + 1;
    int *parent = calloc(rows, sizeof *parent), *share_of = calloc(rows, sizeof *share_of);
    group *groups = calloc(rows, sizeof *groups);
    LS_MEMORY(parent != NULL && share_of != NULL && groups != NULL);
    for (int c = 0; c < cases->count; c++) {
        parent[c] = c;
    }
    join(list, count, parent);
    weigh(cases, list, count, parent, groups);
    deal(groups, cases->count, shares, share_of);
    for (int c = 0; c < cases->count; c++) {
        if (share_of[root_of(parent, c)] == share) {
            cases->row[kept++] = cases->row[c];
        }
    }
    cases->count = kept;
    free(groups);
    free(share_of);
    free(parent);
    free(list);
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Families under their former names, which are understood until the next release. */
static const struct {
    const char *before, *now;
} renamed[] = {{"told.", "events."}};

void ls_select_add(ls_select_list *list, const char *glob, const char *reason)
{
    char now[LS_CASE_ID_BYTES];
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++) {
        size_t length = strlen(renamed[i].before);
        if (strncmp(glob, renamed[i].before, length) == 0) {
            ls_text_put(now, sizeof now, "%s%s", renamed[i].now, glob + length);
            ls_log_warn("%s is named %s since 0.2.0", glob, now);
            glob = now;
        }
    }
    list->line = ls_list_grow(list->line, list->count, &list->capacity, sizeof *list->line);
    struct ls_select_line *line = &list->line[list->count++];
    ls_text_put(line->glob, sizeof line->glob, "%s", glob);
    line->reason = strdup(reason);
    LS_MEMORY(line->reason != NULL);
}

/* Appends the names of the .txt files of a folder, without that ending. */
static ls_status names_in(const char *name, ls_words *names)
{
    char folder[1024];
    if (!ls_path_find(name, folder, sizeof folder)) {
        return ls_log_fail(LS_ERR_INFRA, "the folder %s was not found next to the program", name);
    }
    DIR *entries = ls_path_open_folder(folder);
    for (const char *e; (e = ls_path_next(&entries)) != NULL;) {
        size_t length = strlen(e);
        if (length > 4 && strcmp(e + length - 4, ".txt") == 0) {
            ls_words_add(names, "%.*s", (int)length - 4, e);
        }
    }
    return LS_OK;
}

/* "; did you mean suite/lists/NAME.txt?", where one is near; else "". */
static void suggest_list(const char *path, char *hint, size_t bytes)
{
    ls_words names = {0};
    const char *name = strrchr(path, '/') == NULL ? path : strrchr(path, '/') + 1;
    LS_TEXT(asked, 200, "%.*s", (int)strcspn(name, "."), name);
    hint[0] = '\0';
    if (names_in("suite/lists", &names) == LS_OK && names.count > 0) {
        const char *best = ls_text_nearest(asked, (const char *const *)names.word, names.count);
        if (ls_text_distance(asked, best) <= (int)strlen(asked)) {
            ls_text_put(hint, bytes, "; did you mean suite/lists/%s.txt?", best);
        }
    }
    ls_words_free(&names);
}

ls_status ls_select_load(const char *path, ls_select_list *list)
{
    char *text = NULL;
    size_t bytes;
    ls_file_source file;
    if (ls_file_load(path, LS_FILE_TEXT_BYTES, &file, &text, &bytes) != LS_OK) {
        char hint[160];
        suggest_list(path, hint, sizeof hint);
        return ls_log_fail(LS_ERR_USAGE, "no list of cases: %s%s", file.why, hint);
    }
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        line[strcspn(line, "#")] = '\0';
        line += strspn(line, " \t");
        size_t length = strcspn(line, " \t\r");
        char *reason = line + length + strspn(line + length, " \t\r");
        for (char *end = reason + strlen(reason);
             end > reason && strchr(" \t\r", end[-1]) != NULL;) {
            *--end = '\0';
        }
        line[length] = '\0';
        if (length > 0) {
            ls_select_add(list, line, reason);
        }
    }
    free(text);
    return LS_OK;
}

void ls_select_free(ls_select_list *list)
{
    for (int i = 0; i < list->count; i++) {
        free(list->line[i].reason);
    }
    free(list->line);
    memset(list, 0, sizeof *list);
}

const struct ls_select_line *ls_select_find(const ls_select_list *list, const char *id)
{
    for (int i = 0; i < list->count; i++) {
        if (ls_text_matches(list->line[i].glob, id)) {
            return &list->line[i];
        }
    }
    return NULL;
}

int ls_select_count(const ls_case_list *cases, const ls_select_list *list)
{
    int count = 0;
    for (int c = 0; c < cases->count; c++) {
        count += ls_select_find(list, cases->row[c].id) != NULL;
    }
    return count;
}

ls_status ls_select_claims(ls_words *names)
{
    return names_in("suite/claims", names);
}

static ls_status load_claims(const char *claim, const ls_words *names, ls_select_list *list)
{
    bool found = false;
    for (int i = 0; i < names->count; i++) {
        if (strcmp(claim, "all") == 0 || strcmp(claim, names->word[i]) == 0) {
            char path[1400];
            LS_TEXT(name, 200, "suite/claims/%s.txt", names->word[i]);
            found = ls_path_find(name, path, sizeof path);
            LS_TRY(ls_select_load(path, list));
        }
    }
    if (!found) {
        char hint[160];
        ls_text_suggest(hint, sizeof hint, claim, (const char *const *)names->word, names->count,
                        "allowed: all, and the files of suite/claims without .txt");
        return ls_log_fail(LS_ERR_USAGE, "unknown claim '%s'; %s", claim, hint);
    }
    return LS_OK;
}

bool ls_select_is_optional(const ls_select_list *claim, const char *id)
{
    const struct ls_select_line *line = ls_select_find(claim, id);
    return line != NULL && strcmp(line->reason, "where offered") == 0;
}

ls_status ls_select_claim(const char *claim, ls_select_list *list)
{
    ls_words names = {0, 0, NULL};
    ls_status status = ls_select_claims(&names);
    LS_THEN(status, load_claims(claim, &names, list));
    ls_words_free(&names);
    return status;
}

ls_status ls_select_waivers(ls_select_list *list)
{
    char path[1024];
    if (!ls_path_find("suite/lists/waivers.txt", path, sizeof path)) {
        return LS_OK;
    }
    LS_TRY(ls_select_load(path, list));
    for (int i = 0; i < list->count; i++) {
        if (list->line[i].reason[0] == '\0') {
            return ls_log_fail(LS_ERR_USAGE, "%s: the waiver of %s has no reason", path,
                               list->line[i].glob);
        }
    }
    return LS_OK;
}

ls_status ls_select_manners(ls_select_list *list)
{
    char path[1024];
    ls_select_list all = {0};
    if (!ls_path_find("suite/requirements.txt", path, sizeof path)) {
        return LS_OK; /* every case is of CORRECT */
    }
    LS_TRY(ls_select_load(path, &all));
    for (int i = 0; i < all.count; i++) {
        if (ls_text_matches("(manners) *", all.line[i].reason)) {
            ls_select_add(list, all.line[i].glob, all.line[i].reason);
        }
    }
    ls_select_free(&all);
    return LS_OK;
}

/* The family is matched first, because the rest of a glob rarely resembles a name. */
static int distance_between(const char *glob, const char *id)
{
    LS_TEXT(asked, LS_CASE_ID_BYTES, "%.*s", (int)strcspn(glob, "."), glob);
    LS_TEXT(family, LS_CASE_ID_BYTES, "%.*s", (int)strcspn(id, "."), id);
    return LS_CASE_ID_BYTES * ls_text_distance(asked, family) + ls_text_distance(glob, id);
}

static ls_status every_line_matches(const ls_case_list *cases, const ls_select_list *wanted)
{
    for (int i = 0; i < wanted->count; i++) {
        const char *glob = wanted->line[i].glob;
        const char *best = "";
        int least = -1;
        bool found = false;
        for (int c = 0; c < cases->count && !found; c++) {
            found = ls_text_matches(glob, cases->row[c].id);
            int distance = distance_between(glob, cases->row[c].id);
            if (least < 0 || distance < least) {
                least = distance;
                best = cases->row[c].id;
            }
        }
        if (!found) {
            char hint[160];
            ls_text_suggest(hint, sizeof hint, glob, &best, least < 0 ? 0 : 1,
                            "`lockstep conform --list` lists all");
            return ls_log_fail(LS_ERR_USAGE, "no case matches '%s'; %s", glob, hint);
        }
    }
    return LS_OK;
}

void ls_select_matching(ls_case_list *cases, const ls_select_list *wanted)
{
    int kept = 0;
    for (int c = 0; c < cases->count; c++) {
        if (ls_select_find(wanted, cases->row[c].id) != NULL) {
            cases->row[kept++] = cases->row[c];
        }
    }
    cases->count = kept;
}

ls_status ls_select_keep(ls_case_list *cases, const ls_select_list *wanted, int share, int shares)
{
    LS_TRY(every_line_matches(cases, wanted));
    if (wanted->count > 0) {
        ls_select_matching(cases, wanted);
    }
    ls_select_share(cases, share, shares);
    return LS_OK;
}
