/* The built-in engine of a world of one. */
#ifndef LS_SELF_H
#define LS_SELF_H

#include "comm.h"

const ls_comm_api *ls_self_entry(void);

#endif
