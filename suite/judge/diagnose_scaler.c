#include "diagnose.h"

#include <math.h>
#include <stddef.h>

/* A state machine with its mistakes; with only `down` and `up` set it is the right one (numerics.md
 * section 2, point 6). */
typedef struct machine {
    const char *mistake;
    double down, up;     /* factors */
    int late;            /* growth that many clean steps too late */
    bool blind;          /* ignores overflows */
    bool own;            /* reacts to its own rank's overflows only */
    bool takes;          /* halves the scale, but takes the step */
    bool keeps_count;    /* overflow does not restart the count */
    bool goes_on;        /* growth does not restart the count */
    bool counts_skipped; /* skipped steps count as clean */
    bool no_floor, no_ceiling;
    bool again,
        again_clean; /* a second update in each step: with its overflow, or as a clean one */
} machine;

#define HALVES .down = 0.5, .up = 2

static const machine machines[] = {
    {.mistake = "no overflow is seen: every step is taken and counts as clean",
     HALVES,
     .blind = true},
    {.mistake = "each rank decides for itself, from its own gradients: look after the reduction",
     HALVES,
     .own = true},
    {.mistake = "the scale is halved, but the step is taken all the same", HALVES, .takes = true},
    {.mistake = "the scale grows one clean step too late (> for >=)", HALVES, .late = 1},
    {.mistake = "the scale grows one clean step too early", HALVES, .late = -1},
    {.mistake = "an overflow does not restart the count of clean steps",
     HALVES,
     .keeps_count = true},
    {.mistake = "growth does not restart the count of clean steps", HALVES, .goes_on = true},
    {.mistake = "skipped steps count as clean ones", HALVES, .counts_skipped = true},
    {.mistake = "the scale is not lowered on overflow", .down = 1, .up = 2},
    {.mistake = "the scale is quartered on overflow: updated twice", .down = 0.25, .up = 2},
    {.mistake = "the scale never grows", .down = 0.5, .up = 1},
    {.mistake = "the scale grows by 4: updated twice", .down = 0.5, .up = 4},
    {.mistake = "the scale is never updated", .down = 1, .up = 1},
    {.mistake = "the scale is never updated, and no skip is reported",
     .down = 1,
     .up = 1,
     .blind = true},
    {.mistake = "the scale is updated twice a step", HALVES, .again = true},
    {.mistake = "the scale is updated twice a step, the second time without the step's overflow",
     HALVES,
     .again_clean = true},
    {.mistake = "the scale is updated the wrong way round", .down = 2, .up = 0.5},
    {.mistake = "the floor of the scale is not kept", HALVES, .no_floor = true},
    {.mistake = "the ceiling of the scale is not kept", HALVES, .no_ceiling = true},
};

typedef struct state {
    double scale;
    int clean;
} state;

static void tick(const machine *m, const ls_diagnose_scaler *t, bool overflow, state *s)
{
    if (overflow) {
        s->scale *= m->down;
        s->scale = m->no_floor ? s->scale : fmax(s->scale, t->lowest);
        s->clean = m->keeps_count ? s->clean : 0;
    }
    if (overflow && !m->counts_skipped) {
        return;
    }
    s->clean += 1;
    if (s->clean >= t->interval + m->late && !overflow) {
        s->scale *= m->up;
        s->scale = m->no_ceiling ? s->scale : fmin(s->scale, t->highest);
        s->clean = m->goes_on ? s->clean : 0;
    }
}

static bool gives(const machine *m, const ls_diagnose_scaler *t)
{
    state s = {t->init, 0};
    if (m->own && t->own == NULL) {
        return false;
    }
    for (int i = 0; i < t->count; i++) {
        bool overflow = m->own ? t->own[i] : t->overflow[i] && !m->blind;
        if (t->scale[i] != s.scale || t->skipped[i] != (overflow && !m->takes)) {
            return false;
        }
        tick(m, t, overflow, &s);
        if (m->again || m->again_clean) {
            tick(m, t, overflow && m->again, &s);
        }
        if (t->next[i] != s.scale) {
            return false;
        }
    }
    return true;
}

/* Whether the scale reported for a step differs from the one that the step used. */
static bool is_stale(const ls_diagnose_scaler *t, char *text, int text_bytes)
{
    for (int i = 1; i < t->count; i++) {
        if (t->scale[i] != t->next[i - 1]) {
            snprintf(text, (size_t)text_bytes,
                     "a step uses another scale (%g) than the update before it gave (%g)",
                     t->scale[i], t->next[i - 1]);
            return true;
        }
    }
    return false;
}

bool ls_diagnose_scaler_find(const ls_diagnose_scaler *trace, char *text, int text_bytes)
{
    static const machine right = {HALVES};
    text[0] = '\0';
    if (gives(&right, trace)) {
        return false;
    }
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        if (gives(&machines[i], trace)) {
            snprintf(text, (size_t)text_bytes, "%s", machines[i].mistake);
            return true;
        }
    }
    if (trace->count > 0 && trace->scale[0] != trace->init) {
        snprintf(text, (size_t)text_bytes, "the scale starts at %g, not at %g", trace->scale[0],
                 trace->init);
        return true;
    }
    return is_stale(trace, text, text_bytes);
}
