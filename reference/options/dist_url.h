/* The values of --dist-url, as torch.distributed.init_process_group takes them:
 *
 *   env://           torchrun's variables; --world-size and --rank stand for those that are not set
 *   tcp://HOST:PORT  of rank 0. FREEPORT, as the tutorial writes it, is a free one where one node
 *                    starts all ranks
 *   file://PATH      rank 0 writes address, port and a secret of this job to PATH, readable by its
 *                    user only; what an earlier job left there is replaced
 */
#ifndef LS_DIST_URL_H
#define LS_DIST_URL_H

#include "kernels/core/status.h"

typedef struct ls_dist_url {
    char kind; /* 'e'nv, 't'cp, 'f'ile */
    char host[256];
    int port; /* 0: FREEPORT */
    char path[512];
} ls_dist_url;

/* "" is env://. LS_ERR_USAGE, in one line, for another form. `out` may be NULL. */
ls_status ls_dist_url_parse(const char *text, ls_dist_url *out);

#endif
