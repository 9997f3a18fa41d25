#!/bin/sh
# The first half hour on a machine with a GPU where nothing can be installed: four stages of at most ten minutes, with
# programs that were built elsewhere. What a stage found comes back as one archive, whatever happens in it.
#
#   suite/gpu_first.sh pack BUILD FILE.tar.xz       the built programs and the libraries that they need (make dist)
#   suite/gpu_first.sh A|B|C|D FILE.tar.xz|BUILD OUT [NAME=value...]
#
# A: the environment, three steps, speed with and without timed engines, layers; then all that is not timed at once: kernels,
# must-pass list, audit, gradients, bits, sanitizers (150 s on an H200). B: PyTorch's ways, then the fastest in turn with
# ours (180 s). C: the bench (170 s), larger batches, counters. D: observe on PyTorch with CUDA: what it costs, the same
# bits with and without it, the gallery of mistakes. NAME: ARCH IMAGE_SIZE BATCH STEPS LIMIT_S PYTHON. Writes
# OUT/<stage>.tar.xz (OUT/<stage>/ holds the same). Exit code: 0 no row failed, 1 one did, 2 usage, 3 no programs.
#
# LS_LIB_DIR=build/emulated/lib with build for the programs tries it on a GPU emulated on the CPU.
set -u
here=$(cd "$(dirname "$0")/.." && pwd)
usage() {
    sed -n 's/^#   //p' "$0" >&2
    exit 2
}
[ "$#" -ge 3 ] || usage
stage=$1

if [ "$stage" = pack ]; then
    set -e
    case $3 in *.tar.xz) ;; *) usage ;; esac
    from=$(cd "$2" && pwd)
    to=$(cd "$(dirname "$3")" && pwd)/$(basename "$3")
    cd "$here"
    sh harness/dist.sh "$from" >/dev/null
    made=$(ls -td "$from"/dist/lockstep-*/ | head -n 1)
    cp "$made/libexec/suite/commit.txt" "$made/"
    sh harness/find_cuda.sh >"$made/built_with.txt"
    tar -C "$made" -cJf "$to" .
    du -h "$to"
    exit 0
fi

# ---- settings ------------------------------------------------------------------------------------
case $stage in A | B | C | D) ;; *) usage ;; esac
build=$2
mkdir -p "$3" || exit 3
OUT=$(cd "$3" && pwd)
shift 3
ARCH=resnet50 IMAGE_SIZE=224 BATCH=256 STEPS=60 LIMIT_S=560 PYTHON=
for pair in "$@"; do
    case $pair in
    ARCH=* | IMAGE_SIZE=* | BATCH=* | STEPS=* | LIMIT_S=* | PYTHON=*) ;;
    *)
        echo "lockstep: error: $pair: allowed: ARCH IMAGE_SIZE BATCH STEPS LIMIT_S PYTHON, as NAME=value" >&2
        exit 2
        ;;
    esac
    value=${pair#*=}
    eval "${pair%%=*}=\$value"
done
if [ -f "$build" ]; then
    mkdir -p "$OUT/programs" && tar -xJf "$build" -C "$OUT/programs" || exit 3
    build=$OUT/programs
fi
emulated=
[ -n "${LS_LIB_DIR:-}" ] && [ -e "$LS_LIB_DIR/libls_emulated.so" ] && emulated=yes
[ -x "$build/lockstep-train" ] || {
    echo "lockstep: error: $build holds no lockstep-train (suite/gpu_first.sh pack)" >&2
    exit 3
}
build=$(cd "$build" && pwd)
tab=$(printf '\t')
folder=$OUT/$stage
rm -rf "$folder" && mkdir -p "$folder" || exit 3
: >"$folder/rows.tsv"
began=$(date +%s)
cd "$here" || exit 3
. "$here/suite/make/gpu_steps.sh"

# The archive is written last, also when a step hangs and the machine's own limit ends the script.
archive() {
    trap - EXIT TERM INT HUP
    {
        echo "# First contact, stage $stage"
        echo
        [ -z "$emulated" ] || echo "A GPU emulated on the CPU: nothing here was run on a GPU."
        echo "Commit $(cat "$build/commit.txt" 2>/dev/null || git rev-parse HEAD 2>/dev/null), $(date -u +%Y-%m-%dT%H:%M:%SZ)," \
            "$(($(now) - began)) s. $ARCH, $IMAGE_SIZE pixels, batch $BATCH."
        echo
        echo '| status | what | s | |'
        echo '|---|---|---:|---|'
        sed 's/|/\\|/g' "$folder/rows.tsv" | awk -F "$tab" '{ printf "| %s | %s | %s | %s |\n", $1, $2, $3, $4 }'
    } >"$folder/report.md"
    # dumps are large and judged already
    tar -C "$OUT" --exclude='dump' --exclude='*.safetensors' --exclude='batches' -cJf "$OUT/$stage.tar.xz" "$stage"
    echo "archive: $OUT/$stage.tar.xz"
}
trap archive EXIT
child=
trap '[ -z "$child" ] || kill "$child"; row FAIL stopped 0 "by a signal"; exit 3' TERM INT HUP
failures() { grep -c '^FAIL' "$folder/rows.tsv"; }

# The device libraries of this machine: in the folders of Python's packages, where the loader does not look.
libraries=
for part in CUDART CUDNN CUBLASLT NCCL; do
    path=$(sh "$here/harness/find_cuda.sh" | sed -n "s/^${part}_LIB=//p")
    [ -z "$path" ] || libraries=$libraries$(dirname "$path"):
done
LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:-}
export LD_LIBRARY_PATH
timed="--cudnn-benchmark --engines=$folder/engines.txt"
tiny=
[ -z "$emulated" ] || tiny='--copy-mb 1 --side 16 --repeats 2'

# ---- A -------------------------------------------------------------------------------------------
train() { # name options...
    what=$1
    shift
    step "$what" 60 "$build/lockstep-train" --device=cuda -a resnet8 --image-size=16 -b 4 --steps=3 --data=synthetic "$@"
}
three_steps() { train "train.$1" --opt-level="$1" && outcome 'resnet8, three steps'; }
rebuild() { # where the programs that came along do not run
    if [ -n "$emulated" ]; then
        row skip rebuild 0 'a GPU emulated on the CPU'
        return
    fi
    step rebuild 300 make -s -j"$(nproc)" BUILD="$OUT/build" WARN=-w ${DEPS:+DEPS="$DEPS"} all || return
    outcome 'programs and engines'
    [ "$code" -ne 0 ] || build=$OUT/build
}
switched() { # NAME=value row options...: speed with one switch of the backend turned (kernels/cuda/README.md)
    switch=$1 what=$2
    shift 2
    export "$switch"
    speed "$what" "$BATCH" --opt-level=O2 $half "$@"
    unset "${switch%%=*}"
}
layers() { # name options...
    what=$1
    shift
    step "layers.$what" 90 "$build/lockstep" layers --device cuda --arch "$ARCH" --image-size "$IMAGE_SIZE" --batch "$BATCH" $tiny \
        --out "$folder/layers.$what.tsv" "$@" && outcome "$(grep '^forward' "$folder/layers.$what.log" | cut -c1-150)"
}
stage_A() {
    {
        uname -a
        ldd --version | head -n 1
        sh harness/find_cuda.sh
        cat "$build/built_with.txt"
    } >"$folder/found.txt" 2>&1
    lscpu >"$folder/lscpu.txt" 2>&1
    command -v nvidia-smi >/dev/null && nvidia-smi -q >"$folder/nvidia-smi.txt" 2>&1
    ldd -r "${LS_LIB_DIR:-$build/libexec/lib}/ls_cuda.so" >"$folder/ldd.txt" 2>&1
    if grep -q -E 'not found|undefined symbol' "$folder/ldd.txt"; then
        row FAIL libraries 0 "$(grep -m1 -E 'not found|undefined symbol' "$folder/ldd.txt" | tr -d '\t')"
    else
        row ok libraries 0 'all found, no symbol missing'
    fi
    [ -n "$emulated" ] || { step preflight 60 "$build/lockstep" preflight && row ok preflight "$took" "exit code $code"; }
    together three_steps O0 -- three_steps O1 -- three_steps O2 -- three_steps O3
    if [ "$(failures)" -gt 0 ]; then
        rebuild
        together three_steps O0 -- three_steps O2
    fi
    speed o2 "$BATCH" --opt-level=O2 $half $timed
    speed o2.heuristic "$BATCH" --opt-level=O2 $half
    speed o2.no-graph "$BATCH" --opt-level=O2 $half $timed --cuda-graph=off
    # engines are kept by layer: another plan's are timed into a file of their own
    switched LS_CUDNN_ADD=0 o2.no-add --cudnn-benchmark --engines="$folder/engines.no-add.txt"
    switched LS_STEM_S2D=0 o2.no-blocks --cudnn-benchmark --engines="$folder/engines.no-blocks.txt"
    switched LS_PDL=1 o2.early $timed
    speed o2.fuse "$BATCH" --opt-level=O2 $half $timed --fuse
    speed o2.audit "$BATCH" --opt-level=O2 $half $timed --audit=1:20:$((warmup + 5))
    layers f16 --type f16
    layers f16.all --type f16 --all
    layers f16.fuse --type f16 --fuse --all
    speed o1 "$BATCH" --opt-level=O1 $half $timed
    speed o0 "$BATCH" --opt-level=O0 $timed
    speed o0.tf32 "$BATCH" --opt-level=O0 --tf32 $timed
    correct
}

# ---- B -------------------------------------------------------------------------------------------
has_torch() { # name of a row: sets python
    for python in ${PYTHON:+"$PYTHON"} python3 /usr/bin/python3; do
        "$python" -c 'import torch' 2>/dev/null && return
    done
    row skip "$1" 0 'no PyTorch (PYTHON=... names an interpreter)'
    return 1
}
stage_B() {
    trial=
    [ -z "$emulated" ] || trial=--trial
    has_torch peer || return
    step peer "$LIMIT_S" "$python" suite/peers/gpu_peer.py --train "$build/lockstep-train" --out "$folder" --arch "$ARCH" \
        --image-size "$IMAGE_SIZE" --batch "$BATCH" --steps "$STEPS" --limit "$(($(left) - 15))" \
        --together --ways eager,graph.masters,compile.graph,compile.graph.masters $trial || return
    [ ! -e "$folder/peer.rows" ] || cat "$folder/peer.rows" >>"$folder/rows.tsv"
    outcome "$(grep -c '^ok' "$folder/peer.rows" 2>/dev/null) rows"
}

# ---- C -------------------------------------------------------------------------------------------
profile() { # name options of ncu -- options of lockstep-train: two steps of O2 under the profiler
    what=$1 of_ncu=
    shift
    while [ "$1" != -- ]; do
        of_ncu="$of_ncu $1"
        shift
    done
    shift
    if ! command -v ncu >/dev/null || [ -n "$emulated" ]; then
        row skip "$what" 0 'ncu is not in PATH'
        return
    fi
    step "$what" 120 ncu --clock-control none $of_ncu -f -o "$folder/$what" "$build/lockstep-train" --device=cuda -a "$ARCH" \
        --image-size="$IMAGE_SIZE" -b "$BATCH" --num-classes=1000 --steps=2 --opt-level=O2 --data=synthetic --resident=1 \
        --digest=none --cuda-graph=off "$@" && outcome "$(ls -s "$folder/$what"* 2>/dev/null | head -n 1)"
}
counters() { # of the sweeps over memory, and the times of the kernels that audit a step
    profile counters --set full --launch-skip 40 --launch-count 60 -k 'regex:norm|sweep|pool|sgd|pack' --
    profile counters.audit --metrics gpu__time_duration.sum \
        -k 'regex:(weights|rows|element|merge|compare|simple|back|forward|loss|step)_kernel' -- --audit=1:1:2
}
stage_C() {
    step bench "$LIMIT_S" "$build/lockstep" bench DEVICE=cuda NGPUS=1 BUCKETS_MB=25 STEPS=40 OUT="$folder" &&
        outcome "$(grep -m1 '^CORRECT' "$folder/bench.log")"
    for size in $((BATCH * 3 / 2)) $((BATCH * 25 / 16)) $((BATCH * 2)); do
        speed "o2.b$size" "$size" --opt-level=O2 $half $timed
    done
    speed o2.bf16 "$BATCH" --opt-level=O2 --half=bf16 $timed
    speed o3 "$BATCH" --opt-level=O3 --loss-scale=128 $timed
    counters
}

# ---- D -------------------------------------------------------------------------------------------
# Without CUDA the same on the CPU, to try the stage.
observed() { # name seconds command...: its last line
    step "$@" && outcome "$(tail -n 1 "$folder/$name.log" | cut -c1-150)"
}
stage_D() {
    has_torch observe || return
    device=cuda
    [ -z "$emulated" ] || device=cpu
    export LS_DEVICE=$device LS_GALLERY_KEEP="$folder/gallery.kept"
    LS_GALLERY_JOBS=$((($(nproc) + 2) / 3))
    export LS_GALLERY_JOBS
    mkdir -p "$LS_GALLERY_KEEP"
    observed observe.cost 200 "$python" suite/peers/observe_cost.py "$build/lockstep" --ranks 1 --pairs 2 --steps 400
    observed observe.bits 150 "$python" suite/observe/attach/test_attach.py
    observed observe.gallery "$LIMIT_S" "$python" suite/peers/gallery/check.py "$build/lockstep" "$python"
}

echo "== stage $stage (at most $LIMIT_S s)"
"stage_$stage"
[ "$(failures)" -eq 0 ]
