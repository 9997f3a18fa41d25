#!/bin/sh
# observed.sh BUILD OUT [FAULT...]: which planted faults the rules of `lockstep observe` see. Each
# fault that needs no patch and no device runs the case written for it, in the planted build
# (make PLANTS=1 programs), and the case's jobs are judged by observe's rules alone; each case also
# runs once without a fault, and must raise no alarm. Writes OUT/observed.tsv, a line for each fault:
#   fault  case  seen: rules|again|no  the rules that failed, or "no job"
# "rules": one that knows no network; "again": only gradient.again, which runs the network again in
# FP64. What OUT holds of an earlier start is kept. 0: no case alarms without a fault.
set -u
[ $# -ge 2 ] || { echo "usage: $0 BUILD OUT [FAULT...]" >&2; exit 2; }
build=$1 out=$2
shift 2
list=$(dirname "$0")/../plants.txt
mkdir -p "$out/faults" "$out/clean" || exit 3

# run FOLDER PLANT CASE [NAME=VALUE...]: the ids of the rules that failed, in FOLDER.rules
run() {
    folder=$1 plant=$2 case=$3
    shift 3
    [ -e "$folder.rules" ] && return
    env LS_PLANT="$plant" "$@" timeout 600 "$build/planted/lockstep" conform --device=cpu --seed 7 \
        --out "$folder" --overwrite --by-observe --case "$case" >"$folder.log" 2>&1
    if ! ls "$folder"/jobs/*/ >/dev/null 2>&1; then
        echo "no job" >"$folder.rules"
    else
        sed -n 's/.* # FAIL [0-9.]*s //p' "$folder.log" | head -1 >"$folder.rules"
    fi
    rm -rf "$folder"
}

# Faults whose own case runs no job: one that does and runs into them.
other_case() {
    case $1 in
    overlapping_shards) echo data.seen.order.w2 ;;
    evaluation_moves_statistics) echo validation.sums.o0.w3 ;;
    *) echo "$2" ;;
    esac
}

alarms=0
: >"$out/observed.tsv"
grep -v '^#' "$list" | grep '|' | while IFS='|' read -r fault case rest; do
    set -f
    wish=${fault%% *} case=$(echo $case) names=
    for word in ${fault#* }; do
        case $word in LS_*=*) names="$names $word" ;; esac
    done
    set +f
    name=${wish%%[@:]*}
    case $fault in cuda_* | *NGPUS=* | *ONEDNN_*) continue ;; esac
    [ -e "$(dirname "$0")/$name.patch" ] && continue
    case=$(other_case "$name" "$case")
    [ $# -gt 0 ] && case " $* " in *" $name "*) ;; *) continue ;; esac
    # shellcheck disable=SC2086 # words of the environment
    run "$out/faults/$name" "$wish" "$case" $names
    # shellcheck disable=SC2086
    run "$out/clean/$case" "" "$case" $names
    rules=$(cat "$out/faults/$name.rules")
    case $rules in
    "") seen=no ;;
    "no job") seen=no ;;
    gradient.again) seen=again ;;
    *) seen=rules ;;
    esac
    printf '%s\t%s\t%s\t%s\n' "$name" "$case" "$seen" "$rules" >>"$out/observed.tsv"
done
for rules in "$out"/clean/*.rules; do
    case $(cat "$rules") in
    "" | "no job") ;;
    *)
        echo "without a fault $(basename "$rules" .rules) fails $(cat "$rules")" >&2
        alarms=1
        ;;
    esac
done
awk -F'\t' '{n[$3]++; all++} END {printf "%d faults: %d seen by rules that know no network, %d more with the network run again, %d not\n", all, n["rules"], n["again"], n["no"]}' "$out/observed.tsv"
exit $alarms
