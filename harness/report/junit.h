/* junit.xml: a testsuite per family, a testcase per verdict, for a CI that shows tests. */
#ifndef LS_JUNIT_H
#define LS_JUNIT_H

#include "job.h"

/* Inside the claim everything but PASS and WAIVED is a failure; outside it, and WAIVED, is skipped
 * with the verdict as its message, so that a CI's count of failures equals the run's. */
ls_status ls_junit_write(const ls_report_run *run);

#endif
