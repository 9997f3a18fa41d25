/* The pickles of state dicts, read as data: a stack of values, no import, no call. A name of a
 * class or function that is not in the list of pickle.c ends the reading with that name; what the
 * list makes of a call is one of the values below.
 *
 * Values refer to each other, also in circles. Nothing here or in a reader may follow them to an
 * unknown depth. */
#ifndef LS_PICKLE_H
#define LS_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum ls_pickle_kind {
    LS_PICKLE_NONE,
    LS_PICKLE_BOOL,
    LS_PICKLE_INTEGER,
    LS_PICKLE_NUMBER,
    LS_PICKLE_TEXT,
    LS_PICKLE_TUPLE,
    LS_PICKLE_LIST,
    LS_PICKLE_DICT,   /* also OrderedDict, in the order of the file */
    LS_PICKLE_OBJECT, /* of a harmless class that has no meaning here: text is its name */
    LS_PICKLE_NAME,   /* of a class or function of the list, by itself */
    LS_PICKLE_STORED, /* what a persistent id stands for: made by `persistent` */
    LS_PICKLE_TENSOR, /* made by `rebuild` */
} ls_pickle_kind;

typedef struct ls_pickle_value ls_pickle_value;
struct ls_pickle_value {
    ls_pickle_kind kind;
    int64_t integer;  /* BOOL, INTEGER; NAME: its row of the list */
    double number;    /* INTEGER, too */
    const char *text; /* TEXT, OBJECT, NAME; bytes of a TEXT may be any; a 0 behind the last */
    size_t bytes;     /* of text */
    ls_pickle_value **item; /* [count]; DICT: keys and values by turns */
    int64_t count, room;
    const void *made; /* STORED, TENSOR */
};

typedef struct ls_pickle ls_pickle;

/* What torch adds: both return NULL after ls_pickle_refuse. */
typedef struct ls_pickle_hooks {
    void *context;
    const void *(*persistent)(void *context, ls_pickle *pickle, const ls_pickle_value *id);
    const void *(*rebuild)(void *context, ls_pickle *pickle, const ls_pickle_value *arguments);
} ls_pickle_hooks;

/* Reads data[bytes]. NULL: why[why_bytes] says what is wrong or not allowed. */
ls_pickle *ls_pickle_read(const void *data, size_t bytes, const ls_pickle_hooks *hooks, char *why,
                          size_t why_bytes);
void ls_pickle_close(ls_pickle *pickle); /* NULL is allowed */
const ls_pickle_value *ls_pickle_root(const ls_pickle *pickle);
/* Sets `why`, in printf style. */
void ls_pickle_refuse(ls_pickle *pickle, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The value of a key, the last of equal ones; NULL: there is none, or it is no dict. */
const ls_pickle_value *ls_pickle_get(const ls_pickle_value *dict, const char *key);
const ls_pickle_value *ls_pickle_get_integer(const ls_pickle_value *dict, int64_t key);
bool ls_pickle_is(const ls_pickle_value *value, ls_pickle_kind kind); /* NULL: false */
/* "torch FloatStorage", of a NAME. */
const char *ls_pickle_name(const ls_pickle_value *name);

#endif
