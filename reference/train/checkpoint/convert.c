#include "checkpoint.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/json.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"
#include "reference/files/pth.h"
#include "reference/model/model.h"

static const double COUNTS = 1e15; /* beyond all that a run counts */

static const char *metadata(const ls_safetensors *file, const char *name)
{
    return ls_safetensors_metadata_of(file, name, "");
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static bool ends(const char *text, const char *with)
{
    size_t length = strlen(text), end = strlen(with);
    return length > end && strcmp(text + length - end, with) == 0;
}

ls_convert_kind ls_convert_kind_of(const ls_safetensors *file)
{
    if (strcmp(metadata(file, "format"), LS_CHECKPOINT_FORMAT) == 0) {
        return LS_CONVERT_CHECKPOINT;
    }
    if (strcmp(metadata(file, "format"), LS_PTH_STATE_FORMAT) == 0) {
        return LS_CONVERT_SCRIPT;
    }
    for (int i = 0; i < ls_safetensors_count(file); i++) {
        if (begins(ls_safetensors_at(file, i)->name, "param/")) {
            return LS_CONVERT_DUMP;
        }
    }
    return LS_CONVERT_WEIGHTS;
}

/* ---- to safetensors -------------------------------------------------------------------------- */

static ls_status write_safetensors(const ls_safetensors *file, const char *out)
{
    ls_safetensors_writer *writer = NULL;
    const char *name, *text;
    LS_TRY(ls_safetensors_create(out, &writer));
    for (int i = 0; ls_safetensors_metadata_at(file, i, &name, &text); i++) {
        if (!begins(name, "xxh64_")) { /* made anew */
            ls_safetensors_metadata(writer, name, "%s", text);
        }
    }
    for (int i = 0; i < ls_safetensors_count(file); i++) {
        const ls_safetensors_entry *entry = ls_safetensors_at(file, i);
        ls_safetensors_add(writer, entry->name, entry->dtype, &entry->shape, entry->data);
    }
    ls_safetensors_lasting(writer);
    return ls_safetensors_finish(writer);
}

/* ---- to torch.save --------------------------------------------------------------------------- */

/* A file being written; tensors that have found their place are seen. */
typedef struct target {
    ls_safetensors *file;
    ls_pth_writer *writer;
    ls_words params, buffers; /* in the order of modules */
} target;

static const ls_safetensors_entry *find(const target *to, const char *format, const char *name,
                                        const char *rest)
{
    LS_TEXT(full, 300, "%s/%s%s", format, name, rest);
    return ls_safetensors_find(to->file, full);
}

static void put_entry(target *to, const char *name, const ls_safetensors_entry *entry)
{
    ls_safetensors_see(to->file, entry);
    ls_pth_put_tensor(to->writer, name, entry->dtype, &entry->shape, entry->data);
}

/* By the network, where the file says it; else in the order of the file, which is that of modules
 * as long as all have one type. */
static void list_names(target *to)
{
    enum { CLASSES = 10, PIXELS = 32 }; /* names depend on neither */
    ls_network network;
    const char *arch = metadata(to->file, "arch");
    if (arch[0] != '\0' && ls_model_build(arch, CLASSES, PIXELS, &network) == LS_OK) {
        for (int i = 0; i < network.param_count; i++) {
            ls_words_add(&to->params, "%s", network.param[i].name);
        }
        for (int i = 0; i < network.buffer_count; i++) {
            ls_words_add(&to->buffers, "%s", network.buffer[i].name);
        }
        ls_model_free(&network);
        return;
    }
    for (int i = 0; i < ls_safetensors_count(to->file); i++) {
        const char *name = ls_safetensors_at(to->file, i)->name;
        if (begins(name, "param/")) {
            ls_words_add(&to->params, "%s", name + 6);
        } else if (begins(name, "buffer/")) {
            ls_words_add(&to->buffers, "%s", name + 7);
        }
    }
}

static size_t module_length(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot == NULL ? 0 : (size_t)(dot - name);
}

static bool same_module(const char *a, const char *b)
{
    return module_length(a) == module_length(b) && memcmp(a, b, module_length(a)) == 0;
}

/* As torch orders it: of each module the parameters, then the statistics. */
static void put_state_dict(target *to)
{
    ls_pth_begin_ordered(to->writer, "state_dict");
    for (int i = 0; i < to->params.count; i++) {
        const char *name = to->params.word[i];
        const ls_safetensors_entry *master = find(to, "master", name, "");
        const ls_safetensors_entry *param = find(to, "param", name, "");
        if (master != NULL || param != NULL) {
            put_entry(to, name, master != NULL ? master : param);
        }
        bool last = i + 1 == to->params.count || !same_module(name, to->params.word[i + 1]);
        for (int k = 0; last && k < to->buffers.count; k++) {
            const ls_safetensors_entry *buffer = find(to, "buffer", to->buffers.word[k], "");
            if (same_module(name, to->buffers.word[k]) && buffer != NULL) {
                put_entry(to, to->buffers.word[k], buffer);
            }
        }
    }
    ls_pth_end_dict(to->writer);
}

static const char *const moments[] = {"momentum_buffer", "exp_avg", "exp_avg_sq"};
enum { MOMENTS = sizeof moments / sizeof *moments };

static bool has_moments(const target *to)
{
    for (int i = 0; i < ls_safetensors_count(to->file); i++) {
        if (begins(ls_safetensors_at(to->file, i)->name, "state/")) {
            return true;
        }
    }
    return false;
}

/* torch's Adam counts steps per parameter, in f32; Apex's fused ones in the group. *step: the
 * file's count, NULL without one. */
static void put_moments(target *to, const float *step)
{
    const ls_shape scalar = {0};
    ls_pth_begin_dict(to->writer, "state");
    for (int i = 0; i < to->params.count; i++) {
        bool any = false;
        for (int m = 0; m < MOMENTS; m++) {
            LS_TEXT(rest, 32, "/%s", moments[m]);
            const ls_safetensors_entry *entry = find(to, "state", to->params.word[i], rest);
            if (entry != NULL && !any) {
                ls_pth_put_integer(to->writer, NULL, i);
                ls_pth_begin_dict(to->writer, NULL);
                any = true;
            }
            if (entry != NULL) {
                put_entry(to, moments[m], entry);
            }
        }
        if (any && step != NULL && find(to, "state", to->params.word[i], "/exp_avg") != NULL) {
            ls_pth_put_tensor(to->writer, "step", LS_F32, &scalar, step);
        }
        if (any) {
            ls_pth_end_dict(to->writer);
        }
    }
    ls_pth_end_dict(to->writer);
}

/* Rate, momentum and the like, of the options of a checkpoint or the metadata of a script's. */
static double setting(const target *to, const cJSON *options, const char *name, const char *member,
                      double fallback)
{
    const char *text = metadata(to->file, member);
    double given = text[0] != '\0' ? strtod(text, NULL) : fallback;
    return ls_json_number(options, name, given);
}

static void put_group(target *to, const cJSON *options, int64_t steps)
{
    bool adam = false;
    for (int i = 0; i < to->params.count; i++) {
        adam = adam || find(to, "state", to->params.word[i], "/exp_avg") != NULL;
    }
    ls_pth_begin_dict(to->writer, NULL);
    ls_pth_put_number(to->writer, "lr", setting(to, options, "lr", "lr", 0.1));
    ls_pth_put_number(to->writer, "weight_decay",
                      setting(to, options, "weight-decay", "weight_decay", 0));
    if (adam) {
        const cJSON *betas = cJSON_GetObjectItemCaseSensitive(options, "betas");
        double a = 0.9, b = 0.999;
        if (cJSON_IsString(betas)) {
            (void)sscanf(betas->valuestring, "%lf,%lf", &a, &b);
        }
        ls_pth_begin_list(to->writer, "betas");
        ls_pth_put_number(to->writer, NULL, a);
        ls_pth_put_number(to->writer, NULL, b);
        ls_pth_end_list(to->writer);
        ls_pth_put_number(to->writer, "eps", setting(to, options, "eps", "eps", 1e-8));
        ls_pth_put_bool(to->writer, "amsgrad", false);
        ls_pth_put_integer(to->writer, "step", steps);
    } else {
        const cJSON *nesterov = cJSON_GetObjectItemCaseSensitive(options, "nesterov");
        ls_pth_put_number(to->writer, "momentum",
                          setting(to, options, "momentum", "momentum", 0.9));
        ls_pth_put_number(to->writer, "dampening", 0);
        ls_pth_put_bool(to->writer, "nesterov", cJSON_IsTrue(nesterov));
    }
    ls_pth_put_bool(to->writer, "maximize", false);
    ls_pth_begin_list(to->writer, "params");
    for (int i = 0; i < to->params.count; i++) {
        ls_pth_put_integer(to->writer, NULL, i);
    }
    ls_pth_end_list(to->writer);
    ls_pth_end_dict(to->writer);
}

static double scalar_of(const target *to, const char *name, double fallback)
{
    const ls_safetensors_entry *entry = ls_safetensors_find(to->file, name);
    double number = fallback;
    if (entry != NULL) {
        (void)ls_safetensors_scalar(entry->dtype, &entry->shape, entry->data, &number);
    }
    return number;
}

/* *step: as put_moments; written until the file is. */
static void put_optimizer(target *to, float *step)
{
    cJSON *options = cJSON_Parse(metadata(to->file, "options"));
    double steps = scalar_of(to, "optimizer/step_count", -1);
    steps = steps < COUNTS ? steps : -1;
    *step = (float)steps;
    ls_pth_begin_dict(to->writer, "optimizer");
    put_moments(to, steps >= 0 ? step : NULL);
    ls_pth_begin_list(to->writer, "param_groups");
    put_group(to, options, steps >= 0 ? (int64_t)steps : 0);
    ls_pth_end_list(to->writer);
    ls_pth_end_dict(to->writer);
    cJSON_Delete(options);
}

static void put_scaler(target *to)
{
    double scale = scalar_of(to, "scaler/loss_scale", 0);
    double count = scalar_of(to, "scaler/growth_count", 0);
    int64_t clean = count >= 0 && count < COUNTS ? (int64_t)count : 0, interval = 2000;
    if (!(scale > 0) || strcmp(metadata(to->file, "scaler"), "static") == 0) {
        return;
    }
    (void)ls_text_integer(metadata(to->file, "growth_interval"), 1, INT32_MAX, &interval);
    ls_pth_begin_dict(to->writer, "amp");
    ls_pth_begin_dict(to->writer, "loss_scaler0");
    ls_pth_put_number(to->writer, "loss_scale", scale);
    ls_pth_put_integer(to->writer, "unskipped", clean);
    ls_pth_end_dict(to->writer);
    ls_pth_end_dict(to->writer);
    ls_pth_begin_dict(to->writer, "scaler");
    ls_pth_put_number(to->writer, "scale", scale);
    ls_pth_put_number(to->writer, "growth_factor", 2);
    ls_pth_put_number(to->writer, "backoff_factor", 0.5);
    ls_pth_put_integer(to->writer, "growth_interval", interval);
    ls_pth_put_integer(to->writer, "_growth_tracker", clean);
    ls_pth_end_dict(to->writer);
}

static void put_progress(target *to)
{
    int64_t epoch = 0, top1 = 0, images = 0;
    const char *percent = metadata(to->file, "best_percent");
    double best = strtod(percent, NULL);
    bool has_best = percent[0] != '\0';
    if (ls_text_integer(metadata(to->file, "best_top1"), 0, INT64_MAX, &top1) &&
        ls_text_integer(metadata(to->file, "best_images"), 1, INT64_MAX, &images)) {
        best = 100.0 * (double)top1 / (double)images;
        has_best = true;
    }
    if (ls_text_integer(metadata(to->file, "epoch"), 0, INT64_MAX, &epoch)) {
        ls_pth_put_integer(to->writer, "epoch", epoch);
    }
    if (metadata(to->file, "arch")[0] != '\0') {
        ls_pth_put_text(to->writer, "arch", metadata(to->file, "arch"));
    }
    if (has_best) {
        ls_pth_put_number(to->writer, "best_acc1", best);
        ls_pth_put_number(to->writer, "best_prec1", best);
    }
}

/* What has no place elsewhere. */
static void put_own(target *to)
{
    const char *name, *text;
    ls_pth_begin_dict(to->writer, LS_PTH_STATE_OWN);
    ls_pth_begin_dict(to->writer, "metadata");
    for (int i = 0; ls_safetensors_metadata_at(to->file, i, &name, &text); i++) {
        if (!begins(name, "xxh64_")) {
            ls_pth_put_text(to->writer, name, text);
        }
    }
    ls_pth_end_dict(to->writer);
    ls_pth_begin_dict(to->writer, "tensors");
    for (int i = 0; i < ls_safetensors_count(to->file); i++) {
        const ls_safetensors_entry *entry = ls_safetensors_at(to->file, i);
        if (LS_PLANT(pth_half_forgotten, !entry->seen, entry->dtype == LS_I32)) {
            ls_pth_put_tensor(to->writer, entry->name, entry->dtype, &entry->shape, entry->data);
        }
    }
    ls_pth_end_dict(to->writer);
    ls_pth_end_dict(to->writer);
}

static void put_run(target *to, bool own, float *step)
{
    ls_pth_begin_dict(to->writer, NULL);
    put_progress(to);
    put_state_dict(to);
    if (has_moments(to)) {
        put_optimizer(to, step);
    }
    put_scaler(to);
    if (own) {
        put_own(to);
    }
    ls_pth_end_dict(to->writer);
}

static ls_status write_pth(ls_safetensors *file, ls_convert_kind kind, bool plain, const char *out)
{
    target to = {.file = file, .writer = ls_pth_create()};
    float step = 0;
    if (kind == LS_CONVERT_WEIGHTS) {
        ls_pth_begin_ordered(to.writer, NULL);
        for (int i = 0; i < ls_safetensors_count(file); i++) {
            const ls_safetensors_entry *entry = ls_safetensors_at(file, i);
            put_entry(&to, entry->name, entry);
        }
        ls_pth_end_dict(to.writer);
    } else {
        list_names(&to);
        put_run(&to, kind == LS_CONVERT_CHECKPOINT && !plain, &step);
    }
    ls_status status = ls_pth_finish(to.writer, out);
    ls_words_free(&to.params);
    ls_words_free(&to.buffers);
    return status;
}

ls_status ls_convert_write(const char *path, ls_safetensors *file, const char *out, bool plain)
{
    ls_convert_kind kind = ls_convert_kind_of(file);
    LS_REFUSE_IF(kind == LS_CONVERT_DUMP,
                 "%s is a dump of a step: allowed are checkpoints and plain weights", path);
    LS_REFUSE_IF(plain && ends(out, ".safetensors"),
                 "--plain with --to %s: allowed with .pth and .pt", out);
    if (ends(out, ".safetensors")) {
        return write_safetensors(file, out);
    }
    if (ends(out, ".pth") || ends(out, ".pt")) {
        return write_pth(file, kind, plain, out);
    }
    return ls_log_fail(LS_ERR_USAGE,
                       "--to %s: allowed: names that end in .pth, .pt or .safetensors", out);
}
