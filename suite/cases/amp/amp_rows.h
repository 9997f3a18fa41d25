/* The parts of the family amp. */
#ifndef LS_AMP_ROWS_H
#define LS_AMP_ROWS_H

#include "toy_script.h"

ls_family_cases ls_amp_group_cases; /* and masters */
ls_family_cases ls_amp_block_cases; /* accumulation, delayed unscale, skips, limits of the scale */
ls_family_cases ls_amp_state_cases; /* state dicts, and misuse */

#endif
