/* Optimizers: runs that end or are refused, and the memory that moments take. */
#include <stdio.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/cases/rows.h"
#include "optim_facts.h"

enum { BAD_STEP = 2 };

/* ---- a static scale and a gradient that is inf ----------------------------------------------- */

/* Exit code 12 on every rank, behind the step that spoilt a value, with the tensor's name. */
static void judge_spoilt(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    char line[240];
    ls_record_last_line(job, 0, line, (int)sizeof line);
    if (job->state == LS_RECORD_KILLED || job->state == LS_RECORD_TIMED_OUT || job->code != 12) {
        ls_verdict_fail(
            out,
            "an infinite gradient at step %d under a static scale: exit code %d, expected "
            "12: %s",
            BAD_STEP, job->state == LS_RECORD_DONE ? 0 : job->code, line);
        return;
    }
    for (int k = 0; k < job->world; k++) {
        const ls_record_step *after = ls_record_find_step(&job->rank[k], BAD_STEP + 1);
        if (after != NULL) {
            ls_verdict_fail(out, "rank=%d went on to step %d", k, BAD_STEP + 1);
        }
    }
    if (strstr(line, "weight") == NULL && strstr(line, "bias") == NULL) {
        ls_verdict_fail(out, "the last line names no tensor: %s", line);
    }
    ls_verdict_pass(out, "%s", line);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static const struct refused {
    const char *name, *options;
} refused[] = {
    {"name", "--optimizer=rmsprop"},
    {"betas-one", "--optimizer=adam --betas=0.9,1"},
    {"betas-negative", "--optimizer=adam --betas=-0.1,0.9"},
    {"betas-single", "--optimizer=adam --betas=0.9"},
    {"eps-zero", "--optimizer=adam --eps=0"},
    {"trust-zero", "--optimizer=lars --trust=0"},
    {"norm-negative", "--optimizer=lamb --max-grad-norm=-1"},
    {"decay-negative", "--weight-decay=-0.1"},
    {"momentum-negative", "--momentum=-0.1"},
    {"lr-nan", "--lr=nan"},
    {"nesterov-adam", "--optimizer=adam --nesterov"},
    {"nesterov-no-momentum", "--momentum=0 --nesterov"},
};

/* The last of the row's jobs: exit code 2, one line, nothing written. */
static void judge_refused(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_record *last = &job[row->job_count - 1];
    char line[240];
    ls_record_last_line(last, 0, line, (int)sizeof line);
    bool ended = last->state != LS_RECORD_KILLED && last->state != LS_RECORD_TIMED_OUT;
    int code = last->state == LS_RECORD_DONE ? 0 : last->code;
    bool stepped = ls_record_find_step(&last->rank[0], 1) != NULL || last->rank[0].step_count > 0;
    if (!ended || code != 2 || stepped || line[0] == '\0') {
        ls_verdict_fail(out, "%s: exit code %d, expected 2, one line and no step: %s", row->text,
                        code, line);
    } else if (strstr(line, row->text) == NULL) {
        ls_verdict_fail(out, "the line does not name %s: %s", row->text, line);
    } else {
        ls_verdict_pass(out, "%s", line);
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

enum { RESNET8_ELEMENTS = 75290 }; /* parameters of the 6n+2 network with n = 1, 10 classes */

/* Moments are f32, so many per parameter, padded to 64 bytes a tensor at most. */
static void judge_memory(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const cJSON *start = job->rank[0].start;
    const cJSON *memory = start == NULL ? NULL : cJSON_GetObjectItemCaseSensitive(start, "memory");
    double moments = ls_json_number(memory, "moments", -1);
    double least = 4.0 * RESNET8_ELEMENTS * row->number[0];
    double most = least + 64.0 * row->number[0] * 128; /* more tensors than a resnet8 has */
    if (memory == NULL || moments < 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the start event tells no memory of moments");
    } else if (!(moments >= least && moments <= most)) {
        ls_verdict_fail(out, "moments take %.0f bytes, expected %d x 4 x %d", moments,
                        row->number[0], RESNET8_ELEMENTS);
    } else {
        ls_verdict_pass(out, "moments take %.0f bytes: %d per parameter", moments, row->number[0]);
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

static ls_spec job_of(const ls_case_settings *settings, int level, int world, const char *options)
{
    ls_spec spec = ls_rows_evidence(settings, level, world, 1, world > 1 ? 0.05 : LS_BUCKET_OWN);
    ls_text_put(spec.arch, sizeof spec.arch, "resnet8");
    ls_text_put(spec.extra, sizeof spec.extra, "%s", options);
    spec.dump_steps[0] = '\0';
    spec.steps = 1;
    return spec;
}

static void add_spoilt(const ls_case_settings *settings, ls_case_list *list)
{
    static const char *const names[] = {"adam", "adamw", "lamb", "lars"};
    for (int i = 0; i < 4; i++) {
        char options[96];
        int level = i % 2 == 0 ? 0 : 2;
        ls_case *row =
            ls_rows_add(list, judge_spoilt, "Z11", "optim.%s.spoilt.o%d", names[i], level);
        ls_text_put(options, sizeof options, "--optimizer=%s --overflow-at=%d:1", names[i],
                    BAD_STEP);
        row->job_count = 1;
        row->judges_outcome = true;
        row->job[0] = job_of(settings, level, 2, options);
        row->job[0].lr = 0.01;
        row->job[0].steps = BAD_STEP + 2;
    }
}

static void add_refused(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ls_case *row = ls_rows_add(list, judge_refused, "Z12", "optim.refused.%s", refused[i].name);
        row->job_count = 1;
        row->judges_outcome = true;
        row->job[0] = job_of(settings, 0, 1, refused[i].options);
        const char *last = strrchr(refused[i].options, '-'); /* "--word=value": its "--word" */
        while (last > refused[i].options && strncmp(last, "--", 2) != 0) {
            last--;
        }
        ls_text_put(row->text, sizeof row->text, "%.*s", (int)strcspn(last, "="), last);
    }
    /* a checkpoint's moments are another optimizer's */
    ls_spec saved = job_of(settings, 0, 1, "--optimizer=adam --save={self}/checkpoint.safetensors");
    char id[96];
    ls_matrix_id(&saved, id);
    static const char *const others[] = {"sgd", "lamb"};
    for (int i = 0; i < 2; i++) {
        ls_case *row =
            ls_rows_add(list, judge_refused, "Z12", "optim.refused.resume-%s", others[i]);
        row->job_count = 2;
        row->judges_outcome = true;
        row->job[0] = saved;
        row->job[1] = job_of(settings, 0, 1, "");
        row->job[1].steps = 2;
        ls_text_put(row->job[1].extra, sizeof row->job[1].extra,
                    "--optimizer=%s --resume={job:%s}/checkpoint.safetensors", others[i], id);
        ls_text_put(row->text, sizeof row->text, "optimizer");
    }
}

void ls_optim_ends_cases(const ls_case_settings *settings, ls_case_list *list)
{
    static const struct {
        const char *name, *options;
        int moments;
    } memory[] = {{"sgd", "--momentum=0.9", 1},
                  {"sgd-plain", "--momentum=0", 0},
                  {"adam", "--optimizer=adam", 2},
                  {"lamb", "--optimizer=lamb", 2},
                  {"lars", "--optimizer=lars", 1}};
    add_spoilt(settings, list);
    add_refused(settings, list);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
        ls_case *row = ls_rows_add(list, judge_memory, "Z13", "optim.memory.%s", memory[i].name);
        row->job_count = 1;
        row->number[0] = memory[i].moments;
        row->job[0] = job_of(settings, 2, 1, memory[i].options);
    }
}
