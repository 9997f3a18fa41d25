/* Every file of a finished run, one at a time: removed, emptied, cut in the middle, cut at a line's
 * end, replaced by that of another run. No command that reads the run ends with 0 then, but where
 * the file cannot matter to it (`harmless`), none blames the subject, crashes or hangs.
 *
 *   build/unit/test_broken_runs               a few (make check)
 *   build/unit/test_broken_runs COUNT SEED    so many, drawn; COUNT 0: all, of a bench, too */
#include "hostile_files.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "suite/unit/run_suite.h"

enum { QUICK = 8, LIMIT_S = 120, MAKE_S = 900 /* a bench, on a machine that does other things */ };

static char root[64], program[1024];

/* Runs a line with sh in the root; $L is this build's program. 124 or 137: it did not end. */
static int shell_within(int limit_s, const char *line)
{
    char command[3000];
    ls_text_put(command, sizeof command,
                "cd %s && L='timeout -s KILL %d %s/../lockstep' B=%s/.. && { %s; } >log 2>&1", root,
                limit_s, program, program, line);
    int status = system(command);
    return status < 0 || status % 256 != 0 ? 255 : status / 256;
}

static int shell(const char *line)
{
    return shell_within(LIMIT_S, line);
}

static char *said(void)
{
    LS_TEXT(path, 100, "%s/log", root);
    return ls_text_read(path);
}

/* ---- runs ----------------------------------------------------------------------------------- */

#define CASES                                                                           \
    "--device cpu --case gradients.o1.w2.b0.1mb --case ddp.lockstep.o1.w2 --shard 1/1 " \
    "--keep-dumps"
#define OBSERVED                                                                                  \
    "-- $B/lockstep-launch --nproc-per-node 2 -- $B/lockstep-train -a resnet8 --image-size 8 -b " \
    "2 --steps 3 --device cpu --opt-level O1 --loss-scale 128"

/* Two runs of each kind: the second one's files replace those of the first. */
static const struct kind {
    const char *name, *make, *other;
    bool slow; /* only where all is tried */
} kinds[] = {
    {"conform", "$L conform " CASES " --seed 7 --out conform",
     "$L conform " CASES " --seed 8 --out conform-other", false},
    {"observe", "$L observe --out observe " OBSERVED " --seed 7",
     "$L observe --out observe-other " OBSERVED " --seed 8", false},
    {"bench", "$L bench PROFILE=smoke NGPUS=2 OUT=b && mv b/* bench",
     "$L bench PROFILE=smoke NGPUS=2 OUT=c && mv c/* bench-other", true},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

enum { CONFORM = 1, OBSERVE = 2, BENCH = 4 };

/* What reads a run: x is the damaged one. */
static const struct reader {
    const char *name, *line;
    unsigned kinds;
} readers[] = {
    {"judge", "$L judge x", CONFORM | OBSERVE | BENCH},
    {"diff x y", "$L diff x y", CONFORM | BENCH},
    {"diff y x", "$L diff y x", CONFORM | BENCH},
    {"diff --gate x y", "$L diff --gate 5% x y", CONFORM | BENCH},
    {"diff --gate y x", "$L diff --gate 5% y x", CONFORM | BENCH},
    {"merge", "rm -rf m; $L merge --out m x", CONFORM},
    {"baseline", "$L bench PROFILE=smoke NGPUS=2 DRYRUN=1 BASELINE=x", CONFORM | BENCH},
    {"resume", "$L conform " CASES " --seed 7 --out x --resume --list", CONFORM},
    {"resume", "$L bench RESUME=x DRYRUN=1", BENCH},
    {"report", "$L report x", CONFORM | OBSERVE | BENCH}, /* last: it writes */
};
enum { READERS = sizeof readers / sizeof *readers };

/* Files that cannot matter, and to whom. */
static const struct harmless {
    const char *file, *reader, *reason;
} harmless[] = {
    {"plots/*", "*", "a picture for people"},
    {"report.*", "*", "a page for people"},
    {"trace.json", "*", "a timeline for a viewer"},
    {"jobs/*/tensorboard/*", "*", "curves for TensorBoard"},
    {"jobs/*/compare.json", "*", "judge writes it again"},
    {"oracle/*", "*", "results kept by digest of what they belong to"},
    {"jobs/*", "diff*", "diff reads run.json, verdicts.jsonl and summary.json"},
    {"tables/*", "diff*", "the same"},
    {"junit.xml", "diff*", "the same"},
    {"batches/*", "diff*", "the same"},
    {"jobs/*", "baseline", "the baseline is run.json, verdicts.jsonl and summary.json"},
    {"tables/*", "baseline", "the same"},
    {"junit.xml", "baseline", "the same"},
    {"batches/*", "baseline", "the same"},
    {"jobs/*/dump/*", "merge", "dumps stay with their shard"},
    {"summary.json", "merge", "written for all shards"},
    {"tables/*", "merge", "written for all shards"},
    {"junit.xml", "merge", "written for all shards"},
    {"summary.json", "re[ps]*", "written again"},
    {"tables/*", "re[ps]*", "written again"},
    {"junit.xml", "re[ps]*", "written again"},
    {"jobs/*/dump/*", "report", "no report reads dumps"},
    {"batches/*", "report", "no report reads batches"},
};

static const char *why_harmless(const char *file, const char *reader)
{
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) {
        if (ls_text_matches(harmless[i].file, file) &&
            ls_text_matches(harmless[i].reader, reader)) {
            return harmless[i].reason;
        }
    }
    return NULL;
}

/* ---- damage --------------------------------------------------------------------------------- */

static const char *const damages[] = {"removed", "emptied", "cut", "cut at a line's end",
                                      "replaced"};
enum { REMOVED, EMPTIED, CUT, CUT_LINE, REPLACED, DAMAGES };

/* The same file of the other run: jobs and files with times in their names have other names. */
static bool find_other(const char *kind, const char *file, char path[PATH_BYTES])
{
    char line[1200], name[400] = "";
    for (const char *at = file; *at != '\0'; at++) { /* digits may differ */
        bool digit = strchr("0123456789abcdef", *at) != NULL;
        ls_text_add(name, sizeof name, digit ? "?" : "%c", *at);
    }
    ls_text_put(line, sizeof line, "ls -d %s-other/%s %s-other/%s | head -n 1 | tr -d '\\n'", kind,
                file, kind, name);
    char *found = shell(line) == 0 ? said() : NULL;
    const char *at = found == NULL ? NULL : strstr(found, kind);
    ls_text_put(path, PATH_BYTES, "%s/%s", root, at == NULL ? "" : at);
    free(found);
    return at != NULL && access(path, R_OK) == 0;
}

/* False where the damage leaves the file as it is. */
static bool spoil(const char *kind, const char *file, int damage)
{
    size_t bytes, kept = 0;
    char other[PATH_BYTES];
    LS_TEXT(path, PATH_BYTES, "%s/x/%s", root, file);
    char *data = get(path, &bytes);
    bool changed = true;
    if (damage == REMOVED) {
        LS_ASSERT(unlink(path) == 0);
    } else if (damage == REPLACED) {
        size_t count = 0;
        char *from = find_other(kind, file, other) ? get(other, &count) : NULL;
        changed = from != NULL && (count != bytes || memcmp(from, data, bytes) != 0);
        if (changed) {
            put(path, from, count);
        }
        free(from);
    } else {
        kept = damage == EMPTIED ? 0 : bytes / 2;
        while (damage == CUT_LINE && kept > 0 && data[kept - 1] != '\n') {
            kept--;
        }
        changed = kept < bytes && (damage != CUT_LINE || kept > 0);
        put(path, data, changed ? kept : bytes);
    }
    free(data);
    return changed;
}

/* ---- one ------------------------------------------------------------------------------------ */

typedef struct tally {
    int damaged, commands, refused, harmless, bad;
} tally;

static void try_reader(const struct reader *r, const char *what, const char *file, tally *t)
{
    int code = shell(r->line);
    const char *reason = why_harmless(file, r->name);
    char *text = said();
    bool blames = text == NULL || strstr(text, "# FAIL") != NULL;
    bool good = code < 124 && !blames && (code != 0 || reason != NULL);
    t->commands++;
    t->refused += code != 0;
    t->harmless += code == 0 && reason != NULL;
    t->bad += !good;
    if (!good) {
        printf("not ok - %s: %s: exit code %d\n%s", what, r->name, code, text == NULL ? "" : text);
    }
    free(text);
}

static void try_damage(int kind, const char *file, int damage, tally *t)
{
    const struct kind *k = &kinds[kind];
    char line[400];
    ls_text_put(line, sizeof line, "rm -rf x y && cp -r %s x && cp -r %s y", k->name, k->name);
    LS_ASSERT(shell(line) == 0);
    if (!spoil(k->name, file, damage)) {
        return;
    }
    t->damaged++;
    LS_TEXT(what, 600, "%s: %s %s", k->name, file, damages[damage]);
    for (int i = 0; i < READERS; i++) {
        if ((readers[i].kinds & 1u << kind) != 0) {
            try_reader(&readers[i], what, file, t);
        }
    }
}

/* ---- all files ------------------------------------------------------------------------------ */

typedef struct files {
    char **name;
    int count;
} files;

static files list_files(const char *kind)
{
    files out = {NULL, 0};
    LS_TEXT(line, 200, "cd %s && find . -type f | cut -c 3- | sort", kind);
    LS_ASSERT(shell(line) == 0);
    char *text = said(), *rest = NULL;
    int room = 0;
    for (char *name = strtok_r(text, "\n", &rest); name != NULL;
         name = strtok_r(NULL, "\n", &rest)) {
        out.name = ls_list_grow(out.name, out.count, &room, sizeof *out.name);
        out.name[out.count++] = strdup(name);
    }
    free(text);
    return out;
}

static void free_files(files *list)
{
    for (int i = 0; i < list->count; i++) {
        free(list->name[i]);
    }
    free(list->name);
}

static void make_root(void)
{
    ls_path_program(program, sizeof program);
    ls_text_put(root, sizeof root, "%s/ls_broken_XXXXXX",
                access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp");
    LS_ASSERT(mkdtemp(root) != NULL);
}

static void make_runs(const struct kind *k)
{
    if (shell_within(MAKE_S, k->make) != 0 || shell_within(MAKE_S, k->other) != 0) {
        char *text = said();
        printf("%s\n", text == NULL ? "" : text);
        ls_log_error("no %s to spoil", k->name);
        ls_path_remove_tree(root);
        exit(LS_ERR_INFRA);
    }
}

static int many_main(int count, uint64_t seed)
{
    tally t = {0};
    make_root();
    for (int kind = 0; kind < KINDS; kind++) {
        if (kinds[kind].slow && count > 0) {
            continue;
        }
        make_runs(&kinds[kind]);
        files list = list_files(kinds[kind].name);
        int all = list.count * DAMAGES;
        for (int i = 0; i < (count == 0 ? all : count); i++) {
            int drawn = count == 0
                            ? i
                            : (int)ls_rng_below(seed, (uint64_t)kind, (uint64_t)i, (uint32_t)all);
            try_damage(kind, list.name[drawn / DAMAGES], drawn % DAMAGES, &t);
        }
        printf("%s: %d files; so far %d damaged, %d commands, %d refused, %d with code 0 where the "
               "file cannot matter, %d not as they must\n",
               kinds[kind].name, list.count, t.damaged, t.commands, t.refused, t.harmless, t.bad);
        fflush(stdout);
        free_files(&list);
    }
    ls_path_remove_tree(root);
    return t.bad == 0 ? 0 : LS_ERR_CHECK;
}

/* ---- make check ----------------------------------------------------------------------------- */

static void check_damage(int kind, const char *file, int damage)
{
    tally t = {0};
    try_damage(kind, file, damage, &t);
    ck_assert_int_eq(t.bad, 0);
}

/* Undamaged, every reader but a gate on speeds that are not there is content: each refusal above is
 * of the damage. */
LOOP_TEST(whole_runs_are_read, READERS)
{
    const struct reader *r = &readers[_i];
    for (int kind = 0; kind < KINDS; kind++) {
        if (kinds[kind].slow || (r->kinds & 1u << kind) == 0) {
            continue;
        }
        LS_TEXT(line, 300, "rm -rf x y && cp -r %s x && cp -r %s y", kinds[kind].name,
                kinds[kind].name);
        ck_assert_int_eq(shell(line), 0);
        int code = shell(r->line);
        char *text = said();
        bool gates = strstr(r->name, "gate") != NULL;
        ck_assert_msg(code == (gates ? LS_ERR_USAGE : 0), "%s: %d: %s", r->name, code, text);
        free(text);
    }
}

LOOP_TEST(verdicts_are_missed, DAMAGES)
{
    check_damage(0, "verdicts.jsonl", _i);
}

LOOP_TEST(list_is_missed, DAMAGES)
{
    check_damage(0, "files.xxh64", _i);
}

LOOP_TEST(drawn_files_are_missed, QUICK)
{
    int kind = _i % 2;
    files list = list_files(kinds[kind].name);
    uint32_t all = (uint32_t)list.count * DAMAGES;
    int drawn = (int)ls_rng_below(44, 1, (uint64_t)_i, all);
    check_damage(kind, list.name[drawn / DAMAGES], drawn % DAMAGES);
    free_files(&list);
}

#define JOB "rm -rf x j && cp -r conform x && cp -r x/jobs/* j && "

#define OLD                                                                                      \
    "rm -rf x && cp -r conform x && rm x/files.xxh64 && sed -i 's/\"files\"/\"f\"/' x/run.json " \
    "&& "

/* What a job announced and did not leave, and what is left of a run. */
static const struct told {
    const char *line;
    int code;
    const char *says, *absent;
} lines[] = {
    {JOB "$L judge j", 0, "gradients.j # PASS", "not judged"},
    {JOB "rm -r j/dump && $L judge j", 1,
     "gradients.j # WEAK the job left 0 of 4 announced dumps: dump/step000001.rank0.safetensors is",
     "FAIL"},
    {JOB "rm j/dump/step000002* && $L judge j", 1, "# WEAK the job left 2 of 4 announced dumps",
     "FAIL"},
    {JOB "rm j/dump/*2.rank1* && $L judge j", 1,
     "left 3 of 4 announced dumps: dump/step000002.rank1.safetensors is missing", "FAIL"},
    /* the command announces, where the events do not */
    {JOB "sed -i 's/\"dump-steps\"/\"x\"/; s/\"dump-ranks\"/\"y\"/' j/*.jsonl && rm -r j/dump && "
         "$L judge j",
     1, "left 0 of 4 announced dumps", "FAIL"},
    /* removed by the run */
    {JOB "rm -r j/dump && sed -i 's/\"id\"/\"dumps_removed\":\"they had passed\",\"id\"/' "
         "j/job.json && $L judge j",
     0, "3 passed, 0 failed, 1 not judged", "not ok"},
    {"$L conform --device cpu --case ddp.lockstep.o1.w2 --case gradients.o1.w2.b0.1mb --out e && "
     "$L judge e",
     0, "# 4 of 4 dumps were removed: all cases that read them had passed", "not ok"},
    /* nothing says how the ranks ended */
    {JOB "rm j/job.json j/rank1.jsonl && $L judge j", 1,
     "ddp.j # WEAK rank=1 wrote no events, and no job.json says how it ended", "FAIL"},
    {JOB "rm j/job.json && sed -i 4,\\$d j/rank1.jsonl && $L judge j", 1,
     "its events stop after step 1 without an end event, and no job.json", "left with code 0"},
    {JOB "rm j/rank1.jsonl && $L judge j", 1, "training.j # FAIL as ddp.j", "training.j # FAIL r"},
    {JOB "truncate -s 1000000 j/dump/*1.rank1* && $L judge j", 1,
     "rank=1 step 1: dump/step000001.rank1.safetensors is not a whole safetensors file: ",
     "(usage)"},
    {JOB "sed -i 's,\"save\":null,\"save\":\"/nowhere/c.safetensors\",' j/*.jsonl && $L judge j", 1,
     "saved.j # WEAK the checkpoint that the job announced is neither at /nowhere/c.safetensors",
     "FAIL"},
    /* a run that has not ended */
    {"rm -rf x && cp -r conform x && rm x/files.xxh64 && sed -i 's/\"headline\"/\"h\"/; "
     "s/\"files\"/\"f\"/' x/run.json && $L diff conform x",
     2, "'x' is not finished (its run.json has no headline): it cannot be compared", NULL},
    /* a run of an earlier version */
    {OLD "$L diff conform x", 0,
     "warning: x was written by an earlier version, without files.xxh64", NULL},
    {OLD "sed -i \\$d x/verdicts.jsonl && $L diff conform x", 1, "1 missing in B", NULL},
    {OLD "truncate -s -5 x/verdicts.jsonl && $L diff conform x", 3,
     "x/verdicts.jsonl is cut: its last line has no end", NULL},
    {OLD ": >x/verdicts.jsonl && $L diff conform x", 3, "x/verdicts.jsonl is empty", NULL},
};

ROWS_TEST(words_of_what_is_missing, lines)
{
    const struct told *l = &lines[_i];
    int code = shell(l->line);
    char *text = said();
    ck_assert_msg(code == l->code, "%s: %d: %s", l->line, code, text);
    ck_assert_msg(strstr(text, l->says) != NULL, "%s: no '%s': %s", l->line, l->says, text);
    ck_assert_msg(l->absent == NULL || strstr(text, l->absent) == NULL, "%s: '%s': %s", l->line,
                  l->absent, text);
    free(text);
}

int main(int argc, char **argv)
{
    if (argc == 3) {
        return many_main(atoi(argv[1]), strtoull(argv[2], NULL, 10));
    }
    make_root();
    for (int i = 0; i < KINDS; i++) {
        if (!kinds[i].slow) {
            make_runs(&kinds[i]);
        }
    }
    int code = RUN_TESTS("broken_runs", .timeout_s = 2 * LIMIT_S);
    ls_path_remove_tree(root);
    return code;
}
