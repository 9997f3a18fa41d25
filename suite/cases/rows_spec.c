#include "rows.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/text.h"

typedef enum kind { INTEGER, NUMBER, TEXT } kind;

#define TEXT_AT(member) TEXT, offsetof(ls_spec, member), sizeof((ls_spec *)0)->member

/* NAME=VALUE */
static const struct {
    const char *name;
    kind kind;
    size_t at, bytes; /* of the member; bytes: of a text */
} fields[] = {
    {"image", INTEGER, offsetof(ls_spec, image_size), 0},
    {"batch", INTEGER, offsetof(ls_spec, batch_size), 0},
    {"accumulate", INTEGER, offsetof(ls_spec, accumulate), 0},
    {"warmup", INTEGER, offsetof(ls_spec, warmup_steps), 0},
    {"steps", INTEGER, offsetof(ls_spec, steps), 0},
    {"threads", INTEGER, offsetof(ls_spec, threads), 0},
    {"repeat", INTEGER, offsetof(ls_spec, repeat), 0},
    {"lr", NUMBER, offsetof(ls_spec, lr), 0},
    {"limit", NUMBER, offsetof(ls_spec, limit_s), 0},
    {"grace", NUMBER, offsetof(ls_spec, grace_s), 0},
    {"scale", TEXT_AT(loss_scale)},
    {"dump", TEXT_AT(dump_steps)},
    {"data", TEXT_AT(data)},
};

static bool read_integer(const char *text, int *out)
{
    char *end;
    long value = strtol(text, &end, 10);
    *out = (int)value;
    return end != text && *end == '\0';
}

static bool read_number(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0';
}

static bool read_field(const char *word, ls_spec *spec)
{
    size_t length = strcspn(word, "=");
    const char *value = word + length + 1;
    for (size_t i = 0; i < sizeof fields / sizeof *fields && word[length] == '='; i++) {
        if (strlen(fields[i].name) != length || strncmp(fields[i].name, word, length) != 0) {
            continue;
        }
        char *member = (char *)spec + fields[i].at;
        if (fields[i].kind == INTEGER) {
            return read_integer(value, (int *)(void *)member);
        }
        if (fields[i].kind == NUMBER) {
            return read_number(value, (double *)(void *)member);
        }
        ls_text_put(member, fields[i].bytes, "%s", value);
        return strlen(value) < fields[i].bytes;
    }
    return false;
}

/* Words without a value, and those that are a letter and a number. */
static bool read_word(const char *word, ls_spec *spec)
{
    if (strncmp(word, "resnet", 6) == 0 || strcmp(word, "collectives") == 0) {
        ls_text_put(spec->arch, sizeof spec->arch, "%s", word);
    } else if (word[0] == 'O' && word[1] >= '0' && word[1] <= '3' && word[2] == '\0') {
        spec->level = word[1] - '0';
    } else if (strcmp(word, "no-level") == 0) {
        spec->level = -1;
    } else if (word[0] == 'w' && isdigit((unsigned char)word[1])) {
        return read_integer(word + 1, &spec->world);
    } else if (word[0] == 'n' && isdigit((unsigned char)word[1])) {
        return read_integer(word + 1, &spec->nodes);
    } else if (word[0] == 'b' && isdigit((unsigned char)word[1])) {
        return read_number(word + 1, &spec->bucket_mb);
    } else if (strcmp(word, "delay") == 0) {
        spec->bucket_mb = LS_BUCKET_DELAYED;
    } else if (strcmp(word, "bf16") == 0) {
        ls_text_put(spec->half, sizeof spec->half, "bf16");
    } else if (strcmp(word, "torch") == 0) {
        ls_text_put(spec->dialect, sizeof spec->dialect, "torch");
    } else if (strcmp(word, "sync") == 0) {
        spec->sync_bn = true;
    } else if (strcmp(word, "undetermined") == 0) {
        spec->deterministic = false;
    } else if (strcmp(word, "dump-ranks=0") == 0) {
        spec->dump_all = false;
    } else if (strcmp(word, "next-seed") == 0) {
        spec->seed++;
    } else if (strcmp(word, "alone") == 0) {
        spec->wrap = LS_WRAP_ALONE;
    } else if (strcmp(word, "shell") == 0) {
        spec->wrap = LS_WRAP_SHELL;
    } else if (strncmp(word, "kill=", 5) == 0) {
        spec->wrap = LS_WRAP_KILL;
        return sscanf(word, "kill=%d:%d", &spec->kill_rank, &spec->kill_step) == 2;
    } else {
        return read_field(word, spec);
    }
    return true;
}

const char *ls_rows_read_spec(const ls_case_settings *settings, const char *text, ls_spec *spec)
{
    char copy[1024], options[sizeof spec->extra] = "", *rest = NULL;
    const char *batches = NULL;
    bool scaled = false;
    ls_text_put(copy, sizeof copy, "%s", text);
    LS_ASSERT(strlen(text) < sizeof copy);
    *spec = ls_matrix_spec(LS_ROLE_EVIDENCE);
    spec->seed = settings->seed;
    spec->steps = 2;
    spec->dump_all = true;
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        scaled = scaled || strncmp(word, "scale=", 6) == 0;
        if (strncmp(word, "--", 2) == 0) {
            ls_text_add(options, sizeof options, "%s%s", options[0] == '\0' ? "" : " ", word);
        } else if (strncmp(word, "batches=", 8) == 0) {
            batches = word + 8;
        } else if (!read_word(word, spec)) {
            return text + (word - copy);
        }
    }
    if (!scaled && spec->level > 0) {
        ls_text_put(spec->loss_scale, sizeof spec->loss_scale, "128");
    }
    if (batches != NULL && !ls_overflow_read(batches, spec)) {
        return batches - copy + text;
    }
    ls_text_add(spec->extra, sizeof spec->extra, "%s%s",
                spec->extra[0] == '\0' || options[0] == '\0' ? "" : " ", options);
    LS_ASSERT(strlen(spec->extra) + 1 < sizeof spec->extra);
    return NULL;
}

ls_spec ls_rows_spec(const ls_case_settings *settings, const char *text)
{
    ls_spec spec;
    const char *wrong = ls_rows_read_spec(settings, text, &spec);
    if (wrong != NULL) {
        ls_log_error("the job '%s' of a case's table: there is no word '%.*s' (suite/cases/rows.h)",
                     text, (int)strcspn(wrong, " "), wrong);
        abort();
    }
    return spec;
}
