/* From specs (spec.h) to jobs: a readable id, the subject's command, the facts of job.json and an
 * estimate of the seconds. A matrix is the list of a run's jobs, in which equal specs stand once.
 * Knows the subject protocol's options (design.md section 4), no case and no verdict. */
#ifndef LS_MATRIX_H
#define LS_MATRIX_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"
#include "job.h"
#include "spec.h"

/* A spec with every field at its default: resnet20 at 16 pixels, batch 4, one rank, synthetic data.
 */
ls_spec ls_matrix_spec(ls_role role);

/* The same deterministic steps on `ranks` devices, each rank alone; with `repeat` 1, again. */
ls_spec ls_matrix_sdc(const char *arch, int image_size, int batch_size, int ranks);

/* "o2.w4.n2.b5mb.s30-1f3a09bc": factors that people look for, then the digest of everything that
 * changes what is run. text[96]. */
void ls_matrix_id(const ls_spec *spec, char *text);
/* "O2, 4 ranks, 2 nodes, 5 MB". text[64]. */
void ls_matrix_label(const ls_spec *spec, char *text);
/* "25 MB", "delayed", "own rule". text[24]. */
void ls_matrix_bucket_text(double bucket_mb, char *text);

typedef struct ls_matrix_site {
    const char
        *subject; /* command words, blank between; NULL: lockstep-train beside this program */
    const char *run_directory; /* absolute; jobs go to <run>/jobs/<id> */
    const char *device;        /* "cpu", "cuda" */
    int cores;                 /* of a machine that runs ranks */
    ls_hosts *hosts;           /* where ranks run; NULL: here. Not owned */
    const ls_simnet *net;      /* of simulated nodes; NULL: the loopback. Not owned */
    struct ls_watch_gpu *gpus; /* watched while jobs run here; NULL: none. Not owned */
    int devices;               /* GPUs of a machine that ranks can have; 0: they run on cores */
    bool share_devices;        /* several ranks may share one */
    bool oversubscribed, half_emulated;
} ls_matrix_site;

/* The job of a spec: command with {self}, {run}, {bin} and {job:ID} filled in, directory, deadline,
 * facts. The caller frees it with ls_job_free. LS_ERR_USAGE for more arguments than a job holds. */
ls_status ls_matrix_job(const ls_spec *spec, const ls_matrix_site *site, ls_job *out);

/* Seconds that the job takes on `cores` cores: start of the ranks, steps, reduction. A model fitted
 * on a 2-core machine, good to a factor of two; used for the plan, the time left and deadlines
 * only. */
double ls_matrix_estimate_s(const ls_spec *spec, int cores);

/* Whether the job is a row of the matrix, and not only a baseline or a reference of one. */
bool ls_matrix_is_row(const ls_spec *spec);

typedef struct ls_matrix {
    int count, capacity;
    ls_spec *spec;
    char (*id)[96]; /* of each spec: a digest of its whole command, made once */
} ls_matrix;

/* Adds the spec unless an equal one is there (then their sweeps are joined); returns its index. */
int ls_matrix_add(ls_matrix *matrix, const ls_spec *spec);
/* Index of the job with that id, or -1. */
int ls_matrix_find(const ls_matrix *matrix, const char *id);
void ls_matrix_free(ls_matrix *matrix);

#endif
