#!/bin/sh
# Which lines of the readers a fuzzing run with counters has reached.
#
#   suite/unit/fuzz/coverage.sh BUILD
#
# Prints the share of each file's lines, and the lines that were not reached. Fails below 90 %, lines that only run
# without memory, with a failing disk or for another program's sake left out (excused.txt has them, with reasons).
set -u
build=$1
here=suite/unit/fuzz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
while read -r file; do
    case $file in '' | '#'*) continue ;; esac
    gcov --stdout "$build/obj/$file.gcda" 2>/dev/null | awk -v file="$file" '
        $0 ~ "^ *-: *0:Source:" { here = $0 ~ "Source:" file "$" } here { print file "|" $0 }'
done <"$here/readers.txt" >"$work/lines"
awk -v excused="$here/excused.txt" '
    function finish() {
        if (name == "") return
        share = 100 * reached / (lines > 0 ? lines : 1)
        bad += share < 90
        printf("%s - %s: %.1f %% of %d lines, %d excused\n%s", share < 90 ? "not ok" : "ok", name, share, lines, without, text)
        name = text = ""; lines = reached = without = 0
    }
    BEGIN {
        while ((getline row < excused) > 0) if (row !~ /^#/ && row != "") pattern[++patterns] = substr(row, 1, index(row "  # ", "  # ") - 1)
    }
    {
        bar = index($0, "|"); file = substr($0, 1, bar - 1); line = substr($0, bar + 1)
        if (file != name) { finish(); name = file; files++ }
        split(line, part, ":"); count = part[1]; gsub(/[ *]/, "", count); number = part[2] + 0
        if (count == "-" || number == 0) next
        source = line; sub(/^[^:]*:[^:]*:/, "", source)
        if (count == "#####" || count == "=====") {
            for (i = 1; i <= patterns; i++) if (index(file ":" source, pattern[i]) > 0 || index(source, pattern[i]) > 0) { without++; next }
            text = text sprintf("    %s:%d:%s\n", file, number, source)
        } else reached++
        lines++
    }
    END { finish(); printf "coverage: %d files, %d below 90 %%\n", files, bad; exit bad > 0 || files == 0 }' "$work/lines"
