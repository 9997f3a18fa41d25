/* Element types: names and sizes. */
#ifndef LS_CORE_DTYPE_H
#define LS_CORE_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ls_dtype {
    LS_F32,
    LS_F16,
    LS_BF16,
    LS_F64,
    LS_I64,
    LS_I32,
    LS_U8,
} ls_dtype;

size_t ls_dtype_bytes(ls_dtype dtype);
/* The name used by the safetensors format: "F32", "F16", "BF16", "F64", "I64", "I32", "U8". */
const char *ls_dtype_name(ls_dtype dtype);
/* The name used on command lines: "fp32", "fp16", "bf16", ... */
const char *ls_dtype_label(ls_dtype dtype);
/* Index of the first element of data[count], in host memory, that is inf or NaN; -1 if there is
 * none, as in integers. */
int64_t ls_dtype_non_finite(ls_dtype dtype, const void *data, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
