#include "mutate_parts.h"

#include <stdio.h>
#include <string.h>

#include "kernels/core/file.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"

void ls_reach_add_source(ls_reach *reach, const char *path, int lines)
{
    reach->source =
        ls_list_grow(reach->source, reach->sources, &reach->source_capacity, sizeof *reach->source);
    struct ls_reach_source *source = &reach->source[reach->sources++];
    *source = (struct ls_reach_source){.first = reach->bits, .lines = lines};
    ls_text_put(source->path, sizeof source->path, "%s", path);
    reach->bits += lines + 1;
}

static const struct ls_reach_source *source_of(const ls_reach *reach, const char *path)
{
    for (int i = 0; i < reach->sources; i++) {
        if (strcmp(reach->source[i].path, path) == 0) {
            return &reach->source[i];
        }
    }
    return NULL;
}

static void mark(ls_reach_test *test, const struct ls_reach_source *source, int first, int last)
{
    for (int line = first; line >= 1 && line <= last && line <= source->lines; line++) {
        int bit = source->first + line;
        test->bits[bit / 8] |= (uint8_t)(1u << (bit % 8));
    }
}

/* Lines of "PATH A-B C-D ..."; paths that are no source of this map (headers) are passed over. */
static ls_status read_lines(const ls_reach *reach, const char *path, ls_reach_test *test)
{
    char *text = NULL, *rest = NULL, *line;
    size_t bytes;
    LS_TRY(ls_file_read(path, LS_FILE_TEXT_BYTES, &text, &bytes));
    for (line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char *words = NULL, *word = strtok_r(line, " ", &words);
        const struct ls_reach_source *source = word == NULL ? NULL : source_of(reach, word);
        while (source != NULL && (word = strtok_r(NULL, " ", &words)) != NULL) {
            char *end;
            int first = (int)strtol(word, &end, 10);
            mark(test, source, first, *end == '-' ? (int)strtol(end + 1, NULL, 10) : first);
        }
    }
    free(text);
    return LS_OK;
}

static int by_seconds(const void *a, const void *b)
{
    const ls_reach_test *x = a, *y = b;
    return (x->seconds > y->seconds) - (x->seconds < y->seconds);
}

ls_status ls_reach_read(const char *directory, ls_reach *reach)
{
    LS_TEXT(path, 1200, "%s/tests.tsv", directory);
    char *text = NULL, *rest = NULL, *line;
    size_t bytes;
    LS_TRY(ls_file_read(path, LS_FILE_TEXT_BYTES, &text, &bytes));
    ls_status status = LS_OK;
    for (line = strtok_r(text, "\n", &rest); line != NULL && status == LS_OK;
         line = strtok_r(NULL, "\n", &rest)) {
        reach->test =
            ls_list_grow(reach->test, reach->tests, &reach->test_capacity, sizeof *reach->test);
        ls_reach_test *test = &reach->test[reach->tests++];
        memset(test, 0, sizeof *test);
        test->bits = ls_list_make((size_t)reach->bits / 8 + 1, 1);
        if (sscanf(line, "%95s %lf", test->name, &test->seconds) != 2) {
            status =
                ls_log_fail(LS_ERR_USAGE, "%s: '%s' is not a test and its seconds", path, line);
            break;
        }
        LS_TEXT(lines, 1400, "%s/%s.lines", directory, test->name);
        status = read_lines(reach, lines, test);
    }
    free(text);
    qsort(reach->test, (size_t)reach->tests, sizeof *reach->test, by_seconds);
    return status;
}

bool ls_reach_reaches(const ls_reach *reach, int test, int source, int line)
{
    int bit = reach->source[source].first + line;
    return (reach->test[test].bits[bit / 8] >> (bit % 8) & 1) != 0;
}

void ls_reach_free(ls_reach *reach)
{
    for (int i = 0; i < reach->tests; i++) {
        free(reach->test[i].bits);
    }
    free(reach->test);
    free(reach->source);
    memset(reach, 0, sizeof *reach);
}
