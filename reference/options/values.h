/* What a single value on the command line may be. Each function reads `text`, the value of
 * --`option`, into *out; it returns 0, or EINVAL (argp's way) after one line that names option,
 * value and what is allowed. */
#ifndef LS_VALUES_H
#define LS_VALUES_H

#include <stddef.h>

#include "options.h"

typedef enum ls_values_range {
    LS_VALUES_POSITIVE,
    LS_VALUES_NOT_NEGATIVE,
    LS_VALUES_BELOW_ONE, /* from 0 */
} ls_values_range;

int ls_values_integer(const char *option, const char *text, int64_t least, int64_t most,
                      int64_t *out);
int ls_values_int(const char *option, const char *text, int least, int most, int *out);
/* Finite as f32, too. */
int ls_values_number(const char *option, const char *text, ls_values_range allowed, double *out);
int ls_values_float(const char *option, const char *text, ls_values_range allowed, float *out);
/* `names`: the allowed words, separated by '|'; *index is the place of the one given. */
int ls_values_word(const char *option, const char *text, const char *names, int *index);
int ls_values_truth(const char *option, const char *text, ls_tristate *out);
/* Not empty, fits out[bytes]. */
int ls_values_text(const char *option, const char *text, char *out, size_t bytes);
/* Values with a form of their own, into their fields of `options`. */
int ls_values_level(const char *option, const char *text, ls_options *options);
int ls_values_half(const char *option, const char *text, ls_options *options);
int ls_values_compress(const char *option, const char *text, ls_options *options);
int ls_values_average(const char *option, const char *text, ls_options *options);
int ls_values_data(const char *option, const char *text, ls_options *options);
int ls_values_seed(const char *option, const char *text, ls_options *options);
int ls_values_loss_scale(const char *option, const char *text, ls_options *options);
int ls_values_betas(const char *option, const char *text, ls_options *options);
int ls_values_dump_steps(const char *option, const char *text, ls_options *options);
int ls_values_batch_sizes(const char *option, const char *text, ls_options *options);
int ls_values_fault_at(const char *option, const char *text, ls_options *options);
int ls_values_aux_head(const char *option, const char *text, ls_options *options);
int ls_values_overflow_as(const char *option, const char *text, ls_options *options);
int ls_values_audit(const char *option, const char *text, ls_options *options);
int ls_values_overflow_at(const char *option, const char *text, ls_options *options);

#endif
