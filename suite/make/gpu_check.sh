#!/bin/sh
# Everything that needs a GPU, in parts under 8 minutes each: build, correct, speed, peer. Each part writes
# rows.tsv (status, name, seconds, text; warn: the machine's state, which fails nothing), its tables and its logs into a
# folder of its own; report.md contains all parts that were run. What cannot be done has a row that says why; what a part
# has no time for is skipped. Exit code: 0 no row failed, 1 one did, 2 usage, 3 no GPU or no build.
#
#   suite/make/gpu_check.sh BUILD [NAME=value...]      names: suite/make/variables.def
#
# LS_LIB_DIR=build/emulated/lib tries the script itself on a GPU emulated on the CPU (small ARCH, IMAGE_SIZE, ...).
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:?usage: suite/make/gpu_check.sh BUILD [NAME=value...]}
shift
sh "$here/harness/variables.sh" "$here/suite/make/variables.def" gpu-check "$@" || exit 2
PART= OUT= DEPS= PYTHON= ARCH=resnet50 IMAGE_SIZE=224 BATCH=256 BATCHES=64,100,128,192,250,256,384,512
STEPS=40 CASES= LIMIT_S=460
for pair in "$@"; do # the names are those of variables.def
    value=${pair#*=}
    eval "${pair%%=*}=\$value"
done
emulated=
[ -n "${LS_LIB_DIR:-}" ] && [ -e "$LS_LIB_DIR/libls_emulated.so" ] && emulated=yes
cores=$(nproc)

# ---- is there a GPU ------------------------------------------------------------------------------
gpus=0
for device in "${LS_SYSFS:-/sys}"/bus/pci/devices/*; do
    [ "$(cat "$device/vendor" 2>/dev/null)" = 0x10de ] || continue
    case $(cat "$device/class" 2>/dev/null) in 0x0300* | 0x0302*) gpus=$((gpus + 1)) ;; esac
done
if [ "$gpus" -eq 0 ] && [ ! -e /dev/nvidiactl ] && [ -z "$emulated" ]; then
    echo "lockstep: error: make gpu-check needs an NVIDIA GPU, and the PCI bus (${LS_SYSFS:-/sys}) shows none" >&2
    exit 3
fi

# ---- where it is written -------------------------------------------------------------------------
# A single part is added to the newest report if that does not have it yet.
if [ -z "$OUT" ] && [ -n "$PART" ]; then
    newest=$(ls -d results/runs/*-gpu-check 2>/dev/null | tail -n 1)
    [ -n "$newest" ] && [ ! -e "$newest/$PART" ] && OUT=$newest
fi
[ -n "$OUT" ] || OUT=results/runs/$(date -u +%Y%m%dT%H%M%SZ)-gpu-check
mkdir -p "$OUT" || exit 3
OUT=$(cd "$OUT" && pwd)
tab=$(printf '\t')

. "$here/suite/make/gpu_steps.sh"

# ---- build ---------------------------------------------------------------------------------------
part_build() {
    sh harness/find_cuda.sh >"$folder/found.txt" 2>&1
    for name in NVCC CUDART_LIB CUDNN_LIB CUBLASLT_LIB NCCL_LIB; do
        value=$(sed -n "s/^$name=//p" "$folder/found.txt")
        [ -n "$value" ] && row ok "found.$name" 0 "$value" || row skip "found.$name" 0 "not found"
    done
    if [ -n "$emulated" ]; then
        row skip build 0 "a GPU emulated on the CPU: built by 'make emulated'"
    elif step build "$LIMIT_S" make -s -j"$cores" BUILD="$build" DEPS="$DEPS" all; then
        outcome "programs and engines"
        sed -n 's/^\([A-Za-z ]*\): *no[:,] *\(.*\)/\1\t\2/p' "$folder/build.log" | while IFS="$tab" read -r what why; do
            row skip "$what" 0 "$why"
        done
    fi
    library=${LS_LIB_DIR:-$build/lib}/ls_cuda.so
    if [ -e "$library" ]; then row ok ls_cuda.so 0 "$library"; else
        row FAIL ls_cuda.so 0 "not built: $(sed -n 's/^CUDA backend: *//p' "$folder/build.log" | head -n 1)"
        return
    fi
    if [ -z "$emulated" ] && printf '#include <check.h>\n' | cc -E ${DEPS:+-I"$DEPS/usr/include"} - >/dev/null 2>&1; then
        step units "$LIMIT_S" make -s -j"$cores" BUILD="$build" DEPS="$DEPS" units && outcome built
    else
        row skip units 0 "check.h not found (libcheck), or nothing to build"
    fi
    if [ -z "$emulated" ]; then
        step preflight 90 "$build/lockstep" preflight &&
            case $code in
            0) row ok preflight "$took" "$(grep -c '^warning' "$folder/preflight.log") warnings" ;;
            1) row warn preflight "$took" "$(grep -m1 '^fail' "$folder/preflight.log" | cut -c1-150)" ;;
            *) failed_step ;;
            esac
    fi
    command -v nvidia-smi >/dev/null && nvidia-smi -q >"$folder/nvidia-smi.txt" 2>&1
    for level in O0 O2; do
        step "train.$level" 120 "$build/lockstep-train" --device=cuda -a resnet8 --image-size=16 -b 4 --steps=3 \
            --opt-level=$level --data=synthetic && outcome "resnet8, three steps"
    done
}

# ---- correct -------------------------------------------------------------------------------------
planted() { # patch of a CUDA source: the case written for it must not pass
    patch=$1
    fault=$(basename "$patch" .patch)
    case=$(sed -n "s/^$fault[^|]*| *\([^ |]*\) *|.*/\1/p" suite/plants.txt)
    step "plant.$fault.build" 200 sh suite/plants/build.sh "$build" "$patch" || return
    program=$build/patched/$fault/build/planted/lockstep
    if [ "$code" -ne 0 ] || [ ! -x "$program" ]; then
        row FAIL "plant.$fault" "$took" "not built: $(last_error "$folder/plant.$fault.build.log")"
        return
    fi
    step "plant.$fault" 120 "$program" conform --device cuda --gate manners --out "$folder/plant.$fault" --overwrite --case "$case" || return
    if [ "$code" -eq 1 ]; then row ok "plant.$fault" "$took" "caught by $case"; else
        row FAIL "plant.$fault" "$took" "$case ended with $code: the planted fault was not caught"
    fi
}
part_correct() {
    if [ -n "$CASES" ]; then
        conform cases "$LIMIT_S" --case "$CASES"
    else
        correct
    fi
    # the main job in small: the real network's first gradient against FP32 in one process, among others
    if [ -z "$emulated" ]; then
        step bench 150 "$build/lockstep" bench DEVICE=cuda NGPUS=1 PROFILE=smoke BATCH=32 STEPS=10 OUT="$folder" &&
            outcome "$(grep -m1 '^CORRECT' "$folder/bench.log")"
    fi
    patches=$(grep -l -E '^\+\+\+ [^ ]*kernels/cuda/' suite/plants/*.patch 2>/dev/null)
    [ -n "$patches" ] || row skip plants 0 "no patch of suite/plants touches kernels/cuda"
    if [ -n "$emulated" ] && [ -n "$patches" ]; then
        row skip plants 0 "patched kernels are built for real GPUs only"
    else
        [ -z "$patches" ] || make -s -j"$cores" BUILD="$build" DEPS="$DEPS" PLANTS=1 programs >"$folder/plants.log" 2>&1
        for patch in $patches; do planted "$patch"; done
    fi
}

# ---- speed ---------------------------------------------------------------------------------------
part_speed() {
    printf '# title: %s, %s pixels: images per second on one GPU\n# units: images, images/s, ms; low and high: 10th and 90th hundredth of the steps\n# columns: 1 job  2 batch  3 images_per_s  4 step_ms  5 low_ms  6 high_ms\n' "$ARCH" "$IMAGE_SIZE" >"$folder/speed.tsv"
    timed="--cudnn-benchmark --engines=$folder/engines.txt" # the jobs share what the first of them chose
    speed o2 "$BATCH" --opt-level=O2 $half $timed
    speed o1 "$BATCH" --opt-level=O1 $half $timed
    speed o3 "$BATCH" --opt-level=O3 --loss-scale=128 $timed
    speed o2.bf16 "$BATCH" --opt-level=O2 --half=bf16 $timed
    speed o0 "$BATCH" --opt-level=O0 $timed
    speed o0.tf32 "$BATCH" --opt-level=O0 --tf32 $timed
    speed o2.heuristic "$BATCH" --opt-level=O2 $half
    speed o2.no-graph "$BATCH" --opt-level=O2 $half $timed --cuda-graph=off
    speed o2.deterministic "$BATCH" --opt-level=O2 $half --deterministic
    speed o2.phases "$BATCH" --opt-level=O2 $half $timed --trace
    sed -n 's/.*"event":"trace".*/&/p' "$folder/o2.phases/rank0.jsonl" 2>/dev/null | tail -n 1 >"$folder/trace.json"
    tiny=
    [ -z "$emulated" ] || tiny='--copy-mb 1 --side 16 --repeats 2'
    for type in f16 bf16 f32 tf32; do
        step "layers.$type" 90 "$build/lockstep" layers --device cuda --arch "$ARCH" --image-size "$IMAGE_SIZE" --batch "$BATCH" \
            --type $type $tiny --out "$folder/layers.$type.tsv" &&
            outcome "$(grep '^forward' "$folder/layers.$type.log" | cut -c1-150)"
    done
    for size in $(echo "$BATCHES" | tr ',' ' '); do
        [ "$size" = "$BATCH" ] || speed "o2.b$size" "$size" --opt-level=O2 $half $timed
    done
}

# ---- peer ----------------------------------------------------------------------------------------
part_peer() {
    for python in ${PYTHON:+"$PYTHON"} python3 /usr/bin/python3; do
        "$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' 2>/dev/null && break
        python=
    done
    trial=
    if [ -n "$emulated" ]; then # PyTorch on the CPU: the script is tried, its figures say nothing
        for python in ${PYTHON:+"$PYTHON"} python3 /usr/bin/python3; do
            "$python" -c 'import torch' 2>/dev/null && break
            python=
        done
        trial=--trial
    fi
    if [ -z "$python" ]; then
        row skip peer 0 "no PyTorch that finds a GPU (PYTHON=... names an interpreter)"
        return
    fi
    step peer "$LIMIT_S" "$python" suite/peers/gpu_peer.py --train "$build/lockstep-train" --out "$folder" \
        --arch "$ARCH" --image-size "$IMAGE_SIZE" --batch "$BATCH" --steps "$STEPS" --limit "$(($(left) - 10))" $trial ||
        return
    if [ "$code" -ne 0 ]; then
        failed_step
        return
    fi
    cat "$folder/peer.rows" >>"$folder/rows.tsv"
    while IFS="$tab" read -r status name seconds text; do
        printf '%-5s %-34s %4s s  %s\n' "$status" "$name" "$seconds" "$text"
    done <"$folder/peer.rows"
}

# ---- report --------------------------------------------------------------------------------------
write_report() {
    commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
    {
        echo "# Lockstep gpu-check"
        echo
        if [ -n "$emulated" ]; then echo "A GPU emulated on the CPU: nothing here was run on a GPU."; else
            nvidia-smi --query-gpu=name,uuid,driver_version,memory.total --format=csv,noheader 2>/dev/null ||
                echo "nvidia-smi is not here"
        fi
        echo
        echo "Commit $commit, $(date -u +%Y-%m-%dT%H:%M:%SZ)."
        for part in build correct speed peer; do
            [ -s "$OUT/$part/rows.tsv" ] || continue
            fails=$(grep -c '^FAIL' "$OUT/$part/rows.tsv")
            printf '\n## %s: %s ok, %s failed, %s skipped\n\n' "$part" "$(grep -c '^ok' "$OUT/$part/rows.tsv")" "$fails" \
                "$(grep -c '^skip' "$OUT/$part/rows.tsv")"
            echo '| status | what | s | |'
            echo '|---|---|---:|---|'
            sed 's/|/\\|/g' "$OUT/$part/rows.tsv" | awk -F "$tab" '{ printf "| %s | %s | %s | %s |\n", $1, $2, $3, $4 }'
            if [ -e "$OUT/$part/peer.md" ]; then
                echo
                cat "$OUT/$part/peer.md"
            fi
            for log in "$OUT/$part"/layers.f16.log; do
                [ -e "$log" ] || continue
                printf '\n```\n'
                sed '/^engines$/,$d' "$log"
                echo '```'
            done
        done
    } >"$OUT/report.md.new" && mv "$OUT/report.md.new" "$OUT/report.md"
}

failed=0
for part in ${PART:-build correct speed peer}; do
    folder=$OUT/$part
    rm -rf "$folder" && mkdir -p "$folder" || exit 3
    : >"$folder/rows.tsv"
    began=$(now)
    echo "== $part (at most $LIMIT_S s)"
    if [ "$part" != build ] && [ ! -x "$build/lockstep-train" ]; then
        echo "lockstep: error: nothing is built in $build: make gpu-check PART=build" >&2
        exit 3
    fi
    "part_$part"
    failed=$((failed + $(grep -c '^FAIL' "$folder/rows.tsv")))
    write_report
done
echo "report: $OUT/report.md"
[ "$failed" -eq 0 ]
