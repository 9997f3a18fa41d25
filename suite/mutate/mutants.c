#include "mutate_parts.h"

#include <ctype.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/text.h"

enum { DEPTH_MOST = 64 };

/* ---- tokens ---------------------------------------------------------------------------------- */

typedef enum token_kind { WORD, NUMBER, SIGN, QUOTED } token_kind;

typedef struct token {
    token_kind kind;
    int64_t begin, end;
    int line;
    bool spaced; /* a blank or a line break on both sides */
} token;

typedef struct tokens {
    const char *text;
    int count, capacity;
    token *token;
} tokens;

static bool is(const tokens *t, int i, const char *text)
{
    if (i < 0 || i >= t->count) {
        return false;
    }
    size_t length = strlen(text);
    return (size_t)(t->token[i].end - t->token[i].begin) == length &&
           memcmp(t->text + t->token[i].begin, text, length) == 0;
}

static bool is_one_of(const tokens *t, int i, const char *const *texts)
{
    for (; *texts != NULL; texts++) {
        if (is(t, i, *texts)) {
            return true;
        }
    }
    return false;
}

static bool starts(const tokens *t, int i, const char *text)
{
    return i >= 0 && i < t->count && t->token[i].kind == WORD &&
           strncmp(t->text + t->token[i].begin, text, strlen(text)) == 0;
}

/* The end of a comment, a string, a character or a line of the preprocessor that begins at `at`;
 * `at` itself if none does. */
static int64_t skipped(const char *text, int64_t at, bool line_begins)
{
    const char *s = text + at;
    if (s[0] == '/' && s[1] == '*') {
        const char *end = strstr(s + 2, "*/");
        return end == NULL ? at + (int64_t)strlen(s) : end + 2 - text;
    }
    if (s[0] == '/' && s[1] == '/') {
        return at + (int64_t)strcspn(s, "\n");
    }
    if (s[0] == '#' && line_begins) {
        int64_t end = at;
        while (text[end] != '\0' && (text[end] != '\n' || text[end - 1] == '\\')) {
            end++;
        }
        return end;
    }
    if (s[0] == '"' || s[0] == '\'') {
        int64_t end = at + 1;
        while (text[end] != '\0' && text[end] != s[0]) {
            end += text[end] == '\\' && text[end + 1] != '\0' ? 2 : 1;
        }
        return text[end] == '\0' ? end : end + 1;
    }
    return at;
}

static int64_t sign_length(const char *s)
{
    static const char *const longer[] = {"<<=", ">>=", "...", "->", "++", "--", "<<", ">>",
                                         "<=",  ">=",  "==",  "!=", "&&", "||", "+=", "-=",
                                         "*=",  "/=",  "%=",  "|=", "&=", "^=", "::", NULL};
    for (int i = 0; longer[i] != NULL; i++) {
        if (strncmp(s, longer[i], strlen(longer[i])) == 0) {
            return (int64_t)strlen(longer[i]);
        }
    }
    return 1;
}

static void append(tokens *t, token_kind kind, int64_t begin, int64_t end, int line)
{
    t->token = ls_list_grow(t->token, t->count, &t->capacity, sizeof *t->token);
    t->token[t->count++] =
        (token){.kind = kind,
                .begin = begin,
                .end = end,
                .line = line,
                .spaced = begin > 0 && isspace((unsigned char)t->text[begin - 1]) &&
                          isspace((unsigned char)t->text[end])};
}

static void read_tokens(const char *text, tokens *out)
{
    int line = 1;
    bool line_begins = true;
    for (int64_t at = 0; text[at] != '\0';) {
        unsigned char c = (unsigned char)text[at];
        int64_t end = skipped(text, at, line_begins);
        if (isspace(c)) {
            line_begins = line_begins || c == '\n';
            end = at + 1;
        } else if (end > at) {
            if (c == '"' || c == '\'') {
                append(out, QUOTED, at, end, line);
            }
            line_begins = false;
        } else {
            token_kind kind = isalpha(c) || c == '_' ? WORD
                              : isdigit(c) || (c == '.' && isdigit((unsigned char)text[at + 1]))
                                  ? NUMBER
                                  : SIGN;
            end = at + (kind == SIGN ? sign_length(text + at) : 1);
            while (kind != SIGN && (isalnum((unsigned char)text[end]) || text[end] == '_' ||
                                    (kind == NUMBER &&
                                     (text[end] == '.' || (strchr("+-", text[end]) != NULL &&
                                                           strchr("eEpP", text[end - 1]) != NULL &&
                                                           text[end] != '\0'))))) {
                end++;
            }
            append(out, kind, at, end, line);
            line_begins = false;
        }
        for (; at < end; at++) {
            line += text[at] == '\n';
        }
    }
}

/* The token that closes the bracket at `open`; count when there is none. */
static int closing(const tokens *t, int open)
{
    int depth = 0;
    for (int i = open; i < t->count; i++) {
        depth += is(t, i, "(") || is(t, i, "[") || is(t, i, "{");
        depth -= is(t, i, ")") || is(t, i, "]") || is(t, i, "}");
        if (depth == 0) {
            return i;
        }
    }
    return t->count;
}

/* ---- changes --------------------------------------------------------------------------------- */

static void offer(ls_mutant_list *out, const tokens *t, int first, int last, const char *kind,
                  const char *with)
{
    out->mutant = ls_list_grow(out->mutant, out->count, &out->capacity, sizeof *out->mutant);
    ls_mutant *m = &out->mutant[out->count++];
    *m = (ls_mutant){.line = t->token[first].line,
                     .begin = t->token[first].begin,
                     .end = t->token[last].end,
                     .kind = kind,
                     .wraps = strcmp(kind, "condition") == 0};
    ls_text_put(m->with, sizeof m->with, "%s", with);
}

static bool is_value_end(const tokens *t, int i)
{
    static const char *const not_values[] = {"return", "case", "sizeof", "else", "do", NULL};
    return i >= 0 && (t->token[i].kind == NUMBER || is(t, i, ")") || is(t, i, "]") ||
                      (t->token[i].kind == WORD && !is_one_of(t, i, not_values)));
}

static void change_sign(ls_mutant_list *out, const tokens *t, int i)
{
    /* binary: only between values, with blanks around, as the formatter writes them */
    static const struct {
        const char *from, *to, *kind;
        bool binary;
    } table[] = {
        {"<", "<=", "relation", true},     {"<=", "<", "relation", true},
        {">", ">=", "relation", true},     {">=", ">", "relation", true},
        {"==", "!=", "relation", true},    {"!=", "==", "relation", true},
        {"&&", "||", "logic", true},       {"||", "&&", "logic", true},
        {"+", "-", "arithmetic", true},    {"-", "+", "arithmetic", true},
        {"*", "/", "arithmetic", true},    {"/", "*", "arithmetic", true},
        {"%", "*", "arithmetic", true},    {"+=", "-=", "arithmetic", true},
        {"-=", "+=", "arithmetic", true},  {"*=", "/=", "arithmetic", true},
        {"|=", "&=", "logic", true},       {"&=", "|=", "logic", true},
        {"<<", ">>", "arithmetic", true},  {">>", "<<", "arithmetic", true},
        {"++", "--", "arithmetic", false}, {"--", "++", "arithmetic", false},
        {"!", "", "logic", false},
    };
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        if (is(t, i, table[k].from) &&
            (!table[k].binary || (t->token[i].spaced && is_value_end(t, i - 1)))) {
            offer(out, t, i, i, table[k].kind, table[k].to);
        }
    }
}

static void change_constant(ls_mutant_list *out, const tokens *t, int i)
{
    const token *at = &t->token[i];
    int length = (int)(at->end - at->begin);
    const char *text = t->text + at->begin;
    bool plain = length < 12;
    for (int k = 0; k < length; k++) {
        plain = plain && isdigit((unsigned char)text[k]);
    }
    char with[24];
    if (is(t, i, "0")) {
        offer(out, t, i, i, "constant", "1");
    } else if (is(t, i, "1")) {
        offer(out, t, i, i, "constant", "0");
    } else if (plain && ((is(t, i - 1, "[") && is(t, i + 1, "]")) || starts(t, i - 4, "LS_TEXT"))) {
        return; /* the size of a buffer: one more is no fault */
    } else if (plain) {
        ls_text_put(with, sizeof with, "%lld", strtoll(text, NULL, 10) + 1);
        offer(out, t, i, i, "constant", with);
    } else if (length < 14) {
        ls_text_put(with, sizeof with, "(2 * %.*s)", length, text);
        offer(out, t, i, i, "constant", with);
    }
}

/* A call that gives memory back: without it memory leaks, which is for the sanitizers. (va_end does
 * nothing on the machines that Lockstep runs on.) */
static bool frees(const tokens *t, int i)
{
    static const char *const ends[] = {"free", "_destroy", "cJSON_Delete", "ls_dumpfile_close",
                                       "va_end"};
    const token *at = &t->token[i];
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
        int64_t length = (int64_t)strlen(ends[k]);
        if (at->end - at->begin >= length &&
            memcmp(t->text + at->end - length, ends[k], (size_t)length) == 0) {
            return true;
        }
    }
    return false;
}

/* A statement that begins at token i and is an expression, `break` or `continue`: its last token,
 * else -1. */
static int statement(const tokens *t, int i)
{
    static const char *const jumps[] = {"break", "continue", NULL};
    static const char *const other[] = {"if",     "for",   "while",   "switch",  "return", "case",
                                        "do",     "else",  "goto",    "default", "sizeof", "struct",
                                        "static", "const", "typedef", "enum",    "union",  NULL};
    static const char *const after_name[] = {"(",  "=",   "->",  ".",  "[",  "+=",
                                             "-=", "*=",  "/=",  "|=", "&=", "++",
                                             "--", "<<=", ">>=", "^=", "%=", NULL};
    if (!is(t, i - 1, ";") && !is(t, i - 1, "{") && !is(t, i - 1, "}") && !is(t, i - 1, ":")) {
        return -1;
    }
    if (is_one_of(t, i, jumps)) {
        return is(t, i + 1, ";") ? i + 1 : -1;
    }
    bool named =
        t->token[i].kind == WORD && !is_one_of(t, i, other) && is_one_of(t, i + 1, after_name);
    bool dropped = is(t, i, "(") && is(t, i + 1, "void") && is(t, i + 2, ")");
    if ((!named && !dropped && !is(t, i, "*")) || frees(t, i) || starts(t, i, "LS_TEXT")) {
        return -1; /* LS_TEXT is a declaration */
    }
    int depth = 0;
    for (int k = i; k < t->count; k++) {
        depth += is(t, k, "(") || is(t, k, "[") || is(t, k, "{");
        depth -= is(t, k, ")") || is(t, k, "]") || is(t, k, "}");
        if (depth < 0) {
            return -1; /* an element of a list */
        }
        if (depth == 0 && is(t, k, ";")) {
            return k;
        }
        if (depth == 0 && is(t, k, ",")) {
            return -1;
        }
    }
    return -1;
}

/* Messages, assertions and planted faults; and what an attribute or a declaration of a type says.
 */
static bool is_passed_over(const tokens *t, int i)
{
    static const char *const words[] = {
        "LS_ASSERT", "LS_PLANT", "static_assert", "_Static_assert", "__attribute__", "enum", NULL};
    return starts(t, i, "ls_log_") || is_one_of(t, i, words);
}

/* The token after what is passed over at i. */
static int passed(const tokens *t, int i)
{
    while (i < t->count && !is(t, i, "(") && !is(t, i, "{") && !is(t, i, ";")) {
        i++;
    }
    return is(t, i, ";") ? i : closing(t, i);
}

void ls_mutants_of(const char *text, ls_mutant_list *out)
{
    tokens t = {.text = text};
    read_tokens(text, &t);
    for (int i = 0; i < t.count; i++) {
        if (is_passed_over(&t, i)) {
            i = passed(&t, i);
            continue;
        }
        int last = statement(&t, i);
        if (last >= 0) {
            offer(out, &t, i, last, "left out", ";");
        }
        if (is(&t, i, "if") && is(&t, i + 1, "(") && closing(&t, i + 1) < t.count &&
            !is(&t, i + 2, "!")) {
            offer(out, &t, i + 2, closing(&t, i + 1) - 1, "condition", "!(");
        }
        if (is(&t, i, "true") || is(&t, i, "false")) {
            offer(out, &t, i, i, "constant", is(&t, i, "true") ? "false" : "true");
        }
        if (t.token[i].kind == SIGN) {
            change_sign(out, &t, i);
        } else if (t.token[i].kind == NUMBER) {
            change_constant(out, &t, i);
        }
    }
    free(t.token);
}

/* ---- a changed source ------------------------------------------------------------------------ */

char *ls_mutants_apply(const char *text, const ls_mutant *m)
{
    size_t bytes = strlen(text) + sizeof m->with + 2;
    char *out = ls_list_make(bytes, 1);
    memcpy(out, text, (size_t)m->begin);
    char *to = out + m->begin;
    to = stpcpy(to, m->with);
    for (int64_t i = m->begin; i < m->end; i++) {
        if (m->wraps || text[i] == '\n') {
            *to++ = text[i];
        }
    }
    if (m->wraps) {
        *to++ = ')';
    }
    strcpy(to, text + m->end);
    return out;
}

static void put_on_one_line(char *to, int bytes, const char *text, int64_t length)
{
    int used = 0;
    for (int64_t i = 0; i < length && used + 1 < bytes; i++) {
        bool blank = isspace((unsigned char)text[i]);
        if (!blank || (used > 0 && to[used - 1] != ' ')) {
            to[used++] = blank ? ' ' : text[i];
        }
    }
    to[used] = '\0';
}

void ls_mutants_show(const char *text, const ls_mutant *m, char *before, char *after, int bytes)
{
    put_on_one_line(before, bytes, text + m->begin, m->end - m->begin);
    if (m->wraps) {
        ls_text_put(after, (size_t)bytes, "%s%s)", m->with, before);
    } else {
        ls_text_put(after, (size_t)bytes, "%s", m->with);
    }
}
