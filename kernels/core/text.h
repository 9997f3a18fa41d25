/* Text of a bounded length: a longer one is cut; the terminating 0 is always written. */
#ifndef LS_TEXT_H
#define LS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Like snprintf, for text that may be cut. */
void ls_text_put(char *text, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Declares char name[bytes] with such a text: LS_TEXT(path, 700, "%s/run.json", directory). */
#define LS_TEXT(name, bytes, ...) \
    char name[bytes];             \
    ls_text_put(name, sizeof name, __VA_ARGS__)
/* Appends to the text. */
void ls_text_add(char *text, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Twice the edits (insert, delete, replace; case counted as half) from `a` to `b`: for "did you
 * mean". `a` may be a glob, whose * and ? stand for characters at no cost. */
int ls_text_distance(const char *a, const char *b);
/* The entry of names[count] nearest to `word`. */
const char *ls_text_nearest(const char *word, const char *const *names, int count);
/* "did you mean NAME?" with those of names[count] that begin with the word, if they are at most 4,
 * else with the nearest where at most half of the word's letters differ, else the text
 * `otherwise`, which says where the names are listed. */
void ls_text_suggest(char *text, size_t bytes, const char *word, const char *const *names,
                     int count, const char *otherwise);
/* Whether `text` is a whole decimal number from `least` to `most`; *out is written only then. */
bool ls_text_integer(const char *text, int64_t least, int64_t most, int64_t *out);
/* Index of `text` among `choices`, separated by '|'; -1 if it is none of them. */
int ls_text_choice(const char *text, const char *choices);
/* Whether `text` matches the pattern, in which * stands for any characters and ? for one. */
bool ls_text_matches(const char *pattern, const char *text);
/* Reads the whole file into malloc'ed memory with a terminating 0; NULL and errno, without a
 * message, if it cannot be read (ls_file_open says what is). Without memory or descriptors for it
 * the program ends (ls_status_check_lack). */
char *ls_text_read(const char *path);

/* A growing list of strings, NULL at the end, as execve takes them: the words of a command, or an
 * environment. */

typedef struct ls_words {
    int count, capacity;
    char **word; /* [count], then NULL; each malloc'ed. NULL while nothing was added */
} ls_words;

/* Appends a word (printf style). */
void ls_words_add(ls_words *words, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Appends the parts of `text` between blanks. */
void ls_words_split(ls_words *words, const char *text);
/* The word as a shell reads it back, in single quotes where that is needed; malloc'ed. */
char *ls_words_quoted(const char *word);
/* All words so, separated by blanks; malloc'ed. */
char *ls_words_line(const ls_words *words);
/* Frees all words; *words is then an empty list. */
void ls_words_free(ls_words *words);

#endif
