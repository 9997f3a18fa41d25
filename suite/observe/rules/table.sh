#!/bin/sh
# Prints the table of laws and hints of suite/observe/README.md; with -w, puts it in its place there.
#
#   suite/observe/rules/table.sh BUILD [-w]
table() {
    printf '| rule | tier | why a FAIL is sure | a hint is wrong if |\n|---|---|---|---|\n'
    "$1/lockstep" observe --rules | awk '
        /^[a-z]/ { end(); split($0, part, ": "); rule = part[1]; tier = part[2]; sure = wrong = ""; next }
        /^  sure: / { sub(/^  sure: /, ""); sure = $0; into = 1; next }
        /^  wrong if: / { sub(/^  wrong if: /, ""); wrong = $0; into = 2; next }
        { sub(/^ */, ""); if (into == 1) sure = sure " " $0; else wrong = wrong " " $0 }
        END { end() }
        function end() { if (rule != "") print "| `" rule "` | " tier " | " sure " | " wrong " |" }'
}
[ "${2-}" = -w ] || { table "$1" && exit; }
page=$(dirname "$0")/../README.md
table "$1" | awk -v page="$page" '
    { made = made $0 "\n" }
    END {
        while ((getline line < page) > 0) {
            if (line ~ /^\| rule \| tier \|/) { printf "%s", made; old = 1 }
            old = old && line ~ /^\|/
            if (!old) print line
        }
    }' >"$page.new" && mv "$page.new" "$page"
