/* The multi-tensor loops with AVX-512. */
#if defined(__x86_64__)
#pragma GCC target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#define LS_MULTI_TABLE ls_multi_avx512
#define LS_MULTI_NAME "AVX-512"
#include "multi_variant.inc"
#else
typedef int ls_multi_avx512_absent; /* a translation unit must not be empty */
#endif
