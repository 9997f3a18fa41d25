/* What `lockstep explain` says of memory and of bytes on the wire, against the network's own
 * parameters and a table of bytes for each. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/cases/rows.h"
#include "reference/model/model.h"
#include "suite/inside/inside.h"

enum { WORLD = 3 };

static const ls_tol printed_mb = LS_TOL(6e-4, "MB are printed with three digits");

enum { PARAM, CAST, MASTER, MOMENT, GRAD, STAGED, UNSCALED, SUM, REDUCED, KINDS };

static const char *const line[KINDS] = {
    "parameters",
    "their copies for products",
    "masters",
    "moments",
    "gradients (in their buckets)",
    "their copies in the type that is reduced",
    "half gradients unscaled, in fp32",
    "accumulated gradients, fp32",
    "reduced:",
};

/* Bytes of an element: of convolutions and the linear layer, of batch norms (numerics.md sections 1
 * and 2.4). */
static const struct figures {
    const char *id, *options;
    int product[KINDS], norm[KINDS];
} figures[] = {
    {"o0", "--opt-level=O0", {4, 0, 0, 4, 4, 0, 0, 0, 4}, {4, 0, 0, 4, 4, 0, 0, 0, 4}},
    {"o1.adam",
     "--opt-level=O1 --optimizer=adam",
     {4, 2, 0, 8, 4, 0, 0, 0, 4},
     {4, 0, 0, 8, 4, 0, 0, 0, 4}},
    {"o1.compress",
     "--opt-level=O1 --compress=fp16",
     {4, 2, 0, 4, 4, 2, 0, 0, 2},
     {4, 0, 0, 4, 4, 2, 0, 0, 2}},
    {"o2.accumulate",
     "--opt-level=O2 --accumulate=2",
     {2, 0, 4, 4, 2, 0, 4, 4, 2},
     {4, 0, 0, 4, 4, 0, 0, 4, 4}},
    {"o0.no-sync-false",
     "--opt-level=O0 --accumulate=3 --no-sync=False",
     {4, 0, 0, 4, 4, 0, 0, 4, 12},
     {4, 0, 0, 4, 4, 0, 0, 4, 12}},
    {"o2.allreduce-fp32.lamb",
     "--opt-level=O2 --allreduce-fp32 --optimizer=lamb",
     {2, 0, 4, 8, 2, 4, 4, 0, 4},
     {4, 0, 0, 8, 4, 0, 0, 0, 4}},
    {"o3.plain",
     "--opt-level=O3 --momentum=0",
     {2, 0, 0, 0, 2, 0, 4, 0, 2},
     {2, 0, 0, 0, 2, 0, 4, 0, 2}},
};

/* The number of MB behind `name` at the begin of the first line that has one; NAN. */
static double printed_mb_of(const char *text, const char *name)
{
    double mb;
    LS_TEXT(key, 64, "\n%s ", name);
    for (const char *at = strstr(text, key); at != NULL; at = strstr(at + 1, key)) {
        if (sscanf(at + strlen(key), "%lf MB", &mb) == 1) {
            return mb;
        }
    }
    return NAN;
}

static void check(const char *text, const char *name, double want_mb, ls_verdict *out)
{
    double printed = printed_mb_of(text, name);
    if (!(fabs(printed - want_mb) <= printed_mb.value)) {
        ls_verdict_fail(out, "%s: %.3f MB printed, expected %.3f", name, printed, want_mb);
    }
}

static void judge_figures(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct figures *f = row->data;
    double product = 0, norm = 0, reduced_mb = 0; /* elements */
    char *text = NULL;
    ls_network network;
    (void)job;
    if (ls_inside_explain(WORLD, &text, "-a resnet18 %s", f->options) != LS_OK ||
        ls_model_build("resnet18", 10, 224, &network) != LS_OK) {
        ls_verdict_fail(out, "nothing is explained");
        free(text);
        return;
    }
    for (int i = 0; i < network.param_count; i++) {
        const ls_param *param = &network.param[i];
        bool of_norm = param->role == LS_PARAM_NORM_WEIGHT || param->role == LS_PARAM_NORM_BIAS;
        *(of_norm ? &norm : &product) += (double)ls_shape_count(&param->shape);
    }
    ls_model_free(&network);
    for (int kind = 0; kind < KINDS; kind++) {
        double want_mb = (product * f->product[kind] + norm * f->norm[kind]) * 1e-6;
        reduced_mb = want_mb; /* the last kind */
        check(text, line[kind], want_mb, out);
    }
    check(text, "sent by each rank (ring):", reduced_mb * 2 * (WORLD - 1) / WORLD, out);
    ls_verdict_pass(out, KINDS + 1, "%d figures of %.0f parameters, %.0f of them of batch norms",
                    KINDS + 1, product + norm, norm);
    free(text);
}

void ls_explained_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS_EACH(list, settings, &((ls_row){.requirement = "E3", .judge = judge_figures}),
                 "explain.figures.%s", figures);
}
