/* The loader: the same batches from any number of threads, from any step on, and errors that arrive
 * with the batch they belong to. */
#include <dirent.h>
#include <sched.h>

#include "kernels/core/clock.h"
#include "kernels/core/digest.h"
#include "reference/data/dataset.h"
#include "reference/data/loader.h"
#include "reference/data/make.h"
#include "reference/data/transform.h"
#include "reference/files/safetensors.h"
#include "suite/unit/run_suite.h"
#include "data_root.h"

static const char *in_root(const char *name, char path[256])
{
    snprintf(path, 256, "%s/%s", ROOT, name);
    return path;
}

static ls_loader_options options_for(const char *data)
{
    return (ls_loader_options){.data = data,
                               .rank = 0,
                               .world = 1,
                               .batch_size = 3,
                               .image_size = 16,
                               .num_classes = 10,
                               .accumulate = 1,
                               .seed = 4,
                               .workers = 0,
                               .first_step = 1};
}

static uint64_t batch_digest(const ls_loader_batch *batch, int size)
{
    size_t images = (size_t)batch->images;
    uint64_t digest = ls_digest_update(LS_DIGEST_START, batch->input,
                                       images * 3 * (size_t)size * (size_t)size * sizeof(float));
    digest = ls_digest_update(digest, batch->target, images * sizeof(int64_t));
    return ls_digest_update(digest, &batch->epoch, sizeof batch->epoch);
}

/* Digests of `count` micro-batches. */
static void digests(const ls_loader_options *options, int count, uint64_t *out)
{
    ls_loader *loader;
    ck_assert_int_eq(ls_loader_open(options, &loader), LS_OK);
    for (int i = 0; i < count; i++) {
        ls_loader_batch batch;
        ck_assert_int_eq(ls_loader_next(loader, &batch), LS_OK);
        ck_assert_int_eq(batch.images, options->batch_size);
        out[i] = batch_digest(&batch, options->image_size);
        if (i == 2) { /* nothing is lost or repeated over a pause */
            ls_loader_pause(loader, true);
            ls_loader_pause(loader, false);
        }
    }
    ls_loader_close(loader);
}

enum { BATCHES = 24 };

static void check_threads_and_resume(ls_loader_options options)
{
    static const int workers[] = {1, 2, 8};
    uint64_t want[BATCHES], have[BATCHES];
    digests(&options, BATCHES, want);
    for (int i = 1; i < BATCHES; i++) {
        ck_assert_msg(want[i] != want[i - 1], "batch %d repeats the one before", i);
    }
    for (int w = 0; w < 3; w++) {
        options.workers = workers[w];
        digests(&options, BATCHES, have);
        ck_assert_mem_eq(want, have, sizeof want);
    }
    for (int step = 2; step <= 8; step += 3) {
        int skipped = (step - 1) * options.accumulate;
        options.first_step = step;
        digests(&options, BATCHES - skipped, have);
        ck_assert_mem_eq(want + skipped, have, (size_t)(BATCHES - skipped) * sizeof have[0]);
    }
}

TEST(folder_threads_and_resume)
{
    char dir[256];
    check_threads_and_resume(options_for("synthetic"));
    ls_loader_options options = options_for(in_root("images", dir));
    ck_assert_int_eq(ls_make_folder(dir, 4, 24, 1), LS_OK);
    options.world = 2;
    options.rank = 1; /* 20 images, 6 steps an epoch, so four epochs in BATCHES */
    check_threads_and_resume(options);
    options.accumulate = 2;
    check_threads_and_resume(options);
    ls_loader *loader;
    ck_assert_int_eq(ls_loader_open(&options, &loader), LS_OK);
    ck_assert_int_eq(ls_loader_steps_per_epoch(loader), 3);
    ls_loader_close(loader);
}

/* Each batch of many epochs, in order and with its own pictures, whatever the threads do. */
TEST(ten_thousand_batches)
{
    enum { MANY = 10000, SOME = 2 };
    static uint64_t want[MANY], have[MANY];
    char dir[256];
    ls_loader_options options = options_for(in_root("many", dir));
    ck_assert_int_eq(ls_make_folder(dir, 5, 8, 1), LS_OK);
    options.batch_size = SOME;
    options.image_size = 8;
    digests(&options, MANY, want);
    options.workers = 8;
    digests(&options, MANY, have);
    ck_assert_mem_eq(want, have, sizeof want);
}

/* Bytes stand for the floats of a loader that normalises, bit by bit, and have their digest; data
 * without bytes stay f32. */
TEST(bytes_are_those_of_the_floats)
{
    enum { SIDE = 16, VALUES = 3 * 3 * SIDE * SIDE };
    char dir[256];
    ls_loader_options options = options_for(in_root("images", dir));
    ls_loader *plain, *loader;
    float floats[VALUES];
    ck_assert_int_eq(ls_make_folder(dir, 4, 24, 1), LS_OK);
    ck_assert_int_eq(ls_loader_open(&options, &plain), LS_OK);
    options.bytes = true;
    options.workers = 2;
    ck_assert_int_eq(ls_loader_open(&options, &loader), LS_OK);
    ck_assert(ls_loader_gives_bytes(loader) && !ls_loader_gives_bytes(plain));
    for (int i = 0; i < 20; i++) {
        ls_loader_batch want, have;
        ck_assert_int_eq(ls_loader_next(plain, &want), LS_OK);
        ck_assert_int_eq(ls_loader_next(loader, &have), LS_OK);
        ck_assert(want.bytes == NULL && have.input == NULL);
        ck_assert_mem_eq(have.target, want.target, 3 * sizeof *want.target);
        ls_loader_floats(&have, SIDE, floats);
        ck_assert_mem_eq(floats, want.input, sizeof floats);
        ls_loader_floats(&want, SIDE, floats);
        ck_assert_mem_eq(floats, want.input, sizeof floats);
        ck_assert_uint_eq(ls_loader_digest(5, &have, SIDE), ls_loader_digest(5, &want, SIDE));
    }
    ls_loader_close(loader);
    ls_loader_close(plain);
    options.data = "synthetic";
    ck_assert_int_eq(ls_loader_open(&options, &loader), LS_OK);
    ls_loader_batch batch;
    ck_assert_int_eq(ls_loader_next(loader, &batch), LS_OK);
    ck_assert(!ls_loader_gives_bytes(loader) && batch.bytes == NULL && batch.input != NULL);
    ls_loader_close(loader);
}

/* Validation: rank r of W has pictures r, r + W, ..., in the order of the list, the last batch
 * filled up with black ones of class 0, and then the first batch again; with any number of threads.
 */
TEST(validation_takes_each_picture_once)
{
    enum { EACH = 3, IMAGES = 10 * EACH, SIDE = 16, VALUES = 3 * SIDE * SIDE };
    char dir[256];
    float black[VALUES];
    uint8_t zero[VALUES] = {0};
    ls_transform_normalise(zero, 0, VALUES, SIDE * SIDE, black);
    ck_assert_int_eq(ls_make_folder(in_root("validated", dir), EACH, 24, 1), LS_OK);
    for (int n = 0; n < 3 * 4 * 2; n++) {
        int world = 1 + n % 3, batch = 2 + n / 3 % 4, counted = 0;
        for (int rank = 0; rank < world; rank++) {
            ls_loader_options options = options_for(dir);
            ls_loader *loader;
            options.validates = true;
            options.resize = 18;
            options.rank = rank;
            options.world = world;
            options.batch_size = batch;
            options.workers = n / 12 * 2;
            ck_assert_int_eq(ls_loader_open(&options, &loader), LS_OK);
            int64_t images = ls_loader_images(loader), batches = ls_loader_steps_per_epoch(loader);
            uint64_t first = 0;
            ck_assert_int_eq(images, (IMAGES - rank + world - 1) / world);
            ck_assert_int_eq(batches, (images + batch - 1) / batch);
            for (int64_t b = 0; b <= batches; b++) {
                ls_loader_batch have;
                ck_assert_int_eq(ls_loader_next(loader, &have), LS_OK);
                ck_assert_int_eq(have.bad_images, 0);
                first = b == 0 ? batch_digest(&have, SIDE) : first;
                ck_assert(b < batches || batch_digest(&have, SIDE) == first);
                for (int i = 0; b < batches && i < batch; i++) {
                    int64_t at = b * batch + i, picture = rank + at * world;
                    bool is_black = memcmp(have.input + i * VALUES, black, sizeof black) == 0;
                    ck_assert(!have.bad[i] && is_black == (at >= images));
                    ck_assert_int_eq(have.target[i], at < images ? picture / EACH : 0);
                    counted += at < images;
                }
            }
            ls_loader_close(loader);
        }
        ck_assert_int_eq(counted, IMAGES);
    }
}

/* A picture that cannot be read, with skips_bad: the next of the list stands for it in training,
 * and a black one that is marked in validation. */
TEST(bad_pictures_are_marked)
{
    enum { EACH = 2, IMAGES = 10 * EACH, SIDE = 16, BAD = 3 };
    char dir[256];
    ck_assert_int_eq(ls_make_folder(in_root("bad", dir), EACH, 24, 1), LS_OK);
    shell("F=$(ls %s/*/*.jpg | sed -n 4p); truncate -s 200 $F", dir);
    ls_loader_options options = options_for(dir);
    ls_loader *loader;
    ls_loader_batch have;
    options.batch_size = IMAGES;
    ck_assert_int_eq(ls_loader_open(&options, &loader), LS_ERR_USAGE);
    options.skips_bad = true;
    for (options.workers = 0; options.workers <= 3; options.workers += 3) {
        int of_class[10] = {0};
        options.validates = false;
        ck_assert_int_eq(ls_loader_open(&options, &loader), LS_OK);
        ck_assert_int_eq(ls_loader_next(loader, &have), LS_OK);
        ck_assert_int_eq(have.bad_images, 1);
        for (int i = 0; i < IMAGES; i++) {
            of_class[have.target[i]]++;
            ck_assert(!have.bad[i] || have.target[i] == BAD / EACH + 1);
        }
        for (int c = 0; c < 10; c++) {
            ck_assert_int_eq(of_class[c], EACH - (c == BAD / EACH) + (c == BAD / EACH + 1));
        }
        ls_loader_close(loader);
        options.validates = true;
        options.resize = 18;
        ck_assert_int_eq(ls_loader_open(&options, &loader), LS_OK);
        ck_assert_int_eq(ls_loader_next(loader, &have), LS_OK);
        ck_assert_int_eq(have.bad_images, 1);
        for (int i = 0; i < IMAGES; i++) {
            ck_assert(have.bad[i] == (i == BAD));
            ck_assert_int_eq(have.target[i], i == BAD ? 0 : i / EACH);
        }
        ls_loader_close(loader);
    }
}

/* CIFAR-10's files: any number of threads, any first step, any world and batch. */
TEST(cifar_threads_and_resume)
{
    char dir[256];
    in_root("cifar", dir);
    shell("mkdir -p %s; for I in 1 2 3 4 5; do for N in 1 2 3 4; do printf '\\00'$I; yes $I$N | "
          "head -c "
          "3072; done > %s/data_batch_$I.bin; done; cp %s/data_batch_2.bin %s/test_batch.bin",
          dir);
    ls_loader_options options = options_for(dir);
    ck_assert_int_eq(ls_dataset_cifar_classes(dir), 10);
    options.image_size = 32;
    options.world = 2;
    options.rank = 1;
    options.batch_size = 2;
    check_threads_and_resume(options);
    options.accumulate = 2;
    check_threads_and_resume(options);
}

/* A step whose images cannot be numbered is an error of the file that asked for it. */
TEST(a_step_out_of_range_is_refused)
{
    ls_loader *loader;
    ls_loader_options options = options_for("synthetic");
    options.first_step = INT64_MAX;
    ck_assert_int_eq(ls_loader_open(&options, &loader), LS_ERR_USAGE);
    options.first_step = INT64_C(1) << 50;
    options.accumulate = 65536;
    ck_assert_int_eq(ls_loader_open(&options, &loader), LS_ERR_USAGE);
}

TEST(closing_early)
{
    ls_loader_options options = options_for("synthetic");
    options.workers = 4;
    for (int i = 0; i < 20; i++) {
        ls_loader *loader;
        ls_loader_batch batch;
        ck_assert_int_eq(ls_loader_open(&options, &loader), LS_OK);
        for (int n = 0; n < i % 4; n++) {
            ck_assert_int_eq(ls_loader_next(loader, &batch), LS_OK);
        }
        if (i % 3 == 0) {
            ls_loader_pause(loader, true);
        }
        ls_loader_close(loader);
    }
}

static int threads_now(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    ck_assert_ptr_nonnull(tasks);
    for (struct dirent *task = readdir(tasks); task != NULL; task = readdir(tasks)) {
        count += task->d_name[0] != '.';
    }
    closedir(tasks);
    return count;
}

/* From none to the most, and refused beyond; all are gone with the loader. */
TEST(as_many_threads_as_asked)
{
    static const int asked[] = {0, 1, 5, 256};
    ls_loader *loader;
    ls_loader_options options = options_for("synthetic");
    int before = threads_now();
    ls_loader_close(NULL);
    for (int i = 0; i < 4; i++) {
        ls_loader_batch batch;
        options.workers = asked[i];
        ck_assert_int_eq(ls_loader_open(&options, &loader), LS_OK);
        ck_assert_int_eq(ls_loader_next(loader, &batch), LS_OK);
        ck_assert_int_eq(threads_now() - before, asked[i]);
        ls_loader_close(loader);
        /* of those that have been joined the kernel may still know */
        int64_t deadline_ns = ls_clock_after(10);
        while (threads_now() > before && ls_clock_ns() < deadline_ns) {
            sched_yield();
        }
        ck_assert_int_eq(threads_now(), before);
    }
    options.workers = 257;
    ck_assert_int_eq(ls_loader_open(&options, &loader), LS_ERR_USAGE);
}

/* Image i of rank r in micro-batch m of step s is number ((s-1) A + m) W b + r b + i, b the largest
 * batch, whatever this rank's own is. */
TEST(synthetic_images_are_numbered)
{
    enum { SIDE = 16, IMAGE = 3 * SIDE * SIDE };
    static const struct {
        int rank, world, batch, largest, accumulate;
        int64_t first_step;
    } rows[] = {{0, 1, 3, 0, 1, 1}, {1, 3, 2, 5, 2, 4}, {2, 3, 5, 4, 3, 1}, {0, 2, 1, 2, 1, 1000}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        ls_loader *loader;
        ls_loader_options options = options_for("synthetic");
        options.rank = rows[r].rank;
        options.world = rows[r].world;
        options.batch_size = rows[r].batch;
        options.largest_batch = rows[r].largest;
        options.accumulate = rows[r].accumulate;
        options.first_step = rows[r].first_step;
        int largest = rows[r].largest > rows[r].batch ? rows[r].largest : rows[r].batch;
        ck_assert_int_eq(ls_loader_open(&options, &loader), LS_OK);
        ck_assert_int_eq(ls_loader_steps_per_epoch(loader), 0);
        for (int micro = 0; micro < 5; micro++) {
            ls_loader_batch batch;
            ck_assert_int_eq(ls_loader_next(loader, &batch), LS_OK);
            ck_assert_int_eq(batch.images, rows[r].batch);
            ck_assert_int_eq(batch.epoch, 0);
            for (int i = 0; i < batch.images; i++) {
                float waves[2 * SIDE], want[IMAGE];
                int64_t target = -1, before = (rows[r].first_step - 1) * rows[r].accumulate + micro;
                int64_t number = (before * rows[r].world + rows[r].rank) * largest + i;
                ls_dataset_synthetic_image(options.seed, number, 10, SIDE, waves, want, &target);
                ck_assert_int_eq(batch.target[i], target);
                ck_assert_mem_eq(batch.input + i * IMAGE, want, sizeof want);
            }
            uint64_t images =
                ls_digest_xxh64(7, batch.input, (size_t)batch.images * IMAGE * sizeof *batch.input);
            ck_assert_uint_eq(
                ls_loader_digest(7, &batch, SIDE),
                ls_digest_xxh64(images, batch.target, (size_t)batch.images * sizeof *batch.target));
        }
        ls_loader_close(loader);
    }
}

/* ---- batches:DIR ----------------------------------------------------------------------------- */

/* One file; `micro` 0: without the leading dimension. */
static void write_batch(const char *dir, int step, int rank, int micro, int images, int size,
                        int64_t first_target)
{
    enum { MOST = 2 * 3 * 3 * 8 * 8 };
    static float input[MOST];
    int64_t target[8];
    char path[400];
    int64_t lead = micro == 0 ? 1 : micro, total = lead * images;
    for (int64_t i = 0; i < total * 3 * size * size; i++) {
        input[i] = (float)(step * 1000 + i);
    }
    for (int64_t i = 0; i < total; i++) {
        target[i] = (first_target + i) % 11;
    }
    snprintf(path, sizeof path, "%s/step%06d.rank%d.safetensors", dir, step, rank);
    ls_shape image = {4, {images, 3, size, size}}, label = {1, {images}};
    if (micro > 0) {
        image = (ls_shape){5, {micro, images, 3, size, size}};
        label = (ls_shape){2, {micro, images}};
    }
    ls_safetensors_writer *writer;
    ck_assert_int_eq(ls_safetensors_create(path, &writer), LS_OK);
    ls_safetensors_add(writer, "input", LS_F32, &image, input);
    ls_safetensors_add(writer, "target", LS_I64, &label, target);
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
}

static ls_loader_options options_for_batches(const char *name, char data[300])
{
    char dir[256];
    in_root(name, dir);
    shell("mkdir -p %s", dir);
    snprintf(data, 300, "batches:%s", dir);
    ls_loader_options options = options_for(data);
    options.image_size = 8;
    return options;
}

TEST(batches_are_read)
{
    char data[300];
    ls_loader_options options = options_for_batches("given", data);
    const char *dir = data + strlen("batches:");
    for (int step = 1; step <= 3; step++) {
        write_batch(dir, step, 0, step == 2 ? 1 : 0, 3, 8, step);
        write_batch(dir, step, 1, 2, 3, 8, 0);
    }
    for (int workers = 0; workers <= 2; workers++) {
        ls_loader *loader;
        ls_loader_batch batch;
        options.workers = workers;
        options.rank = 0;
        options.accumulate = 1;
        ck_assert_int_eq(ls_loader_open(&options, &loader), LS_OK);
        for (int step = 1; step <= 3; step++) {
            ck_assert_int_eq(ls_loader_next(loader, &batch), LS_OK);
            ck_assert_float_eq(batch.input[3 * 3 * 64 - 1], (float)(step * 1000 + 3 * 3 * 64 - 1));
            ck_assert_int_eq(batch.target[2], step + 2);
        }
        /* the missing fourth is an error only now that it is asked for */
        ck_assert_int_eq(ls_loader_next(loader, &batch), LS_ERR_USAGE);
        ls_loader_close(loader);
        options.rank = 1;
        options.world = 2;
        options.accumulate = 2;
        ck_assert_int_eq(ls_loader_open(&options, &loader), LS_OK);
        for (int micro = 0; micro < 6; micro++) {
            ck_assert_int_eq(ls_loader_next(loader, &batch), LS_OK);
            float want = (float)((micro / 2 + 1) * 1000 + micro % 2 * 3 * 3 * 64);
            ck_assert_float_eq(batch.input[0], want);
            ck_assert_int_eq(batch.target[0], micro % 2 * 3);
        }
        ls_loader_close(loader);
        options.world = 1;
    }
}

static ls_status first_of(const ls_loader_options *options)
{
    ls_loader *loader;
    ls_loader_batch batch;
    ls_status status = ls_loader_open(options, &loader);
    if (status == LS_OK) {
        status = ls_loader_next(loader, &batch);
        ls_loader_close(loader);
    }
    return status;
}

TEST(batches_errors)
{
    char data[300];
    ls_loader_options options = options_for_batches("wrong", data);
    const char *dir = data + strlen("batches:");
    ck_assert_int_eq(first_of(&options), LS_ERR_USAGE); /* no file */
    write_batch(dir, 1, 0, 0, 3, 8, 0);
    ck_assert_int_eq(first_of(&options), LS_OK);
    options.batch_size = 2;
    ck_assert_int_eq(first_of(&options), LS_ERR_USAGE);
    options.batch_size = 3;
    options.accumulate = 2;
    ck_assert_int_eq(first_of(&options), LS_ERR_USAGE);
    options.accumulate = 1;
    options.image_size = 7;
    ck_assert_int_eq(first_of(&options), LS_ERR_USAGE);
    options.image_size = 8;
    write_batch(dir, 1, 0, 0, 3, 8, 8); /* targets 8, 9, 10 */
    ck_assert_int_eq(first_of(&options), LS_ERR_USAGE);
    options.num_classes = 11;
    ck_assert_int_eq(first_of(&options), LS_OK);
    char path[400];
    snprintf(path, sizeof path, "%s/step000001.rank0.safetensors", dir);
    ck_assert_int_eq(truncate(path, 100), 0);
    ck_assert_int_eq(first_of(&options), LS_ERR_USAGE);
    options.data = "batches:/nowhere/at/all";
    ck_assert_int_eq(first_of(&options), LS_ERR_USAGE);
    options.data = "synthetic";
    options.workers = -1;
    ck_assert_int_eq(first_of(&options), LS_ERR_USAGE);
}

/* ---- folders --------------------------------------------------------------------------------- */

TEST(folder_errors)
{
    char dir[256];
    ls_loader_options options = options_for(in_root("some", dir));
    ck_assert_int_eq(first_of(&options), LS_ERR_USAGE); /* missing */
    shell("mkdir %s", dir);
    ck_assert_int_eq(first_of(&options), LS_ERR_USAGE); /* empty */
    ck_assert_int_eq(ls_make_folder(dir, 2, 24, 1), LS_OK);
    ck_assert_int_eq(first_of(&options), LS_OK);
    options.num_classes = 9;
    ck_assert_int_eq(first_of(&options), LS_ERR_USAGE);
    options.num_classes = 10;
    options.batch_size = 21;
    ck_assert_int_eq(first_of(&options), LS_ERR_USAGE);
    options.batch_size = 20;
    shell("mkdir %s/zzz", dir);
    options.num_classes = 11;
    ck_assert_int_eq(first_of(&options), LS_ERR_USAGE); /* a class without an image */
    shell("rmdir %s/zzz && touch %s/circle/x.PNG", dir);
    options.num_classes = 10;
    ck_assert_int_eq(first_of(&options), LS_ERR_USAGE); /* another format */
    shell("rm %s/circle/x.PNG && head -c 300 %s/ring/00001.jpg > %s/t && mv %s/t %s/ring/00001.jpg",
          dir);
    for (int workers = 0; workers <= 2; workers++) { /* a truncated image, wherever it comes */
        options.workers = workers;
        ck_assert_int_eq(first_of(&options), LS_ERR_USAGE);
    }
}

TEST_MAIN("loader", .timeout_s = 60, .begin = make_root, .end = remove_root)
