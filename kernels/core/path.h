/* Folders of runs. */
#ifndef LS_PATH_H
#define LS_PATH_H

#include "status.h"

/* The folder and those above it, where they are not there; LS_ERR_INFRA with the system's text. */
ls_status ls_path_make_folder(const char *path);

#endif
