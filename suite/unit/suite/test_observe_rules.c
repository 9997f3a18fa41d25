/* The rules of observed jobs, on invented ones: right jobs pass every rule, and each fault is
 * caught by its rule with the cause that a user can act on. */
#include <check.h>

#include "observe_calls.h"
#include "observe_fake.h"
#include "suite/unit/run_suite.h"

static ls_observe_result judge(const fake_job *job)
{
    char folder[64];
    ls_observe_trace *trace;
    ls_observe_result result;
    fake_write(job, folder, sizeof folder);
    ck_assert_int_eq(ls_observe_read(folder, &trace), LS_OK);
    ls_observe_judge_all(trace, &result);
    calls_prefixes(folder, &result);
    ls_observe_free(trace);
    ls_path_remove_tree(folder);
    return result;
}

static const ls_observe_finding *find(const ls_observe_result *result, const char *id)
{
    for (int i = 0; i < result->count; i++) {
        if (strcmp(result->finding[i].rule->id, id) == 0) {
            return &result->finding[i];
        }
    }
    ck_abort_msg("no rule %s", id);
    return NULL;
}

/* The families that these jobs are made for. */
static bool is_numeric(const char *id)
{
    static const char *const family[] = {"replicas.", "reduction.", "optimizer.", "gradient."};
    for (size_t i = 0; i < sizeof family / sizeof *family; i++) {
        if (strncmp(id, family[i], strlen(family[i])) == 0) {
            return true;
        }
    }
    return false;
}

LOOP_TEST(right_jobs_pass, 9)
{
    static const fake_job job[] = {
        {FAULT_NONE, "sgd", 2, 1, 0, 0, NULL, NULL},
        {FAULT_NONE, "sgd", 1, 1, 0, 0, NULL, NULL},
        {FAULT_NONE, "adam", 2, 1, 65536, 0.5, NULL, "f16"},
        {FAULT_NONE, "adamw", 3, 1, 0, 0.5, NULL, "bf16"},
        {FAULT_NONE, "sgd", 4, 3, 1024, 0.25, NULL, "f16"},
        {FAULT_NONE, "adamw", 2, 4, 0, 0, "allreduce_hook", NULL},
        {FAULT_NONE, "sgd", 2, 1, 3, 0, NULL, NULL}, /* no power of two */
        {FAULT_HAND, "adamw", 3, 2, 0, 0, NULL, NULL},
        {FAULT_HAND_SENT, "sgd", 2, 1, 0, 0, NULL, NULL},
    };
    const fake_job *at = &job[_i];
    ls_observe_result result = judge(at);
    for (int i = 0; i < result.count; i++) {
        const ls_observe_finding *f = &result.finding[i];
        bool fine = f->verdict.code == LS_PASS || f->verdict.code == LS_SKIP;
        ck_assert_msg(!is_numeric(f->rule->id) || fine, "job %d: %s %s: %s; %s", _i, f->rule->id,
                      ls_verdict_name(f->verdict.code), f->verdict.evidence, f->verdict.cause);
    }
    ck_assert_int_eq(find(&result, "optimizer.step")->verdict.code, LS_PASS);
    ck_assert_int_eq(find(&result, "reduction.mean")->verdict.code,
                     at->world > 1 ? LS_PASS : LS_SKIP);
    ck_assert_double_eq(find(&result, "reduction.mean")->verdict.limit, at->world > 1);
    ck_assert_int_eq(find(&result, "optimizer.clip")->verdict.code,
                     at->clip != 0 ? LS_PASS : LS_SKIP);
    ls_observe_result_free(&result);
}

/* A job; one of two ranks with SGD. */
#define JOB(...)    \
    {               \
        __VA_ARGS__ \
    }
#define PLAIN(fault) MICRO(fault, 2, 1)
#define MICRO(fault, world, micro) JOB(fault, "sgd", world, micro, 0, 0, NULL, NULL)
#define ALONE(fault, rule) JOB(fault, rule, 1, 1, 0, 0, NULL, NULL)
#define SCALED(fault, scale) JOB(fault, "sgd", 2, 1, scale, 0, NULL, NULL)
#define CLIPPED(fault, clip) JOB(fault, "sgd", 2, 1, 0, clip, NULL, NULL)
#define HALF(fault) JOB(fault, "sgd", 2, 1, 128, 0, NULL, "f16")

static const struct {
    fake_job job;
    const char *rule;
    ls_verdict_code code;
    const char *cause; /* a part of evidence, cause, place and advice together */
} faults[] = {
    {PLAIN(FAULT_PLAIN_SEEDS), "replicas.start", LS_FAIL,
     "rank 1 starts with other values than rank 0 in 3 of Net's parameters: fc.weight, fc.bias, "
     "head.weight | no DistributedDataParallel, and each rank drew its values from a seed of its "
     "own | train.py:7"},
    {PLAIN(FAULT_START), "replicas.start", LS_FAIL,
     "in 1 of Net's parameters: fc.bias | DistributedDataParallel did not send these"},
    {MICRO(FAULT_START, 3, 1), "replicas.step", LS_FAIL,
     "after step 1 ranks 0 and 1 hold different parameters: 1 of 3 sampled tensors of step 1, "
     "fc.bias | the ranks started from different parameters: DistributedDataParallel did not"},
    {PLAIN(FAULT_SKIPS), "replicas.step", LS_FAIL,
     "after step 2 ranks 0 and 1 hold different parameters: 3 of 3 sampled tensors of step 2, "
     "fc.weight, fc.bias, head.weight | the optimizer of rank 1 did nothing in step 2, that of "
     "rank 0 stepped | train.py:24"},
    {PLAIN(FAULT_BEHIND), "replicas.step", LS_FAIL,
     "after step 1 ranks 0 and 1 hold different parameters: 0 of 3 sampled tensors of step 1 | "
     "rank 1 alone changes parameters between steps 1 and 2, behind DistributedDataParallel: "
     "fc.weight, fc.bias, head.weight | train.py:24 | change"},
    {PLAIN(FAULT_BEHIND_ONE), "replicas.step", LS_FAIL,
     "after step 1 ranks 0 and 1 hold different parameters: 0 of 3 sampled tensors of step 1 | "
     "the step itself leaves the same parameters: they are changed after it"},
    {PLAIN(FAULT_STATE), "replicas.state", LS_FAIL,
     "after step 2 ranks 0 and 1 hold different optimizer state: 3 of 3 sampled tensors of step 2, "
     "fc.weight/momentum_buffer, fc.bias/momentum_buffer, head.weight/momentum_buffer | the step "
     "itself leaves the same parameters"},
    {PLAIN(FAULT_RATE), "replicas.step", LS_FAIL,
     "hold different parameters: 3 of 3 sampled tensors of step 1, fc.weight, fc.bias, head.weight "
     "| step 1: the learning rate is 0.125 on rank 0 and 0.0625 on rank 1 | train.py:24"},
    {PLAIN(FAULT_RATE), "optimizer.rate", LS_FAIL,
     "step 1: the rate is 0.125 on rank 0 and 0.0625 on rank 1"},
    {PLAIN(FAULT_START), "replicas.step", LS_FAIL, "fc.bias"},
    {PLAIN(FAULT_RATE_BUILT), "replicas.step", LS_FAIL, "| train.py:9"},
    {PLAIN(FAULT_RATE_BUILT), "optimizer.rate", LS_FAIL, "built with"},
    {PLAIN(FAULT_RATE), "replicas.step", LS_FAIL,
     "| step 1: the learning rate is 0.125 on rank 0 and 0.0625 on rank 1 | train.py:24 | compute"},
    {PLAIN(FAULT_IDLE), "optimizer.rate", CALLS_HINT, "last 3 of 4 steps"},
    {PLAIN(FAULT_BUFFERS), "replicas.buffers", LS_FAIL,
     "rank 1 starts with other buffers than rank 0: bn.running_mean |  | train.py:7"},
    {PLAIN(FAULT_OWN), "replicas.step", LS_FAIL,
     "| the ranks step by different gradients: fc.weight, fc.bias, head.weight | train.py:24 | "
     "let"},
    {PLAIN(FAULT_SUM), "reduction.mean", LS_FAIL,
     "0660362057 +- 2.4e-08; so in 3 of 3 tensors: fc.weight, fc.bias, head.weight | summed: the "
     "gradient is 2 times the mean | train.py:21"},
    {JOB(FAULT_SUM, "adam", 4, 2, 256, 0, NULL, NULL), "reduction.mean", LS_FAIL,
     "+- 1.6e-05; so in 3 of 3 tensors: fc.weight, fc.bias, head.weight | summed: the gradient is "
     "4 times the mean | train.py:21"},
    {PLAIN(FAULT_OWN), "reduction.mean", LS_FAIL,
     "step 1, rank 0: fc.weight element 30 is 0.0102501018, the mean -0.00133079756 +- 4.1e-09; so "
     "in 3 of 3 tensors: fc.weight, fc.bias, head.weight | not reduced: each rank steps by its own "
     "gradient | train.py:20 | call the wrapped model, not its .module"},
    {PLAIN(FAULT_ONE_OWN), "reduction.mean", LS_FAIL,
     "+- 3e-08; so in 1 of 3 tensors: fc.bias | not reduced, while other tensors are: these were "
     "added or replaced after the model was wrapped, or on its list of parameters to ignore | "
     "train.py:7"},
    {PLAIN(FAULT_BYPASSED), "reduction.mean", LS_FAIL,
     "the wrapper is never called in the step, the module inside it (.module) is: "
     "DistributedDataParallel knows of no forward | train.py:19"},
    {PLAIN(FAULT_FROZEN), "reduction.mean", LS_FAIL,
     "so in 1 of 3 tensors: fc.bias | not reduced, while other tensors are: these were frozen when "
     "the model was wrapped"},
    {MICRO(FAULT_NO_SYNC, 2, 2), "reduction.mean", LS_FAIL,
     "+- 8.8e-08; so in 3 of 3 tensors: fc.weight, fc.bias, head.weight | not reduced: all 2 "
     "backward passes of the step are inside no_sync() | train.py:21"},
    {PLAIN(FAULT_NO_SYNC_STEPS), "reduction.mean", LS_FAIL,
     "the step is not taken where no_sync() ends | train.py:24"},
    {MICRO(FAULT_NO_SYNC_FORWARD, 2, 2), "reduction.mean", LS_FAIL,
     "not reduced: the forward of this backward runs inside no_sync(), and it is the forward that "
     "counts: all 2 of the step do | train.py:20"},
    {PLAIN(FAULT_NO_WRAPPER), "reduction.mean", LS_FAIL,
     "step 1, rank 0: fc.weight element 3 is 0.153411135, the mean 0.030158218 +- 7.3e-08; so in 3 "
     "of 3 tensors: fc.weight, fc.bias, head.weight | not reduced: each rank steps by its own "
     "gradient; no model is in DistributedDataParallel | train.py:7"},
    {MICRO(FAULT_NO_WRAPPER, 3, 1), "replicas.step", LS_FAIL,
     "3 of 3 sampled tensors of step 1, fc.weight, fc.bias, head.weight | no model is wrapped in "
     "DistributedDataParallel: each rank trains its own | train.py:7"},
    {PLAIN(FAULT_DIVIDED), "reduction.mean", LS_FAIL,
     "+- 4.6e-08; so in 3 of 3 tensors: fc.weight, fc.bias, head.weight | divided twice: the "
     "gradient is 1/2 of the mean | train.py:21"},
    {PLAIN(FAULT_LEFT), "reduction.mean", LS_FAIL,
     "step 2, rank 0: fc.weight element 139 is -0.0920232087, the mean -0.00424557319 +- 2.2e-09; "
     "so in 3 of 3 tensors: fc.weight, fc.bias, head.weight | left over: the gradient of the step "
     "before is still in it | train.py:21"},
    {PLAIN(FAULT_LEFT), "reduction.left", LS_FAIL, "zero_grad"},
    {ALONE(FAULT_LEFT, "sgd"), "reduction.left", LS_FAIL, "zero_grad"},
    /* of the reductions in other types only those that were asked for */
    {PLAIN(FAULT_ELEMENT), "reduction.mean", LS_FAIL,
     "step 2, rank 1: head.weight element 5 is 0.0292584859, the mean 0.0292579915 +- 1.2e-08; so "
     "in 1 of 3 tensors: head.weight |  |  | "},
    {PLAIN(FAULT_ELEMENT), "replicas.start", LS_PASS, " |  |  | "}, /* no place */
    {JOB(FAULT_ELEMENT, "sgd", 2, 1, 0, 0, "fp16_compress_hook", NULL), "reduction.mean", LS_PASS,
     "1248 elements of 2 detailed steps are the mean of 2 ranks; the furthest is 0.0061 of its "
     "bound away |  |  | "},
    {PLAIN(FAULT_HOOK_NOOP), "reduction.mean", LS_FAIL, "noop"},
    {PLAIN(FAULT_HOOK_UNKNOWN), "reduction.mean", LS_UNSUPPORTED, "my_hook"},
    {PLAIN(FAULT_SAME_DATA), "reduction.mean", LS_WEAK,
     "all ranks had the same gradients: their mean is each one's own"},
    {PLAIN(FAULT_UNUSED), "reduction.covered", LS_FAIL,
     "1 trainable parameters of a model in DistributedDataParallel never get a gradient: "
     "head.weight |  | train.py:7 | freeze"},
    {PLAIN(FAULT_UNUSED_ALLOWED), "reduction.covered", LS_PASS,
     "2 parameters get gradients, 1 may be unused and are |  |  | never trained: head.weight"},
    {PLAIN(FAULT_TWICE), "optimizer.step", LS_FAIL, "twice"},
    {ALONE(FAULT_TWICE, "adamw"), "optimizer.step", LS_FAIL, "twice"},
    {ALONE(FAULT_TWO_CALLS, "sgd"), "optimizer.step", LS_FAIL, "twice"},
    {JOB(FAULT_TWO_CALLS, "adam", 2, 2, 64, 0, NULL, NULL), "optimizer.step", LS_FAIL, "twice"},
    {PLAIN(FAULT_STATE), "optimizer.step", LS_FAIL,
     "step 2, rank 1: fc.weight element 254, 0.38949427: its first moment becomes -0, by sgd "
     "-0.216238521 +- 2.7e-08; so in 3 tensors"},
    {PLAIN(FAULT_HOOK_NOOP), "reduction.left", LS_PASS, "looked at 2 times"},
    {ALONE(FAULT_NO_DECAY, "sgd"), "optimizer.step", LS_FAIL, "left out"},
    {ALONE(FAULT_NO_DECAY, "adamw"), "optimizer.step", LS_FAIL,
     "becomes 3.30981517, by adamw 3.30583405 +- 3.1e-05; so in 3 tensors: fc.weight, fc.bias, "
     "head.weight | the weight decay of the settings was left out"},
    {ALONE(FAULT_COUPLED, "adamw"), "optimizer.step", LS_FAIL, "coupled"},
    {ALONE(FAULT_COUPLED, "adam"), "optimizer.step", LS_FAIL, "coupled"},
    {ALONE(FAULT_OTHER_RATE, "sgd"), "optimizer.step", LS_FAIL, "1.5 times"},
    {ALONE(FAULT_OTHER_RATE, "adam"), "optimizer.step", LS_FAIL, "1.5 times"},
    {ALONE(FAULT_NO_STEP, "adam"), "optimizer.step", LS_FAIL, "did not move"},
    {ALONE(FAULT_STATE_LOST, "sgd"), "optimizer.step", LS_FAIL, "earlier"},
    {PLAIN(FAULT_SETTING), "optimizer.step", LS_UNSUPPORTED, "settings"},
    {JOB(FAULT_SETTING, "adamw", 2, 1, 0, 0, NULL, NULL), "optimizer.step", LS_UNSUPPORTED,
     "step 2"},
    {PLAIN(FAULT_SETTING_SAID), "optimizer.step", LS_PASS, ""},
    {ALONE(FAULT_UNKNOWN_RULE, "sgd"), "optimizer.step", LS_UNSUPPORTED, "X"},
    {SCALED(FAULT_STILL_SCALED, 64), "optimizer.unscaled", LS_FAIL,
     "step 1, rank 0, between the reduction and the unscaled gradient: the gradient is still times "
     "the loss scale, in 3 tensors: fc.weight, fc.bias, head.weight"},
    {SCALED(FAULT_UNSCALED_TWICE, 64), "optimizer.unscaled", LS_FAIL,
     "divided by the loss scale twice, in 3 tensors"},
    {SCALED(FAULT_ZEROED, 64), "optimizer.unscaled", CALLS_HINT,
     "step 1, rank 0, between unscaling and the step: the gradient is set to zero "
     "before the step, in 3 tensors: fc.weight, fc.bias, head.weight | the gradient is set to zero "
     "before the step "
     "| train.py:23 | call zero_grad() after"},
    {SCALED(FAULT_ZEROED_BY_HAND, 64), "optimizer.unscaled", CALLS_HINT,
     "| the gradient is set to zero before the step | train.py:24 |"},
    {SCALED(FAULT_ULPS, 64), "optimizer.unscaled", LS_WEAK,
     "step 2, rank 0: the script changes the gradient of 1 tensors between unscaling and the step"},
    {PLAIN(FAULT_SCALE), "optimizer.unscaled", LS_PASS, "12 gradients of detailed steps"},
    {PLAIN(FAULT_SCALE_NEXT), "optimizer.unscaled", LS_FAIL,
     "step 1, rank 0, between the reduction and the step: the gradient is divided by the loss "
     "scale "
     "of the next step, in 3 tensors: fc.weight, fc.bias, head.weight"},
    {CLIPPED(FAULT_SCALE, 0.25), "optimizer.clip", LS_PASS,
     "12 clipped tensors recomputed, and 4 norms"},
    {CLIPPED(FAULT_REMADE, 0.25), "optimizer.clip", LS_UNSUPPORTED,
     "the script makes the gradients of a step out of those that it clipped"},
    {CLIPPED(FAULT_REMADE_APART, 0.25), "optimizer.clip", LS_FAIL,
     "step 1, rank 0: in 3 of 3 tensors no clip"},
    {CLIPPED(FAULT_LOST_PARAM, 0.25), "optimizer.clip", LS_PASS,
     "8 clipped tensors recomputed, and 4 norms"},
    {CLIPPED(FAULT_TAKEN_AWAY, 0.25), "optimizer.clip", LS_PASS,
     "8 clipped tensors recomputed, and 4 norms"},
    {SCALED(FAULT_FACTOR, 64), "optimizer.unscaled", LS_WEAK,
     "of 3 tensors between unscaling and the step, by a factor of 0.333333:"},
    {CLIPPED(FAULT_UNCLIPPED, 0.25), "optimizer.clip", LS_FAIL,
     "step 1, rank 0: in 3 of 3 tensors no clip"},
    {CLIPPED(FAULT_UNCLIPPED, 0.25), "optimizer.clip", LS_FAIL, "by hand"},
    {JOB(FAULT_CLIP_EACH, "sgd", 2, 2, 0, 0.25, NULL, NULL), "optimizer.clip", LS_FAIL,
     "after each micro-step"},
    {CLIPPED(FAULT_OTHER_NORM, 0.25), "optimizer.clip", LS_FAIL,
     "step 1, rank 0: the norm returned is 3.86339, that of the gradients 1.287797"},
    {CLIPPED(FAULT_NONE, 1e6), "optimizer.clip", LS_PASS, "4 norms; none exceeded the limit"},
    {CLIPPED(FAULT_VALUE, 0.0625), "optimizer.clip", LS_PASS,
     "12 clipped tensors recomputed, and 0"},
    {CLIPPED(FAULT_VALUE_NORM, 0.0625), "optimizer.clip", LS_PASS,
     "12 clipped tensors recomputed, and 4 norms"},
    {CLIPPED(FAULT_PARTS, 0.25), "optimizer.clip", LS_FAIL,
     "each rank clips by the norm of the parameters that its own optimizer holds"},
    {CLIPPED(FAULT_PARTS_WHOLE, 0.25), "optimizer.clip", LS_PASS, "12 clipped tensors"},
    {PLAIN(FAULT_DEALT), "replicas.state", LS_WEAK, "holds state of parameters that others do"},
    {PLAIN(FAULT_OWNED), "replicas.state", LS_WEAK, "holds state of parameters that others do"},
    {PLAIN(FAULT_HAND_DRIFT), "replicas.step", LS_FAIL,
     "step 1: the ranks hold equal values and make equal gradients of 3 parameters"},
    {PLAIN(FAULT_HAND_DRIFT), "replicas.step", LS_FAIL, "times 1 on rank 0, 0.5 on rank 1"},
    {PLAIN(FAULT_HAND_SCALED), "replicas.step", LS_FAIL,
     "step 1: the ranks hold equal values and share equal gradients of 2 parameters, and step by "
     "different ones: fc.weight, head.weight | behind the reduction each rank multiplies "
     "them by a number of its own"},
    {PLAIN(FAULT_HAND_SCALED), "reduction.mean", LS_UNSUPPORTED,
     "each rank multiplies what is reduced by a number of its own"},
    {CLIPPED(FAULT_MAX, 0.0625), "optimizer.clip", LS_PASS,
     "12 clipped tensors recomputed, and 0 norms"},
    {CLIPPED(FAULT_VALUE_OTHER, 0.0625), "optimizer.clip", LS_FAIL,
     "step 1, rank 0: in 3 of 3 tensors no clip"},
    {PLAIN(FAULT_NEGATED), "optimizer.step", LS_FAIL, "a step up the gradient"},
    {SCALED(FAULT_STEP_SCALED, 64), "optimizer.step", LS_FAIL, "the gradient was still scaled"},
    {CLIPPED(FAULT_STEP_UNCLIPPED, 0.25), "optimizer.step", LS_FAIL, "as it was before clipping"},
    {ALONE(FAULT_NESTEROV, "sgd"), "optimizer.step", LS_FAIL, "with Nesterov momentum in place"},
    {PLAIN(FAULT_LOST_PARAM), "optimizer.covered", CALLS_HINT,
     "1 trainable parameters get gradients and are in no group of an optimizer: head.weight"},
    {PLAIN(FAULT_MOVED_PARAM), "optimizer.covered", LS_WEAK, "moves them itself: head.weight"},
    {PLAIN(FAULT_FOREIGN), "optimizer.covered", CALLS_HINT,
     "1 parameters of an optimizer are of no model"},
    {ALONE(FAULT_FOREIGN, "sgd"), "optimizer.covered", LS_PASS, "some of its parameters"},
    {PLAIN(FAULT_SCHEDULE), "optimizer.rate", CALLS_HINT, "in 3 of 3 steps: it stays at 0.125"},
    {PLAIN(FAULT_SCHEDULE), "optimizer.rate", CALLS_HINT, "| train.py:11"},
    {PLAIN(FAULT_RATE_SET), "optimizer.rate", CALLS_HINT, "sets the rate"},
    {PLAIN(FAULT_RATE_SET), "optimizer.rate", CALLS_HINT, "| train.py:28"},
    {PLAIN(FAULT_BACKWARD), "gradient.again", LS_FAIL,
     "step 2, rank 0: the gradient of fc.bias is off by 1 of itself (limit 0.031), 2 times what it "
     "should be; 1 of 3"},
    {HALF(FAULT_BACKWARD), "gradient.again", LS_FAIL,
     "of fc.bias is off by 1 of itself (limit 0.19), 2.001 times what it should be; 1 of 3"},
    {JOB(FAULT_BACKWARD, "adam", 1, 1, 0, 0, NULL, "bf16"), "gradient.again", LS_FAIL,
     "of fc.bias is off by 1 of itself (limit 0.45), 2.001 times what it should be; 1 of 3"},
    {HALF(FAULT_BACKWARD), "gradient.again", LS_FAIL, "its forward"},
    {JOB(FAULT_BACKWARD, "sgd", 2, 1, 0, 0, NULL, "f16"), "gradient.again", LS_FAIL,
     "a loss scale"},
    {HALF(FAULT_SHORT), "gradient.again", LS_FAIL,
     "off by 0.15 of itself (limit 0.19), 0.85 times"},
    {PLAIN(FAULT_HOOKED), "gradient.again", LS_WEAK,
     "with the hooks the gradient of fc.bias is 2 times what it is without them; 1 of 3 tensors "
     "differ"},
    {SCALED(FAULT_HOOKED, 128), "gradient.again", LS_WEAK, "on Linear"},
    {PLAIN(FAULT_CLIPPED), "gradient.again", LS_WEAK, "on Linear"},
    {SCALED(FAULT_CLIPPED, 128), "gradient.again", CALLS_HINT,
     "while a loss scale of 128 multiplies it; 3 of 3 tensors are off"},
    {SCALED(FAULT_HALVED, 128), "gradient.again", NO_HINT, ""},
    {SCALED(FAULT_HALVED, 128), "gradient.again", LS_WEAK, "of head.weight is 0.5 times"},
    {SCALED(FAULT_CLIPPED_TWO, 128), "gradient.again", CALLS_HINT, "1 of 3 tensors are off"},
    {SCALED(FAULT_CLIPPED_ONE, 128), "gradient.again", NO_HINT, ""},
    {SCALED(FAULT_CLIPPED_ONE, 128), "gradient.again", LS_WEAK, "of head.weight"},
    {PLAIN(FAULT_CHANGED), "gradient.again", LS_WEAK, "output of net"},
    {PLAIN(FAULT_DROPPED), "gradient.again", LS_FAIL, "by other masks than in the forward"},
    {PLAIN(FAULT_EXCLUDED), "gradient.again", LS_PASS,
     "4 gradients compared with FP64; nearest to its limit is fc.weight, off by 2.5e-07 of itself "
     "(limit 0.031); used also outside the modules that ran again, and not compared: head.weight"},
    {PLAIN(FAULT_SAME_BITS), "gradient.again", LS_PASS,
     "6 gradients are to the bit those of the module run again in f32 |"},
    {PLAIN(FAULT_OTHER_BITS), "gradient.again", LS_UNSUPPORTED, "no step was run again in FP64"},
    {PLAIN(FAULT_NO_AGAIN), "gradient.again", LS_UNSUPPORTED, "sparse"},
    {PLAIN(FAULT_HOOK_MEAN), "reduction.mean", LS_PASS,
     "with the communication hook my_hook the gradients of 2 detailed steps are the mean of 2 "
     "ranks, each tensor within 2 % of its norm |"},
    {PLAIN(FAULT_HOOK_SUM), "reduction.mean", LS_FAIL,
     "the gradient is 2 times the mean of 2 ranks (up to step 2, 2 detailed steps) | summed over "
     "the ranks and not divided by their number, 2, in the communication hook my_hook | "
     "train.py:8"},
    {JOB(FAULT_HOOK_SUM, "sgd", 3, 1, 64, 0.25, NULL, "f16"), "reduction.mean", LS_FAIL, "summed"},
    {PLAIN(FAULT_HOOK_SUM_DIVIDED), "reduction.mean", LS_PASS, ""},
    {PLAIN(FAULT_REDUCED_AGAIN), "reduction.mean", LS_FAIL,
     "the gradient is 2 times the mean of 2 ranks (up to step 2, 2 detailed steps) | summed over "
     "the ranks and not divided by their number, 2, after DistributedDataParallel has averaged it "
     "| train.py:30"},
    {MICRO(FAULT_MULTIPLIED, 3, 2), "reduction.mean", LS_WEAK,
     "the gradient is 3 times the mean of 3 ranks (up to step 2, 2 detailed steps): a mistake, "
     "unless the losses are sums over samples, are divided by the number of ranks, or the learning "
     "rate allows for it | summed over the ranks and not divided by their number, 3, by the "
     "script, after DistributedDataParallel has averaged it | train.py:24"},
    {JOB(FAULT_LOSS_DIVIDED, "sgd", 3, 1, 0, 0, NULL, NULL), "reduction.mean", LS_WEAK,
     "the loss is multiplied by 0.3333 before backward, and the gradients are averaged over 3 "
     "ranks after it | divided twice, where that is the number of ranks: the gradient is 1/3 of "
     "the mean | train.py:21"},
    {JOB(FAULT_LOSS_BY_RANKS, "sgd", 3, 1, 0, 0, NULL, NULL), "reduction.mean", CALLS_HINT,
     "averaged over 3 ranks after it | the loss is divided by the number of ranks, and the "
     "gradients are, too: the gradient is 1/3 of the mean | train.py:60"},
    {JOB(FAULT_TIMES_RANKS, "sgd", 3, 1, 0, 0, NULL, NULL), "reduction.mean", LS_WEAK,
     "multiplied by 3 before backward, and the gradients are averaged over 3 ranks: 3 times the "
     "mean | summed over the ranks: a mistake, unless"},
    {MICRO(FAULT_TERMS, 3, 2), "reduction.mean", LS_WEAK,
     "step 1: a term of one loss weighs 3 times one of another in the mean over micro-steps and "
     "ranks: they are of 2 and of 6 terms | losses over unequal"},
    {PLAIN(FAULT_TERMS), "reduction.mean", LS_PASS, ""}, /* twice */
    {MICRO(FAULT_TERMS_EQUAL, 3, 2), "reduction.mean", LS_PASS, ""},
    {MICRO(FAULT_TERMS_SUM, 3, 2), "reduction.mean", LS_PASS, ""},
    {MICRO(FAULT_TERMS_SUM, 3, 2), "reduction.micro", LS_PASS, "averaged"},
    {MICRO(FAULT_TERMS_INVERSE, 3, 2), "reduction.mean", LS_FAIL,
     "step 2: the losses of 3 ranks are divided by 36, all their terms, and the gradients are "
     "averaged: they are 1/3 of those of the mean | each loss is a sum"},
    {MICRO(FAULT_TERMS_MASKED, 3, 2), "reduction.mean", LS_FAIL,
     "step 2: the losses of 3 ranks are divided by 36, all their terms"},
    {MICRO(FAULT_TERMS_PARTS, 3, 2), "reduction.mean", LS_FAIL,
     "step 2: parts of the losses of 3 ranks are divided by 36, all their terms"},
    {MICRO(FAULT_PARTS_WEIGHED, 3, 2), "reduction.mean", LS_FAIL, "by 36, all their terms"},
    {MICRO(FAULT_PARTS_HALVED, 3, 2), "reduction.mean", CALLS_HINT, "by 36, all their terms"},
    {MICRO(FAULT_PARTS_OF_RANKS, 3, 2), "reduction.mean", LS_PASS, ""},
    {MICRO(FAULT_TERMS_UNTOLD, 3, 2), "reduction.mean", LS_PASS, ""},
    {PLAIN(FAULT_TERMS_COUNTED), "reduction.mean", CALLS_HINT,
     "each rank's loss is the mean of its own: of 2 and of 4 in step 1 | losses over unequal"},
    {MICRO(FAULT_MICRO_TRAINER, 2, 4), "reduction.micro", CALLS_HINT, "num_items_in_batch"},
    {MICRO(FAULT_MICRO_RANKS, 2, 4), "reduction.micro", CALLS_HINT, "num_items_in_batch"},
    {MICRO(FAULT_MICRO_TIMES, 2, 4), "reduction.micro", CALLS_HINT,
     "and each is times the number of ranks"},
    {MICRO(FAULT_MICRO_TWICE, 2, 3), "reduction.micro", CALLS_HINT,
     "step 2: the loss is divided by 9, the square of the number of its micro-steps, 3 | the loss "
     "is divided by the number of micro-steps twice"},
    {MICRO(FAULT_MICRO_TAIL, 2, 4), "reduction.micro", CALLS_HINT,
     "step 2: 3 micro-steps, and each loss is divided by 4, the number of those of other steps | "
     "the last micro-steps of a pass are fewer, and are divided by the number of a whole window"},
    {MICRO(FAULT_MICRO_TAIL, 2, 2), "reduction.micro", CALLS_HINT, "step 2: 1 micro-steps"},
    {MICRO(FAULT_TAIL_GIVEN, 2, 4), "reduction.micro", CALLS_HINT, "step 2: 3 micro-steps"},
    {MICRO(FAULT_TAIL_LIBRARY, 2, 4), "reduction.micro", LS_PASS, ""},
    {MICRO(FAULT_MICRO_TWICE, 2, 2), "reduction.micro", LS_WEAK,
     "step 2: the loss is multiplied by 0.25, and the step has 2 micro-steps |"},
    {JOB(FAULT_MICRO_SUMMED, "sgd", 2, 4, 0, 0.25, NULL, NULL), "reduction.micro", LS_WEAK,
     "neither their losses nor the sum is divided by their number, and clipping measures the sum "
     "|"},
    {MICRO(FAULT_MICRO_SUMMED, 2, 4), "reduction.micro", LS_WEAK,
     "step 2: the gradients of 4 micro-steps are summed: neither their losses nor the sum is "
     "divided by their number | 4 times the gradient of a batch of all of them: a mistake, unless "
     "the learning rate allows for it | train.py:21 | divide the loss"},
    {JOB(FAULT_MICRO_SUMMED, "adam", 1, 4, 0, 0, NULL, NULL), "reduction.micro", LS_WEAK, "summed"},
    {JOB(FAULT_MICRO_OTHER, "sgd", 2, 3, 0, 0.25, NULL, NULL), "reduction.micro", LS_WEAK,
     "another"},
    {JOB(FAULT_NONE, "sgd", 1, 4, 64, 0.25, NULL, "f16"), "reduction.micro", LS_PASS, "averaged"},
    {PLAIN(FAULT_HAND), "replicas.start", LS_PASS, "3 tensors compared on 2 ranks |"},
    {JOB(FAULT_HAND, "sgd", 2, 1, 64, 0.25, NULL, "f16"), "reduction.mean", LS_PASS,
     "1248 elements of 2 detailed steps are the mean of 2 ranks; the furthest is 0 of its bound "
     "away |"},
    {PLAIN(FAULT_HAND), "data.distinct", LS_PASS, ""},
    {PLAIN(FAULT_HAND_SENT), "replicas.start", LS_PASS, ""},
    {PLAIN(FAULT_HAND_SEEDS), "replicas.start", LS_FAIL,
     "the ranks step by one gradient and hold other values, from the start up to step 2, in 3 of 3 "
     "tensors: fc.weight, fc.bias, head.weight | the script reduces gradients by hand "
     "(train.py:30), each rank drew"},
    {JOB(FAULT_HAND_SEEDS, "adam", 3, 1, 0, 0, NULL, NULL), "replicas.step", LS_FAIL,
     "after step 1 ranks 0 and 1 hold different parameters: 3 of 3 sampled tensors of step 1, "
     "fc.weight, fc.bias, head.weight | the ranks started from different parameters: the script "
     "reduces gradients by hand"},
    {PLAIN(FAULT_HAND_BEHIND), "replicas.step", LS_FAIL,
     "after step 1 ranks 0 and 1 hold different parameters: 0 of 3 sampled tensors of step 1 | "
     "rank 1 alone changes parameters between steps 1 and 2"},
    {PLAIN(FAULT_HAND_PART), "reduction.mean", LS_FAIL,
     "+- 5.1e-08; so in 1 of 3 tensors: fc.bias | not reduced, while 2 other tensors are: the "
     "script's loop over parameters leaves these out | train.py:30"},
    {PLAIN(FAULT_HAND_PART_SUM), "reduction.mean", LS_FAIL,
     "so in 1 of 3 tensors: fc.bias | not reduced, while 2 other tensors are"},
    {PLAIN(FAULT_HAND_SUM), "reduction.mean", LS_FAIL,
     "the gradient is 2 times the mean of 2 ranks (up to step 2, 2 detailed steps) | summed over "
     "the ranks and not divided by their number, 2 | train.py:30"},
    {JOB(FAULT_HAND_SUM, "adam", 4, 1, 64, 0.25, NULL, "f16"), "reduction.mean", LS_FAIL,
     "4 times"},
    {PLAIN(FAULT_HAND_SUM_DIVIDED), "reduction.mean", LS_PASS, ""},
    {PLAIN(FAULT_HAND_SUM_OF_SUMS), "reduction.mean", LS_WEAK,
     "2 detailed steps): a mistake, unless the losses are sums over samples, are divided by the "
     "number of ranks, or the learning rate allows for it | summed over the ranks and not divided "
     "by their number, 2 | train.py:30"},
    {PLAIN(FAULT_HAND_DIVIDED), "reduction.mean", LS_FAIL,
     "the gradient is 0.5 times the mean of 2 ranks (up to step 2, 2 detailed steps) | divided "
     "twice by the number of ranks | train.py:30"},
    {PLAIN(FAULT_HAND_SAME_DATA), "data.distinct", LS_FAIL, "seed"},
    {PLAIN(FAULT_HAND_PARTS), "data.distinct", LS_WEAK, "unless they are each rank's part"},
    {PLAIN(FAULT_HAND_SHARES), "data.distinct", LS_WEAK, "a part"},
    {PLAIN(FAULT_HAND_STAGES), "replicas.start", LS_UNSUPPORTED,
     "Net is not in DistributedDataParallel and starts with other values on rank 1; the script "
     "calls collectives of its own"},
    {PLAIN(FAULT_HAND_STAGES), "reduction.mean", LS_UNSUPPORTED, "parts"},
    {PLAIN(FAULT_HAND_STAGES), "data.distinct", LS_SKIP, ""},
    {PLAIN(FAULT_HAND_AVERAGES), "reduction.mean", LS_UNSUPPORTED, "averages"},
    {PLAIN(FAULT_HAND_LOSS), "reduction.mean", LS_FAIL,
     "+- 7.3e-08; so in 3 of 3 tensors: fc.weight, fc.bias, head.weight | not reduced: each rank "
     "steps by its own gradient. The script reduces a number before backward, the loss: autograd "
     "knows nothing of other ranks | train.py:30"},
    {PLAIN(FAULT_HAND_STAGES), "replicas.step", LS_UNSUPPORTED, "what they promise is not known"},
    {PLAIN(FAULT_HAND_NORM), "replicas.step", CALLS_HINT,
     "step 1: the ranks begin with equal norms and step them by gradients of their own (fc.bias), "
     "while those of 1 other parameters are reduced | each rank's gradient of a replicated norm"},
    {PLAIN(FAULT_HAND_NORM_WITHIN), "replicas.step", CALLS_HINT,
     "of their own (fc.bias), while those of 1 other parameters are equal"},
    {PLAIN(FAULT_HAND_OWN), "reduction.mean", LS_WEAK,
     "2 times a tensor that differs between ranks from the start steps by a rank's own gradient, "
     "while others are reduced"},
    {PLAIN(FAULT_HAND_SIGNS), "reduction.mean", LS_UNSUPPORTED,
     "the script sums something else than the gradients that backward gave (train.py:30)"},
    {PLAIN(FAULT_HAND_SHARDED), "reduction.mean", LS_UNSUPPORTED,
     "fairscale.optim.oss.OSS: each rank is given the gradients of a part"},
    {MICRO(FAULT_HAND_THRICE, 3, 1), "reduction.mean", LS_FAIL,
     "the gradient is 0.1111 times the mean of 3 ranks (up to step 2, 2 detailed steps) | divided "
     "three times by the number of ranks | train.py:30"},
    {MICRO(FAULT_HAND_OVERFLOW, 3, 1), "reduction.mean", LS_PASS,
     "1872 elements of 2 detailed steps are the mean of 3 ranks; the furthest is 0 of its"},
    {PLAIN(FAULT_OVERFLOW), "reduction.mean", LS_PASS,
     "1248 elements of 2 detailed steps are the mean of 2 ranks; the furthest is 0.16 of its"},
    {SCALED(FAULT_OVERFLOW_HALF, 1e6), "reduction.mean", LS_FAIL,
     "step 1, rank 0: fc.weight element 1 is inf, the mean 83049.666"},
    {JOB(FAULT_OVERFLOW_HALF, "sgd", 2, 1, 1e6, 0, "fp16_compress_hook", NULL), "reduction.mean",
     LS_PASS, "the furthest is 2.4e-05 of its"},
    {PLAIN(FAULT_OVERFLOW_LOST), "reduction.mean", LS_FAIL,
     "so in 1 of 3 tensors: head.weight |  |"},
    {PLAIN(FAULT_HOOK_OTHER), "reduction.mean", LS_WEAK,
     "with the communication hook my_hook the gradient is 0.7 times the mean of 2 ranks |  | "
     "train.py:8"},
    {PLAIN(FAULT_REDUCED_ZERO), "reduction.mean", LS_FAIL,
     "+- 3.1e-08; so in 3 of 3 tensors: fc.weight, fc.bias, head.weight | the gradient is all "
     "zeros after the reduction"},
    {JOB(FAULT_NO_WRAPPER, "sgd", 3, 2, 64, 0, NULL, NULL), "reduction.mean", LS_FAIL,
     "the mean -5.47823312 +- 5.6e-06; so in 3 of 3 tensors: fc.weight, fc.bias, head.weight | not "
     "reduced: each rank steps by its own gradient; no model is in DistributedDataParallel | "
     "train.py:7"},
    {JOB(FAULT_NONE, "sgd", 4, 3, 1024, 0.25, NULL, "f16"), "reduction.mean", LS_PASS,
     "2496 elements of 2 detailed steps are the mean of 4 ranks; the furthest is 0.13 of its bound "
     "away |  |  | "},
    {PLAIN(FAULT_HALF), "precision.updates", LS_PASS, "bf16"},
    {PLAIN(FAULT_STILL), "precision.updates", LS_PASS, "17.1 % of updates"},
    {PLAIN(FAULT_LOST), "precision.updates", LS_FAIL, "nothing; most in "},
    {PLAIN(FAULT_HALF), "precision.updates", LS_PASS,
     "3.88 % of the way that the steps ask of bf16 parameters is lost to rounding: in detailed "
     "steps 16.5 % of updates"},
    {PLAIN(FAULT_LOST), "precision.updates", LS_FAIL,
     "100 % of updates are below half of the value's last digit and change nothing; most in "
     "fc.weight, fc.bias, head.weight"},
    {PLAIN(FAULT_LOST), "precision.updates", LS_FAIL, "| train.py:9"},
    {ALONE(FAULT_LOST, "adamw"), "precision.updates", LS_FAIL, "96.8 % of the way"},
    {PLAIN(FAULT_LOST_SHARDS), "precision.updates", LS_FAIL, "nothing; most in fc.weight, fc.bias"},
    {JOB(FAULT_LOST_SHARDS, "adamw", 2, 1, 0, 0, NULL, NULL), "optimizer.step", LS_WEAK,
     "no update is larger than its rounding"},
    {JOB(FAULT_LARGE, "adamw", 2, 1, 0, 0, NULL, "bf16"), "precision.updates", LS_FAIL,
     "1 of 3 bf16 tensors never move, and rounding takes each update that the steps ask of them: "
     "fc.bias"},
    {JOB(FAULT_LARGE, "adamw", 2, 1, 0, 0, NULL, NULL), "precision.updates", LS_WEAK,
     "5.75 % of the way"},
    {JOB(FAULT_HALF, "adamw", 2, 1, 0, 0, NULL, "bf16"), "precision.updates", LS_PASS, "bf16"},
    {PLAIN(FAULT_NONE), "precision.updates", LS_SKIP, ""},
    {PLAIN(FAULT_NONE), "optimizer.step", LS_PASS, "1248 elements in 4 steps of ranks recomputed"},
    {ALONE(FAULT_WITHIN, "sgd"), "optimizer.unscaled", LS_SKIP, "nothing comes between"},
    {PLAIN(FAULT_NONE), "optimizer.unscaled", LS_PASS,
     "12 gradients of detailed steps are used as"},
    {SCALED(FAULT_NONE, 64), "optimizer.unscaled", LS_PASS,
     "12 gradients of detailed steps are divided"},
    {CLIPPED(FAULT_NONE, 0.25), "optimizer.clip", LS_PASS,
     "12 clipped tensors recomputed, and 4 norms"},
    {PLAIN(FAULT_NONE), "optimizer.covered", LS_PASS, "3 trainable parameters, each in a group"},
};

ROWS_TEST(each_fault_is_caught, faults)
{
    ls_observe_result result = judge(&faults[_i].job);
    calls_expect_finding(find(&result, faults[_i].rule), faults[_i].code, faults[_i].cause);
    ls_observe_result_free(&result);
}

TEST(every_rule_has_an_id_of_its_own)
{
    int count;
    const ls_observe_rule *rule = ls_observe_rules(&count);
    for (int i = 0; i < count; i++) {
        ck_assert_msg(strchr(rule[i].id, '.') != NULL && rule[i].judge != NULL, "%s", rule[i].id);
        ck_assert_msg(strcmp(rule[i].claim, "any-ddp") == 0 ||
                          strcmp(rule[i].claim, "any-amp") == 0 ||
                          strcmp(rule[i].claim, "both") == 0,
                      "%s", rule[i].id);
        /* a tier with its reason, and what to do where nothing showed it */
        ck_assert_msg(strlen(rule[i].sure) + strlen(rule[i].wrong_if) > 20, "%s", rule[i].id);
        ck_assert_msg(strlen(rule[i].show) > 20, "%s", rule[i].id);
        for (int other = 0; other < i; other++) {
            ck_assert_str_ne(rule[i].id, rule[other].id);
        }
    }
}

TEST_MAIN("observe_rules", .timeout_s = 60)
