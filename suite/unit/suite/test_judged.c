/* Records of a foreign trainer that are wrong in one place: what `lockstep judge` prints and
 * returns.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "kernels/core/path.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

#define STEP(number, loss, members) \
    "{\"event\":\"step\",\"step\":" #number ",\"loss\":" #loss ",\"lr\":0.1," members "}\n"
/* '@' is the rank's number. */
#define DIGEST(param, rest) "\"digest\":{\"param\":\"" param "\"" rest "}"
#define SCALE(now, next) "\"loss_scale\":" #now ",\"loss_scale_next\":" #next
#define TAKEN(now, next) SCALE(now, next) ",\"skipped\":false,"
#define SKIPPED(now, next) SCALE(now, next) ",\"skipped\":true,"
#define DYNAMIC "\"opt-level\":\"O1\",\"loss-scale\":\"dynamic\",\"growth-interval\":2"
#define FP32 "\"opt-level\":\"O0\",\"loss-scale\":\"1\""

static const struct job {
    const char *options, *steps; /* of each of two ranks */
    int code;
    const char *line, *absent; /* the output has the first, and not the second; NULL: any */
} jobs[] = {
    /* a right one */
    {DYNAMIC,
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", "")) STEP(2, 2.4, TAKEN(8, 16) DIGEST("2", ""))
         STEP(3, 2.3, SKIPPED(16, 8) DIGEST("2", "")) STEP(4, 2.2, TAKEN(8, 8) DIGEST("4", "")),
     0, "PASS scale follows its rule, 1 skipped steps, 2 changes", "not ok"},
    /* nothing was trained */
    {DYNAMIC,
     STEP(1, null, SKIPPED(8, 4) DIGEST("1", "")) STEP(2, null, SKIPPED(4, 2) DIGEST("1", "")), 1,
     "FAIL rank=0: all 2 steps are skipped, and the loss is not finite: nothing was trained",
     "PASS"},
    {DYNAMIC,
     STEP(1, 2.5, SKIPPED(1, 0.5) DIGEST("1", "")) STEP(2, 2.5, SKIPPED(0.5, 0.25) DIGEST("1", "")),
     1, "FAIL rank=0: all 2 steps are skipped, and the loss scale is below 1", "PASS"},
    {DYNAMIC,
     STEP(1, 2.5, SKIPPED(8, 4) DIGEST("1", "")) STEP(2, 2.5, SKIPPED(4, 2) DIGEST("1", "")), 1,
     "WEAK rank=0: all 2 steps are skipped: nothing was trained", "PASS"},
    {DYNAMIC,
     STEP(1, 2.5, TAKEN(64, 64) DIGEST("1", "")) STEP(2, 2.5, TAKEN(64, 128) DIGEST("2", "")) STEP(
         3, null, SKIPPED(128, 64) DIGEST("2", "")) STEP(4, null, SKIPPED(64, 32) DIGEST("2", ""))
         STEP(5, null, SKIPPED(32, 16) DIGEST("2", "")),
     1, "FAIL rank=0: from step 3 on every step is skipped and no loss is finite", "PASS"},
    {FP32, STEP(1, 2.5, TAKEN(1, 1) DIGEST("1", "")) STEP(2, null, TAKEN(1, 1) DIGEST("2", "")), 1,
     "FAIL rank=0 step 2 was taken with a loss that is not finite", NULL},
    {FP32,
     STEP(1, 2.5, TAKEN(1, 1) DIGEST("1", ""))
         STEP(2, 2.5, "\"loss_bits\":\"0xffc00000\"," TAKEN(1, 1) DIGEST("2", "")),
     1, "FAIL rank=0 step 2 was taken with a loss that is not finite", NULL},
    {FP32, STEP(1, 2.5, TAKEN(1, 1) DIGEST("1", "")) STEP(2, 2.4, TAKEN(1, 1) DIGEST("1", "")), 1,
     "FAIL rank=0: no parameter changes in 1 taken steps: nothing was trained", NULL},
    {FP32,
     "{\"event\":\"step\",\"step\":1,\"loss_scale\":1,\"loss_scale_next\":1}\n"
     "{\"event\":\"step\",\"step\":2,\"loss_scale\":1,\"loss_scale_next\":1}\n",
     4, "UNSUPPORTED the events have neither losses nor digests of param", NULL},
    /* a skipped step changes nothing */
    {DYNAMIC,
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", "")) STEP(2, 2.4, SKIPPED(8, 4) DIGEST("2", ""))
         STEP(3, 2.3, TAKEN(4, 4) DIGEST("3", "")),
     1, "FAIL rank=0 step 2 was skipped, but param changed (1 to 2)", NULL},
    {DYNAMIC,
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", ",\"master\":\"a\""))
         STEP(2, 2.4, SKIPPED(8, 4) DIGEST("1", ",\"master\":\"b\""))
             STEP(3, 2.3, TAKEN(4, 4) DIGEST("3", ",\"master\":\"c\"")),
     1, "FAIL rank=0 step 2 was skipped, but master changed (a to b)", NULL},
    {DYNAMIC,
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", ",\"state\":\"a\""))
         STEP(2, 2.4, SKIPPED(8, 4) DIGEST("1", ",\"state\":\"b\""))
             STEP(3, 2.3, TAKEN(4, 4) DIGEST("3", ",\"state\":\"c\"")),
     1, "FAIL rank=0 step 2 was skipped, but state changed (a to b)", NULL},
    /* the scale */
    {"\"opt-level\":\"O1\",\"loss-scale\":\"dynamic\"",
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", "")) STEP(2, 2.4, TAKEN(8, 8) DIGEST("2", "")), 1,
     "WEAK the scale stays at 8: nothing shows how it grows or backs off", "FAIL"},
    {"\"opt-level\":\"O2\",\"loss-scale\":8",
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", "")) STEP(2, 2.4, TAKEN(8, 8) DIGEST("2", "")), 0, "",
     "not ok"},
    {"\"opt-level\":\"O2\",\"loss-scale\":\"128\"",
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", "")) STEP(2, 2.4, TAKEN(8, 8) DIGEST("2", "")), 1,
     "FAIL rank=0 step 1: scale 8, then 8, taken; expected 128, then 128", NULL},
    {DYNAMIC ",\"init-scale\":16",
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", "")) STEP(2, 2.4, TAKEN(8, 16) DIGEST("2", "")), 1,
     "FAIL rank=0 step 1: scale 8, then 8, taken; expected 16, then 16", NULL},
    {DYNAMIC,
     STEP(1, 2.5, SCALE(8, 8) "," DIGEST("1", "")) STEP(2, 2.4, SCALE(8, 16) "," DIGEST("2", "")),
     4, "UNSUPPORTED rank=0: the events do not say whether a step was skipped", NULL},
    /* what no event gives is equal on all ranks */
    {"\"opt-level\":\"O0\"", STEP(1, 2.5, DIGEST("1", "")) STEP(2, 2.4, DIGEST("2", "")), 4,
     "PASS 2 digests of 2 ranks equal", "FAIL"},
    /* causes stand on what the events have */
    {FP32, STEP(1, 2.5, TAKEN(1, 1) DIGEST("1@", "")) STEP(2, 2.4, TAKEN(1, 1) DIGEST("2@", "")), 1,
     "FAIL rank=1 step 1: param is 11, expected 10", "cause:"},
    {FP32,
     STEP(1, 2.5, TAKEN(1, 1) DIGEST("1@", ",\"grad\":\"a\""))
         STEP(2, 2.4, TAKEN(1, 1) DIGEST("2@", ",\"grad\":\"b\"")),
     1, "cause:  gradients are equal, parameters differ from the start", NULL},
    {FP32, STEP(1, 2.5, TAKEN(1, 1) DIGEST("1", "")) STEP(2, 2.4, TAKEN(1, 1) DIGEST("2@", "")), 1,
     "FAIL rank=1 step 2: param is 21, expected 20", "cause:"},
};

static void write_job(const char *folder, const struct job *job)
{
    for (int k = 0; k < 2; k++) {
        LS_TEXT(name, 32, "rank%d.jsonl", k);
        FILE *file = fake_open(folder, name);
        fprintf(file, "{\"event\":\"start\",\"schema\":1,\"world\":2,\"options\":{%s}}\n",
                job->options);
        for (const char *c = job->steps; *c != '\0'; c++) {
            fputc(*c == '@' ? '0' + k : *c, file);
        }
        fprintf(file, "{\"event\":\"end\"}\n");
        fclose(file);
    }
}

/* `lockstep judge` of the folder; the caller frees the output. */
static char *judge_folder(const char *folder, int *code)
{
    char program[1024];
    ls_path_program(program, sizeof program);
    LS_TEXT(command, 1400, "%s/../lockstep judge %s >%s/said 2>&1", program, folder, folder);
    int status = system(command);
    ck_assert(WIFEXITED(status));
    *code = WEXITSTATUS(status);
    LS_TEXT(path, 200, "%s/said", folder);
    char *said = ls_text_read(path);
    ck_assert_ptr_nonnull(said);
    return said;
}

START_TEST(events_are_judged_as_they_lie)
{
    const struct job *job = &jobs[_i];
    char folder[64];
    int code;
    fake_folder(folder, sizeof folder);
    write_job(folder, job);
    char *said = judge_folder(folder, &code);
    ck_assert_msg(code == job->code && strstr(said, job->line) != NULL &&
                      (job->absent == NULL || strstr(said, job->absent) == NULL),
                  "%s: exit %d, expected %d and '%s', not '%s':\n%s", job->steps, code, job->code,
                  job->line, job->absent == NULL ? "" : job->absent, said);
    free(said);
    ls_path_remove_tree(folder);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("judged");
    TCase *tests = tcase_create("judged");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, events_are_judged_as_they_lie, 0, (int)(sizeof jobs / sizeof *jobs));
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
