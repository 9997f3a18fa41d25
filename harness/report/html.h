/* A page as one self-contained HTML file (style and plots inline, nothing fetched), and escaping
 * for HTML and XML: everything that comes from files goes through ls_html_escape. */
#ifndef LS_HTML_H
#define LS_HTML_H

#include "page.h"

const ls_report_page_form *ls_html_form(void);

/* Writes text so that no markup, quote or character forbidden in XML 1.0 is left; bytes that are
 * not UTF-8 become U+FFFD. Good inside elements and quoted attributes. */
void ls_html_escape(FILE *to, const char *text);

#endif
