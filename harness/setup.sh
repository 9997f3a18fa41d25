#!/bin/sh
# What the build and the runs need: says what is missing and, where that is allowed, installs it.
#
#   harness/setup.sh check|bench|deps [yes|no]
#
# check and deps install on Debian and Ubuntu as root or with a sudo that asks nothing. bench does so only
# where the machine has no NVIDIA device, elsewhere only with the second argument `yes`: nobody's
# production node is changed unasked. Otherwise it prints the one line to run and ends with 3.
set -eu

purpose=${1:-deps}
consent=${2:-}
sysfs=${LS_SYSFS:-/sys}

have_header() {
    command -v gcc >/dev/null 2>&1 && printf '#include <%s>\n' "$1" | gcc -E - >/dev/null 2>&1
}

missing=
need() { # test result, package
    if [ "$1" -ne 0 ]; then
        missing="$missing $2"
    fi
}
probe() {
    if "$@" >/dev/null 2>&1; then echo 0; else echo 1; fi
}
need "$(probe command -v gcc)" gcc
need "$(probe command -v g++)" g++
need "$(probe test -e /usr/include/string.h)" libc6-dev
need "$(probe have_header cjson/cJSON.h)" libcjson-dev
need "$(probe have_header jpeglib.h)" libjpeg-dev
need "$(probe have_header oneapi/dnnl/dnnl.h)" libdnnl-dev
need "$(probe test -e /usr/include/gloo/context.h)" libgloo-dev
need "$(probe command -v gnuplot)" "gnuplot-nox fonts-dejavu-core"
if [ "$purpose" != bench ]; then
    need "$(probe have_header check.h)" check
fi
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
done >>"${LS_BUILD:-build}/installed" # a run's record says what was installed for it
