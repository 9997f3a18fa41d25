#include "usage_error.h"

#include <string.h>

#include "log.h"
#include "text.h"

static bool is_end(const struct argp_option *option)
{
    return option->name == NULL && option->key == 0 && option->doc == NULL;
}

typedef enum match { MATCH_NONE, MATCH_ONE, MATCH_MANY } match;

/* The option that an alias stands for. */
static const struct argp_option *meant(const struct argp_option *option)
{
    while ((option->flags & OPTION_ALIAS) != 0) {
        option--;
    }
    return option;
}

/* The option that `name` denotes: its name or an unambiguous abbreviation. */
static match find_option(const struct argp_option *table, const char *name, size_t length,
                         const struct argp_option **out)
{
    match found = MATCH_NONE;
    for (size_t i = 0; !is_end(&table[i]); i++) {
        if (table[i].name == NULL || strncmp(table[i].name, name, length) != 0) {
            continue;
        }
        const struct argp_option *option = meant(&table[i]);
        bool same = found == MATCH_NONE || option == *out;
        *out = option;
        if (strlen(table[i].name) == length) {
            return MATCH_ONE;
        }
        found = same && found != MATCH_MANY ? MATCH_ONE : MATCH_MANY;
    }
    return found;
}

static match find_letter(const struct argp_option *table, char letter,
                         const struct argp_option **out)
{
    for (size_t i = 0; !is_end(&table[i]); i++) {
        if (letter != '\0' && table[i].key == letter) {
            *out = &table[i];
            return MATCH_ONE;
        }
    }
    return MATCH_NONE;
}

static void explain_unknown(const struct argp_option *table, const char *argument, size_t length)
{
    const struct argp_option *nearest = NULL;
    char name[64];
    int best = (int)length; /* at most half of its letters: further away is another word */
    ls_text_put(name, sizeof name, "%.*s", (int)length, argument + (length > 0 ? 2 : 0));
    for (size_t i = 0; !is_end(&table[i]); i++) {
        int away = table[i].name != NULL ? ls_text_distance(name, table[i].name) : best;
        if (away < best) {
            best = away;
            nearest = &table[i];
        }
    }
    if (nearest != NULL) {
        ls_log_error("unknown option '%s'; did you mean --%s?", argument, nearest->name);
    } else {
        ls_log_error("unknown option '%s'; --help lists all", argument);
    }
}

/* argp handles these itself and does not look at later arguments. */
static bool asks_for_help(const char *argument, size_t length)
{
    return strcmp(argument, "-?") == 0 ||
           (length > 0 && (strncmp(argument + 2, "help", length) == 0 ||
                           strncmp(argument + 2, "usage", length) == 0));
}

bool ls_usage_error_explain(const struct argp_option *table, bool in_order, int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (argv[i][0] != '-' || argv[i][1] == '\0') {
            if (in_order) {
                return false;
            }
            continue;
        }
        bool is_long = strncmp(argv[i], "--", 2) == 0;
        size_t length = is_long ? strcspn(argv[i] + 2, "=") : 1;
        const struct argp_option *option = NULL;
        match found = is_long ? find_option(table, argv[i] + 2, length, &option)
                              : find_letter(table, argv[i][1], &option);
        if (found == MATCH_NONE && asks_for_help(argv[i], is_long ? length : 0)) {
            return false;
        }
        if (found == MATCH_NONE) {
            explain_unknown(table, argv[i], is_long ? length : 0);
            return true;
        }
        if (found == MATCH_MANY) {
            ls_log_error("'%s' may be several options; --help lists all", argv[i]);
            return true;
        }
        bool valued = option->arg != NULL;
        bool optional = (option->flags & OPTION_ARG_OPTIONAL) != 0;
        bool inside = is_long ? argv[i][2 + length] == '=' : argv[i][2] != '\0';
        if (inside && !valued) {
            ls_log_error("--%s takes no value: '%s'", option->name, argv[i]);
            return true;
        }
        i += valued && !optional && !inside;
        if (i >= argc) {
            ls_log_error("--%s needs a value: %s", option->name, option->arg);
            return true;
        }
    }
    return false;
}
