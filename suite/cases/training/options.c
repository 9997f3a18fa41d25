/* Options by themselves, from inside: the default of each, the ends of its range and what lies
 * beyond, how its value is reported, and which options refuse each other. */
#include "suite/cases/rows.h"

#include <string.h>

#include <cjson/cJSON.h>

#include "kernels/core/text.h"
#include "suite/inside/inside.h"

/* Values are separated by spaces. A JSON text is as the start event has it, with ' for ". */
static const struct option {
    const char *name;
    const char *with;    /* what else stands on the line; "" */
    const char *initial; /* JSON of the default; NULL: not recorded */
    /* V: recorded as it stands; 'V': as a string; V=JSON; V=: not recorded; =JSON: without a value
     */
    const char *taken;
    const char *refused; /* '': the empty value */
} options[] = {
    {"arch", "", "'resnet50'", "'resnet8' 'resnet110' 'resnet152'", "resnet9 vgg16 ''"},
    {"batch-size", "", "32", "1 65536", "0 65537 -1 4.5 4x ''"},
    {"global-batch", "", "null", "1 64", "0 -8 x"},
    {"image-size", "", "224", "32", "31 0 -32 65537"},
    {"image-size", "--arch=resnet8", "224", "4 33", "3"},
    {"num-classes", "", "10", "2 1000", "1 0 1000001"},
    {"steps", "", "10", "1 1125899906842624", "0 -1 1e3"},
    {"steps", "--data=/tmp", "null", "3", "0"},
    {"epochs", "--data=/tmp", "1", "1 1000000", "0 1000001"},
    {"opt-level", "", "'O1'", "'O0' 'O2' 'O3'", "O4 o1 1 02"},
    {"half", "", "'fp16'", "'bf16'", "fp8 FP16 fp"},
    {"half-math", "", NULL, "'native' 'emulated' auto=", "f32 NATIVE nativ"},
    {"loss-scale", "", "'dynamic'", "128 0.5 'dynamic'", "0 -1 inf 1e-39 128x Dynamic"},
    {"loss-scale", "--opt-level=O2", "'dynamic'", "1", "0"},
    {"loss-scale", "--opt-level=O0", "1", "2", "0"},
    {"loss-scale", "--opt-level=O3", "1", "2", "0"},
    {"loss-scale", "--half=bf16", "1", "'dynamic'", "0"},
    {"init-scale", "", "65536", "1 0.25", "0 -2 inf nan 1e-50"},
    {"growth-interval", "", "2000", "1 1000000000", "0 1000000001 1.5"},
    {"min-loss-scale", "", "0", "0 2", "-1 inf x"},
    {"max-loss-scale", "", "16777216", "1 131072", "0 -1 nan"},
    {"max-loss-scale", "--dialect=torch", "null", "131072", "0"},
    {"keep-batchnorm-fp32", "--opt-level=O2", "true", "False=false True=true", "false 0 yes"},
    {"keep-batchnorm-fp32", "--opt-level=O3", "false", "True=true", "1"},
    {"master-weights", "--opt-level=O2", "true", "False=false True=true", "false 0 yes"},
    {"master-weights", "--opt-level=O3", "false", "True=true", "1"},
    {"tf32", "", "false", "=true", "1"},
    {"optimizer", "", "'sgd'", "'adam' 'lars'", "rmsprop SGD adamax"},
    {"lr", "", "0.1", "0 0.25", "-0.1 nan inf 1e39 0.1x"},
    {"lr-scaling", "", "'none'", "'linear'", "sqrt Linear"},
    {"schedule", "", "'constant'", "'cosine:9s' 'polynomial:9s:2'",
     "linear:5s cosine polynomial polynomial:9s:x"},
    {"label-smoothing", "", NULL, "0.1 1 0=", "-0.1 1.01 nan x"},
    {"momentum", "", "0.9", "0 1", "-0.1 nan inf"},
    {"weight-decay", "", "0.0001", "0 0.5", "-0.1 nan"},
    {"no-bn-decay", "", NULL, "=true", "1"},
    {"group", "", NULL,
     "bn|bias:wd=0=['bn|bias:wd=0'] fc:lr-factor=0.5,wd=1=['fc:lr-factor=0.5,wd=1']",
     "bn :wd=0 bn: bn:wd bn:wd= bn:wd=-1 bn:wd=x bn:wd=0, bn:wd=0,wd=1 bn:lr=1 (:wd=0 bn:wd=0x ''"},
    {"nesterov", "", "false", "=true", "1"},
    {"nesterov", "--optimizer=lars", "false", "=true", "1"},
    {"betas", "--optimizer=adam", "'0.90000000000000002,0.999'", "'0,0.5' '0.5,0'",
     "0.9,1 1,0.9 0.9 0.9,-0.1 -0.1,0.9 0.9,0.9,0.9"},
    {"eps", "--optimizer=adam", "1e-08", "0.25", "0 -1 nan"},
    {"eps", "--optimizer=adamw", "1e-08", "0.25", "0"},
    {"eps", "--optimizer=lamb", "1e-06", "0.25 1e-08", "0"},
    {"eps", "--optimizer=lars", "1e-08", "0.25", "0"},
    {"max-grad-norm", "--optimizer=lamb", "1", "0 2.5", "-1 nan"},
    {"trust", "--optimizer=lars", "0.02", "1 0.001", "0 -1"},
    {"larc-clip", "--optimizer=lars", NULL, "=true", "1"},
    {"clip-grad-norm", "", NULL, "0= 0.25", "-1 nan inf x"},
    {"clip-grad-value", "", NULL, "0= 0.25", "-1 nan inf x"},
    {"grad-norm", "", NULL, "=true", "1"},
    {"unfused", "", NULL, "=true", "1"},
    {"data-parallel", "", NULL, "1= 2 64", "0 65 -2 x"},
    {"data-parallel", "--opt-level=O0", NULL, "2", "0"},
    {"model-parallel", "", NULL, "=true", "1"},
    {"split-size", "--model-parallel", NULL, "1 8 65536", "0 65537 4x"},
    {"dialect", "", "'apex'", "'torch'", "ddp Torch"},
    {"bucket-cap-mb", "", "null", "0.5 25", "0 -1 inf"},
    {"bucket-cap-mb", "--dialect=torch", "25", "0.5", "0"},
    {"message-size", "", "10000000", "1 77", "0 -1 1.5"},
    {"message-size", "--dialect=torch", "null", "77", "0"},
    {"message-size", "--bucket-cap-mb=1", "null", "", "5"},
    {"delay-allreduce", "", "false", "=true", "1"},
    {"sync-bn", "", "false", "=true", "1"},
    {"sync-bn-group", "--sync-bn", "0", "0 4", "-1 x"},
    {"steps-of-rank", "", NULL, "4,2,3=[4,2,3] 7=[7]", "4,,2 4,0 4,2, 4;2 -1 x"},
    {"join", "", NULL, "'initial' 'active' 'throw' none=", "True Initial early ''"},
    {"no-pad", "--data=/tmp", NULL, "=true", "1"},
    {"batch-sizes", "", NULL, "4,2,3=[4,2,3] 65536=[65536]", "4,,2 4,0 65537 4,2, 4;2 -1"},
    {"accumulate", "", "1", "2 65536", "0 65537 -2"},
    {"no-sync", "--accumulate=2", NULL, "True=true False=false", "yes 0 false ''"},
    {"compress", "", "'none'", "'fp16' 'bf16' 'none'", "fp32 True"},
    {"comm-hook", "", NULL, "'allreduce' 'fp16_compress' 'bf16_compress' 'sum' 'noop' none=",
     "powerSGD fp16-compress Allreduce ''"},
    {"average", "--comm-hook=allreduce", "'pre'", "", ""},
    {"average", "--comm-hook=sum", "'none'", "", "post"},
    {"compress", "--comm-hook=bf16_compress", "'bf16'", "", "fp16"},
    {"find-unused", "", "false", "=true", "1"},
    {"broadcast-buffers", "", "false", "True=true False=false =true", "yes 1"},
    {"broadcast-buffers", "--dialect=torch", "true", "False=false", "no"},
    {"average", "", "'post'", "'pre' 'none' 'post'", "mean Pre"},
    {"average", "--dialect=torch", "'pre'", "'post'", "mean"},
    {"predivide", "", "1", "4 0.5", "0 -1 nan"},
    {"allreduce-fp32", "", "false", "=true", "1"},
    {"no-reduce", "", NULL, "=true", "1"},
    {"data", "", "'synthetic'", "'batches:b'", "batches: ''"},
    {"seed", "", "0", "7 18446744073709551615", "-1 x 18446744073709551616 1.0 ''"},
    {"workers", "", "2", "0 4096", "-1 4097"},
    {"val", "", NULL, "'a'", "''"},
    {"on-bad-image", "", NULL, "'skip' fail=", "ignore Skip ''"},
    {"eval-every", "", NULL, "1= 7", "0 -1 1000001"},
    {"evaluate", "", NULL, "=true", "1"},
    {"val-resize", "--image-size=32", NULL, "32 65536", "-1 65537"},
    {"dist-url", "", NULL,
     "'env://' 'tcp://10.0.0.1:23456' 'tcp://[::1]:5' 'tcp://host:FREEPORT' 'file:///a/b'",
     "tcp://host tcp://:5 tcp://host:0 tcp://host:65536 file://a udp://a:5 env '' tcp://"},
    {"dist-backend", "", NULL, "auto= 'nccl' 'gloo'", "mpi NCCL ''"},
    {"world-size", "", NULL, "1 1000000", "0 -1 1000001 x"},
    {"rank", "", NULL, "0 1000000", "-1 1000001 x"},
    {"gpu", "", NULL, "0 7", "-1 1000001 x"},
    {"multiprocessing-distributed", "", NULL, "=true", "1"},
    {"local-rank", "", NULL, "0 1000000", "-1 1000001"},
    {"device", "", "'auto'", "'cpu' 'cuda'", "tpu gpu"},
    {"deterministic", "", "false", "=true", "1"},
    {"threads", "", "0", "1 4096", "-1 4097"},
    {"init", "", "null", "'a'", "''"},
    {"save", "", "null", "'b'", "''"},
    {"save-dir", "", NULL, "'k'", "''"},
    {"save-every", "--data=/tmp --save-dir=k", NULL, "1 1000000", "0 -1 1000001 3s 1.5 ''"},
    {"save-every-steps", "--save-dir=k", NULL, "1 1125899906842624", "0 -1 x 1.5"},
    {"resume", "", "null", "'c'", "''"},
    {"dump-steps", "", "[]", "3=[3] 5,1,2=[5,1,2]", "0 1,1 1, first -1 1;2"},
    {"dump-ranks", "", "'0'", "'all' 'branches' '0'", "1 none"},
    {"force-branches", "", "null", "'d'", "''"},
    {"overflow-as", "", "'inf@:first:-1'",
     "'nan@fc.bias:last:2' -inf@fc.weight:middle='-inf@fc.weight:middle:-1' inf='inf@:first:-1'",
     "2 inf@ nan@x:end inf@x:last:-1 inf@x:last:0:1 infinity"},
    {"overflow-at", "", "[]", "3=['3'] 3,7:1=['3','7:1']", "0 3:-1 3: 3, x 3:1:1"},
    {"aux-head", "", NULL, "2,3:1=['2','3:1']", "0 3:-1 x"},
    {"fault-at", "", NULL, "2:1:save:kill=2",
     "0:1:save:kill 2:-1:save:kill 2:1:nap:kill 2:1:save:hug 2:1:save 2"},
    {"comm", "", "'auto'", "'self' 'gloo' 'nccl'", "mpi Gloo"},
    {"timeout", "", "300", "0.5 3600", "0 -1 inf nan"},
    {"digest", "", "'all'", "'param' 'none'", "some ALL"},
    {"digest-every", "", NULL, "1= 2", "0 -1"},
    {"trace", "", "false", "=true", "1"},
    {"mllog", "", NULL, "'a' '-'", "''"},
    {"print-freq", "", "10", "0 1000000", "-1 1000001"},
    {"audit", "", NULL, "3='3:200' '3:5' '3:5:9'", "-1 3:0 x 3: 3:5:0 3:5: 3:5:9:1"},
    {"resident", "", NULL, "1 64", "0 65"},
    {"cudnn-benchmark", "", NULL, "=true", "1"},
    {"fuse", "", NULL, "=true", "1"},
    {"engines", "", NULL, "'a'", "''"},
    {"cuda-graph", "", NULL, "'on' 'off' auto=", "yes"},
};
enum { OPTIONS = sizeof options / sizeof *options };

/* ---- one line of options --------------------------------------------------------------------- */

/* Words of `line` and one more. The line that a refusal says and the number of lines go to `said`,
 * `lines`. */
static ls_status parse(const char *line, const char *last, ls_options *out, char *said, int bytes,
                       int *lines)
{
    ls_inside_capture capture = ls_inside_capture_begin();
    ls_status status = ls_inside_options(line, last, out);
    *lines = ls_inside_capture_end(&capture, said, bytes);
    return status;
}

/* Whether the options report `want` under that name; NULL: nothing. */
static bool reports(const ls_options *given, const char *name, const char *want, char *got,
                    int bytes)
{
    cJSON *json = ls_options_json(given);
    const cJSON *found = ls_json_get(json, name);
    cJSON *expected = want != NULL ? cJSON_Parse(want) : NULL;
    char *shown = found != NULL ? cJSON_PrintUnformatted(found) : NULL;
    ls_text_put(got, (size_t)bytes, "%s", shown != NULL ? shown : "nothing");
    bool same = want == NULL || found == NULL ? want == NULL && found == NULL
                : cJSON_IsRaw(found)          ? strcmp(shown, want) == 0
                                              : cJSON_Compare(found, expected, true);
    cJSON_free(shown);
    cJSON_Delete(expected);
    cJSON_Delete(json);
    return same;
}

/* ---- judges ---------------------------------------------------------------------------------- */

/* `value` NULL: the option stands without one; `given` false: it does not stand there at all. */
static void check_taken(const struct option *o, const char *value, const char *recorded, bool given,
                        ls_verdict *out)
{
    ls_options parsed;
    char said[400], got[120], word[160], want[120];
    int lines = 0;
    ls_text_put(word, sizeof word, "--%s%s%s", o->name, value != NULL ? "=" : "",
                value != NULL ? value : "");
    ls_text_put(want, sizeof want, "%s", recorded != NULL ? recorded : "nothing");
    for (char *c = want; *c != '\0'; c++) {
        *c = *c == '\'' ? '"' : *c;
    }
    if (parse(o->with, given ? word : NULL, &parsed, said, (int)sizeof said, &lines) != LS_OK) {
        ls_verdict_fail(out, "%s %s is refused: %.200s", o->with, given ? word : "", said);
    } else if (!reports(&parsed, o->name, recorded != NULL ? want : NULL, got, (int)sizeof got)) {
        ls_verdict_fail(out, "%s %s: --%s is %s, expected %s", o->with, given ? word : "", o->name,
                        got, want);
    }
}

/* One entry of `taken`. */
static void check_entry(const struct option *o, char *entry, ls_verdict *out)
{
    char value[120], *list = strstr(entry, "=["), *equal = list != NULL ? list : strchr(entry, '=');
    size_t length = list != NULL ? (size_t)(list - entry) : strcspn(entry + (*entry == '\''), "='");
    ls_text_put(value, sizeof value, "%.*s", (int)length, entry + (*entry == '\''));
    if (*entry == '\'' || equal == NULL) {
        check_taken(o, value, entry, true, out);
    } else {
        check_taken(o, equal > entry ? value : NULL, equal[1] != '\0' ? equal + 1 : NULL, true,
                    out);
    }
}

static void check_refused(const struct option *o, const char *value, ls_verdict *out)
{
    ls_options parsed;
    char said[1000], word[160];
    int lines = 0;
    ls_text_put(word, sizeof word, "--%s=%s", o->name, strcmp(value, "''") == 0 ? "" : value);
    ls_status status = parse(o->with, word, &parsed, said, (int)sizeof said, &lines);
    if (status != LS_ERR_USAGE || lines != 1 || strstr(said, o->name) == NULL) {
        ls_verdict_fail(out, "%s %s: %s in %d lines, expected a refusal that names it", o->with,
                        word, ls_status_name(status), lines);
    }
}

static void judge_option(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct option *o = row->data;
    ls_words taken = {0}, refused = {0};
    (void)job;
    check_taken(o, NULL, o->initial, false, out);
    ls_words_split(&taken, o->taken);
    ls_words_split(&refused, o->refused);
    for (int i = 0; i < taken.count; i++) {
        check_entry(o, taken.word[i], out);
    }
    for (int i = 0; i < refused.count; i++) {
        check_refused(o, refused.word[i], out);
    }
    ls_verdict_pass(out, 1 + taken.count + refused.count,
                    "the default is %s, %d values are taken as given, %d refused",
                    o->initial != NULL ? o->initial : "absent", taken.count, refused.count);
    ls_words_free(&taken);
    ls_words_free(&refused);
}

/* ---- options against each other and against the world ---------------------------------------- */

static const struct pair {
    const char *name, *line;
    int rank, world; /* world 0: refused without knowing it */
    ls_status code;
    const char *says; /* of a refusal; of what is taken: the batch of a rank, "" */
} pairs[] = {
    {"two-bucket-sizes", "--bucket-cap-mb=1 --message-size=5", 0, 0, LS_ERR_USAGE, "message-size"},
    {"two-types", "--compress=fp16 --allreduce-fp32", 0, 0, LS_ERR_USAGE, "compress"},
    {"join-sync", "--join=initial --sync-bn", 0, 0, LS_ERR_USAGE, "sync-bn"},
    {"join-sync-throw", "--join=throw --sync-bn", 0, 2, LS_OK, "32"},
    {"join-no-reduce", "--join=active --no-reduce", 0, 0, LS_ERR_USAGE, "no-reduce"},
    {"join-noop", "--join=initial --comm-hook=noop", 0, 0, LS_ERR_USAGE, "comm-hook"},
    {"join-hook", "--join=active --comm-hook=allreduce", 0, 0, LS_ERR_USAGE, "comm-hook"},
    {"join-hook-initial", "--join=initial --comm-hook=allreduce", 0, 2, LS_OK, "32"},
    {"join-sum", "--join=active --average=none", 0, 0, LS_ERR_USAGE, "average"},
    {"join-each", "--join=initial --accumulate=2 --no-sync=False", 0, 0, LS_ERR_USAGE, "no-sync"},
    {"join-each-active", "--join=active --accumulate=2 --no-sync=False", 0, 2, LS_OK, "32"},
    {"join-audit", "--join=active --audit=1", 0, 0, LS_ERR_USAGE, "audit"},
    {"join-replicas", "--join=active --data-parallel=2", 0, 0, LS_ERR_USAGE, "join"},
    {"no-pad-synthetic", "--no-pad", 0, 0, LS_ERR_USAGE, "no-pad"},
    {"no-pad-batches", "--no-pad --data=batches:b", 0, 0, LS_ERR_USAGE, "no-pad"},
    {"steps-of-rank-folder", "--steps-of-rank=2,3 --data=d", 0, 0, LS_ERR_USAGE, "no-pad"},
    {"steps-of-rank-few", "--steps-of-rank=2,3", 0, 3, LS_ERR_USAGE, "steps-of-rank"},
    {"steps-of-rank-many", "--steps-of-rank=2,3,4", 0, 2, LS_ERR_USAGE, "steps-of-rank"},
    {"steps-of-rank-alone", "--steps-of-rank=2,3", 1, 2, LS_OK, "32"},
    {"hook-compress", "--comm-hook=allreduce --compress=fp16", 0, 0, LS_ERR_USAGE, "compress"},
    {"hook-average", "--comm-hook=sum --average=none", 0, 0, LS_ERR_USAGE, "average"},
    {"hook-predivide", "--comm-hook=sum --predivide=2", 0, 0, LS_ERR_USAGE, "predivide"},
    {"hook-no-reduce", "--comm-hook=noop --no-reduce", 0, 0, LS_ERR_USAGE, "no-reduce"},
    {"hook-two-types", "--comm-hook=bf16_compress --allreduce-fp32", 0, 0, LS_ERR_USAGE,
     "allreduce-fp32"},
    {"hook-allreduce-fp32", "--comm-hook=allreduce --allreduce-fp32", 0, 2, LS_OK, "32"},
    {"hook-sum-each", "--comm-hook=sum --accumulate=2 --no-sync=False", 0, 0, LS_ERR_USAGE,
     "no-sync"},
    {"hook-each", "--comm-hook=fp16_compress --accumulate=2 --no-sync=False", 0, 2, LS_OK, "32"},
    {"hook-noop-save", "--comm-hook=noop --save=x", 0, 0, LS_ERR_USAGE, "save"},
    {"hook-noop-save-dir", "--comm-hook=noop --save-dir=k", 0, 0, LS_ERR_USAGE, "save-dir"},
    {"hook-noop-resume", "--comm-hook=noop --resume=x", 0, 0, LS_ERR_USAGE, "resume"},
    {"hook-noop-audit", "--comm-hook=noop --audit=1", 0, 0, LS_ERR_USAGE, "audit"},
    {"hook-other-half", "--comm-hook=bf16_compress --opt-level=O2", 0, 0, LS_ERR_USAGE, "half"},
    {"hook-same-half", "--comm-hook=bf16_compress --opt-level=O2 --half=bf16", 0, 2, LS_OK, "32"},
    {"hook-half-o1", "--comm-hook=bf16_compress --opt-level=O1", 0, 2, LS_OK, "32"},
    {"hook-none", "--comm-hook=none --average=none --predivide=2", 0, 2, LS_OK, "32"},
    {"no-sync-alone", "--no-sync=True", 0, 0, LS_ERR_USAGE, "--accumulate"},
    {"no-sync-alone-false", "--no-sync=False", 0, 0, LS_ERR_USAGE, "--accumulate"},
    {"no-sync-sum", "--no-sync=False --accumulate=2 --average=none", 0, 0, LS_ERR_USAGE, "average"},
    {"no-sync-sum-once", "--no-sync=True --accumulate=2 --average=none", 0, 2, LS_OK, "32"},
    {"no-sync-no-reduce", "--no-sync=False --accumulate=2 --no-reduce", 0, 0, LS_ERR_USAGE,
     "no-reduce"},
    {"no-sync-predivide", "--no-sync=False --accumulate=2 --predivide=2", 0, 2, LS_OK, "32"},
    {"no-reduce-dump", "--no-reduce --dump-steps=1", 0, 0, LS_ERR_USAGE, "no-reduce"},
    {"no-reduce-save", "--no-reduce --save=x", 0, 0, LS_ERR_USAGE, "no-reduce"},
    {"no-reduce-save-dir", "--no-reduce --save-dir=k", 0, 0, LS_ERR_USAGE, "no-reduce"},
    {"save-every-alone", "--save-every=2 --data=d", 0, 0, LS_ERR_USAGE, "save-dir"},
    {"save-every-steps-alone", "--save-every-steps=2", 0, 0, LS_ERR_USAGE, "save-dir"},
    {"save-every-synthetic", "--save-every=2 --save-dir=k", 0, 0, LS_ERR_USAGE, "save-every-steps"},
    {"save-every-both", "--save-every=2 --save-every-steps=3 --save-dir=k --save=x --data=d", 0, 1,
     LS_OK, "32"},
    {"save-dir-evaluate", "--evaluate --save-dir=k", 0, 0, LS_ERR_USAGE, "save-dir"},
    {"no-reduce-resume", "--no-reduce --resume=x", 0, 0, LS_ERR_USAGE, "no-reduce"},
    {"predivide-torch", "--dialect=torch --predivide=2", 0, 0, LS_ERR_USAGE, "predivide"},
    {"predivide-pre", "--average=pre --predivide=2", 0, 0, LS_ERR_USAGE, "predivide"},
    {"predivide-post", "--dialect=torch --average=post --predivide=2", 0, 2, LS_OK, "32"},
    {"two-batches", "--batch-size=32 --global-batch=64", 0, 0, LS_ERR_USAGE, "global-batch"},
    {"scale-limits", "--min-loss-scale=4 --max-loss-scale=2", 0, 0, LS_ERR_USAGE, "min-loss-scale"},
    {"scale-limits-equal", "--min-loss-scale=4 --max-loss-scale=4", 0, 1, LS_OK, "32"},
    {"keep-bn-o1", "--keep-batchnorm-fp32=True", 0, 0, LS_ERR_USAGE, "keep-batchnorm-fp32"},
    {"masters-o1", "--master-weights=False", 0, 0, LS_ERR_USAGE, "master-weights"},
    {"nesterov-lamb", "--optimizer=lamb --nesterov", 0, 0, LS_ERR_USAGE, "nesterov"},
    {"nesterov-none", "--optimizer=lars --nesterov --momentum=0", 0, 0, LS_ERR_USAGE, "nesterov"},
    {"epochs-synthetic", "--epochs=2", 0, 0, LS_ERR_USAGE, "epochs"},
    {"epochs-batches", "--epochs=2 --data=batches:b", 0, 0, LS_ERR_USAGE, "epochs"},
    {"benchmark", "--cudnn-benchmark --deterministic", 0, 0, LS_ERR_USAGE, "cudnn-benchmark"},
    {"fuse", "--fuse --deterministic", 0, 0, LS_ERR_USAGE, "--fuse with --deterministic"},
    {"fuse-o0", "--fuse --opt-level=O0", 0, 0, LS_ERR_USAGE, "--fuse with --opt-level"},
    {"fuse-bf16", "--fuse --half=bf16", 0, 0, LS_ERR_USAGE, "--half bf16"},
    {"evaluate-save", "--evaluate --save=a", 0, 0, LS_ERR_USAGE, "evaluate"},
    {"evaluate-dump", "--evaluate --dump-steps=1", 0, 0, LS_ERR_USAGE, "evaluate"},
    {"val-resize-small", "--val-resize=223", 0, 0, LS_ERR_USAGE, "val-resize"},
    {"val-resize-equal", "--val-resize=224 --val=a", 0, 1, LS_OK, "32"},
    {"val-example", "--val=a --example=two-losses", 0, 0, LS_ERR_USAGE, "example"},
    {"clip-twice", "--clip-grad-norm=1 --clip-grad-value=1", 0, 0, LS_ERR_USAGE, "give one"},
    {"clip-lamb", "--clip-grad-norm=1 --optimizer=lamb", 0, 0, LS_ERR_USAGE, "max-grad-norm"},
    {"clip-lamb-value", "--clip-grad-value=1 --optimizer=lamb", 0, 0, LS_ERR_USAGE, "value"},
    {"clip-lars", "--clip-grad-norm=1 --optimizer=lars --larc-clip", 0, 1, LS_OK, "32"},
    {"clip-example", "--clip-grad-norm=1 --example=two-losses", 0, 0, LS_ERR_USAGE, "example"},
    {"larc-sgd", "--larc-clip", 0, 0, LS_ERR_USAGE, "larc-clip"},
    {"group-example", "--group=bn:wd=0 --example=two-losses", 0, 0, LS_ERR_USAGE, "example"},
    {"no-bn-decay-example", "--no-bn-decay --example=two-losses", 0, 0, LS_ERR_USAGE, "example"},
    {"groups-many",
     "--group=a:wd=0 --group=b:wd=0 --group=c:wd=0 --group=d:wd=0 --group=e:wd=0 --group=f:wd=0 "
     "--group=g:wd=0 --group=h:wd=0 --group=i:wd=0",
     0, 0, LS_ERR_USAGE, "up to 8"},
    {"smoothing-aux", "--label-smoothing=0.1 --aux-head=1", 0, 0, LS_ERR_USAGE, "aux-head"},
    {"smoothing-example", "--label-smoothing=0.1 --example=two-losses", 0, 0, LS_ERR_USAGE,
     "example"},
    {"scripts", "--b=208 -j 20 --wd=1e-4 --learning_rate=0.1 DIR", 0, 1, LS_OK, "208"},
    {"scripts-two-folders", "--data=a b", 0, 0, LS_ERR_USAGE, "argument 'b'"},
    {"resident-batches", "--resident=2 --data=batches:b", 0, 0, LS_ERR_USAGE, "resident"},
    {"resident-dump", "--resident=2 --dump-steps=1", 0, 0, LS_ERR_USAGE, "resident"},
    {"resident-aux", "--resident=2 --aux-head=1", 0, 0, LS_ERR_USAGE, "resident"},
    {"tf32-cpu", "--tf32 --device=cpu", 0, 0, LS_ERR_UNSUPPORTED, "tf32"},
    {"benchmark-cpu", "--cudnn-benchmark --device=cpu", 0, 1, LS_OK, "32"},
    {"fuse-cpu", "--fuse --device=cpu", 0, 0, LS_ERR_UNSUPPORTED, "--fuse"},
    {"engines-cpu", "--engines=kept --device=cpu", 0, 1, LS_OK, "32"},
    {"resident-cpu", "--resident=2 --device=cpu", 0, 0, LS_ERR_UNSUPPORTED, "resident"},
    {"two-engines", "--comm=gloo --dist-backend=nccl", 0, 0, LS_ERR_USAGE, "dist-backend"},
    {"engine-twice", "--comm=gloo --dist-backend=gloo", 0, 1, LS_OK, "32"},
    {"split-alone", "--split-size=4", 0, 0, LS_ERR_USAGE, "model-parallel"},
    {"split-rest", "--model-parallel --split-size=5", 0, 1, LS_ERR_USAGE, "split-size"},
    {"split-large", "--model-parallel --split-size=33", 0, 1, LS_ERR_USAGE, "split-size"},
    {"split-divides", "--model-parallel --split-size=8", 0, 1, LS_OK, "32"},
    {"stages-accumulate", "--model-parallel --accumulate=2", 0, 0, LS_ERR_USAGE, "accumulate"},
    {"stages-replicas", "--model-parallel --data-parallel=2", 0, 0, LS_ERR_USAGE, "data-parallel"},
    {"stages-world", "--model-parallel", 0, 2, LS_ERR_USAGE, "one process"},
    {"stages-validation", "--model-parallel --val=a", 0, 0, LS_ERR_USAGE, "evaluate"},
    {"replicas-divide", "--data-parallel=4", 0, 1, LS_OK, "32"},
    {"replicas-global", "--data-parallel=4 --global-batch=64", 0, 1, LS_OK, "64"},
    {"replicas-rest", "--data-parallel=3", 0, 1, LS_ERR_USAGE, "multiples of 3"},
    {"replicas-world", "--data-parallel=2", 1, 2, LS_ERR_USAGE, "one process"},
    {"replicas-sync", "--data-parallel=2 --sync-bn", 0, 0, LS_ERR_USAGE, "sync-bn"},
    {"replicas-engine", "--data-parallel=2 --comm=gloo", 0, 0, LS_ERR_USAGE, "comm"},
    {"replicas-example", "--data-parallel=2 --example=two-losses", 0, 0, LS_ERR_USAGE, "example"},
    {"replicas-o2", "--data-parallel=2 --opt-level=O2", 0, 0, LS_ERR_UNSUPPORTED, "data-parallel"},
    {"unfused-lamb", "--unfused --optimizer=lamb", 0, 0, LS_ERR_UNSUPPORTED, "unfused"},
    {"unfused-o3", "--unfused --opt-level=O3", 0, 0, LS_ERR_UNSUPPORTED, "unfused"},
    {"unfused-replicas", "--unfused --data-parallel=2", 0, 1, LS_OK, "32"},
    {"audit-cpu", "--audit=1 --device=cpu", 0, 1, LS_OK, "32"},
    {"global-batch", "--global-batch=24 --accumulate=2", 1, 3, LS_OK, "4"},
    {"global-batch-rest", "--global-batch=21 --accumulate=2", 1, 3, LS_ERR_USAGE, "global-batch"},
    {"global-batch-micro", "--global-batch=9 --accumulate=2", 1, 3, LS_ERR_USAGE, "global-batch"},
    {"global-batch-large", "--global-batch=131074", 0, 2, LS_ERR_USAGE, "global-batch"},
    {"group-divides", "--sync-bn --sync-bn-group=2", 3, 4, LS_OK, "32"},
    {"group-rest", "--sync-bn --sync-bn-group=3", 0, 4, LS_ERR_USAGE, "sync-bn-group"},
    {"group-large", "--sync-bn --sync-bn-group=8", 0, 4, LS_ERR_USAGE, "sync-bn-group"},
    {"group-alone", "--sync-bn-group=2", 0, 4, LS_ERR_USAGE, "sync-bn-group"},
    {"batches-own", "--batch-sizes=4,2,3", 1, 3, LS_OK, "2"},
    {"batches-last", "--batch-sizes=4,2,3", 2, 3, LS_OK, "3"},
    {"batches-few", "--batch-sizes=4,2", 0, 3, LS_ERR_USAGE, "batch-sizes"},
    {"batches-many", "--batch-sizes=4,2,3,4", 0, 3, LS_ERR_USAGE, "batch-sizes"},
    {"aux-rank", "--aux-head=1:2", 0, 2, LS_ERR_USAGE, "aux-head"},
    {"fault-rank", "--fault-at=1:2:save:kill", 0, 2, LS_ERR_USAGE, "fault-at"},
    {"overflow-rank", "--overflow-at=1:2", 0, 2, LS_ERR_USAGE, "overflow-at"},
    {"overflow-last-rank", "--overflow-at=1:1", 0, 2, LS_OK, "32"},
    {"overflow-micro", "--overflow-as=inf@x:last:2 --accumulate=2", 0, 1, LS_ERR_USAGE, "micro"},
    {"overflow-last-micro", "--overflow-as=inf@x:last:1 --accumulate=2", 0, 1, LS_OK, "32"},
    {"dump-nowhere", "--dump-steps=1", 0, 1, LS_ERR_USAGE, "dump-steps"},
    /* a batch norm needs two values in each channel: with images of 32 the last stage has 1 pixel
     */
    {"norm-single", "--image-size=32 --batch-size=1", 0, 1, LS_ERR_USAGE, "batch norm"},
    {"norm-single-local", "--image-size=32 --batch-size=1", 0, 2, LS_ERR_USAGE, "batch norm"},
    {"norm-two", "--image-size=32 --batch-size=2", 0, 1, LS_OK, "2"},
    {"norm-pixels", "--image-size=33 --batch-size=1", 0, 1, LS_OK, "1"},
    {"norm-sync", "--image-size=32 --batch-size=1 --sync-bn", 1, 2, LS_OK, "1"},
    {"norm-sync-one", "--image-size=32 --batch-size=1 --sync-bn", 0, 1, LS_ERR_USAGE, "batch norm"},
    {"norm-groups", "--image-size=32 --batch-size=1 --sync-bn --sync-bn-group=1", 1, 2,
     LS_ERR_USAGE, "batch norm"},
    {"norm-uneven", "--image-size=32 --batch-sizes=2,1", 1, 2, LS_ERR_USAGE, "batch norm"},
    {"norm-uneven-sync", "--image-size=32 --batch-sizes=1,1 --sync-bn", 1, 2, LS_OK, "1"},
};

static void judge_pair(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct pair *p = row->data;
    ls_options parsed;
    char said[1000], got[40];
    int lines = 0;
    (void)job;
    ls_status status = parse(p->line, NULL, &parsed, said, (int)sizeof said, &lines);
    if (status == LS_OK && p->world > 0) {
        ls_inside_capture capture = ls_inside_capture_begin();
        status = ls_options_resolve(&parsed, p->rank, p->world, NULL);
        lines = ls_inside_capture_end(&capture, said, (int)sizeof said);
    }
    if (status != p->code) {
        ls_verdict_fail(out, "%s, rank %d of %d: %s, expected %s: %.200s", p->line, p->rank,
                        p->world, ls_status_name(status), ls_status_name(p->code), said);
    } else if (status != LS_OK && (lines != 1 || strstr(said, p->says) == NULL)) {
        ls_verdict_fail(out, "%s: %d lines, expected one that names %s: %.200s", p->line, lines,
                        p->says, said);
    } else if (status == LS_OK && !reports(&parsed, "batch-size", p->says, got, (int)sizeof got)) {
        ls_verdict_fail(out, "%s, rank %d of %d: the batch is %s, expected %s", p->line, p->rank,
                        p->world, got, p->says);
    }
    ls_verdict_pass(out, 1, "%s: %s", p->line, status == LS_OK ? "taken" : ls_status_name(status));
}

void ls_options_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (int i = 0; i < OPTIONS; i++) {
        const ls_row row = {.requirement = "E1", .judge = judge_option, .data = &options[i]};
        LS_TEXT(with, 64, "%s", options[i].with);
        for (char *c = with; *c != '\0'; c++) {
            *c = *c == '=' || *c == '/' ? '-' : *c;
        }
        ls_rows_format(list, settings, &row, "options.%s%s%s", options[i].name,
                       with[0] != '\0' ? "." : "", with[0] != '\0' ? with + 2 : "");
    }
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const ls_row row = {.requirement = pairs[i].code == LS_OK ? "E2" : "E5",
                            .judge = judge_pair,
                            .data = &pairs[i]};
        ls_rows_format(list, settings, &row, "options.pair.%s", pairs[i].name);
    }
}
