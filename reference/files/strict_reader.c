#include "strict_reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "pth_state.h"

/* How a file's tensor differs from the run's requirement, or NULL. any_float: the type may be any
 * of f32, f16, bf16. */
static const char *mismatch(const ls_safetensors_entry *entry, ls_dtype dtype, bool any_float,
                            const ls_shape *shape, char *text, size_t text_bytes)
{
    if (entry == NULL) {
        return "is missing";
    }
    if (!ls_safetensors_same_shape(&entry->shape, shape)) {
        char has[96], wants[96];
        ls_safetensors_shape_text(&entry->shape, has, sizeof has);
        ls_safetensors_shape_text(shape, wants, sizeof wants);
        snprintf(text, text_bytes, "has shape %s, this run needs %s", has, wants);
        return text;
    }
    bool is_float = entry->dtype == LS_F32 || entry->dtype == LS_F16 || entry->dtype == LS_BF16;
    if (any_float ? !is_float : entry->dtype != dtype) {
        snprintf(text, text_bytes, "has type %s, this run needs %s", ls_dtype_name(entry->dtype),
                 any_float ? "F32, F16 or BF16" : ls_dtype_name(dtype));
        return text;
    }
    return NULL;
}

static int index_of(const ls_strict_reader *reader, const ls_safetensors_entry *entry)
{
    int count = ls_safetensors_count(reader->file);
    for (int i = 0; i < count; i++) {
        if (ls_safetensors_at(reader->file, i) == entry) {
            return i;
        }
    }
    LS_ASSERT(false);
    return 0;
}

ls_status ls_strict_reader_open(const char *path, ls_strict_reader *out)
{
    ls_strict_reader reader = {.path = path};
    LS_TRY(ls_pth_state_open(path, &reader.file));
    reader.seen = calloc((size_t)ls_safetensors_count(reader.file) + 1, sizeof *reader.seen);
    if (reader.seen == NULL) {
        ls_log_error("cannot allocate the list of tensors in %s", path);
        ls_safetensors_close(reader.file);
        return LS_ERR_INFRA;
    }
    *out = reader;
    return LS_OK;
}

void ls_strict_reader_close(ls_strict_reader *reader)
{
    ls_safetensors_close(reader->file);
    free(reader->seen);
}

bool ls_strict_reader_has_seen(const ls_strict_reader *reader, const ls_safetensors_entry *entry)
{
    return reader->seen[index_of(reader, entry)];
}

static void group_of(const char *name, char group[32])
{
    int rank = 0, used = 0;
    if (sscanf(name, "rank%d/%n", &rank, &used) == 1 && used > 0) {
        ls_text_put(group, 32, "rank<k>");
    } else {
        ls_text_put(group, 32, "%.*s", (int)strcspn(name, "/"), name);
    }
}

void ls_strict_reader_unused(const ls_strict_reader *reader, char *text, size_t bytes)
{
    int count = ls_safetensors_count(reader->file);
    char own[32], other[32];
    text[0] = '\0';
    for (int i = 0; i < count; i++) {
        int members = 0, before = 0;
        group_of(ls_safetensors_at(reader->file, i)->name, own);
        for (int k = 0; k < count; k++) {
            group_of(ls_safetensors_at(reader->file, k)->name, other);
            bool member = !reader->seen[k] && strcmp(own, other) == 0;
            members += member;
            before += member && k < i;
        }
        if (!reader->seen[i] && before == 0) {
            ls_text_add(text, bytes, "%s%s %d", text[0] == '\0' ? "" : ", ", own, members);
        }
    }
}

ls_status ls_strict_reader_tensor(ls_strict_reader *reader, const char *name, ls_dtype dtype,
                                  bool any_float, const ls_shape *shape,
                                  const ls_safetensors_entry **out)
{
    char text[256];
    const ls_safetensors_entry *entry = ls_safetensors_find(reader->file, name);
    const char *why = mismatch(entry, dtype, any_float, shape, text, sizeof text);
    if (why != NULL) {
        return ls_log_fail(LS_ERR_USAGE, "%s: %s %s", reader->path, name, why);
    }
    reader->seen[index_of(reader, entry)] = true;
    if (out != NULL) {
        *out = entry;
    }
    return LS_OK;
}

ls_status ls_strict_reader_finite(const ls_strict_reader *reader, const ls_safetensors_entry *entry)
{
    int64_t found = ls_dtype_non_finite(entry->dtype, entry->data, ls_shape_count(&entry->shape));
    return found < 0 ? LS_OK
                     : ls_log_fail(LS_ERR_USAGE, "%s: %s is not finite at element %lld",
                                   reader->path, entry->name, (long long)found);
}

void ls_strict_reader_warn_unverified(const ls_strict_reader *reader)
{
    if (!ls_safetensors_has_digests(reader->file)) {
        ls_log_warn("%s: it has no digests (an older version saved it): damage would go unnoticed",
                    reader->path);
    }
}

ls_status ls_strict_reader_metadata(const ls_strict_reader *reader, const char *name,
                                    const char *format, ...)
{
    char wanted[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(wanted, sizeof wanted, format, arguments);
    va_end(arguments);
    const char *has = ls_safetensors_metadata_of(reader->file, name, "");
    if (strcmp(has, wanted) != 0) {
        return ls_log_fail(LS_ERR_USAGE, "%s: %s is '%s' there and '%s' here", reader->path, name,
                           has, wanted);
    }
    return LS_OK;
}
