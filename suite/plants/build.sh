#!/bin/sh
# One tree and one build for each patch: a copy of the sources and of the planted build's objects, so that only
# what the patch touches is compiled again.
#
#   suite/plants/build.sh BUILD PATCH...        makes BUILD/patched/<patch>/build/planted/lockstep
set -eu
build=$1
shift
for patch in "$@"; do
    name=$(basename "$patch" .patch)
    folder=$build/patched/$name
    [ -x "$folder/build/planted/lockstep" ] && [ -z "$(find "$patch" suite reference harness kernels \
        Makefile -newer "$folder/build/planted/lockstep" -type f | head -n 1)" ] && continue
    rm -rf "$folder"
    mkdir -p "$folder"
    cp -a Makefile suite reference harness kernels plots "$folder"
    mkdir -p "$folder/build/planted"
    cp -a "$build/planted/obj" "$build"/planted/*.a "$folder/build/planted"
    [ ! -d "$build/planted/emulated" ] || cp -a "$build/planted/emulated" "$folder/build/planted"
    patch -s -p1 -d "$folder" <"$patch"
    target=programs # kernels of CUDA are judged on the emulation, where that can be built
    grep -q '/kernels/cuda/' "$patch" && target='programs emulated'
    make -s --no-print-directory -C "$folder" PLANTS=1 $target
done
