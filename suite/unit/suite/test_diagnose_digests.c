/* The first digest that differs reveals the cause, between ranks and after a resume. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "suite/judge/diagnose.h"
#include "suite/unit/run_suite.h"

enum { STEPS = 3 };

typedef struct run {
    ls_record_rank rank;
    ls_record_step step[STEPS];
} run;

static void make(run *r, int64_t first)
{
    memset(r, 0, sizeof *r);
    r->rank.step_count = STEPS;
    r->rank.step = r->step;
    for (int i = 0; i < STEPS; i++) {
        ls_record_step *s = &r->step[i];
        *s = (ls_record_step){.step = first + i, .loss_scale = 128, .lr = 0.1, .skip_given = true};
        s->digest_mask = (1u << LS_RECORD_DIGESTS) - 1;
        snprintf(s->loss_bits, sizeof s->loss_bits, "0x%08x", 0x3f800000u + (unsigned)i);
        for (int d = 0; d < LS_RECORD_DIGESTS; d++) {
            snprintf(s->digest[d], sizeof s->digest[d], "%016x", (unsigned)(100 * i + d));
        }
    }
}

/* From step `at` on that digest is another. */
static void change(run *r, ls_record_digest digest, int at)
{
    for (int i = at; i < STEPS; i++) {
        r->step[i].digest[digest][0] = 'f';
    }
}

#define EXPECT(call, words)                                                       \
    do {                                                                          \
        char text[240];                                                           \
        call;                                                                     \
        ck_assert_msg(strstr(text, words) != NULL, "'%s' for '%s'", text, words); \
    } while (0)

TEST(replicas)
{
    run a, b;
    make(&a, 1);
    make(&b, 1);
    char none[240];
    ls_diagnose_replicas(&a.rank, &b.rank, true, none, sizeof none);
    ck_assert_str_eq(none, "");
    change(&b, LS_RECORD_PARAM, 0);
    EXPECT(ls_diagnose_replicas(&a.rank, &b.rank, true, text, sizeof text), "not broadcast");
    change(&b, LS_RECORD_GRAD, 0);
    EXPECT(ls_diagnose_replicas(&a.rank, &b.rank, true, text, sizeof text),
           "a reduction is missing");
    make(&b, 1);
    change(&b, LS_RECORD_PARAM, 1);
    EXPECT(ls_diagnose_replicas(&a.rank, &b.rank, true, text, sizeof text),
           "the step's result differs");
    EXPECT(ls_diagnose_replicas(&a.rank, &b.rank, true, text, sizeof text), "first at step 2");
    make(&b, 1);
    b.step[1].skipped = true;
    EXPECT(ls_diagnose_replicas(&a.rank, &b.rank, true, text, sizeof text), "each for itself");
    change(&b, LS_RECORD_GRAD, 1);
    EXPECT(ls_diagnose_replicas(&a.rank, &b.rank, true, text, sizeof text), "after the reduction");
    make(&b, 1);
    change(&b, LS_RECORD_BUFFER, 2);
    EXPECT(ls_diagnose_replicas(&a.rank, &b.rank, true, text, sizeof text), "running statistics");
}

TEST(resumes)
{
    run a, b;
    make(&a, 4);
    make(&b, 4);
    b.step[0].loss_scale = 65536;
    EXPECT(ls_diagnose_resume(&a.rank, &b.rank, 4, text, sizeof text), "loss scale was not");
    make(&b, 4);
    b.step[1].loss_scale = 256;
    EXPECT(ls_diagnose_resume(&a.rank, &b.rank, 4, text, sizeof text), "count of clean steps");
    make(&b, 4);
    snprintf(b.step[0].loss_bits, sizeof b.step[0].loss_bits, "0x0");
    EXPECT(ls_diagnose_resume(&a.rank, &b.rank, 4, text, sizeof text), "place in the data");
    make(&b, 4);
    b.step[0].lr = 0.01;
    EXPECT(ls_diagnose_resume(&a.rank, &b.rank, 4, text, sizeof text), "schedule was not");
    make(&b, 4);
    change(&b, LS_RECORD_STATE, 0);
    change(&b, LS_RECORD_PARAM, 0);
    EXPECT(ls_diagnose_resume(&a.rank, &b.rank, 4, text, sizeof text), "momentum was not restored");
    make(&b, 4);
    change(&b, LS_RECORD_MASTER, 0);
    EXPECT(ls_diagnose_resume(&a.rank, &b.rank, 4, text, sizeof text), "masters were made again");
    make(&b, 4);
    change(&b, LS_RECORD_GRAD, 0);
    EXPECT(ls_diagnose_resume(&a.rank, &b.rank, 4, text, sizeof text), "bucket layout");
    make(&b, 4);
    change(&b, LS_RECORD_BUFFER, 0);
    EXPECT(ls_diagnose_resume(&a.rank, &b.rank, 4, text, sizeof text), "running statistics");
}

/* Digests that `missing` names are on neither side. */
static void hide(run *a, run *b, unsigned missing)
{
    for (int i = 0; i < STEPS; i++) {
        a->step[i].digest_mask &= ~missing;
        b->step[i].digest_mask &= ~missing;
    }
}

/* A cause says what the digests show, and nothing of those that are not there. */
TEST(without_its_data_there_is_no_cause)
{
    static const struct {
        ls_record_digest changed, missing;
    } gap[] = {{LS_RECORD_PARAM, LS_RECORD_GRAD},   {LS_RECORD_MASTER, LS_RECORD_GRAD},
               {LS_RECORD_STATE, LS_RECORD_GRAD},   {LS_RECORD_PARAM, LS_RECORD_STATE},
               {LS_RECORD_MASTER, LS_RECORD_STATE}, {LS_RECORD_BUFFER, LS_RECORD_PARAM}};
    for (size_t i = 0; i < sizeof gap / sizeof *gap; i++) {
        for (int at = 0; at < STEPS; at++) {
            run a, b;
            char replicas[240], resumed[240];
            make(&a, 1);
            make(&b, 1);
            change(&b, gap[i].changed, at);
            change(&b, LS_RECORD_BUFFER, at);
            hide(&a, &b, 1u << gap[i].missing);
            ls_diagnose_replicas(&a.rank, &b.rank, false, replicas, sizeof replicas);
            ls_diagnose_resume(&a.rank, &b.rank, 1, resumed, sizeof resumed);
            ck_assert_msg(gap[i].missing != LS_RECORD_GRAD || replicas[0] == '\0', "%s", replicas);
            ck_assert_msg(gap[i].changed != LS_RECORD_BUFFER || replicas[0] == '\0', "%s",
                          replicas);
            ck_assert_msg(resumed[0] == '\0', "%s", resumed);
        }
    }
}

/* Numbers that neither gives do not differ. */
TEST(without_numbers_there_is_no_cause)
{
    run a, b;
    char text[240];
    make(&a, 1);
    make(&b, 1);
    for (int i = 0; i < STEPS; i++) {
        a.step[i].loss_scale = b.step[i].loss_scale = a.step[i].lr = b.step[i].lr = NAN;
        b.step[i].loss_bits[0] = '\0';
        a.step[i].skip_given = false;
        b.step[i].skipped = i == 1;
    }
    ls_diagnose_replicas(&a.rank, &b.rank, true, text, sizeof text);
    ck_assert_str_eq(text, "");
    ls_diagnose_resume(&a.rank, &b.rank, 1, text, sizeof text);
    ck_assert_str_eq(text, "");
    make(&a, 1);
    make(&b, 1);
    b.step[0].loss_scale = 64;
    EXPECT(ls_diagnose_replicas(&a.rank, &b.rank, true, text, sizeof text), "begin with different");
    b.step[0].loss_scale = 128;
    b.step[2].loss_scale = 64;
    EXPECT(ls_diagnose_replicas(&a.rank, &b.rank, true, text, sizeof text), "counts its clean");
}

TEST_MAIN("diagnose_digests")
