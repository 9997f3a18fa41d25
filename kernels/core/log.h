/* Messages for people, on stderr, one line each: `lockstep-train[2]: error: ...` where 2 is the
 * rank. Each line is written with one write(2), so that lines of several ranks do not mix. */
#ifndef LS_CORE_LOG_H
#define LS_CORE_LOG_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LS_PRINTF(format_index, first_index) \
    __attribute__((format(printf, format_index, first_index)))
#else
#define LS_PRINTF(format_index, first_index)
#endif

/* Logs an error: what the function was doing, with which peer or file, and the library's own text.
 */
void ls_log_error(const char *format, ...) LS_PRINTF(1, 2);
/* A warning: the user should know, but nothing stops. */
void ls_log_warn(const char *format, ...) LS_PRINTF(1, 2);
/* A note for the log. */
void ls_log_note(const char *format, ...) LS_PRINTF(1, 2);

#ifdef __cplusplus
}
#endif
#endif
