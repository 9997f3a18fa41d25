/* The amp library's state dict: Apex's form, what comes back, what is refused
 * (apex/amp/frontend.py@state_dict,load_state_dict); and misuse of the library. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "toy.h"

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
    ls_toy_must(to, ls_amp_state_dict(from->amp, &state), "ls_amp_state_dict");
    char *text = cJSON_PrintUnformatted(state); /* as it would stand in a file */
    cJSON_Delete(state);
    state = cJSON_Parse(text);
    free(text);
    ls_toy_must(to, ls_amp_load_state_dict(to->amp, state), "ls_amp_load_state_dict");
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
        ls_toy_expect(&second, m, weight, "restored in the middle");
        ls_amp_view one = ls_toy_view(&whole, m, 1), other = ls_toy_view(&second, m, 1);
        ls_inside_read(&whole.device, &one.value, master[0]);
        ls_inside_read(&second.device, &other.value, master[1]);
        if (memcmp(master[0], master[1], sizeof master[0]) != 0) {
            ls_verdict_fail(out, "the master of m%d.w1 differs: %.9g and %.9g", m,
                            (double)master[0][0], (double)master[1][0]);
        }
    }
    cJSON *state[2];
    ls_toy_must(&whole, ls_amp_state_dict(whole.amp, &state[0]), "ls_amp_state_dict");
    ls_toy_must(&whole, ls_amp_state_dict(second.amp, &state[1]), "ls_amp_state_dict");
    if (!cJSON_Compare(state[0], state[1], true)) {
        ls_verdict_fail(out, "the scales differ at the end");
    }
    cJSON_Delete(state[0]);
    cJSON_Delete(state[1]);
    ls_verdict_pass(out, 2 * (4 + 2) + 1,
                    "saved and restored in the middle of an interval: the same bits");
    ls_toy_close(&whole);
    ls_toy_close(&first);
    ls_toy_close(&second);
}

/* ---- misuse, and amp disabled (apex/amp/frontend.py@initialize) ------------------------------ */

/* Without amp: S is 1, no gradient is checked, training is plain SGD's. */
static void judge_disabled(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_toy toy;
    ls_toy_setup setup = {.level = 2,
                          .scale = 65536,
                          .disabled = true,
                          .models = 1,
                          .rule = {.momentum = .125},
                          .lr = .25f};
    (void)row, (void)job;
    if (!ls_toy_open(&toy, &setup, out)) {
        return;
    }
    ls_toy_ideal m = ls_toy_ideal_make(1, false, .25, .125, 0);
    for (int step = 0; step < 3; step++) {
        ls_toy_iterate(&toy, 0, 0, 1u, ls_toy_clean);
        ls_toy_ideal_backward(&m, 1.0);
        ls_toy_ideal_step(&m);
        ls_toy_ideal_zero(&m);
    }
    ls_toy_ideal_expect(&toy, 0, &m, "amp disabled");
    ls_toy_expect_scale(&toy, 0, 1.0f, 0, "amp disabled");
    if (ls_toy_view(&toy, 0, 1).has_master) {
        ls_verdict_fail(out, "amp is disabled, yet there are masters");
    }
    ls_verdict_pass(out, 4 + 2, "plain SGD, scale 1, no masters");
    ls_toy_close(&toy);
}

static ls_status optimizer_twice(ls_toy *toy)
{
    static const int twice[] = {0, 0};
    return ls_amp_begin(toy->amp, 0, twice, 2, false, &toy->state);
}

static ls_status ready(ls_toy *toy)
{
    return ls_amp_ready(toy->amp, 0, 0, 0);
}

static ls_status add(ls_toy *toy, ls_tensor param, ls_tensor grad, ls_optimizer_kind kind)
{
    ls_amp_param one = {.name = "x", .param = param, .grad = grad};
    ls_optimizer_config config = {.kind = kind, .momentum = .5f, .beta1 = .5f, .beta2 = .5f};
    int group = -1;
    return ls_amp_add_group(toy->amp, 0, &config, .25f, &one, 1, &group);
}

static ls_status param_twice(ls_toy *toy)
{
    return add(toy, toy->model[0].weight[0], toy->model[0].grad[0], LS_OPTIMIZER_SGD);
}

static ls_status type(ls_toy *toy)
{
    ls_tensor odd = toy->model[1].weight[0];
    odd.dtype = LS_I32;
    return add(toy, odd, toy->model[1].grad[0], LS_OPTIMIZER_SGD);
}

static ls_status count(ls_toy *toy)
{
    ls_tensor odd = toy->model[1].grad[0];
    odd.count = 1;
    return add(toy, toy->model[1].weight[0], odd, LS_OPTIMIZER_SGD);
}

static ls_status moments(ls_toy *toy)
{
    return add(toy, toy->model[1].weight[0], toy->model[1].grad[0], LS_OPTIMIZER_ADAM);
}

static ls_status lamb(ls_toy *toy)
{
    return add(toy, toy->model[1].weight[0], toy->model[1].grad[0], LS_OPTIMIZER_LAMB);
}

/* m0 in optimizer 0, m1 in none. Whatever is refused, training goes on as if it had not been. */
#define MISUSE(name, ...)                                           \
    {                                                               \
        "misuse." name, "A7",                                       \
            {.level = 2,                                            \
             .losses = 2,                                           \
             .models = 2,                                           \
             .unowned = 1,                                          \
             .rule = {.momentum = .125},                            \
             .lr = .25f},                                           \
            "refused in one line that names it, without a trace",   \
            OPS(__VA_ARGS__, {CANCEL}, {ROUND(0, 1, 1)}, {STEP(0)}, \
                {WEIGHTS(0, .5f, 1.25f, 1.75f, 2.5f)})              \
    }
#define LAMB                                                                       \
    {                                                                              \
        .level = 2, .models = 2, .unowned = 1, .moments = 2, .lr = .25f, .rule = { \
            .kind = LS_OPTIMIZER_LAMB,                                             \
            .beta1 = .5,                                                           \
            .beta2 = .5,                                                           \
            .epsilon = 1,                                                          \
            .max_grad_norm = 1                                                     \
        }                                                                          \
    }
#define CALLED(name, function, words) MISUSE(name, {CALL(function), REFUSED(words)})

static const ls_toy_script misuses[] = {
    MISUSE("loss-too-high", {BEGIN(2, 1), REFUSED("no loss 2")}),
    MISUSE("loss-negative", {BEGIN(-1, 1), REFUSED("no loss -1")}),
    MISUSE("optimizer-unknown", {BEGIN(0, 2), REFUSED("no optimizer 1")}),
    CALLED("optimizer-twice", optimizer_twice, "twice"),
    MISUSE("nested-blocks", {BEGIN(0, 1)}, {BEGIN(1, 1), REFUSED("inside the block of loss 0")}),
    MISUSE("end-without-begin", {END_BLOCK, REFUSED("without an open block")}),
    MISUSE("step-in-block", {BEGIN(0, 1)}, {STEP(0), REFUSED("inside the block of loss 0")}),
    MISUSE("zero-in-block", {BEGIN(0, 1)}, {ZERO(0), REFUSED("inside the block of loss 0")}),
    CALLED("gradient-outside", ready, "m0.w0"),
    MISUSE("gradient-unlisted", {BEGIN(0, 0)}, {CALL(ready), REFUSED("m0.w0")}),
    CALLED("parameter-twice", param_twice, "two parameter groups"),
    CALLED("parameter-type", type, "f32, f16, bf16"),
    CALLED("gradient-count", count, "its gradient 1"),
    CALLED("moments", moments, "needs 2 moments"),
    {"misuse.lamb-groups", "A7", LAMB, "a norm of all gradients needs them in one group",
     OPS({CALL(lamb), REFUSED("one group")}, {ROUND(0, 1, 1)}, {STEP(0)})},
    /* parameters of a group that have taken unlike numbers of steps have no norm in common */
    {"misuse.lamb-steps", "A7", LAMB, "a norm of all gradients needs parameters of equal steps",
     OPS({BLOCK(0, W0, 1)}, {STEP(0)}, {ZERO(0)}, {BLOCK(0, BOTH, 1)},
         {STEP(0), REFUSED("one call cannot take the norm of both")})},
    MISUSE("scale-zero", {CREATE(0, 1), REFUSED("positive and finite")}),
    MISUSE("scale-nan", {CREATE(NAN, 1), REFUSED("positive and finite")}),
    MISUSE("scale-infinite", {CREATE(INFINITY, 1), REFUSED("positive and finite")}),
    MISUSE("no-loss", {CREATE(4, 0), REFUSED("1 and more")}),
};

static const ls_row disabled[] = {{"amp.disabled", "A7", judge_disabled, NULL, NULL}};

void ls_amp_states_cases(const ls_case_settings *settings, ls_case_list *list)
{
    static const ls_toy_setup setups[] = {AT(0, 2, 64), AT(1, 2, 64), AT(2, 2, 64), AT(3, 2, 64)};
    LS_ROWS(list, settings, disabled);
    ls_toy_script_cases(settings, list, misuses, sizeof misuses / sizeof *misuses);
    ls_toy_script_cases(settings, list, scripts, sizeof scripts / sizeof *scripts);
    for (int level = 0; level < 4; level++) {
        ls_row row = {.requirement = "A8", .judge = judge_restore, .data = &setups[level]};
        ls_rows_format(list, settings, &row, "amp.state.restore.o%d", level);
    }
}
