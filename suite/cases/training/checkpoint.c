/* Saved at step k and resumed equals uninterrupted, to the last bit (numerics.md section 3). */
#include "suite/cases/rows.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/judge/judges.h"

/* Resumed with another bucket size: the bits are the same with two ranks, and the buckets are those
 * of a run that had the new size from the start, not the file's. job: 0 from the start, 1 saved
 * with the old size, 2 resumed with the new one. */
static void judge_rebucketed(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const cJSON *list[3];
    for (int i = 0; i < 3; i++) {
        list[i] = ls_json_get(job[i].rank[0].buckets, "buckets");
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

/* Resumed with other options: rank 0 says each of them, and no other. */
static void judge_told(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    static const char *const says[] = {"--lr was 0.05, now 0.125",
                                       "--growth-interval was 2000, now 9",
                                       "--accumulate was 1, now 2"};
    enum { SAYS = sizeof says / sizeof *says };
    int lines = 0;
    (void)row;
    LS_TEXT(path, 700, "%s/rank0.log", job[1].directory);
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
    ls_verdict_pass(out, lines, "%d options that differ are reported", lines);
}

/* Saves a checkpoint, then resumes from copies of it with one flipped bit each, anywhere in the
 * file; flips.txt: "BYTE MASK CODE MESSAGE" of each. */
enum { FLIPS = 40 };
#define FLIP(count)                                                                              \
    "alone() { env -u RANK -u WORLD_SIZE LS_RUN_DIR= \"$@\"; }; cd {self}; "                     \
    "alone \"$0\" \"$@\" --save=whole.safetensors || exit $?; "                                  \
    "awk -v bytes=$(wc -c <whole.safetensors) 'BEGIN { srand(7); for (i = 0; i < " count         \
    "; i++) print int(rand() * bytes), 2 ^ int(rand() * 8) }' | while IFS=' ' read -r at mask; " \
    "do "                                                                                        \
    "cp whole.safetensors flipped.safetensors; "                                                 \
    "byte=$(od -An -tu1 -j$at -N1 flipped.safetensors); "                                        \
    "printf \"\\$(printf %o $((byte ^ mask)))\" | "                                              \
    "dd of=flipped.safetensors bs=1 seek=$at conv=notrunc status=none; "                         \
    "said=$(alone \"$0\" \"$@\" --steps=2 --resume=flipped.safetensors 2>&1 >/dev/null); "       \
    "echo $at $mask $? $said; done >flips.txt; exec \"$0\" \"$@\""

/* Each flip is refused with code 2 by the file's name, and where it is in the data by the
 * tensor's. */
static void judge_flipped(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int flips = 0;
    ls_dumpfile *whole = ls_dumps_open_file(job, "whole.safetensors", LS_FAIL, out);
    if (whole == NULL) {
        return;
    }
    bool digests = ls_dumpfile_text(whole, "xxh64_header", NULL) != NULL;
    ls_dumpfile_close(whole);
    if (!digests) {
        ls_verdict_set(out, LS_UNSUPPORTED, "its checkpoints hold no digests");
        return;
    }
    LS_TEXT(path, 700, "%s/flips.txt", job->directory);
    char *text = ls_text_read(path), *rest = text;
    for (char *line; (line = strsep(&rest, "\n")) != NULL && line[0] != '\0'; flips++) {
        int code = -1;
        (void)sscanf(line, "%*d %*d %d", &code);
        bool named = strstr(line, "flipped.safetensors") != NULL &&
                     (strstr(line, "header") != NULL || strstr(line, "tensor '") != NULL);
        if (code != LS_ERR_USAGE || !named) {
            ls_verdict_fail(out, "flip %d (byte, mask, code, message): %s", flips + 1, line);
        }
    }
    free(text);
    if (flips != FLIPS) {
        ls_verdict_fail(out, "%d flips of %d were tried", flips, FLIPS);
    }
    ls_verdict_pass(out, flips, "%d of %d flipped bits are refused by name", flips, FLIPS);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define SAVE " steps=3 --save={self}/checkpoint.safetensors"
#define RESUME "/checkpoint.safetensors"
/* An uninterrupted job of six steps, one saved after the third, and one resumed there. */
#define THREE(job)                                                                    \
    "resnet8 b0.05 " job " steps=6 | resnet8 b0.05 " job SAVE " | resnet8 b0.05 " job \
    " steps=6 --resume={job:1}" RESUME

/* On a CPU's units for bf16. */
static const ls_row native[] = {
    {"checkpoint.resume.native.bf16.[o1=O1|o2=O2|o3=O3].w[1|2]", "C1", ls_judge_resume,
     THREE("$1 bf16 w$2 --half-math=native")},
};

static const ls_row rows[] = {
    {"checkpoint.resume.o[0|3].w[1|2|3]", "C1", ls_judge_resume, THREE("O$1 w$2")},
    /* scale and growth count must survive, too */
    {"checkpoint.resume.o[1|2].w[1|2|3]", "C1", ls_judge_resume,
     THREE("O$1 w$2 scale=dynamic --init-scale=1024 --growth-interval=2 --overflow-at=2")},
    /* Ranks whose running statistics differ when the file is written: each must get its own back,
     * and where rank 0's go to all before a forward, they go before the first one after a resume
     * too. */
    {"checkpoint.torch.o0.w2", "C2", ls_judge_resume, THREE("O0 w2 torch")},
    {"checkpoint.torch-own.o0.w2", "C2", ls_judge_resume,
     THREE("O0 w2 torch --broadcast-buffers=False")},
    {"checkpoint.apex-broadcast.o0.w2", "C2", ls_judge_resume,
     THREE("O0 w2 --broadcast-buffers=True")},
    {"checkpoint.group.o0.w4", "C2", ls_judge_resume, THREE("O0 w4 sync --sync-bn-group=2")},
    /* Buckets that follow the order of arrival (no --deterministic): with two ranks another size
     * keeps the bits. From three ranks on a sum's bits depend on the place of an element in its
     * bucket, so a resumed run that reduces its first step in other buckets than the file's gets
     * other bits. */
    {"checkpoint.rebucketed.[apex=|torch].o0.w2", "C3", judge_rebucketed,
     "resnet8 O0 w2 b0.05 $1 undetermined steps=6 | resnet8 O0 w2 b0.15 $1 undetermined" SAVE
     " | resnet8 O0 w2 b0.05 $1 undetermined steps=6 --resume={job:1}" RESUME},
    {"checkpoint.layout.[apex=|torch].o0.w3", "C4", ls_judge_resume,
     THREE("O0 w3 $1 undetermined")},
    {"checkpoint.told.o0.w2", "C5", judge_told,
     "resnet8 O0 w2 b0.05 steps=1 --save={self}/checkpoint.safetensors | resnet8 O0 w2 b0.05 "
     "steps=2 lr=0.125 accumulate=2 --growth-interval=9 --print-freq=1 --resume={job:0}" RESUME},
    {"checkpoint.flipped", "C6", judge_flipped, "resnet8 O0 w1 b0.05 steps=1 shell",
     .script = FLIP("40")},
};

void ls_checkpoint_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
    if (settings->bf16_units) {
        LS_ROWS(list, settings, native);
    }
}
