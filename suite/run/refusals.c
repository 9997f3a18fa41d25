#include "run.h"

#include <string.h>

#include "kernels/core/list.h"

bool ls_refusals_names(const char *word, const char *option)
{
    for (; *option != '\0' && *option != '=' && *option != ' '; word++, option++) {
        if (*word != *option && !(*word == '-' && *option == '_')) {
            return false;
        }
    }
    return *word == '\0' || *word == '=';
}

/* Appends the option as the job's command gives it, with its value: "--optimizer=lamb",
 * "--sync-bn", "-a resnet8". Nothing where it is not given, unless matrix.c leaves out a default.
 */
static void add_setting(const ls_job *job, const char *option, char *text, size_t bytes)
{
    const char *name = ls_refusals_names("--arch", option)         ? "-a"
                       : ls_refusals_names("--batch-size", option) ? "-b"
                                                                   : option;
    for (int i = job->command.count - 1; i >= 0 && name[0] == '-'; i--) { /* the last one counts */
        const char *word = job->command.word[i], *next = job->command.word[i + 1];
        if (ls_refusals_names(word, name)) {
            bool value = next != NULL && next[0] != '-' && strchr(word, '=') == NULL;
            ls_text_add(text, bytes, "%s%s%s", word, value ? " " : "", value ? next : "");
            return;
        }
    }
    ls_text_add(text, bytes, "%s", ls_refusals_names("--dialect", option) ? "--dialect=apex" : "");
}

/* What a subject refuses when it names that option: the option with its value. Level, half type and
 * loss scale are refused together, since one may be refused because of another. */
static void find_setting(const ls_job *job, const char *option, char *text, size_t bytes)
{
    static const char *const precision[] = {"--opt-level", "--half", "--loss-scale"};
    text[0] = '\0';
    for (int i = 0; i < 3; i++) {
        if (ls_refusals_names(precision[i], option)) {
            for (int k = 0; k < 3; k++) {
                add_setting(job, precision[k], text, bytes);
                ls_text_add(text, bytes, k < 2 ? " " : "");
            }
            return;
        }
    }
    add_setting(job, option, text, bytes);
}

void ls_refusals_learn(ls_refusals *list, const ls_job *job, const ls_record *record)
{
    for (int k = 0; k < record->world && record->code == LS_ERR_UNSUPPORTED; k++) {
        const cJSON *event = record->rank[k].unsupported;
        ls_refusal one = {0};
        find_setting(job, ls_json_string(event, "option", ""), one.setting, sizeof one.setting);
        if (one.setting[0] != '\0') {
            ls_text_put(one.option, sizeof one.option, "%s", ls_json_string(event, "option", ""));
            ls_text_put(one.why, sizeof one.why, "%s", ls_json_string(event, "why", ""));
            ls_text_put(one.job, sizeof one.job, "%s", job->id);
            list->one = ls_list_grow(list->one, list->count, &list->capacity, sizeof *list->one);
            list->one[list->count++] = one;
            return;
        }
    }
}

bool ls_refusals_foretell(const ls_refusals *list, const ls_job *job, ls_record *out)
{
    for (int i = 0; i < list->count; i++) {
        const ls_refusal *one = &list->one[i];
        char setting[sizeof one->setting];
        find_setting(job, one->option, setting, sizeof setting);
        if (strcmp(setting, one->setting) != 0) {
            continue;
        }
        *out = (ls_record){.state = LS_RECORD_FAILED, .code = LS_ERR_UNSUPPORTED, .world = 1};
        ls_text_put(out->directory, sizeof out->directory, "%s", job->directory);
        ls_text_put(out->id, sizeof out->id, "%s", job->id);
        out->rank = ls_list_make(1, sizeof *out->rank);
        LS_TEXT(why, sizeof one->why + sizeof one->job + 8, "%s (job %s)", one->why, one->job);
        cJSON *event = out->rank[0].unsupported = cJSON_CreateObject();
        cJSON_AddStringToObject(event, "option", one->option);
        cJSON_AddStringToObject(event, "why", why);
        return true;
    }
    return false;
}
