#include "matrix.h"

#include <math.h>
#include <string.h>

#include "kernels/core/cores.h"
#include "kernels/core/list.h"

static bool is_bf16(const ls_matrix_bench *bench)
{
    return strcmp(bench->half, "bf16") == 0;
}

static int ranks_per_host(const ls_matrix_bench *bench)
{
    return bench->hosts > 1 ? bench->ranks / bench->hosts : bench->ranks;
}

/* The world after `world`: 1, 2, 4, ... and all ranks of a machine, then 2, 4, ... machines. The
 * caller stops at `ranks`. */
static int next_world(const ls_matrix_bench *bench, int world)
{
    int whole = ranks_per_host(bench);
    return world < whole && 2 * world > whole ? whole : 2 * world;
}

/* Cores per rank. All worlds use the same share, so that they can be compared. */
static int share_of_cores(const ls_matrix_bench *bench)
{
    return ls_cores_share(bench->cores, ranks_per_host(bench));
}

/* As many timed steps as fit the budget, from 4 (two halves of two) to 200; on a GPU, where a job
 * is mostly start, 20 and more. */
static int fitting_steps(const ls_matrix_bench *bench, const ls_spec *spec)
{
    if (bench->profile == LS_PROFILE_RATED) {
        return 24; /* fixed, so that all machines run the same steps */
    }
    if (bench->steps > 0 || bench->emulated) { /* an emulated device shows nothing but behaviour */
        return bench->steps > 0 ? bench->steps : 8;
    }
    int least = spec->gpus > 0 ? 20 : 4;
    /* of a job, so that the profile keeps its time on 2 cores: 3 timed jobs in a minute (smoke), 14
     * in 6 minutes (quick), in addition to evidence, references and the report */
    double budget_s = bench->profile == LS_PROFILE_SMOKE  ? 6
                      : bench->profile == LS_PROFILE_FULL ? 30
                                                          : 15;
    ls_spec one = *spec;
    one.level = 2; /* all levels take the same number of steps */
    one.dump_steps[0] = '\0';
    one.warmup_steps = one.steps = 0;
    double start_s = ls_matrix_estimate_s(&one, bench->cores);
    one.steps = 1;
    double step_s = ls_matrix_estimate_s(&one, bench->cores) - start_s;
    budget_s = spec->gpus > 0 ? budget_s / 2 : budget_s - start_s;
    double fit = floor(budget_s / step_s) - spec->warmup_steps;
    return fit < least ? least : fit > 200 ? 200 : (int)fit & ~1;
}

/* Audited steps come in addition: they are in no figure. */
static void fit_steps(const ls_matrix_bench *bench, ls_spec *spec)
{
    enum { SETTLED = 4 }; /* on a device steps 3 and 4 are recorded as graphs */
    spec->warmup_steps = bench->device || bench->profile == LS_PROFILE_RATED ? SETTLED
                         : bench->profile == LS_PROFILE_SMOKE                ? 1
                                                                             : 2;
    int timed = fitting_steps(bench, spec);
    spec->steps = timed + (timed + 2 < LS_MATRIX_AUDITED_TWICE ? 1 : 2);
}

/* Engines are chosen by time, once: the first job writes the choice and the others take it. With
 * synthetic data the batches stay on the device, so that no loader is part of a figure. */
static void use_device(const ls_matrix_bench *bench, ls_spec *spec)
{
    enum { RESIDENT = 8 };
    int own = share_of_cores(bench) > 1 ? share_of_cores(bench) - 1 : 1;
    int ranks = spec->nodes > 0 ? spec->world / spec->nodes : spec->world; /* of a node */
    int workers = (own > 256 ? 256 : own) * ranks;
    spec->gpus = bench->emulated ? 0 : bench->gpus;
    spec->engines = true;
    if (strcmp(spec->data, "synthetic") == 0) {
        spec->resident = RESIDENT;
        spec->dump_steps[0] = '\0'; /* see ls_matrix_first_step */
    } else {
        ls_text_add(spec->extra, sizeof spec->extra, "%s--workers=%d",
                    spec->extra[0] == '\0' ? "" : " ", workers > 4096 ? 4096 : workers);
    }
}

static int classes_of(const ls_matrix_bench *bench)
{
    return bench->num_classes > 0 ? bench->num_classes : LS_SPEC_CLASSES;
}

static ls_spec timed_spec(const ls_matrix_bench *bench, int level, double bucket_mb, int world)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_THROUGHPUT);
    ls_text_put(spec.arch, sizeof spec.arch, "%s", bench->arch);
    spec.image_size = bench->image_size;
    spec.batch_size = bench->batch_size;
    spec.num_classes = classes_of(bench);
    spec.level = level;
    spec.bucket_mb = bucket_mb;
    spec.world = world;
    spec.real_nodes = world > ranks_per_host(bench);
    spec.nodes = spec.real_nodes ? world / ranks_per_host(bench) : 1;
    spec.threads = share_of_cores(bench);
    spec.seed = bench->seed;
    spec.lr = 0.01; /* small enough for readable curves with 8 noisy images per rank */
    /* At the initial dynamic scale of 65536 a fresh network overflows and skips steps (numerics.md
     * 4). */
    if (level > 0 && is_bf16(bench)) { /* its range needs no scale */
        ls_text_put(spec.half, sizeof spec.half, "bf16");
    } else if (level == 1 || level == 2) {
        ls_text_put(spec.loss_scale, sizeof spec.loss_scale, "dynamic");
        ls_text_put(spec.extra, sizeof spec.extra, "--init-scale=1024");
    } else if (level == 3) {
        ls_text_put(spec.loss_scale, sizeof spec.loss_scale, "128");
    }
    ls_text_put(spec.data, sizeof spec.data, "%s", bench->data);
    ls_text_put(spec.dump_steps, sizeof spec.dump_steps, "1");
    /* Rounding to half changes which branches are taken. So does another engine for a product, and
     * the library of a device uses different ones for a timed job and its deterministic reference.
     */
    spec.followed = level > 0 || bench->device;
    spec.fuse = bench->fuse && level > 0;
    if (bench->device) {
        use_device(bench, &spec);
    }
    fit_steps(bench, &spec);
    return spec;
}

static void add_job(const ls_matrix_bench *bench, ls_matrix *matrix, int level, double bucket_mb,
                    int world, int nodes, unsigned sweep)
{
    ls_spec spec = timed_spec(bench, level, bucket_mb, world);
    spec.nodes = nodes > 1 ? nodes : spec.nodes; /* `nodes` are simulated */
    spec.sweep = sweep;
    if (spec.followed && world > 1 && spec.resident == 0) {
        ls_text_add(spec.extra, sizeof spec.extra, "%s--dump-ranks=branches",
                    spec.extra[0] == '\0' ? "" : " ");
    }
    ls_matrix_add(matrix, &spec);
}

static bool has_level(const ls_matrix_bench *bench, int level)
{
    for (int i = 0; i < bench->level_count; i++) {
        if (bench->level[i] == level) {
            return true;
        }
    }
    return false;
}

/* The center of the cross: O2 and 25 MB, or the requested values nearest to them. */
static int middle_level(const ls_matrix_bench *bench)
{
    return has_level(bench, 2) ? 2 : bench->level[bench->level_count - 1];
}

static double middle_bucket(const ls_matrix_bench *bench)
{
    double best = bench->bucket_mb[0];
    for (int i = 1; i < bench->bucket_count; i++) {
        if (fabs(bench->bucket_mb[i] - 25) < fabs(best - 25)) {
            best = bench->bucket_mb[i];
        }
    }
    return best;
}

/* ---- what timed jobs are compared with ------------------------------------------------------- */

/* A job of that role that dumps nothing. */
static ls_spec baseline(const ls_matrix_bench *bench, ls_role role, int level, int world,
                        const char *extra)
{
    ls_spec spec = timed_spec(bench, level, middle_bucket(bench), world);
    spec.role = role;
    spec.dump_steps[0] = '\0';
    ls_text_add(spec.extra, sizeof spec.extra, "%s", extra);
    return spec;
}

/* Without reduction there are no buckets, so one job is the baseline of all bucket sizes and node
 * counts of its level and world. The values of its ranks diverge. */
static void add_no_comm(const ls_matrix_bench *bench, ls_matrix *matrix, int level, int world)
{
    ls_spec spec = baseline(bench, LS_ROLE_NO_COMM, level, world, " --no-reduce");
    ls_matrix_add(matrix, &spec);
}

/* The row with a world of one runs without DDP; this job runs the same steps with buckets and an
 * engine. */
static void add_ddp_world1(const ls_matrix_bench *bench, ls_matrix *matrix)
{
    ls_spec spec = baseline(bench, LS_ROLE_DDP_WORLD1, middle_level(bench), 1, " --comm=self");
    ls_matrix_add(matrix, &spec);
}

/* The global batch of the largest world on fewer ranks. The largest world itself is a row. */
static void add_strong_scaling(const ls_matrix_bench *bench, ls_matrix *matrix, int world)
{
    ls_spec spec = baseline(bench, LS_ROLE_STRONG_SCALING, middle_level(bench), world, "");
    spec.batch_size = bench->batch_size * bench->ranks / world;
    fit_steps(bench, &spec);
    ls_matrix_add(matrix, &spec);
}

/* What decoding costs: the middle of the sweeps with images from files. */
static void add_loader(const ls_matrix_bench *bench, ls_matrix *matrix)
{
    ls_matrix_bench reading = *bench;
    ls_text_put(reading.data, sizeof reading.data, "%s", bench->files);
    ls_spec spec = baseline(&reading, LS_ROLE_LOADER, middle_level(bench), bench->ranks, "");
    ls_matrix_add(matrix, &spec);
}

/* What fused products save: the middle of the sweeps without them. */
static void add_unfused(const ls_matrix_bench *bench, ls_matrix *matrix)
{
    ls_spec spec = baseline(bench, LS_ROLE_UNFUSED, middle_level(bench), bench->ranks, "");
    if (spec.fuse) {
        spec.fuse = false;
        ls_matrix_add(matrix, &spec);
    }
}

/* Ten O0 runs with different seeds (initial values and order of the data) make the band, with which
 * one run of each other level, with the first seed, is compared. All run concurrently in one job,
 * because their losses count and not their times. */
static void add_curves(const ls_matrix_bench *bench, ls_matrix *matrix)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_CURVES);
    ls_text_put(spec.arch, sizeof spec.arch, "resnet8");
    spec.batch_size = 16;
    spec.level = -1;
    spec.threads = 1;
    spec.lr = 0.05;
    spec.seed = bench->seed;
    spec.num_classes = classes_of(bench);
    ls_text_put(spec.data, sizeof spec.data, "%s", bench->data);
    /* The curve is steep there: on the drawn shapes the loss has fallen half way; on the easier
     * synthetic images it would be near zero, where all levels agree. */
    spec.steps = strcmp(bench->data, "synthetic") == 0 ? 40 : 200;
    spec.wrap = LS_WRAP_EACH;
    spec.limit_s = bench->emulated ? 600 : 0; /* the estimate is of a CPU's kernels */
    for (int run = 0; run < LS_MATRIX_BAND_RUNS; run++) {
        ls_text_add(spec.each, sizeof spec.each, "%s--opt-level=O0 --seed=%llu",
                    run == 0 ? "" : "|", (unsigned long long)bench->seed + (unsigned)run);
        spec.world = run + 1;
    }
    for (int level = 1; level < 4; level++) {
        if (has_level(bench, level)) {
            ls_text_add(spec.each, sizeof spec.each, "|--opt-level=O%d%s", level,
                        is_bf16(bench) ? " --half=bf16"
                        : level == 3   ? " --loss-scale=128"
                                       : " --loss-scale=dynamic --init-scale=1024");
            spec.world++;
        }
    }
    ls_matrix_add(matrix, &spec);
}

/* Twice, to distinguish a broken GPU from engines that are not repeatable. */
static void add_sdc(const ls_matrix_bench *bench, ls_matrix *matrix)
{
    int ranks = ranks_per_host(bench);
    ls_spec spec = ls_matrix_sdc(bench->arch, bench->image_size, bench->batch_size,
                                 ranks < bench->gpus ? ranks : bench->gpus);
    spec.seed = bench->seed;
    spec.gpus = bench->emulated ? 0 : bench->gpus;
    ls_matrix_add(matrix, &spec);
    spec.repeat = 1;
    ls_matrix_add(matrix, &spec);
}

static void add_phases(const ls_matrix_bench *bench, ls_matrix *matrix)
{
    ls_spec spec = timed_spec(bench, middle_level(bench), middle_bucket(bench), bench->ranks);
    spec.role = LS_ROLE_PHASES;
    spec.lr = 0.05;
    spec.warmup_steps = 1;
    spec.steps = 2;
    spec.dump_steps[0] = '\0';
    ls_text_put(spec.extra, sizeof spec.extra, "--trace");
    ls_text_put(spec.loss_scale, sizeof spec.loss_scale, "%s", spec.level > 0 ? "128" : "");
    if (bench->device) {
        use_device(bench, &spec);
    }
    ls_matrix_add(matrix, &spec);
}

/* ---- every pair ------------------------------------------------------------------------------ */

enum { LEVEL, BUCKET, WORLD, NODES, FACTORS, VALUES_MAX = 32 /* of one factor */ };

typedef struct pairs {
    int count[FACTORS];
    double value[FACTORS][VALUES_MAX];
    bool covered[FACTORS][VALUES_MAX][FACTORS][VALUES_MAX];
} pairs;

static void add_value(pairs *p, int factor, double value)
{
    p->value[factor][p->count[factor]++] = value;
}

static void list_values(const ls_matrix_bench *bench, pairs *p)
{
    for (int i = 0; i < bench->level_count; i++) {
        add_value(p, LEVEL, bench->level[i]);
    }
    for (int i = 0; i < bench->bucket_count; i++) {
        add_value(p, BUCKET, bench->bucket_mb[i]);
    }
    for (int world = 1; world < bench->ranks; world = next_world(bench, world)) {
        add_value(p, WORLD, world);
    }
    add_value(p, WORLD, bench->ranks);
    add_value(p, NODES, 1);
    if (bench->sim_nodes > 1) {
        add_value(p, NODES, bench->sim_nodes);
    }
}

/* Nodes must have equal numbers of ranks. One rank reduces nothing, so it runs with the middle
 * bucket size only, and covers no other. */
static bool can_stand(const ls_matrix_bench *bench, const pairs *p, const int value[FACTORS])
{
    int world = (int)p->value[WORLD][value[WORLD]], nodes = (int)p->value[NODES][value[NODES]];
    return world % nodes == 0 &&
           (world > 1 || p->value[BUCKET][value[BUCKET]] == middle_bucket(bench));
}

static int cover(pairs *p, const int value[FACTORS], bool mark)
{
    int fresh = 0;
    for (int a = 0; a < FACTORS; a++) {
        for (int b = a + 1; b < FACTORS; b++) {
            bool *seen = &p->covered[a][value[a]][b][value[b]];
            fresh += !*seen;
            *seen = *seen || mark;
        }
    }
    return fresh;
}

/* The combination that covers the most uncovered pairs; false when there is none. */
static bool best_combination(const ls_matrix_bench *bench, pairs *p, int best[FACTORS])
{
    int all = p->count[LEVEL] * p->count[BUCKET] * p->count[WORLD] * p->count[NODES], most = 0;
    for (int i = 0; i < all; i++) {
        int value[FACTORS], rest = i;
        for (int f = FACTORS - 1; f >= 0; f--) {
            value[f] = rest % p->count[f];
            rest /= p->count[f];
        }
        int fresh = can_stand(bench, p, value) ? cover(p, value, false) : 0;
        if (fresh > most) {
            most = fresh;
            memcpy(best, value, sizeof value);
        }
    }
    return most > 0;
}

/* False where a factor of the row has another value. */
static bool find_values(const pairs *p, const ls_spec *spec, int value[FACTORS])
{
    const double own[FACTORS] = {spec->level, spec->bucket_mb, spec->world,
                                 spec->real_nodes ? 1 : spec->nodes};
    for (int f = 0; f < FACTORS; f++) {
        value[f] = 0;
        while (value[f] < p->count[f] && p->value[f][value[f]] != own[f]) {
            value[f]++;
        }
        if (value[f] == p->count[f]) {
            return false;
        }
    }
    return true;
}

/* Marks the pairs that the rows cover, then greedily adds rows for the others: with 4 levels, 4
 * bucket rules, 4 worlds and 2 node counts about a dozen rows, instead of the 128 of the cross
 * product. */
static void add_every_pair(const ls_matrix_bench *bench, ls_matrix *matrix)
{
    pairs *p = ls_list_make(1, sizeof *p);
    list_values(bench, p);
    int value[FACTORS];
    for (int i = 0; i < matrix->count; i++) {
        if (matrix->spec[i].role == LS_ROLE_THROUGHPUT && find_values(p, &matrix->spec[i], value)) {
            cover(p, value, true);
        }
    }
    while (best_combination(bench, p, value)) {
        cover(p, value, true);
        add_job(bench, matrix, (int)p->value[LEVEL][value[LEVEL]], p->value[BUCKET][value[BUCKET]],
                (int)p->value[WORLD][value[WORLD]], (int)p->value[NODES][value[NODES]], 0);
    }
    free(p);
}

/* ---- other ways to use the same cores -------------------------------------------------------- */

/* The level at which torch's DataParallel and autocast go together, where the cores have units for
 * it: on others O1 says nothing. */
static int level_of_ways(const ls_matrix_bench *bench)
{
    int wanted = is_bf16(bench) ? 1 : 0;
    return has_level(bench, wanted) || bench->level[0] > 1 ? wanted : bench->level[0];
}

/* A round's share of the steps: even, and an interval of their median exists from six on. */
static int steps_of_round(const ls_spec *whole)
{
    enum { LEAST = 6 };
    int share = (whole->steps / LS_MATRIX_ROUNDS + 1) & ~1;
    return share < LEAST ? LEAST : share;
}

static void add_way(const ls_matrix_bench *bench, ls_matrix *matrix, ls_way way, int round)
{
    ls_spec spec = timed_spec(bench, level_of_ways(bench), middle_bucket(bench), bench->ranks);
    bool row = way == LS_WAY_DDP && round == 0;
    spec.way = way;
    spec.repeat = round;
    spec.steps = steps_of_round(&spec) + 1; /* an audited one */
    spec.sweep = row ? LS_SWEEP_LEVEL : 0;
    spec.role = row ? LS_ROLE_THROUGHPUT : LS_ROLE_WAY;
    bool one = ls_spec_is_team(&spec) || way == LS_WAY_ONE_PROCESS;
    int split = bench->batch_size / 2 > 0 ? bench->batch_size / 2 : 1; /* see LS_WAY_PIPELINE */
    if (round > 0) { /* the first has shown that its gradient is right */
        spec.dump_steps[0] = '\0';
        spec.followed = false;
    }
    if (one) {                      /* the images and the cores of all ranks */
        spec.followed = round == 0; /* other numbers of threads sum in other orders */
        spec.parts = way == LS_WAY_REPLICAS   ? bench->ranks
                     : way == LS_WAY_PIPELINE ? bench->ranks * bench->batch_size / split
                                              : 1;
        spec.batch_size *= bench->ranks;
        spec.threads *= bench->ranks;
        spec.world = 1;
        spec.bucket_mb = LS_BUCKET_OWN;
    } else if (spec.followed && spec.world > 1) {
        ls_text_add(spec.extra, sizeof spec.extra, " --dump-ranks=branches");
    }
    if (way == LS_WAY_DDP_TORCH) {
        ls_text_put(spec.dialect, sizeof spec.dialect, "torch");
    }
    static const char *const options[LS_WAYS] = {
        [LS_WAY_STAGES] = "--model-parallel",
        [LS_WAY_SGD_UNFUSED] = "--unfused",
        [LS_WAY_ADAM] = "--optimizer=adam",
        [LS_WAY_ADAM_UNFUSED] = "--optimizer=adam --unfused",
    };
    if (options[way] != NULL) {
        ls_text_add(spec.extra, sizeof spec.extra, " %s", options[way]);
    } else if (way == LS_WAY_REPLICAS) {
        ls_text_add(spec.extra, sizeof spec.extra, " --data-parallel=%d", bench->ranks);
    } else if (way == LS_WAY_PIPELINE) { /* as many images as a rank has, so that parts fill both */
        ls_text_add(spec.extra, sizeof spec.extra, " --model-parallel --split-size=%d", split);
    }
    spec.lr = way >= LS_WAY_ADAM ? 0.001 : spec.lr;
    enum { WORKERS = 2 }; /* a rank's */
    ls_text_add(spec.extra, sizeof spec.extra, " --workers=%d", WORKERS * bench->ranks);
    ls_matrix_add(matrix, &spec);
}

/* ---- the profiles ---------------------------------------------------------------------------- */

/* One factor at a time; each row is followed by its baselines. */
static void add_cross(const ls_matrix_bench *bench, ls_matrix *matrix)
{
    int level = middle_level(bench), ranks = bench->ranks;
    double bucket = middle_bucket(bench);
    for (int l = 0; l < bench->level_count; l++) {
        add_job(bench, matrix, bench->level[l], bucket, ranks, 1, LS_SWEEP_LEVEL);
        if (ranks > 1 && (bench->level[l] == level || bench->profile == LS_PROFILE_FULL)) {
            add_no_comm(bench, matrix, bench->level[l], ranks);
        }
    }
    for (int b = 0; b < bench->bucket_count; b++) {
        add_job(bench, matrix, level, bench->bucket_mb[b], ranks, 1, LS_SWEEP_BUCKET);
    }
    for (int world = 1; world < ranks; world = next_world(bench, world)) {
        unsigned whole = world >= ranks_per_host(bench) ? LS_SWEEP_NODES : 0;
        add_job(bench, matrix, level, bucket, world, 1, LS_SWEEP_WORLD | whole);
        if (world == 1) {
            add_ddp_world1(bench, matrix);
        } else if (bench->profile == LS_PROFILE_FULL) {
            add_no_comm(bench, matrix, level, world);
        }
        if (world == 1 || (bench->profile == LS_PROFILE_FULL && ranks % world == 0)) {
            add_strong_scaling(bench, matrix, world);
        }
    }
    add_job(bench, matrix, level, bucket, ranks, 1, LS_SWEEP_WORLD | LS_SWEEP_NODES);
    add_unfused(bench, matrix);
    if (bench->files[0] != '\0') {
        add_loader(bench, matrix);
    }
    if (ranks == 1) {
        add_ddp_world1(bench, matrix);
    }
    if (bench->sim_nodes > 1 && ranks % bench->sim_nodes == 0 && ranks > 1) {
        add_job(bench, matrix, level, bucket, ranks, bench->sim_nodes, LS_SWEEP_NODES);
    }
}

void ls_matrix_bench_jobs(const ls_matrix_bench *bench, ls_matrix *matrix)
{
    int level = middle_level(bench);
    double bucket = middle_bucket(bench);
    if (bench->profile == LS_PROFILE_BASELINES) {
        for (int i = 0; i < LS_MATRIX_ROUNDS * (LS_WAYS - 1); i++) {
            add_way(bench, matrix, (ls_way)(1 + i % (LS_WAYS - 1)), i / (LS_WAYS - 1));
        }
        return;
    }
    if (bench->profile == LS_PROFILE_SMOKE) {
        add_job(bench, matrix, 0, bucket, bench->ranks, 1, LS_SWEEP_LEVEL);
        add_job(bench, matrix, level, bucket, 1, 1, LS_SWEEP_WORLD);
        add_job(bench, matrix, level, bucket, bench->ranks, 1, 15);
        add_unfused(bench, matrix);
        return;
    }
    add_cross(bench, matrix);
    if (bench->profile == LS_PROFILE_FULL) {
        add_every_pair(bench, matrix);
    }
    add_phases(bench, matrix);
    if (has_level(bench, 0)) {
        add_curves(bench, matrix);
    }
    if (bench->gpus > 0 && bench->hosts < 2) {
        add_sdc(bench, matrix);
    }
}
