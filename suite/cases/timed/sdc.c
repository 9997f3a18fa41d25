/* The same steps on every device, twice: equal bits, or the odd one is named (suite/judge/sdc.h).
 */
#include "suite/judge/judges.h"

#include "suite/cases/rows.h"

static void judge(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    ls_sdc sdc;
    char text[sizeof out->evidence];
    ls_sdc_compare(&job[0], &job[1], &sdc);
    ls_sdc_text(&sdc, text, sizeof text);
    switch (sdc.result) {
    case LS_SDC_EQUAL:
        ls_verdict_pass(out, sdc.compared * sdc.steps, "%s", text);
        return;
    case LS_SDC_ODD:
        ls_verdict_cause(
            out, "a device that computes wrong: the others agree and repeat, so it is not the "
                 "engines");
        break;
    case LS_SDC_UNREPEATED:
    case LS_SDC_UNDECIDED:
        ls_verdict_cause(
            out, "engines that do not repeat although --deterministic was asked for, or too few "
                 "devices to say which of them is the odd one");
        break;
    case LS_SDC_WITHOUT:
        ls_verdict_set(out, LS_UNSUPPORTED, "%s", text);
        return;
    }
    ls_verdict_fail(out, "%s", text);
}

static void add(const ls_case_settings *settings, ls_case_list *list, const ls_spec *spec,
                const char *id)
{
    ls_spec twice[] = {*spec, *spec};
    twice[1].repeat = 1;
    ls_rows_specs(list, settings, &(ls_row){.requirement = "P2", .judge = judge}, twice, 2,
                  "%s.w%d", id, spec->world);
}

void ls_sdc_cases(const ls_case_settings *settings, ls_case_list *list)
{
    ls_spec small = ls_matrix_sdc("resnet8", 16, 4, 3);
    small.role = LS_ROLE_EVIDENCE;
    small.seed = settings->seed;
    small.steps = 6;
    small.threads = 1;
    add(settings, list, &small, "sdc.small");
    for (int i = 0; settings->bench != NULL && i < settings->bench->count; i++) {
        const ls_spec *spec = &settings->bench->spec[i];
        if (spec->role == LS_ROLE_SDC && spec->repeat == 0) {
            add(settings, list, spec, "sdc.timed");
        }
    }
}
