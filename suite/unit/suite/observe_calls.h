/* Invented observed jobs, given by their calls: a word of one letter each, with members that differ
 * from the usual ones behind it. What has no meaning for the rules of calls is left out. */
#ifndef LS_OBSERVE_CALLS_H
#define LS_OBSERVE_CALLS_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "suite/observe/observe.h"

enum { CALLS_RANKS = 66 };

typedef struct calls_rank {
    FILE *file;
    int step, taken;
    double scale;
    int clean;
    bool found, asked, did;
} calls_rank;

typedef struct calls_job {
    char folder[64];
    int world;
    bool ended;
    calls_rank rank[CALLS_RANKS];
    ls_observe_trace *trace;
    ls_observe_result result;
} calls_job;

enum { CALLS_INTERVAL = 3 };
static const double calls_scale = 1024;

/* An event of one rank, or of all: -1. */
static inline void calls_event(calls_job *job, int rank, const char *line)
{
    for (int k = 0; k < job->world; k++) {
        if (rank < 0 || rank == k) {
            fprintf(job->rank[k].file, "%s\n", line);
        }
    }
}

/* The usual model has dropout and two batch norms; `model`: members in place of its own. */
static inline void calls_open_with(calls_job *job, int world, const char *model)
{
    *job = (calls_job){.world = world};
    ls_text_put(job->folder, sizeof job->folder, "/tmp/lockstep-calls-XXXXXX");
    LS_ASSERT(mkdtemp(job->folder) != NULL);
    for (int k = 0; k < world; k++) {
        LS_TEXT(path, 200, "%s/rank%d.jsonl", job->folder, k);
        job->rank[k] = (calls_rank){.file = fopen(path, "w"), .scale = calls_scale};
        LS_ASSERT(job->rank[k].file != NULL);
        fprintf(job->rank[k].file,
                "{\"event\":\"start\",\"schema\":1,\"observed\":1,\"rank\":%d,\"local_rank\":%d,"
                "\"world\":%d,\"options\":{}}\n",
                k, k, world);
        fprintf(job->rank[k].file,
                "{\"event\":\"model\",\"model\":0,%s\"kind\":\"%s\",\"at\":\"train.py:5\","
                "\"name\":\"Net\",\"params\":[[\"fc.weight\",8,\"f32\",true],[\"fc.bias\",2,"
                "\"f32\",true],[\"head.weight\",4,\"f32\",true]],\"buffers\":[["
                "\"bn.running_mean\",2,\"f32\"]],\"norm_params\":[],\"bn\":2,\"sync_bn\":0,"
                "\"dropout\":1,\"world\":%d}\n",
                model, world > 1 ? "ddp" : "plain", world);
    }
}

/* With a scaler and one optimizer. */
static inline void calls_open(calls_job *job, int world)
{
    calls_open_with(job, world, "");
    calls_event(job, -1,
                "{\"event\":\"scaler\",\"scaler\":0,\"enabled\":true,\"init_scale\":1024,"
                "\"growth_factor\":2,\"backoff_factor\":0.5,\"growth_interval\":3,"
                "\"at\":\"train.py:6\"}");
    calls_event(job, -1,
                "{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"torch.optim.sgd.SGD\","
                "\"rule\":\"sgd\",\"at\":\"train.py:7\",\"groups\":[{\"params\":[\"fc.weight\","
                "\"fc.bias\",\"head.weight\"],\"lr\":0.1}]}");
}

/* The scale after an update, as torch computes it. */
static inline void calls_update(calls_rank *r, FILE *f)
{
    double before = r->scale;
    r->clean = r->found ? 0 : r->clean + 1;
    r->scale *= r->found ? 0.5 : r->clean == CALLS_INTERVAL ? 2 : 1;
    r->clean = r->clean == CALLS_INTERVAL ? 0 : r->clean;
    r->found = false;
    fprintf(f,
            "\"call\":\"update\",\"scaler\":0,\"at\":\"train.py:25\",\"scale\":%g,\"next\":%g,"
            "\"growth\":%d,\"forced\":false",
            before, r->scale, r->clean);
}

/* F forward, S scale, B backward of a scaled loss, b of another, U unscale_, N clip, K scaler.step,
 * k the same that skips, O optimizer.step outside, P update, p that of scaler 1 (64, still), Z
 * zero_grad, L schedule, A all_reduce, E eval(), T train(). */
static inline void calls_word(calls_job *job, int rank, char word)
{
    calls_rank *r = &job->rank[rank];
    FILE *f = r->file;
    switch (word) {
    case 'F':
        fprintf(f,
                "\"call\":\"forward\",\"model\":0,\"at\":\"train.py:20\",\"training\":true,"
                "\"grad\":true,\"sync\":true,\"autocast\":\"f16\",\"input\":\"%08x%08x\","
                "\"type\":\"f16\",\"eval_norms\":0,\"left\":3",
                r->step, rank);
        break;
    case 'S':
        fprintf(f, "\"call\":\"scale\",\"scaler\":0,\"type\":\"f32\",\"at\":\"train.py:21\"");
        break;
    case 'B':
    case 'b':
        fprintf(f,
                "\"call\":\"backward\",\"at\":\"train.py:21\",\"loss\":1,\"type\":\"f32\","
                "\"scaled\":%s,\"autocast\":null,\"sync\":true",
                word == 'B' ? "0" : "null");
        break;
    case 'U':
        fprintf(f, "\"call\":\"unscale\",\"scaler\":0,\"optimizer\":0,\"at\":\"train.py:22\","
                   "\"found_inf\":false,\"inside\":false");
        break;
    case 'N':
        fprintf(f, "\"call\":\"clip\",\"how\":\"norm\",\"limit\":1,\"norm\":3,\"norm_type\":2,"
                   "\"params\":3,\"at\":\"train.py:23\"");
        break;
    case 'K':
    case 'k':
        r->found = r->found || word == 'k';
        r->asked = true;
        r->did = r->did || word == 'K';
        fprintf(f,
                "\"call\":\"scaler_step\",\"scaler\":0,\"optimizer\":0,\"at\":\"train.py:24\","
                "\"found_inf\":%s,\"stepped\":%s",
                word == 'k' ? "true" : "false", word == 'k' ? "false" : "true");
        break;
    case 'O':
        r->asked = r->did = true;
        fprintf(f, "\"call\":\"optimizer_step\",\"optimizer\":0,\"at\":\"train.py:24\","
                   "\"scaled\":null,\"lr\":[0.1]");
        break;
    case 'P':
        calls_update(r, f);
        break;
    case 'p':
        fprintf(f,
                "\"call\":\"update\",\"scaler\":1,\"at\":\"train.py:25\",\"scale\":64,"
                "\"next\":64,\"growth\":%d,\"forced\":false",
                r->step);
        break;
    case 'Z':
        fprintf(f, "\"call\":\"zero_grad\",\"at\":\"train.py:26\",\"to_none\":true,"
                   "\"of\":\"optimizer\",\"optimizer\":0");
        break;
    case 'L':
        fprintf(f,
                "\"call\":\"schedule\",\"class\":\"StepLR\",\"at\":\"train.py:27\",\"lr\":[0.1]");
        break;
    case 'A':
        fprintf(f, "\"call\":\"collective\",\"op\":\"all_reduce\",\"elements\":4,\"type\":\"f32\","
                   "\"reduce\":\"sum\",\"at\":\"train.py:28\"");
        break;
    case 'E':
    case 'T':
        fprintf(f, "\"call\":\"sync_module\",\"mode\":\"%s\",\"model\":0,\"at\":\"train.py:%d\"",
                word == 'E' ? "eval" : "train", word == 'E' ? 40 : 44);
        break;
    default:
        ck_abort_msg("no call %c", word);
    }
}

/* The members before the usual ones win: the first of two of one name counts. */
static inline const char *calls_write(calls_job *job, int rank, const char *text)
{
    FILE *f = job->rank[rank].file;
    char word = *text++;
    fputc('{', f);
    if (*text == '{') {
        const char *end = text;
        for (int depth = 0; (depth += (*end == '{') - (*end == '}')) > 0 && *end != '\0';) {
            end++;
        }
        ck_assert_ptr_nonnull(end);
        fprintf(f, "%.*s,", (int)(end - text - 1), text + 1);
        text = end + 1;
    }
    calls_word(job, rank, word);
    fputc('}', f);
    return text;
}

/* One step; `members`: of the event, in place of the usual ones, "" or "\"skipped\":true,". */
static inline void calls_step_of(calls_job *job, int rank, const char *members, const char *calls)
{
    for (int k = 0; k < job->world; k++) {
        calls_rank *r = &job->rank[k];
        FILE *f = r->file;
        if (rank >= 0 && rank != k) {
            continue;
        }
        r->step++;
        double scale = r->scale;
        r->asked = r->did = false;
        fprintf(f, "{\"event\":\"step\",\"step\":%d,\"calls\":[", r->step);
        for (const char *at = calls; *at != '\0';) {
            if (*at == ' ') {
                at++;
                continue;
            }
            fputs(at != calls ? "," : "", f);
            at = calls_write(job, k, at);
        }
        r->taken += r->did;
        fprintf(f,
                "],%s\"loss\":1,\"loss_scale\":%g,\"loss_scale_next\":%g,\"skipped\":%s,"
                "\"lr\":0.1,\"images\":4,\"digest\":{\"param\":\"%016x\",\"state\":\"%016x\","
                "\"buffer\":\"%016x\"},\"ms\":{\"total\":10,\"data\":1,\"forward\":2,"
                "\"backward\":4,\"optimizer\":1,\"instrument\":2},\"detail\":false}\n",
                members, scale, r->scale, r->asked && !r->did ? "true" : "false", r->taken,
                r->taken, r->step);
    }
}

static inline void calls_step(calls_job *job, const char *calls)
{
    calls_step_of(job, -1, "", calls);
}

/* What the launcher leaves of a job that failed, or that somebody stopped. */
static inline void calls_fail(const calls_job *job, bool stopped)
{
    LS_TEXT(path, 200, "%s/job.json", job->folder);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fprintf(f,
            "{\"schema\":1,\"facts\":{\"world\":2},\"outcome\":{\"state\":\"failed\","
            "\"first_rank\":1,\"code\":1,\"signal\":0,\"seconds\":9,\"asked\":%d,\"ranks\":[{"
            "\"rank\":0,\"code\":1,\"signal\":0},{\"rank\":1,\"code\":1,\"signal\":0}]}}\n",
            stopped ? 15 : 0);
    fclose(f);
}

/* A law that fails after any of the steps fails at the end, too: `result`. */
static inline void calls_prefixes(const char *folder, const ls_observe_result *result)
{
    int64_t step = 0;
    for (int64_t most = 2; /* live, the first is 3 */
         most <= 40; most++) {
        ls_observe_trace *trace = NULL;
        ls_observe_result now;
        LS_TEXT(cut, 200, "%s/cut", folder);
        ck_assert_int_eq(ls_live_cut(folder, cut, most, &step), LS_OK);
        if (step < most) {
            ls_path_remove_tree(cut);
            return;
        }
        ck_assert_int_eq(ls_observe_read(cut, &trace), LS_OK);
        ls_live_judge(trace, &now);
        for (int i = 0; i < now.count; i++) {
            const ls_observe_finding *f = &now.finding[i];
            const ls_observe_finding *end = result->finding;
            while (end->rule != f->rule) {
                end++;
            }
            bool joins = strstr(end->verdict.evidence, "as with join()") != NULL; /* said live */
            ck_assert_msg(f->verdict.code != LS_FAIL || end->verdict.code == LS_FAIL || joins,
                          "%s fails after step %lld: %s (%s), and is %s at the end: %s",
                          f->rule->id, (long long)step, f->verdict.evidence, f->verdict.cause,
                          ls_verdict_name(end->verdict.code), end->verdict.evidence);
        }
        ls_observe_result_free(&now);
        ls_observe_free(trace);
        ls_path_remove_tree(cut);
    }
}

/* Ends the job, reads it and judges all rules. */
static inline void calls_judge(calls_job *job)
{
    for (int k = 0; k < job->world; k++) {
        fprintf(job->rank[k].file, "{\"event\":\"end\",\"steps\":%d,\"why\":\"exit\"}\n",
                job->rank[k].step);
        fclose(job->rank[k].file);
    }
    ck_assert_int_eq(ls_observe_read(job->folder, &job->trace), LS_OK);
    ls_observe_judge_all(job->trace, &job->result);
    calls_prefixes(job->folder, &job->result);
}

static inline void calls_close(calls_job *job)
{
    ls_observe_result_free(&job->result);
    ls_observe_free(job->trace);
    ls_path_remove_tree(job->folder);
}

static inline const ls_observe_finding *calls_find(const calls_job *job, const char *id)
{
    for (int i = 0; i < job->result.count; i++) {
        if (strcmp(job->result.finding[i].rule->id, id) == 0) {
            return &job->result.finding[i];
        }
    }
    ck_abort_msg("no rule %s", id);
    return NULL;
}

/* The verdict, and words of its evidence, cause, place and advice together. */
/* In place of a verdict: that of the rule is no FAIL, and it gives a hint. */
#define CALLS_HINT ((ls_verdict_code)100)
/* That it gives none; its verdict does not matter. */
#define NO_HINT ((ls_verdict_code)101)

static inline void calls_expect_finding(const ls_observe_finding *f, ls_verdict_code code,
                                        const char *words)
{
    const char *id = f->rule->id;
    bool hint = code == CALLS_HINT;
    const ls_verdict *v = hint ? &f->hint.verdict : &f->verdict;
    LS_TEXT(all, 1800, "%s | %s | %s | %s", v->evidence, v->cause, hint ? f->hint.where : f->where,
            hint ? f->hint.advice : f->advice);
    ck_assert_msg(code == NO_HINT || v->code == (hint ? LS_FAIL : code), "%s is %s: %s", id,
                  ls_verdict_name(v->code), all);
    bool none = code == NO_HINT || code == LS_PASS || code == LS_SKIP;
    ck_assert_msg(!none || f->hint.verdict.code != LS_FAIL, "%s gives a hint: %s", id,
                  f->hint.verdict.evidence);
    ck_assert_msg(!hint || f->verdict.code != LS_FAIL, "%s fails, too: %s", id,
                  f->verdict.evidence);
    ck_assert_msg(strstr(all, words) != NULL, "%s does not say '%s': %s", id, words, all);
}

static inline void calls_expect(const calls_job *job, const char *id, ls_verdict_code code,
                                const char *words)
{
    const ls_observe_finding *f = calls_find(job, id);
    calls_expect_finding(f, code, words);
    ck_assert_msg(code != LS_FAIL || f->verdict.cause[0] != '\0', "%s has no cause: %s", id,
                  f->verdict.evidence);
}

/* `words` NULL: any. */
static inline void calls_expect_parts(const calls_job *job, const char *id, ls_verdict_code code,
                                      const char *words)
{
    static const char between[] = " .. ";
    ck_assert_msg(words != NULL || calls_find(job, id)->verdict.code == code, "%s is %s", id,
                  ls_verdict_name(calls_find(job, id)->verdict.code));
    for (const char *end; words != NULL; words = end == NULL ? NULL : end + strlen(between)) {
        end = strstr(words, between);
        LS_TEXT(part, 400, "%.*s", end == NULL ? (int)strlen(words) : (int)(end - words), words);
        calls_expect(job, id, code, part);
    }
}

/* Judges the job, expects that of a rule, and closes it. */
static inline void calls_end(calls_job *job, const char *id, ls_verdict_code code,
                             const char *words)
{
    calls_judge(job);
    calls_expect_parts(job, id, code, words);
    calls_close(job);
}

/* No rule fails or gives a hint. */
static inline void calls_expect_clean(const calls_job *job)
{
    static const char *const family[] = {"scaler.", "precision.",  "data.",
                                         "mode.",   "checkpoint.", "order."};
    for (int i = 0; i < job->result.count; i++) {
        const ls_observe_finding *f = &job->result.finding[i];
        for (size_t n = 0; n < sizeof family / sizeof *family; n++) {
            bool of = strncmp(f->rule->id, family[n], strlen(family[n])) == 0;
            ck_assert_msg(!of || f->verdict.code != LS_FAIL, "%s fails: %s (%s)", f->rule->id,
                          f->verdict.evidence, f->verdict.cause);
            ck_assert_msg(!of || f->hint.verdict.code == LS_PASS, "%s gives a hint: %s",
                          f->rule->id, f->hint.verdict.evidence);
        }
    }
}

/* A pass of a rank: its class of sampler, members in place of the usual ones, its indices. */
typedef struct calls_drawing {
    const char *sampler, *members;
    int length, count, first, stride,
        mix; /* index i: (first + stride * (i * mix % count)) % length */
} calls_drawing;

static inline void calls_write_pass(calls_job *job, int rank, const calls_drawing *d)
{
    char line[4000];
    ls_text_put(line, sizeof line,
                "{\"event\":\"data\",%s\"loader\":0,\"pass\":0,\"at\":\"train.py:18\","
                "\"sampler\":\"%s\",\"replicas\":2,\"sampler_rank\":%d,\"shuffle\":true,"
                "\"drop_last\":false,\"sampler_epoch\":0,\"length\":%d,\"batch\":2,\"workers\":0,"
                "\"count\":%d,\"whole\":true,\"order\":\"%d.%d.%d\",\"modulus\":1,"
                "\"trained\":true,\"kept\":[",
                d->members, d->sampler, rank, d->length, d->count, d->first, d->stride, d->mix);
    for (int i = 0; i < d->count; i++) {
        ls_text_add(line, sizeof line, "%s%d", i > 0 ? "," : "",
                    (d->first + d->stride * (i * d->mix % d->count)) % d->length);
    }
    ls_text_add(line, sizeof line, "]}");
    calls_event(job, rank, line);
}

/* ---- jobs as text ---------------------------------------------------------------------------- */

static inline void calls_script(calls_job *job, const char *script);

/* What stands between two ";". */
static inline void calls_part(calls_job *job, char *part)
{
    int times = 1, used = 0, rank = -1;
    const char *members = "";
    if (sscanf(part, "%dx %n", &times, &used) != 1 || used == 0) {
        times = 1;
    }
    part += used;
    used = 0;
    if (sscanf(part, "%d: %n", &rank, &used) == 1 && used > 0) {
        part += used;
    } else {
        rank = -1;
    }
    if (*part == '<') {
        members = part + 1;
        part = strchr(part, '>');
        ck_assert_ptr_nonnull(part);
        *part++ = '\0';
        part += strspn(part, " ");
    }
    ck_assert_msg(*part != '\0', "a part without anything");
    if (*part == '(') {
        *strrchr(part, ')') = '\0';
    }
    for (int i = 0; i < times; i++) {
        if (*part == '(') {
            calls_script(job, part + 1);
        } else if (*part == '{') {
            calls_event(job, rank, part);
        } else if (*part == '=') {
            char sampler[64];
            calls_drawing d = {.sampler = sampler};
            ck_assert_int_eq(sscanf(part, "=%63s %d %d %d %d %d %n", sampler, &d.length, &d.count,
                                    &d.first, &d.stride, &d.mix, &used),
                             6);
            d.members = part + used;
            calls_write_pass(job, rank, &d);
        } else {
            calls_step_of(job, rank, members, part);
        }
    }
}

/* Parts divided by ";", each the calls of a step, an event, "{...}", or a pass, "=SAMPLER LENGTH
 * COUNT FIRST STRIDE MIX MEMBERS": of all ranks or, behind "0:", of one. "<...>" in front of calls
 * are members of the step in place of the usual ones, and "3x" repeats a part, or several,
 * "3x (...; ...)". */
static inline void calls_script(calls_job *job, const char *script)
{
    char *copy = strdup(script), *end;
    ck_assert_ptr_nonnull(copy);
    for (char *at = copy; *at != '\0'; at = end) {
        int depth = 0;
        for (end = at; *end != '\0' && (*end != ';' || depth > 0); end++) {
            depth += (*end == '(') - (*end == ')');
        }
        if (*end == ';') {
            *end++ = '\0';
        }
        calls_part(job, at + strspn(at, " "));
    }
    free(copy);
}

/* One that begins with "!" has no scaler, no optimizer, and up to ";" members of its model. */
static inline void calls_open_script(calls_job *job, int world, const char *script)
{
    if (script[0] != '!') {
        calls_open(job, world);
        calls_script(job, script);
        return;
    }
    int length = (int)strcspn(script, ";");
    LS_TEXT(model, 400, "%.*s", length - 1, script + 1);
    calls_open_with(job, world, model);
    calls_script(job, script + length + (script[length] == ';'));
}

typedef struct calls_row {
    const char *script, *id;
    ls_verdict_code code;
    const char *words; /* of the finding; several parts with " .. " between them; NULL: any */
    int world;         /* 0: 2 */
} calls_row;

/* `clean`: no rule fails, and without an id that is all. `place`: is in the finding, too. */
static inline void calls_judge_row(const calls_row *row, bool clean, const char *place)
{
    calls_job job;
    calls_open_script(&job, row->world == 0 ? 2 : row->world, row->script);
    calls_judge(&job);
    if (clean) {
        calls_expect_clean(&job);
    }
    if (row->id != NULL) {
        calls_expect_parts(&job, row->id, row->code, row->words);
        calls_expect_parts(&job, row->id, row->code, place != NULL ? place : row->words);
    }
    calls_close(&job);
}

#define CALLS_TEST(name, rows)                     \
    ROWS_TEST(name, rows)                          \
    {                                              \
        calls_judge_row(&(rows)[_i], false, NULL); \
    }
#define CALLS_CLEAN_TEST(name, rows)              \
    ROWS_TEST(name, rows)                         \
    {                                             \
        calls_judge_row(&(rows)[_i], true, NULL); \
    }

#endif
