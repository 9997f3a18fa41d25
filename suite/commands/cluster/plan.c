#include "suite/commands/commands.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "harness/hosts/simnet.h"
#include "harness/report/page.h"
#include "harness/report/tables/table.h"
#include "harness/run/manifest.h"
#include "kernels/core/file.h"
#include "kernels/core/list.h"
#include "kernels/core/path.h"
#include "plan_internal.h"
#include "suite/run/command_line.h"
#include "suite/suite.h"

enum { GPUS_MOST = 1 << 20, POINTS_MAX = 64, SIZES_MAX = 16, ASSUMED_MAX = 8 };

static const ls_tol payload =
    LS_TOL(0.95, "of a link's bits are gradients (1448 of a frame's 1514 bytes)");
static const ls_tol gloo_crossings =
    LS_TOL(2, "crossings a message: Gloo's receiver says first that it is ready");

typedef struct point {
    int gpus;
    ls_plan_way way; /* of the shortest step, as size is */
    int size;        /* of the plan's sizes */
    ls_plan_step step;
    double way_ms[LS_PLAN_WAYS]; /* with its best size; NaN: no way here */
    double size_ms[SIZES_MAX];   /* with its best way */
} point;

typedef struct plan {
    ls_plan_run run;
    ls_plan_cluster cluster;
    char between[120];         /* where the link between nodes is from */
    bool given;                /* it is from the command line */
    double size_mb[SIZES_MAX]; /* NaN: the run's own, the last one */
    int sizes, batch;
    double fixed_ms;
    ls_plan_step self; /* the run itself, over its own link; step_ms NaN: no such link */
    double alone_ms;   /* the step of one GPU */
    point point[POINTS_MAX];
    int points;
    char assumed[ASSUMED_MAX][160];
    int assumptions;
} plan;

/* ---- the command line ------------------------------------------------------------------------ */

typedef struct request {
    const char *job, *link, *intra, *gpus, *per_node, *buckets, *batch, *fixed, *out;
} request;

/* "25Gbit,10us". */
static ls_status read_link(const char *name, const char *text, double crossings, ls_plan_link *out)
{
    ls_link link;
    if (!ls_simnet_link(text, &link)) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "%s '%s': allowed: a rate in Gbit, Mbit, GB/s or MB/s and a message's "
            "delay in us or ms, such as 25Gbit,10us%s",
            name, text,
            strcmp(name, "--link") == 0 ? ", or a folder that lockstep-collectives wrote" : "");
    }
    *out = (ls_plan_link){link.bytes_per_s * (link.in_bits ? payload.value : 1),
                          crossings * link.delay_s};
    return LS_OK;
}

/* Sizes in MiB; behind them the run's own. */
static ls_status read_sizes(const char *text, plan *p)
{
    char *end = (char *)text;
    while (p->sizes < SIZES_MAX - 1) {
        double size = strtod(end, &end);
        p->size_mb[p->sizes++] = size;
        if (!(size > 0 && size <= 1 << 20) || (*end != ',' && *end != '\0')) {
            break;
        }
        if (*end++ == '\0') {
            p->size_mb[p->sizes++] = NAN;
            return LS_OK;
        }
    }
    return ls_log_fail(LS_ERR_USAGE, "--buckets '%s': allowed: up to %d sizes in MiB, such as 1,25",
                       text, SIZES_MAX - 1);
}

static ls_status read_numbers(const request *r, plan *p)
{
    int64_t gpus = 0, per_node = 0, batch = p->run.job->spec->batch_size;
    LS_TRY(ls_command_whole("--gpus", r->gpus, 1, GPUS_MOST, &gpus));
    LS_TRY(ls_command_whole("--gpus-per-node", r->per_node, 1, 1024, &per_node));
    LS_TRY(r->batch != NULL ? ls_command_whole("--batch", r->batch, 1, 65536, &batch) : LS_OK);
    for (int64_t i = 1; i < gpus; i *= 2) {
        p->point[p->points++].gpus = (int)i;
    }
    p->point[p->points++].gpus = (int)gpus;
    p->cluster.gpus_per_node = (int)per_node;
    p->batch = (int)batch;
    char *end = NULL;
    double most = p->run.parts.forward_ms + p->run.parts.backward_ms;
    p->fixed_ms = r->fixed == NULL ? 0 : strtod(r->fixed, &end);
    if (r->fixed != NULL && (end == r->fixed || *end != '\0' || r->batch == NULL ||
                             !(p->fixed_ms >= 0 && p->fixed_ms < most))) {
        return ls_log_fail(LS_ERR_USAGE, "--fixed '%s': allowed: with --batch, ms below %.4g",
                           r->fixed, most);
    }
    if ((r->intra != NULL) != (per_node > 1)) {
        return ls_log_fail(LS_ERR_USAGE,
                           "--intra and --gpus-per-node of 2 and more need each other");
    }
    return LS_OK;
}

static void assume(plan *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void assume(plan *p, const char *format, ...)
{
    va_list arguments;
    LS_ASSERT(p->assumptions < ASSUMED_MAX);
    va_start(arguments, format);
    vsnprintf(p->assumed[p->assumptions++], sizeof p->assumed[0], format, arguments);
    va_end(arguments);
}

static ls_status find_links(const request *r, plan *p)
{
    ls_plan_fit fit = p->run.fit;
    double crossings = p->run.gloo ? gloo_crossings.value : 1;
    bool folder = r->link != NULL && access(r->link, R_OK) == 0;
    if (folder) {
        LS_TRY(ls_plan_run_read_link(r->link, &fit));
    } else if (r->link != NULL) {
        fit.count = 0;
        p->given = true;
        LS_TRY(read_link("--link", r->link, crossings, &fit.link));
    } else if (fit.count == 0) {
        return ls_log_fail(LS_ERR_USAGE,
                           "--link is missing: %s has no reductions with buckets of "
                           "two sizes, which would say it",
                           p->run.job->record->id);
    }
    p->cluster.between = p->cluster.inside = fit.link;
    ls_text_put(p->between, sizeof p->between, "link: %.4g MB/s, %.4g us a message, ",
                fit.link.bytes_per_s * 1e-6, fit.link.message_s * 1e6);
    if (fit.count == 0) {
        ls_text_add(p->between, sizeof p->between, "as given: %s", r->link);
    } else {
        ls_text_add(p->between, sizeof p->between, "fitted to %d times of %s, error %.2g %%",
                    fit.count, folder ? "lockstep-collectives" : "the run", 100 * fit.error);
    }
    return r->intra == NULL ? LS_OK : read_link("--intra", r->intra, crossings, &p->cluster.inside);
}

static ls_status parse(request *r, int count, char **argument)
{
    *r = (request){.gpus = "4096", .per_node = "1", .buckets = "1,5,25,100"};
    const ls_command_option options[] = {
        {"--job", &r->job, NULL, NULL, "its id, with * and ? (the timed one of the most ranks)"},
        {"--link", &r->link, NULL, NULL,
         "between nodes: rate and delay, such as 25Gbit,10us, or a folder that "
         "lockstep-collectives wrote (as the run's buckets say)"},
        {"--gpus-per-node", &r->per_node, NULL, NULL, "GPUs that share that link (1)"},
        {"--intra", &r->intra, NULL, NULL, "between GPUs of a node, of each: 400GB/s,3us"},
        {"--gpus", &r->gpus, NULL, NULL, "up to how many (4096)"},
        {"--buckets", &r->buckets, NULL, NULL, "sizes to try, in MiB (1,5,25,100)"},
        {"--batch", &r->batch, NULL, NULL, "images a GPU and micro-step (the run's)"},
        {"--fixed", &r->fixed, NULL, NULL,
         "with --batch: ms of forward and backward that no batch changes (0)"},
        {"--out", &r->out, NULL, NULL, "folder for plan.json, table and plot"},
    };
    return ls_command_parse("plan DIR", options, sizeof options / sizeof *options, &count,
                            argument);
}

/* ---- the plan -------------------------------------------------------------------------------- */

static ls_plan_step step_of(const plan *p, const ls_plan_parts *parts,
                            const ls_plan_cluster *cluster, ls_plan_way way, int gpus, double mb)
{
    ls_bucket_layout layout;
    ls_plan_run_layout(&p->run, mb, &layout);
    ls_plan_bucket *bucket = ls_list_make((size_t)layout.bucket_count, sizeof *bucket);
    int count = ls_plan_run_buckets(&p->run, &layout, bucket);
    for (int b = 0; b < count; b++) {
        double wire_ms = ls_plan_model_reduce_ms(cluster, way, gpus, bucket[b].bytes);
        bucket[b].reduce_ms = fmax(wire_ms, bucket[b].bytes * parts->core_ms_per_byte);
    }
    ls_plan_step step = ls_plan_model_step(parts, bucket, gpus > 1 ? count : 0);
    free(bucket);
    ls_buckets_free(&layout);
    return step;
}

static void compare_self(plan *p)
{
    const ls_plan_cluster flat = {p->run.fit.link, p->run.fit.link, 1};
    p->self.step_ms = NAN;
    if (p->run.fit.count > 0) {
        p->self = step_of(p, &p->run.parts, &flat, LS_PLAN_RING, p->run.job->record->world, NAN);
    }
}

static ls_plan_parts parts_of(const plan *p)
{
    ls_plan_parts parts = p->run.parts;
    double both_ms = parts.forward_ms + parts.backward_ms;
    double scale =
        (p->fixed_ms + (both_ms - p->fixed_ms) * p->batch / p->run.job->spec->batch_size) / both_ms;
    parts.forward_ms *= scale;
    parts.backward_ms *= scale;
    return parts;
}

static void find_point(const plan *p, point *at)
{
    ls_plan_parts parts = parts_of(p);
    at->step.step_ms = INFINITY;
    for (int i = 0; i < LS_PLAN_WAYS * p->sizes; i++) {
        ls_plan_way way = (ls_plan_way)(i / p->sizes);
        int s = i % p->sizes;
        bool there = way != LS_PLAN_HIERARCHICAL ||
                     (p->cluster.gpus_per_node > 1 && at->gpus > p->cluster.gpus_per_node);
        ls_plan_step step = step_of(p, &parts, &p->cluster, way, at->gpus, p->size_mb[s]);
        double ms = there ? step.step_ms : NAN;
        at->way_ms[way] = s == 0 ? ms : fmin(at->way_ms[way], ms);
        at->size_ms[s] = way == 0 ? ms : fmin(at->size_ms[s], ms);
        if (ms < at->step.step_ms) {
            at->step = step;
            at->way = way;
            at->size = s;
        }
    }
}

static void find_assumed(plan *p)
{
    if (p->given) {
        assume(p, "%.2f %s", payload.value, payload.why);
    }
    if (p->given && p->run.gloo) {
        assume(p, "%.0f %s", gloo_crossings.value, gloo_crossings.why);
    }
    assume(p, "every all-reduce has its links alone; ring, tree and hierarchical as NCCL counts "
              "their messages");
    assume(p,
           "buckets in order, one at a time, each begun when it is full: by multiply-adds, and "
           "%d traced buckets",
           p->run.anchors);
    assume(p, "a reduced byte takes %.3g ns from backward (%s)",
           p->run.parts.core_ms_per_byte * 1e6,
           p->run.has_alone ? "against the job without reductions" : "not measured");
    assume(p, "ranks wait %.1f ms a step for the last one, as in the run, on any number of GPUs",
           p->run.parts.waited_ms);
    if (p->batch != p->run.job->spec->batch_size) {
        assume(p, "forward and backward: %.4g ms, and beyond that in proportion to the batch",
               p->fixed_ms);
    }
    assume(p, "the same images a GPU on any number; data, optimizer and the rest as measured");
}

/* ---- what is printed and written ------------------------------------------------------------- */

static double images_per_s(const plan *p, int gpus, double step_ms)
{
    return 1e3 * gpus * p->batch * fmax(1, p->run.job->spec->accumulate) / step_ms;
}

static const char *size_text(const plan *p, int size, char text[24])
{
    ls_text_put(text, 24, isnan(p->size_mb[size]) ? "own" : "%g MB", p->size_mb[size]);
    return text;
}

static void print_head(const plan *p)
{
    const ls_report_job *job = p->run.job;
    const ls_plan_parts *parts = &p->run.parts;
    char level[24], bucket[24], text[600] = "";
    ls_text_add(text, sizeof text,
                "%s, %d pixels, %s, %d images a GPU, from %s: %d %s, %s, step %.1f ms: data %.1f, "
                "forward %.1f, backward %.1f alone, exposed %.1f, optimizer %.1f, rest %.1f",
                job->spec->arch, job->spec->image_size, ls_report_job_level(job, level), p->batch,
                job->record->id, job->record->world, ls_report_job_ranks(job),
                ls_report_job_bucket(job, bucket), job->speed.step.value, parts->data_ms,
                parts->forward_ms, parts->backward_ms, p->run.exposed_ms, parts->optimizer_ms,
                parts->rest_ms);
    ls_report_lines_print(stdout, text, 2);
    ls_report_lines_print(stdout, p->between, 2);
    if (isfinite(p->self.step_ms)) {
        printf("the model of the run itself: %.1f ms, %+.1f %%\n", p->self.step_ms,
               100 * (p->self.step_ms / job->speed.step.value - 1));
    }
}

static void print_points(const plan *p)
{
    printf("\n%7s  %-12s %8s %12s %12s %8s %12s\n", "GPUs", "way", "bucket", "step ms",
           "exposed ms", "speed", "images/s");
    const point *shown = &p->point[p->points - 1]; /* the measured ranks, or the last */
    char size[24], line[400];
    for (int i = 0; i < p->points; i++) {
        const point *at = &p->point[i];
        bool one = at->gpus == 1;
        printf("%7d  %-12s %8s %12.2f %12.2f %6.1f %% %12.1f\n", at->gpus,
               one ? "-" : ls_plan_model_way_name(at->way),
               one ? "-" : size_text(p, at->size, size), at->step.step_ms, at->step.exposed_ms,
               100 * p->alone_ms / at->step.step_ms, images_per_s(p, at->gpus, at->step.step_ms));
        shown = !one && at->gpus == p->run.job->record->world ? at : shown;
    }
    ls_text_put(line, sizeof line, "step ms by bucket on %d:", shown->gpus);
    for (int s = 0; s < p->sizes; s++) {
        ls_text_add(line, sizeof line, "%s %s %.2f", s > 0 ? "," : "", size_text(p, s, size),
                    shown->size_ms[s]);
    }
    putchar('\n');
    ls_report_lines_print(stdout, line, 2);
}

static ls_status write_table(const plan *p, const ls_report_run *to)
{
    ls_table_head head = {.caption = "Nothing above the measured ranks was run."};
    ls_text_put(head.title, sizeof head.title, "%s, %d images a GPU: planned from %d %s",
                p->run.job->spec->arch, p->batch, p->run.job->record->world,
                ls_report_job_ranks(p->run.job));
    FILE *table = ls_table_begin(to, "plan", &head, "images/s; shares of one GPU's speed",
                                 "1 gpus  2 images_per_s  3 ideal  4 ring  5 tree  6 hierarchical");
    LS_TRY_FILE(table);
    for (int i = 0; i < p->points; i++) {
        const point *at = &p->point[i];
        fprintf(table, "%d\t%.2f\t%.2f", at->gpus, images_per_s(p, at->gpus, at->step.step_ms),
                images_per_s(p, at->gpus, p->alone_ms));
        for (int w = 0; w < LS_PLAN_WAYS; w++) {
            double speed = p->alone_ms / at->way_ms[w];
            fprintf(table, isfinite(speed) ? "\t%.4f" : "\tNaN", speed);
        }
        fputc('\n', table);
    }
    return ls_file_close(table, "plan.tsv");
}

static cJSON *link_json(const ls_plan_link *link)
{
    cJSON *json = cJSON_CreateObject();
    ls_json_add_number(json, "bytes_per_s", link->bytes_per_s);
    ls_json_add_number(json, "message_s", link->message_s);
    return json;
}

static void add_point(const plan *p, const point *at, cJSON *row)
{
    cJSON_AddNumberToObject(row, "gpus", at->gpus);
    cJSON_AddStringToObject(row, "way", ls_plan_model_way_name(at->way));
    ls_json_add_number(row, "bucket_mb", p->size_mb[at->size]); /* null: the run's own */
    ls_json_add_number(row, "step_ms", at->step.step_ms);
    ls_json_add_number(row, "backward_ms", at->step.backward_ms);
    ls_json_add_number(row, "exposed_ms", at->step.exposed_ms);
    ls_json_add_number(row, "images_per_s", images_per_s(p, at->gpus, at->step.step_ms));
    cJSON *ways = cJSON_AddObjectToObject(row, "way_step_ms");
    for (int w = 0; w < LS_PLAN_WAYS; w++) {
        ls_json_add_number(ways, ls_plan_model_way_name((ls_plan_way)w), at->way_ms[w]);
    }
    cJSON *sizes = cJSON_AddObjectToObject(row, "bucket_step_ms");
    for (int s = 0; s < p->sizes; s++) {
        char size[24];
        ls_json_add_number(sizes, size_text(p, s, size), at->size_ms[s]);
    }
}

static cJSON *plan_json(const plan *p)
{
    const ls_plan_parts *parts = &p->run.parts;
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"schema", 1},
                   {"measured_step_ms", p->run.job->speed.step.value},
                   {"modelled_step_ms", p->self.step_ms},
                   {"batch", p->batch},
                   {"data_ms", parts->data_ms},
                   {"forward_ms", parts->forward_ms},
                   {"backward_ms", parts->backward_ms},
                   {"optimizer_ms", parts->optimizer_ms},
                   {"rest_ms", parts->rest_ms},
                   {"waited_ms", parts->waited_ms},
                   {"core_ms_per_byte", parts->core_ms_per_byte},
                   {"gpus_per_node", p->cluster.gpus_per_node}};
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "job", p->run.job->record->id);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        ls_json_add_number(root, numbers[i].name, numbers[i].value);
    }
    cJSON_AddItemToObject(root, "between", link_json(&p->cluster.between));
    cJSON_AddItemToObject(root, "inside", link_json(&p->cluster.inside));
    cJSON *points = cJSON_AddArrayToObject(root, "points");
    for (int i = 0; i < p->points; i++) {
        add_point(p, &p->point[i], ls_json_append_object(points));
    }
    cJSON *assumed = cJSON_AddArrayToObject(root, "assumed");
    for (int i = 0; i < p->assumptions; i++) {
        cJSON_AddItemToArray(assumed, cJSON_CreateString(p->assumed[i]));
    }
    return root;
}

static ls_status write_out(const plan *p, const char *out)
{
    ls_report_run to = {.job_count = 0};
    char scripts[PATH_MAX] = "";
    ls_command_absolute(out, to.directory, sizeof to.directory);
    LS_TEXT(tables, PATH_MAX, "%s/tables", to.directory);
    LS_TEXT(json, PATH_MAX, "%s/plan.json", to.directory);
    LS_TRY(ls_path_make_folder(tables));
    LS_TRY(write_table(p, &to));
    LS_TRY(ls_json_write_and_free(json, plan_json(p)));
    (void)ls_path_find("plots", scripts, sizeof scripts);
    LS_TRY(ls_report_plots_draw(NULL, to.directory, scripts, "plan"));
    printf("\nwritten: plan.json, tables and plots in %s\n", out);
    return LS_OK;
}

static void print_all(const plan *p)
{
    print_head(p);
    print_points(p);
    puts("\nassumed");
    for (int i = 0; i < p->assumptions; i++) {
        LS_TEXT(line, sizeof p->assumed[0] + 4, "- %s", p->assumed[i]);
        ls_report_lines_print(stdout, line, 2);
    }
}

static ls_status make_plan(const request *r, const char *directory, plan *p)
{
    LS_TRY(read_sizes(r->buckets, p));
    LS_TRY(ls_manifest_check(directory, LS_MANIFEST_RECORDS));
    LS_TRY(ls_plan_run_read(directory, r->job, &p->run));
    LS_TRY(read_numbers(r, p));
    LS_TRY(find_links(r, p));
    compare_self(p);
    ls_plan_parts alone = parts_of(p);
    p->alone_ms = ls_plan_model_alone_ms(&alone);
    for (int i = 0; i < p->points; i++) {
        find_point(p, &p->point[i]);
    }
    find_assumed(p);
    print_all(p);
    return r->out != NULL ? write_out(p, r->out) : LS_OK;
}

int ls_plan_main(int count, char **argument)
{
    request r;
    ls_archive archive;
    LS_TRY(parse(&r, count, argument));
    LS_TRY(ls_archive_open(argument[0], &archive));
    plan *p = ls_list_make(1, sizeof *p);
    ls_status status = make_plan(&r, archive.folder, p);
    ls_plan_run_free(&p->run);
    free(p);
    ls_archive_close(&archive);
    return (int)status;
}
