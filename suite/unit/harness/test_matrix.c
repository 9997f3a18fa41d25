/* How a spec becomes a job: its name, its command, its facts and an estimate of its time. */
#include <stddef.h>

#include "harness/process/proc.h"
#include "harness/run/matrix.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "kernels/core/json.h"
#include "suite/unit/run_suite.h"

TEST(equal_specs_are_one_job_and_different_ones_are_not)
{
    ls_matrix matrix = {0, 0, NULL, NULL};
    ls_spec a = ls_matrix_spec(LS_ROLE_EVIDENCE), b = a;
    b.sweep = LS_SWEEP_LEVEL;
    ck_assert_int_eq(ls_matrix_add(&matrix, &a), 0);
    ck_assert_int_eq(ls_matrix_add(&matrix, &b), 0);
    ck_assert_uint_eq(matrix.spec[0].sweep, LS_SWEEP_LEVEL);
    ls_spec different[8];
    for (int i = 0; i < 8; i++) {
        different[i] = a;
    }
    different[0].seed = 1;
    different[1].bucket_mb = LS_BUCKET_DELAYED;
    different[2].world = 2;
    different[3].sync_bn = true;
    different[4].repeat = 1;
    different[5].wrap = LS_WRAP_ALONE;
    ls_text_put(different[6].extra, sizeof different[6].extra, "--nesterov");
    ls_text_put(different[7].half, sizeof different[7].half, "bf16");
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(ls_matrix_add(&matrix, &different[i]), i + 1);
    }
    ls_matrix_free(&matrix);
}

static bool has_argument(const ls_job *job, const char *text)
{
    for (int i = 0; i < job->command.count; i++) {
        if (strcmp(job->command.word[i], text) == 0) {
            return true;
        }
    }
    return false;
}

/* A script has the folders as variables: no part of their names is run or split. */
TEST(a_script_takes_any_folder)
{
    static const char run[] = "/r/q';echo ran;'$(echo ran) `echo ran` \"* ;";
    ls_spec spec = ls_matrix_spec(LS_ROLE_EVIDENCE);
    spec.wrap = LS_WRAP_SHELL;
    spec.script = "S={self}/a; printf '<%s>' $S {run}/b --c={job:abc}/c \"$0\"; exit";
    ls_matrix_site site = {.subject = "t", .run_directory = run, .device = "cpu", .cores = 2};
    ls_job job;
    ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
    ck_assert_str_eq(job.command.word[0], "sh");
    int code;
    char *said = ls_proc_isolated_output(job.command.word, 10, &code);
    LS_TEXT(wanted, 2000, "<%s/a><%s/b><--c=%s/jobs/abc/c><t>", job.directory, run, run);
    ck_assert_int_eq(code, 0);
    ck_assert_str_eq(said, wanted);
    free(said);
    ls_job_free(&job);
}

/* ---- names, estimates and commands ------------------------------------------------------------
 */

static void check_near(double seconds, double want)
{
    /* 1e-9: the same sums in another order */
    ck_assert_double_eq_tol(seconds, want, 1e-9);
}

static const struct {
    ls_spec spec;
    const char *label, *id; /* without the digest */
} named[] = {
    {{.arch = "resnet18", .level = 2, .world = 4, .nodes = 1, .bucket_mb = 25, .steps = 3},
     "O2, 4 ranks, 25 MB",
     "resnet18.o2.w4.b25mb.s3-"},
    {{.arch = "resnet18", .level = 0, .half = "bf16", .world = 1, .nodes = 1, .warmup_steps = 2},
     "O0, 1 rank, delayed",
     "resnet18.o0.w1.delay.s2-"},
    {{.arch = "resnet101xyz", .level = 3, .half = "bf16", .world = 1, .nodes = 1, .bucket_mb = -1},
     "O3 bf16, 1 rank, own rule",
     "resnet101x.o3.w1.own.s0-"},
    {{.level = -1, .half = "bf16", .world = 4, .nodes = 2, .bucket_mb = 1, .sync_bn = true},
     "no level, 4 ranks, 2 sim. nodes, 1 MB, SyncBN",
     ".o.w4.n2.b1mb.sync.s0-"},
    {{.role = LS_ROLE_NO_COMM, .world = 4, .nodes = 2, .real_nodes = true, .bucket_mb = 0.5},
     "O0, 4 ranks, 2 nodes, 0.5 MB, not reduced",
     ".o0.w4.n2.b0.5mb.s0-"},
    {{.role = LS_ROLE_DDP_WORLD1, .level = 1, .world = 1, .nodes = 1},
     "O1, 1 rank, delayed, DDP",
     ".o1.w1.delay.s0-"},
    {{.role = LS_ROLE_STRONG_SCALING, .world = 2, .nodes = 1},
     "O0, 2 ranks, delayed, same total",
     ".o0.w2.delay.s0-"},
    {{.role = LS_ROLE_CURVES, .level = -1, .world = 13, .nodes = 1},
     "13 single runs, for their loss",
     ".o.w13.delay.s0-"},
    {{.role = LS_ROLE_SDC, .level = 2, .world = 8, .nodes = 1},
     "8 x the same alone, for the bits",
     ".o2.w8.delay.s0-"},
    {{.role = LS_ROLE_SDC, .level = 2, .world = 8, .nodes = 1, .repeat = 1},
     "8 x the same alone, for the bits, again",
     ".o2.w8.delay.s0-"},
    /* cut to what a table has room for */
    {{.level = 3, .half = "bf16", .world = 1000000, .nodes = 1000, .bucket_mb = 1.23457e-10},
     "O3 bf16, 1000000 ranks, 1000 sim. nodes, 1.23457e-10 MB",
     ".o3.w1000000.n1000.b1.23457e-10mb.s0-"},
    {{.level = 3,
      .half = "bf16",
      .world = 1000000,
      .nodes = 1000,
      .bucket_mb = 1.23457e-10,
      .sync_bn = true},
     "O3 bf16, 1000000 ranks, 1000 sim. nodes, 1.23457e-10 MB, SyncBN",
     ".o3.w1000000.n1000.b1.23457e-10mb.sync.s0-"},
    {{.role = LS_ROLE_STRONG_SCALING, .world = 100000000, .nodes = 1000, .bucket_mb = 1.23457e-10},
     "O0, 100000000 ranks, 1000 sim. nodes, 1.23457e-10 MB, same tota",
     ".o0.w100000000.n1000.b1.23457e-10mb.s0-"},
    {{.role = LS_ROLE_STRONG_SCALING,
      .level = 1,
      .half = "bf16",
      .world = 2147483647,
      .nodes = 1,
      .bucket_mb = 0.000123457},
     "O1 bf16, 2147483647 ranks, 0.000123457 MB, same total",
     ".o1.w2147483647.b0.000123457mb.s0-"},
};

TEST(jobs_have_names)
{
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        char label[80], id[96];
        size_t length = strlen(named[i].id);
        ls_matrix_label(&named[i].spec, label);
        ls_matrix_id(&named[i].spec, id);
        ck_assert_str_eq(label, named[i].label);
        ck_assert_msg(strncmp(id, named[i].id, length) == 0, "%s is not %s", id, named[i].id);
        ck_assert_uint_eq(strlen(id), length + 8);
        ck_assert_uint_eq(strspn(id + length, "0123456789abcdef"), 8);
    }
}

/* Every member that changes the job changes its id; where it runs and what it is for do not. */
TEST(an_id_follows_from_the_job)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_EVIDENCE), other[32];
    char ids[32][96];
    int count = 0;
    spec.dump_steps[0] = '1';
    spec.world = 2;
    for (int i = 0; i < 32; i++) {
        other[i] = spec;
    }
    count++; /* the first is the same */
    ls_text_put(other[count++].arch, 32, "resnet8");
    other[count++].image_size = 17;
    other[count++].batch_size = 0;
    other[count++].warmup_steps = 1;
    other[count++].level = 1;
    other[count++].level = -1;
    other[count++].loss_scale[0] = '2';
    other[count++].bucket_mb = 0;
    other[count++].dialect[0] = 't';
    other[count++].half[0] = 'b';
    other[count++].sync_bn = true;
    other[count++].accumulate = 2;
    other[count++].lr = 0.06;
    other[count++].data[0] = 'x';
    other[count++].seed = 1;
    other[count++].dump_steps[0] = '2';
    other[count++].dump_all = true;
    other[count++].deterministic = false;
    other[count++].threads = 0;
    other[count++].extra[0] = 'x';
    other[count++].world = 1;
    other[count++].nodes = 2;
    other[count++].real_nodes = true;
    other[count++].wrap = LS_WRAP_ALONE;
    other[count++].wrap = LS_WRAP_EACH;
    other[count++].kill_rank = 0;
    other[count++].kill_step = 1;
    other[count++].role = LS_ROLE_PHASES;
    other[count++].repeat = 1;
    other[count++].script = "x";
    for (int i = 0; i < count; i++) {
        ls_matrix_id(&other[i], ids[i]);
        for (int k = 0; k < i; k++) {
            ck_assert_msg(strcmp(ids[k], ids[i]) != 0, "%d and %d are %s", k, i, ids[i]);
        }
    }
    other[0] = spec;
    other[0].role = LS_ROLE_THROUGHPUT;
    other[0].limit_s = other[0].grace_s = 7;
    other[0].sweep = 15;
    other[0].followed = true;
    ls_text_put(other[0].each, 1024, "of another wrapper");
    char id[96];
    ls_matrix_id(&other[0], id);
    ck_assert_str_eq(id, ids[0]);
    other[0].wrap = other[1].wrap = LS_WRAP_EACH;
    other[1] = other[0];
    ls_text_put(other[1].each, 1024, "different options");
    ls_matrix_id(&other[0], ids[0]);
    ls_matrix_id(&other[1], ids[1]);
    ck_assert_str_ne(ids[0], ids[1]);
}

/* The model's figures, worked out by hand in each row: (images * GFLOP / (45 * cores in use) * 1.5
 * of half + ranks * GB / (0.35 * cores) + 0.002 * ranks) * steps + dump, and the start. */
TEST(estimates_follow_the_model)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_REFERENCE);
    ls_text_put(spec.arch, sizeof spec.arch, "resnet18");
    spec.image_size = 112;
    spec.batch_size = 10;
    spec.steps = 4;
    spec.warmup_steps = 1;
    double step = 10 * 1.81 / 4 * 6 / 45 + 11.7e-3 * 4 / 0.35 + 0.002, start = 0.4 + 0.35;
    check_near(ls_matrix_estimate_s(&spec, 4), start + 5 * step);
    ls_text_put(spec.dump_steps, sizeof spec.dump_steps, "1");
    check_near(ls_matrix_estimate_s(&spec, 4), start + 5 * step + 0.2 + 11.7e-3 * 4 * 8);
    spec.dump_steps[0] = '\0';
    spec.threads = 0; /* one rank that uses all cores */
    step = 10 * 1.81 / 4 * 6 / (45 * 4) + 11.7e-3 * 4 / (0.35 * 4) + 0.002;
    check_near(ls_matrix_estimate_s(&spec, 4), 0.4 + 0.35 / 4 + 5 * step);
    spec.level = 1; /* half is emulated; 8 ranks on 4 cores; accumulation */
    spec.world = 8;
    spec.accumulate = 3;
    step = 8 * 3 * 10 * 1.81 / 4 * 6 / (45 * 4) * 1.5 + 8 * 11.7e-3 * 4 / (0.35 * 4) + 0.016;
    check_near(ls_matrix_estimate_s(&spec, 4), 0.4 + 0.35 * 2 + 5 * step);
    spec.nodes = 2;
    spec.real_nodes = true; /* as many cores again */
    step = 8 * 3 * 10 * 1.81 / 4 * 6 / (45 * 8) * 1.5 + 11.7e-3 * 4 / 0.35 + 0.016;
    check_near(ls_matrix_estimate_s(&spec, 4), 0.4 + 0.35 + 5 * step);
    spec.role = LS_ROLE_THROUGHPUT; /* an audited step costs two more, two of them four */
    check_near(ls_matrix_estimate_s(&spec, 4), 0.75 + 7 * step);
    spec.steps = 15;
    check_near(ls_matrix_estimate_s(&spec, 4), 0.75 + 18 * step);
    spec.steps = 16;
    check_near(ls_matrix_estimate_s(&spec, 4), 0.75 + 21 * step);
    spec.steps = 1;
    check_near(ls_matrix_estimate_s(&spec, 4), 0.75 + 2 * step);
    spec.wrap = LS_WRAP_KILL;
    spec.kill_step = 6;
    check_near(ls_matrix_estimate_s(&spec, 4), 0.75 + 6 * step);
    /* with a start-up that was measured: in turns where there are more ranks than cores */
    ls_matrix_site site = {.cores = 2};
    check_near(ls_matrix_estimate_at(&spec, &site), ls_matrix_estimate_s(&spec, 2));
    site.start_s = 0.5;
    check_near(ls_matrix_estimate_at(&spec, &site),
               1 + 0.24 + ls_matrix_estimate_s(&spec, 2) - 0.4 - 0.35 * 2);
    site.start_s = 5;
    double steps_s = ls_matrix_estimate_s(&spec, 2) - 0.4 - 0.35 * 2;
    check_near(ls_matrix_estimate_at(&spec, &site), 10 + 0.24 + steps_s);
    spec.real_nodes = false;
    steps_s = ls_matrix_estimate_s(&spec, 2) - 0.4 - 0.35 * 4;
    check_near(ls_matrix_estimate_at(&spec, &site), 20 + 0.24 + steps_s);
    spec.world = 1;
    spec.steps = 10000; /* something else ends it */
    check_near(ls_matrix_estimate_at(&spec, &site), 5 + 0.03 + 3);
}

/* On GPUs: what one GPU's ranks compute, 4 s of start, a second for each audited step, 5 s for a
 * dump. */
TEST(estimates_of_gpus)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_REFERENCE);
    ls_matrix_site site = {.cores = 4, .start_s = 10};
    ls_text_put(spec.arch, sizeof spec.arch, "resnet50");
    spec.image_size = 224;
    spec.batch_size = 256;
    spec.world = 8;
    spec.gpus = 8;
    spec.steps = 8;
    spec.warmup_steps = 2;
    double single = 256 * 4.09 * 6 / 20e3, half = 256 * 4.09 * 6 / 100e3;
    check_near(ls_matrix_estimate_s(&spec, 4), 4 + 10 * (single + 0.01));
    check_near(ls_matrix_estimate_at(&spec, &site), 4 + 10 * (single + 0.01));
    spec.level = 1;
    spec.accumulate = 2;
    check_near(ls_matrix_estimate_s(&spec, 4), 4 + 10 * (2 * half + 0.01));
    spec.gpus = 3; /* three ranks on one */
    check_near(ls_matrix_estimate_s(&spec, 4), 4 + 30 * (2 * half + 0.01));
    spec.real_nodes = true;
    spec.nodes = 2;
    check_near(ls_matrix_estimate_s(&spec, 4), 4 + 20 * (2 * half + 0.01));
    ls_text_put(spec.dump_steps, sizeof spec.dump_steps, "1");
    spec.role = LS_ROLE_THROUGHPUT;
    check_near(ls_matrix_estimate_s(&spec, 4), 4 + 20 * (2 * half + 0.01) + 1 + 5);
    spec.steps = 16;
    check_near(ls_matrix_estimate_s(&spec, 4), 4 + 36 * (2 * half + 0.01) + 2 + 5);
}

TEST(estimates_know_the_networks)
{
    static const struct {
        const char *arch;
        int image_size;
        double gmacs, params_m;
    } rows[] = {
        {"resnet18", 224, 1.81, 11.7},   {"resnet34", 224, 3.66, 21.8},
        {"resnet50", 224, 4.09, 25.6},   {"resnet101", 224, 7.80, 44.5},
        {"resnet152", 224, 11.51, 60.2}, {"resnet8", 32, 0.0125, 0.08},
        {"resnet20", 32, 0.041, 0.27},   {"resnet32", 32, 0.069, 0.46},
        {"resnet44", 32, 0.098, 0.66},   {"resnet56", 32, 0.126, 0.85},
        {"resnet110", 32, 0.255, 1.7},   {"vgg", 224, 4.09, 25.6},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_spec spec = ls_matrix_spec(LS_ROLE_REFERENCE);
        ls_text_put(spec.arch, sizeof spec.arch, "%s", rows[i].arch);
        spec.image_size = rows[i].image_size;
        spec.batch_size = spec.steps = 1;
        check_near(ls_matrix_estimate_s(&spec, 1),
                   0.4 + 0.35 + rows[i].gmacs * 6 / 45 + rows[i].params_m * 4e-3 / 0.35 + 0.002);
    }
}

static const struct {
    ls_spec spec;
    const char *options; /* without the program */
} commands[] = {
    {{.arch = "a",
      .num_classes = 10,
      .level = -1,
      .half = "fp16",
      .dialect = "apex",
      .bucket_mb = -1,
      .data = "d"},
     "-a a --image-size=0 --num-classes=10 --steps=0 --lr=0 --data=d --seed=0 --device=cuda"},
    {{.arch = "a",
      .num_classes = 37,
      .image_size = 9,
      .batch_size = 1,
      .half = "bf16",
      .dialect = "torch",
      .loss_scale = "128",
      .sync_bn = true,
      .accumulate = 2,
      .warmup_steps = 2,
      .steps = 3,
      .seed = 18446744073709551615u,
      .data = "d",
      .dump_steps = "1,3",
      .dump_all = true,
      .world = 2,
      .threads = 1,
      .deterministic = true,
      .lr = 0.1,
      .extra = " x  y "},
     "-a a --image-size=9 -b 1 --num-classes=37 --steps=5 --opt-level=O0 --half=bf16 "
     "--loss-scale=128 --delay-allreduce --dialect=torch --sync-bn --accumulate=2 --lr=0.1 "
     "--data=d --seed=18446744073709551615 --dump-steps=1,3 --dump-ranks=all --deterministic "
     "--threads=1 x y --device=cuda"},
    {{.arch = "a",
      .num_classes = 10,
      .level = 2,
      .half = "fp16",
      .dialect = "apex",
      .bucket_mb = 0.5,
      .data = "d",
      .accumulate = 1,
      .dump_steps = "2",
      .dump_all = true,
      .world = 1},
     "-a a --image-size=0 --num-classes=10 --steps=0 --opt-level=O2 --bucket-cap-mb=0.5 --lr=0 "
     "--data=d --seed=0 --dump-steps=2 --device=cuda"},
    {{.arch = "a",
      .num_classes = 10,
      .level = -1,
      .half = "fp16",
      .dialect = "apex",
      .bucket_mb = -1,
      .data = "d",
      .dump_all = true,
      .world = 2,
      .role = LS_ROLE_THROUGHPUT,
      .steps = 20,
      .warmup_steps = 4},
     "-a a --image-size=0 --num-classes=10 --steps=24 --lr=0 --data=d --seed=0 --device=cuda"},
};

ROWS_TEST(every_option_of_a_command, commands)
{
    ls_matrix_site site = {
        .subject = "a trainer", .run_directory = "/r", .device = "cuda", .cores = 2};
    ls_job job;
    ck_assert_int_eq(ls_matrix_job(&commands[_i].spec, &site, &job), LS_OK);
    char *line = ls_words_line(&job.command);
    LS_TEXT(want, 600, "a trainer %s", commands[_i].options);
    ck_assert_str_eq(line, want);
    free(line);
    ls_job_free(&job);
    /* our own trainer: digests of every 50th step on a GPU, and audits, in timed jobs only */
    site.subject = NULL;
    ck_assert_int_eq(ls_matrix_job(&commands[_i].spec, &site, &job), LS_OK);
    line = ls_words_line(&job.command);
    const char *rest = strstr(line, "/lockstep-train ");
    bool timed = commands[_i].spec.role == LS_ROLE_THROUGHPUT;
    ls_matrix_audit audit = ls_matrix_audit_of(&commands[_i].spec);
    ls_text_put(want, sizeof want, "/lockstep-train %s", commands[_i].options);
    if (timed) {
        ls_text_add(want, sizeof want, " --digest-every=50 --audit=%u:10:5", audit.seed);
    }
    ck_assert_ptr_nonnull(rest);
    ck_assert_str_eq(rest, want);
    free(line);
    ls_job_free(&job);
    site.device = "cpu";
    ck_assert_int_eq(ls_matrix_job(&commands[_i].spec, &site, &job), LS_OK);
    ck_assert(!has_argument(&job, "--digest-every=50"));
    ls_job_free(&job);
}

#define EACH                                                                  \
    "k=$RANK; mkdir -p \"$LS_RUN_DIR/run$k\" && "                             \
    "ln -sf \"run$k/rank0.jsonl\" \"$LS_RUN_DIR/rank$k.jsonl\" || exit 3; "   \
    "LS_RUN_DIR=$LS_RUN_DIR/run$k; export LS_RUN_DIR; unset RANK WORLD_SIZE " \
    "LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT; case $k in"

#define GPU_OF(devices)                                                                \
    "IFS=; g=$((RANK % " #devices ")); v=${CUDA_VISIBLE_DEVICES:-}; [ -z \"$v\" ] || " \
    "g=$(echo \"$v\" | cut -d, -f$((g + 1))); CUDA_VISIBLE_DEVICES=$g; "               \
    "export CUDA_VISIBLE_DEVICES; "
#define REST "exec \"$0\" \"$@\"\nt\n"

static const struct {
    ls_spec spec;
    int devices;
    const char *words; /* before the options, each on a line */
} wrapped[] = {
    {{.wrap = LS_WRAP_NONE}, 2, "t\n"},
    {{.wrap = LS_WRAP_ALONE},
     2,
     "env\n-u\nRANK\n-u\nWORLD_SIZE\n-u\nLOCAL_RANK\n-u\nLOCAL_WORLD_SIZE\n-u\nGROUP_RANK\n"
     "-u\nMASTER_ADDR\n-u\nMASTER_PORT\nt\n"},
    {{.wrap = LS_WRAP_KILL, .kill_rank = 1, .kill_step = 3},
     2,
     "sh\n-c\nIFS=; if [ \"$RANK\" = 1 ]; then (while kill -0 $$; do grep -q '\"step\": *3,' "
     "\"$LS_RUN_DIR/rank1.jsonl\" && kill -9 $$; sleep 0.05; done) >/dev/null 2>&1 & fi; " REST},
    {{.wrap = LS_WRAP_EACH, .each = "--a|--b c"},
     0,
     "sh\n-c\nIFS=; " EACH " 0) set -- \"$@\" --a ;; 1) set -- \"$@\" --b c ;; esac; " REST},
    {{.wrap = LS_WRAP_EACH}, 1, "sh\n-c\n" GPU_OF(1) EACH " esac; " REST},
    {{.wrap = LS_WRAP_EACH}, 3, "sh\n-c\n" GPU_OF(3) EACH " esac; " REST},
    {{.wrap = LS_WRAP_SHELL, .script = "x {self}y{run {job:a"},
     2,
     "sh\n-c\nIFS=; self=/r/jobs/.o0.w0.delay.s0-c2357360; run=/r; x \"$self\"y{run "
     "\"$run\"/jobs/a\nt\n"},
};

ROWS_TEST(every_wrapper_of_a_command, wrapped)
{
    ls_matrix_site site = {
        .subject = "t", .run_directory = "/r", .device = "cpu", .devices = wrapped[_i].devices};
    ls_job job;
    char words[2000] = "";
    ck_assert_int_eq(ls_matrix_job(&wrapped[_i].spec, &site, &job), LS_OK);
    for (int k = 0; k < job.command.count && strcmp(job.command.word[k], "-a") != 0; k++) {
        ls_text_add(words, sizeof words, "%s\n", job.command.word[k]);
    }
    ck_assert_str_eq(words, wrapped[_i].words);
    ls_job_free(&job);
}

/* Our own programs are those next to this one. */
TEST(folders_of_programs)
{
    char program[1024];
    ls_path_program(program, sizeof program);
    ls_spec spec = ls_matrix_spec(LS_ROLE_REFERENCE);
    ls_matrix_site site = {.run_directory = "/r", .device = "cpu", .cores = 2};
    ls_text_put(spec.extra, sizeof spec.extra, "--a={bin}/b --c={run}{bin} --d={self}/e");
    ls_job job;
    ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
    LS_TEXT(first, 1100, "%s/lockstep-train", program);
    LS_TEXT(a, 1100, "--a=%s/b", program);
    LS_TEXT(c, 1100, "--c=/r%s", program);
    LS_TEXT(d, 1100, "--d=%s/e", job.directory);
    ck_assert_str_eq(job.command.word[0], first);
    ck_assert_str_eq(job.command.word[job.command.count - 4], a);
    ck_assert_str_eq(job.command.word[job.command.count - 3], c);
    ck_assert_str_eq(job.command.word[job.command.count - 2], d);
    ls_job_free(&job);
}

/* A run that an earlier version began goes on: its jobs keep their ids, and their audits. */
TEST(ids_are_those_of_earlier_versions)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_EVIDENCE);
    static const char *const ids[] = {
        "resnet20.o0.w1.own.s3-ffd45202",
        "resnet20.o0.w1.own.s3-5edfbfd5",
        "resnet20.o0.w2.n2.own.s3-1ac99435",
        "resnet20.o0.w2.n2.own.s3-92daad08",
    };
    for (int i = 0; i < 4; i++) {
        char id[96];
        if (i == 1) { /* what each rank does, and a script */
            spec.wrap = LS_WRAP_EACH;
            ls_text_put(spec.each, sizeof spec.each, "--a|--b");
            spec.script = "x";
        } else if (i == 2) {
            spec.role = LS_ROLE_PHASES;
            spec.nodes = spec.world = 2;
        } else if (i == 3) {
            spec.real_nodes = true;
        }
        ls_matrix_id(&spec, id);
        ck_assert_str_eq(id, ids[i]);
    }
    ck_assert_uint_eq(ls_matrix_audit_of(&spec).seed, 0x92daad08);
}

/* Of ranks that outnumber the GPUs of their machines only the timed ones may not share. */
TEST(only_timed_ranks_need_a_gpu_each)
{
    ls_matrix_site site = {.run_directory = "/r", .device = "cuda", .cores = 8, .devices = 2};
    static const struct {
        ls_role role;
        int world, nodes;
        bool shares;
    } jobs[] = {{LS_ROLE_EVIDENCE, 2, 1, false},
                {LS_ROLE_EVIDENCE, 3, 1, true},
                {LS_ROLE_THROUGHPUT, 3, 1, false},
                {LS_ROLE_EVIDENCE, 4, 2, false},
                {LS_ROLE_EVIDENCE, 6, 2, true}};
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        ls_spec spec = ls_matrix_spec(jobs[i].role);
        spec.world = jobs[i].world;
        spec.nodes = jobs[i].nodes;
        spec.real_nodes = jobs[i].nodes > 1;
        static ls_hosts hosts;
        site.hosts = &hosts;
        ls_job job;
        ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
        ck_assert_msg(job.share_devices == jobs[i].shares, "job %zu", i);
        ls_job_free(&job);
    }
}

TEST(every_member_of_a_job)
{
    static ls_hosts hosts;
    static const ls_simnet net = {.text = "1gbit"};
    ls_spec spec = ls_matrix_spec(LS_ROLE_EVIDENCE);
    spec.world = 6;
    spec.threads = 3;
    spec.level = 1;
    ls_matrix_site site = {.run_directory = "/r",
                           .device = "cpu",
                           .cores = 5,
                           .net = &net,
                           .share_devices = true,
                           .half_emulated = true,
                           .gpus = (struct ls_watch_gpu *)&hosts, /* only passed on */
                           .hosts = &hosts};
    ls_job job;
    char id[96];
    ls_matrix_id(&spec, id);
    ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
    LS_TEXT(directory, 200, "/r/jobs/%s", id);
    ck_assert_str_eq(job.id, id);
    ck_assert_str_eq(job.directory, directory);
    ck_assert_str_eq(job.label, "O1, 6 ranks, own rule");
    ck_assert(job.world == 6 && job.local_nodes == 1 && job.host_count == 1 && job.threads == 3);
    ck_assert(job.net == NULL && job.hosts == &hosts && job.gpus == site.gpus && job.share_devices);
    check_near(job.limit_s, 60 + 10 * ls_matrix_estimate_s(&spec, 5));
    ck_assert_int_eq(job.file_bytes_max, INT64_C(4) << 30);
    ck_assert(job.grace_s == 5);
    ck_assert(ls_json_bool(job.facts, "oversubscribed", false)); /* 6 ranks on 5 cores */
    ck_assert(ls_json_bool(job.facts, "half_emulated", false));
    ck_assert(!cJSON_HasObjectItem(job.facts, "link"));
    ls_job_free(&job);
    site.subject = "t";
    site.cores = 6;
    site.share_devices = false;
    spec.nodes = 2;
    spec.level = 0;
    spec.role = LS_ROLE_REFERENCE;
    ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
    ck_assert(job.local_nodes == 2 && job.host_count == 1 && job.net == &net);
    ck_assert_str_eq(ls_json_string(job.facts, "link", ""), "1gbit");
    ck_assert(!ls_json_bool(job.facts, "oversubscribed", true));
    ck_assert(!ls_json_bool(job.facts, "half_emulated", true));
    check_near(job.limit_s, 240 + 10 * ls_matrix_estimate_s(&spec, 6));
    ck_assert(job.file_bytes_max == 0 && !job.share_devices);
    ls_job_free(&job);
    site.devices = 2;
    spec.limit_s = 0.5;
    spec.grace_s = 0.25;
    spec.real_nodes = true;
    ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
    ck_assert(job.local_nodes == 1 && job.host_count == 2 && job.net == NULL);
    ck_assert(job.limit_s == 0.5 && job.grace_s == 0.25);
    ck_assert(ls_json_bool(job.facts, "oversubscribed", false)); /* 3 ranks on 2 devices */
    ck_assert(!cJSON_HasObjectItem(job.facts, "link"));
    ls_job_free(&job);
    static const struct {
        int devices;
        bool asked, oversubscribed;
    } rows[] = {{3, false, false}, {1, false, true}, {3, true, true}};
    for (int i = 0; i < 3; i++) {
        site.devices = rows[i].devices;
        site.oversubscribed = rows[i].asked;
        ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
        ck_assert(ls_json_bool(job.facts, "oversubscribed", !rows[i].oversubscribed) ==
                  rows[i].oversubscribed);
        ls_job_free(&job);
    }
}

/* What a spec of a role is without further choices. */
TEST(a_spec_begins_with_the_defaults)
{
    for (int role = 0; role < LS_ROLE_COUNT; role++) {
        ls_spec s = ls_matrix_spec((ls_role)role);
        bool exact = role == LS_ROLE_EVIDENCE || role == LS_ROLE_REFERENCE;
        ck_assert(s.role == (ls_role)role && s.image_size == 16 && s.batch_size == 4);
        ck_assert(s.level == 0 && s.world == 1 && s.nodes == 1 && s.bucket_mb == LS_BUCKET_OWN);
        ck_assert(s.accumulate == 1 && s.steps == 3 && s.lr == 0.05 && s.kill_rank == -1);
        ck_assert(s.threads == exact && s.deterministic == exact && s.warmup_steps == 0);
        ck_assert_str_eq(s.arch, "resnet20");
        ck_assert_str_eq(s.half, "fp16");
        ck_assert_str_eq(s.dialect, "apex");
        ck_assert_str_eq(s.data, "synthetic");
        ck_assert_int_eq(ls_matrix_is_row(&s),
                         role == LS_ROLE_THROUGHPUT || role == LS_ROLE_PHASES);
    }
}

/* ---- roles by name, and a spec that comes back from the facts of job.json as it was written -- */

TEST(every_role_has_its_own_name)
{
    for (int i = 0; i < LS_ROLE_COUNT; i++) {
        ck_assert_int_eq(ls_spec_role_of(ls_spec_role_name((ls_role)i)), i);
    }
    ck_assert_int_eq(ls_spec_role_of("no such role"), LS_ROLE_UNKNOWN);
}

TEST(names_of_schema_1_are_read)
{
    ck_assert_int_eq(ls_spec_role_of("twin"), LS_ROLE_NO_COMM);
    ck_assert_int_eq(ls_spec_role_of("self"), LS_ROLE_DDP_WORLD1);
    ck_assert_int_eq(ls_spec_role_of("strong"), LS_ROLE_STRONG_SCALING);
    ck_assert_str_eq(ls_spec_role_name(LS_ROLE_NO_COMM), "no_comm");
}

TEST(a_spec_comes_back_from_its_facts)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_STRONG_SCALING), read;
    ls_text_put(spec.arch, sizeof spec.arch, "resnet50");
    ls_text_put(spec.half, sizeof spec.half, "bf16");
    ls_text_put(spec.dialect, sizeof spec.dialect, "torch");
    spec.image_size = 224;
    spec.batch_size = 7;
    spec.level = 2;
    spec.world = 8;
    spec.nodes = 2;
    spec.real_nodes = true;
    spec.bucket_mb = LS_BUCKET_DELAYED;
    spec.sync_bn = true;
    spec.accumulate = 3;
    spec.threads = 5;
    spec.warmup_steps = 2;
    spec.steps = 40;
    spec.sweep = LS_SWEEP_BUCKET | LS_SWEEP_NODES;
    cJSON *facts = ls_spec_facts(&spec);
    ls_spec_read(facts, &read);
    ck_assert(read.world == 8 && read.nodes == 2 && read.real_nodes && read.sync_bn);
    cJSON *again = ls_spec_facts(&read); /* every member; as it is written: below */
    ck_assert(cJSON_Compare(facts, again, true));
    cJSON_Delete(again);
    cJSON_Delete(facts);
}

TEST(absent_facts_have_no_level_and_no_bucket_size)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_EVIDENCE), read;
    spec.level = -1;
    cJSON *facts = ls_spec_facts(&spec);
    ls_spec_read(facts, &read);
    ck_assert_int_eq(read.level, -1);
    ck_assert(read.bucket_mb == LS_BUCKET_OWN);
    cJSON_Delete(facts);
    ls_spec_read(NULL, &read);
    ck_assert_int_eq(read.role, LS_ROLE_UNKNOWN);
    ck_assert_int_eq(read.level, -1);
    ck_assert_int_eq(read.world, 0);
    ck_assert_str_eq(read.arch, "");
}

TEST(facts_as_they_are_written)
{
    static const struct {
        int level, nodes;
        bool real_nodes;
        double bucket_mb;
        unsigned sweep;
        const char *level_text, *bucket, *simulated, *sweep_text;
    } rows[] = {
        {-1, 1, false, LS_BUCKET_OWN, 0, "", "", "false", ""},
        {0, 2, false, LS_BUCKET_DELAYED, LS_SWEEP_LEVEL, "\"level\":\"O0\",", "\"bucket_mb\":0,",
         "true", "\"level\""},
        {1, 2, true, 0.5, LS_SWEEP_BUCKET, "\"level\":\"O1\",", "\"bucket_mb\":0.5,", "false",
         "\"bucket\""},
        {2, 3, false, 1, LS_SWEEP_WORLD, "\"level\":\"O2\",", "\"bucket_mb\":1,", "true",
         "\"world\""},
        {3, 1, true, 25, 15, "\"level\":\"O3\",", "\"bucket_mb\":25,", "false",
         "\"level\",\"bucket\",\"world\",\"nodes\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_spec spec = ls_matrix_spec(LS_ROLE_NO_COMM);
        spec.level = rows[i].level;
        spec.nodes = rows[i].nodes;
        spec.real_nodes = rows[i].real_nodes;
        spec.bucket_mb = rows[i].bucket_mb;
        spec.sweep = rows[i].sweep;
        spec.sync_bn = i == 0;
        spec.threads = 6;
        spec.resident = i == 1 ? 8 : 0;
        spec.warmup_steps = 7;
        LS_TEXT(want, 600,
                "{\"role\":\"no_comm\",\"arch\":\"resnet20\",\"image_size\":16,\"batch_size\":4,"
                "%s\"half\":\"fp16\",\"world\":1,\"nodes\":%d,\"simulated\":%s,%s"
                "\"dialect\":\"apex\",\"sync_bn\":%s,\"accumulate\":1,\"threads\":6,%s"
                "\"warmup_steps\":7,\"steps\":3,\"sweep\":[%s]}",
                rows[i].level_text, rows[i].nodes, rows[i].simulated, rows[i].bucket,
                i == 0 ? "true" : "false", i == 1 ? "\"resident\":8," : "", rows[i].sweep_text);
        cJSON *facts = ls_spec_facts(&spec);
        char *text = cJSON_PrintUnformatted(facts);
        ck_assert_str_eq(text, want);
        cJSON_free(text);
        cJSON_Delete(facts);
    }
}

/* Counts of a file from 0 to the most that a job can have; any other is as if it were missing. */
TEST(counts_have_limits)
{
    static const struct {
        const char *name;
        size_t offset;
        int most, missing;
    } rows[] = {
        {"image_size", offsetof(ls_spec, image_size), 32768, 0},
        {"batch_size", offsetof(ls_spec, batch_size), 1048576, 0},
        {"world", offsetof(ls_spec, world), 1024, 0},
        {"nodes", offsetof(ls_spec, nodes), 1024, 1},
        {"accumulate", offsetof(ls_spec, accumulate), 1048576, 1},
        {"threads", offsetof(ls_spec, threads), 1048576, 0},
        {"resident", offsetof(ls_spec, resident), 1048576, 0},
        {"warmup_steps", offsetof(ls_spec, warmup_steps), 536870912, 0},
        {"steps", offsetof(ls_spec, steps), 536870912, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct {
            double value;
            int read;
        } values[] = {{0, 0},
                      {1, 1},
                      {-1, rows[i].missing},
                      {rows[i].most, rows[i].most},
                      {rows[i].most + 1.0, rows[i].missing}};
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            cJSON *facts = cJSON_CreateObject();
            ls_spec read;
            cJSON_AddNumberToObject(facts, rows[i].name, values[v].value);
            ls_spec_read(facts, &read);
            ck_assert_msg(*(int *)((char *)&read + rows[i].offset) == values[v].read, "%s %g",
                          rows[i].name, values[v].value);
            cJSON_Delete(facts);
        }
    }
}

TEST(facts_that_are_none)
{
    static const struct {
        const char *facts;
        int level;
        bool real_nodes, sync_bn;
        unsigned sweep;
    } rows[] = {
        {"{\"level\":\"O0\",\"sync_bn\":true}", 0, false, true, 0},
        {"{\"level\":\"O3\",\"nodes\":2}", 3, true, false, 0},
        {"{\"level\":\"O4\",\"nodes\":2,\"simulated\":true}", -1, false, false, 0},
        {"{\"level\":\"O/\",\"nodes\":1}", -1, false, false, 0},
        {"{\"level\":\"o1\",\"sweep\":[\"nodes\",\"level\",1,\"Level\",null]}", -1, false, false,
         LS_SWEEP_NODES | LS_SWEEP_LEVEL},
        {"{\"level\":\"O11\",\"sweep\":[\"world\"]}", -1, false, false, LS_SWEEP_WORLD},
        {"{\"level\":\"O\",\"sweep\":\"world\"}", -1, false, false, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cJSON *facts = cJSON_Parse(rows[i].facts);
        ls_spec read;
        ck_assert_ptr_nonnull(facts);
        ls_spec_read(facts, &read);
        ck_assert_int_eq(read.level, rows[i].level);
        ck_assert_int_eq(read.real_nodes, rows[i].real_nodes);
        ck_assert_int_eq(read.sync_bn, rows[i].sync_bn);
        ck_assert_uint_eq(read.sweep, rows[i].sweep);
        ck_assert_str_eq(read.half, "fp16"); /* what is missing */
        ck_assert_str_eq(read.dialect, "apex");
        ck_assert(read.bucket_mb == LS_BUCKET_OWN && read.kill_rank == -1 && read.world == 0);
        ck_assert(read.accumulate == 1 && read.steps == 0 && read.threads == 0);
        cJSON_Delete(facts);
    }
}

/* What each role is measured for. */
TEST(traits_of_every_role)
{
    static const struct {
        const char *name;
        bool timed, has_rate, baseline;
    } rows[LS_ROLE_COUNT] = {
        [LS_ROLE_EVIDENCE] = {"evidence", false, false, false},
        [LS_ROLE_THROUGHPUT] = {"throughput", true, true, false},
        [LS_ROLE_PHASES] = {"phases", false, false, false},
        [LS_ROLE_REFERENCE] = {"reference", false, false, false},
        [LS_ROLE_NO_COMM] = {"no_comm", true, false, true},
        [LS_ROLE_DDP_WORLD1] = {"ddp_world1", true, true, true},
        [LS_ROLE_STRONG_SCALING] = {"strong_scaling", true, true, true},
        [LS_ROLE_LOADER] = {"loader", true, true, true},
        [LS_ROLE_UNFUSED] = {"unfused", true, true, true},
        [LS_ROLE_WAY] = {"way", true, true, true},
        [LS_ROLE_CURVES] = {"curves", false, false, true},
        [LS_ROLE_SDC] = {"sdc", false, false, true},
        [LS_ROLE_UNKNOWN] = {"", false, false, false},
    };
    for (int i = 0; i < LS_ROLE_COUNT; i++) {
        ls_spec spec = {.role = (ls_role)i};
        ck_assert_str_eq(ls_spec_role_name((ls_role)i), rows[i].name);
        ck_assert_int_eq(ls_spec_is_timed(&spec), rows[i].timed);
        ck_assert_int_eq(ls_spec_has_rate(&spec), rows[i].has_rate);
        ck_assert_int_eq(ls_spec_is_baseline(&spec), rows[i].baseline);
    }
    static const char *const levels[] = {"", "O0", "O1", "O2", "O3"};
    for (int level = -1; level < 4; level++) {
        ck_assert_str_eq(ls_spec_level_name(level), levels[level + 1]);
    }
}

TEST_MAIN("matrix")
