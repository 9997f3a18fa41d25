/* The one filter of foreign words. What a subject, a peer or a file says may end up in a line of a
 * terminal, a table, a page or a log, where a newline or an escape sequence would forge a line of
 * ours. Control characters, marks that reorder or hide letters (bidi, zero width) and bytes that
 * are not UTF-8 are written as \xNN; a longer text is cut between characters and ends with "...".
 *
 * Foreign words pass it where they enter a line or the memory: every line of a log (ls_log_...),
 * every string of JSON that the harness and the suite read (ls_json_parse), a verdict's evidence
 * and cause (ls_verdict_...), names of folders that are printed. So no writer of a page or a table
 * can forget it: these only escape what their format reads as markup. */
#ifndef LS_PLAIN_H
#define LS_PLAIN_H

#include <stddef.h>

void ls_plain_copy(char *out, size_t bytes, const char *text);
/* The same in place, in text[bytes]. */
void ls_plain_replace(char *text, size_t bytes);

#endif
