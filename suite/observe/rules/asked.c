/* Whether a trainer of the subject protocol does what its options ask for: types of tensors, how
 * gradients are shared, parameter groups. Each is seen in its dumps and events, whatever it says of
 * itself. A job in PyTorch has no such options, and its own rules. */
#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "suite/observe/trace/job.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "reference/oracle/bits.h"
#include "rules.h"

static bool concerns(const ls_observe_trace *trace, ls_observe_finding *out)
{
    if (!ls_job_asked_known(trace)) {
        ls_verdict_set(&out->verdict, LS_SKIP, "%s",
                       trace->attached ? "a job in PyTorch has no options of the protocol"
                                       : "the job's command is not recorded");
        return false;
    }
    return true;
}

/* ---- types ----------------------------------------------------------------------------------- */

/* What the level stores: numerics.md section 1; Apex's opt levels. */
typedef struct types {
    const char *product, *norm; /* "F32", "F16" or "BF16" */
    bool masters;
    ls_bits_type half;
} types;

static types types_of(const ls_observe_trace *trace)
{
    const char *level = ls_job_asked_value(trace, "opt-level", 0);
    const char *half = ls_job_asked_value(trace, "half", 0);
    bool bf16 = half != NULL && strcmp(half, "bf16") == 0;
    level = level == NULL || level[0] == '\0' ? "O1" : level;
    bool stores = ls_text_choice(level, "O2|O3") >= 0;
    bool two = strcmp(level, "O2") == 0;
    bool keeps = ls_job_asked_flag(trace, "keep-batchnorm-fp32", !stores || two);
    const char *word = bf16 ? "BF16" : "F16";
    return (types){.product = stores ? word : "F32",
                   .norm = stores && !keeps ? word : "F32",
                   .masters = ls_job_asked_flag(trace, "master-weights", two),
                   .half = bf16 ? LS_BITS_BF16 : LS_BITS_F16};
}

/* A parameter of a norm with running statistics. */
static bool is_norm(const ls_dumpfile *file, const char *name)
{
    const char *dot = strrchr(name, '.');
    int length = dot == NULL ? 0 : (int)(dot - name);
    return ls_dumpfile_findf(file, "buffer/%.*s.running_mean", length, name) != NULL;
}

static bool check_type(const ls_dumpfile *file, const ls_dumpfile_entry *param, const char *name,
                       const types *want, ls_observe_finding *out)
{
    const char *type = is_norm(file, name) ? want->norm : want->product;
    const ls_dumpfile_entry *master = ls_dumpfile_findf(file, "master/%s", name);
    bool halved = strcmp(type, "F32") != 0;
    if (strcmp(param->dtype, type) != 0) {
        ls_verdict_fail(&out->verdict, "%s is %s, the level asks for %s", name, param->dtype, type);
        ls_verdict_cause(&out->verdict, "%s is kept in another type than the level's",
                         is_norm(file, name) ? "batch norm" : "a product's weight");
        return false;
    }
    if (halved && want->masters && master == NULL) {
        ls_finding_set(out, LS_FAIL, "",
                       "no masters: half parameters are stepped themselves, and lose small updates",
                       NULL, "%s is %s and has no f32 master", name, type);
        return false;
    }
    return true;
}

/* The half parameter is the master rounded to nearest. */
static bool check_copy(const ls_dumpfile *file, const ls_dumpfile_entry *param, const char *name,
                       const types *want, int64_t *compared, ls_observe_finding *out)
{
    ls_values half = ls_samples_read(file, "param", name, NULL);
    ls_values master = ls_samples_read(file, "master", name, NULL);
    bool same = true;
    for (int64_t i = 0; same && master.v != NULL && strcmp(param->dtype, "F32") != 0 &&
                        i < half.count && half.count == master.count;
         i++) {
        double wanted = ls_bits_round(want->half, master.v[i]);
        ++*compared;
        if (half.v[i] != wanted && !(isnan(wanted) && isnan(half.v[i]))) {
            ls_finding_set(out, LS_FAIL, "",
                           "the half copy of a master is not the master rounded to nearest: cut, "
                           "stale, or of another rank",
                           NULL, "%s element %lld is %.9g, its master %.9g rounds to %.9g", name,
                           (long long)i, half.v[i], master.v[i], wanted);
            same = false;
        }
    }
    ls_samples_free(&half);
    ls_samples_free(&master);
    return same;
}

static bool check_dump(const ls_dumpfile *file, const types *want, int64_t *compared,
                       ls_observe_finding *out)
{
    for (int i = 0; i < ls_dumpfile_count(file); i++) {
        const ls_dumpfile_entry *entry = ls_dumpfile_at(file, i);
        if (strncmp(entry->name, "param/", 6) != 0) {
            continue;
        }
        ++*compared;
        if (!check_type(file, entry, entry->name + 6, want, out) ||
            !check_copy(file, entry, entry->name + 6, want, compared, out)) {
            return false;
        }
    }
    return true;
}

void ls_rules_precision_level(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int64_t compared = 0;
    if (!concerns(trace, out)) {
        return;
    }
    types want = types_of(trace);
    bool good = true;
    ls_samples_each(samples, trace, 0, good, out) {
        for (int k = 0; good && k < samples.world; k++) {
            good = samples.file[k] == NULL || !ls_dumpfile_has(samples.file[k], "buffer/") ||
                   check_dump(samples.file[k], &want, &compared, out);
        }
    }
    ls_finding_close(out, compared, LS_UNSUPPORTED, "no dump of a step with running statistics",
                     "%lld types and rounded copies are the level's", (long long)compared);
}

/* ---- sharing --------------------------------------------------------------------------------- */

/* The type that the reduction is asked to have; NULL: each gradient's own. */
static const char *reduced_type(const ls_observe_trace *trace)
{
    const char *compress = ls_job_asked_value(trace, "compress", 0);
    const char *hook = ls_job_asked_value(trace, "comm-hook", 0);
    if (ls_job_asked_flag(trace, "allreduce-fp32", false)) {
        return "fp32";
    }
    if (compress != NULL && strcmp(compress, "none") != 0) {
        return compress;
    }
    return hook != NULL && strncmp(hook, "fp16_", 5) == 0   ? "fp16"
           : hook != NULL && strncmp(hook, "bf16_", 5) == 0 ? "bf16"
                                                            : NULL;
}

static void check_buckets(const ls_observe_trace *trace, int *compared, ls_observe_finding *out)
{
    const char *type = reduced_type(trace);
    const ls_event *bucket;
    for (int k = 0; k < trace->world && type != NULL; k++) {
        const ls_event *list = ls_event_list(ls_trace_last(&trace->rank[k], buckets), buckets);
        ls_event_each(bucket, list) {
            const char *has = ls_event_text(bucket, type, type);
            ++*compared;
            if (strcmp(has, type) != 0) {
                ls_finding_set(out, LS_FAIL, "",
                               "the option for the type of the reduction is accepted and not used",
                               NULL, "rank %d reduces a bucket in %s, asked is %s", k, has, type);
                return;
            }
        }
    }
}

/* torch's DistributedDataParallel sends rank 0's running statistics before each forward. */
static bool sends_buffers(const ls_observe_trace *trace)
{
    const char *dialect = ls_job_asked_value(trace, "dialect", 0);
    bool torch = dialect != NULL && strcmp(dialect, "torch") == 0;
    return trace->world > 1 && ls_job_asked_flag(trace, "broadcast-buffers", torch) &&
           ls_job_asked_value(trace, "sync-bn", 0) == NULL &&
           ls_job_asked_value(trace, "join", 0) == NULL &&
           ls_job_asked_flag(trace, "no-sync", true);
}

static void check_buffers(const ls_samples *samples, int *compared, ls_observe_finding *out)
{
    const ls_dumpfile *first = samples->file[0];
    for (int i = 0; first != NULL && i < ls_dumpfile_count(first); i++) {
        const ls_dumpfile_entry *entry = ls_dumpfile_at(first, i);
        if (strncmp(entry->name, "last_buffer/", 12) != 0) {
            continue;
        }
        for (int k = 1; k < samples->world; k++) {
            const ls_dumpfile_entry *other =
                samples->file[k] == NULL ? NULL : ls_dumpfile_find(samples->file[k], entry->name);
            *compared += other != NULL;
            if (other != NULL && !ls_dumpfile_equal(entry, other)) {
                ls_finding_set(
                    out, LS_FAIL, "",
                    "rank 0's running statistics are not sent to the other ranks before a forward",
                    NULL, "step %lld: before its forward %s differs on ranks 0 and %d",
                    (long long)samples->number, entry->name + 12, k);
                return;
            }
        }
    }
}

/* The mean over the ranks that have a batch, by the divisor that --join asks for. */
static void check_joined(const ls_samples *samples, const char *name, double divisor, int *compared,
                         ls_observe_finding *out)
{
    ls_values got = {0};
    double *sum = NULL, *size = NULL;
    for (int k = 0; k < samples->world; k++) {
        ls_values local = ls_samples_read(samples->file[k], "local", name, NULL);
        if (local.v != NULL && sum == NULL) {
            sum = ls_list_make((size_t)local.count + 1, sizeof *sum);
            size = ls_list_make((size_t)local.count + 1, sizeof *size);
            got = ls_samples_read(samples->file[k], "grad", name, NULL);
        }
        for (int64_t i = 0;
             local.v != NULL && got.v != NULL && i < local.count && local.count == got.count; i++) {
            sum[i] += local.v[i] / divisor;
            size[i] += fabs(local.v[i]) / divisor;
        }
        ls_samples_free(&local);
    }
    const char *type = NULL;
    for (int k = 0; k < samples->world && type == NULL; k++) {
        type = samples->file[k] == NULL
                   ? NULL
                   : ls_dumpfile_text(samples->file[k], "reduced_type", "fp32");
    }
    double u = type == NULL || strcmp(type, "fp32") == 0 ? 0x1p-24
               : strcmp(type, "bf16") == 0               ? 0x1p-8
                                                         : 0x1p-11;
    for (int64_t i = 0; sum != NULL && got.v != NULL && i < got.count; i++) {
        /* a division, W additions and a conversion either way; subnormals of f16 */
        double limit = (samples->world + 3) * (u * size[i] + 0x1p-24 * (u > 0x1p-24));
        ++*compared;
        if (isfinite(got.v[i]) && !(fabs(got.v[i] - sum[i]) <= limit + 0x1p-126)) {
            ls_finding_set(out, LS_FAIL, "",
                           "divided by another number of ranks than --join asks for, or a rank "
                           "without a batch adds a gradient",
                           NULL,
                           "step %lld: the gradient of %s element %lld is %.9g, the sum of the "
                           "ranks that have a batch over %g is %.9g",
                           (long long)samples->number, name, (long long)i, got.v[i], divisor,
                           sum[i]);
            break;
        }
    }
    free(sum);
    free(size);
    ls_samples_free(&got);
}

/* Ranks without a batch write no dump; a step that all took part in is reduction.mean's. */
static void check_join(const ls_observe_trace *trace, const ls_samples *samples, int *compared,
                       ls_observe_finding *out)
{
    const char *join = ls_job_asked_value(trace, "join", 0);
    int active = 0, rank = -1;
    for (int k = 0; k < samples->world; k++) {
        const ls_observe_step *step = ls_trace_step(&trace->rank[k], samples->number);
        active += step != NULL && !step->step->joined;
        rank = samples->file[k] != NULL ? k : rank;
    }
    if (join == NULL || active != samples->count || rank < 0 || active == trace->world ||
        ls_job_asked_value(trace, "average", 0) != NULL ||
        ls_job_asked_value(trace, "comm-hook", 0) != NULL ||
        ls_job_asked_value(trace, "compress", 0) != NULL) {
        return;
    }
    double divisor = strcmp(join, "active") == 0 ? active : trace->world;
    const ls_observe_rank *own = &trace->rank[rank];
    for (int i = 0; i < own->tensor_count; i++) {
        check_joined(samples, own->tensor[i].name, divisor, compared, out);
    }
}

/* The hook noop leaves every gradient with its own rank. */
static void check_noop(const ls_observe_trace *trace, const ls_samples *samples, int *compared,
                       ls_observe_finding *out)
{
    const char *hook = ls_job_asked_value(trace, "comm-hook", 0);
    bool noop = hook != NULL && strcmp(hook, "noop") == 0;
    for (int k = 0; noop && k < samples->world; k++) {
        for (int i = 0; samples->file[k] != NULL && i < trace->rank[k].tensor_count; i++) {
            const char *name = trace->rank[k].tensor[i].name;
            ls_values local = ls_samples_read(samples->file[k], "local", name, NULL);
            ls_values grad = ls_samples_read(samples->file[k], "grad", name, NULL);
            for (int64_t e = 0; local.v != NULL && local.count == grad.count && e < grad.count;
                 e++) {
                ++*compared;
                /* both were unscaled, which rounds once */
                if (!(fabs(local.v[e] - grad.v[e]) <= 0x1p-22 * fabs(local.v[e]))) {
                    ls_finding_set(out, LS_FAIL, "", "the hook noop reduces gradients", NULL,
                                   "step %lld, rank %d: %s element %lld is %.9g and was %.9g "
                                   "before the hook noop",
                                   (long long)samples->number, k, name, (long long)e, grad.v[e],
                                   local.v[e]);
                    break;
                }
            }
            ls_samples_free(&local);
            ls_samples_free(&grad);
        }
    }
}

void ls_rules_reduction_asked(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    if (!concerns(trace, out)) {
        return;
    }
    if (trace->world < 2) {
        ls_verdict_set(&out->verdict, LS_SKIP, "one rank");
        return;
    }
    check_buckets(trace, &compared, out);
    ls_samples_each(samples, trace, 0, true, out) {
        if (sends_buffers(trace)) {
            check_buffers(&samples, &compared, out);
        }
        check_join(trace, &samples, &compared, out);
        check_noop(trace, &samples, &compared, out);
    }
    ls_finding_close(out, compared, LS_SKIP,
                     "no type, no joining ranks and no running statistics are asked for",
                     "%d types and values are shared as is asked for", compared);
}

/* ---- groups ---------------------------------------------------------------------------------- */

typedef struct group {
    double factor, decay; /* of the rate, and NAN: the job's */
} group;

static bool matches(const char *pattern, size_t length, const char *name)
{
    regex_t compiled;
    LS_TEXT(text, 200, "%.*s", (int)length, pattern);
    if (regcomp(&compiled, text, REG_EXTENDED | REG_NOSUB) != 0) {
        return false;
    }
    bool fits = regexec(&compiled, name, 0, NULL, 0) == 0;
    regfree(&compiled);
    return fits;
}

static double setting(const char *settings, const char *name, double fallback)
{
    const char *at = strstr(settings, name);
    return at == NULL ? fallback : strtod(at + strlen(name), NULL);
}

/* The first that fits; batch norms without decay come first. */
static group group_of(const ls_observe_trace *trace, const ls_dumpfile *file, const char *name)
{
    group g = {1, NAN};
    const ls_dumpfile_entry *param = ls_dumpfile_findf(file, "param/%s", name);
    bool flat = param != NULL && param->rank <= 1; /* biases, too */
    if (ls_job_asked_flag(trace, "no-bn-decay", false) && (flat || is_norm(file, name))) {
        g.decay = 0;
        return g;
    }
    const char *text;
    for (int i = 0; (text = ls_job_asked_value(trace, "group", i)) != NULL; i++) {
        const char *colon = strrchr(text, ':');
        if (colon != NULL && matches(text, (size_t)(colon - text), name)) {
            return (group){setting(colon, "lr-factor=", 1), setting(colon, "wd=", NAN)};
        }
    }
    return g;
}

static bool is_close(double a, double b)
{
    return fabs(a - b) <= 0x1p-22 * fmax(fabs(a), fabs(b)); /* both were rounded to f32 */
}

static bool check_group(const ls_observe_trace *trace, const ls_dumpfile *file, const char *name,
                        ls_observe_finding *out)
{
    group g = group_of(trace, file, name);
    LS_TEXT(rate, 200, "lr/%s", name);
    LS_TEXT(decay, 200, "weight_decay/%s", name);
    double all_rate = ls_dumpfile_number(file, "lr", NAN);
    double all_decay = ls_dumpfile_number(file, "weight_decay", 0);
    double has_rate = ls_dumpfile_number(file, rate, all_rate);
    double has_decay = ls_dumpfile_number(file, decay, all_decay);
    double want_decay = isnan(g.decay) ? all_decay : g.decay;
    if (isnan(all_rate) ||
        (is_close(has_rate, all_rate * g.factor) && is_close(has_decay, want_decay))) {
        return true;
    }
    ls_finding_set(out, LS_FAIL, "", "the parameter is in another group than the first that fits",
                   NULL, "%s steps at the rate %.6g with decay %.6g, asked are %.6g and %.6g", name,
                   has_rate, has_decay, all_rate * g.factor, want_decay);
    return false;
}

void ls_rules_optimizer_groups(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    if (!concerns(trace, out)) {
        return;
    }
    if (ls_job_asked_value(trace, "group", 0) == NULL &&
        !ls_job_asked_flag(trace, "no-bn-decay", false)) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no group is asked for");
        return;
    }
    bool good = true;
    ls_samples_each(samples, trace, 0, good, out) {
        const ls_dumpfile *file = samples.file[0];
        for (int i = 0; good && file != NULL && i < trace->rank[0].tensor_count; i++) {
            good = check_group(trace, file, trace->rank[0].tensor[i].name, out);
            compared++;
        }
    }
    ls_finding_close(out, compared, LS_UNSUPPORTED, "no dump of a step",
                     "%d parameters have the rate and decay of their group", compared);
}
