/* How the ranks of a job find each other and make sure that they are about to do the same thing. */
#ifndef LS_JOIN_H
#define LS_JOIN_H

#include "reference/train/trainer.h"

/* Opens store and engines; trainer->engine stays NULL in a world of one unless --comm asks for one.
 * LS_ERR_USAGE on every rank, with one line naming what differs and where, when the ranks were not
 * started alike (numerics.md section 2 assumes that they were); differing libraries are a warning.
 */
ls_status ls_join_open(ls_trainer *trainer);
/* Waits until every rank has come here, so that none leaves while another still needs it. */
ls_status ls_join_finish(ls_trainer *trainer);
/* After a failure, before anything is freed: ends what waits for the others, and lets the device
 * leave its work, which may write to the host's memory. trainer->stuck: it does not. */
void ls_join_abandon(ls_trainer *trainer);
/* failed: peers are not waited for. */
void ls_join_close(ls_trainer *trainer, bool failed);

/* Whether `mine` holds on every rank: *rank is -1, or one on which it does not. The key is used
 * once. polls: the engine polls the peers meanwhile, which also advances its own operations.
 * LS_ERR_PEER_LOST at the deadline (--timeout). */
ls_status ls_join_all(ls_trainer *trainer, const char *key, bool mine, bool polls, int *rank);

/* all[world][bytes]: what every rank has in own[bytes], through the gradients' communicator:
 * LS_ERR_PEER_LOST where a rank has left. `label` names the operation in errors. */
ls_status ls_join_gather(ls_trainer *trainer, const char *label, const void *own, int64_t bytes,
                         void *all);

/* Frees what ls_join_gather keeps on the device. */
void ls_join_release(ls_trainer *trainer);

/* Checks before the first step, through the store, that all ranks run the same job. */

/* Options, network, bucket rule and versions: LS_ERR_USAGE on every rank where one differs, with
 * one line that names it and both values. */
ls_status ls_agree_on_run(ls_trainer *trainer);
/* Library versions may round differently; rank 0 warns once. */
ls_status ls_agree_on_libraries(ls_trainer *trainer);
/* Every rank's `value` must equal rank 0's; LS_ERR_USAGE naming `what` and the ranks where not.
 * Does nothing without a store. */
ls_status ls_agree_on(ls_trainer *trainer, const char *what, uint64_t value);
/* All ranks take rank 0's choice of engines for products (kernels.h, engines_export). Does nothing
 * without a store. */
ls_status ls_agree_on_choices(ls_trainer *trainer);
/* Fingerprint of the options that make the bucket layout. */
uint64_t ls_agree_bucket_rule(const ls_trainer *trainer);
/* Fingerprint of layers, parameters and buffers. */
uint64_t ls_agree_network_digest(const ls_network *network);

#endif
