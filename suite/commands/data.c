/* `lockstep data`: draws a folder of pictures to train on, and times the loader on one. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "commands.h"
#include "kernels/core/clock.h"
#include "kernels/core/cores.h"
#include "kernels/core/digest.h"
#include "kernels/core/log.h"
#include "reference/data/loader.h"
#include "reference/data/make.h"
#include "suite/run/command_line.h"

static ls_status make(int count, char **argument)
{
    const char *images = "100", *size = "64", *seed = "1";
    const ls_command_option options[] = {
        {"--images", &images, NULL, NULL, "images per class (100)"},
        {"--image-size", &size, NULL, NULL, "crop they are made for, in pixels (64)"},
        {"--seed", &seed, NULL, NULL, "seed of the drawings (1)"},
    };
    int64_t per_class, pixels;
    uint64_t number;
    LS_TRY(ls_command_parse("data make DIR", options, 3, &count, argument));
    LS_TRY(ls_command_whole("--images", images, 1, 1000000, &per_class));
    LS_TRY(ls_command_whole("--image-size", size, 1, 4096, &pixels));
    LS_TRY(ls_command_seed("--seed", seed, &number));
    return ls_make_folder(argument[1], (int)per_class, (int)pixels, number);
}

/* ---- the loader's speed ---------------------------------------------------------------------- */

static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

typedef struct timing {
    double wall_s, cpu_s;  /* of all but the first batches */
    int64_t bad, pictures; /* of all */
    uint64_t digest;
} timing;

/* The threads work ahead: before the clock starts, as many batches are taken as they hold, so that
 * as many are ready when it starts as when it stops. */
static ls_status run_batches(ls_loader *loader, const ls_loader_options *options, int64_t batches,
                             bool digest, timing *out)
{
    int64_t ahead = digest ? 0 : 2 * (int64_t)options->workers + 2, begun_ns = ls_clock_ns();
    double begun_cpu = cpu_seconds();
    *out = (timing){.digest = LS_DIGEST_START};
    for (int64_t i = -ahead; i < batches; i++) {
        ls_loader_batch batch;
        if (i == 0) {
            begun_ns = ls_clock_ns();
            begun_cpu = cpu_seconds();
        }
        LS_TRY(ls_loader_next(loader, &batch));
        out->bad += batch.bad_images;
        out->pictures += options->batch_size;
        if (digest) {
            out->digest = ls_loader_digest(out->digest, &batch, options->image_size);
        }
    }
    out->wall_s = 1e-3 * ls_clock_ms_between(begun_ns, ls_clock_ns());
    out->cpu_s = cpu_seconds() - begun_cpu;
    return LS_OK;
}

static void print_timing(const ls_loader_options *options, int64_t batches, const timing *t)
{
    double images = (double)(batches * options->batch_size);
    char on[64];
    ls_cores cores = ls_cores_read();
    printf("%lld batches of %d in %.2f s: %.1f images/s with %d loader thread%s on %s\n",
           (long long)batches, options->batch_size, t->wall_s, images / t->wall_s, options->workers,
           options->workers == 1 ? "" : "s", ls_cores_text(&cores, on, sizeof on));
    printf("%.1f images/s per core that the process used (%.2f s of CPU time)\n", images / t->cpu_s,
           t->cpu_s);
}

static ls_status time_loader(int count, char **argument)
{
    const char *batches = "100", *batch = "32", *size = "224", *workers = "2", *seed = "1";
    bool bytes = false, skip = false, digest = false;
    const ls_command_option table[] = {
        {"--batches", &batches, NULL, NULL, "batches that are timed (100)"},
        {"--batch-size", &batch, NULL, NULL, "pictures of a batch (32)"},
        {"--image-size", &size, NULL, NULL, "height and width of the crops in pixels (224)"},
        {"--workers", &workers, NULL, NULL, "loader threads; 0: the caller loads (2)"},
        {"--seed", &seed, NULL, NULL, "seed of order, crops and flips (1)"},
        {"--bytes", NULL, &bytes, NULL, "8 bits a channel, as a GPU gets them; else f32"},
        {"--skip", NULL, &skip, NULL, "take another picture for one that cannot be read"},
        {"--digest", NULL, &digest, NULL, "print XXH64 of all batches, and no speed"},
    };
    LS_TRY(ls_command_parse("data time DIR", table, 8, &count, argument));
    char folder[LS_DATASET_PATH];
    ls_dataset_part(argument[1], LS_DATASET_TRAINING, folder, sizeof folder);
    int64_t number[4];
    ls_loader_options options = {.data = folder,
                                 .world = 1,
                                 .accumulate = 1,
                                 .first_step = 1,
                                 .bytes = bytes,
                                 .skips_bad = skip};
    LS_TRY(ls_command_whole("--batches", batches, 1, 1000000000, &number[0]));
    LS_TRY(ls_command_whole("--batch-size", batch, 1, 65536, &number[1]));
    LS_TRY(ls_command_whole("--image-size", size, 1, 4096, &number[2]));
    LS_TRY(ls_command_whole("--workers", workers, 0, 256, &number[3]));
    LS_TRY(ls_command_seed("--seed", seed, &options.seed));
    options.batch_size = (int)number[1];
    options.image_size = (int)number[2];
    options.workers = (int)number[3];
    LS_TRY(ls_dataset_count_classes(folder, &options.num_classes));
    ls_loader *loader;
    timing t;
    LS_TRY(ls_loader_open(&options, &loader));
    int64_t pictures = ls_loader_pictures(loader);
    ls_status status = run_batches(loader, &options, number[0], digest, &t);
    ls_loader_close(loader);
    LS_TRY(status);
    printf("%s: %lld pictures of %d classes, crops of %d pixels\n", folder, (long long)pictures,
           options.num_classes, options.image_size);
    if (digest) {
        printf("XXH64 %016llx\n", (unsigned long long)t.digest);
    } else {
        print_timing(&options, number[0], &t);
    }
    if (t.bad > 0) {
        printf("%lld of %lld pictures could not be read\n", (long long)t.bad,
               (long long)t.pictures);
    }
    return LS_OK;
}

int ls_data_main(int count, char **argument)
{
    if (count > 0 && strcmp(argument[0], "time") == 0) {
        return (int)time_loader(count, argument);
    }
    if (count > 0 && argument[0][0] != '-' && strcmp(argument[0], "make") != 0) {
        return ls_log_fail(LS_ERR_USAGE, "unexpected argument '%s'; allowed: make DIR, time DIR",
                           argument[0]);
    }
    return (int)make(count, argument);
}
