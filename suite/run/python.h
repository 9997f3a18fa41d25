/* The Python interpreter that trainers in PyTorch run in. */
#ifndef LS_PYTHON_H
#define LS_PYTHON_H

#include <stdbool.h>
#include <stddef.h>

/* Finds an interpreter with numpy and PyTorch 1.13 or later: `asked`, or if it is NULL the first of
 * python3 and /usr/bin/python3. False: none has them. */
bool ls_python_find(const char *asked, char *python, size_t bytes);

#endif
