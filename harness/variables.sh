#!/bin/sh
# Checks values against the rows that a table of LS_VARIABLE has for a target, before anything is installed, built or
# written. For an unknown name or a wrong value it prints a line with the nearest known name or the allowed values and
# exits with 2.
# A name without a value has that of the environment. After `--` comes a command, which is run with NAME=value arguments.
#
#   harness/variables.sh TABLE TARGET NAME|NAME=value... [-- COMMAND...]
set -eu
table=$1 target=$2
shift 2
pairs=0
left=$#
while [ "$left" -gt 0 ] && [ "$1" != -- ]; do # each pair goes to the end, behind the command
    word=$1
    shift
    case $word in
    *=*) ;;
    *[!A-Za-z0-9_]* | [0-9]*) word=$word= ;; # cannot be in the environment
    *) eval "word=\$word=\${$word-}" ;;
    esac
    set -- "$@" "$word"
    pairs=$((pairs + 1)) left=$((left - 1))
done
[ "$left" -eq 0 ] || { shift && left=$((left - 1)); }
(
    shift "$left"
    awk -v table="$table" -v target=" $target " '
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
        split(line, part, /"/)
        if (line !~ /^LS_VARIABLE\(/ || !index(" " part[2] " ", target)) continue
        name = line; sub(/^LS_VARIABLE\(/, "", name); sub(/,.*/, "", name)
        gsub(/\\\\/, "\\", part[4])
        pattern[name] = part[4]; words[name] = part[6]; names[++count] = name
    }
    for (k = 1; k < ARGC; k++) {
        name = ARGV[k]; sub(/=.*/, "", name)
        value = substr(ARGV[k], length(name) + 2)
        shown = value; gsub(/[[:cntrl:]]/, "?", shown)
        if (!(name in pattern)) {
            best = ""; least = 99
            for (i = 1; i <= count; i++)
                if ((d = distance(name, names[i])) < least) { least = d; best = names[i] }
            printf "lockstep: error: unknown variable %s=%s; did you mean %s?\n", name, shown, best
            failed = 1
        } else if (value !~ ("^(" pattern[name] ")$")) {
            printf "lockstep: error: %s=%s: allowed: %s\n", name, shown, words[name]
            failed = 1
        }
    }
    exit failed ? 2 : 0
}' "$@" >&2
)
[ "$left" -eq 0 ] || exec "$@"
