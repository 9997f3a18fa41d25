#include "machine.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/json.h"
#include "harness/process/proc.h"
#include "kernels/core/text.h"

/* Functions of cuda.h; CUresult and CUdevice are int. */
typedef struct entries {
    int (*init)(unsigned int flags);
    int (*version)(int *version);
    int (*count)(int *count);
    int (*device)(int *device, int ordinal);
    int (*address)(char *text, int bytes, int device);
    int (*error_text)(int error, const char **text);
} entries;

static bool find(void *library, const char *symbol, void *to)
{
    void *found = dlsym(library, symbol);
    memcpy(to, &found, sizeof found);
    return found != NULL;
}

static bool find_all(void *library, entries *e)
{
    return find(library, "cuInit", &e->init) && find(library, "cuDriverGetVersion", &e->version) &&
           find(library, "cuDeviceGetCount", &e->count) &&
           find(library, "cuDeviceGet", &e->device) &&
           find(library, "cuDeviceGetPCIBusId", &e->address) &&
           find(library, "cuGetErrorString", &e->error_text);
}

static void add_error(const entries *e, const char *call, int error, cJSON *answer)
{
    const char *text = NULL;
    LS_TEXT(line, 200, "%s: error %d, %s", call, error,
            e->error_text(error, &text) == 0 && text != NULL ? text : "no text");
    cJSON_AddStringToObject(answer, "failure", line);
}

static void ask(cJSON *answer)
{
    entries e;
    const char *path = getenv("LS_LIBCUDA");
    void *library = dlopen(path == NULL || path[0] == '\0' ? "libcuda.so.1" : path, RTLD_NOW);
    if (library == NULL) {
        cJSON_AddStringToObject(answer, "failure", dlerror());
        return;
    }
    if (!find_all(library, &e)) {
        cJSON_AddStringToObject(answer, "failure", dlerror());
        return;
    }
    int error = e.init(0), version = 0, count = 0;
    if (error != 0) {
        add_error(&e, "cuInit", error, answer);
        return;
    }
    (void)e.version(&version);
    cJSON_AddNumberToObject(answer, "version", version);
    error = e.count(&count);
    if (error != 0) {
        add_error(&e, "cuDeviceGetCount", error, answer);
        return;
    }
    cJSON *list = cJSON_AddArrayToObject(answer, "addresses");
    for (int i = 0; i < count; i++) {
        char text[32] = "";
        int device = 0;
        if (e.device(&device, i) != 0 || e.address(text, sizeof text, device) != 0) {
            text[0] = '\0';
        }
        cJSON_AddItemToArray(list, cJSON_CreateString(text));
    }
}

static ls_status in_child(void *context, FILE *to)
{
    (void)context;
    cJSON *answer = cJSON_CreateObject();
    LS_MEMORY(answer != NULL);
    ask(answer);
    char *text = cJSON_PrintUnformatted(answer);
    LS_MEMORY(text != NULL);
    ls_status status = fputs(text, to) < 0 ? LS_ERR_INFRA : LS_OK;
    cJSON_free(text);
    cJSON_Delete(answer);
    return status;
}

/* The driver writes addresses in capitals. */
static void small_letters(char *text)
{
    for (; *text != '\0'; text++) {
        *text = (char)(*text >= 'A' && *text <= 'F' ? *text - 'A' + 'a' : *text);
    }
}

void ls_driver_ask(ls_driver *out)
{
    memset(out, 0, sizeof *out);
    ls_proc_isolated isolated;
    char why[120] = "";
    if (ls_proc_isolated_start(in_child, NULL, &isolated) != LS_OK) {
        ls_text_put(out->failure, sizeof out->failure, "cannot start a process for the driver");
        return;
    }
    char *text =
        ls_proc_isolated_answer(&isolated, ls_clock_after(LS_DRIVER_LIMIT_S), why, sizeof why);
    cJSON *answer = text == NULL ? NULL : ls_json_parse(text, NULL);
    free(text);
    if (answer == NULL) {
        ls_text_put(out->failure, sizeof out->failure, "cuInit: %s (%d s)",
                    why[0] == '\0' ? "no answer" : why, LS_DRIVER_LIMIT_S);
        return;
    }
    ls_text_put(out->failure, sizeof out->failure, "%s", ls_json_string(answer, "failure", ""));
    out->version = ls_json_int(answer, "version", 0);
    const cJSON *entry;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(answer, "addresses"))
    {
        if (out->count < LS_DRIVER_DEVICES_MAX && cJSON_IsString(entry)) {
            char *address = out->address[out->count++];
            ls_text_put(address, sizeof out->address[0], "%s", entry->valuestring);
            small_letters(address);
        }
    }
    cJSON_Delete(answer);
}
