#include "step.h"

#include <string.h>

#include "kernels/optimizers.h"
#include "kernels/core/plant.h"
#include "reference/data/loader.h"
#include "reference/train/evaluate.h"
#include "reference/train/ways/join.h"

ls_status ls_mllog_run_open(ls_trainer *trainer)
{
    const ls_options *options = &trainer->options;
    int refusing = -1;
    if (options->mllog[0] == '\0') {
        return LS_OK;
    }
    bool works =
        trainer->world.rank != 0 ||
        ls_mllog_open(options->mllog, options->resume[0] != '\0', &trainer->mllog) == LS_OK;
    LS_TRY(ls_join_all(trainer, "mllog", works, false, &refusing));
    return refusing >= 0 ? LS_ERR_USAGE : LS_OK;
}

static int64_t images_per_step(const ls_trainer *trainer)
{
    const ls_options *options = &trainer->options;
    int64_t images = 0;
    for (int i = 0; i < options->batch_size_count; i++) {
        images += options->batch_sizes[i];
    }
    images = images > 0 ? images : (int64_t)options->batch_size * trainer->world.world;
    return LS_PLANT(mllog_batch_of_a_rank, images * options->accumulate, options->batch_size);
}

/* MLPerf's names: lars_opt_base_learning_rate, opt_base_learning_rate. */
static ls_status write_optimizer(ls_trainer *trainer)
{
    ls_mllog *log = trainer->mllog;
    const ls_options *options = &trainer->options;
    bool lars = options->optimizer == LS_OPTIMIZER_LARS;
    bool momentum = ls_optimizers_takes(options->optimizer, "momentum");
    LS_TRY(ls_mllog_text(log, "opt_name", ls_optimizers_name(options->optimizer)));
    LS_TRY(ls_mllog_number(log, lars ? "lars_opt_base_learning_rate" : "opt_base_learning_rate",
                           trainer->base_lr, 0));
    LS_TRY(ls_mllog_number(log, lars ? "lars_opt_weight_decay" : "opt_weight_decay",
                           options->weight_decay, 0));
    if (momentum) {
        LS_TRY(ls_mllog_number(log, lars ? "lars_opt_momentum" : "opt_momentum", options->momentum,
                               0));
    }
    if (lars) {
        LS_TRY(ls_mllog_number(log, "lars_epsilon", options->epsilon, 0));
    }
    const ls_schedule *schedule = &trainer->schedule;
    bool epochs = schedule->warmup && !schedule->warmup_length.in_steps;
    double warmup = schedule->kind == LS_SCHEDULE_IMAGENET ? 5 : schedule->warmup_length.count;
    if (epochs || schedule->kind == LS_SCHEDULE_IMAGENET) {
        LS_TRY(ls_mllog_number(
            log, lars ? "lars_opt_learning_rate_warmup_epochs" : "opt_learning_rate_warmup_epochs",
            warmup, 0));
    }
    return LS_OK;
}

/* Epochs are counted from 1. */
static int64_t epoch_of(const ls_trainer *trainer, int64_t step)
{
    return trainer->steps_per_epoch > 0 ? (step - 1) / trainer->steps_per_epoch + 1 : 0;
}

ls_status ls_mllog_run_begin(ls_trainer *trainer)
{
    ls_mllog *log = trainer->mllog;
    if (log == NULL) {
        return LS_OK;
    }
    LS_TRY(ls_mllog_start(log, "init_start", 0));
    LS_TRY(ls_mllog_text(log, "submission_benchmark", "resnet"));
    LS_TRY(ls_mllog_number(log, "global_batch_size", (double)images_per_step(trainer), 0));
    LS_TRY(ls_mllog_number(log, "gradient_accumulation_steps", trainer->options.accumulate, 0));
    LS_TRY(ls_mllog_number(log, "seed", (double)trainer->options.seed, 0));
    if (trainer->steps_per_epoch > 0) {
        LS_TRY(
            ls_mllog_number(log, "train_samples", (double)ls_loader_pictures(trainer->loader), 0));
    }
    if (trainer->evaluate != NULL) {
        LS_TRY(ls_mllog_number(log, "eval_samples", (double)ls_evaluate_pictures(trainer->evaluate),
                               0));
    }
    LS_TRY(write_optimizer(trainer));
    LS_TRY(ls_mllog_end(log, "init_stop", 0));
    return ls_mllog_start(log, "run_start", 0);
}

ls_status ls_mllog_run_epoch(ls_trainer *trainer, int64_t step, bool begins)
{
    if (trainer->mllog == NULL || trainer->steps_per_epoch == 0) {
        return LS_OK;
    }
    return begins ? ls_mllog_start(trainer->mllog, "epoch_start", epoch_of(trainer, step))
                  : ls_mllog_end(trainer->mllog, "epoch_stop", epoch_of(trainer, step));
}

ls_status ls_mllog_run_validated(ls_trainer *trainer, int64_t step, const ls_evaluate_sums *val)
{
    ls_mllog *log = trainer->mllog;
    int64_t epoch = step > 0 ? epoch_of(trainer, step) : 0;
    if (val == NULL) {
        return ls_mllog_start(log, "eval_start", epoch);
    }
    LS_TRY(ls_mllog_number(log, "eval_accuracy",
                           LS_PLANT(mllog_top5_for_top1, (double)val->top1, (double)val->top5) /
                               (double)val->images,
                           epoch));
    return ls_mllog_end(log, "eval_stop", epoch);
}
