#include "plain.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"

/* Bytes of the UTF-8 character at `at`, and its code point; 0 when it is none (too long a form, a
 * surrogate, cut off). */
static int decode(const unsigned char *at, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    int bytes = at[0] < 0x80 ? 1 : at[0] < 0xc0 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
    *code = bytes == 1 ? at[0] : at[0] & (0x7fu >> bytes);
    for (int i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return 0;
        }
        *code = *code << 6 | (at[i] & 0x3fu);
    }
    bool valid = *code >= least[bytes] && *code <= 0x10ffff && *code >> 11 != 0xd800 >> 11;
    return at[0] < 0xf8 && valid ? bytes : 0;
}

/* Characters that move the cursor, end a line, or reorder or hide others. */
static bool is_hidden(uint32_t code)
{
    static const struct range {
        uint32_t first, last;
    } hidden[] = {
        {0, 0x1f},        {0x7f, 0x9f},     {0xad, 0xad},     {0x61c, 0x61c},
        {0x180e, 0x180e}, {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f},
        {0xfe00, 0xfe0f}, {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe0fff},
    };
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
        if (code >= hidden[i].first && code <= hidden[i].last) {
            return true;
        }
    }
    return false;
}

void ls_plain_copy(char *out, size_t bytes, const char *text)
{
    static const char cut[] = "...";
    const unsigned char *at = (const unsigned char *)text;
    size_t used = 0, fits = 0; /* fits: what stays if the text must be cut */
    while (*at != '\0') {
        uint32_t code;
        char shown[5] = "";
        int length = decode(at, &code);
        if (length == 0 || is_hidden(code)) {
            length = 1; /* the rest of a hidden character is not UTF-8 by itself */
            snprintf(shown, sizeof shown, "\\x%02x", *at);
        } else {
            memcpy(shown, at, (size_t)length);
        }
        size_t more = strlen(shown);
        if (used + more + 1 > bytes) {
            snprintf(out + fits, bytes - fits, "%s", cut);
            return;
        }
        memcpy(out + used, shown, more);
        used += more;
        fits = used + sizeof cut <= bytes ? used : fits;
        at += length;
    }
    out[used] = '\0';
}

void ls_plain_replace(char *text, size_t bytes)
{
    char *copy = strdup(text);
    LS_MEMORY(copy != NULL);
    ls_plain_copy(text, bytes, copy);
    free(copy);
}
