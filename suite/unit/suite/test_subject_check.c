/* `lockstep subject-check` on lockstep-train, which lacks nothing, and on scripts in front of it
 * that take one thing away. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

/* $B is this build, $out the rank's events. `before` is run in front of the trainer, `after` once
 * it has ended. */
static const struct lack {
    const char *claim, *before, *after;
    int code;
    const char *says[3]; /* parts of the output */
} lacks[] = {
    {"torch-ddp-bf16", ":", ":", 0, {"whole   yes", "\nnext: ", " --claim torch-ddp-bf16"}},
    {"torch-ddp-bf16",
     "for w; do case $w in --half=bf16) echo '{\"event\":\"unsupported\",\"schema\":1,\"option\":"
     "\"--half\",\"why\":\"not here\"}' >$out; exit 4;; esac; done",
     ":",
     1,
     {"--opt-level O1 bf16 static refused: not here", "whole   no", "such as gradients.bf16"}},
    /* what an option parser of another trainer does with an option that it does not know */
    {"torch-ddp-bf16",
     "for w; do case $w in --bucket-cap-mb=*) echo \"unrecognized: $w\"; exit 2;; esac; done",
     ":",
     1,
     {"--bucket-cap-mb fails: rank=0 exit code 2", "unrecognized:", "whole   no"}},
    /* the option is taken and another value is used */
    {"torch-ddp-bf16",
     "set -- \"$@\" --num-classes=12",
     ":",
     1,
     {"--num-classes not followed: asked for 10, the start event says 12", "whole   no", ""}},
    {"torch-ddp-bf16",
     ":",
     "rm -rf $LS_RUN_DIR/dump",
     1,
     {"no dump/step<k>.rank<r>.safetensors is written", "such as gradients.bf16.", "whole   no"}},
    {"torch-ddp-fp32",
     ":",
     "sed -i 's/,\"digest\":{[^}]*}//' $out",
     1,
     {"step events have no digest.param, digest.grad,", "such as ", "whole   no"}},
    /* the machine's doing: neither the subject's lack nor a yes */
    {"torch-ddp-bf16",
     "[ \"$WORLD_SIZE\" != 3 ] || exit 3",
     ":",
     3,
     {"not judged: gradients.bf16.", "exit code 3", "whole   not shown"}},
    {"torch-ddp-fp32", "exit 2", ":", 3, {"the subject does not start", "", ""}},
};
enum { LACKS = sizeof lacks / sizeof *lacks };

/* Runs the line in that folder, where $B is this build; its output is in `log`. */
static int run(const char *folder, const char *line, char **log)
{
    char program[1024], command[2600], path[200];
    ls_path_program(program, sizeof program);
    char *slash = strrchr(program, '/'); /* this program lies in build/unit */
    ck_assert_ptr_nonnull(slash);
    *slash = '\0';
    ls_text_put(command, sizeof command, "cd '%s' && B='%s' && export B && { %s\n} >log 2>&1",
                folder, program, line);
    int status = system(command);
    ls_text_put(path, sizeof path, "%s/log", folder);
    *log = ls_text_read(path);
    ck_assert_ptr_nonnull(*log);
    return status < 0 || status % 256 != 0 ? -1 : status / 256;
}

static void fits(const char *log)
{
    for (const char *line = log; *line != '\0'; line += strcspn(line, "\n") + 1) {
        bool own = strncmp(line, "next", 4) != 0 && strncmp(line, "     --subject", 14) != 0;
        ck_assert_msg(!own || strcspn(line, "\n") <= 80, "'%.200s'", line);
        if (line[strcspn(line, "\n")] == '\0') {
            break;
        }
    }
}

LOOP_TEST(a_lack_is_named_with_what_it_costs, LACKS)
{
    const struct lack *l = &lacks[_i];
    char folder[64], line[600], *log = NULL;
    fake_folder(folder, sizeof folder);
    FILE *script = fake_open(folder, "trainer.sh");
    fprintf(script,
            "out=\"$LS_RUN_DIR/rank${RANK:-0}.jsonl\"\n%s\n\"$B/lockstep-train\" \"$@\"\ncode=$?\n"
            "%s\nexit $code\n",
            l->before, l->after);
    fclose(script);
    ls_text_put(line, sizeof line,
                "\"$B/lockstep\" subject-check --claim %s --device cpu -- sh %s/trainer.sh",
                l->claim, folder);
    int code = run(folder, line, &log);
    ck_assert_msg(code == l->code, "code %d: %s", code, log);
    for (int i = 0; i < 3; i++) {
        ck_assert_msg(strstr(log, l->says[i]) != NULL, "'%s' is not in: %s", l->says[i], log);
    }
    if (code <= 1) {
        fits(log);
    }
    free(log);
    ls_path_remove_tree(folder);
}

TEST(usage_errors_and_missing_programs_differ)
{
    static const struct {
        const char *arguments, *says;
        int code;
    } bad[] = {{"", "an argument is missing", 2},
               {"--claim ddp-fp32 --", "an argument is missing", 2},
               {"--claim none -- sh", "unknown claim 'none'", 2},
               {"-- sh -c 'exit 0'", "words without blanks", 2},
               {"--claim torch-ddp-bf16 --device cpu --out . -- sh", "holds jobs already", 2},
               {"--claim torch-ddp-bf16 -- /nonexistent/trainer", "cannot run", 3}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char folder[64], line[300], *log = NULL;
        fake_folder(folder, sizeof folder);
        ls_text_put(line, sizeof line, "mkdir jobs; \"$B/lockstep\" subject-check %s",
                    bad[i].arguments);
        int code = run(folder, line, &log);
        ck_assert_msg(code == bad[i].code, "%s: code %d: %s", bad[i].arguments, code, log);
        ck_assert_msg(strstr(log, bad[i].says) != NULL, "%s: %s", bad[i].arguments, log);
        free(log);
        ls_path_remove_tree(folder);
    }
}

TEST_MAIN("subject_check", .timeout_s = 280)
