/* The multi-tensor loops with AVX2 and F16C. */
#if defined(__x86_64__)
#pragma GCC target("avx2,f16c")
#define LS_MULTI_TABLE ls_multi_avx2
#define LS_MULTI_NAME "AVX2"
#include "multi_variant.inc"
#else
typedef int ls_multi_avx2_absent; /* a translation unit must not be empty */
#endif
