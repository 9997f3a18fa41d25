#include "figures.h"

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
    const cJSON *options = ls_json_get(start, "options");
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
    const cJSON *memory = ls_json_get(rank->start, "memory");
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

/* ---- the largest batch ----------------------------------------------------------------------- */

/* Of rank 0: what it reports in all, and its activations. */
static double reported_bytes(const ls_report_job *job)
{
    double kind[LS_REPORT_KINDS];
    return ls_report_memory(&job->record->rank[0], kind);
}

static double activation_bytes(const ls_report_job *job)
{
    double kind[LS_REPORT_KINDS];
    ls_report_memory(&job->record->rank[0], kind);
    return kind[LS_REPORT_ACTIVATIONS];
}

/* A job that dumps nothing for the judge: what its ranks held beyond the sizes they report is the
 * program, its libraries and the loader. */
static const ls_report_job *undumped(const ls_report_run *run)
{
    ls_report_each(job, run, LS_ROLE_COUNT) {
        if ((job->spec->role == LS_ROLE_DDP_WORLD1 || job->spec->role == LS_ROLE_NO_COMM) &&
            job->record->world > 0 && ls_report_job_peak_bytes(job) > reported_bytes(job)) {
            return job;
        }
    }
    return NULL;
}

/* f32 images: one that is computed on, two that the loader has ready. */
static double image_bytes(const ls_report_job *job)
{
    double input = 3.0 * job->spec->image_size * job->spec->image_size * (double)sizeof(float);
    return activation_bytes(job) / job->spec->batch_size + 3 * input;
}

static double fixed_bytes(const ls_report_job *job, const ls_report_job *plain)
{
    return reported_bytes(job) - activation_bytes(job) + ls_report_job_peak_bytes(plain) -
           reported_bytes(plain);
}

bool ls_report_memory_largest_batch(const ls_report_run *run, const ls_report_job *job,
                                    ls_report_batch *out)
{
    const cJSON *machine = ls_json_get(run->record, "machine");
    double room = ls_json_number(machine, "memory_available_bytes", NAN) / job->spec->world;
    const ls_report_job *plain = undumped(run);
    if (plain == NULL || job->record->world == 0 || job->spec->batch_size < 1) {
        return false;
    }
    *out = (ls_report_batch){.job = job,
                             .fixed_bytes = fixed_bytes(job, plain),
                             .image_bytes = image_bytes(job),
                             .room_bytes = room};
    out->largest = floor((room - out->fixed_bytes) / out->image_bytes);
    return isfinite(out->largest) && out->largest >= 1;
}

bool ls_report_memory_check(const ls_report_run *run, const ls_report_job **larger,
                            double *predicted, double *seen)
{
    ls_report_each(small, run, LS_ROLE_DDP_WORLD1) {
        ls_report_each(big, run, LS_ROLE_STRONG_SCALING) {
            if (ls_report_job_alike(big, small, LS_ALIKE_WORLD)) {
                *larger = big;
                *predicted = fixed_bytes(small, small) + image_bytes(small) * big->spec->batch_size;
                *seen = ls_report_job_peak_bytes(big);
                return isfinite(*predicted) && isfinite(*seen);
            }
        }
    }
    return false;
}
