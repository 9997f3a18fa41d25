/* A script in place of ssh and of srun: it starts nothing, keeps its words and its order, and plays
 * what the launcher of each host is to write. */
#ifndef LS_UNIT_PLAYED_SSH_H
#define LS_UNIT_PLAYED_SSH_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/hosts/remote.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"

/* The host is the word before the last one, or the value of srun's --nodelist. */
static const char played_ssh[] = "#!/bin/sh\n"
                                 "here=${0%/*} host= last=\n"
                                 "for word; do\n"
                                 "    case $word in --nodelist=*) host=${word#*=}; break ;; esac\n"
                                 "    host=$last last=$word\n"
                                 "done\n"
                                 "printf '%s\\n' \"$@\" >\"$here/$host.words\"\n"
                                 "head -n 1 >\"$here/$host.order\"\n"
                                 "cat \"$here/$host.says\"\n"
                                 ". \"$here/$host.ends\"\n";

static char played[64]; /* the folder of the script and of its files */

/* The build of these programs, as a launcher answers it. */
static inline const char *own_build(void)
{
    static char build[LS_APART_DIGEST_BYTES];
    char programs[1024];
    ls_remote_launcher(NULL, programs, sizeof programs);
    *strrchr(programs, '/') = '\0';
    ck_assert_int_eq(ls_apart_digest(programs, build), LS_OK);
    return build;
}

/* In the answer to a probe, this build. */
static inline void play_file(const char *host, const char *kind, const char *text)
{
    static const char probe[] = "{\"event\":\"probe\",";
    const char *at = strstr(text, probe);
    LS_TEXT(path, 200, "%s/%s%s", played, host, kind);
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    if (at != NULL) {
        at += strlen(probe);
        ck_assert_int_ge(
            fprintf(file, "%.*s\"build\":\"%s\",", (int)(at - text), text, own_build()), 0);
    }
    ck_assert_int_ge(fputs(at == NULL ? text : at, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static inline void play_program(const char *name, const char *script)
{
    play_file(name, "", script);
    LS_TEXT(path, 200, "%s/%s", played, name);
    ck_assert_int_eq(chmod(path, 0755), 0);
}

/* The host's output, and the shell command that ends its channel. */
static inline void play_host(const char *host, const char *says, const char *ends)
{
    play_file(host, ".says", says);
    play_file(host, ".ends", ends);
}

/* What the script was given (".words", one a line, or ".order"). The caller frees it. */
static inline char *given_to(const char *host, const char *kind)
{
    LS_TEXT(path, 200, "%s/%s%s", played, host, kind);
    char *text = ls_text_read(path);
    ck_assert_msg(text != NULL, "%s is not there", path);
    return text;
}

static inline void play_begin(void)
{
    snprintf(played, sizeof played, "/tmp/ls_played_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(played));
    play_program("ssh", played_ssh);
    play_program("srun", played_ssh);
    LS_TEXT(search, 4096, "%s:%s", played, getenv("PATH"));
    setenv("PATH", search, 1);
    unsetenv("LS_SSH");
}

static inline void play_end(void)
{
    ls_path_remove_tree(played);
}

#endif
