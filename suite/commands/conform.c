/* `lockstep conform`: the conformance cases, for a claim. */
#include "commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/cores.h"
#include "harness/hosts/supervise.h"
#include "kernels/core/digest.h"
#include "kernels/core/file.h"
#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "reference/state/device.h"
#include "suite/run/command_line.h"
#include "suite/run/run.h"
#include "kernels/core/path.h"

typedef struct conform {
    const char *seed, *claim, *subject, *out, *share, *device, *gate, *time;
    bool list, where, fail_early, resume, overwrite, by_observe, keep;
    ls_words given; /* the arguments */
    ls_select_list wanted, files;
    ls_budget budget;
    ls_run run;
} conform;

static ls_status parse(conform *c, int count, char **argument)
{
    memset(c, 0, sizeof *c);
    for (int i = 0; i < count; i++) { /* parsing moves them */
        ls_words_add(&c->given, "%s", argument[i]);
    }
    c->seed = "7";
    c->claim = "all";
    c->device = "auto";
    const ls_command_option options[] = {
        {"--case", NULL, NULL, &c->wanted, "cases by name or glob; may be repeated"},
        {"--list-file", NULL, NULL, &c->files,
         "cases by a file of globs, such as suite/lists/mustpass.txt"},
        {"--list", NULL, &c->list, NULL, "list the cases without running them"},
        {"--where", NULL, &c->where, NULL,
         "the same, with the requirement that each shows and the file that holds it"},
        {"--claim", &c->claim, NULL, NULL,
         "claim whose cases are run, and that they are judged for (all)"},
        {"--seed", &c->seed, NULL, NULL, "seed of every job (7)"},
        {"--subject", &c->subject, NULL, NULL, "command of another trainer (lockstep-train)"},
        {"--device", &c->device, NULL, NULL, "cpu, cuda or auto"},
        {"--out", &c->out, NULL, NULL, "the run's folder (results/runs/<time>-conform)"},
        {"--shard", &c->share, NULL, NULL, "i/n: the i-th of n shares, from 1"},
        {"--gate", &c->gate, NULL, NULL, "manners: they decide the exit code, too; none (none)"},
        {"--budget", &c->time, NULL, NULL,
         "time such as 90s, 10m, 1h: the cases that fit, most telling first"},
        {"--resume", NULL, &c->resume, NULL, "continue the interrupted run in --out"},
        {"--overwrite", NULL, &c->overwrite, NULL, "delete an interrupted run in --out"},
        {"--fail-early", NULL, &c->fail_early, NULL, "stop at the first failing case"},
        {"--by-observe", NULL, &c->by_observe, NULL,
         "judge the cases' jobs by the rules of `lockstep observe` instead"},
        {"--keep-dumps", NULL, &c->keep, NULL, "keep the dumps of jobs whose cases have passed"},
    };
    LS_TRY(
        ls_command_parse("conform", options, sizeof options / sizeof *options, &count, argument));
    LS_TRY(ls_command_no_operands("conform", count, argument, "use --case ID"));
    c->list = c->list || c->where;
    if (c->subject != NULL && c->subject[strspn(c->subject, " ")] == '\0') {
        return ls_log_fail(LS_ERR_USAGE, "--subject '%s': allowed: a command", c->subject);
    }
    c->run.gate_manners = c->gate != NULL && strcmp(c->gate, "manners") == 0;
    if (c->gate != NULL && !c->run.gate_manners && strcmp(c->gate, "none") != 0) {
        return ls_log_fail(LS_ERR_USAGE, "--gate '%s': allowed: manners, none", c->gate);
    }
    if (c->time != NULL) {
        LS_TRY(ls_budget_parse("--budget", c->time, &c->run.budget_s));
    }
    return ls_command_device(c->device);
}

/* Of the programs and engines next to this one, or in LS_LIB_DIR: a build. */
static void digest_programs(char *text, size_t bytes)
{
    static const char *const programs[] = {"lockstep", "lockstep-train", "lockstep-launch"};
    static const char *const engines[] = {"cpu",  "gloo",       "cuda",
                                          "nccl", "oracle_cpu", "oracle_cuda"};
    enum { PROGRAMS = sizeof programs / sizeof *programs };
    char folder[1024], path[1100];
    const char *engine_folder = getenv("LS_LIB_DIR");
    uint64_t digest = 0;
    ls_path_program(folder, sizeof folder);
    for (size_t i = 0; i < PROGRAMS + sizeof engines / sizeof *engines; i++) {
        if (i < PROGRAMS) {
            ls_text_put(path, sizeof path, "%s/%s", folder, programs[i]);
        } else if (engine_folder != NULL && engine_folder[0] != '\0') {
            ls_text_put(path, sizeof path, "%s/ls_%s.so", engine_folder, engines[i - PROGRAMS]);
        } else {
            ls_text_put(path, sizeof path, "%s/lib/ls_%s.so", folder, engines[i - PROGRAMS]);
        }
        ls_file_source file;
        char *data = NULL;
        size_t size = 0;
        if (ls_file_load(path, LS_FILE_TEXT_BYTES, &file, &data, &size) == LS_OK) {
            digest = ls_digest_xxh64(digest, data, size);
        }
        free(data);
    }
    ls_text_put(text, bytes, "%016llx", (unsigned long long)digest);
}

/* run.json's "selection": what `lockstep merge` needs, with all cases before they are shared. */
static void describe_shard(ls_run *run, int share, int shares)
{
    char programs[20];
    digest_programs(programs, sizeof programs);
    run->measured = cJSON_CreateObject();
    cJSON *selection = cJSON_AddObjectToObject(run->measured, "selection");
    cJSON_AddNumberToObject(selection, "shard", share + 1);
    cJSON_AddNumberToObject(selection, "shards", shares);
    cJSON_AddNumberToObject(selection, "claim_cases", run->claim_cases);
    cJSON_AddStringToObject(selection, "programs", programs);
    cJSON *cases = cJSON_AddArrayToObject(selection, "cases");
    cJSON *outside = cJSON_AddArrayToObject(selection, "outside");
    for (int i = 0; i < run->cases.count; i++) {
        const char *id = run->cases.row[i].id;
        bool claimed = ls_select_find(&run->claim, id) != NULL;
        cJSON_AddItemToArray(cases, cJSON_CreateString(id));
        if (!claimed) {
            cJSON_AddItemToArray(outside, cJSON_CreateString(id));
        }
    }
}

static ls_status choose_cases(conform *c)
{
    int share, shares;
    LS_TRY(ls_command_seed("--seed", c->seed, &c->run.seed));
    LS_TRY(ls_command_shard("--shard", c->share, &share, &shares));
    for (int i = 0; i < c->files.count; i++) {
        char path[1024];
        const char *file = c->files.line[i].glob;
        if (access(file, R_OK) != 0 && ls_path_find(file, path, sizeof path)) {
            file = path;
        }
        LS_TRY(ls_select_load(file, &c->wanted));
        LS_TRY(ls_budget_read(file, &c->budget));
    }
    if (c->wanted.count == 0 && c->files.count == 0) {
        c->budget = (ls_budget){.seconds = 20 * 60}; /* of the whole suite, on 2 cores */
    }
    ls_case_settings settings = {.seed = c->run.seed, .bench = NULL};
    /* cases without jobs call the backend of the device that the jobs would run on */
    if (c->subject == NULL && !c->list) {
        LS_TRY(ls_machine_choose(c->device, 1, true, &settings.device));
        bool cpu = strcmp(settings.device, "cpu") == 0;
        settings.bf16_units = cpu && ls_device_cpu_has(LS_BF16, true);
        settings.fp16_units = cpu && ls_device_cpu_has(LS_F16, true);
    }
    ls_cases_all(&settings, &c->run.cases);
    if (c->subject !=
        NULL) { /* cases that call this project's own code do not test another trainer */
        ls_rows_keep_protocol(&c->run.cases);
    }
    ls_text_put(c->run.claim_name, sizeof c->run.claim_name, "%s", c->claim);
    LS_TRY(ls_select_claim(c->claim, &c->run.claim));
    c->run.claim_cases = ls_select_count(&c->run.cases, &c->run.claim);
    if (c->files.count > 0 && c->wanted.count == 0) {
        c->run.cases.count = 0; /* an empty list file does not mean all cases */
    }
    if (c->wanted.count == 0 && strcmp(c->claim, "all") != 0) {
        ls_select_matching(&c->run.cases, &c->run.claim);
    }
    LS_TRY(ls_select_keep(&c->run.cases, &c->wanted, 0, 1));
    if (c->share != NULL) {
        describe_shard(&c->run, share, shares);
        ls_select_share(&c->run.cases, share, shares);
    }
    LS_TRY(ls_select_manners(&c->run.manners));
    return ls_select_waivers(&c->run.waivers);
}

/* Empties the folder of an earlier run. Other files in it, and a run that was not finished, are
 * errors. */
static ls_status clear_folder(const conform *c)
{
    const char *path = c->run.directory;
    LS_TEXT(entry, 700, "%s/run.json", path);
    if (access(entry, F_OK) == 0) {
        if (!c->overwrite && !ls_runner_was_finished(path)) {
            char *folder = ls_words_quoted(c->out);
            ls_log_error("--out %s holds an unfinished run: --resume (make: RESUME=%s) "
                         "continues it, --overwrite (OVERWRITE=1) deletes it",
                         folder, folder);
            free(folder);
            return LS_ERR_USAGE;
        }
        ls_path_remove_tree(path);
        return LS_OK;
    }
    DIR *folder = ls_path_open_folder(path);
    int entries = 0;
    while (ls_path_next(&folder) != NULL) {
        entries++;
    }
    if (entries > 2) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "--out %s: the folder holds files but no run.json; allowed: a new folder, an "
            "empty one or that of an earlier run",
            path);
    }
    return LS_OK;
}

static const char *subject_name(const conform *c)
{
    return c->subject == NULL ? "lockstep-train" : c->subject;
}

/* --resume needs the folder of an earlier run, of the same subject and seed. */
static ls_status check_resumed(const conform *c)
{
    if (!c->resume) {
        return LS_OK;
    }
    if (c->out == NULL) {
        return ls_log_fail(LS_ERR_USAGE,
                           "--resume needs --out DIR, the folder of the run to resume");
    }
    LS_TEXT(path, 700, "%s/run.json", c->run.directory);
    if (access(path, R_OK) != 0) {
        return ls_log_fail(
            LS_ERR_USAGE, "--resume: --out %s is not a run's folder: it holds no run.json", c->out);
    }
    cJSON *before = NULL;
    LS_TRY(ls_json_read_file(path, &before));
    const cJSON *options = ls_json_get(before, "options");
    const char *names[] = {"subject", "seed"}, *now[] = {subject_name(c), c->seed};
    ls_status status = LS_OK;
    for (int i = 0; i < 2; i++) {
        const char *was = ls_json_string(options, names[i], now[i]);
        if (status == LS_OK && strcmp(was, now[i]) != 0) {
            status = ls_log_fail(LS_ERR_USAGE,
                                 "--resume: the run in %s has --%s '%s', and %s is another one",
                                 c->out, names[i], was, now[i]);
        }
    }
    cJSON_Delete(before);
    return status;
}

static ls_status prepare(conform *c)
{
    ls_run *run = &c->run;
    const char *device = NULL;
    /* evidence jobs share devices: they are small and their times gate nothing */
    int devices = 0;
    LS_TRY(ls_machine_choose_among(c->device, 1, true, &device, &devices));
    enum { MANY = 20 }; /* jobs, for which it pays to measure the start-up before */
    int ranks = 1, jobs = 0;
    for (int i = 0; i < run->cases.count; i++) {
        jobs += run->cases.row[i].job_count;
        for (int j = 0; j < run->cases.row[i].job_count; j++) {
            int world = run->cases.row[i].job[j].world;
            ranks = world > ranks ? world : ranks;
        }
    }
    if (ranks > 1) {
        LS_TRY(ls_supervise_check_loopback());
    }
    run->site = (ls_matrix_site){.subject = c->subject,
                                 .run_directory = run->directory,
                                 .device = device,
                                 .cores = ls_cores_usable(),
                                 .devices = devices,
                                 .share_devices = true,
                                 .half_emulated = strcmp(device, "cpu") == 0};
    run->fail_early = c->fail_early;
    run->by_observe = c->by_observe;
    run->keeps_dumps = c->keep;
    ls_text_put(run->label, sizeof run->label, "conform");
    ls_text_put(run->title, sizeof run->title, "Lockstep conformance, claim %s", run->claim_name);
    ls_command_where(device, ranks, run->where);
    if (c->out != NULL) {
        ls_command_absolute(c->out, run->directory, sizeof run->directory);
        LS_TRY(c->resume ? check_resumed(c) : c->list ? LS_OK : clear_folder(c));
    } else {
        LS_TRY(check_resumed(c));
        LS_TRY(ls_command_run_folder("results/runs", "conform", run->directory,
                                     sizeof run->directory));
    }
    run->options = cJSON_CreateObject();
    if (run->budget_s > 0 || c->list || jobs >= MANY) {
        (void)ls_start_measure(&run->site); /* the first job shows a subject that cannot run */
    }
    if (run->budget_s > 0) {
        ls_budget_choose(run, c->list ? "# " : "");
    }
    ls_runner_plan(run);
    return c->resume ? ls_runner_look_back(run) : LS_OK;
}

/* run.json's, and the line that goes on with this run. */
static void remember_command(conform *c)
{
    ls_run *run = &c->run;
    run->command = ls_command_line("conform", &c->given);
    if (c->out == NULL) {
        ls_words_add(&c->given, "--out=%s", run->directory);
    }
    if (!c->resume) {
        ls_words_add(&c->given, "--resume");
    }
    run->go_on = ls_command_go_on("conform", &c->given);
    cJSON_AddStringToObject(run->options, "claim", c->claim);
    cJSON_AddStringToObject(run->options, "seed", c->seed);
    cJSON_AddStringToObject(run->options, "subject", subject_name(c));
    cJSON_AddStringToObject(run->options, "device", run->site.device);
    cJSON_AddStringToObject(run->options, "gate", run->gate_manners ? "manners" : "none");
}

static int run_cases(conform *c)
{
    ls_run *run = &c->run;
    LS_TRY(prepare(c));
    remember_command(c);
    printf("%s\n", run->where);
    ls_runner_print_size(run, stdout);
    printf(", claim %s\n\n", run->claim_name);
    ls_gpus_begin(run, 1);
    fflush(stdout);
    int64_t begun_ns = ls_clock_ns();
    if (run->by_observe) {
        (void)setenv("LS_OBSERVE_DIR", run->directory, 1); /* ranks inherit it */
    }
    if (ls_proc_catch_signals() != LS_OK || ls_runner_open(run) != LS_OK) {
        return LS_ERR_INFRA;
    }
    ls_status status = ls_runner_run(run);
    if (status != LS_OK) { /* a command that cannot be run is the user's */
        return c->subject != NULL && status == LS_ERR_USAGE ? LS_ERR_USAGE : LS_ERR_INFRA;
    }
    double seconds = ls_clock_ms_between(begun_ns, ls_clock_ns()) * 1e-3;
    int code = ls_runner_finish(run);
    ls_budget_report(&c->budget, run, seconds, stderr);
    return code;
}

/* Prints the cases: with --resume those that are left of an interrupted run, with --budget those
 * that fit; then, where there is more to say than their names, how long they take. */
static ls_status list_cases(conform *c)
{
    const ls_run *run = &c->run;
    int done = 0;
    bool sized = c->resume || c->time != NULL || c->subject != NULL;
    if (sized) {
        LS_TRY(prepare(c));
    }
    for (int i = 0; i < run->cases.count; i++) {
        const ls_case *row = &run->cases.row[i];
        if (c->resume && run->judged[i]) {
            done++;
        } else if (c->where) {
            printf("%-48s %-4s %s\n", row->id, row->requirement, row->source);
        } else {
            printf("%s\n", row->id);
        }
    }
    if (c->resume) {
        printf("# %d of %d cases left (%d are done)\n", run->cases.count - done, run->cases.count,
               done);
    }
    if (sized) {
        printf("# ");
        ls_runner_print_size(run, stdout);
        printf("\n");
    }
    return LS_OK;
}

int ls_conform_main(int count, char **argument)
{
    conform c;
    int code = (int)parse(&c, count, argument);
    if (code == LS_OK) {
        code = (int)choose_cases(&c);
    }
    if (code == LS_OK) {
        code = c.list ? (int)list_cases(&c) : run_cases(&c);
    }
    ls_words_free(&c.given);
    ls_runner_free(&c.run);
    ls_select_free(&c.wanted);
    ls_select_free(&c.files);
    return code;
}
