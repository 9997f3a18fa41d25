#include "rows.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "reference/files/safetensors.h"

/* Folders of batches: by micro-batches of a step for references of several worlds, by world for
 * those that follow a job. */
#define BATCHES "batches:{run}/batches/"
#define MICRO_FOLDER BATCHES "micro"
#define WORLD_FOLDER BATCHES "world"
#define PARTS_FOLDER BATCHES "parts" /* of the batch of one process, by their number */

void ls_timed_id(const ls_spec *spec, char *text)
{
    bool bf16 = spec->level > 0 && strcmp(spec->half, "bf16") == 0;
    ls_text_put(text, 64, "o%d%s.w%d", spec->level, bf16 ? ".bf16" : "", spec->world);
    if (spec->nodes > 1) {
        ls_text_add(text, 64, ".n%d", spec->nodes);
    }
    if (spec->bucket_mb == LS_BUCKET_DELAYED) {
        ls_text_add(text, 64, ".delay");
    } else if (spec->bucket_mb > 0) {
        ls_text_add(text, 64, ".b%gmb", spec->bucket_mb);
    }
    if (spec->role == LS_ROLE_DDP_WORLD1 || spec->role == LS_ROLE_STRONG_SCALING) {
        /* ids of cases are a contract: they keep the roles' names of schema 1 */
        ls_text_add(text, 64, spec->role == LS_ROLE_DDP_WORLD1 ? ".self" : ".strong");
    } else if (spec->role == LS_ROLE_WAY) {
        ls_text_add(text, 64, ".%s", ls_spec_way_name(spec->way));
        if (spec->repeat > 0) {
            ls_text_add(text, 64, ".round%d", spec->repeat + 1);
        }
    } else if (spec->role == LS_ROLE_NO_COMM || spec->role == LS_ROLE_LOADER ||
               spec->role == LS_ROLE_UNFUSED) {
        ls_text_add(text, 64, ".%s", ls_spec_role_name(spec->role));
    }
}

/* The reference needs nothing of the job, and one serves several worlds. */
static bool is_exact(const ls_spec *spec)
{
    return spec->role == LS_ROLE_THROUGHPUT && !spec->followed;
}

/* Worlds that are multiples of four share a job of four micro-batches a step, the others one of
 * one. */
static int micro_batches(int world)
{
    return world % 4 == 0 ? 4 : 1;
}

static bool same_job(const ls_spec *a, const ls_spec *b)
{
    return is_exact(a) && micro_batches(a->world) == micro_batches(b->world) &&
           a->threads == b->threads;
}

/* Steps of `world` in the job, and those of the smaller worlds before it. */
static int steps_before(const ls_matrix *bench, const ls_spec *spec, int world)
{
    int steps = 0;
    for (int smaller = 1; smaller < world; smaller++) {
        bool there = false;
        for (int i = 0; i < bench->count; i++) {
            there = there || (bench->spec[i].world == smaller && same_job(&bench->spec[i], spec));
        }
        steps += there ? smaller / micro_batches(smaller) : 0;
    }
    return steps;
}

static int largest_world(const ls_matrix *bench, const ls_spec *spec)
{
    int largest = 0;
    for (int i = 0; i < bench->count; i++) {
        if (same_job(&bench->spec[i], spec) && bench->spec[i].world > largest) {
            largest = bench->spec[i].world;
        }
    }
    return largest;
}

/* FP32 in one process that never moves: `accumulate` micro-batches a step of what `spec` trains. */
static ls_spec reference_of(const ls_spec *spec, int accumulate)
{
    ls_spec reference = ls_matrix_spec(LS_ROLE_REFERENCE);
    ls_text_put(reference.arch, sizeof reference.arch, "%s", spec->arch);
    reference.image_size = spec->image_size;
    reference.batch_size = spec->batch_size;
    reference.num_classes = spec->num_classes;
    reference.accumulate = accumulate;
    reference.seed = spec->seed;
    reference.gpus = spec->gpus;
    reference.lr = 0;
    ls_text_put(reference.extra, sizeof reference.extra, "--weight-decay=0 --momentum=0");
    return reference;
}

void ls_timed_reference(const ls_spec *spec, ls_spec *reference, ls_timed_steps *steps)
{
    const ls_matrix *bench = steps->bench;
    int micro = micro_batches(spec->world), largest = largest_world(bench, spec);
    steps->first_step = 1 + steps_before(bench, spec, spec->world);
    steps->count = spec->world / micro;
    *reference = reference_of(spec, micro);
    reference->threads = 1; /* the timed ranks' own number where they share cores: equal forwards */
    reference->steps = steps_before(bench, spec, largest) + largest / micro;
    ls_text_put(reference->data, sizeof reference->data, MICRO_FOLDER "%d", micro);
    for (int step = 1; step <= reference->steps; step++) {
        ls_text_add(reference->dump_steps, sizeof reference->dump_steps, "%s%d",
                    step == 1 ? "" : ",", step);
    }
}

const ls_spec *ls_timed_leader(const ls_matrix *bench, const ls_spec *spec)
{
    for (int i = 0; i < bench->count; i++) {
        const ls_spec *other = &bench->spec[i];
        if (other->role == LS_ROLE_THROUGHPUT && other->level == spec->level &&
            other->world == spec->world && other->threads == spec->threads) {
            return other;
        }
    }
    return spec;
}

/* One step with the parameters and on the branches of step 1 of `leader`. */
static void follow(const ls_spec *leader, ls_spec *reference)
{
    char id[96];
    ls_matrix_id(leader, id);
    reference->threads = 0; /* branches are given, so that no bit hangs on them */
    reference->steps = 1;
    ls_text_add(reference->extra, sizeof reference->extra,
                " --init={job:%s}/dump/step000001.rank0.safetensors --force-branches={job:%s}/dump",
                id, id);
    ls_text_put(reference->dump_steps, sizeof reference->dump_steps, "1");
}

void ls_timed_followed(const ls_spec *leader, ls_spec *reference)
{
    bool parts = leader->parts > 0;
    *reference = reference_of(leader, parts ? leader->parts : leader->world);
    follow(leader, reference);
    reference->batch_size /= parts ? leader->parts : 1;
    ls_text_put(reference->data, sizeof reference->data, "%s%d",
                parts ? PARTS_FOLDER : WORLD_FOLDER, reference->accumulate);
}

typedef struct batch_file {
    float *input;    /* [A,N,3,H,W] */
    int64_t *target; /* [A,N] */
    int64_t images, pixels;
} batch_file;

ls_status ls_timed_loader(const ls_spec *spec, const char *run, int rank, int64_t step,
                          ls_loader **out)
{
    bool inside = strncmp(spec->data, "{run}", 5) == 0;
    LS_TEXT(data, 1024, "%s%s", inside ? run : "", spec->data + (inside ? 5 : 0));
    ls_loader_options options = {.data = data,
                                 .rank = rank,
                                 .world = spec->world,
                                 .batch_size = spec->batch_size,
                                 .image_size = spec->image_size,
                                 .num_classes = spec->num_classes,
                                 .accumulate = 1,
                                 .seed = spec->seed,
                                 .workers = 0,
                                 .first_step = step};
    return ls_loader_open(&options, out);
}

/* Micro-batch `slot` is what the rank draws in its first step. */
static ls_status draw(const ls_spec *spec, const char *run, int rank, int slot, batch_file *file)
{
    ls_loader *loader = NULL;
    LS_TRY(ls_timed_loader(spec, run, rank, 1, &loader));
    ls_loader_batch batch;
    ls_status status = ls_loader_next(loader, &batch);
    if (status == LS_OK) {
        memcpy(file->input + slot * file->pixels, batch.input,
               (size_t)file->pixels * sizeof(float));
        memcpy(file->target + slot * file->images, batch.target,
               (size_t)file->images * sizeof(int64_t));
    }
    ls_loader_close(loader);
    return status;
}

static ls_status save(const char *folder, int step, const ls_spec *spec, int micro,
                      const batch_file *file)
{
    LS_TEXT(path, 900, "%s/step%06d.rank0.safetensors", folder, step);
    ls_safetensors_writer *writer = NULL;
    LS_TRY(ls_safetensors_create(path, &writer));
    ls_shape input = {5, {micro, spec->batch_size, 3, spec->image_size, spec->image_size}};
    ls_shape target = {2, {micro, spec->batch_size}};
    if (micro == 1) {
        input = (ls_shape){4, {spec->batch_size, 3, spec->image_size, spec->image_size}};
        target = (ls_shape){1, {spec->batch_size}};
    }
    ls_safetensors_add(writer, "input", LS_F32, &input, file->input);
    ls_safetensors_add(writer, "target", LS_I64, &target, file->target);
    return ls_safetensors_finish(writer);
}

/* The first step of `timed`, `micro` micro-batches a file, the first of them step `step`; of a job
 * of one process the parts of its batch are the micro-batches of one file. */
static ls_status write_world(const ls_spec *timed, int micro, int step, const char *run,
                             const char *folder)
{
    int parts = timed->parts > 0 ? timed->parts : 1, drawn = timed->parts > 0 ? 1 : micro;
    ls_spec part = *timed;
    part.batch_size /= parts;
    batch_file file = {NULL, NULL, timed->batch_size, 0};
    file.pixels = file.images * 3 * timed->image_size * timed->image_size;
    file.input = malloc((size_t)(drawn * file.pixels) * sizeof(float));
    file.target = malloc((size_t)(drawn * file.images) * sizeof(int64_t));
    ls_status status = LS_OK;
    if (file.input == NULL || file.target == NULL) {
        status = ls_log_fail(LS_ERR_INFRA, "no memory for the reference's batches");
    }
    for (int rank = 0; rank < timed->world && status == LS_OK; rank++) {
        status = draw(timed, run, rank, rank % drawn, &file);
        if (status == LS_OK && rank % drawn == drawn - 1) {
            status = save(folder, step++, &part, micro, &file);
        }
    }
    free(file.input);
    free(file.target);
    return status;
}

/* Jobs of one world draw alike: the first of them that such a reference is for. */
static bool first_of_world(const ls_matrix *bench, int index, bool followed)
{
    const ls_spec *spec = &bench->spec[index];
    for (int j = 0; j < index; j++) {
        const ls_spec *other = &bench->spec[j];
        if (other->role == LS_ROLE_THROUGHPUT && is_exact(other) != followed &&
            other->world == spec->world) {
            return false;
        }
    }
    return spec->role == LS_ROLE_THROUGHPUT && is_exact(spec) != followed;
}

ls_status ls_timed_prepare(const ls_case *row, const ls_spec *reference, const char *run_directory)
{
    const ls_matrix *bench = ((const ls_timed_steps *)row->data)->bench;
    bool followed = strncmp(reference->data, WORLD_FOLDER, strlen(WORLD_FOLDER)) == 0;
    if (strncmp(reference->data, BATCHES, strlen(BATCHES)) != 0) {
        return LS_OK;
    }
    LS_TEXT(folder, 800, "%s/batches", run_directory);
    LS_TRY(ls_path_make_folder(folder));
    ls_text_put(folder, sizeof folder, "%s/batches/%s", run_directory,
                reference->data + strlen(BATCHES));
    LS_TEXT(done, 820, "%s/complete", folder);
    if (access(done, F_OK) == 0) {
        return LS_OK;
    }
    LS_TRY(ls_path_make_folder(folder));
    if (strncmp(reference->data, PARTS_FOLDER, strlen(PARTS_FOLDER)) == 0) {
        LS_TRY(write_world(&row->job[0], row->job[0].parts, 1, run_directory, folder));
        return ls_file_replace(done, "", 0);
    }
    for (int i = 0; i < bench->count; i++) {
        const ls_spec *spec = &bench->spec[i];
        int micro = followed ? spec->world : micro_batches(spec->world);
        if (first_of_world(bench, i, followed) && micro == reference->accumulate) {
            int step = followed ? 1 : 1 + steps_before(bench, spec, spec->world);
            LS_TRY(write_world(spec, micro, step, run_directory, folder));
        }
    }
    return ls_file_replace(done, "", 0);
}
