#include "judges.h"

#include <string.h>

/* ---- bits ------------------------------------------------------------------------------------ */

/* The first step at which the two differ in loss or parameters; 0: none. */
static int64_t differ_at(const ls_record_rank *a, const ls_record_rank *b)
{
    int steps = a->step_count < b->step_count ? a->step_count : b->step_count;
    for (int i = 0; i < steps; i++) {
        const ls_record_step *x = &a->step[i], *y = &b->step[i];
        if (strcmp(x->loss_bits, y->loss_bits) != 0 ||
            strcmp(x->digest[LS_RECORD_PARAM], y->digest[LS_RECORD_PARAM]) != 0) {
            return x->step;
        }
    }
    return a->step_count == b->step_count ? 0 : steps + 1;
}

static bool has_bits(const ls_record *record)
{
    for (int k = 0; k < record->world; k++) {
        const ls_record_rank *rank = &record->rank[k];
        for (int i = 0; i < rank->step_count; i++) {
            if (rank->step[i].loss_bits[0] == '\0' ||
                (rank->step[i].digest_mask & (1u << LS_RECORD_PARAM)) == 0) {
                return false;
            }
        }
        if (rank->step_count == 0 || rank->step_count != record->rank[0].step_count) {
            return false;
        }
    }
    return record->world > 0 && record->world <= LS_SDC_RANKS_MAX;
}

/* Compares models, not serial numbers: the part before the parenthesis. */
static bool same_model(const char *a, const char *b)
{
    const char *end_a = strstr(a, " ("), *end_b = strstr(b, " (");
    size_t bytes_a = end_a == NULL ? strlen(a) : (size_t)(end_a - a);
    size_t bytes_b = end_b == NULL ? strlen(b) : (size_t)(end_b - b);
    return bytes_a == bytes_b && strncmp(a, b, bytes_a) == 0;
}

/* ---- who is odd ------------------------------------------------------------------------------ */

/* A rank whose bits equal those of most ranks, and how many they are. */
static int find_majority(const ls_record *first, const ls_sdc *sdc, int *agree)
{
    int best = 0;
    *agree = 0;
    for (int k = 0; k < sdc->ranks; k++) {
        int same = 0;
        for (int j = 0; j < sdc->ranks && !sdc->rank[k].left_out; j++) {
            same += !sdc->rank[j].left_out && differ_at(&first->rank[k], &first->rank[j]) == 0;
        }
        if (same > *agree) {
            *agree = same;
            best = k;
        }
    }
    return best;
}

static ls_sdc_result conclude(const ls_sdc *sdc)
{
    int odd = 0, repeat = 0;
    for (int k = 0; k < sdc->ranks; k++) {
        const ls_sdc_rank *rank = &sdc->rank[k];
        odd += !rank->left_out && (rank->odd_at != 0 || rank->odd_again_at != 0);
        repeat += !rank->left_out && rank->odd_at == 0 && rank->odd_again_at == 0;
    }
    if (odd == 0) {
        return LS_SDC_EQUAL;
    }
    if (sdc->agree * 2 <= sdc->compared && sdc->compared > 1) {
        return LS_SDC_UNDECIDED;
    }
    return repeat * 2 > sdc->compared ? LS_SDC_ODD : LS_SDC_UNREPEATED;
}

void ls_sdc_compare(const ls_record *first, const ls_record *again, ls_sdc *out)
{
    memset(out, 0, sizeof *out);
    out->result = LS_SDC_WITHOUT;
    if (!has_bits(first) || (again != NULL && (!has_bits(again) || again->world != first->world))) {
        return;
    }
    out->ranks = first->world;
    out->steps = first->rank[0].step_count;
    for (int k = 0; k < out->ranks; k++) {
        ls_sdc_rank *rank = &out->rank[k];
        ls_text_put(rank->device, sizeof rank->device, "%s",
                    ls_json_string(first->rank[k].start, "device", ""));
        rank->left_out = !same_model(rank->device, out->rank[0].device);
        out->compared += !rank->left_out;
    }
    int majority = find_majority(first, out, &out->agree);
    for (int k = 0; k < out->ranks; k++) {
        ls_sdc_rank *rank = &out->rank[k];
        rank->odd_at = differ_at(&first->rank[k], &first->rank[majority]);
        rank->repeats = true;
        if (again != NULL) {
            rank->odd_again_at = differ_at(&again->rank[k], &first->rank[majority]);
            rank->repeats = differ_at(&again->rank[k], &first->rank[k]) == 0;
        }
    }
    out->result = conclude(out);
}

/* ---- words ----------------------------------------------------------------------------------- */

static void describe_odd(const ls_sdc *sdc, char *text, size_t bytes)
{
    for (int k = 0; k < sdc->ranks; k++) {
        const ls_sdc_rank *rank = &sdc->rank[k];
        if (rank->left_out || (rank->odd_at == 0 && rank->odd_again_at == 0)) {
            continue;
        }
        ls_text_add(text, bytes, "%srank %d (%s) has other bits than %d others",
                    text[0] == '\0' ? "" : "; ", k, rank->device, sdc->agree - (rank->odd_at == 0));
        if (rank->odd_at != 0) {
            ls_text_add(text, bytes, " from step %lld on", (long long)rank->odd_at);
        }
        if (rank->odd_again_at != 0) {
            ls_text_add(text, bytes, "%s in the second run from step %lld on",
                        rank->odd_at != 0 ? ", and" : "", (long long)rank->odd_again_at);
        } else if (rank->odd_at != 0) {
            ls_text_add(text, bytes, ", not in the second run");
        }
    }
}

void ls_sdc_text(const ls_sdc *sdc, char *text, size_t bytes)
{
    text[0] = '\0';
    switch (sdc->result) {
    case LS_SDC_EQUAL:
        ls_text_put(text, bytes, "%d ranks, %lld steps, twice: all losses and parameters equal",
                    sdc->compared, (long long)sdc->steps);
        if (sdc->compared < sdc->ranks) {
            ls_text_add(text, bytes, " (%d of another model left out)", sdc->ranks - sdc->compared);
        }
        return;
    case LS_SDC_ODD:
        describe_odd(sdc, text, bytes);
        return;
    case LS_SDC_UNREPEATED:
        ls_text_put(text, bytes, "%d of %d ranks agree and have other bits when run again",
                    sdc->agree, sdc->compared);
        return;
    case LS_SDC_UNDECIDED:
        ls_text_put(text, bytes, "at most %d of %d ranks have the same bits", sdc->agree,
                    sdc->compared);
        for (int k = 0; k < sdc->ranks; k++) {
            if (!sdc->rank[k].repeats) {
                ls_text_add(text, bytes, "; rank %d (%s) does not have its own again", k,
                            sdc->rank[k].device);
            }
        }
        return;
    case LS_SDC_WITHOUT:
        ls_text_put(text, bytes, "loss_bits or digests of parameters are missing");
    }
}
