/* What happens when a rank dies: the others find out by themselves, and nothing is left behind. */
#include "suite/cases/rows.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/text.h"
#include "suite/judge/diagnose.h"
#include "suite/judge/judges.h"

static void judge_killed(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int victim = row->job[0].kill_rank;
    if (job->state == LS_RECORD_DONE) {
        ls_verdict_set(out, LS_WEAK, "the job was over before rank %d was killed", victim);
        return;
    }
    if (job->state != LS_RECORD_KILLED || job->first_rank != victim || job->signal != SIGKILL) {
        ls_verdict_fail(out, "expected rank %d ended by signal 9, got rank=%d code=%d signal=%d",
                        victim, job->first_rank, job->code, job->signal);
    }
    for (int k = 0; k < job->world; k++) {
        if (k != victim && (job->rank[k].code != LS_ERR_PEER_LOST || job->rank[k].signal != 0)) {
            ls_verdict_fail(out,
                            "rank=%d did not leave by itself with exit code 10: code=%d signal=%d",
                            k, job->rank[k].code, job->rank[k].signal);
            ls_diagnose_endings_codes(job, out->cause, (int)sizeof out->cause);
        }
    }
    ls_verdict_pass(out, job->world,
                    "rank %d ended by signal 9, the other %d left with exit code 10", victim,
                    job->world - 1);
}

/* ---- where a rank finds its place ------------------------------------------------------------ */

#define NO_RANK \
    "R=$RANK W=$WORLD_SIZE; unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK; "
#define GO "exec \"$0\" \"$@\""
#define OPEN_MPI                                                                     \
    "OMPI_COMM_WORLD_RANK=$R OMPI_COMM_WORLD_SIZE=$W OMPI_COMM_WORLD_LOCAL_RANK=$R " \
    "OMPI_COMM_WORLD_LOCAL_SIZE=$W "
#define SLURM \
    "SLURM_PROCID=$R SLURM_STEP_NUM_TASKS=$W SLURM_LOCALID=$R SLURM_NODEID=0 SLURM_JOB_ID=77 "

#define MEET "--dist-url=file://$LS_RUN_DIR/meet --world-size=$W --rank=$R"
/* One process starts the others; the job's other rank has nothing to do. */
#define FIRST_STARTS "[ $RANK = 0 ] || exit 0; " NO_RANK "unset MASTER_ADDR MASTER_PORT LS_TOKEN; "

static const struct place {
    const char *id, *script;
    int world, nodes;
} places[] = {
    {"torchrun", NULL, 3, 1},
    {"nodes", NULL, 4, 2},
    {"mpirun", NO_RANK OPEN_MPI GO, 3, 1},
    {"mpirun.no-address", NO_RANK "unset MASTER_ADDR; " OPEN_MPI GO, 3, 1},
    /* Open MPI numbers no nodes: ranks of one follow each other */
    {"mpirun.nodes",
     "L=$LOCAL_RANK P=$LOCAL_WORLD_SIZE; " NO_RANK
     "OMPI_COMM_WORLD_RANK=$R OMPI_COMM_WORLD_SIZE=$W OMPI_COMM_WORLD_LOCAL_RANK=$L "
     "OMPI_COMM_WORLD_LOCAL_SIZE=$P " GO,
     4, 2},
    {"mpiexec",
     NO_RANK "unset MASTER_ADDR; "
             "PMI_RANK=$R PMI_SIZE=$W MPI_LOCALRANKID=$R MPI_LOCALNRANKS=$W " GO,
     3, 1},
    {"srun", NO_RANK SLURM GO, 3, 1},
    {"srun.node-list",
     NO_RANK "unset MASTER_ADDR LS_TOKEN; SLURM_STEP_NODELIST=localhost " SLURM GO, 2, 1},
    {"srun.node-list.range",
     NO_RANK "unset MASTER_ADDR LS_TOKEN; SLURM_STEP_NODELIST='127.0.0.[1-2,4]' " SLURM GO, 2, 1},
    {"srun.node-list.mixed",
     NO_RANK "unset MASTER_ADDR LS_TOKEN; SLURM_STEP_NODELIST='localhost,b[2-3]' " SLURM GO, 2, 1},
    {"torchrun-in-slurm", "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=7 " GO, 3, 1},
    {"torchrun.agent", "TORCHELASTIC_USE_AGENT_STORE=True " GO, 3, 1},
    {"token-first", "export SLURM_JOB_ID=$RANK TORCHELASTIC_RUN_ID=$RANK; " GO, 3, 1},
    {"run-id-first", "unset LS_TOKEN; export SLURM_JOB_ID=$RANK TORCHELASTIC_RUN_ID=abc; " GO, 3,
     1},
    /* the agent has MASTER_PORT itself and another job's store the next: found as listening */
    {"torchrun.agent.busy",
     "if [ $RANK = 0 ]; then P=$((MASTER_PORT + 1)); for N in $MASTER_PORT $P; do "
     "RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 LS_TOKEN=x LS_RUN_DIR= MASTER_PORT=$N "
     "{bin}/lockstep-collectives "
     "--timeout=30 >/dev/null 2>&1 & A=\"$A $!\"; H=$(printf %04X $N); "
     "for I in 1 2 3 4 5 6 7 8 9 10; do grep -q \":$H 00000000:0000 0A\" /proc/net/tcp && break; "
     "sleep 0.2; done; done; TORCHELASTIC_USE_AGENT_STORE=True \"$0\" \"$@\"; C=$?; kill $A; "
     "exit $C; fi; TORCHELASTIC_USE_AGENT_STORE=True " GO,
     3, 1},
    /* another job on the next port, and no job has an id; its rank 0 listens first */
    {"torchrun.agent.neighbour",
     "unset LS_TOKEN; export TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=True; "
     "LS_RUN_DIR= MASTER_PORT=$((MASTER_PORT + 1)) \"$0\" \"$@\" & "
     "[ $RANK != 0 ] || sleep 0.3; \"$0\" \"$@\"; C=$?; wait $! && exit $C",
     3, 1},
    {"torchrun.run-id", "unset LS_TOKEN; TORCHELASTIC_RUN_ID=abc " GO, 3, 1},
    {"late.rank0", "[ $RANK != 0 ] || sleep 0.7; " GO, 3, 1},
    {"late.rank2", "[ $RANK != 2 ] || sleep 0.7; " GO, 3, 1},
    /* as PyTorch's ImageNet script is started, a terminal for each rank */
    {"dist.env", NO_RANK GO " --dist-url=env:// --world-size=$W --rank=$R", 3, 1},
    {"dist.env.given",
     GO " --dist-url env:// --dist-backend gloo --world-size $WORLD_SIZE --rank $RANK", 2, 1},
    {"dist.tcp",
     NO_RANK "U=tcp://$MASTER_ADDR:$MASTER_PORT; unset MASTER_ADDR MASTER_PORT; " GO
             " --dist-url $U --dist-backend nccl --world-size $W --rank $R",
     3, 1},
    /* which ranks share a machine is not known: each counts as alone */
    {"dist.file", NO_RANK "unset MASTER_ADDR MASTER_PORT LS_TOKEN LS_NODE_ADDR; " GO " " MEET, 3,
     3},
    /* what a job before left there: a port on which nothing listens */
    {"dist.file.stale",
     NO_RANK
     "unset MASTER_ADDR MASTER_PORT LS_TOKEN LS_NODE_ADDR; if [ $R = 1 ]; then "
     "echo lockstep 127.0.0.1 9 0123 >$LS_RUN_DIR/meet; "
     "touch -d '1 hour ago' $LS_RUN_DIR/meet; else sleep 0.5; fi; [ $R != 0 ] || sleep 0.5; " GO
     " --timeout=20 " MEET,
     3, 3},
    /* as above, left in this second: its time says nothing */
    {"dist.file.left-now",
     NO_RANK "unset MASTER_ADDR MASTER_PORT LS_TOKEN LS_NODE_ADDR; if [ $R = 1 ]; then "
             "echo lockstep 127.0.0.1 9 0123 >$LS_RUN_DIR/meet; else sleep 0.3; fi; "
             "[ $R != 0 ] || sleep 0.3; " GO " --timeout=20 " MEET,
     3, 3},
    /* torch.distributed.launch without --use_env: the place on the machine is an argument, in front
     * of the others; up to 1.13 with an underscore */
    {"dist.local-rank.first",
     "L=$LOCAL_RANK; unset LOCAL_RANK; S=$0; set -- --local-rank=$L \"$@\"; exec \"$S\" \"$@\"", 2,
     1},
    {"dist.local-rank", "L=$LOCAL_RANK; unset LOCAL_RANK; " GO " --local_rank=$L", 2, 1},
    {"dist.pass-local-rank",
     FIRST_STARTS "{bin}/lockstep-launch --nproc-per-node=2 --pass-local-rank "
                  "-- sh -c 'unset LOCAL_RANK; exec \"$0\" \"$@\"' \"$0\" \"$@\"",
     2, 1},
    {"slurm-batch", NO_RANK "SLURM_PROCID=0 " GO, 1, 1}, /* a batch script's shell: no step */
};

static void judge_place(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int per_node = job->world / row->job[0].nodes;
    for (int rank = 0; rank < job->world; rank++) {
        const cJSON *start = job->rank[rank].start;
        int want[] = {rank, job->world, rank % per_node, per_node, rank / per_node};
        static const char *const name[] = {"rank", "world", "local_rank", "local_world", "node"};
        for (int i = 0; i < 5; i++) {
            int have = ls_json_int(start, name[i], -1);
            if (have != want[i]) {
                ls_verdict_fail(out, "rank=%d took its %s for %d, expected %d", rank, name[i], have,
                                want[i]);
            }
        }
    }
    ls_verdict_pass(out, 5 * job->world, "the places of %d ranks", job->world);
    if (out->code == LS_PASS && job->world > 1) { /* a wrong place is no matter of replicas */
        ls_judge_lockstep(row, job, out);
    }
}

/* --gpu on a CPU: rank 0 says once that it is not used. */
static void judge_gpu(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    static const char says[] = "--gpu 1 is not used";
    judge_place(row, job, out);
    for (int rank = 0; rank < job->world && out->code == LS_PASS; rank++) {
        if (ls_endings_says(job, rank, says) != (rank == 0)) {
            ls_verdict_fail(out, "rank=%d %s '%s'", rank, rank == 0 ? "does not say" : "says",
                            says);
        }
    }
}

/* The tutorial's line for one node, its FREEPORT and all. */
#define SPAWN                                                                                \
    FIRST_STARTS "LS_DEVICES=2 " GO " --dist-url 'tcp://127.0.0.1:FREEPORT' --dist-backend " \
                 "'nccl' --multiprocessing-distributed --world-size 1 --rank 0"

/* --multiprocessing-distributed: -b is the node's, and its ranks share it. */
static void judge_spawned(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    judge_place(row, job, out);
    for (int k = 0; k < job->world && job->rank[k].step_count > 0; k++) {
        int share = row->job[0].batch_size / job->world;
        if (job->rank[k].step[0].images != share) {
            ls_verdict_fail(out, "rank=%d trains %d images a step, expected its share of %d", k,
                            (int)job->rank[k].step[0].images, share);
        }
    }
}

/* ---- what is refused ------------------------------------------------------------------------- */

#define JOB "resnet8 O0 b0.05 "
#define ALONE "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK; "
#define RENDEZVOUS LS_ERR_RENDEZVOUS

/* How the ranks must end; their jobs run `script`. */
#define ENDED(id, requirement, script, options, world, ...)                            \
    {                                                                                  \
        "launch.refuse." id, requirement, ls_endings_row, JOB world " shell " options, \
            LS_ENDING(__VA_ARGS__), script, .judges_outcome = true                     \
    }
/* One rank in an environment that leaves it no place. */
#define REFUSED(id, script, says) ENDED(id, "L3", script GO, "", "w1", {2}, 1, says, true)
/* One rank with an option that the others have not; every one says which. */
#define ANOTHER(rank, option) "[ $RANK != " rank " ] || set -- \"$@\" " option "; " GO
#define UNEQUAL(id, world, rank, option, says)                                                     \
    ENDED("unequal." id, "L4", ANOTHER(rank, option), "", "w" #world, {2, 2, 2}, (1 << world) - 1, \
          says, true)

static const ls_row refused[] = {
    REFUSED("rank-outside", "RANK=2 WORLD_SIZE=2 ", "RANK=2"),
    REFUSED("rank-negative", "RANK=-1 WORLD_SIZE=2 ", "RANK=-1"),
    REFUSED("rank-word", "RANK=two WORLD_SIZE=3 ", "RANK=two"),
    REFUSED("rank-half", "RANK=0.5 WORLD_SIZE=3 ", "RANK=0.5"),
    REFUSED("rank-missing", "unset RANK; ", "RANK is not"),
    REFUSED("world-missing", "unset WORLD_SIZE; ", "WORLD_SIZE is"),
    REFUSED("world-zero", "WORLD_SIZE=0 ", "WORLD_SIZE=0"),
    REFUSED("world-huge", "WORLD_SIZE=99999999999 ", "WORLD_SIZE=9"),
    REFUSED("local-rank", "WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2 ", "LOCAL_RANK=2"),
    REFUSED("no-address", "unset MASTER_ADDR; WORLD_SIZE=2 ", "MASTER_ADDR"),
    REFUSED("no-port", "unset MASTER_PORT; WORLD_SIZE=2 ", "MASTER_PORT"),
    REFUSED("port-outside", "MASTER_PORT=70000 WORLD_SIZE=2 ", "MASTER_PORT=70000"),
    REFUSED("mpirun.rank-outside", ALONE "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=3 ",
            "OMPI_COMM_WORLD_RANK=3"),
    REFUSED("mpirun.world-missing", ALONE "OMPI_COMM_WORLD_RANK=0 ", "OMPI_COMM_WORLD_SIZE"),
    REFUSED("mpiexec.world-missing", ALONE "PMI_RANK=0 ", "PMI_SIZE"),
    REFUSED("pmix.world-missing", ALONE "PMIX_RANK=0 ", "PMIX_RANK=0"),
    REFUSED("launchers-contradict",
            ALONE "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 PMI_RANK=0 "
                  "PMI_SIZE=3 ",
            "PMI_SIZE=3"),
    REFUSED("world-of-one", "RANK=0 WORLD_SIZE=1 PMI_RANK=1 PMI_SIZE=2 ", "PMI_SIZE=2"),
    REFUSED("loopback", "WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost ", "localhost"),
    REFUSED("srun.rank-outside", ALONE "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=4 ", "SLURM_PROCID=5"),
    ENDED("dist.rank-differs", "L8", GO " --rank=1", "", "w1", {2}, 1, "RANK is 0", true),
    ENDED("dist.tcp-rank-missing", "L8", ALONE GO " --dist-url=tcp://127.0.0.1:2999 --world-size=2",
          "", "w1", {2}, 1, "--rank", true),
    ENDED("dist.free-port", "L8", GO " --dist-url=tcp://127.0.0.1:FREEPORT", "", "w1", {2}, 1,
          "multiprocessing-distributed", true),
    ENDED("dist.spawn-in-job", "L8", GO " --multiprocessing-distributed", "", "w1", {2}, 1,
          "RANK is set", true),
    ENDED("dist.spawn-nodes", "L8",
          ALONE "unset MASTER_ADDR; " GO " --multiprocessing-distributed --world-size=2 --rank=0",
          "", "w1", {2}, 1, "world-size", true),
    ENDED("dist.spawn-batch", "L8",
          ALONE "unset MASTER_ADDR MASTER_PORT; LS_DEVICES=8 LS_RUN_DIR= " GO
                " --multiprocessing-distributed",
          "", "w1", {2}, 1, "ranks share it", true),
    ENDED("dist.file-alone", "L8",
          ALONE GO " --timeout=1 --dist-url=file://$LS_RUN_DIR/none --world-size=2 --rank=1", "",
          "w1", {LS_ERR_RENDEZVOUS}, 1, "no rank 0", true),
    ENDED("run-dir", "L3", "LS_RUN_DIR=/nonexistent/run " GO, "", "w1", {3}, 1, "/nonexistent/run",
          true),
    ENDED("dump-nowhere", "L3", "unset LS_RUN_DIR; " GO, "--dump-steps=1", "w1", {2}, 1,
          "LS_RUN_DIR", true),
    UNEQUAL("lr", 3, "1", "--lr=0.3", "--lr"),
    UNEQUAL("level", 3, "2", "--opt-level=O1", "--opt-level"),
    UNEQUAL("batch", 3, "0", "-b 8", "--batch-size"),
    UNEQUAL("seed", 3, "1", "--seed=4611686018427387904", "--seed"),
    UNEQUAL("bucket", 3, "1", "--bucket-cap-mb=1", "bucket"),
    UNEQUAL("arch", 3, "1", "--arch=resnet20", "arch"),
    UNEQUAL("steps", 3, "1", "--steps=3", "--steps"),
    UNEQUAL("sync-bn", 3, "1", "--sync-bn", "--sync-bn"),
    UNEQUAL("dialect", 3, "2", "--dialect=torch", "not started alike"),
    UNEQUAL("accumulate", 2, "1", "--accumulate=2", "--accumulate"),
    UNEQUAL("momentum", 2, "1", "--momentum=0.8", "--momentum"),
    UNEQUAL("weight-decay", 2, "1", "--weight-decay=0", "--weight-decay"),
    UNEQUAL("optimizer", 2, "1", "--optimizer=adam", "--optimizer"),
    UNEQUAL("schedule", 2, "1", "--schedule=cosine:9s", "--schedule"),
    UNEQUAL("compress", 2, "1", "--compress=fp16", "--compress"),
    UNEQUAL("average", 2, "1", "--average=none", "--average"),
    UNEQUAL("predivide", 2, "1", "--predivide=2", "--predivide"),
    UNEQUAL("loss-scale", 2, "1", "--loss-scale=64", "--loss-scale"),
    UNEQUAL("half", 2, "1", "--half=bf16", "--half"),
    UNEQUAL("num-classes", 2, "1", "--num-classes=12", "--num-classes"),
    UNEQUAL("image-size", 2, "1", "--image-size=20", "--image-size"),
    UNEQUAL("find-unused", 2, "1", "--find-unused", "--find-unused"),
    UNEQUAL("dump-steps", 2, "1", "--dump-steps=1", "--dump-steps"),
    UNEQUAL("digest", 2, "1", "--digest=param", "--digest"),
    UNEQUAL("growth-interval", 2, "1", "--growth-interval=9", "--growth-interval"),
    UNEQUAL("data", 2, "1", "--data=batches:{self}", "--data"),
    ENDED("missing-rank", "L5", "[ $RANK != 2 ] || exit 0; " GO, "--timeout=1", "w3",
          {RENDEZVOUS, RENDEZVOUS, 0}, 3, "rank 2", true),
    ENDED("missing-rank0", "L5", "[ $RANK != 0 ] || exit 0; " GO, "--timeout=1", "w3",
          {0, RENDEZVOUS, RENDEZVOUS}, 6, "127.0.0.1", true),
    ENDED("wrong-token", "L5", "[ $RANK != 1 ] || LS_TOKEN=wrong; " GO, "--timeout=1", "w3",
          {RENDEZVOUS, RENDEZVOUS, RENDEZVOUS}, 5, "rank 1", true),
    ENDED("wrong-port", "L5", "[ $RANK != 1 ] || MASTER_PORT=1; " GO, "--timeout=1", "w3",
          {RENDEZVOUS, RENDEZVOUS, RENDEZVOUS}, 5, "rank 1", true),
    ENDED("duplicate-rank", "L5", "[ $RANK != 2 ] || RANK=1; " GO, "--timeout=1", "w3",
          {LS_ENDINGS_ANY, LS_ENDINGS_ANY, LS_ENDINGS_ANY}, 1, "rank 1", true),
    ENDED("other-world", "L5", "[ $RANK != 1 ] || WORLD_SIZE=4; " GO, "--timeout=1", "w3",
          {LS_ENDINGS_ANY, 2, LS_ENDINGS_ANY}, 2, "4", true),
    /* another job's rank 0 waits on our port: found in the table of listening sockets */
    ENDED("port-in-use", "L5",
          "[ $RANK = 0 ] || exit 0; RANK=0 WORLD_SIZE=2 LS_TOKEN=x LS_RUN_DIR= "
          "{bin}/lockstep-collectives & P=$!; H=$(printf %04X $MASTER_PORT); "
          "for i in 1 2 3 4 5 6 7 8 9 10; do "
          "grep -q \":$H 00000000:0000 0A\" /proc/net/tcp && break; sleep 0.2; done; "
          "\"$0\" \"$@\"; C=$?; kill $P; exit $C",
          "--timeout=2", "w2", {3, 0}, 1, "in use", true),
};

/* ---- lockstep-launch on two machines that share a folder ------------------------------------- */

/* The second node's launcher comes first: it must not take the first one's names. */
#define TWO_NODES                                                                               \
    "D=$LS_RUN_DIR/logs; for N in 1 0; do {bin}/lockstep-launch --nproc-per-node 2 --nnodes 2 " \
    "--node-rank $N --master-addr 192.0.2.1 --master-port 1 --log-dir $D -- sh -c 'echo $RANK " \
    "$WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK' || exit 9; done; "                  \
    "for R in 0 1 2 3; do L=$(cat $D/rank$R.log | tr '\\n' ';'); "                              \
    "[ \"$L\" = \"$R 4 $((R % 2)) 2 $((R / 2));\" ] || { echo \"rank$R.log holds '$L'\"; "      \
    "exit 1; }; done; echo 4 logs"

/* lockstep-launch by itself: the environment of its ranks and its exit code. C is its exit code, F
 * a file in the job's folder, where it runs: a shell reads that name again. A rank that must wait
 * for another looks for what that one wrote. */
#define LAUNCH "cd \"$LS_RUN_DIR\" && F=seen; unset LS_TOKEN; {bin}/lockstep-launch "
#define AWAIT                                                                                    \
    "for I in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do [ -e $F ] && break; sleep " \
    "0.1; done; "
#define ENDS(code) \
    "; C=$?; [ $C = " #code " ] || { echo \"exit code $C\"; exit 1; }; echo " #code " ends"

/* The launcher ends with 0 and rank 0's log says it. Not the subject's: the commands are sh's own.
 */
#define LAUNCHED(id, requirement, says, script)                                                \
    {                                                                                          \
        "launch." id, requirement, ls_endings_row, JOB "shell", LS_ENDING({0}, 1, says, true), \
            script, .inside = true, .judges_outcome = true                                     \
    }

static const ls_row launched[] = {
    LAUNCHED("launcher.clean", "L7", "0 ends", LAUNCH "--nproc-per-node 3 -- true" ENDS(0)),
    LAUNCHED("launcher.first", "L7", "rank 1",
             LAUNCH
             "--nproc-per-node 3 -- sh -c 'F='$F'; [ $RANK != 1 ] || { : > $F; exit 7; }; " AWAIT
             "sleep 0.3; exit $((RANK + 20))'" ENDS(7)),
    LAUNCHED("launcher.killed", "L7", "rank 2",
             LAUNCH
             "--nproc-per-node 3 -- sh -c '[ $RANK != 2 ] || kill -9 $$; sleep 0.2'" ENDS(137)),
    LAUNCHED("launcher.deadline", "L7", "0.5 s",
             LAUNCH "--nproc-per-node 2 --timeout 0.5 -- sleep 60" ENDS(124)),
    LAUNCHED("launcher.stopped", "L7", "signal 15",
             LAUNCH "--nproc-per-node 2 -- sh -c ': > '$F'; exec sleep 60' & P=$!; " AWAIT
                    "kill -TERM $P; wait $P" ENDS(143)),
    /* within --grace the others go on: rank 1 ends by itself */
    LAUNCHED("launcher.grace", "L7", "5 ends",
             LAUNCH
             "--nproc-per-node 2 -- sh -c '[ $RANK != 0 ] || exit 5; sleep 0.6; echo late > '$F"
             "; C=$?; [ $C = 5 ] && grep -q late $F || { echo \"exit code $C\"; exit 1; }; "
             "echo 5 ends"),
    /* after it they get TERM, which they can catch */
    LAUNCHED(
        "launcher.term", "L7", "6 ends",
        LAUNCH
        "--nproc-per-node 2 --grace 0.2 -- sh -c '[ $RANK != 0 ] || exit 6; trap \"echo caught "
        "> '$F'; exit 0\" TERM; for I in 1 2 3 4 5 6 7 8 9; do sleep 0.5; done'; C=$?; "
        "[ $C = 6 ] && grep -q caught $F || { echo \"exit code $C\"; exit 1; }; echo 6 ends"),
    /* kill -9: a process that a rank started in a session of its own ends, too */
    LAUNCHED("launcher.orphans", "L7", "none left",
             LAUNCH
             "--nproc-per-node 2 -- sh -c 'setsid sleep 60 & echo $! >>'$F'; wait' & P=$!; "
             "left() { while read K; do kill -0 $K 2>/dev/null && return; done <$F; return 1; }; "
             "for I in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do "
             "[ -e $F ] && [ $(wc -l <$F) = 2 ] && break; sleep 0.1; done; left || exit 9; "
             "kill -9 $P; for I in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 "
             "25 26 27 28 29 30; do left || break; sleep 0.1; done; left || echo none left"),
    /* the third start of two ends well, in time; or none does, and the code is the failing rank's
     */
    LAUNCHED("launcher.restarts", "L10", "9 starts",
             LAUNCH "--nproc-per-node 3 --max-restarts 2 -- sh -c 'echo "
                    "$TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS >>'$F'; [ $RANK != 1 ] "
                    "|| [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 7'; C=$?; "
                    "N=$(sort $F | uniq -c | tr -s ' \\n' ' '); R=$(wc -l <restarts.jsonl); "
                    "[ \"$C$N$R\" = '0 3 0/2 3 1/2 3 2/2 2' ] || { echo \"$C$N$R\"; exit 1; }; "
                    "echo 9 starts"),
    LAUNCHED("launcher.restarts.used-up", "L10", "7 ends",
             LAUNCH
             "--nproc-per-node 2 --max-restarts 2 -- sh -c '[ $RANK = 0 ] || exit 7'" ENDS(7)),
    LAUNCHED("launcher.restarts.deadline", "L10", "124 ends",
             LAUNCH "--nproc-per-node 2 --max-restarts 99999 --timeout 1 -- sh -c 'sleep 0.2; exit "
                    "7'" ENDS(124)),
    LAUNCHED("launcher.no-command", "L7", "2 ends", LAUNCH "--nproc-per-node 2" ENDS(2)),
    LAUNCHED("launcher.places", "L7", "6 places",
             LAUNCH
             "--nproc-per-node 6 --local-nodes 2 --log-dir $F -- sh -c 'echo $RANK $WORLD_SIZE "
             "$LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK' || exit 9; "
             "for R in 0 1 2 3 4 5; do L=$(cat $F/rank$R.log | tr '\\n' ';'); "
             "[ \"$L\" = \"$R 6 $((R % 3)) 3 $((R / 3));\" ] || { echo \"rank$R.log holds '$L'\"; "
             "exit 1; }; done; echo 6 places"),
    /* one address, port and secret for all ranks of a job; another job's secret is another */
    LAUNCHED("launcher.secret", "L7", "2 secrets",
             LAUNCH "--nproc-per-node 3 -- sh -c 'echo $MASTER_ADDR $MASTER_PORT $LS_TOKEN >> '$F; "
                    "{bin}/lockstep-launch -- sh -c 'echo $LS_TOKEN >> '$F; "
                    "[ $(sort -u $F | wc -l) = 2 ] && [ $(wc -l < $F) = 4 ] && "
                    "[ $(grep -c '^127.0.0.1 [0-9]* [0-9a-f]*$' $F) = 3 ] && "
                    "[ $(awk '{print $NF}' $F | sort -u | wc -l) = 2 ] || { cat $F; exit 1; }; "
                    "echo 2 secrets"),
};

/* ---- --max-restarts -------------------------------------------------------------------------- */

/* A rank fails in step 6, after a checkpoint of step 3. The record holds the later start's steps.
 */
struct restart {
    int first, or ; /* its first step: one of them */
};

static void judge_restarted(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct restart *wanted = row->data;
    ls_case same = *row;
    same.data = LS_JUDGE_SAME("undisturbed and restarted");
    if (job[1].state != LS_RECORD_DONE) {
        ls_verdict_fail(out, "the restarted job did not end well: rank=%d code=%d signal=%d",
                        job[1].first_rank, job[1].code, job[1].signal);
    }
    ls_judge_same(&same, job, out);
    for (int k = 0; k < job[1].world; k++) {
        const cJSON *start = job[1].rank[k].start;
        int first = ls_json_int(start, "first_step", -1);
        int restart = ls_json_int(start, "restart", 0);
        if (restart != 1 || (first != wanted->first && first != wanted->or)) {
            ls_verdict_fail(out,
                            "rank=%d: restart %d began with step %d, expected restart 1, step %d",
                            k, restart, first, wanted->first);
        }
    }
    LS_TEXT(path, PATH_MAX, "%s/restarts.jsonl", job[1].directory);
    if (access(path, R_OK) != 0) {
        ls_verdict_fail(out, "%s: %s", path, strerror(errno));
    }
}

#define RESTARTED(id, fault, ...)                                                               \
    {                                                                                           \
        "launch.restart." id, "L10", judge_restarted,                                           \
            JOB "O2 w2 b0.05 steps=8 | " JOB "O2 w2 b0.05 steps=8 shell --timeout=20 "          \
                "--save-dir={self}/kept --save-every-steps=3 --resume=auto --fault-at=" fault,  \
            &(const struct restart){__VA_ARGS__},                                               \
            FIRST_STARTS "{bin}/lockstep-launch --nproc-per-node=2 --grace 1 --max-restarts 1 " \
                         "-- \"$0\" \"$@\"",                                                    \
            .judges_outcome = true                                                              \
    }

/* ---- the table ------------------------------------------------------------------------------- */

static const ls_row rows[] = {
    /* 100,000 steps must not end before the rank is killed; a Python trainer on a busy machine
     * starts slowly */
    {"launch.kill.rank[0|1|2]", "L1", judge_killed, "O0 w3 b0.1 steps=100000 kill=$1:3 limit=130",
     .judges_outcome = true},
    LAUNCHED("logs.two-nodes", "L6", "4 logs", TWO_NODES),
    {"launch.place.dist.spawn", "L9", judge_spawned, JOB "w2 shell", .script = SPAWN},
    RESTARTED("join.kill.rank[0|1]", "6:$1:join:kill", 1),
    RESTARTED("[forward|reduction|optimizer].[kill|exit].rank[0|1]", "6:$3:$1:$2", 4),
    RESTARTED("save.[kill|exit].rank0", "6:0:save:$1", 4),
    /* rank 0 writes the checkpoint all the same, or notices the loss first */
    RESTARTED("save.[kill|exit].rank1", "6:1:save:$1", 7, 4),
    {"launch.place.dist.gpu-on-cpu", "L9", judge_gpu, JOB "w2 --gpu=1 --device=cpu"},
};

void ls_launch_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const struct place *p = &places[i];
        ls_rows_format(list, settings,
                       &(ls_row){.requirement = strncmp(p->id, "dist.", 5) == 0 ? "L9" : "L2",
                                 .judge = judge_place,
                                 .script = p->script},
                       "launch.place.%s: " JOB "w%d n%d %s", p->id, p->world, p->nodes,
                       p->script != NULL ? "shell" : "");
    }
    LS_ROWS(list, settings, launched);
    LS_ROWS(list, settings, refused);
}
