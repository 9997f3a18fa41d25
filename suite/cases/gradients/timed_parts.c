#include "timed_parts.h"

#include <math.h>
#include <string.h>

#include "kernels/core/list.h"
#include "suite/judge/judges.h"

enum { BLOCK = 64, EDGE = 8 }; /* numerics.md section 4 */

/* Sums over some elements. */
typedef struct sums {
    double difference, reference, subject, product; /* squares, and g * reference */
    int64_t count;
    bool finite;
} sums;

typedef struct pair {
    ls_dumpfile *subject;
    ls_dumpfile **reference; /* [count] */
    int count;
    double *mean; /* [largest tensor] of the references */
} pair;

static bool is_gradient(const ls_dumpfile_entry *entry)
{
    return strncmp(entry->name, "grad/", 5) == 0;
}

/* Its counterpart in another dump, or NULL with a verdict where there is none of its shape. */
static const ls_dumpfile_entry *same_entry(const ls_dumpfile *file, const ls_dumpfile_entry *entry,
                                           ls_verdict *out)
{
    const ls_dumpfile_entry *other = ls_dumpfile_find(file, entry->name);
    if (other == NULL || other->count != entry->count || ls_dumps_data(other, "F32") == NULL ||
        ls_dumps_data(entry, "F32") == NULL) {
        ls_verdict_fail(out, "%s is not in both dumps with one shape, as F32", entry->name);
        return NULL;
    }
    return other;
}

/* The reference's mean of one tensor into p->mean; false where a dump does not have it. */
static bool read_mean(const pair *p, const ls_dumpfile_entry *entry, ls_verdict *out)
{
    int64_t count = entry->count;
    memset(p->mean, 0, (size_t)count * sizeof *p->mean);
    for (int k = 0; k < p->count; k++) {
        const ls_dumpfile_entry *other = same_entry(p->reference[k], entry, out);
        if (other == NULL) {
            return false;
        }
        const float *value = ls_dumps_data(other, "F32");
        for (int64_t i = 0; i < count; i++) {
            p->mean[i] += (double)value[i] / p->count;
        }
    }
    return true;
}

static sums sum(const float *g, const double *reference, int64_t from, int64_t count)
{
    sums s = {.count = count, .finite = true};
    for (int64_t i = from; i < from + count; i++) {
        double d = (double)g[i] - reference[i];
        s.difference += d * d;
        s.reference += reference[i] * reference[i];
        s.subject += (double)g[i] * (double)g[i];
        s.product += (double)g[i] * reference[i];
        s.finite = s.finite && isfinite(g[i]);
    }
    return s;
}

static void add(sums *to, const sums *from)
{
    to->difference += from->difference;
    to->reference += from->reference;
    to->subject += from->subject;
    to->product += from->product;
    to->count += from->count;
    to->finite = to->finite && from->finite;
}

/* Takes the part where it is the worst of its kind; `tensor`: the sums of the tensor it is of. */
static void offer(ls_timed_part *worst, const sums *part, double scale, const char *name,
                  int64_t from, const sums *tensor)
{
    double error = sqrt(part->difference) / scale;
    if (error <= worst->error || isnan(worst->error)) {
        return;
    }
    worst->error = error;
    ls_text_put(worst->tensor, sizeof worst->tensor, "%s", name);
    worst->from = from;
    worst->count = part->count;
    worst->factor = tensor->product / tensor->reference;
    double rest = 1 - tensor->product * tensor->product / (tensor->subject * tensor->reference);
    worst->residual = sqrt(fmax(rest, 0));
}

static void offer_tensor(const pair *p, const ls_dumpfile_entry *entry, const sums *whole,
                         ls_timed_part *worst)
{
    const char *name = entry->name + 5;
    const float *g = ls_dumps_data(entry, "F32");
    int64_t count = entry->count;
    sums tensor = sum(g, p->mean, 0, count);
    double scale = ls_compare_spans_scale(tensor.reference, whole->reference, count, whole->count);
    offer(&worst[count >= BLOCK ? LS_COMPARE_TENSOR : LS_COMPARE_SMALL], &tensor, scale, name, 0,
          &tensor);
    for (int64_t at = 0; at < count && count >= 2 * BLOCK; at += BLOCK) {
        int64_t from = at + BLOCK <= count ? at : count - BLOCK;
        sums block = sum(g, p->mean, from, BLOCK);
        double usual = scale * sqrt((double)BLOCK / (double)count);
        offer(&worst[LS_COMPARE_BLOCK], &block, fmax(sqrt(block.reference), usual), name, from,
              &tensor);
    }
    for (int end = 0; end < 2 && count >= 2 * EDGE; end++) {
        int64_t from = end == 0 ? 0 : count - EDGE;
        sums edge = sum(g, p->mean, from, EDGE);
        double usual = scale * sqrt((double)EDGE / (double)count);
        offer(&worst[LS_COMPARE_EDGE], &edge, fmax(sqrt(edge.reference), usual), name, from,
              &tensor);
    }
}

static bool measure(const pair *p, ls_timed_parts *parts, ls_verdict *out)
{
    sums whole = {.finite = true};
    int entries = ls_dumpfile_count(p->subject);
    for (int pass = 0; pass < 2; pass++) { /* the floors of D need the whole norm */
        for (int i = 0; i < entries; i++) {
            const ls_dumpfile_entry *entry = ls_dumpfile_at(p->subject, i);
            if (!is_gradient(entry)) {
                continue;
            }
            if (!read_mean(p, entry, out)) {
                return false;
            }
            if (pass == 1) {
                offer_tensor(p, entry, &whole, parts->worst);
                continue;
            }
            sums tensor = sum(ls_dumps_data(entry, "F32"), p->mean, 0, entry->count);
            add(&whole, &tensor);
        }
    }
    int own = 0, wanted = 0; /* each of its own is the reference's: as many are all */
    for (int i = 0; i < entries; i++) {
        own += is_gradient(ls_dumpfile_at(p->subject, i));
    }
    for (int i = 0; i < ls_dumpfile_count(p->reference[0]); i++) {
        wanted += is_gradient(ls_dumpfile_at(p->reference[0], i));
    }
    if (whole.count == 0 || own != wanted) {
        ls_verdict_fail(out, "the dump of step 1 holds %d gradients of %d", own, wanted);
        return false;
    }
    parts->finite = whole.finite;
    parts->elements = whole.count;
    offer(&parts->worst[LS_COMPARE_WHOLE], &whole, sqrt(whole.reference), "every gradient", 0,
          &whole);
    return true;
}

static double *largest_tensor(const ls_dumpfile *file)
{
    int64_t count = 0;
    for (int i = 0; i < ls_dumpfile_count(file); i++) {
        const ls_dumpfile_entry *entry = ls_dumpfile_at(file, i);
        count = is_gradient(entry) && entry->count > count ? entry->count : count;
    }
    double *values = ls_list_make(1, (size_t)count * sizeof *values + 1);
    return values;
}

bool ls_timed_parts_measure(const ls_record *subject, const ls_record *reference, int first_step,
                            int count, ls_timed_parts *parts, ls_verdict *out)
{
    pair p = {.count = count, .reference = calloc((size_t)count, sizeof *p.reference)};
    LS_MEMORY(p.reference != NULL);
    memset(parts, 0, sizeof *parts);
    p.subject = ls_dumps_open(subject, 1, 0, out);
    bool good = p.subject != NULL;
    for (int k = 0; k < count && good; k++) {
        p.reference[k] = ls_dumps_open(reference, first_step + k, 0, out);
        good = p.reference[k] != NULL;
    }
    if (good) {
        p.mean = largest_tensor(p.subject);
        good = measure(&p, parts, out);
    }
    for (int k = 0; k < count; k++) {
        ls_dumpfile_close(p.reference[k]);
    }
    ls_dumpfile_close(p.subject);
    free(p.reference);
    free(p.mean);
    return good;
}

static const char *first_difference(const ls_dumpfile *a, const ls_dumpfile *b)
{
    for (int i = 0; i < ls_dumpfile_count(a); i++) {
        const ls_dumpfile_entry *entry = ls_dumpfile_at(a, i);
        if (strncmp(entry->name, "branch/", 7) != 0 && strncmp(entry->name, "param/", 6) != 0) {
            continue;
        }
        const ls_dumpfile_entry *other = ls_dumpfile_find(b, entry->name);
        if (!ls_dumpfile_equal(other, entry)) {
            return entry->name;
        }
    }
    return ls_dumpfile_has(a, "branch/") ? NULL : "branch/ is missing";
}

bool ls_timed_parts_same_forward(const ls_record *a, const ls_record *b, char *text, size_t bytes)
{
    text[0] = '\0';
    for (int rank = 0; rank < a->world && text[0] == '\0'; rank++) {
        ls_verdict unused = {.code = LS_PASS};
        ls_dumpfile *mine = ls_dumps_open(a, 1, rank, &unused);
        ls_dumpfile *other = ls_dumps_open(b, 1, rank, &unused);
        if (mine == NULL || other == NULL) {
            ls_text_put(text, bytes, "rank=%d: no dump of step 1", rank);
        } else {
            const char *name = first_difference(mine, other);
            if (name != NULL) {
                ls_text_put(text, bytes, "rank=%d: %s", rank, name);
            }
        }
        ls_dumpfile_close(other);
        ls_dumpfile_close(mine);
    }
    return text[0] == '\0';
}

/* One tensor of rank 0's, or one that is no gradient: nothing. */
static bool add_local(const ls_dumpfile *a, const ls_dumpfile_entry *entry, ls_timed_local *out,
                      ls_verdict *verdict)
{
    bool local = strncmp(entry->name, "local/", 6) == 0;
    if (!local && !is_gradient(entry)) {
        return true;
    }
    const ls_dumpfile_entry *other = same_entry(a, entry, verdict);
    if (other == NULL) {
        return false;
    }
    const float *value = ls_dumps_data(entry, "F32"), *mine = ls_dumps_data(other, "F32");
    double *size = local ? &out->size : &out->mean_size;
    for (int64_t i = 0; i < entry->count; i++) {
        double d = local ? (double)mine[i] - (double)value[i] : 0;
        out->distance += d * d;
        *size += (double)value[i] * (double)value[i];
    }
    bool same = ls_dumpfile_equal(entry, other);
    if (local && !same && out->tensor[0] == '\0') {
        ls_text_put(out->tensor, sizeof out->tensor, "%s", entry->name + strlen("local/"));
    }
    return true;
}

bool ls_timed_parts_local(const ls_record *a, const ls_record *b, ls_timed_local *out,
                          ls_verdict *verdict)
{
    ls_dumpfile *mine = ls_dumps_open(a, 1, 0, verdict), *other = ls_dumps_open(b, 1, 0, verdict);
    memset(out, 0, sizeof *out);
    bool good = mine != NULL && other != NULL;
    for (int i = 0; good && i < ls_dumpfile_count(other); i++) {
        good = add_local(mine, ls_dumpfile_at(other, i), out, verdict);
    }
    if (good && (!ls_dumpfile_has(mine, "local/") || !ls_dumpfile_has(other, "local/"))) {
        ls_verdict_fail(verdict, "rank=0: the dumps of step 1 hold no local gradient");
        good = false;
    }
    out->distance = sqrt(out->distance);
    out->size = sqrt(out->size);
    out->mean_size = sqrt(out->mean_size);
    ls_dumpfile_close(other);
    ls_dumpfile_close(mine);
    return good;
}
