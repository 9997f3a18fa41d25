#include "rows.h"

#include <math.h>
#include <string.h>

#include "kernels/core/path.h"
#include "kernels/core/rng.h"
#include "kernels/core/list.h"
#include "reference/model/model.h"
#include "reference/files/safetensors.h"

enum { CLASSES = 10, BATCH = 4, IMAGE = 16, PIXELS = 3 * IMAGE * IMAGE };

#define FOLDER "batches:{run}/overflow/"

typedef enum kind { TARGETS, A_NAN, SUM, SPOILT, SAME, NEARLY, EXACT, MOVED, KINDS } kind;

/* First words of folders, which go on with rank and step of what is odd: "at-2-1-4-0-a1-w2". */
static const char *const word[KINDS] = {"at",   "nan",    "sum",   "spoilt",
                                        "same", "nearly", "exact", "moved"};

/* The kind whose word `text` starts with, up to `end`; KINDS where there is none. */
static kind find_kind(const char *text, const char *end)
{
    size_t length = strcspn(text, end);
    int k = 0;
    while (k < KINDS && (strlen(word[k]) != length || strncmp(text, word[k], length) != 0)) {
        k++;
    }
    return (kind)k;
}

bool ls_overflow_wants(const ls_spec *spec)
{
    return strncmp(spec->data, FOLDER, strlen(FOLDER)) == 0;
}

bool ls_overflow_read(const char *text, ls_spec *spec)
{
    kind of = find_kind(text, "@ ");
    if (of == KINDS) {
        return false;
    }
    text += strlen(word[of]);
    ls_text_put(spec->arch, sizeof spec->arch, "resnet8");
    spec->image_size = IMAGE;
    spec->batch_size = BATCH;
    ls_text_put(spec->data, sizeof spec->data, FOLDER "%s-%s-a%d-w%d", word[of],
                text[0] == '@' ? text + 1 : "", spec->accumulate, spec->world);
    for (char *c = spec->data + strlen(FOLDER); *c != '\0'; c++) {
        *c = *c == ':' || *c == ',' ? '-' : *c;
    }
    if (of != SAME && of != SPOILT) {
        ls_text_put(spec->extra, sizeof spec->extra, "--init={run}/overflow/%s.safetensors",
                    of >= NEARLY ? word[of] : "init");
    }
    return true;
}

/* Features 1.5 (16 channels) and 0.5 (48): bn1 gives 1, the last block adds 0.5, all else adds 0.
 * Weights: the first 1024, the others (class + 1) / 8. */
static void fill_exact(const ls_param *param, float *value, int64_t count)
{
    bool first = strcmp(param->name, "bn1.bias") == 0;
    bool last = strcmp(param->name, "layer3.0.bn2.bias") == 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t fan_in = param->shape.dim[1];
        if (param->role == LS_PARAM_LINEAR_WEIGHT) {
            value[i] = i % fan_in == 0 ? 1024 : (float)(i / fan_in + 1) / 8;
        } else if (param->role != LS_PARAM_CONV_WEIGHT) {
            value[i] = first ? 1.0f : last ? 0.5f : 0.0f;
        }
    }
}

static ls_status write_statistics(ls_safetensors_writer *writer, const ls_network *network)
{
    for (int i = 0; i < network->buffer_count; i++) {
        const ls_buffer *buffer = &network->buffer[i];
        float value[64];
        ls_shape shape = {1, {buffer->count}};
        LS_ASSERT(buffer->count <= 64);
        for (int c = 0; c < buffer->count; c++) {
            value[c] = (float)(64 * i + c + 1) / 1024;
        }
        if (buffer->role != LS_BUFFER_BATCHES_TRACKED) {
            LS_TRY(ls_safetensors_add_copy(writer, buffer->name, LS_F32, &shape, value));
        }
    }
    return LS_OK;
}

/* Certain: e^-30 for every class but 0, whatever the image. Nearly: e^-14, 8e-7, and what the image
 * adds. */
static ls_status write_weights(const char *path, kind of)
{
    bool nearly = of == NEARLY;
    ls_network network;
    LS_TRY(ls_model_build("resnet8", CLASSES, IMAGE, &network));
    ls_safetensors_writer *writer = NULL;
    ls_status status = ls_safetensors_create(path, &writer);
    for (int i = 0; i < network.param_count && status == LS_OK; i++) {
        const ls_param *param = &network.param[i];
        int64_t count = ls_shape_count(&param->shape);
        float *value = ls_list_make((size_t)count, sizeof *value);
        if (param->role == LS_PARAM_LINEAR_BIAS) {
            value[0] = nearly ? 14 : 30;
        } else if (param->role != LS_PARAM_LINEAR_WEIGHT || nearly) {
            ls_model_init_param(&network, i, 1, value);
        }
        if (of == EXACT) {
            fill_exact(param, value, count);
        }
        status = ls_safetensors_add_copy(writer, param->name, LS_F32, &param->shape, value);
        free(value);
    }
    if (status == LS_OK && of == MOVED) {
        status = write_statistics(writer, &network);
    }
    if (status == LS_OK) {
        status = ls_safetensors_finish(writer);
    } else if (writer != NULL) {
        ls_safetensors_discard(writer);
    }
    ls_model_free(&network);
    return status;
}

static bool chosen(const char *folder, int step, int rank)
{
    const char *text = strrchr(folder, '/');
    text = strchr(text, '-') + 1;
    int s, r, used;
    while (sscanf(text, "%d-%d-%n", &s, &r, &used) == 2) {
        if (s == step && r == rank) {
            return true;
        }
        text += used;
    }
    return false;
}

/* One of the images of a rank's step; micro-step after micro-step. */
static void fill_image(const char *folder, kind of, int step, int rank, int image, float *input,
                       int64_t *target)
{
    int n = image % BATCH; /* in its micro-step */
    uint64_t first = (uint64_t)(of == SAME ? n : image) * PIXELS;
    for (int i = 0; i < PIXELS; i++) {
        input[i] =
            of == SUM ? 0 : ls_rng_normal((uint64_t)step, (uint64_t)rank, first + (uint64_t)i);
    }
    bool odd = of < SAME && chosen(folder, step, rank);
    bool wrong = of == TARGETS || (of == SUM && n == 0);
    *target = odd && wrong ? 1 : 0;
    if (of == SAME || of == SPOILT) {
        *target = (step + rank + n) % CLASSES;
    }
    if (odd && (of == A_NAN || of == SPOILT) && image == 1) {
        input[7] = NAN;
    }
}

static ls_status write_batch(const ls_spec *spec, const char *folder, kind of, int step, int rank)
{
    int micros = spec->accumulate, images = micros * BATCH;
    LS_TEXT(path, 900, "%s/step%06d.rank%d.safetensors", folder, step, rank);
    float *input = malloc(sizeof *input * (size_t)images * PIXELS);
    int64_t *target = malloc(sizeof *target * (size_t)images);
    LS_MEMORY(input != NULL && target != NULL);
    for (int n = 0; n < images; n++) {
        fill_image(folder, of, step, rank, n, input + (size_t)n * PIXELS, &target[n]);
    }
    ls_shape input_shape = {4, {BATCH, 3, IMAGE, IMAGE}};
    ls_shape target_shape = {1, {BATCH}};
    if (micros > 1) {
        input_shape = (ls_shape){5, {micros, BATCH, 3, IMAGE, IMAGE}};
        target_shape = (ls_shape){2, {micros, BATCH}};
    }
    ls_safetensors_writer *writer = NULL;
    ls_status status = ls_safetensors_create(path, &writer);
    if (status == LS_OK) {
        ls_safetensors_add(writer, "input", LS_F32, &input_shape, input);
        ls_safetensors_add(writer, "target", LS_I64, &target_shape, target);
        status = ls_safetensors_finish(writer);
    }
    free(input);
    free(target);
    return status;
}

ls_status ls_overflow_prepare(const ls_case *row, const ls_spec *spec, const char *run_directory)
{
    (void)row;
    if (!ls_overflow_wants(spec)) {
        return LS_OK;
    }
    kind of = find_kind(spec->data + strlen(FOLDER), "-");
    LS_TEXT(folder, 800, "%s%s", run_directory, spec->data + strlen("batches:{run}"));
    LS_TEXT(weights, 800, "%s/overflow/%s.safetensors", run_directory,
            of >= NEARLY ? word[of] : "init");
    LS_TRY(ls_path_make_folder(folder));
    LS_TRY(write_weights(weights, of));
    for (int step = 1; step <= spec->steps; step++) {
        for (int rank = 0; rank < spec->world; rank++) {
            LS_TRY(write_batch(spec, folder, of, step, rank));
        }
    }
    return LS_OK;
}
