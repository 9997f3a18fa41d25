/* The loops in plain C, for any processor. */
#pragma GCC optimize("O3")
#define LS_LOOPS_TABLE ls_loops_plain
#define LS_VEC_NAME "plain C"
#include "loops_body.inc"
