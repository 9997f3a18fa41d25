/* The amp library's state dict: Apex's form, what comes back, what is refused
 * (apex/amp/frontend.py@state_dict,load_state_dict). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "amp_rows.h"
#include "toy_script.h"

/* m0 and m1 in one optimizer, SGD with momentum. */
#define AT(o, n, s)                                                            \
    {                                                                          \
        .level = (o), .losses = (n), .scale = (s), .interval = 4, .models = 2, \
        .rule = {.kind = LS_OPTIMIZER_SGD, .momentum = .5}, .lr = .0625f       \
    }

/* One step on both models by the block of that loss. */
#define STEPPED(l)               \
    {ROUND(l, 1, 3)}, {STEP(0)}, \
    {                            \
        ZERO(0)                  \
    }
#define SKIPPED(l, m, w, v)                       \
    {ROUND(l, 1, 3), POISON(m, w, v)}, {SKIP(0)}, \
    {                                             \
        ZERO(0)                                   \
    }

#define ENTRY(i, scale, unskipped) \
    "\"loss_scaler" #i "\":{\"loss_scale\":" #scale ",\"unskipped\":" #unskipped "}"

/* The second entry is wrong: the first one must not have been applied. */
#define WRONG(name, entry, words)                                                           \
    {                                                                                       \
        "state.wrong." name, "A8", AT(2, 2, 4), "refused, and nothing applied",             \
            OPS({LOAD("{" ENTRY(0, 8, 1) "," entry "}"), REFUSED(words)}, {SCALE(0, 4, 0)}, \
                {SCALE(1, 4, 0)})                                                           \
    }

static const ls_toy_script scripts[] = {
    {"state.form", "A8", AT(2, 2, 1024), "loss_scaler<i>: loss_scale and unskipped, nothing else",
     OPS(SKIPPED(1, 0, W0, INFINITY), {ROUND(1, 1, 1)}, {STEP(0)}, {ZERO(0)},
         {DICT("{" ENTRY(0, 1024, 0) "," ENTRY(1, 512, 1) "}")})},
    /* Apex's test_loss_scale_decrease */
    {"state.decrease", "A8", AT(2, 3, 65536), "0, 1 and 2 overflows: S, S/2, S/4",
     OPS(SKIPPED(1, 0, W1, INFINITY), SKIPPED(2, 0, W1, INFINITY), SKIPPED(2, 1, W1, NAN),
         {SCALE(0, 65536, 0)}, {SCALE(1, 32768, 0)}, {SCALE(2, 16384, 0)})},
    {"state.order", "A8", AT(2, 2, 4), "entries go by their number",
     OPS({LOAD("{" ENTRY(1, 16, 2) "," ENTRY(0, 8, 1) "}")}, {SCALE(0, 8, 1)}, {SCALE(1, 16, 2)})},
    {"state.mid-interval", "A8", AT(2, 1, 4), "the count of clean blocks came back",
     OPS({LOAD("{" ENTRY(0, 32, 2) "}")}, STEPPED(0), {SCALE(0, 32, 3)}, STEPPED(0),
         {SCALE(0, 64, 0)})},
    /* Apex never grows again from a count beyond its window; we grow at >= */
    {"state.beyond", "A8", AT(2, 1, 4), "a count beyond the interval grows at once",
     OPS({LOAD("{" ENTRY(0, 32, 2500) "}")}, STEPPED(0), {SCALE(0, 64, 0)})},
    {"state.more", "A8", AT(2, 1, 4), "more entries than losses: reported and ignored",
     OPS({LOAD("{" ENTRY(0, 8, 1) "," ENTRY(1, 16, 2) "}")},
         {SAID(2, "contains 2 entries|loss_scaler[1]")}, {SCALE(0, 8, 1)})},
    {"state.fewer", "A8", AT(2, 2, 4), "fewer entries than losses: reported, the others stay",
     OPS({LOAD("{" ENTRY(0, 8, 1) "}")}, {SAID(1, "contains 1 entries")}, {SCALE(0, 8, 1)},
         {SCALE(1, 4, 0)})},
    /* A static scale of 1 is Apex's short circuit; one that was loaded is none: gradients are
     * unscaled by it, and the step is that of 1. */
    {"state.static", "A8", AT(0, 1, 1), "a static scale of 8 that was loaded steps as 1",
     OPS({LOAD("{" ENTRY(0, 8, 0) "}")}, STEPPED(0), {WEIGHTS(0, .875f, 1.8125f, 1.9375f, 2.875f)},
         {WEIGHTS(1, 1.8125f, 2.75f, 2.875f, 3.8125f)})},
    {"state.open-block", "A8", AT(2, 1, 4), "refused inside a block",
     OPS({BEGIN(0, 1)}, {LOAD("{" ENTRY(0, 8, 1) "}"), REFUSED("inside the block")}, {CANCEL},
         {SCALE(0, 4, 0)})},
    WRONG("key", "\"amp1\":{\"loss_scale\":16,\"unskipped\":0}", "amp1"),
    WRONG("key-number", ENTRY(X, 16, 0), "loss_scalerX"),
    WRONG("scale-zero", ENTRY(1, 0, 0), "positive and finite"),
    WRONG("scale-negative", ENTRY(1, -8, 0), "loss_scaler1"),
    WRONG("scale-huge", ENTRY(1, 1e300, 0), "finite"),
    WRONG("scale-missing", "\"loss_scaler1\":{\"unskipped\":0}", "loss_scaler1"),
    WRONG("scale-text", ENTRY(1, "16", 0), "loss_scaler1"),
    WRONG("count-negative", ENTRY(1, 16, -1), "unskipped"),
    WRONG("count-broken", ENTRY(1, 16, 1.5), "unskipped"),
    WRONG("count-missing", "\"loss_scaler1\":{\"loss_scale\":16}", "unskipped"),
};

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
    const ls_toy_setup *setup = row->data;
    int level = setup->level;
    ls_toy whole, first, second;
    (void)job;
    if (!ls_toy_open(&whole, setup, out) || !ls_toy_open(&first, setup, out) ||
        !ls_toy_open(&second, setup, out)) {
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

void ls_amp_state_cases(const ls_case_settings *settings, ls_case_list *list)
{
    static const ls_toy_setup setups[] = {AT(0, 2, 64), AT(1, 2, 64), AT(2, 2, 64), AT(3, 2, 64)};
    ls_toy_script_cases(settings, list, scripts, sizeof scripts / sizeof *scripts);
    for (int level = 0; level < 4; level++) {
        ls_row row = {.requirement = "A8", .judge = judge_restore, .data = &setups[level]};
        ls_rows_format(list, settings, &row, "amp.state.restore.o%d", level);
    }
}
