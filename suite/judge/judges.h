/* Judges for the record of any job, used by several families and by `lockstep judge`. */
#ifndef LS_JUDGES_H
#define LS_JUDGES_H

#include <stdbool.h>

#include "harness/run/record.h"
#include "reference/oracle/bits.h"
#include "reference/oracle/dumpfile.h"
#include "suite/suite.h"
#include "compare.h"

/* Compares every dumped step of row->job[0].dump_steps with the oracle. */
ls_case_judge ls_judge_gradients;
/* The facts of a job that its dumps' metadata lacks. */
void ls_judge_gradients_facts(const ls_spec *spec, ls_compare_facts *facts);
/* FAIL where rank 0's dump of a step begins with other values than its dump of the step before
 * ended with, if that was dumped and their types are the same. */
void ls_judge_gradients_follow(const ls_record *job, int64_t step, ls_verdict *out);
/* Digests of all ranks must be equal at every step, including running statistics if they are
 * shared. */
ls_case_judge ls_judge_lockstep;
/* The scale must follow its rule, given the skipped steps. WEAK if it is dynamic and never moved:
 * that shows nothing of the rule (of a timed job the scale is only checked: evidence jobs show the
 * rule). */
ls_case_judge ls_judge_scaler;
/* The job trained: steps were taken with finite losses, and moved the parameters. */
ls_case_judge ls_judge_training;
/* job: 0 uninterrupted, 1 saved at its last step, 2 resumed from there to 0's end: equal digests.
 */
ls_case_judge ls_judge_resume;

enum {
    LS_JUDGE_REPLICA = 1u << LS_RECORD_PARAM | 1u << LS_RECORD_MASTER | 1u << LS_RECORD_STATE |
                       1u << LS_RECORD_SCALER | 1u << LS_RECORD_GRAD,
    LS_JUDGE_EVERYTHING = LS_JUDGE_REPLICA | 1u << LS_RECORD_BUFFER,
};

/* Two runs whose steps after `after` must be equal to the last bit, rank by rank: losses, and the
 * digests in `mask`, which both or neither must have. Returns the number of digests compared; none
 * is UNSUPPORTED. */
int ls_judge_runs(const ls_record *a, const ls_record *b, int64_t after, unsigned mask,
                  ls_verdict *out);

/* row->data of ls_judge_same. */
typedef struct ls_judge_difference {
    unsigned digests; /* that may differ, 1u << ls_record_digest each */
    const char *text; /* what the runs differ in */
} ls_judge_difference;
#define LS_JUDGE_DIFFERENCE(digests, text) (&(const ls_judge_difference){digests, text})
#define LS_JUDGE_SAME(text) LS_JUDGE_DIFFERENCE(0, text)
/* Two runs that are equal to the last bit, steps and all; or job: 0 uninterrupted, 1 saved at its
 * last step, 2 resumed from there. */
ls_case_judge ls_judge_same;

/* Judges the update of a dumped step by `rule`: FAIL with a cause, UNSUPPORTED where the dump does
 * not say enough. */
ls_compare_optim_result ls_judge_update(const ls_dumpfile *file, const ls_update_rule *rule,
                                        int64_t step, bool skipped, ls_verdict *out);

/* Checks that every subject must pass in every case: each rank has a complete record that counts
 * its steps to the end and was made with the requested options (protocol.md).
 * True, and FAIL set, if the records of a job that ended well break the protocol; WEAK where a
 * rank's events lack something and no job.json says how it ended. `spec`: the request; NULL:
 * unknown (a foreign launcher). */
bool ls_protocol_breaks(const ls_record *job, const ls_spec *spec, ls_verdict *out);

/* What holds in every job, whatever a case looks at. FAIL for a taken step whose loss is not
 * finite, and for a skipped one that changed parameters, masters or moments. */
void ls_judge_training_steps(const ls_record *job, ls_verdict *out);
/* The second of them for one step and the one before it. */
void ls_judge_training_skip(const ls_record_step *before, const ls_record_step *now, int rank,
                            ls_verdict *out);

/* The dynamic loss scale as the suite's own state machine (apex/amp/scaler.py, numerics.md section
 * 2.6). */
typedef struct ls_judge_scaler_machine {
    double scale, lowest, highest;
    int clean, interval; /* steps without an overflow, and how many of them double the scale */
} ls_judge_scaler_machine;

/* The scale of the next step. */
double ls_judge_scaler_tick(ls_judge_scaler_machine *m, bool overflow);

/* The first batch norm of resnet8 and resnet20 has 16 channels. */
enum { LS_JUDGE_RUNNING_CHANNELS = 16, LS_JUDGE_RUNNING_RANKS = 8 };

typedef struct ls_judge_running {
    double mean[LS_JUDGE_RUNNING_CHANNELS], var[LS_JUDGE_RUNNING_CHANNELS];
} ls_judge_running;

/* The values before the first step: 0 and 1. */
void ls_judge_statistics_start(ls_judge_running running[LS_JUDGE_RUNNING_RANKS]);
/* buffer/bn1.running_* of a dump or checkpoint; false if it lacks them in F32. */
bool ls_judge_statistics_read(const ls_dumpfile *file, ls_judge_running *to);

typedef struct ls_judge_statistics_facts {
    int step;
    int size;         /* consecutive ranks that share statistics; 1: they are local */
    bool half;        /* conv1 computes in fp16 */
    bool from_rank_0; /* rank 0's statistics are sent to all before the step */
} ls_judge_statistics_facts;

/* bn1's running statistics and its count of batches in every rank's dump of a step, against FP64:
 * the input of bn1 (16 pixels, a 3x3 convolution of the images) can be computed from the dump
 * alone, and all batch norms are one piece of code. They are a tenth of the mean and unbiased
 * variance of the group's samples and nine tenths of running[rank], the ones before the step.
 * Sets FAIL in `out`; running[] becomes what the ranks dumped. Returns how many statistics were
 * compared. */
int ls_judge_statistics(const ls_record *job, const ls_judge_statistics_facts *facts,
                        ls_judge_running running[LS_JUDGE_RUNNING_RANKS], ls_verdict *out);

/* The files of a job that hold tensors, read with the oracle's reader, so that no code under test
 * reads for the judge.
 *
 * Path of one rank's dump of a step. */
void ls_dumps_path(const ls_record *job, int64_t step, int rank, char *path, size_t bytes);
/* The folder where the oracle's results are cached, by digest: next to the program or, where that
 * cannot be written, in the job's run. NULL: in neither. Returns `cache`. */
const char *ls_dumps_cache(const ls_record *job, char *cache, size_t bytes);
/* The open file, or NULL with FAIL set if it is missing or broken. To be closed by
 * ls_dumpfile_close, which accepts NULL. */
ls_dumpfile *ls_dumps_open(const ls_record *job, int64_t step, int rank, ls_verdict *out);
/* The same for any file, named relative to the job's folder: "checkpoint.safetensors"; sets
 * `missing` instead of FAIL. */
ls_dumpfile *ls_dumps_open_file(const ls_record *job, const char *name, ls_verdict_code missing,
                                ls_verdict *out);
/* Rank 0's dump of a step. *update: the steps that the events say were taken up to it, so that a
 * skipped one does not count. NULL with FAIL set where the dump or an event is missing. */
ls_dumpfile *ls_dumps_open_update(const ls_record *job, int64_t step, int64_t *update,
                                  bool *skipped, ls_verdict *out);
/* FAIL where a dump's metadata and loss are not those of its step's event and of the options.
 * Metadata that a file lacks has the value that protocol.md gives it; where it gives none,
 * the file need not say. */
void ls_dumps_match(const ls_spec *spec, const ls_dumpfile *file, int64_t step, int rank,
                    const ls_record *job, ls_verdict *out);
ls_bits_type ls_dumps_type(const ls_dumpfile_entry *entry);
/* The elements in place, of that type; NULL for another one, and for no entry. */
const void *ls_dumps_data(const ls_dumpfile_entry *entry, const char *type);
/* The elements; the caller frees them. */
double *ls_dumps_values(const ls_dumpfile_entry *entry);
/* Tensors of `from` under from_group ("buffer/"), each of which must be there under to_group in
 * `to`, bit for bit: else FAIL with `who` in front and `why` behind its name. Returns how many
 * there are; 0 where either file is NULL. */
int ls_dumps_same(const ls_dumpfile *from, const char *from_group, const ls_dumpfile *to,
                  const char *to_group, const char *who, const char *why, ls_verdict *out);
/* The `count` targets of a rank's dump; false where it has no such tensor. */
bool ls_dumps_targets(const ls_record *job, int64_t step, int rank, int64_t count, int64_t *target);
/* The names below "param/", one after another, then NULL. *at starts at 0. */
const char *ls_dumps_next_param(const ls_dumpfile *file, int *at);

/* Silent data corruption: ranks that train the same steps from the same seed, each alone on its
 * device, in deterministic mode, must have the same bits after every step, and the same again in a
 * second run. A rank whose bits differ from most others computes wrongly; if not even most ranks
 * repeat theirs, the engines do not repeat and no rank can be blamed. */
enum { LS_SDC_RANKS_MAX = 64 };

typedef struct ls_sdc_rank {
    char device[96]; /* "NVIDIA H200 (GPU-uuid)" */
    bool left_out;   /* another model than rank 0's: its bits may differ */
    int64_t
        odd_at; /* first step whose bits differ from the majority's, in the first run; 0: none */
    int64_t odd_again_at; /* the same in the second run, against the first run's majority */
    bool repeats;         /* both runs of this rank have the same bits */
} ls_sdc_rank;

typedef enum ls_sdc_result {
    LS_SDC_EQUAL,      /* all ranks, both runs */
    LS_SDC_ODD,        /* most agree and repeat; some rank differs */
    LS_SDC_UNREPEATED, /* most agree, but have other bits in the second run */
    LS_SDC_UNDECIDED,  /* no majority: two that differ, or all differ */
    LS_SDC_WITHOUT,    /* no digests, or steps are missing */
} ls_sdc_result;

typedef struct ls_sdc {
    ls_sdc_result result;
    int ranks, compared, agree; /* agree: of `compared`, in the first run */
    int64_t steps;
    ls_sdc_rank rank[LS_SDC_RANKS_MAX];
} ls_sdc;

/* `again` NULL: there is only one run (repeats is then true for all). */
void ls_sdc_compare(const ls_record *first, const ls_record *again, ls_sdc *out);
/* "rank 2 (NVIDIA H200 (GPU-...)) has other bits than 7 others from step 13 on, and again from step
 * 4 on" */
void ls_sdc_text(const ls_sdc *sdc, char *text, size_t bytes);

/* What a job announced that it would leave: by the options of its start events, which all subjects
 * report as far as they have them, else by the command in job.json. What a folder holds says
 * nothing about what it lacks.
 *
 * An effective option of a start event, by long name in either spelling, or NULL. */
const cJSON *ls_announced_option(const cJSON *options, const char *name);

typedef struct ls_announced_dumps {
    int step_count, *step; /* that any rank announced or dumped, in order; owned */
    int announced, there;  /* files, of all ranks */
    char missing[96];      /* the first that is not there: "dump/step000001.rank1.safetensors" */
} ls_announced_dumps;

ls_announced_dumps ls_announced_dumps_of(const ls_record *job);
/* Whether the rank announced a dump of a step that it made, and it is not there. */
bool ls_announced_dump_missing(const ls_record *job, int rank, int64_t step);
/* The checkpoint that `save` or `save-dir` of rank 0 names, where it is neither there nor in the
 * job's folder (which may have been moved); false: none is missing. */
bool ls_announced_save_missing(const ls_record *job, char *path, size_t bytes);

#endif
