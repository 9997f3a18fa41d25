#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <stdlib.h>

#include "bounds_internal.h"
#include "kernels/core/cores.h"
#include "kernels/core/path.h"
#include "harness/run/job.h"
#include "harness/machine/machine.h"
#include "kernels/core/text.h"
#include "kernels/core/log.h"
#include "suite/run/command_line.h"
#include "commands.h"
#include "suite/cases/rows.h"
#include "kernels/core/file.h"
#include "reference/files/safetensors.h"

/* One kind of step. Networks with many products are judged on every tenth seed only, because the
 * oracle's time is proportional to the products. */
static const struct setting {
    const char *name, *job; /* rows.h */
    int every;
} setting[] = {
    /* resnet20 has 1.1 MB of f32 gradients; torch's own first bucket takes 1 MB of them */
    {"resnet20.o0", "resnet20 O0 b0.1", 1},
    {"resnet20.o1", "resnet20 O1 b0.1", 1},
    {"resnet20.o2", "resnet20 O2 b0.1", 1},
    {"resnet20.o3", "resnet20 O3 b0.1", 1},
    {"resnet8.o0.w2", "resnet8 O0 w2 torch", 1},
    {"resnet8.o2.w2", "resnet8 O2 w2 b0.1", 1},
    {"resnet20.o2.w2.bf16", "resnet20 O2 w2 b0.1 bf16", 1},
    {"resnet20.o0.w2.sync", "resnet20 O0 w2 b0.1 sync", 1},
    {"resnet20.o2.w2.sync", "resnet20 O2 w2 torch sync", 1},
    {"resnet20.o0.w3", "resnet20 O0 w3 b0.1", 2},
    {"resnet20.o1.w3", "resnet20 O1 w3 torch", 2},
    {"resnet20.o2.w3", "resnet20 O2 w3 torch", 2},
    {"resnet20.o3.w3", "resnet20 O3 w3 b0.1", 2},
    {"resnet18.o0", "resnet18 O0 b0.1 batch=32 image=32", 10},
    {"resnet18.o1.w2", "resnet18 O1 w2 torch batch=32 image=32", 20},
    {"resnet18.o2", "resnet18 O2 b0.1 batch=32 image=32", 10},
    {"resnet50.o0", "resnet50 O0 b0.1 batch=32 image=32", 20},
    {"resnet50.o2", "resnet50 O2 b0.1 batch=32 image=32", 20},
};

enum { SETTINGS = sizeof setting / sizeof *setting, RANKS_MAX = 3, SEEDS_MOST = 1000000 };

typedef struct bounds {
    const char *seeds, *first_seed, *out, *only, *planted;
    char folder[512];
    ls_matrix_site site;
    ls_bounds_rows rows;
} bounds;

static bool is_known(const bounds *b, const struct setting *s, uint64_t seed, const char *plant)
{
    for (int i = 0; i < b->rows.count; i++) {
        const ls_bounds_row *row = &b->rows.row[i];
        if (row->seed == seed && strcmp(row->setting, s->name) == 0 &&
            strcmp(row->plant, plant) == 0) {
            return true;
        }
    }
    return false;
}

static ls_status compare(const bounds *b, const ls_spec *spec, const char *const *path,
                         ls_bounds_row *row)
{
    static const char *const codes[] = {"PASS", "WEAK", "FAIL"};
    LS_TEXT(cache, 600, "%s/oracle", b->folder);
    ls_compare_facts facts = {.arch = spec->arch,
                              .half = spec->half,
                              .sync_bn = spec->sync_bn,
                              .dialect_torch = strcmp(spec->dialect, "torch") == 0,
                              .fused = spec->fuse || strstr(spec->extra, "--fuse") != NULL,
                              .cache = cache};
    ls_compare_verdict verdict;
    LS_TRY(ls_compare_step(&facts, spec->world, path, NULL, &verdict));
    memcpy(row->value, verdict.ratio, sizeof verdict.ratio);
    row->value[LS_BOUNDS_LOGITS] = verdict.logits_ratio;
    row->value[LS_BOUNDS_TIE] = verdict.tie_ratio;
    row->value[LS_BOUNDS_REDUCE] = verdict.reduce_ratio;
    row->value[LS_BOUNDS_NEXT] = verdict.next_ratio;
    row->value[LS_BOUNDS_BUFFER] = verdict.buffer_ratio;
    row->error = verdict.error;
    row->ideal = verdict.ideal;
    ls_text_put(row->verdict, sizeof row->verdict, "%s", codes[verdict.code]);
    if (verdict.code != LS_COMPARE_PASS && strcmp(row->plant, "none") == 0) {
        printf("%s seed %llu: %s %s\n", row->setting, (unsigned long long)row->seed, row->verdict,
               verdict.evidence);
    }
    return LS_OK;
}

static ls_status add_row(bounds *b, const ls_bounds_row *row)
{
    LS_TEXT(path, 600, "%s/steps.tsv", b->folder);
    return ls_bounds_rows_append(path, row);
}

/* Judges the step as it is and, if `planted`, with each fault. */
static ls_status judge_job(bounds *b, const struct setting *s, const ls_spec *spec,
                           const char *directory, bool planted)
{
    char clean[RANKS_MAX][700], faulty[RANKS_MAX][700];
    const char *path[RANKS_MAX], *copy[RANKS_MAX];
    for (int k = 0; k < spec->world; k++) {
        ls_text_put(clean[k], sizeof clean[k], "%s/dump/step000002.rank%d.safetensors", directory,
                    k);
        ls_text_put(faulty[k], sizeof faulty[k], "%s/planted.rank%d.safetensors", directory, k);
        path[k] = clean[k];
        copy[k] = faulty[k];
    }
    ls_bounds_row row = {.level = spec->level, .seed = spec->seed, .plant = "none"};
    ls_text_put(row.setting, sizeof row.setting, "%s", s->name);
    if (!is_known(b, s, spec->seed, "none")) {
        LS_TRY(compare(b, spec, path, &row));
        LS_TRY(add_row(b, &row));
    }
    for (int p = 0; p < ls_bounds_plant_count && planted; p++) {
        const ls_bounds_plant *plant = &ls_bounds_plants[p];
        if (is_known(b, s, spec->seed, plant->name)) {
            continue;
        }
        ls_status status = ls_bounds_plant_write(plant, spec->world, path, copy);
        if (status == LS_ERR_UNSUPPORTED) {
            continue;
        }
        LS_TRY(status);
        ls_text_put(row.plant, sizeof row.plant, "%s", plant->name);
        LS_TRY(compare(b, spec, copy, &row));
        LS_TRY(add_row(b, &row));
    }
    return LS_OK;
}

static ls_status run_step(bounds *b, const struct setting *s, uint64_t seed, bool planted)
{
    bool faults_known = true;
    for (int p = 0; p < ls_bounds_plant_count && planted; p++) {
        faults_known = faults_known && is_known(b, s, seed, ls_bounds_plants[p].name);
    }
    if (is_known(b, s, seed, "none") && faults_known) {
        return LS_OK;
    }
    LS_TEXT(text, 80, "%s dump=1,2", s->job);
    ls_spec spec = ls_rows_spec(&(ls_case_settings){.seed = seed}, text);
    ls_job job;
    LS_TRY(ls_matrix_job(&spec, &b->site, &job));
    ls_path_remove_tree(job.directory);
    ls_outcome outcome = {0};
    bool resumed = false;
    ls_status status = ls_job_run(&job, NULL, NULL, &outcome, &resumed);
    if (status == LS_OK && outcome.state != LS_OUTCOME_DONE) {
        status = ls_log_fail(LS_ERR_CHECK, "%s seed %llu failed: see %s", s->name,
                             (unsigned long long)seed, job.directory);
    }
    LS_THEN(status, judge_job(b, s, &spec, job.directory, planted));
    if (status == LS_OK) {
        LS_TEXT(cache, 600, "%s/oracle", b->folder);
        ls_path_remove_tree(job.directory);
        ls_path_remove_tree(cache);
    }
    ls_outcome_free(&outcome);
    ls_job_free(&job);
    return status;
}

static ls_status run_all(bounds *b, uint64_t first, int seeds, int planted)
{
    for (int i = 0; i < seeds; i++) {
        for (int k = 0; k < SETTINGS; k++) {
            const struct setting *s = &setting[k];
            bool wanted = b->only == NULL || strcmp(b->only, s->name) == 0;
            if (wanted && i % s->every == 0) {
                LS_TRY(run_step(b, s, first + (uint64_t)i, i < planted));
            }
        }
        printf("%d of %d seeds\n", i + 1, seeds);
        fflush(stdout);
    }
    return LS_OK;
}

static ls_status check_only(const char *only)
{
    const char *names[SETTINGS];
    for (int k = 0; k < SETTINGS; k++) {
        names[k] = setting[k].name;
        if (only == NULL || strcmp(only, setting[k].name) == 0) {
            return LS_OK;
        }
    }
    char all[400] = "allowed: ", hint[400];
    for (int k = 0; k < SETTINGS; k++) {
        ls_text_add(all, sizeof all, "%s%s", k == 0 ? "" : ", ", names[k]);
    }
    ls_text_suggest(hint, sizeof hint, only, names, SETTINGS, all);
    return ls_log_fail(LS_ERR_USAGE, "--only '%s': %s", only, hint);
}

/* Rows are added to those of earlier runs; without these the tables would lose them. */
static ls_status check_rows(const char *folder)
{
    LS_TEXT(rows, 600, "%s/steps.tsv", folder);
    LS_TEXT(table, 600, "%s/bounds.tsv", folder);
    if (access(table, F_OK) == 0 && access(rows, F_OK) != 0) {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s holds bounds.tsv without steps.tsv, of which it was made: put that "
                           "there (results/bounds/steps.tar.xz has the committed one) or name "
                           "another folder by --out",
                           folder);
    }
    return LS_OK;
}

static void print_counts(const ls_bounds_rows *rows)
{
    int steps = 0, alarms = 0, planted = 0, silent = 0;
    for (int i = 0; i < rows->count; i++) {
        bool clean = strcmp(rows->row[i].plant, "none") == 0;
        bool passed = strcmp(rows->row[i].verdict, "PASS") == 0;
        steps += clean;
        alarms += clean && !passed;
        planted += !clean;
        silent += !clean && passed;
    }
    printf("%d correct steps judged, %d of them not PASS; %d steps with a planted fault, %d of "
           "them PASS\n",
           steps, alarms, planted, silent);
}

int ls_bounds_main(int count, char **argument)
{
    bounds b = {.seeds = "100", .first_seed = "1000", .out = "results/bounds", .planted = "3"};
    const ls_command_option options[] = {
        {"--seeds", &b.seeds, NULL, NULL, "fresh seeds of each setting (100)"},
        {"--first-seed", &b.first_seed, NULL, NULL, "the first of them (1000)"},
        {"--planted", &b.planted, NULL, NULL,
         "seeds that are also judged with each planted fault (3)"},
        {"--only", &b.only, NULL, NULL, "one setting, such as resnet20.o2"},
        {"--out", &b.out, NULL, NULL, "folder; appends to an existing steps.tsv (results/bounds)"},
    };
    LS_TRY(ls_command_parse("bounds", options, 5, &count, argument));
    int64_t seeds, planted;
    uint64_t first_seed;
    LS_TRY(ls_command_no_operands("bounds", count, argument, "use --only SETTING"));
    LS_TRY(ls_command_whole("--seeds", b.seeds, 1, SEEDS_MOST, &seeds));
    LS_TRY(ls_command_whole("--planted", b.planted, 0, SEEDS_MOST, &planted));
    LS_TRY(ls_command_seed("--first-seed", b.first_seed, &first_seed));
    LS_TRY(check_only(b.only));
    ls_command_absolute(b.out, b.folder, sizeof b.folder);
    LS_TRY(ls_path_make_chosen(b.folder, LS_COMMAND_OUT_HINT));
    LS_TRY(check_rows(b.folder));
    LS_TEXT(path, 600, "%s/steps.tsv", b.folder);
    b.site = (ls_matrix_site){.run_directory = b.folder,
                              .device = "cpu",
                              .cores = ls_cores_usable(),
                              .half_emulated = true};
    ls_status status = ls_bounds_rows_read(path, &b.rows);
    LS_THEN(status, run_all(&b, first_seed, (int)seeds, (int)planted));
    ls_bounds_rows_free(&b.rows);
    LS_THEN(status, ls_bounds_rows_read(path, &b.rows));
    if (status == LS_OK && b.rows.count == 0) {
        status = ls_log_fail(LS_ERR_INFRA, "%s holds no step: nothing was judged", path);
    }
    LS_THEN(status, ls_bounds_table_write(&b.rows, b.folder));
    print_counts(&b.rows);
    ls_bounds_rows_free(&b.rows);
    return (int)status;
}

#define CONV "layer2.0.conv1.weight" /* in every network, tens of blocks large */

const ls_bounds_plant ls_bounds_plants[] = {
    {"all-doubled", LS_COMPARE_WHOLE, NULL, false},
    {"tensor-doubled", LS_COMPARE_TENSOR, "grad/" CONV, false},
    {"tensor-plus-10%", LS_COMPARE_TENSOR, "grad/" CONV, true},
    {"tensor-not-reduced", LS_COMPARE_TENSOR, "grad/" CONV, false},
    {"bias-zeroed", LS_COMPARE_SMALL, "grad/fc.bias", false},
    {"64-zeroed", LS_COMPARE_BLOCK, "grad/" CONV, false},
    {"last-8-zeroed", LS_COMPARE_EDGE, "grad/" CONV, false},
    {"logits-plus-10%", LS_BOUNDS_LOGITS, "logits", false},
    {"64-branches-turned", LS_BOUNDS_TIE, "branch/000", false},
    {"element-off", LS_BOUNDS_REDUCE, "grad/" CONV, false},
    {"step-off", LS_BOUNDS_NEXT, "next/" CONV, false},
    {"statistics-plus-10%", LS_BOUNDS_BUFFER, "buffer/bn1.running_mean", false},
};
const int ls_bounds_plant_count = sizeof ls_bounds_plants / sizeof *ls_bounds_plants;

static bool is(const ls_bounds_plant *plant, const char *name)
{
    return strcmp(plant->name, name) == 0;
}

/* Changes `value`, the tensor's bytes in the copy. `local`: rank 0's gradient before reduction. */
static void change(const ls_bounds_plant *plant, const ls_safetensors_entry *entry,
                   const ls_safetensors_entry *local, void *value)
{
    float *f = value;
    int64_t count = entry->bytes / (int64_t)sizeof *f;
    if (is(plant, "64-branches-turned")) {
        for (int64_t i = 0; i < 8 && i < entry->bytes; i++) {
            ((uint8_t *)value)[i] ^= 0xff;
        }
    } else if (is(plant, "step-off") && entry->dtype != LS_F32) {
        ((uint16_t *)value)[5] ^= 1u << 5; /* 32 units in the last place */
    } else if (is(plant, "step-off") || is(plant, "element-off")) {
        f[5] *= 1 + 0x1p-4f;
    } else if (is(plant, "tensor-not-reduced")) {
        memcpy(value, local->data, (size_t)entry->bytes);
    } else if (is(plant, "last-8-zeroed")) {
        memset(f + count - 8, 0, 8 * sizeof *f);
    } else if (is(plant, "64-zeroed")) {
        memset(f + 128, 0, 64 * sizeof *f);
    } else if (entry->dtype == LS_F16 || entry->dtype == LS_BF16) {
        for (int64_t i = 0; i < entry->bytes / 2; i++) { /* half buffers of O3: about as much */
            ((uint16_t *)value)[i] ^= entry->dtype == LS_F16 ? 1u << 7 : 1u << 4;
        }
    } else {
        float factor = is(plant, "bias-zeroed") ? 0 : strstr(plant->name, "10%") != NULL ? 1.1f : 2;
        for (int64_t i = 0; i < count; i++) {
            f[i] *= factor;
        }
    }
}

/* The data follows the header without gaps, as the format requires, and begins with the lowest
 * entry. */
static const char *data_begin(const ls_safetensors *file)
{
    const char *lowest = ls_safetensors_at(file, 0)->data;
    for (int i = 1; i < ls_safetensors_count(file); i++) {
        const char *data = ls_safetensors_at(file, i)->data;
        lowest = data < lowest ? data : lowest;
    }
    return lowest;
}

static ls_status plant_file(const ls_bounds_plant *plant, const ls_safetensors *first,
                            const char *path, const char *copy, int *changed)
{
    ls_safetensors *file = NULL;
    char *data = NULL;
    size_t bytes = 0;
    uint64_t header = 0;
    LS_TRY(ls_safetensors_open(path, &file));
    ls_status status;
    LS_TRY_GOTO(status, ls_file_read(path, LS_FILE_TEXT_BYTES, &data, &bytes), close_file);
    memcpy(&header, data, sizeof header);
    for (int i = 0; i < ls_safetensors_count(file); i++) {
        const ls_safetensors_entry *entry = ls_safetensors_at(file, i);
        bool chosen = plant->tensor == NULL ? strncmp(entry->name, "grad/", 5) == 0
                                            : strcmp(entry->name, plant->tensor) == 0;
        if (chosen) {
            ptrdiff_t at = (const char *)entry->data - data_begin(file);
            ++*changed;
            change(plant, entry, ls_safetensors_find(first, "local/" CONV),
                   data + sizeof header + header + at);
        }
    }
    FILE *out = ls_file_create(copy);
    if (out != NULL) {
        (void)fwrite(data, 1, bytes, out);
    }
    status = out == NULL ? LS_ERR_INFRA : ls_file_close(out, copy);
    free(data);
close_file:
    ls_safetensors_close(file);
    return status;
}

ls_status ls_bounds_plant_write(const ls_bounds_plant *plant, int world, const char *const *path,
                                const char *const *copy)
{
    if (is(plant, "tensor-not-reduced") && world == 1) {
        return LS_ERR_UNSUPPORTED;
    }
    ls_safetensors *first = NULL;
    LS_TRY(ls_safetensors_open(path[0], &first));
    ls_status status = LS_OK;
    for (int rank = 0, changed = 0; rank < world && status == LS_OK; rank++) {
        status = plant_file(plant, first, path[rank], copy[rank], &changed);
        if (status == LS_OK && changed == 0) {
            status = ls_log_fail(LS_ERR_CHECK, "%s has no tensor for the fault %s: nothing planted",
                                 path[rank], plant->name);
        }
    }
    ls_safetensors_close(first);
    return status;
}
