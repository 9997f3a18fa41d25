/* The loops for AVX2 with FMA and F16C. */
#include "loops.h"

#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("avx2,fma,f16c")
#define LS_VEC_AVX2
#define LS_VEC_NAME "AVX2"
#include "loops_body.inc"

const ls_loops *ls_loops_avx2(void)
{
    return &loops;
}
#else
const ls_loops *ls_loops_avx2(void)
{
    return NULL;
}
#endif
