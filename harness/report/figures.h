/* What follows from the figures of several jobs. */
#ifndef LS_REPORT_FIGURES_H
#define LS_REPORT_FIGURES_H

#include "harness/machine/nvml.h"
#include "job.h"

/* Comparisons of timed jobs: with each other, with the same world without reduction, with a world
 * of one with DDP, with the same global batch on one rank.
 *
 * Speed of `a` over speed of `b` with its interval, from the steps of both. */
ls_stats_interval ls_report_compare_ratio(const ls_report_job *a, const ls_report_job *b);
/* Whether a ratio may be called a difference: its interval leaves out 1, and it is more than
 * restarting the same job makes (1 %). */
bool ls_report_compare_is_resolved(ls_stats_interval ratio);
/* The fastest of the jobs whose figure is a result; half_only: at O1 and above. NULL for none. */
const ls_report_job *ls_report_compare_fastest(const ls_report_job *const *jobs, int count,
                                               bool half_only);
/* Jobs of the bucket sweep, smallest bucket first, that differ from the fastest by nothing that is
 * resolved; *fastest among them. */
int ls_report_compare_best_buckets(const ls_report_run *run, const ls_report_job **jobs, int room,
                                   const ls_report_job **fastest);
/* The checked job on one node with the most ranks, at least 2, that has a world of one to compare
 * with; NULL. */
const ls_report_job *ls_report_compare_largest(const ls_report_job *const *jobs, int count);
/* Appends a sentence when the world of one computed with more threads than each rank of `job`. */
void ls_report_compare_note_threads(const ls_report_run *run, const ls_report_job *job, char *text,
                                    size_t bytes);

/* Step time of the job minus that of the no_comm job of the same level and world, in ms with
 * interval. Bucket size and simulated nodes need not be equal: without a reduction neither has an
 * effect. NaN without such a job. */
ls_stats_interval ls_report_compare_exposed_ms(const ls_report_run *run, const ls_report_job *job);

/* Images per second of one rank with DDP divided by those without. Both jobs may be NULL when value
 * is NaN. */
ls_stats_interval ls_report_compare_ddp(const ls_report_run *run, const ls_report_job **with,
                                        const ls_report_job **without);

/* Strong scaling of a timed job: thr(n) / (n * thr(1)), the base being one rank with the whole
 * global batch. NaN without one; *base may be NULL then. */
ls_stats_interval ls_report_compare_strong(const ls_report_run *run, const ls_report_job *job,
                                           const ls_report_job **base);
/* What decoding images costs: the job of role loader next to the same job with batches that stay on
 * the device. False without both. */
typedef struct ls_report_loader {
    const ls_report_job *reading, *resident;
    ls_stats_interval ratio; /* of their speeds */
    int workers;             /* threads of a rank that decode */
    double waited;           /* share of its steps that the reading job waited for images */
    int workers_needed;      /* of a rank, for the speed of the other; at most `workers` where the
                                reading job does not wait */
} ls_report_loader;
bool ls_report_compare_loader(const ls_report_run *run, ls_report_loader *out);
/* What fused products save: the speed of a row with them as a part of that of the job of role
 * unfused. NAN and NULL without both. */
ls_stats_interval ls_report_compare_fused(const ls_report_run *run, const ls_report_job **with,
                                          const ls_report_job **without);
/* The efficiency that cores allow: the threads a world has together against those its ranks would
 * need to keep one rank's share; 1 where every rank has its own. */
double ls_report_compare_ceiling(const ls_report_run *run, const ls_report_job *job);

/* Sentences on all of this, as far as the run holds it: array of strings. */
cJSON *ls_report_compare_sentences(const ls_report_run *run);
/* Advice on settings, in sentences: array of strings, at least one. Every sentence is computed from
 * the run; where the run does not suffice, it says so. */
cJSON *ls_report_advice_make(const ls_report_run *run);
/* For summary.json: {"ddp_of_one", "largest_batch": [...], "roofline", ...}. */
cJSON *ls_report_compare_json(const ls_report_run *run);

/* Training losses: of every level against the band of repeated O0 runs, a job of independent runs
 * of a small network; and of the level sweep's own jobs. */
enum { LS_REPORT_BAND_LEVELS = 8, LS_REPORT_BAND_RUNS = 64, LS_REPORT_REPEATS = 32 };

typedef struct ls_report_band {
    const ls_report_job *job; /* its ranks are the runs, each with the level of its start event */
    int steps, last;          /* of each run; how many at the end are averaged */
    int runs;                 /* of O0 */
    ls_stats_interval end;    /* their mean loss at the end, and where one more would end, 95 % */
    int level_count;          /* the others, a run each */
    int rank[LS_REPORT_BAND_LEVELS];
    const char *level[LS_REPORT_BAND_LEVELS];
    double level_end[LS_REPORT_BAND_LEVELS];
    bool inside[LS_REPORT_BAND_LEVELS];
} ls_report_band;

/* false when the run has no such job, or fewer than three O0 runs finished. */
bool ls_report_loss_read_band(const ls_report_run *run, ls_report_band *out);
/* "O1 1.119 and O2 1.096 stay inside the band of 10 O0 runs [0.77, 1.71]": text[320]. */
const char *ls_report_loss_sentence(const ls_report_band *band, char *text);
/* Mean loss of one run's steps with indices from `from` to before `to`. */
double ls_report_loss_mean(const ls_record_rank *rank, int from, int to);
/* Where one more value of the same distribution would be, 95 %; not below 0. */
ls_stats_interval ls_report_loss_predict(const double *value, int count);

/* Steps that every rank of the job has. */
int ls_report_loss_steps(const ls_report_job *job);
/* Mean loss over all ranks at step index `index`; NaN when a rank lacks it. */
double ls_report_loss_at(const ls_report_job *job, int index);
/* How many of `steps` steps the end of a curve is averaged over: a tenth, at least 5 (or all). */
int ls_report_loss_last(int steps);
/* Mean loss of the last steps: "where it ended". NaN without steps. */
double ls_report_loss_end(const ls_report_job *job);
/* O0 jobs that repeat `reference` but for seed, bucket size or place, itself included. Returns how
 * many; jobs[LS_REPORT_REPEATS]. */
int ls_report_loss_repeats(const ls_report_run *run, const ls_report_job *reference,
                           const ls_report_job **jobs);
/* The least and the greatest end of the repeats of the level sweep's O0 job. Returns how many. */
int ls_report_loss_range(const ls_report_run *run, double *low, double *high);

/* The memory of a rank by kind, from its events, and the largest batch that follows from it. */
typedef enum ls_report_kind {
    LS_REPORT_PARAMETERS,
    LS_REPORT_MASTERS,
    LS_REPORT_MOMENTS,
    LS_REPORT_GRADIENTS,
    LS_REPORT_ACTIVATIONS,
    LS_REPORT_WORKSPACE, /* packed weights, scratch, running statistics, accumulators */
    LS_REPORT_KINDS,
} ls_report_kind;

/* Bytes of each kind, NaN where not reported: the trainer's own table where its start event has
 * one, else as far as they follow from its sizes and options. Returns their sum. */
double ls_report_memory(const ls_record_rank *rank, double kind[LS_REPORT_KINDS]);

/* The largest batch per rank at a level, computed, not run. */
typedef struct ls_report_batch {
    const ls_report_job *job; /* of the level sweep */
    double fixed_bytes; /* of one rank: all kinds but activations, and program and libraries */
    double image_bytes; /* activations of one more image, its input three times (loader) */
    double room_bytes;  /* free memory of the machine divided by its ranks */
    double largest;     /* images */
} ls_report_batch;
/* false where the job or the machine does not report the figures it needs. */
bool ls_report_memory_largest_batch(const ls_report_run *run, const ls_report_job *job,
                                    ls_report_batch *out);
/* The same arithmetic against a job that was run with more images per rank: predicted and measured
 * peak of its rank, in bytes. false without such a job. */
bool ls_report_memory_check(const ls_report_run *run, const ls_report_job **larger,
                            double *predicted, double *seen);

/* The GPUs of a run, one by one: its speed alone, the rates it reached outside the jobs, its
 * temperature. Ranks that reduce wait for each other and have one speed; a GPU's own shows in the
 * job without reduction (role no_comm). Empty for runs on the CPU. */
enum { LS_REPORT_GPUS_MAX = 64 };

typedef struct ls_report_gpu {
    int rank, gpu;                /* gpu: NVML's index where its UUID is known, else the rank */
    char device[96], address[32]; /* "NVIDIA H200 (GPU-...)"; "" where not reported */
    double images_per_s;          /* alone; NaN where the job has no such figure */
    double behind;                /* of the median of the others: 0.038 is 3.8 % under it; NaN */
    double copy_bytes_per_s;      /* measured outside the jobs, or NaN, as what follows */
    double copy_share;            /* of memory clock x bus width */
    double f16_flop_per_s, tf32_flop_per_s, f32_flop_per_s;
    double power_w, sm_mhz, most_c; /* mean, mean under load, highest of the job that was watched */
} ls_report_gpu;

/* Returns how many. *alone: whether images_per_s are of ranks that did not wait.
 */
int ls_report_gpus_list(const ls_report_run *run, ls_report_gpu gpu[LS_REPORT_GPUS_MAX],
                        bool *alone);
/* The GPU farthest under its neighbours; NULL with fewer than three figures: two do not say which
 * of them is the odd one. */
const ls_report_gpu *ls_report_gpus_worst(const ls_report_gpu *gpu, int count);

typedef struct ls_report_reading {
    double at_ns;
    int gpu;
    double value[LS_NVML_READING_COUNT]; /* NaN where unknown */
} ls_report_reading;

/* jobs/<id>/gpu.jsonl, malloc'ed, in order of time; 0 where there is none. */
int ls_report_gpus_readings(const ls_report_job *job, ls_report_reading **out);

/* [{"rank","gpu","device","address","images_per_s","behind",...}] for summary.json. */
cJSON *ls_report_gpus_json(const ls_report_run *run);

#endif
