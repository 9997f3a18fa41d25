/* `lockstep bounds`: how far correct steps are from the oracle over many fresh seeds, and how far
 * planted faults are (numerics.md section 4). Its rows are the reason for the factors in
 * compare_bounds.c. */
#ifndef LS_BOUNDS_TABLE_H
#define LS_BOUNDS_TABLE_H

#include "bounds_plant.h"

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

/* The file of all rows, one line per step. A missing file has no rows; an interrupted run appends
 * to the file it left. */
ls_status ls_bounds_rows_read(const char *path, ls_bounds_rows *out);
ls_status ls_bounds_rows_append(const char *path, const ls_bounds_row *row);
void ls_bounds_rows_free(ls_bounds_rows *rows);

/* Compares the rows with each factor: writes bounds.tsv, settings.tsv and plants.tsv. */
ls_status ls_bounds_table_write(const ls_bounds_rows *rows, const char *folder);

#endif
