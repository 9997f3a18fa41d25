/* Where the program's own files are: beside the program (installed) or in the tree it was built in.
 */
#ifndef LS_PLACE_H
#define LS_PLACE_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/core/status.h"

/* The folder of this program, no slash at the end. */
void ls_place_program(char *path, size_t bytes);
/* "suite/claims" or "plots/x.gp" to a path that exists; false when there is none. */
bool ls_place_find(const char *name, char *path, size_t bytes);
/* Removes a folder with all in it; what cannot be removed stays silently. */
void ls_place_remove(const char *path);

#endif
