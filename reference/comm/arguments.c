#include "exercise.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"
#include "kernels/core/usage.h"

static const ls_comm_kind kinds[LS_ARGUMENTS_KINDS] = {
    LS_COMM_ALL_REDUCE, LS_COMM_REDUCE_SCATTER, LS_COMM_ALL_GATHER,
    LS_COMM_BROADCAST,  LS_COMM_REDUCE,         LS_COMM_GATHER,
    LS_COMM_SCATTER,    LS_COMM_SEND,           LS_COMM_ALL_TO_ALL,
};
static const ls_comm_redop redops[LS_ARGUMENTS_REDOPS] = {LS_COMM_SUM, LS_COMM_MAX, LS_COMM_MIN,
                                                          LS_COMM_PROD};
static const ls_dtype dtypes[LS_ARGUMENTS_DTYPES] = {LS_F32, LS_F16, LS_BF16, LS_I64,
                                                     LS_U8,  LS_F64, LS_I32};

enum option_key {
    OPTION_REDOP = 'o',
    OPTION_OPS = 256,
    OPTION_DTYPES,
    OPTION_COUNTS,
    OPTION_IN_PLACE,
    OPTION_OFFSETS,
    OPTION_DATA,
    OPTION_ITERATIONS,
    OPTION_BARRIERS,
    OPTION_PAIRS,
    OPTION_ABSENT,
    OPTION_GROUPS,
    OPTION_GROUP_SIZE,
    OPTION_COMM,
    OPTION_DEVICE,
    OPTION_HEADLINE,
    OPTION_TIMEOUT,
};

static const struct argp_option options[] = {
    {"ops", OPTION_OPS, "LIST", 0, "all_reduce,all_to_all,... [all]", 0},
    {"redop", OPTION_REDOP, "LIST", 0,
     "sum,max,min,prod, or all: of all_reduce, reduce_scatter and reduce [sum]", 0},
    {"dtypes", OPTION_DTYPES, "LIST", 0, "fp32,fp16,bf16,int64,uint8,... [fp32]", 0},
    {"counts", OPTION_COUNTS, "LIST", 0,
     "Elements per rank; W-1 and W+1 stand for the world's size [1024]", 0},
    {"in-place", OPTION_IN_PLACE, "no|yes|both", 0, "Input and result in one buffer [both]", 0},
    {"offsets", OPTION_OFFSETS, "N", 0, "Buffers 0 .. N elements off a 64-byte boundary [0]", 0},
    {"data", OPTION_DATA, "exact|rough", 0,
     "Values whose results are exact, or values that round at every addition [exact]", 0},
    {"iters", OPTION_ITERATIONS, "N", 0, "Iterations of each combination [1]", 0},
    {"barriers", OPTION_BARRIERS, "N", 0, "Also N barriers, to each of which another rank is late",
     0},
    {"pairs", OPTION_PAIRS, "N", 0,
     "Also N passes in which each rank meets each other one: a fixed computation, then an "
     "all-reduce of the first of --counts between the two, all pairs at the same time",
     0},
    {"absent", OPTION_ABSENT, "RANK", 0,
     "Also each operation without this rank: the others must fail at --timeout", 0},
    {"group-size", OPTION_GROUP_SIZE, "N", 0,
     "Groups of N consecutive ranks, each with its own communicator, all at the same time", 0},
    {"groups", OPTION_GROUPS, "LISTS", 0,
     "Groups of these ranks, such as 0,1;2,3; a rank in none waits for them", 0},
    {"headline", OPTION_HEADLINE, NULL, 0,
     "Also, last, 51.2 MB of fp16 all-reduced in place, the gradients of a ResNet-50", 0},
    {"device", OPTION_DEVICE, "auto|cpu|cuda", 0,
     "Whose memory [auto: cuda where the PCI bus shows "
     "an NVIDIA device]",
     0},
    {"comm", OPTION_COMM, "self|gloo|nccl", 0, "Engine [gloo, on cuda nccl; alone: self]", 0},
    {"timeout", OPTION_TIMEOUT, "S", 0, "Deadline of every operation [60]", 0},
    {0},
};

static int number_of(struct argp_state *state, const char *name, const char *text, int least,
                     int most)
{
    int64_t value = 0;
    if (!ls_text_integer(text, least, most, &value)) {
        argp_failure(state, LS_ERR_USAGE, 0, "error: %s '%s': allowed: %d to %d", name, text, least,
                     most);
    }
    return (int)value;
}

static bool in_list(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0')) {
            return true;
        }
    }
    return false;
}

static int commas(const char *list)
{
    int count = 0;
    for (; *list != '\0'; list++) {
        count += *list == ',';
    }
    return count;
}

static void read_ops(struct argp_state *state, const char *list, ls_arguments *given)
{
    given->kind_count = 0;
    for (size_t i = 0; i < LS_ARGUMENTS_KINDS; i++) {
        if (strcmp(list, "all") == 0 || in_list(list, ls_comm_kind_name(kinds[i]))) {
            given->kind[given->kind_count++] = kinds[i];
        }
    }
    if (strcmp(list, "none") != 0 && strcmp(list, "all") != 0 &&
        given->kind_count != commas(list) + 1) {
        argp_failure(state, LS_ERR_USAGE, 0,
                     "error: --ops '%s': allowed: all, none, or some of all_reduce, "
                     "reduce_scatter, all_gather, broadcast, reduce, gather, scatter, send, "
                     "all_to_all",
                     list);
    }
}

static void read_redops(struct argp_state *state, const char *list, ls_arguments *given)
{
    given->redops = list;
    given->redop_count = 0;
    for (size_t i = 0; i < LS_ARGUMENTS_REDOPS; i++) {
        if (strcmp(list, "all") == 0 || in_list(list, ls_comm_redop_name(redops[i]))) {
            given->redop[given->redop_count++] = redops[i];
        }
    }
    if (strcmp(list, "all") != 0 && given->redop_count != commas(list) + 1) {
        argp_failure(state, LS_ERR_USAGE, 0,
                     "error: --redop '%s': allowed: all, or some of sum, max, min, prod", list);
    }
}

static void read_dtypes(struct argp_state *state, const char *list, ls_arguments *given)
{
    given->dtype_count = 0;
    for (size_t i = 0; i < LS_ARGUMENTS_DTYPES; i++) {
        if (in_list(list, ls_dtype_label(dtypes[i]))) {
            given->dtype[given->dtype_count++] = dtypes[i];
        }
    }
    if (given->dtype_count != commas(list) + 1) {
        argp_failure(
            state, LS_ERR_USAGE, 0,
            "error: --dtypes '%s': allowed: some of fp32, fp16, bf16, fp64, int64, int32, uint8",
            list);
    }
}

/* choices: "exact|rough" */
static void read_choice(struct argp_state *state, const char *name, const char *text,
                        const char *choices)
{
    if (ls_text_choice(text, choices) < 0) {
        argp_failure(state, LS_ERR_USAGE, 0, "error: %s '%s': allowed: %s", name, text, choices);
    }
}

static error_t parse_one(int key, char *text, struct argp_state *state)
{
    ls_arguments *given = state->input;
    char *end;
    switch (key) {
    case OPTION_OPS:
        read_ops(state, text, given);
        return 0;
    case OPTION_REDOP:
        read_redops(state, text, given);
        return 0;
    case OPTION_GROUPS:
        given->groups = text;
        return 0;
    case OPTION_GROUP_SIZE:
        given->group_size = number_of(state, "--group-size", text, 1, LS_PATTERN_WORLD_MAX);
        return 0;
    case OPTION_DTYPES:
        read_dtypes(state, text, given);
        return 0;
    case OPTION_COUNTS:
        given->counts = text;
        return 0;
    case OPTION_IN_PLACE:
        read_choice(state, "--in-place", text, "no|yes|both");
        given->in_place[0] = strcmp(text, "yes") != 0;
        given->in_place[1] = strcmp(text, "no") != 0;
        return 0;
    case OPTION_OFFSETS:
        given->offset_max = number_of(state, "--offsets", text, 0, 16);
        return 0;
    case OPTION_DATA:
        read_choice(state, "--data", text, "exact|rough");
        given->data = strcmp(text, "rough") == 0 ? LS_PATTERN_ROUGH : LS_PATTERN_EXACT;
        return 0;
    case OPTION_ITERATIONS:
        given->iterations = number_of(state, "--iters", text, 0, 1000000);
        return 0;
    case OPTION_BARRIERS:
        given->barriers = number_of(state, "--barriers", text, 0, 1000000);
        return 0;
    case OPTION_PAIRS:
        given->pairs = number_of(state, "--pairs", text, 0, 1000);
        return 0;
    case OPTION_ABSENT:
        given->absent = number_of(state, "--absent", text, 0, LS_PATTERN_WORLD_MAX - 1);
        return 0;
    case OPTION_COMM:
        read_choice(state, "--comm", text, "self|gloo|nccl");
        given->comm = text;
        return 0;
    case OPTION_DEVICE:
        read_choice(state, "--device", text, "auto|cpu|cuda");
        given->device = text;
        return 0;
    case OPTION_HEADLINE:
        given->headline = true;
        return 0;
    case OPTION_TIMEOUT:
        given->timeout_s = strtod(text, &end);
        if (*end != '\0' ||
            !(given->timeout_s > 0 && given->timeout_s <= LS_ARGUMENTS_TIMEOUT_MOST_S)) {
            argp_failure(state, LS_ERR_USAGE, 0,
                         "error: --timeout '%s': allowed: above 0, at most %d s", text,
                         LS_ARGUMENTS_TIMEOUT_MOST_S);
        }
        return 0;
    case ARGP_KEY_ARG:
        argp_failure(state, LS_ERR_USAGE, 0, "error: unexpected argument '%s'", text);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

ls_status ls_arguments_read_counts(ls_arguments *given, int world)
{
    const char *at = given->counts;
    for (given->count_count = 0; given->count_count < LS_ARGUMENTS_COUNTS; at++) {
        char *end = NULL;
        errno = 0;
        long long value = 0;
        if (strncmp(at, "W-1", 3) == 0 || strncmp(at, "W+1", 3) == 0) {
            value = at[1] == '-' ? world - 1 : world + 1;
            end = (char *)at + 3;
        } else {
            value = strtoll(at, &end, 10);
        }
        if (errno != 0 || end == at || (*end != ',' && *end != '\0') || value < 0 ||
            value > INT64_C(1) << 40) {
            break;
        }
        given->count[given->count_count++] = value;
        at = end;
        if (*at == '\0') {
            return LS_OK;
        }
    }
    return ls_log_fail(
        LS_ERR_USAGE, "--counts '%s': allowed: at most %d whole numbers, W-1 or W+1, comma between",
        given->counts, LS_ARGUMENTS_COUNTS);
}

/* Options that contradict each other. LS_ERR_USAGE, logged. */
static ls_status check_together(const ls_arguments *given)
{
    bool reduces = false, works = given->in_place[0] || given->kind_count == 0;
    for (int k = 0; k < given->kind_count; k++) {
        reduces = reduces || ls_comm_kind_reduces(given->kind[k]);
        works = works || ls_exercise_can_be_in_place(given->kind[k]);
    }
    if (!works) {
        return ls_log_fail(LS_ERR_USAGE, "--in-place yes: none of --ops works in place");
    }
    if (given->redops != NULL && !reduces) {
        return ls_log_fail(LS_ERR_USAGE,
                           "--redop %s: none of --ops reduces; all_reduce, reduce_scatter and "
                           "reduce do",
                           given->redops);
    }
    if (given->pairs > 0 && (given->groups != NULL || given->group_size > 0)) {
        return ls_log_fail(LS_ERR_USAGE, "--pairs %d: not in groups", given->pairs);
    }
    if (given->groups != NULL && given->group_size > 0) {
        return ls_log_fail(LS_ERR_USAGE, "--groups %s and --group-size %d: give one of them",
                           given->groups, given->group_size);
    }
    return LS_OK;
}

ls_status ls_arguments_read(int argc, char **argv, ls_arguments *out)
{
    const struct argp parser = {
        .options = options,
        .parser = parse_one,
        .doc = "Tries the collectives of an engine on data whose results are known; one process is "
               "one rank, found in RANK, WORLD_SIZE, ... as torchrun sets them.",
    };
    *out = (ls_arguments){.kind_count = LS_ARGUMENTS_KINDS,
                          .redop_count = 1,
                          .redop = {LS_COMM_SUM},
                          .dtype_count = 1,
                          .dtype = {LS_F32},
                          .counts = "1024",
                          .in_place = {true, true},
                          .iterations = 1,
                          .absent = -1,
                          .timeout_s = 60};
    memcpy(out->kind, kinds, sizeof kinds);
    if (!ls_usage_check(&parser, false, argc, argv)) {
        return LS_ERR_USAGE;
    }
    argp_err_exit_status = LS_ERR_USAGE;
    return argp_parse(&parser, argc, argv, 0, NULL, out) == 0 ? check_together(out) : LS_ERR_INFRA;
}

/* ---- groups of ranks ------------------------------------------------------------------------- */

/* Keeps the members in ascending order. */
static void add_member(ls_pattern_members *group, int rank)
{
    int at = group->count++;
    while (at > 0 && LS_PLANT(group_in_order_of_list, group->rank[at - 1] > rank, false)) {
        group->rank[at] = group->rank[at - 1];
        at--;
    }
    group->rank[at] = rank;
}

static ls_status refuse(const char *text, const char *why, int world)
{
    return ls_log_fail(
        LS_ERR_USAGE,
        "--groups '%s': %s; allowed: ranks of this world, 0 to %d, each in one group "
        "or in none, such as 0,1;2,3",
        text, why, world - 1);
}

ls_status ls_arguments_read_groups(const char *text, int world, ls_rank_groups *out)
{
    ls_rank_groups groups = {.count = 0};
    const char *at = text;
    bool begins = true; /* a group */
    LS_ASSERT(world <= LS_PATTERN_WORLD_MAX);
    for (;;) {
        char *end = NULL;
        int unused;
        if (begins && (*at == ';' || *at == '\0')) {
            return refuse(text, "a group is empty", world);
        }
        errno = 0;
        long rank = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : -1;
        if (rank < 0 || errno != 0 || (*end != ',' && *end != ';' && *end != '\0')) {
            return refuse(text, "not a list of ranks", world);
        }
        if (rank >= world) {
            return refuse(text, "a rank is not of this world", world);
        }
        if (ls_arguments_find_group(&groups, (int)rank, &unused) >= 0) {
            return refuse(text, "a rank is listed twice", world);
        }
        groups.count += begins; /* at most one for each rank */
        add_member(&groups.group[groups.count - 1], (int)rank);
        if (*end == '\0') {
            *out = groups;
            return LS_OK;
        }
        begins = *end == ';';
        at = end + 1;
    }
}

ls_status ls_arguments_groups_of_size(int size, int world, ls_rank_groups *out)
{
    LS_ASSERT(world <= LS_PATTERN_WORLD_MAX);
    if (size < 1 || world % size != 0) {
        return ls_log_fail(
            LS_ERR_USAGE, "--group-size %d: allowed: a divisor of the number of ranks, which is %d",
            size, world);
    }
    *out = (ls_rank_groups){.count = world / size};
    for (int rank = 0; rank < world; rank++) {
        add_member(&out->group[LS_PLANT(groups_strided, rank / size, rank % out->count)], rank);
    }
    return LS_OK;
}

int ls_arguments_find_group(const ls_rank_groups *groups, int rank, int *rank_in_group)
{
    for (int g = 0; g < groups->count; g++) {
        for (int k = 0; k < groups->group[g].count; k++) {
            if (groups->group[g].rank[k] == rank) {
                *rank_in_group = k;
                return g;
            }
        }
    }
    return -1;
}
