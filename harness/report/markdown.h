/* A page as Markdown (the dialect with tables). */
#ifndef LS_REPORT_MARKDOWN_H
#define LS_REPORT_MARKDOWN_H

#include "page.h"

const ls_report_page_form *ls_report_markdown_form(void);

#endif
