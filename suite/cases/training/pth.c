/* Files of torch.save: what a run saved, converted to one and resumed from it; and files that are
 * damaged or made to harm. */
#include "suite/cases/rows.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/core/file.h"
#include "kernels/core/text.h"
#include "reference/files/pth.h"
#include "suite/judge/judges.h"

/* ---- there and back -------------------------------------------------------------------------- */

#define SAVED "checkpoint.safetensors"
/* Rank 0 converts what the run has saved. */
#define CONVERTED(options)                                                                    \
    "\"$0\" \"$@\" || exit $?; [ $RANK != 0 ] || {bin}/lockstep checkpoint {self}/" SAVED " " \
    "--to {self}/checkpoint.pth" options " || exit 9; exit 0"

/* Without what only lockstep-train reads: the optimizer's count of steps, which SGD does not use.
 */
#define PLAIN                                   \
    LS_JUDGE_DIFFERENCE(1u << LS_RECORD_SCALER, \
                        "resumed after an epoch from what PyTorch's scripts read")

/* ---- files made to harm ---------------------------------------------------------------------- */

enum harm { CALLS, CALLS_LATER, RUNS_TEXT, CLAIMS, BEYOND, NAMED, DAMAGED, OLD };

static const struct hostile {
    enum harm harm;
    const char *says;
} hostile[] = {
    {CALLS, "names posix.system"},      {CALLS_LATER, "names posix.system"},
    {RUNS_TEXT, "names builtins.exec"}, {CLAIMS, "bytes where 1000000000 elements"},
    {BEYOND, "beyond its storage"},     {NAMED, "a file of the name 'x/../../etc/passwd'"},
    {DAMAGED, "data/0 is damaged"},     {OLD, "before 1.6"},
};

typedef struct buffer {
    unsigned char at[8192];
    size_t bytes;
} buffer;

static void add(buffer *to, const void *data, size_t bytes)
{
    LS_ASSERT(to->bytes + bytes <= sizeof to->at);
    memcpy(to->at + to->bytes, data, bytes);
    to->bytes += bytes;
}

static void add_entry(buffer *to, ls_zip_writer *zip, const char *name, const void *data,
                      size_t bytes)
{
    unsigned char header[LS_ZIP_HEADER_BYTES];
    size_t length = ls_zip_begin(zip, name, bytes, ls_zip_crc(0, data, bytes), header);
    add(to, header, length);
    add(to, data, bytes);
}

static void add_text(buffer *to, const char *text)
{
    unsigned char length[5] = {'X', (unsigned char)strlen(text),
                               (unsigned char)(strlen(text) >> 8)};
    add(to, length, sizeof length);
    add(to, text, strlen(text));
}

/* A tensor of storage data/0, which has four floats. */
static void add_tensor(buffer *to, const char *elements, size_t element_bytes, const char *size)
{
    static const char begin[] = "ctorch._utils\n_rebuild_tensor_v2\n((";
    add(to, begin, sizeof begin - 1);
    add_text(to, "storage");
    add(to, "ctorch\nFloatStorage\n", 20);
    add_text(to, "0");
    add_text(to, "cpu");
    add(to, elements, element_bytes);
    add(to, "tQK\0K", 5);
    add(to, size, 1);
    add(to, "\x85K\1\x85\x89)tR", 8);
}

/* A pickle that calls a shell, or exec; inside of a state dict where that is to come `later`. */
static void add_call(buffer *to, const struct hostile *h, const char *folder)
{
    char command[700];
    bool later = h->harm == CALLS_LATER;
    add(to, "\x80\2", 2);
    if (later) {
        add(to, "}(", 2);
        add_text(to, "fc.bias");
        add_tensor(to, "K\4", 2, "\4");
        add_text(to, "x");
    }
    ls_text_put(command, sizeof command,
                h->harm == RUNS_TEXT ? "open('%s/executed', 'w')" : "touch '%s/executed'", folder);
    add(to, h->harm == RUNS_TEXT ? "cbuiltins\nexec\n" : "cposix\nsystem\n",
        15 - (h->harm != RUNS_TEXT));
    add_text(to, command);
    add(to, later ? "\x85Ru." : "\x85R.", later ? 4 : 3);
}

static void make_pickle(buffer *to, const struct hostile *h, const char *folder)
{
    if (h->harm == CALLS || h->harm == CALLS_LATER || h->harm == RUNS_TEXT) {
        add_call(to, h, folder);
        return;
    }
    add(to, "\x80\2}", 3);
    add_text(to, "fc.bias");
    add_tensor(to, h->harm == CLAIMS ? "J\0\xca\x9a\x3b" : "K\4", h->harm == CLAIMS ? 5 : 2,
               h->harm == BEYOND ? "\5" : "\4");
    add(to, "s.", 2);
}

static ls_status make_hostile(const ls_case *row, const ls_spec *job, const char *run_directory)
{
    static const float numbers[4] = {1, 2, 3, 4};
    static const char old[] = "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    const struct hostile *h = row->data;
    buffer pickle = {.bytes = 0}, file = {.bytes = 0};
    ls_zip_writer zip = {0};
    (void)job;
    LS_TEXT(path, 900, "%s/harm%d.pth", run_directory, (int)h->harm);
    make_pickle(&pickle, h, run_directory);
    add_entry(&file, &zip, "x/data.pkl", pickle.at, pickle.bytes);
    add_entry(&file, &zip, "x/data/0", numbers, sizeof numbers);
    if (h->harm == DAMAGED) {
        file.at[file.bytes - 1] ^= 1;
    }
    if (h->harm == NAMED) {
        add_entry(&file, &zip, "x/../../etc/passwd", "x", 1);
    }
    size_t bytes = 0;
    unsigned char *end = ls_zip_finish(&zip, &bytes);
    add(&file, end, bytes);
    free(end);
    if (h->harm == OLD) {
        return ls_file_replace(path, old, sizeof old - 1);
    }
    return ls_file_replace(path, file.at, file.bytes);
}

static void judge_hostile(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct hostile *h = row->data;
    ls_ending want = {.code = {2, 2}, .says = 3, .text = h->says, .unwritten = true};
    struct stat found;
    ls_endings_judge(&want, job, out);
    LS_TEXT(path, 900, "%s/../../executed", job->directory);
    if (stat(path, &found) == 0) {
        ls_verdict_fail(out, "the file's code was executed");
    }
}

/* ---- the prefix of the wrapper, from inside -------------------------------------------------- */

static void judge_prefix(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    static const char *const names[] = {"module.fc.bias", "module.bn1.running_mean"};
    static const char *const wanted[] = {"param/fc.bias", "buffer/bn1.running_mean"};
    static const float values[3] = {1, 2, 3};
    const ls_shape shape = {.rank = 1, .dim = {3}};
    char path[] = "/tmp/ls_prefixXXXXXX";
    ls_safetensors *file = NULL;
    (void)row;
    (void)job;
    int descriptor = mkstemp(path);
    LS_ASSERT(descriptor >= 0);
    close(descriptor);
    ls_pth_writer *writer = ls_pth_create();
    ls_pth_begin_ordered(writer, NULL);
    for (int i = 0; i < 2; i++) {
        ls_pth_put_tensor(writer, names[i], LS_F32, &shape, values);
    }
    ls_pth_end_dict(writer);
    if (ls_pth_finish(writer, path) != LS_OK || ls_pth_state_open(path, &file) != LS_OK) {
        ls_verdict_fail(out, "a state dict of two tensors is not read back");
    }
    for (int i = 0; file != NULL && i < 2; i++) {
        if (ls_safetensors_find(file, wanted[i]) == NULL) {
            ls_verdict_fail(out, "%s was not read as %s", names[i], wanted[i]);
        }
    }
    ls_safetensors_close(file);
    (void)unlink(path);
    ls_verdict_pass(out, sizeof names / sizeof *names, "module.NAME is read as NAME");
}

/* ---- the table ------------------------------------------------------------------------------- */

#define THREE(job)                                                         \
    "resnet8 b0.05 " job " steps=6 | resnet8 b0.05 " job " steps=3 shell " \
    "--save={self}/" SAVED " | resnet8 b0.05 " job " steps=6 --resume={job:1}/checkpoint.pth"
#define HOSTILE(name, index)                                                                \
    {                                                                                       \
        "pth.hostile." name, "F8", judge_hostile,                                           \
            "resnet8 O0 w2 b0.05 steps=1 --init={run}/harm" #index ".pth", &hostile[index], \
            .prepare = make_hostile, .judges_outcome = true                                 \
    }

static const ls_row rows[] = {
    {"pth.resume.o[0|3].w[1|2]", "C11", ls_judge_resume, THREE("O$1 w$2"), .script = CONVERTED("")},
    {"pth.resume.o[1|2].w[1|2|3]", "C11", ls_judge_resume,
     THREE("O$1 w$2 scale=dynamic --init-scale=1024 --growth-interval=2 --overflow-at=2"),
     .script = CONVERTED("")},
    {"pth.resume.adam.w2", "C11", ls_judge_resume, THREE("O2 w2 lr=0.001 --optimizer=adam"),
     .script = CONVERTED("")},
    {"pth.plain.o0.w1", "C12", ls_judge_same,
     "resnet8 O0 w1 image=16 data={self}/data steps=20 shell | resnet8 O0 w1 image=16 "
     "data={self}/data steps=10 shell --save={self}/" SAVED
     " | resnet8 O0 w1 image=16 data={self}/data steps=20 shell --resume={job:1}/checkpoint.pth",
     PLAIN,
     .script =
         "{bin}/lockstep data make {self}/data --images 4 --image-size 16 >/dev/null || exit 3; "
         "\"$0\" \"$@\" || exit $?; [ ! -e {self}/" SAVED " ] || {bin}/lockstep checkpoint "
         "{self}/" SAVED " --to {self}/checkpoint.pth --plain"},
    {"pth.prefix", "C12", judge_prefix},
    HOSTILE("system", 0),
    HOSTILE("system-later", 1),
    HOSTILE("exec", 2),
    HOSTILE("claims", 3),
    HOSTILE("beyond", 4),
    HOSTILE("names", 5),
    HOSTILE("damaged", 6),
    HOSTILE("old", 7),
};

void ls_pth_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
