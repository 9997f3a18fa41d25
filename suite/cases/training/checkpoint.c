/* Saved at step k and resumed equals uninterrupted, to the last bit (numerics.md section 3). */
#include "suite/cases/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/judge/judges.h"

enum { SAVED_AT = 3, LAST = 6 };

/* The three jobs of a row, from the uninterrupted one. */
static void set_jobs(ls_case *row, const ls_spec *straight)
{
    ls_spec saved = *straight, resumed = *straight;
    saved.steps = SAVED_AT;
    ls_text_put(saved.extra, sizeof saved.extra, "%s --save={self}/checkpoint.safetensors",
                straight->extra);
    char id[96];
    ls_matrix_id(&saved, id);
    ls_text_put(resumed.extra, sizeof resumed.extra, "%s --resume={job:%s}/checkpoint.safetensors",
                straight->extra, id);
    row->job_count = 3;
    row->job[0] = *straight;
    row->job[1] = saved;
    row->job[2] = resumed;
}

static ls_spec straight_of(const ls_case_settings *settings, int level, int world)
{
    ls_spec straight = ls_rows_evidence(settings, level, world, 1, 0.1);
    straight.dump_steps[0] = '\0';
    ls_text_put(straight.arch, sizeof straight.arch, "resnet8");
    straight.bucket_mb = 0.05;
    straight.steps = LAST;
    return straight;
}

/* Ranks whose running statistics differ when the file is written: each must get its own back, and
 * where rank 0's go to all before a forward, they go before the first one after a resume too. */
static void add_own_statistics(const ls_case_settings *settings, ls_case_list *list)
{
    static const struct {
        const char *id, *dialect, *extra;
        int world;
        bool sync;
    } own[] = {{"torch", "torch", "", 2, false},
               {"torch-own", "torch", "--broadcast-buffers=False", 2, false},
               {"apex-broadcast", "apex", "--broadcast-buffers=True", 2, false},
               {"group", "apex", "--sync-bn-group=2", 4, true}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        ls_case *row = ls_rows_add(list, ls_judge_resume, "C2", "checkpoint.%s.o0.w%d", own[i].id,
                                   own[i].world);
        ls_spec straight = straight_of(settings, 0, own[i].world);
        ls_text_put(straight.dialect, sizeof straight.dialect, "%s", own[i].dialect);
        ls_text_put(straight.extra, sizeof straight.extra, "%s", own[i].extra);
        straight.sync_bn = own[i].sync;
        set_jobs(row, &straight);
    }
}

/* Buckets that follow the order of arrival: from three ranks on a sum's bits depend on where in its
 * bucket an element lies, so a resumed run that reduces its first step in other buckets than those
 * of the file goes on with other bits. */
static void add_layouts(const ls_case_settings *settings, ls_case_list *list)
{
    static const char *const dialects[] = {"apex", "torch"};
    for (int i = 0; i < 2; i++) {
        ls_case *row =
            ls_rows_add(list, ls_judge_resume, "C4", "checkpoint.layout.%s.o0.w3", dialects[i]);
        ls_spec straight = straight_of(settings, 0, 3);
        ls_text_put(straight.dialect, sizeof straight.dialect, "%s", dialects[i]);
        straight.deterministic = false;
        set_jobs(row, &straight);
    }
}

/* Resumed with another bucket size: the bits are the same with two ranks, and the buckets are those
 * of a run that had the new size from the start, not the file's. job: 0 from the start, 1 saved
 * with the old size, 2 resumed with the new one. */
static void judge_rebucketed(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const cJSON *list[3];
    for (int i = 0; i < 3; i++) {
        list[i] = cJSON_GetObjectItemCaseSensitive(job[i].rank[0].buckets, "buckets");
        if (!cJSON_IsArray(list[i])) {
            ls_verdict_set(out, LS_UNSUPPORTED, "rank=0 wrote no buckets event");
            return;
        }
    }
    if (cJSON_Compare(list[0], list[1], true)) {
        ls_verdict_set(out, LS_WEAK, "both sizes give the same buckets");
    } else if (!cJSON_Compare(list[0], list[2], true)) {
        ls_verdict_fail(out, "after resume %d buckets, expected %d; the file had %d%s",
                        cJSON_GetArraySize(list[2]), cJSON_GetArraySize(list[0]),
                        cJSON_GetArraySize(list[1]),
                        cJSON_Compare(list[1], list[2], true) ? ", the very same" : "");
    }
    ls_judge_resume(row, job, out);
}

static void add_rebucketed(const ls_case_settings *settings, ls_case_list *list)
{
    static const char *const dialects[] = {"apex", "torch"};
    for (int i = 0; i < 2; i++) {
        ls_case *row = ls_rows_add(list, judge_rebucketed, "C3", "checkpoint.rebucketed.%s.o0.w2",
                                   dialects[i]);
        ls_spec straight = straight_of(settings, 0, 2);
        ls_text_put(straight.dialect, sizeof straight.dialect, "%s", dialects[i]);
        straight.deterministic = false; /* so that buckets follow the order of arrival */
        set_jobs(row, &straight);
        row->job[1].bucket_mb = 0.15;
        char id[96];
        ls_matrix_id(&row->job[1], id);
        ls_text_put(row->job[2].extra, sizeof row->job[2].extra,
                    "--resume={job:%s}/checkpoint.safetensors", id);
    }
}

/* Resumed with other options: rank 0 says each of them, and no other. */
static void judge_told(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    static const char *const says[] = {"--lr was 0.05, now 0.125",
                                       "--growth-interval was 2000, now 9",
                                       "--accumulate was 1, now 2"};
    enum { SAYS = sizeof says / sizeof *says };
    char path[700];
    int lines = 0;
    (void)row;
    ls_text_put(path, sizeof path, "%s/rank0.log", job[1].directory);
    char *text = ls_text_read(path);
    for (int i = 0; i < SAYS; i++) {
        if (text == NULL || strstr(text, says[i]) == NULL) {
            ls_verdict_fail(out, "rank=0 does not say \"%s\"", says[i]);
        }
    }
    for (const char *at = text; at != NULL && (at = strstr(at, " was ")) != NULL; at++) {
        lines++;
    }
    if (lines != SAYS) {
        ls_verdict_fail(out, "rank=0 says %d differences, expected %d", lines, (int)SAYS);
    }
    free(text);
    ls_verdict_pass(out, "%d options that differ are told", lines);
}

static void add_told(const ls_case_settings *settings, ls_case_list *list)
{
    char id[96];
    ls_case *row = ls_rows_add(list, judge_told, "C5", "checkpoint.told.o0.w2");
    row->job_count = 2;
    row->job[0] = row->job[1] = straight_of(settings, 0, 2);
    row->job[0].steps = 1;
    row->job[1].steps = 2;
    ls_text_put(row->job[0].extra, sizeof row->job[0].extra,
                "--save={self}/checkpoint.safetensors");
    ls_matrix_id(&row->job[0], id);
    row->job[1].lr = 0.125;
    row->job[1].accumulate = 2;
    ls_text_put(row->job[1].extra, sizeof row->job[1].extra,
                "--growth-interval=9 --print-freq=1 --resume={job:%s}/checkpoint.safetensors", id);
}

void ls_checkpoint_cases(const ls_case_settings *settings, ls_case_list *list)
{
    add_own_statistics(settings, list);
    add_layouts(settings, list);
    add_told(settings, list);
    add_rebucketed(settings, list);
    for (int level = 0; level < 4; level++) {
        for (int world = 1; world <= 3; world++) {
            ls_case *row =
                ls_rows_add(list, ls_judge_resume, "C1", "checkpoint.resume.o%d.w%d", level, world);
            ls_spec straight = straight_of(settings, level, world);
            const char *scaler = "";
            if (level == 1 || level == 2) { /* scale and growth count must survive, too */
                ls_text_put(straight.loss_scale, sizeof straight.loss_scale, "dynamic");
                scaler = "--init-scale=1024 --growth-interval=2 --overflow-at=2";
            }
            ls_text_put(straight.extra, sizeof straight.extra, "%s", scaler);
            set_jobs(row, &straight);
        }
    }
}
