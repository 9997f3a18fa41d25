/* The multi-tensor loops with the instructions every machine of this architecture has. */
#include "multi_variant.inc"
