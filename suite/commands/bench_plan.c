#include "bench_internal.h"

#include <string.h>
#include <unistd.h>

#include "kernels/core/cores.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/list.h"
#include "reference/data/loader.h"
#include "reference/data/make.h"
#include "reference/model/model.h"
#include "reference/state/device.h"
#include "suite/run/headline.h"
#include "suite/run/run.h"
#include "suite/run/command_line.h"

static int usual_ranks(double cores)
{
    ls_machine_device device[LS_MACHINE_DEVICES_MAX];
    int devices = ls_machine_devices(ls_path_sysfs(), device);
    return ls_probe_usual_ranks(devices, cores);
}

static ls_status nodes_read(const ls_variables *given, ls_bench_nodes *nodes)
{
    ls_hosts *out = &nodes->hosts;
    const char *names = ls_variables_text(given, "NODES", NULL);
    const char *file = ls_variables_text(given, "HOSTFILE", NULL);
    out->count = 0;
    if (names == NULL && file == NULL) {
        bool alone = ls_variables_integer(given, "SIM_NODES", 2) < 2;
        const char *net = ls_variables_text(given, "SIM_NET", "0");
        if (alone && strcmp(net, "0") != 0) {
            return ls_log_fail(
                LS_ERR_USAGE, "SIM_NET=%s connects simulated nodes, and SIM_NODES=1 has none", net);
        }
        return LS_OK;
    }
    static const char *const simulated[] = {"SIM_NODES", "SIM_NET"};
    for (int i = 0; i < 2; i++) {
        const char *value = ls_variables_text(given, simulated[i], NULL);
        if (value != NULL && strcmp(value, i == 0 ? "1" : "0") != 0) {
            return ls_log_fail(
                LS_ERR_USAGE,
                "%s=%s simulates nodes on this machine, and %s names real ones: give only one",
                simulated[i], value, names != NULL ? "NODES" : "HOSTFILE");
        }
    }
    if (names != NULL && file != NULL) {
        return ls_log_fail(LS_ERR_USAGE, "NODES=%s and HOSTFILE=%s both name nodes: give only one",
                           names, file);
    }
    return ls_hosts_read(names, file, out);
}

static ls_status nodes_place(ls_bench_nodes *nodes, const ls_variables *given, ls_matrix_bench *m,
                             const char **device, int *devices)
{
    const char *wanted = ls_variables_text(given, "DEVICE", "auto");
    bool share = ls_variables_integer(given, "OVERSUBSCRIBE", 0) != 0;
    int ranks = ls_variables_integer(given, "NGPUS", 0);
    if (nodes->hosts.count == 0) {
        m->cores = ls_cores_usable();
        m->ranks = ranks > 0 ? ranks : usual_ranks(m->cores);
        m->hosts = 1;
        return ls_machine_choose_among(wanted, m->ranks, share, device, devices);
    }
    char folder[512];
    ls_command_absolute(ls_variables_text(given, "OUT", "results/runs"), folder, sizeof folder);
    LS_TRY(ls_hosts_ranks(&nodes->hosts, ranks, &ranks));
    nodes->probe = ls_list_make((size_t)nodes->hosts.count, sizeof *nodes->probe);
    ls_probe_question question = {
        .folder = folder, .device = wanted, .ranks = ranks, .oversubscribe = share};
    LS_TRY(ls_probe_hosts(&nodes->hosts, &question, nodes->probe));
    m->cores = nodes->probe[0].cores;
    ranks =
        ranks > 0 ? ranks : ls_probe_usual_ranks(nodes->probe[0].devices, nodes->probe[0].cores);
    m->hosts = nodes->hosts.count;
    m->ranks = ranks * m->hosts;
    *device = nodes->probe[0].device;
    *devices = strcmp(*device, "cuda") == 0 ? nodes->probe[0].devices : 0;
    return LS_OK;
}

static void nodes_use(const ls_bench_nodes *nodes, ls_case_list *cases)
{
    for (int c = 0; c < cases->count; c++) {
        ls_case *row = &cases->row[c];
        for (int j = 0; j < row->job_count; j++) {
            ls_spec *spec = &row->job[j];
            spec->real_nodes = spec->nodes > 1 && spec->nodes <= nodes->hosts.count;
        }
    }
}

static void nodes_describe(const ls_bench_nodes *nodes, const ls_matrix_bench *m,
                           const char *device, char *where)
{
    if (nodes->hosts.count == 0) {
        ls_command_where(device, m->ranks, where);
        return;
    }
    char names[64], cores[40] = "", number[32];
    ls_hosts_describe(&nodes->hosts, names, sizeof names);
    bool cpu = strcmp(device, "cpu") == 0;
    if (cpu) {
        ls_text_put(cores, sizeof cores, " of %s",
                    ls_cores_number(m->cores, number, sizeof number));
    }
    ls_text_put(where, 96, "%s: %d x %d ranks, %d %s%s (%.24s)%s", cpu ? "CPU" : "CUDA", m->hosts,
                m->ranks / m->hosts, m->hosts, m->hosts == 1 ? "node" : "nodes", cores, names,
                cpu ? ", no GPU was tested" : "");
}

static void nodes_record(const ls_bench_nodes *nodes, cJSON *options)
{
    cJSON *list = nodes->hosts.count == 0 ? NULL : cJSON_AddArrayToObject(options, "nodes");
    for (int k = 0; k < nodes->hosts.count; k++) {
        cJSON *one = ls_json_append_object(list);
        cJSON_AddStringToObject(one, "host", nodes->hosts.host[k].name);
        cJSON_AddStringToObject(one, "hostname", nodes->probe[k].hostname);
        cJSON_AddStringToObject(one, "cpu", nodes->probe[k].cpu);
        cJSON_AddNumberToObject(one, "cores", nodes->probe[k].cores);
        cJSON_AddNumberToObject(one, "devices", nodes->probe[k].devices);
        if (nodes->hosts.host[k].programs[0] != '\0') {
            cJSON_AddStringToObject(one, "programs", nodes->hosts.host[k].programs);
        }
    }
}

ls_status ls_bench_nodes_connect(ls_bench_nodes *nodes, const ls_variables *given, ls_run *run)
{
    int most = 1;
    for (int i = 0; i < run->jobs.count; i++) {
        const ls_spec *spec = &run->jobs.spec[i];
        most = !spec->real_nodes && spec->nodes > most ? spec->nodes : most;
    }
    const char *text = ls_variables_text(given, "SIM_NET", "0");
    ls_link link = {0, 0, true};
    if (strcmp(text, "0") == 0) {
        return LS_OK;
    }
    if (strcmp(text, "1") != 0 && !ls_simnet_link(text, &link)) {
        return ls_log_fail(LS_ERR_USAGE, "SIM_NET=%s: allowed: a rate above 0", text);
    }
    if (most < 2) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "SIM_NET=%s: no job of this run has simulated nodes (PROFILE=smoke has none; an "
            "even NGPUS or SIM_NODES makes some)",
            text);
    }
    LS_TRY(ls_simnet_open(most, &link, &nodes->net));
    run->site.net = &nodes->net;
    cJSON_AddStringToObject(run->options, "sim_net", nodes->net.text);
    ls_text_add(run->where, sizeof run->where, "; simulated nodes: %s", nodes->net.text);
    printf("simulated nodes have a network of their own: %s\n", nodes->net.text);
    return LS_OK;
}

static void nodes_free(ls_bench_nodes *nodes)
{
    if (nodes->net.nodes > 0) {
        ls_simnet_close(&nodes->net);
    }
    free(nodes->probe);
    nodes->probe = NULL;
}

/* ---- variables ------------------------------------------------------------------------------- */

/* ---- the request ----------------------------------------------------------------------------- */

/* What two sites compare under this name. A change of any setting, job or case of it is a new
 * number.
 */
#define RATED_VERSION "3"

static bool is_rated(const ls_variables *given)
{
    return strcmp(ls_variables_text(given, "PROFILE", ""), "rated") == 0;
}

/* The rated profile leaves open on how many ranks, and where the run is put; nothing else. */
static ls_status check_rated(const ls_variables *given)
{
    static const char *const open[] = {"PROFILE",  "NGPUS",   "OUT",        "LABEL", "RESUME",
                                       "BASELINE", "INSTALL", "FAIL_EARLY", "DRYRUN"};
    const cJSON *entry;
    ls_json_each(entry, given->value) {
        bool is_open = !is_rated(given);
        for (size_t i = 0; i < sizeof open / sizeof *open; i++) {
            is_open = is_open || strcmp(open[i], entry->string) == 0;
        }
        if (!is_open) {
            return ls_log_fail(LS_ERR_USAGE,
                               "%s=%s: PROFILE=rated fixes it; leave it out, or use PROFILE=full",
                               entry->string, entry->valuestring);
        }
    }
    return LS_OK;
}

/* A resumed run is asked for what it was asked for the first time. */
static ls_status take_over_variables(ls_variables *given)
{
    const char *folder = ls_variables_text(given, "RESUME", NULL);
    if (folder == NULL) {
        return LS_OK;
    }
    LS_TEXT(path, 700, "%s/run.json", folder);
    if (access(path, R_OK) != 0) {
        return ls_log_fail(LS_ERR_USAGE, "RESUME=%s is not a run's folder: it holds no run.json",
                           folder);
    }
    cJSON *root = NULL;
    LS_TRY(ls_json_read_file(path, &root));
    const cJSON *options = ls_json_get(root, "options");
    const cJSON *before = ls_json_get(options, "variables"), *entry;
    ls_status status = before == NULL ? LS_ERR_USAGE : LS_OK;
    if (before == NULL) {
        ls_log_error("RESUME=%s was not written by `lockstep bench`", folder);
    }
    ls_json_each(entry, given->value) {
        static const char *const free_ones[] = {"RESUME", "FAIL_EARLY", "DRYRUN", "INSTALL",
                                                "BASELINE"};
        bool free_one = false;
        for (size_t i = 0; i < sizeof free_ones / sizeof *free_ones; i++) {
            free_one = free_one || strcmp(free_ones[i], entry->string) == 0;
        }
        if (status == LS_OK && !free_one &&
            strcmp(ls_json_string(before, entry->string, ""), entry->valuestring) != 0) {
            status = ls_log_fail(LS_ERR_USAGE, "RESUME=%s was run with %s=%s; %s=%s is another run",
                                 folder, entry->string,
                                 ls_json_string(before, entry->string, "(nothing)"), entry->string,
                                 entry->valuestring);
        }
    }
    ls_json_each(entry, before) {
        if (ls_json_get(given->value, entry->string) == NULL) {
            cJSON_AddItemToObject(given->value, entry->string, cJSON_Duplicate(entry, true));
        }
    }
    cJSON_Delete(root);
    return status;
}

static ls_profile profile_of(const ls_variables *given)
{
    const char *name = ls_variables_text(given, "PROFILE", "quick");
    return strcmp(name, "smoke") == 0       ? LS_PROFILE_SMOKE
           : strcmp(name, "full") == 0      ? LS_PROFILE_FULL
           : strcmp(name, "rated") == 0     ? LS_PROFILE_RATED
           : strcmp(name, "baselines") == 0 ? LS_PROFILE_BASELINES
                                            : LS_PROFILE_QUICK;
}

/* A list is not cut, and nothing in it is run twice. */
static ls_status check_list(const ls_variables *given, const char *name, const double *number,
                            int count, int most)
{
    const char *text = ls_variables_text(given, name, "");
    if (count > most) {
        return ls_log_fail(LS_ERR_USAGE, "%s=%s: allowed: at most %d values", name, text, most);
    }
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < i; k++) {
            if (number[i] == number[k]) {
                return ls_log_fail(LS_ERR_USAGE, "%s=%s: allowed: each value once", name, text);
            }
        }
    }
    return LS_OK;
}

static ls_status fill_factors(const ls_variables *given, ls_matrix_bench *m)
{
    enum { LEVELS = 4, SIZES = LS_MATRIX_LIST_MAX - 1 };
    double number[LS_MATRIX_LIST_MAX];
    int count = ls_variables_numbers(given, "OPT_LEVELS", number, LEVELS);
    LS_TRY(check_list(given, "OPT_LEVELS", number, count, LEVELS));
    m->level_count = count > 0 ? count : 4;
    for (int i = 0; i < m->level_count; i++) {
        m->level[i] = count > 0 ? (int)number[i] : i;
    }
    count = ls_variables_numbers(given, "BUCKETS_MB", number, SIZES);
    LS_TRY(check_list(given, "BUCKETS_MB", number, count, SIZES));
    for (int i = 0; i < count; i++) {
        if (number[i] == 0) {
            return ls_log_fail(LS_ERR_USAGE, "BUCKETS_MB=%s: allowed: sizes above 0",
                               ls_variables_text(given, "BUCKETS_MB", ""));
        }
    }
    static const double usual[] = {1, 5, 25};
    m->bucket_count = count > 0 ? count : 3;
    memcpy(m->bucket_mb, count > 0 ? number : usual, (size_t)m->bucket_count * sizeof(double));
    if (count == 0) {
        m->bucket_mb[m->bucket_count++] = LS_BUCKET_DELAYED;
    }
    return LS_OK;
}

static ls_status fill_network(const ls_variables *given, ls_matrix_bench *m)
{
    enum { BATCH_MOST = 65536 }; /* the trainer's own */
    static const struct {
        const char *arch;
        int image_size, batch_size;
    } usual[] = {{"resnet18", 64, 8}, {"resnet50", 224, 256}, {"resnet20", 16, 4}};
    int i = !m->device ? 0 : !m->emulated ? 1 : 2;
    ls_text_put(m->arch, sizeof m->arch, "%s", ls_variables_text(given, "ARCH", usual[i].arch));
    m->image_size = usual[i].image_size;
    m->batch_size = ls_variables_integer(given, "BATCH", usual[i].batch_size);
    m->steps = ls_variables_integer(given, "STEPS", 0);
    if (m->batch_size > BATCH_MOST) {
        return ls_log_fail(LS_ERR_USAGE, "BATCH=%d: allowed: 1 to %d", m->batch_size, BATCH_MOST);
    }
    return ls_model_check(m->arch, LS_SPEC_CLASSES, m->image_size);
}

/* On a CPU the type that its units multiply, so that levels differ as they do on such a machine. */
static void choose_half(const ls_bench *b, const char *device, ls_matrix_bench *m)
{
    const char *half = ls_variables_text(&b->given, "HALF", NULL);
    bool chosen = half == NULL && strcmp(device, "cpu") == 0 && b->nodes.hosts.count == 0 &&
                  !is_rated(&b->given);
    if (chosen && ls_device_cpu_has(LS_BF16, false)) {
        half = "bf16";
    }
    ls_text_put(m->half, sizeof m->half, "%s", half != NULL ? half : "fp16");
}

/* Fused products sum in fp16 on a GPU, and only there is something to compare. */
static ls_status choose_fuse(const ls_bench *b, ls_matrix_bench *m)
{
    m->fuse = ls_variables_integer(&b->given, "FUSE", 0) != 0;
    if (m->fuse && !m->device) {
        return ls_log_fail(LS_ERR_USAGE,
                           "FUSE=1: allowed on a GPU only, and the ranks run on the CPU");
    }
    if (m->fuse && strcmp(m->half, "fp16") != 0) {
        return ls_log_fail(LS_ERR_USAGE, "FUSE=1: allowed with HALF=fp16, not %s", m->half);
    }
    return LS_OK;
}

static ls_status check_ranks(int ranks)
{
    if (ranks > LS_HOSTS_RANKS_MAX) {
        return ls_log_fail(LS_ERR_USAGE, "NGPUS=%d: allowed: 1 to %d", ranks, LS_HOSTS_RANKS_MAX);
    }
    return LS_OK;
}

static ls_status check_nodes(const ls_matrix_bench *m)
{
    if (m->ranks > LS_HOSTS_RANKS_MAX) {
        return ls_log_fail(LS_ERR_USAGE, "%d ranks on each of %d nodes, allowed: %d together",
                           m->ranks / m->hosts, m->hosts, LS_HOSTS_RANKS_MAX);
    }
    if (m->sim_nodes > 1 && m->ranks % m->sim_nodes != 0) {
        return ls_log_fail(LS_ERR_USAGE, "SIM_NODES=%d does not divide NGPUS=%d", m->sim_nodes,
                           m->ranks);
    }
    return LS_OK;
}

/* ---- data ------------------------------------------------------------------------------------ */

/* JPEG files, drawn by us, in a cache next to the program: {run}/data where that cannot be written,
 * or where the files go to nodes without this disk. */
static void choose_drawn(ls_bench *b, int steps)
{
    char program[1024];
    ls_path_program(program, sizeof program);
    int images = steps * b->matrix.ranks * b->matrix.batch_size;
    int per_class = (images > 400 ? images : 400) / LS_MAKE_CLASSES;
    bool kept = access(program, W_OK) == 0 && !ls_hosts_any_apart(&b->nodes.hosts);
    ls_text_put(b->drawn, sizeof b->drawn, "%.300s/data/shapes-%d-%d", kept ? program : "{run}",
                b->matrix.image_size, per_class * LS_MAKE_CLASSES);
}

/* On the CPU the ranks read real JPEG files. A GPU would wait for them, so that its timed jobs have
 * synthetic batches which stay there, and one job more reads files. */
static void choose_data(ls_bench *b)
{
    const char *given = ls_variables_text(&b->given, "DATA", NULL);
    if (given != NULL && strcmp(given, "synthetic") == 0) {
        ls_text_put(b->matrix.data, sizeof b->matrix.data, "synthetic");
        return;
    }
    if (given != NULL) {
        ls_command_absolute(given, b->matrix.data, sizeof b->matrix.data);
        return;
    }
    if (!b->matrix.device) {
        choose_drawn(b, 4);
        ls_text_put(b->matrix.data, sizeof b->matrix.data, "%s", b->drawn);
        return;
    }
    ls_text_put(b->matrix.data, sizeof b->matrix.data, "synthetic");
    if (b->matrix.profile != LS_PROFILE_SMOKE) {
        choose_drawn(b, 1);
        ls_text_put(b->matrix.files, sizeof b->matrix.files, "%s", b->drawn);
    }
}

/* A folder that cannot be trained on is refused before anything is written. The network has as many
 * classes as it. */
static ls_status check_data(ls_bench *b)
{
    b->matrix.num_classes = LS_SPEC_CLASSES;
    if (b->drawn[0] != '\0' || strcmp(b->matrix.data, "synthetic") == 0) {
        return LS_OK;
    }
    LS_TRY(ls_dataset_count_classes(b->matrix.data, &b->matrix.num_classes));
    LS_TRY(ls_model_check(b->matrix.arch, b->matrix.num_classes, b->matrix.image_size));
    ls_loader_options options = {.data = b->matrix.data,
                                 .rank = 0,
                                 .world = b->matrix.ranks,
                                 .batch_size = b->matrix.batch_size,
                                 .image_size = b->matrix.image_size,
                                 .num_classes = b->matrix.num_classes,
                                 .accumulate = 1,
                                 .seed = b->matrix.seed,
                                 .first_step = 1};
    ls_loader *loader = NULL;
    LS_TRY(ls_loader_open(&options, &loader));
    ls_loader_close(loader);
    return LS_OK;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static bool level_asked(const ls_matrix_bench *m, int level)
{
    for (int i = 0; i < m->level_count; i++) {
        if (m->level[i] == level) {
            return true;
        }
    }
    return level < 0;
}

static ls_status choose_cases(ls_bench *b)
{
    ls_case_settings settings = {.seed = b->matrix.seed,
                                 .device = b->run.site.device, /* cases of fused products */
                                 .bench = &b->run.bench};
    ls_case_list all = {0, 0, NULL};
    ls_cases_all(&settings, &all);
    /* smoke, quick, rated: a case of each kind that timed figures rest on; full: what `make check`
     * judges and gradients at every level, bucket size, world and node count. All of the suite is
     * `make conform`. */
    ls_profile profile = b->matrix.profile;
    const char *name = profile == LS_PROFILE_SMOKE  ? "suite/lists/smoke.txt"
                       : profile == LS_PROFILE_FULL ? "suite/lists/mustpass.txt"
                                                    : "suite/lists/quick.txt";
    ls_select_list wanted = {0, 0, NULL};
    char path[1024];
    if (!ls_path_find(name, path, sizeof path)) {
        return ls_log_fail(LS_ERR_INFRA, "%s was not found next to the program", name);
    }
    LS_TRY(ls_select_load(path, &wanted));
    ls_select_add(&wanted, "*.timed.*", "");
    ls_select_add(&wanted, "gradients.order.*", "");
    if (strcmp(b->matrix.half, "bf16") == 0) {
        ls_select_add(&wanted, "gradients.bf16.o[1-3].w3*", ""); /* delayed ones, too */
    }
    if (profile == LS_PROFILE_FULL) {
        ls_select_add(&wanted, "gradients.o[0-3].w*", "");
    }
    if (profile == LS_PROFILE_BASELINES) {
        ls_select_add(&wanted, "baselines.*", "");
        ls_select_add(&wanted, "gradients.torch.o[01].w3", "");
        ls_select_add(&wanted, "optim.adam.plain.o[01]", "");
    }
    if (b->matrix.fuse) {
        ls_select_add(&wanted, "gradients.fused.o[1-3].w*", "");
        ls_select_add(&wanted, "audit.fused.o[1-3]", "");
    }
    int kept = 0;
    for (int c = 0; c < all.count; c++) {
        const ls_case *row = &all.row[c];
        bool listed = ls_select_find(&wanted, row->id) != NULL;
        if (listed && level_asked(&b->matrix, row->job[0].level)) {
            all.row[kept++] = *row;
        }
    }
    all.count = kept;
    b->run.cases = all;
    ls_select_free(&wanted);
    ls_text_put(b->run.claim_name, sizeof b->run.claim_name, "all");
    LS_TRY(ls_select_claim("all", &b->run.claim));
    LS_TRY(ls_select_manners(&b->run.manners));
    return ls_select_waivers(&b->run.waivers);
}

/* ---- the phases ------------------------------------------------------------------------------ */

static void describe(ls_bench *b)
{
    ls_run *run = &b->run;
    const char *profile = ls_variables_text(&b->given, "PROFILE", "quick");
    ls_text_put(run->label, sizeof run->label, "%s",
                ls_variables_text(&b->given, "LABEL", profile));
    ls_text_put(run->title, sizeof run->title, "Lockstep bench, profile %s", profile);
    if (is_rated(&b->given)) {
        ls_text_put(run->title, sizeof run->title,
                    "Lockstep bench, rated %s: %s, %d pixels, batch %d per rank", RATED_VERSION,
                    b->matrix.arch, b->matrix.image_size, b->matrix.batch_size);
    }
    ls_words words = {0, 0, NULL};
    const cJSON *entry;
    ls_json_each(entry, b->given.value) {
        if (strcmp(entry->string, "RESUME") != 0 && strcmp(entry->string, "DRYRUN") != 0) {
            ls_words_add(&words, "%s=%s", entry->string, entry->valuestring);
        }
    }
    run->command = ls_command_line("bench", &words);
    ls_words_free(&words);
    run->options = cJSON_CreateObject();
    cJSON *variables = cJSON_Duplicate(b->given.value, true);
    cJSON_DeleteItemFromObjectCaseSensitive(variables, "RESUME");
    cJSON_AddItemToObject(run->options, "variables", variables);
    cJSON_AddStringToObject(run->options, "profile", profile);
    cJSON_AddNumberToObject(run->options, "ranks", b->matrix.ranks);
    cJSON_AddNumberToObject(run->options, "cores", b->matrix.cores);
    cJSON_AddStringToObject(run->options, "device", run->site.device);
    if (b->matrix.emulated) {
        cJSON_AddTrueToObject(run->options, "emulated");
    }
    cJSON_AddStringToObject(run->options, "arch", b->matrix.arch);
    cJSON_AddStringToObject(run->options, "half", b->matrix.half);
    if (b->matrix.fuse) {
        cJSON_AddTrueToObject(run->options, "fuse");
    }
    cJSON_AddNumberToObject(run->options, "image_size", b->matrix.image_size);
    cJSON_AddNumberToObject(run->options, "batch_size", b->matrix.batch_size);
    cJSON_AddStringToObject(run->options, "data", b->matrix.data);
    cJSON_AddNumberToObject(run->options, "num_classes", b->matrix.num_classes);
    nodes_record(&b->nodes, run->options);
}

static ls_status choose_folder(ls_bench *b)
{
    const char *resume = ls_variables_text(&b->given, "RESUME", NULL);
    if (resume != NULL) {
        char *real = realpath(resume, NULL);
        ls_text_put(b->run.directory, sizeof b->run.directory, "%s", real == NULL ? resume : real);
        free(real);
        return LS_OK;
    }
    return ls_command_run_folder(ls_variables_text(&b->given, "OUT", "results/runs"), b->run.label,
                                 b->run.directory, sizeof b->run.directory);
}

ls_status ls_bench_plan_make(ls_bench *b, int count, char **argument)
{
    memset(b, 0, sizeof *b);
    LS_TRY(ls_variables_parse(count, argument, &b->given));
    LS_TRY(take_over_variables(&b->given));
    LS_TRY(check_rated(&b->given));
    LS_TRY(nodes_read(&b->given, &b->nodes));
    b->dry_run = ls_variables_integer(&b->given, "DRYRUN", 0) != 0;
    ls_matrix_bench *m = &b->matrix;
    const char *device = NULL;
    bool share = ls_variables_integer(&b->given, "OVERSUBSCRIBE", 0) != 0;
    if (share) { /* for the ranks, also those on other machines */
        (void)setenv("LS_OVERSUBSCRIBE", "1", 1);
    }
    m->profile = profile_of(&b->given);
    m->seed = 7; /* any; written in run.json's commands */
    LS_TRY(fill_factors(&b->given, m));
    LS_TRY(check_ranks(ls_variables_integer(&b->given, "NGPUS", 1)));
    int devices = 0;
    LS_TRY(nodes_place(&b->nodes, &b->given, m, &device, &devices));
    m->gpus = devices;
    m->device = strcmp(device, "cpu") != 0;
    m->emulated = m->device && ls_machine_emulated();
    bool pairs = m->ranks % 2 == 0 && m->hosts == 1;
    m->sim_nodes = ls_variables_integer(&b->given, "SIM_NODES", pairs ? 2 : 1);
    LS_TRY(check_nodes(m));
    LS_TRY(fill_network(&b->given, m));
    choose_half(b, device, m);
    LS_TRY(choose_fuse(b, m));
    choose_data(b);
    LS_TRY(check_data(b));
    bool cpu = strcmp(device, "cpu") == 0;
    b->run.site = (ls_matrix_site){.device = device,
                                   .cores = m->cores,
                                   .hosts = b->nodes.hosts.count > 0 ? &b->nodes.hosts : NULL,
                                   .devices = devices,
                                   .share_devices = !cpu && share,
                                   .oversubscribed = m->emulated,
                                   .half_emulated = cpu};
    b->run.bench_run = true;
    b->run.seed = m->seed;
    b->run.fail_early = ls_variables_integer(&b->given, "FAIL_EARLY", 0) != 0;
    ls_text_put(b->run.baseline, sizeof b->run.baseline, "%s",
                ls_variables_text(&b->given, "BASELINE", ""));
    LS_TRY(ls_speed_check_baseline(b->run.baseline));
    if (m->profile == LS_PROFILE_BASELINES && (m->device || m->hosts > 1 || m->ranks < 2)) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "PROFILE=baselines: allowed on one machine's CPU with NGPUS of 2 and more");
    }
    nodes_describe(&b->nodes, m, device, b->run.where);
    if (ls_variables_text(&b->given, "DATA", NULL) != NULL && strcmp(m->data, "synthetic") != 0) {
        ls_text_add(b->run.where, sizeof b->run.where, "; pictures of %d classes", m->num_classes);
    }
    describe(b);
    LS_TRY(choose_folder(b));
    b->run.site.run_directory = b->run.directory;
    ls_words resume = {0, 0, NULL}; /* run.json has the other variables */
    ls_words_add(&resume, "RESUME=%s", b->run.directory);
    b->run.go_on = ls_command_go_on("bench", &resume);
    ls_words_free(&resume);
    ls_matrix_bench_jobs(m, &b->run.bench);
    LS_TRY(choose_cases(b));
    nodes_use(&b->nodes, &b->run.cases);
    const char *budget = ls_variables_text(&b->given, "BUDGET", NULL);
    if (budget != NULL) {
        LS_TRY(ls_budget_parse("BUDGET", budget, &b->run.budget_s));
        LS_TRY(ls_start_measure(&b->run.site));
        b->run.claim_cases = ls_select_count(&b->run.cases, &b->run.claim);
        ls_budget_choose(&b->run, "");
    }
    ls_runner_plan(&b->run);
    return LS_OK;
}
const char *ls_bench_plan_rated(const ls_bench *b)
{
    return is_rated(&b->given) ? RATED_VERSION : NULL;
}

void ls_bench_plan_free(ls_bench *b)
{
    ls_runner_free(&b->run);
    ls_variables_free(&b->given);
    nodes_free(&b->nodes);
}

bool ls_bench_plan_helped(const char *usage, int count, char **argument)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(argument[i], "--help") == 0) {
            printf("Usage: lockstep %s\n\n", usage);
            ls_variables_help();
            return true;
        }
    }
    return false;
}
