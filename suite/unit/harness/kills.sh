#!/bin/sh
# Kills, stops and ends ranks and launchers at random moments of a job; everything must be over in time and leave
# nothing: no process, no temporary file, no shared memory.
#
#   suite/unit/harness/kills.sh BUILD COUNT SEED
#
# A third of the signals comes in the job's first 200 ms. Limits (suite/protocol.md, harness/README.md "When a
# rank dies"): the ranks' own deadline (--timeout 5), the launcher's grace (5 s), 5 s more from TERM to KILL, and 3 s for
# a busy machine. A stopped rank without a launcher, and a stopped launcher, are the user's to continue or kill.
set -u
build=$1
count=$2
seed=$3
work=$(mktemp -d)
bad=0
trap 'rm -rf "$work"' EXIT
seconds() { date +%s.%N; }
over() { awk -v a="$1" -v b="$2" -v most="$3" 'BEGIN { exit !(b - a > most) }'; }
marked() { # processes with this job's mark, but for this script's own; zombies have no environment
    grep -lsz "^LS_KILLS=$mark\$" /proc/[0-9]*/environ | sed 's|/proc/\([0-9]*\)/.*|\1|'
}
start_ranks() { # as torchrun or a user's own script would
    port=$((20000 + (seed * 7919 + i * 37) % 20000))
    k=0
    while [ "$k" -lt "$world" ]; do
        RANK=$k LOCAL_RANK=$k WORLD_SIZE=$world LOCAL_WORLD_SIZE=$world MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            LS_TOKEN=$mark setsid "$@" >"$folder/said.$k" 2>&1 &
        k=$((k + 1))
    done
}
shm_before=$(ls /dev/shm 2>/dev/null)
i=0
while [ "$i" -lt "$count" ]; do
    # world, launcher, shared memory, delay in ms, signal, target
    set -- $(awk -v s="$seed" -v i="$i" 'BEGIN {
        srand(s * 100003 + i); rand()
        world = 2 + int(2 * rand()); launcher = rand() < 0.6; shm = rand() < 0.5
        ms = rand() < 0.34 ? int(200 * rand()) : 200 + int(1800 * rand())
        split("TERM KILL STOP", signal, " "); name = signal[1 + int(3 * rand())]
        target = launcher && rand() < 0.4 ? "launcher" : int(world * rand())
        print world, launcher, shm, ms, name, target }')
    world=$1 launcher=$2 shm=$3 ms=$4 signal=$5 target=$6
    mark=$$.$seed.$i
    folder=$work/$i
    mkdir "$folder"
        set -- env LS_KILLS="$mark" LS_RUN_DIR="$folder" LS_SHM="$shm" "$build/lockstep-train" -a resnet8 --image-size 8 -b 2 --steps 1000000 --dump-steps 5,50,500 \
        --save "$folder/checkpoint" --timeout 5 --device cpu --print-freq 1000000
    if [ "$launcher" = 1 ]; then
        LS_KILLS=$mark LS_RUN_DIR=$folder LS_SHM=$shm setsid "$build/lockstep-launch" --nproc-per-node "$world" -- "$@" >"$folder/said" 2>&1 &
        main=$!
    else
        start_ranks "$@"
        main=
    fi
    sleep "$(awk -v ms="$ms" 'BEGIN { print ms / 1000 }')"
    if [ "$target" = launcher ]; then
        pid=$main
    else
        pid=$(for p in $(marked); do
            grep -qsz "^RANK=$target\$" "/proc/$p/environ" && grep -qs lockstep-train "/proc/$p/comm" && echo "$p"
        done | head -n 1)
        pid=${pid:-$main} # the rank has not started yet
    fi
    start=$(seconds)
    [ -z "$pid" ] || kill -s "$signal" "$pid" 2>/dev/null
    limit=18
    if [ "$signal" = STOP ] && { [ "$launcher" = 0 ] || [ "$pid" = "$main" ]; }; then
        # the others give up at their deadline; the stopped one is ended by whoever stopped it
        sleep 1
        if [ "$pid" = "$main" ]; then
            kill -s TERM "$pid" && kill -s CONT "$pid"
        else
            while [ "$(marked | wc -l)" -gt 1 ] && ! over "$start" "$(seconds)" "$limit"; do sleep 0.05; done
            [ -z "$pid" ] || kill -s KILL "$pid"
        fi
    fi
    if [ -z "$pid" ]; then # no rank was there to be hit: end what comes
        for p in $(marked); do kill -s TERM "$p" 2>/dev/null; done
    fi
    while [ -n "$(marked)" ] && ! over "$start" "$(seconds)" "$limit"; do sleep 0.05; done
    took=$(awk -v a="$start" -v b="$(seconds)" 'BEGIN { printf "%.1f", b - a }')
    left=$(marked | wc -l)
    temporary=$(find "$folder" -name '*.tmp*' | wc -l)
    word=ok
    if [ "$left" -gt 0 ] || [ "$temporary" -gt 0 ]; then
        word="not ok"
        bad=$((bad + 1))
        for p in $(marked); do
            tr '\0' ' ' <"/proc/$p/cmdline" | cut -c1-100
            kill -s KILL "$p" 2>/dev/null
        done
    fi
    echo "$word - $i: $world ranks, launcher $launcher, shared memory $shm: $signal to $target after $ms ms:" \
        "over after $took s, $left processes and $temporary temporary files left"
    rm -rf "$folder"
    i=$((i + 1))
done
left=$(ls /dev/shm 2>/dev/null | grep -vxF "$shm_before" | grep -v '^ls_\(fuzz\|hostile\)_')
[ -z "$left" ] || { echo "not ok - in /dev/shm: $left"; bad=$((bad + 1)); }
echo "kills: $bad of $count not as they must"
[ "$bad" -eq 0 ]
