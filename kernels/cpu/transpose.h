/* For files that are compiled for AVX-512. */
#ifndef LS_CPU_TRANSPOSE_H
#define LS_CPU_TRANSPOSE_H

#include <immintrin.h>

/* Rows of 16 words of 32 bits become columns. */
static inline void ls_transpose(__m512i r[16])
{
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        __m512i even = _mm512_shuffle_i32x4(r[k], r[4 + k], 0x88);
        __m512i odd = _mm512_shuffle_i32x4(r[k], r[4 + k], 0xdd);
        __m512i even2 = _mm512_shuffle_i32x4(r[8 + k], r[12 + k], 0x88);
        __m512i odd2 = _mm512_shuffle_i32x4(r[8 + k], r[12 + k], 0xdd);
        t[k] = _mm512_shuffle_i32x4(even, even2, 0x88);
        t[8 + k] = _mm512_shuffle_i32x4(even, even2, 0xdd);
        t[4 + k] = _mm512_shuffle_i32x4(odd, odd2, 0x88);
        t[12 + k] = _mm512_shuffle_i32x4(odd, odd2, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        r[i] = t[i];
    }
}

#endif
