/* Dumps of single steps for the judge (protocol.md, numerics.md section 4):
 * LS_RUN_DIR/dump/step%06d.rank%d.safetensors (dump/<model>/ where an example trains several) with,
 * A being --accumulate (the leading [A] only
 * where A > 1),
 *
 *   input          F32 [A,N,3,H,W]      target I64 [A,N]       logits F32 [A,N,classes]
 *   loss           F32 []               this rank's mean over its A*N samples
 *   branch/<kkk>   ReLU: U8 [A,bytes], bits of output > 0; max-pool: I32 [A,N,C,H,W]
 *   param/<name>   before the step, in the model's type
 *   next/<name>    after it: masters where there are masters
 *   grad/<name>    F32, after reduction and unscaling
 *   local/<name>   F32, what this rank handed to the reduction (in the reduced type), unscaled
 *   buffer/<name>  after forward; last_buffer/<name>: before it; counters I64
 *   master/<name>, state/<name>/<moment>            before the step
 *   next_state/<name>/<moment>                      after it
 *
 * and the step's settings as metadata, among them `applied`, where there are any: the batch norms
 * whose output the next convolution computed, with scale and bias in fp16 (numerics.md section 4,
 * point 8). With --dump-ranks branches the ranks but 0 write the first
 * three groups only: input to branch/. A dump costs time outside the step's clock. */
#ifndef LS_DUMP_H
#define LS_DUMP_H

#include "reference/train/step_record.h"
#include "reference/state/step_observer.h"
#include "reference/train/trainer.h"

typedef struct ls_dump ls_dump;

/* Whether this rank dumps that step. */
bool ls_dump_wants(const ls_trainer *trainer, int64_t step);
/* Before the first forward, and after what rank 0 may have sent for it: takes parameters, masters,
 * moments and last_buffer/, and subscribes to the step for the rest, which it takes with the clock
 * stopped. */
ls_status ls_dump_begin(const ls_trainer *trainer, int64_t step, ls_step_clock *clock,
                        ls_step_observers *observers, ls_dump **out);
void ls_dump_discard(ls_dump *dump); /* NULL is allowed */

typedef struct ls_dump_result {
    float loss;
    ls_step_state after; /* a host copy */
    float lr;
} ls_dump_result;
/* After the step: the rest, then the file. Frees the dump, also on failure. */
ls_status ls_dump_finish(ls_dump *dump, const ls_dump_result *result);

#endif
