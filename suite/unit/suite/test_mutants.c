/* Which single changes a source offers, and the source with one of them. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "suite/mutate/mutate_parts.h"
#include "suite/unit/run_suite.h"

/* Every change of a text as "line: before -> after", one after the other. */
static void list(const char *text, char *out, size_t bytes)
{
    ls_mutant_list found = {0};
    ls_mutants_of(text, &found);
    out[0] = '\0';
    for (int i = 0; i < found.count; i++) {
        char before[80], after[80];
        ls_mutants_show(text, &found.mutant[i], before, after, sizeof before);
        size_t used = strlen(out);
        snprintf(out + used, bytes - used, "%d: %s -> %s\n", found.mutant[i].line, before, after);
    }
    free(found.mutant);
}

static const struct {
    const char *text, *changes;
} source[] = {
    {"int f(int a)\n{\n    return a < 3 ? a : a - 1;\n}\n",
     "3: < -> <=\n3: 3 -> 4\n3: - -> +\n3: 1 -> 0\n"},
    {"void f(int *a)\n{\n    if (a == 0 && g(*a)) {\n        a[2] *= 2;\n    }\n}\n",
     "3: a == 0 && g(*a) -> !(a == 0 && g(*a))\n3: == -> !=\n3: 0 -> 1\n3: && -> ||\n"
     "4: a[2] *= 2; -> ;\n4: *= -> /=\n4: 2 -> 3\n"},
    {"/* a < b */ // c + d\n#define E (1 + 2)\nchar x[64] = \"1 + 2\", y = '1';\n", ""},
    {"void f(void)\n{\n    ls_log_warn(\"%d\", 1 + a);\n    LS_ASSERT(a > 0);\n    free(a);\n    "
     "x_free(&b);\n}\n",
     ""},
    {"void f(void)\n{\n    for (int i = 0; i < n; i++) {\n        continue;\n    }\n}\n",
     "3: 0 -> 1\n3: < -> <=\n3: ++ -> --\n4: continue; -> ;\n"},
    {"double f(void)\n{\n    LS_TRY(g(1e-3f,\n             !h()));\n    return true;\n}\n",
     "3: LS_TRY(g(1e-3f, !h())); -> ;\n3: 1e-3f -> (2 * 1e-3f)\n4: ! -> \n5: true -> false\n"},
    {"int f(char *const *a, struct x *b)\n{\n    int c = *a, d = -1, *e = &b;\n}\n", "3: 1 -> 0\n"},
};

START_TEST(a_source_offers_its_changes)
{
    char found[1000];
    list(source[_i].text, found, sizeof found);
    ck_assert_str_eq(found, source[_i].changes);
}
END_TEST

START_TEST(a_change_keeps_the_numbers_of_lines)
{
    static const char text[] = "void f(void)\n{\n    g(1,\n      2);\n    if (a) {\n    }\n}\n";
    ls_mutant_list found = {0};
    ls_mutants_of(text, &found);
    ck_assert_int_eq(found.count, 4);
    char *first = ls_mutants_apply(text, &found.mutant[0]);
    char *last = ls_mutants_apply(text, &found.mutant[3]);
    ck_assert_str_eq(first, "void f(void)\n{\n    ;\n\n    if (a) {\n    }\n}\n");
    ck_assert_str_eq(last, "void f(void)\n{\n    g(1,\n      2);\n    if (!(a)) {\n    }\n}\n");
    free(first);
    free(last);
    free(found.mutant);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mutants");
    TCase *tests = tcase_create("mutants");
    tcase_add_loop_test(tests, a_source_offers_its_changes, 0, sizeof source / sizeof *source);
    tcase_add_test(tests, a_change_keeps_the_numbers_of_lines);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
