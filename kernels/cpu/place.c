#include <stdlib.h>
#include <string.h>

#include "../core/log.h"
#include "plan.h"

/* State of the walk: what lives at this moment of the backward pass. */
typedef struct walk {
    ls_plan *plan;
    int *pending[2]; /* contributions to the gradient of each slot, or LS_NO_BUFFER */
} walk;

/* The lowest gap between living buffers that is long enough. */
static size_t find_gap(const ls_plan *plan, size_t bytes)
{
    size_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < plan->grad_count; i++) {
            const ls_grad_buffer *b = &plan->grad[i];
            if (b->references > 0 && offset < b->offset + b->bytes && b->offset < offset + bytes) {
                offset = b->offset + b->bytes;
                moved = true;
            }
        }
    }
    return offset;
}

static int new_buffer(ls_plan *plan, const ls_slot *slot)
{
    size_t bytes = (size_t)slot->count * ls_dtype_bytes(plan->options.activation);
    bytes = (bytes + LS_ARENA_ALIGN - 1) / LS_ARENA_ALIGN * LS_ARENA_ALIGN;
    size_t offset = find_gap(plan, bytes);
    if (offset + bytes > plan->gradients.bytes) {
        plan->gradients.bytes = offset + bytes;
    }
    plan->grad[plan->grad_count] = (ls_grad_buffer){bytes, offset, 1};
    return plan->grad_count++;
}

static void release(ls_plan *plan, int buffer)
{
    if (buffer != LS_NO_BUFFER) {
        LS_ASSERT(plan->grad[buffer].references > 0);
        plan->grad[buffer].references--;
    }
}

/* Hands a reference to the gradient of `slot`; there are at most two readers of a layer. */
static void contribute(walk *w, int slot, int buffer)
{
    if (!w->plan->slot[slot].wants_gradient) {
        release(w->plan, buffer);
        return;
    }
    int which = w->pending[0][slot] == LS_NO_BUFFER ? 0 : 1;
    LS_ASSERT(w->pending[which][slot] == LS_NO_BUFFER);
    w->pending[which][slot] = buffer;
}

/* g: a buffer of its own for the sum of dy, in place over one that nobody else reads. */
static void place_sum(walk *w, ls_op *op)
{
    ls_plan *plan = w->plan;
    for (int k = 0; k < 2; k++) {
        if (op->dy[k] != LS_NO_BUFFER && plan->grad[op->dy[k]].references == 1) {
            op->g = op->dy[k];
            release(plan, op->dy[1 - k]);
            return;
        }
    }
    op->g = new_buffer(plan, &plan->slot[op->out]);
    release(plan, op->dy[0]);
    release(plan, op->dy[1]);
}

static bool wants(const ls_plan *plan, int slot)
{
    return slot >= 0 && plan->slot[slot].wants_gradient;
}

static void place_norm(walk *w, ls_op *op)
{
    ls_plan *plan = w->plan;
    bool two = op->dy[1] != LS_NO_BUFFER;
    op->store_g = two || (op->relu && op->residual >= 0);
    if (op->store_g) {
        place_sum(w, op);
    } else {
        op->g = op->dy[0];
    }
    if (op->residual >= 0 && !op->dual && wants(plan, op->residual)) {
        plan->grad[op->g].references++;
        contribute(w, op->residual, op->g);
    }
    bool shared = plan->grad[op->g].references > 1 || op->dual;
    if (wants(plan, op->in)) {
        op->dx = shared ? new_buffer(plan, &plan->slot[op->in]) : op->g;
    }
    if (op->dual && wants(plan, op->residual)) {
        op->dx2 =
            plan->grad[op->g].references > 1 ? new_buffer(plan, &plan->slot[op->residual]) : op->g;
    }
    if (op->dx != op->g && op->dx2 != op->g) {
        release(plan, op->g);
    }
    if (op->dx != LS_NO_BUFFER) {
        contribute(w, op->in, op->dx);
    }
    if (op->dx2 != LS_NO_BUFFER) {
        contribute(w, op->residual, op->dx2);
    }
}

static void place_elementwise(walk *w, ls_op *op)
{
    ls_plan *plan = w->plan;
    bool two = op->dy[1] != LS_NO_BUFFER;
    op->store_g = two || op->relu;
    if (op->store_g) {
        place_sum(w, op);
    } else {
        op->g = op->dy[0];
    }
    if (op->kind == LS_OP_ADD) {
        plan->grad[op->g].references++;
        contribute(w, op->residual, op->g);
    }
    contribute(w, op->in, op->g);
}

static void place_other(walk *w, ls_op *op)
{
    ls_plan *plan = w->plan;
    op->store_g = op->dy[1] != LS_NO_BUFFER;
    if (op->store_g) {
        place_sum(w, op);
    } else {
        op->g = op->dy[0];
    }
    if (wants(plan, op->in)) {
        op->dx = new_buffer(plan, &plan->slot[op->in]);
    }
    release(plan, op->g);
    if (op->dx != LS_NO_BUFFER) {
        contribute(w, op->in, op->dx);
    }
}

static void place_op(walk *w, ls_op *op)
{
    if (op->kind == LS_OP_LOSS) {
        op->dx = new_buffer(w->plan, &w->plan->slot[op->in]);
        contribute(w, op->in, op->dx);
        return;
    }
    for (int k = 0; k < 2; k++) {
        op->dy[k] = w->pending[k][op->out];
    }
    LS_ASSERT(op->dy[0] != LS_NO_BUFFER); /* every layer has a reader: ls_lower_supports */
    switch (op->kind) {
    case LS_OP_NORM:
        place_norm(w, op);
        break;
    case LS_OP_RELU:
    case LS_OP_ADD:
        place_elementwise(w, op);
        break;
    default:
        place_other(w, op);
        break;
    }
}

ls_status ls_place_gradients(ls_plan *plan)
{
    /* at most three new buffers per operation: the sum and two results */
    size_t slots = (size_t)plan->slot_count;
    plan->grad = calloc(3 * (size_t)plan->op_count, sizeof *plan->grad);
    int *pending = malloc(2 * slots * sizeof *pending);
    if (plan->grad == NULL || pending == NULL) {
        ls_log_error("no memory to place the gradients of %d operations", plan->op_count);
        free(pending);
        return LS_ERR_INFRA;
    }
    for (size_t i = 0; i < 2 * slots; i++) {
        pending[i] = LS_NO_BUFFER;
    }
    walk w = {plan, {pending, pending + slots}};
    for (int i = plan->op_count - 1; i >= 0; i--) {
        place_op(&w, &plan->op[i]);
    }
    free(pending);
    return LS_OK;
}
