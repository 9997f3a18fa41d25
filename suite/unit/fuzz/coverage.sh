#!/bin/sh
# Which lines of the readers a fuzzing run with counters has reached.
#
#   suite/unit/fuzz/coverage.sh BUILD
#
# Prints the share of each file's lines, and the lines that were not reached. Fails below 90 %. Not counted: the functions
# that readers.txt leaves out, and lines that only run without memory or when the system fails.
set -u
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
grep '^[a-z]' suite/unit/fuzz/readers.txt | while read -r file others; do
    gcov --stdout "$build/obj/$file.gcda" 2>/dev/null | awk -v file="$file" -v others=" $others " '
        /^ *-: *0:Source:/ { here = substr($0, index($0, "Source:") + 7) == file }
        here { print file "|" others "|" $0 }'
done >"$work/lines"
awk '
    function finish() {
        if (name == "") return
        share = 100 * reached / (lines > 0 ? lines : 1)
        bad += share < 90
        printf("%s - %s: %.1f %% of %d lines\n%s", share < 90 ? "not ok" : "ok", name, share, lines, text)
        name = text = ""; lines = reached = 0
    }
    {
        split($0, field, "|")
        line = substr($0, length(field[1]) + length(field[2]) + 3)
        if (field[1] != name) { finish(); name = field[1]; files++; outside = 0 }
        split(line, part, ":"); count = part[1]; gsub(/[ *]/, "", count); number = part[2] + 0
        source = line; sub(/^[^:]*:[^:]*:/, "", source)
        if (source ~ /^[a-z].*\(/ && source !~ /;$/) { # a function begins
            word = source; sub(/\(.*/, "", word); sub(/.*[ *]/, "", word)
            outside = index(field[2], " " word " ") > 0
        }
        if (outside || count == "-" || number == 0) next
        if (count == "#####" || count == "=====") {
            if (source ~ /allocate|[Nn]o memory|no_memory|LS_ERR_INFRA|strerror|errno|LS_ASSERT/) next
            text = text sprintf("    %s:%d:%s\n", name, number, source)
        } else reached++
        lines++
    }
    END { finish(); printf("coverage: %d files, %d below 90 %%\n", files, bad); exit bad > 0 || files == 0 }' "$work/lines"
