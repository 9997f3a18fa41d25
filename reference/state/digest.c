#include "digest.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/digest.h"
#include "kernels/core/list.h"

enum { CHUNK_BYTES = 1 << 20 };

/* Iterates over the bytes of one group, tensor by tensor in order of name. */
typedef struct cursor {
    const ls_memory *memory;
    ls_digest_group group;
    int position;   /* in the order of names, of a parameter's moments one after the other */
    int64_t offset; /* bytes of the current tensor already hashed */
    char *scratch;  /* [CHUNK_BYTES] if the host cannot read the device's memory, else NULL */
    const char *data;
    int64_t left; /* bytes at `data` */
    uint64_t digest;
} cursor;

/* The tensor at the cursor; data NULL if that entry has none; count -1 after the last. */
static ls_tensor current(const cursor *at)
{
    const ls_memory *memory = at->memory;
    const ls_tensor *const lists[] = {[LS_DIGEST_GROUP_PARAM] = memory->param,
                                      [LS_DIGEST_GROUP_MASTER] = memory->master,
                                      [LS_DIGEST_GROUP_BUFFER] = memory->buffer,
                                      [LS_DIGEST_GROUP_GRAD] = memory->unscaled};
    bool buffers = at->group == LS_DIGEST_GROUP_BUFFER, state = at->group == LS_DIGEST_GROUP_STATE;
    int lists_each = state ? memory->moment_count : 1, place = at->position / lists_each;
    if (place >= (buffers ? memory->buffer_count : memory->param_count)) {
        return (ls_tensor){.count = -1};
    }
    int i = buffers ? memory->buffer_by_name[place] : memory->by_name[place];
    if (buffers && memory->network->buffer[i].role == LS_BUFFER_BATCHES_TRACKED) {
        return (ls_tensor){.data = memory->tracked, .dtype = LS_I64, .count = 1};
    }
    return state ? memory->moment[at->position % lists_each][i] : lists[at->group][i];
}

/* Makes at->data point to the next bytes; left stays 0 at the end of the group. */
static ls_status refill(cursor *at)
{
    while (at->left == 0) {
        ls_tensor tensor = current(at);
        if (tensor.count < 0) {
            return LS_OK;
        }
        int64_t rest = tensor.data == NULL ? 0 : (int64_t)ls_tensor_bytes(&tensor) - at->offset;
        if (rest == 0) {
            at->offset = 0;
            at->position++;
            continue;
        }
        at->data = (const char *)tensor.data + at->offset;
        bool host = at->scratch == NULL || tensor.data == at->memory->tracked;
        at->left = host || rest < CHUNK_BYTES ? rest : CHUNK_BYTES;
        at->offset += at->left;
        if (!host) {
            LS_TRY(ls_device_read(at->memory->device, at->scratch, at->data, at->left));
            at->data = at->scratch;
        }
    }
    return LS_OK;
}

/* Hashes four groups at once; an unused stream repeats another's bytes into a digest that is
 * discarded, because four take the time of one (kernels/core/digest.h). */
static ls_status hash_together(cursor *at, int count)
{
    for (;;) {
        const void *data[LS_DIGEST_STREAMS];
        uint64_t digest[LS_DIGEST_STREAMS];
        size_t bytes[LS_DIGEST_STREAMS];
        cursor *used[LS_DIGEST_STREAMS];
        int live = 0;
        int64_t common = INT64_MAX;
        for (int i = 0; i < count; i++) {
            LS_TRY(refill(&at[i]));
            if (at[i].left > 0) {
                used[live++] = &at[i];
                common = at[i].left < common ? at[i].left : common;
            }
        }
        if (live == 0) {
            return LS_OK;
        }
        for (int i = 0; i < LS_DIGEST_STREAMS; i++) {
            cursor *from = used[i < live ? i : 0];
            data[i] = from->data;
            digest[i] = from->digest;
            bytes[i] = (size_t)common;
        }
        ls_digest_update_many(live == 1 ? 1 : LS_DIGEST_STREAMS, digest, data, bytes);
        for (int i = 0; i < live; i++) {
            used[i]->digest = digest[i];
            used[i]->data += common;
            used[i]->left -= common;
        }
    }
}

static uint64_t scaler_digest(const ls_step_state *state)
{
    uint64_t digest = LS_DIGEST_START;
    digest = ls_digest_update(digest, &state->loss_scale, sizeof state->loss_scale);
    digest = ls_digest_update(digest, &state->growth_count, sizeof state->growth_count);
    digest = ls_digest_update(digest, &state->overflow_streak, sizeof state->overflow_streak);
    return ls_digest_update(digest, &state->step_count, sizeof state->step_count);
}

ls_status ls_digest_compute(const ls_memory *memory, const ls_step_state *state,
                            ls_digest_scope scope, ls_digest_set *out)
{
    memset(out, 0, sizeof *out);
    if (scope == LS_DIGEST_NONE) {
        return LS_OK;
    }
    bool all = scope == LS_DIGEST_ALL;
    out->given[LS_DIGEST_GROUP_PARAM] = true;
    out->given[LS_DIGEST_GROUP_MASTER] = all && memory->master != NULL;
    out->given[LS_DIGEST_GROUP_STATE] = all && memory->moment_count > 0;
    out->given[LS_DIGEST_GROUP_GRAD] = out->given[LS_DIGEST_GROUP_BUFFER] =
        out->given[LS_DIGEST_GROUP_SCALER] = all;
    out->value[LS_DIGEST_GROUP_SCALER] = scaler_digest(state);
    LS_TRY(memory->device->api->stream_wait(memory->device->stream));

    cursor group[LS_DIGEST_GROUPS];
    int count = 0;
    char *scratch = NULL;
    ls_status status = LS_OK;
    if (!memory->device->info.host_memory) {
        scratch = ls_list_make(LS_DIGEST_GROUPS, CHUNK_BYTES);
    }
    for (int i = 0; i < LS_DIGEST_GROUPS; i++) {
        if (out->given[i] && i != LS_DIGEST_GROUP_SCALER) {
            char *own = scratch == NULL ? NULL : scratch + (size_t)i * CHUNK_BYTES;
            group[count++] = (cursor){.memory = memory,
                                      .group = (ls_digest_group)i,
                                      .scratch = own,
                                      .digest = LS_DIGEST_START};
        }
    }
    for (int first = 0; first < count && status == LS_OK; first += LS_DIGEST_STREAMS) {
        int together = count - first < LS_DIGEST_STREAMS ? count - first : LS_DIGEST_STREAMS;
        status = hash_together(group + first, together);
    }
    for (int i = 0; i < count && status == LS_OK; i++) {
        out->value[group[i].group] = group[i].digest;
    }
    free(scratch);
    return status;
}
