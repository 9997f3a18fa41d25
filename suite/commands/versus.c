/* `lockstep versus`: the speed of Lockstep compared with that of PyTorch, on this machine, in one
 * run. */
#include "commands.h"

#include <math.h>
#include <string.h>

#include "kernels/core/path.h"
#include "harness/report/stats.h"
#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/passes.h"
#include "reference/model/model.h"
#include "reference/state/device.h"
#include "suite/run/command_line.h"
#include "suite/run/run.h"
#include "turns.h"

enum { PAIRS_MAX = 64 };

/* Ours at O0, in the same pairs, is what a half level is compared with too. */
typedef enum trainer { OURS, PEER, OURS_O0, TRAINERS } trainer;

/* The values to compare. Levels are ours; above 0: bf16, on the processor's units for it where they
 * are faster than f32. There PyTorch runs under autocast, channels last. */
static const ls_turns_setting settings[] = {
    {"resnet50.224.b16.t2", "resnet50", 224, 16, 1, 2, 2, 3, 0},
    {"resnet18.32.b32.t2", "resnet18", 32, 32, 1, 2, 4, 16, 0},
    {"resnet18.32.b32.r2", "resnet18", 32, 32, 2, 1, 4, 16, 0},
    {"resnet50.224.b16.t2.bf16.o1", "resnet50", 224, 16, 1, 2, 2, 3, 1},
    {"resnet50.224.b16.t2.bf16.o2", "resnet50", 224, 16, 1, 2, 2, 3, 2},
    {"resnet18.64.b32.t2.bf16.o2", "resnet18", 64, 32, 1, 2, 3, 8, 2},
    {"resnet18.64.b32.r2.bf16.o2", "resnet18", 64, 32, 2, 1, 3, 8, 2},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

typedef struct asked {
    int pairs;          /* runs of each trainer, alternating, 1 to PAIRS_MAX */
    const char *python; /* an interpreter with numpy and PyTorch 1.13 or later */
    const char *peer;   /* suite/peers/pytorch_train.py */
    const char *parent; /* a folder <UTC time>-versus is made there for jobs, batches and table */
    const char *only;   /* NULL, or the label of the one setting to run */
} asked;

/* Common to all runs. */
typedef struct place {
    const asked *options;
    char folder[PATH_MAX]; /* absolute */
} place;

typedef struct measured {
    int count;
    double images_per_s[PAIRS_MAX];
    double start_s[PAIRS_MAX]; /* of a run of one step, from exec to exit */
    double rss_mb;             /* largest peak of one rank */
    char transport[32];        /* of the gradients, from the start event; or "" */
} measured;

static void describe(const ls_turns_setting *what, int who, const place *place, int pair, int steps,
                     ls_job *job)
{
    char program[PATH_MAX];
    ls_path_program(program, sizeof program);
    LS_TEXT(id, sizeof job->id, "%s.%02d.%d.%s", what->label, pair, steps,
            who == OURS   ? "lockstep"
            : who == PEER ? "pytorch"
                          : "lockstep-o0");
    ls_turns_setting own = *what;
    own.level = who == OURS_O0 ? 0 : who == PEER && what->level > 0 ? 1 : what->level;
    ls_words trainer = {0, 0, NULL};
    if (who != PEER) {
        ls_words_add(&trainer, "%s/lockstep-train", program);
    } else {
        ls_words_add(&trainer, "%s", place->options->python);
        ls_words_add(&trainer, "%s", place->options->peer);
        ls_words_add(&trainer, "--dialect=torch");
    }
    ls_turns_job(&own, place->folder, id, &trainer, steps, job);
    ls_words_free(&trainer);
    if (own.level > 0) {
        ls_words_add(&job->command, "--half=bf16");
        if (who == PEER) {
            ls_words_add(&job->command, "--channels-last");
        }
    }
    ls_words_add(&job->command, "--bucket-cap-mb=25");
    ls_words_add(&job->command, "--device=cpu");
    ls_words_add(&job->command, "--digest=none");
    ls_words_add(&job->command, "--data=batches:%s/%s.batches", place->folder, what->label);
}

/* Runs one of the two trainers. Its step time is the median of the slowest rank; a run of one step
 * measures only the time from start to end. */
static ls_status run_one(const ls_turns_setting *what, int who, const place *place, int pair,
                         int steps, measured *out)
{
    ls_job job;
    ls_turns run = {.what = what, .sides = 1};
    double ms = NAN;
    describe(what, who, place, pair, steps, &job);
    ls_status status = ls_turns_run(&job, steps, &run);
    const ls_outcome *outcome = &run.outcome;
    if (status == LS_OK && outcome->state != LS_OUTCOME_DONE) {
        status = ls_log_fail(LS_ERR_CHECK, "%s: ended with code %d; see %s/rank%d.log", job.label,
                             outcome->code, job.directory, outcome->first_rank);
    }
    if (status == LS_OK && steps == 1) {
        out->start_s[pair] = ls_clock_ms_between(outcome->started_ns, outcome->ended_ns) * 1e-3;
    } else if (status == LS_OK) {
        status = ls_turns_step_ms(&run, 0, 0.5, &ms);
    }
    if (status == LS_OK && steps > 1) {
        out->images_per_s[out->count++] = what->ranks * what->batch_size * 1e3 / ms;
        out->rss_mb = fmax(out->rss_mb, (double)outcome->rss_bytes_max / 1048576.0);
        ls_text_put(out->transport, sizeof out->transport, "%s",
                    run.rank[what->ranks - 1].transport);
    }
    ls_turns_free(&run);
    ls_job_free(&job);
    return status;
}

/* The bound: the convolutions of the network alone, on all threads of the setting. */
static ls_status run_bound(const ls_turns_setting *what, double *images_per_s)
{
    void *symbol = NULL;
    ls_cpu_bound_fn *convolutions_ms = NULL;
    ls_network network;
    LS_TRY(ls_load_symbol("cpu", LS_CPU_BOUND_ENTRY, &symbol));
    memcpy(&convolutions_ms, &symbol, sizeof convolutions_ms);
    LS_TRY(ls_model_build(what->arch, LS_TURNS_NUM_CLASSES, what->image_size, &network));
    const ls_plan_options plan = {.batch = what->batch_size,
                                  .height = what->image_size,
                                  .width = what->image_size,
                                  .activation = what->level > 0 ? LS_BF16 : LS_F32};
    double ms = 0;
    /* as many repeats as timed steps; the threads of all ranks, which share the cores */
    ls_status status =
        convolutions_ms(&network, &plan, what->threads * what->ranks, what->timed_steps, &ms);
    ls_model_free(&network);
    if (status == LS_OK) {
        *images_per_s = what->batch_size * 1e3 / ms;
    }
    return status;
}

static ls_status run_setting(const ls_turns_setting *what, const place *place, FILE *table)
{
    measured seen[TRAINERS] = {{0}, {0}, {0}};
    double bound[PAIRS_MAX];
    int pairs = place->options->pairs;
    LS_TEXT(folder, PATH_MAX, "%s/%s.batches", place->folder, what->label);
    LS_TRY(ls_path_make_chosen(folder, LS_COMMAND_OUT_HINT));
    LS_TRY(ls_turns_write_batches(what, folder, what->warmup_steps + what->timed_steps));
    for (int pair = 0; pair < pairs; pair++) {
        int first = pair % 2 == 0 ? OURS : PEER;
        int steps = what->warmup_steps + what->timed_steps;
        LS_TRY(run_one(what, first, place, pair, steps, &seen[first]));
        LS_TRY(run_bound(what, &bound[pair]));
        LS_TRY(run_one(what, 1 - first, place, pair, steps, &seen[1 - first]));
        if (what->level > 0) {
            LS_TRY(run_one(what, OURS_O0, place, pair, steps, &seen[OURS_O0]));
        }
        LS_TRY(run_one(what, first, place, pair, 1, &seen[first]));
        LS_TRY(run_one(what, 1 - first, place, pair, 1, &seen[1 - first]));
    }
    ls_stats_interval ratio =
        ls_stats_ratio(seen[OURS].images_per_s, pairs, seen[PEER].images_per_s, pairs, what->label);
    ls_stats_interval ours = ls_stats_median(seen[OURS].images_per_s, pairs, what->label);
    ls_stats_interval peer = ls_stats_median(seen[PEER].images_per_s, pairs, what->label);
    ls_stats_interval most = ls_stats_median(bound, pairs, what->label);
    double start_ours_s = ls_stats_percentile(seen[OURS].start_s, pairs, 0.5);
    double start_peer_s = ls_stats_percentile(seen[PEER].start_s, pairs, 0.5);
    printf("%s\n    Lockstep %.2f img/s, PyTorch %.2f img/s: %.2f times [%.2f, %.2f]\n"
           "    convolutions alone %.2f img/s: Lockstep reaches %.2f of them\n"
           "    peak memory of a rank %.0f MB against %.0f MB; start to end of a run of one\n"
           "    step %.2f s against %.2f s\n",
           what->label, ours.value, peer.value, ratio.value, ratio.low, ratio.high, most.value,
           ours.value / most.value, seen[OURS].rss_mb, seen[PEER].rss_mb, start_ours_s,
           start_peer_s);
    if (what->level > 0) {
        if (!ls_device_cpu_has(LS_BF16, false)) {
            printf("    ours multiplies bf16 in f32, as do the convolutions alone: this CPU's "
                   "units for\n"
                   "    bf16 are slower\n");
        }
        ls_stats_interval o0 = ls_stats_ratio(seen[OURS].images_per_s, pairs,
                                              seen[OURS_O0].images_per_s, pairs, what->label);
        printf("    O%d in bf16 is %.2f times [%.2f, %.2f] Lockstep's own O0\n", what->level,
               o0.value, o0.low, o0.high);
    }
    if (what->ranks > 1) {
        const char *transport = seen[OURS].transport;
        printf("    gradients: Lockstep by %s%s, PyTorch by Gloo over TCP\n", transport,
               strcmp(transport, "TCP") == 0 ? "" : " (LS_SHM=0: by TCP, too)");
    }
    fflush(stdout);
    fprintf(table, "%s %.4f %.4f %.4f %.4f %.4f %.4f %.4f %.1f %.1f %.3f %.3f\n", what->label,
            ours.value, peer.value, ratio.value, ratio.low, ratio.high, most.value,
            ours.value / most.value, seen[OURS].rss_mb, seen[PEER].rss_mb, start_ours_s,
            start_peer_s);
    return LS_OK;
}

static bool is_wanted(const asked *options, const ls_turns_setting *what)
{
    return options->only == NULL || strcmp(options->only, what->label) == 0;
}

/* Trains the same network on the same files, batch, threads and ranks with both trainers in turn
 * (the order alternates from pair to pair) and times the convolutions alone, in oneDNN, with each
 * pair. Prints a row per setting: images per second of each (median of the pairs' medians), the
 * ratio with its interval, the share of the bound, peak memory of a rank, and the time from start
 * to end of a run of one step. Writes versus.tsv. LS_ERR_CHECK when a run failed. */
static ls_status run_all(const asked *options)
{
    place place = {.options = options};
    LS_TRY(ls_command_run_folder(options->parent, "versus", place.folder, sizeof place.folder));
    LS_TRY(ls_path_make_chosen(place.folder, LS_COMMAND_OUT_HINT));
    LS_TEXT(path, PATH_MAX + 16, "%s/versus.tsv", place.folder);
    FILE *table = ls_file_create(path);
    LS_TRY_FILE(table);
    fprintf(table,
            "# Training speed compared with PyTorch, median of %d runs in turn\n"
            "# setting lockstep_img_per_s pytorch_img_per_s ratio ratio_low ratio_high "
            "convolutions_img_per_s share_of_convolutions lockstep_rss_mb pytorch_rss_mb "
            "lockstep_one_step_s pytorch_one_step_s\n",
            options->pairs);
    printf(
        "%d pairs in turn, O0 in f32 unless the setting names a level, reading of data left out\n"
        "on both sides; the convolutions alone (forward, both backwards, in oneDNN) are timed\n"
        "between the two of each pair.\n",
        options->pairs);
    fflush(stdout);
    bool units = ls_device_cpu_has(LS_BF16, true);
    ls_status status = LS_OK;
    int compared = 0, left_out = 0;
    for (int i = 0; i < SETTINGS && status == LS_OK; i++) {
        if (is_wanted(options, &settings[i]) && settings[i].level > 0 && !units) {
            printf("%s\n    left out: this CPU, or its oneDNN, has no units for bf16\n",
                   settings[i].label);
            left_out++;
        } else if (is_wanted(options, &settings[i])) {
            status = run_setting(&settings[i], &place, table);
            compared += status == LS_OK;
        }
    }
    LS_THEN(status, ls_file_close(table, path));
    printf("%d settings compared, %d left out\n", compared, left_out);
    return status == LS_OK && compared == 0 ? LS_ERR_INFRA : status;
}

int ls_versus_main(int count, char **argument)
{
    char peer[1024], found[1100], why[600];
    if (!ls_path_find("suite/peers/pytorch_train.py", peer, sizeof peer)) {
        return ls_log_fail(LS_ERR_INFRA,
                           "suite/peers/pytorch_train.py was not found next to the program");
    }
    const char *pairs = "7", *python = NULL, *out = "results/runs", *only = NULL;
    const ls_command_option known[] = {
        {"--pairs", &pairs, NULL, NULL, "runs of each trainer, alternating (7)"},
        {"--python", &python, NULL, NULL, "an interpreter with PyTorch (the first that is found)"},
        {"--out", &out, NULL, NULL, "folder of the runs (results/runs)"},
        {"--only", &only, NULL, NULL, "run only the setting with this label"},
    };
    LS_TRY(ls_command_parse("versus", known, 4, &count, argument));
    int64_t number;
    LS_TRY(ls_command_no_operands("versus", count, argument, "use --only SETTING"));
    LS_TRY(ls_command_whole("--pairs", pairs, 1, PAIRS_MAX, &number));
    asked versus = {
        .pairs = (int)number, .python = found, .peer = peer, .parent = out, .only = only};
    const char *names[SETTINGS];
    for (int i = 0; i < SETTINGS; i++) {
        names[i] = settings[i].label;
    }
    LS_TRY(ls_command_choice("--only", only, names, SETTINGS));
    if (!ls_start_find_python(python, found, sizeof found, why, sizeof why)) {
        return ls_log_fail(LS_ERR_USAGE, "--python '%s': %s", python != NULL ? python : "python3",
                           why);
    }
    return (int)run_all(&versus);
}
