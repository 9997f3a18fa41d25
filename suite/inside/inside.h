/* Tools of the cases that call our own parts: a device, tensors in its memory, and what a part says
 * on stderr while it is made to fail. */
#ifndef LS_INSIDE_H
#define LS_INSIDE_H

#include "reference/options/options.h"
#include "reference/state/device.h"
#include "suite/suite.h"

/* The CPU's backend, one thread. False, with the verdict set to INFRA, where it cannot be had. */
bool ls_inside_open(ls_device *out, ls_verdict *verdict);
/* Backend memory, zeroed; freed with ls_inside_free. `count` 0 is allowed. */
ls_tensor ls_inside_tensor(const ls_device *device, ls_dtype dtype, int64_t count);
void ls_inside_free(const ls_device *device, ls_tensor *tensor);
void ls_inside_write(const ls_device *device, const ls_tensor *tensor, const float *value);
void ls_inside_read(const ls_device *device, const ls_tensor *tensor, float *value);

/* Between the two calls stderr goes to a file; the second one returns its text, cut to
 * bytes, and the number of its lines. */
typedef struct ls_inside_capture {
    int kept, file;
} ls_inside_capture;
ls_inside_capture ls_inside_capture_begin(void);
int ls_inside_capture_end(ls_inside_capture *capture, char *text, int bytes);

/* The trainer's options from a line of words separated by spaces, and from one more word, which may
 * hold spaces or be NULL. */
ls_status ls_inside_options(const char *line, const char *last, ls_options *out);
/* What `lockstep explain` prints for `world` ranks and these options (printf style, separated by
 * spaces); *text is the caller's to free. */
ls_status ls_inside_explain(int world, char **text, const char *options, ...)
    __attribute__((format(printf, 3, 4)));

#endif
