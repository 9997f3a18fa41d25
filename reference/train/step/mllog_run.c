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
    int64_t images = ls_options_images(options, trainer->world.world);
    return LS_PLANT(mllog_batch_of_a_rank, images * options->accumulate, options->batch_size);
}

typedef struct figure {
    const char *key; /* NULL: not logged */
    double value;
} figure;

static ls_status write_figures(ls_mllog *log, const figure *row, size_t count)
{
    ls_status status = LS_OK;
    for (size_t i = 0; i < count && status == LS_OK; i++) {
        status = row[i].key == NULL ? LS_OK : ls_mllog_number(log, row[i].key, row[i].value, 0);
    }
    return status;
}

/* MLPerf's names: lars_opt_base_learning_rate, opt_base_learning_rate. */
static ls_status write_optimizer(ls_trainer *trainer)
{
    const ls_options *options = &trainer->options;
    const ls_schedule *schedule = &trainer->schedule;
    bool imagenet = schedule->kind == LS_SCHEDULE_IMAGENET;
    bool epochs = imagenet || (schedule->warmup && !schedule->warmup_length.in_steps);
    bool momentum = ls_optimizers_takes(options->optimizer, "momentum");
    const figure others[] = {
        {"opt_base_learning_rate", trainer->base_lr},
        {"opt_weight_decay", options->weight_decay},
        {momentum ? "opt_momentum" : NULL, options->momentum},
        {epochs ? "opt_learning_rate_warmup_epochs" : NULL,
         imagenet ? 5 : schedule->warmup_length.count},
    };
    const figure lars[] = {
        {"lars_opt_base_learning_rate", others[0].value},
        {"lars_opt_weight_decay", others[1].value},
        {"lars_opt_momentum", others[2].value},
        {"lars_epsilon", options->epsilon},
        {epochs ? "lars_opt_learning_rate_warmup_epochs" : NULL, others[3].value},
    };
    LS_TRY(ls_mllog_text(trainer->mllog, "opt_name", ls_optimizers_name(options->optimizer)));
    return options->optimizer == LS_OPTIMIZER_LARS
               ? write_figures(trainer->mllog, lars, sizeof lars / sizeof *lars)
               : write_figures(trainer->mllog, others, sizeof others / sizeof *others);
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
    LS_TRY(ls_mllog_interval(log, "init_start", true, 0));
    LS_TRY(ls_mllog_text(log, "submission_benchmark", "resnet"));
    const figure run[] = {
        {"global_batch_size", (double)images_per_step(trainer)},
        {"gradient_accumulation_steps", trainer->options.accumulate},
        {"seed", (double)trainer->options.seed},
        {trainer->steps_per_epoch > 0 ? "train_samples" : NULL,
         (double)ls_loader_pictures(trainer->loader)},
        {trainer->evaluate != NULL ? "eval_samples" : NULL,
         trainer->evaluate != NULL ? (double)ls_evaluate_pictures(trainer->evaluate) : 0},
    };
    LS_TRY(write_figures(log, run, sizeof run / sizeof *run));
    LS_TRY(write_optimizer(trainer));
    LS_TRY(ls_mllog_interval(log, "init_stop", false, 0));
    return ls_mllog_interval(log, "run_start", true, 0);
}

ls_status ls_mllog_run_epoch(ls_trainer *trainer, int64_t step, bool begins)
{
    if (trainer->mllog == NULL || trainer->steps_per_epoch == 0) {
        return LS_OK;
    }
    return ls_mllog_interval(trainer->mllog, begins ? "epoch_start" : "epoch_stop", begins,
                             epoch_of(trainer, step));
}

ls_status ls_mllog_run_validated(ls_trainer *trainer, int64_t step, const ls_events_score *val)
{
    ls_mllog *log = trainer->mllog;
    int64_t epoch = step > 0 ? epoch_of(trainer, step) : 0;
    if (val == NULL) {
        return ls_mllog_interval(log, "eval_start", true, epoch);
    }
    LS_TRY(ls_mllog_number(log, "eval_accuracy",
                           LS_PLANT(mllog_top5_for_top1, (double)val->top1, (double)val->top5) /
                               (double)val->images,
                           epoch));
    return ls_mllog_interval(log, "eval_stop", false, epoch);
}
