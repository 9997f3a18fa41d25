# What the scripts of a GPU machine share: steps with a time limit of their own, rows, cases, speeds. Sourced, with
# build, folder (of the part that runs), began and LIMIT_S (of that part), tab, emulated, ARCH, IMAGE_SIZE and STEPS set.

# ---- rows ----------------------------------------------------------------------------------------
now() { date +%s; }
left() { echo $((began + LIMIT_S - $(now))); }
row() { # status name seconds text
    printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" >>"$folder/rows.tsv"
    printf '%-5s %-34s %4s s  %s\n' "$1" "$2" "$3" "$4"
}
# step NAME SECONDS COMMAND...: runs it within its time and the part's, its output in NAME.log. Leaves the exit
# code in $code (124: out of time), the seconds in $took. False: no time was left, the row is written.
step() {
    name=$1 most=$2
    shift 2
    rest=$(left)
    if [ "$rest" -lt 5 ]; then
        row skip "$name" 0 "the part's $LIMIT_S s are over"
        return 1
    fi
    [ "$most" -lt "$rest" ] || most=$rest
    from=$(now)
    timeout -k 15 "$most" "$@" >"$folder/$name.log" 2>&1 </dev/null & # a trap runs while it is waited for
    child=$!
    wait "$child"
    code=$?
    took=$(($(now) - from))
    return 0
}
last_error() { # the first line of a log that says what went wrong
    { grep -m1 -E 'error:|Error|not ok|FAILED|Traceback' "$1" || tail -n 1 "$1"; } | cut -c1-160 | tr '\t' ' '
}
failed_step() { row FAIL "$name" "$took" "exit code $code: $(last_error "$folder/$name.log")"; }
outcome() { # text: the row of the last step, ok or with its first error
    if [ "$code" -eq 0 ]; then row ok "$name" "$took" "$1"; else failed_step; fi
}

# ---- cases and bits ------------------------------------------------------------------------------
conform() { # name seconds arguments...
    name=$1 most=$2
    shift 2
    # a run that is out of time is continued by the next start
    [ ! -e "$folder/$name/run.json" ] || grep -q '"headline"' "$folder/$name/run.json" || set -- "$@" --resume
    step "$name" "$most" "$build/lockstep" conform --device cuda --gate manners --out "$folder/$name" "$@" || return
    counts=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 passed, \2 failed/p' "$folder/$name.log" | tail -n 1)
    judged=$(grep -c '"verdict":"\(PASS\|FAIL\|CRASH\|TIMEOUT\|WEAK\|INFRA\)"' "$folder/$name/verdicts.jsonl" 2>/dev/null)
    judged=${judged:-0}
    bad=$(grep -c -E '"verdict":"(FAIL|CRASH|TIMEOUT|WEAK|INFRA)"' "$folder/$name/verdicts.jsonl" 2>/dev/null)
    first=$(sed -n 's/.*"case":"\([^"]*\)".*"verdict":"\(FAIL\|CRASH\|TIMEOUT\|WEAK\|INFRA\)".*/\2 \1/p' \
        "$folder/$name/verdicts.jsonl" 2>/dev/null | head -n 1)
    if [ "$code" -eq 0 ]; then
        row ok "$name" "$took" "$counts"
    elif [ "${bad:-0}" -gt 0 ]; then
        row FAIL "$name" "$took" "$bad of $judged judged: $first"
    elif [ -n "$counts" ]; then
        row FAIL "$name" "$took" "$counts; $(last_error "$folder/$name.log")"
    elif [ "$judged" -gt 0 ]; then
        row skip "$name" "$took" "out of time with $judged good cases, none bad"
    else
        failed_step
    fi
}
digests() { sed -n 's/.*"event":"step".*"loss_bits":"\([^"]*\)".*"digest":\({[^}]*}\).*/\1 \2/p' "$1"; }
twice() { # level options: two deterministic runs have the same bits
    level=$1
    for k in 1 2; do
        rm -rf "$folder/twice.$level.$k" && mkdir -p "$folder/twice.$level.$k"
        step "twice.$level.$k" 120 env LS_RUN_DIR="$folder/twice.$level.$k" \
            "$build/lockstep-train" --device=cuda -a resnet20 --image-size=32 -b 8 --steps=8 --seed=3 \
            --opt-level="$level" --data=synthetic --deterministic || return
        if [ "$code" -ne 0 ]; then
            row FAIL "twice.$level" "$took" "$(last_error "$folder/twice.$level.$k.log")"
            return
        fi
        digests "$folder/twice.$level.$k/rank0.jsonl" >"$folder/twice.$level.$k.txt"
    done
    if [ -s "$folder/twice.$level.1.txt" ] && cmp -s "$folder/twice.$level.1.txt" "$folder/twice.$level.2.txt"; then
        row ok "twice.$level" "$took" "$(wc -l <"$folder/twice.$level.1.txt") steps, losses and all digests equal"
    else
        row FAIL "twice.$level" "$took" "the bits of two deterministic runs differ"
    fi
}
sanitizer() { # tool options
    tool=$1
    if ! command -v compute-sanitizer >/dev/null; then
        row skip "sanitizer.$tool" 0 'compute-sanitizer is not in PATH'
        return
    fi
    step "sanitizer.$tool" 150 compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/lockstep-train" \
        --device=cuda -a resnet8 --image-size=16 -b 3 --steps=2 --opt-level=O2 --data=synthetic --cuda-graph=off || return
    if [ "$code" -eq 124 ]; then row skip "$name" "$took" "not done in its time"; else
        outcome "$(grep -o 'ERROR SUMMARY.*\|RACECHECK SUMMARY.*' "$folder/$name.log" | tail -n 1)"
    fi
}
# together COMMAND... -- COMMAND... -- ...: functions of this file at the same time; for what is not timed.
together() {
    (
        trap - EXIT # the archive is the script's
        set -- "$@" --
        words=
        while [ "$#" -gt 0 ]; do
            if [ "$1" = -- ]; then
                eval "$words" &
                words=
            else
                words="$words '$1'"
            fi
            shift
        done
        wait
    )
}
shares() { # name shares arguments...: words for together, a share of the cases for each of so many processes
    what=$1 of=$2 list=
    shift 2
    for share in $(seq "$of"); do
        list="$list conform $what.$share 150 $* --shard $share/$of --"
    done
    printf '%s' "$list"
}
correct() { # all that is not timed at once; on a GPU that is emulated a part, one after the other
    if [ -n "$emulated" ]; then
        conform kernels 60 --case 'kernels.exact.*'
        conform gradients 60 --case 'gradients.o[0-3].w1.*'
        twice O2
        return
    fi
    set -f # the globs are for conform
    together $(shares kernels 4 --case 'kernels.*') $(shares mustpass 8 --list-file suite/lists/mustpass.txt) \
        $(shares audit 2 --case 'audit.*') $(shares gradients 2 --case 'gradients.o[0-3].w[124].*') \
        conform timed-shape 150 --case 'gradients.o[0-3].timed-shape' -- conform fused 100 --case 'gradients.fused.o?.w1.*' -- \
        twice O0 -- twice O2 -- sanitizer memcheck -- sanitizer racecheck
    set +f
}
# ---- speed ---------------------------------------------------------------------------------------
warmup=10
half='--loss-scale=dynamic --init-scale=1024'
# Median of the timed steps' milliseconds, their 10th and 90th hundredth. The last step is seen to end together with
# the one before it, and is left out.
median() {
    sed -n 's/.*"event":"step".*"ms":{"total":\([0-9.e+-]*\).*/\1/p' "$1" | tail -n +$((warmup + 1)) | sed '$d' | sort -g |
        awk '{ v[NR] = $1 } END { if (NR) printf "%.4f %.4f %.4f", v[int((NR + 1) / 2)], v[int(NR * 0.1) + 1], v[int((NR * 9 + 9) / 10)] }'
}
speed() { # name batch options...
    name=$1 size=$2
    shift 2
    rm -rf "$folder/$name" && mkdir -p "$folder/$name"
    step "$name" 60 env LS_RUN_DIR="$folder/$name" "$build/lockstep-train" --device=cuda -a "$ARCH" \
        --image-size="$IMAGE_SIZE" -b "$size" --num-classes=1000 --steps=$((warmup + STEPS)) --data=synthetic \
        --resident=4 --digest=none --lr=0.01 --print-freq=0 "$@" || return
    found=$(median "$folder/$name/rank0.jsonl" 2>/dev/null)
    if [ "$code" -ne 0 ] || [ -z "$found" ]; then
        status=FAIL
        grep -q -i 'out of memory\|cannot allocate' "$folder/$name.log" && status=skip
        row $status "$name" "$took" "exit code $code: $(last_error "$folder/$name.log")"
        return
    fi
    set -- $found "$@"
    ms=$1 low=$2 high=$3
    rate=$(awk -v b="$size" -v ms="$ms" 'BEGIN { printf "%.0f", b * 1000 / ms }')
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$name" "$size" "$rate" "$ms" "$low" "$high" >>"$folder/speed.tsv"
    row ok "$name" "$took" "$rate images/s, step $ms ms [$low, $high]"
}
