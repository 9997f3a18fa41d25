#include "diagnose.h"

#include <stdio.h>
#include <string.h>

#include "kernels/core/text.h"

/* Parses an engine's message about a failed operation: "gloo 'gradients': all_reduce, operation 7
 * 'bucket 0' of 148756 bytes, failed after 15 s, ...". */
typedef struct operation {
    char name[64], kind[32], label[128];
    unsigned long long number;
    long long bytes;
} operation;

static bool read_operation(const ls_record *job, int rank, operation *out)
{
    char line[400];
    ls_record_last_line(job, rank, line, (int)sizeof line);
    const char *at = strstr(line, ", operation "), *from = at;
    while (from != NULL && from > line && strncmp(from, " '", 2) != 0) {
        from--;
    }
    return from != NULL &&
           sscanf(from, " '%63[^']': %31[^,], operation %llu '%127[^']' of %lld bytes", out->name,
                  out->kind, &out->number, out->label, &out->bytes) == 5;
}

static bool differ(const operation *a, const operation *b)
{
    return strcmp(a->name, b->name) == 0 && a->number == b->number &&
           (strcmp(a->kind, b->kind) != 0 || strcmp(a->label, b->label) != 0 ||
            a->bytes != b->bytes);
}

void ls_diagnose_endings_waits(const ls_record *job, char *text, int text_bytes)
{
    operation first, other;
    text[0] = '\0';
    for (int a = 0; a < job->world && text[0] == '\0'; a++) {
        for (int b = a + 1; b < job->world && read_operation(job, a, &first); b++) {
            if (read_operation(job, b, &other) && differ(&first, &other)) {
                snprintf(text, (size_t)text_bytes,
                         "operation %llu of '%s' is '%s' (%lld bytes) on rank %d, '%s' (%lld "
                         "bytes) on rank %d: ranks begin their operations in different orders, or "
                         "one of them left one out",
                         first.number, first.name, first.label, first.bytes, a, other.label,
                         other.bytes, b);
                return;
            }
        }
    }
}

void ls_diagnose_endings_codes(const ls_record *job, char *text, int text_bytes)
{
    text[0] = '\0';
    for (int k = 0; k < job->world && text[0] == '\0'; k++) {
        const ls_record_rank *rank = &job->rank[k];
        if (rank->ended && rank->signal == 0 && rank->code >= 0 && rank->end_code >= 0 &&
            rank->code != rank->end_code) {
            snprintf(text, (size_t)text_bytes,
                     "rank %d ends with code %d by its own end event, and its process leaves with "
                     "code %d",
                     k, rank->end_code, rank->code);
        }
    }
}
