#define _GNU_SOURCE
#include "text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "list.h"
#include "status.h"

void ls_words_add(ls_words *words, const char *format, ...)
{
    /* one slot more than words, for the NULL */
    words->word = ls_list_grow(words->word, words->count + 1, &words->capacity, sizeof(char *));
    va_list arguments;
    va_start(arguments, format);
    LS_MEMORY(vasprintf(&words->word[words->count], format, arguments) >= 0);
    va_end(arguments);
    words->word[++words->count] = NULL;
}

void ls_words_split(ls_words *words, const char *text)
{
    for (text += strspn(text, " "); *text != '\0'; text += strspn(text, " ")) {
        size_t length = strcspn(text, " ");
        ls_words_add(words, "%.*s", (int)length, text);
        text += length;
    }
}

char *ls_words_quoted(const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789-_=./,:+@%";
    bool quote = word[0] == '\0' || word[strspn(word, plain)] != '\0';
    char *text = malloc(4 * strlen(word) + 3), *at = text;
    LS_MEMORY(text != NULL);
    at = stpcpy(at, quote ? "'" : "");
    for (; *word != '\0'; word++) {
        at = *word == '\'' ? stpcpy(at, "'\\''") : stpncpy(at, word, 1);
    }
    (void)stpcpy(at, quote ? "'" : "");
    return text;
}

char *ls_words_line(const ls_words *words)
{
    char *line = strdup("");
    for (int i = 0; i < words->count; i++) {
        char *before = line, *word = ls_words_quoted(words->word[i]);
        LS_MEMORY(asprintf(&line, "%s%s%s", before, i == 0 ? "" : " ", word) >= 0);
        free(before);
        free(word);
    }
    LS_MEMORY(line != NULL);
    return line;
}

void ls_words_free(ls_words *words)
{
    for (int i = 0; i < words->count; i++) {
        free(words->word[i]);
    }
    free(words->word);
    *words = (ls_words){0, 0, NULL};
}
