/* Questions about a job that several families of rules ask. */
#ifndef LS_OBSERVE_JOB_H
#define LS_OBSERVE_JOB_H

#include "samples.h"
#include "trace.h"

/* Names for a sentence: "a, b, c and 4 more". */
typedef struct ls_job_names {
    int count;
    char text[240];
} ls_job_names;

void ls_job_add_name(ls_job_names *names, const char *name);
const char *ls_job_names_text(ls_job_names *names);

/* The last event of a list whose member is that number; NULL: none. */
const ls_event *ls_job_numbered(const ls_event *list, ls_event_member member, int number);
/* The last event of a model or an optimizer; NULL: none. */
const ls_event *ls_job_model(const ls_observe_rank *rank, int model);
const ls_event *ls_job_optimizer(const ls_observe_rank *rank, int optimizer);
int ls_job_models(const ls_observe_rank *rank); /* highest index + 1 */
/* Whether a parameter of the model is in a group of an optimizer; `trainable`: one that is. */
bool ls_job_is_trained(const ls_observe_rank *rank, int model, bool trainable);
/* A count that an event gives of modules, parameters or passes; 0: it gives none, or one that
 * cannot be (above 2^24), so that a few may be added up. */
int ls_job_count_of(const ls_event *event, ls_event_member member);
#define ls_job_count(event, name) ls_job_count_of((event), LS_INTEGER(name))
/* Where the script built what a pass over data draws from: "built" (its loader), "sampler_at" or
 * "cut_at" (a part of a data set); where that is not known, its loader, else its loop. */
const char *ls_job_data_place_of(const ls_event *data, ls_event_member member);
#define ls_job_data_place(data, name) ls_job_data_place_of((data), LS_TEXT_MEMBER(name))
bool ls_job_model_is_ddp(const ls_event *model);
/* True, and UNSUPPORTED set, where the attach module knows no parameter of any model: they are
 * flat, in parts on several ranks, or in no module. */
bool ls_job_has_no_tensors(const ls_observe_trace *trace, ls_observe_finding *out);
/* The class of a model whose parameters lie in parts on several ranks by design, or NULL. */
const char *ls_job_sharded(const ls_observe_trace *trace);
/* The class of an optimizer whose state lies in parts on several ranks, or NULL. */
const char *ls_job_sharded_optimizer(const ls_observe_trace *trace);
/* The name of a method by which replicas differ between two averagings on purpose, or NULL. */
const char *ls_job_averages_later(const ls_observe_trace *trace);
/* The attach module stops at a given step (LS_OBSERVE_STEPS), and the job goes on. */
bool ls_job_is_left_alone(const ls_observe_trace *trace);
/* Every rank ended by itself, with exit code 0 where the launcher left one (none does for a job
 * that a scheduler started). */
bool ls_job_ended_well(const ls_observe_trace *trace);
/* Somebody ended the job: a signal, --timeout, or --stop after a law had failed. Each rank ends
 * where the signal finds it. */
bool ls_job_was_stopped(const ls_observe_trace *trace);
/* The script calls collectives of its own within steps. */
bool ls_job_calls_collectives(const ls_observe_trace *trace);
/* No model is in DistributedDataParallel, and collectives of the script's own reduce gradients, so
 * that these change between backward and step. */
bool ls_job_reduces_itself(const ls_observe_trace *trace);
/* The parameter of that name, or NULL. */
const ls_observe_tensor *ls_job_tensor(const ls_observe_rank *rank, const char *name);
/* The optimizer whose group holds the parameter, and the group; NULL: none. `after`: of several,
 * those with a greater index; -1 for the first. */
const ls_event *ls_job_group(const ls_observe_rank *rank, const char *name, int after,
                             int *optimizer, int *group);
/* Whether two ranks' first optimizers had other rates before their first step, and no state was
 * restored into them. */
bool ls_job_built_with_rates(const ls_observe_trace *trace, int a, int b);
/* Why what ranks do in steps of one number need not agree, or NULL. Each may train a model of its
 * own, a member of an ensemble or a point of a search: none is in DistributedDataParallel any more,
 * no collective stands within a step, no sampler divides the data, and their optimizers are built
 * with other rates, they write weights to files of their own alone, or they begin with other
 * weights and share more numbers behind their steps than metrics have. Or one trained alone before.
 */
const char *ls_job_apart(const ls_observe_trace *trace);
/* Whether rank 0 trains a plain model behind its last training forward of a wrapped one. */
bool ls_job_goes_on_unwrapped(const ls_observe_trace *trace);
/* How often an optimizer stepped in that step, and the (last) call; -1: any optimizer. */
int ls_job_steps_of(const ls_observe_step *step, int optimizer, const ls_call **call);
/* The tensors of a group of samples ("param", "used", "next") that differ between ranks; returns
 * how many were compared. */
int ls_job_compare_samples(const ls_samples *samples, const char *group, ls_job_names *names);

/* What the rank was given as a seed in the same place as rank 0 in that event, and as many times
 * before; NULL: nothing. */
const ls_event *ls_job_seed_like(const ls_observe_trace *trace, int rank, const ls_event *mine);

/* What a job of a trainer of the subject protocol was asked for: the options of its command
 * (protocol.md), from its job.json. What it says of itself may be the mistake. */
/* The value of "--name=VALUE" or "--name VALUE", "" of a flag, NULL where it was not given or the
 * command is not known. Of several the one with that number, from 0. */
const char *ls_job_asked_value(const ls_observe_trace *trace, const char *name, int number);
/* A flag, or True or False behind it. */
bool ls_job_asked_flag(const ls_observe_trace *trace, const char *name, bool fallback);
bool ls_job_asked_known(const ls_observe_trace *trace); /* the command is */

/* Files that a job saved or loaded, as its events describe them. */
/* Whether `what` of a save or a load has that part: "model", "optimizer", ... */
bool ls_saved_has(const ls_event *event, const char *part);
/* The first load_state_dict of a rank into `what`: "model", "scaler", ...; NULL: none. */
const ls_event *ls_saved_restored(const ls_observe_rank *rank, const char *what);
const ls_event *ls_saved_last_restored(const ls_observe_rank *rank, const char *what);
/* The writer's event of the file, by the rank that wrote it. */
const ls_event *ls_saved_by(const ls_observe_trace *writer, const char *path, int *rank);
/* Steps done when the rank last wrote the file; -1: it did not. */
int64_t ls_saved_last(const ls_observe_rank *rank, const char *path);
/* Steps done at a save, a load or a restore. */
int64_t ls_saved_step(const ls_event *event);
/* Files that the ranks write at the same step are one checkpoint in parts. */
bool ls_saved_checkpoint_has(const ls_observe_trace *trace, int64_t step, const char *part);
/* Saves of all ranks with that part. */
int ls_saved_count(const ls_observe_trace *trace, const char *part);
/* Whether the events say what files hold; else the verdict is set. */
bool ls_saved_concerns(const ls_observe_trace *trace, ls_observe_finding *out);

#endif
