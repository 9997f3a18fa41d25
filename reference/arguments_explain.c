#include "arguments_explain.h"

#include <stdbool.h>
#include <string.h>

#include "../kernels/core/log.h"

/* Levenshtein's distance, for a hint; names are short. */
static int distance(const char *a, size_t length, const char *b)
{
    enum { LENGTH_MAX = 40 };
    int row[LENGTH_MAX + 1];
    int width = (int)strlen(b);
    if (width > LENGTH_MAX) {
        return LENGTH_MAX;
    }
    for (int j = 0; j <= width; j++) {
        row[j] = j;
    }
    for (int i = 1; i <= (int)length; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= width; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            best = row[j] + 1 < best ? row[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[width];
}

static bool is_end(const struct argp_option *option)
{
    return option->name == NULL && option->key == 0 && option->doc == NULL;
}

typedef enum match { MATCH_NONE, MATCH_ONE, MATCH_MANY } match;

/* The option that `name` means: its name or an abbreviation of only one. */
static match find_option(const struct argp_option *table, const char *name, size_t length,
                         const struct argp_option **out)
{
    match found = MATCH_NONE;
    for (size_t i = 0; !is_end(&table[i]); i++) {
        if (table[i].name == NULL || strncmp(table[i].name, name, length) != 0) {
            continue;
        }
        *out = &table[i];
        if (strlen(table[i].name) == length) {
            return MATCH_ONE;
        }
        found = found == MATCH_NONE ? MATCH_ONE : MATCH_MANY;
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
    int best = (int)length / 2; /* further away is another word */
    for (size_t i = 0; !is_end(&table[i]); i++) {
        int away = table[i].name != NULL ? distance(argument + 2, length, table[i].name) : best;
        if (away < best) {
            best = away;
            nearest = &table[i];
        }
    }
    if (nearest != NULL) {
        ls_log_error("unknown option '%s'; the nearest is --%s", argument, nearest->name);
    } else {
        ls_log_error("unknown option '%s'; --help lists all", argument);
    }
}

void ls_arguments_explain_refusal(const struct argp_option *table, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        bool is_long = strncmp(argv[i], "--", 2) == 0;
        size_t length = is_long ? strcspn(argv[i] + 2, "=") : 1;
        const struct argp_option *option = NULL;
        match found = MATCH_NONE;
        if (is_long) {
            found = find_option(table, argv[i] + 2, length, &option);
        } else {
            found = find_letter(table, argv[i][1], &option);
        }
        if (found == MATCH_NONE) {
            explain_unknown(table, argv[i], is_long ? length : 0);
            return;
        }
        if (found == MATCH_MANY) {
            ls_log_error("'%s' may be several options; --help lists all", argv[i]);
            return;
        }
        bool valued = option->arg != NULL;
        bool optional = (option->flags & OPTION_ARG_OPTIONAL) != 0;
        bool inside = is_long ? argv[i][2 + length] == '=' : argv[i][2] != '\0';
        if (inside && !valued) {
            ls_log_error("--%s takes no value: '%s'", option->name, argv[i]);
            return;
        }
        i += valued && !optional && !inside;
        if (i >= argc) {
            ls_log_error("--%s needs a value: %s", option->name, option->arg);
            return;
        }
    }
}
