#include "usage.h"

#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "text.h"

/* ---- the options of a program: its table's and these ------------------------------------------
 */

enum { KEY_USAGE = 0x10000, KEY_VERSION, GROUP_COMMON = 0x10000 /* the last */ };

static const struct argp_option common[] = {
    {NULL, 0, NULL, 0, "", GROUP_COMMON},
    {"help", '?', NULL, 0, "print this", GROUP_COMMON},
    {"usage", KEY_USAGE, NULL, OPTION_HIDDEN, "", GROUP_COMMON},
    {"version", KEY_VERSION, NULL, 0, "print the version", GROUP_COMMON},
    {0},
};

static bool is_end(const struct argp_option *option)
{
    return option->name == NULL && option->key == 0 && option->doc == NULL;
}

static bool is_hidden(const struct argp_option *option)
{
    return (option->flags & (OPTION_HIDDEN | OPTION_ALIAS)) != 0;
}

static const struct argp_option *first(const struct argp_option *table)
{
    return is_end(table) ? common : table;
}

/* The option behind `option`; NULL: it was the last. */
static const struct argp_option *next(const struct argp_option *option)
{
    bool last = option == &common[sizeof common / sizeof *common - 2];
    return last ? NULL : first(option + 1);
}

static const struct argp_option *find(const struct argp_option *table, const char *name,
                                      size_t length)
{
    const struct argp_option *option = first(table);
    while (option != NULL && (option->name == NULL || strncmp(option->name, name, length) != 0 ||
                              option->name[length] != '\0')) {
        option = next(option);
    }
    while (option != NULL && (option->flags & OPTION_ALIAS) != 0) {
        option--;
    }
    return option;
}

static const struct argp_option *find_letter(const struct argp_option *table, char letter)
{
    const struct argp_option *option = first(table);
    while (option != NULL && option->key != letter) {
        option = next(option);
    }
    return option;
}

/* ---- help --------------------------------------------------------------------------------------
 */

void ls_usage_text(FILE *to, int column, const char *text)
{
    int used = column;
    while (*text != '\0') {
        int length = (int)strcspn(text, " ");
        if (used > column && used + 1 + length > LS_USAGE_WIDTH) {
            fprintf(to, "\n%*s", column, "");
            used = column;
        }
        used += fprintf(to, "%s%.*s", used > column ? " " : "", length, text);
        text += length;
        text += strspn(text, " ");
    }
    fputc('\n', to);
}

void ls_usage_entry(FILE *to, const char *name, const char *text)
{
    int used = fprintf(to, "%s", name);
    if (used >= LS_USAGE_COLUMN) {
        fputc('\n', to);
        used = 0;
    }
    fprintf(to, "%*s", LS_USAGE_COLUMN - used, "");
    ls_usage_text(to, LS_USAGE_COLUMN, text);
}

static int by_group_and_name(const void *left, const void *right)
{
    const struct argp_option *a = *(const struct argp_option *const *)left;
    const struct argp_option *b = *(const struct argp_option *const *)right;
    int groups = a->group - b->group;
    return groups != 0 ? groups
                       : strcmp(a->name == NULL ? "" : a->name, b->name == NULL ? "" : b->name);
}

static void print_option(const struct argp_option *option)
{
    if (option->name == NULL) { /* a group's title */
        printf("\n%s%s%s", option->doc[0] != '\0' ? " " : "", option->doc,
               option->doc[0] != '\0' ? "\n" : "");
        return;
    }
    bool optional = (option->flags & OPTION_ARG_OPTIONAL) != 0;
    LS_TEXT(name, 96, "      --%s", option->name);
    if (option->key > ' ' && option->key <= '~') {
        ls_text_put(name, sizeof name, "  -%c, --%s", option->key, option->name);
    }
    if (option->arg != NULL) {
        ls_text_add(name, sizeof name, "%s=%s%s", optional ? "[" : "", option->arg,
                    optional ? "]" : "");
    }
    ls_usage_entry(stdout, name, option->doc);
}

static void print_usage(const struct argp *argp, const char *program)
{
    printf("Usage: %s [OPTION...]%s%s\n", program, argp->args_doc != NULL ? " " : "",
           argp->args_doc != NULL ? argp->args_doc : "");
}

/* What an argp's doc has behind \v follows the options. */
static void print_help(const struct argp *argp, const char *program)
{
    const char *end = strchrnul(argp->doc, '\v');
    char *doc = strndup(argp->doc, (size_t)(end - argp->doc));
    LS_MEMORY(doc != NULL);
    print_usage(argp, program);
    ls_usage_text(stdout, 0, doc);
    free(doc);
    size_t count = 0, most = 1;
    for (const struct argp_option *at = first(argp->options); at != NULL; at = next(at)) {
        most++;
    }
    const struct argp_option **sorted = calloc(most, sizeof *sorted);
    LS_MEMORY(sorted != NULL);
    for (const struct argp_option *at = first(argp->options); at != NULL; at = next(at)) {
        if (!is_hidden(at)) {
            sorted[count++] = at;
        }
    }
    qsort(sorted, count, sizeof *sorted, by_group_and_name);
    if (sorted[0]->name != NULL) {
        putchar('\n');
    }
    for (size_t i = 0; i < count; i++) {
        print_option(sorted[i]);
    }
    free(sorted);
    if (*end != '\0') {
        putchar('\n');
        ls_usage_text(stdout, 0, end + 1);
    }
}

/* ---- the check ---------------------------------------------------------------------------------
 */

static void answer(const struct argp *argp, const struct argp_option *option, const char *path)
{
    const char *slash = strrchr(path, '/'), *program = slash != NULL ? slash + 1 : path;
    switch (option->key) {
    case '?':
        print_help(argp, program);
        exit(0);
    case KEY_USAGE:
        print_usage(argp, program);
        exit(0);
    case KEY_VERSION:
        printf("%s (Lockstep) %s\n", program, LS_VERSION);
        exit(0);
    default:
        return;
    }
}

static void explain_unknown(const struct argp_option *table, const char *given, size_t length)
{
    enum { NAMES_MOST = 256 };
    char hint[160], *names[NAMES_MOST];
    int count = 0;
    for (const struct argp_option *at = first(table); at != NULL && count < NAMES_MOST;
         at = next(at)) {
        if (at->name != NULL && !is_hidden(at)) {
            LS_MEMORY(asprintf(&names[count], "--%s", at->name) >= 0);
            count++;
        }
    }
    LS_TEXT(name, 64, "%.*s", (int)length, given);
    ls_text_suggest(hint, sizeof hint, name, (const char *const *)names, count, "--help lists all");
    ls_log_error("unknown option '%s'; %s", given, hint);
    while (count > 0) {
        free(names[--count]);
    }
}

ls_status ls_usage_check_value(const char *name, const char *wanted, const char *value)
{
    if (value == NULL) {
        return ls_log_fail(LS_ERR_USAGE, "%s needs a value: %s", name, wanted);
    }
    if (strncmp(value, "--", 2) == 0) {
        return ls_log_fail(LS_ERR_USAGE, "%s needs a value before %s: %s", name, value, wanted);
    }
    return LS_OK;
}

typedef struct line {
    const struct argp *argp;
    char **argv;
    int argc, at;
} line;

/* `inside`: the value is a part of argv[at]; else it is the argument behind that. */
static bool check_option(line *l, const struct argp_option *option, bool inside)
{
    if (inside && option->arg == NULL) {
        ls_log_error("--%s takes no value: '%s'", option->name, l->argv[l->at]);
        return false;
    }
    answer(l->argp, option, l->argv[0]);
    if (option->arg == NULL || inside || (option->flags & OPTION_ARG_OPTIONAL) != 0) {
        return true;
    }
    LS_TEXT(name, 64, "--%s", option->name);
    l->at++;
    return ls_usage_check_value(name, option->arg, l->at < l->argc ? l->argv[l->at] : NULL) ==
           LS_OK;
}

static bool check_name(line *l, const char *given)
{
    size_t length = strcspn(given, "=");
    const struct argp_option *option = find(l->argp->options, given + 2, length - 2);
    if (option == NULL) {
        explain_unknown(l->argp->options, given, length);
        return false;
    }
    return check_option(l, option, given[length] == '=');
}

/* "-e", or several letters, the last with a value: "-ej4". */
static bool check_letters(line *l, const char *given)
{
    for (const char *letter = given + 1; *letter != '\0'; letter++) {
        const struct argp_option *option = find_letter(l->argp->options, *letter);
        if (option == NULL) {
            ls_log_error("unknown option '%s'; --help lists all", given);
            return false;
        }
        bool valued = option->arg != NULL;
        if (!check_option(l, option, valued && letter[1] != '\0')) {
            return false;
        }
        if (valued) {
            break;
        }
    }
    return true;
}

bool ls_usage_check(const struct argp *argp, bool in_order, int argc, char **argv)
{
    line l = {argp, argv, argc, 1};
    for (; l.at < argc && strcmp(argv[l.at], "--") != 0; l.at++) {
        const char *given = argv[l.at];
        bool operand = given[0] != '-' || given[1] == '\0';
        if (operand && in_order) {
            return true;
        }
        if (!operand && !(given[1] == '-' ? check_name(&l, given) : check_letters(&l, given))) {
            return false;
        }
    }
    return true;
}
