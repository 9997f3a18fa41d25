/* Status of every fallible function. The values are the exit codes of the subject protocol, so a
 * status that reaches `main` is the process's exit code. The function that meets an error logs it;
 * its callers relay it silently. Outputs are written only on success. */
#ifndef LS_CORE_STATUS_H
#define LS_CORE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ls_status {
    LS_OK = 0,
    LS_ERR_CHECK = 1,       /* a check failed */
    LS_ERR_USAGE = 2,       /* an argument, a variable or an input file is wrong */
    LS_ERR_INFRA = 3,       /* machine, memory, disk, port or library */
    LS_ERR_UNSUPPORTED = 4, /* valid, but not offered here */
    LS_ERR_PEER_LOST = 10,  /* another rank died or stopped answering */
    LS_ERR_RENDEZVOUS = 11, /* the ranks did not find each other in time */
    LS_ERR_NON_FINITE =
        12, /* a parameter, master or moment is inf or NaN, or the scale fell below its floor */
    LS_ERR_DEVICE_LOST = 13, /* the accelerator stopped answering */
    LS_STOPPED = 14,         /* a signal asked the run to end: its state is saved */
    LS_ERR_UNEVEN = 15, /* --join throw: the data of some ranks has ended, that of others has not */
} ls_status;

/* A short name such as "peer lost"; never NULL. */
const char *ls_status_name(ls_status status);

/* Relays a failure to the caller. */
#define LS_TRY(expression)                       \
    do {                                         \
        ls_status ls_try_status_ = (expression); \
        if (ls_try_status_ != LS_OK) {           \
            return ls_try_status_;               \
        }                                        \
    } while (0)

/* Stores a failure in `status`, then jumps to the label that undoes the work so far. */
#define LS_TRY_GOTO(status, expression, label) \
    do {                                       \
        (status) = (expression);               \
        if ((status) != LS_OK) {               \
            goto label;                        \
        }                                      \
    } while (0)

/* The next step of a sequence: skipped after a failure, whose status stays. */
#define LS_THEN(status, expression)  \
    do {                             \
        if ((status) == LS_OK) {     \
            (status) = (expression); \
        }                            \
    } while (0)

/* For our own bugs, always on; never for input, files or peers. Prints and aborts. */
#define LS_ASSERT(condition) \
    ((condition) ? (void)0 : ls_status_assert_failed(#condition, __FILE__, __LINE__))
#ifdef __cplusplus
[[noreturn]]
#else
_Noreturn
#endif
void ls_status_assert_failed(const char *condition, const char *file, int line);

/* For allocations without which a program cannot go on: that they succeeded. Where one did not, the
 * program ends at once, with one line and LS_ERR_INFRA: nothing that it would say from there on
 * would be about what it runs. */
#define LS_MEMORY(allocated) ((allocated) ? (void)0 : ls_status_no_memory(__FILE__, __LINE__))
#ifdef __cplusplus
[[noreturn]]
#else
_Noreturn
#endif
void ls_status_no_memory(const char *file, int line);
/* The same where errno says that `what` failed for lack of memory or descriptors; else nothing. For
 * readers to whom a file that cannot be opened is one that is not there. */
void ls_status_check_lack(const char *what);

#ifdef __cplusplus
}
#endif
#endif
