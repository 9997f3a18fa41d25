/* Text: the folder of a job, orders and reports of hosts, lists, command lines. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "harness/hosts/hosts.h"
#include "harness/hosts/outcome.h"
#include "harness/hosts/remote.h"
#include "harness/run/record.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "reference/options/options.h"
#include "reference/options/precision.h"
#include "suite/commands/commands.h"
#include "suite/run/select.h"

static const char job_json[] =
    "{\"schema\":1,\"id\":\"a\",\"command\":[\"x\"],\"environment\":{\"WORLD_SIZE\":\"2\"},"
    "\"facts\":{\"role\":\"evidence\",\"world\":2},\"outcome\":{\"state\":\"done\",\"first_rank\":-"
    "1,"
    "\"code\":0,\"signal\":0,\"seconds\":1.5,\"ranks\":[{\"rank\":0,\"code\":0,\"signal\":0,"
    "\"seconds\":1,\"user_s\":1,\"system_s\":0,\"rss_bytes_max\":5},{\"rank\":1,\"code\":0}]}}";
static const char events[] =
    "{\"event\":\"start\",\"schema\":1,\"world\":2,\"options\":{\"arch\":\"resnet8\"}}\n"
    "{\"event\":\"buckets\",\"iteration\":1,\"buckets\":[{\"bytes\":4,\"names\":[\"a\"]}]}\n"
    "{\"event\":\"step\",\"step\":1,\"loss\":2.5,\"loss_bits\":\"0x40200000\",\"loss_scale\":1,"
    "\"loss_scale_next\":1,\"skipped\":false,\"lr\":0.1,\"images\":4,\"digest\":{\"param\":"
    "\"0123456789abcdef\"},\"ms\":{\"total\":5}}\n{\"event\":\"end\",\"step\":1,\"code\":0}\n";

/* The folder is judged as `lockstep judge` judges it: two ranks, of which one's events or job.json
 * are the input. */
static void seed_record(fuzz *f)
{
    char path[PATH_BYTES];
    fuzz_add_seed_text(f, job_json);
    fuzz_add_seed_text(f, events);
    for (int job = 0; job < 2; job++) {
        ls_text_put(path, sizeof path, "%s/jobs/%d/rank0.jsonl", f->recorded, job);
        fuzz_add_seed_file(f, path);
    }
    fuzz_put_file(f, "rank1.jsonl", events, sizeof events - 1);
}

static ls_status count_events(void *context, const cJSON *event, int line)
{
    (void)event, (void)line;
    ++*(int *)context;
    return LS_OK;
}

static void read_record(fuzz *f, const bytes *b)
{
    bool is_job = b->at[0] == '{' && memmem(b->at, b->count, "\"event\"", 7) == NULL;
    fuzz_put_file(f, "job.json", is_job ? b->at : (const void *)job_json,
                  is_job ? b->count : sizeof job_json - 1);
    fuzz_put_file(f, "rank0.jsonl", is_job ? (const void *)events : b->at,
                  is_job ? sizeof events - 1 : b->count);
    ls_record record;
    if (ls_record_read(f->folder, LS_RECORD_LENIENT, &record) == LS_OK) {
        for (int k = 0; k < record.world && k < 2; k++) {
            (void)ls_record_find_step(&record.rank[k], 1);
            (void)ls_record_each_event(&record, k, "step", count_events, &(int){0});
        }
        ls_record_free(&record);
    }
    char *folder = f->folder;
    (void)ls_judge_main(1, &folder);
}

/* The one shard of a run, merged as `lockstep merge` merges it; the input is its run.json or its
 * verdicts. */
static const char shard_json[] =
    "{\"schema\":1,\"title\":\"t\",\"where\":\"CPU\",\"commit\":\"a\",\"dirty\":false,\"options\":{"
    "\"claim\":\"x\",\"gate\":\"none\"},\"selection\":{\"shard\":1,\"shards\":1,\"claim_cases\":3,"
    "\"programs\":\"1\",\"cases\":[\"a.b\",\"a.c\",\"d\"]},\"findings\":[{\"code\":\"XID\"}],"
    "\"headline\":{\"machine\":{\"value\":\"ready\",\"why\":\"w\"}}}";
static const char verdict_lines[] =
    "{\"case\":\"a.b\",\"family\":\"a\",\"in_claim\":true,\"verdict\":\"PASS\",\"seconds\":1}\n"
    "{\"case\":\"d\",\"family\":\"d\",\"in_claim\":true,\"manners\":true,\"verdict\":\"FAIL\","
    "\"kind\":\"inside\",\"evidence\":\"e\",\"cause\":\"c\",\"repeat\":\"r\",\"jobs\":[\"j\"]}\n";

static void seed_shard(fuzz *f)
{
    fuzz_add_seed_text(f, shard_json);
    fuzz_add_seed_text(f, verdict_lines);
}

static void read_shard(fuzz *f, const bytes *b)
{
    char path[PATH_BYTES], out[] = "--out", *argument[] = {f->folder, out, path};
    bool is_run = memmem(b->at, b->count, "\"schema\"", 8) != NULL;
    fuzz_put_file(f, "run.json", is_run ? b->at : (const void *)shard_json,
                  is_run ? b->count : sizeof shard_json - 1);
    fuzz_put_file(f, "verdicts.jsonl", is_run ? (const void *)verdict_lines : b->at,
                  is_run ? sizeof verdict_lines - 1 : b->count);
    (void)fuzz_path(f, "merged", path);
    (void)ls_merge_main(3, argument);
    ls_path_remove_tree(path);
}

static void seed_outcome(fuzz *f)
{
    fuzz_add_seed_text(f, strstr(job_json, "{\"state\""));
    fuzz_add_seed_text(f,
                       "{\"schema\":1,\"directory\":\"/tmp\",\"environment\":{\"FUZZ_A\":\"b\"}}");
}

static void read_outcome(fuzz *f, const bytes *b)
{
    (void)f;
    cJSON *object = cJSON_Parse((const char *)b->at);
    ls_outcome outcome;
    if (object != NULL && ls_outcome_read(object, 0, 2, &outcome)) {
        ls_outcome_free(&outcome);
    }
    cJSON_Delete(object);
    object = NULL;
    (void)ls_remote_session_apply((const char *)b->at, &object);
    cJSON_Delete(object);
}

static void seed_carried(fuzz *f)
{
    fuzz_add_seed_text(f, "said\n{\"carry\":\"file\",\"name\":\"a/b\",\"at\":0,\"bytes\":3}\nabc"
                          "{\"carry\":\"link\",\"name\":\"l\",\"to\":\"a/b\"}\n"
                          "{\"carry\":\"end\",\"pieces\":2,\"bytes\":3}\n");
}

/* A node's stream; nothing can be made below a device. */
static void read_carried(fuzz *f, const bytes *b)
{
    (void)f;
    ls_carry_in in = ls_carry_in_begin("/dev/null/x", -1);
    ls_carry_take(&in, (const char *)b->at, b->count);
    ls_carry_in_close(&in);
}

static void seed_hosts(fuzz *f)
{
    fuzz_add_seed_text(f, "a slots=4 # comment\n\nuser@b.example slots=4\r\n10.0.0.1\n");
    fuzz_add_seed_text(f, "a,b,user@c,fe80::1%eth0");
}

static void read_hosts(fuzz *f, const bytes *b)
{
    ls_hosts hosts;
    int ranks;
    char text[40], path[PATH_BYTES];
    const char *input = (const char *)b->at;
    fuzz_put_file(f, "file", b->at, b->count);
    if (ls_hosts_read_file(fuzz_path(f, "file", path), &hosts) == LS_OK) {
        (void)ls_hosts_ranks(&hosts, (int)fuzz_below(f, 6), &ranks);
        ls_hosts_describe(&hosts, text, sizeof text);
    }
    (void)ls_hosts_parse_list(input, &hosts);
}

/* A list, and as waivers and claims are read: what it keeps of three cases. */
static void seed_lists(fuzz *f)
{
    fuzz_add_seed_text(f,
                       "# title\ngradients.o?.w*  a reason\n*.timed.*\n\nscaler.trace.o1 # why\n");
    fuzz_add_seed_text(f, "gradients.o1.w2.b1mb\nscaler.*\n");
}

static void read_lists(fuzz *f, const bytes *b)
{
    static const char *const id[] = {"gradients.o1.w2.b1mb", "scaler.trace.o1", "ddp.timed.w4"};
    char path[PATH_BYTES];
    ls_select_list list = {0, 0, NULL};
    fuzz_put_file(f, "file", b->at, b->count);
    if (ls_select_load(fuzz_path(f, "file", path), &list) == LS_OK) {
        ls_case row[3] = {0};
        ls_case_list cases = {.count = 3, .capacity = 3, .row = row};
        for (int i = 0; i < 3; i++) {
            ls_text_put(row[i].id, sizeof row[i].id, "%s", id[i]);
            (void)ls_select_find(&list, id[i]);
        }
        (void)ls_select_keep(&cases, &list, (int)fuzz_below(f, 2), 2);
    }
    ls_select_free(&list);
    (void)ls_select_claim((const char *)b->at, &list);
    ls_select_free(&list);
}

/* Command lines of lockstep-train: those that its unit test accepts, in any company, then mutated.
 */
static void seed_options(fuzz *f)
{
    char path[PATH_BYTES];
    LS_ASSERT(ls_path_find("suite/unit/reference/expected/options.txt", path, sizeof path));
    fuzz_add_seed_file(f, path);
    fuzz_add_seed_text(f, "\n0 --deterministic --find-unused --num-classes=1 --timeout=5\n"
                          "0 --growth-interval=3 --resume=/tmp/x --keep-batchnorm-fp32=True\n"
                          "0 --sync-bn --sync-bn-group=3\n0 --master_weights=False --\n");
}

/* A line from a random place on; "0 ARGUMENTS" or "0 rank 0 of 2 -: ARGUMENTS" is accepted. */
static const char *any_arguments(fuzz *f)
{
    const bytes *from = &f->seed[fuzz_below(f, 4) == 0];
    const char *all = (const char *)from->at, *line = NULL;
    while (line == NULL) {
        line = strstr(all + fuzz_below(f, from->count), "\n0 ");
    }
    const char *arguments = strstr(line + 1, ": ");
    bool ranks = strncmp(line + 1, "0 rank ", 7) == 0;
    return ranks && arguments != NULL ? arguments + 2 : line + 3;
}

static void make_options(fuzz *f, bytes *b)
{
    b->count = 0;
    for (size_t left = 1 + fuzz_below(f, 4); left > 0; left--) {
        const char *line = any_arguments(f);
        ls_text_put((char *)b->at + b->count, 256, "%.*s ", (int)strcspn(line, "\n"), line);
        b->count += strlen((char *)b->at + b->count);
    }
    for (size_t left = fuzz_below(f, 3); left > 0; left--) {
        fuzz_mutate(f, b, b->count);
    }
}

/* --help, its letter among others, and --version end the program. */
static bool ends_the_program(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "--usage") == 0 ||
           strcmp(word, "--version") == 0 ||
           (word[0] == '-' && word[1] != '-' && strchr(word, '?') != NULL);
}

static void read_options(fuzz *f, const bytes *b)
{
    (void)f;
    ls_words words = {0}, all = {0};
    ls_words_split(&all, (const char *)b->at);
    ls_words_add(&words, "lockstep-train");
    for (int i = 0; i < all.count; i++) {
        if (!ends_the_program(all.word[i])) {
            ls_words_add(&words, "%s", all.word[i]);
        }
    }
    ls_options options;
    const char *option = NULL, *why = NULL;
    if (ls_options_parse(words.count, words.word, &options, &option, &why) == LS_OK &&
        ls_options_resolve(&options, 0, 2, "/tmp") == LS_OK) {
        ls_dialect_rules rules;
        ls_precision precision;
        ls_dialect_resolve(&options, 2, &rules);
        ls_precision_resolve(&options, &rules, &precision);
        cJSON_Delete(ls_options_json(&options));
    }
    ls_words_free(&words);
    ls_words_free(&all);
}

const reader fuzz_text_readers[] = {
    {"records", seed_record, NULL, read_record, NULL},
    {"shards", seed_shard, NULL, read_shard, NULL},
    {"reports and orders", seed_outcome, NULL, read_outcome, NULL},
    {"carried files", seed_carried, NULL, read_carried, NULL},
    {"hosts", seed_hosts, NULL, read_hosts, NULL},
    {"lists", seed_lists, NULL, read_lists, NULL},
    {"options", seed_options, make_options, read_options, NULL},
    {0},
};
