/* The parts of `lockstep bounds`: how far correct steps are from the oracle over many fresh seeds,
 * and how far planted faults are (numerics.md section 4). Its rows are the reason for the factors
 * in compare_bounds.c. */
#ifndef LS_BOUNDS_INTERNAL_H
#define LS_BOUNDS_INTERNAL_H

#include "suite/judge/compare.h"

/* The measured values of a step: the parts of a gradient (compare.h), then these. */
enum {
    LS_BOUNDS_LOGITS = LS_COMPARE_PARTS, /* e/r of the logits */
    LS_BOUNDS_TIE,    /* the farthest branch that was taken the other way, in RMS roundings */
    LS_BOUNDS_REDUCE, /* largest error of an element, in units of its limit */
    LS_BOUNDS_NEXT,   /* the same for the optimizer's step */
    LS_BOUNDS_BUFFER, /* e/r of running statistics, where e leaves out the update's own rounding */
    LS_BOUNDS_KINDS,
};

typedef struct ls_bounds_plant {
    const char *name;
    int kind;           /* LS_BOUNDS_... or LS_COMPARE_...: the value that should show the fault */
    const char *tensor; /* of the dump; NULL: every gradient */
    bool may_hide;      /* it may be smaller than the rounding of some levels */
} ls_bounds_plant;
extern const ls_bounds_plant ls_bounds_plants[];
extern const int ls_bounds_plant_count;
/* Writes copies of path[world] with the fault to the files copy[world]. LS_ERR_UNSUPPORTED when the
 * fault needs more ranks (a missing reduction in a world of one). */
ls_status ls_bounds_plant_write(const ls_bounds_plant *plant, int world, const char *const *path,
                                const char *const *copy);

typedef struct ls_bounds_row {
    char setting[32]; /* "resnet20.o2.w3.torch" */
    char plant[32];   /* "none": a correct step */
    int level;
    uint64_t seed;
    char verdict[8]; /* PASS, WEAK, FAIL */
    double value[LS_BOUNDS_KINDS];
    double error, ideal; /* e and r of the whole gradient */
} ls_bounds_row;

typedef struct ls_bounds_rows {
    int count, capacity;
    ls_bounds_row *row;
} ls_bounds_rows;

/* The file of all rows, one line per step. A missing file has no rows; an interrupted run appends
 * to the file it left. */
ls_status ls_bounds_rows_read(const char *path, ls_bounds_rows *out);
ls_status ls_bounds_rows_append(const char *path, const ls_bounds_row *row);
void ls_bounds_rows_free(ls_bounds_rows *rows);

/* Compares the rows with each factor: writes bounds.tsv, settings.tsv and plants.tsv. */
ls_status ls_bounds_table_write(const ls_bounds_rows *rows, const char *folder);

#endif
