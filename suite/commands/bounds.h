/* `lockstep bounds`: how far correct steps lie from the oracle over many fresh seeds, and how far
 * planted faults do (numerics.md section 4). Its rows are the reason for the factors in
 * compare_bounds.c. */
#ifndef LS_BOUNDS_H
#define LS_BOUNDS_H

#include "suite/judge/compare.h"

/* What is measured of a step: the parts of a gradient, then these. */
enum {
    LS_BOUNDS_LOGITS = LS_COMPARE_PARTS, /* e/r of the logits */
    LS_BOUNDS_TIE,                       /* farthest turned branch, in RMS roundings */
    LS_BOUNDS_REDUCE,                    /* largest error of an element, in units of its limit */
    LS_BOUNDS_NEXT,                      /* the same of the optimizer's step */
    LS_BOUNDS_BUFFER, /* e/r of running statistics, e beyond the update's own rounding */
    LS_BOUNDS_KINDS,
};

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

const char *ls_bounds_kind_name(int kind);

/* bounds_rows.c: the file of all rows, one line a step, to which an interrupted run adds. */
ls_status ls_bounds_rows_read(const char *path, ls_bounds_rows *out);
ls_status ls_bounds_rows_append(const char *path, const ls_bounds_row *row);
void ls_bounds_rows_free(ls_bounds_rows *rows);

/* bounds_table.c: writes what the rows say of each factor: bounds.tsv, settings.tsv, plants.tsv. */
ls_status ls_bounds_table_write(const ls_bounds_rows *rows, const char *folder);

/* bounds_plant.c: a fault in the dumps of one step. */
typedef struct ls_bounds_plant {
    const char *name;
    int kind;           /* of the value that should show it */
    const char *tensor; /* of the dump; NULL: every gradient */
    bool may_hide;      /* a tenth of a tensor is less than some levels cost */
} ls_bounds_plant;
extern const ls_bounds_plant ls_bounds_plants[];
extern const int ls_bounds_plant_count;
/* Writes the faulty copies of path[world] to the files copy[world]. LS_ERR_UNSUPPORTED where the
 * fault cannot be planted there (one rank missing in a world of one). */
ls_status ls_bounds_plant_write(const ls_bounds_plant *plant, int world, const char *const *path,
                                const char *const *copy);

#endif
