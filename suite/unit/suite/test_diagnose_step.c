/* Optimizer steps with one mistake each, computed here, are given their cause. */
#include <stddef.h>

#include "kernels/core/half.h"
#include "kernels/core/rng.h"
#include "reference/files/safetensors.h"
#include "kernels/core/text.h"
#include "suite/judge/diagnose.h"
#include "suite/judge/judges.h"
#include "suite/unit/run_suite.h"

enum { COUNT = 300, STEP = 3 };

typedef enum wrong {
    RIGHT,
    NO_DECAY,
    DAMPENED,
    NESTEROV,
    COUNTED_ONE_MORE,
    NOT_CORRECTED,
    DECOUPLED,
    TWICE,
    STILL,
    HALF,
    UNTOLD,
    UNKNOWN,
} wrong;

static const char *const words[] = {
    "",
    "weight decay is left out",
    "dampening equal to momentum",
    "Nesterov's momentum where plain is asked for, or the other way round",
    "bias correction counts one step too many",
    "no bias correction",
    "decoupled and L2 weight decay are exchanged",
    "the rate is twice the reported one: stepped twice?",
    "no value moved: the optimizer holds other tensors",
    "f32 values of next/ are rounded to half: the masters were lost on the way",
    "momentum and weight_decay are 0.9 and 1e-4, which the dump does not record",
    ""};

/* One element: torch.optim's SGD or Adam with the mistake. */
static float stepped(bool adam, wrong mistake, double p, double g, double m, double v)
{
    double lr = mistake == TWICE ? 0.1 : 0.05, next;
    double decay = mistake == NO_DECAY ? 0 : mistake == UNTOLD ? 1e-4 : 0.01;
    if (mistake == STILL || mistake == UNKNOWN) {
        return (float)(mistake == STILL ? p : p * 0.7 + g * g);
    }
    if (adam) {
        double t = mistake == COUNTED_ONE_MORE ? STEP + 1 : STEP;
        double start = mistake == DECOUPLED ? p * (1 - lr * decay) : p;
        g += mistake == DECOUPLED ? 0 : decay * p;
        m = 0.9 * m + 0.1 * g;
        v = 0.999 * v + 0.001 * g * g;
        double c1 = mistake == NOT_CORRECTED ? 1 : 1 - pow(0.9, t);
        double c2 = mistake == NOT_CORRECTED ? 1 : 1 - pow(0.999, t);
        next = start - lr * (m / c1) / (sqrt(v / c2) + 1e-8);
    } else {
        double d = g + decay * p, buffer = 0.9 * m + (mistake == DAMPENED ? 0.1 : 1) * d;
        next = p - lr * (mistake == NESTEROV ? d + 0.9 * buffer : buffer);
    }
    float single = (float)next;
    return mistake == HALF ? ls_half_fp16_to_f32(ls_half_f32_to_fp16(single)) : single;
}

static void add(ls_safetensors_writer *writer, const char *name, const float *value)
{
    ls_shape shape = {1, {COUNT}};
    ck_assert_int_eq(ls_safetensors_add_copy(writer, name, LS_F32, &shape, value), LS_OK);
}

static void write_dump(const char *path, bool adam, wrong mistake)
{
    float p[COUNT], g[COUNT], m[COUNT], v[COUNT], next[COUNT];
    for (int i = 0; i < COUNT; i++) {
        p[i] = ls_rng_normal(1, 1, (uint64_t)i);
        g[i] = ls_rng_normal(1, 2, (uint64_t)i);
        m[i] = ls_rng_normal(1, 3, (uint64_t)i);
        v[i] = fabsf(ls_rng_normal(1, 4, (uint64_t)i));
        next[i] = stepped(adam, mistake, (double)p[i], (double)g[i], (double)m[i], (double)v[i]);
    }
    ls_safetensors_writer *writer;
    ck_assert_int_eq(ls_safetensors_create(path, &writer), LS_OK);
    ls_safetensors_metadata(writer, "optimizer", "%s", adam ? "adam" : "sgd");
    ls_safetensors_metadata(writer, "lr", "0.05");
    if (mistake != UNTOLD) {
        ls_safetensors_metadata(writer, "momentum", "0.9");
        ls_safetensors_metadata(writer, "weight_decay", "0.01");
    }
    ls_safetensors_metadata(writer, "betas", "0.9,0.999");
    ls_safetensors_metadata(writer, "eps", "1e-8");
    ls_safetensors_metadata(writer, "step", "%d", STEP);
    ls_safetensors_metadata(writer, "optimizer_steps", "%d", STEP);
    add(writer, "param/w", p);
    add(writer, "grad/w", g);
    add(writer, adam ? "state/w/exp_avg" : "state/w/momentum_buffer", m);
    if (adam) {
        add(writer, "state/w/exp_avg_sq", v);
    }
    add(writer, "next/w", next);
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
}

static void check(bool adam, wrong mistake)
{
    char path[] = "/tmp/ls_diagnose_step_XXXXXX", text[240];
    int descriptor = mkstemp(path);
    ck_assert_int_ge(descriptor, 0);
    close(descriptor);
    write_dump(path, adam, mistake);
    ls_dumpfile *file;
    ls_update_rule rule;
    bool skipped;
    ls_compare_checks checks = {0};
    ls_compare_optim_result result;
    ck_assert_int_eq(ls_dumpfile_open(path, &file), LS_OK);
    ck_assert(ls_compare_optim_rule(file, false, &rule, &skipped));
    ck_assert_int_eq(ls_compare_optim_step(file, &rule, skipped, &checks, &result), LS_OK);
    ck_assert(result.judged);
    ck_assert_msg((checks.count == 0) == (mistake == RIGHT), "mistake %d: %s", (int)mistake,
                  checks.line);
    if (mistake != RIGHT) {
        ck_assert_int_eq(ls_diagnose_step(file, &rule, skipped, text, sizeof text), LS_OK);
        ck_assert_str_eq(text, words[mistake]);
    }
    ls_dumpfile_close(file);
    unlink(path);
}

static const struct formula {
    bool adam;
    wrong mistake;
} formulas[] = {{false, RIGHT},        {false, NO_DECAY}, {false, DAMPENED},
                {false, NESTEROV},     {false, TWICE},    {false, STILL},
                {false, HALF},         {false, UNTOLD},   {false, UNKNOWN},
                {true, RIGHT},         {true, NO_DECAY},  {true, COUNTED_ONE_MORE},
                {true, NOT_CORRECTED}, {true, DECOUPLED}, {true, TWICE},
                {true, HALF},          {true, UNTOLD},    {true, UNKNOWN}};

ROWS_TEST(mistakes_in_a_formula_are_named, formulas)
{
    check(formulas[_i].adam, formulas[_i].mistake);
}

/* A step by the oracle's own rule with one member changed, of two tensors. */
#define MEMBER(name) offsetof(ls_update_rule, name), sizeof(((ls_update_rule *)0)->name)
static const struct ruled {
    const char *optimizer, *name, *value; /* the metadata, with one more member */
    size_t offset, bytes;
    double wrong;
    const char *cause;
} ruled[] = {
    {"sgd", "x", "", MEMBER(momentum), 0, "momentum is left out"},
    {"sgd", "x", "", MEMBER(momentum), 0.8, ""},
    {"sgd", "momentum", "0.8", MEMBER(momentum), 0.9,
     "momentum, betas and eps are the defaults, not the requested values"},
    {"sgd", "x", "", MEMBER(weight_decay), 0.02, "weight decay is applied twice"},
    {"sgd", "x", "", MEMBER(mistake), LS_UPDATE_DECAY_AFTER_MOMENTUM,
     "weight decay is added after the momentum buffer"},
    {"sgd", "x", "", MEMBER(lr), 0.005,
     "the rate is a tenth of the reported one: a decay too early"},
    {"sgd", "x", "", MEMBER(lr), 0.5, "the rate is ten times the reported one: a decay too late"},
    {"sgd", "nesterov", "true", MEMBER(nesterov), 0,
     "Nesterov's momentum where plain is asked for, or the other way round"},
    {"sgd", "clip_grad_norm", "1", MEMBER(clip_norm), 0,
     "gradients are not clipped before the step"},
    {"sgd", "clip_grad_value", "0.5", MEMBER(clip_value), 0,
     "gradients are not clipped before the step"},
    {"sgd", "clip_grad_norm", "1", MEMBER(mistake), LS_UPDATE_CLIP_EACH,
     "each tensor is clipped by its own norm, not by that of all"},
    {"adam", "x", "", MEMBER(step), STEP - 1, "bias correction counts one step too few"},
    {"adam", "x", "", MEMBER(uncorrected), 1, "no bias correction"},
    {"adam", "betas", "0.8,0.999", MEMBER(beta1), 0.9,
     "momentum, betas and eps are the defaults, not the requested values"},
    {"adam", "x", "", MEMBER(beta2), 0.999,
     "momentum, betas and eps are the defaults, not the requested values"},
    {"adam", "eps", "1e-2", MEMBER(epsilon), 0, "eps is left out"},
    {"adam", "eps", "1e-2", MEMBER(mistake), LS_UPDATE_EPSILON_INSIDE,
     "eps stands inside the root"},
    {"adam", "eps", "1e-2", MEMBER(mistake), LS_UPDATE_EPSILON_FIRST,
     "eps is added before the bias correction"},
    {"adamw", "x", "", MEMBER(kind), LS_UPDATE_ADAM, "decoupled and L2 weight decay are exchanged"},
    {"adamw", "x", "", MEMBER(mistake), LS_UPDATE_DECAY_WITHOUT_LR,
     "decoupled weight decay is not multiplied by the rate"},
    {"lamb", "x", "", MEMBER(l2), 1, "decoupled and L2 weight decay are exchanged"},
    {"lamb", "x", "", MEMBER(max_grad_norm), 0, "gradients are not clipped to the requested norm"},
    {"lamb", "weight_decay", "0", MEMBER(nvlamb), 1, "the trust ratio of another rule"},
    {"lamb", "x", "", MEMBER(mistake), LS_UPDATE_NO_RATIO,
     "the update is not scaled by the trust ratio"},
    {"lars", "x", "", MEMBER(kind), LS_UPDATE_SGD, "the trust ratio of another rule"},
    {"lars", "x", "", MEMBER(clip), 1, "the ratio is clipped (LARC, not LARS)"},
    {"lars", "larc_clip", "true", MEMBER(clip), 0, "the ratio is not clipped (LARS, not LARC)"},
    {"lars", "x", "", MEMBER(mistake), LS_UPDATE_RATIO_WITHOUT_DECAY,
     "weight decay is missing in the ratio's denominator"},
};

static void add_rounded(ls_safetensors_writer *writer, const char *name, const double *value)
{
    float f[COUNT];
    for (int i = 0; i < COUNT; i++) {
        f[i] = (float)value[i];
    }
    add(writer, name, f);
}

static void write_ruled(const char *path, const struct ruled *row, const ls_update_rule *rule,
                        int moment_count)
{
    static const char *const moments[2] = {"exp_avg", "exp_avg_sq"};
    ls_safetensors_writer *writer;
    ck_assert_int_eq(ls_safetensors_create(path, &writer), LS_OK);
    const char *metadata[][2] = {
        {"optimizer", row->optimizer}, {"lr", "0.05"},         {"momentum", "0.9"},
        {"weight_decay", "0.01"},      {"step", "3"},          {"betas", "0.9,0.99"},
        {"optimizer_steps", "3"},      {row->name, row->value}};
    for (size_t i = 0; i < sizeof metadata / sizeof *metadata; i++) {
        ls_safetensors_metadata(writer, metadata[i][0], "%s", metadata[i][1]);
    }
    double squares = 0;
    for (int t = 0; t < 4; t++) { /* the first time for the norm of all gradients */
        float f[4][COUNT];
        double d[4][COUNT], error[3][COUNT] = {0};
        for (int i = 0; i < 4 * COUNT; i++) {
            float x = ls_rng_normal(5, (uint64_t)(4 * (t % 2) + i / COUNT), (uint64_t)(i % COUNT));
            x *= t % 2 == 0 ? 1 : 0.25f;
            f[i / COUNT][i % COUNT] = i / COUNT == 3 ? fabsf(x) : x;
            d[i / COUNT][i % COUNT] = (double)f[i / COUNT][i % COUNT];
        }
        squares += t < 2 ? ls_update_squares(d[1], COUNT) : 0;
        if (t < 2 || rule == NULL) {
            continue;
        }
        ls_update_rule own = *rule;
        own.grad_squares = squares;
        own.grad_elements = 2 * COUNT;
        char name[64];
        const char *tensor = t == 2 ? "w" : "u";
        snprintf(name, sizeof name, "param/%s", tensor);
        add(writer, name, f[0]);
        snprintf(name, sizeof name, "grad/%s", tensor);
        add(writer, name, f[1]);
        ls_update_tensor step = {COUNT, d[1], d[0], error[0], {d[2], d[3]}, {error[1], error[2]}};
        ck_assert_int_eq(ls_update_step(&own, &step), LS_OK);
        for (int m = 0; m < moment_count; m++) {
            const char *moment = moment_count == 1 ? "momentum_buffer" : moments[m];
            snprintf(name, sizeof name, "state/%s/%s", tensor, moment);
            add(writer, name, f[2 + m]);
            snprintf(name, sizeof name, "next_state/%s/%s", tensor, moment);
            add_rounded(writer, name, d[2 + m]);
        }
        snprintf(name, sizeof name, "next/%s", tensor);
        add_rounded(writer, name, d[0]);
    }
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
}

/* What a case says of the dump that these checks failed, or passed; and that it was not skipped. */
static void judge_update(const ls_dumpfile *file, const ls_update_rule *rule,
                         const ls_compare_checks *checks, const char *cause)
{
    ls_verdict v = {0}, skipped = {0};
    ls_compare_optim_result result = ls_judge_update(file, rule, STEP, false, &v);
    LS_TEXT(evidence, 400, "step 3: %s; %d in all", checks->line, checks->count);
    bool wrong = checks->count > 0;
    ck_assert_int_eq(v.code, wrong ? LS_FAIL : LS_PASS);
    ck_assert_str_eq(v.evidence, wrong ? evidence : "");
    ck_assert_str_eq(v.cause, wrong ? cause : "");
    ck_assert(v.measured && v.value == result.ratio && v.limit == 1 && (wrong || v.value <= 1));
    ls_judge_update(file, rule, STEP, true, &skipped);
    ck_assert(!skipped.measured && skipped.code == LS_FAIL);
    ck_assert_ptr_nonnull(
        strstr(skipped.evidence, "w element 0: a skipped step changed its value"));
    ck_assert_str_eq(skipped.cause, wrong ? "" : "the step was taken although it is skipped");
}

ROWS_TEST(wrong_rules_are_named, ruled)
{
    const struct ruled *row = &ruled[_i];
    char path[] = "/tmp/ls_diagnose_step_XXXXXX", text[240];
    close(mkstemp(path));
    ls_dumpfile *file;
    ls_update_rule right, wrong;
    bool skipped;
    write_ruled(path, row, NULL, 0);
    ck_assert_int_eq(ls_dumpfile_open(path, &file), LS_OK);
    ck_assert(ls_compare_optim_rule(file, false, &right, &skipped));
    ls_dumpfile_close(file);
    for (int is_wrong = 0; is_wrong < 2; is_wrong++) {
        wrong = right;
        char *member = (char *)&wrong + row->offset;
        int64_t whole = (int64_t)row->wrong;
        bool flag = row->wrong != 0;
        if (is_wrong) {
            memcpy(member,
                   row->bytes == sizeof flag ? (void *)&flag
                   : row->bytes < 8 || row->offset == offsetof(ls_update_rule, step)
                       ? (void *)&whole
                       : (void *)&row->wrong,
                   row->bytes);
        }
        write_ruled(path, row, &wrong, ls_update_moments(&right));
        ls_compare_checks checks = {0};
        ls_compare_optim_result result;
        ck_assert_int_eq(ls_dumpfile_open(path, &file), LS_OK);
        ck_assert_int_eq(ls_compare_optim_step(file, &right, false, &checks, &result), LS_OK);
        ck_assert(result.judged && result.elements > 0 && result.moved > 0);
        ck_assert_msg((checks.count > 0) == is_wrong, "row %d: %s", _i, checks.line);
        if (is_wrong) {
            ck_assert_int_eq(ls_diagnose_step(file, &right, false, text, sizeof text), LS_OK);
            ck_assert_str_eq(text, row->cause);
        }
        judge_update(file, &right, &checks, row->cause);
        ls_dumpfile_close(file);
    }
    unlink(path);
}

/* The rule that a dump's metadata tell: "name=value", a blank between two. */
static const struct told {
    const char *metadata;
    int64_t step; /* of the rule; -1: they tell none */
} told[] = {
    {"lr=0.1 step=2", 2},
    {"lr=0.1 step=0", 0},
    {"lr=0.1 step=-1", -1},
    {"lr=0.1 step=2 optimizer_steps=-1", -1},
    {"step=2", -1},
    {"step=2 skipped=true", 2},
    {"lr=0.1 step=1 optimizer=adam", 1},
    {"lr=0.1 step=2 optimizer=adam", -1},
    {"lr=0.1 step=2 optimizer=adam skipped=true", 2},
    {"lr=0.1 step=3 optimizer=adam optimizer_steps=1", 1},
    {"lr=0.1 step=1 optimizer=adam betas=0.9", -1},
    {"lr=0.1 step=1 optimizer=lion", -1},
    {"lr=0.1 step=1 optimizer=lamb", 1},
    {"lr=0.1 step=1 optimizer=lamb clip_grad_norm=1", -1},
    {"lr=0.1 step=1 optimizer=lamb clip_grad_value=1", -1},
};

ROWS_TEST(metadata_tell_the_rule, told)
{
    char path[] = "/tmp/ls_diagnose_step_XXXXXX", *rest = NULL;
    float value[COUNT] = {0};
    ls_safetensors_writer *writer;
    ls_dumpfile *file;
    ls_update_rule rule = {.step = -1};
    bool skipped;
    close(mkstemp(path));
    ck_assert_int_eq(ls_safetensors_create(path, &writer), LS_OK);
    LS_TEXT(words, 200, "%s", told[_i].metadata);
    for (char *word = strtok_r(words, " ", &rest); word != NULL;
         word = strtok_r(NULL, " ", &rest)) {
        char *sign = strchr(word, '=');
        *sign = '\0';
        ls_safetensors_metadata(writer, word, "%s", sign + 1);
    }
    add(writer, "next/w", value);
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
    ck_assert_int_eq(ls_dumpfile_open(path, &file), LS_OK);
    bool known = ls_compare_optim_rule(file, false, &rule, &skipped);
    ck_assert_int_eq(known, told[_i].step >= 0);
    ck_assert_int_eq(rule.step, told[_i].step);
    ck_assert_int_eq(skipped, strstr(told[_i].metadata, "skipped") != NULL);
    ck_assert(!known || (rule.momentum == 0 && rule.weight_decay == 0 && rule.beta1 == 0.9 &&
                         rule.beta2 == 0.999 && rule.max_grad_norm == 1 && rule.trust == 0.02 &&
                         !rule.nesterov && !rule.clip && (skipped || rule.lr == 0.1)));
    ls_dumpfile_close(file);
    unlink(path);
}

TEST_MAIN("diagnose_step")
