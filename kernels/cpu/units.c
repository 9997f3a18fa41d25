#include "units.h"

#include <stdint.h>

#include "kernels/core/clock.h"

#if defined(__x86_64__)
enum { ROUNDS = 16, LOOPS = 400 };

/* 14 independent sums of zeros, beyond the latency of either instruction. */
#define LS_FOURTEEN(i)                                                                           \
    i "%%zmm0\n" i "%%zmm1\n" i "%%zmm2\n" i "%%zmm3\n" i "%%zmm4\n" i "%%zmm5\n" i "%%zmm6\n" i \
      "%%zmm7\n" i "%%zmm8\n" i "%%zmm9\n" i "%%zmm10\n" i "%%zmm11\n" i "%%zmm12\n" i "%%zmm13\n"
#define LS_TIMED(function, instruction)                                                         \
    __attribute__((target("avx512f,avx512bf16"))) static int64_t function(void)                 \
    {                                                                                           \
        int64_t begin_ns = ls_clock_ns();                                                       \
        int loops = LOOPS;                                                                      \
        __asm__ volatile(                                                                       \
            "vzeroall\n1:\n" LS_FOURTEEN(instruction " %%zmm14, %%zmm15, ") "decl %0\njnz 1b\n" \
            : "+r"(loops)                                                                       \
            :                                                                                   \
            : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",     \
              "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                    \
        return ls_clock_ns() - begin_ns;                                                        \
    }
LS_TIMED(fma_ns, "vfmadd231ps")
LS_TIMED(bf16_ns, "vdpbf16ps")

/* The shortest of several rounds in turn: whatever else the core does makes one longer. */
double ls_units_bf16_rate(void)
{
    int64_t fma = INT64_MAX, bf16 = INT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t ns = fma_ns();
        fma = ns < fma ? ns : fma;
        ns = bf16_ns();
        bf16 = ns < bf16 ? ns : bf16;
    }
    return (double)fma / (double)bf16;
}
#else
double ls_units_bf16_rate(void)
{
    return 0;
}
#endif
