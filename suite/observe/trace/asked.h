/* What a job of a trainer of the subject protocol was asked for: the options of its command
 * (protocol.md), from its job.json. What it says of itself may be the mistake. */
#ifndef LS_ASKED_H
#define LS_ASKED_H

#include "trace.h"

/* The value of "--name=VALUE" or "--name VALUE", "" of a flag, NULL where it was not given or the
 * command is not known. Of several the one with that number, from 0. */
const char *ls_asked_value(const ls_observe_trace *trace, const char *name, int number);
/* A flag, or True or False behind it. */
bool ls_asked_flag(const ls_observe_trace *trace, const char *name, bool fallback);
bool ls_asked_known(const ls_observe_trace *trace); /* the command is */

#endif
