/* The multi-tensor loops with the instructions every machine of this architecture has. */
#define LS_MULTI_TABLE ls_multi_plain
#define LS_MULTI_NAME "plain"
#include "multi_variant.h"
