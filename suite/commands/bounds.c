#include "bounds_internal.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/cores.h"
#include "kernels/core/path.h"
#include "harness/run/job.h"
#include "harness/machine/machine.h"
#include "kernels/core/log.h"
#include "suite/run/command_line.h"
#include "commands.h"
#include "suite/cases/rows.h"

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
    const char *names[SETTINGS];
    for (int k = 0; k < SETTINGS; k++) {
        names[k] = setting[k].name;
    }
    LS_TRY(ls_command_choice("--only", b.only, names, SETTINGS));
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
