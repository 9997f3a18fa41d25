#!/bin/sh
# The copy of the sources in which mutants are built, and the map of the tests that reach a line.
#
#   suite/mutate/build.sh BUILD       makes BUILD/mutate: build/ (as it is run), build/coverage, reach/
set -eu
unset MAKEFLAGS MAKEOVERRIDES
build=$1
tree=$build/mutate
stamp=$(cat Makefile $(git ls-files suite reference harness kernels plots) | sha256sum | cut -c1-16)
if [ "$(cat "$tree/stamp" 2>/dev/null)" != "$stamp" ]; then
    rm -rf "$tree"
    mkdir -p "$tree"
    git ls-files -z | xargs -0 cp --parents -t "$tree"
    echo "$stamp" >"$tree/stamp"
fi
jobs=$(nproc)
echo "mutate: building $tree"
make -s --no-print-directory -j"$jobs" -C "$tree" WARN=-w programs units
make -s --no-print-directory -j"$jobs" -C "$tree" WARN=-w BUILD=build/coverage OPTIMISE='-O1 -g' SANITIZE=--coverage programs units
(cd "$tree" && git -C "$OLDPWD" ls-files 'kernels/*.c' 'harness/*.c' 'reference/*.c' 'reference/*.cc' |
    grep -vE '^kernels/cuda/|/nccl|^kernels/core/plant\.c') >"$tree/sources"
echo "mutate: mapping the lines that each test reaches"
sh suite/mutate/reach.sh "$tree"
