#!/bin/sh
# Packages that a build wants, downloaded and unpacked into a folder, for a machine where nothing can be installed
# (make gpu-check DEPS=DIR there). Run it where apt has the same Debian or Ubuntu as that machine; the folder can be
# copied. Only libraries and headers are kept.
#
#   suite/make/gpu_deps.sh DIR
set -eu
folder=${1:?usage: suite/make/gpu_deps.sh DIR}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(mktemp -d)"
wanted='libcjson-dev libcjson1 libjpeg-dev libpng-dev check'
# Package names of the machine's release: names differ, and missing packages are skipped by name.
for name in libjpeg62-turbo-dev libjpeg62-turbo libjpeg-turbo8-dev libjpeg-turbo8 libsubunit-dev libsubunit0 \
    libdnnl-dev libdnnl2 libdnnl3 libdnnl3.6 libgloo-dev libgloo0 libpng16-16 libpng16-16t64 zlib1g-dev zlib1g; do
    wanted="$wanted $name"
done
for name in $wanted; do
    if apt-cache show "$name" >/dev/null 2>&1 && apt-get download "$name" >/dev/null 2>&1; then
        dpkg -x "$name"_*.deb "$folder"
    else
        echo "left out: $name"
    fi
done
rm -rf "$folder/usr/share" "$folder/usr/bin" "$folder"/usr/lib/*/*.a
du -sh "$folder"
