/* Traces of trainers with one mistake each, made by a scaler written here, are given their cause.
 */
#include <check.h>
#include <math.h>
#include <string.h>

#include "suite/judge/diagnose.h"
#include "suite/unit/run_suite.h"

enum { STEPS = 14 };

/* One update, with the mistake by number. */
static void update(int mistake, bool bad, int *clean, double *now)
{
    if (bad) {
        *now = mistake == 6 ? *now : mistake == 7 ? *now / 4 : mistake == 16 ? *now * 2 : *now / 2;
        *clean = mistake == 5 ? *clean : mistake == 15 ? 1 : 0;
    } else if (++*clean, *clean >= (mistake == 4 ? 4 : mistake == 13 ? 2 : 3)) {
        *now = mistake == 8 ? *now : mistake == 16 ? *now / 2 : mistake == 17 ? *now * 4 : *now * 2;
        *clean = mistake == 14 ? *clean : 0;
    }
}

/* A scaler as a trainer would write it, with the mistake by number. */
static void train(int mistake, const bool *overflow, const bool *own, double *scale, double *next,
                  bool *skipped)
{
    double now = mistake == 9 ? 2048 : 1024;
    int clean = 0;
    for (int i = 0; i < STEPS; i++) {
        bool bad = mistake == 1 ? false : mistake == 2 ? own[i] : overflow[i];
        scale[i] = now;
        skipped[i] = bad && mistake != 3;
        skipped[i] = skipped[i] && mistake != 12;
        for (int time = 0; time < (mistake == 10 || mistake == 11 ? 2 : 1) && mistake != 12;
             time++) {
            update(mistake == 20 ? 6 + 2 * !bad : mistake, bad && (mistake != 11 || time == 0),
                   &clean, &now);
        }
        next[i] = now;
    }
}

static const char *const words[] = {"",
                                    "no overflow is seen",
                                    "each rank decides for itself",
                                    "the step is taken all the same",
                                    "too late (> for >=)",
                                    "does not restart the count",
                                    "not lowered on overflow",
                                    "quartered",
                                    "never grows",
                                    "starts at 2048, not at 1024",
                                    "updated twice a step",
                                    "the second time without",
                                    "never updated, and no skip",
                                    "one clean step too early",
                                    "growth does not restart the count",
                                    "skipped steps count as clean ones",
                                    "updated the wrong way round",
                                    "grows by 4",
                                    "the floor of the scale is not kept",
                                    "the ceiling of the scale is not kept",
                                    "the scale is never updated"};

LOOP_TEST(mistakes_are_named, 21)
{
    bool overflow[STEPS] = {[2] = true, [7] = true, [8] = true}, own[STEPS] = {[2] = true};
    bool skipped[STEPS];
    double scale[STEPS], next[STEPS];
    train(_i, overflow, own, scale, next, skipped);
    ls_diagnose_scaler trace = {1024,
                                _i == 18 ? 300 : 0,
                                _i == 19 ? 1000 : INFINITY,
                                3,
                                STEPS,
                                overflow,
                                own,
                                scale,
                                next,
                                skipped};
    char text[200];
    bool found = ls_diagnose_scaler_find(&trace, text, sizeof text);
    ck_assert_int_eq(found, _i > 0);
    ck_assert_msg(strstr(text, words[_i]) != NULL, "mistake %d: '%s'", _i, text);
}

TEST(a_stale_scale_is_named)
{
    bool overflow[STEPS] = {[2] = true}, skipped[STEPS];
    double scale[STEPS], next[STEPS];
    train(0, overflow, overflow, scale, next, skipped);
    scale[3] = scale[2];
    ls_diagnose_scaler trace = {1024, 0, INFINITY, 3, STEPS, overflow, NULL, scale, next, skipped};
    char text[200];
    ck_assert(ls_diagnose_scaler_find(&trace, text, sizeof text));
    ck_assert_ptr_nonnull(strstr(text, "another scale (1024)"));
}

TEST_MAIN("diagnose_scaler")
