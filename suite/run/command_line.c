#define _GNU_SOURCE
#include "command_line.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/core/cores.h"
#include "kernels/core/file.h"
#include "harness/machine/machine.h"
#include "harness/process/proc.h"
#include "kernels/core/path.h"
#include "kernels/core/log.h"
#include "kernels/core/usage.h"

static void program_help(const ls_command_row *row, int rows, const char *more)
{
    puts("Usage: lockstep COMMAND ...\n");
    ls_usage_text(stdout, 0,
                  "Is data-parallel mixed-precision training on this machine correct, and how "
                  "fast?");
    putchar('\n');
    for (int i = 0; i < rows; i++) {
        LS_TEXT(name, 64, "  %s", row[i].name);
        ls_usage_entry(stdout, name, row[i].text);
    }
    putchar('\n');
    ls_usage_text(stdout, 0, "`lockstep COMMAND --help` lists the options of a command.");
    ls_usage_text(stdout, 0,
                  "Exit codes: 0 good, 1 a case of the claim did not pass (observe: a law failed) "
                  "or SPEED is below the baseline, 2 usage, 3 infrastructure (observe: nothing was "
                  "observed; where no law failed it ends with the job's), 4 not supported.");
    if (more[0] != '\0') {
        ls_usage_text(stdout, 0, more);
    }
}

static ls_status unknown_command(const ls_command_row *row, int rows, const char *given)
{
    char hint[120];
    const char *names[64];
    LS_ASSERT(rows <= 64);
    for (int i = 0; i < rows; i++) {
        names[i] = row[i].name;
    }
    ls_text_suggest(hint, sizeof hint, given, names, rows, "`lockstep --help` lists all");
    return ls_log_fail(LS_ERR_USAGE, "unknown command '%s'; %s", given, hint);
}

int ls_command_run(const ls_command_row *row, int rows, const char *more, int argc, char **argv)
{
    ls_file_survive_limit();
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        program_help(row, rows, more);
        return argc < 2 ? LS_ERR_USAGE : 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("lockstep %s\n", LS_VERSION);
        return 0;
    }
    for (int i = 0; i < rows; i++) {
        if (strcmp(row[i].name, argv[1]) == 0) {
            if (row[i].starts_jobs && ls_guard_begin(false) != LS_OK) {
                return LS_ERR_INFRA;
            }
            return row[i].main(argc - 2, argv + 2);
        }
    }
    return unknown_command(row, rows, argv[1]);
}

static void help(const char *command, const ls_command_option *option, int options)
{
    size_t length = strcspn(command, " ");
    if (strstr(command, " -- ") != NULL) {
        printf("Usage: lockstep %.*s [options]%s\n\n", (int)length, command, command + length);
    } else {
        printf("Usage: lockstep %s%s\n", command, options > 0 ? " [options]\n" : "");
    }
    for (int i = 0; i < options; i++) {
        LS_TEXT(name, 64, "  %s%s", option[i].name, option[i].flag == NULL ? " X" : "");
        ls_usage_entry(stdout, name, option[i].text);
    }
}

static const ls_command_option *find(const ls_command_option *option, int options,
                                     const char *given, size_t length)
{
    for (int i = 0; i < options; i++) {
        if (strlen(option[i].name) == length && strncmp(option[i].name, given, length) == 0) {
            return &option[i];
        }
    }
    return NULL;
}

static ls_status unknown(const char *command, const ls_command_option *option, int options,
                         const char *given)
{
    const char *names[64] = {"--help"};
    for (int i = 0; i < options; i++) {
        names[i + 1] = option[i].name;
    }
    char all[80], hint[120];
    ls_text_put(all, sizeof all, "`lockstep %.*s --help` lists all", (int)strcspn(command, " "),
                command);
    ls_text_suggest(hint, sizeof hint, given, names, options + 1, all);
    return ls_log_fail(LS_ERR_USAGE, "unknown option '%s'; %s", given, hint);
}

/* The words after the command's name in `usage`; "..." stands for any number of the last. */
static ls_status check_operands(const char *usage, int count, char **argument)
{
    int wanted = 0;
    if (strstr(usage, " -- ") != NULL) {
        return LS_OK;
    }
    for (const char *word = strchr(usage, ' '); word != NULL; word = strchr(word + 1, ' ')) {
        wanted++;
    }
    if (wanted > 0 && count < wanted) {
        return ls_log_fail(LS_ERR_USAGE, "an argument is missing; usage: lockstep %s", usage);
    }
    if (wanted > 0 && count > wanted && strstr(usage, "...") == NULL) {
        return ls_log_fail(LS_ERR_USAGE, "unexpected argument '%s'; usage: lockstep %s",
                           argument[wanted], usage);
    }
    return LS_OK;
}

ls_status ls_command_parse(const char *command, const ls_command_option *option, int options,
                           int *count, char **argument)
{
    int operands = 0;
    bool takes_command = strstr(command, " -- ") != NULL;
    for (int i = 0; i < *count; i++) {
        char *given = argument[i];
        if (takes_command && (given[0] != '-' || strcmp(given, "--") == 0)) {
            for (i += given[0] == '-'; i < *count; i++) { /* all words of another command */
                argument[operands++] = argument[i];
            }
            break;
        }
        if (strcmp(given, "--help") == 0 || strcmp(given, "-h") == 0) {
            help(command, option, options);
            exit(0);
        }
        if (given[0] != '-') {
            argument[operands++] = given;
            continue;
        }
        size_t length = strcspn(given, "=");
        const ls_command_option *known = find(option, options, given, length);
        if (known == NULL) {
            return unknown(command, option, options, given);
        }
        if (known->flag != NULL) {
            if (given[length] == '=') {
                return ls_log_fail(LS_ERR_USAGE, "%s takes no value: '%s'", known->name, given);
            }
            *known->flag = true;
            continue;
        }
        const char *value = given[length] == '=' ? given + length + 1
                            : i + 1 < *count     ? argument[++i]
                                                 : NULL;
        if (given[length] != '=') {
            LS_TRY(ls_usage_check_value(known->name, known->text, value));
        }
        if (known->list != NULL) {
            ls_select_add(known->list, value, "");
        } else {
            *known->value = value;
        }
    }
    *count = operands;
    return check_operands(command, operands, argument);
}

ls_status ls_command_no_operands(const char *command, int count, char **argument, const char *hint)
{
    if (count > 0) {
        return ls_log_fail(LS_ERR_USAGE,
                           "unexpected argument '%s'; lockstep %s takes options only%s%s",
                           argument[0], command, hint[0] == '\0' ? "" : ": ", hint);
    }
    return LS_OK;
}

ls_status ls_command_whole(const char *name, const char *text, int64_t least, int64_t most,
                           int64_t *out)
{
    /* neither a space nor a sign before it */
    if (text[0] < '0' || text[0] > '9' || !ls_text_integer(text, least, most, out)) {
        return ls_log_fail(LS_ERR_USAGE, "%s '%s': allowed: a whole number from %lld to %lld", name,
                           text, (long long)least, (long long)most);
    }
    return LS_OK;
}

ls_status ls_command_seed(const char *name, const char *text, uint64_t *out)
{
    int64_t value;
    LS_TRY(ls_command_whole(name, text, 0, INT64_MAX, &value));
    *out = (uint64_t)value;
    return LS_OK;
}

ls_status ls_command_shard(const char *name, const char *text, int *share, int *shares)
{
    int end = 0;
    *share = 0;
    *shares = 1;
    if (text == NULL) {
        return LS_OK;
    }
    if (sscanf(text, "%9d/%9d%n", share, shares, &end) != 2 || text[end] != '\0' || *share < 1 ||
        *share > *shares) {
        return ls_log_fail(LS_ERR_USAGE, "%s '%s': allowed: i/n with 1 <= i <= n, such as 2/4",
                           name, text);
    }
    *share -= 1;
    return LS_OK;
}

ls_status ls_command_device(const char *text)
{
    if (strcmp(text, "cpu") != 0 && strcmp(text, "cuda") != 0 && strcmp(text, "auto") != 0) {
        return ls_log_fail(LS_ERR_USAGE, "--device '%s': allowed: cpu, cuda, auto", text);
    }
    return LS_OK;
}

ls_status ls_command_choice(const char *name, const char *text, const char *const *allowed,
                            int count)
{
    char all[400] = "allowed: ", hint[400];
    for (int i = 0; i < count; i++) {
        if (text == NULL || strcmp(text, allowed[i]) == 0) {
            return LS_OK;
        }
        ls_text_add(all, sizeof all, "%s%s", i > 0 ? ", " : "", allowed[i]);
    }
    ls_text_suggest(hint, sizeof hint, text, allowed, count, all);
    return ls_log_fail(LS_ERR_USAGE, "%s '%s': %s", name, text, hint);
}

void ls_command_absolute(const char *path, char *out, size_t bytes)
{
    char here[1024];
    if (path[0] == '/' || getcwd(here, sizeof here) == NULL) {
        ls_text_put(out, bytes, "%s", path);
    } else {
        ls_text_put(out, bytes, "%s/%s", here, path);
    }
    size_t length = strlen(out);
    while (length > 1 && out[length - 1] == '/') {
        out[--length] = '\0';
    }
}

ls_status ls_command_run_folder(const char *folder, const char *label, char *path, size_t bytes)
{
    char root[512], stamp[32];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%SZ", &utc);
    ls_command_absolute(folder, root, sizeof root);
    ls_text_put(path, bytes, "%s/%s-%s", root, stamp, label);
    for (int i = 2; access(path, F_OK) == 0; i++) { /* two runs in one second */
        ls_text_put(path, bytes, "%s/%s-%s-%d", root, stamp, label, i);
    }
    if (strlen(path) > 350) { /* leaves room for the paths of jobs and dumps */
        return ls_log_fail(
            LS_ERR_USAGE, "the path of the run's folder is too long (at most 350 bytes): %s", path);
    }
    return LS_OK;
}

/* This program as a shell in the current folder starts it: "build/lockstep" below that folder, else
 * its whole path; in a tarball the script that says where libraries are. */
static void own_path(char *text, size_t bytes)
{
    static const char packed[] = "/libexec";
    char folder[1024], here[1024], path[1100];
    ls_path_program(folder, sizeof folder);
    size_t length = strlen(folder), tail = sizeof packed - 1;
    if (length > tail && strcmp(folder + length - tail, packed) == 0) {
        ls_text_put(path, sizeof path, "%s/../lockstep", folder);
        folder[length - (access(path, X_OK) == 0 ? tail : 0)] = '\0';
    }
    ls_text_put(path, sizeof path, "%s/lockstep", folder);
    length = getcwd(here, sizeof here) == NULL ? 0 : strlen(here);
    bool below = length > 1 && strncmp(path, here, length) == 0 && path[length] == '/';
    const char *shown = below ? path + length + 1 : path;
    ls_text_put(text, bytes, "%s%s", strchr(shown, '/') == NULL ? "./" : "", shown);
}

char *ls_command_line(const char *command, const ls_words *arguments)
{
    char program[1100];
    own_path(program, sizeof program);
    ls_words words = {0, 0, NULL};
    ls_words_add(&words, "%s", program);
    ls_words_add(&words, "%s", command);
    for (int i = 0; i < arguments->count; i++) {
        ls_words_add(&words, "%s", arguments->word[i]);
    }
    char *line = ls_words_line(&words);
    ls_words_free(&words);
    return line;
}

char *ls_command_go_on(const char *command, const ls_words *arguments)
{
    char here[1024], *line = NULL;
    ls_words settings = {0, 0, NULL};
    ls_words_add(&settings, "env");
    for (char **entry = environ; *entry != NULL; entry++) {
        if (strncmp(*entry, "LS_", 3) == 0 && strncmp(*entry, "LS_TOKEN=", 9) != 0) {
            ls_words_add(&settings, "%s", *entry);
        }
    }
    char *folder = ls_words_quoted(getcwd(here, sizeof here) == NULL ? "." : here);
    char *set = settings.count > 1 ? ls_words_line(&settings) : NULL;
    char *rest = ls_command_line(command, arguments);
    LS_MEMORY(asprintf(&line, "cd %s && %s%s%s", folder, set == NULL ? "" : set,
                       set == NULL ? "" : " ", rest) >= 0);
    free(folder);
    free(set);
    free(rest);
    ls_words_free(&settings);
    return line;
}

void ls_command_where(const char *device, int ranks, char *text)
{
    const char *word = ranks == 1 ? "rank" : "ranks";
    if (strcmp(device, "cpu") == 0) {
        char on[64];
        ls_cores cores = ls_cores_read();
        ls_text_put(text, 96, "CPU: %d %s on %s, no GPU was tested", ranks, word,
                    ls_cores_text(&cores, on, sizeof on));
    } else if (ls_machine_emulated()) {
        ls_text_put(text, 96, "CUDA emulated on the CPU: %d %s, no GPU was tested", ranks, word);
    } else {
        ls_text_put(text, 96, "CUDA: %d %s", ranks, word);
    }
}
