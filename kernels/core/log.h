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

/* The function that meets an error says what it was doing, to whom, and the library's own text. */
void ls_log_error(const char *format, ...) LS_PRINTF(1, 2);
/* Something a user should know, but that stops nothing. */
void ls_log_warn(const char *format, ...) LS_PRINTF(1, 2);
/* A fact worth a line in a log. */
void ls_log_note(const char *format, ...) LS_PRINTF(1, 2);

#ifdef __cplusplus
}
#endif
#endif
