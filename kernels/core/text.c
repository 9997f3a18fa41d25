#include "text.h"

#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"

void ls_text_put(char *text, size_t bytes, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, bytes, format, arguments);
    va_end(arguments);
}

void ls_text_add(char *text, size_t bytes, const char *format, ...)
{
    size_t used = strlen(text);
    if (used >= bytes) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, bytes - used, format, arguments);
    va_end(arguments);
}

int ls_text_distance(const char *a, const char *b)
{
    enum { LONGEST = 63 };
    int columns = (int)strnlen(b, LONGEST), rows = (int)strnlen(a, LONGEST);
    int before[LONGEST + 1], now[LONGEST + 1];
    for (int j = 0; j <= columns; j++) {
        before[j] = 2 * j;
    }
    for (int i = 1; i <= rows; i++) {
        bool any = a[i - 1] == '*'; /* of a glob: it stands for any characters */
        now[0] = any ? before[0] : before[0] + 2;
        for (int j = 1; j <= columns; j++) {
            if (any) {
                now[j] = before[j] < now[j - 1] ? before[j] : now[j - 1];
                continue;
            }
            int cost = a[i - 1] == b[j - 1] || a[i - 1] == '?'                                ? 0
                       : tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]) ? 1
                                                                                              : 2;
            int best = before[j - 1] + cost;
            best = before[j] + 2 < best ? before[j] + 2 : best;
            now[j] = now[j - 1] + 2 < best ? now[j - 1] + 2 : best;
        }
        memcpy(before, now, sizeof now);
    }
    return before[columns];
}

const char *ls_text_nearest(const char *word, const char *const *names, int count)
{
    const char *best = names[0];
    int least = ls_text_distance(word, best);
    for (int i = 1; i < count; i++) {
        int distance = ls_text_distance(word, names[i]);
        if (distance < least) {
            least = distance;
            best = names[i];
        }
    }
    return best;
}

/* "did you mean A, B or C?" of the names that `word` begins; false: of none, or of too many. */
static bool suggest_whole(char *text, size_t bytes, const char *word, const char *const *names,
                          int count)
{
    enum { SHOWN = 4 };
    const char *begun[SHOWN];
    int found = 0;
    for (int i = 0; i < count; i++) {
        if (strncmp(names[i], word, strlen(word)) == 0) {
            begun[found < SHOWN ? found : 0] = names[i];
            found++;
        }
    }
    ls_text_put(text, bytes, "did you mean ");
    for (int i = 0; i < found && i < SHOWN; i++) {
        ls_text_add(text, bytes, "%s%s", i == 0 ? "" : i + 1 == found ? " or " : ", ", begun[i]);
    }
    ls_text_add(text, bytes, "?");
    return found > 0 && found <= SHOWN;
}

void ls_text_suggest(char *text, size_t bytes, const char *word, const char *const *names,
                     int count, const char *otherwise)
{
    const char *best = count > 0 ? ls_text_nearest(word, names, count) : NULL;
    int letters = 0;
    for (const char *c = word + strspn(word, "-"); *c != '\0'; c++) {
        letters += *c != '*' && *c != '?';
    }
    if (letters > 0 && suggest_whole(text, bytes, word, names, count)) {
        return;
    }
    if (best != NULL && ls_text_distance(word, best) <= letters) {
        ls_text_put(text, bytes, "did you mean %s?", best);
    } else {
        ls_text_put(text, bytes, "%s", otherwise);
    }
}

bool ls_text_integer(const char *text, int64_t least, int64_t most, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < least || value > most) {
        return false;
    }
    *out = value;
    return true;
}

int ls_text_choice(const char *text, const char *choices)
{
    size_t length = strlen(text);
    for (int index = 0;; index++) {
        size_t bytes = strcspn(choices, "|");
        if (bytes == length && strncmp(choices, text, bytes) == 0) {
            return index;
        }
        if (choices[bytes] == '\0') {
            return -1;
        }
        choices += bytes + 1;
    }
}

bool ls_text_matches(const char *pattern, const char *text)
{
    return fnmatch(pattern, text, FNM_NOESCAPE) == 0;
}

char *ls_text_read(const char *path)
{
    char *text = NULL;
    size_t bytes;
    ls_file_source file;
    if (ls_file_load(path, LS_FILE_TEXT_BYTES, &file, &text, &bytes) == LS_OK) {
        return text;
    }
    ls_status_check_lack(path);
    return NULL;
}
