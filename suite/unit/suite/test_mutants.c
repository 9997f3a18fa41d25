/* Which single changes a source offers, and the source with one of them. */
#include "suite/mutate/mutate_parts.h"
#include "suite/unit/harness/scratch.h"
#include "suite/unit/run_suite.h"
#include "suite/unit/caught.h"

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
    {"/* a < b */ // c + d\n#define E (1 + 2)\nchar x[64] = \"1 + 2\", y = '1';\n"
     "LS_TEXT(z, 64, \"a\");\n",
     ""},
    {"void f(void)\n{\n    ls_log_warn(\"%d\", 1 + a);\n    LS_ASSERT(a > 0);\n    free(a);\n    "
     "x_free(&b);\n    va_end(c);\n}\n",
     ""},
    {"void f(void)\n{\n    for (int i = 0; i < n; i++) {\n        continue;\n    }\n}\n",
     "3: 0 -> 1\n3: < -> <=\n3: ++ -> --\n4: continue; -> ;\n"},
    {"double f(void)\n{\n    LS_TRY(g(1e-3f,\n             !h()));\n    return true;\n}\n",
     "3: LS_TRY(g(1e-3f, !h())); -> ;\n3: 1e-3f -> (2 * 1e-3f)\n4: ! -> \n5: true -> false\n"},
    {"int f(char *const *a, struct x *b)\n{\n    int c = *a, d = -1, *e = &b;\n}\n", "3: 1 -> 0\n"},
};

ROWS_TEST(a_source_offers_its_changes, source)
{
    char found[1000];
    list(source[_i].text, found, sizeof found);
    ck_assert_str_eq(found, source[_i].changes);
}

TEST(a_change_keeps_the_numbers_of_lines)
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

/* `lockstep mutate` in a tree whose Makefile and test stand for the product's. What could not be
 * built or run is no catch, and there is no score of nothing. */
static const struct run {
    const char *test, *make; /* the test program; how objects are made */
    const char *mapped;      /* reach/tests.tsv */
    int code;
    const char *says;
} runs[] = {
    {"exit 1", "cp", "unit/test_a 0.1\n", 0, "1 of 1 mutants caught: 1 by make check"},
    {"exit 0", "cp", "unit/test_a 0.1\n", 0, "0 of 1 mutants caught"},
    {"exit 125", "cp", "unit/test_a 0.1\n", 3, "tests of some mutants could not be run: no score"},
    {"exit 127", "cp", "unit/test_a 0.1\n", 3, "tests of some mutants could not be run: no score"},
    {"exit 1", "false", "unit/test_a 0.1\n", 3, "x.c is not built without a mutant either"},
    {"exit 1", "grep -q a.-.1 $< && cp", "unit/test_a 0.1\n", 3, "no mutant was tried"},
    {"exit 1", "cp", "", 3, "no test is mapped: no score"},
};

ROWS_TEST(what_was_not_run_is_no_catch, runs)
{
    const struct run *r = &runs[_i];
    char program[1024], command[4000], text[4000];
    ls_path_program(program, sizeof program);
    ls_text_put(
        command, sizeof command,
        "cd %s && cp %s/../lockstep . && mkdir -p suite/mutate mutate/reach/unit bin &&\n"
        /* neither archives nor name spaces, but this folder */
        "printf 'make -s -C \"$1\" \"$2\"\\n' >suite/mutate/make.sh &&\n"
        "printf 'cd \"$1\" && exec \"$2\"\\n' >suite/mutate/sandbox.sh &&\n"
        "printf '#!/bin/sh\\ncp \"$4\" \"$3\"\\n' >bin/strip && chmod +x bin/strip &&\n"
        "printf 'int f(int a)\\n{\\n    return a - 1;\\n}\\n' >x.c && cp x.c mutate/x.c &&\n"
        "echo x.c >mutate/sources && echo 1 >mutate/product.stamp && echo 1 >mutate/tests.stamp "
        "&&\n"
        "printf '%s' >mutate/reach/tests.tsv && echo 'x.c 1-4' >mutate/reach/unit/test_a.lines &&\n"
        "printf '#!/bin/sh\\n%s\\n' >mutate/test && chmod +x mutate/test &&\n"
        "printf 'build/obj/x.c.o: x.c\\n\\tmkdir -p build/obj build/unit\\n\\t%s $< $@\\n"
        "programs:\\nbuild/unit/test_a: build/obj/x.c.o\\n\\tcp test $@\\n' >mutate/Makefile &&\n"
        "PATH=$PWD/bin:$PATH ./lockstep mutate --n 1 --out out 2>&1; echo code=$?",
        scratch, program, r->mapped, r->test, r->make);
    (void)shell_says(command, text, sizeof text);
    LS_TEXT(code, 32, "code=%d\n", r->code);
    ck_assert_msg(strstr(text, r->says) != NULL && strstr(text, code) != NULL, "'%s', %s: %s",
                  r->says, code, text);
}

TEST_MAIN("mutants", .timeout_s = 120, .before = open_scratch, .after = close_scratch)
