/* What a job announced that it would leave: by the options of its start events, which all subjects
 * report as far as they have them, else by the command in job.json. What a folder holds says
 * nothing about what it lacks. */
#ifndef LS_ANNOUNCED_H
#define LS_ANNOUNCED_H

#include "harness/run/record.h"

/* An effective option of a start event, by long name in either spelling, or NULL. */
const cJSON *ls_announced_option(const cJSON *options, const char *name);

typedef struct ls_announced_dumps {
    int step_count, *step; /* that any rank announced or dumped, in order; owned */
    int announced, there;  /* files, of all ranks */
    char missing[96];      /* the first that is not there: "dump/step000001.rank1.safetensors" */
} ls_announced_dumps;

ls_announced_dumps ls_announced_dumps_of(const ls_record *job);
/* Whether the rank announced a dump of a step that it made, and it is not there. */
bool ls_announced_dump_missing(const ls_record *job, int rank, int64_t step);
/* The checkpoint that `save` or `save-dir` of rank 0 names, where it is neither there nor in the
 * job's folder (which may have been moved); false: none is missing. */
bool ls_announced_save_missing(const ls_record *job, char *path, size_t bytes);

#endif
