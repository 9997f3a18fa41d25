#!/bin/sh
# Prints the tables of suite/commands/README.md: the commands, and the variables of make's targets.
#
#   suite/commands/tables.sh BUILD
printf '| command | what it does |\n|---|---|\n'
"$1/lockstep" --help | sed 's/|/\\|/g' | awk '/^  [a-z]/ { end(); name = $1; $1 = ""; text = $0; next }
    /^   +[^ ]/ && name != "" { $1 = $1; text = text " " $0; next }
    { end() }
    function end() { if (name != "") print "| `" name "` |" text " |"; name = "" }
    END { end() }'
printf '\n| variable | values | what | targets |\n|---|---|---|---|\n'
awk -F '"' '/^LS_VARIABLE/ {
    name = $1; gsub(/LS_VARIABLE\(|, *$/, "", name)
    target = $2; gsub(/ /, ", ", target)
    row = "| `" name "` | " $6 " | " $8
    gsub(/[<*]/, "\\\\&", row)
    print row " | " target " |"
}' suite/make/variables.def
