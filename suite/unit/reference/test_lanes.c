/* Lanes: all work at once, a part is waited for, and a lane that fails ends the waits for it. */
#include <check.h>
#include <stdatomic.h>

#include "reference/train/ways/team.h"
#include "suite/unit/run_suite.h"

enum { LANES = 3, PARTS = 50 };

typedef struct work {
    ls_lanes *lanes;
    atomic_int made[LANES];
    int fails; /* the lane that does; -1: none */
} work;

/* Each lane takes what the lane before has made, part by part. */
static ls_status relay(void *context, int lane)
{
    work *w = context;
    for (int part = 0; part < PARTS; part++) {
        if (lane > 0) {
            LS_TRY(ls_lanes_await(w->lanes, lane - 1, part + 1));
            if (atomic_load(&w->made[lane - 1]) < part + 1) {
                return LS_ERR_CHECK;
            }
        }
        if (lane == w->fails && part == PARTS / 2) {
            return LS_ERR_DEVICE_LOST;
        }
        atomic_fetch_add(&w->made[lane], 1);
        ls_lanes_post(w->lanes, lane);
    }
    return LS_OK;
}

static void reset(work *w, int fails)
{
    w->fails = fails;
    for (int i = 0; i < LANES; i++) {
        atomic_store(&w->made[i], 0);
    }
}

TEST(parts_in_order)
{
    work w;
    ck_assert_int_eq(ls_lanes_open(LANES, &w.lanes), LS_OK);
    for (int run = 0; run < 20; run++) {
        reset(&w, -1);
        ck_assert_int_eq(ls_lanes_run(w.lanes, relay, &w), LS_OK);
        for (int i = 0; i < LANES; i++) {
            ck_assert_int_eq(atomic_load(&w.made[i]), PARTS);
        }
    }
    ls_lanes_close(w.lanes);
}

/* Whichever lane fails: the others end, its status is the run's, and the next run is a new one. */
LOOP_TEST(a_lane_fails, LANES)
{
    work w;
    ck_assert_int_eq(ls_lanes_open(LANES, &w.lanes), LS_OK);
    reset(&w, _i);
    ck_assert_int_eq(ls_lanes_run(w.lanes, relay, &w), LS_ERR_DEVICE_LOST);
    ck_assert_int_eq(atomic_load(&w.made[_i]), PARTS / 2);
    reset(&w, -1);
    ck_assert_int_eq(ls_lanes_run(w.lanes, relay, &w), LS_OK);
    ls_lanes_close(w.lanes);
}

TEST(one_lane)
{
    work w;
    ck_assert_int_eq(ls_lanes_open(1, &w.lanes), LS_OK);
    reset(&w, 0);
    ck_assert_int_eq(ls_lanes_run(w.lanes, relay, &w), LS_ERR_DEVICE_LOST);
    ls_lanes_close(w.lanes);
    ls_lanes_close(NULL);
}

TEST_MAIN("lanes")
