#!/bin/sh
# One agent of torchrun on each of two machines starts the trainer; its events are judged afterwards:
#   sh torchrun.sh 0 a OUT   on machine a, and   sh torchrun.sh 1 a OUT   on the other
# OUT is a folder that both see, or is copied together after the end; then: lockstep judge OUT. Options of the trainer
# may follow, -a resnet18 -b 32.
set -eu
node=$1 address=$2 out=$3
shift 3
programs=$(cd "$(dirname "$0")/../../.." && pwd)/build
LS_RUN_DIR=$out exec torchrun --nnodes=2 --node-rank="$node" --nproc-per-node="${NGPUS:-8}" --master-addr="$address" \
    --master-port=29500 --no-python "$programs/lockstep-train" -a resnet50 -b 64 --image-size 224 --num-classes 1000 \
    --opt-level O2 --steps 50 --data synthetic "$@"
