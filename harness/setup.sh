#!/bin/sh
# Reports missing packages that the build and the runs need and, if that is allowed, installs them.
#
#   harness/setup.sh build|units|check|conform|bench|fuzz|deps [yes|no]
#
# build and units only report missing packages without which the programs or the unit tests do not compile, with exit
# code 3. check, conform, fuzz and deps install them on Debian and Ubuntu, as root or with a sudo without a password.
# bench does so only on a machine without NVIDIA devices, or with the second argument `yes`, so that a production node
# does not change unexpectedly. Otherwise the script prints the command to run and exits with 3.
set -eu

purpose=${1:-deps}
consent=${2:-}
sysfs=${LS_SYSFS:-/sys}
include=${DEPS:+$DEPS/usr/include} # of packages unpacked into a folder (make DEPS=...)

has_header() {
    if command -v gcc; then
        printf '#include <%s>\n' "$1" | gcc ${include:+-isystem "$include"} -E -
    else
        test -e "/usr/include/$1"
    fi
}

missing=
need() { # what, package, test...
    what=$1
    package=$2
    shift 2
    if ! "$@" >/dev/null 2>&1; then
        missing="$missing $package"
        case $purpose in build | units) echo "lockstep: missing: $what (Debian package $package)" >&2 ;; esac
    fi
}
need gcc gcc command -v gcc
need string.h libc6-dev has_header string.h
need cjson/cJSON.h libcjson-dev has_header cjson/cJSON.h
need jpeglib.h libjpeg-dev has_header jpeglib.h
need png.h libpng-dev has_header png.h
case $purpose in
build | units)
    [ "$purpose" = build ] || need check.h check has_header check.h
    [ -n "$missing" ] || exit 0
    echo "lockstep: \`make deps\` installs what is missing (Debian, Ubuntu)" >&2
    exit 3
    ;;
esac
need g++ g++ command -v g++
need oneapi/dnnl/dnnl.h libdnnl-dev has_header oneapi/dnnl/dnnl.h
need gloo/context.h libgloo-dev test -e "${include:-/usr/include}/gloo/context.h"
[ "$purpose" = fuzz ] || need gnuplot "gnuplot-nox fonts-dejavu-core" command -v gnuplot
case $purpose in
bench | conform) ;;
*) need check.h check has_header check.h ;;
esac
[ "$purpose" != deps ] || need "clang-format 14" clang-format-14 sh -c \
    'clang-format-14 --version || clang-format --version | grep "version 14\."'
[ -n "$missing" ] || exit 0
missing=${missing# }

nvidia_device() {
    for device in "$sysfs"/bus/pci/devices/*; do
        [ -r "$device/vendor" ] && [ -r "$device/class" ] || continue
        if [ "$(cat "$device/vendor")" = 0x10de ]; then
            case "$(cat "$device/class")" in 0x0300* | 0x0302*) return 0 ;; esac
        fi
    done
    return 1
}

refuse() {
    echo "lockstep: missing here: $missing" >&2
    echo "lockstep: $1; to install it, run:" >&2
    echo "    apt-get install --no-install-recommends $missing" >&2
    exit 3
}

if [ "$consent" = no ]; then
    refuse "INSTALL=no"
fi
if [ "$purpose" = bench ] && [ "$consent" != yes ] && nvidia_device; then
    refuse "this machine has an NVIDIA device and is not changed unasked (INSTALL=yes allows it)"
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "lockstep: missing here: $missing (names of Debian packages; no apt-get to install them)" >&2
    exit 3
fi
if [ "$(id -u)" -eq 0 ]; then
    as_root=
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    refuse "not root, and sudo would ask"
fi

echo "lockstep: installing $missing"
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # word splitting is meant
if ! $as_root apt-get update >"$log" 2>&1 ||
    ! $as_root apt-get install -y --no-install-recommends $missing >>"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "lockstep: apt-get failed; its whole output is in $log" >&2
    exit 3
fi
rm -f "$log"
mkdir -p "${LS_BUILD:-build}"
for package in $missing; do
    echo "$package"
done >>"${LS_BUILD:-build}/installed" # a run's record lists the packages installed for it
