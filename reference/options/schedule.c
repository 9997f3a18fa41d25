#include "schedule.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/plant.h"

/* torch's LinearLR as torchvision's references/classification uses it: warm-up from 1 % */
static const double warmup_start_default = 0.01;

/* "30", "0.5" or "500s" at *text; moves *text behind it. */
static bool read_length(const char **text, ls_schedule_length *out)
{
    char *end;
    double count = strtod(*text, &end);
    if (end == *text || !(count > 0) || count > 1e12) {
        return false;
    }
    *out = (ls_schedule_length){count, *end == 's'};
    *text = end + (*end == 's');
    return !out->in_steps || floor(count) == count;
}

static bool read_factor(const char **text, double *out)
{
    char *end;
    double value = strtod(*text, &end);
    if (end == *text || !(value >= 0 && value <= 1)) {
        return false;
    }
    *text = end;
    *out = value;
    return true;
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
    if (**text == ':') {
        ++*text;
        if (!read_factor(text, &schedule->warmup_start)) {
            return false;
        }
    }
    return read_expected(text, ",");
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
    return read_expected(text, ":") && read_factor(text, &schedule->gamma);
}

/* ":2" or nothing. */
static bool read_power(const char **text, double *out)
{
    char *end;
    if (!read_expected(text, ":")) {
        return true;
    }
    *out = strtod(*text, &end);
    if (end == *text || !(*out > 0 && *out <= 100)) {
        return false;
    }
    *text = end;
    return true;
}

static bool read_kind(const char **text, ls_schedule *schedule)
{
    if (read_expected(text, "constant")) {
        schedule->kind = LS_SCHEDULE_CONSTANT;
        return true;
    }
    if (read_expected(text, "imagenet")) {
        schedule->kind = LS_SCHEDULE_IMAGENET;
        return !schedule->warmup; /* it brings its own */
    }
    if (read_expected(text, "step:")) {
        schedule->kind = LS_SCHEDULE_STEP;
        return read_lengths_and_gamma(text, 1, schedule);
    }
    if (read_expected(text, "multistep:")) {
        schedule->kind = LS_SCHEDULE_MULTISTEP;
        return read_lengths_and_gamma(text, LS_SCHEDULE_LENGTHS_MAX, schedule);
    }
    if (read_expected(text, "cosine:")) {
        schedule->kind = LS_SCHEDULE_COSINE;
        schedule->length_count = 1;
        return read_length(text, &schedule->length[0]);
    }
    if (read_expected(text, "polynomial:")) {
        schedule->kind = LS_SCHEDULE_POLYNOMIAL;
        schedule->length_count = 1;
        schedule->power = 1;
        return read_length(text, &schedule->length[0]) && read_power(text, &schedule->power);
    }
    return false;
}

ls_status ls_schedule_parse(const char *text, ls_schedule *out)
{
    ls_schedule schedule = {0};
    const char *rest = text;
    if (!read_warmup(&rest, &schedule) || !read_kind(&rest, &schedule) || *rest != '\0') {
        return ls_log_fail(
            LS_ERR_USAGE,
            "--schedule '%s': allowed: [warmup:LENGTH[:START],] constant | "
            "step:LENGTH:GAMMA | multistep:L1,L2,...:GAMMA | cosine:LENGTH | "
            "polynomial:LENGTH[:POWER], or imagenet; a LENGTH is in epochs, or in steps as 500s",
            text);
    }
    *out = schedule;
    return LS_OK;
}

ls_status ls_schedule_check(const ls_schedule *schedule, int64_t steps_per_epoch)
{
    bool epochs = schedule->kind == LS_SCHEDULE_IMAGENET ||
                  (schedule->warmup && !schedule->warmup_length.in_steps) ||
                  (schedule->length_count > 0 && !schedule->length[0].in_steps);
    if (epochs && steps_per_epoch <= 0) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "--schedule counts epochs and this --data has none; give lengths in steps, such "
            "as step:500s:0.1");
    }
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
