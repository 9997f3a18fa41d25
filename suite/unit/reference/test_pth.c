/* Files of torch.save: pickles as torch writes them are read, whatever a hostile one names or
 * claims is refused by name and nothing is called, and what a run takes of such a file stands in
 * its place. The pickles are written here, operation by operation. */
#include "kernels/core/file.h"
#include "kernels/core/text.h"
#include "reference/files/pth.h"
#include "reference/train/checkpoint/checkpoint.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"
#include "host_trainer.h"

/* ---- an archive made here -------------------------------------------------------------------- */

enum { ARCHIVE_MAX = 1 << 20, SMALL = 8 };

typedef struct archive {
    unsigned char at[ARCHIVE_MAX];
    size_t bytes;
    ls_zip_writer zip;
} archive;

static void add(archive *to, const void *data, size_t bytes)
{
    ck_assert_uint_le(to->bytes + bytes, sizeof to->at);
    memcpy(to->at + to->bytes, data, bytes);
    to->bytes += bytes;
}

static void add_entry(archive *to, const char *name, const void *data, size_t bytes)
{
    unsigned char header[LS_ZIP_HEADER_BYTES];
    size_t length = ls_zip_begin(&to->zip, name, bytes, ls_zip_crc(0, data, bytes), header);
    add(to, header, length);
    add(to, data, bytes);
}

static void end_archive(archive *to)
{
    size_t bytes;
    unsigned char *end = ls_zip_finish(&to->zip, &bytes);
    add(to, end, bytes);
    free(end);
}

static char folder[] = "/tmp/ls_pthXXXXXX";

static const char *put_file(const archive *from, char path[64])
{
    snprintf(path, 64, "%s/x.pth", folder);
    ck_assert_int_eq(ls_file_replace(path, from->at, from->bytes), LS_OK);
    return path;
}

/* The archive of one pickle and of storages data/0 and data/1, each the floats 0 to 7. */
static const archive *archive_of(const void *pickle, size_t bytes)
{
    static archive made;
    float numbers[SMALL];
    made = (archive){.bytes = 0};
    for (int i = 0; i < SMALL; i++) {
        numbers[i] = (float)i;
    }
    add_entry(&made, "x/data.pkl", pickle, bytes);
    add_entry(&made, "x/byteorder", "little", 6);
    add_entry(&made, "x/data/0", numbers, sizeof numbers);
    add_entry(&made, "x/data/1", numbers, sizeof numbers);
    add_entry(&made, "x/version", "3\n", 2);
    add_entry(&made, "x/.data/serialization_id", "1", 1);
    end_archive(&made);
    return &made;
}

static ls_status open_archive(const archive *from, ls_pth **out)
{
    void *copy = malloc(from->bytes);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, from->at, from->bytes);
    return ls_pth_open("x.pth", copy, from->bytes, out);
}

/* ---- pickles --------------------------------------------------------------------------------- */

/* What torch.save writes of a tensor: its storage K, the type's class, elements, sizes, steps. */
#define TEXT(length, text) "X" length "\0\0\0" text
#define STORAGE(class, key, count)                                                               \
    "((" TEXT("\7", "storage") "ctorch\n" class "\n" TEXT("\1", key) TEXT("\3", "cpu") "K" count \
                                                                                       "tQ"
#define TENSOR(class, key, count, offset, sizes, steps)                                \
    "ctorch._utils\n_rebuild_tensor_v2\n" STORAGE(class, key,                          \
                                                  count) "K" offset sizes steps "\x89" \
                                                         "ccollections\nOrderedDict\n)RtR"
#define TWO_BY_FOUR "K\2K\4\x86"
#define ROWS "K\4K\1\x86"
#define COLUMNS "K\1K\2\x86"
#define WHOLE TENSOR("FloatStorage", "0", "\10", "\0", TWO_BY_FOUR, ROWS)

#define PICKLE(text) (text), sizeof(text) - 1

/* As a state dict is written: its memo, an attribute of the dict, a tensor as a parameter. */
TEST(a_state_dict_is_read)
{
    ls_pth *pth = NULL;
    /* clang-format off */
    static const char pickle[] =
        "\x80\2" "ccollections\nOrderedDict\nq\0)Rq\1("
        TEXT("\1", "a") "q\2" WHOLE "q\3"
        TEXT("\1", "t") TENSOR("FloatStorage", "1", "\10", "\0", TWO_BY_FOUR, COLUMNS)
        TEXT("\1", "p") "ctorch._utils\n_rebuild_parameter\n(h\3\x88)tR"
        TEXT("\1", "n") "J\xfe\xff\xff\xff"
        TEXT("\1", "g") "G\x3f\xe0\0\0\0\0\0\0"
        TEXT("\1", "l") "\x8a\3\0\0\1"
        TEXT("\1", "s") "ctorch\nSize\n((K\2K\3ttR"
        TEXT("\1", "o") "cargparse\nNamespace\n)\x81}" TEXT("\1", "k") "K\1sb"
        "u}" TEXT("\11", "_metadata") "Nsb.";
    /* clang-format on */
    ck_assert_int_eq(open_archive(archive_of(PICKLE(pickle)), &pth), LS_OK);
    const ls_pickle_value *root = ls_pth_root(pth);
    const ls_pth_tensor *rows = ls_pth_tensor_of(ls_pickle_get(root, "a"));
    const ls_pth_tensor *columns = ls_pth_tensor_of(ls_pickle_get(root, "t"));
    ck_assert(rows != NULL && rows->usable && columns != NULL && columns->usable);
    ck_assert_ptr_eq(ls_pth_tensor_of(ls_pickle_get(root, "p")), rows);
    for (int i = 0; i < SMALL; i++) {
        ck_assert_float_eq(((const float *)rows->data)[i], (float)i);
        ck_assert_float_eq(((const float *)columns->data)[i], (float)(i / 4 + i % 4 * 2));
    }
    double number = 0;
    ck_assert(ls_pth_number(ls_pickle_get(root, "n"), &number) && number == -2);
    ck_assert(ls_pth_number(ls_pickle_get(root, "g"), &number) && number == 0.5);
    ck_assert(ls_pth_number(ls_pickle_get(root, "l"), &number) && number == 65536);
    ck_assert_int_eq(ls_pickle_get(root, "s")->kind, LS_PICKLE_TUPLE);
    ck_assert_str_eq(ls_pickle_get(root, "o")->text, "argparse.Namespace");
    ck_assert_ptr_null(ls_pickle_get(root, "_metadata"));
    ls_pth_close(pth);
}

static const struct hostile {
    const char *pickle;
    size_t bytes;
    const char *says;
} hostile[] = {
    {PICKLE("\x80\2cposix\nsystem\nX\2\0\0\0ls\x85R."), "names posix.system"},
    {PICKLE("\x80\4\x8c\2os\x8c\6system\x93\x8c\2ls\x85R."), "names os.system"},
    {PICKLE("\x80\2cbuiltins\neval\nX\1\0\0\0001\x85R."), "names builtins.eval"},
    {PICKLE("\x80\2ctorch\nload\n)R."), "names torch.load"},
    {PICKLE("\x80\2ctorch.storage\n_load_from_bytes\n)R."), "names torch.storage"},
    {PICKLE("\x80\2c\x1b[2J\nx\n)R."), "names \\x1b[2J.x"},
    {PICKLE("\x80\2(iposix\nsystem\n."), "operation 0x69"},
    {PICKLE("\x80\2(cargparse\nNamespace\no."), "operation 0x6f"},
    {PICKLE("\x80\2\x82\1."), "operation 0x82"},
    {PICKLE("\x80\2cargparse\nNamespace\n)}\x92."), "operation 0x92"},
    {PICKLE("\x80\2ctorch\nFloatStorage\n)R."), "calls torch.FloatStorage"},
    {PICKLE("\x80\2N)R."), "no name"},
    {PICKLE("\x80\2ccollections\n"), "without an end"},
    {PICKLE("\x80\2K\1}b."), "state of something"},
    {PICKLE("\x80\2}"), "is cut"},
    {PICKLE("\x80\2X\xff\xff\xff\xff"), "is cut"},
    {PICKLE("\x80\2\x8b\xff\xff\xff\x7f"), "is cut"},
    {PICKLE("\x80\2."), "where there is none"},
    {PICKLE("\x80\2a."), "where there is none"},
    {PICKLE("\x80\2(N0."), "where there is none"},
    {PICKLE("\x80\2t."), "a mark that it has not set"},
    {PICKLE("\x80\2}(K\1u."), "adds items"},
    {PICKLE("\x80\2NNs."), "where there is none"},
    {PICKLE("\x80\2NNNs."), "adds items"},
    {PICKLE("\x80\2h\5."), "recalls number 5"},
    {PICKLE("\x80\2}r\xff\xff\xff\xff."), "memo of number 4294967295"},
    {PICKLE("\x80\2}}."), "leaves values"},
    {PICKLE("\x80\2K\1Q."), "persistent id"},
    {PICKLE("\x80\2" STORAGE("FloatStorage", "7", "\10") "."), "has no data/7"},
    {PICKLE("\x80\2" STORAGE("FloatStorage", "0", "\11") "."), "32 bytes where 9 elements"},
    {PICKLE("\x80\2" STORAGE("DoubleStorage", "0", "\10") "."), "32 bytes where 8 elements"},
    {PICKLE("\x80\2" TENSOR("FloatStorage", "0", "\10", "\1", TWO_BY_FOUR, ROWS) "."),
     "beyond its storage"},
    {PICKLE("\x80\2" TENSOR("FloatStorage", "0", "\10", "\0", "K\2K\5\x86", ROWS) "."),
     "beyond its storage"},
    {PICKLE("\x80\2" TENSOR("FloatStorage", "0", "\10", "\0", "M\0\1M\0\1\x86", "K\0K\0\x86") "."),
     "beyond its storage"},
    {PICKLE("\x80\2" TENSOR("FloatStorage", "0", "\10", "\0",
                            "J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86",
                            "J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86") "."),
     "beyond its storage"},
    {PICKLE(
         "\x80\2" TENSOR("FloatStorage", "0", "\10", "\0", "J\xff\xff\xff\xffK\1\x86", ROWS) "."),
     "beyond its storage"},
    {PICKLE("\x80\2" TENSOR("FloatStorage", "0", "\10", "\0", "K\2\x85", ROWS) "."),
     "something else"},
    {PICKLE("\x80\2ctorch._utils\n_rebuild_tensor_v2\n)R."), "something else"},
};

ROWS_TEST(hostile_pickles, hostile)
{
    const struct hostile *h = &hostile[_i];
    ls_pth *pth = NULL;
    catch_lines();
    ls_status status = open_archive(archive_of(h->pickle, h->bytes), &pth);
    const char *said = caught_lines();
    ck_assert_msg(status == LS_ERR_USAGE && strstr(said, h->says) != NULL, "%d: %s: %s", _i,
                  h->says, said);
    ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1); /* one line */
}

/* Lists in lists, a list that holds itself, a dict that is its own value: read, and not followed.
 */
TEST(deep_and_circular)
{
    enum { DEEP = 200000 };
    char *deep = malloc(DEEP + 8);
    ck_assert_ptr_nonnull(deep);
    size_t bytes = 0;
    memcpy(deep, "\x80\2", 2);
    memset(deep + 2, ']', DEEP / 2);
    memset(deep + 2 + DEEP / 2, 'a', DEEP / 2 - 1);
    bytes = 2 + DEEP - 1;
    deep[bytes++] = '.';
    ls_pth *pth = NULL;
    ck_assert_int_eq(open_archive(archive_of(deep, bytes), &pth), LS_OK);
    ls_pth_close(pth);
    free(deep);
    static const char circle[] = "\x80\2]q\0h\0a0}q\1X\1\0\0\0ah\1sX\5\0\0\0epochh\0s.";
    ck_assert_int_eq(open_archive(archive_of(PICKLE(circle)), &pth), LS_OK);
    const ls_pickle_value *root = ls_pth_root(pth);
    ck_assert_ptr_eq(ls_pickle_get(root, "a"), root);
    ls_pth_close(pth);
    char path[64];
    ls_safetensors *file = NULL;
    catch_lines();
    ck_assert_int_eq(ls_pth_state_open(put_file(archive_of(PICKLE(circle)), path), &file),
                     LS_ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(caught_text(), "holds no state dict"));
}

/* Views of one storage over and over: more bytes than the file has. */
TEST(copies_are_limited)
{
    static char pickle[200000];
    static const char view[] = TENSOR("FloatStorage", "0", "\10", "\0", TWO_BY_FOUR, COLUMNS);
    size_t bytes = 0;
    memcpy(pickle, "\x80\2](", 4);
    for (bytes = 4; bytes + sizeof view < sizeof pickle - 3; bytes += sizeof view - 1) {
        memcpy(pickle + bytes, view, sizeof view - 1);
    }
    memcpy(pickle + bytes, "e.", 2);
    ls_pth *pth = NULL;
    ck_assert_int_eq(open_archive(archive_of(pickle, bytes + 2), &pth), LS_OK);
    ls_pth_close(pth);
    /* small ones are no matter; a large storage turned three times is */
    static archive large;
    static float numbers[40000];
    large = (archive){.bytes = 0};
    static const char turned[] =
        "ctorch._utils\n_rebuild_tensor_v2\n((" TEXT("\7", "storage") "ctorch\nFloatStorage\n" TEXT(
            "\1", "0") TEXT("\3", "cpu") "M\x40\x9ctQK\0K\2M\x20\x4e\x86K\1K\2\x86\x89)tR";
    bytes = 4;
    for (int i = 0; i < 3; i++, bytes += sizeof turned - 1) {
        memcpy(pickle + bytes, turned, sizeof turned - 1);
    }
    memcpy(pickle + bytes, "e.", 2);
    add_entry(&large, "x/data.pkl", pickle, bytes + 2);
    add_entry(&large, "x/data/0", numbers, sizeof numbers);
    end_archive(&large);
    catch_lines();
    ck_assert_int_eq(open_archive(&large, &pth), LS_ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(caught_text(), "take more than the file's"));
}

/* ---- archives -------------------------------------------------------------------------------- */

static size_t find(const archive *in, const char *text, size_t bytes, size_t from)
{
    for (size_t at = from; at + bytes <= in->bytes; at++) {
        if (memcmp(in->at + at, text, bytes) == 0) {
            return at;
        }
    }
    ck_abort_msg("nothing to change");
    return 0;
}

/* Bytes that are changed, counted from the entry of data/0 in the directory, the data of data/0,
 * the pickle's first call or the zip64 record, which counts; or another archive. */
static const struct damaged {
    const char *says;
    enum { STORED, DATA, CALL, COUNTED, NOT } from;
    int at, bytes;
    unsigned char value;
    const char *pickle, *order, *extra; /* NOT: names of the pickle and of one more, the order */
} damaged[] = {
    {"compressed or encrypted", STORED, 10, 1, 8},
    {"compressed or encrypted", STORED, 8, 1, 1},
    {"longer than the file", STORED, 22, 5, 1},
    {"is not where the directory says", STORED, 42, 1, 4},
    {"overlap", STORED, 20, 5, 200}, /* up to the next entry's data, still inside of the files */
    {"its directory", COUNTED, 32, 7, 0xff},
    {"data/0 is damaged", DATA, 5, 1, 0xff},
    {"data.pkl is damaged", CALL, 0, 1, 0xff},
    {"byte order is big", NOT, .pickle = "x/data.pkl", .order = "big"},
    {"2 files data.pkl", NOT, .pickle = "x/data.pkl", .order = "little", .extra = "y/data.pkl"},
    {"0 files data.pkl", NOT, .pickle = "x/y/data.pkl", .order = "little"},
    {"two files are named", NOT, .pickle = "x/data.pkl", .order = "little", .extra = "x/version"},
    {"a file of the name 'x/../y'", NOT, .pickle = "x/data.pkl", .order = "little",
     .extra = "x/../y"},
    {"a file of the name '/etc/passwd'", NOT, .pickle = "x/data.pkl", .order = "little",
     .extra = "/etc/passwd"},
};

static void make_damaged(const struct damaged *how, archive *to)
{
    static const char pickle[] = "\x80\2}" TEXT("\1", "a") WHOLE "s.";
    *to = *archive_of(PICKLE(pickle));
    size_t central = find(to, "PK\1\2", 4, 0), data = find(to, "x/data/0", 8, 0);
    const size_t places[] = {[STORED] = find(to, "x/data/0", 8, central) - 46,
                             [DATA] = (data + 8 + 63) / 64 * 64,
                             [CALL] = find(to, "_rebuild", 8, 0),
                             [COUNTED] = find(to, "PK\6\6", 4, central)};
    if (how->from != NOT) {
        unsigned char *at = to->at + places[how->from] + how->at;
        bool sizes = how->from == STORED && how->bytes == 5; /* both, 4 bytes apart */
        at[0] = how->value == 4 ? at[0] ^ 4 : how->value;
        for (int i = sizes ? 4 : 1; i < how->bytes; i++) {
            at[i] = how->value;
        }
        return;
    }
    *to = (archive){.bytes = 0};
    add_entry(to, how->pickle, "\x80\2}.", 4);
    add_entry(to, "x/byteorder", how->order, strlen(how->order));
    add_entry(to, "x/version", "3\n", 2);
    if (how->extra != NULL) {
        add_entry(to, how->extra, "4\n", 2);
    }
    end_archive(to);
}

static void expect_damaged(const archive *made, const char *says)
{
    ls_pth *pth = NULL;
    catch_lines();
    ls_status status = open_archive(made, &pth);
    const char *said = caught_lines();
    ck_assert_msg(status == LS_ERR_USAGE && strstr(said, says) != NULL, "%s: %s", says, said);
}

ROWS_TEST(damaged_archives, damaged)
{
    static archive made;
    make_damaged(&damaged[_i], &made);
    expect_damaged(&made, damaged[_i].says);
}

TEST(cut_or_old_archives)
{
    static archive made;
    made = *archive_of(PICKLE("\x80\2}."));
    made.bytes -= 1;
    expect_damaged(&made, "no end of a directory");
    made = (archive){.bytes = 0};
    add(&made, "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
    expect_damaged(&made, "before 1.6");
}

/* Every cut, and every byte changed: an answer, and no read outside (a sanitizer looks). */
TEST(any_byte)
{
    static const char pickle[] = "\x80\2}" TEXT("\1", "a") WHOLE "s.";
    static archive made;
    const archive whole = *archive_of(PICKLE(pickle));
    int taken = 0;
    catch_lines();
    for (size_t i = 0; i < 2 * whole.bytes; i++) {
        ls_pth *pth = NULL;
        made = whole;
        if (i < whole.bytes) {
            made.bytes = i;
        } else {
            made.at[i - whole.bytes] ^= (unsigned char)(1 << i % 8);
        }
        ls_status status = open_archive(&made, &pth);
        ck_assert(status == LS_OK || status == LS_ERR_USAGE);
        taken += status == LS_OK;
        ls_pth_close(status == LS_OK ? pth : NULL);
    }
    (void)caught_text();
    ck_assert_int_gt(taken, 0); /* the padding means nothing */
    ck_assert_int_lt(taken, (int)whole.bytes);
}

TEST(crc_as_zlib)
{
    ck_assert_uint_eq(ls_zip_crc(0, "123456789", 9), 0xcbf43926);
    ck_assert_uint_eq(ls_zip_crc(ls_zip_crc(0, "1234", 4), "56789", 5), 0xcbf43926);
    ck_assert_uint_eq(ls_zip_crc(0, "", 0), 0);
}

/* ---- what a run takes ------------------------------------------------------------------------ */

typedef struct made_file {
    const char *dict, *prefix; /* the name of its state dict; NULL: it is one */
    int groups;
    bool arch_differs, stranger;
} made_file;

static float value_of(int param, int64_t element)
{
    return (float)param + (float)(element % 97) / 128.0f;
}

/* Parameters and statistics of a resnet8 in the order of modules, each with its own values. */
static void put_dict(ls_pth_writer *w, const ls_network *network, const made_file *how, float *data)
{
    static const int64_t tracked = 33;
    ls_pth_begin_ordered(w, how->dict);
    for (int i = 0; i < network->param_count; i++) {
        const ls_param *param = &network->param[i];
        LS_TEXT(name, 160, "%s%s", how->prefix, param->name);
        ls_pth_put_tensor(w, name, LS_F32, &param->shape, data + (size_t)i * 65536);
    }
    for (int i = 0; i < network->buffer_count; i++) {
        const ls_buffer *buffer = &network->buffer[i];
        bool counter = buffer->role == LS_BUFFER_BATCHES_TRACKED;
        ls_shape shape = {.rank = counter ? 0 : 1, .dim = {buffer->count}};
        LS_TEXT(name, 160, "%s%s", how->prefix, buffer->name);
        ls_pth_put_tensor(w, name, counter ? LS_I64 : LS_F32, &shape,
                          counter ? (const void *)&tracked : data + 5 * 65536);
    }
    if (how->stranger) {
        ls_pth_put_tensor(w, "head.weight", LS_F32, &network->param[0].shape, data);
    }
    ls_pth_end_dict(w);
}

static void put_optimizer(ls_pth_writer *w, const ls_network *network, const made_file *how,
                          const float *data)
{
    int params = network->param_count;
    ls_pth_begin_dict(w, "optimizer");
    ls_pth_begin_dict(w, "state");
    for (int i = 1; i < params; i++) { /* the first was never stepped */
        ls_pth_put_integer(w, NULL, i);
        ls_pth_begin_dict(w, NULL);
        ls_pth_put_tensor(w, "momentum_buffer", LS_F32, &network->param[i].shape,
                          data + (size_t)(params + i) * 65536);
        ls_pth_end_dict(w);
    }
    ls_pth_end_dict(w);
    ls_pth_begin_list(w, "param_groups");
    for (int g = 0; g < how->groups; g++) {
        ls_pth_begin_dict(w, NULL);
        ls_pth_put_number(w, "momentum", 0.75);
        ls_pth_begin_list(w, "params");
        for (int i = 0; i < params; i++) {
            ls_pth_put_integer(w, NULL, i);
        }
        ls_pth_end_list(w);
        ls_pth_end_dict(w);
    }
    ls_pth_end_list(w);
    ls_pth_end_dict(w);
}

/* A file as Apex's ImageNet script writes it; data: of its tensors, free()d by the caller. */
static float *write_script_file(const ls_network *network, const made_file *how, char path[64])
{
    int tensors = 2 * network->param_count;
    float *data = malloc((size_t)tensors * 65536 * sizeof *data);
    ck_assert_ptr_nonnull(data);
    for (int i = 0; i < tensors; i++) {
        for (int64_t k = 0; k < 65536; k++) {
            data[(size_t)i * 65536 + (size_t)k] = value_of(i, k);
        }
    }
    ls_pth_writer *w = ls_pth_create();
    snprintf(path, 64, "%s/script.pth", folder);
    if (how->dict == NULL) {
        put_dict(w, network, how, data);
        ck_assert_int_eq(ls_pth_finish(w, path), LS_OK);
        return data;
    }
    ls_pth_begin_dict(w, NULL);
    ls_pth_put_integer(w, "epoch", 4);
    ls_pth_put_text(w, "arch", how->arch_differs ? "resnet20" : "resnet8");
    put_dict(w, network, how, data);
    ls_pth_put_number(w, "best_prec1", 62.5);
    put_optimizer(w, network, how, data);
    ls_pth_begin_dict(w, "amp");
    ls_pth_begin_dict(w, "loss_scaler0");
    ls_pth_put_number(w, "loss_scale", 4096);
    ls_pth_put_integer(w, "unskipped", 11);
    ls_pth_end_dict(w);
    ls_pth_end_dict(w);
    ls_pth_put_bool(w, "scheduler", false);
    ls_pth_end_dict(w);
    ck_assert_int_eq(ls_pth_finish(w, path), LS_OK);
    return data;
}

static ls_options options_of(ls_opt_level level)
{
    ls_options options;
    ls_options_defaults(&options);
    snprintf(options.arch, sizeof options.arch, "resnet8");
    options.opt_level = level;
    return options;
}

/* Half an ulp of fp16 below 64, where all values lie. */
static const float rounding = 1.0f / 64;

/* Masters are made behind the loading of weights. */
static void check_params(const ls_trainer *t, bool with_masters)
{
    for (int i = 0; i < t->memory.param_count; i++) {
        const ls_tensor *param = &t->memory.param[i];
        bool has_master =
            with_masters && t->memory.master != NULL && t->memory.master[i].data != NULL;
        for (int64_t k = 0; k < param->count; k++) {
            float want = value_of(i, k), off = fabsf(host_get(param, k) - want);
            ck_assert_float_le(off, param->dtype == LS_F32 ? 0 : rounding);
            ck_assert(!has_master || host_get(&t->memory.master[i], k) == want);
        }
    }
}

RANGE_TEST(a_script_s_file_is_resumed, LS_O0, LS_O3 + 1)
{
    const made_file how = {"state_dict", "module.", 1, false, false};
    char path[64];
    ls_options options = options_of((ls_opt_level)_i);
    ls_trainer t;
    host_trainer_open(&t, &options);
    float *data = write_script_file(&t.network, &how, path);
    ls_step_state state;
    int64_t step = 77;
    catch_lines();
    ls_status status = ls_checkpoint_load(&t, path, &state, &step);
    const char *said = caught_text();
    ck_assert_msg(status == LS_OK, "%s", said);
    ck_assert_ptr_nonnull(strstr(said, "epoch 4, best top-1 62.50 %"));
    ck_assert_ptr_nonnull(strstr(said, "1 moments, which are 0"));
    ck_assert_ptr_nonnull(strstr(said, "not used: scheduler"));
    ck_assert_ptr_nonnull(strstr(said, "--momentum was 0.75, now 0.9"));
    ck_assert_int_eq(step, 0);
    ck_assert_int_gt(state.step_count, 0); /* else the moments would not count */
    ck_assert_int_eq(t.resumed_epochs, 4);
    ck_assert_int_eq(t.best.top1 * 1000, t.best.images * 625);
    ck_assert_int_eq(*t.memory.tracked, 33);
    bool dynamic = t.precision.scaler.dynamic;
    ck_assert_float_eq(state.loss_scale, dynamic ? 4096.0f : t.precision.initial_scale);
    ck_assert_int_eq(state.growth_count, dynamic ? 11 : 0);
    check_params(&t, true);
    for (int i = 0; i < t.memory.param_count; i++) {
        const ls_tensor *moment = &t.memory.moment[0][i];
        for (int64_t k = 0; k < moment->count; k++) {
            ck_assert_float_eq(host_get(moment, k),
                               i == 0 ? 0.0f : value_of(t.memory.param_count + i, k));
        }
    }
    free(data);
    host_trainer_close(&t);
}

static const struct loaded {
    made_file how;
    bool resume;
    ls_status status;
    const char *says[2];
} loaded[] = {
    {{NULL, "", 1, false, false}, false, LS_OK, {"takes 23 parameters"}},
    {{NULL, "module.", 1, false, false}, false, LS_OK, {"takes 23 parameters"}},
    {{"state_dict", "module.", 2, true, false}, false, LS_OK, {"takes 23 parameters"}},
    {{"model", "", 1, false, false}, false, LS_OK, {"takes 23 parameters"}},
    {{"state_dict", "module.", 1, true, false},
     true,
     LS_ERR_USAGE,
     {"arch is 'resnet20' there and 'resnet8' here"}},
    {{"state_dict", "module.", 1, false, true},
     true,
     LS_ERR_USAGE,
     {"head.weight is no parameter or buffer"}},
    {{"state_dict", "module.", 1, false, true},
     false,
     LS_ERR_USAGE,
     {"param/head.weight is no parameter"}},
    {{"state_dict", "module.module.", 1, false, false},
     true,
     LS_ERR_USAGE,
     {"param/conv1.weight is missing"}},
    {{"network", "", 1, false, false}, true, LS_ERR_USAGE, {"holds no state dict"}},
    /* which parameter a moment belongs to is not in a file with several groups */
    {{"state_dict", "module.", 2, false, false},
     true,
     LS_OK,
     {"moments: they are in 2 parameter groups", "23 moments, which are 0"}},
};

ROWS_TEST(files_of_other_runs, loaded)
{
    const struct loaded *r = &loaded[_i];
    char path[64];
    ls_options options = options_of(r->resume ? LS_O0 : LS_O2);
    ls_trainer t;
    host_trainer_open(&t, &options);
    float *data = write_script_file(&t.network, &r->how, path);
    ls_step_state state;
    int64_t step = 0;
    catch_lines();
    ls_status status =
        r->resume ? ls_checkpoint_load(&t, path, &state, &step) : ls_weights_load(&t, path);
    const char *said = caught_text();
    ck_assert_msg(status == r->status, "%s", said);
    for (int i = 0; i < 2 && r->says[i] != NULL; i++) {
        ck_assert_msg(strstr(said, r->says[i]) != NULL, "%s", said);
    }
    ck_assert_int_eq(t.resumed_epochs, status == LS_OK && r->resume ? 4 : 0);
    if (status == LS_OK) {
        check_params(&t, r->resume);
    }
    free(data);
    host_trainer_close(&t);
}

static void make_folder(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void remove_folder(void)
{
    static const char *const names[] = {"x.pth", "script.pth"};
    for (int i = 0; i < 2; i++) {
        LS_TEXT(path, 64, "%s/%s", folder, names[i]);
        (void)unlink(path);
    }
    ck_assert_int_eq(rmdir(folder), 0);
    strcpy(folder, "/tmp/ls_pthXXXXXX");
}

TEST_MAIN("pth", .timeout_s = 60, .before = make_folder, .after = remove_folder)
