/* The parts of the family amp. */
#ifndef LS_AMP_ROWS_H
#define LS_AMP_ROWS_H

#include "suite/cases/rows.h"

void ls_amp_optimizer_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_amp_group_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_amp_master_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_amp_misuse_cases(const ls_case_settings *settings,
                         ls_case_list *list); /* and amp disabled */
void ls_amp_block_cases(const ls_case_settings *settings,
                        ls_case_list *list); /* accumulation, delayed unscale */
void ls_amp_skip_cases(const ls_case_settings *settings,
                       ls_case_list *list); /* what a skip does, counts and limits of the scale */
void ls_amp_state_cases(const ls_case_settings *settings, ls_case_list *list); /* state dicts */

#endif
