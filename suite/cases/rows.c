#include "suite/suite.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"

ls_case *ls_rows_add(ls_case_list *list, ls_case_judge *judge, const char *requirement,
                     const char *id_format, ...)
{
    if (list->count == list->capacity) {
        list->capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        list->row = realloc(list->row, (size_t)list->capacity * sizeof *list->row);
        LS_ASSERT(list->row != NULL);
    }
    ls_case *row = &list->row[list->count++];
    memset(row, 0, sizeof *row);
    row->judge = judge;
    ls_text_put(row->requirement, sizeof row->requirement, "%s", requirement);
    va_list arguments;
    va_start(arguments, id_format);
    vsnprintf(row->id, sizeof row->id, id_format, arguments);
    va_end(arguments);
    return row;
}

void ls_rows_all(const ls_case_settings *settings, ls_case_list *list)
{
    ls_gradients_cases(settings, list);
    ls_gradients_timed_cases(settings, list);
    ls_scaler_cases(settings, list);
    ls_ddp_cases(settings, list);
    ls_statistics_cases(settings, list);
    ls_opt_levels_cases(settings, list);
    ls_options_cases(list);
    ls_masters_cases(settings, list);
    ls_schedule_cases(settings, list);
    ls_optim_cases(settings, list);
    ls_accumulation_cases(settings, list);
    ls_amp_cases(settings, list);
    ls_casts_cases(settings, list);
    ls_checkpoint_cases(settings, list);
    ls_collectives_cases(settings, list);
    ls_data_cases(settings, list);
    ls_syncbn_cases(settings, list);
    ls_unused_cases(settings, list);
    ls_launch_cases(settings, list);
    ls_subject_cases(settings, list);
    ls_faults_cases(settings, list);
    ls_training_cases(settings, list);
    ls_init_cases(settings, list);
    ls_events_cases(settings, list);
    ls_explained_cases(settings, list);
    ls_wire_cases(settings, list);
    ls_small_cases(settings, list);
    ls_network_cases(settings, list);
    ls_performance_cases(settings, list);
    ls_sdc_cases(settings, list);
    ls_audit_cases(settings, list);
    ls_kernels_cases(settings, list);
}

void ls_rows_inside(const ls_case_settings *settings, ls_case *row, int first, int second)
{
    row->kind = LS_INSIDE;
    row->number[0] = first;
    row->number[1] = second;
    ls_text_put(row->text, sizeof row->text, "%s",
                settings->device == NULL ? "cpu" : settings->device);
}

void ls_rows_keep_protocol(ls_case_list *list)
{
    int kept = 0;
    for (int i = 0; i < list->count; i++) {
        if (list->row[i].kind == LS_PROTOCOL) {
            list->row[kept++] = list->row[i];
        }
    }
    list->count = kept;
}

void ls_rows_free(ls_case_list *list)
{
    free(list->row);
    memset(list, 0, sizeof *list);
}

ls_spec ls_rows_evidence(const ls_case_settings *settings, int level, int world, int nodes,
                         double bucket_mb)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_EVIDENCE);
    spec.level = level;
    spec.world = world;
    spec.nodes = nodes;
    spec.bucket_mb = bucket_mb;
    spec.seed = settings->seed;
    spec.steps = 2;
    ls_text_put(spec.dump_steps, sizeof spec.dump_steps, "1,2");
    spec.dump_all = true;
    if (level > 0) {
        ls_text_put(spec.loss_scale, sizeof spec.loss_scale, "128");
    }
    return spec;
}

void ls_rows_bucket_id(double bucket_mb, char *text)
{
    if (bucket_mb == LS_BUCKET_DELAYED) {
        ls_text_put(text, 24, ".delay");
    } else if (bucket_mb < 0) {
        text[0] = '\0';
    } else {
        ls_text_put(text, 24, ".b%gmb", bucket_mb);
    }
}
