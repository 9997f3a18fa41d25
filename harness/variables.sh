#!/bin/sh
# Checks NAME=value arguments against a table of LS_VARIABLE rows before anything is installed, built or
# written. For an unknown name or a wrong value it prints a line with the nearest known name or the allowed
# values and exits with 2.
#
#   harness/variables.sh TABLE NAME=value...
set -eu
table=$1
shift
for pair in "$@"; do
    printf '%s\n' "$pair"
done | awk -v table="$table" '
function smallest(a, b, c) { a = b < a ? b : a; return c < a ? c : a }
function distance(s, t,    i, j, d) { # Levenshtein
    for (i = 0; i <= length(s); i++) d[i, 0] = i
    for (j = 0; j <= length(t); j++) d[0, j] = j
    for (i = 1; i <= length(s); i++)
        for (j = 1; j <= length(t); j++)
            d[i, j] = smallest(d[i-1, j] + 1, d[i, j-1] + 1,
                               d[i-1, j-1] + (substr(s, i, 1) != substr(t, j, 1)))
    return d[length(s), length(t)]
}
BEGIN {
    while ((getline line < table) > 0) {
        if (line !~ /^LS_VARIABLE\(/) continue
        name = line; sub(/^LS_VARIABLE\(/, "", name); sub(/,.*/, "", name)
        split(line, part, /"/)
        gsub(/\\\\/, "\\", part[2])
        pattern[name] = part[2]; words[name] = part[4]; names[++count] = name
    }
    failed = 0
}
{
    name = $0; sub(/=.*/, "", name)
    value = substr($0, length(name) + 2)
    if (!(name in pattern)) {
        best = ""; least = 99
        for (i = 1; i <= count; i++)
            if ((d = distance(name, names[i])) < least) { least = d; best = names[i] }
        printf "lockstep: error: unknown variable %s=%s; did you mean %s?\n", name, value, best
        failed = 1
    } else if (value !~ ("^(" pattern[name] ")$")) {
        printf "lockstep: error: %s=%s: allowed: %s\n", name, value, words[name]
        failed = 1
    }
}
END { exit failed ? 2 : 0 }' >&2
