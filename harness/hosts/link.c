#include "link.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

bool ls_link_read(const char *text, ls_link *out)
{
    static const struct {
        const char *name;
        double bytes_per_s, s;
    } units[] = {{"Gbit", 1e9 / 8, 0}, {"Mbit", 1e6 / 8, 0}, {"GB/s", 1e9, 0},
                 {"MB/s", 1e6, 0},     {"us", 0, 1e-6},      {"ms", 0, 1e-3}};
    char rate_unit[8] = "", time_unit[8] = "";
    double rate = 0, time = 0;
    int end = 0;
    ls_link link = {0, -1, false};
    (void)sscanf(text, "%lf%7[A-Za-z/],%lf%7[a-z]%n", &rate, rate_unit, &time, time_unit, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (units[i].s == 0 && strcmp(rate_unit, units[i].name) == 0) {
            link.bytes_per_s = rate * units[i].bytes_per_s;
            link.in_bits = rate_unit[1] == 'b';
        } else if (units[i].s > 0 && strcmp(time_unit, units[i].name) == 0) {
            link.delay_s = time * units[i].s;
        }
    }
    if (!(link.bytes_per_s > 0 && isfinite(link.bytes_per_s)) ||
        !(link.delay_s >= 0 && isfinite(link.delay_s)) || end == 0 || text[end] != '\0') {
        return false;
    }
    *out = link;
    return true;
}
