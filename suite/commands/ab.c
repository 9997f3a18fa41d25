/* `lockstep ab`: two stacks (a library, an engine, variables, a build, a trainer) in alternating
 * blocks of the same minutes: which is faster, and whether their bits are the same. */
#include "commands.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/hosts/launchers.h"
#include "harness/report/stats.h"
#include "harness/run/record.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "suite/run/command_line.h"
#include "turns.h"

enum {
    SIDES = 2, /* a, b */
    PAIRS_MAX = 64,
    BITS_STEPS = 3,
    WARMUP_STEPS = 3,
    BLOCKS = 4,          /* of each side in a pair, or more */
    BLOCK_STEPS = 2,     /* or more */
    STEPS_MAX = 1000000, /* none gets there */
};
static const double BLOCK_S = 0.2;
/* What addresses alone make of the same program (Mytkowicz et al. 2009, "Producing wrong data
 * without doing anything obviously wrong") is no difference of stacks: the interval must lie
 * beyond. */
static const double LEAST_DIFFERENCE = 0.005;

static const char *const names[] = {"a", "b"};

typedef struct side {
    const char *text; /* as given */
    ls_words trainer; /* "env NAME=VALUE...", where there are any, and the command */
    ls_words options; /* its own, behind those of both */
} side;

/* Whether two runs of some steps wrote the same. */
typedef struct bits {
    int compared;     /* losses and digests */
    int step;         /* the first that differs; 0: none */
    const char *what; /* differs there first */
    double loss_most; /* difference, of loss_step */
    int loss_step;
} bits;

typedef struct ab {
    ls_turns_setting what;
    side side[SIDES];
    ls_words more;      /* options of both */
    int pairs, seconds; /* of a pair */
    char folder[PATH_MAX];
    double ms[SIDES][PAIRS_MAX], median_ms[SIDES][PAIRS_MAX]; /* fastest and median step */
    double log_ratio[PAIRS_MAX];                              /* of the speeds of b and a */
    bool hashes[SIDES];                                       /* it takes --digest */
    bool repeats;                                             /* a has the same bits twice */
    bits bits;
} ab;

/* ---- the two sides --------------------------------------------------------------------------- */

static bool is_variable(const char *word)
{
    size_t name = strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");
    return name > 0 && word[name] == '=' && (word[0] < '0' || word[0] > '9');
}

/* A variable by which a rank finds its place. */
static bool is_place(const char *word)
{
    static const char *const own[] = {"MASTER_ADDR=", "MASTER_PORT=", "LS_RUN_DIR=", "LS_TOKEN="};
    bool place = ls_launchers_is_place(word);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        place = place || strncmp(word, own[i], strlen(own[i])) == 0;
    }
    return place;
}

static void add_all(ls_words *to, const ls_words *from, int first)
{
    for (int i = first; i < from->count; i++) {
        ls_words_add(to, "%s", from->word[i]);
    }
}

/* NAME=VALUE..., then a command, or options of the subject's. */
static ls_status read_side(const char *option, const char *text, const char *subject, side *out)
{
    char why[400];
    ls_words words = {0, 0, NULL}, common = {0, 0, NULL};
    ls_status status = LS_OK;
    int at = 0;
    if (text == NULL) {
        return ls_log_fail(LS_ERR_USAGE, "%s is missing; \"\" stands for the stack as it is",
                           option);
    }
    out->text = text;
    ls_words_split(&words, text);
    ls_words_split(&common, subject);
    for (; at < words.count && is_variable(words.word[at]) && status == LS_OK; at++) {
        if (is_place(words.word[at])) {
            status = ls_log_fail(LS_ERR_USAGE, "%s '%s': each rank has its own; allowed: others",
                                 option, words.word[at]);
        }
        if (at == 0) {
            ls_words_add(&out->trainer, "env");
        }
        ls_words_add(&out->trainer, "%s", words.word[at]);
    }
    bool own = at < words.count && words.word[at][0] != '-';
    const char *program = own ? words.word[at] : common.count > 0 ? common.word[0] : "";
    if (status == LS_OK && ls_path_check_program(program, why, sizeof why) != 0) {
        status = ls_log_fail(LS_ERR_USAGE, "%s: cannot run '%s': %s", own ? option : "--subject",
                             program, why);
    }
    add_all(&out->trainer, own ? &words : &common, own ? at : 0);
    add_all(&out->options, &words, own ? words.count : at);
    ls_words_free(&words);
    ls_words_free(&common);
    return status;
}

static void describe(const ab *c, int side, const char *id, int steps, ls_job *job)
{
    ls_turns_job(&c->what, c->folder, id, &c->side[side].trainer, steps, job);
    add_all(&job->command, &c->more, 0);
    add_all(&job->command, &c->side[side].options, 0);
}

/* One line: the side, where it was (`when`), its rank and how that ended. `side`: of the first job.
 */
static ls_status explain_end(const ls_turns *turns, const ls_job *job, int side, const char *when)
{
    const ls_outcome *ended = &turns->outcome;
    ls_record record = {0};
    char line[300], how[40];
    if (ended->first_rank < 0) {
        return ls_log_fail(LS_ERR_INFRA, "%s: not ended after %g s", when, job->limit_s);
    }
    job += ended->first_rank / turns->what->ranks;
    side += ended->first_rank / turns->what->ranks;
    int rank = ended->first_rank % turns->what->ranks;
    ls_text_put(record.directory, sizeof record.directory, "%s", job->directory);
    ls_record_last_line(&record, rank, line, sizeof line);
    ls_text_put(how, sizeof how, ended->signal != 0 ? "code %d (signal %d)" : "code %d",
                ended->code, ended->signal);
    return ls_log_fail(LS_ERR_INFRA, "side %s, %s: rank %d ended with %s%s%s; see %s/rank%d.log",
                       names[side], when, rank, how, line[0] != '\0' ? ": " : "", line,
                       job->directory, rank);
}

/* ---- bits ------------------------------------------------------------------------------------ */

static ls_status run_bits(ab *c, int side, const char *id, const char *option)
{
    ls_job job;
    ls_turns run = {.what = &c->what, .sides = 1};
    describe(c, side, id, BITS_STEPS, &job);
    ls_words_add(&job.command, "--data=batches:%s/batches", c->folder);
    ls_words_add(&job.command, "%s", option);
    ls_status status = ls_turns_run(&job, BITS_STEPS, &run);
    if (status == LS_OK && run.outcome.state != LS_OUTCOME_DONE) {
        status = explain_end(&run, &job, side, "run for the bits");
    }
    ls_turns_free(&run);
    ls_job_free(&job);
    return status;
}

static void compare_step(const ls_record_step *x, const ls_record_step *y, bits *b)
{
    double apart = fabs(x->loss - y->loss);
    if (apart > b->loss_most) {
        b->loss_most = apart;
        b->loss_step = (int)x->step;
    }
    for (int d = -1; d < LS_RECORD_DIGESTS; d++) { /* -1: the loss */
        bool both = d < 0 ? x->loss_bits[0] != '\0' && y->loss_bits[0] != '\0'
                          : (x->digest_mask & y->digest_mask & 1u << d) != 0;
        bool same =
            strcmp(d < 0 ? x->loss_bits : x->digest[d], d < 0 ? y->loss_bits : y->digest[d]) == 0;
        b->compared += both;
        if (both && !same && (b->step == 0 || x->step < b->step)) {
            b->step = (int)x->step;
            b->what = d < 0 ? "loss" : ls_record_digest_name(d);
        }
    }
}

static ls_status compare_bits(ab *c, const char *with, bits *out)
{
    ls_record x = {0}, y = {0};
    LS_TEXT(path, PATH_MAX + 32, "%s/bits.a", c->folder);
    LS_TEXT(other, PATH_MAX + 32, "%s/%s", c->folder, with);
    ls_status status = ls_record_read(path, LS_RECORD_LENIENT, &x);
    LS_THEN(status, ls_record_read(other, LS_RECORD_LENIENT, &y));
    for (int k = 0; k < x.world && k < y.world && status == LS_OK; k++) {
        for (int step = 1; step <= BITS_STEPS; step++) {
            const ls_record_step *one = ls_record_find_step(&x.rank[k], step);
            const ls_record_step *two = ls_record_find_step(&y.rank[k], step);
            if (one != NULL && two != NULL) {
                compare_step(one, two, out);
            }
        }
    }
    if (status == LS_OK && y.world > 0) {
        c->hashes[strcmp(with, "bits.b") == 0] =
            ls_json_get(ls_json_get(y.rank[0].start, "options"), "digest") != NULL;
    }
    ls_record_free(&x);
    ls_record_free(&y);
    return status;
}

/* Both sides, and the first once more, train some steps on the same batches, from the weights that
 * the first one dumped. */
static ls_status find_bits(ab *c)
{
    LS_TEXT(batches, PATH_MAX + 16, "%s/batches", c->folder);
    LS_TEXT(init, PATH_MAX + 64, "--init=%s/bits.a/dump/step000001.rank0.safetensors", c->folder);
    bits again = {0};
    LS_TRY(ls_path_make_chosen(batches, LS_COMMAND_OUT_HINT));
    LS_TRY(ls_turns_write_batches(&c->what, batches, BITS_STEPS));
    LS_TRY(run_bits(c, 0, "bits.a", "--dump-steps=1"));
    LS_TRY(run_bits(c, 0, "bits.again", init));
    LS_TRY(run_bits(c, 1, "bits.b", init));
    LS_TRY(compare_bits(c, "bits.again", &again));
    c->repeats = again.step == 0;
    LS_TRY(compare_bits(c, "bits.b", &c->bits));
    LS_TEXT(dump, PATH_MAX + 16, "%s/bits.a/dump", c->folder);
    ls_path_remove_tree(dump);
    ls_path_remove_tree(batches);
    return LS_OK;
}

static void describe_bits(const ab *c, char *text, size_t bytes)
{
    const bits *b = &c->bits;
    if (b->compared == 0) {
        ls_text_put(text, bytes, "not compared: the events have neither loss_bits nor digests");
    } else if (b->step == 0) {
        ls_text_put(text, bytes, "equal to the bit in %d steps: %d losses and digests", BITS_STEPS,
                    b->compared);
    } else {
        ls_text_put(text, bytes, "differ from step %d of %d on, first in %s; losses", b->step,
                    BITS_STEPS, b->what);
        ls_text_add(text, bytes, b->loss_most > 0 ? " by at most %.3g (step %d)" : " are equal",
                    b->loss_most, b->loss_step);
        ls_text_add(text, bytes, "%s", c->repeats ? "" : "; a differs from itself, too");
    }
}

/* ---- speed ----------------------------------------------------------------------------------- */

static ls_status take_pair(ab *c, const ls_turns *turns, int pair)
{
    for (int side = 0; side < SIDES; side++) {
        LS_TRY(ls_turns_step_ms(turns, side, 0, &c->ms[side][pair]));
        LS_TRY(ls_turns_step_ms(turns, side, 0.5, &c->median_ms[side][pair]));
    }
    double ratio = c->ms[0][pair] / c->ms[1][pair];
    c->log_ratio[pair] = log(ratio);
    printf("pair %2d: a %.3f ms, b %.3f ms, speed b/a %.4f\n", pair + 1, c->ms[0][pair],
           c->ms[1][pair], ratio);
    fflush(stdout);
    return LS_OK;
}

static ls_status run_pair(ab *c, int pair)
{
    ls_job job[SIDES];
    ls_turns turns = {.what = &c->what,
                      .sides = SIDES,
                      .turns = BLOCKS,
                      .turn_steps = BLOCK_STEPS,
                      .turn_s = BLOCK_S,
                      .seconds = c->seconds,
                      .first = pair % 2};
    for (int side = 0; side < SIDES; side++) {
        LS_TEXT(id, sizeof job->id, "pair%02d.%s", pair + 1, names[side]);
        describe(c, side, id, STEPS_MAX, &job[side]);
        ls_words_add(&job[side].command, "--data=synthetic");
        job[side].limit_s += 4 * c->seconds;
        if (c->hashes[side]) {
            ls_words_add(&job[side].command, "--digest=none");
        }
    }
    ls_status status = ls_turns_run(job, STEPS_MAX, &turns);
    if (status == LS_OK && turns.outcome.state != LS_OUTCOME_DONE) {
        LS_TEXT(when, 64, "pair %d, block %d", pair + 1, turns.turn / SIDES);
        status = explain_end(&turns, job, 0, when);
    }
    LS_THEN(status, take_pair(c, &turns, pair));
    ls_turns_free(&turns);
    for (int side = 0; side < SIDES; side++) {
        ls_job_free(&job[side]);
    }
    return status;
}

static cJSON *result_json(const ab *c, ls_stats_interval ratio, const char *verdict)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "schema", 1);
    for (int side = 0; side < SIDES; side++) {
        cJSON *one = cJSON_AddObjectToObject(root, names[side]);
        cJSON_AddStringToObject(one, "given", c->side[side].text);
        cJSON_AddItemToObject(one, "ms", cJSON_CreateDoubleArray(c->ms[side], c->pairs));
        cJSON_AddItemToObject(one, "median_ms",
                              cJSON_CreateDoubleArray(c->median_ms[side], c->pairs));
    }
    ls_stats_add_json(root, "ratio", ratio);
    cJSON_AddStringToObject(root, "verdict", verdict);
    cJSON *bits = cJSON_AddObjectToObject(root, "bits");
    cJSON_AddNumberToObject(bits, "compared", c->bits.compared);
    cJSON_AddNumberToObject(bits, "step", c->bits.step);
    cJSON_AddStringToObject(bits, "what", c->bits.step > 0 ? c->bits.what : "");
    cJSON_AddNumberToObject(bits, "loss_most", c->bits.loss_most);
    cJSON_AddBoolToObject(bits, "a_repeats", c->repeats);
    return root;
}

static ls_status report(const ab *c)
{
    char said[300];
    ls_stats_interval log_ratio = ls_stats_paired(c->log_ratio, c->pairs);
    ls_stats_interval ratio = {exp(log_ratio.value), exp(log_ratio.low), exp(log_ratio.high)};
    double beyond = fmax(-log_ratio.high, log_ratio.low), least = log1p(LEAST_DIFFERENCE);
    const char *verdict = beyond <= least ? "no difference shown"
                          : ratio.low > 1 ? "faster"
                                          : "slower";
    for (int side = 0; side < SIDES; side++) {
        double ms = ls_stats_percentile(c->ms[side], c->pairs, 0.5);
        printf("%s: %.3f ms a step (median %.3f ms), %.2f img/s: '%s'\n", names[side], ms,
               ls_stats_percentile(c->median_ms[side], c->pairs, 0.5),
               c->what.ranks * c->what.batch_size * 1e3 / ms, c->side[side].text);
    }
    ls_stats_sentence(ratio, said, sizeof said);
    if (beyond <= least) {
        ls_text_put(said, sizeof said, "%s, none above %.1f %%", verdict,
                    100 * fmax(fmax(1 - ratio.low, ratio.high - 1), LEAST_DIFFERENCE));
    }
    printf("speed b/a %.4f [%.4f, %.4f]: %s%s\n", ratio.value, ratio.low, ratio.high,
           beyond <= least ? "" : "b is ", said);
    describe_bits(c, said, sizeof said);
    printf("bits: %s\n", said);
    LS_TEXT(path, PATH_MAX + 16, "%s/ab.json", c->folder);
    LS_TRY(ls_json_write_and_free(path, result_json(c, ratio, verdict)));
    printf("%s\n", path);
    return LS_OK;
}

static ls_status compare(ab *c, const char *parent)
{
    LS_TRY(ls_command_run_folder(parent, "ab", c->folder, sizeof c->folder));
    LS_TRY(ls_path_make_chosen(c->folder, LS_COMMAND_OUT_HINT));
    LS_TRY(find_bits(c));
    printf(
        "%d pairs of runs that take turns of %g s; the fastest step of each is compared, as other\n"
        "processes only lengthen steps\n",
        c->pairs, BLOCK_S);
    fflush(stdout);
    for (int pair = 0; pair < c->pairs; pair++) {
        LS_TRY(run_pair(c, pair));
    }
    return report(c);
}

/* The numbers among the options. */
static ls_status read_numbers(const char *const *text, ab *c)
{
    static const struct {
        const char *name;
        int least, most;
    } number[] = {{"--pairs", LS_STATS_COUNT_MIN, PAIRS_MAX},
                  {"--seconds", 1, 3600},
                  {"--image-size", 1, 4096},
                  {"--batch-size", 1, 65536},
                  {"--ranks", 1, LS_HOSTS_RANKS_MAX},
                  {"--threads", 0, 1024}};
    int *const to[] = {&c->pairs,           &c->seconds,    &c->what.image_size,
                       &c->what.batch_size, &c->what.ranks, &c->what.threads};
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        int64_t value;
        LS_TRY(ls_command_whole(number[i].name, text[i], number[i].least, number[i].most, &value));
        *to[i] = (int)value;
    }
    return LS_OK;
}

int ls_ab_main(int count, char **argument)
{
    static const char *const levels[] = {"O0", "O1", "O2", "O3"};
    char program[PATH_MAX];
    ls_path_program(program, sizeof program);
    LS_TEXT(own, PATH_MAX + 16, "%s/lockstep-train", program);
    const char *text[SIDES] = {NULL, NULL}, *subject = own, *out = "results/runs", *level = "O0";
    const char *number[] = {"10", "8", "64", "8", "1", "0"};
    ab c = {.what = {.arch = "resnet18", .warmup_steps = WARMUP_STEPS}};
    const ls_command_option known[] = {
        {"--a", &text[0], NULL, NULL,
         "one stack: variables NAME=VALUE, then a trainer's command, or options; \"\": as it is"},
        {"--b", &text[1], NULL, NULL, "the other, in the same form"},
        {"--subject", &subject, NULL, NULL, "command of a side that names none (lockstep-train)"},
        {"--pairs", &number[0], NULL, NULL, "pairs of runs that take turns, 6 to 64 (10)"},
        {"--seconds", &number[1], NULL, NULL, "least time of a pair (8)"},
        {"--arch", &c.what.arch, NULL, NULL, "network (resnet18)"},
        {"--image-size", &number[2], NULL, NULL, "pixels (64)"},
        {"--batch-size", &number[3], NULL, NULL, "images of a rank and step (8)"},
        {"--opt-level", &level, NULL, NULL, "opt level, O0 to O3 (O0)"},
        {"--ranks", &number[4], NULL, NULL, "ranks of each (1)"},
        {"--threads", &number[5], NULL, NULL, "threads of a rank (0: as the trainer chooses)"},
        {"--out", &out, NULL, NULL, "folder of the runs (results/runs)"},
    };
    LS_TRY(
        ls_command_parse("ab -- OPTION...", known, sizeof known / sizeof *known, &count, argument));
    if (count > 0 && argument[0][0] != '-') {
        return ls_log_fail(LS_ERR_USAGE,
                           "unexpected argument '%s'; behind -- are options of both trainers",
                           argument[0]);
    }
    LS_TRY(read_numbers(number, &c));
    LS_TRY(ls_command_choice("--opt-level", level, levels, 4));
    c.what.level = level[1] - '0';
    for (int i = 0; i < count; i++) {
        ls_words_add(&c.more, "%s", argument[i]);
    }
    ls_status status = read_side("--a", text[0], subject, &c.side[0]);
    LS_THEN(status, read_side("--b", text[1], subject, &c.side[1]));
    LS_THEN(status, compare(&c, out));
    for (int side = 0; side < SIDES; side++) {
        ls_words_free(&c.side[side].trainer);
        ls_words_free(&c.side[side].options);
    }
    ls_words_free(&c.more);
    return status == LS_ERR_CHECK ? LS_ERR_INFRA : (int)status; /* 1: CORRECT is not yes */
}
