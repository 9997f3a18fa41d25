#include "diagnose.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* The digests that differ between two records of one step, as bits. */
static unsigned differing(const ls_record_step *a, const ls_record_step *b)
{
    unsigned mask = 0;
    for (int d = 0; d < LS_RECORD_DIGESTS; d++) {
        bool both = (a->digest_mask & b->digest_mask & 1u << d) != 0;
        mask |= both && strcmp(a->digest[d], b->digest[d]) != 0 ? 1u << d : 0;
    }
    return mask;
}

/* The digests that both give. */
static unsigned given(const ls_record_step *a, const ls_record_step *b)
{
    return a->digest_mask & b->digest_mask;
}

static bool has(unsigned mask, ls_record_digest digest)
{
    return (mask & 1u << digest) != 0;
}

/* Both give the digest, and it is the same. */
static bool equal(const ls_record_step *a, const ls_record_step *b, ls_record_digest digest)
{
    return has(given(a, b), digest) && !has(differing(a, b), digest);
}

/* A number that one of them does not give differs from nothing. */
static bool differs(double a, double b)
{
    return a < b || a > b;
}

static const char *why_apart(const ls_record_step *x, const ls_record_step *y, bool first)
{
    unsigned mask = differing(x, y);
    bool values = has(mask, LS_RECORD_PARAM) || has(mask, LS_RECORD_MASTER);
    bool gradients = equal(x, y, LS_RECORD_GRAD);
    if (x->skipped != y->skipped && x->skip_given && y->skip_given) {
        return has(mask, LS_RECORD_GRAD)
                   ? "ranks decide about a skip from different gradients: the decision must come "
                     "after the reduction"
                   : "ranks decide about a skip each for itself";
    }
    if (differs(x->loss_scale, y->loss_scale)) {
        return first ? "ranks begin with different loss scales"
                     : "each rank counts its clean steps for itself: the same steps were skipped";
    }
    if (has(mask, LS_RECORD_GRAD)) {
        return LS_DIAGNOSE_DIGESTS_GRADIENTS;
    }
    if (values && first && gradients) {
        return "gradients are equal, parameters differ from the start: they were not broadcast, "
               "or masters were made before they were";
    }
    if ((values || has(mask, LS_RECORD_STATE)) && gradients) {
        return "gradients are equal, the step's result differs: learning rate, moments or a skip";
    }
    return values || has(mask, LS_RECORD_STATE) ? NULL : "";
}

void ls_diagnose_replicas(const ls_record_rank *a, const ls_record_rank *b, bool shared, char *text,
                          int text_bytes)
{
    const char *why = "";
    int64_t buffers = 0; /* first step at which they differ */
    text[0] = '\0';
    for (int i = 0; i < a->step_count && i < b->step_count && why != NULL && why[0] == '\0'; i++) {
        const ls_record_step *x = &a->step[i], *y = &b->step[i];
        why = why_apart(x, y, i == 0);
        buffers = buffers == 0 && has(differing(x, y), LS_RECORD_BUFFER) ? x->step : buffers;
        if (why != NULL && why[0] != '\0') {
            snprintf(text, (size_t)text_bytes, "%s (first at step %lld)", why, (long long)x->step);
        }
    }
    if (why != NULL && why[0] == '\0' && buffers > 0 && shared) {
        snprintf(text, (size_t)text_bytes,
                 "running statistics differ: SyncBN's moments are not those of all ranks (first at "
                 "step %lld)",
                 (long long)buffers);
    }
}

/* "" where nothing differs that the step's events show; NULL where the digests that would give the
 * cause are not there. */
static const char *why_resumed(const ls_record_step *a, const ls_record_step *b, bool at_once)
{
    unsigned mask = differing(a, b);
    bool losses = a->loss_bits[0] != '\0' && b->loss_bits[0] != '\0';
    bool loss = losses && strcmp(a->loss_bits, b->loss_bits) != 0;
    bool values = has(mask, LS_RECORD_PARAM) || has(mask, LS_RECORD_MASTER);
    bool gradients = equal(a, b, LS_RECORD_GRAD), scale = differs(a->loss_scale, b->loss_scale);
    if (!scale && has(mask, LS_RECORD_SCALER) && at_once && losses && !loss && gradients &&
        values) {
        return "gradients are equal, the step's result is not: the optimizer's count of steps "
               "was not restored";
    }
    if (scale || has(mask, LS_RECORD_SCALER)) {
        return at_once && scale ? "the loss scale was not restored"
                                : "the count of clean steps was not restored";
    }
    if (at_once && loss) {
        return "the forward differs at once: parameters, or the place in the data, were not "
               "restored";
    }
    if (differs(a->lr, b->lr)) {
        return "the learning rate's schedule was not restored";
    }
    if (has(mask, LS_RECORD_GRAD)) {
        return at_once && losses ? "the loss is equal, the gradient is not: another bucket layout "
                                   "sums in another order"
                                 : "";
    }
    if (has(mask, LS_RECORD_STATE)) {
        return gradients ? "gradients are equal, moments are not: momentum was not restored, or "
                           "the masters that weight decay reads"
                         : NULL;
    }
    if (values) {
        return gradients && equal(a, b, LS_RECORD_STATE)
                   ? "gradients and moments are equal, values are not: masters were made again "
                     "from half weights, or the count of steps was not restored"
                   : NULL;
    }
    return has(mask, LS_RECORD_BUFFER) && equal(a, b, LS_RECORD_PARAM)
               ? "running statistics were not restored"
               : "";
}

void ls_diagnose_resume(const ls_record_rank *straight, const ls_record_rank *resumed,
                        int64_t first, char *text, int text_bytes)
{
    text[0] = '\0';
    if (resumed->step_count > 0 && resumed->step[0].step < first) {
        snprintf(text, (size_t)text_bytes,
                 "the count of steps is behind: step %lld was done again after the resume",
                 (long long)resumed->step[0].step);
    }
    const char *why = "";
    for (int i = 0; i < resumed->step_count && text[0] == '\0' && why != NULL; i++) {
        const ls_record_step *b = &resumed->step[i];
        const ls_record_step *a = ls_record_find_step(straight, b->step);
        why = a == NULL ? "" : why_resumed(a, b, b->step == first);
        if (why != NULL && why[0] != '\0') {
            snprintf(text, (size_t)text_bytes, "%s (first seen at step %lld)", why,
                     (long long)b->step);
        }
    }
}

/* ---- endings --------------------------------------------------------------------------------- */

/* Parses an engine's message about a failed operation: "gloo 'gradients': all_reduce, operation 7
 * 'bucket 0' of 148756 bytes, failed after 15 s, ...". */
typedef struct operation {
    char name[64], kind[32], label[128];
    unsigned long long number;
    long long bytes;
} operation;

static bool read_operation(const ls_record *job, int rank, operation *out)
{
    char line[400];
    ls_record_last_line(job, rank, line, (int)sizeof line);
    const char *at = strstr(line, ", operation "), *from = at;
    while (from != NULL && from > line && strncmp(from, " '", 2) != 0) {
        from--;
    }
    return from != NULL &&
           sscanf(from, " '%63[^']': %31[^,], operation %llu '%127[^']' of %lld bytes", out->name,
                  out->kind, &out->number, out->label, &out->bytes) == 5;
}

static bool differ(const operation *a, const operation *b)
{
    return strcmp(a->name, b->name) == 0 && a->number == b->number &&
           (strcmp(a->kind, b->kind) != 0 || strcmp(a->label, b->label) != 0 ||
            a->bytes != b->bytes);
}

void ls_diagnose_endings_waits(const ls_record *job, char *text, int text_bytes)
{
    operation first, other;
    text[0] = '\0';
    for (int a = 0; a < job->world && text[0] == '\0'; a++) {
        for (int b = a + 1; b < job->world && read_operation(job, a, &first); b++) {
            if (read_operation(job, b, &other) && differ(&first, &other)) {
                snprintf(text, (size_t)text_bytes,
                         "operation %llu of '%s' is '%s' (%lld bytes) on rank %d, '%s' (%lld "
                         "bytes) on rank %d: ranks begin their operations in different orders, or "
                         "one of them left one out",
                         first.number, first.name, first.label, first.bytes, a, other.label,
                         other.bytes, b);
                return;
            }
        }
    }
}

void ls_diagnose_endings_codes(const ls_record *job, char *text, int text_bytes)
{
    text[0] = '\0';
    for (int k = 0; k < job->world && text[0] == '\0'; k++) {
        const ls_record_rank *rank = &job->rank[k];
        if (rank->ended && rank->signal == 0 && rank->code >= 0 && rank->end_code >= 0 &&
            rank->code != rank->end_code) {
            snprintf(text, (size_t)text_bytes,
                     "rank %d ends with code %d by its own end event, and its process leaves with "
                     "code %d",
                     k, rank->end_code, rank->code);
        }
    }
}

/* ---- the loss scale ---------------------------------------------------------------------------
 */

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
