#!/bin/sh
# Compares what nvcc made of the kernels of kernels/cuda with suite/unit/device_code.txt. Prints each breach. Read are,
# beside each object, ptxas's report (.ptxas: registers, stack, spills, for each architecture) and the PTX (.ptx).
#
#   suite/unit/device_code.sh BUILD
set -u
table=suite/unit/device_code.txt
objects=$1/obj/kernels/cuda
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for source in kernels/cuda/*.cu kernels/cuda/*/*.cu; do
    record=$objects/${source#kernels/cuda/}
    if [ ! -f "$record.ptxas" ] || [ ! -f "$record.ptx" ]; then
        echo "$record.ptxas, .ptx: not there"
        continue
    fi
    # code NAME ARCH REGISTERS STACK STORES (bytes) of each kernel; NAME is mangled
    awk -v file="$(basename "$source")" '
        /Compiling entry function/ { split($0, part, "\047"); name = part[2]; arch = part[4] }
        / bytes stack frame, / { stack = $1; stores = $5 }
        name != "" && / Used [0-9]+ registers/ {
            match($0, /Used [0-9]+/)
            print "code", file, arch, substr($0, RSTART + 5, RLENGTH - 5), stack, stores, name
            name = ""
        }' "$record.ptxas"
    # load FILE ARCH BYTES COUNT NAME: loads of global memory; generic: of memory that the compiler does not know
    awk -v file="$(basename "$source")" '
        /^\.target / { arch = $2; sub(/,.*/, "", arch) }
        /^(\.[a-z]+ )*\.(entry|func) / { name = $0; sub(/[ \t(]*$/, "", name); sub(/.*[ )]/, "", name) }
        /^[ \t]*(@!?%p[0-9]+ )?(ld|ldu)\./ {
            op = $1 ~ /^@/ ? $2 : $1
            if (op ~ /\.(param|shared|local|const)/) next
            match(op, /[0-9]+$/); bytes = substr(op, RSTART) / 8
            if (match(op, /\.v[248]\./)) bytes *= substr(op, RSTART + 2, 1)
            count[arch " " bytes " " name]++
            if (op !~ /\.global/) count[arch " generic " name]++
        }
        END { for (key in count) { split(key, part, " "); print "load", file, part[1], part[2], count[key], part[3] } }' \
        "$record.ptx"
done >"$work/mangled"
grep -vE '^(code|load) ' "$work/mangled"
grep -E '^(code|load) ' "$work/mangled" | c++filt -p >"$work/found"

awk -v table="$table" '
    function trim(s) { gsub(/^[ \t]+|[ \t]+$/, "", s); return s }
    function pattern(glob) {
        gsub(/[.()+?^$]/, "\\\\&", glob); gsub(/\*/, ".*", glob)
        return "^" glob "$"
    }
    FILENAME == table && !/^#/ && NF {
        split($0, column, "|"); n = ++rows
        glob[n] = trim(column[1]); gsub(/  +/, " ", glob[n]); match_of[n] = pattern(glob[n])
        loads[n] = trim(column[2]); blocks[n] = trim(column[3]); spills[n] = trim(column[4])
        if ((loads[n] != "16" || spills[n] != "") && trim(column[5]) == "") print table ": " glob[n] ": no reason is given"
        if (loads[n] !~ /^(any|16(, [1248] x [0-9.]+)*)$/) print table ": " glob[n] ": loads: " loads[n]
        if (blocks[n] != "" && blocks[n] !~ /^[0-9]+ x [0-9]+$/) print table ": " glob[n] ": blocks: " blocks[n]
        if (spills[n] != "" && spills[n] !~ /^sm_[0-9]+ [0-9]+$/) print table ": " glob[n] ": spills: " spills[n]
        next
    }
    $1 == "code" || $1 == "load" {
        name = $0
        for (i = $1 == "code" ? 6 : 5; i > 0; i--) sub(/^[^ ]+ /, "", name)
        name = $2 " " name
    }
    $1 == "code" {
        kernel[++kernels] = name; compiled[name]; arch[kernels] = $3; registers[kernels] = $4; stack[kernels] = $5; stores[kernels] = $6
    }
    $1 == "load" { load[name " " $3 " " $4] = $5; loading[name] }
    function say(text) { print kernel[k] ", " arch[k] ": " text }
    END {
        for (k = 1; k <= kernels; k++) {
            row = 0
            for (n = 1; n <= rows; n++) if (kernel[k] ~ match_of[n]) {
                if (row) print kernel[k] ": in two rows of " table ": " glob[row] " and " glob[n]
                row = n; used[n]
            }
            if (!row) {
                if (!(kernel[k] in told)) print kernel[k] ": in no row of " table ": add one"
                told[kernel[k]]; continue
            }
            most = 0; split(spills[row], part, " ")
            if (part[1] == arch[k]) most = part[2] + 0
            if (stack[k] > most) say(stack[k] " bytes of stack (" most " allowed)")
            if (stores[k] > most) say(stores[k] " bytes are spilled (" most " allowed)")
            if (blocks[row] != "") {
                split(blocks[row], part, " x "); most = int(65536 / (part[1] * part[2]) / 8) * 8
                if (registers[k] > most) say(registers[k] " registers (" most " for " blocks[row] " threads a multiprocessor)")
            }
            if (loads[row] == "any") continue
            at = kernel[k] " " arch[k]
            split("", limit); parts = split(loads[row], part, ", ")
            for (i = 2; i <= parts; i++) { split(part[i], word, " "); limit[word[1]] = word[3] }
            wide = load[at " 16"] + load[at " 32"]
            text = ""
            for (bytes = 1; bytes < 16; bytes *= 2) {
                count = load[at " " bytes] + 0; most = int(limit[bytes] * wide)
                if (count > most) text = text ", " count " of " bytes " (" most " allowed)"
            }
            if (text != "" || wide == 0) say("loads: " wide + 0 " of 16 bytes" text)
            if (load[at " generic"] > 0) say(load[at " generic"] " loads that may not be of global memory (LS_GLOBAL)")
        }
        for (name in loading) if (!(name in compiled)) print name ": a function that is not inlined loads from global memory"
        for (n = 1; n <= rows; n++) if (!(n in used)) print table ": " glob[n] ": no kernel of that name"
    }' "$table" "$work/found"
