/* Messages for bad input: one line that names the value, its place and the allowed values, and an
 * exit code, before anything is run or written. */
#include <glob.h>

#include "kernels/core/usage.h"
#include "kernels/core/status.h"
#include "suite/unit/run_suite.h"
#include "suite/unit/caught.h"
#include "suite_fake.h"
#include "harness/process/proc.h"
#include "kernels/core/clock.h"

/* The command runs in a folder that holds the file `file`, the safetensors file `plain` without any
 * tensor, the empty folder `dir`, and the FIFO `fifo`. */
static const struct wrong {
    const char *command, *message; /* the whole line after "PROGRAM: error: " */
    int code;                      /* 0: LS_ERR_USAGE */
} wrongs[] = {
#define TRAIN "lockstep-train -a resnet8 --image-size 16 -b 4 --steps 1 --device cpu "
    {TRAIN "--save dir", "--save dir: it is a folder"},
    {TRAIN "--save dir/", "--save dir/: it is a folder"},
    {TRAIN "--save /dev/null", "--save /dev/null: it is not a regular file"},
    {TRAIN "--save none/x", "--save none/x: cannot write it: No such file or directory"},
    {TRAIN "--save file/x", "--save file/x: cannot write it: Not a directory"},
    {TRAIN "--resume dir", "dir is a folder, not a regular file"},
    {TRAIN "--resume fifo", "fifo is a FIFO, not a regular file"},
    {TRAIN "--resume /dev/zero", "/dev/zero is a device, not a regular file"},
    {TRAIN "--resume plain",
     "--resume plain: its format is '', not lockstep-checkpoint; --init starts from a dump or "
     "plain weights"},
    {TRAIN "x", "cannot read the folder x: No such file or directory"},
    {TRAIN "--data x y",
     "unexpected argument 'y': the data is x already; --help lists the options"},
    {TRAIN "--evaluate",
     "--evaluate: there is nothing to evaluate on; give --val DIR, or --data DIR with the folders "
     "DIR/train and DIR/val"},
    {TRAIN "--init plain", "plain: conv1.weight is missing"},
    {TRAIN "--overflow-at 1 --overflow-as inf@conv9.weight",
     "--overflow-as: resnet8 has no parameter conv9.weight; allowed: names such as conv1.weight"},
    {TRAIN "--init dir", "dir is a folder, not a regular file"},
    {TRAIN "--init fifo", "fifo is a FIFO, not a regular file"},
    {TRAIN "--init file", "file is not a whole safetensors file: it has 2 bytes"},
    {TRAIN "--data file", "cannot read the folder file: Not a directory"},
    {TRAIN "--data batches:file", "--data batches:file: not a folder"},
    {"ONEDNN_MAX_CPU_ISA=AVX2 " TRAIN "--half-math native",
     "--half-math native: processor and library offer no units for fp16; allowed: auto, emulated",
     LS_ERR_UNSUPPORTED},
    {"ONEDNN_MAX_CPU_ISA=AVX2 " TRAIN "--half-math native --half bf16",
     "--half-math native: processor and library offer no units for bf16; allowed: auto, emulated",
     LS_ERR_UNSUPPORTED},
    {"LS_RUN_DIR=file " TRAIN, "cannot create file/rank0.jsonl: Not a directory", LS_ERR_INFRA},
    {"lockstep conform --case gradients.o0.w2.b0.1mb --out file",
     "cannot make the folder $PWD/file/jobs: Not a directory; OUT= (--out) names another folder",
     LS_ERR_INFRA},
    {"lockstep bounds --out file",
     "cannot write into $PWD/file: Not a directory; OUT= (--out) names another folder",
     LS_ERR_INFRA},
    {"lockstep conform --out .",
     "--out $PWD/.: the folder holds files but no run.json; allowed: a new folder, an empty one or "
     "that of an earlier run"},
    {"echo '{}' >dir/run.json && lockstep conform --case gradients.o0.w2.b0.1mb --out dir",
     "--out dir holds an unfinished run: --resume (make: RESUME=dir) continues it, --overwrite "
     "(OVERWRITE=1) deletes it"},
    {"lockstep layers --predict H20", "--predict 'H20': allowed: H200, H100, A100"},
    {"lockstep layers --predict H200 --repeats 3",
     "--predict measures nothing: not with --device-index, --threads, --half-math, --repeats, "
     "--copy-mb, --side, --cudnn-benchmark, --fuse or --all"},
    {"lockstep layers --predict H200 --device cpu", "--predict is of a GPU: not with --device cpu"},
    {"lockstep layers --device gpu", "--device 'gpu': allowed: auto, cpu, cuda"},
    {"lockstep layers --device cpu --fuse",
     "not on a CPU: --device-index, --copy-mb, --side, --cudnn-benchmark, --fuse"},
    {"lockstep layers --device cuda --threads 2", "not on a GPU: --threads, --half-math"},
    {"lockstep layers --device cpu --type tf32", "--type 'tf32': allowed: f16, bf16, f32"},
    {"lockstep layers --device cpu --half-math f32",
     "--half-math 'f32': allowed: auto, native, emulated"},
    {"lockstep layers --device cpu --threads 0",
     "--threads '0': allowed: a whole number from 1 to 4096"},
    {"lockstep --bogus", "unknown command '--bogus'; `lockstep --help` lists all"},
    {"lockstep confrm", "unknown command 'confrm'; did you mean conform?"},
    {"lockstep conform --cases x", "unknown option '--cases'; did you mean --case?"},
    {"lockstep conform --bogus", "unknown option '--bogus'; `lockstep conform --help` lists all"},
    {"lockstep conform x",
     "unexpected argument 'x'; lockstep conform takes options only: use --case ID"},
    {"lockstep conform --list=1", "--list takes no value: '--list=1'"},
    {"lockstep conform --seed", "--seed needs a value: seed of every job (7)"},
    {"lockstep conform --case --out x",
     "--case needs a value before --out: cases by name or glob; may be repeated"},
    {"lockstep-train --va X", "unknown option '--va'; did you mean --val or --val-resize?"},
    {"lockstep-train --val --save-dir X", "--val needs a value before --save-dir: DIR"},
    {"lockstep-launch --nproc 2 true", "unknown option '--nproc'; did you mean --nproc-per-node?"},
    {"lockstep-collectives --ops --redop=sum", "--ops needs a value before --redop=sum: LIST"},
    {"lockstep conform --budget 10x", "--budget '10x': allowed: a time such as 90s, 10m or 1h"},
    {"lockstep conform --budget 0m", "--budget '0m': allowed: a time such as 90s, 10m or 1h"},
    {"lockstep bench --budget 1d", "BUDGET=1d: allowed: a time such as 90s, 10m or 1h"},
    {"lockstep conform --list-file dir", "no list of cases: dir is a folder, not a regular file"},
    {"lockstep conform --list-file fifo", "no list of cases: fifo is a FIFO, not a regular file"},
    {"lockstep conform --list-file none",
     "no list of cases: cannot open none: No such file or directory"},
    {"lockstep conform --case gradient.o2.w2.b0.1mb",
     "no case matches 'gradient.o2.w2.b0.1mb'; did you mean gradients.o2.w2.b0.1mb?"},
    {"lockstep conform --case xyz", "no case matches 'xyz'; `lockstep conform --list` lists all"},
    {"lockstep conform --claim ddp-o9", "unknown claim 'ddp-o9'; did you mean ddp-o3?"},
    {"lockstep conform --claim x",
     "unknown claim 'x'; allowed: all, and the files of suite/claims without .txt"},
    {"lockstep conform --gate speed", "--gate 'speed': allowed: manners, none"},
    {"lockstep conform --resume", "--resume needs --out DIR, the folder of the run to resume"},
    {"lockstep conform --resume --out dir",
     "--resume: --out dir is not a run's folder: it holds no run.json"},
    {"echo '{\"options\":{\"subject\":\"python x.py\",\"seed\":\"7\"}}' >dir/run.json && "
     "lockstep conform --case gradients.o0.w2.b0.1mb --resume --out dir",
     "--resume: the run in dir has --subject 'python x.py', and lockstep-train is another one"},
    {"echo '{\"options\":{\"subject\":\"lockstep-train\",\"seed\":\"7\"}}' >dir/run.json && "
     "lockstep conform --case gradients.o0.w2.b0.1mb --resume --out dir --seed 8",
     "--resume: the run in dir has --seed '7', and 8 is another one"},
    {"lockstep conform --case gradients.o0.w2.b0.1mb --out o --subject /none/x",
     "cannot run '/none/x': no such program", LS_ERR_INFRA},
    {"echo -n 'resnet20.o0 none 0 1 PASS 1 1 1 1 1 1 1 1 1 1 1 1' >dir/steps.tsv && "
     "lockstep bounds --out dir --only resnet20.o0 --seeds 1",
     "$PWD/dir/steps.tsv:1 ends in the middle of a row"},
    {"touch dir/bounds.tsv && lockstep bounds --out dir --only resnet20.o0 --seeds 1",
     "$PWD/dir holds bounds.tsv without steps.tsv, of which it was made: put that there "
     "(results/bounds/steps.tar.xz has the committed one) or name another folder by --out"},
    {"lockstep ab --a ''", "--b is missing; \"\" stands for the stack as it is"},
    {"lockstep ab --a RANK=1 --b ''", "--a 'RANK=1': each rank has its own; allowed: others"},
    {"lockstep ab --a X=1 --b ./dir", "--b: cannot run './dir': it is a folder"},
    {"lockstep ab --a '' --b '' --subject ''", "--subject: cannot run '': no such program"},
    {"lockstep ab --a '' --b '' --pairs 5", "--pairs '5': allowed: a whole number from 6 to 64"},
    {"lockstep ab --a '' --b '' x",
     "unexpected argument 'x'; behind -- are options of both trainers"},
    {"lockstep versus --python ./dir", "--python './dir': it is a folder"},
    {"lockstep versus --only resnet50.224.b16",
     "--only 'resnet50.224.b16': did you mean resnet50.224.b16.t2, resnet50.224.b16.t2.bf16.o1 or "
     "resnet50.224.b16.t2.bf16.o2?"},
    {"lockstep conform --case 'gradient.o1.w2.*'",
     "no case matches 'gradient.o1.w2.*'; did you mean gradients.o1.w2.b0.02mb?"},
    {"lockstep conform --case '*.lockstp.*'",
     "no case matches '*.lockstp.*'; did you mean ddp.lockstep.o0.w2?"},
    {"lockstep conform --case 'lamb.*zzzzzzzzz'",
     "no case matches 'lamb.*zzzzzzzzz'; `lockstep conform --list` lists all"},
    {"lockstep conform --list-file smok.txt",
     "no list of cases: cannot open smok.txt: No such file or directory; did you mean "
     "suite/lists/smoke.txt?"},
    {"lockstep detect --fault 'lam_no*t'",
     "no planted fault matches 'lam_no*t'; did you mean lamb_no_trust_ratio?"},
    {"lockstep detect --fault 'foreign.scrip_zero*'",
     "no planted fault matches 'foreign.scrip_zero*'; did you mean "
     "foreign.script_zero_grad_forgotten?"},
    {"lockstep bench NGPU=1", "unknown variable 'NGPU=1'; did you mean NGPUS?"},
    {"lockstep bench x",
     "unexpected argument 'x'; allowed: NAME=value, --budget, --dry-run, --help"},
    {"lockstep bench --resume", "unexpected argument '--resume'; did you mean RESUME?"},
    {"lockstep bench NGPUS=4 SIM_NODES=3 DEVICE=cpu", "SIM_NODES=3 does not divide NGPUS=4"},
    {"mkdir job && mv fifo job/rank0.jsonl && lockstep judge job",
     "$PWD/job: rank0.jsonl has no start event: rank0.jsonl is a FIFO, not a regular file"},
    {"lockstep bench HOSTFILE=dir", "HOSTFILE: dir is a folder, not a regular file"},
    {"lockstep bench HOSTFILE=fifo", "HOSTFILE: fifo is a FIFO, not a regular file"},
    {"lockstep bench NODES=a,a", "NODES=a,a: host a is listed twice (slots=N gives it more ranks)"},
    {"lockstep bench RESUME=dir", "RESUME=dir is not a run's folder: it holds no run.json"},
    {"lockstep report", "an argument is missing; usage: lockstep report DIR"},
    {"lockstep report a b", "unexpected argument 'b'; usage: lockstep report DIR"},
    {"lockstep diff a", "an argument is missing; usage: lockstep diff A B"},
    {"lockstep diff --gate -5% a b",
     "--gate '-5%': allowed: from 0 to less than 100, in %, such as 5%"},
    {"lockstep diff --gate 5x a b",
     "--gate '5x': allowed: from 0 to less than 100, in %, such as 5%"},
    {"lockstep data mak x", "unexpected argument 'mak'; allowed: make DIR, time DIR"},
    {"lockstep data make", "an argument is missing; usage: lockstep data make DIR"},
    {"lockstep data time", "an argument is missing; usage: lockstep data time DIR"},
    {"lockstep data time /dev/null --batches 0",
     "--batches '0': allowed: a whole number from 1 to 1000000000"},
    {"lockstep judge", "an argument is missing; usage: lockstep judge DIR..."},
    {"lockstep explain --bogus", "unknown option '--bogus'; --help lists all"},
    {"lockstep-launch --nproc-per-node=x true", "--nproc-per-node 'x': allowed: 1 to 1024"},
    {"lockstep-collectives --absent=3 --comm self",
     "--absent 3: allowed: a rank of this world, which has 1; at least 2 are needed"},
    {"lockstep-collectives --comm x", "--comm 'x': allowed: self|gloo|nccl"},
    {"lockstep-launch --log-dir file -- true", "cannot write into file: Not a directory",
     LS_ERR_INFRA},
};

ROWS_TEST(bad_input_is_one_line, wrongs)
{
    const struct wrong *w = &wrongs[_i];
    char path[128], wanted[600] = "", *said;
    FILE *file = fake_open(folder, "file");
    fprintf(file, "x\n");
    fclose(file);
    file = fake_open(folder, "plain");
    ck_assert_int_eq(fwrite("\2\0\0\0\0\0\0\0{}", 1, 10, file), 10);
    fclose(file);
    ls_text_put(path, sizeof path, "%s/dir", folder);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    ls_text_put(path, sizeof path, "%s/fifo", folder);
    ck_assert_int_eq(mkfifo(path, 0644), 0);
    LS_TEXT(line, 2400, "%s >output", w->command);
    int ended = fake_shell(folder, line, &said);
    const char *message = strstr(said, ": error: ");
    const char *here = strstr(w->message, "$PWD");
    ls_text_put(wanted, sizeof wanted, ": error: %.*s%s%s\n",
                here == NULL ? (int)strlen(w->message) : (int)(here - w->message), w->message,
                here == NULL ? "" : folder, here == NULL ? "" : here + 4);
    int code = w->code == 0 ? LS_ERR_USAGE : w->code;
    ck_assert_msg(ended == code, "%s: code %d: %s", w->command, ended, said);
    ck_assert_msg(message != NULL && strcmp(message, wanted) == 0, "%s says '%s', expected '%s'",
                  w->command, said, wanted);
    ck_assert_msg(strchr(said, '\n') == said + strlen(said) - 1, "%s: more than a line: %s",
                  w->command, said);
    free(said);
}

static const struct help {
    const char *command, *usage, *option; /* how the text begins, an option of this command */
} helps[] = {
    {"lockstep-train", "Usage: lockstep-train [OPTION...] [DIR]\nTrains", "--opt-level="},
    {"lockstep-launch", "Usage: lockstep-launch ", "--nproc-per-node="},
    {"lockstep-collectives", "Usage: lockstep-collectives ", "--absent="},
    {"lockstep", "Usage: lockstep COMMAND ", "explain "},
    {"lockstep bench", "Usage: lockstep bench ", "--dry-run"},
    {"lockstep conform", "Usage: lockstep conform ", "--case "},
    {"lockstep judge", "Usage: lockstep judge DIR...", ""},
    {"lockstep report", "Usage: lockstep report DIR", ""},
    {"lockstep explain", "Usage: lockstep explain [--world N] [OPTION...]\nDescribes", "--world "},
    {"lockstep data", "Usage: lockstep data make DIR", "--images "},
    {"lockstep diff", "Usage: lockstep diff A B", ""},
};

/* Runs the command of a program of this build and returns what it prints; it ends with 0. */
static char *output_of(const char *command)
{
    enum { BYTES = 1 << 16 };
    char program[1024], *text = malloc(BYTES);
    ck_assert_ptr_nonnull(text);
    ls_path_program(program, sizeof program);
    LS_TEXT(line, 2400, "PATH=%s/..:$PATH %s", program, command);
    ck_assert_msg(shell_says(line, text, BYTES) == 0, "%s", command);
    return text;
}

ROWS_TEST(help_is_of_the_command, helps)
{
    LS_TEXT(command, 200, "%s --help", helps[_i].command);
    char *text = output_of(command);
    ck_assert_msg(strncmp(text, helps[_i].usage, strlen(helps[_i].usage)) == 0, "%.200s", text);
    ck_assert_msg(strstr(text, helps[_i].option) != NULL, "no %s: %.200s", helps[_i].option, text);
    free(text);
}

/* Sums in another layout have another order: a resume says so, in the same one nothing. The start
 * event names the layout. */
TEST(another_layout_is_named)
{
    static const char train[] =
        "lockstep-train -a resnet8 --image-size 8 -b 2 --device cpu --opt-level O0";
    LS_TEXT(save, 600, "LS_CPU_LAYOUT=blocked %s --steps 1 --save %s/c 2>&1", train, folder);
    free(output_of(save));
    for (int last = 0; last < 2; last++) {
        LS_TEXT(resume, 900,
                "LS_CPU_LAYOUT=%s LS_RUN_DIR=%s/run%d %s --steps 2 --resume %s/c 2>&1 && "
                "cat %s/run%d/rank0.jsonl",
                last ? "channels_last" : "blocked", folder, last, train, folder, folder, last);
        char *text = output_of(resume);
        ck_assert_msg((strstr(text, "its activations were ") != NULL) == (last == 1), "%s", text);
        ck_assert_msg((strstr(text, "\"layout\":\"channels last\"") != NULL) == (last == 1), "%s",
                      text);
        free(text);
    }
}

/* Both ranks take the ways of weights' gradients that rank 0 has timed; a file keeps them, and one
 * that says another way decides. */
TEST(ways_of_gradients_are_kept)
{
    static const char train[] = "LS_CPU_LAYOUT=channels_last lockstep-launch --nproc-per-node 2 -- "
                                "lockstep-train -a resnet8 --image-size 16 -b 2 --device cpu "
                                "--opt-level O0 --steps 1";
    LS_TEXT(timed, 900,
            "LS_RUN_DIR=%s/a %s --cudnn-benchmark --engines %s/e 2>&1 && cat %s/e && "
            "sed -i 's/: direct/: unfolded/' %s/e",
            folder, train, folder, folder, folder);
    char *text = output_of(timed);
    ck_assert_msg(strstr(text, "\nlayer1.0.conv1: direct\n") != NULL ||
                      strstr(text, "\nlayer1.0.conv1: unfolded\n") != NULL,
                  "%s", text);
    free(text);
    LS_TEXT(kept, 900,
            "LS_RUN_DIR=%s/b %s --engines %s/e 2>&1 && "
            "grep -c 'weights [^,]*(unfolded)' %s/b/rank0.jsonl %s/b/rank1.jsonl",
            folder, train, folder, folder, folder);
    text = output_of(kept);
    ck_assert_msg(strstr(text, "rank0.jsonl:1") != NULL && strstr(text, "rank1.jsonl:1") != NULL,
                  "%s", text);
    free(text);
}

/* Lines fit a terminal. An entry is a name and, in one column, its text, which begins behind the
 * name or, where that is too long, in the next line; no blank line divides it. */
static void check_help(const char *command)
{
    LS_TEXT(help, 200, "%s --help", command);
    char *text = output_of(help), *rest = text, *line;
    bool named = false, blank = false; /* the line before: a name without its text, nothing */
    while ((line = strsep(&rest, "\n")) != NULL) {
        size_t indent = strspn(line, " "), length = strlen(line);
        bool entry = indent == 2 || indent == 6, goes_on = indent == LS_USAGE_COLUMN;
        bool has_text = goes_on || (length > LS_USAGE_COLUMN && line[LS_USAGE_COLUMN - 1] == ' ' &&
                                    line[LS_USAGE_COLUMN] != ' ');
        ck_assert_msg(length <= LS_USAGE_WIDTH, "%s: too wide: %s", help, line);
        ck_assert_msg(length == 0 || line[length - 1] != ' ', "%s: blanks at the end: '%s'", help,
                      line);
        ck_assert_msg(indent < 2 || entry || goes_on, "%s: text at column %zu: %s", help, indent,
                      line);
        ck_assert_msg(!named || goes_on, "%s: the text is not in its column: %s", help, line);
        ck_assert_msg(!blank || !goes_on, "%s: a blank line before: %s", help, line);
        named = entry && !has_text;
        blank = length == 0;
        const char *gap = strchr(line + indent, ' ');
        ck_assert_msg(!named || gap == NULL || strchr(gap + 1, ' ') == NULL,
                      "%s: a text behind a long name: %s", help, line);
    }
    free(text);
}

/* All programs, and the commands that `lockstep --help` lists; those of `data` by their own. */
TEST(every_help_fits_a_terminal)
{
    static const char *const others[] = {"lockstep",           "lockstep-train",
                                         "lockstep-launch",    "lockstep-collectives",
                                         "lockstep data make", "lockstep data time"};
    char *list = output_of("lockstep --help"), *rest = list, *line;
    int commands = 0;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        check_help(others[i]);
    }
    while ((line = strsep(&rest, "\n")) != NULL) {
        if (strspn(line, " ") == 2) {
            LS_TEXT(command, 100, "lockstep %.*s", (int)strcspn(line + 2, " "), line + 2);
            check_help(command);
            commands++;
        }
    }
    ck_assert_int_ge(commands, 18);
    free(list);
}

/* One version, that of the reports; help and version are printed whatever else is given. */
TEST(every_program_says_its_version)
{
    static const char *const rows[][2] = {
        {"lockstep --version", "lockstep " LS_VERSION "\n"},
        {"lockstep-train --steps=1 --version --lr=x", "lockstep-train (Lockstep) " LS_VERSION "\n"},
        {"lockstep-launch --version", "lockstep-launch (Lockstep) " LS_VERSION "\n"},
        {"lockstep-collectives --version --bogus",
         "lockstep-collectives (Lockstep) " LS_VERSION "\n"},
        {"lockstep-launch --usage",
         "Usage: lockstep-launch [OPTION...] [--] COMMAND [ARGUMENT...]\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *text = output_of(rows[i][0]);
        ck_assert_str_eq(text, rows[i][1]);
        free(text);
    }
    free(output_of("lockstep-train --help --steps=0"));
    free(output_of("lockstep-launch -?"));
}

/* What computes each product, and why half is emulated; nothing of it for another device. */
TEST(explain_names_the_products)
{
    static const struct {
        const char *options;
        const char *lines[4];
    } rows[] = {
        {"--half bf16 --half-math emulated --device cpu -b 100",
         {"\nbf16 emulated, as asked\n", " at 64 images, bf16:\n", "\nconv1: ", " in f32\n"}},
        {"--half bf16 --half-math emulated --device auto -b 1",
         {"\nbf16 emulated, as asked\n", " at 1 image, bf16:\n", "\nfc: ", " in f32\n"}},
        {"--opt-level O0 --device cpu", {" at 32 images, fp32:\n", "\nconv1: "}},
    };
    char program[1024], command[2400], text[16384];
    ls_path_program(program, sizeof program);
    for (size_t i = 0; i <= sizeof rows / sizeof *rows; i++) {
        bool other = i == sizeof rows / sizeof *rows;
        ls_text_put(command, sizeof command,
                    "LS_SYSFS=/none %s/../lockstep explain -a resnet8 --image-size 32 %s", program,
                    other ? "--device cuda" : rows[i].options);
        ck_assert_int_eq(shell_says(command, text, sizeof text), 0);
        ck_assert_int_eq(strstr(text, "Products on this machine") != NULL, !other);
        for (int k = 0; !other && k < 4 && rows[i].lines[k] != NULL; k++) {
            ck_assert_msg(strstr(text, rows[i].lines[k]) != NULL, "no '%s': %s", rows[i].lines[k],
                          text);
        }
        ck_assert_int_eq(strstr(text, " in f32\n") != NULL, i < 2);
    }
}

/* `lockstep jobs` of a folder of three classes: all jobs that read it, and those that judge them.
 */
TEST(bench_takes_the_classes_of_its_data)
{
    char *said;
    int code = fake_shell(folder,
                          "lockstep data make three --images 8 >/dev/null && "
                          "rm -r $(ls -d three/*/ | tail -n +4) && export LS_SYSFS=/none && "
                          "R=\"ARCH=resnet8 BATCH=1 NGPUS=2 PROFILE=smoke DATA=three\" && "
                          "lockstep bench DRYRUN=1 $R | grep -q '; pictures of 3 classes$' && "
                          "lockstep jobs $R | grep -e '--data=[^ ]*/three' -e /batches/ >lines && "
                          "[ $(wc -l <lines) -ge 5 ] && ! grep -v -e '--num-classes=3 ' lines",
                          &said);
    ck_assert_msg(code == 0, "%d: %s", code, said);
    free(said);
}

/* In a network of its own, whose loopback is down, ranks could not meet: a line in a second, before
 * anything runs. */
LOOP_TEST(no_loopback_is_one_line, 3)
{
    static const char *const commands[] = {
        "lockstep conform --case gradients.o0.w2.b0.1mb --case 'small.*' --device cpu",
        "lockstep bench NGPUS=2 PROFILE=smoke DEVICE=cpu",
        "lockstep-launch --nproc-per-node 2 -- lockstep-train -a resnet8 --steps 1 --device cpu",
    };
    static const char line[] =
        ": error: ranks on this machine cannot meet: 127.0.0.1: Network is unreachable; `ip link "
        "set lo up` turns the loopback on\n";
    char *said;
    if (system("unshare -rn true 2>/dev/null") != 0) {
        return; /* this machine allows no name spaces */
    }
    LS_TEXT(command, 400, "unshare -rn timeout 3 %s >output", commands[_i]);
    int code = fake_shell(folder, command, &said);
    const char *message = strstr(said, ": error: ");
    ck_assert_msg(code == LS_ERR_INFRA && message != NULL && strcmp(message, line) == 0,
                  "%s: code %d: %s", commands[_i], code, said);
    free(said);
}

/* Runs `make GOAL` of the tree into a build folder of its own, with a compiler that finds only the
 * headers of the pattern. */
static char *make_output(const char *goal, const char *headers, int *code)
{
    char folder[64], makefile[1024], command[2400], path[128];
    fake_folder(folder, sizeof folder);
    ck_assert(ls_path_find("Makefile", makefile, sizeof makefile));
    FILE *gcc = fake_open(folder, "gcc");
    fprintf(gcc,
            "#!/bin/sh\nfor word; do [ \"$word\" != -c ] || exit 9; done\n"
            "case $(cat) in %s) exit 0 ;; esac\nexit 1\n",
            headers);
    fclose(gcc);
    ls_text_put(path, sizeof path, "%s/gcc", folder);
    ck_assert_int_eq(chmod(path, 0755), 0);
    ls_text_put(command, sizeof command,
                "cd $(dirname %s) && env -u MAKEFLAGS -u MAKELEVEL PATH=%s:$PATH LC_ALL=C make -j4 "
                "BUILD=%s/build %s >%s/output 2>&1 </dev/null",
                makefile, folder, folder, goal, folder);
    int status = system(command);
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    ls_text_put(path, sizeof path, "%s/output", folder);
    char *output = ls_text_read(path);
    ck_assert_ptr_nonnull(output);
    ls_path_remove_tree(folder);
    return output;
}

TEST(make_names_missing_headers)
{
    int code;
    char *output = make_output("", "*string.h*", &code);
    ck_assert_int_eq(code, 2);
    static const char *const lines[] = {
        "lockstep: missing: cjson/cJSON.h (Debian package libcjson-dev)\n",
        "lockstep: missing: jpeglib.h (Debian package libjpeg-dev)\n",
        "lockstep: `make deps` installs what is missing (Debian, Ubuntu)\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const char *line = strstr(output, lines[i]);
        ck_assert_msg(line != NULL && strstr(line + 1, lines[i]) == NULL, "'%s' not once in: %s",
                      lines[i], output);
    }
    ck_assert_msg(strstr(output, "  cc ") == NULL, "something was compiled: %s", output);
    free(output);
    output = make_output("units", "*cJSON*|*jpeg*|*string.h*", &code);
    ck_assert_int_eq(code, 2);
    ck_assert_ptr_nonnull(strstr(output, "lockstep: missing: check.h (Debian package check)\n"));
    ck_assert_ptr_null(strstr(output, "libcjson-dev"));
    free(output);
}

/* A subject's words cannot forge a line: what hostile trainers write into events, logs and dumps is
 * judged, and every line that is printed or written about them is parsed. */

/* As JSON writes them: lines of ours, escape sequences, markup, bidi and zero-width marks, C1
 * control characters, bytes that are not UTF-8. */
#define WORDS                                                                                \
    "x\\nok 1 - x # PASS\\nCORRECT  yes\\n1 passed, 0 failed\\r\\u001b[2J\\u001b]0;t\\u0007" \
    "|<script>alert(1)</script>`&\\u202e\\u200b\\u009b \377\300\257"
#define START                                                                              \
    "{\"event\":\"start\",\"schema\":1,\"world\":2,\"device\":\"" WORDS "\",\"options\":{" \
    "\"opt-level\":\"" WORDS "\",\"" WORDS "\":1},\"cuda_graph\":\"" WORDS                 \
    "\",\"transport\":\"" WORDS "\"}\n"

static const struct subject {
    const char *name, *script, *said; /* said: in the case's line */
    bool starts;
} subjects[] = {
    {"refuses", "cat ${0%subject.sh}events >$LS_RUN_DIR/rank$RANK.jsonl; exit 4",
     "the subject refuses x\\x0aok 1 - x # PASS\\x0aCORRECT  yes", true},
    {"fails", "printf 'x\\033[2J\\rCORRECT  yes\\033]0;t\\007\\302\\233\\n' >&2; exit 2",
     "x\\x1b[2J\\x0dCORRECT  yes\\x1b]0;t\\x07\\xc2\\x9b", false},
    {"long", "head -c 1000000 /dev/zero | tr '\\000' y >&2; exit 2", "yyyyyyyy", false},
    {"fails late",
     "head -n 1 ${0%subject.sh}events >$LS_RUN_DIR/rank$RANK.jsonl; "
     "printf 'x\\033[2J\\rCORRECT  yes\\033]0;t\\007\\302\\233\\n' >&2; exit 2",
     "x\\x1b[2J\\x0dCORRECT  yes\\x1b]0;t\\x07\\xc2\\x9b", true},
    {"long and late",
     "head -n 1 ${0%subject.sh}events >$LS_RUN_DIR/rank$RANK.jsonl; "
     "head -c 1000000 /dev/zero | tr '\\000' y >&2; exit 2",
     "yyyyyyyy", true},
    {"breaks", "printf '{\\033[2J<script>\\r\\n' >$LS_RUN_DIR/rank$RANK.jsonl", "\\x1b[2J<script>",
     true},
};

static bool is_hostile(const char *line)
{
    static const char *const parts[] = {"\xe2\x80\xae", "\xe2\x80\x8b", "\xc2\x9b", "\377", "\300"};
    static const char *const starts[] = {"ok 1", "CORRECT  yes", "1 passed"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strstr(line, parts[i]) != NULL) {
            return true;
        }
    }
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        if (strncmp(line, starts[i], strlen(starts[i])) == 0) {
            return true;
        }
    }
    for (; *line != '\0'; line++) {
        if ((unsigned char)*line < 0x20 && *line != '\t') {
            return true;
        }
    }
    return false;
}

/* No line of the file is forged, steers a terminal or is of a subject's length; outside of code no
 * markup of a subject is left. */
static void check_file(const char *path)
{
    enum { LONGEST = 20000 };
    char *text = ls_text_read(path), *rest = text, *line;
    ck_assert_msg(text != NULL, "cannot read %s", path);
    const char *ending = strrchr(path, '.');
    bool markup = strcmp(ending, ".html") == 0 || strcmp(ending, ".xml") == 0;
    bool markdown = strcmp(ending, ".md") == 0, code = false;
    while ((line = strsep(&rest, "\n")) != NULL) {
        code = code != (strncmp(line, "```", 3) == 0);
        ck_assert_msg(!is_hostile(line), "%s has the line '%s'", path, line);
        ck_assert_msg(strlen(line) < LONGEST || strcmp(ending, ".html") == 0,
                      "%s has a line of %zu bytes", path, strlen(line));
        bool plain = markup || (markdown && !code);
        ck_assert_msg(!plain || strstr(line, "<script>alert") == NULL, "%s has the line '%s'", path,
                      line);
        ck_assert_msg(!markdown || code || strstr(line, "PASS\\x0a") == NULL || line[0] != '|' ||
                          strstr(line, "\\|&lt;script") != NULL,
                      "%s has the line '%s'", path, line);
    }
    free(text);
}

/* Runs lockstep with the arguments, its output in FOLDER/output.txt; returns its exit code. */
static int run_lockstep(const char *folder, char *const *arguments)
{
    char program[1024], *argv[16] = {program};
    ls_path_program(program, sizeof program);
    ls_text_add(program, sizeof program, "%s", "/../lockstep");
    for (int i = 0; arguments[i] != NULL; i++) {
        argv[i + 1] = arguments[i];
    }
    LS_TEXT(output, 100, "%s/output.txt", folder);
    ls_proc_spec spec = {.argv = argv, .environment = environ, .log_path = output};
    ls_proc process;
    ck_assert_int_eq(ls_proc_start(&spec, &process), LS_OK);
    ck_assert(ls_proc_wait_all(&process, 1, ls_clock_after(50)));
    check_file(output);
    return process.code;
}

ROWS_TEST(no_line_is_forged, subjects)
{
    const struct subject *s = &subjects[_i];
    FILE *script = fake_open(folder, "subject.sh");
    fputs(s->script, script);
    fclose(script);
    FILE *events = fake_open(folder, "events");
    fputs(START "{\"event\":\"unsupported\",\"option\":\"" WORDS "\",\"why\":\"" WORDS, events);
    for (int i = 0; i < 1000000; i++) {
        fputc('y', events);
    }
    fputs("\"}\n", events);
    fclose(events);
    LS_TEXT(command, 100, "sh %s/subject.sh", folder);
    LS_TEXT(output, 100, "%s/output.txt", folder);
    LS_TEXT(run, 100, "%s/run", folder);
    char *arguments[] = {"conform", "--case", "gradients.o0.w2.b0.1mb", "--out", run, "--subject",
                         command,   NULL};
    ck_assert_int_eq(run_lockstep(folder, arguments), s->starts ? 1 : 3);
    char *said = ls_text_read(output);
    ck_assert_msg(strstr(said, s->said) != NULL, "'%s' is not in: %s", s->said, said);
    ck_assert_msg(strstr(said, "\nnot ok 1 - gradients.o0.w2.b0.1mb # ") != NULL &&
                      strstr(said, s->starts ? "\nCORRECT  no" : "\nCORRECT  not shown") != NULL,
                  "no verdict: %s", said);
    free(said);
    static const char *const written[] = {"*.md", "*.html", "*.xml", "*.json*", "tables/*.tsv"};
    glob_t files = {0};
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        LS_TEXT(pattern, 200, "%s/%s", run, written[i]);
        (void)glob(pattern, i == 0 ? 0 : GLOB_APPEND, NULL, &files);
    }
    ck_assert_int_ge((int)files.gl_pathc, 6);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        check_file(files.gl_pathv[i]);
    }
    globfree(&files);
}

/* Folders of jobs that another launcher ran. */
TEST(no_folder_forges_a_line)
{
    LS_TEXT(job, 150, "%s/a\nok 1 - x # PASS\nCORRECT  yes\033[2J", folder);
    ck_assert_int_eq(mkdir(job, 0755), 0);
    fake_step steps[] = {{1, 1, 1, 1, 0, 1, 1, 1, 1}};
    fake_rank(job, 0, steps, 1);
    fake_rank(job, 1, steps, 1);
    char *arguments[] = {"judge", job, NULL};
    ck_assert_int_eq(run_lockstep(folder, arguments), 1);
}

TEST_MAIN("messages", .timeout_s = 60, .before = fake_begin, .after = fake_end)
