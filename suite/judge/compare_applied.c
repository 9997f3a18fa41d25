#include "compare.h"

#include <string.h>

#include "kernels/core/log.h"

/* The only node that reads `node`, or -1. */
static int reader_of(const ls_nettab *net, int node)
{
    int found = -1;
    for (int i = 0; i < net->node_count; i++) {
        if (net->node[i].input == node || net->node[i].other == node) {
            if (found >= 0) {
                return -1;
            }
            found = i;
        }
    }
    return found;
}

/* Whether ReLU and then one convolution, and nothing else, read the norm: its output need not be in
 * memory. */
static bool is_inner(const ls_nettab *net, int norm)
{
    int relu = reader_of(net, norm);
    int conv = relu >= 0 && net->node[relu].kind == LS_NETTAB_RELU ? reader_of(net, relu) : -1;
    return conv >= 0 && net->node[conv].kind == LS_NETTAB_CONV;
}

/* The batch norm of that name, or -1. */
static int find_norm(const ls_nettab *net, const char *name, size_t length)
{
    static const char ending[] = ".weight";
    for (int i = 0; i < net->node_count; i++) {
        if (net->node[i].kind == LS_NETTAB_NORM) {
            const char *weight = net->param[net->node[i].weight].name;
            if (strncmp(weight, name, length) == 0 && strcmp(weight + length, ending) == 0) {
                return i;
            }
        }
    }
    return -1;
}

static ls_status read_names(const ls_nettab *net, const ls_dumpfile *file, const char *text,
                            bool *applied)
{
    for (const char *at = text; *at != '\0';) {
        size_t length = strcspn(at, ",");
        int norm = find_norm(net, at, length);
        if (norm < 0 || !is_inner(net, norm) || applied[norm] ||
            (at[length] == ',' && at[length + 1] == '\0')) {
            return ls_log_fail(LS_ERR_USAGE,
                               "%s: applied '%.*s': allowed: each once, separated by commas, batch "
                               "norms of %s between two convolutions",
                               ls_dumpfile_path(file), (int)(length < 60 ? length : 60), at,
                               net->arch);
        }
        applied[norm] = true;
        at += length + (at[length] == ',');
    }
    return LS_OK;
}

ls_status ls_compare_applied_read(ls_compare_judgement *j)
{
    ls_oracle_step *step = &j->evidence->step;
    const ls_nettab *net = &j->evidence->net;
    for (int rank = 0; rank < j->evidence->world; rank++) {
        const ls_dumpfile *file = j->evidence->file[rank];
        const char *text = ls_dumpfile_text(file, "applied", "");
        bool applied[LS_NETTAB_NODES_MAX] = {false};
        if (text[0] != '\0' && (!j->facts->fused || j->level == 0 || step->half != LS_BITS_F16)) {
            return ls_log_fail(LS_ERR_USAGE,
                               "%s: applied '%.60s': allowed at O1 to O3 in fp16, in a job with "
                               "--fuse",
                               ls_dumpfile_path(file), text);
        }
        LS_TRY(read_names(net, file, text, applied));
        for (int i = 0; i < net->node_count; i++) {
            step->applied[i] = applied[i] && (rank == 0 || step->applied[i]);
        }
    }
    return LS_OK;
}
