/* The loops for AVX2 with FMA and F16C. */
#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("avx2,fma,f16c")
#define LS_VEC_AVX2
#define LS_LOOPS_TABLE ls_loops_avx2
#define LS_VEC_NAME "AVX2"
#include "loops_body.inc"
#else
typedef int ls_loops_avx2_absent; /* a translation unit must not be empty */
#endif
