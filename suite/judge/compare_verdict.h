/* The result of a comparison: its verdict in one line, and compare.json. */
#ifndef LS_COMPARE_VERDICT_H
#define LS_COMPARE_VERDICT_H

#include "compare_judgement.h"

void ls_compare_verdict_conclude(ls_compare_judgement *j);
ls_status ls_compare_verdict_write(const ls_compare_judgement *j, const char *path);

#endif
