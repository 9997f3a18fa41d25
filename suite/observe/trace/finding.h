/* Rules and what they find (README.md in the folder above). A law follows from bits, from a derived
 * bound or from the calls themselves, and holds for every script: laws decide CORRECT and exit
 * codes. A hint is guessed from names, thresholds or habits, and decides nothing. */
#ifndef LS_OBSERVE_TRACE_FINDING_H
#define LS_OBSERVE_TRACE_FINDING_H

#include "suite/suite.h"

/* What the rules read: the events and samples of all ranks. trace.h */
typedef struct ls_observe_trace ls_observe_trace;

typedef struct ls_observe_rule ls_observe_rule;

/* What a rule with proof also guesses: PASS, which is nothing, or FAIL. */
typedef struct ls_observe_hint {
    ls_verdict verdict;
    char where[320], advice[400];
} ls_observe_hint;

typedef struct ls_observe_finding {
    const ls_observe_rule *rule;
    ls_verdict verdict;
    char where[320];  /* the user's call that is to blame, "train.py:41", or "" */
    char advice[400]; /* what to change there, or "" */
    ls_observe_hint hint;
} ls_observe_finding;

/* A rule: one invariant of any DDP or AMP training. Fills `out`, whose verdict comes as PASS with
 * empty texts: FAIL; WEAK where nothing happened that could show it; UNSUPPORTED where it could not
 * be seen, with the reason; SKIP where it does not concern the job (no scaler, one rank). */
typedef void ls_observe_judge(const ls_observe_trace *trace, ls_observe_finding *out);

struct ls_observe_rule {
    const char *id;          /* "scaler.trace" */
    const char *claim;       /* "any-ddp", "any-amp" or "both" */
    const char *requirement; /* "J7" in requirements.txt */
    /* Of a trainer of the protocol, where it can judge attached jobs alone: LS_PASS: both. */
    ls_verdict_code own;
    const char *own_why;
    int ranks;            /* that a job must have; 0: any */
    const char *sentence; /* what holds, for the report */
    const char *sure;     /* of a law: why a FAIL is sure; "": all that the rule finds is a hint */
    const char *wrong_if; /* what would make its hints wrong; "": it gives none */
    const char *show;     /* what to do where nothing showed it */
    ls_observe_judge *judge;
};

/* Sets where, from a call's place, and advice (printf style); the first of both stay. */
void ls_finding_blame(ls_observe_finding *out, const char *at, const char *advice, ...)
    __attribute__((format(printf, 3, 4)));
/* A verdict that is no PASS with its evidence (printf style), as ls_verdict_set, and why: its cause
 * and, as by ls_finding_blame, the place and advice. NULL: no cause, no place and advice. */
void ls_finding_set(ls_observe_finding *out, ls_verdict_code code, const char *at,
                    const char *cause, const char *advice, const char *evidence, ...)
    __attribute__((format(printf, 6, 7)));
/* The cause, the place and the advice of a verdict that is set already. */
void ls_finding_explain(ls_observe_finding *out, const char *at, const char *cause,
                        const char *advice);
/* Of a finding that is good so far: PASS with that evidence (printf style), or, where nothing was
 * compared, that code and why. */
void ls_finding_close(ls_observe_finding *out, int64_t compared, ls_verdict_code none,
                      const char *why, const char *evidence, ...)
    __attribute__((format(printf, 5, 6)));
/* The job's events hold nothing that the rule could be shown by: `what` is missing. WEAK, which
 * says what to do (rule->show); of a trainer that writes its own events, and leaves it out,
 * UNSUPPORTED. */
void ls_finding_missing(const ls_observe_trace *trace, const char *what, ls_observe_finding *out);
/* Takes a finding that is guessed into one of a rule that also has proof: a FAIL becomes its hint,
 * the first one stays; what is less is kept as by ls_calls_keep_worst. */
void ls_finding_guess(ls_observe_finding *out, const ls_observe_finding *one);

#endif
