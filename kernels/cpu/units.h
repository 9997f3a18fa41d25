/* Whether a processor's units for a half type are worth using: VDPBF16PS multiplies twice as many
 * values per instruction as an f32 FMA, but some processors issue it at a quarter of the FMA's rate
 * (Golden Cove and its successors, where AMX is meant for such products). */
#ifndef LS_CPU_UNITS_H
#define LS_CPU_UNITS_H

/* Instructions per second of one core relative to FMAs of f32, each from registers; measured
 * in 0.1 ms. Only on a processor with AVX512-BF16. */
double ls_units_bf16_rate(void);

#endif
