#include "detect_internal.h"

#include <string.h>

#include "kernels/core/log.h"

/* ---- the rows of suite/peers/BASE.txt -------------------------------------------------------- */

static const char adapted[] = "script/adapted";
static const char *const bases[] = {"trainer", "example", adapted};

/* suite/peers/mistakes.py says what a row holds, and makes its script: changes are nothing here. */
static ls_status read_line(char *line, const char *path, int number, ls_detect_list *out)
{
    ls_detect_plant *plant = out->count == 0 ? NULL : &out->plant[out->count - 1];
    if (line[0] == '[') {
        plant = ls_detect_append(out);
        plant->foreign = true;
        ls_text_put(plant->name, sizeof plant->name, "foreign.%.*s", (int)strcspn(line + 1, "]"),
                    line + 1);
        ls_text_put(plant->wish, sizeof plant->wish, "%s", plant->name);
        ls_text_put(plant->cause, sizeof plant->cause, "-");
    } else if (strchr("#-+ @", line[0]) != NULL) {
        return LS_OK;
    } else if (plant == NULL || !plant->foreign) {
        return ls_log_fail(LS_ERR_USAGE, "%s:%d: expected [NAME] before '%s'", path, number, line);
    } else if (plant->sentence[0] == '\0') {
        ls_text_put(plant->sentence, sizeof plant->sentence, "%s", line);
    } else if (strncmp(line, "case: ", 6) == 0) {
        ls_detect_take_case(plant, line + 6);
    } else if (strncmp(line, "cause: ", 7) == 0) {
        ls_text_put(plant->cause, sizeof plant->cause, "%s", line + 7);
    }
    return LS_OK;
}

ls_status ls_detect_read_foreign(const char *peers, ls_detect_list *out)
{
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        LS_TEXT(path, 1100, "%s/%s.txt", peers, bases[i]);
        int first = out->count;
        LS_TRY(ls_detect_read_lines(path, "the list of wrong trainers", read_line, out));
        for (int k = first; k < out->count; k++) {
            ls_detect_plant *plant = &out->plant[k];
            plant->base = bases[i];
            ls_text_put(plant->script, sizeof plant->script, "%s/mistakes.py %s %s", peers,
                        bases[i], plant->name + strlen("foreign."));
        }
    }
    return LS_OK;
}

/* ---- the right trainers ---------------------------------------------------------------------- */

void ls_detect_judge_right(const ls_detect_outcome *outcome, ls_detect_clean *clean)
{
    const ls_detect_verdict *bad = ls_detect_alarm(outcome);
    bool good = bad == NULL && outcome->count > 0 && outcome->code == 0;
    clean->cases = outcome->count;
    clean->not_run = !good && (bad == NULL || (strcmp(bad->code, ls_verdict_name(LS_FAIL)) != 0 &&
                                               strcmp(bad->code, ls_verdict_name(LS_WEAK)) != 0));
    ls_text_put(clean->where, sizeof clean->where, "%s",
                good          ? ""
                : bad == NULL ? "(no case)"
                              : bad->case_id);
    if (bad != NULL) {
        ls_text_put(clean->alarm, sizeof clean->alarm, "%s: %s", bad->code, bad->evidence);
    } else if (!good) {
        ls_text_put(clean->alarm, sizeof clean->alarm, "exit code %d after %.0f s", outcome->code,
                    outcome->seconds);
    }
}

const char *ls_detect_right_of(const ls_detect_plant *wrong)
{
    return wrong->base == adapted ? "script/adapted.py" : "pytorch_train.py";
}

void ls_detect_right_command(const ls_detect_plant *wrong, const char *python, char *text,
                             size_t bytes)
{
    int folder = (int)(strstr(wrong->script, "mistakes.py ") - wrong->script);
    ls_text_put(text, bytes, "%s %.*s%s", python, folder, wrong->script, ls_detect_right_of(wrong));
}
