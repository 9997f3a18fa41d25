/* A growing list of strings, NULL at the end, as execve takes them: the words of a command, or an
 * environment. */
#ifndef LS_WORDS_H
#define LS_WORDS_H

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
