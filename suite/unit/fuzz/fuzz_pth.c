/* Files of torch.save: pickles are changed inside of archives whose checksums fit, directories of
 * archives by byte. Each input is resumed from, started from, and now and then converted. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "reference/files/pth.h"
#include "reference/train/checkpoint/checkpoint.h"
#include "suite/unit/reference/host_trainer.h"

enum { DIRECTORY_BYTES = 4096 };

/* ---- mutation ------------------------------------------------------------------------------- */

/* An operation, or the operation with a name that a state dict has, at any place. */
static void change_operation(fuzz *f, bytes *b)
{
    static const char codes[] = "(.0123NKMJGXTBUC})]teasuqrhjcRbQ\x80\x81\x85\x86\x87\x88\x89\x8a"
                                "\x8b\x8c\x8d\x8e\x8f\x90\x93\x94\x95\x92io\x82\x97";
    static const char *const names[] = {"cposix\nsystem\n",
                                        "ccollections\nOrderedDict\n)R",
                                        "ctorch\nFloatStorage\n",
                                        "cargparse\nNamespace\n)\x81",
                                        "ctorch._utils\n_rebuild_tensor_v2\n",
                                        "X\4\0\0\0step"};
    if (b->count == 0 || b->count + 64 > INPUT_BYTES_MAX) {
        return;
    }
    size_t at = fuzz_below(f, b->count);
    const char *name = names[fuzz_below(f, sizeof names / sizeof *names)];
    size_t length = strlen(name);
    if (fuzz_below(f, 3) > 0) {
        b->at[at] = (unsigned char)codes[fuzz_below(f, sizeof codes - 1)];
        return;
    }
    memmove(b->at + at + length, b->at + at, b->count - at);
    memcpy(b->at + at, name, length);
    b->count += length;
}

static void append(bytes *to, const void *data, size_t count)
{
    if (to->count + count <= INPUT_BYTES_MAX) {
        memcpy(to->at + to->count, data, count);
        to->count += count;
    }
}

/* The seed's archive with another pickle. */
static void rebuild(const ls_zip *zip, const bytes *pickle, bytes *out)
{
    ls_zip_writer writer = {0};
    out->count = 0;
    for (int i = 0; i < zip->count; i++) {
        const ls_zip_entry *entry = &zip->entry[i];
        unsigned char header[LS_ZIP_HEADER_BYTES];
        bool changed = strstr(entry->name, "data.pkl") != NULL;
        const unsigned char *data = changed ? pickle->at : entry->data;
        size_t count = changed ? pickle->count : entry->bytes;
        size_t length =
            ls_zip_begin(&writer, entry->name, count, ls_zip_crc(0, data, count), header);
        append(out, header, length);
        append(out, data, count);
    }
    size_t count;
    unsigned char *end = ls_zip_finish(&writer, &count);
    append(out, end, count);
    free(end);
}

static void make_pth(fuzz *f, bytes *b)
{
    char why[400];
    ls_zip zip;
    const bytes *seed = &f->seed[fuzz_below(f, (size_t)f->seeds)];
    if (fuzz_below(f, 4) == 0) { /* sizes, offsets, names */
        memcpy(b->at, seed->at, seed->count);
        b->count = seed->count;
        for (size_t left = 1 + fuzz_below(f, 3); left > 0; left--) {
            size_t most = seed->count < DIRECTORY_BYTES ? seed->count : DIRECTORY_BYTES;
            size_t back = 1 + fuzz_below(f, most);
            b->at[b->count - back] ^= (unsigned char)(1u << fuzz_below(f, 8));
        }
        return;
    }
    bytes *pickle = malloc(sizeof *pickle);
    LS_ASSERT(pickle != NULL && ls_zip_open(seed->at, seed->count, &zip, why, sizeof why));
    for (int i = 0; i < zip.count; i++) {
        if (strstr(zip.entry[i].name, "data.pkl") != NULL) {
            pickle->count = zip.entry[i].bytes;
            memcpy(pickle->at, zip.entry[i].data, pickle->count);
        }
    }
    for (size_t left = 1 + fuzz_below(f, 4); left > 0; left--) {
        if (fuzz_below(f, 2) == 0) {
            change_operation(f, pickle);
        } else {
            fuzz_mutate(f, pickle, pickle->count);
        }
    }
    rebuild(&zip, pickle, b);
    ls_zip_close(&zip);
    free(pickle);
}

/* ---- reading -------------------------------------------------------------------------------- */

/* A file of a few bytes, which most inputs are made of: of a network that is not the trainer's. */
static void seed_small(fuzz *f)
{
    static const float values[12] = {1, 2, 3};
    static const int64_t tracked = 3;
    static const char *const names[] = {"param/a.weight", "state/a.weight/momentum_buffer",
                                        "state/a.weight/exp_avg", "buffer/a.running_mean"};
    const ls_shape shape = {.rank = 2, .dim = {3, 4}}, scalar = {0};
    char path[PATH_BYTES], out[PATH_BYTES];
    ls_safetensors_writer *writer = NULL;
    ls_safetensors *file = NULL;
    LS_ASSERT(ls_safetensors_create(fuzz_path(f, "seed", path), &writer) == LS_OK);
    ls_safetensors_metadata(writer, "format", "%s", LS_PTH_STATE_FORMAT);
    ls_safetensors_metadata(writer, "epoch", "2");
    ls_safetensors_metadata(writer, "best_percent", "61.5");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ls_safetensors_add(writer, names[i], LS_F32, &shape, values);
    }
    ls_safetensors_add(writer, "buffer/a.num_batches_tracked", LS_I64, &scalar, &tracked);
    ls_safetensors_add(writer, "scaler/loss_scale", LS_F32, &scalar, values);
    LS_ASSERT(ls_safetensors_finish(writer) == LS_OK);
    LS_ASSERT(ls_pth_state_open(path, &file) == LS_OK);
    LS_ASSERT(ls_convert_write(path, file, fuzz_path(f, "seed.pth", out), false) == LS_OK);
    ls_safetensors_close(file);
    fuzz_add_seed_file(f, out);
}

static void seed_pth(fuzz *f)
{
    ls_options options;
    char path[PATH_BYTES], out[PATH_BYTES];
    ls_safetensors *file = NULL;
    ls_options_defaults(&options);
    ls_text_put(options.arch, sizeof options.arch, "resnet8");
    options.opt_level = LS_O2;
    f->trainer = calloc(1, sizeof *f->trainer);
    LS_ASSERT(f->trainer != NULL);
    host_trainer_open(f->trainer, &options);
    ls_step_state state = ls_amp_scale_start(128);
    LS_ASSERT(ls_amp_scale_write(&f->trainer->amp, &state) == LS_OK);
    LS_ASSERT(ls_checkpoint_save(f->trainer, 3, fuzz_path(f, "seed", path)) == LS_OK);
    LS_ASSERT(ls_pth_state_open(path, &file) == LS_OK);
    for (int plain = 0; plain < 2; plain++) {
        fuzz_path(f, "seed.pth", out);
        LS_ASSERT(ls_convert_write(path, file, out, plain == 1) == LS_OK);
        fuzz_add_seed_file(f, out);
    }
    ls_safetensors_close(file);
    for (int i = 0; i < 12; i++) {
        seed_small(f);
    }
}

static void read_pth(fuzz *f, const bytes *b)
{
    char path[PATH_BYTES], out[PATH_BYTES];
    ls_step_state state;
    int64_t step;
    ls_safetensors *file = NULL;
    fuzz_put_file(f, "file", b->at, b->count);
    fuzz_path(f, "file", path);
    if (fuzz_below(f, 4) == 0) {
        (void)ls_checkpoint_load(f->trainer, path, &state, &step);
        return;
    }
    if (fuzz_below(f, 8) == 0) {
        (void)ls_weights_load(f->trainer, path);
        return;
    }
    if (ls_pth_state_open(path, &file) == LS_OK) {
        volatile unsigned sum = 0;
        for (int i = 0; i < ls_safetensors_count(file); i++) {
            const ls_safetensors_entry *entry = ls_safetensors_at(file, i);
            for (int64_t k = 0; k < entry->bytes; k += 61) {
                sum += ((const unsigned char *)entry->data)[k];
            }
        }
        if (fuzz_below(f, 16) == 0) {
            const char *name = fuzz_below(f, 2) == 0 ? "out.safetensors" : "out.pth";
            (void)ls_convert_write(path, file, fuzz_path(f, name, out), fuzz_below(f, 2) == 0);
        }
        ls_safetensors_close(file);
    }
}

static void end_pth(fuzz *f)
{
    host_trainer_close(f->trainer);
    free(f->trainer);
}

const reader fuzz_pth_readers[] = {
    {"pth", seed_pth, make_pth, read_pth, end_pth},
    {"pth bytes", seed_pth, NULL, read_pth, end_pth},
    {0},
};
