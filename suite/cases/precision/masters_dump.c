#include "masters_dump.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "kernels/core/log.h"

bool ls_masters_dump_open_file(const ls_record *job, const char *name, ls_dumpfile **file,
                               ls_verdict *out)
{
    char path[700];
    ls_text_put(path, sizeof path, "%s/%s", job->directory, name);
    if (ls_dumpfile_open(path, file) != LS_OK) {
        ls_verdict_fail(out, "%s is missing or broken", name);
        return false;
    }
    return true;
}

bool ls_masters_dump_open_step(const ls_record *job, int step, ls_dumpfile **file, ls_verdict *out)
{
    char name[64];
    ls_text_put(name, sizeof name, "dump/step%06d.rank0.safetensors", step);
    return ls_masters_dump_open_file(job, name, file, out);
}

ls_bits_type ls_masters_dump_type(const ls_dumpfile_entry *entry)
{
    return strcmp(entry->dtype, "F16") == 0    ? LS_BITS_F16
           : strcmp(entry->dtype, "BF16") == 0 ? LS_BITS_BF16
                                               : LS_BITS_F32;
}

double *ls_masters_dump_values(const ls_dumpfile_entry *entry)
{
    double *value = malloc((size_t)entry->count * sizeof *value + 1);
    LS_ASSERT(value != NULL);
    ls_dumpfile_read(entry, value);
    return value;
}

const char *ls_masters_dump_next_name(const ls_dumpfile *file, int *at)
{
    while (*at < ls_dumpfile_count(file)) {
        const ls_dumpfile_entry *entry = ls_dumpfile_at(file, (*at)++);
        if (strncmp(entry->name, "param/", 6) == 0) {
            return entry->name + 6;
        }
    }
    return NULL;
}

double ls_masters_dump_as_it_is(ls_bits_type type, double value)
{
    (void)type;
    return value;
}

/* The half value next to `value`, towards zero, or itself. */
static bool is_cut(ls_bits_type type, double have, double value)
{
    int lowest = type == LS_BITS_F16 ? -14 : -126, digits = type == LS_BITS_F16 ? 10 : 7;
    int exponent = have == 0 ? lowest : ilogb(have);
    double unit = ldexp(1, (exponent > lowest ? exponent : lowest) - digits);
    return fabs(have) <= fabs(value) && fabs(value) - fabs(have) < unit;
}

/* Says what every element is, where it is one thing. */
static void explain(ls_bits_type type, const double *have, const double *from, int64_t count,
                    ls_verdict *out)
{
    bool cut = type != LS_BITS_F32, half[2] = {!cut, !cut};
    for (int64_t i = 0; i < count; i++) {
        cut = cut && is_cut(type, have[i], from[i]);
        half[0] = half[0] && have[i] == ls_bits_round(LS_BITS_F16, from[i]);
        half[1] = half[1] && have[i] == ls_bits_round(LS_BITS_BF16, from[i]);
    }
    if (cut) {
        ls_verdict_cause(out, "values are cut, not rounded to nearest");
    } else if (half[0] || half[1]) {
        ls_verdict_cause(out, "f32 values are rounded to half: they come from the half weights");
    }
}

void ls_masters_dump_compare(const ls_dumpfile_entry *have, const ls_dumpfile_entry *from,
                             ls_masters_dump_conversion *convert, const char *what,
                             int64_t *compared, ls_verdict *out)
{
    if (have == NULL || from == NULL || have->count != from->count) {
        ls_verdict_fail(out, "%s is missing or misshapen", what);
        return;
    }
    double *a = ls_masters_dump_values(have), *b = ls_masters_dump_values(from);
    ls_bits_type type = ls_masters_dump_type(have);
    for (int64_t i = 0; i < have->count; i++) {
        double want = convert(type, b[i]);
        if (a[i] != want || signbit(a[i]) != signbit(want)) {
            ls_verdict_fail(out, "%s element %lld: %s is %.9g, %s of %.9g is %.9g",
                            strchr(have->name, '/') + 1, (long long)i, what, a[i], have->dtype,
                            b[i], want);
            explain(type, a, b, have->count, out);
            break;
        }
    }
    *compared += have->count;
    free(a);
    free(b);
}

void ls_masters_dump_conclude(int64_t compared, const char *text, ls_verdict *out)
{
    if (compared == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the dump holds nothing that could be compared");
    }
    ls_verdict_pass(out, "%lld elements: %s", (long long)compared, text);
}
