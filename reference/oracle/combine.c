#include "combine.h"

/* Storage types on a gradient's way. */
typedef struct route {
    ls_bits_type made; /* result of the layer's backward */
    ls_bits_type own;  /* the gradient's tensor */
    ls_bits_type wire; /* the type of the reduction */
} route;

static route route_of(const ls_oracle_step *step, bool product)
{
    route r = {LS_BITS_F32, LS_BITS_F32, LS_BITS_F32};
    if (product && step->level >= 1) {
        r.made = step->half;
    }
    if (step->level == 3 || (step->level == 2 && product)) {
        r.made = step->half;
        r.own = step->half;
    }
    r.wire = r.own;
    if (step->reduce != LS_BITS_F64 && (r.own == LS_BITS_F32 || step->reduce == LS_BITS_F32)) {
        r.wire = step->reduce; /* --compress applies to f32 gradients; half ones keep their type */
    }
    return r;
}

/* One element as a rank contributes it to the reduction: micro-steps summed in f32. */
static double local_of(const ls_oracle_step *step, const double *chunk, int64_t count, int rank,
                       int64_t i)
{
    double sum = chunk[(int64_t)rank * count + i];
    for (int64_t a = 1; a < step->accumulate; a++) {
        sum = ls_bits_round(LS_BITS_F32, sum + chunk[(a * step->world + rank) * count + i]);
    }
    return sum;
}

static double reduced_of(const ls_oracle_step *step, route r, const double *chunk, int64_t count,
                         int64_t i)
{
    double before = 1, after = 1, world = step->world;
    if (step->average == LS_ORACLE_DIVIDE_THEN_SUM) {
        before = 1 / world;
    } else if (step->average == LS_ORACLE_SUM_THEN_DIVIDE) {
        before = 1 / step->predivide;
        after = step->predivide / world;
    } else {
        before = 1 / step->predivide;
        after = step->predivide;
    }
    before = ls_bits_round(LS_BITS_F32, before);
    after = ls_bits_round(LS_BITS_F32, after);
    double sum = 0;
    for (int rank = 0; rank < step->world; rank++) {
        double local = ls_bits_round(r.own, local_of(step, chunk, count, rank, i));
        local = ls_bits_round(r.wire, ls_bits_round(r.wire, local) * before);
        sum = rank == 0 ? local : ls_bits_round(r.wire, sum + local);
    }
    sum = ls_bits_round(r.own, ls_bits_round(r.wire, sum * after));
    double inverse = ls_bits_round(LS_BITS_F32, 1 / step->loss_scale);
    return ls_bits_round(LS_BITS_F32, sum * inverse);
}

static double mean_of(const ls_oracle_step *step, const double *chunk, int64_t count, int64_t i)
{
    double sum = 0;
    for (int64_t c = 0; c < (int64_t)step->world * step->accumulate; c++) {
        sum += chunk[c * count + i];
    }
    return step->average == LS_ORACLE_SUM ? sum : sum / step->world;
}

void ls_combine_chunks(const ls_oracle_step *step, bool ideal, bool product,
                       ls_round_stored_noise noise, int64_t count, double *chunk, double *out)
{
    route r = route_of(step, product);
    if (ideal) {
        ls_round_stored_values(r.made, noise, count * step->world * step->accumulate, chunk);
    }
#pragma omp parallel for if (count > 1 << 14)
    for (int64_t i = 0; i < count; i++) {
        out[i] = ideal ? reduced_of(step, r, chunk, count, i) : mean_of(step, chunk, count, i);
    }
}
