#!/bin/sh
# Foreign trainers on the installed PyTorch: the example and the adapter must pass, each wrong trainer must be caught
# by its case. usage: check.sh BUILD [PYTHON] [SCRIPT...]   (SCRIPT: only these: example.py or wrong trainers)
build=$1
python=$2
[ $# -gt 2 ] && shift 2 || shift $#
here=$(dirname "$0")
for found in python3 /usr/bin/python3; do
    [ -n "$python" ] || ! $found -c 'import numpy, torch' 2>/dev/null || python=$found
done
if [ -z "$python" ] || ! "$python" -c 'import numpy, torch' 2>/dev/null; then
    echo "peers: not run: no interpreter with torch and numpy (PYTHON=...)"
    exit 3
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
passed=0
failed=0

# subject case expected-exit-code
try() {
    "$build/lockstep" conform --device cpu --subject "$python $1" --case "$2" --out "$out/run" </dev/null \
        >"$out/log" 2>&1
    code=$?
    line=$(grep -h -m1 '^not ok [0-9]' "$out/log" | cut -c1-200)
    if [ "$3" = 1 ] && expr "$line" : '.*# UNSUPPORTED' >/dev/null; then
        echo "not run - $(basename "$1") $2: ${line#*UNSUPPORTED }"
    elif [ "$3" = 1 ] && expr "$line" : '.*# [TI][IN][MF]' >/dev/null; then # TIMEOUT, INFRA
        failed=$((failed + 1))
        echo "not ok - $(basename "$1") $2: nothing shown: $line"
    elif [ "$code" = "$3" ]; then
        passed=$((passed + 1))
        echo "ok - $(basename "$1") $2 ${line#*# }"
    else
        failed=$((failed + 1))
        echo "not ok - $(basename "$1") $2: exit code $code, expected $3: $line"
    fi
}

if [ $# = 0 ] || [ "$1" = example.py ]; then
    try "$here/example.py" gradients.o0.w2.b0.1mb 0
    try "$here/example.py" 'subject.*[!m].o0.w2' 0 # all but digest.adam: the example has SGD alone
    if "$python" -c 'import torch; torch.amp.GradScaler("cpu")' 2>/dev/null; then # PyTorch 2.3
        try "$here/example.py" gradients.o1.w2.b0.1mb 0
        try "$here/example.py" 'scaler.*.plain.data.o1' 0
    fi
fi
if [ $# = 0 ]; then
    try "$here/pytorch_train.py" 'subject.*.o0.w2' 0
    try "$here/pytorch_train.py" 'gradients.clip.norm.o0.w2' 0
    try "$here/pytorch_train.py" 'optim.clip-norm.o0.w2' 0
    try "$here/pytorch_train.py" 'examples.two-*.o0.w2' 0
    try "$here/script/adapted.py" gradients.clip.norm.o1.w2 0
    try "$here/script/adapted.py" schedule.warmup-step.o1.w2 0
    try "$here/script/adapted.py" checkpoint.resume.o1.w1 0
    try "$here/one_scaler.py" 'examples.two-losses.overflow.*.o1.w2' 0
fi
tab=$(printf '\t')
grep -v '^#' "$here/wrong/expected.txt" >"$out/expected"
while IFS="$tab" read -r script case sentence; do
    if [ $# = 0 ] || expr " $* " : ".* $script " >/dev/null; then
        try "$here/wrong/$script" "$case" 1
    fi
done <"$out/expected"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
