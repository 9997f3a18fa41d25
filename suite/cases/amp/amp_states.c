/* The amp library's state dict: Apex's form, what comes back, what is refused
 * (apex/amp/frontend.py@state_dict,load_state_dict). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "kernels/core/json.h"
#include "amp_rows.h"
#include "toy.h"

static const int only[] = {0};

/* m0 and m1 in one optimizer, SGD with momentum. */
static bool open_level(ls_toy *toy, int level, int losses, float scale, ls_verdict *out)
{
    ls_amp_options options = ls_toy_options(level, losses, scale);
    ls_optimizer_config sgd = ls_toy_sgd(.5f);
    options.scaler.growth_interval = 4;
    if (!ls_toy_open(toy, &options, out)) {
        return false;
    }
    ls_toy_optimizer(toy);
    for (int m = 0; m < 2; m++) {
        ls_toy_make(toy, m, (float)m + 1);
        ls_toy_own(toy, 0, m, &sgd, .0625f);
    }
    return true;
}

static ls_status load(ls_toy *toy, const char *text, char *said, int bytes)
{
    cJSON *state = cJSON_Parse(text);
    LS_ASSERT(state != NULL);
    ls_inside_ear ear = ls_inside_hear();
    ls_status status = ls_amp_load_state_dict(toy->amp, state);
    ls_inside_heard(&ear, said, bytes);
    said[strcspn(said, "\n")] = '\0';
    cJSON_Delete(state);
    return status;
}

static void check_form(ls_verdict *out)
{
    static const char expected[] = "{\"loss_scaler0\":{\"loss_scale\":1024,\"unskipped\":0},"
                                   "\"loss_scaler1\":{\"loss_scale\":512,\"unskipped\":1}}";
    ls_toy toy;
    cJSON *state = NULL;
    if (!open_level(&toy, 2, 2, 1024.0f, out)) {
        return;
    }
    ls_toy_poison bad = {0, 0, INFINITY};
    ls_toy_iterate(&toy, 1, 0, 3u, bad);
    ls_toy_iterate(&toy, 1, 0, 1u, ls_toy_clean);
    ls_status status = ls_amp_state_dict(toy.amp, &state);
    ls_toy_must(&toy, status, "ls_amp_state_dict");
    char *text = cJSON_PrintUnformatted(state);
    if (strcmp(text, expected) != 0) {
        ls_verdict_fail(out, "%s", text);
    }
    free(text);
    cJSON_Delete(state);
    ls_toy_close(&toy);
}

/* Three losses that overflow 0, 1 and 2 times (Apex's test_loss_scale_decrease). */
static void check_decrease(ls_verdict *out)
{
    ls_toy toy;
    if (!open_level(&toy, 2, 3, 65536.0f, out)) {
        return;
    }
    for (int loss = 0; loss < 3; loss++) {
        for (int i = 0; i < loss; i++) {
            ls_toy_poison bad = {i, 1, i == 0 ? INFINITY : NAN};
            ls_toy_iterate(&toy, loss, 0, 3u, bad);
        }
    }
    for (int loss = 0; loss < 3; loss++) {
        ls_toy_expect_scale(&toy, loss, 65536.0f / (float)(1 << loss), 0, "forced overflows", out);
    }
    ls_toy_close(&toy);
}

/* Entries belong to the loss of their number, in whatever order they stand. */
static void check_order(ls_verdict *out)
{
    ls_toy toy;
    char said[300];
    if (!open_level(&toy, 2, 2, 4.0f, out)) {
        return;
    }
    ls_status status = load(&toy,
                            "{\"loss_scaler1\":{\"loss_scale\":16,\"unskipped\":2},"
                            "\"loss_scaler0\":{\"loss_scale\":8,\"unskipped\":1}}",
                            said, (int)sizeof said);
    if (status != LS_OK) {
        ls_verdict_fail(out, "%s: %s", ls_status_name(status), said);
    }
    ls_toy_expect_scale(&toy, 0, 8.0f, 1, "loaded in reverse", out);
    ls_toy_expect_scale(&toy, 1, 16.0f, 2, "loaded in reverse", out);
    ls_toy_close(&toy);
}

/* The count of clean blocks goes on where it was: two more make four. */
static void check_mid_interval(ls_verdict *out)
{
    ls_toy toy;
    if (!open_level(&toy, 2, 1, 4.0f, out)) {
        return;
    }
    ls_toy_load_scale(&toy, 0, 32.0f, 2);
    ls_toy_iterate(&toy, 0, 0, 3u, ls_toy_clean);
    ls_toy_expect_scale(&toy, 0, 32.0f, 3, "one block behind the load", out);
    ls_toy_iterate(&toy, 0, 0, 3u, ls_toy_clean);
    ls_toy_expect_scale(&toy, 0, 64.0f, 0, "two blocks behind the load", out);
    ls_toy_close(&toy);
}

/* Apex never grows again from a count beyond its window; we grow at >=. */
static void check_beyond(ls_verdict *out)
{
    ls_toy toy;
    if (!open_level(&toy, 2, 1, 4.0f, out)) {
        return;
    }
    ls_toy_load_scale(&toy, 0, 32.0f, 2500);
    ls_toy_iterate(&toy, 0, 0, 3u, ls_toy_clean);
    ls_toy_expect_scale(&toy, 0, 64.0f, 0, "a count of 2500 at interval 4", out);
    ls_toy_close(&toy);
}

static void check_more(ls_verdict *out)
{
    ls_toy toy;
    char said[300];
    if (!open_level(&toy, 2, 1, 4.0f, out)) {
        return;
    }
    ls_status status = load(&toy,
                            "{\"loss_scaler0\":{\"loss_scale\":8,\"unskipped\":1},"
                            "\"loss_scaler1\":{\"loss_scale\":16,\"unskipped\":2}}",
                            said, (int)sizeof said);
    bool told = toy.said_count == 2 && strstr(toy.said[0], "contains 2 entries") != NULL &&
                strstr(toy.said[1], "loss_scaler[1]") != NULL;
    if (status != LS_OK || !told) {
        ls_verdict_fail(out, "%s, %d lines: %s", ls_status_name(status), toy.said_count,
                        toy.said[0]);
    }
    ls_toy_expect_scale(&toy, 0, 8.0f, 1, "two entries for one loss", out);
    ls_toy_close(&toy);
}

static void check_fewer(ls_verdict *out)
{
    ls_toy toy;
    char said[300];
    if (!open_level(&toy, 2, 2, 4.0f, out)) {
        return;
    }
    ls_status status =
        load(&toy, "{\"loss_scaler0\":{\"loss_scale\":8,\"unskipped\":1}}", said, (int)sizeof said);
    if (status != LS_OK || toy.said_count != 1) {
        ls_verdict_fail(out, "%s, %d lines", ls_status_name(status), toy.said_count);
    }
    ls_toy_expect_scale(&toy, 0, 8.0f, 1, "one entry for two losses", out);
    ls_toy_expect_scale(&toy, 1, 4.0f, 0, "one entry for two losses", out);
    ls_toy_close(&toy);
}

/* A static scale of 1 is Apex's short circuit; one that was loaded is none: gradients are unscaled
 * by it, and the step is that of 1. */
static void check_static(ls_verdict *out)
{
    ls_toy plain, loaded;
    float weight[4];
    char said[300];
    if (!open_level(&plain, 0, 1, 1.0f, out)) {
        return;
    }
    if (open_level(&loaded, 0, 1, 1.0f, out)) {
        ls_status status = load(&loaded, "{\"loss_scaler0\":{\"loss_scale\":8,\"unskipped\":0}}",
                                said, (int)sizeof said);
        ls_toy_must(&loaded, status, "ls_amp_load_state_dict");
        ls_toy_iterate(&plain, 0, 0, 3u, ls_toy_clean);
        ls_toy_iterate(&loaded, 0, 0, 3u, ls_toy_clean);
        for (int m = 0; m < 2; m++) {
            ls_toy_weights(&plain, m, weight);
            ls_toy_expect(&loaded, m, weight, "a step at a static scale that was loaded", out);
        }
        ls_toy_close(&loaded);
    }
    ls_toy_close(&plain);
}

static void check_open_block(ls_verdict *out)
{
    ls_toy toy;
    char said[300];
    if (!open_level(&toy, 2, 1, 4.0f, out)) {
        return;
    }
    ls_toy_begin(&toy, 0, only, 1, false);
    ls_status status =
        load(&toy, "{\"loss_scaler0\":{\"loss_scale\":8,\"unskipped\":1}}", said, (int)sizeof said);
    ls_amp_cancel(toy.amp);
    if (status != LS_ERR_USAGE) {
        ls_verdict_fail(out, "loading inside a block: %s", ls_status_name(status));
    }
    ls_toy_expect_scale(&toy, 0, 4.0f, 0, "a refused load", out);
    ls_toy_close(&toy);
}

/* What is wrong stands in the second entry: the first one must not have been applied. */
static const struct {
    const char *name, *entry, *names;
} errors[] = {
    {"key", "\"amp1\":{\"loss_scale\":16,\"unskipped\":0}", "amp1"},
    {"key-number", "\"loss_scalerX\":{\"loss_scale\":16,\"unskipped\":0}", "loss_scalerX"},
    {"scale-zero", "\"loss_scaler1\":{\"loss_scale\":0,\"unskipped\":0}", "positive and finite"},
    {"scale-negative", "\"loss_scaler1\":{\"loss_scale\":-8,\"unskipped\":0}", "loss_scaler1"},
    {"scale-huge", "\"loss_scaler1\":{\"loss_scale\":1e300,\"unskipped\":0}", "finite"},
    {"scale-missing", "\"loss_scaler1\":{\"unskipped\":0}", "loss_scaler1"},
    {"scale-text", "\"loss_scaler1\":{\"loss_scale\":\"16\",\"unskipped\":0}", "loss_scaler1"},
    {"count-negative", "\"loss_scaler1\":{\"loss_scale\":16,\"unskipped\":-1}", "unskipped"},
    {"count-broken", "\"loss_scaler1\":{\"loss_scale\":16,\"unskipped\":1.5}", "unskipped"},
    {"count-missing", "\"loss_scaler1\":{\"loss_scale\":16}", "unskipped"},
};

static void judge_error(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    ls_toy toy;
    char said[300], text[300];
    if (!open_level(&toy, 2, 2, 4.0f, out)) {
        return;
    }
    snprintf(text, sizeof text, "{\"loss_scaler0\":{\"loss_scale\":8,\"unskipped\":1},%s}",
             errors[row->number[0]].entry);
    ls_status status = load(&toy, text, said, (int)sizeof said);
    if (status != LS_ERR_USAGE || strstr(said, errors[row->number[0]].names) == NULL) {
        ls_verdict_fail(out, "%s: %s", ls_status_name(status), said);
    }
    ls_toy_expect_scale(&toy, 0, 4.0f, 0, "nothing may be applied", out);
    ls_toy_expect_scale(&toy, 1, 4.0f, 0, "nothing may be applied", out);
    ls_verdict_pass(out, "%s", said);
    ls_toy_close(&toy);
}

/* ---- a training that is saved and goes on elsewhere ------------------------------------------ */

static void train(ls_toy *toy, int from, int to)
{
    for (int i = from; i < to; i++) {
        ls_toy_poison bad = {1, 1, NAN};
        ls_toy_iterate(toy, i % 2, 0, 3u, i == 3 || i == 7 ? bad : ls_toy_clean);
    }
}

static void copy_tensor(ls_toy *to, const ls_tensor *into, ls_toy *from, const ls_tensor *tensor)
{
    float value[2];
    ls_inside_read(&from->device, tensor, value);
    ls_inside_write(&to->device, into, value);
}

/* What a checkpoint holds: weights, masters, momentum, counts, the scalers' state dict. */
static void restore(ls_toy *to, ls_toy *from)
{
    for (int m = 0; m < 2; m++) {
        for (int w = 0; w < 2; w++) {
            ls_amp_view source = ls_toy_view(from, m, w), target = ls_toy_view(to, m, w);
            copy_tensor(to, &target.param, from, &source.param);
            copy_tensor(to, &target.value, from, &source.value);
            copy_tensor(to, &target.moment[0], from, &source.moment[0]);
            *target.steps = *source.steps;
        }
    }
    cJSON *state = NULL;
    ls_status status = ls_amp_state_dict(from->amp, &state);
    ls_toy_must(to, status, "ls_amp_state_dict");
    char *text = cJSON_PrintUnformatted(state); /* as it would stand in a file */
    cJSON_Delete(state);
    state = cJSON_Parse(text);
    free(text);
    status = ls_amp_load_state_dict(to->amp, state);
    ls_toy_must(to, status, "ls_amp_load_state_dict");
    cJSON_Delete(state);
}

static void judge_restore(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    ls_toy whole, first, second;
    int level = row->number[0];
    if (!open_level(&whole, level, 2, 64.0f, out) || !open_level(&first, level, 2, 64.0f, out) ||
        !open_level(&second, level, 2, 64.0f, out)) {
        return;
    }
    bool dynamic = level == 1 || level == 2;
    train(&whole, 0, dynamic ? 12 : 3); /* a static scale lets the NaN of iteration 3 through */
    train(&first, 0, dynamic ? 6 : 2);
    restore(&second, &first);
    train(&second, dynamic ? 6 : 2, dynamic ? 12 : 3);
    for (int m = 0; m < 2; m++) {
        float weight[4], master[2][2];
        ls_toy_weights(&whole, m, weight);
        ls_toy_expect(&second, m, weight, "restored in the middle", out);
        ls_amp_view one = ls_toy_view(&whole, m, 1), other = ls_toy_view(&second, m, 1);
        ls_inside_read(&whole.device, &one.value, master[0]);
        ls_inside_read(&second.device, &other.value, master[1]);
        if (memcmp(master[0], master[1], sizeof master[0]) != 0) {
            ls_verdict_fail(out, "the master of m%d.w1 differs: %.9g and %.9g", m,
                            (double)master[0][0], (double)master[1][0]);
        }
    }
    cJSON *state[2];
    ls_status status = ls_amp_state_dict(whole.amp, &state[0]);
    ls_toy_must(&whole, status, "ls_amp_state_dict");
    status = ls_amp_state_dict(second.amp, &state[1]);
    ls_toy_must(&whole, status, "ls_amp_state_dict");
    if (!cJSON_Compare(state[0], state[1], true)) {
        ls_verdict_fail(out, "the scales differ at the end");
    }
    cJSON_Delete(state[0]);
    cJSON_Delete(state[1]);
    ls_verdict_pass(out, "saved and restored in the middle of an interval: the same bits");
    ls_toy_close(&whole);
    ls_toy_close(&first);
    ls_toy_close(&second);
}

static const ls_toy_row rows[] = {
    {"A8", "state.form", check_form, "loss_scaler<i>: loss_scale and unskipped, nothing else"},
    {"A8", "state.decrease", check_decrease, "0, 1 and 2 overflows: S, S/2, S/4"},
    {"A8", "state.order", check_order, "entries go by their number"},
    {"A8", "state.mid-interval", check_mid_interval, "the count of clean blocks came back"},
    {"A8", "state.beyond", check_beyond, "a count beyond the interval grows at once"},
    {"A8", "state.more", check_more, "more entries than losses: told and ignored"},
    {"A8", "state.fewer", check_fewer, "fewer entries than losses: told, the others stay"},
    {"A8", "state.static", check_static, "a static scale of 8 that was loaded steps as 1"},
    {"A8", "state.open-block", check_open_block, "refused inside a block"},
};

static void judge_row(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    ls_toy_judge(&rows[row->number[0]], out);
}

void ls_amp_state_cases(ls_case_list *list)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_rows_add_inside(list, judge_row, rows[i].requirement, "amp.%s", rows[i].id)->number[0] =
            (int)i;
    }
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        ls_rows_add_inside(list, judge_error, "A8", "amp.state.wrong.%s", errors[i].name)
            ->number[0] = (int)i;
    }
    for (int level = 0; level < 4; level++) {
        ls_rows_add_inside(list, judge_restore, "A8", "amp.state.restore.o%d", level)->number[0] =
            level;
    }
}
