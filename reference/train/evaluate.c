#include "evaluate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"
#include "feed.h"
#include "journal.h"
#include "reference/train/ways/join.h"

struct ls_evaluate {
    ls_loader *loader;
    int64_t images, batches; /* of this rank */
    float *logits;           /* [batch][classes] */
};

/* ---- counting -------------------------------------------------------------------------------- */

void ls_evaluate_add(ls_events_score *sums, const float *logits, int classes, int64_t target,
                     double smoothing)
{
    LS_ASSERT(target >= 0 && target < classes);
    float wanted = logits[target], most = logits[0];
    int before = 0;
    for (int j = 0; j < classes; j++) {
        most = logits[j] > most || isnan(logits[j]) ? logits[j] : most;
        before += j != target && !(logits[j] < wanted) && (logits[j] != wanted || j < target);
    }
    double sum = 0.0, mean = 0.0, own = (double)wanted;
    for (int j = 0; j < classes; j++) {
        mean += (double)logits[j] / classes;
        sum += exp((double)logits[j] - (double)most);
    }
    sums->images++;
    sums->top1 += before < 1;
    sums->top5 += before < 5;
    smoothing = LS_PLANT(smoothing_not_validated, smoothing, 0.0);
    own = smoothing > 0.0 ? (1.0 - smoothing) * own + smoothing * mean : own;
    sums->loss += log(sum) - (own - (double)most);
}

ls_status ls_evaluate_sum(ls_trainer *trainer, const char *label, const ls_events_score *own,
                          ls_events_score *all)
{
    ls_events_score sum = {0};
    ls_events_score *each = ls_list_make((size_t)trainer->world.world, sizeof *each);
    ls_status status = ls_join_gather(trainer, label, own, (int64_t)sizeof *own, each);
    for (int rank = 0; status == LS_OK && rank < trainer->world.world; rank++) {
        sum.images += each[rank].images;
        sum.top1 += each[rank].top1;
        sum.top5 += each[rank].top5;
        sum.bad += each[rank].bad;
        sum.loss += each[rank].loss;
    }
    *all = status == LS_OK ? sum : *all;
    free(each);
    return status;
}

/* ---- the folder ------------------------------------------------------------------------------ */

ls_status ls_evaluate_open(const ls_trainer *trainer, const ls_loader_memory *memory,
                           ls_evaluate **out)
{
    const ls_options *options = &trainer->options;
    char folder[LS_DATASET_PATH] = "";
    *out = NULL;
    if (options->val[0] != '\0') {
        ls_text_put(folder, sizeof folder, "%s", options->val);
    } else if (ls_options_has_epochs(options) && (options->steps == 0 || options->evaluate)) {
        ls_dataset_part(options->data, LS_DATASET_VALIDATION, folder, sizeof folder);
    }
    if (folder[0] == '\0') {
        return options->evaluate
                   ? ls_log_fail(LS_ERR_USAGE,
                                 "--evaluate: there is nothing to evaluate on; give --val DIR, or "
                                 "--data DIR with the folders DIR/train and DIR/val")
                   : LS_OK;
    }
    if (ls_options_has_epochs(options)) {
        LS_TRY(ls_dataset_same_classes(options->data, folder));
    }
    ls_evaluate *evaluate = ls_list_make(1, sizeof *evaluate);
    ls_loader_options loader = {
        .data = folder,
        .rank = LS_PLANT(evaluation_of_rank_0, trainer->world.rank, 0),
        .world = trainer->world.world,
        .batch_size = options->batch_size,
        .image_size = options->image_size,
        .num_classes = options->num_classes,
        .accumulate = 1,
        .workers = options->workers,
        .bytes = ls_loader_gives_bytes(trainer->loader),
        .first_step = 1,
        .memory = memory,
        .validates = true,
        .skips_bad = options->on_bad_image == LS_ON_BAD_IMAGE_SKIP,
        .resize = options->val_resize > 0 ? options->val_resize
                                          : (int)lrint(options->image_size * 256.0 / 224.0),
    };
    evaluate->logits =
        ls_list_make((size_t)options->batch_size * (size_t)options->num_classes, sizeof(float));
    ls_status status = ls_loader_open(&loader, &evaluate->loader);
    if (status != LS_OK) {
        ls_evaluate_close(evaluate);
        return status;
    }
    evaluate->images = ls_loader_images(evaluate->loader);
    evaluate->batches = ls_loader_steps_per_epoch(evaluate->loader);
    *out = evaluate;
    return LS_OK;
}

void ls_evaluate_close(ls_evaluate *evaluate)
{
    if (evaluate == NULL) {
        return;
    }
    ls_loader_close(evaluate->loader);
    free(evaluate->logits);
    free(evaluate);
}

int64_t ls_evaluate_pictures(const ls_evaluate *evaluate)
{
    return ls_loader_pictures(evaluate->loader);
}

bool ls_evaluate_due(const ls_trainer *trainer, int64_t step)
{
    int64_t every = trainer->options.eval_every * trainer->steps_per_epoch;
    return trainer->evaluate != NULL &&
           (step == trainer->last_step || (every > 0 && step % every == 0));
}

/* ---- the forwards ---------------------------------------------------------------------------- */

static int slot_of(const ls_trainer *trainer, int64_t batch)
{
    return ls_feed_slots(trainer) + (int)(batch % LS_FEED_VALIDATION_SLOTS);
}

/* Where the device has slots, starts the copy. */
static ls_status load(const ls_trainer *trainer, int64_t number, ls_loader_batch *batch)
{
    LS_TRY(ls_loader_next(trainer->evaluate->loader, batch));
    if (ls_feed_slots(trainer) == 0) {
        return LS_OK;
    }
    return trainer->device.api->batch_load(
        trainer->plan, slot_of(trainer, number),
        batch->bytes != NULL ? (const void *)batch->bytes : batch->input, batch->target);
}

static ls_status forward(const ls_trainer *trainer, int64_t number, const ls_loader_batch *batch)
{
    const ls_device *device = &trainer->device;
    return ls_feed_slots(trainer) == 0
               ? device->api->plan_forward(trainer->plan, device->stream, batch->input,
                                           batch->target)
               : device->api->plan_forward_loaded(trainer->plan, device->stream,
                                                  slot_of(trainer, number));
}

static ls_status run_batches(const ls_trainer *trainer, ls_events_score *own)
{
    const ls_evaluate *evaluate = trainer->evaluate;
    const ls_device *device = &trainer->device;
    int size = trainer->options.batch_size, classes = trainer->options.num_classes;
    int64_t *target = ls_list_make((size_t)size, sizeof *target);
    bool *bad = ls_list_make((size_t)size, sizeof *bad);
    ls_loader_batch batch;
    ls_status status = LS_OK;
    if (evaluate->batches > 0) {
        LS_THEN(status, load(trainer, 0, &batch));
    }
    for (int64_t n = 0; status == LS_OK && n < evaluate->batches; n++) {
        bool more = n + 1 < evaluate->batches, slots = ls_feed_slots(trainer) > 0;
        int64_t left = evaluate->images - n * size;
        left = LS_PLANT(evaluation_counts_padding, left < size ? left : size, size);
        memcpy(target, batch.target, (size_t)size * sizeof *target);
        memcpy(bad, batch.bad, (size_t)size * sizeof *bad);
        own->bad += batch.bad_images;
        status = ls_journal_batch(trainer, LS_JOURNAL_VALIDATION, &batch, (int)left);
        LS_THEN(status, forward(trainer, n, &batch));
        if (more && slots) { /* copied while the device computes */
            LS_THEN(status, device->api->batch_loaded(trainer->plan, slot_of(trainer, n)));
        }
        LS_THEN(status, more ? load(trainer, n + 1, &batch) : LS_OK);
        LS_THEN(status, device->api->plan_export(trainer->plan, device->stream, LS_EXPORT_LOGITS, 0,
                                                 evaluate->logits,
                                                 (int64_t)size * classes * (int64_t)sizeof(float)));
        for (int64_t i = 0; i < left && status == LS_OK; i++) {
            if (LS_PLANT(bad_images_validated, !bad[i], true)) {
                ls_evaluate_add(own, evaluate->logits + i * classes, classes, target[i],
                                trainer->options.label_smoothing);
            }
        }
    }
    free(target);
    free(bad);
    return status;
}

ls_status ls_evaluate_run(ls_trainer *trainer, ls_evaluate_report *report)
{
    const ls_device *device = &trainer->device;
    int64_t begun_ns = ls_clock_ns(), pictures = ls_evaluate_pictures(trainer->evaluate);
    LS_TRY(ls_journal_validation(trainer, true, report->step, pictures));
    device->api->plan_evaluate(trainer->plan, true);
    ls_status status = run_batches(trainer, &report->val_own);
    device->api->plan_evaluate(trainer->plan, false);
    LS_TRY(status);
    LS_TRY(ls_journal_validation(trainer, false, report->step, pictures));
    LS_TRY(ls_evaluate_sum(trainer, "sums of a validation", &report->val_own, &report->val));
    report->seconds = ls_clock_ms_between(begun_ns, ls_clock_ns()) * 1e-3;
    return LS_OK;
}

/* ---- telling --------------------------------------------------------------------------------- */

static float percent(int64_t part, int64_t whole)
{
    return (float)(100.0 * (double)part / (double)whole);
}

/* Without images, or of a loss that is none: no point. */
static ls_tensorboard_scalar scalar_of(const char *tag, float value)
{
    return (ls_tensorboard_scalar){isnan(value) ? NULL : tag, value};
}

static void add_to_line(char *line, size_t bytes, const char *name, const ls_events_score *score)
{
    if (score->images > 0) {
        ls_text_add(line, bytes, "  %s: loss %.4f, top-1 %.2f %%, top-5 %.2f %% of %lld", name,
                    score->loss / (double)score->images,
                    (double)percent(score->top1, score->images),
                    (double)percent(score->top5, score->images), (long long)score->images);
    }
    if (score->bad > 0) {
        ls_text_add(line, bytes, ", %lld bad", (long long)score->bad);
    }
}

ls_status ls_evaluate_publish(const ls_trainer *trainer, const ls_evaluate_report *report)
{
    const ls_events_score *train = &report->train, *val = &report->val;
    int64_t epoch = trainer->steps_per_epoch > 0 ? report->step / trainer->steps_per_epoch : 0;
    bool validated = val->images > 0;
    LS_TRY(ls_events_write_epoch(trainer->events, epoch, report->step,
                                 train->images > 0 ? train : NULL, validated ? val : NULL,
                                 validated ? &report->val_own : NULL, report->seconds));
    if (trainer->world.rank != 0) {
        return LS_OK;
    }
    const ls_tensorboard_scalar scalars[] = {
        scalar_of("Loss/train", (float)(train->loss / (double)train->images)),
        scalar_of("Loss/val", (float)(val->loss / (double)val->images)),
        scalar_of("Top1/train", percent(train->top1, train->images)),
        scalar_of("Top1/val", percent(val->top1, val->images)),
    };
    LS_TRY(ls_tensorboard_write(trainer->board, epoch, scalars,
                                (int)(sizeof scalars / sizeof *scalars)));
    char line[256];
    ls_text_put(line, sizeof line, "epoch %lld", (long long)epoch);
    add_to_line(line, sizeof line, "train", train);
    add_to_line(line, sizeof line, "val", val);
    if (trainer->options.print_freq > 0 || trainer->options.evaluate) {
        printf("%s\n", line);
        fflush(stdout);
    }
    return LS_OK;
}
