#include "judges.h"

#include <string.h>
#include <unistd.h>

#include "kernels/core/list.h"
#include "kernels/core/path.h"

const cJSON *ls_announced_option(const cJSON *options, const char *name)
{
    LS_TEXT(other, 64, "%s", name);
    for (char *c = other; *c != '\0'; c++) {
        *c = *c == '-' ? '_' : *c;
    }
    const cJSON *found = ls_json_get(options, name);
    return found != NULL ? found : ls_json_get(options, other);
}

/* "1,2" of a list, a number or a string; "" of anything else. */
static void write_value(const cJSON *value, char *text, size_t bytes)
{
    const cJSON *one, *list = cJSON_IsArray(value) ? value : NULL;
    text[0] = '\0';
    if (cJSON_IsString(value)) {
        ls_text_put(text, bytes, "%s", value->valuestring);
    } else if (cJSON_IsNumber(value)) {
        ls_text_put(text, bytes, "%.0f", value->valuedouble);
    }
    ls_json_each(one, list) {
        ls_text_add(text, bytes, "%s%.0f", text[0] == '\0' ? "" : ",", one->valuedouble);
    }
}

/* Of the rank's start event, else of the command. */
static void read_option(const ls_record *job, int rank, const char *name, char *text, size_t bytes)
{
    const cJSON *options = ls_json_get(job->rank[rank].start, "options");
    const cJSON *value = ls_announced_option(options, name), *word;
    const cJSON *command = ls_json_get(job->job, "command");
    write_value(value, text, bytes);
    command = value != NULL ? NULL : command;
    bool next = false;
    LS_TEXT(flag, 64, "--%s", name);
    size_t length = strlen(flag);
    ls_json_each(word, command) {
        const char *given = cJSON_IsString(word) ? word->valuestring : "";
        if (next) {
            ls_text_put(text, bytes, "%s", given);
        } else if (strncmp(given, flag, length) == 0 && given[length] == '=') {
            ls_text_put(text, bytes, "%s", given + length + 1);
        }
        next = strcmp(given, flag) == 0;
    }
}

/* The next whole number of "1,2"; false at the end. */
static bool next_number(const char **text, int *number)
{
    *text += strspn(*text, ", ");
    char *end;
    long value = strtol(*text, &end, 10);
    bool good = end != *text && value > 0 && value < 1000000000;
    *number = (int)value;
    *text = end;
    return good;
}

bool ls_announced_dump_missing(const ls_record *job, int rank, int64_t step)
{
    char text[512], ranks[64], path[700];
    const ls_record_step *event = ls_record_find_step(&job->rank[rank], step);
    read_option(job, rank, "dump-ranks", ranks, sizeof ranks);
    if (event == NULL || event->joined || (rank > 0 && (ranks[0] == '\0' || ranks[0] == '0'))) {
        return false;
    }
    read_option(job, rank, "dump-steps", text, sizeof text);
    bool announced = false;
    int number;
    for (const char *at = text; next_number(&at, &number);) {
        announced = announced || number == step;
    }
    ls_dumps_path(job, step, rank, path, sizeof path);
    return announced && access(path, R_OK) != 0;
}

static void add_step(ls_announced_dumps *out, int *room, int step)
{
    int at = 0;
    while (at < out->step_count && out->step[at] < step) {
        at++;
    }
    if (at < out->step_count && out->step[at] == step) {
        return;
    }
    out->step = ls_list_grow(out->step, out->step_count, room, sizeof *out->step);
    memmove(&out->step[at + 1], &out->step[at], (size_t)(out->step_count - at) * sizeof step);
    out->step[at] = step;
    out->step_count++;
}

/* The steps that any rank has dumped. */
static void add_found(const ls_record *job, ls_announced_dumps *out, int *room)
{
    LS_TEXT(folder, PATH_MAX, "%s/dump", job->directory);
    DIR *entries = ls_path_open_folder(folder);
    for (const char *e; (e = ls_path_next(&entries)) != NULL;) {
        int step, rank, end = 0;
        if (sscanf(e, "step%9d.rank%9d.safetensors%n", &step, &rank, &end) == 2 && end > 0 &&
            e[end] == '\0') {
            add_step(out, room, step);
            out->there++;
        }
    }
}

ls_announced_dumps ls_announced_dumps_of(const ls_record *job)
{
    ls_announced_dumps out = {.step_count = 0};
    int room = 0, number, missing = 0;
    char text[512];
    add_found(job, &out, &room);
    for (int k = 0; k < job->world; k++) {
        read_option(job, k, "dump-steps", text, sizeof text);
        for (const char *at = text; next_number(&at, &number);) {
            if (!ls_announced_dump_missing(job, k, number)) {
                continue;
            }
            add_step(&out, &room, number);
            if (missing++ == 0) {
                ls_text_put(out.missing, sizeof out.missing, "dump/step%06d.rank%d.safetensors",
                            number, k);
            }
        }
    }
    out.announced = out.there + missing;
    return out;
}

bool ls_announced_save_missing(const ls_record *job, char *path, size_t bytes)
{
    char file[512], folder[512], moved[PATH_MAX];
    read_option(job, 0, "save", file, sizeof file);
    read_option(job, 0, "save-dir", folder, sizeof folder);
    ls_text_put(path, bytes, "%s%s", file[0] != '\0' ? file : folder,
                file[0] == '\0' && folder[0] != '\0' ? "/last.safetensors" : "");
    const char *name = strrchr(path, '/');
    const char *within = path[0] != '/' ? path : name;
    ls_text_put(moved, sizeof moved, "%s/%s", job->directory, within == NULL ? "" : within);
    return path[0] != '\0' && access(path, R_OK) != 0 && access(moved, R_OK) != 0;
}
