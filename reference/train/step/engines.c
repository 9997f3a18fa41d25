#include "step.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/file.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "reference/train/ways/join.h"

static const char title[] = "# engines of convolutions, kept by --engines of lockstep-train\n";

/* What the choice depends on: "[resnet50 at 224, batch 256, fp16; NVIDIA H200; cuDNN 9.19.0]", or
 * "...; AMD EPYC, AVX2, 2 threads; oneDNN 2.6.3]" */
static void name_section(const ls_trainer *trainer, char *name, size_t bytes)
{
    const ls_options *o = &trainer->options;
    const ls_backend_info *info = &trainer->device.info;
    const char *library = info->host_memory ? "oneDNN " : "cuDNN ";
    const char *dnn = strstr(info->libraries, library);
    size_t length = dnn == NULL ? 0 : strlen(library) + strcspn(dnn + strlen(library), " ");
    const char *device_end = strstr(info->device, " ("); /* the uuid */
    size_t device = device_end == NULL ? strlen(info->device) : (size_t)(device_end - info->device);
    ls_text_put(name, bytes, "[%s at %d, batch %d, %s%s%s%s; %.*s", trainer->network.arch,
                o->image_size, o->batch_size, ls_dtype_label(trainer->precision.activation),
                o->tf32 ? ", tf32" : "", o->deterministic ? ", deterministic" : "",
                o->fuse ? ", fused" : "", (int)device, info->device);
    if (info->host_memory) {
        ls_text_add(name, bytes, ", %d threads", info->threads);
    }
    ls_text_add(name, bytes, "; %.*s]", (int)length, dnn == NULL ? "" : dnn);
}

/* The lines after the name, up to an empty one; "" without such a section. */
static char *find_section(const char *text, const char *name)
{
    LS_TEXT(line, 600, "\n%s\n", name);
    const char *at = strstr(text, line);
    if (at == NULL) {
        return strdup("");
    }
    at += strlen(line);
    const char *end = strstr(at, "\n\n");
    return strndup(at, end == NULL ? strlen(at) : (size_t)(end + 1 - at));
}

static ls_status read_own(const char *path, const char *name, char **section)
{
    char *text = NULL;
    size_t bytes;
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        *section = strdup("");
        return LS_OK;
    }
    LS_TRY(ls_file_read(path, LS_FILE_TEXT_BYTES, &text, &bytes));
    ls_status status = LS_OK;
    if (strncmp(text, title, sizeof title - 1) != 0) {
        status = ls_log_fail(LS_ERR_USAGE,
                             "--engines '%s': not a file of engines: its first line is "
                             "not \"%.*s\"",
                             path, (int)sizeof title - 2, title);
    } else {
        *section = find_section(text, name);
    }
    free(text);
    return status;
}

/* Gives all ranks rank 0's text. A rank 0 that fails before closes its store, which ends their
 * wait.
 */
static ls_status share(ls_trainer *trainer, char **text)
{
    LS_TEXT(key, 80, "run/engines/%s", trainer->network.arch);
    size_t bytes;
    if (trainer->store == NULL) {
        return LS_OK;
    }
    if (trainer->world.rank == 0) {
        return ls_store_set(trainer->store, key, *text, strlen(*text));
    }
    return ls_store_get(trainer->store, key, -1, (void **)text, &bytes);
}

ls_status ls_engines_recall(ls_trainer *trainer, char **section)
{
    const char *path = trainer->options.engines;
    char name[400], *text = NULL;
    *section = NULL;
    if (path[0] == '\0') {
        return LS_OK;
    }
    name_section(trainer, name, sizeof name);
    if (trainer->world.rank == 0) {
        LS_TRY(read_own(path, name, &text));
        LS_MEMORY(text != NULL);
    }
    ls_status status = share(trainer, &text);
    if (status == LS_OK && text[0] != '\0') {
        *section = text;
    } else {
        free(text);
    }
    return status;
}

/* At the end of the file; another job may have written since it was read. */
static ls_status keep(ls_trainer *trainer)
{
    const char *path = trainer->options.engines, *engines;
    char name[400], *text = NULL;
    size_t bytes = 0;
    LS_TRY(trainer->device.api->engines_export(trainer->plan, &engines));
    if (access(path, F_OK) == 0) {
        LS_TRY(ls_file_read(path, LS_FILE_TEXT_BYTES, &text, &bytes));
    }
    name_section(trainer, name, sizeof name);
    size_t room = bytes + sizeof title + strlen(name) + strlen(engines) + 8;
    char *all = ls_list_make(room, 1);
    ls_text_put(all, room, "%s\n%s\n%s", text == NULL ? title : text, name, engines);
    ls_status status = ls_file_replace(path, all, strlen(all));
    free(all);
    free(text);
    return status;
}

/* Fused passes with an engine, each a word like "gate=eng41". */
static int count_fused(const char *engines)
{
    int count = 0;
    for (const char *at = engines; (at = strstr(at, "=eng")) != NULL; at++) {
        count++;
    }
    return count;
}

/* A section written by a program that knew fewer fused passes leaves the others out. */
static ls_status warn_of_missing(ls_trainer *trainer, const char *section)
{
    const char *own;
    LS_TRY(trainer->device.api->engines_export(trainer->plan, &own));
    int missing = count_fused(own) - count_fused(section);
    if (missing > 0) {
        char name[400];
        name_section(trainer, name, sizeof name);
        ls_log_warn("--engines '%s': section %s lacks the engines of %d fused passes that this run "
                    "could use; remove the section, and the next run writes it again",
                    trainer->options.engines, name, missing);
    }
    return LS_OK;
}

ls_status ls_engines_settle(ls_trainer *trainer, const char *section)
{
    const ls_options *options = &trainer->options;
    if (section != NULL) {
        if (options->fuse && trainer->world.rank == 0) {
            LS_TRY(warn_of_missing(trainer, section));
        }
        ls_status status = trainer->device.api->engines_import(trainer->plan, section);
        if (status != LS_OK) {
            char name[400];
            name_section(trainer, name, sizeof name);
            ls_log_error("--engines '%s': section %s does not fit this run; remove it",
                         options->engines, name);
        }
        return status;
    }
    if (options->cudnn_benchmark || options->fuse) {
        LS_TRY(ls_agree_on_choices(trainer));
    }
    return options->engines[0] != '\0' && trainer->world.rank == 0 ? keep(trainer) : LS_OK;
}
