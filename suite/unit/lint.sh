#!/bin/sh
# House rules that a compiler does not know. Prints each breach and fails if there is one.
#
#   suite/unit/lint.sh BUILD
set -u
build=$1
bad=0
breach() { # title; lines on stdin
    lines=$(cat)
    if [ -n "$lines" ]; then
        printf '%s\n' "$1" "$lines" | sed '2,$s/^/    /'
        bad=1
    fi
}
sources() { git ls-files '*.c' '*.h' '*.cc' '*.cu'; }
includes() { # where, what: includes of `what` in files under `where`
    git grep -nE "#include \"(\.\./)*($2)/" -- "$1" ':!suite/unit/lint.sh'
}

{
    includes kernels 'suite|reference|harness'
    includes harness 'suite|reference'
    includes reference 'suite'
} | breach "includes point suite -> reference -> harness -> kernels only:"

git grep -nE '#include "\.\./' -- kernels/core | breach "kernels/core includes nothing outside itself:"

git grep -nE '#include "' -- reference/oracle |
    grep -vE '#include "(\.\./\.\./kernels/core/(log|status|arena|json)\.h|[a-z_]+\.h)"' |
    breach "the oracle includes only its own files and core/{log,status,arena,json}.h:"

git grep -nE '(fabsf?\(.*\)|diff|err|tol[a-z_]*) *(<|<=|=) *[0-9.]*1e-[0-9]' -- suite ':!suite/unit/lint.sh' |
    grep -v LS_TOL | breach "a tolerance is a derived value and a sentence (LS_TOL):"

git grep -nE '\b(usleep|nanosleep|sleep)\(' -- suite reference harness kernels |
    breach "no sleeps: every wait has a deadline and something it waits for:"

git grep -nE '.{101,}' -- '*.c' '*.h' '*.cc' '*.cu' | cut -c1-80 | breach "lines of more than 100 columns:"

# A public symbol ls_<file>_<verb> lives in <file> (its first word at least).
for object in $(find "$build/obj" -name '*.o' | grep -v '/unit/'); do
    file=$(basename "$object" | sed 's/\.c\.o$//; s/\.cc\.o$//')
    word=${file%%_*}
    nm -g --defined-only "$object" 2>/dev/null | awk '{ print $3 }' | grep '^ls_' |
        grep -vE "^ls_(${word}|${file})(_|$)" | grep -vE '^ls_(backend|comm)_entry$' |
        sed "s|^|$object: |"
done | breach "a symbol's second word is its file:"
nm_other=$(for object in $(find "$build/obj" -name '*.c.o' | grep -v '/unit/'); do
    nm -g --defined-only "$object" 2>/dev/null | awk '{ print $3 }' | grep -vE '^(ls_|main$|__)' |
        sed "s|^|$object: |"
done)
printf '%s' "$nm_other" | breach "public symbols start with ls_:"

# No mutable globals: nothing of ours in .data or .bss.
for object in $(find "$build/obj" -name '*.c.o' | grep -v '/unit/'); do
    objdump -t "$object" 2>/dev/null |
        awk -v o="$object" '($4 == ".data" || $4 == ".bss" || $3 == ".data" || $3 == ".bss") && $NF != ".data" && $NF != ".bss" { print o ": " $NF }'
done | grep -vE '__(asan|ubsan|tsan|gcov)|\.Lubsan' | breach "no mutable globals:"

for header in $(git ls-files '*.h'); do
    gcc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Werror -I. -x c -fsyntax-only "$header" 2>&1 |
        head -n 3
done | grep -v 'pragma once in main file' | breach "every header compiles alone:"

if command -v clang-format >/dev/null 2>&1; then
    sources | xargs clang-format --dry-run 2>&1 | grep -E 'warning:' | cut -d: -f1,2 | sort -u |
        head -n 20 | breach "not formatted (make format):"
else
    echo "note: clang-format is not here; formatting was not checked"
fi

if [ "$bad" -eq 0 ]; then
    echo "lint: clean"
fi
exit "$bad"
