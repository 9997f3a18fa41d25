#!/bin/sh
# Unit tests and short training jobs under one sanitizer.
#
#   suite/unit/sanitize.sh BUILD asan|ubsan|tsan
set -u
build=$1
kind=$2
here=$(pwd)
# Thread-local memory of shared objects that are loaded later: the leak tracer dies on its list.
export ASAN_OPTIONS=detect_leaks=1:intercept_tls_get_addr=0:exitcode=99
export LSAN_OPTIONS=suppressions=$here/suite/unit/lsan.txt:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:exitcode=99
export TSAN_OPTIONS=exitcode=99:suppressions=$here/suite/unit/tsan.txt
export CK_FORK=no CK_DEFAULT_TIMEOUT=0
# The thread sanitizer wants its addresses where they are without randomisation.
fixed=
[ "$kind" = tsan ] && setarch -R true 2>/dev/null && fixed='setarch -R'
bad=0
ran=0
log=$(mktemp)
folder=$(mktemp -d)
trap 'rm -rf "$log" "$folder"' EXIT
run() {
    name=$1
    shift
    ran=$((ran + 1))
    # cuDNN unloads libraries that still own memory: the reported leaks have no symbols
    leaks=1
    case $name in test_cudnn_*) leaks=0 ;; esac
    ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=$leaks timeout 300 $fixed "$@" >"$log" 2>&1
    code=$?
    # children's reports count even where a test expects that they fail
    if [ "$code" -eq 0 ] && ! grep -qE 'ERROR: (Address|Leak)Sanitizer|runtime error:|WARNING: ThreadS' "$log"; then
        echo "ok - $name"
    else
        echo "not ok - $name (exit code $code)"
        tail -n 40 "$log"
        bad=$((bad + 1))
    fi
}
for program in "$build"/unit/test_*; do
    [ -x "$program" ] || continue
    if [ "$kind" = tsan ]; then
        # OpenMP's barriers are unknown to the thread sanitizer: only what uses plain threads
        case $(basename "$program") in
        test_store* | test_loader* | test_comm*) ;;
        *) continue ;;
        esac
    fi
    # tests of dying processes and signals, and of one that hides /proc, need Check's fork
    case $(basename "$program") in
    test_proc* | test_guard* | test_job* | test_launch* | test_hosts* | test_comm* | test_gate* | test_store* | test_safetensors) CK_FORK=yes run "$(basename "$program")" "$program" ;;
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
for example in two-encoders two-losses; do
    [ "$kind" = tsan ] && break
    run "two ranks, $example" "$build/lockstep-launch" --nproc-per-node 2 -- "$build/lockstep-train" \
        --example $example -a resnet8 --image-size 16 -b 4 --steps 3 --dump-steps 2 --opt-level O2
done
echo "$kind: $ran programs and jobs, $bad not clean"
[ "$bad" -eq 0 ] && [ "$ran" -gt 0 ]
