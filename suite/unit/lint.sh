#!/bin/sh
# House rules that a compiler does not know. Prints each breach; the exit code is 1 if there is one.
#
#   suite/unit/lint.sh BUILD [yes]     (BUILD: a folder in which `make units` has run; yes: with the CUDA backend)
set -u
export LC_ALL=C.UTF-8
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/breaches"

# Files of the tree, committed or not, by kind.
git ls-files -co --exclude-standard | while read -r file; do
    [ -f "$file" ] && echo "$file"
done >"$work/files"
grep -E '\.(c|h|cc|cu|hh|inc)$' "$work/files" >"$work/sources"

breach() { # title; lines on stdin
    cat >"$work/lines"
    if [ -s "$work/lines" ]; then
        { echo "$1"; sed 's/^/    /' "$work/lines"; } | tee -a "$work/breaches"
    fi
}
everywhere() { # extended regular expression: file:line: text of each match in a source
    xargs grep -nHE "$1" <"$work/sources"
}

# ---- includes ------------------------------------------------------------------------------------
# "file:line included-file" of every #include "...", with paths from the root.
everywhere '^ *# *include *"' | awk -v list="$work/files" '
    BEGIN { while ((getline name < list) > 0) here[name] = 1 }
    function plain(path,   part, kept, n, i, k) {
        n = split(path, part, "/"); k = 0
        for (i = 1; i <= n; i++) {
            if (part[i] == ".." && k > 0) k--
            else if (part[i] != "." && part[i] != "") kept[++k] = part[i]
        }
        path = kept[1]
        for (i = 2; i <= k; i++) path = path "/" kept[i]
        return path
    }
    {
        split($0, where, ":"); name = $0
        sub(/^[^"]*"/, "", name); sub(/".*/, "", name)
        folder = where[1]; sub(/[^\/]*$/, "", folder)
        full = plain(folder name)
        print where[1] ":" where[2], (full in here) ? full : plain(name)
    }' >"$work/includes"

awk 'BEGIN { rank["suite"] = 4; rank["reference"] = 3; rank["harness"] = 2; rank["kernels"] = 1 }
    { split($1, from, "/"); split($2, to, "/") }
    rank[to[1]] > rank[from[1]]' "$work/includes" |
    breach "includes point suite -> reference -> harness -> kernels only:"

awk '$1 ~ /^kernels\/core\// && $2 !~ /^kernels\/core\//' "$work/includes" |
    breach "kernels/core includes nothing outside itself:"

awk '$1 ~ /^reference\/oracle\// && $2 !~ /^reference\/oracle\// &&
    $2 !~ /^kernels\/core\/(log|status|arena|json|file)\.h$/' "$work/includes" |
    breach "the oracle includes only its own files and kernels/core/{log,status,arena,json,file}.h:"

# ---- text ----------------------------------------------------------------------------------------
# A comparison with a small literal needs LS_TOL or a comment that ends within the three lines above.
xargs awk '
    FNR == 1 { statement = ""; first = 0; reason = -9; inside = 0 }
    {
        line = $0
        gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
        if (inside || line ~ /\/\*|\/\//) reason = FNR
        if (inside && sub(/^.*\*\//, "", line)) inside = 0
        if (inside) next
        gsub(/\/\*[^*]*\*+([^\/*][^*]*\*+)*\//, "", line)
        if (sub(/\/\*.*/, "", line)) inside = 1
        sub(/\/\/.*/, "", line)
        if (line ~ /^ *#/) next
        gsub(/->|<<|>>/, ".", line)
        if (statement == "") first = FNR
        statement = statement line
        if (line !~ /[;{}] *$/) next
        small = "([0-9.]e-[0-9]|[^0-9.]0\\.0[0-9])"
        bare = statement ~ "[<>]=?[^,;?&|:]*" small ||
            statement ~ "_tol\\(.*" small || statement ~ /_[lg][te]\(.*[0-9.]e-[0-9]/ ||
            statement ~ "(tol|tolerance|slack) *=.*" small
        if (bare && statement !~ /LS_TOL/ && first - reason > 3) {
            gsub(/  +/, " ", statement)
            print FILENAME ":" first ": " substr(statement, 1, 90)
        }
        statement = ""
    }' <"$work/sources" | breach "a tolerance is a value and a sentence (LS_TOL, or a comment above):"

everywhere '\b(usleep|nanosleep|clock_nanosleep|thrd_sleep|sleep_for|sleep) *\(' |
    breach "no sleeps: every wait has a deadline and something it waits for:"

# A FIFO in place of a file would hang its reader. Each exception has its reason.
cat >"$work/known" <<'END'
^kernels/core/file\.c:                             it opens files for all others
"/(proc|sys|dev)/                                  the kernel's own files
^harness/process/proc\.c:.*fopen\(path, "re"\)     /proc/PID/stat
^harness/machine/watch_gpu\.c:.*/dev/kmsg          the kernel's log, without waiting
^kernels/cuda/numa\.c:                             files below /sys
^reference/state/device\.c:                        the same
^reference/comm/gloo_mesh\.hh:.*O_RDWR            memory of another rank; O_RDWR waits for no writer
^suite/observe/collectives/journal\.c:.*O_EXCL     a new file, by a library with libc alone
^suite/(unit|emulation)/                           tests
END
sed 's/  .*//' "$work/known" >"$work/patterns"
everywhere '\bfopen\(|\b(open|openat)\(.*O_(RDONLY|RDWR|TRUNC|APPEND)|\b[io]fstream\b' | grep -vE -f "$work/patterns" |
    breach "files are opened by kernels/core/file.h, which takes regular files and waits for nothing:"
everywhere '\brename(at2?)?\(' | grep -vE '^(kernels/core/file\.c|suite/(unit|emulation)/.*|suite/detect/detect\.c):' |
    breach "a file is replaced through ls_file_draft, which leaves nothing behind (detect.c moves one):"

everywhere '\bcJSON_Parse' | grep -E '^(harness|suite/(run|judge|commands|detect))/' |
    grep -vE '^(harness/hosts/remote\.c:.*the bench|suite/commands/roofline\.c:)' | # words of our own
    breach "foreign JSON is parsed by ls_json_parse, which makes its strings printable:"

everywhere '\b(popen|system) *\(' | grep -vE '^suite/unit/' |
    breach "no shell where none is needed: programs are started by harness/process:"

everywhere '\b(TODO|FIXME|XXX)\b' | breach "say it or do it:"

everywhere '.{101}' | cut -c1-90 | breach "lines of more than 100 columns:"

# Those of folders in it not counted.
sed 's:/[^/]*$::' "$work/files" | sort | uniq -c | awk '$1 > 45 { print $2 ": " $1 }' |
    breach "a folder of more than 45 files:"
git ls-files -z 2>/dev/null | xargs -0r stat -c '%s %n' 2>/dev/null | awk '$1 > 262144 { print $2 ": " $1 " bytes" }' |
    breach "a file of more than 256 KiB, such as a package that was downloaded here:"

# ---- symbols -------------------------------------------------------------------------------------
# Objects of today's sources, tests left out; "object symbol" of what each defines.
grep -E '\.(c|cc)$' "$work/sources" | grep -vE '^suite/(unit|emulation)/' | while read -r file; do
    [ -f "$build/obj/$file.o" ] && echo "$build/obj/$file.o"
done >"$work/objects"
[ -s "$work/objects" ] || echo "$build/obj" | breach "nothing is built here (make units):"
xargs nm -A -g --defined-only <"$work/objects" 2>/dev/null |
    sed -n 's/^\([^:]*\.o\):.* [A-Za-z] \([^ ]*\)$/\1 \2/p' >"$work/defined"

# ---- direction -----------------------------------------------------------------------------------
# "from to" for each pair of files of which one includes or calls the other: without their endings, for the folders;
# and with headers apart, for the files, as a header may declare what several files of a subject define.
# A name that several objects define means the one of the caller's folder, else none.
xargs nm -A -u <"$work/objects" 2>/dev/null | sed -n 's/^\([^:]*\.o\):.* U \([^ ]*\)$/\1 \2/p' >"$work/called"
awk -v build="$build/obj/" -v folders="$work/arrows" -v files="$work/file_arrows" '
    function plain(object) { return substr(object, length(build) + 1, length(object) - length(build) - 2) }
    function folder(path) { sub(/\/[^\/]*$/, "", path); return path }
    function stem(path) { sub(/\.(c|cc|cu|h|hh|inc)$/, "", path); return path }
    function node(path) { return path ~ /\.(h|hh|inc)$/ ? path : stem(path) }
    function arrow(list, from, to) {
        if (from != to && !((list, from, to) in seen)) { seen[list, from, to]; print from, to >list }
    }
    FILENAME ~ /includes$/ {
        split($1, at, ":")
        if (at[1] ~ /^suite\/(unit|emulation)\// || $2 ~ /^suite\/(unit|emulation)\//) next
        arrow(folders, stem(at[1]), stem($2))
        arrow(files, node(at[1]), node($2))
    }
    FILENAME ~ /defined$/ {
        home = plain($1); count[$2]++; only[$2] = home; near[$2 " " folder(home)] = home
    }
    FILENAME ~ /called$/ {
        from = plain($1); key = $2 " " folder(from)
        to = key in near ? near[key] : count[$2] == 1 ? only[$2] : ""
        if (to != "") { arrow(folders, stem(from), stem(to)); arrow(files, stem(from), stem(to)) }
    }' "$work/includes" "$work/defined" "$work/called"

# Circles of the graph on stdin, each on a line. Nodes without arrows in or out go first.
circles() {
    awk '
    { arrow[NR] = $0; from[NR] = $1; to[NR] = $2; next_of[$1] = next_of[$1] " " $2 }
    function reach(start, found,   stack, top, node, part, n, i) {
        stack[top = 1] = start
        while (top > 0) {
            node = stack[top--]; n = split(next_of[node], part, " ")
            for (i = 1; i <= n; i++) if (!(part[i] in gone) && !(part[i] in found)) { found[part[i]]; stack[++top] = part[i] }
        }
    }
    END {
        do {
            changed = 0; split("", leaves); split("", enters)
            for (i = 1; i <= NR; i++) if (!(from[i] in gone) && !(to[i] in gone)) { leaves[from[i]]; enters[to[i]] }
            for (i = 1; i <= NR; i++) {
                if (!(from[i] in gone) && !(from[i] in enters)) { gone[from[i]]; changed = 1 }
                if (!(to[i] in gone) && !(to[i] in leaves)) { gone[to[i]]; changed = 1 }
            }
        } while (changed)
        for (i = 1; i <= NR; i++) if (!(from[i] in gone) && !(from[i] in listed)) {
            split("", ahead); reach(from[i], ahead); line = ""
            if (!(from[i] in ahead)) continue
            for (node in ahead) { split("", back); reach(node, back); if (from[i] in back) { listed[node]; line = line " " node } }
            print substr(line, 2)
        }
    }'
}

# A folder is the unit; a file that lies next to folders is one of its own.
awk '{ print $1; print $2 }' "$work/arrows" | sort -u >"$work/nodes"
awk -v list="$work/nodes" '
    function up(path) { sub(/\/[^\/]*$/, "", path); return path }
    BEGIN {
        while ((getline node < list) > 0) all[node]
        for (node in all) for (path = up(node); path ~ /\//;) { path = up(path); parent[path] }
    }
    function unit(node) { return up(node) in parent ? node ".*" : up(node) }
    { a = unit($1); b = unit($2); split(a, x, "/"); split(b, y, "/") }
    a != b && x[1] == y[1] && !((a " " b) in seen) { seen[a " " b]; print a, b }' "$work/arrows" |
    circles | awk '{ for (i = 1; i <= NF; i++) if ($i !~ /\.\*$/) { print; next } }' |
    breach "the folders of kernels, harness, reference and suite point one way; these point at each other:"

# Circles of files are no more than these, each a pattern that all of its files match, and its reason.
cat >"$work/known" <<'END'
^kernels/cuda/conv/                       a convolution with its plans, and the trials that admit them
^suite/observe/trace/(open_step|trace)$    the trace adds to a step that is open, which is read from its events
END
circles <"$work/file_arrows" | while read -r circle; do
    while read -r pattern reason; do
        echo "$circle" | tr ' ' '\n' | grep -qvE "$pattern" || continue 2
    done <"$work/known"
    echo "$circle"
done | breach "a circle of files that include or call each other:"

# A public symbol is ls_<file>... or ls_<folder>_<file>...; <file> may be the first word of its name.
awk '$2 !~ /^ls_/ { next }
    $2 ~ /^ls_(backend|comm)_entry$/ { next } # the doors of loaded objects
    $1 ~ /\/observe\/rules\// && $2 ~ /^ls_rules_/ { next } # ls_rules_<id of the rule>
    {
        file = $1; sub(/.*\//, "", file); sub(/\..*/, "", file)
        folder = $1; sub(/\/[^\/]*$/, "", folder); sub(/.*\//, "", folder)
        word = file; sub(/_.*/, "", word)
        if (index($2 "_", "ls_" file "_") != 1 && index($2 "_", "ls_" word "_") != 1 &&
            index($2 "_", "ls_" folder "_" file "_") != 1) print
    }' "$work/defined" | breach "the second word of a symbol is its file:"

# NVTX is header-only: its functions are weak symbols of each object that includes it.
awk '$1 ~ /\/observe\/collectives\// && $2 ~ /^nccl/ { next } # the names that are interposed or looked for
    $1 ~ /\.c\.o$/ && $2 !~ /^ls_/ && $2 !~ /^main$|^__|^nvtx|^InitializeInjectionNvtx/' "$work/defined" |
    breach "public symbols start with ls_:"

# The oracle calls nothing that it judges, by whatever declaration.
grep '/obj/reference/oracle/' "$work/objects" >"$work/oracle"
grep -E ' ls_' "$work/defined" | grep -E '/obj/(reference/oracle/|kernels/core/(log|status|arena|json|file)\.)' |
    cut -d' ' -f2 | sort -u >"$work/allowed"
xargs nm -A -u <"$work/oracle" 2>/dev/null | awk -v list="$work/allowed" '
    BEGIN { while ((getline name < list) > 0) allowed[name] = 1 }
    $NF ~ /^ls_/ && !($NF in allowed) { print $1, $NF }' |
    breach "the oracle calls only its own files and kernels/core/{log,status,arena,json,file}:"

# Tables of constants with pointers are .data.rel.ro; guards and tables of C++ are the compiler's. What NCCL or the
# dynamic linker loads into a foreign process is given no place for its state.
xargs objdump -t <"$work/objects" 2>/dev/null | awk '
    / file format / { object = $1; next }
    /  ?[O ] \.(data|data\.rel|data\.rel\.local|bss|tdata|tbss)(\.[^ \t]*)?\t/ && !/\.data\.rel\.ro/ {
        if (object ~ /\/observe\/collectives\// && $NF ~ /^(process_state|of_thread)$/) next
        if ($NF !~ /^_ZGV|^_ZT|^DW\.ref\.|__(asan|ubsan|tsan)|^\.L|^nvtxGlobals|^InitializeInjectionNvtx/) print object, $NF
    }
    / \*COM\*/ { print object, $NF }' | breach "no mutable globals:"

# ---- libraries for other processes ---------------------------------------------------------------
sh suite/unit/guests.sh "$build" 2>&1 |
    breach "what is loaded into jobs exports what NCCL looks for and what is wrapped, and needs neither NCCL nor CUDA:"

# ---- planted faults ------------------------------------------------------------------------------
# suite/plants.txt, the sources and suite/plants/ name the same faults.
sed -n 's/^\([a-z][a-z0-9_]*\)[^|]*|.*|.*|.*|.*/\1/p' suite/plants.txt | sort -u >"$work/plants"
{
    grep -vE '^suite/(unit|emulation)/' "$work/sources" | xargs grep -ohE 'LS_PLANT\([a-z0-9_]+,' | sed 's/LS_PLANT(//; s/,//'
    sed -n 's:^suite/plants/\(.*\)\.patch$:\1:p' "$work/files"
} | grep -v '^name$' | sort -u >"$work/planted"
comm -3 "$work/plants" "$work/planted" | tr -d '\t' |
    breach "a planted fault is in suite/plants.txt and in the sources or suite/plants/:"
sed -n 's:^\(suite/plants/.*\.patch\)$:\1:p' "$work/files" | while read -r patch; do
    patch -p1 --dry-run -s -f <"$patch" >/dev/null 2>&1 || echo "$patch"
done | breach "patches of planted faults apply:"

# Each mistake of a Python script stands at one place of its base.
python3 suite/peers/mistakes.py --list 2>&1 >/dev/null | breach "rows of suite/peers/mistakes.py:"

# Pages link to files that are there; README's go into the tarball of make dist.
grep '\.md$' "$work/files" | while read -r page; do
    grep -o ']([^)# ]*' "$page" | cut -c 3- | grep -v '^[a-z]*:' | while read -r linked; do
        [ -z "$linked" ] || [ -e "$(dirname "$page")/$linked" ] || echo "$page: $linked"
    done
done | breach "a page links to a file that is not there:"
# A file that a page names as code, but for a pattern (NAME, *).
grep '\.md$' "$work/files" | grep -v '^CHANGELOG' | while read -r page; do
    grep -oE '`(suite|kernels|harness|reference|plots)/[a-z0-9_./-]+\.(c|h|cc|cu|py|sh|def|txt|md)`' "$page" | tr -d '`' |
        while read -r named; do
            [ -e "$named" ] || echo "$page: $named"
        done
done | breach "a page names a file that is not there:"

# Each anchor is a heading of its page.
grep '\.md$' "$work/files" | while read -r page; do
    grep -o ']([^): ]*#[^)]*' "$page" | cut -c 3- | while IFS='#' read -r linked anchor; do
        linked=${linked:+$(dirname "$page")/$linked}
        sed -n 's/^##* //p' "${linked:-$page}" | tr 'A-Z ' 'a-z-' | sed 's/[^a-z0-9_-]//g' | grep -qxF -e "$anchor" ||
            echo "$page: ${linked:-$page}#$anchor"
    done
done | breach "a page links to a heading that is not there:"

# A row of a table may be wider where its cells are, without blanks that only align them. report.md: written by a run.
grep '\.md$' "$work/files" | grep -v '/report\.md$' | xargs awk '
    FNR == 1 { code = 0 }
    /^ *```/ { code = !code }
    { tight = $0; row = !code && /^ *\|/; gsub(/  +/, " ", tight) }
    length($0) > 120 && !(row && length(tight) > 120) { print FILENAME ":" FNR ": " substr($0, 1, 60) }' |
    breach "lines of more than 120 columns in a page:"

# Pages that follow from tables.
if [ -x "$build/lockstep" ]; then
    sed -n '/^| command | what it does |$/,$p' suite/commands/README.md >"$work/tables"
    sh suite/commands/tables.sh "$build" | diff "$work/tables" - |
        breach "the tables of suite/commands/README.md are not those of suite/commands/tables.sh:"
    grep -qF "version $("$build/lockstep" --version | cut -d' ' -f2);" README.md || echo README.md |
        breach "the page names another version than lockstep --version:"
    sed -n '/^| rule | tier |/,/^$/{/./p}' suite/observe/README.md >"$work/tables"
    sh suite/observe/rules/table.sh "$build" | diff "$work/tables" - |
        breach "the laws and hints of suite/observe/README.md are not those of rules.def (rules/table.sh):"
fi
sed -n 's/^LS_OBSERVE_RULE("\([^"]*\)".*/| `\1` /p' suite/observe/rules/rules.def | while read -r rule; do
    grep -F "$rule" suite/observe/README.md | grep -q '^| `[^`]*` [DA]' || echo "$rule"
done | breach "a rule of rules.def has no row in suite/observe/README.md:"

# Both pages say how long the example is (test_subject: one prints it).
lines=$(wc -l <suite/peers/example.py)
grep -L " $lines lines" suite/peers/README.md suite/protocol.md | breach "the number of lines of suite/peers/example.py ($lines):"

# The adapted script is the user's with few changed lines, which the page shows and counts.
changed=$(diff suite/peers/script/train.py suite/peers/script/adapted.py | grep -c '^[<>]')
[ "$changed" -le 25 ] || echo "$changed" | breach "changed lines of suite/peers/script/adapted.py, at most 25:"
tr '\n' ' ' <suite/peers/README.md | grep -q " $changed changed lines" || echo suite/peers/README.md | breach "the number of changed lines of suite/peers/script/adapted.py ($changed):"
diff suite/peers/script/train.py suite/peers/script/adapted.py | sed -n 's/^> /+/p; s/^< /-/p' | while IFS= read -r line; do
    grep -qxF -e "$line" suite/peers/README.md || echo "$line"
done | breach "changed lines of suite/peers/script/adapted.py that its page does not show:"

# Each names a case and its requirement; each requirement has a case, each case a requirement.
if [ -x "$build/lockstep" ]; then
    "$build/lockstep" detect --list 2>&1 >/dev/null | breach "each planted fault and each wrong trainer names a case:"
    "$build/unit/test_cases" >"$work/cases" 2>&1 || breach "requirements and cases:" <"$work/cases"
fi

# The normal build has no trace of them.
case $build in */planted) ;; *)
    ls "$build"/lockstep* "$build"/lib/*.so 2>/dev/null | while read -r file; do
        [ -f "$file" ] && nm "$file" 2>/dev/null | grep -i 'ls_plant' | sed "s:^:$file :"
    done | breach "no planted fault in the normal build:"
    for file in "$build/lockstep-train" "$build/lockstep-launch" "$build"/lib/*.so; do
        strings -a "$file" 2>/dev/null | grep -xF -f "$work/plants" | sed "s:^:$file :"
    done | breach "no name of a planted fault in the normal build:" ;;
esac

# ---- kernels -------------------------------------------------------------------------------------
if [ "${2:-}" = yes ]; then
    sh suite/unit/device_code.sh "$build" | breach "compiled kernels keep what suite/unit/device_code.txt says:"
else
    echo "note: the CUDA backend was not built; registers, spills and loads of its kernels were not checked"
fi

# ---- headers and format --------------------------------------------------------------------------
alone() { # compiler and language; paths of headers on stdin
    xargs -P 2 -n 24 "$@" -Wall -Wextra -Wpedantic -Werror -I. -fsyntax-only 2>&1 |
        grep -E 'error|No such file' | head -n 40
}
# CUDA's own headers, where they are; without them nothing is said of ours. Headers of kernels are C++.
cuda=$(sh harness/find_cuda.sh | sed -n 's/^[A-Z]*_INC=/-isystem/p' | sort -u | tr '\n' ' ')
for part in cuda_runtime_api cudnn cublasLt nccl; do
    printf '#include <%s.h>\n' $part | gcc $cuda -x c -E - >/dev/null 2>&1 || cuda=
done
# of a library's missing headers: C++
absent=reference/comm/absent
grep -E '\.h$' "$work/sources" | grep -v "^$absent/" >"$work/headers"
grep -E '^kernels/cuda|^suite/emulation|^suite/unit/cuda|/nccl|/interpose\.h' "$work/headers" >"$work/of_cuda"
xargs grep -lE '"(kernels/cuda/)?launch\.h"|LS_DEVICE|LS_SHARED' <"$work/headers" >"$work/of_kernels"
grep -vxF -f "$work/of_cuda" "$work/headers" | grep -vxF -f "$work/of_kernels" |
    alone gcc -std=c11 -D_GNU_SOURCE -x c | breach "every header compiles alone:"
grep '^reference/oracle/audit/' "$work/of_kernels" | alone g++ -std=c++17 -DLS_AUDIT_CPU -fopenmp -x c++ |
    breach "every header of the audit compiles alone, for a CPU:"
if [ -n "$cuda" ]; then
    grep -vxF -f "$work/of_kernels" "$work/of_cuda" | alone gcc -std=c11 -D_GNU_SOURCE $cuda -x c |
        breach "every header of the CUDA backend compiles alone:"
    alone g++ -std=c++17 $cuda -DLS_CUDA_EMULATED -Isuite/emulation/runtime -x c++ <"$work/of_kernels" |
        breach "every header of kernels compiles alone, emulated:"
fi
if printf '#include <gloo/context.h>\n' | g++ -x c++ -E - >/dev/null 2>&1; then
    grep -E "\.hh\$|^$absent/" "$work/sources" | alone g++ -std=c++17 -fno-access-control -idirafter $absent -x c++ |
        breach "every header of C++ compiles alone:"
fi
# What C++ includes must be a header of C++ too.
xargs grep -l 'extern "C"' <"$work/headers" | { [ -n "$cuda" ] && cat || grep -vxF -f "$work/of_cuda"; } |
    alone g++ -std=c++17 $cuda -x c++ |
    breach "a header with extern \"C\" compiles as C++:"

# Other versions format otherwise.
for format in clang-format-14 clang-format ''; do
    "$format" --version 2>/dev/null | grep -q 'version 14\.' && break
done
if [ -n "$format" ]; then
    xargs -P 2 -n 32 "$format" --dry-run <"$work/sources" 2>&1 | grep 'warning:' |
        cut -d: -f1,2 | sort -u | head -n 40 | breach "not formatted (make format):"
else
    echo "note: clang-format 14 is not here (make deps); formatting was not checked"
fi
if command -v ruff >/dev/null 2>&1; then
    { ruff format --no-cache --check . >"$work/python" 2>&1 && ruff check --no-cache --output-format concise . >"$work/python" 2>&1; } ||
        breach "Python is not formatted (make format), or ruff finds a mistake:" <"$work/python"
else
    echo "note: ruff was not run: it is not here (pip install ruff); Python was not checked"
fi

[ -s "$work/breaches" ] && exit 1
echo "lint: clean ($(wc -l <"$work/sources") sources)"
