#include "run.h"

#include <string.h>

ls_round_stored_noise ls_run_next_noise(ls_run *r)
{
    return (ls_round_stored_noise){r->mode->noise_seed, ++r->arrays};
}

void ls_run_round_stored(ls_run *r, ls_bits_type type, ls_planes *planes)
{
    ls_round_stored_values(type, ls_run_next_noise(r), ls_planes_count(planes), planes->value);
}

ls_status ls_run_allocate_like(const ls_run *r, int node, ls_planes *out)
{
    const ls_nettab_node *shape = &r->net->node[node];
    return ls_planes_allocate(r->samples, shape->height, shape->width, shape->channels, out);
}

ls_loops_shape ls_run_products_of(const ls_nettab_node *node)
{
    return node->kind == LS_NETTAB_LINEAR ? (ls_loops_shape){1, 1, 0}
                                          : (ls_loops_shape){node->kernel, node->stride, node->pad};
}

const double *ls_run_weights_of(ls_run *r, int param)
{
    const double *held = r->step->param + r->net->param[param].offset;
    if (!r->mode->ideal || r->step->level == 0) {
        return held;
    }
    memcpy(r->weight, held, (size_t)r->net->param[param].count * sizeof *held);
    ls_round_stored_values(r->step->half, (ls_round_stored_noise){0, 0}, r->net->param[param].count,
                           r->weight);
    return r->weight;
}
