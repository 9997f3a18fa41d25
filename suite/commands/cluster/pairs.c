/* `lockstep pairs`: times every pair of nodes, all pairs of a round at the same time, and names the
 * node or the link that is slower than the others.
 *
 *   nodes -> a job of one rank on each: lockstep-collectives --pairs -> <folder>/rank<k>.jsonl
 *   rank<k>.jsonl -> per pass: each node's computation over the median of all, each pair's exchange
 *   over the fast ones (quartile) -> a node, a node's link or one link is slow where its lower
 *   bound over the passes lies beyond the limit -> the terminal, pairs.json, table and heat map
 */
#include "suite/commands/commands.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/hosts/probe.h"
#include "harness/report/page.h"
#include "harness/report/stats.h"
#include "harness/report/tables/table.h"
#include "harness/run/job.h"
#include "kernels/core/file.h"
#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "suite/run/command_line.h"
#include "suite/suite.h"

enum { NODES_LEAST = 4, NODES_MOST = 256, PASSES_MOST = 64, SHOWN_NODES = 12 };

static const ls_tol limit = LS_TOL(1.15, "times the others: the lower end of 95 % of the passes "
                                         "lies beyond it in no run of equal nodes");

/* Times as logarithms, less those of the others in the same pass. */
typedef struct slow {
    ls_stats_interval node[NODES_MOST], link[NODES_MOST]; /* computation; all exchanges */
    ls_stats_interval *pair;                              /* [nodes * nodes] */
} slow;

typedef struct pairs {
    bool crowded; /* the nodes share this machine's cores, and its memory in place of links */
    int nodes, passes, rounds;
    double bytes;
    char name[NODES_MOST][LS_HOSTS_NAME_BYTES];
    /* Behind the passes one of the best of all: other programs only lengthen times. */
    double *us;       /* [passes + 1][nodes * nodes], of the later of the two; NaN: not measured */
    double *probe_ms; /* [passes + 1][nodes][rounds] */
    int reading;      /* the rank whose events are read */
    slow slow;
    cJSON *named; /* {"what": "node"|"link"|"pair", "nodes": [...], "ratio", "low", "high"} */
} pairs;

static double *us_at(const pairs *p, int pass, int a, int b)
{
    return &p->us[(pass * p->nodes + a) * p->nodes + b];
}

/* ---- reading --------------------------------------------------------------------------------- */

static ls_status take_start(void *context, const cJSON *event, int line)
{
    (void)line;
    pairs *p = context;
    if (strcmp(ls_json_string(event, "event", ""), "start") == 0) {
        p->nodes = ls_json_int(event, "world", 0);
    } else if (strcmp(ls_json_string(event, "event", ""), "pair") == 0) {
        int pass = ls_json_int(event, "pass", 0);
        p->passes = pass >= p->passes && pass < PASSES_MOST ? pass + 1 : p->passes;
    }
    return LS_OK;
}

static ls_status take_pair(void *context, const cJSON *event, int line)
{
    (void)line;
    pairs *p = context;
    int pass = ls_json_int(event, "pass", -1), round = ls_json_int(event, "round", -1);
    int other = ls_json_int(event, "other", -1), me = p->reading;
    double us = ls_json_number(event, "us", NAN);
    if (strcmp(ls_json_string(event, "event", ""), "pair") != 0 || pass < 0 || pass >= p->passes ||
        round < 0 || round >= p->rounds) {
        return LS_OK;
    }
    p->probe_ms[(pass * p->nodes + me) * p->rounds + round] =
        ls_json_number(event, "probe_ms", NAN);
    if (other >= 0 && other < p->nodes && us > 0) {
        double *mine = us_at(p, pass, me, other), *theirs = us_at(p, pass, other, me);
        *mine = *theirs = isnan(*theirs) || us > *theirs ? us : *theirs;
        p->bytes = ls_json_number(event, "bytes", p->bytes);
    }
    return LS_OK;
}

static double *unmeasured(int passes, int each)
{
    double *list = ls_list_make((size_t)(passes * each), sizeof *list);
    for (int i = 0; i < passes * each; i++) {
        list[i] = NAN;
    }
    return list;
}

static void take_best(double *list, int passes, int each)
{
    for (int i = 0; i < passes * each; i++) {
        double *best = &list[passes * each + i % each];
        *best = fmin(*best, list[i]); /* of NaN and a number the number */
    }
}

static ls_status read_events(pairs *p, const char *folder)
{
    LS_TEXT(first, PATH_MAX, "%s/rank0.jsonl", folder);
    LS_TRY(ls_json_each_line(first, take_start, p));
    if (p->nodes < 2 || p->nodes > NODES_MOST || p->passes == 0) {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s: %d passes of pairs among %d ranks; needed: those of "
                           "lockstep-collectives --pairs, 2 to %d ranks",
                           first, p->passes, p->nodes, NODES_MOST);
    }
    p->rounds = p->nodes + p->nodes % 2 - 1;
    p->us = unmeasured(p->passes + 1, p->nodes * p->nodes);
    p->probe_ms = unmeasured(p->passes + 1, p->nodes * p->rounds);
    for (p->reading = 0; p->reading < p->nodes; p->reading++) {
        LS_TEXT(path, PATH_MAX, "%s/rank%d.jsonl", folder, p->reading);
        LS_TRY(ls_json_each_line(path, take_pair, p));
    }
    for (int i = 0; i < p->passes * p->nodes * p->rounds; i++) {
        if (!(p->probe_ms[i] > 0)) {
            return ls_log_fail(LS_ERR_INFRA, "%s: rank %d has not measured all of %d passes",
                               folder, i / p->rounds % p->nodes, p->passes);
        }
    }
    take_best(p->us, p->passes, p->nodes * p->nodes);
    take_best(p->probe_ms, p->passes, p->nodes * p->rounds);
    return LS_OK;
}

/* ---- who is slow ----------------------------------------------------------------------------- */

/* The logarithm of a node's computation over the median of all at the same time, in one pass. */
static double computed(const pairs *p, int pass, int node)
{
    double *over = ls_list_make((size_t)p->rounds, sizeof *over), all[NODES_MOST];
    for (int r = 0; r < p->rounds; r++) {
        for (int k = 0; k < p->nodes; k++) {
            all[k] = log(p->probe_ms[(pass * p->nodes + k) * p->rounds + r]);
        }
        over[r] = all[node] - ls_stats_percentile(all, p->nodes, 0.5);
    }
    double middle = ls_stats_percentile(over, p->rounds, 0.5);
    free(over);
    return middle;
}

/* The logarithm of the fast pairs of a pass: their quartile, since one slow node has up to half of
 * all pairs. */
static double fast_pairs(const pairs *p, int pass)
{
    int count = 0;
    double *all = ls_list_make((size_t)(p->nodes * p->nodes), sizeof *all);
    for (int a = 0; a < p->nodes; a++) {
        for (int b = a + 1; b < p->nodes; b++) {
            all[count++] = log(*us_at(p, pass, a, b));
        }
    }
    double fast = ls_stats_percentile(all, count, 0.25);
    free(all);
    return fast;
}

static double exchanged(const pairs *p, int pass, int node)
{
    int count = 0;
    double all[NODES_MOST];
    for (int b = 0; b < p->nodes; b++) {
        if (b != node) {
            all[count++] = log(*us_at(p, pass, node, b));
        }
    }
    return ls_stats_percentile(all, count, 0.5) - fast_pairs(p, pass);
}

/* To say which one is slow. */
static bool is_enough(const pairs *p)
{
    return p->nodes >= NODES_LEAST && p->passes >= LS_STATS_COUNT_MIN && !p->crowded;
}

/* Of nearly all passes, and of the best. */
static bool is_beyond(const ls_stats_interval *found, double best, double explained)
{
    return fmin(found->low, best) - explained > log(limit.value);
}

static void add_named(pairs *p, const char *what, int a, int b, const ls_stats_interval *found)
{
    if (!is_enough(p)) {
        return;
    }
    cJSON *one = ls_json_append_object(p->named);
    cJSON_AddStringToObject(one, "what", what);
    cJSON *nodes = cJSON_AddArrayToObject(one, "nodes");
    cJSON_AddItemToArray(nodes, cJSON_CreateNumber(a));
    if (b >= 0) {
        cJSON_AddItemToArray(nodes, cJSON_CreateNumber(b));
    }
    ls_json_add_number(one, "ratio", exp(found->value));
    ls_json_add_number(one, "low", exp(found->low));
    ls_json_add_number(one, "high", exp(found->high));
}

/* What a node's computation explains is not its link's, and what both links explain no pair's. */
static void find_slow(pairs *p)
{
    double *passes = ls_list_make((size_t)p->passes + 1, sizeof *passes), links[NODES_MOST];
    p->slow.pair = ls_list_make((size_t)(p->nodes * p->nodes), sizeof *p->slow.pair);
    p->named = cJSON_CreateArray();
    for (int k = 0; k < p->nodes; k++) {
        for (int i = 0; i < p->passes; i++) {
            passes[i] = computed(p, i, k);
        }
        p->slow.node[k] = ls_stats_paired(passes, p->passes);
        for (int i = 0; i < p->passes; i++) {
            passes[i] = exchanged(p, i, k);
        }
        p->slow.link[k] = ls_stats_paired(passes, p->passes);
        bool computes = is_beyond(&p->slow.node[k], computed(p, p->passes, k), 0);
        bool sends = is_beyond(&p->slow.link[k], exchanged(p, p->passes, k),
                               computes ? p->slow.node[k].value : 0);
        links[k] = computes || sends ? fmax(0, p->slow.link[k].value) : 0;
        if (computes) {
            add_named(p, "node", k, -1, &p->slow.node[k]);
        }
        if (sends) {
            add_named(p, "link", k, -1, &p->slow.link[k]);
        }
    }
    for (int a = 0; a < p->nodes; a++) {
        for (int b = a + 1; b < p->nodes; b++) {
            ls_stats_interval *pair = &p->slow.pair[a * p->nodes + b];
            for (int i = 0; i <= p->passes; i++) {
                passes[i] = log(*us_at(p, i, a, b)) - fast_pairs(p, i);
            }
            *pair = p->slow.pair[b * p->nodes + a] = ls_stats_paired(passes, p->passes);
            if (is_beyond(pair, passes[p->passes], links[a] + links[b])) {
                add_named(p, "pair", a, b, pair);
            }
        }
    }
    free(passes);
}

/* ---- output ---------------------------------------------------------------------------------- */

static void print_named(const pairs *p, const cJSON *one)
{
    const cJSON *nodes = ls_json_get(one, "nodes");
    const char *what = ls_json_string(one, "what", "");
    const char *a = p->name[cJSON_GetArrayItem(nodes, 0)->valueint];
    LS_TEXT(of, 2 * LS_HOSTS_NAME_BYTES + 40, "%s", a);
    if (strcmp(what, "node") == 0) {
        ls_text_put(of, sizeof of, "%s computes", a);
    } else if (strcmp(what, "link") == 0) {
        ls_text_put(of, sizeof of, "the link of %s takes", a);
    } else {
        ls_text_put(of, sizeof of, "the link between %s and %s takes", a,
                    p->name[cJSON_GetArrayItem(nodes, 1)->valueint]);
    }
    LS_TEXT(line, sizeof of + 80, "slow     %s %.2f [%.2f, %.2f] times as long as the others", of,
            ls_json_number(one, "ratio", NAN), ls_json_number(one, "low", NAN),
            ls_json_number(one, "high", NAN));
    ls_report_lines_print(stdout, line, 9);
}

static void print_matrix(const pairs *p)
{
    printf("%-20s computes  exchanges with\n%31s", "times the others", "");
    for (int b = 0; b < p->nodes; b++) {
        printf("%4d ", b);
    }
    for (int a = 0; a < p->nodes; a++) {
        printf("\n%3d %-16.16s %8.2f   ", a, p->name[a], exp(p->slow.node[a].value));
        for (int b = 0; b < p->nodes; b++) {
            LS_TEXT(cell, 24, "%4.2f", exp(p->slow.pair[a * p->nodes + b].value));
            printf("%4s ", a == b ? "-" : cell);
        }
    }
    puts("\n");
}

static void print_all(const pairs *p, const char *where)
{
    int slow_count = cJSON_GetArraySize(p->named);
    LS_TEXT(line, 400, "%d nodes, %d pairs, %d passes of %.3g MB: %s", p->nodes,
            p->nodes * (p->nodes - 1) / 2, p->passes, p->bytes * 1e-6, where);
    ls_report_lines_print(stdout, line, 2);
    if (p->nodes <= SHOWN_NODES) {
        print_matrix(p);
    }
    const cJSON *one;
    ls_json_each(one, p->named) {
        print_named(p, one);
    }
    if (p->crowded) {
        puts(
            "PAIRS    not shown (simulated nodes share cores and have no links without --sim-net)");
    } else if (!is_enough(p)) {
        printf("PAIRS    not shown (%d nodes, %d passes; %d and %d are needed to say which is "
               "slow)\n",
               p->nodes, p->passes, NODES_LEAST, LS_STATS_COUNT_MIN);
    } else if (slow_count > 0) {
        printf("PAIRS    uneven (%d slow)\n", slow_count);
    } else {
        printf("PAIRS    even (no node and no link takes %.2f times the others)\n", limit.value);
    }
}

static ls_status write_table(const pairs *p, const ls_report_run *to)
{
    ls_table_head head = {.caption = "All pairs of a round exchange at the same time."};
    ls_text_put(head.title, sizeof head.title, "Exchanges of %.3g MB between %d nodes",
                p->bytes * 1e-6, p->nodes);
    FILE *table =
        ls_table_begin(to, "pairs", &head, "times the fast pairs", "1 node  2 node  3 time");
    LS_TRY_FILE(table);
    for (int i = 0; i < p->nodes * p->nodes; i++) {
        double value = exp(p->slow.pair[i].value);
        bool self = i / p->nodes == i % p->nodes;
        fprintf(table, self ? "%d\t%d\tNaN\n" : "%d\t%d\t%.4f\n", i / p->nodes, i % p->nodes,
                value);
    }
    return ls_file_close(table, "pairs.tsv");
}

static ls_status write_out(const pairs *p, const char *folder)
{
    ls_report_run to = {.job_count = 0};
    char scripts[PATH_MAX] = "";
    ls_text_put(to.directory, sizeof to.directory, "%s", folder);
    LS_TEXT(tables, PATH_MAX, "%s/tables", folder);
    LS_TEXT(json, PATH_MAX, "%s/pairs.json", folder);
    LS_TRY(ls_path_make_folder(tables));
    LS_TRY(write_table(p, &to));
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "schema", 1);
    cJSON_AddNumberToObject(root, "passes", p->passes);
    ls_json_add_number(root, "bytes", p->bytes);
    ls_json_add_number(root, "limit", limit.value);
    cJSON *nodes = cJSON_AddArrayToObject(root, "nodes");
    for (int k = 0; k < p->nodes; k++) {
        cJSON *node = ls_json_append_object(nodes);
        cJSON_AddStringToObject(node, "name", p->name[k]);
        ls_json_add_number(node, "computes", exp(p->slow.node[k].value));
        ls_json_add_number(node, "exchanges", exp(p->slow.link[k].value));
    }
    cJSON_AddItemToObject(root, "slow", cJSON_Duplicate(p->named, true));
    LS_TRY(ls_json_write_and_free(json, root));
    (void)ls_path_find("plots", scripts, sizeof scripts);
    LS_TRY(ls_report_plots_draw(NULL, to.directory, scripts, "pairs"));
    printf("written: pairs.json, tables and plots in %s\n", folder);
    return LS_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

typedef struct request {
    const char *nodes, *hostfile, *local, *net, *record, *megabytes, *passes, *device, *out;
    ls_hosts hosts;
    ls_simnet simulated;
    char where[200];
} request;

static ls_status find_nodes(request *r, const char *folder, ls_job *job)
{
    const char *file = r->hostfile;
    int64_t local = 0;
    LS_TRY(r->local != NULL
               ? ls_command_whole("--local-nodes", r->local, 2, LS_SIMNET_NODES_MAX, &local)
               : LS_OK);
    if ((r->nodes != NULL) + (file != NULL) + (r->local != NULL) != 1) {
        return ls_log_fail(LS_ERR_USAGE, "which nodes? Give one of --nodes, --hostfile, "
                                         "--local-nodes and --record");
    }
    if (r->local != NULL) {
        ls_link link = {0, 0, true};
        job->world = job->local_nodes = (int)local;
        ls_text_put(r->where, sizeof r->where, "simulated on this machine");
        if (r->net == NULL) {
            return LS_OK;
        }
        if (strcmp(r->net, "1") != 0 && !ls_simnet_link(r->net, &link)) {
            return ls_log_fail(LS_ERR_USAGE,
                               "--sim-net '%s': allowed: 1, or a rate and a delay such as "
                               "1Gbit,50us",
                               r->net);
        }
        LS_TRY(ls_simnet_open((int)local, &link, &r->simulated));
        job->net = &r->simulated;
        ls_text_add(r->where, sizeof r->where, ", %s", r->simulated.text);
        return LS_OK;
    }
    if (r->net != NULL) {
        return ls_log_fail(LS_ERR_USAGE, "--sim-net %s: only with --local-nodes", r->net);
    }
    LS_TRY(ls_hosts_read(r->nodes, file, &r->hosts));
    ls_probe *probe = ls_list_make((size_t)r->hosts.count, sizeof *probe);
    const ls_probe_question question = {
        .folder = folder, .device = r->device, .ranks = 1, .oversubscribe = false};
    ls_status status = ls_probe_hosts(&r->hosts, &question, probe);
    free(probe);
    job->world = job->host_count = r->hosts.count;
    job->hosts = &r->hosts;
    job->local_nodes = 1;
    ls_hosts_describe(&r->hosts, r->where, sizeof r->where);
    return status;
}

static ls_status make_command(const request *r, int64_t bytes, int64_t passes, ls_job *job)
{
    char program[PATH_MAX];
    ls_path_program(program, sizeof program);
    ls_words_add(&job->command, "%s/lockstep-collectives", program);
    ls_words_add(&job->command, "--ops=none");
    ls_words_add(&job->command, "--iters=3");
    ls_words_add(&job->command, "--pairs=%d", (int)passes);
    ls_words_add(&job->command, "--counts=%lld", (long long)(bytes / 4));
    ls_words_add(&job->command, "--device=%s", r->device);
    return LS_OK;
}

/* LS_ERR_CHECK never: what a rank leaves with is infrastructure here. */
static ls_status run(request *r, char *folder, size_t bytes)
{
    enum { MEGABYTES = 1000000 };
    int64_t megabytes = 0, passes = 0;
    ls_job job = {.id = "pairs", .label = "pairs of nodes", .threads = 1, .grace_s = 5};
    ls_outcome outcome = {0};
    bool resumed = false;
    LS_TRY(ls_command_whole("--megabytes", r->megabytes, 1, 1024, &megabytes));
    LS_TRY(ls_command_whole("--passes", r->passes, LS_STATS_COUNT_MIN, PASSES_MOST, &passes));
    LS_TRY(ls_command_device(r->device));
    LS_TRY(ls_command_run_folder(r->out, "pairs", folder, bytes));
    ls_status status = find_nodes(r, folder, &job);
    /* 10 MB/s is far below any training network; a minute for ranks to start */
    job.limit_s = 60 + (double)passes * (job.world + 1) * (1 + 0.8 * (double)megabytes);
    ls_text_put(job.directory, sizeof job.directory, "%s", folder);
    LS_THEN(status, make_command(r, megabytes * MEGABYTES, passes, &job));
    LS_THEN(status, ls_job_run(&job, NULL, NULL, &outcome, &resumed));
    if (status == LS_OK && outcome.state != LS_OUTCOME_DONE) {
        status = ls_log_fail(LS_ERR_INFRA,
                             "the ranks did not end well: rank %d, exit code %d; "
                             "logs: %s/rank*.log",
                             outcome.first_rank, outcome.code, folder);
    }
    ls_outcome_free(&outcome);
    ls_job_free(&job);
    if (r->simulated.nodes > 0) {
        ls_simnet_close(&r->simulated);
    }
    return status;
}

static void name_nodes(const request *r, pairs *p)
{
    for (int k = 0; k < p->nodes; k++) {
        LS_TEXT(node, 24, "node %d", k);
        ls_text_put(p->name[k], sizeof p->name[k], "%s",
                    r->hosts.count == p->nodes ? r->hosts.host[k].name : node);
    }
}

static ls_status judge(const request *r, const char *folder, pairs *p)
{
    p->crowded = r->local != NULL && r->net == NULL;
    LS_TRY(read_events(p, folder));
    name_nodes(r, p);
    find_slow(p);
    print_all(p, r->where);
    LS_TRY(write_out(p, folder));
    return cJSON_GetArraySize(p->named) > 0 ? LS_ERR_CHECK : LS_OK;
}

int ls_pairs_main(int count, char **argument)
{
    request *r = ls_list_make(1, sizeof *r);
    *r = (request){.megabytes = "4",
                   .passes = "7",
                   .device = "cpu",
                   .out = "results/runs",
                   .where = "recorded"};
    char folder[512];
    const ls_command_option known[] = {
        {"--nodes", &r->nodes, NULL, NULL, "hosts by ssh: a,b,c, or slurm"},
        {"--hostfile", &r->hostfile, NULL, NULL, "file with a host a line"},
        {"--local-nodes", &r->local, NULL, NULL, "simulate N nodes on this machine"},
        {"--sim-net", &r->net, NULL, NULL,
         "with --local-nodes, as root: a network of their own, 1 or a link such as 1Gbit,50us"},
        {"--record", &r->record, NULL, NULL,
         "or judge the folder that lockstep-collectives --pairs wrote under another launcher"},
        {"--megabytes", &r->megabytes, NULL, NULL, "of an exchange, 1 to 1024 (4)"},
        {"--passes", &r->passes, NULL, NULL, "times that each pair meets, 6 to 64 (7)"},
        {"--device", &r->device, NULL, NULL, "whose memory is exchanged: cpu, cuda or auto (cpu)"},
        {"--out", &r->out, NULL, NULL, "folder of the runs (results/runs)"},
    };
    pairs *p = ls_list_make(1, sizeof *p);
    ls_status status =
        ls_command_parse("pairs", known, sizeof known / sizeof *known, &count, argument);
    LS_THEN(status, ls_command_no_operands("pairs", count, argument, ""));
    if (status == LS_OK && r->record != NULL) {
        ls_command_absolute(r->record, folder, sizeof folder);
    } else if (status == LS_OK) {
        status = run(r, folder, sizeof folder);
    }
    LS_THEN(status, judge(r, folder, p));
    free(p->us);
    free(p->probe_ms);
    free(p->slow.pair);
    cJSON_Delete(p->named);
    free(p);
    free(r);
    return (int)status;
}
