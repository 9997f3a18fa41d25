/* Checks that every subject must pass in every case: each rank has a complete record that counts
 * its steps to the end and was made with the requested options (design.md section 4). */
#ifndef LS_PROTOCOL_H
#define LS_PROTOCOL_H

#include "suite/suite.h"

/* True, and FAIL set, if the records of a job that ended well break the protocol. `spec`: the
 * request; NULL: unknown (a foreign launcher). */
bool ls_protocol_breaks(const ls_record *job, const ls_spec *spec, ls_verdict *out);

#endif
