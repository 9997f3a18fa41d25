/* Lists, claims, waivers, shares, variables, words that are nearly right. */
#include "harness/machine/machine.h"
#include "suite/run/headline.h"
#include "suite/run/run.h"
#include "suite/run/select.h"
#include "suite/commands/bench_internal.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

/* Each job of the cases once, and the seconds of all on 2 cores. */
static double list_jobs(const ls_case_list *cases, ls_matrix *jobs)
{
    double seconds = 0.2 * cases->count; /* of judging */
    *jobs = (ls_matrix){.count = 0};
    for (int c = 0; c < cases->count; c++) {
        for (int j = 0; j < cases->row[c].job_count; j++) {
            ls_matrix_add(jobs, &cases->row[c].job[j]);
        }
    }
    for (int i = 0; i < jobs->count; i++) {
        seconds += ls_matrix_estimate_s(&jobs->spec[i], 2);
    }
    return seconds;
}

TEST(every_list_names_cases_that_exist)
{
    static const char *const files[] = {"suite/lists/smoke.txt", "suite/lists/quick.txt",
                                        "suite/lists/mustpass.txt"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[1024];
        ck_assert(ls_path_find(files[i], path, sizeof path));
        ls_select_list wanted = {0, 0, NULL};
        ck_assert_int_eq(ls_select_load(path, &wanted), LS_OK);
        ls_case_list list = fake_cases();
        ck_assert_int_eq(ls_select_keep(&list, &wanted, 0, 1), LS_OK);
        ck_assert_int_ge(list.count, wanted.count);
        ls_matrix jobs;
        (void)list_jobs(&list, &jobs);
        ck_assert_int_le(jobs.count, 39); /* design: the must-pass list has at most 39 jobs */
        ls_matrix_free(&jobs);
        ls_rows_free(&list);
        ls_select_free(&wanted);
    }
}

static int lines_of(const char *arguments)
{
    char program[1024], command[1400], line[200];
    ls_path_program(program, sizeof program);
    ls_text_put(command, sizeof command, "%s/../lockstep conform --list %s", program, arguments);
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    int lines = 0;
    while (fgets(line, sizeof line, pipe) != NULL) {
        lines += strchr(line, ' ') == NULL; /* a line of words is about all */
    }
    ck_assert_int_eq(pclose(pipe), 0);
    return lines;
}

/* With and without another trainer a claim selects its cases, which shares divide; cases that are
 * named are run whether or not they belong to it. */
TEST(a_claim_selects_its_cases)
{
    ls_select_list claim = {0, 0, NULL};
    ck_assert_int_eq(ls_select_claim("ddp-o2", &claim), LS_OK);
    ls_case_list list = fake_cases();
    ls_select_matching(&list, &claim);
    ck_assert_int_eq(lines_of("--claim ddp-o2"), list.count);
    int shared = lines_of("--claim ddp-o2 --shard 1/2");
    ck_assert_int_eq(shared + lines_of("--claim ddp-o2 --shard 2/2"), list.count);
    ck_assert_int_gt(shared, list.count / 4);
    ls_rows_keep_protocol(&list);
    ck_assert_int_eq(lines_of("--claim ddp-o2 --subject false"), list.count);
    ck_assert_int_eq(lines_of("--claim ddp-o2 --case gradients.o0.w2.b0.1mb"), 1);
    ls_rows_free(&list);
    ls_select_free(&claim);
}

TEST(every_case_is_in_some_claim)
{
    ls_select_list claim = {0, 0, NULL};
    ck_assert_int_eq(ls_select_claim("all", &claim), LS_OK);
    ls_case_list list = fake_cases();
    for (int c = 0; c < list.count; c++) {
        ck_assert_msg(ls_select_find(&claim, list.row[c].id) != NULL, "%s is in no claim",
                      list.row[c].id);
    }
    ls_rows_free(&list);
    ls_select_free(&claim);
    ck_assert_int_eq(ls_select_claim("ddp-o5", &claim), LS_ERR_USAGE);
    ck_assert_int_eq(ls_select_claim("ddp-o2", &claim), LS_OK);
    ck_assert_ptr_nonnull(ls_select_find(&claim, "gradients.o2.w4.b0.1mb"));
    ck_assert_ptr_null(ls_select_find(&claim, "gradients.o1.w4.b0.1mb"));
    ck_assert_ptr_null(ls_select_find(&claim, "performance.timed.o2.w4.b25mb"));
    ls_select_free(&claim);
}

TEST(manners_are_requirements_of_refusals)
{
    ls_select_list manners = {0};
    ck_assert_int_eq(ls_select_manners(&manners), LS_OK);
    ck_assert_ptr_nonnull(ls_select_find(&manners, "Q8"));
    ck_assert_ptr_null(ls_select_find(&manners, "G1"));
    ls_run run = {.cases = fake_cases(), .manners = manners};
    static const struct {
        const char *id;
        bool manners;
    } row[] = {{"subject.usage.unknown", true},
               {"subject.usage.lr-word", true},
               {"opt_levels.override.o2.scale-nan", true},
               {"options.pair.two-types", true},
               {"opt_levels.override.o2.scale-one", false},
               {"options.pair.global-batch", false},
               {"optim.refused.resume-sgd", false},
               {"faults.resume.half", false}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ck_assert_msg(ls_headline_is_manners(&run, fake_case(&run.cases, row[i].id)) ==
                          row[i].manners,
                      "%s", row[i].id);
    }
    ls_rows_free(&run.cases);
    ls_select_free(&manners);
}

/* Index of the only share that holds the case; fails when none or two do. */
static int share_of(ls_case_list *share, int shares, const char *id)
{
    int found = -1;
    for (int s = 0; s < shares; s++) {
        if (fake_case(&share[s], id) != NULL) {
            ck_assert_int_eq(found, -1);
            found = s;
        }
    }
    ck_assert_int_ge(found, 0);
    return found;
}

TEST(shares_are_whole_disjoint_and_even)
{
    enum { SHARES = 3 };
    ls_select_list everything = {0, 0, NULL};
    ls_case_list whole = fake_cases(), share[SHARES];
    int total = 0;
    double seconds = 0, most = 0;
    ls_matrix owner = {.count = 0};
    int *job_share = calloc((size_t)whole.count * LS_CASE_JOBS_MAX + 1, sizeof *job_share);
    for (int s = 0; s < SHARES; s++) {
        share[s] = fake_cases();
        ck_assert_int_eq(ls_select_keep(&share[s], &everything, s, SHARES), LS_OK);
        total += share[s].count;
        ls_matrix jobs;
        double mine = list_jobs(&share[s], &jobs);
        ls_matrix_free(&jobs);
        seconds += mine;
        most = mine > most ? mine : most;
        for (int c = 0; c < share[s].count; c++) { /* no job in two shares */
            for (int j = 0; j < share[s].row[c].job_count; j++) {
                int before = owner.count, index = ls_matrix_add(&owner, &share[s].row[c].job[j]);
                job_share[index] = owner.count > before ? s : job_share[index];
                ck_assert_int_eq(job_share[index], s);
            }
        }
    }
    ck_assert_int_eq(total, whole.count);
    for (int c = 0; c < whole.count; c += 7) {
        (void)share_of(share, SHARES, whole.row[c].id);
    }
    /* the heaviest first, each to the emptiest: no share is a tenth above the mean */
    ck_assert_double_le(most, 1.1 * seconds / SHARES);
    for (int s = 0; s < SHARES; s++) {
        ls_rows_free(&share[s]);
    }
    free(job_share);
    ls_matrix_free(&owner);
    ls_rows_free(&whole);
}

TEST(lists_keep_their_budget)
{
    static const char *const file[] = {"suite/lists/mustpass.txt", "suite/lists/smoke.txt"};
    for (int f = 0; f < 2; f++) {
        char path[1024];
        ls_budget budget = {0, 0};
        ls_select_list wanted = {0, 0, NULL};
        ls_case_list list = fake_cases();
        ck_assert(ls_path_find(file[f], path, sizeof path));
        ck_assert_int_eq(ls_budget_read(path, &budget), LS_OK);
        ck_assert_double_gt(budget.seconds, 0);
        ck_assert_int_eq(ls_select_load(path, &wanted), LS_OK);
        ck_assert_int_eq(ls_select_keep(&list, &wanted, 0, 1), LS_OK);
        ls_matrix jobs;
        ck_assert_double_le(list_jobs(&list, &jobs), budget.seconds);
        ck_assert(budget.jobs == 0 || jobs.count <= budget.jobs);
        ls_matrix_free(&jobs);
        ls_rows_free(&list);
        ls_select_free(&wanted);
    }
}

/* Within half of the time of all: no requirement twice while another that fits has none, and each
 * job counted once. */
TEST(a_budget_takes_requirements_first)
{
    ls_run run = {.cases = fake_cases(), .options = cJSON_CreateObject()};
    run.site = (ls_matrix_site){.cores = 2, .start_s = 1};
    ls_select_add(&run.claim, "*", "");
    int whole = run.cases.count, once = 0, requirements = 0;
    ls_matrix every = {.count = 0}, taken = {.count = 0};
    double seconds = 0;
    for (int c = 0; c < whole; c++) {
        for (int j = 0; j < run.cases.row[c].job_count; j++) {
            ls_matrix_add(&every, &run.cases.row[c].job[j]);
        }
    }
    for (int i = 0; i < every.count; i++) {
        run.budget_s += ls_matrix_estimate_at(&every.spec[i], &run.site) / 2;
    }
    ls_budget_choose(&run, "# ");
    ck_assert_int_gt(run.cases.count, whole / 4);
    ck_assert_int_lt(run.cases.count, whole);
    for (int c = 0; c < run.cases.count; c++) {
        bool again = false;
        for (int k = 0; k < c && !again; k++) {
            again = strcmp(run.cases.row[k].requirement, run.cases.row[c].requirement) == 0;
        }
        requirements += !again;
        once += !again && c == once;
        seconds += ls_budget_judging_s(&run.cases.row[c]);
        for (int j = 0; j < run.cases.row[c].job_count; j++) {
            ls_matrix_add(&taken, &run.cases.row[c].job[j]);
        }
    }
    ck_assert_int_gt(requirements, 100);
    ck_assert_int_eq(once, requirements); /* the first cases are one of each */
    for (int i = 0; i < taken.count; i++) {
        seconds += ls_matrix_estimate_at(&taken.spec[i], &run.site);
    }
    ck_assert_double_le(seconds, run.budget_s);
    ck_assert_double_gt(seconds, 0.95 * run.budget_s);
    const cJSON *note = cJSON_GetObjectItemCaseSensitive(run.options, "budget");
    ck_assert_int_eq(ls_json_int(note, "left_out", 0), whole - run.cases.count);
    ls_matrix_free(&every);
    ls_matrix_free(&taken);
    ls_rows_free(&run.cases);
    ls_select_free(&run.claim);
    cJSON_Delete(run.options);
}

TEST(a_name_that_fits_no_case_is_refused)
{
    ls_select_list wanted = {0, 0, NULL};
    ls_select_add(&wanted, "gradients.o2.w2.b0.1mb", "");
    ls_select_add(&wanted, "gradientz.*", "");
    ls_case_list list = fake_cases();
    ck_assert_int_eq(ls_select_keep(&list, &wanted, 0, 1), LS_ERR_USAGE);
    ls_rows_free(&list);
    ls_select_free(&wanted);
}

/* In one release; the line names the new one. */
TEST(a_renamed_family_is_found_by_its_old_name)
{
    ls_select_list wanted = {0, 0, NULL};
    catch_lines();
    ls_select_add(&wanted, "told.end.*", "why");
    ck_assert_str_eq(caught_text(),
                     "test_select: warning: told.end.* is named events.end.* since 0.2.0\n");
    ls_select_add(&wanted, "events.trace.*", "");
    ls_case_list list = fake_cases();
    ck_assert_int_eq(ls_select_keep(&list, &wanted, 0, 1), LS_OK);
    ck_assert_int_eq(list.count, 5);
    ck_assert_str_eq(wanted.line[0].reason, "why");
    for (int c = 0; c < list.count; c++) {
        ck_assert(strncmp(list.row[c].id, "events.", 7) == 0);
    }
    ls_rows_free(&list);
    ls_select_free(&wanted);
}

TEST(lists_have_comments_and_reasons)
{
    char path[128];
    FILE *file = fake_open(folder, "list");
    fprintf(file, "# heading\n\n  a.b*   the reason, in words  # and a comment\nc\n");
    fclose(file);
    ls_text_put(path, sizeof path, "%s/list", folder);
    ls_select_list list = {0, 0, NULL};
    ck_assert_int_eq(ls_select_load(path, &list), LS_OK);
    ck_assert_int_eq(list.count, 2);
    ck_assert_str_eq(list.line[0].reason, "the reason, in words");
    ck_assert_str_eq(list.line[1].reason, "");
    ck_assert_ptr_nonnull(ls_select_find(&list, "a.bcd"));
    ck_assert_ptr_null(ls_select_find(&list, "a.c"));
    ls_select_free(&list);
    ck_assert_int_eq(ls_select_load("/nonexistent/list", &list), LS_ERR_USAGE);
}

TEST(variables_are_checked_and_never_guessed)
{
    static char *const bad[] = {"NGPU=8",        "NGPUS=x",      "NGPUS=0",    "NGPUS",
                                "OPT_LEVELS=01", "PROFILE=fast", "DEVICE=gpu", "FAIL_EARLY=yes",
                                "BUCKETS_MB=",   "ngpus=8"};
    ls_variables variables;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_msg(ls_variables_parse(1, &bad[i], &variables) == LS_ERR_USAGE, "%s", bad[i]);
    }
    char *good[] = {"NGPUS=8", "OPT_LEVELS=O0,O2", "BUCKETS_MB=1,2.5", "--dry-run"};
    ck_assert_int_eq(ls_variables_parse(4, good, &variables), LS_OK);
    ck_assert_int_eq(ls_variables_integer(&variables, "NGPUS", 1), 8);
    ck_assert_int_eq(ls_variables_integer(&variables, "DRYRUN", 0), 1);
    double number[4];
    ck_assert_int_eq(ls_variables_numbers(&variables, "OPT_LEVELS", number, 4), 2);
    ck_assert(number[0] == 0 && number[1] == 2);
    ck_assert_int_eq(ls_variables_numbers(&variables, "BUCKETS_MB", number, 4), 2);
    ck_assert(number[0] == 1 && number[1] == 2.5);
    ck_assert_str_eq(ls_variables_text(&variables, "LABEL", "none"), "none");
    ls_variables_free(&variables);
}

TEST(the_nearest_word_is_the_one_meant)
{
    static const char *const names[] = {"NGPUS", "NODES", "STEPS", "--case"};
    ck_assert_str_eq(ls_text_nearest("NGPU", names, 4), "NGPUS");
    ck_assert_str_eq(ls_text_nearest("ngpus", names, 4), "NGPUS");
    ck_assert_str_eq(ls_text_nearest("NODE", names, 4), "NODES");
    ck_assert_str_eq(ls_text_nearest("--cases", names, 4), "--case");
}

static void add_device(const char *folder, const char *address, const char *vendor,
                       const char *class)
{
    char path[300];
    ls_text_put(path, sizeof path, "%s/bus/pci/devices/%s", folder, address);
    ck_assert_int_eq(ls_path_make_folder(path), LS_OK);
    FILE *file = fake_open(path, "vendor");
    fprintf(file, "%s\n", vendor);
    fclose(file);
    file = fake_open(path, "class");
    fprintf(file, "%s\n", class);
    fclose(file);
    file = fake_open(path, "device");
    fprintf(file, "0x2335\n");
    fclose(file);
}

TEST(the_bus_decides_which_device)
{
    ls_machine_device device[LS_MACHINE_DEVICES_MAX];
    ck_assert_int_eq(ls_machine_devices(folder, device), 0);
    add_device(folder, "0000:03:00.0", "0x1002", "0x030000"); /* another maker */
    add_device(folder, "0000:04:00.1", "0x10de", "0x040300"); /* its audio function */
    setenv("LS_SYSFS", folder, 1);
    const char *chosen = "";
    ck_assert_int_eq(ls_machine_choose("auto", 8, false, &chosen), LS_OK);
    ck_assert_str_eq(chosen, "cpu");
    ck_assert_int_eq(ls_machine_choose("cuda", 1, false, &chosen), LS_ERR_INFRA);
    add_device(folder, "0000:02:00.0", "0x10de", "0x030200");
    add_device(folder, "0000:01:00.0", "0x10de", "0x030000");
    ck_assert_int_eq(ls_machine_devices(folder, device), 2);
    ck_assert_str_eq(device[0].address, "0000:01:00.0");
    ck_assert_str_eq(device[1].model, "0x2335");
    /* there is no ls_cuda.so next to this program: none can be used */
    ck_assert(!device[0].usable);
    ck_assert_ptr_nonnull(strstr(device[0].failure, "ls_cuda.so not built"));
    ck_assert_int_eq(ls_machine_choose("auto", 1, false, &chosen), LS_ERR_INFRA);
    ck_assert_int_eq(ls_machine_choose("auto", 1, true, &chosen), LS_ERR_INFRA);
    ck_assert_int_eq(ls_machine_choose("cpu", 1, false, &chosen), LS_OK);
    unsetenv("LS_SYSFS");
}

TEST_MAIN("select", .before = fake_begin, .after = fake_end)
