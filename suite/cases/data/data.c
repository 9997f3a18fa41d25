/* Which images a rank sees. What DistributedSampler gives is computed here from its definition
 * (facts of torch.utils.data: pad a whole list, then stride) with a generator of our own, and
 * compared with the sampler, with the loader, and with the targets that a trainer dumped. */
#include "data.h"
#include "suite/judge/judges.h"

#include <string.h>

#include "kernels/core/list.h"
#include "reference/data/make.h"

/* ---- DistributedSampler, from its definition ------------------------------------------------- */

/* MT19937 as its authors describe it, one number at a time. */
typedef struct twister {
    uint32_t state[624];
    int at;
} twister;

static uint32_t twister_draw(twister *t)
{
    int i = t->at, next = (i + 1) % 624;
    uint32_t y = (t->state[i] & 0x80000000u) + (t->state[next] & 0x7fffffffu);
    t->state[i] = t->state[(i + 397) % 624] ^ (y >> 1) ^ (y % 2 != 0 ? 0x9908b0dfu : 0);
    y = t->state[i];
    t->at = next;
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

static void permute(uint64_t seed, int64_t count, int64_t *order)
{
    twister t = {.state = {(uint32_t)(seed & 0xffffffffu)}};
    for (uint32_t i = 1; i < 624; i++) {
        t.state[i] = 1812433253u * (t.state[i - 1] ^ (t.state[i - 1] >> 30)) + i;
    }
    for (int64_t i = 0; i < count; i++) {
        order[i] = i;
    }
    for (int64_t i = 0; i < count - 1; i++) {
        int64_t z = i + (int64_t)twister_draw(&t) % (count - i);
        int64_t kept = order[i];
        order[i] = order[z];
        order[z] = kept;
    }
}

/* ---- of the family --------------------------------------------------------------------------- */

bool ls_data_folder_make(char root[64], ls_verdict *out)
{
    ls_text_put(root, 64, "/tmp/lockstep-data-XXXXXX");
    if (mkdtemp(root) == NULL) {
        ls_verdict_set(out, LS_INFRA, "cannot make a folder in /tmp");
        return false;
    }
    return true;
}

ls_loader_options ls_data_loader_options(const char *data)
{
    return (ls_loader_options){.data = data,
                               .world = 1,
                               .batch_size = 2,
                               .image_size = LS_DATA_SIZE,
                               .num_classes = LS_MAKE_CLASSES,
                               .accumulate = 1,
                               .seed = 5,
                               .first_step = 1};
}

int64_t ls_data_order(int64_t count, int rank, int world, bool shuffle, bool drop_last,
                      uint64_t seed, int64_t epoch, int64_t **out)
{
    int64_t whole = count / world + (!drop_last && count % world != 0 ? 1 : 0);
    int64_t total = whole * world;
    int64_t *list = calloc((size_t)(total + count + 1), sizeof *list);
    int64_t *mine = calloc((size_t)whole + 1, sizeof *mine);
    LS_MEMORY(list != NULL && mine != NULL);
    if (shuffle) {
        permute(seed + (uint64_t)epoch, count, list);
    } else {
        for (int64_t i = 0; i < count; i++) {
            list[i] = i;
        }
    }
    for (int64_t i = count; i < total; i++) { /* the list, as often as it takes */
        list[i] = list[i - count];
    }
    int64_t length = 0;
    for (int64_t i = rank; i < total; i += world) {
        mine[length++] = list[i];
    }
    free(list);
    *out = mine;
    return length;
}

/* ---- the sampler ----------------------------------------------------------------------------- */

static const struct sampling {
    const char *id;
    int64_t count;
    int world;
    bool shuffle, drop_last;
    uint64_t seed;
    int64_t epoch;
} samplings[] = {
    {"even.n12.w3", 12, 3, false, false, 0, 0},
    {"padded.n10.w3", 10, 3, false, false, 0, 0},
    {"cut.n10.w3", 10, 3, false, true, 0, 0},
    {"more-ranks.n3.w8", 3, 8, false, false, 0, 0},
    {"more-ranks.cut.n3.w8", 3, 8, false, true, 0, 0},
    {"one-image.w5", 1, 5, true, false, 3, 2},
    {"one-rank.n17", 17, 1, true, false, 3, 0},
    {"shuffled.n10.w2", 10, 2, true, false, 0, 0},
    {"shuffled.n11.w4", 11, 4, true, false, 5, 0},
    {"shuffled.cut.n11.w4", 11, 4, true, true, 5, 0},
    {"epoch1.n11.w4", 11, 4, true, false, 5, 1},
    {"epoch90.n1000.w7", 1000, 7, true, false, 1, 90},
    {"large.n50000.w8", 50000, 8, true, false, 42, 0},
    {"word.n624.w3", 624, 3, true, false, 7, 0}, /* one whole state of the generator */
    {"seed32.n20.w2", 20, 2, true, false, 0xffffffffu, 0},
    {"seed32-wraps.n20.w2", 20, 2, true, false, 0xffffffffu, 1},
    {"seed64.n20.w2", 20, 2, true, false, 0x100000001ull, 0}, /* low 32 bits only */
};

/* Samplers with the mistakes that people make: what they would give, to find a cause. */
enum {
    SAME_EVERYWHERE,
    EPOCH_FORGOTTEN,
    SEED_PER_RANK,
    NOT_SHUFFLED,
    LAST_REPEATED,
    NEIGHBOURS,
    BLOCKS,
    NOT_SHARDED,
    RIGHT, /* none of them */
};

static const char *const wrong_text[RIGHT] = {
    "every rank draws rank 0's images",
    "every epoch has the order of the first: set_epoch() was not called",
    "every rank shuffles by a seed of its own, so shards overlap",
    "the images are not shuffled",
    "the tail is filled up with the last image, not with the first ones",
    "ranks take neighbouring places, one apart, so shards overlap",
    "ranks take blocks, not every world-th image",
    "every rank draws all images in the same order: no DistributedSampler, or one that was made "
    "for one rank",
};

/* A rank's images, malloc'ed; returns how many. */
static int64_t order_by(int mistake, const struct sampling *s, int rank, int64_t **out)
{
    bool shuffle = s->shuffle && mistake != NOT_SHUFFLED, all = mistake == NOT_SHARDED;
    uint64_t seed = s->seed + (mistake == SEED_PER_RANK ? (uint64_t)rank : 0);
    int64_t epoch = mistake == EPOCH_FORGOTTEN ? 0 : s->epoch;
    if (mistake != LAST_REPEATED && mistake != NEIGHBOURS && mistake != BLOCKS) {
        return ls_data_order(s->count, all || mistake == SAME_EVERYWHERE ? 0 : rank,
                             all ? 1 : s->world, shuffle, s->drop_last, seed, epoch, out);
    }
    int64_t *list = NULL, length = (s->count + s->world - 1) / s->world;
    int64_t *mine = ls_list_make((size_t)length + 1, sizeof *mine);
    (void)ls_data_order(s->count, 0, 1, shuffle, false, seed, epoch, &list);
    for (int64_t i = 0; i < length; i++) {
        int64_t at = mistake == NEIGHBOURS ? rank + i
                     : mistake == BLOCKS   ? rank * length + i
                                           : rank + i * s->world;
        mine[i] = list[at < s->count              ? at
                       : mistake == LAST_REPEATED ? s->count - 1
                                                  : at % s->count];
    }
    free(list);
    *out = mine;
    return length;
}

static ls_sampler sampler_of(const struct sampling *s, int rank)
{
    return (ls_sampler){.count = s->count,
                        .rank = rank,
                        .world = s->world,
                        .shuffle = s->shuffle,
                        .drop_last = s->drop_last,
                        .seed = s->seed};
}

/* What all ranks' orders are instead: the first mistake that gives them. */
static void explain_sampling(const struct sampling *s, ls_verdict *out)
{
    ls_sampler sampler = sampler_of(s, 0);
    int64_t length = ls_dataset_length(&sampler), dropped = s->count / s->world;
    if (!s->drop_last && length == dropped && length * s->world < s->count) {
        ls_verdict_cause(out, "images that do not make a whole round are dropped, without "
                              "drop_last");
    }
    for (int m = 0; m < RIGHT && out->cause[0] == '\0' && !s->drop_last; m++) {
        bool fits = true;
        for (sampler.rank = 0; sampler.rank < s->world && fits; sampler.rank++) {
            int64_t *want = NULL, *have = ls_list_make((size_t)length + 1, sizeof *have);
            ls_dataset_epoch(&sampler, s->epoch, have);
            fits = order_by(m, s, sampler.rank, &want) == length &&
                   memcmp(have, want, (size_t)length * sizeof *have) == 0;
            free(have);
            free(want);
        }
        if (fits) {
            ls_verdict_cause(out, "%s", wrong_text[m]);
        }
    }
}

static void judge_sampling(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const struct sampling *s = row->data;
    int64_t compared = 0;
    for (int rank = 0; rank < s->world; rank++) {
        ls_sampler sampler = sampler_of(s, rank);
        int64_t *want = NULL, length = order_by(RIGHT, s, rank, &want);
        int64_t *have = ls_list_make((size_t)length + 1, sizeof *have);
        have[length] = -77;
        if (ls_dataset_length(&sampler) != length) {
            ls_verdict_fail(out, "rank=%d has %lld images, expected %lld", rank,
                            (long long)ls_dataset_length(&sampler), (long long)length);
        } else {
            ls_dataset_epoch(&sampler, s->epoch, have);
        }
        for (int64_t i = 0; i < length && out->code == LS_PASS; i++, compared++) {
            if (have[i] != want[i]) {
                ls_verdict_fail(out, "rank=%d place %lld is image %lld, expected %lld", rank,
                                (long long)i, (long long)have[i], (long long)want[i]);
            }
        }
        if (have[length] != -77) {
            ls_verdict_fail(out, "rank=%d: written beyond its %lld places", rank,
                            (long long)length);
        }
        free(have);
        free(want);
    }
    if (out->code == LS_FAIL) {
        explain_sampling(s, out);
    }
    ls_verdict_pass(out, compared + s->world, "%lld places of %d ranks hold the expected image",
                    (long long)compared, s->world);
}

/* What torch itself printed: seed 0, 10 images, 2 ranks, epochs 0 and 1. */
static void judge_golden(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    static const int64_t golden[2][2][5] = {{{4, 7, 3, 0, 6}, {1, 5, 9, 8, 2}},
                                            {{5, 1, 0, 9, 7}, {6, 2, 8, 3, 4}}};
    (void)row;
    (void)job;
    for (int i = 0; i < 4; i++) {
        int epoch = i / 2, rank = i % 2;
        ls_sampler sampler = {.count = 10, .rank = rank, .world = 2, .shuffle = true};
        int64_t have[5] = {0}, *want = NULL;
        ls_dataset_epoch(&sampler, epoch, have);
        if (memcmp(have, golden[epoch][rank], sizeof have) != 0) {
            ls_verdict_fail(out, "epoch %d rank=%d: %lld %lld %lld %lld %lld is not torch's", epoch,
                            rank, (long long)have[0], (long long)have[1], (long long)have[2],
                            (long long)have[3], (long long)have[4]);
        }
        int64_t length = ls_data_order(10, rank, 2, true, false, 0, epoch, &want);
        if (length != 5 || memcmp(want, golden[epoch][rank], sizeof have) != 0) {
            ls_verdict_fail(out, "the judge's own order is not torch's");
        }
        free(want);
    }
    ls_verdict_pass(out, 4 * 5, "two epochs of two ranks are torch's");
}

/* For every size to 40 and every world to 9: how often each image comes. */
static void judge_cover(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    bool drop_last = *(const bool *)row->data;
    int pairs = 0;
    for (int count = 1; count <= 40; count++) {
        for (int world = 1; world <= 9; world++, pairs++) {
            int seen[40] = {0};
            ls_sampler s = {
                .count = count, .world = world, .shuffle = true, .drop_last = drop_last, .seed = 3};
            int64_t length = ls_dataset_length(&s), total = length * world;
            for (s.rank = 0; s.rank < world; s.rank++) {
                int64_t index[48];
                LS_ASSERT(length <= 48);
                ls_dataset_epoch(&s, 7, index);
                for (int64_t i = 0; i < length; i++) {
                    seen[index[i] >= 0 && index[i] < count ? index[i] : 0]++;
                }
            }
            for (int i = 0; i < count; i++) {
                if (seen[i] < total / count || seen[i] > (total + count - 1) / count) {
                    ls_verdict_fail(out, "%d images on %d ranks: image %d comes %d times", count,
                                    world, i, seen[i]);
                }
            }
            if (drop_last ? total > count || total + world <= count
                          : total < count || total >= count + world) {
                ls_verdict_fail(out, "%d images on %d ranks: %lld are seen", count, world,
                                (long long)total);
            }
        }
    }
    if (out->code == LS_FAIL && !drop_last) { /* the largest pair distinguishes the mistakes */
        explain_sampling(&(struct sampling){"", 40, 9, true, false, 3, 7}, out);
    }
    ls_verdict_pass(out, pairs, "%d pairs of size and world: every image as often as it can",
                    pairs);
}

/* ---- what a trainer saw ---------------------------------------------------------------------- */

enum { CLASSES = 10, PER_CLASS = 5, IMAGES = CLASSES * PER_CLASS, BATCH = 4 };

/* Ten classes of five images, made by whichever rank comes first. */
#define MAKE                                                                                    \
    "flock {run}/images.lock {bin}/lockstep data make {run}/images --images 5 --image-size 16 " \
    ">/dev/null || exit 3; exec \"$0\" \"$@\""

/* Which steps of a job are judged. */
struct steps {
    int first, last;
};

/* The first sample of a rank's step whose class is not that of the image which a sampler with a
 * mistake, or the right one, gives; BATCH where all are, -1 where no targets are dumped. */
static int find_other(const ls_case *row, const ls_record *job, int mistake, int rank, int step,
                      int64_t target[BATCH], int64_t *image)
{
    int64_t per_epoch = (IMAGES + job->world - 1) / job->world / BATCH, *order = NULL;
    const struct sampling s = {.count = IMAGES,
                               .world = job->world,
                               .shuffle = true,
                               .seed = row->job[0].seed,
                               .epoch = (step - 1) / per_epoch};
    (void)order_by(mistake, &s, rank, &order);
    int i = ls_dumps_targets(job, step, rank, BATCH, target) ? 0 : -1;
    for (; i >= 0 && i < BATCH; i++) {
        *image = order[(step - 1) % per_epoch * BATCH + i];
        if (target[i] != *image / PER_CLASS) {
            break;
        }
    }
    free(order);
    return i;
}

/* The mistake by which all that the ranks saw in these steps can be told. */
static void explain_seen(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct steps *steps = row->data;
    int64_t target[BATCH], image;
    for (int m = 0; m < RIGHT && out->cause[0] == '\0'; m++) {
        bool fits = true;
        for (int rank = 0; rank < job->world; rank++) {
            for (int step = steps->first; step <= steps->last && fits; step++) {
                fits = find_other(row, job, m, rank, step, target, &image) == BATCH;
            }
        }
        if (fits) {
            ls_verdict_cause(out, "%s", wrong_text[m]);
        }
    }
}

/* The classes of the images are in the order of torch's DistributedSampler. */
static void judge_seen(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct steps *steps = row->data;
    int compared = 0;
    for (int rank = 0; rank < job->world; rank++) {
        for (int step = steps->first; step <= steps->last; step++, compared += BATCH) {
            int64_t target[BATCH], image = 0;
            int i = find_other(row, job, RIGHT, rank, step, target, &image);
            if (i < 0) {
                ls_verdict_fail(out, "rank=%d step %d has no dump with %d targets", rank, step,
                                BATCH);
                return;
            }
            if (i < BATCH) {
                ls_verdict_fail(out,
                                "rank=%d step %d sample %d is of class %lld, expected %lld: not "
                                "DistributedSampler's order",
                                rank, step, i, (long long)target[i],
                                (long long)(image / PER_CLASS));
            }
        }
    }
    if (out->code == LS_FAIL) {
        explain_seen(row, job, out);
    }
    ls_verdict_pass(out, compared, "%d samples of %d ranks in torch's order", compared, job->world);
}

/* ---- steps of an epoch ------------------------------------------------------------------------
 */

/* Passes over the data or steps, whichever are over first; 25 images a rank are 6 steps of 4, or 3
 * of two micro-steps. */
static void judge_ends(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int want = *(const int *)row->data;
    for (int rank = 0; rank < job->world; rank++) {
        int steps = job->rank[rank].step_count;
        if (steps != want || ls_record_find_step(&job->rank[rank], steps) == NULL) {
            ls_verdict_fail(out, "rank=%d took %d steps, expected %d", rank, steps, want);
        }
    }
    ls_verdict_pass(out, job->world, "%d steps: %s", want, row->job[0].extra);
}

/* ---- loader threads -------------------------------------------------------------------------- */

struct share {
    int of_a_rank;
    enum { QUIET, WARNS, DEPENDS } warning; /* more threads than any machine has cores; than some */
};

static void judge_share(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct share *share = row->data;
    for (int rank = 0; rank < job->world; rank++) {
        const cJSON *options = ls_json_get(job->rank[rank].start, "options");
        if (ls_json_integer(options, "workers", -1) != share->of_a_rank) {
            ls_verdict_fail(out, "rank=%d has %lld loader threads, expected %d", rank,
                            (long long)ls_json_integer(options, "workers", -1), share->of_a_rank);
        }
        bool says = ls_endings_says(job, rank, "take turns");
        if (share->warning != DEPENDS && says != (share->warning == WARNS && rank == 0)) {
            ls_verdict_fail(out, "rank=%d %s that loader threads take turns", rank,
                            says ? "says" : "does not say");
        }
    }
    ls_verdict_pass(out, job->world, "%d loader threads on each of %d ranks", share->of_a_rank,
                    job->world);
}

/* Sizes that tensor cores do not take, where they compute: on a device, in half type. */
static void judge_sizes(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    bool wanted = *(const bool *)row->data;
    for (int rank = 0; rank < job->world; rank++) {
        bool says = ls_endings_says(job, rank, "tensor cores");
        if (says != (wanted && rank == 0)) {
            ls_verdict_fail(out, "rank=%d %s", rank,
                            says ? "warns of sizes" : "does not warn of sizes");
        }
    }
    ls_verdict_pass(out, job->world, "%s",
                    wanted ? "rank 0 names the sizes" : "nothing to warn of");
}

/* ---- the table ------------------------------------------------------------------------------- */

#define FOLDER "resnet8 O0 b0.05 data={run}/images shell "
#define SEEN FOLDER "steps=9 dump=1,2,3,4,5,6,7,8,9 "
#define STRAIGHT FOLDER "w2 steps=9 --workers=0"
#define STEPS(first, last) &(const struct steps){first, last}, MAKE
#define RESUME(after)                                                        \
    STRAIGHT " | " FOLDER "w2 steps=" #after                                 \
             " --workers=0 --save={self}/checkpoint.safetensors | " STRAIGHT \
             " --resume={job:1}/checkpoint.safetensors"
/* Losses and parameters must not change a bit. */
#define SAME(text) LS_JUDGE_DIFFERENCE(~(1u << LS_RECORD_PARAM), text), MAKE
#define RESUMED(after) SAME("resumed after step " after " of an epoch of 6")

static const ls_row rows[] = {
    {"data.sampler.golden", "I1", judge_golden},
    {"data.sampler.cover", "I2", judge_cover, NULL, &(const bool){false}},
    {"data.sampler.cover.cut", "I2", judge_cover, NULL, &(const bool){true}},
    /* two ranks: 25 images each, 6 steps of 4; three: 17, one of the 51 comes twice, 4 steps */
    {"data.seen.order.w2", "I5", judge_seen, SEEN "w2", STEPS(1, 6)},
    {"data.seen.epoch.w2", "I6", judge_seen, SEEN "w2", STEPS(7, 9)},
    {"data.seen.order.w3", "I5", judge_seen, SEEN "w3", STEPS(1, 4)},
    {"data.seen.epoch.w3", "I6", judge_seen, SEEN "w3", STEPS(5, 9)},
    /* Ranks with different batches: an epoch has as many steps on one as on the other, or their
     * learning rates part, and at its end one waits for the other. 25 images a rank are 8 steps of
     * 3 and 25 of 1. */
    {"data.uneven.w2", "U3", ls_judge_lockstep,
     FOLDER "w2 steps=40 --batch-sizes=3,1 --epochs=2 --schedule=step:1:0.1 --timeout=20", NULL,
     MAKE},
    {"data.epochs.one", "I21", judge_ends, FOLDER "w2 steps=40 --epochs=1", &(const int){6}, MAKE},
    {"data.epochs.two", "I21", judge_ends, FOLDER "w2 steps=40 --epochs=2", &(const int){12}, MAKE},
    {"data.epochs.accumulate", "I21", judge_ends, FOLDER "w2 steps=40 accumulate=2 --epochs=2",
     &(const int){6}, MAKE},
    {"data.epochs.steps-first", "I21", judge_ends, FOLDER "w2 steps=7 --epochs=2", &(const int){7},
     MAKE},
    {"data.epochs.steps-alone", "I21", judge_ends, FOLDER "w2 steps=14 --print-freq=0",
     &(const int){14}, MAKE},
    {"data.workers.1", "I7", ls_judge_same, STRAIGHT " | " FOLDER "w2 steps=9 --workers=1",
     SAME("no loader thread and 1")},
    {"data.workers.4", "I7", ls_judge_same, STRAIGHT " | " FOLDER "w2 steps=9 --workers=4",
     SAME("no loader thread and 4")},
    {"data.workers.split.[w1=w1 --workers=3|w2=w2 --workers=5|w3=w3 --workers=7]", "I26",
     judge_share, "resnet8 O0 b0.05 steps=1 $1", &(const struct share){3, DEPENDS}},
    {"data.workers.split.default.w2", "I26", judge_share, "resnet8 O0 w2 b0.05 steps=1",
     &(const struct share){2, QUIET}},
    {"data.workers.split.none.w3", "I26", judge_share, "resnet8 O0 w3 b0.05 steps=1 --workers=0",
     &(const struct share){0, QUIET}},
    {"data.workers.split.many.w2", "I26", judge_share, "resnet8 O0 w2 b0.05 steps=1 --workers=512",
     &(const struct share){256, WARNS}},
    /* within an epoch, at its end and after it */
    {"data.resume.step3", "I8", ls_judge_same, RESUME(3), RESUMED("3")},
    {"data.resume.step6", "I8", ls_judge_same, RESUME(6), RESUMED("6")},
    {"data.resume.step7", "I8", ls_judge_same, RESUME(7), RESUMED("7")},
};

static const ls_row of_devices[] = {
    {"data.sizes.o1.w2", "I26", judge_sizes, "resnet8 O1 w2 b0.05 steps=1", &(const bool){true}},
    {"data.sizes.[o0=O0|even=O2 batch=8 --num-classes=16]", "I26", judge_sizes,
     "resnet8 $1 steps=1", &(const bool){false}},
};

void ls_data_cases(const ls_case_settings *settings, ls_case_list *list)
{
    if (settings->device != NULL && strcmp(settings->device, "cuda") == 0) {
        LS_ROWS(list, settings, of_devices);
    }
    LS_ROWS(list, settings, rows);
    LS_ROWS_EACH(list, settings, &((ls_row){.requirement = "I1", .judge = judge_sampling}),
                 "data.sampler.%s", samplings);
}
