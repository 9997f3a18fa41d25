/* Finds a communication engine. */
#ifndef LS_COMM_LOAD_H
#define LS_COMM_LOAD_H

#include "comm.h"

/* By name; "self" is built in, the others are shared objects whose ABI is checked. LS_ERR_USAGE for
 * an unknown name. */
ls_status ls_comm_load(const char *name, const ls_comm_api **out);

#endif
