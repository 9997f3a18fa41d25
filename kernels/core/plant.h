/* Planted faults. LS_PLANT(name, good, bad) is `good`; in the planted build (make PLANTS=1, folder
 * build/planted) it is `bad` while LS_PLANT in the environment names it, so that one build holds
 * every fault of suite/plants.txt and `lockstep detect` can show that each of them is caught. The
 * normal build holds no trace of them (suite/unit/lint.sh looks).
 *
 *   LS_PLANT=name             everywhere, always
 *   LS_PLANT=name@3           in step 3 only
 *   LS_PLANT=name:1           on rank 1 only
 *   LS_PLANT=name@3:1         both
 *
 * Any expression will do, in any file but the oracle's; a statement is `if (LS_PLANT(name, true,
 * false)) { ... }`. The check is a comparison of two numbers that no loop over floats can change,
 * so compilers take it out of loops, which keep their form. */
#ifndef LS_PLANT_H
#define LS_PLANT_H

#include <stdint.h>

#if defined(LS_PLANTS) && !defined(__CUDA_ARCH__)

#ifdef __cplusplus
extern "C" {
#endif

/* Number of the active fault; 0: none. One for the whole process: loaded engines find the
 * program's. */
extern uint64_t ls_plant_active;
/* The current step, from 1, for faults limited to a step. */
extern int64_t ls_plant_now;
/* The number of a name, never 0. */
__attribute__((const)) uint64_t ls_plant_number(const char *name);
/* To be called when the trainer's step `step` begins. */
void ls_plant_step(int64_t step);

#ifdef __cplusplus
}
#endif

#define LS_PLANT(name, good, bad) (ls_plant_active == ls_plant_number(#name) ? (bad) : (good))
#define LS_PLANT_STEP(step) ls_plant_step(step)

#else

#define LS_PLANT(name, good, bad) (good)
#define LS_PLANT_STEP(step) ((void)0)

#endif

#endif
