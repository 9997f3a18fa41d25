#include "network.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "reference/oracle/oracle.h"

/* Multiply-adds of a step's forwards beyond which it is not run again: minutes of plain loops. */
static const double most_macs = 3e11;

/* ---- which dumps ----------------------------------------------------------------------------- */

/* A dump that holds a step: some trainers write the branches alone on further ranks. */
static bool is_whole(const ls_dumpfile *file)
{
    return file != NULL && ls_dumpfile_find(file, "input") != NULL &&
           ls_dumpfile_find(file, "target") != NULL && ls_dumpfile_has(file, "param/") &&
           (ls_dumpfile_has(file, "local/") || ls_dumpfile_has(file, "grad/"));
}

static void set_why(ls_network *out, const char *why)
{
    if (out->why[0] == '\0') {
        ls_text_put(out->why, sizeof out->why, "%s", why);
    }
}

static bool load(const ls_samples *samples, ls_network *out)
{
    const char **path = ls_list_make((size_t)samples->world, sizeof *path);
    int count = 0;
    out->rank = ls_list_make((size_t)samples->world, sizeof *out->rank);
    for (int k = 0; k < samples->world; k++) {
        if (is_whole(samples->file[k])) {
            path[count] = ls_dumpfile_path(samples->file[k]);
            out->rank[count++] = k;
        }
    }
    const ls_dumpfile *first = count > 0 ? samples->file[out->rank[0]] : NULL;
    const char *arch = first != NULL ? ls_dumpfile_text(first, "arch", "") : "";
    if (count == 0 || !ls_nettab_knows(arch)) {
        set_why(out, count == 0 ? "no dump holds a batch with its gradients"
                                : "the network of the dump is not known");
    } else if (ls_evidence_load_part(arch, samples->world, count, out->rank, path,
                                     &out->evidence) != LS_OK) {
        out->evidence = NULL;
        set_why(out, "the dumps are not those of one step of the network");
    }
    free(path);
    return out->evidence != NULL;
}

static double count_macs(const ls_evidence *e)
{
    double images = 0;
    for (int k = 0; k < e->world; k++) {
        images += (double)e->batch[k] * e->step.accumulate;
    }
    return images * (double)ls_nettab_macs(&e->net);
}

/* 0 to 3, by the type of batch norms' parameters where the metadata's level is changed by them. */
static int stored_level(const ls_evidence *e)
{
    const char *level = ls_dumpfile_text(e->file[0], "opt_level", "O0");
    int number = level[0] == 'O' && level[1] >= '0' && level[1] <= '3' ? level[1] - '0' : 0;
    for (int i = 0; number >= 2 && i < e->net.param_count; i++) {
        const ls_nettab_param *p = &e->net.param[i];
        const ls_dumpfile_entry *held = ls_dumpfile_findf(e->file[0], "param/%s", p->name);
        if (e->net.node[p->node].kind == LS_NETTAB_NORM && held != NULL) {
            return strcmp(held->dtype, "F32") == 0 ? 2 : 3;
        }
    }
    return number;
}

/* Local gradients are kept as they are sent. F64: in their own type. */
static ls_bits_type reduced_type(const ls_dumpfile *file)
{
    const char *type = ls_dumpfile_text(file, "reduced_type", "");
    bool half = strcmp(ls_dumpfile_text(file, "opt_level", "O0"), "O2") >= 0;
    return half || strcmp(type, "fp32") == 0 ? LS_BITS_F64
           : strcmp(type, "fp16") == 0       ? LS_BITS_F16
           : strcmp(type, "bf16") == 0       ? LS_BITS_BF16
                                             : LS_BITS_F64;
}

/* --no-sync False, as asked or as reported. */
static bool reduces_each(const ls_observe_trace *trace, int rank)
{
    const cJSON *options =
        cJSON_GetObjectItemCaseSensitive(trace->rank[rank].record->start, "options");
    return !ls_job_asked_flag(trace, "no-sync", ls_json_bool(options, "no-sync", true));
}

/* What the metadata say of the step; false where it is none that is run again. */
static bool read_facts(const ls_samples *samples, ls_network *out)
{
    ls_oracle_step *step = &out->evidence->step;
    const ls_dumpfile *file = out->evidence->file[0];
    step->predivide = 1;
    step->level = out->evidence->has_branches ? stored_level(out->evidence) : 0;
    step->half =
        strcmp(ls_dumpfile_text(file, "half", "fp16"), "bf16") == 0 ? LS_BITS_BF16 : LS_BITS_F16;
    step->loss_scale = ls_dumpfile_number(file, "loss_scale", 1);
    step->loss_scale = step->loss_scale > 0 ? step->loss_scale : 1;
    step->reduce = reduced_type(file);
    step->stat_ranks = 1;
    step->label_smoothing = ls_dumpfile_number(file, "label_smoothing", 0);
    if (ls_dumpfile_flag(file, "sync_bn", false)) {
        int64_t group = ls_dumpfile_integer(file, "sync_bn_group", samples->world);
        bool all = out->evidence->world == samples->world && group > 0;
        if (!all || samples->world % group != 0) {
            set_why(out, "ranks share statistics, and not all of them wrote a dump");
            return false;
        }
        step->stat_ranks = (int)group;
    }
    if (ls_dumpfile_flag(file, "skipped", false)) {
        set_why(out, "its gradients overflowed");
        return false;
    }
    if (!(step->label_smoothing >= 0 && step->label_smoothing <= 1) ||
        count_macs(out->evidence) > most_macs) {
        set_why(out, "the step is too large to be run again");
        return false;
    }
    out->together = step->stat_ranks > 1;
    out->each = reduces_each(samples->trace, out->rank[0]);
    if (out->each && out->evidence->world < samples->world) {
        set_why(out, "each micro-step is reduced, and not all ranks wrote a dump");
        return false;
    }
    out->forced = out->evidence->has_branches;
    return true;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* On the branches of the dump. The rounded run, which stores what the dump's level stores in the
 * same types, takes its own; FP64 on those shows what rounding costs, and that is put on top of the
 * gradient on the dump's. */
static bool run_forced(const ls_evidence *e, const ls_oracle_step *step, ls_dumpfile *const *file,
                       ls_oracle_result *exact, ls_oracle_result *rounded)
{
    ls_branch_set given = {0};
    ls_oracle_result own = {0};
    ls_shards shards = ls_oracle_shards(step);
    if (ls_branch_read(&e->net, &shards, file, &given) != LS_OK) {
        return false;
    }
    const ls_oracle_mode again = {.forced = &given, .rank_grads = step->world > 1};
    const ls_oracle_mode storing = {.ideal = true, .keep_branches = true};
    bool done = ls_oracle_run(step, &again, exact) == LS_OK &&
                ls_oracle_run(step, &storing, rounded) == LS_OK;
    const ls_oracle_mode plain = {.forced = &rounded->branches};
    done = done && ls_oracle_run(step, &plain, &own) == LS_OK;
    for (int64_t i = 0; done && i < e->net.elements; i++) {
        rounded->grad[i] += exact->grad[i] - own.grad[i];
    }
    for (int64_t i = 0; done && i < ls_oracle_stats_count(step); i++) {
        rounded->stats[i] -= own.stats[i];
    }
    if (done) {
        ls_oracle_free(&e->net, &own);
    }
    ls_branch_free(&given);
    return done;
}

static bool run_part(const ls_network *network, const ls_oracle_step *step, int first,
                     ls_oracle_result *exact, ls_oracle_result *rounded)
{
    const ls_oracle_mode again = {.rank_grads = step->world > 1}, storing = {.ideal = true};
    if (network->forced) {
        return run_forced(network->evidence, step, network->evidence->file + first, exact, rounded);
    }
    return ls_oracle_run(step, &again, exact) == LS_OK &&
           ls_oracle_run(step, &storing, rounded) == LS_OK;
}

static bool run_all(ls_network *out)
{
    const ls_oracle_step *step = &out->evidence->step;
    int parts = out->together ? 1 : step->world;
    out->exact = ls_list_make((size_t)parts, sizeof *out->exact);
    out->rounded = ls_list_make((size_t)parts, sizeof *out->rounded);
    for (int k = 0; k < parts; k++) {
        ls_oracle_step own = *step;
        if (!out->together) {
            own.world = 1;
            own.batch += k;
            own.input += k;
            own.target += k;
        }
        if (!run_part(out, &own, k, &out->exact[k], &out->rounded[k])) {
            set_why(out, "it cannot be run again here");
            return false;
        }
    }
    return true;
}

void ls_network_run(const ls_samples *samples, ls_network *out)
{
    memset(out, 0, sizeof *out);
    if (load(samples, out) && !(read_facts(samples, out) && run_all(out))) {
        ls_network kept = *out;
        out->evidence = NULL;
        ls_network_free(&kept);
        out->rank = NULL;
        out->exact = out->rounded = NULL;
    }
}

void ls_network_free(ls_network *network)
{
    int parts = network->evidence == NULL || network->together ? 1 : network->evidence->world;
    for (int k = 0; network->evidence != NULL && k < parts; k++) {
        if (network->exact != NULL) {
            ls_oracle_free(&network->evidence->net, &network->exact[k]);
            ls_oracle_free(&network->evidence->net, &network->rounded[k]);
        }
    }
    free(network->exact);
    free(network->rounded);
    free(network->rank);
    ls_evidence_free(network->evidence);
}

/* ---- results --------------------------------------------------------------------------------- */

int ls_network_index(const ls_network *network, int rank)
{
    for (int i = 0; network->evidence != NULL && i < network->evidence->world; i++) {
        if (network->rank[i] == rank) {
            return i;
        }
    }
    return -1;
}

static bool has_locals(const ls_network *network)
{
    return !network->each && ls_dumpfile_has(network->evidence->file[0], "local/");
}

static ls_values make_values(int64_t count)
{
    return (ls_values){.count = count,
                       .v = ls_list_make((size_t)count, sizeof(double)),
                       .unit = ls_samples_unit("f64")};
}

/* Of one rank; with shared statistics its part of the whole gradient. */
ls_values ls_network_gradient(const ls_network *network, int index, bool exact, const char *name)
{
    const ls_evidence *e = network->evidence;
    int found = ls_nettab_find_param(&e->net, name);
    if (found < 0) {
        return (ls_values){0};
    }
    const ls_nettab_param *param = &e->net.param[found];
    const ls_oracle_result *of =
        &(exact ? network->exact : network->rounded)[network->together ? 0 : index];
    ls_values values = make_values(param->count);
    bool own = network->together && has_locals(network);
    bool mean = !network->together && !has_locals(network);
    for (int64_t i = 0; i < param->count; i++) {
        int64_t at = param->offset + i;
        values.v[i] = of->grad[at];
        if (own) { /* what rounding costs is known of the mean alone, and put on the rank's part */
            const ls_oracle_result *all = network->exact;
            values.v[i] +=
                (double)all->rank_grad[(int64_t)index * e->net.elements + at] - all->grad[at];
        }
        for (int k = 0; mean && k < e->world; k++) {
            const ls_oracle_result *one = &(exact ? network->exact : network->rounded)[k];
            values.v[i] += k == index ? 0 : one->grad[at];
        }
        values.v[i] /= mean ? e->world : 1;
    }
    return values;
}

ls_values ls_network_given(const ls_network *network, int index, const char *name)
{
    const char *group = has_locals(network) ? "local" : "grad";
    return ls_samples_read(network->evidence->file[index], group, name, NULL);
}

double ls_network_rounding(const ls_network *network)
{
    const ls_dumpfile *file = network->evidence->file[0];
    const char *level = ls_dumpfile_text(file, "opt_level", "O0");
    bool bf16 = strcmp(ls_dumpfile_text(file, "half", "fp16"), "bf16") == 0;
    const char *type = ls_dumpfile_text(file, "reduced_type", "fp32");
    bool single = strcmp(level, "O0") == 0;
    bf16 = single ? strcmp(type, "bf16") == 0 : bf16;
    return single && strcmp(type, "fp32") == 0 ? 0x1p-24 : bf16 ? 0x1p-8 : 0x1p-11;
}

/* ---- running statistics ---------------------------------------------------------------------- */

/* torch.nn.BatchNorm2d's default, which torchvision keeps */
static const double momentum = 0.1;

/* The batch norm's name: its weight's without the last component. */
static void name_norm(const ls_evidence *e, int node, char *name, size_t bytes)
{
    ls_text_put(name, bytes, "%s", e->net.param[e->net.node[node].weight].name);
    char *dot = strrchr(name, '.');
    if (dot != NULL) {
        *dot = '\0';
    }
}

/* Sums of squares over the channels: how far the dump's statistics are from FP64's, and how far the
 * rounded run's are, before they are averaged into the running ones. */
typedef struct distance {
    double off, cost, rounding;
} distance;

static distance distance_of(const ls_network *network, int index, int node, int kind,
                            const ls_values *before, const ls_values *after, int micro_steps)
{
    const ls_evidence *e = network->evidence;
    ls_oracle_step step = e->step;
    if (!network->together) {
        step.world = 1;
        step.batch += index;
    }
    int part = network->together ? 0 : index, rank = network->together ? index : 0;
    int groups = ls_oracle_stats_groups(&step), channels = e->net.node[node].channels;
    int per_micro = step.world / step.stat_ranks;
    int64_t at = ls_oracle_stats_of(&step, node) + (int64_t)kind * groups * channels;
    const double *exact = network->exact[part].stats + at;
    const double *rounded = network->rounded[part].stats + at;
    double count = (double)(ls_oracle_stats_samples(&step, rank) * e->net.node[node].height *
                            e->net.node[node].width);
    double unbiased = kind == 1 && count > 1 ? count / (count - 1) : 1;
    distance d = {0};
    for (int c = 0; c < channels; c++) {
        double value = before->v[c], cost = 0;
        for (int a = 0; a < micro_steps; a++) {
            int group = a * per_micro + rank / step.stat_ranks;
            value += momentum * (exact[group * channels + c] * unbiased - value);
            cost += momentum * rounded[group * channels + c] * unbiased;
        }
        d.off += pow(after->v[c] - value, 2);
        d.cost += cost * cost;
        d.rounding += pow(4 * micro_steps * after->unit.u * fabs(value), 2);
    }
    return (distance){sqrt(d.off), sqrt(d.cost), sqrt(d.rounding)};
}

static ls_values read_buffer(const ls_dumpfile *file, const char *group, const char *norm,
                             const char *what)
{
    LS_TEXT(name, 120, "%s.%s", norm, what);
    return ls_samples_read(file, group, name, NULL);
}

bool ls_network_statistics(const ls_network *network, int index, int node, int kind,
                           ls_network_statistic *out)
{
    static const char *const what[] = {"running_mean", "running_var"};
    const ls_evidence *e = network->evidence;
    const ls_dumpfile *file = e->file[index];
    int micro_steps = ls_dumpfile_integer(file, "replicas", 1) > 1 ? 1 : e->step.accumulate;
    char name[64];
    if (e->net.node[node].kind != LS_NETTAB_NORM || !network->forced) {
        return false;
    }
    name_norm(e, node, name, sizeof name);
    ls_values before = read_buffer(file, "last_buffer", name, what[kind]);
    ls_values after = read_buffer(file, "buffer", name, what[kind]);
    bool whole = before.v != NULL && after.v != NULL &&
                 before.count == e->net.node[node].channels && after.count == before.count;
    if (whole) {
        distance d = distance_of(network, index, node, kind, &before, &after, micro_steps);
        *out = (ls_network_statistic){.off = d.off, .cost = d.cost, .rounding = d.rounding};
        ls_text_put(out->name, sizeof out->name, "%s.%s", name, what[kind]);
    }
    ls_samples_free(&before);
    ls_samples_free(&after);
    return whole;
}
