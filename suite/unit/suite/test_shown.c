/* Commands that measure say of how much, and do not end well where that is nothing. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "reference/files/safetensors.h"
#include "suite/commands/bounds_internal.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

/* An interpreter that has PyTorch, as it says, and trains with steps of that "ms". */
static int run_versus(const char *environment, const char *only, const char *ms, char *said,
                      size_t bytes)
{
    char folder[64], program[1024], command[2400], path[128];
    fake_folder(folder, sizeof folder);
    FILE *python = fake_open(folder, "python");
    fprintf(python,
            "#!/bin/sh\n[ \"$1\" != -c ] || exit 0\n"
            "for word; do case $word in --steps=*) steps=${word#*=} ;; esac; done\n"
            "{ echo '{\"event\":\"start\",\"schema\":1}'\n"
            "for step in $(seq \"$steps\"); do\n"
            "    echo '{\"event\":\"step\",\"step\":'$step',\"ms\":{%s}}'\n"
            "done; } >\"$LS_RUN_DIR/rank$RANK.jsonl\"\n",
            ms);
    fclose(python);
    ls_text_put(path, sizeof path, "%s/python", folder);
    ck_assert_int_eq(chmod(path, 0755), 0);
    ls_path_program(program, sizeof program);
    ls_text_put(command, sizeof command,
                "cd %s && %s %s/../lockstep versus --pairs 1 --python ./python --only %s --out out "
                "2>&1; echo code=$?",
                folder, environment, program, only);
    FILE *from = popen(command, "r");
    ck_assert_ptr_nonnull(from);
    said[fread(said, 1, bytes - 1, from)] = '\0';
    pclose(from);
    ls_path_remove_tree(folder);
    const char *code = strstr(said, "code=");
    ck_assert_ptr_nonnull(code);
    return atoi(code + 5);
}

TEST(a_peer_without_times_is_no_comparison)
{
    char said[4000];
    int code = run_versus("", "resnet18.32.b32.t2", "", said, sizeof said);
    ck_assert_msg(code == LS_ERR_CHECK && strstr(said, "a timed step has no \"ms\"") != NULL, "%s",
                  said);
    ck_assert_msg(strstr(said, "0 settings compared") != NULL, "%s", said);
    code = run_versus("", "resnet18.32.b32.t2", "\"total\":9.0", said, sizeof said);
    ck_assert_msg(code == 0 && strstr(said, "1 settings compared, 0 left out") != NULL, "%s", said);
}

TEST(settings_that_are_all_left_out_show_nothing)
{
    char said[4000];
    int code =
        run_versus("ONEDNN_MAX_CPU_ISA=AVX2", "resnet18.64.b32.t2.bf16.o2", "", said, sizeof said);
    ck_assert_msg(code == LS_ERR_INFRA && strstr(said, "0 settings compared, 1 left out") != NULL,
                  "%s", said);
}

/* A fault whose tensor the dump lacks would be a clean step that "passes with a fault". */
TEST(a_fault_that_changes_nothing_is_an_error)
{
    char folder[64], from[128], to[128];
    fake_folder(folder, sizeof folder);
    ls_text_put(from, sizeof from, "%s/from.safetensors", folder);
    ls_text_put(to, sizeof to, "%s/to.safetensors", folder);
    ls_safetensors_writer *writer = NULL;
    const float value[8] = {1};
    const ls_shape shape = {1, {8}};
    ck_assert_int_eq(ls_safetensors_create(from, &writer), LS_OK);
    ls_safetensors_add(writer, "grad/fc.bias", LS_F32, &shape, value);
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
    const char *path = from, *copy = to;
    for (int p = 0; p < ls_bounds_plant_count; p++) {
        const ls_bounds_plant *plant = &ls_bounds_plants[p];
        bool there = plant->tensor == NULL || strcmp(plant->tensor, "grad/fc.bias") == 0;
        ls_status status = ls_bounds_plant_write(plant, 1, &path, &copy);
        ls_status absent =
            strcmp(plant->name, "tensor-not-reduced") == 0 ? LS_ERR_UNSUPPORTED : LS_ERR_CHECK;
        ck_assert_msg(status == (there ? LS_OK : absent), "%s: %d", plant->name, (int)status);
    }
    ls_path_remove_tree(folder);
}

/* Those of the batches before the clock starts, too: every picture that was taken is counted. */
TEST(bad_pictures_are_counted_among_all)
{
    char folder[64], program[1024], command[2400], said[2000];
    fake_folder(folder, sizeof folder);
    ls_path_program(program, sizeof program);
    ls_text_put(command, sizeof command,
                "cd %s && PATH=%s/..:$PATH && lockstep data make a --images 1 && "
                "for one in $(ls a/*/*.jpg | head -n 9); do echo x >$one; done && "
                "lockstep data time a --batches 1 --batch-size 10 --workers 0 --skip 2>messages",
                folder, program);
    FILE *from = popen(command, "r");
    ck_assert_ptr_nonnull(from);
    said[fread(said, 1, sizeof said - 1, from)] = '\0';
    ck_assert_int_eq(pclose(from), 0);
    ck_assert_msg(strstr(said, "\n27 of 30 pictures could not be read\n") != NULL, "%s", said);
    ls_path_remove_tree(folder);
}

TEST_MAIN("shown", .timeout_s = 280)
