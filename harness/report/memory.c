#include "memory.h"

#include <math.h>
#include <string.h>

#include "kernels/optimizers.h"

/* The trainer's own table of its allocations. */
static void read_table(const cJSON *memory, double kind[LS_REPORT_KINDS])
{
    static const struct {
        const char *name;
        ls_report_kind kind;
    } PARTS[] = {{"parameters", LS_REPORT_PARAMETERS},
                 {"masters", LS_REPORT_MASTERS},
                 {"moments", LS_REPORT_MOMENTS},
                 {"gradients", LS_REPORT_GRADIENTS},
                 {"reduction_staging", LS_REPORT_GRADIENTS},
                 {"accumulators", LS_REPORT_GRADIENTS},
                 {"unscaled_gradients", LS_REPORT_GRADIENTS},
                 {"buffers", LS_REPORT_WORKSPACE},
                 {"state", LS_REPORT_WORKSPACE}};
    for (int i = LS_REPORT_PARAMETERS; i <= LS_REPORT_GRADIENTS; i++) {
        kind[i] = 0;
    }
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        kind[PARTS[i].kind] += ls_json_number(memory, PARTS[i].name, 0);
    }
}

/* numerics.md table 1: masters (O2) and moments are f32. */
static void from_options(const cJSON *start, double kind[LS_REPORT_KINDS])
{
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(start, "options");
    const char *optimizer = ls_json_string(options, "optimizer", "");
    double elements = ls_json_number(start, "param_elements", NAN);
    bool masters = strcmp(ls_json_string(options, "opt-level", ""), "O2") == 0;
    ls_optimizer_kind found = ls_optimizers_find(optimizer);
    kind[LS_REPORT_MOMENTS] = NAN;
    if (found < LS_OPTIMIZER_KINDS) {
        double momentum = ls_json_number(options, "momentum", 0);
        kind[LS_REPORT_MOMENTS] = 4 * ls_optimizers_moments(found, momentum) * elements;
    }
    kind[LS_REPORT_MASTERS] = masters ? 4 * elements : 0 * elements;
}

double ls_report_memory(const ls_record_rank *rank, double kind[LS_REPORT_KINDS])
{
    const cJSON *memory = cJSON_GetObjectItemCaseSensitive(rank->start, "memory");
    for (int i = 0; i < LS_REPORT_KINDS; i++) {
        kind[i] = NAN;
    }
    if (rank->start != NULL) {
        kind[LS_REPORT_ACTIVATIONS] = ls_json_number(rank->start, "activation_bytes", NAN);
        kind[LS_REPORT_WORKSPACE] = ls_json_number(rank->start, "workspace_bytes", NAN);
        from_options(rank->start, kind);
    }
    if (cJSON_IsObject(memory)) {
        read_table(memory, kind);
    } else if (isfinite(kind[LS_REPORT_ACTIVATIONS])) {
        /* gradients are in the buckets; parameters have the same type at every level */
        kind[LS_REPORT_GRADIENTS] = kind[LS_REPORT_PARAMETERS] = rank->reduced_bytes;
    }
    double sum = 0;
    for (int i = 0; i < LS_REPORT_KINDS; i++) {
        sum += kind[i];
    }
    return sum;
}
