#define _GNU_SOURCE
#include "clock.h"

#include <errno.h>
#include <poll.h>
#include <time.h>

int64_t ls_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int ls_clock_poll(int descriptor, short events, int64_t deadline_ns)
{
    for (;;) {
        int64_t left_ns = deadline_ns - ls_clock_ns();
        left_ns = left_ns > 0 ? left_ns : 0;
        struct timespec limit = {.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};
        struct pollfd polled = {.fd = descriptor, .events = events};
        int ready = ppoll(&polled, descriptor >= 0 ? 1 : 0, &limit, NULL);
        if (ready >= 0 || errno != EINTR) {
            return ready;
        }
    }
}
