#!/bin/sh
# Hostile subjects and files of every kind, some of which wait for deadlines; then small jobs that lockstep-train
# records, given to the fuzzer.
#
#   suite/unit/fuzz/run.sh BUILD FUZZ_BUILD SECONDS SEED [READER]
#
# BUILD has the programs, FUZZ_BUILD the fuzzer: under sanitizers, or with counters of lines, which are then reported.
set -u
build=$1
fuzz_build=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ $# -lt 3 ]; then
    echo "500 hostile subjects and files, minutes"
    "$build/unit/test_hostile" 500 "$2" >"$folder/hostile" || {
        grep -v '^ok' "$folder/hostile" >&2
        exit 1
    }
    tail -n 1 "$folder/hostile"
fi
job=0
record() { # further options of a job of two ranks
    mkdir -p "$folder/jobs/$job"
    LS_RUN_DIR=$folder/jobs/$job "$build/lockstep-launch" --nproc-per-node 2 -- "$build/lockstep-train" \
        -a resnet8 --image-size 8 -b 2 --steps 2 --dump-steps 1 --dump-ranks all --device cpu \
        --seed 1 "$@" >"$folder/said" 2>&1 || {
        cat "$folder/said" >&2
        echo "fuzz: lockstep-train failed: no dump to start from" >&2
        exit 3
    }
    job=$((job + 1))
}
record --opt-level O0 --momentum 0.9 --nesterov
record --opt-level O2 --optimizer adam --loss-scale dynamic
record --opt-level O1 --optimizer lamb --half bf16 --sync-bn
record --opt-level O3 --optimizer lars --accumulate 2 --loss-scale dynamic --overflow-at 1
cp suite/unit/fuzz/observed.jsonl "$folder" # steps and events of real jobs
# one sanitizer's report ends a reader; a reader that takes more than 2 GB is reported, too
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:hard_rss_limit_mb=2048
find "$fuzz_build/obj" -name '*.gcda' -delete
"$fuzz_build/unit/fuzz" "$1" "$2" "$folder" ${3+"$3"}
code=$?
[ -z "$(find "$fuzz_build/obj" -name '*.gcda' | head -n 1)" ] || sh suite/unit/fuzz/coverage.sh "$fuzz_build" || exit 1
exit "$code"
