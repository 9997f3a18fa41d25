#include "load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/text.h"

static double seconds_of(const struct timeval *value)
{
    return (double)value->tv_sec + (double)value->tv_usec * 1e-6;
}

static double own_s(void)
{
    struct rusage self, children;
    if (getrusage(RUSAGE_SELF, &self) != 0 || getrusage(RUSAGE_CHILDREN, &children) != 0) {
        return NAN;
    }
    return seconds_of(&self.ru_utime) + seconds_of(&self.ru_stime) +
           seconds_of(&children.ru_utime) + seconds_of(&children.ru_stime);
}

void ls_load_read(ls_load *out)
{
    *out = (ls_load){.others_s = NAN, .processors = 0, .at_ns = ls_clock_ns()};
    char *text = ls_text_read("/proc/stat"), *rest = NULL;
    /* proc(5): user nice system idle iowait irq softirq steal guest ...; guest is within user */
    double field[8] = {0}, own = own_s();
    for (char *line = text == NULL ? NULL : strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, "cpu ", 4) == 0 &&
            sscanf(line, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &field[0], &field[1], &field[2],
                   &field[3], &field[4], &field[5], &field[6], &field[7]) == 8) {
            double busy =
                field[0] + field[1] + field[2] + field[5] + field[6] + field[7]; /* clock ticks */
            out->others_s = busy / (double)sysconf(_SC_CLK_TCK) - own;
        } else if (strncmp(line, "cpu", 3) == 0) {
            out->processors++;
        }
    }
    free(text);
}

double ls_load_taken(const ls_load *from, const ls_load *to, int cores)
{
    double seconds = (double)(to->at_ns - from->at_ns) * 1e-9;
    if (!(seconds > 0) || to->processors < 1) {
        return NAN;
    }
    double others = (to->others_s - from->others_s) / seconds;
    double taken = others - (to->processors > cores ? to->processors - cores : 0);
    return taken < 0 ? 0 : taken > cores ? cores : taken;
}
