#include "schedule.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/plant.h"
#include "options.h"

/* torch's LinearLR as torchvision's references/classification uses it: warm-up from 1 % */
static const double warmup_start_default = 0.01;

/* A number from `least` to `most` at *text; moves *text behind it. */
static bool read_number(const char **text, double least, double most, double *out)
{
    char *end;
    double value = strtod(*text, &end);
    if (end == *text || !(value >= least && value <= most)) {
        return false;
    }
    *text = end;
    *out = value;
    return true;
}

/* "30", "0.5" or "500s". */
static bool read_length(const char **text, ls_schedule_length *out)
{
    if (!read_number(text, DBL_TRUE_MIN, 1e12, &out->count)) {
        return false;
    }
    out->in_steps = **text == 's';
    *text += out->in_steps;
    return !out->in_steps || floor(out->count) == out->count;
}

static bool read_expected(const char **text, const char *word)
{
    size_t length = strlen(word);
    if (strncmp(*text, word, length) != 0) {
        return false;
    }
    *text += length;
    return true;
}

static bool read_warmup(const char **text, ls_schedule *schedule)
{
    if (!read_expected(text, "warmup:")) {
        return true;
    }
    schedule->warmup = true;
    schedule->warmup_start = warmup_start_default;
    if (!read_length(text, &schedule->warmup_length)) {
        return false;
    }
    return (!read_expected(text, ":") || read_number(text, 0, 1, &schedule->warmup_start)) &&
           read_expected(text, ",");
}

/* Ascending lengths of one unit, separated by commas, then ":GAMMA". */
static bool read_lengths_and_gamma(const char **text, int lengths_max, ls_schedule *schedule)
{
    do {
        if (schedule->length_count == lengths_max) {
            return false;
        }
        ls_schedule_length *next = &schedule->length[schedule->length_count++];
        if (!read_length(text, next)) {
            return false;
        }
        if (schedule->length_count > 1 &&
            (next[-1].in_steps != next->in_steps || next[-1].count >= next->count)) {
            return false;
        }
    } while (read_expected(text, ","));
    return read_expected(text, ":") && read_number(text, 0, 1, &schedule->gamma);
}

static bool read_kind(const char **text, ls_schedule *schedule)
{
    static const struct {
        const char *word; /* in front of its lengths */
        ls_schedule_kind kind;
        int lengths; /* that are followed by a factor; -1: one length alone */
    } kinds[] = {
        {"constant", LS_SCHEDULE_CONSTANT, 0},
        {"imagenet", LS_SCHEDULE_IMAGENET, 0},
        {"step:", LS_SCHEDULE_STEP, 1},
        {"multistep:", LS_SCHEDULE_MULTISTEP, LS_SCHEDULE_LENGTHS_MAX},
        {"cosine:", LS_SCHEDULE_COSINE, -1},
        {"polynomial:", LS_SCHEDULE_POLYNOMIAL, -1},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!read_expected(text, kinds[i].word)) {
            continue;
        }
        schedule->kind = kinds[i].kind;
        if (kinds[i].lengths > 0) {
            return read_lengths_and_gamma(text, kinds[i].lengths, schedule);
        }
        bool polynomial = schedule->kind == LS_SCHEDULE_POLYNOMIAL;
        schedule->length_count = kinds[i].lengths < 0;
        schedule->power = polynomial;
        if (kinds[i].lengths < 0 && !read_length(text, &schedule->length[0])) {
            return false;
        }
        /* imagenet brings a warm-up of its own */
        return polynomial && read_expected(text, ":")
                   ? read_number(text, DBL_TRUE_MIN, 100, &schedule->power)
                   : schedule->kind != LS_SCHEDULE_IMAGENET || !schedule->warmup;
    }
    return false;
}

ls_status ls_schedule_parse(const char *text, ls_schedule *out)
{
    ls_schedule schedule = {0};
    const char *rest = text;
    LS_REFUSE_IF(
        !read_warmup(&rest, &schedule) || !read_kind(&rest, &schedule) || *rest != '\0',
        "--schedule '%s': allowed: [warmup:LENGTH[:START],] constant | "
        "step:LENGTH:GAMMA | multistep:L1,L2,...:GAMMA | cosine:LENGTH | "
        "polynomial:LENGTH[:POWER], or imagenet; a LENGTH is in epochs, or in steps as 500s",
        text);
    *out = schedule;
    return LS_OK;
}

ls_status ls_schedule_check(const ls_schedule *schedule, int64_t steps_per_epoch)
{
    bool epochs = schedule->kind == LS_SCHEDULE_IMAGENET ||
                  (schedule->warmup && !schedule->warmup_length.in_steps) ||
                  (schedule->length_count > 0 && !schedule->length[0].in_steps);
    LS_REFUSE_IF(epochs && steps_per_epoch <= 0,
                 "--schedule counts epochs and this --data has none; give lengths in steps, such "
                 "as step:500s:0.1");
    return LS_OK;
}

static double steps_of(ls_schedule_length length, int64_t steps_per_epoch)
{
    return length.in_steps ? length.count : length.count * (double)steps_per_epoch;
}

/* examples/imagenet/main_amp.py of NVIDIA/apex, for the step with number `step` from 1 over all
 * epochs. */
static double imagenet_lr(double base_lr, int64_t step, int64_t steps_per_epoch)
{
    int64_t epoch = (step - 1) / steps_per_epoch;
    double lr = base_lr * pow(0.1, (double)(epoch / 30 + (epoch >= 80)));
    return epoch < 5 ? lr * (double)(1 + step) / (5.0 * (double)steps_per_epoch) : lr;
}

double ls_schedule_lr(const ls_schedule *schedule, double base_lr, int64_t step,
                      int64_t steps_per_epoch)
{
    LS_ASSERT(step >= 1);
    double tick = (double)(step - LS_PLANT(warmup_off_by_one, 1, 0));
    if (schedule->warmup) {
        double length = steps_of(schedule->warmup_length, steps_per_epoch);
        if (tick < length) {
            double start = schedule->warmup_start;
            return base_lr * (start + (1.0 - start) * tick / length);
        }
        tick -= LS_PLANT(schedule_counts_warmup, length, 0.0);
    }
    double length = steps_of(schedule->length[0], steps_per_epoch);
    int reached = 0;
    switch (schedule->kind) {
    case LS_SCHEDULE_CONSTANT:
        return base_lr;
    case LS_SCHEDULE_STEP:
        return base_lr * pow(schedule->gamma, floor(tick / length));
    case LS_SCHEDULE_MULTISTEP:
        while (reached < schedule->length_count &&
               tick >= steps_of(schedule->length[reached], steps_per_epoch)) {
            reached++;
        }
        return base_lr * pow(schedule->gamma, reached);
    case LS_SCHEDULE_COSINE:
        return tick >= length ? LS_PLANT(cosine_returns, 0.0, base_lr)
                              : base_lr * (1.0 + cos(M_PI * tick / length)) / 2.0;
    case LS_SCHEDULE_POLYNOMIAL:
        return tick >= length ? 0.0
                              : base_lr * pow(1.0 - tick / length,
                                              LS_PLANT(polynomial_linear, schedule->power, 1.0));
    case LS_SCHEDULE_IMAGENET:
        return imagenet_lr(base_lr, step, steps_per_epoch);
    }
    return base_lr;
}

double ls_schedule_base_lr(double lr, bool linear, int64_t images_per_step)
{
    return linear ? lr * (double)images_per_step / 256.0 : lr;
}
