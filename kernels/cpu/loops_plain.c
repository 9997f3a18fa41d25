/* The loops in plain C, for any processor. */
#pragma GCC optimize("O3")
#define LS_VEC_NAME "plain C"
#include "loops_body.inc"

const ls_loops *ls_loops_plain(void)
{
    return &loops;
}
