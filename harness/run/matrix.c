#include "matrix.h"

#include <math.h>
#include <string.h>

#include "kernels/core/digest.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"

ls_spec ls_matrix_spec(ls_role role)
{
    ls_spec spec = {0};
    spec.role = role;
    ls_text_put(spec.arch, sizeof spec.arch, "resnet20");
    spec.image_size = 16;
    spec.batch_size = 4;
    spec.num_classes = LS_SPEC_CLASSES;
    spec.level = 0;
    ls_text_put(spec.half, sizeof spec.half, "fp16");
    spec.world = 1;
    spec.nodes = 1;
    spec.bucket_mb = LS_BUCKET_OWN;
    ls_text_put(spec.dialect, sizeof spec.dialect, "apex");
    spec.accumulate = 1;
    spec.steps = 3;
    ls_text_put(spec.data, sizeof spec.data, "synthetic");
    spec.threads = role == LS_ROLE_EVIDENCE || role == LS_ROLE_REFERENCE ? 1 : 0;
    spec.deterministic = role == LS_ROLE_EVIDENCE || role == LS_ROLE_REFERENCE;
    spec.lr = 0.05;
    spec.kill_rank = -1;
    return spec;
}

ls_spec ls_matrix_sdc(const char *arch, int image_size, int batch_size, int ranks)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_SDC);
    ls_text_put(spec.arch, sizeof spec.arch, "%s", arch);
    spec.image_size = image_size;
    spec.batch_size = batch_size;
    spec.world = ranks;
    spec.level = 2;
    ls_text_put(spec.loss_scale, sizeof spec.loss_scale, "128");
    spec.lr = 0.01;
    spec.steps = 20;
    spec.deterministic = true;
    spec.wrap = LS_WRAP_EACH;
    ls_text_put(spec.extra, sizeof spec.extra, "--digest=param");
    return spec;
}

/* "25 MB", "delayed", "own rule". */
static void bucket_text(double bucket_mb, char *text)
{
    if (bucket_mb == LS_BUCKET_DELAYED) {
        ls_text_put(text, 24, "delayed");
    } else if (bucket_mb < 0) {
        ls_text_put(text, 24, "own rule");
    } else {
        ls_text_put(text, 24, "%g MB", bucket_mb);
    }
}

void ls_matrix_label(const ls_spec *spec, char *text)
{
    char bucket[24], level[24];
    bucket_text(spec->bucket_mb, bucket);
    if (spec->level < 0) {
        ls_text_put(level, sizeof level, "no level");
    } else if (strcmp(spec->half, "bf16") == 0 && spec->level > 0) {
        ls_text_put(level, sizeof level, "O%d bf16", spec->level);
    } else {
        ls_text_put(level, sizeof level, "O%d%s", spec->level, spec->fuse ? " fused" : "");
    }
    const char *rank_word = spec->world == 1 ? "rank" : "ranks";
    const char *extra = spec->sync_bn                          ? ", SyncBN"
                        : spec->role == LS_ROLE_NO_COMM        ? ", not reduced"
                        : spec->role == LS_ROLE_DDP_WORLD1     ? ", DDP"
                        : spec->role == LS_ROLE_STRONG_SCALING ? ", same total"
                        : spec->role == LS_ROLE_LOADER         ? ", from files"
                        : spec->role == LS_ROLE_UNFUSED        ? ", not fused"
                                                               : "";
    if (spec->role == LS_ROLE_CURVES) {
        ls_text_put(text, 64, "%d single runs, for their loss", spec->world);
        return;
    }
    if (spec->role == LS_ROLE_SDC) {
        ls_text_put(text, 64, "%d x the same alone, for the bits%s", spec->world,
                    spec->repeat > 0 ? ", again" : "");
        return;
    }
    if (spec->role == LS_ROLE_WAY) {
        ls_text_put(text, 64, "%s, %s, round %d", level, ls_spec_way_name(spec->way),
                    spec->repeat + 1);
        return;
    }
    if (spec->nodes > 1) {
        ls_text_put(text, 64, "%s, %d %s, %d %snodes, %s%s", level, spec->world, rank_word,
                    spec->nodes, spec->real_nodes ? "" : "sim. ", bucket, extra);
    } else {
        ls_text_put(text, 64, "%s, %d %s, %s%s", level, spec->world, rank_word, bucket, extra);
    }
}

/* The subject's options, still with placeholders. Beyond the required options of the subject
 * protocol only those are given that a factor needs, so that other trainers can be subjects. */
static void add_options(ls_words *list, const ls_spec *spec)
{
    ls_words_add(list, "-a");
    ls_words_add(list, "%s", spec->arch);
    ls_words_add(list, "--image-size=%d", spec->image_size);
    if (spec->batch_size > 0) {
        ls_words_add(list, "-b");
        ls_words_add(list, "%d", spec->batch_size);
    }
    ls_words_add(list, "--num-classes=%d", spec->num_classes);
    ls_words_add(list, "--steps=%d", spec->warmup_steps + spec->steps);
    if (spec->level >= 0) {
        ls_words_add(list, "--opt-level=O%d", spec->level);
    }
    if (strcmp(spec->half, "fp16") != 0) {
        ls_words_add(list, "--half=%s", spec->half);
    }
    if (spec->loss_scale[0] != '\0') {
        ls_words_add(list, "--loss-scale=%s", spec->loss_scale);
    }
    if (spec->bucket_mb > 0) {
        ls_words_add(list, "--bucket-cap-mb=%g", spec->bucket_mb);
    } else if (spec->bucket_mb == LS_BUCKET_DELAYED) {
        ls_words_add(list, "--delay-allreduce");
    }
    if (strcmp(spec->dialect, "apex") != 0) {
        ls_words_add(list, "--dialect=%s", spec->dialect);
    }
    if (spec->sync_bn) {
        ls_words_add(list, "--sync-bn");
    }
    if (spec->accumulate > 1) {
        ls_words_add(list, "--accumulate=%d", spec->accumulate);
    }
    ls_words_add(list, "--lr=%g", spec->lr);
    ls_words_add(list, "--data=%s", spec->data);
    ls_words_add(list, "--seed=%llu", (unsigned long long)spec->seed);
    if (spec->dump_steps[0] != '\0') {
        ls_words_add(list, "--dump-steps=%s", spec->dump_steps);
        if (spec->dump_all && spec->world > 1) {
            ls_words_add(list, "--dump-ranks=all");
        }
    }
    if (spec->engines) {
        ls_words_add(list, "--cudnn-benchmark");
        ls_words_add(list, "--engines={run}/engines.txt");
    }
    if (spec->fuse) {
        ls_words_add(list, "--fuse");
    }
    if (spec->resident > 0) {
        ls_words_add(list, "--resident=%d", spec->resident);
    }
    if (spec->deterministic) {
        ls_words_add(list, "--deterministic");
    }
    if (spec->threads > 0) {
        ls_words_add(list, "--threads=%d", spec->threads);
    }
    ls_words_split(list, spec->extra);
}

static uint64_t spec_digest(const ls_spec *spec)
{
    ls_words list = {0, 0, NULL};
    add_options(&list, spec);
    uint64_t digest = LS_DIGEST_START;
    for (int i = 0; i < list.count; i++) {
        digest = ls_digest_update(digest, list.word[i], strlen(list.word[i]) + 1);
    }
    ls_words_free(&list);
    if (spec->wrap == LS_WRAP_EACH) {
        digest = ls_digest_update(digest, spec->each, strlen(spec->each) + 1);
    }
    int rest[] = {spec->world,     spec->nodes,     (int)spec->wrap,
                  spec->kill_rank, spec->kill_step, spec->role == LS_ROLE_PHASES,
                  spec->repeat};
    digest = ls_digest_update(digest, rest, sizeof rest);
    if (spec->script != NULL) {
        digest = ls_digest_update(digest, spec->script, strlen(spec->script));
    }
    return spec->real_nodes ? ls_digest_update(digest, "real", 4) : digest;
}

ls_spec ls_matrix_first_step(const ls_spec *timed)
{
    ls_spec first = *timed;
    if (timed->resident > 0) {
        first.role = LS_ROLE_EVIDENCE;
        first.resident = first.warmup_steps = 0;
        first.steps = 1;
        first.sweep = 0;
        ls_text_put(first.dump_steps, sizeof first.dump_steps, "1");
        if (timed->followed && timed->world > 1) {
            ls_text_add(first.extra, sizeof first.extra, " --dump-ranks=branches");
        }
    }
    return first;
}

ls_spec ls_matrix_deterministic(const ls_spec *timed, int steps)
{
    ls_spec job = *timed;
    job.role = LS_ROLE_EVIDENCE;
    job.deterministic = true;
    job.engines = job.fuse = false; /* of a fused product nothing is known about its bits */
    job.resident = job.warmup_steps = 0;
    job.steps = steps;
    job.sweep = 0;
    job.dump_steps[0] = '\0';
    return job;
}

static int audited_steps(const ls_spec *spec)
{
    return spec->steps < LS_MATRIX_AUDITED_TWICE ? 1 : 2;
}

ls_matrix_audit ls_matrix_audit_of(const ls_spec *spec)
{
    uint64_t digest = spec_digest(spec);
    return (ls_matrix_audit){.seed = (uint32_t)(digest ^ (digest >> 32)),
                             .every = spec->steps / audited_steps(spec),
                             .from = spec->warmup_steps + 1};
}

void ls_matrix_id(const ls_spec *spec, char *text)
{
    char bucket[32], nodes[16] = "", level[16] = "o";
    if (spec->bucket_mb == LS_BUCKET_DELAYED) {
        ls_text_put(bucket, sizeof bucket, "delay");
    } else if (spec->bucket_mb < 0) {
        ls_text_put(bucket, sizeof bucket, "own");
    } else {
        ls_text_put(bucket, sizeof bucket, "b%gmb", spec->bucket_mb);
    }
    if (spec->nodes > 1) {
        ls_text_put(nodes, sizeof nodes, ".n%d", spec->nodes);
    }
    if (spec->level >= 0) {
        ls_text_put(level, sizeof level, "o%d", spec->level);
    }
    uint64_t digest = spec_digest(spec);
    ls_text_put(text, 96, "%.10s.%s.w%d%s.%.16s%s.s%d-%08x", spec->arch, level, spec->world, nodes,
                bucket, spec->sync_bn ? ".sync" : "", spec->warmup_steps + spec->steps,
                (unsigned)(digest ^ (digest >> 32)));
}

/* ---- from a spec to a job -------------------------------------------------------------------- */

/* Replaces {self}, {run}, {job:ID} and {bin} by folders; malloc'ed. A shell script gets them as
 * variables, because a folder's name may hold what a shell interprets; with an empty IFS, $NAME is
 * not split at its blanks. */
static char *fill_in(const char *word, const char *self, const char *run, bool script)
{
    char bin[1024], *text = NULL;
    size_t bytes;
    ls_path_program(bin, sizeof bin);
    const struct place {
        const char *mark, *name, *folder;
    } place[] = {{"{self}", "self", self},
                 {"{run}", "run", run},
                 {"{bin}", "bin", bin},
                 {"{job:", "run", run}};
    enum { PLACES = sizeof place / sizeof *place };
    FILE *out = open_memstream(&text, &bytes);
    LS_MEMORY(out != NULL);
    fputs(script ? "IFS=; " : "", out);
    for (int i = 0; script && i < PLACES; i++) {
        if (strstr(word, place[i].mark) != NULL) {
            char *folder = ls_words_quoted(place[i].folder);
            fprintf(out, "%s=%s; ", place[i].name, folder);
            free(folder);
        }
    }
    while (*word != '\0') {
        int i = 0;
        while (i < PLACES && strncmp(word, place[i].mark, strlen(place[i].mark)) != 0) {
            i++;
        }
        if (i == PLACES) {
            fputc(*word++, out);
            continue;
        }
        fprintf(out, script ? "\"$%s\"" : "%s", script ? place[i].name : place[i].folder);
        word += strlen(place[i].mark);
        if (i == PLACES - 1) {
            int length = (int)strcspn(word, "}");
            fprintf(out, "/jobs/%.*s", length, word);
            word += length + (word[length] == '}');
        }
    }
    LS_ASSERT(fclose(out) == 0);
    return text;
}

/* A shell for each rank. It gives the rank's run a folder of its own and, if there are `devices`,
 * one of them, links its events to the file that the harness reads for this rank, and execs the
 * trainer with the rank's options from `each`. */
static void add_each(ls_words *list, const ls_spec *spec, int devices)
{
    char script[2048] = "";
    if (devices > 0) { /* one of the visible devices */
        ls_text_put(script, sizeof script,
                    "g=$((RANK %% %d)); v=${CUDA_VISIBLE_DEVICES:-}; "
                    "[ -z \"$v\" ] || g=$(echo \"$v\" | cut -d, -f$((g + 1))); "
                    "CUDA_VISIBLE_DEVICES=$g; export CUDA_VISIBLE_DEVICES; ",
                    devices);
    }
    ls_text_add(script, sizeof script, "%s",
                "k=$RANK; mkdir -p \"$LS_RUN_DIR/run$k\" && "
                "ln -sf \"run$k/rank0.jsonl\" \"$LS_RUN_DIR/rank$k.jsonl\" || exit 3; "
                "LS_RUN_DIR=$LS_RUN_DIR/run$k; export LS_RUN_DIR; unset RANK WORLD_SIZE "
                "LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT; case $k in");
    char each[sizeof spec->each], *rest = NULL;
    ls_text_put(each, sizeof each, "%s", spec->each);
    int rank = 0;
    for (char *own = strtok_r(each, "|", &rest); own != NULL; own = strtok_r(NULL, "|", &rest)) {
        ls_text_add(script, sizeof script, " %d) set -- \"$@\" %s ;;", rank++, own);
    }
    ls_text_add(script, sizeof script, " esac; exec \"$0\" \"$@\"");
    ls_words_add(list, "sh");
    ls_words_add(list, "-c");
    ls_words_add(list, "%s", script);
}

static void add_subject(ls_words *list, const ls_spec *spec, const char *subject, int devices)
{
    if (spec->wrap == LS_WRAP_ALONE) {
        ls_words_split(list,
                       "env -u RANK -u WORLD_SIZE -u LOCAL_RANK -u LOCAL_WORLD_SIZE -u GROUP_RANK "
                       "-u MASTER_ADDR -u MASTER_PORT");
    } else if (spec->wrap == LS_WRAP_EACH) {
        add_each(list, spec, devices);
    } else if (spec->wrap == LS_WRAP_KILL) {
        /* The shell execs the trainer, whose pid stays $$; a loop in the background reads the
         * rank's events and kills it at that step. */
        ls_words_add(list, "sh");
        ls_words_add(list, "-c");
        ls_words_add(
            list,
            "if [ \"$RANK\" = %d ]; then (while kill -0 $$; do grep -q '\"step\": *%d,' "
            "\"$LS_RUN_DIR/rank%d.jsonl\" && kill -9 $$; sleep 0.05; done) >/dev/null 2>&1 & fi; "
            "exec \"$0\" \"$@\"",
            spec->kill_rank, spec->kill_step, spec->kill_rank);
    } else if (spec->wrap == LS_WRAP_SHELL) {
        ls_words_add(list, "sh");
        ls_words_add(list, "-c");
        ls_words_add(list, "%s", spec->script);
    }
    if (subject != NULL) {
        ls_words_split(list, subject);
        return;
    }
    char path[1024];
    ls_path_program(path, sizeof path);
    ls_words_add(list, "%s/lockstep-train", path);
}

static cJSON *job_facts(const ls_spec *spec, const ls_matrix_site *site)
{
    cJSON *facts = ls_spec_facts(spec);
    if (spec->nodes > 1 && !spec->real_nodes && site->net != NULL) {
        cJSON_AddStringToObject(facts, "link", site->net->text);
    }
    int machines = spec->real_nodes ? spec->nodes : 1;
    double most = site->devices > 0 ? site->devices : site->cores;
    bool crowded = site->oversubscribed || spec->world / machines > most;
    cJSON_AddBoolToObject(facts, "oversubscribed", crowded);
    cJSON_AddBoolToObject(facts, "half_emulated", site->half_emulated && spec->level > 0);
    return facts;
}

bool ls_matrix_is_row(const ls_spec *spec)
{
    return spec->role == LS_ROLE_THROUGHPUT || spec->role == LS_ROLE_PHASES;
}

/* ---- the estimate -------------------------------------------------------------------------- */

/* Forward multiply-adds of one image at the reference size, in 10^9, and parameters in 10^6
 * (torchvision's documentation; He et al. 2015, table 6 for the CIFAR networks). */
static const struct network {
    const char *name;
    int image_size;
    double gmacs, params_m;
} network[] = {
    {"resnet18", 224, 1.81, 11.7},  {"resnet34", 224, 3.66, 21.8},   {"resnet50", 224, 4.09, 25.6},
    {"resnet101", 224, 7.80, 44.5}, {"resnet152", 224, 11.51, 60.2}, {"resnet8", 32, 0.0125, 0.08},
    {"resnet20", 32, 0.041, 0.27},  {"resnet32", 32, 0.069, 0.46},   {"resnet44", 32, 0.098, 0.66},
    {"resnet56", 32, 0.126, 0.85},  {"resnet110", 32, 0.255, 1.7},
};

static const struct network *find_network(const char *arch)
{
    for (size_t i = 0; i < sizeof network / sizeof *network; i++) {
        if (strcmp(network[i].name, arch) == 0) {
            return &network[i];
        }
    }
    return &network[2];
}

/* Multiply-adds of the forward pass of one image, in 10^9, approximately. */
static double gmacs(const char *arch, int image_size)
{
    const struct network *found = find_network(arch);
    double ratio = (double)image_size / found->image_size;
    return found->gmacs * ratio * ratio;
}

/* Rates of a data-centre GPU of 2023 as papers and vendors give them: not measured by us. */
static double gpu_steps_s(const ls_spec *spec)
{
    const double gflop_per_s = spec->level > 0 ? 100e3 : 20e3; /* whole training step */
    const double launch_s = 0.01, audit_s = 1, dump_s = 5;
    int ranks = spec->real_nodes ? spec->world / spec->nodes : spec->world;
    double turns = ceil(ranks / (double)spec->gpus);
    double gflop =
        (double)spec->batch_size * spec->accumulate * gmacs(spec->arch, spec->image_size) * 6;
    double step_s = turns * (gflop / gflop_per_s + launch_s);
    double audits_s = ls_spec_is_timed(spec) ? audited_steps(spec) * audit_s : 0;
    return (spec->warmup_steps + spec->steps) * step_s + audits_s +
           (spec->dump_steps[0] == '\0' ? 0 : dump_s);
}

/* Without the start. *cores_used: the cores that it uses. */
static double estimate_steps_s(const ls_spec *spec, double cores, double *cores_used)
{
    /* Fitted on 2 Zen 5 cores; fit_steps (matrix_bench.c) depends on it. */
    const double core_gflop_per_s = 45; /* whole training step, f32 */
    /* half relative to f32: fp16 is emulated, bf16 often is not */
    const double half_cost = strcmp(spec->half, "bf16") == 0 ? 1 : 1.5;
    const double rank_gb_per_s = 0.35; /* reduction and update, per core in use */
    cores *= spec->real_nodes ? spec->nodes : 1;
    double used = spec->world < cores ? spec->world : cores;
    if (spec->world == 1 && spec->threads != 1) {
        used = cores;
    }
    double images = (double)spec->world * spec->batch_size * spec->accumulate;
    double gflop = images * gmacs(spec->arch, spec->image_size) * 6;
    double compute_s = gflop / (core_gflop_per_s * used) * (spec->level > 0 ? half_cost : 1);
    double gradient_gb = find_network(spec->arch)->params_m * 4e-3;
    double update_s = spec->world * gradient_gb / (rank_gb_per_s * used);
    double step_s = compute_s + update_s + 0.002 * spec->world;
    double dump_s = spec->dump_steps[0] == '\0' ? 0 : 0.2 + gradient_gb * 8;
    int steps = spec->wrap == LS_WRAP_KILL ? spec->kill_step : spec->warmup_steps + spec->steps;
    if (ls_spec_is_timed(spec) && spec->steps > 1) {
        steps += 2 * audited_steps(spec); /* an audit takes about as long as two steps */
    }
    *cores_used = used;
    return steps * step_s + dump_s;
}

double ls_matrix_estimate_s(const ls_spec *spec, double cores)
{
    const double start_s = 0.4, start_rank_s = 0.35; /* divided by the cores in use */
    const double start_gpu_s = 4; /* on an H200 2 to 3, and the first job of a kind times engines */
    double used;
    if (spec->gpus > 0) {
        return start_gpu_s + gpu_steps_s(spec);
    }
    double steps_s = estimate_steps_s(spec, cores, &used);
    return start_s + start_rank_s * spec->world / used + steps_s;
}

double ls_matrix_estimate_at(const ls_spec *spec, const ls_matrix_site *site)
{
    enum { ENDLESS = 10000 };                       /* steps of a job that something else ends */
    const double meet_rank_s = 0.03, ended_s = 3.0; /* the ranks' rendezvous; such a job */
    double used;
    if (site->start_s <= 0 || spec->gpus > 0) {
        return ls_matrix_estimate_s(spec, site->cores);
    }
    double steps_s = spec->steps < ENDLESS ? estimate_steps_s(spec, site->cores, &used) : ended_s;
    int ranks = spec->real_nodes ? spec->world / spec->nodes : spec->world;
    double turns = ranks > site->cores ? ranks / site->cores : 1;
    return site->start_s * turns + meet_rank_s * spec->world + steps_s;
}

/* ---- the job ------------------------------------------------------------------------------- */

ls_status ls_matrix_job(const ls_spec *spec, const ls_matrix_site *site, ls_job *out)
{
    memset(out, 0, sizeof *out);
    ls_matrix_id(spec, out->id);
    ls_matrix_label(spec, out->label);
    out->world = spec->world;
    out->local_nodes = spec->real_nodes ? 1 : spec->nodes;
    out->net = spec->nodes > 1 && !spec->real_nodes ? site->net : NULL;
    out->hosts = site->hosts;
    out->host_count = spec->real_nodes ? spec->nodes : 1;
    LS_ASSERT(!spec->real_nodes || site->hosts != NULL);
    out->threads = spec->threads;
    out->gpus = site->gpus;
    out->fork_server = site->fork_server;
    /* Whether many ranks compute what they should shows on one GPU, too; how fast they are does
     * not. */
    int machines = spec->real_nodes ? spec->nodes : 1;
    bool crowded = site->devices > 0 && spec->world > site->devices * machines;
    out->share_devices = site->share_devices || (crowded && !ls_spec_is_timed(spec));
    out->run_directory = site->run_directory;
    ls_text_put(out->directory, sizeof out->directory, "%s/jobs/%s", site->run_directory, out->id);
    double estimate_s = ls_matrix_estimate_s(spec, site->cores);
    /* Ten times the estimate: the deadline is to end jobs that hang, and the model is right within
     * a factor of two only for lockstep-train on an idle machine. Another trainer first loads a
     * framework, slowly on a busy machine. */
    double start_s = site->subject == NULL ? 60 : 240;
    out->limit_s = spec->limit_s > 0 ? spec->limit_s : start_s + 10 * estimate_s;
    /* The longest file of a small job is a dump of tens of MB; the kernel stops a subject that
     * writes without end long before the disk is full. */
    out->file_bytes_max = spec->role == LS_ROLE_EVIDENCE ? (int64_t)4 << 30 : 0;
    out->grace_s = spec->grace_s > 0 ? spec->grace_s : 5; /* protocol.md: --grace */
    ls_words list = {0, 0, NULL};
    add_subject(&list, spec, site->subject, site->devices);
    add_options(&list, spec);
    ls_words_add(&list, "--device=%s", site->device);
    if (strcmp(site->device, "cuda") == 0 && site->subject == NULL && ls_spec_is_timed(spec)) {
        /* a GPU that idles while the host computes digests is cooler and faster than one at work */
        ls_words_add(&list, "--digest-every=50");
    }
    if (site->subject == NULL && ls_spec_is_timed(spec) && !ls_spec_is_team(spec)) {
        ls_matrix_audit audit = ls_matrix_audit_of(spec);
        ls_words_add(&list, "--audit=%u:%d:%d", audit.seed, audit.every, audit.from);
    }
    for (int i = 0; i < list.count; i++) {
        /* after "sh -c" of a wrapper; a subject may itself begin with sh */
        bool script = i == 2 && spec->wrap != LS_WRAP_NONE && spec->wrap != LS_WRAP_ALONE;
        char *word = fill_in(list.word[i], out->directory, site->run_directory, script);
        ls_words_add(&out->command, "%s", word);
        free(word);
    }
    ls_words_free(&list);
    out->facts = job_facts(spec, site);
    return LS_OK;
}

/* ---- the list -------------------------------------------------------------------------------- */

int ls_matrix_add(ls_matrix *matrix, const ls_spec *spec)
{
    char id[96];
    ls_matrix_id(spec, id);
    for (int i = 0; i < matrix->count; i++) {
        if (strcmp(matrix->id[i], id) == 0) {
            matrix->spec[i].sweep |= spec->sweep;
            return i;
        }
    }
    int capacity = matrix->capacity;
    matrix->spec = ls_list_grow(matrix->spec, matrix->count, &capacity, sizeof *matrix->spec);
    matrix->id = ls_list_grow(matrix->id, matrix->count, &matrix->capacity, sizeof *matrix->id);
    matrix->spec[matrix->count] = *spec;
    memcpy(matrix->id[matrix->count], id, sizeof id);
    return matrix->count++;
}

void ls_matrix_free(ls_matrix *matrix)
{
    free(matrix->spec);
    free(matrix->id);
    memset(matrix, 0, sizeof *matrix);
}
