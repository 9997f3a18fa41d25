#!/bin/sh
# observed.sh BUILD OUT [FAULT...]: which planted faults the rules of `lockstep observe` see. Each
# fault that needs no patch and no device runs the case written for it, in the planted build
# (make PLANTS=1 programs), and the case's jobs are judged by observe's rules alone; each case also
# runs once without a fault, and must raise no alarm. Writes OUT/observed.tsv, a line for each fault:
#   fault  case  seen: rules|again|no|not run  the rules that failed, or "no job", or why it was not run
# "rules": one that knows no network; "again": only gradient.again, which runs the network again in
# FP64; "not run": the case crashed, hung or was refused, which shows nothing. What OUT holds of an
# earlier start is kept, but for what was not run. 0: no case alarms without a fault; 1: one does;
# 3: something was not run, or nothing was asked for.
set -u
[ $# -ge 2 ] || { echo "usage: $0 BUILD OUT [FAULT...]" >&2; exit 2; }
build=$1 out=$2
shift 2
list=$(dirname "$0")/../plants.txt
mkdir -p "$out/faults" "$out/clean" || exit 3

# run FOLDER PLANT CASE [NAME=VALUE...]: the ids of the rules that failed, in FOLDER.rules; "no job" of
# a case that has none; "not run: VERDICT"
run() {
    folder=$1 plant=$2 case=$3
    shift 3
    [ -e "$folder.rules" ] && ! grep -q '^not run' "$folder.rules" && return
    env LS_PLANT="$plant" "$@" timeout 600 "$build/planted/lockstep" conform --device=cpu --seed 7 \
        --out "$folder" --overwrite --by-observe --case "$case" >"$folder.log" 2>&1
    code=$?
    line=$(head -n 1 "$folder/verdicts.jsonl" 2>/dev/null)
    word=$(echo "$line" | sed -n 's/.*"verdict":"\([A-Z]*\)".*/\1/p')
    case $word$line in
    PASS*) : ;;
    FAIL*) sed -n 's/.* # FAIL [0-9.]*s //p' "$folder.log" | head -n 1 ;;
    SKIP*'"jobs":[]'*) echo "no job" ;;
    *) echo "not run: ${word:-exit code $code}" ;;
    esac >"$folder.rules"
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
    "not run"*) seen="not run" ;;
    gradient.again) seen=again ;;
    *) seen=rules ;;
    esac
    printf '%s\t%s\t%s\t%s\n' "$name" "$case" "$seen" "$rules" >>"$out/observed.tsv"
done
for rules in "$out"/clean/*.rules; do
    case $(cat "$rules") in
    "" | "no job") ;;
    "not run"*) echo "without a fault $(basename "$rules" .rules): $(cat "$rules")" >&2 ;;
    *)
        echo "without a fault $(basename "$rules" .rules) fails $(cat "$rules")" >&2
        alarms=1
        ;;
    esac
done
awk -F'\t' '{n[$3]++; all++} END {printf "%d faults: %d seen by rules that know no network, %d more with the network run again, %d not, %d not run\n", all, n["rules"], n["again"], n["no"], n["not run"]}' "$out/observed.tsv"
[ "$alarms" = 0 ] || exit 1
[ -s "$out/observed.tsv" ] && ! grep -q '^not run' "$out"/faults/*.rules "$out"/clean/*.rules || exit 3
