#!/bin/sh
# Runs a program in which a mutant may have broken whatever ends processes or removes files: it sees only its own
# processes, its own loopback and a read-only file system, but for FOLDER and new folders /tmp and /dev/shm.
#
#   suite/mutate/sandbox.sh FOLDER PROGRAM...       (125: this machine allows no such name spaces)
set -u
folder=$1
shift
user=
[ "$(id -u)" -eq 0 ] || user=-Ur
LS_SANDBOX=$folder exec unshare $user --mount --pid --net --ipc --fork --kill-child=KILL --mount-proc sh -c '
    mount --bind "$LS_SANDBOX" "$LS_SANDBOX" && mount -o remount,ro,bind / &&
    mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /dev/shm && ip link set lo up || exit 125
    cd "$LS_SANDBOX" && exec "$@"' sh "$@"
