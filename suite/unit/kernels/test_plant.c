/* Planted faults: what the environment asks for is on, where and when it asks, and nothing else; in
 * the normal build the macro is its first expression. */
#include "kernels/core/plant.h"
#include "suite/unit/run_suite.h"

/* This file is of the normal build: the second expression is not even compiled. */
static int good(void)
{
    return LS_PLANT(a_name, 1, there_is_no_such_function());
}

/* The other build, in this program. */
#undef LS_PLANT_H
#undef LS_PLANT
#undef LS_PLANT_STEP
#define LS_PLANTS 1
#include "kernels/core/plant.c"

static void ask(const char *wanted, const char *rank)
{
    setenv("LS_PLANT", wanted, 1);
    if (rank == NULL) {
        unsetenv("RANK");
    } else {
        setenv("RANK", rank, 1);
    }
    wish = (struct wish){0, -1};
    ls_plant_active = 0;
    read_wish();
}

static bool is_on(void)
{
    return LS_PLANT(a_name, false, true);
}

TEST(the_normal_build_is_good)
{
    ask("a_name", NULL);
    ck_assert_int_eq(good(), 1);
}

TEST(a_fault_is_on_when_it_is_named)
{
    ask("", NULL);
    ck_assert(!is_on());
    ask("another", NULL);
    ck_assert(!is_on());
    ask("a_nam", NULL);
    ck_assert(!is_on());
    ask("a_name", NULL);
    ck_assert(is_on());
    ls_plant_step(5);
    ck_assert(is_on());
    ck_assert_int_eq(ls_plant_now, 5);
}

TEST(a_step_and_a_rank_may_be_asked_for)
{
    ask("a_name@3", "1");
    ck_assert(!is_on());
    for (int step = 1; step < 6; step++) {
        ls_plant_step(step);
        ck_assert(is_on() == (step == 3));
    }
    ask("a_name:1", "0");
    ck_assert(!is_on());
    ask("a_name:1", "1");
    ck_assert(is_on());
    ask("a_name@2:1", "1");
    ls_plant_step(2);
    ck_assert(is_on());
    ask("a_name@2:1", NULL);
    ls_plant_step(2);
    ck_assert(!is_on());
}

TEST_MAIN("plant")
