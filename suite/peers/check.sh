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
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
if [ -z "$python" ] || ! (exec "$python" -c 'import numpy, torch') 2>"$out/why"; then
    why=$([ -z "$python" ] || tail -n 1 "$out/why")
    case $why in *"not found") [ ! -f "$python" ] || why="$python exists, but its interpreter does not" ;; esac
    echo "peers: not run: no interpreter with torch and numpy (PYTHON=...)${why:+: ${why#*exec: }}"
    exit 3
fi
passed=0
failed=0
not_run=0

# subject cases [case[ VERDICT] cause]: without these all must pass (caught.py)
try() {
    script=$1
    cases=$2
    shift 2
    rm -rf "$out/run" # no verdicts of the run before
    "$build/lockstep" conform --device cpu --subject "$python $script" --case "$cases" --out "$out/run" \
        </dev/null >"$out/log" 2>&1
    line=$("$python" "$here/caught.py" "$out/run" $? "$@" 2>&1 | tail -n 1 | cut -c1-400)
    state=${line%%"$tab"*}
    case $state in
    ok) passed=$((passed + 1)) ;;
    "not run") not_run=$((not_run + 1)) ;;
    *) failed=$((failed + 1)) state="not ok" ;;
    esac
    name=${script##*[/ ]} # of a file, or of a row
    echo "$state - ${name%.py}.py $cases ${line#*"$tab"}"
}

tab=$(printf '\t')
if [ $# = 0 ] || [ "$1" = example.py ]; then
    try "$here/example.py" gradients.o0.w2.b0.1mb
    try "$here/example.py" 'subject.*[!m].o0.w2' # all but digest.adam: the example has SGD alone
    if "$python" -c 'import torch; torch.amp.GradScaler("cpu")' 2>/dev/null; then # PyTorch 2.3
        try "$here/example.py" gradients.o1.w2.b0.1mb
        try "$here/example.py" 'scaler.*.plain.data.o1'
    fi
fi
if [ $# = 0 ]; then
    try "$here/pytorch_train.py" 'subject.*.o0.w2'
    try "$here/pytorch_train.py" 'gradients.clip.norm.o0.w2'
    try "$here/pytorch_train.py" 'optim.clip-norm.o0.w2'
    try "$here/pytorch_train.py" 'examples.two-*.o0.w2'
    try "$here/script/adapted.py" gradients.clip.norm.o1.w2
    try "$here/script/adapted.py" schedule.warmup-step.o1.w2
    try "$here/script/adapted.py" checkpoint.resume.o1.w1
    try "$here/one_scaler.py" 'examples.two-losses.overflow.*.o1.w2'
fi
"$python" "$here/mistakes.py" --list trainer example script/adapted >"$out/mistakes" || exit 3
while IFS="$tab" read -r base row case cause sentence; do
    if [ $# = 0 ] || expr " $* " : ".* $row.py " >/dev/null; then
        try "$here/mistakes.py $base $row" "${case%% *}" "$case" "$cause"
    fi
done <"$out/mistakes"
echo "$passed passed, $failed failed"
if [ "$not_run" != 0 ]; then
    echo "$not_run not run: they crashed, hung or were refused; nothing was shown"
fi
[ "$failed" = 0 ] || exit 1
[ "$not_run" = 0 ] && [ "$passed" != 0 ] || exit 3
