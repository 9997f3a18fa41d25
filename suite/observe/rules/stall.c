/* Whether ranks waited in a collective call that another rank never entered, as the libraries of
 * collectives/ saw their calls; and which rank the others wait for most. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suite/observe/trace/collectives_read.h"
#include "suite/observe/trace/job.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "rules.h"

/* How the job ended, where `lockstep observe` started it. */
typedef struct job_end {
    bool known, well; /* well: with exit code 0 */
    bool asked;       /* somebody interrupted it: a call that was not entered might have been */
    int64_t ended_ns; /* 0: not known */
    const char *boot; /* of that clock, or "" */
} job_end;

static job_end read_end(const ls_observe_trace *trace)
{
    const cJSON *outcome = cJSON_GetObjectItemCaseSensitive(trace->record.job, "outcome");
    return (job_end){.known = trace->record.state != LS_RECORD_UNKNOWN,
                     .well = trace->record.state == LS_RECORD_DONE,
                     .asked = ls_job_was_stopped(trace),
                     .ended_ns = ls_json_integer(outcome, "ended_ns", 0),
                     .boot = ls_json_string(outcome, "boot", "")};
}

/* Ranks of a communicator whose times are of one clock, with all their calls. */
typedef struct group {
    const ls_collectives *of;
    const ls_collectives_comm *comm;
    int count;
    const ls_collectives_member **member;
} group;

static const ls_collectives_process *process_of(const ls_collectives *of,
                                                const ls_collectives_member *member)
{
    return &of->process[member->process];
}

/* Where a file ends before its process did, comm_end alone says how many calls there were: the
 * members that are known to their end, share the clock of `first` and come at or after it. */
static void gather(const ls_collectives *of, const ls_collectives_comm *comm, int first, group *out)
{
    const char *boot = process_of(of, &comm->member[first])->boot;
    *out = (group){.of = of, .comm = comm};
    out->member = ls_list_make((size_t)comm->member_count, sizeof *out->member);
    for (int i = first; i < comm->member_count && boot[0] != '\0'; i++) {
        const ls_collectives_member *one = &comm->member[i];
        if (strcmp(process_of(of, one)->boot, boot) == 0 &&
            (one->closed || !process_of(of, one)->cut)) {
            out->member[out->count++] = one;
        }
    }
}

static bool begins_a_group(const ls_collectives *of, const ls_collectives_comm *comm, int index)
{
    for (int i = 0; i < index; i++) {
        if (strcmp(process_of(of, &comm->member[i])->boot,
                   process_of(of, &comm->member[index])->boot) == 0) {
            return false;
        }
    }
    return true;
}

/* ---- a call that a rank never entered -------------------------------------------------------- */

typedef struct missing {
    int world;   /* of the communicator */
    char op[20]; /* whose calls are numbered; "": all */
    ls_collectives_call call;
    int behind, entered;        /* how many ranks */
    char ranks[80], others[80]; /* "1, 3" */
    double waited_s;            /* 0: not known */
    double stall_s;
    bool gone;     /* those behind ended as programs do: no more calls will come */
    bool all_gone; /* and so did those that entered it */
} missing;

static void add_rank(char *text, size_t bytes, int rank)
{
    if (strlen(text) + 16 < bytes) {
        ls_text_add(text, bytes, "%s%d", text[0] != '\0' ? ", " : "", rank);
    } else if (strstr(text, "...") == NULL) {
        ls_text_add(text, bytes, ", ...");
    }
}

/* The last time at which a rank is known to have been in a call that it could not leave. */
static int64_t last_seen_ns(const group *g, const ls_collectives_member *member, const job_end *end)
{
    const ls_collectives_process *process = process_of(g->of, member);
    int64_t last_ns = member->closed ? member->closed_ns : process->ended_ns;
    bool killed = !member->closed && !process->ended;
    return killed && strcmp(process->boot, end->boot) == 0 ? end->ended_ns : last_ns;
}

/* Fills in what those that entered the call and those that did not tell of it. */
static void look_at_members(const group *g, const job_end *end, missing *m)
{
    m->gone = m->all_gone = true;
    for (int i = 0; i < g->count; i++) {
        const ls_collectives_member *one = g->member[i];
        const ls_collectives_process *process = process_of(g->of, one);
        bool gone = one->closed || process->ended;
        m->all_gone = m->all_gone && gone;
        if (one->calls <= m->call.number) {
            m->behind++;
            m->gone = m->gone && gone;
            add_rank(m->ranks, sizeof m->ranks, process->job);
            continue;
        }
        m->entered++;
        m->stall_s = process->stall_s;
        add_rank(m->others, sizeof m->others, process->job);
        int64_t from_ns = m->call.number < one->count ? one->entered_ns[m->call.number] : 0;
        int64_t until_ns = last_seen_ns(g, one, end);
        if (from_ns > 0 && until_ns > from_ns) {
            m->waited_s = fmax(m->waited_s, (double)(until_ns - from_ns) * 1e-9);
        }
        if (one->running_s > 0 && one->running.number == m->call.number) {
            m->waited_s = fmax(m->waited_s, one->running_s);
            m->call = m->call.op[0] == '\0' ? one->running : m->call;
        }
    }
}

/* The first call that some ranks of the group entered and others did not; false: there is none. */
static bool find_missing(const group *g, const job_end *end, missing *m)
{
    int64_t least = INT64_MAX, most = 0;
    for (int i = 0; i < g->count; i++) {
        least = g->member[i]->calls < least ? g->member[i]->calls : least;
        most = g->member[i]->calls > most ? g->member[i]->calls : most;
    }
    if (g->count < 2 || least >= most) {
        return false;
    }
    *m = (missing){.world = g->comm->world, .call = {.number = least, .root = -1}};
    ls_text_put(m->op, sizeof m->op, "%s", g->comm->op);
    if (least < g->comm->count && g->comm->call[least].rank >= 0) {
        m->call = g->comm->call[least];
    }
    look_at_members(g, end, m);
    return true;
}

/* The ranks of a job that is killed are seldom in the same call: they go on without waiting for the
 * device, and do not die at once. So a call counts as left out where the others waited long for it,
 * or where the ranks behind ended by themselves, by an error too: then it could not come. A job
 * that ended well all the same may have been started again after that (elastic), which kills the
 * others.
 */
static ls_verdict_code code_of(const missing *m, const job_end *end)
{
    bool waited = m->waited_s >= m->stall_s;
    if (end->well) {
        return m->all_gone ? LS_FAIL : waited ? LS_WEAK : LS_PASS;
    }
    if (end->asked) { /* each rank ends where the signal finds it */
        return waited ? LS_WEAK : LS_PASS;
    }
    return waited || (m->gone && end->known) ? LS_FAIL : m->gone ? LS_WEAK : LS_PASS;
}

static void describe(const missing *m, char *text, size_t bytes)
{
    const ls_collectives_call *call = &m->call;
    ls_text_put(text, bytes, "rank%s %s never entered call %lld ", m->behind > 1 ? "s" : "",
                m->ranks, (long long)call->number + 1);
    if (m->op[0] != '\0') {
        ls_text_add(text, bytes, "of %s ", m->op);
    }
    ls_text_add(text, bytes, "of a communicator of %d ranks", m->world);
    if (call->op[0] != '\0') {
        ls_text_add(text, bytes, ", %s%s%s of %lld %s", call->op,
                    call->reduce[0] != '\0' ? " " : "", call->reduce, (long long)call->elements,
                    strcmp(call->type, "?") == 0 ? "elements" : call->type);
    }
    ls_text_add(text, bytes, ", which rank%s %s did", m->entered > 1 ? "s" : "", m->others);
    if (m->waited_s >= 0.1) { /* less is nothing to read */
        ls_text_add(text, bytes, "; the wait lasted %.1f s", m->waited_s);
    }
}

static void report_missing(const missing *m, ls_verdict_code code, const job_end *end,
                           ls_observe_finding *out)
{
    char text[400];
    describe(m, text, sizeof text);
    ls_verdict_set(&out->verdict, code, "%s%s", text,
                   code == LS_FAIL ? ""
                   : end->asked    ? ", then somebody stopped the job"
                   : end->well     ? "; the job ended well all the same"
                                   : "; how the job ended is not known");
    if (m->waited_s >= m->stall_s) {
        ls_verdict_measured(&out->verdict, m->waited_s, m->stall_s, "s", "LS_OBSERVE_STALL_S");
    }
    ls_verdict_cause(&out->verdict,
                     m->gone ? "rank%s %s had ended or left the communicator by then"
                             : "rank%s %s took a branch without that call, left the loop, died, or "
                               "was busy with something else",
                     m->behind > 1 ? "s" : "", m->ranks);
    ls_finding_blame(out, "",
                     "make every rank call the same collectives as often: no return, break or "
                     "condition on the rank around them, as many batches on each%s",
                     m->gone ? "" : "; py-spy dump of that rank's process shows where it is");
}

/* Whether an earlier finding is as bad; the longer wait is the one to report. */
static bool is_worse(ls_verdict_code code, const missing *m, ls_verdict_code than_code,
                     const missing *than)
{
    if (code == LS_PASS || than_code == LS_PASS || code == than_code) {
        return code != LS_PASS && (than_code == LS_PASS || m->waited_s > than->waited_s);
    }
    return code == LS_FAIL;
}

/* ---- a rank that comes last ------------------------------------------------------------------ */

typedef struct late {
    int64_t calls;    /* that all ranks of a group entered */
    double longest_s; /* from the last but one's entry to the last one's */
    int longest_rank;
    ls_collectives_call longest;
    int world;
    int rank;     /* which the others wait for again and again; -1: none */
    double share; /* of the time, that all others were in a call that it had not entered */
    double last;  /* share of the calls that it entered last */
} late;

static const ls_tol late_excess = LS_TOL(
    0.1, "a tenth of the time more than for any other rank: less is nothing that a user would "
         "look for, and on a busy machine ranks hold each other up by turns");

/* One rank of a group: calls that it entered last, and the time that all others waited meanwhile,
 * where overlapping waits count once. */
typedef struct tally {
    int64_t last, waited_ns, until_ns;
} tally;

/* The times of a call: of the last rank, of the one before it. False: not all entered it. */
static bool order_entries(const group *g, int64_t number, int *last, int64_t *before_ns,
                          int64_t *last_ns)
{
    *last = -1;
    *before_ns = *last_ns = 0;
    for (int i = 0; i < g->count; i++) {
        int64_t at_ns = number < g->member[i]->count ? g->member[i]->entered_ns[number] : 0;
        if (at_ns <= 0) {
            return false;
        }
        if (at_ns > *last_ns) {
            *before_ns = *last_ns;
            *last_ns = at_ns;
            *last = i;
        } else if (at_ns > *before_ns) {
            *before_ns = at_ns;
        }
    }
    return true;
}

/* The rank that the others wait for most, if it is last in more than half of the calls by three
 * standard deviations of a fair coin (of ranks that are equally fast each is last in half of them
 * at most), and holds them up for longer than any of them holds up it and the rest. */
static void find_slow(const group *g, const tally *t, int64_t calls, int64_t span_ns, late *out)
{
    int slow = 0;
    int64_t other_ns = 0;
    for (int i = 1; i < g->count; i++) {
        slow = t[i].waited_ns > t[slow].waited_ns ? i : slow;
    }
    for (int i = 0; i < g->count; i++) {
        other_ns = i != slow && t[i].waited_ns > other_ns ? t[i].waited_ns : other_ns;
    }
    double share = span_ns > 0 ? (double)t[slow].waited_ns / (double)span_ns : 0;
    double excess = span_ns > 0 ? (double)(t[slow].waited_ns - other_ns) / (double)span_ns : 0;
    if ((double)t[slow].last > 0.5 * (double)calls + 1.5 * sqrt((double)calls) &&
        excess > late_excess.value && share > out->share) {
        out->rank = process_of(g->of, g->member[slow])->job;
        out->share = share;
        out->last = (double)t[slow].last / (double)calls;
    }
}

static void measure(const group *g, late *out)
{
    if (g->count < 2) {
        return;
    }
    tally *t = ls_list_make((size_t)g->count, sizeof *t);
    int64_t first_ns = 0, end_ns = 0, calls = 0;
    for (int64_t n = 0; n < g->member[0]->count && n < g->comm->count; n++) {
        int last;
        int64_t before_ns, last_ns;
        if (!order_entries(g, n, &last, &before_ns, &last_ns)) {
            continue;
        }
        calls++;
        first_ns = first_ns == 0 ? last_ns : first_ns;
        end_ns = last_ns > end_ns ? last_ns : end_ns;
        t[last].last++;
        int64_t from_ns = before_ns > t[last].until_ns ? before_ns : t[last].until_ns;
        t[last].waited_ns += calls > 1 && last_ns > from_ns ? last_ns - from_ns : 0;
        t[last].until_ns = last_ns > t[last].until_ns ? last_ns : t[last].until_ns;
        if ((double)(last_ns - before_ns) * 1e-9 > out->longest_s) {
            out->longest_s = (double)(last_ns - before_ns) * 1e-9;
            out->longest_rank = process_of(g->of, g->member[last])->job;
            out->longest = g->comm->call[n];
            out->longest.number = n;
            out->world = g->comm->world;
        }
    }
    out->calls += calls;
    find_slow(g, t, calls, end_ns - first_ns, out);
    free(t);
}

/* A slow rank is no wrong training: what was measured is said where the rule passes. */
static void report_late(const late *of, ls_observe_finding *out)
{
    ls_verdict_pass(
        &out->verdict, of->calls,
        "all ranks entered %lld calls; the longest wait was %.2g s, for rank %d in call "
        "%lld of a communicator of %d ranks (%s of %lld %s)",
        (long long)of->calls, of->longest_s, of->longest_rank, (long long)of->longest.number + 1,
        of->world, of->longest.op, (long long)of->longest.elements, of->longest.type);
    if (of->rank >= 0) {
        ls_text_add(out->verdict.evidence, sizeof out->verdict.evidence,
                    "; the others wait for rank %d: %.0f %% of the time, and it is the last one in "
                    "%.0f %% of the calls",
                    of->rank, 100 * of->share, 100 * of->last);
        ls_finding_blame(out, "",
                         "rank %d is slower than the others: look at its data, its processor's and "
                         "device's clocks, and what it does alone (logging, saving, validation)",
                         of->rank);
    }
}

/* ---- the rule -------------------------------------------------------------------------------- */

/* A function of a communicator of NCCL's lists only the ranks that called it. */
static ls_collectives_comm with_all_ranks(const ls_collectives *of, const ls_collectives_comm *comm)
{
    ls_collectives_comm all = *comm;
    all.member_count = 0;
    all.member = NULL;
    for (int i = 0; i < of->comm_count && all.member == NULL; i++) {
        const ls_collectives_comm *whole = &of->comm[i];
        if (whole->id != comm->id || strcmp(whole->op, "*") != 0) {
            continue;
        }
        all.world = whole->world;
        all.member = ls_list_make((size_t)(whole->member_count + 1), sizeof *all.member);
        all.member_count = whole->member_count;
        for (int k = 0; k < whole->member_count; k++) {
            all.member[k] = whole->member[k];
            for (int n = 0; n < comm->member_count; n++) {
                all.member[k] =
                    comm->member[n].rank == whole->member[k].rank ? comm->member[n] : all.member[k];
            }
        }
    }
    return all;
}

static bool is_running(const ls_collectives_comm *comm)
{
    for (int i = 0; i < comm->member_count; i++) {
        if (comm->member[i].running_s > 0) {
            return true;
        }
    }
    return false;
}

typedef struct search {
    job_end end;
    missing worst;
    ls_verdict_code code;
    late late;
} search;

static void look_at(const ls_collectives *of, const ls_collectives_comm *comm, bool timed,
                    search *s)
{
    for (int i = 0; i < comm->member_count; i++) {
        group g;
        missing m;
        if (!begins_a_group(of, comm, i)) {
            continue;
        }
        gather(of, comm, i, &g);
        if (find_missing(&g, &s->end, &m)) {
            ls_verdict_code code = code_of(&m, &s->end);
            if (is_worse(code, &m, s->code, &s->worst)) {
                s->code = code;
                s->worst = m;
            }
        }
        if (timed) {
            measure(&g, &s->late);
        }
        free(g.member);
    }
}

static void look_at_all(const ls_collectives *of, search *s)
{
    for (int i = 0; i < of->comm_count; i++) {
        const ls_collectives_comm *comm = &of->comm[i];
        if (comm->op[0] == '\0' && comm->world > 1) {
            look_at(of, comm, true, s);
        } else if (strcmp(comm->op, "*") != 0 && is_running(comm)) {
            ls_collectives_comm all = with_all_ranks(of, comm);
            look_at(of, &all, false, s);
            free(all.member);
        }
    }
}

static bool is_shared(const ls_collectives *of)
{
    for (int i = 0; i < of->comm_count; i++) {
        if (of->comm[i].world > 1) {
            return true;
        }
    }
    return false;
}

void ls_rules_collectives_stall(const ls_observe_trace *trace, ls_observe_finding *out)
{
    ls_collectives of;
    search s = {.end = read_end(trace), .code = LS_PASS, .late = {.rank = -1}};
    ls_collectives_read(trace->record.directory, &of);
    if (of.broken[0] != '\0') {
        ls_verdict_set(&out->verdict, LS_INFRA, "%s", of.broken);
    } else if (of.files == 0 || !is_shared(&of)) {
        ls_verdict_set(&out->verdict, LS_SKIP, "%s",
                       of.files == 0 ? "NCCL was not looked at" : "no communicator of two ranks");
    } else {
        look_at_all(&of, &s);
        if (s.code != LS_PASS) {
            report_missing(&s.worst, s.code, &s.end, out);
        } else if (s.late.calls > 0) {
            report_late(&s.late, out);
        } else {
            ls_verdict_set(&out->verdict, LS_WEAK,
                           "the interposer saw no call of two ranks of one machine, and NCCL's "
                           "profiler reported no stall");
        }
    }
    ls_collectives_free(&of);
}
