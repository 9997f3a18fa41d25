/* `lockstep detect`: runs each planted fault (kernels/core/plant.h, suite/plants.txt) against the
 * case that must catch it, then against the must-pass list; and clean passes, which must raise no
 * alarm. */
#ifndef LS_DETECT_H
#define LS_DETECT_H

/* 0 good, 1 a fault was missed or a clean pass raised an alarm. */
int ls_detect_main(int count, char **argument);

#endif
