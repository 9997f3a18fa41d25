/* Opens and closes a communicator. */
#ifndef LS_NCCL_INIT_H
#define LS_NCCL_INIT_H

#include "nccl_data.h"

ls_status ls_nccl_open(const ls_comm_options *options, ls_comm **out);
void ls_nccl_close(ls_comm *comm);
void ls_nccl_describe(char *text, int bytes);

#endif
