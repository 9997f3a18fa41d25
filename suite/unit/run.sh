#!/bin/sh
# Runs every unit test program, then the must-pass conformance list, and ends with one line:
# N passed, N failed. A program that crashes or hangs is a failure.
#
#   suite/unit/run.sh BUILD
set -u

# one PROGRAM OUT: runs one test program; "passed failed" goes to OUT/<name>.counts
one() {
    name=$(basename "$1")
    log=$2/$name.log
    began=$(date +%s)
    timeout 300 "$1" >"$log" 2>&1
    code=$?
    # Check's summary: "100%: Checks: 12, Failures: 0, Errors: 0", one for each suite runner
    counts=$(sed -n 's/^[0-9]*%: Checks: \([0-9]*\), Failures: \([0-9]*\), Errors: \([0-9]*\)$/\1 \2 \3/p' "$log" |
        awk '{ c += $1; f += $2 + $3 } END { print c + 0, f + 0 }')
    checks=${counts% *}
    bad=${counts#* }
    if [ "$checks" -eq 0 ] || { [ "$code" -ne 0 ] && [ "$bad" -eq 0 ]; }; then
        bad=$((bad + 1)) # ended without a summary, or with a code that no failure explains
        checks=$((checks + 1))
    fi
    text="ok - $name: $checks, $(($(date +%s) - began)) s"
    if [ "$bad" -ne 0 ]; then
        text="not ok - $name: $bad of $checks (exit code $code)
$(tail -n 30 "$log")"
    fi
    printf '%s\n' "$text" # in one piece: others write here, too
    echo "$((checks - bad)) $bad" >"$2/$name.counts"
}

if [ "$1" = --one ]; then
    one "$2" "$3"
    exit 0
fi
build=$1
# Check's own limit of 4 s a test is for machines with nothing else to do
export CK_DEFAULT_TIMEOUT=60
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
log=$out/conform.log
# most programs have one thread: as many at a time as there are cores, up to 4
cores=$(nproc)
for program in "$build"/unit/test_*; do
    [ -x "$program" ] || continue
    case $program in *.d | *.o) continue ;; esac
    # of a source that is gone, it is left over from an earlier build
    set -- "$(dirname "$0")"/*/"$(basename "$program")".c*
    [ -e "$1" ] || continue
    echo "$program"
done >"$out/programs"
xargs -P $((cores < 4 ? cores : 4)) -I '{}' sh "$0" --one '{}' "$out" <"$out/programs"
# a program without counts was not run to its end by anyone: it has failed
counts=$(while read -r program; do
    cat "$out/$(basename "$program").counts" 2>/dev/null || echo "0 1"
done <"$out/programs" | awk '{ p += $1; f += $2 } END { print p + 0, f + 0 }')
passed=${counts% *}
failed=${counts#* }

# The example of suite/peers/README.md, where PyTorch is installed.
sh suite/peers/check.sh "$build" "" example.py >"$log" 2>&1
code=$?
sed '/^[0-9]* passed, [0-9]* failed$/d; s/^ok - /ok - peers: /' "$log"
counts=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$log")
if [ -n "$counts" ] || [ "$code" -ne 3 ]; then # 3 without counts: no PyTorch
    [ -n "$counts" ] || counts="0 1"
    failed=$((failed + $(grep -c '^not run' "$log")))
    passed=$((passed + ${counts% *}))
    failed=$((failed + ${counts#* }))
fi

"$build"/lockstep conform --gate manners --list-file suite/lists/mustpass.txt --out "$build/check" --overwrite >"$log" 2>&1
code=$?
grep -v '^[0-9]* passed, [0-9]* failed$' "$log"
counts=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$log" | tail -n 1)
if [ -z "$counts" ]; then
    echo "not ok - must-pass list: no result (exit code $code)"
    failed=$((failed + 1))
else
    passed=$((passed + ${counts% *}))
    failed=$((failed + ${counts#* }))
    if [ "$code" -ne 0 ] && [ "${counts#* }" -eq 0 ]; then
        echo "not ok - must-pass list: exit code $code"
        failed=$((failed + 1))
    fi
fi
sh suite/unit/harness/limits.sh "$build" 'memory-100m|files-5|processes-5|full-disk|read-only|cgroup' \
    'inside|judge|report|data|train|launch|collectives' >"$log" 2>&1
counts=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$log")
sed '/^[0-9]* passed, [0-9]* failed$/d; /^not ok/!s/^/limits: /' "$log"
[ -n "$counts" ] || counts="0 1"
passed=$((passed + ${counts% *}))
failed=$((failed + ${counts#* }))
if [ -e "$build/lib/ls_cuda.so" ]; then
    echo "CUDA: compiled and linked; no kernel was run on a GPU$(
        [ ! -e "$build/emulated/lib/ls_cuda.so" ] || echo ", its sources on an emulation on the CPU")"
else
    echo "CUDA: not built here, nothing of it was tested"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
