/* Finds the operation graphs beyond the plain convolution that the real cuDNN supports, without a
 * GPU: for a described device (cudnn_described.h) and the graphs of cudnn_patterns.h.
 *
 *   test_cudnn_fused                                  the test
 *   test_cudnn_fused DEVICE ARCH SIZE DRIVER BATCH...
 *                    the table, for fp16 and bf16: H200 resnet50 224 STUB 256 32
 *
 * DRIVER: a libcuda.so for engines that are compiled at run time; the toolkit's stub does
 * (lib64/stubs/libcuda.so), and "-" is none: then cuDNN does not offer those engines. */
#include <dlfcn.h>
#include <time.h>

#include "kernels/cuda/conv/conv.h"
#include "suite/unit/run_suite.h"

#include "cudnn_described.h"
#include "cudnn_patterns.h"

/* ---- asking ---------------------------------------------------------------------------------- */

enum { MODES = 3, MOST_CONFIGS = 256, MOST_ENGINES = 256 };

static const cudnnBackendHeurMode_t modes[MODES] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B,
                                                    CUDNN_HEUR_MODE_FALLBACK};

typedef enum verdict { PLAN, DRIVER, FILTERED, UNBUILT, NONE, NO_GRAPH } verdict;

static const char *const verdicts[] = {"plan", "driver", "filtered", "unbuilt", "none", "no-graph"};

typedef struct answer {
    verdict verdict;
    int offered[MODES];        /* configurations */
    bool engine[MOST_ENGINES]; /* among them */
    ls_conv_engine best;
    char words[512]; /* cuDNN's own, where it could not */
} answer;

/* Keeps the better verdict: a plan, or the nearest thing to one. */
static verdict try_config(const ls_conv_target *target, const ls_conv_key *key, dnn config,
                          ls_conv_engine *engine, answer *out)
{
    dnn plan = NULL;
    if (ls_conv_engine_judge(engine, key) != LS_CONV_TAKEN) {
        return FILTERED;
    }
    if (engine->behaviours & 1u << CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) {
        return DRIVER;
    }
    cudnnStatus_t status = ls_conv_engine_plan(target, config, &plan, &engine->workspace_bytes);
    if (status != CUDNN_STATUS_SUCCESS) {
        cudnnGetLastErrorString(out->words, sizeof out->words);
        return UNBUILT;
    }
    ls_conv_graph_drop(plan);
    return engine->workspace_bytes > key->workspace_limit ? FILTERED : PLAN;
}

static void ask_mode(const fused *g, const ls_conv_key *key, int mode, answer *out)
{
    dnn config[MOST_CONFIGS];
    if (ls_conv_engine_list(&g->whole, modes[mode], MOST_CONFIGS, config, &out->offered[mode]) !=
        LS_OK) {
        return; /* reported on stderr */
    }
    for (int i = 0; i < out->offered[mode]; i++) {
        ls_conv_engine engine;
        LS_ASSERT(ls_conv_engine_read(config[i], &engine) == LS_OK);
        LS_ASSERT(engine.id < MOST_ENGINES);
        out->engine[engine.id] = true;
        verdict v = out->verdict == PLAN
                        ? NONE
                        : try_config(&g->whole.target, key, config[i], &engine, out);
        if (v < out->verdict) {
            out->verdict = v;
            out->best = engine;
        }
        ls_conv_graph_drop(config[i]);
    }
}

/* Tries modes in the program's order; the first engine with a plan is the best. */
static answer ask(const ls_conv_target *target, const struct pattern *p, const ls_conv_shape *shape,
                  ls_dtype type)
{
    answer out = {.verdict = NONE};
    ls_conv_key key = {
        .shape = *shape, .type = type, .deterministic = true, .workspace_limit = INT64_C(1) << 30};
    fused g = fused_begin(target, shape, type);
    p->build(&g, p->with);
    fused_finish(&g);
    if (g.status != CUDNN_STATUS_SUCCESS) {
        out.verdict = NO_GRAPH;
        memcpy(out.words, g.refused, sizeof out.words);
    }
    for (int mode = 0; mode < MODES && out.verdict != NO_GRAPH; mode++) {
        ask_mode(&g, &key, mode, &out);
    }
    fused_free(&g);
    return out;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* A convolution of the network; others of the same shape are counted with it. */
typedef struct layer {
    const char *name;
    ls_conv_shape shape;
    bool image, first_output; /* the first of this size of output */
    int count, joins;         /* the number of such layers, and how many read an input that another
                                 operation reads too */
} layer;

static bool same_shape(const ls_conv_shape *a, const ls_conv_shape *b)
{
    return memcmp(a, b, sizeof *a) == 0; /* integers without gaps */
}

static int find_layers(const lowered *l, layer *out, int most)
{
    int count = 0;
    for (int i = 0; i < l->lower.op_count; i++) {
        layer found = {.first_output = true};
        found.name = conv_at(l, i, &found.shape, &found.image);
        int readers = 0, at = 0;
        for (int k = 0; k < l->lower.op_count; k++) {
            const ls_op *op = &l->lower.op[k];
            readers += (op->in == l->lower.op[i].in) + (op->residual == l->lower.op[i].in);
        }
        for (; found.name && at < count && !same_shape(&out[at].shape, &found.shape); at++) {
            const ls_conv_shape *s = &out[at].shape, *t = &found.shape;
            found.first_output = found.first_output && (s->out_channels != t->out_channels ||
                                                        s->out_height != t->out_height);
        }
        if (!found.name) {
            continue;
        }
        if (at == count) {
            LS_ASSERT(count < most);
            out[count++] = found;
        }
        out[at].count++;
        out[at].joins += readers > 1;
    }
    return count;
}

static void print_engines(FILE *f, const answer *a)
{
    const char *between = "";
    for (int i = 0; i < MOST_ENGINES; i++) {
        if (a->engine[i]) {
            fprintf(f, "%s%d", between, i);
            between = ",";
        }
    }
    fprintf(f, "%s\t", *between ? "" : "-");
}

static void print_answer(FILE *f, const layer *l, ls_dtype type, const struct pattern *p,
                         const answer *a)
{
    const ls_conv_shape *s = &l->shape;
    char text[LS_CONV_TAG_BYTES + 256] = "-";
    if (a->verdict <= UNBUILT) {
        ls_conv_engine_describe(&a->best, text, sizeof text);
    }
    fprintf(f, "%d\t%s\t%d@%dx%d k%d s%d -> %d@%dx%d\t%s\t%d\t%d\t%s\t%s\t%d\t%d\t%d\t", s->batch,
            ls_dtype_label(type), s->in_channels, s->in_height, s->in_width, s->kernel, s->stride,
            s->out_channels, s->out_height, s->out_width, l->name, l->count, l->joins, p->name,
            verdicts[a->verdict], a->offered[0], a->offered[1], a->offered[2]);
    print_engines(f, a);
    fprintf(f, "%s\t%s\n", text, a->words[0] ? a->words : "-");
}

static ls_status print_network(FILE *f, const ls_conv_target *target, const char *arch, int size,
                               int batch, ls_dtype type)
{
    enum { MOST_LAYERS = 64 };
    layer layers[MOST_LAYERS];
    lowered l;
    LS_TRY(lower_network(arch, batch, size, type, &l));
    int count = find_layers(&l, layers, MOST_LAYERS);
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < PATTERNS; k++) {
            const struct pattern *p = &patterns[k];
            if ((p->inner && layers[i].image) || (p->of_norm && !layers[i].first_output)) {
                continue;
            }
            answer a = ask(target, p, &layers[i].shape, type);
            print_answer(f, &layers[i], type, p, &a);
        }
    }
    lowered_free(&l);
    return LS_OK;
}

static void print_head(FILE *f, int count, char **word)
{
    time_t now = time(NULL);
    char day[32];
    strftime(day, sizeof day, "%Y-%m-%d", gmtime(&now));
    fprintf(f,
            "# Operation graphs that cuDNN %zu offers for a described %s. No GPU ran: nothing was "
            "executed, timed or checked.\n",
            cudnnGetVersion(), word[0]);
    fprintf(f, "# %s, CUDA runtime of cuDNN %zu, command: build/unit/test_cudnn_fused", day,
            cudnnGetCudartVersion());
    for (int i = 0; i < count; i++) {
        fprintf(f, " %s", word[i]);
    }
    fprintf(
        f, "\n# verdicts: plan: an execution plan was built; driver: offered, by engines compiled "
           "at run time alone, whose plans want a driver;\n"
           "#   filtered: offered, and refused by the program's filters with --deterministic and "
           "1 GB of workspace; unbuilt: offered, no plan; none; no-graph\n"
           "# best: the first engine with a plan (driver: the first offered), its workspace (known "
           "with a plan only) and notes\n");
    for (int i = 0; i < PATTERNS; i++) {
        fprintf(f, "# %s: %s\n", patterns[i].name, patterns[i].what);
    }
    fprintf(
        f, "#batch\ttype\tshape\tlayer\tlayers\tjoins\tpattern\tverdict\tmode_a\tmode_b\tfallback\t"
           "engines\tbest\twords\n");
}

static int print_table(int count, char **word)
{
    const device *d = find_device(word[0]);
    if (!d) {
        return LS_ERR_USAGE;
    }
    if (strcmp(word[3], "-") != 0 && !dlopen(word[3], RTLD_NOW | RTLD_GLOBAL)) {
        fprintf(stderr, "%s\n", dlerror());
        return LS_ERR_USAGE;
    }
    ls_conv_target target = {0};
    LS_TRY(describe_device(d, &target.properties));
    print_head(stdout, count, word);
    for (int i = 4; i < count; i++) {
        for (ls_dtype type = LS_F16; type <= LS_BF16; type++) {
            LS_TRY(print_network(stdout, &target, word[1], atoi(word[2]), atoi(word[i]), type));
        }
    }
    ls_conv_graph_drop(target.properties);
    return 0;
}

/* ---- the test -------------------------------------------------------------------------------- */

static const ls_conv_shape wide = {256, 256, 56, 56, 64, 56, 56, 1, 1, 0};
static const ls_conv_shape square = {32, 128, 28, 28, 128, 28, 28, 3, 1, 1};
static const ls_conv_shape strided = {32, 256, 56, 56, 512, 28, 28, 1, 2, 0};

static const struct pattern *pattern_of(const char *name)
{
    for (int i = 0; i < PATTERNS; i++) {
        if (strcmp(patterns[i].name, name) == 0) {
            return &patterns[i];
        }
    }
    ck_abort_msg("no pattern %s", name);
    return NULL;
}

static ls_conv_target described(const char *name)
{
    ls_conv_target target = {0};
    ck_assert_int_eq(describe_device(find_device(name), &target.properties), LS_OK);
    return target;
}

static ls_status admit_all(ls_backend *backend, const char *layer, const ls_conv_plan *plain,
                           ls_conv_plan *fused)
{
    (void)backend;
    (void)layer;
    (void)plain;
    fused->admission = LS_CONV_ADMITTED;
    return LS_OK;
}

/* The fused graphs, as the program builds them, get the engines of this test's. */
TEST(fused_graphs_get_the_programs_engines)
{
    static const ls_conv_shape *const shapes[] = {&wide, &square, &strided};
    static const struct {
        ls_conv_pass pass;
        const char *pattern, *word;
    } rows[] = {{LS_CONV_FORWARD_SUMS, "forward+stats", " sums="},
                {LS_CONV_DATA_GATED, "data+relu+norm", " gate="},
                {LS_CONV_DATA_JOINED, "data+add+relu-of-join+norm", " join="},
                {LS_CONV_DATA_JOINED_TWICE, "data+add+relu-of-joined-norms+norms", " join2="},
                {LS_CONV_FORWARD_APPLIED, "apply+forward+stats", " apply="},
                {LS_CONV_WEIGHTS_APPLIED, "apply+weights", " weigh="}};
    enum { ROWS = sizeof rows / sizeof rows[0] };
    ls_conv_target target = described("H200");
    ls_backend backend = {
        .deterministic = true, .workspace_limit = INT64_C(1) << 30, .described = target.properties};
    for (int i = 0; i < 3 * ROWS; i++) {
        ls_conv *conv = NULL;
        char choice[4096], tag[LS_CONV_TAG_BYTES];
        int row = i % ROWS;
        ck_assert_int_eq(
            ls_conv_create(&backend, "it", shapes[i / ROWS], LS_F16, LS_CONV_DX_WRITTEN, &conv),
            LS_OK);
        ck_assert_int_eq(ls_conv_fuse(conv, rows[row].pass, admit_all), LS_OK);
        ls_conv_choice(conv, choice, sizeof choice);
        answer a = ask(&target, pattern_of(rows[row].pattern), shapes[i / ROWS], LS_F16);
        const char *mine = strstr(choice, rows[row].word);
        bool joined = strstr(rows[row].word, "join") != NULL;
        if (joined && shapes[i / ROWS]->stride == 2) { /* there is none */
            ck_assert(a.verdict == NONE && mine == NULL);
            ls_conv_destroy(conv);
            continue;
        }
        ck_assert_int_eq(a.verdict, PLAN);
        ls_conv_engine_tag(&a.best, tag, sizeof tag);
        ck_assert_msg(mine != NULL && strcmp(mine + strlen(rows[row].word), tag) == 0, "%s, not %s",
                      choice, tag);
        ls_conv_destroy(conv);
    }
    ls_conv_plans_destroy(backend.plans);
    ls_conv_graph_drop(target.properties);
}

/* The plain graphs of this test equal those of the program. */
TEST(plain_graphs_get_the_programs_engines)
{
    static const ls_conv_shape *const shapes[] = {&wide, &square, &strided};
    static const char *const names[] = {"forward", "data", "weights"};
    ls_conv_target target = described("H200");
    ls_backend backend = {
        .deterministic = true, .workspace_limit = INT64_C(1) << 30, .described = target.properties};
    for (int i = 0; i < 3; i++) {
        ls_conv *conv = NULL;
        char choice[4096], mine[4096] = "", tag[LS_CONV_TAG_BYTES];
        ck_assert_int_eq(
            ls_conv_create(&backend, "it", shapes[i], LS_BF16, LS_CONV_DX_WRITTEN, &conv), LS_OK);
        ls_conv_choice(conv, choice, sizeof choice);
        for (int k = 0; k < 3; k++) {
            answer a = ask(&target, pattern_of(names[k]), shapes[i], LS_BF16);
            ck_assert_int_eq(a.verdict, PLAN);
            ls_conv_engine_tag(&a.best, tag, sizeof tag);
            snprintf(mine + strlen(mine), sizeof mine - strlen(mine), "%s%s", k ? " " : "", tag);
        }
        ck_assert_str_eq(mine, choice);
        ls_conv_destroy(conv);
    }
    ls_conv_plans_destroy(backend.plans);
    ls_conv_graph_drop(target.properties);
}

/* Patterns documented for half and sm_90, and documented as unsupported for bf16 or f32. */
TEST(documented_patterns)
{
    static const struct {
        const char *pattern;
        ls_dtype type;
        verdict wanted;
    } rows[] = {
        {"forward+stats", LS_F16, PLAN},       {"apply+forward+stats", LS_F16, PLAN},
        {"data+relu+norm", LS_F16, PLAN},      {"data+add+relu+norm", LS_F16, PLAN},
        {"apply+weights", LS_F16, PLAN},       {"apply+forward+stats", LS_BF16, NONE},
        {"data+relu+norm", LS_BF16, NONE},     {"apply+weights", LS_BF16, NONE},
        {"apply+forward+stats", LS_F32, NONE},
    };
    ls_conv_target target = described("H200");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        answer a = ask(&target, pattern_of(rows[i].pattern), &square, rows[i].type);
        ck_assert_msg(a.verdict == rows[i].wanted, "%s in %s: %s (%s)", rows[i].pattern,
                      ls_dtype_label(rows[i].type), verdicts[a.verdict], a.words);
    }
    ls_conv_graph_drop(target.properties);
}

/* One row per shape and pattern, as many fields as the header, and all layers counted. */
TEST(the_table_is_whole)
{
    char line[4096], name[64] = "", first[64];
    int rows = 0, layers = 0, tabs = 0;
    FILE *f = tmpfile();
    ck_assert_ptr_nonnull(f);
    ls_conv_target target = described("H200");
    ck_assert_int_eq(print_network(f, &target, "resnet20", 32, 16, LS_F16), LS_OK);
    rewind(f);
    for (; fgets(line, sizeof line, f); rows++) {
        int count = 0;
        ck_assert_int_eq(sscanf(line, "%*d\t%*[^\t]\t%*[^\t]\t%63[^\t]\t%d", first, &count), 2);
        layers += strcmp(name, first) == 0 ? 0 : count;
        memcpy(name, first, sizeof name);
        for (const char *c = line; *c; c++) {
            tabs += *c == '\t';
        }
    }
    fclose(f);
    ck_assert_int_eq(layers, 19); /* its shortcuts have no weights */
    ck_assert_int_eq(tabs, 13 * rows);
    ls_conv_graph_drop(target.properties);
}

TEST(a_refused_graph_is_an_answer)
{
    ls_conv_shape wrong = square;
    wrong.out_height++;
    ls_conv_target target = described("H200");
    answer a = ask(&target, pattern_of("forward"), &wrong, LS_F16);
    ck_assert_int_eq(a.verdict, NO_GRAPH);
    ck_assert_ptr_nonnull(strstr(a.words, "convolution operation"));
    ls_conv_graph_drop(target.properties);
}

/* the libraries are large: loaded once */
int main(int count, char **word)
{
    if (count > 5) {
        return print_table(count - 1, word + 1);
    }
    if (cudnnGetVersion() / 100 != 919) {
        printf("not run: what cuDNN %zu offers is not what 9.19 does\n", cudnnGetVersion());
        return 0;
    }
    setenv("CK_FORK", "no", 1);
    return RUN_TESTS("cudnn fused graphs", .timeout_s = 120);
}
