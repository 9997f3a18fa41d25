#include "evidence.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"

static ls_status want(const ls_dumpfile *file, const char *name, const ls_dumpfile_entry **out)
{
    *out = ls_dumpfile_find(file, name);
    if (*out == NULL) {
        return ls_log_fail(LS_ERR_USAGE, "%s: %s is missing", ls_dumpfile_path(file), name);
    }
    return LS_OK;
}

/* number NULL: all ranks of a world of `whole`. */
static ls_status open_files(ls_evidence *e, int whole, const int *number, const char *const *path)
{
    e->file = calloc((size_t)e->world, sizeof *e->file);
    LS_MEMORY(e->file != NULL);
    for (int rank = 0; rank < e->world; rank++) {
        LS_TRY(ls_dumpfile_open(path[rank], &e->file[rank]));
        int wanted = number != NULL ? number[rank] : rank;
        int64_t world = ls_dumpfile_integer(e->file[rank], "world_size", whole);
        int64_t own = ls_dumpfile_integer(e->file[rank], "rank", wanted);
        if (world != whole || own != wanted) {
            return ls_log_fail(LS_ERR_USAGE,
                               "%s is rank %lld of a world of %lld; given as rank %d of %d",
                               path[rank], (long long)own, (long long)world, wanted, whole);
        }
    }
    return LS_OK;
}

/* Reads the shape of a rank's input, [N,3,H,W] or [A,N,3,H,W]; all dimensions but N equal rank 0's.
 */
static ls_status read_input(ls_evidence *e, int rank, const ls_dumpfile_entry **out)
{
    const ls_dumpfile_entry *input, *first;
    LS_TRY(want(e->file[rank], "input", &input));
    LS_TRY(want(e->file[0], "input", &first));
    int images = input->rank - 4; /* dimension N */
    bool fits = input->rank >= 4 && input->rank <= 5 && input->rank == first->rank &&
                input->dim[images + 1] == 3 && input->count > 0 &&
                ls_dumpfile_floats(input, input->count);
    for (int i = 0; fits && i < input->rank; i++) {
        fits = input->dim[i] < 1 << 20 && (i == images || input->dim[i] == first->dim[i]);
    }
    if (!fits) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "%s: input is %s of rank %d with %lld values: floats [N,3,H,W] or [A,N,3,H,W] are "
            "wanted, all but N as on rank 0",
            ls_dumpfile_path(e->file[rank]), input->dtype, input->rank, (long long)input->count);
    }
    e->batch[rank] = (int)input->dim[images];
    *out = input;
    return LS_OK;
}

/* Reads the network and A from rank 0, N from each rank. */
static ls_status read_shapes(ls_evidence *e, const char *arch)
{
    const ls_dumpfile *file = e->file[0];
    const ls_dumpfile_entry *input = NULL, *bias;
    e->batch = calloc((size_t)e->world, sizeof *e->batch);
    LS_MEMORY(e->batch != NULL);
    for (int rank = e->world - 1; rank >= 0; rank--) {
        LS_TRY(read_input(e, rank, &input));
    }
    LS_TRY(want(file, "param/fc.bias", &bias));
    if (bias->count < 1 || bias->count > 1 << 20) {
        return ls_log_fail(LS_ERR_USAGE, "%s: a bias for %lld classes", ls_dumpfile_path(file),
                           (long long)bias->count);
    }
    const int64_t *dim = input->dim + (input->rank - 4);
    const char *own = ls_dumpfile_text(file, "arch", arch);
    if (arch != NULL && strcmp(own, arch) != 0) {
        return ls_log_fail(LS_ERR_USAGE, "%s: arch is '%.40s'; given as %s", ls_dumpfile_path(file),
                           own, arch);
    }
    arch = own != NULL ? own : "";
    LS_TRY(ls_nettab_build(arch, (int)bias->count, (int)dim[2], (int)dim[3], &e->net));
    e->step.net = &e->net;
    e->step.world = e->world;
    e->step.accumulate = input->rank == 5 ? (int)input->dim[0] : 1;
    e->step.batch = e->batch;
    return LS_OK;
}

static ls_status read_rank(ls_evidence *e, int rank, float *input, int64_t *target)
{
    const ls_dumpfile_entry *x, *y;
    const ls_nettab_node *in = &e->net.node[0];
    ls_shards shards = ls_oracle_shards(&e->step);
    int64_t images = ls_shards_images(&shards, rank);
    LS_TRY(want(e->file[rank], "input", &x));
    LS_TRY(want(e->file[rank], "target", &y));
    if (x->count != images * 3 * in->height * in->width || y->count != images) {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s: %lld input values and %lld targets do not fit %lld images",
                           ls_dumpfile_path(e->file[rank]), (long long)x->count,
                           (long long)y->count, (long long)images);
    }
    ls_dumpfile_read_f32(x, input);
    if (!ls_dumpfile_read_i64(y, target)) {
        return ls_log_fail(LS_ERR_USAGE, "%s: target is %s, not I64",
                           ls_dumpfile_path(e->file[rank]), y->dtype);
    }
    for (int64_t i = 0; i < images; i++) {
        if (target[i] < 0 || target[i] >= e->net.classes) {
            return ls_log_fail(LS_ERR_USAGE, "%s: target %lld of sample %lld is not in 0..%d",
                               ls_dumpfile_path(e->file[rank]), (long long)target[i], (long long)i,
                               e->net.classes - 1);
        }
    }
    e->has_branches = e->has_branches || ls_dumpfile_has(e->file[rank], "branch/");
    return LS_OK;
}

static ls_status read_batches(ls_evidence *e)
{
    const float **inputs = calloc((size_t)e->world, sizeof *inputs);
    const int64_t **targets = calloc((size_t)e->world, sizeof *targets);
    e->step.input = inputs;
    e->step.target = targets;
    LS_MEMORY(inputs != NULL && targets != NULL);
    ls_shards shards = ls_oracle_shards(&e->step);
    size_t pixels = 3 * (size_t)e->net.node[0].height * (size_t)e->net.node[0].width;
    for (int rank = 0; rank < e->world; rank++) {
        size_t images = (size_t)ls_shards_images(&shards, rank);
        float *input = malloc(images * pixels * sizeof *input);
        int64_t *target = malloc(images * sizeof *target);
        inputs[rank] = input;
        targets[rank] = target;
        LS_MEMORY(input != NULL && target != NULL);
        LS_TRY(read_rank(e, rank, input, target));
    }
    return LS_OK;
}

static ls_status read_params(ls_evidence *e, const char *prefix, double **out)
{
    *out = malloc((size_t)e->net.elements * sizeof **out);
    LS_MEMORY(*out != NULL);
    for (int i = 0; i < e->net.param_count; i++) {
        const ls_nettab_param *param = &e->net.param[i];
        const ls_dumpfile_entry *entry =
            ls_dumpfile_findf(e->file[0], "%s/%s", prefix, param->name);
        if (!ls_dumpfile_floats(entry, param->count)) {
            return ls_log_fail(LS_ERR_USAGE, "%s: %s/%s is %s; %lld floats are wanted",
                               ls_dumpfile_path(e->file[0]), prefix, param->name,
                               entry == NULL ? "missing" : "of another type or size",
                               (long long)param->count);
        }
        ls_dumpfile_read(entry, *out + param->offset);
    }
    return LS_OK;
}

ls_status ls_evidence_load_part(const char *arch, int world, int count, const int *rank,
                                const char *const *path, ls_evidence **out)
{
    LS_ASSERT(count > 0 && count <= world);
    ls_evidence *e = calloc(1, sizeof *e);
    LS_MEMORY(e != NULL);
    e->world = count;
    e->step.stat_ranks = 1;
    e->step.loss_scale = 1;
    e->step.predivide = 1;
    ls_status status = open_files(e, world, rank, path);
    LS_THEN(status, read_shapes(e, arch));
    LS_THEN(status, read_batches(e));
    LS_THEN(status, read_params(e, "param", &e->param));
    LS_THEN(status, read_params(e, "grad", &e->grad));
    if (status != LS_OK) {
        ls_evidence_free(e);
        return status;
    }
    e->step.param = e->param;
    *out = e;
    return LS_OK;
}

void ls_evidence_free(ls_evidence *e)
{
    if (e == NULL) {
        return;
    }
    for (int rank = 0; rank < e->world; rank++) {
        ls_dumpfile_close(e->file[rank]);
        if (e->step.input != NULL) {
            free((void *)e->step.input[rank]);
        }
        if (e->step.target != NULL) {
            free((void *)e->step.target[rank]);
        }
    }
    free(e->file);
    free(e->batch);
    free((void *)e->step.input);
    free((void *)e->step.target);
    free(e->param);
    free(e->grad);
    free(e);
}

int ls_evidence_differs(const ls_evidence *e, const char *prefix, int rank)
{
    char group[32];
    snprintf(group, sizeof group, "%s/", prefix);
    bool held = ls_dumpfile_has(e->file[rank], group);
    for (int i = 0; i < e->net.param_count && held; i++) {
        const char *name = e->net.param[i].name;
        const ls_dumpfile_entry *a = ls_dumpfile_findf(e->file[0], "%s/%s", prefix, name);
        const ls_dumpfile_entry *b = ls_dumpfile_findf(e->file[rank], "%s/%s", prefix, name);
        if (!ls_dumpfile_equal(a, b)) {
            return i;
        }
    }
    return -1;
}

void ls_evidence_backward_order(const ls_nettab *net, int *order)
{
    int count = 0;
    for (int i = net->node_count - 1; i > 0; i--) {
        const ls_nettab_node *node = &net->node[i];
        bool linear = node->kind == LS_NETTAB_LINEAR;
        const int reached[] = {linear ? node->bias : node->weight,
                               linear ? node->weight : node->bias};
        for (int k = 0; k < 2 && reached[k] >= 0; k++) {
            order[count++] = reached[k];
        }
    }
}
