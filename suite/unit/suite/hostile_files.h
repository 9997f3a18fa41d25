/* Ways to spoil what a trainer has written: one thing in a job's dumps, events or job.json, drawn
 * by a seed. Part of test_hostile.c. */
#ifndef LS_HOSTILE_FILES_H
#define LS_HOSTILE_FILES_H

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "harness/run/record.h"
#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/rng.h"
#include "kernels/core/text.h"

enum { PATH_BYTES = 512, LENGTH_BYTES = 8, WORLD = 2 };

typedef struct hostile {
    uint64_t seed, drawn;
    char folder[PATH_BYTES]; /* of the job */
    char what[200];          /* was spoiled */
} hostile;
static inline uint64_t below(hostile *h, uint64_t limit)
{
    return limit == 0 ? 0 : ls_rng_below(h->seed, 17, h->drawn++, (uint32_t)limit);
}

static const char *one_of(hostile *h, const char *const *words)
{
    int count = 0;
    while (words[count] != NULL) {
        count++;
    }
    return words[below(h, (uint64_t)count)];
}

typedef struct pair {
    char name[40], value[40];
} pair;

/* One of the pairs "name=value", which blanks divide. */
static inline pair pair_of(hostile *h, const char *pairs)
{
    pair one = {"", ""};
    ls_words words = {0};
    ls_words_split(&words, pairs);
    (void)sscanf(words.word[below(h, (uint64_t)words.count)], "%39[^=]=%39s", one.name, one.value);
    ls_words_free(&words);
    return one;
}

/* ---- files ---------------------------------------------------------------------------------- */

static const char *file_of(const hostile *h, const char *name, char path[PATH_BYTES])
{
    ls_text_put(path, PATH_BYTES, "%s/%s", h->folder, name);
    return path;
}

static const char *dump_of(const hostile *h, int rank, char path[PATH_BYTES])
{
    ls_text_put(path, PATH_BYTES, "%s/dump/step000002.rank%d.safetensors", h->folder, rank);
    return path;
}

static const char *events_of(const hostile *h, int rank, char path[PATH_BYTES])
{
    ls_text_put(path, PATH_BYTES, "%s/rank%d.jsonl", h->folder, rank);
    return path;
}

static inline char *get(const char *path, size_t *bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat about;
    LS_ASSERT(fd >= 0 && fstat(fd, &about) == 0);
    char *data = ls_list_make((size_t)about.st_size + 1, 1);
    LS_ASSERT(read(fd, data, (size_t)about.st_size) == about.st_size);
    data[about.st_size] = '\0';
    close(fd);
    *bytes = (size_t)about.st_size;
    return data;
}

static inline void put(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    LS_ASSERT(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    close(fd);
}

/* Something else stands at the path. */
static inline void replace(hostile *h, const char *path)
{
    ls_text_put(h->what, sizeof h->what, "%s", strrchr(path, '/') + 1);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    (void)unlink(path);
    switch (below(h, 9)) {
    case 0:
        return;
    case 1:
        put(path, "", 0);
        return;
    case 2:
        LS_ASSERT(mkfifo(path, 0600) == 0);
        return;
    case 3:
        LS_ASSERT(mkdir(path, 0700) == 0);
        return;
    case 4:
        LS_ASSERT(symlink(path, path) == 0);
        return;
    case 5:
        LS_ASSERT(symlink(one_of(h, (const char *const[]){"/dev/zero", "/dev/random", "/dev/tty",
                                                          "/proc/self/mem", NULL}),
                          path) == 0);
        return;
    case 6: { /* a socket, at a path that is short enough */
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ls_text_put(name.sun_path, sizeof name.sun_path, "%s", path);
        (void)bind(fd, (struct sockaddr *)&name, sizeof name);
        close(fd);
        return;
    }
    case 7: /* holes only */
        put(path, "{", 1);
        LS_ASSERT(truncate(path, INT64_C(3) << 30) == 0);
        return;
    default:
        put(path, "\xff\xff\xff\xff\xff\xff\xff\x7f{\"", 10);
    }
}

/* ---- dumps ---------------------------------------------------------------------------------- */

typedef struct tensors {
    char *data; /* the file */
    size_t bytes, start;
    cJSON *header;
} tensors;

static inline tensors open_dump(hostile *h, int rank)
{
    char path[PATH_BYTES];
    tensors t = {0};
    uint64_t length;
    t.data = get(dump_of(h, rank, path), &t.bytes);
    memcpy(&length, t.data, LENGTH_BYTES);
    t.start = LENGTH_BYTES + (size_t)length;
    t.header = cJSON_ParseWithLength(t.data + LENGTH_BYTES, (size_t)length);
    LS_ASSERT(t.header != NULL);
    return t;
}

/* Writes `text`, or the header, padded with blanks to whole elements, and the data. */
static inline void close_dump(hostile *h, int rank, tensors *t, const char *text)
{
    char path[PATH_BYTES], *printed = cJSON_PrintUnformatted(t->header);
    text = text != NULL ? text : printed;
    uint64_t used = strlen(text), length = used + (LENGTH_BYTES - used % LENGTH_BYTES);
    size_t data = t->bytes - t->start;
    char *file = ls_list_make(LENGTH_BYTES + (size_t)length + data, 1);
    memcpy(file, &length, LENGTH_BYTES);
    memset(file + LENGTH_BYTES, ' ', (size_t)length);
    memcpy(file + LENGTH_BYTES, text, (size_t)used);
    memcpy(file + LENGTH_BYTES + length, t->data + t->start, data);
    put(dump_of(h, rank, path), file, LENGTH_BYTES + (size_t)length + data);
    free(file);
    free(printed);
    free(t->data);
    cJSON_Delete(t->header);
}

/* Any tensor but the branches' bits, of which a few may be near-ties. */
static inline cJSON *any_tensor(hostile *h, const tensors *t)
{
    for (;;) {
        int count = cJSON_GetArraySize(t->header);
        cJSON *item = cJSON_GetArrayItem(t->header, (int)below(h, (uint64_t)count));
        if (strcmp(item->string, "__metadata__") != 0 &&
            strcmp(ls_json_string(item, "dtype", ""), "U8") != 0) {
            return item;
        }
    }
}

static inline cJSON *number_in(hostile *h, cJSON *item, const char *name)
{
    cJSON *list = cJSON_GetObjectItemCaseSensitive(item, name);
    int count = cJSON_GetArraySize(list);
    if (count == 0) {
        cJSON_AddItemToArray(list, cJSON_CreateNumber(1));
        count = 1;
    }
    return cJSON_GetArrayItem(list, (int)below(h, (uint64_t)count));
}

static inline void cut_dump(hostile *h)
{
    char path[PATH_BYTES];
    struct stat about;
    LS_ASSERT(stat(dump_of(h, (int)below(h, WORLD), path), &about) == 0);
    LS_ASSERT(truncate(path, (off_t)below(h, (uint64_t)about.st_size)) == 0);
}

static inline void replace_dump(hostile *h)
{
    char path[PATH_BYTES];
    replace(h, dump_of(h, (int)below(h, WORLD), path));
}

static inline void spoil_element(hostile *h)
{
    static const float floats[] = {NAN, INFINITY, -INFINITY};
    static const uint16_t halves[] = {0x7e00, 0x7f81, 0xffff}; /* NaN as fp16 and as bf16 */
    static const int64_t wholes[] = {-1, 1 << 20, INT64_MAX, INT64_MIN};
    int rank = (int)below(h, WORLD);
    tensors t = open_dump(h, rank);
    const cJSON *item = any_tensor(h, &t);
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    size_t from = (size_t)cJSON_GetArrayItem(offsets, 0)->valuedouble;
    size_t to = (size_t)cJSON_GetArrayItem(offsets, 1)->valuedouble;
    const char *type = ls_json_string(item, "dtype", "");
    uint64_t which = below(h, 3);
    size_t size = type[0] == 'I' ? 8 : strcmp(type, "F32") == 0 ? 4 : 2;
    const void *value = size == 8   ? (const void *)&wholes[which]
                        : size == 4 ? (const void *)&floats[which]
                                    : (const void *)&halves[which];
    char *at = t.data + t.start + from + size * below(h, (to - from) / size);
    memcpy(at, value, size);
    ls_text_put(h->what, sizeof h->what, "%s of rank %d", item->string, rank);
    close_dump(h, rank, &t, NULL);
}

static inline void spoil_type(hostile *h)
{
    int rank = (int)below(h, WORLD);
    tensors t = open_dump(h, rank);
    cJSON *item = any_tensor(h, &t);
    const char *type = ls_json_string(item, "dtype", "");
    const char *other = strcmp(type, "F32") == 0   ? "I32"
                        : strcmp(type, "I64") == 0 ? "F64"
                        : strcmp(type, "F16") == 0 ? "BF16"
                                                   : "F8_E4M3";
    ls_text_put(h->what, sizeof h->what, "%s of rank %d as %s", item->string, rank, other);
    cJSON_ReplaceItemInObjectCaseSensitive(item, "dtype", cJSON_CreateString(other));
    close_dump(h, rank, &t, NULL);
}

static inline void spoil_numbers(hostile *h)
{
    static const double numbers[] = {0.5, -1, 1e300, -1e300, 0x1p63, 0x1p32, 0x1p31, 4e9};
    int rank = (int)below(h, WORLD);
    tensors t = open_dump(h, rank);
    cJSON *item = any_tensor(h, &t);
    cJSON *number = number_in(h, item, below(h, 2) == 0 ? "shape" : "data_offsets");
    bool by_one = below(h, 3) == 0;
    cJSON_SetNumberValue(number, by_one ? number->valuedouble + 1
                                        : numbers[below(h, sizeof numbers / sizeof *numbers)]);
    ls_text_put(h->what, sizeof h->what, "%s of rank %d", item->string, rank);
    close_dump(h, rank, &t, NULL);
}

static inline void spoil_names(hostile *h)
{
    int rank = (int)below(h, WORLD);
    tensors t = open_dump(h, rank);
    cJSON *item = any_tensor(h, &t), *more = NULL;
    static const char *const added[] = {"next/zzz", "grad/zzz", "param/zzz", "branch/999", NULL};
    const char *name = item->string;
    switch (below(h, 3)) {
    case 0: /* twice */
        more = cJSON_Duplicate(item, true);
        cJSON_AddItemToObject(t.header, name, more);
        break;
    case 1:
        name = one_of(h, added);
        more = cJSON_Duplicate(item, true);
        cJSON_AddItemToObject(t.header, name, more);
        break;
    default: /* what a subject must write */
        name = one_of(h, (const char *const[]){"input", "target", "logits", "loss", "param/fc.bias",
                                               "grad/fc.bias", "next/fc.bias", "param/conv1.weight",
                                               "grad/conv1.weight", "next/conv1.weight",
                                               "branch/003", NULL});
        rank = name[0] == 'n' || name[0] == 'g' || name[0] == 'p' ? 0 : rank;
        cJSON_DeleteItemFromObjectCaseSensitive(t.header, name);
    }
    ls_text_put(h->what, sizeof h->what, "%s of rank %d", name, rank);
    close_dump(h, rank, &t, NULL);
}

static inline void spoil_metadata(hostile *h)
{
    static const char wrong[] =
        "world_size=0 world_size=3 world_size=2000000000 world_size=1e300 rank=5 rank=-1 "
        "rank=1e300 opt_level=O9 opt_level= lr=nan lr=1e300 lr=7 optimizer=none optimizer=adam "
        "momentum=0.5 momentum=nan loss_scale=0 loss_scale=-1 loss_scale=nan loss_scale=inf "
        "skipped=true predivide=nan predivide=0 weight_decay=nan weight_decay=3 sync_bn=2 "
        "step=1e300 half=fp8 reduced_type=int4 arch=resnet9999999999 step=77 dialect=neither "
        "accumulate=1e300 skipped=maybe";
    int rank = 0;
    tensors t = open_dump(h, rank);
    cJSON *metadata = cJSON_GetObjectItemCaseSensitive(t.header, "__metadata__");
    pair other = pair_of(h, wrong);
    cJSON_DeleteItemFromObjectCaseSensitive(metadata, other.name);
    cJSON_AddStringToObject(metadata, other.name, other.value);
    ls_text_put(h->what, sizeof h->what, "%s=%s", other.name, other.value);
    close_dump(h, rank, &t, NULL);
}

static inline void spoil_header(hostile *h)
{
    enum { DEPTH = 5000 };
    static char deep[2 * DEPTH + 16];
    int rank = (int)below(h, WORLD);
    tensors t = open_dump(h, rank);
    memset(deep, '[', DEPTH);
    memset(deep + DEPTH, ']', DEPTH);
    close_dump(h, rank, &t,
               one_of(h, (const char *const[]){deep, "[]", "{", "null", "{\"input\":{}}", "\"\"",
                                               "{\"__metadata__\":[]}", NULL}));
}

/* ---- events --------------------------------------------------------------------------------- */

/* A line's place in a file of events. */
static inline char *line_with(char *text, const char *word, size_t *bytes)
{
    char *at = strstr(text, word);
    LS_ASSERT(at != NULL);
    while (at > text && at[-1] != '\n') {
        at--;
    }
    *bytes = strcspn(at, "\n") + 1;
    return at;
}

/* Writes the text with `taken` bytes at `at` replaced. */
static inline void exchange(const char *path, const char *text, size_t bytes, const char *at,
                            size_t taken, const char *more, size_t more_bytes)
{
    char *all = ls_list_make(bytes + more_bytes + 1, 1);
    size_t before = (size_t)(at - text), after = bytes - before - taken;
    memcpy(all, text, before);
    memcpy(all + before, more, more_bytes);
    memcpy(all + before + more_bytes, at + taken, after);
    put(path, all, bytes - taken + more_bytes);
    free(all);
}

/* Gives a member of the JSON object at `in` the text of another value. */
static inline void exchange_value(hostile *h, const char *path, const char *text, size_t bytes,
                                  const char *in, const pair *wrong)
{
    char member[64];
    ls_text_put(member, sizeof member, "\"%s\":", wrong->name);
    const char *value = strstr(in, member), *end;
    LS_ASSERT(value != NULL);
    value += strlen(member);
    end = value;
    cJSON_Delete(cJSON_ParseWithOpts(value, &end, false));
    ls_text_put(h->what, sizeof h->what, "%s %s", wrong->name, wrong->value);
    exchange(path, text, bytes, value, (size_t)(end - value), wrong->value, strlen(wrong->value));
}

static inline void spoil_lines(hostile *h)
{
    char path[PATH_BYTES];
    size_t bytes, length;
    char *text = get(events_of(h, (int)below(h, WORLD), path), &bytes);
    char *step = line_with(text, "\"event\":\"step\"", &length);
    switch (below(h, 7)) {
    case 0: /* twice */
        exchange(path, text, bytes, step, 0, step, length);
        break;
    case 1: /* never */
        exchange(path, text, bytes, step, length, "", 0);
        break;
    case 2: /* cut */
        put(path, text, (size_t)(step - text) + 1 + below(h, length - 2));
        break;
    case 3: /* no start */
        put(path, step, bytes - (size_t)(step - text));
        break;
    case 4: /* two starts */
        exchange(path, text, bytes, step, 0, text, strcspn(text, "\n") + 1);
        break;
    case 5:
        exchange(path, text, bytes, step + below(h, length - 1), 1, "", 1); /* a zero byte */
        break;
    default: { /* the end, then more */
        char *end = line_with(text, "\"event\":\"end\"", &length);
        exchange(path, text, bytes, step, 0, end, length);
    }
    }
    free(text);
}

/* A member of the first step gets another value. */
static inline void spoil_member(hostile *h)
{
    static const char wrong[] =
        "step=1e300 step=0 step=-1 step=0.5 step=\"1\" step=7 step=NaN loss=\"low\" loss=NaN "
        "loss_scale=\"\" loss_scale=[1] loss_scale_next=1e300 skipped=true skipped=0 digest=[] "
        "loss_scale=12345 digest={\"param\":\"0000000000000000\"}";
    char path[PATH_BYTES];
    size_t bytes, length;
    pair other = pair_of(h, wrong);
    char *text = get(events_of(h, (int)below(h, WORLD), path), &bytes);
    char *step = line_with(text, "\"event\":\"step\"", &length);
    exchange_value(h, path, text, bytes, step, &other);
    free(text);
}

static inline void nest_events(hostile *h)
{
    enum { DEPTH = 100000 };
    char path[PATH_BYTES];
    size_t bytes, length;
    char *text = get(events_of(h, (int)below(h, WORLD), path), &bytes);
    char *step = line_with(text, "\"event\":\"step\"", &length);
    char *deep = ls_list_make(DEPTH + 2, 1);
    memset(deep, below(h, 2) == 0 ? '[' : '{', DEPTH);
    deep[DEPTH] = '\n';
    exchange(path, text, bytes, step, 0, deep, DEPTH + 1);
    free(deep);
    free(text);
}

static inline void replace_events(hostile *h)
{
    char path[PATH_BYTES];
    replace(h, events_of(h, (int)below(h, WORLD), path));
}

static inline void spoil_start(hostile *h)
{
    LS_TEXT(wrong, 200,
            "schema=%d schema=0 schema=1e300 options=[] options=7 arch=\"resnet9999999999\" "
            "arch=\"../../../../etc/passwd\" arch=\"\"",
            LS_RECORD_SCHEMA + 1);
    char path[PATH_BYTES];
    size_t bytes;
    pair other = pair_of(h, wrong);
    char *text = get(events_of(h, 0, path), &bytes);
    exchange_value(h, path, text, bytes, text, &other);
    free(text);
}

static inline void spoil_job(hostile *h)
{
    static const char *const wrong[] = {
        "",
        "{",
        "null",
        "[]",
        "{\"facts\":{\"world\":2000000000,\"role\":\"evidence\"}}",
        "{\"facts\":{\"world\":1e300}}",
        "{\"facts\":{\"world\":-1}}",
        "{\"facts\":{\"world\":3}}",
        "{\"facts\":{\"world\":2},\"outcome\":{\"state\":\"failed\",\"code\":3}}",
        "{\"facts\":{\"world\":2},\"outcome\":{\"state\":\"killed\",\"signal\":1e300}}",
        "{\"facts\":{\"world\":2},\"outcome\":{\"state\":\"timed out\"}}",
        "{\"label\":\"\\u001b[2J\\nok 1 - x # PASS\",\"outcome\":{\"state\":\"not started\","
        "\"why\":\"\\n3 passed, 0 failed\\u001b[8m\"}}",
        NULL};
    char path[PATH_BYTES];
    file_of(h, "job.json", path);
    if (below(h, 4) == 0) {
        put(path, "{", 1);
        uint64_t before = h->drawn;
        replace(h, path);
        if (access(path, F_OK) == 0 || before == 0) {
            return; /* a folder without job.json is judged as it is */
        }
    }
    const char *text = one_of(h, wrong);
    ls_text_put(h->what, sizeof h->what, "%s", text);
    put(path, text, strlen(text));
}

#endif
