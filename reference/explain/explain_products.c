#include <stdlib.h>
#include <string.h>

#include "explain.h"
#include "harness/machine/bus.h"
#include "kernels/core/log.h"
#include "reference/model/model.h"
#include "reference/options/precision.h"
#include "reference/state/device.h"

enum {
    BATCH_MOST = 64, /* a larger plan may not fit into this machine's memory */
    COLUMNS = 80,
    INDENT = 4,
};

/* Prints the line from `text` up to `end`, broken at blanks into lines of COLUMNS. */
static void print_broken(FILE *to, const char *text, const char *end)
{
    int column = 0;
    while (text < end) {
        int word = (int)strcspn(text, " \n");
        if (column > 0 && column + 1 + word > COLUMNS) {
            fprintf(to, "\n%*s", INDENT, "");
            column = INDENT;
        } else if (column > 0) {
            fputc(' ', to);
            column++;
        }
        fprintf(to, "%.*s", word, text);
        column += word;
        text += word;
        text += *text == ' ';
    }
    fputc('\n', to);
}

/* The products of a plan's description, a line each; lines of norms have no colon. */
static void print_engines(FILE *to, const char *text)
{
    while (*text != '\0') {
        const char *end = text + strcspn(text, "\n");
        const char *colon = memchr(text, ':', (size_t)(end - text));
        if (colon != NULL && memchr(text, ' ', (size_t)(colon - text)) == NULL) {
            print_broken(to, text, end);
        }
        text = end + (*end == '\n');
    }
}

static ls_status print_plan(const ls_options *options, const ls_device *device,
                            const ls_network *network, FILE *to)
{
    ls_dialect_rules rules;
    ls_precision precision;
    ls_dialect_resolve(options, 1, &rules);
    ls_precision_resolve(options, &rules, &precision);
    const ls_plan_options how = {.batch = options->batch_size < BATCH_MOST ? options->batch_size
                                                                           : BATCH_MOST,
                                 .height = options->image_size,
                                 .width = options->image_size,
                                 .activation = precision.activation};
    ls_plan *plan = NULL;
    ls_plan_info info;
    LS_TRY(device->api->plan_create(device->backend, network, &how, &plan));
    device->api->plan_info(plan, &info);
    fprintf(to, "\nProducts on this machine\n------------------------\n%s, %d thread%s\n",
            device->info.device, device->info.threads, device->info.threads == 1 ? "" : "s");
    if (precision.activation != LS_F32) {
        const char *text = info.products[0] != '\0'
                               ? info.products
                               : ls_device_products(&device->info, precision.activation);
        print_broken(to, text, text + strlen(text));
    }
    if (info.layout != NULL) {
        fprintf(to, "activations in %s\n", info.layout);
    }
    fprintf(to, "oneDNN's implementations at %d image%s, %s:\n", how.batch,
            how.batch == 1 ? "" : "s", ls_dtype_label(precision.activation));
    print_engines(to, info.fusions);
    device->api->plan_destroy(plan);
    return LS_OK;
}

ls_status ls_explain_print_products(const ls_options *options, int world, FILE *to)
{
    if (strcmp(ls_bus_choose(options->device), "cpu") != 0) {
        return LS_OK;
    }
    ls_network network;
    ls_device device;
    const ls_backend_options how = {.threads = options->threads,
                                    .local_ranks = world,
                                    .emulate_half = options->half_math == LS_HALF_EMULATED,
                                    .native_half = options->half_math == LS_HALF_NATIVE};
    LS_TRY(ls_model_build(options->arch, options->num_classes, options->image_size, &network));
    ls_status status = ls_device_open("cpu", &how, &device);
    if (status == LS_OK) {
        status = print_plan(options, &device, &network, to);
        ls_device_close(&device);
    }
    ls_model_free(&network);
    return status;
}
