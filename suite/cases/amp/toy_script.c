#include "toy_script.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/json.h"
#include "kernels/core/text.h"

/* ---- operations ------------------------------------------------------------------------------ */

static ls_status begin(ls_toy *toy, const ls_toy_op *op, unsigned optimizers)
{
    int list[2], count = 0;
    for (int o = 0; o < 2; o++) {
        if ((optimizers >> o & 1u) != 0) {
            list[count++] = o;
        }
    }
    return ls_amp_begin(toy->amp, op->loss, list, count, op->delay, &toy->state);
}

static ls_status block(ls_toy *toy, const ls_toy_op *op)
{
    LS_TRY(begin(toy, op, 1));
    for (int w = 0; w < 2; w++) {
        if (op->weight == BOTH || op->weight == w) {
            ls_toy_give(toy, 0, w, op->value);
        }
    }
    return ls_amp_end(toy->amp);
}

static ls_status round_of(ls_toy *toy, const ls_toy_op *op)
{
    LS_TRY(begin(toy, op, op->optimizers));
    ls_toy_backward(toy, op->models, op->poison.value != 0 ? op->poison : ls_toy_clean);
    return ls_amp_end(toy->amp);
}

static int first_of(unsigned mask)
{
    return (mask & 1u) != 0 ? 0 : 1;
}

static ls_status step(ls_toy *toy, const ls_toy_op *op, const char *when)
{
    bool skipped = !op->skipped;
    LS_TRY(ls_amp_step(toy->amp, first_of(op->optimizers), &skipped));
    if (skipped != op->skipped) {
        ls_verdict_fail(toy->verdict, "%s: the step of optimizer %d was %s", when,
                        first_of(op->optimizers), skipped ? "skipped" : "taken");
    }
    return LS_OK;
}

static ls_status create(ls_toy *toy, const ls_toy_op *op)
{
    ls_amp_options options = ls_toy_options(&(ls_toy_setup){.level = 2});
    ls_amp *made = NULL;
    options.initial_scale = op->value[0];
    options.loss_count = op->count;
    ls_status status = ls_amp_create(&toy->device, &options, &made);
    ls_amp_destroy(made);
    return status;
}

/* ---- expectations ---------------------------------------------------------------------------- */

static void expect_grad(ls_toy *toy, const ls_toy_op *op, const char *when)
{
    for (int w = 0; w < 2; w++) {
        ls_amp_view view = ls_toy_view(toy, 0, w);
        float seen[2] = {NAN, NAN}, expected = op->value[w];
        if (view.has_grad) {
            ls_inside_read(&toy->device, &view.grad, seen);
        }
        bool none = isnan(expected) && !view.has_grad;
        if (!none && !(seen[0] == expected && seen[1] == expected)) {
            ls_verdict_fail(toy->verdict, "%s: the gradient of w%d is %.9g, %.9g, expected %.9g",
                            when, w, (double)seen[0], (double)seen[1], (double)expected);
        }
    }
}

static void expect_state(ls_toy *toy, const ls_toy_op *op, const char *when)
{
    ls_amp_view view = ls_toy_view(toy, 0, op->weight);
    float moment[2];
    ls_inside_read(&toy->device, &view.moment[0], moment);
    if (moment[0] != op->value[0] || *view.steps != op->count) {
        ls_verdict_fail(
            toy->verdict, "%s: w%d has %d steps and momentum %.9g, expected %d and %.9g", when,
            op->weight, (int)*view.steps, (double)moment[0], op->count, (double)op->value[0]);
    }
}

/* Whether every word of "a|b" stands in the text. */
static bool has_words(const char *text, const char *words)
{
    char copy[200], *rest = NULL;
    ls_text_put(copy, sizeof copy, "%s", words);
    for (char *word = strtok_r(copy, "|", &rest); word != NULL; word = strtok_r(NULL, "|", &rest)) {
        if (strstr(text, word) == NULL) {
            return false;
        }
    }
    return true;
}

static void expect_said(ls_toy *toy, const ls_toy_op *op, const char *when)
{
    char all[LS_TOY_SAID * 161] = "";
    for (int i = 0; i < toy->said_count && i < LS_TOY_SAID; i++) {
        ls_text_add(all, sizeof all, "%s\n", toy->said[i]);
    }
    if (toy->said_count != op->count || !has_words(all, op->text)) {
        ls_verdict_fail(toy->verdict, "%s: %d lines, expected %d with \"%s\": %s", when,
                        toy->said_count, op->count, op->text, all);
    }
}

static void expect_dict(ls_toy *toy, const ls_toy_op *op, const char *when)
{
    cJSON *state = NULL;
    ls_toy_must(toy, ls_amp_state_dict(toy->amp, &state), "ls_amp_state_dict");
    char *text = cJSON_PrintUnformatted(state);
    if (strcmp(text, op->text) != 0) {
        ls_verdict_fail(toy->verdict, "%s: the state dict is %s", when, text);
    }
    free(text);
    cJSON_Delete(state);
}

/* ---- scripts --------------------------------------------------------------------------------- */

static ls_status run_op(ls_toy *toy, const ls_toy_op *op, const char *when)
{
    switch (op->kind) {
    case LS_TOY_BEGIN:
        return begin(toy, op, op->optimizers);
    case LS_TOY_GIVE:
        ls_toy_give(toy, 0, op->weight, op->value);
        return LS_OK;
    case LS_TOY_END_BLOCK:
        return ls_amp_end(toy->amp);
    case LS_TOY_CANCEL:
        ls_amp_cancel(toy->amp);
        return LS_OK;
    case LS_TOY_BLOCK:
        return block(toy, op);
    case LS_TOY_ROUND:
        return round_of(toy, op);
    case LS_TOY_STEP:
        return step(toy, op, when);
    case LS_TOY_ZERO:
        return ls_amp_zero_grad(toy->amp, first_of(op->optimizers));
    case LS_TOY_ZERO_PARAM:
        return ls_amp_zero_param(toy->amp, 0, 0, op->weight);
    case LS_TOY_WRITE:
        ls_inside_write(&toy->device, &toy->model[0].weight[op->weight], op->value);
        return LS_OK;
    case LS_TOY_CHANGED:
        return ls_amp_weights_changed(toy->amp, 0);
    case LS_TOY_LOAD:
        return ls_toy_load(toy, op->text);
    case LS_TOY_CALL:
        return op->call(toy);
    case LS_TOY_CREATE:
        return create(toy, op);
    case LS_TOY_EXPECT_GRAD:
        expect_grad(toy, op, when);
        return LS_OK;
    case LS_TOY_EXPECT_WEIGHTS:
        ls_toy_expect(toy, op->model, op->value, when);
        return LS_OK;
    case LS_TOY_EXPECT_SCALE:
        ls_toy_expect_scale(toy, op->loss, op->value[0], op->count, when);
        return LS_OK;
    case LS_TOY_EXPECT_STATE:
        expect_state(toy, op, when);
        return LS_OK;
    case LS_TOY_EXPECT_SAID:
        expect_said(toy, op, when);
        return LS_OK;
    case LS_TOY_EXPECT_DICT:
        expect_dict(toy, op, when);
        return LS_OK;
    case LS_TOY_END:
    case LS_TOY_AGAIN:
        break;
    }
    LS_ASSERT(false);
    return LS_OK;
}

/* The operation must fail with its status and one line that has its words. */
static void run_refused(ls_toy *toy, const ls_toy_op *op, const char *when)
{
    char text[400];
    ls_inside_capture capture = ls_inside_capture_begin();
    ls_status status = run_op(toy, op, when);
    int lines = ls_inside_capture_end(&capture, text, (int)sizeof text);
    text[strcspn(text, "\n")] = '\0';
    if (status != op->status || lines != 1 || !has_words(text, op->names)) {
        ls_verdict_fail(toy->verdict, "%s: expected %s, one line with \"%s\"; got %s, %d lines: %s",
                        when, ls_status_name(op->status), op->names, ls_status_name(status), lines,
                        text);
    }
}

/* Returns how many operations ended as they must. */
static int run_script(const ls_toy_script *script, int level, ls_verdict *out)
{
    int operations = 0;
    ls_toy_setup setup = script->setup;
    ls_toy toy;
    setup.level = level;
    if (!ls_toy_open(&toy, &setup, out)) {
        return operations;
    }
    for (int i = 0; script->op[i].kind != LS_TOY_END; i++) {
        const ls_toy_op *op = &script->op[i];
        LS_TEXT(when, 48, "O%d, operation %d", level, i + 1);
        if (op->kind == LS_TOY_AGAIN) {
            ls_toy_close(&toy);
            if (!ls_toy_open(&toy, &setup, out)) {
                return operations;
            }
            continue;
        }
        for (int k = 0; k < op->times || k == 0; k++, operations++) {
            if (op->names != NULL) {
                run_refused(&toy, op, when);
            } else {
                ls_toy_must(&toy, run_op(&toy, op, when), when);
            }
        }
    }
    ls_toy_close(&toy);
    return operations;
}

static void judge_script(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_toy_script *script = row->data;
    int operations = 0;
    (void)job;
    for (int level = 0; level < 4; level++) {
        if (script->levels == 0 ? level == script->setup.level
                                : (script->levels >> level & 1u) != 0) {
            operations += run_script(script, level, out);
        }
    }
    ls_verdict_pass(out, operations, "%s", script->shows);
}

void ls_toy_script_cases(const ls_case_settings *settings, ls_case_list *list,
                         const ls_toy_script *script, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ls_row row = {
            .requirement = script[i].requirement, .judge = judge_script, .data = &script[i]};
        ls_rows_format(list, settings, &row, "amp.%s", script[i].id);
    }
}
