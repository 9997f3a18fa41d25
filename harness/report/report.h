/* From the files of a run to what people and programs read. A report is a function of the run's
 * directory alone, so that it can be made again at any time (`lockstep report DIR`).
 *
 * Read, all written before this is called:
 *
 * run.json: {"schema":1, "title", "label", "command", "created", "where":"CPU: 8 ranks on 2 cores,
 * no GPU was tested", "options":{...}, "machine":{"cores", ...}, "commit", "dirty",
 * "installed":[...], "headline":{"correct":{"value":"yes","why":"claim ..."}, "manners":{
 * "value":"20 of 21", "decide":false, ...}, "speed":{...}, "machine":{...}},
 * "roofline":[{"arch","image_size","batch_size","level","images_per_s"}]}; the roofline (one
 * process, the arithmetic alone, in this run) is absent where it was not measured.
 *
 * verdicts.jsonl, a line per case: {"schema":1, "case", "family", "kind":"protocol|inside",
 * "requirement", "in_claim":true, "manners":true, "verdict":"PASS", "compared":12 (how many things:
 * absent where the case was not judged, and in older runs), "seconds", "jobs":["id"], "evidence",
 * "value", "limit", "unit", "limit_from", "cause", "repeat", "waiver"}; members that do not apply
 * are absent. Of an observed job (schema 2) also "claim", "tier":"law|hint" (absent: a law),
 * "where", "change" (what to change there), "wrong_if" of a hint, and "decides":false for a verdict
 * that leaves the exit code as it is.
 *
 * jobs/<id>/job.json: {"schema":2, "id", "label", "command":[...], "environment":{...}, "facts":{
 * "role":"throughput|evidence|..." (spec.h), "arch", "image_size", "batch_size", "level":"O2",
 * "half":"fp16", "world", "nodes", "simulated":true, "bucket_mb":25 (0: delayed), "dialect",
 * "sync_bn", "threads", "warmup_steps", "steps", "oversubscribed":true, "half_emulated":true,
 * "checked":true (its checks passed), "rung":1 (gradient check of numerics.md section 5; absent:
 * none), "audited":true (and check 3),
 * "sweep":["level","bucket","world","nodes"] (the plots this job is a point of)},
 * "outcome":{"state":"done", "first_rank":-1, "code":0, "signal":0, "seconds",
 * "ranks":[{"rank","code","signal","user_s","system_s","rss_bytes_max"}]}}.
 *
 * jobs/<id>/rank<k>.jsonl: events (protocol.md). In a job of role "phases" also, from our
 * trainer, {"event":"trace","step":3,"spans":[{"name":"forward"|"backward"|"bucket 0"|...,
 * "lane":"compute"|"communication", "from_ns", "to_ns"}]} on the machine's monotonic clock.
 *
 * A device that can launch steps as graphs: "cuda_graph":true or why not, in the start event, and
 * in {"event":"graph","step":3,"cuda_graph":"why"} from where that changes.
 *
 * jobs/<id>/compare.json: {"schema":1, "reference", "step", "level", "whole":{"e","r","limit"},
 * "tensors":[{"name","elements","e","r","limit"}]} for judged gradients.
 *
 * Written: tables/<name>.tsv, plots/<name>.svg and .png (through plots/<name>.gp; none without
 * gnuplot, with a note), summary.json, report.md, report.html, junit.xml, trace.json. */
#ifndef LS_REPORT_H
#define LS_REPORT_H

#include <stdio.h>

#include "kernels/core/json.h"
#include "kernels/core/status.h"

/* Reads events, computes throughput and its intervals, writes tables/ and summary.json (without the
 * headline, which is decided from summary.json afterwards). */
ls_status ls_report_tables(const char *run_directory);
/* Everything else, from the tables and run.json's headline; adds the headline to summary.json.
 * plots_folder holds the .gp scripts. */
ls_status ls_report_write(const char *run_directory, const char *plots_folder);
/* junit.xml alone: of a run that was stopped. */
ls_status ls_report_junit(const char *run_directory);
/* The terminal table, at most 80 columns: opening lines, a row per throughput job, the failures.
 */
ls_status ls_report_terminal(const char *run_directory, FILE *to);

/* Compares two runs, `a` being the earlier one; each is a run's folder or, for speed alone, its
 * summary.json.
 *
 * Cases, by id: which newly fail (FAIL, CRASH, TIMEOUT, in `a` neither), are newly not judged
 * (WEAK, SKIP, UNSUPPORTED, INFRA), newly pass, or are missing in `b`. Throughput of equal jobs
 * (same network, batch, level, half, world, nodes, bucket size, dialect), in words; a job whose
 * number is no result in one of the two is named, not compared, and no speed is where the runs'
 * machines differ in what decides it (ls_comparable). With a gate (a share, such as 0.05; NAN:
 * none) a job exceeds it when the whole interval of its speed, compared with that in `a`, is lower
 * by more.
 *
 * LS_ERR_CHECK when a case that decides newly fails or is missing in `b` (in the claim; of MANNERS
 * where they decide), a job exceeds the gate, or none decides it; LS_ERR_USAGE when one has no
 * summary.json, is not finished, or they have nothing in common; LS_ERR_INFRA when a file of one is
 * not as its run left it. */
ls_status ls_report_diff(const char *a, const char *b, double gate, FILE *to);
/* Whether the files that a comparison reads are as the run left them (manifest.h); nothing is known
 * of a summary.json alone. */
ls_status ls_report_diff_check(const char *where);
/* Reads the summary of a run: `where` is its folder or the file itself. LS_ERR_USAGE when neither.
 */
ls_status ls_report_diff_read(const char *where, cJSON **summary);
/* Whether two rows of summaries' `throughput` are of equal jobs. */
bool ls_report_diff_same_job(const cJSON *x, const cJSON *y);
/* Whether a row may decide: a result, with a steady window, of no more ranks than cores. */
bool ls_report_diff_decides(const cJSON *row);

/* Whether the speeds of two runs can be compared: what they ran on must be the same. */

typedef struct ls_comparable {
    bool same;         /* nothing that decides differs, and what must be known is */
    char decides[400]; /* "1 core against 2 cores; CPU a against b", the later run first; or "" */
    char remarks[400]; /* differences that decide nothing; or "" */
} ls_comparable;

/* Of two run.json or summary.json. The table of facts is in diff.c. */
ls_comparable ls_report_diff_comparable(const cJSON *before, const cJSON *after);

#endif
