#!/bin/sh
# Accepts machines that are reached by ssh, with or without a shared disk: sh ssh.sh a,b [GPUs of each]
# They need sshd, sh and tar, and NVIDIA's libraries where they have GPUs. LS_SSH="ssh -i key" sets the command.
set -eu
cd "$(dirname "$0")/../../.."
exec make bench NODES="$1" NGPUS="${2:-8}"
