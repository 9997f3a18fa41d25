/* The backend's scaler against a model of its own that knows only exponents and counts: every
 * pattern of overflows, both dialects, every corner (apex/amp/scaler.py,
 * torch/amp/grad_scaler.py). */
#include <math.h>

#include "reference/amp/amp_scale.h"
#include "suite/inside/inside.h"
#include "suite/cases/rows.h"

enum { PATTERN_STEPS = 12, NO_LIMIT = 999 };

/* S as 2^exponent. lowest, highest: exponents, or -+NO_LIMIT. */
typedef struct model {
    int exponent, lowest, highest, clean, streak, interval;
    bool floor_reached;
} model;

static void model_tick(model *m, bool overflow)
{
    m->floor_reached = false;
    if (overflow) {
        /* without a minimum the floor that ends a run is 2^-24, but S goes on falling */
        m->floor_reached = m->exponent - 1 < (m->lowest == -NO_LIMIT ? -24 : m->lowest);
        m->exponent -= m->exponent - 1 >= m->lowest ? 1 : 0;
        m->clean = 0;
        m->streak++;
        return;
    }
    m->streak = 0;
    m->clean++;
    if (m->clean >= m->interval) {
        m->clean = 0;
        /* f32's last power of two is 2^127: growth to inf is refused */
        m->exponent += m->exponent + 1 <= m->highest && m->exponent < 127 ? 1 : 0;
    }
}

typedef struct corner {
    const char *name;
    int start, lowest, highest;
    const char *shows;
} corner;

static const corner corners[] = {
    {"apex", 16, -NO_LIMIT, 24, "2^16, at most 2^24"},
    {"torch", 16, -NO_LIMIT, NO_LIMIT, "2^16, no limit"},
    {"at-ceiling", 24, -NO_LIMIT, 24, "starts at its maximum"},
    {"under-ceiling", 22, -NO_LIMIT, 24, "meets its maximum"},
    {"at-floor", 4, 4, 24, "starts at its minimum"},
    {"over-floor", 6, 4, 24, "meets its minimum"},
    {"fixed", 8, 8, 8, "minimum and maximum are one"},
    {"below-one", 1, -NO_LIMIT, 24, "goes below 1"},
    {"floor-none", -22, -NO_LIMIT, 24, "meets 2^-24, the floor without a minimum"},
    {"growth-to-inf", 125, -NO_LIMIT, NO_LIMIT, "meets the end of f32"},
};

enum { CORNERS = sizeof corners / sizeof *corners };

typedef struct bench {
    ls_device device;
    ls_tensor memory; /* one ls_step_state */
    ls_amp_scale scale;
    ls_verdict *out;
} bench;

static bool open_bench(bench *b, const ls_scaler_config *config, ls_verdict *out)
{
    b->out = out;
    if (!ls_inside_open(&b->device, out)) {
        return false;
    }
    b->memory = ls_inside_tensor(&b->device, LS_F32, (int64_t)(sizeof(ls_step_state) / 4 + 1));
    ls_amp_scale_create(&b->device, b->memory.data, config, 65536.0f, true, &b->scale);
    return true;
}

static void close_bench(bench *b)
{
    ls_inside_free(&b->device, &b->memory);
    ls_device_close(&b->device);
}

/* One update with that flag. */
static ls_step_state tick(bench *b, ls_step_state state, bool overflow)
{
    state.overflow = overflow;
    ls_status status = ls_amp_scale_write(&b->scale, &state);
    status = status == LS_OK ? ls_amp_scale_update(&b->scale) : status;
    status =
        status == LS_OK ? ls_device_read(&b->device, &state, b->scale.state, sizeof state) : status;
    if (status != LS_OK) {
        ls_verdict_fail(b->out, "the update failed: %s", ls_status_name(status));
    }
    return state;
}

static ls_scaler_config config_of(const corner *c, int interval)
{
    return (ls_scaler_config){
        .dynamic = true,
        .growth_factor = 2.0f,
        .backoff_factor = 0.5f,
        .growth_interval = interval,
        .min_scale = c->lowest == -NO_LIMIT ? 0.0f : ldexpf(1.0f, c->lowest),
        .max_scale = c->highest == NO_LIMIT ? INFINITY : ldexpf(1.0f, c->highest),
    };
}

static void compare(const ls_step_state *state, const model *m, unsigned pattern, int step,
                    ls_verdict *out)
{
    float scale = ldexpf(1.0f, m->exponent);
    if (state->loss_scale != scale || state->inv_loss_scale != ldexpf(1.0f, -m->exponent) ||
        state->growth_count != m->clean || state->overflow_streak != m->streak ||
        (state->floor_reached != 0) != m->floor_reached) {
        ls_verdict_fail(out,
                        "pattern 0x%03x, step %d: S %g (1/S %g), %d clean, %d in a row, floor %d; "
                        "expected 2^%d, %d clean, %d in a row, floor %d",
                        pattern, step, (double)state->loss_scale, (double)state->inv_loss_scale,
                        (int)state->growth_count, (int)state->overflow_streak,
                        (int)state->floor_reached, m->exponent, m->clean, m->streak,
                        (int)m->floor_reached);
    }
}

typedef struct patterns {
    const corner *corner;
    int interval;
} patterns;

static void judge_patterns(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const patterns *p = row->data;
    const corner *c = p->corner;
    int interval = p->interval;
    ls_scaler_config config = config_of(c, interval);
    bench b;
    if (!open_bench(&b, &config, out)) {
        return;
    }
    int compared = 0;
    for (unsigned pattern = 0; pattern < 1u << PATTERN_STEPS && out->code == LS_PASS; pattern++) {
        model m = {c->start, c->lowest, c->highest, 0, 0, interval, false};
        ls_step_state state = ls_amp_scale_start(ldexpf(1.0f, c->start));
        for (int step = 0; step < PATTERN_STEPS && out->code == LS_PASS; step++, compared++) {
            bool overflow = (pattern >> step & 1u) != 0;
            model_tick(&m, overflow);
            state = tick(&b, state, overflow);
            compare(&state, &m, pattern, step + 1, out);
        }
    }
    close_bench(&b);
    ls_verdict_pass(out, compared, "all %d patterns of %d steps, interval %d: %s",
                    1 << PATTERN_STEPS, (int)PATTERN_STEPS, interval, c->shows);
}

/* ---- long runs ------------------------------------------------------------------------------- */

static const corner apex_corner = {"", 16, -NO_LIMIT, 24, ""};
static const corner torch_corner = {"", 16, -NO_LIMIT, NO_LIMIT, ""};

/* A hundred overflows in a row, never NaN; S is 2^-84. */
static int check_hundred(bench *b)
{
    const corner *both[] = {&apex_corner, &torch_corner};
    int compared = 0;
    for (int k = 0; k < 2; k++) {
        const corner *c = both[k];
        model m = {c->start, c->lowest, c->highest, 0, 0, 2000, false};
        ls_step_state state = ls_amp_scale_start(ldexpf(1.0f, c->start));
        b->scale.config = config_of(c, 2000);
        for (int i = 1; i <= 100; i++, compared++) {
            model_tick(&m, true);
            state = tick(b, state, true);
            compare(&state, &m, 0xfff, i, b->out);
            if (!(state.loss_scale > 0) || !isfinite(state.inv_loss_scale)) {
                ls_verdict_fail(b->out, "overflow %d: S %g, 1/S %g", i, (double)state.loss_scale,
                                (double)state.inv_loss_scale);
            }
        }
    }
    return compared;
}

static void expect(const ls_step_state *state, int exponent, int clean, const char *when,
                   ls_verdict *out)
{
    if (state->loss_scale != ldexpf(1.0f, exponent) || state->growth_count != clean) {
        ls_verdict_fail(out, "%s: S %g after %d clean steps, expected 2^%d after %d", when,
                        (double)state->loss_scale, (int)state->growth_count, exponent, clean);
    }
}

/* A static scale only counts, whatever the flag says. */
static int check_static(bench *b)
{
    ls_step_state state = ls_amp_scale_start(128.0f);
    b->scale.config.dynamic = false;
    for (int i = 1; i <= 2500; i++) {
        state = tick(b, state, i % 7 == 0);
    }
    expect(&state, 7, 2500, "2500 steps at static 128", b->out);
    return 1;
}

/* 1/S is f32(1/S), also where S is no power of two (torch/amp/grad_scaler.py@unscale_). */
static int check_inverse(bench *b)
{
    static const float scales[] = {3.0f, 0.001f, 1000.0f, 65535.0f, 12345.678f, 1e-30f, 1e30f};
    b->scale.config.dynamic = false;
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        ls_step_state state = ls_amp_scale_start(scales[i]);
        float expected = (float)(1.0 / (double)scales[i]), start = state.inv_loss_scale;
        state = tick(b, state, false);
        if (start != expected || state.inv_loss_scale != expected) {
            ls_verdict_fail(b->out, "S %.9g: 1/S is %.9g, then %.9g, expected %.9g",
                            (double)scales[i], (double)start, (double)state.inv_loss_scale,
                            (double)expected);
        }
    }
    return (int)(sizeof scales / sizeof *scales);
}

/* Runs of clean steps or overflows, and S and its count behind each. */
static const struct longer {
    const char *name, *shows;
    int interval, start, count; /* S is 2^start, and so many clean steps have been counted */
    float backoff;
    struct {
        int steps;
        bool overflow;
        int exponent, clean;
        const char *when;
    } leg[4];
    int (*check)(bench *b); /* instead of legs; returns how many states it compared */
} longer[] = {
    {"window",
     "1999, 2000, 24000 and 26000 clean steps",
     2000,
     16,
     0,
     .5f,
     {{1999, false, 16, 1999, "1999 clean steps"},
      {1, false, 17, 0, "2000 clean steps"},
      {22000, false, 24, 0, "24000 clean steps"},
      {2000, false, 24, 0, "2000 more at 2^24"}}},
    {"restart",
     "an overflow restarts the count, also where growth was due",
     2000,
     16,
     0,
     .5f,
     {{1999, false, 16, 1999, "1999 clean steps"},
      {1, true, 15, 0, "an overflow where growth was due"},
      {1999, false, 15, 1999, "1999 clean steps behind it"},
      {1, false, 16, 0, "2000 clean steps behind it"}}},
    /* the count of a checkpoint of another interval: growth at >= */
    {"beyond",
     "a count beyond the interval grows at once",
     2000,
     16,
     2500,
     .5f,
     {{1, false, 17, 0, "a count of 2500"}}},
    /* torch/amp/grad_scaler.py: good, good, inf */
    {"factors",
     "4, 8, 2 with backoff 1/4",
     2,
     2,
     0,
     .25f,
     {{1, false, 2, 1, "good"},
      {1, false, 3, 0, "good, good"},
      {1, true, 1, 0, "good, good, inf"}}},
    {.name = "hundred",
     .shows = "100 overflows in a row: S and 1/S stay finite",
     .check = check_hundred},
    {.name = "static",
     .interval = 3,
     .shows = "2500 counted, 128 unchanged",
     .check = check_static},
    {.name = "inverse",
     .interval = 2000,
     .shows = "1/S is the nearest f32",
     .check = check_inverse},
};

static void judge_long(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const struct longer *run = row->data;
    ls_scaler_config config = config_of(&apex_corner, run->interval);
    bench b;
    config.backoff_factor = run->backoff;
    if (!open_bench(&b, &config, out)) {
        return;
    }
    ls_step_state state = ls_amp_scale_start(ldexpf(1.0f, run->start));
    state.growth_count = run->count;
    int compared = 0;
    for (int i = 0; i < 4 && run->leg[i].steps > 0; i++, compared++) {
        for (int k = 0; k < run->leg[i].steps; k++) {
            state = tick(&b, state, run->leg[i].overflow);
        }
        expect(&state, run->leg[i].exponent, run->leg[i].clean, run->leg[i].when, out);
    }
    if (run->check != NULL) {
        compared += run->check(&b);
    }
    close_bench(&b);
    ls_verdict_pass(out, compared, "%s", run->shows);
}

void ls_scaler_machine_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (int i = 0; i < CORNERS; i++) {
        for (int interval = 1; interval <= 4; interval++) {
            patterns *data = ls_rows_memory(list, sizeof *data);
            *data = (patterns){&corners[i], interval};
            ls_rows_format(list, settings,
                           &(ls_row){.requirement = "S6", .judge = judge_patterns, .data = data},
                           "scaler.machine.%s.n%d", corners[i].name, interval);
        }
    }
    LS_ROWS_EACH(list, settings, &((ls_row){.requirement = "S6", .judge = judge_long}),
                 "scaler.machine.%s", longer);
}
