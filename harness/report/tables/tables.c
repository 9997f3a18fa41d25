#include "table.h"

#include "kernels/core/path.h"
#include "kernels/core/text.h"

static const struct table {
    const char *name;
    int rows_min;
    ls_table_writer *write;
} tables[] = {
    {"throughput_by_level", 1, ls_tables_speed_write_levels},
    {"throughput_by_bucket", 2, ls_tables_speed_write_buckets},
    {"scaling", 2, ls_tables_speed_write_scaling},
    {"loss_curves", 1, ls_tables_curves_write_loss},
    {"loss_scale", 1, ls_tables_curves_write_scale},
    {"gradient_error", 1, ls_tables_parts_write_gradients},
    {"step_phases", 1, ls_tables_parts_write_phases},
    {"timeline", 1, ls_tables_timeline_write},
    {"gpu", 1, ls_tables_gpu_write},
    {"memory", 1, ls_tables_parts_write_memory},
    {"ways", 2, ls_tables_ways_write},
};

enum { TABLES = sizeof tables / sizeof *tables };

const char *ls_tables_name(int index)
{
    return index < TABLES ? tables[index].name : NULL;
}

bool ls_tables_is_drawn(const ls_report_run *run, int index, ls_table_head *head)
{
    return ls_table_read_head(run->directory, tables[index].name, head) == LS_OK &&
           head->rows >= tables[index].rows_min;
}

ls_status ls_tables_write(const ls_report_run *run)
{
    LS_TEXT(folder, PATH_MAX, "%s/tables", run->directory);
    LS_TRY(ls_path_make_folder(folder));
    for (int i = 0; i < TABLES; i++) {
        LS_TRY(tables[i].write(run));
    }
    return LS_OK;
}
