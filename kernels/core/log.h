/* Messages for people, on stderr, one line each: `lockstep-train[2]: error: ...` where 2 is the
 * rank. Each line is written with one write(2), so that lines of several ranks do not mix. */
#ifndef LS_CORE_LOG_H
#define LS_CORE_LOG_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LS_PRINTF(format_index, first_index) \
    __attribute__((format(printf, format_index, first_index)))
#else
#define LS_PRINTF(format_index, first_index)
#endif

/* Logs an error: what the function was doing, with which peer or file, the library's own text. */
void ls_log_error(const char *format, ...) LS_PRINTF(1, 2);
/* The same; returns `status`: return ls_log_fail(LS_ERR_USAGE, "..."). */
ls_status ls_log_fail(ls_status status, const char *format, ...) LS_PRINTF(2, 3);
/* Returns LS_ERR_INFRA from the calling function, after a line "no memory for ...", where an
 * allocation has failed. */
#define LS_TRY_MEMORY(allocated, ...)                                       \
    do {                                                                    \
        if (!(allocated)) {                                                 \
            return ls_log_fail(LS_ERR_INFRA, "no memory for " __VA_ARGS__); \
        }                                                                   \
    } while (0)
/* A warning: the user should know, but nothing stops. */
void ls_log_warn(const char *format, ...) LS_PRINTF(1, 2);
/* A note for the log. */
void ls_log_note(const char *format, ...) LS_PRINTF(1, 2);

#ifdef __cplusplus
}
#endif
#endif
