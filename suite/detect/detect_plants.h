/* Reads and checks the list of planted faults, suite/plants.txt. */
#ifndef LS_DETECT_PLANTS_H
#define LS_DETECT_PLANTS_H

#include "suite/suite.h"

/* One line of suite/plants.txt, or of suite/peers/wrong/expected.txt. */
typedef struct ls_detect_plant {
    char name[48];                  /* of LS_PLANT(name, ...), or of suite/plants/<name>.patch */
    char wish[64];                  /* value of LS_PLANT: the name, "@step" and ":rank" */
    char case_id[LS_CASE_ID_BYTES]; /* the case that must catch it */
    char requirement[8];
    char cause[128]; /* a glob that the printed cause must match; "-": none is expected */
    char sentence[240];
    bool patch;         /* a patched tree, build/patched/<name>, with its own build */
    bool device;        /* a patch of a CUDA kernel: judged on the emulation of that build */
    bool foreign;       /* a wrong trainer, named "foreign.<script>" */
    char script[1100];  /* of a foreign trainer */
    char subject[1600]; /* its command, after an interpreter was found */
} ls_detect_plant;

typedef struct ls_detect_list {
    int count, capacity;
    ls_detect_plant *plant;
} ls_detect_list;

/* Reads suite/plants.txt. A fault is a patch if suite/plants/<name>.patch exists. LS_ERR_USAGE,
 * with the line, for a line that does not have five fields. */
ls_status ls_detect_read(const char *path, ls_detect_list *out);
/* Calls `visit` with every line of the file, numbered from 1, until one call fails; `visit` may
 * modify the line. LS_ERR_USAGE, with the description `what`, when the file cannot be read. */
typedef ls_status ls_detect_line(char *line, const char *path, int number, ls_detect_list *out);
ls_status ls_detect_read_lines(const char *path, const char *what, ls_detect_line *visit,
                               ls_detect_list *out);
/* Appends an empty entry. */
ls_detect_plant *ls_detect_append(ls_detect_list *list);
void ls_detect_free(ls_detect_list *list);
/* Checks that each fault names an existing case and, for a planted one, that case's requirement,
 * and that names are unique. Logs each error; LS_ERR_CHECK. */
ls_status ls_detect_check(const ls_detect_list *list, const ls_case_list *cases);

#endif
