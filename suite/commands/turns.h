/* Trainers measured in turn on this machine: what `lockstep versus` and `lockstep ab` share.
 *
 * Flow: a command describes a job of each side (ls_turns_job) and owns it; ls_turns_run starts them
 * as one group (ls_job_run_together), whose tick reads the step events that the ranks have written
 * and passes the turn: it stops the process groups of one side (SIGSTOP) and continues those of the
 * other. The times, a list of each rank, are malloc'ed by the run and freed by ls_turns_free. A
 * rank that dies ends the group (supervise.h), stopped ranks too: `outcome` says which it was and
 * `turn` when. */
#ifndef LS_TURNS_H
#define LS_TURNS_H

#include <limits.h>
#include <stdbool.h>

#include "harness/run/job.h"
#include "kernels/core/file.h"
#include "kernels/core/status.h"
#include "kernels/core/text.h"

enum { LS_TURNS_NUM_CLASSES = 10 };

/* What is trained. Warm-up steps do not count: PyTorch's DDP rebuilds its buckets in the second
 * step, and oneDNN compiles its kernels in the first. */
typedef struct ls_turns_setting {
    const char *label, *arch;
    int image_size, batch_size, ranks, threads; /* threads 0: as the trainer chooses */
    int warmup_steps, timed_steps;
    int level; /* of O0 to O3 */
} ls_turns_setting;

/* A job "<folder>/<id>" of a trainer, the first words of a command: `steps` steps of the setting.
 * The caller adds further options. */
void ls_turns_job(const ls_turns_setting *what, const char *folder, const char *id,
                  const ls_words *trainer, int steps, ls_job *job);
/* Files with the batches of each rank and of `steps` steps, for --data=batches:FOLDER. */
ls_status ls_turns_write_batches(const ls_turns_setting *what, const char *folder, int steps);

/* What one rank wrote. */
typedef struct ls_turns_rank {
    char path[PATH_MAX]; /* its events */
    int events;          /* of steps */
    bool warm_up;        /* steps of this turn do not count */
    bool stopped;        /* a step was interrupted: it does not count */
    int turn_from;       /* where in ms this turn begins */
    /* Of the steps that count, in order; skipped and audited ones do not. Without the part for
     * data, which two trainers read in different ways. NaN: the event has no time. */
    int count, capacity;
    double *ms;
    char transport[32]; /* of the gradients, from the start event; or "" */
    bool open;
    ls_lines lines;
} ls_turns_rank;

typedef struct ls_turns {
    const ls_turns_setting *what;
    int sides; /* 1 or 2 */
    /* Of two sides, behind one turn of each for the warm-up: turns of turn_s seconds and turn_steps
     * steps or more, in the order b a a b b a a ... where `first` is 1, for `seconds` and `turns`
     * of each or more. Then both are ended (TERM). */
    int turns, turn_steps, first;
    double turn_s, seconds;
    ls_outcome outcome;
    ls_turns_rank *rank;       /* [sides * ranks] */
    int turn;                  /* that is on, from 0 */
    int64_t turn_ns, timed_ns; /* since when; since when turns count */
    bool paused[2];            /* of each side */
    bool over;                 /* the turns are */
    ls_status status;          /* of reading */
} ls_turns;

/* Runs the jobs, one for each side, until they have ended, or the turns are over: outcome.state is
 * LS_OUTCOME_DONE then, too. *turns holds what to do, and zeroes. LS_OK where a rank failed, as
 * outcome.state says; LS_ERR_CHECK where one of a single side wrote another number of step events.
 * Call ls_turns_free in any case. */
ls_status ls_turns_run(const ls_job *job, int steps, ls_turns *turns);
void ls_turns_free(ls_turns *turns);
/* The step time of a side below which `fraction` of those of its slowest rank lie. LS_ERR_CHECK
 * where a rank has none, or an event has no time. */
ls_status ls_turns_step_ms(const ls_turns *turns, int side, double fraction, double *ms);

#endif
