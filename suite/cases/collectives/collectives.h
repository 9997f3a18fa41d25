/* Judges of collectives other than those of their results; rows in collectives.c. */
#ifndef LS_COLLECTIVES_H
#define LS_COLLECTIVES_H

#include "suite/cases/rows.h"

/* The rates in every event follow from its bytes and its time, as nccl-tests has it. */
void ls_collectives_rates(const ls_case *row, const ls_record *job, ls_verdict *out);
/* So do the rows of the table that rank 0 prints where no events are asked for. */
void ls_collectives_printed(const ls_case *row, const ls_record *job, ls_verdict *out);

#endif
