#include "layers_internal.h"

#include <stdlib.h>

enum { RECORDED = 12 }; /* of the passes with the most time to gain */

const char *ls_layers_kind_name(ls_layers_kind kind)
{
    static const char *const name[LS_LAYERS_KINDS] = {
        [LS_LAYERS_FORWARD] = "products: forward",     [LS_LAYERS_WEIGHTS] = "products: weights",
        [LS_LAYERS_INPUTS] = "products: inputs",       [LS_LAYERS_NORM_FORWARD] = "norms: forward",
        [LS_LAYERS_NORM_BACKWARD] = "norms: backward", [LS_LAYERS_OTHER] = "pools, loss, ...",
        [LS_LAYERS_UPDATE] = "optimizer, weights",
    };
    return name[kind];
}

const char *ls_layers_pass_name(const ls_pass *pass)
{
    return pass->kind == LS_PASS_FORWARD  ? "forward"
           : pass->kind == LS_PASS_UPDATE ? "update"
           : pass->kind == LS_PASS_DATA   ? "backward data"
           : pass->product                ? "backward weights"
                                          : "backward";
}

static ls_layers_kind kind_of(const ls_pass *pass)
{
    if (pass->product) {
        return pass->kind == LS_PASS_FORWARD    ? LS_LAYERS_FORWARD
               : pass->kind == LS_PASS_BACKWARD ? LS_LAYERS_WEIGHTS
                                                : LS_LAYERS_INPUTS;
    }
    return pass->kind == LS_PASS_UPDATE    ? LS_LAYERS_UPDATE
           : !pass->norm                   ? LS_LAYERS_OTHER
           : pass->kind == LS_PASS_FORWARD ? LS_LAYERS_NORM_FORWARD
                                           : LS_LAYERS_NORM_BACKWARD;
}

double ls_layers_floor_ms(const ls_pass *pass, const ls_layers_rates *rates)
{
    double memory_s = pass->bytes / rates->copy_bytes_per_s;
    double product_s = pass->flops > 0 ? pass->flops / rates->flop_per_s : 0;
    return isnan(memory_s) || isnan(product_s) ? NAN : 1e3 * fmax(memory_s, product_s);
}

void ls_layers_sums(const ls_step_passes *step, const ls_layers_rates *rates,
                    ls_layers_sum sums[LS_LAYERS_KINDS])
{
    for (int k = 0; k < LS_LAYERS_KINDS; k++) {
        sums[k] = (ls_layers_sum){0};
    }
    for (int i = 0; i < step->pass_count; i++) {
        ls_layers_sum *sum = &sums[kind_of(&step->pass[i])];
        sum->passes++;
        sum->ms += step->pass[i].ms;
        sum->floor_ms += ls_layers_floor_ms(&step->pass[i], rates);
        sum->bytes += step->pass[i].bytes;
    }
}

static int by_gap(const void *a, const void *b, void *rates)
{
    const ls_pass *x = a, *y = b;
    double gap_x = x->ms - ls_layers_floor_ms(x, rates),
           gap_y = y->ms - ls_layers_floor_ms(y, rates);
    return (gap_y > gap_x) - (gap_y < gap_x);
}

void ls_layers_sort(ls_step_passes *step, const ls_layers_rates *rates)
{
    ls_layers_rates copy = *rates;
    qsort_r(step->pass, (size_t)step->pass_count, sizeof *step->pass, by_gap, &copy);
}

void ls_layers_record(ls_step_passes *step, const ls_layers_rates *rates, cJSON *to)
{
    ls_layers_sum sums[LS_LAYERS_KINDS];
    ls_layers_sums(step, rates, sums);
    ls_layers_sort(step, rates);
    ls_json_add_number(to, "forward_ms", step->forward_ms);
    ls_json_add_number(to, "backward_ms", step->backward_ms);
    ls_json_add_number(to, "convolutions_ms", step->convolutions_ms);
    if (step->update_ms > 0) {
        ls_json_add_number(to, "update_ms", step->update_ms);
    }
    cJSON *kinds = cJSON_AddArrayToObject(to, "kinds");
    for (int k = 0; k < LS_LAYERS_KINDS; k++) {
        if (k == LS_LAYERS_UPDATE && sums[k].passes == 0) {
            continue;
        }
        cJSON *one = ls_json_append_object(kinds);
        cJSON_AddStringToObject(one, "kind", ls_layers_kind_name(k));
        cJSON_AddNumberToObject(one, "passes", sums[k].passes);
        ls_json_add_number(one, "ms", sums[k].ms);
        ls_json_add_number(one, "floor_ms", sums[k].floor_ms);
        ls_json_add_number(one, "bytes", sums[k].bytes);
    }
    cJSON *longest = cJSON_AddArrayToObject(to, "longest");
    for (int i = 0; i < step->pass_count && i < RECORDED; i++) {
        const ls_pass *pass = &step->pass[i];
        cJSON *one = ls_json_append_object(longest);
        cJSON_AddStringToObject(one, "pass", ls_layers_pass_name(pass));
        cJSON_AddStringToObject(one, "layer", pass->name);
        cJSON_AddStringToObject(one, "engine", pass->engine);
        ls_json_add_number(one, "ms", pass->ms);
        ls_json_add_number(one, "floor_ms", ls_layers_floor_ms(pass, rates));
        ls_json_add_number(one, "bytes", pass->bytes);
        ls_json_add_number(one, "flops", pass->flops);
    }
}
