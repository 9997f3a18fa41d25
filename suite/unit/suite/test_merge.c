/* Shards of a conformance run and `lockstep merge`: the verdict on the claim, and what is refused.
 */
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

/* Runs the line with sh in the folder; $lockstep is this build's program. Output goes to `log`. */
static int shell(const char *folder, const char *line)
{
    char program[1024], command[2000];
    ls_path_program(program, sizeof program);
    ls_text_put(command, sizeof command, "cd %s && lockstep=%s/../lockstep && { %s; } >log 2>&1",
                folder, program, line);
    int status = system(command);
    return status < 0 || status % 256 != 0 ? -1 : status / 256;
}

/* Every line of the terminal as one: it breaks lines at 80 columns. */
static char *read_log(const char *folder)
{
    LS_TEXT(path, 200, "%s/log", folder);
    char *text = ls_text_read(path), *to = text;
    ck_assert_ptr_nonnull(text);
    for (const char *from = text; *from != '\0'; from++) {
        bool blank = *from == ' ' || *from == '\n';
        if (!blank || (to > text && to[-1] != ' ')) {
            *to++ = blank ? ' ' : *from;
        }
    }
    *to = '\0';
    return text;
}

#define SHARD                                                                      \
    "$lockstep conform --device cpu --claim parts --case 'optim.golden.*' --case " \
    "kernels.sums.skew0 "
#define FIRST "sed -n '1p'"

static const struct merged {
    const char *change, *folders;
    int code;
    const char *says; /* parts */
} merged[] = {
    {"true", "s1 s2 s3", 0,
     "CORRECT not shown (claim parts: 31 of | cases selected, all passed, 31 of them "
     "inside|32 passed, 0 failed"},
    {"sed -i '1s/\"PASS\"/\"FAIL\"/' s2/verdicts.jsonl", "s3 s1 s2", 1,
     "CORRECT no (claim parts: 31 of | cases selected, 30 passed, 31 of them inside our "
     "parts, 1 FAIL; |31 passed, 1 failed"},
    {"sed -i '1s/\"PASS\"/\"INFRA\"/' s2/verdicts.jsonl", "s1 s2 s3", 3, "1 INFRA; "},
    {"true", "s1 s3", 1, "missing shards: 2/3|CORRECT not shown (claim parts: 31 of | SKIP; "},
    {"sed -i 's/\"shards\":.*3/\"shards\": 2000000000/' s?/run.json && sed -i 2d s2/verdicts.jsonl",
     "s1 s2 s3", 1, "missing shards: 4/2000000000, |19/2000000000, ...|CORRECT not shown"},
    {"sed -i 2d s2/verdicts.jsonl", "s1 s2 s3", 1,
     "1 of 32 cases were judged by no shard, such as optim.golden.|CORRECT not shown|1 SKIP; "},
    {"sed -i /kernels.sums/d s?/verdicts.jsonl", /* not of the claim */
     "s1 s2 s3", 0,
     "such as kernels.sums.skew0|CORRECT not shown (claim parts: 31 of |; 0 of 1 outside it"},
    {"true", "s1 s2 s1 s3", 2, "shard 1/3 is given twice: 's1' and 's1'"},
    {"cp -r s2 s4", "s1 s2 s3 s4", 2, "shard 2/3 is given twice: 's2' and 's4'"},
    {"sed -i 's/\"programs\":.*\"/\"programs\": \"77\"/' s2/run.json", "s1 s2 s3", 2,
     "'s1' and 's2' are no shards of one run: build (digest of the programs): | and \"77\""},
    {"sed -i 's/\"seed\":.*\"/\"seed\": \"8\"/' s3/run.json", "s1 s2 s3", 2,
     "'s1' and 's3' are no shards of one run: seed: \"7\" and \"8\""},
    {"sed -i 's/\"optim.golden.lamb.apex\",*//; s/\"optim.golden.apex.sgd\",//' s3/run.json",
     "s1 s2 s3", 2, "are no shards of one run: selected cases: "},
    {"sed -i 's/\"shards\":.*3/\"shards\": 4/' s1/run.json", "s1 s2 s3", 2,
     "are no shards of one run: number of shards: 4 and 3"},
    {FIRST " s1/verdicts.jsonl >>s3/verdicts.jsonl", "s1 s2 s3", 2, "is in 's1' and in 's3'"},
    {"sed -i '1s/PASS/FINE/' s1/verdicts.jsonl", "s1 s2 s3", 2, "line 1: 'FINE' is no verdict"},
    {"sed -i '1s/optim.golden/golden/' s1/verdicts.jsonl", "s1 s2 s3", 2,
     "s1/verdicts.jsonl line 1: 'golden.|' was not selected"},
    {"mkdir s4", "s1 s4", 2, "'s4' is no run: it holds no run.json"},
    {"sed -i 's/\"selection\"/\"x\"/' s2/run.json", "s1 s2 s3", 2, "'s2' is no shard; allowed: "},
    {"mkdir out && date >out/x", "s1 s2 s3", 2, "--out out: allowed: a new folder or an empty"},
};

static char shards[64];

static void make_shards(void)
{
    fake_folder(shards, sizeof shards);
    ck_assert_int_eq(
        shell(shards, "for i in 1 2 3; do " SHARD "--shard $i/3 --out s$i || exit; done"), 0);
}

static void remove_shards(void)
{
    ls_path_remove_tree(shards);
}

ROWS_TEST(shards_become_one_run, merged)
{
    const struct merged *m = &merged[_i];
    char line[400];
    /* without the list that notices every change (test_broken_runs): as an earlier version wrote */
    LS_TEXT(copy, 300,
            "cp -r %s/s1 %s/s2 %s/s3 . && rm s?/files.xxh64 && sed -i 's/\"files\"/\"was\"/' "
            "s?/run.json",
            shards, shards, shards);
    ck_assert_int_eq(shell(folder, copy), 0);
    ck_assert_int_eq(shell(folder, m->change), 0);
    ls_text_put(line, sizeof line, "$lockstep merge --out out %s", m->folders);
    int code = shell(folder, line);
    char *log = read_log(folder);
    ck_assert_msg(code == m->code, "code %d: %s", code, log);
    const char *lacks = fake_lacks(log, m->says);
    ck_assert_msg(lacks == NULL, "no '%s': %s", lacks, log);
    free(log);
    /* all cases are in the merged files; what is refused leaves none */
    ck_assert_int_eq(shell(folder, code == 2 ? "test ! -e out/run.json"
                                             : "test $(wc -l <out/verdicts.jsonl) = 32 && "
                                               "test $(grep -c '<testcase' out/junit.xml) = 32 && "
                                               "grep -q '^CORRECT' out/report.md && "
                                               "test -s out/report.html && "
                                               "grep -q '\"headline\"' out/summary.json"),
                     0);
}

/* Three cases for four machines: the shard without cases has shown nothing, and the merged run has.
 */
TEST(a_whole_claim_is_shown)
{
    int code = shell(folder, "n=0; for i in 1 2 3 4; do $lockstep conform --device cpu --claim "
                             "torch-ddp-bf16 --subject $lockstep-train --shard $i/4 --out s$i; "
                             "c=$?; [ $c -le 1 ] || exit 9; n=$((n + c)); done; [ $n = 1 ]");
    char *log = read_log(folder);
    ck_assert_msg(code == 0, "code %d: %s", code, log);
    ck_assert_msg(strstr(log, "CORRECT not shown (claim torch-ddp-bf16: 0 of 3 cases selected)") !=
                      NULL,
                  "%s", log);
    free(log);
    code = shell(folder, "$lockstep merge s1 s2 s3 s4 --out out && ls out/jobs/*/rank2.jsonl");
    log = read_log(folder);
    ck_assert_msg(code == 0, "code %d: %s", code, log);
    ck_assert_msg(strstr(log, "CORRECT yes (claim torch-ddp-bf16: 3 of 3 cases)") != NULL, "%s",
                  log);
    free(log);
}

TEST_MAIN("merge", .timeout_s = 60, .begin = make_shards, .end = remove_shards,
          .before = fake_begin, .after = fake_end)
