#include "report.h"

#include <math.h>
#include <string.h>

#include "kernels/core/cores.h"
#include "kernels/core/text.h"

/* How a fact's value becomes text. */
typedef enum shape {
    TEXT,
    CORES,
    BYTES,    /* in GB, whole ones: kernels differ in what they keep for themselves */
    COUNT,    /* of a list */
    MODEL,    /* of a device: without its UUID */
    VERSIONS, /* without paths */
    NODES,    /* of each its CPU and cores */
    SETTINGS, /* variables and their values */
} shape;

/* What two runs must say for the fact to count. */
typedef enum need {
    ALWAYS, /* unknown in either is a difference */
    EITHER, /* unknown in both is none */
    BOTH,   /* unknown in one says nothing: a job of one rank loads no engine */
} need;

static const struct fact {
    const char *name, *path; /* members of run.json and summary.json, separated by blanks */
    shape shape;
    need need;
    bool decides; /* else a remark */
} facts[] = {
    {"", "machine cores", CORES, ALWAYS, true},
    {"CPU ", "machine cpu", TEXT, ALWAYS, true},
    {"device ", "options device", TEXT, ALWAYS, true},
    {"device ", "machine loaded device", MODEL, EITHER, true},
    {"GPUs: ", "machine gpus", COUNT, EITHER, true},
    {"driver ", "machine driver", TEXT, EITHER, true},
    {"nodes: ", "options nodes", NODES, EITHER, true},
    {"libraries: ", "machine loaded libraries", VERSIONS, EITHER, true},
    {"engine: ", "machine loaded engine_text", VERSIONS, BOTH, true},
    {"transport ", "machine loaded transport", TEXT, BOTH, false},
    {"kernel ", "machine kernel", TEXT, EITHER, false},
    {"governor ", "machine governor", TEXT, EITHER, false},
    {"memory ", "machine memory_bytes", BYTES, EITHER, false},
    {"variables: ", "machine environment", SETTINGS, EITHER, false},
};

enum { VALUE_BYTES = 400 };

static const cJSON *find(const cJSON *run, const char *path)
{
    char name[32];
    while (run != NULL && *path != '\0') {
        size_t length = strcspn(path, " ");
        ls_text_put(name, sizeof name, "%.*s", (int)length, path);
        run = cJSON_GetObjectItemCaseSensitive(run, name);
        path += length + strspn(path + length, " ");
    }
    return run;
}

/* "oneDNN 2.6.3 (/lib/libdnnl.so.2); OpenMP 201511" without what is in parentheses, and "Gloo
 * 0.5.0, TCP, /lib/libgloo.so.0" without the path. */
static void versions(const char *text, char *out)
{
    char *to = out;
    for (const char *at = text; *at != '\0' && to < out + VALUE_BYTES - 1;) {
        size_t skip = strncmp(at, " (/", 3) == 0   ? strcspn(at, ")") + 1
                      : strncmp(at, ", /", 3) == 0 ? 2 + strcspn(at + 2, ",;")
                                                   : 0;
        if (skip > strlen(at)) {
            break;
        }
        at += skip;
        if (skip == 0) {
            *to++ = *at++;
        }
    }
    *to = '\0';
}

static void describe_list(const cJSON *list, shape shape, char *out)
{
    const cJSON *one;
    char number[40];
    cJSON_ArrayForEach(one, list)
    {
        const char *comma = out[0] == '\0' ? "" : ", ";
        if (shape == NODES) {
            ls_text_add(out, VALUE_BYTES, "%s%s with %s", comma, ls_json_string(one, "cpu", "?"),
                        ls_cores_number(ls_json_number(one, "cores", NAN), number, sizeof number));
        } else if (cJSON_IsString(one)) {
            ls_text_add(out, VALUE_BYTES, "%s%s=%s", comma, one->string, one->valuestring);
        }
    }
}

/* "": unknown. */
static void describe(const cJSON *value, shape shape, char *out)
{
    const char *text = cJSON_IsString(value) ? value->valuestring : "";
    out[0] = '\0';
    if (shape == CORES && cJSON_IsNumber(value)) {
        ls_cores_number(value->valuedouble, out, VALUE_BYTES);
    } else if (shape == BYTES && cJSON_IsNumber(value)) {
        ls_text_put(out, VALUE_BYTES, "%.0f GB", value->valuedouble * 1e-9);
    } else if (shape == COUNT && cJSON_IsArray(value)) {
        ls_text_put(out, VALUE_BYTES, "%d", cJSON_GetArraySize(value));
    } else if (shape == MODEL) {
        const char *uuid = strstr(text, " (GPU-");
        ls_text_put(out, VALUE_BYTES, "%.*s",
                    (int)(uuid == NULL ? strlen(text) : (size_t)(uuid - text)), text);
    } else if (shape == VERSIONS) {
        versions(text, out);
    } else if (shape == NODES || shape == SETTINGS) {
        describe_list(value, shape, out);
    } else if (shape == TEXT) {
        ls_text_put(out, VALUE_BYTES, "%s", text);
    }
}

ls_comparable ls_comparable_runs(const cJSON *before, const cJSON *after)
{
    ls_comparable out = {.same = true};
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        const struct fact *f = &facts[i];
        char then[VALUE_BYTES], now[VALUE_BYTES];
        describe(find(before, f->path), f->shape, then);
        describe(find(after, f->path), f->shape, now);
        bool known = then[0] != '\0' && now[0] != '\0', none = then[0] == '\0' && now[0] == '\0';
        bool same = known ? strcmp(then, now) == 0 : f->need == BOTH || (none && f->need == EITHER);
        if (same) {
            continue;
        }
        out.same = out.same && !f->decides;
        char *text = f->decides ? out.decides : out.remarks;
        ls_text_add(text, sizeof out.decides, "%s%s%.120s against %.120s",
                    text[0] == '\0' ? "" : "; ", f->name, now[0] == '\0' ? "unknown" : now,
                    then[0] == '\0' ? "unknown" : then);
    }
    return out;
}
