/* lockstep-train: one rank of a data-parallel mixed-precision training (protocol.md). */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/core/usage.h"
#include "kernels/core/file.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "reference/examples/example.h"
#include "reference/train/ways/join.h"
#include "reference/train/journal.h"
#include "reference/train/step/step.h"
#include "reference/train/checkpoint/checkpoint.h"
#include "reference/train/uneven.h"

static ls_status prepare(int argc, char **argv, ls_trainer *trainer)
{
    LS_TRY(ls_setup_read(argc, argv, trainer)); /* options, environment */
    LS_TRY(ls_example_check(trainer));          /* --example: options that it refuses */
    LS_TRY(ls_setup_device(trainer));           /* network, backend */
    LS_TRY(ls_join_open(trainer));              /* peers, engines */
    LS_TRY(ls_save_check(trainer));             /* --save, --save-dir: files that can be written */
    LS_TRY(ls_save_find(trainer));              /* --resume auto: the file, if there is one */
    LS_TRY(ls_setup_memory(trainer));           /* tensors, buckets, plan */
    LS_TRY(ls_setup_values(trainer));           /* initial or resumed values, rank 0's for all */
    return ls_setup_data(trainer);              /* loader, start event */
}

static ls_status train(ls_trainer *trainer)
{
    static ls_example_page *const pages[] = {
        [LS_EXAMPLE_TWO_ENCODERS] = ls_two_encoders_train,
        [LS_EXAMPLE_TWO_LOSSES] = ls_two_losses_train,
    };
    ls_step_summary summary = {.last = trainer->first_step - 1};
    ls_status status = ls_mllog_run_begin(trainer);
    if (status != LS_OK) {
        return status;
    }
    if (trainer->options.evaluate) {
        status = ls_step_validate(trainer);
    } else if (trainer->options.example != LS_EXAMPLE_NONE) {
        status = ls_example_run(trainer, pages[trainer->options.example], &summary);
    } else {
        status = ls_step_run(trainer, &summary);
    }
    LS_THEN(status, ls_save_end(trainer, summary.last, summary.signal));
    if (status == LS_OK || status == LS_STOPPED) {
        ls_status finished = ls_join_finish(trainer);
        status = finished != LS_OK ? finished : status;
    }
    if (status == LS_ERR_PEER_LOST) {
        ls_uneven_explain(trainer);
    }
    LS_THEN(status, ls_mllog_stop(trainer->mllog, true));
    if (status != LS_OK) {
        (void)ls_mllog_stop(trainer->mllog, false);
    }
    ls_status closed = ls_journal_close(trainer);
    status = status != LS_OK ? status : closed;
    ls_status written = ls_events_write_end(trainer->events, summary.last, status, summary.skipped);
    return status != LS_OK ? status : written;
}

static int run_program(int argc, char **argv)
{
    ls_file_survive_limit();
    ls_trainer *trainer = ls_list_make(1, sizeof *trainer);
    ls_status status = prepare(argc, argv, trainer);
    LS_THEN(status, train(trainer));
    bool on_device = trainer->device.api != NULL && !trainer->device.info.host_memory;
    ls_setup_close(trainer, status != LS_OK && status != LS_STOPPED);
    int code = (int)LS_PLANT(lost_peer_is_a_crash, status,
                             status == LS_ERR_PEER_LOST ? LS_ERR_INFRA : status);
    code = LS_PLANT(usage_is_a_failure, code, status == LS_ERR_USAGE ? LS_ERR_CHECK : code);
    if (status != LS_OK && on_device) {
        /* exit handlers of the device's libraries may wait for work that will not end */
        fflush(NULL);
        _exit(code);
    }
    free(trainer);
    return code;
}

int main(int argc, char **argv)
{
    ls_program_main(run_program, argc, argv);
}
