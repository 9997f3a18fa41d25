#include "tables.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "tables_curves.h"
#include "tables_gpu.h"
#include "tables_parts.h"
#include "tables_speed.h"

static const char *const NAMES[] = {
    "throughput_by_level",
    "throughput_by_bucket",
    "scaling",
    "loss_curves",
    "loss_scale",
    "gradient_error",
    "step_phases",
    "timeline",
    "gpu",
    "memory",
    NULL,
};

const char *const *ls_tables_names(void)
{
    return NAMES;
}

int ls_tables_rows_min(const char *name)
{
    return strcmp(name, "throughput_by_bucket") == 0 || strcmp(name, "scaling") == 0 ? 2 : 1;
}

static const char *table_path(char path[PATH_MAX], const char *directory, const char *name)
{
    int length = snprintf(path, PATH_MAX, "%s/tables/%s.tsv", directory, name);
    LS_ASSERT(length < PATH_MAX);
    return path;
}

FILE *ls_tables_begin(const ls_report_run *run, const char *name, const ls_tables_head *head,
                      const char *units, const char *columns)
{
    char path[PATH_MAX];
    FILE *table = fopen(table_path(path, run->directory, name), "w");
    if (table == NULL) {
        ls_log_error("cannot create %s: %s", path, strerror(errno));
        return NULL;
    }
    fprintf(table, "# title: %s\n# caption: %s\n# units: %s\n# columns: %s\n", head->title,
            head->caption, units, columns);
    if (head->blocks[0] != '\0') {
        fprintf(table, "# blocks:%s\n", head->blocks);
    }
    return table;
}

ls_status ls_tables_end(FILE *table, const char *name)
{
    bool failed = ferror(table) != 0;
    if (fclose(table) != 0 || failed) {
        ls_log_error("cannot write tables/%s.tsv: %s", name, strerror(errno));
        return LS_ERR_INFRA;
    }
    return LS_OK;
}

const char *ls_tables_plain(const char *from, char *to, int bytes)
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

void ls_tables_marks(const ls_report_run *run, const ls_report_job *const *jobs, int count,
                     char *text, int bytes)
{
    int simulated = 0, oversubscribed = 0;
    bool emulated = false;
    for (int i = 0; i < count; i++) {
        if (ls_spec_is_simulated(jobs[i]->spec) && jobs[i]->spec->nodes > simulated) {
            simulated = jobs[i]->spec->nodes;
        }
        if (jobs[i]->record->oversubscribed && jobs[i]->spec->world > oversubscribed) {
            oversubscribed = jobs[i]->spec->world;
        }
        emulated = emulated || jobs[i]->record->half_emulated;
    }
    text[0] = '\0';
    if (simulated > 0) {
        ls_text_add(text, bytes, "%s%d nodes are simulated", text[0] ? "; " : "", simulated);
    }
    if (emulated) {
        ls_text_add(text, bytes, "%shalf is emulated", text[0] ? "; " : "");
    }
    const cJSON *machine = cJSON_GetObjectItemCaseSensitive(run->record, "machine");
    int cores = (int)ls_json_integer(machine, "cores", 0);
    if (oversubscribed > 0 && cores > 0) {
        ls_text_add(text, bytes, "%s%d ranks share %d cores", text[0] ? "; " : "", oversubscribed,
                    cores);
    } else if (oversubscribed > 0) {
        ls_text_add(text, bytes, "%s%d ranks share too few devices", text[0] ? "; " : "",
                    oversubscribed);
    }
}

ls_status ls_tables_write(const ls_report_run *run)
{
    char folder[PATH_MAX];
    int length = snprintf(folder, sizeof folder, "%s/tables", run->directory);
    LS_ASSERT(length < (int)sizeof folder);
    LS_TRY(ls_path_make_folder(folder));
    LS_TRY(ls_tables_speed_write_levels(run));
    LS_TRY(ls_tables_speed_write_buckets(run));
    LS_TRY(ls_tables_speed_write_scaling(run));
    LS_TRY(ls_tables_curves_write_loss(run));
    LS_TRY(ls_tables_curves_write_scale(run));
    LS_TRY(ls_tables_curves_write_timeline(run));
    LS_TRY(ls_tables_gpu_write(run));
    LS_TRY(ls_tables_parts_write_gradients(run));
    LS_TRY(ls_tables_parts_write_phases(run));
    return ls_tables_parts_write_memory(run);
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

ls_status ls_tables_read_head(const char *run_directory, const char *name, ls_tables_head *out)
{
    char path[PATH_MAX], line[4096];
    FILE *table = fopen(table_path(path, run_directory, name), "r");
    if (table == NULL) {
        ls_log_error("cannot open %s: %s", path, strerror(errno));
        return LS_ERR_INFRA;
    }
    ls_tables_head head = {0};
    while (fgets(line, sizeof line, table) != NULL) {
        if (line[0] != '#') {
            head.rows += line[0] != '\n';
            continue;
        }
        (void)(take_line(line, "# title:", head.title, sizeof head.title) ||
               take_line(line, "# caption:", head.caption, sizeof head.caption) ||
               take_line(line, "# blocks:", head.blocks, sizeof head.blocks));
    }
    fclose(table);
    *out = head;
    return LS_OK;
}
