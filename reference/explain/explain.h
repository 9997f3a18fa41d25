/* `lockstep explain FLAGS` describes a run with these options without running it
 * (suite/commands/README.md): the type of every kind of tensor, every bucket of iteration 1 and
 * later (members, bytes, order), bytes on the wire per step, memory by kind, the loss scaler. At
 * most 80 columns. */
#ifndef LS_EXPLAIN_H
#define LS_EXPLAIN_H

#include <stdio.h>

#include "reference/options/options.h"

ls_status ls_explain_print(const ls_options *options, int world, FILE *to);

/* How the CPU backend of this machine computes the run's products: half units in use or why not,
 * and the implementation of every product, for each of its passes. Prints nothing where the run's
 * device is a GPU. Opens the backend; LS_ERR_INFRA or LS_ERR_UNSUPPORTED from it. */
ls_status ls_explain_print_products(const ls_options *options, int world, FILE *to);

#endif
