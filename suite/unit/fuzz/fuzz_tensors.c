/* Files of tensors: any safetensors file, dumps judged as `lockstep judge` judges them, checkpoints
 * that a trainer resumes from. Headers are changed as JSON and as bytes, data by element. */
#include "fuzz.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/core/json.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "reference/files/safetensors.h"
#include "reference/oracle/dumpfile.h"
#include "reference/train/checkpoint/checkpoint.h"
#include "suite/commands/commands.h"
#include "suite/unit/reference/host_trainer.h"

enum { LENGTH_BYTES = 8 };

/* ---- mutation ------------------------------------------------------------------------------- */

static uint64_t get_length(const bytes *b)
{
    uint64_t length = 0;
    memcpy(&length, b->at, b->count < LENGTH_BYTES ? 0 : LENGTH_BYTES);
    return length;
}

static cJSON *any_member(fuzz *f, cJSON *object)
{
    int count = cJSON_GetArraySize(object);
    return count == 0 ? NULL : cJSON_GetArrayItem(object, (int)fuzz_below(f, (size_t)count));
}

static void rename_member(fuzz *f, cJSON *header, cJSON *item)
{
    static const char *const names[] = {
        "next/zzz",
        "grad/zzz",
        "param/",
        "local/fc.bias",
        "branch/000",
        "branch/999",
        "input",
        "target",
        "logits",
        "loss",
        "__metadata__",
        "param/fc.bias",
        "master/fc.bias",
        "data/step",
        "scaler/loss_scale",
        "rank1/buffer/bn1.running_mean",
        "rank99999999999/x",
        "state/fc.bias/momentum_buffer",
        "ddp/layout",
        "",
    };
    const char *other = any_member(f, header)->string; /* twice the same name */
    const char *name =
        fuzz_below(f, 3) == 0 ? other : names[fuzz_below(f, sizeof names / sizeof *names)];
    char *copy = strdup(name);
    LS_ASSERT(copy != NULL);
    free(item->string);
    item->string = copy;
}

static void change_type(fuzz *f, cJSON *item)
{
    static const char *const types[] = {"F64", "F32",  "F16",     "BF16", "I64", "I32",
                                        "U8",  "BOOL", "F8_E4M3", "f32",  ""};
    cJSON_DeleteItemFromObjectCaseSensitive(item, "dtype");
    cJSON_AddStringToObject(item, "dtype", types[fuzz_below(f, sizeof types / sizeof *types)]);
}

/* A dimension or an offset changes, is added, removed or exchanged with its neighbour. */
static void change_numbers(fuzz *f, cJSON *list)
{
    cJSON *one = any_member(f, list);
    if (!cJSON_IsArray(list)) {
        return;
    }
    switch (fuzz_below(f, 5)) {
    case 0:
        cJSON_AddItemToArray(list, cJSON_CreateNumber(fuzz_number(f)));
        break;
    case 1:
        cJSON_Delete(one == NULL ? NULL : cJSON_DetachItemViaPointer(list, one));
        break;
    case 2:
        if (one != NULL && one->next != NULL) {
            cJSON_InsertItemInArray(list, 0, cJSON_DetachItemViaPointer(list, one->next));
        }
        break;
    case 3:
        if (one != NULL) {
            cJSON_SetNumberValue(one, one->valuedouble + (fuzz_below(f, 2) == 0 ? 1 : -1));
        }
        break;
    default:
        if (one != NULL) {
            cJSON_SetNumberValue(one, fuzz_number(f));
        }
    }
}

static void change_metadata(fuzz *f, cJSON *header)
{
    static const char *const names[] = {
        "step",         "opt_level", "world_size",      "rank",          "lr",
        "loss_scale",   "skipped",   "optimizer",       "momentum",      "weight_decay",
        "accumulate",   "dialect",   "sync_bn",         "sync_bn_group", "predivide",
        "betas",        "eps",       "optimizer_steps", "arch",          "half",
        "reduced_type", "average",   "nesterov",        "trust",         "max_grad_norm",
        "format",       "options",   "settled",         "bucket_rule"};
    static const char *const words[] = {"0",    "1",    "2",     "3",    "O0",   "O2",      "O9",
                                        "sgd",  "adam", "adamw", "lamb", "lars", "torch",   "apex",
                                        "fp16", "bf16", "fp32",  "true", "pre",  "resnet8", ""};
    cJSON *metadata = cJSON_GetObjectItemCaseSensitive(header, "__metadata__");
    const char *name = names[fuzz_below(f, sizeof names / sizeof *names)];
    const char *word =
        fuzz_below(f, 2) == 0 ? fuzz_word(f) : words[fuzz_below(f, sizeof words / sizeof *words)];
    cJSON_DeleteItemFromObjectCaseSensitive(metadata, name);
    if (metadata != NULL && fuzz_below(f, 4) != 0) {
        cJSON_AddStringToObject(metadata, name, word);
    }
}

/* All tensors of a group, as of a subject that does not provide it. */
static void drop_group(cJSON *header, const char *group)
{
    for (cJSON *item = header->child, *next; item != NULL; item = next) {
        next = item->next;
        if (strncmp(item->string, group, strlen(group)) == 0) {
            cJSON_Delete(cJSON_DetachItemViaPointer(header, item));
        }
    }
}

static const char *any_group(fuzz *f)
{
    static const char *const groups[] = {"branch/",     "local/",  "next/", "state/",
                                         "next_state/", "buffer/", "grad/", "last_buffer/"};
    return groups[fuzz_below(f, sizeof groups / sizeof *groups)];
}

static void nest(fuzz *f, cJSON *header)
{
    cJSON *inner = cJSON_CreateArray();
    for (size_t depth = fuzz_below(f, 2000); depth > 0; depth--) {
        cJSON *outer = cJSON_CreateArray();
        cJSON_AddItemToArray(outer, inner);
        inner = outer;
    }
    cJSON_AddItemToObject(header, "nested", inner);
}

static void change_header(fuzz *f, cJSON *header)
{
    cJSON *item = any_member(f, header);
    if (item == NULL) {
        return;
    }
    switch (fuzz_below(f, 8)) {
    case 0:
        cJSON_Delete(cJSON_DetachItemViaPointer(header, item));
        break;
    case 1:
        rename_member(f, header, item);
        break;
    case 2:
        change_type(f, item);
        break;
    case 3:
        change_numbers(f, cJSON_GetObjectItemCaseSensitive(item, "shape"));
        break;
    case 4:
        change_numbers(f, cJSON_GetObjectItemCaseSensitive(item, "data_offsets"));
        break;
    case 5: { /* another tensor's name with this one's data */
        cJSON *other = any_member(f, header);
        char *name = item->string;
        item->string = other->string;
        other->string = name;
        break;
    }
    case 6:
        if (fuzz_below(f, 8) == 0) {
            nest(f, header);
        } else {
            drop_group(header, any_group(f));
        }
        break;
    default:
        change_metadata(f, header);
    }
}

/* One element of a tensor becomes a number that no training makes. */
static void change_element(fuzz *f, bytes *b, cJSON *header, uint64_t start)
{
    static const double values[] = {NAN, INFINITY, -INFINITY, 0, -1, 1e38, 1e-40};
    static const int64_t wholes[] = {-1, 1 << 20, INT64_MAX, INT64_MIN, 10};
    const cJSON *item = any_member(f, header);
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    double from =
        cJSON_GetArraySize(offsets) == 2 ? cJSON_GetArrayItem(offsets, 0)->valuedouble : -1;
    if (!(from >= 0 && from < (double)(b->count - start))) {
        return;
    }
    bool whole = strcmp(ls_json_string(item, "dtype", ""), "I64") == 0;
    float value = (float)values[fuzz_below(f, sizeof values / sizeof *values)];
    int64_t number = wholes[fuzz_below(f, sizeof wholes / sizeof *wholes)];
    size_t at = (size_t)start + (size_t)from, bytes = whole ? sizeof number : sizeof value;
    if (at + bytes <= b->count) {
        memcpy(b->at + at, whole ? (void *)&number : (void *)&value, bytes);
    }
}

/* Puts the header in front of the data that begins at `start`, aligned by blanks as before. */
static void put_header(bytes *b, uint64_t start, const cJSON *header)
{
    char *text = cJSON_PrintUnformatted(header);
    uint64_t used = text == NULL ? 0 : strlen(text), data = b->count - start;
    uint64_t length = used + (start - used) % LENGTH_BYTES;
    if (text != NULL && LENGTH_BYTES + length + data <= INPUT_BYTES_MAX) {
        memmove(b->at + LENGTH_BYTES + length, b->at + start, data);
        memcpy(b->at, &length, LENGTH_BYTES);
        memset(b->at + LENGTH_BYTES, ' ', length);
        memcpy(b->at + LENGTH_BYTES, text, used);
        b->count = LENGTH_BYTES + length + data;
    }
    free(text);
}

static void mutate_tensors(fuzz *f, bytes *b)
{
    uint64_t length = get_length(b), start = LENGTH_BYTES + length;
    size_t kind = fuzz_below(f, 4);
    if (kind == 0) {
        for (size_t left = 1 + fuzz_below(f, 4); left > 0; left--) {
            fuzz_mutate(f, b, (size_t)start);
        }
        return;
    }
    cJSON *header = cJSON_ParseWithLength((const char *)b->at + LENGTH_BYTES, (size_t)length);
    LS_ASSERT(header != NULL);
    for (size_t left = kind == 3 ? 0 : 1 + fuzz_below(f, 3); left > 0; left--) {
        change_header(f, header);
    }
    for (size_t left = fuzz_below(f, 3); left > 0; left--) {
        change_element(f, b, header, start);
    }
    put_header(b, start, header);
    cJSON_Delete(header);
    if (fuzz_below(f, 32) == 0) {
        fuzz_mutate(f, b, b->count);
    }
    b->at[b->count] = '\0';
}

static void copy_seed(fuzz *f, int which, bytes *b)
{
    b->count = f->seed[which].count;
    memcpy(b->at, f->seed[which].at, b->count + 1);
}

static void make_tensors(fuzz *f, bytes *b)
{
    copy_seed(f, (int)fuzz_below(f, (size_t)f->seeds), b);
    mutate_tensors(f, b);
}

/* ---- any file ------------------------------------------------------------------------------- */

static void seed_safetensors(fuzz *f)
{
    char path[PATH_BYTES];
    float values[12] = {1, 2, 3};
    int64_t classes[3] = {0, 1, 2};
    fuzz_path(f, "seed", path);
    for (int kind = 0; kind < 2; kind++) {
        ls_safetensors_writer *writer = NULL;
        LS_ASSERT(ls_safetensors_create(path, &writer) == LS_OK);
        ls_safetensors_metadata(writer, "step", "%d", 3);
        ls_shape shape = {.rank = 2, .dim = {3, 4}}, flat = {.rank = 1, .dim = {3}};
        ls_safetensors_add(writer, "param/conv1.weight", LS_F32, &shape, values);
        if (kind == 1) {
            ls_safetensors_add(writer, "target", LS_I64, &flat, classes);
        }
        LS_ASSERT(ls_safetensors_finish(writer) == LS_OK);
        fuzz_add_seed_file(f, path);
    }
}

static void read_safetensors(fuzz *f, const bytes *b)
{
    char path[PATH_BYTES], text[64];
    fuzz_put_file(f, "file", b->at, b->count);
    fuzz_path(f, "file", path);
    ls_safetensors *file = NULL;
    volatile unsigned sum = 0;
    if (ls_safetensors_open(path, &file) == LS_OK) {
        for (int i = 0; i < ls_safetensors_count(file); i++) {
            const ls_safetensors_entry *entry = ls_safetensors_at(file, i);
            ls_safetensors_shape_text(&entry->shape, text, sizeof text);
            for (int64_t k = 0; k < entry->bytes; k++) {
                sum += ((const unsigned char *)entry->data)[k];
            }
        }
        sum += (unsigned)strlen(ls_safetensors_metadata_of(file, "step", ""));
        ls_safetensors_close(file);
    }
    ls_dumpfile *dump = NULL;
    if (ls_dumpfile_open(path, &dump) == LS_OK) {
        const ls_dumpfile_entry *entry = ls_dumpfile_find(dump, "param/conv1.weight");
        if (entry != NULL && entry->count <= 1024) {
            double value[1024];
            float single[1024];
            ls_dumpfile_read(entry, value);
            ls_dumpfile_read_f32(entry, single);
        }
        (void)ls_dumpfile_number(dump, "step", 0);
        ls_dumpfile_close(dump);
    }
}

/* ---- dumps ---------------------------------------------------------------------------------- */

enum { JOBS_MAX = SEEDS_MAX / 2 };

static const char *dump_name(int job, int rank, char name[64])
{
    ls_text_put(name, 64, "jobs/%d/dump/step000001.rank%d.safetensors", job, rank);
    return name;
}

static void put_events(const fuzz *f, int from, int job, int rank)
{
    char path[PATH_BYTES], name[64];
    ls_text_put(path, sizeof path, "%s/jobs/%d/rank%d.jsonl", f->recorded, from, rank);
    ls_text_put(name, sizeof name, "jobs/%d/rank%d.jsonl", job, rank);
    char *text = ls_text_read(path);
    LS_ASSERT(text != NULL);
    fuzz_put_file(f, name, text, strlen(text));
    free(text);
}

static void drop_branches(bytes *dump)
{
    uint64_t length = get_length(dump);
    cJSON *header = cJSON_ParseWithLength((char *)dump->at + LENGTH_BYTES, (size_t)length);
    drop_group(header, "branch/");
    put_header(dump, LENGTH_BYTES + length, header);
    cJSON_Delete(header);
}

/* Two ranks' dumps and events of every recorded job. */
static void seed_dumps(fuzz *f)
{
    char path[PATH_BYTES], name[64];
    LS_ASSERT(mkdir(fuzz_path(f, "jobs", path), 0700) == 0);
    for (int job = 0; job < JOBS_MAX; job++) {
        ls_text_put(path, sizeof path, "%s/jobs/%d", f->recorded, job);
        bool coarse = access(path, R_OK) != 0; /* after the last: job 0 without its branches */
        ls_text_put(name, sizeof name, "jobs/%d", job);
        LS_ASSERT(mkdir(fuzz_path(f, name, path), 0700) == 0);
        ls_text_put(name, sizeof name, "jobs/%d/dump", job);
        LS_ASSERT(mkdir(fuzz_path(f, name, path), 0700) == 0);
        for (int rank = 0; rank < 2; rank++) {
            bytes *seed = &f->seed[2 * job + rank];
            ls_text_put(path, sizeof path, "%s/%s", f->recorded,
                        dump_name(coarse ? 0 : job, rank, name));
            fuzz_add_seed_file(f, path);
            if (coarse) {
                drop_branches(seed);
            }
            put_events(f, coarse ? 0 : job, job, rank);
            fuzz_put_file(f, dump_name(job, rank, name), seed->at, seed->count);
        }
        if (coarse) {
            break;
        }
    }
}

/* The last dump that was changed is put back. */
static void make_dump(fuzz *f, bytes *b)
{
    char name[64];
    int old = 2 * f->job + f->rank, now = (int)fuzz_below(f, (size_t)f->seeds);
    fuzz_put_file(f, dump_name(f->job, f->rank, name), f->seed[old].at, f->seed[old].count);
    f->job = now / 2;
    f->rank = now % 2;
    copy_seed(f, now, b);
    mutate_tensors(f, b);
}

/* The oracle's results of all those inputs would fill the disk. */
static void drop_oracle_results(void)
{
    char folder[PATH_BYTES], path[PATH_BYTES + 256];
    ls_path_program(folder, sizeof folder);
    ls_text_add(folder, sizeof folder, "/oracle");
    DIR *entries = opendir(folder);
    for (struct dirent *e; entries != NULL && (e = readdir(entries)) != NULL;) {
        ls_text_put(path, sizeof path, "%s/%s", folder, e->d_name);
        (void)unlink(path);
    }
    if (entries != NULL) {
        closedir(entries);
    }
}

static void read_dump(fuzz *f, const bytes *b)
{
    char name[64], path[PATH_BYTES], *argument = path;
    fuzz_put_file(f, dump_name(f->job, f->rank, name), b->at, b->count);
    ls_text_put(name, sizeof name, "jobs/%d", f->job);
    fuzz_path(f, fuzz_below(f, 16) == 0 ? "." : name, path); /* all jobs, or one */
    (void)ls_judge_main(1, &argument);
    if (fuzz_below(f, 64) == 0) {
        drop_oracle_results();
    }
}

static void end_dumps(fuzz *f)
{
    (void)f;
    drop_oracle_results();
}

/* ---- checkpoints ---------------------------------------------------------------------------- */

static void seed_resume(fuzz *f)
{
    ls_options options;
    char path[PATH_BYTES];
    ls_options_defaults(&options);
    ls_text_put(options.arch, sizeof options.arch, "resnet8");
    options.opt_level = LS_O2;
    options.bucket_cap_mb = 0.05;
    f->trainer = calloc(1, sizeof *f->trainer);
    LS_ASSERT(f->trainer != NULL);
    host_trainer_open(f->trainer, &options);
    ls_step_state state = ls_amp_scale_start(128);
    LS_ASSERT(ls_amp_scale_write(&f->trainer->amp, &state) == LS_OK);
    LS_ASSERT(ls_checkpoint_save(f->trainer, 3, fuzz_path(f, "seed", path)) == LS_OK);
    fuzz_add_seed_file(f, path);
    for (int i = 1; i < 8;
         i++) { /* mostly without digests, which end the reading of what changed */
        copy_seed(f, 0, &f->seed[i]);
        f->seeds++;
        uint64_t start = LENGTH_BYTES + get_length(&f->seed[i]);
        cJSON *header = cJSON_ParseWithLength((const char *)f->seed[i].at + LENGTH_BYTES,
                                              (size_t)start - LENGTH_BYTES);
        cJSON *metadata = cJSON_GetObjectItemCaseSensitive(header, "__metadata__");
        cJSON_DeleteItemFromObjectCaseSensitive(metadata, "xxh64_header");
        cJSON_DeleteItemFromObjectCaseSensitive(metadata, "xxh64_tensors");
        put_header(&f->seed[i], start, header);
        cJSON_Delete(header);
    }
}

static void read_resume(fuzz *f, const bytes *b)
{
    char path[PATH_BYTES];
    ls_step_state state;
    int64_t step;
    fuzz_put_file(f, "file", b->at, b->count);
    (void)ls_checkpoint_load(f->trainer, fuzz_path(f, "file", path), &state, &step);
}

static void end_resume(fuzz *f)
{
    host_trainer_close(f->trainer);
    free(f->trainer);
}

const reader fuzz_tensor_readers[] = {
    {"safetensors", seed_safetensors, make_tensors, read_safetensors, NULL},
    {"safetensors bytes", seed_safetensors, NULL, read_safetensors, NULL},
    {"dumps", seed_dumps, make_dump, read_dump, end_dumps},
    {"resume", seed_resume, make_tensors, read_resume, end_resume},
    {0},
};
