#include "ideal_error.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "oracle.h"

double ls_ideal_error_squared(const double *a, const double *b, ls_ideal_error_span span)
{
    double sum = 0;
    for (int64_t i = span.from; i < span.from + span.count; i++) {
        double difference = a[i] - b[i];
        sum += difference * difference;
    }
    return sum;
}

double ls_ideal_error_square(const double *value, ls_ideal_error_span span)
{
    double sum = 0;
    for (int64_t i = span.from; i < span.from + span.count; i++) {
        sum += value[i] * value[i];
    }
    return sum;
}

/* ---- cached results -------------------------------------------------------------------------- */

/* Results are kept in a folder under a digest of the input. A file that is missing, short, of
 * another version or damaged counts as absent; one that cannot be written causes a warning only,
 * because the result itself is valid. */
typedef struct cache_key {
    uint64_t word[2];
} cache_key;

typedef struct cache_part {
    void *data;
    size_t bytes;
} cache_part;

typedef struct head {
    char magic[8];
    cache_key key;
    uint64_t bytes;
    cache_key content;
} head;

/* Two chains of multiply and rotate over 8-byte words (wyhash's idea): fast, and collisions are not
 * provoked on purpose. */
static void cache_add(cache_key *key, const void *data, size_t bytes)
{
    const unsigned char *from = data;
    uint64_t a = key->word[0] ^ bytes, b = key->word[1] + bytes;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, from + i, bytes - i < 8 ? bytes - i : 8);
        a = (a ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        a ^= a >> 29;
        b = (b + word) * UINT64_C(0xd6e8feb86659fd93);
        b ^= b >> 32;
    }
    key->word[0] = a;
    key->word[1] = b;
}

/* The program is part of every key, because a changed oracle must not find results of an older one.
 * Size and modification time of its file identify it. */
static void add_program(cache_key *key)
{
    struct stat self;
    if (stat("/proc/self/exe", &self) == 0) {
        const int64_t identity[] = {(int64_t)self.st_size, (int64_t)self.st_mtim.tv_sec,
                                    (int64_t)self.st_mtim.tv_nsec};
        cache_add(key, identity, sizeof identity);
    }
}

/* The initial key for one kind of result. Includes the oracle's version. */
static cache_key cache_start(const char *kind)
{
    cache_key key = {{UINT64_C(0x243f6a8885a308d3), UINT64_C(0x13198a2e03707344)}};
    add_program(&key);
    cache_add(&key, kind, strlen(kind) + 1);
    return key;
}

static bool path_of(const char *folder, cache_key key, char *path)
{
    return snprintf(path, PATH_MAX, "%s/%016llx%016llx", folder, (unsigned long long)key.word[0],
                    (unsigned long long)key.word[1]) < PATH_MAX;
}

static head head_of(cache_key key, int count, const cache_part *part)
{
    head h = {.magic = "LSKEEP1", .key = key, .content = cache_start("content")};
    for (int i = 0; i < count; i++) {
        h.bytes += part[i].bytes;
        cache_add(&h.content, part[i].data, part[i].bytes);
    }
    return h;
}

/* Fills all parts, or none (false). folder may be NULL. */
static bool cache_load(const char *folder, cache_key key, int count, const cache_part *part)
{
    char path[PATH_MAX];
    if (folder == NULL || !path_of(folder, key, path)) {
        return false;
    }
    ls_file_source file;
    if (ls_file_open(path, INT64_MAX, &file) != LS_OK) {
        return false;
    }
    head stored;
    bool whole = ls_file_fill(&file, path, &stored, sizeof stored) == LS_OK;
    for (int i = 0; i < count && whole; i++) {
        whole = ls_file_fill(&file, path, part[i].data, part[i].bytes) == LS_OK;
    }
    close(file.descriptor);
    if (!whole) {
        return false;
    }
    head wanted = head_of(key, count, part);
    return memcmp(&stored, &wanted, sizeof stored) == 0;
}

/* Creates the folder if it is missing; its parent must exist. */
static void cache_save(const char *folder, cache_key key, int count, const cache_part *part)
{
    char path[PATH_MAX];
    ls_file_draft draft;
    if (folder == NULL || !path_of(folder, key, path)) {
        return;
    }
    int error =
        mkdir(folder, 0777) != 0 && errno != EEXIST ? errno : ls_file_draft_open(path, &draft);
    if (error != 0) {
        ls_log_warn("cannot create %s: %s; this result of the oracle is not kept", path,
                    strerror(error));
        return;
    }
    head h = head_of(key, count, part);
    ls_status status = ls_file_write(draft.descriptor, path, &h, sizeof h);
    for (int i = 0; i < count; i++) {
        LS_THEN(status, ls_file_write(draft.descriptor, path, part[i].data, part[i].bytes));
    }
    (void)ls_file_draft_close(&draft, status, false); /* only kept to save time */
}

/* ---- the ideal and FP64 ---------------------------------------------------------------------- */

/* A step that differs in a member which no key contains would get the other's results: a new member
 * belongs into key_of_data, or, if only the ideal reads it, into the key of ls_ideal_error_measure.
 */
_Static_assert(sizeof(ls_oracle_step) ==
                   5 * sizeof(void *) + 5 * sizeof(double) + 8 * sizeof(int) + LS_NETTAB_NODES_MAX,
               "each member of ls_oracle_step is part of a key");

/* The key of everything in a step except its precision. */
static cache_key key_of_data(const char *kind, const ls_oracle_step *step)
{
    const ls_nettab *net = step->net;
    const ls_nettab_node *in = &net->node[0];
    int numbers[] = {net->classes,     in->height,       in->width,         step->world,
                     step->accumulate, step->stat_ranks, (int)step->average};
    cache_key key = cache_start(kind);
    cache_add(&key, net->arch, sizeof net->arch);
    cache_add(&key, numbers, sizeof numbers);
    cache_add(&key, &step->label_smoothing, sizeof step->label_smoothing);
    cache_add(&key, &step->divisor, sizeof step->divisor);
    cache_add(&key, step->batch, (size_t)step->world * sizeof *step->batch);
    ls_shards shards = ls_oracle_shards(step);
    size_t image_bytes = 3 * (size_t)in->height * (size_t)in->width * sizeof(float);
    for (int rank = 0; rank < step->world; rank++) {
        size_t images = (size_t)ls_shards_images(&shards, rank);
        cache_add(&key, step->input[rank], images * image_bytes);
        cache_add(&key, step->target[rank], images * sizeof(int64_t));
    }
    cache_add(&key, step->param, (size_t)net->elements * sizeof(double));
    return key;
}

static int cost_parts(ls_ideal_error_cost *cost, const ls_nettab *net, int64_t span_count,
                      cache_part *part)
{
    part[0] = (cache_part){cost->error2, (size_t)span_count * sizeof(double)};
    part[1] = (cache_part){cost->grad2, (size_t)span_count * sizeof(double)};
    part[2] = (cache_part){cost->branch_rms, (size_t)net->branch_count * sizeof(double)};
    part[3] = (cache_part){cost->stats_error2, 2 * (size_t)net->node_count * sizeof(double)};
    part[4] = (cache_part){&cost->whole_error2, sizeof(double)};
    part[5] = (cache_part){&cost->whole_grad2, sizeof(double)};
    part[6] = (cache_part){&cost->logits_error2, sizeof(double)};
    part[7] = (cache_part){&cost->logits2, sizeof(double)};
    return 8;
}

static void measure_stats(const ls_oracle_step *step, const double *ideal, const double *plain,
                          double *error2)
{
    const ls_nettab *net = step->net;
    /* a damaged file of the cache may have filled it */
    memset(error2, 0, 2 * (size_t)net->node_count * sizeof *error2);
    for (int i = 0; i < net->node_count; i++) {
        int64_t count = (int64_t)ls_oracle_stats_groups(step) * net->node[i].channels;
        for (int k = 0; k < 2 && net->node[i].kind == LS_NETTAB_NORM; k++) {
            ls_ideal_error_span span = {ls_oracle_stats_of(step, i) + k * count, count};
            error2[2 * i + k] = ls_ideal_error_squared(ideal, plain, span);
        }
    }
}

static ls_status measure(const ls_oracle_step *step, const ls_ideal_error_span *spans,
                         int64_t span_count, ls_ideal_error_cost *cost)
{
    const ls_nettab *net = step->net;
    ls_oracle_result ideal = {0}, plain = {0};
    ls_oracle_mode first = {.ideal = true, .keep_input = true, .keep_branches = true};
    LS_TRY(ls_oracle_run(step, &first, &ideal));
    ls_oracle_mode second = {.forced = &ideal.branches,
                             .ideal_input = (const float *const *)ideal.kept_input};
    ls_status status;
    LS_TRY_GOTO(status, ls_oracle_run(step, &second, &plain), free_ideal);
    for (int64_t i = 0; i < span_count; i++) {
        cost->error2[i] = ls_ideal_error_squared(ideal.grad, plain.grad, spans[i]);
        cost->grad2[i] = ls_ideal_error_square(plain.grad, spans[i]);
    }
    ls_ideal_error_span whole = {0, net->elements};
    ls_shards shards = ls_oracle_shards(step);
    ls_ideal_error_span logits = {0, ls_shards_samples(&shards) * net->classes};
    cost->whole_error2 = ls_ideal_error_squared(ideal.grad, plain.grad, whole);
    cost->whole_grad2 = ls_ideal_error_square(plain.grad, whole);
    cost->logits_error2 = ls_ideal_error_squared(ideal.logits, plain.logits, logits);
    cost->logits2 = ls_ideal_error_square(plain.logits, logits);
    memcpy(cost->branch_rms, plain.branch_rms, (size_t)net->branch_count * sizeof(double));
    measure_stats(step, ideal.stats, plain.stats, cost->stats_error2);
    ls_oracle_free(net, &plain);
free_ideal:
    ls_oracle_free(net, &ideal);
    return status;
}

ls_status ls_ideal_error_measure(const ls_oracle_step *step, const ls_ideal_error_span *spans,
                                 int64_t span_count, const char *cache, ls_ideal_error_cost *out)
{
    ls_ideal_error_cost cost = {0};
    cost.error2 = calloc((size_t)span_count + 1, sizeof(double));
    cost.grad2 = calloc((size_t)span_count + 1, sizeof(double));
    cost.branch_rms = calloc((size_t)step->net->branch_count, sizeof(double));
    cost.stats_error2 = calloc(2 * (size_t)step->net->node_count, sizeof(double));
    LS_MEMORY(cost.error2 != NULL && cost.grad2 != NULL && cost.branch_rms != NULL &&
              cost.stats_error2 != NULL);
    double precision[] = {step->level,     (double)step->half,   step->loss_scale,
                          step->predivide, (double)step->reduce, step->reduces_each};
    cache_part part[8];
    int parts = cost_parts(&cost, step->net, span_count, part);
    cache_key key = {{0, 0}};
    if (cache != NULL) {
        key = key_of_data("price", step);
        cache_add(&key, precision, sizeof precision);
        cache_add(&key, step->applied, sizeof step->applied);
        cache_add(&key, spans, (size_t)span_count * sizeof *spans);
    }
    if (cache_load(cache, key, parts, part)) {
        *out = cost;
        return LS_OK;
    }
    ls_status status = measure(step, spans, span_count, &cost);
    if (status != LS_OK) {
        ls_ideal_error_cost_free(&cost);
        return status;
    }
    cache_save(cache, key, parts, part);
    *out = cost;
    return LS_OK;
}

void ls_ideal_error_cost_free(ls_ideal_error_cost *cost)
{
    free(cost->error2);
    free(cost->grad2);
    free(cost->branch_rms);
    free(cost->stats_error2);
    memset(cost, 0, sizeof *cost);
}

static void add_branches(const ls_branch_set *set, cache_key *key)
{
    for (int b = 0; b < set->count; b++) {
        size_t elements = (size_t)set->elements[b];
        if (set->open[b] != NULL) {
            cache_add(key, set->open[b], elements);
        } else {
            cache_add(key, set->index[b], elements * sizeof(int32_t));
        }
    }
}

enum { FORCED_PARTS = 8 };

static void forced_parts(const ls_oracle_step *step, ls_oracle_result *result,
                         cache_part part[FORCED_PARTS])
{
    ls_shards shards = ls_oracle_shards(step);
    size_t logits = (size_t)ls_shards_samples(&shards) * (size_t)step->net->classes;
    const cache_part parts[FORCED_PARTS] = {
        {result->grad, (size_t)step->net->elements * sizeof(double)},
        {result->logits, logits * sizeof(double)},
        {result->loss, (size_t)step->world * sizeof(double)},
        {&result->turned, sizeof result->turned},
        {&result->tie_ratio, sizeof result->tie_ratio},
        {&result->violation_count, sizeof result->violation_count},
        {result->violation, sizeof result->violation},
        {result->stats, (size_t)ls_oracle_stats_count(step) * sizeof(double)}};
    memcpy(part, parts, sizeof parts);
}

ls_status ls_ideal_error_forced(const ls_oracle_step *step, const ls_branch_set *forced,
                                const double *tie_limit, const char *cache, ls_oracle_result *out)
{
    enum { KEPT_BYTES_MAX = 32 << 20 };
    const ls_nettab *net = step->net;
    ls_oracle_mode mode = {.forced = forced, .tie_limit = tie_limit};
    cache_part part[FORCED_PARTS];
    if (cache == NULL || (size_t)net->elements * sizeof(double) > KEPT_BYTES_MAX) {
        return ls_oracle_run(step, &mode, out);
    }
    cache_key key = key_of_data("forced", step);
    add_branches(forced, &key);
    cache_add(&key, tie_limit, (size_t)net->branch_count * sizeof(double));
    ls_oracle_result kept = {0};
    forced_parts(step, &kept, part);
    kept.grad = malloc(part[0].bytes);
    kept.logits = malloc(part[1].bytes);
    kept.loss = malloc(part[2].bytes);
    kept.stats = malloc(part[7].bytes + 1);
    LS_MEMORY(kept.grad != NULL && kept.logits != NULL && kept.loss != NULL && kept.stats != NULL);
    forced_parts(step, &kept, part);
    if (cache_load(cache, key, FORCED_PARTS, part)) {
        *out = kept;
        return LS_OK;
    }
    ls_oracle_free(net, &kept);
    LS_TRY(ls_oracle_run(step, &mode, out));
    forced_parts(step, out, part);
    cache_save(cache, key, FORCED_PARTS, part);
    return LS_OK;
}
