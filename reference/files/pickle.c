#include "pth.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/plant.h"

enum {
    MEMO_MAX = 1 << 22, /* torch numbers its memo from 0: a ResNet's has some thousands */
    NAME_BYTES = 200,
};

/* Classes and functions that a state dict may name, and what becomes of a call. */
typedef enum made {
    MADE_DICT,   /* an empty one */
    MADE_TUPLE,  /* its first argument */
    MADE_FIRST,  /* the same, whatever it is */
    MADE_TENSOR, /* by the hook */
    MADE_OBJECT, /* something without a meaning here */
    MADE_NONE,   /* it cannot be called */
} made;

static const struct known {
    const char *module, *name;
    made made;
} known[] = {
    {"collections", "OrderedDict", MADE_DICT},
    {"collections", "defaultdict", MADE_DICT},
    {"collections", "Counter", MADE_DICT},
    {"torch._utils", "_rebuild_tensor_v2", MADE_TENSOR},
    {"torch._utils", "_rebuild_parameter", MADE_FIRST},
    {"torch", "Size", MADE_TUPLE},
    {"torch", "device", MADE_OBJECT},
    {"torch", "FloatStorage", MADE_NONE},
    {"torch", "HalfStorage", MADE_NONE},
    {"torch", "BFloat16Storage", MADE_NONE},
    {"torch", "DoubleStorage", MADE_NONE},
    {"torch", "LongStorage", MADE_NONE},
    {"torch", "IntStorage", MADE_NONE},
    {"torch", "ShortStorage", MADE_NONE},
    {"torch", "CharStorage", MADE_NONE},
    {"torch", "ByteStorage", MADE_NONE},
    {"torch", "BoolStorage", MADE_NONE},
    {"torch", "float32", MADE_NONE},
    {"torch", "float16", MADE_NONE},
    {"torch", "bfloat16", MADE_NONE},
    {"torch", "float64", MADE_NONE},
    {"torch", "int64", MADE_NONE},
    {"argparse", "Namespace", MADE_OBJECT},
    {"numpy.core.multiarray", "scalar", MADE_OBJECT},
    {"numpy._core.multiarray", "scalar", MADE_OBJECT},
    {"numpy", "dtype", MADE_OBJECT},
    {"_codecs", "encode", MADE_OBJECT},
    {"pathlib", "PosixPath", MADE_OBJECT},
    {"__builtin__", "set", MADE_OBJECT},
    {"builtins", "set", MADE_OBJECT},
};
enum { KNOWN = sizeof known / sizeof *known, OBJECT = 6 /* torch.device */ };

struct ls_pickle {
    const unsigned char *at, *end;
    const ls_pickle_hooks *hooks;
    ls_pickle_value **value; /* all that were made */
    int values, value_room;
    ls_pickle_value **stack;
    int depth, stack_room;
    int *mark; /* depths */
    int marks, mark_room;
    ls_pickle_value **memo; /* NULL: not set */
    int memos;
    int64_t memoized; /* how often MEMOIZE was met */
    const ls_pickle_value *root;
    bool refused;
    char *why;
    size_t why_bytes;
};

void ls_pickle_refuse(ls_pickle *pickle, const char *format, ...)
{
    va_list arguments;
    if (!pickle->refused) {
        va_start(arguments, format);
        vsnprintf(pickle->why, pickle->why_bytes, format, arguments);
        va_end(arguments);
    }
    pickle->refused = true;
}

/* ---- values ---------------------------------------------------------------------------------- */

static ls_pickle_value *new_value(ls_pickle *p, ls_pickle_kind kind)
{
    ls_pickle_value *value = ls_list_make(1, sizeof *value);
    p->value = ls_list_grow(p->value, p->values, &p->value_room, sizeof *p->value);
    p->value[p->values++] = value;
    value->kind = kind;
    return value;
}

static void add_item(ls_pickle_value *to, ls_pickle_value *item)
{
    if (to->count == to->room) {
        to->room = to->room == 0 ? 4 : 2 * to->room;
        to->item = realloc(to->item, (size_t)to->room * sizeof *to->item);
        LS_MEMORY(to->item != NULL);
    }
    to->item[to->count++] = item;
}

bool ls_pickle_is(const ls_pickle_value *value, ls_pickle_kind kind)
{
    return value != NULL && value->kind == kind;
}

const ls_pickle_value *ls_pickle_get(const ls_pickle_value *dict, const char *key)
{
    for (int64_t i = ls_pickle_is(dict, LS_PICKLE_DICT) ? dict->count - 2 : -1; i >= 0; i -= 2) {
        const ls_pickle_value *name = dict->item[i];
        if (name->kind == LS_PICKLE_TEXT && name->bytes == strlen(key) &&
            memcmp(name->text, key, name->bytes) == 0) {
            return dict->item[i + 1];
        }
    }
    return NULL;
}

const ls_pickle_value *ls_pickle_get_integer(const ls_pickle_value *dict, int64_t key)
{
    for (int64_t i = ls_pickle_is(dict, LS_PICKLE_DICT) ? dict->count - 2 : -1; i >= 0; i -= 2) {
        if (dict->item[i]->kind == LS_PICKLE_INTEGER && dict->item[i]->integer == key) {
            return dict->item[i + 1];
        }
    }
    return NULL;
}

/* ---- the stack ------------------------------------------------------------------------------- */

static void push(ls_pickle *p, ls_pickle_value *value)
{
    p->stack = ls_list_grow(p->stack, p->depth, &p->stack_room, sizeof *p->stack);
    p->stack[p->depth++] = value;
}

/* Whether so many values lie above the last mark; else refused. */
static bool has_values(ls_pickle *p, int count)
{
    bool has = p->depth - (p->marks > 0 ? p->mark[p->marks - 1] : 0) >= count;
    if (!has) {
        ls_pickle_refuse(p, "its pickle takes a value where there is none");
    }
    return has;
}

/* NULL, refused: the stack is empty. */
static ls_pickle_value *pop(ls_pickle *p)
{
    return has_values(p, 1) ? p->stack[--p->depth] : NULL;
}

static ls_pickle_value *top(ls_pickle *p)
{
    ls_pickle_value *value = pop(p);
    p->depth += value != NULL;
    return value;
}

/* Where the values since the last mark begin; they stay in the stack above its new depth. *count of
 * them. -1: refused. */
static int pop_mark(ls_pickle *p, int *count)
{
    if (p->marks == 0) {
        ls_pickle_refuse(p, "its pickle goes back to a mark that it has not set");
        return -1;
    }
    int from = p->mark[--p->marks];
    *count = p->depth - from;
    p->depth = from;
    return from;
}

/* ---- reading --------------------------------------------------------------------------------- */

static const unsigned char *take(ls_pickle *p, uint64_t bytes)
{
    if ((uint64_t)(p->end - p->at) < bytes) {
        ls_pickle_refuse(p, "its pickle is cut");
        return NULL;
    }
    p->at += bytes;
    return p->at - bytes;
}

static uint64_t take_number(ls_pickle *p, int bytes)
{
    const unsigned char *from = take(p, (uint64_t)bytes);
    uint64_t value = 0;
    for (int i = from == NULL ? -1 : bytes - 1; i >= 0; i--) {
        value = value << 8 | from[i];
    }
    return value;
}

/* A value with a text of its own. */
static ls_pickle_value *new_text(ls_pickle *p, ls_pickle_kind kind, const void *from, size_t bytes)
{
    ls_pickle_value *value = new_value(p, kind);
    value->own = ls_list_make(bytes + 1, 1);
    memcpy(value->own, from, bytes);
    value->text = value->own;
    value->bytes = bytes;
    return value;
}

static void push_text(ls_pickle *p, int length_bytes)
{
    uint64_t bytes = take_number(p, length_bytes);
    const unsigned char *from = take(p, bytes);
    if (from != NULL) {
        push(p, new_text(p, LS_PICKLE_TEXT, from, bytes));
    }
}

static void push_object(ls_pickle *p, const char *name)
{
    ls_pickle_value *value = new_value(p, LS_PICKLE_OBJECT);
    value->text = name;
    push(p, value);
}

static void push_integer(ls_pickle *p, int64_t number)
{
    ls_pickle_value *value = new_value(p, LS_PICKLE_INTEGER);
    value->integer = number;
    value->number = (double)number;
    push(p, value);
}

/* Two's complement of any length; more than 64 bits have no meaning here. */
static void push_long(ls_pickle *p, int length_bytes)
{
    uint64_t bytes = take_number(p, length_bytes), number = 0;
    const unsigned char *from = take(p, bytes);
    if (from == NULL) {
        return;
    }
    if (bytes > 8) {
        push_object(p, "a number of more than 64 bits");
        return;
    }
    bool negative = bytes > 0 && (from[bytes - 1] & 0x80) != 0;
    number = negative ? UINT64_MAX : 0;
    for (uint64_t i = bytes; i > 0; i--) {
        number = number << 8 | from[i - 1];
    }
    push_integer(p, (int64_t)number);
}

static void push_double(ls_pickle *p, int bytes)
{
    uint64_t bits = __builtin_bswap64(take_number(p, bytes));
    ls_pickle_value *value = new_value(p, LS_PICKLE_NUMBER);
    memcpy(&value->number, &bits, sizeof bits);
    push(p, value);
}

/* ---- names and calls ------------------------------------------------------------------------- */

static void push_name(ls_pickle *p, const char *module, const char *name)
{
    int row = 0;
    while (row < KNOWN &&
           (strcmp(known[row].module, module) != 0 || strcmp(known[row].name, name) != 0)) {
        row++;
    }
    row = LS_PLANT(pth_any_name, row, row == KNOWN ? OBJECT : row);
    if (row == KNOWN) {
        ls_pickle_refuse(p,
                         "its pickle names %.80s.%.80s, which is no part of a state dict: nothing "
                         "was executed",
                         module, name);
        return;
    }
    char full[NAME_BYTES];
    int length = snprintf(full, sizeof full, "%s.%s", module, name);
    ls_pickle_value *value = new_text(p, LS_PICKLE_NAME, full, (size_t)length);
    value->integer = row;
    push(p, value);
}

static bool take_line(ls_pickle *p, char line[NAME_BYTES])
{
    size_t length = 0;
    while (p->at < p->end && *p->at != '\n' && length < NAME_BYTES - 1) {
        line[length++] = (char)*p->at++;
    }
    line[length] = '\0';
    if (p->at == p->end || *p->at != '\n') {
        ls_pickle_refuse(p, "its pickle has a name without an end: %.40s", line);
        return false;
    }
    p->at++;
    return true;
}

static void read_name(ls_pickle *p, int unused)
{
    (void)unused;
    char module[NAME_BYTES], name[NAME_BYTES];
    if (take_line(p, module) && take_line(p, name)) {
        push_name(p, module, name);
    }
}

static void read_stacked_name(ls_pickle *p, int unused)
{
    (void)unused;
    const ls_pickle_value *name = pop(p), *module = pop(p);
    if (!ls_pickle_is(name, LS_PICKLE_TEXT) || !ls_pickle_is(module, LS_PICKLE_TEXT)) {
        ls_pickle_refuse(p, "its pickle names a class by something else than text");
        return;
    }
    push_name(p, module->text, name->text);
}

static void call(ls_pickle *p, int unused)
{
    (void)unused;
    ls_pickle_value *arguments = pop(p), *function = pop(p), *value = NULL;
    if (!ls_pickle_is(arguments, LS_PICKLE_TUPLE) || !ls_pickle_is(function, LS_PICKLE_NAME)) {
        ls_pickle_refuse(p, "its pickle calls something that has no name");
        return;
    }
    switch (known[function->integer].made) {
    case MADE_DICT:
        value = new_value(p, LS_PICKLE_DICT);
        break;
    case MADE_TUPLE:
    case MADE_FIRST:
        value = arguments->count > 0 ? arguments->item[0] : NULL;
        break;
    case MADE_TENSOR:
        value = new_value(p, LS_PICKLE_TENSOR);
        value->made = p->hooks->rebuild(p->hooks->context, p, arguments);
        break;
    case MADE_OBJECT:
        value = new_value(p, LS_PICKLE_OBJECT);
        value->text = function->text;
        break;
    case MADE_NONE:
        break;
    }
    if (value == NULL) {
        ls_pickle_refuse(p, "its pickle calls %s in a way that no state dict does", function->text);
        return;
    }
    push(p, value);
}

/* What objects and OrderedDicts have in addition to their items (torch: _metadata) is not used. */
static void build(ls_pickle *p, int unused)
{
    (void)unused;
    const ls_pickle_value *state = pop(p), *object = top(p);
    if (state != NULL && object != NULL && object->kind != LS_PICKLE_DICT &&
        object->kind != LS_PICKLE_OBJECT && object->kind != LS_PICKLE_TENSOR) {
        ls_pickle_refuse(p, "its pickle sets the state of something that has none");
    }
}

static void read_persistent(ls_pickle *p, int unused)
{
    (void)unused;
    const ls_pickle_value *id = pop(p);
    if (id != NULL) {
        ls_pickle_value *value = new_value(p, LS_PICKLE_STORED);
        value->made = p->hooks->persistent(p->hooks->context, p, id);
        push(p, value);
    }
}

/* ---- collections ----------------------------------------------------------------------------- */

static void push_tuple(ls_pickle *p, int count)
{
    ls_pickle_value *tuple = new_value(p, LS_PICKLE_TUPLE);
    if (!has_values(p, count)) {
        return;
    }
    for (int i = 0; i < count; i++) {
        add_item(tuple, p->stack[p->depth - count + i]);
    }
    p->depth -= count;
    push(p, tuple);
}

static void push_marked_tuple(ls_pickle *p, int unused)
{
    (void)unused;
    int count = 0, from = pop_mark(p, &count);
    if (from >= 0) {
        p->depth += count;
        push_tuple(p, count);
    }
}

/* Adds `count` values, which begin at stack[from], to the list or dict below them. */
static void add_all(ls_pickle *p, int kind, int from, int count)
{
    p->depth = from;
    ls_pickle_value *to = top(p);
    bool sets = ls_pickle_is(to, LS_PICKLE_OBJECT), pairs = kind == LS_PICKLE_DICT;
    if (to == NULL || ((int)to->kind != kind && !sets) || (pairs && count % 2 != 0)) {
        ls_pickle_refuse(p, "its pickle adds items to something that holds none");
        return;
    }
    for (int i = 0; i < count && !sets; i++) {
        add_item(to, p->stack[from + i]);
    }
}

/* An item, or a key and its value. */
static void add_one(ls_pickle *p, int kind)
{
    int count = kind == LS_PICKLE_DICT ? 2 : 1;
    if (has_values(p, count)) {
        add_all(p, kind, p->depth - count, count);
    }
}

static void add_marked(ls_pickle *p, int kind)
{
    int count = 0, from = pop_mark(p, &count);
    if (from >= 0) {
        add_all(p, kind, from, count);
    }
}

/* ---- the memo -------------------------------------------------------------------------------- */

/* bytes: of its number; 0: the next. */
static void memoize(ls_pickle *p, int bytes)
{
    uint64_t index = bytes > 0 ? take_number(p, bytes) : (uint64_t)p->memoized++;
    ls_pickle_value *value = top(p);
    if (value == NULL) {
        return;
    }
    if (index >= MEMO_MAX) {
        ls_pickle_refuse(p, "its pickle has a memo of number %llu: at most %d are read",
                         (unsigned long long)index, (int)MEMO_MAX);
        return;
    }
    if ((int)index >= p->memos) {
        int room = 2 * (int)index + 64;
        p->memo = realloc(p->memo, (size_t)room * sizeof(ls_pickle_value *));
        LS_MEMORY(p->memo != NULL);
        for (int i = p->memos; i < room; i++) {
            p->memo[i] = NULL;
        }
        p->memos = room;
    }
    p->memo[index] = value;
}

static void recall(ls_pickle *p, int bytes)
{
    uint64_t index = take_number(p, bytes);
    if (index >= (uint64_t)p->memos || p->memo[index] == NULL) {
        ls_pickle_refuse(p, "its pickle recalls number %llu, which it has not set",
                         (unsigned long long)index);
        return;
    }
    push(p, p->memo[index]);
}

/* ---- operations ------------------------------------------------------------------------------ */

static void skip(ls_pickle *p, int bytes)
{
    (void)take_number(p, bytes);
}

static void push_new(ls_pickle *p, int kind)
{
    push(p, new_value(p, (ls_pickle_kind)kind));
}

static void push_bool(ls_pickle *p, int is)
{
    ls_pickle_value *value = new_value(p, LS_PICKLE_BOOL);
    value->integer = is;
    push(p, value);
}

static void push_unsigned(ls_pickle *p, int bytes)
{
    push_integer(p, (int64_t)take_number(p, bytes));
}

static void push_signed(ls_pickle *p, int bytes)
{
    push_integer(p, (int32_t)take_number(p, bytes));
}

static void push_set(ls_pickle *p, int unused)
{
    (void)unused;
    push_object(p, "set");
}

static void set_mark(ls_pickle *p, int unused)
{
    (void)unused;
    p->mark = ls_list_grow(p->mark, p->marks, &p->mark_room, sizeof *p->mark);
    p->mark[p->marks++] = p->depth;
}

static void drop(ls_pickle *p, int marked)
{
    int count = 0;
    if (marked) {
        (void)pop_mark(p, &count);
    } else {
        (void)pop(p);
    }
}

static void finish(ls_pickle *p, int unused)
{
    (void)unused;
    p->root = pop(p);
    if (p->root != NULL && (p->depth > 0 || p->marks > 0)) {
        ls_pickle_refuse(p, "its pickle leaves values behind");
    }
}

/* By code, with names of Python's pickletools. */
static const struct operation {
    void (*run)(ls_pickle *p, int argument);
    int argument;
} operations[256] = {
    [0x80] = {skip, 1},                    /* PROTO */
    [0x95] = {skip, 8},                    /* FRAME */
    ['.'] = {finish},                      /* STOP */
    ['N'] = {push_new, LS_PICKLE_NONE},    /* NONE */
    [0x88] = {push_bool, true},            /* NEWTRUE */
    [0x89] = {push_bool, false},           /* NEWFALSE */
    ['K'] = {push_unsigned, 1},            /* BININT1 */
    ['M'] = {push_unsigned, 2},            /* BININT2 */
    ['J'] = {push_signed, 4},              /* BININT */
    [0x8a] = {push_long, 1},               /* LONG1 */
    [0x8b] = {push_long, 4},               /* LONG4 */
    ['G'] = {push_double, 8},              /* BINFLOAT */
    ['X'] = {push_text, 4},                /* BINUNICODE */
    ['T'] = {push_text, 4},                /* BINSTRING */
    ['B'] = {push_text, 4},                /* BINBYTES */
    [0x8c] = {push_text, 1},               /* SHORT_BINUNICODE */
    ['U'] = {push_text, 1},                /* SHORT_BINSTRING */
    ['C'] = {push_text, 1},                /* SHORT_BINBYTES */
    [0x8d] = {push_text, 8},               /* BINUNICODE8 */
    [0x8e] = {push_text, 8},               /* BINBYTES8 */
    ['}'] = {push_new, LS_PICKLE_DICT},    /* EMPTY_DICT */
    [']'] = {push_new, LS_PICKLE_LIST},    /* EMPTY_LIST */
    [')'] = {push_new, LS_PICKLE_TUPLE},   /* EMPTY_TUPLE */
    [0x8f] = {push_set},                   /* EMPTY_SET */
    ['('] = {set_mark},                    /* MARK */
    ['0'] = {drop, false},                 /* POP */
    ['1'] = {drop, true},                  /* POP_MARK */
    ['t'] = {push_marked_tuple},           /* TUPLE */
    [0x85] = {push_tuple, 1},              /* TUPLE1 */
    [0x86] = {push_tuple, 2},              /* TUPLE2 */
    [0x87] = {push_tuple, 3},              /* TUPLE3 */
    ['a'] = {add_one, LS_PICKLE_LIST},     /* APPEND */
    ['e'] = {add_marked, LS_PICKLE_LIST},  /* APPENDS */
    [0x90] = {add_marked, LS_PICKLE_LIST}, /* ADDITEMS */
    ['s'] = {add_one, LS_PICKLE_DICT},     /* SETITEM */
    ['u'] = {add_marked, LS_PICKLE_DICT},  /* SETITEMS */
    ['q'] = {memoize, 1},                  /* BINPUT */
    ['r'] = {memoize, 4},                  /* LONG_BINPUT */
    [0x94] = {memoize, 0},                 /* MEMOIZE */
    ['h'] = {recall, 1},                   /* BINGET */
    ['j'] = {recall, 4},                   /* LONG_BINGET */
    ['c'] = {read_name},                   /* GLOBAL */
    [0x93] = {read_stacked_name},          /* STACK_GLOBAL */
    ['R'] = {call},                        /* REDUCE */
    [0x81] = {call},                       /* NEWOBJ */
    ['b'] = {build},                       /* BUILD */
    ['Q'] = {read_persistent},             /* BINPERSID */
};

ls_pickle *ls_pickle_read(const void *data, size_t bytes, const ls_pickle_hooks *hooks, char *why,
                          size_t why_bytes)
{
    ls_pickle *p = ls_list_make(1, sizeof *p);
    p->at = data;
    p->end = p->at + bytes;
    p->hooks = hooks;
    p->why = why;
    p->why_bytes = why_bytes;
    while (p->root == NULL && !p->refused) {
        const unsigned char *code = take(p, 1);
        const struct operation *operation = &operations[code == NULL ? 0 : *code];
        if (operation->run != NULL) {
            operation->run(p, operation->argument);
        } else if (code != NULL) {
            ls_pickle_refuse(p, "its pickle has the operation 0x%02x, which no state dict needs",
                             *code);
        }
    }
    if (p->refused) {
        ls_pickle_close(p);
        return NULL;
    }
    return p;
}

void ls_pickle_close(ls_pickle *pickle)
{
    if (pickle == NULL) {
        return;
    }
    for (int i = 0; i < pickle->values; i++) {
        free(pickle->value[i]->item);
        free(pickle->value[i]->own);
        free(pickle->value[i]);
    }
    free(pickle->value);
    free(pickle->stack);
    free(pickle->mark);
    free(pickle->memo);
    free(pickle);
}

const ls_pickle_value *ls_pickle_root(const ls_pickle *pickle)
{
    return pickle->root;
}
