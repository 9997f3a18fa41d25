#!/bin/sh
# The copy of the sources in which mutants are built, and the map of the tests that reach a line.
#
#   suite/mutate/build.sh BUILD [FILE]   makes BUILD/mutate: build/ (as it is run), build/coverage, reach/
# FILE: a pattern of the sources to change. Of sources of the suite the suite's unit programs are the tests, so for such a
# pattern only they are built and mapped.
set -eu
build=$1
case ${2-} in suite/*) part=suite ;; *) part=all ;; esac
tree=$build/mutate
# The map belongs to the product's sources; where only tests have changed, those are built and mapped again.
product=$(git ls-files Makefile kernels harness reference | xargs cat | sha256sum | cut -c1-16)
if [ "$(cat "$tree/product.stamp" 2>/dev/null)" != "$product" ]; then
    rm -rf "$tree"
    mkdir -p "$tree"
fi
git ls-files | while read -r file; do
    cmp -s "$file" "$tree/$file" || cp --parents "$file" "$tree"
done
git ls-files suite | xargs cat | sha256sum | cut -c1-16 >"$tree/tests.stamp"
jobs=$(nproc)
echo "mutate: building $tree"
units=units
[ $part = all ] || units=$(git ls-files 'suite/unit/suite/test_*.c' | sed 's|.*/\(.*\)\.c|\1|')
of() { # FOLDER: the targets of the units in it
    [ $part = all ] && echo units || echo "$units" | sed "s|^|$1/unit/|"
}
sh suite/mutate/make.sh "$PWD/$tree" -j"$jobs" programs $(of build)
# Processes that end with _exit or exec write their counts, too.
counts=$(cd "$tree" && pwd)/build/coverage
mkdir -p "$counts"
for form in '-shared -DFLUSH_LIBRARY -o libflush.so' '-c -o flush.o'; do
    (source=$PWD/suite/mutate/coverage/flush.c && cd "$counts" && cc -O1 -fPIC $form "$source")
done
(unset MAKEFLAGS MAKEOVERRIDES &&
    LDFLAGS="$counts/flush.o -L$counts -lflush -Wl,-rpath,$counts" make -s --no-print-directory -j"$jobs" -C "$tree" \
        WARN=-w HAVE_CUDA= BUILD=build/coverage OPTIMISE='-O1 -g' SANITIZE=--coverage programs $(of build/coverage))
echo "$product" >"$tree/product.stamp"
(cd "$tree" && git -C "$OLDPWD" ls-files 'kernels/*.c' 'harness/*.c' 'reference/*.c' 'reference/*.cc' 'suite/*.c' |
    grep -vE '^kernels/cuda/|/nccl|^kernels/core/plant\.c|^suite/(unit|mutate|emulation|observe/collectives)/') >"$tree/sources"
echo "mutate: mapping the lines that each test reaches"
sh suite/mutate/reach.sh "$tree" $part
