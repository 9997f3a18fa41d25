/* Which steps of a timed job are audited, and the judge of their events, on jobs whose events are
 * wrong in one place. */
#include "reference/data/loader.h"
#include "reference/train/audit/audit.h"
#include "suite/cases/rows.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

enum { RANKS = 2, WARMUP = 2, STEPS = 20, DRAWN = 2 };

typedef struct audit_event {
    int64_t step;
    int elements, bad;
    const char *unaudited;
    char batch[20];
} audit_event;

typedef struct fixture {
    char run[256], job[300];
    ls_case_list rows;
    ls_matrix bench;
    audit_event event[RANKS][DRAWN];
    int count[RANKS];
} fixture;

static fixture f;

static ls_options options_of(const ls_spec *spec)
{
    ls_matrix_audit audit = ls_matrix_audit_of(spec);
    return (ls_options){.audit = true,
                        .audit_seed = audit.seed,
                        .audit_every = audit.every,
                        .audit_from = audit.from};
}

static void draw(int rank, int64_t step, char digest[20])
{
    ls_loader *loader = NULL;
    ls_loader_batch batch;
    ck_assert_int_eq(ls_timed_loader(&f.bench.spec[0], f.run, rank, step, &loader), LS_OK);
    ck_assert_int_eq(ls_loader_next(loader, &batch), LS_OK);
    ls_text_put(digest, 20, "%016llx",
                (unsigned long long)ls_loader_digest(0, &batch, f.bench.spec[0].image_size));
    ls_loader_close(loader);
}

static void open_job(void)
{
    memset(&f, 0, sizeof f);
    fake_folder(f.run, sizeof f.run);
    ls_spec spec = ls_matrix_spec(LS_ROLE_THROUGHPUT);
    spec.world = RANKS;
    spec.warmup_steps = WARMUP;
    spec.steps = STEPS;
    ls_matrix_add(&f.bench, &spec);
    ls_audited_cases(&(ls_case_settings){.seed = 7, .bench = &f.bench}, &f.rows);
    ls_text_put(f.job, sizeof f.job, "%s/jobs", f.run);
    ck_assert_int_eq(ls_path_make_folder(f.job), LS_OK);
    ls_text_put(f.job, sizeof f.job, "%s/jobs/%s", f.run, f.bench.id[0]);
    ck_assert_int_eq(ls_path_make_folder(f.job), LS_OK);
    ls_options options = options_of(&spec);
    for (int rank = 0; rank < RANKS; rank++) {
        for (int64_t step = 1; step <= WARMUP + STEPS; step++) {
            audit_event *event = &f.event[rank][f.count[rank] < DRAWN ? f.count[rank] : 0];
            if (ls_audit_due(&options, step)) {
                *event = (audit_event){.step = step, .elements = 8, .unaudited = ""};
                draw(rank, step, event->batch);
                f.count[rank]++;
            }
        }
        ck_assert_int_eq(f.count[rank], DRAWN);
    }
}

static void close_job(void)
{
    ls_path_remove_tree(f.run);
    ls_rows_free(&f.rows);
    ls_matrix_free(&f.bench);
}

static ls_verdict judge(int code)
{
    ls_verdict verdict;
    ls_record record;
    memset(&verdict, 0, sizeof verdict);
    for (int rank = 0; rank < RANKS; rank++) {
        char name[32];
        ls_text_put(name, sizeof name, "rank%d.jsonl", rank);
        FILE *file = fake_open(f.job, name);
        fprintf(file, "{\"event\":\"start\",\"schema\":1}\n");
        for (int i = 0; i < f.count[rank]; i++) {
            const audit_event *event = &f.event[rank][i];
            fprintf(file,
                    "{\"event\":\"audit\",\"step\":%d,\"elements\":%d,\"bad\":%d,\"unaudited\":\"%s"
                    "\",\"worst\":{\"operation\":\"conv1\",\"output\":\"sum\",\"ratio\":%g}",
                    (int)event->step, event->elements, event->bad, event->unaudited,
                    event->bad > 0 ? 7.0 : 0.5);
            fprintf(file, event->batch[0] != '\0' ? ",\"batch\":\"%s\"}\n" : "%s}\n", event->batch);
        }
        fclose(file);
    }
    ck_assert_int_eq(ls_record_read(f.job, LS_RECORD_STRICT, &record), LS_OK);
    ck_assert_str_eq(record.broken, "");
    record.state = code == 0 ? LS_RECORD_DONE : LS_RECORD_FAILED;
    record.code = code;
    record.first_rank = code == 0 ? -1 : 0;
    ck_assert_ptr_null(strstr(f.rows.row[1].id, "timed"));
    ck_assert_str_eq(f.rows.row[0].id, "audit.timed.o0.w2");
    f.rows.row[0].judge(&f.rows.row[0], &record, &verdict);
    ls_record_free(&record);
    return verdict;
}

TEST(a_job_that_audited_its_draws_passes)
{
    ls_verdict verdict = judge(0);
    ck_assert_msg(verdict.code == LS_PASS, "%s", verdict.evidence);
    ck_assert_ptr_nonnull(strstr(verdict.evidence, "32 elements of 2 drawn steps on 2 ranks"));
}

/* A breach in the events of rank 1, and the verdict. */
static const struct breach {
    const char *what;
    ls_verdict_code code;
    const char *evidence, *cause;
} breaches[] = {
    {"no audit", LS_WEAK, "rank=1 audited 0 steps, not 2", ""},
    {"one audit", LS_WEAK, "rank=1 audited 1 steps, not 2", ""},
    {"other step", LS_WEAK, "drawn was", ""},
    {"nothing", LS_WEAK, "not audited: any element", ""},
    {"part", LS_WEAK, "not audited: update", ""},
    {"no digest", LS_WEAK, "no digest of its images", ""},
    {"bad", LS_FAIL, "rank=1 step", "conv1, sum is not what its operands give"},
    {"rank 0", LS_FAIL, "ranks 0 and 1 have the same images", "reads rank 0's images"},
    {"next step", LS_FAIL, "not those of that step", "batches of another step"},
};
enum { BREACHES = sizeof breaches / sizeof *breaches };

LOOP_TEST(a_job_that_did_not_is_weak_or_fails, BREACHES)
{
    const struct breach *b = &breaches[_i];
    audit_event *event = &f.event[1][1];
    bool bad = strcmp(b->what, "bad") == 0;
    f.count[1] = strcmp(b->what, "no audit") == 0 ? 0 : strcmp(b->what, "one audit") == 0 ? 1 : 2;
    event->step += strcmp(b->what, "other step") == 0 ? 1 : 0;
    event->elements = strcmp(b->what, "nothing") == 0 ? 0 : 8;
    event->unaudited = strcmp(b->what, "part") == 0 ? "update" : "";
    event->bad = bad ? 3 : 0;
    if (strcmp(b->what, "no digest") == 0) {
        event->batch[0] = '\0';
    } else if (strcmp(b->what, "rank 0") == 0) {
        memcpy(event->batch, f.event[0][1].batch, sizeof event->batch);
    } else if (strcmp(b->what, "next step") == 0) {
        draw(1, event->step + 1, event->batch);
    }
    ls_verdict verdict = judge(bad ? LS_ERR_CHECK : 0);
    ck_assert_msg(verdict.code == b->code, "%s: %s %s", b->what, ls_verdict_name(verdict.code),
                  verdict.evidence);
    ck_assert_msg(strstr(verdict.evidence, b->evidence) != NULL, "%s", verdict.evidence);
    ck_assert_msg(strstr(verdict.cause, b->cause) != NULL, "%s", verdict.cause);
}

/* A job that ends with code 1 for another reason has not passed. */
TEST(a_failed_job_fails)
{
    ck_assert_int_eq(judge(LS_ERR_CHECK).code, LS_FAIL);
}

/* Of 16 and more one in each half; never before the window; unlike jobs draw unlike steps. */
TEST(steps_are_drawn_from_the_window)
{
    int first[WARMUP + 40] = {0};
    for (int steps = 1; steps <= 40; steps++) {
        for (uint64_t seed = 0; seed < 20; seed++) {
            ls_spec spec = ls_matrix_spec(LS_ROLE_THROUGHPUT);
            spec.warmup_steps = WARMUP;
            spec.steps = steps;
            spec.seed = seed;
            ls_options options = options_of(&spec);
            int half[2] = {0};
            for (int64_t step = 1; step <= WARMUP + steps / 2 * 2; step++) {
                bool due = ls_audit_due(&options, step);
                ck_assert(!due || step > WARMUP);
                half[step > WARMUP + steps / 2] += due;
                first[step - 1] += due && steps == 15;
            }
            if (steps >= 16) {
                ck_assert_int_eq(half[0], 1);
                ck_assert_int_eq(half[1], 1);
            } else if (steps % 2 == 0) {
                ck_assert_int_eq(half[0] + half[1], 1);
            }
        }
    }
    int unlike = 0;
    for (int i = 0; i < WARMUP + 40; i++) {
        unlike += first[i] > 0;
    }
    ck_assert_int_gt(unlike, 5); /* of 15 steps, drawn 20 times */
}

TEST_MAIN("audited", .before = open_job, .after = close_job)
