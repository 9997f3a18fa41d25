/* What every subject owes, whatever a case asks: a record per rank that is whole, counts its steps
 * to the end, and was made by what was asked for (design.md section 4). */
#ifndef LS_PROTOCOL_H
#define LS_PROTOCOL_H

#include "suite/suite.h"

/* True, and FAIL set, when the records of a job that ended well break the protocol. `spec`: what
 * was asked; NULL: not known (somebody else's launcher). */
bool ls_protocol_breaks(const ls_record *job, const ls_spec *spec, ls_verdict *out);

#endif
