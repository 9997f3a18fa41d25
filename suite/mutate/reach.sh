#!/bin/sh
# Which tests execute which line: runs each unit program, each case of the must-pass list and each kind of other case on
# a build that counts executed lines, one after the other.
#
#   suite/mutate/reach.sh TREE all|suite   TREE: a copy of the sources with build/coverage in it; writes TREE/reach/
# suite: the unit programs alone, which are the tests of the suite's sources: every case executes them all.
# tests.tsv: name and seconds of each test that passes there; NAME.lines: PATH and ranges of lines, a line for each source.
set -eu
tree=$(cd "$1" && pwd)
build=build/coverage
here=$(cd "$(dirname "$0")" && pwd)
cd "$tree"
mkdir -p reach/unit reach/check reach/conform
: >reach/failed.txt
touch reach/tests.tsv

# map NAME LIMIT_S PROGRAM...
map() {
    name=$1
    limit=$2
    shift 2
    # a unit program that has changed is mapped again; a case is not, its lines change little
    [ -e "reach/$name.lines" ] && { [ "${name#unit/}" = "$name" ] || [ "reach/$name.lines" -nt "$1" ]; } && return 0
    find $build -name '*.gcda' -delete
    from=$(date +%s%N)
    code=0
    sh "$here/sandbox.sh" "$tree" timeout -k 5 "$limit" "$@" >reach/log 2>&1 || code=$?
    to=$(date +%s%N)
    if [ "$code" -eq 125 ]; then
        echo "mutate: this machine allows no name spaces for processes and mounts (unshare)" >&2
        exit 3
    elif [ "$code" -ne 0 ]; then
        echo "mutate: $name ends with $code without a mutant and is left out" >&2
        echo "$name $code" >>reach/failed.txt
        tail -n 5 reach/log >&2
        return 0
    fi
    find $build -name '*.gcda' | xargs -r gcov --stdout 2>/dev/null | awk '
        function close_range() { if (last) printf " %d-%d", first, last; last = 0 }
        { count = $1; sub(/:.*/, "", count); sub(/\*$/, "", count)
          split($0, part, ":"); line = part[2] + 0 }
        line == 0 && part[3] == "Source" { if (path) { close_range(); print "" } path = part[4]; printf "%s", path; last = 0; next }
        line > 0 && count ~ /^[0-9]+$/ && count > 0 {
            if (last && line == last + 1) last = line
            else { close_range(); first = last = line }
            next
        }
        line > 0 && count == "-" && last && line == last + 1 { last = line } # a declaration, a brace, a comment
        END { if (path) { close_range(); print "" } }' | grep -E "^($of)/.*\.(c|cc) " >"reach/lines" || true
    mv reach/lines "reach/$name.lines"
    awk -F'\t' -v name="$name" -v ns=$((to - from)) '$1 != name
        END { printf "%s\t%.2f\n", name, ns / 1e9 }' reach/tests.tsv >reach/tests.new
    mv reach/tests.new reach/tests.tsv
}

of='kernels|harness|reference|suite'
export CK_DEFAULT_TIMEOUT=120
for program in $build/unit/test_*; do
    case $program in *.d | *.o | *.so) continue ;; esac
    [ -x "$program" ] || continue
    name=$(basename "$program")
    # two parts of one program that share a name meet where libraries are shared objects
    if ! [ "reach/unit/$name.lines" -nt "$program" ] && ! sh "$here/sandbox.sh" "$tree" timeout 300 "build/unit/$name" >reach/log 2>&1; then
        echo "mutate: unit/$name fails without a mutant and is left out" >&2
        continue
    fi
    map "unit/$name" 300 "$program"
done
[ "$2" = all ] || exit 0
of='kernels|harness|reference'
$build/lockstep conform --list-file suite/lists/mustpass.txt --list | sort >reach/mustpass
while read -r id; do
    map "check/$id" 300 $build/lockstep conform --case "$id" --out "$tree/reach/run" --overwrite --device cpu
    rm -rf reach/run
done <reach/mustpass
# other cases: by family and first word, where they take less than 100 s
$build/lockstep conform --list | sort | comm -23 - reach/mustpass >reach/others
cut -d. -f1,2 reach/others | sort -u >reach/kinds
while read -r kind; do
    awk -v kind="$kind" '$0 == kind || index($0, kind ".") == 1' reach/others >"reach/conform/$kind.cases"
    map "conform/$kind" 100 $build/lockstep conform --list-file "reach/conform/$kind.cases" --out "$tree/reach/run" --overwrite --device cpu
    rm -rf reach/run
done <reach/kinds
