/* The tables of `lockstep bounds`. */
#ifndef LS_BOUNDS_TABLE_H
#define LS_BOUNDS_TABLE_H

#include "bounds_rows.h"

/* Compares the rows with each factor: writes bounds.tsv, settings.tsv and plants.tsv. */
ls_status ls_bounds_table_write(const ls_bounds_rows *rows, const char *folder);

#endif
