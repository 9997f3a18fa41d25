#include "run.h"

#include "suite/cases/rows.h"

static const struct family {
    const char *source;
    ls_case_counts counts;
    ls_family_cases *add;
} families[] = {
#define LS_FAMILY(folder, name, counts) \
    {"suite/cases/" #folder "/" #name ".c", counts, ls_##name##_cases},
#include "suite/cases/families.def"
#undef LS_FAMILY
};

void ls_cases_all(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        int first = list->count;
        families[i].add(settings, list);
        for (int c = first; c < list->count; c++) {
            ls_case *row = &list->row[c];
            row->source = families[i].source;
            row->counts = row->counts == LS_COUNTS_RULE ? families[i].counts : row->counts;
        }
    }
}
