#include "join.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/digest.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/usage.h"
#include "kernels/core/text.h"

uint64_t ls_agree_bucket_rule(const ls_trainer *trainer)
{
    const ls_dialect_rules *rules = &trainer->rules;
    int64_t numbers[] = {rules->delay,
                         rules->unit,
                         rules->limit_count,
                         rules->limit[0],
                         rules->limit_count > 1 ? rules->limit[1] : 0,
                         rules->first,
                         rules->rebuild,
                         trainer->precision.product,
                         trainer->precision.norm,
                         trainer->precision.allreduce_fp32,
                         trainer->precision.compress != LS_F32,
                         trainer->precision.compress};
    return ls_digest_update(LS_DIGEST_START, numbers, sizeof numbers);
}

/* Of what ranks say to each other; raised when the order or meaning of collectives changes. */
#define PROTOCOL "1"

enum { RANKS_SHOWN = 8 /* in one message */ };

uint64_t ls_agree_network_digest(const ls_network *network)
{
    uint64_t digest = LS_DIGEST_START;
    for (int i = 0; i < network->layer_count; i++) {
        const ls_layer *layer = &network->layer[i];
        int numbers[] = {layer->kind,   layer->input[0], layer->input[1],     layer->channels,
                         layer->kernel, layer->stride,   layer->pad,          layer->weight,
                         layer->bias,   layer->branch,   layer->running_mean, layer->running_var};
        float factors[] = {layer->epsilon, layer->momentum};
        digest = ls_digest_update(digest, numbers, sizeof numbers);
        digest = ls_digest_update(digest, factors, sizeof factors);
        digest = ls_digest_update(digest, layer->name, strlen(layer->name) + 1);
    }
    for (int i = 0; i < network->param_count; i++) {
        const ls_param *param = &network->param[i];
        digest = ls_digest_update(digest, param->name, strlen(param->name) + 1);
        digest = ls_digest_update(digest, param->shape.dim,
                                  (size_t)param->shape.rank * sizeof param->shape.dim[0]);
    }
    for (int i = 0; i < network->buffer_count; i++) {
        const ls_buffer *buffer = &network->buffer[i];
        digest = ls_digest_update(digest, buffer->name, strlen(buffer->name) + 1);
        digest = ls_digest_update(digest, &buffer->count, sizeof buffer->count);
    }
    return digest;
}

/* What must be equal on all ranks, as one flat JSON object; NULL without memory. */
static char *describe_run(const ls_trainer *trainer)
{
    cJSON *all = cJSON_CreateObject();
    cJSON *options = ls_options_json(&trainer->options);
    if (trainer->options.batch_sizes.count > 0) { /* the list is what must be equal */
        cJSON_DeleteItemFromObjectCaseSensitive(options, "batch-size");
    }
    for (int i = 0; i < LS_OPTIONS_ROWS; i++) {
        if (ls_options_table[i].differs == LS_OPTIONS_RANK) {
            cJSON_DeleteItemFromObjectCaseSensitive(options, ls_options_table[i].name);
        }
    }
    cJSON_AddStringToObject(all, "the protocol's version", PROTOCOL);
    cJSON_AddStringToObject(all, "the program's version", LS_VERSION);
    cJSON_AddStringToObject(all, "the backend", trainer->device.api->name);
    while (options->child != NULL) {
        cJSON *item = cJSON_DetachItemViaPointer(options, options->child);
        LS_TEXT(name, 64, "--%s", item->string);
        cJSON_AddItemToObject(all, name, item);
    }
    ls_events_add_hex(all, "the bucket rule", ls_agree_bucket_rule(trainer));
    ls_events_add_hex(all, "the network", ls_agree_network_digest(&trainer->network));
    char *text = cJSON_PrintUnformatted(all);
    cJSON_Delete(options);
    cJSON_Delete(all);
    return text;
}

static void free_values(void **values, int count)
{
    for (int i = 0; i < count; i++) {
        free(values[i]);
    }
    free(values);
}

/* Everybody's value of a key; malloc'ed, free with free_values. */
static ls_status exchange(ls_trainer *trainer, const char *key, const void *mine, size_t bytes,
                          void ***out, size_t **out_bytes)
{
    size_t count = (size_t)trainer->world.world;
    void **values = ls_list_make(count, sizeof *values);
    size_t *sizes = ls_list_make(count, sizeof *sizes);
    ls_status status = ls_store_exchange(trainer->store, key, mine, bytes, values, sizes);
    if (status != LS_OK) {
        free(values);
        free(sizes);
        return status;
    }
    *out = values;
    *out_bytes = sizes;
    return LS_OK;
}

/* The ranks whose value is not rank 0's, as text; returns how many. */
static int list_differing(int count, void **values, const size_t *bytes, char *text,
                          size_t text_bytes)
{
    int differing = 0;
    text[0] = '\0';
    for (int rank = 1; rank < count; rank++) {
        if (bytes[rank] == bytes[0] && memcmp(values[rank], values[0], bytes[0]) == 0) {
            continue;
        }
        if (differing < RANKS_SHOWN) {
            ls_text_add(text, text_bytes, "%s%d", differing == 0 ? "" : ", ", rank);
        } else if (differing == RANKS_SHOWN) {
            ls_text_add(text, text_bytes, ", ...");
        }
        differing++;
    }
    return differing;
}

/* How many ranks' values of a key are not rank 0's, and which, as text. */
static ls_status compare(ls_trainer *trainer, const char *key, const void *mine, size_t bytes,
                         char *text, size_t text_bytes, int *differing)
{
    void **values = NULL;
    size_t *sizes = NULL;
    LS_TRY(exchange(trainer, key, mine, bytes, &values, &sizes));
    *differing = list_differing(trainer->world.world, values, sizes, text, text_bytes);
    free_values(values, trainer->world.world);
    free(sizes);
    return LS_OK;
}

/* Names the first member in which a rank's description is not rank 0's. */
static void report_difference(int count, void **values)
{
    cJSON *first = cJSON_Parse(values[0]);
    for (int rank = 1; rank < count; rank++) {
        cJSON *other = cJSON_Parse(values[rank]);
        for (const cJSON *item = first == NULL ? NULL : first->child; item != NULL;
             item = item->next) {
            const cJSON *theirs = cJSON_GetObjectItemCaseSensitive(other, item->string);
            if (theirs != NULL && cJSON_Compare(item, theirs, true)) {
                continue;
            }
            char *a = cJSON_PrintUnformatted(item);
            char *b = theirs == NULL ? NULL : cJSON_PrintUnformatted(theirs);
            ls_log_error("ranks were not started alike: %s is %s on rank 0 and %s on rank %d",
                         item->string, a == NULL ? "?" : a, b == NULL ? "absent" : b, rank);
            free(a);
            free(b);
            cJSON_Delete(other);
            cJSON_Delete(first);
            return;
        }
        cJSON_Delete(other);
    }
    cJSON_Delete(first);
    ls_log_error("ranks were not started alike, in something that rank 0 does not know");
}

/* Digests first: the texts are only sent when something differs. */
ls_status ls_agree_on_run(ls_trainer *trainer)
{
    char *mine = describe_run(trainer);
    LS_MEMORY(mine != NULL);
    int count = trainer->world.world, differing = 0;
    void **values = NULL;
    size_t *bytes = NULL;
    char ranks[96];
    uint64_t digest = ls_digest_update(LS_DIGEST_START, mine, strlen(mine));
    ls_status status =
        compare(trainer, "run/digest", &digest, sizeof digest, ranks, sizeof ranks, &differing);
    if (status == LS_OK && differing > 0) {
        status = exchange(trainer, "run/text", mine, strlen(mine), &values, &bytes);
        if (status == LS_OK) {
            report_difference(count, values);
            free_values(values, count);
            free(bytes);
            status = LS_ERR_USAGE;
        }
    }
    free(mine);
    return status;
}

ls_status ls_agree_on_libraries(ls_trainer *trainer)
{
    char engine[256] = "";
    if (trainer->engine != NULL) {
        trainer->engine->describe(engine, (int)sizeof engine);
    }
    LS_TEXT(mine, 1024, "%s; %s%s%s", trainer->device.info.libraries, engine,
            trainer->device.info.half_units[0] != '\0' ? "; " : "",
            trainer->device.info.half_units);
    char ranks[96];
    int differing = 0;
    LS_TRY(compare(trainer, "run/libraries", mine, strlen(mine), ranks, sizeof ranks, &differing));
    if (differing > 0 && trainer->world.rank == 0) {
        ls_log_warn("ranks %s use other libraries than rank 0 (%s)", ranks, mine);
    }
    return LS_OK;
}

ls_status ls_agree_on(ls_trainer *trainer, const char *what, uint64_t value)
{
    if (trainer->store == NULL) {
        return LS_OK;
    }
    char ranks[96];
    int differing = 0;
    LS_TRY(compare(trainer, what, &value, sizeof value, ranks, sizeof ranks, &differing));
    LS_REFUSE_IF(differing > 0, "%s on ranks %s: not the same as on rank 0", what, ranks);
    return LS_OK;
}

ls_status ls_agree_on_choices(ls_trainer *trainer)
{
    const ls_backend_api *api = trainer->device.api;
    void **values = NULL;
    size_t *bytes = NULL;
    const char *mine = "";
    if (trainer->store == NULL || api->engines_export == NULL) {
        return LS_OK;
    }
    if (trainer->world.rank == 0) {
        LS_TRY(api->engines_export(trainer->plan, &mine));
    }
    LS_TRY(exchange(trainer, "run/choices", mine, strlen(mine), &values, &bytes));
    ls_status status = LS_OK;
    if (trainer->world.rank != 0) {
        char *text = ls_list_make(bytes[0] + 1, 1);
        memcpy(text, values[0], bytes[0]);
        status = api->engines_import(trainer->plan, text);
        free(text);
    }
    free_values(values, trainer->world.world);
    free(bytes);
    return status;
}
