/* Text of a bounded length: what does not fit is cut, and the end is always 0. */
#ifndef LS_TEXT_H
#define LS_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Like snprintf, but cutting is meant. */
void ls_text_put(char *text, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Appends behind what is there. */
void ls_text_add(char *text, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Edits (insert, delete, replace, case counted as half) from `a` to `b`: for "did you mean". */
int ls_text_distance(const char *a, const char *b);
/* The entry of names[count] nearest to `word`. */
const char *ls_text_nearest(const char *word, const char *const *names, int count);
/* Whether `text` matches the pattern, in which * stands for any characters and ? for one. */
bool ls_text_matches(const char *pattern, const char *text);
/* Reads the whole file into malloc'ed memory, 0 at the end; NULL when it cannot be read (silent).
 */
char *ls_text_read(const char *path);

#endif
