#include "pth.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/file.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"

typedef union number {
    float single;
    int32_t whole;
    int64_t large;
} number;

/* The result under construction, and what its entries point to. */
typedef struct state {
    ls_pth *pth;
    ls_words names;
    number number[4]; /* scalars that were no tensors */
    int numbers;
    ls_safetensors_entry *entry;
    int count, room;
    ls_words params; /* in the order of the state dict */
    cJSON *metadata;
    char unused[400];
} state;

static void close_owner(void *owner)
{
    state *s = owner;
    ls_pth_close(s->pth);
    ls_words_free(&s->names);
    ls_words_free(&s->params);
    free(s);
}

static void add_entry(state *s, const char *name, ls_dtype dtype, const ls_shape *shape,
                      const void *data)
{
    s->entry = ls_list_grow(s->entry, s->count, &s->room, sizeof *s->entry);
    ls_words_add(&s->names, "%s", name);
    s->entry[s->count++] =
        (ls_safetensors_entry){s->names.word[s->names.count - 1], dtype, *shape, data,
                               ls_shape_count(shape) * (int64_t)ls_dtype_bytes(dtype)};
}

/* The value is one that the type has. */
static void add_scalar(state *s, const char *name, ls_dtype dtype, double value)
{
    const ls_shape scalar = {0};
    LS_ASSERT(s->numbers < (int)(sizeof s->number / sizeof *s->number));
    number *at = &s->number[s->numbers++];
    if (dtype == LS_F32) {
        at->single = (float)value;
    } else if (dtype == LS_I32) {
        at->whole = (int32_t)value;
    } else {
        at->large = (int64_t)value;
    }
    add_entry(s, name, dtype, &scalar, at);
}

static bool add_tensor(state *s, const char *name, const ls_pickle_value *value)
{
    const ls_pth_tensor *tensor = ls_pth_tensor_of(value);
    if (tensor == NULL || !tensor->usable) {
        return false;
    }
    add_entry(s, name, tensor->dtype, &tensor->shape, tensor->data);
    return true;
}

static void note_unused(state *s, const char *format, ...) LS_PRINTF(2, 3);
static void note_unused(state *s, const char *format, ...)
{
    char text[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ls_text_add(s->unused, sizeof s->unused, "%s%s", s->unused[0] == '\0' ? "" : ", ", text);
}

static void set_metadata(state *s, const char *name, const char *text)
{
    cJSON_DeleteItemFromObjectCaseSensitive(s->metadata, name);
    cJSON_AddStringToObject(s->metadata, name, text);
}

/* ---- the state dict -------------------------------------------------------------------------- */

static bool is_buffer(const char *name)
{
    static const char *const ends[] = {"running_mean", "running_var", "num_batches_tracked"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot != NULL && i < sizeof ends / sizeof *ends; i++) {
        if (strcmp(dot + 1, ends[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool has_tensors(const ls_pickle_value *dict)
{
    for (int64_t i = 0; ls_pickle_is(dict, LS_PICKLE_DICT) && i < dict->count; i += 2) {
        if (ls_pickle_is(dict->item[i + 1], LS_PICKLE_TENSOR)) {
            return true;
        }
    }
    return false;
}

static const char *const dict_names[] = {"state_dict", "model", "model_state_dict"};
enum { DICT_NAMES = sizeof dict_names / sizeof *dict_names };

/* Under one of its usual names, or the whole file. */
static const ls_pickle_value *find_dict(const ls_pickle_value *root)
{
    for (int i = 0; i < DICT_NAMES; i++) {
        const ls_pickle_value *dict = ls_pickle_get(root, dict_names[i]);
        if (has_tensors(dict)) {
            return dict;
        }
    }
    return has_tensors(root) ? root : NULL;
}

/* The parameters of a network without the wrapper's prefix. */
static const char *without_prefix(const char *name)
{
    static const char prefix[] = "module.";
    bool wrapped = strncmp(name, prefix, sizeof prefix - 1) == 0;
    return LS_PLANT(pth_prefix_kept, wrapped, false) ? name + sizeof prefix - 1 : name;
}

static void add_dict(state *s, const ls_pickle_value *dict, const ls_pickle_value *own)
{
    int others = 0;
    for (int64_t i = 0; i < dict->count; i += 2) {
        const ls_pickle_value *key = dict->item[i], *value = dict->item[i + 1];
        if (!ls_pickle_is(key, LS_PICKLE_TEXT) || !ls_pickle_is(value, LS_PICKLE_TENSOR)) {
            others++;
            continue;
        }
        const char *name = without_prefix(key->text);
        bool buffer = is_buffer(name);
        LS_TEXT(half, 300, "param/%s", name); /* what a master was rounded to stands in `own` */
        LS_TEXT(full, 300, "%s/%s",
                buffer                             ? "buffer"
                : ls_pickle_get(own, half) != NULL ? "master"
                                                   : "param",
                name);
        others += !add_tensor(s, full, value);
        if (!buffer) {
            ls_words_add(&s->params, "%s", name);
        }
    }
    if (others > 0) {
        note_unused(s, "%d entries of the state dict that are no tensors of a usable type", others);
    }
}

/* ---- optimizer, loss scale ------------------------------------------------------------------- */

static const ls_pickle_value *first_of(const ls_pickle_value *dict, const char *const *names,
                                       int count)
{
    for (int i = 0; i < count; i++) {
        const ls_pickle_value *value = ls_pickle_get(dict, names[i]);
        if (value != NULL && value->kind != LS_PICKLE_NONE) {
            return value;
        }
    }
    return NULL;
}
#define FIRST_OF(dict, ...)                            \
    first_of(dict, (const char *const[]){__VA_ARGS__}, \
             (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))

static void copy_number(state *s, const ls_pickle_value *from, const char *key, const char *name)
{
    double value;
    if (ls_pth_number(ls_pickle_get(from, key), &value)) {
        LS_TEXT(text, 40, "%.9g", value);
        set_metadata(s, name, text);
    }
}

/* Of the parameter that is the index-th of the state dict. */
static void add_moments(state *s, const ls_pickle_value *of, int index)
{
    static const char *const moments[] = {"momentum_buffer", "exp_avg", "exp_avg_sq"};
    for (size_t m = 0; m < sizeof moments / sizeof *moments; m++) {
        LS_TEXT(full, 300, "state/%s/%s", s->params.word[index], moments[m]);
        (void)add_tensor(s, full, ls_pickle_get(of, moments[m]));
    }
}

/* foreign: also its count of steps and its settings, which our own files hold elsewhere. */
static void add_optimizer(state *s, const ls_pickle_value *optimizer, bool foreign)
{
    const ls_pickle_value *groups = ls_pickle_get(optimizer, "param_groups");
    const ls_pickle_value *states = ls_pickle_get(optimizer, "state");
    const ls_pickle_value *group =
        ls_pickle_is(groups, LS_PICKLE_LIST) && groups->count > 0 ? groups->item[0] : NULL;
    const ls_pickle_value *ids = ls_pickle_get(group, "params");
    double step = 0;
    if (optimizer == NULL) {
        return;
    }
    if (foreign) {
        copy_number(s, group, "lr", "lr");
        copy_number(s, group, "momentum", "momentum");
        copy_number(s, group, "weight_decay", "weight_decay");
    }
    if (group == NULL || groups->count != 1) {
        note_unused(s,
                    "moments: they are in %lld parameter groups, whose order is not that of the "
                    "parameters",
                    group == NULL ? 0LL : (long long)groups->count);
        return;
    }
    if (!ls_pickle_is(ids, LS_PICKLE_LIST) || ids->count != s->params.count) {
        note_unused(s, "moments: of %lld parameters where the state dict has %d",
                    ls_pickle_is(ids, LS_PICKLE_LIST) ? (long long)ids->count : 0LL,
                    s->params.count);
        return;
    }
    bool stepped = ls_pth_number(ls_pickle_get(group, "step"), &step); /* Apex's FusedAdam */
    for (int i = 0; i < s->params.count; i++) {
        const ls_pickle_value *id = ids->item[i];
        int index = LS_PLANT(pth_moments_turned, i, s->params.count - 1 - i);
        const ls_pickle_value *of =
            ls_pickle_is(id, LS_PICKLE_INTEGER) ? ls_pickle_get_integer(states, id->integer) : NULL;
        add_moments(s, of, index);
        stepped = stepped || ls_pth_number(ls_pickle_get(of, "step"), &step);
    }
    if (foreign && stepped && step >= 0 && step < 1e15) {
        add_scalar(s, "optimizer/step_count", LS_I64, step);
    }
}

/* Apex: {'loss_scaler0': {'loss_scale', 'unskipped'}}; torch: {'scale', '_growth_tracker'}. */
static void add_scaler(state *s, const ls_pickle_value *root)
{
    const ls_pickle_value *amp =
        FIRST_OF(root, "amp", "scaler", "grad_scaler", "scaler_state_dict");
    const ls_pickle_value *apex = ls_pickle_get(amp, "loss_scaler0");
    double scale = 0, clean = 0;
    bool found = ls_pth_number(ls_pickle_get(apex, "loss_scale"), &scale) ||
                 ls_pth_number(ls_pickle_get(amp, "scale"), &scale);
    (void)(ls_pth_number(ls_pickle_get(apex, "unskipped"), &clean) ||
           ls_pth_number(ls_pickle_get(amp, "_growth_tracker"), &clean));
    if (ls_pickle_get(amp, "loss_scaler1") != NULL) {
        note_unused(s, "the loss scales but the first");
    }
    if (found && scale > 0 && scale < 1e30 && clean >= 0 && clean < 1e9) {
        add_scalar(s, "scaler/loss_scale", LS_F32, scale);
        add_scalar(s, "scaler/growth_count", LS_I32, clean);
    } else if (amp != NULL) {
        note_unused(s, "amp, which has no loss scale");
    }
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* Apex's and PyTorch's ImageNet scripts save the number of the epoch that follows; torchvision's,
 * which names its members otherwise, that of the one that is over. */
static void add_progress(state *s, const ls_pickle_value *root)
{
    double epoch = 0, best = 0;
    bool torchvision = ls_pickle_get(root, "model") != NULL && ls_pickle_get(root, "args") != NULL;
    const ls_pickle_value *arch = ls_pickle_get(root, "arch");
    if (ls_pth_number(ls_pickle_get(root, "epoch"), &epoch) && epoch >= 0 && epoch < 1e9) {
        LS_TEXT(text, 24, "%lld", (long long)epoch + torchvision);
        set_metadata(s, "epoch", text);
    }
    if (ls_pth_number(FIRST_OF(root, "best_acc1", "best_prec1"), &best) && best >= 0 &&
        best <= 100) {
        LS_TEXT(text, 40, "%.17g", best);
        set_metadata(s, "best_percent", text);
    }
    if (ls_pickle_is(arch, LS_PICKLE_TEXT)) {
        LS_TEXT(text, 64, "%s", arch->text);
        set_metadata(s, "arch", text);
    }
}

static void note_members(state *s, const ls_pickle_value *root, const ls_pickle_value *dict)
{
    static const char *const used[] = {
        "state_dict", "model",     "model_state_dict", "optimizer",         "optimizer_state_dict",
        "amp",        "scaler",    "grad_scaler",      "scaler_state_dict", "epoch",
        "arch",       "best_acc1", "best_prec1",       LS_PTH_STATE_OWN};
    for (int64_t i = 0; root != dict && i < root->count; i += 2) {
        bool known = false;
        for (size_t k = 0; k < sizeof used / sizeof *used; k++) {
            known = known || (ls_pickle_is(root->item[i], LS_PICKLE_TEXT) &&
                              strcmp(root->item[i]->text, used[k]) == 0);
        }
        if (!known) {
            note_unused(s, "%.60s",
                        ls_pickle_is(root->item[i], LS_PICKLE_TEXT) ? root->item[i]->text
                                                                    : "a member without a name");
        }
    }
}

/* Texts, and tensors under their full names. */
static void add_own(state *s, const ls_pickle_value *own)
{
    const ls_pickle_value *metadata = ls_pickle_get(own, "metadata");
    const ls_pickle_value *tensors = ls_pickle_get(own, "tensors");
    for (int64_t i = 0; ls_pickle_is(metadata, LS_PICKLE_DICT) && i < metadata->count; i += 2) {
        if (ls_pickle_is(metadata->item[i], LS_PICKLE_TEXT) &&
            ls_pickle_is(metadata->item[i + 1], LS_PICKLE_TEXT)) {
            set_metadata(s, metadata->item[i]->text, metadata->item[i + 1]->text);
        }
    }
    for (int64_t i = 0; ls_pickle_is(tensors, LS_PICKLE_DICT) && i < tensors->count; i += 2) {
        if (ls_pickle_is(tensors->item[i], LS_PICKLE_TEXT)) {
            (void)add_tensor(s, tensors->item[i]->text, tensors->item[i + 1]);
        }
    }
}

/* Members are looked up one by one, so their number is limited. */
static bool is_small(const ls_pickle_value *dict)
{
    enum { MEMBERS_MAX = 20000 }; /* a ResNet-152 has 932 tensors */
    return !ls_pickle_is(dict, LS_PICKLE_DICT) || dict->count / 2 <= MEMBERS_MAX;
}

static ls_status fill(state *s, const char *path)
{
    const ls_pickle_value *root = ls_pth_root(s->pth);
    const ls_pickle_value *dict = find_dict(root), *own = ls_pickle_get(root, LS_PTH_STATE_OWN);
    if (dict == NULL) {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s holds no state dict: neither it nor its state_dict, model or "
                           "model_state_dict is a dict of tensors",
                           path);
    }
    const ls_pickle_value *optimizer = FIRST_OF(root, "optimizer", "optimizer_state_dict");
    if (!is_small(root) || !is_small(dict) || !is_small(ls_pickle_get(optimizer, "state")) ||
        !is_small(ls_pickle_get(own, "tensors")) || !is_small(ls_pickle_get(own, "metadata"))) {
        return ls_log_fail(LS_ERR_USAGE, "%s: a dict of more than 20000 members", path);
    }
    set_metadata(s, "format", LS_PTH_STATE_FORMAT);
    add_dict(s, dict, ls_pickle_get(own, "tensors"));
    add_optimizer(s, optimizer, own == NULL);
    if (own != NULL) {
        add_own(s, own);
        return LS_OK;
    }
    add_scaler(s, root);
    add_progress(s, root);
    note_members(s, root, dict);
    set_metadata(s, "unused", s->unused);
    return LS_OK;
}

static ls_status read_state(const char *path, void *data, size_t bytes, ls_safetensors **out)
{
    state *s = ls_list_make(1, sizeof *s);
    s->metadata = cJSON_CreateObject();
    LS_MEMORY(s->metadata != NULL);
    ls_status status = ls_pth_open(path, data, bytes, &s->pth);
    LS_THEN(status, fill(s, path));
    if (status != LS_OK) {
        cJSON_Delete(s->metadata);
        free(s->entry);
        close_owner(s);
        return status;
    }
    return ls_safetensors_adopt(path, s->metadata, s->entry, s->count, s, close_owner, out);
}

ls_status ls_pth_state_open(const char *path, ls_safetensors **out)
{
    unsigned char head[16] = {0};
    ls_file_source file;
    char *data = NULL;
    size_t bytes = 0;
    if (ls_file_open(path, ls_file_most(), &file) != LS_OK) {
        return ls_safetensors_open(path, out); /* which says why */
    }
    size_t some = file.bytes < (int64_t)sizeof head ? (size_t)file.bytes : sizeof head;
    ls_status status = ls_file_fill(&file, path, head, some);
    close(file.descriptor);
    if (status != LS_OK || !ls_pth_is(head, sizeof head)) {
        return ls_safetensors_open(path, out);
    }
    status = ls_file_load(path, ls_file_most(), &file, &data, &bytes);
    if (status != LS_OK) {
        return ls_log_fail(file.descriptor < 0 ? LS_ERR_USAGE : status, "%s", file.why);
    }
    return read_state(path, data, bytes, out);
}
