/* `lockstep pairs`: who meets whom in a round, and which node or link is named, of invented times.
 */
#include "kernels/core/json.h"
#include "reference/comm/exercise.h"
#include "suite/commands/commands.h"
#include "suite/unit/caught.h"
#include "suite/unit/harness/scratch.h"
#include "suite/unit/run_suite.h"

LOOP_TEST(each_meets_each_other_once, 4)
{
    for (int world = 2; world <= 33; world++) {
        bool met[33][33] = {{false}};
        for (int round = 0; round < ls_exercise_rounds(world); round++) {
            int waiting = 0;
            for (int rank = 0; rank < world; rank++) {
                int other = ls_exercise_partner(world, _i, round, rank);
                waiting += other < 0;
                if (other >= 0) {
                    ck_assert_int_eq(ls_exercise_partner(world, _i, round, other), rank);
                    ck_assert(other != rank && !met[rank][other]);
                    met[rank][other] = true;
                }
            }
            ck_assert_int_eq(waiting, world % 2);
        }
        for (int a = 0; a < world; a++) {
            for (int b = 0; b < world; b++) {
                ck_assert(met[a][b] == (a != b));
            }
        }
    }
}

/* ---- invented runs --------------------------------------------------------------------------- */

typedef struct invented {
    int nodes, passes;
    int node, link, pair[2]; /* that are slow, by the factors; -1: none */
    double computes, exchanges;
    int code;
    const char *said;
    int spared; /* a pass, from 1 on, in which nothing is slow; 0: none */
} invented;

/* The same for the same place, so that no run is a matter of luck; within 4 %. */
static double noise(int pass, int a, int b)
{
    unsigned mixed = (unsigned)(pass * 7919 + (a < b ? a * 131 + b : b * 131 + a) * 104729);
    return 1 + 0.04 * ((mixed * 2654435761u >> 16) % 1000) / 1000;
}

static double exchange_us(const invented *i, int pass, int a, int b)
{
    if (pass == i->spared - 1) {
        return 5e4 * noise(pass, a, b);
    }
    bool linked = a == i->link || b == i->link;
    bool paired = (a == i->pair[0] && b == i->pair[1]) || (b == i->pair[0] && a == i->pair[1]);
    bool busy = a == i->node || b == i->node;
    return 5e4 * noise(pass, a, b) * (linked || paired ? i->exchanges : 1) *
           (busy ? i->computes : 1);
}

static void write_ranks(const invented *i)
{
    for (int rank = 0; rank < i->nodes; rank++) {
        LS_TEXT(name, 40, "rank%d.jsonl", rank);
        FILE *to = create(name);
        fprintf(to, "{\"event\":\"start\",\"schema\":1,\"rank\":%d,\"world\":%d}\n", rank,
                i->nodes);
        for (int at = 0; at < i->passes * ls_exercise_rounds(i->nodes); at++) {
            int round = at % ls_exercise_rounds(i->nodes), pass = at / ls_exercise_rounds(i->nodes);
            int other = ls_exercise_partner(i->nodes, pass, round, rank);
            fprintf(to,
                    "{\"event\":\"pair\",\"pass\":%d,\"round\":%d,\"other\":%d,\"bytes\":4e6,"
                    "\"us\":",
                    pass, round, other);
            if (other < 0) {
                fputs("null", to);
            } else {
                fprintf(to, "%.6g", exchange_us(i, pass, rank, other));
            }
            fprintf(to, ",\"probe_ms\":%.6g}\n",
                    50 * noise(pass, rank, 99) * (rank == i->node ? i->computes : 1));
        }
        ck_assert_int_eq(fclose(to), 0);
    }
}

#define NONE   \
    {          \
        -1, -1 \
    }
static const invented runs[] = {
    {6, 7, -1, -1, NONE, 1, 1, 0, "[]"},
    {5, 7, -1, -1, NONE, 1, 1, 0, "[]"},
    {6, 7, 3, -1, NONE, 2, 1, 1, "node 3"},
    {6, 7, -1, 2, NONE, 1, 1.5, 1, "link 2"},
    {5, 7, -1, 4, NONE, 1, 1.5, 1, "link 4"},
    {4, 7, -1, 0, NONE, 1, 1.5, 1, "link 0"},
    {6, 7, -1, -1, {1, 4}, 1, 1.5, 1, "pair 1 4"},
    {6, 7, 5, 0, NONE, 1.3, 1.5, 1, "link 0 node 5"},
    {6, 7, 2, 2, NONE, 1.3, 1.5, 1, "node 2 link 2"},
    {6, 7, 3, -1, NONE, 1.1, 1, 0, "[]"},  /* below the limit */
    {3, 7, 1, -1, NONE, 3, 1, 0, "[]"},    /* too few to compare */
    {6, 7, -1, 2, NONE, 1, 5, 0, "[]", 4}, /* as fast as the others once */
    {6, 5, 3, -1, NONE, 3, 1, 0, "[]"},
};

static int judged(const char *folder)
{
    LS_TEXT(option, 300, "--record=%s", folder);
    return ls_pairs_main(1, (char *[]){option, NULL});
}

ROWS_TEST(the_slow_one_is_named, runs)
{
    char said[300] = "";
    cJSON *json = NULL;
    write_ranks(&runs[_i]);
    ck_assert_int_eq(judged(scratch), runs[_i].code);
    LS_TEXT(path, 300, "%s/pairs.json", scratch);
    ck_assert_int_eq(ls_json_read_file(path, &json), LS_OK);
    const cJSON *one;
    ls_json_each(one, ls_json_get(json, "slow")) {
        ls_text_add(said, sizeof said, "%s%s", said[0] == '\0' ? "" : " ",
                    ls_json_string(one, "what", ""));
        const cJSON *node;
        ls_json_each(node, ls_json_get(one, "nodes")) {
            ls_text_add(said, sizeof said, " %d", node->valueint);
        }
    }
    ck_assert_str_eq(said[0] == '\0' ? "[]" : said, runs[_i].said);
    cJSON_Delete(json);
}

TEST(records_that_say_too_little)
{
    const struct {
        const char *rank1;
        int code;
        const char *says;
    } rows[] = {{"", LS_ERR_INFRA, "rank 1 has not measured all of 7 passes"},
                {NULL, LS_ERR_INFRA, "rank1.jsonl"}};
    write_ranks(&(const invented){4, 7, -1, -1, NONE, 1, 1, 0, NULL});
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].rank1 != NULL) {
            write_text("rank1.jsonl", rows[i].rank1);
        } else {
            LS_TEXT(path, 300, "%s/rank1.jsonl", scratch);
            ck_assert_int_eq(remove(path), 0);
        }
        catch_lines();
        int code = judged(scratch);
        const char *text = caught_text();
        ck_assert_msg(strstr(text, rows[i].says) != NULL, "%s", text);
        ck_assert_int_ne(code, LS_OK);
    }
    write_text("rank0.jsonl", "{\"event\":\"start\",\"world\":4}\n");
    ck_assert_int_eq(judged(scratch), LS_ERR_USAGE);
}

TEST_MAIN("pairs", .timeout_s = 60, .before = open_scratch, .after = close_scratch)
