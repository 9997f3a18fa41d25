#include "lowered.h"

#include <stdlib.h>

#include "kernels/core/log.h"

/* State of the walk: the buffers that are in use at this point of the backward pass. */
typedef struct walk {
    ls_lower *lower;
    int *pending[2]; /* contributions to the gradient of each slot, or LS_NO_BUFFER */
    const ls_lower_backend *backend;
} walk;

/* The lowest gap between buffers in use that is long enough. */
static size_t find_gap(const ls_lower *lower, size_t bytes)
{
    size_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < lower->grad_count; i++) {
            const ls_grad_buffer *b = &lower->grad[i];
            if (b->references > 0 && offset < b->offset + b->bytes && b->offset < offset + bytes) {
                offset = b->offset + b->bytes;
                moved = true;
            }
        }
    }
    return offset;
}

static int new_buffer(ls_lower *lower, const ls_slot *slot)
{
    size_t offset = find_gap(lower, slot->bytes);
    if (offset + slot->bytes > lower->gradient_bytes) {
        lower->gradient_bytes = offset + slot->bytes;
    }
    lower->grad[lower->grad_count] = (ls_grad_buffer){slot->bytes, offset, 1};
    return lower->grad_count++;
}

static void release(ls_lower *lower, int buffer)
{
    if (buffer != LS_NO_BUFFER) {
        LS_ASSERT(lower->grad[buffer].references > 0);
        lower->grad[buffer].references--;
    }
}

/* Hands a reference to the gradient of `slot`; there are at most two readers of a layer. */
static void contribute(walk *w, int slot, int buffer)
{
    if (!w->lower->slot[slot].wants_gradient) {
        release(w->lower, buffer);
        return;
    }
    int which = w->pending[0][slot] == LS_NO_BUFFER ? 0 : 1;
    LS_ASSERT(w->pending[which][slot] == LS_NO_BUFFER);
    w->pending[which][slot] = buffer;
}

/* g: dy[0] itself, or, if `masked` or if there are two dy, computed from them: over one that has no
 * other reader, else in a new buffer. */
static void layout_g(walk *w, ls_op *op, bool masked)
{
    ls_lower *lower = w->lower;
    op->store_g = masked || op->dy[1] != LS_NO_BUFFER;
    if (!op->store_g) {
        op->g = op->dy[0];
        return;
    }
    for (int k = 0; k < 2; k++) {
        if (op->dy[k] != LS_NO_BUFFER && lower->grad[op->dy[k]].references == 1) {
            op->g = op->dy[k];
            release(lower, op->dy[1 - k]);
            return;
        }
    }
    op->g = new_buffer(lower, &lower->slot[op->out]);
    release(lower, op->dy[0]);
    release(lower, op->dy[1]);
}

/* Counts readers of the contributions other than g. */
static void count_readers(ls_lower *lower, const ls_op *op, int count)
{
    for (int k = 0; k < 2; k++) {
        if (op->dy[k] != LS_NO_BUFFER && op->dy[k] != op->g) {
            lower->grad[op->dy[k]].references += count;
        }
    }
}

static bool wants(const ls_lower *lower, int slot)
{
    return slot >= 0 && lower->slot[slot].wants_gradient;
}

static void layout_norm(walk *w, ls_op *op)
{
    ls_lower *lower = w->lower;
    bool gates_again = op->dual && w->backend->gates_twice;
    layout_g(w, op, op->relu && op->residual >= 0 && !gates_again);
    count_readers(lower, op, w->backend->by_channels ? 1 : 0);
    if (op->residual >= 0 && !op->dual && wants(lower, op->residual)) {
        lower->grad[op->g].references++;
        contribute(w, op->residual, op->g);
    }
    bool shared = lower->grad[op->g].references > 1 || op->dual;
    if (wants(lower, op->in)) {
        op->dx = shared ? new_buffer(lower, &lower->slot[op->in]) : op->g;
    }
    if (op->dual && wants(lower, op->residual)) {
        op->dx2 = lower->grad[op->g].references > 1 ? new_buffer(lower, &lower->slot[op->residual])
                                                    : op->g;
    }
    count_readers(lower, op, w->backend->by_channels ? -1 : 0);
    if (op->dx != op->g && op->dx2 != op->g) {
        release(lower, op->g);
    }
    if (op->dx != LS_NO_BUFFER) {
        contribute(w, op->in, op->dx);
    }
    if (op->dx2 != LS_NO_BUFFER) {
        contribute(w, op->residual, op->dx2);
    }
}

static void layout_elementwise(walk *w, ls_op *op)
{
    ls_lower *lower = w->lower;
    layout_g(w, op, op->relu);
    if (op->kind == LS_OP_ADD) {
        lower->grad[op->g].references++;
        contribute(w, op->residual, op->g);
    }
    contribute(w, op->in, op->g);
}

/* Adds dx to the other contribution to the same gradient if that one has no other reader. */
static bool layout_onto(walk *w, ls_op *op)
{
    int other = w->pending[0][op->in];
    const ls_lower_backend *b = w->backend;
    if (b->adds == NULL || op->kind != LS_OP_CONV || other == LS_NO_BUFFER ||
        w->lower->grad[other].references != 1 || !b->adds(b->context, w->lower, op)) {
        return false;
    }
    LS_ASSERT(w->pending[1][op->in] == LS_NO_BUFFER && other != op->g);
    op->dx = other;
    op->onto = true;
    return true;
}

static void layout_other(walk *w, ls_op *op)
{
    ls_lower *lower = w->lower;
    layout_g(w, op, false);
    bool onto = wants(lower, op->in) && layout_onto(w, op);
    if (wants(lower, op->in) && !onto) {
        op->dx = new_buffer(lower, &lower->slot[op->in]);
    }
    release(lower, op->g);
    if (op->dx != LS_NO_BUFFER && !onto) {
        contribute(w, op->in, op->dx);
    }
}

static void layout_op(walk *w, ls_op *op)
{
    if (op->kind == LS_OP_LOSS || op->kind == LS_OP_EXIT) {
        op->dx = new_buffer(w->lower, &w->lower->slot[op->in]);
        contribute(w, op->in, op->dx);
        return;
    }
    for (int k = 0; k < 2; k++) {
        op->dy[k] = w->pending[k][op->out];
    }
    LS_ASSERT(op->dy[0] != LS_NO_BUFFER); /* every layer has a reader: ls_lower_supports */
    switch (op->kind) {
    case LS_OP_NORM:
        layout_norm(w, op);
        break;
    case LS_OP_RELU:
    case LS_OP_ADD:
        layout_elementwise(w, op);
        break;
    case LS_OP_ENTRY: /* g stays: the stage before reads it */
        layout_g(w, op, false);
        break;
    default:
        layout_other(w, op);
        break;
    }
}

ls_status ls_grad_layout_choose(ls_lower *lower, const ls_lower_backend *backend)
{
    /* at most three new buffers per operation: the sum and two results */
    size_t slots = (size_t)lower->slot_count;
    lower->grad = calloc(3 * (size_t)lower->op_count, sizeof *lower->grad);
    int *pending = malloc(2 * slots * sizeof *pending);
    if (lower->grad == NULL || pending == NULL) {
        ls_log_error("no memory for the layout of the gradients of %d operations", lower->op_count);
        free(pending);
        return LS_ERR_INFRA;
    }
    for (size_t i = 0; i < 2 * slots; i++) {
        pending[i] = LS_NO_BUFFER;
    }
    walk w = {lower, {pending, pending + slots}, backend};
    for (int i = lower->op_count - 1; i >= 0; i--) {
        layout_op(&w, &lower->op[i]);
    }
    free(pending);
    return LS_OK;
}
