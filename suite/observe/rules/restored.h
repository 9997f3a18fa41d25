/* What a job does after it restored its state. Part of checkpoint.resume. */
#ifndef LS_OBSERVE_RULES_RESTORED_H
#define LS_OBSERVE_RULES_RESTORED_H

#include "suite/observe/trace/trace.h"

/* A rate that was multiplied by the number of ranks after the optimizer's state was loaded, which
 * holds it multiplied already. `again`: the job writes the file that it was loaded from. */
void ls_restored_judge_rate(const ls_observe_rank *rank, int k, bool again,
                            ls_observe_finding *out);
/* A rate that the script sets by its count of steps, and that climbs again as at the first start.
 * Of jobs that count on from their file. */
void ls_restored_judge_course(const ls_observe_rank *rank, int k, ls_observe_finding *out);
/* Data that were trained on before the file was written. Of attached jobs that restored an
 * optimizer, where the job that wrote the file is known and had as many ranks. */
void ls_restored_judge_data(const ls_observe_trace *trace, ls_observe_finding *out);

#endif
