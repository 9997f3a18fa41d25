/* What goes over the wire: the buckets that the trainer says it reduces, against the parameters of
 * its own dump and the types that its options ask for (numerics.md sections 2.4 and 6). */
#include "suite/cases/rows.h"

#include <stdio.h>
#include <string.h>

#include "suite/judge/judges.h"
#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "reference/ddp/buckets.h"
#include "reference/oracle/nettab.h"

/* Bytes of one element as reduced, and the type that has 2. */
struct wire {
    int weight_bytes, norm_bytes;
    const char *half;
};

static bool is_norm(const char *name)
{
    return strstr(name, "bn") != NULL || strstr(name, "downsample.1.") != NULL;
}

static int64_t elements_of(const ls_dumpfile *dump, const char *name)
{
    const ls_dumpfile_entry *entry = ls_dumpfile_findf(dump, "grad/%s", name);
    return entry == NULL ? -1 : entry->count;
}

/* One bucket; returns how many parameters it holds. */
static int judge_bucket(const struct wire *w, const ls_dumpfile *dump, const cJSON *bucket,
                        int number, ls_verdict *out)
{
    int64_t expected = 0;
    int count = 0, element_bytes = 0;
    const cJSON *name, *names = ls_json_get(bucket, "names");
    ls_json_each(name, names) {
        const char *text = cJSON_IsString(name) ? name->valuestring : "";
        int64_t elements = elements_of(dump, text);
        if (elements < 0) {
            ls_verdict_fail(out, "bucket %d holds %s, of which there is no gradient", number, text);
            return count;
        }
        element_bytes = is_norm(text) ? w->norm_bytes : w->weight_bytes;
        expected += elements * element_bytes;
        count++;
    }
    int64_t bytes = ls_json_integer(bucket, "bytes", -1);
    if (bytes != expected) {
        ls_verdict_fail(out, "bucket %d has %lld bytes for %d parameters, expected %lld", number,
                        (long long)bytes, count, (long long)expected);
        if (bytes == 2 * expected ? element_bytes == 2
                                  : 2 * bytes == expected && element_bytes == 4) {
            ls_verdict_cause(out, "gradients are reduced in %s, not in %s",
                             bytes > expected ? "f32" : "half", bytes > expected ? "half" : "f32");
        }
    }
    /* subjects may leave the type out; only it distinguishes two types of 2 bytes */
    const cJSON *type = ls_json_get(bucket, "type");
    const char *wanted = element_bytes == 4 ? "fp32" : w->half;
    if (cJSON_IsString(type) && strcmp(type->valuestring, wanted) != 0) {
        ls_verdict_fail(out, "bucket %d is reduced in %s, expected %s", number, type->valuestring,
                        wanted);
    }
    return count;
}

static void judge_wire(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct wire *w = row->data;
    const cJSON *event = job->rank[0].buckets;
    const cJSON *bucket, *list = ls_json_get(event, "buckets");
    if (!cJSON_IsArray(list)) {
        ls_verdict_set(out, LS_UNSUPPORTED, "rank=0 wrote no buckets event");
        return;
    }
    ls_dumpfile *dump = ls_dumps_open(job, 2, 0, out);
    if (dump == NULL) {
        return;
    }
    int members = 0, gradients = 0, number = 0;
    ls_json_each(bucket, list) {
        members += judge_bucket(w, dump, bucket, number++, out);
    }
    for (int i = 0; i < ls_dumpfile_count(dump); i++) {
        gradients += strncmp(ls_dumpfile_at(dump, i)->name, "grad/", 5) == 0;
    }
    ls_dumpfile_close(dump);
    /* each name was found, so as many names as gradients can only miss one by naming one twice */
    for (const cJSON *a = members == gradients ? list->child : NULL; a != NULL; a = a->next) {
        const cJSON *name, *names = ls_json_get(a, "names");
        ls_json_each(name, names) {
            int seen = 0;
            for (const cJSON *b = list->child; b != NULL; b = b->next) {
                const cJSON *other, *others = ls_json_get(b, "names");
                ls_json_each(other, others) {
                    seen += cJSON_IsString(other) && cJSON_IsString(name) &&
                            strcmp(other->valuestring, name->valuestring) == 0;
                }
            }
            if (seen != 1) {
                ls_verdict_fail(out, "%s is %d times in the buckets",
                                cJSON_IsString(name) ? name->valuestring : "a name", seen);
            }
        }
    }
    if (members != gradients || members == 0) {
        ls_verdict_fail(out, "the buckets hold %d parameters of %d", members, gradients);
    }
    ls_verdict_pass(out, members,
                    "%d parameters in %d buckets, %d bytes a weight, %d of batch norm", members,
                    number, w->weight_bytes, w->norm_bytes);
}

/* ---- where a bucket ends --------------------------------------------------------------------- */

/* Parameters 0, 1, ... become ready in this order; the buckets, separated by '|'. */
static const struct closing {
    const char *id;
    ls_bucket_unit unit;
    int count;
    int64_t elements[8];
    int64_t limit[2];
    int limit_count;
    const char *want;
    const char *types; /* f or h for each parameter; NULL: f32 all */
} closings[] = {
    {"reached", LS_BUCKET_ELEMENTS, 6, {4, 4, 4, 4, 4, 4}, {8}, 1, "0 1|2 3|4 5", NULL},
    {"one-less", LS_BUCKET_ELEMENTS, 6, {4, 4, 4, 4, 4, 4}, {9}, 1, "0 1 2|3 4 5", NULL},
    {"one-more", LS_BUCKET_ELEMENTS, 6, {4, 4, 4, 4, 4, 4}, {7}, 1, "0 1|2 3|4 5", NULL},
    {"alone", LS_BUCKET_ELEMENTS, 4, {8, 3, 5, 8}, {8}, 1, "0|1 2|3", NULL},
    {"each", LS_BUCKET_ELEMENTS, 3, {1, 1, 1}, {1}, 1, "0|1|2", NULL},
    /* reducer.cpp's own: 40 bytes each, limits 40 and 80 */
    {"bytes", LS_BUCKET_BYTES, 4, {10, 10, 10, 10}, {40, 80}, 2, "0|1 2|3", NULL},
    {"bytes-over", LS_BUCKET_BYTES, 4, {100, 200, 100, 50}, {400}, 1, "0|1|2|3", NULL},
    /* torch 1.13's own: each type's first bucket ends at the first limit */
    {"types", LS_BUCKET_BYTES, 6, {10, 20, 10, 20, 10, 20}, {40, 80}, 2, "0|1|2 4|3 5", "fhfhfh"},
    {"types-late",
     LS_BUCKET_BYTES,
     6,
     {10, 10, 10, 10, 10, 10},
     {40, 80},
     2,
     "1|0 2|3 5|4",
     "hfhfhf"},
};

static void judge_closing(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const struct closing *c = row->data;
    ls_bucket_item item[8];
    int order[8];
    for (int i = 0; i < c->count; i++) {
        ls_dtype dtype = c->types != NULL && c->types[i] == 'h' ? LS_F16 : LS_F32;
        item[i] = (ls_bucket_item){dtype, c->elements[i]};
        order[i] = i;
    }
    ls_bucket_layout layout;
    ls_buckets_assign(item, c->count, order, c->unit, c->limit, c->limit_count, &layout);
    char text[64] = "";
    size_t used = 0;
    for (int b = 0; b < layout.bucket_count; b++) {
        for (int k = 0; k < layout.bucket[b].count; k++) {
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%d",
                                     k > 0   ? " "
                                     : b > 0 ? "|"
                                             : "",
                                     layout.member[layout.bucket[b].first + k]);
        }
    }
    ls_buckets_free(&layout);
    if (strcmp(text, c->want) != 0) {
        ls_verdict_fail(out, "buckets %s, expected %s", text, c->want);
    }
    ls_verdict_pass(out, c->count, "buckets %s", text);
}

/* ---- where the limits come from -------------------------------------------------------------- */

static const struct limits {
    const char *id;
    ls_dialect dialect;
    double cap_mb;        /* --bucket-cap-mb; 0: not given */
    int64_t message_size; /* 0: not given */
    ls_bucket_unit unit;
    int count;
    int64_t limit[2];
} limits[] = {
    {"apex", LS_DIALECT_APEX, 0, 0, LS_BUCKET_ELEMENTS, 1, {10000000}},
    {"apex-message", LS_DIALECT_APEX, 0, 5000, LS_BUCKET_ELEMENTS, 1, {5000}},
    {"apex-mb", LS_DIALECT_APEX, 0.5, 0, LS_BUCKET_BYTES, 1, {524288}},
    {"torch", LS_DIALECT_TORCH, 0, 0, LS_BUCKET_BYTES, 2, {1048576, 26214400}},
    {"torch-message", LS_DIALECT_TORCH, 0, 5000, LS_BUCKET_ELEMENTS, 1, {5000}},
    {"torch-large", LS_DIALECT_TORCH, 4, 0, LS_BUCKET_BYTES, 2, {1048576, 4194304}},
    {"torch-small", LS_DIALECT_TORCH, 0.5, 0, LS_BUCKET_BYTES, 2, {524288, 524288}},
};

static void judge_limits(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const struct limits *l = row->data;
    ls_options options = {.dialect = l->dialect,
                          .bucket_cap_mb = l->cap_mb,
                          .message_size = l->message_size,
                          .predivide = 1};
    ls_dialect_rules rules;
    ls_dialect_resolve(&options, 2, &rules);
    const char *unit = rules.unit == LS_BUCKET_BYTES ? "bytes" : "elements";
    if (rules.unit != l->unit || rules.limit_count != l->count) {
        ls_verdict_fail(out, "%d limits in %s, expected %d in %s", rules.limit_count, unit,
                        l->count, l->unit == LS_BUCKET_BYTES ? "bytes" : "elements");
    }
    for (int i = 0; i < l->count && out->code == LS_PASS; i++) {
        if (rules.limit[i] != l->limit[i]) {
            ls_verdict_fail(out, "limit %d is %lld %s, expected %lld", i, (long long)rules.limit[i],
                            unit, (long long)l->limit[i]);
        }
    }
    ls_verdict_pass(out, l->count, "first limit %lld, last %lld %s", (long long)rules.limit[0],
                    (long long)rules.limit[l->count - 1], unit);
}

/* ---- buckets that stay ----------------------------------------------------------------------- */

typedef struct layouts {
    int count, late, delayed; /* events; those from a later step than the first */
    int first_buckets;        /* of the layout of step 1 */
    int64_t last;             /* the step from which the last layout applies */
} layouts;

static ls_status visit_layout(void *opaque, const cJSON *event, int line)
{
    layouts *seen = opaque;
    (void)line;
    seen->count++;
    seen->last = ls_json_integer(event, "iteration", -1);
    seen->late += seen->last != 1;
    if (seen->last == 1) {
        seen->first_buckets = cJSON_GetArraySize(ls_json_get(event, "buckets"));
    }
    seen->delayed += cJSON_IsTrue(ls_json_get(event, "delayed"));
    return LS_OK;
}

static void judge_stays(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    for (int k = 0; k < job->world; k++) {
        layouts seen = {0};
        (void)ls_record_each_event(job, k, "buckets", visit_layout, &seen);
        if (seen.count != 1 || seen.late != 0 || seen.delayed != 0) {
            ls_verdict_fail(out,
                            "rank=%d reports %d layouts, %d of them delayed, %d of later steps; "
                            "expected one from step 1 on",
                            k, seen.count, seen.delayed, seen.late);
        }
    }
    const cJSON *list = ls_json_get(job->rank[0].buckets, "buckets");
    if (cJSON_GetArraySize(list) < 2) {
        ls_verdict_set(out, LS_WEAK, "all parameters are in one bucket");
    }
    ls_verdict_pass(out, job->world, "%d buckets from step 1 on", cJSON_GetArraySize(list));
}

/* ---- buckets that are rebuilt ---------------------------------------------------------------- */

/* Whether parameter `next` is ready after `before`: it belongs to the same layer or to one nearer
 * to the network's input. */
static bool follows(const ls_nettab *net, const char *before, const char *next)
{
    size_t layer = (size_t)(strrchr(next, '.') - next) + 1;
    return strncmp(before, next, layer) == 0 ||
           ls_nettab_find_param(net, next) < ls_nettab_find_param(net, before);
}

static int64_t bytes_of(const ls_nettab *net, const struct wire *w, const char *name)
{
    int at = ls_nettab_find_param(net, name);
    return at < 0 ? -1 : net->param[at].count * (is_norm(name) ? w->norm_bytes : w->weight_bytes);
}

/* The buckets of one type in order: backward order, each closed by the parameter that reaches the
 * limit. Returns how many there are. */
static int judge_order(const cJSON *list, const ls_nettab *net, const struct wire *w, bool norms,
                       int64_t limit, ls_verdict *out)
{
    const char *before = NULL;
    const cJSON *bucket, *member;
    int64_t bytes = limit;
    int count = 0;
    ls_json_each(bucket, list) {
        const cJSON *names = ls_json_get(bucket, "names");
        const char *first = cJSON_GetStringValue(cJSON_GetArrayItem(names, 0));
        if (first == NULL || is_norm(first) != norms) {
            continue;
        }
        if (bytes < limit) {
            ls_verdict_fail(out, "%s opens a bucket, the one before has %lld bytes of %lld", first,
                            (long long)bytes, (long long)limit);
        }
        bytes = 0;
        count++;
        ls_json_each(member, names) {
            const char *name = cJSON_IsString(member) ? member->valuestring : "";
            if (bytes_of(net, w, name) < 0) {
                ls_verdict_fail(out, "a bucket holds '%s', which is no parameter", name);
                return count;
            }
            if (bytes >= limit) {
                ls_verdict_fail(out, "%s is in a bucket that is full", name);
            }
            if (before != NULL && !follows(net, before, name)) {
                ls_verdict_fail(out, "%s comes after %s, whose gradient is ready later", name,
                                before);
                ls_verdict_cause(out, "buckets follow the order of registration, not of arrival");
            }
            bytes += bytes_of(net, w, name);
            before = name;
        }
    }
    return count;
}

static void judge_rebuilt(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_spec *spec = &row->job[0];
    int delayed = strcmp(spec->dialect, "torch") != 0;
    const cJSON *list = ls_json_get(job->rank[0].buckets, "buckets");
    for (int k = 0; k < job->world; k++) {
        layouts seen = {0};
        (void)ls_record_each_event(job, k, "buckets", visit_layout, &seen);
        if (seen.count != 2 || seen.last != 2 || seen.delayed != delayed ||
            seen.first_buckets != 2) {
            ls_verdict_fail(out,
                            "rank=%d reports %d layouts, %d of them delayed, the last from step "
                            "%lld on, %d buckets in step 1; expected 2, %d, 2 and 2",
                            k, seen.count, seen.delayed, (long long)seen.last, seen.first_buckets,
                            delayed);
        }
        const cJSON *mine = ls_json_get(job->rank[k].buckets, "buckets");
        if (!cJSON_Compare(mine, list, true)) {
            ls_verdict_fail(out, "rank=%d reduces other buckets than rank 0", k);
        }
    }
    ls_nettab *net = ls_list_make(1, sizeof *net);
    LS_ASSERT(ls_nettab_build(spec->arch, 10, spec->image_size, spec->image_size, net) == LS_OK);
    int64_t limit = (int64_t)(spec->bucket_mb * 1048576);
    int weights = judge_order(list, net, row->data, false, limit, out);
    int norms = judge_order(list, net, row->data, true, limit, out);
    free(net);
    if (weights < 2) {
        ls_verdict_set(out, LS_WEAK, "all weights are in one bucket");
    }
    ls_verdict_pass(out, weights + norms,
                    "%d buckets of weights and %d of batch norms, in backward order", weights,
                    norms);
}

#define WIRE(weight, norm, half) \
    &(const struct wire)         \
    {                            \
        weight, norm, half       \
    }

static const ls_row rows[] = {
    {"wire.o[0|1].w2", "D7", judge_wire, "O$1 w2 b0.1 dump=1,2", WIRE(4, 4, "fp16")},
    {"wire.o2.w2", "D7", judge_wire, "O2 w2 b0.1 dump=1,2", WIRE(2, 4, "fp16")},
    {"wire.o3.w2", "D7", judge_wire, "O3 w2 b0.1 dump=1,2", WIRE(2, 2, "fp16")},
    {"wire.allreduce-fp32.o[2|3].w2", "D7", judge_wire, "O$1 w2 b0.1 dump=1,2 --allreduce-fp32",
     WIRE(4, 4, "fp16")},
    /* at O2 batch norm's gradients are f32 */
    {"wire.compress-fp16.o[0|2].w2", "D7", judge_wire, "O$1 w2 b0.1 dump=1,2 --compress=fp16",
     WIRE(2, 2, "fp16")},
    {"wire.comm-hook.[fp16.o0=O0|fp16.o2=O2].w2", "D7", judge_wire,
     "$1 w2 b0.1 dump=1,2 --comm-hook=fp16_compress", WIRE(2, 2, "fp16")},
    {"wire.comm-hook.bf16.o1.w2", "D7", judge_wire, "O1 w2 b0.1 dump=1,2 --comm-hook=bf16_compress",
     WIRE(2, 2, "bf16")},
    {"wire.comm-hook.noop.o2.w2", "D7", judge_wire, "O2 w2 b0.1 dump=1,2 --comm-hook=noop",
     WIRE(2, 4, "fp16")},
    {"wire.compress-bf16.o1.w2", "D7", judge_wire, "O1 w2 b0.1 dump=1,2 --compress=bf16",
     WIRE(2, 2, "bf16")},
    {"wire.stays.[apex=|torch].o0.w2", "D10", judge_stays, "O0 w2 b0.1 $1"},
    /* only without --deterministic are the buckets rebuilt */
    {"wire.rebuilt.[apex=|torch].o2.w3", "D12", judge_rebuilt,
     "resnet8 O2 w3 b0.05 undetermined steps=3 $1", WIRE(2, 4, "fp16")},
};

void ls_wire_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
    LS_ROWS_EACH(list, settings, &((ls_row){.requirement = "D8", .judge = judge_closing}),
                 "wire.closing.%s", closings);
    LS_ROWS_EACH(list, settings, &((ls_row){.requirement = "D11", .judge = judge_limits}),
                 "wire.limits.%s", limits);
}
