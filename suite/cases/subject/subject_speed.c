/* What a trainer says of its speed: that judging costs no step its time, and that the training
 * curves show what the events report. */
#include "subject.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/core/path.h"
#include "kernels/core/file.h"

/* ---- what judging costs ---------------------------------------------------------------------- */

static const ls_tol clocks =
    LS_TOL(1e-3, "ms: both are differences of readings of one clock in nanoseconds, printed with "
                 "15 digits");

void ls_subject_instrument(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int compared = 0;
    double instrument_ms = 0; /* of all that were compared */
    for (int k = 0; k < job->world; k++) {
        for (int i = 1; i < job->rank[k].step_count; i++) {
            const ls_record_step *step = &job->rank[k].step[i];
            double between = (step->at_ns - step[-1].at_ns) * 1e-6;
            if (isnan(between) || isnan(step->total_ms) || isnan(step->instrument_ms)) {
                continue;
            }
            compared++;
            instrument_ms += step->instrument_ms;
            if (fabs(step->total_ms + step->instrument_ms - between) <= clocks.value) {
                continue;
            }
            ls_verdict_fail(out,
                            "rank=%d step %d: %.3f ms and %.3f of judging, but its end is %.3f "
                            "after the one before",
                            k, (int)step->step, step->total_ms, step->instrument_ms, between);
            if (fabs(step->total_ms - between) <= clocks.value) {
                ls_verdict_cause(out, "dumps and digests count as training time");
            }
        }
    }
    if (compared == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED,
                       "no two steps report their ends, times and the time of judging");
    } else if (!(instrument_ms > compared * clocks.value)) {
        ls_verdict_set(out, LS_WEAK, "judging took no time: it could be in the steps' or not");
    }
    ls_verdict_pass(out, compared, "%.1f ms of judging are outside the times of %d steps",
                    instrument_ms, compared);
}

/* ---- training curves ------------------------------------------------------------------------- */

enum { CURVES = 4, FIELD_STEP = 2, FIELD_SUMMARY = 5, FIELD_VALUE = 1, FIELD_SCALAR = 2 };
static const char *const curve[CURVES] = {"loss", "lr", "loss_scale", "images_per_s"};

/* One field of a protobuf message: its bytes where it has a length, else its number. */
typedef struct field {
    int number;
    uint64_t value;
    const unsigned char *data;
    size_t bytes;
} field;

static bool read_varint(const unsigned char **at, const unsigned char *end, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; *at < end && shift < 64; shift += 7) {
        unsigned char byte = *(*at)++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            return true;
        }
    }
    return false;
}

static bool read_field(const unsigned char **at, const unsigned char *end, field *out)
{
    uint64_t key = 0, length;
    *out = (field){0};
    if (!read_varint(at, end, &key)) {
        return false;
    }
    out->number = (int)(key >> 3);
    if ((key & 7) == 0) {
        return read_varint(at, end, &out->value);
    }
    length = (key & 7) == 1 ? 8 : 4;
    if ((key & 7) == 2 && !read_varint(at, end, &length)) {
        return false;
    }
    if (((key & 7) != 1 && (key & 7) != 2 && (key & 7) != 5) || length > (size_t)(end - *at)) {
        return false;
    }
    out->data = *at;
    out->bytes = (size_t)length;
    *at += length;
    return true;
}

/* Summary.Value: 1 tag, 2 simple_value. */
static void read_scalar(const field *from, float value[CURVES])
{
    const unsigned char *at = from->data, *end = at + from->bytes;
    field one, tag = {0};
    while (read_field(&at, end, &one)) {
        tag = one.number == 1 ? one : tag;
        for (int c = 0; c < CURVES && one.number == FIELD_SCALAR && one.bytes == 4; c++) {
            if (tag.bytes == strlen(curve[c]) && memcmp(tag.data, curve[c], tag.bytes) == 0) {
                memcpy(&value[c], one.data, sizeof value[c]); /* little-endian, as we are */
            }
        }
    }
}

/* Event: 2 step, 5 summary; Summary: 1 values. False for an event without a summary. */
static bool read_point(const unsigned char *at, size_t bytes, int64_t *step, float value[CURVES])
{
    const unsigned char *end = at + bytes;
    bool found = false;
    field one, scalar;
    for (int c = 0; c < CURVES; c++) {
        value[c] = NAN;
    }
    while (read_field(&at, end, &one)) {
        *step = one.number == FIELD_STEP ? (int64_t)one.value : *step;
        const unsigned char *inner = one.data;
        found = found || one.number == FIELD_SUMMARY;
        while (one.number == FIELD_SUMMARY && read_field(&inner, one.data + one.bytes, &scalar)) {
            if (scalar.number == FIELD_VALUE) {
                read_scalar(&scalar, value);
            }
        }
    }
    return found;
}

/* The whole of the one event file; malloc'ed, NULL where there is none. */
static unsigned char *read_curves(const ls_record *job, size_t *bytes, double *changed_s)
{
    char folder[600], path[900] = "";
    ls_text_put(folder, sizeof folder, "%s/tensorboard", job->directory);
    DIR *entries = ls_path_open_folder(folder);
    for (const char *e; (e = ls_path_next(&entries)) != NULL;) {
        if (strstr(e, "tfevents") != NULL) {
            ls_text_put(path, sizeof path, "%s/%s", folder, e);
        }
    }
    struct stat status;
    *changed_s = path[0] != '\0' && stat(path, &status) == 0 ? (double)status.st_mtime : NAN;
    char *data = NULL;
    if (path[0] != '\0') {
        (void)ls_file_read(path, LS_FILE_TEXT_BYTES, &data, bytes);
    }
    return (unsigned char *)data;
}

/* TFRecord's masked CRC-32C (Castagnoli), a bit at a time from its definition. */
static uint32_t checksum(const unsigned char *data, size_t bytes)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes * 8; i++) {
        uint32_t bit = (crc ^ (uint32_t)data[i / 8] >> i % 8) & 1u;
        crc = crc >> 1 ^ (bit != 0 ? 0x82f63b78u : 0u);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static uint64_t little_endian(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) {
        value = value << 8 | at[i];
    }
    return value;
}

static const ls_tol same_run =
    LS_TOL(3600, "s: of the file's last change and of an event's time, both in seconds since 1970, "
                 "in one short run");

/* What every record must be for TensorBoard to show it: checksums that hold, a time in seconds,
 * and first of all the file's version. */
static void check_record(const unsigned char *record, size_t length, bool first, double changed_s,
                         ls_verdict *out)
{
    enum { HEAD = 12 };
    const unsigned char *at = record + HEAD, *end = at + length;
    field one;
    double wall_s = NAN;
    bool version = false;
    if (little_endian(record + 8, 4) != checksum(record, 8) ||
        little_endian(end, 4) != checksum(at, length)) {
        ls_verdict_fail(out, "a record of the curves has a wrong checksum: no reader takes "
                             "it");
    }
    while (read_field(&at, end, &one)) {
        if (one.number == 1 && one.bytes == sizeof wall_s) {
            memcpy(&wall_s, one.data, sizeof wall_s);
        }
        version = version || (one.number == 3 && one.bytes == strlen("brain.Event:2") &&
                              memcmp(one.data, "brain.Event:2", one.bytes) == 0);
    }
    if (!(fabs(wall_s - changed_s) <= same_run.value)) {
        ls_verdict_fail(out, "an event of the curves is of %.0f s, the file of %.0f", wall_s,
                        changed_s);
    }
    if (first && !version) {
        ls_verdict_fail(out, "the curves' first record does not say brain.Event:2");
    }
}

static const ls_tol single =
    LS_TOL(0x1p-22, "one f32 rounding of a quotient of doubles, 2^-24, and 15 printed digits");

static void check_point(const ls_record *job, int64_t step, const float value[CURVES],
                        ls_verdict *out)
{
    const ls_record_step *event = ls_record_find_step(&job->rank[0], step);
    double images = 0;
    for (int k = 0; k < job->world; k++) {
        const ls_record_step *theirs = ls_record_find_step(&job->rank[k], step);
        images += theirs == NULL ? NAN : (double)theirs->images;
    }
    if (event == NULL) {
        ls_verdict_fail(out, "the curves have a step %d, the events have none", (int)step);
        return;
    }
    const double want[CURVES] = {event->loss, event->lr, event->loss_scale,
                                 images / event->total_ms * 1e3};
    for (int c = 0; c < CURVES; c++) {
        if (!(fabs((double)value[c] - want[c]) <= single.value * fabs(want[c]))) {
            ls_verdict_fail(out, "step %d: the curve of %s has %.7g, the events say %.7g",
                            (int)step, curve[c], (double)value[c], want[c]);
            if (c == CURVES - 1 &&
                fabs((double)value[c] * job->world - want[c]) <= single.value * fabs(want[c])) {
                ls_verdict_cause(out, "the images of one rank, not of all %d", job->world);
            }
        }
    }
}

void ls_subject_curves(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    size_t bytes = 0, at = 0;
    double changed_s = NAN;
    unsigned char *text = read_curves(job, &bytes, &changed_s);
    int points = 0;
    enum { HEAD = 12, TAIL = 4 }; /* length and its checksum; checksum of the event */
    while (text != NULL && at + HEAD + TAIL <= bytes) {
        uint64_t length = little_endian(text + at, 8);
        int64_t step = 0;
        float value[CURVES];
        if (length > bytes - at - HEAD - TAIL) {
            ls_verdict_fail(out, "the curves' file ends in the middle of an event");
            break;
        }
        check_record(text + at, (size_t)length, at == 0, changed_s, out);
        if (read_point(text + at + HEAD, (size_t)length, &step, value)) {
            check_point(job, step, value, out);
            points++;
        }
        at += HEAD + (size_t)length + TAIL;
    }
    free(text);
    if (text == NULL) {
        ls_verdict_set(out, LS_UNSUPPORTED, "there are no training curves");
    } else if (points != job->rank[0].step_count) {
        ls_verdict_fail(out, "the curves have %d points, the events %d steps", points,
                        job->rank[0].step_count);
    }
    ls_verdict_pass(out, points,
                    "%d points of loss, rate, scale and images/s as the events report them",
                    points);
}
