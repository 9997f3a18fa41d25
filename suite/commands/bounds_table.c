#include "bounds_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/sort.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "reference/files/safetensors.h"

static const char *kind_name(int kind)
{
    static const char *const name[LS_BOUNDS_KINDS] = {
        "whole", "tensor", "small", "block", "edge", "logits", "tie", "reduce", "next", "buffer"};
    return name[kind];
}

static void add(ls_bounds_rows *rows, const ls_bounds_row *row)
{
    rows->row = ls_list_grow(rows->row, rows->count, &rows->capacity, sizeof *rows->row);
    rows->row[rows->count++] = *row;
}

static bool parse(const char *line, ls_bounds_row *row)
{
    int used = 0;
    unsigned long long seed = 0;
    memset(row, 0, sizeof *row);
    if (sscanf(line, "%31s %31s %d %llu %7s %lg %lg%n", row->setting, row->plant, &row->level,
               &seed, row->verdict, &row->error, &row->ideal, &used) != 7) {
        return false;
    }
    row->seed = seed;
    for (int k = 0; k < LS_BOUNDS_KINDS; k++) {
        char *end = NULL;
        row->value[k] = strtod(line + used, &end);
        if (end == line + used) {
            return false;
        }
        used = (int)(end - line);
    }
    return true;
}

ls_status ls_bounds_rows_read(const char *path, ls_bounds_rows *out)
{
    memset(out, 0, sizeof *out);
    char *text = ls_text_read(path), *rest = text; /* none before the first run */
    ls_status status = LS_OK;
    int number = 0;
    for (char *line; status == LS_OK && (line = strsep(&rest, "\n")) != NULL;) {
        ls_bounds_row row;
        number++;
        if (rest == NULL && line[0] != '\0') { /* a last number may have lost digits */
            status = ls_log_fail(LS_ERR_USAGE, "%s:%d ends in the middle of a row", path, number);
            break;
        }
        if (line[0] == '#' || (line[0] == '\0' && rest == NULL)) {
            continue;
        }
        if (!parse(line, &row)) {
            status = ls_log_fail(LS_ERR_USAGE, "%s:%d is not a row of steps.tsv", path, number);
        } else {
            add(out, &row);
        }
    }
    free(text);
    if (status != LS_OK) {
        ls_bounds_rows_free(out);
    }
    return status;
}

ls_status ls_bounds_rows_append(const char *path, const ls_bounds_row *row)
{
    int descriptor = ls_file_open_to_write(path, O_APPEND);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "a");
    if (file == NULL) {
        return ls_log_fail(LS_ERR_INFRA, "cannot write %s: %s", path, strerror(errno));
    }
    if (fseek(file, 0, SEEK_END) == 0 && ftell(file) == 0) {
        fprintf(file, "# title: every step that was judged\n"
                      "# caption: e/r of each kind (largest of the step); tie in RMS roundings; "
                      "reduce and next in units of their limits\n"
                      "# units: relative\n"
                      "# columns: setting plant level seed verdict e r");
        for (int k = 0; k < LS_BOUNDS_KINDS; k++) {
            fprintf(file, " %s", kind_name(k));
        }
        fprintf(file, "\n");
    }
    fprintf(file, "%s %s %d %llu %s %.3e %.3e", row->setting, row->plant, row->level,
            (unsigned long long)row->seed, row->verdict, row->error, row->ideal);
    for (int k = 0; k < LS_BOUNDS_KINDS; k++) {
        fprintf(file, " %.4g", row->value[k]);
    }
    fprintf(file, "\n");
    return ls_file_close(file, path);
}

void ls_bounds_rows_free(ls_bounds_rows *rows)
{
    free(rows->row);
    memset(rows, 0, sizeof *rows);
}

/* ---- the tables ------------------------------------------------------------------------------ */

/* Groups of levels with factors of their own. */
enum { SINGLE, HALF, GROUPS };
static const char *const group_name[GROUPS] = {"O0", "half"};

static int group_of(const ls_bounds_row *row)
{
    return row->level == 0 ? SINGLE : HALF;
}

static double factor_of(int group, int kind)
{
    int level = group == SINGLE ? 0 : 1;
    const ls_compare_bound *bounds = ls_compare_bounds_of(level);
    switch (kind) {
    case LS_BOUNDS_LOGITS:
    case LS_BOUNDS_BUFFER:
        return bounds[LS_COMPARE_TENSOR]
            .factor; /* of networks with 64 logits or more; smaller ones have a larger factor */
    case LS_BOUNDS_TIE:
        return ls_compare_bounds_tie(level).factor;
    case LS_BOUNDS_REDUCE:
    case LS_BOUNDS_NEXT:
        return 1;
    default:
        return bounds[kind].factor;
    }
}

/* Probability of at most `alarms` alarms in `count` steps at rate p. */
static double at_most(int alarms, int count, double p)
{
    double sum = 0, term = pow(1 - p, count);
    for (int k = 0; k <= alarms; k++) {
        sum += term;
        term *= (double)(count - k) / (k + 1) * p / (1 - p);
    }
    return sum;
}

/* Upper end of the one-sided 95 % interval of a rate (Clopper and Pearson 1934): with 0 alarms,
 * 1 - 0.05^(1/n). */
static double rate_bound(int alarms, int count)
{
    double low = 0, high = 1;
    for (int i = 0; i < 60 && count > alarms; i++) {
        double middle = (low + high) / 2;
        /* 0.05: the complement of 95 % */
        if (at_most(alarms, count, middle) > 0.05) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return count > 0 ? high : 1;
}

typedef struct tally {
    int count, alarms;
    double largest, p99,
        planted; /* planted: the smallest value of a fault of this kind; NaN: none */
    char plant[32];
} tally;

static bool counts(const ls_bounds_row *row, int kind)
{
    /* a WEAK step (r above 0.1) has only values of the whole gradient; a step without reduction or
     * update lacks these */
    return isfinite(row->value[kind]) && row->value[kind] > 0;
}

static void tally_kind(const ls_bounds_rows *rows, int group, int kind, const char *setting,
                       double *scratch, tally *t)
{
    *t = (tally){.planted = NAN};
    for (int i = 0; i < rows->count; i++) {
        const ls_bounds_row *row = &rows->row[i];
        if (group_of(row) != group || (setting != NULL && strcmp(setting, row->setting) != 0)) {
            continue;
        }
        if (strcmp(row->plant, "none") == 0 && counts(row, kind)) {
            scratch[t->count++] = row->value[kind];
            t->alarms += !(row->value[kind] <= factor_of(group, kind));
        }
        for (int p = 0; p < ls_bounds_plant_count; p++) {
            const ls_bounds_plant *plant = &ls_bounds_plants[p];
            if (plant->kind == kind && !plant->may_hide && strcmp(plant->name, row->plant) == 0 &&
                !(row->value[kind] >= t->planted)) {
                t->planted = row->value[kind];
                ls_text_put(t->plant, sizeof t->plant, "%s", plant->name);
            }
        }
    }
    ls_sort_doubles(scratch, t->count);
    if (t->count > 0) {
        t->largest = scratch[t->count - 1];
        t->p99 = scratch[(int)ceil(0.99 * t->count) - 1];
    }
}

static FILE *create(const char *folder, const char *name)
{
    LS_TEXT(path, 700, "%s/%s", folder, name);
    return ls_file_create(path);
}

static ls_status write_factors(const ls_bounds_rows *rows, const char *folder, double *scratch)
{
    FILE *file = create(folder, "bounds.tsv");
    LS_TRY_FILE(file);
    fprintf(file,
            "# title: correct steps and planted faults against every factor\n"
            "# caption: largest and 99th percentile of e/r over all correct steps; share of "
            "them above the factor with the upper end of its 95 %% interval; smallest value "
            "that a planted fault gave\n"
            "# units: e/r; tie in RMS roundings; reduce and next in units of their limits\n"
            "# columns: level kind steps p99 largest factor alarms rate_bound planted fault\n");
    for (int group = 0; group < GROUPS; group++) {
        for (int kind = 0; kind < LS_BOUNDS_KINDS; kind++) {
            tally t;
            tally_kind(rows, group, kind, NULL, scratch, &t);
            fprintf(file, "\"%s\" \"%s\" %d %.3g %.3g %g %d %.2g %.3g \"%s\"\n", group_name[group],
                    kind_name(kind), t.count, t.p99, t.largest, factor_of(group, kind), t.alarms,
                    rate_bound(t.alarms, t.count), t.planted, t.plant);
        }
    }
    return ls_file_close(file, "bounds.tsv");
}

static bool first_of_setting(const ls_bounds_rows *rows, int index)
{
    for (int i = 0; i < index; i++) {
        if (strcmp(rows->row[i].setting, rows->row[index].setting) == 0) {
            return false;
        }
    }
    return true;
}

static ls_status write_settings(const ls_bounds_rows *rows, const char *folder, double *scratch)
{
    FILE *file = create(folder, "settings.tsv");
    LS_TRY_FILE(file);
    fprintf(file, "# title: largest e/r of the correct steps of each setting\n"
                  "# caption: the columns of bounds.tsv, by network, level and world; r is that of "
                  "the whole gradient, the largest of the setting\n"
                  "# units: e/r; tie in RMS roundings; reduce and next in units of their limits\n"
                  "# columns: setting steps not_pass r");
    for (int kind = 0; kind < LS_BOUNDS_KINDS; kind++) {
        fprintf(file, " %s", kind_name(kind));
    }
    fprintf(file, "\n");
    for (int i = 0; i < rows->count; i++) {
        const ls_bounds_row *row = &rows->row[i];
        if (!first_of_setting(rows, i)) {
            continue;
        }
        int steps = 0, bad = 0;
        double ideal = 0;
        for (int k = 0; k < rows->count; k++) {
            if (strcmp(rows->row[k].setting, row->setting) == 0 &&
                strcmp(rows->row[k].plant, "none") == 0) {
                steps++;
                bad += strcmp(rows->row[k].verdict, "PASS") != 0;
                ideal = fmax(ideal, rows->row[k].ideal);
            }
        }
        fprintf(file, "\"%s\" %d %d %.2g", row->setting, steps, bad, ideal);
        for (int kind = 0; kind < LS_BOUNDS_KINDS; kind++) {
            tally t;
            tally_kind(rows, group_of(row), kind, row->setting, scratch, &t);
            fprintf(file, " %.3g", t.count > 0 ? t.largest : NAN);
        }
        fprintf(file, "\n");
    }
    return ls_file_close(file, "settings.tsv");
}

static ls_status write_plants(const ls_bounds_rows *rows, const char *folder, double *scratch)
{
    FILE *file = create(folder, "plants.tsv");
    LS_TRY_FILE(file);
    fprintf(file,
            "# title: planted faults against the factor of the kind that should show them\n"
            "# caption: steps with that fault, the smallest and the median value of its kind, "
            "and how many of the steps did not pass\n"
            "# units: e/r; tie in RMS roundings; reduce and next in units of their limits\n"
            "# columns: level kind steps smallest median factor told fault\n");
    for (int p = 0; p < ls_bounds_plant_count; p++) {
        const ls_bounds_plant *plant = &ls_bounds_plants[p];
        for (int group = 0; group < GROUPS; group++) {
            int count = 0, caught = 0;
            for (int i = 0; i < rows->count; i++) {
                const ls_bounds_row *row = &rows->row[i];
                if (group_of(row) == group && strcmp(plant->name, row->plant) == 0) {
                    scratch[count++] = row->value[plant->kind];
                    caught += strcmp(row->verdict, "PASS") != 0;
                }
            }
            ls_sort_doubles(scratch, count);
            if (count > 0) {
                fprintf(file, "\"%s\" \"%s\" %d %.3g %.3g %g %d \"%s\"\n", group_name[group],
                        kind_name(plant->kind), count, scratch[0], scratch[count / 2],
                        factor_of(group, plant->kind), caught, plant->name);
            }
        }
    }
    return ls_file_close(file, "plants.tsv");
}

ls_status ls_bounds_table_write(const ls_bounds_rows *rows, const char *folder)
{
    double *scratch = malloc(((size_t)rows->count + 1) * sizeof *scratch);
    LS_TRY_MEMORY(scratch != NULL, "%d values", rows->count);
    ls_status status = write_factors(rows, folder, scratch);
    LS_THEN(status, write_settings(rows, folder, scratch));
    LS_THEN(status, write_plants(rows, folder, scratch));
    free(scratch);
    return status;
}

/* ---- planted errors ---------------------------------------------------------------------------
 */

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
