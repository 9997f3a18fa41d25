#!/bin/sh
# Unit tests and short training jobs under one sanitizer.
#
#   suite/unit/sanitize.sh BUILD asan|ubsan|tsan
set -u
build=$1
kind=$2
here=$(pwd)
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:exitcode=99
export LSAN_OPTIONS=suppressions=$here/suite/unit/lsan.txt:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:exitcode=99
export TSAN_OPTIONS=exitcode=99:suppressions=$here/suite/unit/tsan.txt
export CK_FORK=no CK_DEFAULT_TIMEOUT=0
bad=0
log=$(mktemp)
folder=$(mktemp -d)
trap 'rm -rf "$log" "$folder"' EXIT
run() {
    name=$1
    shift
    if timeout 300 "$@" >"$log" 2>&1; then
        echo "ok - $name"
    else
        echo "not ok - $name (exit code $?)"
        tail -n 40 "$log"
        bad=1
    fi
}
for program in "$build"/unit/test_*; do
    case $program in *.d | *.o) continue ;; esac
    if [ "$kind" = tsan ]; then
        # OpenMP's barriers are unknown to the thread sanitizer: only what uses plain threads
        case $(basename "$program") in
        test_store* | test_loader* | test_comm*) ;;
        *) continue ;;
        esac
    fi
    # tests of dying processes need Check's fork
    case $(basename "$program") in
    test_proc* | test_job* | test_launch* | test_comm* | test_store*) CK_FORK=yes run "$(basename "$program")" "$program" ;;
    *) run "$(basename "$program")" "$program" ;;
    esac
done
for level in O0 O1 O2; do
    [ "$kind" = tsan ] && break
    export LS_RUN_DIR="$folder/$level"
    mkdir -p "$LS_RUN_DIR"
    run "two ranks, $level" "$build/lockstep-launch" --nproc-per-node 2 -- "$build/lockstep-train" \
        -a resnet8 --image-size 16 -b 4 --steps 3 --dump-steps 2 --opt-level "$level" \
        --data synthetic --save "$folder/$level.safetensors"
done
exit "$bad"
