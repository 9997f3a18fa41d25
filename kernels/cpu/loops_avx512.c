/* The loops for AVX-512 (F, BW, DQ, VL: every processor since Skylake-SP that has it). */
#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#define LS_VEC_AVX512
#define LS_LOOPS_TABLE ls_loops_avx512
#define LS_VEC_NAME "AVX-512"
#include "loops_body.inc"
#else
typedef int ls_loops_avx512_absent; /* a translation unit must not be empty */
#endif
