#include "inside.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/core/text.h"
#include "reference/explain/explain.h"

bool ls_inside_open(ls_device *out, ls_verdict *verdict)
{
    ls_backend_options options = {.threads = 1, .local_ranks = 1, .deterministic = true};
    if (ls_device_open("cpu", &options, out) != LS_OK) {
        ls_verdict_set(verdict, LS_INFRA, "the CPU's backend cannot be opened");
        return false;
    }
    return true;
}

ls_tensor ls_inside_tensor(const ls_device *device, ls_dtype dtype, int64_t count)
{
    ls_tensor tensor = {NULL, dtype, count};
    int64_t bytes = (int64_t)ls_tensor_bytes(&tensor);
    ls_status status = device->api->memory_alloc(device->backend, bytes > 0 ? bytes : 1,
                                                 "a case's tensor", &tensor.data);
    LS_ASSERT(status == LS_OK);
    return tensor;
}

void ls_inside_free(const ls_device *device, ls_tensor *tensor)
{
    device->api->memory_free(device->backend, tensor->data);
    tensor->data = NULL;
}

void ls_inside_write(const ls_device *device, const ls_tensor *tensor, const float *value)
{
    ls_status status = ls_device_write_f32(device, tensor, value);
    LS_ASSERT(status == LS_OK);
}

void ls_inside_read(const ls_device *device, const ls_tensor *tensor, float *value)
{
    ls_status status = ls_device_read_f32(device, tensor, value);
    LS_ASSERT(status == LS_OK);
}

ls_inside_capture ls_inside_capture_begin(void)
{
    fflush(stderr);
    ls_inside_capture capture = {dup(STDERR_FILENO), memfd_create("stderr", MFD_CLOEXEC)};
    LS_ASSERT(capture.kept >= 0 && capture.file >= 0);
    LS_ASSERT(dup2(capture.file, STDERR_FILENO) >= 0);
    return capture;
}

int ls_inside_capture_end(ls_inside_capture *capture, char *text, int bytes)
{
    fflush(stderr);
    LS_ASSERT(dup2(capture->kept, STDERR_FILENO) >= 0);
    ssize_t got = pread(capture->file, text, (size_t)bytes - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    int lines = 0;
    for (const char *c = text; *c != '\0'; c++) {
        lines += *c == '\n';
    }
    close(capture->kept);
    close(capture->file);
    return lines;
}

ls_status ls_inside_options(const char *line, const char *last, ls_options *out)
{
    ls_words words = {0};
    ls_words_add(&words, "lockstep-train");
    ls_words_split(&words, line);
    if (last != NULL) {
        ls_words_add(&words, "%s", last);
    }
    ls_status status = ls_options_parse(words.count, words.word, out, NULL, NULL);
    ls_words_free(&words);
    return status;
}

ls_status ls_inside_explain(int world, char **text, const char *options, ...)
{
    char line[400];
    size_t bytes = 0;
    ls_options parsed;
    va_list values;
    va_start(values, options);
    vsnprintf(line, sizeof line, options, values);
    va_end(values);
    FILE *to = open_memstream(text, &bytes);
    LS_MEMORY(to != NULL);
    ls_status status = ls_inside_options(line, NULL, &parsed);
    LS_THEN(status, ls_explain_print(&parsed, world, to));
    fclose(to);
    return status;
}
