#include "tensor.h"

#include "status.h"

static const struct {
    size_t bytes;
    const char *name, *label;
} dtype_table[] = {
    [LS_F32] = {4, "F32", "fp32"}, [LS_F16] = {2, "F16", "fp16"},  [LS_BF16] = {2, "BF16", "bf16"},
    [LS_F64] = {8, "F64", "fp64"}, [LS_I64] = {8, "I64", "int64"}, [LS_I32] = {4, "I32", "int32"},
    [LS_U8] = {1, "U8", "uint8"},
};

size_t ls_dtype_bytes(ls_dtype dtype)
{
    LS_ASSERT(dtype >= LS_F32 && dtype <= LS_U8);
    return dtype_table[dtype].bytes;
}

const char *ls_dtype_name(ls_dtype dtype)
{
    LS_ASSERT(dtype >= LS_F32 && dtype <= LS_U8);
    return dtype_table[dtype].name;
}

const char *ls_dtype_label(ls_dtype dtype)
{
    LS_ASSERT(dtype >= LS_F32 && dtype <= LS_U8);
    return dtype_table[dtype].label;
}

/* Index of the first element whose exponent is all ones. */
#define FIND_NON_FINITE(type, exponent)             \
    for (int64_t i = 0; i < count; i++) {           \
        const type *bits = data;                    \
        if ((bits[i] & (exponent)) == (exponent)) { \
            return i;                               \
        }                                           \
    }

int64_t ls_dtype_non_finite(ls_dtype dtype, const void *data, int64_t count)
{
    if (dtype == LS_F32) {
        FIND_NON_FINITE(uint32_t, UINT32_C(0x7f800000));
    } else if (dtype == LS_F16) {
        FIND_NON_FINITE(uint16_t, 0x7c00);
    } else if (dtype == LS_BF16) {
        FIND_NON_FINITE(uint16_t, 0x7f80);
    } else if (dtype == LS_F64) {
        FIND_NON_FINITE(uint64_t, UINT64_C(0x7ff0000000000000));
    }
    return -1;
}
