/* The trainer on an emulated asynchronous device: the same bits come out however its work is
 * launched, ordered and delayed. */
#include "reference/data/make.h"
#include "suite/unit/run_suite.h"
#include "emulated_run.h"

/* One rank, five steps; returns the exit code. `environment`: "A=1 B=2". */
static int train(const char *environment, const char *options)
{
    char command[6 * PATH_MAX];
    snprintf(command, sizeof command,
             "LS_RUN_DIR='%s' LS_LIB_DIR='%s/emulated/lib' %s timeout 60 '%s/lockstep-train' "
             "--device cuda -a resnet8 --image-size 8 -b 2 --steps 5 --loss-scale 128 "
             "--print-freq 0 %s > '%s/log' 2>&1",
             folder, build, environment, build, options, folder);
    return exit_code(system(command));
}

/* Loss and digests of all steps, concatenated; *steps: their number. */
static char *history(int *steps)
{
    char *text = read_file("rank0.jsonl"), *out = calloc(strlen(text) + 1, 1);
    *steps = 0;
    for (char *at = text; (at = strstr(at, "{\"event\":\"step\"")) != NULL; at++) {
        const char *keys[] = {"\"loss_bits\":", "\"digest\":{"};
        for (int k = 0; k < 2; k++) {
            const char *from = strstr(at, keys[k]);
            if (from != NULL) {
                strncat(out, from, strcspn(from, k == 0 ? "," : "}"));
            }
        }
        (*steps)++;
    }
    free(text);
    return out;
}

/* Runs, and compares with *first or sets it. */
static void same(char **first, const char *environment, const char *options)
{
    int steps = 0;
    char *log = NULL;
    int code = train(environment, options);
    log = read_file("log");
    ck_assert_msg(code == 0, "%s %s: code %d: %s", environment, options, code, log);
    free(log);
    char *now = history(&steps);
    ck_assert_int_eq(steps, 5);
    if (*first == NULL) {
        *first = now;
        return;
    }
    ck_assert_msg(strcmp(*first, now) == 0, "%s %s: other bits", environment, options);
    free(now);
}

LOOP_TEST(however_it_is_launched, 2)
{
    static const char *const levels[] = {"--opt-level O0", "--opt-level O2"};
    static const char *const ways[][2] = {
        {"A=1", "--cuda-graph off"},
        {"A=1", "--cuda-graph on"},
        {"LS_EMULATED_LATE=1", "--cuda-graph off"},
        {"LS_EMULATED_LATE=1", "--cuda-graph on"},
        {"LS_EMULATED_ORDER=backward", "--cuda-graph on"},
        {"LS_EMULATED_ORDER=1", "--cuda-graph on"},
        {"LS_EMULATED_ORDER=2", "--cuda-graph off"},
        {"LS_EMULATED_GUARD=1", "--cuda-graph on"},
        {"LS_PDL=1", "--cuda-graph on"},
        {"LS_PDL=1", "--cuda-graph off"},
        {"LS_PDL=1 LS_EMULATED_LATE=2 LS_EMULATED_ORDER=1", "--cuda-graph on"},
        {"A=1", "--comm self"},
        {"A=1", "--trace"},
        {"A=1", "--workers 0"},
    };
    char *first = NULL;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        char options[160];
        snprintf(options, sizeof options, "%s %s", levels[_i], ways[i][1]);
        same(&first, ways[i][0], options);
    }
    free(first);
}

/* Code for a device that is too old does not wait for the kernel before. */
TEST(early_kernels_need_a_new_device)
{
    char *first = NULL;
    same(&first, "LS_PDL=1", "");
    ck_assert(!says("log", "LS_PDL"));
    same(&first, "LS_PDL=1 LS_EMULATED_CAPABILITY=80", "");
    ck_assert(says("log", "LS_PDL=1 has no effect: "));
    ck_assert(says("log", "has compute capability 8.0"));
    free(first);
}

/* The shortest step's time as a part of the longest's. */
static double shortest_part(void)
{
    char *text = read_file("rank0.jsonl");
    double least = INFINITY, most = 0;
    for (char *at = text; (at = strstr(at, "\"total\":")) != NULL; at++) {
        double ms = strtod(at + strlen("\"total\":"), NULL);
        least = fmin(least, ms);
        most = fmax(most, ms);
    }
    free(text);
    return least / most;
}

/* Without digests and dumps the host is a step ahead; the results are the same. */
TEST(steps_in_flight)
{
    char *first = NULL;
    same(&first, "A=1", "--digest none --cuda-graph off");
    same(&first, "LS_EMULATED_LATE=1", "--digest none --cuda-graph off");
    same(&first, "A=1", "--digest none --cuda-graph on");
    /* each step has its own time, including the last, which has ended when the previous one is
     * reported: equal work on a busy machine takes at most fifty times as long; a time measured too
     * late is a thousandth */
    ck_assert_msg(shortest_part() > 0.02, "%g", shortest_part());
    same(&first, "LS_EMULATED_LATE=1", "--digest none --cuda-graph on");
    ck_assert(says("rank0.jsonl", "\"cuda_graph\":true"));
    ck_assert(!says("rank0.jsonl", "\"forward\"")); /* nothing waited for it */
    free(first);
    first = NULL;
    same(&first, "A=1", "--digest-every 3 --cuda-graph off"); /* after steps 3 and 5 */
    same(&first, "LS_EMULATED_LATE=1", "--digest-every 3");
    ck_assert(strstr(first, "\"digest\"") != NULL);
    free(first);
    first = NULL;
    same(&first, "A=1", "--accumulate 2 --digest none");
    same(&first, "LS_EMULATED_LATE=1", "--accumulate 2 --digest none");
    free(first);
}

/* A failed recording has executed nothing: the step is repeated without it, and later steps are not
 * recorded. */
LOOP_TEST(goes_on_without_a_recording, 2)
{
    static const char *const ways[] = {"forward", "data", "weights", "end", "instantiate"};
    char environment[96], *first = NULL;
    const char *late = _i == 0 ? "" : " LS_EMULATED_LATE=1";
    same(&first, "A=1", "--deterministic --cuda-graph off");
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        snprintf(environment, sizeof environment, "LS_EMULATED_UNRECORDED=%s%s", ways[i], late);
        same(&first, environment, _i == 0 ? "--deterministic --comm self" : "--deterministic");
        ck_assert(says("rank0.jsonl", "{\"event\":\"graph\",\"step\":3,\"cuda_graph\":\"step 3 "
                                      "could not be recorded on rank 0\"}"));
        ck_assert(says("log", "go on without graphs"));
        ck_assert_int_eq(train(environment, "--cuda-graph on"), 3);
        ck_assert(says("log", "--cuda-graph on: step 3 could not be recorded on rank 0"));
    }
    free(first);
}

/* A number of a step's times. */
static double time_of(int step, const char *name)
{
    char *text = read_file("rank0.jsonl"), key[64];
    snprintf(key, sizeof key, "\"step\":%d,", step);
    char *at = strstr(text, key);
    snprintf(key, sizeof key, "\"%s\":", name);
    at = at != NULL ? strstr(at, key) : NULL;
    ck_assert_ptr_nonnull(at);
    double ms = strtod(at + strlen(key), NULL);
    free(text);
    return ms;
}

/* The time that a dump waits for belongs to the step, its own work does not. */
TEST(dumps_cost_what_they_do)
{
    ck_assert_int_eq(train("LS_EMULATED_LATE=1", "--digest none --dump-steps 3"), 0);
    double total = time_of(3, "total"), instrument = time_of(3, "instrument");
    ck_assert(time_of(3, "data") > 0); /* the batch was drawn and copied */
    /* all work except the optimizer's is waited for, and the host copies a few hundred KB */
    ck_assert_msg(instrument > 0 && instrument < total, "%g of %g ms", instrument, total);
}

/* As many resident batches as steps equal the batches that would have been loaded. */
TEST(resident_batches)
{
    char *first = NULL;
    same(&first, "A=1", "");
    same(&first, "A=1", "--resident 5");
    free(first);
    ck_assert_int_eq(train("A=1", "--resident 2 --comm self"), 0);
    ck_assert(says("rank0.jsonl", "\"resident\":2"));
    ck_assert(says("rank0.jsonl",
                   "\"engine\":\"self\",\"engine_text\":\"self (a world of one, built in)\""));
}

/* Saved after two steps from the device's own memory and continued, also in the resident batches.
 */
LOOP_TEST(goes_on_from_a_checkpoint, 2)
{
    static const char *const ways[] = {"--opt-level O2", "--opt-level O0 --resident 3"};
    char options[2 * PATH_MAX], *first = NULL;
    same(&first, "A=1", ways[_i]);
    snprintf(options, sizeof options, "%s --steps 2 --save '%s/c'", ways[_i], folder);
    ck_assert_int_eq(train("LS_EMULATED_LATE=1", options), 0);
    snprintf(options, sizeof options, "%s --resume '%s/c'", ways[_i], folder);
    same(&first, "LS_EMULATED_LATE=1", options);
    free(first);
}

/* The digests of the images of audited steps, divided by blanks; freed by the caller. */
static char *audited_images(const char *options)
{
    ck_assert_int_eq(train("A=1", options), 0);
    char *text = read_file("rank0.jsonl"), *out = calloc(strlen(text) + 1, 1), *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        const char *batch = strstr(line, "\"batch\":\"");
        if (strncmp(line, "{\"event\":\"audit\"", 16) == 0 && batch != NULL) {
            strncat(out, batch + strlen("\"batch\":\""), 16);
            strcat(out, " ");
        }
    }
    free(text);
    return out;
}

/* Pictures go to the device as bytes. The floats of their dumps, given as batches, train to the
 * same bits and have the same digests; so do pictures whose steps are recorded, and the audit
 * judges the normalisation. */
LOOP_TEST(pictures_are_normalised_on_the_device, 2)
{
    char options[3 * PATH_MAX], pictures[2 * PATH_MAX], *first = NULL;
    snprintf(pictures, sizeof pictures, "%s/pictures", folder);
    ck_assert_int_eq(ls_make_folder(pictures, 3, 8, 1), LS_OK);
    snprintf(options, sizeof options, "%s --data '%s' --cuda-graph off --dump-steps 1,2,3,4,5",
             _i == 0 ? "--opt-level O0" : "--opt-level O2", pictures);
    same(&first, "A=1", options);
    snprintf(options, sizeof options, "%s --data 'batches:%s/dump' --cuda-graph on",
             _i == 0 ? "--opt-level O0" : "--opt-level O2", folder);
    same(&first, "LS_EMULATED_LATE=1", options);
    snprintf(options, sizeof options, "%s --data '%s' --cuda-graph on",
             _i == 0 ? "--opt-level O0" : "--opt-level O2", pictures);
    same(&first, "LS_EMULATED_LATE=1", options);
    free(first);
    snprintf(options, sizeof options, "--audit 1:1:1 --data '%s'", pictures);
    char *bytes = audited_images(options);
    snprintf(options, sizeof options, "--audit 1:1:1 --data 'batches:%s/dump'", folder);
    char *floats = audited_images(options);
    ck_assert_uint_eq(strlen(bytes), 5 * 17);
    ck_assert_str_eq(bytes, floats);
    free(bytes);
    free(floats);
}

/* A batch that stays on the device has the digest that it had when it was loaded; one of several
 * micro-steps has none. */
TEST(resident_batches_are_audited)
{
    char *loaded = audited_images("--audit 1:1:1"),
         *resident = audited_images("--audit 1:1:1 --resident 5"),
         *two = audited_images("--audit 1:1:1 --resident 2"),
         *summed = audited_images("--audit 1:1:1 --resident 2 --accumulate 2");
    ck_assert_uint_eq(strlen(loaded), 5 * 17);
    ck_assert_str_eq(resident, loaded);
    for (int step = 0; step < 5; step++) {
        ck_assert(strncmp(two + 17 * step, loaded + 17 * (step % 2), 17) == 0);
        ck_assert(step == 0 || strncmp(loaded, loaded + 17 * step, 17) != 0);
    }
    ck_assert_str_eq(summed, "");
    free(loaded);
    free(resident);
    free(two);
    free(summed);
}

/* The engines of a run, as its start event names them: "eng15,eng21_k2=1_k14=3,...". */
static void name_engines(char *out, size_t bytes)
{
    char *text = read_file("rank0.jsonl");
    out[0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    for (const char *at = text; (at = strstr(at, "eng")) != NULL; at += 3) {
        size_t used = strlen(out), length = strcspn(at, " \"\\");
        ck_assert_uint_lt(used + length + 2, bytes);
        if (at[3] >= '0' && at[3] <= '9') {
            snprintf(out + used, bytes - used, "%.*s,", (int)length, at);
        }
    }
    free(text);
}

/* Timed once and kept: the next run takes them, without timing; another batch gets a section of its
 * own; a file of something else, or a section that does not fit, is refused and left alone. */
TEST(engines_are_kept)
{
    char options[2 * PATH_MAX], timed[8192], kept[8192];
    snprintf(options, sizeof options, "--cudnn-benchmark --opt-level O2 --engines '%s/engines'",
             folder);
    ck_assert_int_eq(train("A=1", options), 0);
    name_engines(timed, sizeof timed);
    ck_assert(says("rank0.jsonl", "best of "));
    char *first = read_file("engines");
    ck_assert_msg(strstr(first, "\n[resnet8 at 8, batch 2, fp16; ") != NULL, "%s", first);
    ck_assert_msg(strstr(first, "; cuDNN 9.") != NULL, "%s", first);
    ck_assert_int_eq(train("A=1", options), 0);
    name_engines(kept, sizeof kept);
    ck_assert_str_eq(kept, timed);
    ck_assert(!says("rank0.jsonl", "best of "));
    char *again = read_file("engines");
    ck_assert_str_eq(again, first);
    strcat(options, " -b 3");
    ck_assert_int_eq(train("A=1", options), 0);
    ck_assert(says("rank0.jsonl", "best of "));
    char *both = read_file("engines");
    ck_assert(strncmp(both, first, strlen(first)) == 0);
    ck_assert_ptr_nonnull(strstr(both, "\n[resnet8 at 8, batch 3, fp16; "));
    /* the engine of the first layer goes to a layer that is not there */
    char command[3 * PATH_MAX];
    snprintf(command, sizeof command, "sed -i 's/^conv1:/conv0:/' '%s/engines'", folder);
    ck_assert_int_eq(exit_code(system(command)), 0);
    ck_assert_int_eq(train("A=1", options), 2);
    ck_assert(says("log", "engines for conv1 were expected"));
    ck_assert(says("log", "section [resnet8 at 8, batch 3, fp16; "));
    snprintf(command, sizeof command, "echo other >'%s/engines'", folder);
    ck_assert_int_eq(exit_code(system(command)), 0);
    ck_assert_int_eq(train("A=1", options), 2);
    ck_assert(says("log", "not a file of engines"));
    ck_assert(says("engines", "other"));
    free(first);
    free(again);
    free(both);
}

/* Fused products are kept in a section of their own, by the engine; a run without them takes none
 * from there. Recorded or not, a step launches them. */
TEST(fused_engines_are_kept)
{
    char options[2 * PATH_MAX];
    snprintf(options, sizeof options,
             "--cudnn-benchmark --fuse --opt-level O2 --cuda-graph on --engines '%s/engines'",
             folder);
    ck_assert_int_eq(train("A=1", options), 0);
    ck_assert(says("rank0.jsonl", "forward with sums eng4"));
    ck_assert(says("rank0.jsonl", "\"cuda_graph\":true"));
    ck_assert(says("engines", "\n[resnet8 at 8, batch 2, fp16, fused; "));
    ck_assert(says("engines", " sums=eng4") && says("engines", " gate=eng4"));
    ck_assert(says("engines", " apply=eng4") && says("engines", " weigh=eng4"));
    snprintf(options, sizeof options, "--fuse --opt-level O2 --engines '%s/engines'", folder);
    ck_assert_int_eq(train("A=1", options), 0);
    ck_assert(!says("rank0.jsonl", "best of ") && says("rank0.jsonl", "forward with sums eng4"));
    ck_assert(says("rank0.jsonl", "; gated backward data with sums eng4"));
    ck_assert(!says("log", "fused passes"));
    char command[3 * PATH_MAX]; /* as a program before gated gradients wrote it */
    snprintf(command, sizeof command, "sed -i 's/ gate=.*//' '%s/engines'", folder);
    ck_assert_int_eq(exit_code(system(command)), 0);
    ck_assert_int_eq(train("A=1", options), 0);
    ck_assert(!says("rank0.jsonl", "gated backward data"));
    ck_assert(says("log", "warning: --engines '") &&
              says("log", "/engines': section [resnet8 at 8, "));
    ck_assert(says("log", "lacks the engines of 9 fused passes that this run could use; remove the "
                          "section, and the next run writes it again"));
    snprintf(options, sizeof options, "--opt-level O2 --engines '%s/engines'", folder);
    ck_assert_int_eq(train("A=1", options), 0);
    ck_assert(!says("rank0.jsonl", "forward with sums"));
    ck_assert(says("engines", "\n[resnet8 at 8, batch 2, fp16; "));
}

/* A shape whose sums are wrong is named with its layer; the plain forward trains. */
TEST(a_rejected_shape_is_not_fused)
{
    ck_assert_int_eq(train("LS_EMULATED_CONV_WRONG=sums:tile", "--fuse --opt-level O2"), 0);
    ck_assert(says("log",
                   "warning: conv1, and layers of its shape: the forward with sums of engine "
                   "eng41_k2=0_k14=3 is not used: on exact data the mean of y in channel "));
    ck_assert(!says("rank0.jsonl", "forward with sums"));
    ck_assert(says("rank0.jsonl", "gated backward data with sums"));
    ck_assert_int_eq(train("LS_EMULATED_CONV_WRONG=gate:mask", "--fuse --opt-level O2"), 0);
    ck_assert(says("log",
                   "warning: layer1.0.conv2, and layers of its shape: the gated backward data with "
                   "sums of engine eng41_k2=0_k14=3 is not used: on exact data a value of g in "));
    ck_assert(says("rank0.jsonl", "forward with sums"));
    ck_assert(!says("rank0.jsonl", "gated backward data with sums"));
}

TEST(phases_by_the_device)
{
    ck_assert_int_eq(train("A=1", "--trace --comm self"), 0);
    static const char *const phases[] = {
        "\"forward\":", "\"backward\":",     "\"optimizer\":",
        "\"comm\":",    "\"comm_exposed\":", "\"name\":\"bucket 0\""};
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
        ck_assert_msg(says("rank0.jsonl", phases[i]), "%s", phases[i]);
    }
    ck_assert(says("rank0.jsonl", "\"cuda_graph\":\"--trace\""));
}

static const struct refusal {
    const char *environment, *options;
    int code;
    const char *log;
} refusals[] = {
    {"A=1", "--cuda-graph on --trace", 2, "a step cannot be recorded: --trace"},
    {"A=1", "--cuda-graph on --accumulate 2", 2, "a step cannot be recorded: --accumulate"},
    {"A=1", "--cuda-graph on --overflow-at 2", 2, "a step cannot be recorded: --overflow-at"},
    {"A=1", "--cudnn-benchmark --deterministic", 2, "--cudnn-benchmark with --deterministic"},
    {"A=1", "--fuse --deterministic", 2, "--fuse with --deterministic"},
    {"A=1", "--fuse --opt-level O0", 2, "--fuse with --opt-level O0"},
    {"A=1", "--device cpu --fuse", 4, "--fuse is not offered"},
    {"A=1", "--resident 2 --dump-steps 1", 2, "--resident with --dump-steps"},
    {"A=1", "--resident 2 --data batches:/nowhere", 2, "allowed with synthetic data"},
    {"A=1", "--device cpu --resident 2", 4, "--resident is not offered"},
    {"A=1", "--device cpu --cuda-graph on", 2, "the device has no graphs"},
    {"A=1", "--comm gloo", 2, "its engine: nccl"},
    {"LS_EMULATED_DEVICES=0", "", 3, "no NVIDIA GPU is visible"},
    {"LS_EMULATED_DRIVER=12020", "", 3, "the driver is for CUDA 12.2"},
    {"LS_EMULATED_CAPABILITY=75", "", 3, "compute capability 7.5; 8.0 (A100) or newer"},
};

ROWS_TEST(refused_in_one_line, refusals)
{
    const struct refusal *row = &refusals[_i];
    int code = train(row->environment, row->options);
    char *log = read_file("log");
    ck_assert_msg(code == row->code, "%s: code %d: %s", row->options, code, log);
    ck_assert_msg(strstr(log, row->log) != NULL, "%s: %s", row->options, log);
    const char *device = strstr(log, "device: "); /* of a rank that had opened it */
    const char *line = device == log ? strchr(log, '\n') + 1 : log;
    ck_assert_ptr_eq(strchr(line, '\n'), line + strlen(line) - 1);
    free(log);
    /* what is not offered is said to the judge, too */
    const char *option = strstr(row->options, "--device cpu ");
    if (row->code == 4 && option != NULL) {
        char event[160];
        option += strlen("--device cpu ");
        snprintf(event, sizeof event,
                 "{\"event\":\"unsupported\",\"schema\":1,\"option\":\"%.*s\",\"why\":\"",
                 (int)strcspn(option, " "), option);
        ck_assert(says("rank0.jsonl", event));
    }
}

TEST_MAIN("cuda_train", .timeout_s = 60, .before = set_up, .after = tear_down)
