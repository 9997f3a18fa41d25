/* Single optimizer steps that torch 1.13 printed, or that FP64 gave for Apex's rules. */
#include "suite/cases/rows.h"

#include <math.h>

#include "kernels/core/text.h"
#include "optim_bench.h"

static const ls_tol digits = LS_TOL(
    1e-6, "relative, of values near 1: nine printed digits, and at most four steps of ten f32 "
          "roundings, 4 * 10 * 2^-24 = 2.4e-6 at worst and a sixth of it as a random walk");

typedef struct golden {
    const char *name, *requirement;
    ls_optimizer_config config;
    double lr;
    int elements, steps;
    double start[2], grad[4][2]; /* [step][element] */
    double want[4][2];           /* after each step; all 0: unknown */
} golden;

#define ONE .lr = .125, .elements = 1, .steps = 3, .start = {1}
#define SGD_ROW ONE, .grad = {{1}, {.5}, {-1}}
#define ADAM_ROW ONE, .grad = {{1}, {.5}, {-2}}
#define APEX_BETAS .beta1 = .5, .beta2 = .75, .epsilon = .0625
#define LAMB_ROW .lr = .125, .elements = 2, .steps = 2, .start = {3, 4}, .grad = {{3, 4}, {.5, 0}}
#define LAMB_RULE .kind = LS_OPTIMIZER_LAMB, APEX_BETAS, .max_grad_norm = 1
#define TORCH_ROW                                \
    .elements = 2, .steps = 4, .start = {1, -2}, \
    .grad = {{.1, -.2}, {.2, -.2}, {.3, -.2}, {.4, -.2}}
#define TORCH_BETAS .beta1 = .9, .beta2 = .999, .epsilon = 1e-8

#define RULE(...)   \
    {               \
        __VA_ARGS__ \
    }
#define GOLDEN(name, requirement, config, ...) \
    {                                          \
        name, requirement, config, __VA_ARGS__ \
    }

static const golden goldens[] = {
    GOLDEN("apex.sgd", "Z8", RULE(.kind = LS_OPTIMIZER_SGD), SGD_ROW,
           .want = {{.875}, {.8125}, {.9375}}),
    GOLDEN("apex.sgd.momentum", "Z8", RULE(.kind = LS_OPTIMIZER_SGD, .momentum = .5), SGD_ROW,
           .want = {{.875}, {.75}, {.8125}}),
    GOLDEN("apex.sgd.nesterov", "Z8",
           RULE(.kind = LS_OPTIMIZER_SGD, .momentum = .5, .nesterov = true), SGD_ROW,
           .want = {{.8125}, {.6875}, {.84375}}),
    GOLDEN("apex.sgd.decay", "Z8",
           RULE(.kind = LS_OPTIMIZER_SGD, .momentum = .5, .weight_decay = .25), SGD_ROW,
           .want = {{.84375}, {.6767578125}, {.697113037109375}}),
    GOLDEN("apex.sgd.nesterov-decay", "Z8",
           RULE(.kind = LS_OPTIMIZER_SGD, .momentum = .5, .weight_decay = .25, .nesterov = true),
           SGD_ROW, .want = {{.765625}, {.596923828125}, {.7153053283691406}}),
    GOLDEN("apex.adam", "Z8", RULE(.kind = LS_OPTIMIZER_ADAM, APEX_BETAS), ADAM_ROW,
           .want = {{.882352941}, {.780531844}, {.852165903}}),
    GOLDEN("apex.adam.uncorrected", "Z8",
           RULE(.kind = LS_OPTIMIZER_ADAM, APEX_BETAS, .uncorrected = true), ADAM_ROW,
           .want = {{.888888889}, {.777777778}, {.859142113}}),
    GOLDEN("apex.adamw", "Z8", RULE(.kind = LS_OPTIMIZER_ADAMW, APEX_BETAS, .weight_decay = .5),
           ADAM_ROW, .want = {{.819852941}, {.666791035}, {.696750654}}),
    GOLDEN("apex.adam.l2", "Z8", RULE(.kind = LS_OPTIMIZER_ADAM, APEX_BETAS, .weight_decay = .5),
           ADAM_ROW, .want = {{.88}, {.769508305}, {.807107922}}),
    GOLDEN("apex.lamb", "Z8", RULE(LAMB_RULE), LAMB_ROW, .want = {{0}, {2.777072610, 3.827196782}}),
    GOLDEN("apex.lamb.nvlamb", "Z8", RULE(LAMB_RULE, .nvlamb = true), LAMB_ROW,
           .want = {{0}, {2.077148979, 3.300840815}}),
    GOLDEN("apex.lamb.decay", "Z8", RULE(LAMB_RULE, .weight_decay = .5), LAMB_ROW,
           .want = {{0}, {2.219451295, 3.127367950}}),
    GOLDEN("apex.lamb.l2", "Z8", RULE(LAMB_RULE, .weight_decay = .5, .l2 = true), LAMB_ROW,
           .want = {{0}, {2.163562520, 3.178162214}}),
    /* as small as eps: nothing may be added to the norm, as torch's clip_grad_norm_ adds 1e-6 */
    GOLDEN("apex.lamb.small", "Z8",
           RULE(.kind = LS_OPTIMIZER_LAMB, .beta1 = .5, .beta2 = .75, .epsilon = 1e-6,
                .max_grad_norm = 1e-6),
           .lr = .125, .elements = 2, .steps = 2, .start = {3, 4},
           .grad = {{3e-6, 4e-6}, {.5e-6, 0}},
           .want = {{2.953125, 3.944444444}, {2.909978073, 3.922568201}}),
    GOLDEN("torch.sgd", "Z8", RULE(.kind = LS_OPTIMIZER_SGD), TORCH_ROW, .lr = .1,
           .want = {{0}, {0}, {0}, {.9, -1.92}}),
    GOLDEN("torch.sgd.momentum", "Z8", RULE(.kind = LS_OPTIMIZER_SGD, .momentum = .9), TORCH_ROW,
           .lr = .1, .want = {{0}, {0}, {0}, {.81441, -1.81902}}),
    GOLDEN("torch.sgd.decay", "Z8",
           RULE(.kind = LS_OPTIMIZER_SGD, .momentum = .9, .weight_decay = .01), TORCH_ROW, .lr = .1,
           .want = {{0}, {0}, {0}, {.805571046311, -1.801226112622}}),
    GOLDEN("torch.sgd.nesterov-decay", "Z8",
           RULE(.kind = LS_OPTIMIZER_SGD, .momentum = .9, .weight_decay = .01, .nesterov = true),
           TORCH_ROW, .lr = .1, .want = {{0}, {0}, {0}, {.721377136562, -1.733584050304}}),
    GOLDEN("torch.adam", "Z8", RULE(.kind = LS_OPTIMIZER_ADAM, TORCH_BETAS), TORCH_ROW, .lr = .01,
           .want = {{0}, {0}, {0}, {.961164067213, -1.960000002}}),
    GOLDEN("torch.adam.decay", "Z8",
           RULE(.kind = LS_OPTIMIZER_ADAM, TORCH_BETAS, .weight_decay = .1), TORCH_ROW, .lr = .01,
           .want = {{0}, {0}, {0}, {.960331120814, -1.96000572487}}),
    GOLDEN("torch.adamw", "Z8", RULE(.kind = LS_OPTIMIZER_ADAMW, TORCH_BETAS, .weight_decay = .01),
           TORCH_ROW, .lr = .01, .want = {{0}, {0}, {0}, {.960770015177, -1.959206121592}}),
    GOLDEN("torch.adamw.decay", "Z8",
           RULE(.kind = LS_OPTIMIZER_ADAMW, TORCH_BETAS, .weight_decay = .1), TORCH_ROW, .lr = .01,
           .want = {{0}, {0}, {0}, {.95722890722, -1.952071954009}}),
    /* apex/parallel/LARC.py by hand: a = .5 * 5 / (1 + .25 * 5) = 10/9, g' = (.6 + .75, .8 + 1) * a
     * = (1.5, 2); in clip mode a / lr = 80/9 is cut to 1 */
    GOLDEN("apex.larc", "Z8",
           RULE(.kind = LS_OPTIMIZER_LARS, .weight_decay = .25, .epsilon = 1e-12, .trust = .5),
           .lr = .125, .elements = 2, .steps = 1, .start = {3, 4}, .grad = {{.6, .8}},
           .want = {{2.8125, 3.75}}),
    GOLDEN("apex.larc.clip", "Z8",
           RULE(.kind = LS_OPTIMIZER_LARS, .weight_decay = .25, .epsilon = 1e-12, .trust = .5,
                .clip = true),
           .lr = .125, .elements = 2, .steps = 1, .start = {3, 4}, .grad = {{.6, .8}},
           .want = {{2.83125, 3.775}}),
    /* a tensor of zeros has no ratio: lr 1/8 as it is, and no decay */
    GOLDEN("lars.zero-value", "Z9",
           RULE(.kind = LS_OPTIMIZER_LARS, .weight_decay = .25, .epsilon = 1e-8, .trust = .5),
           .lr = .125, .elements = 2, .steps = 1, .start = {0, 0}, .grad = {{.5, -2}},
           .want = {{-.0625, .25}}),
    GOLDEN("lars.zero-grad", "Z9",
           RULE(.kind = LS_OPTIMIZER_LARS, .weight_decay = .25, .epsilon = 1e-8, .trust = .5),
           .lr = .125, .elements = 2, .steps = 1, .start = {3, 4}, .grad = {{0, 0}},
           .want = {{3, 4}}),
    /* m/bc1 = .5 and v/bc2 = .25, u = .5/.5625 = 8/9 */
    GOLDEN("lamb.zero-value", "Z9", RULE(LAMB_RULE, .nvlamb = true), .lr = .125, .elements = 1,
           .steps = 1, .start = {0}, .grad = {{.5}}, .want = {{-1.0 / 9}}),
    GOLDEN("lamb.no-decay", "Z9", RULE(LAMB_RULE), .lr = .125, .elements = 1, .steps = 1,
           .start = {100}, .grad = {{.5}}, .want = {{100 - 1.0 / 9}}),
    /* G = .5 < 1: the gradient stays; above, 5 is cut to 1: u = 1/1.0625 */
    GOLDEN("lamb.below-max-norm", "Z9", RULE(LAMB_RULE), .lr = .125, .elements = 1, .steps = 1,
           .start = {1}, .grad = {{5}}, .want = {{1 - .125 / 1.0625}}),
    GOLDEN("adam.zero-grad", "Z9", RULE(.kind = LS_OPTIMIZER_ADAM, TORCH_BETAS), .lr = .125,
           .elements = 2, .steps = 3, .start = {1, -2}, .want = {{1, -2}, {1, -2}, {1, -2}}),
    /* sqrt(v) = 1e-10 is a hundredth of eps: u = 1e-10 / 1.01e-8 with eps outside the root */
    GOLDEN("adam.small-grad", "Z9", RULE(.kind = LS_OPTIMIZER_ADAM, TORCH_BETAS), .lr = .125,
           .elements = 1, .steps = 1, .start = {1}, .grad = {{1e-10}},
           .want = {{1 - .125 * 1e-10 / 1.01e-8}}),
};

static ls_status run_golden(ls_optim_bench *b, const golden *g, int *compared, ls_verdict *out)
{
    int64_t count = g->elements;
    for (int k = LS_OPTIM_BENCH_VALUE; k < LS_OPTIM_BENCH_COPY; k++) {
        LS_TRY(ls_optim_bench_make_list(b, k, 1, &count, LS_F32));
    }
    float value[2] = {(float)g->start[0], (float)g->start[1]}, got[2];
    LS_TRY(ls_device_write_f32(&b->device, &b->list[LS_OPTIM_BENCH_VALUE][0], value));
    ls_step_state state = {.loss_scale = 1, .inv_loss_scale = 1, .lr = (float)g->lr};
    LS_TRY(ls_optim_bench_write_state(b, &state));
    for (int t = 0; t < g->steps; t++) {
        float grad[2] = {(float)g->grad[t][0], (float)g->grad[t][1]};
        LS_TRY(ls_device_write_f32(&b->device, &b->list[LS_OPTIM_BENCH_GRAD][0], grad));
        LS_TRY(ls_optim_bench_step(b, &g->config, true));
        LS_TRY(ls_device_read_f32(&b->device, &b->list[LS_OPTIM_BENCH_VALUE][0], got));
        bool known = g->want[t][0] != 0 || g->want[t][1] != 0;
        for (int i = 0; i < g->elements && known; i++, ++*compared) {
            double off = fabs((double)got[i] - g->want[t][i]) / fmax(1, fabs(g->want[t][i]));
            if (!ls_verdict_worst(out, off, &digits, "relative")) {
                ls_verdict_fail(out, "element %d after step %d: %.9g, expected %.9g", i, t + 1,
                                (double)got[i], g->want[t][i]);
            }
        }
    }
    return LS_OK;
}

static void judge_golden(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    ls_optim_bench b;
    int compared = 0;
    ls_status status = ls_optim_bench_open(&b);
    LS_THEN(status, run_golden(&b, row->data, &compared, out));
    ls_optim_bench_close(&b);
    if (status != LS_OK) {
        ls_verdict_set(out, LS_INFRA, "the backend cannot run a step (%s)", ls_status_name(status));
    }
    ls_verdict_pass(out, compared, "the printed values, at most %.1e off", out->value);
}

void ls_optim_goldens_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        const ls_row row = {
            .requirement = goldens[i].requirement, .judge = judge_golden, .data = &goldens[i]};
        ls_rows_format(list, settings, &row, "optim.golden.%s", goldens[i].name);
    }
}
