#include "roofline.h"

#include <string.h>

#include "kernels/core/log.h"
#include "kernels/cpu/bound.h"
#include "kernels/kernels.h"
#include "reference/model/model.h"

/* Medians of a few hundred ms each; the whole takes a second or two. */
enum { REPEATS = 5, NUM_CLASSES = 10 };

typedef struct engine {
    ls_cpu_bound_fn *convolutions_ms;
    ls_cpu_rates_fn *rates;
} engine;

static ls_status load(engine *out)
{
    void *convolutions = NULL, *rates = NULL;
    LS_TRY(ls_load_symbol("cpu", LS_CPU_BOUND_ENTRY, &convolutions));
    LS_TRY(ls_load_symbol("cpu", LS_CPU_RATES_ENTRY, &rates));
    memcpy(&out->convolutions_ms, &convolutions, sizeof out->convolutions_ms);
    memcpy(&out->rates, &rates, sizeof out->rates);
    return LS_OK;
}

static ls_status measure_threads(const engine *engine, const ls_matrix_bench *bench,
                                 const ls_network *network, int threads, const char *when,
                                 cJSON *roofline, cJSON *rates)
{
    const ls_plan_options plan = {.batch = bench->batch_size,
                                  .height = bench->image_size,
                                  .width = bench->image_size,
                                  .activation = LS_F32};
    double ms = 0;
    ls_cpu_rates_measured measured;
    LS_TRY(engine->convolutions_ms(network, &plan, threads, REPEATS, &ms));
    LS_TRY(engine->rates(threads, &measured));
    cJSON *entry = cJSON_CreateObject();
    cJSON_AddStringToObject(entry, "when", when);
    cJSON_AddStringToObject(entry, "arch", bench->arch);
    cJSON_AddNumberToObject(entry, "image_size", bench->image_size);
    cJSON_AddNumberToObject(entry, "batch_size", bench->batch_size);
    cJSON_AddNumberToObject(entry, "threads", threads);
    ls_json_add_number(entry, "images_per_s", bench->batch_size * 1e3 / ms);
    cJSON_AddItemToArray(roofline, entry);
    entry = cJSON_CreateObject();
    cJSON_AddStringToObject(entry, "when", when);
    cJSON_AddNumberToObject(entry, "threads", threads);
    ls_json_add_number(entry, "copy_bytes_per_s", measured.copy_bytes_per_s);
    ls_json_add_number(entry, "matrix_flop_per_s", measured.matrix_flop_per_s);
    cJSON_AddItemToArray(rates, entry);
    return LS_OK;
}

ls_status ls_roofline_measure(const ls_matrix_bench *bench, const char *when, cJSON *roofline,
                              cJSON *rates)
{
    engine engine;
    ls_network network;
    LS_TRY(load(&engine));
    LS_TRY(ls_model_build(bench->arch, NUM_CLASSES, bench->image_size, &network));
    int each = bench->cores / bench->ranks < 1 ? 1 : bench->cores / bench->ranks, before = 0;
    ls_status status = LS_OK;
    for (int world = 1; world < 2 * bench->ranks && status == LS_OK; world *= 2) {
        int ranks = world < bench->ranks ? world : bench->ranks;
        int threads = ranks * each < bench->cores ? ranks * each : bench->cores;
        if (threads > before) {
            status = measure_threads(&engine, bench, &network, threads, when, roofline, rates);
            before = threads;
        }
    }
    ls_model_free(&network);
    return status;
}
