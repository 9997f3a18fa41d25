/* `lockstep subject-check`: what it tries, and what it finds missing. */
#ifndef LS_SUBJECT_CHECK_INTERNAL_H
#define LS_SUBJECT_CHECK_INTERNAL_H

#include "suite/run/run.h"

enum { LS_SUBJECT_TIMEOUTS_MOST = 3 }; /* jobs that may end at their deadline */

typedef enum ls_subject_state {
    LS_SUBJECT_UNTRIED,
    LS_SUBJECT_TAKEN,
    LS_SUBJECT_REFUSED, /* exit code 4 */
    LS_SUBJECT_IGNORED, /* the start event says another value */
    LS_SUBJECT_FAILS,   /* the only new option of a job that did not end well */
} ls_subject_state;

/* An option as cases give it: numbers, paths and further parts of a value are alike, words are not
 * ("--lr", "--average=post"). Level, half type and kind of loss scale are one. */
typedef struct ls_subject_setting {
    char name[48], word[64]; /* "--average", "post" or "" */
    ls_subject_state state;
    char why[240];
} ls_subject_setting;

/* Something that is missing, and the cases that it costs. */
typedef struct ls_subject_gap {
    char what[400];
    int count;  /* of cases */
    bool *cost; /* [cases] */
} ls_subject_gap;

typedef struct ls_subject_check {
    ls_run run; /* of all cases that are considered; its bench is the plainest job */
    int setting_count, setting_capacity;
    ls_subject_setting *setting;
    struct ls_subject_job {
        int count, *setting;
    } * job; /* [run.jobs.count] */
    int gap_count, gap_capacity;
    ls_subject_gap *gap;
    int jobs, requirements, timeouts; /* that were tried; jobs that ended at their deadline */
} ls_subject_check;

/* ---- subject_check_tries.c ------------------------------------------------------------------- */

/* Lists the settings of all jobs of check->run, which is planned. */
ls_status ls_subject_tries_list(ls_subject_check *check);
/* Runs the plainest job, and then jobs of cases, those with the fewest settings that were not tried
 * first, until every setting was tried that some job allows to try. check->run.unstarted says why
 * the subject does not start. */
ls_status ls_subject_tries_settings(ls_subject_check *check);
/* Of each requirement, judges the shortest case that all settings allow, where it is short. */
ls_status ls_subject_tries_requirements(ls_subject_check *check);
bool ls_subject_tries_bad(const ls_subject_setting *setting);
/* Whether a job that is to end well gives it. */
bool ls_subject_tries_could(const ls_subject_check *check, int setting);
/* Whether one of the case's jobs has a setting that was tried and not taken. Never of a case about
 * how its job ends, which may be with a refusal. */
bool ls_subject_tries_costs(const ls_subject_check *check, int row);

#endif
