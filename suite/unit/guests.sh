#!/bin/sh
# What the libraries that are loaded into foreign processes export and need, against NCCL's own header and library
# where they are. Prints each breach.
#
#   suite/unit/guests.sh BUILD
set -u
build=$1
folder=suite/observe/collectives
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cuda=$(sh harness/find_cuda.sh)
found() { # name of a part
    echo "$cuda" | sed -n "s/^$1=//p" | head -n 1
}
exported() { # library
    nm -D --defined-only "$1" | awk '{ sub(/@.*/, "", $3); print $3 }' | sort
}
none_of_nccl() { # library: NCCL and CUDA are those that the process has
    nm -D --undefined-only "$1" | awk -v file="$1" '$NF ~ /^(nccl|cuda|cu[A-Z])/ { print file " needs " $NF }'
}

# NCCL looks up a profiler's table by name: 2.27 version 4, 2.28 and later version 5.
profiler=$build/lib/ls_nccl_profiler.so
if [ -f "$profiler" ]; then
    exported "$profiler" >"$work/tables"
    printf '%s\n' ncclProfiler_v4 ncclProfiler_v5 | diff - "$work/tables" |
        sed -n "s:^< :$profiler lacks :p; s:^> :$profiler also exports :p"
    nm -D --defined-only "$profiler" | awk -v file="$profiler" '$2 !~ /^[DR]$/ { print file ": " $3 " is no table" }'
    none_of_nccl "$profiler"
fi

# Those of interpose.def are wrapped, but for two that are only called.
sed -n 's/^LS_INTERPOSE_NCCL(\(.*\))$/\1/p' $folder/interpose.def | sort >"$work/listed"
grep -vxE 'ncclComm(Count|UserRank)' "$work/listed" >"$work/wrapped"
interposer=$build/lib/ls_nccl_interpose.so
if [ -f "$interposer" ]; then
    exported "$interposer" >"$work/exported"
    # a header that is older than a function leaves it out
    includes=$(echo "$cuda" | sed -n 's/^\(CUDART\|NCCL\|CCCL\)_INC=/-isystem/p' | sort -u | tr '\n' ' ')
    version=$(printf '#include <nccl.h>\nversion NCCL_VERSION_CODE\n' | gcc $includes -x c -E -P - 2>/dev/null |
        sed -n 's/^version //p')
    if [ "${version:-0}" -ge 22700 ]; then
        diff "$work/wrapped" "$work/exported" |
            sed -n "s:^< :$interposer lacks :p; s:^> :$interposer also exports :p"
        # A definition that differs from nccl.h does not compile; one that nccl.h does not declare would.
        {
            echo '#include <nccl.h>'
            while read -r name; do
                echo "extern __typeof__($name) *as_$name; __typeof__($name) *as_$name = $name;"
            done <"$work/listed"
        } | gcc $includes -x c -fsyntax-only - 2>&1 | sed -n "s/.*error: \(.*\)/nccl.h: \1/p"
    fi
    none_of_nccl "$interposer"
fi

# The library itself; its functions are weak there, for pncclAllReduce and its like.
library=$(found NCCL_LIB)
if [ -n "$library" ] && [ "$(found NCCL_VERSION | cut -d. -f1-2)" = 2.28 ]; then
    exported "$library" | comm -23 "$work/listed" - | sed "s:^:$library does not export :"
    for table in 4 5; do
        strings -a "$library" | grep -qx "ncclProfiler_v$table" || echo "$library does not look for ncclProfiler_v$table"
    done
fi
