#include "table.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/cores.h"
#include "kernels/core/file.h"
#include "kernels/core/text.h"

static const char *table_path(char path[PATH_MAX], const char *directory, const char *name)
{
    ls_text_put(path, PATH_MAX, "%s/tables/%s.tsv", directory, name);
    return path;
}

FILE *ls_table_begin(const ls_report_run *run, const char *name, const ls_table_head *head,
                     const char *units, const char *columns)
{
    char path[PATH_MAX];
    FILE *table = ls_file_create(table_path(path, run->directory, name));
    if (table != NULL) {
        fprintf(table, "# title: %s\n# caption: %s\n# units: %s\n# columns: %s\n", head->title,
                head->caption, units, columns);
        fprintf(table, head->blocks[0] != '\0' ? "# blocks:%s\n" : "%s", head->blocks);
    }
    return table;
}

const char *ls_table_plain(const char *from, char *to, int bytes)
{
    int used = 0;
    for (; *from != '\0' && used < bytes - 1; from++) {
        unsigned char c = (unsigned char)*from;
        bool bad = c < 0x20 || c == 0x7f || c == '"' || c == '\\' || c == '`';
        to[used++] = bad ? ' ' : *from;
    }
    to[used] = '\0';
    return to;
}

static bool take_line(const char *line, const char *name, char *to, int bytes)
{
    size_t length = strlen(name);
    if (strncmp(line, name, length) != 0) {
        return false;
    }
    line += length;
    line += *line == ' ';
    snprintf(to, (size_t)bytes, "%.*s", (int)strcspn(line, "\n"), line);
    return true;
}

ls_status ls_table_read_head(const char *run_directory, const char *name, ls_table_head *out)
{
    char path[PATH_MAX], *table = NULL;
    size_t bytes;
    LS_TRY(ls_file_read(table_path(path, run_directory, name), LS_FILE_TEXT_BYTES, &table, &bytes));
    ls_table_head head = {0};
    char *rest = table;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (line[0] != '#') {
            head.rows += line[0] != '\0';
            continue;
        }
        (void)(take_line(line, "# title:", head.title, sizeof head.title) ||
               take_line(line, "# caption:", head.caption, sizeof head.caption) ||
               take_line(line, "# blocks:", head.blocks, sizeof head.blocks));
    }
    free(table);
    *out = head;
    return LS_OK;
}

void ls_table_add_marks(const ls_report_run *run, const ls_report_job *const *jobs, int count,
                        char *title)
{
    int simulated = 0, oversubscribed = 0;
    bool emulated = false;
    for (int i = 0; i < count; i++) {
        const ls_spec *spec = jobs[i]->spec;
        if (ls_spec_is_simulated(spec) && spec->nodes > simulated) {
            simulated = spec->nodes;
        }
        if (jobs[i]->record->oversubscribed && spec->world > oversubscribed) {
            oversubscribed = spec->world;
        }
        emulated = emulated || jobs[i]->record->half_emulated;
    }
    double cores = ls_json_number(ls_json_get(run->record, "machine"), "cores", 0);
    char marks[160] = "";
    if (simulated > 0) {
        ls_text_add(marks, sizeof marks, "; %d nodes are simulated", simulated);
    }
    if (ls_json_bool(ls_json_get(run->record, "options"), "emulated", false)) {
        ls_text_add(marks, sizeof marks, "; the GPU is emulated on the CPU");
    } else if (emulated) {
        ls_text_add(marks, sizeof marks, "; half is emulated");
    }
    if (oversubscribed > 0 && cores > 0) {
        char number[40];
        ls_text_add(marks, sizeof marks, "; %d ranks share %s", oversubscribed,
                    ls_cores_number(cores, number, sizeof number));
    } else if (oversubscribed > 0) {
        ls_text_add(marks, sizeof marks, "; %d ranks share too few devices", oversubscribed);
    }
    if (marks[0] != '\0') {
        ls_text_add(title, LS_TABLE_TITLE_BYTES, " (%s)", marks + 2);
    }
}
