/* `lockstep checkpoint`: what it says of each kind of file, and what it writes. */
#include "kernels/core/file.h"
#include "reference/files/pth.h"
#include "reference/train/checkpoint/checkpoint.h"
#include "suite/commands/commands.h"
#include "suite/unit/caught.h"
#include "suite/unit/reference/host_trainer.h"
#include "suite/unit/harness/scratch.h"
#include "suite/unit/run_suite.h"

static const char *in_folder(const char *name)
{
    static char path[4][400];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", scratch, name);
    return path[next];
}

/* What the command prints, and its exit code; of a refusal the line of stderr. */
static const char *run(int *code, const char *a, const char *b, const char *c, const char *d)
{
    static char text[8192];
    const char *given[] = {a, b, c, d};
    char *argument[5] = {NULL};
    int count = 0;
    while (count < 4 && given[count] != NULL) {
        argument[count] = strdup(given[count]);
        ck_assert_ptr_nonnull(argument[count++]);
    }
    char *copies[4];
    memcpy(copies, argument, sizeof copies);
    FILE *output = tmpfile();
    ck_assert_ptr_nonnull(output);
    fflush(stdout);
    int before = dup(STDOUT_FILENO);
    dup2(fileno(output), STDOUT_FILENO);
    catch_lines();
    *code = ls_checkpoint_main(count, argument);
    fflush(stdout);
    dup2(before, STDOUT_FILENO);
    close(before);
    const char *said = caught_text();
    rewind(output);
    size_t bytes = fread(text, 1, sizeof text - 1, output);
    text[bytes] = '\0';
    fclose(output);
    if (*code != 0) {
        ck_assert_str_eq(text, "");
        snprintf(text, sizeof text, "%s", said);
    }
    for (int i = 0; i < count; i++) {
        free(copies[i]);
    }
    return text;
}

static void says(const char *text, const char *what)
{
    ck_assert_msg(strstr(text, what) != NULL, "no '%s' in:\n%s", what, text);
}

/* A run at O2 on one rank, in the midst of its third epoch. */
static void save(void)
{
    ls_options options;
    ls_trainer t;
    ls_options_defaults(&options);
    snprintf(options.arch, sizeof options.arch, "resnet8");
    options.opt_level = LS_O2;
    options.loss_scale_given = options.loss_scale_dynamic = true;
    host_trainer_open(&t, &options);
    t.steps_per_epoch = 10;
    t.best = (ls_trainer_best){20, 80, 50};
    for (int i = 0; i < t.memory.param_count; i++) {
        for (int64_t k = 0; k < t.memory.param[i].count; k++) {
            host_set(&t.memory.param[i], k, (float)(k % 7));
        }
    }
    ls_step_state state = ls_amp_scale_start(512);
    state.growth_count = 5;
    state.step_count = 22;
    ck_assert_int_eq(ls_amp_scale_write(&t.amp, &state), LS_OK);
    ck_assert_int_eq(ls_checkpoint_save(&t, 23, in_folder("a.safetensors")), LS_OK);
    host_trainer_close(&t);
}

TEST(what_a_checkpoint_holds)
{
    int code;
    const char *text = run(&code, in_folder("a.safetensors"), NULL, NULL, NULL);
    ck_assert_int_eq(code, 0);
    says(text, "a checkpoint of lockstep-train, its checksums verified");
    says(text, "arch         resnet8\n");
    says(text, "opt level    O2\n");
    says(text, "step         23: 2 epochs and 3 of 10 steps\n");
    says(text, "best         top-1 62.50 % of 80 pictures after step 20\n");
    says(text, "loss scale   512, 5 steps without overflow, dynamic\n");
    says(text, "    master           9         74810  F32\n");
    says(text, "    param           23         75290  F32 F16\n");
    says(text, "    nothing, with the same options and 1 rank\n");
}

static bool same_tensors(const ls_safetensors *a, const ls_safetensors *b)
{
    bool same = ls_safetensors_count(a) == ls_safetensors_count(b);
    for (int i = 0; same && i < ls_safetensors_count(a); i++) {
        const ls_safetensors_entry *x = ls_safetensors_at(a, i);
        const ls_safetensors_entry *y = ls_safetensors_find(b, x->name);
        same = y != NULL && x->dtype == y->dtype && x->bytes == y->bytes &&
               ls_safetensors_same_shape(&x->shape, &y->shape) &&
               memcmp(x->data, y->data, (size_t)x->bytes) == 0;
    }
    return same;
}

TEST(there_and_back)
{
    int code;
    ls_safetensors *a = NULL, *b = NULL;
    const char *name, *value;
    (void)run(&code, in_folder("a.safetensors"), "--to", in_folder("b.pth"), NULL);
    ck_assert_int_eq(code, 0);
    (void)run(&code, in_folder("b.pth"), "--to", in_folder("c.safetensors"), NULL);
    ck_assert_int_eq(code, 0);
    ck_assert_int_eq(ls_pth_state_open(in_folder("a.safetensors"), &a), LS_OK);
    ck_assert_int_eq(ls_pth_state_open(in_folder("c.safetensors"), &b), LS_OK);
    ck_assert(same_tensors(a, b));
    for (int i = 0; ls_safetensors_metadata_at(a, i, &name, &value); i++) {
        ck_assert(strncmp(name, "xxh64", 5) == 0 ||
                  strcmp(ls_safetensors_metadata_of(b, name, ""), value) == 0);
    }
    ck_assert(ls_safetensors_has_digests(b));
    ls_safetensors_close(a);
    ls_safetensors_close(b);
    says(run(&code, in_folder("b.pth"), NULL, NULL, NULL), "nothing, with the same options");
}

TEST(what_scripts_read)
{
    int code;
    (void)run(&code, in_folder("a.safetensors"), "--to", in_folder("p.pth"), "--plain");
    ck_assert_int_eq(code, 0);
    const char *text = run(&code, in_folder("p.pth"), NULL, NULL, NULL);
    says(text, "saved by a script of PyTorch or Apex");
    says(text, "epochs       2 done\n");
    says(text, "best         top-1 62.50 %\n");
    says(text, "loss scale   512, 5 steps without overflow\n");
    says(text, "    place in an epoch ");
    says(text, "    masters ");
    ck_assert_ptr_null(strstr(text, "    moments "));
    (void)run(&code, in_folder("p.pth"), "--to", in_folder("q.safetensors"), NULL);
    ck_assert_int_eq(code, 0);
    ls_safetensors *a = NULL, *b = NULL;
    ck_assert_int_eq(ls_pth_state_open(in_folder("p.pth"), &a), LS_OK);
    ck_assert_int_eq(ls_pth_state_open(in_folder("q.safetensors"), &b), LS_OK);
    ck_assert(same_tensors(a, b));
    ls_safetensors_close(a);
    ls_safetensors_close(b);
}

TEST(weights_and_dumps)
{
    int code;
    float values[6] = {1, 2, 3, 4, 5, 6};
    const ls_shape shape = {.rank = 2, .dim = {2, 3}};
    static const char *const names[] = {"fc.weight", "param/fc.weight"};
    for (int i = 0; i < 2; i++) {
        ls_safetensors_writer *writer = NULL;
        ck_assert_int_eq(ls_safetensors_create(in_folder("w.safetensors"), &writer), LS_OK);
        ls_safetensors_add(writer, names[i], LS_F32, &shape, values);
        ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
        const char *text = run(&code, in_folder("w.safetensors"), NULL, NULL, NULL);
        says(text, i == 0 ? "plain weights, no checksums" : "a dump of a step, no checksums");
        says(text, "--init starts from it");
        text = run(&code, in_folder("w.safetensors"), "--to", in_folder("w.pt"), NULL);
        ck_assert_int_eq(code, i == 0 ? 0 : LS_ERR_USAGE);
        says(i == 0 ? "is a dump of a step" : text, "is a dump of a step");
    }
    ls_safetensors *file = NULL;
    ck_assert_int_eq(ls_pth_state_open(in_folder("w.pt"), &file), LS_OK);
    const ls_safetensors_entry *entry = ls_safetensors_find(file, "param/fc.weight");
    ck_assert_ptr_nonnull(entry);
    ck_assert_mem_eq(entry->data, values, sizeof values);
    ls_safetensors_close(file);
}

TEST(wrong_arguments)
{
    static const struct wrong {
        const char *file, *argument[3], *says;
    } wrong[] = {
        {"a.safetensors", {"--to", "x.txt", NULL}, "allowed: names that end in .pth, .pt or"},
        {"a.safetensors", {"--to", "x.safetensors", "--plain"}, "allowed with .pth and .pt"},
        {"a.safetensors", {"--plain", NULL, NULL}, "--plain without --to"},
        {"none", {NULL, NULL, NULL}, "cannot open"},
        {"a.safetensors", {"--to", "/nonexistent/x.pth", NULL}, "cannot create /nonexistent/x.pth"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int code;
        const char *text = run(&code, in_folder(wrong[i].file), wrong[i].argument[0],
                               wrong[i].argument[1], wrong[i].argument[2]);
        ck_assert_int_eq(code, i == 4 ? LS_ERR_INFRA : LS_ERR_USAGE);
        says(text, wrong[i].says);
    }
}

static void put_file(const char *name, const char *header)
{
    uint64_t bytes = (strlen(header) + 7) / 8 * 8; /* tensors are aligned */
    FILE *file = fopen(in_folder(name), "w");
    ck_assert(file != NULL && fwrite(&bytes, sizeof bytes, 1, file) == 1 &&
              fprintf(file, "%-*s", (int)bytes, header) == (int)bytes);
    ck_assert_int_eq(fclose(file), 0);
}

/* A file that holds nothing is nothing to start from, and half of the moments are not the moments.
 */
TEST(nothing_and_half)
{
    static const char *const empty[] = {
        "{}", "{\"__metadata__\":{\"format\":\"pt\"}}",
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}"};
    int code;
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        put_file("empty.safetensors", empty[i]);
        says(run(&code, in_folder("empty.safetensors"), NULL, NULL, NULL),
             "it holds no element of a tensor");
        ck_assert_int_eq(code, LS_ERR_USAGE);
    }
    put_file("half.safetensors",
             "{\"__metadata__\":{\"format\":\"lockstep-checkpoint\",\"optimizer\":\"adam\","
             "\"world_size\":\"1\",\"step\":\"2\"},"
             "\"param/a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
             "\"param/b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]},"
             "\"state/b/exp_avg\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}");
    FILE *file = fopen(in_folder("half.safetensors"), "a");
    ck_assert(file != NULL && fwrite("\0\0\0\0\0\0\0\0\0\0\0\0", 12, 1, file) == 1 &&
              fclose(file) == 0);
    const char *text = run(&code, in_folder("half.safetensors"), NULL, NULL, NULL);
    ck_assert_msg(code == 0, "%s", text);
    says(text, "moments of 1 of 2 ");
}

static void save_in_scratch(void)
{
    open_scratch();
    save();
}

TEST_MAIN("checkpoint command", .begin = save_in_scratch, .end = close_scratch)
