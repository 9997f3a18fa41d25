#!/bin/sh
# Every command under every lack of the machine: memory, descriptors, processes, room on a disk, a tree that cannot be
# written, a cgroup of 60 MB, half a core. A command then does what it does without the limit (code 0 and the same
# result), or ends for the lack: code 3, 126 or 127 where it could not be loaded, 137 where the kernel killed it for
# memory. It never passes what it did not run, never blames the subject, never crashes.
#
#   suite/unit/harness/limits.sh BUILD [LIMITS] [COMMANDS]      regular expressions that choose rows of the tables
#
# Ends with a line per limit and "N passed, N failed"; what this machine cannot limit is "not run", with the reason.
set -u
group() { # FILE VALUE [FILE VALUE]: into a cgroup with this limit, of v1 (CONTROLLER/FILE) or v2
    for place in "$LIMITS_GROUPS/${1%/*} ${1#*/} $2" "$LIMITS_GROUPS ${3:-none} ${4:-0}"; do
        set -- $place
        mine=$1/lockstep-limits-$LIMITS_ID
        mkdir -p "$mine" 2>/dev/null && echo "$3" 2>/dev/null >"$mine/$2" && echo 0 2>/dev/null >"$mine/cgroup.procs" &&
            return 0
    done
    exit 99
}
mount_out() { # OPTIONS: over the folder that is written to
    mount -t tmpfs -o size=1m limits "$LIMITS_OUT" || exit 99
    cp -r "$LIMITS_COPY" "$LIMITS_OUT/copy" || exit 99
    mount -o "remount,$1" "$LIMITS_OUT" || exit 99
}
fill() { # what is left of it
    cat /dev/zero 2>/dev/null >"$LIMITS_OUT/fill"
    return 0
}
if [ "$1" = --one ]; then # LIMIT COMMAND: in this process, and then as the command
    eval "$2"
    exec timeout 200 $3
fi
build=$(realpath "$1")
limits=${2:-.}
commands=${3:-.}
work=$(mktemp -d)
trap 'rm -rf "$work"; rmdir /sys/fs/cgroup/*/lockstep-limits-$$ /sys/fs/cgroup/lockstep-limits-$$ 2>/dev/null' EXIT
train="$build/lockstep-train -a resnet8 --image-size 8 -b 2 --opt-level O0 --steps 2 --device cpu --timeout 5"
out=$work/out

# name | command; {out}: a folder to write into. Its result: the lines of `result` below.
cat >"$work/commands" <<END
conform | $build/lockstep conform --case faults.stop.reduction.rank1 --device cpu --overwrite --out {out}/run
family | $build/lockstep conform --case subject.usage.lr-word --case gradients.o0.w2.b0.1mb --case collectives.barrier.w2 --device cpu --overwrite --out {out}/run
inside | $build/lockstep conform --case optim.lamb.plain.o0 --device cpu --overwrite --out {out}/run
bench | $build/lockstep bench PROFILE=smoke NGPUS=1 STEPS=2 OPT_LEVELS=O0 DEVICE=cpu ARCH=resnet8 OUT={out}/run
judge | $build/lockstep judge $work/before/jobs/one
diff | $build/lockstep diff $work/before/run $work/before/run
report | $build/lockstep report {out}/copy
explain | $build/lockstep explain -a resnet8 --opt-level O2 --device cpu
jobs | $build/lockstep jobs NGPUS=2 DEVICE=cpu
checkpoint | $build/lockstep checkpoint $work/before/c.safetensors
data | $build/lockstep data make {out}/data --images 2 --image-size 16
observe | $build/lockstep observe --out {out}/observed -- $train
train | env LS_RUN_DIR={out} $train --save {out}/c.safetensors
launch | $build/lockstep-launch --nproc-per-node 2 -- $train
collectives | $build/lockstep-launch --nproc-per-node 2 -- $build/lockstep-collectives --ops all_reduce --device cpu --timeout 5
END
# name | how it is set, before the command
cat >"$work/limits" <<END
memory-60m | ulimit -v 60000
memory-100m | ulimit -v 100000
memory-150m | ulimit -v 150000
memory-200m | ulimit -v 200000
memory-300m | ulimit -v 300000
files-5 | ulimit -n 5
files-8 | ulimit -n 8
files-24 | ulimit -n 24
processes-2 | group pids/pids.max 3 pids.max 3
processes-5 | group pids/pids.max 6 pids.max 6
processes-9 | group pids/pids.max 10 pids.max 10
full-disk | mount_out size=1m; fill
full-soon | mount_out size=300k
read-only | mount_out ro
full-shm | mount -t tmpfs -o size=64k limits /dev/shm || exit 99
cgroup-60m | group memory/memory.limit_in_bytes 60000000 memory.max 60000000
half-core | group cpu/cpu.cfs_quota_us 50000 cpu.max "50000 100000"
END

result() { # what must be equal where the code is 0: counts, verdicts, the last step's loss; no times, of a bench CORRECT
    lines='^[0-9]+ passed|^CORRECT|^step|^ *all_reduce|^cases:|^state_dict|^  |^env '
    grep -q '^SPEED' "$1" && lines='^CORRECT'
    grep -E "$lines" "$1" |
        sed -E 's/[0-9.]+ (img|images)\/s.*//; s/^( *all_reduce.* (in|out)).*( [0-9]+)$/\1\3/; s/(in|to|of) [^ ]*tmp[^ ]*//; s/[0-9.]+ (s|ms|MB|GB).*//; s/; [0-9]+ of [0-9]+ outside it//' |
        grep -vE 'memory free|programs took|MACHINE|report:|out|run' | sort
}
run() { # LIMIT COMMAND FILE: its code; 99: this machine cannot set the limit
    rm -rf "$out"
    mkdir -p "$out"
    cp -r "$work/before/run" "$out/copy"
    case $1 in
    *mount*) unshare -m true 2>/dev/null || return 99; unshare -m sh "$0" --one "$1" "$2" >"$3" 2>&1 ;;
    *) sh "$0" --one "$1" "$2" >"$3" 2>&1 ;;
    esac
}
export LIMITS_OUT="$out" LIMITS_COPY="$work/before/run" LIMITS_ID=$$ LIMITS_GROUPS=/sys/fs/cgroup
rm -rf "$out"
mkdir -p "$out" "$work/before/jobs/one"
LS_RUN_DIR=$work/before/jobs/one $train --dump-steps 1 --save "$work/before/c.safetensors" >/dev/null || exit 3
$build/lockstep conform --case subject.usage.lr-word --device cpu --out "$work/before/run" >/dev/null || exit 3
passed=0 failed=0
while IFS='|' read -r name command <&3; do
    name=${name% } command=$(echo "$command" | sed "s|{out}|$out|g")
    echo "$name" | grep -Eq "$commands" || continue
    run : "$command" "$work/free.$name"
    echo $? >"$work/code.$name"
    result "$work/free.$name" >"$work/result.$name"
done 3<"$work/commands"
while IFS='|' read -r limit how <&4; do
    limit=${limit% } how=${how# } done=0 ended=0 bad=0 missing=0
    echo "$limit" | grep -Eq "$limits" || continue
    while IFS='|' read -r name command <&3; do
        name=${name% } command=$(echo "$command" | sed "s|{out}|$out|g")
        echo "$name" | grep -Eq "$commands" || continue
        file=$work/said
        run "$how" "$command" "$file"
        code=$?
        why=
        grep -Eq '# (FAIL|CRASH|TIMEOUT) |^CORRECT  no ' "$file" && why="the subject is blamed"
        case $code in
        99) missing=$((missing + 1)); continue ;;
        10 | 11) # ranks that waited for one that lacked something
            grep -Eq 'Too many open files|short of descriptors|annot allocate|temporarily unavailable|No space' "$file" &&
                ended=$((ended + 1)) || why="code $code"
            ;;
        3 | 126 | 127) ended=$((ended + 1)) ;;
        137) case $limit in cgroup*) ended=$((ended + 1)) ;; *) why="killed" ;; esac ;;
        "$(cat "$work/code.$name")")
            result "$file" >"$work/now"
            cmp -s "$work/now" "$work/result.$name" && done=$((done + 1)) || why="code $code, but another result"
            ;;
        *) why="code $code" ;;
        esac
        if [ -n "$why" ]; then
            bad=$((bad + 1))
            printf 'not ok - %s: %s: %s\n' "$limit" "$name" "$why"
            grep -aE 'error|not ok|^CORRECT' "$file" | head -n 4 | sed 's/^/    /'
        fi
    done 3<"$work/commands"
    echo "$limit: $done as without it, $ended ended for the lack, $bad otherwise, $missing not run here"
    passed=$((passed + done + ended)) failed=$((failed + bad))
done 4<"$work/limits"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
