#include "run.h"

#include <stdlib.h>

#include "kernels/core/log.h"
#include "reference/train/join.h"
#include "reference/train/setup.h"
#include "example.h"

ls_status ls_examples_run_check(ls_trainer *trainer)
{
    const ls_options *options = &trainer->options;
    const struct {
        bool given;
        const char *option;
    } rows[] = {
        {options->save[0] != '\0', "--save"},
        {options->resume[0] != '\0', "--resume"},
        {options->init[0] != '\0', "--init"},
        {options->force_branches[0] != '\0', "--force-branches"},
        {options->aux_count > 0, "--aux-head"},
        {options->fault.step > 0, "--fault-at"},
        {options->audit, "--audit"},
        {options->trace, "--trace"},
        {options->no_reduce, "--no-reduce"},
        {options->resident > 0, "--resident"},
        {options->cudnn_benchmark, "--cudnn-benchmark"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (options->example != LS_EXAMPLE_NONE && rows[i].given) {
            ls_log_error("%s is not offered with --example", rows[i].option);
            return ls_setup_unsupported(trainer, rows[i].option, "not with --example");
        }
    }
    return LS_OK;
}

/* Lists that the library's tensors replaced belong to the model's memory and go with it. */
static void close_example(ls_example *example)
{
    for (int i = 0; i < example->model_count; i++) {
        ls_dump_discard(example->model[i].dump);
    }
    if (!example->trainer->stuck) {
        ls_amp_destroy(example->amp);
    }
    free(example);
}

ls_status ls_examples_run(ls_trainer *trainer, ls_step_summary *summary)
{
    *summary = (ls_step_summary){0};
    ls_example *example = calloc(1, sizeof *example);
    LS_TRY_MEMORY(example != NULL, "the example");
    example->trainer = trainer;
    example->options = trainer->options;
    example->summary = summary;
    ls_status status = trainer->options.example == LS_EXAMPLE_TWO_ENCODERS
                           ? ls_two_encoders_train(example)
                           : ls_two_losses_train(example);
    if (status != LS_OK) {
        ls_join_abandon(trainer);
    }
    close_example(example);
    return status;
}
