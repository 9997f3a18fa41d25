#include "open_step.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/core/file.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"

/* The last step that was closed; 0: none. */
static int64_t last_of(const ls_observe_rank *rank)
{
    return rank->step_count > 0 ? rank->step[rank->step_count - 1].step->step : 0;
}

static const ls_event *known_call(const ls_observe_rank *rank, int number)
{
    const ls_event *event;
    ls_event_each(event, ls_trace_events(rank, call)) {
        if (ls_event_int(event, number, 0) == number) {
            return event;
        }
    }
    return NULL;
}

/* The calls that `numbers` names, hexadecimal and separated by spaces. */
static void add_calls(ls_observe_rank *rank, const char *numbers)
{
    ls_observe_step *step = rank->open;
    int capacity = 0;
    for (char *end; *numbers != '\0'; numbers = *end == ' ' ? end + 1 : end) {
        const ls_event *event = known_call(rank, (int)strtol(numbers, &end, 16));
        if (end == numbers) {
            break;
        }
        if (event != NULL) {
            step->call = ls_list_grow(step->call, step->call_count, &capacity, sizeof *step->call);
            step->call[step->call_count++] = ls_trace_call(event);
        }
    }
}

static void make_open(ls_observe_rank *rank, int64_t number, const char *numbers)
{
    ls_record_step *step = ls_list_make(1, sizeof *step);
    *step = (ls_record_step){.step = number, .loss = NAN, .loss_scale = NAN, .lr = NAN};
    rank->open = ls_list_make(1, sizeof *rank->open);
    rank->open->step = step;
    rank->open->samples = "";
    add_calls(rank, numbers);
}

void ls_open_step_read(const char *directory, int k, ls_observe_rank *rank)
{
    LS_TEXT(path, PATH_MAX, "%s/open.rank%d", directory, k);
    ls_file_source source;
    char *text = NULL, *rest = NULL;
    size_t bytes = 0;
    if (ls_file_load(path, LS_FILE_TEXT_BYTES, &source, &text, &bytes) != LS_OK) {
        return;
    }
    long long number = strtoll(text, &rest, 10);
    if (*rest == '\n' && number > last_of(rank)) {
        make_open(rank, number, rest + 1);
    }
    free(text);
}

void ls_open_step_free(ls_observe_rank *rank)
{
    if (rank->open != NULL) {
        free(rank->open->call);
        free((ls_record_step *)rank->open->step);
        free(rank->open);
    }
}

const ls_observe_step *ls_open_step_of(const ls_observe_rank *rank, int64_t number)
{
    bool open = rank->open != NULL && rank->open->step->step == number;
    return open ? rank->open : ls_trace_step(rank, number);
}
