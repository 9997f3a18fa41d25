#include "spec.h"

#include <string.h>

#include "harness/hosts/hosts.h"
#include "kernels/core/json.h"
#include "kernels/core/plain.h"

static const struct role {
    const char *name;
    const char *old_name; /* in schema 1 of job.json and summary.json; NULL: the same */
    bool timed, has_rate, baseline;
} roles[LS_ROLE_COUNT] = {
    [LS_ROLE_EVIDENCE] = {"evidence", NULL, false, false, false},
    [LS_ROLE_THROUGHPUT] = {"throughput", NULL, true, true, false},
    [LS_ROLE_PHASES] = {"phases", NULL, false, false, false},
    [LS_ROLE_REFERENCE] = {"reference", NULL, false, false, false},
    [LS_ROLE_NO_COMM] = {"no_comm", "twin", true, false, true},
    [LS_ROLE_DDP_WORLD1] = {"ddp_world1", "self", true, true, true},
    [LS_ROLE_STRONG_SCALING] = {"strong_scaling", "strong", true, true, true},
    [LS_ROLE_LOADER] = {"loader", NULL, true, true, true},
    [LS_ROLE_UNFUSED] = {"unfused", NULL, true, true, true},
    [LS_ROLE_WAY] = {"way", NULL, true, true, true},
    [LS_ROLE_CURVES] = {"curves", NULL, false, false, true},
    [LS_ROLE_SDC] = {"sdc", NULL, false, false, true},
    [LS_ROLE_UNKNOWN] = {"", NULL, false, false, false},
};

static const char *const way_names[LS_WAYS] = {
    [LS_WAY_NONE] = "",
    [LS_WAY_DDP] = "ddp",
    [LS_WAY_DDP_TORCH] = "ddp-torch",
    [LS_WAY_ONE_PROCESS] = "one-process",
    [LS_WAY_REPLICAS] = "data-parallel",
    [LS_WAY_STAGES] = "stages",
    [LS_WAY_PIPELINE] = "pipeline",
    [LS_WAY_SGD_UNFUSED] = "sgd-unfused",
    [LS_WAY_ADAM] = "adam",
    [LS_WAY_ADAM_UNFUSED] = "adam-unfused",
};

static const char *const sweep_names[] = {"level", "bucket", "world", "nodes"}; /* by bit */

enum { SWEEPS = sizeof sweep_names / sizeof *sweep_names };

/* Of what a file may say: beyond any job, and so that products and sums of two fit an int. */
enum { PIXELS_MAX = 1 << 15, COUNT_MAX = 1 << 20, STEPS_MAX = 1 << 29 };

const char *ls_spec_level_name(int level)
{
    static const char *const names[] = {"", "O0", "O1", "O2", "O3"};
    return names[1 + level];
}

bool ls_spec_is_simulated(const ls_spec *spec)
{
    return spec->nodes > 1 && !spec->real_nodes;
}

const char *ls_spec_role_name(ls_role role)
{
    return roles[role].name;
}

ls_role ls_spec_role_of(const char *name)
{
    for (int i = 0; i < LS_ROLE_COUNT; i++) {
        const char *old_name = roles[i].old_name;
        if (strcmp(roles[i].name, name) == 0 || (old_name != NULL && strcmp(old_name, name) == 0)) {
            return (ls_role)i;
        }
    }
    return LS_ROLE_UNKNOWN;
}

bool ls_spec_is_timed(const ls_spec *spec)
{
    return roles[spec->role].timed;
}

bool ls_spec_has_rate(const ls_spec *spec)
{
    return roles[spec->role].has_rate;
}

bool ls_spec_is_baseline(const ls_spec *spec)
{
    return roles[spec->role].baseline;
}

const char *ls_spec_way_name(ls_way way)
{
    return way_names[way];
}

bool ls_spec_is_team(const ls_spec *spec)
{
    return spec->way == LS_WAY_REPLICAS || spec->way == LS_WAY_STAGES ||
           spec->way == LS_WAY_PIPELINE;
}

cJSON *ls_spec_facts(const ls_spec *spec)
{
    cJSON *facts = cJSON_CreateObject();
    LS_MEMORY(facts != NULL);
    cJSON_AddStringToObject(facts, "role", ls_spec_role_name(spec->role));
    cJSON_AddStringToObject(facts, "arch", spec->arch);
    cJSON_AddNumberToObject(facts, "image_size", spec->image_size);
    cJSON_AddNumberToObject(facts, "batch_size", spec->batch_size);
    if (spec->num_classes > 0 && spec->num_classes != LS_SPEC_CLASSES) {
        cJSON_AddNumberToObject(facts, "num_classes", spec->num_classes);
    }
    if (spec->level >= 0) {
        cJSON_AddStringToObject(facts, "level", ls_spec_level_name(spec->level));
    }
    cJSON_AddStringToObject(facts, "half", spec->half);
    cJSON_AddNumberToObject(facts, "world", spec->world);
    cJSON_AddNumberToObject(facts, "nodes", spec->nodes);
    cJSON_AddBoolToObject(facts, "simulated", ls_spec_is_simulated(spec));
    if (spec->bucket_mb >= 0) {
        cJSON_AddNumberToObject(facts, "bucket_mb", spec->bucket_mb);
    }
    cJSON_AddStringToObject(facts, "dialect", spec->dialect);
    cJSON_AddBoolToObject(facts, "sync_bn", spec->sync_bn);
    cJSON_AddNumberToObject(facts, "accumulate", spec->accumulate);
    cJSON_AddNumberToObject(facts, "threads", spec->threads);
    if (spec->resident > 0) {
        cJSON_AddNumberToObject(facts, "resident", spec->resident);
    }
    if (spec->fuse) {
        cJSON_AddTrueToObject(facts, "fuse");
    }
    if (spec->way != LS_WAY_NONE) {
        cJSON_AddStringToObject(facts, "way", ls_spec_way_name(spec->way));
        cJSON_AddNumberToObject(facts, "round", spec->repeat + 1);
    }
    cJSON_AddNumberToObject(facts, "warmup_steps", spec->warmup_steps);
    cJSON_AddNumberToObject(facts, "steps", spec->steps);
    cJSON *sweep = cJSON_AddArrayToObject(facts, "sweep");
    for (int i = 0; i < SWEEPS; i++) {
        if ((spec->sweep & (1u << i)) != 0) {
            cJSON_AddItemToArray(sweep, cJSON_CreateString(sweep_names[i]));
        }
    }
    return facts;
}

static void read_text(const cJSON *facts, const char *name, const char *fallback, char *out,
                      size_t bytes)
{
    ls_plain_copy(out, bytes, ls_json_string(facts, name, fallback));
}

static unsigned read_sweep(const cJSON *list)
{
    unsigned sweep = 0;
    const cJSON *entry;
    ls_json_each(entry, list) {
        for (int i = 0; i < SWEEPS; i++) {
            bool same = cJSON_IsString(entry) && strcmp(entry->valuestring, sweep_names[i]) == 0;
            sweep |= same ? 1u << i : 0;
        }
    }
    return sweep;
}

/* A number outside 0..most counts as missing. */
static int count_of(const cJSON *facts, const char *name, int most, int fallback)
{
    int value = ls_json_int(facts, name, fallback);
    return value >= 0 && value <= most ? value : fallback;
}

void ls_spec_read(const cJSON *facts, ls_spec *out)
{
    memset(out, 0, sizeof *out);
    out->role = ls_spec_role_of(ls_json_string(facts, "role", ""));
    read_text(facts, "arch", "", out->arch, sizeof out->arch);
    out->image_size = count_of(facts, "image_size", PIXELS_MAX, 0);
    out->batch_size = count_of(facts, "batch_size", COUNT_MAX, 0);
    out->num_classes = count_of(facts, "num_classes", COUNT_MAX, LS_SPEC_CLASSES);
    const char *level = ls_json_string(facts, "level", "");
    bool known = level[0] == 'O' && level[1] >= '0' && level[1] <= '3' && level[2] == '\0';
    out->level = known ? level[1] - '0' : -1;
    read_text(facts, "half", "fp16", out->half, sizeof out->half);
    out->world = count_of(facts, "world", LS_HOSTS_RANKS_MAX, 0);
    out->nodes = count_of(facts, "nodes", LS_HOSTS_RANKS_MAX, 1);
    out->real_nodes = out->nodes > 1 && !ls_json_bool(facts, "simulated", false);
    out->bucket_mb = ls_json_number(facts, "bucket_mb", LS_BUCKET_OWN);
    read_text(facts, "dialect", "apex", out->dialect, sizeof out->dialect);
    out->sync_bn = ls_json_bool(facts, "sync_bn", false);
    out->accumulate = count_of(facts, "accumulate", COUNT_MAX, 1);
    out->threads = count_of(facts, "threads", COUNT_MAX, 0);
    out->resident = count_of(facts, "resident", COUNT_MAX, 0);
    out->fuse = ls_json_bool(facts, "fuse", false);
    const char *way = ls_json_string(facts, "way", "");
    for (int i = 1; i < LS_WAYS; i++) {
        out->way = strcmp(way, way_names[i]) == 0 ? (ls_way)i : out->way;
    }
    out->repeat = out->way == LS_WAY_NONE ? 0 : count_of(facts, "round", COUNT_MAX, 1) - 1;
    out->warmup_steps = count_of(facts, "warmup_steps", STEPS_MAX, 0);
    out->steps = count_of(facts, "steps", STEPS_MAX, 0);
    out->sweep = read_sweep(ls_json_get(facts, "sweep"));
    out->kill_rank = -1;
}
