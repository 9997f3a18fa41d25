/* What the examples of the amp library share and is not their lesson: models with DDP, batches, the
 * learning rate, what a run records. A page (two_encoders.c, two_losses.c) reads like the training
 * script for Apex that it stands for.
 *
 * Data flow of a step: the loader's batch goes through each model's plan; backward writes gradients
 * of loss * S into the model's buckets, which its reducer averages; ls_amp_end unscales them into
 * the library's f32 gradients; ls_amp_step moves masters and parameters; the record takes losses,
 * scales, skips, digests and dumps (protocol.md). */
#ifndef LS_EXAMPLE_H
#define LS_EXAMPLE_H

#include "reference/amp/amp.h"
#include "reference/train/audit/dump.h"
#include "reference/train/fault.h"
#include "reference/train/step/step.h"

enum { LS_EXAMPLE_MODELS = 2, LS_EXAMPLE_LOSSES = 2 };

typedef struct ls_example ls_example;

/* One network on every rank, its gradients averaged by DDP. */
typedef struct ls_example_model {
    ls_example *example;
    ls_trainer *trainer; /* network, memory, reducer, plan */
    int batches;         /* of a step that it learns from; each weighs 1/batches in its loss */
    int optimizer, group, first; /* of the amp library; `first` of its parameters there */
    double rate;                 /* its group's share of --lr */
    int backwards;               /* in the running step */
    float loss;                  /* mean of the step's batches */
    /* of the running step */
    ls_step_observers observers;
    ls_fault fault;
    ls_step_clock clock;
    ls_dump *dump; /* or NULL */
} ls_example_model;

struct ls_example {
    ls_trainer *trainer; /* device, peers, data; also the first model's */
    ls_options options;  /* as given */
    bool overflows;      /* a model has the gradient that --overflow-as names */
    ls_step_summary *summary;
    ls_amp *amp;
    int model_count, loss_count, optimizer_count;
    ls_example_model model[LS_EXAMPLE_MODELS];
    /* the running step */
    int64_t step, images;
    ls_loader_batch batch;
    float lr, loss_scale[LS_EXAMPLE_LOSSES];
};

/* A model with initial values that are the same on every rank. The first is --arch, whatever
 * `arch` says. `batches`: see ls_example_model. */
ls_status ls_example_open_model(ls_example *example, const char *name, const char *arch,
                                int batches, ls_example_model **out);
/* amp.initialize: the types and the scaler of the command line, `losses` scales (num_losses). */
ls_status ls_example_open_amp(ls_example *example, int losses);
/* The model's parameters as a group of that optimizer, at `rate` times --lr. */
ls_status ls_example_add_group(ls_example_model *model, int optimizer,
                               const ls_optimizer_config *config, double rate);

/* Whether there is a step to do. */
bool ls_example_goes_on(const ls_example *example);
ls_status ls_example_begin_step(ls_example *example); /* sets the groups' learning rates */
ls_status ls_example_next_batch(ls_example *example);
/* Forward on the batch, cross entropy, backward of loss * S with the all-reduce, inside an open
 * block whose state is `scaled`. Adds the model's loss, divided by its batches, to *loss. */
ls_status ls_example_backward(ls_example_model *model, ls_step_state *scaled, float *loss);
/* The step's record: losses of ls_example_open_amp, one `skipped` for each optimizer. */
ls_status ls_example_end_step(ls_example *example, const float *loss, const bool *skipped);

/* The examples: --example two-encoders, --example two-losses. */
typedef ls_status ls_example_page(ls_example *example);
ls_example_page ls_two_encoders_train, ls_two_losses_train;

/* After ls_setup_read. LS_ERR_UNSUPPORTED, written as an event, for options that belong to the
 * trainer's own loop. */
ls_status ls_example_check(ls_trainer *trainer);
/* From step 1 to trainer->last_step; *summary is valid in any case. */
ls_status ls_example_run(ls_trainer *trainer, ls_example_page *page, ls_step_summary *summary);

#endif
